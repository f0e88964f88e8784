"""What holds for the presets of all language models."""

import argparse
from argparse import Namespace

import pytest
import torch

from fairseq_plugins.models.presets import LANGUAGE_MODELS, apply_preset
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel

every_architecture = pytest.mark.parametrize("arch", sorted(LANGUAGE_MODELS))


@every_architecture
def test_a_given_flag_beats_the_preset(arch):
    args = Namespace(embed_dim=7, dropout_output=0.0)
    apply_preset(LANGUAGE_MODELS[arch], args)
    assert args.embed_dim == 7 and args.dropout_output == 0.0
    assert args.hidden_sizes == LANGUAGE_MODELS[arch].model["hidden_sizes"]


@every_architecture
def test_every_preset_builds_and_sets_declared_flags_only(arch, build_lm):
    parser = argparse.ArgumentParser()
    RecurrentLanguageModel.add_args(parser)
    assert set(LANGUAGE_MODELS[arch].model) <= {action.dest for action in parser._actions}
    with torch.device("meta"):
        build_lm(arch, 50)
