"""From planned repositories to the Hub, one after the other; what does not get through is kept."""

from __future__ import annotations

import logging
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hf_electra_rtd.publishing.hub import MAIN, Publisher, Pushed
from hf_electra_rtd.publishing.hub_errors import HubError
from hf_electra_rtd.publishing.outbox import Outbox
from hf_electra_rtd.publishing.repositories import Repository
from hf_electra_rtd.publishing.runs import Planned


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """What became of a repository.

    Attributes:
        repo_id: `owner/name`.
        revision: the branch; None is `main`.
        pushed: where it lies now; None where it did not get through.
        error: what happened and what to do; None where it got through.
        kept: whether it waits in the outbox.
    """

    repo_id: str
    revision: str | None
    pushed: Pushed | None
    error: str | None
    kept: bool = False


def deliver(
    planned: Iterable[Planned], publisher: Publisher, outbox: Outbox | None, private: bool, force: bool
) -> list[Delivery]:
    """Pushes repositories in order. One that fails does not keep the others.

    Args:
        planned: the repositories.
        publisher: to the Hub.
        outbox: where those that fail are kept; None for nowhere.
        private: whether new repositories are private.
        force: whether repositories that hold something else may be written to.
    """
    deliveries = []
    for repository in (plan.repository for plan in planned):
        pushed, message, kept = None, None, False
        try:
            pushed = publisher.push(repository, private, force)
            if outbox is not None:
                outbox.forget(repository)
        except HubError as error:
            message = str(error)
            logger.error(message)
        except Exception as error:  # whatever it is: the others are worth more
            message = f"{repository.repo_id}: an unforeseen error ({type(error).__name__}: {error})"
            logger.exception(message)
        if pushed is None and message is not None and outbox is not None:
            kept = _keep(outbox, repository, message, private, force)
        deliveries.append(Delivery(repository.repo_id, repository.revision, pushed, None if pushed else message, kept))
    return deliveries


def _keep(outbox: Outbox, repository: Repository, reason: str, private: bool, force: bool) -> bool:
    try:
        outbox.keep(repository, reason, private=private, force=force)
    except OSError as error:
        logger.error(f"{repository.repo_id} cannot be kept either ({error}): publish the run again with publish.py.")
        return False
    return True


def print_deliveries(deliveries: Iterable[Delivery], directory: str) -> None:
    """Says what became of each repository, and how to send what did not get through.

    Args:
        deliveries: of a run.
        directory: of the run.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("repository", "branch", "", title="On the Hub", title_justify="left", box=None, padding=(0, 2))
    kept = False
    for delivery in deliveries:
        kept = kept or delivery.kept
        if delivery.pushed is None:
            told = f"[red]not sent:[/red] {escape(str(delivery.error))}"
        else:
            what = "private" if delivery.pushed.private else "public"
            told = f"{delivery.pushed.url} ({what}{'' if delivery.pushed.changed else ', as it was'})"
        table.add_row(delivery.repo_id, delivery.revision or MAIN, told)
    if not table.rows:
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(table)
    if kept:
        console.print(
            f"\nWhat was not sent is kept. Send it later: python examples/publish.py --run {directory} --resume"
        )


@dataclass(frozen=True)
class _Task:
    plan: Callable[[], list[Planned]]
    keep: bool
    temporary: Path | None
    done: threading.Event


class BackgroundDelivery:
    """Delivers while a run goes on, in a thread of its own. Nothing that happens there stops the run.

    Args:
        publisher, outbox, private, force: as for `deliver`.

    Attributes:
        deliveries: what became of each repository, in order.
    """

    def __init__(self, publisher: Publisher, outbox: Outbox, private: bool, force: bool) -> None:
        self._publisher, self._outbox, self._private, self._force = publisher, outbox, private, force
        self._tasks: queue.Queue[_Task] = queue.Queue()
        self.deliveries: list[Delivery] = []
        # A daemon: a run that is killed does not wait for the Hub.
        threading.Thread(target=self._work, name="publishing", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether something is on its way."""
        return self._tasks.unfinished_tasks > 0

    def submit(self, plan: Callable[[], list[Planned]], keep: bool, temporary: Path | None = None) -> threading.Event:
        """Delivers when what was submitted before is done.

        Args:
            plan: makes the repositories; called in the thread.
            keep: whether what fails is kept in the outbox; not for what the next delivery replaces.
            temporary: a directory that is removed afterwards.

        Returns:
            What is set when it was delivered, or failed.
        """
        task = _Task(plan, keep, temporary, threading.Event())
        self._tasks.put(task)
        return task.done

    def wait(self) -> None:
        """Returns when all is done."""
        self._tasks.join()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                outbox = self._outbox if task.keep else None
                self.deliveries += deliver(task.plan(), self._publisher, outbox, self._private, self._force)
            except Exception as error:  # whatever it is: the run is worth more
                logger.error(f"Publishing failed, and the run goes on: {error}", exc_info=True)
            finally:
                if task.temporary is not None:
                    shutil.rmtree(task.temporary, ignore_errors=True)
                task.done.set()
                self._tasks.task_done()
