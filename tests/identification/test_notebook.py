"""The notebook without the shared recordings (`.ci/run` runs it with them)."""

import nbformat
import pytest
from nbclient import NotebookClient

from conftest import REPOSITORY


@pytest.mark.slow
def test_notebook_makes_its_own_recordings_where_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHDOJO_SHARED", str(tmp_path))
    path = REPOSITORY / "notebooks" / "identify_cube.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # none are stored
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "made-up tosses instead" in printed and "60 tosses of 90 samples" in printed
    assert sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())) == 3
