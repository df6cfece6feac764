#!/usr/bin/env python
"""Pre-trains on proteins: one token for each amino acid.

    python examples/protein.py proteins.fasta --output_dir runs/protein

Each sequence of the FASTA file is a document. All other flags are those of `hf-electra-rtd pretrain`.
"""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hf_electra_rtd.base.cli import run
from hf_electra_rtd.training import pretrain


ALPHABET = "ACDEFGHIKLMNPQRSTVWYBXZUO"
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def make_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each letter."""
    ids = {token: index for index, token in enumerate([*SPECIAL.values(), *alphabet])}
    letters = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    letters.pre_tokenizer = Split(Regex("."), "isolated")
    letters.decoder = decoders.Fuse()
    ends = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    letters.post_processor = TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    return PreTrainedTokenizerFast(tokenizer_object=letters, **SPECIAL)


def read_fasta(path: Path) -> list[str]:
    """The sequences of a FASTA file."""
    records = path.read_text(encoding="ascii").split(">")
    return ["".join(record.split("\n")[1:]).upper() for record in records if record.strip()]


def main(argv: list[str]) -> int:
    fasta, *flags = argv or [""]
    if not Path(fasta).is_file():
        raise ValueError("Name a FASTA file first: python examples/protein.py proteins.fasta --output_dir DIR")
    prepared = Path("proteins")
    prepared.mkdir(exist_ok=True)
    make_tokenizer(ALPHABET).save_pretrained(prepared / "tokenizer")
    (prepared / "text.txt").write_text("\n\n".join(read_fasta(Path(fasta))) + "\n", encoding="utf-8")
    text = ["--train_files", str(prepared / "text.txt"), "--tokenizer", str(prepared / "tokenizer")]
    return pretrain.main([*text, *flags], __doc__, output_dir="runs/protein")


if __name__ == "__main__":
    run(main)
