"""Replaced-token detection with encoders of any family."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    ElectraConfig,
    ElectraForPreTraining,
    EuroBertConfig,
    MPNetConfig,
    pipeline,
)

from hf_electra_rtd import ElectraAdamW, ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.configuration_electra_rtd import derive_generator_config
from hf_electra_rtd.data.tokenization import load_tokenizer, save_tokenizer
from hf_electra_rtd.detectors import detection_logits, with_two_labels
from hf_electra_rtd.families import (
    embedding_parameters,
    inputs_of,
    masked_lm_class,
    output_layer,
)
from hf_electra_rtd.generators import predict_slots
from hf_electra_rtd.ops import MaskedSlots
from hf_electra_rtd.sharing import SHARING
from hf_electra_rtd.towers import load_detector
from hf_electra_rtd.training import pretrain
from hf_electra_rtd.training.model import ModelArguments, build_model
from tests.conftest import VOCABULARY, pretraining_flags
from tests.families_for_tests import FAMILY_NAMES, MAX_LENGTH, VOCAB_SIZE, tiny_family_config


# Two more of DeBERTa: the released head that multiplies by the word table, and embeddings narrower than the layers.
KINDS = {
    **{name: (name, {}) for name in FAMILY_NAMES},
    "deberta-v2, legacy head": ("deberta-v2", {"legacy": True}),
    "deberta-v2, narrow": ("deberta-v2", {"legacy": True, "embedding_size": 16, "position_biased_input": True}),
    "roberta of another pad": ("roberta", {"pad_token_id": 0}),
}
PADDED = torch.ones(2, 12, dtype=torch.long)
PADDED[1, 9:] = 0


def config_of(kind, **options):
    name, own = KINDS[kind]
    return tiny_family_config(name, **{**own, **options})


def make_pair(kind="bert", **options):
    torch.manual_seed(0)
    return ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=config_of(kind), **options)).eval()


@pytest.fixture(scope="module")
def masked():
    """Masked sequences and their slots; a [PAD] is among the originals."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, VOCAB_SIZE, (2, 12), generator=generator)
    ids[0, 3] = 0
    positions = torch.tensor([[3, 6, 8], [1, 2, 5]])
    labels = ids.gather(1, positions)
    return {"input_ids": ids.scatter(1, positions, 4), "masked_positions": positions, "labels": labels}


# ---- One family ----


@pytest.mark.parametrize("kind", KINDS)
def test_the_slots_have_the_logits_of_the_stock_model(kind, masked):
    config = config_of(kind)
    tower = masked_lm_class(config.model_type)(config).eval()
    inputs = {"input_ids": masked["input_ids"], "attention_mask": PADDED, "token_type_ids": torch.zeros_like(PADDED)}
    slots = MaskedSlots(masked["masked_positions"], masked["labels"])
    with torch.no_grad():
        found = predict_slots(tower, slots, None, True, **inputs)
        # Without our positions: these sequences hold no [PAD] but at their ends.
        logits = tower(input_ids=masked["input_ids"], attention_mask=PADDED).logits
    expected = logits.gather(1, slots.positions[..., None].expand(-1, -1, VOCAB_SIZE))
    torch.testing.assert_close(found.logits, expected, rtol=1e-6, atol=1e-6)
    losses = F.cross_entropy(expected.flatten(0, 1), slots.labels.flatten(), reduction="none")
    torch.testing.assert_close(found.loss.losses.flatten(), losses, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "electra" not in kind])
