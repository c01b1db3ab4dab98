"""The remotes that a store knows by name, and the histories that its roots have there.

What is remembered of a remote outlives the connection: its id, whether it is encrypted, and marks
of the newest state and the newest keys that were seen. So a remote that was replaced, or set back
to older ones, is recognised. Secrets are not kept, only where they come from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import add_directory, sync_directory, unlink_if_present
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, Refused, quoted
from treesnap.core.store.layout import Layout
from treesnap.core.store.lock import held
from treesnap.core.store.records import read_record, write_record
from treesnap.core.store.roots import Root
from treesnap.remote.marks import require_not_set_back
from treesnap.remote.records import (
    DELIVERED,
    FILE_ID_SIZE,
    KEY_SIZE,
    MACHINE,
    PUSHED,
    REMOTE,
    DeliveredHistory,
    HeadName,
    KnownRemote,
    MachineRecord,
    Marks,
    PushedHistory,
    Span,
    spans,
)

if TYPE_CHECKING:
    from treesnap.remote.invitation import Invitation
    from treesnap.remote.keys import Secret

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_LOCK = ".lock"
_LOCK_WAIT_S = 10.0


def check_remote_name(name: str) -> None:
    """Raises InvalidArgument for what cannot be the name of a remote."""
    if _NAME.match(name) is None:
        raise InvalidArgument(
            f"{quoted(name)} cannot name a remote: a name is letters, digits, '.', '_' and '-'"
        )


class Registry:
    """The remotes of one store."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout

    def _path(self, name: str) -> str:
        check_remote_name(name)
        return os.path.join(self._layout.remotes, name)

    def names(self) -> list[str]:
        """Returns the names of all remotes, sorted."""
        try:
            names = self._fs.list_names(self._layout.remotes)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if _NAME.match(name))

    def get(self, name: str) -> KnownRemote:
        """Returns a remote; raises NotFound, and Corrupt for one whose file is damaged."""
        remote = read_record(self._fs, self._path(name), REMOTE)
        if remote is None:
            raise NotFound(f"There is no remote {quoted(name)}", code=ErrorCode.REMOTE_NOT_FOUND)
        return remote

    def find(self, name: str | None) -> tuple[str, KnownRemote]:
        """Returns a remote with its name, without a name the only one.

        Raises NotFound, InvalidArgument where there are several, and Corrupt.
        """
        if name is not None:
            return name, self.get(name)
        names = self.names()
        if not names:
            raise NotFound("The store knows no remote", code=ErrorCode.REMOTE_NOT_FOUND)
        if len(names) > 1:
            raise InvalidArgument(f"There are several remotes, name one: {', '.join(names)}")
        return names[0], self.get(names[0])

    def add(self, name: str, remote: KnownRemote) -> None:
        """Adds a remote, durably; raises Refused where the name is taken by another one.

        One that is there already gets another address and another source of its secret. That it
        is encrypted, and what was seen of it, is not forgotten.
        """
        add_directory(self._fs, self._layout.remotes)
        with self.locked():
            present = read_record(self._fs, self._path(name), REMOTE)
            if present is not None and present.remote_id != remote.remote_id:
                raise Refused(
                    f"The name {quoted(name)} belongs to the remote {quoted(present.url)}",
                    code=ErrorCode.REMOTE_NAME_TAKEN,
                )
            if present is not None:
                if present.is_encrypted and not remote.is_encrypted:
                    raise Refused(
                        f"The remote {quoted(name)} says now that it is not encrypted",
                        code=ErrorCode.REMOTE_REPLACED,
                    )
                remote = remote._replace(marks=present.marks.joined(remote.marks))
            self._write(name, remote)

    def remove(self, name: str) -> None:
        """Forgets a remote, durably; raises NotFound. What is stored there stays."""
        path = self._path(name)
        is_removed = False
        with suppress(FileNotFoundError), self.locked():  # else a command at work brings it back
            is_removed = unlink_if_present(self._fs, path)
            sync_directory(self._fs, self._layout.remotes)
        if not is_removed:
            raise NotFound(f"There is no remote {quoted(name)}", code=ErrorCode.REMOTE_NOT_FOUND)

    def note(
        self,
        name: str,
        remote: KnownRemote,
        seen: Marks,
        hides: Callable[[HeadName], bool] = lambda _: False,
    ) -> None:
        """Remembers what was seen of a remote, unless a command saw something newer meanwhile.

        Raises what :func:`require_not_set_back` does. Costs a write when something is new.
        """
        require_not_set_back(remote.url, remote.marks, seen, hides)
        if seen == remote.marks:
            return
        with self.locked():
            present = read_record(self._fs, self._path(name), REMOTE)
            if present is None or present.remote_id != remote.remote_id:
                return  # it was removed meanwhile
            marks = present.marks.joined(seen)._replace(accepted=seen.accepted)
            if marks != present.marks:
                self._write(name, present._replace(marks=marks))

    def forget_marks(self, name: str) -> None:
        """Lets what is on a remote now count, whatever was seen before; durable after return."""
        with self.locked():
            self._write(name, self.get(name)._replace(marks=Marks()))

    @contextmanager
    def exclusive_use(self, name: str, operation: str, wait_s: float) -> Iterator[None]:
        """Keeps other processes of this store from what one machine does alone; raises Busy.

        On a server that may create a file twice, nothing else does.
        """
        path = os.path.join(self._layout.remotes, f".alone-{name}")
        what = f"The remote {quoted(name)}"
        with held(self._fs, path, operation=operation, what=what, wait_s=wait_s):
            yield

    def machine(self, remote_id: bytes) -> StoredMachine:
        """Returns what the store is on the remote with an id."""
        return StoredMachine(self, self._fs, self._layout, remote_id)

    def _write(self, name: str, remote: KnownRemote) -> None:
        write_record(self._fs, self._layout, self._path(name), REMOTE, remote)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from changing what is remembered; raises Busy."""
        path = os.path.join(self._layout.remotes, _LOCK)
        what = "The list of remotes"
        with held(self._fs, path, operation="remote", what=what, wait_s=_LOCK_WAIT_S):
            yield


def _numbers(spans: Iterable[Span]) -> set[int]:
    return {number for first, last in spans for number in range(first, last + 1)}


def _with_next(record: MachineRecord) -> MachineRecord:
    sequence = record.sequence + 1
    return record._replace(
        sequence=sequence, unsettled=spans({*_numbers(record.unsettled), sequence})
    )


class StoredMachine:
    """What a store signs with on a remote: a :class:`treesnap.remote.members.Machine`."""

    def __init__(
        self, registry: Registry, fs: FileSystem, layout: Layout, remote_id: bytes
    ) -> None:
        self._registry = registry
        self._fs = fs
        self._layout = layout
        self._remote_id = remote_id
        self._path = os.path.join(layout.remotes, f".machine-{remote_id.hex()}")

    def seed(self) -> bytes:
        """Returns what its key follows from; made at the first call, durably."""
        record = read_record(self._fs, self._path, MACHINE)
        return record.seed if record is not None else self._changed(lambda record: record).seed

    def sequence(self) -> int:
        """Returns the number of the last commit that it began to send."""
        record = read_record(self._fs, self._path, MACHINE)
        return record.sequence if record is not None else 0

    def next_sequence(self) -> tuple[int, tuple[Span, ...]]:
        """Returns the number of its next commit, which no other one ever gets, and those of earlier
        ones of which it is not known whether they count; durable.
        """
        record = self._changed(_with_next)
        sequence = record.sequence
        return sequence, spans(_numbers(record.unsettled) - {sequence})

    def settle(self, sequence: int, folded: int) -> None:
        """Takes note that a commit counts, and does not matter up to the ``folded`` one."""

        def settled(record: MachineRecord) -> MachineRecord:
            left = _numbers(record.unsettled) - {sequence}
            return record._replace(unsettled=spans(item for item in left if item > folded))

        self._changed(settled)

    def unsettle(self) -> None:
        """Takes note that commits may be gone, as a person accepted; durable after return."""
        self._changed(
            lambda record: record._replace(unsettled=spans(range(1, record.sequence + 1)))
        )

    def renew(self) -> None:
        """Begins anew, as another machine; durable after return.

        Raises Refused for one that was invited: no owner has put another one on the list.
        """
        if self.is_invited():
            raise Refused(
                "A copy of this machine pushed as well, so an owner has to invite each of them",
                code=ErrorCode.REMOTE_ROLE,
            )
        self._changed(lambda _: MachineRecord(os.urandom(KEY_SIZE)))

    def is_invited(self) -> bool:
        """Tells whether an owner put it on the list, rather than itself."""
        record = read_record(self._fs, self._path, MACHINE)
        return record is not None and bool(record.owner)

    def join(self, invitation: Invitation | None) -> None:
        """Begins to be the machine that was invited, or, without an invitation, one that is not;
        durable after return.
        """
        if invitation is not None:
            owner, seed = invitation.owner, invitation.seed
            self._changed(
                lambda record: (
                    record
                    if record.seed == seed
                    else MachineRecord(seed, owner_generation=owner.generation, owner=owner.public)
                )
            )
        elif self.is_invited():
            self._changed(lambda _: MachineRecord(os.urandom(KEY_SIZE)))

    def secret(self) -> Secret | None:
        """Returns what opens the key slot of the machine, if it was invited."""
        from treesnap.remote.keys import OwnerKey, Secret

        record = read_record(self._fs, self._path, MACHINE)
        if record is None or not record.owner:
            return None
        owner = OwnerKey(record.owner_generation, record.owner)
        return Secret.machine_key(record.seed, self._remote_id, owner)

    def _changed(self, change: Callable[[MachineRecord], MachineRecord]) -> MachineRecord:
        add_directory(self._fs, self._layout.remotes)
        with self._registry.locked():
            record = read_record(self._fs, self._path, MACHINE)
            record = change(record or MachineRecord(os.urandom(KEY_SIZE)))
            write_record(self._fs, self._layout, self._path, MACHINE, record)
        return record


def pushed_history(root: Root, remote_id: bytes) -> PushedHistory | None:
    """Returns the history that a root has on a remote, or None; raises Corrupt."""
    return root.read(_pushed_name(remote_id), PUSHED)


def set_pushed_history(root: Root, remote_id: bytes, pushed: PushedHistory) -> None:
    """Remembers the history that a root has on a remote, durably."""
    root.write(_pushed_name(remote_id), PUSHED, pushed)


def _pushed_name(remote_id: bytes) -> str:
    return f"pushed-{remote_id.hex()}"


def delivered_history(root: Root, remote_id: bytes) -> DeliveredHistory:
    """Returns what a root delivered to a remote; raises Corrupt."""
    history = root.read(_delivered_name(remote_id), DELIVERED)
    return history if history is not None else DeliveredHistory(os.urandom(FILE_ID_SIZE))


def set_delivered_history(root: Root, remote_id: bytes, delivered: DeliveredHistory) -> None:
    """Remembers what a root delivered to a remote, durably."""
    root.write(_delivered_name(remote_id), DELIVERED, delivered)


def _delivered_name(remote_id: bytes) -> str:
    return f"delivered-{remote_id.hex()}"
