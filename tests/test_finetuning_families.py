"""Fine-tuning of encoders of every family, from every kind of directory that a pair leaves."""

import copy
import csv
import json
import zipfile

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    XLNetConfig,
    pipeline,
)

from hf_electra_rtd.data.tokenization import fit_tokenizer, load_tokenizer
from hf_electra_rtd.detectors import is_labelled, with_two_labels
from hf_electra_rtd.finetuning import predict
from hf_electra_rtd.finetuning.heads import add_adapters, dropouts_of, load_with_head
from hf_electra_rtd.finetuning.trainer import layer_heights
from hf_electra_rtd.layers import exchange_layers
from tests.conftest import VOCABULARY
from tests.families_for_tests import FAMILY_NAMES, MAX_LENGTH, VOCAB_SIZE, tiny_family_config
from tests.finetuning.conftest import flag_words, run_finetune


CLASSES, TAGS = AutoModelForSequenceClassification, AutoModelForTokenClassification
ANSWERS, CHOICE = AutoModelForQuestionAnswering, AutoModelForMultipleChoice
SOURCES = {"bare encoder": AutoModel, "masked language model": AutoModelForMaskedLM, "detector": TAGS}
TWO, THREE, TAGS_OF_WORDS = ("no", "yes"), ("entailment", "neutral", "contradiction"), ("O", "B-NAME")
DETECTION = {"id2label": {0: "original", 1: "replaced"}, "label2id": {"original": 0, "replaced": 1}}

every_family = pytest.mark.parametrize("family", FAMILY_NAMES)


def make(family, auto_class, **options):
    return auto_class.from_config(tiny_family_config(family, **options))


def token_ids(batch_size=2, length=12):
    return torch.randint(5, VOCAB_SIZE, (batch_size, length), generator=torch.Generator().manual_seed(5))


def outputs_of(model):
    ids = token_ids()
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if type(model).__name__.endswith("MultipleChoice"):
        inputs = {name: tensor[:, None] for name, tensor in inputs.items()}
    output = model(**inputs)
    logits = torch.stack([output.start_logits, output.end_logits]) if "start_logits" in output else output.logits
    return logits[:, :9] if type(model).__name__.endswith("TokenClassification") else logits


# ---- What is loaded ----


@every_family
@pytest.mark.parametrize("kind", SOURCES)
def test_a_task_begins_with_the_whole_encoder_and_a_new_head_whatever_head_the_source_has(kind, family, tmp_path):
    # ELECTRA's own detector is refused, see below; this is any other model that tags.
    labels = DETECTION if kind == "detector" and family != "electra" else {}
    source = make(family, SOURCES[kind], **labels)
    for parameter in source.parameters():  # also of biases, which begin at 0
        nn.init.normal_(parameter)
    source.save_pretrained(tmp_path)
    encoder, whole = source.base_model.state_dict(), source.state_dict()
    for auto_class, labels in ((CLASSES, TWO), (CLASSES, THREE), (CLASSES, ()), (TAGS, TAGS_OF_WORDS), (ANSWERS, ())):
        model = load_with_head(auto_class, tmp_path, labels=labels)
        assert not is_labelled(model.config)
        assert model.config.num_labels == (len(labels) or (1 if auto_class is CLASSES else 2))
        prefix, read = f"{model.base_model_prefix}.", model.base_model.state_dict()
        tensors = [name for name in read if not name.startswith("pooler.")]
        assert {name for name in encoder if not name.startswith("pooler.")} == set(tensors)
        assert all(torch.equal(read[name], encoder[name]) for name in tensors)
        head = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(prefix)}
        assert head
        assert not any(torch.equal(tensor, whole.get(name, torch.empty(0))) for name, tensor in head.items())
    model.save_pretrained(tmp_path / "tuned")  # keeps its head for the same labels
    again = load_with_head(auto_class, tmp_path / "tuned", labels=labels).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


