"""What the generator and the discriminator share.

A mode of sharing is a class with the tensors that it ties. Tied means the same storage, before and after saving and
loading; `transformers` does the tying, from explicit names (patterns and shared modules do not survive
`from_pretrained`).
"""

from __future__ import annotations

from typing import ClassVar

from transformers import ElectraConfig


class Sharing:
    """A mode of sharing: names of parameters, relative to `electra.embeddings`, that are one tensor in both towers."""

    name: ClassVar[str]
    shared_parameters: ClassVar[tuple[str, ...]] = ()
    # Sizes of both configurations that must agree for the tensors to be one.
    equal_sizes: ClassVar[tuple[str, ...]] = ()

    def tied_weights(self) -> dict[str, str]:
        """`{target: source}` for `PreTrainedModel._tied_weights_keys`: the discriminator owns what is shared."""
        return {
            f"generator.electra.embeddings.{name}": f"discriminator.electra.embeddings.{name}"
            for name in self.shared_parameters
        }

    def check(self, generator_config: ElectraConfig, discriminator_config: ElectraConfig) -> None:
        """Refuses towers that cannot share.

        Raises:
            ValueError: names the size that differs.
        """
        for size in self.equal_sizes:
            mine, other = getattr(generator_config, size), getattr(discriminator_config, size)
            if mine != other:
                raise ValueError(
                    f"sharing={self.name!r} needs the same {size} in both towers, but the generator has {mine} and "
                    f"the discriminator {other}. Take matching towers, or sharing='none'."
                )


class NoSharing(Sharing):
    """Two towers of their own (Code `untied_generator_embeddings`; paper, section 3.2, "no weight tying")."""

    name = "none"


class WordSharing(Sharing):
    """The word table alone; with it the generator's output softmax, which is tied to the word table."""

    name = "word"
    shared_parameters = ("word_embeddings.weight",)
    equal_sizes = ("vocab_size", "embedding_size")


class EmbeddingSharing(Sharing):
    """The whole embedding block: word, position, token type and LayerNorm.

    The default of google-research/electra (model/modeling.py: look-up, `embedding_postprocessor` and its LayerNorm in
    one scope), and of the paper (section 3.2: token embeddings, which it reports as better than none).
    """

    name = "embeddings"
    shared_parameters = (
        "word_embeddings.weight",
        "position_embeddings.weight",
        "token_type_embeddings.weight",
        "LayerNorm.weight",
        "LayerNorm.bias",
    )
    equal_sizes = ("vocab_size", "embedding_size", "max_position_embeddings", "type_vocab_size")


SHARING: dict[str, type[Sharing]] = {mode.name: mode for mode in (NoSharing, WordSharing, EmbeddingSharing)}


def get_sharing(name: str) -> Sharing:
    """The mode of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in SHARING:
        raise ValueError(f"There is no sharing={name!r}. Known are: {', '.join(map(repr, SHARING))}.")
    return SHARING[name]()
