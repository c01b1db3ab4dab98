"""A provider whose client is not installed says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize("provider", ["daytona", "e2b"])
def test_an_absent_client_is_named_with_its_extra(provider, monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == provider or name == f"treesnap.sandboxes.{provider}":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, provider, None)

    named = rf"is missing; type: pip install 'treesnap\[{provider}\]'$"
    with pytest.raises(ModuleNotFoundError, match=named):
        importlib.import_module(f"treesnap.sandboxes.{provider}")
