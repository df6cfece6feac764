"""A fine-tuning that publishes: each task's best model goes to a repository of its own, `ORG/NAME-mrpc`."""

from __future__ import annotations

import logging
from pathlib import Path

from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.publishing.arguments import CardArguments, FineTunedArguments
from hf_electra_rtd.publishing.delivery import BackgroundDelivery, Delivery
from hf_electra_rtd.publishing.hub import Publisher
from hf_electra_rtd.publishing.hub_errors import HubError
from hf_electra_rtd.publishing.outbox import Outbox
from hf_electra_rtd.publishing.runs import Planned, fine_tuned_repositories


logger = logging.getLogger(__name__)


class ModelPublication:
    """What a fine-tuning publishes. For the main process.

    Args:
        prefix: `owner/name`; the task's name comes behind.
        directory: `output_dir`.
        card_args: what cards say that no record knows.
        fine_tuned_args: where the model comes from.
        private: whether new repositories are.
        publisher: to the Hub; None makes one.
    """

    def __init__(
        self,
        prefix: str,
        directory: Path,
        card_args: CardArguments,
        fine_tuned_args: FineTunedArguments,
        private: bool,
        publisher: Publisher | None = None,
    ) -> None:
        self.prefix, self.directory, self.card_args = prefix, directory, card_args
        self.base_model, self.private = fine_tuned_args.base_model, private
        self.publisher = Publisher() if publisher is None else publisher
        self._background: BackgroundDelivery | None = None

    def check(self, tasks: list[Task]) -> None:
        """Looks, before anything is trained, whether the models may be published.

        Raises:
            ValueError: if they may not; where the Hub cannot be asked now, that is only a warning.
        """
        for task in tasks:
            self.card_args.details(_languages(task))
            try:
                self.publisher.check(f"{self.prefix}-{task.name}", self.private, self.card_args.force)
            except HubError as error:
                if not error.retryable:
                    raise ValueError(str(error)) from None
                logger.warning(f"{error} The fine-tuning begins all the same.")
                return

    def publish(self, task: Task) -> None:
        """Publishes the model of a task that is done, in the background: the other tasks go on, whatever happens."""
        if self._background is None:
            outbox = Outbox(self.directory)
            self._background = BackgroundDelivery(self.publisher, outbox, self.private, self.card_args.force)
        self._background.submit(lambda: self._plan(task), keep=True)

    def finish(self) -> list[Delivery]:
        """Waits for what is on its way.

        Returns:
            What became of each repository.
        """
        if self._background is None:
            return []
        if self._background.is_busy:
            logger.info("Waiting for what is on its way to the Hub ...")
        self._background.wait()
        return self._background.deliveries

    def _plan(self, task: Task) -> list[Planned]:
        details = self.card_args.details(_languages(task))
        return fine_tuned_repositories(
            self.directory / task.name, self.prefix, details, self.base_model, self.card_args.eval_results
        )


def _languages(task: Task) -> tuple[str, ...]:
    return (task.language,) if task.language else ()
