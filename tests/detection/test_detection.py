import pytest
import torch

from hf_electra_rtd.detection.detection import detect, score_tokens


SENTENCE = "The old mills were not the great rivers ."


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def run(model, tokenizer):
    return lambda sentence=SENTENCE, **options: detect(
        model.generator, model.discriminator, tokenizer, sentence, **{"random": seeded(), **options}
    )


def test_named_words_are_masked_with_all_their_wordpieces_at_every_occurrence(run):
    detection = run(words=["mills", "THE"])
    assert [fill.original.token for fill in detection.fills] == ["the", "mill", "##s", "the"]
    assert [fill.position for fill in detection.fills] == [1, 3, 4, 7]
    assert [token.masked for token in detection.tokens] == [i in (1, 3, 4, 7) for i in range(len(detection.tokens))]
    assert [fill.original.token for fill in run(words=["great rivers"]).fills] == ["great", "river", "##s"]
    assert [fill.position for fill in run("was . it . was", words=["was . it"]).fills] == [1, 2, 3]


@pytest.mark.parametrize("word", ["mill", "fox", "ills", ""])
def test_a_word_that_is_not_in_the_sentence_is_refused_and_the_words_are_listed(run, word):
    with pytest.raises(ValueError, match=r"Its words are: The, old, mills, were, not, the, great, rivers, \."):
        run(words=["old", word])


def test_proposals_are_the_generators_probabilities_at_the_masked_tokens(run, model, tokenizer):
    detection = run(words=["mills"], top_k=3)
    ids = torch.tensor([tokenizer(SENTENCE)["input_ids"]])
    expected = model.generator(ids.index_fill(1, torch.tensor([3, 4]), 4)).logits[0].softmax(dim=-1).detach()
    for fill in detection.fills:
        row = expected[fill.position]
        best = row.topk(3)
        assert [proposal.token for proposal in fill.proposals] == tokenizer.convert_ids_to_tokens(best.indices)
        assert [p.probability for p in fill.proposals] == pytest.approx(best.values.tolist(), rel=1e-5)
        original = tokenizer.convert_tokens_to_ids(fill.original.token)
        assert fill.original.probability == pytest.approx(float(row[original]), rel=1e-5)
        assert fill.rank == 1 + row.argsort(descending=True).tolist().index(original)


def test_temperature_0_samples_the_first_proposal_and_a_seed_decides_the_rest(run):
    assert all(fill.sampled == fill.proposals[0] for fill in run(temperature=0.0, mask_probability=0.5).fills)
    assert run(mask_probability=0.5) == run(mask_probability=0.5)
    assert len({str(run(mask_probability=0.5, random=seeded(seed))) for seed in range(5)}) == 5


def test_the_discriminator_scores_the_sentence_with_the_samples_in_place(run, model, tokenizer):
    detection = run(mask_probability=0.5)
    sampled = {fill.position: fill.sampled.token for fill in detection.fills}
    originals = tokenizer.convert_ids_to_tokens(tokenizer(SENTENCE)["input_ids"])
    assert [token.original for token in detection.tokens] == originals
    corrupted = [sampled.get(position, token) for position, token in enumerate(originals)]
    assert [token.corrupted for token in detection.tokens] == corrupted
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(corrupted)])
    expected = model.discriminator(ids).logits[0].sigmoid().tolist()
    assert [token.probability for token in detection.tokens] == pytest.approx(expected, rel=1e-5)
    assert any(token.replaced for token in detection.tokens)


@pytest.mark.parametrize(("probability", "count"), [(0.01, 1), (0.3, 4), (0.99, 11)])
def test_random_masks_fall_on_the_asked_share_and_never_on_cls_or_sep(run, probability, count):
    for seed in range(5):
        detection = run(mask_probability=probability, random=seeded(seed))
        assert sum(token.masked for token in detection.tokens) == len(detection.fills) == count
        assert not detection.tokens[0].masked
        assert not detection.tokens[-1].masked


def test_scoring_a_sentence_as_it_is_changes_nothing_and_needs_no_generator(model, tokenizer):
    tokens = score_tokens(model.discriminator, tokenizer, SENTENCE)
    ids = torch.tensor([tokenizer(SENTENCE)["input_ids"]])
    assert [token.corrupted for token in tokens] == tokenizer.convert_ids_to_tokens(ids[0])
    assert not any(token.masked or token.replaced for token in tokens)
    expected = model.discriminator(ids).logits[0].sigmoid().tolist()
    assert [token.probability for token in tokens] == pytest.approx(expected, rel=1e-5)


def test_sentences_without_tokens_or_with_too_many_are_refused(run, model, tokenizer):
    with pytest.raises(ValueError, match="has no token"):
        run("  \n")
    assert len(run("mill " * 62).tokens) == 64
    with pytest.raises(ValueError, match=r"has 65 tokens with .*, and the model 64 positions"):
        score_tokens(model.discriminator, tokenizer, "mill " * 63)
