"""The command line of the suite."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.suite import peers, report, session
from benchmarks.suite.floors import PROJECT
from benchmarks.suite.results import Results
from benchmarks.suite.session import Options, Session

DEFAULT = Options(
    work=PROJECT / "build" / "benchmark",
    out=PROJECT / "docs" / "benchmarks",
    numbers=PROJECT / "benchmarks" / "results.json",
)


def parser() -> argparse.ArgumentParser:
    """Returns what reads the options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.suite",
        description="Compares treesnap with other tools; writes numbers, a page and pictures.",
    )
    names = [tool.name for tool in peers.all_tools()]
    made.add_argument("--quick", action="store_true", help="fewer trees, one round: minutes")
    made.add_argument(
        "--trees",
        type=_names,
        help=f"comma-separated, of {', '.join(session.TREES)}, database-MIB, files-N",
    )
    made.add_argument("--tools", type=_names, help=f"comma-separated, of {', '.join(names)}")
    made.add_argument("--rounds", type=int, help=f"default {DEFAULT.rounds}")
    made.add_argument(
        "--repeat-seconds",
        type=float,
        help="a tool does not repeat a work once its rounds have taken so long together;"
        f" default {DEFAULT.repeat_s:g}",
    )
    made.add_argument(
        "--minutes",
        type=float,
        help=f"nothing is begun after so long; default {DEFAULT.minutes:g}",
    )
    made.add_argument(
        "--checkpoints", type=int, help=f"in the series of many; default {DEFAULT.checkpoints}"
    )
    made.add_argument(
        "--source",
        type=Path,
        help="the source tree, which is copied; default: the Linux source of a Debian package",
    )
    made.add_argument("--source-title", help="what the page calls it, such as 'U-Boot 2026.10'")
    made.add_argument(
        "--all-tools-with-many",
        action="store_true",
        help="let all tools capture 1,000,000 files, which takes an hour more",
    )
    made.add_argument("--out", type=Path, help="where page, pictures and numbers go")
    made.add_argument("--work", type=Path, help="where trees and stores go; trees are kept")
    made.add_argument(
        "--render",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="measure nothing, show these numbers; those of further runs where the first has none",
    )
    return made


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def options_of(arguments: argparse.Namespace) -> Options:
    """Returns what the arguments ask for."""
    options = DEFAULT
    if arguments.quick:
        options = options.made_quick()
    given = {
        "trees": arguments.trees,
        "tools": arguments.tools,
        "rounds": arguments.rounds,
        "repeat_s": arguments.repeat_seconds,
        "minutes": arguments.minutes,
        "checkpoints": arguments.checkpoints,
        "source": arguments.source and arguments.source.absolute(),
        "source_title": arguments.source_title
        or (arguments.source and f"the source tree {arguments.source.name}"),
        "out": arguments.out and arguments.out.absolute(),
        "numbers": arguments.out and arguments.out.absolute() / "results.json",
        "work": arguments.work and arguments.work.absolute(),
        "all_tools_with_many": arguments.all_tools_with_many,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return Options(**{**vars(options), **chosen})


def main() -> None:
    """Measures, or shows what was measured."""
    arguments = parser().parse_args()
    options = options_of(arguments)
    if arguments.render:
        results, *others = (
            Results.from_json(path.read_text(encoding="utf-8")) for path in arguments.render
        )
        for other in others:
            results.complete_with(other)
    else:
        running = Session(options)
        results = running.results
        try:
            running.run()
        except KeyboardInterrupt:
            results.leave_out("The run was interrupted.")
    session.write(results, options)
    print("\n".join(report.summary(results)))
    for sentence in results.left_out:
        print(f"left out: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    main()
