"""Steps of agents are told apart, found again and counted, and so is what was not captured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_steps import of_phase
from treesnap.agents import sessions
from treesnap.agents.event import Event
from treesnap.agents.hook import record
from treesnap.agents.sessions import agent_session, agent_sessions, newest_by_host, note_gap
from treesnap.core.codec.root_files import GAPS, GAPS_LENGTH_MAX, Gap
from treesnap.core.handle import Handle
from treesnap.core.model.errors import NotFound
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, context_at
from treesnap.core.ops.history.steps import EventPhase
from treesnap.core.ops.watching import watched
from treesnap.core.store.snapshots import SnapshotLog
from treesnap.testing.doubles import RecordingFileSystem, UnsyncedFileSystem

TURN, PRE, END = EventPhase.TURN, EventPhase.PRE, EventPhase.END


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return context_of(tmp_path, "root")


def context_of(base: Path, name: str) -> Context:
    root = base / name
    root.mkdir()
    (root / "file").write_text("first")
    return context_at(root, str(base / "store"), fs=UnsyncedFileSystem())


def event(context: Context, phase: EventPhase, key: str = "", session: str = "s1") -> Event:
    return Event("claude", phase, context.root, session, key, tool="Bash" if phase is PRE else None)


def change(context: Context, text: str) -> None:
    Path(context.root, "file").write_text(text)


def test_a_prompt_keeps_the_raw_id_of_its_host(context):
    record(context, event(context, TURN, "hash")._replace(ref="turn-1"))
    record(context, event(context, PRE, "t1"))

    assert [step.ref for step in agent_session(context).steps] == ["", "turn-1"]


def test_a_session_has_its_steps_newest_first(context):
    for phase, key in [(TURN, "p1"), (PRE, "t1"), (PRE, "t2"), (END, ""), (TURN, "p2")]:
        record(context, event(context, phase, key))

    found = agent_session(context)

    assert (found.id, found.host, found.gaps) == ("s1", "claude", ())
    assert [(step.number, step.phase, step.key) for step in found.steps] == [
        (5, TURN, "p2"),
        (4, END, ""),
        (3, PRE, "t2"),
        (2, PRE, "t1"),
        (1, TURN, "p1"),
    ]
    assert [step.tool for step in of_phase(found, PRE)] == ["Bash", "Bash"]
    assert [step.number for step in of_phase(found, TURN)] == [5, 1]
    assert {step.snapshot.kind for step in found.steps} == {SnapshotKind.AUTOMATIC}


def test_what_is_told_again_is_captured_once(context):
    record(context, event(context, TURN, "p1"))
    first = record(context, event(context, PRE, "t1")).result
    change(context, "by the tool")
    other = record(context, event(context, PRE, "t2")).result

    again = record(context, event(context, PRE, "t1")).result

    assert (first.unchanged, other.unchanged, again.unchanged) == (False, False, True)
    assert again.snapshot == first.snapshot
    assert len(Handle(context).list()) == 3


def test_a_prompt_that_is_told_again_keeps_the_state_before_the_work(context):
    first = record(context, event(context, TURN, "p1")).result
    change(context, "by the tool")
    record(context, event(context, PRE, "t1"))

    assert record(context, event(context, TURN, "p1")).result.snapshot == first.snapshot


@pytest.mark.needs("notices")
def test_beside_a_watcher_each_step_reads_no_older_one_again(context):
    fs = RecordingFileSystem(context.fs)
    read = []

    with watched(context._replace(fs=fs)) as (watching, _):
        for number in range(8):
            fs.clear()
            change(context, f"by tool {number}")
            record(watching, event(watching, PRE, f"t{number}"))
            below = f"{context.store_path}/snapshots"
            read.append(len([item for item in fs.calls("open", below=below) if not item.errno]))

    assert read[2:] == read[2:3] * 6


@pytest.mark.needs("notices")
def test_a_damaged_step_is_read_again_once_it_is_repaired(context):
    first = record(context, event(context, PRE, "t1")).result.snapshot
    (path,) = Path(context.store_path, "snapshots").rglob(f"*-{first.id}")
    whole = path.read_bytes()
    with watched(context) as (watching, _):
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        other = record(watching, event(watching, PRE, "t1")).result.snapshot
        path.write_bytes(whole)
        Handle(watching).delete(other.id)

        again = record(watching, event(watching, PRE, "t1")).result

    assert other != first
    assert again.snapshot == first


def test_an_event_without_a_key_repeats_no_other(context):
    numbers = [record(context, event(context, PRE)).before.number for _ in range(3)]

    assert numbers == [1, 2, 3]
    assert len(Handle(context).list()) == 3


def test_one_key_means_different_things_in_two_sessions_phases_and_hosts(context):
    for phase, session in [(PRE, "s1"), (TURN, "s1"), (PRE, "s2")]:
        assert not record(context, event(context, phase, "same", session)).result.unchanged
    of_another = event(context, PRE, "same", "s2")._replace(host="codex")
    assert not record(context, of_another).result.unchanged


def test_records_are_read_to_the_newest_prompt_and_not_without_end(context, monkeypatch):
    monkeypatch.setattr(sessions, "LOOK_BACK_MAX", 3)
    for key in ("t1", "t2", "t3", "t4"):
        record(context, event(context, PRE, key))

    assert record(context, event(context, PRE, "t2")).before.number == 2
    assert record(context, event(context, PRE, "t1")).before.number == 5


def test_an_earlier_call_of_a_turn_costs_one_read(context):
    record(context, event(context, TURN, "p1"))
    opened_files = []
    for number in range(2, 9):
        fs = RecordingFileSystem(UnsyncedFileSystem())
        record(context._replace(fs=fs), event(context, PRE, f"t{number}"))
        records, states = (
            len(fs.calls("open", below=f"{context.store_path}/{name}"))
            for name in ("snapshots", "states")
        )
        opened_files.append((records - number, states))

    assert len(set(opened_files[1:])) == 1


def test_numbers_of_steps_go_on_in_a_session_that_is_resumed(context, monkeypatch):
    monkeypatch.setattr(sessions, "LOOK_BACK_MAX", 3)
    record(context, event(context, PRE, "t1"))
    for number in range(3):
        Handle(context).create(name=f"other-{number}")

    assert record(context, event(context, PRE, "t2")).before.number == 2


def test_the_session_with_the_newest_step_comes_first(context):
    for session in ("s1", "s2", "s1"):
        record(context, event(context, TURN, session=session))
    Handle(context).create(session="s3", step=7)

    assert [found.id for found in agent_sessions(context)] == ["s1", "s2"]
    assert agent_session(context, "s2").steps[0].number == 1
    with pytest.raises(NotFound, match="the session 's3' of an agent"):
        agent_session(context, "s3")


class Counted(str):
    """A name that counts how often one is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_many_sessions_are_told_apart_in_one_pass(context, monkeypatch):
    step = record(context, event(context, TURN)).result.snapshot
    names = [f"s{number}" for number in range(500)]

    def readable(*_args: object, **_options: object) -> Iterator[Snapshot]:
        for name in names:
            yield step._replace(record=step.record._replace(session=Counted(name)))

    monkeypatch.setattr(SnapshotLog, "readable", readable)

    found = agent_sessions(context)

    assert [len(session.steps) for session in found] == [1] * len(names)
    assert Counted.compared <= 10 * len(names)


