"""MAKER's results stay short, and on their lines, whatever is in them."""

from __future__ import annotations

import pytest

from maker_blocks import cleanup_block, create_block, restore_block, status
from treesnap.compat.maker import carry_out
from treesnap.compat.maker_result import Created, FileAction, FileState, Restored, result_text

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    (path / "file").write_text("before")
    return path


@pytest.fixture
def run(tmp_path):
    """Carries a block out in this process and returns the text of the result."""

    def carried(block: str) -> str:
        return result_text(carry_out(block.encode(), store=tmp_path / "store"))

    return carried


class TestLength:
    """A result stays under 500 tokens, at three characters a token."""

    def check(self, text: str) -> None:
        assert len(text) / 3 < 500
        assert sum(1 / 3 if c.isascii() else len(c.encode()) for c in text) < 500

    def check_list(self, text: str, count: int) -> None:
        """Checks the length, and that the list ends in the number of those left out."""
        self.check(text)
        shown = [line for line in text.splitlines() if line.startswith("- ")]
        assert len(shown) >= 2
        assert shown[-1] == f"- ... and {count - len(shown) + 1} more"

    def test_with_a_thousand_files(self, root, run):
        files = [f"{number}-{'long' * 40}" for number in range(1000)]
        for path in files[::2]:
            (root / path).write_text("before")

        made = run(create_block(root, "i" * 100, *files, step="9" * 18))
        for path in files:
            (root / path).write_text("afterwards")
        restored = run(restore_block(root, "i" * 100))

        assert "Files Captured: 1000" in made
        assert "Files Restored: 1000" in restored
        self.check_list(made, 1000)
        self.check_list(restored, 1000)
        assert [(root / path).exists() for path in files] == [True, False] * 500

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize(
        "name",
        ["f", "long" * 1000, "é" * 120, "\x1b" * 200, "\U0001f600" * 60],
        ids=["short", "long", "accents", "control", "pictures"],
    )
    @pytest.mark.parametrize("count", [40, 100_000])
    def test_of_a_list(self, name, count):
        paths = [f"{number}/{name}" for number in range(count)]
        created = Created(
            checkpoint_id="i" * 100,
            created_at="2025-01-22T10:30:00Z",
            files=tuple(FileState(path, "did_not_exist") for path in paths),
            metadata_location="x" * 4000,
            snapshot_id="0" * 64,
        )
        restored = Restored(
            checkpoint_id="i" * 100,
            restored_at="2025-01-22T10:30:00Z",
            files_restored=count,
            actions=tuple(FileAction(path, "deleted") for path in paths),
            step_number=10**18 - 1,
            snapshot_id="0" * 64,
            safety_id=None,
        )

        for result in (created, restored):
            self.check_list(result_text(result), count)

    def test_with_many_checkpoints(self, root, run):
        for number in range(40):
            run(create_block(root, f"{number:02}" + "i" * 98, "a.ts"))

        text = run(cleanup_block(root, "RETAIN_LAST", retain_count=20))

        self.check(text)
        assert "Checkpoints Removed: 20\nCheckpoints Retained: 20\n" in text
        assert text.count(" more\n") == 2

    def test_of_a_failure(self, root, run):
        for block in (
            create_block(root, "i" * 10_000, "a"),
            create_block("x" * 10_000, "one", "a"),
            create_block("/" + "é" * 10_000, "one", "a"),
            create_block(root, "one", "../" + "a" * 10_000),
            create_block(root, "one", "a.ts", step="1" * 10_000),
        ):
            text = run(block)
            self.check(text)
            assert status(text) == "CREATE_FAILED"

    def test_lists_that_fit_are_whole(self, root, run):
        text = run(create_block(root, "one", "file", "a", "b", "c", "d"))

        assert len([line for line in text.splitlines() if line.startswith("- ")]) == 5


def test_a_name_cannot_break_out_of_its_line(root, run):
    """What a name holds is shown escaped; a line break ends the name."""
    (root / "a\x1b[31m\x85b").write_text("x")

    text = run(create_block(root, "one", "a\x1b[31m\x85b"))

    assert "- a\\x1b[31m\\xc2\\x85b: captured" in text
