"""Converts a pre-training checkpoint of google-research/electra.

    hf-electra-rtd convert --tf_checkpoint models/my_electra/model.ckpt-1000000 --size small \\
        --vocab_file vocab.txt --output_dir runs/converted

reads `model.ckpt-1000000.index` and `.data-...`. It writes the joint model into `runs/converted`, to continue its
pre-training, and both towers into its `generator` and `discriminator`: native checkpoints with their tokenizer. From a
checkpoint that holds only a discriminator, it writes only that tower. `--size` is one of the released models
(`small++` was released as ELECTRA-Small). Any other model needs its hparams, under the original's names, as a JSON
file, such as
{"model_size": "small", "model_hparam_overrides": {"num_hidden_layers": 6}, "vocab_size": 32000}. The optimizer's
state is left out. Reading the file needs TensorFlow, an optional extra: pip install -e '.[tf]'
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import ElectraConfig, ElectraForPreTraining
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.base.cli import Rule, check_arguments, flag, parse_arguments, required, run
from hf_electra_rtd.base.files import check_name, naming, read_json, reading
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.data.tokenization import load_tokenizer, save_tokenizer
from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig, derive_generator_config, refuse_unknown
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.towers import save_towers


RULES = (Rule("hparams", "Each says what the model is.", excludes=("size",)),)


@dataclass
class ConvertArguments:
    """The checkpoint, and the architecture of its model."""

    tf_checkpoint: str = required("Path of its files up to .index.")
    vocab_file: str = required("The checkpoint's vocab.txt.")
    output_dir: str = required("A directory that is empty or does not exist.")
    hparams: str | None = flag(None, "JSON file of hparams, under the original's names.")
    size: str | None = flag(
        None,
        "A released size; small++ is electra_small.",
        choices=[name for name, size in SIZES.items() if size.is_published],
    )

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)
        if self.hparams is None and self.size is None:
            raise ValueError("The architecture of the checkpoint is not given. Name --size or --hparams.")


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((ConvertArguments,), argv, __doc__)
    disable_progress_bar()
    output = Path(arguments.output_dir)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} (--output_dir) is not empty. Choose another directory.")
    hparams = {} if arguments.size else read_json(arguments.hparams)
    with reading(arguments.hparams, "It must be JSON: a mapping of hparams to values."):
        config = ElectraRTDConfig.from_size(arguments.size) if arguments.size else config_from_hparams(hparams)
    index = arguments.tf_checkpoint.removesuffix(".index") + ".index"
    for name, path in (("tf_checkpoint", index), ("vocab_file", arguments.vocab_file)):
        if not Path(path).is_file():
            raise ValueError(f"There is no file {path} (--{name}).")
    tokenizer: Any = load_tokenizer(arguments.vocab_file, hparams.get("do_lower_case"))
    tokenizer.model_max_length = config.discriminator_config.max_position_embeddings
    if len(tokenizer) > (size := config.discriminator_config.vocab_size):
        raise ValueError(
            f"{arguments.vocab_file} (--vocab_file) has {len(tokenizer)} tokens, but the hparams say {size} "
            "(vocab_size)."
        )
    config.take_special_tokens(tokenizer)
    variables = read_tf_variables(arguments.tf_checkpoint)
    print(f"read     {len(variables)} variables of {arguments.tf_checkpoint}, without the optimizer's state")
    model = model_from_variables(config, variables)
    if isinstance(model, ElectraForPreTraining):
        print("found    a discriminator only")
        towers: dict[str, Any] = {"discriminator": model}
    else:
        print(f"found    objective={config.objective}, generator={config.generator}, sharing={config.sharing}")
        towers = model.native_towers()
        with naming(output):
            model.save_pretrained(output)
        save_tokenizer(tokenizer, output)
        print(f"wrote    {output}: the joint model")
    save_towers(towers, output, tokenizer)
    for name, tower in towers.items():
        print(f"wrote    {output / name}: {type(tower).__name__}, {tower.num_parameters():,} parameters")


# ---- From hparams to a configuration ----
#
# Names, defaults and formulas are those of configure_pretraining.py, util/training_utils.py (`get_bert_config`) and
# run_pretraining.py (`PretrainingModel`, `get_generator_config`) of google-research/electra at commit 8a46635.

# Hparams that decide which variables there are or what is computed, with the original's defaults.
MODEL_HPARAMS: dict[str, Any] = {
    "electra_objective": True,
    "electric_objective": False,
    "two_tower_generator": False,
    "mask_prob": 0.15,
    "gen_weight": 1.0,
    "disc_weight": 50.0,
    "model_size": "small",
    "model_hparam_overrides": {},
    "embedding_size": None,  # 128 where the size is small, otherwise the hidden size
    "vocab_size": 30522,
    "uniform_generator": False,
    "untied_generator_embeddings": False,
    "untied_generator": True,
    "generator_layers": 1.0,
    "generator_hidden_size": 0.25,
    "disallow_correct": False,
    "temperature": 1.0,
}
# Hparams of data, training and machines, which are accepted and have no effect on a checkpoint.
OTHER_HPARAMS = (
    "model_name",
    "do_train",
    "do_eval",
    "do_lower_case",
    "max_predictions_per_seq",
    "learning_rate",
    "lr_decay_power",
    "weight_decay_rate",
    "num_warmup_steps",
    "iterations_per_loop",
    "save_checkpoints_steps",
    "num_train_steps",
    "num_eval_steps",
    "keep_checkpoint_max",
    "max_seq_length",
    "train_batch_size",
    "eval_batch_size",
    "use_tpu",
    "num_tpu_cores",
    "tpu_job_name",
    "tpu_name",
    "tpu_zone",
    "gcp_project",
    "pretrain_tfrecords",
    "vocab_file",
    "model_dir",
    "results_txt",
    "results_pkl",
    "debug",
)
MODEL_SIZES = ("small", "base", "large")
# Fields of `BertConfig` (model/modeling.py), which `model_hparam_overrides` may name. `ElectraConfig` has the same
# names, and the same defaults where the size does not decide.
OVERRIDES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)


def config_from_hparams(hparams: Mapping[str, Any]) -> ElectraRTDConfig:
    """Returns the configuration that hparams of google-research/electra describe, without what the original ignores.
    Raises ValueError for an unknown hparam, a model that cannot be converted, or sizes that cannot be built."""
    refuse_unknown(hparams, (*MODEL_HPARAMS, *OTHER_HPARAMS), "google-research/electra")
    values = {**MODEL_HPARAMS, **hparams}
    if values["model_size"] == "small":
        values["embedding_size"] = hparams.get("embedding_size", 128)
    discriminator = _tower_config(values)
    options: dict[str, Any] = {"discriminator_config": discriminator, "mask_probability": values["mask_prob"]}
    if values["electric_objective"]:
        options["objective"] = "electric"
    elif not values["electra_objective"]:
        return ElectraRTDConfig(objective="mlm", discriminator_weight=values["gen_weight"], **options)
    options |= {"generator_weight": values["gen_weight"], "discriminator_weight": values["disc_weight"]}
    options["disallow_correct"] = values["disallow_correct"]
    if values["uniform_generator"]:
        return ElectraRTDConfig(generator="uniform", **options)
    options["temperature"] = values["temperature"]
    if not values["untied_generator"]:
        return ElectraRTDConfig(sharing="all", generator_config=discriminator, **options)
    generator = derive_generator_config(discriminator, values["generator_hidden_size"], values["generator_layers"])
    sharing = "none" if values["untied_generator_embeddings"] else "embeddings"
    if sharing == "none":
        generator.embedding_size = generator.hidden_size  # in the original, such a block has no size of its own
    if values["two_tower_generator"]:
        options["generator"] = "two_tower"
    return ElectraRTDConfig(sharing=sharing, generator_config=generator, **options)


def _tower_config(values: Mapping[str, Any]) -> ElectraConfig:
    overrides = values["model_hparam_overrides"]
    size = values["model_size"]
    refuse_unknown(overrides, OVERRIDES, "model_hparam_overrides")
    check_name("model_size", size, MODEL_SIZES)
    if overrides.get("hidden_act", "gelu") != "gelu":
        raise ValueError("The masked-LM head of `transformers` supports no other hidden_act than 'gelu'.")
    named = {name: SIZES[size].architecture[name] for name in ("hidden_size", "num_hidden_layers")}
    sizes = {"vocab_size": values["vocab_size"], **named, **overrides}
    width = sizes["hidden_size"]
    sizes = {"num_attention_heads": max(1, width // 64), "intermediate_size": 4 * width, **sizes}
    embedding_size = width if values["embedding_size"] is None else values["embedding_size"]
    return ElectraConfig(**sizes, embedding_size=embedding_size)


# ---- From variables to a model ----

# Rules that turn, one after another, a parameter's name in [`ElectraForRTDPretraining`] into its variable's name
# (model/modeling.py and run_pretraining.py of the original). Variables whose names end in KERNEL are transposed.
VARIABLE_NAMES = (
    (r"^discriminator\.electra\.", "electra."),
    (r"^generator\.electra\.", "generator."),
    (r"^generator\.(ltr|rtl)\.", r"generator_\1."),
    (r"^\w+\.((?:generator|discriminator|cloze)_predictions)\.", r"\1."),
    (r"^\w+\.(generator|cloze)_lm_head\.bias$", r"\1_predictions.output_bias"),
    (r"\bencoder\.layer\.(\d+)\.", r"encoder.layer_\1."),
    (r"\bdense_prediction\.", "dense_1."),
    (r"\b(word|position|token_type)_embeddings\.weight$", r"\1_embeddings"),
    (r"\bLayerNorm\.weight$", "LayerNorm.gamma"),
    (r"\bLayerNorm\.bias$", "LayerNorm.beta"),
    (r"\.weight$", ".kernel"),
    (r"\.", "/"),
)
KERNEL = "/kernel"
# Slots of Adam (model/optimization.py) and the step counter.
OPTIMIZER_STATE = re.compile(r"(^|/)(adam_m|adam_v|global_step)$")


def load_tf_checkpoint(prefix: str | os.PathLike[str], hparams: Mapping[str, Any]) -> Any:
    """Loads a pre-training checkpoint of google-research/electra as an [`ElectraForRTDPretraining`] in evaluation mode
    or, if it holds only a discriminator, as an `ElectraForPreTraining`.

    `prefix` is the path of its files up to `.index` and `.data-...`. `hparams` are those of its training, under the
    original's names; missing ones have the original's defaults. Raises ValueError for hparams that are unknown or
    cannot be converted, and for a checkpoint that cannot be read (TensorFlow must be installed) or does not fit them.
    """
    return model_from_variables(config_from_hparams(hparams), read_tf_variables(prefix))


def read_tf_variables(prefix: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the variables of a TensorFlow checkpoint by name, without the optimizer's state."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ValueError(
            f"Reading a TensorFlow checkpoint needs TensorFlow ({error}). "
            "In the project's directory: pip install -e '.[tf]'"
        ) from error
    with reading(prefix, "Give the path of its files up to .index and .data-..."):
        reader = tf.train.load_checkpoint(os.fspath(prefix).removesuffix(".index"))
        names = [name for name in reader.get_variable_to_shape_map() if not OPTIMIZER_STATE.search(name)]
        return {name: np.asarray(reader.get_tensor(name)) for name in sorted(names)}


def variables_of(model: nn.Module, prefix: str = "") -> dict[str, nn.Parameter]:
    """Returns the parameters of a model by the names of their variables. A tied parameter occurs once, under the
    discriminator's name. `prefix` is the name of a single tower in the joint model, with a dot."""
    # The generator comes first, so the discriminator's name of a tied parameter is the one that stays.
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not name.endswith("_lm_head.weight"):  # it is the word table
            variable = prefix + name
            for pattern, replacement in VARIABLE_NAMES:
                variable = re.sub(pattern, replacement, variable)
            names[parameter] = variable
    return {name: parameter for parameter, name in names.items()}


