"""`hf-electra-rtd publish`: publishes what a run left on the Hub, private at first.

    hf-electra-rtd publish --run runs/small --hub_model_id ORG/electra-small --license apache-2.0 --languages en \\
        --evaluations runs/glue --dry_run

lists every file that would be uploaded, with its size, and writes the model cards into runs/small/publish_preview.
Without --dry_run it creates ORG/electra-small-discriminator and ORG/electra-small-generator, each with weights and
card in one commit, and a branch step-N for each fraction of the run. A fine-tuning (--run runs/glue) becomes one
repository for each task. Flags that are not given are those of the run's last publication; --resume repeats it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub.utils import validate_repo_id

from hf_electra_rtd.cli import flag, parse_arguments, run
from hf_electra_rtd.files import format_bytes, hash_model, known_names
from hf_electra_rtd.publishing.card import (
    CARD_FILE,
    CardArguments,
    Evaluations,
    eval_results_files,
    fine_tuned_card,
    pretraining_card,
)
from hf_electra_rtd.publishing.hub import (
    CONFIGURATIONS,
    PUBLISH_FILE,
    RESUME,
    VOCABULARIES,
    Published,
    Repository,
    publish,
    read_publication,
    remember,
)
from hf_electra_rtd.publishing.pictures import CURVES_FILE, plot_curves
from hf_electra_rtd.publishing.tables import read_evaluations
from hf_electra_rtd.records import HUB_TOKEN, URL_SECRET, EvaluationRecord, FractionRecord, PretrainingRecord, public


PARTS = ("discriminator", "generator", "pair")
PREVIEWS = "publish_preview"  # in the run's directory


@dataclass
class PretrainingPublication:
    """Flags of a command that publishes a pre-training."""

    parts: list[str] = flag(list(PARTS[:2]), "What to publish of a pre-training: discriminator, generator, pair.")  # noqa: RUF009
    force: bool = flag(False, "Replace the model and card of a repository that another run or a person wrote to.")

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise ValueError(f"--parts: there is no part {part!r}. {known_names(part, PARTS, 'parts')}")


@dataclass
class FineTunedPublication:
    """Flags of a command that publishes a fine-tuning."""

    base_model: str | None = flag(None, "Hub id of the model that was fine-tuned, if it was a directory.")
    eval_results: bool = flag(False, "Write .eval_results/*.yaml, too, for datasets registered as benchmarks.")
    force: bool = flag(False, "Replace the model and card of a repository that another run or a person wrote to.")


@dataclass
class PublicationArguments(PretrainingPublication, FineTunedPublication):
    """Flags of publishing either of them."""


@dataclass
class PublishArguments:
    """What is published, and where."""

    run: str | None = flag(None, "output_dir of a pre-training or a fine-tuning, or of one of its tasks.")
    hub_model_id: str | None = flag(None, "ORG/NAME: repositories are ORG/NAME-discriminator, ORG/NAME-mrpc, ...")
    evaluations: list[str] | None = flag(None, "output_dirs of fine-tunings of this run's discriminators.")  # noqa: RUF009
    compared: list[str] | None = flag(None, "output_dirs of fine-tunings of other models, to compare with.")  # noqa: RUF009
    revisions: bool = flag(True, "Publish the exports at fractions of the run as branches step-N.")
    private: bool = flag(True, "Create private repositories and refuse public ones.")
    dry_run: bool = flag(False, "List every file with its size and write the cards; upload nothing.")
    resume: bool = flag(False, "Repeat the run's last publication, with its flags.")


# ---- Repositories ----


def repository_ids(
    hub_model_id: str, model: Mapping[str, Any], parts: Sequence[str] = ("discriminator", "generator")
) -> dict[str, str]:
    """The repository of each part of a pre-training run, from the configuration of its pair. An encoder that predicts
    tokens is `NAME-encoder`.

    Raises:
        ValueError: if `hub_model_id` is no ORG/NAME, or the run has none of the parts.
    """
    names = {part: part for part in PARTS if part in parts}
    if not str(model["objective"]).startswith("rtd") and "discriminator" in names:
        names["discriminator"] = "encoder"
    if model.get("generator_config") is None:
        names.pop("generator", None)
    if not names:
        raise ValueError(f"--parts {' '.join(parts)}: this run has no generator. Publish another part.")
    return {part: _repo_id(hub_model_id, name) for part, name in names.items()}


def _repo_id(hub_model_id: str, name: str) -> str:
    repo_id = f"{hub_model_id}-{name}"
    if repo_id.count("/") != 1:
        raise ValueError(f"--hub_model_id {hub_model_id}: give the owner and the start of the names, ORG/NAME.")
    validate_repo_id(repo_id)
    return repo_id


def pretraining_repositories(
    directory: str | Path,
    hub_model_id: str,
    card: CardArguments,
    parts: Sequence[str] = ("discriminator", "generator"),
    evaluations: Sequence[str | Path] = (),
    compared: Sequence[str | Path] = (),
    revisions: bool = True,
    eval_results: bool = False,
) -> list[Repository]:
    """The repositories of a pre-training run: each part's `main`, then its branches `step-<N>`. The pair is left out
    where there is none, as in a snapshot of a run.

    Args:
        directory: holds `run_record.json`, `generator/`, `discriminator/`, the pair, and the exports in `fractions/`.
        evaluations: `output_dir`s of fine-tunings of its discriminator, at the end or at a fraction of the run.
        compared: `output_dir`s of fine-tunings of other models.
        eval_results: whether results are written as `.eval_results/*.yaml`, too.

    Raises:
        ValueError: for what is missing or must not be published, and for evaluations of another model.
    """
    directory = Path(directory)
    record = PretrainingRecord.load(directory)
    ids = repository_ids(hub_model_id, record.model, parts)
    paths = [path.parent for path in directory.glob(f"*/*/{FractionRecord.FILE}")]
    exports = sorted(((FractionRecord.load(path), path) for path in paths), key=lambda export: export[0].step)
    results = _sort_evaluations(directory, exports, ids.get("discriminator"), evaluations, compared)
    if not (directory / CURVES_FILE).exists():
        plot_curves(record, directory / CURVES_FILE)
    if not (directory / "config.json").exists():
        ids.pop("pair", None)
    repositories = []
    for part, repo_id in ids.items():
        branches = exports if revisions and part != "pair" else []
        theirs = results if part == "discriminator" else Evaluations()
        text = pretraining_card(record, part, repo_id, card, theirs, related=ids, branches=bool(branches))
        curves: dict[str, Path | bytes] = {CURVES_FILE: directory / CURVES_FILE}
        more = {**curves, PretrainingRecord.FILE: directory / PretrainingRecord.FILE}
        if eval_results:
            more |= eval_results_files(theirs.final)
        repositories.append(_repository(repo_id, directory if part == "pair" else directory / part, text, more))
        for fraction, path in branches:
            at_step = Evaluations(theirs.fractions.get(fraction.step, ()))
            text = pretraining_card(record, part, repo_id, card, at_step, fraction, related=ids)
            repositories.append(_repository(repo_id, path / part, text, curves, f"step-{fraction.step}"))
    return repositories


def _sort_evaluations(
    directory: Path,
    exports: Sequence[tuple[FractionRecord, Path]],
    repo_id: str | None,
    evaluations: Sequence[str | Path],
    compared: Sequence[str | Path],
) -> Evaluations:
    """Finds the discriminator of each result: by the hash of its weights, or by its id on the Hub, which stands for
    the end of the run."""
    others = read_evaluations(compared)
    if not evaluations:
        return Evaluations(compared=others)
    steps = {hash_model(path / "discriminator"): fraction.step for fraction, path in exports}
    end = hash_model(directory / "discriminator")
    final: list[EvaluationRecord] = []
    fractions = defaultdict(list)
    for record in read_evaluations(evaluations):
        digest = record.model["sha256"]
        if digest in steps:  # the export at the end of the run is the final discriminator, too
            fractions[steps[digest]].append(record)
        if record.model["from_scratch"]:
            others.append(record)
        elif digest == end or record.model["name_or_path"] == repo_id:
            final.append(record)
        elif digest not in steps:
            raise ValueError(
                f"--evaluations: {record.task}, seed {record.seed}, is a result of {record.model['name_or_path']}, "
                f"whose weights are not those of {directory} or its fractions. Pass it with --compared."
            )
    return Evaluations(final, fractions, others)


def fine_tuned_repositories(
    directory: str | Path,
    hub_model_id: str,
    card: CardArguments,
    base_model: str | None = None,
    eval_results: bool = False,
) -> list[Repository]:
    """The repositories of fine-tuned models or adapters: for each task the model that was kept, of the best seed.

    Args:
        directory: `output_dir` of a fine-tuning, or of one of its tasks or seeds.
        hub_model_id: the start of the names, `ORG/NAME` for `ORG/NAME-mrpc`.
        base_model: Hub id of the model that was fine-tuned; by default the id that it was loaded by.

    Raises:
        ValueError: for what is missing or must not be published, and for two tasks of one name.
    """
    found: dict[str, Path] = {}
    repositories = []
    paths = sorted(Path(directory).resolve().rglob(EvaluationRecord.FILE))
    for task in dict.fromkeys(path.parent.parent for path in paths):
        runs = {path.parent: EvaluationRecord.load(path) for path in paths if path.parent.parent == task}
        kept = [path for path in runs if (path / "model").is_dir()]
        if not kept:
            continue
        repo_id = _repo_id(hub_model_id, task.name)
        if repo_id in found:
            raise ValueError(f"{found[repo_id]} and {task} are both named {repo_id}. Publish one of them with --run.")
        found[repo_id] = task
        best = max(kept, key=lambda path: -1.0 if (score := runs[path].score) is None else score)
        records = [runs[best], *(record for path, record in runs.items() if path != best)]
        model = runs[best].model
        base = base_model or (None if model["sha256"] else model["name_or_path"])
        adapter = (best / "model/adapter_config.json").is_file()
        text = fine_tuned_card(records, repo_id, card, base, adapter)
        more: dict[str, Path | bytes] = {EvaluationRecord.FILE: best / EvaluationRecord.FILE}
        if eval_results:
            more |= eval_results_files(records)
        labels = runs[best].arguments.get("labels") or ()
        repositories.append(_repository(repo_id, best / "model", text, more, base_model=base, labels=labels))
    if not repositories:
        raise ValueError(f"{directory} holds no fine-tuned model. Fine-tune with --keep_models best.")
    return repositories


def _repository(
    repo_id: str,
    directory: Path,
    card: str,
    more: Mapping[str, Path | bytes],
    revision: str | None = None,
    base_model: str | None = None,
    labels: Sequence[str] = (),
) -> Repository:
    """A model with its card, which may name the labels. Only configurations without local paths, tokenizer and
    safetensors leave `directory`."""
    if not directory.is_dir():
        raise ValueError(f"There is no {directory} to publish in {repo_id}. Choose other --parts.")
    there = sorted(path.name for path in directory.iterdir())
    weights, index = ["model.safetensors"], "model.safetensors.index.json"
    if "adapter_config.json" in there:
        weights = ["adapter_model.safetensors"]
    elif index in there and weights[0] not in there:
        weights = [index, *set(json.loads((directory / index).read_text())["weight_map"].values())]
    if missing := [name for name in weights if name not in there]:
        raise ValueError(f"{directory} holds no {', '.join(missing)}. Save the model as safetensors.")
    files: dict[str, Path | bytes] = {name: directory / name for name in there if name in (*VOCABULARIES, *weights)}
    files |= {name: _cleaned(directory / name, base_model) for name in there if name in CONFIGURATIONS}
    files |= {CARD_FILE: card.encode(), **more}
    for name, content in files.items():
        _refuse_private(content if isinstance(content, Path) else directory / name, content, labels)
    return Repository(repo_id, files, revision, tuple(name for name in there if name not in files))


# ---- What must not leave ----

# One below a directory of the root, which is the first group, or a home, `../a/b`, `C:\a` or `\\server\share`.
_PATH = re.compile(
    r"(?<![\w.~:/<-])(?:(/[\w.-]+)(?:/[\w.-]+)+|~/\w|\.\.[\\/]+[\w.-]+[\\/]+[\w.-]+|[A-Za-z]:(?:\\+|/)\w+"
    r"|\\{2,}[\w.-]+\\+[\w$.-]+)"
)
_LABELS = ("id2label", "label2id", "labels")  # `/person/artist` is no path there


def _cleaned(path: Path, base_model: str | None) -> bytes:
    """A configuration without local paths. Only what is named like a path is changed: a token may be `/`."""

    def without_origin(values: dict[str, Any]) -> dict[str, Any]:
        return {
            key: public(value, "file") if key.endswith(("_file", "_dir", "_path")) else value
            for key, value in values.items()
            if not key.endswith("name_or_path")
        }

    config = json.loads(path.read_text(encoding="utf-8"), object_hook=without_origin)
    if path.name == "adapter_config.json":
        config["base_model_name_or_path"] = base_model
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _refuse_private(path: Path, content: Path | bytes, labels: Sequence[str] = ()) -> None:
    """Refuses a text with a token or a path of this machine. Vocabularies are pieces of the corpus, so that only
    tokens of the Hub count there."""
    if path.suffix not in (".json", ".txt", ".md", ".yaml"):
        return
    text = content.decode() if isinstance(content, bytes) else content.read_text(encoding="utf-8")
    found = ["a token of the Hub"] if HUB_TOKEN.search(text) else []
    if path.name not in VOCABULARIES:
        text = "\n".join(_strings(json.loads(text))) if path.suffix == ".json" else text
        roots = {f"/{name}" for name in (*os.listdir("/"), "home", "Users", "root")}
        known = {match[0] for label in labels for match in _PATH.finditer(label)}
        paths = [match for match in _PATH.finditer(text) if match[0] not in known]
        found += [match[0] for match in paths if match[1] is None or match[1] in roots]
        found += [f"a secret ({match[1]}...)" for match in URL_SECRET.finditer(text)]
    if found:
        raise ValueError(f"{path} must not be published: it holds {', '.join(found)}. Remove that, then try again.")


def _strings(value: Any) -> Iterator[str]:
    """All strings in a value of JSON, without labels."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in _LABELS:
                yield from (key, *_strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, str):
        yield value


