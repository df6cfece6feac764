#!/usr/bin/env python
"""Compares objectives, generators, maskings and modes of sharing at equal tokens, on the bundled corpus or your own.

    python benchmarks/objective_table.py --output_dir runs/table                     # all rows, tiny, three seeds
    python benchmarks/objective_table.py --output_dir runs/table --rows rtd electric --seeds 1 --max_steps 1500
    python benchmarks/objective_table.py --output_dir runs/table --table_only        # of what is there

Each row has a run of `hf-electra-rtd pretrain` for each seed, in a directory of its own. A finished run is not
repeated, so the same command continues where it was stopped. Flags after `--` go to every run
(`-- --train_files ...`). The table shows the mean over seeds and, from two seeds on, its 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from hf_electra_rtd.base.records import PretrainingRecord
from hf_electra_rtd.publishing.pretrainings import Pretraining, pretraining_table


ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "examples" / "data" / "eltec_eng_excerpts.txt.gz"
ROWS: dict[str, list[str]] = {
    # What the discriminator learns (paper, Table 5; Electric).
    "rtd": [],
    "rtd_masked_only": ["--objective", "rtd_masked_only"],
    "replace_mlm": ["--objective", "replace_mlm"],
    "all_tokens_mlm": ["--objective", "all_tokens_mlm"],
    "mlm": ["--objective", "mlm"],
    "electric": ["--objective", "electric", "--generator_type", "two_tower"],
    # Who proposes the tokens.
    "two_tower": ["--generator_type", "two_tower"],
    "uniform": ["--generator_type", "uniform"],
    # What is masked.
    "word": ["--masking", "word"],
    # What is shared.
    "sharing none": ["--sharing", "none"],
    "sharing word": ["--sharing", "word"],
    "sharing gdes": ["--sharing", "gdes"],
}


def directory_of(output_dir: Path, row: str, seed: int) -> Path:
    return output_dir / f"{row.replace(' ', '_')}_{seed}"


def train(directory: Path, flags: list[str]) -> bool:
    """Trains unless the run is finished; its output goes to a file beside the directory. False if it failed."""
    if (directory / PretrainingRecord.FILE).exists():
        print(f"{directory.name}: was finished before", flush=True)
        return True
    log = directory.with_suffix(".log")
    command = [sys.executable, "-m", "hf_electra_rtd.training.pretrain", "--output_dir", str(directory), *flags]
    command += ["--resume_from_checkpoint", "auto"]
    with open(log, "w", encoding="utf-8") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if status == 130:
        raise KeyboardInterrupt
    print(f"{directory.name}: {'done' if status == 0 else f'FAILED with status {status}, see {log}'}", flush=True)
    return status == 0


def table(output_dir: Path, rows: list[str], seeds: list[int]) -> str:
    """Returns the table in Markdown. Rows without a finished run are left out."""
    pretrainings = []
    for row in rows:
        directories = [directory_of(output_dir, row, seed) for seed in seeds]
        records = [PretrainingRecord.load(path) for path in directories if (path / PretrainingRecord.FILE).exists()]
        if records:
            pretrainings.append(Pretraining(row, records))
    return pretraining_table(pretrainings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW", help="(all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row (%(default)s)")
    parser.add_argument("--size", default="tiny", help="(%(default)s)")
    parser.add_argument("--max_steps", type=int, help="(the recipe's)")
    parser.add_argument("--table_only", action="store_true", help="print the table of what is there")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="after --: of every run")
    args = parser.parse_args()
    seeds = list(range(1, args.seeds + 1))
    flags = [flag for flag in args.flags if flag != "--"]
    if "--train_files" not in flags:
        flags += ["--train_files", str(CORPUS)]
    if args.max_steps is not None:
        flags += ["--max_steps", str(args.max_steps)]
    flags += ["--size", args.size, "--disable_tqdm", "True", "--save_strategy", "no", "--report_to", "none"]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    succeeded = True
    try:
        if not args.table_only:
            for seed in seeds:
                for row in args.rows:
                    directory = directory_of(args.output_dir, row, seed)
                    succeeded &= train(directory, [*ROWS[row], *flags, "--seed", str(seed)])
    finally:
        print(table(args.output_dir, args.rows, seeds))
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
