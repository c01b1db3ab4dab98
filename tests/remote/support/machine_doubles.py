"""Machines without a store, and what one with a key can push."""

from __future__ import annotations

from treesnap.remote.marks import state_hash
from treesnap.remote.protocol import Remote
from treesnap.remote.records import (
    COMMIT,
    HEAD,
    Folder,
    Head,
    RemoteCommit,
    RemoteName,
    Span,
    spans,
)


class MemoryMachine:
    """What a machine signs with, in memory: a :class:`treesnap.remote.members.Machine`."""

    def __init__(self, seed: bytes = b"\x5e" * 32) -> None:
        self._seed = seed
        self._sequence = 0
        self._unsettled = set[int]()
        self.invited = False

    def seed(self) -> bytes:
        return self._seed

    def next_sequence(self) -> tuple[int, tuple[Span, ...]]:
        before = spans(self._unsettled)
        self._sequence += 1
        self._unsettled.add(self._sequence)
        return self._sequence, before

    def is_invited(self) -> bool:
        return self.invited

    def settle(self, sequence: int, folded: int) -> None:
        self._unsettled.discard(sequence)


def next_commit(remote: Remote, epoch: int) -> RemoteName:
    """Returns the name of the next commit of a machine, without its random part."""
    machine, sequence, _ = remote.files.next_sequence()
    return RemoteName(Folder.COMMITS, epoch, b"", machine, sequence)


def put_commit(remote: Remote, commit: RemoteCommit, epoch: int, sequence: int) -> RemoteName:
    """Publishes whatever a commit says, signed by a member."""
    number, state = remote.read_state()
    statement = HEAD.payload(Head(number, state_hash(state)))
    return remote.files.put(Folder.COMMITS, epoch, COMMIT.seal(commit), statement, sequence)
