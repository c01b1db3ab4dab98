"""Which snapshots a policy keeps: pure, from their records alone.

A rule keeps what it names; what no rule keeps may go. Pinned and named snapshots are kept
whatever the policy, and so are those of kinds that the policy does not mention. Snapshots made
by hand and automatic ones are counted separately, and so are those of the whole root and those
of some paths, and those that an agent's prompts, its tools and the ends of its turns made: so the
many of one sort do not displace the few of another. Times are those in the snapshots; a clock
that jumps keeps more, never fewer than ``keep_last``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime

from treesnap.core.model.arguments import checked_record
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.reserved_tags import HOST, RESERVED_TAGS
from treesnap.core.model.snapshots import Snapshot, SnapshotKind, utc_time

_PINNED, _NAMED = "pinned", "named"
"""Reasons that are not of a rule."""
AUTOMATIC = frozenset(SnapshotKind) - {SnapshotKind.MANUAL}
"""Kinds of snapshots that are made unasked."""
_PHASE = f"{RESERVED_TAGS}phase"
"""A fact that the snapshots of an agent have."""


@checked_record
class Policy(NamedTuple):
    """Rules; None leaves one out. A policy without any rule keeps everything."""

    keep_last: int | None = None
    """The newest ones."""
    keep_within_s: int | None = None
    """Those that are younger."""
    keep_hourly: int | None = None
    """The newest of each of the last hours that have any; all periods are of UTC."""
    keep_daily: int | None = None
    keep_weekly: int | None = None
    """Weeks begin on Monday, as those of ISO 8601."""
    keep_monthly: int | None = None
    keep_yearly: int | None = None
    keep_tags: tuple[str, ...] = ()
    """Those with one of these tags: ``KEY`` or ``KEY=VALUE``."""
    kinds: frozenset[SnapshotKind] = frozenset(SnapshotKind)
    """The kinds that may go."""

    @property
    def rules(self) -> dict[str, int | tuple[str, ...]]:
        """The rules that are given, by their keyword without ``keep_``."""
        prefix = "keep_"
        names = [name for name in self._fields if name.startswith(prefix)]
        given = {name.removeprefix(prefix): getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value not in (None, ())}

    @property
    def is_empty(self) -> bool:
        """Whether no rule is given, so that nothing goes."""
        return not self.rules

    @property
    def keeps_nothing(self) -> bool:
        """Whether rules are given, of all kinds of snapshots, and each keeps none."""
        is_none = all(
            value <= 0
            if isinstance(value, int)
            else not any(tag.partition("=")[0] for tag in value)
            for value in self.rules.values()
        )
        return is_none and not self.is_empty and self.kinds == frozenset(SnapshotKind)


DEFAULT = Policy(keep_last=50, keep_hourly=24, keep_daily=14, keep_weekly=8, kinds=AUTOMATIC)
"""The policy for automatic snapshots unless the user sets another."""


class Decision(NamedTuple):
    """What a policy says of one snapshot."""

    snapshot: Snapshot
    reasons: tuple[str, ...]
    """Why it is kept; none when it goes."""
    is_safe: bool = False
    """Whether it stays even when there is no room for it: a person pinned, named or made it."""

    @property
    def is_kept(self) -> bool:
        """Whether something keeps the snapshot."""
        return bool(self.reasons)


def decide(snapshots: Iterable[Snapshot], policy: Policy, now_ns: int) -> list[Decision]:
    """Returns a decision for each snapshot, in the order given, which is newest first."""
    rules: dict[object, _Rules] = defaultdict(lambda: _Rules(policy, now_ns))
    return [
        Decision(
            snapshot,
            tuple(rules[_sort_of(snapshot)].reasons(snapshot)),
            is_safe=_is_safe(snapshot, policy),
        )
        for snapshot in snapshots
    ]


def is_kept_by_rule(item: Decision) -> bool:
    """Returns whether a snapshot stays for more than a pin or its name."""
    return not {_PINNED, _NAMED}.issuperset(item.reasons)


def _is_safe(snapshot: Snapshot, policy: Policy) -> bool:
    is_by_hand = snapshot.kind == SnapshotKind.MANUAL and snapshot.kind not in policy.kinds
    return snapshot.pinned or snapshot.name is not None or is_by_hand


def _sort_of(snapshot: Snapshot) -> tuple[bool, bool, str | None]:
    """Returns what snapshots have in common that are counted together.

    A turn of an agent has one prompt and may have hundreds of calls of tools.
    """
    tags = snapshot.record.tags
    phase = tags.get(_PHASE) if HOST in tags else None
    return snapshot.kind in AUTOMATIC, snapshot.record.scope is None, phase


class _Rules:
    def __init__(self, policy: Policy, now_ns: int) -> None:
        self._policy = policy
        self._now_ns = now_ns
        self._last_left = policy.keep_last or 0
        self._periods = [
            _Periods("hourly", policy.keep_hourly, lambda time: time.strftime("%Y-%m-%d %H")),
            _Periods("daily", policy.keep_daily, lambda time: time.strftime("%Y-%m-%d")),
            _Periods("weekly", policy.keep_weekly, lambda time: time.strftime("%G-W%V")),
            _Periods("monthly", policy.keep_monthly, lambda time: time.strftime("%Y-%m")),
            _Periods("yearly", policy.keep_yearly, lambda time: time.strftime("%Y")),
        ]

    def reasons(self, snapshot: Snapshot) -> list[str]:
        """Returns why a snapshot is kept. Call it once for each, newest first."""
        reasons = []
        if snapshot.pinned:
            reasons.append(_PINNED)
        if snapshot.name is not None:
            reasons.append(_NAMED)
        if snapshot.kind not in self._policy.kinds:
            return [*reasons, snapshot.kind.value]
        if self._policy.is_empty:
            return [*reasons, "no rule"]
        return reasons + self._by_rule(snapshot)

    def _by_rule(self, snapshot: Snapshot) -> list[str]:
        rules = []
        if self._last_left > 0:
            self._last_left -= 1
            rules.append("last")
        created_ns = snapshot.record.created_at_ns
        within_s = self._policy.keep_within_s
        if within_s is not None and created_ns > self._now_ns - within_s * 10**9:
            rules.append("within")
        time = utc_time(created_ns)
        rules += [periods.name for periods in self._periods if periods.takes(time)]
        rules += [f"tag {tag}" for tag in self._policy.keep_tags if snapshot.has_tag(tag)]
        return rules


class _Periods:
    """One of the rules that keep the newest snapshot of each period."""

    def __init__(self, name: str, count: int | None, key: Callable[[datetime], str]) -> None:
        self.name = name
        self._left = count or 0
        self._key = key
        self._seen: set[str] = set()

    def takes(self, time: datetime) -> bool:
        """Returns whether this is the newest snapshot of a period that still counts."""
        key = self._key(time)
        if self._left == 0 or key in self._seen:
            return False
        self._seen.add(key)
        self._left -= 1
        return True
