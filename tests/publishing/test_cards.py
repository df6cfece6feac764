import re
from pathlib import Path

import pytest
import transformers
import yaml
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from transformers import ElectraConfig

from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.base.records import FractionRecord
from hf_electra_rtd.data.text import open_texts, parse_sources, scan
from hf_electra_rtd.publishing import card as card_module
from hf_electra_rtd.publishing.card import CardArguments, fine_tuned_card, pretraining_card
from tests.publishing.card_records import CARD, code_of, evaluation_record, run_record, runs, tower


REPO = "org/electra-tiny"
OBJECTIVES = ("rtd", "rtd_masked_only", "replace_mlm", "all_tokens_mlm", "mlm")
HALFWAY = FractionRecord(0.25, 1825, 29200, 998.0)
KINDS = {kind: name for kind, (_, name, _) in card_module._KINDS.items()}
REPORT = {
    "interval": [0.61, 0.79],
    "baseline": {"prediction": "no", "score": 0.6},
    "classes": {
        "no": {"precision": 0.7, "recall": 0.9, "f1-score": 0.8, "support": 60},
        "yes": {"precision": 0.75, "recall": 0.5, "f1-score": 0.6, "support": 40},
    },
    "data": "1" * 64,
}


def parts(card):
    """The parsed front matter of a card, and its body."""
    _, front_matter, body = card.split("---\n", 2)
    return yaml.safe_load(front_matter), body


def discriminator_card(record=None, own=(), compared=(), **options):
    return pretraining_card(record or run_record(), "discriminator", REPO, CARD, own, compared, **options)


def evaluated(own, compared=()):
    return parts(discriminator_card(own=own, compared=compared))


def bare():
    """The record of a user's own script with a dataset that is no block file. Only training arguments are known."""
    record = run_record(metrics={}, curves=[], data={"train": {}}, command="")
    record.arguments = {"training": record.arguments["training"]}
    return record


def every_card():
    for objective in OBJECTIVES:
        for size in SIZES:
            record = run_record(objective, size)
            yield discriminator_card(record, runs(), runs(model={"from_scratch": True}))
            yield pretraining_card(record, "pair", REPO, CARD, related={"discriminator": "org/d"})
            if objective != "mlm":
                yield pretraining_card(record, "generator", REPO, CARD, fraction=HALFWAY)
    yield discriminator_card(run_record(), fraction=HALFWAY)
    yield discriminator_card(run_record(described={"generator": "org/old", "discriminator": "stage"}))
    yield discriminator_card(run_record(model={"generator": "uniform", "generator_config": None}))
    yield discriminator_card(run_record("electric", model={"generator": "two_tower"}), runs())
    yield pretraining_card(bare(), "discriminator", REPO, CardArguments())
    for kind in KINDS:
        for adapter in (False, True):
            yield fine_tuned_card(runs(kind=kind), REPO, CARD, "org/base", adapter)
    yield fine_tuned_card([evaluation_record(benchmark="own", dataset={})], REPO, CardArguments())


def test_every_card_has_front_matter_for_the_hub_and_no_gaps_empty_sections_or_uneven_tables():
    for card in every_card():
        metadata, body = parts(card)
        assert ModelCard(card).data.to_dict() == metadata
        assert "hf-electra-rtd" in metadata["tags"]
        assert "git clone" not in card  # the repository has no public address
        assert not re.search(r"pip install (?!-e \.)", card)  # the package is on no index
        assert body.startswith("\n# electra-tiny\n")
        assert ("not stated" in body) or metadata["license"] == "apache-2.0"
        assert not re.search(r"needed\]|TODO|\bNone\b|\bnan\b|\{%|Undefined|\(\)", parts(card)[1].split("```")[0])
        lines = [line for line in card.splitlines() if line]
        for line, following in zip(lines, [*lines[1:], "# end"], strict=True):
            if re.match(r"##+ ", line):
                assert not following.startswith("#") or following.startswith("### "), f"{line} is empty"
        for table in re.findall(r"(?:^\|.*\n)+", card, re.MULTILINE):
            assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1, table


