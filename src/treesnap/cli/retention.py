"""Which snapshots stay: the rules that a command line gives, and the decisions that it prints.

For ``prune``, and for commands of features that prune the history in another place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from treesnap.cli.output.as_text import list_lines
from treesnap.core.model.quantities import count_text, format_duration
from treesnap.core.model.results import PolicySource
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.cli.invocation import Invocation
    from treesnap.core.model.presentation import Fields
    from treesnap.core.model.results import PrunePolicy, PruneResult


def print_decisions(
    invocation: Invocation,
    name: str,
    fields: Callable[[], Fields],
    result: PruneResult,
    *,
    again: Sequence[str],
    collect: Sequence[str],
    without_snapshots: str,
    delete: Sequence[str] | None = None,
) -> None:
    """Prints what became of each snapshot, and what to type next.

    ``name`` and ``fields`` are those of the JSON object; ``again``, ``collect`` and ``delete``
    the words of the commands that prune again, free space, and delete one snapshot.
    """
    output = invocation.output
    output.result(name, fields, _decision_lines(result))
    if result.policy.source != PolicySource.GIVEN:
        output.note(f"The rules are {_policy_text(result.policy)}")
    if result.removed:
        if not result.dry_run:
            output.note(f"To free their space: {invocation.command_text(*collect)}")
    elif result.kept:
        output.note(*_what_keeps(invocation, result, again, delete))
    else:
        output.note(without_snapshots)


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
    invocation: Invocation, result: PruneResult, again: Sequence[str], delete: Sequence[str] | None
) -> Iterator[str]:
    """Yields why no snapshot goes, and what to do."""
    counts = Counter(
        _KEPT_BECAUSE.get(words[0], "kept by the rules") for words in result.reasons.values()
    )
    why = [f"{count:,} {'is' if count == 1 else 'are'} {words}" for words, count in counts.items()]
    yield f"No snapshot {'would be' if result.dry_run else 'was'} removed: {', '.join(why)}"
    if all(words == ("another session",) for words in result.reasons.values()):
        yield f"The sessions of the snapshots: {invocation.command_text('list')}"
    elif result.policy.source != PolicySource.GIVEN:
        command_text = invocation.command_text(*again, "--keep-last", "10", "--dry-run")
        yield f"Rules of your own can remove what was made by hand too: {command_text}"
    elif delete is not None:
        command_text = invocation.command_text(*delete)
        yield f"Rules that keep less remove more; to remove one snapshot: {command_text}"


def _decision_lines(result: PruneResult) -> Iterator[str]:
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
