"""Python that cards show: each piece runs as it stands."""

from __future__ import annotations

import json

from hf_electra_rtd.records import EvaluationRecord


# A sentence by language: as it was, with one word replaced, and with a gap.
_SENTENCES = {
    "en": ("The chef cooked the meal.", "The chef ate the meal.", "The chef {} the meal."),
    "zh": ("巴黎是法国的首都。", "巴黎是法国的水果。", "巴黎是法国的首{}。"),
    "de": ("Der Koch kochte das Essen.", "Der Koch aß das Essen.", "Der Koch {} das Essen."),
    "fr": ("Le chef a cuisiné le repas.", "Le chef a mangé le repas.", "Le chef a {} le repas."),
    "es": ("El chef cocinó la comida.", "El chef comió la comida.", "El chef {} la comida."),
}
_STOCK = {
    "classification": "SequenceClassification",
    "regression": "SequenceClassification",
    "multiple_choice": "MultipleChoice",
    "question_answering": "QuestionAnswering",
    "tagging": "TokenClassification",
}
# Own heads, by class: where they are.
_OWN_HEADS = {
    "PaperElectraForSequenceClassification": "hf_electra_rtd.finetuning.heads",
    "ElectraForJointQuestionAnswering": "hf_electra_rtd.finetuning.answer_head",
}
# Tasks of one text; all others of the benchmarks have two.
_ONE_TEXT = {"cola", "sst2", "tnews", "iflytek", "chnsenticorp"}


def detection_example(repo_id: str, revision: str | None, language: str) -> str:
    """Which token of a sentence was replaced."""
    _, replaced, _ = _SENTENCES.get(language, _SENTENCES["en"])
    return f"""\
import torch
from transformers import AutoModelForPreTraining, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({_source(repo_id, revision)})
model = AutoModelForPreTraining.from_pretrained({_source(repo_id, revision)}).eval()

inputs = tokenizer("{replaced}", return_tensors="pt"){_note(language)}
with torch.no_grad():
    probabilities = model(**inputs).logits[0].sigmoid()  # that each token was replaced
tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
for token, probability in zip(tokens, probabilities):
    print(f"{{token:>12}} {{probability:.3f}}")"""


def head_example(repo_id: str, revision: str | None, language: str) -> str:
    """The encoder with a new head, and one loss."""
    first, second, _ = _SENTENCES.get(language, _SENTENCES["en"])
    arguments = _source(repo_id, revision).replace(", ", ",\n    ") + ","  # one a line
    return f"""\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({_source(repo_id, revision)})
model = AutoModelForSequenceClassification.from_pretrained(
    {arguments}
    num_labels=2,  # with a new head
)

texts = ["{first}", "{second}"]{_note(language)}
inputs = tokenizer(texts, padding=True, return_tensors="pt")
loss = model(**inputs, labels=torch.tensor([1, 0])).loss
loss.backward()  # from here on as with any model of transformers, with its Trainer for instance"""


def filling_example(repo_id: str, revision: str | None, language: str) -> str:
    """What a masked token may have been."""
    _, _, gap = _SENTENCES.get(language, _SENTENCES["en"])
    return f"""\
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({_source(repo_id, revision)})
model = AutoModelForMaskedLM.from_pretrained({_source(repo_id, revision)}).eval()

inputs = tokenizer("{gap}".format(tokenizer.mask_token), return_tensors="pt"){_note(language)}
with torch.no_grad():
    logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
probabilities, ids = logits[0].softmax(-1).topk(5)
for token, probability in zip(tokenizer.convert_ids_to_tokens(ids), probabilities):
    print(f"{{token:>12}} {{probability:.3f}}")"""


def pair_example(repo_id: str) -> str:
    """The pair, and its towers as models of their own."""
    return f"""\
from hf_electra_rtd import ElectraForRTDPretraining
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{repo_id}")
model = ElectraForRTDPretraining.from_pretrained("{repo_id}")

model.save_towers("towers", tokenizer)  # each a checkpoint that transformers loads without this package"""


