"""`transformers.Trainer` for generator and discriminator: the original's optimizer, meters, held-out metrics, a stream
that resumes, and publication along the run."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, Trainer, TrainerCallback, set_seed
from transformers.trainer_utils import HubStrategy, SchedulerType
from transformers.training_args import OptimizerNames

from hf_electra_rtd.accounting import model_flops
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.stream import SequenceStream
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.publishing import publish as publishing
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import Background, Published, check, publish, read_publication, remember
from hf_electra_rtd.records import FractionRecord, PretrainingRecord
from hf_electra_rtd.training import checkpoints, meters, stream
from hf_electra_rtd.training.arguments import RTDTrainingArguments, fraction_steps
from hf_electra_rtd.training.console import RTDPrinterCallback, RTDProgressCallback
from hf_electra_rtd.training.interruption import OwnProcessGroup
from hf_electra_rtd.training.optimization import make_optimizer, make_schedule
from hf_electra_rtd.training.record import make_record


logger = logging.getLogger(__name__)


class RTDTrainer(Trainer):
    """Trains an [`ElectraForRTDPretraining`].

    With `push_to_hub=True` the generator and the discriminator go to the repositories `<hub_model_id>-generator` and
    `<hub_model_id>-discriminator`, each with a card: at the end of `train`, and with `hub_strategy="every_save"` also
    at each checkpoint, in the background. A failing Hub stops no training; see `published`.

    A `compute_metrics` replaces our held-out metrics. Its `predictions` are (logits, replaced_labels), or, where the
    discriminator predicts tokens, (replaced_labels, predictions): see [`ElectraRTDOutput`]. Its `label_ids` are the
    batch's `labels`, (B, K) as [`DataCollatorForRTD`] makes them; `label_names=["labels", "masked_positions"]` in
    `args` gives (labels, masked_positions).

    Args:
        args: the run lasts `max_steps`, or else `num_train_epochs` over the sequences.
        train_dataset: a [`BlockFile`], any dataset of dicts with `input_ids` (and `token_type_ids`), or a
            [`SequenceStream`] of exactly the run's length.
        eval_dataset: held-out sequences, likewise. Without them there is no evaluation.
        data_collator: by default a seeded [`DataCollatorForRTD`] with the masking of `args`. With another one, the
            datasets are left as they are.
        card, publication: what cards say beside the record, and which parts are published.

    Raises:
        ValueError: if the sequences do not fill one optimizer step, or the Hub refuses the publication.
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
        card: CardArguments | None = None,
        publication: publishing.PretrainingPublication | None = None,
        **kwargs: Any,
    ) -> None:
        if args.n_gpu > 1:
            raise ValueError(
                f"One process drives {args.n_gpu} GPUs. Launch one process for each (`accelerate launch "
                f"--num_processes {args.n_gpu}`), or show it a single one (CUDA_VISIBLE_DEVICES=0)."
            )
        if data_collator is None:
            if processing_class is None:
                raise ValueError("RTDTrainer needs the tokenizer (processing_class) or a data_collator.")
            data_collator = stream.make_collator(processing_class, args)
        self.passes_over_sequences: float | None = None
        if isinstance(data_collator, DataCollatorForRTD) and data_collator.seed is not None:
            if train_dataset is not None:
                train_dataset = stream.fit_stream(train_dataset, args)
                # The Trainer's own epoch is the whole stream, so that it never starts the sampler anew.
                self.passes_over_sequences = len(train_dataset) / len(train_dataset.sequences)
            if eval_dataset is not None:
                eval_dataset = stream.held_out_stream(eval_dataset)
        if isinstance(train_dataset, SequenceStream):  # shuffled already, and to be read in order when it is resumed
            args.train_sampling_strategy = "sequential"
        if eval_dataset is None and args.eval_strategy != "no":
            logger.warning("There are no held-out sequences, so the run is not evaluated.")
            args.eval_strategy = "no"
        self.card, self.publication = card or CardArguments(), publication or publishing.PretrainingPublication()
        self.record_facts: dict[str, Any] = {}  # for `make_record`: command, started, arguments
        self.published: list[Published] = []  # the outcome of the last push, by repository and branch
        self._background, self._private = Background(), args.hub_private_repo is not False
        self._saved: PretrainingRecord | None = None
        self._directory = str(args.output_dir)
        super().__init__(model, args, data_collator, train_dataset, eval_dataset, processing_class, **kwargs)
        checkpoints.keep_tied_tensors_together(self.model, self.accelerator)
        self._own_metrics = self.compute_metrics is None
        if self._own_metrics:
            self.compute_metrics = lambda gathered: meters.held_out_results(model, list(gathered.predictions))
        for theirs, ours in ((ProgressCallback, RTDProgressCallback), (PrinterCallback, RTDPrinterCallback)):
            if self.pop_callback(theirs) is not None:
                self.add_callback(ours)
        self.meters, self.stopwatch = meters.TrainingMeters(model.measures), meters.Stopwatch()
        self.add_callback(_AlongTheRun(self))
        self.health = meters.HealthWatch(args)
        self._staging: Path | None = None  # where the checkpoint that is being written lies
        self._step_counts: Tensor | None = None
        self._checkpoints_to_keep = args.save_total_limit

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        loader = super()._get_dataloader(*args, **kwargs)
        # `accelerate` wraps the loader that makes the workers, and copies the wrapper's attributes to skip batches.
        for each in (loader, getattr(loader, "base_dataloader", loader)):
            if not isinstance(each.worker_init_fn, OwnProcessGroup):
                each.worker_init_fn = OwnProcessGroup(each.worker_init_fn)
        return loader

    # ---- Optimization ----

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        stock = {OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED}
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None and self.args.optim in stock:
            self.optimizer = make_optimizer(self.model if model is None else model, self.args)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        if self.lr_scheduler is None and self.args.lr_scheduler_type == SchedulerType.LINEAR:
            chosen: Any = optimizer or self.optimizer
            self.lr_scheduler = make_schedule(chosen, self.args, num_training_steps)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def train(self, resume_from_checkpoint: str | bool | None = None, *more: Any, **kwargs: Any) -> Any:
        args, output_dir, state = self.args, self._directory, None
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(checkpoints.latest_checkpoint(output_dir) or "")
            if not resume_from_checkpoint:
                raise ValueError(f"{output_dir} has no whole checkpoint to resume from.")
        if resume_from_checkpoint:
            limit = args.max_steps if args.max_steps > 0 else sys.maxsize
            state = checkpoints.check_resumable(resume_from_checkpoint, type(self).__name__, limit, self._described)
            for step, fraction in fraction_steps(args.checkpoint_fractions, args.max_steps).items():
                if step <= state.global_step and not checkpoints.fraction_directory(output_dir, fraction).exists():
                    logger.warning(f"Nothing is exported at --checkpoint_fractions {fraction:g}: the run is past it.")
        elif args.world_size > 1:
            # Every process was seeded alike, so that they build the same model; their dropout must differ.
            set_seed(args.seed + args.process_index)
        self._saved, self.stopwatch = None, meters.Stopwatch([] if state is None else state.log_history)
        # `_save_checkpoint` removes old checkpoints. The parent would also remove the last one in favor of the best
        # at the end of a run that was only interrupted.
        self._checkpoints_to_keep, args.save_total_limit = args.save_total_limit, None
        try:
            result = super().train(resume_from_checkpoint, *more, **kwargs)
        finally:
            args.save_total_limit = self._checkpoints_to_keep
            self._step_counts = None
            self.stopwatch.stop()
        self.health.check_weights(self.state.global_step, self.model)
        if args.push_to_hub and self.state.global_step >= self.state.max_steps:
            self.push_to_hub()
        return result

    @property
    def _described(self) -> dict[str, Any]:
        return stream.describe_run(self.model, self.train_dataset, self.args)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, *more: Any, **kwargs: Any
    ) -> Any:
        loss, output = super().compute_loss(model, inputs, True, *more, **kwargs)
        if model.training:
            self.meters.update(output, inputs)
            if self._step_counts is not None:
                # The parent divides by the number of accumulated batches, and the processes average their gradients.
                parts = self.current_gradient_accumulation_steps * self.args.world_size
                loss = meters.exact_loss(self.model, output, inputs, self._step_counts) * parts
        return (loss, output) if return_outputs else loss

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        self._step_counts = None
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.args.exact_loss_normalization and batches:
            counts = torch.stack([meters.count_items(self.model, batch) for batch in batches]).sum(dim=0)
            self._step_counts = self.accelerator.reduce(counts.to(device))
        return batches, num_items

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        num_sequences, length = inputs["input_ids"].shape
        return model_flops(self.model.config, num_sequences, length, num_masked(self.args.mask_probability, length))

    # ---- Evaluation and logging ----

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.health.check_weights(self.state.global_step, self.model)
        with self.stopwatch.paused():
            metrics = super().evaluate(*args, **kwargs)
        if self.is_in_train:
            self.health.check_discriminator(self.state.global_step, self.state.max_steps, metrics, "eval_")
        return metrics

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, *more: Any, **kwargs: Any
    ) -> Any:
        if prediction_loss_only or not self._own_metrics:
            return super().prediction_step(model, inputs, prediction_loss_only, *more, **kwargs)
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            output = model(**inputs)
        # No loss: that of `held_out_results` does not depend on how sequences fall into batches.
        return None, meters.held_out_tensors(self.model.measures, output, inputs), inputs["labels"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.is_in_train:
            self.health.check_loss(self.state.global_step, logs["loss"])
            if measured := self.meters.drain(self.accelerator.reduce):
                measured["tokens_per_second"] = measured.pop("tokens") / self.stopwatch.lap()
                logs |= {**measured, "train_seconds": self.stopwatch.seconds}
                self.health.check_discriminator(self.state.global_step, self.state.max_steps, measured)
        if self.passes_over_sequences is not None and self.state.max_steps > 0:
            # The Trainer's epoch is the whole stream; what people mean is passes over the sequences.
            self.state.epoch = self.state.global_step / self.state.max_steps * self.passes_over_sequences
        super().log(logs, start_time)

    # ---- Checkpoints ----

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        state, run_directory = self.state, self._get_output_dir(trial)
        self.health.check_weights(state.global_step, self.model)
        loop, keep = type(self).__name__, self._checkpoints_to_keep
        saving = (run_directory, loop, self._described, self.accelerator, keep, state)
        with self.stopwatch.paused(), checkpoints.writing_checkpoint(*saving) as checkpoint:
            self._staging = checkpoint.parent
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._staging = None
            # A pickle that nothing reads: the record has the arguments.
            (checkpoint / "training_args.bin").unlink(missing_ok=True)
            if state.best_global_step == state.global_step:  # the parent saw it in the hidden directory
                state.best_model_checkpoint = str(Path(run_directory) / checkpoint.name)

    def _get_output_dir(self, trial: Any) -> str:
        # The parent writes a checkpoint where this says: beside its final place.
        return super()._get_output_dir(trial) if self._staging is None else str(self._staging)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        try:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            raise ValueError(
                f"{resume_from_checkpoint} does not hold this model. Give the flags that the run began with (--size, "
                f"--model_config, --sharing, --tokenizer), or another checkpoint. {error}"
            ) from None

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied tensor is stored once, under its source; its other names are not missing.
        missing = sorted(set(load_result.missing_keys) - set(self.model.all_tied_weights_keys))
        if missing or load_result.unexpected_keys:
            unknown = load_result.unexpected_keys
            raise RuntimeError(f"Error in loading state_dict: missing {missing}, unknown {unknown}.")

    def _load_rng_state(self, checkpoint: str | None) -> None:
        world_size = self.args.world_size
        names = [f"rng_state_{rank}.pth" for rank in range(world_size)] if world_size > 1 else ["rng_state.pth"]
        if checkpoint is not None and not all((Path(checkpoint) / name).exists() for name in names):
            # Saved by another number of processes. Dropout must not begin again with the numbers of the first step.
            set_seed(self.args.seed + self.state.global_step + self.args.process_index)
        super()._load_rng_state(checkpoint)

    # ---- Outputs ----

    def export_fraction(self) -> None:
        """Exports generator and discriminator where this step completes one of `checkpoint_fractions`; every process
        calls it. Draws no random number."""
        step = self.state.global_step
        fraction = fraction_steps(self.args.checkpoint_fractions, self.state.max_steps).get(step)
        if fraction is None:
            return
        self.health.check_weights(step, self.model)
        with self.stopwatch.paused():
            whole = checkpoints.gather_pair(self.model, self.model_wrapped, self.accelerator)
            if self.is_world_process_zero():
                sequences = step * stream.sequences_per_step(self.args)
                with checkpoints.writing_model(checkpoints.fraction_directory(self._directory, fraction)) as export:
                    whole.save_towers(export, self.processing_class)
                    FractionRecord(fraction, step, sequences, self.stopwatch.seconds).save(export)

    def make_record(self) -> PretrainingRecord:
        """The record of the run so far."""
        step, log = self.state.global_step, self.state.log_history
        return make_record(
            *(self.model, self.args, self.train_dataset, self.eval_dataset),
            steps=step,
            train_seconds=self.stopwatch.seconds,
            curves=list(log),
            metrics=meters.evaluation_at(step, log) or {},
            fractions=checkpoints.read_fractions(self.args, self.state.max_steps, step),
            **self.record_facts,
        )

    def save_run(self) -> PretrainingRecord:
        """Writes the model, generator, discriminator, picture of the curves and record into `output_dir`, after an
        evaluation where the log has none of the last step. Every process must call it. Called again at the same
        step, it only returns the record."""
        step = self.state.global_step
        if self._saved is not None and self._saved.steps == step:
            return self._saved
        evaluated = None if self.args.load_best_model_at_end else meters.evaluation_at(step, self.state.log_history)
        if self.eval_dataset is not None and evaluated is None:
            self.evaluate()
        whole = checkpoints.gather_pair(self.model, self.model_wrapped, self.accelerator)
        self._saved = self.make_record()
        if self.is_world_process_zero():
            checkpoints.save_outputs(whole, self.processing_class, self._saved, self._directory)
        return self._saved

    # ---- The Hub ----

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Refuses, before anything is trained, a run that may not publish. An unreachable Hub is only a warning."""
        if self.args.process_index == 0:
            parts, config = self.publication.parts, self.model.config.to_dict()
            names = publishing.repository_ids(str(self.args.hub_model_id), config, parts).values()
            check(names, self._directory, self._private, self.publication.force)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> list[Published]:  # type: ignore[override]
        """Saves the run (`save_run`) and publishes generator and discriminator, each with a card; exports at fractions
        go to branches `step-<N>`. Every process must call it. The parent's arguments are ignored. Returns `published`.
        """
        if self.args.hub_model_id is None:
            raise ValueError("push_to_hub needs hub_model_id in RTDTrainingArguments: ORG/NAME.")
        self.save_run()
        if self.is_world_process_zero():
            self._background.wait()
            self.published = self._publish(Path(self._directory))
        return self.published

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        step = self.state.global_step
        if self.args.hub_strategy != HubStrategy.EVERY_SAVE or step >= self.state.max_steps:  # the end comes next
            return
        whole = checkpoints.gather_pair(self.model, self.model_wrapped, self.accelerator)
        if not self.is_world_process_zero() or self._background.busy:
            return
        # Named so that the next run in this directory clears it away, should this process be killed.
        snapshot = Path(tempfile.mkdtemp(prefix=f".step-{step}.partial-", dir=self.args.output_dir))
        try:
            checkpoints.save_outputs(whole, self.processing_class, self.make_record(), snapshot)
        except OSError as error:
            logger.error(f"Step {step:,} was not published: {error}")
            shutil.rmtree(snapshot, ignore_errors=True)
        else:
            self._background.start(lambda: self._publish(snapshot, is_snapshot=True))

    def _publish(self, directory: Path, is_snapshot: bool = False) -> list[Published]:
        repo_id, parts, force = str(self.args.hub_model_id), self.publication.parts, self.publication.force
        kept = {"hub_model_id": repo_id, "parts": parts, "private": self._private, **asdict(self.card)}
        try:
            remember(self._directory, **kept)  # for `hf-electra-rtd publish --resume`
            flags = read_publication(self._directory)["flags"]  # what an earlier publication showed stays
            repositories = publishing.pretraining_repositories(
                *(directory, repo_id, publishing.known_card(flags), parts),
                evaluations=() if is_snapshot else flags.get("evaluations", ()),  # of other weights
                compared=flags.get("compared", ()),
                revisions=not is_snapshot and flags.get("revisions", True),
                eval_results=flags.get("eval_results", False),
            )
            return publish(repositories, self._directory, self._private, force)
        except (OSError, ValueError) as error:
            logger.error(f"{directory} was not published: {error}")
            return [Published(repo_id, None, "", error=str(error))]
        finally:
            if is_snapshot:
                shutil.rmtree(directory, ignore_errors=True)


class _AlongTheRun(TrainerCallback):
    """The stopwatch starts when everything is loaded; exports are made before the checkpoint of their step."""

    def __init__(self, trainer: RTDTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._trainer.stopwatch.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._trainer.export_fraction()
