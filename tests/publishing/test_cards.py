import dataclasses
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from hypothesis import given
from hypothesis import strategies as st

from hf_electra_rtd.publishing.cards import Details, eval_results_files, fine_tuned_card, pair_card, tower_card
from hf_electra_rtd.publishing.privacy import find_private
from hf_electra_rtd.records import FractionRecord
from tests.publishing.card_records import DETAILS, evaluation_record, run_record, runs, tower


REPO = "org/electra-tiny"
OBJECTIVES = ("rtd", "rtd_masked_only", "replace_mlm", "all_tokens_mlm", "mlm")


def parts(card):
    """Front matter as values, and the body."""
    _, front_matter, body = card.split("---\n", 2)
    return yaml.safe_load(front_matter), body


def continued(objective="rtd", **described):
    """A run that went on from published towers."""
    record = run_record(objective)
    record.arguments["model"] |= {"generator": "org/old-generator", "discriminator": "org/old", **described}
    return record


def unfinished(size="tiny", planned=7300):
    """A quarter of a run."""
    return run_record(size=size, training={"max_steps": planned}, steps=1825, rows=29200, tokens=3_737_600)


def every_card():
    for objective in OBJECTIVES:
        for size in ("tiny", "small"):
            record = run_record(objective, size)
            yield tower_card(record, "discriminator", REPO, DETAILS, evaluations=runs())
            yield pair_card(record, REPO, DETAILS, {"discriminator": "org/d"})
            yield tower_card(continued(objective), "discriminator", REPO, DETAILS)
            if objective != "mlm":
                yield tower_card(record, "generator", REPO, DETAILS, related={"pair": "org/pair"})
    fraction = FractionRecord(0.25, 1825, 29200, 998.0)
    yield tower_card(run_record(), "discriminator", REPO, DETAILS, fraction=fraction)
    yield tower_card(unfinished(), "generator", REPO, DETAILS)
    uniform = run_record(model={"generator": "uniform", "generator_config": None})
    yield tower_card(uniform, "discriminator", REPO, DETAILS)
    yield tower_card(run_record(metrics={}, curves=[]), "discriminator", REPO, DETAILS)
    for kind in ("classification", "regression", "multiple_choice", "question_answering", "tagging"):
        for adapter in (False, True):
            several = runs(kind=kind)
            yield fine_tuned_card(several, several[0], REPO, DETAILS, "org/base", adapter)
    for architecture in ("PaperElectraForSequenceClassification", "ElectraForJointQuestionAnswering"):
        kind = "question_answering" if "Question" in architecture else "classification"
        (run,) = runs(scores=(0.7,), kind=kind, benchmark="own", dataset={}, model={"architecture": architecture})
        yield fine_tuned_card([run], run, REPO, DETAILS, None, False)


@pytest.fixture(scope="module")
def cards():
    return list(every_card())


def test_every_card_is_what_the_hub_reads(cards):
    for card in cards:
        metadata, body = parts(card)
        read = ModelCard(card)
        assert read.data.to_dict() == metadata
        assert metadata["license"] == "apache-2.0"
        assert metadata["language"] == ["en"]
        assert "hf-electra-rtd" in metadata["tags"]
        assert "# electra-tiny\n" in body


def test_no_card_tells_where_things_lie_nor_leaves_anything_open(cards):
    for card in cards:
        assert find_private(card) == []
        assert "ada/runs" not in card
        assert "/srv" not in card
        assert not re.search(r"needed\]|TODO|None\b|\bnan\b|\{%", card)


def test_no_section_is_empty(cards):
    for card in cards:
        lines = [line for line in card.splitlines() if line]
        for line, following in zip(lines, [*lines[1:], "# end"], strict=True):
            if re.match(r"##+ ", line):
                deeper = following.startswith("### ") and line.startswith("## ")
                assert deeper or not following.startswith("#"), line


def test_code_is_python_that_loads_the_model_by_its_id(cards):
    for card in cards:
        blocks = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        assert blocks
        for block in blocks:
            compile(block, "card", "exec")
            assert f'"{REPO}"' in block


