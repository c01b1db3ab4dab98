"""``snap describe`` and ``tag``: labels and tags of snapshots that were taken before."""

from __future__ import annotations

import pytest

from treesnap.core.handle import open as open_handle
from treesnap.core.model.errors import InvalidArgument


@pytest.fixture
def taken(snap):
    """The id of a snapshot with a label and two tags."""
    return snap("create", "-m", "old", "--tag", "a=1", "--tag", "b=2").id


def shown(snap, ref="latest"):
    """Returns label and tags as ``show`` has them."""
    document = snap("show", ref, "--json").json
    return document["label"], document["tags"]


def test_a_label_is_replaced_everywhere_but_in_the_id(snap, taken):
    assert snap("describe", "latest", "new words").id == taken

    assert shown(snap) == ("new words", {"a": "1", "b": "2"})
    assert "new words" in snap("list").out
    assert "old" not in snap("list").out
    assert "label:     new words" in snap("show", "latest").out
    assert "(new words)" in snap("restore", taken, "--dry-run").out


def test_an_empty_label_is_none(snap, taken):
    snap("describe", "latest", "")

    assert shown(snap)[0] is None
    snap("describe", "latest", "again")
    assert shown(snap)[0] == "again"


def test_tags_are_set_replaced_and_removed(snap, taken):
    assert snap("tag", "latest", "a=7", "c=3=3", "--remove", "b", "--remove", "absent").id == taken

    assert shown(snap)[1] == {"a": "7", "c": "3=3"}
    assert snap("list", "--tag", "c", "--json").json["snapshots"][0]["id"] == taken
    assert snap("list", "--tag", "b", "--json").json["snapshots"] == []


def test_a_removed_tag_can_be_set_again(snap, taken):
    snap("tag", "latest", "--remove", "a")
    assert shown(snap)[1] == {"b": "2"}
    snap("tag", "latest", "a=8")

    assert shown(snap)[1] == {"a": "8", "b": "2"}


def test_a_pin_stays(snap, taken):
    snap("pin", "latest")
    snap("describe", "latest", "new")
    snap("tag", "latest", "c=1")

    assert snap("show", "latest", "--json").json["pinned"]
    snap("unpin", "latest")
    assert shown(snap) == ("new", {"a": "1", "b": "2", "c": "1"})


def test_json_is_the_snapshot_as_it_is_now(snap, taken):
    described = snap("describe", "latest", "new", "--json").json
    tagged = snap("tag", "latest", "c=3", "--json").json

    assert (described["schema"], described["label"]) == ("treesnap.describe/1", "new")
    assert (tagged["schema"], tagged["tags"]["c"]) == ("treesnap.tag/1", "3")


def test_a_step_of_a_session_is_tagged(snap, root):
    first = snap("create", "--session", "s", "--step", "3").id
    snap("create", "--session", "t", "--step", "3")

    assert snap("tag", "step:3", "k=v", "--session", "s").id == first
    assert snap("describe", "step:3", "x", "--session", "s").id == first


@pytest.mark.parametrize(
    "words",
    [
        ["tag", "latest"],
        ["tag", "latest", "novalue"],
        ["tag", "latest", "treesnap.phase=x"],
        ["tag", "latest", "--remove", "treesnap.phase"],
        ["tag", "latest", "a=1", "--remove", "a"],
        ["describe", "latest"],
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(snap, taken, words):
    assert snap(*words).code == 2

    assert shown(snap) == ("old", {"a": "1", "b": "2"})


def test_an_unknown_snapshot_is_not_found(snap, taken):
    assert snap("describe", "nope", "x").code == 5


def test_a_label_that_is_too_large_is_refused(root, store, taken):
    handle = open_handle(root, store)

    with pytest.raises(InvalidArgument, match="too large"):
        handle.describe("latest", "x" * (1 << 17))
    with pytest.raises(InvalidArgument, match="UTF-8"):
        handle.describe("latest", "\udcff")
    assert handle.show("latest").label == "old"


def test_a_described_safety_snapshot_is_still_the_way_back(snap, root, taken):
    (root / "a").write_text("changed")
    snap("restore", "latest")
    safety = snap("list", "--json").json["snapshots"][0]["id"]
    snap("describe", safety, "mine")
    snap("undo")

    assert (root / "a").read_text() == "changed"
