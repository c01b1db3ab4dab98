"""What is in a root and does not count as its content, for the systems of this package.

A repository keeps its own history, and git writes into it when it is only asked, so a checkpoint
that held ``.git`` would differ after every ``git status``, and going back to it would remove
branches that were made since. So these systems leave it out, unless ``checkpoints.git`` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treesnap.core.model.errors import InvalidArgument, StoreMissing, WarningCode
from treesnap.core.model.treepath import components

if TYPE_CHECKING:
    from treesnap.compat.sidecar_files import SidecarPlace
    from treesnap.core.handle import Handle
    from treesnap.core.model.entries import Change

_GIT = b".git"


class Machinery:
    """Which paths of a root are left out of captures and comparisons."""

    def __init__(self, handle: Handle, logs: SidecarPlace | None = None) -> None:
        self._handle, self._logs = handle, logs

    @property
    def has_git(self) -> bool:
        """Whether repositories are machinery. Read anew each time."""
        return not flag_setting(self._handle, "checkpoints.git")

    @property
    def excluded(self) -> tuple[str, ...]:
        """Patterns that keep it out of captures."""
        logs = self._logs.excluded if self._logs is not None else ()
        return (*logs, _GIT.decode()) if self.has_git else logs

    def without(self, changes: list[Change] | tuple[Change, ...]) -> list[Change]:
        """Returns the changes that are none of machinery."""
        has_git = self.has_git
        return [
            change
            for change in changes
            if not (self._logs is not None and self._logs.holds(change))
            and not (has_git and _GIT in components(change.path))
        ]


def flag_setting(handle: Handle, key: str) -> bool:
    """Returns a setting that is true or false; false where the settings cannot be read."""
    try:
        return handle.config(key).settings[0].value == "true"
    except StoreMissing:
        return False
    except InvalidArgument as error:  # a checkpoint does not fail over a settings file
        handle.context.monitor.warn(WarningCode.SETTINGS_IGNORED, error.message)
        return False
