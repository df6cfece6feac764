"""`hf-electra-rtd publish`: publishes what a run left on the Hub, private at first.

    hf-electra-rtd publish --run runs/small --hub_model_id ORG/electra-small --license apache-2.0 --languages en \\
        --evaluations runs/glue --dry_run

lists every file with its size and writes the model cards into runs/small/publish_preview. Without --dry_run it creates
ORG/electra-small-discriminator and -generator, with a branch step-N for each fraction of the run. A fine-tuning gets a
repository for each task, an export one for each graph. Flags that are not given are those of the last publication.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
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
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.publishing.tables import read_evaluations
from hf_electra_rtd.records import (
    HUB_TOKEN,
    EvaluationRecord,
    ExportRecord,
    FractionRecord,
    PretrainingRecord,
    public,
)


logger = logging.getLogger(__name__)

PARTS = ("discriminator", "generator", "detector", "pair")
PREVIEWS = "publish_preview"  # in the run's directory
Flags = Mapping[str, Any]  # of a publication, as in `publish.json`: `hub_model_id`, and those that were given


_FORCE = "Replace the model and card of a repository that another run or a person wrote to."


@dataclass
class PretrainingPublication:
    """Flags of a command that publishes a pre-training."""

    is_new = False  # not a flag; true for a run that replaces another, whose key it must not use
    force: bool = flag(False, _FORCE)
    parts: list[str] | None = flag(None, "Any of discriminator, generator, detector, pair.")


@dataclass
class FineTunedPublication:
    """Flags of a command that publishes a fine-tuning."""

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
    card_only: bool = flag(False, "Upload the cards alone, to repositories of this run.")
    dry_run: bool = flag(False, "List every file with its size and write the cards; upload nothing.")
    resume: bool = flag(False, "Repeat the run's last publication, with its flags.")


# ---- Repositories ----


def repository_ids(hub_model_id: str, model: Mapping[str, Any], parts: Sequence[str] | None = None) -> dict[str, str]:
    """The repository of each part of a pre-training run, from the configuration of its pair. An encoder that predicts
    tokens is `NAME-encoder`."""
    kind, traits = cards.kind_of(model), OBJECTIVE_TRAITS[model["objective"]]
    names = {"discriminator": "encoder"} if kind == "encoder" else {}
    there = {"discriminator": True, "pair": True, "detector": traits.predicts == "replaced" and not traits.needs_noise}
    there["generator"] = exports_generator(model["objective"], model["generator"])
    wanted = parts or PARTS[: 3 if kind == "bare" else 2]
    for part in wanted:
        if part not in PARTS:
            raise ValueError(f"--parts: there is no part {part!r}. {known_names(part, PARTS, 'parts')}")
    ids = {part: _repo_id(hub_model_id, names.get(part, part)) for part in wanted if there[part]}
    if not ids:
        raise ValueError(f"--parts {' '.join(wanted)}: this run has no such part. Publish another one.")
    return ids


def _repo_id(hub_model_id: str | None, name: str) -> str:
    if not hub_model_id:
        raise ValueError("--hub_model_id is missing: give ORG/NAME.")
    repo_id = f"{hub_model_id}-{name}"
    if repo_id.count("/") != 1:
        raise ValueError(f"--hub_model_id {hub_model_id}: give the owner and the start of the names, ORG/NAME.")
    validate_repo_id(repo_id)
    return repo_id


def pretraining_repositories(directory: str | Path, flags: Flags) -> list[Repository]:
    """The repositories of a pre-training run: each part's `main`, then its branches `step-<N>`. `directory` holds what
    a run leaves. Raises a ValueError for what must not be published, and for evaluations of another model."""
    directory = Path(directory)
    record = PretrainingRecord.load(directory)
    ids = repository_ids(flags["hub_model_id"], record.model, flags.get("parts"))
    own, compared = [], list(read_evaluations(flags.get("compared") or ()).values())
    digest = hash_model(directory / "discriminator") if flags.get("evaluations") else None
    for result in read_evaluations(flags.get("evaluations") or ()).values():
        model = result.model
        if model["from_scratch"]:
            compared.append(result)
        elif digest == model["sha256"] or model["name_or_path"] == ids.get("discriminator"):
            own.append(result)
        else:
            what = f"{result.task}, seed {result.seed}, is a result of {model['name_or_path']}"
            raise ValueError(f"--evaluations: {what}, not of {directory}. Pass it with --compared.")
    fractions = {path.parent: FractionRecord.load(path) for path in FractionRecord.find(directory, 2)}
    exports = sorted(fractions.items(), key=lambda export: export[1].step)
    curves: Files = {CURVES_FILE: directory / CURVES_FILE}
    repositories = []
    for part, repo_id in ids.items():
        about: dict[str, Any] = {"part": part, "repo_id": repo_id, "card": known_card(flags), "related": ids}
        results = own if part == "discriminator" else []
        branches = [f"step-{fraction.step}" for _, fraction in exports if part != "pair"]
        text = cards.pretraining_card(record, own=results, compared=compared, branches=branches, **about)
        more = {**curves, PretrainingRecord.FILE: directory / PretrainingRecord.FILE}
        repositories.append(_repository(repo_id, directory if part == "pair" else directory / part, text, more))
        for path, fraction in exports if part != "pair" else []:
            text = cards.pretraining_card(record, fraction=fraction, **about)
            repositories.append(_repository(repo_id, path / part, text, curves, f"step-{fraction.step}"))
    return repositories


def fine_tuned_repositories(directory: str | Path, flags: Flags) -> list[Repository]:
    """The repositories of fine-tuned models or adapters: for each task below an `output_dir` the model that was kept,
    of the best seed."""
    tasks: dict[Path, dict[Path, EvaluationRecord]] = defaultdict(dict)
    for path in EvaluationRecord.find(Path(directory).resolve(), 2):
        tasks[path.parent.parent][path.parent] = EvaluationRecord.load(path)
    repositories = []
    for task, runs in tasks.items():
        kept = [path for path in runs if os.path.lexists(path / "model")]
        if not kept:
            logger.warning(f"{task.name}: no model was kept: it is not published. Fine-tune with --keep_models best.")
            continue
        best = max(kept, key=lambda path: runs[path].dev_score)
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


# Paths of another machine: a home, `C:\a` or `\\server\share`.
_FOREIGN = re.compile(r"(?:file:(?://)?)?/(?:home|Users|root)/|~[\\/]|[A-Za-z]:[\\/](?!/)|\\\\[\w.-]+\\")
_TOKENS = ("_token", "_tokens", "_tokens_decoder")  # how names of tokens in `tokenizer_config.json` end


def _lines(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Names and lines of text at any depth of JSON, each behind the name that it stands under."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (*_lines(key), *_lines(item, key))
    elif isinstance(value, list):
        for item in value:
            yield from _lines(item, name)
    elif isinstance(value, str):
        yield from ((name, line.strip()) for line in value.splitlines())


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
    no_paths = {str(label) for label in labels if re.match(r"\W", str(label))}  # others could hold a secret
    files |= {hub.CARD_FILE: card.encode(), **more}
    for name, content in files.items():
        path = content if isinstance(content, Path) else directory / name
        is_text = path.suffix in (".json", ".txt", ".md")
        with reading(path):
            if isinstance(content, Path):
                with path.open("rb") as file:
                    content = file.read(-1 if is_text else 1)
            text = content.decode() if is_text else ""
            values: Any = json.loads(text) if path.suffix == ".json" else text
            if name == "tokenizer_config.json":  # tokens may look like paths
                values = {key: value for key, value in dict(values).items() if not key.endswith(_TOKENS)}
        lines = [line for line in _lines(values) if line[1] not in no_paths and name not in hub.VOCABULARIES]
        if HUB_TOKEN.search(text) or any(public(line, of) != line or _FOREIGN.match(line) for of, line in lines):
            what = "it holds a path of this machine, a password or a token"
            raise ValueError(f"{path} must not be published: {what}. Remove that, then try again.")
    return Repository(repo_id, files, revision)


# ---- The command ----


def main(argv: list[str]) -> int:
    """Publishes a run. Returns the exit status: 0, or 1 where something did not reach the Hub."""
    types = (PublishArguments, CardArguments)
    first, _ = parse_arguments(types, argv, description=__doc__)
    directory = Path(first.run)
    known = hub.read_publication(directory).get("flags", {})
    if first.resume and not known:
        raise ValueError(f"{directory} was never published: it holds no {hub.PUBLISH_FILE}. Leave out --resume.")
    args, card = parse_arguments(types, argv, description=__doc__, defaults=known)
    flags = {**asdict(args), **asdict(card)}
    for name in ("run", "card_only", "dry_run", "resume", "force"):  # of this call alone
        del flags[name]
    for name in ("evaluations", "compared"):
        flags[name] = [os.path.abspath(path) for path in flags[name] or ()]
    unnamed = sorted({*known.get("evaluations", ())} - {*flags["evaluations"]})
    if unnamed and not args.force:
        lost = f"--evaluations: the results of {', '.join(unnamed)} are published and would be gone"
        raise ValueError(f"{lost}. Name them, too, or remove them with --force.")
    is_pretraining = os.path.lexists(directory / PretrainingRecord.FILE)
    is_tuned = not is_pretraining and bool(EvaluationRecord.find(directory))
    useless: tuple[str, ...] = ("base_model",) if is_pretraining else ("parts", "evaluations", "compared")
    useless += () if is_pretraining or is_tuned else ("base_model",)
    useless += () if flags["evaluations"] else ("compared",)  # which stands beside them
    given = [name for name in useless if flags[name] and flags[name] != known.get(name)]
    if given and (is_pretraining or is_tuned or ExportRecord.find(directory, 1)):
        raise ValueError(f"--{given[0]} has no place in what is published. Leave it out.")
    if is_pretraining:
        repositories = pretraining_repositories(directory, flags)
    elif is_tuned:
        repositories = fine_tuned_repositories(directory, flags)
    elif not (repositories := exported_repositories(directory, flags)):
        names = f"{PretrainingRecord.FILE}, {EvaluationRecord.FILE} or {ExportRecord.FILE} of a finished run"
        raise ValueError(f"{directory} holds no {names}. Finish a pre-training with --resume_from_checkpoint latest.")
    if args.card_only:
        for each in repositories:
            each.files = {hub.CARD_FILE: each.files[hub.CARD_FILE]}
    if args.dry_run:
        show(repositories, directory)
        return 0
    hub.remember(directory, **flags)
    return report(hub.publish(repositories, directory, args.private, args.force), directory)


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
