"""Model cards: from records to the text of README.md. The sentences are in `templates/`, the values come from here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from types import SimpleNamespace
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_electra_rtd.accounting import format_duration
from hf_electra_rtd.cli import flag
from hf_electra_rtd.configuration_electra_rtd import OBJECTIVE_TRAITS
from hf_electra_rtd.families import max_length
from hf_electra_rtd.files import reading
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.publishing.tables import TaskResult, limits, markdown_table, results_table, summarize
from hf_electra_rtd.recipes import SIZES
from hf_electra_rtd.records import EvaluationRecord, ExportRecord, FractionRecord, PretrainingRecord
from hf_electra_rtd.tasks import BENCHMARKS


PROJECT_URL = "https://example.org/hf-electra-rtd"  # a placeholder until the project has an address
PACKAGE = "hf-electra-rtd"  # library of the pair, and a tag of all that comes from here
# Of each kind of fine-tuning: the Hub's task (huggingface.js, packages/tasks), the model's class, and what it does.
_KINDS = {
    "classification": ("text-classification", "SequenceClassification", "classifies texts"),
    "multi_label": ("text-classification", "SequenceClassification", "gives texts any number of labels"),
    "regression": ("text-classification", "SequenceClassification", "gives texts a number"),
    "multiple_choice": ("multiple-choice", "MultipleChoice", "chooses between answers"),
    "question_answering": ("question-answering", "QuestionAnswering", "finds answers in a text"),
    "tagging": ("token-classification", "TokenClassification", "labels the words of a text"),
}
# What is published as a graph only: the networks of a pre-training, and a model that no stock class is.
_GRAPHS = {
    "correction": (None, None, "corrects wrong words of a text"),
    "detector": ("token-classification", "TokenClassification", "tells which tokens of a text were replaced"),
    "generator": ("fill-mask", "MaskedLM", "fills masked tokens"),
}
# The Hub's ids of our metrics (hf.co/metrics), where they are not our own name for them.
_METRICS = {
    **{"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"},
    **dict.fromkeys(("macro_f1", "micro_f1"), "f1"),
}
# The settings that a card shows, and those that every size of the paper has: defaults of `ElectraConfig` and of
# google-research/electra.
_SETTINGS = """
generator generator_objective generator_learning_rate clip_separately objective sharing generator_hidden_size
generator_weight discriminator_weight temperature freeze_generator temperature_schedule temperature_start
temperature_decay initialization sequences_per_step max_steps max_seq_length vocab_size learning_rate lr_scheduler_type
warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon bias_correction max_grad_norm mask_probability
keep_probability masking hidden_dropout_prob confusion_file confusion_share document_attention
attention_probs_dropout_prob initializer_range bf16 fp16 seed
"""
_PAPER = {
    **{"objective": "rtd", "initialization": "stock", "bias_correction": False, "hidden_dropout_prob": 0.1},
    **{"attention_probs_dropout_prob": 0.1, "initializer_range": 0.02, "vocab_size": 30522, "sharing": "embeddings"},
    **{"masking": "token", "document_attention": False, "generator": "masked_lm", "generator_objective": "mle"},
    **{"temperature": 1, "discriminator_weight": 50, "freeze_generator": False, "temperature_schedule": "constant"},
}
# Flags that name networks that were trained before; and those whose network a part of the run began as.
_SOURCES = ("continue_from", "generator", "discriminator", "two_stage_from")
_STARTS = {"generator": ("generator_backbone", "generator"), "pair": ()}
_DETECTS = ("bare", "detector", "labels")  # kinds, see `kind_of`
# Training arguments that the command of a card has, beyond `_SETTINGS`.
_FLAGS = f"""{_SETTINGS} per_device_train_batch_size gradient_accumulation_steps optim checkpoint_fractions data_seed
shuffle_window"""
_NO_FLAGS = ("overwrite_output_dir", "num_proc", "loaded_backbones")
# Where the bundled corpus lies in a clone and whom it is from, by the SHA-256 of its text (`data.text.scan`).
_BUNDLED = {
    "86e2c05c1b1a744a2bedfedd6c34acbc0b5cd5eeb610177915b133e35fd93e34": (
        "examples/data/eltec_eng_excerpts.txt.gz",
        "CC BY 4.0: excerpts of the English Novel Corpus (ELTeC-eng), collected by Lou Burnard, COST Action CA16204",
    )
}


@dataclass
class CardArguments:
    """What model cards say that no record knows."""

    license: str | None = flag(None, "License of the weights, as the Hub names it, such as apache-2.0.")
    languages: list[str] | None = flag(None, "Codes of the languages, such as en.")
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
    """The card of a part of a run: `discriminator` (the encoder, whatever the objective), `detector`, `generator` or
    `pair`; with a fraction, of the branch `step-<N>`. The picture `CURVES_FILE` must lie beside it. `own` and
    `compared` are results of these weights and of other models, `related` the Hub ids of the run's parts, `branches`
    those of its exports."""
    planned = max(record.steps, record.arguments["training"].get("max_steps") or 0)
    if fraction and fraction.step == planned:
        fraction = None  # the end of the run
    step = fraction.step if fraction else record.steps
    kind, family = kind_of(record.model, part), family_of(record.model)
    is_electra = family == "electra"
    fills = part == "generator" or (part == "discriminator" and record.model["objective"] == "mlm")
    described = record.arguments.get("model", {})
    sources = (*_SOURCES, *described.get("loaded_backbones", ()))
    loaded = {name: described[name] for name in sources if described.get(name)}
    started = list(loaded.values())
    size = None if started or described.get("model_config") or not is_electra else described.get("size")
    reference = size if size and SIZES[size].is_published else "small"
    starts = _STARTS.get(part, ("continue_from", "backbone", "discriminator"))
    recipe, tasks = SIZES[reference].pretraining, {run.task for run in own}
    shown = [_named(run, repo_id) for run in own]
    others = [run for run in compared if run.task in tasks]
    others = [_named(run, "the same architecture") if run.model["from_scratch"] else run for run in others]
    tags = [part, "replaced-token-detection"] if kind in _DETECTS else [kind]
    data = _metadata(
        repo_id,
        card,
        own,
        library_name=PACKAGE if part == "pair" else "transformers",
        pipeline_tag="fill-mask" if fills else "token-classification" if kind == "labels" else None,
        tags=[family_of(record.model, part), PACKAGE, "pretraining", *tags],
        datasets=card.corpora,
        # A path has lost its directories in the record, so that an id is told by its owner.
        base_model=next((name for flag in starts if "/" in (name := loaded.get(flag, ""))), None),
    )
    return _render(
        "pretraining.md",
        data,
        **{"record": record, "part": part, "kind": kind, "fills": fills, "repo_id": repo_id, "card": card},
        **{"size": size, "fraction": fraction, "step": step, "planned": planned, "started": started},
        **{"branches": branches, "related": [other for name, other in (related or {}).items() if name != part]},
        tokens=record.tokens * step / record.steps,
        main="encoder" if kind_of(record.model) == "encoder" else "discriminator",
        family="an ELECTRA" if is_electra else f"a `{family}`",
        positions=max_length(SimpleNamespace(**{"model_type": "electra"} | record.model[_config_name(part)])),
        seconds=fraction.train_seconds if fraction else record.train_seconds,
        held_out=_held_out(record, step),
        changes=_changes(record) if step == record.steps else [],
        results=results_table([*shown, *others], published=size is not None) if own else "",
        cautions=_cautions(shown, others),
        settings=[row if is_electra else row[:2] for row in _settings(record, reference, planned)],
        reference=f"ELECTRA-{reference.capitalize()}" if is_electra else None,
        license_of_text=_license_of_text(record),
        command=_command(record),
        their_tokens=recipe["per_device_train_batch_size"] * recipe["max_steps"] * recipe["max_seq_length"],
    )


def fine_tuned_card(
    records: Sequence[EvaluationRecord],
    repo_id: str,
    card: CardArguments,
    base_model: str | None = None,
    adapter: bool = False,
) -> str:
    """The card of a fine-tuned model, or of LoRA adapters, from the runs of one model on one task, the first of which
    made the weights. `base_model` is the Hub id of what was fine-tuned, None where it is not on the Hub."""
    run, results = records[0], summarize(records)
    if len(results) != 1:
        raise ValueError(f"The runs for {repo_id} are of several tasks or models. Publish one --output_dir at a time.")
    if adapter and base_model is None:
        raise ValueError(f"{repo_id} holds adapters. Publish their base model first, and pass its id as --base_model.")
    own_head = str(run.model.get("module")).startswith("hf_electra_rtd.")
    is_electra = "Electra" in run.model["architecture"]
    derived = None if run.model["from_scratch"] else base_model
    kind = "label words" if run.arguments.get("label_words") else run.kind
    if kind not in _KINDS:
        raise ValueError(f"{repo_id}: models of the kind {kind} are not published: no stock class has their head.")
    task, auto_class, does = _KINDS[kind]
    if len(run.language) == 2:  # a code, such as `en`
        card = replace(card, languages=[run.language])
    data = _metadata(
        repo_id,
        card,
        records,
        library_name=PACKAGE if own_head else "peft" if adapter else "transformers",
        pipeline_tag=None if own_head else task,
        tags=[*(["electra"] if is_electra else []), PACKAGE, *(["lora"] if adapter else [])],
        datasets=list(dict.fromkeys(filter(None, [run.dataset.get("id"), *(card.corpora or ())]))),
        base_model=derived,
        base_model_relation=derived and ("adapter" if adapter else "finetune"),
    )
    cautions = [*_cautions(records, ()), *(f"{run.task}: {limit}." for limit in limits(run))]
    if len(set(results[0].main)) > 1 and run.score == max(results[0].main):
        cautions.append("This seed has the best score on the examples that chose it: on others, expect the median.")
    return _render(
        "fine_tuned.md",
        data,
        **{"run": run, "does": does, "repo_id": repo_id, "card": card, "base_model": base_model, "adapter": adapter},
        **{"own_head": own_head, "is_electra": is_electra, "cautions": cautions, "runs": results[0].runs},
        model_class=run.model["architecture"] if own_head else f"AutoModelFor{auto_class}",
        texts=2 if run.kind == "question_answering" else len(run.dataset.get("text_columns") or [""]),
        results=results_table([_named(r, repo_id) for r in records], published=False) if len(records) > 1 else "",
    )


def export_card(record: ExportRecord, repo_id: str, card: CardArguments) -> str:
    """The card of an exported model."""
    task, auto_class, does = {**_KINDS, **_GRAPHS}[record.kind]
    tags = [*(["electra"] if "Electra" in record.model["architecture"] else []), PACKAGE, "onnx"]
    library = "transformers.js" if auto_class else PACKAGE
    data = _metadata(repo_id, card, (), library_name=library, pipeline_tag=task, tags=tags)
    values = {"record": record, "does": does, "auto_class": auto_class, "table": export_table(record)}
    return _render("export.md", data, repo_id=repo_id, card=card, **values)


def export_table(record: ExportRecord) -> str:
    """Size, speed and scores of an exported model by each runtime, and the machine, as Markdown."""
    scores, classes = record.dev.get("scores", {}), record.dev.get("classes", {})
    names = list(record.speed["sentences_per_second"])
    measures: dict[str, dict[str, Any]] = {
        "MB": record.megabytes,
        "sentences/s": record.speed["sentences_per_second"],
        **{name: {run: 100 * scores[run][name] for run in names} for name in scores.get("torch", ())},
    }
    for label in classes.get("torch", ()):
        for place, name in enumerate(("precision", "recall", "f1")):
            measures[f"{label}: {name}"] = {run: 100 * [*classes[run][label].values()][place] for run in names}
    rows = [[name, *(f"{of[run]:,.1f}" for run in names)] for name, of in measures.items()]
    shape, threads = " x ".join(map(str, record.speed["shape"])), record.speed["threads"]
    machine = f"{record.hardware['processor']}, {threads} thread{'s' if threads > 1 else ''}"
    return f"{markdown_table(['', *names], rows)}\n\nSpeed: {machine}, batches of {shape} tokens. Scores x 100."


def kind_of(model: Mapping[str, Any], part: str = "discriminator") -> str:
    """What a part of a pair with this configuration is, for its readers. The discriminator is an `encoder` that
    predicts tokens; of ELECTRA a `detector`, or one of `energies`; else the `bare` encoder, whose head is in the part
    `detector`, of the kind `labels`."""
    if part != "discriminator":
        return "labels" if part == "detector" else part
    traits = OBJECTIVE_TRAITS[model["objective"]]
    if traits.predicts != "replaced":
        return "encoder"
    return "bare" if family_of(model) != "electra" else "energies" if traits.needs_noise else "detector"


def family_of(model: Mapping[str, Any], part: str = "discriminator") -> str:
    """The family (`model_type`) of a part of a pair with this configuration."""
    return str(model[_config_name(part)].get("model_type", "electra"))


def _config_name(part: str) -> str:
    return "generator_config" if part == "generator" else "discriminator_config"


# ---- Rendering ----


@cache
def _environment() -> Any:
    # `ModelCard.from_template` knows no filters and imports, and shows nothing in place of a value that is missing.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("hf_electra_rtd.publishing")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"project_url": PROJECT_URL, "picture": CURVES_FILE}
    environment.filters |= {
        "number": _number,
        "percent": lambda score: "not finite" if score is None else f"{100 * score:.1f}",
        "duration": format_duration,
        "plain": lambda text: "".join(f"\\{sign}" if sign in "\\`*_[]<>|~" else sign for sign in str(text)),
        "code": lambda text: "`" + str(text).replace("`", "'").replace("|", "\\|") + "`",
        "link": lambda repo_id: f"[{repo_id}](https://huggingface.co/{repo_id})",
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "pick": lambda values, *keys: [(f"`{key}`", values.get(key)) for key in keys],
        "table": lambda rows, *header: markdown_table(
            header, [[_number(cell) for cell in row] for row in rows if row[1] not in (None, "")]
        ),
    }
    return environment


def _render(template: str, data: ModelCardData, **values: Any) -> str:
    record = values.get("record") or values.get("run")
    # Records hold dicts whose values are not checked when they are read.
    with reading(f"{record.FILE if record else 'The configuration'} of {values['repo_id']}", "Restore the file."):
        body = _environment().get_template(template).render(**values)
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def _number(value: Any) -> str:
    """A number for people, such as `14,950,400` or `0.6853`; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# ---- Front matter ----


