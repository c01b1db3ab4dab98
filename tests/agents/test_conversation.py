"""Conversations go back where the double of a host lets them, and every failure is a reason."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import host_double
from command_line import wait_until
from treesnap.agents import conversation as conversations
from treesnap.agents.conversation import Conversation, ConversationOutcome, WayKind, conversation
from treesnap.agents.event import Event
from treesnap.agents.hook import record
from treesnap.agents.host_process import host_program
from treesnap.agents.sessions import agent_session
from treesnap.core.ops.context import Context, context_at
from treesnap.core.ops.history.steps import EventPhase
from treesnap.testing.doubles import UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

UUIDS = [f"01a22093-3c85-7b40-bf5d-0000000000{number:02}" for number in range(4)]
CALLING = ("codex", "copilot", "opencode")
SESSIONS = {"codex": UUIDS[0], "copilot": UUIDS[0], "opencode": "ses_old", "claude": UUIDS[0]}
PROMPT = "tidy up the project"
LAST = {
    "codex": "thread/revert",
    "copilot": "session.history.rewind",
    "opencode": "POST",
}
"""What is asked last."""


class Place(NamedTuple):
    """A root, and a directory of the PATH with doubles of hosts."""

    context: Context
    programs: Path
    log: Path

    def prompt(self, host: str, text: str = PROMPT, ref: str = "", session: str = "") -> None:
        """Tells of a prompt, as the hook of a host does."""
        name = session or SESSIONS[host]
        event = Event(host, EventPhase.TURN, self.context.root, name, prompt=text, ref=ref)
        record(self.context, event._replace(key=f"{text} {ref}"))

    def variables(self, how: str = "", **more: Any) -> dict[str, str]:
        """Returns the environment of a user; the doubles behave as ``how`` says."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        own = [{"id": ref, "text": f"{PROMPT}", "time": now} for ref in (UUIDS[1], "msg_1")]
        double = {"how": how, "directory": self.context.root, "prompts": own, "log": str(self.log)}
        return {"PATH": str(self.programs), "DOUBLE": json.dumps({**double, **more})}

    def back(self, host: str, how: str = "", **more: Any) -> Conversation:
        """Has the conversation go back to before the newest prompt."""
        given = {"session": SESSIONS[host], **more}
        found = self.asked(is_wanted=True, environ=self.variables(how, **given))
        assert found is not None
        return found

    def asked(self, **options: Any) -> Conversation | None:
        session = agent_session(self.context)
        options = {"environ": self.variables(), **options}
        return conversation(session, session.steps[0], self.context.root, **options)

    def calls(self) -> list[Any]:
        """Returns what the double was asked, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    root, programs = tmp_path / "root", tmp_path / "bin"
    root.mkdir()
    programs.mkdir()
    for host in CALLING:
        program = programs / host
        text = Path(host_double.__file__).read_text()
        program.write_text(f"#!{sys.executable} -IS\n{text}")
        program.chmod(0o755)
    context = context_at(root, str(tmp_path / "store"), fs=UnsyncedFileSystem())
    return Place(context, programs, tmp_path / "log")


def ref_of(host: str) -> str:
    return {"codex": UUIDS[1], "opencode": "msg_1"}.get(host, "")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host has little time."""
    monkeypatch.setattr(conversations, "TIMEOUT_S", 1.0)


@pytest.mark.parametrize("host", CALLING)
def test_a_conversation_goes_back_to_before_a_prompt(place, host):
    place.prompt(host, ref=ref_of(host))

    found = place.back(host)

    went_on = host_double.NEW_SESSION if host == "opencode" else SESSIONS[host]
    outcome = ConversationOutcome.FORKED if host == "opencode" else ConversationOutcome.BACK
    assert (found.outcome, found.session, found.reason) == (outcome, went_on, None)
    assert found.command[0] == host
    assert went_on in " ".join(found.command)


def test_codex_is_asked_in_its_order(place):
    place.prompt("codex", ref=UUIDS[1])

    place.back("codex")

    words, begin, begun, resume, revert, cut = place.calls()
    assert words == ["words", "app-server"]
    assert [begin[0], begun[0]] == ["initialize", "initialized"]
    assert resume == ["thread/resume", {"threadId": UUIDS[0], "excludeTurns": True}]
    assert revert == ["thread/revert", {"threadId": UUIDS[0], "beforeTurnId": UUIDS[1]}]
    assert cut == ["cut", UUIDS[1]]


def test_opencode_is_asked_for_the_prompt_first_and_no_hook_of_ours_runs(place):
    place.prompt("opencode", ref="msg_1")

    place.back("opencode")

    words, environment, *calls = place.calls()
    assert words == ["words", "serve", "--hostname", "127.0.0.1", "--port", "0"]
    assert environment == ["environment", "1"]
    assert [call[:2] for call in calls] == [
        ["GET", "/session/ses_old"],
        ["GET", "/session/ses_old/message/msg_1"],
        ["POST", "/session/ses_old/fork"],
    ]
    assert json.loads(calls[-1][3]) == {"messageID": "msg_1"}


