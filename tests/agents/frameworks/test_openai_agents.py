"""Runs of the OpenAI Agents SDK are captured before each prompt and each tool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import treesnap
from agent_steps import of_phase
from treesnap.agents.rewind import RewindRequest, rewind
from treesnap.agents.sessions import agent_session
from treesnap.core.ops.history.steps import EventPhase

pytest.importorskip("agents.testing", reason="the extra 'openai-agents' is not installed")
from agents.testing import ScriptedModel, assistant_message, function_call

from agents import Agent, AgentHookContext, RunConfig, Runner, function_tool
from treesnap.agents.frameworks.openai_agents import SnapshotHooks

TURN, PRE, POST, END = EventPhase.TURN, EventPhase.PRE, EventPhase.POST, EventPhase.END
CALL = function_call("write", {"path": "a", "text": "1"}, call_id="c1")


class Scene:
    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self.handle = treesnap.open(self.root, directory / "store")

    def run(self, prompt: Any, *steps: Any, handoffs: Any = (), **options: Any) -> None:
        @function_tool(failure_error_function=None)
        def write(path: str, text: str) -> str:
            """Write a file."""
            (self.root / path).write_text(text)
            return "written"

        model = ScriptedModel([*steps, [assistant_message("done")]])
        agent = Agent(name="a", model=model, tools=[write], handoffs=list(handoffs))
        hooks = SnapshotHooks(self.handle, **({"session": "s1"} | options))
        config = RunConfig(tracing_disabled=True)
        asyncio.run(Runner.run(agent, prompt, hooks=hooks, run_config=config))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_steps_are_those_of_a_session(scene):
    scene.run("Write a file", [CALL])

    session = agent_session(scene.handle.context)

    assert (session.id, session.host) == ("s1", "openai-agents")
    assert [step.phase for step in session.steps] == [END, POST, PRE, TURN]
    assert [step.snapshot.label for step in session.steps] == [
        "end of the turn",
        "after write",
        "write: a",
        "Write a file",
    ]


def test_the_files_before_a_run_come_back(scene):
    scene.run("one", [CALL])
    scene.run("two", [CALL, function_call("write", {"path": "b", "text": "2"}, call_id="c2")])

    rewind(scene.handle.context, RewindRequest("1"))

    assert [path.name for path in scene.root.iterdir()] == ["a"]
    assert scene.handle.ls(of_phase(agent_session(scene.handle.context), TURN)[1].snapshot.id) == ()


def test_an_agent_that_takes_over_has_no_prompt_of_its_own(scene):
    other = Agent(name="other", model=ScriptedModel([[assistant_message("done")]]))

    scene.run("one", [function_call("transfer_to_other", {}, call_id="c1")], handoffs=[other])
    scene.run("two")

    turns = of_phase(agent_session(scene.handle.context), TURN)
    assert [step.snapshot.label for step in turns] == ["two", "one"]


def test_the_text_of_a_message_with_parts_is_its_label(scene):
    parts = [{"type": "input_text", "text": "Write"}, {"type": "input_text", "text": "it"}]

    scene.run([{"role": "user", "content": parts}])

    assert of_phase(agent_session(scene.handle.context), TURN)[0].snapshot.label == "Write it"


@pytest.mark.parametrize(
    ("newest", "label"),
    [
        (SimpleNamespace(content="Write it"), "Write it"),
        (SimpleNamespace(content=[SimpleNamespace(text="Write it")]), "Write it"),
        ({"content": ["Write it"]}, "Write it"),
        ({"content": [{"type": "input_image", "image_url": "a"}]}, None),
        ({"type": "function_call_output", "output": "a"}, None),
        (SimpleNamespace(), None),
        ("Write it", None),
    ],
)
def test_an_input_of_any_form_begins_a_turn(scene, newest, label):
    context = AgentHookContext(context=None, turn_input=[newest])

    asyncio.run(SnapshotHooks(scene.handle).on_agent_start(context, Agent(name="a")))

    (step,) = agent_session(scene.handle.context).steps
    assert (step.phase, step.snapshot.label) == (TURN, label)


def test_a_strict_run_ends_before_a_tool_that_cannot_be_undone(scene):
    scene.run("one")
    scene.handle.config("max-size", "1")
    (scene.root / "big").write_text("x" * 5000)

    with pytest.raises(treesnap.StorageFull):
        scene.run("two", [CALL], is_strict=True)

    assert not (scene.root / "a").exists()
    scene.run("three", [CALL])
    assert (scene.root / "a").exists()
    assert agent_session(scene.handle.context).gaps


def test_switched_off_nothing_is_captured_and_nothing_fails(scene, monkeypatch):
    monkeypatch.setenv("SNAP_DISABLE", "1")

    scene.run("Write a file", [CALL], is_strict=True)

    assert (scene.root / "a").exists()
    assert scene.handle.list() == ()
