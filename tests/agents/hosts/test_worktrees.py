"""Claude Code works in forks where there is no git, and in a repository as without the hooks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hosts.conftest import DONE, Scene
from hosts.drivers import user_variables
from hosts.model_server import Step
from hosts.namespace import Transcript

GIT = ["git", "-c", "user.name=Anna", "-c", "user.email=anna@example.org"]


@pytest.fixture
def forking(scene: Scene) -> Scene:
    """A project that is no repository, with hooks that make working trees."""
    if scene.host.name != "claude":
        pytest.skip(f"{scene.host.name} makes no working trees")
    (scene.project / "plan.txt").write_text("mine\n")
    scene.snap("agent", "install", "claude", "--worktrees", "fork")
    return scene


def run(scene: Scene, *words: str, script: list[Step]) -> Transcript:
    """Runs Claude Code with more words."""
    own = scene.host.prepare(scene.home, scene.network.port)
    ended = scene.network.run(
        [scene.host.path(), *scene.host.words("plan the garden", None), *words],
        [*script, DONE],
        cwd=scene.project,
        variables={**user_variables(scene.home), **scene.host.variables, **own},
    )
    assert ended.code == 0, ended
    return ended


def forks(scene: Scene) -> list[Path]:
    return sorted((scene.home / ".local/state/treesnap/worktrees").glob("*/*"))


def texts(top: Path) -> dict[str, str]:
    found = (path for path in top.iterdir() if path.is_file())
    return {path.name: path.read_text() for path in found}


def test_a_session_in_a_working_tree_works_in_a_fork(forking):
    work = forking.shell("echo a >> plan.txt; echo a > a.txt; pwd > where.txt")

    run(forking, "--worktree", "feat", script=[work])

    (fork,) = forks(forking)
    assert fork.name == "feat"
    assert (fork / "where.txt").read_text() == f"{fork}\n"
    assert texts(forking.project) == {"keep.txt": "kept", "plan.txt": "mine\n"}
    in_fork = forking._replace(project=fork)
    assert {item["session"] for item in in_fork.listed("snapshots", "list")} > {None}
    in_fork.snap("rewind")
    assert texts(fork) == {"keep.txt": "kept", "plan.txt": "mine\n"}
    in_fork.snap("undo")
    forking.snap("adopt", str(fork))
    assert texts(forking.project)["plan.txt"] == "mine\na\n"


def test_an_isolated_agent_works_in_a_fork(forking):
    asks = forking.host.delegating("do your part")
    isolated = {**asks, "arguments": {**asks["arguments"], "isolation": "worktree"}}
    work = forking.shell("echo a >> plan.txt; pwd")

    run(forking, script=[isolated, work, {"text": "my part is done"}])

    (fork,) = forks(forking)
    assert fork.name.startswith("agent-")
    assert (fork / "plan.txt").read_text() == "mine\na\n"
    assert (forking.project / "plan.txt").read_text() == "mine\n"
    in_fork = forking._replace(project=fork)
    assert any(item["step"] for item in in_fork.listed("snapshots", "list"))
    forking.snap("adopt", str(fork))
    assert (forking.project / "plan.txt").read_text() == "mine\na\n"


@pytest.mark.parametrize("makes", ["fork", "host"])
def test_in_a_repository_the_tree_is_the_same_without_the_hooks(forking, makes):
    def git(directory: Path, *words: str) -> str:
        done = subprocess.run(
            [*GIT, *words], cwd=directory, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    project = forking.project
    forking.snap("agent", "install", "claude", "--worktrees", makes)
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "plan.txt", "keep.txt")
    git(project, "commit", "-q", "-m", "first")

    run(forking, "--worktree", "feat", script=[forking.shell("echo a >> plan.txt")])

    tree = project / ".claude/worktrees/feat"
    assert (tree / "plan.txt").read_text() == "mine\na\n"
    assert (project / "plan.txt").read_text() == "mine\n"
    assert git(tree, "branch", "--show-current") == "worktree-feat"
    assert git(tree, "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
    assert forks(forking) == []


def test_what_the_host_asks_to_remove_is_captured_and_goes(forking):
    """Without a terminal the host removes none, so it is told what the host says."""
    run(forking, "--worktree", "feat", script=[forking.shell("echo a >> plan.txt")])
    (fork,) = forks(forking)
    told = {
        "session_id": "s1",
        "transcript_path": "",
        "cwd": str(fork),
        "hook_event_name": "WorktreeRemove",
        "worktree_path": str(fork),
    }
    asked = forking.home / "asked.json"
    asked.write_text(json.dumps(told))

    ended = forking.network.run(
        ["sh", "-c", f"{forking.program} hook claude < {asked}"],
        [],
        cwd=forking.project,
        variables=user_variables(forking.home),
    )

    assert (ended.code, ended.out) == (0, ""), ended
    assert not fork.exists()
    forking.snap("-C", str(fork), "restore", "latest")
    assert (fork / "plan.txt").read_text() == "mine\na\n"
