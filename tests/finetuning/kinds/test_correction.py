"""Fine-tuning for correction: the labels of a pair of sentences, the predictions, and a model trained end to end."""

import json
import random

import pytest
import torch
from datasets import Dataset
from transformers import BertConfig, BertForMaskedLM, ElectraConfig, ElectraForMaskedLM

from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.finetuning.heads import load_with_head
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.kinds.correction import CORRECTION_WEIGHT, DETECTION_WEIGHT, MASKED_SHARE
from hf_electra_rtd.finetuning.predict import Classifier
from hf_electra_rtd.finetuning.reading import example_features
from hf_electra_rtd.finetuning.scores import METRICS
from hf_electra_rtd.inference.correction import Corrector
from hf_electra_rtd.ops import IGNORED
from tests.finetuning.conftest import WORDS, run_finetune


@pytest.fixture
def kind(tokenizer):
    return make_kind(Task("own", "Own", kind="correction", metrics=METRICS["correction"]), tokenizer, 12)


def examples(*pairs):
    rows = [{"id": str(row), "texts": [text], "label": right} for row, (text, right) in enumerate(pairs)]
    return Dataset.from_list(rows, features=example_features("correction"))


def test_every_word_of_one_token_learns_its_right_token_and_others_are_left_out(kind, tokenizer):
    rows = examples(("The old mill went .", "The old river went ."), ("She took mills", "She gave horse"),
                    ("went the", "went the river"), ("to the door", None), (" ", " "))  # fmt: skip
    features = kind.encode(rows, training=True)
    # The third pair has different numbers of words, the fourth has no right sentence, and the fifth has no word.
    assert features["example"] == [0, 1]
    names = [
        tokenizer.convert_ids_to_tokens([label if label >= 0 else 0 for label in row]) for row in features["labels"]
    ]
    assert names == [["[PAD]", "the", "old", "river", "went", ".", "[PAD]"],
                     ["[PAD]", "she", "gave", "[PAD]", "[PAD]", "[PAD]"]]  # fmt: skip
    assert features[1]["spans"] == [[1, 0, 3], [2, 4, 8]]
    assert "labels" not in kind.encode(rows, training=False).column_names


def test_a_piece_without_a_word_to_learn_is_left_out_of_training(kind):
    rows = examples(("mills", "horse"), ("Ж", "mill"), ("mill", "Ж"), ("the mill", "the river"))  # no token is a Ж
    assert kind.encode(rows, training=True)["example"] == [3]
    features = kind.encode(rows, training=False)
    assert features["example"] == [0, 1, 2, 3]
    assert list(map(len, features["spans"])) == [0, 0, 1, 2]


def test_long_texts_are_cut_at_sentences_and_put_together_again(kind, tokenizer):
    text = "The old mill . She went to the door ! Horse, garden and river ? " * 2
    features = kind.encode(examples((text, None)), training=False)
    assert len(features) > 2
    assert max(features["length"]) <= 12
    assert not any(features["truncated"])
    letter = tokenizer.convert_tokens_to_ids("letter")
    longest = max(features["length"])
    outputs = torch.tensor([[[letter, 1.0 if index == place else -1.0] for index in range(longest)]
                            for place in [3] * len(features)]).numpy()  # fmt: skip
    (found,) = kind.decode(outputs, features, examples((text, None)))
    places = [next(span for span in spans if span[0] == 3) for spans in features["spans"]]
    expected = text
    for _, start, stop in reversed(places):
        word = text[start:stop]
        new = "Letter" if word[0].isupper() else "letter"
        expected = expected[:start] + (new if word.isalpha() else word) + expected[stop:]
    assert found == {"text": expected, "source": text}
    assert expected.count("etter") >= 2


