"""The hparams of google-research/electra, and the configuration they stand for.

Names, defaults and formulas are those of configure_pretraining.py, util/training_utils.py (`get_bert_config`) and
run_pretraining.py (`PretrainingModel`, `get_generator_config`) at commit 8a46635.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import ElectraConfig

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig, derive_generator_config
from hf_electra_rtd.files import known_names


# Hparams that decide which variables there are or what is computed, with the original's defaults.
MODEL_HPARAMS: dict[str, Any] = {
    "debug": False,
    "electra_objective": True,
    "electric_objective": False,
    "gen_weight": 1.0,
    "disc_weight": 50.0,
    "model_size": "small",
    "model_hparam_overrides": {},
    "embedding_size": None,  # 128 where the size is small, otherwise the hidden size
    "vocab_size": 30522,
    "uniform_generator": False,
    "two_tower_generator": False,
    "untied_generator_embeddings": False,
    "untied_generator": True,
    "generator_layers": 1.0,
    "generator_hidden_size": 0.25,
    "disallow_correct": False,
    "temperature": 1.0,
}
# Hparams of data, training and machines: known, and without effect on a checkpoint.
OTHER_HPARAMS = frozenset(
    {
        *("model_name", "do_train", "do_eval", "mask_prob", "do_lower_case", "max_predictions_per_seq"),
        *("learning_rate", "lr_decay_power", "weight_decay_rate", "num_warmup_steps"),
        *("iterations_per_loop", "save_checkpoints_steps", "num_train_steps", "num_eval_steps", "keep_checkpoint_max"),
        *("max_seq_length", "train_batch_size", "eval_batch_size"),
        *("use_tpu", "num_tpu_cores", "tpu_job_name", "tpu_name", "tpu_zone", "gcp_project"),
        *("pretrain_tfrecords", "vocab_file", "model_dir", "results_txt", "results_pkl"),
    }
)
MODEL_SIZES = {
    "small": {"hidden_size": 256, "num_hidden_layers": 12},
    "base": {"hidden_size": 768, "num_hidden_layers": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24},
}
DEBUG_SIZES = {"num_hidden_layers": 3, "hidden_size": 144, "intermediate_size": 576, "num_attention_heads": 4}
# Fields of `BertConfig` (model/modeling.py): what `model_hparam_overrides` may name.
OVERRIDES: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}
# The released models: generators of the widths that README.md and the paper's Table 6 give.
SIZE_HPARAMS: dict[str, dict[str, Any]] = {
    "small": {"model_size": "small"},
    "small++": {"model_size": "small", "generator_hidden_size": 1.0},
    "base": {"model_size": "base", "generator_hidden_size": 0.33333},
    "large": {"model_size": "large"},
}


def read_hparams(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads hparams from a JSON file: a mapping of them, or one that holds them under the key `hparams`.

    Raises:
        ValueError: if the file cannot be read, or holds something else.
    """
    try:
        hparams = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}.") from None
    if isinstance(hparams, dict):
        hparams = hparams.get("hparams", hparams)
    if not isinstance(hparams, dict):
        raise ValueError(f"{path} must hold a mapping of hparams to values.")
    return hparams


def config_from_hparams(hparams: Mapping[str, Any]) -> ElectraRTDConfig:
    """The configuration that hparams of google-research/electra describe; those not given have the original's
    defaults. Settings that the original ignores (such as a temperature without a generator network) are left out.

    Raises:
        ValueError: for an unknown hparam, a value of another type, a model that cannot be converted, or sizes that
            cannot be built.
    """
    values = _filled(hparams, MODEL_HPARAMS, "There is no hparam", OTHER_HPARAMS)
    _refuse_unsupported(values)
    discriminator = _tower_config(values, embedding_size_given="embedding_size" in hparams)
    if not values["electra_objective"]:
        return ElectraRTDConfig(
            objective="mlm", discriminator_config=discriminator, discriminator_weight=values["gen_weight"]
        )
    options = {
        "discriminator_config": discriminator,
        "generator_weight": values["gen_weight"],
        "discriminator_weight": values["disc_weight"],
        "disallow_correct": values["disallow_correct"],
    }
    if values["uniform_generator"]:
        return ElectraRTDConfig(generator="uniform", **options)
    options["temperature"] = values["temperature"]
    if not values["untied_generator"]:
        return ElectraRTDConfig(sharing="all", generator_config=discriminator, **options)
    generator = derive_generator_config(discriminator, values["generator_hidden_size"], values["generator_layers"])
    if values["untied_generator_embeddings"]:
        generator.embedding_size = generator.hidden_size  # the original gives such a block no size of its own
        return ElectraRTDConfig(sharing="none", generator_config=generator, **options)
    return ElectraRTDConfig(sharing="embeddings", generator_config=generator, **options)


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    if values["electric_objective"] or values["two_tower_generator"]:
        raise ValueError("electric_objective and two_tower_generator make Electric, which this project does not have.")
    if values["uniform_generator"] and not values["electra_objective"]:
        raise ValueError("uniform_generator without electra_objective is a model that has no variable to learn.")
    if values["model_size"] not in MODEL_SIZES:
        raise ValueError(f"There is no model_size {values['model_size']!r}. Known sizes: {', '.join(MODEL_SIZES)}.")
    activation = values["model_hparam_overrides"].get("hidden_act", "gelu")
    if activation != "gelu":
        raise ValueError(f"hidden_act={activation!r}: the masked-LM head of `transformers` knows 'gelu' only.")


def _tower_config(values: Mapping[str, Any], embedding_size_given: bool) -> ElectraConfig:
    overrides = values["model_hparam_overrides"]
    sizes = {**OVERRIDES, "vocab_size": values["vocab_size"], **MODEL_SIZES[values["model_size"]], **overrides}
    width = sizes["hidden_size"]
    sizes |= {"num_attention_heads": max(1, width // 64), "intermediate_size": 4 * width, **overrides}
    sizes |= DEBUG_SIZES if values["debug"] else {}
    embedding_size = values["embedding_size"]
    if not embedding_size_given and values["model_size"] == "small":
        embedding_size = 128
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    if width < 1 or width % max(1, heads):
        raise ValueError(
            f"{heads} attention heads do not divide a hidden size of {width}: check model_size and "
            "model_hparam_overrides."
        )
    return ElectraConfig(**sizes, embedding_size=width if embedding_size is None else embedding_size)


def _filled(
    given: Mapping[str, Any], defaults: Mapping[str, Any], message: str, ignored: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """What is given, over the defaults, with every name and type checked."""
    given = {name: value for name, value in given.items() if name not in ignored}
    for name, value in given.items():
        if name not in defaults:
            raise ValueError(f"{message} {name!r}. {known_names(name, [*defaults, *ignored], 'names')}")
        _check_type(name, value, defaults[name])
    filled = {**defaults, **given}
    if "model_hparam_overrides" in filled:
        _filled(filled["model_hparam_overrides"], OVERRIDES, "model_hparam_overrides cannot name")
    return filled


def _check_type(name: str, value: Any, default: Any) -> None:
    expected = {float: (float, int), type(None): (int, type(None))}.get(type(default), (type(default),))
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in expected)
        raise ValueError(f"{name} is {value!r}: it must be of type {names}.")
