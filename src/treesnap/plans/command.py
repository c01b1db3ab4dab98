"""``snap plan``: steps that run in order, with checkpoints to go back to.

For people, steps count from 1 everywhere; ``step_index`` is a position and counts from 0.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

from treesnap.cli.command import SnapGroup, pass_invocation
from treesnap.cli.declarations import Decorator, option
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import missing_lines, path_text, short_id, skipped_lines
from treesnap.cli.output.streams import is_terminal
from treesnap.cli.parameters import WholeNumber
from treesnap.core.ending_signals import ENDING, signal_name
from treesnap.core.model.errors import printable, quoted
from treesnap.core.model.presentation import Fields
from treesnap.core.model.quantities import count_text, time_text
from treesnap.plans import (
    Attempt,
    Checkpoint,
    CorrectionMode,
    Plan,
    PlanId,
    PlanMonitor,
    Planner,
    PlanState,
    RollbackResult,
    StepState,
)
from treesnap.plans.document import SIZE_BYTES_MAX, STANDARD_INPUT, invalid_document, parse_document
from treesnap.plans.plan import PIPELINE_MILESTONES, Leaf
from treesnap.plans.planner import has_own_store

plan_argument: Decorator = click.argument("plan_ref", metavar="PLAN")
runner_option: Decorator = click.option(
    "--runner", metavar="COMMAND", help="What carries out prompts, with {prompt} in it."
)


@click.group("plan", cls=SnapGroup)
def plan() -> None:
    """Run steps in order, with checkpoints to go back to.

    A PLAN is an id or its unique beginning, of any root; 'latest'; or the name of a plan
    of the root. A step that fails is undone whole.
    """


class ShowingMonitor(PlanMonitor):
    """Shows each attempt as it begins, and its output as it comes."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._output = invocation.output
        self._plan: Plan | None = None
        self._line_is_open = False

    def other_root_entered(self, plan: Plan) -> None:
        """Names the root: the command line does not."""
        self._output.note(f"Plan {plan.id} is of the root {quoted(plan.root)}")

    def attempt_began(self, plan: Plan, attempt: Attempt) -> None:
        """Shows the step's number and name."""
        self._plan = plan
        leaf = plan.leaves[attempt.step_index]
        again = f", attempt {attempt.number} of {leaf.step.retries + 1}"
        self._output.note(
            f"[{attempt.step_index + 1}/{len(plan.leaves)}] {_step_path(leaf)}"
            f"{again if leaf.step.retries else ''}"
        )

    def output(self, data: bytes) -> None:
        """Passes the step's output on."""
        self._output.pass_through(data)
        self._line_is_open = not data.endswith(b"\n")

    def attempt_ended(self, plan: Plan, attempt: Attempt, state: StepState) -> None:
        """Ends the step's last line, and says when a step failed."""
        if self._line_is_open:
            self.output(b"\n")
        if state == StepState.FAILED:
            name = plan.leaves[attempt.step_index].step.name
            self._output.note(f"{printable(name)} failed; what it did was undone")

    def cut_off(self) -> None:
        """Says how to continue a plan that neither failed nor was completed."""
        if self._plan is not None:
            again = self._invocation.command_text("plan", "resume", self._plan.id)
            self._output.note(f"The plan stops there. To continue: {again}")


