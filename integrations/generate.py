"""Writes the packages for hosts in this directory, or with ``--bundle FILE`` the .mcpb bundle.

The hooks are those that ``snap agent install`` installs, from the same table. The packages call
``treesnap`` by name, because a package has the same path on no two machines, and because ``snap``
may be another program there.
"""

from __future__ import annotations

import json
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import treesnap
from treesnap.agents.install.host_settings import CONTRACTS, entries, programs

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = "treesnap"
REGISTERED_NAME = "io.github.treesnap/treesnap"
"""In the MCP registry, which looks for it in README.md."""
AUTHOR = PROJECT["authors"][0]
DIRECTORIES = "The directories of which the model sees the history"
SERVING = "Take checkpoints of a directory, see what changed, read files as they were"
DESCRIPTION = "Snapshots before each prompt and each tool, and an undo for all that the agent did"
SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
PYTHON = PROJECT["requires-python"]
VERSION = treesnap.__version__
HOST_VERSION = VERSION.replace(".dev", "-dev.")
"""The same as hosts and npm write versions."""
ABOUT = {"name": NAME, "version": HOST_VERSION, "description": DESCRIPTION}
LEGAL = {key: PROJECT[key] for key in ("license", "keywords")}
SERVER = {"command": NAME, "args": ["mcp"]}
SERVERS = {"mcpServers": {NAME: SERVER}}
COMMANDS = {
    "rewind": ("Go back to before the newest prompt, N prompts or a step", "[N|step:N] [--theirs]"),
    "undo": ("Undo the newest restore or rewind", ""),
    "redo": ("Undo an undo", ""),
    "list": ("List the snapshots of this directory", ""),
}
"""What is a slash command where a host knows such: a description, and a hint of its arguments."""
SKILL = """\
---
name: go-back
description: >-
  Brings files back that were changed, moved or deleted in this session, also by shell commands
  and also those that git does not know. Use it when the user asks to undo, rewind or recover files.
---

treesnap has made a snapshot before each prompt and each tool of this session.

1. `snap list` shows them, newest first, with the number of the step and what it did.
2. `snap diff step:N` shows what changed since step N.
3. `snap rewind step:N --dry-run` shows what going back to before step N would do. What the user
   changed meanwhile is kept. Show this to the user, and go on only with their consent.
4. `snap rewind step:N` does it, and `snap undo` undoes that.

`snap find NAME` finds a file that is gone; `snap restore REF PATH` brings back that one alone.
Where `snap` is another program, `treesnap` is the same command. Without you, the user can type
`snap rewind` as a prompt or in a terminal.
"""
READ_ME = """\
# treesnap for {host}

{description}: also of what shell commands moved, deleted or overwrote, and of files that git does
not know. Restores are all or nothing, and an undo undoes them.

This package calls the program `treesnap`, so install that first: `pipx install 'treesnap[mcp]'`.
It sends nothing anywhere; snapshots are in a store on this machine.

Type `snap rewind` as a prompt to go back to before the newest prompt, and `snap undo` to undo that.
"""
OPENCODE = """\
// Adds what a hook cannot do to treesnap's hooks: slash commands, and a server for the model.
import {{ Treesnap }} from "./hooks.js"

const COMMANDS = {}
const SERVER = {}

export const TreesnapPackage = async (input) => ({{
  ...(await Treesnap(input)),
  config: async (config) => {{
    config.command = {{ ...COMMANDS, ...config.command }}
    config.mcp = {{ treesnap: SERVER, ...config.mcp }}
  }},
}})
"""
CHECKPOINT_AGENT = """\
---
name: maker-checkpoint-manager
description: >-
  MAKER Checkpoint Manager - creates a checkpoint of files before each step, and goes back to the
  last known good state when the pipeline fails.
tools: Bash
model: haiku
---

You are the checkpoint manager of a MAKER pipeline. You are sent one operation block: CREATE,
RESTORE or CLEANUP. The program treesnap carries it out; you hand the block over and its answer
back.

1. Run this one command, with the block in the place of BLOCK: from its first line of `=` to its
   last, character for character, nothing left out, corrected or added.

```sh
treesnap maker --metadata <<'END_OF_MAKER_BLOCK'
BLOCK
END_OF_MAKER_BLOCK
```

2. Answer with the result block that it prints, from its first line of `=` to its last, character
   for character. Write nothing before it and nothing after it.

An exit code that is not 0 belongs to a result block that ends in `_FAILED`: that block is the
answer. Do not run the command again, do not change the block so that it succeeds, and do nothing
in its place: no git, no copies, no other tool.

If the command prints no result block, there is no checkpoint and nothing was restored. Then answer
`[STATUS] OPERATION_FAILED`, and below it what the command printed.
"""
MAIN = '"""Starts the server."""\n\nfrom treesnap.cli.start import main\n\nmain()\n'


