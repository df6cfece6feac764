"""Tries the commands with hostile inputs: files that are damaged, in the way or of another kind, flags that make no
sense, foreign models, pickles.

    python tests/hostile.py --areas text jsonl --cases 300 --seed 0

A case is a copy of small valid files, one or two random mutations, and a whole command in a fork of this process. An
oracle that does not use our code says whether the damage must be noticed. Prints a table and every case that is not
clear; the exit status is 1 if more than 1 % of an area are not, or if any loses data or hangs. To repeat a case and
keep its directory: `--areas text --seed 0 --number 17`.
"""

# ruff: noqa: RUF005, SIM905  # lists of words are written as one string, long ones are added up

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


WORKPLACE = Path(tempfile.mkdtemp(prefix="hostile-"))
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", COLUMNS="200")
os.environ["HF_DATASETS_CACHE"] = str(WORKPLACE / "datasets")
sys.path[:0] = [str(Path(__file__).parents[1])]

import pandas  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import torch  # noqa: E402
import zstandard  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from hf_electra_rtd import cli  # noqa: E402
from tests.conftest import VOCABULARY, WORDS, make_text, tiny_config  # noqa: E402


MAINS = {name: importlib.import_module(f"hf_electra_rtd.{path}").main for name, (path, _) in cli.COMMANDS.items()}
for late in ("datasets", "peft", "sklearn.metrics", "scipy.stats", "matplotlib.pyplot", "rich.console"):
    importlib.import_module(late)  # once, and not in every fork
FAIL, TOLD, WORK, EITHER = "must fail", "must be told", "must work", "either"
RESULTS = ("clear", "right", "traceback", "silent", "unnamed", "refused", "loss", "hang")
LIMIT, MEMORY, BUG = 20, 8 << 30, 70  # seconds and bytes of a case; exit status of an error that is no message
MARKER = "CODE_RAN"  # what a pickle would make
_TEXT, _OUT = "--train_files corpus.txt --tokenizer vocab.txt", "--disable_tqdm True --output_dir new_out"
_RUN = "--use_cpu True --max_seq_length 32 --max_steps 2 --per_device_train_batch_size 8 --warmup_steps 1"
NEEDS = {  # of each command the valid files, and behind a bar the flags; flags that follow win
    "prepare": f"corpus.txt vocab.txt | {_TEXT} --max_seq_length 16 --num_proc 1 --held_out_share 0 {_OUT}",
    "pretrain": f"corpus.txt vocab.txt pair_config | {_TEXT} --model_config pair_config {_RUN} --eval_steps 2 {_OUT}",
    "finetune": f"pair_run train.csv | --model_name_or_path pair_run --train_file train.csv {_RUN} {_OUT}",
    "predict": "tuned_run dev.csv | --model_name_or_path tuned_run --file dev.csv --use_cpu True",
    "detect": "pair_run | --model pair_run --as_is --seed 1",
    "publish": "pair_run tuned_run | --run pair_run --hub_model_id lab/tiny --license mit --dry_run True",
    "compare": "tuned_run | --along 4=tuned_run",
    "convert": "vocab.txt | --tf_checkpoint model.ckpt-1 --size small --vocab_file vocab.txt --output_dir new_out",
}

# ---- Mutations ----


def _put(content: bytes, draw: random.Random, more: Callable[[bytes], bytes], old: int = 0) -> bytes:
    """`more`, of the `old` bytes at a place, in their stead."""
    place = draw.randrange(max(1, len(content)))
    return content[:place] + more(content[place : place + old]) + content[place + old :]


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "emptied": lambda content, draw: b"",
    "cut off": lambda content, draw: content[: draw.randrange(max(1, len(content)))],
    "second half zero": lambda content, draw: content[: len(content) // 2] + bytes((len(content) + 1) // 2),
    "a bit flipped": lambda content, draw: _put(
        content, draw, lambda old: bytes([old[0] ^ 4 << draw.randrange(4)]), 1
    ),
    "a byte changed": lambda content, draw: _put(content, draw, lambda old: bytes([(old[0] + 97) % 256]), 1),
    "a NUL inserted": lambda content, draw: _put(content, draw, lambda old: b"\0"),
    "random bytes inserted": lambda content, draw: _put(content, draw, lambda old: draw.randbytes(9)),
    "a slice twice": lambda content, draw: _put(content, draw, lambda old: old * 2, 50),
    "a Latin-1 letter": lambda content, draw: _put(content, draw, lambda old: b"\xe9"),
    "a byte order mark": lambda content, draw: b"\xef\xbb\xbf" + content,
    "lines end with \\r\\n": lambda content, draw: content.replace(b"\n", b"\r\n"),
    "in UTF-16": lambda content, draw: content.decode("latin-1").encode("utf-16"),
    "gzipped under its old name": lambda content, draw: gzip.compress(content),
    "random bytes": lambda content, draw: draw.randbytes(300),
    "appended to": lambda content, draw: content + draw.randbytes(12),
}
PLACES: dict[str, Callable[[Path], Any]] = {  # what may lie where a file is expected
    "is missing": lambda path: None,
    "is a directory": lambda path: path.mkdir(),
    "is a dangling link": lambda path: path.symlink_to("nowhere"),
    "is a link to itself": lambda path: path.symlink_to(path.name),
    "is a FIFO": lambda path: os.mkfifo(path),
    "is a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
}
IN_THE_WAY = {key: PLACES[key] for key in PLACES if key != "is missing"}
VALUES = {  # of JSON
    **{"a string": '"x"', "null": "null", "NaN": "NaN", "infinity": "1e999", "-1": "-1", "0": "0", "true": "true"},
    **{"of 5,000 digits": "9" * 5000, "a list": "[]", "an object": "{}", "nested": "[" * 10**5 + "]" * 10**5},
    **{"half a surrogate pair": '"\\ud800"', "a NUL": '"\\u0000"', "a path": '"../../x"', "1e15": "1" + "0" * 15},
}
NAMES = {"''": "", "300 characters": "odd" * 100, "missing": "odd_missing/odd"}
ODD_NAMES = {"with spaces": "odd name (1)", "with brackets": "odd[1]{a}*", "not UTF-8": "odd\udcffname"}
TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "NaN": lambda tensor: tensor.fill_(float("nan")),
    "of another shape": lambda tensor: torch.ones(3),
    "int64": lambda tensor: tensor.long(),
    "missing": lambda tensor: None,
    "float16": lambda tensor: tensor.half(),
    "zero": lambda tensor: tensor.zero_(),
}


