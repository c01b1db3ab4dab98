"""``snap revert`` of calls of tools: each to its end, and those at once together."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from treesnap.agents.event import Event
from treesnap.agents.hosts.table import host_named
from treesnap.agents.sessions import note_gap
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.steps import EventPhase

RECORDED = Path(__file__).parents[1] / "payloads" / "codex-0.171.0" / "at-once.jsonl"
"""What Codex told of three calls that one step of the model asked for."""
SESSION = json.loads(RECORDED.read_text().splitlines()[0])["session_id"]
BEDS = ["a.txt", "b.txt", "c.txt"]


@pytest.fixture
def tell(snap, root, monkeypatch):
    """Tells the hook of a host an event."""

    def run(fields, host="claude", **more):
        given = json.dumps({**fields, **more, "cwd": str(root)}).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        done = snap("hook", host)
        assert (done.code, done.err) == (0, ""), done

    return run


@pytest.fixture
def call(tell):
    """Tells the beginning or the end of a call of Claude Code."""

    def run(event, call, session="s1"):
        known = {"session_id": session, "hook_event_name": f"{event}ToolUse", "tool_use_id": call}
        tell({**known, "tool_name": "Bash", "tool_input": {"command": "make"}})

    return run


@pytest.fixture
def planted(root, tell):
    """A root in which Codex has run three calls at once; each has written a file."""
    (root / "keep.txt").write_text("kept\n")
    for line in RECORDED.read_text().splitlines():
        told = json.loads(line)
        if told["hook_event_name"] == "PostToolUse":
            name = told["tool_input"]["command"].split("> ")[1].split(";")[0]
            (root / name).write_text(f"{name}\n")
        if told["hook_event_name"] not in ("SessionStart", "SessionEnd"):
            tell(told, "codex")
    (root / "mine.txt").write_text("mine\n")
    return root


def names(root):
    return sorted(path.name for path in root.iterdir())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("step", range(2, 8))
def test_one_of_several_calls_at_once_is_not_reverted_alone(snap, planted, step):
    """Steps 2 to 4 are before the calls, 5 to 7 after them."""
    refused = snap("revert", f"step:{step}")

    assert (refused.code, refused.out) == (1, "")
    assert refused.err.splitlines() == [
        "snap: Steps 2 to 4 ran at the same time; nothing was reverted",
        "hint: --together reverts all of it, --dry-run shows what that changes",
    ]
    assert names(planted) == [*BEDS, "keep.txt", "mine.txt"]


def test_a_refusal_as_json_names_the_group(snap, planted):
    refused = snap("revert", "step:3", "--json")

    assert (refused.code, refused.json["code"]) == (1, "ran-together")
    assert refused.json["together"] == {"session": SESSION, "steps": [2, 3, 4], "others": []}


def test_all_that_ran_at_once_is_reverted_together(snap, planted):
    planned = snap("revert", "step:3", "--dry-run")
    assert planned.code == 0
    assert planned.out.splitlines()[:-1] == [f"D  {name}" for name in BEDS]
    assert planned.err == "Steps 2 to 4 ran at the same time; would revert all 3\n"

    done = snap("revert", "step:3", "--together")

    assert done.code == 0
    assert "Steps 2 to 4 ran at the same time; reverting all 3" in done.err.splitlines()
    assert names(planted) == ["keep.txt", "mine.txt"]
    snap("undo")
    group = snap("revert", "step:3", "--together", "--json").json["together"]
    assert group == {"session": SESSION, "steps": [2, 3, 4], "others": []}


@pytest.mark.parametrize(("answer", "left"), [("y", []), ("n", BEDS)])
def test_a_terminal_is_asked(snap, planted, monkeypatch, answer, left):
    monkeypatch.setattr("treesnap.cli.commands.merges.is_terminal", lambda _stream: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))

    asked = snap("revert", "step:4")

    assert "Steps 2 to 4 ran at the same time. Revert all of it? [y/N]" in asked.err
    assert asked.code == (0 if answer == "y" else 1)
    assert names(planted) == [*left, "keep.txt", "mine.txt"]


def test_a_call_reaches_to_its_end_and_no_further(snap, root, call):
    call("Pre", "t1")
    (root / "made.txt").write_text("made\n")
    call("Post", "t1")
    call("Pre", "t2")
    call("Post", "t2")  # which changed nothing
    (root / "mine.txt").write_text("mine\n")
    call("Pre", "t3")
    snap("create", "-m", "by the user while it runs")
    (root / "late.txt").write_text("late\n")
    call("Post", "t3")

    assert "Nothing to revert" in snap("revert", "step:3").out
    assert names(root) == ["late.txt", "made.txt", "mine.txt"]
    assert snap("revert", "step:4").code == 0
    assert names(root) == ["made.txt", "mine.txt"]
    assert snap("revert", "step:1").code == 0
    assert names(root) == ["mine.txt"]


def test_work_of_another_session_meanwhile_is_not_reverted_unasked(snap, root, call):
    call("Pre", "t1")
    call("Pre", "u1", "s2")
    (root / "theirs.txt").write_text("theirs\n")
    call("Post", "u1", "s2")
    (root / "made.txt").write_text("made\n")
    call("Post", "t1")

    refused = snap("revert", "step:1", "--session", "s1")

    assert refused.code == 1
    assert "Step 1 and session 's2' ran at the same time; nothing was reverted" in refused.err
    assert names(root) == ["made.txt", "theirs.txt"]


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_call_of_another_session_that_still_runs_is_not_reverted_unasked(
    snap, root, call, tell, has_ended
):
    """Until the end of its turn is told, it may have made what was made meanwhile."""
    call("Pre", "u1", "s2")
    if has_ended:
        tell({"session_id": "s2", "hook_event_name": "Stop"})
    call("Pre", "t1")
    (root / "theirs.txt").write_text("theirs\n")
    (root / "made.txt").write_text("made\n")
    call("Post", "t1")

    done = snap("revert", "step:1", "--session", "s1")

    assert done.code == (0 if has_ended else 1)
    assert ("Step 1 and session 's2' ran at the same time" in done.err) is not has_ended
    assert names(root) == ([] if has_ended else ["made.txt", "theirs.txt"])


def test_a_call_whose_end_was_not_captured_reaches_to_the_next_snapshot(snap, root, store, call):
    call("Pre", "t1")
    (root / "made.txt").write_text("made\n")
    context = context_at(root, str(store))
    event = Event("claude", EventPhase.POST, str(root), "s1", tool="Bash", call="t1")
    note_gap(context, event, "the disk was full")
    call("Pre", "t2")
    (root / "more.txt").write_text("more\n")
    call("Post", "t2")

    assert snap("revert", "step:1").code == 0
    assert names(root) == ["more.txt"]


def test_a_call_that_was_refused_is_alone(snap, root, call):
    """It has a beginning and no end, so what follows is not taken for its own."""
    call("Pre", "t1")
    call("Pre", "t2")
    (root / "made.txt").write_text("made\n")
    call("Post", "t2")

    assert "Nothing to revert" in snap("revert", "step:1").out
    assert snap("revert", "step:2").code == 0
    assert names(root) == []


def test_a_call_that_was_refused_among_others_is_of_their_group(snap, root, call):
    call("Pre", "t1")
    call("Pre", "t2")
    call("Pre", "t3")
    (root / "made.txt").write_text("made\n")
    call("Post", "t3")
    call("Post", "t1")

    for step in (1, 2, 3):
        assert "Steps 1 to 3 ran at the same time" in snap("revert", f"step:{step}").err


def test_calls_at_once_that_changed_nothing_need_no_question(snap, root, call):
    (root / "made.txt").write_text("made\n")
    for event in ("Pre", "Post"):
        call(event, "t1")
        call(event, "t2")
    (root / "mine.txt").write_text("mine\n")

    assert "Nothing to revert" in snap("revert", "step:1").out
    assert names(root) == ["made.txt", "mine.txt"]


def test_an_event_that_two_hooks_tell_is_one_call(snap, root, call):
    call("Pre", "t1")
    call("Pre", "t1")
    (root / "made.txt").write_text("made\n")
    call("Post", "t1")
    call("Post", "t1")

    assert snap("revert", "step:1").code == 0
    assert names(root) == []


def test_the_recorded_payloads_are_those_of_calls_at_once():
    events = [json.loads(line)["hook_event_name"] for line in RECORDED.read_text().splitlines()]
    assert events[2:8] == ["PreToolUse"] * 3 + ["PostToolUse"] * 3
    assert set(events) <= {*host_named("codex").phases, "SessionEnd"}
