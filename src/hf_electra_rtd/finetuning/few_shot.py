"""Few labels: words for classes, in place of a new head, and draws of few examples. See `kinds.label_words`."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

from hf_electra_rtd.files import known_names
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.kinds.label_words import PLACES
from hf_electra_rtd.tasks import Task


# Of a run with `--few_shot`, unless flags say else: few examples make few steps in the epochs of a whole task.
STEPS = 100
_SUCH_AS = {"label_words": "negative=terrible positive=great", "template": "'{text} It was {label}.'"}


def with_label_words(task: Task, words: Sequence[str] | None, template: str | None, kept: Mapping[str, Any]) -> Task:
    """The task with words for its classes (`class=word`) and a template, or with those it has, or with those of a
    fine-tuned model (`kept`, from its configuration). Other ones than kept, words of other classes than the task's,
    not of all or twice of one, and a template in which they do not stand are a ValueError."""
    given = dict(word.partition("=")[::2] for word in words) if words else task.label_words
    if words and len(given) < len(words):
        raise ValueError("--label_words gives one class two words. Give each class one.")
    task = dataclasses.replace(task, label_words=given, template=template or task.template)
    for name in ("label_words", "template") if kept.get("label_words") else ():
        if (now := getattr(task, name)) and now != kept[name]:
            raise ValueError(f"--{name} is {now!r}, but the model was fine-tuned with {kept[name]!r}. Leave it out.")
        task = dataclasses.replace(task, **{name: kept[name]})
    given = task.label_words
    if bool(given) != bool(task.template):
        which, other = ("template", "label_words") if given else ("label_words", "template")
        raise ValueError(f"--{other} needs --{which}, such as {_SUCH_AS[which]}.")
    if not given:
        return task
    if task.kind != "classification":
        raise ValueError(f"--label_words is for classification, not {task.kind}.")
    if unknown := [name for name in given if name not in task.labels]:
        raise ValueError(
            f"--label_words: there is no class {unknown[0]!r}. {known_names(unknown[0], task.labels, 'classes')}"
        )
    if missing := [name for name in task.labels if not given.get(name, "").strip()]:
        raise ValueError(f"--label_words has no word for the class {missing[0]!r}. Add {missing[0]}=WORD.")
    wanted = ["label", "text", *(["text_pair"] if len(task.columns) == 2 else [])]
    if sorted(PLACES.findall(task.template)) != wanted:
        places = ", ".join(f"{{{name}}}" for name in wanted)
        raise ValueError(f"--template {task.template!r} must have each of {places} once, and no other braces.")
    return task


def check(task: Task, args: Any) -> None:
    """Raises ValueError for flags (`TaskArguments`) that few examples or label words have no use for."""
    if task.label_words and args.class_weights != "none":
        raise ValueError("--class_weights is not for --label_words, whose loss is that of pre-training. Leave it out.")
    if args.few_shot is None:
        return
    if args.class_weights != "none":
        raise ValueError("--class_weights is not for --few_shot, which draws as many of each class. Leave it out.")
    if task.kind != "classification":
        raise ValueError(f"--few_shot is for classification, not {task.kind}.")
    if args.evaluate_only:
        raise ValueError("--few_shot is for training. Leave it out with --evaluate_only.")
    if not args.few_shot and not task.label_words:
        raise ValueError("--few_shot 0 leaves a new head untrained. Give --label_words, or more examples.")
    if not args.few_shot and (args.seeds > 1 or args.max_train_samples):
        flag = "seeds" if args.seeds > 1 else "max_train_samples"
        raise ValueError(f"--{flag} changes nothing with --few_shot 0, which trains on no example. Leave it out.")
    if args.select == "best":
        raise ValueError("--few_shot leaves no examples to choose a step by: the dev split is there for scores only.")


def draw(split: Split, labels: Sequence[str], number: int, seed: int) -> Split:
    """A number of examples of each class with text, drawn by a seed from those of a split, which are in any order. A
    class with fewer is a ValueError."""
    rows: dict[str, list[int]] = {label: [] for label in labels}
    columns = (split.examples[name] for name in ("texts", "label"))
    for place, (texts, label) in enumerate(zip(*columns, strict=True)):
        if label is not None and all(text.strip() for text in texts):
            rows[label].append(place)
    if scarce := [label for label, of_class in rows.items() if len(of_class) < number]:
        what = f"the class {scarce[0]!r} has only {len(rows[scarce[0]])} training examples"
        raise ValueError(f"--few_shot {number}: {what}. Lower the number.")
    random_ = random.Random(seed)
    chosen = [place for of_class in rows.values() for place in random_.sample(of_class, number)]
    return dataclasses.replace(split, examples=split.examples.select(sorted(chosen)), features=None)
