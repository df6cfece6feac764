"""Cards of what pre-training leaves: towers and pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hf_electra_rtd.publishing.cards import examples, pretraining_facts
from hf_electra_rtd.publishing.cards.details import Details
from hf_electra_rtd.publishing.cards.metadata import ELECTRA, PACKAGE, make_metadata
from hf_electra_rtd.publishing.cards.rendering import facts, large, link, listed, percent, plain, render_card
from hf_electra_rtd.publishing.cards.scores import along_table, name_models, score_tables
from hf_electra_rtd.publishing.curves import CURVES_FILE
from hf_electra_rtd.records import EvaluationRecord, FractionRecord, PretrainingRecord


Tower = Literal["generator", "discriminator"]


def tower_card(
    record: PretrainingRecord,
    tower: Tower,
    repo_id: str,
    details: Details,
    *,
    related: Mapping[str, str] = {},
    evaluations: Sequence[EvaluationRecord] = (),
    compared: Sequence[EvaluationRecord] = (),
    fraction: FractionRecord | None = None,
    fraction_evaluations: Mapping[int, Sequence[EvaluationRecord]] = {},
) -> str:
    """The card of one tower, as the text of its README.md, which `training_curves.png` lies beside.

    Args:
        record: of the run.
        tower: which one. The main tower is called `discriminator` whatever its objective.
        repo_id: of the tower on the Hub.
        details: what no record knows.
        related: Hub ids of the other models of the run, by `generator`, `discriminator` or `pair`.
        evaluations: fine-tuning runs of this tower.
        compared: such runs of others, from random weights for instance, to stand beside them.
        fraction: where the tower was exported on the way.
        fraction_evaluations: from step to the fine-tuning runs of the tower that was exported there.

    Raises:
        ValueError: for a record that lacks what a card needs, by field; for a generator that there is not; for a
            record that holds what must not be published.
    """
    _check(record, [*evaluations, *compared, *(run for runs in fraction_evaluations.values() for run in runs)])
    if tower == "generator" and not pretraining_facts.has_generator(record):
        raise ValueError(
            f"There is no generator: the objective is {record.model['objective']!r} with generator="
            f"{record.model['generator']!r}. Make the card of the discriminator, which is the main tower."
        )
    if fraction is not None and fraction.step == record.steps == pretraining_facts.planned_steps(record):
        fraction = None  # the end of the run, which lies on `main`, too
    kind = _kind(record, tower)
    step = record.steps if fraction is None else fraction.step
    tokens = record.tokens * step / record.steps
    revision = None if fraction is None else f"step-{fraction.step}"
    language = details.languages[0]
    own, others = name_models(evaluations, compared, repo_id)
    fills_masks = kind in ("generator", "masked_lm")
    loading = []
    if kind == "detector":
        loading.append(("Which tokens were replaced:", examples.detection_example(repo_id, revision, language)))
    if fills_masks:
        loading.append(("What a masked token may have been:", examples.filling_example(repo_id, revision, language)))
    if kind != "generator":
        loading.append(("As an encoder to fine-tune:", examples.head_example(repo_id, revision, language)))
    data = make_metadata(
        repo_id,
        details,
        tags=_tags(record, *_ROLE_TAGS[kind]),
        library="transformers",
        pipeline="fill-mask" if fills_masks else None,
        datasets=details.datasets,
        evaluations=evaluations,
        trained=record,
    )
    return render_card(
        data,
        "tower",
        kind=kind,
        main_tower=pretraining_facts.main_tower(record),
        smaller_generator=pretraining_facts.has_smaller_generator(record),
        replaced=_replaced(record),
        summary=_tower_summary(record, kind, details, tokens),
        key_facts=_tower_facts(record, tower, details, tokens, related),
        loading=loading,
        scores=score_tables(own, others, pretraining_facts.published_size(record)) if own else "",
        along=along_table(_with_the_last(fraction_evaluations, evaluations, record), record.tokens / record.steps),
        **_run_sections(record, repo_id, details, fraction),
    )


def _with_the_last(
    fractions: Mapping[int, Sequence[EvaluationRecord]],
    final: Sequence[EvaluationRecord],
    record: PretrainingRecord,
) -> dict[int, Sequence[EvaluationRecord]]:
    """Fine-tunings of towers along the run, and of the one at its end."""
    return {**fractions, **({record.steps: final} if fractions and final else {})}


def pair_card(record: PretrainingRecord, repo_id: str, details: Details, related: Mapping[str, str] = {}) -> str:
    """The card of a pair, as the text of its README.md, which `training_curves.png` lies beside.

    Args:
        record, repo_id, details, related: as for [`tower_card`].

    Raises:
        ValueError: likewise.
    """
    _check(record, ())
    data = make_metadata(
        repo_id,
        details,
        tags=_tags(record),
        library=PACKAGE,
        pipeline=None,
        datasets=details.datasets,
        trained=record,
    )
    towers = ["generator", "discriminator"] if pretraining_facts.has_generator(record) else ["discriminator"]
    main_tower = pretraining_facts.main_tower(record)
    names = {"generator": "generator", "discriminator": main_tower}
    rows = [(names[name], pretraining_facts.shape(pretraining_facts.config_of(record, name))) for name in towers]
    rows += [
        ("parameters", _parameters(record, names, towers)),
        *_common_facts(record, details, record.tokens, related),
    ]
    return render_card(
        data,
        "pair",
        summary=f"All of an ELECTRA pre-training run{_of_size(record)}, to go on training: {_whole(record)}. "
        f"{_training_sentence(record, details, record.tokens)}",
        key_facts=facts(rows),
        main_tower=main_tower,
        has_generator=len(towers) > 1,
        published_tower=link(related["discriminator"]) if "discriminator" in related else "",
        example=examples.pair_example(repo_id),
        package=PACKAGE,
        **_run_sections(record, repo_id, details, None),
    )


def _kind(record: PretrainingRecord, tower: Tower) -> str:
    """What a tower does: a key of `_ROLE_TAGS`."""
    if tower == "generator":
        return "generator"
    if pretraining_facts.is_detector(record):
        return "detector"
    # With the other objectives the masks were filled before the main tower read the row.
    return "masked_lm" if record.model["objective"] == "mlm" else "corrector"


_ROLE_TAGS: dict[str, tuple[str, ...]] = {
    "generator": ("generator",),
    "detector": ("discriminator",),
    "masked_lm": ("masked-lm",),
    "corrector": (),
}


def _replaced(record: PretrainingRecord) -> str:
    """How tokens were replaced, as the end of a sentence on these tokens."""
    if not pretraining_facts.has_generator(record):
        return "were exchanged at random"
    return f"a {'small ' if pretraining_facts.has_smaller_generator(record) else ''}generator exchanged"


def _whole(record: PretrainingRecord) -> str:
    """What a pair holds."""
    main_tower = pretraining_facts.main_tower(record)
    if not pretraining_facts.has_generator(record):
        return f"the {main_tower} with its head"
    return f"generator and {main_tower} with what they share"


def _check(record: PretrainingRecord, evaluations: Sequence[EvaluationRecord]) -> None:
    record.check("The run's record")
    for run in evaluations:
        run.check(f"The record of {run.task}, seed {run.seed}")


def _tags(record: PretrainingRecord, *roles: str) -> list[str]:
    learnt = ["replaced-token-detection"] if pretraining_facts.is_detector(record) else []
    return [ELECTRA, PACKAGE, *learnt, "pretraining", *roles]


def _how_far(record: PretrainingRecord, fraction: FractionRecord | None) -> str:
    """What is said of a model that is not the end of its run; empty of one that is."""
    step, planned = record.steps if fraction is None else fraction.step, pretraining_facts.planned_steps(record)
    if step == planned:
        return ""
    tokens = record.tokens * step / record.steps
    share = percent(step / planned, 2)
    what = f"**This is step {step:,} of {planned:,} ({share} of the run), after {large(tokens)} tokens.**"
    if step == record.steps:
        return f"{what} The run went on when this was written; what stands below is of the run so far."
    of_what = "the whole run" if record.steps == planned else f"the run until step {record.steps:,}"
    return f"{what} Where nothing else is said, what stands below is of {of_what}."


def _run_sections(
    record: PretrainingRecord, repo_id: str, details: Details, fraction: FractionRecord | None
) -> dict[str, Any]:
    """What every card of a run tells."""
    step = record.steps if fraction is None else fraction.step
    return {
        "title": repo_id.rpartition("/")[2],
        "how_far": _how_far(record, fraction),
        "data": pretraining_facts.data_section(record),
        "recipe": pretraining_facts.recipe_table(record),
        "compute": pretraining_facts.compute_table(record, fraction),
        "held_out": pretraining_facts.held_out_section(record, step),
        "picture": CURVES_FILE,
        "limits": pretraining_facts.limits(record, step),
        "deviations": pretraining_facts.deviations(record),
        "versions": pretraining_facts.versions(record),
        "command": pretraining_facts.shown_command(record.command),
        "citation": pretraining_facts.citation(details.authors, repo_id),
    }


def _of_size(record: PretrainingRecord) -> str:
    size = pretraining_facts.named_size(record)
    return "" if size is None else f" of size `{size}`"


def _training_sentence(record: PretrainingRecord, details: Details, tokens: float) -> str:
    languages = pretraining_facts.text_languages(details.languages)
    start = pretraining_facts.started_from(record)
    begin = (
        "Trained from random weights" if not start else f"Training went on from {listed([plain(s) for s in start])}"
    )
    return (
        f"{begin} on {large(tokens)} tokens of {languages} text, by "
        f"{pretraining_facts.OBJECTIVES[record.model['objective']]} (`{record.model['objective']}`; "
        "[the ELECTRA paper](https://arxiv.org/abs/2003.10555))."
    )


def _tower_summary(record: PretrainingRecord, kind: str, details: Details, tokens: float) -> str:
    what = {"generator": "The generator of an ELECTRA pair", "detector": "The discriminator of an ELECTRA pair"}
    small = "small " if pretraining_facts.has_smaller_generator(record) else ""
    role = {
        "detector": "a text encoder to fine-tune",
        "masked_lm": "a text encoder to fine-tune, with the head of a masked language model",
        "corrector": "a text encoder to fine-tune, with a head that predicts the original tokens of a corrupted text",
        "generator": f"a {small}masked language model, which the {pretraining_facts.main_tower(record)} learnt from",
    }
    return (
        f"{what.get(kind, 'An ELECTRA encoder')}{_of_size(record)}: {role[kind]}. "
        f"{_training_sentence(record, details, tokens)}"
    )


def _tower_facts(
    record: PretrainingRecord, tower: Tower, details: Details, tokens: float, related: Mapping[str, str]
) -> str:
    config = pretraining_facts.config_of(record, tower)
    rows = [
        ("parameters", f"{record.parameters[tower]:,}"),
        ("architecture", f"`electra`: {pretraining_facts.shape(config)}"),
        ("vocabulary", f"{config['vocab_size']:,} tokens"),
        *_common_facts(record, details, tokens, {name: other for name, other in related.items() if name != tower}),
    ]
    return facts(rows)


def _common_facts(
    record: PretrainingRecord, details: Details, tokens: float, related: Mapping[str, str]
) -> list[tuple[str, str]]:
    licence = details.license if details.license != "other" else f"[{details.license_name}]({details.license_link})"
    names = {
        "generator": "its generator",
        "discriminator": f"its {pretraining_facts.main_tower(record)}",
        "pair": "the pair, to go on training",
    }
    trained = "pre-trained on, in this run" if pretraining_facts.started_from(record) else "pre-trained on"
    return [
        (trained, f"{large(tokens)} tokens, rows of {record.data['train']['row_length']}"),
        ("languages", ", ".join(details.languages)),
        ("licence of the weights", licence),
        *((names[role], link(other)) for role, other in related.items()),
    ]


def _parameters(record: PretrainingRecord, names: Mapping[str, str], towers: Sequence[str]) -> str:
    counts = [f"{names[name]} {record.parameters[name]:,}" for name in towers]
    together = f", together {record.parameters['total']:,}" if len(towers) > 1 else ""
    return ", ".join(counts) + together
