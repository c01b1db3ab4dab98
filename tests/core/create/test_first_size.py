"""Where a person can answer, a first snapshot that is large is told of before it is read."""

import pytest

import treesnap
from treesnap import Handle, NullMonitor, WarningCode

SIZE = 200_000
LIMIT = 3 * SIZE + 1000


class Declined(Exception):
    """A person said no."""


class Declining(NullMonitor):
    """Ends the capture when it is told that it is large, and knows what was read by then."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def advance(self, files: int, size_bytes: int) -> None:
        self.read_bytes += size_bytes

    def warn(self, code: WarningCode, message: str) -> None:
        assert code is WarningCode.ROOT_LARGE
        raise Declined


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def handle(tmp_path, root):
    return treesnap.open(root, tmp_path / "store")


@pytest.fixture
def monitor():
    return Declining()


@pytest.fixture
def attended(handle, root, monitor):
    """A handle on a root of four directories with ``SIZE`` bytes each, and a person before it."""
    for name in "abcd":
        (root / name).mkdir()
        (root / name / "data").write_bytes(bytes(range(200)) * (SIZE // 200))
    return Handle(handle.context._replace(monitor=monitor, is_attended=True))


def test_a_large_first_snapshot_is_told_of_before_anything_is_read(attended, handle, monitor):
    handle.config("ask-above", str(LIMIT))

    with pytest.raises(Declined):
        attended.create()

    assert monitor.read_bytes == 0
    assert attended.list() == ()


def test_what_is_excluded_does_not_count(attended, handle, root):
    handle.config("ask-above", str(LIMIT))
    (root / ".snapignore").write_text("d\n")

    assert attended.create().stats.size_bytes < 4 * SIZE


def test_without_a_person_it_is_told_of_while_it_is_read(attended, handle, monitor):
    handle.config("ask-above", str(LIMIT))

    with pytest.raises(Declined):
        Handle(attended.context._replace(is_attended=False)).create()

    assert monitor.read_bytes > LIMIT
