"""The records of the library as lines for people; pure.

Every name goes through ``printable``, so that it stays on one line and cannot act on
the terminal.
"""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING

from treesnap.errors import printable
from treesnap.model import Change, ChangeKind, Entry, EntryKind, SkipReason, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from treesnap.model import Skipped
    from treesnap.results import (
        CreateResult,
        FoundPath,
        GcResult,
        OpenFile,
        RestoreResult,
    )

ID_DIGITS = 12
"""Digits of an abbreviated id."""
SCOPE_SHOWN_MAX = 3
"""How many paths of a scope a line names before it only counts the rest."""
SKIPPED_SHOWN_MAX = 10
"""How many paths a warning names before it only counts the rest."""

CHANGE_LETTERS = {
    ChangeKind.ADDED: "A",
    ChangeKind.REMOVED: "D",
    ChangeKind.MODIFIED: "M",
    ChangeKind.TYPE: "T",
    ChangeKind.METADATA: "P",
}
"""The letters of ``--name-status``; P stands for properties: mode, owner, time."""

_SKIP_REMARKS = {
    SkipReason.UNREADABLE: "could not be read, so the snapshot is incomplete",
    SkipReason.UNSTABLE: "kept changing while they were read",
}

_FILE_TYPES = {
    EntryKind.FILE: stat.S_IFREG,
    EntryKind.DIRECTORY: stat.S_IFDIR,
    EntryKind.SYMLINK: stat.S_IFLNK,
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryKind.BLOCK_DEVICE: stat.S_IFBLK,
}