def test_two_labels_lose_what_one_logit_loses(kind, masked):
    pair = make_pair(kind)
    output = pair(**masked, attention_mask=PADDED)
    tower, ids = pair.discriminator, output.corrupted_input_ids
    both = tower(**inputs_of(tower.config, {"input_ids": ids, "attention_mask": PADDED})).logits.double()
    original = masked["input_ids"].scatter(1, masked["masked_positions"], masked["labels"])
    real = PADDED.bool()
    expected = F.cross_entropy(both[real], ids.ne(original)[real].long())
    assert output.discriminator_loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "sharing"), [*((kind, "embeddings") for kind in KINDS), *(("modernbert", each) for each in SHARING)]
)
def test_a_pair_of_any_family_trains_and_is_saved_whole(kind, sharing, masked, tmp_path):
    pair = make_pair(kind, sharing=sharing)
    before = {name: parameter.clone() for name, parameter in pair.named_parameters()}
    pair.train()(**masked, attention_mask=PADDED).loss.backward()
    unused = [name for name, parameter in pair.named_parameters() if parameter.grad is None]
    assert not [name for name in unused if "conv" not in name], "every tensor learns"
    torch.optim.SGD(pair.parameters(), lr=1e-3).step()
    assert any(not torch.equal(parameter, before[name]) for name, parameter in pair.named_parameters())
    pair.save_pretrained(tmp_path)
    again, inputs = ElectraForRTDPretraining.from_pretrained(tmp_path), {"attention_mask": PADDED}
    assert type(again.generator) is type(pair.generator)
    for each in (pair, again):
        each.eval()
    ids = masked["input_ids"]
    torch.testing.assert_close(again.discriminate(ids, **inputs).logits, pair.discriminate(ids, **inputs).logits)
    mine, other = pair.generator.base_model, pair.discriminator.base_model
    for theirs, name in pair.sharing.shared_pairs(mine, other):
        assert mine.get_parameter(theirs) is other.get_parameter(name)


