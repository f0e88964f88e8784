"""Fixtures of the unit tests: dictionaries, a minimal task, models as the host builds them."""

from argparse import Namespace
from types import SimpleNamespace

import dictionaries
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_plugins  # noqa: F401
from fairseq_plugins.flags.registry import option_names
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.decoder_states import DecoderStates

pytest.register_assert_rewrite("cell_contract", "decoder_contract")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes longer than a few seconds")
    config.addinivalue_line("markers", "data: needs a real corpus on disk")
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    # long tests first, so that no process is left alone with them at the end
    items.sort(key=lambda item: (item.path.name != "test_readme.py", "integration" not in item.path.parts))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def _make_task(vocab_size: int) -> SimpleNamespace:
    dictionary = dictionaries.make_dictionary(vocab_size)
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def _build_lm(arch: str, vocab_size: int, **overrides):
    args = Namespace(arch=arch, **overrides)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, _make_task(vocab_size))


@pytest.fixture
def make_dictionary():
    """``make_dictionary(size)``: a dictionary with ``size`` symbols, the special ones included."""
    return dictionaries.make_dictionary


@pytest.fixture
def make_task():
    """``make_task(vocab_size)``: what models and criteria read of a task."""
    return _make_task


@pytest.fixture
def build_lm():
    """``build_lm(arch, vocab_size, **flags)``: a model, through the registered architecture as in the host."""
    return _build_lm


@pytest.fixture
def build_tiny_lm():
    """``build_tiny_lm(output_layer, **flags)``: two layers, 23 words, no dropout, all weights well away from zero."""

    def build(output_layer: str, *, vocab_size: int = 23, seed: int = 0, **overrides):
        flags = dict(
            embed_dim=8,
            hidden_sizes="12 8",
            dropout_embedding=0.0,
            dropout_input=0.0,
            dropout_hidden=0.0,
            dropout_output=0.0,
        )
        chosen = OUTPUT_LAYERS.get(output_layer), RECURRENT_CELLS.get(overrides.get("rnn_cell", "lstm"))
        for component in filter(None, chosen):
            rates = {"latent_dropout", "dropout_weight"} & option_names(component.Options)
            flags.update(dict.fromkeys(rates, 0.0))
        model = _build_lm("lstm_lm_awd", vocab_size, output_layer=output_layer, **{**flags, **overrides})
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for param in model.parameters():
                param.uniform_(-0.7, 0.7, generator=generator)
        return model

    return build


@pytest.fixture
def make_states():
    """``make_states(widths, B, T)``: random states of layers of the given widths."""

    def make(widths, num_rows: int = 3, num_steps: int = 4, scale: float = 1.0, dtype=torch.float32):
        layers = [scale * torch.randn(num_rows, num_steps, width, dtype=dtype) for width in widths]
        return DecoderStates(layers=layers, top=layers[-1], tokens=torch.zeros(num_rows, num_steps, dtype=torch.long))

    return make
