#!/usr/bin/env python
"""Converts a checkpoint of google-research/electra; the same as `hf-electra-rtd convert`.

python examples/convert.py --tf_checkpoint models/my_electra/model.ckpt-1000000 --size small --vocab_file vocab.txt \
    --output_dir runs/converted
"""

from hf_electra_rtd.checkpoints import main
from hf_electra_rtd.cli import run


if __name__ == "__main__":
    run(main)
