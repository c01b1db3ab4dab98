"""The front door to plans: run, resume, look at, roll back, correct, apply."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from treesnap.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    TreesnapError,
    shown,
)
from treesnap.model import CheckpointType, Purpose, SnapshotId
from treesnap.plans import checkpoints as taking
from treesnap.plans import repository
from treesnap.plans.document import Definition
from treesnap.plans.events import NullPlanMonitor, PlanMonitor
from treesnap.plans.plan import (
    Checkpoint,
    Milestones,
    Plan,
    PlanId,
    PlanState,
    Step,
    unstarted,
)
from treesnap.plans.process import kept_output
from treesnap.plans.runner import (
    Calls,
    Runner,
    check_content,
    check_runnable,
    end_interrupted,
    log_path,
)
from treesnap.plans.ulid import new_ulid
from treesnap.results import Unfinished, Work

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle


BEFORE_ROLLBACK = "before_rollback"
"""The reason of a checkpoint that a roll-back takes first."""


class CorrectionMode(StrEnum):
    """How a plan is corrected."""

    REVERT = "revert"
    """Back to the last checkpoint before the error."""
    APPEND = "append"
    """One more step at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """Outcome of a roll-back."""

    plan: Plan
    """As it is now."""
    checkpoint: Checkpoint
    restored: int
    created: int
    deleted: int
    changed_paths: tuple[bytes, ...]
    safety_id: SnapshotId | None
    """The snapshot of the files before, or None when none had to be changed."""


