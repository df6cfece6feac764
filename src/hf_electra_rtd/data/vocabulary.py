"""Extends the vocabulary of a WordPiece tokenizer by the words of a text that save the most tokens."""

from __future__ import annotations

import copy
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.arguments import DataArguments
from hf_electra_rtd.data.sequences import TOKENIZER_DIRECTORY
from hf_electra_rtd.data.text import open_texts
from hf_electra_rtd.data.tokenization import get_backend, keep_tokenizer, load_tokenizer


logger = logging.getLogger(__name__)

_LEAST_SEEN = 4  # times; a rarer word has too few examples to learn from
_LEAST_PIECES = 3
_MOST_KINDS = 1 << 20  # distinct parts of lines that are held at once
_SHOWN = 8


def get_extended_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    data: DataArguments,
    arguments: Any,
    directory: Path,
    checkpoint: str | None = None,
) -> PreTrainedTokenizerBase:
    """Returns the tokenizer with `count` new words of the training text, which is saved in `directory/tokenizer`; or
    the extended tokenizer of the checkpoint that a run resumes from. The other arguments are those of
    `sequences.get_tokenizer`. Raises ValueError for a tokenizer that cannot be extended, for prepared blocks, for text
    with too few such words, and for a checkpoint with another number of new tokens."""
    if checkpoint or arguments.process_index:
        place = checkpoint or str(directory / TOKENIZER_DIRECTORY)
        extended = load_tokenizer(place)
        if (found := len(extended) - len(tokenizer)) != count:
            remedy = f"Give {found}." if found else "Leave the flag out."
            raise ValueError(f"--extend_vocabulary {count}, but {place} has {found} new tokens. {remedy}")
        return extended
    check_extensible(tokenizer)
    sources = data.sources()
    if any(source.is_prepared for source in sources):
        raise ValueError("--extend_vocabulary chooses words from text, and --train_files are prepared blocks.")
    with open_texts(sources, directory, arguments.disable_tqdm) as texts:
        words = choose_words([(text.read("Counting words"), text.source.weight) for text in texts], tokenizer, count)
    shown = ", ".join(words[:_SHOWN])
    logger.info(f"The vocabulary gets {count:,} new words, those that save the most tokens first: {shown}, ...")
    extended = extend_tokenizer(tokenizer, words)
    keep_tokenizer(extended, directory / TOKENIZER_DIRECTORY)
    return extended


def check_extensible(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError for a tokenizer that is not WordPiece, or has added tokens outside its vocabulary."""
    backend: Any = tokenizer.backend_tokenizer
    if (kind := type(backend.model).__name__) != "WordPiece":
        raise ValueError(f"extend_vocabulary is for a WordPiece tokenizer, and this is {kind}.")
    if added := len(tokenizer) - backend.get_vocab_size(with_added_tokens=False):
        raise ValueError(f"extend_vocabulary: put the {added} added tokens of the tokenizer into its vocab.txt.")


def choose_words(
    texts: Iterable[tuple[Iterable[str], float]], tokenizer: PreTrainedTokenizerBase, count: int
) -> list[str]:
    """Returns the `count` words that save the most tokens, `times seen * (pieces - 1)`, as vocabulary entries, best
    first. `texts` are pairs of lines and weight.

    Words are those that the pre-tokenizer finds, seen at least 4 times (weighted), with at least 3 pieces. A word is
    left out if, as an entry, it would make a longer word of the text unknown, because the rest of that word has no
    pieces. Raises ValueError for text with fewer words.
    """
    backend = get_backend(tokenizer)
    words = defaultdict[str, float](float)
    for lines, weight in texts:
        for part, times in _count_parts(lines):
            normal = backend.normalizer.normalize_str(part) if backend.normalizer else part
            for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal):
                words[word] += weight * times
    pieces = {word: _pieces(backend.model, word) for word in words}
    gains = {
        word: times * (len(pieces[word]) - 1)
        for word, times in words.items()
        if times >= _LEAST_SEEN and len(pieces[word]) >= _LEAST_PIECES
    }
    while True:
        ranked = sorted(gains, key=lambda word: (-gains[word], word))
        if len(ranked) < count:
            raise ValueError(f"extend_vocabulary={count}: the text supports {len(ranked):,}. Ask for fewer.")
        extended = _extended(backend, ranked[:count])
        lost = tuple(word for word in words if pieces[word] and not _pieces(extended, word))
        if not lost:
            return ranked[:count]
        for word in [word for word in ranked[:count] if any(longer.startswith(word) for longer in lost)]:
            del gains[word]


def extend_tokenizer(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> PreTrainedTokenizerBase:
    """Returns a copy of the tokenizer with the words as entries at the end of its vocabulary. The ids of old tokens do
    not change, nor does the tokenization of a text in which no word begins with a new word."""
    extended = copy.deepcopy(tokenizer)
    extended.backend_tokenizer.model = _extended(tokenizer.backend_tokenizer, words)
    return extended


def old_pieces(tokenizer: PreTrainedTokenizerBase, extended: PreTrainedTokenizerBase) -> list[list[int]]:
    """Returns for each new token of the extended tokenizer, in the order of ids, the ids that the old tokenizer splits
    it into."""
    new = extended.convert_ids_to_tokens(list(range(len(tokenizer), len(extended))))
    return [_pieces(tokenizer.backend_tokenizer.model, word) for word in new]


def _pieces(model: Any, word: str) -> list[int]:
    """Returns the ids of a word's pieces; an empty list for an unknown word."""
    return [piece.id for piece in model.tokenize(word) if piece.value != model.unk_token]


def _count_parts(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yields the parts of lines between white space, and how often each occurs. They are counted over many lines,
    because it is quicker to split each distinct part once."""
    seen = Counter[str]()
    for line in lines:
        seen.update(line.split())
        if len(seen) >= _MOST_KINDS:
            yield from seen.items()
            seen.clear()
    yield from seen.items()


def _extended(backend: Any, words: Sequence[str]) -> Any:
    from tokenizers.models import WordPiece

    vocabulary = backend.get_vocab(with_added_tokens=False)
    vocabulary |= {word: index for index, word in enumerate(words, len(vocabulary))}
    options = ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word")
    return WordPiece(vocabulary, **{name: getattr(backend.model, name) for name in options})
