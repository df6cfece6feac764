"""Confusion-aware corruption: words of a user's file in place of some samples."""

import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hf_electra_rtd import (
    DataCollatorForRTD,
    ElectraForRTDPretraining,
    PretrainingRecord,
    RTDTrainer,
    RTDTrainingArguments,
)
from hf_electra_rtd.data.confusion import TokenConfusions
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.ops import IGNORED, confuse
from hf_electra_rtd.publishing.card import CardArguments, pretraining_card
from hf_electra_rtd.training import pretrain
from tests import reference
from tests.conftest import VOCABULARY, make_text, pretraining_flags, tiny_config


ROWS = "river mill garden\ngarden river\nhe she it\nteh the\nhouses houses\nriver rivers\n"
# By the rows, read backwards: what may stand in a right word's place. `teh`, `rivers` are no words of the vocabulary.
WRONG = {"mill": ["river"], "garden": ["river"], "river": ["garden"], "she": ["he"], "it": ["he"]}
IDS = {word: index for index, word in enumerate(VOCABULARY)}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "sound.txt").write_text(ROWS)
    return str(tmp_path / "sound.txt")


# ---- The draw ----


def test_each_entry_is_drawn_as_often_as_promised_and_as_the_slow_twin_has_it():
    table = [[], [7, 8, 9], [5], [], [1, 2, 3, 4, 6]]
    others = np.array([entry for entries in table for entry in entries])
    starts = np.cumsum([0, *map(len, table)])
    # All pairs of a grid of uniforms, which every share and every number of entries divides.
    grid = (np.arange(60) + 0.5) / 60
    uniforms = np.array(list(product(grid, grid)), dtype=np.float32)
    for token, share in product(range(5), (0.0, 0.25, 0.5, 1.0)):
        drawn = confuse(np.full(len(uniforms), token), uniforms, others, starts, share)
        expected = dict.fromkeys(table[token], share / max(1, len(table[token])))
        found = {int(value): (drawn == value).mean() for value in np.unique(drawn)}
        stays = found.pop(-1, 0.0)
        assert found == pytest.approx({value: part for value, part in expected.items() if part})
        assert stays == pytest.approx(1.0 - sum(expected.values()))
    ids = np.random.default_rng(0).integers(-2, 5, (30, 8))
    uniforms = np.random.default_rng(1).random((30, 8, 2), dtype=np.float32)
    assert confuse(ids, uniforms, others, starts, 0.6).tolist() == reference.confuse(ids, uniforms, table, 0.6)
    last = np.nextafter(np.float32(1), np.float32(0))
    assert confuse(np.array([4]), np.array([[0.0, last]], dtype=np.float32), others, starts, 0.5) == [6]


def test_a_file_is_read_from_right_to_wrong_for_the_single_tokens_of_a_vocabulary(path, tokenizer, tmp_path):
    confusions = TokenConfusions(path, tokenizer, 1.0)
    ids = np.arange(len(VOCABULARY))
    drawn = [confusions.draw(ids, np.full((len(ids), 2), uniform)) for uniform in (0.0, 0.99)]
    for word, index in IDS.items():
        found = {VOCABULARY[row[index]] for row in drawn if row[index] >= 0}
        assert found == set(WRONG.get(word, ())), word
    described = {name: confusions.described[name] for name in ("file", "tokens")}
    assert described == {"file": "sound.txt", "tokens": len(WRONG)}
    (tmp_path / "none.txt").write_text("teh the\nrivers mills\nriver river\n")
    with pytest.raises(ValueError, match=r"none\.txt"):
        TokenConfusions(str(tmp_path / "none.txt"), tokenizer, 0.5)


# ---- In a batch ----


def collate(blocks, tokenizer, confusions=None, places=range(8), shift=0):
    """Sequences by their places, at these positions of a run or later ones."""
    sequences = blocks[0].read(np.array(places))
    sequences.stream_positions = np.array(places) + shift
    return DataCollatorForRTD(tokenizer, seed=3, confusions=confusions)(sequences)


def test_masks_and_samples_are_the_same_with_and_without_confusions(blocks, tokenizer, path):
    confusions = TokenConfusions(path, tokenizer, 0.5)
    without = collate(blocks, tokenizer)
    with_them = collate(blocks, tokenizer, confusions)
    confused = with_them.pop("confused_ids")
    assert without.keys() == with_them.keys()
    assert all(torch.equal(without[name], with_them[name]) for name in without)
    shown = with_them["labels"]
    for original, wrong in zip(shown.flatten().tolist(), confused.flatten().tolist(), strict=True):
        assert wrong == -1 or VOCABULARY[wrong] in WRONG[VOCABULARY[original]]
    has_row = torch.isin(shown, torch.tensor([IDS[word] for word in WRONG]))
    assert 0 < (confused >= 0).sum() < has_row.sum()
    # A function of the position in the run, whatever batch or process has it.
    parts = [collate(blocks, tokenizer, confusions, places)["confused_ids"] for places in ((0, 2, 4, 6), (1, 3, 5, 7))]
    assert torch.equal(torch.stack(parts, dim=1).flatten(0, 1), confused)
    assert not torch.equal(collate(blocks, tokenizer, confusions, shift=8)["confused_ids"], confused)


def confusing_pair(confusions, **options):
    torch.manual_seed(0)
    return ElectraForRTDPretraining(tiny_config(confusions=confusions.described, **options))


