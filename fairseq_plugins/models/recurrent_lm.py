"""Recurrent language models: embedding, recurrent stack, output layer.

Shapes: B batch rows, T time steps, C embedding width, D_n width of layer n, V vocabulary.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.models import (
    FairseqIncrementalDecoder,
    FairseqLanguageModel,
    register_model,
    register_model_architecture,
)
from torch import Tensor, nn

from fairseq_plugins.components import ModelFlags
from fairseq_plugins.data.text import TextTask, check_reads_one_text
from fairseq_plugins.models.checkpoints import keep_vocabularies
from fairseq_plugins.models.presets import LANGUAGE_MODELS, apply_preset
from fairseq_plugins.modules.cell import (
    RECURRENT_CELLS,
    CarriedState,
    DecoderState,
    State,
    map_state,
    provide_dictionary,
    select_rows,
    state_tensors,
)
from fairseq_plugins.modules.layers import (
    MASKS,
    WORD_MASKS,
    BiasStart,
    BroadcastDropout,
    FeedForward,
    WordDropoutEmbedding,
    initialise_uniformly,
)
from fairseq_plugins.modules.simple_rnn import ColumnNorm
from fairseq_plugins.modules.stack import OUTPUT_SKIPS, RecurrentStack, StackState
from fairseq_plugins.options import (
    UserError,
    check_choices,
    check_dropout,
    check_positive,
    choices,
    parse_int_list,
)
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer, SharingFlags, build_output_layer
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.output_layers.projected import ProjectedOutput
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores

IncrementalState = Optional[Dict[str, Dict[str, Any]]]
"""fairseq's store for step-by-step decoding, or None outside of it."""


