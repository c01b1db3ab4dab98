"""What a shell is offered where a command takes the name of a remote."""

from __future__ import annotations

from typing import Any

import click

from treesnap.cli.declarations import Decorator
from treesnap.cli.invocation import Invocation
from treesnap.core.model.errors import TreesnapError
from treesnap.core.store.layout import Layout


def remote_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Returns the remotes of the store whose names begin as what was typed.

    None where the store or the root cannot be read. Opens nothing, and takes no lock.
    """
    from treesnap.cli.completion_values import context_of

    invocation = ctx.find_object(Invocation)
    assert invocation is not None
    try:
        context = context_of(invocation)
        names = context.fs.list_names(Layout(context.store_path).remotes)
    except (TreesnapError, OSError):
        return []
    return sorted(
        name for name in names if name.startswith(incomplete) and not name.startswith(".")
    )


def remote_argument(name: str, **attributes: Any) -> Decorator:
    """Declares an argument that names a remote of the store."""
    return click.argument(name, shell_complete=remote_names, **attributes)