class Code:
    """Pickled, it makes a directory when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (MARKER,)


def mutate_json(text: str, draw: random.Random) -> tuple[str, str]:
    """(what was done, the mutated text)."""
    tree = node = parent = json.loads(text)
    trail: list[Any] = []
    while isinstance(node, (dict, list)) and node and (not trail or draw.random() < 0.6):
        trail.append(draw.choice(list(node) if isinstance(node, dict) else range(len(node))))
        node, parent = node[trail[-1]], node
    kind = draw.choice(["missing", "twice", "beside an unknown key", "in a list", *list(VALUES) * 2])
    if kind == "in a list":
        return "all in a list", f"[{text}]"
    if kind == "missing":
        del parent[trail[-1]]
    elif isinstance(parent, dict) and kind in ("twice", "beside an unknown key"):
        parent["@@"] = "x"
    else:
        parent[trail[-1]] = "@@"
    key = json.dumps(str(trail[-1]) if kind == "twice" else "unknown")
    text = json.dumps(tree).replace('"@@":', f"{key}:").replace('"@@"', VALUES.get(kind, "7"))
    return f"{'.'.join(map(str, trail))} is {kind}", text


def mutate_tensors(path: Path, draw: random.Random) -> str:
    tensors: dict[str, Any] = load_file(path)
    name, kind = draw.choice(sorted(tensors)), draw.choice([*TENSORS, "beside an unknown one", "a pickle"])
    if kind == "a pickle":
        torch.save({name: Code()}, path)
    else:
        tensors["unknown" if kind not in TENSORS else name] = TENSORS.get(kind, torch.clone)(tensors[name])
        save_file({key: tensor for key, tensor in tensors.items() if tensor is not None}, path, {"format": "pt"})
    return f"{name} is {kind}"


class Case:
    """A directory, a command that runs in it, and what must come of it."""

    def __init__(self, area: str, seed: int, number: int) -> None:
        self.number, self.draw = number, random.Random(f"{seed} {area} {number}")
        self.place = WORKPLACE / area / str(number)
        self.argv: list[str] = []
        self.words: list[str] = []  # what was done
        self.names: set[str] = set()  # one of which a message must name, or a flag
        self.expected, self.own = EITHER, ["new_out", "along_pretraining.png"]  # what the command may write
        self.place.mkdir(parents=True)
        AREAS[area](self)

    def command(self, name: str, *more: str) -> None:
        """Sets the command, and copies what it needs: call it before something is damaged."""
        files, given = NEEDS[name].split("|")
        self.take(*files.split())
        self.argv = [name, *(["the old river"] if name == "detect" else []), *given.split(), *more]

    def take(self, *names: str) -> None:
        for name in names:
            copy: Any = shutil.copy if (WORKPLACE / "valid" / name).is_file() else shutil.copytree
            copy(WORKPLACE / "valid" / name, self.place / name)

    def choose(self, *options: Any) -> Any:
        return self.draw.choice(options)

    def pick(self, table: Any) -> Any:
        """A value of a table, whose key goes into the description of the case."""
        self.words.append(self.draw.choice(list(table)))
        return table[self.words[-1]] if isinstance(table, dict) else self.words[-1]

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def damage(self, path: str) -> str:
        """One mutation of a file, which a message must name, or its directory. Returns what `expected_of` says."""
        file = self.place / path
        self.names |= set(Path(path).parts)
        self.words.append(path)
        if self.chance(0.12):
            file.unlink()
            self.pick(PLACES)(file)
        elif file.suffix == ".safetensors" and self.chance(0.6):
            self.words.append(mutate_tensors(file, self.draw))
        elif file.suffix == ".json" and self.chance(0.6):
            words, text = mutate_json(file.read_text(), self.draw)
            self.words.append(words)
            file.write_text(text)
        else:
            for _ in range(self.choose(1, 1, 1, 2)):
                file.write_bytes(self.pick(BYTES)(file.read_bytes() or b"\n", self.draw))
        return expected_of(file, WORKPLACE / "valid" / path)

    def write(self, path: str, content: bytes | str) -> str:
        """Writes the file that a message must name."""
        self.names.add(path)
        (self.place / path).write_bytes(content.encode() if isinstance(content, str) else content)
        return path


# ---- Oracles ----


def expected_of(path: Path, valid: Path) -> str:
    """Whether a file must be refused, as far as JSON, safetensors and the lines of a vocabulary tell."""
    try:
        content = path.read_bytes() if path.is_file() else b""
        if content == (valid.read_bytes() if valid.is_file() else None):
            return WORK
        if path.suffix == ".json" or not content:
            return EITHER if isinstance(json.loads(content.decode()), dict) else FAIL
        if path.name == "vocab.txt":
            lines = content.decode("utf-8-sig").splitlines()
            whole = {*VOCABULARY[:5]} < {*lines} and "\0" not in "".join(lines)
            return WORK if lines == VOCABULARY else EITHER if whole else FAIL
        if path.suffix == ".safetensors":
            now, before = load_file(path), load_file(valid)
            whole = now.keys() == before.keys() and all(now[name].shape == before[name].shape for name in now)
            sound = all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in now.values())
            return EITHER if whole and sound else FAIL
    except Exception:  # whatever the reader says
        return FAIL
    return EITHER


def unpacked(path: Path) -> bytes:
    """The content of a plain, .gz or .zst file; an error if it is not whole."""
    content, found = path.read_bytes(), b""
    while path.suffix == ".zst" and content:
        frame = zstandard.ZstdDecompressor().decompressobj()
        found, content = found + frame.decompress(content), frame.unused_data
        if not frame.eof:
            raise EOFError
    return gzip.decompress(content) if path.suffix == ".gz" else found or content


def read_texts(path: Path, column: str = "text") -> list[str]:
    """The texts of a file; an error for what is no text, no JSON, no table or has no such column."""
    if path.suffix == ".parquet":
        values = pq.ParquetFile(path, pre_buffer=False).read(use_threads=False)[column].to_pylist()
    elif ".jsonl" in path.name:
        lines = unpacked(path).decode("utf-8-sig").splitlines()
        values = [json.loads(line)[column] for line in lines if line.strip()]
    else:
        values = unpacked(path).decode("utf-8-sig").splitlines(keepends=True)
        if path.suffix in (".csv", ".tsv"):
            is_csv = path.suffix == ".csv"
            rows = list(csv.reader(values, delimiter="," if is_csv else "\t", strict=is_csv))
            assert {len(row) for row in rows} <= {0, len(rows[0])}
            values = [row[rows[0].index(column)] for row in rows[1:] if row]
    assert all(isinstance(value, str | None) and "\0" not in (value or "") for value in values)
    assert " ".join(value or "" for value in values).encode().strip()
    return values


def expected_of_text(path: Path, harmless: str = WORK) -> str:
    with contextlib.suppress(Exception):  # whatever the reader says
        if path.is_file():
            return harmless if len(" ".join(text or "" for text in read_texts(path)).split()) > 100 else EITHER
    return FAIL


# ---- Areas: text and what is prepared ----


def _packed(case: Case, content: bytes, stem: str) -> str:
    """Writes a file, plain or compressed in one or two parts, and damages its content, the file, or both."""
    if in_plain := case.chance(0.6):
        content = case.pick(BYTES)(content, case.draw)
    zst = zstandard.ZstdCompressor(write_checksum=True).compress
    suffix, pack = case.choose(("", bytes), (".gz", gzip.compress), (".zst", zst))
    middle = case.choose(0, 0, len(content) // 2)
    name = case.write(stem + suffix, pack(content[:middle]) * (middle > 0) + pack(content[middle:]))
    if not in_plain or case.chance(0.3):
        case.damage(name)
    return name


def text(case: Case) -> None:
    content, name = (make_text(20, case.number) + "Café naïve déjà vu\n").encode(), "a.txt"
    kind, more = case.choose("file", "file", "file", "file", "options", "directory", "name", "encoding"), []
    if kind == "file":
        name = _packed(case, content, name)
        case.expected = expected_of_text(case.place / name)
    elif kind == "options":
        options = "weight=nan weight=0 weight=-1 weight=x wieght=2 weight=1,weight=2 encoding=utf-99"
        name, case.expected = f"{case.write(name, content)},{case.pick(options.split())}", FAIL
        case.names |= {"weight=", "utf-99"}
    elif kind == "name":
        name = case.write(case.pick(ODD_NAMES) + ".txt", content)
        case.expected = EITHER if "UTF-8" in case.words[-1] else WORK
    elif kind == "encoding":
        more = ["--encoding", case.pick("utf-16 latin-1 utf-8-sig UTF_8 cp1252 utf-32".split())]
        case.write(name, content.decode().encode(more[1]))
        case.expected = WORK
    else:  # one that is no text among others: passed over by name, or refused
        (case.place / "texts").mkdir()
        case.write("texts/good.txt", content)
        case.pick(IN_THE_WAY)(case.place / "texts/strange.txt")
        case.expected = EITHER if case.words[-1] == "is a directory" else TOLD
        name, case.names = case.pick(("texts", "texts/*.txt")), {"strange"}
    case.command("prepare", "--train_files", name, *more)


def jsonl(case: Case) -> None:
    lines = [json.dumps({"id": number, "text": make_text(1, number), "meta": {"a": [1]}}) for number in range(12)]
    if case.chance(0.5):
        place = case.draw.randrange(len(lines))
        words, lines[place] = mutate_json(lines[place], case.draw)
        case.words.append(f"line {place + 1}: {words}")
        name = case.write("a.jsonl", "\n".join(lines))
    else:
        name = _packed(case, "\n".join(lines).encode(), "a.jsonl")
    case.command("prepare", "--train_files", name)
    case.expected = expected_of_text(case.place / name)


def parquet(case: Case) -> None:
    texts = [make_text(1, number) for number in range(12)]
    wrong: list[Any] = [list(range(12)), [texts] * 12, [None] * 12, [None, *texts[1:]], [{"text": "x"}] * 12]
    column = pa.array(case.choose(*[texts] * 15, *wrong))
    if column.type == pa.string():
        column = case.choose(column, column.cast(pa.large_string()), column.dictionary_encode())
    name = "body" if case.chance(0.05) else "text"
    case.words.append(f"{name}: {column.type}")
    packing = case.choose("snappy", "zstd", "none")
    pq.write_table(pa.table({name: column}), case.place / "a.parquet", compression=packing, row_group_size=5)
    case.names.add("a.parquet")
    if case.chance(0.8):
        case.damage("a.parquet")
    case.command("prepare", "--train_files", "a.parquet")
    case.expected = expected_of_text(case.place / "a.parquet")


def blocks(case: Case) -> None:
    name, kind = case.choose("train.blocks", "held_out.blocks"), case.choose("again", "prepare", "pretrain")
    if kind == "again":  # the same preparation, over what it left: what is damaged is told of, and made anew
        case.command("prepare", "--output_dir", "prepared_out", "--held_out_share", "0.1")
        case.own = ["prepared_out"]
    else:
        flags = ["--train_files", "prepared_out/train.blocks", "--held_out_files", "prepared_out/held_out.blocks"]
        case.command(kind, *flags, "--max_seq_length", "16", *(["--dry_run"] if kind == "pretrain" else []))
    case.take("prepared_out")
    file = case.place / "prepared_out" / name
    if case.chance(0.2):  # a header that is nonsense, but has the right hash
        content, case.names = file.read_bytes(), {name}
        length = int.from_bytes(content[-40:-32], "little")
        words, header = mutate_json(content[-40 - length : -40].decode(), case.draw)
        case.words.append(f"header of {name} signed anew: {words}")
        signed = header.encode()
        footer = len(signed).to_bytes(8, "little") + hashlib.sha256(signed).digest()
        file.write_bytes(content[: -40 - length] + signed + footer)
    elif case.damage(f"prepared_out/{name}") == WORK:
        case.expected = WORK
    elif kind != "again" or file.exists():
        case.expected = TOLD if kind == "again" else FAIL


def tokenizers(case: Case) -> None:
    path = "own_tokenizer/" + case.choose("tokenizer.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
    source = path if path.endswith(".txt") else "own_tokenizer"
    case.command("prepare", "--tokenizer", source)
    case.take("own_tokenizer")
    if source == "own_tokenizer":
        (case.place / "own_tokenizer/vocab.txt").unlink()
    if "config" in path and case.chance(0.4):
        one, other = case.draw.sample([f"{name}_token" for name in ("pad", "unk", "cls", "sep", "mask")], 2)
        values = json.loads((case.place / path).read_text())
        case.write(path, json.dumps(values | {one: values[other]}))
        case.words.append(f"{one} is {values[other]}")
        case.names, case.expected = {source}, FAIL
    else:
        case.expected = case.damage(path)
        if "config" in path and not os.path.lexists(case.place / path):
            case.expected = EITHER  # tokenizer.json says enough


# ---- Areas: flags ----

WRONG = """
pretrain finetune: learning_rate weight_decay max_grad_norm warmup_steps = -1 nan inf x
pretrain finetune: logging_steps eval_steps save_steps num_train_epochs adam_epsilon = 0 -1 nan
pretrain finetune: gradient_accumulation_steps per_device_train_batch_size per_device_eval_batch_size = 0 -1 1.5 x
pretrain finetune: max_steps save_total_limit = 0 -5 1.5
pretrain finetune: adam_beta1 adam_beta2 label_smoothing_factor = 1 -0.1 nan
pretrain finetune prepare: max_seq_length = 0 2 -1 1.5 100000 x
pretrain finetune: seed dataloader_num_workers ddp_timeout = -1 x
pretrain finetune: optim lr_scheduler_type eval_strategy report_to hub_strategy use_cpu size = nonsense
pretrain: generator_hidden_size temperature generator_weight discriminator_weight mask_probability = -1 nan inf
pretrain prepare: held_out_share num_proc vocab_size = -1 nan
pretrain prepare: packing drop_duplicates encoding encoding_errors = nonsense
pretrain: objective sharing attn_implementation generator_type = nonsense
pretrain: keep_probability checkpoint_fractions = 1.1 -0.1 nan
finetune: seeds lora_r lora_alpha layerwise_lr_decay = 0 -1
finetune: validation_share dropout lora_dropout = 1 -0.1 nan
finetune: head select keep_models task_kind metrics labels benchmark doc_stride = nonsense
predict: batch_size = 0 -1 1.5
detect: mask_probability top_k temperature = -1 nan inf
publish: hub_model_id parts private = nonsense
compare: along tokens_per_step = x=tuned_run x nan -1
pretrain: train_files held_out_files tokenizer model_config generator discriminator two_stage_from config = PATHS
finetune: model_name_or_path train_file validation_file test_file tokenizer config = PATHS
prepare: train_files held_out_files tokenizer config = PATHS
predict: model_name_or_path file config = PATHS
publish: run evaluations compared config = PATHS
detect: model generator = PATHS
convert: tf_checkpoint vocab_file hparams = PATHS
"""
TOGETHER = """
pretrain --generator pair_config / pretrain --two_stage_from x / pretrain --freeze_generator True
finetune --evaluate_only True --lora True / finetune --lora True --from_scratch True / finetune --merge_adapter True
prepare --held_out_files corpus.txt / prepare --train_files corpus.txt a.blocks / prepare --train_files
predict --second_text_column_name none / predict --text_column_name none / pretrain --push_to_hub True
detect --mask river / detect --generator pair_run/generator / detect --model tuned_run / publish --parts
publish --base_model lab/x / publish --hub_model_id / publish --run tuned_run --evaluations tuned_run
"""  # flags that do not go together
YAML = {
    FAIL: ["max_steps: [1", "a: b: c", "\tx: 1", "{", "@x", "- 1\n- 2", "just text", "", "null", "42", "!!x y", "1: 2"]
    + [f"x: !!python/object/apply:os.mkdir [{MARKER}]", "seed: *x", "max_stepz: 2", "max_steps: {a: 1}", "[a]: 1"]
    + ["max_steps: [1, 2]", "max_steps: two", "max_steps: .nan", "learning_rate: .inf", "config: x.yaml", "help: true"]
    + ["seed: 1\0", "seed: \ud800", "--- {}\n--- {}", "use_cpu: 7", "seed: 2020-01-01", "seed: 1\n  x: 2", "[" * 5000],
    WORK: ["seed: 2", "\ufeffseed: 2", "seed: 2\r\nuse_cpu: true\r\n", "seed: &x 2\nlogging_steps: *x", "seed: null"]
    + ["learning_rate: 5e-4", "# nothing\nseed: 3", "'seed': '3'"],
    EITHER: ["seed: 2\nseed: 3", "&a {seed: 1}", "seed: 0x10", "seed: 1_0", 'output_dir: "odd\\0"'],
}


def flags(case: Case) -> None:
    kind, case.expected = case.choose("value", "value", "value", "together", "yaml", "misspelt"), FAIL
    commands, _, rest = case.choose(*WRONG.strip().split("\n")).partition(": ")
    names, _, values = rest.partition(" = ")
    command, name, value = case.choose(*commands.split()), case.choose(*names.split()), case.choose(*values.split())
    if kind == "together":
        command, *more = case.choose(*re.split("/ |\n", TOGETHER.strip())).split()
    elif kind == "yaml":
        command, more = case.choose("pretrain", "finetune"), ["--config", "flags.yaml"]
        case.expected = case.choose(FAIL, FAIL, WORK, EITHER)
        case.write("flags.yaml", case.pick(YAML[case.expected]).encode(errors="surrogatepass"))
        if case.chance(0.2):
            case.damage("flags.yaml")
            case.expected = EITHER if (case.place / "flags.yaml").is_file() else FAIL
    elif kind == "misspelt":
        more = case.choose([f"--{name}z", value], ["--unknown"], [f"--{name}", value, "--", "x"])
    else:
        more = [f"--{name}", case.pick(NAMES) if value == "PATHS" else value]
    case.command(command, *(["--dry_run"] if command == "pretrain" and case.chance(0.7) else []), *more)
    case.words.append(repr(more)[:100])
    case.names |= {name, value, "tuned_run", "corpus.txt", "odd", "''"} | {word for word in more if word}


# ---- Areas: checkpoints and models ----


def _mutate_state(case: Case, file: Path) -> None:
    """A state of torch that loads but is not that of the run, or a pickle that would run code."""
    state = torch.load(file, weights_only=False)
    kind, entries = case.pick(("a pickle", "empty", "another shape", "another step", "a list")), state.get("state")
    if kind == "another shape":
        entries[0].update(exp_avg=torch.ones(3)) if entries else state.update(cpu=torch.zeros(3), last_epoch=[1, 2])
    elif kind == "another step":
        entries[0].update(step=torch.tensor(77.0)) if entries else state.update(last_epoch=77, cpu="x")
    torch.save({"a pickle": Code(), "empty": {}, "a list": [1]}.get(kind, state), file)


def _sign_anew(checkpoint: Path) -> None:
    """Writes the sizes and SHA-256 of the files as they are into `checkpoint.json`."""
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    for name, entry in manifest["files"].items():
        content = (checkpoint / name).read_bytes()
        size, digest = len(content), hashlib.sha256(content).hexdigest()
        both = [size if isinstance(one, int) else digest for one in (entry if isinstance(entry, list) else [entry])]
        manifest["files"][name] = both if isinstance(entry, list) else both[0]
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest))


def checkpoints(case: Case) -> None:
    resume = case.pick(("resumed_run/checkpoint-4", "resumed_run/checkpoint-4", "latest", "auto"))
    case.command("pretrain", "--max_steps", "6", "--resume_from_checkpoint", resume, "--output_dir", "resumed_run")
    case.take("resumed_run")
    case.own, directory = ["resumed_run", "new_out"], case.place / "resumed_run/checkpoint-4"
    if resume.startswith("resumed") and case.chance(0.1):
        case.argv[-1] = "new_out"
    case.expected, kind = FAIL if resume.startswith("resumed") else TOLD, case.draw.random()
    case.names |= {"checkpoint-4"}
    if kind < 0.05:
        case.expected = WORK
    elif kind < 0.3:
        path = directory / case.pick(("optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"))
        if path.suffix == ".safetensors":
            case.words.append(mutate_tensors(path, case.draw))
        else:
            _mutate_state(case, path)
        if case.chance(0.5):
            _sign_anew(directory)
            case.expected = EITHER if case.words[-1].endswith((" is zero", " is float16")) else case.expected
            case.words.append("signed anew")
    else:
        name = case.choose(*sorted(os.listdir(directory)))
        harm = case.damage(f"resumed_run/checkpoint-4/{name}")
        if harm == WORK or (name == "checkpoint.json" and harm == EITHER):
            case.expected = harm


def models(case: Case) -> None:
    command = case.choose("detect", "detect", "predict", "predict", "finetune", "pretrain")
    model = "tuned_run/own/seed_42/model" if command == "predict" else "pair_run/discriminator"
    case.command(command)
    if command == "pretrain":
        case.take("pair_run")
        model = case.choose("pair_run/generator", model)
        at = case.argv.index("--model_config")
        case.argv[at : at + 2] = [f"--{Path(model).name}", model]
    elif command == "detect" and case.chance(0.5):
        case.argv[2:5] = ["--discriminator", model, "--generator", "pair_run/generator"]
    path = f"{model}/{case.choose('config.json', 'model.safetensors', 'model.safetensors', 'tokenizer.json')}"
    case.expected = case.damage(path)
    if not (case.place / path).is_file() and "safetensors" not in path and command != "pretrain":
        case.expected = EITHER  # a vocab.txt or the joint model may stand in
    elif "tokenizer" in path and command == "pretrain":
        case.expected = EITHER  # it has another
    elif command == "finetune" and ("discriminator_predictions" in case.words[-1] or "unknown" in case.words[-1]):
        case.expected = EITHER  # its head is new


# ---- Areas: outputs, fine-tuning data, publishing ----


def outputs(case: Case) -> None:
    command, out = case.choose(*"prepare prepare predict pretrain finetune convert".split()), "new_out"
    kind = case.choose("name", "place", "foreign", "foreign", "in the way", "input")
    kind = {"convert": "foreign", "predict": case.choose("name", "place", "input")}.get(command, kind)
    case.command(command)
    case.own = []
    if kind == "name":
        out = case.pick({**NAMES, **ODD_NAMES, "below a file": case.write("a_file", "content") + "/below"})
        fine = case.words[-1] in ("with spaces", "with brackets", "missing")
        case.expected = WORK if fine else EITHER if case.words[-1] in ("''", "not UTF-8") else FAIL
        case.own, case.names = [out or "."], {"odd", "''", "a_file"}
    elif kind == "place":
        case.pick(IN_THE_WAY)(case.place / out)
        may = {"is a directory", "is a dangling link"} & {*case.words}
        case.expected, case.own = EITHER if may or command == "predict" else FAIL, ["nowhere", out] if may else []
    elif kind == "foreign":
        (case.place / out).mkdir()
        for name in case.draw.sample("discriminator generator config.json model.safetensors vocab.txt".split(), 2):
            copy: Any = shutil.copy if "." in name else shutil.copytree
            copy(WORKPLACE / "valid/pair_run" / name, case.place / out / name)
            case.words.append(f"a foreign {name}")
    elif kind == "in the way":
        own = "train.blocks held_out.blocks tokenizer generator discriminator model.safetensors checkpoint-2 blocks "
        own += "fractions run_record.json training_curves.png own results.json config.json"
        directory = case.place / out / case.pick(own.split())
        directory.mkdir(parents=True)
        (directory / "mine.txt").write_text("mine")
    else:
        inputs = {"predict": "dev.csv tuned_run/own/seed_42/model/config.json tuned_run"}
        inputs |= {"finetune": ". pair_run pair_run/discriminator train.csv"}
        out = case.pick(inputs.get(command, ". corpus.txt").split())
        case.own = "train.blocks tokenizer blocks discriminator generator own".split()
        case.expected = FAIL if command == "predict" or "." in out[1:] else EITHER
    case.names |= {out} - {"", "."}
    case.words.append(f"output {out}"[:60])
    case.argv += ["--output_file" if command == "predict" else "--output_dir", out]


def _rows(number: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=6)) for _ in range(number)]
    return [{"text": text, "label": ("no", "yes")[index % 2], "id": index} for index, text in enumerate(texts)]


_MANY = ["yes", "no"] * 19
COLUMNS: dict[str, tuple[str, str, Any]] = {  # what becomes of 40 rows: a column's values (None: it is missing)
    "no column of labels": (FAIL, "label", None),
    "no column of texts": (FAIL, "text", None),
    "a label nan": (FAIL, "label", [*_MANY, "nan"]),
    "a label NA": (FAIL, "label", [*_MANY, "NA"]),
    "labels of mixed types": (FAIL, "label", ["good", "1", "true", "2.5"]),
    "continuous labels": (FAIL, "label", [f"{number / 7:.3f}" for number in range(40)]),
    "one class": (FAIL, "label", ["yes"]),
    "a class a row": (FAIL, "label", [f"c{number}" for number in range(40)]),
    "no label": (FAIL, "label", [""]),
    "an empty text": (EITHER, "text", [*_MANY, ""]),
    "white space": (EITHER, "text", [" \t"]),
    "a NUL": (EITHER, "text", [*_MANY, "a\0b"]),
    "labels with spaces": (WORK, "label", ["very good", "not so"]),
    "ids twice": (EITHER, "id", [1, 2]),
    "regression to words": (FAIL, "label", ["x"]),
    "regression to nan": (FAIL, "label", ["1", "nan"]),
    "regression to inf": (FAIL, "label", ["1", "inf"]),
    "regression to commas": (FAIL, "label", ["1,5"]),
    "regression": (WORK, "label", ["1", "2.5"]),
}
ROWS = {"no row": (FAIL, 0), "one row": (FAIL, 1), "sixteen rows": (WORK, 16)}
CONLL = {"fine": "{0} B-X\n{1} O\n\n", "no BIO tags": "{0} noun\n{1} verb\n\n", "ragged": "{0} O\n{1} c O\n\n"}
CONLL |= {"no tags": "{0}\n{1}\n\n", "no ends": "{0} B-X\n{1} O\n", "a lone I-": "{0} I-X\n{1} O\n\n"}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """A .csv, .tsv, .jsonl or .parquet file of rows."""
    frame = pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=["text", "label", "id"])
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)


def finetuning(case: Case) -> None:
    kind, command = case.choose("column", "column", "column", "number", "bytes", "bytes", "tags"), "finetune"
    name = f"data{'.conll' if kind == 'tags' else case.choose('.csv', '.tsv', '.jsonl', '.parquet')}"
    path, rows, more = case.place / name, _rows(40, case.number), []
    if kind == "column":
        case.expected, column, values = case.pick(COLUMNS)
        more = ["--task_kind", "regression"] * case.words[-1].startswith("regression")
        for index, row in enumerate(rows):
            row.update({column: values[index % len(values)]}) if values else row.pop(column)
    elif kind == "number":
        case.expected, number = case.pick(ROWS)
        del rows[number:]
    elif kind == "tags":
        form, more = case.pick(CONLL), ["--task_kind", "tagging"]
        case.write(name, "".join(form.format(*row["text"].split()) for row in rows))
        case.expected = WORK if "fine" in case.words else EITHER if {"no ends", "a lone I-"} & {*case.words} else FAIL
    if kind != "tags":
        write_rows(path, rows)
    if kind == "bytes":
        command, before = case.choose(("finetune", path.read_bytes()), ("predict", path.read_bytes()))
        case.damage(name)
        same = path.is_file() and path.read_bytes() == before
        case.expected = WORK if same else expected_of_text(path, EITHER)
    case.command(command, *(["--train_file", name] if command == "finetune" else ["--file", name]), *more)
    case.names |= {name, "own:"}
    case.words.append(name)


def publishing(case: Case) -> None:
    kind, tuned = case.choose("file", "file", "file", "tuned", "compare", "name", "card"), "tuned_run/own/seed_42"
    case.command("compare" if kind == "compare" else "publish")
    case.own += ["pair_run/publish_preview", "tuned_run/publish_preview"]
    if kind == "name":
        ids = "lab/ ../x lab/-x lab a/b/c lab/x..y é/x".split()
        case.argv += ["--hub_model_id", case.pick([*ids, "", "lab/" + "x" * 200])]
        case.names, case.expected = {case.words[-1] or "--hub_model_id"}, FAIL
        return
    if kind == "card":
        flag = case.pick("--license --languages --corpora --authors --evaluations --compared".split())
        case.argv += [flag, case.pick(("", "x\ny: 1", "---", "é", "none of these", "@x", "a" * 300, "odd\udcffname"))]
        case.names, case.expected = {case.words[-1] or flag, "odd"}, FAIL if "ed" in flag or "val" in flag else EITHER
        return
    path = f"{tuned}/evaluation_record.json"
    if kind == "tuned":
        case.argv[1:3] = ["--run", "tuned_run"]
        path = case.choose(path, f"{tuned}/model/config.json", f"{tuned}/model/model.safetensors")
    elif kind == "file":
        case.argv += ["--evaluations", "tuned_run"]
        place = case.choose("discriminator", "generator", "fractions/50/discriminator")
        name = case.choose("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
        path = "pair_run/" + case.choose("run_record.json", "fractions/50/fraction.json", f"{place}/{name}")
    case.expected, file = case.damage(path), case.place / path
    if path.endswith("safetensors") and file.is_file():
        case.expected = EITHER  # weights are not read
    elif not os.path.lexists(file) and not path.endswith(("run_record.json", "safetensors")):
        case.expected = EITHER  # it may be missing


AREAS: dict[str, Callable[[Case], None]] = {
    area.__name__: area
    for area in (text, jsonl, parquet, blocks, tokenizers, flags, checkpoints, models, outputs, finetuning, publishing)
}

# ---- Running and judging ----


def run_forked(argv: list[str], place: Path) -> tuple[int, str]:
    """The exit status of a command (minus the signal that ended it) and what it printed."""
    log = place.with_suffix(".log")
    sys.stdout.flush()
    if not (child := os.fork()):
        try:
            os.chdir(place)
            for descriptor, path in ((0, Path(os.devnull)), (1, log), (2, log)):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
            signal.alarm(LIMIT)  # kills, whatever runs
            sys.argv = [f"hf-electra-rtd {argv[0]}", *argv[1:]]
            cli.run(MAINS[argv[0]])
        except SystemExit as error:
            status = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
            status = BUG
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    printed = log.read_text(errors="replace")
    log.unlink()
    return status, printed


def contents(case: Case) -> dict[str, bytes]:
    """Of all files that are not the command's own; of links where they lead."""
    found = {}
    for path in case.place.rglob("*"):
        name = str(path.relative_to(case.place))
        if not any(own in (".", name) or name.startswith(own + "/") for own in case.own) and path.name != ".lock":
            is_link = path.is_symlink()
            found[name] = os.fsencode(os.readlink(path)) if is_link else path.read_bytes() if path.is_file() else b""
    return found


