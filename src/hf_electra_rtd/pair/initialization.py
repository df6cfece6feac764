"""How new networks are initialized: as transformers draws them (`stock`), or so that they know `neighbours`.

A transformer with random attention, and with position vectors as large as those of the words, needs thousands of steps
to find a word's neighbours, or the other places of the word in the sequence. So four things are set before the first
step:

1. The word table. A bilinear detector is fitted on the training sequences. It detects replaced tokens by two products:
   of the previous token with this one, and of this one with the next. Its vectors become the word table.
2. The way to the neighbours. A few dimensions that the words leave free hold positions as sines. The first head of
   each network begins on the previous token, the second on the next. If a projection makes the embeddings narrower,
   it keeps positions apart from words: the heads could not find them in a mixture.
3. The way to the same word. The next head begins on the other places of its own token. The network learns from there
   to compare two sentences.
4. The output bias. With `rtd`, that of the discriminator begins at the log odds of a masked token. From zero, all
   weights would first move to fit the average, for about a hundred steps, and lose a part of their start.

The first two do nothing without each other. The networks stay stock ELECTRA, with the same parameters
(docs/background/results.md).
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import Blocks, SequenceStream
from hf_electra_rtd.data.tokenization import structural_ids
from hf_electra_rtd.encoders.families import look_up_tables
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.two_tower import TwoTowerForCloze


logger = logging.getLogger(__name__)

INITIALIZATIONS = ("stock", "neighbours")
# All numbers here were found by trial on `tiny`. Positions must be the smaller part of the variance before LayerNorm,
# and their frequencies must be high: with slow sines, every token attends to itself.
_POSITION_SIZE = 16  # dimensions that hold positions: a sine and a cosine for each frequency
_FREQUENCIES = torch.linspace(0.6, 2.6, _POSITION_SIZE // 2)
_AMPLITUDE = 0.15  # amplitude of the sines
_WORD_SCALE = 0.1  # standard deviation of the word table
_SHARPNESS = 6.0  # of the initial attention to a neighbour
_OTHERS = 0.1  # factor of the other rows of these heads
_OFFSETS = (-1, 1)  # relative positions of the tokens that the first heads attend to
_SAME = 8.0  # logit of the initial attention to the same token elsewhere
_AWAY = 9.0  # by how much a token's own position lowers this logit
_LARGEST = 64  # dimensions of each of a token's two fitted vectors, at most; at least `_SMALLEST`
_SMALLEST = 4
# Settings of the fit. An eighth of these tokens was enough for a vocabulary of 8,192, but not for one of 21,128 or
# 30,522.
_STEPS = 600
_BATCH_SIZE = 64
_LEARNING_RATE = 2e-2
_REPLACED = 0.15
_BIAS = -1.8


def begin_on_neighbours(
    model: ElectraForRTDPretraining,
    sequences: Any,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
) -> None:
    """Initializes new networks as `--initialization neighbours` does: their tables, first heads and, with `rtd`, the
    output bias. Call it once, after the model is made and before any trainer trains it. With the seed of the run, and
    `set_seed` of it before the model is made, the weights are those with which the command starts.

    Args:
        model: new networks of ELECTRA. Its `config.mask_probability` is the share of masked tokens of the run.
        sequences: the training sequences, as for [`RTDTrainer`].
        tokenizer: that of the sequences.
        seed: of the fit and of the dimensions that it leaves free. No number is drawn from torch's own generator.

    Raises ValueError for networks of another family or of too few dimensions (see `check_room`).
    """
    check_room(model)
    sequences = sequences.sequences if isinstance(sequences, SequenceStream) else sequences
    tables = _tables(model)
    size = min((min(map(_embedding_size, tables)) - _POSITION_SIZE) // 2, _LARGEST)
    never = structural_ids(tokenizer)
    vectors = fit_neighbours(sequences, model.config.discriminator_config.vocab_size, size, seed, never)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tower in tables:
            _set_tables(tower, vectors, tokenizer.pad_token_id, generator)
        for tower in _readers(model):
            _set_heads(tower.base_model, tower.config)
        if model.config.objective == "rtd":
            odds = model.config.mask_probability / (1 - model.config.mask_probability)
            model.discriminator.discriminator_predictions.dense_prediction.bias.fill_(math.log(odds))


def check_room(model: ElectraForRTDPretraining) -> None:
    """Raises ValueError for networks of another family than ELECTRA, and for embeddings, layers or attention heads of
    too few dimensions."""
    least = _POSITION_SIZE + 2 * _SMALLEST
    configs = [tower.config for tower in _readers(model)]
    width = min([*(config.hidden_size for config in configs), *map(_embedding_size, _tables(model))])
    head_size = min(config.hidden_size // config.num_attention_heads for config in configs)
    is_electra = {tower.model_type for tower in model.config.towers.values()} == {"electra"}
    if not is_electra or width < least or head_size < _POSITION_SIZE:
        raise ValueError(
            f"initialization=neighbours needs networks of ELECTRA with embeddings and layers of at least {least} "
            f"dimensions and attention heads of at least {_POSITION_SIZE}. Use initialization=stock."
        )


def _embedding_size(tower: Any) -> int:
    return int(tower.get_input_embeddings().embedding_dim)


def _tables(model: ElectraForRTDPretraining) -> list[Any]:
    """The networks whose word tables are set."""
    if model.config.sharing == "gdes" and model.generator is not None:
        return [model.generator]  # the discriminator's tables hold differences, which begin at zero
    return list(model.towers.values())


def _readers(model: ElectraForRTDPretraining) -> list[Any]:
    """The networks with one encoder, which sees both neighbours. A shared encoder occurs once."""
    towers = [tower for tower in model.towers.values() if not isinstance(tower, TwoTowerForCloze)]
    return list({id(tower.base_model): tower for tower in towers}.values())


def fit_neighbours(sequences: Any, vocab_size: int, size: int, seed: int, never: list[int]) -> Tensor:
    """Fits vectors (V, 2 * size) that tell which tokens occur next to each other. The logit of "x_t was replaced" is

        u[x_t] + a[x_t-1] . b[x_t] + a[x_t] . b[x_t+1]

    and the vector of a token is its [a, b]. Replacements are drawn with the frequencies of the tokens. The ids in
    `never` are neither replaced nor drawn.
    """
    random = torch.Generator().manual_seed(seed)
    counts = torch.from_numpy(count_tokens(sequences, vocab_size)).double()
    counts[never] = 0
    cumulative = counts.cumsum(0) / counts.sum()
    before, after = (nn.Parameter(0.1 * torch.randn(vocab_size, size, generator=random)) for _ in range(2))
    bias = nn.Parameter(torch.full((vocab_size, 1), _BIAS))
    optimizer = torch.optim.AdamW([before, after, bias], lr=_LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / _STEPS)
    for _ in range(_STEPS):
        ids_BL, inside_BL = _read(sequences, torch.randint(len(sequences), (_BATCH_SIZE,), generator=random).numpy())
        real_BL = inside_BL & ~torch.isin(ids_BL, torch.tensor(never))
        drawn_BL = torch.searchsorted(cumulative, torch.rand(ids_BL.shape, generator=random, dtype=torch.double))
        chosen_BL = real_BL & (torch.rand(ids_BL.shape, generator=random) < _REPLACED)
        read_BL = torch.where(chosen_BL, drawn_BL.clamp(max=vocab_size - 1), ids_BL)
        # `F.embedding` sums its gradients in the same order for any number of threads.
        pairs = (F.embedding(read_BL[:, :-1], before) * F.embedding(read_BL[:, 1:], after)).sum(dim=-1)
        logits_BL = F.embedding(read_BL, bias).squeeze(-1) + F.pad(pairs, (1, 0)) + F.pad(pairs, (0, 1))
        replaced_BL = read_BL.ne(ids_BL).float()
        loss = F.binary_cross_entropy_with_logits(logits_BL[real_BL], replaced_BL[real_BL])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    logger.info(f"Fitted the neighbours of words in {_STEPS} steps; the loss at the end is {loss.item():.3f}.")
    return torch.cat([before, after], dim=1).detach()


def count_tokens(sequences: Any, vocab_size: int) -> np.ndarray:
    """Counts how often each token occurs: int64 (V,)."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for first in range(0, len(sequences), 4096):
        ids_BL, inside_BL = _read(sequences, np.arange(first, min(first + 4096, len(sequences))))
        counts += np.bincount(ids_BL[inside_BL], minlength=vocab_size)
    return counts


