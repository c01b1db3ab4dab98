"""``snap gc``, ``stats``, ``du``, ``verify`` and ``doctor``: sizes, soundness, interrupted work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from treesnap.cli.checks import print_check
from treesnap.cli.command import command, pass_invocation
from treesnap.cli.declarations import option
from treesnap.cli.failure import ExitCode, hint_of
from treesnap.cli.hints import advising_on_paths
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import read_data_option, session_option
from treesnap.cli.output.as_text import added_text, aligned, short_id, title_of
from treesnap.cli.output.terminal import Cell, Terminal, table
from treesnap.cli.parameters import SamplePart, WholeNumber
from treesnap.core import features
from treesnap.core.model.errors import ErrorCode, WarningCode, printable, quoted
from treesnap.core.model.presentation import Fields
from treesnap.core.model.quantities import count_text, size_text
from treesnap.core.model.results import DoctorResult, WorkKind
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.model.results import GcResult, GroupSpace, PathSpace, StatsResult

_WORK = {
    WorkKind.RESTORE: "restore",
    WorkKind.EXPORT: "restore to another directory, with the history",
    WorkKind.COLLECTION: "garbage collection",
    WorkKind.PLAN: "plan",
    WorkKind.STEP: "step",
    WorkKind.MAINTENANCE: "automatic maintenance",
}
_LACKING = {
    "companions": "no watcher answers commands: each starts its own Python, and walks the tree",
    "helpers": "one process reads and writes large trees",
    "mounts": "file systems in a tree are found by their device numbers alone, and none is mounted",
    "notices": "nothing can watch: each command walks the tree",
    "processes": "files that programs have open are not known",
}
"""What it means that the system has no such thing."""
_CAPABILITIES = {
    "folds_case": "names that differ in case alone are one name",
    "folds_accents": "names that differ in the form of accents alone are one name",
    "keeps_spelling": "a name is listed as it was written",
    "any_bytes": "names need not be UTF-8",
    "name_size_max": "bytes of a name at most",
    "modes": "files have permissions of their own",
    "attributes": "files have extended attributes",
    "hard_links": "hard links",
    "symlinks": "symbolic links",
    "fifos": "named pipes",
    "holes": "no space is taken where nothing was written",
    "clones": "files share their blocks",
    "birth_times": "a directory tells when it was made",
    "time_step_ns": "nanoseconds from one modification time to the next",
    "exchange": "two names change places in one step; else one is absent for a moment",
    "rename_to_absent": "a rename replaces nothing that another process makes meanwhile",
    "locks": "files can be locked, as a store needs it",
    "directory_sync": "the names of one directory can be made durable",
}
_UNITS_S = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
_DEPTH_MAX = 100


@command("gc", examples=["snap gc", "snap gc --dry-run --json"])
@click.option("--dry-run", is_flag=True, help="Print what would be freed, and free nothing.")
@pass_invocation
def gc(invocation: Invocation, *, dry_run: bool) -> None:
    """Free the space of everything that no snapshot needs.

    It may run at any time, beside any other command.
    """
    with invocation.open(needs_root=False) as handle:
        result = handle.gc(dry_run=dry_run)
    if result.postponed is not None:
        invocation.output.note(f"Some of what is not needed stays for now: {result.postponed}")
    if result.damaged:
        shown = ", ".join(map(short_id, result.damaged))
        invocation.output.note(
            f"Kept what can still be read of damaged snapshots ({shown}); "
            "'snap verify --repair' is next"
        )
    invocation.output.result("gc", result.to_dict, [_gc_line(result)])
    if not result.freed_bytes:
        invocation.output.note(*_what_keeps(result, invocation.command_text("prune", "--dry-run")))


def _gc_line(result: GcResult) -> str:
    verb = "Would free" if result.dry_run else "Freed"
    return (
        f"{verb} {size_text(result.freed_bytes)}: "
        f"{count_text(result.removed_objects, 'object')} removed, "
        f"{count_text(result.removed_packs, 'pack')} removed, "
        f"{count_text(result.rewritten_packs, 'pack')} rewritten, "
        f"{count_text(result.kept_objects, 'object')} kept"
    )


def _what_keeps(result: GcResult, prune: str) -> Iterator[str]:
    """Yields why a collection freed nothing, and what to do."""
    if result.newer:
        yield "To free anything, update treesnap: what a newer one wrote may need everything"
        return
    if result.waste_bytes:
        yield (
            f"{size_text(result.waste_bytes)} in the store is not needed, and stays until it is a "
            "fifth of the pack in which it lies"
        )
    if result.snapshots:
        objects = count_text(result.kept_objects, "object is", "objects are")
        snapshots = count_text(result.snapshots, "snapshot")
        yield f"{objects} needed by {snapshots} of {count_text(result.roots, 'root')}"
        yield f"To free more, remove snapshots first; which ones could go: {prune}"
    else:
        yield "The store has no snapshots, and nothing to free"


@command(
    "stats",
    prints_only=True,
    examples=["snap stats --snapshots", "snap --store backup stats --json"],
)
@click.option("--snapshots", "with_snapshots", is_flag=True, help="Each snapshot of this root too.")
@pass_invocation
def stats(invocation: Invocation, *, with_snapshots: bool) -> None:
    """Show the sizes of the store, its roots, and this root's history.

    What is unique to a root or a snapshot would be free without it.
    """
    with invocation.open() as handle:
        result = handle.stats()
    if result.damaged_snapshots:
        invocation.output.warn(
            WarningCode.SNAPSHOT_DAMAGED,
            f"{count_text(result.damaged_snapshots, 'snapshot')} could not be read whole: what "
            "they need is counted as waste",
        )
    lines = _stats_lines(result, handle.store_path, with_snapshots=with_snapshots)
    invocation.output.result("stats", result.to_dict, lines)


def _stats_lines(result: StatsResult, store_path: str, *, with_snapshots: bool) -> Iterator[str]:
    """Yields facts, one a line, a table of roots, and one of snapshots if wanted."""
    facts = {
        "store": printable(store_path),
        "roots": f"{result.roots:,}",
        "snapshots": f"{result.snapshots:,}",
        "of this root": f"{result.root_snapshots:,}",
        "as full copies": size_text(result.logical_bytes),
        "objects": f"{result.objects:,}",
        "uncompressed": size_text(result.raw_bytes),
        "compressed": size_text(result.stored_bytes),
        "deduplication": _ratio_text(result.dedup_ratio),
        "compression": _ratio_text(result.compression_ratio),
        "waste": size_text(result.waste_bytes),
        "on disk": f"{size_text(result.disk_bytes)} in {count_text(result.files, 'file')}",
        "plan output": size_text(result.output_bytes),
        "packs": f"{result.packs:,}",
    }
    for name, value in facts.items():
        yield f"{name + ':':<16}{value}"
    yield from _table(
        ("snapshots", "full copies", "unique", "root"),
        [
            (
                f"{item.snapshots:,}",
                size_text(item.logical_bytes),
                size_text(item.unique_bytes),
                printable(item.root),
            )
            for item in result.by_root
        ],
    )
    if with_snapshots:
        yield from _table(
            ("full copy", "added", "unique", "snapshot"),
            [
                (
                    size_text(item.snapshot.record.totals.size_bytes),
                    added_text(item.snapshot),
                    size_text(item.unique_bytes),
                    f"{short_id(item.snapshot.id)}  {title_of(item.snapshot)}".rstrip(),
                )
                for item in result.by_snapshot
            ],
        )


def _ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f} to 1"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields rows in columns, if there are any: numbers to the right, then their subject."""
    if rows:
        yield ""
        yield from aligned([head, *rows], to_the_right=range(len(head) - 1))


