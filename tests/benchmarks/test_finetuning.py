import json
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import finetuning


def test_padding_is_reported_and_a_fixed_length_has_the_most(tmp_path, tokenizer, capfd):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "CoLA").mkdir()
    for split in ("train", "dev"):
        rows = (f"x\t{i % 2}\t\t{'the old river ' * (1 + i % 5)}\n" for i in range(600))
        (tmp_path / f"CoLA/{split}.tsv").write_text("".join(rows))
    flags = ["--data_dir", str(tmp_path), "--task_name", "cola", "--tokenizer", str(tmp_path / "tokenizer")]
    flags += ["--size", "tiny", "--steps", "6", "--rounds", "1", "--batch_size", "8", "--max_seq_length", "32"]
    finetuning.main([*flags, "--output_dir", str(tmp_path / "results")])
    printed = json.loads(capfd.readouterr().out.splitlines()[-1])
    (written,) = (tmp_path / "results").glob("finetuning_*.json")
    assert json.loads(written.read_text()) == printed
    share = {row["what"]: row["real_share"] for row in printed["rows"]}
    assert share["fixed"] < share["random"] < share["by length"] <= 1
    assert all(row["examples_per_second"] > 0 for row in printed["rows"])
