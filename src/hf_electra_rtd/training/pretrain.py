"""Pre-trains a generator and a discriminator by replaced-token detection, from text to checkpoints that stock
transformers loads.

    hf-electra-rtd pretrain --train_files 'corpus/*.txt' --size small --output_dir runs/small

On several GPUs, launch it with accelerate; the flags are the same:

    accelerate launch -m hf_electra_rtd.training.pretrain --train_files 'corpus/*.txt' \\
        --output_dir runs/small

The defaults below are those of --size tiny; add --size small to see its own. Every flag can stand in a YAML file
instead (--config FILE). --dry_run shows what the run would do and how long it would take. Ctrl-C saves a checkpoint
and prints the command that continues.
"""

from __future__ import annotations

import copy
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from platform import node
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from accelerate.utils import broadcast_object_list, gather_object
from rich.console import Console
from rich.filesize import decimal as format_bytes
from rich.text import Text
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.base.accounting import count_parameters, format_duration
from hf_electra_rtd.base.cli import HelpGroups, Rule, check_arguments, flag, given_flags, parse_arguments, parse_size
from hf_electra_rtd.base.cli import run as run_command
from hf_electra_rtd.base.files import PARTIAL, lock_directory, naming, remove_partial
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.base.records import PretrainingRecord, count_cores, public_command, utc_now
from hf_electra_rtd.data.arguments import DataArguments
from hf_electra_rtd.data.blocks import Blocks, SequenceStream
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.sequences import (
    BLOCKS_DIRECTORY,
    check_held_out,
    describe_text,
    get_sequences,
    get_tokenizer,
)
from hf_electra_rtd.data.vocabulary import get_extended_tokenizer, old_pieces
from hf_electra_rtd.pair.bigram import count_text
from hf_electra_rtd.pair.initialization import begin_on_neighbours, check_room
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.publish import PretrainingPublication
from hf_electra_rtd.training import checkpoints, console, meters
from hf_electra_rtd.training.arguments import (
    HUB_RULES,
    OWN_OPTIMIZERS,
    TRAINER_RULES,
    RTDTrainingArguments,
    check_publishing,
    settle_masking,
    settle_products,
)
from hf_electra_rtd.training.memory import RESERVE, fake_steps, fit_batches
from hf_electra_rtd.training.model import BACKBONES, SOURCES, ModelArguments, build_model, recipe_defaults
from hf_electra_rtd.training.trainer import RTDTrainer, StopSignal, fit_stream, held_out_stream, make_collator


logger = logging.getLogger(__name__)

_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "embedding_size")
_TIMED_STEPS = 3  # after one to warm up
_MOST_PASSES = 40  # over one text, after which more add next to nothing (Muennighoff et al. 2023, arXiv 2305.16264)
_DAY = 86_400  # seconds
_LONG = 7  # days
_FLOAT = 4  # bytes of a parameter; a checkpoint holds three numbers for each: weight and two moments of Adam


@dataclass
class RunArguments:
    """How the run starts."""

    dry_run: bool = flag(False, "Prepare the text, show what the run would do and how long it would take, and stop.")
    memory_of: str | None = flag(
        None, "With --dry_run, in place of timing: which batches fit a GPU with so much memory (24GB)."
    )
    overwrite_output_dir: bool = flag(False, "Delete the run in --output_dir, and start again.")
    old_held_out_files: list[str] | None = flag(
        None, "With --continue_from: held-out text of the earlier training, to see what the networks forget."
    )
    cache_dir: str | None = flag(None, "Local directory for copies of remote shards. Runs on one node can share it.")


