"""The bytes of encrypted remotes: recorded ones, and those that an independent reader finds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.independent_remote_reader import File, Generation, Slot, padded, token
from sampling import sized
from treesnap.core.model.ids import checksum, expanded
from treesnap.remote import connection
from treesnap.remote.keys import (
    Cost,
    MasterKeys,
    Secret,
    SecretKind,
    new_slot,
    open_slot,
    slot_header,
)
from treesnap.remote.sealing import SEGMENT_SIZE, Encrypted, padded_size

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "reference" / "remote-encryption.md"
VECTORS: dict[str, Any] = json.loads(
    (PROJECT / "tests" / "formats" / "remote_vectors.json").read_text(encoding="ascii")
)
REMOTE_ID = bytes.fromhex(VECTORS["remote_id"])
GENERATIONS = {
    int(number): Generation(algorithm, bytes.fromhex(key))
    for number, (algorithm, key) in VECTORS["generations"].items()
}


def keys_until(newest: int) -> MasterKeys:
    """Returns the recorded keys up to a generation."""
    return MasterKeys(
        b"".join(
            number.to_bytes(4, "little") + bytes([algorithm]) + key
            for number, (algorithm, key) in GENERATIONS.items()
            if number <= newest
        )
    )


def content_of(vector: dict[str, Any]) -> bytes:
    """Returns the content of a recorded file."""
    if "content" in vector:
        return bytes.fromhex(vector["content"])
    return expanded(VECTORS["long_content_seed"].encode(), vector["content_size"])


def remade(vector: dict[str, Any]) -> tuple[str, bytes]:
    """Returns a recorded file as it is made today."""
    random = bytes.fromhex(vector["random"])
    sealer = Encrypted(keys_until(vector["generation"]), REMOTE_ID, lambda _size: random)
    content, name = content_of(vector), vector["name"]
    if name.startswith("state/"):
        return name, sealer.seal_as(name, content)
    return sealer.seal(name[:-32], content)


def test_files_are_made_as_they_were():
    for vector in VECTORS["files"]:
        name, data = remade(vector)

        assert (name, len(data)) == (vector["name"], vector["file_size"])
        assert vector.get("file", data.hex()) == data.hex()
        assert vector.get("file_blake3", checksum(data, 32).hex()) == checksum(data, 32).hex()
        assert ("file" in vector) != ("file_blake3" in vector)


def test_recorded_files_are_opened():
    sealer = Encrypted(keys_until(2), REMOTE_ID)
    for vector in VECTORS["files"]:
        data = bytes.fromhex(vector["file"]) if "file" in vector else remade(vector)[1]

        assert sealer.open(vector["name"], data) == content_of(vector)


def test_the_independent_reader_opens_recorded_files():
    for vector in VECTORS["files"]:
        data = bytes.fromhex(vector["file"]) if "file" in vector else remade(vector)[1]

        assert File(REMOTE_ID, GENERATIONS, vector["name"], data).content() == content_of(vector)


def test_names_and_salts_are_made_as_the_page_says():
    for vector in VECTORS["files"]:
        name, prefix = vector["name"], vector["name"][:-32]
        is_given = name.startswith("state/")
        random = bytes.fromhex(vector["random"])
        generation = GENERATIONS[vector["generation"]]

        made = token(
            REMOTE_ID, generation, random, content_of(vector), name if is_given else prefix
        )

        found = vector["file"][32:64] if is_given else name[-32:]
        assert made.hex() == found


CHEAP_SLOTS = [each for each in VECTORS["slots"] if each["cost"] != list(Cost())]
(COSTLY_SLOT,) = (each for each in VECTORS["slots"] if each["cost"] == list(Cost()))


def secret_of(vector: dict[str, Any]) -> Secret:
    """Returns the secret of a recorded slot."""
    kind, value = SecretKind(vector["kind"]), bytes.fromhex(vector["secret"])
    if kind is SecretKind.PASSPHRASE:
        return Secret.passphrase(value.decode("utf-8", "surrogateescape"))
    return Secret.raw_key(value.hex()) if kind is SecretKind.RAW_KEY else Secret.key_file(value)


@pytest.mark.parametrize("vector", CHEAP_SLOTS, ids=lambda vector: vector["name"][:9])
def test_slots_are_made_and_opened_as_they_were(vector):
    data = bytes.fromhex(vector["file"])
    keys, secret = keys_until(vector["generations"][-1]), secret_of(vector)
    cost = Cost(*vector["cost"]) if vector["cost"] else None
    random = bytes.fromhex(vector["random"])

    assert new_slot(keys, secret, REMOTE_ID, cost, lambda _size: random) == (vector["name"], data)
    assert open_slot(vector["name"], data, secret, REMOTE_ID) == keys
    assert slot_header(vector["name"], data).cost == cost


@pytest.mark.parametrize("vector", CHEAP_SLOTS, ids=lambda vector: vector["name"][:9])
def test_the_independent_reader_opens_recorded_slots(vector):
    data, value = bytes.fromhex(vector["file"]), bytes.fromhex(vector["secret"])

    assert Slot(REMOTE_ID, vector["name"], data, vector["kind"], value).generations == {
        number: GENERATIONS[number] for number in vector["generations"]
    }


def test_a_slot_of_the_usual_cost_is_opened():
    """Once: that costs as much time as all other tests of slots."""
    name, data = COSTLY_SLOT["name"], bytes.fromhex(COSTLY_SLOT["file"])

    assert open_slot(name, data, secret_of(COSTLY_SLOT), REMOTE_ID) == keys_until(2)
    assert Cost() == (3, 1 << 16, 4)


def test_a_new_slot_has_the_usual_cost():
    """By the function that commands call, without a cost."""
    slot = connection.new_slot(keys_until(2), Secret.passphrase("open sesame"), REMOTE_ID)

    assert slot_header(slot.name, slot.data).cost == Cost()


BOUNDARIES = [0, 8, 16_384, 17_408, SEGMENT_SIZE, 67_584, 2 * SEGMENT_SIZE, 3 * SEGMENT_SIZE]
SIZES = st.sampled_from(BOUNDARIES).flatmap(
    lambda size: st.integers(max(0, size - 12), size + 12)
) | st.integers(0, 4 * SEGMENT_SIZE)
CONTENT = expanded(b"generated", 4 * SEGMENT_SIZE)


@settings(max_examples=sized(40, 2000))
@given(
    size=SIZES,
    is_zero=st.booleans(),
    newest=st.integers(1, 2),
    prefix=st.sampled_from(["packs/0000000000000001-", "deletions/", ""]),
)
def test_both_readers_agree(size, is_zero, newest, prefix):
    content = bytes(size) if is_zero else CONTENT[:size]
    sealer = Encrypted(keys_until(newest), REMOTE_ID)
    given_name = "state/00000000000000ff"

    file = (
        sealer.seal(prefix, content)
        if prefix
        else (given_name, sealer.seal_as(given_name, content))
    )

    opened = File(REMOTE_ID, GENERATIONS, *file)
    assert opened.content() == content == Encrypted(keys_until(2), REMOTE_ID).open(*file)
    assert len(opened.segments) == -(-padded(size + 8) // SEGMENT_SIZE)


@given(SIZES)
def test_both_pad_alike(size):
    assert padded(size) == padded_size(size)


def test_the_page_shows_a_recorded_file():
    text = PAGE.read_text(encoding="utf-8")
    example = text.partition("## An example")[2]
    words = re.findall(r"`([0-9a-f/]*[a-z]*/?[0-9a-f]+)`", example)
    (vector,) = (
        each for each in VECTORS["files"]
        if each["name"] in words
    )  # fmt: skip
    file = File(REMOTE_ID, GENERATIONS, vector["name"], bytes.fromhex(vector["file"]))
    (use,) = file.encryptions()

    shown = "".join(re.findall(r"`([^`]+)`", example))

    assert f"{vector['file'][:32]}" in shown
    for value in (vector["file"], vector["random"], file.key.hex(), use.nonce.hex(),
                  use.plaintext.hex(), VECTORS["remote_id"]):  # fmt: skip
        assert value in shown
