"""Hyper-parameters of the recurrent encoder-decoders: small defaults and the papers' settings."""

from typing import Dict

from fairseq_plugins.models.presets import Preset

# the range that gives width 256 the gain of the paper's 0.1 at width 500; with 0.1 mixtures start slowly here
_SMALL = dict(
    rnn_cell="lstm",
    embed_dim=256,
    hidden_sizes="256 256",
    encoder_merge="top",
    attention="general",
    input_feeding="on",
    dropout=0.3,
    share_embeddings="none",
    init_range=0.14,
    output_layer="full",
)
# Takase et al. 2018, section 5.2; dropout and the rest as in the toolkit that it modified
_IWSLT = dict(_SMALL, embed_dim=500, hidden_sizes="500 500", init_range=0.1)
_GIGAWORD = dict(_SMALL, embed_dim=400, hidden_sizes="400 400", init_range=0.1)
# the experts read embedding, layer 1, layer 2, attention; the paper names no dropout for them
_MOS = dict(output_layer="mos", experts_per_layer="0 0 0 2", latent_dropout=0.0)
_DOC = dict(output_layer="doc", experts_per_layer="0 0 2 2", latent_dropout=0.0)

ARCHITECTURES: Dict[str, Preset] = {
    f"lstm_encdec{layer}{corpus}": Preset({**sizes, **output})
    for layer, output in (("", {}), ("_mos", _MOS), ("_doc", _DOC))
    for corpus, sizes in (("", _SMALL), ("_iwslt", _IWSLT), ("_gigaword", _GIGAWORD))
}
# not in the paper: without it the attention is learned late (results/multi30k)
ARCHITECTURES["lstm_encdec_doc"].model["expert_warmup"] = 1000
"""Values of ``--arch`` and their presets."""
