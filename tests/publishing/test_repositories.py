import hashlib
import json
import subprocess

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from hf_electra_rtd.publishing.repositories import (
    Repository,
    RepositoryFile,
    describe,
    is_written_here,
    model_files,
)


HOME_PATH = "/home/maria/runs/7/discriminator"
CONFIG = {"model_type": "electra", "hidden_size": 16}
TOKEN = "hf_" + "aBcDeFgHiJ" * 3 + "abcd"


@pytest.fixture
def checkpoint(tmp_path):
    """A native checkpoint as a trainer leaves it, with everything that must not leave."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "_name_or_path": HOME_PATH}))
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"/usr/lib": 0}}}))
    (tmp_path / "vocab.txt").write_text("[PAD]\n/home/x/y\n")
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", ".lock"):
        (tmp_path / name).write_text("private")
    (tmp_path / "runs").mkdir()
    return tmp_path


def contents(given):
    return {file.path_in_repo: file.read() for file in given.files}


def test_only_what_a_model_needs_leaves_and_the_rest_is_named(checkpoint):
    found = model_files(checkpoint)
    assert list(contents(found)) == ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"]
    assert found.left_out == (
        ".lock", "optimizer.pt", "rng_state.pth", "runs/", "scheduler.pt", "trainer_state.json", "training_args.bin",
    )  # fmt: skip


def test_where_a_model_came_from_is_removed_and_local_paths_are_cut(checkpoint):
    config = {
        "towers": [{"_name_or_path": "runs/7", "dropout": 0.1}],
        "vocabulary": HOME_PATH + "/vocab.txt",
        **CONFIG,
    }
    (checkpoint / "config.json").write_text(json.dumps(config))
    written = json.loads(contents(model_files(checkpoint))["config.json"])
    assert written == {"towers": [{"dropout": 0.1}], "vocabulary": "vocab.txt", **CONFIG}


def test_a_file_without_private_things_leaves_as_it_is(checkpoint):
    (checkpoint / "config.json").write_text('{ "model_type":\t"electra" }')
    assert contents(model_files(checkpoint))["config.json"] == b'{ "model_type":\t"electra" }'


def test_a_vocabulary_leaves_as_it_is(checkpoint):
    files = contents(model_files(checkpoint))
    for name in ("tokenizer.json", "vocab.txt"):
        assert files[name] == (checkpoint / name).read_bytes()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_token_in_a_file_is_refused_by_name(checkpoint, name):
    (checkpoint / name).write_text(json.dumps({"hub_token": TOKEN}))
    with pytest.raises(ValueError, match=f"{name} holds what must not be published"):
        model_files(checkpoint)


def test_the_metadata_of_weights_are_looked_at(checkpoint):
    save_file({"weight": torch.ones(2)}, checkpoint / "model.safetensors", {"from": HOME_PATH})
    with pytest.raises(ValueError, match=r"model\.safetensors: its metadata hold what must not be published"):
        model_files(checkpoint)


@pytest.mark.parametrize("length", [0, 4, 20])
def test_weights_that_are_cut_off_are_refused(checkpoint, length):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    with pytest.raises(ValueError, match="is damaged, or is not safetensors"):
        model_files(checkpoint)


def test_shards_are_those_of_the_index(checkpoint):
    weights = checkpoint / "model.safetensors"
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name in (*names, "model-00001-of-00003.safetensors"):
        (checkpoint / name).write_bytes(weights.read_bytes())
    weights.unlink()
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1], "c": names[0]}}))
    found = model_files(checkpoint)
    assert {*names, index.name} < set(contents(found))
    assert "model-00001-of-00003.safetensors" in found.left_out
    (checkpoint / names[1]).unlink()
    with pytest.raises(ValueError, match=f"is not whole: {index.name} names {names[1]}, which is not there"):
        model_files(checkpoint)


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        (["config.json"], r"holds no model: there is no config\.json"),
        (
            ["model.safetensors"],
            r"holds no weights.*Pickles are not published \(optimizer\.pt, .*training_args\.bin\)",
        ),
    ],
)
def test_what_is_missing_is_named(checkpoint, removed, said):
    for name in removed:
        (checkpoint / name).unlink()
    with pytest.raises(ValueError, match=said):
        model_files(checkpoint)


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="There is no directory"):
        model_files(tmp_path / "none")


@pytest.mark.parametrize("text", ["{", "[]", '"a"'])
def test_a_configuration_that_is_none_is_refused(checkpoint, text):
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json (is not JSON|does not hold a JSON object)"):
        model_files(checkpoint)


@pytest.fixture
def adapter(tmp_path):
    def write(base):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 8}))
        save_file({"weight": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
        (tmp_path / "fine_tuned_for.json").write_text('{"head": "paper", "labels": ["no", "yes"]}')
        return tmp_path

    return write


@pytest.mark.parametrize("base", ["/runs/small", "./small", "../small", "~/small", "runs/7/small", "", None, "C:\\a"])
def test_adapters_of_a_local_model_need_its_hub_id(adapter, base):
    directory = adapter(base)
    with pytest.raises(ValueError, match="base_model"):
        model_files(directory)
    written = json.loads(contents(model_files(directory, "lab/small"))["adapter_config.json"])
    assert written == {"base_model_name_or_path": "lab/small", "r": 8}


def test_a_relative_directory_that_looks_like_an_id_is_noticed(adapter, monkeypatch, tmp_path):
    directory = adapter("runs/small")
    assert len(model_files(directory).files) == 3
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "small").mkdir(parents=True)
    with pytest.raises(ValueError, match="belong to runs/small, a directory of this machine"):
        model_files(directory)


def test_adapters_without_weights_are_refused(adapter):
    directory = adapter("lab/small")
    (directory / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"there is no adapter_model\.safetensors"):
        model_files(directory)


LABELS = ["O", "/person/artist", "~/b c", "C:\\x", "file:///a/b"]


def test_labels_stay_what_the_task_calls_them(checkpoint, adapter):
    by_id = {str(index): label for index, label in enumerate(LABELS)}
    labels = {"id2label": by_id, "label2id": {label: index for index, label in by_id.items()}}
    (checkpoint / "config.json").write_text(json.dumps({**CONFIG, "_name_or_path": HOME_PATH, **labels}))
    files = model_files(checkpoint).files
    assert json.loads(files[0].read()) == {**CONFIG, **labels}
    assert Repository("maria/electra", files, "m").files == files
    directory = adapter("lab/small")
    described = {"head": "paper", "labels": LABELS}
    (directory / "fine_tuned_for.json").write_text(json.dumps(described))
    files = model_files(directory).files
    assert json.loads(contents(model_files(directory))["fine_tuned_for.json"]) == described
    assert Repository("maria/electra", files, "m").files == files


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("config.json", {**CONFIG, "id2label": {"0": f"/a/{TOKEN}"}}),
        ("config.json", {**CONFIG, "label2id": {TOKEN: 0}}),
        ("fine_tuned_for.json", {"head": "paper", "labels": [TOKEN]}),
    ],
)
def test_a_label_is_no_place_for_a_token(checkpoint, name, config):
    (checkpoint / name).write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"{name} holds what must not be published: hf_aB\.\.\. \(a token\)"):
        model_files(checkpoint)


# ---- Repositories ----


@given(st.binary(max_size=300))
def test_digests_are_those_of_git_and_of_the_hub(content):
    file = RepositoryFile("a.bin", content)
    assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert file.size == len(content)
    assert file.blob_id == hashlib.sha1(b"blob " + str(len(content)).encode() + b"\x00" + content).hexdigest()


def test_the_blob_id_is_what_git_says(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 9000)  # more than one reading
    said = subprocess.run(["git", "hash-object", str(path)], capture_output=True, text=True, check=True).stdout
    file = RepositoryFile("file", path)
    assert file.blob_id == said.strip()
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_two_files_of_one_path_are_refused():
    files = (RepositoryFile("config.json", b"{}"), RepositoryFile("config.json", b"{ }"))
    with pytest.raises(ValueError, match=r"two files of the same path: config\.json"):
        Repository("maria/electra", files, "m")


@pytest.mark.parametrize("repo_id", ["electra", "/home/maria", "a/b/c", "maria/", "a b/c", "mária/x", ""])
def test_an_id_needs_owner_and_name(repo_id):
    with pytest.raises(ValueError, match="give OWNER/NAME"):
        Repository(repo_id, (RepositoryFile("a", b""),), "m")


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../x", "a//b", "./a", "a\\b", ".", ""])
def test_a_path_stays_in_the_repository(path):
    with pytest.raises(ValueError, match="no path of a file in a repository"):
        RepositoryFile(path, b"")


@pytest.mark.parametrize("path", ["README.md", ".eval_results/glue.yaml", "notes.txt"])
@pytest.mark.parametrize("private", [f"see {HOME_PATH}", f"token: {TOKEN}"])
def test_a_repository_with_something_private_in_its_text_is_refused(path, private):
    with pytest.raises(ValueError, match=f"{path} holds what must not be published"):
        Repository("maria/electra", (RepositoryFile(path, private.encode()),), "m")


def test_a_repository_is_described_by_paths_and_sizes(checkpoint):
    files = (RepositoryFile("README.md", "Käfer".encode()), *model_files(checkpoint).files)
    sizes = dict(describe(Repository("maria/electra", files, "m")))
    assert sizes["README.md"] == 6
    assert sizes["model.safetensors"] == (checkpoint / "model.safetensors").stat().st_size
    assert list(sizes) == sorted(sizes)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("model-00001-of-00002.safetensors", True),
        ("README.md", True),
        (".eval_results/glue.yaml", True),
        ("adapter_model.safetensors", True),
        ("onnx/model.onnx", False),
        ("pytorch_model.bin", False),
        ("notes.md", False),
        (".gitattributes", False),
    ],
)
def test_what_may_be_removed_is_what_this_package_writes(path, written):
    assert is_written_here(path) == written
