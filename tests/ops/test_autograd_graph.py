"""What is asked of autograd while a backward pass runs."""

import pytest
import torch

from fairseq_plugins.ops.autograd_graph import backward_keeps_graph


class Asking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, answers):
        ctx.answers = answers
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.answers.append(backward_keeps_graph())
        return gradient, None


@pytest.mark.parametrize("keep", [True, False])
def test_whether_the_graph_is_kept(keep):
    answers = []
    Asking.apply(torch.ones(1, requires_grad=True), answers).backward(retain_graph=keep)
    assert answers == [keep]


def test_a_torch_that_cannot_tell_is_taken_to_keep_it(monkeypatch):
    monkeypatch.delattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
    assert backward_keeps_graph()
