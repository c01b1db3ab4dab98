"""``snap doctor``: what was interrupted."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from state import differences, tree_state
from treesnap.cli.commands.maintenance import age_text
from treesnap.core import fs
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.message import pack
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault

MOVES = frozenset({"exchange", "rename_to_absent"})


@pytest.fixture
def changed(snap, root: Path) -> None:
    """Three files that a restore of the snapshot ``before`` has to put back."""
    for name in ("one", "two", "three"):
        (root / name).write_text(name)
    assert snap("create", "--name", "before").code == 0
    for name in ("one", "two", "three"):
        (root / name).write_text("changed " + name)


@pytest.fixture
def crash(changed, root: Path, store: Path):
    """Kills a restore at a call."""

    def crasher(fault: Fault, root: Path = root) -> None:
        def restore(fs) -> None:
            Handle(context_at(root=root, store_path=str(store), fs=fs)).restore("before")

        assert killed(restore, fault).was_killed

    return crasher


def test_says_that_nothing_is_unfinished(snap, changed):
    result = snap("doctor")

    assert (result.code, result.out.splitlines()[0]) == (0, "Nothing is unfinished")
    document = snap("doctor", "--json").json
    assert (document["ok"], document["unfinished"]) == (True, [])


def test_says_what_the_system_lacks(snap, changed, monkeypatch):
    monkeypatch.setattr(fs, "SHOWS_PROCESSES", False)
    monkeypatch.setattr(fs, "HAS_NOTICES", False)

    lines = snap("doctor").out.partition("Not to be had on this system:\n")[2].splitlines()
    assert {
        "        notices  nothing can watch: each command walks the tree",
        "      processes  files that programs have open are not known",
    } <= set(lines)
    system = snap("doctor", "--json").json["system"]
    assert (system["processes"], system["notices"]) == (False, False)


def test_says_what_the_file_system_does_and_leaves_the_root_as_it_was(snap, changed, root: Path):
    snap("create")
    before = tree_state(root)

    document = snap("doctor", "--file-system", "--json").json

    found = document["capabilities"]
    assert (found["folds_case"], found["keeps_spelling"], found["hard_links"]) == (
        False,
        True,
        True,
    )
    assert (found["name_size_max"], found["time_step_ns"]) == (255, 1)
    assert differences(tree_state(root), before) == []
    assert snap("create", "--skip-unchanged", "--json").json["unchanged"]
    assert "   yes  hard links\n" in snap("doctor", "--file-system").out
    assert snap("doctor", "--json").json["capabilities"] is None


def test_needs_no_store(unsaid_snap, default_store: Path):
    assert unsaid_snap("doctor").code == 0
    assert not default_store.exists()


@pytest.mark.needs("exchange")
def test_shows_how_far_a_restore_came_and_changes_nothing(snap, crash, root: Path):
    crash(Fault(number=2, methods=MOVES))

    document = snap("doctor", "--json").json

    (found,) = document["unfinished"]
    assert (found["work"], found["root"], found["blocked"]) == ("restore", str(root), False)
    assert (found["paths"], found["done"], found["changed"]) == (3, 1, [])
    assert 0 <= time.time_ns() - found["started_at_ns"] < 3600 * 10**9
    assert "finishes it" in found["resolution"]
    ids = {item["id"] for item in snap("list", "--json").json["snapshots"]}
    assert {found["target_id"], found["safety_id"]} <= ids


@pytest.mark.needs("exchange")
def test_leaves_the_work_to_status(snap, crash, root: Path):
    crash(Fault(number=2, methods=MOVES))

    text = snap("doctor").out
    status = snap("status")

    assert "1 of 3 paths done" in text
    assert "begun just now" in text or "ago" in text
    assert "Completed an interrupted restore" in status.err
    assert (root / "three").read_text() == "three"
    assert snap("doctor").out.splitlines()[:-1] == ["Nothing is unfinished"]


def test_counts_what_another_program_changed(snap, crash, root: Path):
    crash(Fault(number=2, methods=MOVES))
    (root / "two").write_text("newer")

    (found,) = snap("doctor", "--json").json["unfinished"]

    assert found["changed"] == [{"path": "two"}]
    assert "undoes it" in found["resolution"]
    assert "1 changed by another program" in snap("doctor").out


@pytest.mark.parametrize(
    ("fault", "resolution"),
    [
        (Fault(number=1, methods=frozenset({"sync_file_system"})), "as before"),
        (Fault(number=1, methods=frozenset({"remove_directory"})), "cleans up"),
    ],
)
def test_knows_what_is_not_begun_and_what_is_done(snap, crash, fault, resolution):
    crash(fault)

    (found,) = snap("doctor", "--json").json["unfinished"]

    assert resolution in found["resolution"]
    assert not found["blocked"]


def test_sees_other_roots_of_the_store(snap, crash, tmp_path: Path, root: Path):
    crash(Fault(number=2, methods=MOVES))
    (tmp_path / "other").mkdir()

    (found,) = snap("doctor", "--json", cwd=tmp_path / "other").json["unfinished"]

    assert found["root"] == str(root)


def test_says_that_a_root_is_gone(snap, crash, root: Path, tmp_path: Path):
    crash(Fault(number=2, methods=MOVES))
    shutil.rmtree(root)

    (found,) = snap("-C", root, "doctor", "--json", cwd=tmp_path).json["unfinished"]

    assert "until the root is back" in found["resolution"]


class TestWhatIsBlocked:
    def test_is_an_exit_code(self, snap, crash, root: Path):
        crash(Fault(number=2, methods=MOVES))
        shutil.rmtree(root)
        root.write_text("a file")

        result = snap("doctor", cwd=root.parent)

        assert result.code == 3
        assert "no longer a directory" in result.out

    @pytest.fixture
    def damaged(self, crash, store: Path) -> Path:
        crash(Fault(number=2, methods=MOVES))
        (journal,) = store.glob("roots/*/journal")
        journal.write_bytes(b"damaged")
        return journal

    def test_can_be_forgotten(self, snap, damaged: Path, root: Path):
        assert snap("create").code == 7
        assert snap("doctor").code == 3

        forgotten = snap("doctor", "--forget")

        assert forgotten.code == 0
        assert "Forgot what was interrupted" in forgotten.out
        assert snap("create").code == 0
        assert snap("restore", "before").code == 0
        assert (root / "two").read_text() == "two"

    def test_is_the_collector_with_a_damaged_state(self, snap, changed, store: Path):
        (store / "collector").mkdir(exist_ok=True)
        (store / "collector/state").write_bytes(b"damaged")

        assert snap("doctor").code == 3


@pytest.mark.needs("exchange")
def test_forgetting_leaves_the_tree_and_no_litter(snap, crash, root: Path):
    crash(Fault(number=2, methods=MOVES))

    assert snap("doctor", "--forget", "--json").json["forgotten"]

    texts = {(root / name).read_text() for name in ("one", "two", "three")}
    assert len([text for text in texts if text.startswith("changed")]) == 2
    assert not list(root.glob(".treesnap*"))
    assert not snap("doctor", "--forget", "--json").json["forgotten"]


def test_forgetting_keeps_what_was_put_aside_when_the_snapshots_are_gone(
    snap, crash, root: Path, store: Path
):
    crash(Fault(number=2, methods=MOVES))
    for path in store.glob("snapshots/*/*"):
        path.unlink()

    forgotten = snap("doctor", "--forget")

    assert forgotten.code == 0
    (stage,) = root.glob(".treesnap*")
    assert f"What was put aside stays in {str(stage)!r}" in forgotten.err
    assert snap("create").code == 0


def test_shows_an_interrupted_collection(snap, changed, store: Path):
    payload = pack({"epoch": 1, "condemned": (b"0" * 16,)})
    (store / "collector").mkdir(exist_ok=True)
    (store / "collector/state").write_bytes(seal(FileKind.COLLECTION, payload))

    assert "garbage collection" in snap("doctor").out


def test_shows_a_restore_to_another_directory(snap, changed, root, store, tmp_path: Path):
    def export(fs) -> None:
        Handle(context_at(root=root, store_path=str(store), fs=fs)).restore(
            "before", to=tmp_path / "to"
        )

    fault = Fault(number=3, methods=frozenset({"change_mode"}))
    assert killed(export, fault).was_killed

    (found,) = snap("doctor", "--json").json["unfinished"]

    assert (found["work"], found["blocked"]) == ("export", False)
    assert "another directory" in snap("doctor").out


@pytest.mark.parametrize(
    ("age_ns", "text"),
    [
        (-1, "in the future, by this clock"),
        (0, "just now"),
        (1_999_999_999, "1 second ago"),
        (120 * 10**9, "2 minutes ago"),
        (7200 * 10**9, "2 hours ago"),
        (3 * 86_400 * 10**9, "3 days ago"),
    ],
)
def test_ages_are_rough(age_ns: int, text: str):
    assert age_text(age_ns) == text
