import pytest
import torch

from hf_electra_rtd.ops import reference, replaced_token_loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 127)])
@pytest.mark.parametrize("padding", ["None", "none", "some", "one token"])
def test_the_loss_of_replaced_tokens_errs_no_more_than_the_obvious_code_does(dtype, shape, padding):
    logits = (6 * torch.randn(shape)).to(dtype)
    replaced = torch.randint(0, 2, shape)
    mask = {
        "None": None,
        "none": torch.ones(shape, dtype=torch.long),
        "some": (torch.arange(shape[1]) < torch.randint(1, shape[1] + 1, (shape[0], 1))).long(),
        "one token": (torch.arange(shape[1]) < 1).long().expand(shape),
    }[padding]
    loss = replaced_token_loss(logits, replaced, mask)
    assert loss.num_items == (logits.numel() if mask is None else mask.sum())
    naive, truth = (
        float(reference.replaced_token_loss(each, replaced, mask)) for each in (logits.float(), logits.double())
    )
    slack = 4 * torch.finfo(torch.float32).eps * max(1.0, abs(truth))
    assert abs(float(loss.mean()) - truth) <= abs(naive - truth) + slack


def test_gradients_equal_the_references():
    logits, replaced = torch.randn(3, 9, dtype=torch.float64, requires_grad=True), torch.randint(0, 2, (3, 9))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [1]])).long()
    (ours,) = torch.autograd.grad(replaced_token_loss(logits, replaced, mask).mean(), logits)
    (naive,) = torch.autograd.grad(reference.replaced_token_loss(logits, replaced, mask), logits)
    torch.testing.assert_close(ours, naive, rtol=1e-12, atol=1e-14)
