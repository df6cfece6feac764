"""`hf-electra-rtd publish`: publishes what a run left on the Hub, private at first.

    hf-electra-rtd publish --run runs/small --hub_model_id ORG/electra-small --license apache-2.0 --languages en \\
        --evaluations runs/glue --dry_run

lists every file that would be uploaded, with its size, and writes the model cards into runs/small/publish_preview.
Without --dry_run it creates ORG/electra-small-discriminator and ORG/electra-small-generator, each with weights and
card in one commit, and a branch step-N for each fraction of the run. A fine-tuning (--run runs/glue) becomes one
repository for each task, an export (--run exports/small) one for each graph. Flags that are not given are those of the
run's last publication; --resume repeats it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from huggingface_hub.utils import validate_repo_id

from hf_electra_rtd.cli import flag, parse_arguments, run
from hf_electra_rtd.configuration_electra_rtd import OBJECTIVE_TRAITS, exports_generator
from hf_electra_rtd.files import hash_model, known_names, read_json, reading
from hf_electra_rtd.publishing import card as cards
from hf_electra_rtd.publishing import hub
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import Files, Published, Repository
from hf_electra_rtd.publishing.pictures import CURVES_FILE, plot_curves
from hf_electra_rtd.publishing.tables import read_evaluations
from hf_electra_rtd.records import (
    HUB_TOKEN,
    SECRETS,
    EvaluationRecord,
    ExportRecord,
    FractionRecord,
    PretrainingRecord,
)


logger = logging.getLogger(__name__)

PARTS = ("discriminator", "generator", "detector", "pair")
PREVIEWS = "publish_preview"  # in the run's directory
Flags = Mapping[str, Any]  # of a publication, as in `publish.json`: `hub_model_id`, and those that were given


@dataclass
class _Publication:
    force: bool = flag(False, "Replace the model and card of a repository that another run or a person wrote to.")


@dataclass
class PretrainingPublication(_Publication):
    """Flags of a command that publishes a pre-training."""

    parts: list[str] | None = flag(  # noqa: RUF009
        None,
        "What to publish of a pre-training: discriminator, generator, detector, pair. Default: the first two, and the "
        "detector where the discriminator is an encoder without a head.",
    )


@dataclass
class FineTunedPublication(_Publication):
    """Flags of a command that publishes a fine-tuning."""

    base_model: str | None = flag(None, "Hub id of the model that was fine-tuned, if it was a directory.")


@dataclass
class PublishArguments(PretrainingPublication, FineTunedPublication):
    """What is published, and where."""

    run: str | None = flag(None, "output_dir of a pre-training, a fine-tuning, one of its tasks, or an export.")
    hub_model_id: str | None = flag(None, "ORG/NAME: repositories are ORG/NAME-discriminator, ORG/NAME-mrpc, ...")
    evaluations: list[str] | None = flag(None, "output_dirs of fine-tunings of this run's discriminators.")  # noqa: RUF009
    compared: list[str] | None = flag(None, "output_dirs of fine-tunings of other models, to compare with.")  # noqa: RUF009
    revisions: bool = flag(True, "Publish the exports at fractions of the run as branches step-N.")
    private: bool = flag(True, "Create private repositories and refuse public ones.")
    card_only: bool = flag(False, "Upload the cards alone, to repositories of this run.")
    dry_run: bool = flag(False, "List every file with its size and write the cards; upload nothing.")
    resume: bool = flag(False, "Repeat the run's last publication, with its flags.")


# ---- Repositories ----


def repository_ids(hub_model_id: str, model: Mapping[str, Any], parts: Sequence[str] | None = None) -> dict[str, str]:
    """The repository of each part of a pre-training run, from the configuration of its pair. An encoder that predicts
    tokens is `NAME-encoder`."""
    kind, traits = cards.kind_of(model), OBJECTIVE_TRAITS[model["objective"]]
    ids, names = {}, {"discriminator": "encoder"} if kind == "encoder" else {}
    there = {"discriminator": True, "pair": True, "detector": traits.predicts == "replaced" and not traits.needs_noise}
    there["generator"] = exports_generator(model["objective"], model["generator"])
    for part in parts or PARTS[: 3 if kind == "bare" else 2]:
        if part not in PARTS:
            raise ValueError(f"--parts: there is no part {part!r}. {known_names(part, PARTS, 'parts')}")
        if there[part]:
            ids[part] = _repo_id(hub_model_id, names.get(part, part))
    if not ids:
        raise ValueError(f"--parts {' '.join(parts or ())}: this run has no such part. Publish another one.")
    return ids


def _repo_id(hub_model_id: str, name: str) -> str:
    repo_id = f"{hub_model_id}-{name}"
    if repo_id.count("/") != 1:
        raise ValueError(f"--hub_model_id {hub_model_id}: give the owner and the start of the names, ORG/NAME.")
    validate_repo_id(repo_id)
    return repo_id


def pretraining_repositories(directory: str | Path, flags: Flags) -> list[Repository]:
    """The repositories of a pre-training run: each part's `main`, then its branches `step-<N>`. `directory` holds what
    a run leaves. Raises a ValueError for what must not be published, and for evaluations of another model."""
    directory = Path(directory)
    record, curves = PretrainingRecord.load(directory), directory / CURVES_FILE
    ids = repository_ids(flags["hub_model_id"], record.model, flags.get("parts"))
    exports = [(FractionRecord.load(path), path.parent) for path in FractionRecord.find(directory, 2)]
    exports.sort(key=lambda export: export[0].step)
    results, compared = _sort_evaluations([directory, *(path for _, path in exports)], ids.get("discriminator"), flags)
    if not os.path.lexists(curves):
        plot_curves(record, curves)
    repositories = []
    for part, repo_id in ids.items():
        branches = exports if flags.get("revisions", True) and part != "pair" else []
        about: dict[str, Any] = {"part": part, "repo_id": repo_id, "card": known_card(flags), "related": ids}
        own = results[directory] if part == "discriminator" else []
        text = cards.pretraining_card(record, own=own, compared=compared, branches=bool(branches), **about)
        more: Files = {CURVES_FILE: curves, PretrainingRecord.FILE: directory / PretrainingRecord.FILE}
        place = directory if part == "pair" else directory / part
        repositories.append(_repository(repo_id, place, text, more))
        for fraction, path in branches:
            own = results[path] if part == "discriminator" else []
            text = cards.pretraining_card(record, own=own, fraction=fraction, **about)
            repositories.append(
                _repository(repo_id, path / part, text, {CURVES_FILE: curves}, f"step-{fraction.step}")
            )
    return repositories


def _sort_evaluations(
    places: Sequence[Path], repo_id: str | None, flags: Flags
) -> tuple[dict[Path, list[EvaluationRecord]], list[EvaluationRecord]]:
    """The results of the discriminators of a run and of its exports, by their directories, the run's first; and those
    of other models. A discriminator is known by the hash of its weights; its id on the Hub is the end of the run."""
    own: dict[Path, list[EvaluationRecord]] = {place: [] for place in places}
    compared = list(read_evaluations(flags.get("compared") or ()).values())
    given = read_evaluations(flags.get("evaluations") or ())
    hashes = [hash_model(place / "discriminator") for place in places if given]
    for record in given.values():
        digest = hashes[0] if record.model["name_or_path"] == repo_id else record.model["sha256"]
        if record.model["from_scratch"]:
            compared.append(record)
        elif digest not in hashes:
            what = f"{record.task}, seed {record.seed}, is a result of {record.model['name_or_path']}"
            raise ValueError(f"--evaluations: {what}, not of {places[0]} or its fractions. Pass it with --compared.")
        else:  # the export at the end of the run is the final discriminator, too
            for place in [place for place, known in zip(places, hashes, strict=True) if known == digest]:
                own[place].append(record)
    return own, compared


def fine_tuned_repositories(directory: str | Path, flags: Flags) -> list[Repository]:
    """The repositories of fine-tuned models or adapters: for each task the model that was kept, of the best seed.
    `directory` is the `output_dir` of a fine-tuning, or one of its tasks or seeds."""
    tasks: dict[Path, dict[Path, EvaluationRecord]] = defaultdict(dict)
    for path in EvaluationRecord.find(Path(directory).resolve(), 2):
        tasks[path.parent.parent][path.parent] = EvaluationRecord.load(path)
    repositories = []
    for task, runs in tasks.items():
        kept = [path for path in runs if os.path.lexists(path / "model")]
        if not kept:
            logger.warning(f"{task.name}: no model was kept: it is not published. Fine-tune with --keep_models best.")
            continue
        best = max(kept, key=lambda path: -inf if (score := runs[path].score) is None else score)
        repo_id, model = _repo_id(flags["hub_model_id"], task.name), runs[best].model
        records = [runs.pop(best), *runs.values()]
        base = flags.get("base_model") or (None if model["sha256"] else model["name_or_path"])
        adapter = os.path.lexists(best / "model" / hub.ADAPTER_CONFIG)
        text = cards.fine_tuned_card(records, repo_id, known_card(flags), base, adapter)
        more: Files = {EvaluationRecord.FILE: best / EvaluationRecord.FILE}
        if adapter:
            config = {**read_json(best / "model" / hub.ADAPTER_CONFIG), "base_model_name_or_path": base}
            more[hub.ADAPTER_CONFIG] = json.dumps(config, indent=2).encode()
        labels = records[0].arguments.get("labels") or ()
        repositories.append(_repository(repo_id, best / "model", text, more, labels=labels))
    if not repositories:
        raise ValueError(f"{directory} holds no fine-tuned model. Fine-tune with --keep_models best.")
    return repositories


def exported_repositories(directory: Path, flags: Flags) -> list[Repository]:
    """The repositories of exported models: of that in `directory`, or of those right below it. Graphs that are not
    those of the export are a ValueError."""
    repositories = []
    for path in ExportRecord.find(directory, 1):
        record = ExportRecord.load(path)
        record.check_files(path.parent)
        repo_id = _repo_id(flags["hub_model_id"], f"{record.name}-onnx")
        text = cards.export_card(record, repo_id, known_card(flags))
        repositories.append(_repository(repo_id, path.parent, text, {ExportRecord.FILE: path}))
    return repositories


def known_card(flags: Flags) -> CardArguments:
    """What the flags of a publication say to the card."""
    return CardArguments(**{each.name: flags[each.name] for each in fields(CardArguments) if each.name in flags})


def _repository(
    repo_id: str, directory: Path, card: str, more: Files, revision: str | None = None, labels: Iterable[str] = ()
) -> Repository:
    """The model in `directory` with its card. Nothing else leaves the directory. `labels` (and those in `config.json`)
    are no paths, whatever they look like."""
    files: Files = {name: directory / name for name in hub.MODEL_FILES if os.path.lexists(directory / name)}
    if not files.keys() & set(hub.WEIGHTS):
        raise ValueError(f"{directory} holds no {hub.WEIGHTS[0]}. Save it as safetensors, or choose other --parts.")
    config = read_json(directory / "config.json") if "config.json" in files else {}
    with reading(directory / "config.json"):
        labels = [*labels, *dict(config.get("id2label") or {}).values(), *dict(config.get("label2id") or {})]
    files |= {hub.CARD_FILE: card.encode(), **more}
    for name, content in files.items():
        path = content if isinstance(content, Path) else directory / name
        if isinstance(content, Path):
            with reading(path), path.open("rb") as file:
                content = file.read(1 if path.suffix not in _TEXTS else -1)
        if path.suffix in _TEXTS:
            _refuse_private(path, content, labels)
    return Repository(repo_id, files, revision)


# ---- What must not leave ----

_TEXTS = (".json", ".txt", ".md", ".yaml")
# One below a directory of the root, which is the first group, or a home, `../a/b`, `C:\a` or `\\server\share`.
_PATH = re.compile(
    r"(?<![\w.~:/<-])(?:(/[\w.-]+)(?:/[\w.-]+)+|~/\w|\.\.[\\/]+[\w.-]+[\\/]+[\w.-]+|[A-Za-z]:(?:\\+|/)\w+"
    r"|\\{2,}[\w.-]+\\+[\w$.-]+)"
)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of which nothing may be hidden behind an equal name."""
    if len(pairs) != len(dict(pairs)):
        raise ValueError("a name stands twice in it")
    return dict(pairs)


