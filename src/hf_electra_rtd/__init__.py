"""Replaced-token-detection (ELECTRA) pre-training for the Hugging Face stack.

Importing this package registers its configuration and model with `transformers`' Auto classes, and does nothing else.
Everything else is loaded when it is first accessed.
"""
# ruff: noqa: F401  # the imports below are for type checkers

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModelForPreTraining

from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining, ElectraRTDOutput


__version__ = "0.1.0"

if TYPE_CHECKING:
    from hf_electra_rtd.base.records import EvaluationRecord, PretrainingRecord
    from hf_electra_rtd.data.blocks import BlockFile, SequenceStream
    from hf_electra_rtd.data.collator import DataCollatorForRTD
    from hf_electra_rtd.data.preparation import prepare_blocks
    from hf_electra_rtd.data.sequences import train_tokenizer
    from hf_electra_rtd.data.tokenization import load_tokenizer
    from hf_electra_rtd.finetuning.finetune import finetune
    from hf_electra_rtd.finetuning.predict import Classifier
    from hf_electra_rtd.inference.correction import Corrector
    from hf_electra_rtd.inference.detection import Detector
    from hf_electra_rtd.pair.initialization import begin_on_neighbours
    from hf_electra_rtd.pair.measures import compute_rtd_metrics
    from hf_electra_rtd.pair.original_checkpoints import load_tf_checkpoint
    from hf_electra_rtd.training.arguments import RTDTrainingArguments
    from hf_electra_rtd.training.meters import DivergedError
    from hf_electra_rtd.training.optimization import ElectraAdamW, get_electra_schedule, get_parameter_groups
    from hf_electra_rtd.training.trainer import RTDTrainer

_LOADED_WHEN_ASKED_FOR = {
    "BlockFile": "data.blocks",
    "Classifier": "finetuning.predict",
    "Corrector": "inference.correction",
    "DataCollatorForRTD": "data.collator",
    "Detector": "inference.detection",
    "DivergedError": "training.meters",
    "ElectraAdamW": "training.optimization",
    "EvaluationRecord": "base.records",
    "PretrainingRecord": "base.records",
    "RTDTrainer": "training.trainer",
    "RTDTrainingArguments": "training.arguments",
    "SequenceStream": "data.blocks",
    "begin_on_neighbours": "pair.initialization",
    "compute_rtd_metrics": "pair.measures",
    "finetune": "finetuning.finetune",
    "get_electra_schedule": "training.optimization",
    "get_parameter_groups": "training.optimization",
    "load_tf_checkpoint": "pair.original_checkpoints",
    "load_tokenizer": "data.tokenization",
    "prepare_blocks": "data.preparation",
    "train_tokenizer": "data.sequences",
}
__all__ = [
    "ElectraForRTDPretraining",
    "ElectraRTDConfig",
    "ElectraRTDOutput",
    "__version__",
    *_LOADED_WHEN_ASKED_FOR,
]

AutoConfig.register(ElectraRTDConfig.model_type, ElectraRTDConfig, exist_ok=True)
AutoModelForPreTraining.register(ElectraRTDConfig, ElectraForRTDPretraining, exist_ok=True)


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LOADED_WHEN_ASKED_FOR[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
