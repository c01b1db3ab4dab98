"""What all frameworks share: an event of a run becomes a step of a session, as in a hook."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from treesnap.agents.event import Event
from treesnap.agents.hook import problem_of, reason_of, record
from treesnap.agents.hosts.base import Host, Payload, as_name
from treesnap.agents.sessions import note_gap
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, Refused, TreesnapError, printable
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import check_root, is_disabled_for_agents
from treesnap.core.ops.history.steps import EventPhase

_LOG = logging.getLogger(__name__)
_BLOCKED = (EventPhase.TURN, EventPhase.PRE)


class Recorder:
    """Captures one root at the events of a framework; threads may share it."""

    def __init__(
        self, framework: str, handle: Handle, session: str | None, *, is_strict: bool
    ) -> None:
        if not is_disabled_for_agents():
            check_root(handle.context, force=False)
        self.framework = framework
        self.handle = handle
        self.session: str = session or f"{framework}-{handle.context.clock_ns()}"
        """The session of events that name none."""
        self.is_strict = is_strict

    def record(
        self,
        phase: EventPhase,
        session: object = None,
        *,
        key: str = "",
        call: str = "",
        tool: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        prompt: str | None = None,
    ) -> Snapshot | None:
        """Returns the snapshot of an event, or None for one that was not captured.

        That is kept as a gap and logged, and the run goes on; if SNAP_DISABLE is set, nothing is
        kept. Only a strict recorder raises before a prompt or a tool: a TreesnapError or an
        OSError. The session is an id of any type, such as a number or a UUID. ``call`` names a
        call, the same before and after it; after calls without one, all of the session have ended.
        """
        if is_disabled_for_agents():
            return None
        payload = Payload({"tool_name": tool, "tool_input": dict(arguments or {})})
        event = Event(
            host=self.framework,
            phase=phase,
            root=self.handle.root,
            session=as_name(self.session if session in (None, "") else str(session)),
            key=as_name(key),
            tool=payload.text("tool_name"),
            prompt=prompt,
            summary=Host().summary(payload),
            call=as_name(call) if call else "",
        )
        blocks = self.is_strict and phase in _BLOCKED
        try:
            result = record(self.handle.context, event).result
        except (TreesnapError, OSError) as error:
            note_gap(self.handle.context, event, reason_of(error))
            if blocks:
                raise
            _LOG.warning("treesnap did not capture the files: %s", printable(reason_of(error)))
            return None
        problem = problem_of(result)
        if problem is not None:
            if blocks:
                raise Refused(problem, code=ErrorCode.UNREADABLE, path=self.handle.root)
            _LOG.warning("treesnap did not capture all files: %s", printable(problem))
        return result.snapshot