@contextmanager
def _planner(
    invocation: Invocation, runner: str | None = None, *, makes_store: bool = False
) -> Iterator[Planner]:
    """Yields a planner for the root. A signal that ends the process undoes the step first."""
    monitor = ShowingMonitor(invocation)
    with _ended_in_order(), invocation.open(progress=False, makes_store=makes_store) as handle:
        try:
            yield Planner(handle, monitor=monitor, runner=runner)
        except BaseException:
            monitor.cut_off()
            raise


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turns signals into an exception; their default would leave the step running."""
    old = {number: signal.getsignal(number) for number in ENDING}
    replaced = [number for number, handler in old.items() if handler == signal.SIG_DFL]
    try:
        for number in replaced:
            signal.signal(number, _end)
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


@plan.command(
    "run",
    examples=[
        "snap plan run release.yaml",
        "snap plan run pipeline.yaml --runner 'agent --print {prompt}'",
    ],
)
@click.argument("path", metavar="FILE")
@runner_option
@click.option(
    "--architect",
    is_flag=True,
    help="Take checkpoints as Architect's pipelines do: its defaults, its labels.",
)
@pass_invocation
def run(invocation: Invocation, *, path: str, runner: str | None, architect: bool) -> None:
    """Run the plan in a YAML file.

    Exits 1 when a step failed: what it did was undone, and the steps before it stay.
    """
    where = STANDARD_INPUT if path == "-" else path
    definition = parse_document(
        _read(path, where), where, PIPELINE_MILESTONES if architect else None
    )
    if definition.prompt_line is not None and runner is None:
        raise invalid_document(
            where,
            definition.prompt_line,
            "the step has a prompt, and no --runner says what carries it out",
        )
    with _planner(invocation, runner, makes_store=True) as plans:
        ended = plans.run_definition(definition)
    _show_end(invocation, "plan.run", ended)


def _read(path: str, where: str) -> str:
    try:
        with click.open_file(path, "rb") as file:
            data: bytes = file.read(SIZE_BYTES_MAX + 1)
            return data.decode()
    except OSError as error:
        raise invalid_document(where, None, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise invalid_document(where, None, "it is not UTF-8") from error


def _show_end(invocation: Invocation, name: str, ended: Plan) -> None:
    """Prints how a plan ended; exits 1 unless it is completed."""
    invocation.output.result(name, lambda: _plan_fields(ended), _ended_lines(ended))
    if ended.state != PlanState.COMPLETED:
        again = invocation.command_text("plan", "resume", ended.id)
        invocation.output.note(f"To try again from there: {again}")
        click.get_current_context().exit(ExitCode.FAILED)


@plan.command("resume", examples=["snap plan resume latest", "snap plan resume 01J9"])
@plan_argument
@runner_option
@click.option(
    "--allow-commands",
    is_flag=True,
    help="Run what the plan says, although its store may be a stranger's.",
)
@pass_invocation
def resume(
    invocation: Invocation, *, plan_ref: str, runner: str | None, allow_commands: bool
) -> None:
    """Continue a plan that was interrupted, failed, or was rolled back.

    A step that was interrupted is undone and begins again; one that failed is tried
    again. Exits 1 when a step failed. A plan in a store that was not made here by this
    user is refused without --allow-commands.
    """
    with _planner(invocation, runner) as plans:
        ended = plans.resume(plan_ref, allow_commands=allow_commands)
    _show_end(invocation, "plan.resume", ended)


@plan.command("list", prints_only=True, examples=["snap plan list", "snap plan list --all --json"])
@click.option("--all", "all_roots", is_flag=True, help="Plans of all roots of the store.")
@pass_invocation
def list_plans(invocation: Invocation, *, all_roots: bool) -> None:
    """List the plans of the root, newest first.

    Columns: id, time, state, completed steps, name.
    """
    with _planner(invocation) as plans:
        listed = plans.list(all_roots=all_roots)
        interrupted = {plan.id for plan in listed if _is_interrupted(plans, plan)}
    if not listed:
        invocation.output.note("No plans")
    invocation.output.result(
        "plan.list",
        lambda: {
            "plans": [_plan_fields(plan, is_interrupted=plan.id in interrupted) for plan in listed]
        },
        _list_lines(listed, interrupted),
    )


@plan.command(
    "show",
    prints_only=True,
    examples=["snap plan show latest", "snap plan show release --output 2"],
)
@plan_argument
@option(
    "--output",
    "number",
    type=WholeNumber(min=1),
    metavar="N",
    help="Print what step N wrote, of all its attempts, shortened where it is long.",
)
@pass_invocation
def show(invocation: Invocation, *, plan_ref: str, number: int | None) -> None:
    """Show the steps of a plan, and the state of each."""
    output = invocation.output
    with _planner(invocation) as plans:
        plan = plans.show(plan_ref)
        is_interrupted = _is_interrupted(plans, plan)
        about = _plan_fields(plan, is_interrupted=is_interrupted)
        if number is None:
            checkpoints = plans.checkpoints(plan.id)
            output.result(
                "plan.show",
                lambda: {**about, **_checkpoints_fields(checkpoints)},
                _show_lines(plan, checkpoints, is_interrupted=is_interrupted),
            )
            return
        pieces = plans.output(plan.id, number - 1)
        is_foreign = is_terminal("stdout") and not has_own_store(plans)
        output.result(
            "plan.show",
            lambda: {**about, "output": b"".join(pieces).decode("utf-8", "replace")},
            map(_without_controls, pieces) if is_foreign else pieces,
        )


def _without_controls(piece: bytes) -> bytes:
    """Returns what a stranger says that a step wrote, without what acts on a terminal."""
    from treesnap.cli.output.coloured_patch import without_controls

    return without_controls(piece).encode()


@plan.command(
    "checkpoints",
    examples=["snap plan checkpoints latest", "snap plan checkpoints release --json"],
)
@plan_argument
@pass_invocation
def checkpoints(invocation: Invocation, *, plan_ref: str) -> None:
    """List the checkpoints of a plan, newest first.

    Columns: id, time, next step, plan state hash, label. The id stands for the checkpoint's
    snapshot in 'snap show', 'diff', 'pin', 'delete' and every other command with a REF.
    """
    with _planner(invocation) as plans:
        listed = plans.checkpoints(plan_ref)
    invocation.output.result(
        "plan.checkpoints", lambda: _checkpoints_fields(listed), _checkpoint_lines(listed)
    )


@plan.command("checkpoint", examples=["snap plan checkpoint latest -m 'tests pass'"])
@plan_argument
@click.option("-m", "--label", default="by hand", help="A description of the checkpoint.")
@click.option("--reason", help="Why it is taken.")
@click.option("--source-tool", metavar="NAME", help="What takes it [snap plan].")
@click.option("--phase", help="The phase of the work [the sub-plan].")
@pass_invocation
def checkpoint(
    invocation: Invocation,
    *,
    plan_ref: str,
    label: str,
    reason: str | None,
    source_tool: str | None,
    phase: str | None,
) -> None:
    """Take a checkpoint of a plan as it stands.

    Prints its id. Exits 6 while a process works on the plan.
    """
    with _planner(invocation) as plans:
        taken = plans.checkpoint(
            plan_ref, label=label, reason=reason, source_tool=source_tool, phase=phase
        )
    invocation.output.result("plan.checkpoint", lambda: {"checkpoint": taken.to_dict()}, [taken.id])


@plan.command(
    "rollback",
    examples=[
        "snap plan rollback latest",
        "snap plan rollback latest step:2",
        "snap plan rollback 01J9 01J9ZK --json",
    ],
)
@plan_argument
@click.argument("checkpoint_ref", required=False, metavar="[CHECKPOINT]")
@pass_invocation
def rollback(invocation: Invocation, *, plan_ref: str, checkpoint_ref: str | None) -> None:
    """Roll a plan and its files back to a checkpoint, or list the checkpoints.

    Both are rolled back, or neither. The state before becomes a checkpoint too, to return
    to; 'snap undo' does that as well, for files and plan. A CHECKPOINT is an id or its
    beginning, a label, or step:N for the newest one before step N, counted from 0.
    Columns of the list, newest first: id, time, next step, plan state hash, label.
    """
    output = invocation.output
    with _planner(invocation) as plans:
        if checkpoint_ref is None:
            listed = plans.checkpoints(plan_ref)
            output.result(
                "plan.rollback", lambda: _checkpoints_fields(listed), _checkpoint_lines(listed)
            )
            return
        result = plans.rollback(plan_ref, checkpoint_ref)
    output.result("plan.rollback", result.to_dict, _rollback_lines(result))


@plan.command(
    "correct",
    examples=[
        "snap plan correct latest --mode revert",
        "snap plan correct latest --mode append --step 'make lint' --name lint",
    ],
)
@plan_argument
@click.option(
    "--mode",
    required=True,
    type=click.Choice([mode.value for mode in CorrectionMode]),
    help="Back to before the error, or one more step.",
)
@click.option("--step", metavar="COMMAND", help="The step to append, for the shell.")
@click.option("--name", help="The step's name [correction-N].")
@pass_invocation
def correct(
    invocation: Invocation, *, plan_ref: str, mode: str, step: str | None, name: str | None
) -> None:
    """Roll a plan back to before its error, or add a step to it.

    'revert' rolls back to the last checkpoint before the error, and keeps all steps. 'append'
    adds a step before the one that failed, after 'revert' too, else at the end, and leaves
    files and other steps as they are. 'snap plan resume' then continues.
    """
    with _planner(invocation) as plans:
        result = plans.correct(plan_ref, CorrectionMode(mode), step, name=name)
    output = invocation.output
    if isinstance(result, RollbackResult):
        output.result("plan.correct", result.to_dict, _rollback_lines(result))
        return
    index = result.insertion_index - 1
    output.result(
        "plan.correct",
        lambda: {**_plan_fields(result), "added_step": index},
        [f"Added {_step_text(result, index)}"],
    )


@plan.command("apply", examples=["snap plan apply latest"])
@plan_argument
@pass_invocation
def apply(invocation: Invocation, *, plan_ref: str) -> None:
    """Accept what a completed plan did; it can then not be rolled back."""
    with _planner(invocation) as plans:
        applied = plans.apply(plan_ref)
    invocation.output.result(
        "plan.apply", lambda: _plan_fields(applied), [f"Plan {applied.id} is applied"]
    )


@plan.command("delete", examples=["snap plan delete release"])
@plan_argument
@pass_invocation
def delete(invocation: Invocation, *, plan_ref: str) -> None:
    """Delete a plan, its output, and its checkpoints.

    Files are not touched, and pinned snapshots stay.
    """
    with _planner(invocation) as plans:
        deleted = plans.delete(plan_ref)
    invocation.output.result(
        "plan.delete", lambda: _plan_fields(deleted), [f"Plan {deleted.id} is deleted"]
    )


def _is_interrupted(plans: Planner, plan: Plan) -> bool:
    return plan.is_interrupted and not plans.is_at_work(plan)


def _plan_fields(plan: Plan, *, is_interrupted: bool = False) -> Fields:
    """Returns a plan with its steps, in the order in which they run."""
    return {**plan.to_dict(), "interrupted": is_interrupted}


def _checkpoints_fields(checkpoints: Iterable[Checkpoint]) -> Fields:
    """Returns checkpoints in the order given."""
    return {"checkpoints": [item.to_dict() for item in checkpoints]}


def _list_lines(plans: Sequence[Plan], interrupted: Container[PlanId]) -> Iterator[str]:
    """Yields a table of plans."""
    for plan in plans:
        done = sum(item.state == StepState.COMPLETED for item in plan.content.progress)
        state = "interrupted" if plan.id in interrupted else plan.state.value
        steps = f"{done}/{len(plan.content.progress)}"
        created = time_text(plan.created_at_ns)
        yield f"{plan.id}  {created}  {state:<11}  {steps:>7}  {printable(plan.name)}"


def _show_lines(
    plan: Plan, checkpoints: Sequence[Checkpoint], *, is_interrupted: bool
) -> Iterator[str]:
    """Yields what is known of a plan, then a table of its steps."""
    yield f"plan:        {plan.id}"
    yield f"name:        {printable(plan.name)}"
    yield f"root:        {printable(plan.root)}"
    yield f"created:     {time_text(plan.created_at_ns)}"
    yield f"state:       {plan.state.value}{' (interrupted)' if is_interrupted else ''}"
    yield f"checkpoints: {len(checkpoints)}"
    for index, (leaf, progress) in enumerate(zip(plan.leaves, plan.content.progress, strict=True)):
        line = f"{index + 1:>4}  {progress.state.value:<9}  {_step_path(leaf)}"
        if progress.state == StepState.FAILED:
            attempts = count_text(progress.attempts, "attempt")
            line += f"  ({_cause(progress.exit_code)}, {attempts})"
        yield line


def _step_path(leaf: Leaf) -> str:
    """Returns a step's name behind those of the sub-plans that it is in."""
    return printable("/".join((*leaf.path, leaf.step.name)))


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "time limit"
    return f"exit code {exit_code}" if exit_code >= 0 else signal_name(-exit_code)


