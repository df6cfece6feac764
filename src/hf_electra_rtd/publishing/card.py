"""Model cards: from records to the text of README.md. The sentences are in `templates/`, the values come from here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from types import SimpleNamespace
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_electra_rtd.base.accounting import format_duration
from hf_electra_rtd.base.cli import flag
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.base.records import (
    EvaluationRecord,
    ExportRecord,
    FractionRecord,
    PretrainingRecord,
    describe_hardware,
)
from hf_electra_rtd.encoders.families import max_length
from hf_electra_rtd.pair.configuration_electra_rtd import OBJECTIVE_TRAITS
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.publishing.tables import TaskResult, limits, markdown_table, results_table, summarize


PACKAGE = "hf-electra-rtd"  # the library of the pair, and a tag of all our models
# For each kind of fine-tuning: the Hub's task (huggingface.js, packages/tasks), the model's class, and what it does.
_KINDS = {
    "classification": ("text-classification", "SequenceClassification", "classifies texts"),
    "multi_label": ("text-classification", "SequenceClassification", "gives texts any number of labels"),
    "regression": ("text-classification", "SequenceClassification", "gives texts a number"),
    "multiple_choice": ("multiple-choice", "MultipleChoice", "chooses between answers"),
    "question_answering": ("question-answering", "QuestionAnswering", "finds answers in a text"),
    "tagging": ("token-classification", "TokenClassification", "labels the words of a text"),
}
# Kinds that are only exported as graphs: networks of a pre-training, and a model without a stock class.
_GRAPHS = {
    "correction": (None, None, "corrects wrong words of a text"),
    "detector": ("token-classification", "TokenClassification", "tells which tokens of a text were replaced"),
    "generator": ("fill-mask", "MaskedLM", "fills masked tokens"),
}
# Tasks that `transformers.pipeline` knows.
_PIPELINES = ("text-classification", "token-classification")
# The Hub's ids of our metrics (hf.co/metrics), where they differ from our names.
_METRICS = {
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "macro_f1": "f1",
    "micro_f1": "f1",
}
# The settings that a card shows, and the values that they have for every size of the paper: defaults of
# `ElectraConfig` and of google-research/electra.
_SETTINGS = (
    "generator",
    "generator_learning_rate",
    "disallow_correct",
    "objective",
    "sharing",
    "generator_hidden_size",
    "generator_weight",
    "discriminator_weight",
    "temperature",
    "freeze_generator",
    "initialization",
    "sequences_per_step",
    "max_steps",
    "max_seq_length",
    "vocab_size",
    "optim",
    "optim_args",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "bias_correction",
    "max_grad_norm",
    "neftune_noise_alpha",
    "mask_probability",
    "keep_probability",
    "masking",
    "hidden_dropout_prob",
    "document_attention",
    "attention_probs_dropout_prob",
    "initializer_range",
    "bf16",
    "fp16",
    "data_seed",
    "seed",
)
_PAPER = {
    "objective": "rtd",
    "optim": "adamw_torch_fused",  # this means `ElectraAdamW`
    "generator": "masked_lm",
    "sharing": "embeddings",
    "temperature": 1,
    "freeze_generator": False,
    "discriminator_weight": 50,
    "masking": "token",
    "document_attention": False,
    "initialization": "stock",
    "initializer_range": 0.02,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "bias_correction": False,
    "vocab_size": 30522,
}
# Flags that name trained networks; and for some parts of a run, the flags that name the network they started from.
_SOURCES = ("continue_from", "generator", "discriminator")
_STARTS = {"generator": ("generator_backbone", "generator"), "pair": ()}
_DETECTS = ("bare", "detector", "labels")  # kinds of parts (`kind_of`)
_NO_SETTINGS = ("labels", "metrics", "lora")  # of a fine-tuning
# The license of the bundled corpus, by the SHA-256 of its text (`data.text.scan`).
_LICENSES = {
    "86e2c05c1b1a744a2bedfedd6c34acbc0b5cd5eeb610177915b133e35fd93e34": (
        "CC BY 4.0: excerpts of the English Novel Corpus (ELTeC-eng), collected by Lou Burnard, COST Action CA16204"
    )
}


@dataclass
class CardArguments:
    """Facts for the model cards."""

    license: str | None = flag(None, "License of the weights, as the Hub names it, such as apache-2.0.")
    languages: list[str] | None = flag(
        None, "Codes of the languages, such as en. Default: that of a fine-tuning's record."
    )
    corpora: list[str] | None = flag(None, "Hub ids of the corpora, such as wikimedia/wikipedia.")


def pretraining_card(
    record: PretrainingRecord,
    part: str,
    repo_id: str,
    card: CardArguments,
    own: Sequence[EvaluationRecord] = (),
    compared: Sequence[EvaluationRecord] = (),
    fraction: FractionRecord | None = None,
    related: Mapping[str, str] | None = None,
    branches: Sequence[str] = (),
) -> str:
    """Returns the card of a part of a run: `discriminator` (the encoder, whatever the objective), `detector`,
    `generator` or `pair`; with `fraction`, that of the branch `step-<N>`. The picture `CURVES_FILE` must lie next to
    it. `own` and `compared` are results of these weights and of other models, `related` the Hub ids of the run's
    parts, and `branches` the branches of its exports."""
    planned = planned_steps(record)
    if fraction and fraction.step == planned:
        fraction = None  # the end of the run
    step = fraction.step if fraction else record.steps
    kind = kind_of(record.model, part)
    family = family_of(record.model)
    is_electra = family == "electra"
    fills = part == "generator" or (part == "discriminator" and record.model["objective"] == "mlm")

    described = record.arguments.get("model", {})
    loaded = {
        name: described[name] for name in (*_SOURCES, *described.get("loaded_backbones", ())) if described.get(name)
    }
    started = list(dict.fromkeys(loaded.values()))
    starts = _STARTS.get(part, ("continue_from", "backbone", "discriminator"))
    # Paths lose their directories in a record, so that a name with a slash is a Hub id.
    base_models = [loaded[name] for name in starts if "/" in loaded.get(name, "")]

    is_named = is_electra and not (started or described.get("model_config") or described.get("backbone"))
    size = described.get("size") if is_named else None
    reference = size if size and SIZES[size].is_published else "small"
    recipe = SIZES[reference].pretraining

    tasks = {run.task for run in own}
    shown = [_named(run, repo_id) for run in own]
    others = [
        _named(run, "the same architecture") if run.model["from_scratch"] else run
        for run in compared
        if run.task in tasks
    ]

    pipeline = None
    if fills:
        pipeline = "fill-mask"
    elif kind == "labels":
        pipeline = "token-classification"
    data = _metadata(
        repo_id,
        card,
        own,
        library_name=PACKAGE if part == "pair" else "transformers",
        pipeline_tag=pipeline,
        tags=[
            family_of(record.model, part),
            PACKAGE,
            "pretraining",
            *([part, "replaced-token-detection"] if kind in _DETECTS else [kind]),
        ],
        datasets=card.corpora,
        base_model=base_models[0] if base_models else None,
    )
    return _render(
        "pretraining.md",
        data,
        record=record,
        part=part,
        kind=kind,
        fills=fills,
        repo_id=repo_id,
        card=card,
        size=size,
        fraction=fraction,
        step=step,
        planned=planned,
        started=started,
        branches=branches,
        related=[other for name, other in (related or {}).items() if name != part],
        tokens=record.tokens * step / record.steps,
        main="encoder" if kind_of(record.model) == "encoder" else "discriminator",
        family="an ELECTRA" if is_electra else f"a `{family}`",
        positions=max_length(SimpleNamespace(**{"model_type": "electra"} | record.model[_config_name(part)])),
        seconds=fraction.train_seconds if fraction else record.train_seconds,
        held_out=_held_out(record, step),
        changes=_changes(record) if step == record.steps else [],
        results=results_table([*shown, *others], published=size is not None) if own else "",
        cautions=_cautions(shown, others),
        settings=_settings(record, reference),
        reference=f"ELECTRA-{reference.capitalize()}" if is_electra else None,
        license_of_text=_license_of_text(record),
        their_tokens=recipe["per_device_train_batch_size"] * recipe["max_steps"] * recipe["max_seq_length"],
    )


def fine_tuned_card(
    records: Sequence[EvaluationRecord],
    repo_id: str,
    card: CardArguments,
    base_model: str | None = None,
    adapter: bool = False,
) -> str:
    """Returns the card of a fine-tuned model, or of LoRA adapters. `records` are the runs of one model on one task;
    the first one made the weights. `base_model` is the Hub id of the model that was fine-tuned, None if it is not on
    the Hub. Raises ValueError for runs of several tasks or models, for adapters without `base_model`, and for a kind
    of model that no stock class loads."""
    run = records[0]
    results = summarize(records)
    if len(results) != 1:
        raise ValueError(
            f"The runs for {repo_id} belong to several tasks or models. Publish one output_dir at a time."
        )
    if adapter and base_model is None:
        raise ValueError(f"{repo_id} holds adapters. Publish their base model first, and pass its id as base_model.")
    if run.kind not in _KINDS:
        raise ValueError(f"{repo_id}: models of the kind {run.kind} are not published: no stock class has their head.")
    task, auto_class, does = _KINDS[run.kind]
    is_electra = "Electra" in run.model["architecture"]
    if card.languages is None and len(run.language) == 2:  # a code, such as `en`
        card = replace(card, languages=[run.language])

    library = "peft" if adapter else "transformers"
    derived = None if run.model["from_scratch"] else base_model
    relation = "adapter" if adapter else "finetune"
    tags = ["electra"] if is_electra else []
    tags.append(PACKAGE)
    if adapter:
        tags.append("lora")
    datasets = filter(None, [run.dataset.get("id"), *(card.corpora or ())])
    data = _metadata(
        repo_id,
        card,
        records,
        library_name=library,
        pipeline_tag=task,
        tags=tags,
        datasets=list(dict.fromkeys(datasets)),
        base_model=derived,
        base_model_relation=None if derived is None else relation,
    )

    cautions = [*_cautions(records, ()), *(f"{run.task}: {limit}." for limit in limits(run))]
    scores = results[0].main
    if len(set(scores)) > 1 and run.score == max(scores):
        cautions.append("This seed has the best score on the examples that chose it: on others, expect the median.")
    named = [_named(record, repo_id) for record in records]
    return _render(
        "fine_tuned.md",
        data,
        run=run,
        does=does,
        repo_id=repo_id,
        card=card,
        base_model=base_model,
        adapter=adapter,
        is_electra=is_electra,
        cautions=cautions,
        runs=results[0].runs,
        model_class=f"AutoModelFor{auto_class}",
        texts=2 if run.kind == "question_answering" else len(run.dataset.get("text_columns") or [""]),
        results=results_table(named, published=False) if len(records) > 1 else "",
        pipeline=task if task in _PIPELINES and not adapter else None,
        settings=_fine_tuning_settings(run),
    )


def export_card(record: ExportRecord, repo_id: str, card: CardArguments) -> str:
    """Returns the card of an exported model."""
    task, auto_class, does = {**_KINDS, **_GRAPHS}[record.kind]
    if record.kind == "multiple_choice":
        auto_class = None  # transformers.js has no such class
    tags = ["electra"] if "Electra" in record.model["architecture"] else []
    data = _metadata(
        repo_id,
        card,
        (),
        library_name="transformers.js" if auto_class else PACKAGE,
        pipeline_tag=task,
        datasets=card.corpora,
        tags=[*tags, PACKAGE, "onnx"],
    )
    return _render(
        "export.md",
        data,
        record=record,
        does=does,
        auto_class=auto_class,
        table=export_table(record),
        repo_id=repo_id,
        card=card,
    )


def export_table(record: ExportRecord) -> str:
    """Returns size, speed and scores of an exported model with each runtime, and the machine, as Markdown."""
    scores = record.dev.get("scores", {})
    classes = record.dev.get("classes", {})
    speeds = record.speed["sentences_per_second"]
    measures: dict[str, dict[str, Any]] = {"MB": record.megabytes, "sentences/s": speeds}
    for metric in scores.get("torch", ()):
        measures[metric] = {runtime: 100 * scores[runtime][metric] for runtime in speeds}
    for label in classes.get("torch", ()):
        for place, metric in enumerate(("precision", "recall", "f1")):
            measures[f"{label}: {metric}"] = {
                runtime: 100 * list(classes[runtime][label].values())[place] for runtime in speeds
            }
    rows = [[name, *(f"{values[runtime]:,.1f}" for runtime in speeds)] for name, values in measures.items()]
    shape = " x ".join(map(str, record.speed["shape"]))
    threads = record.speed["threads"]
    machine = f"{record.hardware['processor']}, {threads} {'threads' if threads > 1 else 'thread'}"
    return f"{markdown_table(['', *speeds], rows)}\n\nSpeed: {machine}, batches of {shape} tokens. Scores x 100."


def kind_of(model: Mapping[str, Any], part: str = "discriminator") -> str:
    """Returns what a part of a pair with this configuration is to its readers. The part `detector` is of the kind
    `labels`, and `generator` and `pair` are their own kinds. The discriminator is an `encoder` if it predicts tokens.
    Otherwise ELECTRA's is a `detector`, or of the kind `energies`; that of another family is the `bare` encoder, whose
    head is in the part `detector`."""
    if part != "discriminator":
        return "labels" if part == "detector" else part
    traits = OBJECTIVE_TRAITS[model["objective"]]
    if traits.predicts != "replaced":
        return "encoder"
    if family_of(model) != "electra":
        return "bare"
    return "energies" if traits.needs_noise else "detector"


def family_of(model: Mapping[str, Any], part: str = "discriminator") -> str:
    """Returns the family (`model_type`) of a part of a pair with this configuration."""
    return str(model[_config_name(part)].get("model_type", "electra"))


def _config_name(part: str) -> str:
    return "generator_config" if part == "generator" else "discriminator_config"


# ---- Rendering ----


@cache
def _environment() -> Any:
    # `ModelCard.from_template` has no filters and imports, and leaves missing values out without an error.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("hf_electra_rtd.publishing")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["picture"] = CURVES_FILE
    environment.filters |= {
        "number": _number,
        "percent": lambda score: "not finite" if score is None else f"{100 * score:.1f}",
        "duration": format_duration,
        "hardware": describe_hardware,
        "plain": lambda text: re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", str(text)),
        "code": _code,
        "prediction": _prediction,
        "link": lambda repo_id: f"[{repo_id}](https://huggingface.co/{repo_id})",
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "pick": lambda values, *keys: [(f"`{key}`", values.get(key)) for key in keys],
        "table": _table_of_values,
    }
    return environment


def _table_of_values(rows: Sequence[Sequence[Any]], *header: str) -> str:
    """Returns a table of the first columns of rows, as many as there are titles. Rows without a value are left out."""
    cells = [[_number(cell) for cell in row[: len(header)]] for row in rows if row[1] not in (None, "")]
    return markdown_table(header, cells)


def _render(template: str, data: ModelCardData, **values: Any) -> str:
    body = _environment().get_template(template).render(**values)
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def _code(text: Any) -> str:
    return "`" + str(text).replace("`", "'").replace("|", "\\|") + "`"


def _prediction(value: Any) -> str:
    """Returns a prediction as text: a label, several labels, or a number."""
    return (", ".join(map(str, value)) or "no label") if isinstance(value, list) else _number(value)


def _number(value: Any) -> str:
    """Returns a number in readable form, such as `14,950,400` or `0.6853`; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# ---- Front matter ----


