"""An undo reverses all that its operation wrote, whatever the ignore rules are by then."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from oracle import Record, difference, record
from sampling import sized
from scopes import Scope, inside, outside
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import MUTATING, Fault, UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

HELD = {
    ".snapignore": "*.log\nbuild/\n",
    "a.log": "log",
    "build/main.o": "object",
    "build/deep/er.log": "deep",
    "src/main.c": "source",
    "src/trace.log": "trace",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def handle(root: Path, tmp_path: Path) -> Handle:
    return handle_at(root, tmp_path / "store")


def handle_at(root: Path, store: Path, fs: UnsyncedFileSystem | None = None) -> Handle:
    return Handle(
        context_at(root=root, store_path=str(store), fs=fs or UnsyncedFileSystem()),
    )


def make(root: Path, files: dict[str, str]) -> Record:
    """Writes files; returns the tree as it is then."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return record(root)


def imported(handle: Handle, directory: Path, files: dict[str, str]) -> str:
    """Imports an archive of files, whose ignore rules were not applied; returns the snapshot."""
    archive = directory / "it.tar"
    with tarfile.open(archive, "w") as tar:
        for path, text in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size = len(text)
            info.uid, info.gid = os.getuid(), os.getgid()
            tar.addfile(info, io.BytesIO(text.encode()))
    return handle.import_from(archive).id


def untimed(state: Record, *paths: bytes) -> Record:
    """Returns a state without the times of directories in which something is put."""
    return {
        path: replace(facts, mtime_ns=0) if path in paths else facts
        for path, facts in state.items()
    }


def goes_back_and_forth(
    handle: Handle,
    before: Record,
    after: Record,
    scope: Scope = None,
    timeless: tuple[bytes, ...] = (),
) -> None:
    """Undoes and redoes twice; compares each state with what the oracle saw."""
    root = Path(handle.root)

    def compare(state: Record) -> None:
        state, now = untimed(state, *timeless), untimed(record(root), *timeless)
        assert difference(inside(state, scope), inside(now, scope)) == []
        assert difference(outside(state, scope), outside(now, scope)) == []

    for _ in range(2):
        handle.undo()
        compare(before)
        handle.redo()
        compare(after)
    handle.undo()
    compare(before)


def test_a_restored_archive_goes_whole_though_its_own_rules_hide_it(handle, root, tmp_path):
    before = make(root, {"mine": "mine"})
    snapshot = imported(handle, tmp_path, HELD)

    handle.restore(snapshot)

    after = record(root)
    assert (root / "build/deep/er.log").read_text() == "deep"
    goes_back_and_forth(handle, before, after)


def test_the_dry_run_of_an_undo_lists_what_rules_hide(handle, root, tmp_path):
    make(root, {"mine": "mine"})
    handle.restore(imported(handle, tmp_path, HELD))

    planned = handle.undo(dry_run=True)

    assert planned.deleted == handle.undo().deleted
    assert {b"a.log", b"build/deep/er.log"} <= {change.path for change in planned.changes}


def test_what_others_made_at_hidden_paths_stays(handle, root, tmp_path):
    make(root, {"mine": "mine"})
    handle.restore(imported(handle, tmp_path, HELD))
    make(root, {"later.log": "1", "src/later.log": "2", "build/later": "3", "build/deep/x": "4"})

    undone = handle.undo()

    left = {path for path, facts in record(root).items() if facts.kind != "directory"}
    assert left == {b"mine", b"later.log", b"src/later.log", b"build/later", b"build/deep/x"}
    assert {item.path for item in undone.untouched} >= {b"later.log", b"build/later"}
    handle.redo()
    assert (root / "build/main.o").read_text() == "object"
    assert (root / "build/later").read_text() == "3"


def test_what_a_user_wrote_over_it_comes_back_with_a_redo(handle, root, tmp_path):
    before = make(root, {"mine": "mine"})
    handle.restore(imported(handle, tmp_path, HELD))
    after = make(root, {"build/main.o": "precious"})

    goes_back_and_forth(handle, before, after)


