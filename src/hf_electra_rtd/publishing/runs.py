"""What a run gives away: its directory, as repositories."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from hf_electra_rtd.publishing.cards import Details, eval_results_files, fine_tuned_card, pair_card, tower_card
from hf_electra_rtd.publishing.curves import CURVES_FILE, plot_curves
from hf_electra_rtd.publishing.identity import hash_model
from hf_electra_rtd.publishing.privacy import without_local_paths
from hf_electra_rtd.publishing.repositories import (
    ADAPTER_CONFIG_FILE,
    CARD_FILE,
    ModelFiles,
    Repository,
    RepositoryFile,
    model_files,
)
from hf_electra_rtd.records import (
    EVALUATION_FILE,
    FRACTION_FILE,
    RECORD_FILE,
    EvaluationRecord,
    FractionRecord,
    PretrainingRecord,
    finite,
)


DISCRIMINATOR: Final = "discriminator"
GENERATOR: Final = "generator"
PAIR: Final = "pair"
PARTS: tuple[Part, ...] = (DISCRIMINATOR, GENERATOR, PAIR)
_FRACTIONS = "fractions"  # as training leaves them
_MODEL = "model"  # of a fine-tuning run, as fine-tuning leaves it
Part = Literal["discriminator", "generator", "pair"]
_RTD = ("rtd", "rtd_masked_only")


@dataclass(frozen=True)
class Planned:
    """A repository that would be published.

    Attributes:
        repository: with all its files.
        left_out: names of what lies beside the model and stays.
    """

    repository: Repository
    left_out: tuple[str, ...] = ()

    @property
    def card(self) -> str:
        """Its README.md."""
        (card,) = (file for file in self.repository.files if file.path_in_repo == CARD_FILE)
        return card.read().decode("utf-8")


@dataclass(frozen=True)
class Evaluations:
    """Fine-tuning results, by the tower that they are of.

    Attributes:
        final: of the discriminator at the end of the run.
        fractions: of those on the way, by step.
        compared: of other models, to stand beside: random weights, or what was said to be compared.
    """

    final: tuple[EvaluationRecord, ...] = ()
    fractions: Mapping[int, tuple[EvaluationRecord, ...]] = field(default_factory=dict)
    compared: tuple[EvaluationRecord, ...] = ()


def is_pretraining_run(directory: str | os.PathLike[str]) -> bool:
    """Whether a pre-training run that ended lies there."""
    return (Path(directory) / RECORD_FILE).is_file()


def read_evaluations(directories: Iterable[str | os.PathLike[str]]) -> list[EvaluationRecord]:
    """All records of fine-tuning runs below some directories, by path.

    Raises:
        ValueError: for a directory without any, or a record that cannot be read.
    """
    records = []
    for directory in directories:
        paths = sorted(Path(directory).rglob(EVALUATION_FILE))
        if not paths:
            raise ValueError(f"There are no results in {directory}: no {EVALUATION_FILE} lies below it.")
        records += [EvaluationRecord.load(path) for path in paths]
    return records


def sort_evaluations(
    directory: str | os.PathLike[str],
    records: Iterable[EvaluationRecord],
    compared: Iterable[EvaluationRecord] = (),
    prefix: str | None = None,
) -> Evaluations:
    """Finds the tower of each result, by the hash of its weights, or by its id on the Hub.

    Args:
        directory: of the pre-training run.
        records: of its discriminator, at the end or on the way; those of random weights are there to be compared.
        compared: of other models.
        prefix: as for `pretraining_repositories`: results of a model that was loaded from the discriminator's
            repository there are of the end of the run, whose weights lie on `main`. None: by their hashes alone.

    Raises:
        ValueError: for a result of a model that is not of this run.
    """
    directory, beside = Path(directory), list(compared)
    if not (records := list(records)):
        return Evaluations(compared=tuple(beside))
    if not (directory / DISCRIMINATOR).is_dir():
        raise ValueError(f"{directory} holds no {DISCRIMINATOR}, which results could be of.")
    steps = {
        hash_model(fraction / DISCRIMINATOR): FractionRecord.load(fraction).step for fraction in _fractions(directory)
    }
    final = hash_model(directory / DISCRIMINATOR)
    published = prefix and repository_ids(prefix, PretrainingRecord.load(directory).model, [DISCRIMINATOR])
    final_id = published[DISCRIMINATOR] if published else None
    finals: list[EvaluationRecord] = []
    fractions: dict[int, list[EvaluationRecord]] = {}
    for record in records:
        digest = record.model.get("sha256")
        # The last of the fractions is the same tower as the final one, and counts as both.
        if digest in steps:
            fractions.setdefault(steps[digest], []).append(record)
        by_id = final_id is not None and _hub_id(record) == final_id and not record.model.get("from_scratch")
        if digest == final or by_id:
            finals.append(record)
        elif record.model.get("from_scratch"):
            beside.append(record)
        elif digest not in steps:
            raise ValueError(
                f"The results on {record.task}, seed {record.seed}, are of {record.model['name_or_path']}, whose "
                f"weights are not those of {directory / DISCRIMINATOR}, nor of a fraction of this run. To show them "
                "beside it, give them with --compared."
            )
    in_order = {step: tuple(fractions[step]) for step in sorted(fractions)}
    return Evaluations(tuple(finals), in_order, tuple(beside))


def pretraining_repositories(
    directory: str | os.PathLike[str],
    prefix: str,
    details: Details,
    parts: Sequence[str] = (DISCRIMINATOR, GENERATOR),
    evaluations: Evaluations | None = None,
    revisions: bool = True,
    eval_results: bool = False,
) -> list[Planned]:
    """The repositories of a pre-training run that ended.

    Args:
        directory: of the run.
        prefix: `owner/name`, before what tells the parts apart: `owner/name-discriminator`. The main tower of an
            objective that detects nothing is `owner/name-encoder`.
        details: what no record knows.
        parts: of `discriminator`, `generator`, `pair`. A run without a generator has none to give.
        evaluations: fine-tuning results of the discriminator; None for none.
        revisions: whether towers at fractions of the run become branches `step-<N>`.
        eval_results: whether the discriminator's results are written as `.eval_results/*.yaml`, too.

    Returns:
        Each part's repository; after each tower's, its branches by step.

    Raises:
        ValueError: for what cannot be published, or what is not there.
    """
    directory = Path(directory)
    record = PretrainingRecord.load(directory)
    related = repository_ids(prefix, record.model, parts)
    evaluations = evaluations or Evaluations()
    run_files = _run_files(directory, record)
    planned = []
    for part, repo_id in related.items():
        beside = _without(related, part)
        files = dict(run_files)
        if part == PAIR:
            card = pair_card(record, repo_id, details, related=beside)
            planned.append(_plan(repo_id, model_files(directory), card, files))
            continue
        results = evaluations if part == DISCRIMINATOR else Evaluations()
        card = tower_card(
            record,
            part,
            repo_id,
            details,
            related=beside,
            evaluations=results.final,
            compared=results.compared,
            fraction_evaluations=results.fractions,
        )
        if eval_results and results.final:
            files |= {path: text.encode() for path, text in eval_results_files(results.final).items()}
        planned.append(_plan(repo_id, model_files(directory / part), card, files))
    if revisions:
        for fraction in _fractions(directory):
            planned += towers_at_fraction(fraction, record, prefix, details, parts, evaluations)
    return planned


def towers_at_fraction(
    directory: str | os.PathLike[str],
    record: PretrainingRecord,
    prefix: str,
    details: Details,
    parts: Sequence[str] = (DISCRIMINATOR, GENERATOR),
    evaluations: Evaluations | None = None,
) -> list[Planned]:
    """Towers on the way, as branches of their repositories.

    Args:
        directory: of the fraction: the towers and `fraction.json`.
        record: of the run, as far as it is known.
        prefix, details, parts, evaluations: as for `pretraining_repositories`; the pair is not kept on the way.

    Raises:
        ValueError: for what cannot be published, or is not there.
    """
    directory = Path(directory)
    fraction = FractionRecord.load(directory)
    if set(parts) == {PAIR}:
        return []
    ids = repository_ids(prefix, record.model, parts)
    related: dict[Part, str] = {part: repo_id for part, repo_id in ids.items() if part != PAIR}
    results = {} if evaluations is None else {DISCRIMINATOR: evaluations.fractions.get(fraction.step, ())}
    files = {CURVES_FILE: _picture(directory.parent.parent, record)}
    planned = []
    for part, repo_id in related.items():
        assert part != PAIR, "not kept on the way"
        card = tower_card(
            record,
            part,
            repo_id,
            details,
            related=_without(related, part),
            evaluations=results.get(part, ()),
            fraction=fraction,
        )
        planned.append(_plan(repo_id, model_files(directory / part), card, files, branch_of(fraction.step)))
    return planned


def branch_of(step: int) -> str:
    """The branch of a tower on the way."""
    return f"step-{step}"


def fine_tuned_repositories(
    directory: str | os.PathLike[str],
    prefix: str,
    details: Details,
    base_model: str | None = None,
    eval_results: bool = False,
) -> list[Planned]:
    """The repositories of fine-tuned models or adapters: for each task, the one that was kept.

    Args:
        directory: `output_dir` of a fine-tuning: below it `<task>/seed_<N>`.
        prefix: `owner/name`; the task's name comes behind: `owner/name-mrpc`.
        details: what no record knows.
        base_model: the Hub id of the model that was fine-tuned; by default the id that it was loaded by, if it was.
        eval_results: whether results are written as `.eval_results/*.yaml`, too.

    Raises:
        ValueError: for what cannot be published, where no model was kept, or where two tasks below have one name.
    """
    planned = []
    places: dict[str, Path] = {}
    paths = sorted(Path(directory).resolve().rglob(EVALUATION_FILE))
    by_task: dict[Path, list[Path]] = {}
    for path in paths:
        by_task.setdefault(path.parent.parent, []).append(path.parent)
    for task, runs in by_task.items():
        records = {run: EvaluationRecord.load(run) for run in runs}
        kept = [run for run in runs if (run / _MODEL).is_dir()]
        if not kept:
            continue
        repo_id = f"{prefix}-{task.name}"
        if repo_id in places:
            raise ValueError(
                f"{places[repo_id]} and {task} would both be published as {repo_id}: give the directory of one of "
                "them with --run, and another --repo_prefix to each."
            )
        places[repo_id] = task
        best = max(kept, key=lambda run: _score(records[run]))
        record = records[best]
        base = base_model or _hub_id(record)
        model = best / _MODEL
        adapter = (model / ADAPTER_CONFIG_FILE).is_file()
        if adapter and base is None:
            raise ValueError(
                f"{model} holds adapters, which need the model that they belong to: publish it first, and give its "
                "Hub id with --base_model."
            )
        card = fine_tuned_card(
            list(records.values()),
            record,
            repo_id,
            details,
            base_model=base,
            adapter=adapter,
        )
        files = {EVALUATION_FILE: _as_json(record)}
        if eval_results:
            files |= {path: text.encode() for path, text in eval_results_files(list(records.values())).items()}
        planned.append(_plan(repo_id, model_files(model, base), card, files))
    if not planned:
        raise ValueError(
            f"There is no fine-tuned model in {directory}: "
            + ("finetune.py kept none (--keep_models best keeps the best seed's)." if paths else "no run lies there.")
        )
    return planned


def _plan(
    repo_id: str, model: ModelFiles, card: str, more: Mapping[str, bytes | Path], revision: str | None = None
) -> Planned:
    files = [RepositoryFile(CARD_FILE, card.encode()), *model.files]
    files += [RepositoryFile(path, content) for path, content in more.items()]
    what = "Model, card and record" if revision is None else f"Model and card after {revision.replace('-', ' ')}"
    repository = Repository(repo_id, tuple(files), message=f"{what}, by hf-electra-rtd", revision=revision)
    return Planned(repository, model.left_out)


def _run_files(directory: Path, record: PretrainingRecord) -> dict[str, bytes | Path]:
    return {RECORD_FILE: _as_json(record), CURVES_FILE: _picture(directory, record)}


def _picture(directory: Path, record: PretrainingRecord) -> bytes | Path:
    """The curves that cards show: as the run left them, or drawn now."""
    if (directory / CURVES_FILE).is_file():
        return directory / CURVES_FILE
    with tempfile.TemporaryDirectory() as drawn:
        return plot_curves(record, drawn).read_bytes()


def _as_json(record: Any) -> bytes:
    values = without_local_paths(finite(dataclasses.asdict(record)))
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def _fractions(directory: Path) -> list[Path]:
    """Their directories, by step."""
    there = (path.parent for path in (directory / _FRACTIONS).glob(f"*/{FRACTION_FILE}"))
    return sorted(there, key=lambda path: FractionRecord.load(path).step)


def repository_ids(prefix: str, model: Mapping[str, Any], parts: Sequence[str]) -> dict[Part, str]:
    """The repositories that a run publishes into, by part.

    Args:
        prefix, parts: as for `pretraining_repositories`.
        model: configuration of the pair.

    Raises:
        ValueError: for a part that is not known, or where none is left.
    """
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"There is no part {', '.join(unknown)}: choose of {', '.join(PARTS)}.")
    has_generator = model.get("generator_config") is not None
    given = [part for part in PARTS if part in parts and (part != GENERATOR or has_generator)]
    if not given:
        raise ValueError(f"There is nothing to publish: --parts {' '.join(parts)}, of a run without a generator.")
    detects = model.get("objective") in _RTD
    names = {part: "encoder" if part == DISCRIMINATOR and not detects else part for part in given}
    return {part: f"{prefix}-{name}" for part, name in names.items()}


def _without(related: Mapping[Part, str], part: Part) -> dict[str, str]:
    return {other: repo_id for other, repo_id in related.items() if other != part}


def _score(record: EvaluationRecord) -> float:
    score = record.score()
    return float("-inf") if score is None else score


def _hub_id(record: EvaluationRecord) -> str | None:
    """What the model was loaded by, if that was the Hub: of a directory a record keeps a hash."""
    return None if "sha256" in record.model else record.model["name_or_path"]
