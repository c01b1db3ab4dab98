"""What a snapshot does not hold is listed in it, and no restore ever touches it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import treesnap
from mutations import mutate
from oracle import Record, difference, record
from scopes import relinked
from trees import build_small, make_socket, paths_below
from treesnap.core.handle import Handle
from treesnap.core.model.entries import SkipReason
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.results import CreateResult
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.scan.ignore import IGNORE_FILE_SIZE_MAX
from treesnap.testing.doubles import Call, WrappedFileSystem

pytestmark = pytest.mark.sampled(4)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory to capture."""
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def handle(tmp_path: Path, root: Path) -> Handle:
    """A handle on the tree."""
    return treesnap.open(root, tmp_path / "store")


def make(root: Path, *paths: str) -> None:
    """Makes files that hold their own path, and the directories above them."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def names(root: Path) -> set[str]:
    """Returns every path that is not a directory."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def reasons(result: CreateResult) -> dict[bytes, SkipReason]:
    """Returns what a capture left out."""
    return {item.path: item.reason for item in result.skipped}


class TestExclusions:
    def test_excluded_paths_are_not_captured_but_listed(self, handle, root):
        make(root, "kept", "a.log", "sub/b.log", "build/x", "sub/build/y")
        (root / ".snapignore").write_text("# comment\n\n*.log\n/build/\n")

        result = handle.create()

        hidden = {b"a.log", b"sub/b.log", b"build"}
        assert reasons(result) == dict.fromkeys(hidden, SkipReason.EXCLUDED)
        assert {item.path for item in handle.skipped(result.id)} == hidden
        entries = handle.ls(result.id, recursive=True)
        held = {entry.name for entry in entries if not entry.is_skipped}
        assert {b".snapignore", b"kept", b"sub", b"sub/build", b"sub/build/y"} <= held
        assert not held & {*hidden, b"build/x"}
        assert result.complete

    def test_restore_leaves_old_and_new_excluded_files_alone(self, handle, root):
        make(root, "kept", "a.log", "sub/b.log", "sub/kept")
        (root / ".snapignore").write_text("*.log\n")
        identity = handle.create().id
        (root / "a.log").write_text("edited")
        (root / "sub/b.log").unlink()
        make(root, "new.log", "sub/new.log", "new")
        shutil.rmtree(root / "sub")
        make(root, "sub/new.log")

        handle.restore(identity)

        assert names(root) == {".snapignore", "kept", "a.log", "new.log", "sub/kept", "sub/new.log"}
        assert (root / "a.log").read_text() == "edited"

    @pytest.mark.parametrize("today", [None, "", "*.tmp\n", "!*.log\n"])
    def test_an_ignore_file_that_changed_meanwhile_endangers_nothing(self, handle, root, today):
        make(root, "kept", "a.log")
        (root / ".snapignore").write_text("*.log\n")
        identity = handle.create().id
        (root / "a.log").write_text("edited")
        if today is None:
            (root / ".snapignore").unlink()
            make(root, "new.log")
        else:
            (root / ".snapignore").write_text(today)
        (root / "kept").unlink()

        handle.restore(identity)

        assert (root / "a.log").read_text() == "edited"
        assert names(root) - {"new.log"} == {".snapignore", "kept", "a.log"}
        assert (root / ".snapignore").read_text() == "*.log\n"
        assert today is not None or (root / "new.log").exists()

    def test_what_is_excluded_since_the_snapshot_is_left_alone_and_named(self, handle, root):
        make(root, "data", "kept")
        identity = handle.create().id
        (root / "data").write_text("edited")
        (root / "kept").write_text("edited")
        (root / ".snapignore").write_text("data\n")

        result = handle.restore(identity)

        assert [item.path for item in result.untouched] == [b"data"]
        assert (root / "data").read_text() == "edited"
        assert (root / "kept").read_text() == "kept"

    def test_rules_of_a_directory_hold_below_it_only(self, handle, root):
        make(root, "one/a.log", "two/a.log", "three/e/a.log", "a.log")
        (root / "one/.snapignore").write_text("*.log\n")
        (root / "three/.snapignore").write_text("/e/\n")
        before = record(root)
        result = handle.create()
        for path in ("two/a.log", "a.log"):
            (root / path).write_text("edited")
        (root / "two/new.log").write_text("new")

        restored = handle.restore(result.id)

        assert {*reasons(result)} == {b"one/a.log", b"three/e"}
        assert restored.untouched == ()
        assert difference(before, record(root)) == []

    def test_a_pattern_takes_names_back_in(self, handle, root):
        make(root, "a.log", "keep.log", "sub/c.log", "sub/keep.log")
        (root / ".snapignore").write_text("*.log\n!keep.log\n")
        (root / "sub/.snapignore").write_text("!c.log\n")

        assert {*reasons(handle.create())} == {b"a.log"}

    def test_given_patterns_hold_for_the_restore_too(self, handle, root):
        make(root, "kept", "cache/x", "sub/cache/y")
        identity = handle.create(options=treesnap.CreateOptions(exclude=["cache/"])).id
        make(root, "cache/new", "kept too")
        (root / "cache/x").write_text("edited")

        handle.restore(identity)

        assert names(root) == {"kept", "cache/x", "cache/new", "sub/cache/y"}
        assert (root / "cache/x").read_text() == "edited"

    def test_a_directory_that_must_go_stays_for_what_is_excluded_in_it(self, handle, root):
        make(root, "kept")
        (root / ".snapignore").write_text("*.log\n")
        identity = handle.create().id
        make(root, "new/deep/a.log", "new/deep/file", "new/other/file")

        handle.restore(identity)

        assert names(root) == {"kept", ".snapignore", "new/deep/a.log"}
        assert not (root / "new/other").exists()
        handle.undo()
        assert (root / "new/deep/file").read_text() == "new/deep/file"
        assert (root / "new/other/file").exists()

    def test_a_directory_that_must_become_a_file_is_refused_for_what_is_excluded(
        self, handle, root
    ):
        make(root, "place", "other")
        (root / ".snapignore").write_text("*.log\n")
        identity = handle.create().id
        (root / "place").unlink()
        make(root, "place/sub/a.log", "place/file")
        (root / "other").write_text("edited")
        before = record(root)

        for dry_run in (True, False):
            with pytest.raises(treesnap.Refused, match="'place'"):
                handle.restore(identity, dry_run=dry_run)

        assert difference(before, record(root)) == []

    def test_names_that_are_not_utf8_are_excluded_by_patterns_too(self, handle, root):
        path = os.fsencode(root) + b"/\xff.log"
        with open(path, "wb"):
            pass
        (root / ".snapignore").write_bytes(b"\xff.log\n")

        assert {*reasons(handle.create())} == {b"\xff.log"}

    def test_a_pattern_may_hold_any_character_but_a_newline(self, handle, root):
        make(root, "a\x0cb", "c\u2028d", "b", "d", "e")
        (root / ".snapignore").write_bytes("a\x0cb\nc\u2028d\r\ne".encode())

        assert {*reasons(handle.create())} == {b"a\x0cb", "c\u2028d".encode(), b"e"}

    def test_names_with_newlines_are_excluded_by_patterns_too(self, handle, root):
        make(root, "new\nline/a.log", "a\n.log", "a.log\n", "a\nb")
        (root / ".snapignore").write_text("*.log\n")

        result = handle.create(options=treesnap.CreateOptions(exclude=["a\nb"]))

        assert {*reasons(result)} == {b"new\nline/a.log", b"a\n.log", b"a\nb"}

    def test_a_file_that_a_new_rule_excludes_is_not_a_change(self, handle, root):
        make(root, "a.log", "kept")
        handle.create()
        (root / ".snapignore").write_text("*.log\n")

        second = handle.create()

        assert {*reasons(second)} == {b"a.log"}
        (root / ".snapignore").unlink()
        third = handle.create()
        assert third.skipped == ()
        assert b"".join(handle.cat(third.id, "a.log")) == b"a.log"


