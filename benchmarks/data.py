#!/usr/bin/env python
"""What data cost: preparing text, feeding batches, importing the package.

    python benchmarks/data.py --output_dir runs/benchmarks
    python benchmarks/data.py text.txt.zst --tokenizer vocab.txt --num_proc 2

Preparation is measured against the tokenizer alone: the same lines, encoded with as many threads of its own. Both are
measured in turn, and the median counts. Peak memory is that of the process (Linux only), for the text once and, with
`--repeats`, repeated. Feeding runs on one core. A table for people comes first; the last line of the output is the
same as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import reporting
import torch
from rich.console import Console
from rich.table import Table

from hf_electra_rtd import DataCollatorForRTD, SequenceStream
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.text import Source, find_files, read_lines
from hf_electra_rtd.data.tokenization import load_tokenizer, train_wordpiece


BUNDLED_CORPUS = Path(__file__).parents[1] / "examples" / "data" / "eltec_eng_excerpts.txt.gz"
STOCK_IMPORT = "from transformers import ElectraForMaskedLM, ElectraForPreTraining, AutoModelForPreTraining"

# Encodes and does nothing else, with threads of its own: says when it is ready, begins at the next line of input.
ALONE = """
import os, sys
from tokenizers import Tokenizer
tokenizer, lines, threads = sys.argv[1:]
os.environ.update(TOKENIZERS_PARALLELISM="true", RAYON_NUM_THREADS=threads)
backend = Tokenizer.from_file(tokenizer)
backend.no_truncation()
backend.no_padding()
lines = [line.rstrip("\\n") for line in open(lines, encoding="utf-8", newline="\\n")]
print("ready", flush=True)
sys.stdin.readline()
batches = (lines[first : first + 10_000] for first in range(0, len(lines), 10_000))
print(sum(sum(map(len, backend.encode_batch_fast(batch, add_special_tokens=False))) for batch in batches), flush=True)
sys.stdin.readline()
"""

PREPARE = """
import sys
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.tokenization import load_tokenizer
text, tokenizer, directory, max_seq_length, num_proc = sys.argv[1:]
tokenizer = load_tokenizer(tokenizer)
print("ready", flush=True)
sys.stdin.readline()
blocks, _ = prepare_blocks(
    [text], tokenizer, directory, int(max_seq_length), num_proc=int(num_proc), disable_progress=True
)
print(blocks.header.statistics["corpus_tokens"], flush=True)
sys.stdin.readline()
"""


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parse_arguments(arguments)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        text = gather_text(options.files, options.megabytes, directory / "text.txt")
        tokenizer = directory / "tokenizer"
        if options.tokenizer is None:
            train_wordpiece(lambda: read_lines(Source(str(text))), 8192).save_pretrained(tokenizer)
        else:
            load_tokenizer(options.tokenizer).save_pretrained(tokenizer)
        rows += measure_preparation(text, tokenizer, directory, options)
        rows += measure_feeding(text, tokenizer, directory, options)
        rows.append(measure_import(options.rounds))
    asked = ("num_proc", "megabytes", "rounds", "max_seq_length", "batch_size")
    config = {"device": "cpu", "files": [Path(file).name for file in options.files]}
    result = reporting.describe_run("data", config | {name: getattr(options, name) for name in asked})
    result["rows"] = rows
    table = Table("what", *(heading for heading, _ in _COLUMNS))
    for row in rows:
        cells = (format_number(row[key]) if key in row else "" for _, key in _COLUMNS)
        table.add_row(row["what"], *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.output_dir is not None:
        reporting.say(f"Written: {reporting.write_json(result, options.output_dir)}")
    print(json.dumps(result))
    return result


_COLUMNS = (
    ("tokens/s", "tokens_per_second"),
    ("of the tokenizer alone", "share_of_tokenizer_alone"),
    ("MB/s", "megabytes_per_second"),
    ("text, MB", "megabytes"),
    ("peak memory, MB", "peak_megabytes"),
    ("ms a batch", "milliseconds_per_batch"),
    ("s", "seconds"),
)


def format_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="text, by default the bundled corpus, repeated")
    parser.add_argument("--tokenizer", help="directory or vocab.txt; by default one of 8,192 tokens is trained")
    parser.add_argument("--num_proc", type=int, default=2, help="threads that tokenize")
    parser.add_argument("--megabytes", type=float, help="of text to measure with (default: 48; short: 8)")
    parser.add_argument("--rounds", type=int, help="of which the median counts (default: 5; short: 3)")
    parser.add_argument("--repeats", type=int, nargs="*", help="the text so many times, for the memory (default: 4)")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--output_dir", type=Path, help="for data_<hardware>_<date>.json")
    parser.add_argument("--short", action="store_true", help="about a minute")
    options = parser.parse_args(arguments)
    options.megabytes = options.megabytes or (8 if options.short else 48)
    options.rounds = options.rounds or (3 if options.short else 5)
    if options.repeats is None:
        options.repeats = [] if options.short else [4]
    options.files = [file for pattern in options.files or [str(BUNDLED_CORPUS)] for file in find_files(pattern)]
    return options


def gather_text(files: Sequence[str], megabytes: float, path: Path) -> Path:
    """The beginning of the files, repeated until there is enough, as plain text."""
    wanted = int(megabytes * 1e6)
    with open(path, "w", encoding="utf-8", newline="\n") as target:
        while target.tell() < wanted:
            before = target.tell()
            for file in files:
                for line in read_lines(Source(file)):
                    target.write(line + "\n")
                    if target.tell() >= wanted:
                        break
                if target.tell() >= wanted:
                    break
            if target.tell() == before:
                raise SystemExit("The files hold no text.")
    return path


def measure_preparation(
    text: Path, tokenizer: Path, directory: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Preparation and the tokenizer alone, alternately; then the memory for more text."""
    count = options.num_proc
    lines = directory / "lines.txt"  # without blank ones, as both encode them
    with open(lines, "w", encoding="utf-8", newline="\n") as target:
        target.writelines(line + "\n" for line in read_lines(Source(str(text))) if line)
    backend = str(tokenizer / "tokenizer.json")
    alone, prepared = [], []
    for number in range(options.rounds):
        alone.append(run_alone([ALONE, backend, str(lines), str(count)]))
        prepared.append(run_alone(prepare_command(text, tokenizer, directory / f"prepared-{number}", options)))
    assert alone[0].tokens == prepared[0].tokens, "the two did not encode the same lines"
    rows = []
    size, tokens = text.stat().st_size, alone[0].tokens
    fastest = statistics.median(run.seconds for run in alone)
    for what, runs in (("tokenizer alone", alone), ("preparation", prepared)):
        seconds = statistics.median(run.seconds for run in runs)
        rows.append(
            {
                "what": what,
                "tokens_per_second": tokens / seconds,
                "threads": count,
                "megabytes_per_second": size / 1e6 / seconds,
                "share_of_tokenizer_alone": fastest / seconds,
                "megabytes": size / 1e6,
                "seconds": seconds,
                "peak_megabytes": max(run.peak_bytes for run in runs) / 1e6,
            }
        )
    for repeats in options.repeats:
        longer = directory / "longer.txt"
        with open(longer, "wb") as target:
            for _ in range(repeats):
                target.write(text.read_bytes())
        run = run_alone(prepare_command(longer, tokenizer, directory / f"longer-{repeats}", options))
        rows.append(
            {
                "what": f"preparation, text {repeats} times",
                "tokens_per_second": run.tokens / run.seconds,
                "threads": count,
                "megabytes": longer.stat().st_size / 1e6,
                "seconds": run.seconds,
                "peak_megabytes": run.peak_bytes / 1e6,
            }
        )
    return rows


