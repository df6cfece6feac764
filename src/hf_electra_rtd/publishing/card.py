"""Model cards: from records to the text of README.md. The sentences are in `templates/`, the values come from here."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from statistics import median
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml

from hf_electra_rtd.cli import flag
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.publishing.tables import TaskResult, markdown_table, results_table, summarize
from hf_electra_rtd.recipes import SIZES
from hf_electra_rtd.records import EvaluationRecord, FractionRecord, PretrainingRecord
from hf_electra_rtd.tasks import BENCHMARKS


CARD_FILE = "README.md"
PACKAGE = "hf-electra-rtd"  # library of the pair, and a tag of all that comes from here
_TAGS = ["electra", PACKAGE, "pretraining"]
_OWN_HEADS = ("PaperElectraForSequenceClassification", "ElectraForAnswerableQuestionAnswering")  # finetuning.heads
# The Hub's task of each kind of fine-tuning (huggingface.js, packages/tasks).
_PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "multiple_choice": "multiple-choice",
    "question_answering": "question-answering",
    "tagging": "token-classification",
}
# The Hub's id (hf.co/metrics) and the usual name of our metrics, where they are not our own name for them.
_METRICS = {
    "matthews": ("matthews_correlation", "Matthews correlation"),
    "pearson": ("pearsonr", "Pearson correlation"),
    "spearman": ("spearmanr", "Spearman correlation"),
    "macro_f1": ("f1", "Macro F1"),
}
# What every size of the paper has: defaults of `ElectraConfig` and of google-research/electra.
_PAPER = {
    **{"objective": "rtd", "bias_correction": False, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    **{"initializer_range": 0.02, "vocab_size": 30522},
}


@dataclass
class CardArguments:
    """What model cards say that no record knows."""

    license: str | None = flag(None, "License of the weights, as the Hub names it, such as apache-2.0.")
    license_name: str | None = flag(None, "With --license other: its name.")
    license_link: str | None = flag(None, "With --license other: where its text is.")
    languages: list[str] | None = flag(None, "Codes of the languages, such as en.")  # noqa: RUF009
    corpora: list[str] | None = flag(None, "Hub ids of the corpora, such as wikimedia/wikipedia.")  # noqa: RUF009
    authors: str = flag("", "Authors of the model, for the citation.")


@dataclass(frozen=True)
class Evaluations:
    """Fine-tuning results of a run's discriminator."""

    final: Sequence[EvaluationRecord] = ()  # of its weights at the end of the run
    fractions: Mapping[int, Sequence[EvaluationRecord]] = field(default_factory=dict)  # of its exports, by step
    compared: Sequence[EvaluationRecord] = ()  # of other models


