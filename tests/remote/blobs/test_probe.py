"""What a probe finds out about places that keep, or do not keep, what they seem to promise."""

from __future__ import annotations

import threading
from threading import Barrier

import pytest

from blob_doubles import (
    BlobFault,
    BlobFaultKind,
    FaultyBlobs,
    LateListBlobs,
    MemoryBlobs,
    RacingBlobs,
    WrappedBlobs,
)
from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.remote.blobs.base import BlobInfo
from treesnap.remote.blobs.directory import DirectoryBlobs
from treesnap.remote.blobs.probe import (
    MIXED,
    Capabilities,
    Creation,
    Effort,
    KnownServer,
    Observations,
    Outcome,
    Race,
    known_server,
    probe,
    verdict,
)
from treesnap.testing.doubles import UnsyncedFileSystem

WON, LOST, UNCLEAR, FAILED = Outcome.WON, Outcome.LOST, Outcome.UNCLEAR, Outcome.FAILED
QUICK = Effort(small_races=2, large_races=1, large_bytes=1 << 20)
GOOD = Observations(
    first_create=WON,
    second_create=LOST,
    keeps_first=True,
    races=(Race((LOST, WON), 1),),
    late_names=0,
    has_ranges=True,
    kept=0,
)
EVERYTHING = Capabilities(
    creation=Creation.ATOMIC,
    lists_current=True,
    has_ranges=True,
    server=None,
    is_known=False,
    reasons=(),
)


# ------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("outcomes", "stored", "is_sound"),
    [
        ((WON, LOST, LOST), 0, True),
        ((LOST, LOST, WON), 2, True),
        ((WON, UNCLEAR, FAILED), 0, True),
        ((LOST, UNCLEAR, LOST), 1, True),
        ((LOST, LOST), None, True),  # servers may refuse all that meet
        ((UNCLEAR, FAILED), None, True),
        ((WON, WON), 1, False),
        ((WON, LOST), 1, False),
        ((WON, UNCLEAR), 1, False),
        ((WON, LOST), None, False),
        ((WON, LOST), MIXED, False),
        ((LOST, LOST), 0, False),
        ((UNCLEAR, FAILED), 1, False),
        ((UNCLEAR, UNCLEAR), MIXED, False),
    ],
)
def test_a_race_is_sound_if_no_writer_was_told_what_is_not_true(outcomes, stored, is_sound):
    assert Race(outcomes, stored).is_sound() is is_sound


def test_where_all_went_well_all_is_promised():
    assert verdict(GOOD, None) == EVERYTHING


@pytest.mark.parametrize(
    ("seen", "creation", "reason"),
    [
        ({"first_create": LOST}, Creation.NONE, "Creating a new blob is refused"),
        ({"first_create": FAILED}, Creation.NONE, "Creating a new blob fails"),
        ({"second_create": WON}, Creation.NONE, "Creating a blob that exists succeeds"),
        ({"keeps_first": False}, Creation.NONE, "replaces it, and is reported as refused"),
        (
            {"races": (Race((WON, LOST), 0), Race((WON, WON), 0))},
            Creation.SEQUENTIAL,
            "In 1 of 2 races",
        ),
    ],
)
def test_what_was_seen_to_fail_is_not_promised(seen, creation, reason):
    found = verdict(GOOD._replace(**seen), KnownServer("Some", is_atomic=True, lists_current=True))

    assert found.creation is creation
    assert reason in found.reasons[0]
    assert found.lists_current


def test_each_other_fault_has_its_reason():
    seen = GOOD._replace(late_names=2, has_ranges=False, kept=3)

    found = verdict(seen, None)

    assert (found.creation, found.lists_current, found.has_ranges) == (
        Creation.ATOMIC,
        False,
        False,
    )
    assert len(found.reasons) == 3


def test_what_is_known_of_a_server_counts_more_than_a_race_that_went_well():
    server = KnownServer("Some", is_atomic=False, lists_current=False)

    found = verdict(GOOD, server)

    assert (found.creation, found.lists_current) == (Creation.SEQUENTIAL, False)
    assert (found.server, found.is_known) == ("Some", True)
    assert len(found.reasons) == 2


@pytest.mark.parametrize(
    ("server", "is_known"),
    [
        (KnownServer("Some"), False),
        (KnownServer("Some", is_atomic=True), False),
        (KnownServer("Some", is_atomic=True, lists_current=True), True),
    ],
)
def test_a_server_is_known_if_nothing_was_left_to_find_out(server, is_known):
    assert verdict(GOOD, server) == EVERYTHING._replace(server="Some", is_known=is_known)


