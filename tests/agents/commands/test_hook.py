"""What a host of agents gets from ``snap hook``, and which snapshots it leaves."""

from __future__ import annotations

import fcntl
import inspect
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from calling import forked
from command_line import DEADLINE_S, ORDINARY, PROGRAM, Outcome, Snap, wait_until
from serving import CLIENT, FELL_BACK, LIAR, become_client, serving
from slow import SlowFileSystem
from treesnap.agents.commands.hook import carry_out
from treesnap.agents.event import Event
from treesnap.agents.hook import OutOfTime, respond, time_limit
from treesnap.agents.hosts.table import host_named
from treesnap.cli import start
from treesnap.cli.hook_client import identity
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.peers import encode_call
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.steps import EventPhase
from treesnap.core.store import lock

pytestmark = pytest.mark.sampled(4)

Tell = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def file(root: Path) -> Path:
    """A file in the root."""
    path = root / "file"
    path.write_text("first")
    return path


@pytest.fixture
def hook(snap: Snap, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Runs the hook of a host with a payload, in this process."""

    def run(host: str, given: bytes, *words: str, **options: Any) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        return snap("hook", host, *words, **options)

    return run


@pytest.fixture
def tell(hook: Tell, root: Path) -> Tell:
    """Tells the hook of Claude Code an event in the root."""

    def run(event: str, *words: str, **fields: Any) -> Outcome:
        return hook("claude", payload(root, event, **fields), *words)

    return run


def payload(root: Path, event: str, **fields: Any) -> bytes:
    known = {"session_id": "s1", "cwd": str(root), "hook_event_name": event}
    if event == "PreToolUse":
        known |= {"tool_name": "Bash", "tool_input": {"command": "rm -rf build"}}
    return json.dumps(known | fields).encode()


def listed(snap: Snap) -> list[dict[str, Any]]:
    return list(snap("list", "--json").json["snapshots"])


def assert_silent(outcome: Outcome) -> None:
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def assert_warned(outcome: Outcome, reason: str) -> None:
    """The host goes on, and the user is told in one line."""
    (line,) = outcome.err.splitlines()
    assert outcome.code == 0
    assert reason in line
    assert outcome.json == {"systemMessage": line}


def test_each_prompt_and_each_call_is_captured_before(snap, tell):
    assert_silent(tell("UserPromptSubmit", prompt="tidy  up\nthe build", prompt_id="p1"))
    assert_silent(tell("PreToolUse", tool_use_id="t1"))
    assert_silent(tell("PostToolUse", tool_name="Bash", tool_use_id="t1"))
    assert_silent(tell("Stop"))

    found = listed(snap)

    assert [(item["label"], item["step"], item["phase"]) for item in found] == [
        ("end of the turn", 3, "end"),
        ("Bash: rm -rf build", 2, "pre"),
        ("tidy up the build", 1, "turn"),
    ]
    assert {(item["session"], item["kind"]) for item in found} == {("s1", "automatic")}
    assert snap("list", "--tag", "treesnap.host=claude", "--tag", "treesnap.tool=Bash").code == 0


def test_the_state_before_the_call_comes_back(snap, tell, file):
    tell("PreToolUse", tool_use_id="t1")
    file.rename(file.with_name("moved"))

    assert snap("restore", "step:1", "--session", "s1").code == 0
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_only_tools_that_are_known_to_change_nothing_are_left_out(snap, tell):
    for tool in ("Read", "read", "mcp__files__Read", "Bash", ""):
        assert_silent(tell("PreToolUse", tool_name=tool, tool_input={}))

    assert [item["label"] for item in listed(snap)] == [
        "a tool",
        "Bash",
        "mcp__files__Read",
        "read",
    ]


def test_a_label_has_a_path_as_it_is_in_the_root(snap, tell, file):
    tell("PreToolUse", tool_name="Write", tool_input={"file_path": str(file), "content": "x"})

    assert [item["label"] for item in listed(snap)] == ["Write: file"]


def test_several_processes_capture_an_event_once_and_others_each(root, environment, snap):
    given = [payload(root, "PreToolUse", tool_use_id=f"t{number // 2}") for number in range(4)]
    started = [
        subprocess.Popen(
            [*PROGRAM, "hook", "claude"],
            env=environment,
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in given
    ]
    for process, data in zip(started, given, strict=True):
        assert process.stdin is not None
        process.stdin.write(data)
        process.stdin.close()
    printed = [process.stdout.read() for process in started if process.stdout is not None]
    for process in started:
        assert process.wait() == 0
        process.stdout.close()

    assert printed == [b""] * 4
    assert sorted(item["step"] for item in listed(snap)) == [1, 2]


@pytest.fixture
def locked(snap: Snap, store: Path) -> Iterator[None]:
    """Another process works in the root."""
    snap("create")
    (path,) = store.glob("roots/*/lock")
    with path.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_what_could_not_be_captured_is_a_gap(tell, locked, snap):
    assert_warned(tell("PreToolUse", "--wait", "0", tool_use_id="t1"), "is in use by")

    shown = snap("list", "--session", "s1")
    assert "The step before Bash at " in shown.err
    assert "was not captured: The root" in shown.err
    (gap,) = snap("list", "--session", "s1", "--json").json["gaps"]
    assert (gap["key"], gap["phase"], gap["tool"]) == ("t1", "pre", "Bash")
    assert snap("list", "--json").json["gaps"] == []


@pytest.mark.parametrize(("options", "waits_s"), [((), (1, 2)), (("--strict",), (18, 20))])
def test_an_agent_stands_still_for_two_seconds_at_most(tell, locked, monkeypatch, options, waits_s):
    """Behind another command; a strict hook would block the agent, so it waits as long as it may.

    The clock of the lock is the test's, so nothing is waited for.
    """
    now_s = [0.0]

    def pass_time(duration_s: float) -> None:
        now_s[0] += duration_s

    monkeypatch.setattr(lock, "pause", pass_time)
    monkeypatch.setattr(lock, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert "is in use by" in tell("PreToolUse", *options, tool_use_id="t1").err

    least_s, most_s = waits_s
    assert least_s < now_s[0] <= most_s


def test_a_strict_hook_blocks_what_it_cannot_capture(tell, locked, hook):
    hurried = ("--strict", "--wait", "0")
    for event in ("PreToolUse", "UserPromptSubmit"):
        outcome = tell(event, *hurried)
        assert (outcome.code, outcome.out) == (2, "")
        assert "this hook is strict" in outcome.err
        assert len(outcome.err.splitlines()) == 1

    assert_warned(tell("Stop", *hurried), "is in use by")
    given = json.dumps({"hookName": "tool_call", "taskId": "s1"}).encode()
    outcome = hook("cline", given, *hurried)
    assert outcome.code == 0
    assert outcome.json["cancel"] is True


def test_a_strict_hook_says_and_keeps_what_it_cannot_block(locked, hook, root, snap):
    given = {"taskId": "s1", "workspaceRoots": [str(root)]}
    outcome = hook("cline", json.dumps(given).encode(), "TaskStart", "--strict", "--wait", "0")

    assert (outcome.code, outcome.json) == (0, {"cancel": False})
    assert "is in use by" in outcome.err
    (gap,) = snap("list", "--session", "s1", "--json").json["gaps"]
    assert gap["phase"] == "turn"


def test_a_strict_hook_takes_what_it_can_capture(tell):
    assert_silent(tell("PreToolUse", "--strict", tool_use_id="t1"))


def test_a_strict_hook_needs_no_current_directory(snap, root):
    gone = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"]
    run = partial(snap, "hook", "claude", "--strict", prefix=gone)

    assert_silent(run(given=payload(root, "PreToolUse")))
    assert_silent(run(given=payload(root, "Stop")))
    blocked = run(given=payload(root, "PreToolUse", cwd=""))

    assert (blocked.code, blocked.out) == (2, "")
    assert "not a full path" in blocked.err
    assert [item["phase"] for item in listed(snap)] == ["end", "pre"]


def test_time_that_runs_out_stops_the_work():
    with pytest.raises(OutOfTime), time_limit(0.01):
        signal.pause()
    with time_limit(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_payload_that_does_not_end_is_not_waited_for(root, environment):
    started = subprocess.Popen(
        [*PROGRAM, "hook", "gemini", "--timeout", "0.1"],
        env=environment,
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with started:
        assert started.wait(60) == 0
        assert b"it took longer than the hook may take" in started.stderr.read()
        assert isinstance(json.loads(started.stdout.read()), dict)


def test_what_cannot_be_read_is_said_and_is_a_gap(root, environment, snap, file):
    file.chmod(0)
    if os.geteuid() == 0 and shutil.which(ORDINARY[0]) is None:
        pytest.skip("the superuser's rights cannot be dropped here")
    run = partial(snap, prefix=ORDINARY if os.geteuid() == 0 else ["env"])

    outcome = run("hook", "claude", given=payload(root, "PreToolUse", tool_use_id="t1"))

    assert_warned(outcome, "'file' cannot be read")
    strict = run("hook", "claude", "--strict", given=payload(root, "PreToolUse"))
    assert strict.code == 2


@pytest.mark.parametrize("place", ["/", "home"])
def test_dangerous_roots_are_refused_loudly(hook, environment, store, place):
    where = Path(environment["HOME"] if place == "home" else "/")
    for event in ("SessionStart", "PreToolUse"):
        outcome = hook("claude", payload(where, event))
        assert_warned(outcome, "directory")
    assert not list(store.glob("roots/*/root"))


def test_switched_off_it_does_nothing(hook, store):
    for host, printed in [("claude", ""), ("gemini", "{}\n"), ("cline", '{"cancel": false}\n')]:
        outcome = hook(host, b"x", "--strict", env={"SNAP_DISABLE": "1"})
        assert (outcome.code, outcome.out, outcome.err) == (0, printed, "")
    assert not store.exists()


def test_an_unknown_host_does_not_block(snap):
    outcome = snap("hook", "emacs")

    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("snap: There is no host 'emacs'; known are claude, ")


@pytest.mark.parametrize("words", [[], ["claude", "--later"], ["claude", "--timeout", "soon"]])
def test_wrong_usage_does_not_block(snap, words):
    outcome = snap("hook", *words)

    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("snap: ")
    assert len(outcome.err.splitlines()) == 1


HOSTILE: Mapping[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "a text": b'"PreToolUse"',
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a long number": b'{"hook_event_name": ' + b"9" * 10_000 + b"}",
    "not UTF-8": b"\xff\xfe\xfd",
    "no event": b'{"session_id": "s1", "cwd": "/srv"}',
    "no session": b'{"hook_event_name": "PreToolUse", "cwd": "/srv"}',
    "another type": b'{"hook_event_name": "PreToolUse", "session_id": {}, "cwd": []}',
    "a relative root": b'{"hook_event_name": "PreToolUse", "session_id": "s", "cwd": "sub"}',
    "a root with NUL": b'{"hook_event_name": "PreToolUse", "session_id": "s", "cwd": "/a\\u0000"}',
    "an absent root": b'{"hook_event_name": "PreToolUse", "session_id": "s", "cwd": "/no/such"}',
    "a half character": b'{"hook_event_name": "PreToolUse", "session_id": "s", "cwd": "/\\ud800"}',
    "a file as root": b'{"hook_event_name": "PreToolUse", "session_id": "s", "cwd": "/dev/null"}',
    "a very long root": b'{"hook_event_name": "PreToolUse", "session_id": "s", "cwd": "/%b"}'
    % (b"a" * 5000),
}


@pytest.mark.parametrize("given", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_payload_lets_the_host_go_on(hook, store, given):
    outcome = hook("claude", given)

    assert_warned(outcome, "treesnap did not capture the files: ")
    assert "Traceback" not in outcome.err
    assert len(outcome.err) < 1000
    strict = hook("claude", given, "--strict")
    assert (strict.code, strict.out) == (2, "")
    assert len(strict.err.splitlines()) == 1
    assert not list(store.glob("snapshots/*/*"))


def test_a_payload_beyond_the_limit_is_read_and_refused(hook, monkeypatch, root):
    monkeypatch.setattr("treesnap.agents.commands.hook.PAYLOAD_SIZE_MAX", 1 << 20)
    small = payload(root, "PreToolUse", tool_input={"content": "x" * (1 << 18)})
    large = payload(root, "PreToolUse", tool_input={"content": "x" * (1 << 21)})

    assert_silent(hook("claude", small))
    assert_warned(hook("claude", large), "more than 1 MiB")


def test_odd_words_make_no_odd_snapshots(snap, tell):
    odd = "\ud800 \0\n\x1b[31m" + "ü" * 10_000
    for event in ("UserPromptSubmit", "PreToolUse", "Stop"):
        outcome = tell(
            event,
            session_id=odd,
            prompt=odd * 100,
            tool_name=odd,
            tool_input={"command": odd},
            tool_use_id=odd,
        )
        assert_silent(outcome)

    found = listed(snap)
    assert {len(item["session"]) for item in found} == {64}
    assert all(len(item["label"]) < 200 for item in found)
    assert snap("list").code == 0


@pytest.mark.parametrize("here", ["/a\0b", "\0", "sub", "", 7, None, ["/"]])
def test_an_odd_directory_of_the_agent_keeps_nothing_from_being_captured(hook, root, snap, here):
    fields = {"cwd": here, "tool_name": "Edit", "tool_input": {"file_path": "file"}}
    environ = {"CLAUDE_PROJECT_DIR": str(root)}

    outcome = hook("claude", payload(root, "PreToolUse", **fields), env=environ)

    assert_silent(outcome)
    assert len(listed(snap)) == 1


ANSWERED = {
    "list": "Bash: rm -rf build",
    "diff latest": "second",
    "status": "M  file",
    "show latest": "Bash: rm -rf build",
    "ls latest": "file",
    "undo": "There is nothing to undo",
}


@pytest.mark.parametrize("words", ANSWERED)
def test_a_command_that_is_typed_as_a_prompt_is_answered(snap, tell, file, words):
    tell("PreToolUse", tool_use_id="t1")
    file.write_text("second")

    outcome = tell("UserPromptSubmit", prompt=f" snap {words}\n")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["decision"] == "block"
    assert ANSWERED[words] in outcome.json["reason"]
    assert len(listed(snap)) == 1


def test_a_rewind_that_is_typed_as_a_prompt_is_of_this_session(snap, tell, file):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    tell("PreToolUse")
    file.write_text("by the agent")
    tell("Stop")
    tell("UserPromptSubmit", prompt="other work", session_id="s2")

    answer = tell("UserPromptSubmit", prompt="snap rewind").json["reason"]

    assert "do it" in answer
    assert answer.endswith("To undo this: snap undo")
    assert file.read_text() == "first"
    assert "undo" in tell("UserPromptSubmit", prompt="snap undo").json["reason"]
    assert file.read_text() == "by the agent"


def test_a_rewind_that_is_typed_in_a_session_without_steps_undoes_no_other(tell, file):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    tell("PreToolUse", tool_use_id="t1")
    file.write_text("by the agent")
    tell("PostToolUse", tool_use_id="t1")

    for words in ("rewind", "rewind 1", "prompts"):
        answer = tell("UserPromptSubmit", prompt=f"snap {words}", session_id="s2").json["reason"]
        assert "No step of the session 's2' " in answer
        assert "the one that worked last is 's1' of claude" in answer

    assert file.read_text() == "by the agent"


def test_a_number_of_prompts_that_is_too_large_is_answered(tell):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")

    answer = tell("UserPromptSubmit", prompt="snap rewind 2").json["reason"]

    assert "1 prompt can be undone" in answer


def test_a_call_that_was_interrupted_has_ended_when_a_command_is_typed(tell, snap, root, file):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    tell("PreToolUse", tool_use_id="t1")
    file.write_text("half")
    tell("UserPromptSubmit", prompt="snap rewind")
    assert file.read_text() == "first"
    (root / "notes").write_text("by the user")
    tell("UserPromptSubmit", prompt="try again", prompt_id="p2")

    tell("UserPromptSubmit", prompt="snap rewind 2")

    assert (root / "notes").read_text() == "by the user"
    kept = {"path": "notes", "verdict": "kept", "sessions": []}
    assert kept in snap("prompts", "2", "--json").json["paths"]


@pytest.mark.parametrize("words", ["--session s2", "--session=s2"])
def test_a_rewind_that_is_typed_as_a_prompt_may_name_another_session(tell, words):
    tell("UserPromptSubmit", prompt="other work", session_id="s2")
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")

    answer = tell("UserPromptSubmit", prompt=f"snap rewind --dry-run {words}").json["reason"]

    assert "of session s2 of claude" in answer


def test_of_two_hooks_that_are_told_one_prompt_one_carries_it_out(snap, tell, file):
    for content in ("second", "third"):
        snap("create")
        file.write_text(content)
        snap("restore", "latest")

    answered = tell("UserPromptSubmit", prompt="snap undo", prompt_id="p1")
    other = tell("UserPromptSubmit", prompt="snap undo", prompt_id="p1")

    assert answered.json["decision"] == "block"
    assert_silent(other)
    assert file.read_text() == "third"
    assert tell("UserPromptSubmit", prompt="snap undo", prompt_id="p2").json["reason"]
    assert file.read_text() == "second"


@pytest.mark.parametrize("content", [b"", b"5", b"null", b"{}", b"[" * 10**6, b" " * (2 << 20)])
def test_a_damaged_list_of_prompts_is_written_anew(snap, tell, environment, content):
    snap("create")
    tell("UserPromptSubmit", prompt="snap list", prompt_id="p1")
    (path,) = Path(environment["HOME"]).rglob("prompts.json")
    path.write_bytes(content)

    answered = [tell("UserPromptSubmit", prompt="snap list", prompt_id="p2") for _ in range(2)]

    assert answered[0].json["decision"] == "block"
    assert_silent(answered[1])


@pytest.fixture
def restored(snap: Snap, file: Path) -> None:
    """A restore that can be undone: then the file is the second again."""
    snap("create")
    file.write_text("second")
    snap("restore", "latest")


def at_call(monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], None]) -> None:
    """Does something before each call of a method of the file system."""
    proceed = getattr(LocalFileSystem, method)

    def around(*arguments: Any, **options: Any) -> Any:
        act()
        return proceed(*arguments, **options)

    is_method = inspect.isfunction(proceed)  # and not one of the system's
    monkeypatch.setattr(LocalFileSystem, method, around if is_method else staticmethod(around))


@pytest.mark.parametrize("method", ["exchange", "remove_directory"])
def test_time_that_runs_out_does_not_stop_an_undo_that_changes_files(
    tell, restored, file, monkeypatch, method
):
    calls = []
    at_call(monkeypatch, method, lambda: calls.append(signal.raise_signal(signal.SIGALRM)))

    answered = tell("UserPromptSubmit", prompt="snap undo").json["reason"]

    assert calls
    assert answered.startswith("Restored ")
    assert file.read_text() == "second"


def test_an_undo_that_was_stopped_while_it_changed_files_is_not_to_be_typed_again(
    snap, tell, restored, file, monkeypatch
):
    def stop() -> NoReturn:
        raise OutOfTime

    with monkeypatch.context() as patch:
        at_call(patch, "exchange", stop)
        answered = tell("UserPromptSubmit", prompt="snap undo").json["reason"]

    assert "the next snap command completes it" in answered
    assert snap("status").code == 0
    assert file.read_text() == "second"


def test_an_undo_that_was_stopped_before_it_changed_files_is_to_be_typed_again(
    tell, restored, file, monkeypatch
):
    at_call(monkeypatch, "sync_file_system", partial(signal.raise_signal, signal.SIGALRM))

    answered = tell("UserPromptSubmit", prompt="snap undo").json["reason"]

    assert answered.endswith("type it in a terminal")
    assert file.read_text() == "first"


def test_the_end_of_a_turn_that_is_told_twice_is_captured_once(snap, tell):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    for is_active in (False, False, True):
        tell("Stop", prompt_id="p1", stop_hook_active=is_active)

    assert [item["phase"] for item in listed(snap)] == ["end", "end", "turn"]


@pytest.mark.parametrize(
    "prompt",
    [
        "snap undo what you did, please",
        "snap list isn't right",
        "snap gc",
        "snap delete latest",
        "snap",
        "undo",
        "Say: snap undo",
    ],
)
def test_any_other_prompt_goes_to_the_model(snap, tell, prompt):
    assert_silent(tell("UserPromptSubmit", prompt=prompt))

    assert [item["label"] for item in listed(snap)] == [prompt]


def test_where_a_host_shows_no_answer_the_model_gets_the_command(snap, hook, root):
    assert_silent(hook("vscode", payload(root, "UserPromptSubmit", prompt="snap list")))

    assert [item["label"] for item in listed(snap)] == ["snap list"]


def test_after_a_restore_the_model_is_told_once_which_files_differ(snap, tell, root, file):
    (root / "sub").mkdir()
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    file.write_text("by the agent")
    (root / "sub" / "made").write_text("by the agent")
    tell("Stop")
    assert snap("restore", "step:1", "--session", "s1").code == 0

    told = tell("UserPromptSubmit", prompt="go on", prompt_id="p2").json["hookSpecificOutput"]

    assert told["hookEventName"] == "UserPromptSubmit"
    assert "not as you last saw them: file, sub/made. Read" in told["additionalContext"]
    assert_silent(tell("UserPromptSubmit", prompt="and on", prompt_id="p3"))


def test_what_is_captured_is_no_gap_although_the_news_cannot_be_found(snap, tell, file, store):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    file.write_text("by the agent " * 100)
    tell("Stop")
    assert snap("restore", "step:1", "--session", "s1").code == 0
    for path in (*store.glob("packs/*"), *store.glob("index/*")):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:40])

    outcome = tell("UserPromptSubmit", "--strict", prompt="go on", prompt_id="p2")

    assert_silent(outcome)
    assert snap("list", "--session", "s1", "--json").json["gaps"] == []


def test_the_model_is_told_also_where_its_turn_was_interrupted(snap, tell, file):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    tell("PreToolUse", tool_use_id="t1")
    file.write_text("by the agent")
    assert snap("rewind").code == 0

    told = tell("UserPromptSubmit", prompt="go on", prompt_id="p2").json["hookSpecificOutput"]

    assert "not as you last saw them: file. Read" in told["additionalContext"]


def test_after_a_revert_of_what_is_captured_the_model_is_told_too(snap, tell, file):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    file.write_text("by the agent")
    tell("PreToolUse", tool_use_id="t1")
    assert snap("revert", "step:1", "--session", "s1").code == 0

    told = tell("UserPromptSubmit", prompt="go on", prompt_id="p2").json["hookSpecificOutput"]

    assert "not as you last saw them: file. Read" in told["additionalContext"]


def test_a_rewind_of_an_interrupted_turn_that_is_undone_is_no_news(snap, tell, file):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    tell("PreToolUse", tool_use_id="t1")
    file.write_text("by the agent")
    assert snap("rewind").code == 0
    assert snap("undo").code == 0

    assert_silent(tell("UserPromptSubmit", prompt="go on", prompt_id="p2"))


def test_what_others_did_before_a_restore_is_told_too(snap, tell, root, file):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    tell("Stop")
    file.write_text("by the user")
    (root / "mine").write_text("by the user")
    assert snap("restore", "step:1", "--session", "s1", "file").code == 0

    told = tell("UserPromptSubmit", prompt="go on", prompt_id="p2").json["hookSpecificOutput"]

    assert "not as you last saw them: mine. Read" in told["additionalContext"]


def test_a_change_without_a_restore_is_no_news(tell, file):
    tell("UserPromptSubmit", prompt="do it", prompt_id="p1")
    tell("Stop")
    file.write_text("by the user")

    assert_silent(tell("UserPromptSubmit", prompt="go on", prompt_id="p2"))


@pytest.mark.needs("companions")
def test_the_first_prompt_starts_a_watcher_where_no_event_comes_before(snap, root):
    given = payload(root, "userPromptSubmit", prompt="do it")
    assert_silent(snap("hook", "kiro", process=True, given=given))
    try:
        wait_until(lambda: snap("watch", "--status", "--json").json["running"])
        assert [item["label"] for item in listed(snap)] == ["do it"]
    finally:
        snap("watch", "--stop")


@pytest.mark.needs("companions")
def test_a_session_starts_a_watcher_and_makes_the_first_snapshot(snap, tell, root):
    given = payload(root, "SessionStart", source="startup")
    assert_silent(snap("hook", "claude", process=True, given=given))
    try:
        wait_until(lambda: snap("list").out)  # the store may not be there yet
        assert [item["label"] for item in listed(snap)] == ["taken in the background for an agent"]
        wait_until(lambda: snap("watch", "--status", "--json").json["running"])
        assert_silent(tell("SessionStart", source="resume"))
        assert_silent(tell("PreToolUse"))
    finally:
        snap("watch", "--stop")


@pytest.mark.needs("companions")
@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_a_watcher_that_was_killed_comes_back_once_a_minute(snap, tell, root, store):
    given = payload(root, "SessionStart", source="startup")
    assert_silent(snap("hook", "claude", process=True, given=given))
    try:
        wait_until(lambda: snap("watch", "--status", "--json").json["running"])
        os.kill(snap("watch", "--status", "--json").json["process_id"], signal.SIGKILL)
        (note,) = store.glob("roots/*/watch/for-agents")
        began_ns = note.stat().st_mtime_ns
        assert_silent(tell("PreToolUse", tool_use_id="t1"))
        assert note.stat().st_mtime_ns == began_ns

        os.utime(note, ns=(began_ns - 61 * 10**9,) * 2)
        assert_silent(tell("PreToolUse", tool_use_id="t2"))
        wait_until(lambda: snap("watch", "--status", "--json").json["running"])
    finally:
        snap("watch", "--stop")


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_a_root_that_takes_longer_than_a_hook_may_take_is_captured_all_the_same(snap, root, store):
    def run_out(_words: object) -> NoReturn:
        raise OutOfTime

    context = context_at(root, str(store))
    event = Event("claude", EventPhase.TURN, str(root), "s1", prompt="snap list")
    reply = respond(event, host_named("claude"), context, run_out)
    wait_until(lambda: snap("list").out)

    assert "it took longer than the hook may take" in reply.stderr
    assert listed(snap)[0]["label"] == "taken in the background for an agent"


def test_the_root_is_the_nearest_that_was_captured_before(snap, tell, root):
    snap("create")
    (root / "sub").mkdir()

    tell("PreToolUse", cwd=str(root / "sub"))

    assert len(listed(snap)) == 2


def test_a_call_of_codex_elsewhere_is_a_step_of_its_session(snap, hook, root, tmp_path):
    """Codex tells the directory of the call as that of the agent."""
    other = tmp_path / "other"
    other.mkdir()
    (root / "sub").mkdir()
    snap("-C", root / "sub", "create")
    known = {"session_id": "s1", "tool_name": "Bash"}

    def tell(event, cwd, **fields):
        told = {**known, "hook_event_name": event, "cwd": str(cwd), **fields}
        assert_silent(hook("codex", json.dumps(told).encode()))

    tell("UserPromptSubmit", root, prompt="Go on", turn_id="t")
    for number, place in enumerate((other, root / "sub", root)):
        tell("PreToolUse", place, tool_use_id=f"c{number}", tool_input={"command": "make"})
        (root / f"made{number}").touch()
        tell("PostToolUse", place, tool_use_id=f"c{number}", tool_input={"command": "make"})

    roots = snap("root", "list", "--json").json["roots"]
    assert [item["path"] for item in roots] == [str(root), str(root / "sub")]
    assert [item["phase"] for item in listed(snap)] == [*["post", "pre"] * 3, "turn"]
    done = snap("rewind")
    assert f"The agent also worked in '{other}'" in done.err
    assert sorted(path.name for path in root.iterdir()) == ["file", "sub"]


@pytest.mark.needs("companions")
def test_a_fork_server_serves_hooks(root, store, environment, snap):
    snap("create")
    with serving(store, environment):
        code, out, err = forked(
            ["hook", "claude"],
            cwd=root,
            variables=environment,
            given=payload(root, "PreToolUse", tool_use_id="t1"),
            program=become_client,
        )

    assert (code, out, err) == (0, b"", b"")
    assert listed(snap)[0]["label"] == "Bash: rm -rf build"


@pytest.fixture
def run_hook(root: Path, environment: dict[str, str]) -> Callable[..., tuple[int, bytes, bytes]]:
    """Runs the hook as a process that is told apart if it does the work itself."""

    def run(event: str, *words: str, **fields: Any) -> tuple[int, bytes, bytes]:
        given = payload(root, event, **fields)
        where = {"cwd": root, "variables": environment}
        return forked(["hook", "claude", *words], given=given, program=become_client, **where)

    return run


@pytest.mark.needs("companions")
def test_a_watcher_carries_hooks_out(run_hook, snap, detach, root, environment):
    detach()
    environment["CLAUDE_PROJECT_DIR"] = str(root)

    for key in ("t1", "t2", "t1"):
        assert run_hook("PreToolUse", tool_use_id=key) == (0, b"", b"")
    assert run_hook("PreToolUse", "--strict", tool_name="Read", tool_input={}) == (0, b"", b"")
    assert run_hook("PostToolUse", tool_name="Bash", tool_use_id="t1") == (0, b"", b"")
    (root / "new").touch()
    assert run_hook("PostToolUse", tool_name="Bash", tool_use_id="t2") == (0, b"", b"")
    assert run_hook("UserPromptSubmit", prompt_id="p1", prompt="Go on") == (0, b"", b"")
    assert run_hook("Stop", cwd="/") == (0, b"", b"")
    assert run_hook("Unknown") == (0, b"", b"")

    found = [(item["step"], item["phase"]) for item in listed(snap)]
    assert found == [(5, "end"), (4, "turn"), (3, "post"), (2, "pre"), (1, "pre")]


@pytest.mark.needs("companions")
def test_what_a_watcher_does_not_carry_out_is_left_to_the_hook(run_hook, snap, detach):
    detach()

    left = [
        run_hook("SessionStart"),
        run_hook("UserPromptSubmit", prompt="snap undo"),
        run_hook("PreToolUse", "-C", "/"),
        run_hook("PreToolUse", "--timeout", "0.5"),
        run_hook("PreToolUse", "--later"),
        run_hook(""),
    ]

    assert {code for code, *_ in left} == {FELL_BACK}
    assert listed(snap) == []


@pytest.mark.needs("companions")
@pytest.mark.parametrize("program", [CLIENT, LIAR], ids=["hook", "watcher"])
def test_a_hook_with_other_rights_is_left_to_itself(root, environment, snap, detach, program):
    if shutil.which("setpriv") is None:
        pytest.skip("the rights of a process cannot be changed here")
    detach()
    words = ["setpriv", "--no-new-privs", sys.executable, "-c", program, "hook", "claude"]
    given = payload(root, "PreToolUse", tool_use_id="t1")

    done = subprocess.run(words, input=given, cwd=root, env=environment, check=False)

    assert done.returncode == FELL_BACK
    assert listed(snap) == []


@pytest.mark.needs("companions")
def test_a_hook_of_a_root_inside_asks_no_watcher_of_the_root_around(run_hook, snap, detach, root):
    (root / "inner").mkdir()
    assert snap("-C", "inner", "create").code == 0
    detach()

    assert run_hook("PreToolUse", cwd=str(root / "inner"))[0] == FELL_BACK


def become_slow_client() -> None:
    """Makes a child the command, to which 12 s pass when it has read a part of the payload."""
    now, read = time.monotonic, os.read
    late_s = [0.0]

    def read_slowly(fd: int, size: int) -> bytes:
        piece = read(fd, size)
        if fd == 0 and not late_s[0]:
            late_s[0] = 12.0
            if 0 < signal.getitimer(signal.ITIMER_REAL)[0] < late_s[0]:
                signal.raise_signal(signal.SIGALRM)
        return piece

    time.monotonic = lambda: now() + late_s[0]
    os.read = read_slowly
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    start.main()


@pytest.mark.needs("companions")
def test_a_payload_that_comes_slowly_is_read_to_its_end(root, environment, snap, detach):
    detach()
    given = payload(root, "PreToolUse", tool_input={"command": "rm", "more": "x" * 200_000})

    outcome = forked(
        ["hook", "claude", "--strict"],
        cwd=root,
        variables=environment,
        given=given,
        program=become_slow_client,
    )

    assert outcome == (0, b"", b"")
    assert [item["label"] for item in listed(snap)] == ["Bash: rm"]


def state_of(process_id: int) -> str | None:
    """Returns the state of a process, as proc_pid_stat(5) names it; None for one that is gone."""
    try:
        facts = Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return None
    return facts.rpartition(")")[2].split()[0]


PATIENT = """\
import sys
from treesnap.cli.start import main
from treesnap.core.fs import peers
peers.PATIENCE_S = 1e6
sys.argv[0] = "snap"
main()
"""
"""The command line, that would wait for a companion for ever."""


@pytest.mark.needs("companions")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_hook_whose_watcher_is_gone_or_stands_still_does_the_work_at_once(
    root, environment, snap, detach, number
):
    process_id = detach()
    os.kill(process_id, number)
    ended = {signal.SIGSTOP: "T", signal.SIGKILL: "Z"}[number]
    wait_until(lambda: state_of(process_id) in (ended, None))
    started = subprocess.run(
        [sys.executable, "-c", PATIENT, "hook", "claude"],
        timeout=DEADLINE_S,
        input=payload(root, "PreToolUse", tool_use_id="t1"),
        capture_output=True,
        check=True,
        env=environment,
        cwd=root,
    )

    assert (started.stdout, started.stderr) == (b"", b"")
    assert [item["phase"] for item in listed(snap)] == ["pre"]


@pytest.mark.needs("companions")
def test_what_a_watcher_cannot_capture_is_one_gap_of_the_hook(
    root, environment, snap, detach, locked
):
    detach()
    started = subprocess.run(
        [sys.executable, "-m", "treesnap", "hook", "claude", "--timeout", "1"],
        input=payload(root, "PreToolUse", tool_use_id="t1"),
        capture_output=True,
        check=True,
        env=environment,
        cwd=root,
    )

    assert b"is in use by" in started.stderr
    (gap,) = snap("list", "--session", "s1", "--json").json["gaps"]
    assert gap["key"] == "t1"


def request(given: bytes, directory: Path, *words: str) -> bytes:
    """Returns what a client sends to a watcher."""
    return encode_call(identity(), [str(directory), "snap", "hook", "claude", *words], {}, given)


@pytest.mark.parametrize(("timeout_s", "labels"), [("5", []), ("20", ["Bash: rm -rf build"])])
def test_a_watcher_publishes_nothing_that_its_client_no_longer_waits_for(
    root, store, snap, file, monkeypatch, timeout_s, labels
):
    fs = SlowFileSystem(file, 4.0, monkeypatch)
    context = context_at(root, str(store), fs=fs)
    given = payload(root, "PreToolUse", tool_use_id="t1")

    reply = carry_out(context, request(given, root, "--timeout", timeout_s))

    assert bool(reply) == bool(labels)
    assert [item["label"] for item in listed(snap)] == labels


@pytest.mark.needs("companions")
def test_a_hook_that_a_watcher_carries_out_imports_hardly_anything(root, environment, snap, detach):
    detach()
    program = (
        "import os, sys; sys.argv[:] = ['snap', 'hook', 'claude']; sys.orig_argv[:] = sys.argv; "
        "before = set(sys.modules); end = os._exit; "
        "os._exit = lambda code: (print(*sorted(set(sys.modules) - before)), "
        "sys.stdout.flush(), end(code)); from treesnap.cli.start import main; main()"
    )
    started = subprocess.run(
        [sys.executable, "-c", program],
        input=payload(root, "PreToolUse", tool_use_id="t1"),
        capture_output=True,
        check=True,
        env=environment,
        cwd=root,
    )

    ours = [
        "treesnap",
        *(f"treesnap.cli{name}" for name in ("", ".hook_client", ".start")),
        *(f"treesnap.core{name}" for name in ("", ".fs", ".fs.peers")),
    ]
    assert started.stdout.decode().split() == ["__future__", "_socket", "select", *ours]
    assert [item["phase"] for item in listed(snap)] == ["pre"]


class TestStatusOfASession:
    def line(self, hook, snap, monkeypatch, **fields):
        given = json.dumps({"session_id": "s1", **fields}).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        return snap("agent", "status-line", "claude").out

    def test_a_status_line_says_how_far_it_has_come(self, hook, tell, snap, monkeypatch):
        line = partial(self.line, hook, snap, monkeypatch)
        assert line() == "snap: not captured yet\n"
        tell("UserPromptSubmit", prompt="Go on")
        assert line(session_id="other") == "snap: not captured yet\n"
        session = json.loads(snap("agent", "status", "claude", "--json").raw)["sessions"][0]
        assert (session["step"], session["gaps"], session["problem"]) == (1, 0, None)
        assert line(session_id=session["session"]) == "snap 1 \N{MIDDLE DOT} 0 gaps\n"

    def test_a_root_that_is_refused_is_said_where_no_root_is(
        self, hook, snap, environment, monkeypatch
    ):
        fields = {"session_id": "s1", "cwd": "/", "hook_event_name": "PreToolUse"}
        hook("claude", json.dumps(fields).encode())

        assert self.line(hook, snap, monkeypatch).startswith("snap off: ")
        status = snap("agent", "status", "claude")
        assert "claude session s1 in '/': not captured: " in status.out
        session = json.loads(snap("agent", "status", "--json").raw)["sessions"][0]
        assert (session["session"], session["gaps"], session["step"]) == ("s1", 1, None)

    @pytest.mark.parametrize("given", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
    def test_what_is_no_payload_is_no_error(self, snap, monkeypatch, given):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))

        result = snap("agent", "status-line", "claude")

        assert (result.code, result.out) == (0, "snap: not captured yet\n")
