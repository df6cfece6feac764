"""The named sizes: architecture, pre-training recipe and fine-tuning recipe of each, written once.

Paper = Clark et al. 2020, arXiv 2003.10555. Code = google-research/electra.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_electra_rtd.base.files import check_name


@dataclass(frozen=True)
class Size:
    """A named size."""

    # Fields of the discriminator's `ElectraConfig`. All others have their defaults, which are those of Table 6:
    # dropout 0.1, vocabulary 30,522, 512 positions.
    architecture: Mapping[str, Any]
    generator_hidden_size: float  # width of the generator as a fraction of the discriminator's
    pretraining: Mapping[str, Any]  # fields of `RTDTrainingArguments`
    initialization: str = "stock"  # for new networks; see `hf_electra_rtd.pair.initialization`
    learning_rate: float = 3e-4  # for fine-tuning (paper, Table 7; Code has the same for large, 1e-4 for others)
    layerwise_lr_decay: float = 0.8  # for fine-tuning
    is_published: bool = True  # whether paper or Code give this recipe; cards name deviations from it


def _architecture(layers: int, hidden_size: int, heads: int, embedding_size: int) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden_size, "intermediate_size": 4 * hidden_size}
    return {**sizes, "num_attention_heads": heads, "embedding_size": embedding_size}


def _pretraining(
    learning_rate: float, batch_size: int, max_steps: int, max_seq_length: int, mask_probability: float = 0.15
) -> dict[str, Any]:
    """Returns a recipe of the paper; the warm-up and the intervals are the same for all sizes."""
    return {
        "learning_rate": learning_rate,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": min(batch_size, 256),
        "max_steps": max_steps,
        "warmup_steps": 10_000,
        "max_seq_length": max_seq_length,
        "mask_probability": mask_probability,
        "logging_steps": 100,
        "eval_steps": 5000,
        "save_steps": 1000,  # Code: save_checkpoints_steps
    }


SIZES: Mapping[str, Size] = {
    # Ours, for tests, tutorials and a laptop: 3 to 8 minutes on two CPU cores for the bundled corpus.
    "tiny": Size(
        architecture={
            **_architecture(4, 128, 2, 64),
            "initializer_range": 0.06,  # 0.02 is for wide layers and long runs
            # A run of this size reads its text a few times at most, so there is no overfitting for dropout to prevent.
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        generator_hidden_size=0.25,
        initialization="neighbours",
        pretraining={
            **_pretraining(5e-4, 4, 6000, 128),  # small batches learn more from the same text
            "bias_correction": True,  # without it, Adam needs a longer warm-up than the run has room for
            "per_device_eval_batch_size": 64,
            "warmup_steps": 100,
            "eval_steps": 400,
            "save_steps": 800,
        },
        is_published=False,
    ),
    # Ours, as wide and deep as BERT-Mini, for Wikipedia of a language on one CPU core: just under two hours.
    "mini": Size(
        architecture={
            **_architecture(4, 256, 4, 128),
            "initializer_range": 0.04,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        generator_hidden_size=0.5,
        initialization="neighbours",
        pretraining={
            **_pretraining(3e-4, 32, 12_000, 128),
            "generator_learning_rate": 3e-3,
            "optim": "muon",
            "bias_correction": True,
            "per_device_eval_batch_size": 64,
            "warmup_steps": 200,
            "eval_steps": 1000,
        },
        is_published=False,
    ),
    # Paper Table 6, column Small; Code configure_pretraining.py.
    "small": Size(_architecture(12, 256, 4, 128), 0.25, _pretraining(5e-4, 128, 1_000_000, 128)),
    # The released small model: Small with a generator as wide as the discriminator, longer sequences and training
    # (Code README.md, "ELECTRA-Small++").
    "small++": Size(_architecture(12, 256, 4, 128), 1.0, _pretraining(5e-4, 128, 4_000_000, 512)),
    # Paper Table 6, column Base.
    "base": Size(
        architecture=_architecture(12, 768, 12, 768),
        generator_hidden_size=1 / 3,
        pretraining=_pretraining(2e-4, 256, 766_000, 512),
        learning_rate=1e-4,
    ),
    # Paper Table 6, column Large.
    "large": Size(
        architecture=_architecture(24, 1024, 16, 1024),
        generator_hidden_size=0.25,
        pretraining=_pretraining(2e-4, 2048, 400_000, 512, mask_probability=0.25),
        learning_rate=5e-5,
        layerwise_lr_decay=0.9,
    ),
}

# The fine-tuning recipe that all sizes share (paper, Table 7; Code has a weight decay of 0.01).
FINETUNING: Mapping[str, Any] = {
    "per_device_train_batch_size": 32,
    "warmup_steps": 0.1,  # a share of all steps
    "weight_decay": 0.0,
    "adam_epsilon": 1e-6,
    "dropout": 0.1,
}
EMBEDDING_LEARNING_RATE = 1e-4  # ours; for all layers, without decay by depth
LORA_LEARNING_RATE = 1e-3  # ours; adapters start at zero and need larger steps than weights


def continued_recipe(name: str) -> dict[str, Any]:
    """Returns the recipe of a named size for continuing the pre-training of networks on other text, with a new
    optimizer: a tenth of the learning rates and of the steps, as in microsoft/DeBERTa
    (experiments/language_model/rtd.sh, `*-continue`: 1/10 to 1/6 of the rate), a short warm-up, an evaluation before
    the first step, and Adam with bias correction, without which the first steps are too large for this warm-up."""
    recipe = dict(get_size(name).pretraining)
    recipe["max_steps"] //= 10
    for rate in ("learning_rate", "generator_learning_rate"):
        if rate in recipe:
            recipe[rate] /= 10
    return {**recipe, "warmup_steps": 0.06, "bias_correction": True, "eval_on_start": True}


def of_length(recipe: Mapping[str, Any], max_steps: int | None, num_train_epochs: float | None) -> dict[str, Any]:
    """Returns a recipe for a run of another length. With `max_steps`, there are at least ten logs and five
    evaluations, and the warm-up is a tenth of the steps at most. With `num_train_epochs`, the number of steps is not
    known yet, so `max_steps` is removed, and the warm-up and the interval of evaluations become shares of the run.
    None means not given."""
    recipe = dict(recipe)
    if max_steps is not None and max_steps > 0:
        for name, share in (("logging_steps", 10), ("eval_steps", 5), ("warmup_steps", 10)):
            recipe[name] = min(recipe[name], max(1, max_steps // share))
    if num_train_epochs is not None:
        del recipe["max_steps"]
        recipe |= {"warmup_steps": min(recipe["warmup_steps"], 0.1), "eval_steps": 0.2}
    return recipe


def closest_size(hidden_size: int, num_layers: int, generator_share: float = 0.0) -> str:
    """Returns the named size that is closest to an encoder of any family: by the ratio of widths, then by depth, then
    by the width of its generator as a fraction of its own."""

    def distance(name: str) -> tuple[float, ...]:
        shape = SIZES[name].architecture
        share = SIZES[name].generator_hidden_size
        return (
            abs(math.log(hidden_size / shape["hidden_size"])),
            abs(num_layers - shape["num_hidden_layers"]),
            abs(generator_share - share),
        )

    return min(SIZES, key=distance)


def get_size(name: str) -> Size:
    """Returns the named size. Raises ValueError, with the known names, for an unknown one."""
    check_name("size", name, SIZES)
    return SIZES[name]