def _read(sequences: Any, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """Returns the ids of some sequences, int64 (B, L), and which of them are not padding, bool (B, L)."""
    if isinstance(sequences, Blocks):
        batch = sequences.read(indices)
        ids_BL = torch.from_numpy(batch.ids.astype(np.int64))
        lengths = torch.from_numpy(batch.lengths)
    else:
        rows = [torch.as_tensor(sequences[index]["input_ids"]) for index in indices.tolist()]
        ids_BL = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
    return ids_BL, torch.arange(ids_BL.shape[1]) < lengths[:, None]


def _set_tables(tower: Any, vectors: Tensor, pad: int, random: torch.Generator) -> None:
    """Sets both tables. A word has zeros in the dimensions of positions, then its fitted vector, then random numbers;
    a position has only sines."""
    encoder = tower.base_model
    words, positions = (encoder.get_submodule(name).weight for name in look_up_tables(encoder))
    fitted = slice(_POSITION_SIZE, _POSITION_SIZE + vectors.shape[1])
    words.copy_(torch.randn(words.shape, generator=random) * _WORD_SCALE)
    words[:, :_POSITION_SIZE] = 0
    words[:, fitted] = vectors * (_WORD_SCALE / vectors.std())
    words[pad] = 0
    angles = torch.arange(len(positions))[:, None] * _FREQUENCIES
    positions.zero_()
    positions[:, :_POSITION_SIZE] = _AMPLITUDE * torch.cat([angles.sin(), angles.cos()], dim=1)


def _set_heads(encoder: Any, config: Any) -> None:
    """Sets one head for each offset, whose queries are its keys turned by that many positions, and one head for the
    same token. They are the first heads of the network, in as many layers as they need."""
    size = config.hidden_size
    project = getattr(encoder, "embeddings_project", None)
    if project is not None and size < project.in_features:  # it would mix positions with words
        scale = project.weight.norm(dim=1).mean().item()
        project.weight[:_POSITION_SIZE] = 0
        project.weight[:, :_POSITION_SIZE] = 0
        project.weight[:_POSITION_SIZE, :_POSITION_SIZE] = scale * torch.eye(_POSITION_SIZE)
    inverse = torch.eye(size) if project is None else _pseudo_inverse(project.weight)
    select = inverse[:_POSITION_SIZE]
    for number, offset in enumerate(_OFFSETS):
        cosines = (offset * _FREQUENCIES).cos().diag()
        sines = (offset * _FREQUENCIES).sin().diag()
        turn = torch.cat([torch.cat([cosines, sines], dim=1), torch.cat([-sines, cosines], dim=1)])
        _set_head(encoder, config, number, _SHARPNESS * turn @ select, _SHARPNESS * select)
    head_size = size // config.num_attention_heads
    words = inverse[_POSITION_SIZE:head_size]
    scale = 1.0
    if project is not None and config.num_attention_heads <= len(_OFFSETS):
        # This head is then in a later layer, where a LayerNorm has given the projected embeddings a variance of one.
        scale = project.weight.square().sum(dim=1).mean().sqrt().item()
    words = scale * math.sqrt(_SAME * math.sqrt(head_size) / max(len(words), 1)) * words
    places = scale * math.sqrt(_AWAY * math.sqrt(head_size) / _POSITION_SIZE) * select
    _set_head(encoder, config, len(_OFFSETS), torch.cat([-places, words]), torch.cat([places, words]))


def _set_head(encoder: Any, config: Any, number: int, query: Tensor, key: Tensor) -> None:
    """Sets the first rows of head `number`, counted through all layers, and makes its other rows small. Does nothing
    where there are fewer heads."""
    index, head = divmod(number, config.num_attention_heads)
    if index >= len(encoder.encoder.layer):
        return
    head_size = config.hidden_size // config.num_attention_heads
    attention = encoder.encoder.layer[index].attention.self
    for layer, matrix in ((attention.query, query), (attention.key, key)):
        rows = layer.weight[head * head_size : (head + 1) * head_size]
        rows *= _OTHERS
        rows[: len(matrix)] = matrix


def _pseudo_inverse(matrix: Tensor) -> Tensor:
    """Returns the pseudo-inverse, computed by one thread, because LAPACK's rounding depends on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return torch.linalg.pinv(matrix.cpu().float())
    finally:
        torch.set_num_threads(threads)
