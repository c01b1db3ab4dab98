"""``snap restore --patch``: shows the hunks of a file, and asks which of them to restore."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from treesnap.cli.output.coloured_patch import coloured_hunks, harmless
from treesnap.core.diff.texts import lines_of_hunk
from treesnap.core.model.errors import quoted

if TYPE_CHECKING:
    from treesnap.cli.output.streams import Output
    from treesnap.core.model.results import FileHunks

ANSWERS = {
    "y": "restore this hunk",
    "n": "leave it as it is",
    "a": "restore this hunk and all below",
    "q": "leave this hunk and all below as they are",
    "?": "explain the answers",
}


def refuse_without_terminal() -> None:
    """Raises UsageError where no person can be asked."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("--patch asks about each hunk, so it needs a terminal")


def chosen_hunks(found: FileHunks, output: Output) -> list[int]:
    """Returns the numbers of the hunks that a person wants; shows each before it asks."""
    count, chosen = len(found.hunks), list[int]()
    output.piece(f"{quoted(found.path)}: - is now, + is in {found.snapshot.id[:12]}\n".encode())
    for hunk in found.hunks:
        pieces = lines_of_hunk(hunk)
        lines = coloured_hunks(pieces) if output.is_coloured else map(harmless, pieces)
        output.piece("".join(lines).encode())
        answer = _answer(f"Restore hunk {hunk.number + 1} of {count}?", output)
        if answer == "a":
            return [*chosen, *range(hunk.number, count)]
        if answer == "q":
            break
        if answer == "y":
            chosen.append(hunk.number)
    return chosen


def _answer(question: str, output: Output) -> str:
    while True:
        answer: str = click.prompt(
            f"{question} [{','.join(ANSWERS)}]",
            type=click.Choice(list(ANSWERS)),
            show_choices=False,
            prompt_suffix=" ",
            err=True,
        )
        if answer != "?":
            return answer
        output.note(*(f"{letter}: {meaning}" for letter, meaning in ANSWERS.items()))