def judge(case: Case, status: int, printed: str, before: dict[str, bytes]) -> tuple[str, str]:
    """(one of `RESULTS`, the words that decided)."""
    after = contents(case)
    if lost := [name for name, content in before.items() if after.get(name) != content]:
        return "loss", f"changed or gone: {', '.join(lost[:5])}"
    if (case.place / MARKER).exists():
        return "loss", "code ran"
    if status == -signal.SIGALRM:
        return "hang", f"{LIMIT} s"
    if status < 0 or status == BUG or "Traceback (most recent call last)" in printed:
        return "traceback", printed[-250:] or f"killed by signal {-status}"
    message = printed.rpartition("error: ")[2] if "error: " in printed else printed[-800:]
    names = {name.encode(errors="backslashreplace").decode() for name in case.names}
    if status == 0 and case.expected == TOLD:
        telling = re.compile("cannot|not a whole|no whole|altered|cut off|ignored|passed|skip", re.IGNORECASE)
        lines = [line for line in printed.splitlines() if telling.search(line)]
        return ("clear", "") if any(name in line for name in names for line in lines) else ("silent", printed[-200:])
    if status == 0:
        return ("silent", printed[-200:]) if case.expected == FAIL else ("right", "")
    if case.expected == WORK:
        return "refused", message
    named = re.search(r"--[a-z]\w+", message) or any(name in message for name in names)
    return ("clear", "") if named and "weights_only" not in message else ("unnamed", message)