@pytest.mark.parametrize("options", [{}, {"generator": "uniform"}, {"freeze_generator": True, "sharing": "none"}])
def test_the_discriminator_reads_confused_words_and_the_generators_loss_stays(blocks, tokenizer, path, options):
    confusions = TokenConfusions(path, tokenizer, 1.0)
    batch = collate(blocks, tokenizer, confusions)
    pair = confusing_pair(confusions, **options)
    confused = batch.pop("confused_ids")
    plain = pair(**batch)
    output = pair(**batch, confused_ids=confused)
    slots = batch["masked_positions"]
    sampled = plain.corrupted_input_ids.gather(1, slots)
    expected = plain.corrupted_input_ids.scatter(1, slots, sampled.where(confused < 0, confused))
    assert torch.equal(output.corrupted_input_ids, expected)
    assert torch.equal(output.replaced_labels.bool(), expected != reference.originals(batch))
    assert output.replaced_labels.gather(1, slots)[confused >= 0].all()
    if plain.generator_loss is not None:
        assert torch.equal(output.generator_loss, plain.generator_loss)
    assert output.discriminator_loss != plain.discriminator_loss
    with pytest.raises(ValueError, match="confused_ids"):  # it knows of none
        ElectraForRTDPretraining(tiny_config())(**batch, confused_ids=confused)


def test_slots_without_a_token_stay_as_they_are(blocks, tokenizer, path):
    confusions = TokenConfusions(path, tokenizer, 1.0)
    sequences = blocks[0].read(np.arange(4))
    sequences.stream_positions = np.arange(4)
    sequences.lengths = np.array([32, 9, 4, 20])
    batch = DataCollatorForRTD(tokenizer, seed=3, confusions=confusions, mask_probability=0.5)(sequences)
    unused = batch["labels"].eq(IGNORED)
    padded = batch["attention_mask"].eq(0)
    assert unused.any()
    assert (batch["confused_ids"][unused] == -1).all()
    output = confusing_pair(confusions, mask_probability=0.5)(**batch)
    assert torch.equal(output.corrupted_input_ids[padded], batch["input_ids"][padded])


# ---- Runs ----


@pytest.fixture
def run(tmp_path, corpus, path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["hf-electra-rtd pretrain"])

    def start(name, *flags, main=pretrain.main, **options):
        given = pretraining_flags(tmp_path, corpus, tmp_path / name, *flags, **{"confusion_file": path, **options})
        assert not main(given)
        return tmp_path / name

    return start


def weights(directory):
    return load_file(directory / "model.safetensors")


def are_equal(one, other):
    one = weights(one)
    other = weights(other)
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_run_is_the_same_to_the_bit_and_its_record_and_card_name_the_file(run, tmp_path, path, finished_run):
    whole = run("whole", confusion_share=0.9)
    record = PretrainingRecord.load(whole)
    assert record.arguments["training"]["confusion_file"] == "sound.txt"
    described = TokenConfusions(path, load_tokenizer(str(whole)), 0.9).described
    assert record.model["confusions"] == described
    card = pretraining_card(record, "discriminator", "a/b", CardArguments())
    assert "--confusion_file sound.txt" in card
    shutil.copytree(whole / "checkpoint-2", tmp_path / "resumed" / "checkpoint-2")
    resume = ("--resume_from_checkpoint", "latest")
    assert are_equal(run("resumed", *resume, confusion_share=0.9), whole)
    assert not are_equal(finished_run, whole)  # the same run without them
    Path(path).write_text(ROWS + "he she\n")
    shutil.copytree(whole / "checkpoint-2", tmp_path / "changed" / "checkpoint-2")
    with pytest.raises(ValueError, match="confusions"):
        run("changed", *resume, confusion_share=0.9)


def test_a_run_that_goes_on_begins_or_ends_its_confusions_and_scores_only_without(run, finished_run):
    options = {"tokenizer": None, "model_config": None}
    begun = run("begun", continue_from=finished_run, **options)
    assert PretrainingRecord.load(begun).model["confusions"]["share"] == 0.5
    with pytest.raises(ValueError, match="confusions"):
        ElectraForRTDPretraining.from_pretrained(begun).pseudo_log_likelihood(["the river"])
    ended = run("ended", continue_from=begun, confusion_file=None, **options)
    assert PretrainingRecord.load(ended).model["confusions"] is None


def test_new_words_of_the_vocabulary_are_confused(run, tmp_path, finished_run):
    (tmp_path / "new.txt").write_text(make_text(30, seed=5).replace("river", "gardenings"))
    (tmp_path / "sound.txt").write_text("garden gardenings\n")
    options = {"tokenizer": None, "model_config": None, "train_files": tmp_path / "new.txt", "extend_vocabulary": 1}
    begun = run("extended", continue_from=finished_run, **options)
    assert PretrainingRecord.load(begun).model["confusions"]["tokens"] == 1


@pytest.mark.parametrize(("asked", "made"), [(0.5, None), (None, 0.5), (0.5, 0.7)])
def test_a_trainer_whose_collator_does_otherwise_is_refused(blocks, tokenizer, path, tmp_path, asked, made):
    args = RTDTrainingArguments(
        str(tmp_path), confusion_file=path if asked else None, confusion_share=asked, max_steps=1, use_cpu=True
    )
    confusions = TokenConfusions(path, tokenizer, made) if made else None
    collator = DataCollatorForRTD(tokenizer, confusions=confusions)
    with pytest.raises(ValueError, match="data_collator"):
        RTDTrainer(ElectraForRTDPretraining(tiny_config()), args, blocks[0], None, tokenizer, collator)


def test_a_trainer_makes_a_collator_that_confuses(blocks, tokenizer, path, tmp_path):
    args = RTDTrainingArguments(str(tmp_path), confusion_file=path, max_steps=1, max_seq_length=32, use_cpu=True)
    trainer = RTDTrainer(ElectraForRTDPretraining(tiny_config()), args, blocks[0], None, tokenizer)
    assert trainer.model.config.confusions["tokens"] == len(WRONG)
