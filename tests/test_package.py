"""What the package promises as a whole: its names, the direction of its imports, what importing it does not do."""

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

import hf_electra_rtd


ROOT = Path(__file__).parents[1]


def test_public_names_can_be_imported():
    for name in hf_electra_rtd.__all__:
        assert getattr(hf_electra_rtd, name) is not None
    assert set(dir(hf_electra_rtd)) == set(hf_electra_rtd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'RTDTrainr'"):
        hf_electra_rtd.RTDTrainr  # noqa: B018


def test_importing_loads_nothing_that_can_wait():
    script = """
import sys
from transformers import AutoModelForPreTraining, ElectraForMaskedLM, ElectraForPreTraining
stock = set(sys.modules)
import hf_electra_rtd
new = {name.partition(".")[0] for name in set(sys.modules) - stock}
heavy = {"accelerate", "datasets", "evaluate", "matplotlib", "pandas", "peft", "pyarrow", "rich", "scipy",
    "sklearn", "tqdm", "yaml", "zstandard"}
assert not new & heavy, new & heavy
assert "transformers.trainer" not in sys.modules
assert "hf_electra_rtd.training.trainer" not in sys.modules
hf_electra_rtd.RTDTrainer
assert "hf_electra_rtd.training.trainer" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_pretraining_on_prepared_blocks_needs_no_datasets(tmp_path, blocks, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    flags = ["--train_files", blocks[0].path, "--held_out_files", blocks[1].path, "--max_seq_length", "32"]
    flags += ["--tokenizer", str(tmp_path / "tokenizer"), "--output_dir", str(tmp_path / "run"), "--max_steps", "3"]
    flags += ["--warmup_steps", "1", "--use_cpu", "True", "--disable_tqdm", "True"]
    script = f"""
import sys
for absent in ("datasets", "evaluate", "zstandard", "peft"):
    sys.modules[absent] = None
from hf_electra_rtd.training.pretrain import main
main({[str(flag) for flag in flags]!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert (tmp_path / "run" / "run_record.json").exists()


def test_imports_flow_one_way():
    script = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_every_tried_package_lies_within_the_declared_bounds():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    declared = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    declared = [Requirement(line) for text in declared for line in text.split("\n") if line]
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    tried = [Requirement(line) for line in lines if line]
    for requirement in declared:
        pins = [pin for pin in tried if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
        assert pins, f"{requirement.name} is not pinned in constraints.txt"
        for pin in pins:
            (specifier,) = pin.specifier
            assert requirement.specifier.contains(specifier.version), f"{pin} is outside {requirement}"
