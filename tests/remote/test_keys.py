"""Key slots: who opens them, what is refused, and that nothing of a key is shown."""

from __future__ import annotations

import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treesnap
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.message import pack, unpack
from treesnap.core.model import ids
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    OperationFailed,
    RemoteLocked,
    TreesnapError,
    UnsupportedFormat,
)
from treesnap.remote import keys as keys_module
from treesnap.remote import paper
from treesnap.remote.keys import (
    COST_MAX,
    GENERATIONS_MAX,
    KEY_SLOT,
    Algorithm,
    Cost,
    KeySlot,
    MasterKeys,
    Secret,
    SecretKind,
    SlotHeader,
    encode_header,
    new_raw_key,
    new_slot,
    open_slot,
    open_slots,
    slot_header,
)
from treesnap.remote.sealing import Encrypted

REMOTE_ID = bytes(range(16))
CHEAP = Cost(1, 8, 1)
KEYS = MasterKeys.new()
ROTATED = KEYS.rotated(Algorithm.CHACHA20_POLY1305)
PASSPHRASE = "open sesame"
RAW_KEY = "5eed" * 16
KEY_FILE = b"-----BEGIN KEY-----\n" + bytes(range(100))
PAPER = "\n".join(paper.lines_of(bytes.fromhex(RAW_KEY)))
SECRETS = {
    "passphrase": Secret.passphrase(PASSPHRASE),
    "raw key": Secret.raw_key(RAW_KEY),
    "key file": Secret.key_file(KEY_FILE),
    "paper key": Secret.paper_key(bytes.fromhex(RAW_KEY)),
}
WRONG = {
    "passphrase": Secret.passphrase("open sesam"),
    "raw key": Secret.raw_key(new_raw_key()),
    "key file": Secret.key_file(KEY_FILE + b"\n"),
    "paper key": Secret.paper_key(bytes(32)),
}


def slot_for(secret: Secret, keys: MasterKeys = KEYS) -> tuple[str, bytes]:
    """Returns a slot that is opened in no time."""
    return new_slot(keys, secret, REMOTE_ID, CHEAP)


@pytest.fixture(params=SECRETS)
def kind(request) -> str:
    """Each kind of secret."""
    return request.param


@pytest.mark.parametrize("keys", [KEYS, ROTATED, MasterKeys.new(Algorithm.CHACHA20_POLY1305)])
def test_a_slot_is_opened_by_its_secret(kind, keys):
    name, data = slot_for(SECRETS[kind], keys)

    assert open_slot(name, data, SECRETS[kind], REMOTE_ID) == keys
    assert slot_header(name, data).generation == keys.newest
    assert slot_header(name, data).kind is SECRETS[kind].kind


def test_a_slot_is_not_opened_by_another_secret(kind):
    name, data = slot_for(SECRETS[kind])

    with pytest.raises(RemoteLocked, match=f"has another {kind}") as caught:
        open_slot(name, data, WRONG[kind], REMOTE_ID)

    assert (caught.value.path, caught.value.code) == (name, ErrorCode.REMOTE_LOCKED)


def test_a_slot_is_not_opened_by_another_kind_of_secret(kind):
    name, data = slot_for(SECRETS[kind])
    for other in SECRETS.keys() - {kind}:
        with pytest.raises(RemoteLocked, match=f"has a {kind}, not a {other}"):
            open_slot(name, data, SECRETS[other], REMOTE_ID)


def test_a_passphrase_and_a_key_file_of_the_same_bytes_are_two_secrets():
    text = "x" * 32
    name, data = slot_for(Secret.passphrase(text))

    with pytest.raises(RemoteLocked):
        open_slot(name, data, Secret.key_file(text.encode()), REMOTE_ID)


def test_a_passphrase_is_the_same_on_every_keyboard():
    name, data = slot_for(Secret.passphrase("Gr\u00fcn"))

    assert open_slot(name, data, Secret.passphrase("Gru\u0308n"), REMOTE_ID) == KEYS


