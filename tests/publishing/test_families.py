"""What is published of pairs of other families than ELECTRA: which parts, and what their cards say and run."""

import pytest

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.publishing.card import pretraining_card
from hf_electra_rtd.publishing.publish import PARTS, repository_ids
from tests.families_for_tests import FAMILY_NAMES, tiny_family_config
from tests.publishing.card_records import CARD, code_of, run_record
from tests.publishing.test_cards import parts


REPO = "org/name-part"
HUB = {"backbone": "org/modern", "generator_backbone": "org/small"}
OTHERS = [name for name in FAMILY_NAMES if name != "electra"]
CLAIMS = ("ELECTRA pair", "ELECTRA-Small", "ELECTRA-Tiny", "published", "original code", "AutoModelForPreTraining")


def pair_of(family, **options):
    configs = {f"{name}_config": tiny_family_config(family, pad_token_id=0) for name in ("generator", "discriminator")}
    return ElectraForRTDPretraining(ElectraRTDConfig(**configs, sharing="none", **options))


def card_of(family, part, described=None, **options):
    record = run_record(model=pair_of(family, **options).config.to_dict(), described=described)
    record.flops["paper"], record.data["train"]["max_seq_length"] = None, 32
    return pretraining_card(record, part, REPO, CARD)


def test_the_head_for_detection_is_published_beside_an_encoder_without_one_and_on_demand_of_electra():
    bert, electra = (pair_of(family).config.to_dict() for family in ("bert", "electra"))
    assert list(repository_ids("org/name", bert)) == ["discriminator", "generator", "detector"]
    assert list(repository_ids("org/name", electra)) == ["discriminator", "generator"]
    assert "one layer more, which computes ELECTRA's head" in card_of("electra", "detector")
    for model in (bert, electra):
        assert repository_ids("org/name", model, ["detector"]) == {"detector": "org/name-detector"}
        with pytest.raises(ValueError, match="detector"):
            repository_ids("org/name", {**model, "objective": "replace_mlm"}, ["detector"])


@pytest.mark.parametrize("part", PARTS)
def test_the_tags_and_sentences_of_a_card_are_of_its_family_and_no_figure_of_electra_stands_beside(part):
    for family in OTHERS:
        metadata, body = parts(card_of(family, part))
        assert metadata["tags"][:3] == [family, "hf-electra-rtd", "pretraining"]
        assert not [claim for claim in CLAIMS if claim in body]
        assert "None" not in body
        assert "on sequences of 32 tokens. It accepts up to 64, but" in body
    detected = {"detector": "token-classification", "generator": "fill-mask"}
    assert metadata.get("pipeline_tag") == detected.get(part)
    assert ("replaced-token-detection" in metadata["tags"]) == (part in ("detector", "discriminator"))


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_code_of_the_cards_runs_on_what_was_exported(family, tokenizer, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the code of a pair writes
    pair = pair_of(family)
    pair.save_towers(tmp_path, tokenizer)
    for save in (pair.save_pretrained, tokenizer.save_pretrained):
        save(tmp_path / "pair")
    for part, shown in {"detector": "ate", "discriminator": "", "generator": "0.", "pair": ""}.items():
        blocks = code_of(card_of(family, part))
        assert len(blocks) == 1 + ((family, part) == ("electra", "discriminator"))
        for block in blocks:
            exec(block.replace(REPO, str(tmp_path / part)).replace("chef", "boy"), {})
        assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "described", "base"),
    [
        ("discriminator", {**HUB, "loaded_backbones": ["backbone"]}, "org/modern"),
        ("detector", {**HUB, "loaded_backbones": ["backbone"]}, "org/modern"),
        ("generator", {**HUB, "loaded_backbones": ["backbone"]}, None),
        ("generator", {**HUB, "loaded_backbones": ["backbone", "generator_backbone"]}, "org/small"),
        ("discriminator", {**HUB, "loaded_backbones": []}, None),
        # A directory, whose place the record does not keep.
        ("discriminator", {"backbone": "modern", "loaded_backbones": ["backbone"]}, None),
        ("detector", {"continue_from": "org/pair"}, "org/pair"),
    ],
)
def test_the_model_that_a_network_began_as_is_its_base_model(part, described, base):
    metadata, body = parts(card_of("modernbert", part, described))
    assert metadata.get("base_model") == base
    assert ("from random weights" in body) == (described.get("loaded_backbones") == [])
