"""What ``doctor`` found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treesnap.cli.json_forms import path_fields
from treesnap.cli.text_forms import count_text
from treesnap.errors import printable
from treesnap.results import DoctorResult, Unfinished, UnfinishedWork

_WORDS = {
    UnfinishedWork.RESTORE: "restore",
    UnfinishedWork.EXPORT: "restore to another directory, with the history",
    UnfinishedWork.COLLECTION: "garbage collection",
    UnfinishedWork.PLAN: "plan",
}
_UNITS_S = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


def fields(result: DoctorResult) -> dict[str, Any]:
    """Returns everything that was found."""
    return {
        "ok": not result.unfinished,
        "forgotten": result.forgotten,
        "unfinished": [_unfinished_fields(item) for item in result.unfinished],
    }


def _unfinished_fields(item: Unfinished) -> dict[str, Any]:
    return {
        "work": item.work.value,
        **(path_fields(item.root, "root") if item.root is not None else {"root": None}),
        "resolution": item.resolution,
        "blocked": item.blocked,
        "started_at_ns": item.started_at_ns,
        "target_id": item.target_id,
        "safety_id": item.safety_id,
        "paths": item.paths,
        "done": item.done,
        "changed": [path_fields(path) for path in item.changed],
    }


def lines(result: DoctorResult) -> Iterator[str]:
    """Yields a paragraph for each thing that was found."""
    if result.forgotten:
        yield "Forgot the interrupted restore; the tree is as it was found"
    if not result.unfinished:
        yield "Nothing is unfinished"
    for item in result.unfinished:
        yield _headline(item, result.looked_at_ns)
        if item.target_id is not None and item.safety_id is not None:
            yield f"  from {item.safety_id[:12]} to {item.target_id[:12]}: {_counts(item)}"
        yield f"  {item.resolution}"


def _headline(item: Unfinished, now_ns: int) -> str:
    of = f" of {printable(item.root)!r}" if item.root is not None else ""
    text = f"Interrupted {_WORDS[item.work]}{of}"
    if item.started_at_ns is None:
        return text
    return f"{text}, begun {age_text(now_ns - item.started_at_ns)}"


def _counts(item: Unfinished) -> str:
    text = f"{item.done:,} of {count_text(item.paths, 'path')} done"
    return text + (f", {len(item.changed):,} changed by somebody else" if item.changed else "")


def age_text(age_ns: int) -> str:
    """Returns how long ago something was, roughly; clocks may have been changed since."""
    if age_ns < 0:
        return "in the future, by this clock"
    age_s = age_ns // 10**9
    for unit, size_s in _UNITS_S:
        if age_s >= size_s:
            return f"{count_text(age_s // size_s, unit)} ago"
    return "just now"