def _metadata(repo_id: str, card: CardArguments, runs: Sequence[EvaluationRecord], **values: Any) -> ModelCardData:
    """With the median of each metric on each split, as a fraction or correlation, where the dataset is on the Hub."""
    results = [
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
        for result, run in ((result, result.runs[0]) for result in _official(runs))
        for split, metrics in run.metrics.items()
        for metric in metrics
        if split in run.dataset["splits"] and (scores := result.scores(split, metric))
    ]
    return ModelCardData(
        language=card.languages,
        license=card.license,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=repo_id.rpartition("/")[2] if results else None,
        eval_results=results or None,
        **{name: value for name, value in values.items() if value},
    )


def _official(records: Sequence[EvaluationRecord]) -> list[TaskResult]:
    """The result on each task whose dataset belongs to a benchmark and is on the Hub, of whole splits. A ValueError
    for a task whose runs differ in more than their seed: which figure is published must not be left open."""
    results: dict[str, TaskResult] = {}
    whole = (run for run in records if not run.arguments.get("max_eval_samples"))
    for result in summarize(_named(run, "the model") for run in whole):
        if result.benchmark != "own" and result.runs[0].dataset.get("id"):
            if result.task in results:
                both = f"{results[result.task].model}, {result.model}"
                remedy = "Pass those of one with --evaluations, and the others with --compared"
                raise ValueError(f"{result.task}: the runs are of several settings: {both}. {remedy}.")
            results[result.task] = result
    return list(results.values())


