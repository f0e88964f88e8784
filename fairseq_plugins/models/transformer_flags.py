"""The host's flags of its Transformer: those that are not offered here, and what the others may be."""

from argparse import Namespace
from typing import Union

from fairseq_plugins.flags.values import check_at_least_one, check_dropout, check_not_negative, flag_of

RATES = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
"""The host's flags of rates, which it takes unchecked."""

LEFT_OUT = (
    *("adaptive_input", "adaptive_softmax_cutoff", "adaptive_softmax_dropout", "adaptive_softmax_factor"),
    *("tie_adaptive_weights", "tie_adaptive_proj", "char_inputs", "merge_src_tgt_embed"),
    *("base_layers", "base_sublayers", "base_shuffle", "encoder_layers_to_keep", "decoder_layers_to_keep"),
    *("encoder_xformers_att_config", "decoder_xformers_att_config", "min_params_to_wrap", "export", "relu_dropout"),
    *("quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar"),
)
"""The host's flags that other models read, that its Transformer fails with, or that nothing here is tested with."""


def check_flags(args: Namespace) -> None:
    """See that the host can build what its flags ask for.

    Raises:
        ValueError: if it cannot, with the flag and the remedy.
    """
    check_at_least_one(args.decoder_layers, flag="--decoder-layers")  # without one nothing reads the source
    check_not_negative(args.encoder_layers, flag="--encoder-layers")
    for side in ("encoder", "decoder"):
        _check_sizes(args, side=side)
    _check_output_width(args.decoder_output_dim)
    for name in ("max_source_positions", "max_target_positions"):
        if getattr(args, name, None) is not None:
            check_at_least_one(getattr(args, name), flag=flag_of(name))
    for name in RATES:
        check_dropout(getattr(args, name), flag=flag_of(name))


def _check_sizes(args: Namespace, *, side: str) -> None:
    for size in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        check_at_least_one(getattr(args, f"{side}_{size}"), flag=flag_of(f"{side}_{size}"))
    width, num_heads = getattr(args, f"{side}_embed_dim"), getattr(args, f"{side}_attention_heads")
    if width % num_heads:
        raise ValueError(f"--{side}-embed-dim {width}: give a multiple of --{side}-attention-heads {num_heads}")
    if width < 4 and not (getattr(args, f"{side}_learned_pos") or args.no_token_positional_embeddings):
        raise ValueError(f"--{side}-embed-dim {width}: give at least 4 for sines and cosines, or --{side}-learned-pos")


def _check_output_width(width: Union[int, str]) -> None:
    """Of ``--decoder-output-dim``, which the host reads as a number when it builds the model."""
    try:
        number = int(width)
    except ValueError:
        raise ValueError(f"--decoder-output-dim {width}: give a whole number") from None
    check_at_least_one(number, flag="--decoder-output-dim")
