"""The examples of the page about frameworks run as they stand there, below a few given names."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "agent-frameworks.md"
GIVEN = {
    "LangChain and LangGraph": """
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self
def delete() -> str:
    "Delete the plan."
    os.unlink("project/plan")
    return "deleted"
call = {"name": "delete", "args": {}, "id": "1"}
done = AIMessage("done")
model = Model(messages=iter([AIMessage("", tool_calls=[call]), done, done]))
tools = [delete]
checkpointer = InMemorySaver()
""",
    "OpenAI Agents": """
from agents import function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
set_tracing_disabled(True)
@function_tool(failure_error_function=None)
def delete() -> str:
    "Delete the plan."
    os.unlink("project/plan")
    return "deleted"
model = ScriptedModel([[function_call("delete", {}, call_id="1")], [assistant_message("done")]])
tools = [delete]
""",
    "Pydantic AI": """
from pydantic_ai.models.test import TestModel
def delete() -> str:
    "Delete the plan."
    os.unlink("project/plan")
    return "deleted"
model = TestModel()
tools = [delete]
""",
    "Claude Agent SDK": "",
    "Deep Agents": """
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self
call = {"name": "delete", "args": {"file_path": "/plan"}, "id": "1"}
model = Model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))
""",
}
"""What the examples below a heading use without saying where it is from. A tool that deletes the
file fails where it is not there."""
REWOUND = """
from treesnap.agents.rewind import RewindRequest, rewind
assert not os.path.exists("project/plan")
rewind(handle.context, RewindRequest())
assert os.path.exists("project/plan")
"""
THEN = {
    "LangChain and LangGraph": "assert {found.kind for found in handle.list()} == {'safety'}",
    "Claude Agent SDK": "assert {'PreToolUse', 'PostToolUse', 'Stop'} < set(options.hooks)",
}
"""What holds after the examples; by default, that the prompt can be undone."""
NEEDED = {
    "LangChain and LangGraph": "langchain",
    "OpenAI Agents": "agents.testing",
    "Pydantic AI": "pydantic_ai",
    "Claude Agent SDK": "claude_agent_sdk",
    "Deep Agents": "deepagents",
}


def examples() -> dict[str, str]:
    """Returns the examples below each heading, as one program."""
    found: dict[str, str] = {}
    tokens = MarkdownIt().parse(PAGE.read_text(encoding="utf-8"))
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            heading = following.content
        elif token.type == "fence" and token.info == "python":
            found[heading] = found.get(heading, "") + token.content
    return found


def test_each_framework_has_an_example():
    assert set(examples()) == set(GIVEN)


@pytest.mark.parametrize("heading", GIVEN)
def test_the_example_brings_back_what_a_tool_deletes(heading, tmp_path, monkeypatch):
    pytest.importorskip(NEEDED[heading], reason=f"{heading}: not installed")
    monkeypatch.setenv("SNAP_STORE", str(tmp_path / "store"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "plan").write_text("tomatoes")
    program = f"import os\n{GIVEN[heading]}{examples()[heading]}{THEN.get(heading, REWOUND)}"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
