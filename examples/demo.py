#!/usr/bin/env python
"""A page that shows what a generator proposes and what a discriminator suspects, and how a model that was fine-tuned
for correction corrects texts.

    python examples/demo.py --model runs/pretrain --corrector runs/corrector

and open the address that it prints. It needs the extra `demo` (gradio) and no network: nothing is fetched from or sent
to other machines. The redder a word, the more it is suspected, compared with the average of the text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.base.cli import check_arguments, flag, parse_arguments, required, run
from hf_electra_rtd.inference.correction import Corrector
from hf_electra_rtd.inference.detection import FILL_COLUMNS, Detector, detect, fill_rows, load_for_detection
from hf_electra_rtd.pair.onnx_model import RUNTIMES, TORCH
from hf_electra_rtd.training.console import SCORES, ScoredToken, average_probability, describe_verdicts, show


_LONGEST = 20_000  # characters of a text
_HOTTEST, _FROM_AVERAGE = (213, 94, 0), 4.0  # the color of 5 times the average; black text is legible on all shades
_CSS = """
.heat span {display: inline-block; margin: 2px 1px; padding: 2px 6px; border-radius: 4px; color: #000}
.heat b, .heat small {color: #000}
.heat small {display: block; font-size: 12px}
table.fills {border-collapse: collapse}
table.fills th, table.fills td {padding: 2px 12px 2px 4px; text-align: left; white-space: pre-wrap}
"""


@dataclass
class DemoArguments:
    """Which model, and where the page is."""

    model: str = required("Run, checkpoint, joint model or discriminator: a directory or a Hub id.")
    generator: str | None = flag(None, "Directory or Hub id, in place of the model's own.")
    corrector: str | None = flag(None, "What `finetune --task_kind correction` wrote: also show a tab that corrects.")
    runtime: str = flag(TORCH, "onnx, onnx-int8: --model and --corrector are exports.", choices=RUNTIMES)
    port: int = flag(7860, "Of this machine.", "[1, 65535]")

    def __post_init__(self) -> None:
        check_arguments(self)


def heat_map(tokens: Sequence[ScoredToken], words: Sequence[str], remarks: Sequence[str]) -> str:
    """Returns HTML that shows each word above how much it is suspected."""
    average, spans = average_probability(tokens), []
    for token, word, remark in zip(tokens, words, remarks, strict=True):
        ratio = token.probability / average
        weight = min(max((ratio - 1) / _FROM_AVERAGE, 0.0), 1.0)
        colour = ", ".join(f"{255 + (full - 255) * weight:.0f}" for full in _HOTTEST)
        attributes = f'style="background: rgb({colour})" data-share="{token.probability:.6f}"'
        below = f"<small>x {ratio:.1f}<br>{escape(remark) or '&nbsp;'}</small>"
        spans.append(f"<span {attributes}><b>{escape(word)}</b>{below}</span>")
    return f'<div class="heat">{" ".join(spans)}</div><p>{escape(SCORES.format(average))}</p>'


def make_demo(arguments: DemoArguments) -> Any:
    """Returns the page, with models loaded. An error with a text is shown in place of the answer."""
    import gradio

    named = {name: getattr(arguments, name) for name in ("model", "generator", "runtime")}
    generator, discriminator, tokenizer = load_for_detection(**named)
    detector = Detector(discriminator, tokenizer)

    def mask(sentence: str, words: str, share: float, temperature: float, top_k: float, seed: float) -> str:
        if why := detector.pieces(sentence)[1]:
            _judged({"skipped": why})
        options: dict[str, Any] = {"mask_probability": share, "temperature": temperature, "top_k": int(top_k)}
        random, chosen = torch.Generator().manual_seed(int(seed or 0)), words.split() or None
        tokens, fills = detect(generator, discriminator, tokenizer, sentence, chosen, random=random, **options)
        originals, names = (show(tokens, tokenizer, stage)[1:-1] for stage in ("original", "corrupted"))
        tokens = tokens[1:-1]
        pairs = zip(tokens, originals, strict=True)
        masked = " ".join(str(tokenizer.mask_token) if token.masked else name for token, name in pairs)
        rows = "".join(_row("td", row) for row in fill_rows(fills, tokenizer))
        remarks = [token.verdict[0] for token in tokens]
        for place, (token, name) in enumerate(zip(tokens, originals, strict=True)):
            remarks[place] += f" (was {name})" if token.original != token.corrupted else ""
        return (
            f'<p class="masked">{escape(masked)}</p><table class="fills">{_row("th", FILL_COLUMNS)}{rows}</table>'
            f"<p><b>{escape(describe_verdicts(tokens))}.</b></p>"
            f"{heat_map(tokens, names, remarks)}"
        )

    def judge(text: str) -> str:
        tokens = [ScoredToken(word, word, False, share) for word, _, share in _judged(detector(text))["tokens"]]
        remarks = ["wrong?" if token.probability > detector.threshold else "" for token in tokens]
        return heat_map(tokens, [token.original for token in tokens], remarks)

    def correct(corrector: Corrector, text: str) -> str:
        result = _judged(corrector(text))
        changes = "".join(_row("td", (wrong, right, str(at))) for wrong, right, at in result["errors"])
        table = f'<table class="fills">{_row("th", ("wrong", "right", "character"))}{changes}</table>'
        return f'<p class="target">{escape(result["target"])}</p>{table if changes else "<p>Nothing is changed.</p>"}'

    text: dict[str, Any] = {"lines": 3, "max_length": _LONGEST, "label": "Text"}
    masks = [
        gradio.Textbox(**{**text, "label": "Sentence"}),
        gradio.Textbox(label="Words to mask", info="With spaces between them. Without: tokens at random."),
        gradio.Slider(0.05, 0.95, 0.15, step=0.05, label="Share masked at random"),
        gradio.Slider(0.0, 2.0, 1.0, step=0.1, label="Temperature of the samples"),
        gradio.Slider(1, 20, 5, step=1, label="Proposals shown"),
        gradio.Number(0, precision=0, minimum=0, maximum=2**63 - 1, label="Seed"),
    ]
    tabs: dict[str, tuple[Callable[..., str], list[Any]]] = {"Mask and judge": (mask, masks)}
    tabs["Judge"] = (judge, [gradio.Textbox(**text)])
    if arguments.corrector is not None:
        corrector = Corrector.from_pretrained(arguments.corrector, runtime=arguments.runtime)
        tabs["Correct"] = (partial(correct, corrector), [gradio.Textbox(**text)])
    interfaces = [
        gradio.Interface(_or_message(function), inputs, gradio.HTML(min_height=200), flagging_mode="never")
        for function, inputs in tabs.values()
    ]
    return gradio.TabbedInterface(interfaces, list(tabs), title="Replaced-token detection")


def _judged(result: dict[str, Any]) -> dict[str, Any]:
    if "skipped" in result:
        raise ValueError(f"The text cannot be judged: {result['skipped']}.")
    return result


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"


def _or_message(function: Callable[..., str]) -> Callable[..., str]:
    def answer(*inputs: Any) -> str:
        try:
            return function(*inputs)
        except ValueError as error:
            return f'<p role="alert">{escape(str(error))}</p>'

    return answer


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((DemoArguments,), argv, __doc__)
    disable_progress_bar()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # it is read when gradio is imported
    try:
        import gradio
    except ImportError:
        raise ValueError("gradio is not installed. Install the extra `demo`: pip install -e '.[demo]'.") from None
    demo = make_demo(arguments)
    # All themes except Base fetch fonts.
    options: dict[str, Any] = {"theme": gradio.themes.Base(), "css": _CSS, "footer_links": [], "ssr_mode": False}
    demo.launch(share=False, server_name="127.0.0.1", server_port=arguments.port, **options)


if __name__ == "__main__":
    run(main)
