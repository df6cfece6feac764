import json
import runpy
import sys
from pathlib import Path

import pytest


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
BENCHMARK = runpy.run_path(str(BENCHMARKS / "data.py"))


@pytest.mark.slow
def test_everything_is_measured_and_the_last_line_is_json(tmp_path, corpus, tokenizer, capfd):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    output = tmp_path / "output"
    BENCHMARK["main"](
        [
            *(str(corpus), "--tokenizer", str(tmp_path / "tokenizer"), "--output_dir", str(output)),
            *("--megabytes", "0.1", "--rounds", "1", "--num_proc", "1", "--repeats", "2", "--max_seq_length", "32"),
        ]
    )
    printed = json.loads(capfd.readouterr().out.splitlines()[-1])
    (written,) = output.glob("data_*.json")
    assert json.loads(written.read_text()) == printed
    rows = {row["what"]: row for row in printed["rows"]}
    assert list(rows) == [
        "tokenizer alone",
        "preparation",
        "preparation, text 2 times",
        "feeding: read",
        "feeding: read and mask",
        "import, beyond transformers",
    ]
    assert all(
        number > 0 for row in rows.values() for key, number in row.items() if key not in ("what", "peak_megabytes")
    )
    assert rows["tokenizer alone"]["share_of_tokenizer_alone"] == 1.0
    assert {"date", "hardware", "versions"} < printed.keys()
