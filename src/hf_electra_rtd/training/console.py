"""The screen output of a run: a line for each log, tables, and at the end what the discriminator finds."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.cells import cell_len, set_cell_size
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerState

from hf_electra_rtd.base.accounting import format_duration
from hf_electra_rtd.base.records import PretrainingRecord
from hf_electra_rtd.data.blocks import SequenceStream
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.units import SENTENCE_ENDS
from hf_electra_rtd.data.words import join_words, shown_tokens, words_of
from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.pair.measures import observe
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.meters import NEAR_CHANCE, OLD


WIDTH = 100  # columns of the output without a terminal; every log line fits
# The metrics in the line of a training log, and of an evaluation; the record has all metrics.
_BRIEF = {
    "generator_loss",
    "discriminator_loss",
    "discriminator_recall",
    "discriminator_masked_accuracy",
    "discriminator_token_accuracy",
}
_BRIEF_HELD_OUT = {*_BRIEF, "discriminator_auc", "bigram_auc"} - {"discriminator_recall"}
_RECENT_LOGS = 10  # a computer that slept, or that is busy now, changes the speed
_LONGEST_START = 64  # tokens shown of a sequence
_SCORED_TOKENS = 2048  # tokens of held-out text that are scored
_SENTENCES = 3  # sentences of held-out text that are shown
_LONGEST_SENTENCE = 18  # tokens
_LONGEST_TEXT = 150  # columns of a sentence with its marks, before the last word: two lines
# The verdict on a token and its style, by two facts: the token was replaced, and its score is above 0.5.
_VERDICTS = {
    (True, True): ("found", "bold green"),
    (True, False): ("missed", "bold yellow"),
    (False, True): ("false alarm", "bold red"),
    (False, False): ("", "dim"),
}
SCORES = "x 2: twice the average probability of being replaced ({:.2f}). Above 0.5, a token counts as replaced."


# ---- Logs ----


def describe_metrics(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns a text for each network of its metrics whose names begin with `prefix`, such as
    `{"generator": "loss 6.012, accuracy 9.8%"}`. A network that predicts tokens in place of the discriminator is
    called `encoder`."""
    described = {}
    predicts = any(name.endswith("discriminator_masked_accuracy") for name in metrics)
    for network in ("generator", "discriminator", "bigram"):
        parts = []
        for name, value in metrics.items():
            short = name.removeprefix(f"{prefix}{network}_")
            if short != name and value is not None:
                style = ".3f" if short == "loss" or short.startswith("auc") else ".1%"
                parts.append(f"{short.replace('_', ' ').replace('auc', 'AUC')} {value:{style}}")
        if parts:
            described["encoder" if predicts and network == "discriminator" else network] = ", ".join(parts)
    return described


def format_log(logs: Mapping[str, float], state: TrainerState) -> str | None:
    """Returns the line for a log of training steps or of an evaluation; None for other logs. The time left is that of
    the remaining training steps, at the speed between the last `_RECENT_LOGS` logs."""
    step = state.global_step
    max_steps = max(1, state.max_steps)
    for title, prefix in (("held out", "eval_"), ("old text", OLD)):
        if f"{prefix}discriminator_loss" in logs:
            shown = {name: value for name, value in logs.items() if name.removeprefix(prefix) in _BRIEF_HELD_OUT}
            return "  ".join([f"step {step:,} {title}", *map(" ".join, describe_metrics(shown, prefix).items())])
    if "discriminator_loss" not in logs:
        return None
    shown = {name: value for name, value in logs.items() if name in _BRIEF}
    timed = [log for log in state.log_history if "train_seconds" in log]
    earlier = timed[-_RECENT_LOGS] if len(timed) >= _RECENT_LOGS else {"step": 0, "train_seconds": 0.0}
    seconds_per_step = (logs["train_seconds"] - earlier["train_seconds"]) / max(1, step - earlier["step"])
    left = format_duration(seconds_per_step * (max_steps - step))
    return "  ".join([f"step {step:,}/{max_steps:,}", *map(" ".join, describe_metrics(shown).items()), f"{left} left"])


