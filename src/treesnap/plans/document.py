"""The YAML form of a plan, checked completely; errors name the line.

    name: release
    checkpoints: {enabled: true, every_n_steps: 1, before_each_step: true, after_subplan: true}
    steps:
      - name: implement
        run: make feature
        checkpoint: true
        retries: 2
      - name: optimize
        steps: [...]

The reader walks the parser's graph of nodes, because nodes know their lines, and because
 aliases may form a cycle or expand without limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import yaml

from treesnap.core.model.arguments import checked
from treesnap.core.model.errors import ErrorCode, InvalidArgument, printable
from treesnap.core.model.presentation import Record
from treesnap.core.model.quantities import parse_duration
from treesnap.plans.plan import (
    DEPTH_MAX,
    EVERY_N_STEPS_MAX,
    FLAGS,
    KEEP_MAX,
    RETRIES_MAX,
    STEPS_MAX,
    TIMEOUT_S_MAX,
    Milestones,
    Step,
    problem_of_text,
)

SIZE_BYTES_MAX = 1 << 20
EXPANDED_SIZE_BYTES_MAX = 2 << 20
"""Bytes of all values with each alias expanded; this bounds the record, which is written whole
each time that a step begins or ends. Twice the document, because an escape may stand for more."""
VALUE_LENGTH_MAX = 100
"""Characters of a number, a flag or a date."""
_TEXT_TAG = "tag:yaml.org,2002:str"
STANDARD_INPUT = "standard input"
"""Stands for the path of a document without one."""

_ACTIONS = ("run", "prompt", "steps")


class Definition(Record):
    """What a document says."""

    name: str
    milestones: Milestones
    steps: tuple[Step, ...]
    prompt_line: int | None
    """The line of the first step with a prompt, or None."""


@checked
def parse_document(text: str, where: str, defaults: Milestones | None = None) -> Definition:
    """Returns the plan that a YAML document describes.

    ``defaults`` applies where ``checkpoints`` says nothing. ``where`` is the document's path, for
    messages; a plan without a name is named after the file. Raises InvalidArgument with the
    line for every mistake, unknown keys included.
    """
    if len(text.encode("utf-8", "replace")) > SIZE_BYTES_MAX:
        raise invalid_document(where, None, f"it is larger than {SIZE_BYTES_MAX >> 20} MiB")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else None
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise invalid_document(where, line, problem or "it is not YAML") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise invalid_document(where, None, str(error).splitlines()[0]) from error
    if node is None:
        raise invalid_document(where, None, "it is empty")
    return _Reader(where, defaults or Milestones()).definition(node)


def invalid_document(where: str, line: int | None, problem: str) -> InvalidArgument:
    """Returns the error of a document, with the line if it has one."""
    position = f"{printable(where)}, line {line}" if line is not None else printable(where)
    return InvalidArgument(
        f"The plan in {position} cannot be used: {problem}", code=ErrorCode.INVALID_PLAN, path=where
    )


def default_name(where: str) -> str:
    """Returns the file's name without its ending, for a plan that its document does not name."""
    name = where.rsplit("/", 1)[-1]
    name = name.rsplit(".", 1)[0] or name
    return name if problem_of_text(name) is None and where != STANDARD_INPUT else "plan"


