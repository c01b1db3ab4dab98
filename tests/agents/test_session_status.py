"""How far the capture of a session has come: kept where no root and no store is needed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from treesnap.agents.event import Event
from treesnap.agents.session_status import (
    SESSIONS_MAX,
    note_status,
    session_status,
    session_statuses,
)
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.ops.history.steps import EventPhase

FS = LocalFileSystem()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/treesnap/agents"


def note(session: str = "s", time_ns: int = 1, step: int | None = None, problem: str | None = None):
    event = Event("claude", EventPhase.PRE, "/somewhere", session)
    note_status(FS, event, time_ns, step=step, problem=problem)


def test_what_became_of_events_adds_up():
    note(problem="the disk was full")
    note(time_ns=2, step=4)
    note(time_ns=3, problem="Busy")

    known = session_status(FS, "claude", "s")

    assert known == ("claude", "s", "/somewhere", 3, 4, 2, "Busy")
    note(time_ns=4, step=5)
    assert session_status(FS, "claude", "s")[4:] == (5, 2, None)
    assert session_status(FS, "codex", "s") is None


def test_the_newest_sessions_are_kept(state):
    for number in range(SESSIONS_MAX + 3):
        note(f"s{number}", number, step=1)
        name = max(state.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(name, ns=(number, number))

    sessions = [status.session for status in session_statuses(FS)]

    assert sessions == [f"s{number}" for number in range(SESSIONS_MAX + 2, 2, -1)]


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"host": 1}', "\0", "[" * 100_000, '{"host": "claude", "step": []}'],
)
def test_a_damaged_file_counts_as_none(state, content):
    note(step=1)
    (path,) = state.glob("*.json")
    path.write_text(content)

    assert session_statuses(FS) == []
    note(time_ns=9, step=2)
    assert session_status(FS, "claude", "s").step == 2


def test_only_the_owner_reads_it(state):
    note(problem="x")

    assert state.stat().st_mode & 0o077 == 0
    (path,) = state.glob("*.json")
    assert path.stat().st_mode & 0o077 == 0


def test_where_nothing_can_be_kept_nothing_fails(state, monkeypatch):
    state.parent.mkdir(parents=True)
    state.write_text("in the way")
    note(step=1)

    assert session_statuses(FS) == []
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "")
    note(step=1)


def test_names_of_sessions_are_no_paths(state):
    note("../../x", step=1)
    note("a/b\0", step=1)

    assert len(list(state.iterdir())) == 2
    assert json.loads(next(state.iterdir()).read_text())["step"] == 1
