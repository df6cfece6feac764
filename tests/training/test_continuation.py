"""Continued training of a pair: finding both towers by one name, the recipe, new words, and the loss on old text."""

import shutil
import sys
from dataclasses import fields

import pytest
import torch
from transformers import ElectraConfig

from hf_electra_rtd import ElectraForRTDPretraining, PretrainingRecord, RTDTrainingArguments
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.pair.places import identify
from hf_electra_rtd.publishing.card import CardArguments, pretraining_card
from hf_electra_rtd.training.model import ModelArguments, build_model, recipe_defaults
from hf_electra_rtd.training.pretrain import main
from tests.conftest import VOCABULARY, make_text, pretraining_flags, tiny_config


IDS = torch.tensor([[2, 10, 11, 12, 20, 3], [2, 30, 31, 9, 14, 3]])


def logits(pair):
    pair.eval()
    with torch.no_grad():
        return pair(IDS).logits, None if pair.generator is None else pair.generator(IDS).logits


def given(**flags):
    """Returns the values of all flags, with None for those that are not given."""
    return {field.name: None for type_ in (ModelArguments, RTDTrainingArguments) for field in fields(type_)} | flags


# ---- Finding the towers ----


@pytest.fixture
def places(finished_run, tokenizer, tmp_path):
    """Saves the pair of a finished run in every supported form. Returns the paths by form, and the pair."""
    pair = ElectraForRTDPretraining.from_pretrained(finished_run)
    pair.save_towers(tmp_path / "towers", tokenizer)
    pair.save_pretrained(tmp_path / "pair")
    tokenizer.save_pretrained(tmp_path / "pair")
    named = {name: tmp_path / "hub" / f"electra-small-{name}" for name in pair.towers}
    for name, place in named.items():
        shutil.copytree(tmp_path / "towers" / name, place)
    places = {"run": finished_run, "checkpoint": finished_run / "checkpoint-4", "pair": tmp_path / "pair"}
    places |= {"towers": tmp_path / "towers", "discriminator": tmp_path / "towers" / "discriminator"}
    return {**places, "named": named["discriminator"]}, pair


@pytest.mark.parametrize("form", ["run", "checkpoint", "pair", "towers", "discriminator", "named"])
def test_both_towers_are_found_and_go_on_as_they_were(places, tokenizer, form, caplog):
    known, pair = places
    arguments = ModelArguments(continue_from=str(known[form]))
    assert load_tokenizer(arguments.tokenizer_source).get_vocab() == tokenizer.get_vocab()
    built = build_model(arguments, tokenizer, 32)
    for now, before in zip(logits(built), logits(pair), strict=True):
        assert torch.equal(now, before)
    for name, parameter in built.named_parameters():
        assert torch.equal(parameter, pair.get_parameter(name)), name
    assert (built.config.sharing, arguments.initialization) == ("embeddings", None)
    assert "as wide as" not in caplog.text  # the generator is half as wide


@pytest.mark.parametrize("before", ["none", "embeddings", "gdes"])
@pytest.mark.parametrize("now", [None, "none", "embeddings", "gdes"])
def test_what_is_shared_follows_from_the_pair_or_from_the_flag(tmp_path, tokenizer, caplog, before, now):
    pair = ElectraForRTDPretraining(tiny_config(sharing=before, temperature=0.5))
    with torch.no_grad():  # with 'gdes', this table began at zero
        pair.get_input_embeddings().weight.add_(0.1 * torch.randn(55, 16))
    pair.save_pretrained(tmp_path)
    built = build_model(ModelArguments(continue_from=str(tmp_path), sharing=now), tokenizer, 32)
    assert (built.config.sharing, built.config.temperature) == (now or before, 0.5)
    torch.testing.assert_close(logits(built)[0], logits(pair)[0])  # not bit for bit: with 'gdes', the table is a sum
    if now != "embeddings" or before == now:  # else the generator takes the discriminator's tables
        assert torch.equal(logits(built)[1], logits(pair)[1])
    tables = {id(tower.get_input_embeddings().weight) for tower in built.towers.values()}
    assert len(tables) == (1 if (now or before) == "embeddings" else 2)
    assert ("replaces tensors of the generator" in caplog.text) == (now == "embeddings" != before)


