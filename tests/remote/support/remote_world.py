"""A server in memory that many machines use at once, one request at a time.

Each machine runs the product's own code in a thread of its own, which stops before each
request. A scheduler lets one go on, with a fault or without, so that a seed gives the same
order each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from machine_doubles import MemoryMachine
from treesnap.core.codec.pack import Encoded
from treesnap.core.codec.reader import Reference
from treesnap.core.codec.snapshot import encode_snapshot
from treesnap.core.codec.tree import put_tree
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind, Totals
from treesnap.core.model.errors import RemoteFailed
from treesnap.core.model.ids import object_id
from treesnap.core.model.snapshots import SnapshotRecord
from treesnap.remote.objects import Seen
from treesnap.remote.push import encoded_anew
from treesnap.remote.records import Folder, RemoteName, Span

PAGE_SIZE = 3
LEAVES = 6
"""How many different files there are: few, so that much is shared."""


class Killed(BaseException):
    """Ends the thread of a machine that dies."""


class Machine:
    """A thread that stops before each request."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._may_go = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self.is_done = False
        self.is_killed = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Lets it work up to its first request."""
        self._thread.start()
        self._wait()

    def _run(self) -> None:
        try:
            self._work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the scheduler raises it
            self.failure = error
        self.is_done = True
        self._has_stopped.release()

    def stop(self) -> None:
        """Called by its own thread: waits until it may go on."""
        self._has_stopped.release()
        self._may_go.acquire()
        if self.is_killed:
            raise Killed

    def go_on(self) -> None:
        """Lets it carry out the request at hand, and work up to the next one."""
        self._may_go.release()
        self._wait()

    def _wait(self) -> None:
        self._has_stopped.acquire()
        if self.failure is not None:
            raise self.failure

    def kill(self) -> None:
        """Ends it where it stands."""
        self.is_killed = True
        if not self.is_done:
            self.go_on()


class File(NamedTuple):
    """What a server has under a name."""

    content: bytes
    statement: bytes = b""


class Server:
    """Files by name, and requests that land late."""

    def __init__(self, random: Random, page_size: int = PAGE_SIZE) -> None:
        self.random = random
        self.page_size = page_size
        """How many names a request lists."""
        self.files: dict[str, File] = {}
        self.late: list[Callable[[], object]] = []
        self.requests = 0
        self.is_faulty = True

    def client(self) -> Client:
        """Returns what a machine uses; :attr:`Client.machine` is set once it exists."""
        return Client(self)

    def land(self, which: int) -> None:
        """Lets a late request land."""
        self.late.pop(which)()


class Client:
    """The files of a server as one machine sees them: a ``RemoteFiles``."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.machine: Machine | None = None
        self.id = server.random.randbytes(8)
        self._numbers = MemoryMachine()
        self.mended: dict[str, str] = {}

    def _turn(self) -> None:
        self._server.requests += 1
        if self.machine is not None:
            self.machine.stop()

    def _change(self, act: Callable[[], object]) -> bool:
        """Carries a change out; returns whether its answer arrives."""
        random = self._server.random
        fault = random.random() if self.machine and self._server.is_faulty else 1.0
        if fault < 0.1:
            self._server.late.append(act)
        if fault >= 0.06:
            act()
        return fault >= 0.16 or 0.06 <= fault < 0.1

    def next_sequence(self) -> tuple[bytes, int, tuple[Span, ...]]:
        """Returns which machine this is, and the number of its next commit."""
        return self.id, *self._numbers.next_sequence()

    def settle(self, sequence: int, folded: int) -> None:
        """Takes note that a commit counts."""
        self._numbers.settle(sequence, folded)

    def meet(self, machines: Iterable[bytes]) -> None:
        """Does nothing: every machine is a member."""

    @property
    def own_id(self) -> bytes:
        """Which machine this is."""
        return self.id

    def is_member(self, machine: bytes) -> bool:
        """Tells that every machine is one."""
        return bool(machine)

    def sign(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns what stands for a key and a signature."""
        return bytes(32), object_id(ObjectKind.STATE, data) * 2

    def is_signed(self, machine: bytes, key: bytes, signature: bytes, data: bytes) -> bool:
        """Tells whether it was made of the same data."""
        return bool(machine) and self.sign(data) == (key, signature)

    def put(
        self,
        folder: Folder,
        number: int,
        content: bytes,
        statement: bytes = b"",
        sequence: int = 0,
    ) -> RemoteName:
        """Writes a file under a new name; a request without an answer is sent again."""
        files, file = self._server.files, File(content, statement)
        is_of_machine = folder in {Folder.PACKS, Folder.COMMITS, Folder.DELETIONS}
        machine = self.id if is_of_machine else b""
        identity = self._server.random.randbytes(16)
        name = RemoteName(folder, number, identity, machine, sequence)
        while True:
            self._turn()
            if self._change(lambda: files.__setitem__(str(name), file)):
                return name

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file if there is none."""
        files = self._server.files
        self._turn()
        is_free = name not in files
        if not self._change(lambda: files.setdefault(name, File(content))):
            error = RemoteFailed("no answer")
            error.is_unclear = True
            raise error
        return is_free

    def get(self, name: str) -> bytes | None:
        """Returns the content of a file, or None."""
        return self.read(name, lambda file: file.content)

    def read(self, name: str, meaning: Callable[[File], Any]) -> Any:
        """Returns what a file means, or None."""
        self._turn()
        file = self._server.files.get(name)
        return meaning(file) if file is not None else None

    def get_ranges(
        self, name: str, size_bytes: int, ranges: Sequence[tuple[int, int]]
    ) -> list[bytes] | None:
        """Returns parts of a file, or None."""
        content = self.get(name)
        if content is None:
            return None
        assert len(content) == size_bytes
        return [content[start : start + size] for start, size in ranges]

    def get_damaged(self, name: str) -> tuple[bytes, Sequence[tuple[int, int]] | None] | None:
        """Returns a file, of which nothing is damaged."""
        content = self.get(name)
        return None if content is None else (content, [])

    def list(self, prefix: str) -> Iterator[str]:
        """Yields names, a few from each page."""
        after = ""
        while True:
            self._turn()
            names = sorted(n for n in self._server.files if n.startswith(prefix) and n > after)
            yield from names[: self._server.page_size]
            if len(names) <= self._server.page_size:
                return
            after = names[self._server.page_size - 1]

    def keep_only(self, folders: Collection[str], names: Collection[str]) -> None:
        """Does nothing."""

    def give_up(self) -> None:
        """Repeats for ever: a machine that dies is killed."""

    def delete(self, names: Iterable[str]) -> None:
        """Removes files, one after the other."""
        for name in names:
            while True:
                self._turn()
                if self._change(lambda name=name: self._server.files.pop(name, None)):
                    break


class Objects:
    """What one machine has."""

    def __init__(self) -> None:
        self.by_id: dict[ObjectId, bytes] = {}

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        identity = object_id(kind, data)
        self.by_id[identity] = data
        return identity

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        return self.by_id[object_id]

    def prefetch(self, objects: Iterable[ObjectId]) -> None:
        list(objects)

    def seen(self) -> Callable[[Reference], bool]:
        return Seen()

    def encoded(self, references: Iterable[Reference]) -> Iterator[Encoded]:
        return encoded_anew(self, references)


def new_snapshot(objects: Objects, random: Random, number: int) -> bytes:
    """Returns the payload of a snapshot of two directories with two files each."""

    def entry(name: bytes, kind: EntryKind, content: object, size: int = 0) -> Entry:
        return Entry(name, int(kind), 0o755, 0, 0, 0, size, content, None)

    def new_file(name: bytes) -> Entry:
        data = b"leaf %d " % random.randrange(LEAVES) * 40
        chunk = objects.put(ObjectKind.CHUNK, data)
        return entry(name, EntryKind.FILE, (0, chunk, len(data)), len(data))

    def directory(name: bytes, entries: list[Entry]) -> Entry:
        return entry(name, EntryKind.DIRECTORY, put_tree(entries, Totals(), objects.put))

    below = [directory(name, [new_file(b"1"), new_file(b"2")]) for name in (b"a", b"b")]
    return encode_snapshot(
        SnapshotRecord(directory(b"", below), None, b"/garden", number, Totals())
    )
