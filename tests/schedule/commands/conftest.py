"""Commands of this feature are tried as those of the core: with the fixture ``snap``."""

from __future__ import annotations

from command_line import *  # noqa: F403 - pytest finds fixtures by name, in a conftest
