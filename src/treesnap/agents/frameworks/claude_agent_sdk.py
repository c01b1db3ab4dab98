"""Claude Agent SDK: hooks for ``ClaudeAgentOptions``, which do in this process what ``snap hook
claude`` does in one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from treesnap.agents.hook import respond, with_deadline
from treesnap.agents.hosts.base import Payload
from treesnap.agents.hosts.table import host_named
from treesnap.core.features import brought_by
from treesnap.core.handle import Handle
from treesnap.core.ops.context import Context, check_root, is_disabled_for_agents

with brought_by("claude-agent-sdk"):
    from claude_agent_sdk import HookMatcher

EVENTS = ("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop")
TIMEOUT_DEFAULT_S = 60.0


def snapshot_hooks(
    handle: Handle, *, is_strict: bool = False, timeout_s: float = TIMEOUT_DEFAULT_S
) -> dict[Any, list[HookMatcher]]:
    """Returns hooks that capture a root around each tool, before each prompt and after the turn.

    A session is that of the SDK. A strict hook blocks what cannot be captured before, also when
    the time is over. If SNAP_DISABLE is set, there are no hooks. Raises Refused for a dangerous
    root, and NotFound without one.
    """
    if is_disabled_for_agents():
        return {}
    check_root(handle.context, force=False)

    async def capture(payload: Any, _tool_use_id: str | None, _context: Any) -> Any:
        context = with_deadline(handle.context, timeout_s)
        return await asyncio.to_thread(_reply, context, payload, is_strict=is_strict)

    failing: Literal["block", "continue"] = "block" if is_strict else "continue"
    matcher = HookMatcher(hooks=[capture], timeout=timeout_s, on_failure=failing)
    return {event: [matcher] for event in EVENTS}


def _reply(context: Context, fields: Mapping[str, Any], *, is_strict: bool) -> dict[str, Any]:
    """Returns what the SDK expects of a hook."""
    host = host_named("claude")
    event = host.parse(Payload(fields, root=context.root))
    if event is None:
        return {}
    return host.reply_fields(event, respond(event, host, context, is_strict=is_strict))
