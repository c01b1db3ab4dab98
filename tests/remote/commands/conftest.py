"""Commands of this feature are tried as those of the core: with the fixture ``snap``."""

from __future__ import annotations

from functools import partial

import pytest

from command_line import *  # noqa: F403 - pytest finds fixtures by name, in a conftest
from treesnap.remote import connection
from treesnap.remote.keys import Cost, new_slot

CHEAP = Cost(passes=1, memory_kib=8, lanes=1)


@pytest.fixture(autouse=True)
def cheap_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a slot cost next to nothing; ``test_remote_format.py`` pays for a usual one."""
    monkeypatch.setattr(connection, "new_slot", partial(new_slot, cost=CHEAP))