class _Reader:
    def __init__(self, where: str, defaults: Milestones) -> None:
        self._where = where
        self._defaults = defaults
        self._steps = 0
        self._leaves = 0
        self._size_bytes = 0
        """Bytes of all values so far, those of an alias each time that it is used."""
        self._open: list[int] = []
        self._prompt_line: int | None = None
        self._keys: dict[int, str] = {}

    def definition(self, node: yaml.Node) -> Definition:
        """Returns the plan in a document's top node."""
        table = self._table(node, {"name", "checkpoints", "steps"})
        if "steps" not in table:
            self._fail(node, "it has no 'steps'")
        steps = self._list_of_steps(table["steps"])
        checkpoints = table.get("checkpoints")
        return Definition(
            name=self._text(table["name"]) if "name" in table else default_name(self._where),
            milestones=self._milestones(checkpoints) if checkpoints else self._defaults,
            steps=steps,
            prompt_line=self._prompt_line,
        )

    def _fail(self, node: yaml.Node, problem: str) -> NoReturn:
        raise invalid_document(self._where, node.start_mark.line + 1, problem)

    def _fail_as(self, node: yaml.Node, rule: str) -> NoReturn:
        """Fails a value that breaks a rule, named by its key if it has one."""
        self._fail(node, f"{self._keys.get(id(node), 'this value')} must be {rule}")

    def _table(self, node: yaml.Node, keys: set[str]) -> Mapping[str, yaml.Node]:
        """Returns the values of a mapping by key; refuses unknown and repeated keys."""
        if not isinstance(node, yaml.MappingNode):
            self._fail_as(node, f"a mapping with {_words(keys)}")
        table: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if name not in keys:
                self._fail(key, f"unknown key {name!r}; known are {_words(keys)}")
            if name in table:
                self._fail(key, f"the key {name!r} appears twice")
            table[name] = value
            self._keys[id(value)] = repr(name)
        return table

    def _scalar(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self._fail_as(node, "a single value")
        self._size_bytes += len(node.value.encode("utf-8", "replace"))
        if self._size_bytes > EXPANDED_SIZE_BYTES_MAX:
            self._fail(
                node,
                f"with its aliases it has more than {EXPANDED_SIZE_BYTES_MAX >> 20} MiB of text",
            )
        if node.tag != _TEXT_TAG and len(node.value) > VALUE_LENGTH_MAX:
            # A number to the base of 60 takes a time that is the square of its length.
            self._fail_as(node, f"at most {VALUE_LENGTH_MAX} characters, unless it is in quotes")
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
            # The last two are how the parser fails on a value that its explicit tag does not fit.
            self._fail(node, f"the value cannot be read as {node.tag!r}: {error}")

    def _text(self, node: yaml.Node) -> str:
        value = self._scalar(node)
        if not isinstance(value, str) and node.value:
            self._fail_as(node, f"text; put {node.value!r} in quotes")
        text = value if isinstance(value, str) else ""
        problem = problem_of_text(text)
        if problem is not None:
            self._fail(node, f"{self._keys.get(id(node), 'this value')} {problem}")
        return text

    def _flag(self, node: yaml.Node) -> bool:
        value = self._scalar(node)
        if not isinstance(value, bool):
            self._fail_as(node, "true or false")
        return value

    def _number(self, node: yaml.Node, least: int, most: int) -> int:
        value = self._scalar(node)
        if type(value) is not int or not least <= value <= most:
            self._fail_as(node, f"a number from {least} to {most}")
        return value

    def _seconds(self, node: yaml.Node) -> int:
        value = self._scalar(node)
        try:
            seconds = parse_duration(value) if isinstance(value, str) else value
        except InvalidArgument as error:
            self._fail(node, error.message)
        if type(seconds) is not int or not 0 < seconds <= TIMEOUT_S_MAX:
            self._fail_as(node, "a time such as 90s or 10m, or a number of seconds")
        return seconds

    def _milestones(self, node: yaml.Node) -> Milestones:
        readers: dict[str, Callable[[yaml.Node], Any]] = {
            **dict.fromkeys(FLAGS, self._flag),
            "every_n_steps": lambda item: self._number(item, 1, EVERY_N_STEPS_MAX),
            "keep": lambda item: self._number(item, 1, KEEP_MAX),
            "label_prefix": self._text,
        }
        table = self._table(node, set(readers))
        return replace(
            self._defaults, **{name: readers[name](value) for name, value in table.items()}
        )

    def _list_of_steps(self, node: yaml.Node) -> tuple[Step, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._fail_as(node, "a list of at least one step")
        if id(node) in self._open:
            self._fail(node, "these steps contain themselves")
        if len(self._open) >= DEPTH_MAX:
            self._fail(node, f"the steps are nested more than {DEPTH_MAX} levels deep")
        self._open.append(id(node))
        steps = tuple(self._step(item) for item in node.value)
        self._open.pop()
        self._refuse_doubles(node, steps)
        return steps

    def _refuse_doubles(self, node: yaml.SequenceNode, steps: tuple[Step, ...]) -> None:
        seen: set[str] = set()
        for item, step in zip(node.value, steps, strict=True):
            if step.name in seen:
                self._fail(item, f"two steps of one list have the name {step.name!r}")
            seen.add(step.name)

    def _step(self, node: yaml.Node) -> Step:
        self._steps += 1
        if self._steps > STEPS_MAX:
            self._fail(node, f"there are more than {STEPS_MAX:,} steps")
        number = self._leaves + 1  # its number when it runs; a sub-plan has that of its first step
        readers: dict[str, Callable[[yaml.Node], Any]] = {
            **dict.fromkeys(("name", "run", "prompt"), self._text),
            "steps": self._list_of_steps,
            "checkpoint": self._flag,
            "retries": lambda item: self._number(item, 0, RETRIES_MAX),
            "timeout": self._seconds,
        }
        table = self._table(node, set(readers))
        given = [name for name in _ACTIONS if name in table]
        if len(given) != 1:
            self._fail(node, f"a step needs exactly one of {_words(set(_ACTIONS))}")
        if "prompt" in table and self._prompt_line is None:
            self._prompt_line = table["prompt"].start_mark.line + 1
        if "steps" not in table:
            self._leaves += 1
        else:
            for name in ("retries", "timeout", "checkpoint"):
                if name in table:
                    self._fail(table[name], f"a step with steps of its own cannot have {name!r}")
        values = {name: readers[name](value) for name, value in table.items()}
        if "timeout" in values:
            values["timeout_s"] = values.pop("timeout")
        return Step(**{"name": f"step-{number}", **values})


def _words(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
