"""``snap gc``, ``stats`` and ``verify``: the whole store, its size and its soundness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from treesnap.cli.checks import print_check, read_data_option
from treesnap.cli.command import command, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import added_text, aligned, short_id, title_of
from treesnap.cli.parameters import SamplePart
from treesnap.core.model.errors import WarningCode, printable
from treesnap.core.model.quantities import count_text, size_text

if TYPE_CHECKING:
    from treesnap.core.model.results import GcResult, StatsResult


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
    "verify",
    examples=["snap verify", "snap verify --read-data --json", "snap verify --sample 1/7"],
)
@read_data_option
@click.option(
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
