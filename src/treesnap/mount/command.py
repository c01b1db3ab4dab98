"""``snap mount`` and ``snap umount``: the history as directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.core.model.errors import path_fields, printable

if TYPE_CHECKING:
    from treesnap.mount import MountedHistory


@command("mount", examples=["snap mount ~/history"])
@click.argument("mount_point", metavar="DIR")
@pass_invocation
def mount(invocation: Invocation, *, mount_point: str) -> None:
    """Show the history as directories at DIR, read-only, until Ctrl-C.

    DIR is an empty directory outside of the root. In it are latest/, and each
    snapshot in ids/, times/, and if it has them names/ and sessions/. Clears what
    a killed 'snap mount' left there. It needs the extra 'mount' of treesnap.
    """
    from treesnap.mount import mount as mount_history

    output = invocation.output

    def ready(mounted: MountedHistory) -> None:
        fields = {
            **path_fields(os.fsencode(mounted.path)),
            **path_fields(os.fsencode(mounted.root), "root"),
            "cleared": mounted.cleared,
        }
        output.result("mount", lambda: fields, _lines(mounted, invocation.program))
        output.flush()

    with invocation.open(progress=False) as handle:
        # With JSON, the one object is printed already when a problem is reported.
        mount_history(handle.context, mount_point, ready=ready, report=output.note)


def _lines(mounted: MountedHistory, program: str) -> Iterator[str]:
    if mounted.cleared:
        yield "Cleared what a killed process left there"
    yield f"Mounted the history of {printable(mounted.root)} at {printable(mounted.path)}"
    yield f"  Ctrl-C or '{program} umount' ends it"


@command("umount", examples=["snap umount ~/history"])
@click.argument("mount_point", metavar="DIR")
@pass_invocation
def umount(invocation: Invocation, *, mount_point: str) -> None:
    """End 'snap mount' at DIR, or clear what a killed one left."""
    from treesnap.mount import unmount

    path = unmount(mount_point, invocation.wait_s)
    fields = path_fields(os.fsencode(path))
    invocation.output.result("umount", lambda: fields, [f"Unmounted {printable(path)}"])