def is_hidden(path: bytes) -> bool:
    """Returns whether a path is excluded by the pattern of the test below, itself or with more."""
    return any(name.endswith(b".x") for name in path.split(b"/"))


def parts(state: Record) -> tuple[Record, Record]:
    """Returns what of a state is captured, and what is excluded."""
    return (
        relinked({path: facts for path, facts in state.items() if not is_hidden(path)}),
        relinked({path: facts for path, facts in state.items() if is_hidden(path)}),
    )


def change(root: Path, random: Random) -> None:
    """Changes a tree at random, and renames things so that they become excluded, or are no more."""
    top = os.fsencode(root)
    mutate(root, random, random.randrange(1, 6))
    for _ in range(random.randrange(4)):
        path = random.choice([*paths_below(top), top + b"/none"])
        target = path[:-2] if path.endswith(b".x") else path + b".x"
        if os.path.lexists(path) and not os.path.lexists(target) and len(target) < 3000:
            with suppress(OSError):  # names may be too long
                os.rename(path, target)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_excluded_paths_are_never_touched(tmp_path, seed):
    random = Random(seed)
    root = tmp_path / "root"
    build_small(root, seed)
    handle = treesnap.open(root, tmp_path / "store")
    for _ in range(4):
        change(root, random)
        held, _ = parts(record(root))
        identity = handle.create(options=treesnap.CreateOptions(exclude=["*.x"])).id
        change(root, random)
        before, hidden_before = parts(record(root))

        try:
            handle.restore(identity)
        except treesnap.Refused:
            assert (before, hidden_before) == parts(record(root))
            continue

        now, hidden_now = parts(record(root))
        assert difference(hidden_before, hidden_now) == []
        kept = {path for path in now if path not in held}
        assert all(now[path].kind == "directory" for path in kept)
        assert all(any(item.startswith(path + b"/") for item in hidden_now) for path in kept)
        assert difference(held, {path: now[path] for path in now if path not in kept}) == []
        if now != before:
            handle.undo()
            assert difference(before, parts(record(root))[0]) == []
            assert difference(hidden_before, parts(record(root))[1]) == []


