"""Blobs in a directory: whole or absent, whatever call fails and whichever process is killed."""

from __future__ import annotations

import errno
import fcntl
import os
import stat as stat_module
from random import Random

import pytest

from cuts import cuts
from descriptors import open_descriptors
from disk import materialise
from mounting import mounting
from power import PoweredFileSystem
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.remote.blobs.base import NEAR_BYTES
from treesnap.remote.blobs.directory import DirectoryBlobs
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultMoment,
    FaultyFileSystem,
    Killed,
    Kind,
    RecordingFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
)

OLD, NEW = b"old content", b"the new content"
NO_LINKS = Fault(methods=frozenset({"link"}), errno=errno.EPERM, lasting=True)
WITHOUT_LINKS = pytest.param((NO_LINKS,), marks=pytest.mark.needs("absent names"))
RENAME_TO_ABSENT = pytest.param("rename_to_absent", marks=pytest.mark.needs("absent names"))


def make_place(path):
    """Makes a remote with one blob of each of two kinds."""
    for kind in ("packs", "state"):
        (path / kind).mkdir(parents=True)
        (path / kind / "00").write_bytes(OLD)
    (path / "format").write_bytes(b"format")
    return path


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path / "remote")


def opened(place, *faults, make=False):
    """Returns the blobs of a place on a file system that fails, and the file system."""
    fs = FaultyFileSystem(*faults, inner=UnsyncedFileSystem())
    return DirectoryBlobs(fs, str(place), make=make), fs


def contents(place):
    """Returns what a reader finds: every blob that is listed, and ``format``."""
    blobs = DirectoryBlobs(UnsyncedFileSystem(), str(place), make=True)
    names = [item.name for kind in ("packs/", "state/") for item in blobs.list(kind)]
    found = {name: blobs.get(name) for name in names}
    blobs.close()
    return found


def unfinished(place):
    return sorted(path.name for path in place.rglob(".*"))


BEFORE = {"packs/00": OLD, "state/00": OLD}


# -------------------------------------------------------------- every call fails

WRITING = {
    "put a new blob": (lambda blobs: blobs.put("packs/01", NEW), {"packs/01": NEW}),
    "put a blob that exists": (lambda blobs: blobs.put("packs/00", NEW), {"packs/00": NEW}),
    "put the first of a kind": (lambda blobs: blobs.put("index/00", NEW), {"index/00": NEW}),
    "create a new blob": (lambda blobs: blobs.create("state/01", NEW), {"state/01": NEW}),
    "create a blob that exists": (lambda blobs: blobs.create("state/00", NEW), {}),
    "remove": (lambda blobs: blobs.delete(["packs/00", "packs/01"]), {"packs/00": None}),
}
"""What is done, and what it changes."""
READING = {
    "read": lambda blobs: blobs.get("packs/00"),
    "read parts": lambda blobs: blobs.get_ranges("packs/00", [(0, 3), (3, 30)]),
    "look": lambda blobs: blobs.size_bytes("packs/00"),
    "list": lambda blobs: list(blobs.list("packs/")),
    "sweep": lambda blobs: blobs.sweep_unfinished(),
}
KINDS_TOLD = frozenset(Kind) - {Kind.HANDLE}
"""Closing and unlocking may fail unnoticed: everything was synced before."""
WRITTEN = {"put a new blob", "put a blob that exists", "create a new blob"}


def count_calls(action, place, *faults):
    """Returns how many calls open a place, and how many there are after an operation."""
    counted = Fault(number=1_000_000, kinds=KINDS_TOLD)
    blobs, fs = opened(place, *faults, counted)
    opening = fs.seen_of(counted)
    action(blobs)
    total = fs.seen_of(counted)
    blobs.close()
    return opening, total


def after(change):
    return {name: data for name, data in {**BEFORE, **change}.items() if data is not None}


