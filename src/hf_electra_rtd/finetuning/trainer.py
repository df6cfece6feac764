"""`transformers.Trainer` for a task: its loss, scores, optimizer and batches of examples of similar length."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.data import Split, predict
from hf_electra_rtd.finetuning.kinds.base import Kind, Prediction
from hf_electra_rtd.finetuning.optimization import layerwise_groups
from hf_electra_rtd.training.optimization import ElectraAdamW, get_electra_schedule


_ONE_GPU_EACH = "Launch one process for each GPU: `accelerate launch --multi_gpu`."
LAYERWISE_OPTIMIZERS = (OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED)


class FineTuner(Trainer):
    """Fine-tunes a model on a task.

    The loss of an optimizer step is the mean over all its labels, whatever batches and processes they fall into. (The
    stock heads take the mean of each batch, which the Trainer then averages over accumulated batches and processes.)

    `layerwise_lr_decay` and `off_by_one` are those of `layerwise_groups`; `dev` chooses the best model.

    Raises:
        ValueError: if one process is to drive several GPUs, or weights are to be sharded.
    """

    args: FineTuningArguments
    loss_is_scaled_for_ga = True  # `compute_loss` divides by the labels of the whole step

    def __init__(
        self,
        model: Any,
        args: FineTuningArguments,
        kind: Kind,
        layerwise_lr_decay: float = 1.0,
        off_by_one: bool = False,
        train: Split | None = None,
        dev: Split | None = None,
    ) -> None:
        if args.n_gpu > 1:
            raise ValueError(f"One process drives {args.n_gpu} GPUs. {_ONE_GPU_EACH}")
        args.label_names = ["labels"]
        self.kind, self.dev = kind, dev
        self.layerwise_lr_decay, self.off_by_one = layerwise_lr_decay, off_by_one
        self.evaluation_seconds = 0.0
        super().__init__(
            model=model,
            args=args,
            train_dataset=None if train is None else train.features,
            eval_dataset=None if dev is None else dev.features,
            data_collator=kind.collate,
            processing_class=kind.tokenizer,
        )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError(f"Fine-tuning cannot shard weights. {_ONE_GPU_EACH}")
        self.model_accepts_loss_kwargs = True  # have the labels of a step counted

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(dataset)
        group = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        generator = torch.Generator().manual_seed(self.args.seed)
        return LengthGroupedSampler(group, lengths=list(dataset["length"]), generator=generator)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler:
        return SequentialSampler(eval_dataset)  # predictions go back to their examples by place

    def create_optimizer(self, model: Any = None) -> Optimizer:
        args = self.args
        if self.optimizer is None and args.optim in LAYERWISE_OPTIMIZERS:
            assert args.learning_rate is not None
            trained: Any = self.model if model is None else model
            rates = (args.learning_rate, self.layerwise_lr_decay)
            self.optimizer = ElectraAdamW(
                layerwise_groups(trained, *rates, args.weight_decay, self.off_by_one),
                lr=args.learning_rate,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                bias_correction=args.bias_correction,
            )
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        optimizer = self.optimizer if optimizer is None else optimizer
        if self.lr_scheduler is None and self.args.lr_scheduler_type == SchedulerType.LINEAR:
            assert optimizer is not None
            warmup = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = get_electra_schedule(optimizer, warmup, num_training_steps)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"})
        losses = self.kind.loss(outputs, inputs)
        if model.training and num_items_in_batch is not None:
            # Processes average their gradients; each must hold its share of the sum.
            processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            loss = losses.total * processes / num_items_in_batch
        else:
            loss = losses.mean()
        return (loss, outputs) if return_outputs else loss

    def answer(self, split: Split) -> tuple[list[Prediction], dict[str, float]]:
        """Predictions for the examples of a split, and the scores of the labeled ones (none: empty)."""
        predictions = predict(self.kind, split, lambda features: self.predict(features).predictions)
        return predictions, self.kind.score(predictions, split.examples)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The scores on `dev`, or on the `Split` in its place, under `eval_<metric>`."""
        began = time.perf_counter()
        split = self.dev if eval_dataset is None else eval_dataset
        assert split is not None
        metrics = {f"{metric_key_prefix}_{name}": score for name, score in self.answer(split)[1].items()}
        self.evaluation_seconds += time.perf_counter() - began
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics
