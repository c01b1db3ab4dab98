"""What holds for a root, and who said so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SettingSource(StrEnum):
    """Who said that a setting holds."""

    DEFAULT = "default"
    STORE = "store"
    ROOT = "root"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that holds for a root."""

    key: str
    value: str | None
    """As it is written in ``snap config KEY VALUE``, or None when there is no such limit."""
    source: SettingSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult:
    """Outcome of ``config``."""

    settings: tuple[Setting, ...]
