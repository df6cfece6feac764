"""The Gradio page shows the numbers of the commands, tells what is wrong with a text, and asks no other machine."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_electra_rtd import Corrector, Detector, ElectraForRTDPretraining
from hf_electra_rtd.inference.detection import detect, fill_rows, load_for_detection
from tests.conftest import save_corrector, tiny_config


DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
CHROMIUM = shutil.which("chromium")
SENTENCE = "The old mill was young <b>and great</b> ."


@pytest.fixture(scope="module")
def run_directory(tokenizer, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    ElectraForRTDPretraining(tiny_config()).save_towers(directory, tokenizer)
    save_corrector(directory / "generator", tokenizer, directory / "corrector")
    return directory


@pytest.fixture
def address(run_directory) -> str:
    """The address of the page, which is served by a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    models = ["--model", str(run_directory), "--corrector", str(run_directory / "corrector")]
    command = [sys.executable, str(DEMO), *models, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(f"127.0.0.1:{port}" in line for line in process.stdout)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_shows_what_the_detector_says_of_a_typed_sentence(address, run_directory, tmp_path):
    from playwright.sync_api import expect, sync_playwright

    corrected = Corrector.from_pretrained(str(run_directory / "corrector"))(SENTENCE)["target"]
    assert corrected != SENTENCE
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked = []
        errors = []
        page.on(
            "request",
            lambda request: request.url.startswith((address, "data:", "blob:")) or asked.append(request.url),
        )
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(address)

        def submit(label, text):
            page.get_by_label(label).locator("visible=true").fill(text)
            page.get_by_role("button", name="Submit").locator("visible=true").click()

        def read(what):
            return page.locator(what).locator("visible=true")

        page.get_by_label("Words to mask").fill("mill young")
        page.get_by_label("Seed").fill("3")
        submit("Sentence", SENTENCE)
        expect(read(".heat span").first).to_be_visible(timeout=60_000)
        masked = read(".masked").inner_text()
        cells = read(".fills td").all_inner_texts()
        words, shares = words_and_shares(read(".heat span"))
        for text, told in (("", "it is empty"), ("心情", "none of its words"), ("mill " * 100, "64 positions")):
            submit("Sentence", text)
            expect(read("[role=alert]")).to_contain_text(told, timeout=60_000)
        page.get_by_role("tab", name="Judge", exact=True).click()
        submit("Text", SENTENCE)
        expect(read(".heat span").first).to_be_visible(timeout=60_000)
        judged = words_and_shares(read(".heat span"))
        submit("Text", " ")
        expect(read("[role=alert]")).to_contain_text("it is empty", timeout=60_000)
        page.get_by_role("tab", name="Correct").click()
        submit("Text", SENTENCE)
        expect(read(".target")).to_have_text(corrected, timeout=60_000)
        browser.close()
    assert errors == []
    assert {url for url in asked if not url.startswith((address, "data:", "blob:"))} == set()

    towers = load_for_detection(str(run_directory))
    random = torch.Generator().manual_seed(3)
    tokens, fills = detect(*towers, SENTENCE, words=["mill", "young"], random=random)
    assert words == [token.corrupted for token in tokens[1:-1]]
    assert shares == pytest.approx([token.probability for token in tokens[1:-1]], abs=1e-5)
    assert [" ".join(cell.split()) for cell in cells] == [
        " ".join(cell.split()) for row in fill_rows(fills, towers[2]) for cell in row
    ]
    assert masked.split()[:6] == ["the", "old", "[MASK]", "was", "[MASK]", "[UNK]"]
    wanted = Detector.from_pretrained(str(run_directory))(SENTENCE)["tokens"]
    assert judged[0] == [word for word, _, _ in wanted]
    assert judged[1] == pytest.approx([share for _, _, share in wanted], abs=1e-5)


def words_and_shares(spans) -> tuple[list[str], list[float]]:
    words = spans.locator("b").all_inner_texts()
    return words, [float(span.get_attribute("data-share")) for span in spans.all()]
