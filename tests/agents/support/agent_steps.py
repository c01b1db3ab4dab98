"""What tests ask of the session of an agent."""

from __future__ import annotations

from treesnap.agents.sessions import AgentSession
from treesnap.core.ops.history.steps import AgentStep, EventPhase


def of_phase(session: AgentSession, phase: EventPhase) -> list[AgentStep]:
    """Returns the steps of a phase, newest first."""
    return [step for step in session.steps if step.phase is phase]
