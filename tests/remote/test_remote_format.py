"""The bytes of encrypted remotes: recorded ones, and those that an independent reader finds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.independent_remote_reader import (
    File,
    Generation,
    Slot,
    of_writer,
    owner_key,
    padded,
    public_key,
    read_key_of,
    read_keys_of_machine,
    read_origin,
    read_paper,
    token,
)
from sampling import sized
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import checksum, expanded
from treesnap.remote import connection
from treesnap.remote.invitation import Invitation
from treesnap.remote.keys import (
    Cost,
    MasterKeys,
    OwnerKey,
    Secret,
    SecretKind,
    new_machine_slot,
    new_slot,
    open_slot,
    recipient,
    signer_id,
    slot_header,
)
from treesnap.remote.paper import key_of, lines_of
from treesnap.remote.records import ORIGIN, ORIGIN_STATEMENT
from treesnap.remote.sealing import SEGMENT_SIZE, Encrypted, InboxSealer, padded_size

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


SEED = bytes.fromhex(VECTORS["machine_seed"])
SIGNERS = (public_key(SEED), *(owner_key(REMOTE_ID, item) for item in GENERATIONS.values()))


def writer_of(newest: int, random: Callable[[int], bytes] = os.urandom) -> InboxSealer:
    """Returns what the recorded writer seals with, whom a generation of the keys invited."""
    keys = keys_until(newest).of_remote(REMOTE_ID)[newest]
    given = Invitation(REMOTE_ID, newest, keys.algorithm, keys.inbox, SEED)
    return InboxSealer(given, random)


def generations_until(newest: int) -> dict[int, Generation]:
    """Returns the recorded rows up to a generation."""
    return {number: row for number, row in GENERATIONS.items() if number <= newest}


def remade(vector: dict[str, Any]) -> tuple[str, bytes]:
    """Returns a recorded file as it is made today."""
    random = bytes.fromhex(vector["random"])
    sealer = Encrypted(keys_until(vector["generation"]), REMOTE_ID, lambda _size: random)
    content, name = content_of(vector), vector["name"]
    signer = sealer.owner if name.startswith("members/") else sealer.signer(SEED)
    if name.startswith(("state/", "members/")):
        return name, sealer.sign(name, content, signer)
    if name.startswith("inbox/"):
        return writer_of(vector["generation"], lambda _size: random).seal(name[:-32], content)
    is_signed = name.startswith("commits/")
    statement = bytes.fromhex(vector["statement"])
    return sealer.seal(name[:-32], content, signer if is_signed else None, statement)


def recorded(vector: dict[str, Any]) -> bytes:
    """Returns a recorded file."""
    return bytes.fromhex(vector["file"]) if "file" in vector else remade(vector)[1]


def test_files_are_made_as_they_were():
    for vector in VECTORS["files"]:
        name, data = remade(vector)

        assert (name, len(data)) == (vector["name"], vector["file_size"])
        assert vector.get("file", data.hex()) == data.hex()
        assert vector.get("file_blake3", checksum(data, 32).hex()) == checksum(data, 32).hex()
        assert ("file" in vector) != ("file_blake3" in vector)


def test_recorded_files_are_opened():
    sealer = Encrypted(keys_until(2), REMOTE_ID)
    keys = {signer_id(public): public for public in SIGNERS}
    for vector in VECTORS["files"]:
        name, data = vector["name"], recorded(vector)
        if name.startswith("packs/"):
            assert sealer.open(name, data) == content_of(vector)
        elif name.startswith("inbox/"):
            newest = Encrypted(keys_until(vector["generation"]), REMOTE_ID)
            assert newest.open_delivered(name, data, keys.get) == content_of(vector)
        else:
            found = sealer.open_signed(name, data, keys.get)
            expected = bytes.fromhex(vector["statement"]), content_of(vector), vector["generation"]
            assert found == expected


def test_the_independent_reader_opens_recorded_files():
    for vector in VECTORS["files"]:
        rows = generations_until(vector["generation"])
        file = File(REMOTE_ID, rows, vector["name"], recorded(vector), SIGNERS)

        assert file.content() == content_of(vector)
        assert file.statement.hex() == vector["statement"]


def test_names_are_made_as_the_page_says():
    for vector in VECTORS["files"]:
        name, statement = vector["name"], bytes.fromhex(vector["statement"])
        if name.startswith(("state/", "members/")):
            continue
        if name.startswith("inbox/"):
            random, content = bytes.fromhex(vector["random"]), content_of(vector)
            row = GENERATIONS[vector["generation"]]
            made = of_writer(REMOTE_ID, row, SEED, random, content, name[:-32])
            assert made == (bytes.fromhex(name[-32:]), statement)
            continue
        more = public_key(SEED) + checksum(statement, 32) if name.startswith("commits/") else b""
        random = bytes.fromhex(vector["random"])
        generation = GENERATIONS[vector["generation"]]

        made = token(REMOTE_ID, generation, random, content_of(vector), name[:-32], more)

        assert made.hex() == name[-32:]


CHEAP_SLOTS = [each for each in VECTORS["slots"] if each["cost"] != list(Cost())]
(COSTLY_SLOT,) = (each for each in VECTORS["slots"] if each["cost"] == list(Cost()))


def secret_of(vector: dict[str, Any]) -> Secret:
    """Returns the secret of a recorded slot."""
    kind, value = SecretKind(vector["kind"]), bytes.fromhex(vector["secret"])
    if kind is SecretKind.PASSPHRASE:
        return Secret.passphrase(value.decode("utf-8", "surrogateescape"))
    if kind is SecretKind.RAW_KEY:
        return Secret.raw_key(value.hex())
    return Secret.paper_key(value) if kind is SecretKind.PAPER_KEY else Secret.key_file(value)


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


@pytest.mark.parametrize("vector", VECTORS["machine_slots"], ids=lambda vector: vector["name"][:9])
def test_slots_of_machines_are_made_and_opened_as_they_were(vector):
    """By both readers; the machine trusts the owner of the first generation."""
    name, data, newest = vector["name"], bytes.fromhex(vector["file"]), vector["generations"][-1]
    keys, random = keys_until(newest), bytes.fromhex(vector["random"])
    owner = OwnerKey(1, owner_key(REMOTE_ID, GENERATIONS[1]))
    secret = Secret.machine_key(SEED, REMOTE_ID, owner)

    made = new_machine_slot(keys, recipient(SEED, REMOTE_ID), REMOTE_ID, lambda _size: random)
    opened = open_slot(name, data, secret, REMOTE_ID)
    read = read_keys_of_machine(REMOTE_ID, name, data, SEED, owner)

    assert made == (name, data)
    assert read == {
        number: (GENERATIONS[number].algorithm, read_key_of(REMOTE_ID, GENERATIONS[number]))
        for number in vector["generations"]
    }
    assert list(opened.generations) == vector["generations"]
    content = b"what a member reads"
    sealed = Encrypted(keys, REMOTE_ID).seal("packs/01-02-03-", content)
    assert Encrypted(opened, REMOTE_ID).open(*sealed) == content
    stranger = OwnerKey(1, owner_key(REMOTE_ID, GENERATIONS[2]))
    with pytest.raises(Corrupt, match="not from an owner"):
        open_slot(name, data, Secret.machine_key(SEED, REMOTE_ID, stranger), REMOTE_ID)
    with pytest.raises(AssertionError):
        read_keys_of_machine(REMOTE_ID, name, data, SEED, stranger)


def test_the_lines_of_a_paper_are_made_and_read_as_they_were():
    key, lines = bytes.fromhex(VECTORS["paper"]["key"]), VECTORS["paper"]["lines"]

    assert list(lines_of(key)) == lines
    assert key_of("\n".join(lines)) == read_paper(lines) == key
    assert "\n".join(lines) in PAGE.read_text(encoding="utf-8")


def test_an_origin_is_read_as_the_page_says():
    recorded_origin = VECTORS["origin"]
    data = bytes.fromhex(recorded_origin["object"])

    statement = read_origin(REMOTE_ID, data)

    found = ORIGIN_STATEMENT.decode(ORIGIN.decode(data).statement)
    assert statement["machine"] == found.machine == bytes.fromhex(recorded_origin["machine"])
    assert statement["history"][0] == found.history.id == bytes.fromhex(recorded_origin["history"])
    assert (statement["epoch"], statement["sequence"]) == (found.epoch, found.sequence) == (31, 1)
    with pytest.raises(AssertionError, match="signature"):
        read_origin(bytes(16), data)


def test_a_slot_of_the_usual_cost_is_opened():
    """Once: that costs as much time as all other tests of slots."""
    name, data = COSTLY_SLOT["name"], bytes.fromhex(COSTLY_SLOT["file"])

    assert open_slot(name, data, secret_of(COSTLY_SLOT), REMOTE_ID) == keys_until(2)
    assert Cost() == (3, 1 << 16, 4)


def test_a_new_slot_has_the_usual_cost():
    """By the function that commands call, without a cost."""
    slot = connection.new_slot(keys_until(2), Secret.passphrase("open sesame"), REMOTE_ID)

    assert slot_header(slot.name, slot.data).cost == Cost()


BOUNDARIES = [0, 8, 2048, 16_384, SEGMENT_SIZE, 67_584, 2 * SEGMENT_SIZE, 3 * SEGMENT_SIZE]
SIZES = st.sampled_from(BOUNDARIES).flatmap(
    lambda size: st.integers(max(0, size - 12), size + 12)
) | st.integers(0, 4 * SEGMENT_SIZE)
CONTENT = expanded(b"generated", 4 * SEGMENT_SIZE)


@settings(max_examples=sized(40, 2000))
@given(
    size=SIZES,
    is_zero=st.booleans(),
    newest=st.integers(1, 2),
    prefix=st.sampled_from(
        ["packs/0000000000000001-", "index/", "commits/01-02-", "state/", "inbox/01-02-03-"]
    ),
)
def test_both_readers_agree(size, is_zero, newest, prefix):
    content = bytes(size) if is_zero else CONTENT[:size]
    sealer, name = Encrypted(keys_until(newest), REMOTE_ID), f"state/{255:016x}"
    signer = sealer.signer(SEED)

    if prefix == "state/":
        file = (name, sealer.sign(name, content, signer))
    elif prefix.startswith("inbox/"):
        file = writer_of(newest).seal(prefix, content)
    elif prefix[0] == "c":
        file = sealer.seal(prefix, content, signer, CONTENT[:99])
    else:
        file = sealer.seal(prefix, content)

    opened = File(REMOTE_ID, generations_until(newest), *file, SIGNERS)
    both = Encrypted(keys_until(2), REMOTE_ID)
    if prefix.startswith("inbox/"):
        assert sealer.open_delivered(*file, {signer.id: signer.public}.get) == content
    elif prefix[0] in "pi":
        assert both.open(*file) == content
    else:
        found = both.open_signed(*file, {signer.id: signer.public}.get)
        assert (found.statement, found.content) == (opened.statement, content)
    assert opened.content() == content
    if prefix != "state/":
        assert len(opened.segments) == -(-padded(size + 8, opened.draws) // SEGMENT_SIZE)


@given(SIZES, st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_both_pad_alike(size, one, other):
    assert padded(size + 8, (one, other)) == padded_size(size + 8, (one, other))


def test_the_page_shows_a_recorded_file():
    text = PAGE.read_text(encoding="utf-8")
    example = text.partition("## An example")[2]
    words = re.findall(r"`(packs/[0-9a-f-]+)`", example)
    (vector,) = (
        each for each in VECTORS["files"]
        if each["name"] in words
    )  # fmt: skip
    file = File(REMOTE_ID, GENERATIONS, vector["name"], bytes.fromhex(vector["file"]))
    (use,) = file.encryptions()
    size = vector["content_size"]
    stream = use.plaintext[:size] + use.plaintext[-8:]

    shown = "".join(re.findall(r"`([^`]+)`", example))

    words = re.findall(r"`(inbox/[0-9a-f-]+)`", example)
    (delivered,) = (each for each in VECTORS["files"] if each["name"] in words)
    data, rows = bytes.fromhex(delivered["file"]), generations_until(1)
    letter = File(REMOTE_ID, rows, delivered["name"], data, SIGNERS)

    for value in (delivered["file"][-32:], delivered["statement"], letter.key.hex(),
                  vector["file"][:64], vector["file"][-32:], vector["random"], file.key.hex(),
                  use.nonce.hex(), stream.hex(), VECTORS["remote_id"]):  # fmt: skip
        assert value in shown