def _metadata(repo_id: str, card: CardArguments, runs: Sequence[EvaluationRecord], **values: Any) -> ModelCardData:
    """Returns the metadata of a card. It includes the median of each metric on each split, as a fraction or
    correlation, if the dataset is on the Hub and no model predicts a constant."""
    results = []
    for result in _official(runs):
        run = result.runs[0]
        for split, metric in ((split, metric) for split, metrics in run.metrics.items() for metric in metrics):
            scores = result.scores(split, metric)
            is_constant = any(_is_constant(record, split) for record in result.runs)
            if split not in run.dataset["splits"] or not scores or is_constant:
                continue
            results.append(
                EvalResult(
                    task_type=_KINDS[run.kind][0],
                    dataset_type=run.dataset["id"],
                    dataset_name=run.dataset["title"],
                    dataset_config=run.dataset["config"],
                    dataset_split=run.dataset["splits"][split],
                    dataset_revision=run.data.get(split, {}).get("revision"),
                    metric_type=_METRICS.get(metric, metric),
                    metric_name=f"{metric} (median of {len(scores)})",
                    metric_value=median(scores),
                )
            )
    return ModelCardData(
        language=card.languages,
        license=card.license,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=repo_id.rpartition("/")[2] if results else None,
        eval_results=results or None,
        **{name: value for name, value in values.items() if value},
    )