@command(
    "du",
    prints_only=True,
    examples=["snap du", "snap du latest~5 data --depth 2", "snap du --sessions --json"],
)
@click.argument("ref", required=False)
@click.argument("path", required=False)
@option(
    "-d",
    "--depth",
    type=WholeNumber(min=0, max=_DEPTH_MAX),
    default=1,
    metavar="N",
    help="How deep below PATH [1].",
)
@click.option("--sessions", is_flag=True, help="The sessions of this root instead.")
@session_option
@pass_invocation
def du(
    invocation: Invocation, *, ref: str | None, path: str | None, depth: int, sessions: bool
) -> None:
    """Show the space that a snapshot takes, by path.

    Of the newest snapshot, or of REF; PATH limits it. Columns: the size of the files,
    what they take in the store, how much of that is in this snapshot only and would
    be free without it, and the path. A content that several paths have counts once.
    """
    if sessions and ref is not None:
        raise click.UsageError("--sessions is about all snapshots; leave REF and PATH out")
    fields: Fields
    with invocation.open() as handle:
        if sessions:
            groups = handle.du_sessions()
            fields = {"sessions": groups}
        else:
            target = handle.root if path is None else invocation.absolute(path, handle.root)
            words = [ref] if ref is not None and path is None else []
            with advising_on_paths(invocation, handle, words, "du", "latest"):
                snapshot = handle.resolve(
                    ref or "latest", session=invocation.session, paths=[target]
                )
            paths = handle.du(snapshot.id, target, depth=depth)
            fields = {"id": snapshot.id, "paths": paths}
        terminal = invocation.output.terminal(handle.context.clock_ns())
    lines = _session_lines(groups, terminal) if sessions else _path_lines(paths, terminal)
    invocation.output.result("du", lambda: fields, lines)


