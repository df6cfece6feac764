import io

import numpy as np
import pytest
from rich.console import Console

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining
from hf_electra_rtd.data.stream import RowStream
from hf_electra_rtd.judgement import JudgedToken
from hf_electra_rtd.training.showcase import judge_rows, pick_sentence, print_showcase
from tests.conftest import tiny_config


def test_judged_tokens_are_what_the_model_saw(model, blocks, tokenizer):
    stream, collator = RowStream(blocks[1], shuffle=False), DataCollatorForRTD(tokenizer, seed=1)
    rows = stream.__getitems__([0, 1])
    judged = judge_rows(model, collator, rows)
    output = model(**collator(rows))
    for row, tokens in enumerate(judged):
        assert [token.original for token in tokens] == tokenizer.convert_ids_to_tokens(blocks[1][row]["input_ids"])
        assert [token.replaced for token in tokens] == output.replaced_labels[row].bool().tolist()
        assert sum(token.masked for token in tokens) == 5
        np.testing.assert_allclose(
            [token.probability for token in tokens], output.logits[row].sigmoid().tolist(), rtol=1e-5
        )


@pytest.mark.parametrize("objective", ["mlm", "all_tokens_mlm"])
def test_a_tower_that_predicts_shows_what_it_takes_for_the_original(blocks, tokenizer, objective):
    model = ElectraForRTDPretraining(tiny_config(objective=objective)).eval()
    collator = DataCollatorForRTD(tokenizer, seed=1)
    rows = RowStream(blocks[1], shuffle=False).__getitems__([0, 1])
    shown, batch = judge_rows(model, collator, rows), collator(rows)
    predictions = model(**batch).predictions
    for row, tokens in enumerate(shown):
        asked = batch["masked_positions"][row].tolist() if objective == "mlm" else range(32)
        assert [at for at, token in enumerate(tokens) if token.predicted is not None] == list(asked)
        names = tokenizer.convert_ids_to_tokens(predictions[row])
        assert [tokens[at].predicted for at in asked] == names
    console = Console(file=io.StringIO(), width=80)
    print_showcase([tokens[:8] for tokens in shown], console)
    assert "predicted" in console.file.getvalue()


TOKENS = [
    JudgedToken("[CLS]", "[CLS]", False, 0.0),
    JudgedToken("the", "the", False, 0.1),
    JudgedToken(".", ".", False, 0.1),
    JudgedToken("mill", "river", True, 0.93),
    JudgedToken("was", "saw", True, 0.2),
    JudgedToken("old", "old", True, 0.7),
    JudgedToken(".", ".", False, 0.0),
    JudgedToken("[SEP]", "[SEP]", False, 0.0),
]


def test_the_sentence_with_the_most_replaced_tokens_is_shown():
    assert [token.original for token in pick_sentence(TOKENS)] == ["mill", "was", "old", "."]
    assert len(pick_sentence(TOKENS, longest=2)) == 2


def test_lines_are_aligned_marked_and_in_colour_only_on_a_terminal():
    plain, coloured = (
        Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system="truecolor" if terminal else None)
        for terminal in (False, True)
    )
    print_showcase([pick_sentence(TOKENS)], plain)
    print_showcase([pick_sentence(TOKENS)], coloured)
    text = plain.file.getvalue()
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert lines["original"].split() == ["original", "mill", "was", "old", "."]
    assert lines["corrupted"].split() == ["corrupted", "river", "saw", "old*", "."]
    assert lines["replaced?"].split() == ["replaced?", "93%!", "20%?", "70%x", "0%"]
    assert lines["original"].index("was") == lines["corrupted"].index("saw") == lines["replaced?"].index("20%")
    assert "\x1b[" not in text
    assert "\x1b[" in coloured.file.getvalue()


def test_long_sentences_are_folded_to_the_width():
    console = Console(file=io.StringIO(), width=40)
    print_showcase([TOKENS * 5], console)
    assert all(len(line) <= 40 for line in console.file.getvalue().splitlines())
    assert console.file.getvalue().count("river") == 5
