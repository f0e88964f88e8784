"""A cell that exists in this file alone is a value of --rnn-cell in every recurrent model."""

import argparse
import itertools
from dataclasses import dataclass, field

import pytest
import torch
from builders import build_encdec, build_lm, build_tiny_encdec, build_tiny_lm, make_dictionary
from cell_contract import CellContract
from decoder_contract import LENGTHS, SOURCES, B, DecoderContract, Decoding, T, TranslatorContract, V, pad
from fairseq import options
from fairseq.dataclass import FairseqDataclass
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

from fairseq_plugins.flags.values import check_dropout
from fairseq_plugins.models.recurrent_encdec import RecurrentEncoderDecoder
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.modules.dropout import BroadcastDropout
from fairseq_plugins.modules.encoder_stack import MERGES
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, RecurrentCell
from fairseq_plugins.modules.recurrent_state import named_tensors, pack_state, state_tensors, unpack_state

# the cell


@dataclass
class TanhOptions(FairseqDataclass):
    dropout_memory: float = field(default=0.0, metadata={"help": "rate of one mask of the states of a window"})


class TanhCell(RecurrentCell):
    """h_t = tanh(W x_t + U (m h_{t-1}) + V (m h_{t-2}) + b_{w mod 3}) for word w, with one mask m a window and row."""

    Options = TanhOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: TanhOptions):
        super().__init__()
        check_dropout(options.dropout_memory, flag="--dropout-memory")
        self.hidden_size = hidden_size
        self.input = nn.Linear(input_size, hidden_size, bias=False)
        self.recurrent = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.of_word = nn.Parameter(0.1 * torch.randn(3, hidden_size))
        self.dropout = BroadcastDropout(options.dropout_memory, flag="--dropout-memory", shared_dims=(1,))

    def start_by_layer(self):
        nn.init.eye_(self.recurrent.weight)

    def initial_state(self, x):
        return {"recent": x.new_zeros(x.size(0), 2, self.hidden_size)}

    def prepare(self, x, context):
        known = nn.functional.linear(x, self.input.weight[:, : x.size(-1)]) + self.of_word[context.tokens % 3]
        mask = self.dropout.mask(x, (x.size(0), 2, self.hidden_size))
        return known, self.input.weight[:, x.size(-1) :].t(), 1.0 if mask is None else mask

    def step(self, prepared, t, late, state):
        known, weight, mask = prepared
        recent = state["recent"]
        gates = known[:, t] + self.recurrent((mask * recent).flatten(1))
        if late.input is not None:
            gates = gates + late.input @ weight
        h = torch.tanh(gates)
        return h, {"recent": torch.stack([recent[:, 1], h], dim=1)}


@pytest.fixture(autouse=True)
def registered():
    before = dict(RECURRENT_CELLS)
    RECURRENT_CELLS.register("tanh")(TanhCell)
    yield
    del RECURRENT_CELLS["tanh"]
    assert RECURRENT_CELLS == before


FEEDING_AND_MERGES = list(itertools.product(("on", "off"), MERGES))


def joined(case):
    return " ".join(case)


# the contracts


class TestCell(CellContract):
    @pytest.fixture
    def case(self, registered):
        return "tanh", {}


class TestLanguageModel(DecoderContract):
    dropouts = {"dropout_memory": 0.5, "dropout_output": 0.5}

    @pytest.fixture
    def build(self):
        return lambda **flags: Decoding(build_tiny_lm("tied", rnn_cell="tanh", **flags), [], num_layers=3)


class TestEncoderDecoder(TranslatorContract):
    dropouts = {"dropout_memory": 0.5, "dropout": 0.5}

    @pytest.fixture(params=FEEDING_AND_MERGES, ids=joined)
    def build(self, request, sentences):
        feeding, merge = request.param
        flags = dict(rnn_cell="tanh", input_feeding=feeding, encoder_merge=merge, hidden_sizes="8 8")
        return lambda **others: Decoding(build_tiny_encdec("full", **flags, **others), sentences, num_layers=4)