@pytest.mark.parametrize("rule", ["made\n", "*\n", "x/\nmade\n", "/x/*\n"])
def test_rules_that_came_after_the_restore_hide_nothing_from_its_undo(handle, root, rule):
    make(root, {"made": "made", "x/y/file": "file", "x/kept": "kept", "x/was": "1"})
    old = handle.create().id
    (root / "x/y/file").unlink()
    (root / "x/y").rmdir()
    (root / "made").unlink()
    before = make(root, {"x/was": "2"})
    handle.restore(old)
    make(root, {".snapignore": rule, "x/free": "free"})

    handle.undo()

    now = record(root)
    kept = {path for path in now if path not in before}
    assert kept <= {b".snapignore", b"x/free"}
    assert (b"x/free" in kept) == (rule != "made\n")
    rest = {path: now.get(path) for path in before if before[path].kind != "directory"}
    assert rest == {path: before[path] for path in rest}


def test_a_path_that_the_root_excludes_is_undone_after_a_revert(handle, root):
    make(root, {"work.log": "log", "out/file": "file", "text": "1"})
    first = handle.create().id
    (root / "work.log").unlink()
    (root / "out/file").unlink()
    (root / "out").rmdir()
    make(root, {"text": "2"})
    second = handle.create().id
    before = make(root, {".snapignore": "*.log\nout/\n"})

    handle.revert(f"{first}..{second}")

    assert (root / "work.log").read_text() == "log"
    goes_back_and_forth(handle, before, record(root))


def test_a_path_that_the_root_excludes_is_undone_after_an_adoption(handle, root, tmp_path):
    make(root, {".snapignore": "*.log\nout/\n", "text": "text"})
    handle.create()
    handle.fork("latest", [tmp_path / "fork"])
    make(tmp_path / "fork", {".snapignore": "", "new.log": "log", "out/a/b": "b", "text": "new"})
    before = record(root)

    handle.adopt(tmp_path / "fork")

    assert (root / "out/a/b").read_text() == "b"
    goes_back_and_forth(handle, before, record(root))


@pytest.mark.parametrize("is_there", [False, True])
def test_a_directory_that_a_fork_moved_below_an_excluded_one(handle, root, tmp_path, is_there):
    make(root, {".snapignore": "out/\n", "texts/a": "a" * 99, "texts/b": "b" * 99, "c": "c"})
    if is_there:
        make(root, {"out/old": "old"})
    handle.create()
    handle.fork("latest", [tmp_path / "fork"])
    fork = tmp_path / "fork"
    (fork / "out").mkdir(exist_ok=True)
    (fork / "texts").rename(fork / "out/texts")
    make(fork, {".snapignore": ""})
    before = record(root)

    handle.adopt(fork)

    assert (root / "out/texts/a").exists() or (root / "texts/a").exists()
    goes_back_and_forth(handle, before, record(root))


def test_the_directories_above_a_restored_path_go_with_it(handle, root):
    make(root, {"q/w/e/f": "f", "q/beside": "beside", "other": "other"})
    snapshot = handle.create().id
    for path in ("q/w/e/f", "q/beside"):
        (root / path).unlink()
    for path in ("q/w/e", "q/w", "q"):
        (root / path).rmdir()
    before = record(root)

    handle.restore(snapshot, ["q/w/e/f"])

    assert handle.undo(dry_run=True).deleted == 4
    goes_back_and_forth(handle, before, record(root), (b"q/w/e/f",))


def test_a_directory_above_stays_for_what_was_made_in_it_since(handle, root):
    make(root, {"q/w/f": "f"})
    snapshot = handle.create().id
    (root / "q/w/f").unlink()
    (root / "q/w").rmdir()
    (root / "q").rmdir()
    handle.restore(snapshot, ["q/w/f"])
    make(root, {"q/mine": "mine"})

    handle.undo()

    assert [path.name for path in root.rglob("*")] == ["q", "mine"]


def test_a_kill_anywhere_leaves_all_or_nothing(root, tmp_path):
    """The next command brings the tree to one of both states, and an undo to the first."""
    make(root, {"mine": "mine"})
    handle = handle_at(root, tmp_path / "store")
    snapshot = imported(handle, tmp_path, HELD)
    handle.restore(snapshot)
    there = record(root)
    handle.undo()
    absent = record(root)
    outcomes = set()
    for verb in ("restore", "undo"):
        for number in range(1, 400, sized(7, 1)):
            is_there = (root / "a.log").exists()
            if is_there != (verb == "undo"):
                handle.restore(snapshot) if verb == "undo" else handle.undo()

            def act(fs, verb=verb) -> None:
                own = handle_at(root, tmp_path / "store", fs)
                own.restore(snapshot) if verb == "restore" else own.undo()

            ended = killed(act, Fault(kinds=MUTATING, number=number))
            assert ended.error is None
            handle.recover()
            is_there = (root / "a.log").exists()
            assert difference(there if is_there else absent, record(root)) == []
            outcomes.add((verb, is_there))
            if not ended.was_killed:
                break
    assert outcomes == {(verb, there) for verb in ("restore", "undo") for there in (True, False)}


