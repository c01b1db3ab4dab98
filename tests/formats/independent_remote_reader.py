"""A second reader of encrypted remotes, made of docs/reference/remote-encryption.md alone.

It shares no code with treesnap and checks what the page says readers check: what it refuses is an
AssertionError. It stands for everybody who has to read a remote without treesnap, and it lists
what each key and nonce encrypts.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped]  # the library has no types
from blake3 import blake3
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

SEGMENT, TAG = 65_536, 16
SIGNED = frozenset({"commits", "deletions", "state", "members"})
PASSPHRASE, RAW_KEY, KEY_FILE, PAPER_KEY, MACHINE_KEY = 1, 2, 3, 4, 5
PAPER_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Generation(NamedTuple):
    """One row of a key slot."""

    algorithm: int
    master_key: bytes


class Encryption(NamedTuple):
    """One use of a key."""

    key: bytes
    nonce: bytes
    plaintext: bytes
    associated: bytes


def derived(salt: bytes, key: bytes, info: bytes) -> bytes:
    """Returns a key for one purpose."""
    return HKDF(SHA256(), 32, salt, info).derive(key)


def keyed(key: bytes, data: bytes, size: int = 32) -> bytes:
    """Returns a keyed hash."""
    return blake3(data, key=key).digest(length=size)


def padded(size: int, draws: tuple[int, int]) -> int:
    """Returns the size of a stream by the size of what must be in it, and its two numbers."""
    largest_power = 1
    while largest_power * 2 <= size:
        largest_power *= 2
    step = max(2048, largest_power // 32)
    total = size + draws[0] % step + draws[1] % step
    while total % step:
        total += 1
    return total


def read_key_of(remote_id: bytes, generation: Generation) -> bytes:
    """Returns what an invited machine has of a generation."""
    return derived(remote_id, generation.master_key, b"treesnap read 2")


def token(
    remote_id: bytes,
    generation: Generation,
    random: bytes,
    content: bytes,
    prefix: str,
    more: bytes,
) -> bytes:
    """Returns what the 32 digits of a name are made of."""
    read_key = read_key_of(remote_id, generation)
    names = derived(remote_id, read_key, b"treesnap names 2")
    contents = derived(remote_id, read_key, b"treesnap contents 2")
    return keyed(names, random + keyed(contents, content) + prefix.encode("ascii") + more, 16)


def of_writer(
    remote_id: bytes,
    generation: Generation,
    seed: bytes,
    random: bytes,
    content: bytes,
    prefix: str,
) -> tuple[bytes, bytes]:
    """Returns the 32 digits of the name of a file in the inbox, as bytes, and its public key."""
    data = random + blake3(content).digest() + public_of(inbox_of(remote_id, generation))
    data += prefix.encode("ascii")
    names = derived(remote_id, seed, b"treesnap inbox names 2")
    secret = keyed(derived(remote_id, seed, b"treesnap inbox ephemeral 2"), data)
    return keyed(names, data, 16), public_of(X25519PrivateKey.from_private_bytes(secret))


def inbox_of(remote_id: bytes, generation: Generation) -> X25519PrivateKey:
    """Returns the secret that reads what was delivered."""
    secret = derived(remote_id, read_key_of(remote_id, generation), b"treesnap inbox 2")
    return X25519PrivateKey.from_private_bytes(secret)


def public_of(secret: X25519PrivateKey) -> bytes:
    """Returns the public key of a secret."""
    return secret.public_key().public_bytes_raw()


def public_key(seed: bytes) -> bytes:
    """Returns the public key of a seed."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def owner_key(remote_id: bytes, generation: Generation) -> bytes:
    """Returns the public key of the owner."""
    return public_key(derived(remote_id, generation.master_key, b"treesnap owner 2"))


def read_paper(lines: list[str]) -> bytes:
    """Returns the key on a paper."""
    key = b""
    for number, line in enumerate(lines, start=1):
        digits = line.removeprefix(f"{number}  ").replace("-", "")
        bits = "".join(f"{PAPER_DIGITS.index(digit):05b}" for digit in digits)
        data = int(bits, 2).to_bytes(10, "big")
        asked = blake3(b"treesnap paper key 1" + bytes([number]) + data[:8])
        assert asked.digest(length=2) == data[8:]
        key += data[:8]
    return key


