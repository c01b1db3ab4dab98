"""The interface of plans: run, resume, show, roll back, correct, apply."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from treesnap.core.codec.snapshot import PLAN_ATTACHMENT
from treesnap.core.model.arguments import checked_methods
from treesnap.core.model.entries import Skipped
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    Refused,
    TreesnapError,
    printable,
    quoted,
)
from treesnap.core.model.presentation import Fields, Presented, fields_of, json_fields
from treesnap.core.model.quantities import first_few
from treesnap.core.model.reserved_tags import CheckpointType
from treesnap.core.model.results import InterruptedWork, WorkKind
from treesnap.core.model.snapshots import Attachment, Snapshot, SnapshotId
from treesnap.core.ops.access import recover
from treesnap.core.ops.context import Context, context_at
from treesnap.core.ops.create import metadata_of
from treesnap.core.ops.run.checkpoint import go_back
from treesnap.core.store.attachments import AttachmentChange
from treesnap.core.store.layout import Layout
from treesnap.core.store.ownership import is_own
from treesnap.plans import checkpoints, repository
from treesnap.plans.document import Definition
from treesnap.plans.plan import (
    BEFORE_ROLLBACK,
    Checkpoint,
    Milestones,
    Plan,
    PlanId,
    PlanState,
    Step,
    leaves_of,
    new_ulid,
    unstarted,
)
from treesnap.plans.process import read_output
from treesnap.plans.record import PLAN
from treesnap.plans.runner import (
    Calls,
    PlanMonitor,
    Runner,
    check_parts,
    check_runnable,
    end_interrupted,
    end_leftovers_of,
    log_path,
)

if TYPE_CHECKING:
    from treesnap.core.handle import Handle


class CorrectionMode(StrEnum):
    """How a plan is corrected."""

    REVERT = "revert"
    """Roll back to the last checkpoint before the error."""
    APPEND = "append"
    """Add a step: before the one that failed, else at the end."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RollbackResult(Presented):
    """Outcome of a roll-back."""

    plan: Plan
    """The plan after the roll-back."""
    checkpoint: Checkpoint
    restored: int
    created: int
    deleted: int
    changed_paths: tuple[bytes, ...]
    before: Checkpoint
    """The state before the roll-back: files and plan. Rolling back to it reverts this one."""
    safety_id: SnapshotId
    """The snapshot of that state, which ``undo`` returns to."""
    dropped_steps: tuple[str, ...]
    """Names of steps that the plan had and the checkpoint does not have."""
    untouched: tuple[Skipped, ...] = ()
    """Paths left alone, because no snapshot or not this checkpoint holds them."""
    missing: tuple[bytes, ...] = ()
    """Paths that the checkpoint could not read, and that are not there; at most 1,000."""

    def to_dict(self) -> Fields:
        """Returns what ``snap plan rollback --json`` prints; ``json.dumps`` takes it."""
        return json_fields(
            {
                "plan_id": self.plan.id,
                "state": self.plan.state,
                **fields_of(self, without={"plan"}),
            }
        )


