"""Encoders of every family: the loss of a pair, saving and continuing, exports, fine-tuning, and cards."""

import copy
import itertools
import json
import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F  # noqa: N812
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    ElectraConfig,
    ElectraForPreTraining,
    LongformerConfig,
    pipeline,
)

from hf_electra_rtd import ElectraAdamW, ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.data.tokenization import fit_tokenizer, load_tokenizer, save_tokenizer
from hf_electra_rtd.encoders import layers
from hf_electra_rtd.encoders.detectors import detection_logits, is_labelled, with_two_labels
from hf_electra_rtd.encoders.families import inputs_of, output_layer
from hf_electra_rtd.finetuning import predict
from hf_electra_rtd.finetuning.heads import add_adapters, dropouts_of, load_with_head
from hf_electra_rtd.finetuning.trainer import layer_heights
from hf_electra_rtd.pair.configuration_electra_rtd import derive_generator_config
from hf_electra_rtd.publishing.card import pretraining_card
from hf_electra_rtd.publishing.publish import repository_ids
from hf_electra_rtd.training import pretrain
from hf_electra_rtd.training.model import ModelArguments, build_model
from tests.conftest import VOCABULARY, pretraining_flags
from tests.families_for_tests import (
    FAMILY_NAMES,
    KINDS,
    LAYERS,
    MAX_LENGTH,
    POSITIONS_BEHIND_PADDING,
    VOCAB_SIZE,
    WITH_TOKEN_TYPES,
    family_of,
    tiny_family_config,
)
from tests.finetuning.conftest import flag_words, run_finetune
from tests.publishing.card_records import CARD, code_of, run_record
from tests.publishing.test_cards import parts


every_kind = pytest.mark.parametrize("kind", KINDS)
every_family = pytest.mark.parametrize("family", FAMILY_NAMES)

PADDED = torch.ones(2, 12, dtype=torch.long)
PADDED[1, 9:] = 0
REAL = PADDED.bool()


def make_pair(kind="bert", config=(), **options):
    torch.manual_seed(0)
    discriminator = tiny_family_config(kind, **dict(config))
    return ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=discriminator, **options)).eval()


@pytest.fixture(scope="module")
def masked():
    """Masked sequences and their slots; one of the original tokens is [PAD]."""
    ids = torch.randint(5, VOCAB_SIZE, (2, 12), generator=torch.Generator().manual_seed(5))
    ids[0, 3] = 0
    positions = torch.tensor([[3, 6, 8], [1, 2, 5]])
    labels = ids.gather(1, positions)
    return {"input_ids": ids.scatter(1, positions, 4), "masked_positions": positions, "labels": labels}


# ---- The loss ----


@pytest.mark.parametrize("kind", [*KINDS, "mpnet"])
def test_losses_and_logits_are_those_of_the_stock_models(kind, masked, caplog):
    """Also for MPNet, a family that is not known, whose head therefore computes the logits of all tokens."""
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32} if kind == "mpnet" else {}
    pair = make_pair(kind, config)
    assert ("slow" in caplog.text) == (kind == "mpnet")
    types = torch.zeros_like(PADDED)
    output = pair(**masked, attention_mask=PADDED, token_type_ids=types, output_generator_logits=True)
    # No position ids are needed: the masked sequences hold [PAD] at most at their ends.
    logits = pair.generator(input_ids=masked["input_ids"], attention_mask=PADDED).logits
    expected = logits.gather(1, masked["masked_positions"][..., None].expand(-1, -1, VOCAB_SIZE))
    torch.testing.assert_close(output.generator_logits, expected, rtol=1e-5, atol=1e-5)
    losses = F.cross_entropy(expected.transpose(1, 2), masked["labels"], reduction="none")
    torch.testing.assert_close(output.generator_token_losses, losses, rtol=1e-5, atol=1e-5)
    ids = output.corrupted_input_ids
    inputs = inputs_of(pair.discriminator.config, {"input_ids": ids, "attention_mask": PADDED})
    labels = pair.discriminator(**inputs).logits.double()
    if kind == "electra":
        labels = torch.stack([torch.zeros_like(labels), labels], dim=-1)
    originals = masked["input_ids"].scatter(1, masked["masked_positions"], masked["labels"])
    expected = F.cross_entropy(labels[REAL], ids.ne(originals)[REAL].long())
    assert output.discriminator_loss.item() == pytest.approx(expected.item(), rel=1e-6)


def tables_of(tower):
    """The word table of a tower, and its position table if it has one."""
    positions = getattr(tower.base_model.embeddings, "position_embeddings", None)
    return [table.weight for table in (tower.get_input_embeddings(), positions) if table is not None]


