"""After ``snap rewind --conversation`` a real host sends its model the shorter conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosts.conftest import DONE, Scene
from hosts.drivers import SYSTEM_PATH, user_variables
from hosts.namespace import Transcript

CALLS = {"codex": "cut", "copilot": "cut", "opencode": "fork"}
"""The hosts that have a call, and what it does to the session."""


@pytest.fixture
def talked(scene: Scene) -> Scene:
    """A session in which two prompts have made a file each."""
    if scene.host.name not in CALLS:
        pytest.skip(f"{scene.host.name} has no call that takes a conversation back")
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


def rewind(scene: Scene, *words: str) -> tuple[int, dict[str, Any]]:
    """Runs ``snap rewind`` as the user of the host, who can start it."""
    host = scene.host
    own = host.prepare(scene.home, scene.network.port)
    variables = {**user_variables(scene.home), **host.variables, **own}
    variables["PATH"] = f"{Path(host.path()).parent}:{SYSTEM_PATH}"
    ended = scene.network.run(
        [str(scene.program), "rewind", "--json", *words],
        [DONE],
        cwd=scene.project,
        variables=variables,
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