@checked_methods
class Planner:
    """Plans in a store. New plans are for the handle's root; stored ones keep their own.

    In a store that is not proven to be this user's, a plan of another root than the handle's is
    shown, and everything else raises Refused: a stranger may have named that root.

    ``calls`` are the functions that steps may call; ``runner`` is the command that carries
    out prompts, and contains ``{prompt}``. Every method may raise the errors of
    :mod:`treesnap.core.model.errors`.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        monitor: PlanMonitor | None = None,
        calls: Calls | None = None,
        runner: str | None = None,
    ) -> None:
        self._context = handle.context
        self._monitor = monitor or PlanMonitor()
        self._calls = calls or {}
        self._runner = runner

    def run(self, name: str, steps: Iterable[Step], milestones: Milestones | None = None) -> Plan:
        """Creates a plan and carries it out; returns it, completed or failed.

        A step that fails after its retries is undone completely. Raises Busy if another plan
        is running in the root, and Refused if one was interrupted there.
        """
        context = self._context
        milestones, steps = milestones or Milestones(), tuple(steps)
        check_parts(name, milestones, steps)
        check_runnable(steps, self._runner, self._calls)
        with repository.plan_lock(context, "plan run"):
            _refuse_interrupted(context)
            repository.forget_old(context)
            now_ns = context.clock_ns()
            plan = Plan(
                id=PlanId(new_ulid(now_ns, after=repository.newest_id(context))),
                name=name,
                root=os.fsencode(context.root),
                created_at_ns=now_ns,
                milestones=milestones,
                content=unstarted(steps),
                runner=self._runner,
            )
            plan = repository.save(context, plan)
            return Runner(context, self._monitor, self._calls).run(plan)

    def run_definition(self, definition: Definition) -> Plan:
        """Creates the plan of a document and carries it out, as :meth:`run` does."""
        return self.run(definition.name, definition.steps, definition.milestones)

    def resume(self, ref: str, *, allow_commands: bool = False) -> Plan:
        """Continues a plan that was interrupted, failed, or rolled back.

        An interrupted step is undone and begins again; a failed one is tried again.
        Raises Refused for an applied plan, or if another one was interrupted in its root; without
        ``allow_commands`` also for a plan with commands in a store that is not proven to be this
        user's, as ``core.store.ownership`` says.
        """
        with self._opened(ref, "plan resume") as (context, plan):
            _refuse_applied(plan)
            if not allow_commands:
                _refuse_foreign_commands(context, plan, self._runner)
            runner = self._runner if self._runner is not None else plan.runner
            return Runner(context, self._monitor, self._calls).run(replace(plan, runner=runner))

    def list(self, *, all_roots: bool = False) -> tuple[Plan, ...]:
        """Returns the plans of the root, or of all roots, newest first."""
        find = repository.all_plans if all_roots else repository.plans_of_root
        return tuple(find(self._context))

    def show(self, ref: str) -> Plan:
        """Returns a plan by its id, the unique beginning of its id, its name, or ``latest``."""
        return repository.find(self._context, ref)

    def is_at_work(self, plan: Plan) -> bool:
        """Returns whether a process works on a plan of the same root right now."""
        return repository.is_at_work(self._context, plan)

    def checkpoint(
        self,
        ref: str,
        *,
        label: str,
        reason: str | None = None,
        source_tool: str | None = None,
        phase: str | None = None,
    ) -> Checkpoint:
        """Takes a checkpoint of a plan that no process works on, and returns it.

        ``reason``, ``source_tool`` and ``phase`` become tags of the caller's. Raises Refused for
        an applied plan.
        """
        with self._opened(ref, "plan checkpoint") as (context, plan):
            _refuse_applied(plan)
            words = {"reason": reason, "source_tool": source_tool, "phase": phase}
            said = {name: word for name, word in words.items() if word}
            settled = end_interrupted(context, plan)
            taken = checkpoints.take_snapshot(context, settled, label, CheckpointType.MANUAL, said)
            longer = checkpoints.with_checkpoint(context, settled, taken, reason or "manual")
            return checkpoints.save_thinned(context, longer).checkpoints[-1]

    def delete(self, ref: str) -> Plan:
        """Removes a plan, the output of its steps, and the snapshots of its checkpoints.

        Pinned snapshots stay, and so do those that undo returns to; files are not touched.
        Raises Refused for an interrupted plan.
        """
        with self._opened(ref, "plan delete") as (context, plan):
            if plan.is_interrupted:
                raise _interrupted(plan)
            repository.remove(context, plan)
            checkpoints.delete_dropped(context, plan.checkpoints)
            return plan

    def checkpoints(self, ref: str) -> tuple[Checkpoint, ...]:
        """Returns the checkpoints that a plan can be rolled back to, newest first."""
        plan = self.show(ref)
        return checkpoints.available(self._context_of(plan), plan)

    def output(self, ref: str, step_index: int) -> Iterator[bytes]:
        """Yields the output of a step's attempts, oldest first, as far as it is kept.

        Raises InvalidArgument for a step that does not exist.
        """
        plan = self.show(ref)
        if not 0 <= step_index < len(plan.content.progress):
            raise InvalidArgument(f"Plan {plan.id} has no step {step_index}")
        context = self._context_of(plan)
        for number in range(1, plan.content.progress[step_index].attempts + 1):
            yield from read_output(context.fs, log_path(context, plan, step_index, number))

    def rollback(self, ref: str, checkpoint_ref: str) -> RollbackResult:
        """Returns a plan and its files to a checkpoint, both or neither.

        A checkpoint is named by its id or the unique beginning of that, by its label, or as
        ``step:N``: the newest one before step N, counted from 0.

        The state before, with everything in the root, becomes a checkpoint too, so that the
        roll-back can be reverted; ``undo`` and ``redo`` of the root move files and plan as well.
        After a crash the next command on the root finishes it. Raises NotFound for an unknown
        checkpoint, Refused for an applied plan.
        """
        with self._opened(ref, "plan rollback") as (context, plan):
            _refuse_applied(plan)
            target = checkpoints.find_checkpoint(context, plan, checkpoint_ref)
            return _rolled_back(context, plan, target, plan.rolled_back(target))

    def correct(
        self,
        ref: str,
        mode: CorrectionMode,
        command: str | None = None,
        *,
        name: str | None = None,
    ) -> RollbackResult | Plan:
        """Corrects a plan: rolls back to before the error, or adds a step.

        ``revert`` rolls back to the last clean checkpoint and keeps the present steps. ``append``
        adds a step before the failed one, also after a roll-back of it, or at the end if none has
        failed, and leaves files and
        other steps as they are; without ``name`` it is called ``correction-N``. Neither runs a
        step: :meth:`resume` does.
        """
        is_append = mode == CorrectionMode.APPEND
        if is_append != (command is not None) or (name is not None and not is_append):
            raise InvalidArgument(
                "append needs a command; revert takes neither a command nor a name"
            )
        with self._opened(ref, "plan correct") as (context, plan):
            _refuse_applied(plan)
            if command is None:
                target = checkpoints.last_clean(context, plan)
                return _rolled_back(context, plan, target, plan.reverted(target))
            step = Step(name=_new_name(plan, name), run=command)
            check_parts(plan.name, plan.milestones, plan.corrected(step).content.steps)
            settled = end_interrupted(context, plan)
            longer = repository.save(context, settled.corrected(step))
            repository.shift_output(context, longer, settled.insertion_index)
            return longer

    def apply(self, ref: str) -> Plan:
        """Accepts the result of a completed plan, which can then no longer be rolled back.

        Raises Refused for a plan that is not completed.
        """
        with self._opened(ref, "plan apply") as (context, plan):
            if plan.state not in {PlanState.COMPLETED, PlanState.APPLIED}:
                raise Refused(
                    f"Plan {plan.id} is {plan.state.value}, not completed",
                    code=ErrorCode.PLAN_NOT_COMPLETED,
                )
            return repository.save(context, replace(plan, state=PlanState.APPLIED))

    @contextmanager
    def _opened(self, ref: str, operation: str) -> Iterator[tuple[Context, Plan]]:
        """Yields a plan under the lock of its root, after finishing an interrupted restore."""
        plan = repository.find(self._context, ref)
        if os.fsencode(self._context.root) != plan.root:
            _refuse_foreign_root(self._context, plan)
            self._monitor.other_root_entered(plan)
        context = self._context_of(plan)
        with repository.plan_lock(context, operation):
            recover(context)  # an interrupted roll-back moves the plan only now
            _refuse_interrupted(context, but=plan.id)
            yield context, repository.find(context, plan.id)

    def _context_of(self, plan: Plan) -> Context:
        """Returns a context on the root of a plan; raises Refused if a link has replaced it."""
        context = self._context
        if os.fsencode(context.root) == plan.root:
            return context
        other = context_at(
            plan.root,
            context.store_path,
            monitor=context.monitor,
            wait_s=context.wait_s,
            fs=context.fs,
            clock_ns=context.clock_ns,
        )
        if os.fsencode(other.root) != plan.root:
            raise Refused(
                f"The root {quoted(plan.root)} of plan {plan.id} now lies behind a link",
                code=ErrorCode.NOT_A_DIRECTORY,
                path=plan.root,
            )
        return other


def _rolled_back(context: Context, plan: Plan, target: Checkpoint, back: Plan) -> RollbackResult:
    """Takes files and plan to a checkpoint in one restore; ``back`` is the plan afterwards.

    One transaction moves both or neither, so a failure leaves nothing to undo.
    """
    if plan.attempt is not None:
        end_leftovers_of(context, plan, plan.attempt)
    present = plan.settled()
    label = f"before rollback to {target.label}"
    dropped: tuple[Checkpoint, ...] = ()

    def after(safety: Snapshot) -> bytes:
        nonlocal back, dropped
        longer = checkpoints.with_checkpoint(context, present, safety, BEFORE_ROLLBACK, label)
        back, dropped = checkpoints.thinned(
            replace(back, checkpoints=longer.checkpoints, held=plan.held), target.id
        )
        return PLAN.payload(back)

    request = checkpoints.snapshot_request(present, label, CheckpointType.ERROR_RECOVERY)
    metadata = metadata_of(request)
    del metadata["kind"], metadata["label"]  # a safety snapshot has its own
    before = Attachment(PLAN_ATTACHMENT, plan.id, PLAN.payload(present))
    change = AttachmentChange(before=before, after=after, metadata=metadata)
    result = go_back(context, target.snapshot_id, reason="plan rollback", attachment=change)
    assert result.safety_id is not None
    if back.held:
        with suppress(TreesnapError):  # the next command releases them
            back = repository.save(context, checkpoints.release_held(context, back))
    with suppress(TreesnapError):  # a policy removes them later
        checkpoints.delete_dropped(context, dropped)
    names = {leaf.step.name for leaf in back.leaves}
    return RollbackResult(
        plan=back,
        checkpoint=target,
        restored=result.restored,
        created=result.created,
        deleted=result.deleted,
        changed_paths=tuple(change.path for change in result.changes),
        before=back.checkpoints[-1],
        safety_id=result.safety_id,
        dropped_steps=tuple(leaf.step.name for leaf in plan.leaves if leaf.step.name not in names),
        untouched=result.untouched,
        missing=result.missing,
    )


def _new_name(plan: Plan, wanted: str | None) -> str:
    """Returns the name of an added step; raises InvalidArgument if another step has it."""
    taken = {leaf.step.name for leaf in plan.leaves} | {step.name for step in plan.content.steps}
    if wanted is None:
        return next(
            name for n in range(1, len(taken) + 2) if (name := f"correction-{n}") not in taken
        )
    if wanted in taken:
        raise InvalidArgument(
            f"Plan {plan.id} already has a step {quoted(wanted)}", code=ErrorCode.INVALID_PLAN
        )
    return wanted


def _refuse_interrupted(context: Context, but: PlanId | None = None) -> None:
    for plan in repository.plans_of_root(context):
        if plan.is_interrupted and plan.id != but:
            raise _interrupted(plan)


def _interrupted(plan: Plan) -> Refused:
    return Refused(
        f"Plan {plan.id} ({printable(plan.name)}) was interrupted in this root",
        code=ErrorCode.PLAN_INTERRUPTED,
    )


def has_own_store(planner: Planner) -> bool:
    """Returns whether the store is proven to be this user's: no stranger wrote what is in it."""
    context = planner._context  # noqa: SLF001 - of the same module
    return is_own(context.fs, Layout(context.store_path))


