"""Low-rank adapters (LoRA), by `peft`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hf_electra_rtd.finetuning.arguments import AdapterArguments


MERGED_DIRECTORY = "merged"


def add_adapters(model: PreTrainedModel, source: str, args: AdapterArguments) -> Any:
    """Freezes the encoder, gives its linear layers adapters, and leaves the head to be trained and saved whole.

    Args:
        model: an encoder with a head.
        source: where it came from, for whoever loads the adapters.
        args: rank, scale, dropout and the layers' names.

    Returns:
        A `peft.PeftModel`; its `save_pretrained` writes adapters and head alone.

    Raises:
        ValueError: if the encoder has no layer of these names.
    """
    from peft import LoraConfig, get_peft_model

    prefix = model.base_model_prefix
    # The head has layers of the same names: it is trained as a whole, without adapters.
    pattern = rf"{re.escape(prefix)}\.(.*\.)?({'|'.join(map(re.escape, args.lora_target_modules))})"
    if not any(re.fullmatch(pattern, name) for name, _ in model.named_modules()):
        known = sorted(
            {
                name.rpartition(".")[2]
                for name, module in model.base_model.named_modules()
                if type(module).__name__ == "Linear"
            }
        )
        raise ValueError(
            f"--lora_target_modules {' '.join(args.lora_target_modules)}: this encoder has no such layers. Its linear "
            f"layers are called {', '.join(known)}."
        )
    head = [name for name, _ in model.named_children() if name != prefix]
    config = LoraConfig(
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=pattern,
        modules_to_save=head,
    )
    with _without_renamed_attribute():
        adapted = get_peft_model(model, config)
    adapted.peft_config["default"].base_model_name_or_path = source
    return adapted


def read_adapted(directory: str) -> str:
    """The model that adapters belong to: a directory or a Hub id.

    Args:
        directory: of the adapters.

    Raises:
        ValueError: if they do not name it.
    """
    from peft import PeftConfig

    base = PeftConfig.from_pretrained(directory).base_model_name_or_path
    if not base:
        raise ValueError(f"The adapters in {directory} do not say which model they belong to (adapter_config.json).")
    return str(base)


def load_adapters(model: PreTrainedModel, directory: str, trainable: bool) -> Any:
    """A model with adapters from their directory, head included.

    Args:
        model: what they belong to.
        directory: of the adapters.
        trainable: whether they are to be trained further.
    """
    from peft import PeftModel

    with _without_renamed_attribute():
        return PeftModel.from_pretrained(model, directory, is_trainable=trainable)


@contextmanager
def _without_renamed_attribute() -> Iterator[None]:
    """`peft` asks for an attribute that `transformers` 5.23 calls otherwise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        yield


def save_merged(model: Any, tokenizer: Any, directory: Path) -> None:
    """Writes the model with its adapters added to its weights: it loads without `peft`.

    Args:
        model: a `peft.PeftModel`; it is merged for good.
        tokenizer: saved beside it.
        directory: made if need be.
    """
    model.merge_and_unload().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
