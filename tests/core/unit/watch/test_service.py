"""A watcher that answers others and makes snapshots: in a thread here, so that it can be seen."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import treesnap
from command_line import wait_until
from oracle import difference, record
from treesnap.core.codec.watch import (
    Answer,
    Asked,
    Question,
    decode_answer,
    decode_status,
    encode_answer,
    encode_question,
)
from treesnap.core.fs.peers import HELLO, greet, received, send
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy, Corrupt, ErrorCode, OperationFailed, Refused
from treesnap.core.model.requests import WatchRequest
from treesnap.core.model.results import CreateResult
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.core.ops.create import CreateOptions
from treesnap.core.ops.known_changes import ask, view_of
from treesnap.core.watch import control
from treesnap.core.watch.follower import Follower
from treesnap.core.watch.service import WatchService
from treesnap.core.worktree.scan.statcache import load
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
)
from watching import Looks

pytestmark = [pytest.mark.needs("notices"), pytest.mark.sampled(12)]

DEADLINE_S = 30.0


class Watched:
    """A service in a thread, and what it told."""

    def __init__(self, handle: Handle, follower: Follower | None = None, **asked: Any) -> None:
        self.made: list[CreateResult] = []
        self.said: list[str] = []
        self.news = threading.Condition()
        self.service = WatchService(
            handle.context,
            WatchRequest(**asked),
            on_snapshot=lambda result: self._add(self.made, result),
            on_error=lambda message: self._add(self.said, message),
            follower=follower,
        )
        self.is_ready = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.last = self.service.run(lambda _: self.is_ready.set())

    def _add(self, told: list[Any], item: Any) -> None:
        with self.news:
            told.append(item)
            self.news.notify_all()

    def wait_for(self, holds: Callable[[], object]) -> None:
        """Waits for news after which something holds."""
        with self.news:
            assert self.news.wait_for(holds, DEADLINE_S)

    def end(self) -> None:
        """Stops the service and waits for its end."""
        self.service.stop()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    root = tmp_path / "root"
    (root / "a" / "deep").mkdir(parents=True)
    (root / "a" / "deep" / "file").write_text("one")
    (root / "b").write_text("two")
    return Handle(
        context_at(root=root, store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem())
    )


@pytest.fixture
def watch(handle: Handle) -> Iterator[Callable[..., Watched]]:
    """Starts services, and ends those that a test leaves."""
    started: list[Watched] = []

    def start(given: Handle | None = None, **asked: Any) -> Watched:
        watched = Watched(given or handle, **asked)
        started.append(watched)
        watched.thread.start()
        assert watched.is_ready.wait(DEADLINE_S)
        return watched

    yield start
    for watched in started:
        watched.end()


@pytest.fixture
def directory(handle: Handle) -> Callable[[], str]:
    """Returns the directory of the root's watchers."""

    def path() -> str:
        (found,) = Path(handle.store_path).glob("roots/*/watch")
        return str(found)

    return path


def test_ends_when_no_process_has_asked_it_for_a_while(watch):
    watched = watch(idle_s=0.05, on_change=True)

    watched.thread.join(DEADLINE_S)

    assert not watched.thread.is_alive()
    assert watched.last.on_change


def asked(directory: str, asking: Asked = Asked.STATUS, view: bytes = b"") -> bytes:
    question = encode_question(Question(asking, view=view))
    return ask(directory, question, DEADLINE_S)


@contextmanager
def connected(directory: str) -> Iterator[socket.socket]:
    """A connection on which a test says what it likes."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(DEADLINE_S)
            connection.connect(f"/proc/self/fd/{fd}/socket")
            assert connection.recv(1) == HELLO
            yield connection
    finally:
        os.close(fd)


def restored(handle: Handle, ref: str) -> list[str]:
    """Returns how a snapshot differs from the tree, by the oracle's own walk."""
    there = Path(handle.root).with_name(f"restored-{ref}")
    handle.restore(ref, to=there)
    return difference(record(Path(handle.root)), record(there))


