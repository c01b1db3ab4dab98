"""What must be true when a soak is over."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import treesnap
from oracle import record
from soak.place import Place, removed_afterwards
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.snapshots import Snapshot

SIZE_RATIO_MAX = 1.25
"""What the store may take, beside a fresh one with the same snapshots."""


class Checker:
    """Looks at everything that a soak has left, and keeps every problem."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.problems: list[str] = []
        self.sizes: Counter[str] = Counter()
        """What was compared in the end."""
        self._handles = [treesnap.open(root, place.store) for root in place.roots]
        self._fresh = place.directory / "fresh-store"

    def run(self) -> None:
        """Does everything. What raises is a problem, and the rest is done all the same."""
        self._wait_for_maintenance()
        for number, handle in enumerate(self._handles):
            self._keep(f"root {number}", self._root(number))
            if self.place.roots[number].exists():  # a short soak may not have come to one
                self._keep(f"root {number}", _swept(handle))
        first = self._handles[0]
        self._keep("damage", self._damage())
        self._keep("newcomers", self._newcomers(first))
        self._keep("settings", self._settings(first))
        self._keep("verify before the last collection", _verified(first))
        self._keep("the last collection", _collected(first))
        self._keep("verify after the last collection", _verified(first))
        for number in range(len(self._handles)):
            self._keep(f"root {number}", self._snapshots(number))
        self._keep("left behind", _litter(self.place))
        self._keep("size", self._size())

    def _wait_for_maintenance(self) -> None:
        """Waits for the process that the last commands may have left behind."""
        with (self.place.store / "collector" / "background").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

    def _keep(self, what: str, found: Iterator[str]) -> None:
        try:
            self.problems += [f"{what}: {problem}" for problem in found]
        except TreesnapError as error:
            self.problems.append(f"{what}: {type(error).__name__}: {error}")

    def _root(self, number: int) -> Iterator[str]:
        """Yields how a root differs from what it may be, once a killed restore is finished."""
        self._handles[number].status()
        ledger = self.place.ledger(number)
        allowed = ledger.now()
        if not self.place.roots[number].exists():
            yield from ("it is gone",) if ledger.was_made() else ()
        elif allowed is not None:
            for line in ledger.states.problems(record(self.place.roots[number]), allowed):
                yield f"in no state that it may be in: {line}"

    def _newcomers(self, handle: treesnap.Handle) -> Iterator[str]:
        """Yields the roots that are lost; forgets the others, which no fresh store has."""
        yield from self.place.missing_newcomers()
        for root in handle.root_list():
            path = os.fsdecode(root.path)
            if Path(path) not in self.place.roots:
                treesnap.open(path, self.place.store).status()  # finishes a roll-back
                handle.root_forget(path, force=True)

    def _damage(self) -> Iterator[str]:
        """Yields what damage has cost, and should not have."""
        damages = self.place.damages
        if damages.log.lines():
            yield from damages.end(treesnap.open(damages.root, self.place.store), self.place.store)

    def _settings(self, handle: treesnap.Handle) -> Iterator[str]:
        problem = self.place.wrong_setting(handle)
        yield from () if problem is None else (problem,)

    def _snapshots(self, number: int) -> Iterator[str]:
        """Yields what is wrong with the snapshots of a root; makes them in a fresh store too."""
        snapshots = self._handles[number].list()
        missing = self.place.ledger(number).must_exist() - {one.id for one in snapshots}
        yield from (f"snapshot {identity} is lost" for identity in sorted(missing))
        self.sizes["snapshots"] += len(snapshots)
        for one in reversed(snapshots):
            yield from self._snapshot(number, one)

    def _snapshot(self, number: int, one: Snapshot) -> Iterable[str]:
        ledger = self.place.ledger(number)
        allowed = ledger.allowed(one.id, one.label, one.kind.value)
        if allowed is None:
            return [f"no actor made {one.id} {one.kind} {one.label!r}"]
        with removed_afterwards(self.place.exports / f"fresh-{number}") as target:
            try:
                self._handles[number].restore(one.id, to=target)
            except TreesnapError as error:
                return [f"{one.id} cannot be restored: {error}"]
            problems = ledger.states.problems(record(target), allowed)
            treesnap.open(target, self._fresh).create(label=one.label, name=one.name)
        return [f"{one.id} is not what was captured: {line}" for line in problems]

    def _size(self) -> Iterator[str]:
        self.sizes["store"] = _size_of(self.place.store)
        self.sizes["fresh store"] = _size_of(self._fresh)
        if self.sizes["store"] > SIZE_RATIO_MAX * self.sizes["fresh store"]:
            yield f"the store is too large: {dict(self.sizes)}"


def _swept(handle: treesnap.Handle) -> Iterator[str]:
    """Takes one more snapshot, which removes what killed ones have left, and deletes it."""
    handle.delete(handle.create(label="the end").id)
    yield from ()


def _verified(handle: treesnap.Handle) -> Iterator[str]:
    yield from map(str, handle.verify(read_data=True).problems)


def _collected(handle: treesnap.Handle) -> Iterator[str]:
    handle.gc()
    yield from ()


def _litter(place: Place) -> Iterator[str]:
    """Yields what operations may leave only while they run."""
    for pattern in ("pending/*", "temporary/*", "roots/*/journal", "roots/*/export-*"):
        yield from map(str, place.store.glob(pattern))
    with suppress(FileNotFoundError):
        for parent in (*place.roots, place.exports):
            yield from (name for name in os.listdir(parent) if name.startswith(".treesnap"))


def _size_of(path: Path) -> int:
    """Returns the bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
