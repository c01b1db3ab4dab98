"""Plans as values: steps in order, the progress of each, and checkpoints to return to.

Pure: nothing here runs a command or touches a file. Every transition is a method that
returns another plan, and the runner makes each durable before it continues. A *step* is
one command, prompt or call, or a sub-plan with steps of its own. The *step index* counts
the steps that do something, from 0, in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import NewType

from treesnap.core.model.errors import printable
from treesnap.core.model.presentation import (
    ID_DIGITS,
    Fields,
    Presented,
    Record,
    fields_of,
    json_fields,
    path_text,
    short_repr,
)
from treesnap.core.model.quantities import count_text
from treesnap.core.model.snapshots import SnapshotId, utc_text

PlanId = NewType("PlanId", str)
"""The ULID of a plan."""

CheckpointId = NewType("CheckpointId", str)
"""The ULID of a checkpoint."""

EVERY_N_STEPS_MAX = 50
STEPS_MAX = 10_000
DEPTH_MAX = 32
RETRIES_MAX = 1000
TIMEOUT_S_MAX = 10**9
KEEP_MAX = 10_000
KEEP_DEFAULT = 50
BEFORE_ROLLBACK = "before_rollback"
"""The reason of the checkpoint of the state before a roll-back."""
FLAGS = ("enabled", "before_each_step", "after_subplan", "skip_unchanged")
"""The fields of milestones that are true or false."""

_ULID_ALPHABET = frozenset("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
_ULID_LENGTH = 26
_ULID_TIME_MS_MAX = (1 << 48) - 1


class PlanState(StrEnum):
    """State of a whole plan."""

    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"
    COMPLETED = "completed"
    ROLLED_BACK = "rolled_back"
    APPLIED = "applied"


class StepState(StrEnum):
    """State of one step."""

    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Step(Presented):
    """One thing to do, or a sub-plan of several."""

    name: str
    run: str | None = None
    """A command for the shell."""
    prompt: str | None = None
    """Text for the runner, the program that carries out prompts."""
    call: str | None = None
    """Name of a function of the program that runs the plan."""
    steps: tuple[Step, ...] = ()
    checkpoint: bool = False
    """Whether a checkpoint is taken when the step has succeeded."""
    retries: int = 0
    """How often a failed step is tried again, each time from the state before it."""
    timeout_s: int | None = None
    """Seconds after which an attempt is killed and counts as failed."""

    def __repr__(self) -> str:
        """Returns of a sub-plan its name and how many steps are in it."""
        if not self.steps:
            return short_repr(self)
        count = sum(1 for _ in leaves_of(self.steps))
        return f"<Step {printable(self.name)} of {count_text(count, 'step')}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Milestones(Presented):
    """When checkpoints are taken, in addition to those that single steps ask for."""

    enabled: bool = True
    every_n_steps: int | None = None
    """After every N steps; from 1 to 50."""
    before_each_step: bool = True
    after_subplan: bool = True
    keep: int | None = None
    """How many checkpoints of the plan are kept, whatever the store's policy says; older ones
    are removed. None keeps 50, or fewer if the policy says so."""
    label_prefix: str | None = None
    """Checkpoints after steps are labelled "PREFIX:STEP"; without a prefix "after STEP"."""
    skip_unchanged: bool = False
    """Whether to take no checkpoint after a step if nothing but times differs from the previous
    checkpoint, or from the state before the step if there is none."""

    @property
    def keep_count(self) -> int:
        """The most checkpoints that the plan keeps."""
        return self.keep if self.keep is not None else KEEP_DEFAULT


PIPELINE_CHECKPOINT_PREFIX = "architect:checkpoint"
"""How the labels of a pipeline's checkpoints begin."""
PIPELINE_MILESTONES = Milestones(
    enabled=False,
    every_n_steps=5,
    before_each_step=False,
    after_subplan=False,
    label_prefix=PIPELINE_CHECKPOINT_PREFIX,
    skip_unchanged=True,
)
"""When a pipeline of Architect's takes checkpoints, unless its file says otherwise."""


