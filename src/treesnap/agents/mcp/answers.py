"""What the tools of ``snap mcp`` answer: the records of the library as pydantic models; pure.

The models are the output schemas of the tools. They are made of records, whose fields of the same
names they take. A field that is None is left out. Paths are text: bytes that are not UTF-8 are
shown as escapes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from treesnap.core.model.entries import Entry, EntryKind
from treesnap.core.model.errors import printable
from treesnap.core.model.reserved_tags import own_tags
from treesnap.core.model.results import FoundPath, RestoreResult
from treesnap.core.model.snapshots import Snapshot, utc_text

SHOWN_MAX = 100
"""Items of a list that has no pages; the others are counted."""
SHOWN_IN_ITEM_MAX = 5
"""The same of a list in an item of a page."""


def path_text(path: bytes) -> str:
    """Returns a path in the root as text; the root itself is a dot."""
    return text_of(path) or "."


def text_of(raw: bytes) -> str:
    """Returns bytes as text: exactly if they are UTF-8, else with escapes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return printable(os.fsdecode(raw))


PathText = Annotated[str, BeforeValidator(path_text)]


def _absent(description: str) -> Any:
    return Field(default=None, description=description)


def shown(most: int = SHOWN_MAX, **lists: Sequence[object] | None) -> dict[str, Any]:
    """Returns fields with the first items of lists, and with how many more there are, or None."""
    fields: dict[str, Any] = {}
    for name, items in lists.items():
        fields[name] = items and items[:most]
        fields[f"{name}_left_out"] = max(0, len(items or ()) - most) or None
    return fields