@pytest.mark.parametrize("faults", [(), WITHOUT_LINKS], ids=["with links", "without links"])
@pytest.mark.parametrize(
    ("number_errno", "moment"),
    [
        (errno.EIO, FaultMoment.BEFORE),
        (errno.EIO, FaultMoment.AFTER),
        (errno.ENOSPC, FaultMoment.HALFWAY),
        (None, FaultMoment.BEFORE),
        (None, FaultMoment.HALFWAY),
    ],
    ids=["fails", "succeeds and fails", "has no room", "is killed", "is killed halfway"],
)
@pytest.mark.parametrize("name", WRITING)
def test_a_call_that_fails_leaves_every_blob_whole(tmp_path, name, number_errno, moment, faults):
    action, change = WRITING[name]
    opening, total = count_calls(action, make_place(tmp_path / "counted"), *faults)
    for number in range(opening + 1, total + 1):
        place = make_place(tmp_path / str(number))
        fault = Fault(number=number, errno=number_errno, kinds=KINDS_TOLD, moment=moment)
        blobs, fs = opened(place, *faults, fault)
        raised = None
        try:
            action(blobs)
        except (RemoteFailed, Killed) as error:
            raised = error
        blobs.close()

        assert fs.hits_of(fault) == 1
        found = contents(place)
        assert found in (BEFORE, after(change)), f"call {number}"
        if raised is None and name in WRITTEN:
            assert found == after(change), f"call {number}"
        if isinstance(raised, RemoteFailed) and not raised.is_unclear and name in WRITTEN:
            assert found == BEFORE, f"call {number}: it was written"
        sweep(place)
        assert (contents(place), unfinished(place)) == (found, [])


@pytest.mark.parametrize("name", READING)
def test_a_call_that_fails_while_blobs_are_read_is_told(tmp_path, name):
    action = READING[name]
    place = make_place(tmp_path / "remote")
    opening, total = count_calls(action, place)
    expected = action(opened(place)[0])
    for number in range(opening + 1, total + 1):
        blobs, _ = opened(place, Fault(number=number, errno=errno.EIO, kinds=KINDS_TOLD))
        with pytest.raises(RemoteFailed) as caught:
            action(blobs)
        blobs.close()
        assert caught.value.code == ErrorCode.REMOTE_UNREACHABLE, f"call {number}"

    assert action(opened(place)[0]) == expected
    assert contents(place) == BEFORE


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("make", [False, True])
def test_a_call_that_fails_at_the_opening_is_told(tmp_path, number, make):
    place = tmp_path / "remote" if make else make_place(tmp_path / "remote")
    before = len(open_descriptors())
    fault = Fault(number=number, errno=errno.EIO, kinds=KINDS_TOLD)

    with pytest.raises(RemoteFailed) as caught:
        opened(place, fault, make=make)[0].put("packs/01", NEW)

    assert caught.value.code == ErrorCode.REMOTE_UNREACHABLE
    assert len(open_descriptors()) <= before + 1


@pytest.mark.parametrize("method", ["close", "unlock"])
def test_descriptors_that_fail_to_close_are_no_failure(place, method):
    fault = Fault(methods=frozenset({method}), errno=errno.EIO, lasting=True)
    blobs, fs = opened(place, fault)

    assert blobs.create("state/01", NEW)
    assert blobs.get("state/01") == NEW

    blobs.close()
    assert fs.hits_of(fault)


def sweep(place) -> int:
    blobs = DirectoryBlobs(UnsyncedFileSystem(), str(place))
    count = blobs.sweep_unfinished()
    blobs.close()
    return count


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_an_error_before_the_blob_is_published_leaves_no_file(place, name):
    action, _ = WRITING[name]
    fault = Fault(methods=frozenset({"sync_data"}), errno=errno.EIO)
    blobs, _ = opened(place, fault)

    with pytest.raises(RemoteFailed):
        action(blobs)

    blobs.close()
    assert (contents(place), unfinished(place)) == (BEFORE, [])


