"""What hosts tell their hooks is what the fixtures of ``tests/agents`` say."""

from __future__ import annotations

import json
from typing import Any

from hosts.run_recorder import PAYLOADS, RECORDER, record


def test_a_call_of_the_model_is_carried_out_after_the_hook(scene, tmp_path):
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    scene.host.add_hooks(scene.home, [str(RECORDER), str(recorded)])

    ended = scene.run("tidy up", scene.shell("echo hi > made.txt; mv keep.txt gone.txt"))

    assert ended.code == 0, ended
    assert "done" in ended.out
    assert sum(request.is_turn for request in ended.requests) == 2
    assert sorted(path.name for path in scene.project.iterdir()) == ["gone.txt", "made.txt"]
    (before,) = recorded.glob(f"*-{scene.host.before_tool}.ls")
    assert before.read_text() == "keep.txt\n"


def test_payloads_have_the_form_of_the_recorded_ones(host, network, tmp_path):
    fixtures = max(PAYLOADS.glob(f"{host.name}-*"))

    found = record(host, tmp_path / "recorded", network)

    for name, text in found.items():
        fixture = json.loads((fixtures / f"{name}.json").read_text())
        assert shape(json.loads(text)) == shape(fixture), f"{host.version()}: {name}"


def shape(value: Any) -> Any:
    """Returns the types in a JSON value, and the names of its fields."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value)