# Of flags of several dataclasses.
RULES = (
    Rule("memory_of", "Nothing is trained with it.", needs=("dry_run",)),
    Rule("memory_of", "Other optimizers are not counted.", needs=tuple(f"optim={name}" for name in OWN_OPTIMIZERS)),
    Rule("old_held_out_files", "It shows what the networks forget.", needs=("continue_from",)),
    Rule("document_attention", "It mixes no documents.", excludes=("packing=original",)),
)
# What `--help` shows of all that there is. A text of its own has a flag whose inherited one is false or long.
HELP_GROUPS: HelpGroups = {
    "Text": {
        "train_files": "Text (.txt, .jsonl, .parquet; .gz, .zst): files, directories, globs; or prepared blocks.",
        "train_datasets": "Datasets of the Hub: 'wikimedia/wikipedia,config=20231101.en,streaming=true'.",
        "held_out_files": None,
        "held_out_share": None,
        "tokenizer": None,
        "vocab_size": None,
        "lowercase": None,
        "strip_accents": None,
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
        "num_train_epochs": "In place of --max_steps: passes over the sequences.",
        "per_device_train_batch_size": "Sequences per device and step.",
        "gradient_accumulation_steps": "Number of batches per optimizer step.",
        "learning_rate": None,
        "warmup_steps": "Steps of warm-up; below 1: a share of the run. A tenth of a short run.",
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
    },
    "Publishing": {
        "push_to_hub": None,
        "hub_model_id": None,
    },
}


@dataclass
class Run:
    """A run that is ready for its loop."""

    argv: list[str]  # the command line, the program first
    arguments: RunArguments
    args: RTDTrainingArguments
    card: CardArguments
    publication: PretrainingPublication
    checkpoint: str | None  # directory to resume from
    tokenizer: PreTrainedTokenizerBase
    stream: SequenceStream  # the training sequences, as long as the run
    held_out: SequenceStream | None
    old_held_out: SequenceStream | None  # of the text that the networks were trained on before
    collator: DataCollatorForRTD
    model: ElectraForRTDPretraining
    record_facts: dict[str, Any]  # arguments of `make_record` that only the command line knows

    @property
    def directory(self) -> Path:
        return Path(str(self.args.output_dir))

    @property
    def replaces_another(self) -> bool:
        """Whether the run that lies in `directory` is deleted."""
        return self.arguments.overwrite_output_dir and self.checkpoint is None


def main(
    argv: Sequence[str],
    description: str | None = __doc__,
    defaults: Mapping[str, Any] | None = None,
    default_text: Sequence[str] = (),
) -> int:
    """Pre-trains from flags to the published models. Returns the exit status: 0; 1 where a complete run could not be
    published; 130 or 143 after Ctrl-C or SIGTERM. `default_text` is used where no flag names text."""
    with start(argv, description, defaults or {}, default_text) as run:
        if run.arguments.dry_run:
            dry_run(run)
            return 0
        with StopSignal() as stop:
            run.publication.is_new = run.replaces_another
            trainer = RTDTrainer(
                run.model,
                run.args,
                train_dataset=run.stream,
                eval_dataset=run.held_out,
                processing_class=run.tokenizer,
                data_collator=run.collator,
                card=run.card,
                publication=run.publication,
                callbacks=[stop],
            )
            trainer.old_held_out = run.old_held_out
            trainer.record_facts = run.record_facts
            if run.replaces_another and run.args.process_index == 0:  # everything else is checked
                checkpoints.remove_run(run.directory)
            trainer.train(resume_from_checkpoint=run.checkpoint)
        if stop.stopped:
            if trainer.is_world_process_zero():
                program, *words = run.argv
                if not program.startswith("hf-electra-rtd "):
                    program = shlex.quote(program)
                print(f"\nInterrupted after step {trainer.state.global_step:,}, saved in {run.directory}. Continue:")
                print(f"  {program} {shlex.join([*words, '--resume_from_checkpoint', 'latest'])}", flush=True)
            return stop.status
        record = trainer.save_run()
        if not trainer.is_world_process_zero():
            return 0
        console.print_summary(record, str(run.directory), run.stream, run.held_out, run.collator)
        return int(any(outcome.error is not None for outcome in trainer.published))


# ---- Before the loop ----


