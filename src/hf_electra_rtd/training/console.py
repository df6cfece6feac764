"""What a person sees of a run: a line for each log, and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerState

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.measures import observe
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.records import PretrainingRecord


# A training log shows the loss of each network and one number of how well it does.
_BRIEF = {
    *("generator_loss", "generator_accuracy", "discriminator_loss", "discriminator_recall"),
    *("discriminator_masked_accuracy", "discriminator_token_accuracy"),
}
_LONGEST_START = 64  # tokens shown of a sequence


def format_duration(seconds: float) -> str:
    """`2:05:09`, `3 days, 2:05:09`."""
    return str(timedelta(seconds=round(seconds)))


def format_flops(flops: Mapping[str, float]) -> str:
    """Both conventions of `hf_electra_rtd.accounting`."""
    return f"{flops['model']:.3g} (matrix products), {flops['paper']:.3g} (as the paper counts)"


# ---- Logs ----


def describe_metrics(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Each network's metrics, whose names begin with `prefix`, as text: `{"generator": "loss 6.0120, accuracy 9.8%"}`.
    A network that predicts tokens in place of the discriminator is called `encoder`."""
    described = {}
    for network in ("generator", "discriminator", "bigram"):
        parts = []
        for name, value in metrics.items():
            short = name.removeprefix(f"{prefix}{network}_")
            if short != name and value is not None:
                style = ".4f" if short == "loss" else ".3f" if short.startswith("auc") else ".1%"
                parts.append(f"{short.replace('_', ' ').replace('auc', 'AUC')} {value:{style}}")
        if parts:
            predicts = network == "discriminator" and f"{prefix}discriminator_recall" not in metrics
            described["encoder" if predicts else network] = ", ".join(parts)
    return described


def format_log(logs: Mapping[str, float], state: TrainerState) -> str | None:
    """The line for a log of training steps or of an evaluation; None for other logs. The time left is that of
    training steps, as many as are left, at the speed of those that were trained."""
    step, max_steps = state.global_step, max(1, state.max_steps)
    parts = [f"step {step:,}/{max_steps:,} ({step / max_steps:.0%})"]
    if "eval_discriminator_loss" in logs:
        parts += ["HELD-OUT", *(f"{name}: {text}" for name, text in describe_metrics(logs, "eval_").items())]
        return "  ".join(parts)
    if "discriminator_loss" not in logs:
        return None
    brief = {name: value for name, value in logs.items() if name in _BRIEF}
    parts += [f"loss {logs['loss']:.3f}", *(f"{name}: {text}" for name, text in describe_metrics(brief).items())]
    if "sampled_accuracy" in logs:
        parts.append(f"sampled {logs['sampled_accuracy']:.1%}, replaced {logs['replaced_share']:.1%}")
    parts += [f"{logs['tokens_per_second']:,.0f} tokens/s", f"lr {logs['learning_rate']:.2e}"]
    parts.append(f"{format_duration(logs['train_seconds'] / max(1, step) * (max_steps - step))} left")
    return "  ".join(parts)


class RTDPrinterCallback(PrinterCallback):
    """Prints lines of text instead of dictionaries."""

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        line = format_log(logs or {}, state)
        if state.is_world_process_zero and line is not None:
            tqdm.write(line)
            sys.stdout.flush()


class RTDProgressCallback(RTDPrinterCallback, ProgressCallback):
    """The same beside the Trainer's progress bar."""


# ---- Tables ----


def print_rows(title: str, rows: Iterable[Sequence[str]], console: Console, header: Sequence[str] = ()) -> None:
    """Prints labels and values in columns under a title."""
    table = Table(*header, title=title, title_justify="left", show_header=bool(header), box=None, padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_summary(record: PretrainingRecord, output_dir: str) -> None:
    """Prints what a finished run trained on, what it cost, its held-out metrics, and where its models are."""
    console, config = Console(highlight=False), ElectraRTDConfig.from_dict(record.model)
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
    towers = "/ and ".join(names)
    console.print(f"\nIn {output_dir}: the joint model, and for stock transformers {towers}/", markup=False)


@torch.no_grad()
def print_samples(model: ElectraForRTDPretraining, collator: Any, sequences: Any, console: Console) -> None:
    """Corrupts sequences and prints the start of each; at masked positions also what is visible there, what the
    generator samples and the discriminator's label. Samples are those of the first step but for dropout."""
    batch = {name: tensor.to(model.device) for name, tensor in collator(sequences).items()}
    training = model.training
    output = model.eval()(**batch)
    model.train(training)
    seen, names = observe(output, batch), collator.tokenizer.convert_ids_to_tokens
    stages = {"original": seen.originals, "masked": batch["input_ids"], "sampled": output.corrupted_input_ids}
    columns = [[names(ids) for ids in stage.tolist()] for stage in stages.values()]
    columns.append([list(map(str, row)) for row in output.replaced_labels.tolist()])
    if not model.config.has_generator:
        del columns[2:]
    console.print(f"Sequences of the first step, {'/'.join([*stages, 'label'][: len(columns)])}", style="bold")
    for row, length in enumerate(seen.real.sum(dim=1).tolist()):
        words = columns[0][row][:length]
        for at in seen.slots.positions[row][seen.used[row]].tolist():
            words[at] = "/".join(column[row][at] for column in columns)
        console.print(*words[:_LONGEST_START], "\n", markup=False)


def print_columns(labels: Sequence[str], columns: Iterable[Sequence[Text]], console: Console) -> None:
    """Prints columns of cells side by side, folded to the console, with the labels of the lines at their left."""
    table = Table.grid(padding=(0, 2, 0, 0))
    cells = [Text("\n").join([*each, Text()]) for each in columns]
    table.add_row(Text("\n".join(labels), "dim"), Columns(cells, padding=(0, 2, 0, 0)))
    console.print(table)
