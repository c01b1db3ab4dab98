"""JSON with comments is changed in place, and all else keeps its bytes."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling import sized
from treesnap.agents.install.json_text import DEPTH_MAX, JsonError, JsonText, without_spans

EXAMPLES = settings(max_examples=sized(25, 2000))

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
TRIVIA = st.sampled_from(["", "", "", " ", "\n  ", "\t", "/* , ] */", " // , }\n", "\n/*\n*/ "])


@st.composite
def texts(draw, value=None):
    """Draws an object as a text with comments and blanks anywhere, and commas before ends."""

    def shown(item):
        if isinstance(item, dict):
            parts = [
                f"{draw(TRIVIA)}{json.dumps(key)}{draw(TRIVIA)}:{draw(TRIVIA)}{shown(inner)}"
                for key, inner in item.items()
            ]
            return enclosed("{", parts, "}")
        if isinstance(item, list):
            return enclosed("[", [draw(TRIVIA) + shown(inner) for inner in item], "]")
        return json.dumps(item, ensure_ascii=draw(st.booleans()))

    def enclosed(opening, parts, closing):
        comma = draw(st.sampled_from(["", ","])) if parts else ""
        joined = f"{draw(TRIVIA)},".join(parts)
        return f"{opening}{joined}{draw(TRIVIA)}{comma}{draw(TRIVIA)}{closing}"

    document = draw(st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
    text = (
        f"{draw(st.sampled_from(['', chr(0xFEFF)]))}{draw(TRIVIA)}{shown(document)}{draw(TRIVIA)}"
    )
    style = draw(st.sampled_from(["as it is", "crlf", "indented"]))
    if style == "indented":
        text = json.dumps(document, indent=draw(st.sampled_from([2, 4, "\t"])))
    return (text.replace("\n", "\r\n") if style == "crlf" else text), document


@EXAMPLES
@given(texts())
def test_a_text_says_what_it_was_made_of(drawn):
    text, document = drawn

    assert JsonText(text).value == document


def containers(value, path=()):
    """Yields the path of each object and list in a value."""
    if isinstance(value, dict | list):
        yield path
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from containers(inner, (*path, key))


def at(value, path):
    for step in path:
        value = value[step]
    return value


@EXAMPLES
@given(texts(), st.lists(VALUES, min_size=1, max_size=3), st.data())
def test_what_is_inserted_is_there_and_can_be_cut_out_again(drawn, added, data):
    text, document = drawn
    changed = JsonText(text)

    for number, value in enumerate(added):
        path = data.draw(st.sampled_from(list(containers(document))))
        container = at(document, path)
        if isinstance(container, list):
            changed.insert(path, value)
            container.append(value)
        else:
            changed.insert(path, value, key := f"new {number}")
            container[key] = value

    assert JsonText(changed.text).value == changed.value == document
    assert without_spans(changed.text, changed.inserted) == text


@EXAMPLES
@given(texts(), st.data())
def test_what_is_removed_is_gone_and_all_else_is_there(drawn, data):
    text, document = drawn
    changed = JsonText(text)
    while paths := [path for path in paths_in(document) if path]:
        path = data.draw(st.sampled_from(paths))
        changed.remove(path)
        del at(document, path[:-1])[path[-1]]
        assert changed.value == document


def paths_in(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_in(inner, (*path, key))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{\n  "k": [\n    1\n  ]\n}'),
        ("{\n}\n", '{\n  "k": [\n    1\n  ]\n}\n'),
        ("", '{\n  "k": [\n    1\n  ]\n}\n'),
        ('{"a":1}', '{"a":1,"k":[1]}'),
        ('{\n\t"a": 1\n}', '{\n\t"a": 1,\n\t"k": [\n\t\t1\n\t]\n}'),
        (
            '{\r\n    "a": 1\r\n}\r\n',
            '{\r\n    "a": 1,\r\n    "k": [\r\n        1\r\n    ]\r\n}\r\n',
        ),
        ('{\n  "a": 1 // one\n}', '{\n  "a": 1, // one\n  "k": [\n    1\n  ]\n}'),
        ('{\n  "a": 1, // one\n}', '{\n  "a": 1, // one\n  "k": [\n    1\n  ]\n}'),
        ("{\n  // none\n}", '{\n  // none\n  "k": [\n    1\n  ]\n}'),
    ],
)
def test_what_is_added_looks_like_what_is_there(before, after):
    changed = JsonText(before)

    changed.insert((), [1], "k")

    assert changed.text == after


def test_a_value_among_others_on_a_line_stays_there():
    changed = JsonText('{\n  "a": [1, 2],\n  "b": []\n}')

    changed.insert(("a",), {"c": 3})

    assert changed.text == '{\n  "a": [1, 2, {"c": 3}],\n  "b": []\n}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{\n  "a": 1,\n  "a": 2\n}', "line 3, column 3: the key 'a' is there twice"),
        ('{\n  "a" 1}', "line 2, column 7: Expecting ':' delimiter"),
        ('{"a": [1 2]}', "line 1, column 10: Expecting ',' delimiter"),
        ('{"a": 1', "line 1, column 8: Expecting ',' delimiter"),
        ("{'a': 1}", "line 1, column 2: Expecting property name enclosed in double quotes"),
        ('{"a": NaN}', "line 1, column 7: a value cannot be read"),
        ('{"a": "\\x"}', "line 1, column 8: Invalid \\escape"),
        ('{"a": ' + "1" * 5000 + "}", "line 1, column 7: a value cannot be read"),
        ("[,]", "line 1, column 2: Expecting value"),
        ('{"a": 1,,}', "line 1, column 9: "),
        ('{"a":,}', "line 1, column 6: Expecting value"),
        ("{} {}", "line 1, column 4: Extra data"),
        ("{/* }", "line 1, column 2: Expecting property name"),
        ("[" * 100_000, f"values are nested more than {DEPTH_MAX} deep"),
        ('{"a": "' + "\\\\x" * 100_000, "column 7: Unterminated string"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(text, problem):
    with pytest.raises(JsonError, match=re.escape(problem)):
        JsonText(text)
