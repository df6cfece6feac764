"""`transformers.Trainer` for a task: its loss, scores, optimiser and batches of rows of similar length."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler, SequentialSampler
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerState
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.data import EncodedSplit
from hf_electra_rtd.finetuning.job import Job, Trained
from hf_electra_rtd.finetuning.judging import Features, answer_split
from hf_electra_rtd.finetuning.kinds.base import Encoded, Kind, Prediction
from hf_electra_rtd.finetuning.layer_decay import get_layer_groups
from hf_electra_rtd.training.optimization import ElectraAdamW, get_electra_schedule


_STOCK_OPTIMIZERS = (OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED)


def make_optimizer(groups: list[dict[str, Any]], args: FineTuningArguments) -> ElectraAdamW:
    """The original's optimiser.

    Args:
        groups: of parameters, each with its learning rate.
        args: of the run.
    """
    assert args.learning_rate is not None, "the recipe of the size fills it in"
    return ElectraAdamW(
        groups,
        lr=args.learning_rate,
        betas=(args.adam_beta1, args.adam_beta2),
        eps=args.adam_epsilon,
        bias_correction=args.bias_correction,
    )


class LossOnTheBar(ProgressCallback):
    """A progress bar that shows the loss, and no line for every entry of the log."""

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.training_bar is not None and "loss" in (logs or {}):
            self.training_bar.set_postfix(loss=f"{logs['loss']:.4f}")


class FineTuner(Trainer):
    """Fine-tunes a model on a task.

    The loss of an optimiser step is the mean over all its labels, whatever batches and processes they fall into. (The
    stock heads take the mean of each batch, which the Trainer then adds up over accumulated batches and processes.)

    Args:
        model: an encoder with the head of the kind.
        args: with learning rate and epochs filled in.
        kind: of the task.
        layer_decay: factor of the learning rate from a layer to the one below; 1 for none.
        layer_decay_off_by_one: decay the top layer twice, as the original's code does.
        train: what is learnt; None to judge alone.
        dev: what is judged during training, by name; the first decides where the best model is asked for.

    Raises:
        ValueError: if one process is to drive several GPUs, or an optimiser other than AdamW is to have a rate a
            layer.
    """

    args: FineTuningArguments
    # `compute_loss` divides by the labels of the whole step.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any,
        args: FineTuningArguments,
        kind: Kind,
        layer_decay: float,
        layer_decay_off_by_one: bool = False,
        train: Encoded | None = None,
        dev: Mapping[str, EncodedSplit] | None = None,
    ) -> None:
        if args.n_gpu > 1:
            raise ValueError(
                f"One process drives {args.n_gpu} GPUs: launch one process a GPU (`accelerate launch --num_processes "
                f"{args.n_gpu}`), or show it a single one (CUDA_VISIBLE_DEVICES=0)."
            )
        if layer_decay != 1 and args.optim not in _STOCK_OPTIMIZERS:
            raise ValueError(f"--optim {args.optim} has one learning rate for all layers: add --layer_decay 1.")
        args.label_names = ["labels"]
        self.kind, self.dev = kind, dict(dev or {})
        self.layer_decay, self.layer_decay_off_by_one = layer_decay, layer_decay_off_by_one
        self.seconds_judging = 0.0
        first = next(iter(self.dev.values()), None)
        super().__init__(
            model=model,
            args=args,
            train_dataset=None if train is None else Features(train.features),
            eval_dataset=None if first is None else Features(first.encoded.features),
            data_collator=kind.collate,
            processing_class=kind.tokenizer,
        )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError("Fine-tuning writes whole models: launch a process a GPU (DDP), no FSDP or DeepSpeed.")
        self.model_accepts_loss_kwargs = True  # have the labels of a step counted
        self.pop_callback(PrinterCallback)  # dicts between the lines of the log
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(LossOnTheBar)

    # ---- Batches ----

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(dataset)
        generator = torch.Generator().manual_seed(
            self.args.seed if self.args.data_seed is None else self.args.data_seed
        )
        group = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return LengthGroupedSampler(group, lengths=dataset.lengths(), generator=generator)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler:
        return SequentialSampler(eval_dataset)  # predictions go back to their examples by place

    # ---- Optimisation ----

    def create_optimizer(self, model: Any = None) -> Optimizer:
        args = self.args
        if self.optimizer is None and args.optim in _STOCK_OPTIMIZERS:
            assert args.learning_rate is not None, "the recipe of the size fills it in"
            trained: Any = self.model if model is None else model
            groups = get_layer_groups(
                trained,
                args.learning_rate,
                self.layer_decay,
                args.weight_decay,
                off_by_one=self.layer_decay_off_by_one,
            )
            self.optimizer = make_optimizer(groups, args)
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
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        outputs = model(**self.kind.inputs(inputs, training=model.training))
        losses = self.kind.loss(outputs, inputs)
        if model.training and num_items_in_batch is not None:
            # Processes average their gradients; each must hold its share of the sum.
            processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            loss = losses.total * processes / num_items_in_batch
        else:
            loss = losses.mean()
        return (loss, outputs) if return_outputs else loss

    # ---- Judging ----

    def answer(self, split: EncodedSplit) -> tuple[list[Prediction], dict[str, float]]:
        """Predictions for the examples of a split, and the scores of the labelled ones (none: empty)."""
        return answer_split(self.kind, split, lambda features: self.predict(features).predictions)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The scores on the first dev split, under `eval_<metric>`."""
        began = time.perf_counter()
        _, scores = self.answer(next(iter(self.dev.values())))
        metrics = {f"{metric_key_prefix}_{name}": score for name, score in scores.items()}
        self.seconds_judging += time.perf_counter() - began
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        # A pickle that nothing reads: the record has the arguments.
        (Path(str(output_dir or self.args.output_dir)) / "training_args.bin").unlink(missing_ok=True)


def train_with_trainer(job: Job, args: FineTuningArguments, model: Any) -> Trained:
    """The loop of a run: `FineTuner`.

    Args:
        job: the task.
        args: of this run.
        model: as it begins.
    """
    trainer = FineTuner(
        model,
        args,
        job.kind,
        layer_decay=job.settings.layer_decay,
        layer_decay_off_by_one=job.settings.layer_decay_off_by_one,
        train=None if job.data.train is None else job.data.train.encoded,
        dev=job.data.dev,
    )
    seconds = 0.0
    if job.data.train is not None:
        seconds = trainer.train().metrics["train_runtime"] - trainer.seconds_judging
    return Trained(
        steps=trainer.state.global_step,
        epochs=float(trainer.state.epoch or 0.0),
        seconds=seconds,
        log=trainer.state.log_history,
        answer=trainer.answer,
    )
