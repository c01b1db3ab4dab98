"""``snap gc``, ``stats`` and ``verify``: the whole store, its size and its soundness."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import added_text, aligned, path_text, short_id, title_of
from treesnap.cli.parameters import SamplePart
from treesnap.core.model.errors import WarningCode, printable, quoted
from treesnap.core.model.quantities import count_text, first_few, first_lines, size_text

if TYPE_CHECKING:
    from treesnap.core.model.results import GcResult, Partial, StatsResult, VerifyResult

_PATHS_SHOWN_MAX = 20
"""Paths printed for snapshots that lost the same ones; ``--json`` has more."""
_SNAPSHOTS_SHOWN_MAX = 3
"""Such snapshots named on a line; ``--json`` has all."""
_LONG_ID = re.compile(r"\b[0-9a-f]{32,64}\b")


@command("gc", examples=["snap gc", "snap gc --dry-run --json"])
@click.option("--dry-run", is_flag=True, help="Print what would be freed, and free nothing.")
@pass_invocation
def gc(invocation: Invocation, *, dry_run: bool) -> None:
    """Free the space of everything that no snapshot needs.

    It may run at any time, beside any other command.
    """
    with invocation.open(needs_root=False) as handle:
        result = handle.gc(dry_run=dry_run)
    if result.postponed is not None:
        invocation.output.note(f"Some of what is not needed stays for now: {result.postponed}")
    if result.damaged:
        shown = ", ".join(map(short_id, result.damaged))
        invocation.output.note(
            f"Kept what can still be read of damaged snapshots ({shown}); "
            "'snap verify --repair' is next"
        )
    invocation.output.result("gc", result.to_dict, [_gc_line(result)])
    if not result.freed_bytes:
        invocation.output.note(*_what_keeps(result, invocation.command_text("prune", "--dry-run")))


def _gc_line(result: GcResult) -> str:
    verb = "Would free" if result.dry_run else "Freed"
    return (
        f"{verb} {size_text(result.freed_bytes)}: "
        f"{count_text(result.removed_objects, 'object')} removed, "
        f"{count_text(result.removed_packs, 'pack')} removed, "
        f"{count_text(result.rewritten_packs, 'pack')} rewritten, "
        f"{count_text(result.kept_objects, 'object')} kept"
    )


def _what_keeps(result: GcResult, prune: str) -> Iterator[str]:
    """Yields why a collection freed nothing, and what to do."""
    if result.newer:
        yield "To free anything, update treesnap: what a newer one wrote may need everything"
        return
    if result.waste_bytes:
        yield (
            f"{size_text(result.waste_bytes)} in the store is not needed, and stays until it is a "
            "fifth of the pack in which it lies"
        )
    if result.snapshots:
        objects = count_text(result.kept_objects, "object is", "objects are")
        snapshots = count_text(result.snapshots, "snapshot")
        yield f"{objects} needed by {snapshots} of {count_text(result.roots, 'root')}"
        yield f"To free more, remove snapshots first; which ones could go: {prune}"
    else:
        yield "The store has no snapshots, and nothing to free"


@command(
    "stats",
    prints_only=True,
    examples=["snap stats --snapshots", "snap --store backup stats --json"],
)
@click.option("--snapshots", "with_snapshots", is_flag=True, help="Each snapshot of this root too.")
@pass_invocation
def stats(invocation: Invocation, *, with_snapshots: bool) -> None:
    """Show the sizes of the store, its roots, and this root's history.

    What is unique to a root or a snapshot would be free without it.
    """
    with invocation.open() as handle:
        result = handle.stats()
    if result.damaged_snapshots:
        invocation.output.warn(
            WarningCode.SNAPSHOT_DAMAGED,
            f"{count_text(result.damaged_snapshots, 'snapshot')} could not be read whole: what "
            "they need is counted as waste",
        )
    lines = _stats_lines(result, handle.store_path, with_snapshots=with_snapshots)
    invocation.output.result("stats", result.to_dict, lines)


def _stats_lines(result: StatsResult, store_path: str, *, with_snapshots: bool) -> Iterator[str]:
    """Yields facts, one a line, a table of roots, and one of snapshots if wanted."""
    facts = {
        "store": printable(store_path),
        "roots": f"{result.roots:,}",
        "snapshots": f"{result.snapshots:,}",
        "of this root": f"{result.root_snapshots:,}",
        "as full copies": size_text(result.logical_bytes),
        "objects": f"{result.objects:,}",
        "uncompressed": size_text(result.raw_bytes),
        "compressed": size_text(result.stored_bytes),
        "deduplication": _ratio_text(result.dedup_ratio),
        "compression": _ratio_text(result.compression_ratio),
        "waste": size_text(result.waste_bytes),
        "on disk": f"{size_text(result.disk_bytes)} in {count_text(result.files, 'file')}",
        "plan output": size_text(result.output_bytes),
        "packs": f"{result.packs:,}",
    }
    for name, value in facts.items():
        yield f"{name + ':':<16}{value}"
    yield from _table(
        ("snapshots", "full copies", "unique", "root"),
        [
            (
                f"{item.snapshots:,}",
                size_text(item.logical_bytes),
                size_text(item.unique_bytes),
                printable(item.root),
            )
            for item in result.by_root
        ],
    )
    if with_snapshots:
        yield from _table(
            ("full copy", "added", "unique", "snapshot"),
            [
                (
                    size_text(item.snapshot.record.totals.size_bytes),
                    added_text(item.snapshot),
                    size_text(item.unique_bytes),
                    f"{short_id(item.snapshot.id)}  {title_of(item.snapshot)}".rstrip(),
                )
                for item in result.by_snapshot
            ],
        )


def _ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f} to 1"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields rows in columns, if there are any: numbers to the right, then their subject."""
    if rows:
        yield ""
        yield from aligned([head, *rows], to_the_right=range(len(head) - 1))


