"""`transformers.Trainer` for the pair: the original's optimiser, meters, held-out metrics, and a stream that
resumes."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, Trainer
from transformers.trainer_utils import EvalLoopOutput, SchedulerType
from transformers.training_args import OptimizerNames

from hf_electra_rtd.accounting import model_flops
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.stream import HELD_OUT_POSITION, RowStream
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.evaluation import held_out_metrics, held_out_tensors
from hf_electra_rtd.training.meters import Stopwatch, TrainingMeters, has_collapsed
from hf_electra_rtd.training.optimization import ElectraAdamW, get_electra_schedule, get_parameter_groups
from hf_electra_rtd.training.progress import RTDPrinterCallback, RTDProgressCallback


STREAM_FILE = "stream.json"

logger = logging.getLogger(__name__)


class DivergedError(FloatingPointError):
    """The loss or a weight is no longer a finite number."""


class RTDTrainer(Trainer):
    """Trains an [`ElectraForRTDPretraining`].

    Args:
        model: the pair.
        args: [`RTDTrainingArguments`]. `max_steps` counts, or else `num_train_epochs` of the rows.
        train_dataset: rows: a [`BlockFile`], or any dataset of dicts with `input_ids` (and `token_type_ids`); or a
            [`RowStream`] of exactly the run's length.
        eval_dataset: held-out rows, likewise. Without them there is no evaluation.
        processing_class: the tokenizer.
        data_collator: by default a seeded [`DataCollatorForRTD`] with the masking of `args`. With another one, the
            datasets are left as they are.
        **kwargs: the Trainer's.

    Raises:
        ValueError: if the rows do not fill one optimiser step.
        DivergedError: by `train`, when the loss or a weight is no longer finite; checkpoints stay as they were.
    """

    model: ElectraForRTDPretraining
    args: RTDTrainingArguments

    def __init__(
        self,
        model: ElectraForRTDPretraining,
        args: RTDTrainingArguments,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        data_collator: Any = None,
        **kwargs: Any,
    ) -> None:
        if args.n_gpu > 1:
            raise ValueError(
                f"One process drives {args.n_gpu} GPUs: launch one process a GPU (`accelerate launch --num_processes "
                f"{args.n_gpu}`), or show it a single one (CUDA_VISIBLE_DEVICES=0)."
            )
        seed = args.seed if args.data_seed is None else args.data_seed
        if data_collator is None:
            if processing_class is None:
                raise ValueError("RTDTrainer needs the tokenizer (processing_class), or a data_collator of its own.")
            data_collator = DataCollatorForRTD(
                processing_class, args.mask_probability, args.keep_probability, args.masking, seed, args.row_length
            )
        self.passes_over_rows: float | None = None
        if isinstance(data_collator, DataCollatorForRTD) and data_collator.seed is not None:
            train_dataset = self._stream(train_dataset, args, seed)
            if eval_dataset is not None and not isinstance(eval_dataset, RowStream):
                eval_dataset = RowStream(eval_dataset, shuffle=False, first_position=HELD_OUT_POSITION)
        if eval_dataset is None and args.eval_strategy != "no":
            logger.warning("There are no held-out rows: the run will not be evaluated.")
            args.eval_strategy = "no"
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            data_collator=data_collator,
            **kwargs,
        )
        # A user's own `compute_metrics` gets what a plain Trainer would give it: (logits, replaced_labels).
        self._own_metrics = self.compute_metrics is None
        if self._own_metrics:
            self.compute_metrics = held_out_metrics
        for theirs, ours in ((ProgressCallback, RTDProgressCallback), (PrinterCallback, RTDPrinterCallback)):
            if self.pop_callback(theirs) is not None:
                self.add_callback(ours)
        self.meters = TrainingMeters()
        self.stopwatch = Stopwatch()
        self._seconds_logged = 0.0
        self._seconds_before: float | None = None
        self._collapsed = False

    def _stream(self, rows: Any, args: RTDTrainingArguments, seed: int) -> RowStream | None:
        for strategy in ("eval_strategy", "save_strategy", "logging_strategy"):
            if getattr(args, strategy) == "epoch":
                raise ValueError(
                    f"{strategy}='epoch' has no meaning for a run that is one stream of rows: take 'steps'."
                )
        if rows is None:
            return None
        global_batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        if isinstance(rows, RowStream):
            if len(rows) != args.max_steps * global_batch:
                raise ValueError(
                    f"The stream has {len(rows)} rows, but {args.max_steps} steps of {global_batch} rows need "
                    f"{args.max_steps * global_batch}: give the rows themselves, and the stream is made to fit."
                )
            self.passes_over_rows = len(rows) / len(rows.rows)
            return rows
        if args.max_steps <= 0:
            args.max_steps = math.floor(args.num_train_epochs * len(rows) / global_batch)
            if args.max_steps < 1:
                raise ValueError(
                    f"{args.num_train_epochs:g} epochs of {len(rows)} rows do not fill one step of {global_batch} "
                    "rows: give more text, a smaller batch, more epochs, or --max_steps."
                )
        # The whole run is one stream, so the Trainer's own epoch is the run, and never starts the sampler anew.
        self.passes_over_rows = args.max_steps * global_batch / len(rows)
        return RowStream(rows, args.max_steps * global_batch, seed)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        # A stream is shuffled already, and must be read in order to be resumed.
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return SequentialSampler(dataset) if isinstance(dataset, RowStream) else super()._get_train_sampler(dataset)

    # ---- Optimisation ----

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        args = self.args
        stock = {OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED}
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None and args.optim in stock:
            self.optimizer = ElectraAdamW(
                get_parameter_groups(self.model if model is None else model, args.weight_decay),
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
            num_warmup_steps = self.args.get_warmup_steps(num_training_steps)
            if num_warmup_steps >= num_training_steps:
                logger.warning(
                    f"The warm-up takes {num_warmup_steps:,} steps, the whole run only {num_training_steps:,}: the "
                    "learning rate never gets near its base. Lower warmup_steps (below 1, it is a share of the run)."
                )
            self.lr_scheduler = get_electra_schedule(optimizer, num_warmup_steps, num_training_steps)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(resume_from_checkpoint, str):
            self._refuse_another_stream(Path(resume_from_checkpoint) / STREAM_FILE)
        self.stopwatch = Stopwatch()
        self._seconds_logged, self._seconds_before = 0.0, None
        self.stopwatch.start()
        result = super().train(resume_from_checkpoint, *args, **kwargs)
        self._count_sessions_before()
        self.stopwatch.stop()
        self._stop_where_a_weight_diverged()
        return result

    @property
    def train_seconds(self) -> float:
        """Time in training steps, evaluation and saving left out; with the sessions before, as far as they were
        logged."""
        return (self._seconds_before or 0.0) + self.stopwatch.seconds

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        loss, output = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if model.training:
            self.meters.update(output, inputs)
        return (loss, output) if return_outputs else loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        rows, row_length = inputs["input_ids"].shape
        # For labels at their positions (B, L), what is masked is not known without waiting: take the expectation.
        num_masked = (
            inputs["masked_positions"].shape[1]
            if "masked_positions" in inputs
            else round(self.args.mask_probability * row_length)
        )
        config = self.model.config
        return model_flops(config.generator_config, config.discriminator_config, rows, row_length, num_masked)

    # ---- Evaluation ----

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self._stop_where_a_weight_diverged()
        with self.stopwatch.paused():
            metrics = super().evaluate(*args, **kwargs)
        if self.is_in_train and "eval_discriminator_auc" in metrics:
            self._watch_for_collapse(metrics["eval_discriminator_recall"], metrics["eval_discriminator_auc"])
        return metrics

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Tensor | None]:
        if prediction_loss_only or not self._own_metrics:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            output = model(**inputs, output_generator_logits=True)
        return output.loss, tuple(held_out_tensors(output, inputs)), inputs["labels"]

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        metrics, config = output.metrics, self.model.config
        if self._own_metrics and metrics is not None and f"{metric_key_prefix}_generator_loss" in metrics:
            # The parent's is a mean of batch means, which depends on how rows fall into batches and ranks.
            metrics[f"{metric_key_prefix}_loss"] = (
                config.generator_weight * metrics[f"{metric_key_prefix}_generator_loss"]
                + config.discriminator_weight * metrics[f"{metric_key_prefix}_discriminator_loss"]
            )
        return output

    # ---- Logging ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.is_in_train:
            self._add_meters(logs)
        if self.passes_over_rows is not None and self.state.max_steps > 0:
            # The Trainer's epoch is the whole stream; what people mean is passes over the rows.
            self.state.epoch = self.state.global_step / self.state.max_steps * self.passes_over_rows
        super().log(logs, start_time)

    def _add_meters(self, logs: dict[str, float]) -> None:
        meters = self.meters.drain(lambda sums: self.accelerator.reduce(sums, reduction="sum"))
        self._count_sessions_before()
        seconds = self.stopwatch.seconds
        passed, self._seconds_logged = seconds - self._seconds_logged, seconds
        if not math.isfinite(logs["loss"]):
            self._stop("the loss is no longer finite")
        if meters:
            meters["tokens_per_second"] = meters.pop("tokens") / max(passed, 1e-9)
            logs |= meters
            logs["train_seconds"] = self.train_seconds
            self._watch_for_collapse(meters["discriminator_recall"], meters["discriminator_auc"])

    def _count_sessions_before(self) -> None:
        """A resumed run's log tells what the sessions before took; read before this session logs."""
        if self._seconds_before is None:
            self._seconds_before = max(
                (entry.get("train_seconds", 0.0) for entry in self.state.log_history), default=0.0
            )

    def _watch_for_collapse(self, recall: float, auc: float) -> None:
        # At the beginning every discriminator says "original" to everything.
        warmup = self.args.get_warmup_steps(self.state.max_steps)
        collapsed = has_collapsed(recall, auc) and self.state.global_step > max(warmup, self.state.max_steps // 10)
        if collapsed and not self._collapsed:
            logger.warning(
                f"Step {self.state.global_step:,}: the discriminator has collapsed to the majority class (it finds "
                f"{recall:.1%} of the replaced tokens, area under the ROC curve {auc:.2f}). The generator may be too "
                "strong or the learning rate too high: try a smaller generator (generator_hidden_size), a lower "
                "learning rate, or a longer warm-up."
            )
        self._collapsed = collapsed

    # ---- Checkpoints ----

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._stop_where_a_weight_diverged()
        with self.stopwatch.paused():
            super()._save_checkpoint(model, trial)

    def _stop_where_a_weight_diverged(self) -> None:
        if not torch.stack([parameter.isfinite().all() for parameter in self.model.parameters()]).all():
            self._stop("a weight is no longer finite")

    def _stop(self, reason: str) -> None:
        checkpoints = sorted(
            Path(str(self.args.output_dir)).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])
        )
        remedy = (
            f"The last good checkpoint is {checkpoints[-1]}; start from it with a lower learning rate."
            if checkpoints
            else "There is no checkpoint yet; start again with a lower learning rate or a longer warm-up."
        )
        raise DivergedError(
            f"Step {self.state.global_step:,}: {reason}. The run stops, and saves nothing more. {remedy}"
        )

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        # A pickle that nothing reads: the record has the arguments.
        arguments = Path(str(output_dir or self.args.output_dir)) / "training_args.bin"
        if self.args.should_save and os.path.exists(arguments):
            arguments.unlink()
        if self.args.should_save and (stream := self._describe_stream()) is not None:
            (arguments.parent / STREAM_FILE).write_text(json.dumps(stream, indent=2) + "\n", encoding="utf-8")

    def _describe_stream(self) -> dict[str, Any] | None:
        """What decides which rows, masks and samples a step sees; None without a stream."""
        stream, args = self.train_dataset, self.args
        if not isinstance(stream, RowStream):
            return None
        return {
            "rows": stream.rows.header.sha256 if isinstance(stream.rows, BlockFile) else len(stream.rows),
            "seed": stream.seed,
            "rows_per_step": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "mask_probability": args.mask_probability,
            "keep_probability": args.keep_probability,
            "masking": args.masking,
        }

    def _refuse_another_stream(self, path: Path) -> None:
        """A resumed run must go on with the stream that it began."""
        now = self._describe_stream()
        if now is None or not path.exists():
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [f"{name} was {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
        if changed:
            raise ValueError(
                f"{path.parent} cannot be resumed with another stream of rows: {'; '.join(changed)}. Give the text "
                "and the flags that it began with, or start anew (--generator and --discriminator take its towers)."
            )

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied tensor is stored once, under its source; its other names are not missing.
        tied = set(self.model.all_tied_weights_keys)
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)
