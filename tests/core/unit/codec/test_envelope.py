"""The frame around every file: kind, version, length, checksum."""

from __future__ import annotations

import pytest

from treesnap.core.codec.envelope import FileKind, check_header, header, seal, unseal
from treesnap.core.model.errors import Corrupt, UnsupportedFormat


@pytest.mark.parametrize("payload", [b"", b"payload", bytes(100_000)])
def test_a_sealed_payload_comes_back(payload):
    assert unseal(seal(FileKind.ROOT, payload), FileKind.ROOT, "here") == payload


@pytest.mark.parametrize(
    ("position", "value"), [(9, 2), (9, 0), (10, 1), (11, 2)], ids=["newer", "0", "secret", "hash"]
)
def test_another_version_is_named_as_such(position, value):
    data = bytearray(seal(FileKind.ROOT, b"payload"))
    data[position] = value

    with pytest.raises(UnsupportedFormat, match="'here' has root version"):
        unseal(bytes(data), FileKind.ROOT, "here")


@pytest.mark.parametrize("data", [b"", b"TREESNAP", bytes(16), header(FileKind.PACK)])
def test_what_is_no_file_of_the_kind_is_refused(data):
    with pytest.raises(Corrupt):
        check_header(data, FileKind.ROOT, "here")


def test_a_file_with_more_or_less_than_it_states_is_refused():
    data = seal(FileKind.ROOT, b"payload")

    for changed in (data + b"x", data[:-1], data[:30], header(FileKind.ROOT)):
        with pytest.raises(Corrupt):
            unseal(changed, FileKind.ROOT, "here")


def test_errors_say_where():
    with pytest.raises(Corrupt) as caught:
        unseal(b"", FileKind.JOURNAL, "journal of a root")

    assert caught.value.path == "journal of a root"