def size_text(size_bytes: int) -> str:
    """Returns a size as people read it."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a count with its noun."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def time_text(time_ns: int, *, seconds: bool = True) -> str:
    """Returns a time in the local zone; beyond calendars, seconds as date(1) takes them."""
    try:
        local = time.localtime(time_ns // 1_000_000_000)
    except (OverflowError, OSError):
        return f"@{time_ns // 1_000_000_000}"
    return time.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M", local)


def short_id(snapshot_id: str) -> str:
    """Returns the beginning of an id, enough in every history so far."""
    return snapshot_id[:ID_DIGITS]


def title_of(snapshot: Snapshot) -> str:
    """Returns what its makers said about a snapshot, on one line."""
    record = snapshot.record
    parts: list[str] = []
    if record.name is not None:
        parts.append(f"[{record.name}]")
    if record.label is not None:
        parts.append(record.label)
    if record.session is not None:
        step = "" if record.step is None else f" step {record.step}"
        parts.append(f"({record.session}{step})")
    elif record.step is not None:
        parts.append(f"(step {record.step})")
    parts += [f"{key}={value}" for key, value in sorted(record.tags.items())]
    if record.scope is not None:
        parts.append(f"({scope_text(record.scope)})")
    return printable(" ".join(parts))


def scope_text(scope: Sequence[bytes]) -> str:
    """Returns what a snapshot of paths, or a restore of paths, is about."""
    return f"only {_first(scope)}"


def _first(scope: Sequence[bytes]) -> str:
    named = [printable(path) or "." for path in scope[:SCOPE_SHOWN_MAX]]
    if len(scope) > SCOPE_SHOWN_MAX:
        named.append(f"{len(scope) - SCOPE_SHOWN_MAX:,} more")
    return ", ".join(named)


def added_text(snapshot: Snapshot) -> str:
    """Returns by how much a snapshot made the packs grow, or a dash when nobody noted it."""
    added_bytes = snapshot.record.added_bytes
    return "-" if added_bytes is None else f"+{size_text(added_bytes)}"


def list_lines(snapshots: Sequence[Snapshot], *, with_roots: bool) -> Iterator[str]:
    """Yields a table, newest first: id, time, added bytes, kind, flags, what its makers said."""
    roots = [printable(snapshot.record.root_path) if with_roots else "" for snapshot in snapshots]
    added = [added_text(snapshot) for snapshot in snapshots]
    added_width = max(map(len, added), default=0)
    kind_width = max((len(snapshot.kind.value) for snapshot in snapshots), default=0)
    root_width = max(map(len, roots), default=0)
    for snapshot, root, size in zip(snapshots, roots, added, strict=True):
        flags = ("P" if snapshot.pinned else "-") + ("-" if snapshot.complete else "!")
        cells = [
            short_id(snapshot.id),
            time_text(snapshot.record.created_at_ns),
            size.rjust(added_width),
            snapshot.kind.value.ljust(kind_width),
            flags,
            *([root.ljust(root_width)] if with_roots else []),
            title_of(snapshot),
        ]
        yield "  ".join(cells).rstrip()


def show_lines(snapshot: Snapshot, skipped: Iterable[Skipped]) -> Iterator[str]:
    """Yields what is known of a snapshot, a fact a line, then what it does not hold."""
    record, totals = snapshot.record, snapshot.record.totals
    facts = {
        "id": snapshot.id,
        "root": printable(record.root_path),
        "created": time_text(record.created_at_ns),
        "kind": record.kind.value,
        "name": record.name,
        "label": record.label,
        "session": record.session,
        "step": record.step,
        "step name": record.step_name,
        "phase": record.phase,
        "type": record.type,
        "reason": record.reason,
        "tool": record.source_tool,
        "counters": ", ".join(f"{key}={value}" for key, value in record.counters.items()) or None,
        "rollbacks": snapshot.state.rollback_count or None,
        "retired": "yes" if snapshot.state.retired else None,
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(record.tags.items())) or None,
        "host": record.host or None,
        "pinned": "yes" if snapshot.pinned else "no",
        "complete": "yes" if snapshot.complete else f"no, {totals.incomplete} unreadable",
        "holds": (
            f"{count_text(totals.files, 'file')}, "
            f"{count_text(totals.directories, 'directory', 'directories')}, "
            f"{count_text(totals.others, 'other')}, {size_text(totals.size_bytes)}"
        ),
        "added": None if record.added_bytes is None else size_text(record.added_bytes),
        "root hash": snapshot.root_hash,
        "parent": record.parent,
    }
    for name, value in facts.items():
        if value is not None:
            yield f"{name + ':':<11}{printable(str(value))}"
    for path in record.scope or ():
        yield f"{'scope:':<11}{printable(path) or '.'}"
    for path in record.unstable:
        yield f"{'unstable:':<11}{printable(path)}"
    for item in skipped:
        yield f"{'not held:':<11}{printable(item.path)} ({item.reason.word})"


def skipped_lines(skipped: Sequence[Skipped], verb: str) -> Iterator[str]:
    """Yields warnings on paths that are not held, the first ones by name."""
    if not skipped:
        return
    yield f"{count_text(len(skipped), 'path')} {verb}:"
    for item in skipped[:SKIPPED_SHOWN_MAX]:
        yield f"  {printable(item.path)} ({item.reason.word})"
    if len(skipped) > SKIPPED_SHOWN_MAX:
        yield f"  and {len(skipped) - SKIPPED_SHOWN_MAX:,} more"


def open_lines(files: Sequence[OpenFile]) -> Iterator[str]:
    """Yields warnings on files that processes still have open as they were before a restore."""
    for item in files[:SKIPPED_SHOWN_MAX]:
        yield (
            f"open in {printable(item.program)} (pid {item.process_id}): {printable(item.path)}; "
            "it goes on with the file as it was"
        )
    if len(files) > SKIPPED_SHOWN_MAX:
        yield f"and {len(files) - SKIPPED_SHOWN_MAX:,} more open files"


def create_warnings(result: CreateResult) -> Iterator[str]:
    """Yields what people want to know beside the id."""
    stats = result.stats
    if result.unchanged:
        yield f"Nothing changed since {short_id(result.id)}; no snapshot was made"
    else:
        yield (
            f"Captured {count_text(stats.files, 'file')} in "
            f"{count_text(stats.directories, 'directory', 'directories')}, "
            f"{size_text(stats.size_bytes)}; read {count_text(stats.files_read, 'file')}, "
            f"stored {size_text(stats.added_bytes)}"
        )
    scope = result.snapshot.record.scope
    if scope is not None:
        yield f"This snapshot holds {scope_text(scope)}; 'latest' and 'status' count whole ones"
    if result.absent:
        yield (
            f"There is nothing at {_first(result.absent)}: restoring this snapshot removes what "
            "is there by then"
        )
    by_reason: dict[str, list[Skipped]] = {}
    for item in result.skipped:
        by_reason.setdefault(_SKIP_REMARKS.get(item.reason, "not captured"), []).append(item)
    for warn, items in by_reason.items():
        yield from skipped_lines(items, warn)


def unreadable_warnings(skipped: Iterable[Skipped]) -> Iterator[str]:
    """Yields what a comparison could not look at."""
    items = [item for item in skipped if item.reason == SkipReason.UNREADABLE]
    if items:
        them = "it" if len(items) == 1 else "them"
        yield from skipped_lines(items, f"could not be read, so nothing is known of {them}")


def entry_suffix(entry: Entry) -> str:
    """Returns what follows a name: the mark of a directory, the target of a link."""
    if entry.kind == EntryKind.SYMLINK:
        return f" -> {printable(entry.target)}"
    return "/" if entry.kind == EntryKind.DIRECTORY else ""


def ls_lines(entries: Iterable[Entry], *, long: bool) -> Iterator[str]:
    """Yields entries; names that the snapshot does not hold only in the long form."""
    for entry in entries:
        if entry.is_skipped:
            if long:
                reason = entry.skip_reason.word
                yield f"{'?' * 10} {'':>11} {'':>12}  {'':<16}  {printable(entry.name)} ({reason})"
        elif not long:
            yield printable(entry.name) + ("/" if entry.is_directory else "")
        else:
            mode = stat.filemode(_FILE_TYPES[EntryKind(entry.kind)] | entry.mode)
            owner = f"{entry.uid}:{entry.gid}"
            size = str(entry.size)
            if entry.kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}:
                size = ", ".join(str(number) for number in entry.device)
            when = time_text(entry.mtime_ns, seconds=False)
            name = printable(entry.name) + entry_suffix(entry)
            yield f"{mode} {owner:>11} {size:>12}  {when:<16}  {name}"


def find_lines(found: Iterable[FoundPath], *, with_ids: bool) -> Iterator[str]:
    """Yields paths, each with its newest snapshot and how many hold it."""
    for item in found:
        if with_ids:
            count = len(item.snapshot_ids)
            yield f"{short_id(item.snapshot_ids[0])}  {count:>4}  {printable(item.path)}"
        else:
            yield printable(item.path)


def change_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Yields a letter and a path for each change."""
    for change in changes:
        yield f"{CHANGE_LETTERS[change.change]}  {printable(change.path) or '.'}"


def restore_line(result: RestoreResult) -> str:
    """Returns what a restore did, or would do, in one sentence."""
    target = short_id(result.snapshot.id)
    if result.snapshot.label:
        target += f" ({printable(result.snapshot.label)})"
    if result.scope is not None:
        target += f", {scope_text(result.scope)}"
    if not (result.restored or result.created or result.deleted):
        if result.safety_id is not None:
            return f"Restored {target}: nothing but times of directories differed"
        return f"Nothing to restore: everything is as in {target}"
    verb = "Would restore" if result.dry_run else "Restored"
    return (
        f"{verb} {target}: {result.restored:,} put back, {result.created:,} created, "
        f"{result.deleted:,} deleted, {result.unchanged:,} unchanged"
    )


def gc_line(result: GcResult) -> str:
    """Returns what a collection freed, or would free, in one sentence."""
    verb = "Would free" if result.dry_run else "Freed"
    return (
        f"{verb} {size_text(result.freed_bytes)}: "
        f"{count_text(result.removed_objects, 'object')} removed, "
        f"{count_text(result.removed_packs, 'pack')} removed, "
        f"{count_text(result.rewritten_packs, 'pack')} rewritten, "
        f"{count_text(result.kept_objects, 'object')} kept"
    )