def pretraining_card(
    record: PretrainingRecord,
    part: str,
    repo_id: str,
    card: CardArguments,
    evaluations: Evaluations | None = None,
    fraction: FractionRecord | None = None,
    *,
    related: Mapping[str, str] | None = None,
    branches: bool = False,
) -> str:
    """The card of a part of a run; the picture `CURVES_FILE` must lie beside it.

    Args:
        part: `discriminator` (the encoder, whatever the objective), `generator` or `pair`.
        fraction: given, the card is that of the branch `step-<N>`, and `evaluations.final` is of these weights.
        related: Hub ids of the run's parts, by part.
        branches: whether the exports at fractions are on the Hub, too.

    Raises:
        ValueError: for evaluations that cannot be summarized.
    """
    model, evaluations = record.model, evaluations or Evaluations()
    planned = max(record.steps, record.arguments["training"].get("max_steps") or 0)
    if fraction and fraction.step == planned:
        fraction = None  # the end of the run
    step = fraction.step if fraction else record.steps
    main = "discriminator" if str(model["objective"]).startswith("rtd") else "encoder"
    kind = {"discriminator": "detector"}.get(main, main) if part == "discriminator" else part
    fills = part == "generator" or (part == "discriminator" and model["objective"] == "mlm")
    described = record.arguments.get("model", {})
    started = [described.get(name) for name in ("generator", "discriminator", "two_stage_from") if described.get(name)]
    size = None if started or described.get("model_config") else described.get("size")
    own = [_named(run, repo_id) for run in evaluations.final]
    others = [run for run in evaluations.compared if run.task in {result.task for result in own}]
    others = [_named(run, "the same architecture") if run.model["from_scratch"] else run for run in others]
    exports = {**evaluations.fractions, **({record.steps: evaluations.final} if own else {})}
    tried = [task for runs in exports.values() for task in {run.task for run in runs}]
    along = [_named(run, f"step {at}") for at in sorted(exports) for run in exports[at] if tried.count(run.task) > 1]
    detection = ["replaced-token-detection"] if kind == "detector" else []
    tokens = record.tokens * step / record.steps
    machines = record.hardware["accelerators"] or [record.hardware["processor"]]
    data = _metadata(
        repo_id,
        card,
        evaluations.final,
        library_name=PACKAGE if part == "pair" else "transformers",
        pipeline_tag="fill-mask" if fills else None,
        tags=[*_TAGS, main if part == "discriminator" else part, *detection],
        datasets=card.corpora,
        co2_eq_emissions=record.emissions
        and {
            "emissions": 1000 * record.emissions["kg_co2_eq"],  # in grams
            "source": record.emissions["source"],
            "training_type": "pre-training",
            "geographical_location": record.emissions["country"],
            "hardware_used": f"{len(machines)} x {machines[0]}",
        },
    )
    return _render(
        "pretraining.md",
        data,
        record=record,
        **{"part": part, "kind": kind, "main": main, "fills": fills, "repo_id": repo_id, "card": card},
        related={name: other for name, other in (related or {}).items() if name != part},
        branches=[f"`step-{entry['step']}`" for entry in record.fractions] if branches else [],
        picture=CURVES_FILE,
        started=list(dict.fromkeys(started)),
        **{"size": size, "fraction": fraction, "step": step, "planned": planned, "tokens": tokens},
        seconds=fraction.train_seconds if fraction else record.train_seconds,
        held_out=_held_out(record, step),
        results=results_table([*own, *others], published=size is not None) if own else "",
        cautions=_cautions(own, others),
        along=results_table(along, published=False, spread=False) if along else "",
        deviations=_deviations(record, size, planned),
        reference=_reference(size, tokens),
    )


def fine_tuned_card(
    records: Sequence[EvaluationRecord],
    repo_id: str,
    card: CardArguments,
    base_model: str | None = None,
    adapter: bool = False,
) -> str:
    """The card of a fine-tuned model, or of LoRA adapters. `model-index` has the medians over seeds.

    Args:
        records: the runs of one model on one task; the first is the one whose weights are published.
        base_model: Hub id of what was fine-tuned; None where it is not on the Hub.

    Raises:
        ValueError: for runs of several tasks or models, or adapters without a base model.
    """
    run, results = records[0], summarize(records)
    if len(results) != 1:
        raise ValueError(f"The runs for {repo_id} are of several tasks or models. Publish one --output_dir at a time.")
    if adapter and base_model is None:
        raise ValueError(f"{repo_id} holds adapters. Publish their base model first, and pass its id as --base_model.")
    architecture = run.model["architecture"]
    own_head, is_electra = architecture in _OWN_HEADS, "Electra" in architecture
    derived = None if run.model["from_scratch"] else base_model
    languages = card.languages or ([run.language] if len(run.language) == 2 else [])  # a code, such as `en`
    card = replace(card, languages=[run.language] if run.language in languages else languages or None)
    data = _metadata(
        repo_id,
        card,
        records,
        library_name=PACKAGE if own_head else "peft" if adapter else "transformers",
        pipeline_tag=None if own_head else _PIPELINES[run.kind],
        tags=[*(["electra"] if is_electra else []), PACKAGE, *(["lora"] if adapter else [])],
        datasets=[run.dataset["id"]] if run.dataset.get("id") else None,
        base_model=derived,
        base_model_relation=derived and ("adapter" if adapter else "finetune"),
    )
    scales = [task.label_scale for task in BENCHMARKS.get(run.benchmark, ()) if task.name == run.task]
    return _render(
        "fine_tuned.md",
        data,
        run=run,
        runs=sorted(records, key=lambda other: other.seed),
        language=(card.languages or ["en"])[0],
        **{"repo_id": repo_id, "card": card, "base_model": base_model},
        **{"adapter": adapter, "own_head": own_head, "is_electra": is_electra},
        texts=2 if run.kind == "question_answering" else len(run.dataset.get("text_columns") or [""]),
        label_scale=scales[0] if scales else 1,
        results=results_table([_named(r, repo_id) for r in records], published=False) if len(records) > 1 else "",
        is_best=len(set(results[0].main)) > 1 and run.score == max(results[0].main),
        cautions=_cautions(records, ()),
    )


