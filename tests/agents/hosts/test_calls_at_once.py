"""Calls that a real host runs at the same time are reverted together, or not at all."""

from __future__ import annotations

import pytest

from hosts.conftest import Scene
from hosts.drivers import user_variables


def test_calls_of_one_step_are_reverted_together(scene: Scene):
    if scene.host.name != "codex":
        pytest.skip(f"{scene.host.name} is given one call at a time by the scripted model")
    scene.snap("agent", "install", scene.host.name)
    beds = ["a.txt", "b.txt", "c.txt"]
    others = [f"touch ../{name}; until [ -e ../{{}} ]; do sleep 0.05; done" for name in beds]
    waiting = [others[at].format(beds[(at + 1) % len(beds)]) for at in range(len(beds))]
    calls = [
        scene.shell(f"{wait}; echo bed > {name}") for wait, name in zip(waiting, beds, strict=True)
    ]

    ended = scene.run("plant three beds", {"at_once": calls})

    assert ended.code == 0, ended
    assert sorted(path.name for path in scene.project.iterdir()) == [*beds, "keep.txt"]
    listed = scene.listed("snapshots", "list")
    steps = sorted(item["step"] for item in listed if item["phase"] == "pre")
    for step in steps:
        refused = scene.network.run(
            [str(scene.program), "revert", f"step:{step}"],
            [],
            cwd=scene.project,
            variables=user_variables(scene.home),
        )
        assert refused.code == 1, refused
        assert f"Steps {steps[0]} to {steps[-1]} ran at the same time" in refused.err
    scene.snap("revert", f"step:{steps[1]}", "--together")
    assert [path.name for path in scene.project.iterdir()] == ["keep.txt"]
