"""Architect's checkpoints: every signature, example and sentence of its page."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import treesnap
from calling import run_forked
from oracle import difference, record
from treesnap import InvalidArgument
from treesnap.compat.architect import CHECKPOINT_PREFIX, Checkpoint, CheckpointManager
from treesnap.core.model.reserved_tags import rollback_count

pytestmark = pytest.mark.sampled(4)

TIMEOUT_S = 60
ORDINARY = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Runs a command of the superuser without the right to read everything."""
PIPELINE = """\
steps:
  - name: implement
    prompt: "Implementa la feature"
    checkpoint: true
  - name: optimize
    prompt: "Optimiza el rendimiento"
    checkpoint: true
"""
SETTINGS = """\
checkpoints:
  enabled: false
  every_n_steps: 5
"""


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """The default store of the test, in other processes too."""
    monkeypatch.setenv("SNAP_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "workspace"
    path.mkdir()
    (path / "main.py").write_text("1")
    return path


@pytest.fixture
def manager(root):
    return CheckpointManager(str(root))


def snap(root, *words: str) -> str:
    """Runs a command on the workspace and returns what it printed."""
    done = run_forked(["-C", str(root), *words], cwd=Path.cwd(), variables=os.environ)
    assert done.code == 0, done
    return done.out


def in_another_process(root, expression: str, by: Sequence[str] = ()) -> str:
    """Returns what an expression about a new manager prints in a process of its own."""
    script = (
        "import sys; from treesnap.compat.architect import CheckpointManager\n"
        f"manager = CheckpointManager(sys.argv[1]); print({expression})"
    )
    done = subprocess.run(
        [*by, sys.executable, "-c", script, str(root)],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return done.stdout.strip()


def test_signatures_are_those_of_the_page():
    def signature(name: str) -> str:
        return str(inspect.signature(getattr(CheckpointManager, name))).replace("'", "")

    assert signature("__init__") == "(self, workspace_root: str) -> None"
    assert signature("create") == "(self, step: int, message: str = ) -> Checkpoint | None"
    assert signature("list_checkpoints") == "(self) -> list[Checkpoint]"
    assert signature("rollback") == (
        "(self, step: int | None = None, commit: str | None = None) -> bool"
    )
    assert signature("get_latest") == "(self) -> Checkpoint | None"
    assert signature("has_changes_since") == "(self, commit_hash: str) -> bool"
    assert [(item.name, item.type) for item in dataclasses.fields(Checkpoint)] == [
        ("step", "int"),
        ("commit_hash", "str"),
        ("message", "str"),
        ("timestamp", "float"),
        ("files_changed", "list[str]"),
    ]
    assert CHECKPOINT_PREFIX == "architect:checkpoint"


def test_a_checkpoint_knows_what_it_is_and_cannot_be_changed(root, manager):
    made = manager.create(3, "add parser")

    assert (made.step, made.message, made.files_changed) == (3, "add parser", ["main.py"])
    assert made.short_hash() == made.commit_hash[:7]
    assert len(made.commit_hash) == 64
    assert isinstance(made.timestamp, float)
    assert abs(made.timestamp - (root / "main.py").stat().st_mtime) < 3600
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.step = 4


def test_labels_are_those_that_the_page_searches_for(root, manager):
    manager.create(1)
    (root / "main.py").write_text("2")
    manager.create(2, "implement")

    lines = [line for line in snap(root, "list").splitlines() if CHECKPOINT_PREFIX in line]

    assert "architect:checkpoint:implement" in lines[0]
    assert "architect:checkpoint:step-1" in lines[1]
    assert lines[0].startswith(manager.get_latest().short_hash())


def test_create_gives_none_when_nothing_changed(root, manager):
    assert manager.create(1) is not None
    assert manager.create(2) is None
    os.utime(root / "main.py")
    assert manager.create(2) is None
    (root / "main.py").chmod(0o755)
    assert manager.create(2).files_changed == ["main.py"]
    assert CheckpointManager(str(root)).create(3) is None
    (root / "empty").mkdir()
    assert manager.create(3).files_changed == []
    assert [item.step for item in manager.list_checkpoints()] == [3, 2, 1]


def test_list_is_newest_first_with_the_files_of_each(root, manager):
    manager.create(1)
    (root / "main.py").write_text("2")
    (root / "sub").mkdir()
    (root / "sub/new.py").write_text("new")
    os.symlink("main.py", root / "link")
    manager.create(2)
    (root / "main.py").unlink()
    manager.create(3)

    listed = manager.list_checkpoints()

    assert [item.files_changed for item in listed] == [
        ["main.py"],
        ["link", "main.py", "sub/new.py"],
        ["main.py"],
    ]
    assert [item.message for item in listed] == ["step-3", "step-2", "step-1"]
    assert manager.get_latest() == listed[0]
    assert in_another_process(root, "manager.list_checkpoints()") == str(listed)


def test_there_is_nothing_before_the_first(root, manager):
    treesnap.open(root).create(label="by hand")

    assert manager.list_checkpoints() == []
    assert manager.get_latest() is None
    assert not manager.rollback(step=1)


class TestRollback:
    @pytest.fixture
    def checkpoints(self, root, manager):
        """Three checkpoints, two of them of step 2; returned oldest first."""
        made = [manager.create(1)]
        for text in ("2", "3"):
            (root / "main.py").write_text(text)
            (root / f"since-{text}").write_text("the same ever since")
            made.append(manager.create(2))
        (root / "main.py").write_text("unsaved")
        (root / "litter").write_text("litter")
        return made

    def test_by_step_means_the_newest_of_that_step(self, root, manager, checkpoints):
        assert manager.rollback(step=2) is True
        assert (root / "main.py").read_text() == "3"
        assert not (root / "litter").exists()
        assert manager.rollback(1) is True
        assert (root / "main.py").read_text() == "1"

    @pytest.mark.parametrize("length", [7, 12, 64])
    def test_by_hash(self, root, manager, checkpoints, length):
        assert manager.rollback(commit=checkpoints[1].commit_hash[:length]) is True
        assert (root / "main.py").read_text() == "2"

    def test_in_another_process(self, root, checkpoints):
        assert in_another_process(root, "manager.rollback(step=1)") == "True"
        assert (root / "main.py").read_text() == "1"

    def test_can_be_undone_and_is_counted(self, root, manager, checkpoints):
        before = record(root)
        manager.rollback(step=1)
        handle = treesnap.open(root)

        handle.undo()

        assert difference(before, record(root)) == []
        assert rollback_count(handle.resolve(checkpoints[0].commit_hash)) == 1

    def test_without_such_a_checkpoint_changes_nothing(self, root, manager, checkpoints):
        other = treesnap.open(root).create().id
        before = record(root)
        first, second = checkpoints[0].commit_hash, checkpoints[1].commit_hash

        assert manager.rollback() is False
        assert manager.rollback(step=7) is False
        assert manager.rollback(commit="") is False
        assert manager.rollback(commit="0" * 64) is False
        assert manager.rollback(commit="latest") is False
        assert manager.rollback(commit=other) is False
        assert manager.rollback(commit=first[:3]) is False
        assert manager.rollback(step=2, commit=first) is False
        assert difference(before, record(root)) == []
        assert manager.rollback(step=2, commit=second[:8]) is True

    def test_by_an_ambiguous_hash_changes_nothing(self, root, manager):
        made = []
        for number in range(17):  # of which two begin with the same of 16 digits
            (root / "main.py").write_text(str(number))
            made.append(manager.create(number).commit_hash[0])
        (root / "main.py").write_text("unsaved")
        repeated = next(digit for digit in made if made.count(digit) > 1)

        assert manager.rollback(commit=repeated) is False
        assert (root / "main.py").read_text() == "unsaved"

    def test_after_it_nothing_is_changed_until_something_is(self, root, manager, checkpoints):
        manager.rollback(step=1)
        assert manager.create(4) is None
        assert not manager.has_changes_since(checkpoints[0].commit_hash)
        (root / "other.py").write_text("new")

        assert manager.create(4).files_changed == ["other.py"]
        assert manager.list_checkpoints()[0].files_changed == ["other.py"]

    def test_after_an_undo_what_was_unsaved_is_unsaved_again(self, root, manager, checkpoints):
        handle = treesnap.open(root)
        manager.rollback(step=1)
        handle.undo()
        assert manager.create(4).files_changed == ["litter", "main.py"]

    def test_undo_and_redo_keep_the_place(self, root, manager, checkpoints):
        handle = treesnap.open(root)
        manager.rollback(step=1)
        handle.undo()
        handle.redo()
        assert manager.create(4) is None
        handle.undo()
        assert manager.create(4).files_changed == ["litter", "main.py"]

    def test_a_restore_of_single_files_keeps_the_place(self, root, manager, checkpoints):
        treesnap.open(root).restore(checkpoints[0].commit_hash, ["main.py"])

        assert manager.create(4).files_changed == ["litter", "main.py"]


def test_has_changes_since(root, manager):
    first = manager.create(1)
    assert manager.has_changes_since(first.commit_hash) is False
    os.utime(root / "main.py")
    assert manager.has_changes_since(first.short_hash()) is False
    (root / "untracked").write_text("new")
    assert manager.has_changes_since(first.commit_hash) is True
    second = manager.create(2)
    assert manager.has_changes_since(second.commit_hash) is False
    assert manager.has_changes_since(first.commit_hash) is True
    with pytest.raises(treesnap.NotFound):
        manager.has_changes_since("0" * 40)


def test_a_workspace_that_is_no_directory(tmp_path):
    with pytest.raises(treesnap.NotFound):
        CheckpointManager(str(tmp_path / "none")).create(1)
    assert CheckpointManager(str(tmp_path / "none")).list_checkpoints() == []


def test_manual_rollback_of_the_page(root, manager):
    manager.create(1, "implement")
    (root / "main.py").write_text("2")
    found = [line for line in snap(root, "list").splitlines() if CHECKPOINT_PREFIX in line]

    snap(root, "restore", found[0].split()[0])

    assert (root / "main.py").read_text() == "1"


@pytest.mark.needs("exit codes")
def test_pipeline_of_the_page(root, manager, tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(SETTINGS + PIPELINE)
    runner = f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w')\" {{prompt}}"

    snap(root, "plan", "run", "--runner", runner, str(path))

    listed = manager.list_checkpoints()
    assert [item.message for item in listed] == ["optimize", "implement"]
    assert [item.files_changed for item in listed] == [
        ["Optimiza el rendimiento"],
        ["Implementa la feature", "main.py"],
    ]
    assert manager.create(3) is None
    assert manager.rollback(commit=listed[1].short_hash())
    assert sorted(os.listdir(root)) == ["Implementa la feature", "main.py"]


@pytest.mark.needs("exit codes")
class TestAPipelineWithArchitectsDefaults:
    """``--architect``: its labels, its defaults, and nothing for a step without a change."""

    def run(self, root, tmp_path, text: str) -> list[str]:
        """Returns the labels of what was taken, oldest first."""
        (tmp_path / "pipeline.yaml").write_text(text)
        snap(root, "plan", "run", "-q", "--architect", str(tmp_path / "pipeline.yaml"))
        found = json.loads(snap(root, "--json", "plan", "checkpoints", "latest"))["checkpoints"]
        return [item["label"] for item in reversed(found)]

    def test_labels_are_those_that_the_page_searches_for(self, root, manager, tmp_path):
        steps = (
            "steps:\n"
            "- {name: implement, run: echo 1 > new, checkpoint: true}\n"
            "- {name: look, run: cat new, checkpoint: true}\n"
            "- {name: optimize, run: echo 2 > new, checkpoint: true}\n"
        )

        assert self.run(root, tmp_path, steps) == [
            "architect:checkpoint:implement",
            "architect:checkpoint:optimize",
        ]

        lines = [line for line in snap(root, "list").splitlines() if CHECKPOINT_PREFIX in line]
        assert ["optimize" in lines[0], "implement" in lines[1], len(lines)] == [True, True, 2]
        listed = manager.list_checkpoints()
        assert [item.message for item in listed] == ["optimize", "implement"]
        assert manager.rollback(commit=listed[1].short_hash())
        assert (root / "new").read_text() == "1\n"

    def test_none_are_taken_unless_they_are_asked_for(self, root, tmp_path):
        steps = "steps: [" + ", ".join(f"{{run: echo {n} > new}}" for n in range(6)) + "]"

        assert self.run(root, tmp_path, steps) == []

    def test_enabled_takes_every_fifth(self, root, tmp_path):
        steps = "steps: [" + ", ".join(f"{{run: echo {n} > new}}" for n in range(11)) + "]"

        found = self.run(root, tmp_path, "checkpoints: {enabled: true}\n" + steps)

        assert found == ["architect:checkpoint:step-5", "architect:checkpoint:step-10"]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("create", ("1",)),
        ("create", (1.0,)),
        ("create", (True,)),
        ("create", (-1,)),
        ("create", (None,)),
        ("create", (1, 5)),
        ("create", (1, b"text")),
        ("rollback", ("1",)),
        ("rollback", (None, 5)),
        ("rollback", (None, b"ab")),
        ("has_changes_since", (None,)),
        ("has_changes_since", (5,)),
    ],
)
def test_what_is_of_a_wrong_type_is_one_clear_error(root, manager, method, arguments):
    manager.create(1)

    with pytest.raises(InvalidArgument, match=r"^(step|message|commit|commit_hash) must be "):
        getattr(manager, method)(*arguments)

    assert len(manager.list_checkpoints()) == 1


@pytest.mark.parametrize("workspace_root", [None, 5, ["/tmp"], "a\0b"])
def test_a_workspace_of_a_wrong_type_is_one_clear_error(workspace_root):
    with pytest.raises(InvalidArgument, match="must be "):
        CheckpointManager(workspace_root)


def test_what_cannot_be_read_makes_no_checkpoint(root, manager):
    by = []
    if os.geteuid() == 0:
        if shutil.which(ORDINARY[0]) is None:
            pytest.skip("the superuser's rights cannot be dropped here")
        by = ORDINARY
        os.chown(root / "main.py", 1, 1)
    (root / "main.py").chmod(0)
    (root / ".snapignore").write_text("excluded\n")
    (root / "excluded").write_text("excluded")

    with pytest.raises(subprocess.CalledProcessError) as failure:
        in_another_process(root, "manager.create(1)", by=by)

    assert "Refused: 'main.py' cannot be read" in failure.value.stderr
    assert treesnap.open(root).list() == ()


@pytest.mark.parametrize("wrong", [True, 1.0, "1", b"1", -1, [], {1}], ids=str)
def test_wrong_types_are_one_clear_error(root, wrong):
    manager = CheckpointManager(str(root))
    made = manager.create(1)
    calls = [
        lambda: manager.create(wrong),
        lambda: manager.rollback(step=wrong),
        lambda: manager.rollback(commit=b"" if isinstance(wrong, str) else wrong),
        lambda: manager.has_changes_since(None),
    ]
    for call in calls:
        with pytest.raises(treesnap.InvalidArgument, match=" must be "):
            call()

    assert manager.get_latest() == made
