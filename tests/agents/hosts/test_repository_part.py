"""A real host that starts in a subdirectory of a repository."""

from __future__ import annotations

import subprocess

from hosts.conftest import Scene


def test_a_start_in_a_subdirectory_is_said_and_widened(scene: Scene):
    top = scene.project
    (top / "pkg").mkdir()
    (top / "pkg/code.txt").write_text("code\n")
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=top, check=True)
    part = scene._replace(project=top / "pkg")
    part.snap("agent", "install", scene.host.name)
    changes = part.shell("echo changed > code.txt; echo changed > ../keep.txt")

    assert part.run("tidy up", changes).code == 0
    status = part.snap("agent", "status", scene.host.name).out
    if scene.host.tells_repository:
        assert "Only" not in status
        part.snap("rewind")
        assert (top / "pkg/code.txt").read_text() == "code\n"
        assert (top / "keep.txt").read_text() == "kept"
        return
    assert f"Only {top / 'pkg'} is captured, a part of the repository {top}" in status
    part.snap("rewind")
    assert (top / "pkg/code.txt").read_text() == "code\n"
    assert (top / "keep.txt").read_text() == "changed\n"
    command = status.partition("for all of it, type: snap ")[2].splitlines()[0]
    part.snap(*command.split())

    assert part.run("tidy up again", part.shell("echo again > ../keep.txt")).code == 0
    assert "Only" not in part.snap("agent", "status", scene.host.name).out
    part.snap("rewind")
    assert (top / "keep.txt").read_text() == "changed\n"