@contextmanager
def start(
    argv: Sequence[str], description: str | None, defaults: Mapping[str, Any], default_text: Sequence[str] = ()
) -> Iterator[Run]:
    """Everything before the loop: flags, checkpoint, tokenizer, sequences, model. Locks the output directory inside
    the `with`. Raises ValueError and OSError for what cannot be used, and SystemExit where there is nothing to do."""
    started = utc_now()
    types = (RunArguments, ModelArguments, DataArguments, CardArguments, PretrainingPublication, RTDTrainingArguments)
    run_args, model_args, data_args, card, publication, args = parse_arguments(
        types,
        argv,
        description=description,
        defaults={**defaults, **recipe_defaults(given_flags(types, argv))},
        help_groups=HELP_GROUPS,
        rules=(*RULES, *TRAINER_RULES, *HUB_RULES),
    )
    check_launcher(args)
    check_publishing(args, card, publication)
    check_arguments(run_args, model_args, data_args, args, rules=RULES)
    parse_size("memory_of", run_args.memory_of)  # a mistake comes before the work
    data_args.set_default_text(default_text)
    _set_up_logging(args)
    set_seed(args.seed)
    with ExitStack() as until_the_end:
        checkpoint = _settle_directory(run_args, model_args, args, until_the_end)
        before = None if checkpoint is None else checkpoints.read_checkpoint(checkpoint, verify=False)[0]
        initialization = "stock" if checkpoint is not None else model_args.initialization or "stock"
        data_args.warn_of_unused(run_args.old_held_out_files or ())  # a file that is not there comes before the work
        # First the process that prepares for all, then one of each node, which fetches for its caches.
        with args.main_process_first(local=False), args.main_process_first(local=True):
            model, tokenizer = _get_networks(model_args, data_args, args, initialization, checkpoint)
            if before is not None and before["run"]["vocab_size"] != len(tokenizer):
                raise ValueError(
                    f"{checkpoint} has {before['run']['vocab_size']} tokens, the tokenizer {len(tokenizer)}. "
                    "Give --tokenizer and --extend_vocabulary as the run began."
                )
            text = _get_text(run_args, data_args, args, tokenizer, before)
        held_out = None if text.held_out is None else held_out_stream(text.held_out)
        if not Path(text.train.path).is_relative_to(str(args.output_dir)):
            logger.info(f"Do not overwrite {text.train.path} during the run.")
            logger.info("  To replace it, move another file to its name.")
        args.eval_on_start = args.eval_on_start and checkpoint is None and held_out is not None
        settle_products(args, model.config.discriminator_config.hidden_size, before)
        stream = fit_stream(text.train, args)
        if initialization != "stock":
            begin_on_neighbours(model, stream, tokenizer, args.seed)
        words = [sys.argv[0], *argv]
        arguments: dict[str, Any] = {"model": asdict(model_args), "data": asdict(data_args)}
        arguments["model"]["loaded_backbones"] = list(model_args.plan.backbones)  # of a config.json nothing is
        if run_args.old_held_out_files:
            arguments["data"]["old_held_out_files"] = run_args.old_held_out_files
        yield Run(
            argv=words,
            arguments=run_args,
            args=args,
            card=card,
            publication=publication,
            checkpoint=checkpoint,
            tokenizer=tokenizer,
            stream=stream,
            held_out=held_out,
            old_held_out=None if text.old_held_out is None else held_out_stream(text.old_held_out),
            collator=make_collator(tokenizer, args, model.config),
            model=model,
            record_facts={"command": public_command(words), "started": started, "arguments": arguments},
        )


