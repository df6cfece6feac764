#!/usr/bin/env python
"""Shows which tokens of a sentence look replaced; the same as `hf-electra-rtd detect`.

python examples/detect.py --model runs/pretrain "The quick brown fox jumps over the lazy dog." --mask fox lazy
"""

from hf_electra_rtd.cli import run
from hf_electra_rtd.detection import main


if __name__ == "__main__":
    run(main)