class ToolAnswer(BaseModel, from_attributes=True):
    """Base of all answers."""

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Returns an answer; records become models."""
        return cls(**fields)

    @model_serializer(mode="wrap")
    def _without_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return {name: value for name, value in fields.items() if value is not None}


class Page(ToolAnswer):
    """A part of a list."""

    listed: ClassVar[str]
    """The field with the items."""
    total: int = Field(description="How many items there are on all pages.")
    next_offset: int | None = _absent("The offset of the next page, if any.")

    @classmethod
    def cut(cls, items: Sequence[object], limit: int, offset: int, **more: object) -> Self:
        """Returns some items of a list, with more fields."""
        end = offset + limit
        next_offset = end if end < len(items) else None
        fields = {cls.listed: items[offset:end], "total": len(items), "next_offset": next_offset}
        return cls.of(**fields, **more)


class SnapshotFields(ToolAnswer):
    """A snapshot."""

    id: str
    created_at: str
    kind: str
    label: str | None = None
    name: str | None = None
    session: str | None = None
    step: int | None = None
    tags: dict[str, str]
    scope: list[PathText] | None = _absent("Its first paths, if it is not of the whole root.")
    scope_left_out: int | None = _absent("How many more.")
    complete: bool
    pinned: bool
    files: int
    size_bytes: int

    @model_validator(mode="before")
    @classmethod
    def _of_record(cls, snapshot: Snapshot) -> dict[str, Any]:
        record = snapshot.record
        return {
            **record._asdict(),
            **shown(SHOWN_IN_ITEM_MAX, scope=record.scope),
            **record.totals._asdict(),
            "id": snapshot.id,
            "created_at": utc_text(record.created_at_ns),
            "tags": own_tags(snapshot),
            "complete": snapshot.complete,
            "pinned": snapshot.pinned,
        }


class SnapshotPage(Page):
    """Snapshots, newest first."""

    listed = "snapshots"
    snapshots: list[SnapshotFields]
    damaged: int = Field(description="Snapshots that cannot be read, in none of the pages.")


class SkippedFields(ToolAnswer):
    """A path that a snapshot does not hold, or that a restore left alone."""

    path: PathText
    reason: Annotated[str, BeforeValidator(lambda reason: reason.word)]


class CheckpointAnswer(ToolAnswer, extra="allow"):
    """A snapshot that was taken, or for a hook its reply alone."""

    snapshot: SnapshotFields | None = None
    skipped: list[SkippedFields] | None = _absent("Paths that it does not hold.")
    skipped_left_out: int | None = _absent("How many more.")


class ChangeFields(ToolAnswer):
    """A path that differs: added, removed, modified, type or metadata."""

    path: PathText
    change: str


class ChangePage(Page):
    """Changes by path."""

    listed = "changes"
    old_id: str | None = _absent("Absent where there is no snapshot yet.")
    new_id: str | None = _absent("Absent where it is the live tree.")
    changes: list[ChangeFields]
    patch: str | None = _absent("The changes of this page as unified diffs.")
    patch_is_cut: bool | None = None


class EntryFields(ToolAnswer):
    """One name of a directory."""

    path: PathText
    kind: str
    size_bytes: int | None = None
    mode: str | None = None
    target: str | None = _absent("Where a symbolic link leads.")
    reason: str | None = _absent("Why it was not captured.")

    @model_validator(mode="before")
    @classmethod
    def _of_record(cls, entry: Entry) -> dict[str, Any]:
        """Leaves out what its kind lacks."""
        kind = EntryKind(entry.kind)
        fields = {"path": entry.name, "kind": kind.name.lower()}
        if entry.is_skipped:
            return {**fields, "reason": entry.skip_reason.word}
        return {
            **fields,
            "mode": f"{entry.mode:04o}",
            "size_bytes": entry.size if kind is EntryKind.FILE else None,
            "target": text_of(entry.target) if kind is EntryKind.SYMLINK else None,
        }


class EntryPage(Page):
    """Entries of a directory, relative to it."""

    listed = "entries"
    id: str
    entries: list[EntryFields]


class FileAnswer(ToolAnswer):
    """A part of a file."""

    id: str
    path: PathText
    size_bytes: int = Field(description="Of the whole file.")
    encoding: str = Field(description="utf-8, or base64 where the bytes are not text.")
    content: str
    next_offset: int | None = _absent("Where the next part begins, if any.")


class FoundFields(ToolAnswer):
    """A path that some snapshots hold."""

    path: PathText
    snapshot_ids: list[str] = Field(description="The newest few.")
    snapshots: int

    @model_validator(mode="before")
    @classmethod
    def _of_record(cls, found: FoundPath) -> dict[str, Any]:
        ids = found.snapshot_ids
        shown_ids = ids[:SHOWN_IN_ITEM_MAX]
        return {"path": found.path, "snapshot_ids": shown_ids, "snapshots": len(ids)}


class FoundPage(Page):
    """Paths that match a pattern."""

    listed = "paths"
    paths: list[FoundFields]


class RestoreAnswer(ToolAnswer):
    """What a restore did, or would do."""

    id: str = Field(description="The snapshot that the root equals after it.")
    restored: int = Field(description="Paths that are put back as they were.")
    created: int
    deleted: int
    unchanged: int
    changes: list[ChangeFields]
    changes_left_out: int | None = _absent("How many more there are.")
    untouched: list[SkippedFields] = Field(description="Paths that are left alone.")
    untouched_left_out: int | None = _absent("How many more there are.")
    missing: list[PathText] | None = _absent(
        "Paths that are not there, and that could not be read when the snapshot was taken."
    )
    safety_id: str | None = _absent("The snapshot of the state before.")
    open_files: list[PathText] | None = _absent(
        "Files that were replaced while a process had them open."
    )

    @classmethod
    def of_result(cls, result: RestoreResult, **more: str | None) -> Self:
        """Returns the outcome of a restore, with more fields."""
        fields = result._asdict() | {
            **shown(changes=result.changes, untouched=result.untouched),
            "id": result.snapshot.id,
            "missing": list(result.missing[:SHOWN_MAX]) or None,
            "open_files": [item.path for item in result.open_files[:SHOWN_MAX]] or None,
        }
        return cls.of(**fields, **more)


class PlanAnswer(RestoreAnswer):
    """What a restore would do."""

    token: str | None = _absent("For restore_apply; absent where that is off.")
    next_step: str
