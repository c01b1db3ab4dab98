"""What ``verify`` found and repaired, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from treesnap.cli.json_forms import path_fields
from treesnap.cli.text_forms import count_text, short_id, size_text
from treesnap.errors import printable

if TYPE_CHECKING:
    from treesnap.results import Partial, Problem, RecoveredObject, VerifyResult


_SHOWN_MAX = 20
"""Paths printed for one snapshot; ``--json`` has more."""


def fields(result: VerifyResult) -> dict[str, Any]:
    """Returns what was checked, every problem, and what was done about it."""
    return {
        "ok": result.ok,
        "problems": [_problem_fields(problem) for problem in result.problems],
        "left": [_problem_fields(problem) for problem in result.left],
        "partial": [_partial_fields(item) for item in result.partial],
        "repaired": list(result.repaired),
        "recovered": [_recovered_fields(item) for item in result.recovered],
        "snapshots": result.snapshots,
        "objects": result.objects,
        "read_bytes": result.read_bytes,
    }


def _problem_fields(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "message": problem.message,
        "where": printable(problem.where),
        "snapshot_ids": list(problem.snapshot_ids),
        "paths": [path_fields(path) for path in problem.paths],
        "path_count": problem.path_count,
    }


def _partial_fields(item: Partial) -> dict[str, Any]:
    return {
        "id": item.snapshot_id,
        "name": item.name,
        **path_fields(item.root, "root"),
        "paths": [path_fields(path) for path in item.paths],
        "path_count": item.path_count,
    }


def _recovered_fields(item: RecoveredObject) -> dict[str, Any]:
    return {
        "object": item.object_id,
        **path_fields(item.root, "root"),
        **path_fields(item.path),
    }


def lines(result: VerifyResult) -> Iterator[str]:
    """Yields every problem, what was done, which snapshots are partial, and the verdict."""
    for problem in result.problems:
        yield f"problem: {printable(problem.message)} [{problem.code}, {printable(problem.where)}]"
    for action in result.repaired:
        yield f"repaired: {printable(action)}"
    for root, path in dict.fromkeys((item.root, item.path) for item in result.recovered):
        yield f"recovered: what is in {_inside(root, path)}"
    for item in result.partial:
        name = f" ({printable(item.name)})" if item.name is not None else ""
        yield f"partial: snapshot {short_id(item.snapshot_id)}{name} of {printable(item.root)}"
        yield from _path_lines(item.paths, item.path_count)
    checked = (
        f"{count_text(result.snapshots, 'snapshot')}, {count_text(result.objects, 'object')}, "
        f"{size_text(result.read_bytes)} read"
    )
    verdict = "No problems" if result.ok else count_text(len(result.problems), "problem")
    if result.repaired:
        verdict += f" found, {len(result.left):,} left"
    yield f"{verdict} in {checked}"


def _path_lines(paths: Sequence[bytes], count: int) -> Iterator[str]:
    for path in paths[:_SHOWN_MAX]:
        yield f"  cannot be restored: {printable(path) or '.'}"
    if count > _SHOWN_MAX:
        yield f"  cannot be restored: {count - _SHOWN_MAX:,} more"


def _inside(root: bytes, path: bytes) -> str:
    return printable(root + b"/" + path if path else root)
