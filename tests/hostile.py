"""Tries the commands, and prediction and fine-tuning from Python, with hostile inputs: files that are damaged, in the
way or of another kind, flags that make no sense, foreign models, pickles.

    python tests/hostile.py --areas text shards --cases 300 --seed 0

A case is a command line of `AREAS`, in a fork of this process, on a copy of valid files, of which one may be mutated.
What must come of it is the line's first word, unless the mutation may do no harm. Prints what is not clear, and keeps
its directory. The exit status is 1 if that is more than 2 %, or if a case loses data, hangs or runs code.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
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
from itertools import chain
from pathlib import Path
from typing import Any


WORKPLACE = Path(tempfile.mkdtemp(prefix="hostile-"))
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", COLUMNS="200")
os.environ["HF_DATASETS_CACHE"] = str(WORKPLACE / "datasets")
sys.path.insert(0, str(Path(__file__).parents[1]))

import datasets  # noqa: E402
import pandas  # noqa: E402
import torch  # noqa: E402
import zstandard  # noqa: E402

import hf_electra_rtd  # noqa: E402
from hf_electra_rtd.base import cli  # noqa: E402
from hf_electra_rtd_command import COMMANDS  # noqa: E402
from tests.conftest import VOCABULARY, WORDS, make_text, tiny_config  # noqa: E402


for late in ("peft", "datatrove", "onnxruntime", "sklearn.metrics", "scipy.stats", "matplotlib.pyplot"):
    importlib.import_module(late)  # once, and not in every fork
LIMIT = 60  # seconds of a case
MARKER = "CODE_RAN"  # what a pickle would make
VALID = WORKPLACE / "valid"


def run_python(argv: list[str]) -> None:
    """Evaluates an expression; `classify` and `train` take rows."""
    names = {
        "classify": lambda rows: hf_electra_rtd.Classifier("tuned_run", use_cpu=True).predict(rows),
        "train": lambda rows: hf_electra_rtd.finetune("pair_run", rows, rows, "new_out", max_steps=2),
        "text": "a river",
        "table": {"text": ["a river", "a mill", "in it", "a"] * 4, "label": ["yes", "no"] * 8},
    }
    try:
        eval(argv[0], vars(datasets) | vars(pandas) | names)
    except TypeError as error:  # as Python says what takes no such thing
        raise ValueError(error) from error


MAINS = {name: importlib.import_module(f"hf_electra_rtd.{path}").main for name, (path, _) in COMMANDS.items()}
MAINS["python"] = run_python

# ---- Command lines ----

TEXT = "--train_files corpus.txt --tokenizer vocab.txt"
OUT = "--disable_tqdm True --output_dir new_out"
RUN = "--use_cpu True --max_seq_length 32 --max_steps 2 --per_device_train_batch_size 8 --warmup_steps 1"
STEMS = {  # what the first word of a line stands for; flags that follow win
    "prepare": f"prepare {TEXT} --max_seq_length 16 --num_proc 1 --held_out_share 0 {OUT}",
    "many": f"prepare {TEXT} --max_seq_length 16 --executor local --tasks 2 --workers 1 --output_dir tasked",
    "pretrain": f"pretrain {TEXT} --model_config config {RUN} --eval_steps 2 {OUT}",
    "sharded": f"pretrain --model_config config {RUN} {OUT} --max_seq_length 16 --train_files sharded/train "
    "--held_out_files sharded/held_out --tokenizer sharded/tokenizer",
    "pretrain_from": f"pretrain {TEXT} {RUN} {OUT}",
    "resume": f"pretrain {TEXT} --model_config config {RUN} {OUT} --max_steps 6 --resume_from_checkpoint",
    "finetune": f"finetune --model_name_or_path pair_run --train_file train.csv {RUN} {OUT}",
    "predict": "predict --model_name_or_path tuned_run --file train.csv --use_cpu True",
    "detect": "detect 'the old river' --model pair_run --mask old --seed 1",
    "detect_with": "detect 'the old river' --generator pair_run/generator --seed 1",
    "correct": "correct 'the old river' --model corrector",
    "publish": "publish --run pair_run --hub_model_id lab/tiny --license mit --dry_run True",
}
FLAGS = """
FAIL {pretrain,finetune} --{learning_rate,warmup_steps,logging_steps,num_train_epochs,max_steps,adam_beta2} {-5,nan,x}
FAIL {pretrain,finetune} --{gradient_accumulation_steps,per_device_{train,eval}_batch_size,save_total_limit} {0,-1,1.5}
FAIL {pretrain,finetune} --{optim,lr_scheduler_type,eval_strategy,report_to,matmul,use_cpu,size,seed} nonsense
FAIL pretrain --{objective,sharing,attn_implementation,generator_weight,keep_probability,checkpoint_fractions} {-1,nan}
FAIL {pretrain,prepare} --{held_out_share,num_proc,vocab_size,packing,drop_duplicates,encoding,encoding_errors} -1
FAIL finetune --{seeds,lora_r,lora_alpha,layerwise_lr_decay,validation_share,dropout,lora_dropout} {-1,2.5,nan}
FAIL {finetune --{head,select,keep_models,task_kind,metrics,labels},publish --{hub_model_id,parts,private}} nonsense
FAIL {predict --batch_size,detect --{mask_probability,top_k,temperature},correct --{margin,threshold}} {-2000,nan,inf}
FAIL {prepare --{train_files,held_out_files,tokenizer},pretrain --{model_config,generator,discriminator,config}} PATHS
FAIL finetune --{model_name_or_path,train_file,validation_file,test_file,tokenizer,config} PATHS
FAIL {predict --{model_name_or_path,file},publish --{run,compared},detect --model} PATHS
FAIL correct --{model,file,confusion_file} PATHS
""".replace("PATHS", "{'',odd_missing/odd," + "odd" * 100 + "}")
IDS = "{'',lab/,../x,lab/-x,lab,a/b/c,lab/x..y,é/x,lab/" + "x" * 200 + "}"
ODD = "{'',---,é,'none of these',@x,odd\udcffname,'x: 1'," + "a" * 300 + "}"
OWN = "discriminator,generator,checkpoint-2,own,blocks,tokenizer,train.blocks,config.json,run_record.json"  # our names
BAD_YAML = "max_steps: [1|a: b: c|\tx: 1|{|@x|- 1\n- 2|just text||null|42|!!x y|1: 2|seed: *x|max_stepz: 2|[a]: 1|"
BAD_YAML += f"x: !!python/object/apply:os.mkdir [{MARKER}]|max_steps: [1, 2]|max_steps: {{a: 1}}|max_steps: two|"
BAD_YAML += "help: true|seed: \ud800|seed: 1\0|--- {}\n--- {}|use_cpu: 7|seed: 2020-01-01|seed: 1\n  x: 2|config: x"
BAD_TASKS = "task_kind: [a]|task_kind: 1|labels: {a: 1}|labels: [no, no]|labels: [no]|label_words: [no=x]|metrics: x|"
BAD_TASKS += "label_column_name: id|dataset: x|template: 7|validation_share: 2|seeds: x"
YAML = {  # what must come of a command with a file of flags
    "FAIL pretrain": [*BAD_YAML.split("|"), "[" * 5000],
    "WORK pretrain": ["seed: 2", "\ufeffseed: 2", "seed: 2\r\nuse_cpu: true\r\n", "seed: &x 2\nlogging_steps: *x"],
    "FAIL finetune": BAD_TASKS.split("|"),
    "WORK finetune": ["labels: [no, yes]", "metrics: [f1]", "text_column_name: text", "task_name: null"],
}
YAML_LINES = [f"{key} --config {key.split()[-1]}_{key[0]}{at}.yaml" for key in YAML for at in range(len(YAML[key]))]
ROWS = "7,None,[7],[[]],[None],print,bytes(3),object(),DataFrame(dict(x=[1])),Dataset.from_dict({})"
CHECKPOINT = "resumed_run/checkpoint-4"
STATE = "{optimizer.pt,scheduler.pt,rng_state.pth,model.safetensors,{config,trainer_state}.json}"
PAIR = "pair_run/discriminator"
TUNED = "tuned_run/train/seed_42"
MODEL = "{config.json,tokenizer.json,model.safetensors}"
EXPORT = "config.json,tokenizer.json,export_record.json,onnx/model"
# Of each area groups, which are drawn equally often. A line: what must come of it, or of a harmful mutation; a command
# with braces as in a shell; behind the bar a file that is mutated, `_` for the last word.
AREAS: dict[str, list[str]] = {
    "text": [
        "FAIL prepare --train_files {corpus.txt,a.jsonl}{,.gz,.zst} | _",
        "FAIL prepare --train_files a.parquet | _",
        "TOLD prepare --train_files texts{,/*.txt} | texts/strange.txt",
        "FAIL prepare --train_files corpus.txt,{weight={nan,0,-1,x},wieght=2,encoding=utf-99}",
        "WORK prepare --train_files {'odd name (1).txt','odd[1]*.txt'}",
    ],
    "blocks": [
        "TOLD prepare --output_dir prepared --held_out_share 0.1 | prepared/{train,held_out}.blocks",
        "FAIL {prepare,pretrain} --train_files prepared/train.blocks --max_seq_length 16 | prepared/train.blocks",
    ],
    "shards": ["FAIL sharded | sharded/{train,held_out}/{*-00000.blocks,index.json}"],
    "tasks": ["TOLD many | tasked/{train/*.blocks,train/index.json,tasks/receipts/*.json}"],
    "tokenizers": [
        "FAIL prepare --tokenizer own_tokenizer | own_tokenizer/{tokenizer,tokenizer_config}.json",
        "FAIL prepare --tokenizer vocab.txt | _",
    ],
    "flags": [*[FLAGS] * 3, "\n".join(line for line in YAML_LINES if "pretrain" in line)],
    "task files": ["\n".join(line for line in YAML_LINES if "pretrain" not in line)],
    "checkpoints": [
        f"FAIL resume {CHECKPOINT}{{, --output_dir resumed_run}} | {CHECKPOINT}/{STATE}",
        f"TOLD resume {{latest,auto}} --output_dir resumed_run | {CHECKPOINT}/{STATE}",
    ],
    "models": [
        f"FAIL {{detect,detect_with --discriminator {PAIR}}} | {PAIR}/{{config.json,model.safetensors}}",
        f"FAIL predict | {TUNED}/model/{MODEL}",
        f"FAIL correct | corrector/pairs/seed_42/model/{MODEL}\nFAIL correct --model {{pair_run,tuned_run,exported}}",
        f"EITHER finetune | {PAIR}/{MODEL}",  # its head is new
        f"FAIL pretrain_from --discriminator {PAIR} | {PAIR}/{{config.json,model.safetensors}}",
        "FAIL pretrain_from --generator pair_run/generator | pair_run/generator/{config.json,model.safetensors}",
    ],
    "exports": [
        f"FAIL detect 'a river' --as_is --model exported --runtime onnx | exported/detector/{{{EXPORT}.onnx}}",
        f"FAIL predict --runtime onnx-int8 --model_name_or_path tuned_graph | tuned_graph/{{{EXPORT}_quantized.onnx}}",
        "FAIL detect 'a river' --as_is --runtime onnx --discriminator {exported/generator,pair_run}",
        "FAIL publish --run exported | exported/detector/{export_record.json,onnx/model.onnx}",
    ],
    "python": [
        f"FAIL python {{classify,train}}({{{ROWS}}}) text Text label row Examples",
        "FAIL python train({dict(),DataFrame()}) row",
        "WORK python {classify,train}({DataFrame(table),Dataset.from_dict(table),table})\nWORK python classify(text)",
    ],
    "outputs": [
        "FAIL {prepare,pretrain,finetune} | new_out\nFAIL {predict,correct} --output_file pair_run/discriminator",
        "WORK {{prepare,pretrain,finetune} --output_dir,predict --output_file} {'odd name (1)',odd[1]*,odd_new/odd}",
        f"FAIL {{prepare,pretrain,finetune}} --output_dir {{'',a_file/below,{'odd' * 100},odd\udcffname}}",
        f"FAIL predict --output_file {{'',a_file/below,odd\udcffname,train.csv,tuned_run,{TUNED}/model/config.json}}",
        f"EITHER {{prepare,pretrain,finetune}} --output_dir {{.,config,own_tokenizer,pair_run,{PAIR},mine/{{{OWN}}}}}",
        "FAIL {prepare,pretrain} --output_dir corpus.txt\nFAIL finetune --output_dir train.csv",
    ],
    "finetuning": ["FAIL {finetune --train_file,predict --file} train{.csv,.tsv,.jsonl,.parquet} | _"],
    "records": [
        "FAIL publish | pair_run/{run_record.json,fractions/50/fraction.json}",
        f"FAIL {{publish --{{evaluations,run}},compare}} tuned_run | {TUNED}/evaluation_record.json",
    ],
    "publishing": [
        f"FAIL publish | pair_run/{{discriminator,generator,fractions/50/discriminator}}/{MODEL}",
        f"FAIL publish --run tuned_run | {TUNED}/model/{MODEL}",
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
    return [spelled for line in lines for spelled in spelled_out(line)]


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
    "a NUL inserted": lambda old, at, draw: old[:at] + b"\0" + old[at:],
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
TEXTS = (".txt", ".csv", ".tsv", ".json", ".jsonl")
HARMS_TEXT = ("emptied", "second half zero", "a NUL inserted", "a Latin-1 letter", "in UTF-16", "is a pickle")
MAY_BE_HARMLESS = ("is missing", "is a directory", "a bit flipped", "second half zero")  # elsewhere


def mutate_json(path: Path, draw: random.Random) -> str:
    """Another value somewhere in a JSON file, or in one of many lines."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = draw.randrange(len(lines))
    node = tree = json.loads(lines[number])
    key: Any = None
    while key is None or (isinstance(node[key], (dict, list)) and node[key] and draw.random() < 0.6):
        node = node if key is None else node[key]
        key = draw.choice(list(node) if isinstance(node, dict) else range(len(node)))
    value = draw.choice([*JSON_VALUES, *map(json.dumps, tree.values())])
    node[key] = "@@"
    if value == "missing":
        del node[key]
    lines[number] = json.dumps(tree).replace('"@@"', value)
    path.write_text("\n".join(lines))
    return f"{key} is {value[:20]}"


