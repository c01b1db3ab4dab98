"""``fork``: directories that hold what a snapshot held, and histories that begin with it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

import trees
from mounting import Mounter, mounting
from oracle import difference, record, without
from treesnap import CollectingMonitor
from treesnap.core.fs.base import Place, Unsupported
from treesnap.core.handle import Handle
from treesnap.core.model.errors import (
    Busy,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StorageFull,
    StoreMissing,
)
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import (
    Fault,
    FaultyFileSystem,
    Kind,
    RecordingFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
)
from world import World

pytestmark = pytest.mark.sampled(10)

OLD_NS = 10**18


def later() -> int:
    """Returns a time at which nothing is racy that was written by now."""
    return time.time_ns() + 10**9


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def mounter() -> Iterator[Mounter]:
    with mounting() as mounter:
        yield mounter


def at(world: World, place: Path, **options) -> Handle:
    """Returns a handle on another root of the same store."""
    options = {"fs": UnsyncedFileSystem()} | options
    return Handle(context_at(root=place, store_path=str(world.store), **options))


class TestAFork:
    def test_holds_what_the_snapshot_held(self, world, tmp_path):
        world.handle().restore("second", to=tmp_path / "restored")

        result = world.handle().fork("second", [tmp_path / "one", tmp_path / "two"])

        expected = record(tmp_path / "restored")
        assert difference(expected, record(tmp_path / "one")) == []
        assert difference(expected, record(tmp_path / "two")) == []
        assert [fork.path_text for fork in result.forks] == [
            str(tmp_path / "one"),
            str(tmp_path / "two"),
        ]
        assert result.snapshot_id == world.handle().resolve("second").id
        assert result.files == 4

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_of_an_awkward_tree_is_like_a_restore(self, world, tmp_path, seed):
        trees.build(world.root / "awkward", seed)
        world.handle().create(name="awkward")
        world.handle().restore("awkward", to=tmp_path / "restored")

        world.handle().fork("awkward", [tmp_path / "fork"])

        left_out = trees.LEFT_OUT
        expected = without(record(tmp_path / "restored"), *left_out)
        assert difference(expected, without(record(tmp_path / "fork"), *left_out)) == []
        assert not at(world, tmp_path / "fork").status().changes
        made = at(world, tmp_path / "fork").create()
        assert made.snapshot.root_hash == at(world, tmp_path / "fork").resolve("forked").root_hash

    def test_knows_where_it_comes_from(self, world, tmp_path):
        world.handle().fork("second", [tmp_path / "fork"])

        origin = at(world, tmp_path / "fork").origin()

        base = at(world, tmp_path / "fork").resolve("forked")
        assert origin.path_text == str(world.root)
        assert origin.snapshot_id == world.handle().resolve("second").id
        assert origin.base_id == base.id
        assert base.root_hash == world.handle().resolve("second").root_hash
        assert world.handle().origin() is None
        by_path = {info.path_text: info.origin for info in world.handle().root_list()}
        assert by_path == {str(world.root): None, str(tmp_path / "fork"): origin}

    def test_of_a_fork_knows_the_fork(self, world, tmp_path):
        world.handle().fork("second", [tmp_path / "fork"])
        at(world, tmp_path / "fork").fork("latest", [tmp_path / "of-fork"])

        assert at(world, tmp_path / "of-fork").origin().path_text == str(tmp_path / "fork")

    def test_is_independent(self, world, tmp_path):
        world.handle().fork("latest", [tmp_path / "one", tmp_path / "two"])
        before = record(world.root), record(tmp_path / "two")

        for path in (tmp_path / "one").iterdir():
            with path.open("r+b") as file:
                file.write(b"changed in place")

        assert difference(before[0], record(world.root)) == []
        assert difference(before[1], record(tmp_path / "two")) == []

    def test_may_replace_an_empty_directory(self, world, tmp_path):
        (tmp_path / "empty").mkdir()

        world.handle().fork("latest", [tmp_path / "empty"])

        assert (tmp_path / "empty/text").exists()

    def test_has_the_settings_of_its_origin(self, world, tmp_path):
        world.handle().config("exclude", "*.log", for_root=True)
        (world.root / "a.log").write_text("left out")
        world.handle().create()

        world.handle().fork("latest", [tmp_path / "fork"])

        (tmp_path / "fork/b.log").write_text("left out as well")
        assert not (tmp_path / "fork/a.log").exists()
        assert not at(world, tmp_path / "fork").status().changes

    def test_survives_that_its_origin_is_forgotten(self, world, tmp_path):
        world.handle().fork("latest", [tmp_path / "fork"])
        before = record(tmp_path / "fork")
        world.handle().root_forget(force=True)
        world.handle().gc()

        (tmp_path / "fork/text").unlink()
        at(world, tmp_path / "fork").restore("forked")

        assert difference(before, record(tmp_path / "fork")) == []
        assert at(world, tmp_path / "fork").origin().path is None

    def test_that_was_forgotten_may_be_made_again(self, world, tmp_path):
        world.handle().fork("latest", [tmp_path / "fork"])
        os.rename(tmp_path / "fork", tmp_path / "away")
        with pytest.raises(Refused) as refused:
            world.handle().fork("latest", [tmp_path / "fork"])
        assert refused.value.code is ErrorCode.ROOT_TAKEN

        world.handle().root_forget(tmp_path / "fork")
        world.handle().fork("latest", [tmp_path / "fork"])

        assert (tmp_path / "fork/text").exists()

    def test_with_snapshots_of_its_own_is_not_forgotten_without_force(self, world, tmp_path):
        world.handle().fork("latest", [tmp_path / "fork"])
        at(world, tmp_path / "fork").create()

        with pytest.raises(Refused) as refused:
            world.handle().root_forget(tmp_path / "fork")

        assert refused.value.code is ErrorCode.HISTORY_KEPT

    @pytest.mark.needs("birth times")
    def test_is_recognised_after_a_move(self, world, tmp_path):
        world.handle().fork("latest", [tmp_path / "fork"])
        os.rename(tmp_path / "fork", tmp_path / "moved")

        assert at(world, tmp_path / "moved").origin().path_text == str(world.root)

    def test_keeps_its_base(self, world, tmp_path):
        world.handle().fork("latest", [tmp_path / "fork"])

        with pytest.raises(Refused) as refused:
            at(world, tmp_path / "fork").delete("forked")

        assert refused.value.code is ErrorCode.PINNED


def with_whole_seconds(status: os.stat_result) -> Any:
    """Returns metadata as an inode has it that has no room for parts of a second."""
    facts = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    facts["st_ctime_ns"] -= facts["st_ctime_ns"] % 10**9
    return SimpleNamespace(**facts)


@pytest.mark.needs("exact times")
class TestTheFirstSnapshot:
    def files_read(self, world: World, place: Path) -> list[str]:
        fs = RecordingFileSystem()
        result = at(world, place, fs=fs).create()
        assert result.stats.files_read == 0
        return [call.path for call in fs.calls(kinds=[Kind.READ], below=str(place))]

    def test_reads_no_file(self, world, tmp_path):
        for number in range(50):
            path = world.root / f"directory-{number % 5}/below/file-{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(number))
            os.utime(path, ns=(OLD_NS, OLD_NS))
        world.handle().create()
        world.handle().fork("latest", [tmp_path / "one", tmp_path / "two"])

        assert self.files_read(world, tmp_path / "one") == []
        assert self.files_read(world, tmp_path / "two") == []

    def test_reads_all_files_where_times_are_whole_seconds(self, world, tmp_path):
        """For they may have changed within the second in which they were made."""

        class Small(UnsyncedFileSystem):
            def fstat(self, fd):
                return with_whole_seconds(super().fstat(fd))

        world.handle().create()
        world.handle(fs=Small()).fork("latest", [tmp_path / "fork"])

        assert at(world, tmp_path / "fork").create().stats.files_read == 3

    def test_reads_no_file_where_hard_links_are(self, world, tmp_path):
        (world.root / "below").mkdir()
        os.link(world.root / "text", world.root / "below/link")
        world.handle().create()
        world.handle().fork("latest", [tmp_path / "fork"])

        assert self.files_read(world, tmp_path / "fork") == []
        fork = tmp_path / "fork"
        assert os.path.samefile(fork / "text", fork / "below/link")
        assert not os.path.samefile(fork / "text", world.root / "text")

    def test_reads_nothing_but_ignore_files_where_some_exclude(self, world, tmp_path):
        (world.root / ".snapignore").write_text("*.o\n")
        (world.root / "below").mkdir()
        (world.root / "below/.snapignore").write_text("*.tmp\n")
        for name in ("below/kept", "below/a.tmp", "below/a.o", "b.o"):
            (world.root / name).write_text(name)
        world.handle().create()
        world.handle().fork("latest", [tmp_path / "fork"])

        read = self.files_read(world, tmp_path / "fork")

        assert {os.path.basename(path) for path in read} == {".snapignore"}
        assert sorted(os.listdir(tmp_path / "fork/below")) == [".snapignore", "kept"]

    def test_sees_what_was_changed_at_once(self, world, tmp_path):
        """Also with the size and the time of before, which only the change time shows."""
        world.handle().fork("latest", [tmp_path / "fork"])
        path = tmp_path / "fork/text"
        before = path.stat()
        path.write_bytes(path.read_bytes().swapcase())
        os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))

        changes = at(world, tmp_path / "fork").status().changes

        assert [change.path for change in changes] == [b"text"]


class TestRefused:
    @pytest.mark.parametrize(
        ("where", "code"),
        [
            ("root", ErrorCode.NOT_FORKABLE),
            ("root/below", ErrorCode.NOT_FORKABLE),
            (".", ErrorCode.NOT_FORKABLE),
            ("store", ErrorCode.NOT_FORKABLE),
            ("store/below", ErrorCode.NOT_FORKABLE),
            ("missing/fork", ErrorCode.NOT_FORKABLE),
            ("file/fork", ErrorCode.NOT_FORKABLE),
            ("link/fork", ErrorCode.NOT_FORKABLE),
            ("file", ErrorCode.TARGET_NOT_EMPTY),
            ("full", ErrorCode.TARGET_NOT_EMPTY),
            ("link", ErrorCode.TARGET_NOT_EMPTY),
        ],
    )
    def test_nothing_is_made(self, world, tmp_path, where, code):
        (tmp_path / "file").write_text("file")
        (tmp_path / "full").mkdir()
        (tmp_path / "full/file").write_text("file")
        (tmp_path / "link").symlink_to(world.root)
        before = record(tmp_path)

        with pytest.raises(Refused) as refused:
            world.handle().fork("latest", [tmp_path / "good", tmp_path / where])

        assert refused.value.code is code
        assert difference(before, without(record(tmp_path), b"store")) == difference(
            before, without(before, b"store")
        )
        assert len(world.handle().root_list()) == 1

    @pytest.mark.parametrize("what", ["root", "store"])
    def test_inside_what_a_bind_mount_shows_elsewhere(self, world, tmp_path, mounter, what):
        (tmp_path / "shown").mkdir()
        mounter.bind(tmp_path / what, tmp_path / "shown")
        before = record(world.root)

        with pytest.raises(Refused) as refused:
            world.handle().fork("latest", [tmp_path / "shown/fork"])

        assert refused.value.code is ErrorCode.NOT_FORKABLE
        assert difference(before, record(world.root)) == []

    def test_for_a_directory_that_is_named_twice(self, world, tmp_path):
        with pytest.raises(InvalidArgument, match="named twice"):
            world.handle().fork("latest", [tmp_path / "fork", tmp_path / "." / "fork"])

    def test_for_no_directory(self, world):
        with pytest.raises(InvalidArgument):
            world.handle().fork("latest", [])

    def test_for_a_snapshot_of_some_paths(self, world, tmp_path):
        world.handle().create(["text"], name="partial")

        with pytest.raises(InvalidArgument, match="only some paths"):
            world.handle().fork("partial", [tmp_path / "fork"])

    def test_for_an_unknown_snapshot(self, world, tmp_path):
        with pytest.raises(NotFound):
            world.handle().fork("unknown", [tmp_path / "fork"])

    def test_without_a_store(self, tmp_path):
        (tmp_path / "root").mkdir()

        with pytest.raises(StoreMissing):
            Handle(context_at(root=tmp_path / "root", store_path=str(tmp_path / "none"))).fork(
                "latest", [tmp_path / "fork"]
            )

    @pytest.mark.needs("clones")
    def test_without_room_for_copies(self, world, tmp_path):
        class Full(UnsyncedFileSystem):
            def free_bytes(self, fd: int) -> int:
                return 100

            def share_content(self, fd: int, source_fd: int, place: Place, /) -> None:
                raise Unsupported(95, "Operation not supported")

        with pytest.raises(StorageFull, match="blocks cannot be shared"):
            world.handle(fs=Full()).fork("latest", [tmp_path / "fork"])

        assert sorted(os.listdir(tmp_path)) == ["root", "store"]

    def test_while_another_process_works_in_the_root(self, world, tmp_path):
        other = world.handle()
        with other.rollback_on_error():
            pass
        from treesnap.core.ops.access import locked_root, opened

        with (
            opened(other.context, "work") as session,
            locked_root(session, "work"),
            pytest.raises(Busy),
        ):
            world.handle(wait_s=0).fork("latest", [tmp_path / "fork"])

        assert sorted(os.listdir(tmp_path)) == ["root", "store"]
        assert len(world.handle().root_list()) == 1


def test_where_a_later_fork_fails_those_before_are_named(world, tmp_path):
    full = Fault(number=2, methods=frozenset({"sync_file_system"}), errno=errno.ENOSPC)
    fs = FaultyFileSystem(full, inner=UnsyncedFileSystem())
    monitor = CollectingMonitor()

    with pytest.raises(StorageFull):
        at(world, world.root, fs=fs, monitor=monitor).fork(
            "second", [tmp_path / name for name in ("one", "two", "three")]
        )

    made = zip(monitor.codes, monitor.warnings, strict=True)
    assert [*made] == [("forks-made", f"1 fork made before: {str(tmp_path / 'one')!r}")]
    assert at(world, tmp_path / "one").verify(read_data=True).ok
    assert not (tmp_path / "two").exists()


class Beside(WrappedFileSystem):
    """Does something once, before a fork makes its first directory, or renames its tree."""

    def __init__(self, method: str, action: Callable[[], object]) -> None:
        super().__init__(UnsyncedFileSystem())
        self._method = method
        self._actions = [action]

    def around(self, call):
        if call.method == self._method and self._actions:
            is_staged = ".treesnap-" in call.paths[-1]
            if ".treesnap-" in call.path and is_staged == (self._method == "make_directory"):
                self._actions.pop()()
        return call.proceed()


@pytest.mark.parametrize("method", ["make_directory", "rename"])
def test_two_forks_to_one_place_are_one(world, tmp_path, method):
    """The other one begins first, and comes to its base when this one is done, or nearly."""
    place, errors = tmp_path / "fork", []
    may_go_on, has_begun = Event(), Event()

    def wait() -> None:
        has_begun.set()
        assert may_go_on.wait(60)

    def fork_beside() -> None:
        try:
            at(world, world.root, fs=Beside("make_directory", wait)).fork("first", [place])
        except Refused as error:
            errors.append(error.code)

    other = Thread(target=fork_beside)
    other.start()
    assert has_begun.wait(60)

    fs = Beside("rename", may_go_on.set) if method == "rename" else UnsyncedFileSystem()
    made = at(world, world.root, fs=fs).fork("second", [place]).forks[0]
    may_go_on.set()
    other.join()

    assert errors == [ErrorCode.ROOT_TAKEN]
    fork = at(world, place)
    assert [item.id for item in fork.list()] == [made.base_id]
    assert fork.status().changes == ()
    assert fork.origin().base_id == made.base_id
    assert sorted(os.listdir(tmp_path)) == ["fork", "root", "store"]


class Paused(WrappedFileSystem):
    """Waits once, before it looks for the tree of a fork that was killed."""

    def __init__(self) -> None:
        super().__init__(UnsyncedFileSystem())
        self.has_begun, self.may_go_on = Event(), Event()

    def around(self, call):
        if call.method == "lstat" and call.path.endswith("-whole"):
            self.has_begun.set()
            assert self.may_go_on.wait(60)
        return call.proceed()


def test_cleaning_up_behind_a_killed_fork_leaves_one_to_the_same_place(world, tmp_path):
    place, paused = tmp_path / "fork", Paused()
    registering = Fault(
        number=1,
        methods=frozenset({"make_directory"}),
        where=lambda call: call.path.startswith(str(world.store / "roots")),
    )
    ended = killed(lambda fs: at(world, world.root, fs=fs).fork("first", [place]), registering)
    assert ended.was_killed
    assert any(name.endswith("-whole") for name in os.listdir(tmp_path))
    cleaning = Thread(target=lambda: at(world, world.root, fs=paused).create())
    cleaning.start()
    assert paused.has_begun.wait(60)

    def clean_up() -> None:
        paused.may_go_on.set()
        cleaning.join(1)  # or it waits for the root of the fork

    made = at(world, world.root, fs=Beside("rename", clean_up)).fork("second", [place]).forks[0]
    cleaning.join()

    assert [item.id for item in at(world, place).list()] == [made.base_id]
    assert sorted(os.listdir(tmp_path)) == ["fork", "root", "store"]


class Sharing(WrappedFileSystem):
    """Copies where the file system would share blocks, so that any one can be tested on."""

    def __init__(self) -> None:
        super().__init__(UnsyncedFileSystem())

    def around(self, call):
        if call.method != "share_content":
            return call.proceed()
        fd, source_fd, _ = call.arguments
        os.pwrite(fd, os.pread(source_fd, 1 << 30, 0), 0)
        return None


@pytest.mark.needs("exact times")
class TestClones:
    def test_are_made_of_what_is_unchanged(self, world, tmp_path):
        world.handle(clock_ns=later).create()

        result = world.handle(fs=Sharing()).fork("latest", [tmp_path / "one", tmp_path / "two"])

        assert [fork.copied_files for fork in result.forks] == [0, 0]
        assert [fork.cloned_files for fork in result.forks] == [3, 3]
        assert difference(record(tmp_path / "one"), record(tmp_path / "two")) == []

    def test_are_not_made_of_what_changed_behind_the_stat_cache(self, world, tmp_path):
        """The file is changed in the moment in which it is cloned."""
        os.utime(world.root / "text", ns=(OLD_NS, OLD_NS))
        world.handle(clock_ns=later).create()
        content = (world.root / "text").read_bytes()

        class Meanwhile(Sharing):
            def around(self, call):
                if call.method == "share_content" and os.fstat(call.arguments[1]).st_size == len(
                    content
                ):
                    (world.root / "text").write_bytes(content.swapcase())
                    os.utime(world.root / "text", ns=(OLD_NS, OLD_NS))
                return super().around(call)

        result = world.handle(fs=Meanwhile()).fork("latest", [tmp_path / "fork"])

        assert (tmp_path / "fork/text").read_bytes() == content
        assert (result.forks[0].cloned_files, result.forks[0].copied_files) == (2, 1)

    def test_of_an_older_snapshot_are_made_of_what_it_has_in_common(self, world, tmp_path):
        world.handle(clock_ns=later).create()

        result = world.handle(fs=Sharing()).fork("second", [tmp_path / "fork"])

        assert (tmp_path / "fork/text").read_bytes() == b"text of second" * 50
        assert (result.forks[0].cloned_files, result.forks[0].copied_files) == (2, 2)

    def test_need_no_live_tree(self, world, tmp_path):
        os.rename(world.root, tmp_path / "away")

        result = world.handle(fs=Sharing()).fork("second", [tmp_path / "one", tmp_path / "two"])

        assert [fork.cloned_files for fork in result.forks] == [0, 4]


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_fork_of_a_working_tree_of_git_shares_its_branch(world, tmp_path, is_linked):
    repository = tmp_path / "main/.git/worktrees/a"
    repository.mkdir(parents=True)
    (repository / "commondir").write_text("../..\n")
    (world.root / ".git").write_text(f"gitdir: {repository if is_linked else tmp_path}\n")
    world.handle().create()
    monitor = CollectingMonitor()

    at(world, world.root, monitor=monitor).fork("latest", [tmp_path / "one", tmp_path / "two"])

    assert monitor.codes == (["repository-shared"] if is_linked else [])
