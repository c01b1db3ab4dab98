"""A root, its store, and plans of steps that write down their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from treesnap.core.handle import Handle
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.ops.context import context_at
from treesnap.plans import (
    Attempt,
    Checkpoint,
    CheckpointId,
    Content,
    Milestones,
    Plan,
    PlanId,
    PlanMonitor,
    Planner,
    RollbackResult,
    Step,
    StepState,
)
from treesnap.testing.doubles import UnsyncedFileSystem

NONE = Milestones(enabled=False)
LOG = "done"


class Watching(PlanMonitor):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.written = b""
        self.taken: list[str] = []
        self.attempts: list[tuple[int, int, str]] = []
        self.on_output: Callable[[bytes], None] = lambda data: None

    def output(self, data: bytes) -> None:
        self.written += data
        self.on_output(data)

    def attempt_ended(self, plan: Plan, attempt: Attempt, state: StepState) -> None:
        self.attempts.append((attempt.step_index, attempt.number, state.value))

    def checkpoint_taken(self, plan: Plan, checkpoint: Checkpoint) -> None:
        self.taken.append(f"{checkpoint.label}: {checkpoint.reason}")


@dataclass
class Bench:
    """A root and its store, and planners on both. Nothing waits for the disk."""

    directory: Path
    now_ns: int = 1_700_000_000 * 10**9
    seen: Watching = field(default_factory=Watching)

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def handle(self, root: Path | None = None) -> Handle:
        return Handle(
            context_at(
                root=root or self.root,
                store_path=str(self.store),
                fs=UnsyncedFileSystem(),
                clock_ns=lambda: self.now_ns,
                wait_s=5,
            )
        )

    def planner(self, root: Path | None = None, **options) -> Planner:
        return Planner(self.handle(root), monitor=self.seen, **options)

    def run(self, *steps: Step, milestones: Milestones | None = None, name: str = "plan") -> Plan:
        return self.planner().run(name, steps, milestones)

    def lines(self) -> list[str]:
        """What the steps have written down."""
        path = self.root / LOG
        return path.read_text().split() if path.exists() else []

    def agrees(self, plan: Plan) -> bool:
        """Whether the files are those of the steps that the plan calls completed."""
        done = [
            leaf.step.name
            for leaf, item in zip(plan.leaves, plan.content.progress, strict=True)
            if item.state == StepState.COMPLETED
        ]
        return self.lines() == done

    def plan_files(self) -> list[Path]:
        return sorted(path for path in self.store.glob("roots/*/plan-*") if path.suffix != ".log")


def noted(name: str, more: str = "", **options) -> Step:
    """A step that writes its name down, then does more."""
    return Step(name=name, run=f"echo {name} >> {LOG}; {more}", **options)


STEPS = (noted("one"), noted("two"), noted("three"))


def labels(bench: Bench, ref: str = "latest") -> list[str]:
    """The labels of a plan's checkpoints, newest first."""
    return [item.label for item in bench.planner().checkpoints(ref)]


def to(bench: Bench, label: str) -> RollbackResult:
    """Rolls back to the newest checkpoint with a label."""
    found = bench.planner().checkpoints("latest")
    return bench.planner().rollback("latest", next(i.id for i in found if i.label == label))


def checkpoint_of(content: Content, plan: Plan | None = None) -> Checkpoint:
    """A checkpoint of a plan's content that says nothing else."""
    return Checkpoint(
        id=CheckpointId("01J9ZKM8F4Q6T2W8X0Y2A4C6E9"),
        plan_id=plan.id if plan else PlanId("01J9ZKM8F4Q6T2W8X0Y2A4C6E8"),
        sandbox=plan.root if plan else b"/",
        snapshot_id=SnapshotId("cd" * 32),
        root_hash="ef" * 32,
        created_at_ns=1,
        step_index=0,
        label="",
        reason="",
        phase="",
        source_tool="",
        plan_state_hash="ab" * 32,
        content=content,
    )


def shortest(wanted: str, among: Iterable[str]) -> str:
    """The shortest beginning of an id, of at least four characters, that no other has."""
    others = [other for other in among if other != wanted]
    lengths = range(4, len(wanted) + 1)
    begins = (wanted[:length] for length in lengths)
    return next(text for text in begins if not any(other.startswith(text) for other in others))


def is_alive(process_id: int) -> bool:
    """Whether a thread of a process runs; after the end of all, it is a zombie."""
    try:
        threads = os.listdir(f"/proc/{process_id}/task")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(_is_running(Path(f"/proc/{process_id}/task/{thread}/stat")) for thread in threads)


def _is_running(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(process_id: int) -> None:
    """Ends a process that a test left running on purpose."""
    os.kill(process_id, 9)
