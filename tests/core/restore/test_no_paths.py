"""A program that computed no paths means none of them, not the whole root."""

from __future__ import annotations

import pytest

import treesnap
from treesnap import InvalidArgument


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "call",
    [
        lambda handle, none: handle.create(none),
        lambda handle, none: handle.restore("latest", none),
        lambda handle, none: handle.restore("latest", none, to="elsewhere"),
        lambda handle, none: handle.diff("latest", None, none),
        lambda handle, none: handle.resolve("latest", paths=none),
        lambda handle, none: handle.rollback_on_error("step", paths=none).__enter__(),
    ],
)
@pytest.mark.parametrize("none", [[], (), iter([])])
def test_an_empty_list_of_paths_is_not_the_whole_root(tmp_path, call, none):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("before")
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()
    (root / "file").write_text("after")

    with pytest.raises(InvalidArgument, match="whole root"):
        call(handle, none)

    assert (root / "file").read_text() == "after"
    assert len(handle.list()) == 1


def test_none_is_the_whole_root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("before")
    handle = treesnap.open(root, tmp_path / "store")

    handle.create(None)
    (root / "file").write_text("after")

    assert [change.path for change in handle.diff(paths=None)] == [b"file"]
    handle.restore("latest", None)
    assert (root / "file").read_text() == "before"
