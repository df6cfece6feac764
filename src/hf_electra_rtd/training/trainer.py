"""`transformers.Trainer` for the pair: the original's optimiser, meters, held-out metrics, and a stream that
resumes."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, Trainer, TrainerCallback, set_seed
from transformers.trainer_utils import EvalLoopOutput, SchedulerType
from transformers.training_args import OptimizerNames

from hf_electra_rtd.accounting import model_flops
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.stream import RowStream
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.arguments import RTDTrainingArguments, fraction_steps
from hf_electra_rtd.training.checkpoints import (
    CHECKPOINT_PREFIX,
    check_resumable,
    check_tensors,
    latest_checkpoint,
    refuse_another_stream,
    remove_old_checkpoints,
    writing_checkpoint,
)
from hf_electra_rtd.training.evaluation import held_out_metrics, held_out_tensors, weighted_loss
from hf_electra_rtd.training.fractions import export_fraction
from hf_electra_rtd.training.health import HealthWatch
from hf_electra_rtd.training.interruption import OwnProcessGroup
from hf_electra_rtd.training.meters import Stopwatch, TrainingMeters, seconds_trained
from hf_electra_rtd.training.normalization import count_step, exact_loss
from hf_electra_rtd.training.optimization import make_optimizer, make_schedule
from hf_electra_rtd.training.progress import RTDPrinterCallback, RTDProgressCallback
from hf_electra_rtd.training.sharding import keep_tied_tensors_together
from hf_electra_rtd.training.stream import describe_stream, fit_stream, held_out_stream, make_collator


if TYPE_CHECKING:
    from hf_electra_rtd.training.publication import RunPublication


logger = logging.getLogger(__name__)


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
        publication: for `args.push_to_hub`: what becomes of the towers along the run.
        **kwargs: the Trainer's. A `compute_metrics` takes the place of our held-out metrics. Its `predictions` are
            (logits, replaced_labels), or, where the main tower predicts tokens, (replaced_labels, predictions): see
            [`ElectraRTDOutput`]. Its `label_ids` are the batch's `labels`, (B, K) as [`DataCollatorForRTD`] makes
            them; `label_names=["labels", "masked_positions"]` in `args` gives (labels, masked_positions).

    Raises:
        ValueError: if the rows do not fill one optimiser step, or for `push_to_hub` without a publication.
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
        publication: RunPublication | None = None,
        **kwargs: Any,
    ) -> None:
        if args.push_to_hub and publication is None:
            raise ValueError(
                "push_to_hub needs a publication, which knows what cards say (licence, languages): train with "
                "examples/pretrain.py, give RTDTrainer a RunPublication, or publish the run with examples/publish.py."
            )
        self.publication = publication
        if args.n_gpu > 1:
            raise ValueError(
                f"One process drives {args.n_gpu} GPUs: launch one process a GPU (`accelerate launch --num_processes "
                f"{args.n_gpu}`), or show it a single one (CUDA_VISIBLE_DEVICES=0)."
            )
        if data_collator is None:
            if processing_class is None:
                raise ValueError("RTDTrainer needs the tokenizer (processing_class), or a data_collator of its own.")
            data_collator = make_collator(processing_class, args)
        self.passes_over_rows: float | None = None
        if isinstance(data_collator, DataCollatorForRTD) and data_collator.seed is not None:
            if train_dataset is not None:
                train_dataset = fit_stream(train_dataset, args)
                # The Trainer's own epoch is the whole stream, so that it never starts the sampler anew.
                self.passes_over_rows = len(train_dataset) / len(train_dataset.rows)
            if eval_dataset is not None:
                eval_dataset = held_out_stream(eval_dataset)
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
        keep_tied_tensors_together(self.model, self.accelerator)
        self._own_metrics = self.compute_metrics is None
        if self._own_metrics:
            self.compute_metrics = lambda gathered: held_out_metrics(model.measures, list(gathered.predictions))
        for theirs, ours in ((ProgressCallback, RTDProgressCallback), (PrinterCallback, RTDPrinterCallback)):
            if self.pop_callback(theirs) is not None:
                self.add_callback(ours)
        self.meters = TrainingMeters(model.measures)
        self.stopwatch = Stopwatch()
        self.add_callback(_AlongTheRun(self))
        self.health = HealthWatch(str(args.output_dir))
        self._staging: Path | None = None
        self._step_counts: Tensor | None = None
        self._checkpoints_to_keep = args.save_total_limit

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        # A stream is shuffled already, and must be read in order to be resumed.
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return SequentialSampler(dataset) if isinstance(dataset, RowStream) else super()._get_train_sampler(dataset)

    def get_train_dataloader(self) -> DataLoader:
        return _undisturbed(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        return _undisturbed(super().get_eval_dataloader(eval_dataset))

    # ---- Optimisation ----

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        args = self.args
        stock = {OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED}
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None and args.optim in stock:
            self.optimizer = make_optimizer(self.model if model is None else model, args)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        optimizer = self.optimizer if optimizer is None else optimizer
        if self.lr_scheduler is None and self.args.lr_scheduler_type == SchedulerType.LINEAR:
            assert optimizer is not None
            self.lr_scheduler = make_schedule(optimizer, self.args, num_training_steps)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def train(self, resume_from_checkpoint: str | bool | None = None, *more: Any, **kwargs: Any) -> Any:
        args = self.args
        state = None
        if resume_from_checkpoint is True:
            latest = latest_checkpoint(str(args.output_dir))
            if latest is None:
                raise ValueError(f"There is no checkpoint to resume from: {args.output_dir} holds none.")
            resume_from_checkpoint = str(latest)
        if resume_from_checkpoint:
            max_steps = args.max_steps if args.max_steps > 0 else sys.maxsize
            state = check_resumable(resume_from_checkpoint, type(self).__name__, max_steps)
            check_tensors(resume_from_checkpoint, self.model)
            refuse_another_stream(describe_stream(self.train_dataset, args), resume_from_checkpoint)
        elif args.world_size > 1:
            # Every process was seeded alike, so that they build the same model; their dropout must differ.
            set_seed(args.seed + args.process_index)
        self.stopwatch = Stopwatch(seconds_trained(state))
        # `_save_checkpoint` removes old checkpoints. The parent would also remove the last, for the best, at the end
        # of a run that was only interrupted.
        self._checkpoints_to_keep, args.save_total_limit = args.save_total_limit, None
        try:
            result = super().train(resume_from_checkpoint, *more, **kwargs)
        finally:
            args.save_total_limit = self._checkpoints_to_keep
            self._step_counts = None
            self.stopwatch.stop()
        self.health.check_weights(self.state.global_step, self.model)
        return result

    @property
    def train_seconds(self) -> float:
        """Time in training steps, evaluation and saving left out; with the sessions before, as far as they were
        logged."""
        return self.stopwatch.seconds

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
            if self._step_counts is not None:
                # The parent divides by the number of accumulated batches, and the processes average their gradients.
                parts = self.current_gradient_accumulation_steps * self.args.world_size
                loss = exact_loss(self.model, output, inputs, self._step_counts) * parts
        return (loss, output) if return_outputs else loss

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        self._step_counts = None
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.args.exact_loss_normalization and batches:

            def add_up(counts: Tensor) -> Tensor:
                summed: Tensor = self.accelerator.reduce(counts.to(device), reduction="sum")
                return summed

            self._step_counts = count_step(self.model, batches, add_up)
        return batches, num_items

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        rows, row_length = inputs["input_ids"].shape
        # For labels at their positions (B, L), what is masked is not known without waiting: take the expectation.
        num_masked = (
            inputs["masked_positions"].shape[1]
            if "masked_positions" in inputs
            else round(self.args.mask_probability * row_length)
        )
        return model_flops(self.model.config, rows, row_length, num_masked)

    # ---- Evaluation ----

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.health.check_weights(self.state.global_step, self.model)
        with self.stopwatch.paused():
            metrics = super().evaluate(*args, **kwargs)
        if self.is_in_train:
            self._check_discriminator(metrics, "eval_")
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
            output = model(**inputs)
        return output.loss, held_out_tensors(self.model.measures, output, inputs), inputs["labels"]

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        metrics = output.metrics
        if self._own_metrics and metrics is not None and f"{metric_key_prefix}_discriminator_loss" in metrics:
            metrics[f"{metric_key_prefix}_loss"] = weighted_loss(metrics, self.model.config, metric_key_prefix)
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
        self.health.check_loss(self.state.global_step, logs["loss"])
        if meters:
            meters["tokens_per_second"] = meters.pop("tokens") / max(self.stopwatch.lap(), 1e-9)
            logs |= meters
            logs["train_seconds"] = self.train_seconds
            self._check_discriminator(meters)

    def _check_discriminator(self, metrics: dict[str, float], prefix: str = "") -> None:
        max_steps = self.state.max_steps
        warmup_steps = self.args.get_warmup_steps(max_steps)
        self.health.check_discriminator(self.state.global_step, max_steps, warmup_steps, metrics, prefix)

    # ---- Checkpoints ----

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.health.check_weights(self.state.global_step, self.model)
        run_directory, args = super()._get_output_dir(trial), self.args
        stream = describe_stream(self.train_dataset, args)
        with (
            self.stopwatch.paused(),
            writing_checkpoint(
                run_directory,
                type(self).__name__,
                self.state,
                stream,
                args.should_save,
                self.accelerator.wait_for_everyone,
            ) as checkpoint,
        ):
            self._staging = checkpoint.parent
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._staging = None
            self._name_best_checkpoint(Path(run_directory))
        if self.publication is not None:
            with self.stopwatch.paused():
                self.publication.after_save(
                    self.model,
                    self.model_wrapped,
                    self.accelerator,
                    self.state.global_step,
                    self.train_seconds,
                    self.state.log_history,
                )
        if args.should_save:
            newest, best = self.state.global_step, self.state.best_model_checkpoint
            remove_old_checkpoints(run_directory, self._checkpoints_to_keep, newest, best)

    def export_fraction(self) -> None:
        """Writes the towers where this step completes one of `checkpoint_fractions`."""
        step = self.state.global_step
        fraction = fraction_steps(self.args.checkpoint_fractions, self.state.max_steps).get(step)
        if fraction is not None:
            self.health.check_weights(step, self.model)
            with self.stopwatch.paused():
                export_fraction(
                    self.model,
                    self.model_wrapped,
                    self.accelerator,
                    self.processing_class,
                    self.args,
                    fraction,
                    step,
                    self.train_seconds,
                )
                if self.publication is not None:
                    self.publication.after_fraction(fraction, step, self.train_seconds, self.state.log_history)

    # The parent's ways to the Hub lead whole directories there: the publication goes its own.

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        pass

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        pass

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Publishes nothing: that is the publication's, at checkpoints and when the run is over.

        Raises:
            ValueError: if there is none.
        """
        if self.publication is None:
            raise ValueError("Publish the run with examples/publish.py: the parent would upload its whole directory.")
        logger.info("The towers go to the Hub at checkpoints and when the run is over, and not on this call.")

    def _get_output_dir(self, trial: Any) -> str:
        # The parent writes a checkpoint where this says: beside its final place.
        return super()._get_output_dir(trial) if self._staging is None else str(self._staging)

    def _name_best_checkpoint(self, run_directory: Path) -> None:
        """The parent saw the best checkpoint in the hidden directory, or did not see it there."""
        if self.state.best_global_step:
            best = run_directory / f"{CHECKPOINT_PREFIX}{self.state.best_global_step}"
            if best.exists() or self.state.best_global_step == self.state.global_step:
                self.state.best_model_checkpoint = str(best)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        # A pickle that nothing reads: the record has the arguments.
        arguments = Path(str(output_dir or self.args.output_dir)) / "training_args.bin"
        if self.args.should_save and os.path.exists(arguments):
            arguments.unlink()

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self._other_processes_before(Path(checkpoint)):
            # Their states fit nobody here. Dropout goes on with new numbers, not with those of the first step again.
            set_seed(self.args.seed + self.state.global_step + self.args.process_index)
        super()._load_rng_state(checkpoint)

    def _other_processes_before(self, checkpoint: Path) -> bool:
        files = [checkpoint / f"rng_state_{rank}.pth" for rank in range(self.args.world_size)]
        return not all(
            file.exists() for file in (files if self.args.world_size > 1 else [checkpoint / "rng_state.pth"])
        )

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied tensor is stored once, under its source; its other names are not missing.
        tied = set(self.model.all_tied_weights_keys)
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)


class _AlongTheRun(TrainerCallback):
    """Training begins when everything is loaded; towers are exported after a step, and before its checkpoint, so that
    a checkpoint's run has left them."""

    def __init__(self, trainer: RTDTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._trainer.stopwatch.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._trainer.export_fraction()


def _undisturbed(loader: DataLoader) -> DataLoader:
    """Workers that signals to the run do not reach."""
    # `accelerate` wraps the loader that makes the workers, and copies the wrapper's attributes when it skips batches.
    for each in (loader, getattr(loader, "base_dataloader", loader)):
        if not isinstance(each.worker_init_fn, OwnProcessGroup):
            each.worker_init_fn = OwnProcessGroup(each.worker_init_fn)
    return loader