CEPH = {"x-amz-request-id": "tx000005d7446ae83c92065-006b03f8e9-100a-default"}
SWIFT = {"x-openstack-request-id": "txab3-006b03", "x-amz-request-id": "txab3-006b03"}


@pytest.mark.parametrize(
    ("scheme", "host", "headers", "name"),
    [
        ("s3", None, {}, "Amazon S3"),
        ("s3", "s3.eu-west-1.amazonaws.com", {}, "Amazon S3"),
        ("s3", "amazonaws.com.example.org", {}, None),
        ("s3", "notamazonaws.com", {}, None),
        ("gs", None, {}, "Google Cloud Storage"),
        ("gs", "localhost", {}, None),
        ("az", None, {}, "Azure Blob Storage"),
        ("s3", "abc.r2.cloudflarestorage.com", {}, "Cloudflare R2"),
        ("s3", "localhost", CEPH, "Ceph"),
        ("s3", "localhost", SWIFT, "OpenStack Swift"),
        ("s3", "localhost", {"server": "Werkzeug/3.1 Python/3.11"}, "moto"),
        ("s3", "localhost", {"server": "nginx"}, None),
        ("s3", "localhost", {}, None),
    ],
)
def test_servers_are_known_by_address_and_headers(scheme, host, headers, name):
    found = known_server(scheme, host, headers)

    assert (found.name if found else None) == name


# --------------------------------------------------------------------------- probes


@pytest.fixture
def memory():
    return MemoryBlobs()


def test_a_directory_promises_everything(tmp_path):
    found = probe(
        lambda: DirectoryBlobs(UnsyncedFileSystem(), str(tmp_path), make=True), effort=QUICK
    )

    assert found == EVERYTHING
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_probe_leaves_what_others_wrote(memory):
    memory.put("probe/00", b"another probe")
    memory.put("packs/00", b"a pack")

    assert probe(lambda: memory, effort=QUICK) == EVERYTHING

    assert sorted(memory.content) == ["packs/00", "probe/00"]


class Replacing(WrappedBlobs):
    """Ignores that a blob shall be new."""

    def create(self, name, data):
        self.inner.put(name, data)
        return True


def test_a_server_that_ignores_conditions_creates_nothing(memory):
    found = probe(lambda: Replacing(memory), effort=QUICK)

    assert found == EVERYTHING._replace(
        creation=Creation.NONE, reasons=("Creating a blob that exists succeeds",)
    )
    assert memory.content == {}


class Lying(WrappedBlobs):
    """Says that a blob is not new, and replaces it."""

    def create(self, name, data):
        is_new = self.inner.create(name, data)
        self.inner.put(name, data)
        return is_new


def test_what_is_stored_counts_more_than_what_is_told(memory):
    assert probe(lambda: Lying(memory), effort=QUICK).creation is Creation.NONE


@pytest.mark.parametrize("size", ["small", "large"])
def test_writers_that_meet_are_noticed(memory, size):
    effort = QUICK._replace(small_writers=3, large_writers=3)
    meeting = Barrier(3)
    from_bytes = effort.small_bytes if size == "small" else effort.large_bytes

    found = probe(lambda: RacingBlobs(memory, meeting, from_bytes), effort=effort)

    races = effort.small_races + effort.large_races if size == "small" else effort.large_races
    assert found.creation is Creation.SEQUENTIAL
    assert found.reasons == (f"In {races} of 3 races to create a blob not exactly one writer won",)
    assert memory.content == {}


def test_a_server_that_is_known_is_not_sent_large_blobs(memory):
    server = KnownServer("Some", is_atomic=True)
    sizes = []

    class Measuring(WrappedBlobs):
        def create(self, name, data):
            sizes.append(len(data))
            return self.inner.create(name, data)

    probe(lambda: Measuring(memory), server, QUICK)

    assert max(sizes) == QUICK.small_bytes
    assert sizes.count(QUICK.small_bytes) == QUICK.small_races * QUICK.small_writers


@pytest.mark.parametrize("lag", [1, 2])
def test_a_listing_that_is_late_is_noticed(memory, lag):
    history = []

    found = probe(lambda: LateListBlobs(memory, lag, history), effort=QUICK)

    assert not found.lists_current
    assert found.creation is Creation.ATOMIC
    assert "Listings were late" in found.reasons[0]


