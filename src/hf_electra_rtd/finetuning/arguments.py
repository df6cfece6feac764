"""Flags of fine-tuning."""

# ruff: noqa: RUF009  # `flag` makes a field

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import TrainingArguments

from hf_electra_rtd.cli import flag
from hf_electra_rtd.recipes import FINETUNING, SIZES
from hf_electra_rtd.training.arguments import check_hub_options, settle_by_device


_CHOICES = {
    "head": ("transformers", "paper"),
    "size": tuple(SIZES),
    "select": ("last", "best"),
    "keep_models": ("best", "all", "none"),
}


@dataclass
class TaskArguments:
    """Which model, which tasks, how often."""

    model_name_or_path: str = field(metadata={"help": "Directory or Hub id of an encoder, or a pre-training run."})
    benchmark: str = flag("glue", "glue, clue, more, or own (--train_file, ...).")
    task_name: list[str] = flag(["all"], "One or more tasks, or all.")
    data_dir: str | None = flag(None, "The benchmark in its official layout; by default it comes from the Hub.")
    seeds: int = flag(1, "Runs of each task, with the seeds seed, seed + 1, ...")
    tokenizer: str | None = flag(None, "Directory, Hub id or vocab.txt to use in place of the model's tokenizer.")
    from_scratch: bool = flag(False, "Use the model's architecture with random weights: no pre-training.")
    head: str = flag("transformers", "transformers (loads everywhere) or paper (the original's head; ELECTRA only).")
    size: str | None = flag(None, f"Recipe to use: {', '.join(SIZES)}; by default guessed from the model.")
    layerwise_lr_decay: float | None = flag(None, "Of the learning rate from a layer to the one below; 1: none.")
    layerwise_lr_decay_off_by_one: bool = flag(False, "Decay the top layer twice, as the original's code does.")
    max_seq_length: int | None = flag(None, "Tokens of an example; by default the task's number.")
    doc_stride: int = flag(128, "Tokens that two windows of a context share.")
    max_query_length: int = flag(64, "Tokens of a question; the rest is cut off.")
    dropout: float | None = flag(None, "In the encoder and before its head; by default the paper's 0.1.")
    select: str = flag("last", "last: the model after the last step; best: the best by its dev score.")
    evaluate_only: bool = flag(False, "Evaluate a fine-tuned model without training.")
    predict: bool = flag(False, "Predict the test split and write the files for the benchmark's server.")
    keep_models: str = flag("best", "Fine-tuned models to keep: best (of the seeds, by dev score), all or none.")
    overwrite_output_dir: bool = flag(False, "Delete the results of these tasks in output_dir.")

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(f"--{name} is {value!r}: it must be one of {', '.join(known)}.")
        if self.seeds < 1:
            raise ValueError(f"--seeds is {self.seeds}: it must be at least 1.")
        if self.layerwise_lr_decay is not None and not 0 < self.layerwise_lr_decay <= 1:
            raise ValueError(f"--layerwise_lr_decay is {self.layerwise_lr_decay}: it must be above 0 and at most 1.")


@dataclass
class OwnTaskArguments:
    """Your own task, in place of a benchmark's."""

    train_file: str | None = flag(None, "Examples to train on: .csv, .tsv, .jsonl, .parquet or .conll.")
    validation_file: str | None = flag(None, "Examples to evaluate on; without: --validation_share.")
    test_file: str | None = flag(None, "Examples to predict, labeled or not.")
    validation_share: float = flag(0.1, "Share of the training examples held out where there is no validation_file.")
    dataset: str | None = flag(None, "A dataset of the Hub, in place of files.")
    dataset_config: str | None = flag(None, "Its configuration.")
    dataset_revision: str | None = flag(None, "Its branch, tag or commit.")
    dataset_splits: list[str] | None = flag(None, "Its splits: train=train[:90%%] dev=train[90%%:] test=test.")
    task_kind: str = flag("classification", "classification, regression or tagging.")
    text_column_name: str = flag("text", "Column of the text, or of the words to tag.")
    second_text_column_name: str | None = flag(None, "Column of a pair's second text.")
    label_column_name: str = flag("label", "Column of the label, number or tags.")
    id_column_name: str | None = flag(None, "Column of the ids that predictions are written with.")
    labels: list[str] | None = flag(None, "The classes in their order; by default those of the training data, sorted.")
    metrics: list[str] | None = flag(None, "By default accuracy, macro_f1; pearson, spearman; or f1 of entities.")
    language: str = flag("", "en or zh, for the record.")

    @property
    def is_given(self) -> bool:
        """Whether there is a task of one's own."""
        return any((self.train_file, self.validation_file, self.test_file, self.dataset))