def mutate(path: Path, draw: random.Random) -> tuple[str, bool]:
    """One mutation of a file, or of what lies in its place. Returns what was done, and whether it must do harm."""
    table: Any = draw.choice([INSTEAD, *[BYTES] * 3, *[JSON_VALUES] * 3])
    if table is INSTEAD or not path.is_file():
        path.unlink(missing_ok=True)
        kind = draw.choice(list(INSTEAD))
        INSTEAD[kind](path)
    elif table is JSON_VALUES and path.suffix.startswith(".json"):
        return mutate_json(path, draw), False
    else:
        kind = draw.choice(list(BYTES))
        content = path.read_bytes() or b"\n"
        path.write_bytes(BYTES[kind](content, draw.randrange(len(content)), draw))
    return kind, kind in HARMS_TEXT if path.suffix in TEXTS else kind not in MAY_BE_HARMLESS


class Case:
    """A command line, the directory that it runs in, and what must come of it."""

    def __init__(self, area: str, seed: int, number: int) -> None:
        self.draw = random.Random(f"{seed} {area} {number}")
        self.place = WORKPLACE / area / str(number)
        self.place.mkdir(parents=True)
        lines = [line for row in self.draw.choice(AREAS[area]).strip().split("\n") for line in spelled_out(row)]
        line, _, path = self.draw.choice(lines).partition(" | ")
        self.expected, stem, *more = shlex.split(line)
        self.argv = shlex.split(STEMS.get(stem, stem)) + more
        self.done = ""
        self.own = {"resumed_run", "prepared", "tasked"} & {*self.argv}  # what the command may write
        self.names = {"own:", *re.split("[ /=,]", " ".join(more)), *more} - {"", "."}  # a message must have one
        for name in os.listdir(VALID):
            if name in {"pair_run", "tuned_run", *(re.split("[/,]", word)[0] for word in self.argv)}:
                copy: Any = shutil.copy if (VALID / name).is_file() else shutil.copytree
                copy(VALID / name, self.place / name)
        if path:
            self.damage(more[-1] if path == "_" else path)

    def damage(self, path: str) -> None:
        """A mutation of a file, which a message must name, or its directory."""
        file = self.draw.choice(sorted(self.place.glob(path)) or [self.place / path])
        path = str(file.relative_to(self.place))
        kind, must_harm = mutate(file, self.draw)
        self.names |= {*Path(path).parts}
        self.done = f"{path}: {kind}"
        if file.is_file() and (file.suffix in (".blocks", ".onnx") or path.startswith(CHECKPOINT)):  # it has a hash
            must_harm = file.read_bytes() != (VALID / path).read_bytes()
        if not must_harm:
            self.expected = "EITHER"


