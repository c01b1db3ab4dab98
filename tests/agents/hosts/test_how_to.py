"""The page about ``snap mcp``, followed as it is written, from an empty home directory."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from hosts.conftest import Scene
from hosts.drivers import merge_json, user_variables
from hosts.namespace import Transcript
from hosts.test_mcp import NAMES, started, tool

pytest.importorskip("mcp", reason="the extra treesnap[mcp] is not installed")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "mcp.md"
HOOKS = {"claude": ".claude/settings.json", "codex": ".codex/hooks.json"}
MOVE = "mv keep.txt gone.txt"


def blocks(language: str) -> list[str]:
    """Returns the blocks of code on the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def lines_for(host: str) -> list[str]:
    """Returns what the page has a user of a host type, in its order."""
    lines = "".join(blocks("sh")).splitlines()
    return [line for line in lines if line.startswith(f"{host} ")]


@pytest.fixture
def user(scene: Scene) -> Scene:
    """A user who has treesnap and a host in the path, and lets the host's model use both."""
    host = scene.host
    if host.name not in NAMES:
        pytest.skip(f"{host.name} does not offer the tools of a server that starts late")
    scene.snap("--version")
    (scene.home / "bin" / host.name).symlink_to(host.path())
    host.prepare(scene.home, scene.network.port)
    if host.name == "claude":
        allowed = {"permissions": {"allow": ["mcp__treesnap"]}}
        merge_json(scene.home / ".claude" / "settings.json", allowed)
    return scene


def path_of(user: Scene) -> dict[str, str]:
    """Returns the variables of the user's shell."""
    variables = user_variables(user.home)
    return variables | {"PATH": f"{user.home / 'bin'}:{variables['PATH']}"}


def typed(user: Scene, line: str) -> Transcript:
    """Types a line of the page."""
    words = shlex.split(line)
    ended = user.network.run(
        [str(user.home / "bin" / words[0]), *words[1:]],
        [],
        cwd=user.project,
        variables={**user.host.variables, **path_of(user)},
    )
    assert ended.code == 0, (line, ended)
    return ended


def test_a_model_uses_the_server_and_restores_where_the_page_says_so(user):
    for line in lines_for(user.host.name):
        typed(user, line)
        if " add " not in line:
            continue

        ended = user.run(
            "tidy up",
            started(user),
            tool(user, "checkpoint", label="before it"),
            user.shell(MOVE),
            tool(user, "restore_plan", ref="latest"),
            variables=path_of(user),
        )

        assert ended.code == 0, ended
        assert user.listed("snapshots", "list")[0]["label"] == "before it"
        has_token = re.search(r'token[\\": ]+[0-9a-f]{32}', ended.asked) is not None
        assert has_token == ("--allow-restore" in line)
        user.snap("restore", "latest")


def test_a_host_takes_checkpoints_with_the_hook_of_the_page(user):
    if user.host.name not in HOOKS:
        pytest.skip(f"hooks of {user.host.name} start processes alone")
    of_claude = lines_for("claude")
    assert f"{of_claude[0]} --hooks" in of_claude
    typed(user, f"{lines_for(user.host.name)[0]} --hooks")
    (hooks,) = (json.loads(block) for block in blocks("json") if "mcp_tool" in block)
    (group,) = hooks["hooks"]["PreToolUse"]
    if user.host.name == "codex":
        group["hooks"][0]["input"]["host"] = "codex"
    merge_json(user.home / HOOKS[user.host.name], hooks)

    user.run("tidy up", user.shell(MOVE), variables=path_of(user))

    newest = user.listed("snapshots", "list")[0]
    assert newest["label"] == f"Bash: {MOVE}"
    assert "keep.txt" in user.snap("ls", newest["id"]).out
