"""``create``: capture a root, or some paths of it, and publish a snapshot."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from treesnap.core.codec.reader import TreeReader
from treesnap.core.codec.snapshot import SNAPSHOT, state_hash
from treesnap.core.ending_signals import ending_text
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.arguments import checked_record, problem_of_name
from treesnap.core.model.entries import DATABASE_LOG_SUFFIXES, Entry, EntryKind, SkipReason, Totals
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StorageFull,
    StoreMissing,
    WarningCode,
    printable,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import first_few
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.results import CreateResult, CreateStats
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind, SnapshotRecord
from treesnap.core.model.treepath import ROOT, ancestors, parents, without_nested
from treesnap.core.model.type_names import TYPE_CHECKING, Any
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.capture import Capture, latest
from treesnap.core.ops.checkpoint_locks import refuse_full_root, refuse_overlap
from treesnap.core.ops.context import Context, Session, check_root
from treesnap.core.ops.databases import with_live_logs, without_logs
from treesnap.core.ops.maintenance.space import maintain, with_room, with_settings
from treesnap.core.ops.references import STEP_MAX, find_named, is_reserved_name, paths_in_history
from treesnap.core.store.writer import Added, retry_overtaken
from treesnap.core.worktree.directory import absent_paths
from treesnap.core.worktree.scan.ignore import given

if TYPE_CHECKING:
    from treesnap.core.ops.checkpoint_locks import CheckpointLock

_NO_STATS = CreateStats(*[0] * len(CreateStats._fields))
_NAME_SHOWN_MAX = 80
"""Characters of a name that is refused, which may be very long."""
_NOTHING: dict[str, Any] = {
    "root": Entry(b"", EntryKind.DIRECTORY, 0, 0, 0, 0, 0, bytes(32), None),
    "links": None,
    "root_path": b"/",
    "created_at_ns": 0,
    "totals": Totals(),
}
"""What a record says of an empty root."""


@checked_record
class CreateOptions(NamedTuple):
    """How to capture, where it differs from the usual."""

    exclude: Iterable[str] = ()
    """Patterns in gitignore syntax that are left out, beside those of ignore files."""
    allow_absent: bool = False
    """Whether a path may be captured as absent that no snapshot of the root holds either."""
    skip_unchanged: bool = False
    """Whether nothing is published when nothing changed since the newest snapshot."""
    force: bool = False
    """Whether a dangerous root may be captured, such as ``/`` or the home directory."""
    max_size_bytes: int | None = None
    """What the store may take; None is what ``Handle.config`` says."""
    validate: str | None = None
    """A line for ``sh`` that runs in the root first; if it fails, nothing is captured."""


Settle = Callable[[Session, CaptureRequest], Snapshot | CaptureRequest]
"""Asked under the root's lock, before anything is read: what to publish after all, or the
snapshot that is there already and makes another one needless."""
Note = Callable[[Session, CreateResult], None]
"""Told under the root's lock what was published, or is there already."""


def with_options(request: CaptureRequest, options: CreateOptions) -> CaptureRequest:
    """Returns a request with a caller's options."""
    return request._replace(
        exclude=tuple(options.exclude),
        allow_absent=options.allow_absent,
        skip_unchanged=options.skip_unchanged,
        force=options.force,
        max_size_bytes=options.max_size_bytes,
        validate=options.validate,
    )


def create(
    context: Context,
    request: CaptureRequest,
    checkpoint_lock: CheckpointLock | None = None,
    settle: Settle | None = None,
    note: Note | None = None,
) -> CreateResult:
    """Captures and publishes; see :meth:`treesnap.Handle.create`.

    check what is asked for
    run the line that validates    without a lock: it may take minutes
    open the store, lock the root  again with more room, if there was too little
    settle                         what is to be published after all
    capture, publish               again, if garbage collections overtook it
    note                           what the caller keeps of it
    hold the snapshot              if a failed step is to go back to it
    maintain the store

    With a lock the snapshot is held, unless another checkpoint may go back over the same paths.
    """
    request = _checked(context, request)
    if request.validate is not None:
        _validate(context, request.validate)
    if checkpoint_lock is not None:  # before room is made in the store, which would not help
        refuse_full_root(context)
    # Tried again alone: what several processes stored twice may be what found no room.
    shared = iter([True])

    def create_once() -> CreateResult:
        is_shared = next(shared, False)
        with opened(context, "take a snapshot", create=True, recover=False) as session:
            session.root.register()
            asked = with_settings(session, request)
            with locked_root(session, "create"):
                session.root.note_identity()
                asked = _with_logs(context, asked)
                if checkpoint_lock is not None:
                    refuse_overlap(session, asked.scope)
                settled = settle(session, asked) if settle is not None else asked
                if isinstance(settled, Snapshot):
                    return CreateResult(
                        settled, unchanged=True, skipped=(), absent=(), stats=_NO_STATS
                    )
                if settled.name is not None:
                    check_name(session, settled.name, settled.replaces)
                result = _captured(session, settled, is_shared=is_shared)
                if note is not None:
                    note(session, result)
                if checkpoint_lock is not None:
                    checkpoint_lock.take(session, result.snapshot.id, settled.scope)
                    checkpoint_lock.require_way_back(session)
                elif settled.kind == SnapshotKind.MANUAL and settled.scope is None:
                    session.root.forget_dead_holds()  # a person keeps what such a step left
                return result

    result = with_room(context, create_once)
    if not result.unchanged:
        maintain(context, result.snapshot.sequence)
    return result


