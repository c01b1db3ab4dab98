"""The keys of an encrypted remote, and the slots in which it keeps them.

    secret     --Argon2id or HKDF-->  KEK  --BLAKE3-->  commitment, wrapping key
    key slot   =  header, AES-256-GCM(wrapping key, the master keys of all generations)
    master key --HKDF, remote id-->   keys of slots, the owner's, and the read key
    read key   --HKDF, remote id-->   keys of files, contents and names, and the inbox's

A remote has one *master key* per *generation*; it is used with one algorithm. Each *key slot*
(``keys/<32 hex>``) holds all of them for those with its *secret*: a passphrase, a raw key, a key
file or a paper key. Nothing changes a slot. Another passphrase or another generation is another
slot, and then the old one is removed; files stay as they are.

What holds:

1. What a slot asks for, and what all of them do, is bounded before any work is done for it.
2. The commitment is compared, in constant time, before anything is decrypted: AES-GCM does not
   commit to its key, so without it one forged slot could try many passphrases at once.
3. Name and salt of a slot are a hash of random bytes *and of what it holds*. A machine that was
   restored twice from one memory image repeats its random bytes; its two slots are then the same
   slot, or have different keys. No key and nonce ever belong to two plaintexts.
4. Nothing here shows a secret or a key: not in its ``repr``, not in the message of an error, and
   not in the local variables of the functions that an error passes through.

A process that opens such a slot is an *owner*: the key that signs the list of members follows from
the newest master key. A machine that was invited has a slot of its own, for an X25519 key that only
it knows. There are the *read keys* alone: it reads everything, and cannot sign as the owner. The
slot is signed by the owner, and each owner's key by the owner before; the invitation has the first.
A *writer* has a seed of its own and the public key of the *inbox*, which follows
from a read key: each file that it makes has a key from an exchange of that one with one
that it makes for the file and forgets. So a writer reads nothing, not even what it wrote.

This is the one module that imports ``cryptography``, when the first key is used. Not here: files
(sealing), where slots are stored, where secrets come from. docs/reference/remote-encryption.md
specifies the bytes.
"""

from __future__ import annotations

import os
import re
import struct
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Self

from treesnap.core.codec.envelope import FileKind, Format, check_header
from treesnap.core.codec.message import Fields, pack, require, unpack
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    OperationFailed,
    Refused,
    RemoteLocked,
    UnsupportedFormat,
)
from treesnap.core.model.ids import checksum, keyed_hash
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey,
        X25519PublicKey,
    )
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

KEY_SIZE = 32
"""Bytes of every key."""
RANDOM_SIZE = 32
"""Random bytes that go into a name or a salt."""
SALT_SIZE = 16
TOKEN_SIZE = 16
"""Bytes of the random part of a name."""
SIGNATURE_SIZE = 64
SIGNER_ID_SIZE = 8
TAG_SIZE = 16
"""Bytes that encryption adds."""
REMOTE_ID_SIZE = 16
GENERATIONS_MAX = 1000
SLOT_SIZE_MAX = 64 << 10
SLOTS_MAX = 1000
KEY_FILE_SIZE_MIN, KEY_FILE_SIZE_MAX = 32, 1 << 20

_WRAPPING_NONCE = bytes(12)
"""A wrapping key is used once, because the salt that it is made with stands for what it wraps."""
_ROW = struct.Struct("<IB32s")
"""Generation, algorithm, master key."""
_DRAWS = struct.Struct("<QQ")
_READ_ROW = struct.Struct(f"<IB{KEY_SIZE}s{KEY_SIZE}s64s")
"""Generation, algorithm, read key, public key of the owner, which the owner before has signed."""
_SLOT_SHAPE = struct.Struct("<BIII")
"""Kind of the secret, and the three costs, 0 for one that is random."""
_SLOT_NAME = re.compile(r"keys/[0-9a-f]{32}\Z")

Random = Callable[[int], bytes]
"""Returns so many random bytes."""


class Algorithm(IntEnum):
    """How files are encrypted: byte 10 of their header."""

    AES_256_GCM = 1
    CHACHA20_POLY1305 = 2
    """For processors without instructions for AES."""


class SecretKind(IntEnum):
    """What opens a key slot."""

    PASSPHRASE = 1
    RAW_KEY = 2
    KEY_FILE = 3
    PAPER_KEY = 4
    """A raw key that a person keeps on paper: see :mod:`treesnap.remote.paper`."""
    MACHINE_KEY = 5
    """The key of one machine that was invited."""

    @property
    def words(self) -> str:
        """The kind as messages call it."""
        return self.name.lower().replace("_", " ")

    @property
    def is_random(self) -> bool:
        """Tells whether it is as random as a key can be, and is not stretched."""
        return self not in (SecretKind.PASSPHRASE, SecretKind.KEY_FILE)


class Cost(NamedTuple):
    """What Argon2id takes to make a key of a secret: the second choice of RFC 9106."""

    passes: int = 3
    memory_kib: int = 64 << 10
    lanes: int = 4

    @property
    def work_kib(self) -> int:
        """What all its passes go over."""
        return self.passes * self.memory_kib

    def __str__(self) -> str:
        return f"{self.passes} passes over {self.memory_kib} KiB in {self.lanes} lanes"


