"""A real IPython in a directory of its own."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from treesnap.core.handle import open as open_handle


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The current directory, with a file in it."""
    path = tmp_path / "root"
    path.mkdir()
    (path / "data.csv").write_text("1,2\n")
    monkeypatch.chdir(path)
    monkeypatch.setenv("SNAP_STORE", str(tmp_path / "store"))
    return path


@pytest.fixture
def shell(root, tmp_path, monkeypatch):
    """An IPython without a history of its own, with the extension loaded."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell(config=config)
    shell.run_line_magic("load_ext", "treesnap.notebook")
    return shell


@pytest.fixture
def handle(root, tmp_path):
    return open_handle(root, tmp_path / "store")
