"""Fast-ELECTRA: a frozen generator of any family, a falling temperature, and samples drawn before the run."""

import pickle
import shutil
import sys
from functools import partial

import numpy as np
import pretrain_no_trainer
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertForPreTraining,
    BertTokenizer,
)

from hf_electra_rtd import (
    DataCollatorForRTD,
    ElectraForRTDPretraining,
    PretrainingRecord,
    RTDTrainer,
    RTDTrainingArguments,
)
from hf_electra_rtd.data.blocks import HELD_OUT_POSITION
from hf_electra_rtd.data.collator import falling_temperature
from hf_electra_rtd.data.corruption import CorruptedFile
from hf_electra_rtd.data.tokenization import save_tokenizer
from hf_electra_rtd.families import masked_lm_class
from hf_electra_rtd.ops import Sampling, predict_masked, sample_tokens
from hf_electra_rtd.publishing.card import model_card
from hf_electra_rtd.training import corrupt, pretrain
from tests.conftest import VOCABULARY, pad_batch, pretraining_flags, tiny_config
from tests.families_for_tests import FAMILY_NAMES, tiny_family_config


def config_of(family, **options):
    """Of the tokenizer's vocabulary."""
    return tiny_family_config(family, **{"vocab_size": len(VOCABULARY), "pad_token_id": 0, **options})


BERT = config_of("bert")


def masked_lm(config):
    torch.manual_seed(1)
    network = masked_lm_class(config.model_type)(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return network.eval()


def join(generator, **options):
    torch.manual_seed(0)
    discriminator = ElectraForRTDPretraining(tiny_config(generator="uniform")).discriminator
    options = {"sharing": "none", "freeze_generator": True, **options}
    return ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, discriminator, **options)


# ---- A frozen generator of any family ----


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_any_frozen_masked_lm_says_what_it_says_alone_and_is_saved_with_the_pair_and_by_itself(
    batch, family, tmp_path
):
    network, batch = masked_lm(config_of(family)), pad_batch(batch, 3)
    inputs = {"token_type_ids": batch["token_type_ids"]} if family in ("bert", "convbert", "electra") else {}
    expected = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **inputs).logits
    pair = join(network).train()
    output = pair(**batch, output_generator_logits=True)
    at_slots = expected[torch.arange(len(expected))[:, None], batch["masked_positions"]]
    torch.testing.assert_close(output.generator_logits, at_slots, rtol=1e-5, atol=1e-6)
    output.loss.backward()
    assert all(p.grad is None for p in pair.generator.parameters())
    assert "- generator: 2 layers of 32, 2 attention heads" in model_card(pair.config.to_dict(), "somebody/pair")
    pair.save_pretrained(tmp_path / "pair")
    pair.save_towers(tmp_path)
    again, alone = ElectraForRTDPretraining.from_pretrained(tmp_path / "pair"), join(tmp_path / "generator")
    assert type(again.generator) is type(network)
    assert torch.equal(again.train()(**batch).corrupted_input_ids, output.corrupted_input_ids)
    assert torch.equal(alone.train()(**batch).generator_token_losses, output.generator_token_losses)


def test_heads_that_a_masked_lm_does_not_have_are_left_out(tmp_path):
    torch.manual_seed(0)
    whole = BertForPreTraining(BERT)
    whole.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["bert.embeddings.position_ids"] = torch.arange(64)[None]  # of old versions
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    pair = join(tmp_path)
    assert torch.equal(pair.generator.cls.predictions.bias, whole.cls.predictions.bias)


def test_a_frozen_generator_has_no_dropout_and_leaves_all_random_numbers_to_the_discriminator(batch):
    none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    pairs = [join(masked_lm(config_of("electra", **more))).train() for more in (none, dict.fromkeys(none, 0.5))]
    outputs = []
    for pair in pairs:
        torch.manual_seed(7)
        outputs.append(pair(**batch))
        assert not any(module.training for module in pair.generator.modules())
        assert pair.discriminator.training
        assert pair.eval().train().generator.training is False
    assert torch.equal(outputs[0].generator_token_losses, outputs[1].generator_token_losses)
    assert torch.equal(outputs[0].loss, outputs[1].loss)