@pytest.mark.parametrize("options", [{"objective": "all_tokens_mlm"}, {"objective": "mlm"}], ids=str)
def test_heads_go_on_too_and_an_objective_without_generator_needs_none(tmp_path, tokenizer, options):
    pair = ElectraForRTDPretraining(tiny_config(**options))
    pair.save_pretrained(tmp_path)
    built = build_model(ModelArguments(continue_from=str(tmp_path)), tokenizer, 32)
    assert vars(built.config).items() >= options.items()
    assert dict(built.named_parameters()).keys() == dict(pair.named_parameters()).keys()
    for name, parameter in pair.named_parameters():
        assert torch.equal(built.get_parameter(name), parameter), name
    if pair.main_head is not None:
        with_new = build_model(ModelArguments(continue_from=str(tmp_path), new_generator=True), tokenizer, 32)
        for name, parameter in pair.main_head.named_parameters():
            assert torch.equal(with_new.main_head.get_parameter(name), parameter), name


def test_rows_of_a_pair_that_stand_for_no_token_are_left_out(tmp_path, tokenizer):
    pair = ElectraForRTDPretraining(tiny_config())
    pair.resize_token_embeddings(pad_to_multiple_of=64)
    pair.save_pretrained(tmp_path)
    built = build_model(ModelArguments(continue_from=str(tmp_path)), tokenizer, 32)
    assert [network.vocab_size for network in built.config.towers.values()] == [len(tokenizer)] * 2
    torch.testing.assert_close(logits(built)[0], logits(pair)[0])
    torch.testing.assert_close(logits(built)[1], logits(pair)[1][..., : len(tokenizer)])


@pytest.mark.parametrize(
    ("generator", "max_seq_length", "message"),
    [
        ("generator", 600, "max_position_embeddings"),
        ("", 32, "Name one of its networks"),
        ("generator/config.json", 32, "a trained masked language model"),
    ],
)
def test_a_generator_that_does_not_fit_or_is_none_is_named(tmp_path, tokenizer, generator, max_seq_length, message):
    ElectraForRTDPretraining(tiny_config()).save_towers(tmp_path, tokenizer)
    arguments = ModelArguments(generator=str(tmp_path / generator))
    with pytest.raises(ValueError, match=message):
        build_model(arguments, tokenizer, max_seq_length)


@pytest.mark.parametrize("form", ["run", "towers", "named"])
def test_a_new_generator_has_a_quarter_of_the_width_or_as_told(places, tokenizer, form):
    known, pair = places
    for fractions, width in (({}, 8), ({"generator_hidden_size": 0.5}, 16)):
        given = ModelArguments(continue_from=str(known[form]), new_generator=True, **fractions)
        built = build_model(given, tokenizer, 32)
        assert built.generator.config.hidden_size == width
        assert torch.equal(logits(built)[0], logits(pair)[0])
        table = built.generator.get_input_embeddings().weight
        assert table is built.get_input_embeddings().weight
    shutil.rmtree(known["towers"] / "generator")
    for place in (known["towers"], known["discriminator"]):
        with pytest.raises(ValueError, match="--new_generator"):
            _ = ModelArguments(continue_from=str(place)).plan
    assert build_model(ModelArguments(continue_from=str(known["towers"]), new_generator=True), tokenizer, 32).generator


