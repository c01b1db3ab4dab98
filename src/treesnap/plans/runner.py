"""Carrying out a plan, so that a kill at any instant leaves a plan that can be resumed.

For each step, in this order; each line is durable before the next begins:

    snapshot of the root                  to return to if the step fails
    plan: step running, with the snapshot, which is now pinned
    the step itself
    failed?   restore the root; try again, or: plan: step failed, plan failed
    done?     snapshot, if a milestone is reached
    plan: step completed, with the checkpoint

A plan that is found with a step running was interrupted: the step's processes are killed,
the root is restored, and the step begins again. So files and plan agree whenever no process
works on the plan, after the next command at the latest.
"""

from __future__ import annotations

import os
import shlex
import stat
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from treesnap.core.diff.trees import is_time_alone
from treesnap.core.model.errors import ErrorCode, InvalidArgument, WarningCode, quoted
from treesnap.core.model.reserved_tags import CheckpointType
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.checkpoint_locks import MARK_DIGITS
from treesnap.core.ops.history.compare import diff
from treesnap.core.ops.processes import end_leftovers
from treesnap.core.ops.run.checkpoint import (
    CheckpointBlock,
    HeldCheckpoint,
    go_back,
    held_snapshot,
    itself,
    warn_of_untouched,
)
from treesnap.core.store.layout import Layout
from treesnap.core.store.roots import Root
from treesnap.plans import process
from treesnap.plans.checkpoints import (
    available,
    delete_unpinned,
    hold,
    pin_held,
    release_held,
    save_thinned,
    snapshot_request,
    take_snapshot,
    with_checkpoint,
)
from treesnap.plans.plan import (
    Attempt,
    Checkpoint,
    Leaf,
    Milestones,
    Plan,
    PlanState,
    Step,
    StepProgress,
    StepState,
    leaves_of,
    problem_of,
    problem_of_text,
)
from treesnap.plans.repository import log_name, save, trim_output

if TYPE_CHECKING:
    from treesnap.core.ops.context import Context

PROMPT = "{prompt}"
SHELL = "/bin/sh"
OUTPUT_BYTES_MAX = 32 << 20
"""How much output is kept of all plans of a root; the oldest is removed first."""

Calls = Mapping[str, Callable[[], object]]
"""Functions by the names that steps use. A function that raises has failed."""


def log_path(context: Context, plan: Plan, step_index: int, attempt: int) -> str:
    """Returns the path of the file with the output of one attempt."""
    root = Root(context.fs, Layout(context.store_path), plan.root)
    return root.file(log_name(plan.id, step_index, attempt))


def mark_of(plan: Plan, attempt: Attempt) -> str:
    """Returns the unique mark of an attempt: equal numbers differ in their snapshots."""
    return f"{plan.id}/{attempt.step_index}/{attempt.number}/{attempt.snapshot_id[:MARK_DIGITS]}"


def check_runnable(steps: tuple[Step, ...], runner: str | None, calls: Calls) -> None:
    """Raises InvalidArgument unless the steps have the runner and the calls that they need."""
    for step, _, _ in leaves_of(steps):
        problem = None
        if step.prompt is not None and runner is None:
            problem = "has a prompt, but no runner is set"
        if step.call is not None and step.call not in calls:
            problem = f"calls the unknown function {step.call!r}"
        if problem is not None:
            raise InvalidArgument(f"The step {step.name!r} {problem}", code=ErrorCode.INVALID_PLAN)
    if runner is not None:
        runner_command(runner, "")


def check_parts(name: str, milestones: Milestones, steps: tuple[Step, ...]) -> None:
    """Raises InvalidArgument for parts that do not make a valid plan."""
    problem = problem_of(name, milestones, steps)
    if problem is not None:
        raise InvalidArgument(
            f"The plan {quoted(name)} cannot be used: {problem}", code=ErrorCode.INVALID_PLAN
        )


def runner_command(runner: str, prompt: str) -> list[str]:
    """Returns the words of a runner with the prompt filled in; no shell interprets the prompt."""
    problem = problem_of_text(runner)
    if problem is not None:
        raise InvalidArgument(f"The runner {quoted(runner)} {problem}")
    try:
        words = shlex.split(runner)
    except ValueError as error:
        raise InvalidArgument(
            f"The runner {runner!r} cannot be split into words: {error}"
        ) from error
    if not any(PROMPT in word for word in words):
        raise InvalidArgument(f"The runner {runner!r} does not contain {PROMPT}")
    return [word.replace(PROMPT, prompt) for word in words]


def end_interrupted(context: Context, plan: Plan, *, mount: int | None = None) -> Plan:
    """Undoes an interrupted step and returns the plan as it was before the step.

    The caller holds the plan lock. A plan that was not interrupted is returned unchanged. ``mount``
    is that of the root before the step, where this process took the checkpoint.
    """
    settled = go_back_to_step(context, plan, mount=mount)
    return save(context, release_held(context, settled)) if settled.held else settled