@pytest.mark.parametrize("faults", [(), WITHOUT_LINKS], ids=["with links", "without links"])
@pytest.mark.parametrize("name", sorted(WRITTEN | {"remove"}))
def test_what_was_done_survives_a_power_cut(tmp_path, place, name, faults):
    action, change = WRITING[name]
    powered = PoweredFileSystem(str(place))
    blobs = DirectoryBlobs(FaultyFileSystem(*faults, inner=powered), str(place))
    action(blobs)
    powered.note_return()
    blobs.close()

    seen = 0
    left = tmp_path / "left"
    left.mkdir()
    for cut in cuts(powered.recording(), random=Random(0)):
        materialise(cut.disk, str(left))
        found = contents(left)
        is_after = cut.moment.is_after_return
        assert found in ([after(change)] if is_after else [BEFORE, after(change)]), cut
        seen += is_after
    assert seen


def test_a_new_kind_survives_a_power_cut(tmp_path, place):
    powered = PoweredFileSystem(str(place))
    blobs = DirectoryBlobs(powered, str(place))
    blobs.put("index/00", NEW)
    powered.note_return()
    blobs.close()

    left = tmp_path / "left"
    left.mkdir()
    found = set()
    for cut in cuts(powered.recording(), random=Random(0)):
        if cut.moment.is_after_return:
            materialise(cut.disk, str(left))
            found.add((left / "index" / "00").read_bytes())

    assert found == {NEW}


def test_a_kind_that_a_killed_writer_made_is_made_durable(place):
    (place / "index").mkdir()
    fs = RecordingFileSystem(UnsyncedFileSystem())
    blobs = DirectoryBlobs(fs, str(place))

    blobs.put("index/00", NEW)
    first = [item.path for item in fs.syncs]
    fs.clear()
    blobs.put("index/01", NEW)

    assert first[0] == str(place)
    assert [os.path.dirname(item.path) for item in fs.syncs] == [f"{place}/index", str(place)]
    blobs.close()


# --------------------------------------------------- file systems that can do less


@pytest.mark.needs("absent names")
def test_without_hard_links_a_blob_is_created_by_a_rename_that_replaces_nothing(place):
    blobs, _ = opened(place, NO_LINKS)

    assert blobs.create("state/01", NEW)
    assert not blobs.create("state/01", b"another")

    blobs.close()
    assert contents(place) == {**BEFORE, "state/01": NEW}
    assert unfinished(place) == []


class LookingFirst(WrappedFileSystem):
    """Has no hard links; and no rename that replaces nothing, but one that looks first."""

    def around(self, call: Call):
        if call.method == "link":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        if call.method == "rename_to_absent" and call.options.get("or_fail"):
            raise Unsupported(errno.EINVAL, os.strerror(errno.EINVAL))
        return call.proceed()


def test_without_links_and_such_a_rename_creating_fails_and_writes_nothing(place):
    blobs = DirectoryBlobs(LookingFirst(UnsyncedFileSystem()), str(place))

    with pytest.raises(RemoteFailed, match="neither hard links nor a rename") as caught:
        blobs.create("state/01", NEW)
    blobs.put("packs/01", NEW)

    blobs.close()
    assert (caught.value.code, caught.value.is_unclear) == (ErrorCode.REMOTE_FAILED, False)
    assert contents(place) == {**BEFORE, "packs/01": NEW}
    assert unfinished(place) == []


def test_in_a_directory_that_may_not_be_changed_creating_is_denied(place):
    no_rename = Fault(methods=frozenset({"rename_to_absent"}), errno=errno.EPERM, lasting=True)
    blobs, _ = opened(place, NO_LINKS, no_rename)

    with pytest.raises(RemoteFailed) as caught:
        blobs.create("state/01", NEW)

    blobs.close()
    assert (caught.value.code, caught.value.is_unclear) == (ErrorCode.REMOTE_DENIED, False)


