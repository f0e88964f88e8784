"""Stacks whose loops over time steps have graphs: cells with recurrent dropout, and decoders with attention."""

from functools import partial

import torch

from fairseq_plugins.modules.attention import ATTENTIONS, AttentionalStack, Memory
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.modules.stack import RecurrentStack

B, T, D, S = 3, 5, 8, 4


def _stack(cell, graphs):
    options = RECURRENT_CELLS[cell].Options(dropout_recurrent=0.5)
    return RecurrentStack(D, [D, D], cell=cell, cell_options=options, graphs=graphs)


def _decoder(attention, graphs):
    layers = RecurrentStack(2 * D, [D, D], hidden_dropout=0.5, output_dropout=0.5, masks="standard", graphs=graphs)
    return AttentionalStack(layers, attention=ATTENTIONS[attention](D), feeds=True)


LOOPS = {
    **{cell: (partial(_stack, cell), 2) for cell in ("variational", "rhn", "mogrifier")},
    **{f"attention {name}": (partial(_decoder, name), 1) for name in ("dot", "general")},
}
"""Of each stack what builds it for given graphs, and the number of loops, each of which needs a graph of its own."""


def run_stack(stack, seed, *, padded=False):
    """Outputs for random values. With ``padded`` a decoder's sources have padding."""
    torch.manual_seed(seed)
    like = next(stack.parameters())
    x = torch.randn(B, T, D).to(like)
    if isinstance(stack, RecurrentStack):
        return stack(x).layers
    annotations = torch.randn(B, S, D).to(like)
    padding = (torch.arange(S).expand(B, S) >= torch.tensor([[S], [S - 1], [S - 2]])).to(like.device)
    memory = Memory(annotations, stack.attention.keys(annotations), padding if padded else None)
    outputs = stack(x, memory, stack.initial_state(stack.stack.initial_state(x)))
    return [*outputs.layers, outputs.attention]


def train(stack, *, num_updates, **options):
    """Outputs of every update, and the parameters after the last."""
    optimiser = torch.optim.SGD(stack.train().parameters(), lr=0.1)
    found = []
    for seed in range(num_updates):
        outputs = run_stack(stack, seed, **options)
        optimiser.zero_grad()
        sum((x * x).sum() for x in outputs).backward()
        optimiser.step()
        found.extend(x.detach().clone() for x in outputs)
    return [*found, *stack.parameters()]