class LinesCallback(PrinterCallback):
    """Prints logs as lines of text instead of dictionaries. `describe` returns the line of a log, or None for no
    line."""

    def __init__(self, describe: Callable[[Mapping[str, float], TrainerState], str | None] = format_log) -> None:
        super().__init__()
        self._describe = describe

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        line = self._describe(logs or {}, state)
        if state.is_world_process_zero and line is not None:
            tqdm.write(line)
            sys.stdout.flush()


class LinesAndBarCallback(LinesCallback, ProgressCallback):
    """Prints the same lines, and shows the Trainer's progress bar."""


# ---- Tables ----


def open_console(**options: Any) -> Console:
    """Opens the console: as wide as its terminal or COLUMNS says, else `WIDTH` columns."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if is_known else WIDTH, **options)


def print_rows(title: str, rows: Iterable[Sequence[str]], console: Console, header: Sequence[str] = ()) -> None:
    """Prints labels and values in columns under a title; the last column is wrapped to the width of the console."""
    table = [row for row in (header, *rows) if row]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    console.print(title, style="bold", markup=False)
    for *first, last in table:
        start = "".join(f"  {set_cell_size(cell, width)}" for cell, width in zip(first, widths, strict=False))
        print_folded(Text(last), console, start + "  ")


def print_folded(text: Text, console: Console, start: str = "  ") -> None:
    """Prints a text after `start`, wrapped to the width of the console with its lines aligned."""
    for line in text.wrap(console, max(20, console.width - cell_len(start))):
        line.rstrip()
        console.print(Text(start) + line, soft_wrap=True)
        start = " " * cell_len(start)


def print_columns(labels: Sequence[str], columns: Iterable[Sequence[Text]], console: Console) -> None:
    """Prints columns of cells side by side, wrapped to the width of the console; the labels of their lines are on the
    left."""
    table = Table.grid(padding=(0, 2, 0, 0))
    cells = [Text("\n").join([*column, Text()]) for column in columns]
    table.add_row(Text("\n".join(labels), "dim"), Columns(cells, padding=(0, 2, 0, 0)))
    console.print(table)


# ---- What the discriminator finds ----


class ScoredToken(NamedTuple):
    """A token with the discriminator's score."""

    original: str
    corrupted: str  # what the discriminator read
    masked: bool
    probability: float  # that the token was replaced; NaN where the discriminator is not asked
    visible: str = ""  # what the generator read

    @property
    def verdict(self) -> tuple[str, str]:
        """`found`, `missed`, `false alarm` or an empty text, and the style to print it in."""
        return _VERDICTS[self.original != self.corrupted, self.probability > 0.5]


@torch.no_grad()
def read_tokens(model: ElectraForRTDPretraining, collator: Any, sequences: Any) -> list[list[ScoredToken]]:
    """Returns the tokens of each sequence, corrupted as in an evaluation, with the scores of the discriminator."""
    batch = {name: tensor.to(model.device) for name, tensor in collator(sequences).items()}
    training = model.training
    output: Any = model.eval()(**batch)
    model.train(training)
    seen = observe(output, batch)
    names = collator.tokenizer.convert_ids_to_tokens
    stages = (seen.originals, output.corrupted_input_ids, batch["input_ids"])
    scores = seen.real.float() * math.nan
    if model.config.traits.predicts == "replaced":
        asked = seen.masked if model.objective.masked_only else seen.real
        scores = output.logits.float().sigmoid().where(asked, math.nan)
    rows = []
    for row, length in enumerate(seen.real.sum(dim=1).tolist()):
        original, corrupted, visible = (names(stage[row, :length].tolist()) for stage in stages)
        masked, probabilities = (column[row, :length].tolist() for column in (seen.masked, scores))
        rows.append(list(map(ScoredToken, original, corrupted, masked, probabilities, visible)))
    return rows


