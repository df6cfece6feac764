#!/usr/bin/env python
"""The run of `pretrain.py` with a loop of your own in place of the Trainer: the same flags, text, model, optimiser,
meters, records and outputs, and the same losses. Change the loop as you like.

    accelerate launch examples/pretrain_no_trainer.py

trains the tiny size on the bundled corpus in about five minutes on two CPU cores. Flags of the Trainer that this loop
does not know are refused.
"""

import math
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import TrainerState, set_seed
from transformers.trainer_callback import DefaultFlowCallback, TrainerControl

from hf_electra_rtd import CheckpointError, DivergedError
from hf_electra_rtd.training.arguments import fraction_steps
from hf_electra_rtd.training.checkpoints import (
    check_resumable,
    check_tensors,
    refuse_another_stream,
    remove_old_checkpoints,
    writing_checkpoint,
)
from hf_electra_rtd.training.cli import run_as_script
from hf_electra_rtd.training.evaluation import evaluate_held_out
from hf_electra_rtd.training.fractions import export_fraction
from hf_electra_rtd.training.health import HealthWatch
from hf_electra_rtd.training.interruption import INTERRUPTED, OwnProcessGroup, StopSignal
from hf_electra_rtd.training.meters import Stopwatch, TrainingMeters, seconds_trained
from hf_electra_rtd.training.normalization import count_step, exact_loss
from hf_electra_rtd.training.optimization import make_optimizer, make_schedule
from hf_electra_rtd.training.progress import RemainingTime, format_log
from hf_electra_rtd.training.run import Run, evaluation_at, finish_run, say_how_to_resume, show_rehearsal, start_run
from hf_electra_rtd.training.sharding import gather_pair, keep_tied_tensors_together
from hf_electra_rtd.training.stream import describe_stream


BUNDLED_CORPUS = Path(__file__).parent / "data" / "eltec_eng_excerpts.txt.gz"
LOOP = "pretrain_no_trainer.py"
# What the loop below does; every other option of the Trainer must be left as it is.
OPTIONS = {
    *("output_dir", "max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("per_device_eval_batch_size", "learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "seed"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "bias_correction", "data_seed", "bf16", "fp16", "use_cpu"),
    *("row_length", "mask_probability", "keep_probability", "masking", "dataloader_num_workers", "ddp_timeout"),
    *("exact_loss_normalization", "checkpoint_fractions"),
    *("logging_steps", "logging_first_step", "logging_strategy", "eval_strategy", "eval_steps", "eval_delay"),
    *("save_strategy", "save_steps", "save_total_limit", "resume_from_checkpoint", "disable_tqdm"),
    *("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push"),
}