def test_it_starts_by_layer_as_it_says():
    model = build_encdec("lstm_encdec", SOURCES, V, embed_dim=8, hidden_sizes="8", rnn_cell="tanh", init="by-layer")
    cells = [module for module in model.modules() if isinstance(module, TanhCell)]
    assert cells and all(torch.equal(cell.recurrent.weight, torch.eye(*cell.recurrent.weight.shape)) for cell in cells)
    assert all(cell.of_word.abs().max() > 0.1 for cell in cells)  # the common start


# the command line


FLAGS = ("--rnn-cell", "--dropout-memory")


@pytest.mark.parametrize("model", [RecurrentLanguageModel, RecurrentEncoderDecoder])
def test_the_command_line_offers_the_cell_and_its_flag(model):
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    model.add_args(parser)
    cell, rate = (next(a for a in parser._actions if name in a.option_strings) for name in FLAGS)
    assert "tanh" in cell.choices and rate.help == "tanh: rate of one mask of the states of a window"
    assert vars(parser.parse_args([])) == {}


@pytest.mark.parametrize("arch", ["lstm_lm_awd", "lstm_encdec"])
def test_a_command_builds_the_model(arch):
    command = ["data", f"--arch={arch}", "--rnn-cell=tanh", "--dropout-memory=0.3", "--embed-dim=8"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=[*command, "--hidden-sizes=12 8"])
    flags = {name: getattr(args, name) for name in ("rnn_cell", "dropout_memory", "embed_dim", "hidden_sizes")}
    model = build_lm(arch, V, **flags) if arch == "lstm_lm_awd" else build_encdec(arch, SOURCES, V, **flags)
    cells = [module for module in model.modules() if isinstance(module, RecurrentCell)]
    assert {type(cell) for cell in cells} == {TanhCell} and {cell.dropout.rate for cell in cells} == {0.3}
    assert len(cells) == (2 if arch == "lstm_lm_awd" else 6)  # encoders have two directions


def test_its_flag_is_refused_beside_another_cell():
    with pytest.raises(ValueError, match="--dropout-memory: not a flag of --rnn-cell lstm"):
        build_tiny_lm("tied", dropout_memory=0.3)
    with pytest.raises(ValueError, match="--dropout-weight: not a flag of --rnn-cell tanh"):
        build_tiny_lm("tied", rnn_cell="tanh", dropout_weight=0.3)
    with pytest.raises(ValueError, match="--dropout-memory 1.0: a dropout rate"):
        build_tiny_lm("tied", rnn_cell="tanh", dropout_memory=1.0)


# training


@pytest.fixture
def source():
    return pad([torch.randint(4, SOURCES, (length,)) for length in LENGTHS], side="left")


@pytest.fixture
def tokens():
    return torch.randint(4, V, (B, T))


def losses(model, *inputs, target, num_updates=60):
    """Of updates on one batch, a token."""
    optimizer, found = torch.optim.Adam(model.train().parameters(), lr=0.02), []
    for _ in range(num_updates):
        optimizer.zero_grad()
        loss, _ = model(*inputs, target=target)
        loss.backward()
        optimizer.step()
        found.append(loss.item() / target.numel())
    return found


@pytest.mark.parametrize("layer", ["tied", "doc"])
def test_a_language_model_learns(layer, tokens):
    sizes = dict(embed_dim=16, hidden_sizes="16 16", rnn_cell="tanh", dropout_memory=0.1)
    found = losses(build_lm(f"lstm_lm_{layer.replace('tied', 'awd')}", V, **sizes), tokens, target=tokens.roll(-1, 1))
    assert found[-1] < found[0] - 1


@pytest.mark.slow
@pytest.mark.parametrize("feeding, merge", FEEDING_AND_MERGES)
def test_an_encoder_decoder_learns(feeding, merge, source, tokens):
    flags = dict(embed_dim=16, hidden_sizes="16 16", dropout_memory=0.1, input_feeding=feeding, encoder_merge=merge)
    model = build_encdec("lstm_encdec", SOURCES, V, rnn_cell="tanh", **flags)
    found = losses(model, *source, tokens, target=tokens.roll(-1, 1))
    assert found[-1] < found[0] - 1