def test_a_store_inside_the_tree_is_left_out_and_survives(root):
    handle = treesnap.open(root, root / "sub" / "store")
    empty = handle.create()
    make(root, "sub/file", "file")
    identity = handle.create().id

    assert reasons(empty) == {b"sub/store": SkipReason.STORE}
    shutil.rmtree(root / "sub" / "store" / "tmp", ignore_errors=True)
    handle.restore(empty.id)
    assert [name for name in names(root) if not name.startswith("sub/store/")] == []
    handle.restore(identity)
    assert {"sub/file", "file"} <= names(root)
    assert handle.verify(read_data=True).ok


def test_sockets_are_listed_and_left_alone(handle, root):
    make_socket(os.fsencode(root / "old"))
    make(root, "file", "becomes")
    result = handle.create()
    (root / "becomes").unlink()
    for name in ("becomes", "new"):
        make_socket(os.fsencode(root / name))
    (root / "gone").mkdir()
    make_socket(os.fsencode(root / "gone" / "inside"))

    restored = handle.restore(result.id)

    assert reasons(result) == {b"old": SkipReason.SOCKET}
    assert all((root / name).is_socket() for name in ("old", "becomes", "new", "gone/inside"))
    left = [item.path for item in restored.untouched]
    assert left == [b"becomes", b"gone", b"gone/inside", b"new"]


