"""Initial values and flags of the recurrent language model and encoder-decoder."""

import argparse
from typing import Callable, Dict, Sequence

import pytest
from builders import build_encdec, build_lm, build_tiny_encdec, build_tiny_lm
from torch import nn

from fairseq_plugins.models.recurrent_encdec import RecurrentEncoderDecoder
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.modules.attention import ATTENTIONS
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.modules.layers import BIASES, MASKS, WORD_MASKS
from fairseq_plugins.modules.recurrent_highway import TRANSFORM_INPUTS
from fairseq_plugins.modules.stack import OUTPUT_SKIPS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

INIT_RANGE = 0.07
WIDE = dict(embed_dim=32, hidden_sizes="40 32")
CHOICES = {
    "--init-biases": BIASES,
    "--rnn-biases": ["one", "two"],
    "--rnn-cell": sorted(RECURRENT_CELLS),
    "--transform-input": TRANSFORM_INPUTS,
}

# the output layer, its flags, and what the error tells; for values that are no rate or no range see test_options.py
REFUSED = [
    ("full", {"embed_dim": 0}, "--embed-dim 0"),
    ("full", {"hidden_sizes": ""}, "--hidden-sizes"),
    ("full", {"hidden_sizes": "12 x"}, "--hidden-sizes"),
    ("full", {"hidden_sizes": "12 0"}, "--hidden-sizes"),
    ("tied", {"hidden_sizes": "12 9"}, "give the last layer the width of the embedding"),
    ("full", {"rnn_cell": "gru7"}, "--rnn-cell gru7"),
    ("full", {"major_proportions": "0.9"}, "--major-proportions: not a flag of --rnn-cell lstm"),
    ("full", {"rnn_cell": "variational", "dropout_weight": 0.2}, "--dropout-weight: not a flag of --rnn-cell var"),
    ("full", {"rnn_cell": "rhn", "recurrence_depth": 0}, "--recurrence-depth 0: give at least 1"),
    ("full", {"rnn_cell": "mogrifier", "mogrifier_rounds": -1}, "--mogrifier-rounds -1: give at least 0"),
    ("full", {"rnn_cell": "mogrifier", "mogrifier_rank": 2.5}, "--mogrifier-rank 2.5: give a whole number"),
    *(
        ("full", {"rnn_cell": cell, "dropout_recurrent": 1.0}, "--dropout-recurrent 1.0")
        for cell in ("variational", "rhn", "mogrifier")
    ),
    ("mos", {"latent_dropout": 1.0}, "--latent-dropout 1.0"),
    ("tied", {"init_range": 0.0}, "--init-range 0.0"),
    ("soft", {}, "--output-layer soft"),
    ("full", {"experts_per_layer": "0 0 0 4"}, "--experts-per-layer.*--output-layer full"),
    ("doc", {"output_chunk": 0}, "--output-chunk"),
    ("doc", {"experts_per_layer": "0 0 0 2 2"}, "--experts-per-layer.* 5 numbers: give at most"),
    ("mos", {"experts_per_layer": "1 4"}, "--experts-per-layer.*doc"),
    *(("doc", {"experts_per_layer": text}, "--experts-per-layer") for text in ("0 0", "-1 2", "0.5 2")),
]


