"""fairseq's Transformer with any output layer.

fairseq's encoder, decoder layers and flags are used as they are. The decoder's projection is replaced by an output
layer, and combinations of flags that fairseq fails on are checked first.

Shapes: B sentences, S source positions, T target steps, D width, V target words.
"""

from argparse import Namespace
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModel,
    base_architecture,
)
from torch import Tensor, nn

from fairseq_plugins.data.tasks import TextTask, check_reads_pairs, check_target_padding
from fairseq_plugins.models.checkpoints import keep_vocabularies
from fairseq_plugins.models.decoder import CachingDecoder, IncrementalState
from fairseq_plugins.models.presets.preset import register_presets
from fairseq_plugins.models.presets.translation import TRANSFORMER_ARCHITECTURES, TRANSFORMER_TYING
from fairseq_plugins.modules.cell import named_tensors
from fairseq_plugins.options import UserError, check_at_least_one, check_dropout, check_whole, flag_of
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, build_output_layer
from fairseq_plugins.output_layers.copying import COPYING, build_copying
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.output_layers.mixture import MixtureOutput
from fairseq_plugins.output_layers.scores import DecoderStates
from fairseq_plugins.parts import ModelFlags

RATES = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
"""fairseq's flags of dropout rates, which fairseq does not check."""

LEFT_OUT = (
    *("adaptive_input", "adaptive_softmax_cutoff", "adaptive_softmax_dropout", "adaptive_softmax_factor"),
    *("tie_adaptive_weights", "tie_adaptive_proj", "char_inputs", "merge_src_tgt_embed"),
    *("base_layers", "base_sublayers", "base_shuffle", "encoder_layers_to_keep", "decoder_layers_to_keep"),
    *("encoder_xformers_att_config", "decoder_xformers_att_config", "min_params_to_wrap", "export", "relu_dropout"),
    *("quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar"),
)
"""fairseq's flags that are not offered: for other models only, failing in its Transformer, or untested here."""


def check_transformer_flags(args: Namespace) -> None:
    """Check that fairseq can build a Transformer with these flags.

    Raises:
        UserError: if it cannot, with the flag and the remedy.
    """
    check_whole(args.encoder_layers, flag="--encoder-layers")
    _check_sizes(args, side="encoder")
    check_decoder_flags(args)
    if args.share_all_embeddings and args.encoder_embed_dim != args.decoder_embed_dim:
        raise UserError("--share-all-embeddings needs equal widths: give --encoder-embed-dim and --decoder-embed-dim")
    if args.share_all_embeddings and args.decoder_embed_path not in (None, args.encoder_embed_path):
        raise UserError("--share-all-embeddings has one file of vectors: leave out --decoder-embed-path")


def check_decoder_flags(args: Namespace) -> None:
    """Check the flags of a decoder and the flags of both sides.

    Raises:
        UserError: with the flag and the remedy.
    """
    check_at_least_one(args.decoder_layers, flag="--decoder-layers")  # without a layer nothing attends to the source
    _check_sizes(args, side="decoder")
    try:  # fairseq converts this flag when it builds the model
        output_width = int(args.decoder_output_dim)
    except ValueError:
        raise UserError(f"--decoder-output-dim {args.decoder_output_dim}: give a whole number") from None
    check_at_least_one(output_width, flag="--decoder-output-dim")
    for name in ("max_source_positions", "max_target_positions"):
        if getattr(args, name, None) is not None:
            check_at_least_one(getattr(args, name), flag=flag_of(name))
    for name in RATES:
        if hasattr(args, name):
            check_dropout(getattr(args, name), flag=flag_of(name))


def _check_sizes(args: Namespace, *, side: str) -> None:
    for size in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        check_at_least_one(getattr(args, f"{side}_{size}"), flag=flag_of(f"{side}_{size}"))
    width, num_heads = getattr(args, f"{side}_embed_dim"), getattr(args, f"{side}_attention_heads")
    if width % num_heads:
        raise UserError(f"--{side}-embed-dim {width}: give a multiple of --{side}-attention-heads {num_heads}")
    if width < 4 and not (getattr(args, f"{side}_learned_pos") or args.no_token_positional_embeddings):
        raise UserError(f"--{side}-embed-dim {width}: give at least 4 for sines and cosines, or --{side}-learned-pos")


class TransformerEncoderWithTokens(TransformerEncoderBase):
    """fairseq's encoder with the tokens (B, S) in its output, which copying reads."""

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """As fairseq's, with one tensor in ``src_tokens``."""
        return {**super().forward(src_tokens, *args, **kwargs), "src_tokens": [src_tokens]}