COST_MAX = Cost(passes=10, memory_kib=1 << 20, lanes=8)
"""No reader does more for a slot."""
_WORK_MAX_KIB = 40 << 20
"""Nor more than this for all of them, in passes over so much memory: four slots of the greatest
cost, or 213 of the usual one. The server can add slots that cost much."""


class RemoteFile(NamedTuple):
    """A file as the remote stores it."""

    name: str
    data: bytes


def damaged(name: str, problem: str) -> Corrupt:
    """Returns the error for a file of a remote that is not what was uploaded."""
    return Corrupt(f"Remote file {name!r} {problem}", code=ErrorCode.REMOTE_DAMAGED, path=name)


# ----------------------------------------------------------------- primitives


class _Library(NamedTuple):
    """What is used of ``cryptography``."""

    private_key: Callable[[bytes], Ed25519PrivateKey]
    public_key: Callable[[bytes], Ed25519PublicKey]
    shared_key: Callable[[bytes], X25519PrivateKey]
    shared_public: Callable[[bytes], X25519PublicKey]
    AESGCM: type[AESGCM]
    ChaCha20Poly1305: type[ChaCha20Poly1305]
    Argon2id: type[Argon2id]
    HKDF: type[HKDF]
    HKDFExpand: type[HKDFExpand]
    SHA256: type[SHA256]
    InvalidTag: type[Exception]
    InvalidSignature: type[Exception]
    UnsupportedAlgorithm: type[Exception]


@cache
def _library() -> _Library:
    try:
        from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PrivateKey,
            Ed25519PublicKey,
        )
        from cryptography.hazmat.primitives.asymmetric.x25519 import (
            X25519PrivateKey,
            X25519PublicKey,
        )
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
    except ModuleNotFoundError as error:
        from treesnap.core.features import missing_text

        raise OperationFailed(missing_text(error, "remote")) from error
    return _Library(
        Ed25519PrivateKey.from_private_bytes,
        Ed25519PublicKey.from_public_bytes,
        X25519PrivateKey.from_private_bytes,
        X25519PublicKey.from_public_bytes,
        AESGCM,
        ChaCha20Poly1305,
        Argon2id,
        HKDF,
        HKDFExpand,
        SHA256,
        InvalidTag,
        InvalidSignature,
        UnsupportedAlgorithm,
    )


class Cipher:
    """Encryption with one key."""

    __slots__ = ("_decrypt", "_mismatch", "encrypt")

    def __init__(self, algorithm: Algorithm, key: bytes) -> None:
        library = _library()
        is_aes = algorithm is Algorithm.AES_256_GCM
        try:
            made = library.AESGCM(key) if is_aes else library.ChaCha20Poly1305(key)
        except library.UnsupportedAlgorithm:
            del key
            raise _unsupported("ChaCha20-Poly1305") from None
        self.encrypt: Callable[[bytes, bytes | memoryview, bytes | None], bytes] = made.encrypt
        """Of a nonce, a plaintext and associated data; returns ciphertext and tag."""
        self._decrypt = made.decrypt
        self._mismatch = library.InvalidTag

    def decrypt(self, nonce: bytes, data: bytes | memoryview, associated: bytes) -> bytes | None:
        """Returns the plaintext, or None where the tag does not match all three."""
        try:
            return self._decrypt(nonce, data, associated)
        except self._mismatch:
            return None


def _unsupported(algorithm: str) -> OperationFailed:
    return OperationFailed(f"This build of the Python module 'cryptography' has no {algorithm}")


def _derived(library: _Library, key: bytes, salt: bytes, purpose: bytes) -> bytes:
    """Returns the key for one purpose.

    Takes the library, so that no key is around yet when that is missing.
    """
    return library.HKDF(library.SHA256(), KEY_SIZE, salt, purpose).derive(key)


class FileKeys:
    """What encrypts one file, and what its size is changed by."""

    __slots__ = ("cipher", "draws")

    def __init__(self, algorithm: Algorithm, key: bytes) -> None:
        library = _library()
        expand = library.HKDFExpand(library.SHA256(), _DRAWS.size, b"treesnap pad 2")
        self.draws: tuple[int, int] = _DRAWS.unpack(expand.derive(key))
        try:
            self.cipher: Cipher = Cipher(algorithm, key)
        except OperationFailed:
            del key
            raise


# ----------------------------------------------------------------- signatures


class Signer:
    """What signs as one machine, or as the owner."""

    __slots__ = ("public", "sign")

    def __init__(self, public: bytes, sign: Callable[[bytes], bytes]) -> None:
        self.public: bytes = public
        """32 bytes that others know it by."""
        self.sign: Callable[[bytes], bytes] = sign
        """Returns the 64 bytes of a signature."""

    @property
    def id(self) -> bytes:
        """What names it where keys would be long; it follows from the public key."""
        return signer_id(self.public)


def signer_id(public: bytes) -> bytes:
    """Returns the id of who has a public key."""
    return checksum(public, SIGNER_ID_SIZE)


def key_signer(seed: bytes) -> Signer:
    """Returns what signs with the Ed25519 key of a seed."""
    key = _library().private_key(seed)
    return Signer(key.public_key().public_bytes_raw(), key.sign)


def is_signed(public: bytes, signature: bytes, data: bytes) -> bool:
    """Tells whether the holder of an Ed25519 key signed some bytes."""
    library = _library()
    try:
        library.public_key(public).verify(signature, data)
    except (library.InvalidSignature, ValueError):
        return False
    return True


