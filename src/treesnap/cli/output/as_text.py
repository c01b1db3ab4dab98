"""The records of the library as lines for people; pure.

Every name goes through ``printable``, so that it stays on one line and cannot act on
the terminal.
"""

from __future__ import annotations

from treesnap.cli.output.terminal import Cell, Style, styled, table
from treesnap.core.model.entries import DATABASE_LOG_SUFFIXES, ChangeKind, SkipReason
from treesnap.core.model.errors import printable, quoted
from treesnap.core.model.quantities import count_text, first_few, first_lines, size_text, time_text
from treesnap.core.model.reserved_tags import own_tags
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from treesnap.cli.output.terminal import Terminal
    from treesnap.core.codec.root_files import Gap
    from treesnap.core.model.entries import Change, Skipped
    from treesnap.core.model.results import CreateResult, OpenFile, Privileges, RestoreResult
    from treesnap.core.model.snapshots import Snapshot

ID_DIGITS = 12
"""Digits of an abbreviated id."""
SCOPE_SHOWN_MAX = 3
"""Paths of a scope that a line names; the others are counted."""
SKIPPED_SHOWN_MAX = 10
"""Paths that a warning names; the others are counted."""

CHANGE_LETTERS = {
    ChangeKind.ADDED: "A",
    ChangeKind.REMOVED: "D",
    ChangeKind.MODIFIED: "M",
    ChangeKind.TYPE: "T",
    ChangeKind.METADATA: "P",
}
"""The letters of ``--name-status``; P stands for properties: mode, owner, time."""

_CHANGE_STYLES = {
    ChangeKind.ADDED: Style.ADDED,
    ChangeKind.REMOVED: Style.REMOVED,
    ChangeKind.MODIFIED: Style.CHANGED,
    ChangeKind.TYPE: Style.CHANGED,
    ChangeKind.METADATA: Style.CHANGED,
}

_SKIP_REMARKS = {
    SkipReason.UNREADABLE: "could not be read, so the snapshot is incomplete",
    SkipReason.UNSTABLE: "kept changing while they were read",
}


def short_id(snapshot_id: str) -> str:
    """Returns the beginning of an id."""
    return snapshot_id[:ID_DIGITS]


def tag_texts(tags: Mapping[str, object]) -> list[str]:
    """Returns tags as ``KEY=VALUE``, sorted."""
    return [f"{key}={value}" for key, value in sorted(tags.items())]


def title_of(snapshot: Snapshot, *, with_step: bool = True) -> str:
    """Returns name, label, session and step, tags and scope of a snapshot, on one line."""
    record = snapshot.record
    parts: list[str] = []
    if record.name is not None:
        parts.append(f"[{record.name}]")
    if snapshot.label is not None:
        parts.append(snapshot.label)
    if record.session is not None and with_step:
        step = "" if record.step is None else f" step {record.step}"
        parts.append(f"({record.session}{step})")
    elif record.step is not None and with_step:
        parts.append(f"(step {record.step})")
    parts += tag_texts(own_tags(snapshot))
    if record.scope is not None:
        parts.append(f"({scope_text(record.scope)})")
    return printable(" ".join(parts))


def titled(snapshot: Snapshot) -> str:
    """Returns the beginning of a snapshot's id, and its title where it has one."""
    title = title_of(snapshot)
    if not title:
        return short_id(snapshot.id)
    return f"{short_id(snapshot.id)} {title if title.startswith('(') else f'({title})'}"


def scope_text(scope: Sequence[bytes]) -> str:
    """Returns what a snapshot of paths, or a restore of paths, is about."""
    return f"only {_first_paths(scope)}"


def path_text(path: bytes) -> str:
    """Returns a path in the root; the root itself is a dot."""
    return printable(path) or "."


def _first_paths(paths: Sequence[bytes]) -> str:
    return first_few(paths, path_text, SCOPE_SHOWN_MAX)


def added_text(snapshot: Snapshot) -> str:
    """Returns by how much a snapshot made the packs grow, or a dash when that is not known."""
    added_bytes = snapshot.record.added_bytes
    return "-" if added_bytes is None else f"+{size_text(added_bytes)}"


