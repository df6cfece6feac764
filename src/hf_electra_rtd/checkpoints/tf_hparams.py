"""The hparams of google-research/electra, and the configuration that they mean.

Names, defaults and formulas are those of configure_pretraining.py, util/training_utils.py (`get_bert_config`) and
run_pretraining.py (`PretrainingModel`, `get_generator_config`) at commit 8a46635.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import ElectraConfig

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig, derive_generator_config


# What decides which variables there are, or what is computed from them; with the original's defaults.
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
# Of data, training and machines: known, and of no consequence for a checkpoint.
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
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from None
    if isinstance(hparams, dict):
        hparams = hparams.get("hparams", hparams)
    if not isinstance(hparams, dict):
        raise ValueError(f"{path} must hold a mapping of hparams to values.")
    return hparams


def config_from_hparams(hparams: Mapping[str, Any]) -> ElectraRTDConfig:
    """The pair that hparams of google-research/electra describe.

    Args:
        hparams: under the original's names; what is left out has the original's default.

    Returns:
        The configuration. What the original ignores (a temperature without a generator network, for instance) is left
        out of it.

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


def _tower_config(values: Mapping[str, Any], embedding_size_given: bool) -> ElectraConfig:
    overrides = values["model_hparam_overrides"]
    sizes = {**OVERRIDES, "vocab_size": values["vocab_size"], **MODEL_SIZES[values["model_size"]], **overrides}
    by_width = {
        "num_attention_heads": max(1, sizes["hidden_size"] // 64),
        "intermediate_size": 4 * sizes["hidden_size"],
    }
    sizes |= {**by_width, **overrides, **(DEBUG_SIZES if values["debug"] else {})}
    embedding_size = values["embedding_size"]
    if not embedding_size_given and values["model_size"] == "small":
        embedding_size = 128
    if sizes["hidden_size"] < 1 or sizes["hidden_size"] % max(1, sizes["num_attention_heads"]):
        raise ValueError(
            f"{sizes['num_attention_heads']} attention heads do not divide a hidden size of {sizes['hidden_size']}: "
            "check model_size and model_hparam_overrides."
        )
    return ElectraConfig(**sizes, embedding_size=sizes["hidden_size"] if embedding_size is None else embedding_size)


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    if values["electric_objective"] or values["two_tower_generator"]:
        raise ValueError(
            "electric_objective and two_tower_generator are Electric's, whose generator is two networks that read the "
            "unmasked text from both ends: there is no such generator here."
        )
    if values["uniform_generator"] and not values["electra_objective"]:
        raise ValueError("uniform_generator without electra_objective is a model that has no variable to learn.")
    if values["model_size"] not in MODEL_SIZES:
        raise ValueError(
            f"There is no model_size {values['model_size']!r}. Known are: {', '.join(map(repr, MODEL_SIZES))}."
        )
    activation = values["model_hparam_overrides"].get("hidden_act", "gelu")
    if activation != "gelu":
        raise ValueError(
            f"hidden_act={activation!r} cannot be converted: the masked-LM head of `transformers` knows 'gelu' only."
        )


def _filled(
    given: Mapping[str, Any], defaults: Mapping[str, Any], message: str, ignored: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """What is given, over the defaults, with every name and type checked."""
    for name, value in given.items():
        if name in ignored:
            continue
        if name not in defaults:
            close = difflib.get_close_matches(name, [*defaults, *ignored], n=1)
            raise ValueError(
                f"{message} {name!r}."
                + (f" Did you mean {close[0]!r}?" if close else f" Known are: {_list(defaults)}.")
            )
        _check_type(name, value, defaults[name])
    filled = {**defaults, **{name: value for name, value in given.items() if name in defaults}}
    if "model_hparam_overrides" in filled:
        _filled(filled["model_hparam_overrides"], OVERRIDES, "model_hparam_overrides cannot name")
    return filled


def _check_type(name: str, value: Any, default: Any) -> None:
    if isinstance(default, bool):
        expected: tuple[type, ...] = (bool,)
    elif isinstance(default, float):
        expected = (float, int)
    elif default is None:
        expected = (int, type(None))
    else:
        expected = (type(default),)
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in expected)
        raise ValueError(f"{name} is {value!r}: it must be of type {names}.")


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(names)
