"""Measures the accuracy of a model on minimal pairs such as BLiMP's: which sentence of a pair does it find likelier?

A pair is an acceptable sentence and a slightly different one that is not acceptable. A model is right if its score of
the acceptable sentence is higher, and half right if both scores are equal (Warstadt et al. 2020, arXiv 1912.00582).
Scores are sums of log-probabilities in nats, without those of special tokens:

- a pair of networks: its pseudo-log-likelihood ([`ElectraForRTDPretraining.pseudo_log_likelihood`]);
- a masked language model: the sum of log p(token | all other tokens), from one masked copy of the sentence for each
  token (Salazar et al. 2020, arXiv 1910.14659). `within_words` also masks the tokens to the right in the same word,
  because the pieces of a word give each other away (Kauf and Ivanova 2023, arXiv 2305.10588, "PLL-word-l2r");
- a causal language model: the sum of log p(token | the tokens before it). Without a beginning-of-sequence token, the
  first token of a sentence has no probability and is left out;
- counted bigrams: the sum of log p(token | the token before it), from [CLS] to [SEP].
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoTokenizer

from hf_electra_rtd.base.files import hash_files, hash_model, load_pretrained, reading, write_text
from hf_electra_rtd.base.records import EvaluationRecord, collect_hardware, collect_versions, public, utc_now
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.reader import records_of
from hf_electra_rtd.data.tokenization import load_tokenizer, tokenizer_hash
from hf_electra_rtd.encoders.families import max_length, mixes_by_attention
from hf_electra_rtd.pair.bigram import CountedBigram
from hf_electra_rtd.pair.generators import masked_log_likelihoods
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining, UnscorableTextError
from hf_electra_rtd.pair.places import CONFIG_FILE, identify, read_stock_config
from hf_electra_rtd.pair.towers import load_masked_lm, load_whole


RESAMPLES = 1000
INTERVAL = (0.025, 0.975)
_SEED = 0  # for resampling paradigms; the same for all models, so that their differences are paired
_COLUMNS = ("sentence_good", "sentence_bad")  # columns of BLiMP's files, and of a .tsv in this order
_SPLIT = "test"  # the name of the judged pairs in records
SETTINGS = ("model", "pairs", "max_pairs", "within_words", "counted_on")  # the settings that decide a result

Scorer = Callable[[Sequence[str]], list[float]]


@dataclass(frozen=True)
class SentencePair:
    """An acceptable sentence, `good`, and an unacceptable one, `bad`."""

    paradigm: str  # name of the pairs that differ in the same way, usually a file
    phenomenon: str  # the group that the paradigm belongs to
    good: str
    bad: str


@dataclass
class PairResult:
    """Accuracies, as fractions, on pairs of sentences."""

    paradigms: dict[str, float]
    phenomena: dict[str, float]  # means over the paradigms of each phenomenon
    num_pairs: int
    resampled: np.ndarray = field(repr=False)  # `accuracy` for paradigms drawn with replacement, `RESAMPLES` times

    @property
    def accuracy(self) -> float:
        """The mean over all paradigms."""
        return fmean(self.paradigms.values())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `resampled`, as an estimate of the accuracy on other paradigms of the same kind."""
        low, high = np.quantile(self.resampled, INTERVAL)
        return float(low), float(high)


# ---- Pairs ----


