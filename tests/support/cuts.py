"""The disks that a power cut may leave, made from a recording.

A power cut keeps what is durable, and any part of what is pending, in the order in
which it was asked for. Just before a sync most is pending, and every state from
earlier on is among its subsets; so the moments before each sync and at the end are
all that matter. Where little is pending, every subset is made; otherwise those in
which bugs live, and a seeded sample of the others. One of the writes that are kept
may be torn.

Equal disks are made once, but those from after the operation's return are kept
apart, because more is asked of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import combinations, groupby
from random import Random

from disk import Disk, Effect
from power import Awaited, PowerStep, Recording, Returned, Sync

ALL_SUBSETS_MAX = 6
"""Up to so many pending effects, every subset of them is a disk of its own."""

Lost = frozenset[int]
"""Positions of the pending effects that a cut loses."""


class Torn(StrEnum):
    """What arrived of a write that was under way."""

    HALF = "half of its bytes"
    ZEROS = "zeros"


@dataclass(frozen=True, kw_only=True)
class CutMoment:
    """A point at which the power may fail: just before a sync, or at the end."""

    name: str
    before: Disk
    steps: tuple[PowerStep, ...]
    """Everything that was done by then."""
    pending: tuple[int, ...]
    """Positions of the steps that are not durable."""
    is_after_return: bool

    @cached_property
    def _base(self) -> tuple[Disk, int]:
        """The disk with everything before the first pending step, and its position."""
        first = self.pending[0] if self.pending else len(self.steps)
        disk = self.before.copy()
        for step in self.steps[:first]:
            disk.apply(step.effect)
        return disk, first

    def disk(self, lost: Lost, torn: tuple[int, Torn] | None) -> Disk:
        """Returns what is left when some pending steps are lost and one is torn."""
        base, first = self._base
        disk = base.copy()
        for position in range(first, len(self.steps)):
            effect = self.steps[position].effect
            if torn is not None and position == torn[0]:
                effect = _torn(effect, torn[1])
            if position not in lost:
                disk.apply(effect)
        return disk


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One power cut."""

    moment: CutMoment = field(repr=False)
    lost: Lost
    torn: tuple[int, Torn] | None = None

    @property
    def disk(self) -> Disk:
        """What is left; made anew each time."""
        return self.moment.disk(self.lost, self.torn)

    def __str__(self) -> str:
        """Says what is lost, or what is kept, whichever is less."""
        steps = self.moment.steps
        pending = self.moment.pending
        lines = [f"power cut {self.moment.name}, {len(self.lost)} of {len(pending)} pending lost"]
        kept = [position for position in pending if position not in self.lost]
        what, positions = min(("lost", sorted(self.lost)), ("kept", kept), key=_length)
        labels = groupby(steps[position].effect.label for position in positions)
        lines += [f"  {what}: {label}{_times(len([*same]))}" for label, same in labels]
        if self.torn is not None:
            position, how = self.torn
            lines.append(f"  torn: {steps[position].effect.label}: {how}")
        return "\n".join(lines)


def _length(item: tuple[str, list[int]]) -> int:
    return len(item[1])


def _times(count: int) -> str:
    return f", {count} times" if count > 1 else ""


def moments(recording: Recording) -> Iterator[CutMoment]:
    """Yields every moment that matters, in order."""
    steps: list[PowerStep] = []
    waiting: dict[int, frozenset[Awaited]] = {}
    syncs = 0
    returned = False

    def moment(name: str) -> CutMoment:
        return CutMoment(
            name=name,
            before=recording.before,
            steps=tuple(steps),
            pending=tuple(waiting),
            is_after_return=returned,
        )

    for event in recording.events:
        if isinstance(event, PowerStep):
            waiting[len(steps)] = event.awaits
            steps.append(event)
        elif isinstance(event, Sync):
            yield moment(f"before sync {syncs} ({event.method} {event.path!r})")
            syncs += 1
            waiting = {
                position: rest
                for position, awaits in waiting.items()
                if (rest := frozenset(item for item in awaits if not event.covers(item)))
            }
        else:
            assert isinstance(event, Returned)
            returned = True
            yield moment("after the return")
    yield moment("at the end")


def cuts(
    recording: Recording,
    *,
    random: Random,
    more: int = 50,
    untimed: bytes | None = None,
    first: int = 0,
) -> Iterator[Cut]:
    """Yields the cuts of a recording that leave different disks.

    ``first`` is the moment to begin with; -1 is the end.

    ``more`` is how many pairs, and how many other subsets, are tried at each moment
    at which there are too many to try them all. Modification times below
    ``untimed`` make no difference.
    """
    seen = set()
    for moment in [*moments(recording)][first:]:
        for cut in cuts_at(moment, random, more):
            key = (moment.is_after_return, cut.disk.digest(untimed))
            if key not in seen:
                seen.add(key)
                yield cut


def cuts_at(moment: CutMoment, random: Random, more: int) -> Iterator[Cut]:
    """Yields the cuts at one moment; some may leave the same disk."""
    for lost in dict.fromkeys(_losses(moment.pending, random, more)):
        yield Cut(moment=moment, lost=lost)
    writes = [
        position
        for position in moment.pending
        if (writing := moment.steps[position].effect.writing) is not None and writing.data
    ]
    for position in writes:
        behind = frozenset(later for later in moment.pending if later > position)
        for lost in dict.fromkeys([Lost(), behind, _chosen(moment.pending, random) - {position}]):
            for how in Torn:
                yield Cut(moment=moment, lost=lost, torn=(position, how))


def _losses(pending: tuple[int, ...], random: Random, more: int) -> Iterator[Lost]:
    everything = frozenset(pending)
    if len(pending) <= ALL_SUBSETS_MAX:
        for count in range(len(pending) + 1):
            yield from (frozenset(lost) for lost in combinations(pending, count))
        return
    yield Lost()
    yield everything
    for number, position in enumerate(pending):
        yield frozenset({position})
        yield everything - {position}
        yield frozenset(pending[number:])
    for _ in range(more):
        yield frozenset(random.sample(pending, 2))
        yield _chosen(pending, random)


def _chosen(pending: tuple[int, ...], random: Random) -> Lost:
    """Returns a random subset, of any share of the whole."""
    share = random.random()
    return frozenset(position for position in pending if random.random() < share)


def _torn(effect: Effect, how: Torn) -> Effect:
    writing = effect.writing
    assert writing is not None
    assert writing.data is not None
    size = len(writing.data)
    data = writing.data[: size // 2] if how == Torn.HALF else bytes(size)
    return replace(effect, writing=replace(writing, data=data))
