"""Tries the commands with hostile inputs: files that are damaged, in the way or of another kind, flags that make no
sense, foreign models, pickles.

    python tests/hostile.py --areas text jsonl --cases 300 --seed 0

A case is a command line of `AREAS`, in a fork of this process, on a copy of small valid files, of which one may be
mutated at random. What must come of it is the line's first word, unless the mutated file can still be read: that is
for an oracle to say, which does not use our code. Prints what is not clear; the exit status is 1 if that is more than
1 % of an area, or if a case loses data or hangs. `--areas text --seed 0 --number 17` repeats one case and keeps its
directory.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any


WORKPLACE = Path(tempfile.mkdtemp(prefix="hostile-"))
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", COLUMNS="200")
os.environ["HF_DATASETS_CACHE"] = str(WORKPLACE / "datasets")
sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import torch  # noqa: E402
import zstandard  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from hf_electra_rtd.base import cli  # noqa: E402
from hf_electra_rtd_command import COMMANDS  # noqa: E402
from tests.conftest import VOCABULARY, WORDS, make_text, tiny_config  # noqa: E402


MAINS = {name: importlib.import_module(f"hf_electra_rtd.{path}").main for name, (path, _) in COMMANDS.items()}
for late in ("datasets", "peft", "sklearn.metrics", "scipy.stats", "matplotlib.pyplot", "rich.console"):
    importlib.import_module(late)  # once, and not in every fork
FAIL, TOLD, WORK, EITHER = "FAIL", "TOLD", "WORK", "EITHER"  # TOLD: fail, or work and name the file
LIMIT, MEMORY = 60, 12 << 30  # seconds and bytes of a case
MARKER = "CODE_RAN"  # what a pickle would make
VALID = WORKPLACE / "valid"

# ---- Command lines ----

TEXT, OUT = "--train_files corpus.txt --tokenizer vocab.txt", "--disable_tqdm True --output_dir new_out"
RUN = "--use_cpu True --max_seq_length 32 --max_steps 2 --per_device_train_batch_size 8 --warmup_steps 1"
STEMS = {  # what the first word of a line stands for; flags that follow win
    "prepare": f"prepare {TEXT} --max_seq_length 16 --num_proc 1 --held_out_share 0 {OUT}",
    "pretrain": f"pretrain {TEXT} --model_config config {RUN} --eval_steps 2 {OUT}",
    "pretrain_from": f"pretrain {TEXT} {RUN} {OUT}",
    "own": f"finetune --model_name_or_path pair_run {RUN} {OUT}",
    "finetune": f"finetune --model_name_or_path pair_run --train_file train.csv {RUN} {OUT}",
    "predict": "predict --model_name_or_path tuned_run --file dev.csv --use_cpu True",
    "detect": "detect 'the old river' --model pair_run --mask old --seed 1",
    "resume": f"pretrain {TEXT} --model_config config {RUN} {OUT} --max_steps 6 --resume_from_checkpoint",
    "detect_with": "detect 'the old river' --generator pair_run/generator --seed 1",
    "publish": "publish --run pair_run --hub_model_id lab/tiny --license mit --dry_run True",
    "convert": "convert --tf_checkpoint model.ckpt-1 --size small --vocab_file vocab.txt --output_dir new_out",
}
FLAGS = """
FAIL {pretrain,finetune} --{learning_rate,weight_decay,max_grad_norm,warmup_steps,ddp_timeout,adam_beta2} {-1,nan,x}
FAIL {pretrain,finetune} --{logging_steps,eval_steps,save_steps,num_train_epochs,adam_epsilon,max_steps} {0,-5,nan}
FAIL {pretrain,finetune} --{gradient_accumulation_steps,per_device_{train,eval}_batch_size,save_total_limit} {0,-1,1.5}
FAIL {pretrain,finetune} --{optim,lr_scheduler_type,eval_strategy,report_to,hub_strategy,use_cpu,size,seed} nonsense
FAIL {pretrain,finetune,prepare} --max_seq_length {0,2,-1,1.5,100000,x}
FAIL pretrain --{{generator,discriminator}_weight,generator_hidden_size,temperature,mask_probability} {-1,nan,inf}
FAIL pretrain --{objective,sharing,attn_implementation,generator_type,keep_probability,checkpoint_fractions} {1.1,nan}
FAIL {pretrain,prepare} --{held_out_share,num_proc,vocab_size,packing,drop_duplicates,encoding,encoding_errors} -1
FAIL finetune --{seeds,lora_r,lora_alpha,layerwise_lr_decay,validation_share,dropout,lora_dropout} {-1,2.5,nan}
FAIL {finetune --{head,select,keep_models,task_kind,metrics,labels},publish --{hub_model_id,parts,private}} nonsense
FAIL {predict --batch_size,detect --{mask_probability,top_k,temperature}} {-1,nan,inf}
FAIL {prepare --{train_files,held_out_files,tokenizer},pretrain --{model_config,generator,discriminator,config}} PATHS
FAIL finetune --{model_name_or_path,train_file,validation_file,test_file,tokenizer,config} PATHS
FAIL {predict --{model_name_or_path,file},publish --{run,evaluations,compared},detect --{model,generator}} PATHS
""".replace("PATHS", "{'',odd_missing/odd," + "odd" * 100 + "}")
IDS = "{'',lab/,../x,lab/-x,lab,a/b/c,lab/x..y,é/x,lab/" + "x" * 200 + "}"
ODD = "{'',---,é,'none of these',@x,odd\udcffname,'x: 1'," + "a" * 300 + "}"
OWN = "discriminator,generator,checkpoint-2,fractions,own,blocks,tokenizer,train.blocks,held_out.blocks,config.json,"
OWN += "model.safetensors,run_record.json,training_curves.png"  # what commands write
BAD_YAML = "max_steps: [1|a: b: c|\tx: 1|{|@x|- 1\n- 2|just text||null|42|!!x y|1: 2|seed: *x|max_stepz: 2|[a]: 1|"
BAD_YAML += f"x: !!python/object/apply:os.mkdir [{MARKER}]|max_steps: [1, 2]|max_steps: {{a: 1}}|max_steps: two|"
BAD_YAML += "help: true|seed: \ud800|seed: 1\0|--- {}\n--- {}|use_cpu: 7|seed: 2020-01-01|seed: 1\n  x: 2|config: x"
YAML = {  # what must come of files of flags
    FAIL: [*BAD_YAML.split("|"), "[" * 5000],
    WORK: ["seed: 2", "\ufeffseed: 2", "seed: 2\r\nuse_cpu: true\r\n", "seed: &x 2\nlogging_steps: *x", "seed: null"],
    EITHER: ["seed: 2\nseed: 3", "&a {seed: 1}", "seed: 0x10", "seed: 1_0", 'output_dir: "odd\\0"'],
}
TABLES, CHECKPOINT = "{.csv,.tsv,.jsonl,.parquet}", "resumed_run/checkpoint-4"
STATE = "{optimizer.pt,scheduler.pt,rng_state.pth,model.safetensors,{config,trainer_state}.json}"
PAIR, TUNED = "pair_run/discriminator", "tuned_run/train/seed_42"
MODEL = "{config.json,tokenizer.json,model.safetensors}"
# Of each area groups, which are drawn equally often. A line: what must come of it, or of a file that the oracle finds
# bad; a command, with braces as in a shell; behind the bar a file that is mutated, `_` for the last word.
AREAS: dict[str, list[str]] = {
    "text": [
        *["FAIL prepare --train_files corpus.txt{,.gz,.zst} | _"] * 3,
        "TOLD prepare --train_files texts{,/*.txt} | texts/strange.txt",
        "FAIL prepare --train_files corpus.txt,{weight={nan,0,-1,x},wieght=2,encoding=utf-99}",
        "FAIL prepare --train_files corpus.txt,weight=1,weight=2",
        "WORK prepare --train_files {'odd name (1).txt','odd[1]*.txt'}",
    ],
    "jsonl": ["FAIL prepare --train_files a.jsonl{,.gz,.zst} | _"],
    "parquet": [
        *["FAIL prepare --train_files a.parquet | _"] * 3,
        "FAIL prepare --train_files {numbers,lists,nulls,structs}.parquet\nWORK prepare --train_files holes.parquet",
    ],
    "blocks": [
        "TOLD prepare --output_dir prepared --held_out_share 0.1 | prepared/{train,held_out}.blocks",
        "FAIL {prepare,pretrain} --train_files prepared/train.blocks --held_out_files prepared/held_out.blocks"
        " --max_seq_length 16 | prepared/{train,held_out}.blocks",
    ],
    "tokenizers": [
        *["FAIL prepare --tokenizer own_tokenizer | own_tokenizer/{tokenizer,tokenizer_config}.json"] * 3,
        "FAIL prepare --tokenizer vocab.txt | _",
    ],
    "flags": [
        *[FLAGS] * 3,
        "\n".join(f"{key} pretrain --config {key}_{at}.yaml" for key in YAML for at in range(len(YAML[key]))),
    ],
    "checkpoints": [
        f"FAIL resume {CHECKPOINT}{{, --output_dir resumed_run}} | {CHECKPOINT}/{STATE}",
        f"TOLD resume {{latest,auto}} --output_dir resumed_run | {CHECKPOINT}/{STATE}",
    ],
    "models": [
        f"FAIL {{detect,detect_with --discriminator {PAIR}}} | {PAIR}/{{config.json,model.safetensors}}",
        f"FAIL predict | {TUNED}/model/{MODEL}",
        f"EITHER finetune | {PAIR}/{MODEL}",  # its head is new
        f"FAIL pretrain_from --discriminator {PAIR} | {PAIR}/{{config.json,model.safetensors}}",
        "FAIL pretrain_from --generator pair_run/generator | pair_run/generator/{config.json,model.safetensors}",
    ],
    "outputs": [
        "FAIL {prepare,pretrain,finetune} | new_out\nFAIL predict --output_file new_out | new_out",
        "WORK {{prepare,pretrain,finetune} --output_dir,predict --output_file} {'odd name (1)',odd[1]*,odd_new/odd}",
        f"FAIL {{prepare,pretrain,finetune}} --output_dir {{'',a_file/below,{'odd' * 100},odd\udcffname}}",
        f"FAIL predict --output_file {{'',a_file/below,odd\udcffname,dev.csv,tuned_run,{TUNED}/model/config.json}}",
        "EITHER {prepare,pretrain,finetune} --output_dir {config,own_tokenizer,pair_run/{generator,fractions/50}}",
        f"EITHER {{prepare,pretrain,finetune}} --output_dir mine/{{{OWN}}}",
        f"EITHER {{prepare,pretrain,finetune}} --output_dir .\nEITHER finetune --output_dir {{pair_run,{PAIR}}}",
        "FAIL {prepare,pretrain} --output_dir corpus.txt\nFAIL finetune --output_dir train.csv",
    ],
    "finetuning": [
        "FAIL own --task_kind question_answering --train_file squad.json | _",
        f"FAIL finetune --train_file rows_{{0,1}}{TABLES}\nWORK finetune --train_file rows_16{TABLES}",
        *[f"FAIL {{finetune --train_file,predict --file}} train{TABLES} | _"] * 3,
    ],
    "publishing": [
        *["FAIL publish | pair_run/{run_record.json,fractions/50/fraction.json}"] * 2,
        *["FAIL publish | pair_run/{discriminator,generator,fractions/50/discriminator}/{config,tokenizer}.json"] * 2,
        "EITHER publish | pair_run/{discriminator,generator}/model.safetensors",  # weights are not read
        f"FAIL {{publish --{{evaluations,run}},compare}} tuned_run | {TUNED}/evaluation_record.json",
        f"FAIL publish --run tuned_run | {TUNED}/model/{{config,tokenizer}}.json",
        f"FAIL publish --hub_model_id {IDS}",
        f"EITHER publish --{{license,languages,corpora}} {ODD}\nFAIL publish --{{evaluations,compared}} {ODD}",
    ],
}


def spelled_out(line: str) -> list[str]:
    """The line with one of each of the words in braces."""
    braces = re.search(r"\{([^{}]*)\}", line)
    if braces is None:
        return [line]
    lines = [line[: braces.start()] + word + line[braces.end() :] for word in braces[1].split(",")]
    return [one for line in lines for one in spelled_out(line)]


# ---- Mutations ----


class Code:
    """Pickled, it makes a directory when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (MARKER,)


