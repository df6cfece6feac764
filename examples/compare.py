#!/usr/bin/env python
"""Puts fine-tuning results in one table, beside published figures:

    python examples/compare.py runs/glue_discriminator runs/glue_random

prints the median, mean and best of each model's seeds on each task. The same as `hf-electra-rtd compare`.
"""

from hf_electra_rtd.cli import run
from hf_electra_rtd.publishing.tables import main


if __name__ == "__main__":
    run(main)
