"""What a person sees of a run; a dry run shows what a run does, and changes nothing."""

import copy
import io
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from transformers import BertTokenizer, TrainerState

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, SequenceStream
from hf_electra_rtd.base.accounting import count_parameters, format_duration
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.training import console
from hf_electra_rtd.training.console import ScoredToken, find_sentence, mark_sentence
from hf_electra_rtd.training.meters import TrainingMeters
from hf_electra_rtd.training.pretrain import RunArguments, _advise, dry_run
from tests.conftest import tiny_config
from tests.training.test_trainer import arguments


def test_a_training_log_is_one_line_with_the_time_left():
    state = TrainerState(max_steps=1000)
    state.global_step = 250
    logs = {"loss": 12.3456, "generator_loss": 6.0, "generator_accuracy": 0.1, "discriminator_loss": 0.5}
    logs |= {"discriminator_recall": 0.25, "sampled_accuracy": 0.5, "replaced_share": 0.07, "tokens_per_second": 12345}
    logs |= {"learning_rate": 5e-4, "train_seconds": 100.0}
    assert console.format_log(logs, state) == (
        "step 250/1,000  generator loss 6.000  discriminator loss 0.500, recall 25.0%  5 min 0 s left"
    )
    held_out = console.format_log({"eval_discriminator_loss": 0.5, "eval_discriminator_masked_accuracy": 0.125}, state)
    assert held_out == "step 250 held out  encoder loss 0.500, masked accuracy 12.5%"
    assert console.format_log({"train_runtime": 1.0}, state) is None
    told = console.describe_metrics({"generator_loss": 1.0, "generator_accuracy": None})
    assert told == {"generator": "loss 1.000"}
    state.max_steps = 1_000_000
    state.global_step = 999_900
    found = {"discriminator_auc": 0.9, "bigram_auc": 0.8, "discriminator_precision": 0.5}
    evaluation = {f"eval_{name}": value for name, value in {**logs, **found}.items()}
    assert all(len(console.format_log(each, state)) <= console.WIDTH for each in (logs, evaluation))


RUN = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 5e-4, "save_steps": 2}


@pytest.fixture
def show(model, blocks, tokenizer, tmp_path):
    """Prints a dry run of 48 sequences, and returns what it printed."""

    def show(pair=model, memory_of=None, **options):
        screen = Console(file=io.StringIO(), width=110)
        collator = DataCollatorForRTD(tokenizer, seed=1, max_seq_length=32)
        stream, args = SequenceStream(blocks[0], 48, seed=1), arguments(tmp_path / "run", **RUN, **options)
        facts = {"arguments": {"model": {"size": "tiny"}}}
        run = SimpleNamespace(
            model=pair,
            stream=stream,
            collator=collator,
            arguments=RunArguments(dry_run=True, memory_of=memory_of),
            args=args,
            record_facts=facts,
            directory=tmp_path / "run",
        )
        dry_run(run, screen)
        return screen.file.getvalue()

    return show


def test_a_dry_run_shows_networks_run_and_cost(show, model, blocks):
    text = show()
    counts = count_parameters(model)
    shared = counts["generator"] + counts["discriminator"] - counts["total"]
    parameters = f"Together {counts['total']:,} parameters; {shared:,} are shared (--sharing embeddings)."
    memory = f"{4 * 4 * counts['total'] / 1000:.1f} kB for weights, gradients and Adam's moments"  # in float32
    length = ("6 of 8 sequences", f"1,536, {48 / len(blocks[0]):.2f} passes")
    for expected in (parameters, memory, *length, "matrix products", "as the paper counts"):
        assert expected in text, expected
    assert re.search(r"hidden size +16 +32\b", text)
    seconds, speed = re.search(r"([\d.e-]+) s a step, ([\d,]+) tokens/s", text).groups()
    assert float(seconds) * int(speed.replace(",", "")) == pytest.approx(8 * 32, rel=0.02)
    assert "\x1b[" not in text


def test_a_dry_run_advises_where_a_run_is_too_long_for_its_text_or_machine():
    run = SimpleNamespace(stream=SimpleNamespace(sequences=range(100)), args=SimpleNamespace(sequences_per_step=10))
    for steps, seconds, wanted in (
        (400, 1.0, []),
        (401, 1.0, ["--max_steps 400"]),
        (400, 2000.0, ["--max_steps 43"]),
        (9000, 2000.0, ["--max_steps 400", "--max_steps 43"]),
    ):
        run.args.max_steps = steps
        assert [re.search(r"--max_steps \d+", advice)[0] for advice in _advise(run, seconds)] == wanted


def test_the_sequences_shown_are_those_of_the_first_step(show, model, blocks, tokenizer):
    stream, names = SequenceStream(blocks[0], 48, seed=1), tokenizer.convert_ids_to_tokens
    batch = DataCollatorForRTD(tokenizer, seed=1)(stream.__getitems__([0, 1]))
    output, shown = model.eval()(**batch), " ".join(show().split())
    assert "original/masked/sampled/label" in shown
    for row in range(2):
        words = names(stream[row]["input_ids"])
        for at in batch["masked_positions"][row].tolist():
            parts = names([int(batch["input_ids"][row, at]), int(output.corrupted_input_ids[row, at])])
            words[at] = "/".join([words[at], *parts, str(int(output.replaced_labels[row, at]))])
        assert " ".join(words) in shown


