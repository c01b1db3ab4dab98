"""``%snap`` and ``%%snap`` in a real IPython."""

from __future__ import annotations

import asyncio
import time

import pytest

from treesnap.core.model.quantities import time_text
from treesnap.core.model.results import RestoreResult

pytestmark = pytest.mark.sampled(10)


def run(shell, *lines):
    return shell.run_cell("\n".join(lines))


def test_a_cell_that_raises_is_undone_and_is_an_error(shell, root, handle, capsys):
    result = run(
        shell,
        "%%snap drop rows",
        "import os; os.remove('data.csv'); open('new', 'w').close()",
        "value = 1 / 0",
    )

    assert not result.success
    assert (root / "data.csv").read_text() == "1,2\n"
    assert not (root / "new").exists()
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert shown.count("ZeroDivisionError: division by zero") == 1
    *_, last = shown.strip().splitlines()
    assert last.startswith("CellFailed: The cell failed; its changes to files were undone")
    assert "notebook.py" not in shown
    assert "drop rows" in {item.label for item in handle.list()}


def test_the_undone_changes_can_be_brought_back(shell, root):
    run(shell, "%%snap", "open('new', 'w').close(); 1 / 0")
    result = run(shell, "%snap undo")

    assert isinstance(result.result, RestoreResult)
    assert (root / "new").exists()


def test_a_cell_that_succeeds_stays_and_its_names_are_the_notebooks(shell, root, handle):
    result = run(shell, "%%snap", "# tidy up", "import os; os.remove('data.csv')", "value = 7")

    assert result.success
    assert not (root / "data.csv").exists()
    assert shell.user_ns["value"] == 7
    assert handle.list()[0].label == "before: # tidy up"
    assert run(shell, "%snap restore latest").success
    assert (root / "data.csv").exists()


def test_undo_after_a_cell_that_succeeded_undoes_that_cell(shell, root):
    run(shell, "%snap create raw")
    (root / "data.csv").write_text("1,3\n")
    run(shell, "%snap restore latest")
    run(shell, "%%snap", "open('first', 'w').close()")
    run(shell, "%%snap", "open('second', 'w').close()")

    def names_after(line):
        assert run(shell, line).success
        return sorted(path.name for path in root.iterdir())

    assert names_after("%snap undo") == ["data.csv", "first"]
    assert names_after("%snap undo") == ["data.csv"]
    assert names_after("%snap redo") == ["data.csv", "first"]
    assert names_after("%snap redo") == ["data.csv", "first", "second"]
    for _ in range(3):  # the cells, and the restore before them
        names_after("%snap undo")
    assert (root / "data.csv").read_text() == "1,3\n"


def test_undo_after_a_cell_whose_changes_stay_undoes_that_cell(shell, root):
    run(shell, "%%snap --keep", "open('new', 'w').close(); 1 / 0")

    assert run(shell, "%snap undo").success
    assert not (root / "new").exists()


def test_what_a_cell_evaluates_to_is_shown(shell, capsys):
    run(shell, "%%snap", "6 * 7")

    assert "42" in capsys.readouterr().out


def test_with_keep_the_changes_of_a_failed_cell_stay(shell, root, capsys):
    result = run(shell, "%%snap --keep", "open('new', 'w').close(); 1 / 0")

    assert not result.success
    assert (root / "new").exists()
    assert "its changes to files stay, and '%snap undo' undoes them" in capsys.readouterr().out
    assert run(shell, "%snap restore latest").success
    assert not (root / "new").exists()


def test_a_cell_that_does_not_parse_changes_nothing(shell, root):
    assert not run(shell, "%%snap", "open('new', 'w'").success
    assert not (root / "new").exists()


def test_a_cell_that_awaits_in_a_kernel_is_told_what_does(shell, root, handle, capsys):
    async def in_a_kernel():
        return run(shell, "%%snap", "open('new', 'w').close()", "await step()")

    assert not asyncio.run(in_a_kernel()).success
    captured = capsys.readouterr()
    (line,) = (captured.out + captured.err).strip().splitlines()
    assert line.startswith("UsageError: A cell with %%snap cannot await outside of a function; ")
    assert not (root / "new").exists()
    assert handle.list() == ()


def test_an_interrupt_undoes_the_cell(shell, root):
    assert not run(shell, "%%snap", "open('new', 'w').close(); raise KeyboardInterrupt").success
    assert not (root / "new").exists()


def test_results_are_tables(shell, root):
    run(shell, "%snap create before <b>cleaning</b>")
    (root / "<i>new").write_text("")

    for line in ("%snap", "%snap list", "%snap show latest"):
        assert "before &lt;b&gt;cleaning&lt;/b&gt;" in table(shell, line)
    for line in ("%snap status", "%snap diff", "%snap diff latest"):
        assert "&lt;i&gt;new" in table(shell, line)