def _set_up_logging(args: RTDTrainingArguments) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO if args.process_index == 0 else logging.ERROR)
    # accelerate warns at every checkpoint that tied tensors are stored once; loading checks them.
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()  # one for every file that is read or written
    used = args.world_size * torch.get_num_threads()
    cores = count_cores()
    if args.device.type == "cpu" and used < cores:  # `accelerate launch` gives each process one
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
    """The pair that the flags describe, with the options of the run, and its tokenizer."""
    blocks = Path(str(args.output_dir)) / BLOCKS_DIRECTORY
    of_towers = None if data_args.tokenizer else model_args.tokenizer_source
    tokenizer = get_tokenizer(data_args, args, blocks, of_towers, checkpoint)
    model = build_model(model_args, tokenizer, args.max_seq_length)  # a mistake comes before the work
    if initialization != "stock":
        check_room(model)
    if model_args.plan.pair is None:  # which says by what share of masked tokens it was trained
        model.config.mask_probability = args.mask_probability
    settle_masking(model.config, args, tokenizer)
    if model_args.extend_vocabulary is not None:
        extended = get_extended_tokenizer(tokenizer, model_args.extend_vocabulary, data_args, args, blocks, checkpoint)
        model.append_tokens(old_pieces(tokenizer, extended))
        tokenizer = extended
    return model, tokenizer


class _Text(NamedTuple):
    """The sequences of a run."""

    train: Blocks
    held_out: Blocks | None
    old_held_out: Blocks | None


def _get_text(
    run_args: RunArguments,
    data_args: DataArguments,
    args: RTDTrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    before: Mapping[str, Any] | None,
) -> _Text:
    """The sequences that the flags name, prepared by the main process. `before` is the manifest of the checkpoint."""
    blocks = Path(str(args.output_dir)) / BLOCKS_DIRECTORY
    old = run_args.old_held_out_files or []
    named = [*data_args.train_files, *(data_args.held_out_files or ()), *old]
    if run_args.cache_dir is not None and not any("://" in name for name in named):
        logger.warning("--cache_dir changes nothing: all shards are local.")
    trained_on = None if before is None else before["run"].get("sequences")
    train, held_out = get_sequences(
        data_args, args, blocks, tokenizer, trained_on=trained_on, cache_dir=run_args.cache_dir
    )
    if args.document_attention and train.header.packing == "original":
        raise ValueError(f"--document_attention: no sequence of {train.path} mixes documents. Leave it out.")
    if not old:
        return _Text(train, held_out, None)
    if held_out is None:
        raise ValueError("--old_held_out_files needs --held_out_files. Both are evaluated.")
    old_held_out, _ = get_sequences(
        replace(data_args, train_files=old, train_datasets=[], held_out_files=None, held_out_share=0.0),
        args,
        blocks / "old_held_out",
        tokenizer,
        called="Held-out old text",
        cache_dir=run_args.cache_dir,
    )
    check_held_out(train, old_held_out)
    return _Text(train, held_out, old_held_out)


def check_launcher(args: RTDTrainingArguments) -> None:
    """Raises ValueError where processes that the launcher starts again (`--max_restarts`) would not go on."""
    if not int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        return
    if args.resume_from_checkpoint not in ("auto", "latest"):
        raise ValueError(
            "--max_restarts starts a run again that exists already: add --resume_from_checkpoint auto, so that it "
            "continues from its last checkpoint."
        )
    # The store that torch's launcher keeps for all rounds still has the addresses of the processes before
    # (https://github.com/pytorch/pytorch/issues/135712).
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(
            "--max_restarts: processes that are started again would wait for those before. "
            "Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every node."
        )


def _settle_directory(
    run_args: RunArguments, model_args: ModelArguments, args: RTDTrainingArguments, until_the_end: ExitStack
) -> str | None:
    """Locks the output directory and chooses the checkpoint. The main process does it for all, which then go on from
    the same checkpoint or end alike. Raises ValueError where a process has another directory of that name."""
    output_dir = str(args.output_dir)
    # From the main process: the checkpoint or the error, and the name of a directory that all must see.
    shared: list[Any] = [None, ""]
    with ExitStack() as until_seen:
        if args.process_index == 0:
            try:
                shared[0] = _lock_and_choose(run_args, model_args, args, until_the_end)
                if args.world_size > 1:
                    os.makedirs(output_dir, exist_ok=True)
                    directory = TemporaryDirectory(dir=output_dir, prefix=f".shared{PARTIAL}")
                    shared[1] = os.path.basename(until_seen.enter_context(directory))
            except (ValueError, OSError, SystemExit) as error:
                shared[0] = error
        broadcast_object_list(shared)
        checkpoint, name = shared
        if isinstance(checkpoint, BaseException):
            raise checkpoint
        is_there = os.path.exists(os.path.join(output_dir, name))
        without: list[str] = gather_object([] if is_there or args.world_size == 1 else [node()])
    if without:
        raise ValueError(
            f"--output_dir {output_dir} is not the first node's directory on {', '.join(sorted(set(without)))}. "
            "Name one that all nodes share: prepared text and checkpoints are written there."
        )
    return checkpoint


