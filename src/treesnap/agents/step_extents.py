"""From where to where a call of a tool went, and which calls of its session ran meanwhile.

A snapshot is taken before each call. Where several calls run at the same time, those of the others
lie between it and what it did, so the next snapshot is not the end of the call: hosts tell that.
"""

from __future__ import annotations

from collections.abc import Sequence

from treesnap.agents.attribution import calls_in
from treesnap.agents.marks import MarkPhase, ToldMark, marks_in, with_steps
from treesnap.agents.root_history import telling_sessions
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import StepGroup
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import Session
from treesnap.core.ops.history.steps import EventPhase, StepExtent, step_of


class _ToldCall(NamedTuple):
    """A call, by the places of its marks; open in the places from the first up to the last."""

    first: int
    last: int
    """That of its beginning where no end was told: it may have been refused."""


def extent_of(session: Session, snapshot: Snapshot) -> StepExtent | None:
    """Returns the extent of the call that a snapshot was taken before or after.

    With that of all calls of its session that ran at the same time, one after the other: what each
    of them did is not known. Returns None for other snapshots, and where no end was told.
    """
    step = step_of(snapshot)
    if step is None or step.phase not in (EventPhase.PRE, EventPhase.POST):
        return None
    snapshots = list(session.store.snapshots.readable(session.root.id))
    told = with_steps(marks_in(session), snapshots)
    own = snapshot.record.session or ""
    marks = [mark for mark in told if mark.session == own]
    for calls in _together(_calls(marks)):
        first, last = marks[calls[0].first].at, max(marks[call.last].end for call in calls)
        began = [marks[call.first] for call in calls]
        begun = {mark.at for mark in began if mark.phase is MarkPhase.PRE}
        is_in = first < snapshot.sequence <= last
        if snapshot.sequence not in begun and (step.phase is EventPhase.PRE or not is_in):
            continue
        if len(calls) == 1 and calls[0].first == calls[0].last:
            return None
        states = [item for item in reversed(snapshots) if item.record.scope is None]
        before = next((item for item in states if item.sequence >= first), snapshot)
        after = next((item for item in states if item.sequence >= last), snapshots[0])
        steps_by_sequence = {item.sequence: item.record.step or 0 for item in snapshots}
        steps = tuple(
            sorted(
                {steps_by_sequence[at] for at in begun if at in steps_by_sequence} or {step.number}
            )
        )
        # As in a rewind: one that still runs, or whose end was lost, may have made the changes.
        open_calls = calls_in(told, snapshots[0].sequence, telling_sessions(snapshots))
        others = {each.session for each in open_calls if each.first < last and first < each.last}
        return StepExtent(before, after, StepGroup(own, steps, tuple(sorted(others - {own}))))
    return None


def _calls(marks: Sequence[ToldMark]) -> list[_ToldCall]:
    """Returns the calls of a session, in the order in which they began."""
    open_calls: dict[str, list[int]] = {}
    ends: dict[int, int] = {}
    for place, mark in enumerate(marks):
        if mark.phase in (MarkPhase.PRE, MarkPhase.GAP):
            open_calls.setdefault(mark.call, []).append(place)
            ends[place] = place
        elif mark.phase in (MarkPhase.POST, MarkPhase.POST_GAP) and mark.call:
            begun = open_calls.get(mark.call)
            if begun:
                ends[begun.pop(0)] = place
        elif mark.phase in (MarkPhase.POST, MarkPhase.POST_GAP):
            ends.update((begun, place) for each in open_calls.values() for begun in each)
            open_calls.clear()
    return [_ToldCall(first, last) for first, last in ends.items()]


def _together(calls: Sequence[_ToldCall]) -> list[list[_ToldCall]]:
    """Returns calls in groups: each began before all others of its group had ended."""
    groups: list[list[_ToldCall]] = []
    end = -1
    for call in calls:
        if call.first > end:
            groups.append([])
        groups[-1].append(call)
        end = max(end, call.last)
    return groups