def files() -> dict[str, str]:
    """Returns what all packages hold, by the path below this directory."""
    found = claude() | codex() | gemini() | opencode() | maker() | registry() | bundle()
    for host in ("claude", "codex", "gemini", "opencode"):
        title = CONTRACTS[host].title
        found[f"{host}/README.md"] = READ_ME.format(host=title, description=DESCRIPTION)
    for host in ("claude", "codex", "gemini"):
        found[f"{host}/hooks/hooks.json"] = {"hooks": hooks(host)}
        found[f"{host}/skills/go-back/SKILL.md"] = SKILL
    given = found.items()
    return {path: v if isinstance(v, str) else json.dumps(v, indent=2) + "\n" for path, v in given}


def hooks(host: str) -> dict[str, list[Any]]:
    """Returns the hooks of a host, as ``snap agent install`` writes them.

    Claude Code tells a hook that a slash command of the plugin is about to become a prompt, too.
    """
    found: dict[str, list[Any]] = {}
    for entry in entries(host, [NAME], is_strict=False):
        found.setdefault(str(entry.path[-1]), []).append(dict(entry.value))
    if host == "claude":
        matcher = f"^{NAME}:({'|'.join(COMMANDS)})$"
        found["UserPromptExpansion"] = [{"matcher": matcher} | found["UserPromptSubmit"][0]]
    return found


def claude() -> dict[str, Any]:
    """Returns the marketplace and the plugin; its hooks carry out what its slash commands say."""
    plugin = {"name": NAME, "source": "./claude", "description": DESCRIPTION}
    marketplace = {"name": NAME, "owner": AUTHOR, "description": DESCRIPTION, "plugins": [plugin]}
    head = "---\ndescription: {}\nargument-hint: {}\ndisable-model-invocation: true\n---\n"
    commands = {
        f"claude/commands/{name}.md": head.format(what, json.dumps(hint))
        + f"\nsnap {name} $ARGUMENTS\n"
        for name, (what, hint) in COMMANDS.items()
    }
    return commands | {
        ".claude-plugin/marketplace.json": marketplace,
        "claude/.claude-plugin/plugin.json": ABOUT | {"author": AUTHOR} | LEGAL,
        "claude/.mcp.json": SERVERS,
    }


def codex() -> dict[str, Any]:
    """Returns the marketplace and the plugin, which can have no slash commands."""
    entry = {
        "name": NAME,
        "source": {"source": "local", "path": "./codex"},
        "policy": {"installation": "AVAILABLE", "authentication": "ON_INSTALL"},
        "category": "Productivity",
    }
    paths = {"skills": "./skills/", "hooks": "./hooks/hooks.json", "mcpServers": "./.mcp.json"}
    return {
        ".agents/plugins/marketplace.json": {"name": NAME, "plugins": [entry]},
        "codex/.codex-plugin/plugin.json": ABOUT | {"author": AUTHOR} | LEGAL | paths,
        "codex/.mcp.json": SERVERS,
    }


