"""Exports a model as an ONNX graph, for onnxruntime, a browser or a phone.

    hf-electra-rtd export --model runs/small --output_dir exports/small --file sentences.txt
    hf-electra-rtd export --model runs/reviews --output_dir exports/reviews --file dev.csv \\
        --text_column_name review --label_column_name stars

The first command writes the two networks of a run, `detector/` and `generator/`; the second a fine-tuned model with
its head (adapters are merged). A directory has the layout of transformers.js: `onnx/model.onnx`, the same graph with
weights in int8 (`onnx/model_quantized.onnx`), `config.json` and the tokenizer. It also holds a model card and
`export_record.json`.

Nothing is written unless the graph agrees with torch: the same outputs at several shapes and, with --file (or, for a
task of a benchmark, --data_dir), the same prediction for every row. The command prints what int8 costs.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.base import records
from hf_electra_rtd.base.cli import Rule, check_arguments, flag, parse_arguments, required, run
from hf_electra_rtd.base.files import hash_model, reading, write_text, writing
from hf_electra_rtd.base.records import EvaluationRecord, ExportRecord
from hf_electra_rtd.base.tasks import get_task
from hf_electra_rtd.data.reader import read_lines
from hf_electra_rtd.data.tokenization import fit_tokenizer, load_tokenizer, save_tokenizer
from hf_electra_rtd.encoders import detectors
from hf_electra_rtd.encoders.families import inputs_of, max_length
from hf_electra_rtd.encoders.outputs import HeadOutput
from hf_electra_rtd.finetuning.arguments import OwnTaskArguments
from hf_electra_rtd.finetuning.data import Split, load_split, own_task
from hf_electra_rtd.finetuning.kinds import Kind, make_kind
from hf_electra_rtd.finetuning.predict import Classifier, answer_split
from hf_electra_rtd.finetuning.report import compared
from hf_electra_rtd.inference.detection import load_for_detection
from hf_electra_rtd.pair.onnx_model import MISSING, TORCH, OnnxModel
from hf_electra_rtd.pair.places import (
    DETECTOR,
    FINE_TUNED,
    GENERATOR,
    GRAPHS,
    NETWORK_FILES,
    NETWORKS,
    RUN,
    identify,
    read_stock_config,
)
from hf_electra_rtd.pair.towers import load_masked_lm
from hf_electra_rtd.publishing.card import CardArguments, export_card, export_table
from hf_electra_rtd.publishing.hub import CARD_FILE


# The largest difference of outputs of the float32 graph from torch's, and its share of the largest output, if that is
# more. Torch's own rounding to float32 is up to 6e-6 of the largest logit of `examples/models/tiny-wikipedia`.
TOLERANCE = 1e-4
_RELATIVE_TOLERANCE = 2e-5
POINTS = 1.0  # points of 100 that int8 may lose without a warning
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
# `reduce_range` keeps weights to 7 bits, so that sums do not overflow on processors that add in 16 bits.
_QUANTIZATION = {"per_channel": True, "reduce_range": True}
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_TOWERS = ("detector", "generator")
# Models with one output per token: the outputs at padding mean nothing.
_OF_TOKENS = (*_TOWERS, "tagging", "correction")
_OF_ANSWERS = ("start_logits", "end_logits")
_COLUMNS = ("text_column_name", "second_text_column_name", "label_column_name")
_LARGEST_FILE = 2**31  # bytes of a protocol buffer file; the weights of larger models are in a file beside it
_SPEED_SHAPE = (8, 128)
_SPEED_SECONDS = 4.0
# The shapes (sequences, tokens) of the batches that are compared. The graph is traced with the first one, in which a
# size of 1 would become a constant.
_SHAPES = ((3, 8), (1, 2), (1, 512), (2, 17), (7, 33), (2, 128))


RULES = (
    Rule("file", "Each names rows to try the graph on.", excludes=("data_dir",)),
    *(Rule(name, "It names a column of this file.", needs=("file",), changes_nothing=True) for name in _COLUMNS),
    Rule("batch_size", "", needs=("file", "data_dir"), changes_nothing=True),
)


@dataclass
class ExportArguments:
    """What is exported, where to, and what it is tried on."""

    model: str = required("A pre-training or fine-tuning run, or directory or Hub id of a model of one.")
    output_dir: str = required("Directory for the graph, its tokenizer and its card.")
    file: str | None = flag(
        None, "Data to test the graph on: labeled rows of a task, as for finetune, or texts, one per line."
    )
    text_column_name: str = flag("text", "Column of the text, or of the words to tag.")
    second_text_column_name: str | None = flag(None, "Column of a pair's second text.")
    label_column_name: str | None = flag(None, "Column of the label, number or tags: label; of answers: answers.")
    data_dir: str | None = flag(
        None, "In place of --file: directory of the benchmark whose task the model was fine-tuned on."
    )
    batch_size: int = flag(64, "Batch size on these rows.", "[1, inf)")

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)


@dataclass
class Source:
    """A model that is exported."""

    place: str  # its directory or Hub id
    name: str  # `detector`, `generator`, `discriminator`, or the name of the task
    kind: str  # `detector`, `generator`, or the kind of the task
    model: Any  # a torch model in evaluation mode
    tokenizer: PreTrainedTokenizerBase
    classifier: Classifier | None = None  # set for a fine-tuned model


def main(argv: list[str]) -> int:
    """Exports a model. Raises ValueError for a model that cannot be exported, and for a graph that is not accepted."""
    (args,) = parse_arguments((ExportArguments,), argv, description=__doc__)
    logging.basicConfig(level=logging.ERROR, format="%(message)s")  # the exporter and the quantizer log much advice
    logging.getLogger("hf_electra_rtd").setLevel(logging.WARNING)
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.getLogger("transformers.modeling_utils").setLevel(logging.ERROR)  # `load_with_head` checks the tensors
    logging.getLogger("transformers.distributed").setLevel(logging.ERROR)  # its warnings tell how to shard layers
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # its warnings are about packages that are not installed
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ValueError(MISSING.format(package))
    command = records.public_command([sys.argv[0], *argv])
    several = identify(args.model).kind in (RUN, NETWORKS)
    for source in open_sources(args.model):
        directory = Path(args.output_dir, source.name) if several else Path(args.output_dir)
        print(describe(export(source, directory, args, command), directory))
    return 0


# ---- What is exported ----


def open_sources(name: str) -> Iterator[Source]:
    """Yields the models of a directory or a Hub id: those of a pre-training run (the detector, and the generator if
    there is one), a single tower, or the model of a fine-tuning run. Raises ValueError for any other model."""
    place = identify(name)
    if place.kind == FINE_TUNED:
        yield _open_classifier(str(place.model))
    elif place.kind in (RUN, NETWORKS):
        for network in filter(None, (place.detector, place.generator)):
            source = _open_tower(network)
            if network == place.discriminator and source.name == "generator":  # a discriminator that predicts tokens
                source.name = "discriminator"
            yield source
    else:
        yield _open_tower(name)


def _open_tower(name: str) -> Source:
    place = identify(name)
    if place.kind == GENERATOR:
        return Source(name, "generator", "generator", load_masked_lm(name).eval(), load_tokenizer(name))
    if place.kind == DETECTOR:
        _, model, tokenizer = load_for_detection(name, as_is=True)
        return Source(name, "detector", "detector", model.cpu(), tokenizer)
    raise place.error("a run, one of its networks, or a fine-tuned model")


def _open_classifier(place: str) -> Source:
    classifier = Classifier(place, use_cpu=True)
    task = classifier.task
    record = _evaluation(place)
    if task.kind == "embedding":
        raise ValueError(f"{place} gives embeddings: SentenceTransformer(..., backend='onnx') makes graphs of those.")
    if hasattr(classifier.model, "merge_and_unload"):  # adapters
        classifier.model = classifier.model.merge_and_unload()
    name = task.kind if record is None else record.task
    tokenizer = classifier.kind.tokenizer
    return Source(place, name, task.kind, classifier.model.eval(), tokenizer, classifier)


def _evaluation(place: str) -> EvaluationRecord | None:
    beside = Path(place).parent
    return EvaluationRecord.load(beside) if (beside / EvaluationRecord.FILE).is_file() else None


class _Graph(nn.Module):
    """Wraps a model as a function of tensors alone. A detector returns the logits of two labels per token, [0, z]
    instead of its single logit z."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.model = source.model
        self.kind = source.kind

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        of_head = {name: tensor for name, tensor in given.items() if tensor is not None}
        inputs = inputs_of(self.model.config, given) if self.kind in _TOWERS else of_head
        if self.kind == "detector":
            z_BL = detectors.detection_logits(self.model, **inputs)
            return {"logits": torch.stack([torch.zeros_like(z_BL), z_BL], dim=-1)}
        outputs = self.model(**inputs, **({"whole": True} if self.kind == "correction" else {}))
        return {name: outputs[name] for name in HeadOutput.__dataclass_fields__ if outputs.get(name) is not None}


