"""Checkpoints of models that share other matrices."""

import pytest
import torch
from builders import build_tiny_encdec, build_tiny_transformer

V = 15  # of both languages, which share a dictionary


def encdec(share):
    return build_tiny_encdec("doc", source_size=V, vocab_size=V, share_embeddings=share)


def transformer(share):
    flags = {"none": {}, "output": {"share_decoder_input_output_embed": True}, "all": {"share_all_embeddings": True}}
    off = {"share_decoder_input_output_embed": False, "share_all_embeddings": False}
    return build_tiny_transformer("transformer_doc", source_size=V, vocab_size=V, **{**off, **flags[share]})


@pytest.mark.parametrize("build", [encdec, transformer])
@pytest.mark.parametrize("saved, shared", [("none", "output"), ("none", "all"), ("output", "all")])
def test_a_checkpoint_with_more_matrices_is_refused(saved, shared, build):
    state = build(saved).state_dict()
    with pytest.raises(ValueError, match="are one matrix in this model and two in the checkpoint: share embeddings"):
        build(shared).load_state_dict(dict(state))


@pytest.mark.parametrize("build", [encdec, transformer])
def test_a_checkpoint_with_fewer_starts_them_alike(build):
    state = {name: x.clone() for name, x in build("all").state_dict().items()}
    model = build("none")
    model.load_state_dict(state)
    output, target = (
        model.decoder.output.projection.weight,
        model.decoder.get_submodule("embed_tokens" if build is transformer else "embedding").weight,
    )
    assert output is not target and torch.equal(output, target)
    build("all").load_state_dict(state)
