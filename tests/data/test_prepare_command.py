import re
import runpy
import shlex
import string
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import zstandard

from hf_electra_rtd.data import prepare_command, sequences
from hf_electra_rtd.data.arguments import DataArguments, PreparationArguments
from hf_electra_rtd.data.sequences import get_sequences, get_tokenizer
from hf_electra_rtd.data.shards import open_blocks
from hf_electra_rtd.data.text import open_texts
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS, load_tokenizer, save_tokenizer, tokenizer_hash
from tests.conftest import VOCABULARY, make_text


EXAMPLES = Path(__file__).parents[2] / "examples"


RUN = PreparationArguments(max_seq_length=32, seed=0, disable_tqdm=True)
OTHER_PROCESS = replace(RUN)
OTHER_PROCESS.process_index = 1


def test_other_processes_open_what_the_first_prepared_without_reading_it_all(tmp_path, corpus, tokenizer, monkeypatch):
    data = DataArguments(train_files=[str(corpus)], held_out_share=0.1)
    with pytest.raises(ValueError, match=r"train\.blocks cannot be read: No such file.*all machines"):
        get_sequences(data, OTHER_PROCESS, tmp_path, tokenizer)
    first = get_sequences(data, RUN, tmp_path, tokenizer)
    monkeypatch.setattr(sequences, "prepare_blocks", lambda *_, **__: pytest.fail("it was prepared again"))
    opened = get_sequences(data, OTHER_PROCESS, tmp_path, tokenizer)
    assert [file.header for file in opened] == [file.header for file in first]


def test_a_resumed_run_reads_its_text_only_if_named_otherwise_and_keeps_its_blocks(
    tmp_path, corpus, tokenizer, monkeypatch
):
    read = Mock(wraps=open_texts)
    before, _ = get_sequences(DataArguments([str(corpus)]), RUN, tmp_path, tokenizer)
    monkeypatch.setattr("hf_electra_rtd.data.preparation.open_texts", read)
    resumed = {"train": before.header.sha256}
    for options, times in (({}, 0), ({"train_files": [f"{corpus},weight=2"]}, 1), ({"packing": "original"}, 1)):
        data = DataArguments(**{"train_files": [str(corpus)], **options})
        with pytest.raises(ValueError, match=r"train\.blocks") if options else nullcontext():
            get_sequences(data, RUN, tmp_path, tokenizer, resumed)
        assert read.call_count == times


def test_text_that_is_both_trained_on_and_held_out_is_refused_but_of_one_split(tmp_path, tokenizer):
    train = tmp_path / "train"
    made = []
    train.mkdir()
    for path, seed in ((train / "a.txt", 0), (train / "b.txt", 1), (tmp_path / "other.txt", 2)):
        path.write_text(make_text(20, seed))
    (tmp_path / "copy.txt.zst").write_bytes(zstandard.compress(make_text(20).encode()))
    (tmp_path / "link.txt").symlink_to(train / "a.txt")
    for seed in (0, 1):
        data = DataArguments(train_files=[str(train)], held_out_share=0.1)
        both = get_sequences(data, replace(RUN, seed=seed), tmp_path / str(seed), tokenizer)
        made.append([file.path for file in both])
    for source, held_out, refused in (
        *((source, str(tmp_path / "other.txt"), None) for source in (str(train), made[0][0])),
        (*made[0], None),
        *((str(train), str(tmp_path / name), name) for name in ("train/a.txt", "link.txt", "copy.txt.zst")),
        (made[0][0], str(tmp_path / "copy.txt.zst"), "copy.txt.zst"),
        (made[0][0], made[1][1], "a.txt"),
    ):
        message = rf"{Path(refused or '').name}, which is held out, .* as a\.txt, which is trained on"
        with pytest.raises(ValueError, match=message) if refused else nullcontext():
            get_sequences(DataArguments([source], held_out_files=[held_out]), RUN, tmp_path / "run", tokenizer)


def test_a_mistake_in_held_out_text_shows_before_the_training_text_is_prepared(tmp_path, corpus, tokenizer):
    (tmp_path / "held_out.jsonl").write_text('{"body": "the mill"}\n')
    data = DataArguments([str(corpus)], held_out_files=[str(tmp_path / "held_out.jsonl")])
    with pytest.raises(ValueError, match="body"):
        get_sequences(data, RUN, tmp_path / "run", tokenizer)
    assert not list((tmp_path / "run").glob("train*"))


def test_block_files_that_do_not_fit_the_run_are_refused(tmp_path, corpus, tokenizer):
    made, _ = get_sequences(DataArguments([str(corpus)], held_out_share=0.0), RUN, tmp_path, tokenizer)
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, "more"]) + "\n")
    for files, tokenizer_, message in (
        ([], tokenizer, r"nothing to train on.*--train_files.*--train_datasets"),
        ([made.path], tokenizer, "prepared with --max_seq_length 32, not 64"),
        ([made.path], load_tokenizer(str(tmp_path / "vocab.txt")), r"another tokenizer.*--tokenizer"),
        ([made.path, str(corpus)], tokenizer, "must be the only source, but 2 are named"),
    ):
        with pytest.raises(ValueError, match=message):
            get_sequences(DataArguments(files), replace(RUN, max_seq_length=64), tmp_path, tokenizer_)
    with pytest.raises(ValueError, match="no text to train a tokenizer on"):
        get_tokenizer(DataArguments([made.path]), RUN, tmp_path)


