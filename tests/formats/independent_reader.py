"""A second reader of stores, written from docs/reference/format.md and from nothing else.

It shares no code with treesnap, checks what the page says can be checked, and
returns what a snapshot restores to, in the form of ``make_store.describe``. It
stands for everybody who has to read a store without treesnap.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgpack  # type: ignore[import-untyped]  # the library has no types
import zstandard
from blake3 import blake3

CHUNK, TREE, CHUNK_LIST, SNAPSHOT, STATE = 1, 2, 3, 4, 5
FILE, DIRECTORY, SYMLINK, FIFO, SKIPPED = 1, 2, 3, 4, 7


def unpacked(data: bytes) -> Any:
    """Returns a msgpack value, and checks that it was in canonical form."""
    value = msgpack.unpackb(data, raw=False, use_list=False)
    assert msgpack.packb(value, use_bin_type=True) == data
    return value


def check_header(data: bytes, kind: int) -> None:
    """Checks the 16 bytes at the beginning of a file."""
    assert data[:8] == b"TREESNAP"
    assert tuple(data[8:16]) == (kind, 1, 0, 1, 0, 0, 0, 0)


def unsealed(path: Path, kind: int) -> Any:
    """Returns the payload of a sealed file."""
    data = path.read_bytes()
    check_header(data, kind)
    (length,) = struct.unpack_from("<Q", data, 16)
    assert len(data) == 24 + length + 32
    assert blake3(data[:-32]).digest() == data[-32:]
    return data[24:-32]


def object_id(kind: int, data: bytes) -> bytes:
    """Returns the identity of an object."""
    return blake3(bytes([kind]) + data).digest()


class Block(NamedTuple):
    """The place of a block, as an index part has it."""

    pack: Path
    offset: int
    size: int
    raw_size: int


class Place(NamedTuple):
    """Where an object is."""

    block: Block
    start: int
    size: int

    @property
    def share(self) -> int:
        """Its part of the bytes that its block takes in the pack."""
        _, _, size, raw_size = self.block
        end = self.start + 1 + self.size
        return size * end // raw_size - size * self.start // raw_size


def blocks_of(pack: Path) -> Iterator[tuple[Block, dict[tuple[int, bytes], Place]]]:
    """Yields the blocks of a pack with their objects; checks what follows the last one."""
    data = pack.read_bytes()
    check_header(data, 1)
    position = 16
    offsets = []
    while data[position : position + 4] == b"TSBK":
        count, raw_size, stored_size, check = struct.unpack_from("<4I", data, position + 8)
        assert 1 <= count <= 4096
        table = position + 24
        stored = table + 37 * count
        assert check == crc32(data[position : position + 20] + data[table:stored])
        compression, encryption, hash_number = data[position + 4 : position + 7]
        assert (compression in {0, 1}, encryption, hash_number) == (True, 0, 1)
        block = Block(pack, position, stored + stored_size - position, raw_size)
        objects: dict[tuple[int, bytes], Place] = {}
        start = 0
        for identity, size, kind in struct.iter_unpack("<32sIB", data[table:stored]):
            assert kind in {CHUNK, TREE, CHUNK_LIST}
            objects[kind, identity] = Place(block, start, size)
            start += 1 + size
        assert start == raw_size <= (16 << 20) + 1
        yield block, objects
        offsets.append(position)
        position = stored + stored_size
    assert position <= len(data)
    if position < len(data):
        check_footer(data, position, offsets)


def check_footer(data: bytes, position: int, offsets: list[int]) -> None:
    """Checks the end of a sealed pack."""
    magic, offset, footer_check, check = struct.unpack("<4sIII", data[-16:])
    assert (magic, offset, check) == (b"TSFT", position, crc32(data[-16:-4]))
    footer = data[position:-16]
    assert footer_check == crc32(footer)
    assert [at for (at,) in struct.iter_unpack("<I", footer)] == offsets


def raw_bytes(block: Block) -> bytes:
    """Returns the bytes of a block before compression."""
    data = block.pack.read_bytes()[block.offset : block.offset + block.size]
    (count,) = struct.unpack_from("<I", data, 8)
    stored = data[24 + 37 * count :]
    if data[4] == 1:
        assert zstandard.get_frame_parameters(stored).content_size == block.raw_size
        stored = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    assert len(stored) == block.raw_size
    return stored


class Reader:
    """Reads one store."""

    def __init__(self, store: Path) -> None:
        self.store = store
        about = json.loads((store / "format").read_bytes())
        assert about["treesnap"] == "store"
        assert about["min_reader"] <= 2 <= about["format"]
        self.objects: dict[tuple[int, bytes], Place] = {}
        self.seconds: dict[tuple[int, bytes], Place] = {}
        """Second places in the same pack of trees and chunk lists."""
        for pack in sorted((store / "packs").iterdir()):
            in_pack: dict[tuple[int, bytes], Place] = {}
            for _, objects in blocks_of(pack):
                repeated = objects.keys() & in_pack.keys()
                self.seconds |= {key: objects[key] for key in repeated if key[0] != CHUNK}
                in_pack |= objects
            self.objects |= in_pack
        self._opened: tuple[Block, bytes] | None = None
        self._digests: dict[tuple[Any, int], str] = {}
        """Of contents; a hole of many megabytes is in several snapshots."""

    def get(self, kind: int, identity: bytes) -> bytes:
        """Returns an object, verified."""
        block, start, size = self.objects[kind, identity]
        if self._opened is None or self._opened[0] != block:
            self._opened = block, raw_bytes(block)
        part = self._opened[1][start : start + 1 + size]
        assert part[0] == kind
        assert blake3(part).digest() == identity
        return part[1:]

    def index_entries(self) -> Iterator[tuple[int, bytes, Place]]:
        """Yields kind, id and place from all index parts."""
        for part in (self.store / "index").iterdir():
            if part.name == "lock":
                continue
            data = part.read_bytes()
            check_header(data, 2)
            assert blake3(data[:-32]).digest() == data[-32:]
            count, pack_count, block_count = struct.unpack_from("<III", data, 16)
            first = 28 + 24 * pack_count
            other = first + 8 * count
            places = other + 24 * count
            blocks = places + 13 * count
            assert len(data) == blocks + 16 * block_count + 32
            names = [data[28 + 24 * n : 28 + 24 * n + 16].hex() for n in range(pack_count)]
            assert names == sorted(names)
            known = [
                Block(self.store / "packs" / names[pack], *where)
                for pack, *where in struct.iter_unpack("<4I", data[blocks:-32])
            ]
            identities = []
            for n in range(count):
                (number,) = struct.unpack_from("<Q", data, first + 8 * n)
                identity = number.to_bytes(8, "big") + data[other + 24 * n : other + 24 * n + 24]
                identities.append(identity)
                block, start, size, kind = struct.unpack_from("<IIIB", data, places + 13 * n)
                yield kind, identity, Place(known[block], start, size)
            assert identities == sorted(identities)

    def snapshots(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the id and record of every snapshot, oldest first."""
        for root in sorted((self.store / "snapshots").iterdir()):
            for path in sorted(root.iterdir()):
                payload = unsealed(path, 3)
                _, _, identity = path.name.partition("-")
                assert object_id(SNAPSHOT, payload).hex() == identity
                record = unpacked(payload)
                assert record["root_path"] in self.paths_of_root(root.name)
                yield identity, record

    def paths_of_root(self, name: str) -> list[bytes]:
        """Returns the path of a root, and those at which it was before."""
        record = unpacked(unsealed(self.store / "roots" / name / "root", 7))
        made_of = blake3(b"treesnap root\0" + record["path"]).digest()[:16].hex()
        assert name == record.get("id", made_of)
        return [record["path"], *record.get("earlier", [])]

    def root_hash(self, record: dict[str, Any]) -> str:
        """Returns the identity of the captured state."""
        state = msgpack.packb((record["root"], record.get("links")), use_bin_type=True)
        return object_id(STATE, state).hex()

    def entries(self, tree_id: bytes) -> Iterator[Any]:
        """Yields the rows of a directory, pages followed."""
        version, _, level, rows = unpacked(self.get(TREE, tree_id))
        assert version == 1
        if level == 0:
            assert [row[0] for row in rows] == sorted({row[0] for row in rows})
            yield from rows
            return
        for first_name, page_id, count in rows:
            page = list(self.entries(page_id))
            assert (page[0][0], len(page)) == (first_name, count)
            yield from page

    def pieces(self, content: Any) -> Iterator[bytes | int]:
        """Yields the chunks of a content as bytes and its holes as sizes."""
        level, *segments = content
        if type(level) is bytes:
            assert 0 < len(level) <= 128
            assert not segments
            yield level
        for identity, size in zip(segments[::2], segments[1::2], strict=True):
            if level:
                below = unpacked(self.get(CHUNK_LIST, identity))
                assert below[0] == level - 1
                assert sum(below[2::2]) == size
                yield from self.pieces(below)
            elif identity is None:
                yield size
            else:
                chunk = self.get(CHUNK, identity)
                assert len(chunk) == size
                yield chunk

    def files(self, record: dict[str, Any]) -> dict[str, Any]:
        """Returns what a snapshot restores to, by path."""
        found: dict[str, Any] = {}
        pending = [(b"", record["root"])]
        while pending:
            path, row = pending.pop()
            kind = row[1]
            if kind != SKIPPED:
                found[_text(path)] = self._described(row)
            if kind == DIRECTORY:
                pending += [(path + b"/" + e[0] if path else e[0], e) for e in self.entries(row[7])]
        if "links" in record:
            table = b"".join(
                piece for piece in self.pieces(record["links"]) if type(piece) is bytes
            )
            unpacker = msgpack.Unpacker(raw=False, use_list=False)
            unpacker.feed(table)
            for group in unpacker:
                found[_text(group[0])]["links"] = [_text(path) for path in group]
        return dict(sorted(found.items()))

    def _described(self, row: Any) -> dict[str, Any]:
        _, kind, mode, _, _, mtime, size, content, xattrs = row
        one: dict[str, Any] = {"mode": mode, "mtime_ns": _time_ns(mtime)}
        if kind == DIRECTORY:
            one["kind"] = "directory"
        elif kind == SYMLINK:
            one |= {"kind": "symlink", "target": _text(content)}
            del one["mode"]
        elif kind == FIFO:
            one["kind"] = "fifo"
        elif kind == FILE:
            one |= {"kind": "file", "size": size, "sha256": self._digest(content, size)}
        pairs = unpacked(self.get(CHUNK, xattrs)) if type(xattrs) is bytes else xattrs or ()
        users = {_text(name): value.hex() for name, value in pairs if name.startswith(b"user.")}
        return one | ({"xattrs": users} if users else {})

    def _digest(self, content: Any, size: int) -> str:
        found = self._digests.get((content, size))
        if found is not None:
            return found
        hasher = hashlib.sha256()
        zeros = bytes(1 << 20)
        total = 0
        for piece in self.pieces(content):
            if isinstance(piece, int):
                total += piece
                for left in range(piece, 0, -len(zeros)):
                    hasher.update(zeros[:left])
            else:
                total += len(piece)
                hasher.update(piece)
        assert total == size
        self._digests[content, size] = hasher.hexdigest()
        return hasher.hexdigest()


def _time_ns(value: int | bytes) -> int:
    """Returns a time, which is an integer wherever msgpack has one."""
    if isinstance(value, int):
        return value
    time_ns = int.from_bytes(value, "big", signed=True)
    assert len(value) == 12
    assert not -(1 << 63) <= time_ns < 1 << 64
    return time_ns


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
