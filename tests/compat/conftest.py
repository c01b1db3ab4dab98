"""A directory without git, a store, and a session: what a face is used with."""

from __future__ import annotations

import uuid

import pytest

from treesnap.compat.maestro import Checkpoint, CheckpointManager, CheckpointPhase
from treesnap.compat.maker import carry_out
from treesnap.compat.maker_result import result_text


@pytest.fixture
def root(tmp_path):
    """A directory with two files."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "code.py").write_text("one")
    (root / "notes").mkdir()
    (root / "notes" / "plan.md").write_text("plan")
    return root


@pytest.fixture
def app(tmp_path):
    """The directory of MAKER's worked examples."""
    path = tmp_path / "my-app"
    (path / "src/utils").mkdir(parents=True)
    (path / "src/utils/validator.ts").write_text("export {}\n")
    return path


@pytest.fixture
def store(tmp_path):
    """Where the store is, or will be."""
    return tmp_path / "store"


@pytest.fixture
def run(store):
    """Carries a block of MAKER's out in this process and returns the text of the result."""

    def carried(block: str | bytes, **options) -> str:
        data = block if isinstance(block, bytes) else block.encode()
        return result_text(carry_out(data, store=store, **options))

    return carried


@pytest.fixture(autouse=True)
def standing_in_the_root(tmp_path, root, monkeypatch):
    """The current directory, and the environment, of a user of the root."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SNAP_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(root)


@pytest.fixture
def session_id():
    """The id of a session."""
    return str(uuid.uuid4())


@pytest.fixture
def manager():
    """Maestro's manager of the root."""
    return CheckpointManager()


@pytest.fixture
def make(manager, root, session_id):
    """Writes a text into the file and makes a checkpoint of it."""

    def maker(text: str, **options) -> Checkpoint:
        (root / "code.py").write_text(text)
        return manager.create_checkpoint(session_id, text, CheckpointPhase.PLAN, **options)

    return maker
