"""MAKER's checkpoint manager: takes an operation block, returns a result block.

A checkpoint is a snapshot of the listed files: its name is the checkpoint id, its session the
task, its step the step. Every command that reads snapshots reads checkpoints, and ``undo``
reverts a restore. A request that fails has changed nothing.

On request a metadata file is written to the working directory, for programs that look for it;
the store knows everything that is in it. A file that names another snapshot, or none, belongs
to another program and is left alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container
from contextlib import suppress
from typing import TYPE_CHECKING

from treesnap.compat.machinery import flag_setting
from treesnap.compat.maker_block import (
    Cleanup,
    CleanupMode,
    Create,
    Restore,
    is_checkpoint_id,
    parse,
)
from treesnap.compat.maker_result import (
    Cleaned,
    Created,
    FileAction,
    FileState,
    Restored,
    Result,
    failed,
)
from treesnap.compat.sidecar_files import (
    SidecarPlace,
    read_sidecar,
    remove_sidecar,
    write_sidecar,
)
from treesnap.core.diff.trees import is_time_alone
from treesnap.core.fs.os_errors import error_text
from treesnap.core.handle import Handle
from treesnap.core.handle import open as open_root
from treesnap.core.model import treepath
from treesnap.core.model.arguments import checked
from treesnap.core.model.entries import ChangeKind, Skipped
from treesnap.core.model.errors import (
    Conflict,
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    OperationFailed,
    Refused,
    StoreMissing,
    TreesnapError,
)
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import fact_tags, facts_of
from treesnap.core.model.snapshots import Snapshot, SnapshotId, utc_time
from treesnap.core.ops.context import absolute
from treesnap.core.ops.create import create
from treesnap.core.ops.databases import without_logs
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import restore

if TYPE_CHECKING:
    from treesnap.core.model.events import Monitor
    from treesnap.core.model.results import RestoreResult
    from treesnap.core.model.treepath import PathLike

SOURCE_TOOL = "maker"

_METADATA = SidecarPlace(".maker-checkpoints/metadata/*.json")


@checked
def carry_out(
    block: bytes | str,
    *,
    store: PathLike | None = None,
    root: PathLike | None = None,
    metadata: bool | None = None,
    wait_s: float = 30.0,
    monitor: Monitor | None = None,
) -> Result:
    """Carries out a block and returns the result; durable after return.

    ``root``, if given, is the only working directory that is accepted, and the one of a block
    that names none. ``metadata`` also writes ``.maker-checkpoints/metadata/ID.json``; None
    follows the setting ``maker.metadata``. A repeated CREATE succeeds while the files are
    unchanged since the first. Errors of the block, the tree or the store are not raised but
    returned as :class:`Failed`, with the exception in ``error``.
    """
    data = block.encode("utf-8", "surrogateescape") if isinstance(block, str) else block
    try:
        given = absolute(os.fsdecode(root)) if root is not None else None
        request = parse(data, given)
        where = request.working_directory
        if given is not None and os.path.realpath(given) != os.path.realpath(where):
            raise InvalidArgument(f"The block is for {where!r}, but the command is for {given!r}")
        handle = open_root(where, store, wait_s=wait_s, monitor=monitor)
        match request:
            case Create():
                with_metadata = (
                    flag_setting(handle, "maker.metadata") if metadata is None else metadata
                )
                return _create(handle, request, with_metadata=with_metadata)
            case Restore():
                return _restore(handle, request)
            case Cleanup():
                return _cleanup(handle, request)
    except (TreesnapError, OSError) as error:
        return failed(data, error)


def _create(handle: Handle, request: Create, *, with_metadata: bool) -> Created:
    if with_metadata:
        _refuse_foreign_metadata(handle, request.checkpoint_id)
    earlier: Snapshot | None = None
    try:
        made = create(handle.context, _create_request(request))
    except Refused as error:
        if error.code != ErrorCode.NAME_TAKEN:
            raise
        earlier = _repeated(handle, request, error)
        if set(_files_of(earlier)) == set(request.files):
            return _created(handle, request, earlier, with_metadata=with_metadata)
        made = create(handle.context, _create_request(request, replaces=earlier.id))
    try:
        _refuse_missed(_paths(request.files), made.skipped)
        created = _created(handle, request, made.snapshot, with_metadata=with_metadata)
    except BaseException:
        handle.delete(made.id)
        raise
    if earlier is not None:
        _remove_replaced(handle, earlier)
    return created


def _remove_replaced(handle: Handle, replaced: Snapshot) -> None:
    """Removes the checkpoint that another one has replaced, as far as that is possible.

    The newer one has the name, so nothing depends on it: one that is pinned or held stays, and
    so it does after a kill, until a CLEANUP.
    """
    with suppress(TreesnapError, OSError):
        _remove_metadata(handle, replaced.name or "", replaced.id)
        handle.delete(replaced.id)


def _create_request(request: Create, replaces: SnapshotId | None = None) -> CaptureRequest:
    is_as_given = request.files == _texts(_without_nested(request.files))
    of_step = f": {request.step_name}" if request.step_name else ""
    return CaptureRequest(
        scope=tuple(_paths(request.files)) or None,
        name=request.checkpoint_id,
        label=f"before step {request.step_number}{of_step}",
        session=request.task_id,
        step=request.step_number,
        tags=fact_tags(
            step_name=request.step_name or None,
            source_tool=SOURCE_TOOL,
            files=None if is_as_given else json.dumps(request.files),
        ),
        complete_only=True,
        replaces=replaces,
        allow_absent=True,  # a step may create files that it lists
    )


def _created(
    handle: Handle, request: Create, snapshot: Snapshot, *, with_metadata: bool
) -> Created:
    held = _held(handle, snapshot)
    created = Created(
        checkpoint_id=request.checkpoint_id,
        created_at=_time_text(snapshot.record.created_at_ns),
        files=tuple(
            FileState(path, "captured" if os.fsencode(path) in held else "did_not_exist")
            for path in request.files
        ),
        unclear=request.unclear,
        metadata_location=(
            _metadata_location(request.checkpoint_id)
            if with_metadata
            else f"snapshot {snapshot.id[:12]} of the store {handle.store_path}"
        ),
        snapshot_id=snapshot.id,
    )
    if with_metadata:
        _write_metadata(handle, request, created)
    return created


def _repeated(handle: Handle, request: Create, taken: Refused) -> Snapshot:
    """Returns the existing checkpoint that a CREATE asks for again, or raises ``taken``.

    The sender may have lost the first answer, or tries its step again with more files. The
    request must list all files of the checkpoint, of which nothing but times may have changed:
    so it holds what the checkpoint holds.
    """
    earlier = _named(handle, request.checkpoint_id)
    if earlier is None:
        raise taken
    is_same_step = (earlier.record.session, earlier.record.step) == (
        request.task_id,
        request.step_number,
    )
    listed = set(_files_of(earlier))
    if not is_same_step or not listed <= set(request.files):
        raise taken
    if not all(map(is_time_alone, handle.diff(earlier.id))):
        raise taken
    return earlier


def _named(handle: Handle, checkpoint_id: str) -> Snapshot | None:
    try:
        return next((item for item in _checkpoints(handle) if item.name == checkpoint_id), None)
    except StoreMissing:
        return None


def _ids_named(handle: Handle, checkpoint_id: str) -> set[str]:
    """Returns the snapshots of a checkpoint: two, where its replacement was interrupted."""
    try:
        return {item.id for item in _checkpoints(handle) if item.name == checkpoint_id}
    except StoreMissing:
        return set()


def _refuse_missed(paths: list[bytes], skipped: tuple[Skipped, ...]) -> None:
    """Raises OperationFailed for a listed file that a restore could not bring back."""
    needed = {*paths, *(parent for path in paths for parent in treepath.parents(path))}
    for item in skipped:
        if item.path in needed:
            raise OperationFailed(
                f"{os.fsdecode(item.path)!r} cannot be captured: {item.reason.word}", path=item.path
            )


def _restore(handle: Handle, request: Restore) -> Restored:
    snapshot = _named(handle, request.checkpoint_id)
    if snapshot is None:
        raise NotFound(f"{handle.root!r} has no checkpoint {request.checkpoint_id!r}")
    files, held = _files_of(snapshot), _held(handle, snapshot)
    absent = [path for path in _paths(files) if path not in held]
    try:
        _refuse_left_alone(handle, handle.restore(snapshot.id, dry_run=True), absent)
        result = restore(handle.context, RestoreRequest(ref=snapshot.id, reason="snap maker"))
    except InvalidArgument as error:  # the paths were valid at CREATE; now a link is on one
        raise Conflict(error.message, path=error.path) from error
    changed = {change.path for change in result.changes}
    changed |= {parent for path in changed for parent in treepath.parents(path)}
    gone = {change.path for change in result.changes if change.change == ChangeKind.REMOVED}

    def action(path: bytes) -> str:
        return "deleted" if path in gone else "restored" if path in changed else "unchanged"

    actions = tuple(FileAction(path, action(os.fsencode(path))) for path in files)
    return Restored(
        checkpoint_id=request.checkpoint_id,
        restored_at=_time_text(handle.context.clock_ns()),
        files_restored=sum(1 for item in actions if item.action != "unchanged"),
        actions=actions,
        step_number=snapshot.record.step or 0,
        snapshot_id=snapshot.id,
        safety_id=result.safety_id,
    )


def _refuse_left_alone(handle: Handle, plan: RestoreResult, absent: list[bytes]) -> None:
    """Raises Conflict for a listed file that a restore would leave alone."""
    gone = {change.path for change in plan.changes if change.change == ChangeKind.REMOVED}
    left = [item.path for item in plan.untouched]
    left += [
        path
        for path in absent
        if path not in gone and os.path.lexists(os.path.join(os.fsencode(handle.root), path))
    ]
    if left:
        raise Conflict(
            f"{os.fsdecode(left[0])!r} would stay as it is: it is excluded, unreadable, "
            "a socket, or on another file system",
            path=left[0],
        )


def _cleanup(handle: Handle, request: Cleanup) -> Cleaned:
    ours = [item for item in _checkpoints(handle) if item.record.session == request.task_id]
    match request.mode:
        case CleanupMode.RETAIN_LAST:
            chosen = ours[request.limit :]
        case CleanupMode.CLEANUP_ALL:
            chosen = ours
        case CleanupMode.CLEANUP_BEFORE_STEP:
            chosen = [item for item in ours if (item.record.step or 0) < request.limit]
    chosen = [item for item in chosen if not item.pinned]
    for item in chosen:
        _remove_metadata(handle, item.name or "", item.id)
    freed_bytes, postponed = 0, None
    if chosen:
        handle.delete(*(item.id for item in chosen))
        try:
            collected = handle.gc()
            freed_bytes, postponed = collected.freed_bytes, collected.postponed
        except (TreesnapError, OSError) as error:  # they are deleted; the next collection frees it
            postponed = error_text(error)
    gone = {item.id for item in chosen}
    return Cleaned(
        mode=request.mode,
        task_id=request.task_id,
        removed=tuple(item.name or "" for item in reversed(chosen)),
        retained=tuple(item.name or "" for item in reversed(ours) if item.id not in gone),
        freed_bytes=freed_bytes,
        postponed=postponed,
    )


def _metadata_location(checkpoint_id: str) -> str:
    """Returns the path of a checkpoint's metadata file, relative to the working directory."""
    return _METADATA.path(checkpoint_id).decode()


