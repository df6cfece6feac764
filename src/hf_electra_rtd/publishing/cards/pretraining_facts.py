"""What cards say of a pre-training run: each a function of its record."""

from __future__ import annotations

from typing import Any

from hf_electra_rtd.publishing.cards.metadata import PACKAGE
from hf_electra_rtd.publishing.cards.rendering import (
    code,
    duration,
    facts,
    large,
    listed,
    percent,
    plain,
    scientific,
    table,
)
from hf_electra_rtd.publishing.privacy import without_local_paths
from hf_electra_rtd.records import EvaluationRecord, FractionRecord, PretrainingRecord


OBJECTIVES = {
    "rtd": "replaced token detection",
    "rtd_masked_only": "replaced token detection at the masked positions alone",
    "replace_mlm": "prediction of the original tokens at masked positions that a generator has filled",
    "all_tokens_mlm": "prediction of every original token of a text whose masked positions a generator has filled",
    "mlm": "masked language modelling",
}
_SHARING = {
    "none": "nothing",
    "word": "word embeddings",
    "embeddings": "word, position and token type embeddings and their LayerNorm",
    "all": "all of the encoder",
    "gdes": "embeddings, which the discriminator reads without gradient and adds its own differences to (DeBERTaV3)",
}
# fmt: off
_LANGUAGES = {
    "ar": "Arabic", "de": "German", "en": "English", "es": "Spanish", "fa": "Persian", "fr": "French", "hi": "Hindi",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese",
    "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "vi": "Vietnamese", "zh": "Chinese",
}
# fmt: on
# Paper (arXiv 2003.10555), Table 6; `small++` as google-research/electra, README: rows a step, steps, tokens a row,
# learning rate, warm-up, masked share.
_PAPER: dict[str, dict[str, float]] = {
    "small": {"rows": 128, "steps": 1_000_000, "length": 128, "rate": 5e-4, "warmup": 10_000, "masked": 0.15},
    "small++": {"rows": 128, "steps": 4_000_000, "length": 512, "rate": 5e-4, "warmup": 10_000, "masked": 0.15},
    "base": {"rows": 256, "steps": 766_000, "length": 512, "rate": 2e-4, "warmup": 10_000, "masked": 0.15},
    "large": {"rows": 2048, "steps": 400_000, "length": 512, "rate": 2e-4, "warmup": 10_000, "masked": 0.25},
}
# Held-out metrics by their keys in a record: name, and how they are shown.
_METRICS = {
    "generator_loss": ("generator: loss at masked tokens (nats)", "{:.3f}"),
    "generator_accuracy": ("generator: masked tokens that it would fill with the original", "%"),
    "sampled_accuracy": ("generator: masked tokens that it did fill with the original, drawing", "%"),
    "replaced_share": ("tokens that were replaced", "%"),
    "discriminator_loss": ("main tower: loss (nats a token)", "{:.3f}"),
    "discriminator_auc": ("discriminator: area under the ROC curve (0.5 is chance)", "{:.3f}"),
    "discriminator_precision": ("discriminator: precision on replaced tokens", "%"),
    "discriminator_recall": ("discriminator: recall on replaced tokens", "%"),
    "discriminator_accuracy": ("discriminator: accuracy over all tokens", "%"),
    "discriminator_masked_accuracy": ("main tower: accuracy at masked tokens", "%"),
    "discriminator_token_accuracy": ("main tower: accuracy over all tokens", "%"),
    "discriminator_replaced_accuracy": ("main tower: accuracy at replaced tokens", "%"),
    "copy_probability_original": ("main tower: probability of a copy at original tokens", "%"),
    "copy_probability_replaced": ("main tower: probability of a copy at replaced tokens", "%"),
}


def is_detector(record: PretrainingRecord) -> bool:
    """Whether the main tower tells replaced tokens from originals, instead of predicting tokens."""
    return str(record.model["objective"]).startswith("rtd")


def has_generator(record: PretrainingRecord) -> bool:
    """Whether a network filled the masks, which can be a model of its own."""
    return record.model.get("generator_config") is not None


def has_smaller_generator(record: PretrainingRecord) -> bool:
    """Whether the generator is a smaller network than the main tower, as the paper has it; false without one."""
    if not has_generator(record):
        return False
    generator, main = config_of(record, "generator"), config_of(record, "discriminator")
    pairs = [(generator[name], main[name]) for name in ("num_hidden_layers", "hidden_size", "intermediate_size")]
    return all(its <= other for its, other in pairs) and any(its < other for its, other in pairs)


