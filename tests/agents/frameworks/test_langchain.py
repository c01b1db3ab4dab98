"""Files of a LangChain agent go back and forth with the checkpoints of its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import treesnap
from agent_steps import of_phase
from treesnap.agents.rewind import RewindRequest, rewind
from treesnap.agents.sessions import agent_session, agent_sessions
from treesnap.core.ops.history.steps import EventPhase

pytest.importorskip("langchain", reason="the extra 'langchain' is not installed")
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from treesnap.agents.frameworks import langgraph
from treesnap.agents.frameworks.langchain import SnapshotMiddleware

DURABILITIES = ["sync", "async"]
TURN, PRE, POST, END = EventPhase.TURN, EventPhase.PRE, EventPhase.POST, EventPhase.END


class ScriptedModel(GenericFakeChatModel):
    """Says what it is told to, whatever tools there are."""

    def bind_tools(self, tools, **options):
        return self


class Scene:
    """A thread of an agent whose tool writes files, and the root that it works in."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self.handle = treesnap.open(self.root, directory / "store")
        self.saver = InMemorySaver()
        self.config = {"configurable": {"thread_id": "thread 1"}}
        self.failing: set[str] = set()
        self.answers: list[AIMessage] = []
        self.graph = self.agent()

    def agent(self, **options: Any) -> Any:
        def write(name: str, text: str) -> str:
            """Write a file, or fail."""
            if name in self.failing:
                raise RuntimeError(name)
            (self.root / name).write_text(text)
            return "written"

        return create_agent(
            ScriptedModel(messages=self.said()),
            [write],
            middleware=[SnapshotMiddleware(self.handle, **options)],
            checkpointer=self.saver,
        )

    def said(self) -> Iterator[AIMessage]:
        while self.answers:
            yield self.answers.pop(0)

    def script(self, *steps: Mapping[str, str]) -> None:
        """Lets the model write the files of each step at once, one after the other, and end."""
        for files in steps:
            calls = [
                {"name": "write", "args": {"name": name, "text": text}, "id": f"call {index}"}
                for index, (name, text) in enumerate(files.items())
            ]
            self.answers.append(AIMessage("", tool_calls=calls))
        self.answers.append(AIMessage("done"))

    def ask(self, prompt: str, *steps: Mapping[str, str], **options: Any) -> None:
        self.script(*steps)
        self.graph.invoke({"messages": [("user", prompt)]}, self.config, **options)

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.root.iterdir())}

    def states(self) -> list[Any]:
        return list(self.graph.get_state_history(self.config))[::-1]

    def state(self, node: str, number: int = 0) -> Any:
        """Returns the oldest checkpoint, or a younger one, that goes on with a node."""
        return [state for state in self.states() if state.next[:1] == (node,)][number]

    def rewind(self, config: Any = None, **options: Any) -> dict[str, str]:
        langgraph.rewind(self.handle, self.graph, config or self.config, **options)
        return self.files()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_each_checkpoint_has_the_files_that_belong_to_it(scene, durability):
    """What belongs to it follows from the messages alone: the calls that were answered."""
    scene.ask("one", {"a": "1", "b": "1"}, {"a": "2"}, durability=durability)
    scene.ask("two", {"b": "3"}, durability=durability)
    states = scene.states()

    for state in [*states, *states[::-1]]:
        expected = {}
        messages = state.values["messages"]
        answered = {id(message) for message in messages if message.type == "tool"}
        calls = [
            call for message in messages if message.type == "ai" for call in message.tool_calls
        ]
        for call in calls[: len(answered)]:
            expected[call["args"]["name"]] = call["args"]["text"]
        assert scene.rewind(state.config) == expected, state.next
    assert len(states) == 21


def test_with_checkpoints_at_exit_alone_the_newest_one_has_its_files(scene):
    scene.ask("one", {"a": "1"}, durability="exit")
    scene.ask("two", {"a": "2"}, durability="exit")
    old, new = [state for state in scene.states() if state.next == ()]

    assert scene.rewind(old.config) == {"a": "1"}
    assert scene.rewind(new.config) == {"a": "2"}


def test_a_thread_that_goes_on_from_an_old_checkpoint_sees_its_files(scene):
    scene.ask("one", {"a": "1"}, {"b": "2"})
    old = scene.state("model", 1)

    assert scene.rewind(old.config) == {"a": "1"}
    scene.script({"c": "3"})
    scene.graph.invoke(None, old.config)

    assert scene.files() == {"a": "1", "c": "3"}
    assert scene.rewind(old.config) == {"a": "1"}
    assert scene.rewind() == {"a": "1", "c": "3"}


