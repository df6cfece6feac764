"""Low-rank adapters (LoRA), by `peft`."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_electra_rtd.finetuning.arguments import AdapterArguments
from hf_electra_rtd.towers import save_tokenizer


MERGED_DIRECTORY = "merged"
ADAPTER_FILE = "adapter_config.json"  # as peft writes it
_DESCRIPTION_FILE = "fine_tuned_for.json"


def add_adapters(model: PreTrainedModel, source: str, args: AdapterArguments) -> Any:
    """Freezes the encoder, gives its linear layers adapters, and leaves the head to be trained and saved whole.

    Args:
        model: an encoder with a head.
        source: directory or Hub id that `from_pretrained` takes, for whoever loads the adapters.
        args: rank, scale, dropout and the layers' names.

    Returns:
        A `peft.PeftModel`; its `save_pretrained` writes adapters and head alone.

    Raises:
        ValueError: if the encoder has no layer of these names.
    """
    from peft import LoraConfig, get_peft_model

    prefix = model.base_model_prefix
    names = "|".join(map(re.escape, args.lora_target_modules))
    # The head has layers of the same names, and so has a pooler, which counts as head: they are trained whole.
    pattern = rf"{re.escape(prefix)}\.(?!pooler\.)(.*\.)?({names})"
    if not any(re.fullmatch(pattern, name) for name, _ in model.named_modules()):
        layers = ((name, module) for name, module in model.base_model.named_modules() if isinstance(module, nn.Linear))
        known = sorted({name.rpartition(".")[2] for name, _ in layers})
        raise ValueError(
            f"--lora_target_modules {' '.join(args.lora_target_modules)}: this encoder has no such layers. Its linear "
            f"layers are called {', '.join(known)}."
        )
    head = [name for name, child in model.named_children() if name != prefix and _has_parameters(child)]
    head += [name for name, child in model.base_model.named_children() if name == "pooler" and _has_parameters(child)]
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


@dataclass(frozen=True)
class Adapted:
    """What adapters were trained for.

    Attributes:
        base: directory or Hub id of the model that they belong to.
        head: `transformers` or `paper`.
        labels: of the task, in the order of the model's outputs.
    """

    base: str
    head: str
    labels: tuple[str, ...]


def read_adapted(directory: str) -> Adapted:
    """Reads what adapters were trained for.

    Args:
        directory: of the adapters.

    Raises:
        ValueError: if the directory does not say it.
    """
    from peft import PeftConfig

    base = PeftConfig.from_pretrained(directory).base_model_name_or_path
    path = Path(directory) / _DESCRIPTION_FILE
    if not base or not path.is_file():
        raise ValueError(
            f"{directory} does not say which model, head and labels its adapters belong to: it was not written by "
            "finetune.py. Merge them with peft, and give the merged model."
        )
    described = json.loads(path.read_text(encoding="utf-8"))
    return Adapted(str(base), described["head"], tuple(described["labels"]))


def save_adapters(
    model: Any, tokenizer: PreTrainedTokenizerBase, head: str, labels: Sequence[str], directory: Path
) -> None:
    """Writes adapters and head, and what `read_adapted` reads.

    Args:
        model: a `peft.PeftModel`.
        tokenizer: saved beside it.
        head: `transformers` or `paper`.
        labels: of the task.
        directory: made if need be.
    """
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)  # peft's template of a card, with nothing filled in
    save_tokenizer(tokenizer, directory)
    text = json.dumps({"head": head, "labels": list(labels)}, indent=2, ensure_ascii=False)
    (directory / _DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")


def load_adapters(model: PreTrainedModel, directory: str) -> Any:
    """A model with adapters from their directory, head included, to be judged.

    Args:
        model: what they belong to.
        directory: of the adapters.
    """
    from peft import PeftModel

    with _without_renamed_attribute():
        return PeftModel.from_pretrained(model, directory)


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


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
    save_tokenizer(tokenizer, directory)