@pytest.mark.parametrize("method", ["link", "rename", RENAME_TO_ABSENT])
@pytest.mark.parametrize("number_errno", [errno.EEXIST, errno.ENOENT, errno.EIO])
def test_a_request_that_a_file_server_repeats_counts_as_done(place, method, number_errno):
    """The second one finds what the first has done."""
    fault = Fault(methods=frozenset({method}), errno=number_errno, moment=FaultMoment.AFTER)
    faults = (NO_LINKS, fault) if method == "rename_to_absent" else (fault,)
    blobs, fs = opened(place, *faults)

    if method == "rename":
        blobs.put("state/01", NEW)
    else:
        assert blobs.create("state/01", NEW)

    blobs.close()
    assert fs.hits_of(fault) == 1
    assert contents(place) == {**BEFORE, "state/01": NEW}


@pytest.mark.parametrize(
    ("number_errno", "is_unclear"),
    [(errno.EIO, True), (errno.ETIMEDOUT, True), (errno.EACCES, False), (errno.EDQUOT, False)],
)
@pytest.mark.parametrize("method", ["link", RENAME_TO_ABSENT])
def test_a_file_server_may_still_do_what_it_did_not_refuse(place, method, number_errno, is_unclear):
    fault = Fault(methods=frozenset({method}), errno=number_errno)
    faults = (NO_LINKS, fault) if method == "rename_to_absent" else (fault,)
    blobs, _ = opened(place, *faults)

    with pytest.raises(RemoteFailed) as caught:
        blobs.create("state/01", NEW)

    blobs.close()
    assert caught.value.is_unclear is is_unclear
    assert contents(place) == BEFORE


def test_without_locks_blobs_are_written_and_nothing_is_swept(place):
    no_locks = Fault(
        methods=frozenset({"lock"}), errno=errno.ENOLCK, error=Unsupported, lasting=True
    )
    blobs, _ = opened(place, no_locks)
    left = place / "packs" / ".unfinished-0123456789abcdef"
    left.touch()

    blobs.put("packs/01", NEW)

    assert blobs.sweep_unfinished() == 0
    blobs.close()
    assert left.exists()
    assert contents(place)["packs/01"] == NEW


def test_a_file_system_that_cannot_lock_for_another_reason_is_an_error(place):
    blobs, _ = opened(place, Fault(methods=frozenset({"lock"}), errno=errno.EIO))

    with pytest.raises(RemoteFailed):
        blobs.put("packs/01", NEW)

    blobs.close()
    assert unfinished(place) == []


# ------------------------------------------------------------------------ sweeping


def leftover(place, kind="packs"):
    """Lets a writer die while it writes."""
    fs = FaultyFileSystem(
        Fault(kinds=frozenset({Kind.WRITE}), moment=FaultMoment.HALFWAY), inner=UnsyncedFileSystem()
    )
    blobs = DirectoryBlobs(fs, str(place))
    with pytest.raises(Killed):
        blobs.put("format" if not kind else f"{kind}/77", NEW)
    blobs.close()


def test_what_killed_writers_left_is_invisible_and_swept(place):
    for kind in ("packs", "state", ""):
        leftover(place, kind)
    left = unfinished(place)
    blobs, _ = opened(place)

    listed = contents(place)
    count = blobs.sweep_unfinished()

    blobs.close()
    assert len(left) == count == 3
    assert listed == contents(place) == BEFORE
    assert unfinished(place) == []


def test_a_file_of_a_living_writer_is_not_swept(place):
    class Meanwhile(WrappedFileSystem):
        """Sweeps while a writer writes."""

        def around(self, call: Call):
            if call.kind is Kind.WRITE:
                other, _ = opened(place)
                assert other.sweep_unfinished() == 0
                other.close()
                assert len(unfinished(place)) == 1
            return call.proceed()

    blobs = DirectoryBlobs(Meanwhile(UnsyncedFileSystem()), str(place))

    blobs.put("packs/01", NEW)

    blobs.close()
    assert contents(place) == {**BEFORE, "packs/01": NEW}