def checksum_signer(seed: bytes) -> Signer:
    """Returns what makes a checksum in the place of a signature, where all may write."""
    public = checksum(seed, KEY_SIZE)
    return Signer(public, lambda data: checksum(public + data, SIGNATURE_SIZE))


def is_checksum(public: bytes, signature: bytes, data: bytes) -> bool:
    """Tells whether some bytes are what their checksum was made of."""
    return compare_digest(checksum(public + data, SIGNATURE_SIZE), signature)


# -------------------------------------------------------------------- secrets


class OwnerKey(NamedTuple):
    """Who signs the lists of machines of one generation."""

    generation: int
    public: bytes


class Recipient(NamedTuple):
    """A machine that gets a slot of its own."""

    id: bytes
    exchange: bytes
    """The X25519 key that it is for."""


class _SlotKeys(NamedTuple):
    """What a secret is stretched to for one slot."""

    commitment: bytes
    cipher: Cipher


class Secret:
    """The secret that opens a remote. Printing it shows its kind alone."""

    __slots__ = ("_value", "kind", "machine", "owner")

    def __init__(
        self, kind: SecretKind, value: bytes, machine: bytes = b"", owner: OwnerKey | None = None
    ) -> None:
        self.kind: SecretKind = kind
        self._value = value
        self.machine: bytes = machine
        """The id of the machine whose key it is."""
        self.owner: OwnerKey | None = owner
        """An owner that the machine trusts, and those that this one has signed."""

    @classmethod
    def passphrase(cls, text: str) -> Self:
        """Returns a passphrase, in the normal form that all keyboards agree on (NFC).

        Bytes that are not UTF-8 stay what they are. Raises InvalidArgument for an empty one.
        """
        try:
            value = unicodedata.normalize("NFC", text).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            value = b""
        del text
        if not value:
            raise InvalidArgument("A passphrase is empty, or not text")
        return cls(SecretKind.PASSPHRASE, value)

    @classmethod
    def raw_key(cls, text: str) -> Self:
        """Returns a raw key from its 64 hex digits; raises InvalidArgument."""
        is_key = len(text) == 2 * KEY_SIZE and not set(text) - set("0123456789abcdefABCDEF")
        value = bytes.fromhex(text) if is_key else b""
        del text
        if not value:
            raise InvalidArgument(f"A raw key is not {2 * KEY_SIZE} hex digits")
        return cls(SecretKind.RAW_KEY, value)

    @classmethod
    def key_file(cls, content: bytes) -> Self:
        """Returns a secret that is the content of a file; raises InvalidArgument.

        It is stretched like a passphrase, because how random it is, is unknown.
        """
        if not KEY_FILE_SIZE_MIN <= len(content) <= KEY_FILE_SIZE_MAX:
            size = len(content)
            del content
            raise InvalidArgument(
                f"A key file has {size} bytes, and not {KEY_FILE_SIZE_MIN} to {KEY_FILE_SIZE_MAX}"
            )
        return cls(SecretKind.KEY_FILE, bytes(content))

    @classmethod
    def paper_key(cls, key: bytes) -> Self:
        """Returns the secret of a paper, as :func:`treesnap.remote.paper.key_of` reads it."""
        assert len(key) == KEY_SIZE
        return cls(SecretKind.PAPER_KEY, key)

    @classmethod
    def machine_key(cls, seed: bytes, remote_id: bytes, owner: OwnerKey) -> Self:
        """Returns the secret of an invited machine with a seed, which trusts an owner."""
        return cls(SecretKind.MACHINE_KEY, _exchange(seed, remote_id), key_signer(seed).id, owner)

    def trusting(self, owner: OwnerKey) -> Secret:
        """Returns the same one, which trusts an owner that it saw later, if it is for a machine."""
        if self.owner is None or owner.generation < self.owner.generation:
            return self
        return Secret(self.kind, self._value, self.machine, owner)

    def __repr__(self) -> str:
        return f"<Secret: {self.kind.words}>"

    def stretched(self, salt: bytes, cost: Cost | None, exchange: bytes = b"") -> _SlotKeys:
        """Returns what it opens a slot with; takes the time and memory that the cost says.

        ``exchange`` is the public key in a slot for a machine.
        """
        if self.kind is SecretKind.MACHINE_KEY:
            own = _library().shared_key(self._value)
            return _slot_keys(_exchanged(own, exchange, salt, exchange, _public_of(own)))
        return _slot_keys(self._key_encryption_key(salt, cost))

    def _key_encryption_key(self, salt: bytes, cost: Cost | None) -> bytes:
        library = _library()
        if cost is None:
            return _derived(library, self._value, salt, b"treesnap %s 1" % self.kind.words.encode())
        try:
            return library.Argon2id(
                salt=salt,
                length=KEY_SIZE,
                iterations=cost.passes,
                lanes=cost.lanes,
                memory_cost=cost.memory_kib,
            ).derive(self._value)
        except library.UnsupportedAlgorithm:
            raise _unsupported("Argon2id") from None
        except MemoryError:
            raise OperationFailed(
                f"There is too little memory to open a key slot, which takes {cost.memory_kib} KiB"
            ) from None


