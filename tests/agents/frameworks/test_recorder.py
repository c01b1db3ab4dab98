"""What frameworks tell of a run becomes a step, whatever a model or a caller put into it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

import treesnap
from treesnap.agents.frameworks.recorder import Recorder
from treesnap.agents.sessions import agent_session
from treesnap.core.ops.history.steps import EventPhase


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    (tmp_path / "root").mkdir()
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    return Recorder("framework", handle, "default", is_strict=True)


@pytest.mark.parametrize(
    ("given", "session"),
    [(None, "default"), ("", "default"), ("s", "s"), (0, "0"), (UUID(int=7), str(UUID(int=7)))],
)
def test_a_session_has_an_id_of_any_type(recorder, given, session):
    assert recorder.record(EventPhase.PRE, given) is not None
    assert agent_session(recorder.handle.context).id == session


@pytest.mark.parametrize("name", ["session", "key", "tool", "prompt", "arguments"])
def test_half_a_character_is_no_reason_to_end_a_run(recorder, name):
    half = "half \ud800"
    given = {"tool": "bash", name: {"command": half} if name == "arguments" else half}

    first = recorder.record(EventPhase.PRE, **given)
    again = recorder.record(EventPhase.PRE, **given)

    assert (first == again) == (name == "key")


@pytest.mark.parametrize("phase", EventPhase)
def test_switched_off_nothing_is_captured_and_nothing_fails(tmp_path, monkeypatch, phase):
    monkeypatch.setenv("SNAP_DISABLE", "1")
    gone = treesnap.open(tmp_path / "gone", tmp_path / "store")
    recorder = Recorder("framework", gone, "default", is_strict=True)

    assert recorder.record(phase, tool="bash") is None
    assert not (tmp_path / "store").exists()


def test_what_is_switched_on_again_is_captured(recorder, monkeypatch):
    monkeypatch.setenv("SNAP_DISABLE", "1")
    assert recorder.record(EventPhase.PRE) is None

    monkeypatch.setenv("SNAP_DISABLE", "")
    assert recorder.record(EventPhase.PRE) is not None
