"""MAKER's requests that fail: the reasons, each provoked, and blocks that make no sense."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from contextlib import contextmanager

import pytest

import treesnap
from maker_blocks import (
    CLEANUP_INPUT,
    CREATE_INPUT,
    DIRECTORY,
    RESTORE_INPUT,
    RULE,
    cleanup_block,
    create_block,
    maker,
    reason,
    restore_block,
    sections,
    status,
)
from mounting import mounting
from oracle import difference, record
from treesnap.compat.maker import carry_out
from treesnap.compat.maker_result import result_text
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import fact_tags
from treesnap.core.ops.create import create

ORDINARY = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Runs a command of the superuser without the right to read everything."""


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    (path / "sub").mkdir(parents=True)
    (path / "sub/file").write_text("before")
    return path


@pytest.fixture
def broken(root, run):
    """A checkpoint, and a step that failed after it."""
    assert status(run(create_block(root, "one", "sub/file", "sub/new"))) == "CREATE_SUCCESS"
    (root / "sub/file").write_text("after")
    (root / "sub/new").write_text("new")
    return root


@contextmanager
def flagged(path, flag):
    """Gives a path an attribute for a while; skips where there is none."""
    if subprocess.run(["chattr", f"+{flag}", path], capture_output=True, check=False).returncode:
        pytest.skip("no file attributes here")
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{flag}", path], check=True)


class TestRestoreFailed:
    """Every failure names its reason and options, has an exit code, and changes nothing."""

    def check(self, block: str, store, root, expected: str, exit_code: int) -> str:
        before = record(root)
        code, text = maker(block, store, options=("--wait", "0"))
        assert (code, status(text), reason(text)) == (exit_code, "RESTORE_FAILED", expected)
        options = sections(text)["RECOVERY OPTIONS"]
        assert [line[:3] for line in options] == ["1. ", "2. "]
        assert len(sections(text)["FAILURE DETAILS"]) == 3
        assert difference(before, record(root)) == []
        return text

    def test_checkpoint_not_found(self, broken, store):
        self.check(restore_block(broken, "two"), store, broken, "checkpoint_not_found", 5)

    def test_checkpoint_not_found_where_there_is_no_store(self, root, store):
        self.check(restore_block(root, "one"), store, root, "checkpoint_not_found", 5)

    def test_file_conflict_with_a_file_where_the_directory_was(self, broken, store, run):
        shutil.rmtree(broken / "sub")
        (broken / "sub").write_text("in the way")
        text = self.check(restore_block(broken, "one"), store, broken, "file_conflict", 3)
        assert "'sub'" in text

        (broken / "sub").unlink()
        assert status(run(restore_block(broken, "one"))) == "RESTORE_SUCCESS"

    def test_file_conflict_with_a_link_where_the_directory_was(self, broken, store, tmp_path):
        (broken / "sub").rename(tmp_path / "elsewhere")
        (broken / "sub").symlink_to(tmp_path / "elsewhere")
        self.check(restore_block(broken, "one"), store, broken, "file_conflict", 3)
        assert (tmp_path / "elsewhere/file").read_text() == "after"

    def test_file_conflict_with_a_socket(self, broken, store, monkeypatch):
        (broken / "sub/file").unlink()
        monkeypatch.chdir(broken / "sub")  # a socket's path may not be long
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("file")
            self.check(restore_block(broken, "one"), store, broken, "file_conflict", 3)

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("pattern", ["new", "file", "sub/"])
    def test_file_conflict_with_a_rule_that_excludes_the_file_by_now(self, broken, store, pattern):
        (broken / ".snapignore").write_text(pattern)
        self.check(restore_block(broken, "one"), store, broken, "file_conflict", 3)

    def test_file_conflict_with_another_command_in_the_directory(self, broken, store):
        (lock,) = store.glob("roots/*/lock")
        with lock.open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.check(restore_block(broken, "one"), store, broken, "file_conflict", 6)

    def test_file_conflict_with_a_mount_over_the_directory(self, broken, store, run):
        with mounting() as mounter:
            mounter.tmpfs(broken)
            self.check(restore_block(broken, "one"), store, broken, "file_conflict", 3)
        assert status(run(restore_block(broken, "one"))) == "RESTORE_SUCCESS"

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("path", ["sub/file", "sub/new", "sub", "."])
    def test_permission_error(self, broken, store, run, path):
        with flagged(broken / path, "i"):
            self.check(restore_block(broken, "one"), store, broken, "permission_error", 1)
        assert status(run(restore_block(broken, "one"))) == "RESTORE_SUCCESS"

    def test_corruption(self, broken, store, run):
        (pack,) = [path for path in store.glob("packs/**/*") if path.is_file()]
        content = bytearray(pack.read_bytes())
        for place in range(100, len(content), 7):
            content[place] ^= 0xFF
        pack.chmod(0o600)
        pack.write_bytes(content)
        self.check(restore_block(broken, "one"), store, broken, "corruption", 7)


