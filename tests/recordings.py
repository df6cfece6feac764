"""Recorded trajectories of the original's own TensorFlow graph, and how closely our model follows them.

fixtures/tf_reference/<variant>/ holds six steps of google-research/electra (commit 8a46635) on small random inputs,
without dropout: the checkpoint before step 0, its hparams, and in `trajectory.npz` the masked and corrupted ids, the
logits, losses, gradient norms and learning rates of each step, and every variable after the last.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.original_checkpoints import KERNEL, config_from_hparams, model_from_variables, variables_of


FOLDER = Path(__file__).parent / "fixtures" / "tf_reference"
VARIANTS = ("small_shared", "untied_embeddings", "all_tied", "uniform_generator", "mlm_only", "electric")
NUM_STEPS = 6
STEP_COUNTER = "global_step"


class Recording:
    """The recording of one variant."""

    def __init__(self, variant: str) -> None:
        self.folder = FOLDER / variant
        self.prefix = self.folder / "start.ckpt"
        self.config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        with np.load(self.folder / "trajectory.npz") as arrays:
            self.arrays = dict(arrays)

    @property
    def hparams(self) -> dict[str, Any]:
        """The recorded hparams, but with dropout set to 0, as it was in the trajectory."""
        hparams = dict(self.config["hparams"])
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return {**hparams, "model_hparam_overrides": {**hparams["model_hparam_overrides"], **none}}

    @property
    def detects(self) -> bool:
        """Whether the variant has a discriminator."""
        return bool(self.hparams["electra_objective"] or self.hparams["electric_objective"])

    @property
    def final_variables(self) -> dict[str, np.ndarray]:
        return {name[len("final/") :]: array for name, array in self.arrays.items() if name.startswith("final/")}

    @property
    def start_variables(self) -> dict[str, np.ndarray]:
        """The variables of the start checkpoint, read without TensorFlow: its data file holds them one after another,
        sorted by name. tests/checkpoints/test_tf_reader.py compares them with those of the real reader."""
        data = Path(f"{self.prefix}.data-00000-of-00001").read_bytes()
        shapes = {name: (array.shape, "<f4") for name, array in self.final_variables.items()}
        shapes[STEP_COUNTER] = ((), "<i8")
        variables, start = {}, 0
        for name, (shape, dtype) in sorted(shapes.items()):
            count = int(np.prod(shape))
            variables[name] = np.frombuffer(data, dtype, count, start).reshape(shape)
            start += variables[name].nbytes
        assert start == len(data)
        return variables

    def load(self) -> ElectraForRTDPretraining:
        """The pair before step 0."""
        return model_from_variables(config_from_hparams(self.hparams), self.start_variables)

    def get(self, step: int, name: str) -> Tensor | None:
        """Returns a recorded value of a step, or None if the variant has no such value."""
        if name == "mlm_loss" and self.hparams["electric_objective"]:
            # The recorded `mlm_loss` is only an evaluation at the masked slots. The loss that is trained is over all
            # candidates; it is a part of the total.
            total, of_discriminator = self.arrays[f"step{step}/total_loss"], self.arrays[f"step{step}/disc_loss"]
            return torch.tensor(np.float64(total) - 50 * np.float64(of_discriminator))
        array = self.arrays.get(f"step{step}/{name}")
        return None if array is None else torch.from_numpy(array)

    def batch(self, step: int) -> dict[str, Tensor]:
        """The inputs of a step, with the recorded masks and samples."""
        names = {
            "input_ids": "masked_input_ids",
            "attention_mask": "input_mask",
            "token_type_ids": "segment_ids",
            "masked_positions": "masked_lm_positions",
            "labels": "masked_lm_ids",
            "corrupted_input_ids": "corrupted_input_ids",
        }
        batch = {ours: torch.from_numpy(self.arrays[f"step{step}/{theirs}"]).long() for ours, theirs in names.items()}
        batch["labels"][self.get(step, "masked_lm_weights") == 0] = -100
        if not self.detects:
            del batch["corrupted_input_ids"]  # recorded, but unused
        return batch


class Comparison:
    """Residuals (ours minus recorded), by the name of the quantity."""

    def __init__(self) -> None:
        self.residuals: dict[str, list[np.ndarray]] = {}

    def add(self, name: str, ours: Any, theirs: Any, relative: bool = False) -> None:
        """Adds the residuals of a quantity, unless one of the two values is None."""
        if ours is None or theirs is None:
            return
        ours, theirs = (np.asarray(torch.as_tensor(value).detach(), dtype=np.float64) for value in (ours, theirs))
        assert ours.shape == theirs.shape, name
        self.residuals.setdefault(name, []).append((ours - theirs).ravel() / (np.abs(theirs) if relative else 1.0))

    def add_variables(self, model: ElectraForRTDPretraining, recording: Recording) -> None:
        """Adds the residuals of every variable after the last step."""
        ours, theirs = variables_of(model), recording.final_variables
        for name, variable in theirs.items():
            self.add("final variables", ours[name].T if name.endswith(KERNEL) else ours[name], variable)

    @property
    def worst(self) -> dict[str, float]:
        return {name: float(np.abs(np.concatenate(all_)).max()) for name, all_ in self.residuals.items()}

    @property
    def bias(self) -> dict[str, float]:
        """The means of the signed residuals, which show a one-sided shift before it is large anywhere."""
        return {name: float(np.concatenate(all_).mean()) for name, all_ in self.residuals.items()}
