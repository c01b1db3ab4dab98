"""``restore --to``: a snapshot's files in another directory, all or nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from treesnap.errors import ErrorCode, Refused, shown
from treesnap.events import Phase
from treesnap.fs.durable import make_directories
from treesnap.ops.access import Opened
from treesnap.ops.plan import Plan, State, make_plan, require_paths
from treesnap.results import RestoreResult
from treesnap.worktree.directory import OPEN_DIRECTORY
from treesnap.worktree.stage import Stager
from treesnap.worktree.staging import make_stage, new_stage_name, remove_stage

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.ops.restore import Goal


def export(
    handle: Handle, pair: Opened, goal: Goal, target_path: str, *, dry_run: bool
) -> RestoreResult:
    """Writes the goal's tree to a path that is absent or an empty directory.

    The files are built beside the target and appear with one rename, after a
    sync; a crash leaves nothing but a directory whose name says what it is.
    """
    from treesnap.codec.reader import TreeReader
    from treesnap.ops.access import MemoryObjects
    from treesnap.ops.restore import empty_tree, result_of, target_state

    _refuse_occupied(target_path)
    target = target_state(pair, goal)
    objects = MemoryObjects(pair.store)
    empty = target.root._replace(content=empty_tree(objects))
    nothing = State(root=empty, trees=TreeReader(objects.get), groups={})
    require_paths(goal.paths, nothing, target)
    plan: Plan = make_plan(nothing, target, goal.scope)
    if not dry_run:
        _write(handle, pair, goal, target, target_path)
    return result_of(goal, plan, target, safety_id=None, is_dry_run=dry_run)


def _refuse_occupied(target_path: str) -> None:
    if not os.path.lexists(target_path):
        return
    if os.path.islink(target_path) or not os.path.isdir(target_path) or os.listdir(target_path):
        raise Refused(
            f"The target {shown(target_path)!r} exists and is no empty directory",
            code=ErrorCode.TARGET_NOT_EMPTY,
            path=target_path,
        )


def _write(handle: Handle, pair: Opened, goal: Goal, target: State, target_path: str) -> None:
    fs = handle.fs
    parent, name = os.path.split(target_path)
    make_directories(fs, parent)
    totals = target.trees.totals(target.root.tree_id)
    handle.monitor.begin(Phase.STAGE, totals.files + totals.others, totals.size_bytes)
    parent_fd = fs.open(os.path.realpath(parent), OPEN_DIRECTORY)
    stage_name = new_stage_name()
    try:
        stage_fd = make_stage(fs, parent_fd, stage_name)
        try:
            stager = Stager(
                fs,
                stage_fd,
                pair.store.get,
                target.groups,
                handle.monitor,
                trees=target.trees,
                touch=goal.touch,
            )
            try:
                stager.put(target.root, b"", b"n0")
            finally:
                stager.close()
            fs.sync_file_system(stage_fd)
            fs.rename(b"n0", os.fsencode(name), source_dir_fd=stage_fd, target_dir_fd=parent_fd)
            moved = fs.open(name, OPEN_DIRECTORY, dir_fd=parent_fd)
            try:
                fs.change_mode(moved, target.root.mode)
            finally:
                fs.close(moved)
        finally:
            fs.close(stage_fd)
            remove_stage(fs, parent_fd, stage_name)
        fs.sync(parent_fd)
    finally:
        fs.close(parent_fd)