def test_a_discriminator_of_the_hub_has_its_generator_beside_it_and_one_as_wide_is_warned_of(monkeypatch, caplog):
    released = {
        "google/electra-small-discriminator": ElectraConfig(architectures=["ElectraForPreTraining"]).to_dict(),
        "google/electra-small-generator": ElectraConfig(architectures=["ElectraForMaskedLM"]).to_dict(),
    }
    monkeypatch.setattr("hf_electra_rtd.pair.places.read_config", released.__getitem__)
    monkeypatch.setattr(
        "hf_electra_rtd.training.model.make_pair", lambda plan, *_: ElectraForRTDPretraining(plan.config)
    )
    name = "google/electra-small-discriminator"
    arguments = ModelArguments(continue_from=name)
    plan = arguments.plan
    assert (plan.discriminator.place, plan.generator.place) == (name, "google/electra-small-generator")
    assert plan.tokenizers == (name,)
    build_model(arguments, range(30522), 128)
    assert "as wide as the discriminator (256)" in caplog.text
    assert ModelArguments(continue_from=name, new_generator=True).plan.generator.place is None
    defaults, planned = recipe_defaults(given(continue_from=name))
    assert (defaults["size"], defaults["learning_rate"], defaults["max_steps"]) == ("small++", 5e-5, 400_000)
    assert planned.config.to_dict() == plan.config.to_dict()
    for fractions, size in (({}, "small"), ({"generator_hidden_size": 1.0}, "small++")):
        flags = {"continue_from": name, "new_generator": True, **fractions}
        assert recipe_defaults(given(**flags))[0]["size"] == size
    with pytest.raises(ValueError, match="ElectraForMaskedLM"):
        _ = ModelArguments(continue_from="google/electra-small-generator", new_generator=True).plan


@pytest.mark.parametrize("name", SIZES)
def test_the_recipe_is_that_of_the_size_with_a_tenth_of_rates_and_steps(tmp_path, name):
    shape = {**SIZES[name].architecture, "num_hidden_layers": SIZES[name].architecture["num_hidden_layers"]}
    tiny = ElectraConfig(vocab_size=55, **shape)
    for tower, share in (("generator", SIZES[name].generator_hidden_size), ("discriminator", 1)):
        tiny.hidden_size = round(share * shape["hidden_size"])
        tiny.num_attention_heads = 1
        tiny.save_pretrained(tmp_path / tower)
    defaults, _ = recipe_defaults(given(continue_from=str(tmp_path)))
    recipe = SIZES[name].pretraining
    assert defaults["size"] == name
    scaled = [flag for flag in ("learning_rate", "generator_learning_rate", "max_steps") if flag in recipe]
    assert all(defaults[flag] == recipe[flag] / 10 for flag in scaled)
    assert (defaults["warmup_steps"], defaults["bias_correction"], defaults["eval_on_start"]) == (0.06, True, True)


# ---- New words ----


PIECES = [[10, 52, 53], [11, 52], [20, 30, 31, 10]]
KINDS = [*({"sharing": name} for name in ("none", "word", "embeddings", "all", "gdes")), {"objective": "mlm"}]


@pytest.mark.parametrize("options", [*KINDS, {"objective": "replace_mlm", "sharing": "none"}], ids=str)
def test_new_rows_are_the_mean_of_their_pieces_and_everything_else_stays(tmp_path, options):
    pair = ElectraForRTDPretraining(tiny_config(**options)).eval()
    with torch.no_grad():
        for parameter in pair.parameters():  # biases and deltas begin at zero
            parameter.add_(0.1 * torch.randn_like(parameter))
    tied = {name: id(p) for name, p in pair.named_parameters(remove_duplicate=False)}
    before = logits(pair)
    old = {name: tower.state_dict() for name, tower in native_towers(pair).items()}
    old = {name: {key: value.clone() for key, value in tensors.items()} for name, tensors in old.items()}
    pair.append_tokens(PIECES)
    for now, then in zip(logits(pair), before, strict=True):
        if then is not None:  # 1e-6: a product of another width may be summed in another order
            torch.testing.assert_close(now[..., : then.shape[-1]], then, rtol=0, atol=1e-6)
    groups = [
        sorted(sorted(name for name in names if names[name] == each) for each in set(names.values()))
        for names in (tied, {name: id(p) for name, p in pair.named_parameters(remove_duplicate=False)})
    ]
    assert groups[0] == groups[1]  # the same tensors are tied as before
    for place in (None, tmp_path):
        if place is not None:
            pair.save_pretrained(place)
            pair = ElectraForRTDPretraining.from_pretrained(place)
        assert {config.vocab_size for config in pair.config.towers.values()} == {58}
        for name, tower in native_towers(pair).items():
            for key, tensor in tower.state_dict().items():
                known = old[name][key]
                torch.testing.assert_close(tensor[: len(known)] if tensor.dim() else tensor, known)
                if len(tensor) == 58:
                    wanted = [known[ids].min() if known.dim() == 1 else known[ids].mean(dim=0) for ids in PIECES]
                    torch.testing.assert_close(tensor[55:], torch.stack(wanted))


