"""The cells of the page on notebooks do what the page says."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "notebooks.md"


def cells():
    """Returns the cells of the page, in order."""
    tokens = MarkdownIt().parse(PAGE.read_text(encoding="utf-8"))
    return [token.content for token in tokens if token.type == "fence" and token.info == "text"]


def test_the_cells_of_the_page_run(shell, root, capsys):
    load, fails, *others = cells()

    assert shell.run_cell(load).success
    assert not shell.run_cell(fails).success
    shown = "".join(capsys.readouterr())
    sentence = (
        "The cell failed; its changes to files were undone, and '%snap undo' brings them back"
    )
    assert sentence in shown
    assert sentence in PAGE.read_text(encoding="utf-8")
    assert (root / "data.csv").read_text() == "1,2\n"

    assert len(others) == 4
    for cell in others:
        result = shell.run_cell(cell)
        assert result.success
        assert "<table>" in shell.display_formatter.format(result.result)[0]["text/html"] or (
            "create" in cell
        )
    assert not (root / "scratch.txt").exists()
