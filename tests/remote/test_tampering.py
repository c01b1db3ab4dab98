"""Whatever is done to a file of an encrypted remote, it is refused by name."""

from __future__ import annotations

from itertools import permutations

import pytest

from formats.independent_remote_reader import File, Generation, padded
from sampling import evenly, sized
from treesnap.core.model.errors import Corrupt, ErrorCode, GenerationMissing
from treesnap.core.model.ids import expanded
from treesnap.remote.keys import Algorithm, MasterKeys, Signer
from treesnap.remote.sealing import SEGMENT_SIZE, Encrypted, Plain, _encrypted

pytestmark = pytest.mark.sampled(2)

REMOTE_ID = bytes(range(16))
KEYS = MasterKeys.new().rotated()
PREFIX = "packs/0000000000000003-"
GIVEN = "state/0000000000000007"
COMMIT = f"commits/{3:016x}-{5:016x}-{1:08x}-"
STORED_SIZE = SEGMENT_SIZE + 16
SMALL = b"forty bytes that no machine may change ."
LARGE = expanded(b"large", 4 * SEGMENT_SIZE - 20_000)
WHOLE = [(0, len(LARGE))]
SEALER = Encrypted(KEYS, REMOTE_ID)
PLAIN = Plain(REMOTE_ID)
SEED = b"s" * 32
HEAD_SIZE = 32 + 140
"""Of a signed file, before its statement."""


def signer_of(sealer: Encrypted | Plain) -> Signer:
    return sealer.signer(SEED)


def opened(name: str, data: bytes, sealer: Encrypted | Plain = SEALER) -> bytes:
    """Returns the content of a file."""
    if name.startswith("packs/"):
        return sealer.open(name, data)
    signer = signer_of(sealer)
    return sealer.open_signed(name, data, {signer.id: signer.public}.get).content


def refused(name: str, data: bytes, sealer: Encrypted | Plain = SEALER) -> Corrupt:
    """Returns the error for a file, which names it."""
    with pytest.raises(Corrupt) as caught:
        opened(name, data, sealer)
    error = caught.value
    assert (error.path, error.code) == (name, ErrorCode.REMOTE_DAMAGED)
    assert repr(name) in str(error)
    return error


def small_files(sealer: Encrypted | Plain = SEALER) -> list[tuple[str, bytes]]:
    """Returns a file of each kind: what a machine signs, with an encrypted content and with a clear
    one, and of an encrypted remote what no machine signs."""
    signer = signer_of(sealer)
    files = [
        sealer.seal(COMMIT, SMALL, signer, b"what it saw"),
        (GIVEN, sealer.sign(GIVEN, SMALL, signer)),
    ]
    return [*files, sealer.seal(PREFIX, SMALL)] if isinstance(sealer, Encrypted) else files


@pytest.mark.parametrize("sealer", [SEALER, PLAIN])
def test_the_files_can_be_opened_as_they_are(sealer):
    assert {opened(*file, sealer) for file in small_files(sealer)} == {SMALL}


@pytest.mark.parametrize(
    "sealer", [PLAIN, *(Encrypted(KEYS.rotated(each), REMOTE_ID) for each in Algorithm)]
)
def test_every_flipped_bit_of_a_small_file_is_noticed(sealer):
    for name, data in small_files(sealer):
        bits = range(8 * len(data))
        for bit in bits[:: sized(11, 1)]:
            refused(name, flipped(data, bit), sealer)