def _path_lines(paths: Sequence[PathSpace], terminal: Terminal) -> Iterator[str]:
    rows = [
        (
            Cell(size_text(item.size_bytes)),
            Cell(size_text(item.stored_bytes)),
            Cell(size_text(item.unique_bytes)),
            Cell(printable(item.path_text) + ("/" if item.path and item.is_directory else "")),
        )
        for item in paths
    ]
    return table(rows, terminal, (0, 1, 2), ("size", "stored", "only here", "path"))


def _session_lines(groups: Sequence[GroupSpace], terminal: Terminal) -> Iterator[str]:
    rows = [
        (
            Cell(f"{item.snapshots:,}"),
            Cell(size_text(item.logical_bytes)),
            Cell(size_text(item.unique_bytes)),
            Cell(printable(item.name) or "(no session)"),
        )
        for item in groups
    ]
    return table(rows, terminal, (0, 1, 2), ("snapshots", "full copies", "only here", "session"))


@command(
    "verify",
    examples=["snap verify", "snap verify --read-data --json", "snap verify --sample 1/7"],
)
@read_data_option
@option(
    "--sample",
    type=SamplePart(),
    metavar="N/T",
    help="Read the N-th of T parts of the data: T runs read everything.",
)
@click.option("--repair", is_flag=True, help="Repair what can be repaired, list what cannot.")
@pass_invocation
def verify(
    invocation: Invocation,
    *,
    read_data: bool,
    sample: tuple[int, int] | None,
    repair: bool,
) -> None:
    """Check the store, and repair it if asked.

    Without --read-data or --sample, damage in the content of files is not looked for.
    Exits 7 when there is damage, and names the paths that cannot be restored, and what
    to type next; 3 when a newer treesnap wrote something that this one cannot judge.
    """
    with invocation.open(needs_root=False) as handle:
        result = handle.verify(read_data=read_data, repair=repair, sample=sample)
    print_check(invocation, "verify", result, again=["verify"], repair=repair)


@command("doctor", examples=["snap doctor", "snap doctor --forget"])
@click.option("--forget", is_flag=True, help="Give up an interrupted restore of this root.")
@click.option(
    "--file-system",
    is_flag=True,
    help="Also try, in a new directory here, what the file system does.",
)
@pass_invocation
def doctor(invocation: Invocation, *, forget: bool, file_system: bool) -> None:
    """Show interrupted work in all roots, and what becomes of it.

    Changes nothing without --forget: 'snap status' finishes what can be finished.
    Exits 3 when something waits for a person.
    """
    invocation.output.prints_only = not forget
    with invocation.open() as handle:
        result = handle.doctor(forget=forget, file_system=file_system)
        others = [item for find in features.functions("unfinished") for item in find(handle)]
    result = result._replace(unfinished=(*result.unfinished, *others))
    invocation.output.result(
        "doctor",
        result.to_dict,
        _doctor_lines(result, invocation.program),
    )
    if result.blocked:
        click.get_current_context().exit(ExitCode.REFUSED)


def _doctor_lines(result: DoctorResult, program: str) -> Iterator[str]:
    """Yields a paragraph for each thing that was found."""
    if result.forgotten:
        yield "Forgot what was interrupted; the tree is as it was found"
    if not result.unfinished:
        yield "Nothing is unfinished"
    for item in result.unfinished:
        of = f" of {quoted(item.root)}" if item.root is not None else ""
        begun = ""
        if item.started_at_ns is not None:
            begun = f", begun {age_text(result.looked_at_ns - item.started_at_ns)}"
        yield f"Interrupted {_WORK[item.work]}{of}{begun}"
        if item.target_id is not None and item.safety_id is not None:
            changed = f", {len(item.changed):,} changed by another program" if item.changed else ""
            yield (
                f"  from {short_id(item.safety_id)} to {short_id(item.target_id)}: "
                f"{item.done:,} of {count_text(item.paths, 'path')} done{changed}"
            )
        yield f"  {item.resolution}"
        if item.work == WorkKind.PLAN:
            yield f"  hint: {hint_of(ErrorCode.PLAN_INTERRUPTED, program)}"
    if result.capabilities is not None:
        yield "The file system of this directory:"
        for name, text in _CAPABILITIES.items():
            value = getattr(result.capabilities, name)
            told = f"{value:,}" if type(value) is int else "yes" if value else "no"
            yield f"  {told:>13}  {text}"
    missing = [name for name, is_there in result.system.items() if not is_there]
    if missing:
        yield "Not to be had on this system:"
        yield from (f"  {name:>13}  {_LACKING[name]}" for name in missing)
    yield f"Directories are looked at in {result.implementation}"


def age_text(age_ns: int) -> str:
    """Returns how long ago something was, roughly; clocks may have been changed since."""
    if age_ns < 0:
        return "in the future, by this clock"
    age_s = age_ns // 10**9
    for unit, size_s in _UNITS_S:
        if age_s >= size_s:
            return f"{count_text(age_s // size_s, unit)} ago"
    return "just now"
