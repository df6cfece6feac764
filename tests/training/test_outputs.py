import pytest

from hf_electra_rtd.training.outputs import prepare_output_dir


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(ValueError, match="holds none"):
        prepare_output_dir(str(tmp_path), "latest", overwrite=False)
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        prepare_output_dir(str(tmp_path), str(tmp_path / "checkpoint-7"), overwrite=False)
    assert prepare_output_dir(str(tmp_path), "auto", overwrite=False) is None
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        prepare_output_dir(str(tmp_path / "file"), None, overwrite=False)
