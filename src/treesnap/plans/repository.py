"""Plans in a store: one sealed file each among the files of their root.

Every save is durable after return, and at any crash the file is the old one or the new
one. A plan is found by its id from any directory, because the store knows its root.
The output of each attempt is a plain file beside it; whoever runs the step holds its
lock, and so does everything that the step started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from treesnap.codec.envelope import FileKind
from treesnap.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    StoreMissing,
    TreesnapError,
    shown,
)
from treesnap.fs.durable import open_regular, unlink_if_present
from treesnap.fs.failure import reported
from treesnap.ops.access import Opened, opened
from treesnap.plans.plan import Plan, PlanId
from treesnap.plans.record import PLAN, decode_plan
from treesnap.plans.ulid import is_ulid, may_begin_ulid
from treesnap.store.layout import PLAN_PREFIX, Layout
from treesnap.store.lock import held
from treesnap.store.roots import Root, registered_roots
from treesnap.store.store import Store

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

FINISHED_MAX = 100
"""How many plans of a root are kept that nothing has interrupted, with their output."""

_LOG = ".log"
_LOCK = "plans-lock"
_LOOK_S = 0.25
"""Whoever looks at the lock holds it for a moment."""


def _file_name(plan_id: str) -> str:
    return f"{PLAN_PREFIX}{plan_id}"


def log_name(plan_id: str, step_index: int, attempt: int) -> str:
    """Returns the name of the file that has the output of one attempt."""
    return f"{PLAN_PREFIX}{plan_id}-{step_index}-{attempt}{_LOG}"


def _names(store: Store, root: Root) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(store.fs.list_names(store.layout.root_directory(root.id)), reverse=True)
    return []


def _ids(names: list[str]) -> list[PlanId]:
    """Returns the plans among a root's files, newest first."""
    found = (name.removeprefix(PLAN_PREFIX) for name in names if name.startswith(PLAN_PREFIX))
    return [PlanId(text) for text in found if is_ulid(text)]


@contextmanager
def plan_lock(handle: Handle, operation: str) -> Iterator[None]:
    """Keeps every other plan of the handle's root out; raises Busy almost at once."""
    with opened(handle, operation, create=True, recover=False) as pair:
        pair.root.register()
        path = pair.root.file(_LOCK)
    what = f"The list of plans of {shown(handle.root)!r}"
    with ExitStack() as stack:
        with reported(operation):
            lock = held(handle.fs, path, operation=operation, what=what, wait_s=_LOOK_S)
            stack.enter_context(lock)
        yield


def is_at_work(handle: Handle, plan: Plan) -> bool:
    """Returns whether a process carries out, or changes, plans of a plan's root right now."""
    root = Root(handle.fs, Layout(handle.store_path), plan.root)
    try:
        fd = open_regular(handle.fs, root.file(_LOCK))
    except (OSError, Corrupt):
        return False
    try:
        return not handle.fs.lock(fd, exclusive=False)
    finally:
        handle.fs.close(fd)


def save(handle: Handle, plan: Plan) -> Plan:
    """Makes a plan durable as it is now, and returns it. Costs two syncs."""
    with opened(handle, "write down a plan", writing=True, recover=False) as pair:
        pair.root.write(_file_name(plan.id), PLAN, plan)
    return plan


def load(pair: Opened, root: Root, plan_id: PlanId) -> Plan:
    """Returns a plan of a root; raises NotFound or Corrupt."""
    payload = root.read(_file_name(plan_id), FileKind.PLAN)
    if payload is None:
        raise _unknown(plan_id)
    plan = decode_plan(payload)
    if plan.id != plan_id or plan.root != root.path:
        raise Corrupt(f"The file of plan {plan_id} holds another one", path=pair.store.path)
    return plan


def plans_of_root(handle: Handle) -> list[Plan]:
    """Returns the plans of the handle's root, newest first; damaged ones are left out.

    Also when there is no store yet.
    """
    try:
        with opened(handle, "list plans", recover=False) as pair:
            return list(_plans(pair, pair.root))
    except StoreMissing:
        return []


def newest_id(handle: Handle) -> PlanId | None:
    """Returns the id of the newest plan of the handle's root, or None."""
    with opened(handle, "look up a plan", recover=False) as pair:
        return next(iter(_ids(_names(pair.store, pair.root))), None)


def all_plans(handle: Handle) -> list[Plan]:
    """Returns the plans of all roots of the store, newest first."""
    try:
        with opened(handle, "list plans", recover=False) as pair:
            roots = map(pair.store.root, registered_roots(handle.fs, pair.store.layout))
            found = [plan for root in roots for plan in _plans(pair, root)]
    except StoreMissing:
        return []
    return sorted(found, key=lambda plan: plan.id, reverse=True)


def _plans(pair: Opened, root: Root) -> Iterator[Plan]:
    for plan_id in _ids(_names(pair.store, root)):
        with suppress(Corrupt, NotFound):
            yield load(pair, root, plan_id)


def find(handle: Handle, ref: str) -> Plan:
    """Returns the plan that a reference means, of whatever root.

    In this order: a whole id; ``latest``, the newest of the handle's root; a name, of the
    newest plan of the handle's root that has it; the unique beginning of an id. Raises
    NotFound, InvalidArgument for an ambiguous beginning, and Corrupt for a damaged plan,
    which is not passed over when it is the newest.
    """
    try:
        with opened(handle, "look up a plan", recover=False) as pair:
            roots = [
                (root, _ids(_names(pair.store, root)))
                for root in map(pair.store.root, registered_roots(handle.fs, pair.store.layout))
            ]
            wanted = ref.upper()
            for root, ids in roots:
                if wanted in ids:
                    return load(pair, root, PlanId(wanted))
            here = _ids(_names(pair.store, pair.root))
            if ref == "latest" and here:
                return load(pair, pair.root, here[0])
            for plan in _plans(pair, pair.root):
                if plan.name == ref:
                    return plan
            found = [
                (root, plan_id)
                for root, ids in roots
                for plan_id in ids
                if may_begin_ulid(ref) and plan_id.startswith(wanted)
            ]
            if len(found) > 1:
                raise InvalidArgument(
                    f"The plan {ref!r} may be one of {len(found)}", code=ErrorCode.AMBIGUOUS_REF
                )
            if found:
                return load(pair, *found[0])
    except StoreMissing as error:
        raise _unknown(ref) from error
    raise _unknown(ref)


def _unknown(ref: str) -> NotFound:
    return NotFound(f"There is no plan {ref!r}", code=ErrorCode.PLAN_NOT_FOUND)


def forget_old(handle: Handle) -> None:
    """Removes the oldest plans of the root, with their output; interrupted ones stay.

    Their snapshots are automatic ones and go by the policy. Never raises for what cannot
    be removed: the next plan tries again.
    """
    with (
        suppress(TreesnapError, OSError),
        opened(handle, "forget plans", writing=True, recover=False) as pair,
    ):
        names = _names(pair.store, pair.root)
        closed = [plan for plan in _plans(pair, pair.root) if not plan.is_interrupted]
        for plan in closed[FINISHED_MAX:]:
            for name in names:
                if name.startswith(f"{PLAN_PREFIX}{plan.id}-"):
                    unlink_if_present(handle.fs, pair.root.file(name))
            pair.root.remove(_file_name(plan.id))