@pytest.mark.filterwarnings("ignore::FutureWarning")  # raised by peft
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_code_of_a_fine_tuned_card_runs(kind, adapter, tokenizer, tmp_path, capsys):
    name = f"ElectraFor{KINDS[kind]}"
    config = ElectraConfig(**tower(vocab_size=len(tokenizer)), num_labels=1 if kind == "regression" else 2)
    model = getattr(transformers, name)(config)
    model.save_pretrained(tmp_path / "base")
    if adapter:
        model = get_peft_model(model, LoraConfig(target_modules=["query"]))
    model.save_pretrained(tmp_path / "model")
    config.save_pretrained(tmp_path / "model")  # as `save_adapters` does
    tokenizer.save_pretrained(tmp_path / "model")
    columns = {"text_columns": ["sentence1", "sentence2"] if kind == "classification" else []}
    run = evaluation_record(
        kind=kind, arguments={"labels": ["O", "/person/artist"]}, model={"architecture": name}, dataset=columns
    )
    card = fine_tuned_card([run], REPO, CARD, "org/base", adapter)
    (block,) = code_of(card)
    assert f'"{REPO}"' in block
    exec(block.replace(REPO, str(tmp_path / "model")).replace("org/base", str(tmp_path / "base")), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("objective", "part", "pipeline", "tag"),
    [
        ("rtd", "discriminator", None, "replaced-token-detection"),
        ("mlm", "discriminator", "fill-mask", "encoder"),
        ("replace_mlm", "discriminator", None, "encoder"),
        ("electric", "discriminator", None, "energies"),
        ("rtd", "generator", "fill-mask", "generator"),
        ("rtd", "pair", None, "pair"),
    ],
)
def test_a_part_has_a_task_of_the_hub_only_if_a_stock_pipeline_runs_it(objective, part, pipeline, tag):
    data, body = parts(pretraining_card(run_record(objective), part, REPO, CARD))
    assert data.get("pipeline_tag") == pipeline
    assert tag in data["tags"]
    assert data["library_name"] == ("hf-electra-rtd" if part == "pair" else "transformers")
    assert ('pipeline("fill-mask"' in body) == (pipeline is not None)
    assert ("AutoModelForSequenceClassification" in body) == (part == "discriminator")


@pytest.mark.parametrize(("given", "languages"), [(CARD, ["en"]), (CardArguments(), ["zh"])])
def test_a_fine_tuned_model_has_the_language_of_its_task_unless_others_are_given(given, languages):
    run = evaluation_record(language="zh")
    assert parts(fine_tuned_card([run], REPO, given))[0]["language"] == languages


def test_each_metric_and_split_on_the_hub_has_its_entry():
    metrics = {"dev": {"accuracy": 0.5, "f1": None}, "test": {"macro_f1": 0.25}, "extra": {"accuracy": 0.1}}
    run = evaluation_record(metrics=metrics, data={"dev": {"revision": "abc"}})
    results = parts(fine_tuned_card([run], REPO, CARD))[0]["model-index"][0]["results"]
    dataset = {"name": "MRPC", "type": "nyu-mll/glue", "config": "mrpc", "split": "validation"}
    assert [(result["dataset"], result["metrics"][0]["type"]) for result in results] == [
        ({**dataset, "revision": "abc"}, "accuracy"),
        ({**dataset, "split": "test"}, "f1"),
    ]
    few = {"arguments": {**run.arguments, "max_train_samples": 50}, "data": {"train": {"examples": 50}}}
    constant = {"reports": {"dev": REPORT | {"constant_prediction": "no"}}}
    for other in ({"benchmark": "own"}, constant, few):
        assert "model-index" not in evaluated([evaluation_record(**other)])[0]


def cautions(body):
    """The task of each entry in the list of cautions."""
    listed = body.partition("### After fine-tuning")[2].partition("\n## ")[0]
    return re.findall(r"^- (\w+):", listed, re.MULTILINE)


def test_weak_scores_are_called_weak():
    random = runs("mrpc", (0.7, 0.7), model={"from_scratch": True})
    constant = {"reports": {"dev": REPORT | {"constant_prediction": "no", "baseline": {"score": 0.0}}}}
    always = {"reports": {"dev": REPORT | {"baseline": {"score": 0.68}}}}
    weak = [
        *runs("cola", (0.0, 0.0), metric="matthews", **constant),
        *runs("mrpc", (0.69, 0.69), **always),
        *runs("rte", (0.6,)),
    ]
    strong = [*runs("cola", (0.5, 0.5), metric="matthews"), *runs("mrpc", (0.85, 0.85), **always)]
    # cola: constant predictions; mrpc: no better than random weights, nor than the most frequent label; rte: one run.
    assert cautions(evaluated(weak, compared=random)[1]) == ["cola", "mrpc", "mrpc", "rte"]
    assert cautions(evaluated(strong, compared=random)[1]) == []


def test_random_weights_are_those_of_the_same_task():
    random = runs("rte", (0.7, 0.7), model={"from_scratch": True})
    assert cautions(evaluated(runs("rte", (0.6, 0.6), benchmark="own"), compared=random)[1]) == []