def test_code_is_formatted(cards, tmp_path):
    pytest.importorskip("ruff", reason="ruff is of the extra `quality`")
    blocks = {block for card in cards for block in re.findall(r"```python\n(.*?)```", card, re.DOTALL)}
    for number, block in enumerate(sorted(blocks)):
        (tmp_path / f"{number}.py").write_text(block, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "format", "--diff", "--no-cache", "--isolated", "--line-length", "119"]
    checked = subprocess.run([*ruff, tmp_path], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_metadata_of_towers():
    record = run_record()
    discriminator, _ = parts(tower_card(record, "discriminator", REPO, DETAILS))
    generator, _ = parts(tower_card(record, "generator", REPO, DETAILS))
    pair, _ = parts(pair_card(record, REPO, DETAILS))
    assert "pipeline_tag" not in discriminator
    assert generator["pipeline_tag"] == "fill-mask"
    assert discriminator["library_name"] == generator["library_name"] == "transformers"
    assert pair["library_name"] == "hf-electra-rtd"
    assert discriminator["datasets"] == ["wikimedia/wikipedia"]
    assert {"replaced-token-detection", "discriminator"} <= set(discriminator["tags"])
    assert "model-index" not in discriminator


@pytest.mark.parametrize("objective", ["replace_mlm", "all_tokens_mlm", "mlm"])
def test_a_main_tower_that_predicts_tokens_is_called_so(objective):
    metadata, body = parts(tower_card(run_record(objective), "discriminator", REPO, DETAILS))
    assert not {"replaced-token-detection", "discriminator"} & set(metadata["tags"])
    assert "AutoModelForSequenceClassification" in body
    assert "AutoModelForPreTraining" not in body


def test_only_what_was_trained_on_masks_is_offered_to_fill_them():
    for objective in OBJECTIVES:
        metadata, body = parts(tower_card(run_record(objective), "discriminator", REPO, DETAILS))
        fills = objective == "mlm"
        assert (metadata.get("pipeline_tag") == "fill-mask") == fills
        assert ("AutoModelForMaskedLM" in body) == ("and for filling masks" in body) == fills
        assert ("masked-lm" in metadata["tags"]) == fills
        assert ("saw no [MASK] in this run" in body) == (objective in ("replace_mlm", "all_tokens_mlm"))
        if objective != "mlm":
            metadata, body = parts(tower_card(run_record(objective), "generator", REPO, DETAILS))
            assert metadata["pipeline_tag"] == "fill-mask"
            assert "AutoModelForMaskedLM" in body
            assert "AutoModelForSequenceClassification" not in body


def test_a_generator_is_told_by_what_its_main_tower_does():
    related = {"discriminator": "org/main"}
    for objective in ("replace_mlm", "all_tokens_mlm"):
        body = tower_card(run_record(objective), "generator", REPO, DETAILS, related=related)
        told = body[: body.index("## How to use it")]
        assert "discriminator" not in told
        assert "Take the main tower" in told
        assert "its main tower | [org/main]" in told
    body = tower_card(run_record(), "generator", REPO, DETAILS, related=related)
    assert "the replacements that its discriminator learns to find" in body
    assert "its discriminator | [org/main]" in body


def test_a_generator_is_called_small_only_where_it_is_smaller():
    same = run_record(model={"sharing": "all", "generator_config": tower()})
    larger = run_record(model={"generator_config": tower(hidden_size=32, num_hidden_layers=8)})
    for record, smaller in ((run_record(), True), (same, False), (larger, False)):
        body = tower_card(record, "generator", REPO, DETAILS)
        assert ("smaller and weaker than its discriminator by design" in body) == smaller
        assert ("a small masked language model" in body) == smaller
        assert ("The generator is no smaller than the discriminator." in body) == (not smaller)
        assert ("a small generator exchanged" in tower_card(record, "discriminator", REPO, DETAILS)) == smaller
    uniform = run_record(model={"generator": "uniform", "generator_config": None})
    assert "tokens that were exchanged at random" in tower_card(uniform, "discriminator", REPO, DETAILS)


def test_a_pair_without_a_generator_has_one_tower():
    lone = pair_card(run_record("mlm"), REPO, DETAILS, {"discriminator": "org/main"})
    assert "both towers" not in lone
    assert "the main tower with its head" in lone
    assert "take the main tower, which `transformers` loads without this package, from [org/main]" in lone
    assert "discriminator" not in lone[: lone.index("## Training data")].partition("# electra-tiny")[2]
    both = pair_card(run_record(), REPO, DETAILS)
    assert "to look at both towers at work" in both
    assert "generator and discriminator with what they share" in both
    assert "take the discriminator, which `transformers` loads without this package." in both


def test_there_is_no_card_of_a_generator_that_there_is_not():
    with pytest.raises(ValueError, match="There is no generator: the objective is 'mlm'"):
        tower_card(run_record("mlm"), "generator", REPO, DETAILS)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_scores_are_those_of_the_records(scores):
    metadata, body = parts(tower_card(run_record(), "discriminator", REPO, DETAILS, evaluations=runs(scores=scores)))
    (index,) = metadata["model-index"]
    (result,) = index["results"]
    assert result["task"] == {"type": "text-classification"}
    assert result["dataset"] == {"name": "MRPC", "type": "nyu-mll/glue", "config": "mrpc", "split": "validation"}
    (metric,) = result["metrics"]
    assert metric["type"] == "accuracy"
    assert metric["value"] == statistics.median(scores)
    assert metric["name"] == ("Accuracy" if len(scores) == 1 else f"Accuracy (median of {len(scores)} runs)")
    cells = [
        cell.strip() for cell in next(line for line in body.splitlines() if line.startswith(f"| {REPO}")).split("|")
    ]
    assert cells[3] == f"{100 * statistics.median(scores):.1f}"
    assert ", ".join(str(42 + index) for index in range(len(scores))) in body


def test_each_metric_and_split_has_its_entry_with_the_revision_that_was_read():
    metrics = {"dev": {"accuracy": 0.5, "f1": None}, "test": {"accuracy": 0.25}, "extra": {"accuracy": 0.1}}
    data = {"dev": {"revision": "abc"}, "test": {}}
    record = evaluation_record(metrics=metrics, data=data)
    metadata, _ = parts(fine_tuned_card([record], record, REPO, DETAILS, None, False))
    results = metadata["model-index"][0]["results"]
    told = [(r["dataset"]["split"], r["dataset"].get("revision"), r["metrics"][0]["value"]) for r in results]
    assert told == [("validation", "abc", 0.5), ("test", None, 0.25)]


def test_own_data_have_no_entry():
    own = evaluation_record(benchmark="own")
    assert "model-index" not in parts(tower_card(run_record(), "discriminator", REPO, DETAILS, evaluations=[own]))[0]
    assert eval_results_files([own]) == {}


def test_published_figures_of_the_size_stand_beside():
    def body(size):
        return tower_card(run_record(size=size), "discriminator", REPO, DETAILS, evaluations=runs())

    assert "| Google ELECTRA-Small-OWT | published | 87.4 |" in body("small")
    assert "Google ELECTRA" not in body("tiny")
    assert "No figures of a model of this size are published" in body("tiny")


def test_weak_scores_are_called_weak():
    weak = [*runs("cola", (0.0, 0.0), metric="matthews"), *runs("mrpc", (0.69, 0.69)), *runs("rte", (0.5,))]
    random = runs("mrpc", (0.7, 0.7), model={"from_scratch": True})
    body = tower_card(run_record(), "discriminator", REPO, DETAILS, evaluations=weak, compared=random)
    assert "The model has not learnt this task" in body
    assert "mrpc: the median is only 0.6 points above always giving the most frequent label (68.4 %)" in body
    assert "rte: the median is not above always giving" in body
    assert "mrpc: no better than the same architecture from random weights" in body
    assert "rte: a single run" in body
    strong = [*runs("cola", (0.5, 0.5), metric="matthews"), *runs("mrpc", (0.85, 0.85)), *runs("rte", (0.7, 0.7))]
    body = tower_card(run_record(), "discriminator", REPO, DETAILS, evaluations=strong, compared=random)
    for words in ("not learnt", "most frequent", "no better", "a single run"):
        assert words not in body


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        ({"tokens": 29_900_800}, "29,900,800"),
        ({"rows": 233_600}, "32 rows"),
        ({"train_seconds": 7200.0}, "2 h 0 min"),
        ({"flops": {"model": 5.67e15, "paper": 8.91e15}}, "5.67e15"),
        ({"flops": {"model": 5.67e15, "paper": 8.91e15}}, "8.91e15"),
        ({"parameters": {"discriminator": 1234567, "generator": 1, "total": 2}}, "1,234,567"),
        ({"metrics": {"eval_discriminator_auc": 0.9123}}, "0.912"),
        ({"hardware": {"processor": "X", "cpu_cores": 4, "accelerators": ["G", "G"]}}, "2 x G; X (4 CPU cores)"),
        ({"versions": {"torch": "9.9"}}, "torch 9.9"),
        ({"command": "pretrain.py --seed 7"}, "--seed 7"),
        ({"training": {"learning_rate": 1.25e-3}}, "0.00125"),
        ({"training": {"mask_probability": 0.25}}, "25 % of the tokens: 32 distinct positions"),
        ({"training": {"bf16": True}}, "bfloat16"),
        ({"model": {"temperature": 0.5}}, "The generator fills with temperature 0.5, not 1."),
        ({"model": {"discriminator_weight": 20.0}}, "The discriminator's loss counts 20 times, not 50."),
        ({"model": {"discriminator_config": tower(vocab_size=8192)}}, "8,192 tokens, not 30,522"),
    ],
)
def test_figures_of_the_body_are_those_of_the_record(change, figure):
    assert figure not in tower_card(run_record(), "discriminator", REPO, DETAILS)
    assert figure in tower_card(run_record(**change), "discriminator", REPO, DETAILS)


