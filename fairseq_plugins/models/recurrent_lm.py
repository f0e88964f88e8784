"""Recurrent language models: embedding, recurrent stack, output layer.

Shapes: B batch rows, T time steps, C embedding width, D_n width of layer n, V vocabulary.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Optional, Tuple

from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel, register_model
from torch import Tensor, nn

from fairseq_plugins.data.tasks import TextTask, check_reads_one_text
from fairseq_plugins.models.checkpoints import keep_vocabularies
from fairseq_plugins.models.decoder import StreamDecoder
from fairseq_plugins.models.presets import LANGUAGE_MODELS, TyingFlags, register_presets
from fairseq_plugins.modules.cell import RECURRENT_CELLS, provide_dictionary
from fairseq_plugins.modules.layers import (
    MASKS,
    WORD_MASKS,
    BroadcastDropout,
    InitBiases,
    Linear,
    WordDropoutEmbedding,
    initialise_uniformly,
)
from fairseq_plugins.modules.stack import OUTPUT_SKIPS, CudaGraphFlags, RecurrentStack, StackState
from fairseq_plugins.optim.column_norm import constrain_columns
from fairseq_plugins.options import (
    UserError,
    check_at_least_one,
    check_choices,
    check_dropout,
    check_positive,
    choices,
    parse_numbers,
)
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer, build_output_layer
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.output_layers.projected import ProjectedOutput
from fairseq_plugins.output_layers.scores import DecoderStates
from fairseq_plugins.parts import ModelFlags


class RecurrentDecoder(StreamDecoder):
    """Embedding, recurrent stack, output layer.

    Args:
        dictionary: fairseq's dictionary; its size is V.
        embedding: input embedding, (V, D_0).
        input_dropout: dropout of the embedded input.
        stack: the recurrent layers.
        feed_forward: a last layer, which reads the stack's output after its dropout, or None.
        output_layer: reads the outputs of all layers.
        state_dropout: see :class:`StreamDecoder`.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        embedding: WordDropoutEmbedding,
        input_dropout: BroadcastDropout,
        stack: RecurrentStack,
        feed_forward: Optional[nn.Module],
        output_layer: OutputLayer,
        state_dropout: float,
    ):
        super().__init__(dictionary)
        self.state_dropout = state_dropout
        self.embedding = embedding
        self.input_dropout = input_dropout
        self.stack = stack
        self.feed_forward = feed_forward
        self.output = output_layer

    def initial_layers(self, like: Tensor) -> StackState:
        return self.stack.initial_state(like)

    def read(self, tokens: Tensor, layers: StackState, *, incremental: bool) -> Tuple[DecoderStates, StackState]:
        embedded = self.input_dropout(self.embedding(tokens))
        outputs = self.stack(embedded, layers, tokens=tokens)
        last = [] if self.feed_forward is None else [self.feed_forward(outputs.layers[-1])]
        states = DecoderStates(
            layers=[embedded, *outputs.layers, *last],
            top=last[0] if last else outputs.top,
            tokens=tokens,
        )
        return states, outputs.state


WordMasks = choices(WORD_MASKS)
DropoutMasks = choices(sorted(MASKS))
OutputSkip = choices(OUTPUT_SKIPS)


@dataclass
class RecurrentLanguageModelConfig(CudaGraphFlags):
    """Flags of the recurrent language models; the architecture sets those that are not given."""

    embed_dim: int = field(default=0, metadata={"help": "width of the word embedding"})
    hidden_sizes: str = field(default="", metadata={"help": 'width of each recurrent layer, "D_1 .. D_N"'})
    output_hidden_size: int = field(
        default=0,
        metadata={"help": "width of a layer of rectifiers between recurrent layers and output (default: 0, none)"},
    )
    dropout_embedding: float = field(
        default=0.0, metadata={"help": "rate at which whole word types are dropped from the input (default: 0.0)"}
    )
    word_masks: WordMasks = field(
        default="window",
        metadata={
            "help": "window: all rows of a window drop the same words; row: each row drops its own (default: window)"
        },
    )
    dropout_input: float = field(default=0.0, metadata={"help": "dropout rate of the embedded input (default: 0.0)"})
    dropout_hidden: float = field(
        default=0.0, metadata={"help": "dropout rate between recurrent layers (default: 0.0)"}
    )
    dropout_output: float = field(
        default=0.0, metadata={"help": "dropout rate of the last recurrent layer (default: 0.0)"}
    )
    dropout_carried_state: float = field(
        default=0.0,
        metadata={
            "help": "probability that a row starts a training window from the initial state instead of the carried "
            "one; needs --task stateful_lm (default: 0.0)"
        },
    )
    dropout_masks: DropoutMasks = field(
        default="locked",
        metadata={
            "help": "locked: one dropout mask for all time steps of a window; standard: one for each (default: locked)"
        },
    )
    output_skip: OutputSkip = field(
        default="none",
        metadata={
            "help": "sum: the output layer, or the layer of --output-hidden-size, reads the sum of the outputs of "
            "all recurrent layers, after one dropout mask; all layers must have the same width (default: "
            "none)"
        },
    )
    column_norm: float = field(
        default=0.0,
        metadata={
            "help": "Euclidean norm to which each column of the embedding and of the output matrix is rescaled after "
            "every update; needs --task stateful_lm; 0: never (default: 0.0)"
        },
    )
    init_range: Optional[float] = field(
        default=None,
        metadata={
            "help": "all parameters start uniform in [-R, R], where R is this range; see --init-biases (default: "
            "each part's own initial values)"
        },
    )
    init_biases: InitBiases = field(
        default="zero", metadata={"help": "initial biases under --init-range (default: zero)"}
    )


