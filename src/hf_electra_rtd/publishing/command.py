"""What `publish.py` does: plan, show, publish, send what was kept."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_electra_rtd.publishing.arguments import CardArguments, FineTunedArguments, PublishArguments, TowerArguments
from hf_electra_rtd.publishing.delivery import Delivery, deliver, print_deliveries
from hf_electra_rtd.publishing.hub import MAIN, Publisher
from hf_electra_rtd.publishing.hub_errors import HubError
from hf_electra_rtd.publishing.outbox import Outbox
from hf_electra_rtd.publishing.preview import write_preview
from hf_electra_rtd.publishing.repositories import describe
from hf_electra_rtd.publishing.runs import (
    Planned,
    fine_tuned_repositories,
    is_pretraining_run,
    pretraining_repositories,
    read_evaluations,
    sort_evaluations,
)
from hf_electra_rtd.publishing.same_run import run_of
from hf_electra_rtd.records import EVALUATION_FILE, RECORD_FILE


logger = logging.getLogger(__name__)

PREVIEWS = "publish_preview"  # in the run's directory


def plan(
    args: PublishArguments, card_args: CardArguments, tower_args: TowerArguments, fine_tuned_args: FineTunedArguments
) -> list[Planned]:
    """The repositories of a run, ready to be published. No network is needed.

    Raises:
        ValueError: for what is not there or cannot be published.
    """
    directory, prefix = str(args.run), str(args.repo_prefix)
    if not Path(directory).is_dir():
        raise ValueError(f"There is no directory {directory}.")
    if not is_pretraining_run(directory):
        if not any(Path(directory).rglob(EVALUATION_FILE)):
            raise ValueError(
                f"{directory} holds neither a pre-training that ended ({RECORD_FILE}) nor a fine-tuning "
                f"({EVALUATION_FILE}). A run that was interrupted goes on with --resume_from_checkpoint latest."
            )
        if args.evaluations or args.compared:
            raise ValueError(f"--evaluations and --compared are for a pre-training run: {directory} holds none.")
        languages = tuple(sorted({record.language for record in read_evaluations([directory])} - {""}))
        return fine_tuned_repositories(
            directory, prefix, card_args.details(languages), fine_tuned_args.base_model, card_args.eval_results
        )
    if fine_tuned_args.base_model is not None:
        raise ValueError(f"--base_model is for fine-tuned models: {directory} holds a pre-training run.")
    return pretraining_repositories(
        directory,
        prefix,
        card_args.details(),
        tower_args.parts,
        sort_evaluations(
            directory, read_evaluations(args.evaluations or ()), read_evaluations(args.compared or ()), prefix
        ),
        args.revisions,
        card_args.eval_results,
    )


def show(planned: Sequence[Planned], args: PublishArguments) -> None:
    """Lists every file that would be uploaded, and renders the cards as pages into the run's directory."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    previews = Path(str(args.run)) / PREVIEWS
    previews.mkdir(exist_ok=True)
    pages = []
    for repository, left_out, card in ((item.repository, item.left_out, item.card) for item in planned):
        branch = repository.revision or MAIN
        console.print(f"[bold]{repository.repo_id}[/bold], branch {branch}")
        table = Table("file", box=None, padding=(0, 2))
        table.add_column("bytes", justify="right")
        files = describe(repository)
        for path, size in files:
            table.add_row(path, f"{size:,}")
        table.add_row("[bold]together[/bold]", f"[bold]{sum(size for _, size in files):,}[/bold]")
        console.print(table)
        if left_out:
            console.print(f"  [dim]stays here:[/dim] {', '.join(left_out)}")
        console.print()
        name = repository.repo_id.replace("/", "--") + ("" if branch == MAIN else f"--{branch}")
        pages.append(write_preview(card, previews / f"{name}.html", pictures=str(args.run)))
    console.print("Nothing was uploaded. The cards, to look at in a browser:")
    for page in pages:
        console.print(f"  {page}")


def publish(planned: Sequence[Planned], args: PublishArguments, card_args: CardArguments) -> int:
    """Publishes repositories.

    Returns:
        The exit status: 0, or 1 where something did not get through and was kept.

    Raises:
        ValueError: if any of them may not be published; nothing is uploaded then.
    """
    publisher, private = Publisher(), args.private is not False
    # `main` stands for all branches of its repository: the run's record lies there.
    for repository in (item.repository for item in planned if item.repository.revision is None):
        try:
            publisher.check(repository.repo_id, private, card_args.force, run_of(repository))
        except HubError as error:
            if not error.retryable:
                raise ValueError(str(error)) from None
            break  # the Hub cannot be asked: the pushes say so, and what they would send is kept
    deliveries = deliver(planned, publisher, Outbox(str(args.run)), private, card_args.force)
    print_deliveries(deliveries, str(args.run))
    return _status(deliveries)


def resume(args: PublishArguments, card_args: CardArguments) -> int:
    """Sends what was kept, as it was to be sent; `--private` and `--force` given now count instead.

    Returns:
        The exit status: 0, or 1 where something did not get through again.

    Raises:
        ValueError: if nothing waits.
    """
    outbox = Outbox(str(args.run))
    if not outbox.pending():
        raise ValueError(f"Nothing waits in {args.run}: everything was sent, or nothing was published from there.")
    deliveries: list[Any] = [
        Delivery(
            sent.kept.repo_id,
            sent.kept.revision,
            sent.pushed,
            None if sent.error is None else str(sent.error),
            kept=sent.pushed is None,
        )
        for sent in outbox.send(Publisher(), args.private, card_args.force)
    ]
    print_deliveries(deliveries, str(args.run))
    return _status(deliveries)


def _status(deliveries: Sequence[Delivery]) -> int:
    return int(any(delivery.pushed is None for delivery in deliveries))