def read_origin(remote_id: bytes, data: bytes) -> dict[str, object]:
    """Returns what a machine says of a commit, in an object of the packs of that."""
    outer = msgpack.unpackb(data)
    assert outer["version"] == 1
    public = Ed25519PublicKey.from_public_bytes(outer["key"])
    try:
        public.verify(outer["signature"], b"treesnap origin 2" + remote_id + outer["statement"])
    except InvalidSignature as error:
        raise AssertionError("signature") from error
    statement: dict[str, object] = msgpack.unpackb(outer["statement"])
    assert statement["version"] == 1
    machine, history = statement["machine"], statement["history"]
    assert machine == blake3(outer["key"]).digest(length=8)
    assert isinstance(history, list)
    assert history[0].endswith(machine)
    return statement


class File:
    """A file, with its parts told apart, and its signature verified if it has one."""

    def __init__(
        self,
        remote_id: bytes,
        generations: dict[int, Generation],
        name: str,
        data: bytes,
        signers: tuple[bytes, ...] = (),
    ):
        is_delivered = name.startswith("inbox/")
        is_signed = is_delivered or name.partition("/")[0] in SIGNED
        is_clear = name.partition("/")[0] in {"state", "members"}
        last = "[0-9a-f]{16}" if is_clear else "[0-9a-f]{32}"
        assert re.fullmatch(f"[a-z]+/([0-9a-f]+-)*{last}", name)
        header = data[:32]
        assert header[:10] == b"TREESNAP\x12\x02"
        algorithm, mode, number = struct.unpack("<BBI", header[10:16])
        assert header[16:] == remote_id
        assert mode == (0 if is_clear else 2 if is_delivered else 1)
        start = 32
        self.statement = b""
        if is_signed:
            size, signer, statement_hash, content_hash = struct.unpack("<I8s32s32s", data[32:108])
            start = 172 + size
            self.statement = data[172:start]
            assert size <= 61_440
            assert blake3(self.statement).digest() == statement_hash
            (public,) = (key for key in signers if blake3(key).digest(length=8) == signer)
            try:
                Ed25519PublicKey.from_public_bytes(public).verify(
                    data[108:172], b"treesnap head 2" + data[:108] + name.encode("ascii")
                )
            except InvalidSignature as error:
                raise AssertionError("signature") from error
        self.segments: list[bytes] = []
        if is_clear:
            assert algorithm == 0
            self._content = data[start:]
            assert blake3(self._content).digest() == content_hash
            return
        assert number in generations
        assert algorithm == generations[number].algorithm
        self.associated = data[:start] + name.encode("ascii")
        read_key = read_key_of(remote_id, generations[number])
        if is_delivered:
            assert number == max(generations)
            inbox = inbox_of(remote_id, generations[number])
            shared = inbox.exchange(X25519PublicKey.from_public_bytes(self.statement))
            salt = self.statement + public_of(inbox)
            files = derived(salt, shared, b"treesnap inbox files 2")
            contents = derived(salt, shared, b"treesnap inbox contents 2")
        else:
            files = derived(remote_id, read_key, b"treesnap files 2")
            contents = derived(remote_id, read_key, b"treesnap contents 2")
        self.key = HKDFExpand(SHA256(), 32, b"treesnap file 2" + self.associated).derive(files)
        self.draws = struct.unpack(
            "<QQ", HKDFExpand(SHA256(), 16, b"treesnap pad 2").derive(self.key)
        )
        self.cipher = {1: AESGCM, 2: ChaCha20Poly1305}[algorithm](self.key)
        self.segments = [
            data[at : at + SEGMENT + TAG] for at in range(start, len(data), SEGMENT + TAG)
        ]
        self._content_hash = (contents, content_hash) if is_signed else None

    def encryptions(self) -> Iterator[Encryption]:
        """Yields what the key of the file encrypts."""
        assert self.segments
        for number, segment in enumerate(self.segments):
            is_last = number == len(self.segments) - 1
            nonce = number.to_bytes(11, "big") + bytes([is_last])
            try:
                plaintext = self.cipher.decrypt(nonce, segment, self.associated)
            except InvalidTag as error:
                raise AssertionError(f"segment {number}") from error
            yield Encryption(self.key, nonce, plaintext, self.associated)

    def content(self) -> bytes:
        """Returns the content."""
        if not self.segments:
            return self._content
        pieces = [each.plaintext for each in self.encryptions()]
        assert {len(piece) for piece in pieces[:-1]} <= {SEGMENT}
        assert pieces[-1]
        stream = b"".join(pieces)
        size = int.from_bytes(stream[-8:], "little")
        assert len(stream) == padded(size + 8, self.draws)
        assert not any(stream[size:-8])
        if self._content_hash is not None:
            key, expected = self._content_hash
            assert keyed(key, stream[:size]) == expected
        return stream[:size]