def _slot_keys(kek: bytes) -> _SlotKeys:
    return _SlotKeys(
        keyed_hash(kek, b"commit"), Cipher(Algorithm.AES_256_GCM, keyed_hash(kek, b"wrap"))
    )


def recipient(seed: bytes, remote_id: bytes) -> Recipient:
    """Returns what a slot for the machine with a seed is made for."""
    secret = _library().shared_key(_exchange(seed, remote_id))
    return Recipient(key_signer(seed).id, _public_of(secret))


def _exchange(seed: bytes, remote_id: bytes) -> bytes:
    return _derived(_library(), seed, remote_id, b"treesnap machine exchange 2")


def _public_of(secret: X25519PrivateKey) -> bytes:
    return secret.public_key().public_bytes_raw()


def _exchanged(
    own: X25519PrivateKey, other: bytes, salt: bytes, sent: bytes, received: bytes
) -> bytes:
    """Returns what the key of a slot for a machine is; raises Corrupt for a key that is none."""
    library = _library()
    try:
        shared = own.exchange(library.shared_public(other))
    except ValueError:
        del own
        raise Corrupt("A key slot has a key that is none", code=ErrorCode.REMOTE_DAMAGED) from None
    return _derived(library, shared, salt + sent + received, b"treesnap machine key 1")


def new_raw_key(random: Random = os.urandom) -> str:
    """Returns the 64 hex digits of a new raw key."""
    return random(KEY_SIZE).hex()


# ---------------------------------------------------------------- master keys


class InboxKeys:
    """What one file in the inbox of a remote is encrypted with: its writer and readers have it."""

    __slots__ = ("_contents", "_files", "algorithm", "generation")

    def __init__(self, generation: int, algorithm: Algorithm, shared: bytes, salt: bytes) -> None:
        library = _library()
        self.generation: int = generation
        self.algorithm: Algorithm = algorithm
        self._files = _derived(library, shared, salt, b"treesnap inbox files 2")
        self._contents = _derived(library, shared, salt, b"treesnap inbox contents 2")

    def content_hash(self, content: bytes | memoryview) -> bytes:
        """Returns a hash that holders of the keys alone can compare a guess with."""
        return keyed_hash(self._contents, content)

    def file(self, associated: bytes) -> FileKeys:
        """Returns the keys of the file."""
        return _file_keys(self.algorithm, self._files, associated)


def _file_keys(algorithm: Algorithm, key: bytes, associated: bytes) -> FileKeys:
    library = _library()
    expand = library.HKDFExpand(library.SHA256(), KEY_SIZE, b"treesnap file 2" + associated)
    return FileKeys(algorithm, expand.derive(key))


class WriterKeys:
    """What one writer signs, names and encrypts with; nothing of it decrypts."""

    __slots__ = ("_ephemeral", "_names", "signer")

    def __init__(self, seed: bytes, remote_id: bytes) -> None:
        library = _library()
        self.signer: Signer = key_signer(seed)
        self._names = _derived(library, seed, remote_id, b"treesnap inbox names 2")
        self._ephemeral = _derived(library, seed, remote_id, b"treesnap inbox ephemeral 2")

    def token(self, random_bytes: bytes, content: bytes, where: bytes) -> bytes:
        """Returns the 16 bytes that tell a content in one place from every other."""
        return keyed_hash(self._names, _random_for(random_bytes, content, where), TOKEN_SIZE)

    def exchanged(
        self,
        inbox: bytes,
        generation: int,
        algorithm: Algorithm,
        random_bytes: bytes,
        content: bytes,
        where: bytes,
    ) -> tuple[bytes, InboxKeys]:
        """Returns a public key for one file, and the keys that it has with that of an inbox.

        Its secret is gone when this returns, and follows from random bytes *and the content*:
        where a machine repeats its random bytes, two contents have two keys. Raises
        InvalidArgument for a public key that is none.
        """
        secret = keyed_hash(self._ephemeral, _random_for(random_bytes, content, where))
        library = _library()
        own = library.shared_key(secret)
        public = own.public_key().public_bytes_raw()
        try:
            shared = own.exchange(library.shared_public(inbox))
        except ValueError:
            del own, secret
            raise InvalidArgument("The key of an inbox is not one") from None
        return public, InboxKeys(generation, algorithm, shared, public + inbox)


def _random_for(random_bytes: bytes, content: bytes, where: bytes) -> bytes:
    return random_bytes + checksum(content, KEY_SIZE) + where


