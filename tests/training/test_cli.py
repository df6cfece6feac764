import sys
from dataclasses import dataclass, field

import pytest

from hf_electra_rtd import RTDTrainingArguments
from hf_electra_rtd.training.arguments import RECIPES
from hf_electra_rtd.training.cli import parse_arguments, run_as_script


@dataclass
class Options:
    size: str = "tiny"
    files: list[str] = field(default_factory=list)
    share: float = 0.5
    correct: bool = False
    name: str | None = None


RECIPE = {"tiny": {"learning_rate": 1.0, "max_steps": 10}, "small": {"learning_rate": 2.0, "max_steps": 20}}


def parse(*argv, **options):
    return parse_arguments((Options, RTDTrainingArguments), ["--output_dir", "out", "--use_cpu", *argv], **options)


@pytest.fixture
def recipe_file(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_flags_win_over_the_file_the_file_over_the_size_the_size_over_defaults(recipe_file):
    path = recipe_file("size: small\nlearning_rate: 5e-4\nfiles: [a, b]\ncorrect: true\nname: null\n")
    options, training = parse("--config", path, "--share", "0.25", "--files", "c", recipes=RECIPE)
    assert (options.size, options.files, options.share, options.correct) == ("small", ["c"], 0.25, True)
    assert (training.learning_rate, training.max_steps) == (5e-4, 20)
    assert training.adam_epsilon == 1e-6
    options, training = parse("--config", path, "--learning_rate", "3", "--size", "tiny", recipes=RECIPE)
    assert (options.files, training.learning_rate, training.max_steps) == (["a", "b"], 3.0, 10)


def test_defaults_of_the_caller_replace_the_dataclasses():
    options, _ = parse(defaults={"files": ["x"], "share": 0.1})
    assert (options.files, options.share) == (["x"], 0.1)


def test_a_length_in_epochs_replaces_the_recipes_steps():
    _, training = parse("--num_train_epochs", "2", recipes=RECIPE)
    assert (training.num_train_epochs, training.max_steps) == (2.0, -1)


@pytest.mark.parametrize(
    ("text", "message"),
    [("learning_rat: 1", "no flag 'learning_rat'. Did you mean 'learning_rate'"), ("- a", "must be a mapping")],
)
def test_unknown_keys_of_a_file_are_refused(recipe_file, text, message):
    with pytest.raises(ValueError, match=message):
        parse("--config", recipe_file(text))


@pytest.mark.parametrize(
    "argv", [["--learning_rat", "1"], ["--learning", "1"], ["--share", "half"], ["--size", "huge"]]
)
def test_flags_that_are_unknown_abbreviated_or_unreadable_are_refused(argv, capsys):
    with pytest.raises(SystemExit):
        parse(*argv, recipes=RECIPE)
    assert argv[0].lstrip("-") in capsys.readouterr().err


# Paper, Table 6: learning rate, warm-up, batch, length, steps, mask share.
TABLE_6 = {
    "small": (5e-4, 10_000, 128, 128, 1_000_000, 0.15),
    "small++": (5e-4, 10_000, 128, 512, 4_000_000, 0.15),
    "base": (2e-4, 10_000, 256, 512, 766_000, 0.15),
    "large": (2e-4, 10_000, 2048, 512, 400_000, 0.25),
}


@pytest.mark.parametrize("size", TABLE_6)
def test_the_recipes_are_those_of_table_6(size):
    _, training = parse("--size", size, recipes=RECIPES)
    for arguments in (training, RTDTrainingArguments.from_size(size, "out", use_cpu=True)):
        assert TABLE_6[size] == (
            arguments.learning_rate,
            arguments.warmup_steps,
            arguments.per_device_train_batch_size,
            arguments.row_length,
            arguments.max_steps,
            arguments.mask_probability,
        )
        assert (arguments.adam_beta1, arguments.adam_beta2, arguments.adam_epsilon) == (0.9, 0.999, 1e-6)
        assert (arguments.weight_decay, arguments.max_grad_norm) == (0.01, 1.0)
        assert not arguments.bf16
        assert not arguments.dataloader_pin_memory


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hub_token": "hf_secret"}, "written into the run's files"),
        ({"push_to_hub": True}, "needs hub_model_id"),
        ({"push_to_hub": True, "hub_model_id": "electra"}, "ORG/NAME"),
        ({"push_to_hub": True, "hub_model_id": "a/b", "hub_strategy": "checkpoint"}, "state of the optimiser"),
        ({"push_to_hub": True, "hub_model_id": "a/b", "hub_revision": "dev"}, "step-N"),
        ({"mask_probability": 1.0}, r"mask_probability is 1\.0"),
    ],
)
def test_arguments_that_would_leak_or_fail_late_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RTDTrainingArguments("out", use_cpu=True, **options)


def test_unknown_sizes_are_refused():
    with pytest.raises(ValueError, match="no size 'medium'"):
        RTDTrainingArguments.from_size("medium", "out")


@pytest.mark.parametrize(("status", "code"), [(None, None), (0, 0), (130, 130)])
def test_a_script_exits_with_what_its_main_returns(monkeypatch, status, code):
    monkeypatch.setattr(sys, "argv", ["script.py", "--flag"])

    def main(argv):
        assert argv == ["--flag"]
        return status

    with pytest.raises(SystemExit) as ended:
        run_as_script(main)
    assert ended.value.code == code


@pytest.mark.parametrize("mistake", [ValueError("too few rows"), EOFError("too few rows")])
def test_a_script_tells_a_mistake_in_one_line(mistake):
    def main(argv):
        raise mistake

    with pytest.raises(SystemExit, match=r"^error: too few rows$"):
        run_as_script(main, EOFError)


def test_a_script_does_not_hide_what_is_no_mistake():
    def main(argv):
        raise EOFError

    with pytest.raises(EOFError):
        run_as_script(main)