def test_copilot_is_asked_for_the_prompt_by_its_text_and_its_time(place):
    place.prompt("copilot")
    now_s = time.time()
    prompts = [
        {"id": name, "text": text, "time": datetime.fromtimestamp(at_s, UTC).isoformat()}
        for name, text, at_s in [
            ("before", PROMPT, now_s - 30),
            ("right", f"  tidy up\nthe {'project'}", now_s - 1),
            ("other", "something else", now_s),
            ("much later", PROMPT, now_s + 3600),
        ]
    ]

    found = place.back("copilot", prompts=prompts)

    assert found.outcome is ConversationOutcome.BACK
    assert place.calls()[-1] == ["cut", "right"]


@pytest.mark.parametrize(
    "prompts",
    [
        [],
        None,
        [1, None, {}],
        [{"id": "a", "text": PROMPT, "time": "yesterday"}],
        [{"id": "a", "text": PROMPT, "time": "2020-01-01T00:00:00Z"}],
        [{"id": "a", "text": "another", "time": "9999-12-31T23:59:59Z"}],
    ],
)
def test_a_prompt_that_copilot_does_not_list_is_not_guessed(place, prompts):
    place.prompt("copilot")
    own = [each for each in prompts or () if isinstance(each, dict) and each]

    found = place.back("copilot", prompts=own)

    assert found.reason == "it does not list the prompt"
    assert not [call for call in place.calls() if call[0] == "cut"]


@pytest.mark.parametrize("points", [None, "x", {}, [None], [{"eventId": 1}]])
def test_points_of_another_form_are_none(points):
    point = conversations.Point("s", "", "p", 0)

    with pytest.raises(conversations.HostFailed, match="does not list"):
        conversations._event_of(points, point)


@pytest.mark.parametrize(
    ("host", "how", "reason"),
    [
        ("codex", "busy", "already has an active writer"),
        ("codex", "unknown", "unknown variant `thread/revert`"),
        ("copilot", "busy", "the session is open"),
        ("copilot", "silent", "the session is open"),
        ("copilot", "working", "it says session-busy"),
        ("opencode", "odd", "its answer is not understood"),
        *((host, f"dies {LAST[host]}", "it ended too early") for host in ("codex", "copilot")),
        *((host, f"floods {LAST[host]}", "it said too much") for host in ("codex", "copilot")),
        *((host, f"babbles {LAST[host]}", "is not understood") for host in ("codex", "copilot")),
        *((host, f"asks {LAST[host]}", "it does not read") for host in ("codex", "copilot")),
        ("opencode", "dies serve", "it ended too early"),
        ("opencode", "dies POST", "its answer is not understood"),
        ("opencode", "floods serve", "it said too much"),
        ("opencode", "announces POST", "its answer is not understood"),
    ],
)
def test_what_a_host_refuses_or_does_wrong_is_the_reason(place, host, how, reason):
    place.prompt(host, ref=ref_of(host))

    found = place.back(host, how)

    is_asked = how.endswith(f" {LAST[host]}") or how == "odd"
    failed, unknown = ConversationOutcome.FAILED, ConversationOutcome.UNKNOWN
    assert found.outcome is (unknown if is_asked else failed)
    assert reason in found.reason
    assert found.session == SESSIONS[host]


@pytest.mark.parametrize(
    ("host", "at"),
    [
        *(("codex", at) for at in ("initialize", "thread/resume", "thread/revert")),
        *(("copilot", at) for at in ("connect", "session.history.rewind")),
        *(("opencode", at) for at in ("serve", "GET", "POST")),
    ],
)
@pytest.mark.usefixtures("hasty")
def test_a_host_that_hangs_is_ended_with_what_it_started(place, host, at):
    place.prompt(host, ref=ref_of(host))

    found = place.back(host, f"hangs {at}", child=True)

    possible = {ConversationOutcome.FAILED}
    if at == LAST[host]:
        was_asked = [f"hangs {at}"] in place.calls()  # on a busy machine its time may end before
        possible = {ConversationOutcome.UNKNOWN} | (set() if was_asked else possible)
    assert found.outcome in possible
    assert found.reason == "it did not answer in time"
    wait_until(lambda: not running_from(place.context.root))


def test_a_server_ends_with_the_process_that_started_it(place):
    place.prompt("opencode", ref="msg_1")
    child = os.fork()
    if not child:
        try:
            place.back("opencode", "hangs GET")
        finally:
            os._exit(1)
    try:
        wait_until(lambda: any(call[0] == "GET" for call in place.calls()))
        assert running_from(place.context.root)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    wait_until(lambda: not running_from(place.context.root))


