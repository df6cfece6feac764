#!/usr/bin/env python
"""`hf-electra-rtd prepare` with the bundled corpus as its text.

    python examples/prepare.py

prepares 759,000 tokens of English novels in some seconds, and leaves `train.blocks`, `held_out.blocks` and the
`tokenizer/` in runs/corpus. It ends with the command that trains on them. On your own text:

    python examples/prepare.py --train_files 'corpus/*.txt' --drop_duplicates exact --output_dir corpora/mine
"""

from pathlib import Path

from hf_electra_rtd.base.cli import run
from hf_electra_rtd.data import prepare_command


BUNDLED_CORPUS = Path(__file__).parent / "data" / "eltec_eng_excerpts.txt.gz"


def main(argv: list[str]) -> None:
    prepare_command.main(argv, default_text=[str(BUNDLED_CORPUS)])


if __name__ == "__main__":
    run(main)
