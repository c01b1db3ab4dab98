"""Tar archives: members to bytes, and bytes to members; streaming, bounded, pure.

Written in the pax format (POSIX.1-2001) with what GNU tar and bsdtar add to it: times in
nanoseconds, names of any bytes, extended attributes (``SCHILY.xattr``), access control lists
(``SCHILY.acl``) and sparse files (``GNU.sparse`` 1.0). Read in that format, and in those of GNU tar
and of Unix. The standard library's ``tarfile`` encodes and decodes single headers. Its reader
is not used: it keeps all members in memory, and whole extended headers of any size.

Bytes of an archive are not trusted. Paths are checked where entries are made of members: here
they are bytes. Everything wrong is InvalidArgument with the code ``invalid-archive``.
"""

from __future__ import annotations

import re
import struct
import tarfile
from collections.abc import Callable, Iterator
from unicodedata import is_normalized

from treesnap.core.model.entries import Device, EntryKind, Xattrs
from treesnap.core.model.errors import ErrorCode, InvalidArgument, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import NoReturn

BLOCK_SIZE = 512
RECORD_SIZE = 20 * BLOCK_SIZE
"""An archive is padded to a multiple of this, as tar does."""
RUNS_MAX = 1 << 20
"""Runs of data in one sparse file; one with more is written with its zeros."""
EXTENDED_SIZE_MAX = 32 << 20
"""Bytes of all extended headers before a member: more than the attributes of one file."""
DEFAULTS_SIZE_MAX = 1 << 20
"""Bytes of all global headers, which hold for every member that follows."""
RECORDS_MAX = (1 << 14) + 64
"""Records of the extended headers before a member, and of the global ones, that say something."""
PATH_SIZE_MAX = 4 << 20
"""Bytes of a path: as deep as captures go, with the longest names."""
PIECE_SIZE = 1 << 20
"""Bytes of content that are read at once."""
AFTER_END_MAX = 64 << 20
"""Bytes after the end of an archive: writers pad to the size of a record on a tape."""

