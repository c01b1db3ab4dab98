"""Where the command starts, before its modules are imported.

Importing them takes longer than some commands, so Ctrl-C is handled here too.
"""

from __future__ import annotations

import os
from typing import NoReturn

INTERRUPTED = 130
"""As in ``cli.failure``, which is not imported yet."""


def main() -> NoReturn:
    """Runs the command line of this process and ends it, with 130 when it is interrupted."""
    try:
        from treesnap.cli.main import main as run

        run()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
