"""Cards of fine-tuned models and adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_electra_rtd.publishing.cards import examples, pretraining_facts
from hf_electra_rtd.publishing.cards.details import Details
from hf_electra_rtd.publishing.cards.metadata import ELECTRA, PACKAGE, PIPELINES, make_metadata, metric_name, revision
from hf_electra_rtd.publishing.cards.rendering import code, duration, facts, link, plain, render_card
from hf_electra_rtd.publishing.cards.scores import own_scores, task_cautions
from hf_electra_rtd.publishing.privacy import without_local_paths
from hf_electra_rtd.records import EvaluationRecord


def fine_tuned_card(
    records: Sequence[EvaluationRecord],
    published: EvaluationRecord,
    repo_id: str,
    details: Details,
    base_model: str | None,
    adapter: bool,
) -> str:
    """The card of a fine-tuned model, or of adapters, as the text of its README.md.

    `model-index` has the median over seeds, which does not depend on the seed that was chosen; the body has the scores
    of the weights themselves beside it.

    Args:
        records: the runs of all seeds of one task.
        published: the one whose weights these are, out of `records`.
        repo_id: of the model on the Hub.
        details: what no record knows; of several languages, the card names the task's alone where it is among them.
        base_model: Hub id of what was fine-tuned, or whose architecture was trained from random weights; None where it
            is on no Hub.
        adapter: whether these are adapters, which need the base model to be loaded.

    Raises:
        ValueError: for records of several tasks or models, a published run that is not among them, adapters without a
            base model, or records that lack what a card needs, or hold what must not be published.
    """
    runs = sorted(records, key=lambda run: run.seed)
    for run in runs:
        run.check(f"The record of {run.task}, seed {run.seed}")
    tasks = {(run.benchmark, run.task, run.model["name_or_path"], run.model["peft"]) for run in runs}
    if len(tasks) != 1:
        raise ValueError(
            f"A card is of one task and one model, but these runs are of {len(tasks)}: {sorted(map(str, tasks))}."
        )
    if published not in runs:
        raise ValueError(f"The run with seed {published.seed} is published, but it is not among the records.")
    if adapter and base_model is None:
        raise ValueError("Adapters need their base model: publish it first, and give its Hub id.")
    dataset = published.dataset
    own_head = examples.needs_this_package(published)
    derived = None if published.model["from_scratch"] else base_model
    languages = _languages(published, details)
    data = make_metadata(
        repo_id,
        details,
        tags=[*([ELECTRA] if _is_electra(published) else []), PACKAGE, *(["lora"] if adapter else [])],
        library=PACKAGE if own_head else "peft" if adapter else "transformers",
        pipeline=None if own_head else PIPELINES[published.kind],
        datasets=[dataset["id"]] if dataset.get("id") else [],
        evaluations=runs,
        base_model=derived,
        relation=None if derived is None else "adapter" if adapter else "finetune",
        languages=languages,
    )
    return render_card(
        data,
        "fine_tuned",
        title=repo_id.rpartition("/")[2],
        summary=_summary(runs, published, base_model, adapter),
        key_facts=_facts(published, details, base_model),
        packages=_packages(adapter, own_head),
        own_head=own_head,
        package=PACKAGE,
        example=examples.fine_tuned_example(published, repo_id, base_model, adapter, languages[0]),
        scale=_scale(published),
        scores=own_scores(runs, published),
        notes=_notes(runs, published),
        data=_data(runs, published),
        recipe=_recipe(published),
        limits=_limits(published),
        versions=pretraining_facts.versions(published),
        command=pretraining_facts.shown_command(published.command),
        citation=pretraining_facts.citation(details.authors, repo_id, _is_electra(published)),
    )


def _languages(record: EvaluationRecord, details: Details) -> Sequence[str]:
    """Codes: the task's where the details have it, as a record's language can be any text; otherwise theirs."""
    return [record.language] if record.language in details.languages else details.languages


def _is_electra(record: EvaluationRecord) -> bool:
    return "Electra" in record.model.get("architecture", "")


def _title(record: EvaluationRecord) -> str:
    return plain(record.dataset.get("title") or record.task)


def _base(record: EvaluationRecord, base_model: str | None) -> str:
    """What was fine-tuned, for people."""
    if base_model is not None:
        return link(base_model)
    return code(without_local_paths(record.model["name_or_path"]).rstrip("/").rpartition("/")[2])


def _summary(runs: Sequence[EvaluationRecord], record: EvaluationRecord, base_model: str | None, adapter: bool) -> str:
    what = "LoRA adapters" if adapter else "An ELECTRA model" if _is_electra(record) else "A model"
    base = _base(record, base_model)
    start = f"the architecture of {base} with random weights" if record.model["from_scratch"] else base
    kinds = {
        "classification": "classifies texts",
        "regression": "gives texts a number",
        "multiple_choice": "chooses between answers",
        "question_answering": "finds answers in a text",
        "tagging": "labels the words of a text",
    }
    one_of = "" if len(runs) == 1 else f" These are the weights of seed {record.seed}, one of {len(runs)} runs."
    tuned = "trained" if record.model["from_scratch"] else "fine-tuned"
    verb = f"{what} for {start}, fine-tuned on {_title(record)}" if adapter else f"{what} that {kinds[record.kind]}"
    rest = "." if adapter else f": {start}, {tuned} on {_title(record)}."
    return f"{verb}{rest}{one_of}"


def _facts(record: EvaluationRecord, details: Details, base_model: str | None) -> str:
    dataset = record.dataset
    rows = [("task", f"{_title(record)} ({record.benchmark if record.benchmark != 'own' else 'own data'})")]
    if dataset.get("id"):
        config = f", {code(dataset['config'])}" if dataset.get("config") else ""
        rows.append(("dataset", f"[{dataset['id']}](https://huggingface.co/datasets/{dataset['id']}){config}"))
    if labels := record.arguments.get("labels"):
        rows.append(("labels", ", ".join(code(str(label)) for label in labels)))
    rows.append(("architecture of" if record.model["from_scratch"] else "fine-tuned from", _base(record, base_model)))
    if "parameters" in record.model:
        rows.append(("parameters", f"{record.model['parameters']:,}"))
        trained = record.model.get("trained_parameters", record.model["parameters"])
        if trained != record.model["parameters"]:
            rows.append(("trained parameters", f"{trained:,}"))
    licence = details.license if details.license != "other" else f"[{details.license_name}]({details.license_link})"
    rows.append(("licence of the weights", licence))
    return facts(rows)


def _packages(adapter: bool, own_head: bool) -> list[str]:
    """What `transformers` does not bring."""
    return [*(["peft"] if adapter else []), *([PACKAGE] if own_head else [])]


def _scale(record: EvaluationRecord) -> str:
    """What the number of a regression means, where it is not that of the data."""
    return "The model gives a fifth of STS-B's similarity, which is from 0 to 5." if record.task == "stsb" else ""


def _notes(runs: Sequence[EvaluationRecord], record: EvaluationRecord) -> list[str]:
    notes = [f"Figures x 100. Model of each run: {plain(record.selection)}."]
    if len(runs) > 1:
        seeds = ", ".join(f"{run.seed}: {_score(run)}" for run in runs)
        notes.append(f"{metric_name(record.main_metric)} by seed: {seeds}. The metadata have the medians.")
        scores = [score for run in runs if (score := run.score()) is not None]
        if len(set(scores)) > 1 and record.score() == max(scores):
            notes.append(
                "This seed did best, on the rows that it was judged on: on others expect the median rather than its "
                "own score."
            )
    return [*notes, *task_cautions(runs)]


def _score(run: EvaluationRecord) -> str:
    score = run.score()
    return "none" if score is None else f"{100 * score:.1f}"


def _data(runs: Sequence[EvaluationRecord], record: EvaluationRecord) -> str:
    rows = []
    for split, counts in record.data.items():
        told = [f"{counts['rows']:,} rows"] if "rows" in counts else []
        if skipped := counts.get("skipped"):
            told.append(", ".join(f"{count:,} left out ({plain(reason)})" for reason, count in skipped.items()))
        if cut := counts.get("cut"):
            told.append(f"{cut:,} cut to the longest length")
        if commit := revision(runs, split):
            told.append(f"revision {code(commit)}")
        for name, digest in (counts.get("files") or {}).items():
            told.append(f"{plain(without_local_paths(name))}, SHA-256 {code(digest)}")
        if told:
            rows.append((split, "; ".join(told)))
    return facts(rows) if rows else ""


def _recipe(record: EvaluationRecord) -> str:
    args: dict[str, Any] = record.arguments
    names = {
        "learning_rate": "learning rate of the head",
        "layer_decay": "decay of the rate, a layer downwards",
        "rows_per_step": "rows a step",
        "lr_scheduler_type": "schedule",
        "warmup_steps": "warm-up (steps, or their share)",
        "weight_decay": "weight decay",
        "dropout": "dropout",
        "max_length": "tokens of a text, at most",
        "precision": "precision",
    }
    rows = []
    for key, name in names.items():
        if args.get(key) is not None:
            value = args[key]
            rows.append(
                (name, f"{value:g}" if isinstance(value, float) else plain(str(value).rpartition(".")[2].lower()))
            )
    adapters = args.get("peft")
    if isinstance(adapters, dict):
        rows += [(name, plain(str(value))) for name, value in adapters.items() if name != "peft"]
    rows += [
        ("epochs", f"{record.epochs:g} ({record.steps:,} steps)"),
        ("seed of these weights", str(record.seed)),
        ("hardware", pretraining_facts.hardware(record.hardware)),
        ("training time", f"{duration(record.train_seconds)}, without evaluation and saving"),
    ]
    return facts(rows)


def _limits(record: EvaluationRecord) -> list[str]:
    told = [f"It knows {_title(record)} alone: on texts of another kind its scores can be much lower."]
    if length := record.arguments.get("max_length"):
        told.append(f"It was trained on texts of at most {length} tokens; longer ones were cut or split.")
    text = "the task's data" if record.model["from_scratch"] else "its base model's text and of the task's data"
    told.append(
        f"It has the biases of {text}, and nothing was done against them. Look at your own data before you rely on it."
    )
    return told
