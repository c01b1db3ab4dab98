"""Files of a remote: names, sizes, whole files and ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.model.errors import Corrupt, ErrorCode, InvalidArgument
from treesnap.core.model.ids import expanded
from treesnap.remote.keys import Algorithm, MasterKeys
from treesnap.remote.sealing import SEGMENT_SIZE, Encrypted, Plain, generation_of, padded_size

REMOTE_ID = bytes(range(16))
KEYS = MasterKeys.new()
PREFIX = "packs/0000000000000003-"
GIVEN = "state/0000000000000007"
CONTENT = expanded(b"content", 5 * SEGMENT_SIZE)
SEALERS = {
    "plain": Plain(),
    "AES": Encrypted(KEYS, REMOTE_ID),
    "ChaCha": Encrypted(MasterKeys.new(Algorithm.CHACHA20_POLY1305), REMOTE_ID),
    "rotated": Encrypted(KEYS.rotated().rotated(Algorithm.CHACHA20_POLY1305), REMOTE_ID),
}
BOUNDARIES = [0, 1, 16_384, SEGMENT_SIZE, 2 * SEGMENT_SIZE, 4 * SEGMENT_SIZE]
SIZES = st.sampled_from(BOUNDARIES).flatmap(
    lambda size: st.integers(max(0, size - 20), size + 20)
) | st.integers(0, len(CONTENT))


@pytest.fixture(params=SEALERS)
def sealer(request):
    """Each way to store a content."""
    return SEALERS[request.param]


@given(size=SIZES, name=st.sampled_from(sorted(SEALERS)))
def test_a_content_comes_back(size, name):
    sealer, content = SEALERS[name], CONTENT[:size]

    file, given = sealer.seal(PREFIX, content), sealer.seal_as(GIVEN, memoryview(content))

    assert sealer.open(*file) == sealer.open(GIVEN, given) == content
    if isinstance(sealer, Encrypted):
        assert len(file.data) == sealer.sealed_size(file.name, size)
        assert len(given) == sealer.sealed_size(GIVEN, size)


@given(
    size=SIZES,
    name=st.sampled_from(sorted(SEALERS)),
    wanted=st.lists(st.tuples(SIZES, SIZES), max_size=5),
)
def test_ranges_come_back_out_of_the_segments_that_hold_them(size, name, wanted):
    sealer, content = SEALERS[name], CONTENT[:size]
    file = sealer.seal(PREFIX, content)

    ranges = sealer.ranges(file.name, size, wanted)
    fetched = [file.data[start : start + count] for start, count in ranges]

    assert [len(part) for part in fetched] == [count for _, count in ranges]
    assert sealer.open_ranges(file.name, size, wanted, fetched) == [
        content[start : start + count] for start, count in wanted
    ]


def test_ranges_that_share_a_segment_fetch_it_once():
    sealer = SEALERS["AES"]
    stored = SEGMENT_SIZE + 16
    wanted = [(3 * SEGMENT_SIZE + 5, 1), (10, 1), (SEGMENT_SIZE - 1, 2), (20, 0), (30, 5)]
    touching = [(2 * SEGMENT_SIZE, 1), (SEGMENT_SIZE + 1, 1)]
    name = sealer.seal(PREFIX, CONTENT).name

    assert sealer.ranges(name, len(CONTENT), wanted) == [
        (16, 2 * stored),
        (16 + 3 * stored, stored),
    ]
    assert sealer.ranges(name, len(CONTENT), touching) == [(16 + stored, 2 * stored)]


@pytest.mark.parametrize("wanted", [[(-1, 5)], [(0, -1)]])
def test_an_impossible_range_is_refused(sealer, wanted):
    name = sealer.seal(PREFIX, CONTENT).name

    with pytest.raises(InvalidArgument):
        sealer.ranges(name, len(CONTENT), wanted)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_range_that_was_not_read_whole_is_refused(sealer, change):
    name, data = sealer.seal(PREFIX, CONTENT)
    ((start, size),) = sealer.ranges(name, len(CONTENT), [(5, 10)])

    with pytest.raises(Corrupt) as caught:
        sealer.open_ranges(name, len(CONTENT), [(5, 10)], [data[start : start + size + change]])

    assert (caught.value.path, caught.value.code) == (name, ErrorCode.REMOTE_DAMAGED)


def test_a_range_that_is_absent_is_refused(sealer):
    name = sealer.seal(PREFIX, CONTENT).name

    with pytest.raises(Corrupt):
        sealer.open_ranges(name, len(CONTENT), [(5, 10)], [])


def test_names_are_the_prefix_and_32_digits_that_never_repeat(sealer):
    names = {sealer.seal(prefix, b"same").name for prefix in (PREFIX, "index/") for _ in range(9)}

    assert len(names) == 18
    assert {name[:-32] for name in names} == {PREFIX, "index/"}
    assert {len(bytes.fromhex(name[-32:])) for name in names} == {16}


def test_equal_contents_are_encrypted_to_unequal_files():
    sealer = SEALERS["AES"]

    first, second = sealer.seal(PREFIX, CONTENT), sealer.seal(PREFIX, CONTENT)
    states = sealer.seal_as(GIVEN, b"same"), sealer.seal_as(GIVEN, b"same")

    assert first.data[16:] != second.data[16:]
    assert states[0][32:] != states[1][32:]


def test_a_plain_file_is_its_content():
    assert SEALERS["plain"].seal(PREFIX, CONTENT).data == CONTENT


PREFIXES = ["", "packs", "packs/3-", "Packs/", "packs/../", "/", f"{PREFIX}{PREFIX}", "packs/\n"]
NAMES = ["format", "state/7", "state/", f"{PREFIX}7", f"packs/{'0' * 32}", "state/00000000000000F7"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_odd_prefix_is_refused(sealer, prefix):
    with pytest.raises(InvalidArgument, match="not a name"):
        sealer.seal(prefix, b"")


@pytest.mark.parametrize("name", NAMES)
def test_a_content_gets_no_name_that_is_odd_or_would_be_its_salt(sealer, name):
    with pytest.raises(InvalidArgument, match="not a name"):
        sealer.seal_as(name, b"")


@pytest.mark.parametrize(
    "name", ["format", "state/7", f"{PREFIX}{'0' * 31}", "packs/é", f"{GIVEN}\n"]
)
def test_a_file_with_an_odd_name_is_not_opened(name):
    with pytest.raises(Corrupt, match="has a name") as caught:
        SEALERS["AES"].open(name, SEALERS["AES"].seal_as(GIVEN, b""))

    assert caught.value.path == name


def test_sizes_are_those_of_the_format_page():
    sizes = [0, 16_375, 16_376, 16_377, 65_528, 65_529, 32 << 20]

    assert [SEALERS["AES"].sealed_size(f"packs/{'0' * 32}", size) for size in sizes] == [
        40, 16_415, 16_416, 17_440, 65_568, 67_632, 34_611_472,
    ]  # fmt: skip


@given(st.integers(0, 1 << 50))
def test_padding_adds_a_sixteenth_at_most_and_hides_the_last_bits(size):
    padded = padded_size(size)

    assert size <= padded <= size * 17 // 16
    assert padded_size(padded) == padded
    if size >= 16_384:
        significant = padded.bit_length() - (padded & -padded).bit_length() + 1
        assert significant <= padded.bit_length().bit_length() + 1
    else:
        assert padded == size


def test_only_sizes_that_a_content_leads_to_are_accepted():
    sealer, name, limit = SEALERS["AES"], f"packs/{'0' * 32}", 90_000
    possible = {sealer.sealed_size(name, size) for size in range(limit)}

    def is_accepted(data):
        with pytest.raises(Corrupt) as refused:  # it is not an encrypted file either
            sealer.open(name, data)
        return "has a size that no file has" not in str(refused.value)

    zeros = memoryview(bytes(limit))
    accepted = {size for size in range(limit) if is_accepted(zeros[:size])}
    assert accepted == {size for size in possible if size < limit}


def test_a_file_says_its_generation_in_its_first_bytes():
    name, data = SEALERS["rotated"].seal(PREFIX, CONTENT)

    assert generation_of(name, data[:16]) == 3


@pytest.mark.parametrize(
    "data", [b"", b"TREESNAP", bytes(16), b"TREESNAP\x01\x01\x00\x01" + bytes(4)]
)
def test_a_file_that_is_not_encrypted_has_no_generation(data):
    with pytest.raises(Corrupt):
        generation_of("packs/1", data)