@pytest.mark.parametrize(
    "listed",
    [
        "",
        "[",
        "[" * 100_000,
        "7",
        "[7]",
        "null",
        "{}",
        "[]",
        '["sub/other"]',
        '["sub/file", "/etc/passwd"]',
        '["sub/file", "../file"]',
        '["sub/file\\u0000"]',
        '["sub/file", "\\ud800"]',
    ],
)
def test_a_damaged_list_of_files_is_corruption(root, store, run, listed):
    request = CaptureRequest(
        name="one",
        session="task",
        step=4,
        scope=(b"sub/file",),
        tags=fact_tags(source_tool="maker", files=listed),
    )
    create(treesnap.open(root, store).context, request)
    (root / "sub/file").write_text("after")
    before = record(root)

    for block in (create_block(root, "one", "sub/file"), restore_block(root, "one")):
        text = run(block)

        assert reason(text) == "corruption"
        assert "The list of files of checkpoint 'one' is damaged" in text
    assert difference(before, record(root)) == []


def test_a_metadata_file_that_stays_keeps_its_checkpoint(root, store, run):
    run(create_block(root, "one", "sub/file"), metadata=True)

    with flagged(root / ".maker-checkpoints/metadata", "i"):
        text = run(cleanup_block(root, "CLEANUP_ALL"))

    assert (status(text), reason(text)) == ("CLEANUP_FAILED", "permission_error")
    assert [item.name for item in treesnap.open(root, store).list()] == ["one"]


def test_an_unreadable_file_is_a_permission_error(root, store):
    by = []
    if os.geteuid() == 0:
        if shutil.which(ORDINARY[0]) is None:
            pytest.skip("the superuser's rights cannot be dropped here")
        by = ORDINARY
        os.chown(root / "sub/file", 1, 1)
    (root / "sub/file").chmod(0)

    code, text = maker(create_block(root, "one", "sub/file"), store, by=by)

    assert (code, status(text), reason(text)) == (3, "CREATE_FAILED", "permission_error")
    assert treesnap.open(root, store).list() == ()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("block", "failed"),
    [
        (CREATE_INPUT, "CREATE_FAILED"),
        (RESTORE_INPUT, "RESTORE_FAILED"),
        (CLEANUP_INPUT, "CLEANUP_FAILED"),
    ],
)
def test_a_windows_working_directory_is_refused(root, store, block, failed):
    code, text = maker(block, store, cwd=root)

    assert (code, status(text), reason(text)) == (2, failed, "invalid_argument")
    assert "Windows" in text
    assert not store.exists()


@pytest.mark.parametrize(
    "directory",
    [DIRECTORY, "C:\\projects\\my-app", "\\\\server\\share", "my-app", "./my-app", "~/my-app"],
)
def test_a_working_directory_of_another_kind_is_refused(root, store, run, monkeypatch, directory):
    (root / "my-app").mkdir()
    monkeypatch.chdir(root)

    for block in (CREATE_INPUT, RESTORE_INPUT, CLEANUP_INPUT):
        text = run(block.replace(DIRECTORY, directory))
        assert reason(text) == "invalid_argument"
        assert ("Windows" in text) == ("\\" in directory or ":" in directory)
    assert not store.exists()


@pytest.mark.parametrize("block", [CREATE_INPUT, RESTORE_INPUT, CLEANUP_INPUT])
def test_a_missing_working_directory_is_refused(tmp_path, run, block):
    text = run(block.replace(DIRECTORY, str(tmp_path / "missing")))

    assert reason(text) == "root_not_found"
    assert "/missing" in text
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block", None),
        ("block", 7),
        ("store", 7),
        ("root", 7),
        ("metadata", "yes"),
        ("wait_s", None),
        ("monitor", print),
    ],
)
def test_wrong_types_are_a_mistake_of_the_caller(name, value):
    arguments = {"block": b"", name: value}

    with pytest.raises(treesnap.InvalidArgument, match=f"^{name} must be "):
        carry_out(**arguments)


def test_a_block_may_be_text(root, store):
    text = result_text(carry_out(create_block(root, "one", "sub/file"), store=store))

    assert status(text) == "CREATE_SUCCESS"


def test_another_root_than_that_of_the_option_is_refused(root, store, run, tmp_path):
    block = create_block(root, "one", "a.ts")
    assert reason(run(block, root=tmp_path)) == "invalid_argument"
    assert maker(block, store, options=("-C", str(tmp_path)))[0] == 2
    assert not store.exists()
    assert maker(block, store, options=("-C", str(root)))[0] == 0