# ---- Values of cards ----


def _held_out(record: PretrainingRecord, step: int) -> dict[str, float]:
    """Held-out metrics of the objective after a step, without `eval_`; empty where there are none."""
    entries = [entry for entry in [*record.curves, {"step": record.steps, **record.metrics}] if entry["step"] == step]
    values = {key: value for entry in entries for key, value in entry.items() if value is not None}
    prefixes = ("eval_generator", "eval_sampled", "eval_replaced", "eval_discriminator", "eval_bigram")
    return {key.removeprefix("eval_"): value for key, value in values.items() if key.startswith(prefixes)}


def _changes(record: PretrainingRecord) -> list[tuple[str, Any, Any, Any, Any]]:
    """Each metric of a run that was evaluated before its first step: of new text before and after, and of old text."""
    columns = [
        record.before_and_after.get(text, {}).get(when, {}) for text in ("new", "old") for when in ("before", "after")
    ]
    names = [name for name in columns[0] if name not in ("loss", "bigram_auc")]
    return [(f"`{name}`", *(column.get(name, "") for column in columns)) for name in names]


def _settings(record: PretrainingRecord, reference: str, planned: int) -> list[tuple[str, Any, Any]]:
    """Name, value, and the paper's for a size where it is another one."""
    args, model, main = record.arguments["training"], record.model, record.model["discriminator_config"]
    size, per_step = SIZES[reference], "sequences_per_step"
    here = {**record.arguments.get("model", {}), **args, **model, **main, "max_steps": planned}
    here |= {per_step: record.sequences / record.steps, "seed": str(args["seed"])}
    paper = {**_PAPER, **size.pretraining, per_step: size.pretraining["per_device_train_batch_size"]}
    if model["generator_config"]:
        width, of_main = (each.get("hidden_size") or each["dim"] for each in (model["generator_config"], main))
        here["generator_hidden_size"] = width / of_main  # DistilBERT has the second name
        paper["generator_hidden_size"] = size.generator_hidden_size
    shown = [name for name in _SETTINGS.split() if here.get(name) is not None]
    return [(f"`{n}`", here[n], paper[n] if paper.get(n, here[n]) != here[n] else "") for n in shown]


