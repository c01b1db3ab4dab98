"""The packages in ``integrations`` are what its script makes, and name only what exists."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from treesnap.agents.hook import PROMPT_COMMANDS
from treesnap.agents.hosts.table import host_named
from treesnap.agents.install.host_settings import CONTRACTS, caller_in, hook_line
from treesnap.cli.group import snap as command_line

PROJECT = Path(__file__).parents[2]
PACKAGES = PROJECT / "integrations"
SCRIPT = PACKAGES / "generate.py"
WRITTEN_BY_HAND = {"README.md", "generate.py"}
SERVER_SCHEMA = {
    "required": ["name", "description", "version"],
    "properties": {
        "name": {"pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "maxLength": 200},
        "description": {"minLength": 1, "maxLength": 100},
        "packages": {
            "items": {
                "required": ["registryType", "identifier", "version", "transport"],
                "propertyNames": {
                    "enum": [
                        "registryType",
                        "identifier",
                        "version",
                        "runtimeHint",
                        "runtimeArguments",
                        "packageArguments",
                        "transport",
                    ]
                },
                "properties": {
                    "runtimeArguments": {"items": {"required": ["type", "name"]}},
                    "packageArguments": {
                        "items": {"anyOf": [{"required": ["value"]}, {"required": ["valueHint"]}]}
                    },
                },
            }
        },
    },
}
"""What the MCP registry requires of server.json, as far as ours can break it."""


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kept() -> dict[str, str]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."],
        cwd=PACKAGES,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {name: (PACKAGES / name).read_text() for name in names.stdout.splitlines()}
    return {name: text for name, text in found.items() if name not in WRITTEN_BY_HAND}


def values(value: Any) -> list[Any]:
    """Returns a value of JSON, and all that is in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(found for part in inner for found in values(part))]


def test_what_is_kept_is_what_the_script_writes(script):
    assert kept() == script.files(), "run python integrations/generate.py"


def test_each_file_can_be_parsed():
    for name, text in kept().items():
        if name.endswith(".json"):
            assert isinstance(json.loads(text), dict), name
        elif name.endswith(".toml"):
            assert tomllib.loads(text), name
        elif name.endswith(".md") and not name.endswith("README.md"):
            _, head, body = text.split("---\n", 2)
            assert yaml.safe_load(head)["description"], name
            assert body.strip(), name


@pytest.mark.parametrize("host", ["claude", "codex", "gemini"])
def test_the_hooks_are_those_that_are_installed(host):
    found = json.loads((PACKAGES / host / "hooks/hooks.json").read_text())["hooks"]

    assert found.keys() >= set(CONTRACTS[host].events)
    assert found.keys() <= host_named(host).phases.keys()
    for event, (group,) in found.items():
        (entry,) = group["hooks"]
        line = hook_line(host, ["treesnap"], event, is_strict=False)
        assert entry["command"] == line
        assert caller_in(line, host) == ["treesnap"]


def test_only_commands_that_exist_are_named(script):
    texts = kept().values()
    typed = {word for text in texts for word in re.findall(r"\bsnap ([a-z]+)", text)}

    assert typed >= set(script.COMMANDS)
    assert set(script.COMMANDS) <= PROMPT_COMMANDS
    called = typed | {"hook", script.SERVER["args"][0]}
    assert called <= set(command_line.list_commands(click.Context(command_line)))


def test_all_versions_are_that_of_the_program(script):
    for name, text in kept().items():
        if name.endswith(".json"):
            found = [item for item in values(json.loads(text)) if isinstance(item, dict)]
            versions = {item["version"] for item in found if "version" in item}
            assert versions <= {script.VERSION, script.HOST_VERSION}, name


def test_the_registry_finds_what_it_requires(script):
    server = json.loads((PACKAGES / "mcp/server.json").read_text())

    jsonschema.validate(server, SERVER_SCHEMA)
    assert f"mcp-name: {server['name']}" in (PROJECT / "README.md").read_text()


def test_the_bundle_is_the_same_in_each_run(script, tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        script.write_bundle(path)

    assert paths[0].read_bytes() == paths[1].read_bytes()
    with zipfile.ZipFile(paths[0]) as archive:
        assert archive.namelist() == ["main.py", "manifest.json", "pyproject.toml"]