class Stolen(WrappedFileSystem):
    """Removes temporary files before they are published, as a machine does that sees no locks."""

    def __init__(self, times: int) -> None:
        super().__init__(UnsyncedFileSystem())
        self.times = times

    def around(self, call: Call):
        if call.method in {"link", "rename"} and self.times:
            self.times -= 1
            os.unlink(call.path)
        return call.proceed()


@pytest.mark.parametrize("method", ["put", "create"])
def test_a_file_that_was_swept_all_the_same_is_written_again(place, method):
    blobs = DirectoryBlobs(Stolen(2), str(place))

    getattr(blobs, method)("packs/01", NEW)

    blobs.close()
    assert contents(place) == {**BEFORE, "packs/01": NEW}


def test_a_file_that_is_swept_every_time_is_given_up(place):
    blobs = DirectoryBlobs(Stolen(3), str(place))

    with pytest.raises(RemoteFailed, match="No such file") as caught:
        blobs.put("packs/01", NEW)

    blobs.close()
    assert not caught.value.is_unclear
    assert contents(place) == BEFORE


def test_a_sweep_removes_no_other_files(place):
    others = ["packs/.unfinished-0123", "packs/.hidden", "packs/unfinished-0123456789abcdef"]
    for name in others:
        (place / name).touch()
    (place / "packs" / ".unfinished-0123456789abcdee").mkdir()
    (place / "packs" / ".unfinished-0123456789abcdef").symlink_to("00")
    (place / "Other").mkdir()
    (place / "Other" / ".unfinished-0123456789abcdef").touch()
    (place / "link").symlink_to(place / "Other")
    before = sorted(place.rglob("*"))
    blobs, _ = opened(place)

    assert blobs.sweep_unfinished() == 0

    blobs.close()
    assert sorted(place.rglob("*")) == before


# --------------------------------------------------------------- what is no blob


def test_links_are_not_followed(place, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "00").write_bytes(b"secret")
    (place / "keys").symlink_to(tmp_path / "outside")
    (place / "packs" / "07").symlink_to(tmp_path / "outside" / "00")
    blobs, _ = opened(place)

    for use in (
        lambda: blobs.get("keys/00"),
        lambda: blobs.put("keys/00", NEW),
        lambda: blobs.create("keys/01", NEW),
        lambda: list(blobs.list("keys/")),
        lambda: blobs.delete(["keys/00"]),
        lambda: blobs.get("packs/07"),
        lambda: blobs.size_bytes("packs/07"),
    ):
        with pytest.raises(RemoteFailed):
            use()
    blobs.put("packs/07", NEW)

    blobs.close()
    assert (tmp_path / "outside" / "00").read_bytes() == b"secret"
    assert os.listdir(tmp_path / "outside") == ["00"]
    assert contents(place) == {**BEFORE, "packs/07": NEW}


def test_a_link_is_not_created_over(place, tmp_path):
    (place / "state" / "01").symlink_to(tmp_path / "nowhere")
    blobs, _ = opened(place)

    assert not blobs.create("state/01", NEW)

    blobs.close()
    assert not (tmp_path / "nowhere").exists()


def test_other_files_are_not_listed_and_not_read(place):
    (place / "packs" / "README").touch()
    (place / "packs" / "05").mkdir()
    os.mkfifo(place / "packs" / "06")
    (place / "packs" / "07").symlink_to("00")
    blobs, _ = opened(place)

    for name in ("packs/05", "packs/06"):
        with pytest.raises(RemoteFailed, match="not a regular file"):
            blobs.get(name)

    assert [item.name for item in blobs.list("packs/")] == ["packs/00"]
    blobs.close()


def test_a_blob_that_goes_while_it_is_listed_is_left_out(place):
    class Removing(WrappedFileSystem):
        def around(self, call: Call):
            result = call.proceed()
            if call.method == "list_names":
                (place / "packs" / "00").unlink()
            return result

    blobs = DirectoryBlobs(Removing(), str(place))

    assert list(blobs.list("packs/")) == []
    blobs.close()