class ModelContract:
    """Tests of a model; a subclass gives the attributes.

    Attributes:
        model: its class.
        build_tiny: builds one of two layers, without dropout, by the name of its output layer and flags.
        build_wide: builds one whose matrices have hundreds of entries, with initial values, by flags.
        default_biases: value of ``--init-biases`` where the flag is not given.
        rates: flags of dropout.
        choices: flags with a list of values.
    """

    model: type
    build_tiny: Callable[..., nn.Module]
    build_wide: Callable[..., nn.Module]
    default_biases: str
    rates: Sequence[str]
    choices: Dict[str, Sequence[str]]

    # initial values

    def test_biases_start_by_themselves_as_the_default_says(self):
        models = [self.build_wide(output_layer="full", init_range=INIT_RANGE)]
        models.append(self.build_wide(output_layer="full", init_range=INIT_RANGE, init_biases=self.default_biases))
        biases = [[bool(p.any()) for key, p in model.named_parameters() if "bias" in key] for model in models]
        assert biases[0] == biases[1] and any(biases[0]) == (self.default_biases == "uniform")

    @pytest.mark.parametrize("biases", BIASES)
    @pytest.mark.parametrize(
        "name, cell",
        [("full", cell) for cell in sorted(RECURRENT_CELLS)]
        + [(name, "lstm") for name in sorted(OUTPUT_LAYERS) if name != "full"],
    )
    def test_all_parameters_start_uniformly_within_the_range_and_biases_as_told(self, name, cell, biases):
        model = self.build_wide(output_layer=name, rnn_cell=cell, init_range=INIT_RANGE, init_biases=biases)
        for key, parameter in model.named_parameters():
            assert parameter.abs().max() <= INIT_RANGE, key
            if biases == "zero" and "bias" in key:
                assert not parameter.any(), key
            elif parameter.numel() > 100:
                near_edge = INIT_RANGE * (1 - 42 / parameter.numel())  # missed by chance once in a billion
                assert parameter.max() > near_edge and parameter.min() < -near_edge, key
                assert parameter.std().item() == pytest.approx(2 * INIT_RANGE / 12**0.5, rel=0.2), key
                assert parameter.mean().abs() < 5 * 0.04 / parameter.numel() ** 0.5, key
            else:
                assert parameter.any(), key

    # flags

    def parser(self):
        parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)  # as fairseq's model group
        self.model.add_args(parser)
        return parser

    def test_flags_have_no_defaults_of_their_own(self):
        assert vars(self.parser().parse_args([])) == {}

    def test_the_command_line_knows_the_choices(self, capsys):
        for flag, choices in self.choices.items():
            for choice in choices:
                assert list(vars(self.parser().parse_args([flag, choice])).values()) == [choice]
            with pytest.raises(SystemExit):
                self.parser().parse_args([flag, "none of them"])
            assert f"argument {flag}: invalid choice" in capsys.readouterr().err

    def test_what_is_no_dropout_rate_is_refused_with_its_flag(self):
        for flag in self.rates:
            with pytest.raises(ValueError, match=f"--{flag.replace('_', '-')} 1.0"):
                self.build_tiny("tied", **{flag: 1.0})

    @pytest.mark.parametrize("name, flags, told", REFUSED)
    def test_values_that_do_not_fit_are_refused_with_their_flag(self, name, flags, told):
        with pytest.raises(ValueError, match=told):
            self.build_tiny(name, **flags)


class TestLanguageModel(ModelContract):
    model = RecurrentLanguageModel
    build_tiny = staticmethod(build_tiny_lm)
    default_biases = "zero"
    rates = [f"dropout_{place}" for place in ("embedding", "input", "hidden", "output", "weight", "carried_state")]
    choices = {
        **CHOICES,
        "--dropout-masks": sorted(MASKS),
        "--output-skip": OUTPUT_SKIPS,
        "--word-masks": WORD_MASKS,
    }

    @staticmethod
    def build_wide(**flags):
        return build_lm("lstm_lm_awd", 200, **WIDE, **flags)


class TestEncoderDecoder(ModelContract):
    model = RecurrentEncoderDecoder
    build_tiny = staticmethod(build_tiny_encdec)
    default_biases = "uniform"
    rates = ["dropout"]
    choices = {
        **CHOICES,
        "--attention": [*sorted(ATTENTIONS), "none"],
        "--input-feeding": ["on", "off"],
        "--share-embeddings": ["none", "output", "all"],
    }

    @staticmethod
    def build_wide(**flags):
        shared = "output" if flags["output_layer"] == "tied" else "none"
        return build_encdec("lstm_encdec", 200, 210, share_embeddings=shared, **WIDE, **flags)
