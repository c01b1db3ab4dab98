"""``snap prompts``: what it lists, with the numbers of ``snap rewind``."""

from __future__ import annotations

import pytest

from treesnap.agents.event import Event
from treesnap.agents.hook import record
from treesnap.agents.sessions import note_gap
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.steps import EventPhase

pytestmark = pytest.mark.sampled(10)

TURN, PRE, POST, END = EventPhase.TURN, EventPhase.PRE, EventPhase.POST, EventPhase.END


@pytest.fixture
def worked(root, store):
    """Two sessions have worked, one of them for two prompts."""

    def tell(phase, session, words="", call="", *, is_missed=False):
        prompt = words if phase is TURN else None
        event = Event("claude", phase, str(root), session, prompt=prompt, call=call)
        context = context_at(root, str(store))
        if is_missed:
            note_gap(context, event, "the disk was full")
        else:
            record(context, event)

    def call(session, *names):
        tell(PRE, session, call="k")
        for name in names:
            (root / name).write_text(f"{session} {len(names)}")
        tell(POST, session, call="k")

    tell(TURN, "main-session", "Begin")
    call("main-session", "a", "b")
    tell(TURN, "other-session", "Elsewhere")
    call("other-session", "o")
    tell(TURN, "main-session", "Go \x1b[31mon")
    call("main-session", "b")
    tell(PRE, "main-session", call="both")
    tell(PRE, "other-session", call="both")
    (root / "c").write_text("whose?")
    tell(POST, "other-session", call="both")
    tell(POST, "main-session", call="both")
    tell(PRE, "main-session", is_missed=True)
    (root / "u").write_text("user")
    tell(TURN, "main-session", "snap rewind")
    tell(END, "main-session")


def test_prompts_are_listed_with_what_was_changed_for_them(snap, root, worked):
    lines = snap("prompts").out.splitlines()

    cells = [[cell for cell in line.split("  ") if cell] for line in lines]
    assert [cell.strip() for cell in cells[0]] == [
        *("N", "WHEN", "SESSION", "CHANGED", "GAPS", "PROMPT")
    ]
    assert [[row[0].strip(), *[cell.strip() for cell in row[2:]]] for row in cells[1:]] == [
        ["1", "claude main-ses", "2 + 1?", "1", "Go \\x1b[31mon"],
        ["-", "claude other-se", "1 + 1?", "-", "Elsewhere"],
        ["2", "claude main-ses", "2", "-", "Begin"],
    ]


def test_numbers_are_those_of_rewind(snap, root, worked):
    for prompt in snap("prompts", "--json").json["prompts"]:
        if prompt["number"] is not None:
            went = snap("rewind", f"{prompt['number']}", "--dry-run", "--json").json
            assert went["step"] == prompt["step"]


def test_prompts_of_another_session_have_numbers_when_it_is_named(snap, root, worked):
    listed = snap("prompts", "--session", "other-session", "--json").json["prompts"]

    assert [(item["number"], item["prompt"]) for item in listed] == [
        (None, "Go \x1b[31mon"),
        (1, "Elsewhere"),
    ]


def test_the_oldest_are_left_out(snap, root, worked):
    listed = snap("prompts", "-n", "1", "--json").json["prompts"]

    assert [item["number"] for item in listed] == [1]
    assert snap("prompts", "-n", "0").out == ""


def test_with_a_number_each_path_has_a_verdict(snap, root, worked):
    before = {path.name: path.read_text() for path in root.iterdir() if path.is_file()}

    result = snap("prompts", "2")

    assert [line.split() for line in result.out.splitlines()] == [
        ["undone", "a"],
        ["undone", "b"],
        ["shared", "c", "(other-session)"],
        ["kept", "o", "(other-session)"],
        ["perhaps", "u"],
    ]
    assert {path.name: path.read_text() for path in root.iterdir() if path.is_file()} == before
    document = snap("prompts", "2", "--json").json
    assert document["paths"][0] == {"path": "a", "verdict": "undone", "sessions": []}


def test_without_an_agent_there_are_none(snap, root):
    snap("create")

    assert snap("prompts").code == 5
    assert snap("prompts", "0").code == 2


def test_what_is_no_number_is_called_so(snap):
    refused = snap("prompts", "nope")

    assert refused.code == 2
    assert "'nope' is not a valid whole number" in refused.err