class GenerationKeys:
    """What the files of one remote are named and encrypted with in one generation."""

    __slots__ = (
        "_contents",
        "_files",
        "_inbox",
        "_names",
        "_owner_seed",
        "algorithm",
        "generation",
        "owner_key",
    )

    def __init__(
        self,
        algorithm: Algorithm,
        read_key: bytes,
        remote_id: bytes,
        owner_key: OwnerKey,
        owner_seed: bytes | None = None,
    ) -> None:
        library = _library()
        self.generation: int = owner_key.generation
        self.algorithm: Algorithm = algorithm
        self.owner_key: OwnerKey = owner_key
        self._owner_seed = owner_seed
        self._files = _derived(library, read_key, remote_id, b"treesnap files 2")
        self._contents = _derived(library, read_key, remote_id, b"treesnap contents 2")
        self._names = _derived(library, read_key, remote_id, b"treesnap names 2")
        self._inbox = _derived(library, read_key, remote_id, b"treesnap inbox 2")

    @property
    def owner(self) -> Signer:
        """What signs for all who have the master key; raises Refused without that."""
        if self._owner_seed is None:
            raise not_allowed("an owner, which opens it with a secret, changes its machines")
        return key_signer(self._owner_seed)

    def content_hash(self, content: bytes | memoryview) -> bytes:
        """Returns a hash that holders of the keys alone can compare a guess with."""
        return keyed_hash(self._contents, content)

    def token(self, random_bytes: bytes, content_hash: bytes, name: bytes) -> bytes:
        """Returns the 16 bytes that tell a content under this name from every other.

        Equal tokens mean equal contents, also where the random bytes are equal.
        """
        return keyed_hash(self._names, random_bytes + content_hash + name, TOKEN_SIZE)

    def file(self, associated: bytes) -> FileKeys:
        """Returns the keys of one file, of which ``associated`` says all that tells it from
        others.
        """
        return _file_keys(self.algorithm, self._files, associated)

    @property
    def inbox(self) -> bytes:
        """The public key that writers encrypt with."""
        return _library().shared_key(self._inbox).public_key().public_bytes_raw()

    def delivered(self, public: bytes) -> InboxKeys | None:
        """Returns the keys of a file in the inbox by the public key in it; None for no such key."""
        library = _library()
        own = library.shared_key(self._inbox)
        try:
            shared = own.exchange(library.shared_public(public))
        except ValueError:
            return None
        salt = public + own.public_key().public_bytes_raw()
        return InboxKeys(self.generation, self.algorithm, shared, salt)


def not_allowed(who: str) -> Refused:
    """Returns the error for what the role of a machine on a remote does not allow."""
    return Refused(
        f"The role of this machine on the remote does not allow that: {who}",
        code=ErrorCode.REMOTE_ROLE,
    )


class ReadKeys:
    """The read keys of all generations of a remote, as a machine has them that was invited."""

    __slots__ = ("_rows", "generations")

    def __init__(self, rows: bytes) -> None:
        self._rows = rows
        self.generations: Mapping[int, Algorithm] = {
            generation: Algorithm(algorithm)
            for generation, algorithm, *_ in _READ_ROW.iter_unpack(rows)
        }
        """The algorithm of each, in rising order."""

    @property
    def newest(self) -> int:
        """The generation that new files are encrypted with."""
        return max(self.generations)

    def __repr__(self) -> str:
        return f"<ReadKeys: generations {', '.join(map(str, self.generations))}>"

    def of_remote(self, remote_id: bytes) -> dict[int, GenerationKeys]:
        """Returns the keys of each generation for one remote, in rising order."""
        _require_remote_id(remote_id)
        return {
            generation: GenerationKeys(
                Algorithm(algorithm), read_key, remote_id, OwnerKey(generation, public)
            )
            for generation, algorithm, read_key, public, _ in _READ_ROW.iter_unpack(self._rows)
        }

    def is_of(self, trusted: OwnerKey, remote_id: bytes) -> bool:
        """Tells whether an owner is among theirs, and has signed the next one, and so on."""
        owners = [
            (OwnerKey(generation, public), signature)
            for generation, _, _, public, signature in _READ_ROW.iter_unpack(self._rows)
        ]
        if trusted not in [owner for owner, _ in owners]:
            return False
        later = [item for item in owners if item[0].generation > trusted.generation]
        signer = trusted
        for owner, signature in later:
            if not is_signed(signer.public, signature, _next_owner(remote_id, owner)):
                return False
            signer = owner
        return True

    @property
    def owner(self) -> OwnerKey:
        """The newest owner."""
        *_, (generation, _, _, public, _) = _READ_ROW.iter_unpack(self._rows)
        return OwnerKey(generation, public)

    @classmethod
    def unwrapped(cls, cipher: Cipher, data: bytes, associated: bytes) -> Self | None:
        """Returns the keys of a slot, or None where there are no valid ones."""
        rows = cipher.decrypt(_WRAPPING_NONCE, data, associated)
        if rows is None or not rows or len(rows) % _READ_ROW.size:
            return None
        pairs = [
            (generation, algorithm) for generation, algorithm, *_ in _READ_ROW.iter_unpack(rows)
        ]
        return cls(rows) if _are_rows(pairs) else None


def _next_owner(remote_id: bytes, owner: OwnerKey) -> bytes:
    """Returns what an owner signs of the next one."""
    generation = owner.generation.to_bytes(4, "little")
    return b"treesnap next owner 2" + remote_id + generation + owner.public