def test_data_are_told_with_licence_and_hashes():
    body = tower_card(run_record(), "discriminator", REPO, DETAILS)
    for text in ("news.txt", "36,064", "`1f0955`", "CC BY-SA 4.0", "44,223,799", "8,075 (0.0183 %)", "0.33 passes"):
        assert text in body


def test_a_run_with_the_papers_recipe_is_not_said_to_differ_from_it():
    main = tower(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, initializer_range=0.02)
    record = run_record(
        "rtd",
        "small",
        training={"warmup_steps": 10_000.0, "bias_correction": False},
        steps=1_000_000,
        rows=128_000_000,
        tokens=128_000_000 * 128,
        model={"discriminator_config": main},
    )
    body = tower_card(record, "discriminator", REPO, DETAILS)
    for words in ("not in the paper", "other figures", "corrects its bias", "Dropout is", "times as many"):
        assert words not in body
    assert "the original's may repeat" in body
    assert "steps: 7,300, not 1,000,000" in tower_card(run_record(size="small"), "discriminator", REPO, DETAILS)


@pytest.mark.parametrize(
    ("described", "start"),
    [
        ({}, "org/old-generator and org/old"),
        ({"generator": None, "discriminator": None, "two_stage_from": "org/first"}, "org/first"),
    ],
)
def test_a_run_that_went_on_is_told_by_what_it_added(described, start):
    record = continued(size="small", **described)
    for card in (tower_card(record, "discriminator", REPO, DETAILS), pair_card(record, REPO, DETAILS)):
        assert (
            f"In this run it has seen 14.95 million tokens (0.33 passes over its text), on top of what {start}" in card
        )
        assert f"Training went on from {start}, not from random weights." in card
        assert "| pre-trained on, in this run | 14.95 million tokens" in card
        for words in (
            *("times as many", "much weaker", "no named size", "not in the paper", "It has seen"),
            *("standard deviation", "normal distribution", "are untrained"),
        ):
            assert words not in card
    body = tower_card(record, "discriminator", REPO, DETAILS, evaluations=runs())
    assert "of a model of this size" not in body


