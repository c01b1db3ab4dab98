"""The library in threads, in forked children, and in several processes at once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import treesnap
from interfering import Interfering
from state import tree_state
from treesnap.core.model.errors import Busy, ErrorCode, InvalidArgument, NotFound
from treesnap.testing.children import in_child


def at_once(*actions):
    """Runs actions in threads that begin together; returns their results."""
    barrier = threading.Barrier(len(actions))

    def run(action):
        barrier.wait()
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return [future.result() for future in [pool.submit(run, action) for action in actions]]


@pytest.fixture
def other_root(tmp_path):
    root = tmp_path / "other"
    root.mkdir()
    (root / "file").write_bytes(b"other")
    return root


def test_a_forked_child_creates(handle, root):
    handle.create(name="parent")
    (root / "one").write_bytes(b"changed")

    ended = in_child(lambda: handle.create(name="child"))

    assert ended.error is None
    assert {item.name for item in handle.list()} == {"parent", "child"}
    assert handle.verify(read_data=True).ok


def test_parent_and_child_create_in_turn(handle, root):
    for number in range(3):
        (root / "one").write_bytes(b"parent %d" % number)
        handle.create()
        (root / "one").write_bytes(b"child %d" % number)
        assert in_child(handle.create).error is None

    assert [item.sequence for item in handle.list()] == [6, 5, 4, 3, 2, 1]
    assert handle.verify(read_data=True).ok


def test_a_child_that_is_forked_during_a_capture_has_no_part_in_it(handle, make_handle, root):
    """The child inherits the locks of a session that goes on in the parent."""

    class Forks:
        def begin(self, *arguments) -> None:
            ended = in_child(lambda: make_handle().list())
            assert ended.error is None

        def advance(self, files, size_bytes) -> None:
            pass

        def warn(self, code, message) -> None:
            pass

    make_handle(monitor=Forks()).create()

    assert handle.verify(read_data=True).ok
    handle.create()


def test_two_threads_create_in_two_roots(make_handle, root, other_root):
    handles = [make_handle(), make_handle(root=other_root)]

    results = at_once(*(handle.create for handle in handles))

    for handle, result in zip(handles, results, strict=True):
        assert [item.id for item in handle.list()] == [result.id]
        assert handle.verify(read_data=True).ok


def test_two_threads_create_in_one_root_with_one_handle(make_handle, root):
    handle = make_handle(wait_s=30.0)

    results = at_once(handle.create, handle.create, handle.create)

    assert {item.id for item in handle.list()} == {result.id for result in results}
    assert [item.sequence for item in handle.list()] == [3, 2, 1]
    assert handle.verify(read_data=True).ok


@pytest.mark.parametrize(
    ("method", "name"),
    [("list_names", "snapshots"), ("list_names", ""), ("rename_to_absent", "format")],
    ids=["before it looks", "before it begins", "before it is one"],
)
def test_a_store_that_another_process_makes_just_now_is_one(make_handle, store_path, method, name):
    at = os.path.join(store_path, name).rstrip("/")
    others = make_handle()
    made = []

    def make() -> None:
        others.create()
        made.append((store_path / "format").read_bytes())

    result = make_handle(fs=Interfering(method, 1, make, lambda call: at in call.paths)).create()

    assert made == [(store_path / "format").read_bytes()]
    assert [item.sequence for item in others.list()] == [2, 1]
    assert others.show(result.id).sequence == 2


def test_who_does_not_wait_is_told_that_the_root_is_busy(handle, make_handle):
    class Tries:
        error = None

        def begin(self, *arguments) -> None:
            with pytest.raises(Busy, match=rf"process {os.getpid()}: create"):
                handle.create()
            self.error = True

        def advance(self, files, size_bytes) -> None:
            pass

        def warn(self, code, message) -> None:
            pass

    monitor = Tries()
    make_handle(monitor=monitor).create()

    assert monitor.error
    assert len(handle.list()) == 1


def test_creating_restoring_and_collecting_at_once(make_handle, root, other_root):
    handle, other = make_handle(wait_s=60.0), make_handle(root=other_root, wait_s=60.0)
    handle.create(name="first")
    before = tree_state(root)

    def work_here() -> None:
        for number in range(5):
            (root / "one").write_bytes(b"%d" % number)
            handle.create()
            handle.restore("first")

    def work_there() -> None:
        for number in range(10):
            (other_root / "file").write_bytes(os.urandom(2000))
            other.create(name=f"other {number}")
            if number % 2:
                other.delete(f"other {number}")

    def collect() -> None:
        for _ in range(5):
            make_handle(wait_s=60.0).gc()

    at_once(work_here, work_there, collect)

    assert tree_state(root) == before
    assert handle.verify(read_data=True).ok
    assert len(other.list()) == 5


def test_a_handle_shows_what_it_is(handle, root, store_path):
    assert repr(handle) == f"Handle(root={str(root)!r}, store={str(store_path)!r})"


@pytest.mark.parametrize("root", ["", "a\0b"])
def test_a_root_must_be_a_path(make_handle, root):
    with pytest.raises(InvalidArgument):
        make_handle(root=root)


@pytest.mark.parametrize("gone", ["", "directory", "directory/two"])
def test_a_live_file_that_is_gone_is_not_found(handle, root, gone):
    assert handle.read(None, "directory/two") == b"two"
    target = root / gone
    target.rename(root.with_name("elsewhere"))

    with pytest.raises(NotFound) as caught:
        handle.read(None, root / "directory/two")

    assert (caught.value.code, caught.value.path) == (ErrorCode.PATH_NOT_FOUND, b"directory/two")


def test_the_root_itself_is_no_file(handle):
    handle.create()

    with pytest.raises(InvalidArgument, match=r"^'\.' is not a file in that snapshot$"):
        handle.read("latest", ".")


def test_an_empty_store_is_not_the_current_directory(tmp_path):
    for store in ("", b""):
        with pytest.raises(InvalidArgument, match="store must be a path or None, not an empty"):
            treesnap.open(tmp_path, store=store)
