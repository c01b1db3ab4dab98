"""What tests ask of the session of an agent."""

from __future__ import annotations

from treesnap.agents.event import EventPhase
from treesnap.agents.sessions import AgentSession, AgentStep


def of_phase(session: AgentSession, phase: EventPhase) -> list[AgentStep]:
    """Returns the steps of a phase, newest first."""
    return [step for step in session.steps if step.phase is phase]
