"""The pages about providers: their programs run against a double, and their commands after them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from sandbox_machine import SOURCES

DOCS = Path(__file__).parents[2] / "docs" / "howto"
PROVIDERS = ("daytona", "e2b")


def blocks(provider: str, language: str) -> str:
    tokens = MarkdownIt().parse((DOCS / f"{provider}.md").read_text(encoding="utf-8"))
    return "".join(
        item.content for item in tokens if item.type == "fence" and item.info == language
    )


def test_the_program_of_the_page_brings_the_history_that_its_commands_show(
    scene, tmp_path, monkeypatch
):
    provider, address = scene.provider, scene.address(scene.machine)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    program = blocks(provider, "python")
    variables = {
        **os.environ,
        "PATH": f"{scene.machine.bin}:{os.environ['PATH']}",
        "SNAP_STORE": str(tmp_path / "new-store"),
        "PYTHONPATH": str(SOURCES),
        "DAYTONA_API_URL": f"{address}/api",
        "DAYTONA_API_KEY": "key",
        "DAYTONA_TARGET": "local",
    }
    ran = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert scene.machine.is_dead

    lines = blocks(provider, "console").splitlines()
    typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    shown = subprocess.run(
        ["sh", "-ec", "\n".join(typed)], env=variables, capture_output=True, text=True, check=False
    )

    assert shown.returncode == 0, shown.stderr
    assert "3 snapshots" in shown.stdout
    assert shown.stdout.endswith(lines[-1] + "\n")
    assert "step 1: rm project/plants" in shown.stdout


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_template_of_the_page_has_treesnap(provider):
    pytest.importorskip(provider, reason=f"the extra '{provider}' is not installed")
    names: dict[str, object] = {}
    exec(compile(blocks(provider, "python").partition("# ")[0], provider, "exec"), names)
    if provider == "e2b":
        import e2b

        text = e2b.Template.to_dockerfile(names["template"])
    else:
        text = names["image"].dockerfile()
    assert "pip install treesnap" in text
