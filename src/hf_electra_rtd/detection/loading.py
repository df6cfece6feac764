"""The towers and their tokenizer, from wherever a person has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import ElectraForMaskedLM, ElectraForPreTraining, PreTrainedTokenizerBase

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.towers import CONFIG_FILE, load_tower, read_config


@dataclass
class Towers:
    """A discriminator (`ElectraForPreTraining`) and its tokenizer, and a generator (`ElectraForMaskedLM`) unless
    sentences are only judged; in evaluation mode."""

    generator: Any
    discriminator: Any
    tokenizer: PreTrainedTokenizerBase


def load_for_detection(
    model: str | None = None,
    generator: str | None = None,
    discriminator: str | None = None,
    judge_only: bool = False,
) -> Towers:
    """Loads towers for [`detect`](hf_electra_rtd.detection.detection) and `judge`.

    Args:
        model: a run's directory (which holds `generator/` and `discriminator/`), one of its checkpoints, or another
            directory or a Hub id of a pair that `ElectraForRTDPretraining` saved.
        generator: in place of `model`, a tower's directory or Hub id.
        discriminator: likewise.
        judge_only: no generator is needed, and none is loaded.

    Raises:
        ValueError: for a combination that names too much or too little, towers that cannot be loaded whole or do not
            belong together, or a tokenizer that is missing or another one's.
    """
    if model is not None:
        if generator is not None or discriminator is not None:
            raise ValueError("A model names both towers: give it, or a generator and a discriminator, not both.")
        towers = _from_model(model, judge_only)
    elif discriminator is None:
        raise ValueError("There is nothing to ask: name a model (a run's directory), or a discriminator.")
    elif generator is None and not judge_only:
        raise ValueError(
            "A discriminator alone can only judge a sentence as it stands: name the generator too, or only judge."
        )
    else:
        towers = _from_towers(None if judge_only else generator, discriminator)
    _check(towers)
    return towers


def _from_model(model: str, judge_only: bool) -> Towers:
    directory = Path(model)
    if (directory / "discriminator" / CONFIG_FILE).is_file():
        if not judge_only and not (directory / "generator" / CONFIG_FILE).is_file():
            raise ValueError(f"{model} holds a discriminator but no generator: it can only judge sentences.")
        return _from_towers(None if judge_only else str(directory / "generator"), str(directory / "discriminator"))
    if directory.is_dir() and not (directory / CONFIG_FILE).is_file():
        raise ValueError(f"{model} holds no pair of towers. {_what_is_there(directory)}")
    model_type = read_config(model).get("model_type")
    if model_type == ElectraRTDConfig.model_type:
        pair = ElectraForRTDPretraining.from_pretrained(model, dtype="float32").eval()
        _refuse_if_it_predicts(model, type(pair.discriminator).__name__)
        if not judge_only and pair.generator is None:
            raise ValueError(f"{model} has no generator network: it can only judge sentences.")
        return Towers(None if judge_only else pair.generator, pair.native_discriminator(), _tokenizer(model))
    hint = " It is a single tower: name the generator and the discriminator apart." if model_type == "electra" else ""
    raise ValueError(
        f"{model} is a model of type {model_type!r}, not a pair of towers ({ElectraRTDConfig.model_type!r}).{hint}"
    )


def _what_is_there(directory: Path) -> str:
    checkpoints = [path for path in directory.glob("checkpoint-*") if (path / CONFIG_FILE).is_file()]
    if checkpoints:
        latest = max(checkpoints, key=lambda path: path.stat().st_mtime)
        return f"The run has not ended; name one of its {len(checkpoints)} checkpoints, such as {latest}."
    names = sorted(path.name for path in directory.iterdir())
    return (
        f"Expected are the directories generator and discriminator, or {CONFIG_FILE} and model.safetensors of a pair; "
        f"there is {', '.join(names[:10]) + (', ...' if len(names) > 10 else '') or 'nothing'}."
    )


def _refuse_if_it_predicts(source: str, architecture: str) -> None:
    if architecture == ElectraForMaskedLM.__name__:
        raise ValueError(
            f"{source} is no discriminator: it was trained to predict tokens ({architecture}), not to tell which were "
            "replaced. Take a model of the objective rtd or rtd_masked_only."
        )


def _from_towers(generator: str | None, discriminator: str) -> Towers:
    for architecture in read_config(discriminator).get("architectures") or ():
        _refuse_if_it_predicts(discriminator, architecture)
    return Towers(
        None if generator is None else load_tower(ElectraForMaskedLM, generator).eval(),
        load_tower(ElectraForPreTraining, discriminator).eval(),
        _tokenizer(discriminator),
    )


def _tokenizer(source: str) -> PreTrainedTokenizerBase:
    if os.path.isdir(source) and not any(Path(source, name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise ValueError(f"{source} holds no tokenizer: there is neither tokenizer.json nor vocab.txt in it.")
    try:
        return load_tokenizer(source)
    except OSError as error:
        raise ValueError(f"{source} has no tokenizer that can be loaded: {error}") from None


def _check(towers: Towers) -> None:
    vocabulary = towers.discriminator.config.vocab_size
    if towers.generator is not None and towers.generator.config.vocab_size != vocabulary:
        raise ValueError(
            f"The generator has {towers.generator.config.vocab_size} tokens and the discriminator {vocabulary}: they "
            "do not belong together."
        )
    if len(towers.tokenizer) > vocabulary:
        raise ValueError(
            f"The tokenizer has {len(towers.tokenizer)} tokens, the discriminator {vocabulary}: they do not belong "
            "together."
        )
