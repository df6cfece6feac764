"""The network of Electric's noise distribution, which predicts every token from its context in one pass.

arXiv 2012.08561, section 2.4; google-research/electra run_pretraining.py, `TwoTowerClozeTransformer`.

Two encoders read the whole sequence. At each position, one sees only the tokens up to it, the other only those from it
on. The state of position t joins that of the first encoder at t - 1 and that of the second at t + 1, so it has not
seen token t.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import ElectraConfig, ElectraModel
from transformers.models.electra.modeling_electra import ElectraGeneratorPredictions, ElectraPreTrainedModel


# Added to the attention scores of tokens that must not be seen, as in the original. It must stay finite: at padding,
# the encoder that reads from right to left sees no real token, and the last [SEP] reads the state of the padding after
# it.
_UNSEEN = -10000.0


class TwoTowerForCloze(ElectraPreTrainedModel):
    """Two stock encoders and a head on both. Their embeddings are the discriminator's.

    See `hf_electra_rtd.pair.sharing`.
    """

    base_model_prefix = "ltr"
    _supports_flash_attn = _supports_flex_attn = False  # these cannot add numbers to scores
    encoder_names = ("ltr", "rtl")  # left to right, right to left
    _tied_weights_keys = {"cloze_lm_head.weight": "ltr.embeddings.word_embeddings.weight"}  # noqa: RUF012

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__(config)
        self.ltr = ElectraModel(config)
        self.rtl = ElectraModel(config)
        joined = copy.copy(config)
        joined.hidden_size = 2 * config.hidden_size
        self.cloze_predictions = ElectraGeneratorPredictions(joined)
        self.cloze_lm_head = nn.Linear(config.embedding_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.cloze_lm_head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.cloze_lm_head = new_embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **inputs: Tensor | None) -> Tensor:
        """Returns the states (B, L, E) that `cloze_lm_head` reads, for the sequences before masking (B, L). The ends
        are joined as in the original: the first position reads the last state of the encoder that reads from left to
        right, the last position the first state of the other. These positions hold [CLS] and [SEP], which no loss
        counts."""
        left_LL = torch.ones(input_ids.shape[1], input_ids.shape[1], dtype=torch.bool, device=input_ids.device).tril()
        states = []
        for encoder, seen, shift in ((self.ltr, left_LL, 1), (self.rtl, left_LL.T, -1)):
            seen = seen[None, None] if attention_mask is None else seen & attention_mask.ne(0)[:, None, None]
            added = torch.zeros(seen.shape, dtype=self.dtype, device=seen.device).masked_fill(~seen, _UNSEEN)
            hidden_BLH = encoder(input_ids, attention_mask=added, **inputs).last_hidden_state
            states.append(hidden_BLH.roll(shift, dims=1))
        return cast(Tensor, self.cloze_predictions(torch.cat(states, dim=-1)))
