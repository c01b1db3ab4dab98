"""What a server may answer while a remote is set up or opened, and what must come of it."""

from __future__ import annotations

import json

import pytest

import treesnap
from blob_doubles import MemoryBlobs, WrappedBlobs
from machine_doubles import MemoryMachine
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import Corrupt, ErrorCode, InvalidArgument, Refused
from treesnap.core.store.layout import Layout
from treesnap.remote import Remotes
from treesnap.remote.connection import set_up
from treesnap.remote.format import RemoteFormat, decode_format, encode_format
from treesnap.remote.keys import SLOTS_MAX, Secret
from treesnap.remote.records import Collection, KnownRemote, Marks
from treesnap.remote.registry import Registry

RAW_KEY = "5a" * 32


def secret() -> Secret:
    return Secret.raw_key(RAW_KEY)


def set_up_encrypted(blobs):
    return set_up("s3://b", blobs, secret, Collection.ANY, lambda _: MemoryMachine(), encrypts=True)


class Denying(WrappedBlobs):
    """Says after the format was written that nothing is encrypted there."""

    def around(self, method, proceed, arguments):
        found = proceed()
        if method == "get" and arguments[0] == "format":
            return encode_format(decode_format(found, "here")._replace(is_encrypted=False))
        return found


def test_a_new_remote_that_says_it_is_not_encrypted_is_refused():
    blobs = Denying(MemoryBlobs())

    with pytest.raises(Refused) as refused:
        set_up_encrypted(blobs)

    assert refused.value.code == ErrorCode.ENCRYPTION_EXPECTED


def test_a_remote_that_was_prepared_without_encryption_is_not_taken_for_an_encrypted_one(tmp_path):
    """A user who may write to a bucket could write ``format`` there before its owner does."""
    content = {"format": encode_format(RemoteFormat(b"r" * 16, is_encrypted=False))}
    handle = treesnap.open(tmp_path, tmp_path / "store")
    remotes = Remotes(handle, lambda _: secret, lambda _url, *, make=False: MemoryBlobs(content))

    with pytest.raises(Refused):
        remotes.add("backup", "s3://b")

    assert remotes.list() == ()
    assert not remotes.add("backup", "s3://b", encrypted=False).is_encrypted


@pytest.mark.parametrize("folder", ["packs", "commits", "index", "catalog", "deletions"])
def test_a_remote_that_lost_its_states_is_not_begun_again(folder):
    """Beginning at state 0 would make all that is there garbage, for the next collection."""
    content: dict[str, bytes] = {}
    set_up_encrypted(MemoryBlobs(content))
    for name in [name for name in content if name.startswith("state/")]:
        del content[name]
    content[f"{folder}/0000000000000001-{'7' * 32}"] = b"something"

    connection = set_up_encrypted(MemoryBlobs(content))

    with pytest.raises(Corrupt, match="no state"):
        connection.protocol.read()
    assert not [name for name in content if name.startswith("state/")]


def test_a_remote_has_an_id():
    fields = json.loads(encode_format(RemoteFormat(b"r" * 16, is_encrypted=False)))
    fields["id"] = "0" * 32

    with pytest.raises(Corrupt):
        decode_format(json.dumps(fields).encode(), "s3://b")


def test_key_slots_are_not_read_without_end():
    content: dict[str, bytes] = {}
    set_up_encrypted(MemoryBlobs(content))
    content |= {f"keys/{number:032x}": b"" for number in range(SLOTS_MAX)}

    with pytest.raises(Corrupt, match="key slots"):
        set_up_encrypted(MemoryBlobs(content))


# ------------------------------------------------------------------------ what is remembered


@pytest.fixture
def registry(tmp_path) -> Registry:
    handle = treesnap.open(tmp_path, tmp_path / "store")
    handle.create()
    return Registry(LocalFileSystem(), Layout(str(tmp_path / "store")))


KNOWN = KnownRemote("s3://b", b"r" * 16, is_encrypted=True, marks=Marks(7, b"7" * 16, 2))


def test_adding_a_remote_again_forgets_no_state_that_was_seen(registry):
    registry.add("backup", KNOWN)

    registry.add("backup", KNOWN._replace(url="s3://c", marks=Marks(3, b"3" * 16, 1)))

    assert registry.get("backup") == KNOWN._replace(url="s3://c")


def test_adding_a_remote_again_does_not_turn_its_encryption_off(registry):
    registry.add("backup", KNOWN)

    with pytest.raises(Refused) as refused:
        registry.add("backup", KNOWN._replace(is_encrypted=False))

    assert refused.value.code == ErrorCode.REMOTE_REPLACED
    assert registry.get("backup") == KNOWN


# ------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    "url",
    [
        "sftp://gardener:tulips@nas/backup",
        "https://gardener:tulips@nas/backup",
        "file://gardener:tulips@nas/backup",
        "s3://garden?endpoint=https%3A%2F%2Fgardener%3Atulips%40nas",
        "s3://gardener:tulips@garden",
        "rclone:nas://gardener:tulips@b",
        "sftp://nas/backup?password=tulips",
        "ssh://gardener:tulips@nas/backup",
    ],
)
def test_no_error_shows_the_password_of_an_address(tmp_path, url):
    handle = treesnap.open(tmp_path, tmp_path / "store")

    with pytest.raises(InvalidArgument) as refused:
        Remotes(handle, lambda _: secret).add("backup", url)

    assert "tulips" not in str(refused.value)
