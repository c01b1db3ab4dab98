"""On a machine whose random bytes repeat, no key and nonce ever encrypt two plaintexts.

A virtual machine that is restored twice from one memory image draws the same random bytes twice.
Here all machines draw the same ones all the time. What each key encrypts is found out by the
independent reader.
"""

from __future__ import annotations

from itertools import product

import pytest

from formats.independent_remote_reader import (
    RAW_KEY,
    Encryption,
    File,
    Generation,
    Slot,
    public_key,
)
from treesnap.core.model.ids import expanded
from treesnap.remote.keys import Algorithm, Cost, MasterKeys, Secret, new_slot
from treesnap.remote.sealing import SEGMENT_SIZE, Encrypted, Plain

REMOTES = [bytes(range(16)), bytes(range(1, 17))]
PREFIXES = ["packs/", "packs/0000000000000001-", "packs/0000000000000002-", "index/"]
COMMITS = ["commits/01-01-01-", "commits/01-01-02-"]
SEEDS = [b"a" * 32, b"b" * 32]
STATEMENTS = [b"", b"saw more"]
LONG = expanded(b"long", 2 * SEGMENT_SIZE)
CONTENTS = [b"", b"\0", b"a", b"b", LONG, LONG[:-1] + b"x", b"x" + LONG[1:], LONG[:-1]]
SIGNERS = tuple(map(public_key, SEEDS))
ROWS = {number: Generation(1 + number % 2, bytes([number]) * 32) for number in (1, 2, 3)}


def frozen(size: int) -> bytes:
    """Returns the same random bytes each time."""
    return b"\x17" * size


def keys_of(*generations: int) -> MasterKeys:
    """Returns some generations of the same keys."""
    rows = [(number, *ROWS[number]) for number in generations]
    packed = [n.to_bytes(4, "little") + bytes([algorithm]) + key for n, algorithm, key in rows]
    return MasterKeys(b"".join(packed))


def uses_of_files() -> list[tuple[str, Encryption]]:
    """Returns what every machine encrypts for every content: for each file, its name and uses."""
    found = []
    for remote_id, newest in product(REMOTES, ROWS):
        sealer = Encrypted(keys_of(*range(1, newest + 1)), remote_id, frozen)
        for content in CONTENTS:
            files = [sealer.seal(prefix, content) for prefix in PREFIXES]
            files += [
                sealer.seal(prefix, content, sealer.signer(seed), statement)
                for prefix, seed, statement in product(COMMITS, SEEDS, STATEMENTS)
            ]
            for name, data in files:
                uses = File(remote_id, ROWS, name, data, SIGNERS).encryptions()
                found += [(name, use) for use in uses]
    return found


def test_no_key_and_nonce_encrypt_two_plaintexts_of_files():
    uses = uses_of_files()

    seen = {(use.key, use.nonce): use for _, use in uses}

    assert all(seen[use.key, use.nonce] == use for _, use in uses)
    assert len(seen) == len(uses)
    # And no two files have a key in common.
    assert len({use.key for _, use in uses}) == len(REMOTES) * len(ROWS) * len(CONTENTS) * 12


@pytest.mark.parametrize(
    "sealer", [Encrypted(keys_of(1), REMOTES[0], frozen), Plain(REMOTES[0], frozen)]
)
def test_equal_names_are_equal_files_and_unequal_contents_have_unequal_names(sealer):
    first = [sealer.seal(prefix, content) for prefix, content in product(PREFIXES, CONTENTS)]
    again = [sealer.seal(prefix, content) for prefix, content in product(PREFIXES, CONTENTS)]

    assert first == again
    assert len({name for name, _ in first}) == len(first)


RAW = ["00" * 32, "01" * 32]
SAME = "the same bytes for two kinds of secrets"
STRETCHED = [
    (Secret.passphrase("one"), b"one"),
    (Secret.passphrase("two"), b"two"),
    (Secret.passphrase(SAME), SAME.encode()),
    (Secret.key_file(SAME.encode()), SAME.encode()),
]
COSTS = [Cost(1, 8, 1), Cost(2, 8, 1), Cost(1, 9, 1), Cost(1, 16, 2)]


def test_no_key_and_nonce_encrypt_two_plaintexts_of_slots():
    uses = []
    some = [keys_of(1), keys_of(2), keys_of(1, 2), keys_of(1, 2, 3), keys_of(1, 3)]
    for remote_id, keys in product(REMOTES, some):
        for text in RAW:
            file = new_slot(keys, Secret.raw_key(text), remote_id, random=frozen)
            uses.append(Slot(remote_id, *file, RAW_KEY, bytes.fromhex(text)).encryption())
        for (secret, value), cost in product(STRETCHED, COSTS):
            file = new_slot(keys, secret, remote_id, cost, frozen)
            assert new_slot(keys, secret, remote_id, cost, frozen) == file
            uses.append(Slot(remote_id, *file, secret.kind, value).encryption())

    seen = {(use.key, use.nonce): use for use in uses}

    assert all(seen[use.key, use.nonce] == use for use in uses)
    assert len(seen) == len(uses)


def test_keys_that_are_made_of_the_same_random_bytes_belong_to_other_generations():
    keys = MasterKeys.new(random=frozen).rotated(Algorithm.CHACHA20_POLY1305, frozen)
    sealers = [Encrypted(MasterKeys.new(random=frozen), REMOTES[0], frozen)]
    sealers.append(Encrypted(keys, REMOTES[0], frozen))

    uses = []
    for sealer in sealers:
        name, data = sealer.seal("packs/", b"same")
        rows = {1: Generation(1, frozen(32)), 2: Generation(2, frozen(32))}
        uses += File(REMOTES[0], rows, name, data).encryptions()

    assert len({use.key for use in uses}) == 2
