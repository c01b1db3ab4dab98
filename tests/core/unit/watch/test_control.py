"""Starting a watcher in the background when that goes wrong, and words about one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import treesnap
from treesnap.cli.commands.watch import status_lines
from treesnap.core.model.errors import ErrorCode, OperationFailed, TreesnapError
from treesnap.core.model.results import FollowFailure, FollowStatus, WatchStatus
from treesnap.core.watch import control
from treesnap.core.watch.service import WatchService


@pytest.fixture
def handle(tmp_path):
    (tmp_path / "root").mkdir()
    return treesnap.open(tmp_path / "root", tmp_path / "store")


@pytest.fixture
def starting(tmp_path: Path, monkeypatch):
    """Lets another program take the place of the interpreter that runs watchers."""

    def start_with(script: str | None) -> None:
        path = tmp_path / "program"
        if script is not None:
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(path))

    return start_with


def test_a_program_that_is_not_there_is_reported(handle, starting):
    starting(None)

    with pytest.raises(OperationFailed, match="cannot be started"):
        control.start(handle.context, [])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("script", ["exit 3", "echo nonsense", "echo '{}'", "echo '[1]'"])
def test_one_that_dies_before_it_watches_is_reported(handle, starting, script):
    starting(script)

    with pytest.raises(OperationFailed, match="could not start"):
        control.start(handle.context, [])


def test_one_that_dies_when_it_watches_is_reported(handle, starting):
    starting("""echo '{"schema": "treesnap.watch/1"}'""")

    with pytest.raises(OperationFailed, match="ended as soon as it had started"):
        control.start(handle.context, [])


def test_its_own_error_is_raised(handle, starting):
    starting("""echo '{"schema": "treesnap.error/1", "code": "busy", "message": "not now"}'""")

    with pytest.raises(TreesnapError, match="not now") as caught:
        control.start(handle.context, [])
    assert caught.value.code == ErrorCode.BUSY


def test_words_about_one_say_everything_that_is_known():
    status = WatchStatus(
        process_id=7,
        started_at_ns=1,
        directories=1,
        every_ms=90_500,
        on_change=True,
        snapshots=1,
        last_snapshot="ab" * 32,
        last_error="no room",
        why_lost="the queue overflowed",
        then=FollowStatus(
            command="echo 'a'",
            running=True,
            succeeded_at_ns=None,
            failures=2,
            failure=FollowFailure(1, "failed: no room"),
        ),
    )
    made = f"  1 snapshot made, the last one is {'ab' * 6}"
    troubles = [
        "  the last snapshot failed: no room",
        """  runs "echo 'a'" after each snapshot: running now, no success yet""",
        "  it failed: no room (2 failures in a row; it is tried again)",
        "  started again, because the queue overflowed",
    ]

    assert list(status_lines("/r", status, is_stopped=False)) == [
        "Watching /r: 1 directory, process 7",
        "  a snapshot every 90.5 s, if something changed",
        "  a snapshot soon after something changed",
        made,
        *troubles,
    ]
    assert list(status_lines("/r", status, is_stopped=True)) == [
        "Stopped watching /r",
        made,
        *troubles,
    ]
    assert list(status_lines("/r", None, is_stopped=True)) == ["Not watched: /r"]


@pytest.mark.needs("notices")
def test_a_service_that_is_stopped_before_it_begins_ends_at_once(handle):
    service = WatchService(handle.context)
    assert service.status().directories == 0

    service.stop()

    assert service.run().directories == 1
