"""Files of a remote: names, sizes, whole files and ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.model.errors import Corrupt, ErrorCode, InvalidArgument
from treesnap.core.model.ids import expanded
from treesnap.remote.keys import Algorithm, MasterKeys, Signer
from treesnap.remote.sealing import (
    SEGMENT_SIZE,
    STEP_MIN,
    Encrypted,
    KeyOf,
    Plain,
    generation_of,
    padded_size,
)

REMOTE_ID = bytes(range(16))
KEYS = MasterKeys.new()
PREFIX = "packs/0000000000000003-"
GIVEN = "state/0000000000000007"
CONTENT = expanded(b"content", 5 * SEGMENT_SIZE)
SEALERS = {
    "plain": Plain(REMOTE_ID),
    "AES": Encrypted(KEYS, REMOTE_ID),
    "ChaCha": Encrypted(MasterKeys.new(Algorithm.CHACHA20_POLY1305), REMOTE_ID),
    "rotated": Encrypted(KEYS.rotated().rotated(Algorithm.CHACHA20_POLY1305), REMOTE_ID),
}
BOUNDARIES = [0, 1, 16_384, SEGMENT_SIZE, 2 * SEGMENT_SIZE, 4 * SEGMENT_SIZE]
SIZES = st.sampled_from(BOUNDARIES).flatmap(
    lambda size: st.integers(max(0, size - 20), size + 20)
) | st.integers(0, len(CONTENT))


def signing(sealer) -> tuple[Signer, KeyOf]:
    """Returns what signs for a sealer, and what finds its public key."""
    signer = sealer.signer(b"s" * 32)
    return signer, {signer.id: signer.public}.get


@pytest.fixture(params=SEALERS)
def sealer(request):
    """Each way to store a content."""
    return SEALERS[request.param]


@given(size=SIZES, name=st.sampled_from(sorted(SEALERS)))
def test_a_content_comes_back(size, name):
    sealer, content = SEALERS[name], CONTENT[:size]

    signer, key_of = signing(sealer)
    file, given = sealer.seal(PREFIX, memoryview(content)), sealer.sign(GIVEN, content, signer)
    signed = sealer.seal(PREFIX, content, signer, b"statement")

    assert sealer.open(*file) == sealer.open_signed(GIVEN, given, key_of).content == content
    assert sealer.open_signed(*signed, key_of)[:2] == (b"statement", content)
    if isinstance(sealer, Encrypted):
        is_only = name != "rotated"
        assert len(file.data) <= sealer.sealed_size(file.name, size)
        assert not is_only or len(file.data) == sealer.sealed_size(file.name, size)


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
        (32, 2 * stored),
        (32 + 3 * stored, stored),
    ]
    assert sealer.ranges(name, len(CONTENT), touching) == [(32 + stored, 2 * stored)]


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

    assert first.data[32:] != second.data[32:]


def test_a_plain_file_is_its_content():
    assert SEALERS["plain"].seal(PREFIX, CONTENT).data == CONTENT


PREFIXES = ["", "packs", "packs/3", "Packs/", "packs/../", "/", f"{PREFIX}{PREFIX}", "packs/-"]
NAMES = ["format", "state/7", "state/", f"{PREFIX}7", f"packs/{'0' * 32}", "state/00000000000000F7"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_odd_prefix_is_refused(sealer, prefix):
    with pytest.raises(InvalidArgument, match="not a name"):
        sealer.seal(prefix, b"")


@pytest.mark.parametrize("name", NAMES)
def test_a_content_gets_no_name_that_is_odd_or_would_be_random(sealer, name):
    with pytest.raises(InvalidArgument, match="not a name"):
        sealer.sign(name, b"", signing(sealer)[0])


@pytest.mark.parametrize(
    "name", ["format", "state/7", f"{PREFIX}{'0' * 31}", "packs/é", f"{GIVEN}\n"]
)
def test_a_file_with_an_odd_name_is_not_opened(name):
    with pytest.raises(Corrupt, match="has a name") as caught:
        SEALERS["AES"].open(name, SEALERS["AES"].seal(PREFIX, b"").data)

    assert caught.value.path == name


def test_a_statement_that_no_reader_would_take_is_not_signed(sealer):
    signer, _ = signing(sealer)

    with pytest.raises(InvalidArgument, match="too long"):
        sealer.seal(PREFIX, b"", signer, bytes((60 << 10) + 1))


DRAWS = st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))


@given(st.integers(8, 1 << 50), DRAWS)
def test_padding_adds_less_than_three_steps_and_leaves_steps(size, draws):
    step = max(STEP_MIN, 2 ** (size.bit_length() - 1) // 32)

    padded = padded_size(size, draws)

    assert size <= padded < size + 3 * step
    assert padded % step == 0
    assert padded == padded_size(size, (draws[1], draws[0] % step))


def chances(offset: int, draws: int) -> list[float]:
    """Returns how probable each number of steps is for a size so far above a whole one."""
    counts = [0, 0, 0, 0]
    numbers = range(STEP_MIN)
    if draws == 1:
        for one in numbers:
            counts[-(-(offset + one) // STEP_MIN)] += 1
    else:
        for total in range(2 * STEP_MIN - 1):
            ways = min(total + 1, 2 * STEP_MIN - 1 - total)
            counts[-(-(offset + total) // STEP_MIN)] += ways
    return [count / sum(counts) for count in counts]


def files_to_tell(draws: int) -> float:
    """Returns after how many files of one content its size can be told from the next one, at the
    size that suits an observer best: by the Hellinger distance, so whatever the observer does."""
    ends = [*range(1, 20), *range(STEP_MIN - 20, STEP_MIN - 1), *range(20, STEP_MIN - 20, 97)]
    pairs = ((chances(offset, draws), chances(offset + 1, draws)) for offset in ends)
    distances = (
        sum((one**0.5 - other**0.5) ** 2 for one, other in zip(*pair, strict=True)) / 2
        for pair in pairs
    )
    return 1 / max(distances)


def test_two_draws_hide_a_size_for_millions_of_files_and_one_does_not():
    assert files_to_tell(draws=2) > 1_000_000
    assert files_to_tell(draws=1) < 10_000


def test_a_content_has_several_sizes_that_longer_ones_have_too():
    """So the smallest addition that changes a size, which a user may choose, tells nothing."""
    sealer = SEALERS["AES"]

    def sizes(count: int) -> set[int]:
        return {len(sealer.seal(PREFIX, bytes(count)).data) for _ in range(60)}

    assert len(sizes(5000) & sizes(5001) & sizes(5300)) >= 2


def test_a_file_says_its_generation_in_its_first_bytes():
    name, data = SEALERS["rotated"].seal(PREFIX, CONTENT)

    assert generation_of(name, data[:32]) == 3


@pytest.mark.parametrize(
    "data", [b"", b"TREESNAP", bytes(32), b"TREESNAP\x01\x02\x01\x01" + bytes(20)]
)
def test_a_file_that_is_not_encrypted_has_no_generation(data):
    with pytest.raises(Corrupt):
        generation_of("packs/1", data)