def read_pairs(path: str | Path, max_pairs: int | None = None) -> list[SentencePair]:
    """Reads the pairs of a file, or of all `.jsonl` and `.tsv` files below a directory: the first `max_pairs` of each
    paradigm.

    A line of `.jsonl` has `sentence_good` and `sentence_bad`. It may have the paradigm (`UID`, or `paradigm`; by
    default the name of the file) and the phenomenon (`linguistics_term`, or `phenomenon`; by default the paradigm).
    These are the names in BLiMP, SLING and ZhoBLiMP. A line of `.tsv` is the acceptable sentence, a tab, and the other
    sentence; a header `sentence_good`, tab, `sentence_bad` is no pair. Raises ValueError, with file and line, for
    anything else, and if there are no pairs."""
    pairs: list[SentencePair] = []
    counts: Counter[str] = Counter()
    for file in _files_of(Path(path)):
        for place, row in records_of(str(file), file.suffix[1:], columns=_COLUMNS):
            with reading(place, "A row has the texts sentence_good and sentence_bad."):
                paradigm = str(row.get("UID", row.get("paradigm", file.stem)))
                phenomenon = str(row.get("linguistics_term", row.get("phenomenon", paradigm)))
                sentences = [row[name] for name in _COLUMNS]
                if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
                    raise ValueError("a sentence is not a text, or is empty")
            if sentences == list(_COLUMNS):
                continue  # the header of a .tsv
            pair = SentencePair(paradigm, phenomenon, *sentences)
            counts[paradigm] += 1
            if max_pairs is None or counts[paradigm] <= max_pairs:
                pairs.append(pair)
    if not pairs:
        raise ValueError(f"{path} holds no pairs of sentences. Give .jsonl or .tsv files, or their directory.")
    return pairs


def _files_of(path: Path) -> list[Path]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [file for file in files if file.suffix in (".jsonl", ".tsv")]


# ---- Accuracies ----


def judge_pairs(pairs: Sequence[SentencePair], scorer: Scorer) -> PairResult:
    """Returns the accuracies of a `scorer` of sentences."""
    scores = scorer([sentence for pair in pairs for sentence in (pair.good, pair.bad)])
    points: dict[str, list[float]] = defaultdict(list)
    groups: dict[str, set[str]] = defaultdict(set)  # the paradigms of each phenomenon
    for pair, good, bad in zip(pairs, scores[::2], scores[1::2], strict=True):
        points[pair.paradigm].append(0.5 if good == bad else float(good > bad))
        groups[pair.phenomenon].add(pair.paradigm)
    paradigms = {paradigm: fmean(of_paradigm) for paradigm, of_paradigm in points.items()}
    phenomena = {phenomenon: fmean(paradigms[name] for name in sorted(names)) for phenomenon, names in groups.items()}
    values = np.array(list(paradigms.values()))
    rows = np.random.default_rng(_SEED).integers(len(values), size=(RESAMPLES, len(values)))
    return PairResult(paradigms, phenomena, len(pairs), values[rows].mean(axis=1))


# ---- Scores of sentences ----


def pair_scorer(model: ElectraForRTDPretraining, tokenizer: Any, batch_size: int = 64) -> Scorer:
    """Returns a scorer by a pair of networks: the pseudo-log-likelihood. It raises the errors of
    `token_log_likelihoods`."""

    def of_batch(texts: Sequence[str]) -> list[float]:
        return model.pseudo_log_likelihood(texts, tokenizer, batch_size)

    return partial(_by_length, of_batch, model, tokenizer, batch_size)


def masked_scorer(network: Any, tokenizer: Any, within_words: bool = False, batch_size: int = 256) -> Scorer:
    """Returns a scorer by a masked language model."""
    if not mixes_by_attention(network.config):
        batch_size = 1  # other networks may also read the padding

    @torch.inference_mode()
    def of_batch(texts: Sequence[str]) -> list[float]:
        options = {"padding": True, "padding_side": "right", "split_special_tokens": True}
        batch = tokenizer(list(texts), return_tensors="pt", **options).to(network.device)
        mask = batch["attention_mask"]
        # Special tokens belong to no word.
        rows = [[-1 if word is None else word for word in batch.word_ids(row)] for row in range(len(texts))]
        words_BL = torch.tensor(rows, device=network.device)
        log_p_BL = masked_log_likelihoods(
            network,
            batch["input_ids"],
            tokenizer.mask_token_id,
            words_BL if within_words else None,
            attention_mask=None if mask.all() else mask,
        )
        return log_p_BL.cpu().double().where(words_BL.cpu().ge(0), 0).sum(dim=1).tolist()

    return partial(_by_length, of_batch, network, tokenizer, batch_size)


