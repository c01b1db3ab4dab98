"""What a tool call costs an agent, with each way to a checkpoint before it, and with git.

    python benchmarks/hook_costs.py [--files 1000 78000] [--calls 40] [--directory DIR]
                                    [--json FILE]

Makes a tree of small files for each way, a hundred to a directory, and a store. Before each call
one file of that tree is changed, and each call is what a host does before it runs a tool: it starts
a command and waits for its end, or asks a server that runs. The ways take turns, so that all of
them meet the same machine. Prints the median milliseconds, and their ratio to the start of a bare
interpreter, which is the floor of everything that starts one. A host without hooks pays nothing.
Then prints the processor time of each event of a turn where a watcher runs, of the hook's process
and the watcher together. Needs git, and the extra ``treesnap[mcp]``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

FILES_PER_DIRECTORY = 100
SNAP = [sys.executable, "-m", "treesnap"]
if (Path(sys.executable).parent / "snap").exists():
    SNAP = [str(Path(sys.executable).parent / "snap")]
FLOOR = "python3 -I -S -c pass"
WARM_UP = 3
"""Calls of each way that are not measured."""

EVENTS: dict[str, tuple[bool, str, dict[str, Any]]] = {
    "a prompt": (True, "", {"hook_event_name": "UserPromptSubmit", "prompt": "Go on"}),
    "before a tool": (True, "first", {"hook_event_name": "PreToolUse"}),
    "after it": (True, "first", {"hook_event_name": "PostToolUse"}),
    "before a tool, nothing changed": (False, "second", {"hook_event_name": "PreToolUse"}),
    "after it, nothing changed": (False, "second", {"hook_event_name": "PostToolUse"}),
    "end of the turn": (False, "", {"hook_event_name": "Stop"}),
}
"""Events of a turn in their order: whether a file was changed before, which of two calls of tools
it is about, and what the host tells."""

Call = Callable[[str], None]
"""What a host does before a tool; the argument identifies the tool call."""


class Tree:
    """A tree of small files, of which each call finds one changed."""

    def __init__(self, root: Path, files: int) -> None:
        self.root = root
        self._files = files
        self._number = 0
        for number in range(files):
            path = self._path(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"file %d\n" % number * 100)

    def _path(self, number: int) -> Path:
        return self.root / f"directory-{number // FILES_PER_DIRECTORY}" / f"file-{number}"

    def change(self) -> str:
        """Changes a file and returns a new id of a tool call."""
        self._number += 1
        self._path(self._number * 7919 % self._files).write_bytes(b"change %d\n" % self._number)
        return f"toolu_{self._number}"


def run(words: list[str], **options: Any) -> None:
    """Runs a command as a host does; raises when it fails."""
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True, **options)


@contextmanager
def by_interpreter(_tree: Tree, _store: Path) -> Iterator[Call]:
    """Yields the start of a bare interpreter."""
    yield lambda _: run([sys.executable, "-I", "-S", "-c", "pass"])


@contextmanager
def by_hook(tree: Tree, store: Path, *, is_watched: bool = False) -> Iterator[Call]:
    """Yields what a host does that starts ``snap hook``."""
    environment = {**os.environ, "SNAP_STORE": str(store)}

    def call(key: str) -> None:
        tell(tree, environment, key, hook_event_name="PreToolUse")

    call("first")
    with ExitStack() as stack:
        if is_watched:
            stack.enter_context(watched(tree, store))
        yield call


def tell(tree: Tree, environment: dict[str, str], key: str, **fields: Any) -> None:
    """Tells ``snap hook`` of an event, as a host does."""
    event = {
        "session_id": "benchmark",
        "cwd": str(tree.root),
        "prompt_id": key,
        "tool_name": "Bash",
        "tool_input": {"command": "make"},
        "tool_use_id": key,
        **fields,
    }
    run(
        [*SNAP, "hook", "claude", "--strict"],
        input=json.dumps(event).encode(),
        env=environment,
        cwd=tree.root,
    )


@contextmanager
def by_git(tree: Tree, repository: Path) -> Iterator[Call]:
    """Yields what a checkpoint in a shadow repository of git is."""
    git = ["git", "--git-dir", str(repository), "--work-tree", str(tree.root)]
    hidden = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        hidden |= {f"GIT_{role}_NAME": "a", f"GIT_{role}_EMAIL": "a@example.org"}
    environment = {**os.environ, **hidden}
    run([*git, "init", "-q"], env=environment)

    def call(key: str) -> None:
        run([*git, "add", "-A"], env=environment, cwd=tree.root)
        run([*git, "commit", "-q", "--allow-empty", "-m", key], env=environment, cwd=tree.root)

    call("first")
    yield call


@contextmanager
def by_mcp(tree: Tree, store: Path) -> Iterator[Call]:
    """Yields what a host does that asks a running ``snap mcp``."""
    words = [*SNAP, "--store", str(store), "mcp", "--hooks", str(tree.root)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def tell(method: str, **message: Any) -> None:
            stdin.write(json.dumps({"jsonrpc": "2.0", "method": method, **message}).encode())
            stdin.write(b"\n")
            stdin.flush()

        def ask(method: str, **params: Any) -> Any:
            tell(method, id=1, params=params)
            while "id" not in (answer := json.loads(stdout.readline())):
                pass
            return answer["result"]

        ask(
            "initialize",
            protocolVersion="2025-11-25",
            capabilities={},
            clientInfo={"name": "benchmark", "version": "1"},
        )
        tell("notifications/initialized")

        def call(key: str) -> None:
            arguments = {"session_id": "benchmark", "tool_use_id": key, "tool_name": "Bash"}
            answer = ask("tools/call", name="hook", arguments={**arguments, "strict": True})
            assert not answer.get("isError"), answer

        call("first")
        yield call
        stdin.close()


@contextmanager
def watched(tree: Tree, store: Path) -> Iterator[int]:
    """Keeps a watcher running; yields its process."""
    snap = [*SNAP, "--store", str(store), "-C", str(tree.root), "-q"]
    run([*snap, "watch", "--detach"])
    try:
        status = subprocess.check_output([*snap, "--json", "watch", "--status"])
        yield int(json.loads(status)["process_id"])
    finally:
        run([*snap, "watch", "--stop"])


Way = Callable[[Tree, Path], AbstractContextManager[Call]]
WAYS: dict[str, Way] = {
    FLOOR: by_interpreter,
    "git add, git commit": by_git,
    "snap hook": by_hook,
    "snap hook, watcher": partial(by_hook, is_watched=True),
    "MCP tool of a running snap mcp": by_mcp,
}


def measure(directory: Path | None, files: int, calls: int) -> dict[str, Any]:
    """Returns the median milliseconds of each way, in a new directory."""
    place = Path(tempfile.mkdtemp(prefix="hook-costs-", dir=directory))
    try:
        with ExitStack() as stack:
            ways: dict[str, tuple[Tree, Call]] = {}
            for name, way in WAYS.items():
                own = place / str(len(ways))
                tree = Tree(own / "root", files if name != FLOOR else 1)
                ways[name] = tree, stack.enter_context(way(tree, own / "store"))
            took_ms: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(WARM_UP + calls):
                for name, (tree, call) in ways.items():
                    key = tree.change()
                    begin_s = time.perf_counter()
                    call(key)
                    if number >= WARM_UP:
                        took_ms[name].append((time.perf_counter() - begin_s) * 1000)
    finally:
        shutil.rmtree(place)
    medians = {name: statistics.median(times) for name, times in took_ms.items()}
    return {
        "files": files,
        "calls": calls,
        "median_ms": {name: round(value, 2) for name, value in medians.items()},
        "ratio": {name: round(value / medians[FLOOR], 2) for name, value in medians.items()},
    }


def measure_turns(directory: Path | None, files: int, turns: int) -> dict[str, float]:
    """Returns the median processor time in milliseconds of each event of a turn, with a watcher."""
    place = Path(tempfile.mkdtemp(prefix="hook-costs-", dir=directory))
    took_ms: dict[str, list[float]] = {name: [] for name in EVENTS}
    try:
        tree, store = Tree(place / "root", files), place / "store"
        environment = {**os.environ, "SNAP_STORE": str(store)}
        tell(tree, environment, "first", hook_event_name="UserPromptSubmit", prompt="Begin")
        with watched(tree, store) as process_id:
            for number in range(WARM_UP + turns):
                for name, (is_changed, call, fields) in EVENTS.items():
                    if is_changed:
                        tree.change()
                    begin_ms = hooks_ms() + process_ms(process_id)
                    tell(tree, environment, f"turn-{number}-{call}", **fields)
                    if number >= WARM_UP:
                        took_ms[name].append(hooks_ms() + process_ms(process_id) - begin_ms)
    finally:
        shutil.rmtree(place)
    return {name: round(statistics.median(times), 2) for name, times in took_ms.items()}


def hooks_ms() -> float:
    """Returns the processor time of all hooks that have ended, in milliseconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) * 1000


def process_ms(process_id: int) -> float:
    """Returns the processor time of a process that runs, in milliseconds."""
    threads = Path(f"/proc/{process_id}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


def text(result: dict[str, Any]) -> str:
    """Returns the numbers for people."""
    lines = ["{files:,} files, median of {calls} calls".format(**result)]
    lines += [
        f"{name:36} {result['median_ms'][name]:9.1f} ms   x {ratio:.2f}"
        for name, ratio in result["ratio"].items()
    ]
    lines.append("with a watcher, processor time of hook and watcher together")
    lines += [f"{name:36} {took_ms:9.1f} ms" for name, took_ms in result["processor_ms"].items()]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, nargs="+", default=[1_000, 78_000])
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--directory", type=Path, help="where to work; a disk, or memory")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    results = []
    for files in options.files:
        result = measure(options.directory, files, options.calls)
        result["processor_ms"] = measure_turns(options.directory, files, options.calls)
        results.append(result)
        print(text(results[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
