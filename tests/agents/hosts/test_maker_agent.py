"""Claude Code runs the agent that takes the place of MAKER's checkpoint manager.

The scripted model plays the orchestrator, which starts the agent as MAKER's does, and the agent.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hosts.conftest import Scene
from hosts.drivers import merge_json, user_variables
from hosts.model_server import Step
from maker_blocks import RULE, create_block, restore_block, status

PROJECT = Path(__file__).parents[3]
DEFINITION = PROJECT / "integrations" / "maker" / "agents" / "maker-checkpoint-manager.md"
PAGE = PROJECT / "docs" / "systems" / "maker.md"
AGENT = "maker-framework:maker-checkpoint-manager"


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A plugin with the name of MAKER's, in which the agent is."""
    directory = tmp_path / "maker-framework"
    (directory / ".claude-plugin").mkdir(parents=True)
    about = {"name": "maker-framework", "version": "1.0.0", "description": "MAKER"}
    (directory / ".claude-plugin" / "plugin.json").write_text(json.dumps(about))
    (directory / "agents").mkdir()
    shutil.copy(DEFINITION, directory / "agents")
    return directory


def answered(scene: Scene, plugin: Path, block: str) -> str:
    """Returns what the agent's model is shown when its command has run for a block."""
    (scene.home / "bin").mkdir(exist_ok=True)
    program = scene.home / "bin" / "treesnap"
    if not program.is_symlink():
        program.symlink_to(Path(sys.executable).with_name("treesnap"))
    variables = user_variables(scene.home) | scene.host.variables
    variables |= scene.host.prepare(scene.home, scene.network.port)
    variables["PATH"] = f"{scene.home}/bin:{variables['PATH']}"
    command = f"treesnap maker --metadata <<'END_OF_MAKER_BLOCK'\n{block}END_OF_MAKER_BLOCK"
    script: list[Step] = [
        {
            "tool": "Task",
            "arguments": {"subagent_type": AGENT, "description": "Checkpoint", "prompt": block},
        },
        scene.shell(command),
        {"text": "handed over"},
        {"text": "done"},
    ]
    merge_json(scene.home / ".claude" / "settings.json", settings_of_the_page())
    ended = scene.network.run(
        [scene.host.path(), "-p", "next step", "--plugin-dir", str(plugin)],
        script,
        cwd=scene.project,
        variables=variables,
    )
    assert ended.code == 0, ended
    of_agent = [request.body for request in ended.requests if is_of_agent(request.body)]
    assert block in json_text(of_agent[0]["messages"]), "the prompt of the agent is the block"
    (answer,) = results(ended.requests[-1].body)
    assert "handed over" in answer, "the orchestrator has waited for the answer"
    (result,) = results(of_agent[-1])
    return result


def settings_of_the_page() -> dict[str, Any]:
    """Returns the settings that the page tells a user to add."""
    (text,) = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def is_of_agent(body: dict[str, Any]) -> bool:
    """Returns whether a request is one of the agent, by what its definition tells the model."""
    return "You are the checkpoint manager of a MAKER pipeline" in json_text(body.get("system"))


def json_text(value: Any) -> str:
    """Returns all texts in a value of JSON, one below the other."""
    if isinstance(value, dict):
        return "\n".join(json_text(item) for item in value.values())
    if isinstance(value, list):
        return "\n".join(json_text(item) for item in value)
    return str(value)


def results(body: dict[str, Any]) -> list[str]:
    """Returns what tools answered in a request."""
    parts = [part for message in body["messages"] for part in message["content"] if part]
    return [
        json_text(part["content"])
        for part in parts
        if isinstance(part, dict) and part["type"] == "tool_result"
    ]


@pytest.mark.parametrize("host", ["claude"], indirect=True)
def test_the_agent_hands_blocks_to_the_program_and_back(scene, plugin):
    made = answered(scene, plugin, create_block(scene.project, "ckpt-1", "keep.txt", "new.txt"))
    assert status(made) == "CREATE_SUCCESS", made
    assert RULE in made
    (scene.project / "keep.txt").write_text("broken")
    (scene.project / "new.txt").write_text("half")

    restored = answered(scene, plugin, restore_block(scene.project, "ckpt-1"))

    assert status(restored) == "RESTORE_SUCCESS", restored
    assert (scene.project / "keep.txt").read_text() == "kept"
    assert not (scene.project / "new.txt").exists()
