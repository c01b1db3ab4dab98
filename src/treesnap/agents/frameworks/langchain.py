"""LangChain: a middleware for ``create_agent``.

It writes the id of a snapshot into the state of the agent, in nodes of its own and never beside
another node: so parallel tools write nothing, and each checkpoint has the id of its files whenever
and by whatever it is saved. ``langgraph`` goes back to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from treesnap.agents.frameworks.langgraph import HOST, KEY
from treesnap.agents.frameworks.recorder import Recorder
from treesnap.core.features import brought_by
from treesnap.core.handle import Handle
from treesnap.core.ops.history.steps import EventPhase

with brought_by("langchain"):
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain.agents.middleware.types import PrivateStateAttr, ToolCallRequest
    from langchain_core.messages import HumanMessage, ToolMessage
    from langgraph.runtime import Runtime
    from langgraph.types import Command


class AgentFiles(AgentState[Any]):
    """What the middleware adds to the state of an agent."""

    treesnap_snapshot: Annotated[str, PrivateStateAttr]


class SnapshotMiddleware(AgentMiddleware[AgentFiles, Any, Any]):
    """Captures a root before each turn, around each tool, and after the turn.

    Belongs at the beginning of the list of middleware, so that it sees the files before the
    others change any. A session is a thread, or without one the ``session``. Without
    ``captures_tools``, another part of the agent captures before tools, such as a backend.
    """

    state_schema = AgentFiles

    def __init__(
        self,
        handle: Handle,
        *,
        session: str | None = None,
        is_strict: bool = False,
        captures_tools: bool = True,
    ) -> None:
        super().__init__()
        self.captures_tools = captures_tools
        self.recorder: Recorder = Recorder(HOST, handle, session, is_strict=is_strict)

    def before_agent(self, state: AgentFiles, runtime: Runtime[Any]) -> dict[str, Any]:
        """Captures the files before the agent works."""
        newest = state["messages"][-1] if state["messages"] else None
        prompt = str(newest.text) if isinstance(newest, HumanMessage) else None
        return self._captured(EventPhase.TURN, runtime, prompt)

    def before_model(self, state: AgentFiles, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Captures what tools have left."""
        if not state["messages"] or not isinstance(state["messages"][-1], ToolMessage):
            return None
        return self._captured(EventPhase.POST, runtime)

    def after_agent(self, state: AgentFiles, runtime: Runtime[Any]) -> dict[str, Any]:  # noqa: ARG002 - the framework's signature
        """Captures the files as the agent leaves them."""
        return self._captured(EventPhase.END, runtime)

    async def abefore_agent(self, state: AgentFiles, runtime: Runtime[Any]) -> dict[str, Any]:
        """Does the same in a thread."""
        return await asyncio.to_thread(self.before_agent, state, runtime)

    async def abefore_model(
        self, state: AgentFiles, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Does the same in a thread."""
        return await asyncio.to_thread(self.before_model, state, runtime)

    async def aafter_agent(self, state: AgentFiles, runtime: Runtime[Any]) -> dict[str, Any]:
        """Does the same in a thread."""
        return await asyncio.to_thread(self.after_agent, state, runtime)

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Captures the files before a tool and after it, however it ends."""
        self._at_tool(EventPhase.PRE, request)
        try:
            return handler(request)
        finally:
            self._at_tool(EventPhase.POST, request)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Does the same in a thread."""
        await asyncio.to_thread(self._at_tool, EventPhase.PRE, request)
        try:
            return await handler(request)
        finally:
            await asyncio.to_thread(self._at_tool, EventPhase.POST, request)

    def _at_tool(self, phase: EventPhase, request: ToolCallRequest) -> None:
        """Captures once for each call: one that is resumed has the id of its checkpoint again."""
        if not self.captures_tools:
            return
        run = request.runtime.execution_info
        thread = run.thread_id if run is not None else None
        call = request.tool_call
        self.recorder.record(
            phase,
            thread,
            key="" if run is None or thread is None else f"{run.checkpoint_id} {call['id']}",
            call=call["id"] or "",
            tool=call["name"],
            arguments=call["args"],
        )

    def _captured(
        self, phase: EventPhase, runtime: Runtime[Any], prompt: str | None = None
    ) -> dict[str, Any]:
        """Captures, and returns the change of the state."""
        run = runtime.execution_info
        thread = run.thread_id if run is not None else None
        key = run.checkpoint_id if run is not None and thread is not None else ""
        snapshot = self.recorder.record(phase, thread, key=key, prompt=prompt)
        return {KEY: snapshot.id if snapshot is not None else ""}