@every_kind
def test_disentangled_embeddings_are_the_generators_present_tables_and_differences(kind, masked):
    """Checked after a joint step, which shows that the tables are neither stale copies nor frozen."""
    pair = make_pair(kind, sharing="gdes").double()
    before = [table.detach().clone() for tower in pair.towers.values() for table in tables_of(tower)]
    pair(**masked, attention_mask=PADDED).loss.backward()
    ElectraAdamW(pair.parameters(), lr=0.05).step()
    pair.zero_grad()
    alone = type(pair.discriminator)(copy.deepcopy(pair.discriminator.config)).double().eval()
    alone.load_state_dict(pair.discriminator.state_dict())
    after = [table for tower in pair.towers.values() for table in tables_of(tower)]
    assert not any(map(torch.equal, before, after))  # tables and differences learn
    with torch.no_grad():
        for table, of_generator in zip(tables_of(alone), tables_of(pair.generator), strict=True):
            table.add_(of_generator)
    ids = masked["input_ids"]
    logits = pair.discriminate(ids, attention_mask=PADDED).logits
    for native in (alone, pair.native_discriminator().eval()):
        said = detection_logits(native, **inputs_of(native.config, {"input_ids": ids, "attention_mask": PADDED}))
        torch.testing.assert_close(said[REAL], logits[REAL], rtol=1e-9, atol=1e-12)
    logits.sum().backward()
    assert all(parameter.grad is None for parameter in pair.generator.parameters())
    assert all(table.grad is not None for table in tables_of(pair.discriminator))


@every_kind
def test_a_sampled_pad_is_a_word_as_any_other(kind, masked):
    pair = make_pair(kind)
    pad = pair.config.discriminator_config.pad_token_id
    ids = masked["input_ids"].clone()
    ids[:, 4] = pad
    shifted = pair.discriminate(ids).logits
    positions = {}
    if family_of(kind) in POSITIONS_BEHIND_PADDING:
        positions["position_ids"] = torch.arange(pad + 1, pad + 1 + ids.shape[1])[None]
    expected = detection_logits(pair.discriminator, input_ids=ids, **positions)
    torch.testing.assert_close(shifted, expected, rtol=1e-5, atol=1e-5)
    for tower in pair.towers.values():
        tables = [module for module in tower.modules() if isinstance(module, nn.Embedding)]
        assert {table.padding_idx for table in tables} == {None}
    shifted.sum().backward()
    assert pair.get_input_embeddings().weight.grad[pad].abs().sum() > 0


@every_family
def test_token_types_reach_only_who_has_them_and_heads_that_detect_have_no_dropout(family, masked):
    pair = make_pair(family)
    ids = masked["input_ids"]
    plain, typed = (pair.discriminate(ids, token_type_ids=types).logits for types in (None, torch.ones_like(ids)))
    assert torch.equal(plain, typed) == (family not in WITH_TOKEN_TYPES)
    if family != "electra":
        heads = [child for child in pair.discriminator.children() if isinstance(child, nn.Dropout)]
        assert [head.p for head in heads] == [0.0]


# ---- Sharing and initial weights ----


def test_towers_of_two_families_share_words_alone_and_of_other_tables_nothing(masked):
    def pair_of(generator, discriminator, sharing):
        towers = {"generator_config": generator, "discriminator_config": discriminator}
        return ElectraForRTDPretraining(ElectraRTDConfig(**towers, sharing=sharing))

    bert, modernbert = (tiny_family_config(family) for family in ("bert", "modernbert"))
    pair = pair_of(bert, modernbert, "word")
    words = pair.discriminator.model.embeddings.tok_embeddings.weight
    assert pair.generator.bert.embeddings.word_embeddings.weight is words
    assert pair.generator.cls.predictions.decoder.weight is words
    pair(**masked).loss.backward()
    with pytest.raises(ValueError, match="bert and modernbert"):
        pair_of(bert, modernbert, "embeddings")
    with_positions, without = (
        tiny_family_config("deberta-v2", position_biased_input=biased) for biased in (True, False)
    )
    for towers in ((with_positions, without), (without, with_positions)):
        for sharing in ("embeddings", "gdes"):
            with pytest.raises(ValueError, match="max_position_embeddings"):
                pair_of(*towers, sharing)


