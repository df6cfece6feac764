"""The arguments of a pre-training run, with the defaults of the paper."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments
from transformers.integrations import integration_utils
from transformers.training_args import OptimizerNames
from transformers.utils import is_in_notebook

from hf_electra_rtd.base.cli import Rule, check_arguments, flag
from hf_electra_rtd.base.files import known_names
from hf_electra_rtd.base.recipes import get_size, of_length
from hf_electra_rtd.data.collator import MASKING
from hf_electra_rtd.encoders.families import check_document_attention
from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig


logger = logging.getLogger(__name__)

# For `check_arguments`: fields of `transformers.TrainingArguments`, whose declarations have no intervals.
TRAINER_INTERVALS = {
    "num_train_epochs": "(0, 1e9]",
    "max_steps": "[1, 1e12]",
    "per_device_train_batch_size": "[1, inf)",
    "per_device_eval_batch_size": "[1, inf)",
    "gradient_accumulation_steps": "[1, inf)",
    "learning_rate": "[0, inf)",
    "weight_decay": "[0, inf)",
    "warmup_steps": "[0, inf)",
    "max_grad_norm": "[0, inf)",
    "adam_beta1": "[0, 1)",
    "adam_beta2": "[0, 1)",
    "adam_epsilon": "(0, inf)",
    "neftune_noise_alpha": "[0, inf)",
    "label_smoothing_factor": "[0, 1)",
    "logging_steps": "(0, inf)",
    "eval_steps": "(0, inf)",
    "save_steps": "(0, inf)",
    "save_total_limit": "[1, inf)",
    "dataloader_num_workers": "[0, inf)",
    "ddp_timeout": "(0, inf)",
    "seed": "[0, 4294967295]",  # what NumPy takes
    "data_seed": "[0, 4294967295]",
}
# glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1
_LARGEST = 2**30  # bytes
MUON = "muon"
# Names that mean `ElectraAdamW` and `ElectraMuon`.
OWN_OPTIMIZERS = (OptimizerNames.ADAMW_TORCH.value, OptimizerNames.ADAMW_TORCH_FUSED.value, MUON)
# Hidden size up to which held-out curves of `rtd` were the same in both precisions (docs/background/performance.md).
_COMPARED = 256


@dataclass
class RTDTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` with the defaults of the paper, and what masking needs.

    For `optim`, `adamw_torch` and `adamw_torch_fused` mean [`ElectraAdamW`], and `muon` means [`ElectraMuon`].
    `lr_scheduler_type="linear"` means decay times warm-up. bfloat16 is the default on a GPU that supports it (for
    CPUs, see [`settle_precision`]).
    """

    output_dir: str | None = flag("runs/pretrain", "Directory of the run: its networks, record and checkpoints.")
    max_seq_length: int = flag(128, "Sequence length in tokens.", "[3, inf)")  # [CLS], a token, [SEP]
    mask_probability: float = flag(0.15, "Share of the tokens to mask.", "(0, 1)")
    masking: str = flag("token", "What is masked as a whole: token or word.", choices=MASKING)
    document_attention: bool = flag(False, "With --packing full: tokens attend only to their own document.")
    keep_probability: float = flag(
        0.15, "Share of the masked tokens that stay visible instead of becoming [MASK].", "[0, 1]"
    )
    bias_correction: bool = flag(False, "Use Adam's bias correction. The original does not.")
    checkpoint_fractions: list[float] | None = flag(
        None,
        "Export both networks to OUTPUT_DIR/fractions after these shares of the run: 0.0625 0.125 0.5 1.",
        "(0, 1]",
    )
    # Paper, Table 6; google-research/electra model/optimization.py.
    learning_rate: float = flag(5e-4, "Peak learning rate.")
    generator_learning_rate: float | None = flag(
        None, "Peak learning rate of the weights that only the generator has.", "[0, inf)"
    )
    warmup_steps: float = flag(10_000, "Steps of warm-up; below 1: a share of all steps.")
    weight_decay: float = flag(0.01, "Decoupled weight decay; none for biases and LayerNorm.")
    adam_epsilon: float = flag(1e-6, "Epsilon of Adam, added to the square root.")
    max_grad_norm: float = flag(1.0, "Norm at which the gradient of both networks is clipped; 0: no clipping.")
    optim: str = flag(
        OptimizerNames.ADAMW_TORCH_FUSED.value,
        "The optimizer: the original's (adamw_torch, adamw_torch_fused), muon, or any other in transformers.",
        choices=(*(name.value for name in OptimizerNames), MUON),
    )

    eval_strategy: str = flag("steps", "When to evaluate: no or steps.")
    logging_strategy: str = flag("steps", "When to log: no or steps.")
    save_strategy: str = flag("steps", "When to write checkpoints: no or steps.")
    hub_strategy: str = flag("end", "When to publish: at the end.")
    save_total_limit: int | None = flag(3, "Checkpoints to keep; a large number keeps all.")
    bf16: bool | None = flag(None, "Use bfloat16 autocast. Default: on where it is known to be faster.")  # type: ignore[assignment]
    dataloader_pin_memory: bool | None = flag(None, "Use pinned memory. Default: on with a GPU.")  # type: ignore[assignment]
    dataloader_num_workers: int = flag(0, "Number of processes that make batches.")
    remove_unused_columns: bool = flag(False, "Leave it off: sequences are not columns.")
    logging_nan_inf_filter: bool = flag(False, "Hide losses that are not finite.")
    ddp_find_unused_parameters: bool | None = flag(False, "Leave it off: all parameters are used.")
    ddp_timeout: int = flag(
        24 * 3600, "Seconds that processes wait for each other, for example while one prepares the text."
    )

    def __post_init__(self) -> None:
        check_arguments(self, rules=TRAINER_RULES, intervals=TRAINER_INTERVALS, dashes="")
        check_hub_options(self)
        self.chooses_precision = self.bf16 is None
        settle_by_device(self)
        is_muon = self.optim == MUON
        if is_muon:  # transformers does not know this name
            self.optim = OptimizerNames.ADAMW_TORCH.value
        super().__post_init__()
        if is_muon:
            self.optim = MUON
        check_reports(self)
        loading: Any = self.accelerator_config
        if loading.split_batches:
            raise ValueError("accelerator_config: split_batches would make batches smaller than their flags say.")

    @property
    def sequences_per_step(self) -> int:
        """Sequences of one optimizer step, over accumulated batches and all processes."""
        return int(self.train_batch_size * self.gradient_accumulation_steps * self.world_size)

    @property
    def stream_seed(self) -> int:
        """The seed of the order of the sequences, of masks and of samples."""
        return self.seed if self.data_seed is None else self.data_seed

    @classmethod
    def from_size(cls, size: str, output_dir: str, **overrides: Any) -> RTDTrainingArguments:
        """Returns the recipe of a named size for the length that `overrides` give (see [`recipes.of_length`]);
        `overrides` win over the recipe. Raises ValueError for an unknown size."""
        recipe = of_length(get_size(size).pretraining, overrides.get("max_steps"), overrides.get("num_train_epochs"))
        return cls(output_dir=output_dir, **{**recipe, **overrides})


