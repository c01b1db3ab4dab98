"""What agents' hosts bring back themselves, and what treesnap does: docs/benchmarks/rewind.md.

    PYTHONPATH=tests/agents:tests/support python -m benchmarks.rewind --hosts-dir DIR
        [--hosts claude gemini ...] [--files 50000] [--directory DIR] [--json FILE]

Each host is a released one, run twice from an empty home directory in a network of loopback
alone, with a scripted model (tests/agents/hosts). In one turn the model reads and edits a file
with the host's own tools, and then does damage with its shell tool, a command to a call. Between
two calls the user saves files, and another session of the host, in a home directory of its own,
changes others. A command of it goes on in the background, and writes when the turn is over. Then
the user changes files, and the host's own way back is taken; in the second run, that of treesnap's
hooks. The trees are compared by an oracle that shares no code with treesnap
(tests/support/oracle.py).
Prints Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.own_ways_back import END, OWN_WAYS, PROMPT, CannotGoBack, OwnWay, wait_until
from hosts.drivers import HOSTS, CannotInstall, Host
from hosts.model_server import Step
from hosts.namespace import Namespace, Transcript
from oracle import Facts, Record, difference, record

FILES_PER_DIRECTORY = 100
RUN_TIMEOUT_S = 900.0
SAID_MAX = 90
"""Characters of what a way back says that are shown."""
SHOWN = 8
"""Differences of a kind that the numbers name."""
ONLY_FILES_WENT_BACK = 4
"""The exit code of a rewind after which the conversation stays."""
SNAP = str(Path(sys.executable).with_name("snap"))
IDENTITY = "[user]\n\tname = Anna\n\temail = anna@example.org\n"
"""What git, and so a host that makes commits, wants to know."""


class Damage(NamedTuple):
    """Something that the agent does in one turn, and the paths that it is about."""

    title: str
    paths: tuple[bytes, ...]
    command: str = ""


DAMAGES = (
    Damage("edit of a file by the host's edit tool", (b"main.py",)),
    Damage("`rm -rf` of a directory with many files", (b"data",), "rm -rf data"),
    Damage("`rm -rf` of an untracked directory", (b"results",), "rm -rf results"),
    Damage("`sed -i` on a tracked file", (b"settings.py",), "sed -i s/10/99/ settings.py"),
    Damage("`sed -i` on an untracked file", (b"notes.txt",), "sed -i s/mint/nettle/ notes.txt"),
    Damage("`mv` of a directory", (b"old", b"new"), "mv old new"),
    Damage("an ignored `.env` overwritten", (b".env",), "echo TOKEN=none > .env"),
    Damage("`rm -rf` of a repository inside", (b"library",), "rm -rf library"),
    Damage("`chmod` of a script, 0755 to 0644", (b"run.sh",), "chmod 644 run.sh"),
    Damage("`chmod` of a key, 0600 to 0644", (b"key",), "chmod 644 key"),
    Damage(
        "a background process that writes after the turn",
        (b"log.txt", b"late.txt"),
        "setsid nohup sh -c 'touch ../background; until [ -e ../turn-is-over ]; do sleep 0.05;"
        " done; echo late >> log.txt; echo late > late.txt; touch ../background-is-over'"
        " > /dev/null 2>&1 < /dev/null & until [ -e ../background ]; do sleep 0.05; done",
    ),
)
KEPT = (
    Damage("what you wrote during the turn", (b"during.txt", b"diary.txt")),
    Damage("what another session of the host wrote during it", (b"theirs.txt", b"api.py")),
    Damage("your changes after the turn", (b"mine.txt", b"todo.txt")),
    Damage("`HEAD`, branches, staged changes, stashes", (b".git",)),
)
CONVERSATION = "the conversation goes back, too"
ALL_ELSE = "all other files"
ALL_TIMES = "modification times of all other files"
TOOLS = ("own", "treesnap", "treesnap --theirs")


def build(home: Path, files: int) -> Path:
    """Makes a project of tracked, untracked and ignored files in a home directory."""
    project = home / "project"
    for name, content in {
        "main.py": "print('alpha')\n",
        "settings.py": "LIMIT = 10\n",
        "old/a.py": "a = 1\n",
        "old/deep/b.py": "b = 2\n",
        "run.sh": "#!/bin/sh\n",
        "log.txt": "first\n",
        "todo.txt": "tidy up\n",
        "diary.txt": "sunny\n",
        "api.py": "x = 1\n",
        "staged.txt": "one\n",
        ".gitignore": ".env\ncache/\n",
    }.items():
        write(project / name, content)
    (project / "run.sh").chmod(0o755)
    for number in range(files):
        directory = project / "data" / str(number // FILES_PER_DIRECTORY)
        write(directory / f"{number}.txt", f"row {number}\n" * 20)
    write(home / ".gitconfig", IDENTITY)
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "-c", "gc.auto=0", "commit", "--quiet", "--message", "first")
    git(project, "gc", "--quiet")  # else git does it in the background, and each host gets another
    write(project / "staged.txt", "two\n")
    git(project, "add", "staged.txt")
    for name in ("notes.txt", ".env", "key", "results/1.csv", "results/2.csv", "cache/x", "draft"):
        write(project / name, f"{name}: mint\n")
    (project / "key").chmod(0o600)
    write(project / "library" / "code.c", "int x;\n")
    git(project / "library", "init", "--quiet")
    git(project / "library", "add", ".")
    git(project / "library", "commit", "--quiet", "--message", "of the library")
    for path in project.iterdir():  # a restore that writes a file anew gives it another time
        if path.is_file():
            os.utime(path, (1_700_000_000, 1_700_000_000))
    git(project, "update-index", "--refresh")
    return project


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def git(top: Path, *words: str) -> bytes:
    """Runs git without the settings of this machine; returns what it printed."""
    home = next(above for above in top.parents if (above / ".gitconfig").exists())
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "--no-optional-locks", *words]
    return subprocess.run(
        command, cwd=top, env=variables, check=True, stdout=subprocess.PIPE
    ).stdout


def state(project: Path) -> Record:
    """Returns what a project is; of its own repository what it is about, not how it is stored."""
    found = {path: facts for path, facts in record(project).items() if not is_below(path, b".git")}
    questions = (
        ["rev-parse", "--symbolic-full-name", "HEAD"],
        ["for-each-ref", "refs/heads", "refs/tags", "refs/stash"],
        ["diff", "--cached", "--raw", "--abbrev=40"],
    )
    answers = b"".join(git(project, *question) for question in questions)
    digest = hashlib.sha256(answers).hexdigest()
    no_times = {"mode": 0, "uid": 0, "gid": 0, "mtime_ns": 0}
    return {**found, b".git": Facts(kind="repository", digest=digest, **no_times)}


def is_below(path: bytes, *tops: bytes) -> bool:
    """Returns whether a path is one of others, or in one of them."""
    return any(path == top or path.startswith(top + b"/") for top in tops)


def plain(whole: Record) -> Record:
    """Returns a record without what only the file system decides, and without times."""
    return {path: replace(facts, mtime_ns=0, extents=()) for path, facts in whole.items()}


def part(whole: Record, paths: Sequence[bytes]) -> Record:
    """Returns what is at some paths and below."""
    return plain({path: facts for path, facts in whole.items() if is_below(path, *paths)})


def outcome(damage: Damage, before: Record, damaged: Record, after: Record) -> str:
    """Returns whether the state before came back, or what was left of it is destroyed."""
    old, new, found = (part(tree, damage.paths) for tree in (before, damaged, after))
    if old == new:
        return "not done"
    if found in (old, new):
        return "yes" if found == old else "no"
    return "destroyed" if contents(old) & contents(new) - contents(found) else "partly"


def contents(tree: Record) -> set[str]:
    """Returns what the files of a tree hold, whatever their names are."""
    return {facts.digest for facts in tree.values() if facts.kind == "file"}


def others(*trees: Record) -> list[bytes]:
    """Returns the paths that neither the agent nor the user changed, sorted."""
    known = [path for each in (*DAMAGES, *KEPT) for path in each.paths]
    return sorted(path for path in set().union(*trees) if path and not is_below(path, *known))


def judge(before: Record, damaged: Record, after: Record) -> dict[str, Any]:
    """Returns what came back, and what the way back should have left alone."""
    paths = others(damaged, after)
    old, new = plain(damaged), plain(after)
    changed = [path for path in paths if old.get(path) != new.get(path)]
    touched = [
        path
        for path in paths
        if path in damaged and damaged[path].kind == "file" and path not in changed
        if damaged[path].mtime_ns != after[path].mtime_ns
    ]
    kept = {each.title: part(damaged, each.paths) == part(after, each.paths) for each in KEPT}
    kept |= {ALL_ELSE: not changed, ALL_TIMES: not touched}
    back = {each.title: outcome(each, before, damaged, after) for each in DAMAGES}
    return {
        "back": back,
        "kept": {title: "yes" if is_so else "no" for title, is_so in kept.items()},
        "differences": {
            each.title: difference(part(before, each.paths), part(after, each.paths))[:SHOWN]
            for each in DAMAGES
            if back[each.title] in ("partly", "destroyed")
        },
        "changed": [os.fsdecode(path) for path in changed[:SHOWN]],
        "touched": [os.fsdecode(path) for path in touched[:SHOWN]],
    }


def do_damage(way: OwnWay) -> None:
    """Has the agent take its turn, and then the user and the background process change files."""
    host, project = way.host, way.project
    path = str(project / "main.py")
    reading = [step for step in [host.reading(path)] if step]
    commands = [each.command for each in DAMAGES if each.command]
    if host.name == "codex":  # refuses -f by its own policy
        commands = [command.replace("rm -rf", "rm -r") for command in commands]
    edit = host.editing(path, "print('alpha')", "print('beta')")
    saved = {str(project / name): f"{name}: by hand\n" for name in ("during.txt", "diary.txt")}
    first, second, *others = map(host.shell, commands)
    waiting, is_over = way.home / "waiting", way.home / "other-session-is-over"
    second |= {"meanwhile": {**saved, str(waiting): ""}, "after": str(is_over)}
    with ThreadPoolExecutor() as pool:
        turn = pool.submit(way.turn, [*reading, edit, first, second, *others])
        wait_until(lambda: waiting.exists() or turn.done())
        try:
            other_session(way)
        finally:
            is_over.touch()
        ended = turn.result()
    assert not project.joinpath("data").exists(), ended
    (way.home / "turn-is-over").touch()
    wait_until((way.home / "background-is-over").exists)
    write(project / "mine.txt", "by hand\n")
    with (project / "todo.txt").open("a") as file:
        file.write("water the garden\n")


def other_session(way: OwnWay) -> None:
    """Has another session of the host change files of the project, whose store it shares."""
    home = way.home.with_name("ben")
    own, shared = (each / ".local" / "share" for each in (home, way.home))
    shared.mkdir(parents=True, exist_ok=True)
    own.parent.mkdir(parents=True)
    own.symlink_to(shared)
    write(home / ".gitconfig", IDENTITY)
    with Namespace(home.with_name("other-model"), timeout_s=RUN_TIMEOUT_S) as network:
        if isinstance(way, SnapWay):
            other = SnapWay(way.host, network, home)
            other.project = way.project
            other.snap("agent", "install", way.host.name)
        step = way.host.shell("echo theirs > theirs.txt; echo 'y = 2' >> api.py")
        ended = way.host.run("write the api", [step, END], home, way.project, network=network)
    assert (way.project / "theirs.txt").exists(), ended


def stored_bytes(home: Path, patterns: Iterable[str]) -> int:
    """Returns the size of all files that are kept at some places."""
    tops = [top for pattern in patterns for top in home.glob(pattern)]
    files = {path.lstat() for top in tops for path in top.rglob("*") if path.is_file()}
    return sum({(each.st_dev, each.st_ino): each.st_size for each in files}.values())


class SnapWay(OwnWay):
    """A host with treesnap's hooks."""

    how = "`snap rewind --conversation`"
    stores = (".local/share/treesnap",)
    notes = ""
    """What the command said beside its result."""

    def snap(self, *words: str) -> str:
        """Runs the command line where the host runs."""
        return self.start(SNAP, *words)

    def prepare(self) -> dict[str, str]:
        """Puts the host on the path of its user."""
        variables = super().prepare()
        return {**variables, "PATH": f"{Path(self.host.path()).parent}:{variables['PATH']}"}

    def back(self) -> str:
        words = (SNAP, "rewind", "--conversation")
        ended = self.network.run(words, [], cwd=self.project, variables=self.prepare())
        if ended.code not in (0, ONLY_FILES_WENT_BACK):
            raise CannotGoBack(f"exit code {ended.code}: {ended.err}")
        self.notes = ended.err
        return ended.out

    def session(self) -> str | None:
        if not self.host.can_resume:
            return None
        resumed = re.search(r"To go on with it: .*?([\w-]{20,})$", self.notes, re.MULTILINE)
        if resumed is not None:
            return resumed[1]
        found = json.loads(self.snap("prompts", "--json"))["prompts"]
        return next(str(each["session"]) for each in found if each["prompt"] == PROMPT)

    def conversation(self) -> str:
        """Returns what the model is told, or that the command names the keys that change that."""
        is_named = "To take the conversation back, too: in " in self.notes
        if "The conversation stays as it is" in self.notes and not is_named:
            return "no"
        found = super().conversation()
        return "by keys" if found == "no" and is_named else found

    def turn(self, steps: Sequence[Step]) -> Transcript:
        """Lets the model take steps; the end of the turn is captured then, also by opencode."""
        ended = super().turn(steps)
        wait_until(self.is_captured)
        return ended

    def is_captured(self) -> bool:
        """Returns whether the end of the turn was captured, which opencode does not wait for."""
        found = json.loads(self.snap("list", "--json"))["snapshots"]
        return any(each["phase"] == "end" for each in found)