@every_kind
def test_a_generator_is_a_smaller_one_of_the_same_family(kind):
    config = derive_generator_config(tiny_family_config(kind))
    assert config.vocab_size == VOCAB_SIZE
    expected = (8, 2) if kind == "electra" else (32, 1)
    assert (config.hidden_size, config.num_hidden_layers) == expected
    if kind != "electra":
        assert len(getattr(config, "layer_types", [0])) == 1
    if "deberta" in kind:
        assert config.pos_att_type == ["p2c", "c2p"]  # not one entry per layer, though there are two layers
    narrow = derive_generator_config(tiny_family_config("bert"), 0.5, 1.0)
    assert (narrow.hidden_size, narrow.num_attention_heads, narrow.intermediate_size) == (16, 1, 32)
    windows = LongformerConfig(num_hidden_layers=4, attention_window=[8, 8, 16, 16])  # one for each layer
    assert derive_generator_config(windows).attention_window == [8, 8]


@pytest.mark.parametrize("sharing", ["embeddings", "gdes"])
@every_kind
def test_new_words_begin_as_the_mean_of_their_pieces(kind, sharing, masked):
    pair = make_pair(kind, sharing=sharing)
    ids = masked["input_ids"]
    before = pair.discriminate(ids).logits
    pair.append_tokens([[7, 8]])
    torch.testing.assert_close(pair.discriminate(ids).logits, before)
    words = pair.native_discriminator().get_input_embeddings().weight
    torch.testing.assert_close(words[-1], words[7:9].mean(dim=0))
    layer = output_layer(pair.generator)
    assert layer.weight is pair.generator.get_input_embeddings().weight
    assert layer.bias[-1] == layer.bias[7:9].min()
    assert pair(**{**masked, "labels": masked["labels"].clamp(min=VOCAB_SIZE)}).loss.isfinite()


@pytest.fixture(scope="module")
def places(tmp_path_factory, tokenizer):
    """A directory of configurations, bare encoders, masked language models and others, most with a tokenizer."""
    root = tmp_path_factory.mktemp("families")

    def save(name, auto_class, family, **options):
        torch.manual_seed(3)
        config = tiny_family_config(family, **{"vocab_size": len(VOCABULARY), **options})
        auto_class.from_config(config).save_pretrained(root / name)
        save_tokenizer(tokenizer, root / name)

    for family in ("bert", "modernbert"):
        tiny_family_config(family).to_json_file(root / f"{family}.json", use_diff=False)  # with another vocabulary
        save(f"{family}-mlm", AutoModelForMaskedLM, family)
    for family in ("deberta-v2", "modernbert"):  # with more rows than tokens
        save(f"{family}-wide", AutoModelForMaskedLM, family, vocab_size=len(VOCABULARY) + 9)
    # Like the released model: with the head of `legacy=False`, which is not in the configuration.
    save("deberta-v2-released", AutoModelForMaskedLM, "deberta-v2")
    config = json.loads((root / "deberta-v2-released/config.json").read_text())
    del config["legacy"]
    (root / "deberta-v2-released/config.json").write_text(json.dumps(config))
    save("bert-bare", AutoModel, "bert")
    save("bert-ner", AutoModelForTokenClassification, "bert", num_labels=9)
    AutoModelForMaskedLM.from_config(tiny_family_config("bert")).save_pretrained(root / "bert-alone")
    with_two_labels(ElectraForPreTraining(tiny_family_config("electra"))).save_pretrained(root / "electra-detector")
    return root


@pytest.fixture
def build(places, tokenizer, monkeypatch):
    monkeypatch.chdir(places)

    def build(max_seq_length=16, **flags):
        return build_model(ModelArguments(**flags), tokenizer, max_seq_length)

    return build


@pytest.mark.parametrize("sharing", ["embeddings", "gdes", "none"])
@pytest.mark.parametrize("source", ["bert-mlm", "modernbert-mlm", "bert-bare", "deberta-v2-wide", "modernbert-wide"])
def test_weights_are_gone_on_from_and_the_generator_begins_with_the_first_layers(build, source, sharing):
    """Rows without a token are left out."""
    pair = build(backbone=source, sharing=sharing)
    stock = (AutoModel if source.endswith("bare") else AutoModelForMaskedLM).from_pretrained(source)
    expected = stock.base_model.state_dict()
    for tower in (pair.native_discriminator(), pair.generator):
        assert tower.config.vocab_size == len(VOCABULARY)
        for name, tensor in tower.base_model.state_dict().items():
            torch.testing.assert_close(tensor, expected[name][: len(tensor)], rtol=0, atol=1e-7, msg=name)
    assert pair.generator.config.num_hidden_layers == 1
    layer = output_layer(pair.generator)
    if not source.endswith("bare"):
        assert torch.equal(layer.bias, output_layer(stock).bias[: len(VOCABULARY)])
        assert torch.equal(layer.weight, output_layer(stock).weight[: len(VOCABULARY)])
    inputs = inputs_of(pair.generator.config, {"input_ids": torch.tensor([[2, 4, 7, 3]])})
    assert pair.generator(**inputs).logits.shape[-1] == len(VOCABULARY)
    alone = build(backbone=source, generator_type="uniform").get_input_embeddings().weight
    assert torch.equal(alone, stock.get_input_embeddings().weight[: len(VOCABULARY)])


