"""An answer of a sandbox is a stranger's: one that is not understood is an error that says so.

The sandbox is a double here that needs no provider.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence

import pytest

import treesnap
from treesnap.core.model.errors import Refused
from treesnap.sandboxes.recording import Finished, Method, Recording, Sandbox

SOUND = {
    "--version": "treesnap 1",
    " create ": '{"schema": "treesnap.create/1", "id": "a1"}',
    " remote add ": "/srv/box",
    " push ": '{"schema": "treesnap.push/1", "history_id": "b2", "snapshots": ["a1"]}',
}


class AnsweringSandbox(Sandbox):
    provider = "double"

    def __init__(self, answers: dict[str, str], *, is_asynchronous: bool) -> None:
        self._answers = answers
        self.is_asynchronous = is_asynchronous

    def methods(self) -> Sequence[Method]:
        return []

    def run(self, command: str, timeout_s: float) -> Finished:
        return Finished(0, next(text for name, text in self._answers.items() if name in command))

    def read(self, path: str) -> Iterable[bytes]:
        raise FileNotFoundError(path)


@pytest.fixture(params=[False, True], ids=["with", "async with"])
def record(request, tmp_path) -> Callable[[str, str], None]:
    """Begins a recording in a sandbox that answers one of the commands otherwise."""

    def run(name: str, answer: str) -> None:
        (tmp_path / "host").mkdir()
        handle = treesnap.open(tmp_path / "host", tmp_path / "store")
        sandbox = AnsweringSandbox({**SOUND, name: answer}, is_asynchronous=request.param)
        recording = Recording(sandbox, "project", handle, tmp_path / "task-1", {})

        async def body() -> None:
            async with recording:
                pass

        if request.param:
            asyncio.run(asyncio.wait_for(body(), 20))
            return
        with recording:
            pass

    return run


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (" create ", '{"schema": "treesnap.create/1", bad'),
        (" create ", '{"schema": "treesnap.create/1", "a": ' + "[" * 100_000),
        (" create ", '{"schema": "treesnap.create/1"}'),
        (" create ", '{"schema": "treesnap.create/1", "id": ["a1"]}'),
        (" remote add ", "no place"),
        (" push ", '{"schema": "treesnap.push/1", "snapshots": []}'),
        (" push ", json.dumps({"schema": "treesnap.push/1", "history_id": "b2"})),
        (" push ", '{"schema": "treesnap.push/1", "history_id": "b2", "snapshots": 5}'),
        (" push ", '{"schema": "treesnap.push/1", "history_id": "b2", "snapshots": [{}]}'),
    ],
)
def test_an_answer_that_is_not_understood_is_refused(record, name, answer):
    with pytest.raises(Refused, match="What snap answered in the sandbox is not understood"):
        record(name, answer)
