"""What several commands print as JSON: the form is made by ``presentation``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treesnap.core.model.errors import printable
from treesnap.core.model.presentation import Fields, fields_of, json_fields, json_value, path_fields

if TYPE_CHECKING:
    from treesnap.cli.failure import Failure
    from treesnap.core.model.entries import Entry
    from treesnap.core.model.results import RestoreResult
    from treesnap.core.model.snapshots import Snapshot

__all__ = [
    "Fields",
    "entry_fields",
    "failure_fields",
    "fields_of",
    "json_fields",
    "json_value",
    "path_fields",
    "restore_fields",
    "snapshot_fields",
]


def failure_fields(failure: Failure) -> Fields:
    """Returns an error."""
    path = {"path": None} if failure.path is None else path_fields(failure.path)
    return {
        "code": failure.code,
        "message": printable(failure.message),
        "hint": failure.hint,
        "exit_code": failure.exit_code,
        **path,
        **({"paths": json_value(failure.paths)} if failure.paths else {}),
    }


def snapshot_fields(snapshot: Snapshot) -> Fields:
    """Returns a snapshot as ``list`` has it."""
    return snapshot.to_dict()


def entry_fields(entry: Entry) -> Fields:
    """Returns an entry without its name; fields that its kind lacks are left out."""
    return entry.details()


def restore_fields(result: RestoreResult) -> Fields:
    """Returns the outcome of ``restore``, ``undo`` and ``redo``, its changes without entries."""
    return result.to_dict()