@pytest.mark.parametrize(
    ("flag", "backbone", "flags"),
    [
        *(
            (flag, "bert.json", {"sharing": sharing})
            for flag in ("generator", "generator_backbone")
            for sharing in ("embeddings", "word", "gdes", "none")
        ),
        ("generator", "modernbert.json", {"freeze_generator": True}),
    ],
)
def test_a_trained_generator_keeps_its_tables_beside_a_new_discriminator(build, flag, backbone, flags):
    pair = build(backbone=backbone, **flags, **{flag: "bert-mlm"})
    stock = AutoModelForMaskedLM.from_pretrained("bert-mlm")
    for tensor, expected in zip(pair.generator.parameters(), stock.parameters(), strict=True):
        assert torch.equal(tensor, expected)
        assert tensor.requires_grad == ("freeze_generator" not in flags)
    if flags.get("sharing") == "gdes":
        assert not pair.get_input_embeddings().weight.any()
    assert ModelArguments(backbone=backbone, generator="bert-mlm", sharing="none").tokenizer_source == "bert-mlm"


@pytest.mark.parametrize("flags", [{"sharing": "gdes"}, {"generator": "deberta-v2-released", "sharing": "none"}])
def test_the_head_of_released_debertas_is_known_by_its_weights(build, flags, tmp_path):
    """The released configurations have no `legacy`."""
    pair = build(backbone="deberta-v2-released", **flags)
    head = load_file("deberta-v2-released/model.safetensors")["lm_predictions.lm_head.dense.weight"]
    assert torch.equal(pair.generator.lm_predictions.lm_head.dense.weight, head)
    pair.save_pretrained(tmp_path)
    again = ElectraForRTDPretraining.from_pretrained(tmp_path).generator
    assert torch.equal(again.lm_predictions.lm_head.dense.weight, head)


def test_a_configuration_makes_new_networks_for_the_tokenizer(build, tokenizer):
    pair = build(backbone="modernbert.json", generator_backbone="bert.json", sharing="word")
    assert pair.generator.get_input_embeddings().weight is pair.get_input_embeddings().weight
    assert build(backbone="bert.json", generator_layers=1.0).generator.config.num_hidden_layers == 2
    config = pair.config.discriminator_config
    assert config.vocab_size == len(tokenizer)
    for name in ("pad_token_id", "cls_token_id", "sep_token_id"):
        assert getattr(config, name) == getattr(tokenizer, name)
    drawn = build(backbone="bert-mlm", from_scratch=True)
    stock = AutoModelForMaskedLM.from_pretrained("bert-mlm")
    assert not torch.equal(drawn.get_input_embeddings().weight, stock.get_input_embeddings().weight)
    assert ModelArguments(backbone="bert.json").tokenizer_source is None


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"backbone": "nothing"}, "nothing"),
        ({"backbone": "bert-alone"}, "tokenizer"),  # it has other tokens
        ({"backbone": "electra-detector"}, "electra-detector"),  # its last layer is a head
        ({"discriminator": "bert-ner"}, "bert-ner"),
        # The generator, or only its head, is untrained.
        ({"backbone": "bert.json", "freeze_generator": True}, "freeze"),
        ({"backbone": "bert.json", "generator_backbone": "bert-alone", "freeze_generator": True}, "freeze"),
        ({"backbone": "bert-mlm", "max_seq_length": MAX_LENGTH + 1}, f"{MAX_LENGTH}"),
    ],
)
def test_flags_that_make_no_pair_or_a_wrong_one_are_refused(build, flags, name):
    with pytest.raises(ValueError, match=name):
        build(**flags)


# ---- Saving and exporting ----