# ---- The command ----


def main(argv: list[str]) -> int:
    """Publishes a run. Returns the exit status: 0, or 1 where something did not reach the Hub."""
    types = (PublishArguments, CardArguments, PublicationArguments)
    first = parse_arguments(types, argv, description=__doc__)[0]
    if first.run is None:
        raise ValueError("Pass the output_dir of the run to publish: --run OUTPUT_DIR.")
    if not Path(first.run).is_dir():
        raise ValueError(f"--run {first.run}: there is no such directory.")
    published_from = _publication_directory(Path(first.run))
    known = read_publication(published_from).get("flags", {})
    if first.resume and not known:
        raise ValueError(f"{first.run} was never published: there is no {PUBLISH_FILE}. Publish it without --resume.")
    args, card, publication = parse_arguments(types, argv, description=__doc__, defaults=known)
    if args.hub_model_id is None:
        raise ValueError("Pass where to publish: --hub_model_id ORG/NAME.")
    for name in ("evaluations", "compared"):
        setattr(args, name, [os.path.abspath(path) for path in getattr(args, name) or ()])
    repositories = _repositories(args, card, publication)
    if not repositories:
        raise ValueError(f"{args.run} holds no pair to publish. Choose other --parts.")
    if args.dry_run:
        show(repositories, args.run)
        return 0
    flags = {**asdict(args), **asdict(card), **asdict(publication)}
    remember(published_from, **{name: flags[name] for name in flags.keys() - {"run", "dry_run", "resume", "force"}})
    return report(publish(repositories, published_from, args.private, publication.force), args.run)


