"""In real hosts a rewind undoes the work of one session, and keeps what others wrote meanwhile.

The script knows who wrote each file: *a* and *b* are agents, and what the user saves while the
model thinks is *mine*.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from command_line import wait_until
from hosts.conftest import DONE, Scene
from hosts.drivers import user_variables
from hosts.model_server import Step
from hosts.namespace import Namespace, Transcript

PERSON = ["-c", "user.name=Anna", "-c", "user.email=anna@example.org"]


@pytest.fixture
def hooked(scene: Scene) -> Scene:
    """A project in which hooks are installed."""
    (scene.project / "plan.txt").write_text("mine\n")
    (scene.project / "notes.txt").write_text("mine\n")
    scene.snap("agent", "install", scene.host.name)
    return scene


@pytest.fixture
def second(hooked: Scene, tmp_path: Path) -> Iterator[Scene]:
    """The same project, with a model of its own for another session."""
    with Namespace(tmp_path / "second") as network:
        yield hooked._replace(network=network)


def files(top: Path) -> dict[str, str]:
    """Returns what the files of a project hold, without those of a repository and of the host."""
    paths = [Path(above) / name for above, _, names in os.walk(top) for name in names]
    return {
        str(path.relative_to(top)): path.read_text()
        for path in paths
        if not {".git", ".claude"} & {*path.relative_to(top).parts}
    }


def sessions(scene: Scene) -> set[str]:
    """Returns the ids of the sessions that snapshots were made in."""
    return {item["session"] for item in scene.listed("snapshots", "list") if item["session"]}


def verdicts(scene: Scene, *words: str) -> dict[str, str]:
    """Returns what a rewind would do with each file."""
    found: list[dict[str, Any]] = scene.listed("paths", "rewind", *words, "--dry-run")
    return {item["path"]: item["verdict"] for item in found if "." in item["path"]}


def ended_well(run: Future[Transcript]) -> None:
    ended = run.result()
    assert ended.code == 0, ended


def waiting(*paths: str) -> str:
    """Returns a command that waits for files beside the project."""
    return "; ".join(f"until [ -e ../{path} ]; do sleep 0.05; done" for path in paths)


def test_calls_of_two_sessions_overlap(hooked, second):
    shell, home = hooked.shell, hooked.home
    of_a = [
        shell("echo a > a.txt; echo a >> plan.txt"),
        shell(
            f"touch ../a-open; {waiting('b-wrote')}; echo a > both-a.txt; touch ../a-wrote; "
            f"{waiting('b-closes')}"
        ),
    ]
    of_b = [
        shell(f"echo b > both-b.txt; touch ../b-wrote; {waiting('a-wrote')}; touch ../b-closes"),
        shell(waiting("a-ended")),
        shell("echo b > b.txt; echo b >> notes.txt"),
    ]
    with ThreadPoolExecutor() as pool:
        run_a = pool.submit(hooked.run, "plan the garden", *of_a)
        wait_until((home / "a-open").exists)
        (a,) = sessions(second)  # whose model has no script yet to lose
        run_b = pool.submit(second.run, "write the notes", *of_b)
        ended_well(run_a)
        (home / "a-ended").touch()
        ended_well(run_b)
    (b,) = sessions(hooked) - {a}
    (hooked.project / "mine.txt").write_text("mine\n")
    after = files(hooked.project)
    shared = {"both-a.txt": "a\n", "both-b.txt": "b\n"}
    kept = {"keep.txt": "kept", "mine.txt": "mine\n", **shared}

    assert verdicts(hooked, "--session", a) == {
        **dict.fromkeys(["a.txt", "plan.txt"], "undone"),
        **dict.fromkeys(shared, "shared"),
        **dict.fromkeys(["b.txt", "notes.txt", "mine.txt"], "kept"),
    }
    said = hooked.snap("rewind", "--session", a)
    assert f"session {b} worked at the same time: both-a.txt, both-b.txt" in said.out + said.err
    notes_of_b = {"notes.txt": "mine\nb\n", "b.txt": "b\n"}
    assert files(hooked.project) == {"plan.txt": "mine\n", **notes_of_b, **kept}
    hooked.snap("rewind", "--session", b)
    assert files(hooked.project) == {"plan.txt": "mine\n", "notes.txt": "mine\n", **kept}
    hooked.snap("undo")
    hooked.snap("undo")
    assert files(hooked.project) == after


def test_the_user_saves_between_two_calls_and_two_prompts(hooked):
    project, host = hooked.project, hooked.host

    def saving(step: Step, **texts: str) -> Step:
        """Returns a step before which the user saves files."""
        saved = {str(project / f"{name}.txt"): text for name, text in texts.items()}
        return {**step, "meanwhile": saved}

    ended = hooked.run(
        "plan the garden",
        hooked.shell("echo a > a.txt; echo a > draft.txt"),
        saving(
            hooked.shell("echo a >> over.txt; echo a >> plan.txt"),
            mine="mine\n",
            draft="a\nmine\n",
            over="mine\n",
        ),
        saving(DONE, last="mine\n", notes="mine\nmine\n"),
    )
    assert ended.code == 0, ended
    prompts = 1
    (project / "between.txt").write_text("mine\n")
    if host.can_resume:
        (session,) = sessions(hooked)
        more = hooked.shell("echo a > more.txt; echo a >> between.txt")
        assert hooked.run("and more", more, session=session).code == 0
        prompts = 2

    hooked.snap("rewind", f"{prompts}")

    assert files(project) == {
        "keep.txt": "kept",
        "plan.txt": "mine\n",
        "mine.txt": "mine\n",
        "draft.txt": "a\nmine\n",
        "over.txt": "mine\n",
        "last.txt": "mine\n",
        "notes.txt": "mine\nmine\n",
        "between.txt": "mine\n",
    }


def test_what_a_command_in_the_background_writes_is_named_and_kept(hooked):
    home, project = hooked.home, hooked.project
    step = hooked.host.background(f"{waiting('go')}; echo a > late.txt; touch ../late")
    if step is None:
        pytest.skip(f"{hooked.host.name} does not say which commands go on in the background")
    on_its_own = {"meanwhile": {str(home / "go"): ""}, "after": str(home / "late")}

    ended = hooked.run("start it", step, hooked.shell("echo a > a.txt"), {**DONE, **on_its_own})

    assert ended.code == 0, ended
    assert verdicts(hooked) == {"a.txt": "undone", "late.txt": "unknown"}
    hooked.snap("rewind")
    assert {*files(project)} == {"keep.txt", "plan.txt", "notes.txt", "late.txt"}
    hooked.snap("rewind", "--unknown")
    assert {*files(project)} == {"keep.txt", "plan.txt", "notes.txt"}


def test_what_an_agent_does_that_another_one_starts_is_of_the_session(hooked):
    step = hooked.host.delegating("do your part")
    if step is None:
        pytest.skip(f"no agent of {hooked.host.name} is started here")

    ended = hooked.run(
        "do it all",
        hooked.shell("echo a > first.txt"),
        step,
        hooked.shell("echo a > part.txt"),
        {"text": "my part is done"},
        hooked.shell("echo a > a.txt"),
    )

    assert ended.code == 0, ended
    assert {"first.txt", "part.txt", "a.txt"} <= {*files(hooked.project)}
    assert len(sessions(hooked)) == 1
    assert len(hooked.listed("prompts", "prompts")) == 1
    assert verdicts(hooked) == dict.fromkeys(["first.txt", "part.txt", "a.txt"], "undone")
    hooked.snap("rewind")
    assert {*files(hooked.project)} == {"keep.txt", "plan.txt", "notes.txt"}


def git(top: Path, *words: str) -> str:
    variables = {"PATH": os.environ["PATH"], "HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *PERSON, *words], cwd=top, env=variables, check=True, stdout=subprocess.PIPE
    )
    return done.stdout.decode()


@pytest.fixture
def repository(hooked: Scene) -> Scene:
    """The project as a repository with a commit."""
    git(hooked.project, "init", "--quiet")
    git(hooked.project, "add", ".")
    git(hooked.project, "commit", "--quiet", "--message", "first")
    return hooked


@pytest.mark.parametrize("place", ["../feature", "trees/feature"], ids=["outside", "inside"])
def test_a_working_tree_and_its_project_are_rewound_by_themselves(repository, place):
    project = repository.project
    git(project, "worktree", "add", "--quiet", place)
    tree = repository._replace(project=(project / place).resolve())
    commit = " ".join(["git", *PERSON, "commit --quiet --all --message feature"])
    first = files(tree.project)

    assert repository.run("in the project", repository.shell("echo a >> plan.txt")).code == 0
    work = tree.shell(f"echo b >> notes.txt; echo b > b.txt; {commit}")
    assert tree.run("in the tree", work).code == 0
    branches = git(project, "for-each-ref")
    assert files(tree.project) == {**first, "notes.txt": "mine\nb\n", "b.txt": "b\n"}

    repository.snap("rewind")
    assert (project / "plan.txt").read_text() == "mine\n"
    assert files(tree.project) == {**first, "notes.txt": "mine\nb\n", "b.txt": "b\n"}
    assert git(project, "for-each-ref") == branches
    tree.snap("rewind")
    assert files(tree.project) == first
    assert git(project, "for-each-ref") == branches


def test_claude_makes_a_working_tree_which_is_rewound_alone(repository):
    host, project, home = repository.host, repository.project, repository.home
    if host.name != "claude":
        pytest.skip(f"{host.name} makes no working trees")
    assert repository.run("in the project", repository.shell("echo a >> plan.txt")).code == 0
    own = host.prepare(home, repository.network.port)

    ended = repository.network.run(
        [host.path(), *host.words("in the tree", None), "--worktree", "feature"],
        [repository.shell("echo b >> notes.txt; echo b > b.txt"), DONE],
        cwd=project,
        variables={**user_variables(home), **host.variables, **own},
    )

    assert ended.code == 0, ended
    tree = repository._replace(project=project / ".claude" / "worktrees" / "feature")
    assert (tree.project / "b.txt").exists(), ended
    tree.snap("rewind")
    assert files(tree.project) == {"keep.txt": "kept", "plan.txt": "mine\n", "notes.txt": "mine\n"}
    assert (project / "plan.txt").read_text() == "mine\na\n"
    repository.snap("rewind")
    assert (project / "plan.txt").read_text() == "mine\n"