_ONE_STREAM = "A run reads its sequences as one stream, and no step is the best."
_NOT_HERE = (
    "average_tokens_across_devices",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "prediction_loss_only",
    "bf16_full_eval",
    "fp16_full_eval",
    "dataloader_drop_last",
    "batch_eval_metrics",
    "eval_do_concat_batches",
    "metric_for_best_model",
    "auto_find_batch_size",
    "ignore_data_skip",
    "dataloader_persistent_workers",
    "use_liger_kernel",
    "enable_jit_checkpoint",
)
# Also for fine-tuning.
OPTIMIZER_RULES = (
    Rule(
        "optim_args",
        "This optimizer takes no arguments.",
        excludes=tuple(f"optim={name}" for name in OWN_OPTIMIZERS),
        changes_nothing=True,
    ),
    Rule(
        "lr_scheduler_kwargs",
        "This schedule takes no arguments.",
        excludes=("lr_scheduler_type=linear",),
        changes_nothing=True,
    ),
)
TRAINER_RULES = (
    *OPTIMIZER_RULES,
    *(
        Rule(f"{name}_strategy={strategy}", _ONE_STREAM)
        for name in ("save", "eval", "logging")
        for strategy in ("epoch", "best")
    ),
    Rule("load_best_model_at_end", "Losses rise as the generator learns, so no step is the best."),
    Rule("train_sampling_strategy=group_by_length", "Sequences are filled to one length."),
    Rule("deepspeed", "Use FSDP: examples/accelerate_configs/fsdp2.yaml."),
    Rule("save_only_model", "No run could continue from its checkpoints. checkpoint_fractions exports models alone."),
    Rule("save_on_each_node", "A checkpoint is written once, for all nodes."),
    *(Rule(name, "Losses, metrics, stream or checkpoints of a pre-training rule it out.") for name in _NOT_HERE),
    Rule(
        "generator_learning_rate",
        "Other optimizers have one learning rate.",
        needs=tuple(f"optim={name}" for name in OWN_OPTIMIZERS),
        changes_nothing=True,
    ),
)
# For runs in which only the discriminator learns.
ALONE_RULES = (Rule("generator_learning_rate", "Nothing learns but the discriminator.", changes_nothing=True),)
# For every run that may be published.
HUB_RULES = (
    Rule("hub_token", "It would be written into the run's files. Set HF_TOKEN, or use `hf auth login`."),
    Rule("push_to_hub", "Its repositories' names begin with it.", needs=("hub_model_id",)),
    *(
        Rule(name, "A run is published once, at its end, on `main`.")
        for name in ("hub_strategy", "hub_revision", "hub_always_push")
    ),
)


def check_hub_options(args: TrainingArguments) -> None:
    """Raises ValueError for options under which a run cannot publish, or would publish too much."""
    check_arguments(args, rules=HUB_RULES)
    if args.push_to_hub and (args.hub_model_id or "").count("/") != 1:
        raise ValueError("hub_model_id must be ORG/NAME, the start of the repositories' names.")