def prepare_command(text: Path, tokenizer: Path, directory: Path, options: argparse.Namespace) -> list[str]:
    return [PREPARE, str(text), str(tokenizer), str(directory), str(options.max_seq_length), str(options.num_proc)]


class Run(NamedTuple):
    """What a program did; `peak_bytes` is 0 where it cannot be had."""

    tokens: int
    seconds: float
    peak_bytes: int


def run_alone(command: Sequence[str]) -> Run:
    """Runs a Python program that says when it is ready, and times it from then until its answer."""
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    process = subprocess.Popen(
        [sys.executable, "-c", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = process.stdout.readline()
        began = time.perf_counter()
        if ready:
            process.stdin.write("\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        seconds, peak = time.perf_counter() - began, 0
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        process.stdin.write("\n")  # it may end
        process.stdin.close()
    if not answer:
        raise SystemExit("The program that was to be measured failed; its message stands above.")
    return Run(int(answer), seconds, peak)


def measure_feeding(text: Path, tokenizer: Path, directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Shuffled batches from the block file, without and with masks."""
    loaded = load_tokenizer(str(tokenizer))
    blocks, _ = prepare_blocks(
        [str(text)], loaded, directory / "feeding", options.max_seq_length, disable_progress=True
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    size = options.batch_size
    num_batches = 200
    stream = SequenceStream(blocks, num_batches * size)
    collator = DataCollatorForRTD(loaded, seed=0)
    batches = [list(range(first, first + size)) for first in range(0, len(stream), size)]
    rows = []
    reading: dict[str, Callable[[list[int]], Any]] = {
        "feeding: read": stream.__getitems__,
        "feeding: read and mask": lambda indices: collator(stream.__getitems__(indices)),
    }
    for what, read in reading.items():
        seconds = []
        for _ in range(1 + options.rounds):
            began = time.perf_counter()
            for indices in batches:
                read(indices)
            seconds.append((time.perf_counter() - began) / num_batches)
        median = statistics.median(seconds[1:])
        tokens = size * options.max_seq_length
        rows.append(
            {
                "what": what,
                "tokens_per_second": tokens / median,
                "batch_size": size,
                "max_seq_length": options.max_seq_length,
                "milliseconds_per_batch": 1000 * median,
            }
        )
    torch.set_num_threads(threads)
    return rows


def measure_import(rounds: int) -> dict[str, Any]:
    """What the package adds to importing the stock classes, in fresh processes."""
    script = (
        f"import time; a = time.perf_counter(); {STOCK_IMPORT}; b = time.perf_counter(); import hf_electra_rtd; "
        "print(b - a, time.perf_counter() - b)"
    )
    measured = []
    for _ in range(rounds):
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        measured.append([float(number) for number in run.stdout.split()])
    stock, added = (statistics.median(column) for column in zip(*measured, strict=True))
    return {"what": "import, beyond transformers", "seconds": added, "transformers_seconds": stock}


if __name__ == "__main__":
    main()
