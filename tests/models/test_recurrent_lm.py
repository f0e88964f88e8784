"""The recurrent language model as fairseq builds it.

For its decoder see test_decoder_contract.py, for its flags and initial values test_recurrent_models.py.
"""

from dataclasses import dataclass, field

import plain_formulas
import pytest
import torch
from builders import (
    build_encdec,
    build_lm,
    build_model,
    build_tiny_encdec,
    build_tiny_lm,
    make_dictionary,
)
from cell_contract import CellContract
from decoder_contract import SOURCES, B, DecoderContract, Decoding, T, TranslatorContract, V
from fairseq import options
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS, RecurrentCell
from fairseq_plugins.modules.layers import BroadcastDropout


@pytest.fixture
def tokens():
    return torch.randint(V, (B, T))


def layers_by_hand(model, tokens, skip):
    layers = [model.decoder.embedding.weight[tokens]]
    for layer in model.decoder.stack.layers:
        state = layer.initial_state(layers[-1])
        layers.append(plain_formulas.recurrent(layer, layers[-1], state, layers[0])[0])
    if skip == "sum":  # what the output layer reads
        layers[-1] = sum(layers[1:])
    if model.decoder.feed_forward is not None:
        linear = model.decoder.feed_forward[0]
        products = torch.einsum("btc,dc->btd", layers[-1], linear.weight) + linear.bias
        layers.append(products * (products > 0))
    return layers


DOC = {"experts_per_layer": "1 2 2", "hidden_sizes": "12 6"}
SUM = {"hidden_sizes": "8 8", "output_skip": "sum"}


@pytest.mark.parametrize(
    "cell, name, flags",
    [
        ("lstm", "tied", {}),
        ("lstm", "full", {"hidden_sizes": "12 6"}),
        ("lstm", "mos", {"experts_per_layer": "0 0 3", "hidden_sizes": "12 6"}),
        ("diagonal", "doc", {**SUM, "experts_per_layer": "1 0 1 2", "output_hidden_size": 6}),
        *((cell, "doc", DOC) for cell in sorted(plain_formulas.CELLS)),
        ("lstm", "tied", SUM),
        ("mogrifier", "doc", {**SUM, "experts_per_layer": "1 2 2"}),
    ],
)
def test_the_distribution_is_that_of_the_equations(name, flags, cell, tokens):
    model = build_tiny_lm(name, rnn_cell=cell, **flags).double()
    layers = layers_by_hand(model, tokens, flags.get("output_skip"))
    log_probs, extra = model(tokens)
    found = [*extra["states"].layers, extra["states"].top]
    torch.testing.assert_close(found, [*layers, layers[-1]], rtol=1e-11, atol=1e-13)
    expected = plain_formulas.output_probs(model.decoder.output, layers)
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-11, atol=1e-13)


# streams


BETWEEN_WINDOWS = {
    "separate sequences": lambda lm, tokens: lm(tokens),
    "a validation": lambda lm, tokens: [lm.eval()(tokens[:1], stream="valid", position=n * T) for n in range(2)],
    "statistics of the text": lambda lm, tokens: lm.eval()(tokens, stream="statistics", position=0),
    "decoding": lambda lm, tokens: lm.eval()(tokens, incremental_state={}),
}


@pytest.mark.parametrize("between", BETWEEN_WINDOWS.values(), ids=BETWEEN_WINDOWS)
def test_what_is_read_between_two_windows_starts_from_zero_and_leaves_the_stream_alone(between, tokens):
    fresh, model, undisturbed = (build_tiny_lm("tied").train() for _ in range(3))
    for lm in (model, undisturbed):
        lm(tokens, stream="train", position=0)
    found, expected = between(model, tokens), between(fresh, tokens)
    for ours, theirs in zip(*((part if isinstance(part, list) else [part]) for part in (found, expected))):
        assert torch.equal(ours[0], theirs[0])
    outputs = [lm.train()(tokens, stream="train", position=T)[0] for lm in (model, undisturbed)]
    assert torch.equal(*outputs) and not torch.equal(outputs[0], fresh(tokens)[0])


def test_no_gradient_crosses_windows_of_a_stream(tokens):
    model = build_tiny_lm("tied")
    model(tokens, stream="text", position=0)
    second = torch.full((B, 1), 4)
    states = model(second, stream="text", position=T)[1]["states"]
    states.top.sum().backward()
    rows = model.decoder.embedding.weight.grad.abs().sum(-1).nonzero().flatten().tolist()
    assert rows == [4]


