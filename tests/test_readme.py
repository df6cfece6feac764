"""The README's commands and Python are run as they stand, with few steps."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FEW_STEPS = {"max_steps": 3, "eval_steps": 3, "save_steps": 3, "logging_steps": 1, "warmup_steps": 1}
# The smallest model, whatever the size that is asked for: what is tested is that the flags mean something.
SMALL = {"size": "tiny", "row_length": 64, "per_device_train_batch_size": 4}


# The text repeats itself, and little of it is left.
PREPARATION = ["--row_length", "64", "--held_out_share", "0.3", "--disable_tqdm"]


FINE_TUNING = ["--max_steps", "2", "--max_length", "32", "--use_cpu", "True", "--disable_tqdm", "True"]


def write_tasks(directory):
    """MRPC, RTE and one's own task, of a few rows each."""
    pairs = [(f"the river was old {number}", "the mill was young", number % 2) for number in range(12)]
    for name in ("MRPC", "RTE"):
        (directory / "glue" / name).mkdir(parents=True)
    for split in ("train", "dev"):
        lines = "".join(f"{label}\t1\t2\t{a}\t{b}\n" for a, b, label in pairs)
        header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (directory / f"glue/MRPC/{split}.tsv").write_text(header + lines, encoding="utf-8")
        names = ("entailment", "not_entailment")
        lines = "".join(f"{row}\t{a}\t{b}\t{names[label]}\n" for row, (a, b, label) in enumerate(pairs))
        (directory / f"glue/RTE/{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + lines)
    for split in ("train", "dev", "test"):
        lines = "".join(f"{a},{label}\n" for a, _, label in pairs)
        (directory / f"{split}.csv").write_text("review,stars\n" + lines)


def blocks_of(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands():
    """Every `python examples/...` or `accelerate launch examples/...`, with continued lines joined."""
    lines = "\n".join(blocks_of("bash")).replace("\\\n", " ").splitlines()
    found = (re.match(r"(?:python|accelerate launch) (examples/.*)", line.strip()) for line in lines)
    return [match.group(1) for match in found if match]


def test_the_readme_names_the_commands_that_do_all_the_set_up():
    makefile = (ROOT / "Makefile").read_text()
    text = "\n".join(blocks_of("bash"))
    for target in ("pretrain", "test"):
        assert f"make {target}" in text
        assert f"\n{target}: " in makefile


def test_the_readmes_commands_and_then_its_python_run(tmp_path, corpus, monkeypatch):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text(corpus.read_text() * 5)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_tasks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    few = [part for name, value in {**FEW_STEPS, **SMALL}.items() for part in (f"--{name}", str(value))]
    training = [*few, "--disable_tqdm", "True", "--use_cpu"]
    assert commands()
    for command in commands():
        path, *flags = shlex.split(command)
        script = importlib.import_module(Path(path).stem)
        monkeypatch.setattr(sys, "argv", [path])
        # A reader rehearses before the run, which has been made here.
        elsewhere = ["--output_dir", "rehearsed"] if "--dry_run" in flags and "publish" not in path else []
        more = {"examples/detect.py": [], "examples/prepare_corpus.py": PREPARATION, "examples/publish.py": []}
        more["examples/finetune.py"] = FINE_TUNING if "--train_file" in flags else [*FINE_TUNING, "--data_dir", "glue"]
        if "--resume" in flags:  # nothing was published, so nothing can wait
            with pytest.raises(ValueError, match="Nothing waits"):
                script.main(flags)
            continue
        assert not script.main([*flags, *more.get(path, training), *elsewhere]), command

    namespace = {}
    assert blocks_of("python")
    for block in blocks_of("python"):
        few = re.sub(r"max_steps=[\d_]+", "max_steps=3, use_cpu=True, disable_tqdm=True, report_to='none'", block)
        exec(compile(few, "README.md", "exec"), namespace)