class Slot:
    """A key slot, opened."""

    def __init__(self, remote_id: bytes, name: str, data: bytes, kind: int, secret: bytes):
        assert re.fullmatch("keys/[0-9a-f]{32}", name)
        assert len(data) <= 65_536
        assert data[:12] == b"TREESNAP\x13\x01\x00\x01"
        assert blake3(data[:-32]).digest() == data[-32:]
        assert struct.unpack("<Q", data[16:24]) == (len(data) - 56,)
        outer = msgpack.unpackb(data[24:-32])
        assert outer["version"] == 1
        header = msgpack.unpackb(outer["header"])
        assert header["kind"] == kind
        assert (len(header["salt"]), len(header["commitment"])) == (16, 32)
        key = self._key(kind, secret, header)
        assert keyed(key, b"commit") == header["commitment"]
        self.key = keyed(key, b"wrap")
        self.associated = b"treesnap key slot 1" + remote_id + name.encode() + outer["header"]
        self.signature, self.signed = outer.get("signature"), self.associated + outer["wrapped"]
        self.machine = header.get("machine")
        try:
            self.rows = AESGCM(self.key).decrypt(bytes(12), outer["wrapped"], self.associated)
        except InvalidTag as error:
            raise AssertionError("rows") from error
        self.generations: dict[int, Generation] = {}
        if kind == MACHINE_KEY:
            return
        rows = list(struct.iter_unpack("<IB32s", self.rows))
        numbers = [number for number, _, _ in rows]
        assert numbers == sorted({0, *numbers})[1:]
        assert numbers[-1] == header["generation"]
        self.generations = {number: Generation(*rest) for number, *rest in rows}

    @staticmethod
    def _key(kind: int, secret: bytes, header: dict[str, object]) -> bytes:
        salt = header["salt"]
        assert isinstance(salt, bytes)
        if kind in (RAW_KEY, PAPER_KEY):
            word = b"raw" if kind == RAW_KEY else b"paper"
            return derived(salt, secret, b"treesnap " + word + b" key 1")
        if kind == MACHINE_KEY:
            own, exchange = X25519PrivateKey.from_private_bytes(secret), header["exchange"]
            assert isinstance(exchange, bytes)
            shared = own.exchange(X25519PublicKey.from_public_bytes(exchange))
            return derived(salt + exchange + public_of(own), shared, b"treesnap machine key 1")
        cost = header["cost"]
        assert isinstance(cost, list)
        passes, memory_kib, lanes = cost
        assert 1 <= passes <= 10
        assert 1 <= lanes <= 8
        assert 8 * lanes <= memory_kib <= 1_048_576
        made = Argon2id(
            salt=salt, length=32, iterations=passes, lanes=lanes, memory_cost=memory_kib
        )
        return made.derive(secret)

    def encryption(self) -> Encryption:
        """Returns what the wrapping key encrypts."""
        return Encryption(self.key, bytes(12), self.rows, self.associated)


def read_keys_of_machine(
    remote_id: bytes, name: str, data: bytes, seed: bytes, trusted: tuple[int, bytes]
) -> dict[int, tuple[int, bytes]]:
    """Returns algorithm and read key of each generation, from the slot of an invited machine that
    trusts the owner of a generation."""
    secret = derived(remote_id, seed, b"treesnap machine exchange 2")
    slot = Slot(remote_id, name, data, MACHINE_KEY, secret)
    assert slot.machine == blake3(public_key(seed)).digest(length=8)
    rows = list(struct.iter_unpack("<IB32s32s64s", slot.rows))
    owners = {number: public for number, _, _, public, _ in rows}
    assert list(owners) == sorted(owners)
    assert owners[trusted[0]] == trusted[1]
    signer = trusted[1]
    try:
        for number, _, _, public, signature in rows:
            if number > trusted[0]:
                said = b"treesnap next owner 2" + remote_id + struct.pack("<I", number) + public
                Ed25519PublicKey.from_public_bytes(signer).verify(signature, said)
                signer = public
        Ed25519PublicKey.from_public_bytes(signer).verify(
            slot.signature, b"treesnap machine slot 1" + slot.signed
        )
    except InvalidSignature as error:
        raise AssertionError("signature") from error
    return {number: (algorithm, read_key) for number, algorithm, read_key, _, _ in rows}