@every_family
@pytest.mark.parametrize("kind", ["bare encoder", "masked language model"])
def test_an_encoder_with_layers_that_its_configuration_lacks_is_refused(kind, family, tmp_path):
    source = make(family, SOURCES[kind])
    source.save_pretrained(tmp_path)
    one = {"n_layers": 1} if family == "distilbert" else {"num_hidden_layers": 1}
    tiny_family_config(family, **one).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds tensors unknown to .*layers?\.1\."):
        load_with_head(CLASSES, tmp_path, labels=TWO)


def test_electras_detector_whose_last_layer_is_its_head_is_refused_with_what_to_name(tmp_path):
    model = make("electra", AutoModelForPreTraining, intermediate_size=128)
    with_two_labels(model).save_pretrained(tmp_path / "detector")
    with pytest.raises(ValueError, match=r"ELECTRA's detector: its last layer is the head .* or its discriminator/"):
        load_with_head(CLASSES, tmp_path / "detector", labels=TWO)


# ---- What is trained ----

_BERT_HEIGHTS = {"encoder.layer.1": 1, "encoder.layer.0": 2, "embeddings": 3}
_CLASSIFIER = {"classifier.dense": 0, "classifier.out_proj": 0}
# Of two layers, by the beginning of a name below the encoder's or, where there is none, of the whole.
HEIGHTS = {
    "bert": {**_BERT_HEIGHTS, "pooler": 0, "classifier": 0},
    "camembert": {**_BERT_HEIGHTS, **_CLASSIFIER},
    "convbert": {**_BERT_HEIGHTS, **_CLASSIFIER, "embeddings_project": 3},
    # Relative positions and their LayerNorm are read by all layers; the convolution reads the embeddings.
    "deberta-v2": {**_BERT_HEIGHTS, "encoder.rel_embeddings": 3, "encoder.LayerNorm": 3, "encoder.conv": 3}
    | {"pooler": 0, "classifier": 0},
    "distilbert": {"transformer.layer.1": 1, "transformer.layer.0": 2, "embeddings": 3}
    | {"pre_classifier": 0, "classifier": 0},
    "electra": {**_BERT_HEIGHTS, **_CLASSIFIER, "embeddings_project": 3},
    "modernbert": {"layers.1": 1, "layers.0": 2, "embeddings": 3, "final_norm": 0, "head": 0, "classifier": 0},
    "roberta": {**_BERT_HEIGHTS, **_CLASSIFIER},
    "xlm-roberta": {**_BERT_HEIGHTS, **_CLASSIFIER},
}


@every_family
def test_each_parameter_is_as_far_below_the_head_as_its_layer(family):
    model = make(family, CLASSES)
    found, wanted = layer_heights(model), HEIGHTS[family]
    seen = set()
    for name, parameter in model.named_parameters():
        below = name.removeprefix(f"{model.base_model_prefix}.")
        part = max((part for part in wanted if f"{below}.".startswith(f"{part}.")), key=len)
        seen.add(part)
        assert found[id(parameter)] == wanted[part], name
    assert seen == wanted.keys()


_ATTENTION = {"query", "key", "value", "dense"}
LINEAR = {
    **dict.fromkeys(("bert", "camembert", "electra", "roberta", "xlm-roberta"), _ATTENTION),
    "convbert": _ATTENTION | {"conv_kernel_layer", "conv_out_layer"},
    "deberta-v2": {"query_proj", "key_proj", "value_proj", "dense"},
    "distilbert": {"q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"},
    "modernbert": {"Wqkv", "Wo", "Wi"},
}


@every_family
def test_by_default_every_linear_layer_of_the_stack_gets_an_adapter_and_the_head_is_trained_whole(family):
    model = make(family, CLASSES)
    adapted = add_adapters(model, "encoder", r=2, lora_alpha=4)
    with_adapter = {name.partition(".lora_A")[0] for name, _ in adapted.named_parameters() if "lora_A" in name}
    assert {name.rpartition(".")[2] for name in with_adapter} == LINEAR[family]
    assert all(any(part.isdigit() for part in name.split(".")) for name in with_adapter)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name or ".modules_to_save." in name for name in trained)
    # The classifier and what lies between it and the encoder.
    heads = {part for part, height in HEIGHTS[family].items() if height == 0 and part != "final_norm"}
    assert all(any(f".{part.partition('.')[0]}.modules_to_save." in name for name in trained) for part in heads)