@pytest.fixture
def mounted(root: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts empty file systems below the root."""
    done: list[Path] = []

    def mount(name: str) -> Path:
        place = root / name
        place.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "treesnap-test", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"nothing can be mounted here: {error}")
        done.append(place)
        return place

    yield mount
    for place in reversed(done):
        subprocess.run(["umount", str(place)], check=True)


@needs_root
def test_other_file_systems_are_listed_and_left_alone(handle, root, mounted):
    make(root, "file", "sub/file")
    empty = handle.create()
    old, new = mounted("old"), mounted("new place/below")
    make(old, "inside")
    result = handle.create()
    make(new, "inside")
    make(root, "new place/file")

    assert reasons(result) == {b"old": SkipReason.MOUNT, b"new place/below": SkipReason.MOUNT}
    handle.restore(empty.id)
    assert names(root) == {"file", "sub/file", "old/inside", "new place/below/inside"}
    handle.undo()
    assert (root / "new place/file").exists()


@pytest.mark.needs("mounts")
@needs_root
def test_a_directory_of_the_same_file_system_that_is_mounted_is_left_alone(
    handle, root, tmp_path, mounted
):
    mounted("first")
    make(tmp_path, "outside/file")
    (root / "bound").mkdir()
    place = root / "bound"
    subprocess.run(["mount", "--bind", str(tmp_path / "outside"), str(place)], check=True)
    try:
        result = handle.create()
        assert reasons(result)[b"bound"] == SkipReason.MOUNT
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.needs("mounts")
@needs_root
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_is_mounted_on_itself_is_left_alone_as_long_as_it_is(handle, root, mounted, kind):
    """Nothing that a look tells of it changes, neither now nor when it is unmounted."""
    mounted("first")
    make(root, "directory/file", "directory/below/file")
    place = root / ("directory" if kind == "directory" else "directory/file")
    path = os.fsencode(place.relative_to(root))
    wait_until_old(handle)
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
    try:
        while_mounted = [reasons(handle.create()).get(path) for _ in range(2)]
    finally:
        subprocess.run(["umount", str(place)], check=True)

    assert while_mounted == [SkipReason.MOUNT, SkipReason.MOUNT]
    assert reasons(handle.create()) == {b"first": SkipReason.MOUNT}


def wait_until_old(handle) -> None:
    """Takes snapshots until no file is read because it is young."""
    while handle.create().stats.files_read:
        pass


def too_long(path: Path) -> None:
    """Gives an ignore file a pattern behind more bytes than are read."""
    path.write_bytes(path.read_bytes() + b"#" * IGNORE_FILE_SIZE_MAX + b"\nsecret\n")


def behind_a_link(path: Path) -> None:
    """Lets a link lead to an ignore file."""
    path.rename(path.with_name("rules"))
    path.symlink_to("rules")


def a_loop(path: Path) -> None:
    """Lets a link lead to itself."""
    path.unlink()
    path.symlink_to(path.name)


class Unreadable(WrappedFileSystem):
    """A file system on which ignore files cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_failing = False

    def around(self, call: Call) -> Any:
        if self.is_failing and call.method == "open" and ".snapignore" in str(call.path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call.proceed()


class TestUnreadableRules:
    """Rules that cannot be known may leave out anything: nothing there is touched."""

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("damage", [too_long, behind_a_link, a_loop])
    @pytest.mark.parametrize("directory", ["", "sub"])
    def test_nothing_below_is_captured_or_touched(self, tmp_path, root, damage, directory):
        monitor = CollectingMonitor()
        handle = treesnap.open(root, tmp_path / "store", monitor=monitor)
        make(root, "file", "sub/kept", "sub/a.log", "sub/deep/kept")
        (root / directory / ".snapignore").write_text("*.log\n")
        whole = handle.create().id
        make(root, "sub/secret", "sub/new")
        (root / "sub/kept").write_text("edited")
        (root / "file").write_text("edited")
        damage(root / directory / ".snapignore")
        before = record(root)

        blind = handle.create()

        assert not blind.complete
        left_out = {item.path for item in blind.skipped}
        assert left_out == ({b"sub"} if directory else {os.fsencode(n) for n in os.listdir(root)})
        assert {*reasons(blind).values()} == {SkipReason.UNREADABLE}
        assert {item.path for item in handle.skipped(blind.id)} == left_out
        assert [message for message in monitor.warnings if ".snapignore" in message]
        for force in (False, True, True):
            restored = handle.restore(whole, force=force)
            assert left_out & {item.path for item in restored.untouched}
            self.assert_untouched(before, record(root), directory)
        handle.restore(blind.id)
        self.assert_untouched(before, record(root), directory)
        with suppress(treesnap.NotFound):  # where everything is left alone nothing was restored
            while True:
                handle.undo()
                self.assert_untouched(before, record(root), directory)

    @staticmethod
    def assert_untouched(before: Record, now: Record, directory: str) -> None:
        """Fails unless all below a directory is as it was."""
        top = os.fsencode(directory) + b"/" if directory else b""
        for state in (before, now):
            state.pop(b"", None)
        assert (
            difference(
                {path: facts for path, facts in before.items() if path.startswith(top)},
                {path: facts for path, facts in now.items() if path.startswith(top)},
            )
            == []
        )

    def test_a_snapshot_without_rules_protects_what_comes_later(self, handle, root):
        make(root, "sub/kept")
        for directory in ("", "sub"):
            (root / directory / ".snapignore").symlink_to("nothing")
            blind = handle.create().id
            (root / directory / ".snapignore").unlink()
            make(root, "sub/new")

            handle.restore(blind)

            assert "sub/new" in names(root)
            (root / "sub/new").unlink()

    def test_rules_that_can_be_read_again_count_again(self, handle, root):
        make(root, "kept", "a.log", "sub/kept", "sub/a.log")
        for directory in ("", "sub"):
            place = root / directory / ".snapignore"
            place.symlink_to("nothing")
            assert not handle.create().complete
            place.unlink()
            place.write_text("*.log\n")

            result = handle.create()

            assert result.complete
            assert {*reasons(result).values()} == {SkipReason.EXCLUDED}
        assert reasons(result).keys() == {b"a.log", b"sub/a.log"}

    def test_an_error_of_the_disk_leaves_the_directory_alone(self, tmp_path, root):
        fs = Unreadable()
        handle = Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs))
        make(root, "file", "sub/kept", "sub/a.log")
        (root / "sub/.snapignore").write_text("*.log\n")
        whole = handle.create().id
        (root / "sub/kept").write_text("edited")
        make(root, "sub/b.log")
        (root / "file").write_text("edited")
        fs.is_failing = True

        restored = handle.restore(whole)

        assert [item.path for item in restored.untouched] == [b"sub"]
        assert (root / "sub/kept").read_text() == "edited"
        assert (root / "sub/b.log").exists()
        assert (root / "file").read_text() == "file"
        assert not handle.create().complete

    @pytest.mark.parametrize("make_it", [os.mkdir, os.mkfifo, make_socket])
    def test_what_is_not_a_file_or_a_link_excludes_nothing(self, tmp_path, root, make_it):
        monitor = CollectingMonitor()
        handle = treesnap.open(root, tmp_path / "store", monitor=monitor)
        make(root, "kept", "sub/kept")
        make_it(os.fsencode(root / "sub/.snapignore"))

        result = handle.create()

        assert result.complete
        assert b"sub/kept" in {b"sub/" + item.name for item in handle.ls(result.id, "sub")}
        assert [message for message in monitor.warnings if "sub/.snapignore" in message]

    def test_more_rules_than_a_snapshot_takes_leave_their_directories_out(self, handle, root):
        lines = b"".join(b"%04000d\n" % number for number in range(250))
        for number in range(20):
            make(root, f"{number:02}/kept")
            (root / f"{number:02}/.snapignore").write_bytes(lines)

        result = handle.create()

        assert not result.complete
        assert set(reasons(result)) == {b"%02d" % number for number in range(16, 20)}
        assert handle.verify().ok
        handle.restore(result.id)

    @pytest.mark.needs("notices")
    def test_rules_are_looked_at_again_while_watched(self, tmp_path, root):
        monitor = CollectingMonitor()
        handle = treesnap.open(root, tmp_path / "store", monitor=monitor)
        make(root, "file", "sub/kept", "sub/a.log")
        (root / "sub/.snapignore").write_text("*.log\n")
        handle.create()
        with handle.watch():
            handle.create()
            behind_a_link(root / "sub/.snapignore")
            assert set(reasons(handle.create())) == {b"sub"}
            assert set(reasons(handle.create())) == {b"sub"}
            (root / "sub/.snapignore").unlink()
            (root / "sub/rules").rename(root / "sub/.snapignore")
            assert set(reasons(handle.create())) == {b"sub/a.log"}


