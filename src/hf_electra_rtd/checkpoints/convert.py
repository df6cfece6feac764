"""Converts a pre-training checkpoint of google-research/electra.

    hf-electra-rtd convert --tf_checkpoint models/my_electra/model.ckpt-1000000 --size small \\
        --vocab_file vocab.txt --output_dir runs/converted

reads the checkpoint whose files are `model.ckpt-1000000.index` and `.data-...`. It writes the joint model into
`runs/converted`, to continue its pre-training, and both towers into its `generator` and `discriminator`: native
checkpoints with their tokenizer. A checkpoint that holds only a discriminator gives that tower. `--size` is one of the
released models (`small++` was released as ELECTRA-Small).

A model of other sizes needs its hparams, under the original's names, as a JSON file (`--hparams`), such as
{"model_size": "small", "model_hparam_overrides": {"num_hidden_layers": 6}, "vocab_size": 32000}. The optimizer's
state is left out. TensorFlow, an optional extra, reads the file: pip install -e '.[tf]'
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_electra_rtd.checkpoints.tf_checkpoint import (
    discriminator_from_variables,
    holds_only_a_discriminator,
    pair_from_variables,
    read_tf_variables,
)
from hf_electra_rtd.checkpoints.tf_hparams import SIZE_HPARAMS, config_from_hparams, read_hparams
from hf_electra_rtd.cli import run
from hf_electra_rtd.data.tokenization import load_tokenizer, save_tokenizer
from hf_electra_rtd.towers import save_towers


def main(argv: list[str]) -> None:
    from transformers.utils.logging import disable_progress_bar

    arguments = _parse(argv)
    disable_progress_bar()
    output = Path(arguments.output_dir)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} (--output_dir) is not empty. Choose another directory.")
    hparams = dict(SIZE_HPARAMS[arguments.size]) if arguments.size else read_hparams(arguments.hparams)
    config = config_from_hparams(hparams)
    tokenizer = _load_tokenizer(arguments, hparams, config.discriminator_config)
    try:
        variables = read_tf_variables(arguments.tf_checkpoint)
    except ImportError as error:
        raise ValueError(str(error)) from error
    print(f"read     {len(variables)} variables of {arguments.tf_checkpoint}, without the optimizer's state")
    if holds_only_a_discriminator(config, variables):
        print("found    a discriminator only")
        towers = {"discriminator": discriminator_from_variables(config, variables)}
        save_towers({"discriminator": (towers["discriminator"], None)}, output, tokenizer)
    else:
        print(f"found    objective={config.objective}, generator={config.generator}, sharing={config.sharing}")
        model = pair_from_variables(config, variables)
        towers = model.towers
        model.save_pretrained(output)
        save_tokenizer(tokenizer, output)
        model.save_towers(output, tokenizer)
        print(f"wrote    {output}: the joint model")
    for name, tower in towers.items():
        print(f"wrote    {output / name}: {type(tower).__name__}, {tower.num_parameters():,} parameters")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tf_checkpoint", required=True, metavar="PREFIX", help="path of its files up to .index")
    sizes = parser.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--hparams", metavar="FILE", help="JSON file of hparams, under the original's names")
    sizes.add_argument("--size", choices=SIZE_HPARAMS, help="a released size; small++ is electra_small")
    parser.add_argument("--vocab_file", required=True, help="the checkpoint's vocab.txt")
    help_of_lowercase = "whether text is lowercased; by default as in the hparams, or as the vocabulary is"
    parser.add_argument("--lowercase", choices=("true", "false"), help=help_of_lowercase)
    parser.add_argument("--output_dir", required=True, help="a directory that is empty or does not exist")
    return parser.parse_args(argv)


def _load_tokenizer(arguments: argparse.Namespace, hparams: dict[str, Any], config: Any) -> Any:
    if not Path(arguments.vocab_file).is_file():
        raise ValueError(f"There is no vocabulary {arguments.vocab_file} (--vocab_file).")
    lowercase = hparams.get("do_lower_case") if arguments.lowercase is None else arguments.lowercase == "true"
    tokenizer = load_tokenizer(arguments.vocab_file, lowercase)
    tokenizer.model_max_length = config.max_position_embeddings
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"{arguments.vocab_file} (--vocab_file) has {len(tokenizer)} tokens, but the hparams say "
            f"{config.vocab_size} (vocab_size)."
        )
    return tokenizer


if __name__ == "__main__":
    run(main)
