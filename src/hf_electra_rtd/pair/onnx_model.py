"""Runs exported graphs with onnxruntime in place of torch models. A graph is called with tensors, like a model, and
returns an output with `.logits`. Heads that are not stock ones return the same class of output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_electra_rtd.base.files import check_name
from hf_electra_rtd.base.records import ExportRecord, count_cores
from hf_electra_rtd.encoders.outputs import HeadOutput
from hf_electra_rtd.ops import best_and_lead
from hf_electra_rtd.pair.places import GRAPHS, read_stock_config


TORCH = "torch"
RUNTIMES = (TORCH, *GRAPHS)
MISSING = "{} is not installed. Install the extra `onnx`: pip install -e '.[onnx]'."


class OnnxModel(nn.Module):
    """The graph in a file, with the `config` of its model. A call takes as many threads as torch uses, at most one per
    core. Raises ValueError without onnxruntime, or for a file that it cannot read."""

    def __init__(self, path: str | os.PathLike[str], config: Any) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ImportError:
            raise ValueError(MISSING.format("onnxruntime")) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(torch.get_num_threads(), count_cores())
        options.log_severity_level = 3  # errors
        try:
            self._session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ValueError(f"{path} cannot be read by onnxruntime: {error}. Export the model again.") from error
        self.config = config
        self.device = torch.device("cpu")
        self.input_names = [each.name for each in self._session.get_inputs()]
        self.output_names = [each.name for each in self._session.get_outputs()]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        whole: bool = False,
    ) -> HeadOutput:
        """Is called like the model itself, with the same defaults: all tokens are real, and of type 0. `position_ids`
        are ignored, because the graph counts positions from the first token. With `whole`, a model of correction
        returns its whole output in place of `best_and_lead`."""
        given = {
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids) if attention_mask is None else attention_mask,
            "token_type_ids": torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids,
        }
        feed = {name: given[name].cpu().long().numpy() for name in self.input_names}
        found = self._session.run(None, feed)
        tensors = (torch.from_numpy(array).to(input_ids.device) for array in found)
        output = HeadOutput(**dict(zip(self.output_names, tensors, strict=True)))
        if output.detection_logits is None or output.logits is None or whole:
            return output
        return HeadOutput(best_and_lead(output.logits, input_ids))


def load_onnx(directory: str | os.PathLike[str], runtime: str = "onnx", kind: str | None = None) -> OnnxModel:
    """Loads the graph of an exported model from a directory that `hf-electra-rtd export` wrote; `runtime` is a name in
    `GRAPHS`. Raises ValueError for an unknown name, another directory, an export of another `kind` than is wanted, and
    without onnxruntime."""
    directory = Path(directory)
    check_name("runtime", runtime, GRAPHS)
    if not (directory / ExportRecord.FILE).is_file():
        raise ValueError(
            f"{directory} holds no export: there is no {ExportRecord.FILE}. Make one by `hf-electra-rtd export`, and "
            "name its directory."
        )
    record = ExportRecord.load(directory)
    if kind not in (None, record.kind):
        raise ValueError(f"{directory} is the export of a model of kind {record.kind!r}. Name one of kind {kind!r}.")
    return OnnxModel(directory / GRAPHS[runtime], read_stock_config(str(directory)))
