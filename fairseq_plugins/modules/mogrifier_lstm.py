"""Mogrifier LSTM: input and hidden state gate each other before every step (Melis et al. 2020).

Shapes: B batch rows, T time steps, C input width, of which C' columns are precomputed, D width.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext, LayerState, RecurrentCell, Step
from fairseq_plugins.modules.layers import ModuleSequence
from fairseq_plugins.modules.lstm import RecurrentDropoutOptions, recurrent_dropout, zero_state
from fairseq_plugins.ops.mogrifier import mogrifier_lstm
from fairseq_plugins.ops.recurrence import StepProducts
from fairseq_plugins.options import check_whole


@dataclass
class MogrifierOptions(RecurrentDropoutOptions):
    """Flags of ``--rnn-cell mogrifier``."""

    mogrifier_rounds: int = field(
        default=5,
        metadata={
            "help": "rounds before a step, in which hidden state and input gate each other in turn; the first gates "
            "the input; 0: a plain LSTM (default: 5)"
        },
    )
    mogrifier_rank: int = field(
        default=0,
        metadata={
            "help": "rank of a round's matrix, which is then a product of two matrices; 0: one matrix of full rank "
            "(default: 0)"
        },
    )


class MogrifierRound(nn.Module):
    """y <- 2 sigmoid(Q z + b) y, where y is the input and z the hidden state, or vice versa.

    Args:
        gated_size: width of y.
        reading_size: width of z.
        rank: of Q, which is a product of two matrices, or 0 for one matrix. b starts at zero.
    """

    def __init__(self, gated_size: int, reading_size: int, *, rank: int):
        super().__init__()
        sizes = [reading_size, rank, gated_size] if rank else [reading_size, gated_size]
        self.factors: ModuleSequence[nn.Linear] = ModuleSequence(
            nn.Linear(*pair, bias=n == len(sizes) - 2) for n, pair in enumerate(zip(sizes, sizes[1:]))
        )
        nn.init.zeros_(self.factors[-1].bias)

    def steps(self, num_steps: int, num_rows: int) -> Callable[[int, Tensor, Tensor], Tensor]:
        """y after this round, as a function of step, y and z."""
        products: List[StepProducts] = []
        for factor in self.factors:
            bias = factor.weight.new_zeros(factor.out_features) if factor.bias is None else factor.bias
            products.append(StepProducts(bias.expand(num_steps, num_rows, -1), factor.weight.t()))

        def gate(t: int, y: Tensor, z: Tensor) -> Tensor:
            for product in products:
                z = product(t, z)
            return 2 * torch.sigmoid(z) * y

        return gate


@RECURRENT_CELLS.register("mogrifier")
class MogrifierLSTM(RecurrentCell):
    """LSTM that reads x and h after rounds of x <- 2 sigmoid(Q h + b) x and h <- 2 sigmoid(R x + b) h, by turns.

    Melis, Kocisky & Blunsom 2020. Every round has its own matrix and bias. The LSTM has one bias vector and a capped
    input gate: f, o = sigmoid(.), i = min(sigmoid(.), 1 - f), c = f c + i tanh(.), h = o tanh(c). The initial biases of
    forget gates are 1 above the others, unless the model draws all its parameters itself. They are ordinary weights, so
    weight decay pulls them to zero. With ``--dropout-recurrent`` the rounds start from m h instead of h, with a mask m
    for each window and row. The state is h and c, each (B, D).

    Args:
        input_size: C.
        hidden_size: D.
        options: flags.

    Raises:
        UserError: on a number of rounds or a rank that is below zero or not whole.
    """

    Options = MogrifierOptions

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        has_rounds = getattr(args, "mogrifier_rounds", MogrifierOptions.mogrifier_rounds) != 0
        return {} if has_rounds else {"mogrifier_rank": "give --mogrifier-rounds 1 or more"}

    def __init__(self, input_size: int, hidden_size: int, *, options: MogrifierOptions):
        super().__init__()
        check_whole(options.mogrifier_rounds, flag="--mogrifier-rounds")
        check_whole(options.mogrifier_rank, flag="--mogrifier-rank")
        self.hidden_size = hidden_size
        self.input = nn.Linear(input_size, 4 * hidden_size)
        self.input.bias.detach()[hidden_size : 2 * hidden_size].add_(1)  # of the forget gates
        self.recurrent = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        sizes = input_size, hidden_size
        self.rounds: ModuleSequence[MogrifierRound] = ModuleSequence(
            MogrifierRound(*(sizes if n % 2 == 0 else sizes[::-1]), rank=options.mogrifier_rank)
            for n in range(options.mogrifier_rounds)
        )
        self.recurrent_dropout = recurrent_dropout(options)

    def initial_state(self, x: Tensor) -> LayerState:
        return zero_state(x, self.hidden_size)

    def steps(self, x: Tensor, context: CellContext) -> Step:
        (num_rows, num_steps, _), inputs = x.shape, x.unbind(1)
        weight = torch.cat([self.input.weight, self.recurrent.weight], dim=1)
        rounds = [mogrifier.steps(num_steps, num_rows) for mogrifier in self.rounds]
        gates = StepProducts(self.input.bias.expand(num_steps, num_rows, -1), weight.t())
        mask = self.recurrent_dropout.mask(x, (num_rows, self.hidden_size))

        def step(t: int, state: LayerState, late: Optional[Tensor], _: Optional[Tensor]) -> Tuple[Tensor, LayerState]:
            h = state["h"] if mask is None else state["h"] * mask
            x = inputs[t] if late is None else torch.cat([inputs[t], late], dim=1)
            for n, gate in enumerate(rounds):
                if n % 2 == 0:
                    x = gate(t, x, h)
                else:
                    h = gate(t, h, x)
            i, f, g, o = gates(t, torch.cat([x, h], dim=1)).chunk(4, dim=1)
            f = torch.sigmoid(f)
            c = f * state["c"] + torch.minimum(torch.sigmoid(i), 1 - f) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            return h, {"h": h, "c": c}

        return step

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        is_search_step = x.size(1) == 1 and not torch.is_grad_enabled()
        if is_search_step or context.leading_padding is not None:
            return super().forward(x, state, context)
        outputs, c = mogrifier_lstm(
            x.transpose(0, 1),
            [(part.factors[-1].bias, [factor.weight for factor in part.factors]) for part in self.rounds],
            torch.cat([self.input.weight, self.recurrent.weight], dim=1),
            self.input.bias,
            state["h"],
            state["c"],
            mask=self.recurrent_dropout.mask(x, (x.size(0), self.hidden_size)),
            graphs=context.graphs,
        )
        return outputs.transpose(0, 1), {"h": outputs[-1].clone(), "c": c}
