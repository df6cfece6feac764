"""Training arguments with the paper's recipe, and the recipe of each named size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy

from hf_electra_rtd.configuration_electra_rtd import SIZES
from hf_electra_rtd.data.collator import check_masking


# Paper = arXiv 2003.10555, Table 6; Code = google-research/electra configure_pretraining.py.
_PAPER_LOGGING = {"logging_steps": 100, "eval_steps": 5000, "save_steps": 1000}  # Code: save_checkpoints_steps=1000
RECIPES: dict[str, dict[str, Any]] = {
    # Ours: about five minutes on two CPU cores for the bundled corpus. A run this short has no room for the warm-up
    # that Adam without bias correction needs (see `ElectraAdamW`).
    "tiny": {
        "learning_rate": 5e-4,
        "bias_correction": True,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 64,
        "max_steps": 1500,
        "warmup_steps": 100,
        "row_length": 128,
        "mask_probability": 0.15,
        "logging_steps": 25,
        "eval_steps": 100,
        "save_steps": 200,
    },
    "small": {
        "learning_rate": 5e-4,
        "per_device_train_batch_size": 128,
        "per_device_eval_batch_size": 128,
        "max_steps": 1_000_000,
        "warmup_steps": 10_000,
        "row_length": 128,
        "mask_probability": 0.15,
        **_PAPER_LOGGING,
    },
    # Code README.md, "ELECTRA-Small++": longer rows and training; the rest as Small.
    "small++": {
        "learning_rate": 5e-4,
        "per_device_train_batch_size": 128,
        "per_device_eval_batch_size": 128,
        "max_steps": 4_000_000,
        "warmup_steps": 10_000,
        "row_length": 512,
        "mask_probability": 0.15,
        **_PAPER_LOGGING,
    },
    "base": {
        "learning_rate": 2e-4,
        "per_device_train_batch_size": 256,
        "per_device_eval_batch_size": 256,
        "max_steps": 766_000,
        "warmup_steps": 10_000,
        "row_length": 512,
        "mask_probability": 0.15,
        **_PAPER_LOGGING,
    },
    "large": {
        "learning_rate": 2e-4,
        "per_device_train_batch_size": 2048,
        "per_device_eval_batch_size": 256,
        "max_steps": 400_000,
        "warmup_steps": 10_000,
        "row_length": 512,
        "mask_probability": 0.25,
        **_PAPER_LOGGING,
    },
}
assert RECIPES.keys() == SIZES.keys()


@dataclass
class RTDTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` with the paper's optimiser settings as defaults, and what masking needs.

    Args:
        row_length: tokens a row, L.
        mask_probability: share of the tokens that is masked.
        keep_probability: share of the masked tokens that stays visible.
        masking: how tokens to mask are drawn.
        bias_correction: of Adam; the original has none.
        exact_loss_normalization: divide both losses by the counts of a whole optimiser step, over accumulated batches
            and processes, instead of averaging the means of its batches; see `hf_electra_rtd.training.normalization`.
        checkpoint_fractions: shares of the run's steps, in (0, 1], at which both towers are exported into
            `output_dir/fractions/<percent>`; see `hf_electra_rtd.training.fractions`.

    What differs from the parent's defaults: AdamW with eps 1e-6, weight decay 0.01 and no bias correction (the
    optimisers `adamw_torch` and `adamw_torch_fused` mean [`ElectraAdamW`]; any other name is taken as `transformers`
    has it); decay times warm-up for `lr_scheduler_type="linear"` (other names as in `transformers`); bfloat16 where
    the GPU has it; evaluation and checkpoints by steps; no test for NaN at every step, which waits for the device
    ([`RTDTrainer`] stops at the next log instead).
    """

    row_length: int = field(default=128, metadata={"help": "Tokens a row."})
    mask_probability: float = field(default=0.15, metadata={"help": "Share of the tokens that is masked."})
    keep_probability: float = field(default=0.15, metadata={"help": "Share of the masked tokens that stays visible."})
    masking: str = field(default="token", metadata={"help": "How tokens to mask are drawn: token."})
    bias_correction: bool = field(
        default=False, metadata={"help": "Adam with bias correction; the original has none."}
    )
    exact_loss_normalization: bool = field(
        default=False, metadata={"help": "Divide losses by the counts of a whole step: for rows of different lengths."}
    )
    checkpoint_fractions: list[float] | None = field(
        default=None,
        metadata={"help": "Shares of the run at which both towers are exported: 0.0625 0.125 0.25 0.5 1.0."},
    )

    # Paper, Table 6; Code model/optimization.py.
    learning_rate: float = field(default=5e-4, metadata={"help": "The base learning rate."})
    warmup_steps: float = field(default=10_000, metadata={"help": "Steps of warm-up; below 1: a share of all steps."})
    weight_decay: float = field(
        default=0.01, metadata={"help": "Decoupled weight decay; not for biases and LayerNorm."}
    )
    adam_epsilon: float = field(default=1e-6, metadata={"help": "Epsilon of Adam, added to the square root."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "Global gradient norm to clip at."})

    eval_strategy: str = field(default="steps", metadata={"help": "When to evaluate: no, steps or epoch."})
    save_total_limit: int | None = field(default=3, metadata={"help": "Checkpoints to keep."})
    bf16: bool | None = field(  # type: ignore[assignment]  # None until `__post_init__`
        default=None, metadata={"help": "bfloat16 autocast. By default where a GPU supports it, and not on a CPU."}
    )
    dataloader_pin_memory: bool | None = field(  # type: ignore[assignment]  # None until `__post_init__`
        default=None, metadata={"help": "Batches in pinned memory. By default where there is a GPU."}
    )
    dataloader_num_workers: int = field(default=0, metadata={"help": "Processes that make batches."})
    # A block file has no columns to remove, and every parameter is used.
    remove_unused_columns: bool = field(default=False, metadata={"help": "Leave off: rows are not columns."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide losses that are not finite."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Leave off: all are used."})
    ddp_timeout: int = field(
        default=24 * 3600,
        metadata={"help": "Seconds that processes wait for each other; one of them prepares the text."},
    )

    def __post_init__(self) -> None:
        check_masking(self.mask_probability, self.keep_probability, self.masking)
        for fraction in self.checkpoint_fractions or ():
            if not 0 < fraction <= 1:
                raise ValueError(
                    f"checkpoint_fractions holds {fraction:g}: give shares of the run, above 0, at most 1."
                )
        check_hub_options(self)
        settle_by_device(self)
        super().__post_init__()

    @classmethod
    def from_size(cls, size: str, output_dir: str, **overrides: Any) -> RTDTrainingArguments:
        """The recipe of a named size.

        Args:
            size: as in `ElectraRTDConfig.from_size`.
            output_dir: where the run writes.
            **overrides: any training argument.

        Raises:
            ValueError: for an unknown size.
        """
        return cls(output_dir=output_dir, **{**get_recipe(size), **overrides})


