"""Plans in a store: one sealed file each among the files of their root.

Every save is durable after return; after a crash the file means the old plan or the new one. A
plan is found by its id from any directory, because the store knows its root. The output of
each attempt is a plain file beside it, which is locked by the process that runs the step and
by every process that the step started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from treesnap.core.fs.durable import unlink_if_present
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    StoreMissing,
    TreesnapError,
)
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.store.layout import PLAN_PREFIX, STEP_OUTPUT_SUFFIX, Layout
from treesnap.core.store.roots import Root, registered_roots
from treesnap.core.store.store import Store
from treesnap.plans.plan import Plan, PlanId, is_ulid, may_begin_ulid
from treesnap.plans.record import PLAN

FINISHED_MAX = 100
"""How many plans of a root that were not interrupted are kept, with their output."""


def _file_name(plan_id: str) -> str:
    """Returns the name of a plan's file among the files of its root."""
    return f"{PLAN_PREFIX}{plan_id}"


def log_name(plan_id: str, step_index: int, attempt: int) -> str:
    """Returns the name of the file with the output of one attempt."""
    return f"{PLAN_PREFIX}{plan_id}-{step_index}-{attempt}{STEP_OUTPUT_SUFFIX}"


def _ids(store: Store, root: Root) -> list[PlanId]:
    """Returns the ids of the plans of a root, newest first."""
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = store.fs.list_names(store.layout.root_directory(root.id))
    texts = (name.removeprefix(PLAN_PREFIX) for name in names if name.startswith(PLAN_PREFIX))
    return sorted((PlanId(text) for text in texts if is_ulid(text)), reverse=True)


@contextmanager
def plan_lock(context: Context, operation: str) -> Iterator[None]:
    """Holds the lock on the plans of the root; raises Busy almost at once if it is taken."""
    with opened(context, operation, create=True, recover=False) as session:
        session.root.register()
    with ExitStack() as stack:
        with translating_os_errors(operation):
            stack.enter_context(session.root.attachments_locked(operation))
        yield


def is_at_work(context: Context, plan: Plan) -> bool:
    """Returns whether a process runs or changes a plan of the same root right now."""
    return Root(context.fs, Layout(context.store_path), plan.root).are_attachments_locked()


def save(context: Context, plan: Plan) -> Plan:
    """Makes a plan durable as it is now, and returns it.

    Of a plan that runs what changed is written, which costs one sync, and two for what follows a
    whole record; a plan that rests is one sealed record again, and costs two.
    """
    with opened(context, "save a plan", writing=True, recover=False) as session:
        write = session.root.change if plan.is_interrupted else session.root.write
        write(_file_name(plan.id), PLAN, plan)
    return plan


def load(session: Session, root: Root, plan_id: PlanId) -> Plan:
    """Returns a plan of a root; raises NotFound or Corrupt."""
    plan = root.read(_file_name(plan_id), PLAN)
    if plan is None:
        raise _unknown(plan_id)
    earlier = root.record.earlier if root.record is not None else ()
    if plan.id != plan_id or plan.root not in (root.path, *earlier):
        raise Corrupt(f"The file of plan {plan_id} holds another plan", path=session.store.path)
    if plan.root == root.path:
        return plan
    moved = tuple(replace(each, sandbox=root.path) for each in plan.checkpoints)
    return replace(plan, root=root.path, checkpoints=moved)


def plans_of_root(context: Context) -> list[Plan]:
    """Returns the plans of the root, newest first, without damaged ones.

    Without a store there are none.
    """
    try:
        with opened(context, "list plans") as session:
            return list(_plans(session, session.root))
    except StoreMissing:
        return []


def newest_id(context: Context) -> PlanId | None:
    """Returns the id of the newest plan of the root, or None."""
    with opened(context, "look up a plan", recover=False) as session:
        return next(iter(_ids(session.store, session.root)), None)


def all_plans(context: Context, *, recover: bool = True) -> list[Plan]:
    """Returns the plans of all roots of the store, newest first.

    Finishes an interrupted restore of the root first unless ``recover`` is False.
    """
    try:
        with opened(context, "list plans", recover=recover) as session:
            listed = [plan for root in _roots(session) for plan in _plans(session, root)]
    except StoreMissing:
        return []
    return sorted(listed, key=lambda plan: plan.id, reverse=True)


