"""``snap hook``: what a host of agents runs at each event."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.declarations import option
from treesnap.cli.failure import ExitCode
from treesnap.cli.hook_client import (
    PAYLOAD_SIZE_MAX,
    TIMEOUT_DEFAULT_S,
    WATCHER_SHARE,
    HookCall,
    encode_reply,
    identity,
)
from treesnap.cli.invocation import Invocation
from treesnap.cli.output import streams
from treesnap.cli.parameters import Seconds
from treesnap.core.fs.peers import decode_call
from treesnap.core.model.errors import InvalidArgument, TreesnapError, printable
from treesnap.core.model.events import NullMonitor

if TYPE_CHECKING:
    from treesnap.agents.event import Event, Reply, WorktreeAsked
    from treesnap.agents.hosts.base import Host, Payload
    from treesnap.core.ops.context import Context

_DRAIN_S = 1.0
"""How long a hook that is switched off reads what the host writes."""
_TIMEOUT_MAX_S = 24 * 60 * 60
_WATCHER_WAIT_S = 0.5
"""How long a watcher waits for another command in the root, before the hook does that itself."""
_WAIT_MAX_S = 1.5
"""How long that waits in its turn: an agent stands still meanwhile. Then a gap is kept. A strict
hook waits as long as it may take, for it would block the agent."""


class HookCommand(SnapCommand):
    """A command that fails otherwise than others when it is used wrongly."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Ends wrong usage with another exit code, for hosts take the usual one for a refusal.

        The settings of a host may have been written by another version of treesnap.
        """
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            streams.print_plainly(f"{ctx.find_root().info_name}: {error.format_message()}")
            ctx.exit(ExitCode.FAILED)


@click.command(
    "hook",
    cls=HookCommand,
    examples=[
        "snap hook claude",
        "snap hook cline PreToolUse --strict",
        "snap hook gemini --timeout 5",
    ],
)
@click.argument("host_name", metavar="HOST")
@click.argument("event_name", metavar="[EVENT]", required=False)
@click.option(
    "--strict", is_flag=True, help="Block prompts and tools that cannot be captured first."
)
@option(
    "--timeout",
    "timeout_s",
    type=Seconds(min=0.1, max=_TIMEOUT_MAX_S),
    default=TIMEOUT_DEFAULT_S,
    metavar="SECONDS",
    help=f"How long it may take [{TIMEOUT_DEFAULT_S:g}].",
)
@pass_invocation
def hook(
    invocation: Invocation,
    /,
    *,
    host_name: str,
    event_name: str | None,
    strict: bool,
    timeout_s: float,
) -> None:
    """Capture the root before an agent's prompt or tool.

    Reads the payload of HOST from standard input and replies in its form: go on, or
    with --strict, do not. 'snap agent install' writes this command into the settings
    of a host. SNAP_DISABLE=1 switches it off.
    """
    from treesnap.agents.hook import OutOfTime, time_limit
    from treesnap.agents.hosts.table import host_named

    invocation.output.quiet = True  # standard error holds one line at most, which the host shows
    try:
        host = host_named(host_name)
    except InvalidArgument as error:
        streams.print_plainly(f"{invocation.program}: {printable(error.message)}")
        click.get_current_context().exit(ExitCode.FAILED)  # that of wrong usage blocks a host
    if os.environ.get("SNAP_DISABLE"):
        with suppress(OutOfTime), time_limit(_DRAIN_S):
            _drain()
        reply = host.go_on(None)
    else:
        reply = _replied(invocation, host, event_name, timeout_s, is_strict=strict)
    sys.stdout.write(reply.stdout)
    if reply.stderr:
        streams.print_plainly(reply.stderr.rstrip("\n"))
    click.get_current_context().exit(reply.exit_code)


def _replied(
    invocation: Invocation, host: Host, event_name: str | None, timeout_s: float, *, is_strict: bool
) -> Reply:
    """Returns the reply to the payload on standard input, whatever happens."""
    from treesnap.agents.hook import (
        OutOfTime,
        in_its_root,
        reason_of,
        reply_to,
        respond,
        time_limit,
    )
    from treesnap.agents.session_status import note_status
    from treesnap.core.fs.local import LocalFileSystem
    from treesnap.core.ops.context import system_clock_ns

    wait_max_s = timeout_s if is_strict else _WAIT_MAX_S
    whole_wait_s = invocation.wait_s
    invocation.wait_s = min(whole_wait_s, wait_max_s, max(timeout_s - 1.0, timeout_s / 2))
    event: Event | None = None
    asked: WorktreeAsked | None = None
    try:
        with time_limit(timeout_s):
            payload = _payload(invocation, event_name)
            asked = host.worktree(payload)
            event = host.parse(payload)
            if event is not None:
                event = in_its_root(event, host, LocalFileSystem())
                with invocation.open(progress=False, makes_store=True, start=event.root) as handle:
                    return respond(event, host, handle.context, _run_command, is_strict=is_strict)
        if asked is None:
            return host.go_on(None)
        invocation.wait_s = whole_wait_s
        return _with_worktree(invocation, asked)
    except (TreesnapError, OSError, OutOfTime) as error:
        reason = reason_of(error)
    except Exception as error:  # noqa: BLE001 - a mistake of ours must not stop the agent
        reason = f"{type(error).__name__}: {error}"
    if asked is not None:
        from treesnap.agents.event import Reply

        did = "made" if asked.makes else "removed"
        text = f"treesnap {did} no working tree: {printable(reason)}\n"
        return Reply(stderr=text, exit_code=ExitCode.FAILED)
    if event is not None and not event.is_read_only:
        with suppress(TreesnapError):
            now_ns = system_clock_ns()
            note_status(LocalFileSystem(), event, now_ns, step=None, problem=reason)
    return reply_to(event, host, reason, is_strict=is_strict)


def _with_worktree(invocation: Invocation, asked: WorktreeAsked) -> Reply:
    """Makes or removes a working tree: its path is the last line that a host reads.

    It takes the time that it needs: the host waits as long as its settings say.
    """
    from treesnap.agents.event import Reply
    from treesnap.agents.worktrees import make_worktree, remove_worktree

    with invocation.open(progress=False, makes_store=True, start=asked.root) as handle:
        if asked.makes:
            return Reply(f"{make_worktree(handle.context, asked, os.environ)}\n")
        remove_worktree(handle.context, asked, os.environ)
        return Reply()


def _payload(invocation: Invocation, event_name: str | None) -> Payload:
    """Returns the payload on standard input; raises InvalidArgument for what cannot be one."""
    from treesnap.agents.hosts.base import Payload
    from treesnap.core.ops.context import absolute, current_directory

    data = sys.stdin.buffer.read(PAYLOAD_SIZE_MAX + 1)
    if len(data) > PAYLOAD_SIZE_MAX:
        _drain()
        raise InvalidArgument(f"The payload has more than {PAYLOAD_SIZE_MAX >> 20} MiB")
    root = os.path.abspath(absolute(invocation.directory)) if invocation.directory else None
    here = ""
    with suppress(TreesnapError):  # an agent may remove it, and the host may name the root
        here = current_directory()
    return Payload(_fields(data), event_name, root, os.environ, here)


def _fields(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data.removeprefix(codecs.BOM_UTF8).decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"The payload is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidArgument("The payload is not a JSON object")
    return fields


def carry_out(context: Context, request: bytes) -> bytes:
    """Returns the reply to the hook of another process, in a watcher of the root, or nothing.

    Returns nothing unless the event is a plain capture: then that process does it all itself, and
    so notes what was not captured, asks the user and is stopped when its time is over. Nothing is
    published after that process has stopped waiting: its tool may be running.
    """
    from treesnap.agents.hook import OutOfTime

    try:
        sender, (directory, *words), environ, data = decode_call(request)
        call = HookCall(words)
        if sender != identity():
            return b""
        from treesnap.agents.hook import carried_out, in_its_root, with_deadline
        from treesnap.agents.hosts.base import Payload
        from treesnap.agents.hosts.table import host_named
        from treesnap.core.ops.context import find_root

        host = host_named(call.host_name)
        given = os.path.join(directory, call.directory) if call.directory else None
        root = os.path.abspath(given) if given is not None else None
        payload = Payload(_fields(data), call.event_name or None, root, environ, directory)
        if host.worktree(payload) is not None:
            return b""
        event = host.parse(payload)
        if event is None or event.is_read_only:
            reply: Reply | None = host.go_on(event)
        else:
            event = in_its_root(event, host, context.fs)
            root_path = root or find_root(event.root, context.store_path)
            if os.path.realpath(root_path) != context.root:
                return b""
            silent = context._replace(monitor=NullMonitor(), wait_s=_WATCHER_WAIT_S)
            waiting = with_deadline(silent, call.timeout_s * WATCHER_SHARE)
            reply = carried_out(event, host, waiting, is_strict=call.is_strict)
        if reply is None:
            return b""
    except (Exception, OutOfTime):  # noqa: BLE001 - a mistake of ours must not end the watcher
        return b""
    return encode_reply(
        reply.stdout.encode(errors="backslashreplace"),
        reply.stderr.encode(errors="backslashreplace"),
        reply.exit_code,
    )


def _drain() -> None:
    """Reads what is left of standard input: a host may not expect that a hook reads nothing."""
    while sys.stdin.buffer.read(1 << 20):
        pass


def _run_command(words: Sequence[str]) -> tuple[int, str]:
    """Carries out a command line in this process; returns its exit code and all that it prints."""
    from treesnap.cli.main import execute

    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", newline="\n")
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = printed
    try:
        code = execute(words)
    finally:
        sys.stdout, sys.stderr = before
    printed.seek(0)
    return code, printed.read()