def model_card(config: Mapping[str, Any], repo_id: str) -> str:
    """The card of a pair of which only its configuration (`config.to_dict()`) is known."""
    data = _metadata(repo_id, CardArguments(), (), library_name=PACKAGE, tags=_TAGS)
    return _render("model.md", data, model=config, repo_id=repo_id)


def eval_results_files(records: Sequence[EvaluationRecord]) -> dict[str, bytes]:
    """The Hub's files of evaluation results, by path: for each task whose dataset is on the Hub, the median of the
    main metric. The Hub shows them where the dataset is registered as a benchmark."""
    files = {}
    for result, run in _official(records):
        if result.main:
            split = next(iter(result.scores))
            entry = EvalResultEntry(
                dataset_id=run.dataset["id"],
                task_id=run.dataset["config"] or run.task,
                value=median(result.main),
                dataset_revision=run.data.get(split, {}).get("revision"),
                date=run.finished,
                notes=f"{_metric(result.main_metric)[1]}, split {run.dataset['splits'].get(split, split)}, "
                f"{_runs(result.main)}; model of a run: {run.selection}",
            )
            text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True)
            files[f".eval_results/{run.task}.yaml"] = text.encode()
    return files


# ---- Rendering ----


def _render(template: str, data: ModelCardData, **values: Any) -> str:
    body = _environment().get_template(template).render(**values)
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


@functools.cache
def _environment() -> Any:
    # `ModelCard.from_template` knows no filters and imports, and shows nothing in place of a value that is missing.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("hf_electra_rtd.publishing")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": _number,
        "duration": lambda seconds: str(timedelta(seconds=round(seconds))),
        "plain": lambda text: "".join(f"\\{sign}" if sign in "\\`*_[]<>|~" else sign for sign in str(text)),
        "code": lambda text: "`" + str(text).replace("`", "'").replace("|", "\\|") + "`",
        "link": lambda repo_id: f"[{repo_id}](https://huggingface.co/{repo_id})",
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "pick": lambda values, *keys: [(f"`{key}`", values.get(key)) for key in keys],
        "table": lambda rows, *header: markdown_table(
            header, [[_number(cell) for cell in row] for row in rows if row[-1] is not None and row[-1] != ""]
        ),
    }
    return environment


