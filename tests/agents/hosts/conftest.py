"""Real hosts, each in a network without a way out; see CONTRIBUTING.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hosts.drivers import HOSTS, CannotInstall, Host, user_variables
from hosts.model_server import Step
from hosts.namespace import CannotIsolate, Namespace, Transcript

DONE: Step = {"text": "done"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hosts-dir",
        type=Path,
        help="where hosts of agents are installed and stay (default: pytest's cache)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("hosts")


class Scene(NamedTuple):
    """A host, the home directory of its user, and the project that the agent works in."""

    host: Host
    network: Namespace
    home: Path
    project: Path

    def run(
        self,
        prompt: str,
        *steps: Step,
        session: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Transcript:
        """Runs the host for one prompt; its model takes these steps, and then is done."""
        return self.host.run(
            prompt,
            [*steps, DONE],
            self.home,
            self.project,
            network=self.network,
            session=session,
            variables=variables,
        )

    def shell(self, command: str) -> Step:
        """Returns the model's call of the host's shell tool."""
        return self.host.shell(command)

    @property
    def program(self) -> Path:
        """What hooks call: a link that a test can replace by something else."""
        return self.home / "bin" / "snap"

    def snap(self, *words: str) -> Transcript:
        """Runs the command line where the host runs, as its user."""
        if not self.program.is_symlink():
            self.program.parent.mkdir()
            self.program.symlink_to(Path(sys.executable).with_name("snap"))
        variables = user_variables(self.home)
        ended = self.network.run(
            [str(self.program), *words], [], cwd=self.project, variables=variables
        )
        assert ended.code == 0, ended
        return ended

    def listed(self, name: str, *words: str) -> list[dict[str, Any]]:
        """Returns a list from the command line's JSON."""
        found: list[dict[str, Any]] = json.loads(self.snap(*words, "--json").out)[name]
        return found


@pytest.fixture(scope="session", params=HOSTS)
def host(request: pytest.FixtureRequest) -> Host:
    """Each host in turn; one that cannot be had is skipped."""
    chosen = request.config.getoption("--hosts-dir", None)
    directory = chosen.absolute() if chosen else request.config.cache.mkdir("hosts")
    found = HOSTS[request.param](directory)
    try:
        found.install()
    except CannotInstall as error:
        pytest.skip(f"{found.name} cannot be installed: {error}")
    return found


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Namespace]:
    """A network with a scripted model."""
    namespace = Namespace(tmp_path / "model")
    try:
        namespace.__enter__()
    except CannotIsolate as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    yield namespace
    namespace.__exit__()


@pytest.fixture
def scene(host: Host, network: Namespace, tmp_path: Path) -> Scene:
    """A host in an empty home directory, and a project with a file."""
    home, project = tmp_path / "anna", tmp_path / "anna" / "project"
    project.mkdir(parents=True)
    (project / "keep.txt").write_text("kept")
    return Scene(host, network, home, project)
