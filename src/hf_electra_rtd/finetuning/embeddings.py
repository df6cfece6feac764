"""Embeddings of texts by sentence-transformers, which the extra `embeddings` installs: its model, trainer and losses.

The embedding of a text is the mean of the encoder's outputs at its tokens.
"""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from tempfile import TemporaryDirectory
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase, TrainingArguments

from hf_electra_rtd.data.tokenization import save_tokenizer
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.kinds.base import Kind, Prediction


try:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from sentence_transformers.sentence_transformer.training_args import (
        BatchSamplers,
        SentenceTransformerTrainingArguments,
    )
except ImportError as error:
    raise ValueError("Embeddings need sentence-transformers: pip install -e '.[embeddings]'.") from error


logger = logging.getLogger(__name__)

# Values of `FineTuningArguments` that this trainer replaces.
_TRAINER = {"remove_unused_columns": True, "train_sampling_strategy": "random", "label_names": None}


def with_mean_pooling(encoder: Any, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> SentenceTransformer:
    """Wraps a bare encoder and its tokenizer in a model of sentence-transformers with mean pooling. Texts are
    truncated to `max_seq_length` tokens."""
    with TemporaryDirectory() as directory:
        encoder.save_pretrained(directory)
        save_tokenizer(tokenizer, directory)
        transformer = Transformer(directory, max_seq_length=max_seq_length)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[transformer, pooling])


def load_embeddings(name: str, use_cpu: bool = False) -> SentenceTransformer:
    """Loads a model that sentence-transformers wrote, from a directory or the Hub."""
    return SentenceTransformer(name, device="cpu" if use_cpu else None, trust_remote_code=False)


def save_embeddings(model: SentenceTransformer, directory: str | os.PathLike[str]) -> None:
    """Writes a directory that `SentenceTransformer(directory)` loads. It has no card, because the template of cards
    would name a directory of this machine as the base model."""
    model.save_pretrained(os.fspath(directory), create_model_card=False)


class EmbeddingTuner(SentenceTransformerTrainer):
    """Trains embeddings. If pairs have numbers, these pairs are trained by the order of their similarities (CoSENT).
    Otherwise, a text is trained to be nearer to its partner than to the others of its batch (InfoNCE,
    `MultipleNegativesRankingLoss`). A single text is its own partner, with other dropout (SimCSE; Gao et al. 2021,
    arXiv 2104.08821)."""

    evaluation_seconds = 0.0

    def __init__(self, model: SentenceTransformer, args: TrainingArguments, kind: Kind, train: Split) -> None:
        assert train.features is not None
        examples = train.examples.select(train.features["example"])
        with_number = [row for row, label in enumerate(examples["label"]) if label is not None]
        if 0 < len(with_number) < len(examples):
            logger.warning(f"{kind.task.title}: some pairs have a number, so the pairs without one are left out.")
        examples = examples.select(with_number or range(len(examples)))
        texts = examples["texts"]
        columns = {"anchor": [of_pair[0] for of_pair in texts], "positive": [of_pair[-1] for of_pair in texts]}
        if with_number:
            columns["score"] = examples["label"]
        loss = CoSENTLoss(model) if "score" in columns else MultipleNegativesRankingLoss(model)
        alone = sum(len(of_pair) == 1 for of_pair in texts)
        partners = f"; {alone:,} texts have no partner but themselves" if alone else ""
        logger.info(f"{kind.task.title}: trained by {type(loss).__name__} on {len(texts):,} examples{partners}.")
        values = {entry.name: getattr(args, entry.name) for entry in fields(TrainingArguments) if entry.init}
        sampler = BatchSamplers.BATCH_SAMPLER if "score" in columns else BatchSamplers.NO_DUPLICATES
        super().__init__(
            model=model,
            args=SentenceTransformerTrainingArguments(**{**values, **_TRAINER}, batch_sampler=sampler),
            train_dataset=datasets.Dataset.from_dict(columns),
            loss=loss,
        )
        self.kind = kind

    def add_model_card_callback(self, default_args_dict: Any) -> None:
        """Does nothing, because `save_embeddings` writes no card."""

    def answer(self, split: Split) -> tuple[list[Prediction], dict[str, float]]:
        """Returns the predictions and scores of a split, like `FineTuner.answer`."""
        return answer_pairs(self.model, self.kind, split, self.args.per_device_eval_batch_size)


def answer_pairs(
    model: SentenceTransformer, kind: Kind, split: Split, batch_size: int
) -> tuple[list[Prediction], dict[str, float]]:
    """Returns the cosine similarity of each pair, and the scores of the labeled pairs (empty if there are none)."""
    options: dict[str, Any] = {"batch_size": batch_size, "convert_to_tensor": True, "show_progress_bar": False}
    columns = zip(*split.examples["texts"], strict=True)
    first, second = (model.encode(list(column), **options) for column in columns)
    predictions = kind.decode(model.similarity_pairwise(first, second).cpu(), split.features, split.examples)
    return predictions, kind.score(predictions, split.examples)
