"""``snap rewind``: back to before a prompt or a tool call of an agent."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import dry_run_option, session_option
from treesnap.cli.output.as_text import change_lines, gap_text, restore_line, restore_notes
from treesnap.core.model.errors import path_fields, printable, quoted
from treesnap.core.model.quantities import first_lines, time_text

if TYPE_CHECKING:
    from treesnap.agents.conversation import Conversation
    from treesnap.agents.rewind import RewindResult

_SHOWN_MAX = 5
"""Paths and gaps of a kind that are named; the others are counted."""
_UNCERTAIN = (
    "a call has no known end, work went on in the background or in another root, or snapshots "
    "were removed"
)


@command(
    "rewind",
    examples=["snap rewind", "snap rewind 2 --dry-run", "snap rewind 1 src", "snap rewind step:7"],
)
@click.argument("where", default="1", metavar="[N|STEP]")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@dry_run_option
@click.option("--shared", is_flag=True, help="Undo what another session may have changed, too.")
@click.option("--unknown", is_flag=True, help="Undo what work in the background left, too.")
@click.option("--theirs", is_flag=True, help="Restore everything, also what others changed.")
@click.option(
    "--conversation", is_flag=True, help="Take the agent's conversation back, too, if that works."
)
@session_option
@pass_invocation
def rewind(
    invocation: Invocation,
    /,
    *,
    where: str,
    paths: tuple[str, ...],
    dry_run: bool,
    shared: bool,
    unknown: bool,
    theirs: bool,
    conversation: bool,
) -> int:
    """Undo what an agent did since its newest prompt, or since STEP.

    Goes back to before the N-th newest prompt, or to a step such as step:7, which is
    before a tool call; any other REF is fine as well. The session is the one that did
    something last, unless --session names it. All or nothing: 'snap undo' goes back.
    What you, another session or another program wrote meanwhile is listed and kept.
    Exits 4 if only --conversation failed.
    """
    from treesnap.agents import conversation as conversations
    from treesnap.agents.attribution import Whose
    from treesnap.agents.rewind import RewindRequest
    from treesnap.agents.rewind import rewind as go_back
    from treesnap.cli.hints import advising_on_paths

    widened = {Whose.SHARED: shared, Whose.UNKNOWN: unknown}
    with (
        invocation.open(ends_restored=True) as handle,
        advising_on_paths(invocation, handle, [where, *paths], "rewind", "1"),
    ):
        request = RewindRequest(
            where=where,
            session_id=invocation.session,
            paths=handle.tree_paths(paths or None),
            overwrites=theirs,
            widened=frozenset(whose for whose, is_wanted in widened.items() if is_wanted),
            dry_run=dry_run,
            list_changes=dry_run or invocation.output.as_json,
        )
        result = go_back(handle.context, request)
        root = handle.root
    talk = conversations.conversation(
        result.session,
        result.step,
        root,
        os.environ,
        is_wanted=conversation,
        dry_run=dry_run,
    )
    coloured = invocation.output.is_coloured
    plan = change_lines(result.restore.changes, coloured=coloured) if dry_run else ()
    invocation.output.result(
        "rewind",
        lambda: {
            **result.restore.to_dict(),
            "host": result.session.host,
            "session": result.session.id,
            "step": None if result.step is None else result.step.number,
            "gaps": result.gaps,
            "paths": result.paths,
            "outside": [path_fields(path) for path in result.outside],
            "branch": result.branch,
            "restores": result.restores,
            "conversation": talk,
        },
        [*plan, restore_line(result.restore)],
    )
    named = ["--session", invocation.session] if invocation.session is not None else []
    again = invocation.command_text("rewind", where, *paths, *named)
    invocation.output.note(*_notes(result, again, is_everything=theirs))
    if talk is not None:
        invocation.output.note(*_conversation_notes(result, talk, again, is_wanted=conversation))
    invocation.output.note(*restore_notes(result.restore, invocation.command_text("undo")))
    outcomes = conversations.ConversationOutcome
    is_done = talk is None or talk.outcome not in (outcomes.FAILED, outcomes.UNKNOWN)
    return ExitCode.DONE if is_done else ExitCode.INCOMPLETE


def _notes(result: RewindResult, again: str, *, is_everything: bool) -> Iterator[str]:
    """Yields what a person wants to know of a rewind; ``again`` is the command."""
    from treesnap.agents.attribution import Verdict

    step, session = result.step, result.session
    where = f"session {printable(session.id)} of {session.host}"
    if step is not None:
        yield f"Step {step.number} of {where}, {time_text(step.snapshot.record.created_at_ns)}"
    yield from first_lines(result.gaps, gap_text, _SHOWN_MAX)
    differ = {change.path for change in result.restore.conflicts}
    if is_everything:
        if differ:
            yield f"Overwritten, though others changed it: {_named(sorted(differ))}"
        return
    undone: dict[tuple[str, ...], list[bytes]] = {}
    for item in result.paths:
        if item.verdict is Verdict.PERHAPS:
            undone.setdefault(item.sessions, []).append(item.path)
    for sessions, paths in undone.items():
        reason = f"{_who(sessions)} worked at the same time" if sessions else _UNCERTAIN
        yield f"Undone, though it may be the work of others, because {reason}: {_named(paths)}"
    groups: dict[tuple[Verdict, tuple[str, ...]], list[bytes]] = {}
    for item in result.paths:
        if item.path in differ and item.verdict is not Verdict.BLOCKED:
            is_kept = item.verdict is Verdict.CONFLICT
            shown = Verdict.KEPT if is_kept else item.verdict
            groups.setdefault((shown, item.sessions), []).append(item.path)
    for (verdict, sessions), paths in groups.items():
        who = _who(sessions)
        if verdict is Verdict.SHARED:
            did = f"{who} worked at the same time" if sessions else "it may be work in another root"
            yield f"Kept, because {did}: {_named(paths)}"
        elif verdict is Verdict.UNKNOWN:
            yield (
                "Kept, because work in the background may have done it, or it was excluded "
                f"meanwhile: {_named(paths)}"
            )
        elif verdict is Verdict.BACK_TO_OTHERS:
            yield f"As {who} left it before the agent changed it: {_named(paths)}"
        else:
            yield f"Kept, changed by {who}: {_named(paths)}"
    blocked = [item.path for item in result.paths if item.verdict is Verdict.BLOCKED]
    if blocked:
        yield f"Not put back, because something else is where its directory was: {_named(blocked)}"
    excluded = [item.path for item in result.paths if item.verdict is Verdict.EXCLUDED]
    if excluded:
        yield f"Left alone, because it is excluded by now: {_named(excluded)}"
    if result.restores > 1:
        yield (
            "An ignore file went back first, then what it had excluded: these are two restores, so "
            "what undoes this has to be typed twice"
        )
    judged = {item.path for item in result.paths}
    late = sorted(differ - judged)
    if late:
        yield f"Kept, changed while this ran: {_named(late)}"
    for directory in result.outside[:_SHOWN_MAX]:
        yield f"The agent also worked in {quoted(directory)}, which is not captured here"
    if result.branch is not None:
        name, before, now = result.branch
        what = f"branch {printable(name)}" if name else "HEAD"
        yield f"git: {what} stands at {now[:12]}, before at {before[:12]}"
        yield f"To move it back: git reset --soft {before[:12]}"
    verdicts = {verdict for verdict, _ in groups}
    for wider in (Verdict.SHARED, Verdict.UNKNOWN):
        if wider in verdicts:
            yield f"To undo what is {wider.value}, too: {again} --{wider.value}"
    if verdicts - {Verdict.SHARED, Verdict.UNKNOWN}:
        yield f"To restore everything: {again} --theirs"


def _who(sessions: tuple[str, ...]) -> str:
    return " and ".join(f"session {printable(name)}" for name in sessions) or "you or a program"


def _conversation_notes(
    result: RewindResult, talk: Conversation, again: str, *, is_wanted: bool
) -> Iterator[str]:
    """Yields what became of the conversation, or how to take it back."""
    from treesnap.agents.attribution import Verdict
    from treesnap.agents.conversation import ConversationOutcome as Outcome
    from treesnap.agents.conversation import WayKind
    from treesnap.agents.install.host_settings import CONTRACTS

    host = result.session.host
    title = CONTRACTS[host].title if host in CONTRACTS else printable(host)
    command = shlex.join(talk.command) if talk.command is not None else None
    if talk.outcome in (Outcome.BACK, Outcome.FORKED):
        went = "went back, too" if talk.outcome is Outcome.BACK else "goes back in a new session"
        yield f"The conversation {went}. To go on with it: {command}"
        kept = (Verdict.CONFLICT, Verdict.SHARED, Verdict.UNKNOWN)
        if any(item.verdict in kept for item in result.paths):
            yield "The model no longer knows about its work in what is kept"
        return
    if talk.outcome is Outcome.UNKNOWN:
        yield f"Look whether the conversation went back, for that is not known: {talk.reason}"
    elif talk.outcome is Outcome.FAILED:
        yield f"The conversation stays as it is: {talk.reason}"
    elif is_wanted:  # in a dry run
        yield "The conversation would go back, too"
        return
    to = "To take the conversation back, too: "
    if talk.keys is not None:
        yield f"{to}in {title}, {talk.keys}"
    if talk.way is WayKind.FORK:
        yield f"{to}{again} --conversation"
    elif talk.way is WayKind.CUT:
        yield f"After leaving {title}: {again} --conversation"
    elif talk.keys is not None and command is not None:
        yield f"After leaving {title}, the same in: {command}"


def _named(paths: list[bytes]) -> str:
    """Returns the first of some paths, and how many more there are."""
    more = f" and {len(paths) - _SHOWN_MAX:,} more" if len(paths) > _SHOWN_MAX else ""
    return ", ".join(printable(path) for path in paths[:_SHOWN_MAX]) + more
