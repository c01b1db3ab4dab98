"""Pulls the plug of disks on which the installed ``snap`` is at work, then looks at them.

``tox -e crash`` runs it, as ``python -m crash.run_power_cuts`` with the paths that it needs.

Root and store lie on one disk. Cuts come at random instants, several in one run of a command,
and at writing system calls: there the command is killed and the plug pulled at once. After
each, the tree has to be the old one or the new one, and the new one when the command
had returned success. Ends with 1 when anything was lost.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from crash.black_box import after_interruption
from crash.disks import KINDS, Disk, NotPossible, enter_private_mounts, host
from crash.scene import OPERATIONS, Operation, Scene, populate, workspace
from crash.system_calls import SYNCS, has_strace

MODULE = "crash.run_power_cuts"
INSIDE = "--inside"
START_SHARE = 0.3
"""The share of a run in which Python starts and nothing is written yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One clone of a disk."""

    image: str
    when: str
    """The instant, for people."""
    was_done: bool
    """Whether the command had returned success before."""


@dataclass
class Trial:
    """All cuts of one disk."""

    disk: Disk
    scene: Scene
    options: argparse.Namespace
    random: Random
    losses: list[str] = field(default_factory=list)
    count: int = 0

    def run(self, operation: Operation) -> None:
        """Pulls the plug during one operation, again and again."""
        outcomes: Counter[str] = Counter()
        with self.disk.mounted("live"):
            found = self.scene.points(operation)
            duration_s = self._duration_s(operation)
        for _ in range(self.options.rounds):
            for cut in self._cuts_at_instants(operation, duration_s):
                outcomes[self._check(operation, cut)] += 1
        for point in self.random.sample(found, min(self.options.points, len(found))):
            self._begin(operation)
            with self.disk.mounted("live"):
                ended = self.scene.snap(*operation.words, injection=point.killing())
                self.disk.clone("live", "cut-0")
            cut = Cut(image="cut-0", when=f"at {point}", was_done=ended.code == 0)
            outcomes[self._check(operation, cut)] += 1
        words = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        print(
            f"{self.disk.kind:8}{operation.name:14}{outcomes.total():5} cuts: {words}", flush=True
        )
        self.count += outcomes.total()

    def _begin(self, operation: Operation) -> None:
        with self.disk.mounted("live"):
            self.scene.reset(operation.start)

    def _duration_s(self, operation: Operation) -> float:
        self.scene.reset(operation.start)
        begun = time.monotonic()
        self.scene.must(*operation.words)
        return time.monotonic() - begun

    def _cuts_at_instants(self, operation: Operation, duration_s: float) -> list[Cut]:
        """Runs an operation to its end; clones the disk meanwhile, and once afterwards."""
        self._begin(operation)
        count = self.options.cuts
        moments = sorted(self.random.uniform(START_SHARE, 1) for _ in range(count))
        cuts = []
        with self.disk.mounted("live"):
            begun = time.monotonic()
            process = self.scene.start(*operation.words)
            try:
                for number, moment in enumerate(moments):
                    time.sleep(max(0.0, begun + moment * duration_s - time.monotonic()))
                    was_done = process.poll() == 0
                    when = f"{time.monotonic() - begun:.4f} s after the start"
                    self.disk.clone("live", f"cut-{number}")
                    cuts.append(Cut(image=f"cut-{number}", when=when, was_done=was_done))
                code = process.wait()
            finally:
                process.kill()
                process.wait()
            self.disk.clone("live", f"cut-{count}")
            cuts.append(Cut(image=f"cut-{count}", when="after the end", was_done=True))
        if code != 0:
            self._lose(operation, cuts[-1], [f"{operation.words} exits with {code}"])
        return cuts

    def _check(self, operation: Operation, cut: Cut) -> str:
        """Returns what was found after a cut."""
        outcome, problems = self.look(operation, cut)
        if problems:
            self._lose(operation, cut, problems)
        self.disk.drop(cut.image)
        return outcome

    def look(self, operation: Operation, cut: Cut) -> tuple[str, list[str]]:
        """Mounts a copy of a cut, lets the next commands run, and returns what they found."""
        self.disk.clone(cut.image, "checked")
        with self.disk.mounted("checked"):
            state, problems = after_interruption(self.scene, operation, must_be_new=cut.was_done)
        self.disk.drop("checked")
        return f"{state} after success" if cut.was_done else state, problems

    def _lose(self, operation: Operation, cut: Cut, problems: list[str]) -> None:
        what = f"{self.disk.kind}: {operation.name}, cut {cut.when}"
        kept = self.options.keep
        if kept is not None:
            os.makedirs(kept, exist_ok=True)
            name = f"{self.disk.kind}-{operation.name.replace(' ', '-')}-{len(self.losses)}.img"
            shutil.copyfile(self.disk.image(cut.image), os.path.join(kept, name))
            what += f", disk kept as {name}, to be mounted at {self.disk.place}"
        self.losses.append(what)
        print(f"LOSS {what}", *problems, sep="\n    ", flush=True)

    def control(self) -> None:
        """Asserts that a cut loses what was not synced, so that the other cuts prove something."""
        operation = OPERATIONS["create"]
        self._begin(operation)
        lying = f"inject={','.join(SYNCS)}:retval=0"
        with self.disk.mounted("live"):
            ended = self.scene.snap(*operation.words, injection=lying)
            self.disk.clone("live", "cut-0")
        assert ended.code == 0, ended.err
        cut = Cut(image="cut-0", when="after success with syncs that do nothing", was_done=True)
        _, problems = self.look(operation, cut)
        assert problems, "A snapshot that was never synced survived: the cuts cut nothing"
        print(f"{self.disk.kind:8}control: without syncs the snapshot is lost, as it should be")


def run_kind(disk: Disk, options: argparse.Namespace) -> Trial:
    """Runs all operations on a disk that can be mounted."""
    try:
        return _run_kind(disk, options)
    except NotPossible as error:
        raise RuntimeError("What was possible before is not any more") from error


def _run_kind(disk: Disk, options: argparse.Namespace) -> Trial:
    kind = disk.kind
    with disk.mounted("live") as mounted:
        scene = Scene(mounted / "scene")
        trial = Trial(disk, scene, options, Random(f"{options.seed} {kind}"))
        try:
            populate(scene, options.seed)
        except AssertionError as error:
            trial.losses.append(f"{kind}: without a cut: {error}")
            print(f"LOSS {trial.losses[-1]}", flush=True)
            return trial
    trial.control()
    for name in options.operation or OPERATIONS:
        trial.run(OPERATIONS[name])
    return trial


def main() -> int:
    """Runs what the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--rounds", type=int, default=3, help="runs of each operation")
    parser.add_argument("--cuts", type=int, default=8, help="cuts in each run")
    parser.add_argument("--points", type=int, default=20, help="cuts at system calls")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--operation", action="append", choices=OPERATIONS)
    parser.add_argument("--keep", metavar="DIR", help="where to keep disks with losses")
    options = parser.parse_args()
    if not has_strace():
        return skipped("strace is not installed")
    if not options.inside:
        try:
            enter_private_mounts(MODULE, INSIDE)
        except NotPossible as error:
            return skipped(str(error))
    print(f"seed {options.seed}", flush=True)
    trials: list[Trial] = []
    begun = time.monotonic()
    try:
        with workspace("power-cuts") as directory, host(directory) as place:
            for kind in options.kind or KINDS:
                try:
                    disk = Disk(place / kind, kind)
                    with disk.mounted("live"):
                        pass
                except NotPossible as error:
                    skipped(f"{kind}: {error}")
                else:
                    trials.append(run_kind(disk, options))
    except NotPossible as error:
        return skipped(str(error))
    count = sum(trial.count for trial in trials)
    losses = sum(len(trial.losses) for trial in trials)
    print(f"{count} power cuts, seed {options.seed}, {time.monotonic() - begun:.0f} s")
    print(f"{losses} losses", flush=True)
    return 1 if losses else 0


def skipped(why: str) -> int:
    """Says loudly what was not tested."""
    print(f"SKIPPED, no power was cut: {why}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
