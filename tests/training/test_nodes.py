"""Two nodes with one process each, both on this machine, train as one node with two processes does, also if one of the
processes is killed."""

import os
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

from hf_electra_rtd.training import pretrain
from hf_electra_rtd.training.checkpoints import list_checkpoints
from tests.conftest import make_text, pretraining_flags, tiny_config


SAVE_STEPS, MAX_STEPS = 40, 320  # steps are so fast that processes agree on stopping only every 200 steps
WEIGHTS = ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
ENVIRONMENT["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see `pretrain.check_launcher`
MODULE = ("-m", "hf_electra_rtd.training.pretrain")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nodes")
    (directory / "corpus.txt").write_text(make_text(40), encoding="utf-8")
    # Dropout makes the random state of each process matter.
    tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).save_pretrained(directory / "dropout")
    return directory


def flags(workplace, output_dir, *more, **options):
    options = {"max_steps": MAX_STEPS, "save_steps": SAVE_STEPS, "eval_steps": 160, **options}
    options = {"logging_steps": 40, "save_total_limit": 100, **options, "model_config": workplace / "dropout"}
    return pretraining_flags(workplace, workplace / "corpus.txt", output_dir, *more, **options)


def free_port():
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        return open_socket.getsockname()[1]


class Nodes:
    """Starts one `torchrun` per node. The nodes meet at a local port, and all are killed at the end of the context."""

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
        """Returns the process that trains on a node."""
        (worker,) = psutil.Process(self.agents[node].pid).children()
        return worker

    def wait(self):
        """Waits for all nodes. Returns the exit status and the output of each."""
        statuses = [agent.wait(timeout=280) for agent in self.agents]
        return [(status, log.read_text()) for status, log in zip(statuses, self.logs, strict=True)]


def assert_same_weights(one, other):
    for name in WEIGHTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def one_node(workplace):
    """The directory of a run on one node with two processes."""
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *MODULE)
    command = [sys.executable, *words, *map(str, flags(workplace, workplace / "one-node"))]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, timeout=280)
    return workplace / "one-node"


@pytest.mark.nodes
def test_two_nodes_end_with_the_weights_of_one_node_with_two_processes(workplace, one_node):
    with Nodes(workplace, flags(workplace, workplace / "two-nodes")) as nodes:
        printed = nodes.wait()
    assert [status for status, _ in printed] == [0, 0], printed
    assert sorted(text.count("The run") for _, text in printed) == [0, 1]  # only one of them prints
    assert_same_weights(one_node, workplace / "two-nodes")


@pytest.mark.nodes
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


@pytest.mark.nodes
def test_a_job_whose_nodes_get_a_signal_saves_and_ends_with_the_same_weights_when_it_is_started_again(
    workplace, one_node
):
    """This is how a scheduler warns of its time limit. Processes are suspended meanwhile, or they would finish."""
    command = flags(workplace, workplace / "signalled", "--resume_from_checkpoint", "auto")
    with Nodes(workplace, command) as nodes:
        while not list_checkpoints(workplace / "signalled"):
            assert all(agent.poll() is None for agent in nodes.agents), nodes.wait()
            time.sleep(0.01)
        workers = [nodes.worker(node) for node in range(2)]
        for worker in workers:
            worker.suspend()
        for agent in nodes.agents:
            agent.terminate()
        while sum(log.read_text().count("closing signal SIGTERM") for log in nodes.logs) < 2:
            time.sleep(0.01)
        for worker in workers:
            worker.resume()
        printed = nodes.wait()
    assert "Interrupted after step" in printed[0][1] + printed[1][1]
    assert not (workplace / "signalled" / "run_record.json").exists()
    with Nodes(workplace, command) as nodes:
        assert [status for status, _ in nodes.wait()] == [0, 0]
    assert_same_weights(one_node, workplace / "signalled")


@pytest.mark.slow
def test_nodes_that_see_other_directories_are_refused_by_name_before_any_work(workplace):
    directories = [workplace / "disk-0", workplace / "disk-1"]  # each resolves `--output_dir run` to another place
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


# ---- Without a launcher ----


@pytest.mark.parametrize(
    ("run", "is_signalled", "status", "is_queued_again"),
    [
        ("trap 'exit 1' TERM", True, 1, True),  # torchrun's status after a signal
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


def test_a_launcher_whose_restarts_would_not_go_on_is_refused(monkeypatch):
    args = SimpleNamespace(resume_from_checkpoint=None)
    pretrain.check_launcher(args)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ValueError, match="--resume_from_checkpoint auto"):
        pretrain.check_launcher(args)
    args.resume_from_checkpoint = "auto"
    pretrain.check_launcher(args)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(ValueError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        pretrain.check_launcher(args)
