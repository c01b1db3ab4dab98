"""A sandbox of each provider: its own client before a double of its API that runs commands."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

import treesnap
from sandbox_machine import Machine, served
from treesnap.core.model.snapshots import Snapshot
from treesnap.remote import Remotes

PROVIDERS = ("daytona", "e2b")


class Scene:
    """A sandbox of a provider with a project in it, and a project on this machine."""

    def __init__(self, provider: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.provider = provider
        self.machine = Machine(directory / "box")
        self.project = self.machine.project
        self.directory = directory / "histories" / "task-1"
        (directory / "host").mkdir()
        self.handle = treesnap.open(directory / "host", directory / "store")
        self.module = importlib.import_module(f"treesnap.sandboxes.{provider}")
        self._monkeypatch = monkeypatch
        self._doubles = ExitStack()
        self.client = self.connected(self.machine)

    def connected(self, machine: Machine) -> Any:
        """Returns the provider's client for a new sandbox of a machine."""
        url = self.address(machine)
        if self.provider == "e2b":
            import e2b

            return e2b.Sandbox.create()
        import daytona

        config = daytona.DaytonaConfig(api_key="key", api_url=f"{url}/api", target="local")
        self.account = daytona.Daytona(config)
        return self.account.create()

    def address(self, machine: Machine) -> str:
        """Returns the address of a new double for a machine, where E2B's client finds it."""
        double = importlib.import_module(f"{self.provider}_double")
        url = self._doubles.enter_context(served(double.Request, machine))
        for name, value in {
            "E2B_API_URL": url,
            "E2B_SANDBOX_URL": url,
            "E2B_API_KEY": f"e2b_{'0' * 40}",
            "E2B_HTTP_VERSION": "1.1",
        }.items():
            self._monkeypatch.setenv(name, value)
        return url

    def close(self) -> None:
        self._doubles.close()

    def recorded(self, root: Path | None = None, **options: Any) -> AbstractContextManager[Any]:
        given = {"hand_out_every_s": 0} | options
        place = () if "remote" in given else (self.handle, self.directory)
        return self.module.recorded(self.client, str(root or self.project), *place, **given)

    def run(self, command: str, **options: Any) -> str:
        if self.provider == "e2b":
            return self.client.commands.run(command, cwd=str(self.project), **options).stdout
        done = self.client.process.exec(command, cwd=str(self.project), **options)
        assert done.exit_code == 0, done.result
        return done.result

    def pause(self) -> None:
        if self.provider == "e2b":
            self.client.pause()
        else:
            self.client.stop()

    def resume(self) -> None:
        if self.provider == "e2b":
            self.client.connect()
        else:
            self.client.start()

    def there(self, root: Path | None = None) -> list[Snapshot]:
        """Returns the snapshots in the store of the sandbox, newest first."""
        store = self.machine.home / ".local" / "share" / "treesnap"
        return treesnap.open(root or self.project, store).list()

    def here(self) -> list[Snapshot]:
        """Returns the snapshots of a new directory that was cloned from what was handed out."""
        place = self.directory.parent / "clone"
        Remotes(treesnap.open(place, self.directory.parent / "other")).clone(str(self.directory))
        return treesnap.open(place, self.directory.parent / "other").list()


@pytest.fixture(params=PROVIDERS)
def scene(request, tmp_path, monkeypatch) -> Iterator[Scene]:
    pytest.importorskip(request.param, reason=f"the extra '{request.param}' is not installed")
    monkeypatch.delenv("SNAP_STORE", raising=False)
    made = Scene(request.param, tmp_path, monkeypatch)
    yield made
    made.close()
