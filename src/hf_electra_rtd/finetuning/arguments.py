"""Flags of a fine-tuning run."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from transformers import TrainingArguments

from hf_electra_rtd.training.arguments import check_hub_options, settle_by_device


HEADS = ("transformers", "paper")
SELECTIONS = ("last", "best")
KEPT_MODELS = ("best", "all", "none")
PEFT_METHODS = ("lora",)


@dataclass
class TaskArguments:
    """Which model, which tasks, how often."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Directory or Hub id of any encoder, or the output_dir of a pre-training run."},
    )
    benchmark: str = field(default="glue", metadata={"help": "glue, clue, more, or own (--train_file, ...)."})
    task_name: list[str] = field(default_factory=lambda: ["all"], metadata={"help": "One or more tasks, or all."})
    data_dir: str | None = field(
        default=None, metadata={"help": "The benchmark in its official layout; by default it comes from the Hub."}
    )
    seeds: int = field(default=1, metadata={"help": "Runs of each task, with the seeds seed, seed + 1, ..."})
    tokenizer: str | None = field(
        default=None, metadata={"help": "Directory, Hub id or vocab.txt, where the model's own is not to be used."}
    )
    from_scratch: bool = field(
        default=False, metadata={"help": "Draw all weights anew: what the architecture learns without pre-training."}
    )
    head: str = field(
        default="transformers",
        metadata={"help": "transformers (loads everywhere) or paper (one dense layer; ELECTRA alone)."},
    )
    size: str | None = field(
        default=None, metadata={"help": "tiny, small, base or large: whose recipe; by default told by the model."}
    )
    layer_decay: float | None = field(
        default=None, metadata={"help": "Factor of the learning rate from a layer to the one below; 1: none."}
    )
    layer_decay_off_by_one: bool = field(
        default=False, metadata={"help": "Decay the top layer twice, as the original's code does."}
    )
    max_length: int | None = field(default=None, metadata={"help": "Tokens of a row; by default the task's."})
    doc_stride: int = field(default=128, metadata={"help": "Tokens that two windows of a context share."})
    max_query_length: int = field(default=64, metadata={"help": "Tokens of a question; what is longer is cut."})
    dropout: float | None = field(
        default=None, metadata={"help": "In the encoder and before its head; by default the paper's 0.1."}
    )
    select: str = field(
        default="last", metadata={"help": "last: the model after the last step; best: by the score on dev."}
    )
    evaluate_only: bool = field(default=False, metadata={"help": "Only judge a fine-tuned model."})
    predict: bool = field(default=False, metadata={"help": "Predict the test split, and write the server's files."})
    keep_models: str = field(
        default="best", metadata={"help": "Fine-tuned models that stay: best (of the seeds, by dev), all or none."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Delete the results that lie there."})

    def __post_init__(self) -> None:
        for name, known in (("head", HEADS), ("select", SELECTIONS), ("keep_models", KEPT_MODELS)):
            if getattr(self, name) not in known:
                raise ValueError(f"--{name} is {getattr(self, name)!r}: it must be one of {', '.join(known)}.")
        if self.seeds < 1:
            raise ValueError(f"--seeds is {self.seeds}: it must be at least 1.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout is {self.dropout}: it must be at least 0, and below 1.")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(f"--layer_decay is {self.layer_decay}: it must be above 0, and at most 1.")
        if self.max_length is not None and self.max_length < 8:
            raise ValueError(f"--max_length is {self.max_length}: it must be at least 8.")
        if not self.model_name_or_path:
            raise ValueError("Name the model (--model_name_or_path): a directory, a Hub id, or a pre-training run.")


@dataclass
class OwnTaskArguments:
    """Your own task, in place of a benchmark's."""

    train_file: str | None = field(default=None, metadata={"help": "Rows to train on: .csv, .tsv, .jsonl or .conll."})
    dev_file: str | None = field(default=None, metadata={"help": "Rows to judge by; without: --dev_share."})
    test_file: str | None = field(default=None, metadata={"help": "Rows to predict, labelled or not."})
    dev_share: float = field(default=0.1, metadata={"help": "Share of the training rows held out without a dev file."})
    dataset: str | None = field(default=None, metadata={"help": "A dataset of the Hub, in place of files."})
    dataset_config: str | None = field(default=None, metadata={"help": "Its configuration."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Its branch, tag or commit."})
    dataset_splits: list[str] | None = field(
        default=None, metadata={"help": "What its splits are called: train=train[:90%%] dev=train[90%%:] test=test."}
    )
    task_kind: str = field(default="classification", metadata={"help": "classification, regression or tagging."})
    text_column: str = field(default="text", metadata={"help": "Column of the text, or of the words to tag."})
    second_text_column: str | None = field(default=None, metadata={"help": "Column of a pair's second text."})
    label_column: str = field(default="label", metadata={"help": "Column of the label, number or tags."})
    id_column: str | None = field(default=None, metadata={"help": "Column that names a row in the predictions."})
    labels: list[str] | None = field(
        default=None, metadata={"help": "The classes in their order; by default those of the training rows, sorted."}
    )
    metrics: list[str] | None = field(
        default=None, metadata={"help": "By default accuracy and macro_f1; pearson and spearman; or f1 of entities."}
    )
    language: str = field(default="", metadata={"help": "en or zh, for the record."})

    @property
    def is_given(self) -> bool:
        """Whether there is a task of one's own."""
        return any((self.train_file, self.dev_file, self.test_file, self.dataset))


@dataclass
class AdapterArguments:
    """Parameter-efficient fine-tuning."""

    peft: str | None = field(default=None, metadata={"help": "lora: train adapters and the head alone."})
    lora_r: int = field(default=8, metadata={"help": "Rank of the adapters."})
    lora_alpha: int = field(default=16, metadata={"help": "Scale of the adapters, times their rank."})
    lora_dropout: float = field(default=0.1, metadata={"help": "Before the adapters."})
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["query", "key", "value", "dense"],
        metadata={"help": "Linear layers that get an adapter; the default is every one of the encoder."},
    )
    merge_adapter: bool = field(
        default=False, metadata={"help": "Save the model with its adapters merged, too (loads without peft)."}
    )

    def __post_init__(self) -> None:
        if self.peft is not None and self.peft not in PEFT_METHODS:
            raise ValueError(f"--peft is {self.peft!r}: it must be one of {', '.join(PEFT_METHODS)}.")
        if self.lora_r < 1:
            raise ValueError(f"--lora_r is {self.lora_r}: it must be at least 1.")
        if self.merge_adapter and self.peft is None:
            raise ValueError("--merge_adapter has nothing to merge without --peft.")


# What the Trainer offers and a run here would pass over, undo or break, and what to do instead.
_REFUSED = {
    "load_best_model_at_end": "say --select best",
    "metric_for_best_model": "say --select best: the task's main metric decides",
    "resume_from_checkpoint": "the same command goes on with what is missing",
    "data_seed": "the order of rows follows --seed",
    "label_smoothing_factor": "losses are the task's own",
    "neftune_noise_alpha": "losses are the task's own",
    "prediction_loss_only": "scores need predictions",
    "eval_do_concat_batches": "scores need whole predictions",
    "auto_find_batch_size": "the record states the rows of a step",
    "dataloader_drop_last": "every row is learnt and judged",
    "lr_scheduler_kwargs": "the record does not hold them",
    "fsdp": "whole models are written: launch one process a GPU (DDP)",
    "deepspeed": "whole models are written: launch one process a GPU (DDP)",
}


@dataclass
class FineTuningArguments(TrainingArguments):
    """`transformers.TrainingArguments` with the paper's recipe.

    What the size decides (learning rate) and the task (epochs) is None until it is known. Batches are made of rows of
    similar length, padded to the longest of them. Nothing is evaluated or saved before the end unless asked for.
    """

    learning_rate: float | None = field(  # type: ignore[assignment]  # None until the size is known
        default=None, metadata={"help": "The base learning rate; by default that of the size."}
    )
    num_train_epochs: float | None = field(  # type: ignore[assignment]  # None until the task is known
        default=None, metadata={"help": "Passes over the training rows; by default the task's."}
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Rows a step (paper, Table 7)."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Rows at once in evaluation."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of warm-up; below 1: a share of all steps."})
    weight_decay: float = field(default=0.0, metadata={"help": "Decoupled weight decay (paper, Table 7: none)."})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "Epsilon of Adam."})
    bias_correction: bool = field(
        default=False, metadata={"help": "Adam with bias correction; the original has none."}
    )
    train_sampling_strategy: str = field(
        default="group_by_length", metadata={"help": "group_by_length (less padding), random or sequential."}
    )
    save_strategy: str = field(default="no", metadata={"help": "When to write checkpoints: no, steps or epoch."})
    save_total_limit: int | None = field(default=1, metadata={"help": "Checkpoints to keep."})
    logging_steps: float = field(default=50, metadata={"help": "Steps between two lines of the log."})
    bf16: bool | None = field(  # type: ignore[assignment]  # None until `__post_init__`
        default=None, metadata={"help": "bfloat16 autocast. By default where a GPU supports it, and not on a CPU."}
    )
    dataloader_pin_memory: bool | None = field(  # type: ignore[assignment]  # None until `__post_init__`
        default=None, metadata={"help": "Batches in pinned memory. By default where there is a GPU."}
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "Leave off: there are none."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide losses that are not finite."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Leave off: all are used."})

    def __post_init__(self) -> None:
        defaults = {f.name: f.default for f in fields(self)}
        for name, instead in _REFUSED.items():
            value = getattr(self, name)
            if (value or defaults[name] is True) and value != defaults[name]:
                raise ValueError(f"--{name} has no place in fine-tuning: {instead}.")
        check_hub_options(self)
        settle_by_device(self)
        super().__post_init__()