def make_valid() -> None:
    """The files that cases begin with."""
    valid = WORKPLACE / "valid"
    valid.mkdir()
    (valid / "corpus.txt").write_text(make_text(40))
    (valid / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    tiny_config(hidden_size=16, num_attention_heads=2).save_pretrained(valid / "pair_config")
    write_rows(valid / "train.csv", _rows(40, 1))
    write_rows(valid / "dev.csv", _rows(20, 2))
    for name, more in (
        ("prepare", "--output_dir prepared_out --held_out_share 0.1"),
        ("pretrain", "--output_dir resumed_run --max_steps 4 --checkpoint_fractions 0.5 1.0"),
        ("finetune", "--output_dir tuned_run --model_name_or_path resumed_run"),
    ):
        status, printed = run_forked([name, *NEEDS[name].split("|")[1].split(), *more.split()], valid)
        assert status == 0, printed
    shutil.copytree(valid / "resumed_run", valid / "pair_run", ignore=shutil.ignore_patterns("checkpoint-*", "blocks"))
    shutil.copytree(valid / "prepared_out/tokenizer", valid / "own_tokenizer")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--areas", nargs="+", choices=list(AREAS), default=list(AREAS))
    parser.add_argument("--cases", type=int, default=50, help="for each area; 50 of all areas take about two minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="of one case, to repeat it and to keep its directory")
    arguments = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    make_valid()
    table, faulty = [], False
    for area in arguments.areas:
        counts, one = dict.fromkeys(RESULTS, 0), arguments.number
        for number in range(arguments.cases) if one is None else [one]:
            case = Case(area, arguments.seed, number)
            before = contents(case)
            status, printed = run_forked(case.argv, case.place)
            result, why = judge(case, status, printed, before)
            counts[result] += 1
            if result not in ("clear", "right") or one is not None:
                what = f"{result}; {case.expected}; {'; '.join(case.words)[:160]}"
                print(f"{area} {number} (seed {arguments.seed}): {what}")
                print(f"    {shlex.join(case.argv)[-200:]}\n    {' '.join((why or printed[-300:]).split())[:500]}")
            if one is None:
                shutil.rmtree(case.place)
        unclear, total = sum(counts.values()) - counts["clear"] - counts["right"], sum(counts.values())
        faulty |= unclear > 0.01 * total or counts["loss"] + counts["hang"] > 0
        table.append([area, *map(str, counts.values()), f"{unclear / total:.1%}"])
    for row in [["area", *RESULTS, "not clear"], *table]:
        print(f"{row[0]:<12}" + "".join(f"{cell:>11}" for cell in row[1:]))
    return int(faulty)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        if "--number" not in sys.argv:
            shutil.rmtree(WORKPLACE, ignore_errors=True)