_NS = 10**9
_ENCODING = ("utf-8", "surrogateescape")
_XATTR = "SCHILY.xattr."
_XATTR_KEY = _XATTR.encode()
_LISTS = {
    b"system.posix_acl_access": "SCHILY.acl.access",
    b"system.posix_acl_default": "SCHILY.acl.default",
}
"""Attributes that hold access control lists, and what archives call the lists as text."""
_KEYS = frozenset(
    {
        *(b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime"),
        *(b"SCHILY.devmajor", b"SCHILY.devminor"),
        *(b"GNU.sparse." + word for word in (b"name", b"major", b"minor", b"realsize", b"size")),
        b"GNU.sparse.map",
        *(word.encode() for word in _LISTS.values()),
    }
)
"""What is read of extended headers, beside the extended attributes."""
_SPARSE_ROWS = frozenset({b"GNU.sparse.offset", b"GNU.sparse.numbytes"})
_ENTRIES_MAX = (64 << 10) // 8
"""Of an access control list: the size of the largest attribute, by that of an entry."""
_LIST_TAGS = {1: "user", 2: "user", 4: "group", 8: "group", 16: "mask", 32: "other"}
_NAMED_TAGS = frozenset({2, 8})
_NO_ID = 0xFFFFFFFF
_TYPES = {
    EntryKind.FILE: tarfile.REGTYPE,
    EntryKind.DIRECTORY: tarfile.DIRTYPE,
    EntryKind.SYMLINK: tarfile.SYMTYPE,
    EntryKind.FIFO: tarfile.FIFOTYPE,
    EntryKind.CHARACTER_DEVICE: tarfile.CHRTYPE,
    EntryKind.BLOCK_DEVICE: tarfile.BLKTYPE,
}
_KINDS = {
    **{type_: kind for kind, type_ in _TYPES.items()},
    tarfile.AREGTYPE: EntryKind.FILE,
    tarfile.CONTTYPE: EntryKind.FILE,
    tarfile.GNUTYPE_SPARSE: EntryKind.FILE,
    tarfile.LNKTYPE: EntryKind.FILE,
}
_VOLUME_LABEL = b"V"
_WITHOUT_CONTENT = frozenset({tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE})
_TIME = re.compile(rb"(-?)(\d{1,19})(?:\.(\d{0,40}))?\Z")
_NUMBER = re.compile(rb"\d{1,19}\Z")
_SIZE_MAX = (1 << 63) - 1

Runs = tuple[tuple[int, int], ...]
"""Where a sparse file has data: offsets and sizes, in order."""
Read = Callable[[int], bytes]
"""Returns so many bytes at most, none at the end."""


FindNumber = Callable[[bytes, bytes], int | None]
"""Returns the number of a ``user`` or ``group`` of a name, or None."""


def _no_number(_kind: bytes, _name: bytes) -> None:
    """Knows no names."""


class Member(NamedTuple):
    """What an archive says of one path."""

    path: bytes
    kind: EntryKind
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    """Bytes of a file, holes included."""
    target: bytes = b""
    """Of a symbolic link what it says, of a hard link the path of another member."""
    is_hard_link: bool = False
    device: Device = Device(0, 0)
    xattrs: Xattrs = ()
    runs: Runs | None = None
    """Where a sparse file has data; None for a file without holes."""


def header(member: Member) -> bytes:
    """Returns all bytes of a member but its data, which follow with :func:`padding`."""
    info = tarfile.TarInfo(_text(member.path))
    info.type = tarfile.LNKTYPE if member.is_hard_link else _TYPES[member.kind]
    info.mode, info.uid, info.gid = member.mode, member.uid, member.gid
    info.mtime = member.mtime_ns // _NS
    info.linkname = _text(member.target)
    info.pax_headers = dict(_metadata(member))
    if member.device.major < 1 << 21 and member.device.minor < 1 << 21:
        info.devmajor, info.devminor = member.device
    else:
        info.pax_headers["SCHILY.devmajor"] = str(member.device.major)
        info.pax_headers["SCHILY.devminor"] = str(member.device.minor)
    sparse_map = b""
    if member.is_hard_link:
        info.size = 0
    elif member.runs is None:
        info.size = member.size
    else:
        sparse_map = _sparse_map(member.runs)
        info.size = len(sparse_map) + sum(size for _, size in member.runs)
        info.pax_headers |= {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": info.name,
            "GNU.sparse.realsize": str(member.size),
        }
        directory, _, name = info.name.rpartition("/")
        info.name = f"{directory}/GNUSparseFile.0/{name}"
    return info.tobuf(tarfile.PAX_FORMAT, *_ENCODING) + sparse_map


def padding(size: int) -> bytes:
    """Returns what follows after so many bytes of a member's data."""
    return bytes(-size % BLOCK_SIZE)


def end(size: int) -> bytes:
    """Returns the end of an archive of so many bytes."""
    return bytes(2 * BLOCK_SIZE + -(size + 2 * BLOCK_SIZE) % RECORD_SIZE)


def _text(data: bytes) -> str:
    return data.decode(*_ENCODING)


def _is_changed(name: bytes) -> bool:
    """Returns whether bsdtar would take a name for text and compose its letters."""
    return not name.isascii() and not is_normalized("NFC", _text(name))


def _metadata(member: Member) -> Iterator[tuple[str, str]]:
    if _is_changed(member.path) or _is_changed(member.target):
        yield "hdrcharset", "BINARY"
    seconds, rest_ns = divmod(abs(member.mtime_ns), _NS)
    if rest_ns or member.mtime_ns < 0:
        fraction = f".{rest_ns:09}" if rest_ns else ""
        yield "mtime", f"{'-' if member.mtime_ns < 0 else ''}{seconds}{fraction}"
    for name, value in member.xattrs:
        text = _list_text(value) if name in _LISTS else None
        if text is not None:
            yield _LISTS[name], text
        else:
            key = _text(name).replace("%", "%25").replace("=", "%3D")
            yield _XATTR + key, _text(value)


def _list_text(value: bytes) -> str | None:
    """Returns an access control list as text; None unless the text says all of it."""
    if len(value) < 4 or (len(value) - 4) % 8 or value[:4] != b"\2\0\0\0":
        return None
    lines = []
    for tag, rights, identity in struct.iter_unpack("<HHI", value[4:]):
        if tag not in _LIST_TAGS or rights > 7:
            return None
        name = str(identity) if tag in _NAMED_TAGS else ""
        letters = "".join(
            letter if rights & bit else "-" for letter, bit in zip("rwx", (4, 2, 1), strict=True)
        )
        lines.append(f"{_LIST_TAGS[tag]}:{name}:{letters}")
    text = ",".join(lines)
    return text if _list_value(text.encode()) == value else None


def _list_value(text: bytes, find_number: FindNumber = _no_number) -> bytes | None:
    """Returns an access control list as the kernel has it; None for a text that is none.

    A user or group is a number, or a name; the number may stand behind it, and counts then.
    A list that has more entries than fit into an attribute, see xattr(7), is none.
    """
    if text.count(b",") + text.count(b"\n") > _ENTRIES_MAX:
        return None
    rows = []
    for line in re.split(rb"[,\n]", text.strip()):
        word, name, letters, *number = (*line.split(b":"), b"", b"")[:4]
        tags = [
            tag for tag, word_of_tag in _LIST_TAGS.items() if word_of_tag == word.decode("latin-1")
        ]
        if not tags or re.search(rb"[^rwx-]", letters) or (name and len(tags) < 2):
            return None
        rights = sum(bit for letter, bit in ((b"r", 4), (b"w", 2), (b"x", 1)) if letter in letters)
        identity: int | None = _NO_ID
        if name:
            digits = number[0] or name
            identity = int(digits) if _NUMBER.match(digits) else find_number(word, name)
        if identity is None or identity > _NO_ID:
            return None
        rows.append((tags[1] if name else tags[0], identity, rights))
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, rights, identity) for tag, identity, rights in sorted(rows)
    )


