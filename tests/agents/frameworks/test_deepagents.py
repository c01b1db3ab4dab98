"""A deep agent is captured before its backend runs a command or changes a file."""

from __future__ import annotations

from pathlib import Path

import pytest

import treesnap
from agent_steps import of_phase
from treesnap.agents.sessions import agent_session
from treesnap.core.ops.history.steps import EventPhase

pytest.importorskip("deepagents", reason="the extra 'deepagents' is not installed")
from deepagents import create_deep_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from treesnap.agents.frameworks.deepagents import SnapshotBackend
from treesnap.agents.frameworks.langchain import SnapshotMiddleware

TURN, PRE, POST, END = EventPhase.TURN, EventPhase.PRE, EventPhase.POST, EventPhase.END


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "plan").write_text("tomatoes")
    return root


@pytest.fixture
def handle(root: Path, tmp_path: Path) -> treesnap.Handle:
    return treesnap.open(root, tmp_path / "store")


@pytest.mark.parametrize(
    ("tool", "arguments", "label"),
    [
        ("execute", ("rm plan",), "execute: rm plan"),
        ("write", ("/new", "text"), "write: /new"),
        ("edit", ("/plan", "tomatoes", "beans"), "edit: /plan"),
        ("delete", ("/plan",), "delete: /plan"),
        ("upload_files", ([("/plan", b"beans")],), "upload: /plan"),
    ],
)
def test_what_a_method_changes_comes_back(root, handle, tool, arguments, label):
    backend = SnapshotBackend(handle, session="s1", inherit_env=True)

    getattr(backend, tool)(*arguments)
    changed = {path.name: path.read_text() for path in root.iterdir()}
    after, step = agent_session(handle.context, "s1").steps
    assert after.phase is EventPhase.POST
    handle.restore(step.snapshot.id)

    assert step.snapshot.label == label
    assert changed != {"plan": "tomatoes"}
    assert {path.name: path.read_text() for path in root.iterdir()} == {"plan": "tomatoes"}


def test_methods_that_read_are_not_captured(handle):
    backend = SnapshotBackend(handle)

    backend.read("/plan")
    backend.ls("/")

    assert len(handle.list()) == 0


def test_commands_and_prompts_are_one_session_without_a_checkpointer(root, handle):
    call = {"name": "execute", "args": {"command": "rm plan"}, "id": "1"}
    agent = create_deep_agent(
        ScriptedModel(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")])),
        backend=SnapshotBackend(handle, inherit_env=True),
        middleware=[SnapshotMiddleware(handle, captures_tools=False)],
    )

    agent.invoke({"messages": [("user", "Tidy up")]}, {"configurable": {"thread_id": "thread 1"}})

    session = agent_session(handle.context)
    assert not (root / "plan").exists()
    assert session.id == "thread 1"
    assert [step.phase for step in session.steps] == [END, POST, PRE, TURN]
    assert of_phase(session, PRE)[0].snapshot.label == "execute: rm plan"


def test_switched_off_nothing_is_captured_and_nothing_fails(root, handle, monkeypatch):
    monkeypatch.setenv("SNAP_DISABLE", "1")
    backend = SnapshotBackend(handle, is_strict=True, inherit_env=True)

    backend.execute("rm plan")

    assert list(root.iterdir()) == []
    assert handle.list() == ()
