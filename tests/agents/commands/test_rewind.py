"""``snap rewind``: what it prints. What it does is in tests/agents/test_rewind.py."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import host_double
from treesnap.agents.event import Event
from treesnap.agents.hook import record
from treesnap.agents.sessions import note_gap
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.steps import EventPhase

PERHAPS = (
    "Undone, though it may be the work of others, because a call has no known end, work went on "
    "in the background or in another root, or snapshots were removed: "
)
KEPT = "Kept, changed by you or a program: notes\n"
KEYS = "To take the conversation back, too: in Claude Code, press Esc twice"


@pytest.fixture
def told(root, store):
    """Tells of an event of an agent, as a hook does."""

    def tell(phase: EventPhase, words: str = "", *, is_missed: bool = False) -> None:
        tool = "Bash" if phase is EventPhase.PRE else None
        event = Event("claude", phase, str(root), "s1", "", tool, words, words)
        context = context_at(root, str(store))
        if is_missed:
            note_gap(context, event, "the disk was full")
        else:
            record(context, event)

    return tell


@pytest.fixture
def worked(root, told):
    """An agent has changed two files."""
    for name in ("code", "notes"):
        (root / name).write_text("before\n")
    told(EventPhase.TURN, "Tidy up")
    told(EventPhase.PRE, "tidy")
    for name in ("code", "notes"):
        (root / name).write_text("by the agent\n")
    told(EventPhase.END)


def test_it_says_where_it_went_and_how_to_undo_it(snap, root, worked):
    result = snap("rewind")

    assert result.code == 0
    assert " (Tidy up): 2 put back, 0 created, 0 deleted, 0 unchanged\n" in result.out
    first, *rest = result.err.splitlines()
    assert first.startswith("Step 1 of session s1 of claude, 20")
    assert rest == [
        f"{PERHAPS}code, notes",
        f"{KEYS}, choose 'Tidy up', then \"Restore conversation\"",
        "To undo this: snap undo",
    ]
    assert (root / "code").read_text() == "before\n"


SESSION = "01a22093-3c85-7b40-bf5d-000000000000"
TURN = "01a22093-524f-7252-8f19-bdf1fd92228a"
KEYS_OF_CODEX = "press Esc twice, go to 'Make it' with the left and right keys, then press Enter"
ADVICE = (
    f"To take the conversation back, too: in Codex, {KEYS_OF_CODEX}\n"
    "After leaving Codex: snap rewind 1 --conversation\n"
)


@pytest.fixture
def codex(root, store, tmp_path, environment):
    """An agent in Codex has made a file; returns how the double of Codex is told to behave."""

    def behave(how: str = "") -> None:
        double = {
            "how": how,
            "directory": str(root),
            "session": SESSION,
            "prompts": [{"id": TURN}],
            "log": str(tmp_path / "log"),
        }
        environment["DOUBLE"] = json.dumps(double)

    program = tmp_path / "codex"
    program.write_text(f"#!{sys.executable} -IS\n{Path(host_double.__file__).read_text()}")
    program.chmod(0o755)
    environment["PATH"] = str(tmp_path)
    context = context_at(root, str(store))
    event = Event("codex", EventPhase.TURN, str(root), SESSION, prompt="Make it", ref=TURN)
    record(context, event)
    record(context, event._replace(phase=EventPhase.PRE, tool="Bash", call="c"))
    (root / "made").write_text("by the agent")
    record(context, event._replace(phase=EventPhase.POST, tool="Bash", call="c"))
    behave()
    return behave


def test_the_conversation_goes_back_after_the_files(snap, root, codex):
    result = snap("rewind", "--conversation")

    assert result.code == 0
    assert not (root / "made").exists()
    back = "The conversation went back, too. To go on with it: codex resume "
    assert f"{back}{SESSION}\nTo undo this: snap undo\n" in result.err


def test_the_files_go_back_where_the_conversation_does_not(snap, root, codex):
    codex("busy")

    result = snap("rewind", "--conversation", "--json")

    assert result.code == 4
    assert not (root / "made").exists()
    assert json.loads(result.out)["conversation"] == {
        "outcome": "failed",
        "way": "cut",
        "session": SESSION,
        "reason": f"thread {SESSION} already has an active writer",
        "keys": KEYS_OF_CODEX,
        "command": ["codex", "resume", SESSION],
    }
    again = snap("rewind", "--conversation")
    assert again.code == 4
    assert "The conversation stays as it is: thread " in again.err
    assert ADVICE in again.err


def test_a_host_that_does_not_answer_may_have_taken_the_conversation_back(snap, root, codex):
    codex("dies thread/revert")

    result = snap("rewind", "--conversation")

    assert result.code == 4
    assert not (root / "made").exists()
    unknown = "Look whether the conversation went back, for that is not known: it ended too early\n"
    assert unknown in result.err


def test_files_that_do_not_go_back_leave_the_conversation(snap, root, codex, tmp_path):
    result = snap("rewind", "1", "no-such-path", "--conversation")

    assert result.code == 5
    assert not (tmp_path / "log").exists()


def test_a_dry_run_says_that_the_conversation_would_go_back(snap, root, codex, tmp_path):
    result = snap("rewind", "--conversation", "--dry-run")

    assert result.code == 0
    assert "The conversation would go back, too\n" in result.err
    assert not (tmp_path / "log").exists()


def test_without_the_option_it_says_how_the_conversation_goes_back(snap, root, codex, tmp_path):
    result = snap("rewind")

    assert result.code == 0
    assert ADVICE in result.err
    assert not (tmp_path / "log").exists()


def test_the_model_no_longer_knows_about_its_work_that_is_kept(snap, root, codex):
    (root / "made").write_text("by the user, over it")

    result = snap("rewind", "--conversation")

    assert result.code == 0
    assert "Kept, changed by you or a program: made\n" in result.err
    assert "The model no longer knows about its work in what is kept\n" in result.err


def test_conflicts_are_listed_with_what_to_do(snap, root, worked):
    (root / "notes").write_text("by the user\n")

    result = snap("rewind", "--session", "s1")

    assert "1 put back, 0 created, 0 deleted, 0 unchanged" in result.out
    assert KEPT in result.err
    assert "To restore everything: snap rewind 1 --session s1 --theirs\n" in result.err
    assert (root / "notes").read_text() == "by the user\n"

    again = snap("rewind")

    assert again.out.startswith("Nothing to restore: everything else is as in ")

    again = snap("rewind", "--theirs")

    assert "Overwritten, though others changed it: notes\n" in again.err
    assert "To restore everything" not in again.err
    assert (root / "notes").read_text() == "before\n"


def test_a_dry_run_prints_the_plan_and_the_conflicts(snap, root, worked):
    (root / "notes").write_text("by the user\n")

    result = snap("rewind", "step:2", "--dry-run")
    kept = snap("rewind", "--dry-run")

    assert kept.out.startswith("M  code\nWould restore ")
    assert "1 put back" in result.out
    assert KEPT in result.err
    assert (root / "code").read_text() == "by the agent\n"


def test_gaps_are_said(snap, root, worked, told):
    told(EventPhase.PRE, is_missed=True)
    (root / "notes").write_text("by another\n")

    result = snap("rewind")

    assert "The step before Bash at 20" in result.err
    assert "was not captured: the disk was full\n" in result.err
    assert "Undone, though it may be the work of others, because a call has no known" in result.err


def test_rewind_as_json(snap, root, worked):
    (root / "notes").write_text("by the user\n")

    document = snap("rewind", "--json").json

    assert document["schema"] == "treesnap.rewind/1"
    assert (document["host"], document["session"], document["step"]) == ("claude", "s1", 1)
    assert document["conflicts"] == [{"path": "notes", "change": "modified"}]
    assert (document["restored"], document["gaps"]) == (1, [])
    assert document["paths"] == [
        {"path": "code", "verdict": "perhaps", "sessions": []},
        {"path": "notes", "verdict": "conflict", "sessions": []},
    ]


def test_gaps_as_json(snap, root, worked, told):
    told(EventPhase.PRE, is_missed=True)

    document = snap("rewind", "--json", "--dry-run").json

    (gap,) = document["gaps"]
    assert (gap["phase"], gap["tool"], gap["reason"]) == ("pre", "Bash", "the disk was full")


def test_without_an_agent_there_is_nothing_to_rewind(snap, root):
    snap("create")

    result = snap("rewind")

    assert result.code == 5
    assert result.err.splitlines()[0].startswith("snap: No step of an agent was captured in ")
    assert result.err.splitlines()[1].startswith("hint: ")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["0"], 2, "The number of prompts to go back is 1 or more"),
        (["elsewhere"], 5, "elsewhere"),
    ],
)
def test_words_that_mean_nothing_are_refused_where_no_agent_was(snap, root, words, code, message):
    snap("create")

    result = snap("rewind", *words)

    assert (result.code, message in result.err) == (code, True)
    assert "No step of an agent" not in result.err


def test_what_to_type_instead_is_said(snap, root, worked):
    assert "Of the session 's1', 1 prompt can be undone\nhint: 'snap prompts' " in (
        snap("rewind", "2").err
    )
    assert "hint: did you mean 'snap rewind 1 code'?" in snap("rewind", "code").err
    assert "; the one that worked last is 's1' of claude\n" in snap("rewind", "--session", "s2").err


def test_what_is_shared_is_undone_with_the_name_of_the_other_session(snap, root, store):
    for phase in (EventPhase.PRE, EventPhase.POST):
        for session in ("s1", "s2"):
            event = Event("claude", phase, str(root), session, tool="Bash", call="c")
            record(context_at(root, str(store)), event)
        (root / "both").write_text("by one of them")

    said = snap("rewind", "step:1", "--session", "s1", "--shared", "--dry-run").err

    assert "others, because session s2 worked at the same time: both\n" in said
    everything = snap("rewind", "step:1", "--session", "s1", "--shared", "--theirs").err
    assert "Overwritten, though others changed it: both\n" in everything


def test_what_is_shared_with_another_working_tree_is_not_called_the_users(snap, root, told):
    told(EventPhase.TURN, "Commit")
    told(EventPhase.PRE, "commit")
    (root / ".git" / "worktrees" / "feat").mkdir(parents=True)
    told(EventPhase.POST)

    said = snap("rewind", "--dry-run").err

    assert "Kept, because it may be work in another root: .git\n" in said
    assert "you or a program" not in said


def test_an_ignore_file_of_the_agent_is_said_to_go_back_first(snap, root, monkeypatch):
    def tell(event, **fields):
        told = {"session_id": "s1", "hook_event_name": event, "cwd": str(root), **fields}
        given = io.TextIOWrapper(io.BytesIO(json.dumps(told).encode()))
        monkeypatch.setattr(sys, "stdin", given)
        assert snap("hook", "claude").code == 0

    (root / "a").write_text("first")
    tell("UserPromptSubmit", prompt="Go on")
    for number, (name, text) in enumerate((("a", "agent"), (".snapignore", "a\n"))):
        tell("PreToolUse", tool_name="Bash", tool_use_id=f"t{number}")
        (root / name).write_text(text)
        tell("PostToolUse", tool_name="Bash", tool_use_id=f"t{number}")

    planned = snap("rewind", "--dry-run")
    assert "Left alone, because it is excluded by now: a" in planned.err.splitlines()
    done = snap("rewind")

    assert "An ignore file went back first" in done.err
    assert (root / "a").read_text() == "first"
    assert not (root / ".snapignore").exists()
