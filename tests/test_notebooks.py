"""The notebooks run, and their saved outputs belong to them. `make notebooks` writes the outputs."""

import os
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

SOURCES = sorted((Path(__file__).parents[1] / "docs/notebooks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_notebooks_run(source: Path) -> None:
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    if "WRITE" in os.environ:
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"
            # Where things happened, and what libraries warn of.
            cell.metadata.pop("execution", None)
            if "outputs" in cell:
                cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        jupytext.write(notebook, source.with_suffix(".ipynb"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_outputs_belong_to_the_sources(source: Path) -> None:
    cells, saved = (jupytext.read(file).cells for file in (source, source.with_suffix(".ipynb")))
    assert [cell.source for cell in saved] == [cell.source for cell in cells]
    assert all(cell.execution_count for cell in saved if cell.cell_type == "code")
