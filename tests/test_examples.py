"""The notebooks and the protein example run from beginning to end, with few steps."""

import os
import random
import re
import runpy
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient


EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
# Enough steps for a run to write everything that a cell reads.
FEW = 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs_and_its_outputs_are_kept(path, tmp_path, monkeypatch):
    (tmp_path / "data").symlink_to(EXAMPLES / "data")
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells), "execute it before you commit it"
    shortened = 0
    for cell in cells:
        cell.source, count = re.subn(r"^STEPS = [\d_]+", f"STEPS = {FEW}", cell.source, flags=re.MULTILINE)
        shortened += count
    assert shortened == 1
    NotebookClient(notebook, timeout=800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert f"{FEW} steps" in shown
    assert "error:" not in shown


@pytest.mark.slow
def test_proteins_train_with_a_token_for_each_amino_acid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLES / "protein.py"))
    draw = random.Random(0)
    proteins = ["".join(draw.choices(example["ALPHABET"], k=300)) for _ in range(20)]
    Path("proteins.fasta").write_text("".join(f">P{row}\n{text}\n" for row, text in enumerate(proteins)))
    assert example["read_fasta"](Path("proteins.fasta")) == proteins
    tokenizer = example["make_tokenizer"](example["ALPHABET"])
    ids = tokenizer(proteins[0], add_special_tokens=False).input_ids
    assert len(ids) == 300
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == proteins[0]
    flags = "--max_steps 2 --warmup_steps 1 --eval_steps 2 --max_seq_length 64 --use_cpu True --disable_tqdm True"
    assert example["main"](["proteins.fasta", *flags.split(), "--output_dir", "run"]) == 0
    assert Path("run/discriminator/tokenizer.json").is_file()
