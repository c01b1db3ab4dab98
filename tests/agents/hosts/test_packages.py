"""Real hosts accept the packages of ``integrations``, load them, and their hooks capture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command_line import wait_until
from hosts.conftest import DONE, Scene
from hosts.drivers import NPM, CannotInstall, Codex, install_package, merge_json, user_variables
from hosts.test_mcp import started

PACKAGES = Path(__file__).parents[3] / "integrations"
INSTALLING = {
    "claude": (
        ["plugin", "validate", "--strict", str(PACKAGES)],
        ["plugin", "validate", "--strict", str(PACKAGES / "claude")],
        ["plugin", "marketplace", "add", str(PACKAGES)],
        ["plugin", "install", "treesnap@treesnap"],
    ),
    "codex": (
        ["plugin", "marketplace", "add", str(PACKAGES)],
        ["plugin", "add", "treesnap@treesnap"],
    ),
    "gemini": (
        ["extensions", "validate", str(PACKAGES / "gemini")],
        ["extensions", "install", str(PACKAGES / "gemini"), "--consent", "--skip-settings"],
    ),
    "opencode": (),
}
"""What a user types to install a package, after the vendor's own check of it."""
SLASH = {"claude": "/treesnap:{}", "gemini": "/snap:{}"}
"""How commands are typed in the hosts whose hook answers them."""
MOVE = "mv keep.txt gone.txt"


@pytest.fixture
def packaged(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A host with its package installed, and ``treesnap`` on the path of its user."""
    if scene.host.name not in INSTALLING:
        pytest.skip(f"there is no package for {scene.host.name}")
    (scene.home / "bin").mkdir()
    for name in ("snap", "treesnap"):
        (scene.home / "bin" / name).symlink_to(Path(sys.executable).with_name("snap"))
    variables = user_variables(scene.home) | scene.host.variables
    own = scene.host.prepare(scene.home, scene.network.port)
    for words in INSTALLING[scene.host.name]:
        line = [scene.host.path(), *words]
        ended = scene.network.run(line, [], cwd=scene.project, variables=variables | own)
        assert ended.code == 0, ended
    if scene.host.name == "opencode":
        settings = scene.home / ".config" / "opencode" / "opencode.json"
        merge_json(settings, {"plugin": [(PACKAGES / "opencode").as_uri()]})
    if scene.host.name == "codex":
        settings = scene.home / ".codex" / "config.toml"
        before, text = Codex.prepare, settings.read_text()

        def keep_plugins(self: Codex, home: Path, port: int) -> dict[str, str]:
            found = before(self, home, port)
            settings.write_text(text)
            return found

        monkeypatch.setattr(Codex, "prepare", keep_plugins)
    path = {"PATH": f"{scene.home}/bin:{variables['PATH']}"}
    monkeypatch.setattr(type(scene.host), "variables", {**scene.host.variables, **path})
    return scene


def phases(scene: Scene) -> list[str]:
    """Returns what events were captured, oldest first."""
    found = reversed(scene.listed("snapshots", "list"))
    return [item["phase"] for item in found if item["session"]]


def test_the_hooks_of_a_package_capture_each_event(packaged):
    ended = packaged.run("tidy up", packaged.shell(MOVE))

    assert ended.code == 0, ended
    assert "treesnap" in ended.asked  # the tools of its server, or its skill
    wait_until(
        lambda: phases(packaged) == ["turn", "pre", "post", "end"]
    )  # opencode waits for no end
    packaged.snap("rewind")
    assert (packaged.project / "keep.txt").exists()


def test_the_server_of_a_package_offers_its_tools(packaged):
    ended = packaged.run("tidy up", started(packaged))

    assert ended.code == 0, ended
    assert "restore_plan" in ended.asked


def test_a_package_beside_installed_hooks_does_nothing_twice(packaged):
    packaged.snap("agent", "install", packaged.host.name)
    ends = 2 if packaged.host.name == "opencode" else 1  # whose event has nothing to know it by

    assert packaged.run("tidy up", packaged.shell(MOVE)).code == 0
    wait_until(lambda: phases(packaged) == ["turn", "pre", "post", *["end"] * ends])
    packaged.snap("restore", "step:1")
    (packaged.project / "keep.txt").rename(packaged.project / "other.txt")
    packaged.snap("restore", "step:1")
    assert [path.name for path in packaged.project.iterdir()] == ["keep.txt"]

    if packaged.host.name != "opencode":  # whose plugin cannot answer a prompt
        assert packaged.run("snap undo").requests == []
        assert [path.name for path in packaged.project.iterdir()] == ["other.txt"]


def test_the_bundle_is_one_that_its_tool_takes(host, tmp_path):
    if host.name != "claude":
        pytest.skip("the bundle is for no host of these")
    tools = host.directory.parent / "mcpb"
    try:
        if not tools.exists():
            install_package([*NPM, "--prefix", str(tools), "@anthropic-ai/mcpb"])
    except CannotInstall as error:
        pytest.skip(f"mcpb cannot be installed: {error}")
    bundle = tmp_path / "treesnap.mcpb"
    subprocess.run([sys.executable, PACKAGES / "generate.py", "--bundle", bundle], check=True)

    mcpb = str(tools / "node_modules" / ".bin" / "mcpb")
    subprocess.run([mcpb, "validate", PACKAGES / "mcp/bundle/manifest.json"], check=True)
    subprocess.run([mcpb, "unpack", bundle, tmp_path / "unpacked"], check=True)

    for path in (PACKAGES / "mcp" / "bundle").iterdir():
        assert (tmp_path / "unpacked" / path.name).read_text() == path.read_text()


def test_a_slash_command_needs_no_model(packaged):
    if packaged.host.name not in SLASH:
        pytest.skip(f"no hook of {packaged.host.name} answers a slash command")
    assert packaged.run("tidy up", packaged.shell(MOVE)).code == 0
    typed = SLASH[packaged.host.name]
    session = packaged.listed("snapshots", "list")[0]["session"]

    for name, where, left in (
        ("rewind", None, "gone.txt"),  # another session, which did nothing
        ("rewind", session, "keep.txt"),
        ("undo", None, "gone.txt"),
        ("list", None, "gone.txt"),
    ):
        ended = packaged.run(typed.format(name), session=where)
        assert ended.requests == [], name
        assert [path.name for path in packaged.project.iterdir()] == [left], ended.out


def test_the_model_carries_out_a_slash_command_of_opencode(packaged):
    if packaged.host.name != "opencode":
        pytest.skip(f"slash commands of {packaged.host.name} are not for the model")
    assert packaged.run("tidy up", packaged.shell(MOVE)).code == 0
    wait_until(lambda: phases(packaged) == ["turn", "pre", "post", "end"])
    session = packaged.listed("snapshots", "list")[0]["session"]
    own = packaged.host.prepare(packaged.home, packaged.network.port)

    ended = packaged.network.run(
        [packaged.host.path(), "run", "--session", session, "--command", "snap-rewind"],
        [packaged.shell("snap rewind"), DONE],
        cwd=packaged.project,
        variables=user_variables(packaged.home) | packaged.host.variables | own,
    )

    assert ended.code == 0, ended
    assert "snap rewind" in str(ended.requests[0].body["messages"][-1])
    assert [path.name for path in packaged.project.iterdir()] == ["keep.txt"]
