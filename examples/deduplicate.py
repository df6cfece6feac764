"""Prepares text of the web on many machines: a pipeline of datatrove that filters documents and drops near copies
(MinHash), and ends with our preparation.

    python examples/deduplicate.py --data_folder corpus/ --tokenizer vocab.txt --output_dir corpora/web --tasks 8

reads the JSON lines in `corpus/` and writes `train/`, `held_out/` and `tokenizer/`, as `hf-electra-rtd prepare` does.
Change it: another reader (`ParquetReader`, `WarcReader`), other filters, `SlurmPipelineExecutor`. The same command
runs the tasks again that were killed.
"""

import argparse

from datatrove.pipeline.dedup import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer

from hf_electra_rtd.data.distributed import LocalExecutor, PackShards, index_shards
from hf_electra_rtd.data.tokenization import load_tokenizer


class Words(WordTokenizer):
    """Splits text into words at spaces. (For a language by its name, `language="en"`, MinHash needs spaCy.)"""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    sent_tokenize = span_tokenize = word_tokenize


def is_long(document, words: int = 5) -> bool:
    return len(document.text.split()) >= words


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_folder", required=True, help="Of .jsonl, .jsonl.gz or .jsonl.zst files.")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_seq_length", type=int, default=512)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2, help="Tasks at a time.")
    flags = parser.parse_args(argv)
    # xxhash, datatrove's default, accepts text only in versions before 4.
    work, config = f"{flags.output_dir}/minhash", MinhashConfig(hash_config=HashConfig(hash_fc="sha1"))

    def run(pipeline: list, tasks: int, logging_dir: str) -> None:
        LocalExecutor(pipeline, tasks=tasks, workers=flags.workers, logging_dir=logging_dir).run()

    read = [JsonlReader(flags.data_folder), LambdaFilter(is_long)]
    sign = MinhashDedupSignature(f"{work}/signatures", config, language=Words("any"))
    run([*read, sign], flags.tasks, f"{work}/tasks/signatures")
    find = MinhashDedupBuckets(f"{work}/signatures", f"{work}/buckets", config=config)
    run([find], config.num_buckets, f"{work}/tasks/buckets")
    run([MinhashDedupCluster(f"{work}/buckets", f"{work}/copies", config=config)], 1, f"{work}/tasks/clusters")
    # The same tasks read the same documents again, so that the filter knows which are copies.
    pack = PackShards(flags.output_dir, load_tokenizer(flags.tokenizer), flags.max_seq_length, flags.data_folder)
    run([*read, MinhashDedupFilter(f"{work}/copies"), pack], flags.tasks, f"{flags.output_dir}/tasks")
    index_shards(flags.output_dir, flags.tasks)


if __name__ == "__main__":
    main()
