"""Timescales of recurrent units against connections that are known."""

import math
import re

import pytest
import torch
from builders import build_tiny_lm

from fairseq_plugins.evaluation.analyses.timescales import timescales
from fairseq_plugins.reports.timescales import draw_timescales, timescale_table


def model_with(connections):
    """A diagonal network of one layer with these self-connections."""
    width = str(len(connections))
    model = build_tiny_lm("full", rnn_cell="diagonal", hidden_sizes=width).double()
    (layer,) = model.decoder.stack.layers
    with torch.no_grad():
        layer.connection_bias.copy_(torch.atanh(torch.tensor(connections).double()) - layer.start)
    return model


def test_timescales_are_those_of_the_self_connections():
    (found,) = timescales(model_with([math.exp(-1 / 7), 0.0, -0.5, math.exp(-2.0), 1.0]), "model.pt")
    assert found.values == pytest.approx([7, 0.5])
    assert (found.layer, found.num_alternating, found.num_without) == (1, 1, 2)
    assert re.search(r"7\.00 \| +3\.75 \|", timescale_table({"FPNN": [found]}))
    (line,) = draw_timescales({"FPNN": [found]}).axes[0].get_lines()
    assert line.get_xdata().tolist() == [1, 2] and line.get_ydata() == pytest.approx([7, 0.5])
    assert line.get_label() == "FPNN: 2 of 5 units"


@pytest.mark.parametrize("flags", [{"rnn_cell": "lstm"}, {"rnn_cell": "diagonal", "transition": "full"}])
def test_layers_without_self_connections_are_refused(flags):
    with pytest.raises(ValueError, match="model.pt: layer 1 has no self-connections"):
        timescales(build_tiny_lm("full", **flags), "model.pt")
