"""Turns text into block files that pre-training reads, once for many runs.

    hf-electra-rtd prepare --train_files 'news/*.jsonl.gz,text_column=body' books/ \\
        --tokenizer vocab.txt --max_seq_length 512 --num_proc 8 --drop_duplicates exact \\
        --output_dir corpora/mine

writes `train.blocks`, `held_out.blocks` and `tokenizer/` to the output directory, and prints statistics and the
command that trains on them. Running the same command again reuses the blocks. Flags can also be given in a YAML file
(`--config`).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from hf_electra_rtd.base.cli import check_arguments, parse_arguments, run
from hf_electra_rtd.base.files import check_output
from hf_electra_rtd.data.arguments import DATA_RULES, DataArguments, PreparationArguments
from hf_electra_rtd.data.sequences import TOKENIZER_DIRECTORY, get_sequences, get_tokenizer
from hf_electra_rtd.data.tokenization import TOKENIZER_FILE, TOKENIZER_FILES, keep_tokenizer


def main(argv: list[str], default_text: Sequence[str] = ()) -> None:
    """Runs the command `prepare`. `default_text` is used if no flag names text."""
    arguments, data = parse_arguments((PreparationArguments, DataArguments), argv, __doc__)
    data.set_default_text(default_text)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO)
    directory = Path(arguments.output_dir)
    check_arguments(data, rules=DATA_RULES)
    if prepared := [source.name for source in data.sources() if source.is_prepared and arguments.executor is None]:
        raise ValueError(f"{prepared[0]} is prepared already. Name text files, or train on it.")
    if arguments.executor is not None:
        try:
            from hf_electra_rtd.data import distributed
        except ImportError as error:
            raise ValueError(f"--executor ({error}): pip install -e '.[scale]'") from None
        places, done = distributed.prepare(arguments, data)
    else:
        kept = directory / TOKENIZER_DIRECTORY
        # Mistakes are reported before the work.
        check_output(kept, replaces=TOKENIZER_FILE, ours=TOKENIZER_FILES)
        data.parse(data.held_out_files or ())
        tokenizer = get_tokenizer(data, arguments, directory, keeps=False)
        files = get_sequences(data, arguments, directory, tokenizer)
        done = "Train"
        keep_tokenizer(tokenizer, kept)  # only now: if preparation fails, earlier blocks keep their tokenizer
        places = [file.path for file in files if file is not None]
    flags = ["--train_files", places[0], "--max_seq_length", str(arguments.max_seq_length)]
    flags += ["--held_out_files", places[1]] if places[1:] else ["--held_out_share", "0"]
    flags += ["--tokenizer", str(directory / TOKENIZER_DIRECTORY)]
    command = ["hf-electra-rtd pretrain --size small --output_dir runs/small", shlex.join(flags[:4])]
    shown = " \\\n        ".join([*command, shlex.join(flags[4:])])
    print(f"\n{done} on it with (choose --size and --output_dir)\n\n    {shown}\n")


if __name__ == "__main__":
    run(main)
