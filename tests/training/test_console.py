"""What a person reads of a run."""

import io
import re
from itertools import pairwise

import pytest
from rich.console import Console
from transformers import TrainerState

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining
from hf_electra_rtd.data.stream import SequenceStream
from hf_electra_rtd.training.console import describe_metrics, format_duration, format_log, pick_sentence, print_samples
from tests.conftest import tiny_config


def test_a_training_log_is_one_line_with_the_time_left():
    state = TrainerState(max_steps=1000)
    state.global_step = 250
    logs = {"loss": 12.3456, "generator_loss": 6.0, "generator_accuracy": 0.1, "discriminator_loss": 0.5}
    logs |= {"discriminator_recall": 0.25, "sampled_accuracy": 0.5, "replaced_share": 0.07, "tokens_per_second": 12345}
    logs |= {"learning_rate": 5e-4, "train_seconds": 100.0}
    assert format_log(logs, state) == (
        "step 250/1,000 (25%)  loss 12.346  generator: loss 6.000, accuracy 10.0%  discriminator: loss 0.5000, recall "
        "25.0%  sampled 50.0%, replaced 7.0%  12,345 tokens/s  lr 5.00e-04  5:00 left"
    )
    held_out = format_log({"eval_discriminator_loss": 0.5, "eval_discriminator_masked_accuracy": 0.125}, state)
    assert held_out == "step 250/1,000 (25%)  HELD-OUT  encoder: loss 0.5000, accuracy at masked tokens 12.5%"
    assert format_log({"train_runtime": 1.0}, state) is None
    assert describe_metrics({"generator_loss": 1.0, "generator_accuracy": None}) == {"generator": "loss 1.000"}


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (309, "5:09"), (7509.4, "2:05:09"), (-1, "0:00")])
def test_durations_are_hours_minutes_seconds(seconds, text):
    assert format_duration(seconds) == text


def samples(model, blocks, tokenizer, **options):
    collator = DataCollatorForRTD(tokenizer, seed=1)
    sequences = SequenceStream(blocks[1], shuffle=False).__getitems__([0, 1])
    console = Console(file=io.StringIO(), **{"width": 1000, **options})
    print_samples(model, collator, sequences, console)
    lines = [line for line in console.file.getvalue().splitlines() if line.split()]
    return lines, model(**collator(sequences))


def test_samples_are_what_the_discriminator_saw(model, blocks, tokenizer):
    lines, output = samples(model, blocks, tokenizer)
    names = tokenizer.convert_ids_to_tokens
    for row in range(2):
        originals, corrupted, replaced = (line.split()[1:] for line in lines[1 + 3 * row : 4 + 3 * row])
        read, length = [word.rstrip("*") for word in corrupted], len(corrupted)
        ids = names(output.corrupted_input_ids[row].tolist())
        (start,) = (at for at in range(32) if ids[at : at + length] == read)
        shown = slice(start, start + length)
        assert originals == names(blocks[1][row]["input_ids"])[shown]
        shares = [f"{probability:.0%}" for probability in output.logits[row].sigmoid().tolist()[shown]]
        assert [word.rstrip("!?x") for word in replaced] == shares
        assert [int(a != b) for a, b in zip(originals, read, strict=True)] == output.replaced_labels[row].tolist()[
            shown
        ]


@pytest.mark.parametrize("objective", ["mlm", "all_tokens_mlm"])
def test_an_encoder_that_predicts_tokens_shows_its_predictions(blocks, tokenizer, objective):
    model = ElectraForRTDPretraining(tiny_config(objective=objective)).eval()
    lines, output = samples(model, blocks, tokenizer)
    assert [line.split()[0] for line in lines[1:4]] == ["original", "corrupted", "predicted"]
    shown = {word for line in lines if line.startswith("predicted") for word in line.split()[1:]}
    assert shown <= set(tokenizer.convert_ids_to_tokens(output.predictions.flatten().tolist()))
    if objective == "all_tokens_mlm":
        assert len(lines[3].split()) == len(lines[1].split())


TOKENS = ["[CLS]", "the", ".", "mill", "was", "old", ".", "[SEP]", "a", "b", "[SEP]"]


def test_the_sentence_with_the_most_replaced_tokens_is_shown():
    corrupted = ["[CLS]", "the", ".", "river", "saw", "old", ".", "[SEP]", "x", "b", "[SEP]"]
    assert list(pick_sentence(TOKENS, corrupted)) == [3, 4, 5, 6]
    assert list(pick_sentence(TOKENS[:5], [*TOKENS[:4], "x"])) == [3, 4]  # a sequence that ends in a sentence
    assert len(pick_sentence(["[CLS]"] + ["a"] * 60, ["[CLS]"] + ["b"] * 60)) == 32


def test_samples_are_aligned_folded_and_in_color_only_on_a_terminal(model, blocks, tokenizer):
    lines, _ = samples(model, blocks, tokenizer, width=40)
    assert all(len(line) <= 40 for line in lines)
    for original, corrupted in pairwise(lines):
        if original.startswith("original"):
            one, other = ([match.start() for match in re.finditer(r"\S+", line)] for line in (original, corrupted))
            assert one == other
    assert "\x1b[" not in "".join(lines)
    lines, _ = samples(model, blocks, tokenizer, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in "".join(lines)
