"""After ``snap rewind --conversation`` a real host sends its model the shorter conversation."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from command_line import wait_until
from hosts import terminal
from hosts.conftest import DONE, Scene
from hosts.drivers import MODEL, SYSTEM_PATH, merge_json, user_variables
from hosts.namespace import Transcript

CALLS = {"codex": "cut", "copilot": "cut", "opencode": "fork"}
"""The hosts that have a call, and what it does to the session."""


KEYS = ("claude", "codex", "gemini", "copilot")
"""The hosts in which keys do it."""
MARK = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
"""What Claude Code and Copilot put before the entry of a menu that is chosen."""
SAID = "THAT-IS-ALL"
"""What the model says last in a terminal."""


@pytest.fixture
def talked(scene: Scene) -> Scene:
    """A session of a host with a call, in which two prompts have made a file each."""
    if scene.host.name not in CALLS:
        pytest.skip(f"{scene.host.name} has no call that takes a conversation back")
    return talk(scene)


@pytest.fixture
def typed(scene: Scene) -> Scene:
    """A session of a host in which keys do it, likewise."""
    if scene.host.name not in KEYS:
        pytest.skip(f"{scene.host.name} has no keys that are known to take a conversation back")
    if which("tmux") is None:
        pytest.skip("there is no tmux")
    return talk(scene)


def talk(scene: Scene) -> Scene:
    """Gives a host two prompts; for each its agent makes a file."""
    scene.snap("agent", "install", scene.host.name)
    for name in ("first", "second"):
        step = scene.shell(f"echo {name} > {name}.txt")
        session = session_of(scene) if name == "second" else None
        assert scene.run(f"the {name} prompt", step, session=session).code == 0
    return scene


def session_of(scene: Scene) -> str:
    """Returns the id of the only session that snapshots were made in."""
    (found,) = {item["session"] for item in scene.listed("snapshots", "list") if item["session"]}
    return str(found)


def variables_of(scene: Scene) -> dict[str, str]:
    """Returns the environment of the user of the host, who can start it."""
    host = scene.host
    own = host.prepare(scene.home, scene.network.port)
    variables = {**user_variables(scene.home), **host.variables, **own}
    return {**variables, "PATH": f"{Path(host.path()).parent}:{SYSTEM_PATH}"}


def rewind(scene: Scene, *words: str) -> tuple[int, dict[str, Any]]:
    """Runs ``snap rewind`` as the user of the host."""
    ended = scene.network.run(
        [str(scene.program), "rewind", "--json", *words],
        [DONE],
        cwd=scene.project,
        variables=variables_of(scene),
    )
    assert ended.requests == []  # no model is asked
    return ended.code, json.loads(ended.out)


def third(scene: Scene, session: str) -> Transcript:
    """Goes on with a session, after which the model has been told the whole conversation."""
    ended = scene.run("the third prompt", session=session)
    assert ended.code == 0, ended
    return ended


def files(scene: Scene) -> set[str]:
    return {path.name for path in scene.project.glob("*.txt")}


def test_files_and_conversation_go_back_to_before_the_newest_prompt(talked):
    session = session_of(talked)

    code, said = rewind(talked, "--conversation")

    found = said["conversation"]
    way = CALLS[talked.host.name]
    assert (code, found["outcome"]) == (0, "back" if way == "cut" else "forked"), found
    assert (found["session"] == session) == (way == "cut")
    assert files(talked) == {"keep.txt", "first.txt"}
    asked = third(talked, found["session"]).asked
    assert "the first prompt" in asked
    assert "the second prompt" not in asked
    if way == "fork":
        assert "the second prompt" in third(talked, session).asked


def test_two_prompts_go_back_at_once(talked):
    code, said = rewind(talked, "2", "--conversation")

    assert code == 0, said["conversation"]
    assert files(talked) == {"keep.txt"}
    asked = third(talked, said["conversation"]["session"]).asked
    assert "the first prompt" not in asked
    assert "the second prompt" not in asked


def test_nothing_is_asked_of_the_host_without_the_option(talked):
    code, said = rewind(talked)

    assert (code, said["conversation"]["outcome"]) == (0, "left")
    assert "the second prompt" in third(talked, session_of(talked)).asked


def test_a_prompt_that_is_not_there_any_more_fails_alone(talked):
    rewind(talked, "--conversation")
    if CALLS[talked.host.name] == "fork":
        pytest.skip("the old session has it still")

    code, said = rewind(talked, "--conversation")

    assert (code, said["conversation"]["outcome"]) == (4, "failed")
    assert said["conversation"]["reason"]
    assert files(talked) == {"keep.txt", "first.txt"}


def test_a_session_that_is_open_is_not_cut(talked):
    session, waiting, go = session_of(talked), talked.home / "waiting", talked.home / "go"
    last = {**DONE, "meanwhile": {str(waiting): ""}, "after": str(go)}
    steps = [talked.shell("echo open > open.txt"), last]
    with ThreadPoolExecutor() as pool:
        run = pool.submit(talked.run, "an open prompt", *steps, session=session)
        try:
            wait_until(waiting.exists)
            code, said = rewind(talked, "2", "--conversation")
        finally:
            go.touch()
        assert run.result().code == 0

    assert files(talked) == {"keep.txt", "first.txt"}
    asked = third(talked, session).asked
    assert "the second prompt" in asked
    assert "an open prompt" in asked
    if CALLS[talked.host.name] == "fork":
        assert (code, said["conversation"]["outcome"]) == (0, "forked")
        assert "the second prompt" not in third(talked, said["conversation"]["session"]).asked
    else:
        assert (code, said["conversation"]["outcome"]) == (4, "failed")
        assert said["conversation"]["way"] == "cut"


def steps_in_claude(scene: Scene, command: list[str], entry: str) -> list[dict[str, Any]]:
    """Returns what a person does in Claude Code, whose first questions are answered already."""
    merge_json(
        scene.home / ".claude.json",
        {
            "hasCompletedOnboarding": True,
            "customApiKeyResponses": {"approved": ["none"], "rejected": []},
            "projects": {str(scene.project): {"hasTrustDialogAccepted": True}},
        },
    )
    return [
        {"start": [scene.host.path(), *command[1:]]},
        {"wait": "for shortcuts|mode on"},
        {"keys": ["Escape", "Escape"], "until": rf"{MARK} \(current\)"},
        {"keys": ["Up"], "until": f"^ +{MARK} the second prompt"},
        {"keys": ["Enter"]},
        {"keys": ["Down"], "until": rf"^ +{MARK} [0-9]\. {entry}$"},
        {"keys": ["Enter"]},
        {"gone": entry},
        {"keys": ["C-u"]},
    ]


def steps_in_codex(scene: Scene, command: list[str], entry: str) -> list[dict[str, Any]]:
    """Returns what a person does in Codex, where the newest prompt is chosen first."""
    assert entry == ""
    flags = ["--dangerously-bypass-approvals-and-sandbox", "--dangerously-bypass-hook-trust"]
    return [
        {"start": [scene.host.path(), *flags, *command[1:]]},
        {"wait": "Ask Codex to do anything"},
        {"keys": ["Escape", "Escape"], "until": "Browsing transcript"},
        {"keys": ["Enter"]},
        {"wait": "Conversation reverted to this point"},
        {"keys": ["C-u"]},
    ]


def steps_in_copilot(scene: Scene, command: list[str], entry: str) -> list[dict[str, Any]]:
    """Returns what a person does in Copilot CLI."""
    return [
        {"start": [scene.host.path(), *command[1:]]},
        {"wait": "Do you trust the files"},
        {"keys": ["Enter"]},
        {"wait": "/ commands"},
        {"type": "/rewind", "until": "/rewind"},
        {"keys": ["Enter"]},
        {"wait": "Rewind to a previous point"},
        {"keys": ["Up"], "until": rf"{MARK} +[0-9]+\. the second prompt"},
        {"keys": ["Enter"]},
        {"wait": "Rewind turn"},
        {"keys": ["Down"], "until": f"{MARK} {entry} "},
        {"keys": ["Enter"]},
        {"gone": "Rewind turn"},
        {"keys": ["C-u"]},
    ]


def steps_in_gemini(scene: Scene, command: list[str], entry: str) -> list[dict[str, Any]]:
    """Returns what a person does in Gemini CLI."""
    return [
        {"start": [scene.host.path(), "--model", MODEL, *command[1:]]},
        {"wait": "Type your message"},
        {"wait": "the second prompt"},
        {"type": "/rewind", "until": "/rewind"},
        {"keys": ["Enter"]},
        {"wait": "● Stay at current position"},
        {"keys": ["Up"], "until": "● the second prompt "},
        {"keys": ["Enter"]},
        {"wait": "Select an action"},
        {"keys": ["Down"], "until": rf"● [0-9]\. {entry}  "},
        {"keys": ["Enter"]},
        {"gone": "Select an action"},
        {"keys": ["C-u"]},
    ]


STEPS = {
    "claude": steps_in_claude,
    "codex": steps_in_codex,
    "gemini": steps_in_gemini,
    "copilot": steps_in_copilot,
}


def test_the_keys_that_are_named_take_the_conversation_back_and_leave_the_files(typed):
    code, said = rewind(typed)
    found = said["conversation"]
    assert (code, found["outcome"]) == (0, "left")
    assert "'the second prompt'" in found["keys"]
    entry = "".join(found["keys"].split('"')[1:2])
    steps = STEPS[typed.host.name](typed, found["command"], entry)
    steps += [{"type": "the third prompt"}, {"keys": ["Enter"]}, {"wait": SAID}]
    script = typed.home / "steps.json"
    script.write_text(json.dumps(steps))

    ended = typed.network.run(
        [sys.executable, terminal.__file__, str(script)],
        [{"text": SAID}],
        cwd=typed.project,
        variables=variables_of(typed),
    )

    assert ended.code == 0, ended.err
    assert "the first prompt" in ended.asked
    assert "the second prompt" not in ended.asked
    assert files(typed) == {"keep.txt", "first.txt"}
