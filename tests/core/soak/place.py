"""Where a soak happens: roots, their store, what is promised of them, and the pool.

The pool holds the contents that all writers put into their trees, so that they overlap:
what one deletes, another needs, or is just about to.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import treesnap
from mutations import mutate, new_path
from oracle import record
from soak.damages import Damages
from soak.ledger import Log, RootLedger, States, append
from trees import build_small, is_file, paths_below, remove_tree
from treesnap.core.model.errors import TreesnapError

POOL_COUNT = 500
"""So many that some are in no snapshot for a while, and come back."""
ENTRIES_MAX = 50
SIZE_BYTES_MAX = 3 << 20
"""Bytes that a tree may grow to before its largest files go."""
SETTING = "keep.yearly"
"""What is set to one value after the other; no policy of the soak uses it."""

TURNS = 2
"""So many actors are at work at once while the store can be moved."""
MOVED, RENAMED = "moved to the other file system", "moved on one file system"
"""How a move may end that is not refused."""
REMOVED, LEFT, NOTHING = "collected", "left garbage", "found nothing"
COLLECTED = frozenset({REMOVED, LEFT, NOTHING})
"""How a collection may end.

It leaves what its dry run found when writers continued those packs in between, or came to need
something of them, as happens to one in four beside so many writers; it has to say so.
"""


class Place:
    """A directory with everything that a soak needs."""

    def __init__(self, directory: Path, root_count: int) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.exports = directory / "exports"
        self.logs = directory / "logs"
        self.stop_file = directory / "stop"
        self.newcomers = directory / "newcomers"
        self.arrivals = Log(directory / "ledger" / "arrivals.log")
        self.settings = Log(directory / "ledger" / "settings.log")
        self.damages = Damages(directory)
        self.far = _far_from(directory)
        """A directory on another file system, for the store."""
        self.store_directories = (directory / "stores", self.far)
        self.moves_file = directory / "moves"
        """While it is there, actors that need the store where it is rest, so that moves can end."""
        self.turns = directory / "turns"
        self.roots = [directory / "roots" / f"{number}" for number in range(root_count)]

    @property
    def other_directory(self) -> Path:
        """The directory for stores that is on the other file system than the store."""
        is_far = self.far in self.store.resolve().parents
        return self.store_directories[0 if is_far else 1]

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Yields whether an actor may do a round: while the store can be moved, few at once.

        With all of them there is hardly a moment in which no process is inside its gate.
        """
        if not self.moves_file.exists():
            yield True
            return
        for number in range(TURNS):
            with (self.turns / f"{number}").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield True
                return
        yield False

    def prepare(self, seed: int) -> None:
        """Makes the directories and the pool; the roots are made by the actor that comes first."""
        ours = ("roots", "ledger", "states", "pool", "exports", "logs", "newcomers", "turns")
        for name in (*ours, "stores"):
            (self.directory / name).mkdir()
        random = Random(seed)
        for number in range(POOL_COUNT):
            size = 300_000 if number % 40 == 0 else random.choice((300, 4000, 20_000))
            piece = random.randbytes(size if number % 2 else 50)
            content = (piece * (size // len(piece) + 1))[:size]
            (self.directory / "pool" / f"{number}").write_bytes(content)

    def ledger(self, number: int) -> RootLedger:
        """Returns what is promised of a root."""
        ledger = self.directory / "ledger"
        log = Log(ledger / f"{number}.log")
        return RootLedger(log, ledger / f"{number}.gate", States(self.directory / "states"))

    def wrong_setting(self, handle: treesnap.Handle, before: str | None = None) -> str | None:
        """Returns what is wrong with the setting: nothing, if it is the last acknowledged value.

        One that was not acknowledged since may hold as well. No actor may be setting it, but for
        who wrote the line with the token ``before``.
        """
        allowed: set[str] | None = None
        for line in self.settings.lines():
            if line["token"] == before:
                break
            if line["what"] == "set":
                allowed = {line["value"]}
            elif allowed is not None:
                allowed.add(line["value"])
        found = str(handle.config(SETTING).settings[0].value)
        if allowed is None or found in allowed:
            return None
        return f"{SETTING} is {found}, and was set to one of {sorted(allowed)}"

    def living_newcomers(self) -> dict[str, str]:
        """Returns the snapshot of each newcomer that was captured and not forgotten."""
        found: dict[str, str] = {}
        for line in self.arrivals.lines():
            if line["what"] == "arrived":
                found[line["root"]] = line["id"]
            else:
                found.pop(line["root"], None)
        return found

    def missing_newcomers(self) -> Iterator[str]:
        """Yields the newcomers that were captured, and of which something is lost."""
        for name, made in self.living_newcomers().items():
            handle = treesnap.open(self.newcomers / name, self.store)
            try:
                is_right = b"".join(handle.cat(made, "file")) == name.encode()
            except TreesnapError as error:
                yield f"newcomer {name}: {error}"
                continue
            if not is_right:
                yield f"newcomer {name} is not what was captured"

    def report(self, who: str, problem: str) -> None:
        """Keeps a problem durably."""
        append(self.directory / "problems", {"who": who, "problem": problem})

    def problems(self) -> list[str]:
        """Returns every problem that anybody reported."""
        found = Log(self.directory / "problems").lines()
        return [f"{line['who']}: {line['problem']}" for line in found]

    def count(self, who: str, what: str) -> None:
        """Counts something that an actor did."""
        line = {"who": who, "what": what}
        append(self.directory / "ledger" / "counts", line, durable=False)

    def counts(self) -> Log:
        """Returns the log of everything that was counted."""
        return Log(self.directory / "ledger" / "counts")

    def change(self, number: int, random: Random) -> list[str]:
        """Changes the files of a root; returns what was wrong with them before."""
        root = self.roots[number]
        return self.ledger(number).change(
            lambda: record(root) if root.exists() else {}, lambda: self._change(root, random)
        )

    def _change(self, root: Path, random: Random) -> None:
        if not root.exists():
            build_small(root, random.randrange(1000))
        top = os.fsencode(root)
        pool = sorted((self.directory / "pool").iterdir())
        for _ in range(random.randrange(1, 9)):
            if random.random() < 0.6:
                path = new_path(top, random)
                with suppress(OSError):
                    Path(os.fsdecode(path)).write_bytes(self._content(random, pool))
            else:
                mutate(root, random)
        _keep_small(top, random)

    def _content(self, random: Random, pool: list[Path]) -> bytes:
        """Returns what others have too: of the pool, or of some file of another root."""
        other = os.fsencode(random.choice(self.roots))
        files = [path for path in paths_below(other) if is_file(path)]
        if files and random.random() < 0.5:
            with open(random.choice(files), "rb") as file:
                return file.read()
        return random.choice(pool).read_bytes()


def _far_from(directory: Path) -> Path:
    """Returns a directory on another file system, or beside where there is only one."""
    memory = Path("/dev/shm")
    here = directory.stat().st_dev
    others = (path for path in (memory, Path("/var/tmp")) if path.is_dir())
    above = next((path for path in others if path.stat().st_dev != here), directory)
    words = os.fsencode(directory.resolve())
    return above / f"soak-far-{hashlib.sha256(words).hexdigest()[:12]}"


def _keep_small(top: bytes, random: Random) -> None:
    """Removes what makes a tree slow to look at."""
    while len(found := paths_below(top)) > ENTRIES_MAX:
        remove_tree(random.choice(found))
    files = [path for path in found if is_file(path)]
    files.sort(key=os.path.getsize)
    while sum(map(os.path.getsize, files)) > SIZE_BYTES_MAX:
        os.unlink(files.pop())


@contextmanager
def removed_afterwards(path: Path) -> Iterator[Path]:
    """Removes whatever is at a path, before and after."""
    remove_if_there(path)
    try:
        yield path
    finally:
        remove_if_there(path)


def remove_if_there(path: Path) -> None:
    """Removes whatever is at a path."""
    if os.path.lexists(path):
        remove_tree(os.fsencode(path))
