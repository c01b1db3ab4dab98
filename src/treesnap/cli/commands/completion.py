"""``snap completion``: prints the script with which a shell completes the command."""

from __future__ import annotations

import os
import shutil

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.completion import SHELLS, script
from treesnap.cli.invocation import Invocation
from treesnap.core.own_program import NAMES


@command(
    "completion",
    prints_only=True,
    examples=[
        "snap completion bash > ~/.local/share/bash-completion/completions/snap",
        "snap completion zsh",
        "snap completion fish > ~/.config/fish/completions/snap.fish",
    ],
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@pass_invocation
def completion(invocation: Invocation, *, shell: str) -> None:
    """Print a script with which a shell completes commands, options and REFs.

    To load it whenever bash starts: eval "$(treesnap completion bash)" in ~/.bashrc; the same
    with zsh in ~/.zshrc. In fish: 'treesnap completion fish | source' in config.fish.
    """
    programs = _own_programs(invocation.program)
    text = script(shell, programs)
    invocation.output.result(
        "completion",
        lambda: {"shell": shell, "programs": programs, "script": text},
        [text.removesuffix("\n")],
    )


def _own_programs(program: str) -> list[str]:
    """Returns the names of this command, without one that is another program's on the path."""
    own = shutil.which(program)
    here = os.path.dirname(os.path.realpath(own)) if own is not None else None
    names = []
    for name in sorted(NAMES):
        found = shutil.which(name)
        is_other = found is not None and os.path.dirname(os.path.realpath(found)) != here
        if name == program or not is_other:
            names.append(name)
    return names