def run(host: Host, way_class: type[OwnWay], template: Path, place: Path) -> list[dict[str, Any]]:
    """Lets a host do the damage in a new home directory; returns what each way back did."""
    home = place / "anna"
    subprocess.run(["cp", "-a", str(template), str(home)], check=True)
    before = state(home / "project")
    with Namespace(place / "model", timeout_s=RUN_TIMEOUT_S) as network:
        way = way_class(host, network, home)
        if isinstance(way, SnapWay):
            way.snap("agent", "install", host.name)
        stored = stored_bytes(home, way.stores)
        began = time.monotonic()
        do_damage(way)
        turn_s = time.monotonic() - began
        stored = stored_bytes(home, way.stores) - stored
        damaged = state(way.project)
        common = {"host": host.name, "version": host.version(), "turn_s": round(turn_s, 2)}
        results = []
        for tool, words in ("treesnap", ()), ("treesnap --theirs", ("rewind", "--theirs")):
            began = time.monotonic()
            said = way.snap(*words) if words and isinstance(way, SnapWay) else way.back()
            numbers = {"back_s": round(time.monotonic() - began, 2), "stored_bytes": stored}
            found = judge(before, damaged, state(way.project))
            found |= {"tool": tool, "how": way.how, "said": shortened(said, home)}
            results.append({**common, **numbers, **found})
            if not isinstance(way, SnapWay):
                results[0]["tool"] = "own"
                break
        told = way.conversation()
        for each in results:
            each["back"][CONVERSATION] = told
        return results


