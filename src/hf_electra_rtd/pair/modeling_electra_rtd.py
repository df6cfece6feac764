"""The generator and the discriminator as one model that trains both.

Shape legend: B sequences, L tokens a sequence, K masked slots a sequence, V tokens of the vocabulary.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import ElectraForPreTraining, PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from hf_electra_rtd.base.files import load_pretrained
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.encoders.detectors import with_two_labels, without_head, without_head_dropout
from hf_electra_rtd.encoders.families import (
    max_length,
    mixes_by_attention,
    output_layer,
    resize_vocabulary,
    unsplit_layers,
)
from hf_electra_rtd.encoders.layers import exchange_attention
from hf_electra_rtd.ops import IGNORED, MaskedPrediction, MaskedSlots, Sampling, masked_slots, original_ids, replace_at
from hf_electra_rtd.pair import towers
from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.pair.generators import GENERATORS, Generator
from hf_electra_rtd.pair.measures import Measure
from hf_electra_rtd.pair.objectives import OBJECTIVES, CorruptedBatch, MainOutput
from hf_electra_rtd.pair.sharing import SHARING


class UnscorableTextError(ValueError):
    """Raised for a text that has no token, or more tokens than a model has positions."""


@dataclass
class ElectraRTDOutput(ModelOutput):
    """Output of [`ElectraForRTDPretraining`]. Fields that were not asked for or do not apply are None."""

    loss: Tensor | None = None  # scalar; the weighted sum of both losses
    # (B, L) for detection, positive means replaced (Electric: drawn; without labels, the energies). For objectives
    # that predict tokens, (B, K, V) or (B, L, V), and only without labels or with `output_logits=True`.
    logits: Tensor | None = None
    generator_loss: Tensor | None = None  # scalar; mean cross-entropy over the masked slots, or as the kind defines it
    discriminator_loss: Tensor | None = None  # scalar, as the objective defines it
    generator_predictions: Tensor | None = None  # (B, K) int64; the generator's most likely ids
    generator_logits: Tensor | None = None  # (B, K, V); with `output_generator_logits=True`
    corrupted_input_ids: Tensor | None = None  # (B, L) int64; what the discriminator read
    # (B, L) int64; 1 where the corrupted token differs from the original (Electric: where it was drawn), else 0, and
    # -100 at padding
    replaced_labels: Tensor | None = None
    predictions: Tensor | None = None  # (B, K) or (B, L) int64; most likely ids, for objectives that predict tokens
    generator_token_losses: Tensor | None = None  # (B, K) or (B, L), without gradient; 0 where nothing counts
    discriminator_token_losses: Tensor | None = None  # as above, for the positions of the objective's mean


class ElectraForRTDPretraining(PreTrainedModel):
    """ELECTRA's pre-training (arXiv 2003.10555): a generator fills masked tokens, a discriminator finds replaced ones.

    Both towers are stock models of any family of encoders. `model.generator` is a masked language model; it is None
    where there is no generator network, and a class of our own with two encoders. `model.discriminator` is an
    `ElectraForPreTraining`, in other families a model for token classification with two labels, or the model that
    `config.objective` trains in its place. Towers that are given are used as they are; by default new ones are made.
    """

    config: ElectraRTDConfig
    generator: Any
    discriminator: Any
    config_class = ElectraRTDConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    model_tags = ["hf-electra-rtd", "pretraining"]  # noqa: RUF012  # of the card that `push_to_hub` writes
    # Each loss is a mean already; the Trainer must not divide their sum by a count of labels.
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(
        self,
        config: ElectraRTDConfig,
        generator: PreTrainedModel | None = None,
        discriminator: PreTrainedModel | None = None,
    ) -> None:
        super().__init__(config)
        config.check()
        self.objective = OBJECTIVES[config.objective](config)
        self.sharing = SHARING[config.sharing]()
        self.proposals = (GENERATORS[config.generator] if config.traits.has_generator else Generator)(config)
        self.generator = generator
        if config.has_generator_network:
            self.generator = generator or self.proposals.make_network(config.generator_config)
            _adopt_config(self.generator, config.generator_config)
        main_class: Any = self.objective.tower_class(config.discriminator_config.model_type)
        self.discriminator = discriminator or main_class(config.discriminator_config)
        without_head_dropout(self.discriminator)
        _adopt_config(self.discriminator, config.discriminator_config)
        self.main_head = self.objective.make_head(config.discriminator_config)
        for tower in self.towers.values():
            exchange_attention(tower)
        # Set on the instance, since it depends on the configuration, and before `post_init`, which ties the weights.
        self._tied_weights_keys = self.sharing.tied_weights(self.generator, self.discriminator)
        self.post_init()  # sets the stock `_no_split_modules`
        self._no_split_modules = {name for tower in self.towers.values() for name in unsplit_layers(tower)}
        if discriminator is None:
            self.sharing.begin(self.generator, self.discriminator)
        self._settle_learning()

    @classmethod
    def from_pretrained(  # type: ignore[override]  # towers cannot be passed by position
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, **kwargs: Any
    ) -> Any:
        """Loads both towers as `PreTrainedModel.from_pretrained` does, but whole or not at all
        (`hf_electra_rtd.pair.towers.load_whole`). With `output_loading_info=True`, the model is returned with the
        loading report, and missing or unknown tensors are not refused."""
        name: Any = pretrained_model_name_or_path
        load: Any = partial(load_pretrained, super())
        if name is not None and (wanted := kwargs.get("sharing")) is not None:
            saved = towers.read_config(name, **kwargs).get("sharing", cls.config_class.sharing)
            if saved != wanted:
                raise ValueError(
                    f"{name} was saved with sharing={saved!r} and cannot be read with sharing={wanted!r}: save the "
                    "towers (save_towers) and join them again."
                )
        with_report = kwargs.get("output_loading_info", False)
        model, report = load(name, **kwargs) if with_report else towers.load_whole(cls, name, load, **kwargs)
        model._settle_learning()  # loading makes new parameters
        return (model, report) if with_report else model

    @classmethod
    def from_generator_discriminator_pretrained(
        cls,
        generator: str | os.PathLike[str] | PreTrainedModel | None,
        discriminator: str | os.PathLike[str] | PreTrainedModel,
        **kwargs: Any,
    ) -> ElectraForRTDPretraining:
        """Joins two native towers, to continue their pre-training.

        Args:
            generator: a directory, a Hub id, or a model; None for an objective or a kind of generator without one, and
                for a two-tower generator, which is made anew.
            discriminator: a directory, a Hub id, or a model. Shared tensors are taken from it, with a warning where
                the generator's differ.
            **kwargs: options of [`ElectraRTDConfig`] (`sharing`, `temperature`, ...), its `generator` under the name
                `generator_type`. All others go to `from_pretrained` of both towers (`revision`, `cache_dir`, `dtype`:
                float32 unless given, ...).
        """
        return cls(*towers.load_towers(generator, discriminator, **kwargs))

    def save_towers(self, directory: str | os.PathLike[str], tokenizer: Any = None) -> None:
        """Writes each of the [`native_towers`] into a subdirectory of its name, as a native checkpoint with the
        tokenizer."""
        towers.save_towers(self.native_towers(), directory, tokenizer)

    @property
    def towers(self) -> dict[str, Any]:
        """The towers by name; `generator` only if there is one."""
        pair = {"generator": self.generator, "discriminator": self.discriminator}
        return {name: tower for name, tower in pair.items() if tower is not None}

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that are taken in training and on held-out sequences."""
        return (*self.proposals.measures, *self.objective.measures)

    def native_towers(self) -> dict[str, Any]:
        """Returns the models that stock transformers can load, by name: the `generator`, unless it has two encoders;
        the `discriminator`, which for a detector of another family than ELECTRA is the encoder alone, as fine-tuning
        needs it; and for a discriminator that detects, the `detector`: the discriminator as a model for token
        classification with two labels. ELECTRA has no `detector` with `electric`, or where no stock model can hold its
        head."""
        found = {"generator": self.generator} if self.config.exports_generator else {}
        found["discriminator"] = main = self.native_discriminator()
        if self.config.traits.predicts == "replaced":
            if not isinstance(main, ElectraForPreTraining):
                found |= {"discriminator": without_head(main), "detector": main}
            elif not self.config.traits.needs_noise and (detector := with_two_labels(main)) is not None:
                found["detector"] = detector
        return found

    def native_discriminator(self) -> Any:
        """Returns the discriminator as a model of its own: the one that is trained or, with `sharing="gdes"`, a copy
        whose tables are the sums of its own and the generator's."""
        tensors = self.sharing.exported_tensors(self.generator, self.discriminator)
        if tensors is None:
            return self.discriminator
        alone = copy.deepcopy(self.discriminator)
        alone.load_state_dict(tensors)
        return alone

    # ---- Scores of texts ----

    def pseudo_log_likelihood(self, texts: Sequence[str], tokenizer: Any = None, batch_size: int = 32) -> list[float]:
        """Returns the sum of the [`token_log_likelihoods`] of each text, in nats (Salazar et al. 2020, arXiv
        1910.14659)."""
        return [each.sum().item() for each in self.token_log_likelihoods(texts, tokenizer, batch_size)]

    @torch.no_grad()
    def token_log_likelihoods(self, texts: Sequence[str], tokenizer: Any = None, batch_size: int = 32) -> list[Tensor]:
        """Returns log p(x_t | x without t) for the tokens of each text, except [CLS] and [SEP]: float64 (n,), on the
        CPU. Some pairs need one forward pass for a text, others one for each token (docs/reference/objectives.md). The
        default tokenizer is that of the directory that the model was loaded from. Raises ValueError for a pair that
        gives no such probability, and its subclass [`UnscorableTextError`] for a text without tokens or with more of
        them than the model has positions."""
        if isinstance(texts, str):
            raise ValueError(f"{texts[:40]!r} is one text: give a list of texts.")
        if tokenizer is None and not self.name_or_path:
            raise ValueError("The model was not loaded from a directory or the Hub: pass the tokenizer.")
        tokenizer = load_tokenizer(str(self.name_or_path)) if tokenizer is None else tokenizer
        longest = min(map(max_length, self.config.towers.values()))
        found = []
        training = self.training
        options = {"padding": True, "padding_side": "right", "return_special_tokens_mask": True, "verbose": False}
        if not all(map(mixes_by_attention, self.config.towers.values())):
            batch_size = 1  # other encoders read the padding, too
        self.eval()
        try:
            for start in range(0, len(texts), batch_size):
                some = list(texts[start : start + batch_size])
                # With `split_special_tokens`, a `[MASK]` in a text is text.
                batch = tokenizer(some, return_tensors="pt", split_special_tokens=True, **options)
                counted_BL = ~batch["special_tokens_mask"].bool()
                lengths = batch["attention_mask"].sum(dim=1).tolist()
                for text, length, count in zip(some, lengths, counted_BL.sum(dim=1).tolist(), strict=True):
                    if not count:
                        raise UnscorableTextError(f"The text {text[:40]!r} has no token.")
                    if length > longest:
                        raise UnscorableTextError(
                            f"The text {text[:40]!r} has {length} tokens with [CLS] and [SEP], "
                            f"and the model {longest} positions."
                        )
                input_ids = batch["input_ids"].to(self.device)
                mask = batch["attention_mask"].to(self.device)
                inputs = {"attention_mask": None if min(lengths) == mask.shape[1] else mask}
                log_p_BL = self.objective.log_likelihoods(self, input_ids, tokenizer.mask_token_id, **inputs)
                found += [row[counted] for row, counted in zip(log_p_BL.cpu().double(), counted_BL, strict=True)]
        finally:
            self.train(training)
        return found

    # ---- A step. `inputs` are the arguments of `forward` from `attention_mask` to `document_offsets` ----

    def sampling(self, slots: MaskedSlots, uniforms: Tensor | None = None) -> Sampling:
        """Returns how the generator's samples are drawn: from `uniforms` (B, K, 2), by default new random numbers."""
        if uniforms is None:
            uniforms = torch.rand(*slots.labels.shape, 2, device=slots.labels.device)
        return Sampling(uniforms, self.config.temperature, self.config.disallow_correct)

    def generate(
        self,
        input_ids: Tensor,
        slots: MaskedSlots,
        sampling: Sampling | None = None,
        output_logits: bool = False,
        **inputs: Tensor | None,
    ) -> MaskedPrediction | None:
        """Runs the generator, if there is one, on the masked `input_ids` (B, L)."""
        return self.proposals(self.generator, slots, sampling, output_logits, input_ids=input_ids, **inputs)

    def discriminate(
        self,
        input_ids: Tensor,
        originals: Tensor | None = None,
        slots: MaskedSlots | None = None,
        output_logits: bool = False,
        noise_log_probs: Tensor | None = None,
        **inputs: Tensor | None,
    ) -> MainOutput:
        """Runs the discriminator on the corrupted `input_ids` (B, L). The loss needs the originals (B, L) and the
        slots. Electric's loss also needs `noise_log_probs` (B, L), the log-probabilities of these ids under the
        generator. With `output_logits`, an objective that predicts tokens also returns its logits."""
        look_up = self.sharing.look_up(self.generator, self.discriminator, input_ids, inputs.get("position_ids"))
        batch = CorruptedBatch(input_ids, {**look_up, **inputs}, originals, slots, noise_log_probs)
        return self.objective(self.discriminator, self.main_head, batch, output_logits)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        document_offsets: Tensor | None = None,
        masked_positions: Tensor | None = None,
        labels: Tensor | None = None,
        sampling_uniforms: Tensor | None = None,
        corrupted_input_ids: Tensor | None = None,
        output_generator_logits: bool = False,
        output_logits: bool = False,
    ) -> ElectraRTDOutput:
        """Generates samples, puts them in place of the masked tokens, and discriminates.

        Args:
            input_ids: (B, L) int64, with [MASK] (and the kept tokens) at the masked positions.
            attention_mask, token_type_ids, position_ids: (B, L). Without padding, no mask is faster than all ones.
            document_ids: (B, L) integers. A token sees only tokens with the same number; let `position_ids` begin
                again in each document. Raises ValueError for towers that cannot do it.
            document_offsets: (N + 1,) int32, from the collator: the same in the form that flash attention reads.
            masked_positions: (B, K) int64. The collator's are distinct. A replay may repeat a position; both slots
                count then.
            labels: the original ids: (B, K) with `masked_positions`, `-100` in unused slots; or (B, L), `-100`
                wherever nothing is masked, as `DataCollatorForLanguageModeling` gives. With None there is no loss, and
                the discriminator reads `corrupted_input_ids` or, without these, the sequences as they are.
            sampling_uniforms: (B, K, 2) float32 in [0, 1), from the collator; drawn here only when absent.
            corrupted_input_ids: (B, L); what the discriminator reads, in place of what would be sampled.
            output_generator_logits: also return the generator's logits.
            output_logits: also return the logits of an objective that predicts tokens.
        """
        config = self.config
        inputs = {"attention_mask": attention_mask, "token_type_ids": token_type_ids, "position_ids": position_ids}
        if document_ids is not None:
            inputs |= {"document_ids": document_ids, "document_offsets": document_offsets}
        slots = originals = generated = None
        if labels is not None:
            slots = masked_slots(input_ids, masked_positions, labels)
            originals = original_ids(input_ids, slots)
            sampling = None
            if corrupted_input_ids is None and config.traits.has_generator:
                sampling = self.sampling(slots, sampling_uniforms)
            generated = self.generate(input_ids, slots, sampling, output_generator_logits, **inputs)
            if generated is not None and generated.sampled is not None:
                corrupted_input_ids = replace_at(input_ids, slots, generated.sampled)
        if corrupted_input_ids is None:
            corrupted_input_ids = input_ids
        noise = None
        if config.traits.needs_noise and generated is not None and generated.log_prob_of is not None:
            noise = generated.log_prob_of(corrupted_input_ids)
        main = self.discriminate(corrupted_input_ids, originals, slots, output_logits, noise, **inputs)

        losses: dict[str, Any] = {}
        if main.loss is not None and originals is not None:
            loss = main.loss.mean()
            replaced = (corrupted_input_ids.ne(originals) if main.labels is None else main.labels).long()
            if attention_mask is not None:
                replaced = replaced.masked_fill(attention_mask.eq(0), IGNORED)
            losses = {
                "loss": config.discriminator_weight * loss,
                "discriminator_loss": loss,
                "discriminator_token_losses": main.loss.losses,
                "replaced_labels": replaced,
            }
        if generated is not None and slots is not None:
            loss = generated.loss.mean()
            losses |= {
                "loss": config.generator_weight * loss + losses["loss"],
                "generator_loss": loss,
                "generator_token_losses": generated.loss.losses,
                "generator_predictions": generated.predictions,
                "generator_logits": generated.logits,
            }
        return ElectraRTDOutput(
            logits=main.logits,
            corrupted_input_ids=corrupted_input_ids,
            predictions=main.predictions,
            **losses,
        )

    # ---- Embeddings ----

    def get_input_embeddings(self) -> nn.Embedding:
        return cast(nn.Embedding, self.discriminator.get_input_embeddings())

    def get_output_embeddings(self) -> nn.Module | None:
        """Returns the generator's output layer if it shares the table of `get_input_embeddings`. Otherwise returns
        None: peft would take two different tensors as a sign that nothing is tied."""
        layer = None if self.generator is None else self.generator.get_output_embeddings()
        return layer if layer is not None and layer.weight is self.get_input_embeddings().weight else None

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resizes the word tables of both towers and the generator's output layer, as in `PreTrainedModel`. Ties
        remain."""
        before = self.get_input_embeddings().num_embeddings
        for tower in self.towers.values():
            # A stock resize changes its tensor in place: give each tower its own tensor first, and tie them again
            # afterwards.
            embedding = tower.get_input_embeddings()
            embedding.weight = nn.Parameter(embedding.weight.detach().clone())
            tower.tie_weights()
            resize_vocabulary(tower, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.sharing.resized(self.discriminator, before)
        self.tie_weights()
        self._settle_learning()
        return self.get_input_embeddings()

    def train(self, mode: bool = True) -> ElectraForRTDPretraining:
        """Sets the mode as in torch, but a frozen generator stays in evaluation mode, without dropout."""
        super().train(mode)
        if self.config.freeze_generator:
            self.generator.eval()
        return self

    @torch.no_grad()
    def append_tokens(self, pieces: Sequence[Sequence[int]]) -> None:
        """Adds tokens at the end of the vocabulary. Each entry of `pieces` lists the old ids that have stood for the
        new token until now. The row of a new token in a word table (with `sharing="gdes"` also in the table of
        differences) is the mean of their rows. Its bias in an output layer is the lowest of theirs, since it is no
        more frequent than the rarest of its pieces."""
        before = self.get_input_embeddings().num_embeddings
        self.resize_token_embeddings(before + len(pieces), mean_resizing=False)
        for tower in self.towers.values():
            layers = [tower.get_input_embeddings(), output_layer(tower)]
            for layer in filter(None, layers):
                for index, ids in enumerate(pieces, before):
                    layer.weight[index] = layer.weight[list(ids)].mean(dim=0)
                    if getattr(layer, "bias", None) is not None:
                        layer.bias[index] = layer.bias[list(ids)].min()

    def _settle_learning(self) -> None:
        if self.config.freeze_generator:
            self.generator.requires_grad_(False).eval()
        # The `padding_idx` of stock towers would keep a [PAD] that the generator sampled from being learned.
        for tower in self.towers.values():
            for module in tower.modules():
                if isinstance(module, nn.Embedding):
                    module.padding_idx = None


def _adopt_config(tower: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Makes the tower and each of its layers read `config`, the configuration that the pair saves."""
    config._attn_implementation_internal = tower.config._attn_implementation
    for module in tower.modules():
        if isinstance(getattr(module, "config", None), PreTrainedConfig):
            module.config = config  # type: ignore[assignment]  # layers keep it as a plain attribute
