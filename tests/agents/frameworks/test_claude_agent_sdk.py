"""Hooks of the Claude Agent SDK do what ``snap hook claude`` does, with what the host tells it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import treesnap
from command_line import wait_until
from slow import SlowFileSystem
from treesnap.agents.sessions import agent_session
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.steps import EventPhase

pytest.importorskip("claude_agent_sdk", reason="the extra 'claude-agent-sdk' is not installed")
from claude_agent_sdk import ClaudeAgentOptions

from treesnap.agents.frameworks.claude_agent_sdk import snapshot_hooks

PAYLOADS = Path(__file__).parents[2] / "agents" / "payloads" / "claude-2.1.332"
TURN, PRE, END = EventPhase.TURN, EventPhase.PRE, EventPhase.END


class Scene:
    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self.handle = treesnap.open(self.root, directory / "store")

    def tell(self, name: str, **options: Any) -> Any:
        """Returns what the SDK is replied for a recorded payload."""
        payload = json.loads((PAYLOADS / f"{name}.json").read_text())
        options = ClaudeAgentOptions(hooks=snapshot_hooks(self.handle, **options))
        (matcher,) = options.hooks[payload["hook_event_name"]]
        (callback,) = matcher.hooks
        return asyncio.run(callback(payload, payload.get("tool_use_id"), {"signal": None}))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_turn_is_captured_in_steps(scene):
    replies = [scene.tell(name) for name in ("UserPromptSubmit", "PreToolUse", "Stop")]

    session = agent_session(scene.handle.context)

    assert replies == [{}, {}, {}]
    assert [step.phase for step in session.steps] == [END, PRE, TURN]
    assert session.host == "claude"


def test_a_tool_that_reads_is_not_captured(scene):
    assert scene.tell("PreToolUse-read") == {}
    assert len(scene.handle.list()) == 0


def test_a_strict_hook_denies_what_cannot_be_undone(scene):
    scene.tell("UserPromptSubmit")
    scene.handle.config("max-size", "1")
    (scene.root / "big").write_text("x" * 5000)

    denied = scene.tell("PreToolUse", is_strict=True)["hookSpecificOutput"]
    warned = scene.tell("PreToolUse")

    assert denied["permissionDecision"] == "deny"
    assert "nothing was done" in denied["permissionDecisionReason"]
    assert "did not capture" in warned["systemMessage"]


def test_what_a_strict_hook_cannot_answer_in_time_is_blocked(scene):
    for is_strict, failing in [(True, "block"), (False, "continue")]:
        for matchers in snapshot_hooks(scene.handle, is_strict=is_strict, timeout_s=7).values():
            assert [(item.timeout, item.on_failure) for item in matchers] == [(7, failing)]


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_a_tool_that_the_sdk_no_longer_waits_for_has_no_step(scene, monkeypatch):
    path = scene.root / "file"
    path.write_text("text")
    fs = SlowFileSystem(path, 7.0, monkeypatch)
    scene.handle = Handle(context_at(scene.root, scene.handle.store_path, fs=fs))

    warned = scene.tell("PreToolUse", timeout_s=7)["systemMessage"]

    session = agent_session(scene.handle.context)
    assert "it took longer than the hook may take" in warned
    assert (session.steps, len(session.gaps)) == ((), 1)
    wait_until(scene.handle.list)  # of a process in the background


def test_switched_off_there_are_no_hooks(scene, monkeypatch):
    monkeypatch.setenv("SNAP_DISABLE", "1")

    assert ClaudeAgentOptions(hooks=snapshot_hooks(scene.handle, is_strict=True)).hooks == {}
