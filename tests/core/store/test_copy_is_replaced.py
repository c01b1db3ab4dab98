"""Another user replaces the directory of a copy while it is written: nothing else is changed."""

from __future__ import annotations

import errno
import os

import pytest

import treesnap
from beside import AtCall
from sampling import sized
from state import differences, tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import Fault, FaultyFileSystem, UnsyncedFileSystem

pytestmark = pytest.mark.needs("exchange")

OTHER_FILE_SYSTEM = Fault(errno=errno.EXDEV, methods=frozenset({"exchange"}))


@pytest.mark.parametrize("verb", ["store_copy", "store_move"])
def test_a_link_in_the_place_of_a_copy_is_not_followed(tmp_path, verb):
    """Before each of its calls; the victim's directory has all names that a copy has."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("content")
    replaced, ends = 0, set()
    for number in range(1, 3000, sized(59, 1)):
        place = tmp_path / str(number)
        place.mkdir()
        store, victim = place / "store", place / "victim"
        handle = treesnap.open(root, store)
        handle.create()
        handle.config("keep.last", "70")
        treesnap.open(root, store).store_copy(victim)
        (victim / "config.toml").write_text("# of the victim\n")
        before = tree_state(victim)
        partial = place / "new.partial"

        def swap(partial=partial, victim=victim, place=place) -> None:
            if partial.is_dir():
                partial.rename(place / "gone")
                partial.symlink_to(victim)

        inner = FaultyFileSystem(OTHER_FILE_SYSTEM, inner=UnsyncedFileSystem())
        fs = AtCall(inner, number, swap)
        handle = Handle(context_at(root, str(store), fs=fs))
        ended = None
        try:
            getattr(handle, verb)(place / "new")
        except TreesnapError as error:
            ended = error.code
        assert differences(before, tree_state(victim)) == [], number
        if os.path.lexists(place / "gone"):
            replaced += 1
            ends.add(ended)
            assert treesnap.open(root, store).verify(read_data=True).ok
        if fs.left > 0:
            break
    assert replaced > sized(2, 150)
    assert (
        {ErrorCode.FOREIGN_OWNER} <= ends <= {ErrorCode.FOREIGN_OWNER, ErrorCode.TARGET_NOT_EMPTY}
    )