def _refuse_foreign_root(context: Context, plan: Plan) -> None:
    """Raises Refused where it may be a stranger who says which root a plan is of."""
    if not is_own(context.fs, Layout(context.store_path)):
        raise Refused(
            f"The plan {plan.id} is in a store that is not proven to be yours, and of the root "
            f"{quoted(plan.root)}, which is not the one that was named",
            code=ErrorCode.ROOT_NOT_NAMED,
            path=plan.root,
        )


def _refuse_foreign_commands(context: Context, plan: Plan, runner: str | None) -> None:
    """Raises Refused for a plan with commands that another user may have written."""
    steps = [step for step, _, _ in leaves_of(plan.content.steps)]
    commands = [words for step in steps if (words := step.run or step.prompt) is not None]
    if runner is None and plan.runner is not None:
        commands.append(plan.runner)
    if commands and not is_own(context.fs, Layout(context.store_path)):
        raise Refused(
            f"The plan {plan.id} is in a store that is not proven to be yours, and would run "
            f"{first_few(commands, quoted)}",
            code=ErrorCode.STORE_NOT_OWN,
            path=context.store_path,
        )


def _refuse_applied(plan: Plan) -> None:
    if plan.state == PlanState.APPLIED:
        raise Refused(f"Plan {plan.id} is already applied", code=ErrorCode.PLAN_APPLIED)


def unfinished(handle: Handle) -> tuple[InterruptedWork, ...]:
    """Returns the interrupted plans of all roots, as ``doctor`` shows them. Changes nothing."""
    return tuple(
        InterruptedWork(
            work=WorkKind.PLAN,
            root=plan.root,
            resolution=f"plan {plan.id} ({plan.name}) waits until it is continued or rolled back",
            blocked=True,
        )
        for plan in repository.all_plans(handle.context, recover=False)
        if plan.is_interrupted and not repository.is_at_work(handle.context, plan)
    )