def shortened(said: str, home: Path) -> str:
    """Returns the first line of what was said, without paths and ids of this run."""
    line = next((line for line in said.splitlines() if line.strip()), "nothing")
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{12,}\b", "ID", line)
    return line.replace(str(home), "~").replace("|", "/")[:SAID_MAX]


def tables(results: Sequence[Mapping[str, Any]], absent: Mapping[str, str]) -> list[str]:
    """Returns what came back and what stayed, and then what it took, as lines in Markdown."""
    columns = [(f"{each['host']}", each) for each in results if each["tool"] == "own"]
    for tool in TOOLS[1:]:
        of_tool = [each for each in results if each["tool"] == tool]
        columns += [(tool, merged(of_tool))] if of_tool else []
    lines = ["| | " + " | ".join(f"{name}" for name, _ in columns) + " |"]
    lines += ["| --- |" + " --- |" * len(columns)]
    for kind, start in ("back", ""), ("kept", "keeps "):
        for title in columns[0][1][kind]:
            cells = " | ".join(cell(column[kind][title]) for _, column in columns)
            lines.append(f"| {start}{title} | {cells} |")
    lines += ["", "| host | way back | it said | turn, s | back, s | stored |"]
    lines += ["| --- | --- | --- | ---: | ---: | ---: |"]
    for each in results:
        if each["tool"] != TOOLS[-1]:
            start = f"| {each['host']} {each['version']} | {each['how']} | {each['said']} |"
            numbers = f"{each['turn_s']:.1f} | {each['back_s']:.1f} | {each['stored_bytes']:,} B |"
            lines.append(f"{start} {numbers}")
    return [*lines, *(f"| {name} | {reason} | | | | |" for name, reason in absent.items())]


