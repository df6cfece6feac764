"""From a split to predictions and scores, whatever runs the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from hf_electra_rtd.finetuning.data import EncodedSplit
from hf_electra_rtd.finetuning.kinds.base import Kind, Prediction


class Features(Dataset):
    """Features as a dataset.

    Args:
        features: as `Kind.encode` makes them.
    """

    def __init__(self, features: Sequence[dict[str, Any]]) -> None:
        self.features = features

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.features[index]

    def lengths(self) -> list[int]:
        """Tokens of each feature; of several rows (the choices of a question), those of the longest."""
        rows = (feature["input_ids"] for feature in self.features)
        return [max(map(len, ids)) if ids and isinstance(ids[0], list) else len(ids) for ids in rows]


def answer_split(
    kind: Kind, split: EncodedSplit, run: Callable[[Features], Any]
) -> tuple[list[Prediction], dict[str, float]]:
    """Predictions for the examples of a split, and the scores of the labelled ones.

    Args:
        kind: of the task.
        split: with its features.
        run: gives the model's outputs for features, in their order, as `Kind.decode` takes them. It gets them sorted
            by length, so that batches hold little padding; without labels, unless all of them have one.

    Returns:
        A prediction for each example, and the scores, empty where nothing is labelled.

    Raises:
        ValueError: if an output is not finite.
    """
    features: Sequence[dict[str, Any]] = split.encoded.features
    outputs = None
    if features:
        if not all("labels" in feature for feature in features):
            features = [{key: value for key, value in feature.items() if key != "labels"} for feature in features]
        order = np.argsort(Features(features).lengths(), kind="stable")
        outputs = run(Features([features[place] for place in order]))
        outputs = _take(outputs, np.argsort(order, kind="stable"))
        if not all(np.isfinite(array).all() for array in (outputs if isinstance(outputs, tuple) else (outputs,))):
            raise ValueError(
                f"{kind.task.title}: the outputs of the model are not finite, so the run has diverged. Lower "
                "--learning_rate."
            )
    predictions = kind.decode(outputs, split.encoded, split.split.examples)
    return predictions, kind.score(predictions, split.split.examples)


def _take(outputs: Any, places: Any) -> Any:
    if isinstance(outputs, tuple):
        return tuple(_take(array, places) for array in outputs)
    return outputs[places]