class MasterKeys:
    """The master keys of all generations of a remote. Printing them shows none."""

    __slots__ = ("_rows", "generations")

    def __init__(self, rows: bytes) -> None:
        self._rows = rows
        self.generations: Mapping[int, Algorithm] = {
            generation: Algorithm(algorithm) for generation, algorithm, _ in _ROW.iter_unpack(rows)
        }
        """The algorithm of each, in rising order."""

    @classmethod
    def new(cls, algorithm: Algorithm = Algorithm.AES_256_GCM, random: Random = os.urandom) -> Self:
        """Returns the keys of a new remote."""
        return cls(_ROW.pack(1, algorithm, random(KEY_SIZE)))

    def rotated(
        self,
        algorithm: Algorithm | None = None,
        random: Random = os.urandom,
        number: int | None = None,
    ) -> Self:
        """Returns the keys with another generation, which new files are encrypted with.

        Two rotations at once would give one number to two keys. So a rotation first reserves
        the number, with an operation of the remote that only one can succeed with. It is the
        next one, or a higher ``number``.
        """
        if len(self.generations) >= GENERATIONS_MAX:
            raise InvalidArgument(f"A remote has at most {GENERATIONS_MAX} key generations")
        chosen = self.generations[self.newest] if algorithm is None else algorithm
        number = self.newest + 1 if number is None else number
        return type(self)(self._rows + _ROW.pack(number, chosen, random(KEY_SIZE)))

    @property
    def newest(self) -> int:
        """The generation that new files are encrypted with."""
        return max(self.generations)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MasterKeys) and compare_digest(self._rows, other._rows)

    def __hash__(self) -> int:
        return hash(tuple(self.generations.items()))

    def __repr__(self) -> str:
        return f"<MasterKeys: generations {', '.join(map(str, self.generations))}>"

    def of_remote(self, remote_id: bytes) -> dict[int, GenerationKeys]:
        """Returns the keys of each generation for one remote, in rising order."""
        _require_remote_id(remote_id)
        library = _library()  # while no key is around that an error could show
        keys: dict[int, GenerationKeys] = {}
        for generation, algorithm, master in _ROW.iter_unpack(self._rows):
            seed = _derived(library, master, remote_id, b"treesnap owner 2")
            keys[generation] = GenerationKeys(
                Algorithm(algorithm),
                _derived(library, master, remote_id, b"treesnap read 2"),
                remote_id,
                OwnerKey(generation, key_signer(seed).public),
                seed,
            )
        return keys

    def read_rows(self, remote_id: bytes) -> bytes:
        """Returns what a machine is given of them that may read."""
        library, rows, signature = _library(), b"", bytes(SIGNATURE_SIZE)
        keys = self.of_remote(remote_id)
        before: Signer | None = None
        for generation, algorithm, master in _ROW.iter_unpack(self._rows):
            owner = keys[generation].owner_key
            if before is not None:
                signature = before.sign(_next_owner(remote_id, owner))
            read_key = _derived(library, master, remote_id, b"treesnap read 2")
            rows += _READ_ROW.pack(generation, algorithm, read_key, owner.public, signature)
            before = keys[generation].owner
        return rows

    def _slots_key(self, remote_id: bytes) -> bytes:
        library = _library()
        *_, (_, _, master) = _ROW.iter_unpack(self._rows)
        return _derived(library, master, remote_id, b"treesnap slots 1")

    def slot_token(
        self,
        random_bytes: bytes,
        kind: SecretKind,
        cost: Cost | None,
        remote_id: bytes,
        exchange: bytes = b"",
    ) -> bytes:
        """Returns the 32 bytes that tell a slot from all that hold other keys, cost another, or are
        for another machine.
        """
        shape = _SLOT_SHAPE.pack(kind, *(cost or (0, 0, 0)))
        key = self._slots_key(remote_id)
        return keyed_hash(key, random_bytes + shape + self._rows + exchange)

    def exchange_secret(self, token: bytes, remote_id: bytes) -> bytes:
        """Returns the secret that one slot for a machine is made with, and that is then gone."""
        return keyed_hash(self._slots_key(remote_id), b"exchange" + token)

    def wrapped(self, cipher: Cipher, associated: bytes) -> bytes:
        """Returns the keys encrypted for a slot."""
        return cipher.encrypt(_WRAPPING_NONCE, self._rows, associated)

    @classmethod
    def unwrapped(cls, cipher: Cipher, data: bytes, associated: bytes) -> Self | None:
        """Returns the keys of a slot, or None where there are no valid ones."""
        rows = cipher.decrypt(_WRAPPING_NONCE, data, associated)
        return cls(rows) if rows is not None and _is_valid(rows) else None


def _require_remote_id(remote_id: bytes) -> None:
    if len(remote_id) != REMOTE_ID_SIZE:
        raise InvalidArgument(f"A remote id has {REMOTE_ID_SIZE} bytes, not {len(remote_id)}")


def _is_valid(rows: bytes) -> bool:
    if not rows or len(rows) % _ROW.size:
        return False
    return _are_rows([(item[0], item[1]) for item in _ROW.iter_unpack(rows)])


def _are_rows(pairs: Sequence[tuple[int, int]]) -> bool:
    generations = [generation for generation, _ in pairs]
    return (
        generations[0] > 0
        and generations == sorted(set(generations))
        and {algorithm for _, algorithm in pairs} <= set(Algorithm)
    )


# ---------------------------------------------------------------------- slots


class SlotHeader(NamedTuple):
    """What a key slot shows without a secret."""

    kind: SecretKind
    generation: int
    """The newest generation that it holds."""
    salt: bytes
    commitment: bytes
    """Tells whether a secret is the right one before anything is decrypted."""
    cost: Cost | None
    """None for what is as random as a key can be."""
    machine: bytes | None = None
    """The id of the machine that it is for, which was invited."""
    exchange: bytes | None = None
    """A public key that was made for the slot of a machine."""


class KeySlot(NamedTuple):
    """The record in ``keys/<32 hex>``."""

    header: bytes
    """An encoded :class:`SlotHeader`, as it was authenticated."""
    wrapped: bytes
    signature: bytes = b""
    """The owner's, of the slot of a machine."""