def test_others_that_ask_look_at_nothing_but_what_changed(watch, handle):
    watch()
    looks = Looks(Path(handle.root), Path(handle.store_path))
    other = Handle(context_at(root=handle.root, store_path=handle.store_path, fs=looks))
    other.create()
    looks.listed = 0
    Path(handle.root, "a", "deep", "file").write_text("changed")

    changes = other.status().changes
    made = other.create()

    assert looks.listed == 0
    assert [change.path for change in changes] == [b"a/deep/file"]
    assert restored(handle, made.id) == []


def test_makes_one_at_once_and_one_after_a_change(watch, handle, directory):
    watched = watch(on_change=True)
    watched.wait_for(lambda: len(watched.made) == 1)
    Path(handle.root, "b").write_text("changed")
    watched.wait_for(lambda: len(watched.made) == 2)

    newest, first = handle.list()

    assert [item.id for item in watched.made] == [first.id, newest.id]
    assert {newest.record.kind, first.record.kind} == {SnapshotKind.WATCH}
    assert restored(handle, newest.id) == []
    assert decode_status(asked(directory())).snapshots == 2


class Attempts:
    """Counts the snapshots that a service tries to make in a root."""

    def __init__(self, handle: Handle) -> None:
        self._count = 0
        outer = self

        class Noting(WrappedFileSystem):
            """Notes whenever the root's lock is opened, as each attempt does."""

            def around(self, call: Call) -> Any:
                directory, name = os.path.split(call.path)
                above = os.path.basename(os.path.dirname(directory))
                if call.method == "open" and (above, name) == ("roots", "lock"):
                    outer._count += 1
                return super().around(call)

        root, store_path, fs = handle.root, handle.store_path, Noting(UnsyncedFileSystem())
        self.handle = Handle(context_at(root=root, store_path=store_path, fs=fs))

    def wait_for(self, count: int) -> None:
        """Waits until there were so many."""
        deadline = time.monotonic() + DEADLINE_S
        while self._count < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_makes_none_when_nothing_changed(watch, handle):
    attempts = Attempts(handle)
    watched = watch(attempts.handle, every_s=0.1)
    attempts.wait_for(4)

    assert len(handle.list()) == len(watched.made) == 1


def test_says_a_failure_once_until_it_changes(watch, handle):
    handle.create(["nothing"], options=CreateOptions(allow_absent=True))
    handle.config("max-size", "1")
    attempts = Attempts(handle)
    watched = watch(attempts.handle, every_s=0.1)
    attempts.wait_for(8)
    (said,) = watched.said
    assert said.startswith("The store may take 1 and takes ")

    handle.config("max-size", "2")
    watched.wait_for(lambda: len(watched.said) == 2)
    assert watched.said[1].startswith("The store may take 2 and takes ")


def test_tells_why_it_failed_and_goes_on(watch, handle, directory):
    """The first snapshot is made, then the root is away for some attempts."""
    watched = watch(every_s=0.1)
    watched.wait_for(lambda: watched.made)
    away = Path(handle.root).with_name("away")
    Path(handle.root).rename(away)
    watched.wait_for(lambda: watched.said)
    failed = decode_status(asked(directory()))
    (away / "b").write_text("changed")
    away.rename(handle.root)
    watched.wait_for(lambda: len(watched.made) == 2)
    well = decode_status(asked(directory()))

    assert failed.last_error == watched.said[0] == f"There is no directory '{handle.root}'"
    assert failed.why_lost is not None
    assert well.last_error is None
    assert well.last_snapshot == watched.made[1].id
    assert restored(handle, watched.made[1].id) == []


