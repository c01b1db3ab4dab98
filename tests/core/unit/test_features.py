"""What to type where the libraries of an extra are missing."""

from __future__ import annotations

import sys

import pytest

from treesnap.core.features import brought_by, command_for


@pytest.mark.parametrize(
    ("mark", "command"),
    [
        (None, "pip install 'treesnap[ui]'"),
        ("pipx_metadata.json", "pipx inject treesnap 'treesnap[ui]'"),
        ("uv-receipt.toml", "uv tool install 'treesnap[ui]'"),
    ],
)
def test_the_command_is_that_of_the_program_that_installed_treesnap(
    mark, command, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    if mark is not None:
        (tmp_path / mark).touch()

    assert command_for("ui") == command


def test_an_import_that_fails_says_what_to_type():
    with pytest.raises(ModuleNotFoundError) as raised, brought_by("ui"):
        import no_such_module  # noqa: F401 - not there

    assert str(raised.value).endswith(f"'no_such_module' is missing; type: {command_for('ui')}")
    assert raised.value.name == "no_such_module"