def test_each_branch_of_a_fork_has_its_files(scene):
    scene.ask("one", {"a": "1"}, {"a": "2"})
    first = scene.states()[-1].config
    tools = scene.state("tools", 1)
    scene.rewind(tools.config)
    message = tools.values["messages"][-1]
    message.tool_calls[0]["args"]["text"] = "other"
    fork = scene.graph.update_state(tools.config, {"messages": [message]})
    scene.script()
    scene.graph.invoke(None, fork)

    assert scene.files() == {"a": "other"}
    assert scene.rewind(first) == {"a": "2"}
    assert scene.rewind(tools.config) == {"a": "1"}
    assert scene.rewind(fork) == {"a": "1"}
    assert scene.rewind() == {"a": "other"}


def test_a_replayed_tool_is_captured_again_and_a_resumed_one_is_not(scene):
    scene.failing.add("b")
    with pytest.raises(RuntimeError):
        scene.ask("one", {"b": "1"})
    (scene.root / "half").write_text("of a tool")
    scene.failing.clear()
    scene.script()
    scene.graph.invoke(None, scene.config)
    calls = of_phase(agent_session(scene.handle.context), PRE)

    (scene.root / "half").write_text("of the user")
    scene.script()
    scene.graph.invoke(None, scene.state("tools").config)
    replayed = of_phase(agent_session(scene.handle.context), PRE)

    assert [scene.handle.ls(step.snapshot.id) for step in calls] == [()]
    assert len(replayed) == 2
    assert scene.handle.read(replayed[0].snapshot.id, "half") == b"of the user"


def test_the_steps_are_those_of_a_session(scene):
    scene.ask("Write two files", {"a": "1", "b": "1"})

    session = agent_session(scene.handle.context)

    assert (session.id, session.host) == ("thread 1", "langchain")
    phases = [step.phase for step in session.steps]
    assert (phases[0], phases[-1]) == (END, TURN)
    assert phases.count(PRE) == 2
    assert {*phases[1:-1]} == {PRE, POST}  # tools run beside each other
    assert of_phase(session, TURN)[0].snapshot.label == "Write two files"
    assert of_phase(session, PRE)[0].tool == "write"


@pytest.mark.parametrize("thread_id", [7, UUID(int=7)])
def test_a_thread_has_an_id_of_any_type(scene, thread_id):
    scene.config = {"configurable": {"thread_id": thread_id}}
    scene.ask("one", {"a": "1"})
    first = scene.states()[-1].config
    scene.ask("two", {"a": "2"})

    assert scene.rewind(first) == {"a": "1"}
    assert agent_session(scene.handle.context).id == str(thread_id)
    langgraph.delete_thread(scene.handle, scene.saver, thread_id)
    assert agent_sessions(scene.handle.context) == ()


def test_a_prompt_is_undone_like_that_of_a_host(scene):
    scene.ask("one", {"a": "1"})
    scene.ask("two", {"a": "2"})
    (scene.root / "mine").write_text("of the user")

    rewind(scene.handle.context, RewindRequest("1"))

    assert scene.files() == {"a": "1", "mine": "of the user"}


def test_what_the_user_changed_since_is_a_conflict(scene):
    scene.ask("one", {"a": "1"})
    scene.ask("two", {"a": "2"})
    (scene.root / "a").write_text("of the user")
    before = scene.state("model").config

    kept = langgraph.rewind(scene.handle, scene.graph, before)

    assert [change.path for change in kept.conflicts] == [b"a"]
    assert scene.files() == {"a": "of the user"}
    assert scene.rewind(before, overwrites=True) == {}
    scene.handle.undo()
    assert scene.files() == {"a": "of the user"}


def test_files_between_two_turns_belong_to_the_second_one(scene):
    scene.ask("one", {"a": "1"})
    (scene.root / "a").write_text("of the user")
    scene.ask("two", {"a": "2"})

    assert scene.rewind(scene.state("__start__", 1).config) == {"a": "of the user"}


def test_an_asynchronous_agent_is_captured_too(scene):
    scene.script({"a": "1"}, {"a": "2"})

    async def work() -> None:
        await scene.graph.ainvoke({"messages": [("user", "one")]}, scene.config)
        await langgraph.arewind(scene.handle, scene.graph, scene.state("tools", 1).config)

    asyncio.run(work())

    assert scene.files() == {"a": "1"}
    asyncio.run(langgraph.adelete_thread(scene.handle, scene.saver, "thread 1"))
    assert agent_sessions(scene.handle.context) == ()