def _roots(session: Session) -> Iterator[Root]:
    store = session.store
    return map(store.root, registered_roots(store.fs, store.layout))


def _plans(session: Session, root: Root) -> Iterator[Plan]:
    for plan_id in _ids(session.store, root):
        with suppress(Corrupt, NotFound):
            yield load(session, root, plan_id)


def find(context: Context, ref: str) -> Plan:
    """Returns the plan that a reference means, of any root.

    In this order: a whole id; ``latest``, the newest of the root; a name, which means the
    newest plan of the root that has it; the unique beginning of an id. Raises NotFound,
    InvalidArgument for an ambiguous beginning, and Corrupt for a damaged plan: ``latest``
    does not skip one.
    """
    try:
        with opened(context, "look up a plan") as session:
            roots = [(root, _ids(session.store, root)) for root in _roots(session)]
            identity = ref.upper()
            for root, ids in roots:
                if identity in ids:
                    return load(session, root, PlanId(identity))
            here = _ids(session.store, session.root)
            if ref == "latest" and here:
                return load(session, session.root, here[0])
            for plan in _plans(session, session.root):
                if plan.name == ref:
                    return plan
            matches = [
                (root, plan_id)
                for root, ids in roots
                for plan_id in ids
                if may_begin_ulid(ref) and plan_id.startswith(identity)
            ]
            if len(matches) > 1:
                raise InvalidArgument(
                    f"{len(matches)} plans have ids that begin with {ref!r}",
                    code=ErrorCode.AMBIGUOUS_REF,
                )
            if matches:
                return load(session, *matches[0])
    except StoreMissing as error:
        raise _unknown(ref) from error
    raise _unknown(ref)


def _unknown(ref: str) -> NotFound:
    return NotFound(f"There is no plan {ref!r}", code=ErrorCode.PLAN_NOT_FOUND)


def forget_old(context: Context) -> None:
    """Removes the oldest plans of the root, with their output; interrupted ones stay.

    The policy removes their snapshots, which are automatic ones. Never raises if a plan
    cannot be removed: the next plan tries again.
    """
    with (
        suppress(TreesnapError, OSError),
        opened(context, "remove old plans", writing=True, recover=False) as session,
    ):
        closed = [plan for plan in _plans(session, session.root) if not plan.is_interrupted]
        for plan in closed[FINISHED_MAX:]:
            _remove(session, plan)


def remove(context: Context, plan: Plan) -> None:
    """Removes a plan with its output, durably. The caller holds the plan lock."""
    with opened(context, "delete a plan", writing=True, recover=False) as session:
        _remove(session, plan)


def _remove(session: Session, plan: Plan) -> None:
    for output in session.root.step_outputs():
        if output.name.startswith(f"{_file_name(plan.id)}-"):
            unlink_if_present(session.fs, session.root.file(output.name))
    session.root.remove(_file_name(plan.id))


def shift_output(context: Context, plan: Plan, index: int) -> None:
    """Renames the output of the steps after a new one to their new numbers.

    Output that cannot be renamed is no longer shown; that is not worth an error.
    """
    prefix = f"{_file_name(plan.id)}-"
    with (
        suppress(TreesnapError, OSError),
        opened(context, "move the output of steps", writing=True, recover=False) as session,
    ):
        for output in reversed(session.root.step_outputs()):
            if not output.name.startswith(prefix):
                continue
            step, attempt = (
                output.name.removeprefix(prefix).removesuffix(STEP_OUTPUT_SUFFIX).split("-")
            )
            if int(step) >= index:
                new = log_name(plan.id, int(step) + 1, int(attempt))
                context.fs.rename(session.root.file(output.name), session.root.file(new))


def trim_output(context: Context, size_bytes_max: int) -> int:
    """Removes the oldest output of the root's plans; returns how many bytes are left."""
    with (
        suppress(TreesnapError, OSError),
        opened(context, "remove old output", writing=True, recover=False) as session,
    ):
        return session.root.trim_step_outputs(size_bytes_max)
    return 0
