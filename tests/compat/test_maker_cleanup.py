"""MAKER's cleanup: what goes, what stays, and what it frees."""

from __future__ import annotations

import fcntl
from random import Random

import pytest

import treesnap
from maker_blocks import cleanup_block, create_block, sections, status


@pytest.fixture
def root(app):
    return app


class TestCleanup:
    @pytest.fixture
    def checkpoints(self, root, store, run):
        """Three checkpoints of each of two tasks, and a snapshot that only looks like one."""
        for step in (1, 2, 3):
            for task in ("task", "other"):
                (root / "file").write_bytes(f"{task}{step}".encode() * 9000)
                run(create_block(root, f"{task}-{step}", "file", task=task, step=step))
        tags = {"source_tool": "maker", "files": "["}
        treesnap.open(root, store).create(name="by hand", session="task", step=1, tags=tags)
        return treesnap.open(root, store)

    def names(self, handle) -> set[str | None]:
        return {item.name for item in handle.list()}

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize(
        ("mode", "parameters", "kept"),
        [
            ("RETAIN_LAST", {"retain_count": 2}, {"task-2", "task-3"}),
            ("RETAIN_LAST", {"retain_count": 9}, {"task-1", "task-2", "task-3"}),
            ("CLEANUP_ALL", {}, set()),
            ("CLEANUP_ALL", {"retain_count": "", "before_step": ""}, set()),
            ("CLEANUP_BEFORE_STEP", {"before_step": 3}, {"task-3"}),
            ("CLEANUP_BEFORE_STEP", {"before_step": 1}, {"task-1", "task-2", "task-3"}),
        ],
    )
    def test_removes_what_the_mode_says_of_this_task(
        self, root, run, checkpoints, mode, parameters, kept
    ):
        text = run(cleanup_block(root, mode, **parameters))

        assert self.names(checkpoints) == kept | {"other-1", "other-2", "other-3", "by hand"}
        lines = sections(text)["CLEANUP SUMMARY"]
        removed = sorted({"task-1", "task-2", "task-3"} - kept)
        assert lines == [
            f"Checkpoints Removed: {len(removed)}",
            f"Checkpoints Retained: {len(kept)}",
            "Removed:",
            *(f"- {name}" for name in removed),
            "Retained:",
            *(f"- {name}" for name in sorted(kept)),
        ]

    def test_storage_freed_is_what_the_packs_shrank_by(self, tmp_path, store, run):

        root = tmp_path / "random"
        root.mkdir()
        for step in (1, 2):
            (root / "file").write_bytes(Random(step).randbytes(200_000))
            run(create_block(root, f"task-{step}", "file"))
        before = sum(path.stat().st_size for path in store.glob("packs/**/*") if path.is_file())

        text = run(cleanup_block(root, "RETAIN_LAST", retain_count=1))

        after = sum(path.stat().st_size for path in store.glob("packs/**/*") if path.is_file())
        freed = int(sections(text)["STORAGE FREED"][0].removesuffix(" bytes"))
        assert freed >= 200_000
        assert abs(before - after - freed) < 4096

    def test_keeps_pinned_checkpoints(self, root, run, checkpoints):
        checkpoints.pin("task-1")

        text = run(cleanup_block(root, "CLEANUP_ALL"))

        assert sections(text)["CLEANUP SUMMARY"][-1] == "- task-1"
        assert "task-1" in self.names(checkpoints)

    def test_removes_metadata_files_of_its_own_only(self, root, run):
        run(create_block(root, "one", "a.ts"), metadata=True)
        run(create_block(root, "two", "a.ts"))
        directory = root / ".maker-checkpoints/metadata"
        (directory / "two.json").write_text("mine")

        run(cleanup_block(root, "CLEANUP_ALL"))

        assert [item.name for item in directory.iterdir()] == ["two.json"]

    @pytest.mark.parametrize("how", ["gone", "link", "file"])
    def test_does_not_need_the_directory_of_the_metadata(self, root, run, tmp_path, how):
        run(create_block(root, "one", "a.ts"), metadata=True)
        (root / ".maker-checkpoints").rename(tmp_path / "moved")
        if how == "link":
            (root / ".maker-checkpoints").symlink_to(tmp_path / "moved")
        elif how == "file":
            (root / ".maker-checkpoints").write_text("file")

        assert status(run(cleanup_block(root, "CLEANUP_ALL"))) == "CLEANUP_COMPLETE"
        assert (tmp_path / "moved/metadata/one.json").exists()

    def test_says_when_another_collection_is_at_work(self, root, store, run, checkpoints):
        with (store / "collector/lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            text = run(cleanup_block(root, "CLEANUP_ALL"), wait_s=0)

        assert status(text) == "CLEANUP_COMPLETE"
        freed, later = sections(text)["STORAGE FREED"]
        assert freed == "0 bytes"
        assert later.startswith("Perhaps more later: ")
        assert "task-1" not in self.names(checkpoints)

    def test_of_an_unknown_task_removes_nothing(self, root, run, checkpoints):
        text = run(cleanup_block(root, "CLEANUP_ALL", task="unknown"))

        assert status(text) == "CLEANUP_COMPLETE"
        assert sections(text)["CLEANUP SUMMARY"][0] == "Checkpoints Removed: 0"
        assert sections(text)["STORAGE FREED"] == ["0 bytes"]
