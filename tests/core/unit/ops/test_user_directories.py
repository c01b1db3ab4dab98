"""Where a user's files lie: as platformdirs says, without it where the environment tells."""

from __future__ import annotations

import os
import sys

import platformdirs
import pytest

from treesnap.core.ops import context


@pytest.mark.parametrize("kind", ["config", "data", "state"])
@pytest.mark.parametrize("home", ["/srv/me", "/srv/me/", "/"])
@pytest.mark.parametrize("named", [None, "", " ", "/elsewhere", "relative", "/with space/"])
def test_they_are_those_of_platformdirs(monkeypatch, kind, home, named):
    monkeypatch.setenv("HOME", home)
    variable = f"XDG_{kind.upper()}_HOME"
    monkeypatch.delenv(variable, raising=False)
    if named is not None:
        monkeypatch.setenv(variable, named)
    expected = getattr(platformdirs, f"user_{kind}_dir")("treesnap", appauthor=False)

    found = context._user_directory(kind)

    assert found == (expected if os.path.isabs(expected) else None)


def test_the_library_is_asked_where_the_environment_says_nothing(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    expected = platformdirs.user_data_dir("treesnap", appauthor=False)

    assert context._user_directory("data") == expected


def test_it_is_not_imported_otherwise(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/me")
    monkeypatch.setitem(sys.modules, "platformdirs", None)

    assert context.user_config_path() == "/srv/me/.config/treesnap/config.toml"
