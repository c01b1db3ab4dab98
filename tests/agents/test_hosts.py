"""Every host's payloads become the same events, and every decision a reply in its form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.agents.event import Event, Reply
from treesnap.agents.hook import reply_to
from treesnap.agents.hosts.base import Payload
from treesnap.agents.hosts.table import HOSTS, host_named
from treesnap.core.model.arguments import problem_of_name
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.ops.history.steps import EventPhase

pytestmark = pytest.mark.sampled(2)

PAYLOADS = Path(__file__).parent / "payloads"
FILES = sorted(PAYLOADS.glob("*/*.json"))
READS_JSON = {"gemini", "cline"}
ANSWERING = {"claude", "codex", "gemini", "copilot", "cursor"}
SAID_OF_STRICT = (
    "treesnap did not capture the files: the disk is full; this hook is strict, so nothing was done"
)
TEXTS = ("snapshots\n", 'a "quoted" line\n\n\ttab', "müde \x00")


def parsed(path: Path, **more: object) -> Event | None:
    """Returns the event of a recorded payload; a host that needs it says the event in the line."""
    host = path.parent.name.partition("-")[0]
    fields = json.loads(path.read_text())
    given = {"event_name": path.stem.partition("-")[0]} if host in {"cline", "copilot"} else {}
    return host_named(host).parse(Payload(fields, directory="/srv/anna/project", **given | more))


def event(name: str, phase: EventPhase) -> Event:
    return Event(name, phase, "/srv/anna/project", "session", "key", tool="Bash", prompt="go")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_payloads_are_understood(path):
    found = parsed(path)

    names_tool = any(word in path.stem.lower() for word in ("tool", "before", "after"))
    is_end = path.stem == "SubagentStop-agent"
    is_of_agent = path.stem.endswith("-agent") and not (names_tool or is_end)
    if path.stem in {"Notification", "SessionEnd", "UserPromptExpansion-other"} or is_of_agent:
        assert found is None
        return
    assert found.root.startswith("/")
    assert found.session
    assert problem_of_name(found.session) is None
    assert found == parsed(path)  # so that what is told again has the same key
    if found.phase is EventPhase.PRE:
        assert found.tool
    if found.phase is EventPhase.TURN and found.host != "cline":  # which starts with no prompt
        assert found.prompt


@pytest.mark.parametrize("name", HOSTS)
def test_a_turn_is_known_from_its_payloads(name):
    events = [parsed(path) for path in FILES if path.parent.name.startswith(f"{name}-")]
    phases = {found.phase for found in events if found is not None}

    assert phases >= {EventPhase.TURN, EventPhase.PRE, EventPhase.END}


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if '"rm -rf build"' in path.read_text()],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_a_call_says_what_it_does(path):
    assert parsed(path).summary == "rm -rf build"
    assert not parsed(path).is_read_only


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.stem.endswith("-read")],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_tools_that_change_nothing_are_known(path):
    assert parsed(path).is_read_only


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("claude-2.1.332/PreToolUse", {"tool_name": "Agent"}),
        ("claude-2.1.332/PostToolUse", {"tool_name": "Task"}),
        ("opencode-1.18.33/tool.execute.before", {"tool": "task"}),
        ("copilot-1.0.102/PreToolUse", {"tool_name": "Agent"}),
        ("cline-3.0.65/PreToolUse", {"tool_call": {"id": "1", "name": "spawn_agent"}}),
    ],
)
def test_what_starts_an_agent_that_tells_its_calls_changes_nothing_itself(name, fields):
    told = json.loads((PAYLOADS / f"{name}.json").read_text())

    payload = Payload({**told, **fields}, name.partition("/")[2])

    assert host_named(name.partition("-")[0]).parse(payload).is_read_only


def pairs() -> list[tuple[Path, Path]]:
    """Returns the payloads before and after the same calls of tools."""
    words = (("PreToolUse", "PostToolUse"), ("BeforeTool", "AfterTool"), (".before", ".after"))
    found = [
        (path, path.with_name(path.name.replace(before, after)))
        for path in FILES
        for before, after in words
        if before in path.name
    ]
    return [pair for pair in found if pair[1].exists() and not pair[0].samefile(pair[1])]


@pytest.mark.parametrize(
    ("before", "after"),
    [pair for pair in pairs() if pair[0].parent.name != "codex-0.171.0"],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_a_call_has_one_name_before_and_after_it(before, after):
    told, ended = parsed(before), parsed(after)

    assert (told.phase, ended.phase) == (EventPhase.PRE, EventPhase.POST)
    assert told.call == ended.call != ""
    for name in ("session", "agent", "paths", "root", "tool"):
        assert getattr(told, name) == getattr(ended, name)


@pytest.mark.parametrize("path", [path for path in FILES if path.stem.endswith("-edit")], ids=str)
def test_tools_that_edit_name_their_files(path):
    assert parsed(path).paths == (b"/srv/anna/project/a.txt",)


def test_a_shell_command_of_codex_that_does_more_than_a_patch_may_change_any_file():
    fields = json.loads((PAYLOADS / "codex-0.171.0" / "PreToolUse-edit.json").read_text())
    patch = fields["tool_input"]["command"]
    others = [f"{patch}\nrm -r src", f"cd .. && {patch}", patch.replace("'END'", "END"), "ls"]
    others.append(patch.replace("+b\n", "+b\nEND\nrm -r src <<'END'\n"))

    for command in others:
        told = {**fields, "tool_input": {"command": command}}
        assert host_named("codex").parse(Payload(told)).paths is None, command


def test_the_end_of_an_agent_is_not_the_end_of_the_turn():
    path = PAYLOADS / "claude-2.1.332" / "SubagentStop-agent.json"

    event = parsed(path)

    assert (event.phase, event.ends_agent, event.settled) == (EventPhase.WAKE, True, ())
    assert event.agent == "agent_00"
    fields = json.loads(path.read_text())
    del fields["agent_id"]
    assert host_named("claude").parse(Payload(fields)) is None


def test_names_in_a_patch_are_relative_to_the_directory_of_the_call():
    """Which Codex tells as the directory of the session."""
    fields = json.loads((PAYLOADS / "codex-0.171.0" / "PreToolUse-in-sub.json").read_text())
    assert "Update File: a.txt" in fields["tool_input"]["command"]

    event = host_named("codex").parse(Payload(fields))

    assert event.paths == (b"/srv/anna/project/sub/a.txt",)
    assert event.directory == "/srv/anna/project/sub"


def test_what_goes_on_in_the_background_is_known():
    of_tools = [path for path in FILES if parsed(path) and parsed(path).call]

    assert {path for path in of_tools if parsed(path).is_background} == {
        path for path in FILES if path.stem.endswith("-background")
    }
    directory = PAYLOADS / "claude-2.1.332"
    fields = json.loads((directory / "PostToolUse-background.json").read_text())
    del fields["tool_input"]["run_in_background"]  # as where the host decides that
    assert host_named("claude").parse(Payload(fields)).is_background
    wake = parsed(directory / "UserPromptSubmit-wake.json")
    assert wake.phase is EventPhase.WAKE
    assert wake.settled == (parsed(directory / "PostToolUse-background.json").call,)
    assert parsed(PAYLOADS / "copilot-1.0.102" / "UserPromptSubmit-wake.json").phase is (
        EventPhase.WAKE
    )


@pytest.mark.parametrize("name", ["claude-2.1.332", "copilot-1.0.102", "cline-3.0.65"])
def test_an_agent_that_another_one_started_works_for_its_session(name):
    whole = parsed(PAYLOADS / name / "PreToolUse-agent.json")
    fields = json.loads((PAYLOADS / name / "PreToolUse-agent.json").read_text())

    of_host = {
        "claude-2.1.332": (fields.get("session_id"), fields["agent_id"]),
        "copilot-1.0.102": (fields.get("parent_agent_id"), fields["agent_id"]),
        "cline-3.0.65": (fields.get("sessionContext", {}).get("rootSessionId"), ""),
    }
    assert (whole.session, whole.agent) == of_host[name]


def test_a_slash_command_is_the_prompt_of_the_command_line():
    path = PAYLOADS / "claude-2.1.332" / "UserPromptExpansion.json"
    fields = json.loads(path.read_text())
    submitted = {**fields, "hook_event_name": "UserPromptSubmit", "prompt": "/treesnap:rewind 2"}

    assert parsed(path).prompt == "snap undo"
    assert parsed(path).key == host_named("claude").parse(Payload({**fields, "prompt_id": "p"})).key
    assert host_named("claude").parse(Payload(submitted)).prompt == "snap rewind 2"


@pytest.mark.parametrize(
    ("name", "field"),
    [("claude", "prompt_id"), ("codex", "turn_id"), ("opencode", "messageID"), ("copilot", None)],
)
def test_a_prompt_has_the_raw_id_of_its_host_and_nothing_else_has_one(name, field):
    paths = [path for path in FILES if path.parent.name.startswith(f"{name}-")]
    found = {path: event for path in paths if (event := parsed(path)) is not None}
    prompts = [
        path
        for path, event in found.items()
        if event.phase is EventPhase.TURN and "Expansion" not in path.stem
    ]

    refs = {path: event.ref for path, event in found.items() if event.ref}

    expected = {path: json.loads(path.read_text())[field] for path in prompts} if field else {}
    assert prompts
    assert refs == expected


@pytest.mark.parametrize("odd", ["-p", "a\nb", "x" * 1000, "\udc80", "a\x1b[2J", 7, None, []])
def test_an_odd_id_of_a_prompt_is_none(odd):
    fields = {"session_id": "s", "cwd": "/srv", "hook_event_name": "UserPromptSubmit"}
    found = host_named("codex").parse(Payload({**fields, "prompt": "go", "turn_id": odd}))

    assert found.ref in ("", "7", "?")  # a number is text, and what is not UTF-8 is shown so


def test_the_variable_of_the_host_is_the_root():
    path = PAYLOADS / "claude-2.1.332" / "PreToolUse.json"
    around = {"CLAUDE_PROJECT_DIR": "/srv/anna"}

    assert parsed(path, environ=around).root == "/srv/anna"
    assert parsed(path, environ=around, root="/srv/others").root == "/srv/others"
    codex = PAYLOADS / "codex-0.171.0" / "PreToolUse.json"
    assert parsed(codex, environ=around).root == "/srv/anna/project"


def test_the_task_of_an_agent_that_another_one_started_is_no_prompt():
    for name, is_known in [("TaskStart", False), ("PreToolUse", True), ("TaskComplete", False)]:
        fields = json.loads((PAYLOADS / "cline-3.0.65" / f"{name}.json").read_text())
        told = Payload({**fields, "parent_agent_id": "agent_1"}, name)
        assert (host_named("cline").parse(told) is not None) == is_known


PATCH = """*** Begin Patch
*** Update File: src/old name.py
*** Move to: src/new.py
@@
-*** Delete File: content
+*** Add File: content
*** Delete File: /srv/anna/project/gone
*** Add File: ./added
+text
*** End Patch
"""


@pytest.mark.parametrize(
    ("name", "tool", "field"),
    [
        ("codex-0.171.0/PreToolUse", "tool_name", "tool_input.command"),
        ("codex-0.171.0/PreToolUse", "tool_name", "tool_input.input"),
        ("copilot-1.0.102/PreToolUse", "tool_name", "tool_input.patch"),
        ("opencode-1.18.33/tool.execute.before", "tool", "args.patchText"),
    ],
)
def test_a_patch_names_the_files_that_alone_it_changes(name, tool, field):
    told = json.loads((PAYLOADS / f"{name}.json").read_text())
    host = host_named(name.partition("-")[0])
    inputs, _, patch = field.partition(".")

    call = {tool: "apply_patch", inputs: {patch: PATCH}, "cwd": "/srv/anna/project"}
    event = host.parse(Payload({**told, **call}))

    names = ("src/old name.py", "src/new.py", "gone", "added")
    assert event.paths == tuple(f"/srv/anna/project/{path}".encode() for path in names)


def test_two_prompts_of_one_turn_have_keys_of_their_own():
    fields = json.loads((PAYLOADS / "codex-0.171.0" / "UserPromptSubmit.json").read_text())
    codex = host_named("codex")

    first, again = (codex.parse(Payload(fields)) for _ in range(2))
    other = codex.parse(Payload({**fields, "prompt": "and the docs"}))

    assert first.key == again.key != other.key


def test_calls_at_one_time_have_keys_of_their_own():
    fields = json.loads((PAYLOADS / "gemini-0.61.0" / "BeforeTool.json").read_text())
    other = {**fields, "tool_input": {"command": "rm -rf dist"}}

    keys = {host_named("gemini").parse(Payload(item)).key for item in (fields, other)}

    assert len(keys) == 2


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("odd", [None, True, {}, ["PreToolUse"], ""])
def test_a_payload_without_an_event_is_refused(name, odd):
    host = host_named(name)
    fields = dict.fromkeys(host.event_fields, odd)

    with pytest.raises(InvalidArgument, match="names no event"):
        host.parse(Payload({**fields, "session_id": "s1", "cwd": "/srv/anna"}))


@pytest.mark.parametrize("name", sorted({*HOSTS} - {"kiro"}))
def test_a_payload_without_a_session_is_refused(name):
    host = host_named(name)
    with pytest.raises(InvalidArgument, match="names no session"):
        host.parse(Payload({}, event_name=host.event_name(EventPhase.PRE), directory="/srv"))


@pytest.mark.parametrize("told", ["/srv/\ufffd", b"/srv/\xff".decode(errors="surrogateescape")])
def test_a_directory_that_is_not_utf_8_is_where_the_hook_was_started(told):
    fields = {"cwd": told, "session_id": "one"}

    found = host_named("claude").root(Payload(fields, directory="/srv/\udcff"))

    assert found == "/srv/\udcff"


@pytest.mark.parametrize("root", ["", "sub/directory", "/srv/anna\0", "./", "~"])
@pytest.mark.parametrize("name", HOSTS)
def test_a_root_that_is_not_a_full_path_is_refused(name, root):
    host = host_named(name)
    fields = dict.fromkeys((*host.session_fields, "conversation_id", "taskId"), "s1")
    with pytest.raises(InvalidArgument, match="not a full path"):
        host.parse(Payload(fields, event_name=host.event_name(EventPhase.PRE), directory=root))


@pytest.mark.parametrize("odd", [None, 5, 1.5, True, [], ["x"], {"a": {}}, "\ud800", "\0" * 300])
@pytest.mark.parametrize("name", HOSTS)
def test_fields_of_other_types_do_not_end_the_captures(name, odd):
    host = host_named(name)
    fields = dict.fromkeys(
        (
            "tool_name",
            "tool_input",
            "tool_call",
            "tool_info",
            "args",
            "tool",
            "prompt",
            "timestamp",
        ),
        odd,
    )
    fields |= {"sessionID": "s1", "session_id": "s1", "conversation_id": "s1", "taskId": "s1"}
    fields |= {"trajectory_id": odd or "s1"} if isinstance(odd, str) else {"trajectory_id": "s1"}
    name_of_event = host.event_name(EventPhase.PRE)

    found = host.parse(Payload(fields, event_name=name_of_event, directory="/srv/anna/project"))

    assert found.phase is EventPhase.PRE
    assert not found.is_read_only
    for text in (found.session, found.key, found.tool or "", found.summary or ""):
        text.encode()


WORDS = st.sampled_from(
    [
        *("hook_event_name", "event", "hookName", "agent_action_name", "PreToolUse", "tool_call"),
        *("beforeSubmitPrompt", "session_id", "sessionID", "taskId", "conversation_id", "cwd"),
        *("workspaceRoots", "tool_name", "tool_input", "command", "prompt", "timestamp", "/srv"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(WORDS, VALUES), st.sampled_from(list(HOSTS)), st.booleans())
def test_any_json_object_is_an_event_or_refused(fields, name, is_said):
    host = host_named(name)
    said = host.event_name(EventPhase.PRE) if is_said else None
    try:
        found = host.parse(Payload(fields, said, directory="/srv"))
    except InvalidArgument:
        return
    if found is not None:
        assert isinstance(hash(found), int)
        assert problem_of_name(found.session) is None
        assert found.root.startswith("/")


def assert_valid(name: str, reply: Reply) -> None:
    """Standard output is empty, or one JSON object; Kiro reads text."""
    reply.stdout.encode()
    if name in READS_JSON and reply.exit_code == 0:
        assert reply.stdout
    if reply.stdout and name != "kiro":
        assert isinstance(json.loads(reply.stdout), dict)
        assert reply.stdout.isascii()
        assert reply.stdout.count("\n") == 1


@pytest.mark.parametrize("phase", EventPhase)
@pytest.mark.parametrize("name", HOSTS)
def test_replies_have_the_form_of_the_host(name, phase):
    host = host_named(name)
    told = event(name, phase)
    for text in TEXTS:
        for found in (None, told):
            for more in ({}, {"context": text}, {"warning": text}):
                reply = host.go_on(found, **more)
                assert_valid(name, reply)
                assert reply.exit_code == 0
                assert bool(reply.stderr) == ("warning" in more)


@pytest.mark.parametrize("name", HOSTS)
def test_a_model_is_told_only_with_a_prompt(name):
    host = host_named(name)

    assert host.go_on(event(name, EventPhase.PRE), context="news") == host.go_on(None)
    told = host.go_on(event(name, EventPhase.TURN), context="news")
    assert ("news" in told.stdout) == (name not in {"cursor", "windsurf"})


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        (name, phase)
        for name, host in HOSTS.items()
        for phase in EventPhase
        if phase in host.blocked_phases
    ],
)
def test_a_blocked_call_differs_from_one_that_goes_on(name, phase):
    host = host_named(name)
    reply = host.block(event(name, phase), "the disk is full")

    assert_valid(name, reply)
    assert "the disk is full" in reply.stdout + reply.stderr
    if reply.exit_code == 0:
        said = json.loads(reply.stdout)
        assert said.get("continue") is False or {"deny", "block", True} & {
            value for value in said.values() if isinstance(value, str | bool)
        }
    else:
        assert reply.exit_code == 2
        assert not reply.stdout


@pytest.mark.parametrize("name", HOSTS)
def test_a_strict_hook_blocks_tools_in_all_hosts_and_prompts_in_most(name):
    host = host_named(name)
    expected = {EventPhase.PRE} if name in {"cline", "kiro"} else {EventPhase.PRE, EventPhase.TURN}

    blocked = {
        phase
        for phase in EventPhase
        if reply_to(event(name, phase), host, "the disk is full", is_strict=True)
        == host.block(event(name, phase), SAID_OF_STRICT)
    }

    assert blocked == expected
    for phase in {*EventPhase} - expected:
        reply = reply_to(event(name, phase), host, "the disk is full", is_strict=True)
        assert reply == reply_to(event(name, phase), host, "the disk is full")
        assert "the disk is full" in reply.stderr


@pytest.mark.parametrize("name", HOSTS)
def test_some_hosts_show_an_answer_in_place_of_the_models(name):
    reply = host_named(name).answer(TEXTS[1])

    assert (reply is not None) == (name in ANSWERING)
    if reply is not None:
        assert_valid(name, reply)
        assert TEXTS[1] in json.loads(reply.stdout).values()


def test_an_unknown_host_is_refused():
    with pytest.raises(InvalidArgument, match="known are claude, codex"):
        host_named("emacs")


def test_tools_of_snap_mcp_need_no_capture():
    host = host_named("claude")

    for own in ("mcp__treesnap__status", "mcp__plugin_treesnap_treesnap__undo", "treesnap_diff"):
        assert host.is_read_only(own)
    for other in ("mcp__files__status", "mcp__my-treesnap__x", "treesnap", "mcp__treesnap2__ls"):
        assert not host.is_read_only(other)
