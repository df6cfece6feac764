"""Two nodes of one process each, on this machine, do what one node with two processes does, also when a process of
theirs is killed."""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from accelerate import PartialState
from torch import distributed

from hf_electra_rtd import cli
from hf_electra_rtd.training import pretrain
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.checkpoints import list_checkpoints
from tests.conftest import make_text, pretraining_flags, tiny_config


SAVE_STEPS, MAX_STEPS = 40, 480  # processes agree on whether to stop every 200 of such steps
WEIGHTS = ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
ENVIRONMENT["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see `pretrain.check_launcher`
ENVIRONMENT["ONEDNN_MAX_CPU_ISA"] = "SSE41"  # so that every run finds MKL faster, and rounds alike
MODULE = ("-m", "hf_electra_rtd.training.pretrain")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nodes")
    (directory / "corpus.txt").write_text(make_text(40), encoding="utf-8")
    # With dropout, so that the state of each process's random numbers counts.
    tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).save_pretrained(directory / "dropout")
    return directory


def flags(workplace, output_dir, *more, **options):
    options = {"max_steps": MAX_STEPS, "save_steps": SAVE_STEPS, "eval_steps": 240, **options}
    options = {"logging_steps": 40, "save_total_limit": 100, **options}
    options |= {"model_config": workplace / "dropout"}
    return pretraining_flags(workplace, workplace / "corpus.txt", output_dir, *more, **options)


def free_port():
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        return open_socket.getsockname()[1]


class Nodes:
    """Starts `torchrun` once for each node, which meet at a port of this machine; kills them all when left."""

    def __init__(self, workplace, command, *launcher, directories=None):
        self.stack, self.directories = ExitStack(), directories or [workplace] * 2
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"]
        words += ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}"]
        self.agents, self.logs = [], []
        for number, directory in enumerate(self.directories):
            self.logs.append(workplace / f"node-{number}.log")
            with open(self.logs[-1], "wb") as log:
                options = {"stdout": log, "stderr": subprocess.STDOUT, "env": ENVIRONMENT, "cwd": directory}
                started = subprocess.Popen([*words, *launcher, *MODULE, *map(str, command)], **options)
            self.agents.append(self.stack.enter_context(started))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for agent in self.agents:
            if agent.poll() is None:
                for process in (*psutil.Process(agent.pid).children(recursive=True), agent):
                    process.kill()
        self.stack.close()

    def worker(self, node):
        """The process that trains there."""
        (worker,) = psutil.Process(self.agents[node].pid).children()
        return worker

    def wait(self):
        """What each node printed, with its exit status."""
        statuses = [agent.wait(timeout=280) for agent in self.agents]
        return [(status, log.read_text()) for status, log in zip(statuses, self.logs, strict=True)]


def assert_same_weights(one, other):
    for name in WEIGHTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def one_node(workplace):
    """The run of one node with two processes."""
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *MODULE)
    command = [sys.executable, *words, *map(str, flags(workplace, workplace / "one-node"))]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, timeout=280)
    return workplace / "one-node"


@pytest.mark.slow
def test_two_nodes_end_with_the_weights_of_one_node_with_two_processes(workplace, one_node):
    with Nodes(workplace, flags(workplace, workplace / "two-nodes")) as nodes:
        printed = nodes.wait()
    assert [status for status, _ in printed] == [0, 0], printed
    assert sorted(text.count("The run") for _, text in printed) == [0, 1]  # one of them speaks
    assert_same_weights(one_node, workplace / "two-nodes")


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1])
def test_a_process_that_is_killed_is_started_again_and_the_weights_are_those_of_an_undisturbed_run(
    workplace, one_node, node
):
    output_dir = workplace / f"killed-{node}"
    command = flags(workplace, output_dir, "--resume_from_checkpoint", "auto", dataloader_num_workers=1)
    with Nodes(workplace, command, "--max_restarts", "2") as nodes:
        while not list_checkpoints(output_dir):
            assert all(agent.poll() is None for agent in nodes.agents), nodes.wait()
            time.sleep(0.01)
        worker = nodes.worker(node)
        worker.send_signal(signal.SIGKILL)
        killed_at = len(list_checkpoints(output_dir))
        printed = nodes.wait()
    assert [status for status, _ in printed] == [0, 0], printed
    assert killed_at * SAVE_STEPS < MAX_STEPS
    assert_same_weights(one_node, output_dir)


