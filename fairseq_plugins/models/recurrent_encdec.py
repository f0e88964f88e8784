"""Attentional recurrent encoder-decoders: embeddings, recurrent stacks, attention, output layer.

Shapes: B sentences, S source positions, T target steps, C embedding width, D_n width of layer n, V target words.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Dict, List, Optional, Tuple, TypedDict

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, register_model
from torch import Tensor, nn

from fairseq_plugins.data.tasks import TextTask, check_reads_pairs, check_target_padding
from fairseq_plugins.models.checkpoints import keep_vocabularies
from fairseq_plugins.models.decoder import CachingDecoder, IncrementalState
from fairseq_plugins.models.presets.preset import register_presets
from fairseq_plugins.models.presets.translation import ENCODER_DECODER_ARCHITECTURES, ENCODER_DECODER_TYING
from fairseq_plugins.modules.attention import ATTENTIONS, AttentionalStack, AttentionalState, Memory
from fairseq_plugins.modules.cell import RECURRENT_CELLS, provide_dictionary, select_rows
from fairseq_plugins.modules.layers import InitBiases, initialise_uniformly
from fairseq_plugins.modules.stack import MERGES, CudaGraphFlags, EncoderStack, RecurrentStack, StackState
from fairseq_plugins.options import (
    OnOff,
    UserError,
    check_at_least_one,
    check_choices,
    check_dropout,
    check_positive,
    choices,
    flag_of,
    parse_numbers,
)
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer, build_output_layer
from fairseq_plugins.output_layers.copying import COPYING, build_copying
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.output_layers.scores import DecoderStates
from fairseq_plugins.parts import ModelFlags

MAX_POSITIONS = 100_000
"""Length of the longest sentence that fairseq may pass. Recurrent networks have no limit of their own."""


class EncoderOutput(TypedDict):
    """Output of the encoder for B sentences.

    Attributes:
        encoder_out: one tensor, the annotations, (B, S, D_N).
        encoder_padding_mask: one tensor, (B, S), True at padding; empty without padding.
        src_tokens: one tensor, the tokens, (B, S).
        final_state: of the layers; the decoder's layers start from it.
    """

    encoder_out: List[Tensor]
    encoder_padding_mask: List[Tensor]
    src_tokens: List[Tensor]
    final_state: StackState


class RecurrentEncoder(FairseqEncoder):
    """Embedding and recurrent layers of one or two directions.

    Padding may be on either side. Every sentence ends with fairseq's end mark.

    Args:
        dictionary: the source dictionary.
        embedding: (source words, C).
        stack: all directions and layers.
    """

    def __init__(self, dictionary: Dictionary, *, embedding: nn.Embedding, stack: EncoderStack):
        super().__init__(dictionary)
        self.embedding = embedding
        self.stack = stack
        self.padding_idx = dictionary.pad()

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **unused: Any) -> EncoderOutput:
        """Annotations of tokens (B, S). fairseq passes the options of the decoder as well."""
        padding = src_tokens.eq(self.padding_idx)
        has_padding = padding.is_cuda or bool(padding.any())  # a look at the values would wait for a GPU
        annotations, state = self.stack(self.embedding(src_tokens), padding if has_padding else None, tokens=src_tokens)
        return {
            "encoder_out": [annotations],
            "encoder_padding_mask": [padding] if has_padding else [],
            "src_tokens": [src_tokens],
            "final_state": state,
        }

    def reorder_encoder_out(self, encoder_out: EncoderOutput, new_order: Tensor) -> EncoderOutput:
        """Reorder the sentences. Beam search calls this at every step."""
        # pyrefly: ignore[bad-specialization]
        return select_rows(encoder_out, new_order)

    def max_positions(self) -> int:
        return MAX_POSITIONS


class RecurrentAttentionalDecoder(CachingDecoder):
    """Embedding, recurrent layers with attention, output layer.

    Args:
        dictionary: the target dictionary; its size is V.
        embedding: (V, C).
        stack: recurrent layers and attention.
        output_layer: reads the states of all layers; the attention's output is the last.
    """

    def __init__(
        self, dictionary: Dictionary, *, embedding: nn.Embedding, stack: AttentionalStack, output_layer: OutputLayer
    ):
        super().__init__(dictionary)
        self.embedding = embedding
        self.stack = stack
        self.output = output_layer

    # pyrefly: ignore[bad-override]
    def forward(
        self,
        prev_output_tokens: Tensor,
        *,
        encoder_out: EncoderOutput,
        incremental_state: IncrementalState = None,
        **loss: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Score the next token at every position.

        Args:
            prev_output_tokens: (B, T).
            encoder_out: output of the encoder.
            incremental_state: fairseq's store for step-by-step decoding; only the last token is read then.
            loss: ``target`` (B, T), for the loss instead of all log-probabilities, and how it is computed; see
                :meth:`OutputLayer.forward`.

        Returns:
            log-probabilities (B, T, V) or the loss, a scalar in nats, and a dictionary: ``attn``, a list of the
            attention weights (B, T, S) or None, ``states`` (:class:`DecoderStates`) and ``scores`` (:class:`Scores`).
        """
        tokens = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        embedded = self.embedding(tokens)
        memory, state = self._memory_and_state(encoder_out, incremental_state)
        outputs = self.stack(embedded, memory, state, tokens=tokens)
        states = DecoderStates(
            layers=[embedded, *outputs.layers],
            top=outputs.top,
            tokens=tokens,
            attention=outputs.attention,
            source=encoder_out["src_tokens"][0],
        )
        scores = self.output(states, gate_state=self.cached(incremental_state).get("gate"), **loss)
        kept: Dict[str, Any] = {"stack": outputs.state, "gate": scores.gate_state}
        if memory is not None and memory.keys is not memory.annotations:
            kept["keys"] = memory.keys  # computed once for all steps
        self.cache(incremental_state, kept)
        return scores.output, {"attn": [outputs.attention], "states": states, "scores": scores}

    def _memory_and_state(
        self, encoder_out: EncoderOutput, incremental_state: IncrementalState
    ) -> Tuple[Optional[Memory], AttentionalState]:
        """The source as attention reads it, and the state before the first token."""
        (annotations,) = encoder_out["encoder_out"]
        padding = encoder_out["encoder_padding_mask"][0] if encoder_out["encoder_padding_mask"] else None
        cached = self.cached(incremental_state)
        attention = self.stack.attention
        memory = None
        if attention is not None:
            keys = cached["keys"] if "keys" in cached else attention.keys(annotations)
            memory = Memory(annotations=annotations, keys=keys, padding=padding)
        if cached:
            return memory, cached["stack"]
        return memory, self.stack.initial_state(encoder_out["final_state"])

    def max_positions(self) -> int:
        return MAX_POSITIONS


