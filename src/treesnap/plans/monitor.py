"""How a running plan reports what it does, without printing."""

from __future__ import annotations

from typing import Protocol

from treesnap.plans.plan import Attempt, Checkpoint, Plan, StepState


class PlanMonitor(Protocol):
    """Receives what happens, in order, from one thread."""

    def attempt_began(self, plan: Plan, attempt: Attempt) -> None:
        """A step is about to be carried out, perhaps not for the first time."""

    def output(self, data: bytes) -> None:
        """The step has written something."""

    def attempt_ended(self, plan: Plan, attempt: Attempt, state: StepState) -> None:
        """The step has succeeded, or it has failed and what it did was undone."""

    def checkpoint_taken(self, plan: Plan, checkpoint: Checkpoint) -> None:
        """There is a checkpoint more to go back to."""


class NullPlanMonitor:
    """Ignores everything."""

    def attempt_began(self, plan: Plan, attempt: Attempt) -> None:
        """Ignores the beginning."""

    def output(self, data: bytes) -> None:
        """Ignores the output."""

    def attempt_ended(self, plan: Plan, attempt: Attempt, state: StepState) -> None:
        """Ignores the end."""

    def checkpoint_taken(self, plan: Plan, checkpoint: Checkpoint) -> None:
        """Ignores the checkpoint."""