def running_from(root: str) -> list[str]:
    """Returns the processes whose environment names a root: the doubles of a test."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f'"directory": "{root}"' in (process / "environ").read_bytes().decode():
                found.append((process / "cmdline").read_text())
        except (OSError, UnicodeDecodeError):
            continue
    return [line for line in found if line]


@pytest.mark.parametrize("host", CALLING)
def test_a_session_of_another_directory_is_left(place, host, tmp_path):
    place.prompt(host, ref=ref_of(host))

    for directory in (str(tmp_path), None, "\ud800", 7):
        found = place.back(host, directory=directory)
        assert found.outcome is ConversationOutcome.FAILED
        assert "works" in found.reason
    assert not [call for call in place.calls() if call[0] in ("cut", "POST")]


@pytest.mark.parametrize("host", CALLING)
def test_a_host_without_the_session_says_so(place, host):
    place.prompt(host, ref=ref_of(host))

    found = place.back(host, session="another")

    assert found.outcome is ConversationOutcome.FAILED
    assert SESSIONS[host] in found.reason


@pytest.mark.parametrize(
    ("host", "session", "ref"),
    [
        ("codex", "--last", UUIDS[1]),
        ("codex", f"{UUIDS[0]}\n", UUIDS[1]),
        ("codex", UUIDS[0], "x; touch made"),
        ("codex", UUIDS[0], ""),
        ("copilot", "../../etc", ""),
        ("opencode", "ses_a/../../config", "msg_1"),
        ("opencode", "ses_old", "msg_1?directory=/etc"),
        ("opencode", "ses_old", "msg_1 HTTP/1.1"),
    ],
)
def test_an_id_of_another_form_is_never_sent(place, host, session, ref):
    place.prompt(host, ref=ref, session="s")
    agent = agent_session(place.context)
    agent = agent._replace(id=session)
    step = agent.steps[0]._replace(ref=ref)
    variables = place.variables(session=session)

    found = conversation(agent, step, place.context.root, variables, is_wanted=True)

    assert found.outcome is ConversationOutcome.FAILED
    assert found.way is WayKind.KEYS
    assert place.calls() == []
    assert (found.command is not None) == (session in (UUIDS[0], "ses_old"))


def test_a_program_is_taken_from_full_paths_alone(place, monkeypatch):
    place.prompt("codex", ref=UUIDS[1])
    monkeypatch.chdir(place.programs)
    for path in ("", ".", ":", "../bin", "/nonexistent"):
        assert host_program(["codex"], {"PATH": path}) is None
    missing = {**place.variables(), "PATH": "."}

    found = place.asked(is_wanted=True, environ=missing)

    assert found.reason == "codex is not on the PATH"


def test_a_program_that_cannot_be_run_is_the_reason(place):
    place.prompt("codex", ref=UUIDS[1])
    (place.programs / "codex").write_text("#!/nonexistent\n")

    assert place.back("codex").reason.startswith("codex cannot be asked: No such file")


def test_two_prompts_of_one_turn_go_back_together_only(place):
    place.prompt("codex", "the first", ref=UUIDS[1])
    place.prompt("codex", "and this, too", ref=UUIDS[1])

    found = place.back("codex")

    assert "one turn for this prompt and the one before it" in found.reason
    assert place.calls() == []


def test_nothing_is_started_unless_it_is_wanted(place):
    place.prompt("codex", ref=UUIDS[1])

    left = place.asked(is_wanted=False)
    planned = place.asked(is_wanted=True, dry_run=True)

    assert (left.outcome, left.way) == (ConversationOutcome.LEFT, WayKind.CUT)
    assert planned == left
    assert place.calls() == []


def test_claude_has_keys_and_a_command_line_in_place_of_a_call(place):
    place.prompt("claude", "Plan for\n\x1b[2Jpeppers", ref="p1")

    left = place.asked(is_wanted=False)
    wanted = place.asked(is_wanted=True)

    assert (left.outcome, left.way) == (ConversationOutcome.LEFT, WayKind.KEYS)
    assert "choose" in left.keys
    assert '"Restore conversation"' in left.keys
    assert "\x1b" not in left.keys
    assert left.command == ("claude", "--resume", UUIDS[0], "--fork-session")
    assert wanted.outcome is ConversationOutcome.FAILED
    assert wanted.reason == "claude has no call for that"
    assert wanted.keys == left.keys


def test_only_prompts_are_gone_back_to_and_only_in_known_hosts(place):
    place.prompt("claude")
    session = agent_session(place.context)
    root, variables = place.context.root, dict(os.environ)
    strange = session._replace(host="of-a-stranger")
    tool = session.steps[0]._replace(phase=EventPhase.PRE)

    for agent, step in ((strange, session.steps[0]), (session, tool), (session, None)):
        assert conversation(agent, step, root, variables, is_wanted=False) is None
        found = conversation(agent, step, root, variables, is_wanted=True)
        assert found.outcome is ConversationOutcome.FAILED
        assert found.command is None


def test_an_interruption_is_a_failure_that_is_told(place, monkeypatch):
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    place.prompt("codex", ref=UUIDS[1])
    monkeypatch.setattr(conversations, "_asked", interrupted)

    found = place.asked(is_wanted=True)

    assert (found.outcome, found.reason) == (ConversationOutcome.UNKNOWN, "it was interrupted")