def _official(records: Sequence[EvaluationRecord]) -> list[TaskResult]:
    """Returns the result on each task whose dataset belongs to a benchmark and is on the Hub, from runs on whole
    splits. Raises ValueError for a task whose runs differ in more than their seed: it must be clear which figure is
    published."""
    known = [
        run for run in records if not limits(run) and run.benchmark != "own" and run.dataset.get("id") is not None
    ]
    results: dict[str, TaskResult] = {}
    for result in summarize(_named(run, "the model") for run in known):
        task = result.runs[0].task
        if task in results:
            raise ValueError(
                f"{task}: the runs have different settings: {results[task].model} on {results[task].task}, "
                f"{result.model} on {result.task}. Pass those of one as evaluations, and the others as compared."
            )
        results[task] = result
    return list(results.values())


def _is_constant(run: EvaluationRecord, split: str) -> bool:
    """Returns whether a model predicts the same for every example."""
    return "constant_prediction" in run.reports.get(split, {})


# ---- Values of cards ----


def _held_out(record: PretrainingRecord, step: int) -> dict[str, float]:
    """Returns the held-out metrics of the networks after a step, without `eval_`; empty if there are none."""
    values: dict[str, Any] = {}
    for entry in (*record.curves, {"step": record.steps, **record.metrics}):
        if entry["step"] == step:
            values |= {key: value for key, value in entry.items() if value is not None}
    prefixes = ("eval_generator", "eval_sampled", "eval_replaced", "eval_discriminator", "eval_bigram")
    return {key.removeprefix("eval_"): value for key, value in values.items() if key.startswith(prefixes)}


