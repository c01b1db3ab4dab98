"""MAKER's blocks: the worked examples, line by line, and what each operation does."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

import treesnap
from maker_blocks import (
    CLEANUP_INPUT,
    CLEANUP_OUTPUT,
    CREATE_INPUT,
    CREATE_OUTPUT,
    DIRECTORY,
    RESTORE_INPUT,
    RESTORE_OUTPUT,
    cleanup_block,
    create_block,
    maker,
    reason,
    restore_block,
    sections,
    status,
)
from oracle import difference, record
from treesnap.compat.maker import carry_out
from treesnap.compat.maker_result import result_fields
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.snapshot import SNAPSHOT, encode_snapshot, snapshot_id
from treesnap.core.model.reserved_tags import facts_of, rollback_count

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@pytest.fixture
def root(app):
    return app


def comparable(text: str) -> list[str]:
    """Returns the lines of a result, without its times."""
    return TIME.sub("TIME", text).replace("Strategy: git", "Strategy: file-copy").splitlines()


def changes_below(root, before) -> list[str]:
    """Returns what differs, but for the time of the directory that held the files."""
    return [
        line
        for line in difference(before, record(root))
        if not line.startswith("b'src/utils': mtime_ns")
    ]


class TestWorkedExamples:
    def test_create_and_restore(self, root, store):
        code, text = maker(CREATE_INPUT.replace(DIRECTORY, str(root)), store, "--metadata")
        assert (code, comparable(text)) == (0, comparable(CREATE_OUTPUT))
        before = record(root)
        (root / "src/utils/validator.ts").write_text("broken")
        (root / "src/utils/errors.ts").write_text("new")

        code, text = maker(RESTORE_INPUT.replace(DIRECTORY, str(root)), store)

        assert (code, comparable(text)) == (0, comparable(RESTORE_OUTPUT))
        assert changes_below(root, before) == []

    def test_cleanup(self, root, store, run):
        for step in range(1, 7):
            (root / "file").write_text(str(step) * 5000)
            run(create_block(root, f"ckpt-task123-step-{step}", "file", task="task123", step=step))

        code, text = maker(CLEANUP_INPUT.replace(DIRECTORY, str(root)), store)

        assert code == 0
        *lines, freed, last = comparable(text)
        *expected, _, expected_last = comparable(CLEANUP_OUTPUT)
        assert (lines, last) == (expected, expected_last)
        assert re.fullmatch(r"\d+ bytes", freed)

    def test_a_restore_can_be_undone_and_is_counted(self, root, store, run):
        run(CREATE_INPUT.replace(DIRECTORY, str(root)))
        (root / "src/utils/errors.ts").write_text("new")
        broken = record(root)
        run(RESTORE_INPUT.replace(DIRECTORY, str(root)))

        handle = treesnap.open(root, store)
        handle.undo()

        assert changes_below(root, broken) == []
        assert rollback_count(handle.resolve("ckpt-task123-step-4")) == 1


class TestCreate:
    def test_is_a_snapshot_like_any_other(self, root, store, run):
        run(CREATE_INPUT.replace(DIRECTORY, str(root)))

        snapshot = treesnap.open(root, store).resolve("ckpt-task123-step-4")
        record, facts = snapshot.record, facts_of(snapshot)
        assert (record.session, record.step) == ("task123", 4)
        assert facts["step_name"] == "Add error handling to validator"
        assert facts["source_tool"] == "maker"
        assert set(record.scope) == {b"src/utils/validator.ts", b"src/utils/errors.ts"}

    @pytest.mark.parametrize("files", [("lab.db",), ("lab.db", "lab.db-wal"), ("src", "lab.db")])
    def test_a_database_is_captured_and_restored_with_its_log(self, root, store, run, files):
        (root / "lab.db").write_bytes(b"SQLite format 3\0".ljust(512, b"."))
        (root / "lab.db-wal").write_bytes(b"earlier")
        run(create_block(root, "one", *files))
        again = maker(create_block(root, "one", *files), store)
        (root / "lab.db-wal").write_bytes(b"later")
        (root / "lab.db-journal").write_bytes(b"later")
        run(restore_block(root, "one"))

        assert again[0] == 0
        assert len(treesnap.open(root, store).list()) == 2  # one is the safety snapshot
        assert (root / "lab.db-wal").read_bytes() == b"earlier"
        assert not (root / "lab.db-journal").exists()

    def test_metadata_location_names_the_snapshot(self, root, store, run):
        text = run(CREATE_INPUT.replace(DIRECTORY, str(root)))

        made = treesnap.open(root, store).resolve("ckpt-task123-step-4")
        (location,) = sections(text)["METADATA LOCATION"]
        assert made.id[:12] in location
        assert not (root / ".maker-checkpoints").exists()

    def test_metadata_file_has_the_documented_fields(self, root, run):
        run(CREATE_INPUT.replace(DIRECTORY, str(root)), metadata=True)

        path = root / ".maker-checkpoints/metadata/ckpt-task123-step-4.json"
        content = json.loads(path.read_text())
        assert TIME.fullmatch(content.pop("created_at"))
        assert len(content.pop("snapshot_id")) == 64
        assert content == {
            "checkpoint_id": "ckpt-task123-step-4",
            "task_id": "task123",
            "step_number": 4,
            "step_name": "Add error handling to validator",
            "strategy": "file-copy",
            "files": [
                {"path": "src/utils/validator.ts", "exists_at_checkpoint": True, "stash_ref": None},
                {"path": "src/utils/errors.ts", "exists_at_checkpoint": False, "stash_ref": None},
            ],
            "git_stash_index": None,
        }
        assert [item.name for item in path.parent.iterdir()] == [path.name]

    def test_the_same_id_again_is_refused(self, root, store, run):
        run(create_block(root, "one", "a.ts"))
        before = record(root)

        for task in ("task", "other"):
            code, text = maker(create_block(root, "one", "b.ts", task=task), store, "--metadata")
            assert (code, status(text), reason(text)) == (3, "CREATE_FAILED", "name_taken")

        assert len(treesnap.open(root, store).list()) == 1
        assert difference(before, record(root)) == []

    def test_a_metadata_file_of_another_program_is_not_overwritten(self, root, store, run):
        path = root / ".maker-checkpoints/metadata/one.json"
        path.parent.mkdir(parents=True)
        path.write_text("mine")

        text = run(create_block(root, "one", "a.ts"), metadata=True)

        assert (status(text), reason(text)) == ("CREATE_FAILED", "file_conflict")
        assert path.read_text() == "mine"
        assert treesnap.open(root, store).list() == ()

    @pytest.mark.parametrize("how", ["link", "file"])
    def test_a_metadata_file_is_written_through_no_link(self, root, store, run, tmp_path, how):
        (tmp_path / "outside").mkdir()
        if how == "link":
            (root / ".maker-checkpoints").symlink_to(tmp_path / "outside")
        else:
            (root / ".maker-checkpoints").write_text("file")

        text = run(create_block(root, "one", "a.ts"), metadata=True)

        assert (status(text), reason(text)) == ("CREATE_FAILED", "file_conflict")
        assert list((tmp_path / "outside").iterdir()) == []
        assert treesnap.open(root, store).list() == ()

    def test_a_metadata_file_is_written_into_no_other_name_of_a_file(self, root, run, tmp_path):
        (tmp_path / "outside").write_text("outside")
        directory = root / ".maker-checkpoints/metadata"
        directory.mkdir(parents=True)
        os.link(tmp_path / "outside", directory / ".treesnap-writing")

        assert status(run(create_block(root, "one", "a.ts"), metadata=True)) == "CREATE_SUCCESS"
        assert (tmp_path / "outside").read_text() == "outside"
        assert [item.name for item in directory.iterdir()] == ["one.json"]

    @pytest.mark.parametrize("listed", ["a.log", "build/out", "a.log\n- missing"])
    def test_a_file_that_is_excluded_is_refused(self, root, store, run, listed):
        (root / ".snapignore").write_text("*.log\nbuild/\n")
        (root / "a.log").write_text("a")
        (root / "build").mkdir()
        (root / "build/out").write_text("b")

        text = run(create_block(root, "one", listed))

        assert status(text) == "CREATE_FAILED"
        assert "excluded" in text
        assert treesnap.open(root, store).list() == ()

    def test_a_file_behind_a_link_is_refused(self, root, store, run, tmp_path):
        (root / "link").symlink_to(tmp_path)

        text = run(create_block(root, "one", "link/store"))

        assert (status(text), reason(text)) == ("CREATE_FAILED", "invalid_argument")

    def test_directories_and_repeated_paths_are_understood(self, root, run):
        text = run(create_block(root, "one", "src", "./src/utils/../utils/x", "src/", "é"))
        (root / "src/utils/x").write_text("new")
        (root / "src/utils/validator.ts").unlink()
        (root / "é").mkdir()
        (root / "é/below").write_text("new")

        restored = run(restore_block(root, "one"))

        assert sections(text)["CHECKPOINT DETAILS"][2:] == [
            "Files Captured: 3",
            "Files:",
            "- src: captured",
            "- src/utils/x: did_not_exist (will be created)",
            "- é: did_not_exist (will be created)",
        ]
        assert sections(restored)["RESTORE DETAILS"][2:] == [
            "Files Restored: 3",
            "Actions Taken:",
            "- src: restored from checkpoint",
            "- src/utils/x: deleted (did not exist at checkpoint)",
            "- é: deleted (did not exist at checkpoint)",
        ]
        assert sorted(item.name for item in (root / "src/utils").iterdir()) == ["validator.ts"]
        assert not (root / "é").exists()


class TestRestore:
    def test_says_what_was_not_changed(self, root, run):
        run(create_block(root, "one", "src/utils/validator.ts", "new", step=7))

        text = run(restore_block(root, "one"))

        assert sections(text)["RESTORE DETAILS"][2:] == [
            "Files Restored: 0",
            "Actions Taken:",
            "- src/utils/validator.ts: unchanged since checkpoint",
            "- new: unchanged since checkpoint",
        ]
        assert "before step 7." in text

    def test_leaves_other_files_alone(self, root, run):
        run(create_block(root, "one", "src/utils/validator.ts"))
        (root / "src/utils/validator.ts").write_text("broken")
        (root / "src/utils/other.ts").write_text("other")

        run(restore_block(root, "one"))

        assert (root / "src/utils/other.ts").read_text() == "other"
        assert (root / "src/utils/validator.ts").read_text() == "export {}\n"

    def test_brings_a_deleted_working_directory_back(self, root, store, run):

        run(create_block(root, "one", "src/utils/validator.ts"))
        shutil.rmtree(root)

        assert status(run(restore_block(root, "one"))) == "RESTORE_SUCCESS"
        assert (root / "src/utils/validator.ts").read_text() == "export {}\n"

    def test_takes_nothing_but_checkpoints_of_maker(self, root, store, run):
        treesnap.open(root, store).create(name="mine")

        assert reason(run(restore_block(root, "mine"))) == "checkpoint_not_found"


class TestCleanup:
    @pytest.mark.parametrize("name", ["../../../outside", "a\0b", "\x1b]0;a\x07"])
    def test_leaves_alone_what_a_stranger_calls_a_checkpoint(self, root, store, run, name):
        run(create_block(root, "one", "file", task="task1", step=1))
        (path,) = (store / "snapshots").glob("*/*")
        record = SNAPSHOT.unseal(path.read_bytes(), str(path))
        payload = encode_snapshot(record._replace(name=name))
        made = snapshot_id(payload)
        path.with_name(f"{2:016x}-{made}").write_bytes(seal(FileKind.SNAPSHOT, payload))
        outside = root.parent / "outside.json"
        outside.write_text(json.dumps({"snapshot_id": made}))
        (root / ".maker-checkpoints" / "metadata").mkdir(parents=True)

        text = run(cleanup_block(root, "CLEANUP_ALL", task="task1"))

        assert status(text) == "CLEANUP_COMPLETE"
        assert "\x1b" not in text
        assert [item.id for item in treesnap.open(root, store).list()] == [made]
        assert outside.exists()


class TestJson:
    def test_says_the_same_and_nothing_is_shortened(self, root, store):
        files = [f"{number:04}" for number in range(300)]
        (root / files[0]).write_text("here")
        code, line = maker(create_block(root, "one", *files), store, options=("--json",))
        made = json.loads(line)
        assert (code, made["schema"], made["status"]) == (0, "treesnap.maker/1", "CREATE_SUCCESS")
        assert [item["path"] for item in made["files"]] == files
        assert [item["state"] for item in made["files"][:2]] == ["captured", "did_not_exist"]

        code, line = maker(restore_block(root, "none"), store, options=("--json",))
        failed = json.loads(line)
        assert (code, failed["status"]) == (5, "RESTORE_FAILED")
        assert failed["reason"] == "checkpoint_not_found"
        assert len(failed["recovery_options"]) == 2

    def test_of_a_cleanup(self, root, store, run):
        run(create_block(root, "one", "a.ts"))

        block = cleanup_block(root, "CLEANUP_ALL").encode()
        fields = result_fields(carry_out(block, store=store))

        assert fields.pop("freed_bytes") >= 0
        assert fields == {
            "status": "CLEANUP_COMPLETE",
            "mode": "CLEANUP_ALL",
            "task_id": "task",
            "removed": ("one",),
            "retained": (),
            "postponed": None,
        }

    def test_holds_names_exactly(self, root, store):
        name = 'a"b\x1b\u2028\x85c\U0001f600'
        (root / name).write_text("x")

        block = create_block(root, "one", name)
        code, line = maker(block, store, "--metadata", options=("--json",))

        assert code == 0
        assert line.isascii()
        assert json.loads(line)["files"] == [{"path": name, "state": "captured"}]
        content = json.loads((root / ".maker-checkpoints/metadata/one.json").read_bytes())
        assert content["files"][0]["path"] == name