def test_a_file_that_grows_while_it_is_read_is_not_read_without_end(place):
    class Growing(WrappedFileSystem):
        def around(self, call: Call):
            result = call.proceed()
            if call.method == "fstat" and call.path.endswith("00"):
                with (place / "packs" / "00").open("ab") as file:
                    file.write(b"more")
            return result

    blobs = DirectoryBlobs(Growing(), str(place))

    with pytest.raises(RemoteFailed, match="are read at most"):
        blobs.get("packs/00", len(OLD))
    blobs.close()


def test_near_ranges_are_read_with_one_call(place):
    (place / "packs" / "01").write_bytes(b"x" * (3 * NEAR_BYTES))
    fs = RecordingFileSystem()
    blobs = DirectoryBlobs(fs, str(place))

    blobs.get_ranges("packs/01", [(0, 10), (NEAR_BYTES, 10), (3 * NEAR_BYTES - 10, 5)])

    assert [item.size_bytes for item in fs.calls("read_at")] == [NEAR_BYTES + 10, 5]
    blobs.close()


def test_a_request_for_much_more_than_there_is_takes_no_memory(place):
    blobs, _ = opened(place)

    assert list(blobs.get_ranges("packs/00", [(4, 1 << 50)])) == [OLD[4:]]
    blobs.close()


# ------------------------------------------------------- where no remote is, or fails


def test_a_mount_point_without_its_disk_is_not_a_remote(tmp_path):
    (tmp_path / "remote").mkdir()

    with pytest.raises(RemoteFailed, match="no file 'format'") as caught:
        DirectoryBlobs(LocalFileSystem(), str(tmp_path / "remote"))

    assert caught.value.code == ErrorCode.REMOTE_MISSING
    assert caught.value.endpoint == str(tmp_path / "remote")
    assert os.listdir(tmp_path / "remote") == []


@pytest.mark.parametrize("make", [False, True])
def test_a_directory_whose_parent_is_missing_is_missing(tmp_path, make):
    with pytest.raises(RemoteFailed, match="No such file") as caught:
        DirectoryBlobs(LocalFileSystem(), str(tmp_path / "absent" / "remote"), make=make)

    assert caught.value.code == ErrorCode.REMOTE_MISSING
    assert os.listdir(tmp_path) == []


def test_a_new_directory_is_durable(tmp_path):
    fs = RecordingFileSystem(UnsyncedFileSystem())

    DirectoryBlobs(fs, str(tmp_path / "remote"), make=True).close()

    assert [item.path for item in fs.syncs][-1] == str(tmp_path)


def test_a_file_is_not_a_remote(tmp_path):
    (tmp_path / "file").touch()

    for make in (False, True):
        with pytest.raises(RemoteFailed, match="Not a directory"):
            DirectoryBlobs(LocalFileSystem(), str(tmp_path / "file"), make=make)


def test_a_remote_may_be_named_by_a_link(place, tmp_path):
    (tmp_path / "link").symlink_to(place)
    blobs = DirectoryBlobs(LocalFileSystem(), str(tmp_path / "link"))

    assert blobs.get("packs/00") == OLD
    blobs.close()


def test_a_directory_that_was_removed_is_not_an_empty_one(tmp_path):
    blobs = DirectoryBlobs(LocalFileSystem(), str(tmp_path / "remote"), make=True)
    (tmp_path / "remote").rmdir()

    for use in (
        lambda: blobs.list("packs/"),
        lambda: blobs.get("packs/00"),
        lambda: blobs.put("packs/00", NEW),
        lambda: blobs.delete(["packs/00"]),
    ):
        with pytest.raises(RemoteFailed) as caught:
            use()
        assert caught.value.code == ErrorCode.REMOTE_MISSING
    blobs.close()


def test_closed_blobs_do_nothing(place):
    blobs, _ = opened(place)
    blobs.close()
    blobs.close()

    with pytest.raises(RemoteFailed):
        blobs.put("packs/01", NEW)

    assert contents(place) == BEFORE