def test_a_thread_is_deleted_with_its_snapshots(scene):
    scene.ask("one", {"a": "1"})
    scene.config["configurable"]["thread_id"] = "other"
    scene.ask("two", {"a": "2"})
    own = scene.handle.create(label="of the user").snapshot
    pinned = scene.handle.pin(agent_session(scene.handle.context, "thread 1").steps[0].snapshot.id)

    langgraph.delete_thread(scene.handle, scene.saver, "thread 1")
    langgraph.delete_thread(scene.handle, scene.saver, "thread 1")

    left = agent_session(scene.handle.context, "thread 1").steps
    assert [step.snapshot.id for step in left] == [pinned.id]
    assert own.id in {snapshot.id for snapshot in scene.handle.list()}
    assert scene.rewind() == {"a": "2"}


def test_a_copied_thread_has_the_files_of_its_checkpoints(scene):
    scene.ask("one", {"a": "1"})
    values = scene.states()[-1].values
    scene.config["configurable"]["thread_id"] = "copy"
    scene.graph.update_state(scene.config, values, as_node="SnapshotMiddleware.after_agent")
    (scene.root / "a").write_text("changed")

    assert scene.rewind() == {"a": "1"}


def test_files_that_were_not_captured_are_a_gap_and_no_way_back(scene, caplog):
    scene.ask("one", {"a": "1"})
    scene.handle.config("max-size", "1")
    scene.ask("two", {"b": "x" * 5000})

    with pytest.raises(treesnap.NotFound, match="were not captured"):
        scene.rewind()
    assert agent_session(scene.handle.context).gaps
    assert "treesnap did not capture the files" in caplog.text


def test_a_strict_middleware_lets_no_tool_run_that_cannot_be_undone(scene, tmp_path):
    scene.graph = scene.agent(is_strict=True)
    scene.ask("one", {"a": "1"})
    scene.handle.config("max-size", "1")
    (scene.root / "big").write_text("x" * 5000)

    with pytest.raises(treesnap.StorageFull):
        scene.ask("two", {"b": "2"})

    assert not (scene.root / "b").exists()


def test_without_a_checkpointer_the_session_is_the_given_one(scene):
    scene.saver = None
    scene.graph = scene.agent(session="mine")
    scene.config = {}
    scene.ask("one", {"a": "1"})

    session = agent_session(scene.handle.context)

    assert (session.id, len(session.steps)) == ("mine", 4)


def test_a_dangerous_root_is_refused_at_once(tmp_path):
    with pytest.raises(treesnap.Refused):
        SnapshotMiddleware(treesnap.open("/usr", tmp_path))


def test_parallel_tools_that_end_in_any_order_leave_one_state(scene):
    """The first tool ends last."""
    is_second_done = threading.Event()

    def first() -> str:
        """Wait for the other."""
        is_second_done.wait(10)
        (scene.root / "first").write_text("1")
        return "done"

    def second() -> str:
        """End first."""
        (scene.root / "second").write_text("2")
        is_second_done.set()
        return "done"

    calls = [{"name": name, "args": {}, "id": name} for name in ("first", "second")]
    messages = iter([AIMessage("", tool_calls=calls), AIMessage("done")])
    scene.graph = create_agent(
        ScriptedModel(messages=messages),
        [first, second],
        middleware=[SnapshotMiddleware(scene.handle)],
        checkpointer=scene.saver,
    )
    scene.ask("both")

    after_tools = scene.state("SnapshotMiddleware.before_model", 1)
    assert scene.rewind(after_tools.config) == {"first": "1", "second": "2"}
    assert scene.rewind(scene.state("tools").config) == {}


def test_switched_off_nothing_is_captured_and_nothing_fails(tmp_path, monkeypatch):
    scene = Scene(tmp_path)
    monkeypatch.setenv("SNAP_DISABLE", "1")
    scene.graph = scene.agent(is_strict=True)
    scene.script({"a": "1"})

    scene.graph.invoke({"messages": [("user", "go")]}, scene.config)

    assert (scene.root / "a").read_text() == "1"
    assert scene.handle.list() == ()
    with pytest.raises(treesnap.NotFound):
        langgraph.rewind(scene.handle, scene.graph, scene.config)
    langgraph.delete_thread(scene.handle, scene.saver, "thread 1")