@torch.no_grad()
def model_from_variables(config: ElectraRTDConfig, variables: Mapping[str, np.ndarray]) -> Any:
    """Returns the joint model of a configuration with these variables or, if they lack a generator, its discriminator.
    The optimizer's state is ignored. Raises ValueError with a list of the variables that are missing, left over, or of
    another shape."""
    is_whole = not config.has_generator_network or any(name.startswith("generator") for name in variables)
    tower = "" if is_whole else "discriminator."
    model: Any = ElectraForPreTraining(config.discriminator_config) if tower else ElectraForRTDPretraining(config)
    parameters = variables_of(model, tower)
    given = {name: value for name, value in variables.items() if not OPTIMIZER_STATE.search(name)}
    # The parameters in the layout of the checkpoint.
    views = {name: p.T if name.endswith(KERNEL) else p for name, p in parameters.items()}
    problems = {
        "missing variables": views.keys() - given.keys(),
        "variables left over": given.keys() - views.keys(),
        "variables of another shape": {
            f"{name} is {list(given[name].shape)}, expected {list(views[name].shape)}"
            for name in views.keys() & given.keys()
            if given[name].shape != tuple(views[name].shape)
        },
    }
    told = [f"\n{what} ({len(names)}):\n  " + "\n  ".join(sorted(names)) for what, names in problems.items() if names]
    if told:
        raise ValueError("The checkpoint does not fit the hparams." + "".join(told))
    for name, view in views.items():
        view.copy_(torch.from_numpy(np.array(given[name], dtype=np.float32)))
    return model.eval()


if __name__ == "__main__":
    run(main)