def _checkpoint_lines(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Yields a table of checkpoints."""
    for item in checkpoints:
        yield (
            f"{item.id}  {time_text(item.created_at_ns)}  {_next_step(item):<9}  "
            f"{item.plan_state_hash[:12]}  {printable(item.label)}"
        )


def _next_step(checkpoint: Checkpoint) -> str:
    is_at_end = checkpoint.step_index >= len(checkpoint.content.progress)
    return "end" if is_at_end else f"step {checkpoint.step_index + 1}"


def _step_text(plan: Plan, index: int) -> str:
    """Returns a step's number and name."""
    return f"step {index + 1} of {len(plan.leaves)}, {printable(plan.leaves[index].step.name)}"


def _rollback_lines(result: RollbackResult) -> Iterator[str]:
    """Yields what a roll-back changed, and the checkpoint of the state before it."""
    plan = result.plan
    index = plan.next_index
    place = f"before {_step_text(plan, index)}" if index < len(plan.leaves) else "at its end"
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
    yield from missing_lines(result.missing)


def _ended_lines(plan: Plan) -> Iterator[str]:
    """Yields how a plan ended, in one line."""
    done = sum(item.state == StepState.COMPLETED for item in plan.content.progress)
    if plan.state == PlanState.COMPLETED:
        yield f"Plan {plan.id} completed: {count_text(done, 'step')}"
        return
    index = plan.next_index
    why = _cause(plan.content.progress[index].exit_code)
    yield f"Plan {plan.id} failed at {_step_text(plan, index)}: {why}; it was undone"
