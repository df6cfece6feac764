"""`transformers.Trainer` for a task: its loss and scores, batches of similar length, and learning rates by depth."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import PreTrainedModel, TrainerCallback, TrainerState
from transformers.trainer_pt_utils import LengthGroupedSampler

from hf_electra_rtd.finetuning.arguments import ONE_GPU_EACH, FineTuningArguments
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.kinds.base import Kind, Prediction
from hf_electra_rtd.training.checkpoints import CHECKPOINT_PREFIX, read_checkpoint
from hf_electra_rtd.training.optimization import get_parameter_groups
from hf_electra_rtd.training.trainer import OriginalTrainer


class _LengthGroupedSampler(LengthGroupedSampler):
    """Yields shuffled batches of similar length. The order depends only on seed and epoch, so that a run can resume
    inside an epoch. The longest batch comes first, so that insufficient memory shows at once; the last batch may be
    smaller."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int) -> None:
        super().__init__(batch_size, lengths=lengths, generator=torch.Generator())
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator: Any = self.generator
        generator.manual_seed(int(np.random.SeedSequence([self.seed, self.epoch]).generate_state(1)[0]))
        indices = list(super().__iter__())  # every 50 batches are still sorted from long to short
        batches = [indices[start : start + self.batch_size] for start in range(0, len(indices), self.batch_size)]
        between = batches[1:-1]
        batches[1:-1] = [between[place] for place in torch.randperm(len(between), generator=generator).tolist()]
        return itertools.chain(*batches)


class _FineTuningCallback(TrainerCallback):
    """Tells the sampler the epoch: with several processes, accelerate does not when it skips batches. Also tells a
    resumed run where its best checkpoint is: the Trainer looks only under the path that the run had before."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.best_global_step:
            best = Path(args.output_dir, f"{CHECKPOINT_PREFIX}{state.best_global_step}")
            try:
                read_checkpoint(best)
            except ValueError as error:
                raise ValueError(f"{error} It is the best one: train again (overwrite_output_dir).") from None
            state.best_model_checkpoint = str(best)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        train_dataloader.set_epoch(int(state.epoch))


def describe_log(logs: Mapping[str, float], state: TrainerState) -> str | None:
    """Returns the line for a log of training steps or of an evaluation; None for other logs."""
    scores = [f"{name.removeprefix('eval_')} {100 * score:.1f}" for name, score in logs.items() if name[:5] == "eval_"]
    told = [f"loss {logs['loss']:.4f}"] if "loss" in logs else scores
    return f"step {state.global_step:,}/{state.max_steps:,}  {', '.join(told)}" if told else None


class FineTuner(OriginalTrainer):
    """Fine-tunes a model on a task, with the learning rates of `layerwise_groups`. The scores on `dev` choose the best
    model. `settings` are saved in checkpoints, which are written whole or not at all. The loss of an optimizer step is
    the mean over all its labels, however they are divided into batches and processes. Raises ValueError for FSDP and
    DeepSpeed."""

    args: FineTuningArguments
    describe_log = staticmethod(describe_log)
    loss_is_scaled_for_ga = True  # `compute_loss` divides by the labels of the whole step

    def __init__(
        self,
        model: Any,
        args: FineTuningArguments,
        kind: Kind,
        layerwise_lr_decay: float = 1.0,
        train: Split | None = None,
        dev: Split | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        args.label_names = ["labels"]
        self.kind = kind
        self.dev = dev
        self.settings = dict(settings or {})
        self.layerwise_lr_decay = layerwise_lr_decay
        self.evaluation_seconds = 0.0
        super().__init__(
            model=model,
            args=args,
            train_dataset=None if train is None else train.features,
            eval_dataset=None if dev is None else dev.features,
            data_collator=kind.collate,
            processing_class=kind.tokenizer,
        )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError(f"Fine-tuning needs the whole model in each process. {ONE_GPU_EACH}")
        self.add_callback(_FineTuningCallback)
        self.model_accepts_loss_kwargs = True  # makes the Trainer count the labels of a step

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(dataset)
        group = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return _LengthGroupedSampler(group, list(dataset["length"]), self.args.seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler:
        return SequentialSampler(eval_dataset)  # predictions are matched to examples by position

    def _groups(self, model: Any) -> list[dict[str, Any]]:
        args: Any = self.args
        return layerwise_groups(model, args.learning_rate, self.layerwise_lr_decay, args.weight_decay)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._save_whole(model, trial, self.settings)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        inputs = self.kind.corrupt(inputs)
        outputs = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"})
        # Processes average their gradients, so each multiplies its part of the summed loss by their number.
        processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        loss = self.kind.loss(outputs, inputs) * processes / num_items_in_batch
        return (loss, outputs) if return_outputs else loss

    def answer(self, split: Split) -> tuple[list[Prediction], dict[str, float]]:
        """Returns predictions for the examples of an encoded split, and the scores of the labeled ones (empty if there
        are none). Sets `split.probabilities`. Raises ValueError for outputs that are not finite."""
        kind = self.kind
        features = split.features
        assert features is not None
        outputs: Any = ()
        if len(features):
            order = np.argsort(features["length"], kind="stable")  # batches hold little padding
            outputs = self.predict(features.select(order)).predictions
            arrays = outputs if isinstance(outputs, tuple) else (outputs,)
            if not all(np.isfinite(array).all() for array in arrays):
                raise ValueError(f"{kind.task.title}: outputs are not finite: training diverged. Lower learning_rate.")
            arrays = tuple(array[np.argsort(order, kind="stable")] for array in arrays)
            outputs = arrays if isinstance(outputs, tuple) else arrays[0]
        split.probabilities = kind.probabilities(outputs, features, split.examples)
        predictions = kind.decode(outputs, features, split.examples)
        return predictions, kind.score(predictions, split.examples)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Returns and logs the scores on `dev`, as `eval_<metric>`."""
        began = time.perf_counter()
        dev: Any = self.dev
        metrics = {f"eval_{name}": score for name, score in self.answer(dev)[1].items()}
        self.evaluation_seconds += time.perf_counter() - began
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


