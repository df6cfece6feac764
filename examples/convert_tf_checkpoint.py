#!/usr/bin/env python
"""Converts a pre-training checkpoint of google-research/electra.

    python examples/convert_tf_checkpoint.py --tf_checkpoint models/my_electra/model.ckpt-1000000 --size small \\
        --vocab_file vocab.txt --output_dir runs/converted

reads the checkpoint whose files are `model.ckpt-1000000.index` and `.data-...`, and writes the pair into
`runs/converted`, to continue its pre-training, and both towers into its `generator` and `discriminator`: native
checkpoints with their tokenizer. Of a checkpoint that holds a discriminator only, that tower is written. `--size`
knows the released models (`small++` is the one that was released as ELECTRA-Small).

A model with sizes of its own needs its hparams, under the original's names, as a JSON file (`--hparams`), such as
{"model_size": "small", "model_hparam_overrides": {"num_hidden_layers": 6}, "vocab_size": 32000}. The optimizer's
state is left out. TensorFlow, an optional extra, does the reading: pip install -e '.[tf]'
"""

import argparse
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.checkpoints.tf_checkpoint import (
    discriminator_from_variables,
    holds_only_a_discriminator,
    pair_from_variables,
)
from hf_electra_rtd.checkpoints.tf_hparams import SIZE_HPARAMS, config_from_hparams, read_hparams
from hf_electra_rtd.checkpoints.tf_variables import read_tf_variables
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.towers import save_tokenizer, save_towers
from hf_electra_rtd.training.cli import run_as_script


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tf_checkpoint", required=True, metavar="PREFIX", help="its files' path up to .index")
    sizes = parser.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--hparams", metavar="FILE", help="JSON, under the original's names; or a mapping with such")
    sizes.add_argument("--size", choices=SIZE_HPARAMS, help="hparams of a released size; small++ is electra_small")
    parser.add_argument("--vocab_file", required=True, help="the checkpoint's vocab.txt")
    parser.add_argument(
        "--lowercase",
        choices=("true", "false"),
        help="whether text is lower-cased; by default what the hparams say (do_lower_case), or as the vocabulary is",
    )
    parser.add_argument("--output_dir", required=True, help="a directory that is empty, or does not exist")
    return parser.parse_args(argv)


def get_tokenizer(arguments: argparse.Namespace, hparams: dict[str, Any], config: Any) -> Any:
    """The tokenizer of the checkpoint, which must not have tokens that the towers do not have."""
    if not Path(arguments.vocab_file).is_file():
        raise ValueError(f"There is no vocabulary {arguments.vocab_file}.")
    lowercase = hparams.get("do_lower_case") if arguments.lowercase is None else arguments.lowercase == "true"
    tokenizer = load_tokenizer(arguments.vocab_file, lowercase)
    tokenizer.model_max_length = config.max_position_embeddings
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"{arguments.vocab_file} has {len(tokenizer)} tokens, the hparams say {config.vocab_size} (vocab_size)."
        )
    return tokenizer


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    disable_progress_bar()
    output = Path(arguments.output_dir)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} holds something already: choose another --output_dir.")
    hparams = dict(SIZE_HPARAMS[arguments.size]) if arguments.size else read_hparams(arguments.hparams)
    config = config_from_hparams(hparams)
    tokenizer = get_tokenizer(arguments, hparams, config.discriminator_config)

    variables = read_tf_variables(arguments.tf_checkpoint)
    print(f"read     {len(variables)} variables of {arguments.tf_checkpoint}, the optimizer's state left out")
    if holds_only_a_discriminator(config, variables):
        print("found    a discriminator alone")
        towers = {"discriminator": discriminator_from_variables(config, variables)}
        save_towers({name: (tower, None) for name, tower in towers.items()}, output, tokenizer)
    else:
        print(f"found    objective={config.objective}, generator={config.generator}, sharing={config.sharing}")
        model = pair_from_variables(config, variables)
        towers = {"generator": model.generator, "discriminator": model.discriminator}
        model.save_pretrained(output)
        save_tokenizer(tokenizer, output)
        model.save_towers(output, tokenizer)
        print(f"wrote    {output}: the pair")
    for name, tower in towers.items():
        if tower is not None:
            print(f"wrote    {output / name}: {type(tower).__name__}, {tower.num_parameters():,} parameters")


if __name__ == "__main__":
    run_as_script(main, ImportError, OSError)