def test_a_table_has_the_times_of_the_terminal(shell, handle, monkeypatch):
    made_ns = handle.create().snapshot.record.created_at_ns
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            in_tokyo = time_text(made_ns)
            shown = table(shell, "%snap list")
    finally:
        time.tzset()

    assert in_tokyo in shown
    assert in_tokyo != time_text(made_ns)


def table(shell, line):
    """Returns what a notebook shows of the result of a line."""
    formats, _ = shell.display_formatter.format(run(shell, line).result)
    return formats["text/html"]


def test_the_root_is_that_of_the_command_line(shell, root, handle, monkeypatch):
    run(shell, "%snap create")
    (root / "below").mkdir()
    monkeypatch.chdir(root / "below")
    run(shell, "%snap create")

    assert len(handle.list()) == 2


@pytest.mark.parametrize(
    "lines",
    [
        ["%snap clean"],
        ["%snap show --jsn"],
        ["%snap restore"],
        ["%snap undo now"],
        ["%snap diff a b c"],
        ["%%snap --all", "1"],
        ['%snap "unclosed'],
        ['%%snap "unclosed', "1"],
    ],
)
def test_what_it_does_not_take_is_an_error(shell, handle, lines, capsys):
    assert not run(shell, *lines).success
    assert "UsageError" in capsys.readouterr().err
    assert handle.list() == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%snap restore nothing", "This root has no snapshot 'nothing' ('%snap list' shows"),
        ("%snap show nothing --json", "This root has no snapshot 'nothing' ('%snap list' shows"),
        ("%snap cat nothing data.csv", "This root has no snapshot 'nothing' ('%snap list' shows"),
        ("%snap undo", "There is nothing to undo"),
        ("%snap diff nothing.csv", "'nothing.csv' is neither a snapshot nor a path ('"),
        ("%snap restore", "UsageError: Missing argument 'REF' ('"),
        ("%snap watch", "would never end in a cell; '%snap watch --detach' watches"),
        ("%snap -C .. watch --every 1h", "would never end in a cell; '%snap watch"),
        ("%snap mount history", "would never end in a cell; type it in a terminal"),
        ("%snap mcp", "would never end in a cell; the host of a model starts"),
        ("%snap run -- false", "failed with exit code 1; rolled back; Nothing to restore: "),
    ],
)
def test_an_error_is_one_line(shell, handle, line, said, capsys):
    handle.create()

    assert not run(shell, line).success
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert said in shown
    assert "Traceback" not in shown
    assert len(shown.strip().splitlines()) == 1


def test_other_commands_and_options_are_those_of_the_command_line(shell, root, handle, capsys):
    run(shell, "%snap create one")
    (root / "data.csv").write_text("1,3\n")

    assert run(shell, "%snap list --json").result["snapshots"][0]["label"] == "one"
    assert run(shell, "%snap diff latest --stat").result is None
    assert "1 path changed, 1 line added, 1 line removed" in capsys.readouterr().out
    run(shell, "%snap du")
    assert "data.csv" in capsys.readouterr().out
    assert not run(shell, "%snap status --exit-code --quiet").success


def test_what_is_said_to_type_fits_a_cell(shell, root, handle, capsys):
    handle.create()

    assert run(shell, "%snap delete latest").success
    assert "To free their space: %snap gc\n" in capsys.readouterr().out
    for line in ("%snap restore latest", "%snap cat latest data.csv"):
        assert not run(shell, line).success
        assert "('%snap create' takes the first one)" in "".join(capsys.readouterr())


@pytest.mark.needs("notices")
def test_a_watcher_in_the_background_is_started_and_ended(shell, handle, capsys):
    handle.create()

    assert run(shell, "%snap watch --detach").success
    assert run(shell, "%snap watch --status").success
    assert run(shell, "%snap watch --stop").success
    assert "Stopped" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["data.csv", "golden data.csv"])
def test_a_difference_may_be_of_a_path(shell, root, handle, words, capsys):
    handle.create(name="golden")
    (root / "data.csv").write_text("1,3\n")

    assert run(shell, f"%snap diff {words}").success
    assert "-1,2\n+1,3\n" in capsys.readouterr().out


def test_more_words_go_to_the_command_line(shell, root, handle, capsys):
    handle.create(name="golden")
    (root / "data.csv").write_text("1,3\n")

    assert run(shell, "%snap status golden").success
    assert capsys.readouterr().out == "M  data.csv\n"


def test_the_timeline_is_a_page_in_which_nothing_runs(shell, root):
    run(shell, "%snap create before <b>cleaning</b>")

    shown = table(shell, "%snap timeline")
    assert shown.startswith('<iframe sandbox="" srcdoc="')
    assert "before &amp;lt;b&amp;gt;cleaning" in shown
    assert list(root.iterdir()) == [root / "data.csv"]