class TransformerDecoderWithOutputLayer(CachingDecoder, TransformerDecoderBase):
    """fairseq's decoder with an output layer of this package, ``output``.

    Layer 0 of the output layer is the embedding with its position, then come the decoder layers. The last one is read
    after the final normalisation.
    """

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding, *, no_encoder_attn: bool = False):
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.output = build_output_layer(
            cfg,
            dictionary=dictionary,
            layer_widths=[*[cfg.decoder.embed_dim] * self.num_layers, self.output_embed_dim],
            shared_weight=TRANSFORMER_TYING.shared_weight(cfg, embed_tokens),
        )
        if cfg.decoder.layerdrop > 0 and isinstance(self.output, MixtureOutput):
            raise UserError(
                f"--decoder-layerdrop {cfg.decoder.layerdrop}: --output-layer {self.output.name} reads layers by their "
                "numbers, so that none can be dropped: leave it out"
            )

    def build_output_projection(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        """Do not build fairseq's projection. The output layer takes its place."""

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, List[Tensor]]] = None,
        incremental_state: IncrementalState = None,
        features_only: bool = False,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        **loss: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Score the next token at every position of ``prev_output_tokens`` (B, T).

        The named arguments are fairseq's. ``loss`` is ``target`` (B, T), for the loss instead of all log-probabilities,
        and how it is computed; see :meth:`~fairseq_plugins.output_layers.base.OutputLayer.forward`.

        Returns:
            log-probabilities (B, T, V), the loss, a scalar in nats, or the features (B, T, D) with ``features_only``;
            and fairseq's dictionary, with ``states`` (:class:`DecoderStates`) and ``scores`` (:class:`Scores`).
        """
        features, extra = self.extract_features(
            prev_output_tokens,
            encoder_out=encoder_out,
            incremental_state=incremental_state,
            full_context_alignment=full_context_alignment,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
        )
        if features_only:
            return features, extra
        layers = [state.transpose(0, 1) for state in extra["inner_states"][:-1] if state is not None]
        states = DecoderStates(
            layers=[*layers, features],
            top=features,
            tokens=prev_output_tokens[:, -features.size(1) :],
            attention=extra["attn"][0],
            source=encoder_out["src_tokens"][0] if encoder_out is not None else None,
        )
        scores = self.output(states, gate_state=self.cached(incremental_state).get("gate"), **loss)
        self.cache(incremental_state, {"gate": scores.gate_state})
        return scores.output, {**extra, "states": states, "scores": scores}

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Remove the projection weight that fairseq adds to checkpoints with a shared embedding."""
        super().upgrade_state_dict_named(state_dict, name)
        state_dict.pop(f"{name}.output_projection.weight", None)
        return state_dict


@register_model("transformer_with_output_layer")
class TransformerWithOutputLayer(TransformerModel):
    """fairseq's Transformer (Vaswani et al. 2017) with any output layer (Pappas & Henderson 2019, section 4.2).

    The architectures ``transformer_full``, ``_bilinear``, ``_dual``, ``_drill``, ``_mos`` and ``_doc`` differ in their
    output layer and in their presets only (:mod:`fairseq_plugins.models.presets`). The flags are fairseq's except
    ``LEFT_OUT``, and those of output layers, gates and copying. fairseq's flags say whether embeddings are shared.
    """

    flags = ModelFlags(TransformerConfig, OUTPUT_LAYERS, OUTPUT_GATES, COPYING, left_out=LEFT_OUT)
    add_args = flags.add_args

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "TransformerWithOutputLayer":
        """Build the model for the task's dictionaries.

        Raises:
            UserError: on a value that does not fit, with the flag and the remedy.
        """
        check_reads_pairs(task)
        check_transformer_flags(args)
        if args.share_all_embeddings and task.source_dictionary != task.target_dictionary:
            raise UserError("--share-all-embeddings needs one dictionary: prepare the corpus with --joined-dictionary")
        model = super().build_model(args, task)
        output_layer = model.decoder.output
        if named_tensors(output_layer.gate.initial_state(torch.empty(1, 1))):
            check_target_padding(task, reader=f"--output-gate {args.output_gate}")
        dropped = f"--decoder-layerdrop {args.decoder_layerdrop}" if args.decoder_layerdrop > 0 else None
        output_layer.copying = build_copying(
            args,
            source=task.source_dictionary,
            target=task.target_dictionary,
            width=model.decoder.output_embed_dim,
            attention_removed_by="--no-cross-attention" if args.no_cross_attention else dropped,
        )
        return keep_vocabularies(model, task)

    @classmethod
    def build_embedding(
        cls, args: Namespace, dictionary: Dictionary, embed_dim: int, path: Optional[str] = None
    ) -> Any:
        """fairseq's embedding, read from ``path`` if it is given.

        Raises:
            UserError: if the file cannot be read or has another width.
        """
        try:
            return super().build_embedding(args, dictionary, embed_dim, path)
        except (OSError, ValueError, RuntimeError, StopIteration) as error:
            if not path:
                raise
            raise UserError(
                f"--encoder-embed-path or --decoder-embed-path {path}: give a text of words with {embed_dim} numbers "
                f"each, below a line of its own ({error})"
            ) from error

    @classmethod
    def build_encoder(
        cls, args: Namespace, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> TransformerEncoderWithTokens:
        return TransformerEncoderWithTokens(TransformerConfig.from_namespace(args), src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, args: Namespace, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> TransformerDecoderWithOutputLayer:
        return TransformerDecoderWithOutputLayer(
            TransformerConfig.from_namespace(args),
            tgt_dict,
            embed_tokens,
            no_encoder_attn=args.no_cross_attention,
        )

    # pyrefly: ignore[bad-override]
    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **options: Any
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Encode the source (B, S), then :meth:`TransformerDecoderWithOutputLayer.forward` with ``options``."""
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        return self.decoder(prev_output_tokens, encoder_out=encoder_out, src_lengths=src_lengths, **options)


register_presets("transformer_with_output_layer", TRANSFORMER_ARCHITECTURES, defaults=base_architecture)