def test_one_that_is_stopped_says_what_became_of_it(watch, handle, directory):
    watched = watch(on_change=True)
    watched.wait_for(lambda: watched.made)

    last = control.stop(handle.context)
    watched.thread.join(DEADLINE_S)

    assert last is not None
    assert (watched.last.snapshots, watched.last.last_snapshot) == (1, watched.made[0].id)
    assert os.listdir(directory()) == ["lock"]
    assert control.status(handle.context) is None
    assert control.stop(handle.context) is None


@pytest.mark.parametrize("is_replaced", [False, True])
def test_one_whose_root_was_moved_goes_on_at_its_new_path(
    watch, handle, tmp_path, monkeypatch, is_replaced
):
    monkeypatch.setattr("treesnap.core.watch.service.LOOK_S", 0.1)
    follower = Follower(handle.context, f"pwd >> {tmp_path}/ran-in", print)
    watched = watch(on_change=True, follower=follower)
    watched.wait_for(lambda: watched.made)
    wait_until((tmp_path / "ran-in").exists)
    new = tmp_path / "elsewhere"
    os.rename(handle.root, new)
    if is_replaced:
        os.mkdir(handle.root)
    moved = Handle(context_at(root=new, store_path=handle.store_path, fs=UnsyncedFileSystem()))

    assert len(moved.list()) == 1
    (new / "b").write_text("changed")
    watched.wait_for(lambda: len(watched.made) > 1)

    assert restored(moved, watched.made[-1].id) == []
    status = control.status(moved.context)
    assert status is not None
    assert "[Errno" not in (status.why_lost or "")
    wait_until(lambda: str(new) in (tmp_path / "ran-in").read_text().split())


def test_one_whose_store_was_moved_is_found_there(watch, handle, tmp_path, monkeypatch):
    """Its lock and its socket are at the new place, so that no second one begins beside it."""
    monkeypatch.setattr("treesnap.core.watch.service.LOOK_S", 0.1)
    watched = watch(on_change=True)
    watched.wait_for(lambda: watched.made)

    fault = Fault(errno=errno.EXDEV, methods=frozenset({"exchange"}))  # as to another disk
    fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
    mover = context_at(handle.root, handle.store_path, fs=fs, wait_s=DEADLINE_S)
    Handle(mover).store_move(tmp_path / "new")

    wait_until(lambda: control.status(handle.context) is not None)
    with pytest.raises(Busy, match="is in use by"):
        WatchService(handle.context, WatchRequest(on_change=True)).run()
    Path(handle.root, "b").write_text("changed")
    watched.wait_for(lambda: len(watched.made) > 1)
    assert restored(handle, watched.made[-1].id) == []
    assert control.stop(handle.context) is not None


def test_one_whose_root_was_removed_and_made_again_goes_on(watch, handle):
    watched = watch(on_change=True)
    watched.wait_for(lambda: watched.made)
    shutil.rmtree(handle.root)
    os.mkdir(handle.root)
    Path(handle.root, "file").write_text("new")

    watched.wait_for(lambda: len(watched.made) > 1 and not handle.status().changes)

    assert restored(handle, watched.made[-1].id) == []


def test_a_second_one_is_refused_and_the_first_goes_on(watch, handle, tmp_path):
    watch()
    follower = Follower(handle.context, f"touch {tmp_path}/run", print)

    with pytest.raises(Busy, match="is in use by"):
        WatchService(handle.context, WatchRequest(on_change=True), follower=follower).run()

    assert not (tmp_path / "run").exists()

    assert control.status(handle.context) is not None


def test_one_in_a_program_and_one_for_others_know_nothing_of_each_other(watch, handle):
    watch()
    with handle.watch() as own:
        first = own.create()
        Path(handle.root, "b").write_text("changed")
        second = handle.create()
        Path(handle.root, "a", "deep", "file").write_text("changed")
        third = own.create()
        assert restored(handle, third.id) == []

    assert len({first.root_hash, second.root_hash, third.root_hash}) == 3


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x01",
        struct.pack("<I", 1 << 31),
        struct.pack("<I", 5000) + bytes(5000),
        struct.pack("<I", 3) + b"abc",
        struct.pack("<I", 1) + b"\x80",
    ],
)
def test_what_cannot_be_understood_gets_no_answer_and_does_no_harm(watch, handle, directory, said):
    watch()

    with connected(directory()) as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # when something unread was in it
            assert connection.recv(1) == b""

    assert decode_status(asked(directory())).process_id == os.getpid()
    assert decode_answer(asked(directory(), Asked.CHANGES, view_of(handle.context))).paths is None


