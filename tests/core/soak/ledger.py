"""What the processes of a soak promise each other, outside the store: who did what to a root.

Each root has a log of JSON lines, appended and synced before and after whatever is done.
No actor changes a root's files without its gate (a lock of our own), so that what its tree
may be is known at every moment: what it was made last, or what restores since make of it.
States are records of the oracle, each in a file of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oracle import Record, difference

Line = dict[str, Any]


def append(path: Path, line: Line, *, durable: bool = True) -> None:
    """Appends a line; one that a killed process tore spoils no other."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"\n{json.dumps(line)}\n".encode())
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


class Log:
    """The lines of a log, read as far as they are there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: list[Line] = []
        self._offset = 0

    def lines(self) -> list[Line]:
        """Returns all lines, those of other processes too."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.split(b"\n"):
            try:
                self._read += [json.loads(text)] if text else []
            except ValueError:
                continue  # its writer was killed
        return self._read

    def add(self, **line: Any) -> str:
        """Appends a line and returns the token by which it is known."""
        token = os.urandom(8).hex()
        append(self.path, {"token": token, **line})
        return token


class States:
    """Records of the oracle by their digest."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, state: Record) -> str:
        """Keeps a record durably, and returns its digest."""
        data = pickle.dumps(state)
        digest = hashlib.sha256(data).hexdigest()
        path = self._directory / digest
        if not path.exists():
            aside = path.with_suffix(f".{os.getpid()}.{os.urandom(4).hex()}")
            with aside.open("wb") as file:
                file.write(data)
                os.fsync(file.fileno())
            aside.rename(path)
        return digest

    def load(self, digest: str) -> Record:
        """Returns a record."""
        return pickle.loads((self._directory / digest).read_bytes())

    def problems(self, found: Record, allowed: Sequence[str]) -> list[str]:
        """Returns how a tree differs from the state that it is nearest to, of those allowed."""
        if not allowed:
            return ["it has no state that it may be in"]
        against = (difference(self.load(digest), found) for digest in dict.fromkeys(allowed))
        return min(against, key=len)


def window(lines: Sequence[Line], index: int) -> list[Line] | None:
    """Returns what was done to a root between the changes of its files around a line.

    None says that its files were being changed: then no actor may look.
    """
    start = next(
        (at for at in range(index, -1, -1) if lines[at]["what"] in {"base", "changing"}), None
    )
    if start is None or lines[start]["what"] == "changing":
        return None
    rest = lines[start:]
    stop = next((at for at, line in enumerate(rest) if line["what"] == "changing"), len(rest))
    return [line for line in rest[:stop] if line["what"] in {"base", "making", "made"}]


def states_in(lines: Sequence[Line]) -> list[str]:
    """Returns the states that lines speak of, each once."""
    return list(dict.fromkeys(state for line in lines for state in line.get("states", ())))


class RootLedger:
    """Everything that is promised of one root."""

    def __init__(self, log: Log, gate: Path, states: States) -> None:
        self.log = log
        self.states = states
        self._gate = gate

    @contextmanager
    def shared(self) -> Iterator[bool]:
        """Keeps changes of the files away; yields False when they are not fit to be looked at."""
        with self._locked(fcntl.LOCK_SH):
            yield self.now() is not None

    @contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Keeps all away if none is there; yields whether that is so."""
        try:
            with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield True
        except BlockingIOError:
            yield False

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        fd = os.open(self._gate, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)

    def was_made(self) -> bool:
        """Returns whether a writer has ended a change of the root, which makes it."""
        return any(line["what"] == "base" for line in self.log.lines())

    def now(self) -> list[str] | None:
        """Returns the states that the root may be in, or None when that cannot be known."""
        lines = self.log.lines()
        here = window(lines, len(lines) - 1) if lines else None
        if here is None:
            return None
        restores = [line for line in here if line.get("makes") == "safety"]
        ended = {line["by"] for line in here if line["what"] == "made"}
        if len(restores) == 1 and restores[0]["token"] in ended:
            return states_in(restores)
        return states_in(here)

    def change(self, look: Callable[[], Record], change: Callable[[], None]) -> list[str]:
        """Changes the files of the root; returns what was wrong with them before.

        The caller keeps everybody away.
        """
        allowed = self.now()
        wrong = self.states.problems(look(), allowed) if allowed is not None else []
        self.log.add(what="changing")
        change()
        self.log.add(what="base", states=[self.states.keep(look())])
        return wrong

    def allowed(self, snapshot_id: str, label: str | None, kind: str) -> list[str] | None:
        """Returns the states that a snapshot may hold, or None when no actor made it."""
        lines = self.log.lines()
        made = {line["by"]: line["id"] for line in lines if line["what"] == "made"}
        found: list[str] = []
        for at, line in enumerate(lines):
            if line["what"] != "making":
                continue
            maybe = line["token"] not in made and (line["makes"], line["label"]) == (kind, label)
            if maybe or made.get(line["token"]) == snapshot_id:
                # A restore captures the state before it, so its own target is no such state.
                found += states_in([item for item in window(lines, at) or () if item is not line])
        return list(dict.fromkeys(found)) or None

    def ids(self, what: str) -> set[str]:
        """Returns the snapshots of which something is written."""
        lines = [line for line in self.log.lines() if line["what"] == what]
        return {identity for line in lines for identity in line["ids"]}

    def must_exist(self) -> set[str]:
        """Returns the snapshots that were made, and that no actor may have removed.

        A prune says what it removed. One that was killed did not, and may have removed
        everything without a name that was there before the same pruner began the next
        one: others may begin while it waits. Safety snapshots may go at any time, by the
        default policy.
        """
        lines = self.log.lines()
        answered = {line["by"] for line in lines if "by" in line}
        found: set[str] = set()
        unnamed: set[str] = set()
        doubtful: dict[str, bool] = {}
        for line in lines:
            if line["what"] == "pruning":
                doubtful[line["who"]] = line["token"] not in answered
            elif line["what"] == "made" and not line.get("automatic"):
                found |= {*line["ids"]}
                unnamed |= set() if line.get("named") else {*line["ids"]}
            elif line["what"] == "gone" or (
                line["what"] == "deleting" and line["token"] not in answered
            ):
                found -= {*line["ids"]}
            if any(doubtful.values()):
                found -= unnamed
        return found | self.ids("pinned")