@pytest.mark.parametrize(
    ("kind", "sharing"),
    [
        *((kind, "embeddings") for kind in KINDS),
        *(("modernbert", sharing) for sharing in ("none", "word", "gdes", "all")),
    ],
)
def test_a_pair_of_any_family_trains_and_is_saved_whole(kind, sharing, masked, tmp_path):
    pair = make_pair(kind, sharing=sharing)
    before = {name: parameter.clone() for name, parameter in pair.named_parameters()}
    pair.train()(**masked, attention_mask=PADDED).loss.backward()
    unused = [name for name, parameter in pair.named_parameters() if parameter.grad is None]
    assert not [name for name in unused if "conv" not in name], "every tensor learns"
    torch.optim.SGD(pair.parameters(), lr=1e-3).step()
    assert any(not torch.equal(parameter, before[name]) for name, parameter in pair.named_parameters())
    pair.eval().save_pretrained(tmp_path)
    again = ElectraForRTDPretraining.from_pretrained(tmp_path).eval()
    assert type(again.generator) is type(pair.generator)
    logits, expected = (
        model.discriminate(masked["input_ids"], attention_mask=PADDED).logits for model in (again, pair)
    )
    torch.testing.assert_close(logits, expected)
    of_generator = pair.generator.base_model
    of_discriminator = pair.discriminator.base_model
    for name, other_name in pair.sharing.shared_pairs(of_generator, of_discriminator):
        assert of_generator.get_parameter(name) is of_discriminator.get_parameter(other_name)


_STOCK = """
import sys, torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForTokenClassification
assert not any("hf_electra" in name for name in sys.modules)
auto = {"discriminator": AutoModel, "detector": AutoModelForTokenClassification, "generator": AutoModelForMaskedLM}
for place in sys.argv[1:]:
    inputs = torch.load(place + "/inputs.pt")
    with torch.no_grad():
        models = {name: auto_class.from_pretrained(place + "/" + name).eval() for name, auto_class in auto.items()}
        outputs = {name: (type(model).__name__, model(**inputs)[0]) for name, model in models.items()}
    torch.save(outputs, place + "/outputs.pt")
"""