def main_tower(record: PretrainingRecord) -> str:
    """What the main tower is called: it discriminates with some objectives only."""
    return "discriminator" if is_detector(record) else "main tower"


def planned_steps(record: PretrainingRecord) -> int:
    """Of the whole run; a record that is made while it goes on has fewer."""
    return max(record.steps, record.arguments["training"].get("max_steps") or 0)


def config_of(record: PretrainingRecord, tower: str) -> dict[str, Any]:
    """The configuration of a tower."""
    config: dict[str, Any] = record.model[f"{tower}_config"]
    return config


def named_size(record: PretrainingRecord) -> str | None:
    """The size that the architecture was made from; None where it was described otherwise."""
    described = record.arguments["model"]
    others = ("model_config", "generator", "discriminator", "two_stage_from")
    return None if any(described.get(name) for name in others) else described["size"]


def published_size(record: PretrainingRecord) -> str:
    """The size whose published figures stand beside the model's."""
    size = named_size(record) or ""
    return "small" if size == "small++" else size


def started_from(record: PretrainingRecord) -> list[str]:
    """What weights training went on from; empty where they were random."""
    described = record.arguments["model"]
    given = (described.get(name) for name in ("generator", "discriminator", "two_stage_from"))
    return list(dict.fromkeys(without_local_paths(name) for name in given if name))


def _new_tower(record: PretrainingRecord) -> str | None:
    """The tower that began from random weights where training went on from the other one alone."""
    described = record.arguments["model"]
    given = [name for name in ("generator", "discriminator") if described.get(name)]
    if not has_generator(record) or len(given) != 1:
        return None
    return main_tower(record) if given == ["generator"] else "generator"


def shape(config: dict[str, Any]) -> str:
    """A tower's architecture in a line."""
    return (
        f"{config['num_hidden_layers']} layers of {config['hidden_size']}, {config['num_attention_heads']} "
        f"attention head{'s' if config['num_attention_heads'] > 1 else ''}, feed-forward "
        f"{config['intermediate_size']}, embeddings of {config['embedding_size']}"
    )


def passes(record: PretrainingRecord) -> float:
    """How often the text was seen."""
    return float(record.tokens / record.data["train"]["num_tokens"])


def data_section(record: PretrainingRecord) -> dict[str, str]:
    """What is known of the text: tables `sources` and `facts`, and a sentence on `cleaning`."""
    train, arguments = record.data["train"], record.arguments["data"]
    rows = [
        [
            plain(without_local_paths(source["name"])),
            f"{source['num_documents']:,}" if "num_documents" in source else "",
            f"{source.get('weight', 1):g}",
            _fingerprint(source),
        ]
        for source in train["sources"]
    ]
    told = []
    if license_of_text := arguments.get("data_license"):
        told.append(("licence of the text", plain(license_of_text)))
    statistics = train["statistics"]
    told += [
        ("documents to train on", f"{statistics['documents']:,}"),
        ("tokens in them", f"{statistics['corpus_tokens']:,}"),
        ("unknown to the vocabulary", f"{statistics['unknown_tokens']:,} ({_share(statistics, 'unknown_tokens')})"),
        ("rows", f"{train['num_rows']:,} of at most {train['row_length']} tokens, `packing={train['packing']}`"),
        ("seen", f"{record.tokens:,} tokens, {passes(record):.3g} passes"),
    ]
    if (held_out := record.data.get("held_out")) is not None:
        told.append(
            ("held out", f"{held_out['num_tokens']:,} tokens in {held_out['num_rows']:,} rows, never trained on")
        )
    told += [("tokenizer (hash)", code(train["tokenizer_hash"])), ("prepared rows (SHA-256)", code(train["sha256"]))]
    return {
        "sources": table(("source", "documents", "weight", "SHA-256 or revision"), rows),
        "facts": facts(told),
        "cleaning": _cleaning(record),
    }


def _fingerprint(source: dict[str, Any]) -> str:
    for key in ("sha256", "revision", "fingerprint"):
        if source.get(key):
            return code(str(source[key]))
    return ""


def _share(statistics: dict[str, int], key: str) -> str:
    return f"{100 * statistics[key] / max(1, statistics['corpus_tokens']):.3g} %"


def _cleaning(record: PretrainingRecord) -> str:
    statistics = record.data["train"]["statistics"]
    rule = record.arguments["data"].get("drop_duplicates", "no")
    exact, near = statistics.get("exact_duplicates", 0), statistics.get("near_duplicates", 0)
    if rule == "no":
        sentence = "Repeated lines were not looked for."
    else:
        sentence = f"Repeated lines were dropped (`drop_duplicates={rule}`): {exact:,} exact"
        sentence += f" and {near:,} near ones." if rule == "near" else " ones."
    return f"{sentence} Preparation has no other filter: none for language, quality or toxicity."