def _sparse_map(runs: Runs) -> bytes:
    numbers = [len(runs), *(number for run in runs for number in run)]
    data = b"".join(b"%d\n" % number for number in numbers)
    return data + padding(len(data))


def refuse(message: str, path: bytes | None = None) -> NoReturn:
    """Raises InvalidArgument for an archive that cannot be read."""
    raise InvalidArgument(message, code=ErrorCode.INVALID_ARCHIVE, path=path)


class TarReader:
    """Reads an archive from its beginning to its end. Iterate over it once.

    The content of a member can be read by :meth:`content` until the next one is asked for.
    Memory is bounded whatever the archive says. ``find_number`` is asked for the users and groups
    of access control lists that have no number.
    """

    def __init__(self, read: Read, find_number: FindNumber = _no_number) -> None:
        self._read = read
        self._find_number = find_number
        self._left = 0
        """Bytes of the member's data that were not read yet, with the padding."""
        self._padding = 0
        self._extended_left = EXTENDED_SIZE_MAX
        """Bytes that the extended headers before the next member may still have."""
        self._member: Member | None = None

    def __iter__(self) -> Iterator[Member]:
        """Yields the members; raises InvalidArgument for anything but a whole archive."""
        defaults: dict[bytes, bytes] = {}
        own: dict[bytes, bytes] = {}
        sparse_rows: list[bytes] = []
        self._extended_left = EXTENDED_SIZE_MAX
        default_size = 0
        is_first = True
        while True:
            block = self._exactly(BLOCK_SIZE, is_first=is_first)
            is_first = False
            if not any(block):
                break
            info = _parsed(block)
            if info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE):
                is_global = info.type == tarfile.XGLTYPE
                if is_global:
                    default_size += info.size
                    if default_size > DEFAULTS_SIZE_MAX:
                        refuse("The global headers of the archive are too large")
                records = defaults if is_global else own
                for key, value in _records(self._extended(info.size)):
                    if key in _SPARSE_ROWS:
                        if not is_global:
                            sparse_rows.append(value)
                    elif key in _KEYS or key.startswith(_XATTR_KEY):
                        records[key] = value
                        if len(records) > RECORDS_MAX:
                            refuse("The extended headers of the archive have too many records")
            elif info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                key = b"path" if info.type == tarfile.GNUTYPE_LONGNAME else b"linkpath"
                own[key] = self._extended(info.size).rstrip(b"\0")
            elif info.type == _VOLUME_LABEL:
                self._begin(info.size)
                self._skip()
            else:
                self._member = self._made(info, block, {**defaults, **own}, sparse_rows)
                yield self._member
                self._skip()
                own, sparse_rows = {}, []
                self._extended_left = EXTENDED_SIZE_MAX
        self._read_rest()

    def _read_rest(self) -> None:
        """Reads what is padded at the end, so that a decompressor checks its sums."""
        left = AFTER_END_MAX
        while piece := self._read(PIECE_SIZE):
            left -= len(piece)
            if left < 0:
                refuse(f"The archive goes on for more than {AFTER_END_MAX >> 20} MiB after its end")

    def content(self) -> Iterator[bytes | int]:
        """Yields the content of the current member; a number stands for that many zeros."""
        member = self._member
        assert member is not None
        if member.runs is None:
            yield from self._data(member.size)
            return
        position = 0
        for offset, size in member.runs:
            if offset > position:
                yield offset - position
            yield from self._data(size)
            position = offset + size
        if member.size > position:
            yield member.size - position

    def _exactly(self, size: int, *, is_first: bool = False) -> bytes:
        """Returns so many bytes; raises InvalidArgument where the archive ends before."""
        pieces, left = [], size
        while left:
            piece = self._read(min(left, PIECE_SIZE))
            if not piece:
                refuse("It is not a tar archive" if is_first else "The archive is cut off")
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _begin(self, size: int) -> None:
        if not 0 <= size <= _SIZE_MAX:
            refuse("A member of the archive has an impossible size")
        self._left, self._padding = size, -size % BLOCK_SIZE

    def _skip(self) -> None:
        """Reads what is left of the member's data."""
        left = self._left + self._padding
        while left:
            left -= len(self._exactly(min(left, PIECE_SIZE)))
        self._left = self._padding = 0

    def _data(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self._exactly(min(size, PIECE_SIZE))
            self._left -= len(piece)
            size -= len(piece)
            yield piece

    def _extended(self, size: int) -> bytes:
        if not 0 <= size <= self._extended_left:
            refuse(f"An extended header of the archive has {size} bytes")
        self._extended_left -= size
        data = self._exactly(size)
        self._exactly(-size % BLOCK_SIZE)
        return data

    def _made(
        self,
        info: tarfile.TarInfo,
        block: bytes,
        extended: dict[bytes, bytes],
        sparse_rows: list[bytes],
    ) -> Member:
        """Returns the member of a header; reads the map of a sparse file, which is data."""
        path = extended.get(b"GNU.sparse.name") or extended.get(b"path") or _bytes(info.name)
        if len(path) > PATH_SIZE_MAX:
            refuse("A path in the archive is too long")
        if info.type not in _KINDS:
            refuse(f"{quoted(path)} in the archive has the unknown type {info.type!r}", path)
        is_hard_link = info.type == tarfile.LNKTYPE
        stored_size = _number(extended.get(b"size"), info.size, path)
        self._begin(0 if info.type in _WITHOUT_CONTENT else stored_size)
        member = Member(
            path=path,
            kind=_KINDS[info.type],
            mode=info.mode & 0o7777,
            uid=_number(extended.get(b"uid"), info.uid, path),
            gid=_number(extended.get(b"gid"), info.gid, path),
            mtime_ns=_time_ns(extended.get(b"mtime"), info.mtime, path),
            size=self._left,
            target=extended.get(b"linkpath") or _bytes(info.linkname),
            is_hard_link=is_hard_link,
            device=Device(
                _number(extended.get(b"SCHILY.devmajor"), info.devmajor, path),
                _number(extended.get(b"SCHILY.devminor"), info.devminor, path),
            ),
            xattrs=_xattrs(extended, path, self._find_number),
        )
        if member.kind != EntryKind.FILE or is_hard_link:
            return member
        if info.type == tarfile.GNUTYPE_SPARSE:
            return self._with_runs(member, _old_size(block), self._old_rows(block))
        if extended.get(b"GNU.sparse.major") == b"1" and extended.get(b"GNU.sparse.minor") == b"0":
            size = _number(extended.get(b"GNU.sparse.realsize"), -1, path)
            return self._with_runs(member, size, self._map())
        size = _number(extended.get(b"GNU.sparse.size"), -1, path)
        if b"GNU.sparse.map" in extended:
            return self._with_runs(member, size, extended[b"GNU.sparse.map"].split(b","))
        if sparse_rows:
            return self._with_runs(member, size, sparse_rows)
        return member

    def _map(self) -> list[bytes]:
        """Returns the numbers before the data of a sparse file; bounded by RUNS_MAX."""
        lines: list[bytes] = []
        rest, count = b"", None
        while count is None or len(lines) < 2 * count:
            if self._left < BLOCK_SIZE:
                refuse("The map of a sparse file in the archive is cut off")
            rest += self._exactly(BLOCK_SIZE)
            self._left -= BLOCK_SIZE
            *whole, rest = rest.split(b"\n")
            lines += whole
            if len(rest) > BLOCK_SIZE:
                refuse("The map of a sparse file in the archive is not valid")
            if count is None and lines:
                count = _number(lines.pop(0), 0, b"")
                if count > RUNS_MAX:
                    refuse(f"A sparse file in the archive claims {count} pieces")
        assert count is not None
        return lines[: 2 * count]

    def _old_rows(self, block: bytes) -> list[bytes]:
        """Returns the map in a header of GNU tar's own format, and in those that follow."""
        rows, is_extended = _old_fields(block, 386, 4), block[482] != 0
        while is_extended:
            block = self._exactly(BLOCK_SIZE)
            rows += _old_fields(block, 0, 21)
            is_extended = block[504] != 0
            if len(rows) > 2 * RUNS_MAX:
                refuse("A sparse file in the archive has too many pieces")
        return rows

    def _with_runs(self, member: Member, size: int, rows: list[bytes]) -> Member:
        """Returns a sparse file with its real size, and where it has data."""
        numbers = [_number(row, 0, member.path) for row in rows]
        runs = tuple(zip(numbers[::2], numbers[1::2], strict=False))
        position = 0
        for offset, length in runs:
            if offset < position or offset + length > size:
                refuse(f"The pieces of the sparse file {quoted(member.path)} do not fit it")
            position = offset + length
        if len(numbers) % 2 or sum(length for _, length in runs) != self._left:
            refuse(f"The pieces of the sparse file {quoted(member.path)} do not fit it")
        return member._replace(size=size, runs=runs)


def _parsed(block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, *_ENCODING)
    except (tarfile.HeaderError, ValueError, OverflowError) as error:
        refuse(f"A header of the archive cannot be read: {error}")


def _bytes(text: str) -> bytes:
    return text.encode(*_ENCODING)


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the records of an extended header: ``LENGTH KEY=VALUE`` and a newline."""
    position = 0
    while position < len(data) and data[position]:
        space = data.find(b" ", position, position + 20)
        if space < 0 or not _NUMBER.match(data[position:space]):
            refuse("An extended header of the archive is not valid")
        following = position + int(data[position:space])
        key, equals, value = data[space + 1 : following - 1].partition(b"=")
        if following > len(data) or not equals or data[following - 1 : following] != b"\n":
            refuse("An extended header of the archive is not valid")
        yield key, value
        position = following


def _number(text: bytes | None, default: int, path: bytes) -> int:
    if text is None:
        number = default
    elif _NUMBER.match(text):
        number = int(text)
    else:
        refuse(f"{quoted(path)} in the archive has an impossible number")
    if not -1 <= number <= _SIZE_MAX or (number < 0 and text is not None):
        refuse(f"{quoted(path)} in the archive has an impossible number")
    return number


def _time_ns(text: bytes | None, default_s: float, path: bytes) -> int:
    if text is None:
        return int(default_s) * _NS
    match = _TIME.match(text)
    if match is None:
        refuse(f"{quoted(path)} in the archive has an impossible time")
    sign, seconds, fraction = match.groups()
    time_ns = int(seconds) * _NS + int((fraction or b"").ljust(9, b"0")[:9])
    return -time_ns if sign else time_ns


def _xattrs(extended: dict[bytes, bytes], path: bytes, find_number: FindNumber) -> Xattrs:
    attributes = {}
    for key, value in extended.items():
        if key.startswith(_XATTR_KEY):
            name = key[len(_XATTR_KEY) :].replace(b"%3D", b"=").replace(b"%25", b"%")
            attributes[name] = value
    for name, word in _LISTS.items():
        text = extended.get(word.encode())
        if text:
            binary = _list_value(text, find_number)
            if binary is None:
                refuse(
                    f"{quoted(path)} in the archive has an access control list that is not valid, "
                    "or names a user or group that this machine does not know",
                    path,
                )
            attributes[name] = binary
    return tuple(sorted(attributes.items()))


def _old_fields(block: bytes, start: int, count: int) -> list[bytes]:
    """Returns offsets and sizes of a header of GNU tar's own format, up to an empty one."""
    rows: list[bytes] = []
    for position in range(start, start + 24 * count, 24):
        if not block[position + 12]:
            break
        rows += [_old_number(block[at : at + 12]) for at in (position, position + 12)]
    return rows


def _old_size(block: bytes) -> int:
    return int(_old_number(block[483:495]))


def _old_number(field: bytes) -> bytes:
    """Returns a number of a header in decimal digits."""
    if field[0] == 0x80:
        return b"%d" % int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]{0,12}", digits):
        refuse("A sparse file in the archive has an impossible number")
    return b"%d" % int(digits or b"0", 8)