def check_hub_options(args: TrainingArguments) -> None:
    """Makes sure that a run may publish as it is asked to.

    Raises:
        ValueError: for `hub_token`, for `push_to_hub` without the repositories' name or with a strategy that uploads
            checkpoints, and for `hub_revision`.
    """
    if args.hub_token is not None:
        raise ValueError(
            "hub_token would be written into the run's files: set HF_TOKEN, or log in with `hf auth login`."
        )
    if not args.push_to_hub:
        return
    if args.hub_model_id is None or args.hub_model_id.count("/") != 1:
        raise ValueError(
            "push_to_hub needs hub_model_id, the beginning of the repositories' names: ORG/NAME gives "
            "ORG/NAME-discriminator and ORG/NAME-generator, or ORG/NAME-mrpc for a fine-tuned model."
        )
    if HubStrategy(args.hub_strategy) not in (HubStrategy.END, HubStrategy.EVERY_SAVE):
        raise ValueError(
            f"hub_strategy {HubStrategy(args.hub_strategy).value!r} would upload the state of the optimiser: take "
            "'every_save', which publishes the towers at each checkpoint, or 'end'."
        )
    if args.hub_revision is not None:
        raise ValueError("hub_revision: towers go to `main`, and those at fractions of the run to branches `step-N`.")


def settle_by_device(args: TrainingArguments) -> None:
    """Fills in what None leaves to the device: `bf16` and `dataloader_pin_memory`."""
    if args.bf16 is None:
        args.bf16 = (
            not (args.use_cpu or args.fp16)
            and torch.cuda.is_available()
            and torch.cuda.is_bf16_supported(including_emulation=False)
        )
    if args.dataloader_pin_memory is None:
        args.dataloader_pin_memory = torch.accelerator.is_available() and not args.use_cpu


def get_recipe(size: str) -> dict[str, Any]:
    """The training arguments of a named size, as keyword arguments.

    Raises:
        ValueError: for an unknown size.
    """
    if size not in RECIPES:
        raise ValueError(f"There is no size {size!r}. Known are: {', '.join(RECIPES)}.")
    return dict(RECIPES[size])


def fraction_steps(fractions: list[float] | None, max_steps: int) -> dict[int, float]:
    """The steps after which towers are exported, in order, and the fraction that each stands for: the largest of those
    that come to the same step.

    Args:
        fractions: shares of the run, in any order, or None.
        max_steps: of the run.
    """
    # Without the rounding, 0.07 of 100 steps would be 7.000000000000001, and end up at 8.
    return {max(1, math.ceil(round(fraction * max_steps, 6))): fraction for fraction in sorted(fractions or ())}


def refuse_other_options(args: TrainingArguments, known: set[str], script: str = "examples/pretrain.py") -> None:
    """Refuses what a loop other than the Trainer's would not do.

    Args:
        args: of the run.
        known: names of the fields that the loop knows; the others must have their defaults.
        script: that has the Trainer.

    Raises:
        ValueError: names the flags.
    """
    given = {name: getattr(args, name) for name in known}
    defaults = type(args)(**given)
    unknown = [
        field.name
        for field in fields(args)
        if field.init and field.name not in known and getattr(args, field.name) != getattr(defaults, field.name)
    ]
    if unknown:
        raise ValueError(
            f"This loop does not know {', '.join(f'--{name}' for name in unknown)}: leave it out, or take the Trainer "
            f"({script})."
        )
