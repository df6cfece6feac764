"""Tagging: every word of a sentence gets a tag, however long the sentence is."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer

from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.reading import example_features
from hf_electra_rtd.tasks import Task


TAGS = ("O", "B-x", "I-x", "B-y", "I-y")
# Words of one token, of several, of none (a space, a control character, an accent alone), and unknown ones.
WORDS = ["river", "rivers", "milling", "天", " ", "\u200b", "\u0301", "xyzzy"]
VOCABULARY = [*SPECIAL_TOKENS, "river", "mill", "##s", "##ing", "天"]
TOKENIZER = BertTokenizer(vocab={token: n for n, token in enumerate(VOCABULARY)}, do_lower_case=True)
SENTENCES = st.lists(
    st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(TAGS)), min_size=1, max_size=20), min_size=1, max_size=4
)


def make(max_seq_length=16, tokenizer=TOKENIZER):
    task = Task("t", "T", kind="tagging", metrics=("f1", "accuracy"), labels=TAGS)
    return make_kind(task, tokenizer, max_seq_length)


def sentences(*rows):
    examples = [{"id": "x", "words": words, "tags": tags} for words, tags in rows]
    return Dataset.from_list(examples, features=example_features("tagging"))


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(SENTENCES, st.sampled_from([4, 5, 16]), st.sampled_from([0, 99]))
def test_gold_logits_give_every_word_its_tag_whatever_stands_in_the_padding(rows, max_seq_length, padding):
    examples = sentences(*([list(column) for column in zip(*row, strict=True)] for row in rows))
    kind = make(max_seq_length)
    features = kind.encode(examples, training=True)
    assert max(features["length"]) <= max_seq_length
    outputs = np.full((len(features), max_seq_length, len(TAGS)), padding, dtype=np.float32)
    for row, labels in enumerate(features["labels"]):
        for place, label in enumerate(labels):
            if label != -100:
                outputs[row, place] = np.arange(len(TAGS)) == label
    predictions = kind.decode(outputs, features, examples)
    assert predictions == list(examples["tags"])
    assert kind.score(predictions, examples)["accuracy"] == 1


def test_the_first_token_of_a_word_carries_its_tag_also_where_a_sentence_goes_on():
    examples = sentences((["rivers", "xyzzy", "milling", "\u200b"], ["B-x", "I-x", "O", "B-y"]))
    whole = make(16).encode(examples, training=True)
    assert TOKENIZER.convert_ids_to_tokens(whole["input_ids"][0])[1:-1] == [
        *("river", "##s", "[UNK]", "mill", "##ing", "[UNK]")
    ]
    assert whole["labels"][0] == [-100, 1, -100, 2, 0, -100, 3, -100]
    assert whole["places"][0] == [1, 3, 4, 6]
    parts = make(6).encode(examples, training=True)  # whole words only
    assert parts["labels"] == [[-100, 1, -100, 2, -100], [-100, 0, -100, 3, -100]]
    assert parts["example"] == [0, 0]
    short = make(3 + 1).encode(sentences((["river"], ["O"]), (["millings"], ["B-x"])), training=True)
    assert (short["labels"], short["truncated"]) == ([[-100, 0, -100], [-100, 1, -100, -100]], [False, True])


def test_sentences_without_tags_are_predicted_but_not_learned_and_those_without_words_have_no_feature():
    examples = sentences((["river"], ["O"]), ([], []), (["mill", "天"], None))
    assert make().encode(examples, training=True)["example"] == [0]
    features = make().encode(examples, training=False)
    assert features["example"] == [0, 2]
    outputs = np.zeros((2, 4, len(TAGS)), dtype=np.float32)
    outputs[:, 2, 3] = 1
    predictions = make().decode(outputs, features, examples)
    assert predictions == [["O"], [], ["O", "B-y"]]
    assert make().score(predictions, examples) == {"f1": 0.0, "accuracy": 1.0}


def test_the_loss_is_a_sum_over_words_that_batches_do_not_change():
    kind = make()
    examples = sentences((["rivers", "mill"], ["B-x", "I-x"]), (["river", "milling", "天"], ["O", "B-y", "O"]))
    features = list(kind.encode(examples, training=True))
    logits = torch.randn(2, 6, len(TAGS))
    whole = kind.loss(SimpleNamespace(logits=logits), kind.collate(features))
    parts = []
    for row, feature in enumerate(features):
        batch = kind.collate([feature])
        parts.append(kind.loss(SimpleNamespace(logits=logits[row : row + 1, : batch["labels"].shape[1]]), batch))
    torch.testing.assert_close(whole.total, sum(part.total for part in parts))
    assert whole.num_items == sum(part.num_items for part in parts) == 5
    expected = -sum(logits[0, place].log_softmax(-1)[tag] for place, tag in ((1, 1), (3, 2)))
    torch.testing.assert_close(parts[0].total, expected)


def test_a_tokenizer_without_an_unknown_token_is_refused():
    tokenizer = BertTokenizer(vocab={token: n for n, token in enumerate(VOCABULARY)})
    tokenizer.unk_token = None
    with pytest.raises(ValueError, match="no unk_token"):
        make(tokenizer=tokenizer)
