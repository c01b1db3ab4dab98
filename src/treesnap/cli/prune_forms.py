"""What ``prune`` removed or would remove, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treesnap.cli.json_forms import snapshot_fields
from treesnap.cli.text_forms import count_text, list_lines
from treesnap.results import PruneResult


def fields(result: PruneResult) -> dict[str, Any]:
    """Returns all snapshots, kept ones with the reasons."""
    return {
        "removed": [snapshot_fields(snapshot) for snapshot in result.removed],
        "kept": [
            {**snapshot_fields(snapshot), "reasons": list(result.reasons[snapshot.id])}
            for snapshot in result.kept
        ],
        "dry_run": result.dry_run,
    }


def lines(result: PruneResult) -> Iterator[str]:
    """Yields a table, newest first: what becomes of each snapshot, and why."""
    goes = "would go" if result.dry_run else "removed"
    snapshots = sorted(
        [*result.kept, *result.removed], key=lambda item: item.sequence, reverse=True
    )
    why = [", ".join(result.reasons.get(item.id, ())) for item in snapshots]
    width = max(map(len, why), default=0)
    for reason, row in zip(why, list_lines(snapshots, with_roots=False), strict=True):
        yield f"{'keep' if reason else goes:<9} {reason.ljust(width)}  {row}".rstrip()
    removed = "would be removed" if result.dry_run else "removed"
    yield (f"{count_text(len(result.removed), 'snapshot')} {removed}, {len(result.kept):,} kept")
