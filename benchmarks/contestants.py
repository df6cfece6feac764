"""Who competes: ways to arrange the joint step of both towers, each with the same weights and batches.

A contestant's name is an arrangement and how it is run: `ours`, `naive-bf16`, `ours-bf16-compiled`, `ours-bf16-graph`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from workload import Batch, Workload

from hf_electra_rtd import ElectraAdamW, ElectraForRTDPretraining, ElectraRTDConfig, get_parameter_groups
from hf_electra_rtd.families import FAMILIES, inputs_of, output_layer
from hf_electra_rtd.ops import IGNORED


LEARNING_RATE, WEIGHT_DECAY, EPSILON, MAX_GRAD_NORM = 1e-4, 0.01, 1e-6, 1.0


class Losses(NamedTuple):
    """Both scalars; `total` is what is trained."""

    generator: Tensor
    discriminator: Tensor
    total: Tensor


class Arrangement(nn.Module, ABC):
    """Two towers, and how their losses are computed."""

    description: ClassVar[str]
    generator_encoder: nn.Module
    discriminator: nn.Module

    @abstractmethod
    def forward(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        """With `corrupted_BL`, the discriminator reads these rows; nothing is sampled."""

    @abstractmethod
    def compile_parts(self) -> None:
        """Compiles what is called once a step."""

    def make_optimizer(self, capturable: bool) -> torch.optim.Optimizer:
        groups = get_parameter_groups(self, WEIGHT_DECAY)
        return torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=EPSILON, fused=True, capturable=capturable)


class StockTowers(Arrangement):
    """Stock towers with one embedding block, holding a pair's weights."""

    def __init__(self, pair: ElectraForRTDPretraining) -> None:
        super().__init__()
        self.generator, self.discriminator = map(_stock_copy, (pair.generator, pair.discriminator))
        self.discriminator.base_model.embeddings = self.generator.base_model.embeddings
        self.weights = (pair.config.generator_weight, pair.config.discriminator_weight)
        self.generator_encoder = self.generator.base_model

    def compile_parts(self) -> None:
        self.generator.compile(dynamic=False)
        self.discriminator.compile(dynamic=False)

    def add_up(self, generator_loss: Tensor, discriminator_loss: Tensor) -> Losses:
        of_generator, of_discriminator = self.weights
        total = of_generator * generator_loss + of_discriminator * discriminator_loss
        return Losses(generator_loss, discriminator_loss, total)

    def discriminate(self, batch: Batch, corrupted_BL: Tensor) -> Tensor:
        replaced_BL = corrupted_BL.ne(batch.originals).long()
        loss: Tensor = self.discriminator(**self.read(batch, corrupted_BL), labels=replaced_BL).loss
        return loss

    def read(self, batch: Batch, ids_BL: Tensor) -> dict[str, Tensor]:
        """What both towers are called with."""
        given = {"input_ids": ids_BL, "token_type_ids": batch.inputs["token_type_ids"]}
        return inputs_of(self.generator.config, given)


def _stock_copy(tower: Any) -> Any:
    """The stock model with these weights, and without what the pair changes in its layers."""
    made = type(tower)(copy.deepcopy(tower.config))  # a copy, since the configuration names the pair's attention
    if made._supports_sdpa:
        made.set_attn_implementation("sdpa")
    made.load_state_dict(tower.state_dict())
    return made


