"""Publishes the results of a run on the Hub, private at first.

    hf-electra-rtd publish --run runs/small --hub_model_id ORG/electra-small --license apache-2.0 \\
        --languages en --evaluations runs/glue --dry_run

lists every file with its size and writes the model cards into runs/small/publish_preview. Without --dry_run it creates
ORG/electra-small-discriminator and -generator, with a branch step-N for each fraction of the run. A fine-tuning gets a
repository for each task, an export one for each graph. The command can be repeated; it sends only what has changed.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from huggingface_hub.utils import validate_repo_id
from safetensors import safe_open

from hf_electra_rtd.base.cli import Rule, check_arguments, flag, parse_arguments, run
from hf_electra_rtd.base.files import check_name, hash_model, read_json, reading
from hf_electra_rtd.base.records import (
    HUB_TOKEN,
    EvaluationRecord,
    ExportRecord,
    FractionRecord,
    PretrainingRecord,
    public,
)
from hf_electra_rtd.data.tokenization import VOCABULARIES
from hf_electra_rtd.pair.configuration_electra_rtd import OBJECTIVE_TRAITS, exports_generator
from hf_electra_rtd.pair.places import ADAPTER_CONFIG, CONFIG_FILE, WEIGHTS, identify
from hf_electra_rtd.publishing import card as cards
from hf_electra_rtd.publishing import hub
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import Files, Published, Repository
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.publishing.tables import read_evaluations


logger = logging.getLogger(__name__)

PARTS = ("discriminator", "generator", "detector", "pair")
PREVIEWS = "publish_preview"  # in the run's directory
_FORCE = "Replace the model and card of a repository that another run or a person wrote to."


@dataclass
class PretrainingPublication:
    """More about publishing.

    The flags of a command that publishes a pre-training.
    """

    is_new = False  # not a flag; true for a run that replaces another and does not own that one's repositories
    force: bool = flag(False, _FORCE)
    parts: list[str] | None = flag(None, "Any of discriminator, generator, detector, pair.")


@dataclass
class FineTunedPublication:
    """More about publishing.

    The flags of a command that publishes a fine-tuning.
    """

    force: bool = flag(False, _FORCE)
    base_model: str | None = flag(None, "Hub id of the model that was fine-tuned, if it was a directory.")


@dataclass
class PublishArguments(PretrainingPublication, FineTunedPublication):
    """What is published, and where."""

    run: str = field(kw_only=True, metadata={"help": "output_dir of a pre-training, a fine-tuning or an export."})
    hub_model_id: str | None = flag(None, "ORG/NAME: repositories are ORG/NAME-discriminator, ORG/NAME-mrpc, ...")
    evaluations: list[str] | None = flag(None, "output_dirs of fine-tunings of this run's discriminators.")
    compared: list[str] | None = flag(None, "output_dirs of fine-tunings of other models, to compare with.")
    private: bool = flag(True, "Create private repositories and refuse public ones.")
    dry_run: bool = flag(False, "List every file with its size and write the cards; upload nothing.")


RULES = (
    Rule(
        "compared",
        "The other models stand beside the results of this run.",
        needs=("evaluations",),
        changes_nothing=True,
    ),
)


# ---- Repositories ----


def repository_ids(hub_model_id: str, model: dict[str, Any], parts: Sequence[str] | None = None) -> dict[str, str]:
    """Returns the repository of each part of a pre-training run, from the configuration of its pair. The repository of
    an encoder that predicts tokens is `NAME-encoder`. Raises ValueError for an unknown part, and if the run has none
    of the `parts`."""
    kind = cards.kind_of(model)
    traits = OBJECTIVE_TRAITS[model["objective"]]
    is_there = {
        "discriminator": True,
        "generator": exports_generator(model["objective"], model["generator"]),
        "detector": traits.predicts == "replaced" and not traits.needs_noise,
        "pair": True,
    }
    if parts is None:
        parts = ("discriminator", "generator", "detector") if kind == "bare" else ("discriminator", "generator")
    ids = {}
    for part in parts:
        check_name("parts", part, PARTS)
        if is_there[part]:
            is_encoder = part == "discriminator" and kind == "encoder"
            ids[part] = _repo_id(hub_model_id, "encoder" if is_encoder else part)
    if not ids:
        raise ValueError(f"This run has no {' and no '.join(parts)}. Publish other parts.")
    return ids


def _repo_id(hub_model_id: str | None, name: str) -> str:
    if not hub_model_id or hub_model_id.count("/") != 1:
        raise ValueError(
            f"hub_model_id is {hub_model_id}: give the owner and the start of the repositories' names, ORG/NAME."
        )
    repo_id = f"{hub_model_id}-{name}"
    validate_repo_id(repo_id)
    return repo_id


def first_start(
    record: type[PretrainingRecord | EvaluationRecord], directory: str | Path, depth: int = 0
) -> str | None:
    """Returns when the first of the runs in a directory began, according to their records; this names the run on the
    Hub. None without a record."""
    return min((record.load(path).started for path in record.find(directory, depth)), default=None)


def pretraining_repositories(
    directory: str | Path,
    hub_model_id: str,
    card: CardArguments,
    parts: Sequence[str] | None = None,
    evaluations: Sequence[str] = (),
    compared: Sequence[str] = (),
) -> list[Repository]:
    """Returns the repositories of a pre-training run: for each part `main`, then its branches `step-<N>`. `directory`
    holds the results of the run; `evaluations` and `compared` are directories of fine-tunings. Raises ValueError for
    files that must not be published, and for evaluations of another model."""
    directory = Path(directory)
    record = PretrainingRecord.load(directory)
    ids = repository_ids(hub_model_id, record.model, parts)
    own = []
    others = list(read_evaluations(compared).values())
    names: set[str] = set()  # how results name this run's discriminator
    if evaluations:
        if "discriminator" not in ids:
            logger.warning("evaluations change nothing: they are for the card of the discriminator.")
        names = {hash_model(directory / "discriminator"), ids.get("discriminator", "")}
    for result in read_evaluations(evaluations).values():
        model = result.model
        if result.kind == "pairs":
            raise ValueError(
                f"evaluations: {result.task} is a result of `score --pairs`. Cards show fine-tunings: leave it out."
            )
        if model["from_scratch"]:
            others.append(result)
        elif not names.isdisjoint((model["sha256"], model["name_or_path"])):
            own.append(result)
        else:
            raise ValueError(
                f"evaluations: {result.task}, seed {result.seed}, is a result of {model['name_or_path']}, "
                f"not of {directory}. Pass it as compared."
            )
    exports = [(path.parent, FractionRecord.load(path)) for path in FractionRecord.find(directory, 2)]
    exports.sort(key=lambda export: export[1].step)
    curves: Files = {CURVES_FILE: directory / CURVES_FILE}
    repositories = []
    for part, repo_id in ids.items():
        of_part = [] if part == "pair" else exports
        text = cards.pretraining_card(
            record,
            part,
            repo_id,
            card,
            own if part == "discriminator" else (),
            others,
            related=ids,
            branches=[f"step-{fraction.step}" for _, fraction in of_part],
        )
        repositories.append(
            _repository(
                Repository(repo_id, {}, record.started),
                directory if part == "pair" else directory / part,
                text,
                {**curves, PretrainingRecord.FILE: directory / PretrainingRecord.FILE},
            )
        )
        for path, fraction in of_part:
            text = cards.pretraining_card(record, part, repo_id, card, fraction=fraction, related=ids)
            branch = Repository(repo_id, {}, record.started, revision=f"step-{fraction.step}")
            repositories.append(_repository(branch, path / part, text, curves))
    return repositories


def fine_tuned_repositories(
    directory: str | Path, hub_model_id: str, card: CardArguments, base_model: str | None = None
) -> list[Repository]:
    """Returns the repositories of fine-tuned models or adapters: for each task below an `output_dir`, that of the kept
    model with the best seed. Raises ValueError if no model was kept."""
    directory = Path(directory).resolve()
    tasks: dict[Path, dict[Path, EvaluationRecord]] = defaultdict(dict)
    for path in EvaluationRecord.find(directory, 2):
        record = EvaluationRecord.load(path)
        if record.kind != "pairs":  # pairs are scored by `score`, which trains no model
            tasks[path.parent.parent][path.parent] = record
    repositories = []
    for task, runs in tasks.items():
        kept = [path for path in runs if (path / "model").exists()]
        if not kept:
            logger.warning(f"{task.name}: no model was kept: it is not published. Fine-tune with --keep_models best.")
            continue
        best = max(kept, key=lambda path: runs[path].dev_score)
        try:
            repo_id = _repo_id(hub_model_id, task.name)
        except ValueError as error:
            raise ValueError(f"{error} The repository of a fine-tuned model ends with its --task_name.") from None
        records = [runs[best], *(record for path, record in runs.items() if path != best)]
        model = records[0].model
        base = base_model
        if base is None and model["sha256"] is None:
            base = model["name_or_path"]
        adapter_config = best / "model" / ADAPTER_CONFIG
        is_adapter = adapter_config.exists()
        text = cards.fine_tuned_card(records, repo_id, card, base, is_adapter)
        more: Files = {EvaluationRecord.FILE: best / EvaluationRecord.FILE}
        if is_adapter:
            config = {**read_json(adapter_config), "base_model_name_or_path": base}
            more[ADAPTER_CONFIG] = json.dumps(config, indent=2).encode()
        first = min(record.started for record in records)
        repositories.append(_repository(Repository(repo_id, {}, first), best / "model", text, more))
    if not repositories:
        below = sorted({str(path.parents[2]) for path in directory.glob(f"*/*/*/{EvaluationRecord.FILE}")})
        remedy = f"Name one of {', '.join(below)}." if below else "Fine-tune with --keep_models best."
        raise ValueError(f"{directory} holds no fine-tuned model. {remedy}")
    return repositories


def exported_repositories(directory: Path, hub_model_id: str, card: CardArguments) -> list[Repository]:
    """Returns the repositories of exported models: the one in `directory`, or those directly below it."""
    repositories = []
    for path in ExportRecord.find(directory, 1):
        record = ExportRecord.load(path)
        repo_id = _repo_id(hub_model_id, f"{record.name}-onnx")
        text = cards.export_card(record, repo_id, card)
        export = Repository(repo_id, {}, record.finished)
        repositories.append(_repository(export, path.parent, text, {ExportRecord.FILE: path}))
    return repositories


def _repository(repository: Repository, directory: Path, card: str, more: Files) -> Repository:
    """Adds to a repository the files of the model in `directory`, its card, and `more`, and returns it. No other file
    of the directory is published. Raises ValueError for a file that must not be published."""
    model: Files = {name: directory / name for name in hub.MODEL_FILES if (directory / name).exists()}
    if model.keys().isdisjoint((*WEIGHTS, *hub.GRAPH_FILES)):
        raise ValueError(f"{directory} holds no {WEIGHTS[0]}. Save it as safetensors, or publish other parts.")
    for name in model.keys() & {*WEIGHTS}:
        with reading(directory / name, "Restore the file, or finish the run again."):
            safe_open(directory / name, framework="numpy")  # compares the header of the file with its size
    repository.files = {**model, hub.CARD_FILE: hub.mark(card).encode(), **more}
    for name, content in repository.files.items():
        path = content if isinstance(content, Path) else directory / name
        if path.suffix not in (".json", ".txt", ".md"):
            continue
        text = content.decode() if isinstance(content, bytes) else content.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else text
        # Pieces of a vocabulary may look like paths and passwords.
        is_public = HUB_TOKEN.search(text) is None if name in VOCABULARIES else public(values) == values
        if not is_public:
            raise ValueError(
                f"{path} must not be published: it holds a path of this machine, a password or a token. "
                "Remove that, then try again."
            )
    return repository


# ---- The command ----


def main(argv: list[str]) -> int:
    """Publishes a run. Returns the exit status: 0, or 1 if something did not reach the Hub."""
    args, card = parse_arguments((PublishArguments, CardArguments), argv, description=__doc__)
    check_arguments(args, card, rules=RULES)
    repositories = _find_repositories(args, card)
    if args.dry_run:
        show(repositories, args.run)
        return 0
    published = hub.publish(repositories, args.private, args.force)
    return report(published, f"hf-electra-rtd publish {shlex.join(argv)}")


def _find_repositories(args: PublishArguments, card: CardArguments) -> list[Repository]:
    """Returns the repositories for the run in the directory; its records tell what kind of run it is."""
    directory = Path(args.run)
    hub_model_id = args.hub_model_id or ""
    evaluations = args.evaluations or ()
    compared = args.compared or ()
    if PretrainingRecord.find(directory, 0):
        _warn_of_unused(args, "a pre-training", "base_model")
        return pretraining_repositories(directory, hub_model_id, card, args.parts, evaluations, compared)
    if EvaluationRecord.find(directory):
        _warn_of_unused(args, "a fine-tuning", "parts", "evaluations", "compared")
        return fine_tuned_repositories(directory, hub_model_id, card, args.base_model)
    if ExportRecord.find(directory, 1):
        _warn_of_unused(args, "an export", "parts", "evaluations", "compared", "base_model")
        return exported_repositories(directory, hub_model_id, card)
    if (directory / CONFIG_FILE).is_file():
        raise identify(directory).error("the output_dir of the finished run, which has its record")
    raise ValueError(
        f"{directory} holds no {PretrainingRecord.FILE}, {EvaluationRecord.FILE} or {ExportRecord.FILE} of a finished "
        "run. Finish a pre-training with --resume_from_checkpoint latest."
    )


def _warn_of_unused(args: PublishArguments, kind: str, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            logger.warning(f"--{name} changes nothing: {args.run} holds {kind}.")


def publish_run(
    make: Callable[..., list[Repository]],
    directory: str | Path,
    hub_model_id: str,
    card: CardArguments,
    private: bool,
    force: bool,
    **more: Any,
) -> list[Published]:
    """Publishes the results of a run. Prints the outcome and, after a failure, the command that tries again. Failures
    are not raised. `make` is `pretraining_repositories` or `fine_tuned_repositories`, `more` its arguments."""
    try:
        repositories = make(directory, hub_model_id, card, **more)
        published = hub.publish(repositories, private, force)
    except (OSError, ValueError) as error:
        published = [Published(hub_model_id, error=str(error))]
    flags = {"run": str(directory), "hub_model_id": hub_model_id, "private": private, "force": force, **more}
    defaults = {each.name: each.default for each in (*fields(PublishArguments), *fields(CardArguments))}
    given = {name: value for name, value in {**flags, **asdict(card)}.items() if value != defaults[name]}
    report(published, shlex.join(["hf-electra-rtd", "publish", *cards.flag_words(given)]))
    return published


def show(repositories: Sequence[Repository], directory: str | Path) -> None:
    """Prints every file that would be uploaded, and writes the cards into the run's `publish_preview`."""
    for repository in repositories:
        branch = repository.revision or "main"
        print(f"{repository.repo_id}, branch {branch}:")
        for path, content in sorted(repository.files.items()):
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            print(f"  {path:<40}{size:>15,} bytes")
        preview = Path(directory) / PREVIEWS / repository.repo_id.replace("/", "--") / branch
        preview.mkdir(parents=True, exist_ok=True)
        (preview / hub.CARD_FILE).write_bytes(bytes(repository.files[hub.CARD_FILE]))
    print(f"Nothing was uploaded. The cards are in {Path(directory) / PREVIEWS}.")


def report(published: Sequence[Published], command: str) -> int:
    """Prints the outcome for each repository and, after failures, their reasons and the `command` that tries again.
    Returns the exit status: 0, or 1 after a failure."""
    for each in published:
        if each.error is None:
            print(f"Published: {each.url}{'' if each.changed else ' (nothing has changed)'}")
        else:
            print(f"Not published: {each.url}", file=sys.stderr)
    failures = list(dict.fromkeys(each.error for each in published if each.error is not None))
    for error in failures:
        print(f"  {error}", file=sys.stderr)
    if failures:
        print(f"To try again: {command}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    run(main)