# ---- The temperature along a run ----


def temperatures(schedule, positions, total=1000, start=2.0, end=1.0, decay=0.1):
    return falling_temperature(np.array(positions), total, schedule, start, end, decay)


def test_the_temperature_falls_by_its_formula_and_ends_where_it_is_said_to():
    exponential = temperatures("exponential", [0, 100, 1000, HELD_OUT_POSITION + 7])
    np.testing.assert_allclose(exponential, [2.0, 1 + np.exp(-1.0), 1 + np.exp(-10.0), 1.0], rtol=1e-12)
    linear = temperatures("linear", [0, 100, 500, 1000, HELD_OUT_POSITION], start=3.0, end=0.5)
    np.testing.assert_allclose(linear, [3.0, 2.75, 1.75, 0.5, 0.5], rtol=1e-12)
    assert set(temperatures("constant", range(1000))) == {1.0}
    for schedule in ("linear", "exponential"):
        assert (np.diff(temperatures(schedule, range(1000))) < 0).all()


@pytest.mark.parametrize("disallow_correct", [False, True])
def test_rows_of_different_temperatures_are_sampled_as_each_alone(disallow_correct):
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(4, 3, 8), torch.randn(600, 8), torch.randn(600)
    labels, uniforms = torch.randint(600, (4, 3)), torch.rand(4, 3, 2)
    rows = torch.tensor([2.0, 1.3, 1.0, 0.5])
    # Chunks of two rows, which do not end with a sequence.
    sampling = Sampling(uniforms, rows[:, None].expand(4, 3), disallow_correct)
    found = predict_masked(hidden, weight, bias, labels, sampling, max_logits=1200)
    for row, temperature in enumerate(rows.tolist()):
        alone = Sampling(uniforms[row], temperature, disallow_correct)
        expected = predict_masked(hidden[row], weight, bias, labels[row], alone)
        assert torch.equal(found.sampled[row], expected.sampled)
        torch.testing.assert_close(found.loss.losses[row], expected.loss.losses)  # at temperature 1


def test_a_model_samples_along_its_schedule_and_refuses_to_train_without_the_temperatures(batch):
    config = tiny_config(temperature_schedule="linear", temperature_start=3.0)
    model = ElectraForRTDPretraining(config).train()
    with pytest.raises(ValueError, match="needs sampling_temperature: take the collator of"):
        model(**batch)
    rows = torch.linspace(3.0, 1.0, len(batch["labels"]))
    output = model.eval()(**batch, sampling_temperature=rows, output_generator_logits=True)
    expected = sample_tokens(output.generator_logits, batch["sampling_uniforms"], rows[:, None].expand(-1, 5))
    assert torch.equal(output.corrupted_input_ids.gather(1, batch["masked_positions"]), expected)
    plain = ElectraForRTDPretraining(tiny_config())
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(**batch).corrupted_input_ids, plain.eval()(**batch).corrupted_input_ids)


def test_a_trainer_gives_its_collator_the_schedule_over_its_whole_run(blocks, tokenizer, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(temperature_schedule="linear", temperature_start=3.0))
    options = {"num_train_epochs": 2, "max_seq_length": 32, "per_device_train_batch_size": 8, "report_to": []}
    args = RTDTrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, **options)
    trainer = RTDTrainer(model, args, blocks[0], blocks[1], tokenizer)
    steps = 2 * len(blocks[0]) // 8
    *_, last = trainer.get_train_dataloader()
    expected = 1 + 2 * (1 - torch.arange(8 * steps - 8, 8 * steps) / (8 * steps))
    torch.testing.assert_close(last["sampling_temperature"], expected)
    held_out = next(iter(trainer.get_eval_dataloader()))
    assert held_out["sampling_temperature"].unique().tolist() == [1.0]


# ---- Runs ----