def _strings(value: Any) -> Iterator[str]:
    """Names and texts of JSON."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, str):
        yield value


def _refuse_private(path: Path, content: bytes, labels: Iterable[str]) -> None:
    """Refuses a text with a secret or a path of this machine that stands in none of the labels. Vocabularies are
    pieces of the corpus, so that only tokens of the Hub count there."""
    with reading(path):
        text = content.decode()
        values = json.loads(text, object_pairs_hook=_each_once) if path.suffix == ".json" else {}
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
    if path.name in hub.VOCABULARIES:
        found = ["a token of the Hub"] if HUB_TOKEN.search(text) else []
    else:
        lines = [line for string in (_strings(values) if values else [text]) for line in string.splitlines()]
        roots = {f"/{name}" for name in (*os.listdir("/"), "home", "Users", "root")}
        of_labels = {match[0] for label in labels for match in _PATH.finditer(str(label))}
        paths = [match for line in lines for match in _PATH.finditer(line) if match[0] not in of_labels]
        found = [match[0] for match in paths if match[1] is None or match[1] in roots]
        for name, secret, _ in SECRETS:
            found += [name.format(*match.groups()) for line in lines for match in secret.finditer(line.strip())]
    if found:
        told = ", ".join(dict.fromkeys(found))
        raise ValueError(f"{path} must not be published: it holds {told}. Remove that, then try again.")


# ---- The command ----


def main(argv: list[str]) -> int:
    """Publishes a run. Returns the exit status: 0, or 1 where something did not reach the Hub."""
    types = (PublishArguments, CardArguments)
    first, _ = parse_arguments(types, argv, description=__doc__)
    if first.run is None:
        raise ValueError("Pass the output_dir of the run to publish: --run OUTPUT_DIR.")
    directory = Path(first.run)
    published_from = _publication_directory(directory)
    known = hub.read_publication(published_from).get("flags", {})
    if first.resume and not known:
        raise ValueError(f"{directory} was never published: it holds no {hub.PUBLISH_FILE}. Leave out --resume.")
    args, card = parse_arguments(types, argv, description=__doc__, defaults=known)
    if args.hub_model_id is None:
        raise ValueError("Pass where to publish: --hub_model_id ORG/NAME.")
    flags = {**asdict(args), **asdict(card)}
    for name in ("run", "card_only", "dry_run", "resume", "force"):  # of this call alone
        del flags[name]
    for name in ("evaluations", "compared"):
        flags[name] = [os.path.abspath(path) for path in flags[name] or ()]
    unnamed = sorted({*known.get("evaluations", ())} - {*flags["evaluations"]})
    if unnamed and not args.force:
        lost = f"--evaluations: the results of {', '.join(unnamed)} are published and would be gone"
        raise ValueError(f"{lost}. Name them, too, or remove them with --force.")
    repositories = _repositories(directory, flags)
    if args.card_only:
        for each in repositories:
            each.files, each.is_whole = {hub.CARD_FILE: each.files[hub.CARD_FILE]}, False
    if args.dry_run:
        show(repositories, directory)
        return 0
    hub.remember(published_from, **flags)
    return report(hub.publish(repositories, published_from, args.private, args.force), directory)


def _publication_directory(directory: Path) -> Path:
    """Where `publish.json` lies: for a task or a seed, in the `output_dir` of a fine-tuning that was published."""
    for path in (directory, *directory.resolve().parents[:2]):
        if os.path.lexists(path / hub.PUBLISH_FILE) and not os.path.lexists(path / PretrainingRecord.FILE):
            return path
    return directory


def _repositories(directory: Path, flags: Flags) -> list[Repository]:
    def refuse(kind: str, *names: str) -> None:
        for name in names:
            if (flags[name] or None) != (getattr(PublishArguments(), name) or None):
                raise ValueError(f"--{name} has no meaning for {kind}. Leave it out.")

    if os.path.lexists(directory / PretrainingRecord.FILE):
        refuse("a pre-training", "base_model")
        if not flags["evaluations"]:
            refuse("a pre-training without --evaluations", "compared")
        return pretraining_repositories(directory, flags)
    if EvaluationRecord.find(directory):
        refuse("a fine-tuning", "parts", "revisions", "evaluations", "compared")
        return fine_tuned_repositories(directory, flags)
    if exported := exported_repositories(directory, flags):
        refuse("an export", "parts", "revisions", "evaluations", "compared", "base_model")
        return exported
    names = f"{PretrainingRecord.FILE}, {EvaluationRecord.FILE} or {ExportRecord.FILE} of a finished run"
    raise ValueError(f"{directory} holds no {names}. To finish a pre-training, use --resume_from_checkpoint latest.")


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


def report(published: Sequence[Published], directory: str | Path) -> int:
    """Prints what became of each repository. Returns the exit status: 0, or 1 where something failed."""
    for each in published:
        if each.error is None:
            print(f"Published: {each.url}{'' if each.changed else ' (nothing has changed)'}")
        else:
            again = f"To try again: {hub.RESUME} --run {directory}"
            print(f"Not published: {each.url}\n  {each.error}\n  {again}", file=sys.stderr)
    return int(any(each.error is not None for each in published))


if __name__ == "__main__":
    run(main)
