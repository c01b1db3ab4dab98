"""``snap agent``: installs hooks in the hosts of agents, and shows their state."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treesnap.agents.hosts.base import Payload
from treesnap.agents.hosts.table import HOSTS
from treesnap.cli.command import SnapGroup, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.core.diff.texts import hunks
from treesnap.core.model.errors import (
    OperationFailed,
    TreesnapError,
    path_fields,
    printable,
    quoted,
)
from treesnap.core.model.presentation import Fields
from treesnap.core.model.quantities import count_text, time_text
from treesnap.core.own_program import program_words

if TYPE_CHECKING:
    from treesnap.agents.install.installer import FileChange, SettingsPlace
    from treesnap.agents.install.status import HostStatus
    from treesnap.agents.session_status import SessionStatus

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SHOWN_MAX = 5
"""Sessions that are shown of those with something to know."""
_PAYLOAD_SIZE_MAX = 1 << 20
_PROBLEM_LENGTH_MAX = 60
_RUNS = {True: "yes", False: "no", None: "unknown"}


@click.group("agent", cls=SnapGroup)
def agent() -> None:
    """Install hooks in the hosts of agents, and show their state.

    A host is a program in which an agent works. With the hooks, a snapshot is made before each
    prompt and before each call of a tool that may change files.
    """


def _host_arguments(function: _Function) -> _Function:
    options = [
        click.argument(
            "hosts", nargs=-1, required=True, metavar="HOST...", type=click.Choice(HOSTS)
        ),
        click.option(
            "--user", "for_user", is_flag=True, help="For all projects of the user [default]."
        ),
        click.option(
            "--project", "for_project", is_flag=True, help="For the directory of -C only."
        ),
        click.option("--dry-run", is_flag=True, help="Print what would change, as a patch."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@agent.command(
    "install",
    examples=[
        "snap agent install claude codex",
        "snap agent install gemini --project --strict",
        "snap agent install claude --dry-run",
    ],
)
@_host_arguments
@click.option("--strict", is_flag=True, help="Block tools when their snapshot fails.")
@click.option(
    "--worktrees",
    type=click.Choice(["fork", "host"]),
    help="Who makes working trees: 'snap fork', where there is no git, or the host [as it is].",
)
@pass_invocation
def install(
    invocation: Invocation,
    *,
    hosts: Sequence[str],
    for_user: bool,
    for_project: bool,
    dry_run: bool,
    strict: bool,
    worktrees: str | None,
) -> None:
    """Install hooks in the settings of HOSTs.

    Other settings, comments and the form of the file stay. Once more changes nothing; hooks
    of an older version or at another path are replaced. HOST is one of claude, codex, gemini,
    copilot, opencode, cline, cursor, windsurf, kiro and vscode.
    """
    from treesnap.agents.install import installer
    from treesnap.agents.install.host_settings import CONTRACTS
    from treesnap.core.ops.context import user_state_directory

    place = _place(
        invocation,
        for_user=for_user,
        for_project=for_project,
        notes_directory=user_state_directory(),
    )
    changes = installer.install(
        place,
        _once(hosts),
        _caller(invocation),
        is_strict=strict,
        makes_worktrees=None if worktrees is None else worktrees == "fork",
        dry_run=dry_run,
    )
    _show_changes(invocation, "agent.install", changes, dry_run=dry_run)
    if not dry_run:
        steps = {change.host: CONTRACTS[change.host].next_step for change in changes}
        invocation.output.note(*(step for step in steps.values() if step is not None))


@agent.command(
    "uninstall", examples=["snap agent uninstall claude", "snap agent uninstall gemini --project"]
)
@_host_arguments
@pass_invocation
def uninstall(
    invocation: Invocation,
    *,
    hosts: Sequence[str],
    for_user: bool,
    for_project: bool,
    dry_run: bool,
) -> None:
    """Remove the hooks from the settings of HOSTs.

    A file that no other program changed since gets its old bytes back. Snapshots stay.
    """
    from treesnap.agents.install import installer
    from treesnap.core.ops.context import user_state_directory

    place = _place(
        invocation,
        for_user=for_user,
        for_project=for_project,
        notes_directory=user_state_directory(),
    )
    changes = installer.uninstall(place, _once(hosts), dry_run=dry_run)
    _show_changes(invocation, "agent.uninstall", changes, dry_run=dry_run)


@agent.command(
    "status", prints_only=True, examples=["snap agent status", "snap agent status claude --json"]
)
@click.argument("hosts", nargs=-1, metavar="[HOST]...", type=click.Choice(HOSTS))
@pass_invocation
def status(invocation: Invocation, *, hosts: Sequence[str]) -> None:
    """Show which hosts are there, and whether they will run the hooks.

    Asks each host for its version, and Codex whether it trusts the hooks.
    """
    from treesnap.agents.install.status import host_statuses
    from treesnap.agents.repository_part import repository_part
    from treesnap.agents.session_status import session_statuses
    from treesnap.agents.sessions import newest_by_host
    from treesnap.core.ops.context import find_root, home_directory

    places = [_place(invocation, for_user=False, for_project=True)]
    if home_directory() is not None:
        places.insert(0, _place(invocation, for_user=True, for_project=False))
    newest_ns: dict[str, int] = {}
    with invocation.open(progress=False, makes_store=True, needs_root=False) as handle:
        try:
            newest_ns = newest_by_host(handle.context)
        except TreesnapError as error:
            invocation.output.note(f"When events came is not known: {error.message}")
        fs, store_path = handle.context.fs, handle.store_path
    statuses = host_statuses(_once(hosts or HOSTS), places, newest_ns)
    sessions = [item for item in session_statuses(fs) if item.host in (hosts or HOSTS)]
    failing = [item for item in sessions if item.problem is not None][:_SHOWN_MAX]
    captured = [item.directory for item in sessions if item.problem is None][:_SHOWN_MAX]
    roots = {find_root(directory, store_path) for directory in captured}
    reported = [repository_part(root, store_path) for root in sorted(roots)]
    parts = [part for part in reported if part is not None]
    invocation.output.result(
        "agent.status",
        lambda: {
            "hosts": statuses,
            "sessions": sessions,
            "parts": [
                {
                    **path_fields(part.root, "root"),
                    **path_fields(part.repository, "repository"),
                    "command": part.command,
                }
                for part in parts
            ],
        },
        [*_status_lines(statuses), *map(_failing_line, failing), *(part.text for part in parts)],
    )


@agent.command("root", examples=["snap agent root ..", "snap -C pkg/a agent root /srv/project"])
@click.argument("above", metavar="DIR")
@pass_invocation
def root(invocation: Invocation, *, above: str) -> None:
    """Work on all of DIR where an agent starts in a directory below it.

    Captures DIR. From then on, agents and commands in the directory of -C, else in the
    current one, work on DIR. What was captured there before stays: -C names it. With '.'
    the directory is a root of its own again.
    """
    from treesnap.agents.repository_part import use_root
    from treesnap.cli.hints import advising_on_absent
    from treesnap.core.ops.context import absolute, current_directory

    start = os.path.realpath(absolute(invocation.directory or current_directory()))
    invocation.directory = os.path.realpath(os.path.join(start, above))
    advice = f"DIR is {quoted(start)}, or a directory above it"
    with (
        advising_on_absent(invocation.directory, advice),
        invocation.open(makes_store=True) as handle,
    ):
        joined = use_root(handle.context, start)
    lines = [f"Agents and commands in {printable(start)} work on {printable(handle.root)}"]
    lines += [f"The history of {printable(path)} stays as it is" for path in joined]
    invocation.output.result(
        "agent.root",
        lambda: {
            **path_fields(start, "directory"),
            "joined": [path_fields(path) for path in joined],
        },
        lines,
    )


@agent.command("status-line", prints_only=True, examples=["snap agent status-line claude"])
@click.argument("host", metavar="HOST", type=click.Choice(HOSTS))
@pass_invocation
def status_line(invocation: Invocation, *, host: str) -> None:
    """Print how far the capture of a session has come, in a few words.

    For the status line of a host, which writes what it knows of the session to standard
    input. Reads one small file and no store.
    """
    from treesnap.agents.hosts.table import host_named
    from treesnap.agents.session_status import session_status
    from treesnap.core.fs.local import LocalFileSystem

    session_now = None
    with suppress(TreesnapError, ValueError, RecursionError):
        fields = json.loads(sys.stdin.buffer.read(_PAYLOAD_SIZE_MAX))
        session = host_named(host).session(Payload(fields if isinstance(fields, dict) else {}))
        session_now = session_status(LocalFileSystem(), host, session)
    invocation.output.result(
        "agent.status-line",
        lambda: {"session": session_now},
        [_short(session_now)],
    )


def _short(status: SessionStatus | None) -> str:
    """Returns a few words about a session."""
    if status is None or (status.step is None and status.problem is None):
        return "snap: not captured yet"
    gaps = count_text(status.gaps, "gap")
    if status.step is None:
        return f"snap off: {printable(status.problem or '')[:_PROBLEM_LENGTH_MAX]}"
    return f"snap {status.step} \N{MIDDLE DOT} {gaps}"


def _failing_line(item: SessionStatus) -> str:
    """Returns what became of the newest event of a session, which was not captured."""
    who = f"{printable(item.host)} session {printable(item.session)}"
    return f"{who} in {quoted(item.directory)}: not captured: {printable(item.problem or '')}"


def _place(
    invocation: Invocation, *, for_user: bool, for_project: bool, notes_directory: str = ""
) -> SettingsPlace:
    if for_user and for_project:
        raise click.UsageError("--user and --project exclude each other")
    from treesnap.agents.install.installer import SettingsPlace
    from treesnap.core.fs.local import LocalFileSystem
    from treesnap.core.ops.context import absolute, current_directory, home_directory

    directory = home_directory()
    if for_project:
        directory = os.path.abspath(absolute(invocation.directory or current_directory()))
    if directory is None:
        raise OperationFailed("There is no home directory with settings, and HOME is not set")
    return SettingsPlace(
        fs=LocalFileSystem(),
        directory=directory,
        for_project=for_project,
        environ=os.environ,
        notes_directory=notes_directory,
        wait_s=invocation.wait_s,
    )


def _caller(invocation: Invocation) -> list[str]:
    """Returns the words by which a host can call this program, on the store that was named."""
    from treesnap.core.ops.context import absolute

    words = program_words()
    if invocation.store is not None:
        words += ["--store", os.path.abspath(absolute(invocation.store))]
    return words


def _once(hosts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(hosts))


def _show_changes(
    invocation: Invocation, name: str, changes: Sequence[FileChange], *, dry_run: bool
) -> None:
    def fields() -> Fields:
        shown = [
            {
                "host": change.host,
                **path_fields(change.path),
                "change": _change_word(change),
                "patch": b"".join(_patch(change)).decode("utf-8", "replace"),
            }
            for change in changes
        ]
        return {"dry_run": dry_run, "files": shown}

    if dry_run:
        patches = [line for change in changes for line in _patch(change)]
        invocation.output.result(name, fields, patches)
        if not patches:
            invocation.output.note("Nothing would change")
        return
    lines = [
        f"{change.host}: {_change_word(change)} {printable(change.path)}" for change in changes
    ]
    invocation.output.result(name, fields, lines)


def _change_word(change: FileChange) -> str:
    if change.old == change.new:
        return "unchanged" if change.new is not None else "absent"
    if change.old is None:
        return "created"
    return "removed" if change.new is None else "modified"


def _patch(change: FileChange) -> Iterator[bytes]:
    if change.old == change.new:
        return
    path = printable(change.path).encode()
    yield b"--- " + (path if change.old is not None else b"/dev/null") + b"\n"
    yield b"+++ " + (path if change.new is not None else b"/dev/null") + b"\n"
    yield from hunks(change.old or b"", change.new or b"")


def _status_lines(statuses: Iterable[HostStatus]) -> Iterator[str]:
    for item in statuses:
        version = f" {item.version}" if item.version is not None else ""
        where = f"{version} at {printable(item.program)}" if item.program else ": not found"
        yield f"{item.host:<9} {item.title}{where}"
        for hooks in item.hooks:
            notes = ["strict"] if hooks.is_strict else []
            notes += [] if hooks.is_current else ["older"]
            notes += ["worktrees"] if hooks.makes_worktrees else []
            shown = f" ({', '.join(notes)})" if notes else ""
            scope = "project" if hooks.for_project else "user"
            where = f"{scope} hooks in {printable(hooks.path)}"
            yield f"  {where} run {printable(hooks.program)}{shown}"
        if item.hooks:
            yield f"  will be run: {_RUNS[item.runs]}; made for {item.title} {item.contract}"
            if item.conversation is not None:
                way, tried = item.conversation
                yield f"  conversations go back by {way}; tried with {item.title} {tried}"
        if item.last_event_ns is not None:
            yield f"  last event: {time_text(item.last_event_ns)}"
        yield from (f"  problem: {printable(problem)}" for problem in item.problems)