@every_family
def test_dropout_is_all_that_is_set_and_each_field_of_it_is_read(family):
    config = tiny_family_config(family)
    classes = [each for each in (CLASSES, TAGS, ANSWERS, CHOICE) if type(config) in each._model_mapping]
    none = dict.fromkeys(dropouts_of(config), 0.0)

    @torch.no_grad()
    def drops(auto_class, **own):
        model = make(family, auto_class, **{**none, **own})
        return not torch.equal(outputs_of(model.train()), outputs_of(model.eval()))

    assert not any(map(drops, classes))
    assert none
    for name in none:
        assert any(drops(each, **{name: 0.5}) for each in classes), name


@every_family
def test_faster_layers_keep_the_logits_in_evaluation_and_where_dropout_drops_nothing(family):
    names = dropouts_of(tiny_family_config(family))
    model = make(family, CLASSES, **dict.fromkeys(names, 1e-9))
    with torch.no_grad():
        wanted = outputs_of(model.eval())
        exchange_layers(model)
        torch.testing.assert_close(outputs_of(model.eval()), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outputs_of(model.train()), wanted, rtol=1e-4, atol=1e-4)


@every_family
def test_gradient_checkpointing_keeps_the_gradients(family):
    gradients, calls = [], [0, 0]
    for is_checkpointed in (False, True):
        torch.manual_seed(3)
        model = make(family, CLASSES).train()
        exchange_layers(model)
        if is_checkpointed:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()

        def count(*_, mode=is_checkpointed):
            calls[mode] += 1

        inside = [each for name, each in model.named_modules() if ".0." in name and isinstance(each, nn.Linear)]
        inside[0].register_forward_hook(count)
        torch.manual_seed(4)  # of dropout
        outputs_of(model).square().sum().backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert calls[True] == 2 * calls[False]  # again in the backward pass
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-6)


# ---- What is read ----


@every_family
def test_a_tokenizer_gives_what_the_family_reads_here_and_where_it_is_saved(family, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    fitted = load_tokenizer(str(tmp_path))
    config = tiny_family_config(family, pad_token_id=0)
    fit_tokenizer(fitted, config)
    fitted.save_pretrained(tmp_path)
    for each in (fitted, AutoTokenizer.from_pretrained(tmp_path)):
        encoded = each(["the old river", " ".join(["the mill"] * 200)], padding=True, truncation=True)
        assert ("token_type_ids" in encoded) == (family in ("bert", "convbert", "electra"))
        assert {len(ids) for ids in encoded["input_ids"]} == {MAX_LENGTH}
    make(family, TAGS, pad_token_id=0).save_pretrained(tmp_path)
    tagger = pipeline("token-classification", str(tmp_path))
    assert [found["index"] for found in tagger("the old river")] == [1, 2, 3]


def test_a_model_of_8192_positions_reads_them_beside_a_tokenizer_of_512(tokenizer):
    fitted = copy.deepcopy(tokenizer)
    fit_tokenizer(fitted, tiny_family_config("modernbert", max_position_embeddings=8192))
    assert (tokenizer.model_max_length, fitted.model_max_length) == (512, 8192)


XLNET = XLNetConfig(vocab_size=120, d_model=32, n_layer=1, n_head=2, d_inner=32)
SQUAD = {"benchmark": "more", "task_name": "squad2", "head": "paper", "max_query_length": 16, "doc_stride": 16}
SQUAD |= {"max_seq_length": 64}


@pytest.mark.parametrize(
    ("source", "flags", "message"),
    [
        ("roberta", {"max_seq_length": 65}, rf"--max_seq_length is 65, but .* reads {MAX_LENGTH} tokens at most"),
        ("modernbert", {"max_seq_length": 65}, f"reads {MAX_LENGTH} tokens at most"),
        ("deberta-v2", {"max_seq_length": 65}, f"reads {MAX_LENGTH} tokens at most"),
        (XLNET, {"dropout": 0.2}, "--dropout: it is not known what sets that of a xlnet"),
        ("electra", SQUAD, "--head paper needs a tokenizer that gives token types"),
        ("roberta", {"head": "paper"}, r"no --head paper for .*SequenceClassification .*Use --head transformers"),
    ],
)
def test_what_a_family_cannot_do_is_refused(source, flags, message, tokenizer, tmp_path):
    config = tiny_family_config(source, pad_token_id=0) if isinstance(source, str) else source
    AutoModel.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "attention_mask"]  # no token types
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    given = {"model_name_or_path": tmp_path, "task_name": "rte", "output_dir": tmp_path / "run", **flags}
    with pytest.raises(ValueError, match=message):
        run_finetune(**given)