def _lock_and_choose(
    run_args: RunArguments, model_args: ModelArguments, args: RTDTrainingArguments, until_the_end: ExitStack
) -> str | None:
    """The main process's part: the checkpoint, from a directory that it locks."""
    output_dir = str(args.output_dir)
    resume = args.resume_from_checkpoint
    overwrite = run_args.overwrite_output_dir
    checkpoints.check_sources(output_dir, model_args.given((*SOURCES, *BACKBONES)))
    if not checkpoints.holds_run(output_dir):
        find_checkpoint(output_dir, resume, overwrite)  # a mistake leaves no directory
    if not run_args.dry_run:
        with naming(output_dir):
            until_the_end.callback(lock_directory(output_dir).release)
        remove_partial(output_dir)  # what killed processes left half-written or half-removed
        remove_partial(Path(output_dir) / checkpoints.FRACTIONS_DIRECTORY)
    return find_checkpoint(output_dir, resume, overwrite)


def find_checkpoint(output_dir: str, resume: str | None, overwrite: bool) -> str | None:
    """The checkpoint to resume from (a directory, `latest`, or `auto`: the latest if there is one); None for a new
    run, which may replace another (`overwrite`). Raises ValueError if the checkpoint is incomplete or older than
    others there, or another run lies there, and SystemExit for `auto` if that is finished and has no checkpoints."""
    is_run = checkpoints.holds_run(output_dir)
    saved = checkpoints.list_checkpoints(output_dir)
    if resume is None:
        if is_run and not overwrite:
            go_on = " To continue it, add --resume_from_checkpoint latest." if saved else ""
            raise ValueError(
                f"{output_dir} holds another run.{go_on} To delete it, add --overwrite_output_dir, or choose another "
                "--output_dir."
            )
        return None
    if resume in ("latest", "auto"):
        latest = checkpoints.latest_checkpoint(output_dir)
        if latest is not None:
            return str(latest)
        if resume == "latest":
            raise ValueError(f"--resume_from_checkpoint latest: {output_dir} has no complete checkpoint.")
        if saved and not overwrite:
            raise ValueError(
                f"{output_dir} has only damaged checkpoints. Remove them, add --overwrite_output_dir, or choose "
                "another --output_dir."
            )
        if (Path(output_dir) / PretrainingRecord.FILE).exists():
            logger.info(f"The run in {output_dir} is finished and has no checkpoints. There is nothing to do.")
            raise SystemExit(0)
        return None
    step = checkpoints.read_checkpoint(resume, verify=False)[1].global_step  # the trainer verifies it
    if any(checkpoints.checkpoint_step(path) > step for path in saved):
        raise ValueError(
            f"{output_dir} has checkpoints after step {step:,}. Remove them, or choose another --output_dir."
        )
    if is_run and os.path.realpath(Path(resume).parent) != os.path.realpath(output_dir):
        raise ValueError(
            f"{output_dir} holds another run than {resume}. Move it away, or choose another --output_dir."
        )
    return resume


# ---- Dry run ----


