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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import torch  # noqa: E402


torch.set_num_threads(1)  # threads do not survive a fork

import pretrain  # noqa: E402
import pretrain_no_trainer  # noqa: E402

from hf_electra_rtd.training.checkpoints import checkpoint_step, list_checkpoints  # noqa: E402
from tests.conftest import VOCABULARY, make_text, tiny_config  # noqa: E402


SCRIPTS = {"pretrain.py": pretrain.main, "pretrain_no_trainer.py": pretrain_no_trainer.main}
MAX_STEPS, SAVE_STEPS = 60, 3
# What a checkpoint is, of either loop: weights, optimiser, schedule, random numbers. (The log holds times.)
PARTS = (
    *("model.safetensors", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin"),
    *("rng_state.pth", "random_states_0.pkl", "config.json"),
)


@dataclass
class Findings:
    """What the kills showed."""

    kills: int = 0
    in_a_write: int = 0
    checkpoints_compared: int = 0
    most_steps_lost: int = 0
    faults: list[str] = field(default_factory=list)


def flags(workplace: Path, output_dir: Path, *more: str) -> list[str]:
    """The command line of a run: small, with dropout, so that the state of random numbers counts."""
    values = {
        "train_files": workplace / "corpus.txt",
        "tokenizer": workplace / "vocab.txt",
        "model_config": workplace / "config.json",
        "output_dir": output_dir,
        "row_length": 32,
        "per_device_train_batch_size": 4,
        "max_steps": MAX_STEPS,
        "warmup_steps": 5,
        "logging_steps": 1,
        "eval_steps": 1000,
        "save_steps": SAVE_STEPS,
    }
    return [part for name, value in values.items() for part in (f"--{name}", str(value))] + [
        *("--use_cpu", "--disable_tqdm", "True"),
        *more,
    ]


def prepare(workplace: Path) -> None:
    """Text, vocabulary and configuration."""
    (workplace / "corpus.txt").write_text(make_text(60), encoding="utf-8")
    (workplace / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    config = tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    config.save_pretrained(workplace)


def start(main: Callable[[list[str]], int], argv: list[str], log: Path) -> int:
    """Forks a run that writes what it prints to `log`; returns its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.argv = ["pretrain.py"]
        status = main(argv)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def finish(main: Callable[[list[str]], int], argv: list[str], log: Path) -> None:
    """Runs to the end.

    Raises:
        RuntimeError: if it fails.
    """
    _, status = os.waitpid(start(main, argv, log), 0)
    if status:
        raise RuntimeError(f"The run failed:\n{log.read_text()[-3000:]}")


def kill_somewhere(child: int, output_dir: Path, longest: float, generator: random.Random, in_a_write: bool) -> bool:
    """Kills the child; False if it was over before."""
    deadline = time.monotonic() + (30.0 if in_a_write else generator.uniform(0.0, longest))
    writes_to_wait_for = generator.randrange(3) if in_a_write else 10**9
    writing = False
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        now = (output_dir / ".unfinished").exists()
        if now and not writing:
            if writes_to_wait_for == 0:
                time.sleep(generator.uniform(0.0, 0.03))
                break
            writes_to_wait_for -= 1
        writing = now
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def examine(output_dir: Path, reference: Path, log: Path, findings: Findings) -> None:
    """Looks at what a killed run left."""
    steps_done = [int(step) for step in re.findall(r"^step (\d+)/", log.read_text(), flags=re.MULTILINE)]
    checkpoints = list_checkpoints(output_dir)
    last = checkpoint_step(checkpoints[-1]) if checkpoints else 0
    if steps_done:
        # The line of a step is printed before the step is saved.
        findings.most_steps_lost = max(findings.most_steps_lost, steps_done[-1] - last)
        if last < (steps_done[-1] - 1) // SAVE_STEPS * SAVE_STEPS:
            findings.faults.append(f"killed after step {steps_done[-1]}, but the last checkpoint is of step {last}")
    for checkpoint in checkpoints:
        for name in PARTS:
            undisturbed = reference / checkpoint.name / name
            if not undisturbed.exists():
                continue  # the other loop's name for it
            findings.checkpoints_compared += name == PARTS[0]
            left = checkpoint / name
            if not left.exists() or left.read_bytes() != undisturbed.read_bytes():
                findings.faults.append(f"{checkpoint.name}/{name} is not that of the undisturbed run")


def disturb(script: str, kills: int, seed: int, workplace: Path, say: Callable[[str], None]) -> Findings:
    """Kills a run `kills` times (a new run begins where one comes to its end), and finishes it."""
    main, generator, findings = SCRIPTS[script], random.Random(seed), Findings()
    prepare(workplace)
    reference, log = workplace / "reference", workplace / "log.txt"
    began = time.monotonic()
    finish(main, flags(workplace, reference, "--save_total_limit", "1000"), log)
    longest = time.monotonic() - began
    say(f"{script}: an undisturbed run takes {longest:.1f} s")
    runs = 0
    output_dir = workplace / f"run-{runs}"
    while findings.kills < kills:
        in_a_write = findings.kills % 2 == 1
        child = start(main, flags(workplace, output_dir, "--resume_from_checkpoint", "auto"), log)
        if not kill_somewhere(child, output_dir, longest, generator, in_a_write):
            if (output_dir / "run_record.json").exists():
                compare_ends(output_dir, reference, findings)
                runs += 1
                output_dir = workplace / f"run-{runs}"
            else:
                findings.faults.append(f"a run that was gone on with failed:\n{log.read_text()[-2000:]}")
                break
            continue
        findings.kills += 1
        findings.in_a_write += (output_dir / ".unfinished").exists()
        examine(output_dir, reference, log, findings)
    finish(main, flags(workplace, output_dir, "--resume_from_checkpoint", "auto"), log)
    compare_ends(output_dir, reference, findings)
    say(
        f"{script}: {findings.kills} kills, {findings.in_a_write} of them while a checkpoint was written; "
        f"{findings.checkpoints_compared} checkpoints compared; at most {findings.most_steps_lost} steps lost "
        f"(saved every {SAVE_STEPS}); {len(findings.faults)} faults"
    )
    for fault in findings.faults:
        say(f"  {fault}")
    return findings


def compare_ends(output_dir: Path, reference: Path, findings: Findings) -> None:
    """The weights that a run ends with, in all three places."""
    for name in ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors"):
        if (output_dir / name).read_bytes() != (reference / name).read_bytes():
            findings.faults.append(f"{name} at the end is not that of the undisturbed run")
    if (output_dir / ".unfinished").exists():
        findings.faults.append("a finished run left an unfinished directory")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills for each script")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--script", choices=list(SCRIPTS), nargs="*", default=list(SCRIPTS))
    arguments = parser.parse_args()
    faulty = False
    for chosen in arguments.script:
        with tempfile.TemporaryDirectory() as directory:
            faulty |= bool(disturb(chosen, arguments.kills, arguments.seed, Path(directory), print).faults)
    sys.exit(int(faulty))