def tables_of(tower):
    """The word table, and the position table where there is one."""
    positions = getattr(tower.base_model.embeddings, "position_embeddings", None)
    return [each.weight for each in (tower.get_input_embeddings(), positions) if each is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_disentangled_embeddings_are_the_generators_present_tables_and_differences(kind, masked):
    """After a joint step: not a copy that is synchronised, nor a frozen table without differences."""
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
        for table, live in zip(tables_of(alone), tables_of(pair.generator), strict=True):
            table.add_(live)
    ids, real = masked["input_ids"], PADDED.bool()
    logits = pair.discriminate(ids, attention_mask=PADDED).logits
    for native in (alone, pair.native_discriminator().eval()):
        found = detection_logits(native, **inputs_of(native.config, {"input_ids": ids, "attention_mask": PADDED}))
        torch.testing.assert_close(found[real], logits[real], rtol=1e-9, atol=1e-12)
    logits.sum().backward()
    assert all(parameter.grad is None for parameter in pair.generator.parameters())
    assert all(table.grad is not None for table in tables_of(pair.discriminator))


def test_what_is_shared_of_embeddings_ends_before_a_projection():
    def names(kind):
        return embedding_parameters(make_pair(kind).discriminator.base_model)

    tables = names("deberta-v2, narrow")
    assert tables == ("embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight")
    assert names("modernbert") == ("embeddings.tok_embeddings.weight", "embeddings.norm.weight")
    assert "embeddings.LayerNorm.bias" in names("bert")


def test_a_generator_is_a_smaller_one_of_the_same_family():
    sizes = {}
    for kind in KINDS:
        config = derive_generator_config(config_of(kind))
        sizes[kind] = config.hidden_size, config.num_hidden_layers
        assert config.vocab_size == VOCAB_SIZE
        assert len(getattr(config, "layer_types", [0])) == config.num_hidden_layers or config.model_type == "electra"
    assert sizes.pop("electra") == (8, 2)
    assert set(sizes.values()) == {(32, 1)}
    narrow = derive_generator_config(config_of("bert"), 0.5, 1.0)
    assert (narrow.hidden_size, narrow.num_attention_heads, narrow.intermediate_size) == (16, 1, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampled_pad_is_a_word_as_any_other(kind, masked):
    pair = make_pair(kind)
    config, ids = pair.config.discriminator_config, masked["input_ids"].clone()
    ids[:, 4] = config.pad_token_id
    shifted = pair.discriminate(ids).logits
    first = config.pad_token_id + 1 if "roberta" in kind or kind == "camembert" else None
    places = {} if first is None else {"position_ids": torch.arange(first, first + ids.shape[1])[None]}
    expected = detection_logits(pair.discriminator, input_ids=ids, **places)
    torch.testing.assert_close(shifted, expected, rtol=1e-5, atol=1e-5)
    for tower in pair.towers.values():
        tables = [module for module in tower.modules() if isinstance(module, torch.nn.Embedding)]
        assert {table.padding_idx for table in tables} == {None}
    shifted.sum().backward()
    assert pair.get_input_embeddings().weight.grad[config.pad_token_id].abs().sum() > 0


@pytest.mark.parametrize("sharing", ["embeddings", "gdes"])
@pytest.mark.parametrize("kind", KINDS)
def test_new_words_begin_as_the_mean_of_their_pieces(kind, sharing, masked):
    pair, ids = make_pair(kind, sharing=sharing), masked["input_ids"]
    before = pair.discriminate(ids).logits
    pair.append_tokens([[7, 8]])
    torch.testing.assert_close(pair.discriminate(ids).logits, before)
    words, layer = pair.native_discriminator().get_input_embeddings().weight, output_layer(pair.generator)
    torch.testing.assert_close(words[-1], words[7:9].mean(dim=0))
    assert layer.weight is pair.generator.get_input_embeddings().weight
    assert layer.bias[-1] == layer.bias[7:9].min()
    assert pair(**{**masked, "labels": masked["labels"].clamp(min=VOCAB_SIZE)}).loss.isfinite()


def test_token_types_reach_only_who_has_them(masked):
    ids, types = masked["input_ids"], torch.ones(2, 12, dtype=torch.long)
    changed = set()
    for kind in FAMILY_NAMES:
        pair = make_pair(kind)
        outputs = [pair.discriminate(ids, token_type_ids=each).logits for each in (None, types)]
        if not torch.equal(*outputs):
            changed.add(kind)
    assert changed == {"bert", "convbert", "electra"}


@pytest.mark.parametrize("kind", FAMILY_NAMES)
def test_dropout_is_known_in_every_family_and_heads_that_detect_have_none(kind):
    pair = make_pair(kind, sampling_dropout=False)
    heads = [child for child in pair.discriminator.children() if isinstance(child, torch.nn.Dropout)]
    assert [head.p for head in heads] == [0.0] * (kind != "electra")
    assert pair.config.samples_in_second_pass


# ---- Two families ----


def test_towers_of_two_families_share_words_or_nothing(masked):
    def pair_of(sharing):
        configs = {"generator_config": config_of("bert"), "discriminator_config": config_of("modernbert")}
        return ElectraForRTDPretraining(ElectraRTDConfig(**configs, sharing=sharing))

    pair = pair_of("word")
    words = pair.discriminator.model.embeddings.tok_embeddings.weight
    assert pair.generator.bert.embeddings.word_embeddings.weight is words
    assert pair.generator.cls.predictions.decoder.weight is words
    pair(**masked).loss.backward()
    with pytest.raises(ValueError, match=r"one family, and these are bert and modernbert\. Take"):
        pair_of("embeddings")


def test_an_unknown_family_works_the_slow_way_with_a_notice(masked, caplog):
    torch.manual_seed(0)
    config = MPNetConfig(vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    pair = ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=config)).eval()
    assert "family 'mpnet' computes the logits of all tokens, which is slow" in caplog.text
    output = pair(**masked, output_generator_logits=True)
    logits = pair.generator(masked["input_ids"]).logits
    expected = logits.gather(1, masked["masked_positions"][..., None].expand(-1, -1, VOCAB_SIZE))
    torch.testing.assert_close(output.generator_logits, expected)


@pytest.mark.parametrize("sharing", ["embeddings", "gdes"])
def test_towers_with_other_tables_share_nothing_of_them(sharing):
    configs = [config_of("deberta-v2", position_biased_input=biased) for biased in (True, False)]
    for generator, discriminator in (configs, configs[::-1]):
        towers = {"generator_config": generator, "discriminator_config": discriminator}
        with pytest.raises(ValueError, match="the same max_position_embeddings"):
            ElectraForRTDPretraining(ElectraRTDConfig(**towers, sharing=sharing))


# ---- Exports ----

_STOCK = """
import json, sys, torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForTokenClassification
assert not any("hf_electra" in name for name in sys.modules)
found = {}
for place, classes in json.load(open(sys.argv[1])).items():
    inputs = torch.load(place + "/inputs.pt")
    for name, class_name in classes.items():
        others = {"discriminator": AutoModel, "detector": AutoModelForTokenClassification}
        auto = others.get(name, AutoModelForMaskedLM)
        model = auto.from_pretrained(place + "/" + name).eval()
        assert type(model).__name__ == class_name, (type(model), class_name)
        with torch.no_grad():
            found[place + "/" + name] = model(**inputs)[0]
torch.save(found, sys.argv[2])
"""


@pytest.mark.slow
def test_exports_give_the_same_without_this_package(tmp_path, masked):
    expected, classes = {}, {}
    for kind in KINDS:
        pair, place = make_pair(kind, sharing="gdes"), str(tmp_path / kind)
        pair.save_towers(place)
        inputs = {"input_ids": masked["input_ids"], "attention_mask": PADDED}
        names = {"discriminator": AutoModel, "detector": AutoModelForTokenClassification}
        mapped = {name: auto._model_mapping[type(config_of(kind))] for name, auto in names.items()}
        classes[place] = {name: each.__name__ for name, each in mapped.items()}
        classes[place]["generator"] = type(pair.generator).__name__
        read = inputs_of(pair.config.discriminator_config, inputs)  # as stock models count positions without a [PAD]
        torch.save(read, f"{place}/inputs.pt")
        alone = pair.native_discriminator().eval()
        expected[f"{place}/discriminator"] = alone.base_model(**read)[0]
        expected[f"{place}/detector"] = pair.discriminate(inputs["input_ids"], attention_mask=PADDED).logits
        expected[f"{place}/generator"] = pair.generator(**read).logits
        assert json.loads((tmp_path / kind / "discriminator" / "config.json").read_text()).get("id2label") is None
    (tmp_path / "classes.json").write_text(json.dumps(classes))
    command = [sys.executable, "-c", _STOCK, str(tmp_path / "classes.json"), str(tmp_path / "found.pt")]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    for name, found in torch.load(tmp_path / "found.pt").items():
        if name.endswith("detector"):
            found = found[..., 1] - found[..., 0]
        real = PADDED.bool()
        torch.testing.assert_close(found[real], expected[name][real], rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_a_layer_more_computes_electras_head_exactly(activation):
    torch.manual_seed(1)
    config = ElectraConfig(vocab_size=50, hidden_size=64, intermediate_size=256, num_attention_heads=2)
    config.num_hidden_layers, config.hidden_act = 3, activation
    tower = ElectraForPreTraining(config).eval()
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    ids, state = torch.randint(50, (4, 20)), torch.get_rng_state()
    detector = with_two_labels(tower.double())
    assert torch.equal(torch.get_rng_state(), state), "an export must not change what a run draws"
    expected, found = detection_logits(tower, input_ids=ids), detection_logits(detector, input_ids=ids)
    assert expected.abs().max() > 1
    # What is left is z^2 / 2 c^2 of z, for c = 2^15.
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("options", [{"intermediate_size": 80}, {"hidden_act": "tanh"}])
def test_a_head_that_a_layer_cannot_compute_has_no_detector(options, caplog):
    config = config_of("electra", **options)
    assert with_two_labels(ElectraForPreTraining(config)) is None
    assert "No detector/ is written" in caplog.text


def test_a_stock_pipeline_reads_a_detector(tmp_path, tokenizer):
    config = config_of("bert", vocab_size=len(VOCABULARY))
    ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=config)).save_towers(tmp_path, tokenizer)
    judge = pipeline("token-classification", str(tmp_path / "detector"), device="cpu")
    assert {token["entity"] for token in judge("w001 w002")} <= {"original", "replaced"}
    assert detection_logits(load_detector(tmp_path / "detector"), input_ids=torch.tensor([[2, 7, 3]])).shape == (1, 3)