Directions = choices(["both", "forward"])
Merge = choices(MERGES)
AttentionScore = choices([*sorted(ATTENTIONS), "none"])
SharedEmbeddings = choices(["none", "output", "all"])


@dataclass
class RecurrentEncoderDecoderConfig(CudaGraphFlags):
    """Flags of the recurrent encoder-decoders; the architecture sets those that are not given."""

    embed_dim: int = field(default=0, metadata={"help": "width of the source and target embeddings"})
    hidden_sizes: str = field(
        default="", metadata={"help": 'width of each recurrent layer, "D_1 .. D_N", the same in encoder and decoder'}
    )
    encoder_directions: Directions = field(
        default="both", metadata={"help": "how the source is read: forwards and backwards, or forwards only"}
    )
    encoder_merge: Merge = field(
        default="top",
        metadata={
            "help": "top: the two directions are summed after the last layer; layer: after every layer, as the next "
            "one's input"
        },
    )
    attention: AttentionScore = field(
        default="general", metadata={"help": "score that compares a decoder state with the source positions"}
    )
    input_feeding: OnOff = field(
        default="on",
        metadata={"help": "whether the first decoder layer and minor LSTMs also read the last step's attention output"},
    )
    dropout: float = field(
        default=0.3,
        metadata={
            "help": "dropout rate between layers and, unless --dropout-output is given, of what the output layer reads"
        },
    )
    dropout_output: Optional[float] = field(
        default=None,
        metadata={
            "help": "dropout rate of what the output layer reads: attention and the decoder's last layer (default: "
            "that of --dropout)"
        },
    )
    share_embeddings: SharedEmbeddings = field(
        default="none",
        metadata={
            "help": "output: the output layer uses the target embedding (not with --output-layer full); all: so "
            "does the source, whatever the output layer (needs a joined dictionary)"
        },
    )
    init_range: float = field(
        default=0.1,
        metadata={"help": "all parameters start uniform in [-R, R], where R is this range; see --init-biases"},
    )
    init_biases: InitBiases = field(
        default="uniform", metadata={"help": "whether biases start like all parameters, or at zero (default: uniform)"}
    )