def recipe_table(record: PretrainingRecord) -> str:
    """How it was trained."""
    model, args = record.model, record.arguments["training"]
    row_length = record.data["train"]["row_length"]
    masked = max(1, round(args["mask_probability"] * row_length))
    planned = planned_steps(record)
    rows = [("objective", f"{OBJECTIVES[model['objective']]} (`{model['objective']}`)")]
    if has_generator(record):
        rows += [
            ("shared by both towers", _SHARING[model["sharing"]]),
            ("loss", f"{model['generator_weight']:g} x generator + {model['discriminator_weight']:g} x main tower"),
            (
                "fills",
                "the likeliest token" if model["temperature"] == 0 else f"drawn, temperature {model['temperature']:g}",
            ),
        ]
    elif model["objective"] != "mlm":
        rows.append(("fills", "drawn from all tokens alike: there is no generator network"))
    rows += [
        (
            "masking",
            f"{percent(args['mask_probability'], 0)} of the tokens: {masked} distinct positions in a row of "
            f"{row_length} (`masking={args['masking']}`); of these {percent(1 - args['keep_probability'], 0)} [MASK], "
            f"{percent(args['keep_probability'], 0)} left as they are",
        ),
        ("batch", f"{record.rows / record.steps:,.0f} rows, {record.tokens / record.steps:,.0f} tokens a step"),
        ("steps", f"{record.steps:,}" if planned == record.steps else f"{record.steps:,} of {planned:,}"),
        ("learning rate", f"{args['learning_rate']:g}, {_schedule(args)}"),
        (
            "optimiser",
            f"AdamW, betas {args['adam_beta1']:g} and {args['adam_beta2']:g}, epsilon {args['adam_epsilon']:g}, "
            f"weight decay {args['weight_decay']:g} (not of biases and LayerNorm), bias correction "
            f"{'on' if args['bias_correction'] else 'off'}, gradients clipped at a norm of {args['max_grad_norm']:g}",
        ),
        ("precision", precision(args)),
        ("dropout", f"{config_of(record, 'discriminator')['hidden_dropout_prob']:g}"),
        ("seed", str(args["seed"])),
    ]
    return facts(rows)


def _schedule(args: dict[str, Any]) -> str:
    steps = args["warmup_steps"]
    warmup = f"{percent(steps, 0)} of the steps" if 0 < steps < 1 else f"{steps:,.0f} steps"
    return f"schedule `{args['lr_scheduler_type'].rpartition('.')[2].lower()}` with {warmup} of warm-up"


def precision(args: dict[str, Any]) -> str:
    """Of the arithmetic, by the arguments of a run."""
    return "bfloat16, mixed" if args["bf16"] else "float16, mixed" if args["fp16"] else "float32"


def compute_table(record: PretrainingRecord, fraction: FractionRecord | None) -> str:
    """What it cost, until the fraction where there is one."""
    part = 1.0 if fraction is None else fraction.rows / record.rows
    seconds = record.train_seconds if fraction is None else fraction.train_seconds
    tokens = part * record.tokens
    rows = [
        ("hardware", hardware(record.hardware)),
        ("tokens", f"{tokens:,.0f}"),
        ("training time", f"{duration(seconds)}, without evaluation and saving"),
        ("speed", f"{tokens / max(seconds, 1e-9):,.0f} tokens/s"),
        ("FLOPs, as the paper counts", scientific(part * record.flops["paper"])),
        ("FLOPs of matrix products alone", scientific(part * record.flops["model"])),
    ]
    emissions = record.emissions
    if emissions.get("kg_co2_eq") is not None:
        told = f"{emissions['kg_co2_eq']:.3g} kg CO2 equivalent"
        details = [f"{emissions['energy_kwh']:.3g} kWh"] if emissions.get("energy_kwh") is not None else []
        details += [plain(emissions["country"])] if emissions.get("country") else []
        told += f" ({', '.join(details)})" if details else ""
        told += f", measured by {plain(emissions['source'])}" if emissions.get("source") else ""
        rows.append(("emissions, whole run" if fraction is not None else "emissions", told))
    return facts(rows)


def hardware(described: dict[str, Any]) -> str:
    """The machine in a line."""
    accelerators = described["accelerators"]
    processor = f"{plain(described['processor'])} ({described['cpu_cores']} CPU cores)"
    if not accelerators:
        return f"{processor}, no accelerator"
    kinds = [f"{accelerators.count(name)} x {plain(name)}" for name in dict.fromkeys(accelerators)]
    return f"{', '.join(kinds)}; {processor}"


