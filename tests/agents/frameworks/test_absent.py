"""An integration whose framework is not installed says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

EXTRAS = {
    "claude_agent_sdk": "claude-agent-sdk",
    "deepagents": "deepagents",
    "langchain": "langchain",
    "langgraph": "langchain",
    "openai_agents": "openai-agents",
    "pydantic_ai": "pydantic-ai",
}
FRAMEWORKS = ("agents", "claude_agent_sdk", "deepagents", "langchain", "langchain_core")
FRAMEWORKS += ("langgraph", "pydantic_ai")


@pytest.mark.parametrize(("module", "extra"), EXTRAS.items())
def test_an_absent_framework_is_named_with_its_extra(module, extra, monkeypatch):
    for name in list(sys.modules):
        if name.startswith("treesnap.agents.frameworks.") or name.partition(".")[0] in FRAMEWORKS:
            monkeypatch.delitem(sys.modules, name)
    for name in FRAMEWORKS:
        monkeypatch.setitem(sys.modules, name, None)

    named = rf"is missing; type: pip install 'treesnap\[{extra}\]'$"
    with pytest.raises(ModuleNotFoundError, match=named):
        importlib.import_module(f"treesnap.agents.frameworks.{module}")