@pytest.mark.parametrize(
    ("number_errno", "code"),
    [
        (errno.ENOSPC, ErrorCode.REMOTE_FULL),
        (errno.EDQUOT, ErrorCode.REMOTE_FULL),
        (errno.EACCES, ErrorCode.REMOTE_DENIED),
        (errno.EROFS, ErrorCode.REMOTE_DENIED),
        (errno.EIO, ErrorCode.REMOTE_UNREACHABLE),
        (errno.ENODEV, ErrorCode.REMOTE_UNREACHABLE),
        (errno.ESTALE, ErrorCode.REMOTE_UNREACHABLE),
        (errno.ETIMEDOUT, ErrorCode.REMOTE_UNREACHABLE),
        (errno.EMFILE, ErrorCode.REMOTE_FAILED),
    ],
)
def test_errors_have_the_code_that_says_what_to_do(place, number_errno, code):
    fault = Fault(kinds=frozenset({Kind.WRITE}), errno=number_errno)
    blobs, _ = opened(place, fault)

    with pytest.raises(RemoteFailed, match=os.strerror(number_errno)) as caught:
        blobs.create("packs/01", NEW)

    blobs.close()
    error = caught.value
    assert (error.code, error.errno, error.is_unclear) == (code, number_errno, False)
    assert error.endpoint == error.path == str(place)
    assert contents(place) == BEFORE


def test_a_full_disk_leaves_what_is_there(tmp_path):
    with mounting() as mounter:
        disk = mounter.tmpfs(tmp_path / "disk", "1m")
        blobs = DirectoryBlobs(LocalFileSystem(), str(disk / "remote"), make=True)
        blobs.put("packs/00", OLD)

        with pytest.raises(RemoteFailed) as caught:
            blobs.put("packs/00", bytes(2 << 20))

        assert caught.value.code == ErrorCode.REMOTE_FULL
        assert (blobs.get("packs/00"), unfinished(disk)) == (OLD, [])
        blobs.close()


def test_a_disk_that_is_mounted_read_only_is_read(tmp_path):
    with mounting() as mounter:
        disk = mounter.tmpfs(tmp_path / "disk")
        place = make_place(disk / "remote")
        mounter.read_only(disk)
        blobs = DirectoryBlobs(LocalFileSystem(), str(place))

        for use in (
            lambda: blobs.put("packs/01", NEW),
            lambda: blobs.put("index/00", NEW),
            lambda: blobs.create("state/01", NEW),
            lambda: blobs.delete(["packs/00"]),
        ):
            with pytest.raises(RemoteFailed, match="Read-only") as caught:
                use()
            assert (caught.value.code, caught.value.is_unclear) == (ErrorCode.REMOTE_DENIED, False)

        assert blobs.get("packs/00") == OLD
        blobs.close()


def test_blobs_that_may_not_be_removed_are_told(place):
    fault = Fault(
        methods=frozenset({"unlink"}), errno=errno.EPERM, where=lambda call: "00" in call.path
    )
    blobs, _ = opened(place, fault)
    blobs.put("packs/01", NEW)

    assert list(blobs.delete(["packs/00", "packs/01", "state/00"])) == ["packs/00"]

    blobs.close()
    assert contents(place) == {"packs/00": OLD}


def test_files_get_the_permissions_of_the_directory(tmp_path):
    path = tmp_path / "remote"
    path.mkdir()
    path.chmod(0o750)
    blobs = DirectoryBlobs(UnsyncedFileSystem(), str(path), make=True)

    blobs.put("packs/00", NEW)
    blobs.create("packs/01", NEW)

    blobs.close()
    modes = {item.name: stat_module.S_IMODE(item.stat().st_mode) for item in path.rglob("*")}
    assert modes == {"packs": 0o750, "00": 0o640, "01": 0o640}


def test_a_lock_is_given_back_when_the_blob_is_written(place):
    blobs, _ = opened(place)
    blobs.create("packs/01", NEW)

    with (place / "packs" / "01").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    blobs.close()
