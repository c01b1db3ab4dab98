"""Makes the recorded files and key slots of an encrypted remote.

    python tests/formats/make_remote_vectors.py

writes ``remote_vectors.json`` beside this script. Contents that are long, and most files of
encrypted ones, are recorded by their hashes: a content of n bytes is the first n of ``LONG``. Once
a version is released its vectors are never made again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from treesnap.core.model.ids import checksum, expanded
from treesnap.remote.invitation import Invitation
from treesnap.remote.keys import (
    Algorithm,
    Cost,
    MasterKeys,
    Secret,
    new_machine_slot,
    new_slot,
    recipient,
)
from treesnap.remote.paper import lines_of
from treesnap.remote.records import (
    ORIGIN,
    ORIGIN_STATEMENT,
    CommitOrigin,
    DeliveryName,
    HistoryName,
    OriginStatement,
)
from treesnap.remote.sealing import Encrypted, InboxSealer

VECTORS = Path(__file__).with_name("remote_vectors.json")
REMOTE_ID = bytes.fromhex("00112233445566778899aabbccddeeff")
LONG = b"treesnap remote vectors"
FIRST = MasterKeys.new(random=lambda size: b"\x42" * size)
BOTH = FIRST.rotated(Algorithm.CHACHA20_POLY1305, random=lambda size: b"\x43" * size)
SHORT = [b"", b"a", b"treesnap", bytes(range(100))]
SIZES = [16_375, 65_527, 65_528, 65_529, 131_072, 200_000]
EPOCH = 0x1F
SEED = b"\x5e" * 32
STATEMENT = b"what needs no key"
RAW_KEY = "d0" * 32
KEY_FILE = b"-----BEGIN SOMETHING-----\n" + b"x" * 40
PAPER_KEY = b"\xd1" * 32
SMALL = Cost(1, 64, 2)


def counted(first: int) -> Any:
    """Returns a source of bytes that are the same in each run, and others for each number."""
    return lambda size: expanded(b"random %d" % first, size)


def files() -> list[dict[str, Any]]:
    """Returns a file of each kind of name, size and generation."""
    found = []
    contents = [*SHORT, *(expanded(LONG, size) for size in SIZES)]
    for keys in (FIRST, BOTH):
        for number, content in enumerate(contents):
            random = counted(number)
            sealer = Encrypted(keys, REMOTE_ID, random)
            given = f"state/{number:016x}"
            signer, epoch = sealer.signer(SEED), f"{EPOCH:016x}-"
            commit = f"commits/{epoch}{signer.id.hex()}-{number + 1:08x}-"
            pack = commit.replace("commits", "packs")
            newest = keys.of_remote(REMOTE_ID)[keys.newest]
            writer = InboxSealer(
                Invitation(REMOTE_ID, newest.generation, newest.algorithm, newest.inbox, SEED),
                random,
            )
            delivered = writer.seal(DeliveryName(writer.writer_id, 0, number).prefix, content)
            made = [
                (b"", *sealer.seal(pack, content)),
                (delivered.data[172:204], *delivered),
                (STATEMENT, *sealer.seal(commit, content, signer, STATEMENT)),
                (b"", given, sealer.sign(given, content, signer)),
                (
                    b"",
                    f"members/{number:016x}",
                    sealer.sign(f"members/{number:016x}", content, sealer.owner),
                ),
            ]
            for statement, name, data in made if len(content) < 1000 else made[:2]:
                stored = {
                    "generation": keys.newest,
                    "name": name,
                    "random": random(32).hex(),
                    "statement": statement.hex(),
                    "content_size": len(content),
                    "file_size": len(data),
                }
                if len(content) < 1000:
                    stored["content"] = content.hex()
                if len(data) < 1000 or content == b"treesnap":
                    stored["file"] = data.hex()
                else:
                    stored["file_blake3"] = checksum(data, 32).hex()
                found.append(stored)
    return found


def slots() -> list[dict[str, Any]]:
    """Returns a slot of each kind of secret, each with its secret in hex."""
    secrets = [
        (Secret.passphrase("correct horse battery staple"), SMALL, b"correct horse battery staple"),
        (Secret.passphrase("Gru\u0308n \udcff"), SMALL, "Gr\u00fcn ".encode() + b"\xff"),
        (Secret.raw_key(RAW_KEY), None, bytes.fromhex(RAW_KEY)),
        (Secret.key_file(KEY_FILE), SMALL, KEY_FILE),
        (Secret.paper_key(PAPER_KEY), None, PAPER_KEY),
    ]
    at_full_cost = (Secret.passphrase("treesnap"), None, b"treesnap")
    found = []
    for keys, given in ((FIRST, secrets), (BOTH, [*secrets, at_full_cost])):
        for number, (secret, cost, value) in enumerate(given):
            name, data = new_slot(keys, secret, REMOTE_ID, cost, counted(100 + number))
            found.append(
                {
                    "kind": int(secret.kind),
                    "secret": value.hex(),
                    "generations": list(keys.generations),
                    "cost": None if secret.kind.is_random else list(cost or Cost()),
                    "random": counted(100 + number)(32).hex(),
                    "name": name,
                    "file": data.hex(),
                }
            )
    return found


def machine_slots() -> list[dict[str, Any]]:
    """Returns slots for a machine that was invited in the first generation."""
    found = []
    for number, keys in enumerate((FIRST, BOTH)):
        name, data = new_machine_slot(
            keys, recipient(SEED, REMOTE_ID), REMOTE_ID, counted(200 + number)
        )
        found.append(
            {
                "generations": list(keys.generations),
                "random": counted(200 + number)(32).hex(),
                "name": name,
                "file": data.hex(),
            }
        )
    return found


def origin() -> dict[str, Any]:
    """Returns an origin: what a machine says of a commit in an object of its packs."""
    sealer = Encrypted(FIRST, REMOTE_ID)
    signer = sealer.signer(SEED)
    history = HistoryName(bytes(8) + signer.id, "garden@laptop")
    statement = ORIGIN_STATEMENT.payload(
        OriginStatement(signer.id, EPOCH, 1, history, (b"a snapshot",))
    )
    signature = signer.sign(sealer.signed_object(statement))
    return {
        "machine": signer.id.hex(),
        "history": history.id.hex(),
        "object": ORIGIN.payload(CommitOrigin(statement, signer.public, signature)).hex(),
    }


def main() -> None:
    """Writes the vectors."""
    generations = {"1": [1, "42" * 32], "2": [2, "43" * 32]}
    vectors = {
        "remote_id": REMOTE_ID.hex(),
        "generations": generations,
        "machine_seed": SEED.hex(),
        "long_content_seed": LONG.decode(),
        "files": files(),
        "slots": slots(),
        "origin": origin(),
        "machine_slots": machine_slots(),
        "paper": {"key": PAPER_KEY.hex(), "lines": lines_of(PAPER_KEY)},
    }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