def linked(root: Path, *names: str) -> None:
    """Gives the first file the other names."""
    for name in names[1:]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(root / names[0], root / name)


def is_one(root: Path, *names: str) -> bool:
    """Returns whether all names are of one file."""
    return len({(root / name).stat().st_ino for name in names}) == 1


@pytest.fixture
def two_names(handle, root):
    """Returns a snapshot, and a root in which one of two names is out of `in`."""
    make(root, {"in/file": "old", "in/gone": "old", "text": "text"})
    snapshot = handle.create().id
    make(root, {"in/file": "new", "in/added": "added"})
    linked(root, "in/file", "beside", "far/away")
    linked(root, "in/added", "near")
    linked(root, "in/gone", "spare")
    return snapshot


def test_names_outside_of_a_restored_path_are_one_file_again(handle, root, two_names):
    before = record(root)

    result = handle.restore(two_names, ["in"])

    assert not (root / "in/added").exists()
    assert result.links_broken == (b"in/file",)
    goes_back_and_forth(handle, before, record(root), timeless=(b"",))


def test_a_name_that_was_written_since_is_left_alone(handle, root, two_names):
    handle.restore(two_names, ["in"])
    (root / "beside").write_text("mine")
    (root / "near").unlink()

    handle.undo()

    assert (root / "beside").read_text() == (root / "far/away").read_text() == "mine"
    assert (root / "in/file").read_text() == "new"
    assert not (root / "near").exists()


def test_a_name_is_left_alone_that_a_redo_does_not_need(handle, root, two_names):
    handle.restore(two_names, ["in"])
    handle.undo()
    (root / "beside").write_text("mine")

    handle.redo()

    assert (root / "in/file").read_text() == "old"
    assert (root / "beside").read_text() == (root / "far/away").read_text() == "mine"
    handle.undo()
    assert (root / "in/file").read_text() == "mine"
    assert is_one(root, "in/file", "beside", "far/away")


@pytest.mark.parametrize("is_known", [False, True])
def test_an_excluded_name_is_one_file_again(handle, root, is_known):
    make(root, {".snapignore": "*.log\nout/\n", "file": "old", "out/other": "other"})
    if is_known:
        linked(root, "file", "a.log", "out/deep/b")
    snapshot = handle.create().id
    make(root, {"file": "new"})
    if not is_known:
        linked(root, "file", "a.log", "out/deep/b")
    before = record(root)

    handle.restore(snapshot)

    assert (root / "a.log").read_text() == (root / "out/deep/b").read_text() == "new"
    goes_back_and_forth(handle, before, record(root))


@pytest.mark.parametrize("is_known", [False, True])
def test_an_excluded_name_that_was_written_since_is_left_alone(handle, root, is_known):
    make(root, {".snapignore": "*.log\n", "file": "old"})
    if is_known:
        linked(root, "file", "a.log")
    snapshot = handle.create().id
    make(root, {"file": "new"})
    if not is_known:
        linked(root, "file", "a.log")
    handle.restore(snapshot)
    make(root, {"a.log": "mine"})

    handle.undo()

    assert (root / "file").read_text() == "new"
    assert (root / "a.log").read_text() == "mine"


def test_links_that_a_revert_and_an_adoption_break_are_whole_again(handle, root, tmp_path):
    make(root, {".snapignore": "*.log\n", "file": "1"})
    first = handle.create().id
    make(root, {"file": "2"})
    second = handle.create().id
    linked(root, "file", "a.log")
    before = record(root)

    handle.revert(f"{first}..{second}")
    assert not is_one(root, "file", "a.log")
    handle.undo()
    assert difference(before, record(root)) == []

    handle.fork("latest", [tmp_path / "fork"])
    make(tmp_path / "fork", {"file": "3"})
    handle.adopt(tmp_path / "fork")
    assert not is_one(root, "file", "a.log")
    handle.undo()
    assert difference(before, record(root)) == []


def test_a_dry_run_says_of_links_what_an_undo_does(handle, root, two_names):
    handle.restore(two_names, ["in"])

    planned = handle.undo(dry_run=True)
    done = handle.undo()

    assert planned.changes == done.changes
    assert planned.scope == done.scope == (b"in",)
    assert planned.links_broken == done.links_broken == ()


