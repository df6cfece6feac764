"""Flags of whatever publishes."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_electra_rtd.publishing.cards import Details
from hf_electra_rtd.publishing.runs import DISCRIMINATOR, GENERATOR, PARTS


@dataclass
class CardArguments:
    """What a card says that no record knows."""

    license: str | None = field(
        default=None, metadata={"help": "Of the weights, as the Hub calls it: apache-2.0, cc-by-sa-4.0, mit, other."}
    )
    license_name: str = field(default="", metadata={"help": "Its name, where the licence is `other`."})
    license_link: str = field(default="", metadata={"help": "Where it stands, where the licence is `other`."})
    languages: list[str] | None = field(default=None, metadata={"help": "Of the text: ISO 639-1 codes, such as en."})
    corpora: list[str] | None = field(
        default=None, metadata={"help": "Hub ids of the corpora, where they are there: wikimedia/wikipedia."}
    )
    authors: str = field(default="", metadata={"help": "For the citation."})
    eval_results: bool = field(
        default=False,
        metadata={
            "help": "Write .eval_results/*.yaml, too: the Hub reads them for datasets registered as benchmarks."
        },
    )
    force: bool = field(
        default=False,
        metadata={
            "help": "Publish into a repository that holds something else, or another run: replaces the model and card "
            "that lie there; other files stay."
        },
    )

    def details(self, languages: tuple[str, ...] = ()) -> Details:
        """What is said for the cards.

        Args:
            languages: that the records name, where no flag does.

        Raises:
            ValueError: if something is not said, or is nothing that the Hub knows.
        """
        if self.license is None:
            raise ValueError("Say under which licence the weights are published, such as --license apache-2.0.")
        if not self.languages and not languages:
            raise ValueError("Say which language the text is in, such as --languages en.")
        return Details(
            license=self.license,
            languages=tuple(self.languages or languages),
            datasets=tuple(self.corpora or ()),
            authors=self.authors,
            license_name=self.license_name,
            license_link=self.license_link,
        )


@dataclass
class TowerArguments:
    """What a pre-training run gives away."""

    parts: list[str] = field(
        default_factory=lambda: [DISCRIMINATOR, GENERATOR],
        metadata={"help": "What is published: discriminator, generator, pair."},
    )

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.parts) - set(PARTS)):
            raise ValueError(f"--parts {' '.join(unknown)}: choose of {', '.join(PARTS)}.")


@dataclass
class FineTunedArguments:
    """Where a fine-tuned model comes from."""

    base_model: str | None = field(
        default=None,
        metadata={"help": "Hub id of the model that was fine-tuned, if a directory."},
    )


@dataclass
class PublishArguments:
    """What is published where."""

    run: str | None = field(
        default=None, metadata={"help": "output_dir of a pre-training or of a fine-tuning, or its one task."}
    )
    repo_prefix: str | None = field(
        default=None, metadata={"help": "ORG/NAME: repositories are ORG/NAME-discriminator, ORG/NAME-mrpc and so on."}
    )
    evaluations: list[str] | None = field(
        default=None,
        metadata={"help": "output_dirs of fine-tunings of this run's discriminator or its fractions."},
    )
    compared: list[str] | None = field(
        default=None, metadata={"help": "output_dirs of fine-tunings of other models, to stand beside."}
    )
    revisions: bool = field(default=True, metadata={"help": "Towers at fractions of the run as branches step-N."})
    private: bool | None = field(
        default=None,
        metadata={
            "help": "Whether new repositories are private, for whoever published to make public; they are, by default "
            "(with --resume, by default as they were to be)."
        },
    )
    dry_run: bool = field(
        default=False, metadata={"help": "List every file with its size, render the cards to look at, upload nothing."}
    )
    resume: bool = field(default=False, metadata={"help": "Send what could not be sent before."})

    def __post_init__(self) -> None:
        if self.run is None:
            raise ValueError("Say what is to be published: --run OUTPUT_DIR of a pre-training or fine-tuning.")
        if self.repo_prefix is None and not self.resume:
            raise ValueError("Say where to: --repo_prefix ORG/NAME.")