def go_back_to_step(context: Context, plan: Plan, *, mount: int | None = None) -> Plan:
    """Does the part of :func:`end_interrupted` that is possible while the checkpoint is held.

    The plan keeps its held snapshots: this process cannot delete one that it holds itself.
    """
    attempt = plan.attempt
    if attempt is not None:
        with held_snapshot(context, attempt.snapshot_id, f"plan {plan.id}"):
            result = go_back(
                context,
                attempt.snapshot_id,
                partial(end_leftovers_of, context, plan, attempt),
                mount=mount,
                reason="step interrupted",
            )
        warn_of_untouched(context, result)
        if result.safety_id is not None:
            name = plan.leaves[attempt.step_index].step.name
            context.monitor.warn(
                WarningCode.STEP_UNDONE,
                f"The step {quoted(name)} of plan {plan.id} was interrupted: "
                f"{result.restored:,} restored, {result.created:,} created, "
                f"{result.deleted:,} deleted; the state before is snapshot {result.safety_id[:12]}",
            )
        before = StepProgress(attempts=attempt.number - 1)
        plan = plan.with_progress(attempt.step_index, before)
    settled = plan.settled()
    return plan if settled == plan and not plan.held else save(context, settled)


def end_leftovers_of(context: Context, plan: Plan, attempt: Attempt) -> None:
    """Kills the processes of an interrupted attempt; raises Busy if one cannot be killed."""
    path = log_path(context, plan, attempt.step_index, attempt.number)
    end_leftovers(context.fs, path, mark_of(plan, attempt), context.wait_s)


def _end_child(error: BaseException | None) -> NoReturn:
    """Ends a process that a called function forked and that returned from the function.

    It has a copy of the runner, which would continue the plan a second time.
    """
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    os._exit(code if isinstance(code, int) else int(code is not None))


class PlanMonitor:
    """Receives the events of a running plan, in order, from one thread; ignores them all.

    Subclasses override what they are interested in.
    """

    def other_root_entered(self, plan: Plan) -> None:
        """A plan is about to be changed that is of another root than the handle's."""

    def attempt_began(self, plan: Plan, attempt: Attempt) -> None:
        """A step is about to run, perhaps not for the first time."""

    def output(self, data: bytes) -> None:
        """The step has written output."""

    def attempt_ended(self, plan: Plan, attempt: Attempt, state: StepState) -> None:
        """The step has succeeded, or it has failed and was undone."""

    def checkpoint_taken(self, plan: Plan, checkpoint: Checkpoint) -> None:
        """A checkpoint was taken."""


