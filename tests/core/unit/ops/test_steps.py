"""The numbers of a restore's steps."""

from __future__ import annotations

from treesnap.core.handle import Handle
from treesnap.core.ops.context import Session, context_at
from treesnap.core.ops.restore.plan import RestorePlan
from treesnap.core.ops.restore.transaction import RestoreWork, Steps

PATHS = [b"file-%d" % number for number in range(50)]


class CountedPaths(tuple):
    """Paths that count how often they are gone through."""

    times = 0

    def __iter__(self):
        CountedPaths.times += 1
        return super().__iter__()


def test_numbering_goes_through_the_paths_a_fixed_number_of_times(tmp_path):
    handle = Handle(context_at(root=tmp_path / "root", store_path=str(tmp_path / "store")))
    plan = RestorePlan()
    plan.puts = dict.fromkeys(PATHS)
    work = RestoreWork(plan=plan, current=None, target=None, observed=None, touch=False)

    Steps(Session(handle.context, None, None), work, CountedPaths(PATHS))

    assert CountedPaths.times <= 2
