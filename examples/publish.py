#!/usr/bin/env python
"""Publishes a run on the Hub: the command `hf-electra-rtd publish`.

    python examples/publish.py --run runs/small --hub_model_id ORG/electra-small --license apache-2.0 --languages en \\
        --evaluations runs/glue --dry_run

lists every file that would be uploaded, with its size, and writes the model cards into runs/small/publish_preview.
Without --dry_run it creates the private repositories ORG/electra-small-discriminator and ORG/electra-small-generator.
"""

from hf_electra_rtd.cli import run
from hf_electra_rtd.publishing.publish import main


if __name__ == "__main__":
    run(main)
