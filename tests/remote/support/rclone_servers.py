"""A place that the real ``rclone`` reaches: a directory of this machine, by its own settings."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treesnap.remote.blobs.rclone import RcloneBlobs, parse_rclone_url

_numbers = itertools.count()


@pytest.fixture
def rclone_place(tmp_path, monkeypatch) -> Path:
    """The directory behind the remote ``here`` of the settings of rclone."""
    program = shutil.which("rclone")
    words = [program or "", "serve", "s3", "--help"]
    if program is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("There is no rclone of version 1.65")
    place = tmp_path / "behind"
    place.mkdir()
    settings = tmp_path / "rclone.conf"
    settings.write_text(f"[here]\ntype = alias\nremote = {place}\n")
    monkeypatch.setenv("RCLONE_CONFIG", str(settings))
    return place


@pytest.fixture
def rclone_url(rclone_place) -> str:
    """The address of an empty place there."""
    return f"rclone:here:some/{next(_numbers)}"


@pytest.fixture
def new_rclone(rclone_url) -> Iterator[Callable[[], RcloneBlobs]]:
    """Makes connections to one empty place there."""
    made = []

    def connect() -> RcloneBlobs:
        made.append(RcloneBlobs(parse_rclone_url(rclone_url), make=True))
        return made[-1]

    yield connect
    for blobs in made:
        blobs.close()
