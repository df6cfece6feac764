#!/usr/bin/env python
"""`hf-electra-rtd pretrain` with the bundled corpus as its text.

    accelerate launch --num_cpu_threads_per_process 2 examples/pretrain.py

trains the tiny size on 759,000 tokens of English novels in 3 to 8 minutes on two CPU cores, and leaves the
generator and the discriminator in runs/pretrain. On your own text, with the paper's small size:

    accelerate launch examples/pretrain.py --size small --train_files 'corpus/*.txt.zst' --output_dir runs/small

Every flag can stand in a YAML file instead (--config examples/recipes/small_one_gpu.yaml).
"""

from pathlib import Path

from hf_electra_rtd.base.cli import run
from hf_electra_rtd.training import pretrain


BUNDLED_CORPUS = Path(__file__).parent / "data" / "eltec_eng_excerpts.txt.gz"


def main(argv: list[str]) -> int:
    return pretrain.main(argv, __doc__, default_text=[str(BUNDLED_CORPUS)])


if __name__ == "__main__":
    run(main)
