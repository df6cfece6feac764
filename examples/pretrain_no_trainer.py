#!/usr/bin/env python
"""Pre-trains with a loop of your own, in bare `accelerate`: copy this file and change it.

    accelerate launch --num_cpu_threads_per_process 2 examples/pretrain_no_trainer.py --output_dir runs/own_loop

trains the tiny size on the bundled corpus. The same command again resumes from the last checkpoint.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

import hf_electra_rtd as rtd


CORPUS = Path(__file__).parent / "data" / "eltec_eng_excerpts.txt.gz"
TOKENIZER = "google/electra-small-discriminator"
LENGTH = 128
BATCH_SIZE = 4  # of one process
INTERVAL = 400  # steps between evaluations, and between checkpoints
SEED = 42


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/own_loop"))
    parser.add_argument("--max_steps", type=int, default=6000)
    args = parser.parse_args()
    accelerator = Accelerator()
    set_seed(SEED)
    tokenizer = rtd.load_tokenizer(TOKENIZER)
    with accelerator.main_process_first():
        train, held_out = rtd.prepare_blocks([CORPUS], tokenizer, args.output_dir, LENGTH, held_out_share=0.05)
    # The stream decides the order and, with the collator's seed, all masks and samples, so a run can resume at any
    # step.
    stream = rtd.SequenceStream(train, args.max_steps * BATCH_SIZE * accelerator.num_processes, SEED)
    held_out_stream = rtd.SequenceStream(held_out, shuffle=False, first_position=2**40)  # with masks of its own
    collator = rtd.DataCollatorForRTD(tokenizer, seed=SEED, max_seq_length=LENGTH)
    # Loaders draw from generators of their own, so that they do not change the random numbers of dropout.
    loader = DataLoader(stream, BATCH_SIZE, collate_fn=collator, generator=torch.Generator())
    held_out_loader = DataLoader(held_out_stream, 64, collate_fn=collator, generator=torch.Generator())
    model = rtd.ElectraForRTDPretraining(rtd.ElectraRTDConfig.from_size("tiny", vocab_size=len(tokenizer)))
    rtd.begin_on_neighbours(model, train, tokenizer, SEED)  # as the command begins with tiny
    optimizer = rtd.ElectraAdamW(rtd.get_parameter_groups(model, weight_decay=0.01), lr=5e-4, bias_correction=True)
    schedule = rtd.get_electra_schedule(optimizer, num_warmup_steps=100, num_training_steps=args.max_steps)
    set_seed(SEED, device_specific=True)  # dropout differs between processes
    model, optimizer, loader, held_out_loader = accelerator.prepare(model, optimizer, loader, held_out_loader)
    accelerator.register_for_checkpointing(schedule)  # not prepared, so that it counts steps, not processes
    if checkpoints := sorted(args.output_dir.glob("checkpoint-*")):
        accelerator.load_state(str(checkpoints[-1]))
        loader = accelerator.skip_first_batches(loader, schedule.last_epoch)

    for step, batch in enumerate(loader, start=schedule.last_epoch + 1):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % INTERVAL == 0:
            model.eval()
            with torch.no_grad():
                losses = [accelerator.gather_for_metrics(model(**batch).loss[None]) for batch in held_out_loader]
            model.train()
            accelerator.print(f"step {step}: loss {loss:.3f}, held out {torch.cat(losses).mean():.3f}", flush=True)
            accelerator.save_state(str(args.output_dir / "partial"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:  # a checkpoint is whole when it gets its name
                (args.output_dir / "partial").rename(args.output_dir / f"checkpoint-{step:08d}")
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_towers(args.output_dir, tokenizer)


if __name__ == "__main__":
    main()
