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
    from pydantic_ai.capabilities import (
        AbstractCapability,
        WrapRunHandler,
        WrapToolExecuteHandler,
    )
    from pydantic_ai.messages import ToolCallPart


class SnapshotCapability(AbstractCapability[Any]):
    """Captures a root before each run, around each tool, and after the run.

    A session is a conversation: pass its id, or the messages of its last run, to each run.
    """

    def __init__(self, handle: Handle, *, is_strict: bool = False) -> None:
        super().__init__()
        self.recorder: Recorder = Recorder("pydantic-ai", handle, None, is_strict=is_strict)

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

    async def wrap_run(
        self, ctx: RunContext[Any], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        """Captures the files as the agent leaves them, also where an exception ends the run."""
        try:
            return await handler()
        finally:
            await asyncio.to_thread(self.recorder.record, EventPhase.END, ctx.conversation_id)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,  # noqa: ARG002 - the framework's signature
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Captures the files before a tool, once where an engine executes a run again, and after.

        After it also where it raises.
        """
        key = f"{ctx.run_id} {ctx.run_step} {call.tool_call_id}" if ctx.run_id else ""
        told = {"key": key, "call": call.tool_call_id, "tool": call.tool_name}
        record, session = self.recorder.record, ctx.conversation_id
        await asyncio.to_thread(record, EventPhase.PRE, session, arguments=args, **told)
        try:
            return await handler(args)
        finally:
            await asyncio.to_thread(record, EventPhase.POST, session, **told)
