#!/usr/bin/env python
"""Publishes what a run left: each tower, or each fine-tuned model, in a repository of its own, with its model card.

    python examples/publish.py --run runs/small --repo_prefix ORG/electra-small --license apache-2.0 --languages en \\
        --evaluations runs/glue --dry_run

lists every file that would leave this machine, with its size, and renders the cards as pages to look at. Without
`--dry_run` it makes ORG/electra-small-discriminator and ORG/electra-small-generator, private at first: weights
and card in one commit each, towers at fractions of the run as branches, all read back and compared. Of a fine-tuning
(`--run runs/glue --base_model ORG/electra-small-discriminator`) each task's best model goes to a repository of its
own. The token is that of `hf auth login` or HF_TOKEN. What the Hub does not take is kept: `--run runs/small --resume`
sends it later.
"""

from hf_electra_rtd.publishing.arguments import CardArguments, FineTunedArguments, PublishArguments, TowerArguments
from hf_electra_rtd.publishing.command import plan, publish, resume, show
from hf_electra_rtd.training.cli import parse_arguments, run_as_script


def main(argv: list[str]) -> int:
    groups = (PublishArguments, CardArguments, TowerArguments, FineTunedArguments)
    args, card_args, tower_args, fine_tuned_args = parse_arguments(groups, argv, description=__doc__)
    if args.resume:
        return resume(args, card_args)
    planned = plan(args, card_args, tower_args, fine_tuned_args)
    if args.dry_run:
        show(planned, args)
        return 0
    return publish(planned, args, card_args)


if __name__ == "__main__":
    run_as_script(main)