def test_a_tower_that_was_added_to_another_is_said_to_be_new():
    for left_out, objective, new in (
        ({"generator": None}, "rtd", "generator"),
        ({"discriminator": None}, "rtd", "discriminator"),
        ({"discriminator": None}, "replace_mlm", "main tower"),
    ):
        body = tower_card(continued(objective, **left_out), "generator", REPO, DETAILS)
        assert f"had seen. The {new} began from random weights." in body
    assert "began from" not in tower_card(continued(), "discriminator", REPO, DETAILS)
    alone = continued("mlm", generator=None)
    assert "began from" not in tower_card(alone, "discriminator", REPO, DETAILS)


def test_an_architecture_of_ones_own_is_said_to_be_none_of_the_papers():
    record = run_record()
    record.arguments["model"]["model_config"] = "mine.json"
    body = tower_card(record, "discriminator", REPO, DETAILS)
    assert "The architecture is of no named size of the paper." in body
    assert "The architecture is not in the paper." in body
    assert "times as many" in body


def test_an_unfinished_run_is_not_measured_by_what_it_has_not_done_yet():
    whole = run_record(size="small", training={"max_steps": 7300})
    fraction = FractionRecord(0.25, 1825, 29200, 998.0)
    for card in (
        tower_card(unfinished("small", planned=1_000_000), "discriminator", REPO, DETAILS),
        pair_card(unfinished("small", planned=1_000_000), REPO, DETAILS),
    ):
        assert "That is 0.18 % of its run: expect less of it than of the run's end." in card
        assert "| steps | 1,825 of 1,000,000 |" in card
        for words in ("steps: 1,825", "not 1,000,000", "much weaker", "times as many"):
            assert words not in card
    on_the_way = tower_card(whole, "discriminator", REPO, DETAILS, fraction=fraction)
    assert "It has seen 3.738 million tokens (0.0825 passes over its text). That is 25.00 % of its run" in on_the_way
    assert "much weaker" not in on_the_way
    short = tower_card(unfinished("small"), "discriminator", REPO, DETAILS)
    assert "steps: 7,300, not 1,000,000" in short  # the plan differs, too
    ended = tower_card(whole, "discriminator", REPO, DETAILS)
    assert "much weaker" in ended
    assert "| steps | 7,300 |" in ended


