"""Every call of an operation that changes or syncs the disk fails once.

The operation raises one of our errors, and the tree is exactly as before, at once,
without a journal. Or it copes: then the tree is as after, at the latest when the
next command has tidied up. An error that comes again while everything is put back
leaves a journal, and the next command finishes.
"""

from __future__ import annotations

import errno
import gc

import pytest

from descriptors import open_descriptors
from everywhere import fail_everywhere
from treesnap.core.fs.base import Unsupported
from treesnap.core.model.errors import OperationFailed, StorageFull, TreesnapError
from treesnap.testing.doubles import Fault, FaultyFileSystem, Kind, error_at

pytestmark = pytest.mark.sampled(10)

NO_EXCHANGE = Fault(
    methods=frozenset({"exchange"}), errno=errno.EINVAL, error=Unsupported, lasting=True
)


def assert_undone_or_done(scene, error: TreesnapError | None, old: str, new: str) -> str:
    """Asserts that the tree is as before with an error, and as after without one."""
    if error is None:
        scene.handle().recover()
    assert not list(scene.store.glob("roots/*/journal")), error
    return scene.name_of_state(old if error is not None else new)


class TestRestore:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_is_undone_or_done(self, scene, number):
        outcomes = fail_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before"),
            lambda error: assert_undone_or_done(scene, error, "after", "before"),
            lambda point: error_at(point, number),
        )

        assert set(outcomes) == {"after", "before"}

    def test_is_undone_or_done_where_something_is_not_permitted(self, scene):
        """But for metadata: where that is not permitted, the restore says so and goes on."""
        outcomes = fail_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before"),
            lambda error: assert_undone_or_done(scene, error, "after", "before"),
            lambda point: Fault(
                number=point, errno=errno.EACCES, kinds=frozenset({Kind.NAME, Kind.WRITE})
            ),
        )

        assert set(outcomes) == {"after", "before"}

    def test_is_undone_where_names_cannot_be_exchanged(self, scene):
        outcomes = fail_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before"),
            lambda error: assert_undone_or_done(scene, error, "after", "before"),
            lambda point: error_at(point, errno.EIO),
            NO_EXCHANGE,
        )

        assert set(outcomes) == {"after", "before"}

    def test_that_stays_impossible_is_finished_by_the_next_command(self, scene):
        """The disk fails from one call on and for good; then it is replaced."""

        def check(error: TreesnapError | None) -> str:
            return scene.recovered("after", "before")

        assert fail_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before"),
            check,
            lambda point: error_at(point, errno.EIO, lasting=True),
            every=2,
        )

    def test_says_that_there_is_no_space(self, scene):
        scene.reset("changed")
        fault = Fault(
            methods=frozenset({"write_at"}),
            where=lambda call: ".treesnap-restore" in call.path,
            errno=errno.ENOSPC,
        )

        with pytest.raises(StorageFull):
            scene.handle(FaultyFileSystem(fault)).restore("before")

    def test_that_fails_after_some_of_its_steps_puts_all_of_them_back(self, scene):
        scene.reset("changed")
        fault = Fault(methods=frozenset({"exchange"}), number=3, errno=errno.EIO)

        with pytest.raises(OperationFailed):
            scene.handle(FaultyFileSystem(fault)).restore("before")

        assert scene.name_of_state("after") == "after"

    def test_says_what_failed_and_where(self, scene):
        scene.reset("changed")
        fault = Fault(methods=frozenset({"exchange"}), errno=errno.EIO)

        with pytest.raises(OperationFailed, match=r"Could not restore at .*: Input/output error"):
            scene.handle(FaultyFileSystem(fault)).restore("before")

    def test_leaves_no_descriptor_open(self, scene):
        gc.collect()  # mappings of the index end with the last reference to them
        before = open_descriptors()

        fail_everywhere(
            scene,
            "changed",
            lambda handle: handle.restore("before"),
            lambda error: "",
            lambda point: error_at(point, errno.EIO),
            every=3,
        )

        gc.collect()
        assert open_descriptors() == before


def test_undo_is_undone_or_done(scene):
    assert fail_everywhere(
        scene,
        "restored",
        lambda handle: handle.undo(),
        lambda error: assert_undone_or_done(scene, error, "before", "after"),
        lambda point: error_at(point, errno.EIO),
        every=2,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("number", "counts"), [(errno.EIO, {"1", "2"}), (errno.ENOSPC, {"2"})], ids=["EIO", "ENOSPC"]
)
def test_create_that_fails_leaves_a_store_that_works(scene, number, counts):
    """A disk that is full for a moment fails nothing: it is tried again."""

    def check(error: TreesnapError | None) -> str:
        count = len(scene.handle().list())
        assert error is not None or count == 2
        scene.recovered("after")
        return str(count)

    outcomes = fail_everywhere(
        scene,
        "changed",
        lambda handle: handle.create(),
        check,
        lambda point: error_at(point, number),
    )

    assert set(outcomes) == counts


def test_gc_that_fails_loses_nothing(scene):
    def check(error: TreesnapError | None) -> str:
        handle = scene.handle()
        assert handle.verify(read_data=True).ok
        handle.gc()
        assert handle.verify(read_data=True).ok
        handle.restore("before")
        return scene.name_of_state("before")

    assert fail_everywhere(
        scene,
        "garbage",
        lambda handle: handle.gc(),
        check,
        lambda point: error_at(point, errno.EIO),
    )
