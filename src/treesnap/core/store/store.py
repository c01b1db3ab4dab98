"""An open store: objects by identity, snapshots by root.

Open one per operation; it keeps files open and caches what it has seen of the
index. Writing goes through :class:`treesnap.core.store.writer.Writer`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from errno import ELOOP
from functools import cached_property

from treesnap.core.codec.envelope import FileKind, check_header
from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import (
    create_file,
    ensure_directories,
    is_there,
    read_file,
    read_readable,
    refuse_link,
    replace_file,
    sync_directory,
    unreadable,
)
from treesnap.core.fs.os_errors import error_text, is_full, is_unreadable
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    NewerVersion,
    OperationFailed,
    Refused,
    StoreMissing,
    UnsupportedFormat,
    quoted,
)
from treesnap.core.model.type_names import TYPE_CHECKING, Self
from treesnap.core.store.layout import DIRECTORIES, DISPLACED_PREFIX, Layout, is_hex, root_names
from treesnap.core.store.moving import WAITING, read_move
from treesnap.core.store.ownership import is_own, note_made_here
from treesnap.core.store.roots import LOCK_WAIT_S, Root, step_output_bytes
from treesnap.core.store.snapshots import SnapshotLog

if TYPE_CHECKING:
    from treesnap.core.codec.pack import IndexEntry
    from treesnap.core.codec.reader import TreeReader
    from treesnap.core.store.index import ObjectIndex
    from treesnap.core.store.packs import Inventory, PackReader, Sound

FORMAT_VERSION = 2
FORMAT_NEVER = (1 << 32) - 1
"""A version that no program writes: what is left where a store was moved from says it."""
FORMAT_SIZE_MAX = 1 << 16
_FORMAT_TEXT = """\
{
  "treesnap": "store",
  "format": 2,
  "min_reader": 2,
  "min_writer": 2,
  "hash": "blake3-256",
  "chunking": "fastcdc-2020 16384 65536 262144 nc2 seed0",
  "id": "%s"
}
"""
"""The format file, with the place of an id of 32 hex digits."""
_ID_AT = _FORMAT_TEXT.index("%s")
_ID_LENGTH = 32


def _new_format() -> bytes:
    """Returns a format file for a new store, with an id of its own."""
    return (_FORMAT_TEXT % os.urandom(_ID_LENGTH // 2).hex()).encode()


def _is_as_written(data: bytes) -> bool:
    """Returns whether a format file is what this version writes.

    Nearly all are, and then no command imports ``json``: 1.8 ms of the 60 of ``snap list``.
    """
    text = data.decode("ascii", "replace")
    identity = text[_ID_AT : _ID_AT + _ID_LENGTH]
    return is_hex(identity, _ID_LENGTH) and text == _FORMAT_TEXT % identity


def store_id(fields: Mapping[str, object]) -> str:
    """Returns the id of a store by the fields of its format file; empty for what cannot be one."""
    identity = fields.get("id")
    return identity if isinstance(identity, str) and is_hex(identity, _ID_LENGTH) else ""


def format_problem(data: bytes) -> str | None:
    """Returns what is wrong with a format file, beyond what opening the store checks, or None.

    A later minor version may add fields.
    """
    import json

    header = json.loads(data)
    if header["format"] != FORMAT_VERSION:
        return None
    expected = json.loads(_FORMAT_TEXT)
    wrong = [name for name in expected if name != "id" and header.get(name) != expected[name]]
    if not store_id(header):
        wrong.append("id")
    return f"The format file has a wrong {', '.join(wrong)}" if wrong else None


def unavailable(path: str, done: str, error: OSError) -> OperationFailed:
    """Returns the error for a store that could not be opened or made."""
    return OperationFailed(
        f"The store {quoted(path)} cannot be {done}: {error_text(error)}",
        code=ErrorCode.STORE_UNAVAILABLE,
        path=path,
        errno=error.errno,
    )


class Store:
    """Reads objects and snapshots. Use as a context manager."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs: ReadingFileSystem = fs
        self.writing_fs = fs
        """Like ``Store``, for what changes a store; few modules may name it."""
        self.path = path
        self.layout: Layout = Layout(path)
        self.snapshots: SnapshotLog = SnapshotLog(fs, self.layout)
        self.wait_s = LOCK_WAIT_S
        """How long its roots wait for the list of roots."""
        self.was_moving: bool = False
        """Whether it says of a move that it was part of it; this is where the store is now."""
        self.is_new: bool = False
        """Whether this process has just made it."""
        self._scanned_all = False

    def lost_directories(self) -> tuple[str, ...]:
        """Returns which of its directories the store lacks. Costs one listing.

        None where there is no store, or one that is being made.
        """
        try:
            names = {*self.fs.list_names(self.path)}
        except OSError:
            return ()
        is_store = "format" in names or self._has_snapshots()
        return tuple(name for name in DIRECTORIES if name not in names) if is_store else ()

    @cached_property
    def packs(self) -> PackReader:
        """Objects by place. Opened on demand: operations on snapshots alone need none."""
        from treesnap.core.store.packs import PackReader

        return PackReader(self.fs, self.layout)

    @cached_property
    def index(self) -> ObjectIndex:
        """Where objects are. Opened on demand, as the packs are."""
        from treesnap.core.store.index import ObjectIndex

        return ObjectIndex(self.writing_fs, self.layout)

    @cached_property
    def is_own(self) -> bool:
        """Whether it is proven to be this user's; see :mod:`treesnap.core.store.ownership`."""
        return is_own(self.fs, self.layout)

    @classmethod
    def open(
        cls, fs: FileSystem, path: str, *, create: bool = False, writing: bool = False
    ) -> Self:
        """Opens a store; with ``create`` makes it if it is missing.

        A newer format may allow reading but not ``writing``.

        Raises NotFound, UnsupportedFormat, Corrupt; OperationFailed where no store can be made.
        """
        store = cls(fs, path)
        try:
            store._check(writing=writing or create)
        except OSError as error:
            if isinstance(error, NotADirectoryError | PermissionError) or error.errno == ELOOP:
                raise unavailable(path, "opened", error) from error
            if not isinstance(error, FileNotFoundError):
                raise
            # Another process may make it just now: what its snapshots prove holds only afterwards.
            has_snapshots = store._has_snapshots()
            try:
                store._check(writing=writing or create)
            except FileNotFoundError:
                if has_snapshots:
                    raise Corrupt(
                        f"The store at {quoted(path)} has no format file",
                        path=store.layout.format,
                    ) from None
                if not create:
                    raise StoreMissing(f"There is no store at {quoted(path)}", path=path) from None
                store._initialise()
        else:
            if create and not is_there(fs, store.layout.made_here) and store._is_unused():
                note_made_here(store.writing_fs, store.layout)  # its maker did not come so far
        return store

    def _is_unused(self) -> bool:
        """Returns whether nothing was stored yet: no object, snapshot, root, remote or setting."""
        if {*self.fs.list_names(self.path)} - {*DIRECTORIES, "format"}:
            return False
        used = {*DIRECTORIES} - {"temporary", "collector", "slots"}
        return not any(self.fs.list_names(os.path.join(self.path, name)) for name in used)

    def _check(self, *, writing: bool) -> None:
        """Raises Corrupt or UnsupportedFormat; FileNotFoundError without a format file."""
        self._check_format(writing=writing)
        if writing:
            self._check_place()
        for name in (*DIRECTORIES, "quarantine"):
            self._check_directory(os.path.join(self.path, name))
        for path in (self.layout.remotes, self.layout.fork_server):
            refuse_link(self.fs, path)

    def _has_snapshots(self) -> bool:
        """Returns whether there are any: a store's format file is durable before them."""
        try:
            return any(self.snapshots.all_names())
        except OSError:
            return False

    def _check_format(self, *, writing: bool) -> None:
        try:
            data = read_file(self.fs, self.layout.format, FORMAT_SIZE_MAX)
        except OSError as error:
            if not is_unreadable(error):
                raise
            raise unreadable(self.layout.format, error) from error
        if _is_as_written(data):
            return
        import json

        try:
            value = json.loads(data)
            version, reader, writer = (value[key] for key in ("format", "min_reader", "min_writer"))
            if not all(type(number) is int for number in (version, reader, writer)):
                raise TypeError("its versions are not numbers")
            needed = max(reader, writer) if writing else reader
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Corrupt(
                f"The format file of the store at {quoted(self.path)} cannot be read: {error}",
                path=self.layout.format,
            ) from error
        if writing and version == FORMAT_NEVER and needed > FORMAT_VERSION:
            raise self._is_at(str(value.get("moved_to")))
        if needed > FORMAT_VERSION or version < FORMAT_VERSION:
            verb = "writes" if writing else "reads"
            asked = f"asks for format {needed}" if needed > version else f"has format {version}"
            raise UnsupportedFormat(
                f"The store at {quoted(self.path)} {asked}, and this treesnap "
                f"{verb} format {FORMAT_VERSION}",
                path=self.path,
            )

    def _check_place(self) -> None:
        """Raises Refused where the store is not here any more, or not yet."""
        move = read_move(self.fs, self.layout)
        if move not in (None, WAITING) and os.path.realpath(self.path) != (place := move.place):
            raise self._is_at(place)
        self.was_moving = move is not None

    def _is_at(self, place: str) -> Refused:
        return Refused(
            f"The store at {quoted(self.path)} is only read: the store is at {quoted(place)}",
            code=ErrorCode.STORE_MOVED,
            path=self.path,
        )

    def _check_directory(self, path: str) -> None:
        """Raises Corrupt for a link: a store of unknown origin must not lead to other places."""
        try:
            mode = self.fs.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise Corrupt(f"{quoted(path)} in the store is not a directory", path=path)

    def _initialise(self) -> None:
        """Makes the directories, then the format file: without it there is no store.

        So its existence proves that the rest is durable. Its own name becomes durable with the
        first snapshot: until then there is nothing to lose. Of processes that make one store at
        once, one writes the format file, and the others take what it wrote.
        """
        try:
            ensure_directories(self.writing_fs, self.path)
            existing = set(self.fs.list_names(self.path))  # a link may lead nowhere
        except OSError as error:
            if is_full(error):
                raise
            raise unavailable(self.path, "made", error) from error
        if "format" in existing:
            self._check(writing=True)
            return
        # A power cut may lose the name of the format file, and keep that of the proof behind it.
        if existing - {*DIRECTORIES, os.path.basename(self.layout.made_here)}:
            raise StoreMissing(
                f"The directory {quoted(self.path)} is not empty and holds no store",
                path=self.path,
            )
        self.make_directories()
        temporary = self.layout.temporary
        self.is_new = create_file(
            self.writing_fs, self.layout.format, _new_format(), temporary=temporary
        )
        # The process that wrote the format file may not have come so far.
        note_made_here(self.writing_fs, self.layout)
        if not self.is_new:
            self._check(writing=True)

    def make_directories(self) -> None:
        """Makes, durably, what it lacks of the directories that every store has."""
        for name in DIRECTORIES:
            with suppress(FileExistsError):
                self.writing_fs.make_directory(os.path.join(self.path, name))
        sync_directory(self.fs, self.path)

    def rewrite_format(self) -> str | None:
        """Rewrites the format file, durably, keeps the old one, and returns what was done.

        Does nothing when the file is good by now. The caller holds the collector's lock.
        Raises UnsupportedFormat when this treesnap knows the version of no snapshot's file: the
        store may then have a newer format.
        """
        with suppress(Corrupt, FileNotFoundError):
            self._check_format(writing=False)
            if format_problem(read_file(self.fs, self.layout.format, FORMAT_SIZE_MAX)) is None:
                return None
        paths = [self.snapshots.path(*name) for name in self.snapshots.all_names()]
        if paths and not any(self._is_ours(path) for path in paths):
            raise UnsupportedFormat(
                f"No snapshot in the store at {quoted(self.path)} can be read", path=self.path
            )
        from treesnap.core.store.quarantine import Quarantine

        kept = Quarantine(self.writing_fs, self.layout).keep_copy(self.layout.format)
        was_own = self.is_own
        replace_file(
            self.writing_fs, self.layout.format, _new_format(), temporary=self.layout.temporary
        )
        if was_own:
            note_made_here(self.writing_fs, self.layout)
        return "Rewrote the format file" + (f"; the old one is {kept}" if kept else "")

    def _is_ours(self, path: str) -> bool:
        try:
            check_header(read_readable(self.fs, path, 64), FileKind.SNAPSHOT, path)
        except (FileNotFoundError, Corrupt, UnsupportedFormat):
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if "packs" in vars(self):
            self.packs.close()

    def root(self, path: bytes) -> Root:
        """Returns the root at a path; creates nothing. Raises Corrupt."""
        return self._checked(Root(self.writing_fs, self.layout, path, wait_s=self.wait_s))

    def root_by_id(self, identity: str, path: bytes = b"") -> Root:
        """Returns the root with an id; ``path`` is used if its record cannot be read."""
        return self._checked(
            Root(self.writing_fs, self.layout, path, identity=identity, wait_s=self.wait_s)
        )

    def roots_with_files(self) -> Iterator[Root]:
        """Yields every root of which the store has more than snapshots; raises Corrupt."""
        for name in root_names(self.fs, self.layout.roots):
            yield self.root_by_id(name)

    def _checked(self, root: Root) -> Root:
        self._check_directory(self.layout.root_directory(root.id))
        self._check_directory(self.layout.root_snapshots(root.id))
        refuse_link(self.fs, root.file("watch"))
        return root

    def has(self, identity: ObjectId, avoid: frozenset[bytes] = frozenset()) -> bool:
        """Returns whether an object is really there, outside the packs to avoid."""
        while (entry := self.index.find(identity, avoid)) is not None:
            if self.packs.has_object(entry):
                return True
            avoid |= {entry.pack_id}  # it is gone or damaged, and the index may know of another
        return False

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        """Returns an object's verified bytes; raises Corrupt when it is missing or damaged.

        Searches further after each failure: other places that the index knows, index parts
        written meanwhile, packs that no part covers, all packs.
        """
        data = self.packs.read_near(kind, identity)
        if data is not None:
            return data
        damage: Corrupt | None = None
        for widen in (None, self.index.refresh, self.scan_uncovered, self.scan_everything):
            if widen is not None:
                widen()
            for entry in self.index.find_all(identity):
                if entry.kind != kind:
                    continue
                try:
                    return self.packs.read(entry)
                except FileNotFoundError:
                    continue
                except Corrupt as error:
                    damage = error
        if damage is not None:
            raise damage
        raise Corrupt(f"Object {identity.hex()} ({kind.name.lower()}) is missing")

    def trees(self) -> TreeReader:
        """Returns a reader of stored directories, whose walks are bounded by the store's size."""
        from treesnap.core.codec.reader import TreeReader

        return TreeReader(self.get, stored_bytes=self.allocated_bytes)

    def allocated_bytes(self) -> int:
        """Returns the bytes that all packs take on disk. Costs a look per file."""
        return self.packs.allocated_bytes()

    def scan_uncovered(self) -> None:
        """Finds objects in packs, or tails of packs, that no index part covers."""
        self._scan(self.index.covered())

    def scan_everything(self) -> None:
        """Finds objects in all packs, whatever the index says. Costs a table per block."""
        if not self._scanned_all:
            self._scanned_all = True
            self._scan({})

    def _scan(self, starts: Mapping[bytes, int]) -> None:
        for pack_id, size in self.packs.sizes().items():
            start = starts.get(pack_id, 0)
            if size > start:
                with suppress(FileNotFoundError, PermissionError, NewerVersion):
                    self.index.add_scanned(self.inventory(pack_id, start).entries)

    def inventory(self, pack_id: bytes, start: int = 0) -> Inventory:
        """Returns all objects of a pack that can be found; raises FileNotFoundError."""
        return self.packs.inventory(pack_id, *self._known_of(pack_id), start)

    def sound(self, pack_id: bytes) -> Sound:
        """Returns the part of a pack that can be relied on; see :meth:`PackReader.sound`."""
        return self.packs.sound(pack_id, *self._known_of(pack_id))

    def _known_of(self, pack_id: bytes) -> tuple[int, Callable[[], list[IndexEntry]]]:
        """Returns how much of a pack the index covers, and what gives its entries."""
        covered = self.index.covered().get(pack_id, 0)
        return covered, lambda: self.index.entries_of(pack_id)

    def begin_index(self) -> None:
        """Removes the stat caches of all roots, durably, where the index has no part.

        Writers and collections call it before they write a part. Packs that were lost together
        with the index are named nowhere, and a capture that relied on a cache could need what was
        in them. Takes no lock: a capture that finds no part relies on no cache, and one that finds
        the new part finds no older cache. Costs nothing where there is a part.
        """
        if self.index.parts or not self._has_snapshots():
            return
        self.index.refresh()  # afterwards: the part of a first snapshot comes before it
        if not self.index.parts:
            for root in self.roots_with_files():
                root.remove("cache")

    def replace_index(
        self,
        sources: Iterable[Iterable[IndexEntry]],
        covered: Mapping[bytes, int],
        old_parts: Iterable[str],
    ) -> None:
        """Writes one index part, durably, and removes those that it replaces.

        The names of packs are made durable first. Costs a sync for that unless index parts cover
        them all: a pack that is covered has a durable name, because its writer, and every process
        that writes an index part for it later, syncs the name first.
        """
        if covered.keys() - self.index.covered().keys():
            sync_directory(self.fs, self.layout.packs)
        self.index.write_merged(sources, covered)
        self.index.remove_parts(old_parts)

    def size_bytes(self) -> int:
        """Returns the bytes of all packs and index parts, and of what steps of plans wrote.

        Costs a listing of each directory, and a look per file.
        """
        total = sum(self.packs.sizes().values())
        with self.fs.scan(self.layout.index) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
        return total + step_output_bytes(self.fs, self.layout)

    def displaced(self) -> list[str]:
        """Returns the directories of replaced files that restores left here. Costs one listing."""
        names = self.fs.list_names(self.layout.temporary)
        return [
            os.path.join(self.layout.temporary, name)
            for name in names
            if name.startswith(DISPLACED_PREFIX)
        ]

    def missing_packs(self) -> set[bytes]:
        """Returns the packs that are gone, or shorter than the index knows them to be.

        Costs a listing, and a look per file.
        """
        covered = self.index.covered()
        sizes = self.packs.sizes()
        return {pack_id for pack_id, size in covered.items() if sizes.get(pack_id, -1) < size}
