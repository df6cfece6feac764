import pytest
import torch

from hf_electra_rtd import ElectraRTDOutput
from hf_electra_rtd.measures import observe


@pytest.mark.parametrize("form", ["slots", "labels at their positions"])
def test_what_was_masked_is_known_from_either_form_of_labels(form):
    # Two slots a row; of row 1, the second is unused and points at a token that was not masked.
    if form == "slots":
        labels = {"masked_positions": torch.tensor([[1, 2], [1, 0]]), "labels": torch.tensor([[10, 11], [0, -100]])}
    else:
        labels = {"labels": torch.tensor([[-100, 10, 11, -100], [-100, 0, -100, -100]])}
    seen = observe(ElectraRTDOutput(), {"input_ids": torch.tensor([[2, 4, 11, 3], [2, 4, 3, 0]]), **labels})
    assert seen.masked.tolist() == [[False, True, True, False], [False, True, False, False]]