# ---- From flags ----


@pytest.fixture(scope="module")
def places(tmp_path_factory, tokenizer):
    """A configuration file, a bare encoder and a masked language model of BERT and ModernBERT, with a tokenizer."""
    root = tmp_path_factory.mktemp("backbones")
    for kind in ("bert", "modernbert"):
        config = config_of(kind, vocab_size=len(VOCABULARY))
        config_of(kind).to_json_file(root / f"{kind}.json", use_diff=False)  # of another vocabulary
        torch.manual_seed(3)
        for name, auto in {"mlm": AutoModelForMaskedLM, "bare": AutoModel}.items():
            auto.from_config(config).save_pretrained(root / f"{kind}-{name}")
            save_tokenizer(tokenizer, root / f"{kind}-{name}")
    several = config_of("bert", vocab_size=len(VOCABULARY), num_labels=9)
    AutoModelForTokenClassification.from_config(several).save_pretrained(root / "bert-ner")
    AutoModelForMaskedLM.from_config(config_of("bert")).save_pretrained(root / "bert-alone")
    for kind in ("deberta-v2", "modernbert"):  # with rows for which there is no token
        wide = config_of(kind, vocab_size=len(VOCABULARY) + 9)
        AutoModelForMaskedLM.from_config(wide).save_pretrained(root / f"{kind}-wide")
        save_tokenizer(tokenizer, root / f"{kind}-wide")
    with_two_labels(ElectraForPreTraining(config_of("electra"))).save_pretrained(root / "electra-detector")
    return root


