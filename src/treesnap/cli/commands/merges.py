"""``snap fork``, ``adopt`` and ``revert``: copies of a snapshot, and merges into the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.hints import advising_on_absent, advising_on_paths
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import conflict_options, dry_run_option, session_option
from treesnap.cli.output.as_text import change_lines, privilege_lines, short_id, skipped_lines
from treesnap.cli.output.streams import is_terminal
from treesnap.core.diff.three_way import TEXT_SIZE_MAX
from treesnap.core.model.errors import RanTogether, printable
from treesnap.core.model.quantities import count_text, first_lines, size_text
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.model.results import ForkResult, MergeResult

_SHOWN_MAX = 10
"""Conflicts that are named; the others are counted."""
_TOO_LARGE = f"  (larger than {TEXT_SIZE_MAX >> 20} MiB, so not merged by lines)"


@command(
    "fork",
    examples=[
        "snap fork latest ../attempt-1 ../attempt-2 ../attempt-3",
        "snap fork before-upgrade /tmp/old",
    ],
)
@click.argument("ref", metavar="REF")
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@session_option
@pass_invocation
def fork(invocation: Invocation, *, ref: str, directories: Sequence[str]) -> None:
    """Make working copies of a snapshot that share its blocks.

    Each DIR is absent or empty, and appears whole or not at all. It is a root of its own: 'snap
    diff forked' shows there what changed since, 'snap root list' where it comes from. Changes
    that were not captured are not in it; 'snap create' first captures them. Relative DIRs start
    from the directory of -C, else from the current one.
    """
    with invocation.open() as handle:
        places = [invocation.absolute(directory, handle.root) for directory in directories]
        result = handle.fork(invocation.resolve(handle, ref), places)
    invocation.output.result("fork", result.to_dict, _fork_lines(result))
    identity = short_id(result.snapshot_id)
    way = invocation.command_text("restore", identity, "--to", "DIR", "--privileged")
    invocation.output.note(*privilege_lines(result.privileges, way=way))


def _fork_lines(result: ForkResult) -> Iterator[str]:
    for fork in result.forks:
        cloned = f"{count_text(fork.cloned_files, 'file')} cloned"
        copied = f"{fork.copied_files:,} copied ({size_text(fork.copied_bytes)})"
        yield f"{printable(fork.path)}  {cloned}, {copied}"


def _rule_of(*, mine: bool, theirs: bool, markers: bool) -> str | None:
    """Returns what becomes of conflicts, or None where nothing was said."""
    given = {"mine": mine, "theirs": theirs, "markers": markers}
    rules = [rule for rule, is_given in given.items() if is_given]
    if len(rules) > 1:
        raise click.UsageError(f"--{rules[0]} and --{rules[1]} exclude each other")
    return rules[0] if rules else None


@command(
    "revert",
    examples=[
        "snap revert latest",
        "snap revert step:5 --session fix-login --dry-run",
        "snap revert 4f2a..81c0 src/ --markers",
    ],
)
@click.argument("ref", metavar="REF|A..B")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@conflict_options
@click.option("--together", is_flag=True, help="Revert all steps that ran at the same time.")
@dry_run_option
@click.option(
    "--force",
    is_flag=True,
    help="Allow a dangerous root, and changes by other programs meanwhile.",
)
@session_option
@pass_invocation
def revert(
    invocation: Invocation,
    *,
    ref: str,
    paths: Sequence[str],
    mine: bool,
    theirs: bool,
    markers: bool,
    together: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Undo what happened between two snapshots, and keep everything since.

    REF alone stands for what changed since the snapshot before it; one that was taken
    before a step stands for what the step did, as in 'snap log'. Calls of an agent that
    ran at the same time are reverted together: a terminal asks. Texts that changed
    since in other lines are merged. Where the same lines changed, nothing is changed at
    all, unless an option says which side wins. All or nothing: 'snap undo' goes back.
    """
    rule = _rule_of(mine=mine, theirs=theirs, markers=markers)
    with invocation.open(ends_restored=not dry_run) as handle:
        absolute_paths = invocation.absolute_all(paths, handle.root)

        def reverted(*, together: bool) -> MergeResult:
            return handle.revert(
                ref,
                absolute_paths,
                conflicts=rule or "refuse",
                session=invocation.session,
                together=together,
                dry_run=dry_run,
                force=force,
            )

        with advising_on_paths(invocation, handle, [ref, *paths], "revert", "latest"):
            try:
                result = reverted(together=together)
            except RanTogether as error:
                if not (is_terminal("stdin") and is_terminal("stderr")):
                    raise
                what = error.message.partition(";")[0]
                if not click.confirm(f"{what}. Revert all of it?", err=True):
                    raise
                result = reverted(together=True)
    _show(invocation, "revert", result, rule)