def _changes(record: PretrainingRecord) -> list[tuple[str, Any, Any, Any, Any]]:
    """Returns rows of metrics for a run that was evaluated before its first step: on new text before and after, and on
    old text before and after."""
    new = record.before_and_after.get("new", {})
    old = record.before_and_after.get("old", {})
    columns = [new.get("before", {}), new.get("after", {}), old.get("before", {}), old.get("after", {})]
    names = [name for name in columns[0] if name not in ("loss", "bigram_auc")]
    return [(f"`{name}`", *(column.get(name, "") for column in columns)) for name in names]


def _settings(record: PretrainingRecord, reference: str) -> list[tuple[str, Any, Any]]:
    """Returns rows of settings: name, value, and the value of the paper for a size if it differs."""
    size = SIZES[reference]
    paper = {
        **_PAPER,
        **size.pretraining,
        "sequences_per_step": size.pretraining["per_device_train_batch_size"],
        "generator_hidden_size": size.generator_hidden_size,
    }
    rows = []
    for name, value in pretraining_settings(record).items():
        differs = paper.get(name, value) != value
        rows.append((f"`{name}`", value, paper[name] if differs else ""))
    return rows


def pretraining_settings(record: PretrainingRecord) -> dict[str, Any]:
    """Returns the settings that decide a run, except its data, its tokenizer and the shapes of its networks. The width
    of the generator is a fraction, as in its flag. Settings that a run does not have are left out."""
    training = record.arguments["training"]
    main = record.model["discriminator_config"]
    generator = record.model["generator_config"]
    here = {
        **record.arguments.get("model", {}),
        **training,
        **record.model,
        **main,
        "max_steps": planned_steps(record),
        "sequences_per_step": record.sequences / record.steps,
        "seed": str(training["seed"]),
    }
    if generator:
        here["generator_hidden_size"] = _hidden_size(generator) / _hidden_size(main)
    return {name: here[name] for name in _SETTINGS if here.get(name) is not None}


