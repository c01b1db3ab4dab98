"""The records of restores to other directories, and what commands say of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.root_files import EXPORT_STAGE_PREFIX
from treesnap.core.handle import Handle
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from world import World

STAGE_NAME = os.fsdecode(EXPORT_STAGE_PREFIX) + "0" * 16


def records(world: World) -> list[Path]:
    return list(world.store.glob("roots/*/export-*"))


def warnings(world: World, command: Callable[[Handle], object]) -> list[str]:
    """Runs a command and returns what it remarked."""
    monitor = CollectingMonitor()
    command(Handle(context_at(root=world.root, store_path=str(world.store), monitor=monitor)))
    return monitor.warnings


def write_record(world: World, payload: bytes) -> Path:
    """Puts a record into the store, as an attacker might."""
    path = world.only("roots/*/root").parent / "export-0123456789abcdef"
    path.write_bytes(seal(FileKind.EXPORT, payload))
    return path
