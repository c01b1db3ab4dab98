"""What ``check`` says of a remote, on servers with and without faults."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Barrier

import pytest

import treesnap
from blob_doubles import (
    BlobFault,
    BlobFaultKind,
    FaultyBlobs,
    LateListBlobs,
    MemoryBlobs,
    RacingBlobs,
    WrappedBlobs,
)
from treesnap.core.model.errors import ErrorCode, NotFound, Refused, RemoteFailed
from treesnap.remote import Remotes
from treesnap.remote.blobs.base import Facts
from treesnap.remote.blobs.probe import Creation
from treesnap.remote.commands.remote import check_lines
from treesnap.remote.format import decode_format, encode_format
from treesnap.remote.keys import Secret
from treesnap.remote.records import Collection

pytestmark = pytest.mark.sampled(10)


def secret_of(_known):
    return lambda: Secret.raw_key("5a" * 32)


@pytest.fixture
def handle(tmp_path: Path) -> treesnap.Handle:
    (tmp_path / "garden").mkdir()
    return treesnap.open(tmp_path / "garden", tmp_path / "store")


@pytest.fixture
def content() -> dict[str, bytes]:
    """What the server holds."""
    return {}


def added(handle, content, *, encrypted: bool = False) -> None:
    remotes = Remotes(handle, secret_of, lambda _url, make=False: MemoryBlobs(content))
    remotes.add("backup", "s3://b", encrypted=encrypted)


def checked(handle, connect):
    return Remotes(handle, secret_of, lambda _url, make=False: connect()).check()


def told(found) -> str:
    return "\n".join(check_lines(found))


@pytest.mark.parametrize(("encrypted", "slots"), [(False, None), (True, 1)])
def test_a_sound_server_leaves_nothing_to_say(handle, content, encrypted, slots):
    added(handle, content, encrypted=encrypted)
    before = dict(content)

    found = checked(handle, lambda: MemoryBlobs(content))

    assert (found.is_encrypted, found.key_slots) == (encrypted, slots)
    assert (found.is_reliable, found.is_known, found.reasons) == (True, False, ())
    assert "Any machine may collect garbage" in told(found)
    assert content == before


def test_a_server_that_lists_late_now_is_not_to_be_collected(handle, content):
    added(handle, content)
    history = [dict(content)] * 4

    found = checked(handle, lambda: LateListBlobs(MemoryBlobs(content), 1, history))

    assert (found.lists_current, found.may_collect, found.is_reliable) == (False, True, False)
    assert "May list late" in told(found)
    assert "Do not run 'snap remote gc'" in told(found)


def test_a_server_that_creates_twice_is_found(handle, content):
    added(handle, content)
    meeting = Barrier(4)

    found = checked(handle, lambda: RacingBlobs(MemoryBlobs(content), meeting, 1 << 20))

    assert (found.creation, found.is_reliable) == (Creation.SEQUENTIAL, False)
    assert "May create a file twice" in told(found)


def test_of_a_server_without_ranges_whole_files_are_read(handle, content):
    added(handle, content)
    fault = BlobFault(kind=BlobFaultKind.CUT, methods=frozenset({"get_ranges"}), is_lasting=True)

    found = checked(handle, lambda: FaultyBlobs(MemoryBlobs(content), fault))

    assert (found.has_ranges, found.is_sound, found.is_reliable) == (False, True, True)
    assert "reads all of it" in told(found)


def test_a_verdict_of_the_day_of_set_up_counts(handle, content):
    added(handle, content)
    said = decode_format(content["format"], "")
    content["format"] = encode_format(said._replace(collection=Collection.NONE))

    found = checked(handle, lambda: MemoryBlobs(content))

    assert (found.is_sound, found.may_collect, found.is_reliable) == (True, False, False)
    assert "when the remote was set up" in told(found)


@pytest.mark.parametrize("number", range(1, 40, 3))
def test_a_check_of_which_any_request_fails_leaves_nothing(handle, content, number):
    added(handle, content)
    before = dict(content)
    fault = BlobFault(kind=BlobFaultKind.FAIL_AFTER, number=number)
    faulty = FaultyBlobs(MemoryBlobs(content), fault)

    with suppress(RemoteFailed):
        checked(handle, lambda: faulty)

    assert content == before
    assert checked(handle, lambda: MemoryBlobs(content)).is_reliable


@pytest.mark.parametrize("method", ["put", "delete"])
def test_what_the_credentials_may_not_do_is_said(handle, content, method):
    added(handle, content)

    class Denied(WrappedBlobs):
        def around(self, called, proceed, arguments):
            if called != method:
                return proceed()
            if called == "delete":
                return [name for name in arguments[0] if name in content]
            if arguments[0] in content:
                raise RemoteFailed("No", code=ErrorCode.REMOTE_DENIED)
            return proceed()

    found = checked(handle, lambda: Denied(MemoryBlobs(content)))

    assert (found.may_replace, found.may_remove) == (method != "put", method != "delete")
    assert ("none" in told(found)) is True


@pytest.mark.parametrize(
    ("skew_s", "words"), [(1200, "20 minutes behind"), (-1200, "20 minutes ahead of"), (600, None)]
)
def test_a_clock_that_is_wrong_is_said(handle, content, skew_s, words):
    added(handle, content)

    class Telling(WrappedBlobs):
        def facts(self):
            return Facts(handle.context.clock_ns() / 1e9 + skew_s, 1 << 30, keeps_versions=True)

    found = checked(handle, lambda: Telling(MemoryBlobs(content)))

    assert abs((found.clock_skew_s or 0) - skew_s) <= 1
    assert (found.free_bytes, found.keeps_versions) == (1 << 30, True)
    assert "1.0 GiB free" in told(found)
    assert "Keeps versions" in told(found)
    assert (f"{words} the server's" in told(found)) is (words is not None)


def test_a_bucket_tells_its_time_and_whether_it_keeps_versions(handle, bucket_url):
    remotes = Remotes(handle, secret_of)
    remotes.add("backup", bucket_url)

    found = remotes.check()

    assert found.keeps_versions is False
    assert found.clock_skew_s is not None
    assert abs(found.clock_skew_s) < 60
    assert (found.may_replace, found.may_remove, found.free_bytes) == (True, True, None)


def test_errors_are_those_of_every_command(handle, content):
    with pytest.raises(NotFound):
        checked(handle, lambda: MemoryBlobs(content))
    added(handle, content)
    with pytest.raises(RemoteFailed) as missing:
        checked(handle, MemoryBlobs)
    other: dict[str, bytes] = {}
    added(treesnap.open(handle.root, f"{handle.store_path}2"), other)
    with pytest.raises(Refused) as replaced:
        checked(handle, lambda: MemoryBlobs(other))

    assert missing.value.code == ErrorCode.REMOTE_MISSING
    assert replaced.value.code == ErrorCode.REMOTE_REPLACED