class Planner:
    """Plans in a store. One that is given is of the handle's root; an old one keeps its own.

    ``calls`` are the functions that steps may call; ``runner`` is the command that carries
    out prompts, with ``{prompt}`` in it. Every method may raise the errors of
    :mod:`treesnap.errors`.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        monitor: PlanMonitor | None = None,
        calls: Calls | None = None,
        runner: str | None = None,
    ) -> None:
        self._handle = handle
        self._monitor = monitor or NullPlanMonitor()
        self._calls = calls or {}
        self._runner = runner

    def run(self, name: str, steps: Iterable[Step], milestones: Milestones | None = None) -> Plan:
        """Makes a plan and carries it out; returns it, completed or failed.

        A step that fails after its retries is taken back whole. Raises Busy when another
        plan is at work in the root, and Refused when one was interrupted there.
        """
        handle = self._handle
        now_ns = handle.clock_ns()
        plan = Plan(
            id=PlanId(new_ulid(now_ns)),
            name=name,
            root=os.fsencode(handle.root),
            created_at_ns=now_ns,
            milestones=milestones or Milestones(),
            content=unstarted(tuple(steps)),
            runner=self._runner,
        )
        check_runnable(plan, self._calls)
        with repository.plan_lock(handle, "plan run"):
            _refuse_interrupted(handle)
            repository.forget_old(handle)
            plan_id = new_ulid(now_ns, after=repository.newest_id(handle))
            plan = repository.save(handle, replace(plan, id=PlanId(plan_id)))
            return Runner(handle, self._monitor, self._calls).run(plan)

    def run_definition(self, definition: Definition) -> Plan:
        """Carries out the plan of a document, as :meth:`run` does."""
        return self.run(definition.name, definition.steps, definition.milestones)

    def resume(self, ref: str) -> Plan:
        """Goes on with a plan that was interrupted, failed, or rolled back.

        An interrupted step is taken back and begins again; a failed one is tried again.
        Raises Refused for a plan that was applied, or when another one was interrupted in
        its root.
        """
        with self._opened(ref, "plan resume") as (handle, plan):
            _refuse_applied(plan)
            runner = self._runner if self._runner is not None else plan.runner
            return Runner(handle, self._monitor, self._calls).run(replace(plan, runner=runner))

    def list(self, *, all_roots: bool = False) -> tuple[Plan, ...]:
        """Returns the plans of the root, or of all roots, newest first."""
        find = repository.all_plans if all_roots else repository.plans_of_root
        return tuple(find(self._handle))

    def show(self, ref: str) -> Plan:
        """Returns one plan: by its id, the beginning of it, its name, or ``latest``."""
        return repository.find(self._handle, ref)

    def is_at_work(self, plan: Plan) -> bool:
        """Returns whether a process works on the plans of a plan's root right now."""
        return repository.is_at_work(self._handle, plan)

    def unfinished(self) -> tuple[Unfinished, ...]:
        """Returns the plans of all roots that were interrupted, as ``doctor`` shows them."""
        return tuple(
            Unfinished(
                work=Work.PLAN,
                root=plan.root,
                outlook=(
                    f"plan {plan.id} ({plan.name}) waits: 'snap plan resume' goes on with it, "
                    "'snap plan rollback' goes back"
                ),
                blocked=True,
            )
            for plan in self.list(all_roots=True)
            if plan.is_interrupted and not self.is_at_work(plan)
        )

    def checkpoint(
        self,
        ref: str,
        *,
        label: str,
        reason: str | None = None,
        source_tool: str | None = None,
        phase: str | None = None,
    ) -> Checkpoint:
        """Takes a checkpoint of a plan that nobody works on, and returns it.

        Raises Refused for a plan that was applied.
        """
        with self._opened(ref, "plan checkpoint") as (handle, plan):
            _refuse_applied(plan)
            purpose = Purpose(reason=reason, source_tool=source_tool, phase=phase)
            settled = end_interrupted(handle, plan)
            taken = taking.take_snapshot(handle, settled, label, CheckpointType.MANUAL, purpose)
            longer = taking.with_checkpoint(handle, settled, taken, reason or "manual")
            return taking.save_thinned(handle, longer).checkpoints[-1]

    def checkpoints(self, ref: str) -> tuple[Checkpoint, ...]:
        """Returns where a plan can be rolled back to, newest first."""
        plan = self.show(ref)
        return taking.available(self._handle_of(plan), plan)

    def output(self, ref: str, step_index: int) -> Iterator[bytes]:
        """Yields what a step wrote in its attempts, oldest first, as far as it is kept.

        Raises InvalidArgument for a step that there is not.
        """
        plan = self.show(ref)
        if not 0 <= step_index < len(plan.content.progress):
            raise InvalidArgument(f"Plan {plan.id} has no step {step_index}")
        handle = self._handle_of(plan)
        for number in range(1, plan.content.progress[step_index].attempts + 1):
            yield from kept_output(handle.fs, log_path(handle, plan, step_index, number))

    def rollback(self, ref: str, checkpoint_ref: str) -> RollbackResult:
        """Takes a plan and its files back to a checkpoint, both or neither.

        The state before becomes a checkpoint too, so that one can go forth again. After a
        crash the next command on the plan finishes it. Raises NotFound for a checkpoint
        that there is not, Refused for a plan that was applied.
        """
        with self._opened(ref, "plan rollback") as (handle, plan):
            return self._rolled_back(handle, plan, checkpoint_ref)

    def correct(
        self, ref: str, mode: CorrectionMode, command: str | None = None
    ) -> RollbackResult | Plan:
        """Corrects a plan: back to before the error, or with one more step at its end.

        ``revert`` rolls back to the last clean checkpoint; ``append`` leaves files and other
        steps as they are. Neither runs anything: :meth:`resume` does.
        """
        if (mode == CorrectionMode.APPEND) != (command is not None):
            raise InvalidArgument("Appending needs the command of a step, and reverting none")
        with self._opened(ref, "plan correct") as (handle, plan):
            _refuse_applied(plan)
            if command is None:
                target = taking.last_clean(handle, plan)
                return self._rolled_back(handle, plan, target.id)
            taken = {step.name for step in plan.content.steps}
            number = next(n for n in range(1, len(taken) + 2) if f"correction-{n}" not in taken)
            step = Step(name=f"correction-{number}", run=command)
            check_content(plan.appended(step))
            return repository.save(handle, end_interrupted(handle, plan).appended(step))

    def apply(self, ref: str) -> Plan:
        """Accepts what a completed plan did: nothing of it is rolled back any more.

        Raises Refused for a plan that is not completed.
        """
        with self._opened(ref, "plan apply") as (handle, plan):
            if plan.state not in {PlanState.COMPLETED, PlanState.APPLIED}:
                raise Refused(
                    f"Plan {plan.id} is {plan.state.value}, not completed",
                    code=ErrorCode.PLAN_NOT_COMPLETED,
                )
            return repository.save(handle, replace(plan, state=PlanState.APPLIED))

    @contextmanager
    def _opened(self, ref: str, operation: str) -> Iterator[tuple[Handle, Plan]]:
        """Yields a plan under the lock of its root, with an interrupted roll-back finished."""
        found = repository.find(self._handle, ref)
        handle = self._handle_of(found)
        with repository.plan_lock(handle, operation):
            _refuse_interrupted(handle, but=found.id)
            yield handle, self._settled_rollback(handle, repository.find(handle, found.id))

    def _settled_rollback(self, handle: Handle, plan: Plan) -> Plan:
        """Finishes a roll-back that was begun; when its snapshot is gone, takes it back."""
        if plan.rolling_back_to is None:
            return plan
        try:
            target = taking.find_checkpoint(handle, plan, plan.rolling_back_to)
        except NotFound:
            return _taken_back(handle, plan)
        return _finish_rollback(handle, plan, target).plan

    def _rolled_back(self, handle: Handle, plan: Plan, checkpoint_ref: str) -> RollbackResult:
        _refuse_applied(plan)
        target = taking.find_checkpoint(handle, plan, checkpoint_ref)
        is_lost = False
        try:
            plan = end_interrupted(handle, plan)
        except (NotFound, Corrupt):  # the step's beginning is lost; the checkpoint is not
            plan, is_lost = plan.settled(), True
        plan = repository.save(handle, taking.holding(handle, plan, target.snapshot_id))
        taking.pin_held(handle, plan)
        if not is_lost:
            plan = _with_present(handle, plan, f"before rollback to {target.label}")
        try:
            plan = taking.save_thinned(handle, replace(plan, rolling_back_to=target.id))
        except TreesnapError:  # it may be written down all the same
            with suppress(TreesnapError):
                _given_up(handle, plan)
            raise
        return _finish_rollback(handle, plan, target)

    def _handle_of(self, plan: Plan) -> Handle:
        """Returns a handle on the root of a plan; raises Refused when a link took its place."""
        handle = self._handle
        if os.fsencode(handle.root) == plan.root:
            return handle
        other = type(handle)(
            root=plan.root,
            store_path=handle.store_path,
            monitor=handle.monitor,
            wait_s=handle.wait_s,
            fs=handle.fs,
            clock_ns=handle.clock_ns,
        )
        if os.fsencode(other.root) != plan.root:
            raise Refused(
                f"The root {shown(plan.root)!r} of plan {plan.id} is behind a link now",
                code=ErrorCode.NOT_A_DIRECTORY,
                path=plan.root,
            )
        return other


