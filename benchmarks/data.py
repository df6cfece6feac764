#!/usr/bin/env python
"""Measures what data cost: preparing text and feeding batches.

    python benchmarks/data.py text.txt.zst --tokenizer vocab.txt --num_proc 2

Preparation is compared with the tokenizer alone, which encodes the same lines with as many threads. Both are measured
alternately, and the median counts. Feeding runs on one core. The output is a table and, as its last line, the same as
JSON.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from measuring import describe_run, finish

from hf_electra_rtd import DataCollatorForRTD, SequenceStream
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.text import Source, find_files, read_text
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.data.wordpiece import train_wordpiece


BUNDLED_CORPUS = Path(__file__).parents[1] / "examples" / "data" / "eltec_eng_excerpts.txt.gz"
NUM_BATCHES = 200
LINES_AT_ONCE = 10_000
COLUMNS = {
    "what": "what",
    "tokens_per_second": "tokens/s",
    "share_of_tokenizer_alone": "of the tokenizer alone",
    "milliseconds_per_batch": "ms a batch",
    "seconds": "s",
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    os.environ["RAYON_NUM_THREADS"] = str(options.num_proc)  # for the tokenizer alone; read when it first encodes
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        text = gather_text(options.files, options.megabytes, directory / "text.txt")
        if options.tokenizer is None:
            tokenizer = train_wordpiece(lambda: read_text(Source(str(text))), 8192)
        else:
            tokenizer = load_tokenizer(options.tokenizer)
        rows = measure_preparation(text, tokenizer, directory, options)
        rows += measure_feeding(text, tokenizer, directory, options)
    config: dict[str, Any] = {"device": "cpu", "files": [Path(file).name for file in options.files]}
    for name in ("num_proc", "megabytes", "rounds", "max_seq_length", "batch_size"):
        config[name] = getattr(options, name)
    report = describe_run("data", config)
    report["rows"] = rows
    cells = [[format_cell(row.get(name, "")) for name in COLUMNS] for row in rows]
    finish(report, list(COLUMNS.values()), cells, output_dir=options.output_dir)


def format_cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


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


def gather_text(files: Iterable[str], megabytes: float, path: Path) -> Path:
    """Writes the text of the files, repeated until there is enough, as plain text."""
    with open(path, "w", encoding="utf-8", newline="\n") as target:
        for file in cycle(files):
            for line in read_text(Source(file)):
                target.write(line + "\n")
                if target.tell() >= megabytes * 1e6:
                    return path
    raise AssertionError


def measure_preparation(
    text: Path, tokenizer: Any, directory: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measures preparation and the tokenizer alone, alternately."""
    # without blank lines, which preparation does not encode either
    lines = [line for line in read_text(Source(str(text))) if line]
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()

    def encode() -> int:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        tokens = 0
        for first in range(0, len(lines), LINES_AT_ONCE):
            batch = lines[first : first + LINES_AT_ONCE]
            tokens += sum(map(len, backend.encode_batch_fast(batch, add_special_tokens=False)))
        return tokens

    def prepare() -> int:
        os.environ.pop("TOKENIZERS_PARALLELISM")
        with tempfile.TemporaryDirectory(dir=directory) as prepared:
            blocks, _ = prepare_blocks(
                [str(text)],
                tokenizer,
                prepared,
                options.max_seq_length,
                num_proc=options.num_proc,
                disable_progress=True,
            )
            return int(blocks.header.statistics["corpus_tokens"])

    seconds: dict[str, list[float]] = {"tokenizer alone": [], "preparation": []}
    counts = set()
    for _ in range(options.rounds):
        for (_, times), work in zip(seconds.items(), (encode, prepare), strict=True):
            began = time.perf_counter()
            counts.add(work())
            times.append(time.perf_counter() - began)
    (tokens,) = counts  # both encode the same lines
    alone = statistics.median(seconds["tokenizer alone"])
    return [
        {
            "what": what,
            "tokens_per_second": tokens / statistics.median(times),
            "share_of_tokenizer_alone": alone / statistics.median(times),
            "seconds": statistics.median(times),
        }
        for what, times in seconds.items()
    ]


def measure_feeding(text: Path, tokenizer: Any, directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures shuffled batches from the block file, without and with masks."""
    blocks, _ = prepare_blocks(
        [str(text)], tokenizer, directory / "feeding", options.max_seq_length, disable_progress=True
    )
    torch.set_num_threads(1)
    size = options.batch_size
    stream = SequenceStream(blocks, NUM_BATCHES * size)
    collator = DataCollatorForRTD(tokenizer, seed=0)
    reading: dict[str, Callable[[list[int]], Any]] = {
        "feeding: read": stream.__getitems__,
        "feeding: read and mask": lambda indices: collator(stream.__getitems__(indices)),
    }
    rows = []
    for what, read in reading.items():
        seconds = []
        for _ in range(1 + options.rounds):
            began = time.perf_counter()
            for first in range(0, len(stream), size):
                read(list(range(first, first + size)))
            seconds.append((time.perf_counter() - began) / NUM_BATCHES)
        median = statistics.median(seconds[1:])  # the first round warms up
        speed = size * options.max_seq_length / median
        rows.append({"what": what, "tokens_per_second": speed, "milliseconds_per_batch": 1000 * median})
    return rows


if __name__ == "__main__":
    main()