def _refuse_foreign_metadata(handle: Handle, checkpoint_id: str) -> None:
    """Raises Refused if the metadata file exists and names no checkpoint of this id."""
    location = _metadata_location(checkpoint_id)
    with suppress(FileNotFoundError, NotADirectoryError):
        handle.context.fs.lstat(os.path.join(handle.root, location))
        sidecar = read_sidecar(handle.context, location.encode())
        if not _names_one_of(sidecar, _ids_named(handle, checkpoint_id)):
            raise Refused(
                f"The metadata file {location!r} already exists",
                code=ErrorCode.TARGET_NOT_EMPTY,
                path=location,
            )


def _write_metadata(handle: Handle, request: Create, created: Created) -> None:
    """Writes the metadata file, all or nothing; durable after return. Follows no link.

    That of a checkpoint that this one replaces is there until then.
    """
    ours = _ids_named(handle, created.checkpoint_id)
    content = {
        "checkpoint_id": created.checkpoint_id,
        "created_at": created.created_at,
        "task_id": request.task_id,
        "step_number": request.step_number,
        "step_name": request.step_name,
        "strategy": created.strategy,
        "files": [
            {"path": path, "exists_at_checkpoint": state == "captured", "stash_ref": None}
            for path, state in created.files
        ],
        "git_stash_index": None,
        "snapshot_id": created.snapshot_id,
    }
    data = (json.dumps(content, indent=2) + "\n").encode()
    write_sidecar(
        handle.context,
        _METADATA,
        created.checkpoint_id,
        lambda: data,
        is_sidecar=lambda found: _names_one_of(found, ours),
    )


