"""What a valid plan is like, from a document, a program or a file of a store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from treesnap.plans.plan import (
    DEPTH_MAX,
    EVERY_N_STEPS_MAX,
    KEEP_MAX,
    RETRIES_MAX,
    STEPS_MAX,
    TIMEOUT_S_MAX,
    Milestones,
    Step,
    leaves_of,
)


def problem_of(name: str, milestones: Milestones, steps: tuple[Step, ...]) -> str | None:
    """Returns the first rule that a plan breaks, in words, or None."""
    if not _is_a(milestones, Milestones):
        return f"its milestones have to be Milestones, not {type(milestones).__name__}"
    if not _is_a(steps, tuple):
        return f"its steps have to be a tuple, not {type(steps).__name__}"
    problem = problem_of_text(name)
    if problem is not None:
        return f"its name has to be a text that {problem}"
    if not steps:
        return "it has no steps"
    return next(chain(_of_milestones(milestones), _of_steps(steps, 1)), None) or _of_number(steps)


def problem_of_text(text: object) -> str | None:
    """Returns what a text of a plan has to be and is not, or None."""
    if not isinstance(text, str):
        return f"is a str, not {type(text).__name__}"
    if not text.strip():
        return "is not empty"
    if "\0" in text:
        return "holds no NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is UTF-8"
    return None


def _of_number(steps: tuple[Step, ...]) -> str | None:
    """Counts the steps, once their depth is known to be bounded."""
    for number, _ in enumerate(leaves_of(steps)):
        if number >= STEPS_MAX:
            return f"there are more than {STEPS_MAX:,} steps"
    return None


def _of_milestones(milestones: Milestones) -> Iterator[str]:
    for name in ("enabled", "before_each_step", "after_subplan", "skip_unchanged"):
        if not _is_a(getattr(milestones, name), bool):
            yield f"{name} has to be True or False"
    prefix = milestones.label_prefix
    problem = problem_of_text(prefix) if prefix is not None else None
    if problem is not None:
        yield f"label_prefix has to be a text that {problem}"
    every = milestones.every_n_steps
    if every is not None and not _is_number(every, 1, EVERY_N_STEPS_MAX):
        yield f"every_n_steps has to be from 1 to {EVERY_N_STEPS_MAX}"
    if milestones.keep is not None and not _is_number(milestones.keep, 1, KEEP_MAX):
        yield f"keep has to be from 1 to {KEEP_MAX}"


def _of_steps(steps: tuple[Step, ...], depth: int) -> Iterator[str]:
    if depth > DEPTH_MAX:
        yield f"the steps are nested more than {DEPTH_MAX} levels deep"
        return
    for step in steps:
        if not _is_a(step, Step):
            yield f"each step has to be a Step, not {type(step).__name__}"
            return
        if not _is_a(step.steps, tuple):
            yield f"the steps of a step have to be a tuple, not {type(step.steps).__name__}"
            return
        yield from _of_step(step)
        yield from _of_steps(step.steps, depth + 1)


def _of_step(step: Step) -> Iterator[str]:
    texts = {"name": step.name, "run": step.run, "prompt": step.prompt, "call": step.call}
    for what, text in texts.items():
        problem = problem_of_text(text) if text is not None else None
        if problem is not None:
            yield f"the {what} of a step has to be a text that {problem}"
    if not _is_a(step.checkpoint, bool):
        yield f"the checkpoint of the step {step.name!r} has to be True or False"
    actions = [step.run, step.prompt, step.call, step.steps or None]
    if sum(action is not None for action in actions) != 1:
        yield f"the step {step.name!r} has to have one of run, prompt, call, steps"
    if not _is_number(step.retries, 0, RETRIES_MAX):
        yield f"the retries of the step {step.name!r} have to be from 0 to {RETRIES_MAX}"
    if step.timeout_s is not None and not _is_number(step.timeout_s, 1, TIMEOUT_S_MAX):
        yield f"the time limit of the step {step.name!r} has to be a whole number of seconds"


def _is_a(value: object, kind: type) -> bool:
    """Returns whether a value is of a type that callers from Python may not have kept to."""
    return isinstance(value, kind)


def _is_number(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
