"""What a person sees of a run: a line for each log, and at the end a summary and some held-out sentences."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import (
    ElectraForMaskedLM,
    PrinterCallback,
    ProgressCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.data.packing import SENTENCE_ENDS
from hf_electra_rtd.measures import observe
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.ops import replace_at
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.records import PretrainingRecord
from hf_electra_rtd.scored_tokens import LEGEND, ScoredToken, print_columns, scored_cells


# What is shown of each network, in this order, where it was measured.
_SHOWN: dict[str, dict[str, str]] = {
    "generator": {"generator_loss": "loss {:.3f}", "generator_accuracy": "accuracy {:.1%}"},
    "discriminator": {
        "discriminator_loss": "loss {:.4f}",
        "discriminator_auc": "AUC {:.3f}",
        "discriminator_precision": "precision {:.1%}",
        "discriminator_recall": "recall {:.1%}",
        "discriminator_accuracy": "accuracy {:.1%}",
        "discriminator_auc_all": "over all tokens AUC {:.3f}",
        "discriminator_accuracy_all": "accuracy {:.1%}",
        "discriminator_masked_accuracy": "accuracy at masked tokens {:.1%}",
        "discriminator_token_accuracy": "accuracy {:.1%}",
        "discriminator_replaced_accuracy": "at replaced tokens {:.1%}",
        "copy_probability_original": "copies originals {:.1%}",
        "copy_probability_replaced": "replaced {:.1%}",
    },
}
# A training log shows the loss of each network and one number of how well it does.
_BRIEF = {
    *("generator_loss", "generator_accuracy", "discriminator_loss", "discriminator_recall"),
    *("discriminator_masked_accuracy", "discriminator_token_accuracy"),
}
_LONGEST_SAMPLE, _LONGEST_START = 32, 48  # tokens shown of a sentence, and of the start of a sequence


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds: `2:05:09`, `5:09`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_flops(flops: Mapping[str, float]) -> str:
    """Both conventions of `hf_electra_rtd.accounting`."""
    return f"{flops['model']:.3g} (matrix products), {flops['paper']:.3g} (as the paper counts)"


def describe_metrics(metrics: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Each network's metrics as text: `{"generator": "loss 6.012, accuracy 9.8%", ...}`. `prefix` is that of their
    names. A network that predicts tokens in place of the discriminator is called `encoder`."""
    described = {}
    for network, shown in _SHOWN.items():
        values = {name: metrics.get(prefix + name) for name in shown}
        parts = [shown[name].format(value) for name, value in values.items() if value is not None]
        if parts:
            predicts = network == "discriminator" and f"{prefix}discriminator_recall" not in metrics
            described["encoder" if predicts else network] = ", ".join(parts)
    return described


def format_log(logs: dict[str, float], state: TrainerState) -> str | None:
    """The line for a log of training steps or of an evaluation; None for other logs. The time left is that of
    training steps, as many as are left, at the speed of those that were trained."""
    step, max_steps = state.global_step, max(1, state.max_steps)
    place = f"step {step:,}/{max_steps:,} ({step / max_steps:.0%})"
    if "eval_discriminator_loss" in logs:
        networks = "  ".join(f"{name}: {text}" for name, text in describe_metrics(logs, "eval_").items())
        return f"{place}  HELD-OUT  {networks}"
    if "discriminator_loss" not in logs:
        return None
    brief = {name: logs[name] for name in _BRIEF & logs.keys()}
    parts = [place, f"loss {logs['loss']:.3f}"]
    parts += [f"{name}: {text}" for name, text in describe_metrics(brief).items()]
    if "sampled_accuracy" in logs:
        parts.append(f"sampled {logs['sampled_accuracy']:.1%}, replaced {logs['replaced_share']:.1%}")
    parts += [f"{logs['tokens_per_second']:,.0f} tokens/s", f"lr {logs['learning_rate']:.2e}"]
    parts.append(f"{format_duration(logs['train_seconds'] / max(1, step) * (max_steps - step))} left")
    return "  ".join(parts)


def _print_log(
    self: Any, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
) -> None:
    line = format_log(logs or {}, state)
    if state.is_world_process_zero and line is not None:
        tqdm.write(line)
        sys.stdout.flush()


class RTDProgressCallback(ProgressCallback):
    """The Trainer's progress bar with lines of text instead of dictionaries."""

    on_log = _print_log


class RTDPrinterCallback(PrinterCallback):
    """The same lines where progress bars are switched off."""

    on_log = _print_log


