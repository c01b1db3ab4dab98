"""MAKER's blocks as a model writes them: what is information never stops a request."""

from __future__ import annotations

import os

import pytest

import treesnap
from maker_blocks import (
    CREATE_INPUT,
    DIRECTORY,
    RULE,
    cleanup_block,
    create_block,
    maker,
    reason,
    restore_block,
    sections,
    status,
)
from treesnap.compat.maker_block import Create, Restore, parse
from treesnap.core.model.reserved_tags import facts_of

PROSE = "I will now take the checkpoint. Note: nothing else is changed.\n\n"


@pytest.fixture
def root(app):
    return app


@pytest.fixture
def broken(root, run):
    """A checkpoint of two files, and a step that failed after it."""
    run(CREATE_INPUT.replace(DIRECTORY, str(root)))
    (root / "src/utils/validator.ts").write_text("broken")
    (root / "src/utils/errors.ts").write_text("new")
    return root


def with_reason(root, lines: str) -> str:
    """Returns a block for a restore with some lines as its reason."""
    whole = restore_block(root, "ckpt-task123-step-4")
    start, end = whole.index("[RESTORE_REASON]"), whole.index("[WORKING_DIRECTORY]")
    return whole[:start] + lines + whole[end:]


class TestTheReasonOfARestore:
    """Nothing depends on it, so that nothing in it is refused."""

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize(
        "lines",
        [
            "",
            "[RESTORE_REASON]\n",
            "[RESTORE_REASON]\nit broke\n",
            "[RESTORE_REASON]\n- failure_type: retry_exhausted\n",
            "[RESTORE_REASON]\n- failed_step: the first\n- failure_type: Blocked\n",
            "[restore_reason]\n- failed_step: 4\n- failed_step: 5\n",
            "[RESTORE_REASON]\n- error_summary: Traceback\n  File 'a.py', line 3\n\nKeyError\n",
            f"[RESTORE_REASON]\n- error_summary: pytest said\n{RULE}\n1 failed\n{RULE}\n",
            "[RESTORE_REASON]\n[ERROR] no such module\n[NOTES]\nnone\n",
            "[RESTORE_REASON]\n```\n$ npm test\n```\n",
            "[RESTORE_REASON]\nthe block was\n" + create_block("/elsewhere", "other", "a"),
            "[RESTORE_REASON]\n[STATUS] CREATE_SUCCESS\n[CHECKPOINT_ID] other\n",
            "[STEP_INFO]\nstep_number: 4\n[RESTORE_REASON]\n\U0001f600 \x00 \x1b[31m \u2028\n",
        ],
    )
    def test_is_not_looked_at(self, broken, run, lines):
        text = run(with_reason(broken, lines))

        assert status(text) == "RESTORE_SUCCESS", text
        assert (broken / "src/utils/validator.ts").read_text() == "export {}\n"
        assert not (broken / "src/utils/errors.ts").exists()

    def test_may_be_in_no_encoding(self, broken, run):
        block = with_reason(broken, "[RESTORE_REASON]\nXX\n").encode().replace(b"XX", b"\xff\xfe")

        assert status(run(block)) == "RESTORE_SUCCESS"