def test_the_license_of_the_text_is_the_one_given_or_known_and_else_not_stated(tmp_path):
    corpus = Path(__file__).parents[2] / "examples/data/eltec_eng_excerpts.txt.gz"
    with open_texts(parse_sources(str(corpus)), tmp_path, disable_progress=True) as texts:
        bundled = scan(texts)[0]["sha256"]
    for stated, digests, shown in (
        ("MIT", [bundled], "| MIT |"),
        (None, [bundled, "0" * 64], "| CC BY 4.0: excerpts of the English Novel Corpus .*CA16204; not stated |"),
        (None, [], "| not stated |"),
    ):
        record = run_record(data={"train": {"sources": [{"name": "a.txt", "sha256": digest} for digest in digests]}})
        record.arguments["data"]["data_license"] = stated
        assert re.search(rf"license and source of the text {shown.replace('|', '[|]')}", discriminator_card(record))


BEGUN = {"training": {"max_steps": 7300}, "steps": 1825, "sequences": 29200, "tokens": 3_737_600}
PART = ["step 1,825 of 7,300 (25.00 % of the run)", "on 3,737,600 tokens", "Expect weaker results"]


@pytest.mark.parametrize(
    ("record", "fraction", "shown", "hidden"),
    [
        ({}, None, ["0.6853", "much weaker", "from random weights"], "This is step"),
        (BEGUN, None, PART, "much weaker"),
        ({}, HALFWAY, [*PART, f'from_pretrained("{REPO}", revision="step-1825")'], "much weaker|0\\.6853"),
        ({}, FractionRecord(1.0, 7300, 116800, 3993.7), ["0.6853"], "This is step"),
        ({"described": {"discriminator": "org/old", "generator": "org/g"}}, None, ["`org/g` and `org/old`"], "weaker"),
        ({"described": {"size": "small", "backbone": "my.json"}}, None, ["not one of the named sizes"], "`small`"),
    ],
    ids=["whole", "begun", "fraction", "last fraction", "from weights", "another architecture"],
)
def test_a_card_says_how_far_its_run_is_and_what_it_began_with(record, fraction, shown, hidden):
    card = " ".join(discriminator_card(run_record(**record), fraction=fraction).split())
    assert [text for text in shown if text not in card] == []
    assert not re.search(hidden, card)


def test_a_fine_tuned_card_tells_its_weights_from_the_median():
    one, best, other = runs(scores=(0.6, 0.8, 0.7))
    metadata, body = parts(fine_tuned_card([best, one, other], REPO, CARD, "org/base"))
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.7
    assert "| dev | accuracy | 80.0 |" in body
    assert "the weights of seed 43, one of 3 runs" in body
    assert "This seed has the best score" in body
    assert "This seed has the best score" not in fine_tuned_card([one, best, other], REPO, CARD)


SCRATCH = {"architecture": "BertForSequenceClassification", "from_scratch": True}


@pytest.mark.parametrize(
    ("model", "adapter", "library", "pipeline", "base", "relation"),
    [
        ({}, False, "transformers", "text-classification", "org/base", "finetune"),
        ({}, True, "peft", "text-classification", "org/base", "adapter"),
        (SCRATCH, False, "transformers", "text-classification", None, None),
    ],
)
def test_a_fine_tuned_card_names_what_loads_its_weights_and_what_they_come_from(
    model, adapter, library, pipeline, base, relation
):
    metadata, body = parts(fine_tuned_card([evaluation_record(model=model)], REPO, CARD, "org/base", adapter))
    assert (metadata["library_name"], metadata.get("pipeline_tag")) == (library, pipeline)
    assert (metadata.get("base_model"), metadata.get("base_model_relation")) == (base, relation)
    assert ("the architecture of [org/base](https://huggingface.co/org/base) with random weights" in body) == (
        not base
    )
    assert ("An ELECTRA model" in body) == (model != SCRATCH and not adapter)


@pytest.mark.parametrize(
    ("records", "adapter", "name"),
    [
        ([*runs(), evaluation_record("rte")], False, REPO),
        ([*runs(), *runs(scores=(0.5,))], False, "seed 42"),
        (runs(), True, "base_model"),
        (runs(kind="embedding"), False, "embedding"),
    ],
)
def test_what_cannot_be_one_card_is_refused(records, adapter, name):
    with pytest.raises(ValueError, match=name):
        fine_tuned_card(records, REPO, CARD, None, adapter)


def test_two_settings_of_one_task_are_no_published_figure():
    first = evaluation_record("rte", 42, 0.5)
    other = evaluation_record("rte", 42, 0.6, arguments={**first.arguments, "learning_rate": 1e-5})
    with pytest.raises(ValueError, match=r"rte: .*learning_rate 1e-05"):
        evaluated([first, other])
    assert "50.0" in evaluated([first], compared=[other])[1]