def held_out_metrics(record: PretrainingRecord, step: int) -> dict[str, float]:
    """Held-out metrics after a step; empty where there are none."""
    if step == record.steps and record.metrics:
        entries = record.metrics
    else:
        entries = next((e for e in record.curves if e["step"] == step and any(k.startswith("eval_") for k in e)), {})
    return {key: entries[f"eval_{key}"] for key in _METRICS if entries.get(f"eval_{key}") is not None}


def held_out_section(record: PretrainingRecord, step: int) -> dict[str, str]:
    """`table` and `note`; empty where nothing was held out."""
    metrics = held_out_metrics(record, step)
    if not metrics:
        return {}
    rows = []
    for key, value in metrics.items():
        name, how = _METRICS[key]
        rows.append((name, percent(value) if how == "%" else how.format(value)))
    return {"table": table(("held out", ""), rows, right=1), "note": _judged(metrics)}


def _judged(metrics: dict[str, float]) -> str:
    notes = []
    replaced, accuracy = metrics.get("replaced_share"), metrics.get("discriminator_accuracy")
    if replaced is not None and accuracy is not None:
        notes.append(f"Calling every token original would be right for {percent(1 - replaced)} of them.")
    recall = metrics.get("discriminator_recall")
    if recall is not None and recall < 0.2:
        notes.append(
            f"Where it must decide (probability above 0.5), the discriminator finds only {percent(recall)} of the "
            "replaced tokens: compare probabilities, and do not rely on the threshold."
        )
    return " ".join(notes)


def limits(record: PretrainingRecord, step: int) -> list[str]:
    """What to expect of it after a step, and what not."""
    size, row_length = named_size(record), record.data["train"]["row_length"]
    start = started_from(record)
    told = [_seen(record, step)]
    if size == "tiny":
        told.append("The size is ours, not the paper's: a model this small is for tests, tutorials and laptops.")
    elif size is None and not start:
        told.append("The architecture is of no named size of the paper.")
    positions = config_of(record, "discriminator")["max_position_embeddings"]
    if row_length < positions:
        untrained = (
            "this run did not train: how well it knows them depends on what it was before."
            if start
            else "are untrained: fine-tune with longer texts, or cut them."
        )
        told.append(
            f"It was trained on rows of {row_length} tokens. It takes up to {positions}, but the positions from "
            f"{row_length} on {untrained}"
        )
    text = "its text and of the text that it had seen before" if start else "its text"
    told.append(
        f"It has the biases, errors and gaps of {text}, and nothing was done against them; fine-tuned models inherit "
        "them. Look at your own data before you rely on it."
    )
    return told


def _seen(record: PretrainingRecord, step: int) -> str:
    """How much text; compared with the published models where the run began from random weights and has ended, as
    nothing else can be."""
    tokens, planned = record.tokens * step / record.steps, planned_steps(record)
    of_text = f"{large(tokens)} tokens ({passes(record) * tokens / record.tokens:.3g} passes over its text)"
    start = started_from(record)
    if start:
        told = f"In this run it has seen {of_text}, on top of what {listed([plain(name) for name in start])} had seen."
        if new := _new_tower(record):
            told += f" The {new} began from random weights."
    else:
        told = f"It has seen {of_text}."
    if step < planned:
        return f"{told} That is {percent(step / planned, 2)} of its run: expect less of it than of the run's end."
    size = named_size(record)
    reference = size if size in _PAPER else "small"
    theirs = _PAPER[reference]["rows"] * _PAPER[reference]["steps"] * _PAPER[reference]["length"]
    if not start and tokens < 0.5 * theirs:
        told += (
            f" The published ELECTRA-{reference.capitalize()} has seen {large(theirs)}, {theirs / tokens:,.0f} times "
            "as many: expect much weaker results, and use this model to learn and compare, not in a product."
        )
    return told


