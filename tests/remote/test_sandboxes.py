"""Many machines that are thrown away push to one remote: what each of them costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import treesnap
from blob_doubles import MemoryBlobs, WrappedBlobs
from treesnap.remote import Remotes
from treesnap.remote.keys import Secret

pytestmark = pytest.mark.sampled(10)

URL = "s3://bucket/agents"


class Server:
    """Blobs in memory that count the requests by what they do."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()

    def __call__(self, _url: str, *, make: bool = False) -> WrappedBlobs:
        return _Counted(MemoryBlobs(self.content), self)


class _Counted(WrappedBlobs):
    def __init__(self, inner: MemoryBlobs, server: Server) -> None:
        super().__init__(inner)
        self._server = server

    def around(self, method: str, proceed: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        self._server.requests[method] += 1
        return proceed()


@pytest.fixture
def server() -> Server:
    return Server()


def secret_of(_known):
    return lambda: Secret.raw_key("5a" * 32)


def sandbox(directory: Path, server: Server) -> Remotes:
    """Returns the remotes of a new machine that has added one, and has made a snapshot."""
    (directory / "work").mkdir(parents=True)
    (directory / "work" / "result").write_text(directory.name)
    (directory / "work" / "tool").write_text("the same everywhere" * 1000)
    handle = treesnap.open(directory / "work", directory / "store")
    remotes = Remotes(handle, secret_of, server)
    remotes.add("backup", URL)
    handle.create()
    return remotes


def test_a_push_reads_the_pushes_of_others_since_the_last_collection(server, tmp_path):
    histories = set()
    costs = []
    for number in range(6):
        remotes = sandbox(tmp_path / str(number), server)
        server.requests.clear()
        histories.add(remotes.push().history_id)
        costs.append(dict(server.requests))
    assert len(histories) == 6
    assert costs[0] == {"get": 3, "list": 4, "put": 2}
    # The others enrol their machine: they create a list of members, and its copy, and look
    # whether it is theirs.
    assert [cost["get"] for cost in costs[1:]] == [5, 6, 7, 8, 9]
    assert {(cost["list"], cost["put"], cost["create"]) for cost in costs[1:]} == {(5, 3, 1)}

    remotes.collect()

    last = sandbox(tmp_path / "last", server)
    server.requests.clear()
    last.push()
    assert dict(server.requests) == {"get": 6, "list": 5, "put": 3, "create": 1}


def test_what_sandboxes_share_is_stored_once(server, tmp_path):
    first = sandbox(tmp_path / "first", server).push()
    second = sandbox(tmp_path / "second", server).push()

    assert second.stored.objects < first.stored.objects


def test_the_work_of_a_sandbox_goes_on_in_another(server, tmp_path):
    sandbox(tmp_path / "red", server).push()
    wanted = sandbox(tmp_path / "green", server).push().history_id
    given = treesnap.open(tmp_path / "again", tmp_path / "other")

    found = Remotes(given, secret_of, server).clone(URL, wanted)

    assert found.history_id == wanted
    assert (tmp_path / "again" / "result").read_text() == "green"
    remotes = Remotes(treesnap.open(tmp_path / "again", tmp_path / "other"), secret_of, server)
    remotes.add("backup", URL)
    assert remotes.push(every_kind=True).history_id != wanted


def test_to_add_a_remote_takes_a_hundred_requests(server, tmp_path):
    sandbox(tmp_path / "first", server)
    server.requests.clear()

    sandbox(tmp_path / "second", server)

    assert 80 <= server.requests.total() <= 120, server.requests