def test_a_training_goes_on_from_a_checkpoint_within_a_text(tokens, tmp_path):
    """As the task saves and restores it: weights, and the state before the next window of all rows."""

    def train(model, positions):
        optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
        for position in positions:
            optimizer.zero_grad()
            window = tokens[:, position : position + 2]
            model(window, target=window.roll(-1, 1), stream="train", position=position)[0].backward()
            optimizer.step()

    model, resumed = (build_tiny_lm("tied", rnn_cell="tanh", seed=seed) for seed in (1, 2))
    train(model, [0, 2])
    state = model.decoder.carried_state.get("train", 4)
    assert list(named_tensors(state)) == ["layers.0.recent", "layers.1.recent"] and all(
        map(torch.any, state_tensors(state))
    )
    torch.save({"model": model.state_dict(), "state": state}, tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.load_state_dict(saved["model"])
    rows = [
        unpack_state(pack_state(saved["state"])[part], like=state) for part in (slice(0, 1), slice(1, B))
    ]  # two processes
    joined = unpack_state(torch.cat([pack_state(part) for part in rows]), like=state)
    resumed.decoder.carried_state.set("train", 4, joined)
    for lm in (model, resumed):
        train(lm, [4])
    torch.testing.assert_close(model.state_dict(), resumed.state_dict(), rtol=0, atol=0)
    later = [lm.decoder.carried_state.get("train", 6) for lm in (model, resumed)]
    torch.testing.assert_close(*later, rtol=0, atol=0)


# scoring and beam search


def test_windows_of_a_stream_are_one_long_text(tokens):
    model, target = build_tiny_lm("tied", rnn_cell="tanh", dropout_memory=0.5).double().eval(), tokens.roll(-1, 1)
    whole = model(tokens, target=target)[1]["scores"].nll
    windows = [
        model(tokens[:, a:b], target=target[:, a:b], stream="test", position=a)[1]["scores"].nll
        for a, b in ((0, 1), (1, 4), (4, T))
    ]
    torch.testing.assert_close(torch.cat(windows, dim=1), whole, rtol=1e-11, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("feeding, merge", FEEDING_AND_MERGES)
def test_a_beam_search_scores_as_the_full_forward(feeding, merge, source):
    flags = dict(rnn_cell="tanh", input_feeding=feeding, encoder_merge=merge, hidden_sizes="8 8", dropout_memory=0.5)
    model, dictionary = build_tiny_encdec("full", **flags).eval(), make_dictionary(V)
    generator = SequenceGenerator([model], dictionary, beam_size=4, max_len_b=5)
    batch = {"net_input": dict(zip(("src_tokens", "src_lengths"), source))}
    for row, hypotheses in enumerate(generator.generate([model], batch)):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            target = hypothesis["tokens"].unsqueeze(0)
            previous = torch.cat([torch.full((1, 1), dictionary.eos()), target[:, :-1]], dim=1)
            rows = [part[row : row + 1] for part in source]
            nll = model(*rows, previous, target=target)[1]["scores"].nll
            torch.testing.assert_close(hypothesis["positional_scores"], -nll[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_language_model_continues_a_text(tokens):
    model, dictionary = build_tiny_lm("tied", rnn_cell="tanh", dropout_memory=0.5).eval(), make_dictionary(V)
    generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=8)
    batch = {"net_input": {"src_tokens": tokens[:, :3], "src_lengths": torch.full((B,), 3)}}
    for hypotheses in generator.generate([model], batch, prefix_tokens=tokens[:, :3]):
        for hypothesis in hypotheses:
            target = hypothesis["tokens"].unsqueeze(0)
            previous = torch.cat([torch.full((1, 1), dictionary.eos()), target[:, :-1]], dim=1)
            nll = model(previous, target=target)[1]["scores"].nll
            torch.testing.assert_close(hypothesis["positional_scores"], -nll[0], rtol=1e-5, atol=1e-5)