@pytest.fixture
def command(tmp_path, corpus, tokenizer, monkeypatch):
    """Runs a command with the flags of a run of four steps, on one text, with a frozen BERT or its samples."""
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd pretrain"])
    masked_lm(BERT).save_pretrained(tmp_path / "bert")
    save_tokenizer(tokenizer, tmp_path / "bert")

    def run(main, name, *flags, **options):
        options = {"model_config": None, "max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 4} | options
        return main(pretraining_flags(tmp_path, corpus, tmp_path / name, *flags, **options)) or tmp_path / name

    return run


def frozen(tmp_path, schedule="exponential"):
    return ["--generator", str(tmp_path / "bert"), "--freeze_generator", "True", "--temperature_schedule", schedule]


def weights_of(run):
    return load_file(run / "discriminator" / "model.safetensors")


def curves_of(run, names=("discriminator_loss", "replaced_share", "eval_discriminator_loss", "eval_replaced_share")):
    logs = PretrainingRecord.load(run).curves
    return [{name: log[name] for name in names if name in log} for log in logs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "flags"), [(pretrain.main, []), (pretrain_no_trainer.main, ["--document_attention", "True"])]
)
def test_a_run_from_samples_in_a_file_is_equal_bit_for_bit_to_one_with_the_generator(
    command, tmp_path, tokenizer, loop, flags, capsys
):
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    network = ElectraForRTDPretraining(tiny_config(generator="uniform", **dropout))
    network.save_towers(tmp_path, tokenizer)
    command = partial(command, discriminator=tmp_path / "discriminator")
    online = command(loop, "online", *frozen(tmp_path), *flags)
    files = command(corrupt.main, "files", *frozen(tmp_path), *flags)
    offline = command(loop, "offline", "--corrupted", str(files), *flags, tokenizer=None)
    torch.testing.assert_close(weights_of(online), weights_of(offline), rtol=0, atol=0)
    assert curves_of(online) == curves_of(offline)
    assert not (offline / "generator").exists()
    assert f"detect --model {offline} --as_is" in capsys.readouterr().out
    assert (online / "generator" / "model.safetensors").exists()
    # Either goes on from its checkpoint, and not with other samples.
    others = command(corrupt.main, "others", *frozen(tmp_path, "linear"), *flags)
    for run, source in ((online, frozen(tmp_path)), (offline, ["--corrupted", str(files)])):
        given = [*source, *flags]
        before = weights_of(run)
        (run / "run_record.json").unlink()
        shutil.rmtree(run / "checkpoint-4")
        other = ["--temperature_decay", "0.2"] if run == online else ["--corrupted", str(others)]
        with pytest.raises(ValueError, match=r"cannot be resumed by another run: .*(corrupted|temperature_decay) was"):
            command(loop, run.name, *given, *other, "--resume_from_checkpoint", "latest")
        with pytest.raises(ValueError, match=r"num_sequences was 16, now 20|it has 16 sequences, and this one 20"):
            command(loop, run.name, *given, "--resume_from_checkpoint", "latest", max_steps=5)
        command(loop, run.name, *given, "--resume_from_checkpoint", "latest")
        assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(run).items())