@pytest.mark.slow
def test_exports_give_the_same_without_this_package(tmp_path, masked):
    pairs = {tmp_path / kind: make_pair(kind, sharing="gdes") for kind in KINDS}
    # These sequences hold no [PAD], so that stock models count positions as this package does.
    inputs = {"input_ids": masked["input_ids"], "attention_mask": PADDED}
    for place, pair in pairs.items():
        pair.save_towers(place)
        torch.save(inputs_of(pair.config.discriminator_config, inputs), place / "inputs.pt")
        assert json.loads((place / "discriminator" / "config.json").read_text()).get("id2label") is None
    subprocess.run([sys.executable, "-c", _STOCK, *map(str, pairs)], check=True, cwd=tmp_path, capture_output=True)
    for place, pair in pairs.items():
        stock_inputs = torch.load(place / "inputs.pt")
        outputs = torch.load(place / "outputs.pt")
        config_class = type(pair.config.discriminator_config)
        class_names = {
            "discriminator": AutoModel._model_mapping[config_class].__name__,
            "detector": AutoModelForTokenClassification._model_mapping[config_class].__name__,
            "generator": type(pair.generator).__name__,
        }
        assert {name: class_name for name, (class_name, _) in outputs.items()} == class_names
        expected = {
            "discriminator": pair.native_discriminator().eval().base_model(**stock_inputs)[0],
            "detector": pair.discriminate(**inputs).logits,
            "generator": pair.generator(**stock_inputs).logits,
        }
        for name, (_, tensor) in outputs.items():
            said = tensor[..., 1] - tensor[..., 0] if name == "detector" else tensor
            torch.testing.assert_close(said[REAL], expected[name][REAL], rtol=1e-4, atol=2e-5, msg=f"{place} {name}")


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_a_layer_more_computes_electras_head_exactly(activation):
    torch.manual_seed(1)
    sizes = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 2}
    tower = ElectraForPreTraining(ElectraConfig(**sizes, num_hidden_layers=3, hidden_act=activation)).eval()
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    ids = torch.randint(50, (4, 20))
    state = torch.get_rng_state()
    detector = with_two_labels(tower.double())
    assert torch.equal(torch.get_rng_state(), state), "an export must not change what a run draws"
    expected = detection_logits(tower, input_ids=ids)
    assert expected.abs().max() > 1
    # The remaining error of a logit z is a share of z^2 / (2 c^2), with c = 2^15.
    torch.testing.assert_close(detection_logits(detector, input_ids=ids), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("options", [{"intermediate_size": 80}, {"hidden_act": "tanh"}])
def test_a_head_that_a_layer_cannot_compute_has_no_detector(options, caplog):
    assert with_two_labels(ElectraForPreTraining(tiny_family_config("electra", **options))) is None
    assert "detector/" in caplog.text


def test_a_run_of_another_family_leaves_what_stock_transformers_loads(tmp_path, corpus):
    tiny_family_config("modernbert").to_json_file(tmp_path / "backbone.json", use_diff=False)
    options = {"backbone": tmp_path / "backbone.json", "model_config": None, "sharing": "gdes"}
    pretrain.main(pretraining_flags(tmp_path, corpus, tmp_path / "run", initialization="stock", **options))
    tokenizer = load_tokenizer(str(tmp_path / "run" / "discriminator"))
    assert tokenizer.model_max_length == MAX_LENGTH
    encoder = AutoModel.from_pretrained(tmp_path / "run" / "discriminator").eval()
    ids = torch.tensor([[tokenizer.cls_token_id, 7, 8, tokenizer.sep_token_id]])
    pair = ElectraForRTDPretraining.from_pretrained(tmp_path / "run").eval()
    torch.testing.assert_close(encoder(ids)[0], pair.native_discriminator().eval().base_model(ids)[0])


# ---- Fine-tuning: loading ----

CLASSES = AutoModelForSequenceClassification
TAGS = AutoModelForTokenClassification
ANSWERS = AutoModelForQuestionAnswering
SOURCES = {"bare encoder": AutoModel, "masked language model": AutoModelForMaskedLM, "detector": TAGS}
TWO_LABELS = ("no", "yes")
TARGETS = (
    (CLASSES, TWO_LABELS),
    (CLASSES, ("entailment", "neutral", "contradiction")),
    (CLASSES, ()),
    (TAGS, ("O", "B-NAME")),
    (ANSWERS, ()),
)
DETECTION = {"id2label": {0: "original", 1: "replaced"}, "label2id": {"original": 0, "replaced": 1}}


def make(family, auto_class, **options):
    return auto_class.from_config(tiny_family_config(family, **options))


def outputs_of(model):
    ids = torch.randint(5, VOCAB_SIZE, (2, 12), generator=torch.Generator().manual_seed(5))
    inputs = {"input_ids": ids, "attention_mask": PADDED}
    if type(model).__name__.endswith("MultipleChoice"):
        inputs = {name: tensor[:, None] for name, tensor in inputs.items()}
    output = model(**inputs)
    logits = torch.stack([output.start_logits, output.end_logits]) if "start_logits" in output else output.logits
    return logits[:, :9] if type(model).__name__.endswith("TokenClassification") else logits


@pytest.mark.parametrize(
    ("family", "source"),
    sorted({*zip(FAMILY_NAMES, itertools.cycle(SOURCES)), *(("bert", source) for source in SOURCES)}),
)
def test_a_task_begins_with_the_whole_encoder_and_a_new_head_whatever_head_the_source_has(source, family, tmp_path):
    # ELECTRA's own detector is refused (see below), so here ELECTRA gets other labels.
    labels_of_source = DETECTION if source == "detector" and family != "electra" else {}
    saved = make(family, SOURCES[source], **labels_of_source)
    for parameter in saved.parameters():  # biases, too, which begin at 0
        nn.init.normal_(parameter)
    saved.save_pretrained(tmp_path)
    whole = saved.state_dict()
    encoder = {name: each for name, each in saved.base_model.state_dict().items() if not name.startswith("pooler.")}
    for auto_class, labels in TARGETS:
        model = load_with_head(auto_class, tmp_path, labels=labels)
        assert not is_labelled(model.config)
        assert model.config.num_labels == (len(labels) or (1 if auto_class is CLASSES else 2))
        loaded = model.base_model.state_dict()
        assert {name for name in loaded if not name.startswith("pooler.")} == encoder.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in encoder.items())
        prefix = f"{model.base_model_prefix}."
        head = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(prefix)}
        assert head
        assert not any(torch.equal(tensor, whole.get(name, torch.empty(0))) for name, tensor in head.items())
    model.save_pretrained(tmp_path / "tuned")  # keeps its head for the same labels
    again = load_with_head(auto_class, tmp_path / "tuned", labels=labels).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_electras_detector_whose_last_layer_is_its_head_is_refused(tmp_path):
    with_two_labels(make("electra", AutoModelForPreTraining)).save_pretrained(tmp_path / "detector")
    with pytest.raises(ValueError, match="detector"):
        load_with_head(CLASSES, tmp_path / "detector", labels=TWO_LABELS)


# ---- Fine-tuning: training ----

# All layers read DeBERTa's relative positions and their LayerNorm; its convolution reads the embeddings.
BELOW_ALL_LAYERS = ("embeddings", "encoder.rel_embeddings", "encoder.LayerNorm", "encoder.conv")


def expected_height(model, name):
    below = name.removeprefix(f"{model.base_model_prefix}.")
    numbers = [int(part) for part in below.split(".") if part.isdigit()]
    if numbers:
        return LAYERS - numbers[0]
    return LAYERS + 1 if below.startswith(BELOW_ALL_LAYERS) else 0