# ---- The export ----


def _size_of(path: Path) -> int:
    """Returns the bytes of a graph, including the file beside it that holds the weights of a large graph."""
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))


def export(source: Source, directory: Path, args: ExportArguments, command: str) -> ExportRecord:
    """Writes a model as a graph if the graph is accepted, and returns the record of the export. Raises ValueError for
    a graph that is not accepted; `directory` then stays as it was."""
    config = _config(source)
    tokenizer = source.tokenizer
    limit = max_length(source.model.config)
    fit_tokenizer(tokenizer, config)
    known = inputs_of(config, dict.fromkeys(_INPUTS, torch.zeros(1, 1)))
    names = [name for name in _INPUTS if name in known]
    graph = _Graph(source).eval()
    rows = _rows(source, args)
    batches = [_batch(source, names, *shape) for shape in dict.fromkeys((b, min(n, limit)) for b, n in _SHAPES)]
    timed = _batch(source, names, _SPEED_SHAPE[0], min(_SPEED_SHAPE[1], limit))
    with writing(directory, ExportRecord.FILE, ("onnx", CARD_FILE, *NETWORK_FILES)) as partial:
        paths = {name: partial / file for name, file in GRAPHS.items()}
        paths["onnx"].parent.mkdir(parents=True)
        _write_graph(graph, batches[0], limit, paths["onnx"], source)
        _quantize(*paths.values())
        if len(list(paths["onnx"].parent.iterdir())) > len(paths):
            setattr(config, "transformers.js_config", {"use_external_data_format": {paths["onnx"].name: True}})
        config.save_pretrained(partial)
        save_tokenizer(tokenizer, partial)
        models: dict[str, Any] = {TORCH: graph, **{name: OnnxModel(path, config) for name, path in paths.items()}}
        difference, tolerance = _compare(source, models, batches)
        dev = {} if rows is None else _try(source, models, names, rows, args.batch_size, tolerance)
        if dev and (wrong := dev["predictions"] - dev["equal"]["onnx"]):
            raise ValueError(
                f"The graph of {source.place} is not accepted: {wrong:,} of {dev['predictions']:,} predictions are "
                "not torch's. Nothing was written."
            )
        place = Path(source.place)
        sizes = {TORCH: _bytes_of(graph), **{name: _size_of(path) for name, path in paths.items()}}
        record = ExportRecord(
            command=command,
            finished=records.utc_now(),
            name=source.name,
            kind=source.kind,
            model={
                "name_or_path": records.public(args.model, "model_name_or_path"),
                "sha256": hash_model(place) if place.is_dir() else None,
                "architecture": type(source.model).__name__,
            },
            inputs=names,
            outputs=models["onnx"].output_names,
            megabytes={name: round(size / 1e6, 1) for name, size in sizes.items()},
            shapes=[list(batch["input_ids"].shape) for batch in batches],
            largest_difference=difference,
            tolerance=tolerance,
            dev=dev,
            speed={
                "shape": list(timed["input_ids"].shape),
                "threads": torch.get_num_threads(),
                "sentences_per_second": _speeds(models, timed),
            },
            hardware={**records.collect_hardware(), "accelerators": []},  # it runs on the CPU
            versions=records.collect_versions() | {name: metadata.version(name) for name in PACKAGES},
        )
        write_text(partial / CARD_FILE, export_card(record, directory.name, CardArguments()))
        record.save(partial)
    return record


