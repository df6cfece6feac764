#!/usr/bin/env python
"""`hf-electra-rtd pretrain` with a loop of your own: the same flags, text, model and losses. Copy it and change it.

    accelerate launch --num_cpu_threads_per_process 2 examples/pretrain_no_trainer.py

trains the tiny size on the bundled corpus in 5 to 7 minutes on two CPU cores. It refuses flags that it ignores.
"""

from dataclasses import fields
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import TrainerState, set_seed
from transformers.trainer_callback import DefaultFlowCallback, TrainerControl

from hf_electra_rtd import bigram
from hf_electra_rtd.cli import run as run_command
from hf_electra_rtd.training import checkpoints, console, meters, optimization, pretrain
from hf_electra_rtd.training.arguments import settle_masking


LOOP = "pretrain_no_trainer.py"
CORPUS = str(Path(__file__).parent / "data" / "eltec_eng_excerpts.txt.gz")
OBEYED = """output_dir max_steps num_train_epochs per_device_train_batch_size gradient_accumulation_steps learning_rate
    per_device_eval_batch_size warmup_steps weight_decay max_grad_norm seed data_seed adam_beta1 adam_beta2 bf16
    adam_epsilon eval_strategy bias_correction max_seq_length mask_probability keep_probability masking
    document_attention confusion_file confusion_share dataloader_num_workers use_cpu eval_on_start eval_steps
    logging_steps save_strategy save_steps save_total_limit resume_from_checkpoint clip_separately
    generator_learning_rate disable_tqdm"""


def train(run: pretrain.Run) -> None:
    args, model, accumulated = run.args, run.model, run.args.gradient_accumulation_steps
    settle_masking(model.config, args, run.tokenizer, run.collator.confusions)
    accelerator = Accelerator(mixed_precision="bf16" if args.bf16 else "no", gradient_accumulation_steps=accumulated)
    checkpoints.keep_tied_tensors_together(model, accelerator)
    optimizer = optimization.make_optimizer(model, args)
    schedule = optimization.make_schedule(optimizer, args, args.max_steps)
    accelerator.register_for_checkpointing(schedule)
    # Loaders have a generator: each draws a number when it begins, which dropout must not miss after resuming.
    options = {"collate_fn": run.collator, "num_workers": args.dataloader_num_workers, "generator": torch.Generator()}
    loader = DataLoader(run.stream, args.per_device_train_batch_size, **options)
    held_out = run.held_out and DataLoader(run.held_out, args.per_device_eval_batch_size, **options)
    prepared, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    bigram.count_text(model, run.stream, run.tokenizer)
    meters.set_yardstick(model, run.stream, run.held_out)

    described = checkpoints.describe_run(model, run.stream, run.held_out, args)
    state = TrainerState(max_steps=args.max_steps)
    if run.checkpoint:
        before = checkpoints.check_resumable(run.checkpoint, args.max_steps, LOOP, described)
        state.global_step, state.log_history = before.global_step, before.log_history
    state.compute_steps(args, args.max_steps)
    set_seed(args.seed + state.global_step + accelerator.process_index)  # dropout differs between processes
    if run.checkpoint:
        checkpoints.load_state(run.checkpoint, accelerator, optimizer, schedule)
        loader = accelerator.skip_first_batches(loader, state.global_step * accumulated)
    saving = (args.output_dir, accelerator, args.save_total_limit, state, LOOP, described)
    clock, meter = meters.Stopwatch(state.log_history), meters.TrainingMeters(model.measures)
    loss, logged_at = torch.zeros((), device=accelerator.device), state.global_step

    def log(values: dict[str, float]) -> None:
        state.log_history.append({"epoch": state.epoch, **values, "step": state.global_step})
        if accelerator.is_main_process:
            print(console.format_log(values, state), flush=True)

    def evaluate() -> None:
        with clock.paused():
            log(values := meters.evaluate_held_out(prepared, held_out, accelerator))
        meters.check_loss(state.global_step, values["eval_loss"])
        meters.warn_if_flat(state)

    prepared.train()
    if args.eval_on_start:
        evaluate()
    clock.start()
    for batch in loader:
        with accelerator.accumulate(prepared):
            output = prepared(**batch)
            accelerator.backward(output.loss)
            meter.update(output, batch)
            loss += output.loss.detach() / accumulated
            if not accelerator.sync_gradients:
                continue
            norms = optimization.clip_gradients(model, accelerator, args)
            rate = schedule.get_last_lr()[0]
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        state.global_step += 1
        state.epoch = state.global_step / args.max_steps * len(run.stream) / len(run.stream.sequences)
        control = DefaultFlowCallback().on_step_end(args, state, TrainerControl())
        if control.should_log or control.should_save:
            mean = accelerator.reduce(loss, reduction="mean").item() / (state.global_step - logged_at)
            meters.check_loss(state.global_step, mean)
            values = {"loss": mean, "learning_rate": rate, **{name: norm.item() for name, norm in norms.items()}}
            values |= meter.drain(accelerator.reduce)
            log(values | {"tokens_per_second": values.pop("tokens") / clock.lap(), "train_seconds": clock.seconds})
            loss, logged_at = torch.zeros_like(loss), state.global_step
        if held_out and (control.should_evaluate or state.global_step == args.max_steps):
            evaluate()
        if control.should_save:
            accelerator.step = 0  # how many batches there were before does not matter
            meters.check_weights(state.global_step, prepared)
            with clock.paused(), checkpoints.writing_checkpoint(*saving) as directory:
                accelerator.save_state(str(directory))
                if accelerator.is_main_process:  # beside the weights, for `hf-electra-rtd detect --model CHECKPOINT`
                    model.config.save_pretrained(directory)
                    run.tokenizer.save_pretrained(directory)
    clock.stop()

    whole = checkpoints.gather_pair(model, prepared, accelerator)
    if accelerator.is_main_process:
        data = (run.stream, run.held_out)
        made = meters.make_record(whole, args, *data, state, clock.seconds, **run.record_facts)
        checkpoints.save_outputs(whole, run.tokenizer, made, args.output_dir)
        console.print_summary(made, args.output_dir, run.stream, run.held_out, run.collator)


def main(argv: list[str]) -> int:
    with pretrain.start(argv, __doc__, {"output_dir": "runs/pretrain_no_trainer"}, [CORPUS]) as run:
        expected = type(run.args)(**{name: getattr(run.args, name) for name in OBEYED.split()})
        others = [field.name for field in fields(expected) if field.init and field.name not in OBEYED.split()]
        refused = [f"--{name}" for name in others if getattr(run.args, name) != getattr(expected, name)]
        refused += [f"--{name}" for name in ("dry_run", "old_held_out_files") if getattr(run.arguments, name)]
        if refused:
            raise ValueError(f"This loop does not obey {', '.join(refused)}. Use hf-electra-rtd pretrain.")
        pretrain.prepare_output_dir(run)
        train(run)
    return 0


if __name__ == "__main__":
    run_command(main)
