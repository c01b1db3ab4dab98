"""An agent that starts in a subdirectory of a repository: what is captured is said, and widened."""

from __future__ import annotations

import io
import json
import shlex
import sys

import pytest


@pytest.fixture
def start(root):
    """A directory in a repository, in which the agent starts."""
    (root / ".git").mkdir()
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / "shared.txt").write_text("shared\n")
    start = root / "pkg/a b"
    start.mkdir(parents=True)
    (start / "code.txt").write_text("code\n")
    return start


@pytest.fixture
def tell(snap, start, monkeypatch):
    """Tells the hook of Claude Code an event in that directory."""

    def run(event, *words, session="s1", **fields):
        told = {"session_id": session, "hook_event_name": event, "cwd": str(start), **fields}
        given = json.dumps(told).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        done = snap(*words, "hook", "claude")
        assert done.code == 0, done
        return done

    return run


@pytest.fixture
def said(root, start):
    """What is said, and what to type."""
    words = shlex.join(["snap", "-C", str(start), "agent", "root", str(root)])
    return (
        f"Only {start} is captured, a part of the repository {root}; for all of it, type: {words}"
    )


def widen(snap, said):
    program, *words = shlex.split(said.partition("type: ")[2])
    assert program == "snap"
    return snap(*words)


def test_the_first_prompt_says_it_and_captures_no_more(snap, root, start, tell, said):
    told = tell("UserPromptSubmit", prompt="Go on", prompt_id="p1")

    assert (told.json, told.err) == ({"systemMessage": said}, f"{said}\n")
    assert [item["path"] for item in snap("root", "list", "--json").json["roots"]] == [str(start)]
    assert tell("PreToolUse", tool_name="Bash", tool_use_id="t1").out == ""
    assert tell("UserPromptSubmit", prompt="Go on", prompt_id="p1").out == ""
    assert tell("UserPromptSubmit", prompt="And on", prompt_id="p2").out == ""
    assert tell("UserPromptSubmit", session="s2", prompt="Go on").json["systemMessage"] == said


def test_prompts_and_status_say_it(snap, root, start, tell, said):
    tell("UserPromptSubmit", prompt="Go on")

    assert snap("prompts", cwd=start).err.splitlines()[-1] == said
    status = snap("agent", "status", "claude")
    assert status.out.splitlines()[-1] == said
    (part,) = snap("agent", "status", "--json").json["parts"]
    command = said.partition("type: ")[2]
    assert part == {"root": str(start), "repository": str(root), "command": command}


def test_what_is_typed_makes_the_repository_the_root(snap, root, start, tell, said):
    tell("UserPromptSubmit", prompt="Before", prompt_id="p1")

    done = widen(snap, said)

    assert done.out.splitlines() == [
        f"Agents and commands in {start} work on {root}",
        f"The history of {start} stays as it is",
    ]
    assert tell("UserPromptSubmit", prompt="Go on", prompt_id="p2").out == ""
    tell("PreToolUse", tool_name="Bash", tool_use_id="t1")
    (root / "shared.txt").write_text("by the agent\n")
    (start / "code.txt").write_text("by the agent\n")
    tell("PostToolUse", tool_name="Bash", tool_use_id="t1")
    assert "The root is" in snap("rewind", cwd=start).err
    assert (root / "shared.txt").read_text() == "shared\n"
    assert (start / "code.txt").read_text() == "code\n"
    assert "Only" not in snap("prompts", cwd=start).err
    assert snap("agent", "status", "--json").json["parts"] == []
    (first,) = snap("-C", start, "list", "--json").json["snapshots"]
    assert first["label"] == "Before"


def test_a_directory_becomes_a_root_of_its_own_again(snap, root, start, tell, said):
    tell("UserPromptSubmit", prompt="Before")
    widen(snap, said)

    done = snap("agent", "root", ".", "--json", cwd=start)

    assert done.json["joined"] == []
    assert done.place["root"] == str(start)
    assert snap("list", "--json", cwd=start).place["root"] == str(start)


def test_what_holds_no_such_directory_is_refused(snap, root, start, tmp_path):
    other = tmp_path / "other"
    other.mkdir()

    refused = snap("agent", "root", other, cwd=start)

    assert refused.code == 2
    assert "does not hold" in refused.err
    assert snap("root", "list", "--json").json["code"] == "store-not-found"


def test_a_working_tree_in_between_stays_a_root(snap, root, start, tell):
    repository = root / ".git/worktrees/a"
    repository.mkdir(parents=True)
    (repository / "commondir").write_text("../..\n")
    (root / "pkg/.git").write_text(f"gitdir: {repository}\n")

    assert tell("UserPromptSubmit", prompt="Go on").out == ""
    refused = snap("agent", "root", root, cwd=start)

    assert (refused.code, "is a working tree" in refused.err) == (2, True)
    assert snap("list", "--json", cwd=start).place["root"] == str(root / "pkg")


def test_a_store_that_the_hook_names_is_in_what_is_typed(root, start, tell, tmp_path):
    store = str(tmp_path / "named")

    told = tell("UserPromptSubmit", "--store", store, prompt="Go on")

    words = shlex.join(["snap", "-C", str(start), "--store", store, "agent", "root", str(root)])
    assert told.json["systemMessage"].endswith(f"type: {words}")


def test_a_repository_that_is_refused_is_not_offered(snap, root, start, tell, environment):
    environment["HOME"] = str(root)

    assert tell("UserPromptSubmit", prompt="Go on").out == ""


def test_a_copy_of_the_store_knows_it_too(snap, root, start, tell, said, tmp_path, store):
    tell("UserPromptSubmit", prompt="Before")
    widen(snap, said)
    copy = tmp_path / "copy"
    snap("store", "copy", copy)

    assert snap("--store", copy, "list", "--json", cwd=start).place["root"] == str(root)
    assert snap("root", "forget", start).code == 0
    assert snap("list", "--json", cwd=start).place["root"] == str(root)


def test_a_directory_that_is_not_there_is_said_to_be_the_argument(snap, start):
    found = snap("agent", "root", start / "absent", cwd=start)

    assert found.code == 5
    assert f"\nhint: DIR is '{start}', or a directory above it\n" in found.err


@pytest.mark.parametrize("command", ["rewind", "prompts"])
def test_where_nothing_is_captured_roots_with_steps_are_named(snap, root, start, tell, command):
    tell("UserPromptSubmit", prompt="Go on")
    (start / "deep").mkdir()

    for place in (root, start / "deep"):
        found = snap("-C", place, command)
        assert found.code == 5
        assert f"was captured in '{place}'; there are some in '{start}'" in found.err


def test_the_newest_two_roots_with_steps_are_named(snap, root, start, tell):
    for number, name in enumerate(("one", "two", "three")):
        (root / name).mkdir()
        tell("UserPromptSubmit", session=f"s{number}", prompt="Go on", cwd=str(root / name))

    found = snap("-C", root, "rewind")

    assert (
        f"; there are some in '{root / 'three'}'; there are some in '{root / 'two'}'" in found.err
    )
    assert str(root / "one") not in found.err