class Loop:
    """What changes while a run goes on."""

    def __init__(self, run: Run) -> None:
        self.run, args = run, run.args
        self.accelerator = Accelerator(
            mixed_precision="bf16" if args.bf16 else "fp16" if args.fp16 else None,
            # Batches are fetched a step at a time, so the last ones are at hand before the last step begins.
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=args.gradient_accumulation_steps, sync_with_dataloader=False
            ),
            step_scheduler_with_optimizer=False,  # one step of the schedule a step, whatever the number of processes
        )
        self.optimizer = make_optimizer(run.model, args)
        self.schedule = make_schedule(self.optimizer, args, args.max_steps)
        # A generator of its own: a loader that begins draws a number, which dropout must not miss after resuming.
        options = {"collate_fn": run.collator, "num_workers": args.dataloader_num_workers}
        options |= {"generator": torch.Generator(), "worker_init_fn": OwnProcessGroup()}
        self.loader = DataLoader(run.stream, args.per_device_train_batch_size, **options)
        self.held_out = None
        if run.held_out is not None:
            self.held_out = DataLoader(run.held_out, args.per_device_eval_batch_size, **options)
        else:
            args.eval_strategy = "no"
        self.state, self.control = TrainerState(max_steps=args.max_steps), TrainerControl()
        self.state.compute_steps(args, args.max_steps)
        self.fractions = fraction_steps(args.checkpoint_fractions, args.max_steps)
        self.health = HealthWatch(args.output_dir)
        self.meters = TrainingMeters(run.model.measures)

    def begin(self) -> None:
        """Goes to the first step, or to the one after the checkpoint."""
        checkpoint, rank = self.run.checkpoint, self.accelerator.process_index
        if checkpoint is not None:
            before = check_resumable(checkpoint, LOOP, self.state.max_steps)
            self.state.log_history, self.state.global_step = before.log_history, before.global_step
            check_tensors(checkpoint, self.run.model)
            refuse_another_stream(describe_stream(self.run.stream, self.run.args), checkpoint)
        keep_tied_tensors_together(self.run.model, self.accelerator)
        self.model, self.optimizer, self.schedule, self.loader, self.held_out = self.accelerator.prepare(
            self.run.model, self.optimizer, self.schedule, self.loader, self.held_out
        )
        # Every process built the same model; their dropout must differ. What a checkpoint knows of it comes after.
        set_seed(self.run.args.seed + self.state.global_step + rank)
        if checkpoint is not None:
            self.accelerator.load_state(checkpoint)
        self.clock = Stopwatch(seconds_trained(self.state))
        self.remaining = RemainingTime(self.state)

    def train(self) -> bool:
        """Trains to the end; False if a signal stopped it before."""
        args, accelerator, state = self.run.args, self.accelerator, self.state
        loader = accelerator.skip_first_batches(self.loader, state.global_step * args.gradient_accumulation_steps)
        loss, logged_at = torch.zeros((), device=accelerator.device), state.global_step
        hidden = args.disable_tqdm or not accelerator.is_main_process
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, disable=hidden, unit="step")
        self.model.train()
        self.clock.start()
        with StopSignal() as signal, self.bar:
            batches = iter(loader)
            while step_batches := list(islice(batches, args.gradient_accumulation_steps)):
                counts = None
                if args.exact_loss_normalization:
                    add_up = partial(accelerator.reduce, reduction="sum")
                    counts = count_step(self.run.model, step_batches, add_up)
                for batch in step_batches:
                    with accelerator.accumulate(self.model):
                        output = self.model(**batch)
                        part = output.loss
                        if counts is not None:
                            # `accelerate` divides by the number of batches, and averages over processes.
                            part = exact_loss(self.run.model, output, batch, counts)
                            part = part * args.gradient_accumulation_steps * accelerator.num_processes
                        accelerator.backward(part)
                        if accelerator.sync_gradients:
                            norm = accelerator.clip_grad_norm_(self.model.parameters(), args.max_grad_norm or math.inf)
                            rate = self.schedule.get_last_lr()[0]
                            self.optimizer.step()
                            if not accelerator.optimizer_step_was_skipped:
                                self.schedule.step()
                            self.optimizer.zero_grad()
                    self.meters.update(output, batch)
                    loss += part.detach() / args.gradient_accumulation_steps

                state.global_step += 1
                state.epoch = state.global_step / state.max_steps * len(self.run.stream) / len(self.run.stream.rows)
                self.bar.update()
                stopped = state.global_step < state.max_steps and signal.should_stop(state.global_step)
                if state.global_step in self.fractions:  # before a checkpoint, whose run has then left its towers
                    self.export()
                control = DefaultFlowCallback().on_step_end(args, state, TrainerControl())
                if control.should_log or stopped:
                    mean = accelerator.reduce(loss, reduction="mean").item() / (state.global_step - logged_at)
                    self.log(self.metered({"loss": mean, "grad_norm": norm.item(), "learning_rate": rate}))
                    loss.zero_()
                    logged_at = state.global_step
                if control.should_evaluate:
                    self.evaluate()
                if control.should_save or stopped:
                    self.save()
                if stopped:
                    return False
        self.clock.stop()
        self.health.check_weights(state.global_step, self.model)
        return True

    def metered(self, logs: dict[str, float]) -> dict[str, float]:
        """A training log with what was metered since the last one."""
        meters = self.meters.drain(lambda sums: self.accelerator.reduce(sums, reduction="sum"))
        meters["tokens_per_second"] = meters.pop("tokens") / max(self.clock.lap(), 1e-9)
        self.health.check_loss(self.state.global_step, logs["loss"])
        self.check_discriminator(meters)
        return {**logs, **meters, "train_seconds": self.clock.seconds}

    def check_discriminator(self, metrics: dict[str, float], prefix: str = "") -> None:
        steps = self.state.max_steps
        warmup_steps = self.run.args.get_warmup_steps(steps)
        self.health.check_discriminator(self.state.global_step, steps, warmup_steps, metrics, prefix)

    def log(self, logs: dict[str, float]) -> None:
        self.state.log_history.append({"epoch": self.state.epoch, **logs, "step": self.state.global_step})
        line = format_log(logs, self.state, self.remaining.seconds(self.state))
        if self.accelerator.is_main_process and line is not None:
            self.bar.write(line)

    def evaluate(self) -> dict[str, float]:
        self.health.check_weights(self.state.global_step, self.model)
        with self.clock.paused():
            metrics = evaluate_held_out(self.model, self.held_out, self.accelerator)
        self.log(metrics)
        self.check_discriminator(metrics, "eval_")
        return metrics

    def export(self) -> None:
        run, step = self.run, self.state.global_step
        self.health.check_weights(step, self.model)
        with self.clock.paused():
            how_far = self.fractions[step], step, self.clock.seconds
            export_fraction(run.model, self.model, self.accelerator, run.tokenizer, run.args, *how_far)
            if run.publication is not None:
                run.publication.after_fraction(*how_far, self.state.log_history)

    def save(self) -> None:
        self.health.check_weights(self.state.global_step, self.model)
        run, accelerator = self.run, self.accelerator
        # A checkpoint stands between steps: how many batches there were before is nothing to go on with.
        self.accelerator.step = 0
        stream, is_main = describe_stream(run.stream, run.args), accelerator.is_main_process
        with (
            self.clock.paused(),
            writing_checkpoint(
                run.args.output_dir, LOOP, self.state, stream, is_main, accelerator.wait_for_everyone
            ) as checkpoint,
        ):
            accelerator.save_state(str(checkpoint))
            if is_main:
                run.model.config.save_pretrained(checkpoint)
        if run.publication is not None:
            with self.clock.paused():
                towers, step = (run.model, self.model, accelerator), self.state.global_step
                run.publication.after_save(*towers, step, self.clock.seconds, self.state.log_history)
        if is_main:
            remove_old_checkpoints(run.args.output_dir, run.args.save_total_limit, self.state.global_step)


def main(argv: list[str]) -> int:
    defaults = {"train_files": [str(BUNDLED_CORPUS)], "output_dir": "runs/pretrain_no_trainer"}
    run = start_run(argv, __doc__, defaults, OPTIONS)
    if run.run_args.dry_run:
        show_rehearsal(run)
        return 0
    loop = Loop(run)
    loop.begin()
    if not loop.train():
        if loop.accelerator.is_main_process:
            say_how_to_resume(run, loop.state.global_step)
        return INTERRUPTED
    step, log = loop.state.global_step, loop.state.log_history
    metrics = evaluation_at(step, log) or (loop.evaluate() if run.held_out is not None else {})
    model = gather_pair(run.model, loop.model, loop.accelerator)
    if loop.accelerator.is_main_process:
        finish_run(run, model, step, loop.clock.seconds, log, metrics)
    return 0


if __name__ == "__main__":
    run_as_script(main, DivergedError, CheckpointError)
