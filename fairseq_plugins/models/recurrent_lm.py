"""Recurrent language models: embedding, recurrent stack, output layer.

Shapes: B batch rows, T time steps, C embedding width, D_n width of layer n, V vocabulary.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional, Sequence

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    FairseqLanguageModel,
    register_model,
    register_model_architecture,
)

from fairseq_plugins.data.text_task import TextTask, check_reads_one_text
from fairseq_plugins.flags.choices import check_choices, choices
from fairseq_plugins.flags.model_flags import ModelFlags
from fairseq_plugins.flags.values import check_dropout, check_positive, parse_int_list
from fairseq_plugins.models.checkpoint_vocabulary import keep_vocabularies
from fairseq_plugins.models.presets import LANGUAGE_MODELS, apply_preset
from fairseq_plugins.models.recurrent_decoder import RecurrentDecoder, layer_widths
from fairseq_plugins.modules.column_norm import ColumnNorm
from fairseq_plugins.modules.dropout import MASKS, BroadcastDropout
from fairseq_plugins.modules.embedding import WORD_MASKS, WordDropoutEmbedding
from fairseq_plugins.modules.feed_forward import FeedForward
from fairseq_plugins.modules.initialisation import BiasStart, initialise_uniformly
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, provide_dictionary
from fairseq_plugins.modules.recurrent_stack import OUTPUT_SKIPS, RecurrentStack
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, build_output_layer
from fairseq_plugins.output_layers.gate import OUTPUT_GATES
from fairseq_plugins.output_layers.projected import ProjectedOutput
from fairseq_plugins.output_layers.sharing import SharingFlags

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
            "help": "rate at which rows start a window of the training text from the state of the start of a text and "
            "not from that after the window before; needs --task stateful_lm (default: 0.0)"
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
            "help": "sum: what reads the last recurrent layer, the output layer or the one of --output-hidden-size, "
            "reads the sum of the outputs of all recurrent layers, after one dropout; they must be of one width "
            "(default: none)"
        },
    )
    column_norm: float = field(
        default=0.0,
        metadata={
            "help": "Euclidean length at which each column of the embedding and of the output matrix is held, which is "
            "the weights into and out of a hidden unit where no matrix is between; needs --task stateful_lm; "
            "0: lengths are free (default: 0.0)"
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
    """Of the matrices whose columns keep their length; None where none do."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`RecurrentDecoder.forward`.

        Raises:
            ValueError: in training, if columns are to keep their length and the task does not hold it.
        """
        if self.column_norm is not None and self.training and torch.is_grad_enabled():
            self.column_norm.check_held()
        return super().forward(*args, **kwargs)

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add the model's flags; the architecture supplies the values of those that are not given."""
        FLAGS.add_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "RecurrentLanguageModel":
        """Build the model for the task's dictionary.

        Raises:
            ValueError: on a value that does not fit, with the flag and the remedy.
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
        stack = _build_stack(args, config, hidden_sizes)
        provide_dictionary(stack, dictionary)
        feed_forward = None
        if config.output_hidden_size != 0:
            feed_forward = FeedForward(hidden_sizes[-1], config.output_hidden_size)
        output_layer = build_output_layer(
            args,
            dictionary=dictionary,
            layer_widths=layer_widths(embedding, stack, feed_forward),
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
            raise ValueError(f"--init-biases {config.init_biases} is a start within --init-range: give that, too")
        if config.column_norm != 0:
            check_positive(config.column_norm, flag="--column-norm")
            if not isinstance(output_layer, ProjectedOutput):
                raise ValueError(
                    f"--column-norm {config.column_norm}: --output-layer {output_layer.name} has no output matrix, "
                    "leave it out"
                )
            weights = dict.fromkeys([embedding.weight, output_layer.projection.weight])
            model.column_norm = ColumnNorm(list(weights), length=config.column_norm)
        return keep_vocabularies(model, task, embeddings=[embedding])


def _build_stack(args: Namespace, config: RecurrentLanguageModelConfig, hidden_sizes: Sequence[int]) -> RecurrentStack:
    return RecurrentStack(
        config.embed_dim,
        hidden_sizes,
        cell=args.rnn_cell,
        cell_options=RECURRENT_CELLS.read_options(args),
        hidden_dropout=config.dropout_hidden,
        output_dropout=config.dropout_output,
        masks=config.dropout_masks,
        skip=config.output_skip,
    )


for name, preset in LANGUAGE_MODELS.items():
    register_model_architecture("recurrent_lm", name)(partial(apply_preset, preset))
