"""Files of settings: what is removed does not come back."""

from __future__ import annotations

import treesnap
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import RecordingFileSystem


def test_a_setting_that_was_removed_stays_so_after_a_power_cut(tmp_path):
    fs, store = RecordingFileSystem(), tmp_path / "store"
    (tmp_path / "root").mkdir()
    handle = treesnap.Handle(context_at(tmp_path / "root", str(store), fs=fs))
    handle.config("keep.last", "5")
    fs.clear()

    handle.config("keep.last", unset=True)

    calls = [(call.method, call.paths[0]) for call in fs.log if call.paths]
    removed = calls.index(("unlink", str(store / "config.toml")))
    assert ("sync", str(store)) in calls[removed:]
    assert not (store / "config.toml").exists()
