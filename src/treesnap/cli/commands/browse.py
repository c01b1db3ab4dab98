"""``snap list``, ``show``, ``ls``, ``cat`` and ``find``: what is in the history."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator

from treesnap.cli.declarations import argument, command, option
from treesnap.cli.hints import advising_on_paths
from treesnap.cli.invocation import Invocation
from treesnap.cli.listing import Selection, snapshot_lines
from treesnap.cli.options import filter_options, session_option
from treesnap.cli.output.as_text import (
    gap_text,
    others_text,
    path_text,
    short_id,
    skipped_text,
    tag_texts,
)
from treesnap.core.model.entries import Entry, EntryKind
from treesnap.core.model.errors import path_fields, printable
from treesnap.core.model.presentation import Fields
from treesnap.core.model.quantities import count_text, size_text, time_text
from treesnap.core.model.reserved_tags import (
    TEXTS,
    counter_tags,
    counters_in,
    is_retired,
    own_tags,
    rollback_count,
    rollback_reason,
    stated_facts,
)
from treesnap.core.model.snapshots import SnapshotList
from treesnap.core.model.type_names import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treesnap.core.codec.root_files import Gap
    from treesnap.core.handle import Handle
    from treesnap.core.model.entries import Skipped
    from treesnap.core.model.results import FoundPath
    from treesnap.core.model.snapshots import Snapshot

_FILE_TYPES = {
    EntryKind.FILE: stat.S_IFREG,
    EntryKind.DIRECTORY: stat.S_IFDIR,
    EntryKind.SYMLINK: stat.S_IFLNK,
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryKind.BLOCK_DEVICE: stat.S_IFBLK,
}


@command(
    "list",
    prints_only=True,
    is_paged=True,
    examples=[
        "snap list",
        "snap list -n 5 --since yesterday",
        "snap list --all --tag release --json",
    ],
)
@filter_options
@option("--all", "all_roots", is_flag=True, help="Snapshots of all roots of the store.")
def list_snapshots(
    invocation: Invocation, /, *, session: str | None, all_roots: bool, **filters: Any
) -> None:
    """List the root's snapshots, newest first.

    Columns: id, time, bytes that it added to the store, kind, [name] and label. In a
    pipe there are flags before the name (P pinned, ! incomplete), and no head.
    """
    with invocation.open(progress=False, needs_root=not all_roots) as handle:
        selection = Selection(handle, session=session, **filters)
        listed = handle.list(all_roots=all_roots)
        gaps = _gaps(handle, session) if session is not None else ()
    snapshots = SnapshotList(selection.of(listed), listed.damaged, listed.newer)
    if not (snapshots or snapshots.damaged or snapshots.newer):
        of_root = "" if all_roots else f" of {handle.root}"
        invocation.output.note(f"{selection.none_found()}{of_root} in {handle.store_path}")
    if snapshots.damaged:
        repair = invocation.command_text("verify", "--repair")
        delete = invocation.command_text("delete", "ID")
        invocation.output.note(f"To repair or move away what is damaged: {repair}")
        invocation.output.note(f"To delete it: {delete}")
    invocation.output.note(*map(gap_text, gaps))
    invocation.output.result(
        "list",
        lambda: {
            "snapshots": snapshots,
            "damaged": snapshots.damaged,
            "newer": snapshots.newer,
            "gaps": gaps,
        },
        snapshot_lines(invocation, handle, snapshots, with_roots=all_roots),
    )


def _gaps(handle: Handle, session: str) -> tuple[Gap, ...]:
    from treesnap.core.ops.history.log import recorded_gaps

    return recorded_gaps(handle.context, session)


@command(
    "show",
    prints_only=True,
    examples=["snap show latest", "snap show step:3 --session build-7 --json"],
)
@argument("ref")
@session_option
def show(invocation: Invocation, *, ref: str) -> None:
    """Show the metadata of a snapshot.

    Paths that it does not hold are listed, each with the reason.
    """
    with invocation.open(progress=False) as handle:
        snapshot = handle.show(ref, session=invocation.session)
        skipped: tuple[Skipped, ...] = ()
        if snapshot.record.totals.skipped:
            skipped = handle.skipped(snapshot.id)
    invocation.output.result(
        "show", lambda: _show_fields(snapshot, skipped), _show_lines(snapshot, skipped)
    )


def _show_fields(snapshot: Snapshot, skipped: Iterable[Skipped]) -> Fields:
    shown = ("parent", "host", "totals", "rules", "unstable")
    more = {name: getattr(snapshot.record, name) for name in shown}
    return {**snapshot.to_dict(), **more, "skipped": skipped}


def _show_lines(snapshot: Snapshot, skipped: Iterable[Skipped]) -> Iterator[str]:
    """Yields the facts of a snapshot, one a line, then what it does not hold."""
    record, totals = snapshot.record, snapshot.record.totals
    stated = stated_facts(snapshot)
    facts = {
        "id": snapshot.id,
        "root": printable(record.root_path),
        "created": time_text(record.created_at_ns),
        "kind": record.kind.value,
        "name": record.name,
        "label": snapshot.label,
        "session": record.session,
        "step": record.step,
        "step name": stated.get("step_name"),
        "phase": stated.get("phase"),
        "type": stated.get("type"),
        "reason": stated.get("reason"),
        "tool": stated.get("source_tool"),
        "counters": ", ".join(tag_texts(counters_in(stated))) or None,
        "rollbacks": rollback_count(snapshot) or None,
        "rolled back": rollback_reason(snapshot),
        "retired": "yes" if is_retired(snapshot) else None,
        "tags": ", ".join(tag_texts(_other_tags(snapshot))) or None,
        "host": record.host or None,
        "pinned": "yes" if snapshot.pinned else "no",
        "complete": "yes" if snapshot.complete else f"no, {totals.incomplete} unreadable",
        "holds": (
            f"{count_text(totals.files, 'file')}, "
            f"{count_text(totals.directories, 'directory', 'directories')}, "
            f"{others_text(totals.others)}, {size_text(totals.size_bytes)}"
        ),
        "added": None if record.added_bytes is None else size_text(record.added_bytes),
        "root hash": snapshot.root_hash,
        "parent": record.parent,
    }
    for name, value in facts.items():
        if value is not None:
            yield f"{name + ':':<11}{printable(str(value))}"
    for path in record.scope or ():
        yield f"{'scope:':<11}{path_text(path)}"
    for path in record.unstable:
        yield f"{'unstable:':<11}{path_text(path)}"
    for item in skipped:
        yield f"{'not held:':<11}{skipped_text(item)}"


def _other_tags(snapshot: Snapshot) -> dict[str, str]:
    """Returns the caller's tags that no line of their own shows, as one that a fact hides."""
    stated = stated_facts(snapshot)
    shown = {**{name: stated.get(name) for name in TEXTS}, **counter_tags(counters_in(stated))}
    return {key: value for key, value in own_tags(snapshot).items() if shown.get(key) != value}


