"""``snap restore``, ``undo`` and ``redo``: back to a snapshot, and back from there."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from treesnap.cli.declarations import DeclaredCommand, argument, command, option
from treesnap.cli.failure import ExitCode, usage_error
from treesnap.cli.hints import advising_on_paths
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import dry_run_option, privileged_option, session_option
from treesnap.cli.output.as_text import change_lines, restore_line, restore_notes
from treesnap.core import features
from treesnap.core.model.errors import NotFound, quoted
from treesnap.core.model.treepath import is_within
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.cli.output.streams import Output
    from treesnap.core.handle import Handle
    from treesnap.core.model.results import FileHunks, RestoreResult

_ANSWERS = {
    "y": "restore this hunk",
    "n": "leave it as it is",
    "a": "restore this hunk and all below",
    "q": "leave this hunk and all below as they are",
    "?": "explain the answers",
}
"""What can be said of a hunk, with ``--patch``."""


@command(
    "restore",
    examples=[
        "snap restore latest",
        "snap restore latest~2 src/ notes.txt --dry-run",
        "snap restore latest notes.txt --patch",
        "snap restore before-upgrade --to ../old",
        "snap restore backup/garden notes.txt",
    ],
)
@argument("ref", required=False, metavar="REF")
@argument("paths", nargs=-1, metavar="[PATH]...")
@option("-p", "--patch", is_flag=True, help="Ask which hunks of PATH to restore.")
@option("--to", metavar="DIR", help="Write into another directory, absent or empty.")
@dry_run_option
@option("--touch", is_flag=True, help="Give restored files the current time.")
@option(
    "--force",
    is_flag=True,
    help="Allow a dangerous root, and changes by other programs meanwhile.",
)
@privileged_option
@option("--reason", metavar="TEXT", help="Why; noted of the snapshot and counted.")
@session_option
def restore(
    invocation: Invocation,
    *,
    ref: str | None,
    paths: Sequence[str],
    patch: bool,
    to: str | None,
    dry_run: bool,
    touch: bool,
    force: bool,
    privileged: bool,
    reason: str | None,
) -> int:
    """Restore a snapshot, or only PATHs of it.

    All or nothing. The state before is captured first: 'snap undo' goes back to it.
    REMOTE/HISTORY[@REF] is a snapshot of a history on a remote; what it lacks here is fetched.
    Relative PATHs and DIR start from the directory of -C, else from the current one.
    """
    if ref is None:
        from treesnap.cli.hints import missing_ref

        raise missing_ref(invocation)
    if patch:
        if len(paths) != 1:
            raise usage_error("--patch is about one PATH")
        if to is not None or dry_run or touch or privileged or invocation.output.as_json:
            raise usage_error("--patch excludes --to, --dry-run, --touch, --privileged, --json")
        _refuse_without_terminal()
    with invocation.open(ends_restored=True) as handle:
        absolute = invocation.absolute_all(paths, handle.root)
        if "/" in ref:
            for fetched in features.functions("fetches"):
                ref = fetched(invocation, handle, ref, absolute or ())
        with advising_on_paths(invocation, handle, [ref, *paths], "restore", "latest"):
            snapshot_id = invocation.resolve(handle, ref, absolute)
            if patch:
                result = _restore_hunks(invocation, handle, snapshot_id, absolute, force=force)
            else:
                result = handle.restore(
                    snapshot_id,
                    absolute,
                    to=None if to is None else invocation.absolute(to, handle.root),
                    dry_run=dry_run,
                    touch=touch,
                    force=force,
                    privileged=privileged,
                    reason=reason,
                    list_changes=dry_run or invocation.output.as_json,
                )
    if result is not None:
        _show(invocation, "restore", result, undone_by="undo")
        if paths and _is_missed(result, result.scope or ()):
            return ExitCode.INCOMPLETE
    return ExitCode.DONE


def _restore_hunks(
    invocation: Invocation, handle: Handle, ref: str, paths: Sequence[str] | None, *, force: bool
) -> RestoreResult | None:
    """Asks which hunks to restore, and restores them; returns None where there are none."""
    file_hunks = handle.hunks(ref, *(paths or ()))
    if not file_hunks.hunks:
        invocation.output.note("Nothing to restore: no line differs")
        return None
    chosen = _chosen_hunks(file_hunks, invocation.output)
    if not chosen:
        invocation.output.note("Nothing was restored")
        return None
    return handle.restore_hunks(file_hunks, chosen, force=force)


def _refuse_without_terminal() -> None:
    """Raises UsageError where no person can be asked."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage_error("--patch asks about each hunk, so it needs a terminal")