@command(
    "verify",
    examples=["snap verify", "snap verify --read-data --json", "snap verify --sample 1/7"],
)
@click.option("--read-data", is_flag=True, help="Read every byte and compare it with its hash.")
@click.option(
    "--sample",
    type=SamplePart(),
    metavar="N/T",
    help="Read the N-th of T parts of the data: T runs read everything.",
)
@click.option("--repair", is_flag=True, help="Repair what can be repaired, list what cannot.")
@click.option("--remote", metavar="NAME", help="Check a remote instead.")
@pass_invocation
def verify(
    invocation: Invocation,
    *,
    read_data: bool,
    sample: tuple[int, int] | None,
    repair: bool,
    remote: str | None,
) -> None:
    """Check the store, and repair it if asked.

    Without --read-data or --sample, damage in the content of files is not looked for.
    Exits 7 when there is damage, and names the paths that cannot be restored, and what
    to type next; 3 when a newer treesnap wrote something that this one cannot judge.
    """
    if remote is not None and sample is not None:
        raise click.UsageError("--remote excludes --sample")
    with invocation.open(needs_root=False) as handle:
        if remote is not None:
            from treesnap.remote import Remotes
            from treesnap.remote.commands.secret import secret_of

            result = Remotes(handle, secret_of(handle)).verify(
                remote, read_data=read_data, repair=repair
            )
        else:
            result = handle.verify(read_data=read_data, repair=repair, sample=sample)
    invocation.output.result("verify", result.to_dict, verify_lines(result))
    where = ["--remote", remote] if remote is not None else []
    invocation.output.note(
        *(
            f"{why}: {invocation.command_text(*words, *(where if words[0] == 'verify' else []))}"
            for why, words in next_steps(result, repair=repair)
        )
    )
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


def _lost_lines(partial: Iterable[Partial]) -> Iterator[str]:
    """Yields the paths that cannot be restored; snapshots that lost the same ones together."""
    groups: dict[tuple[bytes, tuple[bytes, ...], int], list[Partial]] = {}
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


def _partial_text(item: Partial) -> str:
    name = f" ({printable(item.name)})" if item.name is not None else ""
    return short_id(item.snapshot_id) + name


def _with_short_ids(text: str) -> str:
    return _LONG_ID.sub(lambda match: short_id(match[0]), printable(text))


def next_steps(result: VerifyResult, *, repair: bool) -> Iterator[tuple[str, list[str]]]:
    """Yields what to do next: why, and the words of the command."""
    if result.newer:
        yield "To judge what a newer treesnap wrote, install that version and run", ["verify"]
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
        yield copies, ["verify", "--read-data", "--repair"]
    elif result.left and not repair:
        yield "To repair what can be repaired", ["verify", "--read-data", "--repair"]
    elif not result.content_read:
        yield "Damage in the content of files was not looked for", ["verify", "--read-data"]