@command(
    "ls",
    prints_only=True,
    examples=["snap ls latest", "snap ls -l -R latest~1 src", "snap ls v1 ."],
)
@argument("ref")
@argument("path", required=False)
@option("-l", "--long", is_flag=True, help="Modes, owners, sizes, times and link targets.")
@option("-R", "--recursive", is_flag=True, help="Everything below, as paths.")
@session_option
def ls(
    invocation: Invocation,
    *,
    ref: str,
    path: str | None,
    long: bool,
    recursive: bool,
) -> None:
    """List a directory of a snapshot.

    Without PATH, list the root. Names that the snapshot knows of but does not hold
    are listed with -l only.
    """
    with invocation.open(progress=False) as handle:
        target = handle.root if path is None else invocation.absolute(path, handle.root)
        words = [ref] if path is None else []
        with advising_on_paths(invocation, handle, words, "ls", "latest"):
            snapshot = handle.resolve(ref, session=invocation.session, paths=[target])
        entries = handle.ls(snapshot.id, target, recursive=recursive)
    invocation.output.result(
        "ls",
        lambda: {
            "id": snapshot.id,
            "entries": [entry.to_dict() for entry in entries],
        },
        _long_lines(entries) if long else _short_lines(entries),
    )


def _short_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """Yields the names that the snapshot holds."""
    for entry in entries:
        if not entry.is_skipped:
            yield printable(entry.name) + ("/" if entry.is_directory else "")


def _long_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """Yields all entries, also those that the snapshot does not hold, with the reason."""
    for entry in entries:
        name = printable(entry.name)
        if entry.is_skipped:
            reason = entry.skip_reason.word
            yield f"{'?' * 10} {'':>11} {'':>12}  {'':<16}  {name} ({reason})"
            continue
        mode = stat.filemode(_FILE_TYPES[EntryKind(entry.kind)] | entry.mode)
        owner = f"{entry.uid}:{entry.gid}"
        size = str(entry.size)
        if entry.kind == EntryKind.SYMLINK:
            name += f" -> {printable(entry.target)}"
        elif entry.kind == EntryKind.DIRECTORY:
            name += "/"
        elif entry.kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}:
            size = ", ".join(str(number) for number in entry.device)
        when = time_text(entry.mtime_ns, "%Y-%m-%d %H:%M")
        yield f"{mode} {owner:>11} {size:>12}  {when:<16}  {name}"


@command(
    "cat",
    prints_only=True,
    examples=["snap cat latest notes.txt", "snap cat latest~3 data.db > old.db"],
)
@argument("ref")
@argument("path")
@session_option
def cat(invocation: Invocation, *, ref: str, path: str) -> None:
    """Print a file of a snapshot.

    Every piece is checked against its hash before it is printed. With --json the
    content is one field, in base64 unless it is UTF-8.
    """
    with invocation.open(progress=False) as handle:
        target = invocation.absolute(path, handle.root)
        snapshot = handle.resolve(ref, session=invocation.session, paths=[target])
        pieces = handle.cat(snapshot.id, target)
        invocation.output.result(
            "cat",
            lambda: {
                "id": snapshot.id,
                **path_fields(path),
                **_content_fields(b"".join(pieces)),
            },
            pieces,
        )


def _content_fields(content: bytes) -> Fields:
    try:
        return {"size": len(content), "content": content.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"size": len(content), "content_base64": b64encode(content).decode("ascii")}


@command(
    "find",
    prints_only=True,
    examples=["snap find '*.csv'", "snap find 'src/*/config.toml' --ref latest"],
)
@argument("pattern")
@option("--ref", metavar="REF", help="Only in this snapshot; print paths alone.")
@session_option
def find(invocation: Invocation, *, pattern: str, ref: str | None) -> None:
    """Find paths in all snapshots, or in one.

    PATTERN is compared with names, or with whole paths when it has a '/'.
    Columns: the newest snapshot that holds the path, how many do, the path.
    """
    with invocation.open() as handle:
        if ref is not None:
            ref = invocation.resolve(handle, ref)
        matches = handle.find(pattern, ref=ref)
    invocation.output.result(
        "find", lambda: {"paths": matches}, _find_lines(matches, with_ids=ref is None)
    )


def _find_lines(matches: Iterable[FoundPath], *, with_ids: bool) -> Iterator[str]:
    """Yields paths, each with its newest snapshot and how many hold it if wanted."""
    for item in matches:
        path = path_text(item.path)
        ids = item.snapshot_ids
        yield f"{short_id(ids[0])}  {len(ids):>4}  {path}" if with_ids else path
