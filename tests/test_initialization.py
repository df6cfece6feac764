"""Initialization by neighbours: what the fit learns, where the first heads look, and which models stay stock."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import set_seed

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig, PretrainingRecord, begin_on_neighbours
from hf_electra_rtd.data.blocks import BlockFile, SequenceStream, writing_blocks
from hf_electra_rtd.data.packing import PackedSequence
from hf_electra_rtd.pair import initialization
from hf_electra_rtd.pair.initialization import fit_neighbours
from hf_electra_rtd.training.model import ModelArguments
from hf_electra_rtd.training.pretrain import main
from tests.conftest import pretraining_flags


STEPS = initialization._STEPS
NEVER = [0, 2, 3, 4]  # [PAD], [CLS], [SEP], [MASK] of the tests' tokenizer


@pytest.fixture(scope="module")
def chain(tmp_path_factory, tokenizer) -> BlockFile:
    """Sequences in which every word has one of two successors."""
    path = tmp_path_factory.mktemp("chain") / "train.blocks"
    random = np.random.default_rng(0)
    words = len(tokenizer) - 5
    rows = []
    for _ in range(200):
        row = [int(random.integers(words))]
        while len(row) < 30:
            row.append((3 * row[-1] + int(random.integers(2)) + 1) % words)
        rows.append(PackedSequence(np.array([2, *(word + 5 for word in row), 3]), 32))
    with writing_blocks(path, 32, len(tokenizer)) as writer:
        writer.write(rows)
        writer.finish(tokenizer_hash="", packing="full", statistics={}, sources=[], recipe={})
    return BlockFile(path)


def make_model(**options) -> ElectraForRTDPretraining:
    torch.manual_seed(1)
    sizes = {"vocab_size": 64, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64}
    sizes |= {"embedding_size": 40, "pad_token_id": 0}
    alone = options.get("sharing") == "all" or "generator" in options
    sizes |= {} if alone else {"generator_hidden_size": 0.5}
    return ElectraForRTDPretraining(ElectraRTDConfig.from_size("tiny", **{**sizes, **options})).eval()


@pytest.fixture
def begun(chain, tokenizer, monkeypatch):
    monkeypatch.setattr(initialization, "_STEPS", 20)  # other tests check the fit of the vectors

    def begin(seed: int = 0, **options) -> ElectraForRTDPretraining:
        model = make_model(vocab_size=len(tokenizer), **options)
        begin_on_neighbours(model, chain, tokenizer, seed)
        return model

    return begin


def test_the_fit_tells_words_that_do_not_follow_each_other(chain):
    vectors = fit_neighbours(chain, chain.header.vocab_size, 8, seed=0, never=NEVER)
    before, after = vectors.split(8, dim=1)
    ids = torch.from_numpy(chain.read(np.arange(100)).ids.astype(np.int64))[:, 1:-1]
    strangers = ids.flatten()[torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(0))].view_as(ids)
    scores = [(before[ids[:, :-1]] * after[others[:, 1:]]).sum(-1).flatten() for others in (ids, strangers)]
    truth = [np.zeros(len(scores[0])), np.ones(len(scores[1]))]
    assert roc_auc_score(np.concatenate(truth), torch.cat(scores)) > 0.9


@pytest.mark.parametrize(
    "shape",
    [
        {},  # with a projection
        {"embedding_size": 64},
        {"num_attention_heads": 1},
        {"hidden_size": 96, "num_attention_heads": 6, "generator_hidden_size": 0.67},
        {"embedding_size": 200, "hidden_size": 128},  # wider than the fitted vectors
    ],
)
def test_the_first_heads_begin_on_the_tokens_beside(begun, chain, shape, monkeypatch):
    if not shape:
        monkeypatch.setattr(initialization, "_STEPS", STEPS)  # as many as in a run
    model = begun(**shape)
    for tower in model.towers.values():
        assert all(weight > 0.4 for weight in weights_beside(tower, chain))


def weights_beside(tower, chain) -> list[float]:
    """The mean attention to the token before and, if the network has a second head, to the token after."""
    tower.set_attn_implementation("eager")
    ids = torch.from_numpy(chain.read(np.arange(8)).ids.astype(np.int64))
    with torch.no_grad():
        attentions = tower(ids, output_attentions=True).attentions
    heads = [head_BLL for layer_BHLL in attentions for head_BLL in layer_BHLL.unbind(dim=1)][:2]
    return [
        head_BLL.diagonal(offset, dim1=1, dim2=2).mean().item()
        for head_BLL, offset in zip(heads, (-1, 1), strict=False)
    ]


@pytest.mark.parametrize(
    "shape",
    [
        {},  # with a projection; in the second layer (discriminator) or in the third (generator, one head a layer)
        {"embedding_size": 64},
        {"num_attention_heads": 1},
        {"hidden_size": 128, "num_attention_heads": 4},  # in the first layer of the discriminator
    ],
)
def test_the_next_head_begins_on_the_same_token_elsewhere(begun, chain, shape, monkeypatch):
    monkeypatch.setattr(initialization, "_STEPS", STEPS)
    ids = torch.from_numpy(chain.read(np.arange(8)).ids.astype(np.int64))
    same_BLL = ids[:, :, None] == ids[:, None, :]
    elsewhere_BLL = same_BLL & ~torch.eye(ids.shape[1], dtype=torch.bool)
    for tower in begun(num_hidden_layers=3, **shape).towers.values():
        tower.set_attn_implementation("eager")
        with torch.no_grad():
            attentions = tower(ids, output_attentions=True).attentions
        head_BLL = [head_BLL for layer_BHLL in attentions for head_BLL in layer_BHLL.unbind(dim=1)][2]
        equal_BL = (head_BLL * elsewhere_BLL).sum(dim=-1)
        assert equal_BL[elsewhere_BLL.any(dim=-1)].mean() > 0.12  # 0.04 if attention were uniform
        assert head_BLL.diagonal(dim1=1, dim2=2).mean() < 0.03


def test_one_layer_of_one_head_looks_at_the_token_before(begun, chain):
    tower = begun(num_attention_heads=1, num_hidden_layers=1).discriminator
    assert weights_beside(tower, chain)[0] > 0.4


def test_the_number_of_threads_makes_no_difference(begun):
    before = torch.get_num_threads()
    states = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        states.append(begun(embedding_size=64, hidden_size=128).state_dict())
    torch.set_num_threads(before)
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_positions_have_dimensions_that_words_leave_free(begun):
    embeddings = begun().discriminator.electra.embeddings
    words = embeddings.word_embeddings.weight
    positions = embeddings.position_embeddings.weight
    assert not words[:, :16].any()
    assert not positions[:, 16:].any()
    assert words[1:, 16:].std().item() == pytest.approx(0.1, rel=0.05)
    assert not words[0].any()  # [PAD]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mask_probability": 0.15}, 0.15),
        ({"mask_probability": 0.3}, 0.3),
        ({"objective": "rtd_masked_only"}, 0.5),
        ({"objective": "electric", "generator": "two_tower"}, 0.5),
    ],
)
def test_with_rtd_alone_the_discriminator_begins_at_the_share_of_masked_tokens(begun, chain, options, expected):
    discriminator = begun(**options).discriminator
    assert discriminator.discriminator_predictions.dense_prediction.bias.sigmoid().item() == pytest.approx(expected)
    ids = torch.from_numpy(chain.read(np.arange(8)).ids.astype(np.int64))
    with torch.no_grad():
        assert discriminator(ids).logits.sigmoid().mean().item() == pytest.approx(expected, abs=0.03)


def test_a_run_begins_at_its_own_share_of_masked_tokens(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(initialization, "_STEPS", 20)
    options = {"model_config": None, "size": "tiny", "max_steps": 1, "save_strategy": "no", "mask_probability": 0.3}
    assert main(pretraining_flags(tmp_path, corpus, tmp_path / "run", **options)) == 0
    record = PretrainingRecord.load(tmp_path / "run")
    assert record.arguments["model"]["initialization"] == "neighbours"
    assert 0 < record.metrics["eval_bigram_auc"] < 1
    model = ElectraForRTDPretraining.from_pretrained(tmp_path / "run")
    bias = model.discriminator.discriminator_predictions.dense_prediction.bias
    assert bias.sigmoid().item() == pytest.approx(0.3, abs=0.001)


def test_python_begins_as_the_command_does_from_blocks_streams_and_rows(tmp_path, corpus, tokenizer, monkeypatch):
    monkeypatch.setattr(initialization, "_STEPS", 20)
    still = {"max_steps": 1, "learning_rate": 0, "save_strategy": "no", "eval_strategy": "no"}
    run = tmp_path / "run"
    assert main(pretraining_flags(tmp_path, corpus, run, model_config=None, size="tiny", **still)) == 0
    expected = ElectraForRTDPretraining.from_pretrained(run).state_dict()
    blocks = BlockFile(run / "blocks" / "train.blocks")
    rows = [{"input_ids": blocks[index]["input_ids"]} for index in range(len(blocks))]
    for sequences in (blocks, SequenceStream(blocks, 8), rows):
        set_seed(42)
        model = ElectraForRTDPretraining(ElectraRTDConfig.from_size("tiny", vocab_size=len(tokenizer)))
        begin_on_neighbours(model, sequences, tokenizer, 42)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("sharing", ["none", "word", "embeddings", "all", "gdes"])
def test_each_network_gets_the_word_table_whatever_is_shared(begun, sharing):
    model = begun(sharing=sharing)
    native = model.native_discriminator().get_input_embeddings().weight
    torch.testing.assert_close(native, model.generator.get_input_embeddings().weight)


def test_the_same_seed_gives_the_same_start_and_nothing_is_drawn_from_torch(chain, tokenizer, monkeypatch):
    monkeypatch.setattr(initialization, "_STEPS", 20)
    tables = []
    for seed in (5, 5, 6):
        model = make_model(vocab_size=len(tokenizer), embedding_size=200)
        before = torch.get_rng_state()
        begin_on_neighbours(model, chain, tokenizer, seed)
        assert torch.equal(torch.get_rng_state(), before)
        tables.append(model.get_input_embeddings().weight)
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_start_is_the_same_in_every_precision(chain, tokenizer, monkeypatch, dtype):
    monkeypatch.setattr(initialization, "_STEPS", 20)
    models = [make_model(vocab_size=len(tokenizer)).to(each) for each in (torch.float32, dtype)]
    for model in models:
        begin_on_neighbours(model, chain, tokenizer, seed=5)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert (other - one).norm() <= 0.01 * one.norm()


@pytest.mark.parametrize("shape", [{"embedding_size": 20}, {"num_attention_heads": 8}])
def test_networks_without_room_are_refused(begun, shape):
    with pytest.raises(ValueError, match="neighbours"):
        begun(**shape)


def test_new_networks_of_tiny_begin_on_the_neighbours():
    assert ModelArguments().initialization == "neighbours"
    assert ModelArguments(size="small").initialization == "stock"
    assert ModelArguments(objective="mlm").initialization == "neighbours"
    assert ModelArguments(discriminator="trained").initialization is None


@pytest.mark.slow
def test_two_hundred_tiny_steps_on_the_bundled_corpus_find_replaced_tokens(tmp_path):
    corpus = Path(__file__).parents[1] / "examples/data/eltec_eng_excerpts.txt.gz"
    flags = {"train_files": corpus, "output_dir": tmp_path, "max_steps": 200, "per_device_train_batch_size": 8}
    flags |= {"seed": 42, "eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    assert main([word for name, value in flags.items() for word in (f"--{name}", str(value))] + ["--use_cpu"]) == 0
    assert PretrainingRecord.load(tmp_path).metrics["eval_discriminator_auc"] >= 0.80
