"""The bytes on both sides of many changes, read together.

Objects are read in the order in which they lie in the packs, so that a block which holds hundreds
of small files is decompressed once. Reading 1,500 small files one after the other, each with a
session of its own, took thirty times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from treesnap.core.codec.reader import read_content
from treesnap.core.diff.texts import is_binary
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model import treepath
from treesnap.core.model.entries import Change, ChangeKind, Entry, EntryKind
from treesnap.core.model.errors import NotFound
from treesnap.core.model.results import ChangedContent
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.history.browse import read_pieces, read_whole_file
from treesnap.core.ops.history.large_texts import (
    SIZE_MAX,
    ChangedMeanwhile,
    IsBinary,
    NotComparable,
    Stream,
    differing_parts,
)
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.tree_state import entry_at
from treesnap.core.worktree.directory import DirectoryChain, open_chain

_BATCH_SIZE_MAX = 32 << 20
"""Bytes of both sides that are read before the first of them is given away."""
_BATCH_COUNT_MAX = 4096

_Wanted = tuple[int, Entry]
"""A file of a batch: the position of its change, and its entry."""


def contents(
    context: Context,
    a: str | None,
    b: str | None,
    changes: Iterable[Change],
    size_max: int,
    *,
    root: str | None = None,
    as_text: bool = False,
) -> Iterator[ChangedContent]:
    """Yields each change with both sides of its content, in the order of the changes.

    None is the live tree; ``root`` is the one whose live tree ``b`` is, by default the context's.
    """
    as_stored = (
        content
        for batch in _batches(changes, size_max)
        for content in _read_batch(context, a, b, batch, size_max, root or context.root)
    )
    if not as_text:
        return as_stored
    from treesnap.core.ops.history.text_conversion import converted

    def beside(path: bytes) -> tuple[bytes | None, bytes | None]:
        with opened(context, "compare") as session:
            return (
                _small_file(session, a, context.root, path, size_max),
                _small_file(session, b, root or context.root, path, size_max),
            )

    return converted(as_stored, beside, size_max)


def _small_file(
    session: Session, ref: str | None, root: str, path: bytes, size_max: int
) -> bytes | None:
    """Returns the bytes of a file on one side; None where there is none of that size."""
    if ref is None:
        with suppress(OSError):
            data = b""
            for piece in _pieces_of_tree(session, root, path):
                data += piece
                if len(data) > size_max:
                    return None
            return data
        return None
    snapshot = resolve_in(session, ref, anywhere=True)
    with reading(session, snapshot), suppress(NotFound):
        entry = entry_at(session.store.trees(), snapshot, path)
        if entry.kind == EntryKind.FILE and entry.size <= size_max:
            return b"".join(read_content(entry.file_content, session.store.get))
    return None


def _batches(changes: Iterable[Change], size_max: int) -> Iterator[list[Change]]:
    batch: list[Change] = []
    size = 0
    for change in changes:
        if has_content(change) and not _is_large(change, size_max):
            size += sum(entry.size for entry in (change.old, change.new) if entry is not None)
        batch.append(change)
        if size > _BATCH_SIZE_MAX or len(batch) == _BATCH_COUNT_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def has_content(change: Change) -> bool:
    """Returns whether a change is about bytes: those of a file, or the target of a link."""
    if change.change in {ChangeKind.METADATA, ChangeKind.TYPE}:
        return False
    return all(
        entry is None or entry.kind in {EntryKind.FILE, EntryKind.SYMLINK}
        for entry in (change.old, change.new)
    )


def _is_large(change: Change, size_max: int) -> bool:
    sides = (change.old, change.new)
    return any(entry is not None and entry.size > size_max for entry in sides)


def _read_batch(
    context: Context,
    a: str | None,
    b: str | None,
    batch: Sequence[Change],
    size_max: int,
    root: str,
) -> Iterator[ChangedContent]:
    is_read = [has_content(change) and not _is_large(change, size_max) for change in batch]
    with opened(context, "compare") as session:
        old = _side(session, a, context.root, batch, is_read, [change.old for change in batch])
        new = _side(session, b, root, batch, is_read, [change.new for change in batch])
    for number, change in enumerate(batch):
        if has_content(change) and not is_read[number]:
            yield _of_large(context, a, b, change, size_max, root)
            continue
        is_lost = is_read[number] and (number not in old or number not in new)
        yield ChangedContent(
            change,
            old.get(number) if not is_lost else None,
            new.get(number) if not is_lost else None,
            is_lost=is_lost,
        )


def _of_large(
    context: Context, a: str | None, b: str | None, change: Change, size_max: int, root: str
) -> ChangedContent:
    """Returns what differs of two texts, of which one at least is large.

    Where they are not compared, the first piece of each says whether it is a text.
    """
    none = ChangedContent(change, None, None, is_large=True)
    old, new = change.old, change.new
    sides = [
        (ref, below, entry)
        for ref, below, entry in ((a, context.root, old), (b, root, new))
        if entry is not None and entry.kind == EntryKind.FILE
    ]
    with opened(context, "compare") as session, ExitStack() as stack:
        texts = [
            stack.enter_context(_stream(session, ref, below, change.path, entry))
            for ref, below, entry in sides
        ]
        try:
            if len(texts) == 2 and max(entry.size for _, _, entry in sides) <= SIZE_MAX:
                old_text, new_text = texts
                return none._replace(parts=differing_parts(old_text, new_text, size_max))
            return none._replace(is_binary=any(is_binary(_first_piece(text)) for text in texts))
        except IsBinary:
            return none._replace(is_binary=True)
        except NotComparable:
            return none
        except (ChangedMeanwhile, OSError):
            return none._replace(is_large=False, is_lost=True)


def _first_piece(text: Stream) -> bytes:
    return next(iter(text()), b"")


@contextmanager
def _stream(
    session: Session, ref: str | None, root: str, path: bytes, entry: Entry
) -> Iterator[Stream]:
    """Yields what reads a file from its start, in pieces."""
    if ref is None:
        yield partial(_pieces_of_tree, session, root, path)
        return
    with reading(session, resolve_in(session, ref, anywhere=True)):
        yield partial(read_content, entry.file_content, session.store.get)


def _pieces_of_tree(session: Session, root: str, path: bytes) -> Iterator[bytes]:
    directory, name = treepath.split(path)
    with open_chain(session.fs, root) as chain:
        yield from read_pieces(session.fs, name, chain.open(directory))


def _side(
    session: Session,
    ref: str | None,
    root: str,
    batch: Sequence[Change],
    is_read: Sequence[bool],
    entries: Sequence[Entry | None],
) -> dict[int, bytes | None]:
    """Returns one side of each wanted change by its position, without content that is gone
    meanwhile.
    """
    contents: dict[int, bytes | None] = {}
    files: list[_Wanted] = []
    for number, entry in enumerate(entries):
        if not is_read[number]:
            continue
        if entry is None:
            contents[number] = None
        elif entry.kind == EntryKind.SYMLINK:
            contents[number] = entry.target
        else:
            files.append((number, entry))
    if not files:
        return contents
    if ref is not None:
        return contents | _of_snapshot(session, ref, files)
    with translating_os_errors("read a file"), open_chain(session.fs, root) as chain:
        for number, _ in files:
            data = _of_tree(session, chain, batch[number].path)
            if data is not None:
                contents[number] = data
    return contents


def _of_snapshot(session: Session, ref: str, files: Iterable[_Wanted]) -> dict[int, bytes | None]:
    store = session.store

    def place(item: _Wanted) -> tuple[bytes, int, int]:
        identity = next(iter(item[1].file_content.ids()), None)
        entry = store.index.find(identity) if identity is not None else None
        return (entry.pack_id, entry.offset, entry.start) if entry is not None else (b"", 0, 0)

    with reading(session, resolve_in(session, ref, anywhere=True)):
        return {
            number: b"".join(read_content(entry.file_content, store.get))
            for number, entry in sorted(files, key=place)
        }


def _of_tree(session: Session, chain: DirectoryChain, path: bytes) -> bytes | None:
    directory, name = treepath.split(path)
    try:
        return read_whole_file(session.fs, name, chain.open(directory))
    except OSError:
        return None