def native_towers(pair):
    return {**pair.towers, "discriminator": pair.native_discriminator()}


# ---- The command ----


@pytest.fixture
def go_on(tmp_path, finished_run, monkeypatch):
    """Returns a function that runs the command on new text, and returns the directory of the run."""
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd pretrain"])
    words = 5 * ["gardenings", "morningeds"] + 4 * ["riverings"]
    (tmp_path / "new.txt").write_text(make_text(40, seed=5) + "\n\n" + " the mill .\n\n".join(words) + "\n")
    (tmp_path / "old.txt").write_text(make_text(6, seed=9))

    def run(*flags, output_dir="run", **options):
        options = {"model_config": None, "tokenizer": None, "continue_from": finished_run, **options}
        directory = tmp_path / output_dir
        argv = pretraining_flags(tmp_path, tmp_path / "new.txt", directory, *flags, **options)
        assert main(argv) == 0
        return directory

    return run


def test_a_run_goes_on_with_new_words_and_says_what_it_forgets(go_on, tmp_path, finished_run, tokenizer, capsys):
    more = {"extend_vocabulary": 2, "old_held_out_files": tmp_path / "old.txt", "learning_rate": 0.01}
    run = go_on(**more)
    extended = load_tokenizer(str(run / "discriminator"))
    assert extended.convert_ids_to_tokens([55, 56]) == ["gardenings", "morningeds"]
    assert (run / "vocab.txt").read_text().split()[55:] == ["gardenings", "morningeds"]
    assert ElectraForRTDPretraining.from_pretrained(run).get_input_embeddings().num_embeddings == 57

    record = PretrainingRecord.load(run)
    shown = capsys.readouterr().out
    training, model, data = (record.arguments[group] for group in ("training", "model", "data"))
    assert (training["bias_correction"], training["max_steps"]) == (True, 4)  # from the recipe, and from a flag
    assert (model["size"], model["extend_vocabulary"]) == ("tiny", 2)
    assert (model["continue_from"], data["old_held_out_files"]) == ("run", ["old.txt"])
    assert record.data["old_held_out"]["sources"][0]["name"] == "old.txt"
    changes = record.before_and_after
    assert changes.keys() == {"new", "old"}
    assert changes["new"]["after"].items() <= {k.removeprefix("eval_"): v for k, v in record.metrics.items()}.items()
    for times in changes.values():
        losses = [metrics["generator_loss"] for metrics in times.values()]
        assert losses[0] != losses[1]
        assert all(f"{loss:.3f}" in shown for loss in losses)
    assert shown.count("old text") == 3  # before, during and after the training
    assert "eval_old_bigram_auc" not in {name for entry in record.curves for name in entry}
    card = pretraining_card(record, "discriminator", "me/mine-discriminator", CardArguments())
    assert "further from `run`\nwith 2 new words of this text at the end of the vocabulary,\non " in card
    assert " | ".join(f"{changes['old'][when]['generator_loss']:.4g}" for when in ("before", "after")) in card
    assert "--size" not in card[card.index("hf-electra-rtd pretrain") :]

    planned = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_electra_rtd.training.plan.identify", lambda name: planned.append(name) or identify(name))
        go_on("--dry_run", output_dir="dry", **more)
    assert planned == [str(finished_run)]  # the pair is identified once, for the recipe and the networks
    assert "Nothing was trained" in capsys.readouterr().out

    # Resumed from its checkpoint, the same command chooses no words again, and ends with the same weights.
    weights = (run / "model.safetensors").read_bytes()
    for name in ("checkpoint-4", "generator", "discriminator"):
        shutil.rmtree(run / name)
    (run / "run_record.json").unlink()
    shutil.copytree(run, tmp_path / "again")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_electra_rtd.data.vocabulary.choose_words", lambda *_: pytest.fail("words were chosen again"))
        again = go_on("--resume_from_checkpoint", "latest", output_dir="again", **more)
    assert (again / "model.safetensors").read_bytes() == weights
    assert PretrainingRecord.load(again).before_and_after == changes


