"""Low-rank adapters (LoRA), by `peft`."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedModel

from hf_electra_rtd.finetuning.arguments import LoraArguments
from hf_electra_rtd.finetuning.heads import check_labels, head_of, load_with_head


ADAPTER_FILE = "adapter_config.json"  # as peft writes it


def add_adapters(model: PreTrainedModel, source: str, args: LoraArguments) -> Any:
    """Freezes the encoder and gives its linear layers adapters; the head is trained and saved whole.

    `source` is the directory or Hub id of the encoder, for whoever loads the adapters. Returns a `peft.PeftModel`; its
    `save_pretrained` writes adapters and head alone.

    Raises:
        ValueError: if the encoder has no layer of these names.
    """
    from peft import LoraConfig, get_peft_model

    prefix = model.base_model_prefix
    names = "|".join(map(re.escape, args.lora_target_modules))
    children = {name: child for name, child in model.named_children() if name != prefix}
    children |= {name: child for name, child in model.base_model.named_children() if name == "pooler"}
    config = LoraConfig(
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        # The head and the pooler have layers of the same names; they are trained whole.
        target_modules=rf"{re.escape(prefix)}\.(?!pooler\.)(.*\.)?({names})",
        modules_to_save=[name for name, child in children.items() if list(child.parameters())],
    )
    _silence_renamed_attribute()
    adapted = get_peft_model(model, config)
    is_local = Path(source).is_dir()
    adapted.peft_config["default"].base_model_name_or_path = str(Path(source).resolve()) if is_local else source
    return adapted


def adapter_base(directory: str) -> str | None:
    """The model that a directory's adapters belong to; None for a directory without adapters."""
    path = Path(directory, ADAPTER_FILE)
    return json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"] if path.is_file() else None


def load_fine_tuned(auto_class: Any, directory: str, labels: Sequence[str], unanswerable: bool = False) -> Any:
    """Loads a fine-tuned model, or adapters with the model that they belong to, to evaluate it.

    The other arguments are those of `load_with_head`; `directory` may be the Hub id of a model, but not of adapters.

    Raises:
        ValueError: if it was fine-tuned for something else.
    """
    base = adapter_base(directory)
    if base is None:
        return load_with_head(auto_class, directory, labels=labels, unanswerable=unanswerable)
    from peft import PeftModel

    config = AutoConfig.from_pretrained(directory)
    check_labels(auto_class, directory, config, labels)
    model = load_with_head(auto_class, base, head_of(config), labels, unanswerable=unanswerable)
    _silence_renamed_attribute()
    return PeftModel.from_pretrained(model, directory)


def save_adapters(model: Any, directory: Path) -> None:
    """Writes adapters and head, and the `config.json` of the whole model, which names head and labels."""
    model.save_pretrained(directory)
    core = model.get_base_model()
    core.config.architectures = [type(core).__name__]
    core.config.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)  # peft's empty template of a card


def _silence_renamed_attribute() -> None:
    """`peft` asks for an attribute that `transformers` 5.23 has renamed."""
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