def _check_flags(config: RecurrentEncoderDecoderConfig, args: Namespace, task: TextTask) -> None:
    """Check the values that no part of the model checks, and combinations."""
    check_reads_pairs(task)
    check_target_padding(task, reader="a recurrent decoder")
    check_choices(config)
    check_at_least_one(config.embed_dim, flag="--embed-dim")
    check_positive(config.init_range, flag="--init-range")
    for name in ("label_init", "gate_init_range"):
        if getattr(args, name, None) is not None:
            raise UserError(f"{flag_of(name)} has no effect here: --init-range draws all parameters; leave it out")
    if config.encoder_directions == "forward" and config.encoder_merge == "layer":
        raise UserError("--encoder-merge layer has no effect on --encoder-directions forward: leave it out")
    check_dropout(config.dropout, flag="--dropout")
    if config.share_embeddings == "all" and task.source_dictionary != task.target_dictionary:
        raise UserError("--share-embeddings all needs one dictionary: prepare the corpus with --joined-dictionary")


@register_model("recurrent_encdec")
class RecurrentEncoderDecoder(FairseqEncoderDecoderModel):
    """Recurrent encoder-decoder with Luong attention and any output layer (Takase et al. 2018, section 6.2).

    The architectures differ in their presets only (:mod:`fairseq_plugins.models.presets`). Layer 0 of the output layer
    is the target embedding, then come the recurrent layers, and last the attention's output.
    """

    flags = ModelFlags(RecurrentEncoderDecoderConfig, RECURRENT_CELLS, OUTPUT_LAYERS, OUTPUT_GATES, COPYING)
    add_args = flags.add_args

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "RecurrentEncoderDecoder":
        """Build the model for the task's dictionaries.

        Raises:
            UserError: on a value that does not fit, with the flag and the remedy.
        """
        config = RecurrentEncoderDecoderConfig.from_namespace(args)
        _check_flags(config, args, task)
        source, target = task.source_dictionary, task.target_dictionary
        hidden_sizes = parse_numbers(config.hidden_sizes, int, flag="--hidden-sizes", example="400 400 200")
        layers = partial(
            RecurrentStack,
            hidden_sizes=hidden_sizes,
            cell=args.rnn_cell,
            cell_options=RECURRENT_CELLS.read_options(args),
            hidden_dropout=config.dropout,
            masks="standard",
        )
        target_embedding = source_embedding = nn.Embedding(len(target), config.embed_dim)
        if config.share_embeddings != "all":
            source_embedding = nn.Embedding(len(source), config.embed_dim)
        num_directions = 2 if config.encoder_directions == "both" else 1
        directions = [layers(config.embed_dim) for _ in range(num_directions)]
        encoder_stack = EncoderStack(directions, merge=config.encoder_merge)
        encoder = RecurrentEncoder(source, embedding=source_embedding, stack=encoder_stack)
        attention = None
        if config.attention != "none":
            attention = ATTENTIONS[config.attention](hidden_sizes[-1])
        feeds = config.input_feeding == "on"
        decoder_layers = layers(
            config.embed_dim + (hidden_sizes[-1] if feeds else 0),
            output_dropout=config.dropout if config.dropout_output is None else config.dropout_output,
            graphs=config.graphs(),
        )
        stack = AttentionalStack(decoder_layers, attention=attention, feeds=feeds)
        attention_widths = [] if attention is None else hidden_sizes[-1:]
        output_layer = build_output_layer(
            args,
            dictionary=target,
            layer_widths=[config.embed_dim, *hidden_sizes, *attention_widths],
            shared_weight=ENCODER_DECODER_TYING.shared_weight(args, target_embedding),
        )
        output_layer.copying = build_copying(
            args,
            source=source,
            target=target,
            width=hidden_sizes[-1],
            attention_removed_by="--attention none" if attention is None else None,
        )
        decoder = RecurrentAttentionalDecoder(
            target, embedding=target_embedding, stack=stack, output_layer=output_layer
        )
        provide_dictionary(encoder, source)
        provide_dictionary(decoder, target)
        model = cls(encoder, decoder)
        initialise_uniformly(model, config.init_range, biases=config.init_biases)
        return keep_vocabularies(model, task)


register_presets("recurrent_encdec", ENCODER_DECODER_ARCHITECTURES)
