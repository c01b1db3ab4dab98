"""The agent that takes the place of MAKER's checkpoint manager, played by scripts.

The orchestrator is the test. The model of the agent does what its definition says: it puts the
block it is sent into the command there, runs that in a shell, and answers with what is printed.
``tests/agents/hosts/test_maker_agent.py`` has Claude Code run the same definition.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

import treesnap
from maker_blocks import RULE, cleanup_block, create_block, reason, restore_block, sections, status

pytestmark = pytest.mark.sampled(10)

DEFINITION = (
    Path(__file__).parents[2] / "integrations/maker/agents/maker-checkpoint-manager.md"
).read_text()


@dataclass(frozen=True)
class Agent:
    """The agent, which answers one block."""

    root: Path
    variables: dict[str, str]

    def __call__(self, block: str) -> str:
        """Returns what the command of the definition prints for a block."""
        (command,) = re.findall(r"^```sh\n(.*?)^```$", DEFINITION, re.MULTILINE | re.DOTALL)
        script = re.sub(r"^BLOCK\n", lambda _: block, command, flags=re.MULTILINE)
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.root,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        ).stdout


@pytest.fixture
def agent(root, tmp_path):
    """The agent in the directory of the pipeline, with ``treesnap`` on its path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "treesnap").symlink_to(Path(sys.executable).with_name("treesnap"))
    return Agent(root, {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})


def test_the_definition_is_that_of_an_agent_of_the_plugin():
    _, head, _ = DEFINITION.split("---\n", 2)
    found = yaml.safe_load(head)

    assert found["name"] == "maker-checkpoint-manager"
    assert found["tools"] == "Bash", "it can run the command and nothing else"


def test_a_step_that_fails_is_rolled_back(root, store, agent):
    """CREATE, the retry with one more file, a step that breaks things, RESTORE, CLEANUP."""
    first = agent(create_block(root, "ckpt-1", "code.py", "made.py"))
    assert status(first) == "CREATE_SUCCESS", first
    assert first.startswith(RULE), "an answer is the block alone"
    assert first.endswith(f"{RULE}\n")
    assert sections(first)["CHECKPOINT DETAILS"][3:] == [
        "Files:",
        "- code.py: captured",
        "- made.py: did_not_exist (will be created)",
    ]
    assert sections(first)["METADATA LOCATION"] == [".maker-checkpoints/metadata/ckpt-1.json"]
    assert (root / ".maker-checkpoints/metadata/ckpt-1.json").is_file()

    again = agent(create_block(root, "ckpt-1", "code.py", "made.py", "notes/plan.md"))
    assert status(again) == "CREATE_SUCCESS", again
    assert "Files Captured: 3" in again
    assert [item.name for item in treesnap.open(root, store).list()] == ["ckpt-1"]

    (root / "code.py").write_text("broken")
    (root / "made.py").write_text("half")
    (root / "notes/plan.md").unlink()
    (root / "beside.txt").write_text("of another program")
    restored = agent(restore_block(root, "ckpt-1"))
    assert status(restored) == "RESTORE_SUCCESS", restored
    assert (root / "code.py").read_text() == "one"
    assert (root / "notes/plan.md").read_text() == "plan"
    assert not (root / "made.py").exists()
    assert (root / "beside.txt").read_text() == "of another program"

    assert status(agent(cleanup_block(root, "CLEANUP_ALL"))) == "CLEANUP_COMPLETE"
    assert not (root / ".maker-checkpoints/metadata/ckpt-1.json").exists()
    gone = agent(restore_block(root, "ckpt-1"))
    assert (status(gone), reason(gone)) == ("RESTORE_FAILED", "checkpoint_not_found")


def test_a_list_of_which_nothing_exists_is_refused(root, store, agent):
    """An answer that says success would be taken for a way back."""
    refused = agent(create_block(root, "ckpt-2", "all of the usual ones", "**and the rest**"))

    assert (status(refused), reason(refused)) == ("CREATE_FAILED", "invalid_argument")
    assert not store.exists()


def test_a_block_reaches_the_program_as_it_was_sent(root, agent):
    """What a shell would interpret is in names, in the reason and in the name of the step."""
    name = "$(touch got-out) 'b' !x.txt"
    (root / name).write_text("kept")
    block = create_block(root, "ckpt-3", name)
    block = block.replace("step_name: a step", "step_name: pay $HOME `id` \"twice\" 'a'")
    assert f"- {name}: captured" in agent(block)
    (root / name).write_text("broken")

    asked = restore_block(root, "ckpt-3").replace("it broke", "$(touch got-out) <<EOF 'x\" EOF")
    assert status(agent(asked)) == "RESTORE_SUCCESS"
    assert (root / name).read_text() == "kept"
    assert not (root / "got-out").exists()


def test_what_a_model_writes_around_a_block_does_no_harm(root, agent):
    block = f"Here is the block:\n\n```\n{create_block(root, 'ckpt-4', 'code.py')}```\nThank you.\n"

    assert status(agent(block)) == "CREATE_SUCCESS"


def test_a_block_that_was_cut_off_is_refused(root, agent):
    whole = create_block(root, "ckpt-5", "code.py", "notes/plan.md")

    cut = agent(whole[: whole.index("[WORKING")])

    assert (status(cut), reason(cut)) == ("CREATE_FAILED", "invalid_argument")


def test_without_the_program_nothing_looks_like_an_answer(root, agent):
    lost = replace(agent, variables={"PATH": "/usr/bin:/bin"})

    assert lost(create_block(root, "ckpt-6", "code.py")) == ""