def test_a_tower_on_the_way_is_told_by_what_it_had_seen():
    fraction = FractionRecord(0.25, 1825, 29200, 998.0)
    body = tower_card(run_record(), "discriminator", REPO, DETAILS, fraction=fraction)
    assert "step 1,825 of 7,300 (25.00 % of the run), after 3.738 million tokens" in body
    assert f'from_pretrained("{REPO}", revision="step-1825")' in body
    assert "0.543" in body  # held out at that step,
    assert "0.685" not in body  # not at the end
    at_end = tower_card(
        run_record(), "discriminator", REPO, DETAILS, fraction=FractionRecord(1.0, 7300, 116800, 3993.7)
    )
    assert at_end == tower_card(run_record(), "discriminator", REPO, DETAILS)


def test_a_card_that_is_made_while_the_run_goes_on_says_how_far_it_is():
    whole = run_record(training={"max_steps": 7300})
    begun = run_record(training={"max_steps": 7300}, steps=1825, rows=29200, tokens=3_737_600)
    fraction = FractionRecord(0.25, 1825, 29200, 998.0)
    for card in (tower_card(begun, "discriminator", REPO, DETAILS), pair_card(begun, REPO, DETAILS)):
        assert "step 1,825 of 7,300 (25.00 % of the run), after 3.738 million tokens" in card
        assert "The run went on when this was written" in card
    on_its_branch = tower_card(begun, "discriminator", REPO, DETAILS, fraction=fraction)
    assert "step 1,825 of 7,300" in on_its_branch
    assert 'revision="step-1825"' in on_its_branch
    assert "of 7,300 (" not in tower_card(whole, "discriminator", REPO, DETAILS)


def test_results_along_the_run_have_a_row_a_step():
    along = {1825: runs(scores=(0.6, 0.7, 0.65)), 913: runs(scores=(0.5,))}
    body = tower_card(run_record(), "discriminator", REPO, DETAILS, fraction_evaluations=along)
    lines = body.splitlines()
    first = lines.index("| 913 | 1.87 million | 50.0 (1) |")
    assert lines[first + 1] == "| 1,825 | 3.738 million | 65.0 (3) |"