@command(
    "adopt",
    examples=[
        "snap adopt ../attempt-2",
        "snap adopt ../attempt-2 src/ --dry-run",
        "snap adopt ../attempt-2 --as-it-is",
    ],
)
@click.argument("fork", metavar="DIR")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@conflict_options
@click.option("--as-it-is", is_flag=True, help="Make the root as the fork, without a merge.")
@dry_run_option
@click.option(
    "--force",
    is_flag=True,
    help="Allow a dangerous root, changes meanwhile, and another directory as DIR.",
)
@pass_invocation
def adopt(
    invocation: Invocation,
    *,
    fork: str,
    paths: Sequence[str],
    mine: bool,
    theirs: bool,
    markers: bool,
    as_it_is: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Bring what was done in the fork DIR into the root that it was forked from.

    What happened in the root since is kept: both are merged, as 'snap revert' merges.
    Where both changed the same, nothing is changed at all, unless an option says which
    side wins. All or nothing: 'snap undo' goes back. DIR stays as it is.
    """
    rule = _rule_of(mine=mine, theirs=theirs, markers=markers)
    if as_it_is and rule is not None:
        raise click.UsageError(f"--as-it-is and --{rule} exclude each other")
    with invocation.open(ends_restored=not dry_run) as handle:
        directory = invocation.absolute(fork, handle.root)
        root_list = invocation.command_text("root", "list")
        advice = f"name the directory of a fork; '{root_list}' shows them"
        with advising_on_absent(directory, advice):
            result = handle.adopt(
                directory,
                invocation.absolute_all(paths, handle.root),
                conflicts=rule or "refuse",
                as_it_is=as_it_is,
                dry_run=dry_run,
                force=force,
            )
    _show(invocation, "adopt", result, rule)


def _show(invocation: Invocation, name: str, result: MergeResult, rule: str | None) -> None:
    lines = [*(change_lines(result.changes) if result.dry_run else ()), _summary(name, result)]
    invocation.output.result(name, result.to_dict, lines)
    invocation.output.note(*_notes(result, rule, invocation))


def _summary(name: str, result: MergeResult) -> str:
    paths = count_text(len(result.changes), "path")
    what = short_id(result.theirs_id)
    if name == "revert":
        what += ".." + ("now" if result.base_id is None else short_id(result.base_id))
    if not result.changes:
        why = "" if result.conflicts or result.left_out else ": the root has it already"
        return f"Nothing to {name} of {what}{why}"
    if result.dry_run:
        return f"Would {name} {what}: {paths}"
    assert result.snapshot is not None
    did = {"revert": "Reverted", "adopt": "Adopted"}[name]
    return f"{did} {what}: {paths} changed, now {short_id(result.snapshot.id)}"


def _notes(result: MergeResult, rule: str | None, invocation: Invocation) -> Iterator[str]:
    outcomes = {
        None: "it would be refused",
        "mine": "kept as they are",
        "theirs": "taken from the other side",
        "markers": "texts have marks, all else is kept",
    }
    if result.together is not None:
        steps = len(result.together.steps)
        all_of_it = {1: "all of it", 2: "both"}.get(steps, f"all {steps}")
        what = "all of it" if result.together.others else all_of_it
        would = "would revert" if result.dry_run else "reverting"
        yield f"{result.together.text}; {would} {what}"
    if result.conflicts:
        paths = count_text(len(result.conflicts), "path")
        yield f"{paths} changed on both sides, {outcomes[rule]}:"
        shown = [
            f"{printable(path or b'.')}{_TOO_LARGE if path in result.too_large else ''}"
            for path in result.conflicts
        ]
        for text in first_lines(shown, str, _SHOWN_MAX):
            yield f"  C  {text}"
    if result.kept:
        yield f"{count_text(len(result.kept), 'path')} changed meanwhile by others, and kept:"
        for text in first_lines(list(change_lines(result.kept)), str, _SHOWN_MAX):
            yield f"  {text}"
    yield from skipped_lines(result.left_out, "left out")
    if result.safety_id is not None:
        yield f"To go back: {invocation.command_text('undo')}"