def _chosen_hunks(file: FileHunks, output: Output) -> list[int]:
    """Returns the numbers of the hunks that a person wants; shows each before it asks."""
    from treesnap.cli.output.coloured_patch import coloured_hunks, without_controls
    from treesnap.core.diff.texts import lines_of_hunk

    count, chosen = len(file.hunks), list[int]()
    output.pass_through(
        f"{quoted(file.path)}: - is now, + is in {file.snapshot.id[:12]}\n".encode()
    )
    for hunk in file.hunks:
        pieces = lines_of_hunk(hunk)
        lines = coloured_hunks(pieces) if output.is_coloured else map(without_controls, pieces)
        output.pass_through("".join(lines).encode())
        answer = _answer(f"Restore hunk {hunk.number + 1} of {count}?", output)
        if answer == "a":
            return [*chosen, *range(hunk.number, count)]
        if answer == "q":
            break
        if answer == "y":
            chosen.append(hunk.number)
    return chosen


def _answer(question: str, output: Output) -> str:
    import click

    while True:
        answer: str = click.prompt(
            f"{question} [{','.join(_ANSWERS)}]",
            type=click.Choice(list(_ANSWERS)),
            show_choices=False,
            prompt_suffix=" ",
            err=True,
        )
        if answer != "?":
            return answer
        output.note(*(f"{letter}: {meaning}" for letter, meaning in _ANSWERS.items()))


def _step_back(name: str, undone: str, undone_by: str) -> DeclaredCommand:
    """Returns ``undo`` or ``redo``, which are the same but for what they undo."""

    @command(
        name,
        help=f"""Undo the newest {undone}.

        What changed since that {undone} is captured first: 'snap {undone_by}' goes back to it.
        """,
        examples=[f"snap {name}", f"snap -C project {name} --json"],
    )
    @privileged_option
    def step_back(invocation: Invocation, *, privileged: bool) -> None:
        with invocation.open(ends_restored=True) as handle:
            try:
                step = handle.undo if name == "undo" else handle.redo
                result = step(privileged=privileged, list_changes=invocation.output.as_json)
            except NotFound as error:
                if name == "undo":
                    from treesnap.cli.hints import advise_on_undo

                    advise_on_undo(invocation, handle, error)
                raise
        _show(invocation, name, result, undone_by=undone_by)

    return step_back


undo: DeclaredCommand = _step_back("undo", "restore", undone_by="redo")
redo: DeclaredCommand = _step_back("redo", "undo", undone_by="undo")


def _show(invocation: Invocation, name: str, result: RestoreResult, *, undone_by: str) -> None:
    output = invocation.output
    plan = change_lines(result.changes, coloured=output.is_coloured) if result.dry_run else ()
    output.result(name, result.to_dict, [*plan, restore_line(result)])
    output.note(*restore_notes(result, invocation.command_text(undone_by)))


def _is_missed(result: RestoreResult, paths: Sequence[bytes]) -> bool:
    """Returns whether one of some paths was left alone, or could not be read when captured."""
    left = [item.path for item in result.untouched]
    return any(is_within(path, item) for item in (*left, *result.missing) for path in paths)