def fine_tuned_example(
    record: EvaluationRecord, repo_id: str, base_model: str | None, adapter: bool, language: str
) -> str:
    """A fine-tuned model and an answer of it.

    Args:
        record: of the run.
        repo_id: of the model, or of the adapters.
        base_model: that adapters belong to.
        adapter: whether these are adapters.
        language: code, of the sentences.
    """
    architecture = record.model.get("architecture", "")
    name = f"AutoModelFor{_STOCK[record.kind]}"
    imports = [f"from transformers import {name}, AutoTokenizer"]
    if architecture in _OWN_HEADS:
        name = architecture
        imports = [f"from {_OWN_HEADS[architecture]} import {name}", "from transformers import AutoTokenizer"]
    loading = f'model = {name}.from_pretrained("{repo_id}").eval()'
    if adapter:
        labels = record.arguments.get("labels") or ()
        count = 1 if record.kind == "regression" else len(labels)
        given = f", num_labels={count}" if record.kind in ("classification", "regression", "tagging") else ""
        imports.insert(0, "from peft import PeftModel")
        loading = f'base = {name}.from_pretrained("{base_model}"{given})\n'
        loading += f'model = PeftModel.from_pretrained(base, "{repo_id}").eval()'
    lines = [
        "import torch",
        *imports,
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{repo_id}")',
        loading,
        "",
        *_answer(record, language),
    ]
    return "\n".join(lines)


def needs_this_package(record: EvaluationRecord) -> bool:
    """Whether a fine-tuned model has a head of this package."""
    return record.model.get("architecture", "") in _OWN_HEADS


def _answer(record: EvaluationRecord, language: str) -> list[str]:
    first, second, _ = _SENTENCES.get(language, _SENTENCES["en"])
    labels = json.dumps(list(record.arguments.get("labels") or ()), ensure_ascii=False)
    ask = ["with torch.no_grad():", "    output = model(**inputs)"]
    if record.kind in ("classification", "regression"):
        texts = f'"{first}"' if record.task in _ONE_TEXT or record.benchmark == "own" else f'"{first}", "{second}"'
        inputs = f'inputs = tokenizer({texts}, truncation=True, return_tensors="pt")'
        if record.kind == "regression":
            return [inputs, *ask, "print(output.logits[0, 0].item())"]
        return [inputs, *ask, f"labels = {labels}", "print(labels[output.logits[0].argmax()])"]
    if record.kind == "tagging":
        return [
            f'inputs = tokenizer("{first}", truncation=True, return_tensors="pt")',
            *ask,
            f"labels = {labels}",
            'for token, label in zip(inputs["input_ids"][0], output.logits[0].argmax(-1)):',
            "    print(tokenizer.decode([int(token)]), labels[int(label)])",
        ]
    if record.kind == "multiple_choice":
        return [
            f'choices = ["{first}", "{second}"]',
            f'inputs = tokenizer(["{first}"] * 2, choices, padding=True, return_tensors="pt")',
            "inputs = {name: values.unsqueeze(0) for name, values in inputs.items()}  # one question, two choices",
            *ask,
            "print(choices[output.logits[0].argmax()])",
        ]
    if record.model.get("architecture") == "ElectraForJointQuestionAnswering":
        spans = (
            "begin, end = int(output.start_indices[0, 0]), int(output.end_indices[0, 0, 0])  # the first of the beam"
        )
    else:
        spans = "begin, end = int(output.start_logits[0].argmax()), int(output.end_logits[0].argmax())"
    return [
        f'question, text = "{second}", "{first}"',
        'inputs = tokenizer(question, text, truncation="only_second", return_tensors="pt")',
        *ask,
        spans,
        'print(tokenizer.decode(inputs["input_ids"][0, begin : end + 1]))',
    ]


def _source(repo_id: str, revision: str | None) -> str:
    return f'"{repo_id}"' if revision is None else f'"{repo_id}", revision="{revision}"'


def _note(language: str) -> str:
    return "" if language in _SENTENCES else f"  # put a sentence in `{language}` here"
