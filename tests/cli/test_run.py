"""``snap run``: as processes, because the command inherits the standard streams."""

import os
import re
import signal

import pytest

pytestmark = pytest.mark.sampled(10)

RUN = {"process": True}


@pytest.fixture
def tree(root):
    """A root with one file."""
    (root / "a").write_text("before\n")
    return root


def test_command_that_succeeds_keeps_what_it_did(snap, tree, store):
    result = snap("run", "--", "sh", "-c", "echo out; echo after > a", **RUN)

    assert (result.code, result.out, result.err) == (0, "out\n", f"Made the store {store}\n")
    assert (tree / "a").read_text() == "after\n"


def test_command_that_fails_is_rolled_back_and_gives_its_exit_code(snap, tree):
    result = snap("run", "--", "sh", "-c", "echo after > a; touch b; exit 9", **RUN)

    assert (result.code, result.out) == (9, "")
    assert "sh failed with exit code 9; rolled back\n" in result.err
    assert "To undo this: snap undo\n" in result.err
    assert [path.name for path in tree.iterdir()] == ["a"]
    assert (tree / "a").read_text() == "before\n"


def test_roll_back_can_be_undone(snap, tree):
    snap("run", "--", "sh", "-c", "echo after > a; exit 1", **RUN)

    snap("undo")

    assert (tree / "a").read_text() == "after\n"


def test_options_of_the_command_are_not_ours(snap, tree):
    with_dashes = snap("run", "--", "echo", "--json", "-q", "--nosuch", **RUN)
    without = snap("run", "echo", "--json", "-C", "x", **RUN)

    assert with_dashes.out == "--json -q --nosuch\n"
    assert without.out == "--json -C x\n"


def test_unknown_option_before_the_command_is_a_usage_error(snap, tree):
    assert snap("run", "--retires", "2", "--", "true").code == 2


def test_run_without_a_command_is_a_usage_error(snap):
    assert snap("run").code == 2


def test_quiet_says_nothing(snap, tree):
    result = snap("run", "-q", "--", "sh", "-c", "exit 3", **RUN)

    assert (result.code, result.out, result.err) == (3, "", "")


def test_command_that_does_not_exist_exits_127(snap, tree):
    text = snap("run", "--", "no-such-command-anywhere", **RUN)
    document = snap("run", "--json", "--", "no-such-command-anywhere", **RUN)

    assert (text.code, text.out) == (127, "")
    assert "no-such-command-anywhere" in text.err
    assert (document.code, document.json["schema"]) == (127, "treesnap.error/1")
    assert (tree / "a").read_text() == "before\n"


def test_signal_is_128_and_its_number(snap, tree):
    result = snap("run", "--", "sh", "-c", "echo after > a; kill -KILL $$", **RUN)

    assert result.code == 128 + signal.SIGKILL
    assert "sh was killed by SIGKILL; rolled back\n" in result.err
    assert (tree / "a").read_text() == "before\n"


def test_retries_start_from_the_checkpoint(snap, tree, tmp_path):
    script = f'echo more >> a; echo x >> "{tmp_path}/count"; [ $(wc -l < "{tmp_path}/count") = 3 ]'

    result = snap("run", "--retries", "5", "--", "sh", "-c", script, **RUN)

    assert result.code == 0
    assert (tree / "a").read_text() == "before\nmore\n"


def test_retries_is_a_number_from_zero(snap, tree):
    assert snap("run", "--retries", "-1", "--", "true").code == 2


def test_json_is_alone_on_standard_output(snap, tree):
    snap("create")
    result = snap("run", "--json", "-m", "try", "--", "sh", "-c", "echo out; exit 9", **RUN)

    document = result.json
    assert (result.code, result.err) == (9, "out\n")
    assert set(document) == {"schema", "id", "exit_code", "attempts", "rolled_back", "restore"}
    assert (document["schema"], document["exit_code"]) == ("treesnap.run/1", 9)
    assert (document["attempts"], document["rolled_back"]) == (1, True)
    shown = snap("show", document["id"], "--json").json
    assert (shown["kind"], shown["label"]) == ("run", "try")


def test_command_runs_in_the_root_and_reads_standard_input(snap, tree, tmp_path):
    result = snap("run", "--", "sh", "-c", "pwd; cat", given=b"given", cwd=tree, **RUN)

    assert result.out == f"{os.path.realpath(tree)}\ngiven"


def test_roll_back_is_of_what_the_command_excluded_too(snap, tree):
    (tree / "b.log").write_text("before\n")
    script = "echo '*.log' > .snapignore; echo after | tee a b.log; exit 9"

    result = snap("run", "--", "sh", "-c", script, **RUN)

    assert result.code == 9
    assert "left alone" not in result.err
    assert (tree / "a").read_text() == "before\n"
    assert (tree / "b.log").read_text() == "before\n"


def test_a_roll_back_that_fails_names_the_command_that_tries_again(snap, root, tmp_path):
    (root / "large").write_bytes(os.urandom(1 << 20))
    packs = tmp_path / "store" / "packs"
    spoil = f"rm large; mv '{packs}' '{packs}.away'; mkdir '{packs}'; exit 3"

    failed = snap("run", "--", "sh", "-c", spoil)
    packs.rmdir()
    packs.with_suffix(".away").rename(packs)

    assert failed.code == 7
    found = re.search(r"The roll-back to (\w{12}) failed: ", failed.err)
    assert found is not None
    assert re.search(rf"; then 'snap .*restore {found[1]}' goes back\n", failed.err)
    assert snap("restore", found[1]).code == 0
    assert (root / "large").exists()


def test_an_attempt_that_succeeds_after_a_failed_one_is_no_failure(snap, tree, tmp_path):
    code = (
        f"if test -e {tmp_path}/seen; then echo after > a; else touch {tmp_path}/seen; exit 1; fi"
    )

    result = snap("run", "--retries", "2", "--", "sh", "-c", code, **RUN)

    assert (result.code, result.out) == (0, "")
    assert "sh succeeded in attempt 2; attempt 1 was rolled back\n" in result.err
    assert "failed with" not in result.err
    assert "To undo this" not in result.err
    assert (tree / "a").read_text() == "after\n"


def test_json_of_an_attempt_that_succeeds_has_no_roll_back(snap, tree, tmp_path):
    code = f"test -e {tmp_path}/seen || {{ touch {tmp_path}/seen; exit 1; }}"

    document = snap("run", "--retries", "2", "--json", "--", "sh", "-c", code, **RUN).json

    assert (document["exit_code"], document["attempts"]) == (0, 2)
    assert (document["rolled_back"], document["restore"]) == (False, None)
