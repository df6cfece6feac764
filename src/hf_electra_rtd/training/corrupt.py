"""Draws the samples of a frozen generator before a run, so that the run needs no generator (Fast-ELECTRA, arXiv
2310.07347):

    hf-electra-rtd corrupt --generator runs/mlm/discriminator --size small --train_files 'corpus/*.txt' \\
        --temperature_schedule exponential --output_dir runs/corrupted
    hf-electra-rtd pretrain --corrupted runs/corrupted --size small --train_files 'corpus/*.txt'

The flags are those of `pretrain`, and decide the same: text, seed, masks, batches and length. (The generator is frozen
by default.) `train.corrupted` has the samples of every sequence of the run, `held_out.corrupted` those of its
evaluations. The second command trains to the bit what `pretrain` would train with the generator, on a machine of the
same kind. The same command again finds its files done.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_electra_rtd.cli import run as run_command
from hf_electra_rtd.data.blocks import SequenceStream
from hf_electra_rtd.data.corruption import NAMES, CorruptedFile, describe_stream, write_samples
from hf_electra_rtd.data.prepare import TOKENIZER_DIRECTORY
from hf_electra_rtd.data.tokenization import keep_tokenizer
from hf_electra_rtd.ops import IGNORED, masked_slots, num_masked
from hf_electra_rtd.towers import hash_weights
from hf_electra_rtd.training import pretrain


logger = logging.getLogger(__name__)

_SAMPLING = ("disallow_correct", "temperature", "temperature_schedule", "temperature_start", "temperature_decay")


def main(argv: list[str]) -> None:
    """The command `corrupt`."""
    with pretrain.start(argv, __doc__, {"output_dir": "runs/corrupted", "freeze_generator": True}) as run:
        args, config = run.args, run.model.config
        if not (config.has_generator_network and config.freeze_generator):
            raise ValueError("Only a frozen generator can draw its samples before the run: --freeze_generator True.")
        if run.arguments.dry_run or run.checkpoint or args.world_size > 1:
            remedy = "Leave --dry_run, --resume_from_* and the launcher out"
            alike = "for n processes, multiply --gradient_accumulation_steps by n"
            raise ValueError(f"corrupt runs in one process, from the start. {remedy} ({alike}).")
        how = {"sha256": hash_weights(run.model.generator), "precision": args.mixed_precision}
        how |= {name: getattr(config, name) for name in _SAMPLING}
        streams = {"train": (run.stream, args.train_batch_size), "held_out": (run.held_out, args.eval_batch_size)}
        wanted = []
        for name, (stream, batch_size) in streams.items():
            path = run.directory / NAMES[name]
            if stream is None:
                continue
            falls = name == "train" and config.temperature_schedule != "constant"
            header = {
                "stream": describe_stream(stream, run.collator),
                "generator": how,
                "vocab_size": len(run.tokenizer),
                "num_positions": len(stream) if falls else None,
            }
            if path.exists() and not run.arguments.overwrite_output_dir:
                found: Any = CorruptedFile(path, verify=True).header
                if found.num_sequences != len(stream) or any(getattr(found, key) != header[key] for key in header):
                    then, now = found.generator.get("precision"), how["precision"]
                    whose = "another run" if then == now else f"a run with other precision (then {then}, now {now})"
                    remedy = "Choose another --output_dir, or add --overwrite_output_dir."
                    raise ValueError(f"{path} has the samples of {whose}. {remedy}")
                logger.info(f"{path} is done.")
                continue
            wanted.append((path, stream, batch_size, header))
        keep_tokenizer(run.tokenizer, run.directory / TOKENIZER_DIRECTORY)
        for path, stream, batch_size, header in wanted:
            num_slots = min(num_masked(args.mask_probability, args.max_seq_length), args.max_seq_length)
            write_samples(path, _samples(run, stream, batch_size), num_slots, **header)
            logger.info(f"{path}: the samples of {len(stream):,} sequences, {path.stat().st_size / 1e6:,.1f} MB.")


def _samples(
    run: pretrain.Run, stream: SequenceStream, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Positions, which of them are used, and samples of each batch; in the batches of the run, which round alike."""
    args = run.args
    accelerator = Accelerator(mixed_precision=args.mixed_precision, cpu=args.use_cpu)
    model: Any = run.model.to(accelerator.device).train()  # as in the run
    loader = DataLoader(stream, batch_size, collate_fn=run.collator, num_workers=args.dataloader_num_workers)
    for batch in tqdm(loader, disable=args.disable_tqdm, total=math.ceil(len(stream) / batch_size)):
        positions_BK, used_BK = batch["masked_positions"].numpy(), batch["labels"].ne(IGNORED).numpy()
        batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
        slots = masked_slots(*(batch[name] for name in ("input_ids", "masked_positions", "labels")))
        sampling = model.sampling(slots, batch["sampling_uniforms"], batch.get("sampling_temperature"))
        names = ("attention_mask", "token_type_ids", "position_ids", "document_ids")
        inputs = {name: batch.get(name) for name in names}
        with torch.no_grad(), accelerator.autocast():
            sampled = model.generate(batch["input_ids"], slots, sampling, **inputs).sampled
        yield positions_BK, used_BK, sampled.cpu().numpy()


if __name__ == "__main__":
    run_command(main)