# ---- Running and judging ----


def run_here(argv: list[str], place: Path, log: Path) -> None:
    os.chdir(place)
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    resource.setrlimit(resource.RLIMIT_DATA, (12 << 30, 12 << 30))
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
    files = {}
    for path in case.place.rglob("*"):
        name = str(path.relative_to(case.place))
        if path.name != ".lock" and name.partition("/")[0] not in case.own:
            files[name] = path.read_bytes() if path.is_file() else b""
    return files


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
        silent = case.expected == "FAIL" or (case.expected == "TOLD" and not told)
        return ("silent", printed[-200:]) if silent else ("clear", "")
    message = re.split(r"(?m)^error: ", printed)[-1] if "error: " in printed else printed[-800:]
    if case.expected == "WORK":
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
    files["pairs.tsv"] = "text\tright\nthe old mill .\tthe old river .\nin it\tin it\n"
    files |= {line.split()[-1]: text for line, text in zip(YAML_LINES, chain(*YAML.values()), strict=True)}
    files |= {f"mine/{name}/{name}/mine.txt": "mine" for name in OWN.split(",")}
    for name, text in files.items():
        (VALID / name).parent.mkdir(parents=True, exist_ok=True)
        (VALID / name).write_bytes(text.encode(errors="surrogatepass"))
    for path in (VALID / "corpus.txt", VALID / "a.jsonl"):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        Path(f"{path}.zst").write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes()))
    pandas.DataFrame({"text": documents}).to_parquet(VALID / "a.parquet", row_group_size=5)
    texts = [" ".join(random.Random(number).choices(WORDS, k=6)) for number in range(40)]
    frame = pandas.DataFrame({"text": texts, "label": ["no", "yes"] * 20, "id": range(40)})
    frame.to_csv(VALID / "train.csv", index=False)
    frame.to_csv(VALID / "train.tsv", sep="\t", index=False)
    frame.to_json(VALID / "train.jsonl", orient="records", lines=True)
    frame.to_parquet(VALID / "train.parquet")
    tiny_config(hidden_size=16, num_attention_heads=2).save_pretrained(VALID / "config")
    for line in (
        f"{STEMS['prepare']} --output_dir prepared --held_out_share 0.1",
        f"{STEMS['prepare']} --output_dir sharded --held_out_share 0.1 --shard_size 2KB",
        f"{STEMS['many']} --held_out_share 0",
        f"{STEMS['pretrain']} --output_dir resumed_run --max_steps 4",
        f"{STEMS['pretrain']} --output_dir pair_run --checkpoint_fractions 0.5 1.0 --save_strategy no",
        f"{STEMS['finetune']} --output_dir tuned_run",
        "export --model pair_run --output_dir exported",
        "export --model tuned_run --output_dir tuned_graph",
        f"{STEMS['finetune']} --task_kind correction --train_file pairs.tsv --validation_file pairs.tsv "
        "--output_dir corrector",
    ):
        status, printed = run_forked(line.split(), VALID)
        assert status == 0, printed
    shutil.copytree(VALID / "prepared/tokenizer", VALID / "own_tokenizer")
    (VALID / "own_tokenizer/vocab.txt").unlink()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--areas", nargs="+", choices=list(AREAS), default=list(AREAS))
    parser.add_argument("--cases", type=int, default=50, help="for each area")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    make_valid()
    results: Counter[tuple[str, str]] = Counter()
    for area in arguments.areas:
        for number in range(arguments.cases):
            case = Case(area, arguments.seed, number)
            before = contents(case)
            status, printed = run_forked(case.argv, case.place)
            result, why = judge(case, status, printed, before)
            results[area, result] += 1
            if result == "clear":
                shutil.rmtree(case.place)
                continue
            print(f"{case.place}: {result}; {case.expected}; {case.done}")
            print(f"    {shlex.join(case.argv)[-200:]}\n    {' '.join(why.split())[:500]}", flush=True)
    unclear = {key: count for key, count in results.items() if key[1] != "clear"}
    print(f"{results.total()} cases, {sum(unclear.values())} not clear: {unclear}")
    if not unclear:
        shutil.rmtree(WORKPLACE)
    is_bad = any(result in ("loss", "hang") for _, result in unclear)
    return int(is_bad or sum(unclear.values()) > 0.02 * results.total())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