def check_reports(args: TrainingArguments) -> None:
    """Raises ValueError for a tracker of `report_to` that is unknown or not installed."""
    for name in args.report_to or ():
        if name not in integration_utils.INTEGRATION_TO_CALLBACK:
            known = known_names(name, integration_utils.INTEGRATION_TO_CALLBACK, "trackers")
            raise ValueError(f"report_to: there is no {name!r}. {known}")
        is_installed = getattr(integration_utils, f"is_{name.removesuffix('_ml')}_available", lambda: True)
        if not is_installed():
            raise ValueError(f"report_to={name!r} needs its package: pip install {name}")


def check_publishing(args: TrainingArguments, *facts: Any) -> None:
    """Warns of publication flags (the fields of the dataclasses `facts`) that are given for a run that is not
    published."""
    names = [entry.name for group in facts for entry in fields(group)]
    rules = [Rule(name, "Give it to `publish`.", needs=("push_to_hub",), changes_nothing=True) for name in names]
    check_arguments(args, *facts, rules=rules)


def settle_by_device(args: Any) -> None:
    """Fills in arguments that are None, according to the device and the screen: `bf16`, `dataloader_pin_memory`,
    `accelerator_config` (non-blocking copies to a GPU) and `disable_tqdm`. Sets `use_cpu` if there is no
    accelerator."""
    if args.bf16 is None:
        may = not (args.use_cpu or args.fp16) and torch.cuda.is_available()
        args.bf16 = may and torch.cuda.is_bf16_supported(including_emulation=False)
    if not torch.accelerator.is_available():
        args.use_cpu = True  # otherwise bfloat16 is refused, and processes do not find each other
    if args.disable_tqdm is None:
        args.disable_tqdm = not (sys.stderr.isatty() or is_in_notebook())
    if args.dataloader_pin_memory is None:
        args.dataloader_pin_memory = torch.accelerator.is_available() and not args.use_cpu
    if args.accelerator_config is None and args.dataloader_pin_memory:
        args.accelerator_config = {"non_blocking": True}


def settle_precision(args: RTDTrainingArguments, hidden_size: int, before: Mapping[str, Any] | None = None) -> None:
    """On a CPU, lets glibc keep freed memory, and decides whether matrix products are in bfloat16 if the arguments
    leave it open. A new run uses bfloat16 if that is faster and `hidden_size` is in the range where both precisions
    were compared. A resumed run keeps the precision of its checkpoint, whose run `before` describes. Every process
    must call it before its Trainer is made; the main process decides for all."""
    if args.device.type != "cpu":
        return
    keep_freed_memory()
    found = [_is_rounded(args, hidden_size, before) if args.process_index == 0 else None]
    broadcast_object_list(found)
    args.bf16 = found[0]
    if args.bf16:
        args.mixed_precision = "bf16"


def _is_rounded(args: RTDTrainingArguments, hidden_size: int, before: Mapping[str, Any] | None) -> bool:
    """Returns whether a run on a CPU multiplies in bfloat16."""
    if not args.chooses_precision or args.mixed_precision != "no":
        return bool(args.bf16)
    if before is not None:
        return bool(before["mixed_precision"] == "bf16")
    if not is_fast_in_bfloat16():
        return False
    if hidden_size > _COMPARED:
        logger.info("Matrix products in bfloat16 would be faster on this CPU: --bf16 True.")
        return False
    logger.info("Matrix products are in bfloat16, which is faster on this CPU. For float32: --bf16 False.")
    return True


def is_fast_in_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16. Without them, products are slower than in float32."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_tile"))


def keep_freed_memory() -> None:
    """Lets glibc keep the memory of freed CPU tensors for later ones. By default it gives large blocks back to the
    system, which hands them out again page by page; this takes up to a tenth of a step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)


def settle_masking(config: ElectraRTDConfig, args: RTDTrainingArguments, tokenizer: Any = None) -> None:
    """Writes the mask and keep probability of a run, and the special tokens of its tokenizer, into the configuration
    of its pair. Raises ValueError for a pair that cannot learn with these arguments, and if a necessary tokenizer is
    missing."""
    if config.traits.needs_noise and config.mask_probability != args.mask_probability:
        raise ValueError(
            f"The pair was made with mask_probability={config.mask_probability:g}, but the run masks "
            f"{args.mask_probability:g}: its loss needs the same in both."
        )
    config.mask_probability = args.mask_probability
    config.keep_probability = args.keep_probability
    if tokenizer is None and config.num_generator_encoders == 2:
        raise ValueError(f"generator={config.generator!r} leaves special tokens out: pass processing_class.")
    config.check()
    if tokenizer is not None:
        config.take_special_tokens(tokenizer)
    if args.document_attention:
        if config.num_generator_encoders == 2:
            raise ValueError(
                f"document_attention does not go with the two encoders of generator={config.generator!r}: "
                "take masked_lm."
            )
        for tower in config.towers.values():
            check_document_attention(tower)
