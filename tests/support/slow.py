"""A file system on which reading one file takes long, without waiting for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from treesnap.testing.doubles import Call, Kind, WrappedFileSystem


class SlowFileSystem(WrappedFileSystem):
    """Sets the monotonic clock forward whenever a file is read."""

    def __init__(self, path: Path, took_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._path = str(path)
        self._took_s = took_s
        self._late_s = 0.0
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + self._late_s)

    def around(self, call: Call) -> Any:
        if call.kind is Kind.READ and call.path == self._path:
            self._late_s += self._took_s
        return call.proceed()
