"""``snap store``: where the store is, a copy of it, and another place for it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from treesnap.cli.command import SnapGroup, pass_invocation
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text, first_lines, size_text
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.model.results import StoreCopy, StoreInfo, StoreMove

_ROOTS_SHOWN_MAX = 20


@click.group("store", cls=SnapGroup)
def store() -> None:
    """Show where the store is, copy it, or move it.

    Every command uses the store of --store, else that of $SNAP_STORE, else the user's own.
    """


@store.command(
    "info", prints_only=True, examples=["snap store info", "snap --store backup store info --json"]
)
@pass_invocation
def info(invocation: Invocation) -> None:
    """Show where the store is, which setting names it, and what is in it."""
    with invocation.open(progress=False, needs_root=False) as handle:
        result = handle.store_info()
    source = _source(invocation)
    invocation.output.result(
        "store.info",
        lambda: {**result._asdict(), "configured_by": source},
        _info_lines(result, source),
    )


@store.command("trust", examples=["snap store trust", "snap --store /mnt/backup store trust"])
@pass_invocation
def trust(invocation: Invocation) -> None:
    """Say that the store is your own, although it was not made where it is now.

    After a backup was put back, or a disk came from your other machine. Commands of its
    plans may then run, and restores give set-user-ID bits, capabilities, devices and owners.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        handle.store_trust()
        path = handle.context.store_path
    line = f"The store {printable(path)} is trusted as your own"
    invocation.output.result("store.trust", lambda: {"path": path}, [line])


@store.command(
    "copy", examples=["snap store copy /mnt/disk/store", "snap store copy /mnt/disk/store --json"]
)
@click.argument("target", metavar="DIR")
@pass_invocation
def copy(invocation: Invocation, *, target: str) -> None:
    """Copy the store to DIR, also while it is in use, and check the whole copy.

    DIR must be absent or empty. Damage is copied too: exits 7, and 'verify' says what it means.
    """
    with invocation.open(needs_root=False) as handle:
        result = handle.store_copy(target)
    invocation.output.result("store.copy", result.to_dict, _copy_lines(result))
    if result.unreadable or not result.verified.ok:
        verify = f"{invocation.program} --store {printable(result.target)} verify --read-data"
        invocation.output.note(f"To see what the copy lacks: {verify}")
        click.get_current_context().exit(ExitCode.DAMAGED)


@store.command(
    "move", examples=["snap store move /mnt/disk/store", "snap store move /mnt/disk/store --json"]
)
@click.argument("target", metavar="DIR")
@pass_invocation
def move(invocation: Invocation, *, target: str) -> None:
    """Move the store to DIR, and leave a link to it, so that everything still finds it.

    DIR must be absent or empty. To another file system the store is copied and checked, and
    the old one is kept beside the link.
    """
    with invocation.open(needs_root=False) as handle:
        result = handle.store_move(target)
    invocation.output.result("store.move", result._asdict, _move_lines(result))
    if result.left is not None:
        invocation.output.note(
            f"Remove the old store once all is well: rm -r {printable(result.left)}"
        )


def _source(invocation: Invocation) -> str:
    from treesnap.core.ops.context import is_store_given

    if invocation.store is not None:
        return "--store"
    return "$SNAP_STORE" if is_store_given() else "default"


def _info_lines(result: StoreInfo, source: str) -> Iterator[str]:
    real = result.real_path
    link = f" -> {printable(real)}" if real != result.path else ""
    facts = {
        "path": printable(result.path) + link,
        "configured by": source,
        "id": result.id or "none",
        "format": str(result.format),
        "size": f"{size_text(result.size_bytes)} in {count_text(result.files, 'file')}",
        "packs": f"{result.packs:,}",
        "snapshots": f"{result.snapshots:,}",
        "roots": f"{len(result.roots):,}",
        "your own": "yes" if result.own else "not proven",
    }
    for name, value in facts.items():
        yield f"{name + ':':<16}{value}"
    yield from (f"  {text}" for text in first_lines(result.roots, printable, _ROOTS_SHOWN_MAX))


def _copy_lines(result: StoreCopy) -> Iterator[str]:
    for name in result.unreadable:
        yield f"unreadable: {printable(name)}"
    snapshots = count_text(result.verified.snapshots, "snapshot")
    checked = "checked" if result.verified.ok else "with damage"
    yield (
        f"Copied {count_text(result.files, 'file')}, {size_text(result.size_bytes)}, to "
        f"{printable(result.target)}: {snapshots}, {checked}"
    )


def _move_lines(result: StoreMove) -> Iterator[str]:
    yield f"Moved the store to {printable(result.new)}; {printable(result.old)} is a link to it"
    if result.left is not None:
        yield f"The old store is {printable(result.left)}"
