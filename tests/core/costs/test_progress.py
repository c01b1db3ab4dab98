"""Progress moves within large files, and adds up to what was done; counted, not timed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import treesnap
from treesnap import Handle, NullMonitor
from treesnap.core.model.events import ADVANCE_SIZE, Phase

pytestmark = pytest.mark.sampled(10)

SIZE = 40 << 20


class Counting(NullMonitor):
    """Keeps what was told of each phase."""

    def __init__(self) -> None:
        self.totals: dict[Phase, tuple[int | None, int | None]] = {}
        self.told: dict[Phase, list[tuple[int, int]]] = {}
        self.every: list[int] = []
        """The bytes of each call, whatever the phase."""
        self._phase = Phase.SCAN

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        self._phase = phase
        self.totals[phase] = (files, size_bytes)
        self.told[phase] = []

    def advance(self, files: int, size_bytes: int) -> None:
        self.told[self._phase].append((files, size_bytes))
        self.every.append(size_bytes)

    def sums(self, phase: Phase) -> tuple[int, int]:
        """Returns the files and bytes that were told of a phase."""
        files, sizes = zip(*self.told[phase], strict=True)
        return sum(files), sum(sizes)


@pytest.fixture
def monitor() -> Counting:
    return Counting()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    (path / "small").write_text("small")
    chance = random.Random(1)
    with (path / "large").open("wb") as file:
        for _ in range(SIZE >> 20):
            file.write(chance.randbytes(1 << 20))
    return path


@pytest.fixture
def handle(root: Path, tmp_path: Path, monitor: Counting) -> Handle:
    return treesnap.open(root, tmp_path / "store", monitor=monitor)


def assert_steady(monitor: Counting, phase: Phase, sums: tuple[int, int]) -> None:
    assert len(monitor.told[phase]) >= SIZE // ADVANCE_SIZE // 2
    assert max(size for _, size in monitor.told[phase]) <= 2 * ADVANCE_SIZE
    assert monitor.sums(phase) == sums


def test_a_capture_tells_of_a_large_file_while_it_is_read(handle, monitor):
    handle.create()

    assert_steady(monitor, Phase.SCAN, (2, SIZE + 5))
    assert monitor.totals[Phase.SCAN] == (None, None)


def test_a_second_capture_knows_the_total(handle, root, monitor):
    handle.create()
    (root / "large").touch()

    handle.create()

    assert monitor.totals[Phase.SCAN] == (2, SIZE + 5)
    assert_steady(monitor, Phase.SCAN, (2, SIZE + 5))


def test_a_capture_of_a_sparse_file_tells_of_it_once(handle, root, monitor):
    (root / "large").unlink()
    with (root / "sparse").open("wb") as file:
        file.truncate(10 << 30)

    handle.create()

    assert monitor.told[Phase.SCAN] == [(2, (10 << 30) + 5)]


def test_a_restore_tells_of_a_large_file_while_it_is_built(handle, root, monitor):
    handle.create()
    (root / "large").unlink()

    handle.restore("latest")

    assert monitor.totals[Phase.STAGE] == (1, SIZE)
    assert_steady(monitor, Phase.STAGE, (1, SIZE))


def test_a_restore_elsewhere_tells_of_a_large_file_too(handle, tmp_path, monitor):
    handle.create()

    handle.restore("latest", to=tmp_path / "copy")

    assert_steady(monitor, Phase.STAGE, (2, SIZE + 5))


def test_a_collection_tells_of_what_it_marks_and_rewrites(handle, root, monitor):
    first = handle.create()
    (root / "large").write_bytes(random.Random(2).randbytes(SIZE))
    handle.create()
    handle.delete(first.id)

    handle.gc()

    assert monitor.sums(Phase.MARK)[0] > SIZE >> 18
    wanted, _ = monitor.totals[Phase.REWRITE]
    assert wanted == monitor.sums(Phase.REWRITE)[0]


def test_verifying_content_tells_of_a_large_file_while_it_is_read(handle, monitor):
    handle.create()
    monitor.every.clear()

    handle.verify(read_data=True)

    assert sum(size > 0 for size in monitor.every) >= SIZE // ADVANCE_SIZE // 2
    assert max(monitor.every) <= 2 * ADVANCE_SIZE
