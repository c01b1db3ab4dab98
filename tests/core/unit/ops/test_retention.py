"""Which snapshots a policy keeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.model.entries import Entry, EntryKind, Totals
from treesnap.core.model.snapshots import (
    Snapshot,
    SnapshotId,
    SnapshotKind,
    SnapshotRecord,
    SnapshotState,
)
from treesnap.core.store.maintenance.retention import AUTOMATIC, DEFAULT, Policy, decide

NOW = datetime(2026, 3, 10, 12, 30, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 10**9
ROOT = Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, 0, 0, bytes(32), None)


def snapshot(
    age: timedelta,
    *,
    kind: SnapshotKind = SnapshotKind.SAFETY,
    name: str | None = None,
    tags: dict[str, str] | None = None,
    pinned: bool = False,
) -> Snapshot:
    """A snapshot that was taken a while ago."""
    age_s = int(age.total_seconds())
    record = SnapshotRecord(
        root=ROOT,
        links=None,
        root_path=b"/root",
        created_at_ns=NOW_NS - age_s * 10**9,
        totals=Totals(),
        kind=kind,
        name=name,
        tags=tags or {},
    )
    identity = SnapshotId(f"{age_s + 10**9:064x}")
    state = SnapshotState(pinned=pinned)
    return Snapshot(id=identity, sequence=1, root_hash="", record=record, state=state)


def kept(ages: list[timedelta], policy: Policy) -> list[timedelta]:
    """Returns the ages of the snapshots that a policy keeps."""
    decisions = decide([snapshot(age) for age in ages], policy, NOW_NS)
    return [age for age, decision in zip(ages, decisions, strict=True) if decision.is_kept]


def hours(*numbers: float) -> list[timedelta]:
    return [timedelta(hours=number) for number in numbers]


def test_many_calls_of_tools_do_not_displace_a_prompt():
    def step(age_s: int, phase: str) -> Snapshot:
        tags = {"treesnap.host": "claude", "treesnap.phase": phase}
        return snapshot(timedelta(seconds=age_s), kind=SnapshotKind.AUTOMATIC, tags=tags)

    history = [step(0, "end"), *(step(age, "pre") for age in range(1, 100)), step(100, "turn")]
    history += [snapshot(timedelta(seconds=age)) for age in range(101, 200)]
    policy = Policy(keep_last=50, kinds=AUTOMATIC)

    left = [decision.snapshot for decision in decide(history, policy, NOW_NS) if decision.is_kept]

    assert left == [*history[:51], *history[100:151]]


class TestRules:
    def test_the_last_ones(self):
        assert kept(hours(1, 2, 3), Policy(keep_last=2)) == hours(1, 2)

    def test_the_young_ones_and_those_of_the_future(self):
        policy = Policy(keep_within_s=2 * 3600)

        assert kept(hours(-5, 1.9, 2, 2.1), policy) == hours(-5, 1.9)

    def test_the_newest_of_each_hour_that_has_any(self):
        assert kept(hours(0.1, 0.2, 1, 1.2, 9), Policy(keep_hourly=3)) == hours(0.1, 1, 9)

    def test_the_newest_of_each_day(self):
        assert kept(hours(1, 12.6, 13, 36, 37), Policy(keep_daily=3)) == hours(1, 12.6, 37)

    def test_the_newest_of_each_week(self):
        """The tenth of March 2026 is a Tuesday."""
        assert kept(hours(1, 36, 37, 400), Policy(keep_weekly=2)) == hours(1, 37)

    def test_the_newest_of_each_month(self):
        """From the tenth of March, 12:30: February began 37.5 days ago and ended 9.5 days ago."""
        ages = [timedelta(days=days) for days in (1, 9.4, 9.6, 37.4, 37.6, 400)]

        assert kept(ages, Policy(keep_monthly=3)) == [ages[0], ages[2], ages[4]]

    def test_the_newest_of_each_year(self):
        """2026 began 68.5 days ago."""
        ages = [timedelta(days=days) for days in (1, 68, 69, 430, 440, 2000)]

        assert kept(ages, Policy(keep_yearly=3)) == [ages[0], ages[2], ages[4]]

    @given(
        rule=st.sampled_from(["hourly", "daily", "weekly", "monthly", "yearly"]),
        count=st.integers(1, 5),
        ages_s=st.lists(st.integers(0, 10**9), max_size=40).map(sorted),
    )
    def test_of_periods_follow_the_calendar(self, rule, count, ages_s):
        """Periods as the calendar has them, counted without formatting a time."""

        def period(age: timedelta) -> tuple[int, ...]:
            time = NOW - age
            iso = time.isocalendar()
            return {
                "hourly": (time.year, time.month, time.day, time.hour),
                "daily": (time.year, time.month, time.day),
                "weekly": (iso.year, iso.week),
                "monthly": (time.year, time.month),
                "yearly": (time.year,),
            }[rule]

        ages = [timedelta(seconds=age_s) for age_s in ages_s]
        newest = {period(age): age for age in reversed(ages)}

        expected = sorted(newest.values())[:count]
        decisions = decide(map(snapshot, ages), Policy(**{f"keep_{rule}": count}), NOW_NS)

        found = [item.snapshot.record.created_at_ns for item in decisions if item.is_kept]
        assert found == [snapshot(age).record.created_at_ns for age in expected]

    def test_those_with_a_tag(self):
        given_tags = [{"release": "1"}, {"release": "2"}, {}]
        snapshots = [
            snapshot(timedelta(hours=number), tags=tags) for number, tags in enumerate(given_tags)
        ]

        any_value = decide(snapshots, Policy(keep_tags=("release",)), NOW_NS)
        one_value = decide(snapshots, Policy(keep_tags=("release=2",)), NOW_NS)

        assert [item.reasons for item in any_value] == [("tag release",), ("tag release",), ()]
        assert [item.is_kept for item in one_value] == [False, True, False]

    def test_together_keep_what_any_of_them_keeps(self):
        policy = Policy(keep_last=1, keep_daily=2)

        decisions = decide([snapshot(age) for age in hours(1, 2, 30)], policy, NOW_NS)

        assert [item.reasons for item in decisions] == [("last", "daily"), (), ("daily",)]

    def test_of_zero_keep_nothing(self):
        assert kept(hours(1), Policy(keep_last=0)) == []

    @pytest.mark.parametrize("tags", [("=",), ("",), ("=value", "=")])
    def test_of_tags_without_a_key_keep_nothing(self, tags):
        assert Policy(keep_tags=tags).keeps_nothing
        assert not Policy(keep_tags=(*tags, "key")).keeps_nothing
        assert not Policy(keep_tags=tags, keep_last=1).keeps_nothing

    def test_that_are_absent_keep_everything(self):
        assert kept(hours(1, 2), Policy()) == hours(1, 2)


class TestWhatIsSafe:
    @pytest.mark.parametrize(
        ("options", "reason"), [({"pinned": True}, "pinned"), ({"name": "one"}, "named")]
    )
    def test_from_every_policy(self, options, reason):
        old = snapshot(timedelta(days=5000), **options)

        assert decide([old], Policy(keep_last=0), NOW_NS)[0].reasons == (reason,)

    def test_from_the_default_policy(self):
        by_hand = snapshot(timedelta(days=5000), kind=SnapshotKind.MANUAL)

        assert decide([by_hand], DEFAULT, NOW_NS)[0].reasons == ("manual",)
        assert SnapshotKind.MANUAL not in AUTOMATIC

    def test_does_not_count_as_one_of_the_last(self):
        by_hand = snapshot(timedelta(hours=1), kind=SnapshotKind.MANUAL)
        automatic = [snapshot(timedelta(hours=2)), snapshot(timedelta(hours=3))]
        policy = Policy(keep_last=1, kinds=AUTOMATIC)

        decisions = decide([by_hand, *automatic], policy, NOW_NS)

        assert [item.is_kept for item in decisions] == [True, True, False]


def test_safety_snapshots_do_not_push_out_what_was_made_by_hand():
    by_hand = [snapshot(timedelta(hours=age), kind=SnapshotKind.MANUAL) for age in (8, 9)]
    automatic = [snapshot(timedelta(hours=age)) for age in (1, 2)]

    decisions = decide([*automatic, *by_hand], Policy(keep_last=1), NOW_NS)

    assert [item.is_kept for item in decisions] == [True, False, True, False]


counts = st.none() | st.integers(0, 5)


@given(
    ages=st.lists(st.integers(0, 10**7), max_size=40).map(sorted),
    policy=st.builds(
        Policy,
        keep_last=counts,
        keep_within_s=st.none() | st.integers(0, 10**7),
        keep_hourly=counts,
        keep_daily=counts,
        keep_weekly=counts,
        keep_monthly=counts,
        keep_yearly=counts,
    ),
)
def test_a_policy_may_be_applied_again_and_again(ages, policy):
    """What it keeps once it keeps again, and it never keeps less than the last ones."""
    times = [timedelta(seconds=age) for age in ages]

    once = kept(times, policy)

    assert kept(once, policy) == once
    assert once[: policy.keep_last or 0] == times[: policy.keep_last or 0]


@given(st.lists(st.integers(0, 10**9), max_size=300).map(sorted))
def test_the_default_policy_bounds_what_is_kept(ages):
    assert len(kept([timedelta(seconds=age) for age in ages], DEFAULT)) <= 50 + 24 + 14 + 8