class TestUselessPatterns:
    """A line that can match nothing is passed over in a file and refused from a caller."""

    def test_they_are_named_once_and_the_others_count(self, tmp_path, root):
        monitor = CollectingMonitor()
        handle = treesnap.open(root, tmp_path / "store", monitor=monitor)
        make(root, "sub/a.log", "sub/kept")
        (root / "sub/.snapignore").write_text("a\\\n*.log\n!\n[z\n\n# no\n/\n[[:none:]]\n")

        result = handle.create()

        assert set(reasons(result)) == {b"sub/a.log"}
        [message] = [text for text in monitor.warnings if "snapignore" in text]
        assert "'sub/.snapignore'" in message
        assert "line 1 ('a\\\\')" in message
        assert "line 3 ('!'), line 4 ('[z') and 2 more" in message
        handle.restore(result.id)

    @pytest.mark.parametrize("pattern", ["", "!", "/", "a\\", "[a", "[[:none:]]", "a\0b", "\ud800"])
    def test_a_caller_is_told(self, handle, root, pattern):
        make(root, "kept")

        with pytest.raises(treesnap.InvalidArgument):
            handle.create(options=treesnap.CreateOptions(exclude=["kept", pattern]))


def test_a_restore_leaves_alone_what_the_settings_exclude_since(root, handle):
    make(root, "kept")
    before = handle.create().snapshot
    handle.config("exclude", "*.bin")
    make(root, "excluded.bin")
    handle.create()

    result = handle.restore(before.id)

    assert names(root) == {"kept", "excluded.bin"}
    assert [item.path for item in result.untouched] == [b"excluded.bin"]


def test_a_roll_back_heeds_no_exclusion_that_the_step_set(root, handle):
    make(root, "old.bin")

    def step():
        (root / "old.bin").write_text("changed")
        make(root, "new.bin")
        handle.config("exclude", "*.bin")
        raise InterruptedError

    with pytest.raises(InterruptedError), handle.rollback_on_error("step"):
        step()

    assert names(root) == {"old.bin"}
    assert (root / "old.bin").read_text() != "changed"