def build(tokenizer, **flags):
    return build_model(ModelArguments(**flags), tokenizer, 16)


@pytest.mark.parametrize("sharing", ["embeddings", "gdes", "none"])
@pytest.mark.parametrize("source", ["bert-mlm", "modernbert-mlm", "bert-bare"])
def test_weights_are_gone_on_from_and_the_generator_begins_with_the_first_layers(places, tokenizer, source, sharing):
    auto, source = AutoModelForMaskedLM if source.endswith("mlm") else AutoModel, str(places / source)
    pair, stock = build(tokenizer, backbone=source, sharing=sharing), auto.from_pretrained(source)
    for mine, other in ((pair.native_discriminator(), stock), (pair.generator, stock)):
        theirs = other.base_model.state_dict()
        for name, tensor in mine.base_model.state_dict().items():
            torch.testing.assert_close(tensor, theirs[name], msg=name)
    assert pair.generator.config.num_hidden_layers == 1
    if auto is AutoModelForMaskedLM:
        layer, expected = output_layer(pair.generator), output_layer(stock)
        assert torch.equal(layer.bias, expected.bias)
        assert torch.equal(layer.weight, expected.weight)


@pytest.mark.parametrize("sharing", ["embeddings", "word", "gdes", "none"])
@pytest.mark.parametrize("name", ["generator", "generator_backbone"])
def test_a_trained_generator_keeps_its_tables_beside_a_new_discriminator(places, tokenizer, name, sharing):
    flags = {"backbone": str(places / "bert.json"), name: str(places / "bert-mlm"), "sharing": sharing}
    pair, stock = build(tokenizer, **flags), AutoModelForMaskedLM.from_pretrained(places / "bert-mlm")
    for tensor, other in zip(pair.generator.parameters(), stock.parameters(), strict=True):
        assert torch.equal(tensor, other)
    if sharing == "gdes":
        assert not pair.get_input_embeddings().weight.any()


@pytest.mark.parametrize("flags", [{}, {"generator_type": "uniform"}, {"sharing": "gdes"}])
@pytest.mark.parametrize("kind", ["deberta-v2", "modernbert"])
def test_rows_without_a_token_are_left_out(places, tokenizer, kind, flags):
    pair = build(tokenizer, backbone=str(places / f"{kind}-wide"), **flags)
    stock = AutoModelForMaskedLM.from_pretrained(places / f"{kind}-wide")
    rows = stock.get_input_embeddings().weight[: len(tokenizer)]
    assert torch.equal(pair.native_discriminator().get_input_embeddings().weight, rows)
    assert {config.vocab_size for config in pair.config.towers.values()} == {len(tokenizer)}
    if pair.generator is not None:
        assert len(output_layer(pair.generator).bias) == len(tokenizer)
        ids = torch.tensor([[2, 4, 7, 3]])
        found = pair.generator(**inputs_of(pair.generator.config, {"input_ids": ids})).logits
        assert found.shape[-1] == len(tokenizer)


def test_a_configuration_makes_new_networks_for_the_tokenizer(places, tokenizer):
    pair = build(tokenizer, backbone=str(places / "modernbert.json"), generator_layers=1.0)
    assert pair.generator.config.num_hidden_layers == 2
    assert pair.config.discriminator_config.vocab_size == len(tokenizer)
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    assert {name: getattr(pair.config.discriminator_config, f"{name}_token_id") for name in ids} == ids
    drawn = build(tokenizer, backbone=str(places / "bert-mlm"), from_scratch=True)
    stock = AutoModelForMaskedLM.from_pretrained(places / "bert-mlm")
    assert not torch.equal(drawn.get_input_embeddings().weight, stock.get_input_embeddings().weight)


def test_weights_without_a_tokenizer_are_not_trained_with_another(places):
    with pytest.raises(ValueError, match="weights without a tokenizer"):
        _ = ModelArguments(backbone=str(places / "bert-alone")).tokenizer_source
    assert ModelArguments(backbone=str(places / "bert.json")).tokenizer_source is None


