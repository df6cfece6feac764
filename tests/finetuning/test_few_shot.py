"""Classes by words in a template, and few examples: scores by hand, a planted rule, draws and refusals."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F  # noqa: N812
from transformers import BertConfig, BertModel, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, set_seed

from hf_electra_rtd import Classifier, ElectraForRTDPretraining
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.finetuning.data import Split, draw_few
from hf_electra_rtd.finetuning.heads import load_with_head
from hf_electra_rtd.finetuning.kinds.label_words import LabelWordsKind
from tests.conftest import VOCABULARY, tiny_config
from tests.finetuning.conftest import WORDS, review_flags, run_finetune


TEMPLATE, PAIR_TEMPLATE = "{text} it was {label} .", "{text} ? {label} , {text_pair}"
YES_NO = {"label_words": ["yes=great", "no=little"], "template": TEMPLATE}
SIZES = {"embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 64, "vocab_size": len(VOCABULARY)}


def make_kind(tokenizer, template=TEMPLATE, columns=("text",), words=("great", "doors", "old"), length=40):
    names, texts = ("a", "b", "c"), {"columns": columns, "template": template}
    task = Task("t", "T", labels=names, label_words=dict(zip(names, words, strict=True)), **texts)
    return LabelWordsKind(task, tokenizer, length)


def features_of(kind, texts, labels=None):
    rows = {"texts": texts, "label": labels or [None] * len(texts)}
    return kind.encode_batch(rows, range(len(texts)), training=labels is not None)


@pytest.mark.parametrize(
    ("columns", "template", "texts"),
    [
        (("text",), TEMPLATE, [["the mill"], ["it was great , and the old river went by"]]),
        (("a", "b"), PAIR_TEMPLATE, [["the mill", "a horse"], ["she saw it {label}", "{text} the night"]]),
    ],
)
def test_a_class_is_scored_by_its_words_mean_logit_of_being_original(encoder, tokenizer, columns, template, texts):
    kind = make_kind(tokenizer, template, columns)
    model = load_with_head(kind.auto_class, encoder, labels=("a", "b", "c")).eval()
    discriminator = ElectraForPreTraining.from_pretrained(encoder).eval()
    features = features_of(kind, texts, ["b", "c"][: len(texts)])
    batch = kind.collate(features)
    labels = batch.pop("labels")
    with torch.no_grad():
        outputs = model(**batch)
        for row, of_row in enumerate(texts):
            for place, word in enumerate(("great", "door ##s", "old")):
                before, after = template.split("{label}")
                if len(of_row) == 1:
                    before = before.replace("{text}", of_row[0])
                else:
                    before, after = before.replace("{text}", of_row[0]), after.replace("{text_pair}", of_row[1])
                parts = [tokenizer.tokenize(before), word.split(), tokenizer.tokenize(after)]
                ids = tokenizer.convert_tokens_to_ids(["[CLS]", *parts[0], *parts[1], *parts[2], "[SEP]"])
                logits = discriminator(torch.tensor([ids])).logits[0].double()
                first = 1 + len(parts[0])
                wanted = -logits[first : first + len(parts[1])].mean()
                assert outputs.logits[row, place].item() == pytest.approx(wanted.item(), abs=1e-5)
    assert labels.tolist() == [1, 2]


def test_the_loss_is_that_of_detection_at_the_words(tokenizer):
    kind = make_kind(tokenizer)
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    loss = kind.loss(SimpleNamespace(logits=logits), {"labels": torch.tensor([2, 0])})
    right = torch.tensor([[0, 0, 1], [1, 0, 0]]).bool()
    original = logits.double().sigmoid()
    assert loss.item() == pytest.approx(-torch.log(original.where(right, 1 - original)).sum().item() / 3, abs=1e-6)


@pytest.mark.parametrize(("columns", "template"), [(("text",), TEMPLATE), (("a", "b"), PAIR_TEMPLATE)])
def test_a_long_text_is_cut_and_the_template_stays(tokenizer, columns, template):
    kind = make_kind(tokenizer, template, columns, length=16)
    texts = ["the mill " * 20, "a horse"][: len(columns)]
    (feature,) = features_of(kind, [texts], ["b"])
    assert feature["truncated"]
    assert feature["length"] == 16
    for ids, (first, after), word in zip(
        feature["input_ids"], feature["places"], ("great", "doors", "old"), strict=True
    ):
        assert tokenizer.decode(ids[first:after]) == word
        ending = "{label}" + template.split("{label}")[1].replace("{text_pair}", "a horse")
        assert tokenizer.decode(ids[first:-1]) == ending.replace("{label}", word).replace(" .", ".").replace(" ,", ",")
    assert features_of(kind, [["", *texts[1:]]], ["b"]) == []  # nothing to learn
    with pytest.raises(ValueError, match="max_seq_length"):
        features_of(make_kind(tokenizer, template, columns, length=6), [texts])


def reviews(directory, number, seed):
    """Texts of which those with `young` say `great` at their end, and those with `old` say `little`."""
    lines, draws = ["text,label"], random.Random(seed)
    for _ in range(number):
        words, label = draws.choices(WORDS, k=4), draws.choice(["yes", "no"])
        words.insert(draws.randrange(5), {"yes": "young", "no": "old"}[label])
        lines.append(f"{' '.join(words)},{label}")
    path = directory / f"{number}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def planted(tokenizer, tmp_path_factory):
    """A discriminator that has seen such texts with the right word, and with the other one in its place."""
    directory = tmp_path_factory.mktemp("planted")
    set_seed(1)
    model = ElectraForPreTraining(ElectraConfig(**SIZES)).train()
    kind = make_kind(tokenizer, words=("great", "little", "went"))
    optimizer, draws = torch.optim.AdamW(model.parameters(), lr=3e-3), random.Random(2)
    for _ in range(120):
        texts, replaced = [], []
        for _ in range(32):
            words, is_old, is_wrong = draws.choices(WORDS, k=4), draws.random() < 0.5, draws.random() < 0.5
            words.insert(draws.randrange(5), "old" if is_old else "young")
            texts.append(" ".join(words) + f" it was {'little' if is_old != is_wrong else 'great'} .")
            replaced.append(float(is_wrong))
        ids = kind.tokenizer(texts, return_tensors="pt")["input_ids"]
        loss = F.binary_cross_entropy_with_logits(model(ids).logits[:, -3], torch.tensor(replaced))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def test_without_an_example_the_words_already_tell_classes_that_pre_training_has_seen(planted, tmp_path, tokenizer):
    flags = {"train_file": reviews(tmp_path, 40, 1), "validation_file": reviews(tmp_path, 60, 2), "seeds": 1}
    flags |= {"model_name_or_path": planted, "task_name": "own", "output_dir": tmp_path / "run"}
    assert run_finetune(**flags | {"seeds": 3}, **YES_NO, few_shot=0) == 0
    assert [path.name for path in (tmp_path / "run/own").glob("seed_*")] == ["seed_42"]  # all would be alike
    record = json.loads((tmp_path / "run/own/seed_42/evaluation_record.json").read_text())
    assert record["metrics"]["dev"]["accuracy"] > 0.9
    assert (record["steps"], "train" in record["data"]) == (0, False)
    lines = map(json.loads, (tmp_path / "run/own/seed_42/predictions_dev.jsonl").read_text().splitlines())
    rows = list(lines)
    again = Classifier(str(tmp_path / "run"), use_cpu=True).predict([row["texts"][0] for row in rows])
    assert [one["label"] for one in again] == [row["prediction"] for row in rows]
    with pytest.raises(ValueError, match="label_words"):
        run_finetune(**flags, few_shot=0, template=TEMPLATE, label_words=["yes=little", "no=great"])


def test_a_few_examples_teach_words_that_say_the_opposite_and_a_new_head(planted, tmp_path):
    flags = {"train_file": reviews(tmp_path, 80, 1), "validation_file": reviews(tmp_path, 40, 2), "few_shot": 16}
    flags |= {"model_name_or_path": planted, "task_name": "own", "max_steps": 120, "per_device_train_batch_size": 16}
    flags |= {"learning_rate": 4e-3, "dropout": 0, "bias_correction": True, "keep_models": "none"}
    records = []
    for name, more in (("words", {**YES_NO, "label_words": ["yes=little", "no=great"]}), ("head", {})):
        assert run_finetune(**flags, **more, output_dir=tmp_path / name) == 0
        records.append(json.loads((tmp_path / name / "own/seed_42/evaluation_record.json").read_text()))
        assert records[-1]["metrics"]["dev"]["accuracy"] >= 0.9
        assert records[-1]["data"]["train"]["examples"] == 2 * 16
    assert [record["arguments"]["few_shot"] for record in records] == [16, 16]
    assert records[0]["model"]["architecture"] == "ElectraForLabelWords"


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


@pytest.mark.parametrize("source", ["another family", "a generator", "energies"])
def test_a_model_that_does_not_tell_original_words_is_refused(source, tokenizer, tmp_path):
    directory = tmp_path / "model"
    if source == "energies":
        ElectraForRTDPretraining(tiny_config(objective="electric", generator="two_tower")).save_pretrained(directory)
        named = "energies"
    elif source == "a generator":
        ElectraForMaskedLM(ElectraConfig(**SIZES)).save_pretrained(directory)
        named = "discriminator_predictions"
    else:
        sizes = {name: value for name, value in SIZES.items() if name != "embedding_size"}
        BertModel(BertConfig(**sizes)).save_pretrained(directory)
        named = "ElectraForPreTraining"
    tokenizer.save_pretrained(directory)
    flags = {**review_flags(tmp_path), "model_name_or_path": directory, "output_dir": tmp_path / "run", **YES_NO}
    with pytest.raises(ValueError, match=named):
        run_finetune(**flags)
