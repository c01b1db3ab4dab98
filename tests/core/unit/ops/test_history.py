"""References, deletion, pins."""

from __future__ import annotations

import pytest

from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, Refused
from treesnap.core.model.quantities import time_text
from treesnap.core.model.snapshots import SnapshotKind


@pytest.fixture
def three(handle, root):
    """Three snapshots named a, b and c, with steps 1 to 3 of the session "s"."""
    found = []
    for number, name in enumerate("abc", start=1):
        (root / "one").write_bytes(name.encode())
        found.append(handle.create(name=name, session="s", step=number).id)
    return found


class TestReferences:
    def test_latest_is_the_newest(self, handle, three):
        assert handle.resolve("latest").id == three[2]

    @pytest.mark.parametrize(("ref", "number"), [("latest~0", 2), ("latest~1", 1), ("latest~2", 0)])
    def test_latest_counts_back(self, handle, three, ref, number):
        assert handle.resolve(ref).id == three[number]

    def test_latest_counts_no_safety_snapshots(self, handle, three):
        handle.restore("a")

        assert handle.list()[0].kind == SnapshotKind.SAFETY
        assert handle.resolve("latest").id == three[2]

    def test_latest_within_a_session(self, handle, three):
        handle.create(session="other")

        assert handle.resolve("latest", session="s").id == three[2]

    def test_a_step_is_found(self, handle, three):
        assert handle.resolve("step:2").id == three[1]

    def test_a_step_of_a_session_is_told_from_others(self, handle, three):
        other = handle.create(session="other", step=2).id

        assert handle.resolve("step:2", session="s").id == three[1]
        assert handle.resolve("step:2").id == other

    def test_a_name_is_found(self, handle, three):
        assert handle.resolve("b").id == three[1]

    def test_an_id_and_its_beginning_are_found(self, handle, three):
        assert handle.resolve(three[0]).id == handle.resolve(three[0][:12]).id == three[0]

    def test_latest_of_a_session_is_named_with_it(self, handle, three):
        handle.create(session="other")

        assert handle.resolve("latest@s").id == three[2]
        assert handle.resolve("latest~1@s").id == three[1]
        with pytest.raises(NotFound):
            handle.resolve("latest@nothing")

    def test_a_time_names_the_latest_one_before_it(self, handle, root):
        day_ns = 86_400 * 10**9
        start_ns = 1_700_000_000 * 10**9
        made = []
        for number in range(3):
            (root / "one").write_bytes(bytes([number]))
            now_ns = start_ns + number * day_ns
            at = Handle(handle.context._replace(clock_ns=lambda now_ns=now_ns: now_ns))
            made.append(at.create().id)
        later = Handle(handle.context._replace(clock_ns=lambda: start_ns + 2 * day_ns + 1))

        assert later.resolve("@0s").id == made[2]
        assert later.resolve("@1h").id == made[1]
        assert later.resolve("@36h").id == made[0]
        with pytest.raises(NotFound) as caught:
            later.resolve("@3d")
        first = time_text(start_ns - day_ns)
        assert str(caught.value) == f"This root has no snapshot from {first} or before"
        with pytest.raises(NotFound) as caught:
            later.resolve("36h")
        assert caught.value.hint == "a time begins with @: '@36h'"
        with pytest.raises(NotFound) as caught:
            later.resolve("93577d486d3d")  # an id, although it reads as so many days
        assert "a time begins" not in caught.value.hint
        with pytest.raises(InvalidArgument, match=r"^'@teatime' is not a time such as @2h, "):
            later.resolve("@teatime")

    def test_a_label_is_said_to_be_one(self, handle):
        handle.create(label="v2")
        newer = handle.create(label="v2").id

        with pytest.raises(NotFound) as caught:
            handle.resolve("v2")

        assert caught.value.hint == f"that is the label of {newer[:12]}, and no name: use that id"

    @pytest.mark.parametrize("name", ["@2h", "@", "latest@s", "newest~1@s"])
    def test_a_reference_that_means_a_time_or_a_session_is_no_name(self, handle, name):
        with pytest.raises(InvalidArgument):
            handle.create(name=name)

    @pytest.mark.parametrize(
        "ref", ["latest~3", "step:9", "absent", "ffffffff", "abc", "", "LATEST"]
    )
    def test_an_unknown_reference_is_not_found(self, handle, three, ref):
        with pytest.raises(NotFound) as caught:
            handle.resolve(ref)

        assert caught.value.code == ErrorCode.SNAPSHOT_NOT_FOUND

    def test_a_beginning_that_fits_several_is_refused(self, handle, three, store_path):
        (directory,) = (store_path / "snapshots").iterdir()
        (source,) = directory.glob(f"*{three[0]}")
        twin = three[0][:8] + three[1][8:]
        (directory / f"{99:016x}-{twin}").write_bytes(source.read_bytes())

        with pytest.raises(InvalidArgument) as caught:
            handle.resolve(three[0][:8])

        assert caught.value.code == ErrorCode.AMBIGUOUS_REF

    def test_without_a_store_nothing_is_found(self, handle):
        with pytest.raises(NotFound):
            handle.resolve("latest")
        assert handle.list() == ()

    def test_ids_of_other_roots_can_be_looked_at_and_not_gone_to(
        self, make_handle, three, tmp_path
    ):
        (tmp_path / "other").mkdir()
        other = make_handle(root=tmp_path / "other")
        other.create()
        other.delete("latest")

        assert other.resolve(three[0]).id == three[0]
        with pytest.raises(NotFound, match="of another root"):
            other.restore(three[0])
        with pytest.raises(NotFound):
            other.resolve(three[0][:11])
        assert {item.id for item in other.list(all_roots=True)} == set(three)


