"""The sizes of a store, for people and for programs; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any

from treesnap.cli.json_forms import path_fields
from treesnap.cli.text_forms import added_text, count_text, short_id, size_text, title_of
from treesnap.errors import printable

if TYPE_CHECKING:
    from treesnap.results import StatsResult


def fields(result: StatsResult) -> dict[str, Any]:
    """Returns all numbers, each root, and each snapshot of the root."""
    tables = ("by_root", "by_snapshot")
    return {
        **{
            field.name: getattr(result, field.name)
            for field in fields_of(result)
            if field.name not in tables
        },
        "dedup_ratio": _rounded(result.dedup_ratio),
        "compression_ratio": _rounded(result.compression_ratio),
        "by_root": [
            {
                **path_fields(item.root, "root"),
                "snapshots": item.snapshots,
                "logical_bytes": item.logical_bytes,
                "unique_bytes": item.unique_bytes,
            }
            for item in result.by_root
        ],
        "by_snapshot": [
            {
                "id": item.snapshot.id,
                "logical_bytes": item.snapshot.record.totals.size_bytes,
                "added_bytes": item.snapshot.record.added_bytes,
                "unique_bytes": item.unique_bytes,
            }
            for item in result.by_snapshot
        ],
    }


def lines(result: StatsResult, store_path: str, *, with_snapshots: bool) -> Iterator[str]:
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
    yield from _root_lines(result)
    if with_snapshots:
        yield from _snapshot_lines(result)


def _root_lines(result: StatsResult) -> Iterator[str]:
    if result.by_root:
        yield ""
        head = ("snapshots", "full copies", "unique", "root")
        rows = [
            (
                f"{item.snapshots:,}",
                size_text(item.logical_bytes),
                size_text(item.unique_bytes),
                printable(item.root),
            )
            for item in result.by_root
        ]
        yield from _table([head, *rows])


def _snapshot_lines(result: StatsResult) -> Iterator[str]:
    if result.by_snapshot:
        yield ""
        head = ("full copy", "added", "unique", "snapshot")
        rows = [
            (
                size_text(item.snapshot.record.totals.size_bytes),
                added_text(item.snapshot),
                size_text(item.unique_bytes),
                f"{short_id(item.snapshot.id)}  {title_of(item.snapshot)}".rstrip(),
            )
            for item in result.by_snapshot
        ]
        yield from _table([head, *rows])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields rows in columns: numbers to the right, what they are about at the end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[-1]])


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


def _ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f} to 1"
