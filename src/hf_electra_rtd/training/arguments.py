"""The arguments of a pre-training run, with the defaults of the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy

from hf_electra_rtd.cli import flag
from hf_electra_rtd.data.collator import check_masking
from hf_electra_rtd.recipes import get_size


@dataclass
class RTDTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` with the defaults of the paper, and what masking needs.

    Defaults that differ from the parent's: AdamW with epsilon 1e-6, weight decay 0.01 and no bias correction (`optim`
    `adamw_torch` and `adamw_torch_fused` mean [`ElectraAdamW`]; other names are as in `transformers`); decay times
    warm-up for `lr_scheduler_type="linear"`; bfloat16 where the GPU supports it; evaluation and checkpoints by steps;
    no test for NaN at every step, which would wait for the device ([`RTDTrainer`] stops at the next log instead).
    """

    max_seq_length: int = flag(128, "Sequence length in tokens.")
    mask_probability: float = flag(0.15, "Share of the tokens that is masked.")
    keep_probability: float = flag(0.15, "Share of the masked tokens that stays visible instead of becoming [MASK].")
    bias_correction: bool = flag(False, "Adam with bias correction. The original has none.")
    exact_loss_normalization: bool = flag(
        False,
        "Divide both losses by the counts of a whole optimizer step, over accumulated batches and processes, instead "
        "of averaging the means of its batches: for sequences of different lengths.",
    )
    checkpoint_fractions: list[float] | None = flag(  # noqa: RUF009  # None can be shared
        None,
        "Shares of the run after which generator and discriminator are exported to OUTPUT_DIR/fractions/<percent>: "
        "0.0625 0.125 0.25 0.5 1.0.",
    )
    # Paper, Table 6; google-research/electra model/optimization.py.
    learning_rate: float = flag(5e-4, "The base learning rate.")
    warmup_steps: float = flag(10_000, "Steps of warm-up; below 1: a share of all steps.")
    weight_decay: float = flag(0.01, "Decoupled weight decay; not for biases and LayerNorm.")
    adam_epsilon: float = flag(1e-6, "Epsilon of Adam, added to the square root.")
    max_grad_norm: float = flag(1.0, "Global gradient norm to clip at.")

    eval_strategy: str = flag("steps", "When to evaluate: no or steps.")
    save_total_limit: int | None = flag(3, "Checkpoints to keep.")
    bf16: bool | None = flag(None, "bfloat16 autocast. By default where a GPU supports it, and not on a CPU.")  # type: ignore[assignment]
    dataloader_pin_memory: bool | None = flag(  # type: ignore[assignment]
        None, "Batches in pinned memory. By default where there is a GPU."
    )
    dataloader_num_workers: int = flag(0, "Processes that make batches.")
    remove_unused_columns: bool = flag(False, "Leave off: sequences are not columns.")
    logging_nan_inf_filter: bool = flag(False, "Hide losses that are not finite.")
    ddp_find_unused_parameters: bool | None = flag(False, "Leave off: all are used.")
    ddp_timeout: int = flag(24 * 3600, "Seconds that processes wait for each other; one of them prepares the text.")

    def __post_init__(self) -> None:
        check_masking(self.mask_probability, self.keep_probability)
        for fraction in self.checkpoint_fractions or ():
            if not 0 < fraction <= 1:
                raise ValueError(f"--checkpoint_fractions {fraction:g}: shares lie above 0 and are at most 1.")
        check_hub_options(self)
        settle_by_device(self)
        super().__post_init__()

    @classmethod
    def from_size(cls, size: str, output_dir: str, **overrides: Any) -> RTDTrainingArguments:
        """The recipe of a named size; `num_train_epochs` replaces its length.

        Raises:
            ValueError: for an unknown size.
        """
        recipe = dict(get_size(size).pretraining)
        if "num_train_epochs" in overrides:
            del recipe["max_steps"]
        return cls(output_dir=output_dir, **{**recipe, **overrides})


def check_hub_options(args: TrainingArguments) -> None:
    """Refuses options under which a run cannot publish, or would publish too much.

    Raises:
        ValueError: names the flag.
    """
    if args.hub_token is not None:
        raise ValueError(
            "--hub_token would be written into the run's files. Set HF_TOKEN, or log in with `hf auth login`."
        )
    strategy, repo_id = HubStrategy(args.hub_strategy), args.hub_model_id or ""
    for is_wrong, message in (
        (
            repo_id.count("/") != 1,
            "--push_to_hub needs --hub_model_id ORG/NAME. Repositories are ORG/NAME-discriminator and "
            "ORG/NAME-generator, or ORG/NAME-mrpc for a fine-tuned model.",
        ),
        (
            strategy not in (HubStrategy.END, HubStrategy.EVERY_SAVE),
            f"--hub_strategy {strategy.value} would upload the state of the optimizer. Choose every_save, which "
            "publishes the models at each checkpoint, or end.",
        ),
        (args.hub_revision, "Leave --hub_revision out: models go to `main`, exports at fractions to `step-N`."),
        (args.hub_always_push, "Leave --hub_always_push out: one save is published at a time."),
    ):
        if args.push_to_hub and is_wrong:
            raise ValueError(message)


def settle_by_device(args: TrainingArguments) -> None:
    """Sets `bf16` and `dataloader_pin_memory` by the device where they are None."""
    if args.bf16 is None:
        args.bf16 = (
            not (args.use_cpu or args.fp16)
            and torch.cuda.is_available()
            and torch.cuda.is_bf16_supported(including_emulation=False)
        )
    if args.dataloader_pin_memory is None:
        args.dataloader_pin_memory = torch.accelerator.is_available() and not args.use_cpu


def fraction_steps(fractions: list[float] | None, max_steps: int) -> dict[int, float]:
    """The steps after which a run exports its models, in order, with the fraction that each stands for: the largest of
    those that come to the same step."""
    # Without the rounding, 0.07 of 100 steps would be 7.000000000000001, and end up at 8.
    return {max(1, math.ceil(round(fraction * max_steps, 6))): fraction for fraction in sorted(fractions or ())}
