"""``snap delete``, ``pin``, ``unpin`` and ``prune``: which snapshots stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from treesnap.cli.command import command, pass_invocation, session_option
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import list_lines
from treesnap.cli.parameters import DURATION, SIZE, WholeNumber
from treesnap.core.model.quantities import count_text, format_duration
from treesnap.core.model.results import PolicySource

if TYPE_CHECKING:
    from treesnap.core.model.results import PrunePolicy, PruneResult
    from treesnap.remote import RemotePruneResult

_COUNT = WholeNumber(min=0)


@command("delete", examples=["snap delete latest~1", "snap delete 3f2a 9c01 --json"])
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@session_option
@pass_invocation
def delete(invocation: Invocation, *, refs: Sequence[str]) -> None:
    """Delete snapshots; 'snap gc' then frees their space.

    Every REF is looked up before the first snapshot is deleted. Prints the ids.
    """
    output = invocation.output
    with invocation.open(progress=False) as handle:
        removed = handle.delete(*[invocation.resolve(handle, ref) for ref in refs])
    output.result(
        "delete",
        lambda: {"snapshots": removed, "damaged": removed.damaged, "newer": removed.newer},
        [*(snapshot.id for snapshot in removed), *removed.damaged, *removed.newer],
    )
    output.note(f"To free their space: {invocation.command_text('gc')}")


def _pinning(name: str, sentence: str) -> click.Command:
    """Returns ``pin`` or ``unpin``."""

    @command(
        name,
        help=f"{sentence}\n\nPrints the id.",
        examples=[f"snap {name} latest", f"snap {name} v1 --json"],
    )
    @click.argument("ref")
    @session_option
    @pass_invocation
    def pinning(invocation: Invocation, *, ref: str) -> None:
        with invocation.open(progress=False) as handle:
            change = handle.pin if name == "pin" else handle.unpin
            snapshot = change(invocation.resolve(handle, ref))
        invocation.output.result(name, snapshot.to_dict, [snapshot.id])

    return pinning


pin = _pinning("pin", "Protect a snapshot from deletion.")
unpin = _pinning("unpin", "End the protection of a snapshot.")


@command(
    "prune",
    examples=[
        "snap prune --dry-run",
        "snap prune --keep-last 10 --keep-daily 7",
        "snap prune --keep-daily 30 --keep-monthly 12 --keep-yearly 5",
        "snap prune --keep-within 2w --keep-tag release --max-size 10G",
    ],
)
@click.option("--keep-last", type=_COUNT, metavar="N", help="Keep the newest N.")
@click.option(
    "--keep-within",
    "keep_within_s",
    type=DURATION,
    metavar="TIME",
    help="Keep those younger than TIME: 36h, 2w.",
)
@click.option("--keep-hourly", type=_COUNT, metavar="N", help="Keep one of each of N hours.")
@click.option("--keep-daily", type=_COUNT, metavar="N", help="Keep one of each of N days.")
@click.option("--keep-weekly", type=_COUNT, metavar="N", help="Keep one of each of N weeks.")
@click.option("--keep-monthly", type=_COUNT, metavar="N", help="Keep one of each of N months.")
@click.option("--keep-yearly", type=_COUNT, metavar="N", help="Keep one of each of N years.")
@click.option(
    "--keep-tag",
    "keep_tags",
    multiple=True,
    metavar="KEY[=VALUE]",
    help="Keep those with this tag; repeatable.",
)
@click.option(
    "--max-size", type=SIZE, metavar="SIZE", help="Delete the oldest until the rest fits."
)
@click.option("--session", metavar="ID", help="Delete snapshots of this session only.")
@click.option("--remote", metavar="NAME", help="Prune the root's history on a remote instead.")
@click.option("-n", "--dry-run", is_flag=True, help="Print what would go and why; delete nothing.")
@pass_invocation
def prune(
    invocation: Invocation,
    /,
    *,
    max_size: int | None,
    session: str | None,
    remote: str | None,
    dry_run: bool,
    **rules: Any,
) -> None:
    """Delete the root's snapshots that no rule keeps.

    'snap gc', or 'snap remote gc', then frees their space. Without a rule those of
    'snap config' hold: automatic snapshots are thinned out and those made by hand stay.
    Pinned and named snapshots always stay.
    """
    from treesnap.core.store.maintenance.retention import Policy

    if remote is not None and (max_size, session) != (None, None):
        raise click.UsageError("--remote excludes --max-size and --session")
    with invocation.open() as handle:
        result: PruneResult | RemotePruneResult
        if remote is not None:
            from treesnap.remote import Remotes
            from treesnap.remote.commands.secret import secret_of

            result = Remotes(handle, secret_of(handle)).prune(
                remote, Policy(**rules), dry_run=dry_run
            )
        else:
            result = handle.prune(
                Policy(**rules), session=session, max_size_bytes=max_size, dry_run=dry_run
            )
    output = invocation.output
    output.result("prune", result.to_dict, _prune_lines(result))
    if result.policy.source != PolicySource.GIVEN:
        output.note(f"The rules are {_policy_text(result.policy)}")
    if not result.removed:
        output.note(*_what_keeps(invocation, result, remote))
    if result.removed and not dry_run:
        words = ["gc"] if remote is None else ["remote", "gc", remote]
        output.note(f"To free their space: {invocation.command_text(*words)}")


def _policy_text(policy: PrunePolicy) -> str:
    """Returns the rules as ``snap config`` names them."""
    words = []
    for name, value in policy.rules.items():
        if name == "within_s":
            assert isinstance(value, int)
            words.append(f"keep.within {format_duration(value)}")
        else:
            words.append(f"keep.{name} {','.join(value) if isinstance(value, tuple) else value}")
    where = "of 'snap config'" if policy.source == PolicySource.SETTINGS else "the default ones"
    return f"{where}: {', '.join(words)}"


_KEPT_BECAUSE = {
    "pinned": "pinned",
    "named": "named",
    "manual": "made by hand (the rules leave these alone)",
    "another session": "of another session",
    "no rule": "small enough together",
    "interrupted restore": "needed by an interrupted restore",
    "in use": "needed by what is at work in the root",
    "undo": "what 'snap undo' goes back to",
    "redo": "what 'snap redo' goes to",
    "position": "the state in which the root was put",
    "checkpoint": "checkpoints of a plan",
    "newest": "the newest",
}
"""What words of a result mean; all others are names of rules."""


def _what_keeps(
    invocation: Invocation, result: PruneResult | RemotePruneResult, remote: str | None
) -> Iterator[str]:
    """Yields why no snapshot goes, and what to do."""
    if not result.kept:
        yield "This directory has no snapshots here; 'snap root list' shows those that have some"
        return
    counts = Counter(
        _KEPT_BECAUSE.get(words[0], "kept by the rules") for words in result.reasons.values()
    )
    why = [f"{count:,} {'is' if count == 1 else 'are'} {words}" for words, count in counts.items()]
    yield f"No snapshot {'would be' if result.dry_run else 'was'} removed: {', '.join(why)}"
    if all(words == ("another session",) for words in result.reasons.values()):
        yield f"The sessions of the snapshots: {invocation.command_text('list')}"
    elif result.policy.source != PolicySource.GIVEN:
        words = ["prune", "--keep-last", "10", "--dry-run"]
        command_text = invocation.command_text(*words, *(["--remote", remote] if remote else []))
        yield f"Rules of your own can remove what was made by hand too: {command_text}"
    elif remote is None:
        command_text = invocation.command_text("delete", "REF")
        yield f"Rules that keep less remove more; to remove one snapshot: {command_text}"


def _prune_lines(result: PruneResult | RemotePruneResult) -> Iterator[str]:
    """Yields a table, newest first: what becomes of each snapshot, and why."""
    goes = "would go" if result.dry_run else "removed"
    snapshots = sorted(
        [*result.kept, *result.removed], key=lambda item: item.sequence, reverse=True
    )
    why = [", ".join(result.reasons.get(item.id, ())) for item in snapshots]
    width = max(map(len, why), default=0)
    for reason, row in zip(why, list_lines(snapshots, with_roots=False), strict=True):
        yield f"{'keep' if reason else goes:<9} {reason.ljust(width)}  {row}".rstrip()
    removed = "would be removed" if result.dry_run else "removed"
    yield f"{count_text(len(result.removed), 'snapshot')} {removed}, {len(result.kept):,} kept"
