"""What the commands of ``snap plan`` share: a planner that shows what happens."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.command import Function
from treesnap.cli.exits import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.errors import printable
from treesnap.plans import Attempt, Checkpoint, Plan, Planner, PlanState, StepState


class ShowingMonitor:
    """Shows each attempt as it begins, and its output as it comes."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._output = invocation.output
        self._plan: Plan | None = None
        self._line_is_open = False

    def attempt_began(self, plan: Plan, attempt: Attempt) -> None:
        """Shows the step's number and name."""
        self._plan = plan
        leaf = plan.leaves[attempt.step_index]
        name = "/".join((*leaf.path, leaf.step.name))
        again = f", attempt {attempt.number} of {leaf.step.retries + 1}"
        self._output.warn(
            f"[{attempt.step_index + 1}/{len(plan.leaves)}] {printable(name)}"
            f"{again if leaf.step.retries else ''}"
        )

    def output(self, data: bytes) -> None:
        """Passes the step's output on."""
        self._output.piece(data)
        self._line_is_open = not data.endswith(b"\n")

    def attempt_ended(self, plan: Plan, attempt: Attempt, state: StepState) -> None:
        """Ends the step's last line, and says that a step failed."""
        if self._line_is_open:
            self.output(b"\n")
        if state == StepState.FAILED:
            name = plan.leaves[attempt.step_index].step.name
            self._output.warn(f"{printable(name)} failed; what it did was undone")

    def cut_off(self) -> None:
        """Says how to go on with a plan that neither failed nor was completed."""
        if self._plan is not None:
            again = self._invocation.command_text("plan", "resume", self._plan.id)
            self._output.warn(f"The plan stops there. To go on: {again}")

    def checkpoint_taken(self, plan: Plan, checkpoint: Checkpoint) -> None:
        """Says nothing: checkpoints are listed on demand."""


@contextmanager
def planner(
    invocation: Invocation, runner: str | None = None, *, makes_store: bool = False
) -> Iterator[Planner]:
    """Yields a planner for the root of the call. What is told to end takes its step back."""
    monitor = ShowingMonitor(invocation)
    with _ended_in_order(), invocation.open(progress=False, makes_store=makes_store) as handle:
        try:
            yield Planner(handle, monitor=monitor, runner=runner)
        except BaseException:
            monitor.cut_off()
            raise


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turns a request to end into an exception; by default it would leave the step running."""
    old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
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


def runner_option(function: Function) -> Function:
    """Adds the option that says what carries out prompts."""
    return click.option(
        "--runner", metavar="COMMAND", help="What carries out prompts, with {prompt} in it."
    )(function)


def report(invocation: Invocation, command: str, plan: Plan) -> None:
    """Prints how a plan ended; exits 1 unless it is completed."""
    invocation.output.result(
        command, fields=lambda: forms.plan_fields(plan), lines=lambda: forms.ended_lines(plan)
    )
    if plan.state != PlanState.COMPLETED:
        if not invocation.output.as_json:
            again = invocation.command_text("plan", "resume", plan.id)
            invocation.output.warn(f"To try again from there: {again}")
        click.get_current_context().exit(ExitCode.FAILED)
