"""Working trees that Claude Code has a hook make: forks, and in a repository what git makes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from mounting import mounting
from treesnap.agents.commands.hook import carry_out
from treesnap.agents.hosts.base import Payload
from treesnap.agents.hosts.table import host_named
from treesnap.agents.install.installer import SettingsPlace, install, uninstall
from treesnap.agents.worktrees import remove_worktree
from treesnap.cli.hook_client import identity
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.peers import encode_call
from treesnap.core.model.errors import InvalidArgument, NotFound, OperationFailed
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import UnsyncedFileSystem, kill_at

pytestmark = pytest.mark.sampled(10)

GIT = ["git", "-c", "user.name=Anna", "-c", "user.email=anna@example.org"]


@pytest.fixture(autouse=True)
def state(environment, monkeypatch) -> Path:
    """Where forks are."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    environment.pop("XDG_STATE_HOME", None)
    return Path(environment["HOME"]) / ".local/state/treesnap/worktrees"


@pytest.fixture
def file(root) -> Path:
    path = root / "file"
    path.write_text("first\n")
    return path


@pytest.fixture
def tell(snap, root, monkeypatch):
    """Tells the hook of Claude Code an event, from some directory."""

    def run(event, here=root, environ=None, **fields):
        told = {"session_id": "s1", "hook_event_name": event, "cwd": str(here), **fields}
        given = json.dumps(told).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        return snap("hook", "claude", env=environ or {})

    return run


@pytest.fixture
def made(tell):
    """Returns the directory of a working tree with a name."""

    def run(name, **options):
        done = tell("WorktreeCreate", name=name, **options)
        assert (done.code, done.err) == (0, ""), done
        return Path(done.out.splitlines()[-1])

    return run


@pytest.fixture
def repository(root, file):
    """A root that is a repository with a commit."""
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    return root


def git(directory, *words):
    done = subprocess.run([*GIT, *words], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_fork_is_made_in_the_state_directory(snap, root, file, made, state):
    fork = made("feat")

    assert fork.parent.parent == state
    assert fork.parent.name.startswith("root-")
    assert (fork / "file").read_text() == "first\n"
    (fork / "file").write_text("in the fork\n")
    assert file.read_text() == "first\n"
    assert made("feat") == fork
    assert (fork / "file").read_text() == "in the fork\n"
    assert made("a/b").name == "a+b"
    assert snap("adopt", fork).code == 0
    assert file.read_text() == "in the fork\n"


def test_what_was_not_captured_yet_is_in_the_fork(snap, root, file, made):
    snap("create")
    file.write_text("second\n")

    assert (made("feat") / "file").read_text() == "second\n"


def test_the_steps_of_an_agent_there_are_the_forks_own(snap, root, file, made, tell):
    fork = made("agent-1")
    variables = {"CLAUDE_PROJECT_DIR": str(root)}
    (fork / "deep").mkdir()

    tell("PreToolUse", fork / "deep", variables, tool_name="Bash", tool_use_id="t1")
    (fork / "file").write_text("in the fork\n")
    tell("PostToolUse", fork / "deep", variables, tool_name="Bash", tool_use_id="t1")

    assert [item["step"] for item in snap("-C", fork, "list", "--json").json["snapshots"]][:2] == [
        2,
        1,
    ]
    assert all(item["step"] is None for item in snap("list", "--json").json["snapshots"])
    assert snap("-C", fork, "rewind", "step:1").code == 0
    assert (fork / "file").read_text() == "first\n"


def test_a_fork_is_captured_before_it_is_removed(snap, root, file, made, tell):
    fork = made("feat")
    (fork / "file").write_text("the last words\n")
    (fork / "sub").mkdir(mode=0o500)

    done = tell("WorktreeRemove", fork, worktree_path=str(fork))

    assert (done.code, done.out, done.err) == (0, "", "")
    assert not fork.exists()
    assert file.read_text() == "first\n"
    assert snap("-C", fork, "restore", "latest").code == 0
    assert snap("adopt", fork).code == 0
    assert file.read_text() == "the last words\n"


def test_a_name_is_used_again_after_a_removal(snap, root, file, made, tell):
    first = made("feat")
    tell("WorktreeRemove", worktree_path=str(first))

    second = made("feat")

    assert second.name == "feat-2"
    assert made("feat") == second


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "..",
            "../x",
            "a/../../x",
            "/tmp/x",
            ".",
            "a//b",
            "a/",
            "./a",
            "-x",
            "a\nb",
            "a\0b",
        ),
        *("\x1b[2J", "x" * 101, ".git", None, 1, ["a"], {"a": 1}),
    ],
)
@pytest.mark.parametrize("place", ["root", "repository"])
def test_a_name_that_leads_elsewhere_is_refused(request, root, file, tell, state, name, place):
    request.getfixturevalue(place)

    done = tell("WorktreeCreate", name=name)

    assert (done.code, done.out) == (1, "")
    assert "cannot be the name of a working tree" in done.err
    assert len(done.err.splitlines()) == 1
    assert not state.exists()
    assert not (root / ".claude").exists()