# ---- From the command to the submission ----


def write_rte(directory, number):
    """RTE in GLUE's layout: the second sentence follows from the first if it holds the word `old`, too."""
    (directory / "RTE").mkdir()
    words = VOCABULARY[10:30]
    for split in ("train", "dev", "test"):
        with open(directory / "RTE" / f"{split}.tsv", "w", newline="") as file:
            rows = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            rows.writerow(["index", "sentence1", "sentence2", *(["label"] if split != "test" else [])])
            for index in range(number):
                label = "entailment" if index % 2 else "not_entailment"
                text = f"{words[index % 7]} {words[index % 11]} {'old' if index % 2 else 'mill'}"
                rows.writerow([index, text, "the old river", *([label] if split != "test" else [])])
    return str(directory)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")  # the name of old versions
@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_a_family_goes_from_the_command_to_predictions_and_the_submission(family, tokenizer, tmp_path):
    detector = make(family, TAGS, initializer_range=0.02, **DETECTION)
    detector.save_pretrained(tmp_path / "detector")
    tokenizer.save_pretrained(tmp_path / "detector")
    flags = {"model_name_or_path": tmp_path / "detector", "task_name": "rte", "data_dir": write_rte(tmp_path, 40)}
    flags |= {"output_dir": tmp_path / "run", "max_seq_length": 40, "layerwise_lr_decay": 0.8, "dropout": 0.05}
    flags |= {"learning_rate": 5e-3, "num_train_epochs": 6, "per_device_train_batch_size": 8, "logging_steps": 1000}
    assert run_finetune(**flags, predict=True, gradient_checkpointing=True, bias_correction=True) == 0
    seed = tmp_path / "run" / "rte" / "seed_42"
    record = json.loads((seed / "evaluation_record.json").read_text())
    assert record["arguments"]["dropout"] == 0.05
    assert record["model"]["architecture"] == type(make(family, CLASSES)).__name__
    assert record["metrics"]["dev"]["accuracy"] == 1.0
    with zipfile.ZipFile(tmp_path / "run" / "submission" / "glue_submission.zip") as archive:
        lines = archive.read("RTE.tsv").decode().splitlines()
    wanted = ["entailment" if index % 2 else "not_entailment" for index in range(40)]
    assert [line.split("\t")[1] for line in lines[1:]] == wanted
    (tmp_path / "new.csv").write_text("one,two\nthe garden old,the old river\nthe garden mill,the old river\n")
    columns = {"text_column_name": "one", "second_text_column_name": "two"}
    words = flag_words(disable_tqdm=None, model_name_or_path=tmp_path / "run", file=tmp_path / "new.csv", **columns)
    assert predict.main([*words, "--output_file", str(tmp_path / "new.jsonl")]) == 0
    answers = [json.loads(line)["label"] for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert answers == ["entailment", "not_entailment"]
