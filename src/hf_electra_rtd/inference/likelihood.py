"""Scores how likely a model considers each text: prints its pseudo-log-likelihood as a JSON line.

    hf-electra-rtd score --model runs/electric "The chef ate the meal." "The chef ate the river."
    hf-electra-rtd score --model runs/electric < sentences.txt > scores.jsonl

A line holds `text`; `pseudo_log_likelihood`, the sum of log p(token | all other tokens) in nats, over all tokens
except [CLS] and [SEP]; and `num_tokens`. If a text has no score, `skipped` says why. Without texts on the command
line, each line of the standard input is a text. `--model` is the directory of a run, a checkpoint, or a directory or
Hub id of a saved joint model, with the objective `electric` (one pass per text), `rtd` or `mlm` (one pass per token).
It may also be any masked language model, such as a `generator/` or a directory that has one, or a causal language
model (log p(token | the tokens before it); without a beginning-of-sequence token, the first token is counted but not
scored). With `--counted_on`, `--model` is the tokenizer of the blocks, and the score is the sum of log p(token | the
token before it), from [CLS] to [SEP].

    hf-electra-rtd score --model runs/small --pairs blimp/ --max_pairs 200 --output_dir runs/blimp

judges pairs of sentences, the first of which is acceptable, and prints the accuracy for each phenomenon and the mean
over all paradigms. `--pairs` is a file or a directory: the .jsonl files of BLiMP, SLING or ZhoBLiMP, or .tsv files
with two columns.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.base.cli import Rule, check_arguments, flag, parse_arguments, required, run
from hf_electra_rtd.base.files import check_output
from hf_electra_rtd.base.records import EvaluationRecord, public_command, utc_now
from hf_electra_rtd.data.tokenization import check_known, count_unknown_in
from hf_electra_rtd.inference.judging import read_texts
from hf_electra_rtd.inference.minimal_pairs import (
    SETTINGS,
    judge_pairs,
    load_judge,
    read_pairs,
    token_ids,
    write_result,
)
from hf_electra_rtd.pair.modeling_electra_rtd import UnscorableTextError


RULES = (
    Rule("pairs", "Texts are scored one by one, pairs together.", excludes=("texts",)),
    Rule("batch_size", "It is for texts.", excludes=("pairs",), changes_nothing=True),
    Rule("max_pairs", "", needs=("pairs",)),
    Rule("within_words", "Counted bigrams read no masks.", excludes=("counted_on",)),
    Rule("output_dir", "", needs=("pairs",)),
)


@dataclass
class ScoreArguments:
    """Which texts, and the model that scores them."""

    model: str = required("Run, checkpoint, or masked or causal language model: a directory or a Hub id.")
    texts: list[str] = flag([], "Texts, each in quotes. Without TEXT: the lines of the standard input.", words="TEXT")
    batch_size: int = flag(32, "Number of texts that are read at a time.", "[1, inf)")
    pairs: str | None = flag(None, "Pairs of sentences to judge: .jsonl or .tsv, or their directory.")
    max_pairs: int | None = flag(None, "Pairs of each paradigm, the first ones.", "[1, inf)")
    within_words: bool = flag(False, "Also mask the rest of the word, to the right (for masked language models).")
    counted_on: str | None = flag(None, "A block file: score by its counted bigrams, in place of a network.")
    output_dir: str | None = flag(None, "Directory for the record of --pairs.")

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((ScoreArguments,), argv, __doc__)
    disable_progress_bar()
    if arguments.pairs is not None:
        _score_pairs(arguments, arguments.pairs, argv)
        return
    judge = load_judge(arguments.model, arguments.within_words, arguments.counted_on)
    skipped = 0

    def score(batch: list[str]) -> list[dict[str, Any]]:
        try:
            scores = judge.scorer(batch)
        except UnscorableTextError as error:
            if len(batch) == 1:
                return [{"skipped": str(error)}]
            return [facts for text in batch for facts in score([text])]
        ids = token_ids(judge.tokenizer, batch)
        return [
            {"pseudo_log_likelihood": value, "num_tokens": len(of_text)}
            for value, of_text in zip(scores, ids, strict=True)
        ]

    for lines in read_texts(judge.tokenizer, arguments.texts, None, arguments.batch_size, refuses=False):
        texts = [line.strip() for line in lines]
        for text, facts in zip(texts, score(texts), strict=True):
            print(json.dumps({"text": text, **facts}, ensure_ascii=False), flush=True)
            skipped += "skipped" in facts
    if skipped:
        print(f"Skipped: {skipped:,} text(s) without a token, or with too many.", file=sys.stderr)


def _score_pairs(arguments: ScoreArguments, path: str, argv: list[str]) -> None:
    started = utc_now()
    if arguments.output_dir is not None:  # checked before the work
        check_output(arguments.output_dir, replaces=EvaluationRecord.FILE, ours=("report_*.json",))
    pairs = read_pairs(path, arguments.max_pairs)
    judge = load_judge(arguments.model, arguments.within_words, arguments.counted_on)
    sentences = [text for pair in pairs for text in (pair.good, pair.bad)]
    check_known(path, *count_unknown_in(judge.tokenizer, sentences), refuses=False)
    result = judge_pairs(pairs, judge.scorer)
    width = max(map(len, result.phenomena))
    for phenomenon, accuracy in result.phenomena.items():
        print(f"{phenomenon:{width}}  {accuracy:6.1%}")
    summary = f"{result.accuracy:.1%} of {result.num_pairs:,} pairs"
    if len(result.paradigms) > 1:
        low, high = result.interval
        summary += f", the mean of {len(result.paradigms)} paradigms "
        summary += f"(95% interval over paradigms {low:.1%} to {high:.1%})"
    print(summary)
    if arguments.output_dir is not None:
        settings = {name: getattr(arguments, name) for name in SETTINGS}
        write_result(arguments.output_dir, result, judge, public_command([sys.argv[0], *argv]), settings, started)


if __name__ == "__main__":
    run(main)
