#!/usr/bin/env python
"""What data cost: preparing text and feeding batches.

    python benchmarks/data.py --output_dir runs/benchmarks
    python benchmarks/data.py text.txt.zst --tokenizer vocab.txt --num_proc 2

Preparation is measured against the tokenizer alone: the same lines, encoded with as many threads of its own. Both are
measured in turn, and the median counts. Peak memory is that of the process (Linux only). Feeding runs on one core. A
table for people comes first; the last line of the output is the same as JSON.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import reporting
import torch
from timing import peak_memory

from hf_electra_rtd import DataCollatorForRTD, SequenceStream
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.text import Source, find_files, read_lines
from hf_electra_rtd.data.tokenization import load_tokenizer, train_wordpiece


BUNDLED_CORPUS = Path(__file__).parents[1] / "examples" / "data" / "eltec_eng_excerpts.txt.gz"

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


COLUMNS = {
    "what": "what",
    "tokens_per_second": "tokens/s",
    "share_of_tokenizer_alone": "of the tokenizer alone",
    "megabytes_per_second": "MB/s",
    "peak_megabytes": "peak memory, MB",
    "milliseconds_per_batch": "ms a batch",
    "seconds": "s",
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        text = gather_text(options.files, options.megabytes, directory / "text.txt")
        tokenizer = directory / "tokenizer"
        if options.tokenizer is None:
            train_wordpiece(lambda: read_lines(Source(str(text))), 8192).save_pretrained(tokenizer)
        else:
            load_tokenizer(options.tokenizer).save_pretrained(tokenizer)
        rows = measure_preparation(text, tokenizer, directory, options)
        rows += measure_feeding(text, tokenizer, directory, options)
    asked = ("num_proc", "megabytes", "rounds", "max_seq_length", "batch_size")
    config = {"device": "cpu", "files": [Path(file).name for file in options.files]}
    report = reporting.describe_run("data", config | {name: getattr(options, name) for name in asked})
    report["rows"] = rows
    cells = [[format_cell(row.get(name, "")) for name in COLUMNS] for row in rows]
    reporting.finish(report, list(COLUMNS.values()), cells, output_dir=options.output_dir)


def format_cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="text, by default the bundled corpus, repeated")
    parser.add_argument("--tokenizer", help="directory or vocab.txt; by default one of 8,192 tokens is trained")
    parser.add_argument("--num_proc", type=int, default=2, help="threads that tokenize (%(default)s)")
    parser.add_argument("--megabytes", type=float, default=48, help="of text to measure with (%(default)s; short: 8)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (%(default)s; short: 3)")
    parser.add_argument("--max_seq_length", type=int, default=128, help="(%(default)s)")
    parser.add_argument("--batch_size", type=int, default=128, help="(%(default)s)")
    parser.add_argument("--output_dir", type=Path, help="write the report there, as JSON")
    parser.add_argument("--short", action="store_true", help="about a minute")
    if parser.parse_args(arguments).short:
        parser.set_defaults(megabytes=8, rounds=3)
    options = parser.parse_args(arguments)
    options.files = [file for pattern in options.files or [str(BUNDLED_CORPUS)] for file in find_files(pattern)]
    return options


def gather_text(files: Sequence[str], megabytes: float, path: Path) -> Path:
    """The beginning of the files, repeated until there is enough, as plain text."""
    with open(path, "w", encoding="utf-8", newline="\n") as target:
        for file in cycle(files):
            for line in read_lines(Source(file)):
                target.write(line + "\n")
                if target.tell() >= megabytes * 1e6:
                    return path
    raise AssertionError


def measure_preparation(
    text: Path, tokenizer: Path, directory: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Preparation and the tokenizer alone, alternately."""
    lines = directory / "lines.txt"  # without blank ones, as both encode them
    with open(lines, "w", encoding="utf-8", newline="\n") as target:
        target.writelines(line + "\n" for line in read_lines(Source(str(text))) if line)
    backend, threads = str(tokenizer / "tokenizer.json"), str(options.num_proc)
    found: dict[str, list[Run]] = {"tokenizer alone": [], "preparation": []}
    for number in range(options.rounds):
        found["tokenizer alone"].append(run_alone([ALONE, backend, str(lines), threads]))
        prepared = [PREPARE, str(text), str(tokenizer), str(directory / f"prepared-{number}")]
        found["preparation"].append(run_alone([*prepared, str(options.max_seq_length), threads]))
    tokens, *others = {run.tokens for runs in found.values() for run in runs}
    assert not others, "the two did not encode the same lines"
    times = {what: statistics.median(run.seconds for run in runs) for what, runs in found.items()}
    return [
        {
            "what": what,
            "tokens_per_second": tokens / seconds,
            "threads": options.num_proc,
            "megabytes_per_second": text.stat().st_size / 1e6 / seconds,
            "share_of_tokenizer_alone": times["tokenizer alone"] / seconds,
            "seconds": seconds,
            "peak_megabytes": max(run.peak_bytes for run in found[what]) / 1e6,
        }
        for what, seconds in times.items()
    ]


class Run(NamedTuple):
    """What a program did."""

    tokens: int
    seconds: float
    peak_bytes: int


def run_alone(command: Sequence[str]) -> Run:
    """Runs a Python program that says when it is ready, and times it from then until its answer."""
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment, "text": True}
    with subprocess.Popen([sys.executable, "-c", *command], **pipes) as process:
        process.stdout.readline()  # it is ready
        began = time.perf_counter()
        process.stdin.write("\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        seconds = time.perf_counter() - began
        if not answer:
            raise SystemExit("The program that was to be measured failed; its message stands above.")
        peak = peak_memory("cpu", process.pid)
        process.stdin.write("\n")  # it may end
    return Run(int(answer), seconds, peak)


def measure_feeding(text: Path, tokenizer: Path, directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Shuffled batches from the block file, without and with masks."""
    loaded = load_tokenizer(str(tokenizer))
    blocks, _ = prepare_blocks(
        [str(text)], loaded, directory / "feeding", options.max_seq_length, disable_progress=True
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    size, num_batches = options.batch_size, 200
    stream, collator = SequenceStream(blocks, num_batches * size), DataCollatorForRTD(loaded, seed=0)
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
        speed = {"tokens_per_second": size * options.max_seq_length / median, "milliseconds_per_batch": 1000 * median}
        rows.append({"what": what, **speed})
    torch.set_num_threads(threads)
    return rows


if __name__ == "__main__":
    main()