def _license_of_text(record: PretrainingRecord) -> str:
    known = [_BUNDLED.get(source.get("sha256")) for source in record.data.get("train", {}).get("sources", [])]
    licenses = "; ".join(corpus[1] if corpus else "not stated" for corpus in dict.fromkeys(known))
    return record.arguments.get("data", {}).get("data_license") or licenses or "not stated"


def _command(record: PretrainingRecord) -> str:
    """What repeats a run from a clone: the command with every flag that matters, those of a YAML file among them."""
    if not record.command.startswith((f"{PACKAGE} pretrain ", "pretrain.py ")):  # the script is the same
        return record.command
    training = record.arguments["training"]
    flags = {**record.arguments.get("model", {}), **record.arguments.get("data", {})}
    flags |= {name: training[name] for name in _FLAGS.split() if name in training}
    flags["exact_loss_normalization"] = training.get("exact_loss_normalization") or None
    if flags.get("continue_from"):
        del flags["size"]  # it follows from the networks
    sources = record.data.get("train", {}).get("sources", [])
    places = {source["name"]: _BUNDLED[source["sha256"]][0] for source in sources if source.get("sha256") in _BUNDLED}
    words = [PACKAGE, "pretrain"]
    for name, value in flags.items():
        if value not in (None, "", []) and name not in _NO_FLAGS:
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}", *(str(places.get(item, item)) for item in values)]
    return shlex.join(words)


