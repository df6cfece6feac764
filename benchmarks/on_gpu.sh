#!/usr/bin/env bash
# What only a GPU can show, in one call of a few minutes, from a checkout alone: nothing is installed or fetched.
#
#   benchmarks/on_gpu.sh [BLOCKS_DIR] [--minutes 9] [--out DIR] [--parts PART...]      # --help says more
#   benchmarks/on_gpu.sh --device cpu --size tiny --minutes 3                          # tries the script itself
#
# In this order: correctness against the CPU; the tests that a GPU can change; does a step wait for the device; races of
# ELECTRA-small (128 x 128 tokens) and base (32 x 512) with speed, memory and share of the GPU's peak; a profile of our
# fastest step; and, with the time left, a real run on BLOCKS_DIR with held-out metrics. Everything found is written at
# once, to $OUT or runs/on_gpu: results.jsonl, report.txt, stderr.txt, profile.txt, run_record.json,
# training_curves.png. Exit status 1: a check failed.
#
# Needs torch, transformers, accelerate; pytest with pytest-timeout for the tests; scikit-learn and matplotlib for the
# run. A part that lacks something is skipped and says so.
#
# BLOCKS_DIR comes from a machine that has text:
#   hf-electra-rtd prepare --train_files 'corpus/*.txt' --vocab_size 30522 --output_dir corpora/for_gpu
# A token takes two bytes, and about four and a half letters of English text make one. Where the whole checkout may
# have 64 MiB, 110 MB of text (24 million tokens, 48 MiB) fit: `head -c 110M` of it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$here/../src:$here/..${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
exec "${PYTHON:-python3}" "$here/on_gpu.py" --out "${OUT:-$here/../runs/on_gpu}" "$@"