def _remove_metadata(handle: Handle, checkpoint_id: str, snapshot_id: str) -> None:
    """Removes the metadata file if it names the snapshot. Follows no link; raises OSError."""
    location = _metadata_location(checkpoint_id).encode()
    if _names_one_of(read_sidecar(handle.context, location), {snapshot_id}):
        remove_sidecar(handle.context, location)


def _names_one_of(content: bytes | None, snapshot_ids: Container[str]) -> bool:
    try:
        return content is not None and json.loads(content)["snapshot_id"] in snapshot_ids
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


def _checkpoints(handle: Handle) -> list[Snapshot]:
    """Returns MAKER's checkpoints, newest first; raises NotFound for a missing directory.

    Those with an id that no block has are a stranger's: it would lead to other files.
    """
    snapshots = [item for item in handle.list() if facts_of(item).get("source_tool") == SOURCE_TOOL]
    if not snapshots and not handle.context.has_root():
        raise NotFound(
            f"The directory {handle.root!r} does not exist",
            code=ErrorCode.ROOT_NOT_FOUND,
            path=handle.root,
        )
    return [item for item in snapshots if is_checkpoint_id(item.name or "")]


def _files_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Returns the files that a CREATE listed, in its order.

    Raises Corrupt for a damaged list: its paths must be those that were captured, because a
    restore looks at them in the working directory.
    """
    scope = without_logs(snapshot.record.scope or ())
    listed = facts_of(snapshot).get("files")
    if listed is None:
        return _texts(scope)
    with suppress(ValueError, TypeError, RecursionError):
        files = tuple(json.loads(listed))
        if _without_nested(files) == scope:
            return files
    raise Corrupt(f"The list of files of checkpoint {snapshot.name!r} is damaged")


def _held(handle: Handle, snapshot: Snapshot) -> set[bytes]:
    return {entry.name for entry in handle.ls(snapshot.id, recursive=True)}


def _without_nested(files: tuple[str, ...]) -> tuple[bytes, ...]:
    """Returns the paths that a capture of some files adds the logs of databases to."""
    return without_logs(treepath.without_nested(_paths(files)))


def _paths(files: tuple[str, ...]) -> list[bytes]:
    return [os.fsencode(path) for path in files]


def _texts(paths: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(os.fsdecode(path) for path in paths)


def _time_text(time_ns: int) -> str:
    return utc_time(time_ns).strftime("%Y-%m-%dT%H:%M:%SZ")