def _number(value: Any) -> str:
    """A number for people, such as `14,950,400` or `0.6853`; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# ---- Front matter ----


def _metadata(repo_id: str, card: CardArguments, runs: Sequence[EvaluationRecord], **values: Any) -> ModelCardData:
    results = _model_index(runs)
    values |= {name: getattr(card, name) for name in ("license", "license_name", "license_link")}
    return ModelCardData(
        language=card.languages,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=repo_id.rpartition("/")[2] if results else None,
        eval_results=results or None,
        **{name: value for name, value in values.items() if value},
    )


def _model_index(records: Sequence[EvaluationRecord]) -> list[EvalResult]:
    """The median of each metric on each split, as a fraction or correlation, where the dataset is on the Hub."""
    return [
        EvalResult(
            task_type=_PIPELINES[run.kind],
            dataset_type=run.dataset["id"],
            dataset_name=run.dataset["title"],
            dataset_config=run.dataset["config"],
            dataset_split=run.dataset["splits"][split],
            dataset_revision=run.data.get(split, {}).get("revision"),
            metric_type=_metric(metric)[0],
            metric_name=f"{_metric(metric)[1]} ({_runs(scores)})",
            metric_value=median(scores),
        )
        for result, run in _official(records)
        for split, metrics in result.scores.items()
        for metric, scores in metrics.items()
        if split in run.dataset["splits"]
    ]


def _official(records: Sequence[EvaluationRecord]) -> list[tuple[TaskResult, EvaluationRecord]]:
    """The result on each task whose dataset belongs to a benchmark and is on the Hub, with one of its runs."""
    runs = {(run.benchmark, run.task): run for run in records if run.benchmark != "own" and run.dataset.get("id")}
    results = {(result.benchmark, result.task): result for result in summarize(records)}
    return [(results[key], run) for key, run in runs.items()]


def _runs(scores: Sequence[float]) -> str:
    return "1 fine-tuning run" if len(scores) == 1 else f"median of {len(scores)} fine-tuning runs"


def _metric(metric: str) -> tuple[str, str]:
    return _METRICS.get(metric, (metric, metric.replace("_", " ").capitalize()))


# ---- Values of cards ----


def _held_out(record: PretrainingRecord, step: int) -> dict[str, float]:
    """Held-out metrics of the objective after a step, without `eval_`; empty where there are none."""
    entries = [entry for entry in [*record.curves, {"step": record.steps, **record.metrics}] if entry["step"] == step]
    return {
        key.removeprefix("eval_"): value
        for entry in entries
        for key, value in entry.items()
        if key.startswith(("eval_generator", "eval_sampled", "eval_replaced", "eval_discriminator", "eval_copy"))
        and value is not None
    }


def _reference(size: str | None, tokens: float) -> tuple[str, float] | None:
    """Name and training tokens of the published model to compare with; None if it has not seen twice as many."""
    name = size if size and SIZES[size].is_published else "small"
    recipe = SIZES[name].pretraining
    theirs = recipe["per_device_train_batch_size"] * recipe["max_steps"] * recipe["max_seq_length"]
    return (f"ELECTRA-{name.capitalize()}", theirs) if theirs > 2 * tokens else None


def _deviations(record: PretrainingRecord, size: str | None, planned: int) -> list[tuple[str, Any, Any]]:
    """The settings that differ from the paper's: name, here, there."""
    model, args, main = record.model, record.arguments["training"], record.model["discriminator_config"]
    paper: dict[str, Any] = dict(_PAPER)
    if size and SIZES[size].is_published:
        paper |= {**SIZES[size].pretraining, "generator_hidden_size": SIZES[size].generator_hidden_size}
    if model["generator_config"]:
        paper |= {"sharing": "embeddings", "temperature": 1, "discriminator_weight": 50}
    batch_size = record.sequences / record.steps
    here = {**args, **model, **main, "per_device_train_batch_size": batch_size, "max_steps": planned}
    if model["generator_config"] and main.get("hidden_size"):
        here["generator_hidden_size"] = model["generator_config"]["hidden_size"] / main["hidden_size"]
    keys = [key for key in paper if key in here and not key.startswith(("logging", "eval", "save", "per_device_eval"))]
    return [(f"`{key}`", here[key], paper[key]) for key in keys if here[key] != paper[key]]


def _named(run: EvaluationRecord, name: str) -> EvaluationRecord:
    return replace(run, model={**run.model, "name_or_path": name})


def _cautions(
    own: Sequence[EvaluationRecord], others: Sequence[EvaluationRecord]
) -> list[tuple[str, str, tuple[float, ...]]]:
    """How weak scores are to be read: task, key of a sentence in the templates, and its values."""
    random = {result.task: result.main for result in summarize(run for run in others if run.model["from_scratch"])}
    majorities = {task.name: task.majority for tasks in BENCHMARKS.values() for task in tasks}
    cautions: list[tuple[str, str, tuple[float, ...]]] = []
    for result in summarize(own):
        score = median(result.main) if result.main else float("nan")
        majority = majorities.get(result.task, 0.0) if result.main_metric == "accuracy" else 0.0
        if result.main_metric == "matthews" and score == 0:
            cautions.append((result.task, "constant", ()))
        elif random.get(result.task) and score <= median(random[result.task]):
            cautions.append((result.task, "random", ()))
        if majority and score - majority < 0.05:
            cautions.append((result.task, "majority", (100 * score, 100 * majority)))
        if len(result.seeds) == 1:
            cautions.append((result.task, "single", ()))
    return cautions