def list_table(
    snapshots: Sequence[Snapshot], terminal: Terminal, *, with_roots: bool
) -> Iterator[str]:
    """Yields a table for a terminal, newest first, under a head."""
    head = ["ID", "WHEN", "ADDED", "KIND", *(["ROOT"] if with_roots else []), "LABEL"]
    rows = []
    for snapshot in snapshots:
        title, style = title_of(snapshot), None
        if snapshot.kind is SnapshotKind.SAFETY:
            style = Style.DIM
        if snapshot.pinned:
            title = f"pinned  {title}"
        if not snapshot.complete:
            title, style = f"incomplete  {title}", Style.CHANGED
        row = [
            Cell(short_id(snapshot.id), Style.DIM),
            Cell(terminal.when(snapshot.record.created_at_ns)),
            Cell(added_text(snapshot)),
            Cell(snapshot.kind.value),
            *([Cell(printable(snapshot.record.root_path))] if with_roots else []),
            Cell(title, style),
        ]
        rows.append(row[:2] + row[4:] if terminal.is_narrow else row)
    if rows:
        shown = head[:2] + head[4:] if terminal.is_narrow else head
        yield from table(rows, terminal, () if terminal.is_narrow else (2,), shown)


def list_lines(snapshots: Sequence[Snapshot], *, with_roots: bool) -> Iterator[str]:
    """Yields a table, newest first: id, time, added bytes, kind, flags, title."""
    rows = [
        (
            short_id(snapshot.id),
            time_text(snapshot.record.created_at_ns),
            added_text(snapshot),
            snapshot.kind.value,
            ("P" if snapshot.pinned else "-") + ("-" if snapshot.complete else "!"),
            *([printable(snapshot.record.root_path)] if with_roots else []),
            title_of(snapshot),
        )
        for snapshot in snapshots
    ]
    yield from aligned(rows, to_the_right={2})