@pytest.mark.slow
def test_nodes_that_see_other_directories_are_refused_by_name_before_any_work(workplace):
    directories = [workplace / "disk-0", workplace / "disk-1"]  # what --output_dir run means on each
    for directory in directories:
        directory.mkdir()
    with Nodes(workplace, flags(workplace, "run"), directories=directories) as nodes:
        printed = nodes.wait()
    for status, text in printed:
        assert status != 0
        assert "error: --output_dir run is not the first node's directory on" in text
        assert "Name one that all nodes share" in text
    left = sorted(path.name for directory in directories for path in directory.rglob("*"))
    assert left in ([".lock", "run"], ["run"])


def free_slurm_port():
    """A port that the batch script chooses for some job, and the number of that job."""
    for port in range(20000, 30000):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)):
                return port - 20000
    raise OSError("no port is free")


@pytest.mark.slow
def test_the_slurm_job_saves_before_its_time_limit_is_requeued_and_ends_with_the_same_weights(workplace, one_node):
    """With commands in the place of Slurm's: `srun` starts two nodes here, and passes a signal on to them."""
    commands = {
        "scontrol": f'[ $1 = show ] && echo 127.0.0.1 || echo "$@" >> {workplace}/requeued',
        "srun": 'shift; for node in 0 1; do "$@" & agents="${agents:-} $!"; done\n'
        "trap 'kill -TERM $agents' TERM\nfor agent in $agents; do\n"
        "  while kill -0 $agent 2> /dev/null; do wait $agent; status=$?; done\ndone\nexit $status",
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    }
    (workplace / "bin").mkdir()
    for name, body in commands.items():
        (workplace / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (workplace / "bin" / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_NODELIST": "node[1-2]"}
    slurm |= {"SLURM_CPUS_PER_TASK": "1"}
    slurm |= {"SLURM_JOB_ID": str(free_slurm_port()), "PATH": f"{workplace}/bin:{os.environ['PATH']}"}
    script, output_dir = Path(__file__).parents[2] / "examples/slurm/pretrain.sbatch", workplace / "slurm"
    command = ["bash", script, *map(str, flags(workplace, output_dir))]

    def start():
        with open(workplace / "slurm.log", "ab") as log:
            return subprocess.Popen(command, env=ENVIRONMENT | slurm, stdout=log, stderr=subprocess.STDOUT)

    def text():
        return (workplace / "slurm.log").read_text()

    with start() as job:
        while not list_checkpoints(output_dir):
            assert job.poll() is None, text()
            time.sleep(0.01)
        processes = psutil.Process(job.pid).children(recursive=True)
        agents = [process for process in processes if "torch.distributed.run" in process.cmdline()]
        workers = [worker for agent in agents for worker in agent.children()]
        for worker in workers:  # which would end all steps while the signal is on its way
            worker.suspend()
        job.send_signal(signal.SIGUSR1)
        while text().count("closing signal SIGTERM") < len(workers):
            assert job.poll() is None, text()
            time.sleep(0.01)
        for worker in workers:
            worker.resume()
        assert job.wait(timeout=200) != 0
    assert (workplace / "requeued").read_text() == f"requeue {slurm['SLURM_JOB_ID']}\n", text()
    assert "Interrupted after step" in text()
    assert not (output_dir / "run_record.json").exists()
    with start() as job:
        assert job.wait(timeout=200) == 0, text()
    assert_same_weights(one_node, output_dir)


# ---- What can be seen without launchers ----


@pytest.mark.parametrize(
    ("run", "is_signalled", "status", "is_queued_again"),
    [
        ("trap 'exit 1' TERM", True, 1, True),  # as torchrun ends after a signal
        ("trap 'sleep 0.2; exit 143' TERM", True, 143, True),
        ("trap 'exit 0' TERM", True, 0, False),
        ("exit 4", False, 4, False),
        ("exit 0", False, 0, False),
    ],
)
def test_a_slurm_job_is_queued_again_only_if_its_signal_ended_the_run(
    run, is_signalled, status, is_queued_again, tmp_path
):
    loop = f"touch {tmp_path}/ready\nwhile :; do sleep 0.02; done"
    commands = {
        "scontrol": f'[ $1 = show ] && echo here || echo "$@" >> {tmp_path}/queued',
        "srun": f"echo $SRUN_CPUS_PER_TASK > {tmp_path}/cpus\n{run}\n{loop}",
    }
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "here", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "3"}
    script = Path(__file__).parents[2] / "examples/slurm/pretrain.sbatch"
    with subprocess.Popen(
        ["bash", script], env=ENVIRONMENT | slurm | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ) as job:
        while is_signalled and not (tmp_path / "ready").exists():
            assert job.poll() is None
            time.sleep(0.01)
        if is_signalled:
            job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=20) == status
    queued = tmp_path / "queued"
    assert (queued.read_text() if queued.exists() else "") == ("requeue 7\n" if is_queued_again else "")
    assert (tmp_path / "cpus").read_text() == "3\n"