def encode_slot(slot: KeySlot) -> bytes:
    """Returns the payload of a slot."""
    fields = {name: value for name, value in slot._asdict().items() if value}
    return pack({"version": 1, **fields})


def decode_slot(payload: bytes) -> KeySlot:
    """Returns the slot of a payload; raises Corrupt, or UnsupportedFormat for an unknown kind."""
    fields = Fields(unpack(payload, "key slot"), "key slot")
    fields.require_version(1)
    slot = KeySlot(
        fields.get("header", bytes),
        fields.get("wrapped", bytes),
        fields.optional("signature", bytes) or b"",
    )
    decode_header(slot.header)
    return slot


def encode_header(header: SlotHeader) -> bytes:
    """Returns the bytes of a header, which the keys of the slot are authenticated with."""
    fields: dict[str, Any] = {**header._asdict(), "kind": int(header.kind)}
    return pack({name: value for name, value in fields.items() if value is not None})


def decode_header(data: bytes) -> SlotHeader:
    """Returns a header whose costs a reader may pay; raises Corrupt or UnsupportedFormat."""
    what = "key slot"
    fields = Fields(unpack(data, what), what)
    number = fields.get("kind", int)
    if number not in set(SecretKind):
        raise UnsupportedFormat(
            f"A key slot is for kind {number}, which this treesnap does not read"
        )
    kind = SecretKind(number)
    header = SlotHeader(
        kind,
        fields.size("generation"),
        fields.get("salt", bytes),
        fields.get("commitment", bytes),
        None if kind.is_random else _decode_cost(fields.get("cost", tuple)),
    )
    if kind is SecretKind.MACHINE_KEY:
        header = header._replace(
            machine=fields.get("machine", bytes), exchange=fields.get("exchange", bytes)
        )
        require(len(header.machine or b"") == SIGNER_ID_SIZE, what, "its machine is an odd id")
        require(len(header.exchange or b"") == KEY_SIZE, what, "its key has a wrong size")
    require(len(header.salt) == SALT_SIZE, what, "its salt has a wrong size")
    require(len(header.commitment) == KEY_SIZE, what, "its commitment has a wrong size")
    return header


def _decode_cost(value: tuple[Any, ...]) -> Cost:
    is_cost = len(value) == len(COST_MAX) and all(type(number) is int for number in value)
    require(is_cost, "key slot", "its cost is not three numbers")
    cost = Cost(*value)
    problem = _cost_problem(cost)
    require(problem is None, "key slot", f"{problem}")
    return cost


def _cost_problem(cost: Cost) -> str | None:
    """Returns why a cost is refused, or None."""
    if any(number > limit for number, limit in zip(cost, COST_MAX, strict=True)):
        return f"it asks Argon2id for {cost}, and {COST_MAX} are the most"
    if cost.passes < 1 or cost.lanes < 1 or cost.memory_kib < 8 * cost.lanes:
        return f"Argon2id cannot make {cost}"
    return None


KEY_SLOT = Format(FileKind.KEY_SLOT, encode_slot, decode_slot, SLOT_SIZE_MAX)


class OpenedSlot(NamedTuple):
    """The keys of a remote, and the slot that they were in."""

    name: str
    keys: MasterKeys | ReadKeys


def new_slot(
    keys: MasterKeys,
    secret: Secret,
    remote_id: bytes,
    cost: Cost | None = None,
    random: Random = os.urandom,
) -> RemoteFile:
    """Returns a new key slot, which holds the keys for a secret.

    To change a passphrase, or to pass on another generation, write the new slot first and then
    remove the old one. Raises InvalidArgument for a cost that no reader would pay.
    """
    _require_remote_id(remote_id)
    paid = None if secret.kind.is_random else cost or Cost()
    if paid is not None and (problem := _cost_problem(paid)) is not None:
        raise InvalidArgument(f"A key slot cannot be read: {problem}")
    token = keys.slot_token(random(RANDOM_SIZE), secret.kind, paid, remote_id)
    name, salt = f"keys/{token[:SALT_SIZE].hex()}", token[SALT_SIZE:]
    made = secret.stretched(salt, paid)
    header = encode_header(SlotHeader(secret.kind, keys.newest, salt, made.commitment, paid))
    wrapped = keys.wrapped(made.cipher, _associated(remote_id, name, header))
    return RemoteFile(name, KEY_SLOT.seal(KeySlot(header, wrapped)))


def new_machine_slot(
    keys: MasterKeys, machine: Recipient, remote_id: bytes, random: Random = os.urandom
) -> RemoteFile:
    """Returns a new key slot, which holds the read keys for a machine; raises Corrupt for a key of
    it that is none.
    """
    kind = SecretKind.MACHINE_KEY
    token = keys.slot_token(random(RANDOM_SIZE), kind, None, remote_id, machine.exchange)
    name, salt = f"keys/{token[:SALT_SIZE].hex()}", token[SALT_SIZE:]
    own = _library().shared_key(keys.exchange_secret(token, remote_id))
    public = _public_of(own)
    made = _slot_keys(_exchanged(own, machine.exchange, salt, public, machine.exchange))
    header = encode_header(
        SlotHeader(kind, keys.newest, salt, made.commitment, None, machine.id, public)
    )
    rows = keys.read_rows(remote_id)
    wrapped = made.cipher.encrypt(_WRAPPING_NONCE, rows, _associated(remote_id, name, header))
    signature = keys.of_remote(remote_id)[keys.newest].owner.sign(
        _signed_slot(remote_id, name, header, wrapped)
    )
    return RemoteFile(name, KEY_SLOT.seal(KeySlot(header, wrapped, signature)))


