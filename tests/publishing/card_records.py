"""Records as real runs leave them, small."""

from hf_electra_rtd.publishing.cards import Details
from hf_electra_rtd.records import EvaluationRecord, PretrainingRecord


DETAILS = Details("apache-2.0", ("en",), ("wikimedia/wikipedia",), "Ada Lovelace")
HARDWARE = {"processor": "A Processor", "cpu_cores": 8, "accelerators": []}
VERSIONS = {"python": "3.11.7", "transformers": "5.23.0"}


def tower(**changes):
    return {
        "vocab_size": 30522,
        "embedding_size": 64,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 512,
        "max_position_embeddings": 512,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.06,
        **changes,
    }


def run_record(objective="rtd", size="tiny", training=None, model=None, **changes):
    has_generator = objective != "mlm"
    main = tower() if size == "tiny" else tower(hidden_size=256, hidden_dropout_prob=0.1, initializer_range=0.02)
    return PretrainingRecord(
        **{
            "command": "pretrain.py --train_files /srv/private/news.txt --output_dir=/home/ada/runs/tiny --size tiny",
            "started": "2026-11-21T11:16:09+00:00",
            "finished": "2026-11-21T12:27:23+00:00",
            "arguments": {
                "model": {"size": size, "model_config": None, "generator": None, "discriminator": None},
                "data": {"data_license": "CC BY-SA 4.0", "held_out_share": 0.01, "drop_duplicates": "no"},
                "training": {
                    "learning_rate": 5e-4,
                    "lr_scheduler_type": "linear",
                    "warmup_steps": 500.0,
                    "weight_decay": 0.01,
                    "adam_beta1": 0.9,
                    "adam_beta2": 0.999,
                    "adam_epsilon": 1e-6,
                    "max_grad_norm": 1.0,
                    "bf16": False,
                    "fp16": False,
                    "seed": 42,
                    "mask_probability": 0.15,
                    "keep_probability": 0.15,
                    "masking": "token",
                    "bias_correction": True,
                    "output_dir": "/home/ada/runs/tiny",
                    **(training or {}),
                },
            },
            "model": {
                "objective": objective,
                "sharing": "embeddings" if has_generator else "none",
                "generator": "masked_lm",
                "generator_weight": 1.0,
                "discriminator_weight": 50.0,
                "temperature": 1.0,
                "discriminator_config": main,
                "generator_config": tower(hidden_size=32) if has_generator else None,
                **(model or {}),
            },
            "parameters": {"generator": 2072090, "discriminator": 2804481, "head": 0, "total": 2890139},
            "data": {
                "train": {
                    "row_length": 128,
                    "num_rows": 353835,
                    "num_tokens": 45290880,
                    "packing": "full",
                    "tokenizer_hash": "7e57d6",
                    "sha256": "6aa990",
                    "statistics": {"documents": 45365, "corpus_tokens": 44223799, "unknown_tokens": 8075},
                    "sources": [{"name": "news.txt", "sha256": "1f0955", "weight": 1.0, "num_documents": 36064}],
                },
                "held_out": {"num_rows": 564, "num_tokens": 72192},
            },
            "hardware": HARDWARE,
            "versions": VERSIONS,
            "steps": 7300,
            "rows": 116800,
            "tokens": 14950400,
            "train_seconds": 3993.7,
            "flops": {"model": 1.18e14, "paper": 3.16e14},
            "curves": [{"step": 100, "loss": 30.0}, {"step": 1825, "eval_discriminator_auc": 0.5431}],
            "metrics": {
                "eval_discriminator_auc": 0.6853,
                "eval_discriminator_accuracy": 0.8669,
                "eval_discriminator_recall": 0.0321,
                "eval_replaced_share": 0.1349,
            },
            **changes,
        }
    )


def evaluation_record(task="mrpc", seed=42, score=0.7, metric="accuracy", model=None, **changes):
    return EvaluationRecord(
        **{
            "command": "finetune.py --model_name_or_path /home/ada/runs/tiny --task_name mrpc",
            "started": "2026-11-21T12:33:35+00:00",
            "finished": "2026-11-21T12:36:28+00:00",
            "benchmark": "glue",
            "task": task,
            "language": "en",
            "kind": "classification",
            "model": {
                "name_or_path": "runs/tiny",
                "architecture": "ElectraForSequenceClassification",
                "parameters": 2804610,
                "head": "transformers",
                "from_scratch": False,
                "peft": None,
                **(model or {}),
            },
            "arguments": {"labels": ["no", "yes"], "learning_rate": 3e-4, "max_length": 128, "peft": None},
            "seed": seed,
            "data": {"train": {"rows": 3668, "files": {"train.tsv": "69abce"}}, "dev": {"rows": 408}},
            "metrics": {"dev": {metric: score}},
            "main_metric": metric,
            "selection": "last step",
            "steps": 690,
            "epochs": 3.0,
            "train_seconds": 171.2,
            "sentences_per_second": 128.6,
            "hardware": HARDWARE,
            "versions": VERSIONS,
            "dataset": {
                "title": task.upper(),
                "id": "nyu-mll/glue",
                "config": task,
                "splits": {"train": "train", "dev": "validation", "test": "test"},
            },
            **changes,
        }
    )


def runs(task="mrpc", scores=(0.7, 0.75, 0.6), **options):
    return [evaluation_record(task, 42 + index, score, **options) for index, score in enumerate(scores)]
