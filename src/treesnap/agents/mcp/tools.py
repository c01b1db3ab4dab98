"""What a model can do with the history of some roots: the tools of ``snap mcp``.

A tool is a method of :class:`Tools`: its name, its parameters and its docstring are what the model
gets to see. It knows nothing of the protocol (mcp_server), and its answer is a model of
mcp_answers.

What holds:

- No tool deletes history.
- A restore takes two calls. The token that the plan returns is good for one, and only while the
  root is as it was when the plan was made.
- A request that is cancelled ends while the tree is read or files are prepared, and leaves the
  root as it was; from the commit point of a restore on, it completes.
- Answers are bounded, and say how much they leave out.

Paths are those of a root, and of its snapshots. No tool reads a live file, and nothing outside of
the roots has a name here: a reference to the history of any other root of the store, a fork of one
of these too, is answered like one to nothing. Patches are made by the command line.
"""

from __future__ import annotations

import base64
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from typing import Annotated, Any

import anyio
from pydantic import Field

from treesnap.agents.event import Event
from treesnap.agents.hook import respond
from treesnap.agents.hosts.base import Host, as_name
from treesnap.agents.hosts.table import host_named
from treesnap.agents.mcp.answers import (
    ChangePage,
    CheckpointAnswer,
    FileAnswer,
    FoundPage,
    HookReply,
    PlanAnswer,
    RestoreAnswer,
    SnapshotFields,
    SnapshotPage,
    escaped,
)
from treesnap.agents.sessions import note_gap
from treesnap.core.handle import Handle
from treesnap.core.model.entries import Change, ObjectKind
from treesnap.core.model.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    OperationFailed,
    Refused,
    StorageFull,
    WarningCode,
    quoted,
)
from treesnap.core.model.events import NullMonitor, Phase
from treesnap.core.model.ids import object_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import SnapshotId, SnapshotKind
from treesnap.core.ops.history.steps import EventPhase
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import restore

Patch = Callable[[Handle, str, str | None, Sequence[Change]], Iterator[bytes]]
"""Yields changes as unified diffs; the new side is the live tree if its id is None."""

PLANS_MAX = 64
"""Plans that wait for restore_apply; the oldest ones are forgotten."""
RESOURCE_SIZE_MAX = 1 << 20
_PART_SIZE = 64 << 10
_OFFSET_MAX = 1 << 30
"""Where the last part of a file may begin, because all before it has to be read."""
_PAGE_MAX = 1000
_PATHS_MAX = 1000
_TEXT_LENGTH_MAX = 16 << 10
_CANCELLABLE = (Phase.SCAN, Phase.STAGE)

Text = Annotated[str, Field(max_length=_TEXT_LENGTH_MAX)]
Ref = Annotated[Text, Field(description="An id or its beginning, a name, 'latest' or 'latest~N'.")]
PathText = Annotated[Text, Field(description="Absolute, or relative to the root.")]
Paths = Annotated[
    list[Text] | None,
    Field(max_length=_PATHS_MAX, description="Only these; else the whole root."),
]
RootName = Annotated[Text, Field(description="A directory of this server; else its first.")]
Limit = Annotated[int, Field(ge=1, le=_PAGE_MAX)]
"""Items on a page."""
Offset = Annotated[int, Field(ge=0)]
"""Items before the page."""


_OF_STORE = {
    WarningCode.MAINTENANCE_FAILED: "The maintenance of the store failed",
    WarningCode.GARBAGE_KEPT: "No garbage was collected, because snapshots are damaged",
}
"""What is said of a warning that may name any root of the store."""