@every_family
def test_each_parameter_is_as_far_below_the_head_as_its_layer(family):
    model = make(family, CLASSES)
    heights = layer_heights(model)
    expected = {name: expected_height(model, name) for name, _ in model.named_parameters()}
    assert {name: heights[id(parameter)] for name, parameter in model.named_parameters()} == expected
    assert set(expected.values()) == {0, 1, 2, 3}


@every_family
def test_by_default_every_linear_layer_of_the_stack_gets_an_adapter_and_the_head_is_trained_whole(family):
    model = make(family, CLASSES)
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    of_layers = {name for name in linear if any(part.isdigit() for part in name.split("."))}
    # The classifier, and the layers between it and the encoder.
    heads = {name for name, _ in model.named_parameters() if expected_height(model, name) == 0}
    adapted = add_adapters(model, "encoder", r=2, lora_alpha=4)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    prefix = "base_model.model."
    adapters = {name.removeprefix(prefix).partition(".lora_")[0] for name in trained if "lora_" in name}
    assert adapters == of_layers
    whole = {name.removeprefix(prefix).replace(".modules_to_save.default", "") for name in trained}
    assert {name for name in whole if "lora_" not in name} == {name for name in heads if "final_norm" not in name}


@every_family
def test_dropout_is_all_that_is_set_and_each_field_of_it_is_read(family):
    config = tiny_family_config(family)
    autos = (CLASSES, TAGS, ANSWERS, AutoModelForMultipleChoice)
    classes = [auto for auto in autos if type(config) in auto._model_mapping]
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
def test_the_exchanged_attention_keeps_the_logits_in_half_precision(family, monkeypatch):
    model = make(family, CLASSES, **dict.fromkeys(dropouts_of(tiny_family_config(family)), 0.0)).train()
    ids = torch.arange(5, 29).view(2, 12)
    is_stock = model.config._attn_implementation == "sdpa"
    exchanged = []
    decide = layers._is_faster_by_products
    monkeypatch.setattr(
        layers, "_is_faster_by_products", lambda *args: exchanged.append(decide(*args)) or exchanged[-1]
    )
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(input_ids=ids).logits
        layers.exchange_attention(model)
        torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=0.02, atol=0.02)
    assert any(exchanged) == is_stock


# ---- Fine-tuning: inputs, and a whole run ----


@every_family
def test_a_tokenizer_gives_what_the_family_reads_here_and_where_it_is_saved(family, tokenizer, tmp_path):
    fitted = copy.deepcopy(tokenizer)
    fit_tokenizer(fitted, tiny_family_config(family, pad_token_id=0))
    fitted.save_pretrained(tmp_path)
    for each in (fitted, AutoTokenizer.from_pretrained(tmp_path)):
        encoded = each(["the old river", " ".join(["the mill"] * 200)], padding=True, truncation=True)
        assert ("token_type_ids" in encoded) == (family in WITH_TOKEN_TYPES)
        assert {len(ids) for ids in encoded["input_ids"]} == {MAX_LENGTH}
    make(family, TAGS, pad_token_id=0).save_pretrained(tmp_path)
    tagger = pipeline("token-classification", str(tmp_path))
    assert [token["index"] for token in tagger("the old river")] == [1, 2, 3]
    if family == "modernbert":
        fit_tokenizer(fitted, tiny_family_config(family, max_position_embeddings=8192))
        assert (tokenizer.model_max_length, fitted.model_max_length) == (512, 8192)


