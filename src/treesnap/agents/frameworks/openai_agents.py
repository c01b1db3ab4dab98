"""OpenAI Agents: hooks for ``Runner.run``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from treesnap.agents.frameworks.recorder import Recorder
from treesnap.core.features import brought_by
from treesnap.core.handle import Handle
from treesnap.core.ops.history.steps import EventPhase

with brought_by("openai-agents"):
    from agents.tool_context import ToolContext

    from agents import Agent, AgentHookContext, RunContextWrapper, RunHooks, Tool


class SnapshotHooks(RunHooks[Any]):
    """Captures a root before each run, around each local tool, and after the run.

    The framework tells hooks of no session, so there is one for each of these objects: use one
    for all runs of a conversation, with the conversation's id as the ``session``.
    """

    def __init__(
        self, handle: Handle, *, session: str | None = None, is_strict: bool = False
    ) -> None:
        super().__init__()
        self.recorder: Recorder = Recorder("openai-agents", handle, session, is_strict=is_strict)
        self._handing_over: dict[int, Any] = {}
        """Runs in which another agent is about to start, told apart by their count of tokens:
        the one object that all contexts of a run share. It stays here, so no other has its id."""

    async def on_agent_start(
        self,
        context: AgentHookContext[Any],
        agent: Agent[Any],  # noqa: ARG002 - the framework's signature
    ) -> None:
        """Captures the files before a run; an agent that takes over begins none."""
        if self._handing_over.pop(id(context.usage), None) is None:
            newest = context.turn_input[-1] if context.turn_input else None
            prompt = _text(_field(newest, "content"))
            await asyncio.to_thread(self.recorder.record, EventPhase.TURN, prompt=prompt)

    async def on_handoff(
        self,
        context: RunContextWrapper[Any],
        from_agent: Agent[Any],  # noqa: ARG002 - the framework's signature
        to_agent: Agent[Any],  # noqa: ARG002 - the framework's signature
    ) -> None:
        """Notes that the next agent to start takes over."""
        self._handing_over[id(context.usage)] = context.usage

    async def on_agent_end(
        self,
        context: AgentHookContext[Any],  # noqa: ARG002 - the framework's signature
        agent: Agent[Any],  # noqa: ARG002 - the framework's signature
        output: Any,  # noqa: ARG002 - the framework's signature
    ) -> None:
        """Captures the files as the agent leaves them."""
        await asyncio.to_thread(self.recorder.record, EventPhase.END)

    async def on_tool_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],  # noqa: ARG002 - the framework's signature
        tool: Tool,
    ) -> None:
        """Captures the files before a tool; no call is told twice."""
        arguments = _object(context.tool_arguments) if isinstance(context, ToolContext) else {}
        await asyncio.to_thread(
            self.recorder.record,
            EventPhase.PRE,
            call=_call(context),
            tool=tool.name,
            arguments=arguments,
        )

    async def on_tool_end(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],  # noqa: ARG002 - the framework's signature
        tool: Tool,
        result: object,  # noqa: ARG002 - the framework's signature
    ) -> None:
        """Captures the files after a tool."""
        await asyncio.to_thread(
            self.recorder.record, EventPhase.POST, call=_call(context), tool=tool.name
        )


def _call(context: RunContextWrapper[Any]) -> str:
    """Returns what names the call of a tool, or nothing."""
    return context.tool_call_id if isinstance(context, ToolContext) else ""


def _text(content: Any) -> str:
    """Returns the text of a message, which may have several parts."""
    parts = content if isinstance(content, list) else [content]
    texts = (part if isinstance(part, str) else _field(part, "text") for part in parts)
    return " ".join(str(text) for text in texts if text)


def _field(item: Any, name: str) -> Any:
    """Returns a field of an input item or of a part of one, which may be an object; or None."""
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _object(text: str) -> Mapping[str, Any]:
    """Returns the arguments of a call, or none where a model wrote something else."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return value if isinstance(value, dict) else {}
    return {}
