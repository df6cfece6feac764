"""The original's head for questions: the end of an answer is looked for from where it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import ElectraConfig, ElectraModel, ElectraPreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput


BEAM_SIZE = 20  # google-research/electra configure_finetuning.py, `beam_size`
HIDDEN_SIZE = 512  # of both small networks (google-research/electra finetune/qa/qa_tasks.py, `get_prediction_module`)
_OUT_OF_REACH = -1000.0  # logit of what cannot be an answer (there, too): no probability, but a finite logarithm


@dataclass
class JointAnswerOutput(ModelOutput):
    """What `ElectraForJointQuestionAnswering` gives. B rows, L tokens, K starts in the beam, and K ends for each.

    What decoding needs stands first, so that it has the same place in a tuple whether or not the answers are known.

    Attributes:
        start_log_probs: (B, K), the most probable starts, best first; not in training.
        end_log_probs: (B, K, K), given the start, best first; not in training.
        start_indices: (B, K), tokens; not in training. Rows of fewer than K tokens are filled with token 0, which is
            no part of a context, at log-probability -1000.
        end_indices: (B, K, K), likewise.
        answerable_logits: (B,), positive where the context holds an answer; None without that part of the head.
        start_logits: (B, L).
        end_logits: (B, L), given the right start; None where it was not told.
    """

    start_log_probs: Tensor | None = None
    end_log_probs: Tensor | None = None
    start_indices: Tensor | None = None
    end_indices: Tensor | None = None
    answerable_logits: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None


class GlorotLinear(nn.Linear):
    """A dense layer that is drawn as the original's `tf.layers.dense`: a Glorot-uniform kernel, and a bias of 0.

    Args:
        fan_in: inputs of the whole layer, where this is a part of it.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, fan_in: int | None = None) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.bound = math.sqrt(6 / ((fan_in or in_features) + out_features))


