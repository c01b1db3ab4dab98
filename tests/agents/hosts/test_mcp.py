"""Real hosts use the tools of ``snap mcp``, and their hooks do where they can call a server."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import treesnap
from hosts.conftest import Scene
from hosts.drivers import merge_json
from hosts.model_server import Step
from mcp_client import ask
from mcp_client import served as serving

PROGRAM = str(Path(sys.executable).with_name("snap"))
NAMES = {
    "claude": "mcp__treesnap__{}",
    "codex": "{}",
    "gemini": "mcp_treesnap_{}",
    "copilot": "treesnap-{}",
    "opencode": "treesnap_{}",
}
"""What hosts call the tools of a server named treesnap."""
HOOK = {
    "type": "mcp_tool",
    "server": "treesnap",
    "tool": "hook",
    "timeout": 20,
    "input": {
        "session_id": "${session_id}",
        "tool_use_id": "${tool_use_id}",
        "tool_name": "${tool_name}",
        "command": "${tool_input.command}",
    },
}
MOVE = "mv keep.txt gone.txt"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def served(scene: Scene, store: Path) -> Scene:
    """A host that starts ``snap mcp``, and lets its model use it."""
    words = ["mcp", "--allow-restore", "--hooks", "--store", str(store)]
    server: dict[str, Any] = {"command": PROGRAM, "args": words}
    home, name = scene.home, scene.host.name
    if name == "claude":
        merge_json(home / ".claude.json", {"mcpServers": {"treesnap": server}})
        merge_json(
            home / ".claude" / "settings.json", {"permissions": {"allow": ["mcp__treesnap"]}}
        )
    elif name == "codex":
        scene.host.prepare(home, scene.network.port)
        with (home / ".codex" / "config.toml").open("a") as file:
            file.write(f"[mcp_servers.treesnap]\ncommand = {json.dumps(PROGRAM)}\n")
            file.write(f"args = {json.dumps(words)}\n")
    elif name == "gemini":
        servers = {"treesnap": server | {"trust": True}}
        merge_json(home / ".gemini" / "settings.json", {"mcpServers": servers})
    elif name == "copilot":
        servers = {"treesnap": server | {"type": "local", "tools": ["*"]}}
        merge_json(home / ".copilot" / "mcp-config.json", {"mcpServers": servers})
    elif name == "opencode":
        servers = {"treesnap": {"type": "local", "command": [PROGRAM, *words]}}
        merge_json(home / ".config" / "opencode" / "opencode.json", {"mcp": servers})
    else:
        pytest.skip(f"{name} is not told here where its servers are")
    return scene


def started(scene: Scene) -> Step:
    """Returns what the model does until the tools are there, for which some hosts do not wait."""
    return {**scene.shell("true"), "until": "restore_plan"}


def tool(scene: Scene, name: str, **arguments: Any) -> Step:
    """Returns the model's call of a tool of the server."""
    namespace = {"namespace": "mcp__treesnap"} if scene.host.name == "codex" else {}
    called = NAMES[scene.host.name].format(name)
    return {"tool": called, "arguments": arguments, **namespace}


def test_a_model_takes_a_checkpoint_and_restores_it(served, store):
    ended = served.run(
        "tidy up",
        started(served),
        tool(served, "checkpoint", label="before it"),
        served.shell(MOVE),
        tool(served, "diff"),
    )

    assert ended.code == 0, ended
    handle = treesnap.open(served.project, store)
    (made,) = handle.list()
    assert made.label == "before it"
    assert [entry.name for entry in handle.ls(made.id)] == [b"keep.txt"]
    assert re.search(r'keep.txt[\\": ,]+change[\\": ]+removed', ended.asked)
    with serving(handle) as here:  # the token of a plan is the hash of what it is about
        token = ask(here, "restore_plan", ref=made.id)["token"]

    served.run(
        "again",
        started(served),
        tool(served, "restore_plan", ref=made.id),
        tool(served, "restore_apply", token=token),
    )

    assert [path.name for path in served.project.iterdir()] == ["keep.txt"]


def test_a_hook_calls_the_server_before_each_tool(served, store):
    if served.host.name not in {"claude", "codex"}:
        pytest.skip(f"hooks of {served.host.name} start processes alone")
    hook = HOOK | {"input": {**HOOK["input"], "host": served.host.name}}
    hooks = {"PreToolUse": [{"hooks": [hook]}]}
    where = {"claude": ".claude/settings.json", "codex": ".codex/hooks.json"}[served.host.name]
    merge_json(served.home / where, {"hooks": hooks})

    ended = served.run("tidy up", started(served), served.shell(MOVE))

    assert ended.code == 0, ended
    assert [path.name for path in served.project.iterdir()] == ["gone.txt"]
    handle = treesnap.open(served.project, store)
    newest = handle.list()[0]
    assert newest.label == f"Bash: {MOVE}"
    assert [entry.name for entry in handle.ls(newest.id)] == [b"keep.txt"]
