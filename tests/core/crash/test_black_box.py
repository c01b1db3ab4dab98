"""A sample of what ``tox -e crash`` does in full: the command, interrupted from outside."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from crash.black_box import (
    after_error,
    after_interruption,
    cases,
    instants,
    interrupt,
    message_problems,
)
from crash.scene import OPERATIONS, Scene, populate
from crash.system_calls import OPEN, Ended, Point, has_strace, is_writing, points, run

SEED = 5
SAMPLES = {"restore": 1, "undo": 1, "create": 1, "first create": 1, "gc": 1}
"""Cases of each operation; a case takes a second."""
INSTANTS = 1

pytestmark = pytest.mark.skipif(
    not has_strace(), reason="strace is not installed: the command is not killed at system calls"
)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A root with every awkward entry, and its store."""
    scene = Scene(tmp_path_factory.mktemp("black-box") / "scene", is_forked=True)
    populate(scene, SEED)
    return scene


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interrupted_command_loses_nothing(scene, name):
    operation = OPERATIONS[name]
    random = Random(f"{SEED} {name}")
    everywhere = list(cases(operation, scene.points(operation), SEED))
    chosen = random.sample(everywhere, SAMPLES[name]) + list(instants(operation, random, INSTANTS))

    problems = {str(case): interrupt(scene, case, duration_s=0.5)[1] for case in chosen}

    assert {case: found for case, found in problems.items() if found} == {}


def test_a_command_that_succeeds_has_no_problem(scene):
    operation = OPERATIONS["restore"]
    scene.reset(operation.start)
    scene.must(*operation.words)

    assert after_interruption(scene, operation, must_be_new=True) == (operation.new, [])


@pytest.mark.sampled(5)
class TestWhatIsNoticed:
    @pytest.fixture
    def restored(self, scene):
        """A scene after a restore."""
        scene.reset("restored")
        return scene

    @pytest.fixture
    def problems(self, restored):
        """Returns what is found wrong after a restore."""
        return lambda: after_interruption(restored, OPERATIONS["restore"], must_be_new=True)[1]

    def test_a_missing_file(self, restored, problems):
        (restored.root / "mode-1").unlink()

        assert any("mode-1" in problem for problem in problems())

    def test_the_old_tree_after_success(self, scene, problems):
        scene.reset("changed")

        assert problems()

    def test_a_staging_directory(self, restored, problems):
        times = os.stat(restored.root)
        (restored.root / ".treesnap-restore-0123456789abcdef").mkdir()
        os.utime(restored.root, ns=(times.st_atime_ns, times.st_mtime_ns))

        assert any(problem.startswith("left behind") for problem in problems())

    def test_a_damaged_pack(self, restored, problems):
        pack = max(restored.store.glob("packs/*"), key=os.path.getsize)
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 1
        pack.write_bytes(content)

        assert any("verify --read-data" in problem for problem in problems())

    def test_a_snapshot_that_is_lost(self, scene):
        scene.reset("changed")

        _, problems = after_interruption(scene, OPERATIONS["create"], must_be_new=True)

        assert problems == ["the snapshot is lost"]

    def test_garbage_that_was_needed(self, scene):
        scene.reset("garbage")
        scene.must("delete", "before")

        assert after_interruption(scene, OPERATIONS["gc"])[1]

    def test_a_tree_that_changed_though_the_command_failed(self, scene):
        scene.reset("restored")
        failed = Ended(code=1, out="", err="snap: Input/output error", words="snap restore")

        _, problems = after_error(
            scene, OPERATIONS["restore"], failed, Point("rename", 1), errno.EIO, lasting=False
        )

        assert any(problem.startswith("at once") for problem in problems)

    @pytest.mark.parametrize(
        ("code", "err"),
        [
            (1, "snap: Something went wrong"),
            (8, "snap: Could not restore: Input/output error"),
            (1, "Traceback (most recent call last): Input/output error"),
        ],
    )
    def test_a_message_that_does_not_say_what_and_why(self, code, err):
        ended = Ended(code=code, out="", err=err, words="snap restore")

        assert message_problems(ended, errno.EIO, lasting=False)


class TestPoints:
    @pytest.fixture
    def command(self, tmp_path: Path) -> list[str]:
        """Makes two directories with two calls."""
        return ["mkdir", str(tmp_path / "one"), str(tmp_path / "two")]

    def test_are_the_writing_calls_in_their_order(self, command, tmp_path):
        copy = ["cp", "--", os.__file__, str(tmp_path / "copy")]

        assert points(command, os.environ, tmp_path / "log") == [
            Point("mkdir", 1),
            Point("mkdir", 2),
        ]
        assert next(point.call for point in points(copy, os.environ, tmp_path / "log")) == OPEN

    def test_a_killed_call_has_no_effect(self, command, tmp_path):
        ended = run(command, os.environ, Point("mkdir", 2).killing())

        assert ended.was_killed
        assert os.listdir(tmp_path) == ["one"]

    def test_a_failed_call_has_no_effect(self, command, tmp_path):
        ended = run(command, os.environ, Point("mkdir", 1).failing(errno.EDQUOT))

        assert '/one"' in ended.failed_call
        assert os.strerror(errno.EDQUOT) in ended.err
        assert os.listdir(tmp_path) == ["two"]

    def test_a_call_that_opens_for_reading_does_not_write(self):
        ended = run(["cat", os.__file__], os.environ, Point(OPEN, 1).failing(errno.EACCES))

        assert OPEN in ended.failed_call
        assert not is_writing(ended.failed_call)

    def test_a_lasting_error_is_that_of_all_later_calls(self, command, tmp_path):
        run(command, os.environ, Point("mkdir", 1).failing(errno.EIO, lasting=True))

        assert os.listdir(tmp_path) == []
