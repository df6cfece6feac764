import pytest

from hf_electra_rtd.data.preparation import describe, prepare_blocks
from hf_electra_rtd.data.tokenization import load_tokenizer
from tests.conftest import VOCABULARY, make_text


def prepare(corpus, tokenizer, directory, **options):
    return prepare_blocks([str(corpus)], tokenizer, directory, 32, disable_progress=True, **options)


def tokens_of(text, tokenizer):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_held_out_documents_are_whole_and_no_token_of_theirs_is_trained_on(tmp_path, tokenizer):
    # Every document is one word of its own, so rows tell which documents they came from.
    words = [token for token in VOCABULARY if token.isalpha()][:20]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(" ".join([word] * 100) for word in words))
    train, held_out = prepare(corpus, tokenizer, tmp_path, held_out_share=0.2)
    in_train, in_held_out = (
        {token for row in range(len(part)) for token in part[row]["input_ids"] if token >= 10}
        for part in (train, held_out)
    )
    assert not in_train & in_held_out
    assert len(in_held_out) == 4
    assert len(in_train) == 16
    assert held_out.header.statistics["documents"] == 4


@pytest.mark.parametrize("packing", ["full", "original"])
def test_statistics_account_for_every_token(tmp_path, corpus, tokenizer, packing):
    train, _ = prepare(corpus, tokenizer, tmp_path, packing=packing)
    counts = train.header.statistics
    assert counts["corpus_tokens"] == len(tokens_of(corpus.read_text(), tokenizer))
    assert counts["documents"] == 40
    assert counts["unknown_tokens"] == 0
    kept = sum(int((train[row]["input_ids"] > 4).sum()) for row in range(len(train)))
    assert kept + counts["dropped_tokens"] == counts["corpus_tokens"]
    assert counts["two_segment_rows"] == sum(bool(train[row]["token_type_ids"].any()) for row in range(len(train)))
    assert counts["full_rows"] == sum(len(train[row]["input_ids"]) == 32 for row in range(len(train)))
    if packing == "full":
        assert counts["dropped_tokens"] < 30
        assert train.header.uniform
    assert "40 documents" in describe(train)


def test_what_was_prepared_is_used_again_and_made_anew_when_anything_changed(tmp_path, corpus, tokenizer):
    def modified():
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.blocks")}

    prepare(corpus, tokenizer, tmp_path, held_out_share=0.1)
    first = modified()
    prepare(corpus, tokenizer, tmp_path, held_out_share=0.1)
    assert modified() == first
    prepare(corpus, tokenizer, tmp_path, held_out_share=0.1, seed=1)
    assert all(modified()[name] != time for name, time in first.items())
    cased = tmp_path / "vocab.txt"
    cased.write_text("\n".join([*VOCABULARY, "Mill"]) + "\n")
    again, _ = prepare(corpus, load_tokenizer(str(cased)), tmp_path, held_out_share=0.1, seed=1)
    assert again.header.vocab_size == len(VOCABULARY) + 1


def test_an_altered_result_is_made_anew(tmp_path, corpus, tokenizer, caplog):
    train, _ = prepare(corpus, tokenizer, tmp_path)
    content = bytearray((tmp_path / "train.blocks").read_bytes())
    content[100] ^= 1
    (tmp_path / "train.blocks").write_bytes(content)
    again, _ = prepare(corpus, tokenizer, tmp_path)
    assert "was altered" in caplog.text
    assert again.header == train.header


def test_a_failure_leaves_no_file(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the mill\n\nthe river\n")
    with pytest.raises(ValueError, match=r"too few for one row of 32.*--row_length"):
        prepare(corpus, tokenizer, tmp_path / "blocks")
    assert list((tmp_path / "blocks").iterdir()) == []


def test_lines_without_known_characters_end_no_document(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(3) + "\n\u200b\n" + make_text(2))
    train, _ = prepare(corpus, tokenizer, tmp_path)
    assert train.header.statistics["documents"] == 5
