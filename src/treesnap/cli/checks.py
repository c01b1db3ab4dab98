"""What a check found: how it is printed, how it ends, and what to type next.

For ``verify``, and for commands of features that check another place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import click

from treesnap.cli.failure import ExitCode
from treesnap.cli.output.as_text import path_text, short_id
from treesnap.core.model.errors import printable, quoted
from treesnap.core.model.quantities import count_text, first_few, first_lines, size_text
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.cli.invocation import Invocation
    from treesnap.core.model.results import PartialSnapshot, VerifyResult

_PATHS_SHOWN_MAX = 20
"""Paths printed for snapshots that lost the same ones; ``--json`` has more."""
_SNAPSHOTS_SHOWN_MAX = 3
"""Such snapshots named on a line; ``--json`` has all."""
_LONG_ID = re.compile(r"\b[0-9a-f]{32,64}\b")


def print_check(
    invocation: Invocation, name: str, result: VerifyResult, *, again: Sequence[str], repair: bool
) -> None:
    """Prints a result as the JSON object ``name``, or as text, and ends the command by it.

    ``again`` are the words of the command that made it.
    """
    invocation.output.result(name, result.to_dict, verify_lines(result))
    steps = next_steps(result, again, repair=repair)
    invocation.output.note(*(f"{why}: {invocation.command_text(*words)}" for why, words in steps))
    if result.ok and result.newer:
        click.get_current_context().exit(ExitCode.REFUSED)
    if not result.ok:
        click.get_current_context().exit(ExitCode.DAMAGED)


def verify_lines(result: VerifyResult) -> Iterator[str]:
    """Yields what cannot be restored, what was done, every problem, and the verdict."""
    yield from _lost_lines(result.partial)
    for action in result.repaired:
        yield f"repaired: {printable(action)}"
    for root, path in dict.fromkeys((item.root, item.path) for item in result.recovered):
        yield f"recovered: what is in {printable(root + b'/' + path if path else root)}"
    for problem in result.problems:
        message, where = map(_with_short_ids, (problem.message, problem.where))
        place = "" if where in message else f", {where}"
        yield f"problem: {message} [{problem.code}{place}]"
    for place in result.newer:
        yield f"not judged: {_with_short_ids(place)} was written by a newer treesnap"
    read = f"{size_text(result.read_bytes)} read" if result.content_read else "content not read"
    checked = (
        f"{count_text(result.snapshots, 'snapshot')}, {count_text(result.objects, 'object')}, "
        f"{read}"
    )
    verdict = "No problems" if result.ok else count_text(len(result.problems), "problem")
    if result.repaired:
        verdict += f" found, {len(result.left):,} left"
    yield f"{verdict} in {checked}"


def _lost_lines(partial: Iterable[PartialSnapshot]) -> Iterator[str]:
    """Yields the paths that cannot be restored; snapshots that lost the same ones together."""
    groups: dict[tuple[bytes, tuple[bytes, ...], int], list[PartialSnapshot]] = {}
    for item in partial:
        groups.setdefault((item.root, item.paths, item.path_count), []).append(item)
    for (root, paths, count), items in groups.items():
        snapshots = "snapshot" if len(items) == 1 else f"{len(items):,} snapshots:"
        named = first_few(items, _partial_text, _SNAPSHOTS_SHOWN_MAX)
        yield (
            f"{count_text(count, 'path')} of {printable(root)} cannot be restored "
            f"from {snapshots} {named}"
        )
        for text in first_lines(paths, path_text, _PATHS_SHOWN_MAX, count):
            yield f"  {text}"


def _partial_text(item: PartialSnapshot) -> str:
    name = f" ({printable(item.name)})" if item.name is not None else ""
    return short_id(item.snapshot_id) + name


def _with_short_ids(text: str) -> str:
    return _LONG_ID.sub(lambda match: short_id(match[0]), printable(text))


def next_steps(
    result: VerifyResult, again: Sequence[str], *, repair: bool
) -> Iterator[tuple[str, list[str]]]:
    """Yields what to do next: why, and the words of the command; ``again`` checks once more."""
    if result.newer:
        yield "To judge what a newer treesnap wrote, install that version and run", [*again]
    partial = result.partial if repair else ()
    roots = list(dict.fromkeys(item.root for item in partial if b"" in item.paths))
    if roots:
        lost = f"The list of files of {first_few(roots, quoted)} ({path_text(b'')}) is lost"
        ways = "another copy of the store may have it. To capture what is there now"
        yield f"{lost}; {ways}", ["create"]
    if any(path for item in partial for path in item.paths):
        copies = (
            "Put copies of lost files back into their roots, if there are any, and repair again"
        )
        yield copies, [*again, "--read-data", "--repair"]
    elif result.left and not repair:
        yield "To repair what can be repaired", [*again, "--read-data", "--repair"]
    elif not result.content_read:
        yield "Damage in the content of files was not looked for", [*again, "--read-data"]
