"""Where a soak happens: roots, their store, what is promised of them, and the pool.

The pool holds the contents that all writers put into their trees, so that they overlap:
what one deletes, another needs, or is just about to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from mutations import mutate, new_path
from oracle import record
from soak.ledger import Log, RootLedger, States, append
from trees import build_small, is_file, paths_below, remove_tree

POOL_COUNT = 500
"""So many that some are in no snapshot for a while, and come back."""
ENTRIES_MAX = 50
SIZE_BYTES_MAX = 3 << 20
"""Bytes that a tree may grow to before its largest files go."""


class Place:
    """A directory with everything that a soak needs."""

    def __init__(self, directory: Path, root_count: int) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.exports = directory / "exports"
        self.logs = directory / "logs"
        self.stop_file = directory / "stop"
        self.roots = [directory / "roots" / f"{number}" for number in range(root_count)]

    def prepare(self, seed: int) -> None:
        """Makes the directories and the pool; the roots are made by whoever comes first."""
        for name in ("roots", "ledger", "states", "pool", "exports", "logs"):
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
