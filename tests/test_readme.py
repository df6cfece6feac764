"""Runs the commands and the Python of the README and of the pages under docs/ as they stand, with few steps."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from hf_electra_rtd_command import COMMANDS


ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
}
SHORT = "--disable_tqdm True --use_cpu True"
FEW_STEPS = "--max_steps 3 --eval_steps 3 --save_steps 3 --logging_steps 1 --warmup_steps 1"
# The smallest model, whatever size the text names: the test only checks that the flags work.
PRETRAIN = f"--size tiny --max_seq_length 64 --per_device_train_batch_size 4 {FEW_STEPS} {SHORT}"
ADDED = {
    "pretrain": PRETRAIN,
    "prepare": "--max_seq_length 64 --held_out_share 0.3 --disable_tqdm True",  # the text repeats itself
    "finetune": f"--max_steps 2 --max_seq_length 32 --seeds 1 {SHORT}",
}
# Commands with these flags cannot run here: they need TensorFlow and a checkpoint of the original.
SKIPPED = ("--tf_checkpoint",)


def blocks_of(language, page):
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], flags=re.DOTALL)


def commands(page):
    """Yields (command, flags) of each `hf-electra-rtd COMMAND`, `make pretrain` and `accelerate launch -m MODULE`."""
    modules = {f"hf_electra_rtd.{module}": command for command, (module, _) in COMMANDS.items()}
    for line in "\n".join(blocks_of("bash", page)).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["hf-electra-rtd"]:
            yield words[1], words[2:]
        elif words[:2] == ["make", "pretrain"]:
            yield "pretrain", ["--output_dir", "runs/pretrain"]
        elif words[:2] == ["accelerate", "launch"]:
            module = words.index("-m") + 1
            yield modules[words[module]], words[module + 1 :]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_sections_that_exist(page):
    here = (ROOT / page).parent
    for target in re.findall(r"\]\((?!http)([^)#]*)#?[^)]*\)", PAGES[page]):
        assert not target or (here / target).exists(), target
    for target, section in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", PAGES[page]):
        text = ((here / target) if target else (ROOT / page)).read_text(encoding="utf-8")
        titles = [title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)]
        assert section in [re.sub(r"[^\w-]", "", title) for title in titles], section


TABLES = {  # path: header and line
    "glue/MRPC/*.tsv": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n", "{label}\t1\t2\t{a}\t{b}\n"),
    "glue/RTE/*.tsv": ("index\tsentence1\tsentence2\tlabel\n", "{row}\t{a}\t{b}\t{name}\n"),
    "glue/CoLA/*.tsv": ("", "gj04\t{label}\t\t{a}\n"),
    "glue/STS-B/*.tsv": ("sentence1\tsentence2\tscore\n", "{a}\t{other}\t{label}\n"),
    "glue/SST-2/*.tsv": ("sentence\tlabel\n", "{a}\t{label}\n"),
    "*.csv": ("review,mood,text,label\n", "{a},{label},{a},{label}\n"),
    "pairs.tsv": ("text\tright\n", "{a}\t{other}\n"),
    "train.tsv": ("text\tright\n", "{a}\t{other}\n"),
    "test15.tsv": ("text\tright\n", "{a}\t{other}\n"),
    "letters.txt": ("", "{a}\n{other}\n"),
    "simplified.txt": ("", "{a}\n{other}\n"),
    "blimp/pairs.jsonl": ("", '{{"sentence_good": "{a}", "sentence_bad": "{other}"}}\n'),
}


def write_tasks(directory):
    """Writes some tasks of GLUE and some of a user's own, with a few examples each."""
    rows = []
    for row in range(36):
        a = f"the river was old {row}"
        name = ("entailment", "not_entailment")[row % 2]
        other = a.replace("old", "great")
        rows.append({"row": row, "label": row % 2, "name": name, "a": a, "b": "the mill was young", "other": other})
    for path, (header, line) in TABLES.items():
        for split in ("train", "dev", "validation", "test"):
            file = directory / path.replace("*", split)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(header + "".join(line.format(**row) for row in rows), encoding="utf-8")
    for name in ("confusions.txt", "same_pinyin.txt"):
        (directory / name).write_text("old great\nriver mill\n")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_and_python_of_readme_and_docs_run(tmp_path, corpus, monkeypatch):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text(corpus.read_text() * 5 + "It was terrible. It was great.\n" * 9)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_tasks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("hf_electra_rtd.pair.initialization._STEPS", 3)
    done = set()
    namespace = {}
    for page in PAGES:
        for command, flags in commands(page):
            key = (command, *flags)
            if key in done or any(flag in flags for flag in SKIPPED):
                continue
            done.add(key)
            added = shlex.split(ADDED.get(command, ""))
            if command == "finetune" and "--train_file" not in flags:
                added += ["--data_dir", "glue"]
            if command == "pretrain" and "--train_files" not in flags:
                added += ["--train_files", "corpus/a.txt"]
            if "--continue_from" in flags:
                added.remove("--size"), added.remove("tiny")
            if command == "pretrain" and "--dry_run" in flags:  # readers try it before the run, which is done by now
                added += ["--output_dir", "tried"]
            monkeypatch.setattr(sys, "argv", [f"hf-electra-rtd {command}"])
            module = importlib.import_module(f"hf_electra_rtd.{COMMANDS[command][0]}")
            assert not module.main([*flags, *added]), (command, flags)
        for block in blocks_of("python", page):
            few = re.sub(r"max_steps=[\d_]+", "max_steps=3, use_cpu=True, disable_tqdm=True, report_to='none'", block)
            exec(compile(few, page, "exec"), namespace)
    assert {command for command, *_ in done} >= COMMANDS.keys() - {"convert"}
