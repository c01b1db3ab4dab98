"""The numbers of a run: samples of cases, series of checkpoints, facts, and what was left out."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SCHEMA = "treesnap-benchmark/1"
SECONDS = "seconds"
CPU = "cpu_seconds"
MEMORY = "memory_bytes"
STORE = "store_bytes"
ADDED = "added_bytes"


class Case(NamedTuple):
    """One thing that was measured: a tool does a work on a tree, and what of it is counted."""

    tree: str
    work: str
    tool: str
    quantity: str = SECONDS


@dataclass
class Results:
    """Everything that one run measured; JSON and back without loss."""

    facts: dict[str, Any] = field(default_factory=dict)
    """The machine, the versions and the options."""

    trees: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each tree that was made its ``files``, ``directories`` and ``size_bytes``."""

    samples: dict[Case, list[float]] = field(default_factory=dict)

    checkpoints: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """For each tool points with ``number``, ``seconds``, ``store_bytes`` and ``store_files``."""

    left_out: list[str] = field(default_factory=list)
    """Sentences: what was not measured, and why."""

    def add(self, case: Case, value: float) -> None:
        """Notes one sample."""
        self.samples.setdefault(case, []).append(value)

    def leave_out(self, sentence: str) -> None:
        """Notes, once, that something was not measured."""
        if sentence not in self.left_out:
            self.left_out.append(sentence)

    def median(self, case: Case) -> float | None:
        """Returns the median of a case's samples, or None when there are none."""
        values = self.samples.get(case)
        return statistics.median(values) if values else None

    def spent_s(self, case: Case) -> float:
        """Returns how long a case has taken so far."""
        return sum(self.samples.get(case, ()))

    def complete_with(self, other: Results) -> None:
        """Takes from another run, on the same machine, what this one had no time for."""
        added = {case: values for case, values in other.samples.items() if case not in self.samples}
        self.samples.update(added)
        trees = {case.tree for case in added}
        self.trees.update((tree, size) for tree, size in other.trees.items() if tree in trees)
        self.left_out = [
            sentence
            for sentence in self.left_out
            if sentence.partition(":")[0] not in trees or sentence in other.left_out
        ]
        self.left_out += [
            sentence
            for sentence in other.left_out
            if sentence not in self.left_out and not self._has(sentence)
        ]
        for tree, points in other.checkpoints.items():
            self.checkpoints.setdefault(tree, points)
        self.facts["completed_by"] = self.facts.get("completed_by", 0) + 1

    def _has(self, sentence: str) -> bool:
        """Returns whether what a sentence says was left out was measured all the same."""
        tree, _, words = sentence.partition(": ")
        what = words.partition(": ")[0]
        return any(
            case.tree == tree and what in (case.tool, f"{case.work}, {case.tool}", "not chosen.")
            for case in self.samples
        )

    def to_json(self) -> str:
        """Returns all of it as text."""
        cases = [
            {**case._asdict(), "median": statistics.median(values), "samples": values}
            for case, values in self.samples.items()
        ]
        series = (
            f"{json.dumps(tool)}: {_one_line_each(points)}"
            for tool, points in self.checkpoints.items()
        )
        parts = {
            "schema": json.dumps(SCHEMA),
            "facts": json.dumps(self.facts),
            "trees": json.dumps(self.trees),
            "left_out": _one_line_each(self.left_out),
            "cases": _one_line_each(cases),
            "checkpoints": "{" + ",\n".join(series) + "}",
        }
        return "{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        """Returns what ``to_json`` wrote."""
        data = json.loads(text)
        assert data["schema"] == SCHEMA
        samples = {
            Case(case["tree"], case["work"], case["tool"], case["quantity"]): case["samples"]
            for case in data["cases"]
        }
        return cls(data["facts"], data["trees"], samples, data["checkpoints"], data["left_out"])


def distinct(values: Iterable[str]) -> list[str]:
    """Returns each value once, in the order in which it came first."""
    return list(dict.fromkeys(values))


def _one_line_each(records: Iterable[Any]) -> str:
    """Returns a JSON array with a line for each record, so that runs can be compared."""
    return "[\n" + ",\n".join(json.dumps(_rounded(record)) for record in records) + "\n]"


def _rounded(value: Any) -> Any:
    """Returns the same with numbers rounded to six digits after the point."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value