def flipped(data: bytes, bit: int) -> bytes:
    """Returns a file with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_flipped_bits_of_a_large_file_are_noticed_whole_and_in_ranges():
    name, data = SEALER.seal(PREFIX, LARGE)
    for number in evenly(8 * len(data), 60):
        changed = flipped(data, number - 1)
        at = ((number - 1) // 8 - 32) // STORED_SIZE

        error = refused(name, changed)
        if at >= 0:
            assert f"segment {at} was changed" in str(error)
            assert f"segment {at} was changed" in str(refused_in_ranges(name, changed))
        for segment in range(4):
            wanted = [(segment * SEGMENT_SIZE, 100)]
            assert is_refused(name, changed, wanted) == (segment == at)


def refused_in_ranges(name: str, data: bytes) -> Corrupt:
    """Returns the error for a file that is read in ranges, from its first byte to its last."""
    with pytest.raises(Corrupt) as caught:
        SEALER.open_ranges(name, len(LARGE), WHOLE, [data[32:]])
    return caught.value


def is_refused(name: str, data: bytes, wanted: list[tuple[int, int]]) -> bool:
    """Returns whether ranges are refused; else they are what was stored."""
    fetched = [data[at : at + size] for at, size in SEALER.ranges(name, len(LARGE), wanted)]
    try:
        found = SEALER.open_ranges(name, len(LARGE), wanted, fetched)
    except Corrupt as error:
        return (error.path, error.code) == (name, ErrorCode.REMOTE_DAMAGED)
    assert found == [LARGE[start : start + size] for start, size in wanted]
    return False


def test_every_cut_and_extension_of_a_small_file_is_noticed():
    for name, data in small_files():
        for size in (*range(min(len(data), 300)), *range(300, len(data), 61), len(data) - 1):
            refused(name, data[:size])
        for extra in (b"\0", b"x" * 16, data[32:], data, bytes(STORED_SIZE)):
            refused(name, data + extra)


def test_cuts_of_a_large_file_are_noticed():
    name, data = SEALER.seal(PREFIX, LARGE)
    ends = [32 + segment * STORED_SIZE + off for segment in range(4) for off in (-1, 0, 1, 16, 17)]
    for size in [*ends, *(number - 1 for number in evenly(len(data), 100))]:
        refused(name, data[:size])


def arrangements() -> list[tuple[int, ...]]:
    """Returns every order of four segments but the right one, and each in the place of another."""
    orders = [order for order in permutations(range(4)) if order != (0, 1, 2, 3)]
    for place in range(4):
        for other in set(range(4)) - {place}:
            repeated = [0, 1, 2, 3]
            repeated[place] = other
            orders.append(tuple(repeated))
        orders.append(tuple(number for number in range(4) if number != place))
        orders.append((0, 1, 2, 3, place))
    return orders


def test_segments_in_another_order_are_noticed_whole_and_in_ranges():
    # The last segment is as large as the others, so that sizes do not give anything away.
    content = LARGE + expanded(b"more", 14_000)
    while True:
        name, data = SEALER.seal(PREFIX, content)
        if len(data) == 32 + 4 * STORED_SIZE:
            break
    segments = [data[32 + n * STORED_SIZE :][:STORED_SIZE] for n in range(4)]

    for order in arrangements():
        refused(name, data[:32] + b"".join(segments[number] for number in order))
    for place in range(4):
        for other in range(4):
            wanted = [(place * SEGMENT_SIZE + 7, 100)]
            if other == place:
                assert SEALER.open_ranges(name, len(content), wanted, [segments[other]])
                continue
            with pytest.raises(Corrupt):
                SEALER.open_ranges(name, len(content), wanted, [segments[other]])


def test_segments_of_another_file_are_noticed():
    (name, data), (_, other) = SEALER.seal(PREFIX, LARGE), SEALER.seal(PREFIX, LARGE)
    for number in range(4):
        start, end = 32 + number * STORED_SIZE, 32 + (number + 1) * STORED_SIZE
        mixed = data[:start] + other[start:end] + data[end:]

        refused(name, mixed)
        assert is_refused(name, mixed, WHOLE)


def test_a_file_of_another_size_is_noticed_in_ranges():
    """Another content size than the true one tells another segment to be the last."""
    name, data = SEALER.seal(PREFIX, LARGE)
    for size in (len(LARGE) - SEGMENT_SIZE, len(LARGE) + SEGMENT_SIZE):
        wanted = [(0, size)]
        fetched = [data[at : at + count] for at, count in SEALER.ranges(name, size, wanted)]
        with pytest.raises(Corrupt):
            SEALER.open_ranges(name, size, wanted, fetched)


@pytest.mark.parametrize("prefix", ["packs/0000000000000004-", "packs/", "index/0000000000000003-"])
def test_a_file_under_another_name_is_refused(prefix):
    name, data = SEALER.seal(PREFIX, LARGE)
    digits = name[-32:]
    names = [prefix + digits, PREFIX + digits[:-1] + ("1" if digits[-1] == "0" else "0")]

    for other in names:
        refused(other, data)
        assert is_refused(other, data, WHOLE)


@pytest.mark.parametrize("sealer", [SEALER, PLAIN])
def test_what_is_signed_under_one_name_is_refused_under_another(sealer):
    signer = signer_of(sealer)
    data = sealer.sign(GIVEN, SMALL, signer)
    name, commit = sealer.seal(COMMIT, SMALL, signer)

    refused("state/0000000000000008", data, sealer)
    refused("members/0000000000000007", data, sealer)
    refused(name.replace("commits", "deletions"), commit, sealer)
    refused(name.replace("-00000001-", "-00000002-"), commit, sealer)


@pytest.mark.parametrize("sealer", [SEALER, PLAIN])
def test_what_another_machine_signs_is_refused(sealer):
    """Also what a holder of the keys puts after the head that a member has signed."""
    other = sealer.signer(b"o" * 32)
    refused(GIVEN, sealer.sign(GIVEN, SMALL, other), sealer)
    refused(*sealer.seal(COMMIT, SMALL, other, b"what it saw"), sealer)
    signer = signer_of(sealer)
    name, data = sealer.seal(COMMIT, SMALL, signer, b"")
    stranger = sealer.seal(COMMIT, SMALL, other, b"").data
    refused(name, data[:108] + stranger[108:172] + data[172:], sealer)
    refused(name, data[:36] + stranger[36:44] + data[44:], sealer)


def test_a_content_that_its_machine_did_not_sign_is_refused():
    """A holder of the keys encrypts another one under a head that a member has signed."""
    name, data = SEALER.seal(COMMIT, SMALL, signer_of(SEALER))
    keys = SEALER._generations[KEYS.newest]

    forged = _encrypted(keys, name, data[:HEAD_SIZE], b"weeds")

    assert "has another content than its machine signed" in str(refused(name, forged))


OTHERS = {
    "another remote": Encrypted(KEYS, bytes(16)),
    "other keys": Encrypted(MasterKeys.new().rotated(), REMOTE_ID),
}


@pytest.mark.parametrize("sealer", OTHERS.values(), ids=OTHERS)
def test_a_file_of_other_keys_or_another_remote_is_refused(sealer):
    encrypted = [file for file in small_files() if not file[0].startswith("state/")]
    for name, data in [*encrypted, SEALER.seal(PREFIX, LARGE)]:
        refused(name, data, sealer)
    name, data = sealer.seal(PREFIX, LARGE)
    assert is_refused(name, data, WHOLE)


@pytest.mark.parametrize("newer", Algorithm)
def test_a_file_of_one_generation_is_none_of_another(newer):
    sealer = Encrypted(KEYS.rotated(newer), REMOTE_ID)
    for generation, algorithm in ((2, 1), (3, newer)):
        for name, data in small_files():
            clear = name.startswith("state/")
            mode = b"\0\0" if clear else bytes([algorithm, 1])
            header = data[:10] + mode + generation.to_bytes(4, "little")
            if header != data[:16]:
                refused(name, header + data[16:], sealer)
            else:
                assert opened(name, data, sealer) == SMALL


def test_a_generation_that_is_not_at_hand_is_named():
    newer = Encrypted(KEYS.rotated(), REMOTE_ID)
    name, data = newer.seal(PREFIX, LARGE)

    error = refused(name, data)

    assert isinstance(error, GenerationMissing)
    assert error.generation == 3
    assert str(error).endswith("needs key generation 3, and those at hand are 1, 2")
    assert is_refused(name, data, WHOLE)


def test_files_of_all_generations_are_opened_after_a_rotation():
    rotated = Encrypted(KEYS.rotated(Algorithm.CHACHA20_POLY1305), REMOTE_ID)
    for sealer in (Encrypted(KEYS, REMOTE_ID), rotated):
        name, data = sealer.seal(PREFIX, LARGE)

        assert rotated.open(name, data) == LARGE
        assert rotated.open_ranges(name, len(LARGE), WHOLE, [data[32:]]) == [LARGE]


def stream_of(content: bytes, file_size: int, said: int, padding: bytes = b"") -> bytes:
    """Returns what is encrypted for a content, as a holder of the keys may make it up."""
    zeros = bytes(file_size - len(content) - len(padding) - 8)
    return content + padding + zeros + said.to_bytes(8, "little")


STREAMS = {
    "more padding": (1, len(SMALL), b""),
    "a smaller size": (0, len(SMALL) - 1, b""),
    "a size of more than there is": (0, 1 << 20, b""),
    "the largest size": (0, (1 << 64) - 1, b""),
    "a byte in the padding": (0, len(SMALL), b"\1"),
    "another byte in the padding": (0, len(SMALL), bytes(1000) + b"\1"),
}


@pytest.mark.parametrize(("steps", "said", "padding"), STREAMS.values(), ids=STREAMS)
def test_a_stream_that_no_writer_makes_is_refused(steps, said, padding):
    """Equal contents are equal streams, also where a holder of the keys wants otherwise."""
    name = f"packs/{'0' * 32}"
    header = b"TREESNAP\x12\x02\1\1\1\0\0\0" + REMOTE_ID
    file = File(REMOTE_ID, {1: Generation(1, bytes(32))}, name, header)
    sealer = Encrypted(MasterKeys(b"\1\0\0\0\1" + bytes(32)), REMOTE_ID)
    size = padded(len(SMALL) + 8, file.draws)

    def sealed(stream: bytes) -> bytes:
        return header + file.cipher.encrypt(bytes(11) + b"\1", stream, file.associated)

    assert sealer.open(name, sealed(stream_of(SMALL, size, len(SMALL)))) == SMALL
    refused(name, sealed(stream_of(SMALL, size + 2048 * steps, said, padding)), sealer)