def test_a_payload_without_a_name_is_refused(root, file, tell):
    assert tell("WorktreeCreate").code == 1


def test_a_root_that_is_refused_has_no_forks(snap, environment, tell):
    done = tell("WorktreeCreate", "/", name="feat")

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("treesnap made no working tree: ")


def test_what_lies_at_the_place_of_a_fork_stays(snap, root, file, made, state, tell):
    place = made("other").parent / "feat"
    place.mkdir()
    (place / "mine").write_text("mine\n")

    done = tell("WorktreeCreate", name="feat")

    assert (done.code, done.out) == (1, "")
    assert (place / "mine").read_text() == "mine\n"


class TestInARepository:
    def test_git_makes_what_the_host_would_have_made(self, root, repository, made, state):
        (root / "sub").mkdir()

        tree = made("feat/x", here=root / "sub")

        assert tree == root / ".claude/worktrees/feat+x"
        assert git(tree, "branch", "--show-current") == "worktree-feat+x"
        assert git(tree, "rev-parse", "HEAD") == git(root, "rev-parse", "HEAD")
        assert not state.exists()
        assert made("feat/x") == tree
        assert made("second", here=tree) == root / ".claude/worktrees/second"

    def test_it_begins_at_the_default_branch_of_the_origin(self, root, repository, made, tmp_path):
        git(tmp_path, "clone", "-q", root, "clone")
        clone = tmp_path / "clone"
        (clone / "file").write_text("mine\n")
        git(clone, "commit", "-q", "-a", "-m", "mine")

        tree = made("feat", here=clone)

        assert (tree / "file").read_text() == "first\n"
        assert (
            git(tree, "status", "-b", "--porcelain") == "## worktree-feat"
        )  # which tracks nothing

    def test_a_branch_that_is_there_keeps_its_commits(self, root, repository, made, tell):
        tree = made("feat")
        (tree / "file").write_text("committed\n")
        git(tree, "commit", "-q", "-a", "-m", "work")
        (tree / "file").write_text("not committed\n")
        done = tell("WorktreeRemove", worktree_path=str(tree))
        assert (done.code, done.err) == (0, "")
        assert not tree.exists()

        again = made("feat")

        assert (again / "file").read_text() == "committed\n"

    def test_a_tree_is_captured_before_it_is_removed(self, snap, root, repository, made, tell):
        tree = made("feat")
        (tree / "file").write_text("not committed\n")
        (tree / "new").write_text("not known to git\n")

        tell("WorktreeRemove", tree, worktree_path=str(tree))

        assert git(root, "worktree", "list").count("\n") == 0
        assert snap("-C", tree, "restore", "latest", "--to", root / "back").code == 0
        assert (root / "back/file").read_text() == "not committed\n"
        assert (root / "back/new").exists()

    @pytest.mark.parametrize("link", [".claude", ".claude/worktrees", ".claude/worktrees/feat"])
    def test_no_link_leads_out_of_the_repository(self, root, repository, tell, tmp_path, link):
        outside = tmp_path / "outside"
        outside.mkdir()
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(outside)

        done = tell("WorktreeCreate", name="feat")

        assert (done.code, done.out) == (1, "")
        assert list(outside.iterdir()) == []

    def test_a_repository_without_a_commit_is_an_error(self, root, file, tell):
        git(root, "init", "-q")

        done = tell("WorktreeCreate", name="feat")

        assert (done.code, done.out) == (1, "")
        assert "git: " in done.err