def _with_present(handle: Handle, plan: Plan, label: str) -> Plan:
    """Returns a plan with a checkpoint of the files as they are, if the root is there at all."""
    try:
        now = taking.take_snapshot(handle, plan, label, CheckpointType.ERROR_RECOVERY)
    except NotFound:
        return plan
    return taking.with_checkpoint(handle, plan, now, BEFORE_ROLLBACK)


def _finish_rollback(handle: Handle, plan: Plan, target: Checkpoint) -> RollbackResult:
    """Takes files, then plan back. What cannot be finished now the next command tries again."""
    try:
        result = handle.restore(target.snapshot_id, force=True, counted=True)
    except TreesnapError as error:
        if error.code != ErrorCode.RESTORE_INTERRUPTED:
            _given_up(handle, plan)
        raise
    try:
        done = repository.save(handle, plan.rolled_back(target))
    except TreesnapError:
        with suppress(TreesnapError):
            _taken_back(handle, plan)
        raise
    with suppress(TreesnapError):  # the next command lets go
        done = repository.save(handle, taking.let_go(handle, done))
    return RollbackResult(
        plan=done,
        checkpoint=target,
        restored=result.restored,
        created=result.created,
        deleted=result.deleted,
        changed_paths=tuple(change.path for change in result.changes),
        safety_id=result.safety_id,
    )


def _taken_back(handle: Handle, plan: Plan) -> Plan:
    """Takes the files of a roll-back back too, where they were kept."""
    before = plan.checkpoints[-1]
    if before.reason == BEFORE_ROLLBACK:
        with suppress(NotFound):
            handle.restore(before.snapshot_id, force=True)
    return _given_up(handle, plan)


def _given_up(handle: Handle, plan: Plan) -> Plan:
    plan = repository.save(handle, replace(plan, rolling_back_to=None))
    return repository.save(handle, taking.let_go(handle, plan))


def _refuse_interrupted(handle: Handle, but: PlanId | None = None) -> None:
    for plan in repository.plans_of_root(handle):
        if plan.is_interrupted and plan.id != but:
            raise Refused(
                f"Plan {plan.id} ({shown(plan.name)}) was interrupted in this root",
                code=ErrorCode.PLAN_INTERRUPTED,
            )


def _refuse_applied(plan: Plan) -> None:
    if plan.state == PlanState.APPLIED:
        raise Refused(f"Plan {plan.id} was applied already", code=ErrorCode.PLAN_APPLIED)