class TestListing:
    def test_is_newest_first(self, handle, three):
        assert [item.id for item in handle.list()] == three[::-1]

    def test_by_session_and_tag(self, handle, three):
        tagged = handle.create(tags={"risk": "high"}).id

        assert [item.id for item in handle.list(session="s")] == three[::-1]
        assert [item.id for item in handle.list(tag="risk")] == [tagged]
        assert [item.id for item in handle.list(tag="risk=high")] == [tagged]
        assert handle.list(tag="risk=low") == ()

    def test_leaves_damaged_snapshots_out(self, handle, three, store_path):
        (path,) = (store_path / "snapshots").glob(f"*/*{three[1]}")
        path.write_bytes(b"damaged")

        assert [item.id for item in handle.list()] == [three[2], three[0]]
        assert handle.resolve("latest~1").id == three[0]


class TestDeletion:
    def test_takes_a_snapshot_out_of_the_history(self, handle, three):
        (gone,) = handle.delete("b")

        assert gone.id == three[1]
        assert [item.id for item in handle.list()] == [three[2], three[0]]

    def test_takes_all_or_none(self, handle, three):
        with pytest.raises(NotFound):
            handle.delete("a", "absent")

        assert len(handle.list()) == 3

    def test_of_one_snapshot_twice_is_once(self, handle, three):
        assert len(handle.delete("a", three[0])) == 1

    def test_of_a_pinned_one_is_refused_for_all(self, handle, three):
        handle.pin("b")

        with pytest.raises(Refused) as caught:
            handle.delete("a", "b")

        assert caught.value.code == ErrorCode.PINNED
        assert len(handle.list()) == 3

    def test_is_possible_after_unpinning(self, handle, three):
        handle.pin("b")
        handle.unpin("b")

        handle.delete("b")

        assert len(handle.list()) == 2

    def test_never_hands_a_place_in_history_out_again(self, handle, three):
        handle.delete("a", "b")

        assert handle.create().snapshot.sequence == 4

    def test_without_a_store_finds_nothing(self, handle):
        with pytest.raises(NotFound):
            handle.delete("latest")
        with pytest.raises(NotFound):
            handle.pin("latest")


def test_a_pin_is_seen_by_everybody(handle, make_handle, three):
    assert handle.pin("a").pinned

    assert make_handle().resolve("a").pinned
    assert not make_handle().resolve("b").pinned


def test_a_name_is_taken_once(handle, three):
    with pytest.raises(Refused) as caught:
        handle.create(name="a")

    assert caught.value.code == ErrorCode.NAME_TAKEN