class TestMalformed:
    """Blocks that are not whole or not plain change nothing."""

    def refused(self, block: str | bytes, run, root, store, words: str = "") -> None:
        before = record(root)
        text = run(block)
        assert status(text).endswith("_FAILED")
        assert reason(text) == "invalid_argument"
        assert words in text
        assert difference(before, record(root)) == []
        assert not store.exists()

    @pytest.mark.parametrize(
        "section", ["CHECKPOINT_ID", "STEP_INFO", "FILES_TO_CHECKPOINT", "WORKING_DIRECTORY"]
    )
    def test_without_a_section(self, root, store, run, section):
        whole = create_block(root, "one", "a")
        lines = whole.splitlines()
        start = lines.index(f"[{section}]")
        end = next(n for n in range(start + 1, len(lines)) if lines[n][0] in "[=")
        self.refused("\n".join(lines[:start] + lines[end:]), run, root, store, f"[{section}]")
        self.refused("\n".join(lines[: start + 1] + lines[end:]), run, root, store, f"[{section}]")
        twice = lines[:end] + lines[start:end] + lines[end:]
        self.refused("\n".join(twice), run, root, store, f"[{section}] appears twice")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("OPERATION: CREATE", "OPERATION: DESTROY"),
            ("OPERATION: CREATE", "OPERATION: CLEANUP"),
            ("CHECKPOINT OPERATION: CREATE", "CREATE"),
            ("\none\n", "\none\ntwo\n"),
            ("\none\n", "\n../one\n"),
            ("\none\n", "\n.one\n"),
            ("\none\n", "\nun deux\n"),
            ("\none\n", "\nlatest\n"),
            ("\none\n", "\nstep:1\n"),
            ("\none\n", "\n" + "i" * 101 + "\n"),
            ("step_number: 1\n", ""),
            ("step_number: 1\n", "step_number: one\n"),
            ("step_number: 1\n", "step_number: -1\n"),
            ("step_number: 1\n", "step_number: ²\n"),
            ("step_number: 1\n", "step_number: 1\nstep_number: 2\n"),
            ("task_id: task\n", "task_id:\n"),
            ("- a\n", "nothing in particular\n"),
            ("- a\n", "- N/A\n- none\n- ...\n- the usual ones\n"),
            ("- a\n", "-\n"),
            ("- a\n", "- /etc/passwd\n"),
            ("- a\n", "- C:/a\n"),
            ("- a\n", "- sub\\a\n"),
            ("- a\n", "- ../a\n"),
            ("- a\n", "- sub/../../a\n"),
            ("- a\n", "- .\n"),
            ("- a\n", "- sub/..\n"),
            ("- a\n", "- a\0b\n"),
            ("- a\n", "- a\n- b\n[WORKING_DIRECTORY]\n/\n"),
        ],
    )
    def test_a_create(self, root, store, run, old, new):
        block = create_block(root, "one", "a")
        assert block.count(old) == 1
        self.refused(block.replace(old, new), run, root, store)

    @pytest.mark.parametrize(
        ("mode", "parameters"),
        [
            ("RETAIN_FIRST", {"retain_count": 1}),
            ("RETAIN_LAST", {}),
            ("RETAIN_LAST", {"retain_count": ""}),
            ("RETAIN_LAST", {"retain_count": "all"}),
            ("RETAIN_LAST", {"before_step": 1}),
            ("RETAIN_LAST", {"retain_count": 1, "before_step": 1}),
            ("CLEANUP_BEFORE_STEP", {"retain_count": 1}),
            ("CLEANUP_ALL", {"retain_count": 1}),
            ("CLEANUP_ALL", {"keep": 1}),
        ],
    )
    def test_a_cleanup(self, root, store, run, mode, parameters):
        self.refused(cleanup_block(root, mode, **parameters), run, root, store)

    @pytest.mark.parametrize(
        "block",
        [
            b"",
            b"\n\n",
            b"hello",
            RULE.encode() * 3,
            create_block("/", "one", "a").encode() + b"\xff",
            create_block("/", "one", "a").encode("utf-16"),
            create_block("/", "one", *(["a" * 4000] * 1100)).encode(),
        ],
        ids=["empty", "blank", "words", "rule", "not UTF-8", "UTF-16", "huge"],
    )
    def test_what_is_no_block(self, root, store, run, block):
        self.refused(block, run, root, store)

    def test_what_is_not_known_of_a_request_is_null(self, run, store):
        for data, title in ((b"", "CHECKPOINT_ID"), (CLEANUP_INPUT[:120].encode(), "MODE")):
            result = carry_out(data, store=store)
            assert f"[{title}] -\n" in result_text(result)
            assert (result.checkpoint_id, result.mode) == (None, None)

    def test_a_block_that_was_cut_off(self, root, store, run):
        whole = create_block(root, "one", "a", "b").rstrip("\n")
        for length in range(len(whole) - 40):
            assert status(run(whole[:length])).endswith("_FAILED")
        assert not store.exists()

    def test_a_block_with_two_operations(self, root, store, run):
        block = create_block(root, "one", "a")
        self.refused(block + block, run, root, store)

    def test_blanks_and_other_line_ends_are_no_fault(self, root, run):
        block = create_block(root, "one", "sub/file").replace("\n", " \r\n\r\n")
        assert status(run("\n" + block.replace("- ", "  - "))) == "CREATE_SUCCESS"