def test_a_dry_run_without_a_generator_shows_no_samples_and_leaves_everything_as_it_was(show, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(objective="mlm", hidden_dropout_prob=0.1)).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    text = show(model, push_to_hub=True, hub_model_id="lab/electra")
    assert not re.search("sampled|label|generator", text.partition("Nothing was trained")[0])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [path.name for path in tmp_path.iterdir() if any(path.iterdir())] == []


@pytest.mark.slow
def test_a_dry_run_names_the_batches_that_fit_a_gpu(show):
    text = show(memory_of="1.6MB")
    assert re.search(r"8 accumulated +4 x 2 ", text)
    assert "tokens/s" not in text  # nothing is timed


def test_a_memory_that_is_no_size_is_refused(show):
    with pytest.raises(ValueError, match="memory_of"):
        show(memory_of="much")


def test_durations_are_in_units_that_people_read():
    seconds = (0.2, 59.6, 318.55, 11_520, 86_399.9, 216_000, 215_258_750)
    texts = ["0 s", "1 min 0 s", "5 min 19 s", "3 h 12 min", "1.0 days", "2.5 days", "6.8 years"]
    assert list(map(format_duration, seconds)) == texts


# ---- What the discriminator finds ----


@pytest.mark.parametrize("objective", ["rtd", "rtd_masked_only"])
def test_found_missed_and_false_alarms_are_those_of_the_metrics(blocks, tokenizer, objective):
    model, collator = (
        ElectraForRTDPretraining(tiny_config(objective=objective)).eval(),
        DataCollatorForRTD(tokenizer, seed=1),
    )
    sequences = SequenceStream(blocks[1], shuffle=False).__getitems__(range(6))
    tokens = [token for sequence in console.read_tokens(model, collator, sequences) for token in sequence]
    meters, batch = TrainingMeters(model.measures), collator(sequences)
    meters.update(model(**batch), batch)
    measured = meters.drain()
    found, replaced, alarms = map(int, re.findall(r"\d+", console.describe_verdicts(tokens)))
    assert found / replaced == pytest.approx(measured["discriminator_recall"])
    assert found / (found + alarms) == pytest.approx(measured["discriminator_precision"])
    asked = sum(token.masked for token in tokens) if objective == "rtd_masked_only" else len(tokens)
    assert sum(token.probability >= 0 for token in tokens) == asked


def scored(*tokens):
    """Of (original, read, probability)."""
    return [ScoredToken(original, read, original != read, probability) for original, read, probability in tokens]


def test_a_discriminator_near_chance_one_below_counted_pairs_and_one_above_are_told_apart():
    cases = ((0.55, 0.8), (0.7, 0.8), (0.8, 0.8), (0.9, 0.8), (0.7, None))
    near_chance, below, at, above, alone = (console.describe_reading(*case) for case in cases)
    assert near_chance != below == at != above == alone


def test_a_sentence_is_joined_and_says_what_was_replaced_found_and_missed(tokenizer):
    tokens = scored(("[CLS]", "[CLS]", 0.1), ("the", "the", 0.1), (".", ".", 0.1))
    tokens += scored(("it", "took", 0.8), ("was", "was", 0.7), ("mill", "door", 0.2), ("##s", "##s", 0.4))
    tokens += scored((",", ",", 0.1), ("he", "##ed", 0.1), (".", ".", 0.0), ("a", "the", 0.9), ("[SEP]", "[SEP]", 0.1))
    assert console.describe_verdicts(tokens) == "2 of 4 replaced tokens found, 1 false alarm"
    assert console.average_probability([*tokens, *scored(("a", "a", float("nan")))]) == pytest.approx(3.6 / 12)
    sentence = find_sentence(tokens, tokenizer)
    assert sentence == tokens[3:10]
    assert mark_sentence(sentence, 0.2, tokenizer).plain == (
        "took [was it: found, x 4.0] was [false alarm, x 3.5] doors [was mills: missed, x 1.0],ed "
        "[was he: missed, x 0.5]."
    )
    assert find_sentence(tokens[:3], tokenizer) == []
    assert len(find_sentence(scored(*[("it", "he", 0.1)] * 90), tokenizer)) < 30


def test_chinese_is_written_without_spaces():
    vocabulary = [*SPECIAL_TOKENS, *"我们去北京河"]
    tokenizer = BertTokenizer(vocab={token: index for index, token in enumerate(vocabulary)})
    tokens = scored(*((sign, "河" if sign == "北" else sign, 0.3) for sign in "我们去北京"))
    assert mark_sentence(tokens, 0.1, tokenizer).plain == "我们去河 [was 北: missed, x 3.0]京"
