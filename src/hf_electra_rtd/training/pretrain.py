"""Pre-trains a generator and a discriminator by replaced-token detection, from text to checkpoints that stock
transformers loads.

    hf-electra-rtd pretrain --train_files 'corpus/*.txt' --size small --output_dir runs/small

On several GPUs, launch it with accelerate; the flags are the same:

    accelerate launch -m hf_electra_rtd.training.pretrain --train_files 'corpus/*.txt' \\
        --output_dir runs/small

The defaults below are those of --size tiny; add --size small to see its own. Every flag can stand in a YAML file
instead (--config FILE). --dry_run shows what the run would do and how long it would take. Ctrl-C saves a checkpoint
and says how to continue.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.base.cli import HelpGroups, Rule, check_arguments, flag, given_flags, parse_arguments, parse_size
from hf_electra_rtd.base.cli import run as run_command
from hf_electra_rtd.base.records import count_cores, public_command, utc_now
from hf_electra_rtd.data.arguments import DataArguments
from hf_electra_rtd.data.blocks import Blocks
from hf_electra_rtd.data.sequences import BLOCKS_DIRECTORY, check_held_out, get_sequences, get_tokenizer
from hf_electra_rtd.data.vocabulary import get_extended_tokenizer, old_pieces
from hf_electra_rtd.pair.initialization import begin_on_neighbours, check_room
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.publish import PretrainingPublication
from hf_electra_rtd.training import console
from hf_electra_rtd.training.arguments import (
    HUB_RULES,
    OWN_OPTIMIZERS,
    TRAINER_RULES,
    RTDTrainingArguments,
    check_publishing,
    settle_masking,
    settle_precision,
)
from hf_electra_rtd.training.checkpoints import read_checkpoint
from hf_electra_rtd.training.directory import remove_run, settle_directory
from hf_electra_rtd.training.dry_run import dry_run
from hf_electra_rtd.training.model import BACKBONES, SOURCES, ModelArguments, build_model, recipe_defaults
from hf_electra_rtd.training.plan import ENCODER, PAIR
from hf_electra_rtd.training.signals import StopSignal
from hf_electra_rtd.training.trainer import RTDTrainer, fit_stream, held_out_stream, make_collator


logger = logging.getLogger(__name__)


@dataclass
class RunArguments:
    """More about the run.

    The flags that say how a run starts.
    """

    dry_run: bool = flag(False, "Prepare the text, show what the run would do and how long it would take, and stop.")
    memory_of: str | None = flag(
        None, "With --dry_run, in place of timing: which batches fit a GPU with so much memory (24GB)."
    )
    overwrite_output_dir: bool = flag(False, "Delete the run in --output_dir, and start again.")
    old_held_out_files: list[str] | None = flag(
        None, "With --continue_from: held-out text of the earlier training, to see what the networks forget."
    )


# Rules about flags that belong to different dataclasses.
RULES = (
    Rule("memory_of", "Nothing is trained with it.", needs=("dry_run",)),
    Rule("memory_of", "Other optimizers are not counted.", needs=tuple(f"optim={name}" for name in OWN_OPTIMIZERS)),
    Rule("old_held_out_files", "It shows what the networks forget.", needs=("continue_from",)),
    Rule("document_attention", "It mixes no documents.", excludes=("packing=original",)),
    Rule("num_train_epochs", "The steps decide.", excludes=("max_steps",), changes_nothing=True),
    Rule("word_segmenter", "Tokens are masked one by one.", needs=("masking=word",), changes_nothing=True),
)
# The flags that `--help` shows. A flag whose inherited help is wrong or long has a text of its own here.
HELP_GROUPS: HelpGroups = {
    "Text": {
        "train_files": "Text (.txt, .jsonl, .parquet; .gz, .zst): files, directories, globs; or prepared blocks.",
        "train_datasets": "Datasets of the Hub: 'wikimedia/wikipedia,config=20231101.en,streaming=true'.",
        "held_out_files": None,
        "held_out_share": None,
        "tokenizer": None,
        "vocab_size": None,
        "lowercase": None,
        "max_seq_length": None,
    },
    "Networks": {
        "size": None,
        "objective": None,
        "backbone": None,
        "continue_from": None,
    },
    "Training": {
        "output_dir": None,
        "max_steps": "Steps of the run.",
        "num_train_epochs": "Passes over the sequences, in place of --max_steps.",
        "per_device_train_batch_size": "Sequences per device and step.",
        "gradient_accumulation_steps": "Number of batches per optimizer step.",
        "learning_rate": None,
        "warmup_steps": "Steps of warm-up; below 1: a share of the run. By default at most a tenth of --max_steps.",
        "mask_probability": None,
        "bf16": None,
        "seed": "Seed of weights, masks, samples and the order of sequences.",
    },
    "Evaluation and checkpoints": {
        "eval_steps": "Steps between evaluations; below 1: a share of the run. A fifth of a short run.",
        "save_steps": "Steps between checkpoints; below 1: a share of the run.",
        "resume_from_checkpoint": None,
        "overwrite_output_dir": None,
        "dry_run": None,
        "report_to": "Tracker: tensorboard, wandb or trackio.",
    },
    "Publishing": {
        "push_to_hub": None,
        "hub_model_id": None,
    },
}


def main(
    argv: Sequence[str],
    description: str | None = __doc__,
    output_dir: str | None = RTDTrainingArguments.output_dir,
    default_text: Sequence[str] = (),
) -> int:
    """Runs a pre-training, from the flags to the published models. Returns the exit status: 0; 1 if a complete run
    could not be published; 130 or 143 after Ctrl-C or SIGTERM. `output_dir` and `default_text` are used if no flag
    names others. Raises ValueError and OSError for flags, files and networks that cannot be used, and SystemExit if
    there is nothing to do."""
    # Flags.
    started = utc_now()
    types = (RunArguments, ModelArguments, DataArguments, CardArguments, PretrainingPublication, RTDTrainingArguments)
    recipe, planned = recipe_defaults(given_flags(types, argv))
    run_args, model_args, data_args, card, publication, args = parse_arguments(
        types,
        argv,
        description=description,
        defaults={"output_dir": output_dir, **recipe},
        help_groups=HELP_GROUPS,
        rules=(*RULES, *TRAINER_RULES, *HUB_RULES),
    )
    check_launcher(args)
    check_publishing(args, card, publication)
    check_arguments(run_args, model_args, data_args, args, rules=RULES)
    memory = parse_size("memory_of", run_args.memory_of)  # a mistake is reported before the work begins
    if planned is not None:  # the plan was made for the recipe
        model_args.plan = planned
    plan = model_args.plan
    data_args.set_default_text(default_text)
    _set_up_logging(args)
    set_seed(args.seed)
    directory = Path(str(args.output_dir))
    with ExitStack() as until_the_end:
        # The directory, and the checkpoint that the run continues from.
        sources = model_args.given((*SOURCES, *BACKBONES))
        overwrite = run_args.overwrite_output_dir
        checkpoint = settle_directory(args, sources, overwrite, not run_args.dry_run, until_the_end)
        before = None if checkpoint is None else read_checkpoint(checkpoint, verify=False)[0]["run"]

        # Networks, tokenizer and text.
        initialization = "stock" if checkpoint is not None else model_args.initialization or "stock"
        data_args.warn_of_unused(run_args.old_held_out_files or ())  # a missing file is reported here, not later
        # The main process goes first, and prepares for all; then one process of each node, to fill the node's caches.
        with args.main_process_first(local=False), args.main_process_first(local=True):
            model, tokenizer = _get_networks(model_args, data_args, args, initialization, checkpoint)
            if before is not None and before["discriminator.vocab_size"] != len(tokenizer):
                raise ValueError(
                    f"{checkpoint} has {before['discriminator.vocab_size']} tokens, "
                    f"the tokenizer {len(tokenizer)}. "
                    "Give the --tokenizer and the --extend_vocabulary that the run began with."
                )
            train, held_out, old_held_out = _get_text(run_args, data_args, args, tokenizer, before)
        settle_precision(args, model.config.discriminator_config.hidden_size, before)
        stream = fit_stream(train, args)
        evaluated = held_out_stream(held_out)
        collator = make_collator(tokenizer, args)
        if initialization != "stock":
            begin_on_neighbours(model, stream, tokenizer, args.seed)
        if run_args.dry_run:
            dry_run(model, args, stream, collator, model_args.size, memory)
            return 0

        # The loop.
        words = [sys.argv[0], *argv]
        arguments: dict[str, Any] = {"model": asdict(model_args), "data": asdict(data_args)}
        networks = zip(BACKBONES, (plan.discriminator, plan.generator), strict=True)
        loaded = [name for name, weights in networks if getattr(model_args, name) and weights.kind == ENCODER]
        arguments["model"]["loaded_backbones"] = loaded  # a config.json has no weights
        if run_args.old_held_out_files:
            arguments["data"]["old_held_out_files"] = run_args.old_held_out_files
        publication.is_new = overwrite and checkpoint is None  # this run replaces the one in the directory
        with StopSignal() as stop:
            trainer = RTDTrainer(
                model,
                args,
                train_dataset=stream,
                eval_dataset=evaluated,
                processing_class=tokenizer,
                data_collator=collator,
                card=card,
                publication=publication,
                callbacks=[stop],
            )
            trainer.old_held_out = held_out_stream(old_held_out)
            trainer.record_facts = {"command": public_command(words), "started": started, "arguments": arguments}
            if publication.is_new:
                # A mistake in their flags must show before the old run is deleted. `train` makes both anew, since FSDP
                # replaces the parameters.
                trainer.create_optimizer_and_scheduler(trainer.args.max_steps)
                trainer.optimizer = trainer.lr_scheduler = None
                if args.process_index == 0:
                    remove_run(directory)
            trainer.train(resume_from_checkpoint=checkpoint, verify=False)  # verified when chosen
        if stop.stopped:
            if trainer.is_world_process_zero():
                print(f"\nInterrupted after step {trainer.state.global_step:,}, saved in {directory}.")
                print("To continue, add --resume_from_checkpoint latest to the same command")
                print("(with make: ARGS='--resume_from_checkpoint latest').", flush=True)
            return stop.status

        # The results.
        record = trainer.save_run()
        if not trainer.is_world_process_zero():
            return 0
        console.print_summary(record, str(directory), evaluated, collator)
        return int(any(outcome.error is not None for outcome in trainer.published))


def _set_up_logging(args: RTDTrainingArguments) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO if args.process_index == 0 else logging.ERROR)
    # accelerate warns at every checkpoint that tied tensors are stored once; loading checks them.
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()  # there would be one for every file that is read or written
    used = args.world_size * torch.get_num_threads()
    cores = count_cores()
    if args.device.type == "cpu" and used < cores:  # `accelerate launch` gives each process one thread
        logger.warning(
            f"Using {used} of {cores} CPU cores; set OMP_NUM_THREADS={cores // args.world_size} to use more."
        )


def _get_networks(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: RTDTrainingArguments,
    initialization: str,
    checkpoint: str | None,
) -> tuple[ElectraForRTDPretraining, PreTrainedTokenizerBase]:
    """Returns the pair that the flags describe, with the options of the run, and its tokenizer."""
    blocks = Path(str(args.output_dir)) / BLOCKS_DIRECTORY
    of_towers = None if data_args.tokenizer else model_args.tokenizer_source
    tokenizer = get_tokenizer(data_args, args, blocks, of_towers, checkpoint)
    model = build_model(model_args, tokenizer, args.max_seq_length)  # reports mistakes before the work begins
    if initialization != "stock":
        check_room(model)
    if model_args.plan.discriminator.kind != PAIR:  # a saved pair knows its own probability
        model.config.mask_probability = args.mask_probability
    settle_masking(model.config, args, tokenizer)
    if model_args.extend_vocabulary is not None:
        extended = get_extended_tokenizer(tokenizer, model_args.extend_vocabulary, data_args, args, blocks, checkpoint)
        model.append_tokens(old_pieces(tokenizer, extended))
        tokenizer = extended
    return model, tokenizer


def _get_text(
    run_args: RunArguments,
    data_args: DataArguments,
    args: RTDTrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    before: Mapping[str, Any] | None,
) -> tuple[Blocks, Blocks | None, Blocks | None]:
    """Returns the sequences that the flags name, prepared by the main process: training sequences, held-out sequences,
    and held-out sequences of the text that the networks were trained on before. The last two are None if no flag asks
    for them. `before` describes the run of the checkpoint."""
    blocks = Path(str(args.output_dir)) / BLOCKS_DIRECTORY
    resumed = {} if before is None else {"train": before.get("sequences"), "held_out": before.get("held_out")}
    train, held_out = get_sequences(data_args, args, blocks, tokenizer, resumed=resumed)
    if not run_args.old_held_out_files:
        return train, held_out, None
    if held_out is None:
        raise ValueError("--old_held_out_files needs --held_out_files. Both are evaluated.")
    old = replace(
        data_args,
        train_files=run_args.old_held_out_files,
        train_datasets=[],
        held_out_files=None,
        held_out_share=0.0,
    )
    called = "Held-out old text"
    old_held_out, _ = get_sequences(old, args, blocks / "old_held_out", tokenizer, called=called)
    check_held_out(train, old_held_out)
    return train, held_out, old_held_out


def check_launcher(args: RTDTrainingArguments) -> None:
    """Raises ValueError if processes that the launcher restarts (`--max_restarts`) could not continue the run."""
    if not int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        return
    if args.resume_from_checkpoint not in ("auto", "latest"):
        raise ValueError(
            "--max_restarts restarts a run that exists already: add --resume_from_checkpoint auto, so that it "
            "continues from its last checkpoint."
        )
    # torch's launcher keeps one store for all restarts, which still has the addresses of the earlier processes
    # (https://github.com/pytorch/pytorch/issues/135712).
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(
            "--max_restarts: restarted processes would wait for the earlier ones. "
            "Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every node."
        )


if __name__ == "__main__":
    run_command(main)