class TestWhatIsNotRemoved:
    def refused(self, tell, path):
        done = tell("WorktreeRemove", worktree_path=path)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("treesnap removed no working tree: ")

    def test_any_other_directory(self, snap, root, file, tell, made, tmp_path, environment):
        snap("create")
        snap("fork", "latest", tmp_path / "own")
        fork = made("feat")
        for path in (root, tmp_path / "own", fork.parent, fork.parent.parent, fork / "..", "/"):
            self.refused(tell, str(path))
        assert (tmp_path / "own/file").exists()
        assert (fork / "file").exists()
        assert file.exists()

    @pytest.mark.needs("mounts")
    def test_what_another_file_system_is_mounted_in(self, root, file, tell, made):
        fork = made("feat")
        (fork / "data").mkdir()
        with mounting() as mounter:
            mounter.bind(fork.parent, fork / "data")

            self.refused(tell, str(fork))

            assert (fork / "data/feat").exists()
        assert (fork / "file").exists()

    def test_a_relative_or_missing_path(self, root, file, tell):
        for path in ("file", "", None, 1, "/a\0b"):
            self.refused(tell, path)

    def test_what_a_link_leads_to(self, root, file, tell, made):
        fork = made("feat")
        link = fork.parent / "link"
        link.symlink_to(root)

        self.refused(tell, str(link))
        link.unlink()
        link.symlink_to(fork)
        self.refused(tell, str(link))

        assert file.exists()
        assert (fork / "file").exists()

    def test_another_directory_in_the_place_of_a_fork(self, root, file, tell, made):
        fork = made("feat")
        fork.rename(fork.parent / "away")
        fork.mkdir()
        (fork / "mine").write_text("mine\n")

        self.refused(tell, str(fork))

        assert (fork / "mine").exists()

    def test_a_working_tree_of_the_user(self, root, repository, tell, tmp_path):
        git(root, "worktree", "add", "-q", tmp_path / "own")

        self.refused(tell, str(tmp_path / "own"))

        assert (tmp_path / "own/file").exists()


class TestKilledRemoval:
    """A removal that is killed at every call that changes the disk."""

    LATEST = "the last words\n"

    @pytest.fixture(autouse=True)
    def home(self, environment, monkeypatch):
        monkeypatch.setenv("HOME", environment["HOME"])

    def removal(self, root, store, tree, fs=None):
        """Removes a working tree as the hook does, on some file system."""
        context = context_at(root, str(store), fs=fs or UnsyncedFileSystem())
        payload = {"hook_event_name": "WorktreeRemove", "worktree_path": str(tree)}
        payload |= {"session_id": "s1", "cwd": str(root)}
        asked = host_named("claude").worktree(Payload(payload, None, None, {}, str(root)))
        remove_worktree(context, asked, os.environ)

    def history(self, snap, tree):
        """Returns the labels of the snapshots and how many files each has, newest first."""
        listed = snap("-C", tree, "list", "--json").json["snapshots"]
        return [(item["label"], item["files"]) for item in listed]

    def cut_everywhere(self, root, store, made, finish, every=1):
        """Kills the removal at each call, or every n-th; returns whether the tree was there."""
        found = []
        for number in count(1, every):
            tree = made(f"feat{number}")
            (tree / "sub").mkdir()
            for path in (tree / "file", tree / "sub/a", tree / "sub/b"):
                path.write_text(self.LATEST)
            ended = killed(partial(self.removal, root, store, tree), kill_at(number))
            assert ended.error is None, ended.error
            if not ended.was_killed:
                return found
            is_there = tree.exists()
            if is_there:
                assert sorted(os.listdir(tree / "sub")) == ["a", "b"]
            found.append(is_there)
            finish(tree)
            assert not tree.exists()
            assert not [name for name in os.listdir(tree.parent) if name.startswith(".treesnap")]
        raise AssertionError

    def check(self, snap, tree, files):
        """Asserts that the whole tree was captured for its removal, and nothing after that."""
        labels = self.history(snap, tree)
        assert labels[0] == ("before the working tree was removed", files)
        assert [label for label, _ in labels].count(labels[0][0]) == 1
        assert snap("-C", tree, "cat", "latest", tree / "sub/b").out == self.LATEST

    def test_of_a_fork_is_finished_by_the_next(self, snap, root, store, file, made):
        def finish(tree):
            self.removal(root, store, tree)
            self.check(snap, tree, 3)

        assert set(self.cut_everywhere(root, store, made, finish)) == {True, False}

    def test_of_a_tree_of_git_is_finished_by_the_next(self, snap, root, store, repository, made):
        def finish(tree):
            self.removal(root, store, tree)
            self.check(snap, tree, 4)
            assert git(root, "worktree", "list").count("\n") == 0

        assert set(self.cut_everywhere(root, store, made, finish)) == {True, False}

    def test_of_a_tree_of_git_in_a_fork_is_finished_too(self, snap, store, file, made):
        fork = made("outer")
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
            git(fork, *words)
        tree = made("feat", here=fork)
        snap("-C", tree, "create")
        tree.rename(fork.parent / "away")

        self.removal(fork, store, tree)

        assert git(fork, "worktree", "list").count("\n") == 0

    def test_a_tree_of_git_is_made_anew_after_it(self, snap, root, store, repository, made):
        def finish(tree):
            if not tree.exists():
                assert made(tree.name) == tree
                assert (tree / "file").read_text() == "first\n"
            self.removal(root, store, tree)

        assert set(self.cut_everywhere(root, store, made, finish, every=3)) == {True, False}

    def test_a_tree_that_git_refuses_to_remove_goes_back(self, root, store, repository, made):
        tree = made("feat")
        git(root, "worktree", "lock", tree)

        with pytest.raises(OperationFailed):
            self.removal(root, store, tree)

        assert (tree / "file").read_text() == "first\n"
        assert os.listdir(tree.parent) == ["feat"]
        assert not list(store.glob("roots/*/export-*"))

    def test_a_tree_that_never_was_is_not_removed(self, snap, root, store, repository, made):
        snap("create")
        for path in (root / ".claude/worktrees/no", made("feat").parent / "no"):
            with pytest.raises(NotFound):
                self.removal(root, store, path)


