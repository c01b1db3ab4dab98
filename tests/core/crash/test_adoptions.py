"""``adopt``, killed or failing at every point: the origin is as before, or has all of the fork.

Power cuts are in test_power_cuts.
"""

from __future__ import annotations

import errno

import pytest

from adopting import adopt, fork_of, prepare_and_note, settled
from everywhere import assert_turns_once, fail_everywhere, kill_everywhere
from sampling import IS_FULL
from state import tree_state
from treesnap.core.fs.base import Unsupported
from treesnap.testing.doubles import Fault, error_at, kill_halfway

NO_EXCHANGE = Fault(
    methods=frozenset({"exchange"}), errno=errno.EINVAL, error=Unsupported, lasting=True
)


@pytest.fixture(scope="module")
def adopting(scene):
    """Kept: "to adopt", an origin and a fork that both went on."""
    scene.reset("changed")
    prepare_and_note(scene)
    scene.keep("to adopt")
    return scene


class TestKilled:
    def test_leaves_the_old_tree_or_the_new_one(self, adopting):
        outcomes = kill_everywhere(adopting, "to adopt", adopt, lambda: settled(adopting))

        assert_turns_once(outcomes, "origin", "adopted")

    @pytest.mark.sampled(3)
    def test_leaves_one_of_both_where_names_cannot_be_exchanged(self, adopting):
        outcomes = kill_everywhere(
            adopting, "to adopt", adopt, lambda: settled(adopting), NO_EXCHANGE, every=2
        )

        assert_turns_once(outcomes, "origin", "adopted")

    @pytest.mark.sampled(3)
    def test_leaves_one_of_both_when_a_write_arrives_by_half(self, adopting):
        assert kill_everywhere(
            adopting, "to adopt", adopt, lambda: settled(adopting), at=kill_halfway
        )


class TestFailing:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_is_undone_or_done(self, adopting, number):
        def check(error) -> str:
            if error is None:
                adopting.handle().recover()
            assert not list(adopting.store.glob("roots/*/journal")), error
            assert tree_state(fork_of(adopting)) == adopting.states["forked"]
            return str(adopting.name_of_state("origin" if error is not None else "adopted"))

        outcomes = fail_everywhere(
            adopting, "to adopt", adopt, check, lambda point: error_at(point, number), every=2
        )

        assert set(outcomes) <= {"origin", "adopted"}
        assert "origin" in outcomes or not IS_FULL  # a sample may miss it
