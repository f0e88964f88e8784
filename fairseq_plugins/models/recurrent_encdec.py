"""Attentional recurrent encoder-decoders: embeddings, recurrent stacks, attention, output layer.

Shapes: B sentences, S source positions, T target steps, C embedding width, D_n width of layer n, V target words.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Dict, Optional, Tuple

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import (
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    register_model,
    register_model_architecture,
)
from torch import Tensor, nn

from fairseq_plugins.flags.model_flags import ModelFlags
from fairseq_plugins.flags.values import check_dropout, check_positive, parse_int_list
from fairseq_plugins.models.caching_decoder import CachingDecoder, IncrementalState
from fairseq_plugins.models.checkpoint_vocabulary import check_vocabulary_size, keep_vocabularies
from fairseq_plugins.models.initialisation import BIASES, initialise_uniformly
from fairseq_plugins.models.recurrent_encdec_presets import ARCHITECTURES, SHARING_FLAGS, apply_encdec_preset
from fairseq_plugins.models.word_counts import provide_word_counts
from fairseq_plugins.modules.attention import ATTENTIONS, Memory
from fairseq_plugins.modules.attentional_stack import AttentionalStack
from fairseq_plugins.modules.encoder_stack import DIRECTIONS, MERGES, EncoderStack
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.modules.recurrent_state import State, select_rows
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer, build_output_layer
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.gate import OUTPUT_GATES

MAX_POSITIONS = 100_000


@dataclass
class RecurrentEncoderDecoderConfig(FairseqDataclass):
    """Flags of the recurrent encoder-decoders; the architecture sets those that are not given."""

    embed_dim: int = field(default=0, metadata={"help": "width of the source and target embeddings"})
    hidden_sizes: str = field(
        default="", metadata={"help": 'width of each recurrent layer, "D_1 .. D_N", the same in encoder and decoder'}
    )
    encoder_directions: ChoiceEnum(DIRECTIONS) = field(
        default="both", metadata={"help": "how the source is read: forwards and backwards, or forwards only"}
    )
    encoder_merge: ChoiceEnum(MERGES) = field(
        default="top",
        metadata={
            "help": "top: both directions are summed at the top; layer: after every layer, the sum feeding the next"
        },
    )
    attention: ChoiceEnum([*sorted(ATTENTIONS), "none"]) = field(
        default="general", metadata={"help": "score that compares a decoder state with the source positions"}
    )
    input_feeding: ChoiceEnum(["on", "off"]) = field(
        default="on",
        metadata={
            "help": "whether the attention's output enters the next step of the first decoder layer and of minors"
        },
    )
    dropout: float = field(
        default=0.3, metadata={"help": "dropout rate of the output of every layer, the attention included"}
    )
    share_embeddings: ChoiceEnum(["none", "output", "all"]) = field(
        default="none",
        metadata={
            "help": "output: the output layer uses the target embedding (not with --output-layer full); all: the "
            "source uses it as well, whatever the output layer (needs a joined dictionary)"
        },
    )
    init_range: float = field(
        default=0.1, metadata={"help": "all parameters start uniformly within plus and minus this"}
    )
    init_biases: ChoiceEnum(BIASES) = field(
        default="uniform", metadata={"help": "whether biases start like all parameters, or at zero"}
    )


FLAGS = ModelFlags(RecurrentEncoderDecoderConfig, RECURRENT_CELLS, OUTPUT_LAYERS, OUTPUT_GATES)


class RecurrentEncoder(FairseqEncoder):
    """Reads source sentences, wherever their padding stands; each ends with the host's end mark.

    Args:
        dictionary: the source dictionary.
        embedding: (source words, C).
        stack: all directions and layers.
    """

    def __init__(self, dictionary, *, embedding: nn.Embedding, stack: EncoderStack):
        super().__init__(dictionary)
        self.embedding = embedding
        self.stack = stack
        self.padding_idx = dictionary.pad()

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **unused) -> Dict[str, State]:
        """Annotations of tokens (B, S).

        Returns:
            ``encoder_out``: one tensor (B, S, D_N) in a list; ``encoder_padding_mask``: one (B, S), or none where
            nothing is padded; ``start``: the state where the layers of the decoder start; ``start_rows``: the row of
            ``start`` that belongs to each sentence, (B).
        """
        padding = src_tokens.eq(self.padding_idx)
        has_padding = bool(padding.any())
        annotations, state = self.stack(self.embedding(src_tokens), padding if has_padding else None, tokens=src_tokens)
        return {
            "encoder_out": [annotations],
            "encoder_padding_mask": [padding] if has_padding else [],
            "start": state,
            "start_rows": None,
        }

    def reorder_encoder_out(self, encoder_out: Dict[str, State], new_order: Tensor) -> Dict[str, State]:
        """Reorder the sentences, as beam search asks at every step; the start, read at the first, stays as it is."""
        rows = encoder_out["start_rows"]
        return {
            "encoder_out": select_rows(encoder_out["encoder_out"], new_order),
            "encoder_padding_mask": select_rows(encoder_out["encoder_padding_mask"], new_order),
            "start": encoder_out["start"],
            "start_rows": new_order if rows is None else rows.index_select(0, new_order),
        }

    def max_positions(self) -> int:
        return MAX_POSITIONS


class RecurrentAttentionalDecoder(CachingDecoder):
    """Predicts the next target token.

    Args:
        dictionary: the target dictionary; its size is V.
        embedding: (V, C).
        stack: recurrent layers and attention.
        output_layer: reads the states of all layers; the attention's output is the last.
    """

    def __init__(self, dictionary, *, embedding: nn.Embedding, stack: AttentionalStack, output_layer: OutputLayer):
        super().__init__(dictionary)
        self.embedding = embedding
        self.stack = stack
        self.output = output_layer

    def forward(
        self,
        prev_output_tokens: Tensor,
        *,
        encoder_out: Dict[str, State],
        incremental_state: IncrementalState = None,
        target: Optional[Tensor] = None,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
        **unused,
    ) -> Tuple[Tensor, Dict]:
        """Score the next token at every position.

        Args:
            prev_output_tokens: (B, T).
            encoder_out: what the encoder returned.
            incremental_state: the host's store for step-by-step decoding; only the last token is read then.
            target: (B, T); with it the loss of the targets is computed instead of all log-probabilities.
            token_weights, label_smoothing: see :meth:`OutputLayer.forward`.

        Returns:
            log-probabilities (B, T, V), or where ``target`` is given the loss, a scalar in nats, and a
            dictionary: ``attn``, a list of the attention weights (B, T, S) or None, ``states``
            (:class:`DecoderStates`) and ``scores`` (:class:`Scores`).
        """
        tokens = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        embedded = self.embedding(tokens)
        memory, state = self._start(encoder_out, incremental_state)
        outputs = self.stack(embedded, memory, state, tokens=tokens)
        states = DecoderStates(
            layers=[embedded, *outputs.layers], top=outputs.top, tokens=tokens, attention=outputs.attention
        )
        scores = self.output(
            states,
            target,
            token_weights=token_weights,
            label_smoothing=label_smoothing,
            gate_state=self.cached(incremental_state).get("gate"),
        )
        if incremental_state is not None:
            self._keep(incremental_state, memory, outputs.state, gate_state=scores.gate_state)
        return scores.output, {"attn": [outputs.attention], "states": states, "scores": scores}

    def _start(self, encoder_out, incremental_state) -> Tuple[Optional[Memory], Dict[str, State]]:
        (annotations,) = encoder_out["encoder_out"]
        padding = encoder_out["encoder_padding_mask"][0] if encoder_out["encoder_padding_mask"] else None
        cached = self.cached(incremental_state)
        attention = self.stack.attention
        memory = None
        if attention is not None:
            keys = cached["keys"] if "keys" in cached else attention.keys(annotations)
            memory = Memory(annotations=annotations, keys=keys, padding=padding)
        if cached:
            return memory, cached["state"]
        start = encoder_out["start"]
        if encoder_out["start_rows"] is not None:
            start = select_rows(start, encoder_out["start_rows"])
        return memory, self.stack.initial_state(start)

    def _keep(self, incremental_state, memory: Optional[Memory], state: Dict[str, State], *, gate_state: State) -> None:
        has_keys = memory is not None and memory.keys is not memory.annotations
        kept = {"state": state, "gate": gate_state, **({"keys": memory.keys} if has_keys else {})}
        self.cache(incremental_state, kept)

    def max_positions(self) -> int:
        return MAX_POSITIONS


@register_model("recurrent_encdec")
class RecurrentEncoderDecoder(FairseqEncoderDecoderModel):
    """Recurrent encoder-decoder with Luong attention and any output layer (Takase et al. 2018, section 5.2).

    The architectures differ in their presets only (:mod:`fairseq_plugins.models.recurrent_encdec_presets`). For output
    layers that read several layers, layer 0 is the target embedding, then come the recurrent layers, and the
    attention's output is the last.
    """

    @staticmethod
    def add_args(parser) -> None:
        """Add the model's flags; the architecture supplies the values of those that are not given."""
        FLAGS.add_args(parser)

    @classmethod
    def build_model(cls, args, task):
        """Build the model for the task's dictionaries.

        Raises:
            ValueError: on a value that does not fit, with the flag and the remedy.
        """
        config = RecurrentEncoderDecoderConfig.from_namespace(args)
        cell_options = RECURRENT_CELLS.read_options(args)
        source, target = task.source_dictionary, task.target_dictionary
        hidden_sizes = parse_int_list(config.hidden_sizes, flag="--hidden-sizes")
        check_positive(config.embed_dim, flag="--embed-dim")
        check_positive(config.init_range, flag="--init-range")
        check_dropout(config.dropout, flag="--dropout")
        if config.share_embeddings == "all" and source != target:
            raise ValueError("--share-embeddings all needs one dictionary: run fairseq-preprocess --joined-dictionary")
        target_embedding = _embedding(target, config.embed_dim)
        source_embedding = target_embedding
        if config.share_embeddings != "all":
            source_embedding = _embedding(source, config.embed_dim)
        encoder = RecurrentEncoder(
            source,
            embedding=source_embedding,
            stack=EncoderStack(
                config.embed_dim,
                hidden_sizes,
                cell=args.rnn_cell,
                cell_options=cell_options,
                directions=config.encoder_directions,
                merge=config.encoder_merge,
                hidden_dropout=config.dropout,
            ),
        )
        attention = None
        if config.attention != "none":
            attention = ATTENTIONS[config.attention](hidden_sizes[-1], hidden_sizes[-1])
        stack = AttentionalStack(
            config.embed_dim,
            hidden_sizes,
            cell=args.rnn_cell,
            cell_options=cell_options,
            attention=attention,
            input_feeding=config.input_feeding,
            dropout=config.dropout,
        )
        output_layer = build_output_layer(
            args,
            dictionary=target,
            layer_widths=[config.embed_dim, *hidden_sizes, *([] if attention is None else hidden_sizes[-1:])],
            shared_weight=target_embedding.weight if SHARING_FLAGS.shares(args) else None,
        )
        provide_word_counts(output_layer, task)
        decoder = RecurrentAttentionalDecoder(
            target, embedding=target_embedding, stack=stack, output_layer=output_layer
        )
        model = cls(encoder, decoder)
        initialise_uniformly(model, config.init_range, biases=config.init_biases)
        return keep_vocabularies(model, task)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **options):
        """Encode the source (B, S), then :meth:`RecurrentAttentionalDecoder.forward` with ``options``."""
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        return self.decoder(prev_output_tokens, encoder_out=encoder_out, **options)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """Copy a checkpoint's parameters into the model.

        Raises:
            ValueError: if the checkpoint was trained with vocabularies of other sizes.
        """
        check_vocabulary_size(state_dict, "encoder.embedding.weight", self.encoder.embedding, text="source")
        check_vocabulary_size(state_dict, "decoder.embedding.weight", self.decoder.embedding, text="target")
        return super().load_state_dict(state_dict, strict, model_cfg, args)


def _embedding(dictionary, width: int) -> nn.Embedding:
    return nn.Embedding(len(dictionary), width)


for name, preset in ARCHITECTURES.items():
    register_model_architecture("recurrent_encdec", name)(partial(apply_encdec_preset, preset))