def _checked(context: Context, request: CaptureRequest) -> CaptureRequest:
    """Returns a request whose paths do not nest; raises what is wrong with it.

    Looks before a store or a root is made.
    """
    given(request.exclude)  # refused before anything is looked at
    scope = tuple(without_nested(list(request.scope))) if request.scope else None
    if scope == (b"",):
        scope = None
    check_words(request)
    check_root(context, force=request.force)
    _refuse_links(context, scope or ())
    if request.scope and not request.allow_absent:
        _refuse_unknown(context, request.scope)
    return request._replace(scope=scope)


def _with_logs(context: Context, request: CaptureRequest) -> CaptureRequest:
    """Returns a request of paths with the logs of databases among them, as they are now."""
    if not request.scope:
        return request
    paths = with_live_logs(context.fs, context.root, request.scope)
    return request._replace(scope=without_nested(list(paths)))


def _validate(context: Context, line: str) -> None:
    """Raises Refused if a line for the shell fails, and InvalidArgument for an empty one.

    No lock is held meanwhile: it may take minutes, and be a command of ours.
    """
    from treesnap.core.ops.processes import check_line  # subprocess takes time to import

    if "\0" in line:
        raise InvalidArgument("The command that validates holds a NUL character")
    if not line.strip():
        raise InvalidArgument("The command that validates is empty, so it would always succeed")
    exit_code, last_line = check_line(context, line)
    if exit_code != 0:
        said = f": {last_line}" if last_line else ""
        raise Refused(
            f"The command {quoted(line)} {ending_text(exit_code)}{said}; nothing was captured",
            code=ErrorCode.VALIDATION_FAILED,
        )


def _refuse_links(context: Context, paths: tuple[bytes, ...]) -> None:
    """Raises InvalidArgument for a path that leads through a link: what it names lies elsewhere.

    As far as the tree is concerned there is nothing at such a path.
    """
    for above in sorted(ancestors(paths) - {ROOT}):
        where = os.path.join(os.fsencode(context.root), above)
        with suppress(OSError):
            if stat_module.S_ISLNK(context.fs.lstat(where).st_mode):
                raise InvalidArgument(
                    f"The path leads through the symbolic link {quoted(above)}", path=above
                )


def _refuse_unknown(context: Context, paths: tuple[bytes, ...]) -> None:
    """Raises NotFound for a path that exists neither now nor in a snapshot of the root.

    A snapshot of nothing but such paths looks like a success and protects nothing. Looks
    before a store or a root is made; costs a few calls a path, and the history where one is
    absent.
    """
    with translating_os_errors("look at the paths"):
        absent = absent_paths(context.fs, context.root, paths)
    if not absent:
        return
    try:
        with opened(context, "look at the paths") as session:  # an interrupted restore ends first
            absent = absent_paths(context.fs, context.root, absent)
            unknown = sorted(set(absent) - paths_in_history(session, absent))
    except StoreMissing:
        unknown = sorted(absent)
    if unknown:
        raise NotFound(
            f"{quoted(unknown[0])} exists neither now nor in a snapshot of this root",
            code=ErrorCode.UNKNOWN_PATH,
            path=unknown[0],
        )


def _captured(session: Session, request: CaptureRequest, *, is_shared: bool) -> CreateResult:
    """Captures and publishes; once more where garbage collections overtook that."""

    def attempt(earlier: Mapping[bytes, Added]) -> CreateResult:
        capture = Capture(session, request, earlier=earlier, is_shared=is_shared)
        try:
            with translating_os_errors("take a snapshot"), capture:
                return _publish(session, capture, request)
        except StorageFull as error:
            error.needed_bytes = capture.writer.needed_bytes
            raise

    return retry_overtaken("the capture", attempt)