def test_a_resumed_run_and_other_processes_find_the_tokenizer_that_was_trained(tmp_path, corpus, monkeypatch):
    data = DataArguments([str(corpus)], vocab_size=100)
    trained, again = (tokenizer_hash(get_tokenizer(data, RUN, tmp_path)) for _ in range(2))
    monkeypatch.setattr(sequences, "train_wordpiece", lambda *_: pytest.fail("it was trained"))
    resumed = get_tokenizer(data, RUN, tmp_path / "none", checkpoint=str(tmp_path / "tokenizer"))
    assert trained == again == tokenizer_hash(resumed)
    assert trained == tokenizer_hash(get_tokenizer(data, OTHER_PROCESS, tmp_path))
    for name, value in (("vocab_size", 50), ("lowercase", False), ("strip_accents", False)):
        with pytest.raises(ValueError, match=f"--{name} {value}"):
            get_tokenizer(replace(data, **{name: value}), RUN, tmp_path, checkpoint=str(tmp_path / "tokenizer"))


# ---- The command ----


def test_what_is_prepared_already_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.blocks").touch()
    with pytest.raises(ValueError, match=r"a\.blocks"):
        prepare_command.main(["--train_files", "a.blocks"])
    assert not Path("runs").exists()


@pytest.mark.parametrize("later", [["--vocab_size", "60"], ["--tokenizer", "second"]])
def test_a_preparation_that_fails_leaves_earlier_blocks_their_own_tokenizer(
    tmp_path, corpus, tokenizer, monkeypatch, later
):
    monkeypatch.chdir(tmp_path)
    flags = ["--max_seq_length", "32", "--disable_tqdm", "--output_dir", str(tmp_path / "out")]
    save_tokenizer(tokenizer, tmp_path / "first")
    prepare_command.main(["--train_files", str(corpus), "--tokenizer", str(tmp_path / "first"), *flags])
    (other := load_tokenizer(str(tmp_path / "first"))).add_tokens("another")
    save_tokenizer(other, tmp_path / "second")
    (tmp_path / "short.txt").write_text("the\n\nmill\n")
    with pytest.raises(ValueError, match="too few for one sequence"):
        prepare_command.main(["--train_files", "short.txt", *later, *flags])
    kept = load_tokenizer(str(tmp_path / "out" / "tokenizer"))
    assert open_blocks(tmp_path / "out" / "train.blocks").header.tokenizer_hash == tokenizer_hash(kept)


@pytest.mark.parametrize(
    "name", ["train.blocks/mine", "held_out.blocks/mine", "train/mine", "tokenizer/tokenizer.json"]
)
def test_what_no_preparation_has_left_stays(tmp_path, corpus, name):
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).write_text("mine")
    flags = ["--max_seq_length", "32", "--disable_tqdm", "--output_dir", str(tmp_path / "out"), "--vocab_size", "100"]
    sharded = ["--shard_size", "2KB"] if name.startswith("train/") else []
    with pytest.raises(ValueError, match=f"out/{name.partition('/')[0]}"):
        prepare_command.main(["--train_files", str(corpus), "--held_out_share", "0.1", *flags, *sharded])
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_flags_of_text_are_told_of_only_where_all_of_it_is_prepared(tmp_path, corpus, caplog):
    (tmp_path / "a.blocks").touch()
    data = DataArguments(train_files=[str(tmp_path / "a.blocks")], packing="original")
    data.warn_of_unused([str(corpus)])
    assert not caplog.records
    data.warn_of_unused()
    assert "--packing" in caplog.text


@pytest.mark.slow
def test_the_command_that_it_prints_trains_on_what_it_made(tmp_path, capsys, monkeypatch):
    characters = string.ascii_lowercase + string.digits + string.punctuation
    tokens = [*SPECIAL_TOKENS, *characters, *(f"##{character}" for character in characters)]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    monkeypatch.chdir(tmp_path)
    flags = ["--max_seq_length", "32", "--held_out_share", "0.1", "--disable_tqdm", "--tokenizer", "vocab.txt"]
    monkeypatch.setattr(sys, "argv", ["prepare.py", *flags])
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(EXAMPLES / "prepare.py"), run_name="__main__")
    assert not exit.value.code
    printed = capsys.readouterr().out.replace("\\\n", " ")
    (command,) = re.findall(r"hf-electra-rtd pretrain --size small (.*)", printed)
    arguments = shlex.split(command)
    assert arguments[:4] == ["--output_dir", "runs/small", "--train_files", "runs/corpus/train.blocks"]
    from hf_electra_rtd.training import pretrain

    few = ["--max_steps", "2", "--warmup_steps", "1", "--per_device_train_batch_size", "4", "--use_cpu"]
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])
    pretrain.main([*arguments, *few, "--disable_tqdm", "True", "--output_dir", "run"])
    assert (tmp_path / "run" / "discriminator").exists()