class Leaf(Record):
    """A step that does something, with the sub-plans around it."""

    step: Step
    path: tuple[str, ...]
    """Names of the sub-plans around it, outermost first."""
    ends: tuple[str, ...]
    """Names of the sub-plans whose last step it is, innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepProgress(Presented):
    """Progress of a step."""

    state: StepState = StepState.PENDING
    attempts: int = 0
    exit_code: int | None = None
    """Of the last attempt of a command; None before the first, and after a timeout."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Content(Presented):
    """What a checkpoint restores of a plan: its steps and their progress."""

    steps: tuple[Step, ...]
    progress: tuple[StepProgress, ...]
    """One for each leaf, in order."""

    def __repr__(self) -> str:
        """Returns how many of the steps are completed."""
        return f"<Content {_done_text(self.progress)} completed>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Checkpoint(Presented):
    """A state that a plan can return to: its content and the files of that moment."""

    id: CheckpointId
    plan_id: PlanId
    sandbox: bytes
    """Real path of the root whose files it restores."""
    snapshot_id: SnapshotId
    root_hash: str
    created_at_ns: int
    step_index: int
    """The step that would run next."""
    label: str
    reason: str
    phase: str
    source_tool: str
    plan_state_hash: str
    content: Content

    @property
    def path_text(self) -> str:
        """The root whose files it restores, as text that Python's file functions take."""
        return path_text(self.sandbox)

    def to_dict(self) -> Fields:
        """Returns it as ``snap plan checkpoints --json`` prints it; ``json.dumps`` takes it."""
        return json_fields(
            {
                **fields_of(self, without={"created_at_ns", "content"}),
                "created_at": utc_text(self.created_at_ns),
            }
        )

    def __repr__(self) -> str:
        """Returns id, label, the step that would run next, and the snapshot, on one line."""
        place = f"step_index={self.step_index} snapshot {self.snapshot_id[:ID_DIGITS]}"
        return f"<Checkpoint {self.id} {place}: {printable(self.label)}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Attempt(Presented):
    """A step that is running. One found in a stored plan was interrupted."""

    step_index: int
    number: int
    """From 1."""
    snapshot_id: SnapshotId
    """The snapshot of the files before the step."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Presented):
    """A plan as it is stored."""

    id: PlanId
    name: str
    root: bytes
    """Real path of the root whose files it changes."""
    created_at_ns: int
    milestones: Milestones = Milestones()
    state: PlanState = PlanState.PENDING
    content: Content
    checkpoints: tuple[Checkpoint, ...] = ()
    """Oldest first."""
    attempt: Attempt | None = None
    runner: str | None = None
    """The command that carries out prompts, with ``{prompt}`` in it."""
    held: tuple[SnapshotId, ...] = ()
    """Snapshots that are pinned while the plan needs them."""

    @property
    def path_text(self) -> str:
        """The root whose files it changes, as text that Python's file functions take."""
        return path_text(self.root)

    def to_dict(self) -> Fields:
        """Returns what ``snap plan show --json`` prints of the plan; ``json.dumps`` takes it.

        Checkpoints are left out, which show themselves; so is ``interrupted``, which
        :meth:`~treesnap.plans.Planner.is_at_work` tells.
        """
        return json_fields(
            {
                "plan_id": self.id,
                "name": self.name,
                "state": self.state,
                "created_at": utc_text(self.created_at_ns),
                "root": self.root,
                "next_step": self.next_index,
                "steps": [
                    {
                        "step_index": index,
                        "path": leaf.path,
                        **fields_of(leaf.step, without={"steps"}),
                        **fields_of(progress),
                    }
                    for index, (leaf, progress) in enumerate(
                        zip(self.leaves, self.content.progress, strict=True)
                    )
                ],
            }
        )

    def __repr__(self) -> str:
        """Returns id, name, state, and how much is done, on one line."""
        done = _done_text(self.content.progress)
        checkpoints = count_text(len(self.checkpoints), "checkpoint")
        return f"<Plan {self.id} {self.state.value} {done}, {checkpoints}: {printable(self.name)}>"

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The steps that do something, in order."""
        return tuple(leaves_of(self.content.steps))

    @property
    def next_index(self) -> int:
        """The first step that is not completed; the number of steps if all are."""
        progress = self.content.progress
        open_ones = (
            index for index, item in enumerate(progress) if item.state != StepState.COMPLETED
        )
        return next(open_ones, len(progress))

    @property
    def is_interrupted(self) -> bool:
        """Whether the plan is running; if no process works on it, it was interrupted."""
        return self.state == PlanState.RUNNING or self.attempt is not None

    def began(self, attempt: Attempt) -> Plan:
        """Returns the plan with a step running."""
        progress = StepProgress(state=StepState.RUNNING, attempts=attempt.number)
        return replace(
            self.with_progress(attempt.step_index, progress),
            state=PlanState.RUNNING,
            attempt=attempt,
        )

    def ended(self, state: StepState, exit_code: int | None) -> Plan:
        """Returns the plan after the attempt; a failed step fails the plan."""
        assert self.attempt is not None
        progress = StepProgress(state=state, attempts=self.attempt.number, exit_code=exit_code)
        after = replace(self.with_progress(self.attempt.step_index, progress), attempt=None)
        return replace(after, state=PlanState.FAILED) if state == StepState.FAILED else after

    def with_progress(self, index: int, item: StepProgress) -> Plan:
        """Returns the plan with one step's progress replaced."""
        progress = self.content.progress
        changed = (*progress[:index], item, *progress[index + 1 :])
        return replace(self, content=replace(self.content, progress=changed))

    def settled(self) -> Plan:
        """Returns the plan with no step running, as it is when no process works on it."""
        progress = tuple(
            StepProgress(attempts=item.attempts) if item.state == StepState.RUNNING else item
            for item in self.content.progress
        )
        state = PlanState.PENDING if self.state == PlanState.RUNNING else self.state
        content = replace(self.content, progress=progress)
        return replace(self, content=content, state=state, attempt=None)

    @property
    def failed_index(self) -> int | None:
        """The step that failed, or None."""
        states = [item.state for item in self.content.progress]
        return states.index(StepState.FAILED) if StepState.FAILED in states else None

    @property
    def insertion_index(self) -> int:
        """Where a correction is inserted: before the failed step, else at the end.

        After a roll-back nothing has failed any more, but the newest checkpoint of the state
        before one knows what had. Such a step counts until it is completed.
        """
        failed = self.failed_index
        if failed is None:
            failed = self._undone_failure
        return failed if failed is not None else len(self.content.progress)

    @property
    def _undone_failure(self) -> int | None:
        """The present index of the step that had failed before the newest roll-back, or None."""
        before = next(
            (item for item in reversed(self.checkpoints) if item.reason == BEFORE_ROLLBACK), None
        )
        if before is None:
            return None
        then = replace(self, content=before.content)
        if then.failed_index is None:
            return None
        leaf = then.leaves[then.failed_index]
        first = max(then.failed_index, self.next_index)  # corrections may have come before it
        names = [(item.path, item.step) for item in self.leaves]
        step = (leaf.path, leaf.step)
        return names.index(step, first) if step in names[first:] else None

    def corrected(self, step: Step) -> Plan:
        """Returns the plan with one more step at :attr:`insertion_index`.

        The other steps stay as they are. Before a failed step it joins the same sub-plan.
        """
        index = self.insertion_index
        progress = self.content.progress
        content = Content(
            steps=_inserted(self.content.steps, step, index),
            progress=(*progress[:index], StepProgress(), *progress[index:]),
        )
        state = self.state if self.state == PlanState.FAILED else PlanState.PENDING
        return replace(self, content=content, state=state)

    def rolled_back(self, checkpoint: Checkpoint) -> Plan:
        """Returns the plan as it was at a checkpoint. Later checkpoints stay."""
        return replace(self, state=PlanState.ROLLED_BACK, content=checkpoint.content, attempt=None)

    def reverted(self, checkpoint: Checkpoint) -> Plan:
        """Returns the plan with the progress of a checkpoint and its present steps.

        If the steps completed by then differ from the present ones, does as :meth:`rolled_back`.
        """
        back = self.rolled_back(checkpoint)
        done = back.next_index
        then = [leaf.step for leaf in back.leaves[:done]]
        if then != [leaf.step for leaf in self.leaves[:done]]:
            return back
        rest = len(self.content.progress) - done
        progress = (*back.content.progress[:done], *[StepProgress()] * rest)
        return replace(back, content=replace(self.content, progress=progress))


