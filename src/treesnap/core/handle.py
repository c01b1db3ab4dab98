"""The library's front door: one handle per root, one method per command.

A handle holds two paths, a file system seam and a clock; no lock and no open
file. Every method opens what it needs and closes it again, so a handle may be
used from several threads, and after ``fork``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager

from treesnap.core.event_loop import BlockInThread, InThread, in_thread, items_in_thread
from treesnap.core.model.arguments import checked, checked_methods
from treesnap.core.model.entries import CONTENT_SIZE_MAX, Change, ChangeList, Entry, Skipped
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.snapshots import Snapshot, SnapshotKind, SnapshotList
from treesnap.core.model.treepath import PathLike, from_user
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.context import (
    WAIT_DEFAULT_S,
    Context,
    absolute,
    context_at,
    default_store_path,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from typing import Final  # pyright knows it by where it is imported from

    from treesnap.core.model.events import Monitor
    from treesnap.core.model.reserved_tags import CheckpointType
    from treesnap.core.model.results import (
        ArchiveResult,
        BlameResult,
        ChangedContent,
        ConfigResult,
        CreateResult,
        DoctorResult,
        FileHunks,
        FileMatches,
        ForkOrigin,
        ForkResult,
        FoundPath,
        GcResult,
        GroupSpace,
        LogEntry,
        MergeResult,
        PathSpace,
        PruneResult,
        RestorePoints,
        RestoreResult,
        RootInfo,
        RunResult,
        StatsResult,
        StatusResult,
        StoreCopy,
        StoreInfo,
        StoreMove,
        VerifyResult,
    )
    from treesnap.core.ops.archive_import import Readable
    from treesnap.core.ops.create import CreateOptions
    from treesnap.core.ops.run.rollback import RollbackBlock, RollbackInLoop
    from treesnap.core.store.maintenance.retention import Policy
    from treesnap.core.store.snapshots import SnapshotName


@checked
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
    if store is not None and not os.fspath(store):
        raise InvalidArgument("store must be a path or None, not an empty one")
    store_path = os.fsdecode(store) if store is not None else default_store_path()
    return Handle(context_at(root, store_path, monitor=monitor, wait_s=wait_s))


@checked_methods
class Handle:
    """One root and its history.

    Paths given to methods are absolute, or relative to the root. ``ref`` is an
    id or its unique beginning, a name, ``latest``, ``latest~N``, ``latest:TYPE`` or ``step:N``;
    or ``newest`` in place of ``latest``, which counts the snapshots of some paths as well. With
    ``session``, REFs that count or name a step are about that session's snapshots.
    All methods may raise the errors of :mod:`treesnap.core.model.errors`; a method that
    raises has changed nothing in the root. An argument of another type than the
    annotation says is InvalidArgument, which names the parameter.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    @property
    def root(self) -> str:
        """Real path of the root."""
        return self.context.root

    @property
    def store_path(self) -> str:
        """Path of the store's directory."""
        return self.context.store_path

    @property
    def aio(self) -> AsyncHandle:
        """The same methods for an event loop: to be awaited, see :class:`AsyncHandle`."""
        return AsyncHandle(self)

    def __repr__(self) -> str:
        return f"Handle(root={self.root!r}, store={self.store_path!r})"

    def tree_path(self, path: PathLike) -> bytes:
        """Returns a path of the caller as a tree path; raises InvalidArgument outside the root."""
        return from_user(path, root=self.root, base=self.root)

    def tree_paths(self, paths: Sequence[PathLike] | None) -> tuple[bytes, ...]:
        """Returns paths of the caller as tree paths, none for None, which means the whole root.

        Raises InvalidArgument for an empty list, which would mean the whole root otherwise.
        """
        if paths is None:
            return ()
        if not paths:
            raise InvalidArgument("paths must name at least one path; use None for the whole root")
        return tuple(self.tree_path(path) for path in paths)

    def create(
        self,
        paths: Sequence[PathLike] | None = None,
        *,
        label: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        session: str | None = None,
        step: int | None = None,
        phase: str | None = None,
        type: CheckpointType | str | None = None,  # noqa: A002 - the word of the option
        kind: SnapshotKind | None = None,
        options: CreateOptions | None = None,
    ) -> CreateResult:
        """Captures the root, or only ``paths`` of it, and publishes a snapshot.

        Here and in the other methods an empty list of paths raises InvalidArgument: None is the
        whole root, and a list that a program computed may come out empty.
        After return the snapshot survives a power cut. A path that exists neither now nor in a
        snapshot of the root raises NotFound, unless the options allow it. Unreadable paths do
        not raise: the result says ``complete=False`` and lists them. ``session``, ``step`` and
        ``tags`` say what work it belongs to; keys that begin with ``treesnap.`` are refused.
        ``phase`` and ``type`` are the tags of these names; ``latest:TYPE`` names the newest of
        a type, which is one of :class:`CheckpointType` or its word.
        ``kind`` decides how long it stays: a policy removes only automatic kinds. Without it, what
        belongs to a session is automatic, for a program makes thousands, and all else is manual.
        When the store or the disk is full, old automatic snapshots go and
        garbage is collected, and it is tried again. Raises Refused, NotFound (no such root),
        Busy, StorageFull, OperationFailed.
        """
        from treesnap.core.model.requests import CaptureRequest
        from treesnap.core.model.reserved_tags import refuse_reserved, with_words
        from treesnap.core.ops.create import create, with_options

        refuse_reserved(tags or {})
        if kind is None:
            kind = SnapshotKind.MANUAL if session is None else SnapshotKind.AUTOMATIC
        request = CaptureRequest(
            scope=self.tree_paths(paths) or None,
            label=label,
            name=name,
            tags=with_words(tags or {}, phase, type),
            session=session,
            step=step,
            kind=kind,
        )
        if options is not None:
            request = with_options(request, options)
        return create(self.context, request)

    @contextmanager
    def watch(self, *, force: bool = False) -> Iterator[Handle]:
        """Watches the root while the body runs; yields another handle, which uses the watcher.

        Methods of that one look at nothing but what changed, once it has made a snapshot;
        whenever the watcher cannot be sure, and after the body, at everything. Costs a
        thread, and 1 KiB of the kernel's memory for each directory.
        Raises Refused: with code ``not-watchable`` where not every change is reported, or when
        the user may have no more watches; for a dangerous root without ``force``. Raises
        NotFound without a root, StorageFull, OperationFailed.
        """
        from treesnap.core.ops.watching import watched

        with watched(self.context, force=force) as (context, _):
            yield Handle(context)

    def list(
        self,
        *,
        session: str | None = None,
        tag: str | None = None,
        kind: SnapshotKind | None = None,
        since: datetime | None = None,
        all_roots: bool = False,
    ) -> SnapshotList:
        """Returns the root's snapshots, newest first; only those that fit what is given.

        ``tag`` is ``KEY`` or ``KEY=VALUE``. ``since`` is the time of the oldest one; without a
        zone it is local time. Of snapshots whose files are damaged the ids
        are in the result's ``damaged``.
        """
        from treesnap.core.ops.history.listing import list_snapshots
        from treesnap.core.ops.references import Filter

        oldest = since.astimezone() if since is not None and since.tzinfo is None else since
        conditions = Filter(session=session, tag=tag, kind=kind, since=oldest)
        return list_snapshots(self.context, conditions, all_roots=all_roots)

    def log(
        self,
        path: PathLike | None = None,
        *,
        limit: int | None = None,
        since: str | None = None,
        kind: SnapshotKind | None = None,
        session: str | None = None,
        grep: str | None = None,
    ) -> Iterator[LogEntry]:
        """Yields the root's snapshots, newest first, with what each changed.

        With ``path`` those in which it differs from the one before: its versions. ``since`` is a
        moment such as ``2h``, ``yesterday`` or ``2026-11-20T12:00``, and ``grep`` a regular
        expression for names, labels and tags. Each is compared with the one before when it is
        reached, so the first ones of a long history come at once. Raises InvalidArgument, and
        NotFound for a path that exists neither now nor in a snapshot.
        """
        from treesnap.core.ops.history.log import LogRequest, log

        tree_path = self.tree_path(path) if path is not None else None
        request = LogRequest(tree_path, limit, since, kind, session, grep)
        return log(self.context, request)

    def ways_back(self) -> RestorePoints:
        """Returns where the root stands, and what :meth:`undo` and :meth:`redo` would go to."""
        from treesnap.core.ops.history.log import ways_back

        return ways_back(self.context)

    def snapshot_names(self) -> tuple[SnapshotName, ...]:
        """Returns the names of the root's snapshots, newest first: numbers and ids.

        Reads one directory and no record, so it is what a program asks for that shows a part
        of a long history; :meth:`load` reads that part.
        """
        from treesnap.core.ops.history.listing import snapshot_names

        return snapshot_names(self.context)

    def load(self, names: Sequence[SnapshotName]) -> SnapshotList:
        """Returns the snapshots of some names, in their order; reads a file for each.

        Those that were deleted meanwhile are left out; the ids of damaged ones are in the
        result's ``damaged``. Raises StoreMissing.
        """
        from treesnap.core.ops.history.listing import load_snapshots

        return load_snapshots(self.context, names)

    def history_mark(self) -> str:
        """Returns a text that differs once a snapshot of the root was published or deleted.

        Costs a look at one directory, for programs that ask again and again. Two changes
        within one tick of the file system's clock may look like one, so a program that has
        just seen a change reads the names once more when it asks the next time.
        """
        from treesnap.core.ops.history.listing import history_mark

        return history_mark(self.context)

    def resolve(
        self, ref: str, *, session: str | None = None, paths: Sequence[PathLike] | None = None
    ) -> Snapshot:
        """Returns the one snapshot that ``ref`` names, or raises NotFound or InvalidArgument.

        ``latest`` with ``paths`` is the newest snapshot that was taken of all of them.
        """
        from treesnap.core.ops.history.listing import resolve

        tree_paths = self.tree_paths(paths)
        return resolve(self.context, ref, of_session=session, paths=tree_paths)

    show = resolve

    def _id_of(self, ref: str, session: str | None, paths: Sequence[PathLike] | None = None) -> str:
        """Returns a REF as it is, or in a session the id of what it names there."""
        return ref if session is None else self.resolve(ref, session=session, paths=paths).id

    def ls(
        self,
        ref: str,
        path: PathLike = ".",
        *,
        recursive: bool = False,
        session: str | None = None,
    ) -> tuple[Entry, ...]:
        """Returns the entries of a directory in a snapshot, sorted by raw name.

        With ``recursive`` the names are tree paths relative to ``path``. A path that is not a
        directory gives its own entry.
        """
        from treesnap.core.ops.history.browse import ls

        snapshot_id = self._id_of(ref, session, [path])
        return ls(self.context, snapshot_id, self.tree_path(path), recursive=recursive)

    def cat(self, ref: str, path: PathLike, *, session: str | None = None) -> Iterator[bytes]:
        """Yields the bytes of a file in a snapshot, verified chunk by chunk.

        Holes are yielded as zero bytes, in pieces of at most 1 MiB.
        """
        from treesnap.core.ops.history.browse import cat

        return cat(self.context, self._id_of(ref, session, [path]), self.tree_path(path))

    def archive(
        self,
        ref: str,
        to: PathLike,
        path: PathLike = ".",
        *,
        force: bool = False,
        session: str | None = None,
    ) -> ArchiveResult:
        """Writes a snapshot, or one path of it, to a tar archive that GNU tar and bsdtar unpack.

        ``to`` is relative to the current directory; its name says how it is compressed:
        ``.tar``, ``.tar.zst`` or ``.tar.gz``. Equal snapshots make equal archives. It appears whole
        and durable or not at all. Raises Refused for a file that exists, without ``force``;
        InvalidArgument, NotFound, Corrupt, StorageFull, OperationFailed.
        """
        from treesnap.core.ops.history.archive import archive

        target = os.path.abspath(absolute(os.fsdecode(to)))
        snapshot_id = self._id_of(ref, session, [path])
        return archive(self.context, snapshot_id, self.tree_path(path), target, force=force)

    def archive_pieces(
        self,
        ref: str,
        path: PathLike = ".",
        *,
        compression: str = "none",
        session: str | None = None,
    ) -> Iterator[bytes]:
        """Yields the bytes of the archive that :meth:`archive` writes, verified as they are read.

        ``compression`` is ``none``, ``zstd`` or ``gzip``.
        """
        from treesnap.core.ops.history.archive import ArchiveCompression, pieces

        compressions = [item.value for item in ArchiveCompression]
        if compression not in compressions:
            raise InvalidArgument(f"compression must be one of {', '.join(compressions)}")
        snapshot_id = self._id_of(ref, session, [path])
        return pieces(
            self.context, snapshot_id, self.tree_path(path), ArchiveCompression(compression)
        )

    def import_from(
        self,
        source: PathLike | Readable,
        *,
        label: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> CreateResult:
        """Publishes a snapshot of the root with what a tar archive or another directory holds.

        ``source`` is a path, relative to the current directory, or a file that is open for reading
        bytes. The root is not touched: :meth:`restore` brings the files there. An archive may be
        compressed by gzip or zstd, and is not trusted: paths that lead out, links in the
        way and anything that is not whole are InvalidArgument with the code ``invalid-archive``,
        and nothing is published. The label says where it came from, unless one is given. Raises
        NotFound, Refused, also for a dangerous directory without ``force``, Busy, StorageFull,
        OperationFailed.
        """
        from treesnap.core.model.requests import CaptureRequest
        from treesnap.core.model.reserved_tags import refuse_reserved
        from treesnap.core.ops.archive_import import import_from

        refuse_reserved(tags or {})
        request = CaptureRequest(label=label, name=name, tags=dict(tags or {}), force=force)
        if isinstance(source, str | bytes | os.PathLike):
            path = os.path.abspath(absolute(os.fsdecode(source)))
            return import_from(self.context, path, request)
        return import_from(self.context, source, request)

    def find(
        self, pattern: str, *, ref: str | None = None, session: str | None = None
    ) -> tuple[FoundPath, ...]:
        """Returns the paths that match a glob pattern, in all snapshots or in one.

        A pattern without ``/`` is compared with names, otherwise with whole paths. ``session``
        is about ``ref``.
        """
        from treesnap.core.ops.history.browse import find

        snapshot_id = None if ref is None else self._id_of(ref, session)
        return find(self.context, pattern, ref=snapshot_id)

    def grep(
        self,
        pattern: str,
        refs: Sequence[str] | None = None,
        paths: Sequence[PathLike] | None = None,
        *,
        ignore_case: bool = False,
        fixed: bool = False,
        in_all: bool = False,
        first_only: bool = False,
        session: str | None = None,
    ) -> Iterator[FileMatches]:
        """Yields the files of snapshots in which a regular expression matches a line.

        ``pattern`` is compared with the bytes of lines; with ``fixed`` it is text. Without
        ``refs`` the newest snapshot is searched, with ``in_all`` every snapshot of the root, the
        newest first; then a path is yielded once for each content. ``first_only`` stops
        at a file's first match. A content is searched once, however many snapshots hold it.
        Raises InvalidArgument, NotFound.
        """
        from treesnap.core.ops.history.grep import GrepRequest, grep

        words = refs if refs is not None else () if in_all else ("latest",)
        request = GrepRequest(
            pattern=os.fsencode(pattern),
            refs=tuple((word, self._id_of(word, session, paths)) for word in words),
            paths=self.tree_paths(paths),
            ignore_case=ignore_case,
            fixed=fixed,
            in_all=in_all,
            first_only=first_only,
        )
        return grep(self.context, request)

    def blame(
        self,
        path: PathLike,
        *,
        ref: str = "latest",
        max_size_bytes: int = CONTENT_SIZE_MAX,
        session: str | None = None,
    ) -> BlameResult:
        """Returns the lines of a file in a snapshot, each with the snapshot that brought it.

        That is the oldest one of the run of versions in which the line stands. Raises Refused for
        a file of more than ``max_size_bytes``, InvalidArgument for one that is not text,
        NotFound.
        """
        from treesnap.core.ops.history.blame import blame

        snapshot_id = self._id_of(ref, session, [path])
        return blame(self.context, self.tree_path(path), snapshot_id, max_size_bytes)

    def skipped(self, ref: str, *, session: str | None = None) -> tuple[Skipped, ...]:
        """Returns the paths that a snapshot knows of but does not hold, each with the reason."""
        from treesnap.core.ops.history.browse import skipped

        return skipped(self.context, self._id_of(ref, session))

    def delete(self, *refs: str, session: str | None = None) -> SnapshotList:
        """Removes snapshots; :meth:`gc` frees their space.

        All refs are resolved before the first is removed. The ids of those that were damaged
        are in the result's ``damaged``. Raises Refused for a pinned one,
        and Busy for one that a process at work goes back to if it fails.
        """
        from treesnap.core.ops.history.listing import delete

        return delete(self.context, [self._id_of(ref, session) for ref in refs])

    def pin(self, ref: str, *, session: str | None = None) -> Snapshot:
        """Protects a snapshot from deletion."""
        from treesnap.core.ops.history.listing import set_pinned

        return set_pinned(self.context, self._id_of(ref, session), pinned=True)

    def unpin(self, ref: str, *, session: str | None = None) -> Snapshot:
        """Removes the protection from deletion."""
        from treesnap.core.ops.history.listing import set_pinned

        return set_pinned(self.context, self._id_of(ref, session), pinned=False)

    def describe(self, ref: str, label: str, *, session: str | None = None) -> Snapshot:
        """Gives a snapshot another label, none with an empty one; returns it as it is now.

        Its id stays. Durable after return; a crash leaves the old label or the new one. What was
        pushed to a remote keeps the label that it was taken with. Raises NotFound,
        InvalidArgument, Busy.
        """
        from treesnap.core.ops.history.listing import describe

        return describe(self.context, self._id_of(ref, session), label)

    def tag(
        self,
        ref: str,
        tags: Mapping[str, str] | None = None,
        *,
        remove: Sequence[str] | None = None,
        session: str | None = None,
    ) -> Snapshot:
        """Sets tags of a snapshot and removes others; returns it as it is now.

        Durable like :meth:`describe`, all or none of them. A tag to remove that it does not have
        is ignored. Raises NotFound, InvalidArgument, also for keys that begin with
        ``treesnap.``, and Busy.
        """
        from treesnap.core.ops.history.listing import tag

        return tag(self.context, self._id_of(ref, session), tags or {}, remove or ())

    def prune(
        self,
        policy: Policy | None = None,
        *,
        session: str | None = None,
        max_size_bytes: int | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Removes the root's snapshots that a policy does not keep; ``gc`` frees the space.

        Without a policy that of the settings holds, which concerns automatic snapshots only; the
        result says which rules decided. With ``max_size_bytes`` the oldest go until the rest
        takes no more. Pinned and named ones stay, what an interrupted restore needs, and what
        ``undo`` and ``redo`` go to. Raises InvalidArgument, and removes nothing, where the
        settings cannot be read, whatever the policy; and where each rule keeps none of all kinds
        of snapshots, unless a ``session`` is given.
        """
        from treesnap.core.ops.maintenance.space import prune
        from treesnap.core.store.maintenance.prune import NO_RULES, PruneRequest

        request = PruneRequest(
            policy=policy or NO_RULES,
            session=session,
            max_size_bytes=max_size_bytes,
            dry_run=dry_run,
        )
        return prune(self.context, request)

    def gc(self, *, dry_run: bool = False) -> GcResult:
        """Frees the space of everything that no snapshot needs.

        Works on a full disk; packs that do not fit are left for the next run, and the result
        says so.
        """
        from treesnap.core.ops.maintenance.space import gc

        return gc(self.context, dry_run=dry_run)

    def verify(
        self,
        *,
        read_data: bool = False,
        repair: bool = False,
        sample: tuple[int, int] | None = None,
    ) -> VerifyResult:
        """Checks the store's structure, and every byte with ``read_data``.

        With a ``sample`` of ``(n, t)`` the bytes of the n-th of t equal parts are read.
        ``repair`` rebuilds what can be rebuilt, recovers lost content from the live trees of
        all roots, and returns what it did and what is partial now.
        """
        from treesnap.core.ops.maintenance.verify import verify

        return verify(self.context, read_data=read_data, repair=repair, sample=sample)

    def config(
        self,
        key: str | None = None,
        value: str | None = None,
        *,
        for_root: bool = False,
        unset: bool = False,
    ) -> ConfigResult:
        """Returns what holds for this root, or one setting; changes it first with a value.

        A change is for the whole store, or with ``for_root`` for this root alone; ``unset``
        undoes it. Durable after return. Raises InvalidArgument for what there is not,
        and for a file of settings that cannot be understood.
        """
        from treesnap.core.ops.maintenance.config import config

        return config(self.context, key, value, for_root=for_root, unset=unset)

    def doctor(self, *, forget: bool = False, file_system: bool = False) -> DoctorResult:
        """Returns what was interrupted in all roots of the store, and what becomes of it.

        Finishes nothing; ``status`` does. ``forget`` abandons an interrupted restore of this
        root: the tree stays as it is, and both states are in snapshots. ``file_system`` finds out
        what the file system of this directory does, by a new directory there, which is removed.
        """
        from treesnap.core.ops.maintenance.doctor import doctor

        return doctor(self.context, forget=forget, file_system=file_system)

    def root_list(self) -> tuple[RootInfo, ...]:
        """Returns all roots of the store, by path; costs a few reads for each."""
        from treesnap.core.ops.maintenance.roots import list_roots

        return list_roots(self.context)

    def root_move(
        self, old: PathLike, new: PathLike | None = None, *, force: bool = False
    ) -> RootInfo:
        """Records that a root is at another path now: at ``new``, or where this handle is.

        ``old`` is its path until now, or the beginning of its id, and need not exist. History,
        plans, settings and an interrupted restore come along. Needed only where a move was not
        noticed. Raises NotFound for a root that is not known and without a directory at the new
        path, Refused where that has a history of its own, and for a dangerous one without
        ``force``, Busy.
        """
        from treesnap.core.ops.maintenance.roots import move_root

        new_path = os.fsdecode(new) if new is not None else self.root
        return move_root(self.context, os.fsdecode(old), new_path, force=force)

    def root_forget(self, root: PathLike | None = None, *, force: bool = False) -> RootInfo:
        """Removes all that the store has of a root, this one or another; touches no directory.

        ``root`` is a path or the beginning of an id. A crash leaves the whole history or
        nothing of it. ``gc`` frees the space. Returns what there was. Raises Refused without
        ``force`` where snapshots are pinned, named, made by hand or labelled steps of a session,
        and while an interrupted restore needs them, NotFound, and Busy while a process relies on
        the root.
        """
        from treesnap.core.ops.maintenance.roots import forget_root

        return forget_root(self.context, os.fsdecode(root or self.root), force=force)

    def store_info(self) -> StoreInfo:
        """Returns where the store is and what is in it; costs a listing. Raises StoreMissing."""
        from treesnap.core.ops.maintenance.store_place import store_info

        return store_info(self.context)

    def store_trust(self) -> None:
        """Notes that the store is this user's own, as that of a backup that was put back is.

        From then on its plans may run commands, and restores from it give privileges, as if it
        had been made here. Raises Refused (``store-not-trusted``) where it belongs to another
        user or others may write to it, StoreMissing.
        """
        from treesnap.core.ops.maintenance.store_place import trust_store

        trust_store(self.context)

    def store_copy(self, target: PathLike) -> StoreCopy:
        """Copies the store, which may be in use, to a directory that is absent or empty.

        The copy holds every snapshot that was published before the call, and is read and checked
        as a whole. Settings, plans and remotes come along; a restore that was interrupted does
        not. Damage is copied, and is in the result's ``verified``. After a crash there is no
        store at ``target``. Raises Refused (``target-not-empty``), Busy during a collection,
        StorageFull, OperationFailed.
        """
        from treesnap.core.ops.maintenance.store_place import copy_store

        return copy_store(self.context, os.fsdecode(target))

    def store_move(self, target: PathLike) -> StoreMove:
        """Moves the store to a directory that is absent or empty, and leaves a link to it.

        So settings, variables and timers that name the old place still find it. Atomic on one
        file system. To another one, the store is copied and checked first, and the old one is
        kept under another name. Raises as :meth:`store_copy`, and Busy while a process works in
        any root.
        """
        from treesnap.core.ops.maintenance.store_place import move_store

        return move_store(self.context, os.fsdecode(target))

    def stats(self) -> StatsResult:
        """Returns the sizes of the store and of this root's history."""
        from treesnap.core.ops.maintenance.space import stats

        return stats(self.context)

    def du(
        self,
        ref: str = "latest",
        path: PathLike = ".",
        *,
        depth: int = 1,
        session: str | None = None,
    ) -> tuple[PathSpace, ...]:
        """Returns the space that a path of a snapshot takes, after what is below it.

        ``depth`` says how deep. What several paths need counts at the first one. Walks
        all snapshots of the store, to tell what no other one needs. Raises InvalidArgument,
        NotFound, Corrupt.
        """
        from treesnap.core.ops.history.browse import du

        if depth > _DEPTH_MAX:
            raise InvalidArgument(f"depth must be a number from 0 to {_DEPTH_MAX}")
        snapshot_id = self._id_of(ref, session, [path])
        return du(self.context, snapshot_id, self.tree_path(path), depth)

    def du_sessions(self) -> tuple[GroupSpace, ...]:
        """Returns the space that the snapshots of each session take, the newest session first."""
        from treesnap.core.ops.history.browse import du_sessions

        return du_sessions(self.context)

    def status(self, ref: str | None = None, *, session: str | None = None) -> StatusResult:
        """Compares the live tree with a snapshot, by default the newest of the whole root.

        Of a snapshot of some paths only these are compared. The result's ``skipped`` has what
        could not be read, and so was not compared. Raises NotFound for an unknown ``ref``;
        before the first snapshot, without one, the result's ``snapshot`` is None.
        """
        from treesnap.core.ops.history.compare import status

        return status(self.context, None if ref is None else self._id_of(ref, session))

    def diff(
        self,
        a: str | None = None,
        b: str | None = None,
        paths: Sequence[PathLike] | None = None,
        *,
        session: str | None = None,
    ) -> ChangeList:
        """Returns what changed from ``a`` (default: latest) to ``b`` (default: the live tree)."""
        from treesnap.core.ops.history.compare import diff

        old = None if a is None else self._id_of(a, session, paths)
        new = None if b is None else self._id_of(b, session, paths)
        return diff(self.context, old, new, self.tree_paths(paths))

    def diff_root(self, directory: PathLike, paths: Sequence[PathLike] | None = None) -> ChangeList:
        """Returns what another root's live tree has that differs from this one's.

        ``directory`` is a root of the same store, such as a fork of this one, or what it was
        forked from. ``paths`` are those of this root. Where the two were forked, only files are
        read that changed since. Raises NotFound for a directory that is not another root.
        """
        from treesnap.core.ops.history.compare import diff_root

        return diff_root(self.context, os.fsdecode(directory), self.tree_paths(paths))

    def contents(
        self,
        a: str | None,
        b: str | None,
        changes: Sequence[Change],
        *,
        root: PathLike | None = None,
        max_size_bytes: int = CONTENT_SIZE_MAX,
        as_text: bool = False,
    ) -> Iterator[ChangedContent]:
        """Yields what :meth:`diff` returned for ``a`` and ``b``, with the bytes of both sides.

        None is the live tree, for ``b`` that of ``root``, as :meth:`diff_root` compared it; by
        default this one's. Of files of more than ``max_size_bytes`` there are no bytes; of
        texts up to 1 GiB there are ``parts`` in their place, if no more than that differs, at the
        cost of reading both twice; ``is_binary`` says that one was seen to be none. Reads many
        small files together, which costs a fraction of a :meth:`read` of each; up to 32 MiB and
        one change are in memory.

        With ``as_text``, files are what the command of the user's setting ``diff.PATTERN`` prints
        of them: ``converted_by`` names the pattern. Where that fails, ``not_converted`` says why.
        Raises InvalidArgument for settings that cannot be understood.
        """
        from treesnap.core.ops.history.read_many import contents

        other_root = os.path.realpath(absolute(os.fsdecode(root))) if root is not None else None
        return contents(
            self.context, a, b, changes, max_size_bytes, root=other_root, as_text=as_text
        )

    def each_change(
        self, a: str | None, b: str, paths: Sequence[PathLike] | None = None
    ) -> Iterator[Change]:
        """Yields what changed from snapshot ``a`` to snapshot ``b``, while it is read.

        Like :meth:`diff`, but of two snapshots only, and with ``a`` None everything in ``b`` is
        new. The first change is there before the last directory is read, and a caller may stop
        early. In the order of a walk; names that only moved between groups of hard links are
        not in it.
        """
        from treesnap.core.ops.history.compare import each_change

        return each_change(self.context, a, b, self.tree_paths(paths))

    def read(self, ref: str | None, path: PathLike, *, session: str | None = None) -> bytes:
        """Returns a file's whole content in a snapshot, or of the live tree for None.

        Meant for small files such as those that a text diff shows.
        """
        from treesnap.core.ops.history.browse import read

        snapshot_id = None if ref is None else self._id_of(ref, session, [path])
        return read(self.context, snapshot_id, self.tree_path(path))

    def restore(
        self,
        ref: str,
        paths: Sequence[PathLike] | None = None,
        *,
        to: PathLike | None = None,
        dry_run: bool = False,
        touch: bool = False,
        force: bool = False,
        list_changes: bool = True,
        base: str | None = None,
        conflicts: str = "keep",
        privileged: bool = False,
        session: str | None = None,
        reason: str | None = None,
    ) -> RestoreResult:
        """Makes the root, or only ``paths`` of it, exactly as in a snapshot.

        All or nothing: on return the tree is the new state; on an exception, a kill or a
        power cut it is the old one, or becomes the old or the new one before the next
        operation in this root begins. The state before is kept as a safety snapshot;
        :meth:`undo` goes back to it. ``to`` writes into another directory, which must be
        absent or empty. ``touch`` gives restored files the current time. ``force`` allows
        dangerous roots; when another process changes the tree meanwhile, it puts the change
        into the safety snapshot and starts again instead of raising Conflict. Paths that
        an incomplete snapshot does not hold are left as they are. Without ``list_changes`` the
        result only counts what changed: its ``changes`` are empty, which saves some 500 bytes
        of memory for each path.

        With ``base``, the restore undoes what was done up to that snapshot, and nothing later:
        paths that differ between it and the live tree were changed by others. Where the restore
        would change them, they are in the result's ``conflicts``, and with ``conflicts="keep"``
        they stay as they are, with the directories above them; with ``"overwrite"`` they are
        restored like the others. A modification time alone is not a conflict, and a repository
        (``.git``) is one path. Its index alone is not a conflict: it stays if the snapshot has it
        as it is in the base. A database of SQLite is in conflict where its log is.

        Of a snapshot that is not proven to be own, such as one that was fetched, cloned or
        imported, or one in another user's store, set-user-ID bits, devices, privileged attributes
        and owners are left out; they are in the result's ``privileges``. With ``privileged`` paths
        get them.

        A restore of a whole checkpoint, which a system took or which has a type, is counted as a
        roll-back to it, with ``reason``; with a reason so is that of any other snapshot.

        Raises NotFound, Conflict, Refused, Busy, Corrupt, StorageFull, OperationFailed.
        """
        from treesnap.core.ops.restore.plan import RestoreRequest
        from treesnap.core.ops.undo import restore

        request = RestoreRequest(
            ref=self._id_of(ref, session, paths),
            paths=self.tree_paths(paths),
            to=os.path.abspath(absolute(os.fsdecode(to))) if to is not None else None,
            dry_run=dry_run,
            touch=touch,
            force=force,
            list_changes=list_changes,
            bases=() if base is None else (self._id_of(base, session, paths),),
            conflicts=conflicts,
            privileged=privileged,
            reason=reason,
        )
        return restore(self.context, request)

    def hunks(self, ref: str, path: PathLike, *, session: str | None = None) -> FileHunks:
        """Returns where a file of the live tree differs from a snapshot, as hunks of lines.

        Any of them can be restored by :meth:`restore_hunks`. Raises InvalidArgument for what is not
        a file on both sides, for a binary one (it holds a zero byte), and for more than 4 MiB;
        NotFound for what one side does not hold.
        """
        from treesnap.core.ops.hunks import hunks

        return hunks(self.context, self._id_of(ref, session, [path]), self.tree_path(path))

    def restore_hunks(
        self, hunks: FileHunks, numbers: Sequence[int], *, force: bool = False
    ) -> RestoreResult:
        """Makes some lines of a live file as in a snapshot; its other lines stay as they are.

        ``hunks`` is what :meth:`hunks` returned, and ``numbers`` are the hunks to restore. Mode,
        owner, extended attributes and hard links stay, too. All or nothing like :meth:`restore`:
        :meth:`undo` goes back. The result's ``snapshot`` is one of the file as it is now. Raises
        Conflict if the content changed since the call of :meth:`hunks`, also with ``force``, which
        allows a dangerous root; and what a restore raises.
        """
        from treesnap.core.ops.hunks import restore_hunks

        return restore_hunks(self.context, hunks, numbers, force=force)

    def revert(
        self,
        ref: str,
        paths: Sequence[PathLike] | None = None,
        *,
        conflicts: str = "refuse",
        session: str | None = None,
        together: bool = False,
        dry_run: bool = False,
        force: bool = False,
    ) -> MergeResult:
        """Undoes what happened between two snapshots, and keeps what happened since.

        ``ref`` is ``A..B``, or one snapshot, which stands for what changed since the one before
        it, or since the restore that came between; one that was taken before a step of an agent,
        a plan or a numbered session, or before a command, stands for what that did. ``A..`` ends
        with the root as it is. What several calls of an agent did at the same time is undone as one
        group: with ``together``, else it raises RanTogether. With ``dry_run`` neither is needed.
        Paths that are untouched since are as in A again, with their metadata. Texts are merged line
        by line. What changed since in another way is a conflict: with ``conflicts="refuse"`` it
        raises MergeConflict with all ``paths``, and nothing is changed; with ``"mine"`` these paths
        stay, with ``"theirs"`` they become as in A, with ``"markers"`` both sides are written into
        texts, and what is not text stays.

        All or nothing like :meth:`restore`: :meth:`undo` goes back. The root is captured first,
        also with ``dry_run``, unless the newest snapshot is the same; ``force`` is as in
        :meth:`restore`. Raises NotFound, InvalidArgument, MergeConflict, RanTogether, Conflict,
        Refused, Busy, Corrupt, StorageFull, OperationFailed.
        """
        from treesnap.core.ops.merge.into_root import revert

        return revert(
            self.context,
            ref,
            self.tree_paths(paths),
            session_id=session,
            rule=conflicts,
            together=together,
            dry_run=dry_run,
            force=force,
        )

    def fork(
        self, ref: str, directories: Sequence[PathLike], *, session: str | None = None
    ) -> ForkResult:
        """Makes working copies of a snapshot of the whole root, each at a path of its own.

        Files that the live tree holds unchanged share their blocks with it (see ioctl_ficlone(2))
        where the file system can, and with the first copy; others are written from the store.
        Nothing is a hard link to a file of the root. Each directory has to be absent or empty, and
        appears whole or not at all; when one fails, those before it stay. Each is a root of the
        store from then on. Its history begins with the snapshot ``forked``, pinned, which holds
        what it holds; its next capture reads no file; :meth:`origin` tells where it comes from.
        What the snapshot left out is not in it, and later changes of the live tree are not either.

        Raises NotFound, InvalidArgument for a snapshot of some paths, Refused (``not-forkable``,
        ``target-not-empty``, ``root-taken``), StorageFull, Busy, OperationFailed.
        """
        from treesnap.core.ops.fork import fork

        snapshot_id = self._id_of(ref, session)
        return fork(self.context, snapshot_id, [os.fsdecode(each) for each in directories])

    def origin(self) -> ForkOrigin | None:
        """Returns where this root was forked from, or None if it is not a fork."""
        from treesnap.core.ops.fork import origin

        return origin(self.context)

    def adopt(
        self,
        directory: PathLike,
        paths: Sequence[PathLike] | None = None,
        *,
        conflicts: str = "refuse",
        as_it_is: bool = False,
        dry_run: bool = False,
        force: bool = False,
    ) -> MergeResult:
        """Brings what was done in a fork into this root, from which it was forked.

        Merges the fork as it is now with the root, since the state that was forked, and restores
        the merge; ``conflicts`` is as in :meth:`revert`, and "theirs" is the fork. With
        ``as_it_is`` the root becomes as the fork, whatever happened here since. Of what was adopted
        before and is still here, the state adopted last is the common one. All or nothing:
        :meth:`undo` goes back. The fork stays as it is; both are captured first. What happens in
        the fork while it is captured may be missing, as in any snapshot. Raises NotFound,
        Refused (``not-a-fork``; ``fork-replaced`` where another directory is in its place, unless
        ``force``), MergeConflict, and what :meth:`revert` raises.
        """
        from treesnap.core.ops.merge.into_root import adopt

        return adopt(
            self.context,
            directory,
            self.tree_paths(paths),
            rule=conflicts,
            as_it_is=as_it_is,
            dry_run=dry_run,
            force=force,
        )

    def undo(
        self, *, dry_run: bool = False, privileged: bool = False, list_changes: bool = True
    ) -> RestoreResult:
        """Undoes the newest restore; raises NotFound when there is none.

        With ``dry_run`` it changes nothing and returns what it would do. ``privileged`` is as for
        :meth:`restore`, for a store that is not proven to be own, and so is ``list_changes``.
        """
        from treesnap.core.ops.undo import undo

        return undo(
            self.context, is_dry_run=dry_run, privileged=privileged, list_changes=list_changes
        )

    def redo(
        self, *, dry_run: bool = False, privileged: bool = False, list_changes: bool = True
    ) -> RestoreResult:
        """Undoes the newest undo; raises NotFound when there is none.

        With ``dry_run`` it changes nothing and returns what it would do. ``privileged`` and
        ``list_changes`` are as for :meth:`undo`.
        """
        from treesnap.core.ops.undo import redo

        return redo(
            self.context, is_dry_run=dry_run, privileged=privileged, list_changes=list_changes
        )

    def recover(self) -> str | None:
        """Finishes an interrupted restore; returns what was done, or None.

        Every method that reads or writes the root does this first.
        """
        from treesnap.core.ops.access import recover

        recovery = recover(self.context)
        return recovery.done if recovery is not None else None

    def run(
        self,
        command: Sequence[str],
        *,
        retries: int = 0,
        label: str | None = None,
        overlap: str = "wait",
    ) -> RunResult:
        """Takes a checkpoint, runs a command in the root, and rolls back if it fails.

        A failing command is run again up to ``retries`` times, each time from the checkpoint.
        Standard streams are inherited. Whatever a failing command has started is ended before
        the roll-back. In the main thread, so does each signal that would end the program, and
        after the roll-back the program ends, by SystemExit. Those that it ignores or handles
        itself are left to it.
        ``overlap`` is as for :meth:`rollback_on_error`. Raises NotFound when the command cannot
        be started, Busy.
        """
        from treesnap.core.ops.run.checkpoint import run

        return run(self.context, command, retries=retries, label=label, overlap=overlap)

    def rollback_on_error(
        self,
        label: str | None = None,
        *,
        paths: Sequence[PathLike] | None = None,
        overlap: str = "wait",
        tags: Mapping[str, str] | None = None,
        session: str | None = None,
        step: int | None = None,
    ) -> RollbackBlock:
        """Takes a checkpoint; when the body raises, restores it and re-raises.

        Also for KeyboardInterrupt, and for GeneratorExit: a generator that is closed, or
        collected, while it waits inside the block is rolled back. When the roll-back itself
        fails, its error is raised from the body's. The monitor is told what was left alone. In the
        main thread, no signal interrupts how the block begins and is left: the program's handlers
        are called when that is done. Only the process that entered rolls back; a child that it
        forks leaves the block without touching anything. A block that is collected without
        having been left changes no file, and warns.

        A block may be entered again when it was left, and inside itself raises InvalidArgument.

        With ``paths`` only these are captured and rolled back. While another block, or
        ``run``, or step of a plan may roll back some of the same paths, ``overlap="wait"``
        waits as long as the handle waits for locks, and ``"refuse"`` not at all; then Busy is
        raised. Blocks that are entered inside the body, by processes that it starts too, belong
        to it and do not wait. ``tags``, ``session`` and ``step`` are as for :meth:`create`.

        As a decorator it takes a checkpoint for each call. A coroutine function gets the block of
        :attr:`aio`; a generator function is refused with TypeError, because its body runs after
        the call: use the block inside it.
        """
        from treesnap.core.model.requests import CaptureRequest
        from treesnap.core.model.reserved_tags import refuse_reserved
        from treesnap.core.ops.run.rollback import RollbackBlock

        refuse_reserved(tags or {})
        request = CaptureRequest(
            scope=self.tree_paths(paths) or None,
            label=label,
            tags=dict(tags or {}),
            session=session,
            step=step,
            kind=SnapshotKind.RUN,
            allow_absent=True,  # the body may make what it is about
        )
        return RollbackBlock(self.context, request, overlap)


_DEPTH_MAX = 100
"""Directories below each other that :meth:`Handle.du` lists."""


class AsyncHandle:
    """A handle for programs that run an event loop; :attr:`Handle.aio` is one.

    Every method has the parameters, the result and the errors of the one of the same name, and
    runs in a thread of the loop's default executor. Blocks are ``async with``, what yields is an
    async iterator, and everything else is awaited for its value. ``tree_path`` and ``tree_paths``
    read no files; they are those of the handle.

    A call that is cancelled before a thread began it does nothing. One that has begun ends as if
    it had not been cancelled, and then CancelledError is raised: a restore is never left half
    done, and nothing works in the root after the ``await``. The handle's ``wait_s`` limits how
    long a call waits for others; a timeout around it does not.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        """The handle whose methods run in threads."""

    def __repr__(self) -> str:
        return f"{self.handle!r}.aio"

    create: Final = InThread(Handle.create)
    list: Final = InThread(Handle.list)
    ways_back: Final = InThread(Handle.ways_back)
    snapshot_names: Final = InThread(Handle.snapshot_names)
    load: Final = InThread(Handle.load)
    history_mark: Final = InThread(Handle.history_mark)
    resolve: Final = InThread(Handle.resolve)
    show: Final = InThread(Handle.show)
    ls: Final = InThread(Handle.ls)
    read: Final = InThread(Handle.read)
    archive: Final = InThread(Handle.archive)
    blame: Final = InThread(Handle.blame)
    import_from: Final = InThread(Handle.import_from)
    find: Final = InThread(Handle.find)
    skipped: Final = InThread(Handle.skipped)
    delete: Final = InThread(Handle.delete)
    describe: Final = InThread(Handle.describe)
    tag: Final = InThread(Handle.tag)
    pin: Final = InThread(Handle.pin)
    unpin: Final = InThread(Handle.unpin)
    prune: Final = InThread(Handle.prune)
    gc: Final = InThread(Handle.gc)
    verify: Final = InThread(Handle.verify)
    config: Final = InThread(Handle.config)
    doctor: Final = InThread(Handle.doctor)
    root_list: Final = InThread(Handle.root_list)
    root_move: Final = InThread(Handle.root_move)
    root_forget: Final = InThread(Handle.root_forget)
    store_info: Final = InThread(Handle.store_info)
    store_trust: Final = InThread(Handle.store_trust)
    store_copy: Final = InThread(Handle.store_copy)
    store_move: Final = InThread(Handle.store_move)
    stats: Final = InThread(Handle.stats)
    du: Final = InThread(Handle.du)
    du_sessions: Final = InThread(Handle.du_sessions)
    status: Final = InThread(Handle.status)
    diff: Final = InThread(Handle.diff)
    diff_root: Final = InThread(Handle.diff_root)
    restore: Final = InThread(Handle.restore)
    hunks: Final = InThread(Handle.hunks)
    restore_hunks: Final = InThread(Handle.restore_hunks)
    revert: Final = InThread(Handle.revert)
    fork: Final = InThread(Handle.fork)
    origin: Final = InThread(Handle.origin)

    adopt: Final = InThread(Handle.adopt)
    undo: Final = InThread(Handle.undo)
    redo: Final = InThread(Handle.redo)
    recover: Final = InThread(Handle.recover)
    run: Final = InThread(Handle.run)

    async def log(
        self,
        path: PathLike | None = None,
        *,
        limit: int | None = None,
        since: str | None = None,
        kind: SnapshotKind | None = None,
        session: str | None = None,
        grep: str | None = None,
    ) -> AsyncIterator[LogEntry]:
        """Yields the root's snapshots with what each changed; see :meth:`Handle.log`."""
        entries = await in_thread(
            self.handle.log, path, limit=limit, since=since, kind=kind, session=session, grep=grep
        )
        async for entry in items_in_thread(entries):
            yield entry

    async def each_change(
        self, a: str | None, b: str, paths: Sequence[PathLike] | None = None
    ) -> AsyncIterator[Change]:
        """Yields what changed from one snapshot to another; see :meth:`Handle.each_change`."""
        changes = await in_thread(self.handle.each_change, a, b, paths)
        async for change in items_in_thread(changes):
            yield change

    async def contents(
        self,
        a: str | None,
        b: str | None,
        changes: Sequence[Change],
        *,
        root: PathLike | None = None,
        max_size_bytes: int = CONTENT_SIZE_MAX,
        as_text: bool = False,
    ) -> AsyncIterator[ChangedContent]:
        """Yields changes with the bytes of both sides; see :meth:`Handle.contents`."""
        contents = await in_thread(
            self.handle.contents,
            a,
            b,
            changes,
            root=root,
            max_size_bytes=max_size_bytes,
            as_text=as_text,
        )
        async for item in items_in_thread(contents):
            yield item

    async def cat(
        self, ref: str, path: PathLike, *, session: str | None = None
    ) -> AsyncIterator[bytes]:
        """Yields the bytes of a file in a snapshot; see :meth:`Handle.cat`.

        Errors of the call are raised when the first piece is asked for.
        """
        pieces = await in_thread(self.handle.cat, ref, path, session=session)
        async for piece in items_in_thread(pieces):
            yield piece

    async def grep(
        self,
        pattern: str,
        refs: Sequence[str] | None = None,
        paths: Sequence[PathLike] | None = None,
        *,
        ignore_case: bool = False,
        fixed: bool = False,
        in_all: bool = False,
        first_only: bool = False,
        session: str | None = None,
    ) -> AsyncIterator[FileMatches]:
        """Yields the files in which a pattern matches a line; see :meth:`Handle.grep`."""
        matches = await in_thread(
            self.handle.grep,
            pattern,
            refs,
            paths,
            ignore_case=ignore_case,
            fixed=fixed,
            in_all=in_all,
            first_only=first_only,
            session=session,
        )
        async for item in items_in_thread(matches):
            yield item

    async def archive_pieces(
        self,
        ref: str,
        path: PathLike = ".",
        *,
        compression: str = "none",
        session: str | None = None,
    ) -> AsyncIterator[bytes]:
        """Yields the bytes of an archive; see :meth:`Handle.archive_pieces`."""
        pieces = await in_thread(
            self.handle.archive_pieces, ref, path, compression=compression, session=session
        )
        async for piece in items_in_thread(pieces):
            yield piece

    def watch(self, *, force: bool = False) -> AbstractAsyncContextManager[AsyncHandle]:
        """Watches the root while the body runs; see :meth:`Handle.watch`."""
        return _WatchInLoop(self.handle.watch(force=force))

    def rollback_on_error(
        self,
        label: str | None = None,
        *,
        paths: Sequence[PathLike] | None = None,
        overlap: str = "wait",
        tags: Mapping[str, str] | None = None,
        session: str | None = None,
        step: int | None = None,
    ) -> RollbackInLoop:
        """Rolls back what the body did when it raises; see :meth:`Handle.rollback_on_error`.

        Also when its task is cancelled, however often. A body that ends because its task is
        collected, or its loop closed, is not rolled back: that could happen at any time, over new
        work. Its checkpoint is released, and the monitor is told (``block-abandoned``).

        It waits for other blocks without a thread and without blocking the loop, so tasks of one
        loop may wait for each other. What the body starts with ``asyncio.create_task`` belongs to
        the block. As a decorator it protects each call of a coroutine function.
        """
        block = self.handle.rollback_on_error(
            label, paths=paths, overlap=overlap, tags=tags, session=session, step=step
        )
        return block.in_loop()


class _WatchInLoop(BlockInThread[Handle]):
    """Watches while a body runs in a loop."""

    async def __aenter__(self) -> AsyncHandle:  # type: ignore[override]  # the handle of a loop
        return AsyncHandle(await super().__aenter__())
