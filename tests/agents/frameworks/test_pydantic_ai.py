"""Runs of Pydantic AI are captured before each prompt and each tool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import treesnap
from agent_steps import of_phase
from treesnap.agents.rewind import RewindRequest, rewind
from treesnap.agents.sessions import agent_session, agent_sessions
from treesnap.core.ops.history.steps import EventPhase

pytest.importorskip("pydantic_ai", reason="the extra 'pydantic-ai' is not installed")
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from treesnap.agents.frameworks.pydantic_ai import SnapshotCapability

TURN, PRE, POST, END = EventPhase.TURN, EventPhase.PRE, EventPhase.POST, EventPhase.END


class Scene:
    """An agent that writes a file with each prompt, twice where that says so."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self.handle = treesnap.open(self.root, directory / "store")

    def agent(self, **options: bool) -> Agent:
        capability = SnapshotCapability(self.handle, **options)
        agent = Agent(FunctionModel(self.answer), capabilities=[capability])

        @agent.tool_plain
        def write(path: str) -> str:
            with (self.root / path).open("a") as file:
                file.write("1")
            return "written"

        return agent

    def answer(self, messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        prompt = next(
            part.content for message in messages[::-1] for part in message.parts
            if part.part_kind == "user-prompt"
        )  # fmt: skip
        answered = sum(part.part_kind == "tool-return" for part in messages[-1].parts)
        if answered and (prompt != "twice" or len(messages) > 4):
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("write", {"path": "a"}, tool_call_id="call_0")])


def run(agent: Agent, prompt: str, **options: Any) -> Any:
    """Runs an agent in a loop that is closed after it; ``run_sync`` keeps its own."""
    return asyncio.run(agent.run(prompt, **options))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_steps_are_those_of_a_session(scene):
    run(scene.agent(), "Write a file", conversation_id="c1")

    session = agent_session(scene.handle.context)

    assert (session.id, session.host) == ("c1", "pydantic-ai")
    assert [step.phase for step in session.steps] == [END, POST, PRE, TURN]
    assert [step.snapshot.label for step in session.steps] == [
        "end of the turn",
        "after write",
        "write: a",
        "Write a file",
    ]


def test_the_runs_of_a_conversation_are_one_session(scene):
    agent = scene.agent()
    first = run(agent, "one")
    run(agent, "two", message_history=first.all_messages())

    (session,) = agent_sessions(scene.handle.context)
    rewind(scene.handle.context, RewindRequest("1"))

    assert [turn.snapshot.label for turn in of_phase(session, TURN)] == ["two", "one"]
    assert (scene.root / "a").read_text() == "1"


def test_equal_ids_of_two_calls_are_two_steps(scene):
    """Some models count their calls from the same number on in each answer."""
    run(scene.agent(), "twice")

    assert len(of_phase(agent_session(scene.handle.context), PRE)) == 2


def test_a_strict_run_ends_before_a_tool_that_cannot_be_undone(scene):
    run(scene.agent(), "one")
    scene.handle.config("max-size", "1")
    (scene.root / "big").write_text("x" * 5000)

    with pytest.raises(treesnap.StorageFull):
        run(scene.agent(is_strict=True), "two")

    assert (scene.root / "a").read_text() == "1"
    run(scene.agent(), "three", conversation_id="c3")
    assert (scene.root / "a").read_text() == "11"
    assert agent_session(scene.handle.context, "c3").gaps


def test_switched_off_nothing_is_captured_and_nothing_fails(tmp_path, monkeypatch):
    scene = Scene(tmp_path)
    monkeypatch.setenv("SNAP_DISABLE", "1")

    run(scene.agent(is_strict=True), "once")

    assert (scene.root / "a").exists()
    assert scene.handle.list() == ()
