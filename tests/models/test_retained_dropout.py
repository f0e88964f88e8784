"""--retain-dropout of fairseq-generate."""

import pytest
import torch
from builders import build_tiny_encdec, build_tiny_transformer
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

BUILDS = {
    "recurrent": lambda: build_tiny_encdec("doc", dropout=0.5),
    "latents": lambda: build_tiny_transformer("transformer_mos", latent_dropout=0.5),
}


def two_passes(model, retained, modules=None):
    config = OmegaConf.structured(FairseqConfig)
    config.generation.retain_dropout = retained
    config.generation.retain_dropout_modules = modules
    model.eval().prepare_for_inference_(config)
    source, target = torch.randint(4, 11, (2, 5)), torch.randint(4, 11, (2, 3))
    return [model(source, torch.tensor([5, 5]), target)[0] for _ in range(2)]


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_what_drops_in_training_drops_in_decoding_where_it_is_asked_for(build):
    first, second = two_passes(build(), retained=True)
    assert not torch.equal(first, second)
    first, second = two_passes(build(), retained=False)
    assert torch.equal(first, second)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_modules_cannot_be_named(build):
    with pytest.warns(UserWarning, match="--retain-dropout-modules does not reach modules of fairseq_plugins"):
        first, second = two_passes(build(), retained=True, modules=["AttentionalStack"])
    assert torch.equal(first, second)
