"""Kills a short pre-training run at random moments, goes on with it each time, and compares it with a run that nobody
disturbed.

    python tests/interruptions.py --kills 100

Half of the kills fall anywhere, half into the writing of a checkpoint. After each, every checkpoint that can be seen
must be, byte for byte, that of the undisturbed run, and no more may be lost than the steps since the last one. Prints
what it found; the exit status is 1 if anything was wrong.

Runs are forked from one process that has imported everything, so that a kill costs a second.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import Process, get_context
from pathlib import Path


os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import torch  # noqa: E402


torch.set_num_threads(1)  # threads do not survive a fork

import pretrain_no_trainer  # noqa: E402

from hf_electra_rtd.training import pretrain  # noqa: E402
from hf_electra_rtd.training.checkpoints import checkpoint_step, list_checkpoints  # noqa: E402
from tests.conftest import make_text, pretraining_flags, tiny_config  # noqa: E402


SCRIPTS = {"pretrain.py": pretrain.main, "pretrain_no_trainer.py": pretrain_no_trainer.main}
MAX_STEPS, SAVE_STEPS = 60, 3
HOLD_TIMES = ("trainer_state.json", "checkpoint.json")  # files that differ between runs
WEIGHTS = ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors")


class Runs:
    """Runs of one script: small, with dropout, so that the state of random numbers counts."""

    def __init__(self, script: str, workplace: Path, seed: int) -> None:
        self.main, self.workplace, self.random = SCRIPTS[script], workplace, random.Random(seed)
        self.log, self.reference = workplace / "log.txt", workplace / "reference"
        self.in_a_write = self.compared = self.most_lost = 0
        self.faults: list[str] = []
        (workplace / "corpus.txt").write_text(make_text(60), encoding="utf-8")
        tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).save_pretrained(workplace)
        began = time.monotonic()
        self.finish(self.reference, "--save_total_limit", "1000")
        self.longest = time.monotonic() - began

    def start(self, output_dir: Path, *more: str) -> Process:
        """Forks a run that writes what it prints to the log."""
        options: dict[str, object] = {"max_steps": MAX_STEPS, "warmup_steps": 5, "eval_steps": 1000}
        options |= {"save_steps": SAVE_STEPS, "per_device_train_batch_size": 4, "model_config": self.workplace}
        flags = pretraining_flags(self.workplace, self.workplace / "corpus.txt", output_dir, *more, **options)
        process = get_context("fork").Process(target=self.run, args=[flags])
        process.start()
        return process

    def run(self, flags: list[str]) -> None:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.argv = ["pretrain.py"]
        sys.exit(self.main(flags))

    def finish(self, output_dir: Path, *more: str) -> None:
        process = self.start(output_dir, *more)
        process.join()
        assert not process.exitcode, self.log.read_text()[-3000:]

    def kill(self, process: Process, output_dir: Path, in_a_write: bool) -> bool:
        """Kills a run, at any time or in a write after some time; False if it was over before."""
        time.sleep(self.random.uniform(0.0, self.longest / 2 if in_a_write else self.longest))
        while in_a_write and process.is_alive():
            if is_writing(output_dir):
                time.sleep(self.random.uniform(0.0, 0.03))
                os.kill(process.pid, signal.SIGSTOP)
                if is_writing(output_dir):
                    break
                os.kill(process.pid, signal.SIGCONT)  # the write was over: wait for the next one
            time.sleep(0.0005)
        was_alive = process.is_alive()
        process.kill()
        process.join()
        self.in_a_write += was_alive and is_writing(output_dir)
        return was_alive

    def examine(self, output_dir: Path) -> None:
        """Looks at what a killed run left."""
        steps_done = [int(step) for step in re.findall(r"^step (\d+)/", self.log.read_text(), flags=re.MULTILINE)]
        checkpoints = list_checkpoints(output_dir)
        last = checkpoint_step(checkpoints[-1]) if checkpoints else 0
        if steps_done:
            # The line of a step is printed before the step is saved.
            self.most_lost = max(self.most_lost, steps_done[-1] - last)
            if last < (steps_done[-1] - 1) // SAVE_STEPS * SAVE_STEPS:
                self.faults.append(f"killed after step {steps_done[-1]}, but the last checkpoint is of step {last}")
        for checkpoint in checkpoints:
            undisturbed = self.reference / checkpoint.name
            names = [path.name for path in undisturbed.iterdir() if path.name not in HOLD_TIMES]
            self.compare(checkpoint, undisturbed, names)
            self.compared += 1

    def compare(self, directory: Path, undisturbed: Path, names: Sequence[str] = WEIGHTS) -> None:
        for name in names:
            left = directory / name
            if not left.exists() or left.read_bytes() != (undisturbed / name).read_bytes():
                self.faults.append(f"{directory.name}/{name} is not that of the undisturbed run")

    def disturb(self, kills: int) -> None:
        """Kills a run `kills` times (a new run begins where one comes to its end), and finishes it."""
        done = ended = 0
        resume = ("--resume_from_checkpoint", "auto")
        while done < kills:
            output_dir = self.workplace / f"run-{ended}"
            if self.kill(self.start(output_dir, *resume), output_dir, in_a_write=done % 2 == 1):
                done += 1
                self.examine(output_dir)
            elif (output_dir / "run_record.json").exists():
                self.compare(output_dir, self.reference)
                ended += 1
            else:
                self.faults.append(f"a run that was gone on with failed:\n{self.log.read_text()[-2000:]}")
                return
        self.finish(output_dir, *resume)
        self.compare(output_dir, self.reference)
        if is_writing(output_dir):
            self.faults.append("a finished run left a half-written checkpoint")


def is_writing(output_dir: Path) -> bool:
    """Whether a checkpoint is half-written."""
    return any(output_dir.glob(".checkpoint-*.partial-*"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills for each script")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--script", choices=list(SCRIPTS), nargs="*", default=list(SCRIPTS))
    arguments = parser.parse_args()
    faulty = False
    for script in arguments.script:
        with tempfile.TemporaryDirectory() as directory:
            runs = Runs(script, Path(directory), arguments.seed)
            runs.disturb(arguments.kills)
        print(
            f"{script}: {arguments.kills} kills, {runs.in_a_write} of them while a checkpoint was written; "
            f"{runs.compared} checkpoints compared; at most {runs.most_lost} steps lost (saved every {SAVE_STEPS}); "
            f"{len(runs.faults)} faults",
            *runs.faults,
            sep="\n  ",
        )
        faulty |= bool(runs.faults)
    sys.exit(int(faulty))