def dry_run(run: Run, screen: Console | None = None) -> None:
    """Prints what a run would do. A few steps are timed with a learning rate of zero, so that every weight stays the
    same to the bit; with `memory_of` none is, and their memory on a GPU is counted. Raises ValueError if a batch does
    not fit in the memory of a GPU."""
    model = run.model
    stream = run.stream
    memory = parse_size("memory_of", run.arguments.memory_of)
    device = run.args.device if memory is None else torch.device("cpu")
    screen = screen or console.open_console(quiet=run.args.process_index != 0)
    model.to(device)  # type: ignore[arg-type]

    towers = model.config.towers
    counts = count_parameters(model)
    rows = [
        (name.replace("_", " "), *(str(getattr(tower, name, "-")) for tower in towers.values())) for name in _SIZES
    ]
    rows.append(("parameters", *(f"{counts[name]:,}" for name in towers)))
    console.print_rows("The networks", rows, screen, ("", *towers))
    num_parameters = counts.pop("total")
    num_shared = sum(counts.values()) - num_parameters
    screen.print(
        f"Together {num_parameters:,} parameters; {num_shared:,} are shared (--sharing {model.config.sharing}).\n"
    )

    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            count_text(model, stream, run.collator.tokenizer)
            console.print_samples(model, run.collator, stream.__getitems__(range(min(2, len(stream)))), screen)
            seconds = _time_steps(run) if memory is None else 0.0
    except torch.OutOfMemoryError:
        raise ValueError(
            f"{run.args.train_batch_size} sequences do not fit in the memory of {device}. Lower "
            "--per_device_train_batch_size and raise --gradient_accumulation_steps by the same factor."
        ) from None
    if memory is not None:
        print_memory(run, memory, screen)
    else:
        console.print_rows("The run", _describe_costs(run, num_parameters, seconds).items(), screen)
        for advice in _advise(run, seconds):
            console.print_folded(Text(advice), screen, "! ")
    screen.print(f"\nNothing was trained. The prepared sequences stay in {run.args.output_dir} for the run itself.")


def _advise(run: Run, seconds: float) -> Iterator[str]:
    """What to change about a run that is too long for its text or its machine, at so many seconds a step."""
    args = run.args
    steps_of_a_pass = len(run.stream.sequences) / args.sequences_per_step
    passes = args.max_steps / steps_of_a_pass
    most = max(1, int(_MOST_PASSES * steps_of_a_pass))
    if passes > _MOST_PASSES:
        yield (
            f"The run reads its text {passes:,.0f} times; beyond about {_MOST_PASSES} passes it learns little more. "
            f"Use more text, or --max_steps {most} ({_MOST_PASSES} passes) and a smaller --size."
        )
    steps_of_a_day = max(1, int(_DAY / seconds))
    if min(most, args.max_steps) * seconds > _LONG * _DAY:
        yield (
            f"A day on this machine is enough for {steps_of_a_day:,} steps. Use a faster machine, a smaller --size, "
            f"or --max_steps {steps_of_a_day}."
        )


def _describe_costs(run: Run, num_parameters: int, seconds: float) -> dict[str, str]:
    """What a run costs, at so many seconds a step."""
    args = run.args
    model = run.model
    text = run.stream.sequences
    num_sequences = args.max_steps * args.sequences_per_step
    passes = num_sequences / len(text)
    num_tokens = meters.count_tokens(run.stream, args, num_sequences)
    flops = meters.count_flops(model, args, num_sequences)
    paper_flops = "not counted" if flops["paper"] is None else f"{flops['paper']:.3g}"
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    memory = f"{format_bytes(_FLOAT * (num_parameters + 3 * trained))} for weights, gradients and Adam's moments"
    if args.device.type == "cuda":
        memory += f", at the peak {format_bytes(torch.cuda.max_memory_allocated(args.device))} on the GPU"
    duration = f"{format_duration(args.max_steps * seconds)} without evaluation and checkpoints"
    speed = num_tokens / args.max_steps / seconds
    return {
        "steps": f"{args.max_steps:,} of {args.sequences_per_step:,} sequences",
        "batch": describe_batch(args, run.record_facts["arguments"]["model"]["size"]),
        **({"text": describe_text(text.header)} if isinstance(text, Blocks) else {}),
        "tokens": f"{num_tokens:,}, {passes:,.{0 if passes >= 10 else 2}f} passes over the text",
        "FLOPs": f"{flops['model']:.3g} (matrix products), {paper_flops} (as the paper counts)",
        "time": f"{duration}: {seconds:.3g} s a step, {speed:,.0f} tokens/s",
        "memory": memory,
        "disk": f"{format_bytes(3 * _FLOAT * num_parameters)} a checkpoint",
    }


