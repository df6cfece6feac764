from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hf_electra_rtd.finetuning.kinds.rows import RowFrame, pad_rows


def test_a_row_is_what_the_tokenizer_itself_makes_of_the_parts(tokenizer):
    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    single, pair = RowFrame(tokenizer, 1), RowFrame(tokenizer, 2)
    encoded = tokenizer("the old mill")
    assert single.row(ids("the old mill")) == {key: encoded[key] for key in ("input_ids", "token_type_ids")}
    encoded = tokenizer("the old mill", "she went")
    assert pair.row(ids("the old mill"), ids("she went")) == {
        key: encoded[key] for key in ("input_ids", "token_type_ids")
    }
    assert (single.num_special, pair.num_special, single.start) == (2, 3, 1)


def test_special_tokens_stand_where_the_tokenizer_wants_them(tokenizer):
    # As RoBERTa's: two separators between the texts, and no segments.
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = TemplateProcessing(
        single="[CLS] [CLS] $A", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    other = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", model_input_names=["input_ids", "attention_mask"]
    )
    assert RowFrame(other, 1).row([8, 9]) == {"input_ids": [2, 2, 8, 9]}
    assert RowFrame(other, 1).start == 2
    assert RowFrame(other, 2).row([8, 9], [7]) == {"input_ids": [2, 8, 9, 3, 3, 7, 3]}
    assert RowFrame(other, 2).row([], [7]) == {"input_ids": [2, 3, 3, 7, 3]}


def test_rows_are_padded_on_the_right_whatever_the_tokenizer_prefers(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "padding_side", "left")
    monkeypatch.setattr(tokenizer, "_pad_token_type_id", 1)
    rows = [
        {"input_ids": [2, 8, 3], "token_type_ids": [0, 0, 0]},
        {"input_ids": [2, 8, 3, 9, 3], "token_type_ids": [0, 0, 0, 1, 1]},
    ]
    batch = pad_rows(rows, tokenizer)
    assert batch["input_ids"].tolist() == [[2, 8, 3, 0, 0], [2, 8, 3, 9, 3]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert pad_rows([{"input_ids": [2, 3]}], tokenizer).keys() == {"input_ids", "attention_mask"}