def _named(run: EvaluationRecord, name: str) -> EvaluationRecord:
    return replace(run, model={**run.model, "name_or_path": name})


def _cautions(own: Sequence[EvaluationRecord], others: Sequence[EvaluationRecord]) -> list[str]:
    """How weak scores are to be read."""
    cautions = []
    scratch = summarize(run for run in others if run.model["from_scratch"])
    random = {(result.benchmark, result.task): result.main for result in scratch}
    majorities = {(name, task.name): task.majority for name, tasks in BENCHMARKS.items() for task in tasks}
    for result in summarize(own):
        task, metric, key = result.task, result.runs[0].main_metric, (result.benchmark, result.task)
        is_whole = not result.runs[0].arguments.get("max_eval_samples")
        score = result.figures.get("median", float("nan"))
        majority = majorities.get(key, 0.0) if metric == "accuracy" and is_whole else 0.0
        if metric == "matthews" and score == 0:
            cautions.append(f"{task}: a Matthews correlation of 0 is that of giving every example the same label.")
        elif random.get(key) and score <= median(random[key]):
            cautions.append(f"{task}: not better than the same architecture from random weights.")
        if majority and score - majority < 0.05:
            both = f"{100 * score:.1f}; always giving the most frequent label scores {100 * majority:.1f}"
            cautions.append(f"{task}: the median is {both}.")
        if len(result.runs) == 1:
            cautions.append(f"{task}: one run. Seeds often differ by a point or more: small differences mean nothing.")
    return list(dict.fromkeys(cautions))