# ---- Learning rates by depth ----


def layerwise_groups(
    model: PreTrainedModel, learning_rate: float, decay: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Returns groups of parameters with a learning rate for each depth, the head first. Each depth has a group with
    weight decay and one without (biases and LayerNorm). A `decay` of 1 also works for models without a list of layers.

    The head has `learning_rate`, layer i of n (from 0) has `learning_rate * decay^(n - i)`, and the embeddings with
    their projection have `learning_rate * decay^(n + 1)`. This is our reading of the paper (Table 7). The original's
    code decays everything below the head once more (google-research/electra model/optimization.py, `_get_layer_lrs`).
    """
    groups = get_parameter_groups(model, weight_decay)
    if decay == 1:
        return [{**group, "lr": learning_rate} for group in groups]
    heights = layer_heights(model)
    result = []
    for height in sorted(set(heights.values())):
        rate = learning_rate * decay**height
        for group in groups:
            parameters = [parameter for parameter in group["params"] if heights[id(parameter)] == height]
            if parameters:
                result.append({**group, "params": parameters, "lr": rate})
    return result


def layer_heights(model: PreTrainedModel) -> dict[int, int]:
    """Returns how far below the head each parameter is, by its id: 0 for the head, 1 for the top layer.

    The layers are the `ModuleList` with the most parameters, and its siblings of the same length (XLM has one for each
    part of a layer). Children of the encoder after the layers (a pooler, a last LayerNorm) are part of the head. All
    other parts (embeddings, relative positions) are below the lowest layer. Raises ValueError for an encoder without a
    `ModuleList`.
    """
    encoder: Any = model.base_model
    lists = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)}
    if not lists:
        raise ValueError(f"A {type(model).__name__} has no list of layers. Set layerwise_lr_decay to 1.")
    name = max(lists, key=lambda name: sum(parameter.numel() for parameter in lists[name].parameters()))
    num_layers = len(lists[name])
    children = [child for child, _ in encoder.named_children()]
    above = children[children.index(name.partition(".")[0]) + 1 :]
    heights = {id(parameter): 0 for parameter in model.parameters()}
    heights |= {id(parameter): num_layers + 1 for parameter in encoder.parameters()}
    heights |= {id(parameter): 0 for child in above for parameter in encoder.get_submodule(child).parameters()}
    for other, layers in lists.items():
        if other.rpartition(".")[0] == name.rpartition(".")[0] and len(layers) == num_layers:
            for index, layer in enumerate(layers):
                heights |= {id(parameter): num_layers - index for parameter in layer.parameters()}
    return heights
