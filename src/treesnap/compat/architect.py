"""Architect's checkpoint manager over snapshots: its class, its record and its constant.

A checkpoint is a snapshot with the label ``architect:checkpoint:MESSAGE`` and a step, or one
that ``snap plan run`` took after a step. Pipelines take theirs as
``PIPELINE_MILESTONES`` in ``treesnap.plans.plan`` says. ``undo`` reverts a rollback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treesnap.compat.machinery import Machinery
from treesnap.core.handle import open as open_root
from treesnap.core.model.arguments import checked_methods
from treesnap.core.model.entries import Change, ChangeKind
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import CheckpointType, fact_tags, facts_of
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.create import create
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import restore
from treesnap.plans.plan import PIPELINE_CHECKPOINT_PREFIX

CHECKPOINT_PREFIX = PIPELINE_CHECKPOINT_PREFIX

_AFTER = "after "
_SHORT_HASH_LENGTH = 7
_HASH = re.compile(r"[0-9a-f]{4,64}")
_WENT_TO = re.compile(r"before \w+(?: to)? ([0-9a-f]{12})")
"""The label of a safety snapshot, which names the snapshot that was restored."""


@dataclass(frozen=True)
class Checkpoint:
    """A state of the workspace to return to."""

    step: int
    commit_hash: str
    """Id of the snapshot: 64 hex digits."""
    message: str
    """The message given to ``create``, else ``step-N``; for a plan the name of the step."""
    timestamp: float
    """Seconds since 1970 in UTC."""
    files_changed: list[str]
    """Files that differ from the checkpoint that the workspace was at before, sorted."""

    def short_hash(self) -> str:
        """Returns the first seven digits of the hash."""
        return self.commit_hash[:_SHORT_HASH_LENGTH]


@checked_methods
class CheckpointManager:
    """The checkpoints of one workspace, in the default store.

    Modification times alone do not count as a change. All methods may raise the errors of
    :mod:`treesnap.core.model.errors`; a method that raises has changed nothing in the workspace.
    """

    def __init__(self, workspace_root: str) -> None:
        self._handle = open_root(workspace_root)
        self._machinery = Machinery(self._handle)

    def create(self, step: int, message: str = "") -> Checkpoint | None:
        """Takes a checkpoint; returns None if nothing changed since the present one.

        Durable after return. Costs two walks of the workspace. Raises Refused if something
        cannot be read.
        """
        history = self._handle.list()
        base = _present_checkpoint(history)
        if base is not None and not self._differences(base.id):
            return None
        request = CaptureRequest(
            label=f"{CHECKPOINT_PREFIX}:{message or f'step-{step}'}",
            step=step,
            tags=fact_tags(source_tool="architect"),
            complete_only=True,
            exclude=self._machinery.excluded,
        )
        made = create(self._handle.context, request)
        return self._checkpoint(made.snapshot, base)

    def list_checkpoints(self) -> list[Checkpoint]:
        """Returns the checkpoints, newest first. Compares each with its predecessor."""
        return list(self._checkpoints())

    def rollback(self, step: int | None = None, commit: str | None = None) -> bool:
        """Restores the workspace to a checkpoint exactly; returns False if no checkpoint fits.

        ``step`` means the newest checkpoint of that number, ``commit`` a hash or its unique
        beginning of at least 4 digits; given both, a checkpoint must fit both. All or nothing.
        """
        fitting = [
            item
            for item in self._handle.list()
            if _is_checkpoint(item) and step in (None, item.record.step)
        ]
        if commit is not None:
            matches = [item for item in fitting if item.id.startswith(commit)]
            fitting = matches if _HASH.fullmatch(commit) and len(matches) == 1 else []
        if not fitting or (step is None and commit is None):
            return False
        request = RestoreRequest(
            ref=fitting[0].id, reason="architect", exclude=self._machinery.excluded
        )
        restore(self._handle.context, request)
        return True

    def get_latest(self) -> Checkpoint | None:
        """Returns the newest checkpoint, or None."""
        return next(self._checkpoints(), None)

    def has_changes_since(self, commit_hash: str) -> bool:
        """Returns whether the workspace differs from a checkpoint; raises NotFound."""
        return bool(self._differences(commit_hash))

    def _checkpoints(self) -> Iterator[Checkpoint]:
        history = self._handle.list()
        for position, item in enumerate(history):
            if _is_checkpoint(item):
                yield self._checkpoint(item, _present_checkpoint(history[position + 1 :]))

    def _checkpoint(self, snapshot: Snapshot, base: Snapshot | None) -> Checkpoint:
        if base is None:
            entries = self._handle.ls(snapshot.id, recursive=True)
            paths = [item.name for item in entries if not (item.is_directory or item.is_skipped)]
        else:
            paths = [
                change.path
                for change in self._differences(base.id, snapshot.id)
                if not all(entry is None or entry.is_directory for entry in change[2:])
            ]
        return Checkpoint(
            step=snapshot.record.step or 0,
            commit_hash=snapshot.id,
            message=_message(snapshot),
            timestamp=snapshot.record.created_at_ns / 1e9,
            files_changed=[os.fsdecode(path) for path in sorted(paths)],
        )

    def _differences(self, old: str, new: str | None = None) -> list[Change]:
        """Returns what differs by more than times between a snapshot and another, or the tree."""
        return [
            change
            for change in self._machinery.without(self._handle.diff(old, new))
            if change.change != ChangeKind.METADATA
            or change.old is None
            or change.new is None
            or change.old._replace(mtime_ns=0, content=None)
            != change.new._replace(mtime_ns=0, content=None)
        ]


def _message(snapshot: Snapshot) -> str:
    label = snapshot.label or ""
    return label.removeprefix(f"{CHECKPOINT_PREFIX}:").removeprefix(
        _AFTER if snapshot.kind == SnapshotKind.PLAN else ""
    )


def _is_checkpoint(snapshot: Snapshot) -> bool:
    record, label = snapshot.record, snapshot.record.label or ""
    if record.step is None or record.scope is not None:
        return False
    is_safe = facts_of(snapshot).get("type") == CheckpointType.SAFE_STATE
    of_plan = record.kind == SnapshotKind.PLAN and is_safe
    return label.startswith(f"{CHECKPOINT_PREFIX}:") or (of_plan and label.startswith(_AFTER))


def _present_checkpoint(history: Sequence[Snapshot]) -> Snapshot | None:
    """Returns the checkpoint that the newest state of a history came from.

    After a restore of a checkpoint it is that checkpoint. After a restore of another snapshot,
    such as an undo, it is the one that was current when that snapshot was taken.
    """
    position = 0
    while position < len(history):
        item = history[position]
        if _is_checkpoint(item):
            return item
        went_to = _target(history, position)
        position = position + 1 if went_to is None else went_to
        if went_to is not None and not _is_checkpoint(history[went_to]):
            position += 1
    return None


def _target(history: Sequence[Snapshot], place: int) -> int | None:
    """Returns the place of the snapshot that a full restore went to, or None."""
    item = history[place]
    label = _WENT_TO.fullmatch(item.record.label or "")
    if item.kind != SnapshotKind.SAFETY or item.record.scope is not None or label is None:
        return None
    older = range(place + 1, len(history))
    return next((n for n in older if history[n].id.startswith(label[1])), None)