def causal_scorer(network: Any, tokenizer: Any, batch_size: int = 64) -> Scorer:
    """Returns a scorer by a causal language model."""
    begin = tokenizer.bos_token_id
    padding = tokenizer.pad_token_id or 0  # any id will do: padding is to the right of all scored tokens

    @torch.inference_mode()
    def of_batch(texts: Sequence[str]) -> list[float]:
        rows = token_ids(tokenizer, texts)
        if begin is not None:
            rows = [[begin, *ids] for ids in rows]
        sequences = [torch.tensor(ids, dtype=torch.int64) for ids in rows]
        input_ids = pad_sequence(sequences, batch_first=True, padding_value=padding).to(network.device)
        mask = pad_sequence([torch.ones_like(ids) for ids in sequences], batch_first=True).to(network.device)
        log_p = network(input_ids=input_ids, attention_mask=mask).logits[:, :-1].log_softmax(dim=-1)
        following = log_p.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        return (following.cpu().double() * mask[:, 1:].cpu()).sum(dim=1).tolist()

    return partial(_by_length, of_batch, network, tokenizer, batch_size)


def bigram_scorer(counted: CountedBigram, tokenizer: Any) -> Scorer:
    """Returns a scorer by bigrams that were counted on prepared text, from [CLS] to [SEP]. It raises
    `UnscorableTextError` for a text without a token."""

    def score(texts: Sequence[str]) -> list[float]:
        scores = []
        for text in texts:
            ids = np.array(tokenizer(text, split_special_tokens=True)["input_ids"])
            if len(ids) == tokenizer.num_special_tokens_to_add():
                raise UnscorableTextError(f"The text {text[:40]!r} has no token.")
            scores.append(float(np.log(counted.probabilities(ids[:-1], ids[1:])).sum()))
        return scores

    return score


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of texts, without special tokens. A `[MASK]` in a text is read as text."""
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    ids: list[list[int]] = tokenizer([*texts], **options)["input_ids"]
    return ids


def _by_length(of_batch: Scorer, network: Any, tokenizer: Any, batch_size: int, texts: Sequence[str]) -> list[float]:
    """Returns the scores of all texts. Each distinct text is scored once, in batches of similar length. Raises
    `UnscorableTextError` for a text without a token, or with more tokens than the network reads."""
    distinct = list(dict.fromkeys(texts))
    lengths = list(map(len, token_ids(tokenizer, distinct)))
    # At least 1, because the tokenizer of a causal model does not count the token that a sentence begins with.
    special = max(1, tokenizer.num_special_tokens_to_add())
    towers = getattr(network.config, "towers", {"": network.config})
    room = min(map(max_length, towers.values())) - special
    for text, length in zip(distinct, lengths, strict=True):
        if not length:
            raise UnscorableTextError(f"The text {text[:40]!r} has no token.")
        if length > room:
            raise UnscorableTextError(f"The text {text[:40]!r} has {length} tokens, and the model reads {room}.")
    order = sorted(range(len(distinct)), key=lengths.__getitem__, reverse=True)  # the largest batch first
    scores: dict[str, float] = {}
    with tqdm(total=len(distinct), desc="Scoring", unit=" sentences", delay=2, leave=False, disable=None) as progress:
        for start in range(0, len(order), batch_size):
            some = [distinct[place] for place in order[start : start + batch_size]]
            scores |= zip(some, of_batch(some), strict=True)
            progress.update(len(some))
    return [scores[text] for text in texts]


# ---- Which scorer a name stands for ----


@dataclass(frozen=True)
class Judge:
    """A scorer, with the model and tokenizer that records describe."""

    scorer: Scorer
    network: Any  # None for counted bigrams
    tokenizer: Any


def load_judge(name: str, within_words: bool = False, counted_on: str | None = None) -> Judge:
    """Loads the scorer of a pair of networks, or of a masked or causal language model (a directory or a Hub id). With
    `counted_on`, a block file, loads the scorer of its bigrams; `name` is then the tokenizer of the blocks. Raises
    ValueError for any other model, and for `within_words` with a model that does not fill masks."""
    if counted_on is not None:
        tokenizer = load_tokenizer(name)
        blocks = BlockFile(counted_on)
        if blocks.header.tokenizer_hash != tokenizer_hash(tokenizer):
            raise ValueError(f"counted_on: {counted_on} was made with another tokenizer than {name}. Name that one.")
        return Judge(bigram_scorer(CountedBigram(blocks, len(tokenizer)), tokenizer), None, tokenizer)
    place = identify(name)
    network: Any
    make: Callable[..., Scorer]
    if place.pair is not None:
        network = ElectraForRTDPretraining.from_pretrained(place.pair, dtype="float32")
        make = pair_scorer
        if within_words and network.config.objective == "mlm":
            network = network.discriminator
            make = masked_scorer
    elif place.generator is not None:
        network = load_masked_lm(place.generator)
        make = masked_scorer
    elif (place.architecture or "").endswith(("ForCausalLM", "LMHeadModel")):
        network_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(read_stock_config(place.name))]
        network, _ = load_whole(network_class, place.name, dtype="float32")
        make = causal_scorer
    else:
        raise place.error("a run, a masked language model such as a generator/, or a causal language model")
    if within_words and make is not masked_scorer:
        raise ValueError(
            f"within_words: {name} fills no masks. Name a masked language model (of a run, its generator/), or leave "
            "it out."
        )
    network.eval()
    if torch.accelerator.is_available():
        network.to(torch.accelerator.current_accelerator())
    # `load_tokenizer` would refuse that of a causal model, which has neither [CLS] nor [MASK], and often no padding.
    load = partial(load_pretrained, AutoTokenizer) if make is causal_scorer else load_tokenizer
    tokenizer = load(place.tokenizer)
    options = {"within_words": True} if within_words else {}
    return Judge(make(network, tokenizer, **options), network, tokenizer)


# ---- Record ----


def write_result(
    directory: str | Path, result: PairResult, judge: Judge, command: str, settings: Mapping[str, Any], started: str
) -> EvaluationRecord:
    """Writes `evaluation_record.json`, and `report_test.json` with the accuracy of each paradigm and the resampled
    accuracies, whose differences `compare` reports. `settings` are the values of `SETTINGS` as the user gave them;
    `started` is the time of the start, in UTC. Returns the record."""
    path = Path(os.path.abspath(settings["pairs"]))  # even `.` has a name
    model = Path(settings["model"])
    network = judge.network
    data = hash_files(_files_of(path))
    seconds = max(time.time() - datetime.fromisoformat(started).timestamp(), 1e-9)
    num_parameters = 0 if network is None else network.num_parameters()
    record = EvaluationRecord(
        command=command,
        started=started,
        finished=utc_now(),
        benchmark="pairs",
        task=path.stem,
        language="",
        kind="pairs",
        dataset={"title": path.stem, "id": None, "config": None, "splits": {}, "text_columns": []},
        model={
            "name_or_path": public(str(settings["model"]), "name_or_path"),
            "sha256": hash_model(model) if network is not None and (model / CONFIG_FILE).is_file() else None,
            "tokenizer": tokenizer_hash(judge.tokenizer),
            "architecture": "CountedBigram" if network is None else type(network).__name__,
            "parameters": num_parameters,
            "trained_parameters": 0,
            "from_scratch": False,
            "peft": None,
            "size": None,
        },
        arguments={name: public(value, name) for name, value in settings.items() if name not in ("model", "pairs")},
        seed=_SEED,
        data={_SPLIT: {"file": path.name, "sha256": data, "examples": result.num_pairs}},
        metrics={_SPLIT: {"accuracy": result.accuracy, **result.phenomena}},
        main_metric="accuracy",
        selection="not trained",
        steps=0,
        epochs=0,
        train_seconds=0.0,
        examples_per_second=result.num_pairs / seconds,
        hardware=collect_hardware(),
        versions=collect_versions(),
    )
    report = {
        "title": path.stem,
        "metric": "accuracy",
        "score": result.accuracy,
        "examples": result.num_pairs,
        "interval": result.interval,
        "paradigms": result.paradigms,
        "resampled": result.resampled.round(6).tolist(),
        "data": f"{data} {settings.get('max_pairs')}",
    }
    write_text(Path(directory) / f"report_{_SPLIT}.json", json.dumps(report, ensure_ascii=False) + "\n")
    record.save(directory)
    return record
