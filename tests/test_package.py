"""The package as a whole: its public names, what importing it does not load, and how it loads models."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hf_electra_rtd


def test_public_names_can_be_imported():
    for name in hf_electra_rtd.__all__:
        assert getattr(hf_electra_rtd, name) is not None
    assert set(dir(hf_electra_rtd)) == set(hf_electra_rtd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'RTDTrainr'"):
        hf_electra_rtd.RTDTrainr  # noqa: B018


@pytest.mark.slow
def test_importing_loads_nothing_that_can_wait():
    script = """
import sys
from transformers import AutoModelForPreTraining, ElectraForMaskedLM, ElectraForPreTraining
stock = set(sys.modules)
import hf_electra_rtd
new = {name.partition(".")[0] for name in set(sys.modules) - stock}
heavy = {"accelerate", "datasets", "matplotlib", "pandas", "peft", "pyarrow", "rich", "scipy",
    "sklearn", "tqdm", "yaml"}
assert not new & heavy, new & heavy
assert "transformers.trainer" not in sys.modules
assert "hf_electra_rtd.training.trainer" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_whatever_transformers_loads_is_loaded_by_the_function_that_runs_no_code_of_others():
    root = Path(__file__).parents[1]
    files = [file for room in ("src", "examples", "benchmarks") for file in (root / room).rglob("*.py")]
    assert len(files) > 50
    # The classes of this project load with that function, too. Adapters hold only weights.
    safe = {"Corrector", "Detector", "ElectraForRTDPretraining", "PeftModel"}
    loading = {
        f"{file.name}: {ast.unparse(node)}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained" and ast.unparse(node.value) not in safe
    }
    assert loading == {"files.py: stock_class.from_pretrained"}