def test_the_generator_may_be_of_another_family_and_frozen(places, tokenizer):
    flags = {"backbone": str(places / "modernbert.json")}
    pair = build(tokenizer, **flags, generator_backbone=str(places / "bert.json"), sharing="word")
    assert pair.generator.get_input_embeddings().weight is pair.get_input_embeddings().weight
    frozen = build(tokenizer, **flags, generator=str(places / "bert-mlm"), freeze_generator=True)
    stock = AutoModelForMaskedLM.from_pretrained(places / "bert-mlm")
    assert torch.equal(output_layer(frozen.generator).weight, output_layer(stock).weight)
    assert not any(parameter.requires_grad for parameter in frozen.generator.parameters())
    other = build(tokenizer, **flags, generator_backbone=str(places / "bert-mlm"), freeze_generator=True)
    assert torch.equal(output_layer(other.generator).weight, output_layer(stock).weight)
    named = ModelArguments(**flags, generator=str(places / "bert-mlm"), sharing="none")
    assert named.tokenizer_source == str(places / "bert-mlm")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"backbone": "bert.json", "generator_hidden_size": 2.0}, "larger than the discriminator: choose other"),
        ({"backbone": "bert.json", "generator_backbone": "modernbert.json"}, "Take sharing='word' or 'none'"),
        ({"backbone": "bert.json", "freeze_generator": True}, "would freeze an untrained generator"),
        ({"backbone": "nothing"}, "nothing cannot be loaded"),
        ({"backbone": "bert-alone"}, "The generator has 120 tokens, the tokenizer"),
        ({"discriminator": "bert-ner"}, "bert-ner"),
        ({"generator": "bert-mlm"}, r"of the family 'bert' needs a discriminator of its family: name one"),
        ({"backbone": "bert.json", "objective": "mlm", "generator_layers": 0.5}, "has no generator network"),
        ({"backbone": "electra-detector"}, "the last layer of ELECTRA's detector is the head of detection"),
        ({"backbone": "bert-mlm", "max_seq_length": MAX_LENGTH + 1}, f"Take at most {MAX_LENGTH}"),
    ],
)
def test_flags_that_make_no_pair_are_refused(places, tokenizer, monkeypatch, flags, message):
    monkeypatch.chdir(places)
    flags = dict(flags)
    length = flags.pop("max_seq_length", 16)
    with pytest.raises(ValueError, match=message):
        build_model(ModelArguments(**flags), tokenizer, length)


def test_a_run_of_another_family_leaves_what_stock_transformers_loads(tmp_path, corpus, capsys):
    kind = "modernbert"
    (tmp_path / "backbone.json").write_text(config_of(kind).to_json_string(use_diff=False))
    backbone = {"backbone": tmp_path / "backbone.json", "model_config": None}
    flags = pretraining_flags(tmp_path, corpus, tmp_path / "run", **backbone)
    pretrain.main([*flags, "--sharing", "gdes", "--initialization", "stock"])
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "holds discriminator/, generator/, detector/ for stock transformers" in shown
    tokenizer = load_tokenizer(str(tmp_path / "run" / "discriminator"))
    assert tokenizer.model_max_length == MAX_LENGTH
    encoder = AutoModel.from_pretrained(tmp_path / "run" / "discriminator").eval()
    ids = torch.tensor([[tokenizer.cls_token_id, 7, 8, tokenizer.sep_token_id]])
    pair = ElectraForRTDPretraining.from_pretrained(tmp_path / "run").eval()
    hidden = pair.native_discriminator().eval().base_model(ids)[0]
    torch.testing.assert_close(encoder(ids)[0], hidden)
    with pytest.raises(ValueError, match="initialization=neighbours"):
        pretrain.main([*flags, "--initialization", "neighbours", "--overwrite_output_dir"])


def test_a_family_whose_word_table_lies_at_the_root_shares_it():
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 4, "intermediate_size": 64}
    towers = [EuroBertConfig(num_hidden_layers=layers, **sizes, **ids) for layers in (1, 2)]
    config = ElectraRTDConfig(generator_config=towers[0], discriminator_config=towers[1])
    model = ElectraForRTDPretraining(config)
    tables = [tower.get_input_embeddings().weight for tower in model.towers.values()]
    assert tables[0] is tables[1]
