"""Compares pre-trainings: runs that differ only in their seed are one row, with means and 95 % intervals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_electra_rtd.base.records import PretrainingRecord
from hf_electra_rtd.publishing.card import pretraining_settings
from hf_electra_rtd.publishing.tables import (
    HASH_DIGITS,
    apart,
    check_seeds,
    different,
    markdown_table,
    mean_and_interval,
    typed,
    with_details,
)


# Columns of the table: title, and the held-out metric.
COLUMNS = {
    "generator loss": "eval_generator_loss",
    "generator accuracy": "eval_generator_accuracy",
    "replaced": "eval_replaced_share",
    "AUC": "eval_discriminator_auc",
    "bigram's AUC": "eval_bigram_auc",
    "masked tokens right": "eval_discriminator_masked_accuracy",
    "all tokens right": "eval_discriminator_token_accuracy",
}
# Settings in addition to `pretraining_settings`: flags, and fields of each network's configuration.
_STARTS = (
    "continue_from",
    "new_generator",
    "backbone",
    "generator_backbone",
    "discriminator",
    "from_scratch",
)
_SHAPE = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "embedding_size",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    # as DistilBERT calls them
    "n_layers",
    "dim",
    "n_heads",
    "hidden_dim",
    "activation",
)
_LEFT_OUT = ("seed", "vocab_size")  # the hash of the tokenizer says more
# If rows differ in one of these settings, the caption describes it.
_DATA = ("data", "tokenizer")


@dataclass(frozen=True)
class Pretraining:
    """Runs that differ only in their seed."""

    name: str  # its objective, and the settings in which it differs from the others
    runs: list[PretrainingRecord]  # by seed

    @property
    def seeds(self) -> list[int]:
        return [_seed(run) for run in self.runs]

    @property
    def metrics(self) -> dict[str, list[float]]:
        """The finite values of each metric at the end of the runs."""
        names = dict.fromkeys(name for run in self.runs for name in run.metrics)
        values = {name: [run.metrics.get(name) for run in self.runs] for name in names}
        return {name: [value for value in of_runs if value is not None] for name, of_runs in values.items()}


def pool(records: Iterable[PretrainingRecord]) -> list[Pretraining]:
    """Groups runs by their settings. Each group is named by the settings that differ. Raises ValueError for two runs
    of a group with the same seed."""
    groups: dict[str, list[PretrainingRecord]] = {}
    for record in records:
        groups.setdefault(json.dumps(_settings(record), sort_keys=True), []).append(record)
    settings = [json.loads(key) for key in groups]
    names = different(settings)
    pooled = []
    for of_group, runs in zip(settings, groups.values(), strict=True):
        name = with_details(of_group["objective"], apart(of_group, names - {"objective"}))
        pooled.append(Pretraining(name, sorted(runs, key=_seed)))
        check_seeds(name, pooled[-1].seeds)
    return pooled


def _seed(record: PretrainingRecord) -> int:
    return int(record.arguments["training"]["seed"])


def _settings(record: PretrainingRecord) -> dict[str, str]:
    """Returns the settings that decide a run's result, except its seed, as they would be typed. Settings that are not
    set or off are left out."""
    flags = record.arguments.get("model", {})
    settings = {**pretraining_settings(record), **{name: flags.get(name) for name in _STARTS}}
    settings["trained generator"] = flags.get("generator")
    for network in ("generator", "discriminator"):
        config = record.model.get(f"{network}_config") or {}
        settings |= {f"{network}'s {name}": config.get(name) for name in _SHAPE}
    texts = [_text(header) for header in record.data.values()]
    settings["data"] = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]
    settings["tokenizer"] = str(next(iter(record.data.values()), {}).get("tokenizer_hash"))[:HASH_DIGITS]
    words = {name: typed(value) for name, value in settings.items() if name not in _LEFT_OUT}
    return {name: word for name, word in words.items() if word}


def _text(header: Mapping[str, Any]) -> Any:
    """Returns what identifies the text of a block file and how it was cut. The seed, which also draws the documents to
    hold out, is left out."""
    sources = [[source.get("sha256"), source.get("weight")] for source in header.get("sources", [])]
    recipe = {name: value for name, value in header.get("recipe", {}).items() if name != "seed"}
    if not sources:
        return header.get("sha256")
    return [sources, header.get("max_seq_length"), header.get("packing"), header.get("word_segmenter"), recipe]


# ---- The table ----


def _cell(values: Sequence[float], digits: int = 3) -> str:
    if not values:
        return ""
    mean, half = mean_and_interval(values)
    return f"{mean:.{digits}f}" if np.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"


def pretraining_table(pretrainings: Sequence[Pretraining]) -> str:
    """Returns a Markdown table with a caption. A row is a pre-training; it has the mean of each held-out metric at the
    end, and half of its 95 % interval over seeds."""
    there = {name for pretraining in pretrainings for name, values in pretraining.metrics.items() if values}
    columns = {title: name for title, name in COLUMNS.items() if name in there}
    rows = []
    for pretraining in pretrainings:
        metrics = pretraining.metrics
        tokens = [run.tokens / 1e6 for run in pretraining.runs]
        minutes = [run.train_seconds / 60 for run in pretraining.runs]
        cells = [_cell(metrics.get(name, [])) for name in columns.values()]
        seeds = ", ".join(map(str, pretraining.seeds))
        rows.append([pretraining.name, seeds, f"{np.mean(tokens):.2f} M", *cells, _cell(minutes, 1)])
    header = ["pre-training", "seeds", "tokens", *columns, "minutes"]
    return markdown_table(header, rows) + "\n\n" + "  \n".join(_caption(pretrainings)) + "\n"


def _caption(pretrainings: Sequence[Pretraining]) -> list[str]:
    sentences = ["Held out, at the end of a run. From two seeds on: mean ± half of its 95 % interval over seeds."]
    if len(pretrainings) > 1:
        sentences.append("An AUC is for samples of a row's own generator: better samples are harder to find.")
    objectives = {pretraining.runs[0].model["objective"] for pretraining in pretrainings}
    if len(objectives) > 1 and "rtd_masked_only" in objectives:
        sentences.append("The AUC of rtd_masked_only is over the masked positions. Other objectives count all tokens.")
    settings = [_settings(pretraining.runs[0]) for pretraining in pretrainings]
    for name in _DATA:
        if name in different(settings):
            sentences.append(f"Rows differ in their {name}: losses of such rows do not compare.")
            runs = {of_row[name]: each.runs[0] for of_row, each in zip(settings, pretrainings, strict=True)}
            sentences += [f"{name} {value}: {_described(name, run)}." for value, run in runs.items()]
    return sentences


def _described(name: str, record: PretrainingRecord) -> str:
    header = record.data.get("train", {})
    if name == "tokenizer":
        return f"{header.get('vocab_size', 0):,} tokens"
    files = ", ".join(str(source.get("name")) for source in header.get("sources", [])) or "no named files"
    return f"{files}, {header.get('num_tokens', 0) / 1e6:,.1f} M tokens"
