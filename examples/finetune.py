#!/usr/bin/env python
"""Fine-tunes an encoder on GLUE, CLUE or your own task, and leaves scores that can be published.

    python examples/finetune.py --model_name_or_path runs/small --task_name mrpc rte --seeds 5 --output_dir runs/glue

`--model_name_or_path` is a pre-training run, a directory, or a Hub id of any encoder; `--task_name all` takes the
whole benchmark (`--benchmark glue`, `clue`, or `more`: SQuAD, XNLI and others), from the Hub or from `--data_dir`.
Your own task needs a file and the names of its columns:

    python examples/finetune.py --model_name_or_path runs/small --output_dir runs/reviews \\
        --train_file train.csv --dev_file dev.csv --text_column review --label_column stars

The recipe is the paper's for the model's size; flags win. Each run leaves a record, its predictions, and the best
seed's model; at the end stands a table beside published figures. Interrupted, the same command goes on with what is
missing. Several GPUs: `accelerate launch examples/finetune.py ...`.
"""

from hf_electra_rtd.finetuning.finetune import train_with_trainer
from hf_electra_rtd.finetuning.suite import run_suite, start_suite
from hf_electra_rtd.training.cli import run_as_script


def main(argv: list[str]) -> int:
    return run_suite(start_suite(argv, __doc__, {"output_dir": "runs/finetune"}), train_with_trainer)


if __name__ == "__main__":
    run_as_script(main)
