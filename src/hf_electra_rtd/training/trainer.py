"""The trainers. [`OriginalTrainer`], the base class for pre-training and fine-tuning, is `transformers.Trainer` with
the optimizer and schedule of the original ELECTRA. [`RTDTrainer`] trains generator and discriminator, and adds meters,
held-out metrics, a stream that can be resumed, and publication at the end."""

from __future__ import annotations

import copy
import logging
import math
import sys
from collections.abc import Sized
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, Trainer, TrainerCallback, set_seed
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import SchedulerType

from hf_electra_rtd.base.accounting import count_parameters, model_flops
from hf_electra_rtd.base.cli import check_arguments
from hf_electra_rtd.base.files import reading, writing
from hf_electra_rtd.base.records import (
    FractionRecord,
    PretrainingRecord,
    collect_hardware,
    collect_versions,
    public,
    public_command,
    utc_now,
)
from hf_electra_rtd.data.blocks import HELD_OUT_POSITION, Blocks, SequenceStream
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.pair.measures import Measure
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing import publish as publishing
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import Published, Repository, check
from hf_electra_rtd.training import checkpoints, meters
from hf_electra_rtd.training.arguments import (
    ALONE_RULES,
    MUON,
    OWN_OPTIMIZERS,
    RTDTrainingArguments,
    settle_masking,
)
from hf_electra_rtd.training.console import LinesAndBarCallback, LinesCallback, format_log
from hf_electra_rtd.training.directory import save_outputs
from hf_electra_rtd.training.optimization import make_optimizer, make_schedule
from hf_electra_rtd.training.signals import protect_workers


logger = logging.getLogger(__name__)


# ---- What a run trains on ----