# fairseq adds the second base by a decorator, which type checkers do not see.
class CachingDecoder(FairseqIncrementalDecoder, FairseqIncrementalState):
    """Keeps a state in fairseq's store between the steps of a beam search, a row (B, ...) for each hypothesis."""

    def cached(self, incremental_state: IncrementalState) -> Dict[str, Any]:
        """The state that the previous step kept; empty at the first step."""
        if incremental_state is None:
            return {}
        return self.get_incremental_state(incremental_state, "decoder") or {}

    def cache(self, incremental_state: IncrementalState, state: Dict[str, Any]) -> None:
        """Keep a state for the next step."""
        self.set_incremental_state(incremental_state, "decoder", state)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Select the rows ``new_order`` of the state, when beam search reorders hypotheses."""
        self.cache(incremental_state, select_rows(self.cached(incremental_state), new_order))


class StreamDecoder(CachingDecoder):
    """Predicts the next token of separate sequences, of the windows of a stream, or of the steps of a search.

    It keeps the state from window to window and from step to step. A subclass sets :attr:`output` and implements
    :meth:`initial_layers` and :meth:`read`, or overrides :meth:`initial_state` and :meth:`score`.

    Args:
        dictionary: fairseq's dictionary; its size is V.

    Attributes:
        output: the output layer.
        embedding: the input embedding.
        state_dropout: probability that a row of a training window starts from the initial state instead of the carried
            one (Melis et al. 2020). Evaluation starts from the initial state, and training so sees it more often. Rows
            are drawn with torch's generator, which fairseq seeds at every update, so that a resumed run draws the same.
    """

    output: OutputLayer
    embedding: nn.Embedding
    state_dropout: float = 0.0

    def __init__(self, dictionary: Dictionary):
        super().__init__(dictionary)
        self.carried_state = CarriedState()

    @property
    def layer_widths(self) -> List[int]:
        """D_0 .. D_N, of the embedding and of each layer below the output layer."""
        raise NotImplementedError

    def initial_layers(self, num_rows: int) -> State:
        """The state of the layers below the output layer at the start of ``num_rows`` rows."""
        raise NotImplementedError

    def read(self, tokens: Tensor, layers: Any, *, incremental: bool) -> Tuple[DecoderStates, State]:
        """Run all layers below the output layer.

        Args:
            tokens: (B, T).
            layers: their state before the first token.
            incremental: whether this is a step of a search.

        Returns:
            the input of the output layer, and the state of the layers after the last token.
        """
        raise NotImplementedError

    def initial_state(self, num_rows: int) -> DecoderState:
        """The state at the start of ``num_rows`` rows."""
        rows = next(self.parameters()).new_empty(num_rows, 0)
        return {"layers": self.initial_layers(num_rows), "gate": self.output.gate.initial_state(rows)}

    def score(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        incremental: bool,
        target: Optional[Tensor],
        **loss: Any,
    ) -> Tuple[DecoderStates, Scores, DecoderState]:
        """Run the layers and the output layer.

        Args:
            tokens: (B, T).
            state: before the first token.
            incremental: whether this is a step of a search.
            target, loss: see :meth:`OutputLayer.forward`.

        Returns:
            the input of the output layer, its scores, and the state after the last token.
        """
        states, layers = self.read(tokens, state["layers"], incremental=incremental)
        scores = self.output(states, target, gate_state=state["gate"], **loss)
        return states, scores, {"layers": layers, "gate": scores.gate_state}

    # pyrefly: ignore[bad-override]
    def forward(
        self,
        prev_output_tokens: Tensor,
        *,
        src_lengths: Optional[Tensor] = None,
        encoder_out: Optional[Dict[str, List[Tensor]]] = None,
        incremental_state: IncrementalState = None,
        stream: Optional[str] = None,
        position: int = 0,
        target: Optional[Tensor] = None,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
        noise: Optional[Noise] = None,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Score the next token at every position.

        Args:
            prev_output_tokens: (B, T).
            src_lengths, encoder_out: ignored; fairseq passes them.
            incremental_state: fairseq's store for step-by-step decoding; only the last token is read then.
            stream: None for separate sequences, which start from a zero state. For windows of a stream its name, such
                as "train": they start from its carried state.
            position: of the first token in the rows of the stream. At 0 the stream starts from a zero state.
            target: (B, T). With it the loss of the targets is computed instead of all log-probabilities.
            token_weights, label_smoothing, noise: see :meth:`OutputLayer.forward`.

        Returns:
            log-probabilities (B, T, V), or where ``target`` is given the loss, a scalar in nats, and a
            dictionary: ``states`` (:class:`DecoderStates`), ``scores`` (:class:`Scores`) and ``attn``, [None], which
            fairseq reads.

        Raises:
            UserError: in training with :attr:`state_dropout` on separate sequences, which carry no state.
        """
        tokens = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        state: Optional[DecoderState] = self.cached(incremental_state)
        if stream is not None:
            state = self.carried_state.get(stream, position)
        if self.state_dropout > 0 and self.training:
            if stream is None:
                raise UserError(
                    f"--dropout-carried-state {self.state_dropout:g}: no state is carried from window to window here: "
                    "train with --task stateful_lm, or give 0"
                )
            state = None if state is None else self._drop_rows(state)
        states, scores, state = self.score(
            tokens,
            state or self.initial_state(len(tokens)),
            incremental=incremental_state is not None,
            target=target,
            token_weights=token_weights,
            label_smoothing=label_smoothing,
            noise=noise,
        )
        if incremental_state is not None:
            self.cache(incremental_state, state)
        elif stream is not None:
            self.carried_state.set(stream, position + tokens.size(1), state)
        return scores.output, {"attn": [None], "states": states, "scores": scores}

    def _drop_rows(self, state: DecoderState) -> DecoderState:
        """The state with some random rows replaced by the initial state."""
        num_rows, device = next((len(x), x.device) for x in state_tensors(state))
        dropped = torch.rand(num_rows, device=device) < self.state_dropout

        def choose(carried: Tensor, start: Tensor) -> Tensor:
            return torch.where(dropped.view(-1, *[1] * (carried.dim() - 1)), start.to(carried), carried)

        return map_state(choose, state, self.initial_state(num_rows))


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
        output_layer: OutputLayer,
        feed_forward: Optional[FeedForward] = None,
        state_dropout: float = 0.0,
    ):
        super().__init__(dictionary)
        self.state_dropout = state_dropout
        self.embedding = embedding
        self.input_dropout = input_dropout
        self.stack = stack
        self.feed_forward = feed_forward
        self.output = output_layer

    @property
    def layer_widths(self) -> List[int]:
        """D_0 .. D_N: of the embedding, of each recurrent layer, and of the layer after them if there is one."""
        last = [] if self.feed_forward is None else [self.feed_forward.size]
        return [self.embedding.embedding_dim, *(layer.hidden_size for layer in self.stack.layers), *last]

    def initial_layers(self, num_rows: int) -> StackState:
        return self.stack.initial_state(self.embedding.weight.new_empty(num_rows, 0))

    def read(self, tokens: Tensor, layers: StackState, *, incremental: bool) -> Tuple[DecoderStates, StackState]:
        embedded = self.input_dropout(self.embedding(tokens))
        outputs = self.stack(embedded, layers, tokens=tokens)
        last = [] if self.feed_forward is None else [self.feed_forward(outputs.layers[-1])]
        states = DecoderStates(
            layers=[embedded, *outputs.layers, *last],
            top=last[0] if last else outputs.top,
            tokens=tokens,
            incremental=incremental,
        )
        return states, outputs.state