def test_a_share_of_the_right_tokens_is_masked_in_training_and_not_judged(kind, tokenizer):
    pairs = [("The old mill went . " * 2, "The old river went . " * 2)] * 200
    features = kind.encode(examples(*pairs), training=True)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    plain = kind.collate(list(features))
    assert torch.equal(torch.get_rng_state(), before)  # it works ahead, so a resumed run would draw others
    batch = kind.corrupt(plain)
    given = torch.tensor([list(row) for row in features["input_ids"]])
    is_right, masked = batch["labels"].eq(given), batch["input_ids"].eq(tokenizer.mask_token_id)
    assert not (masked & ~is_right).any()
    assert masked.sum() / is_right.sum() == pytest.approx(MASKED_SHARE, abs=0.03)
    assert kind.corrupt(plain)["input_ids"].ne(batch["input_ids"]).any()  # the masks are drawn anew

    logits = torch.randn(*given.shape, len(tokenizer), dtype=torch.float64)
    detection = torch.randn(given.shape, dtype=torch.float64)
    output = type("Output", (), {"logits": logits, "detection_logits": detection.float()})
    loss = kind.loss(output, batch)
    total = 0.0
    for row, place in batch["labels"].ne(IGNORED).nonzero().tolist():
        label, token = batch["labels"][row, place], batch["input_ids"][row, place]
        total -= CORRECTION_WEIGHT * logits[row, place].log_softmax(-1)[label].item()
        if token != tokenizer.mask_token_id:
            sign = 1 if label != token else -1
            total -= DETECTION_WEIGHT * torch.nn.functional.logsigmoid(sign * detection[row, place]).item()
    assert loss.item() == pytest.approx(total, rel=1e-5)


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("source_class", "config", "name", "head"),
    [
        (ElectraForMaskedLM, ElectraConfig(vocab_size=55, embedding_size=16, **SIZES), "ElectraForCorrection",
         "generator_predictions.dense.weight"),
        (BertForMaskedLM, BertConfig(vocab_size=55, **SIZES), "BertForCorrection",
         "cls.predictions.transform.dense.weight"),
    ],
)  # fmt: skip
def test_the_head_of_a_masked_language_model_goes_on(kind, tmp_path, source_class, config, name, head):
    source = source_class(config)
    source.save_pretrained(tmp_path)
    model = load_with_head(kind.auto_class, str(tmp_path)).eval()
    assert type(model).__name__ == name
    assert torch.equal(model.get_parameter(head), source.get_parameter(head))
    ids = torch.randint(5, 55, (2, 7))
    logits = source.eval()(ids).logits
    assert torch.allclose(model(ids, whole=True).logits, logits, atol=1e-6)
    short = model(ids).logits
    assert torch.equal(short[..., 0].long(), logits.argmax(-1))
    own = logits.gather(-1, ids[..., None])[..., 0]
    assert torch.allclose(short[..., 1], logits.max(-1).values - own, atol=1e-5)


def write_pairs(path, number, seed):
    """Writes pairs of sentences in which `garden` is an error for `horse`, and returns the path."""
    draw, lines = random.Random(seed), ["text\tright"]
    for _ in range(number):
        words = draw.choices([word for word in WORDS if word not in ("garden", "street")], k=draw.randint(3, 8))
        right = list(words)
        if draw.random() < 0.6:
            place = draw.randrange(len(words))
            words[place], right[place] = "garden", "horse"
        lines.append(" ".join(words) + "\t" + " ".join(right))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_model_learns_to_correct_and_the_corrector_loads_it(encoder, tmp_path, capsys):
    flags = {"task_kind": "correction", "task_name": "own", "num_train_epochs": 5, "learning_rate": 5e-3, "dropout": 0}
    files = write_pairs(tmp_path / "train.tsv", 200, 1), write_pairs(tmp_path / "dev.tsv", 40, 2)
    flags |= {"train_file": files[0], "validation_file": files[1], "per_device_train_batch_size": 16}
    run = tmp_path / "run"
    assert run_finetune(model_name_or_path=encoder, output_dir=run, bias_correction=True, **flags) == 0
    record = json.loads((run / "own/seed_42/evaluation_record.json").read_text())
    assert record["main_metric"] == "sentence_correction_f1"
    assert record["metrics"]["dev"]["sentence_correction_f1"] > 0.9
    assert record["model"]["architecture"] == "ElectraForCorrection"
    assert record["arguments"]["layerwise_lr_decay"] == 1

    corrector = Corrector.from_pretrained(str(run))
    text = "River mill Garden letter"
    assert corrector(text) == {
        "source": text,
        "target": "River mill Horse letter",
        "errors": [("Garden", "Horse", 11)],
    }
    right = corrector(["night door window", "garden night", ""])
    assert [result["errors"] for result in right] == [[], [("garden", "horse", 0)], []]
    assert right[2]["skipped"] == "it is empty"
    classifier = Classifier(str(run), use_cpu=True)
    (answer,) = classifier.predict(["night garden mill"])
    assert answer == {"corrected": {"text": "night horse mill", "source": "night garden mill"}}

    with torch.no_grad():  # makes the model change many words
        for network in (classifier.model, corrector.model):
            network.get_output_embeddings().bias.copy_(torch.linspace(-20, 20, 55).roll(20))
    draw = random.Random(0)
    known = [*WORDS, "The", "OLD", "mills", ".", "Привет"]
    texts = [" ".join(draw.choices(known, k=draw.randint(1, 30))) for _ in range(40)]
    predicted = [answer["corrected"]["text"] for answer in classifier.predict(texts)]
    assert [result["target"] for result in corrector(texts)] == predicted
    assert sum(map(str.__ne__, predicted, texts)) > 20