@dataclass
class LoraArguments:
    """Fine-tuning with adapters."""

    lora: bool = flag(False, "Train low-rank adapters and the head only.")
    lora_r: int = flag(8, "Rank of the adapters.")
    lora_alpha: int = flag(16, "Scale of the adapters, times their rank.")
    lora_dropout: float = flag(0.1, "Before the adapters.")
    lora_target_modules: list[str] = flag(
        ["query", "key", "value", "dense"], "Linear layers that get an adapter; by default all of the encoder."
    )
    merge_adapter: bool = flag(False, "Also save the model with its adapters merged (loads without peft).")

    def __post_init__(self) -> None:
        if self.merge_adapter and not self.lora:
            raise ValueError("--merge_adapter needs --lora.")


# Flags of the Trainer that fine-tuning would ignore, undo or break on, and what to do instead.
_REFUSED = {
    "load_best_model_at_end": "Use --select best",
    "resume_from_checkpoint": "The same command goes on with what is missing",
    "data_seed": "The order of the examples follows --seed",
    "label_smoothing_factor": "The task decides the loss",
    "prediction_loss_only": "Scores need predictions",
    "dataloader_drop_last": "Every example is trained on and evaluated",
    "fsdp": "Launch one process for each GPU (DDP)",
    "deepspeed": "Launch one process for each GPU (DDP)",
}


@dataclass
class FineTuningArguments(TrainingArguments):
    """`transformers.TrainingArguments` with the paper's recipe.

    What depends on the size (learning rate) or the task (epochs) is None until it is known. Batches hold examples of
    similar length, padded to the longest. Nothing is evaluated or saved before the end by default.
    """

    # None until `FineTuning.prepare` or `__post_init__` fills them in.
    learning_rate: float | None = flag(None, "By default that of the size.")  # type: ignore[assignment]
    num_train_epochs: float | None = flag(None, "By default the task's number.")  # type: ignore[assignment]
    per_device_train_batch_size: int = flag(FINETUNING["per_device_train_batch_size"], "Batch size of one process.")
    per_device_eval_batch_size: int = flag(64, "Batch size of one process in evaluation.")
    warmup_steps: float = flag(FINETUNING["warmup_steps"], "Steps of warm-up; below 1: a share of all steps.")
    weight_decay: float = flag(FINETUNING["weight_decay"], "Decoupled weight decay (paper, Table 7: none).")
    adam_epsilon: float = flag(FINETUNING["adam_epsilon"], "Epsilon of Adam.")
    bias_correction: bool = flag(False, "Adam with bias correction; the original has none.")
    train_sampling_strategy: str = flag("group_by_length", "group_by_length (less padding), random or sequential.")
    save_strategy: str = flag("no", "When to write checkpoints: no, steps or epoch.")
    save_total_limit: int | None = flag(1, "Checkpoints to keep.")
    logging_steps: float = flag(50, "Steps between two lines of the log.")
    bf16: bool | None = flag(None, "bfloat16 autocast. By default where a GPU has it.")  # type: ignore[assignment]
    dataloader_pin_memory: bool | None = flag(None, "By default with a GPU.")  # type: ignore[assignment]
    remove_unused_columns: bool = flag(False, "Leave off: there are none.")
    logging_nan_inf_filter: bool = flag(False, "Hide losses that are not finite.")
    ddp_find_unused_parameters: bool | None = flag(False, "Leave off: all are used.")

    def __post_init__(self) -> None:
        for name, remedy in _REFUSED.items():
            if getattr(self, name):
                raise ValueError(f"--{name} cannot be used in fine-tuning. {remedy}.")
        check_hub_options(self)
        settle_by_device(self)
        super().__post_init__()