def test_samples_of_another_run_are_refused_before_any_work(command, tmp_path):
    files = command(corrupt.main, "files", *frozen(tmp_path))
    written = (files / "train.corrupted").stat()
    command(corrupt.main, "files", *frozen(tmp_path))  # finds them done
    assert (files / "train.corrupted").stat().st_mtime_ns == written.st_mtime_ns
    # A sequence of 32 tokens has 5 slots, of a position and an id each.
    assert 16 * 5 * 4 < written.st_size < 16 * 5 * 4 + 1500
    read = CorruptedFile(files / "train.corrupted", verify=True)
    assert read.header.num_positions == 16
    assert len(pickle.dumps(read)) < 1000  # without its content, for a worker
    refused = {
        ("--seed", "1"): "is of another run: .*seed was 42, now 1",
        ("--mask_probability", "0.2"): "mask_probability was 0.15, now 0.2",
        ("--masking", "span"): "is of another run: masking was token, now span",
        ("--held_out_share", "0.2"): "is of another run: it has other text, tokenizer, packing or split",
        ("--max_steps", "5"): "it has 16 sequences, and this one 20",
        ("--max_steps", "3"): "its temperature falls over 16 sequences, not 12",
        ("--freeze_generator", "True"): "does not go with freeze_generator=True",
        ("--generator", str(tmp_path / "bert")): "Leave --generator out",
        ("--initialization", "neighbours"): "Leave it or --corrupted out",
    }
    for flags, message in refused.items():
        with pytest.raises(ValueError, match=message):
            command(pretrain.main, "run", "--corrupted", str(files), *flags)
    whole = (files / "train.corrupted").read_bytes()
    for name, message in (("train", "it was altered after it was written"), ("held_out", "no whole file of samples")):
        content = bytearray((files / f"{name}.corrupted").read_bytes())
        content[100 if name == "train" else 0] ^= 1
        (files / f"{name}.corrupted").write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.corrupted cannot be read: .*{message}.*hf-electra-rtd corrupt"):
            command(pretrain.main, "run", "--corrupted", str(files))
        (files / "train.corrupted").write_bytes(whole)
    (files / "longer").write_bytes(whole[:16] + whole[16:36] + whole[16:])
    with pytest.raises(ValueError, match="longer cannot be read: its header does not fit its content"):
        CorruptedFile(files / "longer")
    with pytest.raises(ValueError, match=r"held_out\.corrupted cannot be read"):
        command(corrupt.main, "files", *frozen(tmp_path), "--overwrite_output_dir", "False")
    with pytest.raises(ValueError, match=r"train\.corrupted has the samples of another run\. Choose another"):
        command(corrupt.main, "files", *frozen(tmp_path, "linear"))
    command(corrupt.main, "files", *frozen(tmp_path, "linear"), "--overwrite_output_dir")
    assert CorruptedFile(files / "train.corrupted", verify=True).header.generator["temperature_schedule"] == "linear"
    assert not any((tmp_path / "run").glob("checkpoint-*"))
    with pytest.raises(ValueError, match="Name their directory"):
        command(pretrain.main, "run", "--generator_type", "offline")
    with pytest.raises(ValueError, match="Only a frozen generator can"):
        command(corrupt.main, "more", "--freeze_generator", "False")


def test_other_tokens_and_samples_of_two_generators_are_refused_and_nothing_is_replaced(command, tmp_path, tokenizer):
    files = command(corrupt.main, "files", *frozen(tmp_path))
    others = command(corrupt.main, "others", *frozen(tmp_path), "--disallow_correct", "True")
    kept = {path: path.read_bytes() for path in (*files.glob("tokenizer/*"), *files.glob("*.corrupted"))}
    vocab = tokenizer.get_vocab()
    vocab["river"], vocab["mill"] = vocab["mill"], vocab["river"]
    save_tokenizer(BertTokenizer(vocab=vocab, do_lower_case=True), tmp_path / "bert")
    with pytest.raises(ValueError, match=r"train\.corrupted has the samples of another run"):
        command(corrupt.main, "files", *frozen(tmp_path), tokenizer=tmp_path / "bert")
    assert len(kept) > 3
    assert all(path.read_bytes() == content for path, content in kept.items())
    message = r"bert has other tokens than the tokenizer: where it has \('mill', \d+\), .* has \('river', \d+\)"
    with pytest.raises(ValueError, match=message):
        command(pretrain.main, "run", *frozen(tmp_path))
    shutil.copy(others / "held_out.corrupted", files)
    with pytest.raises(ValueError, match=r"train\.corrupted and .*held_out\.corrupted have the samples of different"):
        command(pretrain.main, "run", "--corrupted", str(files), tokenizer=None)


def test_an_offline_pair_wants_its_samples(batch):
    model = ElectraForRTDPretraining(tiny_config(generator="offline"))
    with pytest.raises(ValueError, match="needs corrupted_input_ids"):
        model(**batch)
    online = model(**batch, corrupted_input_ids=batch["input_ids"])
    assert online.generator_loss is None
    assert online.loss == 50 * online.discriminator_loss


def test_samples_of_other_masks_are_refused_by_the_collator(blocks, tokenizer):
    sequences = blocks[0].read(np.arange(4))
    sequences.stream_positions = np.arange(4)
    sequences.samples = np.zeros(4, dtype=[("positions", "<u2", (5,)), ("samples", "<u2", (5,))])
    with pytest.raises(ValueError, match="belong to other masks"):
        DataCollatorForRTD(tokenizer, seed=3)(sequences)