@pytest.mark.parametrize(
    ("environment", "resume", "remedy"),
    [
        ({"TORCHELASTIC_MAX_RESTARTS": "3"}, None, "--resume_from_checkpoint auto"),
        (
            {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            "auto",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        ),
        ({"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "False"}, "auto", None),
        ({"TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}, None, None),
    ],
)
def test_a_launcher_whose_restarts_would_not_go_on_is_refused(environment, resume, remedy, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    args = SimpleNamespace(resume_from_checkpoint=resume)
    if remedy is None:
        pretrain.check_launcher(args)
    else:
        with pytest.raises(ValueError, match=remedy):
            pretrain.check_launcher(args)


@pytest.mark.parametrize("result", [0, SystemExit(0)])
def test_a_command_ends_its_process_group_also_where_there_is_nothing_to_do(result, monkeypatch):
    def command(_):
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        if isinstance(result, SystemExit):
            raise result
        return result

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(SystemExit) as ended:
        cli.run(command)
    assert (ended.value.code, distributed.is_initialized()) == (0, False)


def test_a_checkpoint_for_each_node_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--save_on_each_node: a checkpoint is written once"):
        RTDTrainingArguments(output_dir=str(tmp_path), use_cpu=True, save_on_each_node=True)


@pytest.mark.parametrize(
    ("nodes", "on_a_node", "sequences", "accumulated", "told"),
    [
        (1, 1, 128, 1, "= 128, 16,384 tokens a step, as the recipe of small"),
        (2, 8, 4, 2, "= 128, 16,384 tokens a step, as the recipe of small"),
        (2, 8, 128, 1, "= 2,048, 262,144 tokens a step; the recipe of small has 128"),
        (2, 8, 6, 3, "= 288, 36,864 tokens a step; the recipe of small has 128"),
        (64, 8, 1, 1, "= 512, 65,536 tokens a step; the recipe of small has 128, which 512 processes cannot make"),
    ],
)
def test_the_dry_run_tells_how_the_batch_comes_together(nodes, on_a_node, sequences, accumulated, told, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(on_a_node))

    def args(sequences, accumulated):
        args = SimpleNamespace(gradient_accumulation_steps=accumulated, train_batch_size=sequences)
        args.world_size, args.max_seq_length = nodes * on_a_node, 128
        args.sequences_per_step = args.world_size * sequences * accumulated
        return args

    found = pretrain.describe_batch(args(sequences, accumulated), "small")
    product = f"{nodes} node(s) x {on_a_node} process(es) x {sequences} sequence(s) x {accumulated} accumulated"
    assert found.startswith(f"{product} {told}")
    advised = [
        re.search(rf"--{flag} (\d+)", found) for flag in ("per_device_train_batch_size", "gradient_accumulation_steps")
    ]
    if advised[0]:  # which is followed
        steps = int(advised[1][1]) if advised[1] else accumulated
        assert pretrain.describe_batch(args(int(advised[0][1]), steps), "small").endswith("as the recipe of small")
    else:
        assert "as the recipe" in found or "cannot make" in found


def test_the_first_process_of_the_run_goes_first_then_that_of_each_node_then_the_others(tmp_path):
    port, context = free_port(), multiprocessing.get_context("fork")
    processes = [context.Process(target=note_turn, args=(rank, port, tmp_path)) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * 4
    began, ended = (
        [float((tmp_path / f"{rank}.{name}").read_text()) for rank in range(4)] for name in ("began", "ended")
    )
    assert ended[0] <= min(began[1:])
    assert max(ended[0], ended[2]) <= min(began[1], began[3])


def note_turn(rank, port, directory):
    """A process of a node of two, and when it has its turn."""
    PartialState._reset_state()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank % 2), WORLD_SIZE="4", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    args = RTDTrainingArguments(output_dir=str(directory), use_cpu=True)
    with pretrain.in_turn(args):
        (directory / f"{rank}.began").write_text(str(time.monotonic()))
        time.sleep(0.05)
        (directory / f"{rank}.ended").write_text(str(time.monotonic()))
    os._exit(0)
