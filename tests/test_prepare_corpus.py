"""The script that prepares a corpus, as its user sees it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hf_electra_rtd.data.blocks import BlockFile
from tests.conftest import VOCABULARY


EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import prepare_corpus  # noqa: E402
import pretrain  # noqa: E402


FEW_STEPS = ["--max_steps", "2", "--warmup_steps", "1", "--per_device_train_batch_size", "4", "--use_cpu"]


@pytest.mark.parametrize("held_out_share", ["0.1", "0"])
def test_the_command_that_it_prints_trains_on_what_it_made(tmp_path, corpus, capsys, monkeypatch, held_out_share):
    monkeypatch.chdir(tmp_path)
    flags = ["--train_files", str(corpus), "--row_length", "32", "--vocab_size", "100"]
    prepare_corpus.main([*flags, "--disable_tqdm", "--held_out_share", held_out_share])
    output = capsys.readouterr().out
    for figure in ("documents", "tokens of text", "unknown tokens", "positions filled", "longest", "shortest", "rows"):
        assert figure in output
    assert ("held out" in output) == (held_out_share != "0")
    (command,) = re.findall(r"accelerate launch (.*)", output)
    script, *arguments = shlex.split(command)
    assert Path(script).samefile(EXAMPLES / "pretrain.py")
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])
    pretrain.main([*arguments, *FEW_STEPS, "--disable_tqdm", "True", "--output_dir", "run"])
    assert (tmp_path / "run" / "discriminator").exists()


def test_a_mistake_is_told_in_one_line_and_leaves_no_blocks(tmp_path, corpus):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(VOCABULARY))
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\ntwo \xff\n")
    command = [sys.executable, str(EXAMPLES / "prepare_corpus.py"), "--output_dir", str(tmp_path / "made")]
    run = subprocess.run(
        [*command, "--train_files", str(corpus), str(bad), "--tokenizer", str(vocabulary), "--disable_tqdm"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert run.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "bad.txt is not UTF-8: byte 8 is 0xff" in run.stderr
    assert "Traceback" not in run.stderr
    assert not list((tmp_path / "made").glob("*.blocks"))


def test_without_flags_it_prepares_the_bundled_corpus(tmp_path, monkeypatch, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    monkeypatch.chdir(tmp_path)
    prepare_corpus.main(["--tokenizer", "tokenizer", "--disable_tqdm"])
    assert BlockFile("runs/corpus/train.blocks", verify=True).header.statistics["documents"] == 94