@pytest.mark.parametrize("cell", ["lstm", "rhn"])
def test_dropped_rows_start_a_window_from_zero_and_the_others_go_on(cell):
    """In training alone; which ones is decided by the generator, which fairseq seeds at every update."""
    rows, flags = 40, dict(rnn_cell=cell, output_gate="iog-lstm", gate_dim=5, gate_dropout=0.0)
    first, second = torch.randint(V, (2, rows, T))
    plain, model = build_tiny_lm("tied", **flags), build_tiny_lm("tied", dropout_carried_state=0.3, **flags)
    for lm in (plain, model):
        lm.train()(first, stream="train", position=0)
    goes_on = plain(second, stream="train", position=T)[0]
    starts = build_tiny_lm("tied", **flags)(second)[0]
    windows = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        windows.append(model(second, stream="train", position=T)[0])
        dropped = (windows[-1] - starts).abs().amax(dim=(1, 2)) < 1e-5
        assert 3 <= dropped.sum() <= 22
        expected = torch.where(dropped.view(-1, 1, 1), starts, goes_on)
        torch.testing.assert_close(windows[-1], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(windows[0], windows[1]) and not torch.equal(windows[0], windows[2])
    torch.testing.assert_close(model.eval()(second, stream="train", position=T)[0], goes_on, rtol=0, atol=0)


def test_no_row_is_dropped_where_no_state_is_carried(tokens):
    model = build_tiny_lm("tied", dropout_carried_state=0.01).train()
    with pytest.raises(ValueError, match="^--dropout-carried-state 0.01: no state .* --task stateful_lm, or give 0$"):
        model(tokens)
    model.eval()(tokens)


# flags


@pytest.mark.parametrize(
    "flags, told",
    [
        (dict(output_hidden_size=-3), "^--output-hidden-size -3: give at least 1"),
        (dict(dropout_input=-0.1), "^--dropout-input -0.1: a dropout rate is the probability to drop"),
        (dict(init_biases="uniform"), "^--init-biases uniform needs an --init-range: give that, too$"),
    ],
)
def test_flags_of_language_models_that_do_not_fit_are_refused(flags, told):
    with pytest.raises(ValueError, match=told):
        build_tiny_lm("tied", **flags)


@pytest.mark.parametrize("arch", ["lstm_lm_awd", "gated_lm"])
def test_a_task_of_pairs_is_refused(arch):
    task = TranslationTask(TranslationConfig(), make_dictionary(V), make_dictionary(V))
    with pytest.raises(ValueError, match="a language model, .* pairs: give --task stateful_lm .*--arch for pairs"):
        build_model(arch, task)


# the cell


@dataclass
class TanhOptions(FairseqDataclass):
    dropout_memory: float = field(default=0.0, metadata={"help": "rate of one mask of the states of a window"})


class TanhCell(RecurrentCell):
    """h_t = tanh(W x_t + U (m h_{t-1}) + V (m h_{t-2}) + b_{w mod 3}) for word w, with one mask m a window and row."""

    Options = TanhOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: TanhOptions):
        super().__init__()
        self.hidden_size = hidden_size
        self.input = nn.Linear(input_size, hidden_size, bias=False)
        self.recurrent = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.of_word = nn.Parameter(0.1 * torch.randn(3, hidden_size))
        self.dropout = BroadcastDropout(options.dropout_memory, flag="--dropout-memory", shared_dims=(1,))

    def initial_state(self, x):
        return {"recent": x.new_zeros(x.size(0), 2, self.hidden_size)}

    def steps(self, x, context):
        known = nn.functional.linear(x, self.input.weight[:, : x.size(-1)]) + self.of_word[context.tokens % 3]
        mask = self.dropout.mask(x, (x.size(0), 2, self.hidden_size))
        weight = self.input.weight[:, x.size(-1) :].t()

        def step(t, state, late, stack_input):
            recent = state["recent"] if mask is None else mask * state["recent"]
            gates = known[:, t] + self.recurrent(recent.flatten(1))
            if late is not None:
                gates = gates + late @ weight
            h = torch.tanh(gates)
            return h, {"recent": torch.stack([state["recent"][:, 1], h], dim=1)}

        return step


@pytest.fixture(autouse=True)
def registered():
    before = dict(RECURRENT_CELLS)
    RECURRENT_CELLS.register("tanh")(TanhCell)
    yield
    del RECURRENT_CELLS["tanh"]
    assert RECURRENT_CELLS == before


# the contracts


class TestCell(CellContract):
    @pytest.fixture
    def case(self, registered):
        return "tanh", {}


class TestNewCellOfALanguageModel(DecoderContract):
    dropouts = {"dropout_memory": 0.5, "dropout_output": 0.5}

    @pytest.fixture
    def build(self):
        return lambda **flags: Decoding(build_tiny_lm("tied", rnn_cell="tanh", **flags), [], num_layers=3)


class TestNewCellOfAnEncoderDecoder(TranslatorContract):
    dropouts = {"dropout_memory": 0.5, "dropout": 0.5}

    @pytest.fixture(params=[("on", "layer"), ("off", "top")], ids=" ".join)
    def build(self, request, sentences):
        feeding, merge = request.param
        flags = dict(rnn_cell="tanh", input_feeding=feeding, encoder_merge=merge, hidden_sizes="8 8")
        return lambda **others: Decoding(build_tiny_encdec("full", **flags, **others), sentences, num_layers=4)


@pytest.mark.parametrize("arch", ["lstm_lm_awd", "lstm_encdec"])
def test_a_command_builds_the_model(arch):
    command = ["data", f"--arch={arch}", "--rnn-cell=tanh", "--dropout-memory=0.3", "--embed-dim=8"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=[*command, "--hidden-sizes=12 8"])
    flags = {name: getattr(args, name) for name in ("rnn_cell", "dropout_memory", "embed_dim", "hidden_sizes")}
    model = build_lm(arch, V, **flags) if arch == "lstm_lm_awd" else build_encdec(arch, SOURCES, V, **flags)
    cells = [module for module in model.modules() if isinstance(module, RecurrentCell)]
    assert {type(cell) for cell in cells} == {TanhCell} and {cell.dropout.rate for cell in cells} == {0.3}
    assert len(cells) == (2 if arch == "lstm_lm_awd" else 6)  # encoders have two directions


def test_the_tied_output_matrix_is_not_masked(tokens):
    model = build_tiny_lm("tied", dropout_embedding=0.9).double()
    log_probs, extra = model(tokens)
    dropped = extra["states"].layers[0].eq(0).all(-1)
    assert dropped.any()
    expected = plain_formulas.output_probs(model.decoder.output, extra["states"].layers)
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-11, atol=1e-13)