def print_samples(model: ElectraForRTDPretraining, collator: Any, sequences: Any, console: Console) -> None:
    """Corrupts sequences and prints the start of each. At masked positions it also prints the token that is visible
    there and, with a generator, the token that the generator samples and the discriminator's label. Apart from
    dropout, the samples are those of the first step."""
    stages = ["original", "masked", "sampled", "label"][: 4 if model.config.traits.has_generator else 2]
    console.print(f"Sequences of the first step, {'/'.join(stages)}", style="bold")
    for tokens in read_tokens(model, collator, sequences):
        words = []
        labels = [str(int(token.original != token.corrupted)) for token in tokens]
        read = (show(tokens, collator.tokenizer, stage) for stage in ("original", "visible", "corrupted"))
        for token, *parts in list(zip(tokens, *read, labels, strict=True))[:_LONGEST_START]:
            words.append("/".join(parts[: len(stages)]) if token.masked else parts[0])
        console.print(*words, "\n", markup=False)


def describe_verdicts(tokens: Iterable[ScoredToken]) -> str:
    """Returns a summary such as `23 of 41 replaced tokens found, 3 false alarms`."""
    counts = Counter(token.verdict[0] for token in tokens)
    replaced = counts["found"] + counts["missed"]
    alarms = counts["false alarm"]
    plural = "" if alarms == 1 else "s"
    return f"{counts['found']:,} of {replaced:,} replaced tokens found, {alarms:,} false alarm{plural}"


def describe_reading(auc: float, bigram: float | None) -> str:
    """Returns in words how good an AUC is, compared with the AUC of counted pairs of words (`bigram`) if there is
    one."""
    if auc < NEAR_CHANCE:
        return "is near chance"
    if bigram is None:
        return "does better than chance"
    return "beats counted pairs of words" if auc > bigram else "does not beat counted pairs of words yet"


def average_probability(tokens: Iterable[ScoredToken]) -> float:
    """Returns the mean over the tokens where the discriminator is asked; 1 if there are none, or the mean is 0."""
    asked = [token.probability for token in tokens if not math.isnan(token.probability)]
    return sum(asked) / max(1, len(asked)) or 1.0


def show(tokens: Sequence[ScoredToken], tokenizer: PreTrainedTokenizerBase, stage: str = "original") -> list[str]:
    """Returns the tokens at a stage (`original`, `visible`, `corrupted`), in a form for readers."""
    return shown_tokens(tokenizer, [getattr(token, stage) for token in tokens])


