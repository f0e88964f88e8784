"""Attentional recurrent encoder-decoders: embeddings, recurrent stacks, attention, output layer.

Shapes: B sentences, S source positions, T target steps, C embedding width, D_n width of layer n, V target words.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Dict, Optional, Sequence, Tuple

from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    FairseqEncoderDecoderModel,
    register_model,
    register_model_architecture,
)
from torch import Tensor, nn

from fairseq_plugins.data.text_task import TextTask, check_reads_pairs, check_target_padding
from fairseq_plugins.flags.choices import OnOff, check_choices, choices
from fairseq_plugins.flags.model_flags import ModelFlags
from fairseq_plugins.flags.values import check_dropout, check_positive, flag_of, parse_int_list
from fairseq_plugins.models.checkpoint_vocabulary import keep_vocabularies
from fairseq_plugins.models.presets.encoder_decoders import ARCHITECTURES, SHARING_FLAGS, apply_encdec_preset
from fairseq_plugins.models.recurrent_attentional_decoder import RecurrentAttentionalDecoder
from fairseq_plugins.models.recurrent_encoder import RecurrentEncoder
from fairseq_plugins.modules.attention import ATTENTIONS
from fairseq_plugins.modules.attentional_stack import AttentionalStack
from fairseq_plugins.modules.encoder_stack import DIRECTIONS, MERGES, EncoderStack
from fairseq_plugins.modules.initialisation import STARTS, BiasStart, initialise_by_layer, initialise_uniformly
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, provide_dictionary
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, build_output_layer
from fairseq_plugins.output_layers.copying import COPYING, build_copying
from fairseq_plugins.output_layers.gate import OUTPUT_GATES

Directions = choices(DIRECTIONS)
Merge = choices(MERGES)
AttentionScore = choices([*sorted(ATTENTIONS), "none"])
SharedEmbeddings = choices(["none", "output", "all"])
Start = choices(STARTS)


@dataclass
class RecurrentEncoderDecoderConfig(FairseqDataclass):
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
            "help": "top: both directions are summed at the top; layer: after every layer, the sum feeding the next"
        },
    )
    attention: AttentionScore = field(
        default="general", metadata={"help": "score that compares a decoder state with the source positions"}
    )
    input_feeding: OnOff = field(
        default="on",
        metadata={
            "help": "whether the attention's output enters the next step of the first decoder layer and of minors"
        },
    )
    dropout: float = field(
        default=0.3,
        metadata={
            "help": "dropout rate between layers, and, unless --dropout-output says otherwise, of the decoder's last "
            "layer and the attention as the output layer reads them"
        },
    )
    dropout_output: Optional[float] = field(
        default=None,
        metadata={
            "help": "dropout rate of what the output layer alone reads, attention and last layer of the decoder "
            "(default: that of --dropout)"
        },
    )
    share_embeddings: SharedEmbeddings = field(
        default="none",
        metadata={
            "help": "output: the output layer uses the target embedding (not with --output-layer full); all: the "
            "source uses it as well, whatever the output layer (needs a joined dictionary)"
        },
    )
    init: Start = field(
        default="uniform",
        metadata={
            "help": "start of the parameters; uniform: all within --init-range; by-layer: recurrent matrices "
            "orthogonal and others uniform with unit gain (Glorot), gate by gate, biases zero, those of forget gates 1 "
            "(default: uniform)"
        },
    )
    init_range: float = field(
        default=0.1,
        metadata={"help": "all parameters start uniformly within plus and minus this, biases as --init-biases says"},
    )
    init_biases: BiasStart = field(
        default="uniform", metadata={"help": "whether biases start like all parameters, or at zero (default: uniform)"}
    )
    embedding_std: float = field(
        default=0.1,
        metadata={"help": "standard deviation with which embeddings start under --init by-layer (default: 0.1)"},
    )


FLAGS = ModelFlags(RecurrentEncoderDecoderConfig, RECURRENT_CELLS, OUTPUT_LAYERS, OUTPUT_GATES, COPYING)


@register_model("recurrent_encdec")
class RecurrentEncoderDecoder(FairseqEncoderDecoderModel):
    """Recurrent encoder-decoder with Luong attention and any output layer (Takase et al. 2018, section 6.2).

    The architectures differ in their presets only (:mod:`fairseq_plugins.models.presets`). For output
    layers that read several layers, layer 0 is the target embedding, then come the recurrent layers, and the
    attention's output is the last.
    """

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add the model's flags; the architecture supplies the values of those that are not given."""
        FLAGS.add_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "RecurrentEncoderDecoder":
        """Build the model for the task's dictionaries.

        Raises:
            ValueError: on a value that does not fit, with the flag and the remedy.
        """
        check_reads_pairs(task)
        config = check_choices(RecurrentEncoderDecoderConfig.from_namespace(args))
        source, target = task.source_dictionary, task.target_dictionary
        hidden_sizes = parse_int_list(config.hidden_sizes, flag="--hidden-sizes")
        check_positive(config.embed_dim, flag="--embed-dim")
        check_target_padding(task, reader="a recurrent decoder")
        _check_start(args, config)
        check_dropout(config.dropout, flag="--dropout")
        if config.share_embeddings == "all" and source != target:
            raise ValueError("--share-embeddings all needs one dictionary: run fairseq-preprocess --joined-dictionary")
        target_embedding = source_embedding = nn.Embedding(len(target), config.embed_dim)
        if config.share_embeddings != "all":
            source_embedding = nn.Embedding(len(source), config.embed_dim)
        encoder = RecurrentEncoder(
            source, embedding=source_embedding, stack=_build_encoder_stack(args, config, hidden_sizes)
        )
        stack = _build_decoder_stack(args, config, hidden_sizes)
        attention_widths = [] if stack.attention is None else hidden_sizes[-1:]
        output_layer = build_output_layer(
            args,
            dictionary=target,
            layer_widths=[config.embed_dim, *hidden_sizes, *attention_widths],
            shared_weight=SHARING_FLAGS.shared_weight(args, target_embedding),
        )
        output_layer.copying = build_copying(
            args,
            source=source,
            target=target,
            width=hidden_sizes[-1],
            attention_removed_by="--attention none" if stack.attention is None else None,
        )
        decoder = RecurrentAttentionalDecoder(
            target, embedding=target_embedding, stack=stack, output_layer=output_layer
        )
        provide_dictionary(encoder, source)
        provide_dictionary(decoder, target)
        model = cls(encoder, decoder)
        if config.init == "by-layer":
            initialise_by_layer(model, embedding_std=config.embedding_std)
        else:
            initialise_uniformly(model, config.init_range, biases=config.init_biases)
        return keep_vocabularies(model, task, embeddings=[source_embedding, target_embedding])

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **options: Any
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Encode the source (B, S), then :meth:`RecurrentAttentionalDecoder.forward` with ``options``."""
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        return self.decoder(prev_output_tokens, encoder_out=encoder_out, **options)


def _check_start(args: Namespace, config: RecurrentEncoderDecoderConfig) -> None:
    """Refuse what is no start, and flags of one start that are given beside the other."""
    check_positive(config.init_range, flag="--init-range")
    check_positive(config.embedding_std, flag="--embedding-std")
    of_other = ("embedding_std",) if config.init == "uniform" else ("init_range", "init_biases")
    for name in of_other:
        if getattr(args, name, None) is not None:
            flag = flag_of(name)
            raise ValueError(f"--init {config.init} has no {flag}: leave out {flag}, or take the other --init")


def _build_encoder_stack(
    args: Namespace, config: RecurrentEncoderDecoderConfig, hidden_sizes: Sequence[int]
) -> EncoderStack:
    return EncoderStack(
        config.embed_dim,
        hidden_sizes,
        cell=args.rnn_cell,
        cell_options=RECURRENT_CELLS.read_options(args),
        directions=config.encoder_directions,
        merge=config.encoder_merge,
        hidden_dropout=config.dropout,
    )


def _build_decoder_stack(
    args: Namespace, config: RecurrentEncoderDecoderConfig, hidden_sizes: Sequence[int]
) -> AttentionalStack:
    attention = None
    if config.attention != "none":
        attention = ATTENTIONS[config.attention](hidden_sizes[-1], hidden_sizes[-1])
    return AttentionalStack(
        config.embed_dim,
        hidden_sizes,
        cell=args.rnn_cell,
        cell_options=RECURRENT_CELLS.read_options(args),
        attention=attention,
        input_feeding=config.input_feeding,
        hidden_dropout=config.dropout,
        output_dropout=config.dropout if config.dropout_output is None else config.dropout_output,
    )


for name, preset in ARCHITECTURES.items():
    register_model_architecture("recurrent_encdec", name)(partial(apply_encdec_preset, preset))
