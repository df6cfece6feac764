"""The flags of `finetune`, and the rules about flags that cannot be combined."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from transformers import TrainingArguments

from hf_electra_rtd.base.cli import HelpGroups, Rule, check_arguments, flag, required
from hf_electra_rtd.base.files import check_name
from hf_electra_rtd.base.recipes import FINETUNING, SIZES
from hf_electra_rtd.finetuning.scores import METRICS
from hf_electra_rtd.training.arguments import (
    OPTIMIZER_RULES,
    TRAINER_INTERVALS,
    check_hub_options,
    check_reports,
    settle_by_device,
)


@dataclass
class TaskArguments:
    """Models and tasks."""

    model_name_or_path: str = required("Directory or Hub id of an encoder, or a pre-training run.")
    benchmark: str = flag("glue", "glue, clue, more, or own (--train_file, ...).")
    task_name: list[str] = flag(["all"], "One or more tasks, or all.")
    data_dir: str | None = flag(None, "Directory of the benchmark in its official layout. Default: the Hub.")
    seeds: int = flag(1, "Number of runs of each task, with the seeds seed, seed + 1, ...", "[1, inf)")
    tokenizer: str | None = flag(None, "Directory, Hub id or vocab.txt to use in place of the model's tokenizer.")
    fractions: bool = flag(False, "Fine-tune what a run exported by --checkpoint_fractions: scores along the run.")
    from_scratch: bool = flag(False, "Use the model's architecture with random weights: no pre-training.")
    size: str | None = flag(
        None, f"Recipe to use: {', '.join(SIZES)}. Default: guessed from the model.", choices=SIZES
    )
    layerwise_lr_decay: float | None = flag(
        None,
        "Factor of the learning rate from one layer to the layer below. 1: none. Default: that of the size; 1 for "
        "correction, embeddings and LoRA.",
        "(0, 1]",
    )
    max_seq_length: int | None = flag(None, "Tokens per example. Default: depends on the task.", "[3, inf)")
    doc_stride: int = flag(128, "Question answering: tokens that two windows of a context share.", "[0, inf)")
    max_query_length: int = flag(64, "Question answering: tokens of a question; longer ones are cut off.", "[1, inf)")
    dropout: float | None = flag(
        None, "Dropout in the encoder and before its head. Default: 0.1, or that of the model.", "[0, 1)"
    )
    select: Literal["last", "best"] = flag(
        "last", "Keep the model after the last step, or the one with the best dev score."
    )
    class_weights: Literal["none", "balanced"] = flag(
        "none", "Classification: balanced gives every class the same weight."
    )
    max_train_samples: int | None = flag(None, "Train on this many examples, drawn at random.", "[1, inf)")
    predict: bool = flag(False, "Predict the test split and write the files for the benchmark's server.")
    keep_models: Literal["best", "all", "none"] = flag("best", "Which fine-tuned models to keep (best: by dev score).")
    overwrite_output_dir: bool = flag(False, "Delete the results of these tasks in output_dir.")
    lora: bool = flag(False, "Train low-rank adapters and the head only.")
    lora_r: int = flag(8, "Rank of the adapters.", "[1, inf)")
    lora_alpha: int = flag(16, "Alpha of LoRA: the output of the adapters is multiplied by alpha / rank.", "(0, inf)")
    lora_dropout: float = flag(0.1, "Dropout before the adapters.", "[0, 1)")
    merge_adapter: bool = flag(False, "Also save the model with merged adapters, which loads without peft.")


@dataclass
class OwnTaskArguments:
    """Your own task."""

    train_file: str | None = flag(None, "Examples to train on: .csv, .tsv, .jsonl, .parquet, .conll or SQuAD's .json.")
    validation_file: str | None = flag(
        None, "Examples to evaluate on. Default: a share of the training examples (--validation_share)."
    )
    test_file: str | None = flag(None, "Examples to predict, labeled or not.")
    validation_share: float | None = flag(
        None, "Share of the training examples to hold out. Default: 0.1 if there is no dev split.", "[0, 1)"
    )
    dataset: str | None = flag(None, "A dataset on the Hub, instead of files.")
    dataset_config: str | None = flag(None, "Configuration of the --dataset.")
    dataset_revision: str | None = flag(None, "Branch, tag or commit of the --dataset.")
    dataset_splits: list[str] | None = flag(
        None, "Splits of the --dataset: train=train[:90%%] dev=train[90%%:] test=test."
    )
    task_kind: str = flag("classification", f"What a label is: {', '.join(METRICS)}.", choices=METRICS)
    text_column_name: str = flag("text", "Column of the text, or of the words to tag.")
    second_text_column_name: str | None = flag(None, "Column of a pair's second text.")
    label_column_name: str | None = flag(
        None, "Column of the labels. Default: label; answers for questions; right for correction."
    )
    id_column_name: str | None = flag(None, "Column with ids to write beside predictions.")
    labels: list[str] | None = flag(None, "The classes, in order. Default: those of the training data, sorted.")
    unanswerable: bool | None = flag(None, "A context may contain no answer. Default: if some answers are empty.")
    metrics: list[str] | None = flag(
        None, "Metrics; the first is the main one. Default: the usual ones for this kind of task."
    )
    language: str = flag("", "en, zh, ko, ...: for the record, and for the rules of scoring answers.")

    def __post_init__(self) -> None:
        check_arguments(self, dashes="")
        if self.labels is not None and not len(set(self.labels)) == len(self.labels) > 1:
            raise ValueError("labels must name two or more different classes or tags.")
        known = METRICS[self.task_kind]
        for metric in self.metrics or ():
            check_name("metrics", metric, known)
        if self.metrics and self.metrics[0] == "false_positive_rate":
            raise ValueError("metrics: a lower false_positive_rate is better, so it cannot be the first.")

    @property
    def is_given(self) -> bool:
        """Whether a task of the user's own is given."""
        return any(getattr(self, name) for name in _SOURCES)


