"""``snap doctor``: work that was interrupted."""

from __future__ import annotations

from collections.abc import Iterator

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import ExitCode, hint_of
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import short_id
from treesnap.core import features
from treesnap.core.model.errors import ErrorCode, quoted
from treesnap.core.model.quantities import count_text
from treesnap.core.model.results import DoctorResult, UnfinishedWork

_WORDS = {
    UnfinishedWork.RESTORE: "restore",
    UnfinishedWork.EXPORT: "restore to another directory, with the history",
    UnfinishedWork.COLLECTION: "garbage collection",
    UnfinishedWork.PLAN: "plan",
    UnfinishedWork.STEP: "step",
    UnfinishedWork.MAINTENANCE: "automatic maintenance",
}
_UNITS_S = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


@command("doctor", examples=["snap doctor", "snap doctor --forget"])
@click.option("--forget", is_flag=True, help="Give up an interrupted restore of this root.")
@pass_invocation
def doctor(invocation: Invocation, *, forget: bool) -> None:
    """Show interrupted work in all roots, and what becomes of it.

    Changes nothing without --forget: 'snap status' finishes what can be finished.
    Exits 3 when something waits for a person.
    """
    invocation.output.prints_only = not forget
    with invocation.open() as handle:
        result = handle.doctor(forget=forget)
        others = [item for find in features.functions("unfinished") for item in find(handle)]
    result = result._replace(unfinished=(*result.unfinished, *others))
    invocation.output.result(
        "doctor",
        result.to_dict,
        _lines(result, invocation.program),
    )
    if result.blocked:
        click.get_current_context().exit(ExitCode.REFUSED)


def _lines(result: DoctorResult, program: str) -> Iterator[str]:
    """Yields a paragraph for each thing that was found."""
    if result.forgotten:
        yield "Forgot what was interrupted; the tree is as it was found"
    if not result.unfinished:
        yield "Nothing is unfinished"
    for item in result.unfinished:
        of = f" of {quoted(item.root)}" if item.root is not None else ""
        begun = ""
        if item.started_at_ns is not None:
            begun = f", begun {age_text(result.looked_at_ns - item.started_at_ns)}"
        yield f"Interrupted {_WORDS[item.work]}{of}{begun}"
        if item.target_id is not None and item.safety_id is not None:
            changed = f", {len(item.changed):,} changed by another program" if item.changed else ""
            yield (
                f"  from {short_id(item.safety_id)} to {short_id(item.target_id)}: "
                f"{item.done:,} of {count_text(item.paths, 'path')} done{changed}"
            )
        yield f"  {item.resolution}"
        if item.work == UnfinishedWork.PLAN:
            yield f"  hint: {hint_of(ErrorCode.PLAN_INTERRUPTED, program)}"


def age_text(age_ns: int) -> str:
    """Returns how long ago something was, roughly; clocks may have been changed since."""
    if age_ns < 0:
        return "in the future, by this clock"
    age_s = age_ns // 10**9
    for unit, size_s in _UNITS_S:
        if age_s >= size_s:
            return f"{count_text(age_s // size_s, unit)} ago"
    return "just now"