def _publication_directory(directory: Path) -> Path:
    """Where `publish.json` lies: for a task or a seed, in the `output_dir` of a fine-tuning that was published."""
    path = directory.resolve()
    for pattern, parent in ((EvaluationRecord.FILE, path.parent.parent), (f"*/{EvaluationRecord.FILE}", path.parent)):
        is_pretraining = (parent / PretrainingRecord.FILE).exists()
        if any(path.glob(pattern)) and (parent / PUBLISH_FILE).exists() and not is_pretraining:
            return parent
    return directory


def known_card(flags: Mapping[str, Any]) -> CardArguments:
    """What the flags of a publication say to the card."""
    return CardArguments(**{each.name: flags[each.name] for each in fields(CardArguments) if each.name in flags})


def _repositories(args: Any, card: CardArguments, publication: PublicationArguments) -> list[Repository]:
    directory, base_model, results = Path(args.run), publication.base_model, (args.evaluations, args.compared)
    where, eval_results = (directory, args.hub_model_id, card), publication.eval_results
    if (directory / PretrainingRecord.FILE).is_file():
        if base_model is not None:
            raise ValueError(f"--base_model is for fine-tuned models, and {directory} is a pre-training run.")
        return pretraining_repositories(*where, publication.parts, *results, args.revisions, eval_results)
    if not any(directory.rglob(EvaluationRecord.FILE)):
        raise ValueError(
            f"{directory} holds no {PretrainingRecord.FILE} of a finished pre-training and no {EvaluationRecord.FILE} "
            "of a fine-tuning. Continue an interrupted run with --resume_from_checkpoint latest."
        )
    if any(results):
        raise ValueError(f"--evaluations and --compared are for a pre-training run, and {directory} is none.")
    return fine_tuned_repositories(*where, base_model, eval_results)