def planned_steps(record: PretrainingRecord) -> int:
    """Returns the number of optimizer steps that were planned for a run."""
    return max(record.steps, record.arguments["training"].get("max_steps") or 0)


def _fine_tuning_settings(run: EvaluationRecord) -> list[tuple[str, Any, Any]]:
    """Returns rows of settings: name and value, in the form of `_settings`."""
    arguments = {**run.arguments, **(run.arguments.get("lora") or {})}
    shown = {name: value for name, value in arguments.items() if value not in (None, "", -1)}  # `max_steps` -1: unset
    return [(f"`{name}`", value, "") for name, value in shown.items() if name not in _NO_SETTINGS]


def _hidden_size(config: Mapping[str, Any]) -> int:
    return int(config.get("hidden_size") or config["dim"])  # DistilBERT has the second name


def _license_of_text(record: PretrainingRecord) -> str:
    stated = record.arguments.get("data", {}).get("data_license")
    if stated:
        return str(stated)
    sources = record.data.get("train", {}).get("sources", [])
    licenses = [_LICENSES.get(source.get("sha256"), "not stated") for source in sources]
    return "; ".join(dict.fromkeys(licenses)) or "not stated"


def flag_words(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields the words of a command line for values of flags. A flag whose value is None is left out."""
    for name, value in values.items():
        if value is not None:
            yield f"--{name}"
            for word in value if isinstance(value, (list, tuple)) else [value]:
                yield json.dumps(word) if isinstance(word, dict) else str(word)


def _named(run: EvaluationRecord, name: str) -> EvaluationRecord:
    return replace(run, model={**run.model, "name_or_path": name})


def _cautions(own: Sequence[EvaluationRecord], others: Sequence[EvaluationRecord]) -> list[str]:
    """Returns sentences on how to read weak scores."""
    cautions = []
    scratch = summarize(run for run in others if run.model["from_scratch"])
    random = {(result.benchmark, result.runs[0].task): result.main for result in scratch}
    for result in summarize(own):
        task = result.task
        first = result.runs[0]
        key = (result.benchmark, first.task)
        score = result.figures.get("median", float("nan"))
        constant = sum(any(_is_constant(run, split) for split in run.metrics) for run in result.runs)
        if constant:
            cautions.append(f"{task}: {constant} of {len(result.runs)} models predict the same for every example.")
        elif random.get(key) and score <= median(random[key]):
            cautions.append(f"{task}: not better than the same architecture from random weights.")
        majority = next(iter(first.reports.values()), {}).get("baseline", {}).get("score")
        if majority and score - majority < 0.05:
            cautions.append(
                f"{task}: the median is {100 * score:.1f}; always giving the most frequent label scores "
                f"{100 * majority:.1f}."
            )
        if len(result.runs) == 1:
            cautions.append(f"{task}: one run. Seeds often differ by a point or more: small differences mean nothing.")
    return cautions
