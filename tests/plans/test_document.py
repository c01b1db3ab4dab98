"""Plans in YAML: what they say, and what is refused, with the line."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap import ErrorCode, InvalidArgument
from treesnap.plans import Definition, Milestones, Step, parse_document

EVERYTHING = """\
name: release
checkpoints: {enabled: true, every_n_steps: 1, before_each_step: true, after_subplan: true, keep: 9}
steps:
  - name: implement
    run: make feature
    checkpoint: true
    retries: 2
    timeout: 1m30s
  - name: optimize
    steps:
      - prompt: Optimiza el rendimiento
        timeout: 7
"""


def parsed(text: str) -> Definition:
    return parse_document(text, "plans/release.yaml")


def test_everything_that_can_be_said():
    assert parsed(EVERYTHING) == Definition(
        name="release",
        milestones=Milestones(every_n_steps=1, keep=9),
        steps=(
            Step(name="implement", run="make feature", checkpoint=True, retries=2, timeout_s=90),
            Step(
                name="optimize",
                steps=(Step(name="step-2", prompt="Optimiza el rendimiento", timeout_s=7),),
            ),
        ),
        prompt_line=11,
    )


def test_what_is_left_out():
    definition = parsed("steps: [{run: 'true'}]")

    assert definition.name == "release"
    assert definition.milestones == Milestones()
    assert definition.steps == (Step(name="step-1", run="true"),)
    assert definition.prompt_line is None


def test_steps_without_a_name_are_named_by_the_order_in_which_they_run():
    text = "steps: [{steps: [{steps: [{run: a}, {run: b}]}, {run: c}]}, {run: d}]"

    first, last = parsed(text).steps
    inner, third = first.steps

    assert [step.name for step in (first, inner, *inner.steps)] == [
        "step-1",
        "step-1",
        "step-1",
        "step-2",
    ]
    assert (third.name, last.name) == ("step-3", "step-4")


def test_steps_that_are_used_twice_are_two():
    text = "steps: [{name: a, steps: &s [{run: x}]}, {name: b, steps: *s}]"

    assert [step.steps[0].run for step in parsed(text).steps] == ["x", "x"]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", None, "it is empty"),
        ("name: x\nsteps: [", 2, "expected"),
        ("- a", 1, "mapping"),
        ("name: x", 1, "no 'steps'"),
        ("steps: []", 1, "at least one step"),
        ("steps: x", 1, "list"),
        ("steps:\n  - x", 2, "mapping"),
        ("stepz:\n  - run: x", 1, "unknown key 'stepz'"),
        ("steps:\n  - run: x\n    runs: y", 3, "unknown key 'runs'"),
        ("steps:\n  - run: x\n    run: y", 3, "appears twice"),
        ("steps:\n  - {name: x}", 2, "exactly one of"),
        ("steps:\n  - {run: x, prompt: y}", 2, "exactly one of"),
        ("steps:\n  - run: ''", 2, "'run' must not be empty"),
        ("steps:\n  - run:", 2, "'run' must not be empty"),
        ("steps:\n  - run: 3", 2, "'run' must be text; put '3' in quotes"),
        ("steps:\n  - run: true", 2, "'run' must be text; put 'true' in quotes"),
        ("steps:\n  - run: [x]", 2, "'run' must be a single value"),
        ("steps:\n  - {run: x, retries: -1}", 2, "'retries' must be a number from 0 to"),
        ("steps:\n  - {run: x, retries: true}", 2, "from 0 to"),
        ("steps:\n  - {run: x, checkpoint: 1}", 2, "true or false"),
        ("steps:\n  - {run: x, timeout: soon}", 2, "not of the form"),
        ("steps:\n  - {run: x, timeout: 0}", 2, "a time such as"),
        ("steps:\n  - {run: x, timeout: 1.5}", 2, "a time such as"),
        ("steps:\n  - {steps: [{run: x}], retries: 1}", 2, "cannot have 'retries'"),
        ("steps:\n  - {name: a, run: x}\n  - {name: a, run: y}", 3, "two steps"),
        ("steps: &s\n  - name: again\n    steps: *s", 1, "contain themselves"),
        ("checkpoints: {every_n_steps: 51}\nsteps: [{run: x}]", 1, "from 1 to 50"),
        ("checkpoints: {every_n_steps: 0}\nsteps: [{run: x}]", 1, "from 1 to 50"),
        ("checkpoints: yes\nsteps: [{run: x}]", 1, "'checkpoints' must be a mapping"),
        ("checkpoints: {keep: 5, every_n_steps: 0}\nsteps: [{run: x}]", 1, "'every_n_steps' must"),
        ("checkpoints: {often: 1}\nsteps: [{run: x}]", 1, "unknown key 'often'"),
        ("? [a]\n: b", 1, "unknown key"),
        ("steps: [{run: !!python/object:os.system x}]", 1, ""),
        ("steps:\n  - name: !!int x\n    run: x", 2, "cannot be read"),
        ("a: 1\n---\nb: 2", 2, "expected a single document in the stream, but found another"),
        ("steps: [{run: \x00}]", None, ""),
        ('steps:\n  - {run: "a\\0b"}', 2, "NUL"),
        ('name: "\\uD800"\nsteps: [{run: x}]', 1, "UTF-8"),
        ("x" * (1 << 20 | 1), None, "larger"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(text, line, why):
    with pytest.raises(InvalidArgument) as caught:
        parsed(text)

    assert caught.value.code == ErrorCode.INVALID_PLAN
    assert why in caught.value.message
    assert "plans/release.yaml" in caught.value.message
    if line is not None:
        assert f"line {line} " in caught.value.message


def test_steps_that_multiply_are_refused():
    levels = ["a0: &a0 [{run: x}, {run: y}]"] + [
        f"a{n}: &a{n} [{{name: l, steps: *a{n - 1}}}, {{name: r, steps: *a{n - 1}}}]"
        for n in range(1, 25)
    ]
    definitions = "\n".join(f"    - {line.split(': ', 1)[1]}" for line in levels)

    with pytest.raises(InvalidArgument):
        parsed(f"steps:\n{definitions}\n")
    bomb = "steps: " + "".join(f"[{{name: a, steps: &s{n} " for n in range(3000))
    with pytest.raises(InvalidArgument):
        parsed(bomb)
    deep = "steps: " + "[{name: a, steps: " * 40 + "[{run: x}]" + "}]" * 40
    with pytest.raises(InvalidArgument, match="nested more than"):
        parsed(deep)
    wide = "x: &a [{run: a}, {run: b}]\n"
    with pytest.raises(InvalidArgument):
        parsed(wide)


def test_too_many_steps_are_refused():
    inner = ", ".join(f"{{name: n{n}, run: x}}" for n in range(200))
    outer = ", ".join(f"{{name: o{n}, steps: *s}}" for n in range(60))
    text = f"steps: [{{name: first, steps: &s [{inner}]}}, {outer}]"

    with pytest.raises(InvalidArgument, match="more than 10,000 steps"):
        parsed(text)


@given(st.text(alphabet="stepsrun:prompt- \n[]{}&*!|>'\"#ñ0\t", max_size=60))
def test_any_text_is_a_plan_or_refused(text):
    definition = None
    with suppress(InvalidArgument):
        definition = parsed(text)

    assert definition is None or definition.steps


@pytest.mark.parametrize("value", ["!!bool foo", "!!timestamp foo", "!!int ''"])
def test_a_value_that_its_explicit_tag_does_not_fit_is_named_with_its_line(value):
    text = f"steps:\n  - name: a\n    run: x\n    checkpoint: {value}\n"

    with pytest.raises(InvalidArgument, match="line 4 cannot be used: the value cannot be"):
        parse_document(text, "plan.yaml")


@pytest.mark.parametrize("end", ["", ".5"])
def test_a_number_of_a_megabyte_is_refused_before_it_is_computed(end):
    text = "steps:\n  - run: make\n    retries: 1" + ":1" * 500_000 + end

    with pytest.raises(InvalidArgument, match=r"line 3.*'retries' must be at most 100 characters"):
        parse_document(text, "plan.yaml")


def test_aliases_cannot_multiply_the_text_of_a_document():
    """What a document expands to is written with each step."""
    long = "x" * 100_000
    steps = "".join(f"  - {{name: s{number}, run: *long}}\n" for number in range(30))
    text = f"steps:\n  - {{name: first, run: &long {long}}}\n{steps}"

    with pytest.raises(InvalidArgument, match=r"line .*: with its aliases it has more than 2 MiB"):
        parse_document(text, "plan.yaml")


def test_aliases_within_the_limit_are_taken():
    steps = "".join(f"  - {{name: s{number}, run: *long}}\n" for number in range(100))
    text = f"steps:\n  - {{name: first, run: &long {'x' * 10_000}}}\n{steps}"

    assert len(parse_document(text, "plan.yaml").steps) == 101
