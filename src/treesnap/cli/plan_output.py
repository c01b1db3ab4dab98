"""Plans for people and for programs.

For people, steps count from 1 everywhere; ``step_index`` is a position and counts from 0.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from treesnap.cli.json_output import Fields, fields_of
from treesnap.cli.text_output import path_text, short_id, skipped_lines, time_text
from treesnap.errors import printable
from treesnap.model import utc_text
from treesnap.plans import Checkpoint, Plan, PlanId, PlanState, RollbackResult, StepState
from treesnap.plans.plan import Leaf
from treesnap.quantities import count_text


def plan_fields(plan: Plan, *, is_at_work: bool = False) -> Fields:
    """Returns a plan with its steps, in the order in which they run."""
    return {
        "plan_id": plan.id,
        "name": plan.name,
        "state": plan.state,
        "interrupted": plan.is_interrupted and not is_at_work,
        "created_at": utc_text(plan.created_at_ns),
        "root": plan.root,
        "next_step": plan.next_index,
        "steps": [
            {
                "step_index": index,
                "path": leaf.path,
                **fields_of(leaf.step, without={"steps"}),
                **fields_of(progress),
            }
            for index, (leaf, progress) in enumerate(
                zip(plan.leaves, plan.content.progress, strict=True)
            )
        ],
    }


def checkpoint_fields(checkpoint: Checkpoint) -> Fields:
    """Returns one checkpoint."""
    return {
        **fields_of(checkpoint, without={"created_at_ns", "content"}),
        "created_at": utc_text(checkpoint.created_at_ns),
    }


def checkpoints_fields(checkpoints: Iterable[Checkpoint]) -> Fields:
    """Returns checkpoints in the order given."""
    return {"checkpoints": [checkpoint_fields(item) for item in checkpoints]}


def rollback_fields(result: RollbackResult) -> Fields:
    """Returns what a roll-back changed."""
    return {
        "plan_id": result.plan.id,
        "state": result.plan.state,
        **fields_of(result, without={"plan", "checkpoint", "before"}),
        "checkpoint": checkpoint_fields(result.checkpoint),
        "before": checkpoint_fields(result.before),
    }


def list_lines(plans: Sequence[Plan], at_work: Container[PlanId]) -> Iterator[str]:
    """Yields a table of plans."""
    for plan in plans:
        done = sum(item.state == StepState.COMPLETED for item in plan.content.progress)
        is_interrupted = plan.is_interrupted and plan.id not in at_work
        state = "interrupted" if is_interrupted else plan.state.value
        steps = f"{done}/{len(plan.content.progress)}"
        created = time_text(plan.created_at_ns)
        yield f"{plan.id}  {created}  {state:<11}  {steps:>7}  {printable(plan.name)}"


def show_lines(plan: Plan, checkpoints: Sequence[Checkpoint], *, is_at_work: bool) -> Iterator[str]:
    """Yields what is known of a plan, then a table of its steps."""
    interrupted = " (interrupted)" if plan.is_interrupted and not is_at_work else ""
    yield f"plan:        {plan.id}"
    yield f"name:        {printable(plan.name)}"
    yield f"root:        {printable(plan.root)}"
    yield f"created:     {time_text(plan.created_at_ns)}"
    yield f"state:       {plan.state.value}{interrupted}"
    yield f"checkpoints: {len(checkpoints)}"
    for index, (leaf, progress) in enumerate(zip(plan.leaves, plan.content.progress, strict=True)):
        line = f"{index + 1:>4}  {progress.state.value:<9}  {step_path(leaf)}"
        if progress.state == StepState.FAILED:
            attempts = count_text(progress.attempts, "attempt")
            line += f"  ({_cause(progress.exit_code)}, {attempts})"
        yield line


def step_path(leaf: Leaf) -> str:
    """Returns a step's name behind those of the sub-plans that it is in."""
    return printable("/".join((*leaf.path, leaf.step.name)))


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "time limit"
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


def checkpoint_lines(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Yields a table of checkpoints."""
    for item in checkpoints:
        yield (
            f"{item.id}  {time_text(item.created_at_ns)}  {_next_step(item):<9}  "
            f"{item.plan_state_hash[:12]}  {printable(item.label)}"
        )


def _next_step(checkpoint: Checkpoint) -> str:
    is_at_end = checkpoint.step_index >= len(checkpoint.content.progress)
    return "end" if is_at_end else f"step {checkpoint.step_index + 1}"


def step_text(plan: Plan, index: int) -> str:
    """Returns a step's number and name."""
    return f"step {index + 1} of {len(plan.leaves)}, {printable(plan.leaves[index].step.name)}"


def rollback_lines(result: RollbackResult) -> Iterator[str]:
    """Yields what a roll-back changed, and the checkpoint of the state before it."""
    plan = result.plan
    index = plan.next_index
    place = f"before {step_text(plan, index)}" if index < len(plan.leaves) else "at its end"
    yield (
        f"Plan {plan.id} is {place}: "
        f"{result.restored:,} restored, {result.created:,} created, {result.deleted:,} deleted"
    )
    for path in result.changed_paths:
        yield f"  {path_text(path)}"
    if result.dropped_steps:
        yield f"Removed steps: {printable(', '.join(result.dropped_steps))}"
    snapshot = f"snapshot {short_id(result.safety_id)}"
    yield f"The state before is checkpoint {result.before.id}, {snapshot}"
    yield from skipped_lines(result.untouched, "left alone")


def ended_lines(plan: Plan) -> Iterator[str]:
    """Yields how a plan ended, in one line."""
    done = sum(item.state == StepState.COMPLETED for item in plan.content.progress)
    if plan.state == PlanState.COMPLETED:
        yield f"Plan {plan.id} completed: {count_text(done, 'step')}"
        return
    index = plan.next_index
    why = _cause(plan.content.progress[index].exit_code)
    yield f"Plan {plan.id} failed at {step_text(plan, index)}: {why}; it was undone"