def print_memory(run: Run, memory: int, screen: Console) -> None:
    """Prints which batches fit the memory of a GPU, with and without gradient checkpointing."""
    args = run.args
    sequences: Any = run.stream.__getitems__(range(min(args.train_batch_size, len(run.stream))))
    batch = run.collator(sequences)
    wanted = args.train_batch_size * args.gradient_accumulation_steps
    columns = [[f"{wanted:,} at once", "most at once", f"{wanted:,} accumulated"]]
    half = torch.bfloat16 if args.bf16 or args.chooses_precision else None  # where it is left open, as on a GPU
    dtype = torch.float16 if args.fp16 else half
    for checkpointing in (False, True):
        with fake_steps(run.model, args, batch, dtype, checkpointing) as take_step:
            (fits,) = fit_batches(run.model, take_step, wanted, [memory])
        by = f"{fits.accumulated:,} x {wanted // fits.accumulated:,}" if fits.accumulated else "not even one fits"
        columns.append([format_bytes(fits.peak), f"{fits.largest:,}", by])
    header = ("sequences", "without", "with --gradient_checkpointing")
    title = f"What fits a GPU with {format_bytes(memory)}"
    console.print_rows(title, zip(*columns, strict=True), screen, header)
    screen.print(
        f"\nFor one GPU, counted: weights, gradients, the optimizer's states, activations. {RESERVE:.0%} is left for "
        "CUDA's context, workspaces and fragmentation.\nA x B stands for --per_device_train_batch_size A "
        "--gradient_accumulation_steps B."
    )


def describe_batch(args: RTDTrainingArguments, size: str) -> str:
    """How the sequences of an optimizer step come together, beside the recipe of `size`."""
    batch = args.sequences_per_step
    on_a_node = int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size))
    machines = f"{args.world_size // on_a_node:,} node(s) x {on_a_node:,} process(es)"
    of_a_process = f"{args.train_batch_size:,} sequence(s) x {args.gradient_accumulation_steps:,} accumulated"
    recipe = f"{SIZES[size].pretraining['per_device_train_batch_size']:,} in the recipe of {size}"
    return f"{machines} x {of_a_process} = {batch:,} ({recipe}), {batch * args.max_seq_length:,} tokens a step"


def _time_steps(run: Run) -> float:
    """Seconds a step."""
    args = copy.copy(run.args)
    # No more steps than the run has: a falling temperature ends with it.
    args.max_steps = min(1 + _TIMED_STEPS, run.args.max_steps)
    args.warmup_steps = 0
    args.learning_rate = 0.0
    args.generator_learning_rate = None
    args.eval_strategy = "no"
    args.eval_on_start = False
    args.save_strategy = "no"
    args.checkpoint_fractions = None
    args.logging_strategy = "steps"
    args.logging_first_step = True
    args.logging_steps = args.max_steps
    args.disable_tqdm = True
    args.report_to = []
    args.push_to_hub = False
    stream = copy.copy(run.stream)
    stream.num_positions = args.max_steps * args.sequences_per_step
    trainer = RTDTrainer(run.model, args, stream, data_collator=run.collator)
    trainer.remove_callback(console.LinesCallback)
    trainer.train()
    first, *others = (log["train_seconds"] for log in trainer.state.log_history if "loss" in log)
    return float((others[-1] - first) / (args.max_steps - 1) if others else first)


if __name__ == "__main__":
    run_command(main)
