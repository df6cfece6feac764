"""A run that publishes: its towers go to the Hub while it trains and when it ends, and never stop it.

`--push_to_hub True --hub_model_id ORG/NAME` makes `ORG/NAME-discriminator` and `ORG/NAME-generator`. `--hub_strategy
end` publishes when the run is over; `every_save`, the default, also the towers at each checkpoint, in the background
and unless the ones before are still on their way (`--hub_always_push True`: even then), and those at fractions of the
run, as branches, as soon as they are there. What the Hub does not take at the end is kept, and `publish.py --resume`
sends it later.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import HubStrategy

from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing.arguments import CardArguments, TowerArguments
from hf_electra_rtd.publishing.delivery import BackgroundDelivery, Delivery, deliver
from hf_electra_rtd.publishing.hub import Publisher
from hf_electra_rtd.publishing.hub_errors import HubError
from hf_electra_rtd.publishing.outbox import DIRECTORY, Outbox
from hf_electra_rtd.publishing.runs import (
    PAIR,
    Planned,
    pretraining_repositories,
    repository_ids,
    towers_at_fraction,
)
from hf_electra_rtd.publishing.same_run import identify_run
from hf_electra_rtd.records import RECORD_FILE, PretrainingRecord
from hf_electra_rtd.towers import save_tokenizer
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.fractions import fraction_directory
from hf_electra_rtd.training.sharding import gather_pair


logger = logging.getLogger(__name__)

_SNAPSHOT = ".step-"  # begins, hidden from the outbox, what is on its way
RecordMaker = Callable[[int, float, list[dict[str, Any]]], PretrainingRecord]


class RunPublication:
    """What a run publishes. Every process of the run has one; the main one talks to the Hub.

    Args:
        args: of the run: `hub_model_id`, `hub_strategy`, `hub_private_repo`, `hub_always_push`.
        card_args: what cards say that no record knows.
        tower_args: what is published.
        tokenizer: of the towers.
        model: configuration of the pair.
        make_record: the record of the run so far, from steps, seconds in training steps, and the log.
        publisher: to the Hub; None makes one.

    Raises:
        ValueError: for flags that cannot be used.
    """

    def __init__(
        self,
        args: RTDTrainingArguments,
        card_args: CardArguments,
        tower_args: TowerArguments,
        tokenizer: PreTrainedTokenizerBase,
        model: Mapping[str, Any],
        make_record: RecordMaker,
        publisher: Publisher | None = None,
    ) -> None:
        assert args.hub_model_id is not None, "arguments refuse it"
        self.args, self.tokenizer, self.make_record = args, tokenizer, make_record
        self.parts, self.force = tower_args.parts, card_args.force
        self.prefix, self.details = args.hub_model_id, card_args.details()
        self.repositories = repository_ids(self.prefix, model, self.parts)
        self.private = args.hub_private_repo is not False
        self.publisher = Publisher() if publisher is None else publisher
        self.outbox = Outbox(str(args.output_dir))
        self.is_main = args.process_index == 0
        self._background: BackgroundDelivery | None = None
        self._delivered = threading.Event()  # the towers of the last checkpoint
        self._delivered.set()

    def check(self) -> None:
        """Looks, before anything is trained, whether the run may publish, and clears away what a process that ended
        before had on its way. For the main process.

        Raises:
            ValueError: if it may not; where the Hub cannot be asked now, that is only a warning.
        """
        for snapshot in (Path(str(self.args.output_dir)) / DIRECTORY).glob(f"{_SNAPSHOT}*"):
            shutil.rmtree(snapshot)
        run = identify_run(RECORD_FILE, asdict(self.make_record(0, 0.0, [])))
        for repo_id in self.repositories.values():
            try:
                self.publisher.check(repo_id, self.private, self.force, run)
            except HubError as error:
                if not error.retryable:
                    raise ValueError(str(error)) from None
                logger.warning(f"{error} The run begins all the same.")
                return

    def after_save(
        self,
        pair: ElectraForRTDPretraining,
        prepared: nn.Module,
        accelerator: Accelerator,
        step: int,
        train_seconds: float,
        log: list[dict[str, Any]],
    ) -> None:
        """Publishes the towers as they are at a checkpoint. To be called by every process.

        Args:
            pair, prepared, accelerator: as for `gather_pair`.
            step: optimiser steps until now.
            train_seconds: time in training steps until now.
            log: a dict a line.
        """
        if self.args.hub_strategy != HubStrategy.EVERY_SAVE or step >= self.args.max_steps:  # the end comes next
            return
        whole = gather_pair(pair, prepared, accelerator)
        if not self.is_main or not (self._delivered.is_set() or self.args.hub_always_push):
            return
        snapshot = Path(str(self.args.output_dir)) / DIRECTORY / f"{_SNAPSHOT}{step}"
        try:
            record = self.make_record(step, train_seconds, list(log))
            shutil.rmtree(snapshot, ignore_errors=True)
            snapshot.mkdir(parents=True)
            whole.save_towers(snapshot, self.tokenizer)
            if PAIR in self.parts:
                whole.save_pretrained(snapshot)
                save_tokenizer(self.tokenizer, snapshot)
            record.save(snapshot)
        except Exception as error:  # whatever it is, a full disk above all: the run is worth more
            logger.error(f"The towers at step {step:,} are not published: {error}", exc_info=_is_unforeseen(error))
            shutil.rmtree(snapshot, ignore_errors=True)
            return
        self._delivered = self._deliveries.submit(lambda: self._plan(snapshot), keep=False, temporary=snapshot)

    def after_fraction(self, fraction: float, step: int, train_seconds: float, log: list[dict[str, Any]]) -> None:
        """Publishes the towers that were exported at a fraction of the run, as branches. To be called by every
        process.

        Args:
            fraction: that is complete.
            step, train_seconds, log: as for `after_save`.
        """
        if self.args.hub_strategy != HubStrategy.EVERY_SAVE or not self.is_main:
            return
        directory = fraction_directory(str(self.args.output_dir), fraction)
        try:
            record = self.make_record(step, train_seconds, list(log))
        except Exception as error:  # as above
            logger.error(
                f"The towers at fraction {fraction:g} are not published: {error}", exc_info=_is_unforeseen(error)
            )
            return
        self._deliveries.submit(
            lambda: towers_at_fraction(directory, record, self.prefix, self.details, self.parts), keep=False
        )

    def finish(self) -> list[Delivery]:
        """Publishes what the run has left, when it is over. For the main process.

        Returns:
            What became of each repository.
        """
        if self._background is not None:
            if self._background.is_busy:
                logger.info("Waiting for what is on its way to the Hub ...")
            self._background.wait()
        try:
            planned = self._plan(Path(str(self.args.output_dir)))
            return deliver(planned, self.publisher, self.outbox, self.private, self.force)
        except Exception as error:  # whatever it is: the run is over, and all of it is written
            logger.error(f"The run is whole, but was not published: {error}", exc_info=_is_unforeseen(error))
            return []

    @property
    def _deliveries(self) -> BackgroundDelivery:
        if self._background is None:
            self._background = BackgroundDelivery(self.publisher, self.outbox, self.private, self.force)
        return self._background

    def _plan(self, directory: Path) -> list[Planned]:
        return pretraining_repositories(directory, self.prefix, self.details, self.parts)


def _is_unforeseen(error: Exception) -> bool:
    """Whether an error says too little to people, so that they need to see where it came from."""
    return not isinstance(error, (OSError, ValueError))