def _config(source: Source) -> Any:
    """Returns the configuration of the export. For a detector, it is that of the stock model with two labels per
    token."""
    # For adapters, `model.config` is that of the base model, so the saved configuration is read.
    is_stock = source.classifier is None
    config = copy.deepcopy(source.model.config) if is_stock else read_stock_config(source.place)
    config.architectures = [type(source.model).__name__]
    if source.kind == "detector":
        detectors.label(config)
        config.architectures = [MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES[config.model_type]]
    return config


def _batch(source: Source, names: Sequence[str], number: int, length: int) -> dict[str, Tensor]:
    """Makes padded sequences of random tokens between [CLS] and [SEP], each shorter than the one before it. Tokens
    after the first half of `length` have type 1. For multiple choice, there are several for each of `number`
    questions."""
    tokenizer = source.tokenizer
    random = np.random.default_rng(0)
    shape = (number, 2 + number % 3, length) if source.kind == "multiple_choice" else (number, length)
    rows = math.prod(shape[:-1])
    places = np.arange(length)
    lengths = np.maximum(length - np.arange(rows) * max(1, length // (rows + 1)), 2)[:, None]
    words = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
    ids = random.choice(words, (rows, length))
    ids[:, 0] = tokenizer.cls_token_id
    ids = np.where(places == lengths - 1, tokenizer.sep_token_id, ids)
    real = places < lengths
    values = (np.where(real, ids, tokenizer.pad_token_id), real, real & (places >= length // 2))
    arrays = dict(zip(_INPUTS, values, strict=True))
    return {name: torch.from_numpy(arrays[name].astype(np.int64)).reshape(shape) for name in names}


def _write_graph(graph: _Graph, example: Mapping[str, Tensor], limit: int, path: Path, source: Source) -> None:
    """Writes the float32 graph. Raises ValueError if `torch.onnx` cannot make it."""
    import onnx

    axes = [torch.export.Dim("batch"), torch.export.Dim("choices"), torch.export.Dim("sequence", min=2, max=limit)]
    dynamic = dict(enumerate(axes if example["input_ids"].dim() == 3 else axes[::2]))
    options: dict[str, Any] = {"dynamic_shapes": dict.fromkeys(example, dynamic), "dynamo": True, "verbose": False}
    with torch.no_grad():
        options |= {"input_names": list(example), "output_names": list(graph(**example))}
    with reading(source.place, "torch.onnx makes no graph of it."), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that inputs share dimensions, which is intended
        program: Any = torch.onnx.export(graph, (), kwargs=dict(example), **options)
    external = _bytes_of(graph) >= _LARGEST_FILE
    # transformers.js looks for the suffix `.onnx_data`.
    onnx.save_model(program.model_proto, path, save_as_external_data=external, location=f"{path.name}_data")


def _bytes_of(graph: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in graph.parameters())


def _quantize(path: Path, quantized: Path) -> None:
    """Writes the graph with weights in int8. It quantizes activations dynamically, with scales that it computes at run
    time."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    # The quantizer transposes weights but keeps the shapes recorded here for them, and then fails on the mismatch.
    del model.graph.value_info[:]
    quantize_dynamic(model, quantized, weight_type=QuantType.QInt8, **_QUANTIZATION)


# ---- Acceptance ----


@torch.no_grad()
def _compare(
    source: Source, models: Mapping[str, Any], batches: Sequence[Mapping[str, Tensor]]
) -> tuple[float, float]:
    """Returns the largest difference of an output from torch's, except at padding, and the tolerance. Raises
    ValueError if the difference is larger than the tolerance."""
    differences = []
    sizes = []
    for batch in batches:
        ours = models[TORCH](**batch)
        theirs = models["onnx"](**batch, whole=True)
        for name, wanted in ours.items():
            of_tokens = source.kind in _OF_TOKENS or name in _OF_ANSWERS
            real = batch["attention_mask"].bool() if of_tokens else slice(None)
            differences.append((theirs[name][real] - wanted[real]).abs().max())
            sizes.append(wanted[real].abs().max())
    difference, largest = (float(torch.stack(each).max()) for each in (differences, sizes))
    tolerance = max(TOLERANCE, _RELATIVE_TOLERANCE * largest)
    if not difference <= tolerance:  # also true for NaN
        raise ValueError(
            f"The graph of {source.place} is not accepted: its outputs differ from torch's by {difference:.2g}, and "
            f"{tolerance:.0e} is allowed. Nothing was written."
        )
    return difference, tolerance


def _rows(source: Source, args: ExportArguments) -> Any:
    """Returns the rows that the model is tried on: the kind and the labeled split of a task, or texts; None if no flag
    names rows."""
    if args.data_dir is None and args.file is None:
        return None
    if source.classifier is not None:
        return _labeled(source, source.classifier, args)
    if args.file is None:
        raise ValueError(f"--data_dir: {source.place} was not fine-tuned. Give it texts, one a line (--file).")
    if not (lines := [line for line in read_lines(args.file) if line.strip()]):
        raise ValueError(f"{args.file} holds no text.")
    return lines


def _labeled(source: Source, classifier: Classifier, args: ExportArguments) -> tuple[Kind, Split]:
    task = classifier.task
    if args.data_dir is not None:
        record = _evaluation(source.place)
        if record is None or record.benchmark == "own":
            raise ValueError(f"--data_dir: {source.place} has no record of a benchmark's task. Pass --file.")
        task = get_task(record.benchmark, record.task)
        split = load_split(task, task.dev_splits[0], args.data_dir)
    else:
        columns = {name: getattr(args, name) for name in _COLUMNS}
        unanswerable = task.unanswerable if task.kind == "question_answering" else None
        facts = {"task_kind": task.kind, "language": task.language, "unanswerable": unanswerable}
        labels = list(classifier.labels) or None
        own = OwnTaskArguments(validation_file=args.file, labels=labels, **columns, **facts)  # type: ignore[arg-type]
        task = own_task(source.name, own)
        classifier.check_number(str(args.file), len(task.columns))
        split = load_split(task, task.dev_splits[0], None)
    kind = make_kind(task, source.tokenizer, **classifier.lengths)
    split.features = kind.encode(split.examples, training=False)
    return kind, split


def _try(
    source: Source, models: Mapping[str, Any], names: Sequence[str], rows: Any, batch_size: int, tolerance: float
) -> dict[str, Any]:
    """Returns the field `dev` of an `ExportRecord`, from the predictions of all models. Numbers may differ by
    `tolerance`."""
    if source.classifier is None:
        return _try_texts(source, models, names, rows, batch_size, tolerance)
    found = {}
    scores = {}
    classes = {}
    kind, split = rows
    for name, model in {**models, TORCH: source.model}.items():
        found[name], scores[name] = answer_split(model, kind, split, batch_size, use_cpu=True)
        answers = zip(found[name], kind.references(split.examples), strict=True)
        labeled = [answer for answer in answers if answer[1] is not None]
        classes[name] = compared(kind, *zip(*labeled, strict=True)).get("classes", {}) if labeled else {}
    pairs = {name: zip(found[name], found[TORCH], strict=True) for name in GRAPHS}
    equal = {name: sum(_are_equal(one, other, tolerance) for one, other in pairs[name]) for name in GRAPHS}
    return {"predictions": len(found[TORCH]), "equal": equal, "scores": scores, "classes": classes}


def _are_equal(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, dict):  # an answer, with its n-best list
        return bool(one["text"] == other["text"])
    is_number = isinstance(one, float)
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=tolerance) if is_number else bool(one == other)


@torch.no_grad()
def _try_texts(
    source: Source,
    models: Mapping[str, Any],
    names: Sequence[str],
    lines: Sequence[str],
    batch_size: int,
    tolerance: float,
) -> dict[str, Any]:
    """Like `_try`, for texts without labels: the prediction for each token is its label or the likeliest token. A
    prediction that torch finds as likely as its own, up to the tolerance, counts as equal, because among many tokens
    there are ties."""
    number = 0
    equal = dict.fromkeys(GRAPHS, 0)
    for start in range(0, len(lines), batch_size):
        options = {"padding": True, "truncation": True, "return_tensors": "pt", "split_special_tokens": True}
        tokens = source.tokenizer(lines[start : start + batch_size], **options)
        inputs = {name: tokens[name] for name in names if name in tokens}
        real = tokens["attention_mask"].bool()
        wanted = models[TORCH](**inputs)["logits"][real]
        number += len(wanted)
        for name in GRAPHS:
            chosen = models[name](**inputs)["logits"][real].argmax(-1, keepdim=True)
            behind = wanted.max(-1, keepdim=True).values - wanted.gather(-1, chosen)
            equal[name] += int((behind <= 2 * tolerance).sum())
    return {"predictions": number, "equal": equal, "scores": {}, "classes": {}}


@torch.no_grad()
def _speeds(models: Mapping[str, Callable[..., Any]], batch: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns the sentences per second of each model, from the fastest of at least three calls after a first one that
    does not count. The models take turns, so that other work on the machine slows all of them."""
    seconds = dict.fromkeys(models, math.inf)
    for model in models.values():
        model(**batch)
    stop = time.perf_counter() + _SPEED_SECONDS
    turns = 0
    while turns < 3 or time.perf_counter() < stop:
        turns += 1
        for name, model in models.items():
            began = time.perf_counter()
            model(**batch)
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return {name: round(len(batch["input_ids"]) / fastest, 1) for name, fastest in seconds.items()}


def describe(record: ExportRecord, directory: Path) -> str:
    """Returns the summary of an export that the command prints."""
    difference = f"{record.largest_difference:.1e} from torch's at most, at {len(record.shapes)} shapes of batches"
    lines = [f"{directory}: {record.name} as {record.model['architecture']}, accepted.", f"Outputs: {difference}."]
    if record.dev:
        counts = ", ".join(f"{name} {count:,}" for name, count in record.dev["equal"].items())
        lines.append(f"Predictions equal to torch's, of {record.dev['predictions']:,}: {counts}.")
    else:
        lines.append("Predictions were not compared: name rows to try the model on (--file).")
    lines += ["", export_table(record), ""]
    if record.int8_loss is not None and record.int8_loss[0] > POINTS:
        lines.append("WARNING: int8 loses {:.1f} points ({}). Use onnx/model.onnx.".format(*record.int8_loss))
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
