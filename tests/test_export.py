"""Exports to ONNX graphs, which are accepted only if they give the same results as torch."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForTokenClassification, ElectraForPreTraining

from hf_electra_rtd import Corrector, ElectraForRTDPretraining
from hf_electra_rtd.base.records import ExportRecord
from hf_electra_rtd.data.tokenization import save_tokenizer
from hf_electra_rtd.encoders import detectors
from hf_electra_rtd.encoders.families import inputs_of
from hf_electra_rtd.finetuning.heads import add_adapters, load_with_head, save_adapters
from hf_electra_rtd.finetuning.kinds import KINDS
from hf_electra_rtd.finetuning.predict import Classifier
from hf_electra_rtd.inference import export
from hf_electra_rtd.inference.detection import load_for_detection
from hf_electra_rtd.pair.onnx_model import load_onnx
from hf_electra_rtd.pair.places import GRAPHS
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.publish import exported_repositories
from tests.conftest import make_text, tiny_config
from tests.families_for_tests import tiny_family_config


BROWSER = Path(__file__).parents[1] / "examples" / "browser"
CHROMIUM = shutil.which("chromium")


def run(*flags: object) -> None:
    """Runs the command, with short measurements of speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hf-electra-rtd export"])
        patch.setattr(export, "_SPEED_SECONDS", 0.0)
        assert export.main(list(map(str, flags))) == 0