def test_the_newest_session_is_known_although_the_clock_was_set_back(context):
    for time_ns, session in enumerate(["s1", "s2"]):
        earlier = context._replace(clock_ns=lambda time_ns=time_ns: 10**18 - time_ns)
        record(earlier, event(context, TURN, session=session))

    assert agent_session(context).id == "s2"


def test_without_sessions_there_is_none(context):
    assert agent_sessions(context) == ()
    assert newest_by_host(context) == {}
    with pytest.raises(NotFound, match="No step of an agent was captured"):
        agent_session(context)


def test_gaps_are_kept_with_their_session(context):
    record(context, event(context, TURN, "p1"))
    note_gap(context, event(context, PRE, "t1"), "the disk is full")
    note_gap(context, event(context, PRE, "t2", "s2"), "x" * 1000)

    newest, older = agent_sessions(context)

    assert (newest.id, newest.steps, older.id) == ("s2", (), "s1")
    assert [(gap.key, gap.phase, gap.tool, gap.reason) for gap in older.gaps] == [
        ("t1", "pre", "Bash", "the disk is full")
    ]
    assert newest.gaps[0].reason == "x" * 300


def test_the_newest_gaps_are_kept(context):
    record(context, event(context, TURN, "p1"))
    old = tuple(Gap(number, "claude", "s1", "", "pre", None, "") for number in range(1000))
    with opened(context, "write") as session:
        session.root.write("gaps", GAPS, old)

    note_gap(context, event(context, PRE, "t1"), "why")

    gaps = agent_session(context).gaps
    assert len(gaps) == GAPS_LENGTH_MAX
    assert (gaps[0].reason, gaps[-1].time_ns) == ("why", 1)


def test_damaged_gaps_are_lost_and_no_command_fails_for_them(context):
    record(context, event(context, TURN, "p1"))
    with opened(context, "look") as session:
        path = Path(session.root.file("gaps"))
    path.write_bytes(b"none")

    assert agent_session(context).gaps == ()
    assert [item.code for item in Handle(context).verify().problems] == ["bad-gaps"]
    note_gap(context, event(context, PRE, "t1"), "why")
    assert len(agent_session(context).gaps) == 1
    assert Handle(context).verify().ok


def test_no_gap_is_kept_of_a_root_that_the_store_does_not_know(context, tmp_path):
    note_gap(context, event(context, PRE), "there is no store")
    assert not (tmp_path / "store").exists()

    record(context_of(tmp_path, "other"), event(context, TURN))
    note_gap(context, event(context, PRE), "another root")
    assert agent_sessions(context) == ()


def test_the_newest_event_of_each_host_is_found_in_all_roots(context, tmp_path):
    other = context_of(tmp_path, "other")
    record(context, event(context, TURN))
    made = record(other, event(other, TURN)._replace(host="codex")).result.snapshot
    note_gap(other, event(other, PRE)._replace(host="gemini"), "why")

    times = newest_by_host(context)

    assert times.keys() == {"claude", "codex", "gemini"}
    assert times["codex"] == made.record.created_at_ns


@pytest.mark.parametrize("make", [os.link, os.symlink])
def test_marks_are_added_to_no_file_outside_of_the_store(context, tmp_path, make):
    record(context, event(context, TURN, "p1"))
    (marks,) = Path(context.store_path).glob("roots/*/marks")
    outside = tmp_path / "outside"
    marks.rename(outside)
    make(outside, marks)
    before = outside.read_bytes()

    change(context, "second")
    record(context, event(context, PRE, "t1"))

    assert outside.read_bytes() == before
    assert (marks.stat().st_nlink, marks.is_symlink()) == (1, False)
    assert b'"pre"' in marks.read_bytes()
    assert marks.read_bytes().startswith(before) == (make is os.link)
