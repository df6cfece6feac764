"""What was published loads by its id, in another process that knows nothing but the Hub, and answers the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from hf_electra_rtd import ElectraForRTDPretraining


import publish  # isort: skip  # in examples/

PREFIX = "lab/tiny"
TEXTS = ["the old river saw a young horse", "a letter"]
# Loads each model by its id, keeps its logits, and then runs the Python of every card as it stands.
ELSEWHERE = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
import torch
from peft import AutoPeftModelForSequenceClassification
from safetensors.torch import save_file
from transformers import (
    AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSequenceClassification, AutoTokenizer
)

asked = json.loads(pathlib.Path("asked.json").read_text())
logits = {}
LOADERS = {
    "pre-training": AutoModelForPreTraining.from_pretrained,
    "masked": AutoModelForMaskedLM.from_pretrained,
    "classification": AutoModelForSequenceClassification.from_pretrained,
    "adapters": AutoPeftModelForSequenceClassification.from_pretrained,
}
for name, (kind, repo_id, options) in asked["models"].items():
    revision = {key: value for key, value in options.items() if key == "revision"}
    inputs = AutoTokenizer.from_pretrained(repo_id, **revision)(asked["texts"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits[name] = LOADERS[kind](repo_id, **options).eval()(**inputs).logits
assert not any(module.startswith("hf_electra_rtd") for module in sys.modules), "plain transformers is enough"

from hf_electra_rtd import ElectraForRTDPretraining

pair = ElectraForRTDPretraining.from_pretrained(asked["pair"]).eval()
tokenizer = AutoTokenizer.from_pretrained(asked["pair"])
inputs = tokenizer(asked["texts"], padding=True, return_tensors="pt")
with torch.no_grad():
    logits["pair's discriminator"] = pair.discriminator(**inputs).logits
    logits["pair's generator"] = pair.generator(**inputs).logits
save_file({name: tensor.contiguous() for name, tensor in logits.items()}, "logits.safetensors")
for name, code in asked["code"].items():
    print("card", name, flush=True)
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
"""


def python_of(card):
    return re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)


@pytest.fixture
def elsewhere(hub, tmp_path):
    """Runs `ELSEWHERE` in an empty directory, where what was published is only on the Hub; returns logits by name and
    what it said."""
    directory = tmp_path / "elsewhere"
    directory.mkdir()

    def run(**asked):
        (directory / "asked.json").write_text(json.dumps(asked))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
        environment = {**kept, "OMP_NUM_THREADS": "1", **hub.environment(tmp_path / "home")}
        ran = subprocess.run(
            [sys.executable, "-c", ELSEWHERE],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return load_file(directory / "logits.safetensors"), ran.stdout

    return run


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_what_was_published_loads_by_id_answers_the_same_and_its_cards_code_runs(runs, hub, elsewhere):
    details = ["--license", "mit", "--languages", "en"]
    base, parts = f"{PREFIX}-discriminator", ["--parts", "discriminator", "generator", "pair"]
    for run, prefix, more in (
        ("tiny", PREFIX, [*parts, "--evaluations", str(runs / "tuned")]),
        ("tuned", PREFIX, ["--base_model", base]),
        ("adapted", f"{PREFIX}-lora", ["--base_model", base]),
    ):
        assert publish.main(["--run", str(runs / run), "--repo_prefix", prefix, *details, *more]) == 0
    code = {
        f"{repo_id} at {branch}, block {number}": block
        for (_, repo_id), repository in hub.repositories.items()
        for branch in repository.branches
        for number, block in enumerate(python_of(hub.files(repo_id, branch)["README.md"].decode()))
    }
    # Discriminators show two blocks, the others one.
    assert len(code) == 3 * 2 + 3 * 1 + 3

    asked = {
        "discriminator": ("pre-training", base, {}),
        "generator": ("masked", f"{PREFIX}-generator", {}),
        "discriminator on the way": ("pre-training", base, {"revision": "step-2"}),
        "generator at the end of its branch": ("masked", f"{PREFIX}-generator", {"revision": "step-4"}),
        "fine-tuned": ("classification", f"{PREFIX}-reviews", {}),
        "adapters": ("adapters", f"{PREFIX}-lora-reviews", {"num_labels": 2}),
    }
    logits, said = elsewhere(models=asked, pair=f"{PREFIX}-pair", texts=TEXTS, code=code)
    assert said.count("card ") == len(code)

    tiny = runs / "tiny"
    (tuned,), (adapted,) = ((runs / name).glob("reviews/*/model") for name in ("tuned", "adapted"))
    pair = ElectraForRTDPretraining.from_pretrained(tiny)
    head = AutoModelForSequenceClassification.from_pretrained(tiny / "discriminator", num_labels=2)
    here = {
        "discriminator": AutoModelForPreTraining.from_pretrained(tiny / "discriminator"),
        "generator": AutoModelForMaskedLM.from_pretrained(tiny / "generator"),
        "discriminator on the way": AutoModelForPreTraining.from_pretrained(tiny / "fractions/50/discriminator"),
        "generator at the end of its branch": AutoModelForMaskedLM.from_pretrained(tiny / "generator"),
        "fine-tuned": AutoModelForSequenceClassification.from_pretrained(tuned),
        "adapters": PeftModel.from_pretrained(head, adapted),
        "pair's discriminator": pair.discriminator,
        "pair's generator": pair.generator,
    }
    inputs = AutoTokenizer.from_pretrained(tiny / "discriminator")(TEXTS, padding=True, return_tensors="pt")
    assert logits.keys() == here.keys()
    with torch.no_grad():
        for name, model in here.items():
            assert torch.equal(logits[name], model.eval()(**inputs).logits), name
    assert not torch.equal(logits["discriminator"], logits["discriminator on the way"])
