"""What docs/gpu.md shows, and the notebook of ranks on one GPU, on a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "gpu.md").read_text(), re.MULTILINE | re.DOTALL
)
NOTEBOOK = json.loads((ROOT / "notebooks" / "03_gpu_ranks.ipynb").read_text())


def printed(code: str, folder: Path) -> str:
    (folder / "file.py").write_text(code)
    env = os.environ | {"MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "ignore:FigureCanvasAgg", "file.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.splitlines()[-1].strip())
def test_blocks_run_when_typed(code, tmp_path):
    printed(code, tmp_path)


def test_the_notebook(tmp_path):
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    said = printed("\n".join(cells), tmp_path)
    print(said)  # with -s: the times that it shows
    assert said.startswith("On "), "it has taken host memory"