class JointAnswerHead(nn.Module):
    """Where an answer starts, where it ends given its start, and whether there is one.

        start:      w . h_i
        end:        v . gelu(A [h_start; h_j] + a)
        answerable: u . gelu(C [h_CLS; sum_i p(start = i) h_i] + c)

    Source: google-research/electra finetune/qa/qa_tasks.py, `get_prediction_module`, with its defaults
    `joint_prediction`, `answerable_classifier` and `answerable_uses_start_logits`. There the last part is trained for
    SQuAD 1.1 too, where it has nothing to learn; here it is made only where it is asked for.

    Args:
        config: of the encoder; `joint_answerability` says whether there is the last part.
    """

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.start = GlorotLinear(size, 1)
        # A [h_start; h_j] as the sum of its halves: the second is the same for every start.
        self.end_from_start = GlorotLinear(size, HIDDEN_SIZE, fan_in=2 * size)
        self.end_from_token = GlorotLinear(size, HIDDEN_SIZE, bias=False, fan_in=2 * size)
        self.end = GlorotLinear(HIDDEN_SIZE, 1)
        if config.joint_answerability:
            self.answerable_hidden = GlorotLinear(2 * size, HIDDEN_SIZE)
            self.answerable = GlorotLinear(HIDDEN_SIZE, 1)

    def start_logits(self, hidden_BLH: Tensor, possible_BL: Tensor) -> Tensor:
        """(B, L), float32."""
        return self.start(hidden_BLH).squeeze(-1).float().masked_fill(~possible_BL, _OUT_OF_REACH)

    def end_logits(self, hidden_BLH: Tensor, starts_BK: Tensor, possible_BL: Tensor) -> Tensor:
        """(B, K, L), float32: of the ends for each of some starts."""
        starts_BKH = hidden_BLH.gather(1, starts_BK.unsqueeze(-1).expand(-1, -1, hidden_BLH.shape[-1]))
        from_start_BKD, from_token_BLD = self.end_from_start(starts_BKH), self.end_from_token(hidden_BLH)
        # One start at a time: for all at once, the inner layer would be the largest tensor of the model by far.
        logits = [
            self.end(F.gelu(from_start_BD.unsqueeze(1) + from_token_BLD)).squeeze(-1)
            for from_start_BD in from_start_BKD.unbind(1)
        ]
        return torch.stack(logits, dim=1).float().masked_fill(~possible_BL.unsqueeze(1), _OUT_OF_REACH)

    def answerable_logits(self, hidden_BLH: Tensor, start_logits_BL: Tensor) -> Tensor:
        """(B,), float32."""
        probabilities_BL = start_logits_BL.softmax(dim=-1).to(hidden_BLH.dtype)
        start_BH = torch.einsum("bl,blh->bh", probabilities_BL, hidden_BLH)
        hidden_BD = F.gelu(self.answerable_hidden(torch.cat([hidden_BLH[:, 0], start_BH], dim=-1)))
        return self.answerable(hidden_BD).squeeze(-1).float()

    def search(
        self, hidden_BLH: Tensor, start_logits_BL: Tensor, possible_BL: Tensor, beam_size: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best starts, and the best ends for each: log-probabilities (B, K), (B, K, K), and tokens, likewise."""
        start_log_probs_BK, starts_BK = start_logits_BL.log_softmax(dim=-1).topk(min(beam_size, len(possible_BL[0])))
        end_logits_BKL = self.end_logits(hidden_BLH, starts_BK, possible_BL)
        end_log_probs_BKK, ends_BKK = end_logits_BKL.log_softmax(dim=-1).topk(starts_BK.shape[1])
        # As wide in every batch, so that batches of shorter rows can be joined to others.
        row = (0, beam_size - starts_BK.shape[1])
        return (
            F.pad(start_log_probs_BK, row, value=_OUT_OF_REACH),
            F.pad(end_log_probs_BKK, row + row, value=_OUT_OF_REACH),
            F.pad(starts_BK, row),
            F.pad(ends_BKK, row + row),
        )


class ElectraForJointQuestionAnswering(ElectraPreTrainedModel):
    """ELECTRA with the original's head for extractive questions.

    Two keys of the configuration belong to the head, and are saved with it: `joint_answerability` (False by default),
    whether it tells contexts without an answer, and `joint_beam_size` (20 by default), how many starts, and ends for
    each, are looked at in prediction.

    Args:
        config: of the encoder.
    """

    def __init__(self, config: ElectraConfig) -> None:
        config.joint_answerability = getattr(config, "joint_answerability", False)
        config.joint_beam_size = getattr(config, "joint_beam_size", BEAM_SIZE)
        super().__init__(config)
        self.electra = ElectraModel(config)
        self.answer_head = JointAnswerHead(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GlorotLinear):
            init.uniform_(module.weight, -module.bound, module.bound)  # leaves alone what was loaded

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None = None,
        start_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> JointAnswerOutput:
        """Logits and, outside training, the best starts and ends.

        Args:
            input_ids: (B, L); [CLS] is the first token.
            token_type_ids: (B, L); 1 for the context and the [SEP] that ends it: there answers are looked for, and at
                [CLS], which stands for none.
            attention_mask: (B, L); None means that all tokens are real.
            start_positions: (B,), where the right answers start, to give the logits of their ends. Below 0 for rows
                whose answer is not known: their end logits mean nothing.
            **kwargs: of the encoder.
        """
        hidden = self.electra(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **kwargs)[0]
        possible = token_type_ids.eq(1)
        if attention_mask is not None:
            possible = possible & attention_mask.ne(0)
        is_first = torch.arange(input_ids.shape[1], device=input_ids.device).eq(0)
        possible = possible | is_first
        start_logits = self.answer_head.start_logits(hidden, possible)
        start_log_probs = end_log_probs = start_indices = end_indices = None
        if not self.training:
            start_log_probs, end_log_probs, start_indices, end_indices = self.answer_head.search(
                hidden, start_logits, possible, self.config.joint_beam_size
            )
        answerable_logits = end_logits = None
        if self.config.joint_answerability:
            answerable_logits = self.answer_head.answerable_logits(hidden, start_logits)
        if start_positions is not None:
            starts = start_positions.clamp(min=0).unsqueeze(1)
            end_logits = self.answer_head.end_logits(hidden, starts, possible).squeeze(1)
        # All at once: the order in a tuple is that in which they are set.
        return JointAnswerOutput(
            start_log_probs, end_log_probs, start_indices, end_indices, answerable_logits, start_logits, end_logits
        )
