#!/usr/bin/env python
"""Pre-trains a generator and a discriminator by replaced token detection, from text to native checkpoints.

    accelerate launch examples/pretrain.py

trains the tiny size on the bundled corpus (759,000 tokens of English novels) in about five minutes on two CPU cores,
and leaves both towers. On your own text, with the paper's small size:

    accelerate launch examples/pretrain.py --size small --train_files 'corpus/*.txt.zst' --output_dir runs/small

Every flag can stand in a YAML file instead (`--config examples/recipes/small_one_gpu.yaml`); flags win. `--help` lists
them; `--dry_run` shows what would happen, and how long it would take. Ctrl-C saves, and says how to go on.
"""

from pathlib import Path

from hf_electra_rtd import CheckpointError, DivergedError, RTDTrainer
from hf_electra_rtd.training.cli import run_as_script
from hf_electra_rtd.training.interruption import INTERRUPTED, StopSignal, StopSignalCallback
from hf_electra_rtd.training.run import evaluation_at, finish_run, say_how_to_resume, show_rehearsal, start_run
from hf_electra_rtd.training.sharding import gather_pair


BUNDLED_CORPUS = Path(__file__).parent / "data" / "eltec_eng_excerpts.txt.gz"


def main(argv: list[str]) -> int:
    run = start_run(argv, __doc__, {"train_files": [str(BUNDLED_CORPUS)], "output_dir": "runs/pretrain"})
    if run.run_args.dry_run:
        show_rehearsal(run)
        return 0
    with StopSignal() as signal:
        stop = StopSignalCallback(signal)
        trainer = RTDTrainer(
            run.model,
            run.args,
            run.stream,
            run.held_out,
            processing_class=run.tokenizer,
            data_collator=run.collator,
            publication=run.publication,
            callbacks=[stop],
        )
        trainer.train(resume_from_checkpoint=run.checkpoint)
    if stop.stopped:
        if trainer.is_world_process_zero():
            say_how_to_resume(run, trainer.state.global_step)
        return INTERRUPTED
    step, log = trainer.state.global_step, trainer.state.log_history
    metrics = None if run.args.load_best_model_at_end else evaluation_at(step, log)
    if metrics is None:
        metrics = trainer.evaluate() if run.held_out is not None else {}
    model = gather_pair(run.model, trainer.model_wrapped, trainer.accelerator)
    if trainer.is_world_process_zero():
        finish_run(run, model, step, trainer.train_seconds, log, metrics)
    return 0


if __name__ == "__main__":
    run_as_script(main, DivergedError, CheckpointError)
