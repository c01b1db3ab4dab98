"""``snap rewind`` undoes what an agent did in a real host, and ``snap undo`` the rewind."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import wait_until
from hosts.conftest import Scene
from hosts.namespace import Namespace
from state import TreeState, differences, tree_state
from treesnap.agents.event import Event
from treesnap.agents.hosts.table import host_named
from treesnap.core.ops.history.steps import EventPhase

DAMAGE = """\
set -e
mv keep.txt gone.txt
mv src/old src/new
rm src/main.py notes.txt .env secret
rm -r nested/.git build
printf changed > data.bin
printf more >> src/tool.sh
chmod 600 src/tool.sh
rm link
mkdir link
printf made > link/made.txt
rm -r .git/refs
printf broken > .git/HEAD
"""
BROKEN = {
    "missing": None,
    "killed": "kill -KILL $$",
    "hanging": "exec sleep 1000",
}
"""What may become of the program that the hooks call, as shell scripts."""


@pytest.fixture
def damaged_scene(scene: Scene) -> Scene:
    """A project of every kind of file in which hooks are installed."""
    build(scene.project)
    (scene.home / "damage.sh").write_text(DAMAGE)
    scene.snap("agent", "install", scene.host.name)
    return scene


def build(project: Path) -> None:
    """Makes tracked, untracked and ignored files, a repository in another, links and modes."""
    for path, content in {
        "src/main.py": "print('hello')\n",
        "src/old/a.py": "a = 1\n",
        "src/tool.sh": "#!/bin/sh\n",
        ".gitignore": ".env\nbuild\ndata.bin\n",
        ".env": "TOKEN=1\n",
        "build/out.o": "object",
        "nested/file": "nested",
    }.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(content)
    (project / "src/tool.sh").chmod(0o755)
    (project / "data.bin").write_bytes(bytes(range(256)) * 500)
    (project / "link").symlink_to("src/main.py")
    (project / "empty").mkdir()
    for top in (project, project / "nested"):
        git(top, "init", "--quiet")
        git(top, "add", ".")
        git(top, "commit", "--quiet", "--message", "first")
    (project / "notes.txt").write_text("not tracked\n")
    (project / "secret").write_text("for me alone\n")
    (project / "secret").chmod(0o600)


def git(top: Path, *words: str) -> None:
    person = ["-c", "user.name=Anna", "-c", "user.email=anna@example.org"]
    variables = {"PATH": os.environ["PATH"], "HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *person, *words], cwd=top, env=variables, check=True)


def damage(scene: Scene, prompt: str = "tidy up", session: str | None = None) -> None:
    """Lets the agent do its damage."""
    ended = scene.run(prompt, scene.shell(f"sh {scene.home}/damage.sh"), session=session)
    assert ended.code == 0, ended
    assert (scene.project / "gone.txt").exists(), ended


def phases(scene: Scene) -> list[str]:
    """Returns what events were captured, oldest first."""
    found = reversed(scene.listed("snapshots", "list"))
    return [item["phase"] for item in found if item["session"]]


def session_of(scene: Scene) -> str:
    """Returns the id of the only session that snapshots were made in."""
    (found,) = {item["session"] for item in scene.listed("snapshots", "list") if item["session"]}
    return str(found)


def state_of(scene: Scene) -> TreeState:
    """Returns the state of the project, but for what the host itself writes there."""
    found = tree_state(scene.project)
    for path in scene.host.writes:
        above = path.rpartition(b"/")[0]
        found[above] = replace(found[above], mtime_ns=0)
        found = {
            name: entry
            for name, entry in found.items()
            if not (name + b"/").startswith(path + b"/")
        }
    return found


def assert_same(scene: Scene, expected: TreeState) -> None:
    found = state_of(scene)
    assert found == expected, "\n".join(differences(found, expected))


def test_a_rewind_brings_everything_back_and_an_undo_the_damage(damaged_scene):
    before = state_of(damaged_scene)
    damage(damaged_scene)
    after = state_of(damaged_scene)
    wait_until(
        lambda: phases(damaged_scene) == ["turn", "pre", "post", "end"]
    )  # opencode waits for no end

    damaged_scene.snap("rewind")
    assert_same(damaged_scene, before)
    damaged_scene.snap("undo")
    assert_same(damaged_scene, after)


def test_the_state_before_a_tool_is_captured_before_it_runs(damaged_scene):
    damage(damaged_scene)

    damaged_scene.snap("rewind", "step:2")

    assert (damaged_scene.project / "keep.txt").read_text() == "kept"
    assert not (damaged_scene.project / "gone.txt").exists()


def test_a_session_that_is_resumed_elsewhere_is_rewound(damaged_scene, tmp_path):
    if not damaged_scene.host.can_resume:
        pytest.skip(f"{damaged_scene.host.name} resumes no session without a terminal")
    before = state_of(damaged_scene)
    first = damaged_scene.shell("mv keep.txt moved.txt")
    assert damaged_scene.run("move it", first).code == 0
    session = session_of(damaged_scene)
    between = state_of(damaged_scene)
    assert between != before

    with Namespace(tmp_path / "elsewhere") as network:  # no process of the first run is there
        scene = damaged_scene._replace(network=network)
        second = scene.shell("rm -r src; mv moved.txt gone.txt")
        assert scene.run("and the sources", second, session=session).code == 0
        assert session_of(scene) == session
        assert not (scene.project / "src").exists()

        scene.snap("rewind")
        assert_same(scene, between)
        scene.snap("undo")
        scene.snap("rewind", "2")
        assert_same(scene, before)


def test_commands_that_are_typed_as_prompts_need_no_model(damaged_scene):
    event = Event(damaged_scene.host.name, EventPhase.TURN, str(damaged_scene.project), "s")
    if host_named(event.host).answer("") is None:
        pytest.skip(f"a hook of {damaged_scene.host.name} cannot answer a prompt")
    before = state_of(damaged_scene)
    damage(damaged_scene)
    after = state_of(damaged_scene)
    session = session_of(damaged_scene)

    for prompt, expected in (("snap rewind", before), ("snap undo", after), ("snap list", after)):
        ended = damaged_scene.run(prompt, session=session)
        assert ended.requests == [], prompt
        assert_same(damaged_scene, expected)


def test_the_model_is_told_which_files_a_rewind_changed(damaged_scene):
    if not damaged_scene.host.can_resume:
        pytest.skip(f"{damaged_scene.host.name} resumes no session without a terminal")
    damage(damaged_scene)
    damaged_scene.snap("rewind")

    ended = damaged_scene.run("go on", session=session_of(damaged_scene))

    assert ended.code == 0, ended
    assert "not as you last saw them" in ended.asked
    assert "keep.txt" in ended.asked.partition("not as you last saw them")[2]


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("is_strict", [False, True], ids=["open", "strict"])
def test_a_broken_hook_blocks_the_agent_only_if_it_is_strict(scene, how, is_strict):
    scene.snap("agent", "install", scene.host.name, *(["--strict"] if is_strict else []))
    break_program(scene, BROKEN[how])

    scene.run("make it", scene.shell("echo hi > made.txt"))

    assert (scene.project / "made.txt").exists() != is_strict


def test_a_strict_hook_keeps_the_prompt_from_the_model_where_the_host_lets_it(scene):
    scene.snap("agent", "install", scene.host.name, "--strict")
    break_program(scene, None)

    ended = scene.run("make it", scene.shell("true"))

    blocks = EventPhase.TURN in host_named(scene.host.name).blocked_phases
    assert ("make it" in ended.asked) != blocks, ended


def break_program(scene: Scene, script: str | None) -> None:
    """Replaces what hooks call, and has the host wait for them shortly."""
    scene.program.unlink()
    if script is not None:
        scene.program.write_text(f"#!/bin/sh\n{script}\n")
        scene.program.chmod(0o755)
    settings = subprocess.run(
        ["grep", "--files-with-matches", "--recursive", "--fixed-strings", str(scene.program)]
        + [str(path) for path in scene.home.iterdir() if path.name.startswith(".")],
        capture_output=True,
        text=True,
        check=True,
    )
    for path in map(Path, settings.stdout.splitlines()):
        text = re.sub(r"(?i)(timeout\w*\W{1,4})30(?=000|\b)", r"\g<1>3", path.read_text())
        path.write_text(text.replace("timeout -s KILL 25 ", "timeout -s KILL 2 "))