class Naive(StockTowers):
    description = "stock towers called with labels (B, L): logits at every token, torch.multinomial"

    def forward(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        output = self.generator(**self.read(batch, batch.inputs["input_ids"]), labels=batch.labels)
        if corrupted_BL is None:
            masked_BL = batch.labels.ne(IGNORED)
            with torch.no_grad():
                probabilities_MV = output.logits[masked_BL].softmax(dim=-1)
                corrupted_BL = batch.inputs["input_ids"].clone()
                corrupted_BL[masked_BL] = torch.multinomial(probabilities_MV, 1).squeeze(-1)
        return self.add_up(output.loss, self.discriminate(batch, corrupted_BL))


class Gathered(StockTowers):
    """Masked tokens are gathered before the vocabulary, as by richarddwang/electra_pytorch with its own towers
    (pretrain.py, `my_model`; with stock towers it gathers behind the vocabulary)."""

    description = "boolean gather before the vocabulary, float32 Gumbel noise (as richarddwang/electra_pytorch)"

    def __init__(self, pair: ElectraForRTDPretraining) -> None:
        super().__init__(pair)
        self.noise: torch.distributions.Gumbel | None = None

    def forward(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        ids_BL, masked_BL = batch.inputs["input_ids"], batch.labels.ne(IGNORED)
        hidden_BLH = self.generator_encoder(**self.read(batch, ids_BL)).last_hidden_state
        transform = FAMILIES[self.generator.config.model_type].transform
        logits_MV = output_layer(self.generator)(transform(self.generator, hidden_BLH[masked_BL]))
        generator_loss = F.cross_entropy(logits_MV, batch.labels[masked_BL])
        if corrupted_BL is None:
            if self.noise is None:
                location = torch.zeros((), device=ids_BL.device)
                self.noise = torch.distributions.Gumbel(location, location + 1.0)
            with torch.no_grad():
                corrupted_BL = ids_BL.clone()
                corrupted_BL[masked_BL] = (logits_MV.float() + self.noise.sample(logits_MV.shape)).argmax(dim=-1)
        return self.add_up(generator_loss, self.discriminate(batch, corrupted_BL))

    def compile_parts(self) -> None:
        self.generator_encoder.compile(dynamic=False)
        self.discriminator.compile(dynamic=False)


class ElectraPytorch(StockTowers):
    """The installed package around the stock towers. It masks inside of its step, so that its masks are its own and
    their cost is in its time; as many tokens a row as the others'."""

    description = (
        "electra-pytorch 0.1.2 (lucidrains): masks by itself, logits at every token, Gumbel noise, accuracies"
    )

    def __init__(self, pair: ElectraForRTDPretraining, workload: Workload, tokenizer: Any) -> None:
        super().__init__(pair)
        from electra_pytorch import Electra, electra_pytorch

        self.functions = electra_pytorch
        self.mask_id = tokenizer.mask_token_id
        self.electra = Electra(
            _Logits(self.generator),
            _Logits(self.discriminator),
            num_tokens=workload.vocab_size,
            mask_prob=workload.num_masked / workload.max_seq_length,
            mask_token_id=tokenizer.mask_token_id,
            pad_token_id=tokenizer.pad_token_id,
            mask_ignore_token_ids=[tokenizer.cls_token_id, tokenizer.sep_token_id],
            gen_weight=self.weights[0],
            disc_weight=self.weights[1],
        )

    def forward(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        given = contextlib.nullcontext() if corrupted_BL is None else self._given(batch, corrupted_BL)
        with given:
            results = self.electra(batch.originals, token_type_ids=batch.inputs["token_type_ids"])
        return Losses(results.mlm_loss, results.disc_loss, results.loss)

    def _given(self, batch: Batch, corrupted_BL: Tensor) -> Any:
        """The package with the batch's masks and fills in place of its draws."""
        masked_BL = batch.labels.ne(IGNORED)
        return mock.patch.multiple(
            self.functions,
            get_mask_subset_with_prob=lambda mask, prob: masked_BL,
            prob_mask_like=lambda t, prob: batch.inputs["input_ids"].eq(self.mask_id),
            gumbel_sample=lambda t, temperature: corrupted_BL[masked_BL],
        )


class _Logits(nn.Module):
    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, ids_BL: Tensor, token_type_ids: Tensor) -> Tensor:
        logits: Tensor = self.tower(ids_BL, token_type_ids=token_type_ids).logits
        return logits


class Ours(Arrangement):
    description = "ElectraForRTDPretraining, DataCollatorForRTD's batches, ElectraAdamW"

    def __init__(self, pair: ElectraForRTDPretraining) -> None:
        super().__init__()
        self.model = copy_pair(pair)
        self.generator_encoder = self.model.generator.base_model
        self.discriminator = self.model.discriminator

    def forward(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        given = {} if corrupted_BL is None else {"corrupted_input_ids": corrupted_BL}
        output = self.model(**batch.inputs, **given)
        return Losses(output.generator_loss, output.discriminator_loss, output.loss)

    def compile_parts(self) -> None:
        self.model.compile(dynamic=False)

    def make_optimizer(self, capturable: bool) -> torch.optim.Optimizer:
        groups = get_parameter_groups(self.model, WEIGHT_DECAY)
        return ElectraAdamW(groups, lr=LEARNING_RATE, eps=EPSILON, weight_decay=WEIGHT_DECAY, capturable=capturable)


def make_pair(config: ElectraRTDConfig, seed: int, device: torch.device | str) -> ElectraForRTDPretraining:
    """The pair whose weights all contestants start from."""
    torch.manual_seed(seed)
    pair: Any = ElectraForRTDPretraining(config)
    return pair.to(device)


def copy_pair(pair: ElectraForRTDPretraining) -> ElectraForRTDPretraining:
    """Another pair with the same weights."""
    copied: Any = ElectraForRTDPretraining(pair.config)
    copied.to(pair.device)
    copied.load_state_dict(pair.state_dict())
    return copied


ARRANGEMENTS: dict[str, type[Arrangement]] = {
    "naive": Naive,
    "gathered": Gathered,
    "electra-pytorch": ElectraPytorch,
    "ours": Ours,
}
LOOPS = {
    "loop": "a loop around the same model: stream, collator, step, schedule",
    "trainer": "RTDTrainer around the same model, without logging, evaluation and checkpoints",
}
ORIGINAL = "google-electra"  # `loops.GoogleElectra`
APART = {
    **LOOPS,
    ORIGINAL: "google-research/electra's graph under TensorFlow, in its own process, with its own weights and masks",
}
MODIFIERS = ("bf16", "compiled", "graph")


@dataclass(frozen=True)
class Entry:
    """A contestant's name, taken apart: a key of `ARRANGEMENTS` or `APART`; bfloat16 autocast; `torch.compile`; the
    whole step, optimizer included, as one CUDA graph."""

    base: str
    bf16: bool = False
    compiled: bool = False
    graph: bool = False

    @classmethod
    def parse(cls, name: str) -> Entry:
        """Raises ValueError for a name that means nothing."""
        base, given = name, []
        while (ending := base.rpartition("-")[2]) in MODIFIERS:
            given.append(ending)
            base = base.removesuffix(f"-{ending}")
        known = [*ARRANGEMENTS, *APART]
        if base not in known or (base == ORIGINAL and given) or (base in LOOPS and "graph" in given):
            raise ValueError(
                f"There is no contestant {name!r}: give one of {', '.join(known)}, with any of -bf16, -compiled and "
                f"-graph behind it ({ORIGINAL} has none, a loop no graph)."
            )
        return cls(base, **dict.fromkeys(given, True))

    @property
    def name(self) -> str:
        return "-".join([self.base, *(modifier for modifier in MODIFIERS if getattr(self, modifier))])

    @property
    def dtype_name(self) -> str:
        """Of the operands of its matrix products."""
        return "bfloat16" if self.bf16 else "float32"

    @property
    def description(self) -> str:
        return APART[self.base] if self.base in APART else ARRANGEMENTS[self.base].description


def default_entries(cuda: bool, bf16_pays: bool) -> list[str]:
    """Names of contestants that suit a device."""
    peers = ("naive", "gathered", "electra-pytorch")
    if not cuda:
        slow = [*peers, "ours", "ours-compiled"]
        return [*slow, *(("naive-bf16", "ours-bf16") if bf16_pays else ()), "loop", "trainer"]
    best = "-bf16" if bf16_pays else ""
    named = ["naive", *(name + best for name in peers), f"naive{best}-compiled", "ours"]
    named += [f"ours{best}{how}" for how in ("", "-compiled", "-graph", "-compiled-graph")]
    named += [f"{loop}{best}{how}" for how in ("", "-compiled") for loop in LOOPS]
    return list(dict.fromkeys(named))


def why_absent(entry: Entry, workload: Workload | None = None) -> str | None:
    """Why a contestant cannot compete here; None if it can."""
    if workload is not None and workload.backbone and entry.base in ("electra-pytorch", ORIGINAL):
        return "it trains ELECTRA alone, so it has no --backbone"
    if entry.base == "electra-pytorch" and importlib.util.find_spec("electra_pytorch") is None:
        return "it is not installed: pip install --no-deps electra-pytorch==0.1.2"
    if entry.graph and not torch.cuda.is_available():
        return "CUDA graphs need a CUDA device"
    return None


class Contestant:
    """An arrangement with its optimizer, ready to step."""

    def __init__(self, entry: Entry, pair: ElectraForRTDPretraining, workload: Workload, tokenizer: Any) -> None:
        self.entry, self.device = entry, pair.device
        kind = ARRANGEMENTS[entry.base]
        more = (workload, tokenizer) if kind is ElectraPytorch else ()
        self.arrangement: Arrangement = kind(pair, *more).to(pair.device).train()
        self.optimizer = self.arrangement.make_optimizer(capturable=entry.graph)
        if entry.compiled:
            self.arrangement.compile_parts()
        self._graph: _Graph | None = None

    def losses(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        # What autocast keeps between calls would lie outside of a graph.
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.entry.bf16, cache_enabled=not self.entry.graph
        ):
            losses: Losses = self.arrangement(batch, corrupted_BL)
        return losses

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.arrangement.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, batch: Batch) -> None:
        if not self.entry.graph:
            self.losses(batch).total.backward()
            self.update()
            return
        if self._graph is None:
            self._graph = _Graph(self, batch)
        self._graph.replay(batch)


class _Graph:
    """A whole step, captured once. Learning rate and step counts stay what they were at the capture."""

    def __init__(self, contestant: Contestant, batch: Batch) -> None:
        inputs = {name: tensor.clone() for name, tensor in batch.inputs.items()}
        forms = (batch.labels, batch.originals, batch.corrupted)
        self.batch = Batch(inputs, *(form.clone() for form in forms))
        # Libraries and the optimizer's state must be set up before, on a stream of their own.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                contestant.losses(self.batch).total.backward()
                contestant.update()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        # Gradients are None here, so that the backward pass writes them anew, into the graph's own memory.
        with torch.cuda.graph(self.graph):
            contestant.losses(self.batch).total.backward()
            nn.utils.clip_grad_norm_(contestant.arrangement.parameters(), MAX_GRAD_NORM)
            contestant.optimizer.step()

    def replay(self, batch: Batch) -> None:
        for mine, given in zip(self.batch.tensors(), batch.tensors(), strict=True):
            mine.copy_(given)
        self.graph.replay()