# The flags of the Trainer that fine-tuning refuses.
ONE_GPU_EACH = "Launch one process for each GPU: `accelerate launch --multi_gpu`."
TRAINER_RULES = (
    *OPTIMIZER_RULES,
    Rule("load_best_model_at_end", "Use --select best."),
    Rule("metric_for_best_model", "The task's main metric chooses."),
    Rule("do_predict", "Use --predict."),
    Rule("auto_find_batch_size", "The recipe needs its batch size."),
    Rule("ignore_data_skip", "A run continues where it stopped."),
    Rule("bf16_full_eval", "Models stay in float32."),
    Rule("fp16_full_eval", "Models stay in float32."),
    Rule("resume_from_checkpoint", "Repeat the command: it continues with what is missing."),
    Rule("data_seed", "The order of the examples follows --seed."),
    Rule("label_smoothing_factor", "The task decides the loss."),
    Rule("prediction_loss_only", "Scores need predictions."),
    Rule("dataloader_drop_last", "Every example is trained on and evaluated."),
    Rule("eval_do_concat_batches", "Predictions go back to their examples."),
    Rule("save_strategy=best", "Use --select best."),
    Rule("fsdp", ONE_GPU_EACH),
    Rule("deepspeed", ONE_GPU_EACH),
)


@dataclass
class FineTuningArguments(TrainingArguments):
    """`transformers.TrainingArguments` with the paper's recipe.

    None means that the value depends on the size (learning rate), the task (epochs) or the device (bfloat16, pinned
    memory). By default, nothing is evaluated or saved before the end.
    """

    learning_rate: float | None = flag(None, "Peak learning rate. Default: depends on the size.")  # type: ignore[assignment]
    num_train_epochs: float | None = flag(None, "Passes over the training examples. Default: depends on the task.")  # type: ignore[assignment]
    per_device_train_batch_size: int = flag(FINETUNING["per_device_train_batch_size"], "Examples per device and step.")
    per_device_eval_batch_size: int = flag(64, "Examples per device in evaluation.")
    warmup_steps: float = flag(FINETUNING["warmup_steps"], "Steps of warm-up; below 1: a share of all steps.")
    weight_decay: float = flag(FINETUNING["weight_decay"], "Decoupled weight decay (paper, Table 7: none).")
    adam_epsilon: float = flag(FINETUNING["adam_epsilon"], "Epsilon of Adam.")
    bias_correction: bool = flag(False, "Use Adam's bias correction. The original does not.")
    train_sampling_strategy: str = flag("group_by_length", "group_by_length (less padding), random or sequential.")
    save_strategy: str = flag("no", "When to write checkpoints: no, steps or epoch.")
    save_total_limit: int | None = flag(2, "Checkpoints to keep.")
    hub_strategy: str = flag("end", "When to publish: at the end.")
    logging_steps: float = flag(50, "Steps between two lines of the log.")
    bf16: bool | None = flag(None, "Use bfloat16 autocast. Default: on if the GPU supports it.")  # type: ignore[assignment]
    dataloader_pin_memory: bool | None = flag(None, "Use pinned memory. Default: on with a GPU.")  # type: ignore[assignment]
    remove_unused_columns: bool = flag(False, "Leave it off: there are none.")
    logging_nan_inf_filter: bool = flag(False, "Hide losses that are not finite.")
    ddp_find_unused_parameters: bool | None = flag(False, "Leave it off: all parameters are used.")

    def __post_init__(self) -> None:
        check_arguments(self, rules=TRAINER_RULES, intervals=TRAINER_INTERVALS, dashes="")
        check_hub_options(self)
        settle_by_device(self)
        super().__post_init__()
        self._n_gpu = min(self.n_gpu, 1)  # no `DataParallel`: several GPUs need `accelerate launch`
        check_reports(self)


