"""Separate learning rates for generator and discriminator, and further rules of the trainer and its optimizers."""

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from hf_electra_rtd import ElectraForRTDPretraining, RTDTrainer, RTDTrainingArguments, get_parameter_groups
from hf_electra_rtd.ops import Sampling, masked_slots, original_ids, replace_at
from hf_electra_rtd.training.optimization import (
    ElectraMuon,
    make_optimizer,
    make_schedule,
    split_parameters,
)
from tests.conftest import tiny_config


def arguments(directory, **options):
    values = {"output_dir": str(directory), "max_steps": 4, "warmup_steps": 0, "use_cpu": True, "save_strategy": "no"}
    return RTDTrainingArguments(**{**values, "eval_strategy": "no", **options})


def make(**options):
    torch.manual_seed(0)
    return ElectraForRTDPretraining(tiny_config(**options)).double().train()


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({"sharing": "none"}, {"generator.electra.embeddings.word_embeddings.weight", "generator.electra.encoder"}),
        ({"sharing": "embeddings"}, {"generator.electra.encoder", "generator.generator_lm_head.bias"}),
        ({"sharing": "all"}, {"generator.generator_predictions", "generator.generator_lm_head.bias"}),
        ({"sharing": "gdes"}, {"generator.electra.embeddings.word_embeddings.weight"}),
        ({"generator": "two_tower"}, {"generator."}),
    ],
)
def test_the_generators_rate_is_that_of_what_it_alone_has_and_the_schedule_scales_both(tmp_path, options, own):
    model = make(**options)
    args = arguments(tmp_path, learning_rate=1e-3, generator_learning_rate=4e-3)
    of_discriminator = set(map(id, model.discriminator.parameters()))
    optimizer = make_optimizer(model, args)
    schedule = make_schedule(optimizer, args, 4)
    found = set()
    optimizer.step()
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.75e-3, 0.75e-3, 3e-3, 3e-3])
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.add(id(parameter))
            assert (group["lr"] == pytest.approx(0.75e-3)) == (id(parameter) in of_discriminator)
    assert found == set(map(id, model.parameters()))
    assert [len(group["params"]) for group in optimizer.param_groups[:2]] == [
        len([each for each in group["params"] if id(each) in of_discriminator])
        for group in get_parameter_groups(model, 0.01)
    ]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    alone = [names[id(parameter)] for parameter in split_parameters(model)["generator"]]
    assert all(any(name.startswith(start) for name in alone) for start in own)
    assert all(name.startswith("generator") for name in alone)


@pytest.mark.parametrize("sharing", ["none", "gdes"])
def test_two_optimizers_one_after_the_other_are_one_with_two_rates(tmp_path, batch, sharing):
    # microsoft/DeBERTa trains like this: the generator takes its step first, then the discriminator, on samples from
    # the same forward pass. With gdes, the discriminator also uses the tables as they were in that pass.
    args = arguments(tmp_path, learning_rate=1e-3, generator_learning_rate=5e-3)
    ours = make(sharing=sharing)
    theirs = make(sharing=sharing)
    start = ours.generator.get_input_embeddings().weight.detach().clone()
    uniforms = torch.rand(4, 8, 5, 2)
    joint = make_optimizer(ours, args)
    of_both = {}
    for name, part in split_parameters(theirs).items():
        rate = {"generator": args.generator_learning_rate, "discriminator": args.learning_rate}[name]
        groups = get_parameter_groups(theirs, args.weight_decay)
        for group in groups:
            group["params"] = [each for each in group["params"] if any(each is other for other in part)]
        of_both[name] = part, type(joint)(groups, rate, eps=args.adam_epsilon)

    def step(loss, name):
        parameters, optimizer = of_both[name]
        loss.backward(inputs=parameters)
        optimizer.step()
        optimizer.zero_grad()

    slots = masked_slots(batch["input_ids"], batch["masked_positions"], batch["labels"])
    originals = original_ids(batch["input_ids"], slots)
    inputs = {"token_type_ids": batch["token_type_ids"]}
    inputs["attention_mask"] = None
    batch.pop("sampling_uniforms")
    for drawn in uniforms:
        output = ours(**batch, sampling_uniforms=drawn)
        output.loss.backward()
        joint.step()
        joint.zero_grad()

        generated = theirs.generate(batch["input_ids"], slots, Sampling(drawn), **inputs)
        corrupted = replace_at(batch["input_ids"], slots, generated.sampled)
        assert torch.equal(corrupted, output.corrupted_input_ids)
        early = theirs.discriminate(corrupted, originals, slots, **inputs) if sharing == "gdes" else None
        step(generated.loss.mean(), "generator")
        late = early or theirs.discriminate(corrupted, originals, slots, **inputs)
        step(50 * late.loss.mean(), "discriminator")
    assert not torch.equal(ours.generator.get_input_embeddings().weight, start)
    for (name, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13, msg=name)


def test_the_generators_rate_changes_nothing_where_it_does_not_learn_and_this_is_told(
    tmp_path, blocks, tokenizer, caplog
):
    frozen = ElectraForRTDPretraining(tiny_config(sharing="none", freeze_generator=True))
    args = arguments(tmp_path, max_seq_length=32, generator_learning_rate=1e-3)
    trainer = RTDTrainer(frozen, args, *blocks, processing_class=tokenizer)
    assert "--generator_learning_rate" in caplog.text
    assert len(trainer.create_optimizer().param_groups) == 2


def test_what_needs_a_tokenizer_is_refused_without_one(tmp_path, blocks):
    pair = ElectraForRTDPretraining(tiny_config(generator="two_tower"))
    with pytest.raises(ValueError, match=r"generator='two_tower' .* special tokens.*: pass processing_class"):
        RTDTrainer(pair, arguments(tmp_path), blocks[0], data_collator=lambda rows: {})


@pytest.mark.parametrize("bf16", [False, True])
def test_muon_multiplies_in_bfloat16_where_the_run_does(tmp_path, bf16):
    args = arguments(tmp_path, optim="muon", bf16=bf16)
    models = [make() for _ in range(3)]
    optimizers = [make_optimizer(models[0], args)]
    for model, bfloat16 in ((models[1], False), (models[2], True)):
        groups = get_parameter_groups(model, args.weight_decay, muon=True)
        optimizers.append(ElectraMuon(groups, args.learning_rate, eps=args.adam_epsilon, bfloat16=bfloat16))
    for model, optimizer in zip(models, optimizers, strict=True):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter).cumsum(0).sin()
        optimizer.step()
    of_run, in_float64, in_bfloat16 = (parameters_to_vector(model.parameters()) for model in models)
    assert torch.equal(of_run, in_bfloat16) == bf16
    assert torch.equal(of_run, in_float64) != bf16