BYTES: dict[str, Callable[[bytes, int, random.Random], bytes]] = {  # of the old bytes and a place in them
    "emptied": lambda old, at, draw: b"",
    "cut off": lambda old, at, draw: old[:at],
    "second half zero": lambda old, at, draw: old[: len(old) // 2] + bytes((len(old) + 1) // 2),
    "a bit flipped": lambda old, at, draw: old[:at] + bytes([old[at] ^ 4]) + old[at + 1 :],
    "a byte changed": lambda old, at, draw: old[:at] + bytes([(old[at] + 97) % 256]) + old[at + 1 :],
    "a NUL inserted": lambda old, at, draw: old[:at] + b"\0" + old[at:],
    "random bytes inserted": lambda old, at, draw: old[:at] + draw.randbytes(9) + old[at:],
    "a Latin-1 letter": lambda old, at, draw: old[:at] + b"\xe9" + old[at:],
    "a byte order mark": lambda old, at, draw: b"\xef\xbb\xbf" + old,
    "in UTF-16": lambda old, at, draw: old.decode("latin-1").encode("utf-16"),
    "gzipped under its old name": lambda old, at, draw: gzip.compress(old),
    "appended to": lambda old, at, draw: old + draw.randbytes(12),
}
INSTEAD: dict[str, Callable[[Path], Any]] = {  # what may lie where a file is expected
    "is missing": lambda path: None,
    "is a directory": lambda path: path.mkdir(),
    "is a pickle": lambda path: torch.save(Code(), path),
}
JSON_WORDS = r'null NaN 1e999 -1 0 true [] {} "x" "\ud800" "\u0000" "../../x" 1000000000000000 missing'
JSON_VALUES = [*JSON_WORDS.split(), "9" * 5000, "[" * 10**5 + "]" * 10**5]
TENSORS: dict[str, Callable[[dict[str, torch.Tensor], str], Any]] = {  # of all, and the name of one
    "NaN": lambda tensors, name: tensors[name].fill_(float("nan")),
    "zero": lambda tensors, name: tensors[name].zero_(),
    "of another shape": lambda tensors, name: tensors.update({name: torch.ones(3)}),
    "int64": lambda tensors, name: tensors.update({name: tensors[name].long()}),
    "missing": lambda tensors, name: tensors.pop(name),
}


def mutate_json(path: Path, draw: random.Random) -> str:
    """Another value somewhere in a JSON file, or in one of many lines."""
    content = path.read_bytes()
    start, end = 0, len(content)
    if path.suffix == ".jsonl":
        start = content.index(b"\n", draw.randrange(len(content) // 2)) + 1
        end = content.index(b"\n", start)
    tree = node = parent = json.loads(content[start:end])
    trail: list[Any] = []
    while isinstance(node, (dict, list)) and node and (not trail or draw.random() < 0.6):
        trail.append(draw.choice(list(node) if isinstance(node, dict) else range(len(node))))
        parent, node = node, node[trail[-1]]
    other = json.dumps(draw.choice(list(tree.values())))
    value = draw.choice([*JSON_VALUES, other, other])
    parent[trail[-1]] = "@@"
    if value == "missing":
        del parent[trail[-1]]
    text = json.dumps(tree).replace('"@@"', value).encode()
    path.write_bytes(content[:start] + text + content[end:])
    return f"{'.'.join(map(str, trail))} is {value[:20]}"


def mutate(path: Path, draw: random.Random) -> str:
    """One mutation of a file, or of what lies in its place. Returns what was done."""
    special = {".json": JSON_VALUES, ".jsonl": JSON_VALUES, ".safetensors": TENSORS}
    table: Any = draw.choice([INSTEAD, *[BYTES] * 3, *[special.get(path.suffix, BYTES)] * 3])
    if table is INSTEAD or not path.is_file():
        path.unlink(missing_ok=True)
        kind = draw.choice(list(INSTEAD))
        INSTEAD[kind](path)
    elif table is JSON_VALUES:
        kind = mutate_json(path, draw)
    elif table is TENSORS:
        tensors = load_file(path)
        name, change = draw.choice(sorted(tensors)), draw.choice(list(TENSORS))
        TENSORS[change](tensors, name)
        save_file(tensors, path, {"format": "pt"})
        kind = f"{name} is {change}"
    else:
        kind, content = draw.choice(list(BYTES)), path.read_bytes() or b"\n"
        path.write_bytes(BYTES[kind](content, draw.randrange(len(content)), draw))
    return kind


class Case:
    """A command line, the directory that it runs in, and what must come of it."""

    def __init__(self, area: str, seed: int, number: int) -> None:
        self.draw = random.Random(f"{seed} {area} {number}")
        self.place = WORKPLACE / area / str(number)
        self.place.mkdir(parents=True)
        lines = [line for row in self.draw.choice(AREAS[area]).strip().split("\n") for line in spelled_out(row)]
        line, _, path = self.draw.choice(lines).partition(" | ")
        self.expected, stem, *more = shlex.split(line)
        self.argv, self.done = shlex.split(STEMS.get(stem, stem)) + more, ""
        self.own = {"resumed_run", "prepared"} & {*self.argv}  # what the command may write
        self.names = {"own:", *re.split("[ /=,]", " ".join(more)), *more} - {"", "."}  # a message must have one
        for name in {re.split("[/,]", word)[0] for word in self.argv} & {*os.listdir(VALID)}:
            copy: Any = shutil.copy if (VALID / name).is_file() else shutil.copytree
            copy(VALID / name, self.place / name)
        if path:
            self.damage(more[-1] if path == "_" else path)

    def damage(self, path: str) -> None:
        """A mutation of a file, which a message must name, or its directory."""
        file = self.place / path
        kind = mutate(file, self.draw)
        has_hash = file.suffix == ".blocks" or path.startswith(CHECKPOINT)
        harm = expected_of(file, VALID / path, exact=has_hash)
        self.names |= {*Path(path).parts}
        self.done = f"{path}: {kind}"
        self.expected = self.expected if harm == FAIL else harm


# ---- Oracles ----


def expected_of(path: Path, valid: Path, exact: bool = False) -> str:
    """Whether a file must be refused, as far as JSON, safetensors, a vocabulary or texts tell; if any byte counts
    (`exact`), whether it is another."""
    if not path.is_file():
        return EITHER if path.is_dir() or not os.path.lexists(path) else FAIL
    try:
        content = path.read_bytes()
        if exact or content == valid.read_bytes():
            return WORK if content == valid.read_bytes() else FAIL
        if path.name == "vocab.txt":
            lines = content.decode("utf-8-sig").splitlines()
            return EITHER if {*VOCABULARY[:5]} < {*lines} and "\0" not in "".join(lines) else FAIL
        if path.suffix == ".json":
            tree = json.loads(content.decode())
            tokens = [str(value) for name, value in tree.items() if name.endswith("_token")]
            return EITHER if len({*tokens}) == len(tokens) else FAIL
        if path.suffix == ".safetensors":
            now, before = load_file(path), load_file(valid)
            whole = now.keys() == before.keys() and all(now[name].shape == before[name].shape for name in now)
            sound = all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in now.values())
            return EITHER if whole and sound else FAIL
        if path.suffix in (".pt", ".pth", ".yaml"):
            return EITHER
        words = " ".join(text for text in read_texts(path) if text is not None)
        if "\0" in words or not words.encode().strip():
            return FAIL
        return EITHER if path.stem == "train" or len(words.split()) < 100 else WORK
    except Exception:  # whatever the reader says
        return FAIL


def read_texts(path: Path) -> list[str]:
    """The texts of a file; an error for what is no text, no JSON, no table or has no such column."""
    kind = Path(path.name.removesuffix(".gz").removesuffix(".zst")).suffix
    if kind == ".parquet":
        return pq.ParquetFile(path, pre_buffer=False).read(use_threads=False)["text"].to_pylist()
    content = path.read_bytes()
    if path.suffix == ".zst":
        content = zstandard.ZstdDecompressor().decompress(content, 1 << 20, allow_extra_data=False)
    decoded = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    if kind == ".jsonl":
        return [json.loads(line)["text"] for line in decoded.split("\n") if line.strip()]
    if kind == ".txt":
        return decoded.splitlines()
    dialect = "excel" if kind == ".csv" else "excel-tab"
    rows = list(csv.DictReader(io.StringIO(decoded, newline=""), dialect=dialect, strict=True))
    assert not any(None in row or None in row.values() for row in rows)  # a line is too long or too short
    return [row["text"] for row in rows]


# ---- Running and judging ----


def run_here(argv: list[str], place: Path, log: Path) -> None:
    os.chdir(place)
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.alarm(LIMIT)  # kills, whatever runs
    sys.argv = [f"hf-electra-rtd {argv[0]}", *argv[1:]]
    cli.run(MAINS[argv[0]])


def run_forked(argv: list[str], place: Path) -> tuple[int, str]:
    """The exit status of a command (minus the signal that ended it) and what it printed."""
    log = place.with_suffix(".log")
    sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(target=run_here, args=(argv, place, log))
    process.start()
    process.join()
    printed = log.read_text(errors="replace")
    log.unlink()
    return process.exitcode or 0, printed


def contents(case: Case) -> dict[str, bytes]:
    """Of all files that are not the command's own; of links where they lead."""
    found = {}
    for path in case.place.rglob("*"):
        name, is_link = str(path.relative_to(case.place)), path.is_symlink()
        if path.name != ".lock" and name.partition("/")[0] not in case.own:
            found[name] = os.fsencode(os.readlink(path)) if is_link else path.read_bytes() if path.is_file() else b""
    return found


def judge(case: Case, status: int, printed: str, before: dict[str, bytes]) -> tuple[str, str]:
    """("clear", or what is wrong, and the words that decided)."""
    after = contents(case)
    if lost := [name for name, content in before.items() if after.get(name) != content]:
        return "loss", f"changed or gone: {', '.join(lost[:5])}"
    if (case.place / MARKER).exists():
        return "loss", "code ran"
    if status == -signal.SIGALRM:
        return "hang", f"{LIMIT} s"
    if status < 0 or "Traceback (most recent call last)" in printed:
        return "traceback", printed[-250:] or f"killed by signal {-status}"
    names = [name.encode(errors="backslashreplace").decode() for name in case.names]
    if status == 0:
        telling = re.compile("cannot|not a whole|no whole|altered|cut off|ignored|passed|skip", re.IGNORECASE)
        told = any(name in line for line in filter(telling.search, printed.splitlines()) for name in names)
        silent = case.expected == FAIL or (case.expected == TOLD and not told)
        return ("silent", printed[-200:]) if silent else ("clear", "")
    message = re.split(r"(?m)^error: ", printed)[-1] if "error: " in printed else printed[-800:]
    if case.expected == WORK:
        return "refused", message
    named = re.search(r"--[a-z]\w+", message) or any(name in message for name in names)
    return ("clear", "") if named and "weights_only" not in message else ("unnamed", message)


def make_valid() -> None:
    """The files that cases begin with: texts, tables and YAML files, then what the commands make of them."""
    content = make_text(40) + "Café naïve déjà vu\n"
    documents = content.split("\n\n")
    lines = [json.dumps({"id": number, "text": text, "meta": {"a": [1]}}) for number, text in enumerate(documents)]
    names = ["corpus", "texts/good", "texts/strange", "odd name (1)", "odd[1]*"]
    files = {**dict.fromkeys((f"{name}.txt" for name in names), content), "a.jsonl": "\n".join(lines), "a_file": "x"}
    files["vocab.txt"] = "\n".join(VOCABULARY) + "\n"
    squad = [{"context": word, "qas": [{"id": word, "question": "who?", "answers": []}]} for word in WORDS]
    squad[0]["qas"] = [{"id": "0", "question": "who?", "answers": [{"text": WORDS[0], "answer_start": 0}]}]
    files["squad.json"] = json.dumps({"data": [{"title": "x", "paragraphs": squad}]})
    files |= {f"{key}_{at}.yaml": text for key, texts in YAML.items() for at, text in enumerate(texts)}
    files |= {f"mine/{name}/{name}/mine.txt": "mine" for name in OWN.split(",")}
    for name, text in files.items():
        (VALID / name).parent.mkdir(parents=True, exist_ok=True)
        (VALID / name).write_bytes(text.encode(errors="surrogatepass"))
    for path in (VALID / "corpus.txt", VALID / "a.jsonl"):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        Path(f"{path}.zst").write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes()))
    columns: dict[str, Any] = {"a": documents, "holes": [None, *documents], "numbers": range(12)}
    columns |= {"nulls": [None] * 12, "lists": [documents], "structs": [{"text": "x"}]}
    for name, column in columns.items():
        pq.write_table(pa.table({"text": pa.array(column)}), VALID / f"{name}.parquet", row_group_size=5)
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=6)) for _ in range(40)]
    rows = [{"text": text, "label": ("no", "yes")[index % 2], "id": index} for index, text in enumerate(texts)]
    tables = {"train": rows, "dev": rows, "rows_0": [], "rows_1": rows[:1], "rows_16": rows[:16]}
    for stem, table in tables.items():
        frame = pandas.DataFrame(table, columns=["text", "label", "id"])
        frame.to_csv(VALID / f"{stem}.csv", index=False)
        frame.to_csv(VALID / f"{stem}.tsv", sep="\t", index=False)
        frame.to_json(VALID / f"{stem}.jsonl", orient="records", lines=True)
        frame.to_parquet(VALID / f"{stem}.parquet")
    tiny_config(hidden_size=16, num_attention_heads=2).save_pretrained(VALID / "config")
    for line in (
        f"{STEMS['prepare']} --output_dir prepared --held_out_share 0.1",
        f"{STEMS['pretrain']} --output_dir resumed_run --max_steps 4 --checkpoint_fractions 0.5 1.0",
        f"{STEMS['finetune']} --output_dir tuned_run --model_name_or_path resumed_run",
    ):
        status, printed = run_forked(line.split(), VALID)
        assert status == 0, printed
    pair, own = VALID / "pair_run", VALID / "own_tokenizer"
    shutil.copytree(VALID / "resumed_run", pair, ignore=shutil.ignore_patterns("checkpoint-*", "blocks"))
    shutil.copytree(VALID / "prepared/tokenizer", own, ignore=shutil.ignore_patterns("vocab.txt"))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--areas", nargs="+", choices=list(AREAS), default=list(AREAS))
    parser.add_argument("--cases", type=int, default=50, help="for each area; 50 of all areas take about two minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="of one case, to repeat it and to keep its directory")
    arguments = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    numbers = range(arguments.cases) if arguments.number is None else [arguments.number]
    make_valid()
    faulty = False
    for area in arguments.areas:
        results: Counter[str] = Counter()
        for number in numbers:
            case = Case(area, arguments.seed, number)
            before = contents(case)
            status, printed = run_forked(case.argv, case.place)
            result, why = judge(case, status, printed, before)
            results[result] += 1
            if result != "clear" or arguments.number is not None:
                print(f"{area} {number}: {result}; {case.expected}; {case.done}")
                print(f"    {shlex.join(case.argv)[-200:]}\n    {' '.join((why or printed[-300:]).split())[:500]}")
            if arguments.number is None:
                shutil.rmtree(case.place)
        unclear = len(numbers) - results.pop("clear", 0)
        faulty |= unclear > 0.01 * len(numbers) or results["loss"] + results["hang"] > 0
        print(f"{area}: {len(numbers)} cases, {unclear} not clear {dict(+results) or ''}", flush=True)
    return int(faulty)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        if "--number" not in sys.argv:
            shutil.rmtree(WORKPLACE, ignore_errors=True)