def _signed_slot(remote_id: bytes, name: str, header: bytes, wrapped: bytes) -> bytes:
    """Returns what the owner signs of the slot of a machine."""
    return b"treesnap machine slot 1" + _associated(remote_id, name, header) + wrapped


def slot_header(name: str, data: bytes) -> SlotHeader:
    """Returns what a slot shows without a secret; raises Corrupt or UnsupportedFormat."""
    return decode_header(_read(name, data).header)


def open_slot(name: str, data: bytes, secret: Secret, remote_id: bytes) -> MasterKeys | ReadKeys:
    """Returns the keys of one slot.

    Raises RemoteLocked for another secret than the slot's, Corrupt, or UnsupportedFormat.
    """
    _require_remote_id(remote_id)
    slot = _read(name, data)
    header = decode_header(slot.header)
    kind = header.kind.words
    if header.kind is not secret.kind:
        raise RemoteLocked(f"Key slot {name!r} has a {kind}, not a {secret.kind.words}", path=name)
    made = secret.stretched(header.salt, header.cost, header.exchange or b"")
    if not compare_digest(made.commitment, header.commitment):
        raise RemoteLocked(f"Key slot {name!r} has another {kind}", path=name)
    associated = _associated(remote_id, name, slot.header)
    kind_of_keys = ReadKeys if secret.owner is not None else MasterKeys
    keys = kind_of_keys.unwrapped(made.cipher, slot.wrapped, associated)
    if keys is None or keys.newest != header.generation:
        raise damaged(name, "holds keys that are not authentic")
    if isinstance(keys, ReadKeys):
        assert secret.owner is not None
        signed = _signed_slot(remote_id, name, slot.header, slot.wrapped)
        is_of_owner = is_signed(keys.owner.public, slot.signature, signed)
        if not is_of_owner or not keys.is_of(secret.owner, remote_id):
            raise damaged(name, "is not from an owner of the remote that this machine trusts")
    return keys


def open_slots(slots: Mapping[str, bytes], secret: Secret, remote_id: bytes) -> OpenedSlot:
    """Returns the keys of the slot that a secret opens, of several the one with the newest keys.

    Other slots may be damaged. Raises RemoteLocked where none is for this secret; where that
    cannot be known, the Corrupt or UnsupportedFormat of a slot.
    """
    damages: list[Corrupt] = []
    unsupported: list[UnsupportedFormat] = []
    fitting: list[tuple[int, str]] = []
    work_kib: dict[str, int] = {}
    for name, data in slots.items():
        try:
            header = slot_header(name, data)
        except Corrupt as error:
            damages.append(error)
        except UnsupportedFormat as error:
            unsupported.append(error)
        else:
            if header.kind is secret.kind and (header.machine or b"") == secret.machine:
                fitting.append((header.generation, name))
                work_kib[name] = header.cost.work_kib if header.cost is not None else 0
    is_locked = False
    left_kib = _WORK_MAX_KIB
    for _, name in sorted(fitting, reverse=True):
        left_kib -= work_kib[name]
        if left_kib < 0:
            raise RemoteLocked(
                f"The key slots of the remote cost too much to try all {len(fitting)} of them"
            )
        try:
            return OpenedSlot(name, open_slot(name, slots[name], secret, remote_id))
        except RemoteLocked:
            is_locked = True
        except Corrupt as error:
            damages.append(error)
    if damages and not is_locked:
        raise damages[0]
    if unsupported and len(unsupported) == len(slots):
        raise unsupported[0]
    if secret.machine:
        raise RemoteLocked(
            "No key slot of the remote is for this machine: it was revoked, or the slot is gone"
        )
    words = secret.kind.words
    besides = f", {len(damages)} damaged" if damages else ""
    raise RemoteLocked(
        f"This {words} opens no key slot of the remote "
        f"({count_text(len(slots), 'slot')}, {len(fitting)} with a {words}{besides})"
    )


def _read(name: str, data: bytes) -> KeySlot:
    """Returns the record of a slot; raises Corrupt or UnsupportedFormat, both with its name."""
    if _SLOT_NAME.match(name) is None:
        raise damaged(name, "does not have the name of a key slot")
    if len(data) > SLOT_SIZE_MAX:
        raise damaged(name, "is too large for a key slot")
    try:
        check_header(data, FileKind.KEY_SLOT, name)
    except (Corrupt, UnsupportedFormat) as error:
        raise damaged(name, "is not a key slot") from error
    try:
        return KEY_SLOT.unseal(data, name)
    except Corrupt as error:
        raise damaged(name, f"is not a whole key slot: {error.message}") from error
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"Remote file {name!r}: {error.message}", path=name) from error


def _associated(remote_id: bytes, name: str, header: bytes) -> bytes:
    """Returns what the keys in a slot are authenticated with."""
    return b"treesnap key slot 1" + remote_id + name.encode("ascii") + header