def deviations(record: PretrainingRecord) -> list[str]:
    """Where the run differs from the paper and its code."""
    model, args, train = record.model, record.arguments["training"], record.data["train"]
    size, main = named_size(record), config_of(record, "discriminator")
    start = started_from(record)
    told = []
    if start:
        told.append(f"Training went on from {listed([plain(name) for name in start])}, not from random weights.")
    elif size not in _PAPER:
        told.append(
            f"The {'size `tiny`' if size == 'tiny' else 'architecture'} is not in the paper"
            + (", nor is its recipe (learning rate, batch, steps)." if size == "tiny" else ".")
        )
    else:
        told += _other_recipe(record, _PAPER[size])
    if model["objective"] != "rtd":
        told.append(f"The objective is `{model['objective']}`, {OBJECTIVES[model['objective']]}, not `rtd`.")
    if model["objective"] != "mlm" and not has_generator(record):
        told.append("No generator network: tokens are replaced by random ones.")
    if has_generator(record):
        if model["sharing"] != "embeddings":
            told.append(f"The towers share {_SHARING[model['sharing']]}, not their embeddings.")
        if not has_smaller_generator(record):
            told.append(f"The generator is no smaller than the {main_tower(record)}.")
        if is_detector(record) and model["discriminator_weight"] != 50:
            told.append(f"The discriminator's loss counts {model['discriminator_weight']:g} times, not 50.")
        if model["temperature"] != 1:
            told.append(f"The generator fills with temperature {model['temperature']:g}, not 1.")
    if args["bias_correction"]:
        told.append("Adam corrects its bias; the original's does not, and has a long warm-up instead.")
    if main["hidden_dropout_prob"] != 0.1 or main["attention_probs_dropout_prob"] != 0.1:
        hidden, attention = main["hidden_dropout_prob"], main["attention_probs_dropout_prob"]
        told.append(f"Dropout is {hidden:g} (of attention {attention:g}), not 0.1.")
    if main["initializer_range"] != 0.02 and not start:
        told.append(f"Weights start with a standard deviation of {main['initializer_range']:g}, not 0.02.")
    if main["vocab_size"] != 30522:
        told.append(f"The vocabulary has {main['vocab_size']:,} tokens, not 30,522.")
    told.append(
        "Masked positions are drawn without replacement, so that they are distinct; the original's may repeat."
    )
    if train["packing"] == "full":
        told.append(
            "Rows are full (`packing=full`): nothing is cut off or padded, and the next document begins in the row in "
            "which one ends; the original cuts and pads."
        )
    if not start:
        told.append("Weights start from a normal distribution, not a truncated one.")
    return told


def _other_recipe(record: PretrainingRecord, paper: dict[str, float]) -> list[str]:
    args = record.arguments["training"]
    ours = {
        "rows": record.rows / record.steps,
        "steps": planned_steps(record),
        "length": record.data["train"]["row_length"],
        "rate": args["learning_rate"],
        "warmup": args["warmup_steps"],
        "masked": args["mask_probability"],
    }
    names = {
        "rows": "rows a step",
        "steps": "steps",
        "length": "tokens a row",
        "rate": "learning rate",
        "warmup": "steps of warm-up",
        "masked": "masked share",
    }
    others = [
        f"{names[key]}: {_number(ours[key])}, not {_number(paper[key])}" for key in names if ours[key] != paper[key]
    ]
    return [f"The recipe of this size has other figures ({'; '.join(others)})."] if others else []


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def versions(record: PretrainingRecord | EvaluationRecord) -> str:
    """Of Python and the packages, in a line."""
    return ", ".join(f"{name} {version}" for name, version in record.versions.items())


def shown_command(command: str) -> str:
    """The command without local paths, one option a line, as it would be typed."""
    return without_local_paths(command).replace(" --", " \\\n    --")


def citation(details_authors: str, repo_id: str, of_electra: bool = True) -> str:
    """BibTeX: the paper, unless the model is no ELECTRA; this package; and the model where its authors are told."""
    paper = (
        "@inproceedings{clark2020electra,\n"
        "  title = {{ELECTRA}: Pre-training Text Encoders as Discriminators Rather Than Generators},\n"
        "  author = {Clark, Kevin and Luong, Minh-Thang and Le, Quoc V. and Manning, Christopher D.},\n"
        "  booktitle = {International Conference on Learning Representations},\n"
        "  year = {2020},\n"
        "  url = {https://openreview.net/forum?id=r1xMH1BtvB}\n}"
    )
    package = (
        f"@software{{hf_electra_rtd,\n  title = {{{PACKAGE}: replaced-token-detection pre-training for the Hugging "
        "Face stack},\n  author = {{The hf\\_electra\\_rtd authors}}\n}"
    )
    entries = [paper, package] if of_electra else [package]
    if details_authors:
        key = "".join(sign if sign.isalnum() else "-" for sign in repo_id)
        entries.append(
            f"@misc{{{key},\n  title = {{{repo_id}}},\n  author = {{{details_authors}}},\n"
            f"  url = {{https://huggingface.co/{repo_id}}}\n}}"
        )
    return "\n\n".join(entries)


def text_languages(languages: tuple[str, ...]) -> str:
    """Languages for a sentence."""
    return listed([_LANGUAGES.get(language, f"`{language}`") for language in languages])
