"""A sample of what ``tox -e soak`` does for minutes, and what it would notice."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

import treesnap
from soak.checks import Checker
from soak.damages import LOST, SECOND, TREE
from soak.place import COLLECTED, MOVED, RENAMED, Place
from soak.run_soak import soak
from soak.soak import MOVES_MIN, ROUNDS_MAX, TRIES_MAX, moves_verdict, verdict
from treesnap.core.model.snapshots import SnapshotKind

pytestmark = pytest.mark.sampled(10)

SEED = 11
WHERE = (TREE, SECOND, LOST)
ROUNDS = 10
"""Of each writer: about ten seconds on two cores with nothing else to do."""


@pytest.mark.slow
def test_many_processes_killed_and_stopped_at_random_lose_nothing(tmp_path):
    problems, counts = soak(tmp_path, SEED, 8, rounds=ROUNDS)

    assert problems == []
    happened = (
        "writer killed",
        "writer: created",
        "writer: restored",
        "reader: exported",
    )
    assert [what for what in happened if not counts[what]] == []
    assert any(counts[f"collector: {how}"] for how in COLLECTED)
    assert any(" stopped " in what for what in counts)
    assert counts[f"mover: {MOVED}"] >= MOVES_MIN


def said(who: str, *what: str, rounds: int = 0) -> list[dict[str, str]]:
    """Returns what an actor counted, and then many rounds of another one."""
    lines = [{"who": who, "what": each} for each in what]
    return lines + [{"who": "writer-1", "what": "round"}] * rounds


class TestWhileAWriterStands:
    """Load and chance decide how long it takes, so what others did is counted, not time."""

    @pytest.mark.parametrize(
        ("lines", "is_enough", "problem"),
        [
            (("begun", "collected", "round"), False, None),
            (("collected", "begun", "found nothing", "collected"), True, None),
            (("found nothing",) * 11, False, None),
            (("found nothing",) * 12, True, None),
            (("left garbage",) * 9, False, None),
            (("left garbage",) * 10, True, "garbage is left"),
            (("collected", *("left garbage",) * 10), False, None),
            (("busy: collector: held",) * 12, True, "collections are never possible"),
            (("found nothing", *("busy: collector: held",) * 11), True, None),
        ],
    )
    def test_it_goes_on_when_collections_were_tried(self, lines, is_enough, problem):
        assert verdict(said("collector-0", *lines)) == (is_enough, problem)

    def test_a_collection_that_does_not_end_is_noticed_however_slow_the_machine_is(self):
        lines = said("collector-0", "begun", rounds=ROUNDS_MAX)

        assert verdict(lines) == (False, None)
        assert verdict([*lines, lines[-1]]) == (True, "a collection does not end")


class TestWhileTheStoreCanBeMoved:
    BUSY = "busy: at work in the store"

    @pytest.mark.parametrize(
        ("lines", "is_enough"),
        [
            (("began", MOVED, "round"), False),
            ((RENAMED, RENAMED, MOVED), False),
            ((MOVED, "round", BUSY, MOVED), True),
            ((BUSY,) * TRIES_MAX, False),
        ],
    )
    def test_it_goes_on_when_the_store_was_moved_there_and_back(self, lines, is_enough):
        assert moves_verdict(said("mover-0", *lines)) == (is_enough, None)

    def test_moves_that_are_never_possible_are_a_problem(self):
        is_enough, problem = moves_verdict(said("mover-0", MOVED, *[self.BUSY] * TRIES_MAX))

        assert is_enough
        assert problem == f"nothing was proven about moves: 1 of {TRIES_MAX + 1} were possible"

    def test_a_move_that_does_not_end_is_a_problem(self):
        lines = said("mover-0", "began", rounds=ROUNDS_MAX)

        assert moves_verdict(lines) == (False, None)
        assert moves_verdict([*lines, lines[-1]]) == (True, "a move does not end")


class TestWhatIsNoticed:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """A root with two snapshots, one of them made by a restore."""
        place = Place(tmp_path, root_count=1)
        place.prepare(SEED)
        place.change(0, Random(SEED))
        self.make(place)
        place.change(0, Random(SEED + 1))
        handle = self.handle(place)
        target = handle.list()[0]
        log = place.ledger(0).log
        label = f"before restore {target.id[:12]}"
        states = place.ledger(0).allowed(target.id, target.label, target.kind.value)
        token = log.add(what="making", makes="safety", label=label, states=states)
        result = handle.restore(target.id)
        log.add(what="made", by=token, id=result.safety_id, ids=[result.safety_id])
        return place

    def handle(self, place: Place) -> treesnap.Handle:
        return treesnap.open(place.roots[0], place.store)

    def make(self, place: Place) -> str:
        """Takes a snapshot and says so."""
        log = place.ledger(0).log
        token = log.add(what="making", makes="manual", label="made here")
        identity = self.handle(place).create(label="made here").id
        log.add(what="made", by=token, id=identity, ids=[identity])
        return identity

    def problems(self, place: Place) -> list[str]:
        """Returns what is found wrong."""
        checker = Checker(place)
        checker.run()
        return checker.problems

    def test_nothing_where_nothing_is_wrong(self, place):
        checker = Checker(place)
        checker.run()

        assert checker.problems == []
        assert checker.sizes["snapshots"] == 2

    def test_a_root_that_is_gone_unless_no_writer_came_to_it(self, place):
        place.roots = [*place.roots, place.roots[0].with_name("later")]
        assert self.problems(place) == []

        place.ledger(1).log.add(what="base", states=[])

        assert self.problems(place) == ["root 1: it is gone"]

    def test_a_snapshot_that_is_lost(self, place):
        lost = self.handle(place).list()[-1].id
        self.handle(place).delete(lost)

        assert self.problems(place) == [f"root 0: snapshot {lost} is lost"]

    def test_no_snapshot_that_an_actor_deleted(self, place):
        gone = self.handle(place).list()[-1].id
        place.ledger(0).log.add(what="deleting", ids=[gone])
        self.handle(place).delete(gone)

        assert self.problems(place) == []

    def test_no_snapshot_that_a_killed_prune_may_have_removed(self, place):
        """Also where another one began and ended after it."""
        log = place.ledger(0).log
        log.add(what="pruning", who="pruner-1")
        log.add(what="gone", by=log.add(what="pruning", who="pruner-2"), ids=[])
        gone = self.make(place)
        self.handle(place).delete(gone)

        assert self.problems(place) == []

    def test_a_snapshot_that_was_made_when_no_prune_was_at_work(self, place):
        log = place.ledger(0).log
        log.add(what="pruning", who="pruner-1")
        log.add(what="gone", by=log.add(what="pruning", who="pruner-1"), ids=[])
        lost = self.make(place)
        self.handle(place).delete(lost)

        assert self.problems(place) == [f"root 0: snapshot {lost} is lost"]

    def test_a_pinned_snapshot_that_an_actor_deleted(self, place):
        gone = self.handle(place).list()[-1].id
        log = place.ledger(0).log
        log.add(what="pinned", ids=[gone])
        log.add(what="gone", ids=[gone])
        self.handle(place).delete(gone)

        assert self.problems(place) == [f"root 0: snapshot {gone} is lost"]

    def test_a_snapshot_that_no_actor_made(self, place):
        self.handle(place).create(kind=SnapshotKind.RUN)

        assert any("no actor made" in problem for problem in self.problems(place))

    def test_a_snapshot_that_holds_something_else(self, place):
        (place.roots[0] / "intruder").write_bytes(b"unseen")
        self.make(place)
        (place.roots[0] / "intruder").unlink()

        problems = self.problems(place)

        assert any("not what was captured: b'intruder'" in problem for problem in problems)

    def test_a_root_that_is_neither_old_nor_new(self, place):
        (place.roots[0] / "intruder").write_bytes(b"unseen")

        problems = self.problems(place)

        assert any("no state that it may be in: b'intruder'" in problem for problem in problems)

    def test_a_damaged_pack(self, place):
        pack = max(place.store.glob("packs/*"), key=os.path.getsize)
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 1
        pack.write_bytes(content)

        assert any(problem.startswith("verify") for problem in self.problems(place))

    @pytest.mark.parametrize("where", WHERE)
    def test_no_damage_that_was_done_on_purpose_and_mended(self, place, where):
        line = self.damage(place, where)
        own = treesnap.open(place.damages.root, place.store)
        is_readable = place.damages.is_whole(own, line)
        others = place.damages.unexpected(self.handle(place).verify(read_data=True).problems, 0)

        assert list(others) == []
        assert is_readable or where != SECOND
        assert self.problems(place) == []

    def test_damage_that_costs_what_could_be_had_again(self, place):
        identity = self.damage(place, TREE)["id"]
        (place.damages.root / "file").write_bytes(b"so it is not in the live tree")

        assert any(f"{identity} was not mended" in problem for problem in self.problems(place))

    def test_damage_that_costs_the_snapshot_of_another(self, place):
        self.damage(place, TREE)
        (pack,) = place.store.glob("packs/*")
        content = bytearray(pack.read_bytes())
        content[content.index(b"TSBK") + 40] ^= 1
        pack.write_bytes(content)
        found = self.handle(place).verify(read_data=True).problems

        assert list(place.damages.unexpected(found, 0))

    def damage(self, place: Place, where: str) -> dict[str, str]:
        place.damages.root.mkdir()
        own = treesnap.open(place.damages.root, place.store)
        assert place.damages.do(own, Random(SEED), where) == where
        return place.damages.doing()

    def test_a_store_that_is_too_large(self, place):
        (place.store / "quarantine").mkdir(exist_ok=True)
        (place.store / "quarantine" / "forgotten").write_bytes(bytes(2_000_000))

        assert any("too large" in problem for problem in self.problems(place))

    def test_what_is_left_lying_around(self, place):
        (place.exports / ".treesnap-export-0123456789abcdef").mkdir()

        assert any(problem.startswith("left behind") for problem in self.problems(place))
