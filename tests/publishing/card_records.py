"""Records of a real run and its fine-tunings, with changes."""

import re
from dataclasses import replace
from pathlib import Path

from hf_electra_rtd.base.records import EvaluationRecord, PretrainingRecord
from hf_electra_rtd.publishing.card import CardArguments


CARD = CardArguments(license="apache-2.0", languages=["en"], corpora=["wikimedia/wikipedia"])
RUN = Path(__file__).parents[1] / "fixtures/run_of_tiny"


def tower(**changes):
    """A small configuration with the dropout and the initial weights of the paper's sizes."""
    paper = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
    return {**PretrainingRecord.load(RUN).model["discriminator_config"], **paper, **changes}


def run_record(objective="rtd", size="tiny", training=None, model=None, described=None, **changes):
    """The record of the run, as if it had another objective or size. `described` are flags of the model."""
    record = PretrainingRecord.load(RUN)
    record.arguments["model"] |= {"size": size, **(described or {})}
    record.arguments["training"] |= training or {}
    record.model |= {"objective": objective, **({"generator_config": None} if objective == "mlm" else {})}
    record.model |= model or {}
    return replace(record, **changes)


def evaluation_record(task="mrpc", seed=42, score=0.7, metric="accuracy", model=None, **changes):
    """The record of a fine-tuning run, as if it had been on another task."""
    record = EvaluationRecord.load(RUN / "mrpc")
    facts = {
        "task": task,
        "seed": seed,
        "dataset": {**record.dataset, "title": task.upper(), "config": task},
        "model": {**record.model, "name_or_path": "tiny", **(model or {})},
        "arguments": {**record.arguments, "labels": ["no", "yes"]},
        "metrics": {"dev": {metric: score}},
        "main_metric": metric,
    }
    return replace(record, **{**facts, **changes})


def runs(task="mrpc", scores=(0.7, 0.75, 0.6), **options):
    """The record of a run for each score, with seeds from 42 on."""
    return [evaluation_record(task, 42 + index, score, **options) for index, score in enumerate(scores)]


def code_of(card):
    """The Python in a card, as one text for each block."""
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)