def test_a_passphrase_may_have_bytes_that_are_not_text():
    name, data = slot_for(Secret.passphrase("caf\udce9"))

    assert open_slot(name, data, Secret.passphrase("caf\udce9"), REMOTE_ID) == KEYS
    with pytest.raises(RemoteLocked):
        open_slot(name, data, Secret.passphrase("caf\u00e9"), REMOTE_ID)


def test_a_raw_key_may_be_written_in_capitals():
    name, data = slot_for(SECRETS["raw key"])

    assert open_slot(name, data, Secret.raw_key(RAW_KEY.upper()), REMOTE_ID) == KEYS


def test_a_new_raw_key_is_one_and_never_the_same():
    assert len({new_raw_key() for _ in range(9)}) == 9
    assert Secret.raw_key(new_raw_key()).kind is SecretKind.RAW_KEY


@pytest.mark.parametrize(
    "text", ["", "5eed", RAW_KEY[:-1], RAW_KEY + "0", f" {RAW_KEY[:-1]}", "g" * 64]
)
def test_what_is_no_raw_key_is_refused(text):
    with pytest.raises(InvalidArgument, match="64 hex digits"):
        Secret.raw_key(text)


def test_a_paper_key_is_read_as_a_person_types_it():
    key = bytes.fromhex(RAW_KEY)
    words = ["treesnap paper key", *PAPER.splitlines(), "3 copies of it are in the safe, no. 4"]

    assert len(PAPER.splitlines()) == paper.LINE_COUNT
    for typed in (
        PAPER,
        "\r\n".join(words),
        "\n".join(reversed(PAPER.splitlines())),
        PAPER.lower().replace("-", " ").replace("0", "o").replace("1", "l").replace("l  ", "1. "),
        re.sub("(?m)^([1-4])  ", r"\1) ", PAPER).replace("-", ""),
    ):
        assert paper.has_lines(typed)
        assert paper.key_of(typed) == key