def test_links_are_whole_or_as_they_were_after_a_kill(handle, root, two_names, tmp_path):
    make(root, {".snapignore": "far\n"})
    before = record(root)
    handle.restore(two_names, ["in"])
    after = record(root)
    outcomes = set()
    for number in range(1, 400, sized(5, 1)):
        ended = killed(
            lambda fs: handle_at(root, tmp_path / "store", fs).undo(),
            Fault(kinds=MUTATING, number=number),
        )
        assert ended.error is None
        handle.recover()
        is_undone = (root / "in/added").exists()
        state = before if is_undone else after
        assert difference(untimed(state, b""), untimed(record(root), b"")) == []
        outcomes.add(is_undone)
        if is_undone:
            handle.redo()
        if not ended.was_killed:
            break
    assert outcomes == {False, True}


@pytest.mark.needs("notices")
def test_a_watcher_knows_what_an_undo_takes_back(handle, root, tmp_path):
    make(root, {".snapignore": "*.log\n", "mine": "mine", "in/file": "1"})
    linked(root, "in/file", "beside", "name.log")
    snapshot = imported(handle, tmp_path, HELD)
    with handle.watch() as watched:
        first = watched.create().id
        make(root, {"in/file": "2"})
        before = record(root)

        watched.restore(first, ["in"])
        goes_back_and_forth(watched, before, record(root), timeless=(b"",))
        watched.restore(snapshot)
        assert (root / "src/trace.log").read_text() == "trace"
        goes_back_and_forth(watched, before, record(root), timeless=(b"",))


def test_what_a_snapshot_of_some_paths_brought_is_undone(handle, root):
    make(root, {"in/out/file": "1", "in/a.log": "1", "beside": "1"})
    snapshot = handle.create(paths=["in"]).id
    (root / "in/out/file").unlink()
    (root / "in/out").rmdir()
    make(root, {"in/a.log": "2"})
    linked(root, "in/a.log", "b.log")
    before = record(root)
    handle.restore(snapshot)
    after = make(root, {".snapignore": "*.log\nout/\n"})

    goes_back_and_forth(
        handle,
        {**before, b".snapignore": after[b".snapignore"]},
        after,
        timeless=(b"",),
    )


def links_in(root: Path) -> dict[bytes, object]:
    """Returns the names of each file that has several."""
    return {path: facts.links for path, facts in record(root).items() if facts.links}


def test_a_name_that_is_excluded_since_stays_the_same_file(handle, root):
    make(root, {"one": "text", "other": "old"})
    (root / "sub").mkdir()
    os.link(root / "one", root / "two")
    os.link(root / "one", root / "sub/three")
    os.utime(root / "sub", (1, 1))  # so that it differs afterwards, also where times are seconds
    before = handle.create().id
    (root / "other").write_text("new")
    handle.restore(before)
    (root / "sub/.snapignore").write_text("*\n")
    links = links_in(root)

    assert handle.restore(before).restored == 0
    assert links_in(root) == links
    handle.undo()
    handle.undo()

    assert (root / "other").read_text() == "new"
    assert links_in(root) == links


def test_a_name_that_the_operation_made_the_same_file_is_one_of_its_own_again(handle, root):
    make(root, {"one": "text"})
    (root / "sub").mkdir()
    os.link(root / "one", root / "two")
    os.link(root / "one", root / "sub/three")
    joined = handle.create().id
    status = (root / "one").stat()
    (root / "sub/three").unlink()
    make(root, {"sub/three": "text"})
    os.utime(root / "sub/three", ns=(status.st_atime_ns, status.st_mtime_ns))
    links = links_in(root)
    handle.restore(joined)
    assert links_in(root) != links
    (root / "sub/.snapignore").write_text("*\n")

    handle.undo()

    (root / "sub/.snapignore").unlink()
    assert links_in(root) == links


@pytest.mark.parametrize("others", [(), ("two",)], ids=["alone", "with another"])
def test_a_link_to_what_only_the_state_before_excludes_stays(handle, root, others):
    make(root, {"one": "text", ".snapignore": "nothing\n", "out/other": "other"})
    linked(root, "one", "out/three", *others)
    first = handle.create().id
    make(root, {".snapignore": "out/\n"})
    handle.create()
    links = links_in(root)

    for step in (lambda: handle.restore(first), handle.undo, handle.redo, handle.undo):
        assert step().links_broken == ()
        assert links_in(root) == links