def find_sentence(tokens: Sequence[ScoredToken], tokenizer: PreTrainedTokenizerBase) -> list[ScoredToken]:
    """Returns the first sentence with a replaced token, preferably one whose beginning is in the sequence; of a long
    sentence, the part around that token. Empty if no token was replaced."""
    special = {tokenizer.cls_token, tokenizer.sep_token}
    shown = show(tokens, tokenizer)
    replaced = [at for at, token in enumerate(tokens) if token.original != token.corrupted]
    if not replaced:
        return []
    begins = [at + 1 for at, name in enumerate(shown) if name.endswith(SENTENCE_ENDS)]
    first = next((at for at in replaced if begins and at >= begins[0]), replaced[0])
    after_ends = [at + 1 for at, name in enumerate(shown) if name in special or name.endswith(SENTENCE_ENDS)]
    start = max([first - _LONGEST_SENTENCE // 3, 0, *(at for at in after_ends if at <= first)])
    stop = min([start + _LONGEST_SENTENCE, len(tokens), *(at for at in after_ends if at > first)])
    return [token for token in tokens[start:stop] if token.original not in special]


def mark_sentence(tokens: Sequence[ScoredToken], average: float, tokenizer: PreTrainedTokenizerBase) -> Text:
    """Returns a sentence as the discriminator read it. A word that was replaced, or taken for replaced, is followed by
    the original word, the verdict, and the probability divided by `average`. A long text is cut after a word."""
    words = [tokens[each.start : each.stop] for each in words_of(tokenizer, [token.original for token in tokens])]
    text = Text()
    for word, shown in zip(words, join_words(tokenizer, [[t.corrupted for t in word] for word in words]), strict=True):
        if text.cell_len > _LONGEST_TEXT:
            break
        originals = [token.original for token in word]
        worst = max(word, key=lambda token: (token.original != token.corrupted, token.probability > 0.5))
        verdict, style = worst.verdict
        text.append(shown, style if verdict else "")
        if verdict:
            is_same = all(token.original == token.corrupted for token in word)
            was = "" if is_same else f"was {tokenizer.convert_tokens_to_string(originals).strip()}: "
            text.append(f" [{was}{verdict}, x {worst.probability / average:.1f}]", style.removeprefix("bold "))
    return text


# ---- The end of a run ----


def print_summary(
    record: PretrainingRecord,
    output_dir: str,
    held_out: SequenceStream | None,
    collator: DataCollatorForRTD,
) -> None:
    """Prints what the discriminator of a finished run finds in held-out text, what the run cost, its held-out metrics,
    and what to do next. The model is loaded from `output_dir`, where it is complete even if training sharded it."""
    console = open_console()
    config = ElectraRTDConfig.from_dict(record.model)
    metrics = describe_metrics(record.metrics, "eval_")
    detects = config.traits.predicts == "replaced"
    if detects and held_out is not None:
        model = ElectraForRTDPretraining.from_pretrained(output_dir, dtype="float32")
        _print_findings(model, record.metrics, held_out, collator, console)
        metrics.pop("bigram", None)  # the findings show it
    speed = record.tokens / max(record.train_seconds, 1e-9)
    rows = {
        "tokens": f"{record.tokens:,} in {record.sequences:,} sequences, {record.steps:,} steps",
        "training time": f"{format_duration(record.train_seconds)} ({speed:,.0f} tokens/s)",
        **{f"{name}, held out": text for name, text in metrics.items()},
    }
    print_rows(f"The run ({config.objective})", rows.items(), console)
    names = [*reversed(config.towers), "detector"]
    towers = ", ".join(f"{name}/" for name in names if (Path(output_dir) / name).is_dir())
    contents = f"{output_dir} contains {towers} (for stock transformers) and the joint model (to train on). Next:"
    print_folded(Text(contents), console, "")
    run = shlex.quote(output_dir)
    commands = []
    if detects and config.traits.needs_noise:
        commands.append(f'score --model {run} "A sentence of your own."')
    elif detects:
        as_is = "" if config.exports_generator else " --as_is"
        commands.append(f'detect --model {run}{as_is} "A sentence of your own."')
    tuned = f"--output_dir {run}-tuned  # columns text, label"
    commands.append(f"finetune --model_name_or_path {run} --train_file YOUR.csv \\\n      {tuned}")
    if not record.arguments["training"].get("push_to_hub"):
        commands.append(f"publish --run {run} --hub_model_id YOU/NAME --dry_run")
    console.print(*(f"  hf-electra-rtd {command}" for command in commands), sep="\n", markup=False, soft_wrap=True)


def _print_findings(
    model: ElectraForRTDPretraining,
    metrics: Mapping[str, Any],
    held_out: SequenceStream,
    collator: DataCollatorForRTD,
    console: Console,
) -> None:
    """Prints what a discriminator finds in the first held-out sequences, and how good its AUC is."""
    count = min(len(held_out), max(_SENTENCES, _SCORED_TOKENS // (collator.max_seq_length or 128)))
    sequences = read_tokens(model, collator, held_out.__getitems__(range(count)))
    tokens = [token for sequence in sequences for token in sequence]
    console.print(f"\nHeld-out text, {count} sequences: {describe_verdicts(tokens)}.", style="bold")
    auc = metrics["eval_discriminator_auc"] or math.nan
    bigram = metrics.get("eval_bigram_auc")
    if not math.isnan(auc):
        counted = "" if bigram is None else f", a counted bigram {bigram:.3f}"
        told = f"The discriminator {describe_reading(auc, bigram)}: AUC {auc:.3f}{counted} (0.5 is chance)."
        print_folded(Text(told), console, "")
    if any(token.verdict[0] == "found" for token in tokens):
        average = average_probability(tokens)
        print_folded(Text(f"Some of it, with what a replaced word was. {SCORES.format(average)}"), console, "")
        sentences = (find_sentence(sequence, collator.tokenizer) for sequence in sequences)
        for sentence in list(filter(None, sentences))[:_SENTENCES]:
            print_folded(mark_sentence(sentence, average, collator.tokenizer), console)
    console.print()