def test_a_listing_that_shows_what_was_removed_is_noticed(memory):
    removed = []

    class Lingering(WrappedBlobs):
        def delete(self, names):
            removed.extend(BlobInfo(name, 0) for name in names)
            return self.inner.delete(names)

        def list(self, prefix, after=""):
            return iter([*self.inner.list(prefix, after), *removed])

    found = probe(lambda: Lingering(memory), effort=QUICK)

    assert found.reasons == (f"Listings were late for {QUICK.listings} names",)


def test_writers_of_a_race_begin_together(memory):
    writers = []

    class Watching(WrappedBlobs):
        def create(self, name, data):
            if len(data) == QUICK.large_bytes:
                writers.append(sum("Executor" in item.name for item in threading.enumerate()))
            return self.inner.create(name, data)

    probe(lambda: Watching(memory), effort=QUICK)

    assert writers == [QUICK.large_writers] * QUICK.large_writers


@pytest.mark.parametrize("kind", [BlobFaultKind.FAIL_BEFORE, BlobFaultKind.CUT])
def test_ranges_that_fail_are_noticed(memory, kind):
    fault = BlobFault(kind=kind, methods=frozenset({"get_ranges"}))

    found = probe(lambda: FaultyBlobs(memory, fault), effort=QUICK)

    assert found == EVERYTHING._replace(
        has_ranges=False, reasons=("Parts of a blob cannot be read",)
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (BlobFaultKind.FAIL_BEFORE, "Creating a new blob fails, and may have written it"),
        (BlobFaultKind.FAIL_AFTER, "Creating a new blob fails, and may have written it"),
    ],
)
def test_creating_that_always_fails_is_noticed(memory, kind, reason):
    fault = BlobFault(kind=kind, methods=frozenset({"create"}), is_lasting=True)

    found = probe(lambda: FaultyBlobs(memory, fault), effort=QUICK)

    assert (found.creation, found.reasons) == (Creation.NONE, (reason,))
    assert memory.content == {}


def test_a_writer_whose_answer_was_lost_is_no_fault_of_the_server(memory):
    fault = BlobFault(kind=BlobFaultKind.FAIL_AFTER, methods=frozenset({"create"}), number=2)

    # Every connection has its own count: the second one of each is in a race.
    assert probe(lambda: FaultyBlobs(memory, fault), effort=QUICK).creation is Creation.ATOMIC


class Refusing(WrappedBlobs):
    """May do all but one thing."""

    def __init__(self, inner, method):
        super().__init__(inner)
        self.method = method

    def around(self, method, proceed, arguments):
        if method == self.method:
            raise RemoteFailed("Not permitted", code=ErrorCode.REMOTE_DENIED)
        return proceed()


@pytest.mark.parametrize("method", ["put", "create", "get", "get_ranges", "list"])
def test_a_probe_that_may_not_work_is_an_error_and_leaves_nothing(memory, method):
    with pytest.raises(RemoteFailed, match="Not permitted"):
        probe(lambda: Refusing(memory, method), effort=QUICK)

    assert memory.content == {}


def test_what_a_writer_without_the_right_to_remove_leaves_is_told(memory):
    class Keeping(WrappedBlobs):
        def delete(self, names):
            return list(names)

    found = probe(lambda: Keeping(memory), effort=QUICK)

    assert found.lists_current
    assert found.reasons == (f"{len(memory.content)} blobs of the probe could not be removed",)


def test_every_connection_is_closed(memory):
    class Counted(WrappedBlobs):
        open_count = 0

        def __init__(self, inner):
            super().__init__(inner)
            Counted.open_count += 1

        def close(self):
            Counted.open_count -= 1

    probe(lambda: Counted(memory), effort=QUICK)
    with pytest.raises(RemoteFailed):
        probe(lambda: Refusing(Counted(memory), "list"), effort=QUICK)

    assert Counted.open_count == 0


def test_ceph_promises_everything(new_bucket, ceph):
    headers = new_bucket().server_headers()
    server = known_server("s3", "127.0.0.1", headers)

    found = probe(new_bucket, effort=QUICK._replace(large_bytes=4 << 20))

    assert server is not None
    assert server.name == "Ceph"
    assert found == EVERYTHING
    assert list(new_bucket().list("probe/")) == []
