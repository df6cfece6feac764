"""The tensors that the generator and the discriminator share.

A mode of sharing is a class that defines which tensors are shared, and how the discriminator looks up ids.
`transformers` ties the tensors by explicit names, because patterns and shared modules do not survive
`from_pretrained`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd.encoders.families import embedding_parameters, inputs_of, look_up_tables, word_table
from hf_electra_rtd.pair.configuration_electra_rtd import SHARED_SIZES


class Sharing:
    """Shares nothing (Code `untied_generator_embeddings`; paper, section 3.2, "no weight tying")."""

    def shared_parameters(self, encoder: nn.Module) -> Iterable[str]:
        """Returns the names of an encoder's parameters that are one tensor in both towers."""
        return ()

    def shared_pairs(self, generator: nn.Module, discriminator: nn.Module) -> list[tuple[str, str]]:
        """Returns the names of each shared parameter in two encoders, which may be of two families."""
        return list(zip(self.shared_parameters(generator), self.shared_parameters(discriminator), strict=True))

    def starting_parameters(self, encoder: nn.Module) -> Iterable[str]:
        """Returns the names of an encoder's parameters that a new tower takes from a trained one."""
        return self.shared_parameters(encoder)

    def tied_weights(self, generator: Any, discriminator: Any) -> dict[str, str]:
        """Returns `PreTrainedModel._tied_weights_keys`, `{target: source}`. The discriminator owns what is shared."""
        if generator is None:
            return {}
        prefix = discriminator.base_model_prefix
        main = discriminator.base_model
        encoders = getattr(generator, "encoder_names", (generator.base_model_prefix,))
        return {
            f"generator.{each}.{mine}": f"discriminator.{prefix}.{name}"
            for each in encoders
            for mine, name in self.shared_pairs(generator.get_submodule(each), main)
        }

    def look_up(
        self, generator: Any, discriminator: Any, input_ids: Tensor, position_ids: Tensor | None
    ) -> dict[str, Tensor]:
        """Returns the keyword arguments that give the discriminator these ids (B, L)."""
        return {"input_ids": input_ids}

    def begin(self, generator: Any, discriminator: Any) -> None:
        """Prepares towers that are new."""

    def join(self, generator: Any, discriminator: Any) -> None:
        """Prepares towers that were trained separately, so that each of them still computes the same."""

    def resized(self, discriminator: Any, num_old_tokens: int) -> None:
        """Sets the rows that a resize of the word tables has added."""

    def exported_tensors(self, generator: Any, discriminator: Any) -> dict[str, Tensor] | None:
        """Returns the tensors of the discriminator as a tower of its own; None where they are those that it holds."""
        return None


class WordSharing(Sharing):
    """Shares only the word table, and with it the generator's output softmax, which is tied to the word table."""

    def shared_parameters(self, encoder: nn.Module) -> Iterable[str]:
        return (f"{word_table(encoder)}.weight",)


class EmbeddingSharing(Sharing):
    """Shares the whole embedding block: word, position, token type and LayerNorm, as in google-research/electra
    (model/modeling.py: look-up, `embedding_postprocessor` and its LayerNorm in one scope) and the paper (section 3.2).
    """

    def shared_parameters(self, encoder: nn.Module) -> Iterable[str]:
        return embedding_parameters(encoder)


class FullSharing(Sharing):
    """One transformer with two heads (Code `untied_generator=False`; paper, section 3.2, "tying all weights")."""

    def shared_parameters(self, encoder: nn.Module) -> Iterable[str]:
        return (name for name, _ in encoder.named_parameters())


class GradientDisentangledSharing(Sharing):
    """Gradient-disentangled embedding sharing (DeBERTaV3, arXiv 2111.09543, section 3.2.3): the discriminator looks up

        E_D = sg(E_G) + E_delta

    for words and, where they are learned, positions. sg stops the gradient, so the discriminator's loss moves only its
    own differences E_delta, which begin at zero, and not the generator's tables. The stock tables of the discriminator
    hold the differences; `save_towers` adds the generator's tables to them.
    """

    def starting_parameters(self, encoder: nn.Module) -> Iterable[str]:
        return tuple(f"{table}.weight" for table in look_up_tables(encoder))

    def look_up(
        self, generator: Any, discriminator: Any, input_ids: Tensor, position_ids: Tensor | None
    ) -> dict[str, Tensor]:
        encoder = generator.base_model
        words, *positions = (encoder.get_submodule(name).weight.detach() for name in look_up_tables(encoder))
        looked_up = F.embedding(input_ids, words) + discriminator.get_input_embeddings()(input_ids)
        places = inputs_of(discriminator.config, {"input_ids": input_ids, "position_ids": position_ids})
        position_ids = places.get("position_ids", torch.arange(input_ids.shape[1], device=input_ids.device)[None])
        # The tower adds its own position table, which holds differences, to whatever embeddings it is given.
        for table in positions:
            looked_up = looked_up + F.embedding(position_ids, table)
        return {"inputs_embeds": looked_up}

    @torch.no_grad()
    def begin(self, generator: Any, discriminator: Any) -> None:
        for table in look_up_tables(discriminator.base_model):
            discriminator.base_model.get_submodule(table).weight.zero_()

    @torch.no_grad()
    def join(self, generator: Any, discriminator: Any) -> None:
        for table in look_up_tables(discriminator.base_model):
            weight = discriminator.base_model.get_submodule(table).weight
            weight.sub_(generator.base_model.get_submodule(table).weight)

    @torch.no_grad()
    def resized(self, discriminator: Any, num_old_tokens: int) -> None:
        discriminator.get_input_embeddings().weight[num_old_tokens:].zero_()

    def exported_tensors(self, generator: Any, discriminator: Any) -> dict[str, Tensor] | None:
        tensors: dict[str, Tensor] = dict(discriminator.state_dict())
        for table in look_up_tables(discriminator.base_model):
            name = f"{discriminator.base_model_prefix}.{table}.weight"
            tensors[name] = tensors[name] + generator.state_dict()[name]
        return tensors


SHARING: dict[str, type[Sharing]] = {
    "none": Sharing,
    "word": WordSharing,
    "embeddings": EmbeddingSharing,
    "all": FullSharing,
    "gdes": GradientDisentangledSharing,
}
assert SHARING.keys() == SHARED_SIZES.keys()