class TestAroundABlock:
    def blocks(self, root):
        return (
            CREATE_INPUT.replace(DIRECTORY, str(root)),
            restore_block(root, "ckpt-task123-step-4"),
            cleanup_block(root, "CLEANUP_ALL", task="task123"),
        )

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize(
        "dressed",
        [
            lambda block: PROSE + block + "\nThat is all.\n- really\n",
            lambda block: f"{PROSE}```\n{block}```\nThat is all.\n",
            lambda block: f"```text\n{block.rstrip().removesuffix(RULE)}```\n",
            lambda block: block.replace(f"{RULE}\n", "", 2),
            lambda block: block.replace(f"{RULE}\n[C", f"{RULE}\nOf course:\n[C"),
            lambda block: block.replace(f"{RULE}\n", "=====\n"),
            lambda block: block.replace("\n[", f"\n{RULE}\n["),
            lambda block: block.replace("CHECKPOINT OPERATION", "## Checkpoint Operation"),
            lambda block: block.replace("[CHECKPOINT_ID]", "**[checkpoint_id]**:"),
            lambda block: block.replace("[CHECKPOINT_ID]\n", "[CHECKPOINT_ID] "),
            lambda block: block.replace("\nckpt-task123-step-4\n", "\n- `ckpt-task123-step-4`\n"),
            lambda block: block.replace("\nckpt-", "\nCheckpoint ID: ckpt-"),
            lambda block: block.replace("[WORKING_DIRECTORY]\n", "[WORKING_DIRECTORY]\n- path: "),
            lambda block: block.replace(f"\n{RULE}\n\n", f"\n{RULE}\n[NOTES]\nnone\n"),
            lambda block: block.replace("[WORKING", "[NOTES]\nnone\n[WORKING"),
            lambda block: "".join(f"> {line}\n" for line in block.splitlines()),
            lambda block: block.replace("\n", " \r\n\r\n"),
            lambda block: "\ufeff" + block.replace("\n", "\r"),
            lambda block: block.replace("task_id: task123", "* **Task ID**: `task123`"),
            lambda block: block.replace("CLEANUP_ALL", "cleanup_all"),
            lambda block: block.replace("task_id", "retain_count: N/A\nbefore_step: -\ntask_id"),
        ],
    )
    def test_nothing_stops_it(self, root, store, run, dressed):
        create, restore, cleanup = (dressed(block) for block in self.blocks(root))

        assert status(run(create)) == "CREATE_SUCCESS", run(create)
        (root / "src/utils/errors.ts").write_text("new")
        assert status(run(restore)) == "RESTORE_SUCCESS", run(restore)
        assert not (root / "src/utils/errors.ts").exists()
        assert status(run(cleanup)) == "CLEANUP_COMPLETE", run(cleanup)
        assert [item.name for item in treesnap.open(root, store).list()][-1:] == [None]

    def test_a_restore_needs_no_end(self, broken, run):
        block = restore_block(broken, "ckpt-task123-step-4").rstrip().removesuffix(RULE)

        assert status(run(block + "\nThank you.\n")) == "RESTORE_SUCCESS"

    def test_a_create_and_a_cleanup_need_one(self, root, store, run):
        create, _, cleanup = self.blocks(root)
        for block in (create, cleanup):
            text = run(block.rstrip().removesuffix(RULE))
            assert (status(text)[-6:], reason(text)) == ("FAILED", "invalid_argument")
            assert "is incomplete" in text
        assert not store.exists()

    def test_several_blocks_are_refused(self, broken, run):
        blocks = self.blocks(broken)

        for first in blocks:
            for second in blocks:
                text = run(first + "Then:\n" + second)
                assert reason(text) == "invalid_argument"
                assert "several blocks" in text
        assert (broken / "src/utils/errors.ts").exists()

    def test_without_a_directory_it_is_about_the_one_of_the_command(self, broken, store, run):
        block = restore_block(broken, "ckpt-task123-step-4").replace(
            f"[WORKING_DIRECTORY]\n{broken}\n", ""
        )

        assert "[WORKING_DIRECTORY] is missing" in run(block)
        code, text = maker(block, store, options=("-C", str(broken)))
        assert (code, status(text)) == (0, "RESTORE_SUCCESS")

    def test_a_cleanup_takes_no_parameter_that_it_does_not_know(self, root, store, run):
        for parameter in ("only_failed: true", "retain_count: 1"):
            text = run(
                cleanup_block(root, "CLEANUP_ALL").replace("task_id", f"{parameter}\ntask_id")
            )
            assert reason(text) == "invalid_argument"