def test_emissions_are_told_where_they_were_measured():
    measured = {"kg_co2_eq": 0.0421, "energy_kwh": 0.11, "country": "France", "source": "codecarbon"}
    metadata, body = parts(tower_card(run_record(emissions=measured), "discriminator", REPO, DETAILS))
    assert metadata["co2_eq_emissions"] == {
        "emissions": pytest.approx(42.1),
        "source": "codecarbon",
        "training_type": "pre-training",
        "geographical_location": "France",
        "hardware_used": "A Processor",
    }
    assert "0.0421 kg CO2 equivalent (0.11 kWh, France), measured by codecarbon" in body
    metadata, body = parts(tower_card(run_record(), "discriminator", REPO, DETAILS))
    assert "co2_eq_emissions" not in metadata
    assert "CO2" not in body


def test_a_fine_tuned_card_tells_these_weights_from_the_median():
    several = runs(scores=(0.6, 0.8, 0.7))
    metadata, body = parts(fine_tuned_card(several, several[1], REPO, DETAILS, "org/base", False))
    assert (metadata["base_model"], metadata["base_model_relation"]) == ("org/base", "finetune")
    assert (metadata["library_name"], metadata["pipeline_tag"]) == ("transformers", "text-classification")
    assert metadata["datasets"] == ["nyu-mll/glue"]
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.7
    assert "| dev | Accuracy | 80.0 | 70.0 | 70.0 ± 10.0 | 80.0 |" in body
    assert "42: 60.0, 43: 80.0, 44: 70.0" in body
    assert "This seed did best" in body
    assert "This seed did best" not in fine_tuned_card(several, several[0], REPO, DETAILS, "org/base", False)


def test_adapters_are_loaded_with_their_base():
    several = runs(model={"peft": "lora"})
    metadata, body = parts(fine_tuned_card(several, several[0], REPO, DETAILS, "org/base", True))
    assert (metadata["library_name"], metadata["base_model_relation"]) == ("peft", "adapter")
    assert 'from_pretrained("org/base", num_labels=2)' in body
    assert "pip install peft" in body
    with pytest.raises(ValueError, match="Adapters need their base model"):
        fine_tuned_card(several, several[0], REPO, DETAILS, None, True)


def test_a_head_of_this_package_is_loaded_with_it():
    run = evaluation_record(model={"architecture": "PaperElectraForSequenceClassification", "head": "paper"})
    for adapter in (False, True):
        metadata, body = parts(fine_tuned_card([run], run, REPO, DETAILS, "org/base", adapter))
        assert metadata["library_name"] == "hf-electra-rtd"
        assert "pipeline_tag" not in metadata
        assert body.index("with a freshly drawn\nhead") < body.index("```python")
    stock = evaluation_record()
    assert "freshly drawn" not in fine_tuned_card([stock], stock, REPO, DETAILS, None, False)
    body = fine_tuned_card([run], run, REPO, DETAILS, None, False)
    assert "pip install hf-electra-rtd" in body
    assert "from hf_electra_rtd.finetuning.heads import PaperElectraForSequenceClassification" in body


@pytest.mark.parametrize(
    ("architecture", "electra"),
    [
        ("ElectraForSequenceClassification", True),
        ("PaperElectraForSequenceClassification", True),
        ("BertForSequenceClassification", False),
    ],
)
def test_only_an_electra_is_called_one(architecture, electra):
    run = evaluation_record(model={"architecture": architecture})
    metadata, body = parts(fine_tuned_card([run], run, REPO, DETAILS, "org/base", False))
    assert ("electra" in metadata["tags"]) == electra
    assert "hf-electra-rtd" in metadata["tags"]
    assert ("An ELECTRA model that classifies" in body) == electra
    assert ("\nA model that classifies" in body) != electra
    assert ("@inproceedings{clark2020electra" in body) == electra


def test_a_model_from_random_weights_has_no_base_model():
    run = evaluation_record(model={"from_scratch": True})
    metadata, body = parts(fine_tuned_card([run], run, REPO, DETAILS, "org/base", False))
    assert not {"base_model", "base_model_relation"} & set(metadata)
    base = "[org/base](https://huggingface.co/org/base)"
    assert f"the architecture of {base} with random weights, trained on MRPC" in body
    assert f"| architecture of | {base} |" in body
    assert "fine-tuned from" not in body
    assert "its base model's text" not in body


