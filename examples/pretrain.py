#!/usr/bin/env python
"""Pre-trains a generator and a discriminator by replaced token detection, from text to native checkpoints.

    accelerate launch examples/pretrain.py

trains the tiny size on the bundled corpus (759,000 tokens of English novels) in about five minutes on two CPU cores,
and leaves both towers. On your own text, with the paper's small size:

    accelerate launch examples/pretrain.py --size small --train_files 'corpus/*.txt.zst' --output_dir runs/small

Every flag can stand in a YAML file instead (`--config examples/recipes/small_one_gpu.yaml`); flags win. `--help` lists
them.
"""

import logging
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from transformers import set_seed

from hf_electra_rtd.records import utc_now
from hf_electra_rtd.training.arguments import RECIPES, RTDTrainingArguments
from hf_electra_rtd.training.cli import parse_arguments
from hf_electra_rtd.training.inputs import DataArguments, get_rows, get_tokenizer
from hf_electra_rtd.training.pretraining import (
    ModelArguments,
    build_model,
    make_record,
    prepare_output_dir,
    print_summary,
    save_outputs,
    warn_of_idle_cores,
)
from hf_electra_rtd.training.showcase import judge_rows, pick_sentence, print_showcase
from hf_electra_rtd.training.trainer import DivergedError, RTDTrainer


BUNDLED_CORPUS = Path(__file__).parent / "data" / "eltec_eng_excerpts.txt.gz"


def main(argv: list[str]) -> None:
    started = utc_now()
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, DataArguments, RTDTrainingArguments),
        argv,
        description=__doc__,
        defaults={"train_files": [str(BUNDLED_CORPUS)], "output_dir": "runs/pretrain"},
        recipes=RECIPES,
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO if training_args.process_index == 0 else logging.ERROR)
    set_seed(training_args.seed)
    warn_of_idle_cores(training_args)

    # One process prepares; the others wait and read what it made.
    with training_args.main_process_first(local=False, desc="preparing tokenizer and rows"):
        checkpoint = prepare_output_dir(
            training_args.output_dir,
            training_args.resume_from_checkpoint,
            data_args.overwrite_output_dir and training_args.process_index == 0,
        )
        tokenizer = get_tokenizer(
            data_args, training_args.output_dir, model_args.tokenizer_source, resumed=checkpoint is not None
        )
        train_rows, held_out_rows = get_rows(data_args, training_args, tokenizer)

    model = build_model(model_args, tokenizer, training_args.row_length)
    trainer = RTDTrainer(model, training_args, train_rows, held_out_rows, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=checkpoint)
    metrics = trainer.evaluate() if held_out_rows is not None else {}
    if not trainer.is_world_process_zero():
        return

    record = make_record(
        command=shlex.join([Path(sys.argv[0]).name, *argv]),
        started=started,
        arguments={
            "model": asdict(model_args),
            "data": asdict(data_args),
            "training": training_args.to_sanitized_dict(),
        },
        model=model,
        rows=trainer.train_dataset,
        held_out=held_out_rows,
        mask_probability=training_args.mask_probability,
        steps=trainer.state.global_step,
        train_seconds=trainer.train_seconds,
        curves=trainer.state.log_history,
        metrics=metrics,
    )
    save_outputs(model, tokenizer, record, training_args.output_dir)
    if held_out_rows is not None:
        rows = trainer.eval_dataset.__getitems__(list(range(min(4, len(held_out_rows)))))
        print_showcase([pick_sentence(row) for row in judge_rows(model, trainer.data_collator, rows)])
    print_summary(record, training_args.output_dir)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, DivergedError) as error:
        sys.exit(f"error: {error}")
