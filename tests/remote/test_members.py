"""Which machines count on a remote: enrolled by themselves, at once, and beside junk."""

from __future__ import annotations

import pytest

from blob_doubles import MemoryBlobs, WrappedBlobs
from machine_doubles import MemoryMachine
from treesnap.core.model.errors import Corrupt
from treesnap.remote.copies import Doubled
from treesnap.remote.keys import MasterKeys
from treesnap.remote.members import Members
from treesnap.remote.records import members_name
from treesnap.remote.sealing import Encrypted, Plain

REMOTE_ID = b"r" * 16
SEALERS = [Encrypted(MasterKeys.new(), REMOTE_ID), Plain(REMOTE_ID)]


@pytest.fixture(params=SEALERS, ids=["encrypted", "plain"])
def sealer(request):
    return request.param


def members(blobs, sealer, number: int) -> Members:
    return Members(Doubled(blobs), sealer, MemoryMachine(bytes([number]) * 32))


def knows(blobs, sealer, numbers) -> list[bool]:
    """Returns which machines are members to a machine that knows nothing."""
    reader = Members(Doubled(blobs), sealer)
    reader.read()
    return [reader.key_of(members(blobs, sealer, n).own_id) is not None for n in numbers]


def test_a_machine_enrols_itself_once(sealer):
    blobs = MemoryBlobs()
    for number in (1, 2, 1, 2):
        members(blobs, sealer, number).signer()

    assert [blob.name for blob in Doubled(blobs).list("members/")] == [
        members_name(0),
        members_name(1),
    ]
    assert knows(blobs, sealer, [1, 2, 3]) == [True, True, False]


class Meeting(WrappedBlobs):
    """Lets another machine enrol just before this one creates its list."""

    def __init__(self, inner, other: Members, *, replaces: bool) -> None:
        super().__init__(inner)
        self._other: Members | None = other
        self._replaces = replaces

    def create(self, name, data, /):
        other, self._other = self._other, None
        if other is not None:
            other.signer()
            if self._replaces:  # as a server does that does not create atomically
                self.put(name, data)
                return True
        return super().create(name, data)


@pytest.mark.parametrize("replaces", [False, True])
def test_of_two_that_enrol_at_once_both_become_members(sealer, replaces):
    blobs = MemoryBlobs()
    other = members(blobs, sealer, 2)
    members(Meeting(blobs, other, replaces=replaces), sealer, 1).signer()
    if replaces:
        assert knows(blobs, sealer, [1, 2]) == [True, False]
        members(blobs, sealer, 2).signer()  # its next command

    assert knows(blobs, sealer, [1, 2]) == [True, True]


def chain_of(blobs, sealer):
    return Members(Doubled(blobs), sealer).chain()


def test_each_list_follows_from_the_one_before(sealer):
    blobs = MemoryBlobs()
    for number in range(1, 5):
        members(blobs, sealer, number).signer()
    assert chain_of(blobs, sealer) == (4, 0, ())
    second, third = members_name(1), members_name(2)
    kept = dict(blobs.content)

    del blobs.content[second], blobs.content[second + "-c"]
    assert [third in fault for fault in chain_of(blobs, sealer).faults] == [True]

    blobs.content |= kept
    other = MemoryBlobs({members_name(0): kept[members_name(0)]})
    members(other, sealer, 9).signer()
    for name in (second, second + "-c"):  # that of another machine, which was faster
        blobs.content[name] = other.content[second]
    (fault,) = chain_of(blobs, sealer).faults
    assert "does not follow" in fault
    assert third in fault

    blobs.content |= kept
    for name in (second, second + "-c"):
        blobs.content[name] = kept[second][:-1]
    (fault,) = chain_of(blobs, sealer).faults
    assert second in fault


def test_lists_of_all_owners_are_one_chain():
    blobs, keys = MemoryBlobs(), MasterKeys.new()
    members(blobs, Encrypted(keys, REMOTE_ID), 1).signer()
    newer = Encrypted(keys.rotated(), REMOTE_ID)
    assert members(blobs, Encrypted(keys, REMOTE_ID), 1).rotate(newer) == 1
    members(blobs, newer, 2).signer()

    assert chain_of(blobs, newer) == (2, 0, ())


def test_what_is_no_list_is_a_fault_of_the_chain(sealer):
    blobs = MemoryBlobs()
    members(blobs, sealer, 1).signer()
    for number, junk in ((1, b""), (7, b"junk" * 100), (9, bytes(2 << 20))):
        blobs.content[members_name(number)] = junk
    members(blobs, sealer, 2).signer()

    machines, _, faults = chain_of(blobs, sealer)

    assert machines == 2
    assert [members_name(number) in fault for number, fault in zip((1, 7, 9), faults, strict=True)]
    assert all("counts for nothing" in fault for fault in faults)


@pytest.mark.parametrize("junk", [b"", b"junk", bytes(200), bytes(2 << 20)])
def test_what_the_owner_did_not_sign_counts_for_nothing(sealer, junk):
    blobs = MemoryBlobs()
    members(blobs, sealer, 1).signer()
    for number in (1, 7, (1 << 64) - 1):
        blobs.content[members_name(number)] = junk
    blobs.content[members_name(8)] = blobs.content[members_name(0)]

    members(blobs, sealer, 2).signer()

    assert knows(blobs, sealer, [1, 2]) == [True, True]
    assert members_name(2) in blobs.content


def test_where_no_list_can_be_read_no_machine_begins_another_one(sealer):
    blobs = MemoryBlobs()
    members(blobs, sealer, 1).signer()
    blobs.content = {name: data[:-1] for name, data in blobs.content.items()}
    before = dict(blobs.content)

    with pytest.raises(Corrupt):
        members(blobs, sealer, 2).signer()

    assert blobs.content == before
