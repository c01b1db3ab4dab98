"""Pydantic AI: a capability for ``Agent``."""

from __future__ import annotations

import asyncio
from typing import Any

from treesnap.agents.frameworks.recorder import Recorder
from treesnap.core.features import brought_by
from treesnap.core.handle import Handle
from treesnap.core.ops.history.steps import EventPhase

with brought_by("pydantic-ai"):
    from pydantic_ai import AgentRunResult, RunContext, ToolDefinition
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import ToolCallPart


class SnapshotCapability(AbstractCapability[Any]):
    """Captures a root before each run and each tool, and after the run.

    A session is a conversation: pass its id, or the messages of its last run, to each run.
    """

    def __init__(self, handle: Handle, *, is_strict: bool = False) -> None:
        super().__init__()
        self.recorder = Recorder("pydantic-ai", handle, None, is_strict=is_strict)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Captures the files before the agent works."""
        prompt = ctx.prompt if isinstance(ctx.prompt, str) else None
        await asyncio.to_thread(
            self.recorder.record,
            EventPhase.TURN,
            ctx.conversation_id,
            key=ctx.run_id or "",
            prompt=prompt,
        )

    async def after_run(
        self, ctx: RunContext[Any], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Captures the files as the agent leaves them."""
        await asyncio.to_thread(self.recorder.record, EventPhase.END, ctx.conversation_id)
        return result

    async def before_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,  # noqa: ARG002 - the framework's signature
        args: dict[str, Any],
    ) -> dict[str, Any]:
        """Captures the files before a tool, once where an engine executes a run again."""
        key = f"{ctx.run_id} {ctx.run_step} {call.tool_call_id}" if ctx.run_id else ""
        await asyncio.to_thread(
            self.recorder.record,
            EventPhase.PRE,
            ctx.conversation_id,
            key=key,
            tool=call.tool_name,
            arguments=args,
        )
        return args