class CallMonitor(NullMonitor):
    """What one call has done so far; ends the work when the request is cancelled.

    Its methods are called in the thread of a tool.
    """

    def __init__(self) -> None:
        self.warnings: list[tuple[WarningCode, str]] = []
        self.phase: Phase | None = None
        self.done: int = 0
        """Files, of all phases until now."""
        self.reported = 0
        """How many of them the client knows of."""
        self.total: int | None = None
        """The same once the phase has ended, or None where that is not known."""

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Notes the phase."""
        self.phase = phase
        self.total = None if files is None else self.done + files
        self._end_if_cancelled()

    def advance(self, files: int, size_bytes: int) -> None:  # noqa: ARG002 - the protocol's signature
        """Counts files."""
        self.done += files
        self._end_if_cancelled()

    def warn(self, code: WarningCode, message: str) -> None:
        """Keeps the warning."""
        self.warnings.append((code, _OF_STORE.get(code, message)))

    def _end_if_cancelled(self) -> None:
        if self.phase in _CANCELLABLE:
            anyio.from_thread.check_cancelled()


MONITOR: ContextVar[CallMonitor] = ContextVar("MONITOR")
"""The monitor of the call that runs; threads of tools inherit it."""


class _Planned(NamedTuple):
    """A restore that may be carried out."""

    root: str
    snapshot_id: SnapshotId
    paths: tuple[bytes, ...]
    state: str
    """Identity of the state that it replaces."""


class Tools:
    """The tools of one server, and the resource. Safe to call from threads."""

    def __init__(
        self, handles: Iterable[Handle], patch: Patch, *, allow_restore: bool, answers_hooks: bool
    ) -> None:
        self._answers_hooks = answers_hooks
        named = {handle.root: handle for handle in handles}
        reach = frozenset(named)
        self._handles = {
            root: Handle(handle.context._replace(reach=reach)) for root, handle in named.items()
        }
        self._patch = patch
        self._allow_restore = allow_restore
        self._plans: dict[str, _Planned] = {}
        self._watchers = ExitStack()
        self._watched: set[str] = set()
        self._lock = threading.Lock()

    @property
    def roots(self) -> list[str]:
        """The directories of the server, in the order that they were given."""
        return list(self._handles)

    def close(self) -> None:
        """Ends the watchers."""
        self._watchers.close()

    def checkpoint(self, *, label: Text = "", root: RootName = "") -> CheckpointAnswer:
        """Take a snapshot of the whole directory, to go back to. Cheap if little has changed."""
        made = self._watching(root).create(label=label or None, kind=SnapshotKind.AUTOMATIC)
        return CheckpointAnswer.of_result(made)

    def hook(
        self,
        *,
        session_id: str,
        tool_use_id: str = "",
        tool_name: str = "",
        command: str = "",
        host: str = "claude",
        strict: bool = False,
        root: str = "",
    ) -> HookReply:
        """For hooks of the host alone. Does what snap hook does before a tool."""
        words = [
            "" if word.startswith("${") else word  # the host had nothing to put there
            for word in (session_id, tool_use_id, tool_name, command)
        ]
        reply = self._before_tool(host_named(host), self._handle(root).root, words, strict=strict)
        MONITOR.get().warnings.clear()  # a hook may answer nothing else
        return HookReply(**reply)

    def list_snapshots(
        self, *, session: Text = "", limit: Limit = 20, offset: Offset = 0, root: RootName = ""
    ) -> SnapshotPage:
        """List snapshots, newest first; only those of a session if it is given."""
        snapshots = self._handle(root).list(session=session or None)
        return SnapshotPage.cut(
            snapshots, limit, offset, damaged=len(snapshots.damaged) + len(snapshots.newer)
        )

    def show(self, *, ref: Ref, root: RootName = "") -> SnapshotFields:
        """Show one snapshot."""
        return SnapshotFields.model_validate(self._handle(root).show(ref))

    def diff(
        self,
        *,
        a: Ref = "latest",
        b: Annotated[Text, Field(description="The live directory if empty.")] = "",
        paths: Paths = None,
        patch: Annotated[bool, Field(description="Also show the text that changed.")] = False,
        limit: Limit = 100,
        offset: Offset = 0,
        root: RootName = "",
    ) -> ChangePage:
        """List what changed from snapshot a to b; without arguments, since the latest one."""
        handle = self._handle(root)
        absolute_paths = self._paths(handle, paths)
        old_id = handle.resolve(a, paths=absolute_paths).id
        new_id = handle.resolve(b, paths=absolute_paths).id if b else None
        changes = handle.diff(old_id, new_id, absolute_paths)
        page = ChangePage.cut(changes, limit, offset, old_id=old_id, new_id=new_id)
        if patch:
            pieces = self._patch(handle, old_id, new_id, changes[offset : offset + limit])
            text, page.patch_is_cut = _beginning(pieces)
            page.patch = escaped(text)
        return page

    def read(
        self,
        *,
        path: PathText,
        ref: Ref = "latest",
        offset: Annotated[int, Field(ge=0, le=_OFFSET_MAX, description="In bytes.")] = 0,
        limit: Annotated[int, Field(ge=1, le=_PART_SIZE, description="In bytes.")] = _PART_SIZE,
        root: RootName = "",
    ) -> FileAnswer:
        """Read a file of a snapshot, or a part of it."""
        handle = self._handle(root)
        absolute_path = self._path(handle, path)
        snapshot_id = handle.resolve(ref, paths=[absolute_path]).id
        size_bytes, data = _part(handle, snapshot_id, absolute_path, offset, limit)
        content, encoding = _as_text(data, is_all=offset + len(data) >= size_bytes)
        taken = len(content.encode()) if encoding == "utf-8" else len(data)
        end = offset + taken
        return FileAnswer.of(
            id=snapshot_id,
            path=handle.tree_path(absolute_path),
            size_bytes=size_bytes,
            encoding=encoding,
            content=content,
            is_escaped=(encoding == "utf-8" and escaped(content) != content) or None,
            next_offset=end if end < size_bytes else None,
        )

    def find(
        self,
        *,
        pattern: Annotated[
            Text, Field(description="A glob, for names; for whole paths if it has a '/'.")
        ] = "",
        path: PathText = ".",
        ref: Annotated[Text, Field(description="Only in this snapshot.")] = "",
        limit: Limit = 100,
        offset: Offset = 0,
        root: RootName = "",
    ) -> FoundPage:
        """Find paths by a pattern, also those that are gone now, below a directory.

        Without a pattern it lists the directory in a snapshot, by default the latest one.
        """
        _as_bytes(pattern)
        handle = self._handle(root)
        above = self._path(handle, path)
        if not pattern:
            snapshot_id = handle.resolve(ref or "latest", paths=[above]).id
            return FoundPage.cut(handle.ls(snapshot_id, above), limit, offset, id=snapshot_id)
        beginning = handle.tree_path(above)
        matches = [
            match
            for match in handle.find(pattern, ref=ref or None)
            if not beginning or match.path == beginning or match.path.startswith(beginning + b"/")
        ]
        return FoundPage.cut(matches, limit, offset)

    def restore_plan(self, *, ref: Ref, paths: Paths = None, root: RootName = "") -> PlanAnswer:
        """Show what it would change to make the directory, or some paths, as in a snapshot."""
        handle = self._handle(root)
        scope = handle.tree_paths(self._paths(handle, paths))
        states: list[str] = []
        request = RestoreRequest(ref, scope, dry_run=True, approve=states.append)
        result = restore(handle.context, request)
        snapshot_id = result.snapshot.id
        if self._allow_restore:
            planned = _Planned(handle.root, snapshot_id, scope, states[0])
            next_step = "Show the user what it would change, then call restore_apply."
            return PlanAnswer.of_result(result, token=self._remember(planned), next_step=next_step)
        command = ["snap", "-C", handle.root, "--store", handle.store_path]
        operands = map(_as_operand, paths or ())
        line = shlex.join([*command, "restore", snapshot_id[:12], *operands])
        return PlanAnswer.of_result(
            result,
            command=line if line.isprintable() else None,
            next_step="Restoring is off in this server. Show the user the command.",
        )

    def restore_apply(
        self, *, token: Annotated[Text, Field(description="From restore_plan.")]
    ) -> RestoreAnswer:
        """Carry out a plan, all or nothing. Refused if the directory has changed since.

        To take it back, plan the same paths with safety_id.
        """
        planned = self._plans.pop(token, None)
        if planned is None:
            raise InvalidArgument(f"No plan waits for the token {quoted(token[:80])}")

        def approve(state: str) -> None:
            if state != planned.state:
                raise Conflict("The directory has changed since the restore was planned")

        request = RestoreRequest(planned.snapshot_id, planned.paths, approve=approve)
        result = restore(self._watching(planned.root).context, request)
        return RestoreAnswer.of_result(result)

    def file_of_snapshot(self, ref: str, path: str) -> str | bytes:
        """Returns a file of a snapshot: text as text, anything else as bytes, exactly."""
        handle = self._holder_of(ref)
        absolute_path = self._path(handle, path)
        size_bytes, data = _part(handle, handle.show(ref).id, absolute_path, 0, RESOURCE_SIZE_MAX)
        if len(data) < size_bytes:
            raise InvalidArgument(
                f"{quoted(path)} has {size_bytes:,} bytes; a resource may have "
                f"{RESOURCE_SIZE_MAX:,}, and the tool 'read' reads parts"
            )
        text, encoding = _as_text(data, is_all=True)
        return text if encoding == "utf-8" and escaped(text) == text else data

    def _before_tool(
        self, host: Host, root: str, words: Sequence[str], *, strict: bool
    ) -> dict[str, Any]:
        """Does what ``snap hook`` does before a tool, and returns the reply of the hook.

        Only that: where hooks are on a model can call this as well, and must not type commands in
        place of the user, or say where a turn begins. A request that the host has given up leaves
        a gap.
        """
        session_id, tool_use_id, tool_name, command = words
        if not session_id:
            raise InvalidArgument("The hook names no session")
        event = Event(
            host=host.name,
            phase=EventPhase.PRE,
            root=root,
            session=as_name(session_id),
            key=as_name(tool_use_id),
            tool=tool_name or None,
            summary=command or None,
            is_read_only=host.is_read_only(tool_name),
        )
        if not self._answers_hooks:
            return {}
        context = self._watching(root).context
        try:
            reply = respond(event, host, context, is_strict=strict)
        except BaseException as error:
            reason = str(error) if isinstance(error, Exception) else "the host did not wait"
            note_gap(self._handles[root].context, event, reason)
            raise
        return host.reply_fields(event, reply)

    def _handle(self, root: str) -> Handle:
        """Returns the handle on a root by its name, with the monitor of the call."""
        named = os.path.normpath(root) if root else next(iter(self._handles))
        for handle in self._handles.values():
            if named in (handle.root, handle.context.given_root):
                return Handle(handle.context._replace(monitor=MONITOR.get()))
        roots = ", ".join(map(quoted, self._handles))
        raise InvalidArgument(f"{quoted(named)} is not a directory of this server: {roots}")

    def _watching(self, root: str) -> Handle:
        """Returns the handle on a root, watched from now on if it can be watched.

        So what follows looks at nothing but what changes. A server that is only asked about
        snapshots watches nothing.
        """
        handle = self._handle(root)
        with self._lock:
            if handle.root not in self._watched:
                plain = self._handles[handle.root]
                with suppress(NotFound, Refused, StorageFull, OperationFailed):
                    self._handles[handle.root] = self._watchers.enter_context(plain.watch())
                if os.path.isdir(handle.root):  # else it is tried again once it is back
                    self._watched.add(handle.root)
        return self._handle(root)

    def _holder_of(self, ref: str) -> Handle:
        """Returns the handle on the root that has a snapshot."""
        for root in self._handles:
            handle = self._handle(root)
            with suppress(NotFound):
                handle.show(ref)
                return handle
        return self._handle("")

    def _path(self, handle: Handle, path: str) -> str:
        """Returns an absolute path inside of a root; raises InvalidArgument for any other.

        Links are followed only where the path leads out of the root as it is written: a host
        may know the root by another name.
        """
        _as_bytes(path)
        written = os.path.normpath(os.path.join(handle.root, path))
        try:
            handle.tree_path(written)
        except InvalidArgument:
            above, name = os.path.split(written)
            real = os.path.join(os.path.realpath(above), name)
            with suppress(InvalidArgument):
                handle.tree_path(real)
                return real
            raise
        return written

    def _paths(self, handle: Handle, paths: Sequence[str] | None) -> list[str] | None:
        return None if paths is None else [self._path(handle, path) for path in paths]

    def _remember(self, planned: _Planned) -> str:
        """Returns the token of a plan: the hash of what it is about."""
        token = object_id(ObjectKind.STATE, repr(planned).encode()).hex()[:32]
        with self._lock:
            self._plans.pop(token, None)
            self._plans[token] = planned
            if len(self._plans) > PLANS_MAX:
                del self._plans[next(iter(self._plans))]
        return token


def _as_operand(path: str) -> str:
    """Returns a path as a command takes it, which may look like an option."""
    return f"./{path}" if path.startswith("-") else path


def _part(
    handle: Handle, snapshot_id: str, path: str, offset: int, limit: int
) -> tuple[int, bytes]:
    """Returns the size of a file of a snapshot, and some of its bytes; ends when cancelled."""
    pieces = handle.cat(snapshot_id, path)  # raises what is not a file
    (entry,) = handle.ls(snapshot_id, path)
    kept: list[bytes] = []
    position = 0
    for piece in pieces:
        anyio.from_thread.check_cancelled()
        kept.append(piece[max(0, offset - position) : max(0, offset + limit - position)])
        position += len(piece)
        if position >= offset + limit:
            break
    return entry.size, b"".join(kept)


def _as_text(data: bytes, *, is_all: bool) -> tuple[str, str]:
    """Returns bytes as text with its encoding; a character that is cut at the end is left out."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        is_cut = not is_all and error.start > 0 and error.start >= len(data) - 3
        if not is_cut:
            return base64.b64encode(data).decode(), "base64"
        text = data[: error.start].decode()
    if "\0" in text:
        return base64.b64encode(data).decode(), "base64"
    return text, "utf-8"


def _beginning(pieces: Iterable[bytes]) -> tuple[str, bool]:
    """Returns the first lines of a patch as text, and whether there are more."""
    kept: list[bytes] = []
    left = _PART_SIZE
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            beginning, newline, _ = piece[:left].rpartition(b"\n")
            kept.append(beginning + newline)
            return b"".join(kept).decode(errors="replace"), True
        kept.append(piece)
    return b"".join(kept).decode(errors="replace"), False


def _as_bytes(text: str) -> bytes:
    """Returns a path or pattern as the system has it; raises InvalidArgument for none."""
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{quoted(text[:80])} is not valid text") from None
    if b"\0" in raw:
        raise InvalidArgument(f"{quoted(text[:80])} contains a NUL")
    return raw
