"""Few examples: a planted rule, and draws."""

from __future__ import annotations

import random

import pytest
from datasets import Dataset

from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.finetuning.data import Split, draw_few
from tests.finetuning.conftest import WORDS, run_finetune


def write_reviews(path, number):
    """Texts whose first word tells the class."""
    draw = random.Random(number)
    rows = []
    for _ in range(number):
        label = draw.choice(["yes", "no"])
        rows.append(f"{'old' if label == 'yes' else 'young'} {' '.join(draw.choices(WORDS, k=3))},{label}")
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def test_a_few_examples_of_each_class_teach_a_new_head_in_a_hundred_steps(encoder, tmp_path):
    flags = {"train_file": write_reviews(tmp_path / "train.csv", 80), "few_shot": 16, "task_name": "own"}
    flags |= {"validation_file": write_reviews(tmp_path / "dev.csv", 40), "model_name_or_path": encoder}
    flags |= {"per_device_train_batch_size": 8, "learning_rate": 4e-3, "dropout": 0, "bias_correction": True}
    assert run_finetune(**flags, output_dir=tmp_path / "run", keep_models="none") == 0
    record = EvaluationRecord.load(tmp_path / "run/own/seed_42")
    assert record.score >= 0.9
    assert (record.data["train"]["examples"], record.steps) == (2 * 16, 100)
    assert record.arguments["few_shot"] == 16


def test_each_seed_draws_its_own_examples_of_each_class_with_text():
    labels = [*["a", "b"] * 10, None, "a"]
    texts = [[f"text {place}"] for place in range(21)] + [[" "]]
    split = Split(Dataset.from_dict({"texts": texts, "label": labels}), 0, {})
    drawn = {seed: draw_few(split, ("a", "b"), 4, seed).examples for seed in (1, 2)}
    assert drawn[1][:] == draw_few(split, ("a", "b"), 4, 1).examples[:]
    assert drawn[1][:] != drawn[2][:]
    for examples in drawn.values():
        assert sorted(examples["label"]) == ["a"] * 4 + ["b"] * 4
        assert len({text for (text,) in examples["texts"]}) == 8
    with pytest.raises(ValueError, match=r"'a' .* 10 "):
        draw_few(split, ("a", "b"), 11, 1)
