"""Whether a backward pass keeps its graph."""

import torch

from fairseq_plugins.ops.autograd_graph import backward_keeps_graph


class Asks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, answers):
        ctx.answers = answers
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        ctx.answers.append(backward_keeps_graph())
        return 2 * grad, None


def test_the_answer_is_what_was_asked_for():
    answers = []
    y = Asks.apply(torch.ones((), requires_grad=True), answers)
    y.backward(retain_graph=True)
    y.backward()
    assert answers == [True, False]


def test_where_torch_cannot_tell_the_graph_is_kept(monkeypatch):
    monkeypatch.delattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
    assert backward_keeps_graph()