@register_model("recurrent_lm")
class RecurrentLanguageModel(FairseqLanguageModel):
    """AWD-LSTM language model (Merity et al. 2018) with any recurrent cell and output layer.

    The architectures differ in their presets only (:mod:`fairseq_plugins.models.presets`).
    """

    flags = ModelFlags(RecurrentLanguageModelConfig, RECURRENT_CELLS, OUTPUT_LAYERS, OUTPUT_GATES)
    add_args = flags.add_args

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "RecurrentLanguageModel":
        """Build the model for the task's dictionary.

        Raises:
            UserError: on a value that does not fit, with the flag and the remedy.
        """
        check_reads_one_text(task)
        config = check_choices(RecurrentLanguageModelConfig.from_namespace(args))
        dictionary = task.source_dictionary
        hidden_sizes = parse_numbers(config.hidden_sizes, int, flag="--hidden-sizes", example="400 400 200")
        check_at_least_one(config.embed_dim, flag="--embed-dim")
        embedding = WordDropoutEmbedding(
            len(dictionary),
            config.embed_dim,
            word_dropout=config.dropout_embedding,
            word_masks=config.word_masks,
        )
        input_dropout = BroadcastDropout(
            config.dropout_input, flag="--dropout-input", shared_dims=MASKS[config.dropout_masks]
        )
        stack = RecurrentStack(
            config.embed_dim,
            hidden_sizes,
            cell=args.rnn_cell,
            cell_options=RECURRENT_CELLS.read_options(args),
            hidden_dropout=config.dropout_hidden,
            output_dropout=config.dropout_output,
            masks=config.dropout_masks,
            skip=config.output_skip,
            graphs=config.graphs(),
        )
        provide_dictionary(stack, dictionary)
        layer_widths, feed_forward = [config.embed_dim, *hidden_sizes], None
        if config.output_hidden_size != 0:
            size = check_at_least_one(config.output_hidden_size, flag="--output-hidden-size")
            feed_forward = nn.Sequential(Linear(hidden_sizes[-1], size), nn.ReLU())
            layer_widths.append(size)
        output_layer = build_output_layer(
            args,
            dictionary=dictionary,
            layer_widths=layer_widths,
            shared_weight=TyingFlags().shared_weight(args, embedding),
        )
        decoder = RecurrentDecoder(
            dictionary,
            embedding=embedding,
            input_dropout=input_dropout,
            stack=stack,
            feed_forward=feed_forward,
            output_layer=output_layer,
            state_dropout=check_dropout(config.dropout_carried_state, flag="--dropout-carried-state"),
        )
        model = cls(decoder)
        if config.init_range is not None:
            check_positive(config.init_range, flag="--init-range")
            initialise_uniformly(model, config.init_range, biases=config.init_biases)
        elif config.init_biases != "zero":
            raise UserError(f"--init-biases {config.init_biases} needs an --init-range: give that, too")
        if config.column_norm != 0:
            check_positive(config.column_norm, flag="--column-norm")
            if not isinstance(output_layer, ProjectedOutput):
                raise UserError(
                    f"--column-norm {config.column_norm}: --output-layer {output_layer.name} has no output matrix, "
                    "leave it out"
                )
            weights = [embedding.weight, output_layer.projection.weight]
            constrain_columns(model, weights, length=config.column_norm, task=task)
        return keep_vocabularies(model, task)


register_presets("recurrent_lm", LANGUAGE_MODELS)