def test_another_vocabulary_is_refused_before_the_sequences_of_a_run_are_replaced(go_on):
    more = {"extend_vocabulary": 2}
    for before, now, message in ((2, {}, "has 57 tokens, the tokenizer 55"), (None, more, "Leave the flag out")):
        run = go_on(output_dir=str(before), extend_vocabulary=before)
        (run / "run_record.json").unlink()
        shutil.rmtree(run / "checkpoint-4")
        blocks = (run / "blocks" / "train.blocks").read_bytes()
        with pytest.raises(ValueError, match=message):
            go_on("--resume_from_checkpoint", "latest", output_dir=str(before), **now)
        assert (run / "blocks" / "train.blocks").read_bytes() == blocks


def test_old_text_that_is_trained_on_or_would_not_be_evaluated_is_refused(go_on, tmp_path):
    old = {"train_files": tmp_path / "old.txt", "old_held_out_files": tmp_path / "old.txt"}
    for share, message in (
        (0.3, r"old\.txt, which is held out, holds the same text as old\.txt"),
        (0, "--held_out_files"),
    ):
        with pytest.raises(ValueError, match=message):
            go_on(held_out_share=share, **old)


# ---- Mistakes ----


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"continue_from": "nowhere/at/all"}, "nowhere/at/all"),
        ({"continue_from": "{tmp}"}, "holds no model"),
        ({"continue_from": "{run}/generator"}, "no generator beside"),
        ({"continue_from": "{run}/generator", "new_generator": True}, "saved as ElectraForMaskedLM"),
        ({"continue_from": "{tmp}/mine"}, "no generator beside"),
        ({"size": "tiny"}, "--size"),
        ({"initialization": "neighbours"}, "--initialization is for new networks"),
        ({"objective": "mlm"}, "'rtd'.*'mlm'"),
        ({"sharing": "all"}, "hidden_size"),
        ({"objective": "electric", "generator_type": "two_tower"}, "two_tower.*--new_generator"),
        ({"generator_type": "uniform", "new_generator": True}, "--new_generator.*uniform"),
        ({"output_dir": "{run}"}, "Choose another --output_dir"),
        ({"tokenizer": "{tmp}/other.txt"}, "other tokens"),
        ({"max_seq_length": 512}, "--max_seq_length 512"),
        ({"extend_vocabulary": 9}, "extend_vocabulary=9"),
        ({"extend_vocabulary": 1, "train_files": "{run}/blocks/train.blocks"}, "chooses words from text"),
    ],
)
def test_mistakes_are_named_before_any_text_is_prepared(go_on, tmp_path, finished_run, monkeypatch, flags, message):
    work = "hf_electra_rtd.training.pretrain.get_sequences"
    monkeypatch.setattr(work, lambda *_, **__: pytest.fail("work was done"))
    (tmp_path / "other.txt").write_text("\n".join([*VOCABULARY[:20], "other", *VOCABULARY[21:]]) + "\n")
    shutil.copytree(finished_run / "discriminator", tmp_path / "mine")
    here = {"tmp": tmp_path, "run": finished_run}
    flags = {name: value.format(**here) if isinstance(value, str) else value for name, value in flags.items()}
    with pytest.raises(ValueError, match=message):
        go_on(**flags)
    assert not (tmp_path / "run" / "model.safetensors").exists()