def aligned(rows: Sequence[Sequence[str]], to_the_right: Container[int]) -> Iterator[str]:
    """Yields rows in columns, of which some are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if number in to_the_right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def skipped_lines(skipped: Sequence[Skipped], verb: str) -> Iterator[str]:
    """Yields warnings on paths that are not held, the first ones by name."""
    if not skipped:
        return
    yield f"{count_text(len(skipped), 'path')} {verb}:"
    for text in first_lines(skipped, skipped_text, SKIPPED_SHOWN_MAX):
        yield f"  {text}"


def missing_lines(paths: Sequence[bytes]) -> Iterator[str]:
    """Yields what a snapshot could not read, so that it did not come back."""
    if paths:
        count = count_text(len(paths), "path")
        yield f"{count} not put back, unreadable when the snapshot was taken:"
        yield from (f"  {text}" for text in first_lines(paths, path_text, SKIPPED_SHOWN_MAX))


def skipped_text(item: Skipped) -> str:
    """Returns a path that a snapshot does not hold, and the reason."""
    return f"{path_text(item.path)} ({item.reason.word})"


def create_notes(result: CreateResult) -> Iterator[str]:
    """Yields what a person wants to know beside the id."""
    stats = result.stats
    if result.unchanged:
        yield f"Nothing changed since {short_id(result.id)}; no snapshot was made"
    else:
        yield (
            f"Captured {count_text(stats.files, 'file')}"
            f"{f' and {others_text(stats.others)}' if stats.others else ''} in "
            f"{count_text(stats.directories, 'directory', 'directories')}, "
            f"{size_text(stats.size_bytes)}; read {count_text(stats.files_read, 'file')}, "
            f"stored {size_text(stats.added_bytes)}"
        )
    scope = result.snapshot.record.scope
    if scope is not None:
        yield f"This snapshot holds {scope_text(scope)}; 'latest' and 'status' count whole ones"
    if result.absent:
        yield (
            f"There is nothing at {_first_paths(result.absent)}: restoring this snapshot removes "
            "what is there by then"
        )
    by_reason: dict[str, list[Skipped]] = {}
    for item in result.skipped:
        by_reason.setdefault(_SKIP_REMARKS.get(item.reason, "not captured"), []).append(item)
    for remark, items in by_reason.items():
        yield from skipped_lines(items, remark)


def others_text(count: int) -> str:
    """Returns how many symbolic links, pipes and devices a tree has."""
    return count_text(count, "link or special file", "links and special files")


def change_lines(changes: Iterable[Change], *, coloured: bool = False) -> Iterator[str]:
    """Yields a letter and a path for each change, in the colour of what it means."""
    for change in changes:
        line = f"{CHANGE_LETTERS[change.change]}  {path_text(change.path)}"
        yield styled(line, _CHANGE_STYLES[change.change]) if coloured else line


def first_lines_of_changes(
    changes: Sequence[Change], shown_max: int, *, coloured: bool = False
) -> list[str]:
    """Returns a line for each of the first changes, and how many more there are."""
    return first_lines(
        changes, lambda change: next(change_lines([change], coloured=coloured)), shown_max
    )


def restore_line(result: RestoreResult) -> str:
    """Returns what a restore did, or would do, in one sentence."""
    target = short_id(result.snapshot.id)
    if result.snapshot.label:
        target += f" ({printable(result.snapshot.label)})"
    if result.scope is not None:
        target += f", {scope_text(result.scope)}"
    if not (result.restored or result.created or result.deleted):
        is_unseen = any(
            result.scope is not None or item.reason is SkipReason.UNREADABLE
            for item in result.untouched
        )
        but_others = " else" if result.conflicts or is_unseen or result.missing else ""
        if result.safety_id is not None:
            return f"Restored {target}: nothing{but_others} but times of directories differed"
        return f"Nothing to restore: everything{but_others} is as in {target}"
    verb = "Would restore" if result.dry_run else "Restored"
    return (
        f"{verb} {target}: {result.restored:,} put back, {result.created:,} created, "
        f"{result.deleted:,} deleted, {result.unchanged:,} unchanged"
    )


def restore_notes(result: RestoreResult, undo: str) -> Iterator[str]:
    """Yields what a person wants to know of a restore; ``undo`` is the command that undoes it."""
    yield from skipped_lines(result.untouched, "left alone")
    yield from missing_lines(result.missing)
    for path in result.links_broken:
        yield f"Link broken: {quoted(path)} has a name elsewhere, which keeps the old file"
    yield from privilege_lines(result.privileges)
    if result.plan_id is not None:
        yield f"Plan {result.plan_id} was restored too"
    yield from first_lines(result.open_files, _open_text, SKIPPED_SHOWN_MAX)
    if result.safety_id is not None:
        yield f"To undo this: {undo}"


def privilege_lines(
    privileges: Privileges, *, done: str = "Left out", way: str = "--privileged"
) -> Iterator[str]:
    """Yields what a snapshot from elsewhere was not allowed to bring, and how to get it."""
    left = [item for item in privileges.listed if not item.given]
    if left:
        yield f"{done}, because the snapshot may come from elsewhere: {privileges.left_out:,} of"
        texts = [f"{path_text(item.path)} ({printable(item.kind)})" for item in left]
        yield from (f"  {text}" for text in first_lines(texts, str, SKIPPED_SHOWN_MAX))
    if privileges.owners_left_out:
        count = count_text(privileges.owners_left_out, "path")
        yield f"Owner left out of {count}: files that were not there before are yours"
    if left or privileges.owners_left_out:
        yield f"To restore these too: {way}"


def gap_text(gap: Gap) -> str:
    """Returns what of an agent's work was not captured, and why, as a sentence."""
    what = {"turn": "The prompt", "end": "The end of the turn", "session": "The session"}
    moment = what.get(gap.phase, f"The step before {printable(gap.tool or 'a tool')}")
    return f"{moment} at {time_text(gap.time_ns)} was not captured: {printable(gap.reason)}"


def _open_text(item: OpenFile) -> str:
    program = f"{printable(item.program)} (pid {item.process_id})"
    what = "it uses the old file until it opens it again"
    if item.path.endswith(DATABASE_LOG_SUFFIXES):
        what = "it may write over the restored database: stop it, then restore once more"
    return f"open in {program}: {path_text(item.path)}; {what}"
