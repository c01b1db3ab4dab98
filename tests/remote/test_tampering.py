"""Whatever is done to a file of an encrypted remote, it is refused by name."""

from __future__ import annotations

from itertools import permutations

import pytest

from formats.independent_remote_reader import File, Generation
from sampling import evenly
from treesnap.core.model.errors import Corrupt, ErrorCode, GenerationMissing
from treesnap.core.model.ids import expanded
from treesnap.remote.keys import Algorithm, MasterKeys
from treesnap.remote.sealing import SEGMENT_SIZE, Encrypted

REMOTE_ID = bytes(range(16))
KEYS = MasterKeys.new().rotated()
PREFIX = "packs/0000000000000003-"
GIVEN = "state/0000000000000007"
STORED_SIZE = SEGMENT_SIZE + 16
SMALL = b"forty bytes that no machine may change ."
LARGE = expanded(b"large", 4 * SEGMENT_SIZE - 20_000)
WHOLE = [(0, len(LARGE))]
SEALER = Encrypted(KEYS, REMOTE_ID)


def refused(name: str, data: bytes, sealer: Encrypted = SEALER) -> Corrupt:
    """Returns the error for a file, which names it."""
    with pytest.raises(Corrupt) as caught:
        sealer.open(name, data)
    error = caught.value
    assert (error.path, error.code) == (name, ErrorCode.REMOTE_DAMAGED)
    assert repr(name) in str(error)
    return error


def small_files() -> list[tuple[str, bytes]]:
    """Returns a file with a random name, and one with a given name."""
    return [SEALER.seal(PREFIX, SMALL), (GIVEN, SEALER.seal_as(GIVEN, SMALL))]


def test_the_files_can_be_opened_as_they_are():
    assert [SEALER.open(*file) for file in small_files()] == [SMALL, SMALL]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_flipped_bit_of_a_small_file_is_noticed(algorithm):
    sealer = Encrypted(KEYS.rotated(algorithm), REMOTE_ID)
    for name, data in (sealer.seal(PREFIX, SMALL), (GIVEN, sealer.seal_as(GIVEN, SMALL))):
        for bit in range(8 * len(data)):
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
        at = ((number - 1) // 8 - 16) // STORED_SIZE

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
        SEALER.open_ranges(name, len(LARGE), WHOLE, [data[16:]])
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
        for size in range(len(data)):
            refused(name, data[:size])
        for extra in (b"\0", b"x" * 16, data[16:], data, bytes(STORED_SIZE)):
            refused(name, data + extra)


def test_cuts_of_a_large_file_are_noticed():
    name, data = SEALER.seal(PREFIX, LARGE)
    ends = [16 + segment * STORED_SIZE + off for segment in range(4) for off in (-1, 0, 1, 16, 17)]
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
    content = LARGE + expanded(b"more", 4 * SEGMENT_SIZE - len(LARGE) - 8)
    name, data = SEALER.seal(PREFIX, content)
    assert len(data) == 16 + 4 * STORED_SIZE
    segments = [data[16 + n * STORED_SIZE :][:STORED_SIZE] for n in range(4)]

    for order in arrangements():
        refused(name, data[:16] + b"".join(segments[number] for number in order))
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
        start, end = 16 + number * STORED_SIZE, 16 + (number + 1) * STORED_SIZE
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


def test_a_state_under_another_number_or_with_another_salt_is_refused():
    data, second = SEALER.seal_as(GIVEN, SMALL), SEALER.seal_as(GIVEN, SMALL)

    refused("state/0000000000000008", data)
    refused("index/0000000000000007", data)
    refused(GIVEN, data[:16] + second[16:32] + data[32:])
    refused(GIVEN, data[:16] + bytes(16) + data[32:])
    refused(f"state/{data[16:32].hex()}", data[:16] + data[32:])


OTHERS = {
    "another remote": Encrypted(KEYS, bytes(16)),
    "other keys": Encrypted(MasterKeys.new().rotated(), REMOTE_ID),
}


@pytest.mark.parametrize("sealer", OTHERS.values(), ids=OTHERS)
def test_a_file_of_other_keys_or_another_remote_is_refused(sealer):
    for name, data in [*small_files(), SEALER.seal(PREFIX, LARGE)]:
        refused(name, data, sealer)
    name, data = sealer.seal(PREFIX, LARGE)
    assert is_refused(name, data, WHOLE)


@pytest.mark.parametrize("newer", Algorithm)
def test_a_file_of_one_generation_is_none_of_another(newer):
    sealer = Encrypted(KEYS.rotated(newer), REMOTE_ID)
    for generation, algorithm in ((2, 1), (3, newer)):
        for name, data in small_files():
            header = data[:10] + bytes([algorithm, 1]) + generation.to_bytes(4, "little")
            if header != data[:16]:
                refused(name, header + data[16:], sealer)
            else:
                assert sealer.open(name, data) == SMALL


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
        assert rotated.open_ranges(name, len(LARGE), WHOLE, [data[16:]]) == [LARGE]


def stream_of(content: bytes, size: int, padding: bytes = b"") -> bytes:
    """Returns what is encrypted for a content, as a holder of the keys may make it up."""
    return content + padding + size.to_bytes(8, "little")


LONG = bytes(16_377)
STREAMS = {
    "more padding": stream_of(SMALL, len(SMALL), b"\0"),
    "a smaller size": stream_of(SMALL, len(SMALL) - 1),
    "a larger size": stream_of(SMALL, len(SMALL) + 1),
    "the largest size": stream_of(SMALL, (1 << 64) - 1),
    "a byte in the padding": stream_of(LONG, len(LONG), bytes(1022) + b"\1"),
    "another byte in the padding": stream_of(LONG, len(LONG), b"\1" + bytes(1022)),
    "a smaller size inside the padding": stream_of(LONG, len(LONG) - 1, bytes(1022) + b"\1"),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_a_stream_that_no_writer_makes_is_refused(stream):
    """Equal contents are equal streams, also where a holder of the keys wants otherwise."""
    name, header = f"packs/{'0' * 32}", b"TREESNAP\x12\x01\1\1\1\0\0\0"
    file = File(REMOTE_ID, {1: Generation(1, bytes(32))}, name, header)
    sealer = Encrypted(MasterKeys(b"\1\0\0\0\1" + bytes(32)), REMOTE_ID)

    def sealed(data: bytes) -> bytes:
        return header + file.cipher.encrypt(bytes(11) + b"\1", data, file.associated)

    assert sealer.open(name, sealed(stream_of(SMALL, len(SMALL)))) == SMALL
    assert sealer.open(name, sealed(stream_of(LONG, len(LONG), bytes(1023)))) == LONG
    refused(name, sealed(stream), sealer)