def cell(verdict: str) -> str:
    """Returns the text of a cell; what is bad stands out."""
    return verdict if verdict == "yes" else f"**{verdict}**"


def merged(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Returns the verdicts of one tool in several hosts, which are named where they differ."""
    whole: dict[str, dict[str, str]] = {"back": {}, "kept": {}}
    for kind, verdicts in whole.items():
        for title in results[0][kind]:
            hosts: dict[str, list[str]] = {}
            for each in results:
                hosts.setdefault(each[kind][title], []).append(each["host"])
            first, *rest = sorted(hosts, key=lambda value: -len(hosts[value]))
            exceptions = "".join(f"; {', '.join(hosts[each])}: {each}" for each in rest)
            verdicts[title] = f"{first}{exceptions}" if rest else first
    return whole


def main() -> None:
    """Runs the hosts, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts-dir", type=Path, required=True, help="where hosts are installed")
    parser.add_argument("--hosts", nargs="+", choices=HOSTS, default=list(HOSTS))
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--directory", type=Path, help="where to work; a disk, or memory")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    absent: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="rewind-", dir=options.directory) as directory:
        template = Path(directory, "template")
        build(template, options.files)
        for name in options.hosts:
            host = HOSTS[name](options.hosts_dir.absolute())
            for way in (OWN_WAYS[name], SnapWay):
                if way.reason:
                    absent[f"{name} {host.version()}"] = way.reason
                    continue
                try:
                    with tempfile.TemporaryDirectory(prefix=name, dir=directory) as place:
                        host.install()
                        results += run(host, way, template, Path(place))
                except (CannotGoBack, CannotInstall) as error:
                    absent[f"{name}, {way.how}"] = str(error)
                print(f"{name}, {way.how}: done", file=sys.stderr, flush=True)
    print("\n".join(tables(results, absent)))
    if options.json is not None:
        options.json.write_text(json.dumps([results, absent], indent=1) + "\n")


if __name__ == "__main__":
    main()