@pytest.fixture(scope="module")
def towers(tokenizer, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    ElectraForRTDPretraining(tiny_config()).save_towers(directory, tokenizer)
    (directory / "texts.txt").write_text(make_text(3), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def detector(towers, tmp_path_factory) -> Path:
    """The directory of an exported detector."""
    directory = tmp_path_factory.mktemp("exports") / "detector"
    run("--model", towers / "discriminator", "--output_dir", directory, "--file", towers / "texts.txt")
    return directory


@pytest.fixture
def copy(detector, tmp_path) -> Path:
    return Path(shutil.copytree(detector, tmp_path / "copy"))


def random_batch(shape: tuple[int, int], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 40, shape, generator=generator)
    mask = torch.ones_like(ids)
    mask[1:, shape[1] // 2 :] = 0  # all but the first are padded
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": torch.arange(shape[1]).gt(3) * mask}


@pytest.mark.parametrize("shape", [(1, 2), (1, 64), (5, 9)])
def test_the_two_labels_of_the_graph_are_zero_and_torchs_logit(detector, towers, shape):
    batch = random_batch(shape)
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        wanted = ElectraForPreTraining.from_pretrained(towers / "discriminator").eval()(**batch).logits
    logits = load_onnx(detector)(**batch).logits
    assert torch.equal(logits[..., 0], torch.zeros(shape))
    torch.testing.assert_close(logits[..., 1][real], wanted[real], rtol=0, atol=1e-5)
    spread = wanted[real].std() if real.sum() > 2 else 1.0
    assert (load_onnx(detector, runtime="onnx-int8")(**batch).logits[..., 1] - wanted)[
        real
    ].abs().mean() < 0.1 * spread


def test_an_export_has_the_layout_of_transformers_js_and_tells_how_it_was_accepted(detector):
    record = ExportRecord.load(detector)
    assert record.command.startswith("hf-electra-rtd export --model ")
    config = json.loads((detector / "config.json").read_text())
    assert config["architectures"] == ["ElectraForTokenClassification"]
    assert config["id2label"] == {"0": "original", "1": "replaced"}
    assert {"tokenizer.json", "tokenizer_config.json", "README.md"} <= {path.name for path in detector.iterdir()}
    card = (detector / "README.md").read_text(encoding="utf-8")
    assert 'directory = "."' in card  # this export is not on the Hub
    assert "snapshot_download" not in card
    assert len(record.shapes) >= 5
    assert [1, 64] in record.shapes
    assert 0 <= record.largest_difference <= record.tolerance == 1e-4
    assert record.dev["equal"]["onnx"] == record.dev["predictions"] > 100
    assert set(record.speed["sentences_per_second"]) == {"torch", "onnx", "onnx-int8"}
    inputs = onnx.load(detector / GRAPHS["onnx"]).graph.input
    assert [each.name for each in inputs] == record.inputs == ["input_ids", "attention_mask", "token_type_ids"]
    assert {each.type.tensor_type.elem_type for each in inputs} == {onnx.TensorProto.INT64}
    assert record.int8_loss is not None


@pytest.mark.parametrize("compared", [True, False])
def test_a_graph_that_is_not_accepted_leaves_nothing(detector, towers, tmp_path, monkeypatch, compared):
    """It is rejected if its outputs differ from torch's or, should these pass, if its predictions do."""

    def write_another(graph, example, limit, path, source):
        model = onnx.load(detector / GRAPHS["onnx"])
        weights = next(each for each in model.graph.initializer if len(each.dims) == 2)
        weights.raw_data = (-np.frombuffer(weights.raw_data, np.float32)).tobytes()
        onnx.save(model, path)

    monkeypatch.setattr(export, "_write_graph", write_another)
    if not compared:
        monkeypatch.setattr(export, "_compare", lambda *args: (0.0, 1e-4))
    flags = ("--model", towers / "discriminator", "--output_dir", tmp_path / "out", "--file", towers / "texts.txt")
    with pytest.raises(ValueError, match="outputs" if compared else "predictions"):
        run(*flags)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_record_is_no_export_and_one_with_a_file_of_others_is_not_replaced(copy, towers):
    (copy / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="notes"):
        run("--model", towers / "discriminator", "--output_dir", copy)
    (copy / ExportRecord.FILE).unlink()
    with pytest.raises(ValueError, match=ExportRecord.FILE):
        load_onnx(copy)


def test_the_graph_of_another_network_is_refused_as_the_network_is(detector):
    with pytest.raises(ValueError, match=f"{detector}.*generator"):
        load_for_detection(str(detector), str(detector), runtime="onnx")


def test_an_export_is_published_whole(detector):
    (repository,) = exported_repositories(detector, "org/small", CardArguments(license="mit"))
    assert repository.repo_id == "org/small-detector-onnx"
    assert {*GRAPHS.values(), "config.json", "tokenizer.json", ExportRecord.FILE} <= repository.files.keys()
    assert b"license: mit" in repository.files["README.md"]


# ---- Whole runs, and every head ----


@pytest.mark.slow
def test_weights_beside_a_graph_that_is_too_large_for_one_file(towers, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_LARGEST_FILE", 1000)
    run("--model", towers, "--output_dir", tmp_path)
    batch = random_batch((2, 7))
    for name, auto_class in (("detector", ElectraForPreTraining), ("generator", AutoModelForMaskedLM)):
        tower = towers / ("discriminator" if name == "detector" else name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["transformers.js_config"] == {"use_external_data_format": {"model.onnx": True}}
        assert (tmp_path / name / "onnx/model.onnx_data").is_file()
        record = ExportRecord.load(tmp_path / name)
        whole = sum(path.stat().st_size for path in (tmp_path / name).glob("onnx/model.onnx*"))
        assert record.megabytes["onnx"] == round(whole / 1e6, 1) > 0.1
        logits = load_onnx(tmp_path / name)(**batch).logits
        with torch.no_grad():
            wanted = auto_class.from_pretrained(tower).eval()(**batch).logits
        logits = logits[..., 1] if name == "detector" else logits
        torch.testing.assert_close(logits[0], wanted[0], rtol=0, atol=1e-4)


def test_a_discriminator_that_predicts_tokens_keeps_its_name_beside_the_generator(tokenizer, tmp_path):
    ElectraForRTDPretraining(tiny_config(objective="replace_mlm")).save_towers(tmp_path, tokenizer)
    assert [source.name for source in export.open_sources(str(tmp_path))] == ["discriminator", "generator"]


@pytest.mark.slow
def test_a_detector_of_another_family_takes_the_inputs_that_it_has(tokenizer, tmp_path):
    config = tiny_family_config("roberta", pad_token_id=0)
    detectors.label(config)
    model = AutoModelForTokenClassification.from_config(config).eval()
    with torch.no_grad():
        model.classifier.weight *= 1e4  # rounding grows with the logits
    model.save_pretrained(tmp_path / "detector")
    save_tokenizer(tokenizer, tmp_path / "detector")
    run("--model", tmp_path / "detector", "--output_dir", tmp_path / "out")
    assert ExportRecord.load(tmp_path / "out").inputs == ["input_ids", "attention_mask"]
    batch = random_batch((3, 12))
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        wanted = detectors.detection_logits(model, **inputs_of(config, batch))
    graph = load_onnx(tmp_path / "out")
    found = detectors.detection_logits(graph, **inputs_of(graph.config, batch))  # as `detect` calls it
    torch.testing.assert_close(found[real], wanted[real], rtol=0, atol=2e-5 * wanted.abs().max().item())


LABELS = ("old", "young", "other")
TAGS = ("O", "B-X", "I-X")
TEXTS = ["the old river was young .", "he saw the mill", "she went to the garden and took the letter !"]
QUESTIONS = [{"question": "who saw it ?", "context": text} for text in TEXTS]
CHOICES = [{"context": text, "question": "", "choices": ["old", "the young river", "."]} for text in TEXTS]
HEADS = {
    "classification": (LABELS[:2], {}),
    "classification lora": (LABELS, {}),
    "multi_label": (LABELS, {}),
    "regression": ((), {"unit": (300.0, 50.0)}),
    "tagging": (TAGS, {}),
    "question_answering": ((), {}),
    "question_answering unanswerable": ((), {}),
    "multiple_choice": ((), {}),
    "correction": ((), {}),
}


def fine_tuned(case, source, tokenizer, directory):
    """Saves a model with a new head, as `finetune` writes it."""
    labels, options = HEADS[case]
    kind = case.split()[0]
    model = load_with_head(KINDS[kind].auto_class, source, labels=labels, **options).eval()
    model.config.fine_tuned_for = {
        "task": {"kind": kind, "language": "en", "unanswerable": case.endswith(" unanswerable")},
        "characters": False,
        "lengths": {"max_seq_length": 48, "doc_stride": 8, "max_query_length": 16},
    }
    if case.endswith("lora"):
        save_adapters(add_adapters(model, str(source), r=2, init_lora_weights=False), directory)
    else:
        model.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in HEADS if case != "classification"])
def test_every_head_predicts_by_its_graph_what_it_predicts_by_torch(case, towers, tokenizer, tmp_path, monkeypatch):
    kind = case.split()[0]
    tower = towers / ("generator" if kind == "correction" else "discriminator")
    fine_tuned(case, tower, tokenizer, tmp_path / "model")
    run("--model", tmp_path / "model", "--output_dir", tmp_path / "out")
    tagged = [{"text": text.split()} for text in TEXTS]
    given = {"question_answering": QUESTIONS, "multiple_choice": CHOICES, "tagging": tagged}.get(kind, TEXTS)
    wanted = Classifier(str(tmp_path / "model"), use_cpu=True).predict(given)
    answers = Classifier(str(tmp_path / "out"), use_cpu=True, runtime="onnx").predict(given)
    assert list(map(rounded, answers)) == list(map(rounded, wanted))
    monkeypatch.chdir(tmp_path / "out")
    exec(Path("README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], {})  # as the card says
    if kind == "correction":
        assert ExportRecord.load(tmp_path / "out").outputs == ["logits", "detection_logits"]
        correct_by_both(tmp_path)


def correct_by_both(directory):
    """Checks that `correct` gives the same results with the graph and with torch."""
    pairs = directory / "pairs.tsv"
    options = {"threshold": 0.0, "margin": -100.0}
    pairs.write_text("text\tright\n" + "".join(f"{text}\t{text}\n" for text in TEXTS))
    run("--model", directory / "model", "--output_dir", directory / "tried", "--file", pairs)
    dev = ExportRecord.load(directory / "tried").dev
    assert dev["predictions"] == dev["equal"]["onnx"] == len(TEXTS)
    assert dev["scores"]["onnx"] == dev["scores"]["torch"]
    wanted = Corrector.from_pretrained(str(directory / "model"), **options)(TEXTS)
    assert any(result["errors"] for result in wanted)
    assert Corrector.from_pretrained(str(directory / "out"), runtime="onnx", **options)(TEXTS) == wanted
    quantized = Corrector.from_pretrained(str(directory / "out"), runtime="onnx-int8", **options)(TEXTS)
    assert [result["source"] for result in quantized] == TEXTS


def rounded(answer):
    """Rounds the numbers of an answer to three significant digits, since torch and the graph differ in the seventh."""
    return json.loads(json.dumps(answer), parse_float=lambda number: float(f"{float(number):.3g}"))


@pytest.mark.slow
def test_a_file_of_labeled_rows_gives_the_scores_of_torch_and_of_both_graphs(towers, tokenizer, tmp_path, capsys):
    fine_tuned("classification", towers / "discriminator", tokenizer, tmp_path / "model")
    lines = filter(None, make_text(20).replace('"', "").split("\n"))
    rows = [f'"{line[:100]}",{LABELS[row % 2]}' for row, line in enumerate(lines)]
    (tmp_path / "dev.csv").write_text("\n".join(["review,age", *rows]))
    columns = ("--text_column_name", "review", "--label_column_name", "age")
    run("--model", tmp_path / "model", "--output_dir", tmp_path / "out", "--file", tmp_path / "dev.csv", *columns)
    dev = ExportRecord.load(tmp_path / "out").dev
    assert dev["predictions"] == dev["equal"]["onnx"] == len(rows)
    assert dev["scores"]["onnx"] == dev["scores"]["torch"]
    assert dev["classes"]["onnx"] == dev["classes"]["torch"]
    assert dev["classes"]["torch"].keys() == {"old", "young"}
    assert "young: recall" in capsys.readouterr().out


@pytest.mark.parametrize("case", ["question_answering", "question_answering unanswerable"])
def test_questions_are_scored_by_the_rules_that_the_model_was_tuned_for(case, towers, tokenizer, tmp_path):
    fine_tuned(case, towers / "discriminator", tokenizer, tmp_path / "model")
    answers = [{"text": ["the"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    rows = [{**QUESTIONS[0], "id": str(number), "answers": each} for number, each in enumerate(answers)]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (source,) = export.open_sources(str(tmp_path / "model"))
    args = export.ExportArguments(str(tmp_path / "model"), str(tmp_path / "out"), file=str(tmp_path / "dev.jsonl"))
    assert export._labeled(source, source.classifier, args)[0].task.unanswerable == case.endswith(" unanswerable")


# ---- In a browser ----


@pytest.fixture
def site(detector, tmp_path):
    """The address of the page, which loads the exported detector."""
    shutil.copytree(BROWSER, tmp_path / "site", ignore=shutil.ignore_patterns("node_modules", "models"))
    if not (BROWSER / "node_modules").is_dir():
        subprocess.run(["npm", "ci"], cwd=BROWSER, check=True, capture_output=True, timeout=240)
    (tmp_path / "site" / "node_modules").symlink_to(BROWSER / "node_modules")
    shutil.copytree(detector, tmp_path / "site" / "models" / "detector")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Handler, directory=tmp_path / "site")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_page_judges_a_typed_sentence_as_onnxruntime_does(site, detector, tokenizer):
    from playwright.sync_api import sync_playwright

    sentence = "The old mill was young ."
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(error))
        page.on("requestfailed", lambda request: errors.append(request.url))
        page.goto(f"{site}/index.html")
        page.wait_for_selector("#judge:enabled", timeout=60_000)
        page.fill("#sentence", sentence)
        page.click("#judge")
        page.wait_for_function("document.querySelectorAll('#tokens span').length === 6", timeout=60_000)
        spans = page.query_selector_all("#tokens span")
        words = [span.inner_text().split("\n")[0] for span in spans]
        shares = [float(span.get_attribute("data-share")) for span in spans]
        page.goto(f"{site}/index.html?model=nothing")
        page.wait_for_function("document.querySelector('#status').textContent.includes('nothing cannot be loaded')")
        browser.close()
    assert errors == []
    logits = load_onnx(detector, runtime="onnx-int8")(**tokenizer(sentence, return_tensors="pt")).logits[0, 1:-1]
    assert words == tokenizer.tokenize(sentence)
    assert shares == pytest.approx(logits.softmax(-1)[:, 1].tolist(), abs=1e-4)
