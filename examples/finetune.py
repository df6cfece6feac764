#!/usr/bin/env python
"""Fine-tunes an encoder on GLUE, CLUE, SQuAD or your own task: `hf-electra-rtd finetune`, from a checkout.

    python examples/finetune.py --model_name_or_path runs/small --task_name mrpc rte --seeds 5 --output_dir runs/glue

`--model_name_or_path` is a pre-training run, a directory, or a Hub id of any encoder; `--task_name all` takes the
whole benchmark (`--benchmark glue`, `clue` or `more`), from the Hub or from `--data_dir`. Your own task needs files
and the names of their columns:

    python examples/finetune.py --model_name_or_path runs/small --output_dir runs/reviews \\
        --train_file train.csv --validation_file dev.csv --text_column_name review --label_column_name mood

Expect records, predictions and the best seed's model in `output_dir`, and a table of scores at the end.
"""

from hf_electra_rtd.base.cli import run
from hf_electra_rtd.finetuning.finetune import main


if __name__ == "__main__":
    run(main)