@pytest.mark.parametrize(
    ("of_the_task", "of_the_details", "told"),
    [
        ("German", ("de",), ["de"]),
        ("", ("de", "fr"), ["de", "fr"]),
        ("en", ("de",), ["de"]),
        ("de", ("en", "de"), ["de"]),
    ],
)
def test_languages_are_codes_that_the_details_have(of_the_task, of_the_details, told):
    run = evaluation_record(language=of_the_task, benchmark="own")
    details = Details("mit", of_the_details)
    metadata, body = parts(fine_tuned_card([run], run, REPO, details, None, False))
    assert metadata["language"] == told
    assert "Der Koch kochte das Essen." in body


def test_runs_that_do_not_belong_together_are_refused():
    several = runs()
    with pytest.raises(ValueError, match="one task and one model"):
        fine_tuned_card([*several, evaluation_record("rte")], several[0], REPO, DETAILS, None, False)
    with pytest.raises(ValueError, match="seed 9 is published, but it is not among"):
        fine_tuned_card(several, evaluation_record(seed=9), REPO, DETAILS, None, False)


def test_a_record_without_what_a_card_needs_is_refused_by_field():
    record = run_record()
    del record.arguments["training"]["learning_rate"]
    with pytest.raises(ValueError, match=r"field 'arguments\.training\.learning_rate' is missing"):
        tower_card(record, "discriminator", REPO, DETAILS)
    run = dataclasses.replace(evaluation_record(), metrics={"dev": {"accuracy": "high"}})
    with pytest.raises(ValueError, match=r"mrpc, seed 42: field 'metrics\.dev\.accuracy' is \"high\", not a number"):
        tower_card(run_record(), "discriminator", REPO, DETAILS, evaluations=[run])


def test_a_token_in_a_record_stops_the_card():
    with pytest.raises(ValueError, match="must not be published: hf_aB"):
        pair_card(run_record(command="pretrain.py --token hf_" + "aB3xYz" * 6), REPO, DETAILS)


def test_evaluation_files_are_those_of_the_hub():
    files = eval_results_files([*runs("mrpc", (0.6, 0.8, 0.7)), *runs("cola", (None,), metric="matthews")])
    assert files.keys() == {".eval_results/mrpc.yaml"}
    (entry,) = parse_eval_result_entries(yaml.safe_load(files[".eval_results/mrpc.yaml"]))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("nyu-mll/glue", "mrpc", 0.7)
    assert entry.date == "2026-11-21T12:36:28+00:00"
    assert "median of 3 runs" in entry.notes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"license": "Apache 2.0"}, "Perhaps apache-2.0"),
        ({"license": "other"}, "needs license_name and license_link"),
        ({"license_name": "Mine"}, "any other has neither"),
        ({"languages": ()}, "which language"),
        ({"languages": "en"}, "not one string"),
        ({"languages": ("english",)}, "'english' is no language code"),
        ({"datasets": ("/srv/corpus",)}, "'/srv/corpus' is no id of a dataset"),
    ],
)
def test_details_that_the_hub_would_not_know_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Details(**{"license": "mit", "languages": ("en",), **values})


def test_a_licence_of_ones_own_has_name_and_link():
    details = Details("other", ("en",), license_name="mine", license_link="https://example.org/licence")
    metadata, body = parts(pair_card(run_record(), REPO, details))
    assert (metadata["license"], metadata["license_name"]) == ("other", "mine")
    assert "[mine](https://example.org/licence)" in body


def test_cards_need_neither_torch_nor_transformers_nor_a_network():
    code = """
import socket, sys, types
package = types.ModuleType("hf_electra_rtd")  # whose __init__ registers models, and is left out here
package.__path__ = ["src/hf_electra_rtd"]
sys.modules["hf_electra_rtd"] = package
def refuse(*_, **__): raise AssertionError("network")
socket.socket.connect = refuse
from tests.publishing.test_cards import every_card
print(len(list(every_card())), *{"torch", "transformers", "datasets", "matplotlib"} & set(sys.modules))
"""
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert run.returncode == 0, run.stderr
    count, *modules = run.stdout.split(maxsplit=1)
    assert int(count) > 30
    assert modules == []
