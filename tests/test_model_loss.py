"""The decoder's loss: which labels count, micro-batches, and logits a chunk at a time."""

from __future__ import annotations

import pytest
import torch
from model_tools import gradients, small, tokens
from torch import Tensor
from torch.nn.functional import cross_entropy

from pe.model import loss as loss_module
from pe.model.loss import summed_loss, token_losses


def test_labels_shift_labels_and_cross_entropy_agree() -> None:
    model, ids = small("rope"), tokens(3, 16)
    labels = ids.clone()
    labels[0, :9] = -100
    labels[1, -1] = -100
    out = model(ids, labels=labels)
    want = cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(out.loss, want)
    shifted = torch.cat((labels[:, 1:], torch.full((3, 1), -100)), 1)
    training = model(ids, shift_labels=shifted)
    torch.testing.assert_close(training.loss, want)
    assert training.logits is None
    nothing = model(ids, shift_labels=torch.full_like(ids, -100))
    assert nothing.loss == 0


def test_labels_beside_shift_labels_are_refused() -> None:
    """Only the labels counted, and nothing said that the other targets had no effect."""
    model, ids = small("rope"), tokens(1, 4)
    with pytest.raises(ValueError, match="labels and shift_labels .* give one of the two"):
        model(ids, labels=ids, shift_labels=ids)


def test_micro_batches_with_uneven_counts_add_up() -> None:
    """huggingface/transformers#34191: divided by the count of the whole batch."""
    model, ids = small("pope"), tokens(4, 16)
    labels = ids.clone()
    labels[:2, 3:] = -100
    whole = model(ids, shift_labels=labels)
    whole.loss.backward()
    want = gradients(model)
    model.zero_grad()
    count = (labels != -100).sum()
    total = torch.zeros(())
    for part in (slice(0, 2), slice(2, 4)):
        part_loss = model(ids[part], shift_labels=labels[part], num_items_in_batch=count).loss
        part_loss.backward()
        total = total + part_loss.detach()
    torch.testing.assert_close(total, whole.loss.detach())
    for key, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, want[key], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 61 * 5, 61 * 7, 61 * 40, 10**9])
def test_chunked_loss_equals_the_whole(chunk: int) -> None:
    hidden, weight = torch.randn(33, 16).requires_grad_(), torch.randn(61, 16).requires_grad_()
    targets = torch.randint(0, 61, (33,))
    targets[[2, 3, 31]] = -100
    want = cross_entropy(hidden @ weight.T, targets, reduction="sum")
    loss = summed_loss(hidden, weight, targets, chunk_logits=chunk)
    torch.testing.assert_close(loss, want)
    for a, b in zip(
        torch.autograd.grad(loss, (hidden, weight)),
        torch.autograd.grad(want, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    each = token_losses(hidden, weight, targets)
    assert each.dtype == torch.float32
    assert (each[[2, 3, 31]] == 0).all()
    torch.testing.assert_close(each.sum(), want)


def test_chunking_bounds_the_logits_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch/torchtitan#996: neither forward nor backward ever makes more than a chunk of them."""
    rows: list[int] = []
    real = loss_module.linear

    def counting(hidden: Tensor, weight: Tensor) -> Tensor:
        rows.append(hidden.shape[0])
        return real(hidden, weight)

    monkeypatch.setattr(loss_module, "linear", counting)
    hidden, weight = torch.randn(50, 8).requires_grad_(), torch.randn(61, 8)
    loss = summed_loss(hidden, weight, torch.randint(0, 61, (50,)), chunk_logits=61 * 8)
    loss.backward()
    assert max(rows) == 8
    assert sum(rows) == 2 * 50  # once forward, once again for the backward pass