_SOURCES = ("train_file", "validation_file", "test_file", "dataset")
_TEXT_KINDS = ("task_kind=classification", "task_kind=multi_label", "task_kind=regression", "task_kind=embedding")
_LABELED = ("task_kind=classification", "task_kind=multi_label", "task_kind=tagging")
NOT_OF_EMBEDDINGS = (
    "lora",
    "layerwise_lr_decay",
    "select=best",
    "bias_correction",
    "eval_strategy=steps",
    "eval_strategy=epoch",
    "eval_on_start",
    "save_strategy=steps",
    "save_strategy=epoch",
    "train_sampling_strategy",
    "push_to_hub",
)
RULES = (
    Rule("fractions", "It fine-tunes several exports of one run.", excludes=("from_scratch", "push_to_hub")),
    Rule("lora", "Adapters would change random weights that nobody keeps.", excludes=("from_scratch",)),
    Rule("lora", "Adapters have one learning rate.", excludes=("layerwise_lr_decay",)),
    Rule("lora", "The head of pre-training is trained, too.", excludes=("task_kind=correction",)),
    Rule("lora_r", "", needs=("lora",), changes_nothing=True),
    Rule("lora_alpha", "", needs=("lora",), changes_nothing=True),
    Rule("lora_dropout", "", needs=("lora",), changes_nothing=True),
    Rule("merge_adapter", "", needs=("lora",), excludes=("keep_models=none",), changes_nothing=True),
    Rule("push_to_hub", "There would be no model to publish.", excludes=("keep_models=none",)),
    Rule("push_to_hub", "No stock class does what this model does.", excludes=("task_kind=correction",)),
    Rule("eval_delay", "It may leave nothing to choose from.", excludes=("select=best",)),
    Rule("lr_scheduler_type=reduce_lr_on_plateau", "It lowers the rate when a score rises."),
    Rule("lr_scheduler_type=greedy", "It needs a loss of the dev split."),
    *(
        Rule(name, "sentence-transformers trains embeddings.", excludes=("task_kind=embedding",))
        for name in NOT_OF_EMBEDDINGS
    ),
    # Rules about the choice of the task.
    Rule("data_dir", "It holds a benchmark.", excludes=_SOURCES),
    Rule("benchmark=clue", "Name a benchmark or a task of your own.", excludes=_SOURCES),
    Rule("benchmark=more", "Name a benchmark or a task of your own.", excludes=_SOURCES),
    Rule("benchmark=own", "There are no examples.", needs=_SOURCES),
    *(
        Rule(entry.name, "It is for a task of your own.", needs=_SOURCES)
        for entry in fields(OwnTaskArguments)
        if entry.name not in _SOURCES
    ),
    Rule("dataset", "Each says where the examples are.", excludes=("train_file", "validation_file", "test_file")),
    Rule("dataset_config", "", needs=("dataset",), changes_nothing=True),
    Rule("dataset_revision", "", needs=("dataset",), changes_nothing=True),
    Rule("dataset_splits", "", needs=("dataset",), changes_nothing=True),
    Rule("second_text_column_name", "Other kinds have no pairs of texts.", needs=_TEXT_KINDS),
    Rule(
        "text_column_name",
        "Columns of this kind have fixed names.",
        excludes=("task_kind=multiple_choice", "task_kind=question_answering"),
        changes_nothing=True,
    ),
    Rule("labels", "Other kinds have no classes or tags.", needs=_LABELED),
    Rule("unanswerable", "", needs=("task_kind=question_answering",), changes_nothing=True),
)
# The flags that `--help` shows, as in `training.pretrain`.
HELP_GROUPS: HelpGroups = {
    "Model and tasks": {
        "model_name_or_path": None,
        "benchmark": None,
        "task_name": None,
        "data_dir": None,
        "seeds": None,
        "predict": None,
        "fractions": None,
    },
    "Your own task": {
        "train_file": None,
        "validation_file": None,
        "test_file": None,
        "dataset": None,
        "task_kind": None,
        "text_column_name": None,
        "second_text_column_name": None,
        "label_column_name": None,
        "metrics": None,
        "language": None,
    },
    "Training": {
        "num_train_epochs": None,
        "max_steps": "In place of --num_train_epochs: steps of a run.",
        "per_device_train_batch_size": None,
        "gradient_accumulation_steps": "Number of batches per optimizer step.",
        "learning_rate": None,
        "layerwise_lr_decay": None,
        "max_seq_length": None,
        "max_train_samples": None,
        "select": None,
        "class_weights": None,
        "lora": None,
        "from_scratch": None,
        "bf16": None,
        "seed": "Seed of the first run: head, dropout and the order of the examples.",
    },
    "Results": {
        "output_dir": "Directory of scores, predictions, reports and models.",
        "overwrite_output_dir": None,
        "keep_models": None,
        "report_to": None,
    },
    "Publishing": {
        "push_to_hub": None,
        "hub_model_id": None,
    },
}
