"""Runs the command line against a root and a store of the test's own.

By default in this process, through the same function that the installed command
calls; with ``process=True`` in a forked child, for what only a process has; with a
``prefix`` really started by that command.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calling import forked
from oracle import difference, record
from treesnap.cli.main import execute

PROCESS_TIMEOUT_S = 60
DEADLINE_S = 30.0
PROGRAM = [
    sys.executable,
    "-P",  # as for an installed script, the current directory is not on the path
    "-c",
    "import sys; from treesnap.cli.main import main; sys.argv[0] = 'snap'; main()",
]
ORDINARY = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Runs a command of the superuser without the right to read everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one call of the command line left behind."""

    code: int
    raw: bytes
    """Standard output as it was written."""
    err: str

    @property
    def out(self) -> str:
        """Standard output as text."""
        return self.raw.decode("utf-8")

    @property
    def json(self) -> Any:
        """The one object on standard output, without its place."""
        document = self._document
        document.pop("place", None)
        return document

    @property
    def place(self) -> Any:
        """Which root and which store the object on standard output says it is about."""
        return self._document["place"]

    @property
    def _document(self) -> Any:
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def id(self) -> str:
        """The id that is alone on standard output."""
        (line,) = self.out.splitlines()
        assert len(line) == 64
        return line


Snap = Callable[..., Outcome]

GOOD = """\
name: release
steps:
  - {name: implement, run: echo feature > code; echo said, checkpoint: true}
  - name: optimize
    steps:
      - {name: tune, run: echo junk > litter; test -e ready, retries: 1}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory to capture."""
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the store of the test will be."""
    return tmp_path / "store"


@pytest.fixture
def environment(tmp_path: Path, store: Path) -> dict[str, str]:
    """The environment of the command."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAP_")}
    return {**kept, "HOME": str(home), "SNAP_STORE": str(store), "COLUMNS": "100"}


@pytest.fixture
def run_snap(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Snap:
    """Runs ``snap`` with these words and returns what came of it."""

    def run(
        *words: str | Path,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        given: bytes = b"",
        process: bool = False,
        prefix: Sequence[str] = (),
    ) -> Outcome:
        arguments = [str(word) for word in words]
        variables = {**environment, **(env or {})}
        if prefix:
            command = [*prefix, *PROGRAM, *arguments]
            return run_process(command, cwd=cwd, variables=variables, given=given)
        if process:
            code, out, complaints = forked(arguments, cwd=cwd, variables=variables, given=given)
            return Outcome(code=code, raw=out, err=complaints.decode())
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            for name in set(os.environ) - set(variables):
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            return run_here(arguments, patch)

    return run


@pytest.fixture
def ordinary_snap(snap: Snap) -> partial[Outcome]:
    """Runs ``snap`` in the root as a user who may not read everything."""
    if os.geteuid() != 0:
        return partial(snap)
    if shutil.which(ORDINARY[0]) is None:
        pytest.skip("the superuser's rights cannot be dropped here")
    return partial(snap, prefix=ORDINARY)


@pytest.fixture
def snap(run_snap: Snap, root: Path) -> Snap:
    """Runs ``snap`` in the root."""

    def run(*words: str | Path, **options: Any) -> Outcome:
        return run_snap(*words, **{"cwd": root, **options})

    return run


@pytest.fixture
def unsaid_snap(snap: Snap) -> Snap:
    """Runs ``snap`` in the root with the user's default store, which no option names."""
    return partial(snap, env={"SNAP_STORE": "", "XDG_DATA_HOME": ""})


@pytest.fixture
def default_store(environment: dict[str, str]) -> Path:
    """Where the user's default store will be."""
    return Path(environment["HOME"]) / ".local/share/treesnap"


def run_here(arguments: list[str], patch: pytest.MonkeyPatch) -> Outcome:
    """Runs the command line in this process."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        patch.setattr(sys, name, stream)
    handler = signal.getsignal(signal.SIGINT)
    try:
        code = execute(arguments)
    finally:
        signal.signal(signal.SIGINT, handler)  # a command that is done ignores it
    contents = {}
    for name, stream in streams.items():
        stream.flush()
        contents[name] = stream.buffer.getvalue()
    return Outcome(code=code, raw=contents["stdout"], err=contents["stderr"].decode())


def run_process(
    command: list[str], *, cwd: Path, variables: Mapping[str, str], given: bytes
) -> Outcome:
    """Runs the command line as a process."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env=dict(variables),
        input=given,
        capture_output=True,
        timeout=PROCESS_TIMEOUT_S,
        check=False,
    )
    return Outcome(code=result.returncode, raw=result.stdout, err=result.stderr.decode())


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """Writes a plan and returns its path."""
    path = tmp_path / "release.yaml"
    path.write_text(GOOD)
    return path


def wait_until(holds: Callable[[], object]) -> None:
    """Asks until something holds, and fails when that takes far too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(process_id: int) -> bool:
    """Returns whether a process runs; one that ended may not have been waited for."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def filled(root: Path) -> None:
    """Makes two files and two directories in the root."""
    (root / "a" / "deep").mkdir(parents=True)
    (root / "a" / "deep" / "file").write_text("one")
    (root / "b").write_text("two")


@pytest.fixture
def watch_path(store: Path) -> Callable[[str], Path]:
    """Returns the path of a file of the root's watchers."""

    def path(name: str) -> Path:
        (directory,) = store.glob("roots/*/watch")
        return directory / name

    return path


@pytest.fixture
def detach(snap: Snap) -> Iterator[Callable[..., int]]:
    """Starts watchers in the background; kills those that a test leaves."""
    started: list[int] = []

    def start(*words: str) -> int:
        outcome = snap("--json", "watch", "--detach", *words, process=True)
        assert outcome.code == 0, outcome
        started.append(outcome.json["process_id"])
        return started[-1]

    yield start
    for process_id in started:
        if is_running(process_id):
            os.kill(process_id, signal.SIGKILL)


def watch_status(snap: Snap) -> dict[str, Any]:
    """Returns what ``--status`` says."""
    outcome = snap("--json", "watch", "--status")
    assert outcome.code == 0
    return dict(outcome.json)


def assert_exact(snap: Snap, root: Path, tmp_path: Path, ref: str) -> None:
    """Compares a snapshot with the tree, by the oracle's own walk."""
    there = tmp_path / f"restored-{ref}"
    assert snap("restore", ref, "--to", there).code == 0
    assert difference(record(root), record(there)) == []
