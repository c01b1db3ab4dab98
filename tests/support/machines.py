"""Running state machines of hypothesis as tests."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Runs a machine in random orders; prints the steps of one that fails."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