def print_rows(title: str, rows: Iterable[Sequence[str]], console: Any, header: Sequence[str] = ()) -> None:
    """Prints labels and values in columns under a title."""
    from rich.table import Table

    look: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "header_style": "dim"}
    table = Table(*header, title=title, show_header=bool(header), box=None, padding=(0, 2), **look)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_summary(record: PretrainingRecord, output_dir: str, console: Any = None) -> None:
    """Prints what a finished run trained on, what it cost, its held-out metrics, and how to load its models."""
    from rich.console import Console

    console = console or Console(highlight=False)
    config = ElectraRTDConfig.from_dict(record.model)
    names = list(config.towers)[::-1]
    counts = ", ".join(f"{name} {record.parameters[name]:,}" for name in names)
    speed = record.tokens / max(record.train_seconds, 1e-9)
    rows = {
        "objective": config.objective,
        "tokens": f"{record.tokens:,} in {record.sequences:,} sequences, {record.steps:,} steps",
        "training time": f"{format_duration(record.train_seconds)} ({speed:,.0f} tokens/s)",
        "parameters": f"{counts}, together {record.parameters['total']:,}",
        "FLOPs": format_flops(record.flops),
        **{f"{name}, held out": text for name, text in describe_metrics(record.metrics, "eval_").items()},
    }
    print_rows("The run", rows.items(), console)
    classes = {"discriminator": get_objective(config.objective).main_tower_class, "generator": ElectraForMaskedLM}
    console.print(
        f"\nIn {output_dir}: the model, {PretrainingRecord.FILE}, {CURVES_FILE}, checkpoints, and what stock "
        "transformers loads:",
        *(f'  {classes[name].__name__}.from_pretrained("{Path(output_dir) / name}")' for name in names),
        sep="\n",
        markup=False,
    )


# ---- Samples ----


@torch.no_grad()
def print_samples(
    model: ElectraForRTDPretraining, collator: Any, sequences: Any, console: Any = None, is_trained: bool = True
) -> None:
    """Corrupts sequences and prints tokens side by side. After training: the sentence of each sequence with the most
    replaced tokens, original, corrupted, and P(replaced) or the token that is predicted. Before: each sequence from
    its start, original, masked, sampled, label; samples are those of the first step but for dropout and precision."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False)
    training = model.training
    batch = {name: tensor.to(model.device) for name, tensor in collator(sequences).items()}
    output = model.eval()(**batch)
    model.train(training)
    seen, predicted = observe(output, batch), output.predictions
    decode = collator.tokenizer.convert_ids_to_tokens
    if not is_trained:
        labels = ("original", "masked", "sampled", "label")[: 4 if model.config.has_generator else 2]
        meaning = " (label 1: replaced)" if model.config.has_generator else ""
        console.print(f"Sequences of the first step, at most {_LONGEST_START} tokens each{meaning}", style="bold")
    elif predicted is None:
        labels = ("original", "corrupted", "replaced?")
        console.print(f"Held-out sentences. {LEGEND}")
        probabilities = output.logits.float().sigmoid()
    else:
        labels = ("original", "corrupted", "predicted")
        console.print("Held-out sentences. Predicted: [bold green]right[/] and [bold red]wrong[/].")
        if predicted.shape != seen.originals.shape:  # at the masked positions only
            predicted = replace_at(torch.full_like(seen.originals, -1), seen.slots, predicted)

    def cells(row: int, at: int, original: str, masked: str, read: str) -> Sequence[Text]:
        is_masked, label = bool(seen.masked[row, at]), int(output.replaced_labels[row, at])
        style = "bold" if read != original else ""
        if not is_trained:
            slot = (Text(masked, style="dim"), Text(read, style=style)) if is_masked else (Text(), Text())
            return (Text(original), *slot, Text(str(label), style=style or "dim"))[: len(labels)]
        if predicted is None:
            return scored_cells(ScoredToken(original, read, is_masked, float(probabilities[row, at])))
        token = decode(int(predicted[row, at])) if predicted[row, at] >= 0 else ""
        right = "bold green" if token == original else "bold red"
        return Text(original), Text(read, style=style), Text(token, style=right)

    for row, length in enumerate(seen.real.sum(dim=1).tolist()):
        ids = (seen.originals, batch["input_ids"], output.corrupted_input_ids)
        tokens = [decode(each[row].tolist()) for each in ids]
        shown = pick_sentence(tokens[0][:length], tokens[2]) if is_trained else range(length)[:_LONGEST_START]
        print_columns(labels, [cells(row, at, *(each[at] for each in tokens)) for at in shown], console)


def pick_sentence(tokens: Sequence[str], corrupted: Sequence[str]) -> range:
    """The positions of the sentence with the most replaced tokens, at most 32 of them. [CLS] and [SEP] belong to no
    sentence."""
    sentences, start = [], 1
    for at, token in enumerate(tokens):
        if token in SENTENCE_ENDS or token == "[SEP]" or at == len(tokens) - 1:
            sentences.append(range(start, at if token == "[SEP]" else at + 1)[:_LONGEST_SAMPLE])
            start = at + 1
    return max(sentences, key=lambda sentence: sum(tokens[at] != corrupted[at] for at in sentence))