def check_words(request: CaptureRequest) -> None:
    """Raises InvalidArgument for what a record cannot hold, or a reference cannot name."""
    words = {"label": request.label, "name": request.name, "session": request.session}
    tags = [*request.tags.keys(), *request.tags.values()]
    for what, word in [*words.items(), *(("tag", tag) for tag in tags)]:
        if word is not None and not isinstance(word, str):
            raise InvalidArgument(f"The {what} is {word!r}, and has to be text")
        try:
            (word or "").encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"The {what} '{printable(word or '')}' is not UTF-8") from None
    for what, name in [("name", request.name), ("session", request.session)]:
        problem = problem_of_name(name) if name is not None else None
        if name is not None and problem is not None:
            raise InvalidArgument(f"The {what} '{printable(name[:_NAME_SHOWN_MAX])}' {problem}")
    if request.session == "":
        raise InvalidArgument("The session is empty")
    if request.name is not None and is_reserved_name(request.name):
        raise InvalidArgument(f"{request.name!r} cannot be a name: it means something else")
    if request.step is not None and not 0 <= request.step <= STEP_MAX:
        raise InvalidArgument(f"A step is a number from 0 to {STEP_MAX}")
    # Before the walk, although publishing asks again: it may take minutes.
    SNAPSHOT.payload(SnapshotRecord(**_NOTHING, **metadata_of(request)))


def check_name(session: Session, name: str, replaces: SnapshotId | None = None) -> None:
    """Raises Refused if a snapshot of the root other than ``replaces`` has the name.

    The caller holds the root's lock.
    """
    namesake = find_named(session, name, update=True)
    if namesake is not None and namesake.id != replaces:
        raise Refused(
            f"A snapshot of this root is named {name!r} already", code=ErrorCode.NAME_TAKEN
        )


def metadata_of(request: CaptureRequest) -> dict[str, Any]:
    """Returns the fields of a snapshot's record that a request decides."""
    return {
        "kind": request.kind,
        "label": request.label,
        "name": request.name,
        "tags": request.tags,
        "session": request.session,
        "step": request.step,
    }


def _publish(session: Session, capture: Capture, request: CaptureRequest) -> CreateResult:
    record: SnapshotRecord = capture.record(**metadata_of(request))
    if request.complete_only and record.totals.incomplete:
        raise _unreadable(capture)
    if request.skip_unchanged:
        newest = latest(session, record.scope)
        if newest is not None and newest.root_hash == state_hash(record):
            return _result(capture, newest, unchanged=True)
    snapshot = capture.publish(record)
    _warn_of_databases(session, capture, record.unstable)
    return _result(capture, snapshot, unchanged=False)


def _warn_of_databases(session: Session, capture: Capture, unstable: Iterable[bytes]) -> None:
    """Warns of databases of SQLite that were written to while they were captured."""
    state = capture.state
    written = [
        path
        for path in unstable
        if any(state.entry(path + suffix) is not None for suffix in DATABASE_LOG_SUFFIXES)
    ]
    if written:
        session.monitor.warn(
            WarningCode.DATABASE_WRITTEN,
            "Written to while it was captured, so this copy of a database may not open: "
            f"{first_few(written, quoted)}",
        )


def _unreadable(capture: Capture) -> Refused:
    skipped = capture.result.skipped
    paths = [item.path for item in skipped if item.reason == SkipReason.UNREADABLE]
    return Refused(
        f"{quoted(paths[0])} cannot be read",
        code=ErrorCode.UNREADABLE,
        path=paths[0],
    )


def _result(capture: Capture, snapshot: Snapshot, *, unchanged: bool) -> CreateResult:
    result = capture.result
    added = 0 if unchanged else capture.writer.added_bytes
    stats = CreateStats(
        files=result.totals.files,
        directories=result.totals.directories,
        others=result.totals.others,
        size_bytes=result.totals.size_bytes,
        files_read=result.files_read,
        read_bytes=result.read_bytes,
        objects_added=0 if unchanged else capture.writer.objects_added,
        added_bytes=added,
    )
    trees = TreeReader(capture.writer.get)
    left_out = {item.path for item in result.skipped}
    return CreateResult(
        snapshot=snapshot,
        unchanged=unchanged,
        skipped=result.skipped,
        absent=tuple(
            path
            for path in without_logs(snapshot.record.scope or ())
            if trees.find(snapshot.record.root, path) is None and left_out.isdisjoint(parents(path))
        ),
        stats=stats,
    )
