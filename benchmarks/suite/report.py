"""The page: the headline first, then promises, where a peer is better, and all tables.

Everything on it comes from the numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.suite import floors, peers, plots, promises, serving, trees, watching
from benchmarks.suite.promises import PROMISES, Form, Promise, State, Verdict
from benchmarks.suite.results import ADDED, CPU, MEMORY, SECONDS, STORE, Case, Results, distinct

OWN = {"treesnap", watching.WATCH, watching.LIBRARY, watching.LIBRARY_WATCH, serving.SERVER}
COMMAND = "tox -e bench"
QUANTITIES = {
    SECONDS: "time",
    STORE: "store",
    ADDED: "new bytes",
    CPU: "processor time",
    MEMORY: "peak memory",
}

HEADLINE_TASKS = (
    ("first snapshot", Case(trees.SOURCE, peers.FIRST, "")),
    ("snapshot, nothing changed", Case(trees.SOURCE, peers.SAME, "")),
    ("snapshot, 10 files changed", Case(trees.SOURCE, promises.TEN, "")),
    ("roll those 10 files back", Case(trees.SOURCE, promises.BACK, "")),
    ("restore everything", Case(trees.SOURCE, peers.RESTORE, "")),
    ("size of the store", Case(trees.SOURCE, peers.FIRST, "", STORE)),
)
"""The rows that the page begins with; the tool of each case is left open."""

HEADLINE_WORDS = """\
{source}; medians; **the best of each row** in bold. A cell is empty where the tool cannot
do the task. *treesnap, watch* runs beside `snap watch`. treesnap syncs everything before it reports
success; tar and rsync sync nothing. Below: [every number in which a peer is
better](#where-a-peer-is-better), and the complete tables.
"""

METHOD = """\
## How it is measured

- A task is measured as one process, or one pipeline, from start to end. Everything that was
  written before is synced first, so no tool pays for what another wrote.
- All tools work on the same tree in the same run. They take turns, and each round begins with
  another tool. Numbers are medians; *n* is the number of samples of the task that was repeated
  most. A task that takes a tool long is repeated less often.
- Caches are warm: the tree is read before every task that reads files, because borg drops what it
  has read from the cache.
- To roll back means: after the snapshot of the change, the same files change once more, and then
  return to their state before both changes. The suite compares the content afterwards. After
  *restore all* it compares the number of files and bytes.
- The size of a store is the sum of its files, each hard link counted once. Directories do not
  count; rsync makes all of them anew each time. New bytes are what the store grew by.
- Peak memory is that of the largest single process, also for tools that use several. The process
  that starts a program takes about 14 MB itself, so smaller numbers cannot be seen.
- Processor time is that of all processes of a command, and of the fork server and its children
  where *treesnap, fork server* is measured; not of the watcher. Bytecode is compiled.
- *+ 20 %* in a promise raises the limit of the row above it by a fifth.
- The library, the walk in Python, and reading, hashing and compressing are measured inside a
  process, without its start.
- Scripts beside the suite answer single questions: the cost of ten thousand checkpoints, a store
  of a million objects, how long a restore keeps a tree in motion, how to cut files, and what each
  tool brings back.
"""


@dataclass(frozen=True)
class BetterPeer:
    """A number in which a peer beats treesnap."""

    tree: str
    work: str
    tool: str
    quantity: str
    theirs: float
    ours: float


def page(results: Results, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the page in Markdown; ``pictures`` are names of files with their titles."""
    headline = [picture for picture in pictures if picture[0] == plots.HEADLINE]
    others = [picture for picture in pictures if picture[0] != plots.HEADLINE]
    sections = [
        "# Benchmarks\n",
        _images(headline),
        _headline(results),
        _machine(results),
        _promises(results),
        _section("How cost grows", _images(others)),
        _better_peers(results),
        *(_tree(results, tree) for tree in _tree_names(results)),
        _starts(results),
        _left_out(results),
        METHOD,
        _tools(results),
    ]
    return "\n".join(section for section in sections if section)


def shown(value: float, quantity: str) -> str:
    """Returns a number as people read it."""
    if quantity in {SECONDS, CPU}:
        if value < 1:
            return f"{value * 1000:.3g} ms"
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    if abs(value) < 1_000:
        return f"{value:.0f} B"
    for unit, size in (("kB", 1e3), ("MB", 1e6)):
        if abs(value) < size * 1_000:
            return f"{value / size:.1f} {unit}"
    return f"{value / 1e9:.2f} GB"


def verdict_words(verdict: Verdict) -> str:
    """Returns whether a promise is met, and by how much."""
    if verdict.state is State.NOT_MEASURED or verdict.excess is None:
        return "not measured"
    if verdict.state is State.MET:
        return f"met, {(1 - verdict.excess) * 100:.0f} % to spare"
    if verdict.excess < 2:
        words = f"**missed** by {(verdict.excess - 1) * 100:.0f} %"
    else:
        words = f"**missed**, {verdict.excess:.1f} × the limit"
    if verdict.floor is not None and verdict.floor > verdict.promise.limit:
        words += f"; the floor is {verdict.floor:.2f} ×: reading, hashing and compressing alone"
    return words


def better_peers(results: Results) -> list[BetterPeer]:
    """Returns every number in which a peer's median is below treesnap's.

    Processor time is not in it: it tells the same as time, undisturbed by other programs.
    """
    found = []
    for case in results.samples:
        if case.tool in OWN or case.tool == floors.FLOOR or case.quantity == CPU:
            continue
        theirs = results.median(case)
        ours = results.median(case._replace(tool="treesnap"))
        if theirs is not None and ours is not None and theirs < ours:
            found.append(BetterPeer(case.tree, case.work, case.tool, case.quantity, theirs, ours))
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown, with a line end."""
    lines = [_line(header), "| --- " * len(header) + "|", *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _headline(results: Results) -> str:
    rows = []
    for words, case in HEADLINE_TASKS:
        values = [results.median(case._replace(tool=tool)) for tool in plots.HEADLINE_TOOLS]
        best = min((value for value in values if value is not None), default=None)
        cells = ["" if value is None else shown(value, case.quantity) for value in values]
        rows.append(
            (
                words,
                *(
                    f"**{cell}**" if value is not None and value == best else cell
                    for cell, value in zip(cells, values, strict=True)
                ),
            )
        )
    if not any("".join(cells) for _, *cells in rows):
        return ""
    words = HEADLINE_WORDS.format(source=_capital(_title(results, trees.SOURCE)))
    return table(("task", *plots.HEADLINE_TOOLS), rows) + "\n" + words


def _machine(results: Results) -> str:
    facts = results.facts
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    words = (
        f"{facts['cores']} cores, {facts['memory_gib']} GiB of memory, {facts['file_system']},"
        f" {facts['system']}, {facts['python']}. Load before the run: {facts['load_at_start']}."
        f" Versions: {versions}. Commit: {facts['commit']}."
    )
    if facts.get("completed_by"):
        words += (
            "\n\nNumbers that this run had no time for are from other runs at about the same time,"
            " on the same machine."
        )
    if facts.get("quick"):
        words += "\n\nThis was a quick run: fewer trees, one round. It cannot support a verdict."
    words += (
        f"\n\n`{COMMAND}` writes this page, its pictures and the numbers behind them, which are in"
        " `benchmarks/results.json`."
    )
    return words + "\n"


def _measured_words(verdict: Verdict, results: Results) -> str:
    promise, number = verdict.promise, verdict.number
    if number is None:
        return ""
    if promise.form is Form.BOUND:
        return shown(number, promise.cases[0].quantity)
    cases = [*promise.cases, *([promise.against] if promise.against else [])]
    values = [results.median(case) or 0.0 for case in cases]
    between = " against " if promise.form is Form.RATIO else ", "
    words = between.join(
        shown(value, case.quantity) for value, case in zip(values, cases, strict=True)
    )
    return f"{words}: {number:.2f} ×"


def _promises(results: Results) -> str:
    verdicts = [promises.verdict_of(promise, results) for promise in PROMISES]
    counts = {state: sum(verdict.state is state for verdict in verdicts) for state in State}
    summary = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    rows = [
        (
            verdict.promise.work,
            verdict.promise.words,
            _measured_words(verdict, results),
            verdict_words(verdict),
        )
        for verdict in verdicts
    ]
    return (
        f"## Promises\n\n{_capital(summary)}. A row is about the source tree unless"
        " it names another tree. [Where the time goes](../explanation/where-the-time-goes.md)"
        " says what the missed ones would need.\n\n"
        + table(("task", "promise", "measured", "verdict"), rows)
    )


def _better_peers(results: Results) -> str:
    found = better_peers(results)
    title = "## Where a peer is better\n\n"
    if not found:
        return title + "Nowhere in this run.\n"
    rows: dict[tuple[str, ...], list[str]] = {}
    for better in found:
        what = (better.tree, better.work, QUANTITIES[better.quantity])
        factor = f" ({better.ours / better.theirs:.2g} ×)" if better.theirs > 0 else ""
        words = f"{better.tool} {shown(better.theirs, better.quantity)}{factor}"
        rows.setdefault((*what, shown(better.ours, better.quantity)), []).append(words)
    return (
        title + "Every number in which another tool beats treesnap without a watcher, even where"
        " that tool does less. In brackets: treesnap's number as a multiple of the tool's."
        " Processor time is in the tables below.\n\n"
        + table(
            ("tree", "task", "quantity", "treesnap", "better"),
            [(*what, ", ".join(words)) for what, words in rows.items()],
        )
    )


def _tree_names(results: Results) -> list[str]:
    return distinct(case.tree for case in results.samples if case.tree)


def _tree(results: Results, tree: str) -> str:
    cases = [case for case in results.samples if case.tree == tree]
    tools = distinct(case.tool for case in cases if case.tool != floors.FLOOR)
    rows = []
    for quantity, what in QUANTITIES.items():
        for work in distinct(case.work for case in cases if case.quantity == quantity):
            row = [Case(tree, work, tool, quantity) for tool in tools]
            if any(case in results.samples for case in row):
                words = work if quantity == SECONDS else f"{work}, {what}"
                rows.append((words, *(_cell(results, case) for case in row)))
    floor_words = [
        f"{case.work} {shown(results.median(case) or 0, SECONDS)}"
        for case in cases
        if case.tool == floors.FLOOR
    ]
    size = results.trees.get(tree)
    about = (
        f"{size['files']:,} files, {size['directories']:,} directories,"
        f" {shown(size['size_bytes'], STORE)}. "
        if size
        else ""
    )
    most = max((len(results.samples[case]) for case in cases), default=0)
    words = f"{about}n is at most {most}. In brackets: the number as a multiple of treesnap's."
    if floor_words:
        words += f" Floors: {', '.join(floor_words)}."
    title = _capital(_title(results, tree))
    return f"## {title}\n\n{words}\n\n" + table(("task", *tools), rows)


def _title(results: Results, tree: str) -> str:
    return str(results.facts["source"]) if tree == trees.SOURCE else trees.tree_named(tree).title


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _cell(results: Results, case: Case) -> str:
    value = results.median(case)
    if value is None:
        return ""
    own = results.median(case._replace(tool="treesnap"))
    words = shown(value, case.quantity)
    if own is None or own <= 0 or case.tool == "treesnap":
        return words
    return f"{words} ({value / own:.2g} ×)"


def _starts(results: Results) -> str:
    rows = []
    click = results.median(promises.CLICK)
    for case in results.samples:
        value = results.median(case)
        if not case.tree and case.quantity == SECONDS and click and value is not None:
            rows.append(_start(results, case, value, click))
    if not rows:
        return ""
    return "## Small commands\n\n" + table(
        ("command", "time", "relative to `import click`", "processor time", "relative"), rows
    )


def _start(results: Results, case: Case, value: float, click: float) -> tuple[str, ...]:
    words = f"`{case.work}`" + (f", {case.tool}" if case.tool == serving.SERVER else "")
    spent = results.median(case._replace(quantity=CPU))
    click_spent = results.median(promises.CLICK._replace(quantity=CPU))
    if spent is None or not click_spent:
        return words, shown(value, SECONDS), f"{value / click:.2f} ×", "", ""
    relative = f"{spent / click_spent:.2f} ×"
    return words, shown(value, SECONDS), f"{value / click:.2f} ×", shown(spent, CPU), relative


def _images(pictures: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"![{title}]({name})\n" for name, title in pictures)


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _left_out(results: Results) -> str:
    title = "## Not measured\n\n"
    if not results.left_out:
        return title + "Nothing.\n"
    return title + "\n".join(f"- {sentence}" for sentence in results.left_out) + "\n"


def _tools(results: Results) -> str:
    used = {case.tool for case in results.samples}
    rows = [(tool.name, tool.usage) for tool in peers.all_tools() if tool.name in used]
    return "## How the tools are used\n\n" + table(("tool", "commands"), rows) + RUN


RUN = f"""
## Run it

On Debian or Ubuntu, with about 30 GB of disk:

```sh
sudo apt install git restic borgbackup zstd rsync gcc npm linux-source-6.1 python3-venv
{COMMAND}
```

`{COMMAND} -- --quick` takes minutes. `--trees` and `--tools` select, `--minutes` limits the whole
run, `--work` names a directory for trees and stores, and `--help` lists the rest. The run skips
what does not fit the time or the disk, and the page lists it.
"""


def summary(results: Results) -> list[str]:
    """Returns one line for each promise, for a terminal."""
    lines = []
    for promise in PROMISES:
        verdict = promises.verdict_of(promise, results)
        words = verdict_words(verdict).replace("*", "")
        lines.append(f"{_name(promise)}: {_measured_words(verdict, results)} -> {words}")
    return lines


def _name(promise: Promise) -> str:
    return f"{promise.work} ({promise.words})".replace("`", "")