def listed(lines: str, directory: str = "/projects/app") -> list[str]:
    """Returns the files of a block with these lines in its list."""
    request = parse(create_block(directory, "one", "XX").replace("- XX\n", lines).encode())
    assert isinstance(request, Create)
    return list(request.files)


class TestTheListOfFiles:
    @pytest.mark.parametrize(
        ("lines", "expected"),
        [
            ("* a\n+ b\n• c\n1. d\n2) e\n- f\n", ["a", "b", "c", "d", "e", "f"]),
            ("src/a.ts\nsrc/b c.ts".replace(" ", "_"), ["src/a.ts", "src/b_c.ts"]),
            ("- a\nb\n", ["a", "b"]),
            ("Files to be modified:\n\n- a b.md\n", ["a b.md"]),
            ("```\n- a\n- b\n```\n", ["a", "b"]),
            ("- `src/a.ts`\n- \"b c\"\n- 'd'\n", ["src/a.ts", "b c", "d"]),
            ("- `src/a.ts` - add a handler\n- `b`: new\n", ["src/a.ts", "b"]),
            ("- [slug]/page.tsx\n[id]/page.tsx\n- c\n", ["[slug]/page.tsx", "[id]/page.tsx", "c"]),
            ("- -a.ts\n- - b\n", ["-a.ts", "- b"]),
            ("- 'tis/it's\n", ["'tis/it's"]),
            ("- /projects/app/src/a.ts\n- /projects/app//b\n", ["src/a.ts", "b"]),
            ("- (a/b)\n- a b (c)\n", ["(a/b)", "a b (c)"]),
        ],
    )
    def test_is_read_as_it_is_meant(self, lines, expected):
        assert listed(lines if lines.endswith("\n") else lines + "\n") == expected

    @pytest.mark.parametrize(
        "comment", [" (new file)", " - add a handler", ": will be created", " # new", " -- new"]
    )
    def test_takes_both_readings_of_what_may_be_a_comment(self, root, run, comment):
        """One path too many does no harm; one too few would not come back."""
        path = "src/utils/validator.ts"
        assert listed(f"- {path}{comment}\n") == [path + comment, path]

        text = run(create_block(root, "one", path + comment))
        (root / path).write_text("broken")

        assert f"- {path}: captured" in sections(text)["CHECKPOINT DETAILS"]
        assert status(run(restore_block(root, "one"))) == "RESTORE_SUCCESS"
        assert (root / path).read_text() == "export {}\n"

    def test_takes_absolute_paths_through_a_link(self, root, run, tmp_path):
        (tmp_path / "link").symlink_to(root)

        text = run(create_block(tmp_path / "link", "one", f"{root}/src/utils/validator.ts"))

        assert "- src/utils/validator.ts: captured" in sections(text)["CHECKPOINT DETAILS"]

    @pytest.mark.parametrize(
        "path", ["/projects/apple", "/projects", "/projects/app/../x", "/projects/app", "/"]
    )
    def test_takes_none_outside_of_the_directory(self, path):
        with pytest.raises(treesnap.InvalidArgument):
            listed(f"- {path}\n")


def test_a_step_without_a_name_is_taken(root, store, run):
    block = create_block(root, "one", "src").replace("step_name: a step\n", "mood: fine\n")

    assert status(run(block)) == "CREATE_SUCCESS"
    made = treesnap.open(root, store).resolve("one")
    assert (made.label, "step_name" in facts_of(made)) == ("before step 1", False)


def test_the_worked_examples_mean_what_they_meant():
    create = parse(CREATE_INPUT.replace(DIRECTORY, "/projects/app").encode())

    assert create == Create(
        working_directory="/projects/app",
        checkpoint_id="ckpt-task123-step-4",
        task_id="task123",
        step_number=4,
        step_name="Add error handling to validator",
        files=("src/utils/validator.ts", "src/utils/errors.ts"),
    )
    assert parse(restore_block("/projects/app", "one").encode()) == Restore(
        working_directory="/projects/app", checkpoint_id="one"
    )


