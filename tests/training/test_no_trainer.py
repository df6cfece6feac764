"""The example of a training loop in plain `accelerate`, which users can copy."""

import shutil
import sys

import pretrain_no_trainer
import pytest
from accelerate.state import AcceleratorState
from transformers import set_seed

from hf_electra_rtd import (
    ElectraForRTDPretraining,
    ElectraRTDConfig,
    RTDTrainer,
    RTDTrainingArguments,
    begin_on_neighbours,
    prepare_blocks,
)
from hf_electra_rtd.pair import initialization


STEPS = 6
INTERVAL = 3
TOWERS = ("generator", "discriminator")


@pytest.fixture
def loop(tmp_path, corpus, tokenizer, monkeypatch):
    """Returns a function that runs the script briefly on a small text, and returns the weights of its towers."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    monkeypatch.setattr(pretrain_no_trainer, "CORPUS", corpus)
    monkeypatch.setattr(pretrain_no_trainer, "TOKENIZER", str(tmp_path / "tokenizer"))
    monkeypatch.setattr(pretrain_no_trainer, "LENGTH", 32)
    monkeypatch.setattr(pretrain_no_trainer, "INTERVAL", INTERVAL)
    monkeypatch.setattr(initialization, "_STEPS", 20)

    def run(output_dir):
        AcceleratorState._reset_state(True)
        argv = ["pretrain_no_trainer.py", "--max_steps", str(STEPS), "--output_dir", str(output_dir)]
        monkeypatch.setattr(sys, "argv", argv)
        pretrain_no_trainer.main()
        return weights_of(output_dir)

    return run


def weights_of(output_dir):
    return [(output_dir / name / "model.safetensors").read_bytes() for name in TOWERS]


def test_its_weights_are_those_of_the_trainer_and_it_goes_on(loop, tmp_path, corpus, tokenizer, capsys):
    weights = loop(tmp_path / "loop")
    assert capsys.readouterr().out.count("held out") == STEPS // INTERVAL

    blocks = prepare_blocks([corpus], tokenizer, tmp_path / "blocks", 32, held_out_share=0.05)
    args = RTDTrainingArguments.from_size(
        "tiny",
        output_dir=str(tmp_path / "trainer"),
        max_steps=STEPS,
        warmup_steps=100,
        max_seq_length=32,
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    set_seed(args.seed)
    model = ElectraForRTDPretraining(ElectraRTDConfig.from_size("tiny", vocab_size=len(tokenizer)))
    begin_on_neighbours(model, blocks[0], tokenizer, args.seed)
    RTDTrainer(model, args, *blocks, processing_class=tokenizer).train()
    model.save_towers(tmp_path / "trainer")
    assert weights_of(tmp_path / "trainer") == weights

    shutil.copytree(tmp_path / "loop" / "checkpoint-00000003", tmp_path / "resumed" / "checkpoint-00000003")
    assert loop(tmp_path / "resumed") == weights