def show(repositories: Sequence[Repository], directory: str | Path) -> None:
    """Prints every file that would be uploaded, and writes the cards into the run's `publish_preview`."""
    for repository in repositories:
        branch, total = repository.revision or "main", 0
        print(f"{repository.repo_id}, branch {branch}:")
        for path, content in sorted(repository.files.items()):
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            total += size
            print(f"  {path:<40}{size:>15,} bytes")
        print(f"  in all: {format_bytes(total)}")
        if repository.left_out:
            print(f"  stays here: {', '.join(repository.left_out)}")
        preview = Path(directory) / PREVIEWS / repository.repo_id.replace("/", "--") / branch
        preview.mkdir(parents=True, exist_ok=True)
        (preview / CARD_FILE).write_bytes(bytes(repository.files[CARD_FILE]))
    print(f"Nothing was uploaded. The cards are in {Path(directory) / PREVIEWS}.")


def report(published: Sequence[Published], directory: str | Path) -> int:
    """Prints what became of each repository. Returns the exit status: 0, or 1 where something failed."""
    for each in published:
        if each.error is None:
            print(f"Published: {each.url}{'' if each.changed else ' (nothing has changed)'}")
        else:
            again = f"To try again: {RESUME} --run {directory}"
            print(f"Not published: {each.url}\n  {each.error}\n  {again}", file=sys.stderr)
    return int(any(each.error is not None for each in published))


if __name__ == "__main__":
    run(main)
