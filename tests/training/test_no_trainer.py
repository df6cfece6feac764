"""The loop in bare `accelerate` gives what `RTDTrainer` gives, and ignores no flag."""

import sys
from contextlib import nullcontext

import pretrain_no_trainer
import pytest

from hf_electra_rtd import PretrainingRecord
from hf_electra_rtd.detection import load_for_detection
from hf_electra_rtd.training import pretrain
from tests.conftest import pretraining_flags
from tests.training.test_checkpoints import flip


@pytest.fixture
def train(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pretrain"])

    def run(main, name, *flags):
        options = {"max_steps": 6, "save_steps": 3, "eval_steps": 4, "gradient_accumulation_steps": 2}
        options |= {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 8}
        assert main(pretraining_flags(tmp_path, corpus, tmp_path / name, *flags, **options)) == 0
        return tmp_path / name

    return run


PAIR, ALONE = {"generator", "discriminator"}, {"discriminator"}


@pytest.mark.parametrize(
    ("flags", "towers"),
    [
        ("", PAIR),
        ("--objective electric --generator_type two_tower --masking span", ALONE),
        ("--objective mlm", ALONE),
        ("--objective all_tokens_mlm --document_attention True", PAIR),
        ("--generator_type unigram", ALONE),
        ("--generator_type bigram --disallow_correct True", ALONE),
        ("--generator_objective adversarial --generator_learning_rate 1e-3 --clip_separately True", PAIR),
    ],
)
def test_both_loops_are_equal_bit_for_bit_and_either_resumes(train, flags, towers, capsys):
    mains = {"trainer": pretrain.main, "loop": pretrain_no_trainer.main}
    is_electric, flags = "electric" in flags, flags.split()
    one, other = (train(main, name, *flags) for name, main in mains.items())
    shown = capsys.readouterr().out
    assert ("generator/ for stock" in shown) == (towers == PAIR)
    assert (f"score --model {one}" in shown) == is_electric
    assert {path.name for path in one.iterdir()} & PAIR == towers
    parts = ["", *(f"{name}/" for name in towers)]
    names = [f"{part}model.safetensors" for part in parts]
    weights = [(one / name).read_bytes() for name in names]
    assert [(other / name).read_bytes() for name in names] == weights
    records = [PretrainingRecord.load(directory) for directory in (one, other)]
    clocks = ("runtime", "per_second", "train_seconds")
    curves = [
        [{name: value for name, value in log.items() if not name.endswith(clocks)} for log in record.curves]
        for record in records
    ]
    assert curves[1] == curves[0][: len(curves[1])]  # the Trainer's last log is a summary
    assert records[1].metrics.items() <= records[0].metrics.items()
    for name, main in mains.items():
        directory = one.parent / name
        flip(next((directory / "checkpoint-6").glob("r*_state*")))  # one bit of the random numbers
        with pytest.raises(ValueError, match=r"checkpoint-6 cannot be read: r\w*_states?\w*\.p\w+ missing or altered"):
            train(main, name, *flags, "--resume_from_checkpoint", str(directory / "checkpoint-6"))
        (directory / "run_record.json").unlink()
        train(main, name, *flags, "--resume_from_checkpoint", "latest")
        assert [(directory / part).read_bytes() for part in names] == weights
    assert records[1].model["generator_objective"] == ("adversarial" if "adversarial" in flags else "mle")
    assert ("generator_grad_norm" in curves[0][0]) == ("--clip_separately" in flags)
    assert ("eval_generator_entropy" in records[0].metrics) == ("adversarial" in flags)
    for place in ({"model": "loop/checkpoint-6"}, {"model": "loop"}, {"discriminator": "loop/discriminator"}):
        if flags and not is_electric:
            continue
        with pytest.raises(ValueError, match="Use `hf-electra-rtd score") if is_electric else nullcontext():
            load_for_detection(**{name: str(one.parent / each) for name, each in place.items()}, as_is=True)
    with pytest.raises(ValueError, match=r"written by RTDTrainer, so pretrain_no_trainer\.py cannot resume"):
        train(pretrain_no_trainer.main, "trainer", "--resume_from_checkpoint", "latest")


@pytest.mark.parametrize(
    "flags", [("--optim", "adafactor"), ("--push_to_hub", "True", "--hub_model_id", "a/b"), ("--dry_run",)]
)
def test_flags_that_the_loop_does_not_obey_are_refused(train, flags):
    with pytest.raises(ValueError, match=f"does not obey .*{flags[0]}"):
        train(pretrain_no_trainer.main, "run", *flags)