def fit_stream(sequences: Any, args: RTDTrainingArguments) -> SequenceStream:
    """Returns a stream of exactly the run's length. Sets `args.max_steps` if only `num_train_epochs` is given. Raises
    ValueError if the sequences do not fill one optimizer step, or are a stream, or blocks, of another length."""
    blocks = getattr(sequences, "sequences", sequences)
    if isinstance(blocks, Blocks) and (found := blocks.header.max_seq_length) != args.max_seq_length:
        raise ValueError(
            f"{blocks.path} was prepared with max_seq_length={found}, not {args.max_seq_length}. Pass {found} to "
            "RTDTrainingArguments."
        )
    batch = args.sequences_per_step
    if isinstance(sequences, SequenceStream):
        if args.max_steps <= 0:
            args.max_steps = max(1, len(sequences) // batch)
        if len(sequences) != args.max_steps * batch:
            raise ValueError(
                f"The stream has {len(sequences)} sequences, but {args.max_steps} steps of {batch} sequences need "
                f"{args.max_steps * batch}. Pass its sequences instead."
            )
        return sequences
    if args.max_steps <= 0:
        args.max_steps = math.floor(args.num_train_epochs * len(sequences) / batch)
        if args.max_steps < 1:
            raise ValueError(
                f"{args.num_train_epochs:g} epochs of {len(sequences)} sequences do not fill one step of {batch}. "
                "Use more text, a smaller batch, more epochs, or max_steps."
            )
    return SequenceStream(sequences, args.max_steps * batch, args.stream_seed)


def held_out_stream(sequences: Any) -> SequenceStream | None:
    """Returns a stream of the held-out sequences in their order, or None if there are none. Its random numbers differ
    from those of all training sequences."""
    if sequences is None or isinstance(sequences, SequenceStream):
        return sequences
    return SequenceStream(sequences, shuffle=False, first_position=HELD_OUT_POSITION)


def make_collator(tokenizer: PreTrainedTokenizerBase, args: RTDTrainingArguments) -> DataCollatorForRTD:
    """The collator of a run, with its masking and its seed."""
    return DataCollatorForRTD(
        tokenizer,
        mask_probability=args.mask_probability,
        keep_probability=args.keep_probability,
        masking=args.masking,
        seed=args.stream_seed,
        max_seq_length=args.max_seq_length,
        document_attention=args.document_attention,
    )


# ---- The trainer ----


class OriginalTrainer(Trainer):
    """A Trainer with the optimizer and schedule of the original ELECTRA. Its checkpoints are complete or absent, and
    its logs are printed as lines."""

    describe_log = staticmethod(format_log)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for theirs, ours in ((PrinterCallback, LinesCallback), (ProgressCallback, LinesAndBarCallback)):
            if self.pop_callback(theirs) is not None:
                self.add_callback(ours(self.describe_log))

    def _groups(self, model: Any) -> list[dict[str, Any]] | None:
        """Returns the parameter groups of the optimizer; None means those of pre-training."""
        return None

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None and self.args.optim in OWN_OPTIMIZERS:
            if self.args.optim == MUON and self.is_fsdp_enabled:
                raise ValueError("optim=muon multiplies whole matrices, which FSDP splits. Use adamw_torch_fused.")
            trained: Any = self.model if model is None else model
            self.optimizer = make_optimizer(trained, self.args, self._groups(trained))
        with reading(f"optim={self.args.optim}", "Choose another, or other optim_args."):
            return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        if self.lr_scheduler is None and self.args.lr_scheduler_type == SchedulerType.LINEAR:
            chosen: Any = optimizer or self.optimizer
            self.lr_scheduler = make_schedule(chosen, self.args, num_training_steps)
            self._created_lr_scheduler = True
        with reading(f"lr_scheduler_kwargs={self.args.lr_scheduler_kwargs}", "Give those of lr_scheduler_type."):
            return super().create_scheduler(num_training_steps, optimizer)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing if a run resumes from its last step: the Trainer would take one step more."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)

    def _save_whole(self, model: nn.Module, trial: Any, described: dict[str, Any]) -> None:
        """Saves a checkpoint with the description of its run."""
        output_dir = str(self.args.output_dir)
        with checkpoints.writing_checkpoint(
            output_dir, self.accelerator, self.args.save_total_limit, self.state, described
        ) as checkpoint:
            self.args.output_dir = str(checkpoint.parent)  # where the parent writes
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.args.output_dir = output_dir
            (checkpoint / "training_args.bin").unlink(missing_ok=True)  # a pickle; the record has the arguments
            if self.state.best_global_step == self.state.global_step:
                self.state.best_model_checkpoint = str(Path(output_dir, checkpoint.name))


class _RTDCallback(TrainerCallback):
    """The actions of an `RTDTrainer` before the first step, and after each step."""

    def __init__(self, trainer: RTDTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # intervals are as given now, not as in the checkpoint
        if state.global_step > 0:
            checkpoints.follow_schedule(self._trainer.lr_scheduler)
        self._trainer.stopwatch.start()  # everything is loaded

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.export_fraction()  # before the checkpoint of the step
        control.should_log |= control.should_save  # a resumed run reads its seconds from the log


class RTDTrainer(OriginalTrainer):
    """Trains an [`ElectraForRTDPretraining`].

    With `push_to_hub=True` the networks go to the repositories `<hub_model_id>-generator` and `-discriminator`, each
    with a card, at the end of `train`. If the Hub fails, training goes on; see `published`. A `compute_metrics`
    replaces our held-out metrics; its `predictions` are the outputs that
    `ElectraRTDConfig.keys_to_ignore_at_inference` does not name.

    Args:
        train_dataset: [`Blocks`], any dataset of dicts with `input_ids` (and `token_type_ids`), or a
            [`SequenceStream`] of exactly the run's length, which is `max_steps` or `num_train_epochs`.
        eval_dataset: held-out sequences, in the same forms. Without them there is no evaluation.
        data_collator: by default a seeded [`DataCollatorForRTD`]. With another one, datasets are left as they are.
        card, publication: what cards say in addition to the record, and which parts are published.

    Raises:
        ValueError: if the sequences do not fill one step, options contradict each other, or the Hub refuses the run.
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
        for given, needed in ((model, ElectraForRTDPretraining), (args, RTDTrainingArguments)):
            if not isinstance(given, needed):
                raise TypeError(
                    f"RTDTrainer needs {needed.__name__}, not {type(given).__name__}. With torch_compile=True, it "
                    "compiles the pair itself. Adapters are trained by a plain Trainer."
                )
        args = copy.copy(args)  # the code below changes some for this run
        if args.n_gpu > 1:
            raise ValueError(f"One process has {args.n_gpu} GPUs: use accelerate launch, or CUDA_VISIBLE_DEVICES=0.")
        if not model.config.has_generator_network or model.config.freeze_generator:
            check_arguments(args, rules=ALONE_RULES)
        if args.generator_learning_rate is not None and any(kwargs.get("optimizers") or ()):
            raise ValueError("generator_learning_rate is for the optimizer that RTDTrainer makes: leave it out.")
        if args.deepspeed_plugin is not None:
            raise ValueError("DeepSpeed shards weights in a way that checkpoints here do not. Use FSDP2.")
        is_seeded = isinstance(data_collator, DataCollatorForRTD) and data_collator.seed is not None
        self._makes_streams = is_seeded or data_collator is None
        if self._makes_streams:
            for name, sequences in (("train_dataset", train_dataset), ("eval_dataset", eval_dataset)):
                if sequences is not None and (not isinstance(sequences, Sized) or isinstance(sequences, dict)):
                    raise ValueError(f"{name} must be one dataset with a length, not a {type(sequences).__name__}.")
            train_dataset = None if train_dataset is None else fit_stream(train_dataset, args)
            eval_dataset = held_out_stream(eval_dataset)
        if data_collator is None:
            if processing_class is None:
                raise ValueError("RTDTrainer needs the tokenizer (processing_class) or a data_collator.")
            data_collator = make_collator(processing_class, args)
        if isinstance(train_dataset, SequenceStream):  # shuffled already; a resumed run needs this order
            args.train_sampling_strategy = "sequential"
        if eval_dataset is None and args.eval_strategy != "no":
            logger.warning("There are no held-out sequences, so the run is not evaluated.")
            args.eval_strategy = "no"
        args.eval_on_start = args.eval_on_start and eval_dataset is not None
        tokenizer = processing_class or getattr(data_collator, "tokenizer", None)
        for name in ("mask_probability", "keep_probability", "masking", "document_attention"):
            own = getattr(args, name)
            unsaid = False if name == "document_attention" else own
            if getattr(data_collator, name, unsaid) != own:
                raise ValueError(
                    f"{name} is {own} in args, but {getattr(data_collator, name)} in the data_collator. Make the "
                    "collator with training.trainer.make_collator."
                )
        settle_masking(model.config, args, tokenizer)
        self.card = card or CardArguments()
        self.publication = publication or publishing.PretrainingPublication()
        # Parts of the record that the command line knows better.
        self.record_facts: dict[str, Any] = {
            "command": public_command(sys.argv),
            "started": utc_now(),
            "arguments": {},
        }
        self.old_held_out: SequenceStream | None = None  # text of the earlier training, also evaluated
        self.published: list[Published] = []  # the outcome of the last push
        self._saved: PretrainingRecord | None = None
        super().__init__(model, args, data_collator, train_dataset, eval_dataset, processing_class, **kwargs)
        checkpoints.keep_tied_tensors_together(self.model, self.accelerator)
        self._own_metrics = self.compute_metrics is None
        self._yardsticks: tuple[Measure, ...] = ()
        if self._own_metrics:
            self._yardsticks = meters.find_yardsticks(model, self.train_dataset, self.eval_dataset)
            self.compute_metrics = lambda gathered: meters.held_out_metrics(
                model, list(gathered.predictions), self._yardsticks
            )
        self.meters = meters.TrainingMeters(model.measures)
        self.stopwatch = meters.Stopwatch()
        self.add_callback(_RTDCallback(self))

    def get_train_dataloader(self) -> DataLoader:
        return protect_workers(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        return protect_workers(super().get_eval_dataloader(self._held_out(eval_dataset)))

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        return protect_workers(super().get_test_dataloader(self._held_out(test_dataset)))

    def _held_out(self, dataset: Any) -> Any:
        """Returns a dataset as the constructor would take it as `eval_dataset`."""
        return held_out_stream(dataset) if self._makes_streams and isinstance(dataset, Sized) else dataset

    # ---- Optimization ----

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *more: Any, verify: bool = True, **kwargs: Any
    ) -> Any:
        """Trains as the parent does. `resume_from_checkpoint=True` resumes from the latest complete checkpoint. With
        `verify=False`, the checkpoint is known to be complete, and its files are not compared with their hashes."""
        args = self.args
        state = TrainerState()
        if resume_from_checkpoint is True:
            latest = checkpoints.latest_checkpoint(str(args.output_dir))
            if latest is None:
                raise ValueError(f"{args.output_dir} has no complete checkpoint to resume from.")
            resume_from_checkpoint = str(latest)
            verify = False
        if resume_from_checkpoint:
            limit = args.max_steps if args.max_steps > 0 else sys.maxsize
            before, state = checkpoints.check_resumable(resume_from_checkpoint, limit, self._describe(), verify)
            self.record_facts["started"] = before.get("started", self.record_facts["started"])
        if resume_from_checkpoint or args.world_size > 1:
            # All processes had the same seed, so that they built the same model. Their dropout must differ. A
            # checkpoint of fewer processes has no random state for this one, whose numbers must not begin again.
            set_seed((args.seed + state.global_step + args.process_index) % 2**32)
        self._saved = None
        self.stopwatch = meters.Stopwatch(state.log_history)
        eval_on_start = args.eval_on_start
        args.eval_on_start = eval_on_start and not resume_from_checkpoint  # the first start evaluated
        try:
            result = super().train(resume_from_checkpoint, *more, **kwargs)
        finally:
            args.eval_on_start = eval_on_start
        self.stopwatch.stop()
        meters.check_weights(self.state.global_step, self.model)
        if args.push_to_hub and self.state.global_step >= self.state.max_steps:
            self.push_to_hub()
        return result

    def _describe(self) -> dict[str, Any]:
        """Returns the settings that a run must share with this one to resume from its checkpoints."""
        return checkpoints.describe_run(self.model, self.train_dataset, self.eval_dataset, self.args)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *more: Any, **kwargs: Any) -> Any:
        loss, output = super().compute_loss(model, inputs, True, *more, **kwargs)
        if model.training:
            self.meters.update(output, inputs)
        return (loss, output) if return_outputs else loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        num_sequences, length = inputs["input_ids"].shape
        return model_flops(self.model.config, num_sequences, length, num_masked(self.args.mask_probability, length))

    # ---- Evaluation and logging ----

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        meters.check_weights(self.state.global_step, self.model)
        # A loader draws a seed. An evaluation must not change the dropout of the steps after it.
        with self.stopwatch.paused(), torch.random.fork_rng(devices=[]):
            metrics = super().evaluate(*args, **kwargs)
            if self.old_held_out is not None and not args and "eval_dataset" not in kwargs:
                yardsticks = self._yardsticks
                self._yardsticks = ()  # they belong to the new text
                try:
                    super().evaluate(self.old_held_out, metric_key_prefix=meters.OLD.removesuffix("_"))
                finally:
                    self._yardsticks = yardsticks
            return metrics

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, *more: Any, **kwargs: Any) -> Any:
        if prediction_loss_only or not self._own_metrics:
            return super().prediction_step(model, inputs, prediction_loss_only, *more, **kwargs)
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            output = model(**inputs)
        # No loss: `held_out_metrics` computes one that does not depend on how sequences fall into batches.
        measures = (*self.model.measures, *self._yardsticks)
        return None, meters.held_out_tensors(measures, output, inputs), inputs["labels"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for loss in logs.keys() & {"loss", "eval_loss"}:
            meters.check_loss(self.state.global_step, logs[loss])
        if "loss" in logs and self.is_in_train and (measured := self.meters.drain(self.accelerator.reduce)):
            measured["tokens_per_second"] = measured.pop("tokens") / self.stopwatch.lap()
            logs |= {**measured, "train_seconds": self.stopwatch.seconds}
        stream = self.train_dataset
        if isinstance(stream, SequenceStream) and self.state.max_steps > 0:
            # The Trainer counts the whole stream as one epoch; people expect passes over the sequences.
            passes = len(stream) / len(stream.sequences)
            self.state.epoch = self.state.global_step / self.state.max_steps * passes
        super().log(logs, start_time)
        if self.is_in_train and "eval_bigram_auc" in logs:
            meters.warn_if_flat(self.state)

    # ---- Checkpoints ----

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        meters.check_weights(self.state.global_step, self.model)
        with self.stopwatch.paused():
            self._save_whole(model, trial, {**self._describe(), "started": self.record_facts["started"]})

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Suppresses the parent's warnings: tied tensors are stored once, and the manifest vouches for all others."""

    # ---- Outputs ----

    def export_fraction(self) -> None:
        """Exports both networks if this step completes one of `checkpoint_fractions`. Draws no random number."""
        step = self.state.global_step
        fraction = checkpoints.fraction_steps(self.args.checkpoint_fractions, self.state.max_steps).get(step)
        if fraction is None:
            return
        meters.check_weights(step, self.model)
        with self.stopwatch.paused():
            whole = checkpoints.gather_pair(self.model, self.model_wrapped, self.accelerator)
            if self.is_world_process_zero():
                sequences = step * self.args.sequences_per_step
                target = checkpoints.fraction_directory(str(self.args.output_dir), fraction)
                with writing(target, FractionRecord.FILE) as export:
                    whole.save_towers(export, self.processing_class)
                    FractionRecord(fraction, step, sequences, self.stopwatch.seconds).save(export)

    def make_record(self) -> PretrainingRecord:
        """The record of the run so far."""
        args = self.args
        state = self.state
        step = state.global_step
        num_sequences = step * args.sequences_per_step
        parts = {"train": self.train_dataset, "held_out": self.eval_dataset, "old_held_out": self.old_held_out}
        return PretrainingRecord(
            command=self.record_facts["command"],
            started=self.record_facts["started"],
            finished=utc_now(),
            arguments=public({**self.record_facts["arguments"], "training": args.to_dict()}),
            model=public(self.model.config.to_dict()),
            parameters=count_parameters(self.model),
            data={name: meters.describe_data(each) for name, each in parts.items() if each is not None},
            hardware=collect_hardware(),
            versions=collect_versions(),
            steps=step,
            sequences=num_sequences,
            tokens=meters.count_tokens(self.train_dataset, args, num_sequences),
            train_seconds=self.stopwatch.seconds,
            flops={"model": meters.count_flops(self.model, args, num_sequences)},
            curves=list(state.log_history),
            metrics=meters.evaluation_at(step, state.log_history),
            before_and_after=meters.before_and_after(step, state.log_history),
            example=meters.find_example(self.processing_class, self.eval_dataset),
            fractions=[asdict(each) for each in checkpoints.read_fractions(args, state.max_steps, step)],
        )

    def save_run(self) -> PretrainingRecord:
        """Writes networks, a picture of the curves, and the record into `output_dir`. If the log has no evaluation of
        the last step, it evaluates first. Every process must call it; once per step is enough."""
        step = self.state.global_step
        if self._saved is not None and self._saved.steps == step:
            return self._saved
        if self.eval_dataset is not None and not meters.evaluation_at(step, self.state.log_history):
            self.evaluate()
        whole = checkpoints.gather_pair(self.model, self.model_wrapped, self.accelerator)
        self._saved = self.make_record()
        if self.is_world_process_zero():
            save_outputs(whole, self.processing_class, self._saved, str(self.args.output_dir))
        return self._saved

    # ---- The Hub ----

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError, before anything is trained, for a run that may not publish. If the Hub cannot be reached,
        it only warns."""
        if self.args.process_index == 0:
            hub_model_id = str(self.args.hub_model_id)
            names = publishing.repository_ids(hub_model_id, self.model.config.to_dict(), self.publication.parts)
            known = None if self.publication.is_new else self._first_start()
            check(
                [Repository(name, {}, known) for name in names.values()],
                private=self.args.hub_private_repo is not False,
                force=self.publication.force,
            )

    def _first_start(self) -> str | None:
        """Returns when the run whose record lies in `output_dir` began; None without a record."""
        return publishing.first_start(PretrainingRecord, str(self.args.output_dir))

    def push_to_hub(self, *args: Any, **kwargs: Any) -> list[Published]:  # type: ignore[override]
        """Saves the run (`save_run`) and publishes generator and discriminator, each with a card; exports at fractions
        go to branches `step-<N>`. Prints the outcome and, after a failure, the command that tries again. Every process
        must call it. The parent's arguments are ignored. Raises ValueError without `hub_model_id`, and before the
        first step."""
        hub_model_id = self.args.hub_model_id
        if hub_model_id is None:
            raise ValueError("push_to_hub needs hub_model_id in RTDTrainingArguments: ORG/NAME.")
        if not self.state.global_step:
            raise ValueError("push_to_hub publishes a trained pair. Call train first.")
        self.save_run()
        if not self.is_world_process_zero():
            return []
        self.published = publishing.publish_run(
            publishing.pretraining_repositories,
            str(self.args.output_dir),
            hub_model_id,
            self.card,
            self.args.hub_private_repo is not False,
            self.publication.force,
            parts=self.publication.parts,
        )
        return self.published