def test_each_line_of_a_paper_key_that_is_mistyped_is_named():
    """Every digit becomes every other one; a check of 16 bits lets one of 65,536 pass."""
    lines = PAPER.splitlines()
    for number, line in enumerate(lines, start=1):
        for at in range(3, len(line)):
            for digit in set("0123456789ABCDEFGHJKMNPQRSTVWXYZU") - {line[at]}:
                if line[at] != "-":
                    assert paper.read_line(number, line[:at] + digit + line[at + 1 :]) is None
    swapped = "\n".join([lines[0], f"3{lines[1][1:]}", f"2{lines[2][1:]}", lines[3]])
    for typed, problem in (
        (swapped, "Lines 2, 3 of the paper key are mistyped"),
        (PAPER.replace("4  ", "4  0"), "Line 4 of the paper key is mistyped"),
        ("\n".join(lines[:2]), "Lines 3, 4 of the paper key are missing"),
        ("1  ABCD\n" + "\n".join(lines[2:]), "Line 1 of the paper key is mistyped"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            paper.key_of(typed)


@pytest.mark.parametrize("text", ["", "\ud800"])
def test_what_is_no_passphrase_is_refused(text):
    with pytest.raises(InvalidArgument, match="passphrase"):
        Secret.passphrase(text)


@pytest.mark.parametrize("size", [0, 31, (1 << 20) + 1])
def test_a_key_file_that_is_too_short_or_too_long_is_refused(size):
    with pytest.raises(InvalidArgument, match=f"{size} bytes"):
        Secret.key_file(bytes(size))


# ------------------------------------------------------------- damaged slots


def test_every_flipped_bit_of_a_slot_is_noticed(kind):
    name, data = slot_for(SECRETS[kind], ROTATED)
    for bit in range(8 * len(data)):
        refuse_as_damaged(name, flipped(data, bit), SECRETS[kind])


def refuse_as_damaged(name: str, data: bytes, secret: Secret) -> None:
    with pytest.raises(Corrupt) as caught:
        open_slot(name, data, secret, REMOTE_ID)
    assert (caught.value.path, caught.value.code) == (name, ErrorCode.REMOTE_DAMAGED)
    assert repr(name) in str(caught.value)


def flipped(data: bytes, bit: int) -> bytes:
    """Returns bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_cut_and_extension_of_a_slot_is_noticed(kind):
    name, data = slot_for(SECRETS[kind])
    for size in range(len(data)):
        refuse_as_damaged(name, data[:size], SECRETS[kind])
    for extra in (b"\0", data, bytes(1 << 16)):
        refuse_as_damaged(name, data + extra, SECRETS[kind])


def test_every_flipped_bit_that_a_forger_makes_whole_again_is_noticed():
    """The checksum is no secret. A raw key has no cost, which a flipped bit would raise."""
    name, data = slot_for(SECRETS["raw key"], ROTATED)
    slot = KEY_SLOT.unseal(data, name)
    for part in range(2):
        for bit in range(8 * len(slot[part])):
            changed = list(slot)
            changed[part] = flipped(slot[part], bit)
            try:
                forged = KEY_SLOT.seal(KeySlot(*changed))
            except (InvalidArgument, UnsupportedFormat):
                continue  # no such slot can be written, and its reader refuses it likewise

            with pytest.raises((Corrupt, RemoteLocked)):
                open_slot(name, forged, SECRETS["raw key"], REMOTE_ID)


def forged(data: bytes, **changed: Any) -> bytes:
    """Returns a slot with other fields in its header; None takes one away."""
    slot = KEY_SLOT.unseal(data, "slot")
    header = {**unpack(slot.header, "header"), **changed}
    header = {key: value for key, value in header.items() if value is not None}
    return seal(
        FileKind.KEY_SLOT, pack({"version": 1, **slot._replace(header=pack(header))._asdict()})
    )


@pytest.mark.parametrize(
    "cost",
    [
        Cost(COST_MAX.passes + 1, 8, 1),
        Cost(1, COST_MAX.memory_kib + 1, 1),
        Cost(1, 1 << 62, 1),
        Cost(1, 8 * (COST_MAX.lanes + 1), COST_MAX.lanes + 1),
        Cost(0, 8, 1),
        Cost(1, 8, 0),
        Cost(1, 7, 1),
        Cost(1, 31, 4),
        Cost(-1, 8, 1),
        (1, 8),
        (1, 8, 1, 1),
        (1, 8, "1"),
        (1, 8, True),
        None,
    ],
    ids=str,
)
def test_a_cost_that_is_too_high_is_refused_before_it_is_paid(cost):
    """Argon2id itself is never asked: the passphrase is wrong, and no error says so."""
    name, data = slot_for(SECRETS["passphrase"])
    changed = forged(data, cost=tuple(cost) if cost is not None else None)

    refuse_as_damaged(name, changed, WRONG["passphrase"])


@pytest.mark.parametrize(
    "cost", [Cost(passes=11), Cost(memory_kib=COST_MAX.memory_kib + 1), Cost(lanes=9)]
)
def test_a_slot_that_no_machine_would_open_is_not_made(cost):
    with pytest.raises(InvalidArgument, match="are the most"):
        new_slot(KEYS, SECRETS["passphrase"], REMOTE_ID, cost)


def test_a_slot_of_the_greatest_cost_is_read():
    name, data = slot_for(SECRETS["passphrase"])

    assert slot_header(name, forged(data, cost=tuple(COST_MAX))).cost == COST_MAX


@pytest.mark.parametrize(
    "changed",
    [
        {"salt": bytes(15)},
        {"commitment": bytes(31)},
        {"generation": -1},
        {"generation": "1"},
        {"kind": "1"},
    ],
    ids=str,
)
def test_a_header_that_is_not_valid_is_damage(kind, changed):
    name, data = slot_for(SECRETS[kind])

    refuse_as_damaged(name, forged(data, **changed), SECRETS[kind])


@pytest.mark.parametrize("changed", [{"generation": 2}, {"later": "something"}])
def test_a_header_is_authentic_to_its_last_byte(kind, changed):
    name, data = slot_for(SECRETS[kind])

    with pytest.raises(Corrupt, match="not authentic"):
        open_slot(name, forged(data, **changed), SECRETS[kind], REMOTE_ID)


def test_a_slot_that_claims_newer_keys_than_it_holds_is_damage(kind):
    """As only a holder of the keys can write it: slots are tried by what they claim."""
    secret, name, salt = SECRETS[kind], f"keys/{'0' * 32}", bytes(16)
    cost = None if SECRETS[kind].kind.is_random else CHEAP
    made = secret.stretched(salt, cost)
    for generation, is_damage in ((2, False), (3, True), (1, True)):
        header = encode_header(SlotHeader(secret.kind, generation, salt, made.commitment, cost))
        associated = b"treesnap key slot 1" + REMOTE_ID + name.encode() + header
        data = KEY_SLOT.seal(KeySlot(header, ROTATED.wrapped(made.cipher, associated)))

        if is_damage:
            refuse_as_damaged(name, data, secret)
        else:
            assert open_slot(name, data, secret, REMOTE_ID) == ROTATED


@pytest.mark.parametrize("number", [6, 0])
def test_a_kind_that_is_unknown_is_named(number):
    name, data = slot_for(SECRETS["raw key"])
    changed = forged(data, kind=number)

    for ask in (lambda: slot_header(name, changed), lambda: open_slots({name: changed}, *OPEN)):
        with pytest.raises(
            UnsupportedFormat, match=f"kind {number}, which this treesnap"
        ) as caught:
            ask()
        assert caught.value.path == name


OPEN = (SECRETS["raw key"], REMOTE_ID)


def test_a_slot_under_another_name_or_of_another_remote_is_damage(kind):
    name, data = slot_for(SECRETS[kind])

    refuse_as_damaged(f"keys/{'0' * 32}", data, SECRETS[kind])
    with pytest.raises(Corrupt, match="not authentic"):
        open_slot(name, data, SECRETS[kind], bytes(16))


def test_a_slot_that_is_too_large_is_not_looked_at():
    name, data = slot_for(SECRETS["raw key"])

    with pytest.raises(Corrupt, match="too large"):
        open_slot(name, forged(data, later="x" * (1 << 16)), *OPEN)


@pytest.mark.parametrize(
    "name", ["keys/1", "packs/" + "0" * 32, f"keys/{'0' * 32}\n", "keys/" + "é" * 32]
)
def test_a_slot_with_an_odd_name_is_damage(name):
    refuse_as_damaged(name, slot_for(SECRETS["raw key"])[1], SECRETS["raw key"])


# -------------------------------------------------------------- several slots


def slots_of(*files: tuple[str, bytes]) -> dict[str, bytes]:
    """Returns slots as a remote lists them."""
    return dict(sorted(files))


def test_each_of_several_secrets_opens_a_remote(kind):
    files = [slot_for(secret) for secret in (*SECRETS.values(), *WRONG.values())]

    opened = open_slots(slots_of(*files), SECRETS[kind], REMOTE_ID)

    assert opened.keys == KEYS
    assert opened.name == files[list(SECRETS).index(kind)][0]


def test_the_newest_keys_are_found_whatever_the_order_of_slots(kind):
    newest = ROTATED.rotated()
    for _ in range(8):
        slots = slots_of(*(slot_for(SECRETS[kind], keys) for keys in (ROTATED, newest, KEYS)))

        assert open_slots(slots, SECRETS[kind], REMOTE_ID).keys == newest


def test_a_damaged_slot_does_not_keep_others_closed(kind):
    good = slot_for(SECRETS[kind], ROTATED)
    newer_name, newer = slot_for(SECRETS[kind], ROTATED.rotated())
    for damaged in (newer[:-1], forged(newer, later="x"), forged(newer, kind=5), b""):
        assert open_slots(slots_of(good, (newer_name, damaged)), SECRETS[kind], REMOTE_ID) == (
            good[0],
            ROTATED,
        )


def test_a_wrong_secret_is_told_from_damage(kind):
    good, (name, data) = slot_for(SECRETS[kind]), slot_for(SECRETS[kind])
    damaged = name, data[:-1]
    other = next(word for word in SECRETS if word != kind)

    with pytest.raises(
        RemoteLocked,
        match=rf"This {kind} opens no key slot of the remote \(2 slots, 1 with a {kind}\)$",
    ):
        open_slots(slots_of(good, slot_for(SECRETS[other])), WRONG[kind], REMOTE_ID)
    with pytest.raises(RemoteLocked, match=r"\(2 slots, 1 with a .*, 1 damaged\)"):
        open_slots(slots_of(good, damaged), WRONG[kind], REMOTE_ID)
    with pytest.raises(RemoteLocked, match=rf"This {other} opens .* \(1 slot, 0 with a {other}\)"):
        open_slots(slots_of(good), SECRETS[other], REMOTE_ID)
    with pytest.raises(RemoteLocked, match="0 slots"):
        open_slots({}, SECRETS[kind], REMOTE_ID)
    with pytest.raises(Corrupt) as caught:
        open_slots(slots_of(damaged, slot_for(SECRETS[other])), SECRETS[kind], REMOTE_ID)
    assert caught.value.path == name


def test_a_reserved_slot_beside_others_is_passed_over():
    name, data = slot_for(SECRETS["raw key"])
    slots = slots_of((name, forged(data, kind=4)), slot_for(SECRETS["key file"]))

    with pytest.raises(RemoteLocked, match="2 slots, 0 with a passphrase"):
        open_slots(slots, SECRETS["passphrase"], REMOTE_ID)


def test_slots_that_together_cost_too_much_are_not_all_tried(monkeypatch):
    monkeypatch.setattr(keys_module, "_WORK_MAX_KIB", 10 * CHEAP.work_kib)
    slots = slots_of(*(slot_for(WRONG["passphrase"], ROTATED) for _ in range(10)))
    mine = slot_for(SECRETS["passphrase"], KEYS)

    with pytest.raises(RemoteLocked, match="cost too much to try all 11"):
        open_slots({**slots, mine[0]: mine[1]}, SECRETS["passphrase"], REMOTE_ID)
    slots.popitem()
    opened = open_slots({**slots, mine[0]: mine[1]}, SECRETS["passphrase"], REMOTE_ID)
    assert opened.name == mine[0]


# ------------------------------------------------------------ change, rotation


def test_a_passphrase_is_changed_without_rewriting_files():
    file = Encrypted(KEYS, REMOTE_ID).seal("packs/", b"content")
    slots = slots_of(slot_for(SECRETS["passphrase"]))

    opened = open_slots(slots, SECRETS["passphrase"], REMOTE_ID)
    name, data = slot_for(WRONG["passphrase"], opened.keys)
    slots = {name: data, **{key: slots[key] for key in slots if key != opened.name}}

    keys = open_slots(slots, WRONG["passphrase"], REMOTE_ID).keys
    assert Encrypted(keys, REMOTE_ID).open(*file) == b"content"
    with pytest.raises(RemoteLocked):
        open_slots(slots, SECRETS["passphrase"], REMOTE_ID)


def test_a_rotation_adds_a_generation_and_keeps_the_others():
    twice = KEYS.rotated().rotated(Algorithm.CHACHA20_POLY1305)

    assert dict(twice.generations) == {1: 1, 2: 1, 3: 2}
    assert (KEYS.newest, twice.newest) == (1, 3)
    assert twice != KEYS.rotated().rotated(Algorithm.CHACHA20_POLY1305)
    assert hash(twice) == hash(KEYS.rotated().rotated(Algorithm.CHACHA20_POLY1305))


def test_as_many_generations_as_there_may_be_fit_into_a_slot():
    rows = [n.to_bytes(4, "little") + b"\1" + bytes(32) for n in range(1, GENERATIONS_MAX)]
    keys = MasterKeys(b"".join(rows)).rotated()

    name, data = slot_for(SECRETS["raw key"], keys)

    assert open_slot(name, data, SECRETS["raw key"], REMOTE_ID) == keys
    with pytest.raises(InvalidArgument, match="at most"):
        keys.rotated()


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.binary(min_size=32, max_size=32)), max_size=4
)


@given(rows=ROWS, extra=st.binary(max_size=2))
def test_only_valid_keys_come_out_of_a_slot(rows, extra):
    """A holder of a key can write any rows; what they are not made for is damage."""
    packed = b"".join(n.to_bytes(4, "little") + bytes([a]) + key for n, a, key in rows) + extra
    cipher = SECRETS["raw key"].stretched(bytes(16), None).cipher
    numbers = [number for number, _, _ in rows]
    is_valid = (
        not extra
        and numbers == sorted(set(numbers) - {0})
        and numbers != []
        and {algorithm for _, algorithm, _ in rows} <= {1, 2}
    )

    found = MasterKeys.unwrapped(cipher, cipher.encrypt(bytes(12), packed, b""), b"")

    assert (found is not None) == is_valid
    if found is not None:
        assert list(found.generations) == numbers


@pytest.mark.parametrize("remote_id", [b"", bytes(15), bytes(17)])
def test_a_remote_id_has_16_bytes(remote_id):
    slot = slot_for(SECRETS["raw key"])
    for call in (
        lambda: Encrypted(KEYS, remote_id),
        lambda: new_slot(KEYS, SECRETS["raw key"], remote_id),
        lambda: open_slot(*slot, SECRETS["raw key"], remote_id),
    ):
        with pytest.raises(InvalidArgument, match="16 bytes"):
            call()


# ------------------------------------------------------------ nothing is shown

SHOWN_KEYS = KEYS.rotated(random=lambda size: b"\xa5" * size)
NEEDLES = {
    "passphrase": PASSPHRASE.encode(),
    "raw key": bytes.fromhex(RAW_KEY),
    "key file": KEY_FILE[:32],
    "master key": b"\xa5" * 32,
    "file key": SHOWN_KEYS.of_remote(REMOTE_ID)[2]._files,
}


def exposed(text: str, needles: Mapping[str, bytes] = NEEDLES) -> list[str]:
    """Returns which secrets a text contains, as bytes, as text or in hex."""
    return [
        word
        for word, needle in needles.items()
        if repr(needle)[2:-1] in text or needle.hex() in text.lower()
    ]


def failing_calls() -> Iterator[tuple[Callable[[], object], bytes]]:
    """Yields calls that fail where secrets and keys are at hand, and a key that is derived then."""
    for secret in SECRETS.values():
        name, data = slot_for(secret, SHOWN_KEYS)
        header = slot_header(name, data)
        key = secret._key_encryption_key(header.salt, header.cost)
        for changed in (data[:-1], forged(data, later="x"), forged(data, generation=1)):
            yield partial(open_slot, name, changed, secret, REMOTE_ID), key
            yield partial(open_slots, {name: changed}, secret, REMOTE_ID), key
        for other in WRONG.values():
            wrong = slot_for(other, SHOWN_KEYS)
            yield partial(open_slot, *wrong, secret, REMOTE_ID), key
            yield partial(open_slots, dict([wrong]), secret, REMOTE_ID), key
        yield partial(new_slot, SHOWN_KEYS, secret, b""), key
    key = SHOWN_KEYS.of_remote(REMOTE_ID)[2]._names
    yield partial(new_slot, SHOWN_KEYS, SECRETS["passphrase"], REMOTE_ID, Cost(99, 99, 99)), key
    yield partial(Secret.raw_key, RAW_KEY + "\n"), key
    yield partial(paper.key_of, PAPER.replace("1  ", "1  0")), key
    yield partial(Secret.passphrase, PASSPHRASE + "\ud800"), key
    yield partial(Secret.key_file, KEY_FILE * (1 << 15)), key
    yield partial(Encrypted, SHOWN_KEYS, b""), key
    sealer = Encrypted(SHOWN_KEYS, REMOTE_ID)
    name, data = sealer.seal("packs/", b"content")
    yield partial(sealer.open, name, data[:-1] + bytes([data[-1] ^ 1])), key
    yield partial(sealer.open_ranges, name, 7, [(0, 1)], [bytes(len(data) - 16)]), key
    yield partial(Encrypted(KEYS, REMOTE_ID).open, name, data), key


def all_shown(error: BaseException) -> str:
    """Returns all that a program can print of an error and of variables that it passed."""
    package = str(Path(treesnap.__file__).parent)
    texts = ["".join(traceback.format_exception(error))]
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None:
            continue
        texts += repr(current), repr(vars(current))
        pending += current.__cause__, current.__context__
        for frame, _ in traceback.walk_tb(current.__traceback__):
            if frame.f_code.co_filename.startswith(package):
                texts += map(repr, frame.f_locals.values())
    return "\n".join(texts)


def test_no_error_shows_a_secret_or_a_key():
    calls = list(failing_calls())
    for call, key in calls:
        with pytest.raises(TreesnapError) as caught:
            call()

        assert exposed(all_shown(caught.value), {**NEEDLES, "derived key": key}) == []
    assert len(calls) > 40


def test_a_secret_that_an_error_passes_is_found():
    """What the test above looks for is found in a function of ours that is given raw bytes."""
    with pytest.raises(ValueError, match="key") as caught:
        ids.keyed_hash(b"\xa5" * 33, b"")

    assert exposed(all_shown(caught.value)) == ["master key"]
    for word, needle in NEEDLES.items():
        assert exposed(f"<{needle!r}>") == exposed(f"<{needle.hex()}>") == [word]


def test_printing_shows_no_secret_and_no_key(kind):
    name, data = slot_for(SECRETS[kind], SHOWN_KEYS)
    sealer = Encrypted(SHOWN_KEYS, REMOTE_ID)
    values = [SECRETS[kind], SHOWN_KEYS, sealer, SHOWN_KEYS.of_remote(REMOTE_ID)]
    values += [open_slots({name: data}, SECRETS[kind], REMOTE_ID), vars(sealer)]
    values.append(
        SECRETS[kind].stretched(bytes(16), None if SECRETS[kind].kind.is_random else CHEAP)
    )

    assert [exposed(f"{value!r} {value}") for value in values] == [[]] * len(values)
    assert repr(SECRETS[kind]) == f"<Secret: {kind}>"
    assert repr(SHOWN_KEYS) == "<MasterKeys: generations 1, 2>"


# ----------------------------------------------------------------- the library


def test_without_the_library_its_extra_is_named(monkeypatch):
    """The module is run again, where nothing can be imported; it comes as far as the first key."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    fresh = runpy.run_path(str(keys_module.__file__))

    made = fresh["MasterKeys"].new(random=lambda size: b"\xa5" * size)
    secret = fresh["Secret"].raw_key(RAW_KEY)
    for call in (
        lambda: made.of_remote(REMOTE_ID),
        lambda: fresh["new_slot"](made, secret, REMOTE_ID),
    ):
        with pytest.raises(OperationFailed, match=r"pip install .treesnap\[remote\]") as caught:
            call()
        assert exposed(all_shown(caught.value)) == []


@pytest.mark.parametrize(
    ("field", "error", "words"),
    [
        ("Argon2id", MemoryError("no"), "too little memory to open a key slot, which takes 8 KiB"),
        ("Argon2id", None, "has no Argon2id"),
        ("ChaCha20Poly1305", None, "has no ChaCha20-Poly1305"),
    ],
)
def test_a_library_that_cannot_is_named(monkeypatch, field, error, words):
    """As in builds for FIPS, and where memory is short."""
    library = keys_module._library()
    raised = error if error is not None else library.UnsupportedAlgorithm("no")

    given = [b"a key of that kind"]

    def fail(*values: Any, **_named: Any) -> None:
        given.extend(values)
        raise raised

    monkeypatch.setattr(keys_module, "_library", lambda: library._replace(**{field: fail}))
    sealer = Encrypted(SHOWN_KEYS.rotated(Algorithm.CHACHA20_POLY1305), REMOTE_ID)
    calls = {
        "Argon2id": lambda: slot_for(SECRETS["passphrase"], SHOWN_KEYS),
        "ChaCha20Poly1305": lambda: sealer.seal("packs/", b""),
    }

    with pytest.raises(OperationFailed, match=words) as caught:
        calls[field]()

    assert exposed(all_shown(caught.value), {**NEEDLES, "given": given[-1]}) == []
