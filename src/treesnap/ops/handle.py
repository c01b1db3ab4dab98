"""The library's front door: one handle per root, one method per command.

A handle holds two paths, a file system seam and a clock; no lock and no open
file. Every method opens what it needs and closes it again, so a handle may be
used from several threads, and after ``fork``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from treesnap.errors import InvalidArgument
from treesnap.events import Monitor, NullMonitor
from treesnap.fs.local import LocalFileSystem
from treesnap.model import Change, Entry, Skipped, Snapshot, SnapshotKind
from treesnap.treepath import from_user

if TYPE_CHECKING:
    from treesnap.fs.base import FileSystem
    from treesnap.ops.retention import Policy
    from treesnap.results import (
        CreateResult,
        DoctorResult,
        FoundPath,
        GcResult,
        PruneResult,
        RestoreResult,
        RunResult,
        StatsResult,
        StatusResult,
        VerifyResult,
    )

WAIT_DEFAULT_S = 30.0
"""How long an operation waits for another one in the same root."""

PathLike = str | bytes | os.PathLike[str]


def open(  # noqa: A001 - the library's verb, as in gzip.open and tarfile.open
    root: PathLike,
    store: PathLike | None = None,
    *,
    monitor: Monitor | None = None,
    wait_s: float = WAIT_DEFAULT_S,
) -> Handle:
    """Returns a handle on a directory and the store that keeps its history.

    ``root`` need not exist: a root that was deleted can be restored. ``store``
    defaults to ``$SNAP_STORE``, else to the user's data directory. Nothing is
    read or written until a method is called.
    """
    from treesnap.ops.places import default_store_path

    store_path = os.fsdecode(store) if store is not None else default_store_path()
    return Handle(root=root, store_path=store_path, monitor=monitor, wait_s=wait_s)


class Handle:
    """One root and its history.

    Paths given to methods are absolute, or relative to the root. ``ref`` is an
    id or its unique beginning, a name, ``latest``, ``latest~N`` or ``step:N``.
    All methods may raise the errors of :mod:`treesnap.errors`; a method that
    raises has changed nothing in the root.
    """

    def __init__(
        self,
        *,
        root: PathLike,
        store_path: str,
        monitor: Monitor | None = None,
        wait_s: float = WAIT_DEFAULT_S,
        fs: FileSystem | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        root_text = os.fsdecode(root)
        if not root_text or "\0" in root_text:
            raise InvalidArgument("The root must be a path", path=root_text)
        self.root = os.path.realpath(root_text)
        """Real path of the root."""
        above, name = os.path.split(os.path.abspath(root_text))
        self.given_root = os.path.join(os.path.realpath(above), name)
        """The root as it was given, of which the last component may be a link."""
        self.store_path = os.path.abspath(store_path)
        """Path of the store's directory."""
        self.monitor: Monitor = monitor or NullMonitor()
        self.wait_s = wait_s
        self.fs: FileSystem = fs or LocalFileSystem()
        self.clock_ns = clock_ns

    def __repr__(self) -> str:
        return f"Handle(root={self.root!r}, store={self.store_path!r})"

    def tree_path(self, path: PathLike) -> bytes:
        """Returns a path of the caller as a tree path; raises InvalidArgument outside the root."""
        return from_user(path, root=self.root, base=self.root)

    def create(
        self,
        paths: Sequence[PathLike] = (),
        *,
        label: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        session: str | None = None,
        step: int | None = None,
        skip_unchanged: bool = False,
        exclude: Iterable[str] = (),
        kind: SnapshotKind = SnapshotKind.MANUAL,
        force: bool = False,
    ) -> CreateResult:
        """Captures the root, or only ``paths`` of it, and publishes a snapshot.

        After return the snapshot survives a power cut. Unreadable paths do not
        raise: the result says ``complete=False`` and lists them. ``exclude`` adds
        patterns in gitignore syntax; ``force`` allows dangerous roots. Raises
        Refused, NotFound (no such root), Busy, StorageFull, OperationFailed.
        """
        from treesnap.ops.create import CreateRequest, create

        request = CreateRequest(
            paths=tuple(self.tree_path(path) for path in paths),
            label=label,
            name=name,
            tags=dict(tags or {}),
            session=session,
            step=step,
            skip_unchanged=skip_unchanged,
            exclude=tuple(exclude),
            kind=kind,
            force=force,
        )
        return create(self, request)

    def list(
        self, *, session: str | None = None, tag: str | None = None, all_roots: bool = False
    ) -> tuple[Snapshot, ...]:
        """Returns the root's snapshots, newest first.

        ``tag`` is ``KEY`` or ``KEY=VALUE``. Damaged snapshot files are left out;
        ``verify`` names them.
        """
        from treesnap.ops.history import list_snapshots

        return list_snapshots(self, session=session, tag=tag, all_roots=all_roots)

    def resolve(self, ref: str, *, session: str | None = None) -> Snapshot:
        """Returns the one snapshot that ``ref`` names, or raises NotFound or InvalidArgument."""
        from treesnap.ops.history import resolve

        return resolve(self, ref, session=session)

    show = resolve

    def ls(self, ref: str, path: PathLike = ".", *, recursive: bool = False) -> tuple[Entry, ...]:
        """Returns the entries of a directory in a snapshot, sorted by raw name.

        With ``recursive`` the names are tree paths relative to ``path``. A path
        that is no directory gives its own entry.
        """
        from treesnap.ops.browse import ls

        return ls(self, ref, self.tree_path(path), recursive=recursive)

    def cat(self, ref: str, path: PathLike) -> Iterator[bytes]:
        """Yields the bytes of a file in a snapshot, verified chunk by chunk.

        Holes are yielded as zero bytes, in pieces of at most 1 MiB.
        """
        from treesnap.ops.browse import cat

        return cat(self, ref, self.tree_path(path))

    def find(self, pattern: str, *, ref: str | None = None) -> tuple[FoundPath, ...]:
        """Returns the paths that match a glob pattern, in all snapshots or in one.

        A pattern without ``/`` is compared with names, otherwise with whole paths.
        """
        from treesnap.ops.browse import find

        return find(self, pattern, ref=ref)

    def skipped(self, ref: str) -> tuple[Skipped, ...]:
        """Returns the paths that a snapshot knows of but does not hold, each with the reason."""
        from treesnap.ops.browse import skipped

        return skipped(self, ref)

    def status(self) -> StatusResult:
        """Compares the live tree with the newest snapshot."""
        from treesnap.ops.diff import status

        return status(self)

    def diff(
        self, a: str | None = None, b: str | None = None, paths: Sequence[PathLike] = ()
    ) -> tuple[Change, ...]:
        """Returns what changed from ``a`` (default: latest) to ``b`` (default: the live tree)."""
        from treesnap.ops.diff import diff

        return diff(self, a, b, tuple(self.tree_path(path) for path in paths))

    def read(self, ref: str | None, path: PathLike) -> bytes:
        """Returns a file's whole content in a snapshot, or of the live tree for None.

        Meant for small files such as those that a text diff shows.
        """
        from treesnap.ops.browse import read

        return read(self, ref, self.tree_path(path))

    def restore(
        self,
        ref: str,
        paths: Sequence[PathLike] = (),
        *,
        to: PathLike | None = None,
        dry_run: bool = False,
        touch: bool = False,
        force: bool = False,
    ) -> RestoreResult:
        """Makes the root, or only ``paths`` of it, exactly as in a snapshot.

        All or nothing: on return the tree is the new state; on an exception, a
        kill or a power cut it is the old one, or becomes the old or the new one
        before the next operation in this root begins. The state before is kept as
        a safety snapshot; :meth:`undo` goes back to it. ``to`` writes into
        another directory, which must be absent or empty. ``touch`` gives restored
        files the current time. ``force`` allows dangerous roots, and when somebody
        else changes the tree meanwhile takes the change into the safety snapshot and
        begins again instead of raising Conflict. Paths that an incomplete snapshot
        does not hold are left as they are.
        Raises NotFound, Conflict, Refused, Busy, Corrupt, StorageFull,
        OperationFailed.
        """
        from treesnap.ops.restore import RestoreRequest, restore

        request = RestoreRequest(
            ref=ref,
            paths=tuple(self.tree_path(path) for path in paths),
            to=os.path.abspath(os.fsdecode(to)) if to is not None else None,
            dry_run=dry_run,
            touch=touch,
            force=force,
        )
        return restore(self, request)

    def undo(self) -> RestoreResult:
        """Takes the newest restore back; raises NotFound when there is none."""
        from treesnap.ops.undo import undo

        return undo(self)

    def redo(self) -> RestoreResult:
        """Takes the newest undo back; raises NotFound when there is none."""
        from treesnap.ops.undo import redo

        return redo(self)

    def recover(self) -> str | None:
        """Finishes an interrupted restore; returns what was done, or None.

        Every method that reads or writes the root does this first.
        """
        from treesnap.ops.recover import recover

        return recover(self)

    def delete(self, *refs: str) -> tuple[Snapshot, ...]:
        """Removes snapshots; their space comes back with :meth:`gc`.

        All refs are resolved before the first is removed. Raises Refused for a
        pinned one.
        """
        from treesnap.ops.history import delete

        return delete(self, refs)

    def pin(self, ref: str) -> Snapshot:
        """Protects a snapshot from deletion."""
        from treesnap.ops.history import set_pinned

        return set_pinned(self, ref, pinned=True)

    def unpin(self, ref: str) -> Snapshot:
        """Takes the protection away."""
        from treesnap.ops.history import set_pinned

        return set_pinned(self, ref, pinned=False)

    def run(
        self, command: Sequence[str], *, retries: int = 0, label: str | None = None
    ) -> RunResult:
        """Takes a checkpoint, runs a command in the root, and rolls back if it fails.

        A failing command is run again up to ``retries`` times, each time from the
        checkpoint. Standard streams are inherited. Raises NotFound when the
        command cannot be started (after rolling back).
        """
        from treesnap.ops.run import run

        return run(self, command, retries=retries, label=label)

    def gc(self, *, dry_run: bool = False) -> GcResult:
        """Gives the space of everything that no snapshot needs back."""
        from treesnap.ops.gc import gc

        return gc(self, dry_run=dry_run)

    def verify(
        self,
        *,
        read_data: bool = False,
        repair: bool = False,
        sample: tuple[int, int] | None = None,
    ) -> VerifyResult:
        """Checks the store's structure, and every byte with ``read_data``.

        With a ``sample`` of ``(n, t)`` the bytes of the n-th of t equal parts are read:
        t calls with n from 1 to t read everything once.
        ``repair`` rebuilds what can be rebuilt and says what it did.
        """
        from treesnap.ops.verify import ALL, Sample, verify

        return verify(
            self,
            read_data=read_data or sample is not None,
            repair=repair,
            sample=Sample(*sample) if sample is not None else ALL,
        )

    def prune(
        self,
        policy: Policy | None = None,
        *,
        session: str | None = None,
        max_size_bytes: int | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Removes the root's snapshots that a policy does not keep; ``gc`` gives the space back.

        Without a policy the default one holds, which concerns automatic snapshots only.
        With ``max_size_bytes`` the oldest go until the rest takes no more. Pinned and
        named snapshots stay, and what an interrupted restore needs.
        """
        from treesnap.ops.prune import PruneRequest, prune
        from treesnap.ops.retention import Policy as AnyPolicy

        request = PruneRequest(
            policy=policy or AnyPolicy(),
            session=session,
            max_size_bytes=max_size_bytes,
            dry_run=dry_run,
        )
        return prune(self, request)

    def doctor(self, *, forget: bool = False) -> DoctorResult:
        """Returns what was interrupted in all roots of the store, and what becomes of it.

        Finishes nothing; ``status`` does. ``forget`` gives an interrupted restore of
        this root up: the tree stays as it is, and both states are in snapshots.
        """
        from treesnap.ops.doctor import doctor

        return doctor(self, forget=forget)

    def stats(self) -> StatsResult:
        """Returns the sizes of the store and of this root's history."""
        from treesnap.ops.stats import stats

        return stats(self)

    @contextmanager
    def rollback_on_error(self, label: str | None = None) -> Iterator[CreateResult]:
        """Takes a checkpoint; when the body raises, restores it and re-raises.

        Also for KeyboardInterrupt. When the roll-back itself fails, its error is
        raised with the body's error as its cause.
        """
        checkpoint = self.create(label=label, kind=SnapshotKind.RUN)
        try:
            yield checkpoint
        except BaseException as error:
            try:
                self.restore(checkpoint.id, force=True)
            except Exception as failure:
                raise failure from error
            raise