def leaves_of(
    steps: tuple[Step, ...], path: tuple[str, ...] = (), ends: tuple[str, ...] = ()
) -> Iterator[Leaf]:
    """Yields the steps that do something, in the order in which they run."""
    for position, step in enumerate(steps):
        ends_here = ends if position == len(steps) - 1 else ()
        if step.steps:
            yield from leaves_of(step.steps, (*path, step.name), (step.name, *ends_here))
        else:
            yield Leaf(step, path, ends_here)


def _done_text(progress: tuple[StepProgress, ...]) -> str:
    done = sum(item.state == StepState.COMPLETED for item in progress)
    return f"{done:,} of {count_text(len(progress), 'step')}"


def _inserted(steps: tuple[Step, ...], new: Step, index: int) -> tuple[Step, ...]:
    """Returns steps with a new one before that of an index, in its sub-plan, or at the end."""
    for position, step in enumerate(steps):
        count = sum(1 for _ in leaves_of((step,)))
        if index >= count:
            index -= count
            continue
        if step.steps:
            inner = replace(step, steps=_inserted(step.steps, new, index))
            return (*steps[:position], inner, *steps[position + 1 :])
        return (*steps[:position], new, *steps[position:])
    return (*steps, new)


def unstarted(steps: tuple[Step, ...]) -> Content:
    """Returns the content of a plan whose steps are all pending."""
    return Content(steps=steps, progress=tuple(StepProgress() for _ in leaves_of(steps)))