class TestTheSameCreateAgain:
    """A sender that lost the answer asks again; unchanged files leave nothing to refuse."""

    @pytest.fixture
    def block(self, root):
        return create_block(root, "one", "src/utils/validator.ts", "new", step=3)

    def test_is_success(self, root, store, run, block):
        first = run(block, metadata=True)

        for options in ((), ("--metadata",), ("--no-metadata",)):
            code, text = maker(block, store, *options)
            assert (code, status(text)) == (0, "CREATE_SUCCESS")
            assert sections(text)["CHECKPOINT DETAILS"] == sections(first)["CHECKPOINT DETAILS"]
        assert len(treesnap.open(root, store).list()) == 1

    def test_is_success_when_only_times_moved(self, root, run, block):
        run(block)
        os.utime(root / "src/utils/validator.ts", ns=(1, 1))

        assert status(run(block)) == "CREATE_SUCCESS"

    def test_writes_the_metadata_that_is_missing(self, root, run, block):
        run(block)
        run(block, metadata=True)

        assert [item.name for item in root.glob(".maker-checkpoints/*/*")] == ["one.json"]
        run(cleanup_block(root, "CLEANUP_ALL"))
        assert list(root.glob(".maker-checkpoints/*/*")) == []

    @pytest.mark.parametrize("what", ["content", "mode", "appeared", "gone"])
    def test_is_refused_when_a_file_changed(self, root, run, block, what):
        run(block)
        file = root / "src/utils/validator.ts"
        match what:
            case "content":
                file.write_text("changed")
            case "mode":
                file.chmod(0o700)
            case "appeared":
                (root / "new").write_text("")
            case "gone":
                file.unlink()

        text = run(block)

        assert (status(text), reason(text)) == ("CREATE_FAILED", "name_taken")

    @pytest.mark.parametrize(
        ("old", "new"), [("- new\n", ""), ("task_id: task", "task_id: x"), ("r: 3", "r: 4")]
    )
    def test_is_refused_when_it_asks_for_something_else(self, run, block, old, new):
        run(block)

        assert reason(run(block.replace(old, new))) == "name_taken"

    def test_is_refused_when_the_name_is_not_of_maker(self, root, store, run, block):
        treesnap.open(root, store).create(["src/utils/validator.ts"], name="one")

        assert reason(run(block)) == "name_taken"


class TestTheSettingOfTheMetadata:
    def files(self, root):
        return [item.name for item in root.glob(".maker-checkpoints/*/*")]

    def test_writes_the_file_without_the_option(self, root, store, run):
        treesnap.open(root, store).config("maker.metadata", "true")

        code, text = maker(create_block(root, "one", "a.ts"), store)

        assert (code, self.files(root)) == (0, ["one.json"])
        assert sections(text)["METADATA LOCATION"] == [".maker-checkpoints/metadata/one.json"]

    def test_can_be_for_one_root(self, root, store, run, tmp_path):
        treesnap.open(root, store).config("maker.metadata", "true", for_root=True)
        other = tmp_path / "other"
        other.mkdir()

        run(create_block(root, "one", "a.ts"))
        run(create_block(other, "one", "a.ts"))

        assert (self.files(root), self.files(other)) == (["one.json"], [])

    def test_the_option_wins(self, root, store):
        treesnap.open(root, store).config("maker.metadata", "true")

        maker(create_block(root, "one", "a.ts"), store, "--no-metadata")

        assert self.files(root) == []

    def test_a_settings_file_that_cannot_be_read_stops_no_checkpoint(self, root, store, run):
        treesnap.open(root, store).config("maker.metadata", "true")
        (store / "config.toml").write_text("nonsense = [")

        assert status(run(create_block(root, "one", "a.ts"))) == "CREATE_SUCCESS"
        assert self.files(root) == []