def test_longer_sequences_than_a_family_reads_are_refused(tokenizer, tmp_path):
    AutoModel.from_config(tiny_family_config("roberta", pad_token_id=0)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    flags = {"model_name_or_path": tmp_path, "task_name": "rte", "output_dir": tmp_path / "run"}
    with pytest.raises(ValueError, match="max_seq_length"):
        run_finetune(**flags, max_seq_length=65)


def write_rte(directory, number):
    """Writes RTE in GLUE's layout and returns the labels: the first sentence entails the second if it holds `old`."""
    (directory / "RTE").mkdir()
    words = VOCABULARY[10:30]
    labels = [("not_entailment", "entailment")[index % 2] for index in range(number)]
    for split in ("train", "dev", "test"):
        lines = ["index\tsentence1\tsentence2\tlabel"]
        for index, label in enumerate(labels):
            last_word = "old" if label == "entailment" else "mill"
            lines.append(f"{index}\t{words[index % 7]} {words[index % 11]} {last_word}\tthe old river\t{label}")
        if split == "test":
            lines = [line.rpartition("\t")[0] for line in lines]
        (directory / "RTE" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return labels


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")  # the name in old versions
@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_a_family_goes_from_the_command_to_predictions_and_the_submission(family, tokenizer, tmp_path):
    make(family, TAGS, initializer_range=0.02, **DETECTION).save_pretrained(tmp_path / "detector")
    tokenizer.save_pretrained(tmp_path / "detector")
    labels = write_rte(tmp_path, 40)
    exit_code = run_finetune(
        model_name_or_path=tmp_path / "detector",
        task_name="rte",
        data_dir=tmp_path,
        output_dir=tmp_path / "run",
        max_seq_length=40,
        layerwise_lr_decay=0.8,
        dropout=0.05,
        learning_rate=5e-3,
        num_train_epochs=6,
        per_device_train_batch_size=8,
        logging_steps=1000,
        predict=True,
        gradient_checkpointing=True,
        bias_correction=True,
    )
    assert exit_code == 0
    record = json.loads((tmp_path / "run" / "rte" / "seed_42" / "evaluation_record.json").read_text())
    assert record["arguments"]["dropout"] == 0.05
    assert record["model"]["architecture"] == type(make(family, CLASSES)).__name__
    assert record["metrics"]["dev"]["accuracy"] == 1.0
    with zipfile.ZipFile(tmp_path / "run" / "submission" / "glue_submission.zip") as archive:
        lines = archive.read("RTE.tsv").decode().splitlines()
    assert [line.split("\t")[1] for line in lines[1:]] == labels
    (tmp_path / "new.csv").write_text("one,two\nthe garden old,the old river\nthe garden mill,the old river\n")
    words = flag_words(
        disable_tqdm=None,
        model_name_or_path=tmp_path / "run",
        file=tmp_path / "new.csv",
        text_column_name="one",
        second_text_column_name="two",
        output_file=tmp_path / "new.jsonl",
    )
    assert predict.main(words) == 0
    answers = [json.loads(line)["label"] for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert answers == ["entailment", "not_entailment"]


# ---- Cards ----

REPO = "org/name-part"


def card_of(family, part, described=None):
    model = make_pair(family, {"pad_token_id": 0}, sharing="none").config.to_dict()
    record = run_record(model=model, described=described)
    record.data["train"]["max_seq_length"] = 32
    return pretraining_card(record, part, REPO, CARD)


def test_the_head_for_detection_is_published_beside_an_encoder_without_one_and_on_demand_of_electra():
    bert, electra = (make_pair(family).config.to_dict() for family in ("bert", "electra"))
    assert list(repository_ids("org/name", bert)) == ["discriminator", "generator", "detector"]
    assert list(repository_ids("org/name", electra)) == ["discriminator", "generator"]
    for model in (bert, electra):
        assert repository_ids("org/name", model, ["detector"]) == {"detector": "org/name-detector"}
        with pytest.raises(ValueError, match="detector"):
            repository_ids("org/name", {**model, "objective": "replace_mlm"}, ["detector"])


@every_family
def test_the_code_of_the_cards_runs_on_what_was_exported(family, tokenizer, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the code in the card of a pair writes here
    pair = make_pair(family, {"pad_token_id": 0}, sharing="none")
    pair.save_towers(tmp_path, tokenizer)
    pair.save_pretrained(tmp_path / "pair")
    tokenizer.save_pretrained(tmp_path / "pair")
    tasks = {"detector": "token-classification", "generator": "fill-mask"}
    for part, shown in {"detector": "ate", "discriminator": "", "generator": "0.", "pair": ""}.items():
        card = card_of(family, part)
        metadata, body = parts(card)
        assert metadata["tags"][0] == family
        assert metadata.get("pipeline_tag") == tasks.get(part)
        assert family == "electra" or "ELECTRA pair" not in body
        blocks = code_of(card)
        assert blocks
        for block in blocks:
            exec(block.replace(REPO, str(tmp_path / part)).replace("chef", "boy"), {})
        assert shown in capsys.readouterr().out


HUB = {"backbone": "org/modern", "generator_backbone": "org/small"}


@pytest.mark.parametrize(
    ("part", "described", "base"),
    [
        ("detector", {**HUB, "loaded_backbones": ["backbone"]}, "org/modern"),
        ("generator", {**HUB, "loaded_backbones": ["backbone"]}, None),
        ("generator", {**HUB, "loaded_backbones": ["backbone", "generator_backbone"]}, "org/small"),
        ("discriminator", {**HUB, "loaded_backbones": []}, None),
        # A local directory, whose path the record does not keep.
        ("discriminator", {"backbone": "modern", "loaded_backbones": ["backbone"]}, None),
        ("detector", {"continue_from": "org/pair"}, "org/pair"),
    ],
)
def test_the_model_that_a_network_began_as_is_its_base_model(part, described, base):
    metadata, _ = parts(card_of("modernbert", part, described))
    assert metadata.get("base_model") == base
