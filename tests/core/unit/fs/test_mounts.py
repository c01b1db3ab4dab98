"""Mounts, read from a list of the test's own."""

from __future__ import annotations

import pytest

from treesnap.core.fs import mounts
from treesnap.core.fs.mounts import COARSE_GRANULARITY_NS, PRECISE_GRANULARITY_NS, Mounts
from treesnap.testing.doubles import Call, WrappedFileSystem

pytestmark = pytest.mark.needs("mounts")

LINES = rb"""
22 1 0:21 / / rw shared:1 - ext4 /dev/vda rw
30 22 0:25 / /data rw shared:2 - vfat /dev/vdb rw
31 22 0:26 / /data/inner rw shared:3 master:1 - tmpfs tmpfs rw
32 22 0:27 / /with\040space/and\134slash rw - strange x rw
damaged line
"""


@pytest.fixture
def known(tmp_path, monkeypatch):
    path = tmp_path / "mountinfo"
    path.write_bytes(LINES)
    monkeypatch.setattr(mounts, "MOUNT_LIST", str(path))
    return Mounts(WrappedFileSystem())


@pytest.fixture
def unknown(monkeypatch):
    class Hidden(WrappedFileSystem):
        def around(self, call: Call):
            if call.method == "open":
                raise PermissionError
            return call.proceed()

    return Mounts(Hidden())


def test_mount_points_below_a_root_are_tree_paths(known):
    assert known.below(b"/data") == {b"inner"}
    assert known.below(b"/with space") == {b"and\\slash"}
    assert known.below(b"/data/inner") == set()


def test_names_that_only_begin_alike_are_not_below(known):
    assert known.below(b"/dat") == set()


@pytest.mark.parametrize("other_device", [True, False])
def test_a_listed_mount_is_crossed_whatever_its_device(known, other_device):
    points = known.below(b"/data")

    assert known.crosses(b"inner", points, other_device=other_device)
    assert not known.crosses(b"subvolume", points, other_device=other_device)


def test_without_a_list_another_device_is_a_mount(unknown):
    assert unknown.crosses(b"any", frozenset(), other_device=True)
    assert not unknown.crosses(b"any", frozenset(), other_device=False)


@pytest.mark.parametrize(
    ("path", "granularity_ns"),
    [
        ("/home/me", PRECISE_GRANULARITY_NS),
        ("/data/photographs", COARSE_GRANULARITY_NS),
        ("/data/inner/deep", PRECISE_GRANULARITY_NS),
        ("/with space/and\\slash", COARSE_GRANULARITY_NS),
        ("/", PRECISE_GRANULARITY_NS),
    ],
)
def test_times_are_as_exact_as_the_file_system(known, path, granularity_ns):
    assert known.granularity_ns(path) == granularity_ns


def test_without_a_list_times_are_not_trusted_far(unknown):
    assert unknown.granularity_ns("/home/me") == COARSE_GRANULARITY_NS