class Runner:
    """Carries out one plan. The caller holds the plan lock of the root."""

    def __init__(self, context: Context, monitor: PlanMonitor, calls: Calls) -> None:
        self._context = context
        self._monitor = monitor
        self._calls = calls
        self._mount: int | None = None
        """That of the root before the running step."""

    def run(self, plan: Plan) -> Plan:
        """Carries out the remaining steps; returns the plan, completed or failed.

        On an interruption, or if anything but a step fails, the running step is undone before
        the exception propagates.
        """
        check_runnable(plan.content.steps, plan.runner, self._calls)
        self._saved = end_interrupted(self._context, plan)
        self._output_bytes = trim_output(self._context, OUTPUT_BYTES_MAX)
        try:
            return self._run(self._saved)
        except BaseException as error:
            self._take_step_back(error, partial(end_interrupted, mount=self._mount))
            raise

    def _run(self, plan: Plan) -> Plan:
        while plan.next_index < len(plan.content.progress):
            plan = self._run_step(plan)
            if plan.state == PlanState.FAILED:
                return plan
        if plan.state != PlanState.COMPLETED or plan.held:
            plan = self._save(replace(plan, state=PlanState.COMPLETED))
        return plan

    def _save(self, plan: Plan) -> Plan:
        self._saved = plan  # it may be on disk even if saving fails
        self._saved = save_thinned(self._context, plan)
        return self._saved

    def _run_step(self, plan: Plan) -> Plan:
        index = plan.next_index
        leaf = plan.leaves[index]
        plan = replace(plan.with_progress(index, StepProgress()), state=PlanState.RUNNING)
        request = snapshot_request(
            plan, f"before {leaf.step.name}", CheckpointType.PRE_RISKY_OPERATION
        )
        operation = f"step {leaf.step.name} of plan {plan.id}"

        def give_up(held: HeldCheckpoint, error: BaseException) -> None:
            self._mount = held.mount
            self._take_step_back(error, partial(go_back_to_step, mount=held.mount))

        with CheckpointBlock(self._context, request, operation, give_up, itself) as held:
            plan = self._attempts(plan, index, leaf, held)
        plan = release_held(self._context, plan)
        return self._save(plan) if plan.state == PlanState.FAILED else plan

    def _take_step_back(
        self, error: BaseException, way_back: Callable[[Context, Plan], Plan]
    ) -> None:
        """Rolls back the running step, if there is one, because of an error."""
        try:
            self._saved = save(self._context, way_back(self._context, self._saved))
        except Exception as failure:
            raise failure from error

    def _attempts(self, plan: Plan, index: int, leaf: Leaf, held: HeldCheckpoint) -> Plan:
        """Tries a step until it succeeds or has no retries left; the plan keeps what it holds."""
        before = held.made.snapshot
        if plan.milestones.enabled and plan.milestones.before_each_step:
            plan = self._with_checkpoint(plan, before, "before_step")
        for number in range(1, leaf.step.retries + 2):
            attempt = Attempt(step_index=index, number=number, snapshot_id=before.id)
            plan = self._save(hold(self._context, plan.began(attempt), before.id))
            if number == 1:
                pin_held(self._context, plan)
            self._monitor.attempt_began(plan, attempt)
            ended = self._attempt(plan, leaf.step, attempt)
            self._count_output(plan, attempt)
            if ended.is_success:
                done = plan.ended(StepState.COMPLETED, 0)
                done = self._with_milestones(done, before, index, leaf)
                plan = self._save(done)
                self._monitor.attempt_ended(plan, attempt, StepState.COMPLETED)
                return plan
            restored = held.go_back(reason="step failed")  # its processes have ended
            warn_of_untouched(self._context, restored)
            self._monitor.attempt_ended(plan, attempt, StepState.FAILED)
        return self._save(plan.ended(StepState.FAILED, ended.exit_code))

    def _attempt(self, plan: Plan, step: Step, attempt: Attempt) -> process.Ended:
        """Carries out a step once. A step that removes the root has failed."""
        path = log_path(self._context, plan, attempt.step_index, attempt.number)
        if step.call is not None:
            ended = self._call(step.call, path)
        else:
            work = process.StepWork(
                command=self._command(plan, step),
                directory=self._context.root,
                log_path=path,
                mark=mark_of(plan, attempt),
                timeout_s=step.timeout_s,
            )
            context = self._context
            ended = process.attempt(context.fs, work, self._monitor.output, context.wait_s)
        if ended.is_success and not self._has_root():
            self._monitor.output(b"The step removed the root\n")
            return process.Ended(1)
        return ended

    def _count_output(self, plan: Plan, attempt: Attempt) -> None:
        """Removes the oldest output if there is too much; lists all output only then."""
        path = log_path(self._context, plan, attempt.step_index, attempt.number)
        with suppress(OSError):
            self._output_bytes += self._context.fs.lstat(path).st_size
        if self._output_bytes > OUTPUT_BYTES_MAX:
            self._output_bytes = trim_output(self._context, OUTPUT_BYTES_MAX * 3 // 4)

    def _has_root(self) -> bool:
        try:
            return stat.S_ISDIR(self._context.fs.lstat(self._context.root).st_mode)
        except OSError:
            return False

    def _call(self, name: str, path: str) -> process.Ended:
        process_id = os.getpid()
        error: BaseException | None = None
        try:
            self._calls[name]()
        except BaseException as raised:
            error = raised
            if os.getpid() == process_id and not isinstance(raised, Exception):
                raise
        if os.getpid() != process_id:
            _end_child(error)
        if error is not None:
            said = f"{type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace")
            self._monitor.output(said)
            process.keep_output(self._context.fs, path, said)
            return process.Ended(1)
        return process.Ended(0)

    def _command(self, plan: Plan, step: Step) -> Sequence[str]:
        if step.prompt is not None:
            assert plan.runner is not None
            return runner_command(plan.runner, step.prompt)
        assert step.run is not None
        return [SHELL, "-c", step.run]

    def _with_milestones(self, plan: Plan, before: Snapshot, index: int, leaf: Leaf) -> Plan:
        """Returns the plan after a step, with a checkpoint if a milestone was reached."""
        milestones = plan.milestones
        reasons = ["after_step"] if leaf.step.checkpoint else []
        kind = CheckpointType.SAFE_STATE
        if milestones.enabled:
            every = milestones.every_n_steps
            if every is not None and (index + 1) % every == 0:
                reasons.append("every_n_steps")
            if milestones.after_subplan and leaf.ends:
                reasons.append("after_subplan")
                kind = CheckpointType.TASK_GROUP_COMPLETE
        if not reasons:
            return plan
        names = [leaf.step.name, *leaf.ends] if "after_subplan" in reasons else [leaf.step.name]
        label = "after " + ", ".join(names)
        if milestones.label_prefix is not None:
            is_every = reasons == ["every_n_steps"]
            step = f"step-{index + 1}" if is_every else leaf.step.name
            label = f"{milestones.label_prefix}:{step}"
        snapshot = take_snapshot(self._context, plan, label, kind)
        if milestones.skip_unchanged and self._is_unchanged(plan, before, snapshot):
            delete_unpinned(self._context, snapshot.id)
            return plan
        return self._with_checkpoint(plan, snapshot, "+".join(reasons))

    def _is_unchanged(self, plan: Plan, before: Snapshot, now: Snapshot) -> bool:
        """Returns whether nothing but times differs from the previous checkpoint."""
        there = available(self._context, plan)[:1]
        old = there[0].snapshot_id if there else before.id
        return all(map(is_time_alone, diff(self._context, old, now.id, ())))

    def _with_checkpoint(self, plan: Plan, snapshot: Snapshot, reason: str) -> Plan:
        plan = with_checkpoint(self._context, plan, snapshot, reason)
        self._monitor.checkpoint_taken(plan, plan.checkpoints[-1])
        return plan