def problem_of(name: str, milestones: Milestones, steps: tuple[Step, ...]) -> str | None:
    """Returns the first rule that a plan breaks, in words, or None."""
    if not _is_a(milestones, Milestones):
        return f"its milestones must be Milestones, not {type(milestones).__name__}"
    if not _is_a(steps, tuple):
        return f"its steps must be a tuple, not {type(steps).__name__}"
    problem = problem_of_text(name)
    if problem is not None:
        return f"its name {problem}"
    if not steps:
        return "it has no steps"
    return next(chain(_of_milestones(milestones), _of_steps(steps, 1)), None) or _of_number(steps)


def problem_of_text(text: object) -> str | None:
    """Returns the first rule that a text of a plan breaks, such as "must not be empty", or None."""
    if not isinstance(text, str):
        return f"must be a str, not {type(text).__name__}"
    if not text.strip():
        return "must not be empty"
    if "\0" in text:
        return "must not contain a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must be valid UTF-8"
    return None


def _of_number(steps: tuple[Step, ...]) -> str | None:
    """Checks the number of steps; the caller has checked their depth."""
    for number, _ in enumerate(leaves_of(steps)):
        if number >= STEPS_MAX:
            return f"there are more than {STEPS_MAX:,} steps"
    return None


def _of_milestones(milestones: Milestones) -> Iterator[str]:
    for name in FLAGS:
        if not _is_a(getattr(milestones, name), bool):
            yield f"{name} must be True or False"
    prefix = milestones.label_prefix
    problem = problem_of_text(prefix) if prefix is not None else None
    if problem is not None:
        yield f"label_prefix {problem}"
    every = milestones.every_n_steps
    if every is not None and not _is_number(every, 1, EVERY_N_STEPS_MAX):
        yield f"every_n_steps must be from 1 to {EVERY_N_STEPS_MAX}"
    if milestones.keep is not None and not _is_number(milestones.keep, 1, KEEP_MAX):
        yield f"keep must be from 1 to {KEEP_MAX}"


def _of_steps(steps: tuple[Step, ...], depth: int) -> Iterator[str]:
    if depth > DEPTH_MAX:
        yield f"the steps are nested more than {DEPTH_MAX} levels deep"
        return
    for step in steps:
        if not _is_a(step, Step):
            yield f"each step must be a Step, not {type(step).__name__}"
            return
        if not _is_a(step.steps, tuple):
            yield f"the steps of a step must be a tuple, not {type(step.steps).__name__}"
            return
        yield from _of_step(step)
        yield from _of_steps(step.steps, depth + 1)


def _of_step(step: Step) -> Iterator[str]:
    texts = {"name": step.name, "run": step.run, "prompt": step.prompt, "call": step.call}
    for what, text in texts.items():
        problem = problem_of_text(text) if text is not None else None
        if problem is not None:
            yield f"the {what} of a step {problem}"
    if not _is_a(step.checkpoint, bool):
        yield f"the checkpoint of the step {step.name!r} must be True or False"
    actions = [step.run, step.prompt, step.call, step.steps or None]
    if sum(action is not None for action in actions) != 1:
        yield f"the step {step.name!r} must have exactly one of run, prompt, call, steps"
    if not _is_number(step.retries, 0, RETRIES_MAX):
        yield f"the retries of the step {step.name!r} must be from 0 to {RETRIES_MAX}"
    if step.timeout_s is not None and not _is_number(step.timeout_s, 1, TIMEOUT_S_MAX):
        yield f"the time limit of the step {step.name!r} must be a whole number of seconds"


def _is_a(value: object, kind: type) -> bool:
    """Returns whether a value is of a type; callers from Python may ignore annotations."""
    return isinstance(value, kind)


def _is_number(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def new_ulid(now_ns: int, after: str | None = None) -> str:
    """Returns a new ULID for a time in nanoseconds since 1970.

    It sorts after ``after``, even if the clock was set back since.
    """
    from ulid import ULID

    earliest_ms = ULID.from_str(after).milliseconds + 1 if after is not None else 0
    now_ms = max(now_ns // 1_000_000, earliest_ms)
    return str(ULID.from_timestamp(min(now_ms, _ULID_TIME_MS_MAX)))


def is_ulid(text: str) -> bool:
    """Returns whether a text is a whole ULID in its canonical form."""
    return len(text) == _ULID_LENGTH and not set(text) - _ULID_ALPHABET and text[0] in "01234567"


def may_begin_ulid(text: str) -> bool:
    """Returns whether a text can be the beginning of a ULID, in either case."""
    return 4 <= len(text) <= _ULID_LENGTH and not set(text.upper()) - _ULID_ALPHABET
