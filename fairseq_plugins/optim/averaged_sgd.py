"""SGD that can keep the running mean of its iterates."""

from typing import Any, Callable, Dict, Optional

import torch
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from fairseq_plugins.modules.column_norm import column_norm


class AveragedSGD(SGD):
    """SGD whose model holds the averaged weights between updates.

    Once :meth:`start_averaging` was called, parameters hold the raw iterate only between
    :meth:`zero_grad` and the end of :meth:`step`, that is during the forward and backward pass of an
    update. At any other time, when one evaluates or saves, they hold the average and the raw iterate
    lies in the optimiser's state. The exchange moves pointers, no data.

    The average is the one of :class:`torch.optim.ASGD` with ``lambd=0, t0=0`` (Polyak & Juditsky 1992): the
    mean of all iterates from the second averaged update on. Here a learning rate acts on the
    update that it is set for; there it acts one update later.

    Columns that keep their length (:class:`~fairseq_plugins.modules.column_norm.ColumnNorm`) do so in every iterate,
    and in the average where the model holds it; the mean itself is that of the iterates.

    All state lies in the parameter groups and the per-parameter state, so it is part of
    ``state_dict()`` whatever wraps the optimiser.
    """

    def __init__(self, params: ParamsT, *, lr: float, weight_decay: float = 0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        for group in self.param_groups:
            group.update(num_averaged=None, model_holds_average=False)

    @property
    def is_averaging(self) -> bool:
        """Whether :meth:`start_averaging` was called."""
        return self.param_groups[0]["num_averaged"] is not None

    def start_averaging(self) -> None:
        """Average the iterates of all later updates."""
        for group in self.param_groups:
            group["num_averaged"] = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; while averaging, put the raw iterate into the model."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            if group["model_holds_average"]:
                self._exchange(group)

    def show_average(self) -> None:
        """Put the average into the model, where an update was begun but not made."""
        for group in self.param_groups:
            if group["num_averaged"] and not group["model_holds_average"]:
                self._exchange(group)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
        """One SGD update; while averaging, also update the mean and put it into the model."""
        assert not self.param_groups[0]["model_holds_average"], "call zero_grad before the forward pass"
        loss = super().step(closure)
        for param in (param for group in self.param_groups for param in group["params"]):
            norm = column_norm(param)
            if norm is not None:
                norm.normalise_(param.data)
        for group in self.param_groups:
            if group["num_averaged"] is not None:
                self._average(group)
                self._exchange(group)
        return loss

    def _average(self, group: Dict[str, Any]) -> None:
        group["num_averaged"] += 1
        if group["num_averaged"] == 1:
            for param in group["params"]:
                self.state[param]["exchanged"] = param.detach().clone()
        else:
            means = [self.state[param]["exchanged"] for param in group["params"]]
            torch._foreach_lerp_(means, group["params"], 1 / (group["num_averaged"] - 1))

    def _exchange(self, group: Dict[str, Any]) -> None:
        for param in group["params"]:
            state, norm = self.state[param], column_norm(param)
            # an average that was saved before its columns kept their length has no divisors
            if norm is not None and group["model_holds_average"] and "divisors" in state:
                param.data.mul_(state["divisors"])
            param.data, state["exchanged"] = state["exchanged"], param.data
            if norm is not None and not group["model_holds_average"]:
                state["divisors"] = norm.normalise_(param.data)
        group["model_holds_average"] = not group["model_holds_average"]
