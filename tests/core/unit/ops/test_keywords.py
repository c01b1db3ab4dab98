"""What the commands take as options, the methods of a handle take as keywords."""

from __future__ import annotations

from datetime import timedelta

import pytest

from treesnap.core.model.errors import InvalidArgument, NotFound
from treesnap.core.model.snapshots import SnapshotKind


@pytest.fixture
def steps(handle, root):
    """The first step of two sessions; the file holds which session it was."""
    for session in ("a", "b"):
        (root / "one").write_text(session)
        handle.create(session=session, step=1)
    (root / "one").write_text("now")
    return {item.session: item for item in handle.list()}


CALLS = {
    "resolve": lambda handle: handle.resolve("step:1", session="a").id,
    "ls": lambda handle: handle.ls("step:1", session="a")[-1].size,
    "cat": lambda handle: b"".join(handle.cat("step:1", "one", session="a")),
    "read": lambda handle: handle.read("step:1", "one", session="a"),
    "find": lambda handle: handle.find("one", ref="step:1", session="a")[0].snapshot_ids,
    "skipped": lambda handle: handle.skipped("step:1", session="a"),
    "diff": lambda handle: handle.diff("latest", "latest", session="a"),
    "restore": lambda handle: handle.restore("step:1", session="a").snapshot.session,
    "pin": lambda handle: handle.pin("step:1", session="a").session,
    "unpin": lambda handle: handle.unpin("latest", session="a").session,
    "delete": lambda handle: handle.delete("latest", session="a")[0].session,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_step_is_one_of_the_session(handle, steps, name):
    expected = {
        "resolve": steps["a"].id,
        "ls": 1,
        "cat": b"a",
        "read": b"a",
        "find": (steps["a"].id,),
        "skipped": (),
        "diff": (),
    }

    assert CALLS[name](handle) == expected.get(name, "a")


def test_a_step_of_no_such_session_is_not_found(handle, steps):
    with pytest.raises(NotFound):
        handle.restore("step:1", session="c")


def test_a_restore_of_a_path_goes_to_the_session(handle, steps, root):
    handle.restore("step:1", ["one"], session="a")

    assert (root / "one").read_text() == "a"


def test_a_base_is_one_of_the_session_too(handle, steps, root):
    (root / "added").write_text("by hand")
    (root / "one").write_text("b")

    result = handle.restore("step:1", base="step:1", session="b")

    assert [change.path for change in result.conflicts] == [b"added"]


def test_the_list_is_of_a_kind_and_since_a_time(handle, steps):
    handle.create(kind=SnapshotKind.WATCH)
    newest, second, first = handle.list()

    assert handle.list(kind=SnapshotKind.WATCH) == (newest,)
    assert handle.list(since=first.created_at) == (newest, second, first)
    assert handle.list(since=newest.created_at + timedelta(days=1)) == ()
    naive = newest.created_at.astimezone().replace(tzinfo=None)
    assert newest in handle.list(since=naive)


def test_a_time_is_no_text(handle):
    with pytest.raises(InvalidArgument, match="since must be a datetime"):
        handle.list(since="yesterday")


def test_a_block_may_say_what_it_belongs_to(handle):
    with handle.rollback_on_error("x", tags={"k": "v"}, session="s", step=7) as made:
        pass

    assert (made.snapshot.session, made.snapshot.step) == ("s", 7)
    assert made.snapshot.tags == {"k": "v"}


def test_a_block_sets_no_reserved_tag(handle):
    with (
        pytest.raises(InvalidArgument),
        handle.rollback_on_error(tags={"treesnap.phase": "x"}),
    ):
        pass