WordMasks = choices(WORD_MASKS)
DropoutMasks = choices(sorted(MASKS))
OutputSkip = choices(OUTPUT_SKIPS)


@dataclass
class RecurrentLanguageModelConfig(FairseqDataclass):
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
            "help": "whether words are dropped in all rows of a window at once, or in each row for itself (default: "
            "window)"
        },
    )
    embedding_noise: float = field(
        default=0.0,
        metadata={
            "help": "standard deviation of the Gaussian noise that training adds to the word embedding (default: 0.0)"
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
            "help": "sum: the output layer, or the layer of --output-hidden-size, reads the sum of the outputs of all "
            "recurrent layers, after one dropout mask; all must have the same width (default: none)"
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
            "help": "all parameters start uniformly within plus and minus this, biases as --init-biases says "
            "(default: each part's own start)"
        },
    )
    init_biases: BiasStart = field(
        default="zero", metadata={"help": "start of the biases where there is an --init-range (default: zero)"}
    )


FLAGS = ModelFlags(RecurrentLanguageModelConfig, RECURRENT_CELLS, OUTPUT_LAYERS, OUTPUT_GATES)


@register_model("recurrent_lm")
class RecurrentLanguageModel(FairseqLanguageModel):
    """AWD-LSTM language model (Merity et al. 2018) with any recurrent cell and output layer.

    The architectures differ in their presets only (:mod:`fairseq_plugins.models.presets`).
    """

    column_norm: Optional[ColumnNorm] = None
    """The column norm constraint of ``--column-norm``; None without it."""

    flags = FLAGS

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add the model's flags; the architecture supplies the values of those that are not given."""
        FLAGS.add_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "RecurrentLanguageModel":
        """Build the model for the task's dictionary.

        Raises:
            UserError: on a value that does not fit, with the flag and the remedy.
        """
        check_reads_one_text(task)
        config = check_choices(RecurrentLanguageModelConfig.from_namespace(args))
        dictionary = task.source_dictionary
        hidden_sizes = parse_int_list(config.hidden_sizes, flag="--hidden-sizes")
        check_positive(config.embed_dim, flag="--embed-dim")
        embedding = WordDropoutEmbedding(
            len(dictionary),
            config.embed_dim,
            word_dropout=config.dropout_embedding,
            word_masks=config.word_masks,
            noise=config.embedding_noise,
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
        )
        provide_dictionary(stack, dictionary)
        layer_widths, feed_forward = [config.embed_dim, *hidden_sizes], None
        if config.output_hidden_size != 0:
            feed_forward = FeedForward(hidden_sizes[-1], config.output_hidden_size)
            layer_widths.append(config.output_hidden_size)
        output_layer = build_output_layer(
            args,
            dictionary=dictionary,
            layer_widths=layer_widths,
            shared_weight=SharingFlags().shared_weight(args, embedding),
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
            raise UserError(f"--init-biases {config.init_biases} is a start within --init-range: give that, too")
        if config.column_norm != 0:
            check_positive(config.column_norm, flag="--column-norm")
            if not isinstance(output_layer, ProjectedOutput):
                raise UserError(
                    f"--column-norm {config.column_norm}: --output-layer {output_layer.name} has no output matrix, "
                    "leave it out"
                )
            weights = dict.fromkeys([embedding.weight, output_layer.projection.weight])
            model.column_norm = ColumnNorm(list(weights), length=config.column_norm)
            model.register_forward_pre_hook(_check_column_norm)
        return keep_vocabularies(model, task, embeddings=[embedding])


def _check_column_norm(model: RecurrentLanguageModel, _: Any) -> None:
    """Refuse to train a model whose task does not apply its column norm constraint. Any task may evaluate it."""
    if model.column_norm is not None and model.training and torch.is_grad_enabled():
        model.column_norm.check_held()


for name, preset in LANGUAGE_MODELS.items():
    register_model_architecture("recurrent_lm", name)(partial(apply_preset, preset))