@contextmanager
def pretending(directory: str, answer: bytes | None, user: int = 0) -> Iterator[None]:
    """A process that has the socket and says something, perhaps as another user.

    It opens the directory by its current one, which needs no rights above it.
    """
    child_ready, ready = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
        process = os.fork()
    if process == 0:
        try:
            os.chdir(directory)
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
                listening.bind("socket")
                os.chmod("socket", 0o666)
                listening.listen()
                os.write(ready, b"!")
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(Corrupt, OSError):
                        greet(connection)
                        received(connection, 4096)
                        if answer is not None:
                            connection.sendall(answer)
        finally:
            os._exit(1)
    os.close(ready)
    try:
        assert os.read(child_ready, 1) == b"!"
        yield
    finally:
        os.close(child_ready)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


@pytest.fixture
def lie(handle: Handle, directory) -> bytes:
    """What a watcher would say if nothing had changed."""
    with handle.watch() as watched:
        watched.create()
    (path,) = Path(handle.store_path).glob("roots/*/cache")
    cache = load(handle.context.fs, str(path))
    assert cache is not None
    assert cache.watch is not None
    return framed(encode_answer(Answer(cache.watch.mark, ())))


def test_another_users_answer_is_not_believed(handle, directory, lie):
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    os.chmod(directory(), 0o777)
    Path(handle.root, "b").write_text("changed")

    with pretending(directory(), lie, user=65534):
        with pytest.raises(PermissionError):
            asked(directory())
        with pytest.raises(OperationFailed, match="another user"):
            control.status(handle.context)
        told = handle.status().changes
        made = handle.create()

    assert [change.path for change in told] == [b"b"]
    assert restored(handle, made.id) == []


def test_our_own_answer_is_believed(handle, directory, lie):
    Path(handle.root, "b").write_text("changed")

    with pretending(directory(), lie):
        assert handle.status().changes == ()


@pytest.mark.parametrize(
    "answer", [None, b"\x01", framed(b""), framed(b"\x80"), struct.pack("<I", 0xFFFFFFFF)]
)
def test_an_answer_that_cannot_be_understood_counts_as_none(handle, directory, lie, answer):
    Path(handle.root, "b").write_text("changed")

    with pretending(directory(), answer):
        with pytest.raises((Corrupt, OSError)):
            decode_status(asked(directory()))
        with pytest.raises(OperationFailed, match="cannot be asked"):
            control.status(handle.context)
        made = handle.create()

    assert restored(handle, made.id) == []


def test_a_message_comes_in_pieces_and_whole():
    one, other = socket.socketpair()
    with one, other:
        sending = threading.Thread(target=send, args=[one, bytes(3 << 20)])
        sending.start()
        assert received(other, 4 << 20)[0] == bytes(3 << 20)
        sending.join()


def test_a_dangerous_root_is_watched_only_when_insisted(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    home = treesnap.open(tmp_path / "home", tmp_path / "store")

    with pytest.raises(Refused) as caught, home.watch():
        pass
    assert caught.value.code == ErrorCode.DANGEROUS_ROOT
    assert not (tmp_path / "store").exists()
    with home.watch(force=True) as watched:
        assert watched.create(options=treesnap.CreateOptions(force=True)).complete
    shutil.rmtree(tmp_path / "home")
    with pytest.raises(treesnap.core.model.errors.NotFound), home.watch(force=True):
        pass