def gemini() -> dict[str, Any]:
    """Returns the extension; its hook answers the prompt that a slash command stands for."""
    command = 'description = "{}"\nprompt = "snap {} {{{{args}}}}"\n'
    commands = {
        f"gemini/commands/snap/{name}.toml": command.format(what, name)
        for name, (what, _) in COMMANDS.items()
    }
    return commands | {"gemini/gemini-extension.json": ABOUT | SERVERS}


def opencode() -> dict[str, Any]:
    """Returns the npm package, whose slash commands ask the model."""
    ((_, program),) = programs("opencode", "hooks.js", [NAME], is_strict=False)
    commands = {
        f"snap-{name}": {"description": what, "template": f"snap {name} $ARGUMENTS"}
        for name, (what, _) in COMMANDS.items()
    }
    values = (commands, {"type": "local", "command": [NAME, "mcp"]})
    parts = {"type": "module", "main": "index.js", "files": ["index.js", "hooks.js"]}
    hooks_of_installer = program.decode().partition("\n")[2]  # the first line is for uninstalling
    return {
        "opencode/hooks.js": f"// The hooks of treesnap\n{hooks_of_installer}",
        "opencode/index.js": OPENCODE.format(*(json.dumps(v, indent=2) for v in values)),
        "opencode/package.json": ABOUT | {"name": f"opencode-{NAME}"} | LEGAL | parts,
    }


def maker() -> dict[str, Any]:
    """Returns the agent that takes the place of the one in MAKER's plugin."""
    return {"maker/agents/maker-checkpoint-manager.md": CHECKPOINT_AGENT}


def registry() -> dict[str, Any]:
    """Returns what the MCP registry is told."""
    directory = {"type": "positional", "valueHint": "directory", "description": DIRECTORIES}
    extra = PROJECT["optional-dependencies"]["mcp"][0]
    package = {
        "registryType": "pypi",
        "identifier": NAME,
        "version": VERSION,
        "runtimeHint": "uvx",
        "runtimeArguments": [{"type": "named", "name": "--with", "value": extra}],
        "packageArguments": [
            {"type": "positional", "value": "mcp"},
            directory | {"format": "filepath", "isRepeated": True},
        ],
        "transport": {"type": "stdio"},
    }
    about = {"$schema": SCHEMA, "title": NAME} | ABOUT | {"name": REGISTERED_NAME}
    return {"mcp/server.json": about | {"description": SERVING, "packages": [package]}}


def bundle() -> dict[str, Any]:
    """Returns what the .mcpb bundle holds; its host fetches treesnap itself, by ``uv``."""
    line = ["run", "--directory", "${__dirname}", "main.py", "mcp", "${user_config.directories}"]
    starting = {"entry_point": "main.py", "mcp_config": {"command": "uv", "args": line}}
    directories = {"type": "directory", "title": "Directories", "description": DIRECTORIES}
    manifest = {
        "manifest_version": "0.4",
        **(ABOUT | {"description": SERVING, "author": AUTHOR} | LEGAL),
        "server": {"type": "uv"} | starting,
        "compatibility": {"platforms": ["linux"], "runtimes": {"python": PYTHON}},
        "user_config": {"directories": {**directories, "required": True, "multiple": True}},
    }
    project = f"""\
[project]
name = "treesnap-bundle"
version = "{VERSION}"
requires-python = "{PYTHON}"
dependencies = ["treesnap[mcp]=={VERSION}"]
"""
    return {
        "mcp/bundle/main.py": MAIN,
        "mcp/bundle/manifest.json": manifest,
        "mcp/bundle/pyproject.toml": project,
    }


def write_bundle(path: Path) -> None:
    """Writes the bundle, in each run with the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(bundle()):
            info = zipfile.ZipInfo(name.rpartition("/")[2])  # of 1980
            info.external_attr = 0o644 << 16
            archive.writestr(info, (HERE / name).read_bytes())


def main() -> None:
    """Writes the packages, or the bundle."""
    if sys.argv[1:2] == ["--bundle"]:
        write_bundle(Path(sys.argv[2]))
        return
    for name, text in files().items():
        path = HERE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
