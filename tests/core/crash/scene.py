"""A root with every awkward kind of entry, its store, and the installed ``snap`` on both."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NoReturn

from calling import run_forked
from crash.system_calls import Ended, Point, points, run
from mutations import HARMLESS, MUTATIONS
from oracle import Record, copy_tree, difference, record
from prepared import trust_stores
from trees import LEFT_OUT, build, make_socket, remove_tree

TREE_SEED = 8
ENTRIES_MIN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A command that is interrupted, and the trees that may come of it."""

    name: str
    start: str
    """The state of root and store in which it begins."""
    words: tuple[str, ...]
    old: str
    """The tree before."""
    new: str
    """The tree after success."""


OPERATIONS = {
    item.name: item
    for item in (
        Operation(
            name="restore", start="changed", words=("restore", "before"), old="after", new="before"
        ),
        Operation(name="undo", start="restored", words=("undo",), old="before", new="after"),
        Operation(
            name="create",
            start="changed",
            words=("create", "--name", "second"),
            old="after",
            new="after",
        ),
        Operation(
            name="first create",
            start="unknown",
            words=("create", "--name", "second"),
            old="before",
            new="before",
        ),
        Operation(name="gc", start="garbage", words=("gc",), old="after", new="after"),
    )
}


STARTS = {"unknown": "before", "changed": "after", "restored": "before", "garbage": "after"}
"""The tree in each state that operations begin from."""


def snap_path() -> str:
    """Returns the installed command."""
    path = os.path.join(sysconfig.get_path("scripts"), "snap")
    assert os.path.exists(path), f"snap is not installed: {path}"
    return path


def environment(home: Path) -> dict[str, str]:
    """Returns the variables of the command.

    Without those that start a measurement of coverage in it, which writes files of
    its own, and could not report from a process that is killed.
    """
    dropped = ("SNAP_", "COV", "PYTHONPATH", "TREESNAP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {
        **kept,
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SNAP_DEBUG": "",
    }


@contextmanager
def workspace(name: str) -> Iterator[Path]:
    """Makes a directory that is gone afterwards, when the process is told to stop too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    directory = Path(tempfile.mkdtemp(prefix=f"treesnap-{name}-"))
    try:
        yield directory
    finally:
        remove_tree(os.fsencode(directory))


def _stop(number: int, frame: object) -> NoReturn:
    """Ends the process in the ordinary way, so that everything is cleaned up."""
    sys.exit(128 + number)


@dataclass
class Scene:
    """A root, its store, and copies of both to begin again from; in a directory of its own.

    The paths of root and store are the same for every copy: a store knows roots by path.
    """

    directory: Path
    states: dict[str, Record] = field(default_factory=dict)
    """What the tree is in each named state."""
    env: Mapping[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    """What changed the tree from "before" to "after"."""
    is_forked: bool = False
    """Whether commands that nothing interrupts are forked from this process, which is quicker."""

    def __post_init__(self) -> None:
        (self.directory / "case").mkdir(parents=True)
        self.env = {**environment(self.directory), "SNAP_STORE": str(self.store)}

    @property
    def root(self) -> Path:
        return self.directory / "case" / "root"

    @property
    def store(self) -> Path:
        return self.directory / "case" / "store"

    def command(self, *words: str) -> list[str]:
        """Returns the command line of ``snap`` on the scene."""
        return [snap_path(), "-C", str(self.root), *words]

    def snap(self, *words: str, injection: str | None = None) -> Ended:
        """Runs ``snap`` on the scene."""
        if self.is_forked and injection is None:
            words = ("-C", str(self.root), *words)
            ended = run_forked(words, cwd=Path("/"), variables=self.env)
            said = shlex.join(["snap", *words])
            return Ended(code=ended.code, out=ended.out, err=ended.err, words=said)
        return run(self.command(*words), self.env, injection)

    def must(self, *words: str) -> Ended:
        """Runs ``snap``, which has to succeed."""
        ended = self.snap(*words)
        assert ended.code == 0, (words, ended.code, ended.err)
        return ended

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts ``snap`` on the scene and does not wait for it."""
        return subprocess.Popen(
            self.command(*words),
            env=dict(self.env),
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def note(self, name: str) -> None:
        """Remembers what the tree is now."""
        self.states[name] = record(self.root)

    def copy(self, source: str, target: str) -> None:
        """Copies root and store with everything that belongs to them."""
        origin, made = self.directory / source, self.directory / target
        made.mkdir()
        copy_tree(origin / "root", made / "root")
        _copy_socket(os.fsencode(origin / "root"), os.fsencode(made / "root"))
        if (origin / "store").exists():
            subprocess.run(["cp", "-a", "--", origin / "store", made], check=True)
            trust_stores(made / "store")

    def keep(self, name: str) -> None:
        """Makes the present a state to begin from."""
        self.copy("case", name)

    def reset(self, name: str) -> None:
        """Begins from a state that was kept."""
        self.clear()
        self.copy(name, "case")

    def clear(self) -> None:
        """Removes root and store, whatever is left of them."""
        remove_tree(os.fsencode(self.directory / "case"))

    def points(self, operation: Operation) -> list[Point]:
        """Returns the writing calls of an operation from start to success."""
        self.reset(operation.start)
        return points(self.command(*operation.words), self.env, self.directory / "calls")


def _copy_socket(source: bytes, target: bytes) -> None:
    """Makes the socket that the copy of a tree lacks."""
    name = b"/" + LEFT_OUT[0]
    make_socket(target + name)
    for path in (name, os.path.dirname(name)):
        status = os.lstat(source + path)
        os.chmod(target + path, stat.S_IMODE(status.st_mode))
        os.utime(target + path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def populate(scene: Scene, seed: int) -> None:
    """Makes every state that operations begin from; the seed chooses what changes."""
    random = Random(seed)
    build(scene.root, TREE_SEED)
    scene.note("before")
    assert len(scene.states["before"]) >= ENTRIES_MIN
    scene.keep("unknown")
    scene.must("create", "--name", "before")
    change(scene, random)
    scene.note("after")
    scene.keep("changed")
    scene.must("restore", "before")
    scene.keep("restored")
    scene.reset("changed")
    _make_garbage(scene, random)
    scene.keep("garbage")
    for start, state in STARTS.items():
        scene.reset(start)
        found = difference(scene.states[state], record(scene.root))
        assert found == [], (start, found)


def change(scene: Scene, random: Random) -> None:
    """Changes the root in every way that there is, each once."""
    top = os.fsencode(scene.root)
    for mutation in MUTATIONS:
        path = None
        while path is None:
            try:
                path = mutation(top, random)
            except OSError as error:
                if error.errno not in HARMLESS:
                    raise
        scene.done.append(f"{mutation.__name__} {path!r}")


def _make_garbage(scene: Scene, random: Random) -> None:
    """Leaves a pack that nothing needs, and one that is needed in part."""
    status = os.stat(scene.root)
    file = scene.root / "garbage"
    for name in ("garbage-1", "garbage-2"):
        file.write_bytes(random.randbytes(20_000))
        scene.must("create", "--name", name)
        for slot in (scene.store / "slots").iterdir():
            slot.unlink()
    file.unlink()
    os.utime(scene.root, ns=(status.st_atime_ns, status.st_mtime_ns))
    scene.must("delete", "garbage-1", "garbage-2")
