"""A plain container: no home, a user without a name, a root file system that cannot be written to.

Each test runs the commands of a day in a real one.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from plain_container import DATA, PlainContainer, require_containers

pytestmark = pytest.mark.sampled(12)

PAYLOAD = json.dumps(
    {
        "hook_event_name": "PreToolUse",
        "session_id": "s",
        "cwd": f"{DATA}/root",
        "tool_name": "Bash",
        "tool_input": {"command": "rm a"},
    }
)
HOOK = (["hook", "claude"], PAYLOAD)
DAY = [
    ["create", "-m", "one"],
    ["run", "--", "sh", "-c", "echo changed > a"],
    ["status"],
    ["diff", "latest"],
    ["restore", "latest"],
    ["undo"],
    ["list"],
    ["log"],
    HOOK,
    ["rewind", "step:1"],
    ["prompts"],
    ["agent", "status"],
    ["watch", "--detach"],
    ["create"],
    ["watch", "--stop"],
    ["fork", "latest", "../forked"],
    ["archive", "latest", "-o", "../a.tar"],
    ["gc"],
    ["verify", "--read-data"],
    ["doctor"],
    ["stats"],
]
WITHOUT_HOME = {
    "no HOME": {},
    "empty": {"HOME": ""},
    "relative": {"HOME": "home"},
    "root directory": {"HOME": "/"},
    "nonexistent": {"HOME": "/nonexistent"},
}
STORE = {"SNAP_STORE": f"{DATA}/store"}


@pytest.fixture
def container(tmp_path: Path) -> PlainContainer:
    require_containers()
    made = PlainContainer(tmp_path)
    (made.root / "a").write_text("a")
    return made


def test_working_trees_of_a_repository_need_no_home(container):
    git = ["git", "-C", container.root, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    place = ".claude/worktrees/feat"
    tree = container.root / place
    fields = {"session_id": "s", "cwd": f"{DATA}/root"}
    asked = [
        {"hook_event_name": "WorktreeCreate", "name": "feat"},
        {"hook_event_name": "WorktreeRemove", "worktree_path": f"{DATA}/root/{place}"},
    ]
    calls = [(["hook", "claude"], json.dumps(fields | each)) for each in asked]

    made = container.run(calls[:1], STORE)
    assert (tree / "a").exists(), made
    removed = container.run(calls[1:], STORE)

    assert [done.code for done in made + removed] == [0, 0], removed
    assert not tree.exists()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("env", WITHOUT_HOME.values(), ids=WITHOUT_HOME)
def test_with_a_named_store_the_commands_of_a_day_work(container, env):
    outcomes = container.run(DAY, env | STORE)

    failed = [
        (words, done)
        for words, done in zip(DAY, outcomes, strict=True)
        if done.code != 0 or done.err.startswith("snap:")
    ]
    assert failed == []
    assert (container.root / "a").read_text() == "changed\n"
    assert sorted(path.name for path in container.root.iterdir()) == ["a"]
    assert sorted(path.name for path in container.volume.iterdir()) == [
        *("a.tar", "forked", "root", "store")
    ]


def test_the_superuser_of_a_container_needs_no_home(tmp_path):
    require_containers()
    made = PlainContainer(tmp_path, user_id=0)
    (made.root / "a").write_text("a")

    outcomes = made.run(DAY, STORE)

    assert [done for done in outcomes if done.code != 0] == []


def test_the_next_container_goes_on(container):
    remote = ["remote", "add", "disk", "../disk"]
    before = container.run([["create"], remote, ["push"]], STORE)
    (container.root / "a").write_text("changed")

    after = container.run([["create"], ["push"], ["restore", "latest~1"], ["undo"]], STORE)

    assert [done.code for done in before + after] == [0] * 7, after
    assert (container.root / "a").read_text() == "changed"


def test_many_files_need_no_shared_memory_and_no_tmp(container):
    for number in range(40):
        (container.root / f"directory-{number}").mkdir()
        for name in range(300):
            (container.root / f"directory-{number}" / f"{name}").write_text(f"{number} {name}")
    (container.root / "large").write_bytes(bytes(range(256)) * 100_000)

    outcomes = container.run(
        [
            ["create"],
            ["run", "--", "sh", "-c", "rm -r directory-1* large"],
            ["undo"],
            ["restore", "latest"],
            ["restore", "latest", "--to", "../other"],
            ["verify", "--read-data"],
        ],
        STORE,
    )

    assert [done.code for done in outcomes] == [0, 0, 5, 0, 0, 0], outcomes
    assert sum(1 for _ in (container.volume / "other").rglob("*")) == 40 + 40 * 300 + 2


@pytest.mark.sampled(10)
@pytest.mark.parametrize("env", WITHOUT_HOME.values(), ids=WITHOUT_HOME)
def test_without_a_store_each_command_names_the_setting_or_has_nothing_to_say(container, env):
    outcomes = container.run(DAY, env)
    writing = [words for words in DAY if words[0] in ("create", "run") or "--detach" in words]

    for words, done in zip(DAY, outcomes, strict=True):
        said = done.out + done.err
        lines = [line for line in said.splitlines() if line.startswith(("snap:", "treesnap:"))]
        assert len(lines) <= 1, (words, done)
        assert "Traceback" not in said, (words, done)
        if words in writing:
            assert (done.code, "SNAP_STORE" in said) == (1, True), (words, done)
    hook = outcomes[DAY.index(HOOK)]
    assert hook.code == 0
    assert "SNAP_STORE" in hook.err
    assert len(hook.err.splitlines()) == 1
    assert "SNAP_STORE" in json.loads(hook.out)["systemMessage"]
    assert sorted(path.name for path in container.volume.iterdir()) == ["root"]


def test_hooks_of_a_project_are_installed_where_notes_have_a_place(container):
    install, remove = (["agent", word, "claude", "--project"] for word in ("install", "uninstall"))
    notes = {"XDG_STATE_HOME": f"{DATA}/state"}

    for env in ({}, {"HOME": "/nonexistent"}):
        refused, status = container.run([install, ["agent", "status", "claude"]], env | STORE)
        assert (refused.code, status.code) == (1, 0)
        assert "$XDG_STATE_HOME" in refused.err
        assert "hooks" not in status.out

        installed, status, removed = container.run(
            [install, ["agent", "status", "claude"], remove], env | STORE | notes
        )
        assert (installed.code, status.code, removed.code) == (0, 0, 0)
        assert "project hooks in /data/root/.claude" in status.out


@pytest.mark.parametrize(
    "env", [{}, {"HOME": ""}, {"HOME": "home"}], ids=["no", "empty", "relative"]
)
def test_nothing_of_a_user_is_written_without_a_home(container, env):
    commands = [
        ["agent", "install", "claude"],
        ["agent", "uninstall", "claude"],
        ["schedule", "daily", "--dry-run"],
        ["config", "safe-directories", DATA],
    ]
    outcomes = container.run(commands, env | STORE | {"XDG_STATE_HOME": f"{DATA}/state"})

    named = ["HOME", "HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_HOME"]
    for done, name in zip(outcomes, named, strict=True):
        assert done.code in {1, 2}
        assert f"{name} is not set" in done.err
    assert [path.name for path in container.root.iterdir()] == ["a"]


def test_a_line_for_cron_needs_no_home(container):
    (shown,) = container.run([["schedule", "daily", "--cron"]], STORE)

    assert (shown.code, "snap" in shown.out or "treesnap" in shown.out) == (0, True), shown