def test_a_watcher_leaves_working_trees_to_the_hook(root, file, store):
    def reply(event):
        told = {"session_id": "s1", "cwd": str(root), "hook_event_name": event, "name": "feat"}
        words = [str(root), "snap", "hook", "claude"]
        request = encode_call(identity(), words, {}, json.dumps(told).encode())
        return carry_out(context_at(root, str(store)), request)

    assert reply("WorktreeCreate") == b""
    assert reply("AnotherEvent") != b""


class TestInstall:
    @pytest.fixture
    def place(self, tmp_path):
        home = tmp_path / "home"
        (home / ".claude").mkdir(parents=True)
        (home / ".claude/settings.json").write_text('{\n  "model": "opus"\n}\n')
        notes = str(tmp_path / "notes")
        return SettingsPlace(LocalFileSystem(), str(home), False, {}, notes, 1.0)

    def put_in(self, place, makes_worktrees, host="claude"):
        install(
            place,
            [host],
            ["/bin/snap"],
            is_strict=False,
            makes_worktrees=makes_worktrees,
            dry_run=False,
        )
        return json.loads(Path(place.path(host)).read_text())["hooks"]

    def test_only_who_asks_for_them_has_them(self, place):
        before = Path(place.path("claude")).read_bytes()
        assert not [event for event in self.put_in(place, None) if "Worktree" in event]

        hooks = self.put_in(place, makes_worktrees=True)

        (group,) = hooks["WorktreeCreate"]
        assert group["hooks"] == [
            {"type": "command", "command": "/bin/snap hook claude", "timeout": 600}
        ]
        assert "WorktreeRemove" in hooks
        assert self.put_in(place, None) == hooks
        assert "WorktreeCreate" not in self.put_in(place, makes_worktrees=False)
        self.put_in(place, makes_worktrees=True)
        uninstall(place, ["claude"], dry_run=False)
        assert Path(place.path("claude")).read_bytes() == before

    def test_hosts_without_them_are_refused(self, place):
        with pytest.raises(InvalidArgument, match="Gemini CLI has no hooks"):
            self.put_in(place, makes_worktrees=True, host="gemini")

    def test_the_command_installs_them_and_shows_them(self, snap, environment):
        assert snap("agent", "install", "claude", "--worktrees", "fork").code == 0

        (hooks,) = snap("agent", "status", "claude", "--json").json["hosts"][0]["hooks"]
        assert (hooks["makes_worktrees"], hooks["is_current"]) == (True, True)
        assert "(worktrees)" in snap("agent", "status", "claude").out
        assert snap("agent", "install", "codex", "--worktrees", "fork").code == 2
