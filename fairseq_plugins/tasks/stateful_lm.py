"""Language modelling over contiguous streams with carried recurrent state."""

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, NoReturn, Optional, Set, Tuple

from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass import FairseqDataclass
from fairseq.logging.meters import MetersDict
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.optim import AMPOptimizer, FairseqOptimizer
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf import II
from torch import Tensor, nn

from fairseq_plugins.data.streams import (
    ContiguousStreams,
    TokenStream,
    Window,
    fixed_windows,
    random_row_offsets,
    random_windows,
)
from fairseq_plugins.data.text import load_dictionary, load_token_stream, load_training_stream
from fairseq_plugins.models.decoder import StreamDecoder
from fairseq_plugins.optim.column_norm import apply_column_norm
from fairseq_plugins.optim.nt_asgd import NTASGD
from fairseq_plugins.options import UserError, check_at_least_one, choices
from fairseq_plugins.tasks.streams import (
    StreamPosition,
    agreed_scale,
    scaled_learning_rate,
    train_step_in_micro_batches,
)

logger = logging.getLogger(__name__)

WindowLengths = choices(["fixed", "random"])
RowOffsets = choices(["none", "random"])

_READS_NO_SENTENCES = (
    "--task stateful_lm reads one stream, not separate prompts: use --task language_modeling, fairseq-plugins lm "
    "generate, or fairseq_plugins.load from Python"
)


@dataclass
class StatefulLanguageModelingConfig(FairseqDataclass):
    """Flags of ``--task stateful_lm``."""

    data: Optional[str] = field(
        default=None, metadata={"help": "directory that fairseq-preprocess --only-source wrote"}
    )
    tokens_per_sample: int = field(
        default=70, metadata={"help": "window of truncated back-propagation through time, in tokens"}
    )
    window_lengths: WindowLengths = field(
        default="fixed",
        metadata={
            "help": "fixed: every window has --tokens-per-sample tokens; random: training windows vary around that "
            "length, and the learning rate is scaled by length / --tokens-per-sample"
        },
    )
    max_window: Optional[int] = field(
        default=None, metadata={"help": "longest random window, in tokens (default: no limit)"}
    )
    row_offsets: RowOffsets = field(
        default="none",
        metadata={
            "help": "random: in each epoch every row of the training text starts at a random token and wraps around "
            "(partial shuffle); none: rows start where the text was cut"
        },
    )
    row_groups: int = field(
        default=1,
        metadata={
            "help": "number of groups into which the rows of a process are split for training. They are computed "
            "one after another, each with its own dropout masks, and make one update"
        },
    )
    seed: int = II("common.seed")
    train_subset: str = II("dataset.train_subset")
    valid_subset: str = II("dataset.valid_subset")


def epoch_windows(
    streams: ContiguousStreams, epoch: int, *, config: StatefulLanguageModelingConfig, in_training: bool
) -> List[List[Window]]:
    """Batches of one window each that cover the rows in order.

    Only training windows have random lengths and row offsets, which are drawn from the seed and the epoch.
    """
    num_predictions, length = len(streams), config.tokens_per_sample
    if in_training and config.window_lengths == "random":
        seed = (config.seed, epoch)
        windows = random_windows(num_predictions, length=length, max_length=config.max_window, seed=seed)
    else:
        windows = fixed_windows(num_predictions, length=length)
    if in_training and config.row_offsets == "random":
        seed = (config.seed, epoch, 1)  # a generator independent of the lengths'
        offsets = random_row_offsets(streams.num_rows, streams.rows.size(1), seed=seed)
        windows = [replace(window, row_offsets=offsets) for window in windows]
    return [[window] for window in windows]


@register_task("stateful_lm", dataclass=StatefulLanguageModelingConfig)
class StatefulLanguageModelingTask(LanguageModelingTask):
    """Train a language model on the corpus as parallel streams (Merity et al. 2018, section 4).

    The corpus is cut into ``--batch-size`` rows for each process. Windows come in order. Hidden state is carried from
    window to window without gradients, starts at zero in every epoch and every evaluation, and is part of the
    checkpoint. With ``--row-offsets random`` each row of the training text is rotated by its own offset (Press 2019).
    Nothing else is shuffled. ``--update-freq`` accumulates successive windows. ``--row-groups`` splits the rows of a
    window into micro-batches, as the programs published with MoS and DOC do on WikiText-2. Windows are slices of a
    tensor in memory, so ``--num-workers`` has no effect.
    """

    validation_metrics: ClassVar[Mapping[str, bool]] = {}
    """Metrics that validation logs beside the criterion's, and whether higher is better."""
    applies_column_norm = True
    """See :func:`~fairseq_plugins.optim.column_norm.constrain_columns`."""
    reports_validation = True
    """See :class:`~fairseq_plugins.optim.nt_asgd.NTASGD`."""
    _decoder: StreamDecoder
    """Decoder of the model, once the model is built."""
    _position: StreamPosition
    """Position in the training text, once the text is read."""

    def __init__(
        self,
        args: Any,
        dictionary: Dictionary,
        output_dictionary: Optional[Dictionary] = None,
        targets: Optional[List[str]] = None,
    ):
        super().__init__(args, dictionary, output_dictionary, targets)
        self._config: StatefulLanguageModelingConfig = args
        self._optimizer: Optional[FairseqOptimizer] = None
        self._nominal_lengths: List[int] = []  # of the windows since gradients were cleared
        self._first_subset_pending = False
        self._described_splits: Set[str] = set()

    @classmethod
    def setup_task(cls, args: Any, **kwargs: Any) -> "StatefulLanguageModelingTask":
        """Load the dictionary and check the flags.

        Raises:
            UserError: on a missing directory, a window below one token, ``--max-window`` without random windows, or
                training text as validation.
        """
        if args.data is None:
            raise UserError("give DATA, a folder of one side that data-prep or fairseq-preprocess --only-source wrote")
        if ":" in args.data and not Path(args.data).exists():
            raise UserError(f"{args.data}: --task stateful_lm reads one directory, not shards joined by colons")
        check_at_least_one(args.tokens_per_sample, flag="--tokens-per-sample")
        if args.max_window is not None:
            check_at_least_one(args.max_window, flag="--max-window")
            if args.window_lengths != "random":
                raise UserError(f"--max-window {args.max_window} limits random windows: add --window-lengths random")
        check_at_least_one(args.row_groups, flag="--row-groups")
        if args.train_subset in args.valid_subset.split(","):
            raise UserError(
                f"--valid-subset {args.valid_subset} holds the training split: measure it after the training with "
                f"fairseq-plugins lm eval --split {args.train_subset}"
            )
        dictionary = load_dictionary(args.data)
        logger.info(f"dictionary: {len(dictionary)} types")
        return cls(args, dictionary)

    def build_model(self, args: Any, from_checkpoint: bool = False) -> FairseqLanguageModel:
        arch = getattr(args, "arch", None)
        if issubclass(ARCH_MODEL_REGISTRY.get(arch, type(None)), FairseqEncoderDecoderModel):
            raise UserError(
                f"--arch {arch} reads sentence pairs, and --task stateful_lm one text: give --task translation"
            )
        model = super().build_model(args, from_checkpoint)
        if not isinstance(model.decoder, StreamDecoder):
            raise UserError(
                f"--task stateful_lm needs a model that carries its state, such as --arch lstm_lm_awd; "
                f"train {type(model).__name__} with --task language_modeling"
            )
        self._decoder = model.decoder
        return model

    # data

    # pyrefly: ignore[bad-override]
    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Read a split as one token stream. With ``combine`` its further parts (train1, valid1, ...) follow."""
        if combine:
            tokens = load_training_stream(self.args.data, self.dictionary, subset=split)
        else:
            tokens = load_token_stream(self.args.data, split, self.dictionary)
        self.datasets[split] = TokenStream(tokens, split, in_training=combine and split == self.args.train_subset)

    # pyrefly: ignore[bad-override]
    def get_batch_iterator(
        self,
        dataset: TokenStream,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        num_shards: int = 1,
        shard_id: int = 0,
        epoch: int = 1,
        skip_remainder_batch: bool = False,
        **kwargs: Any,
    ) -> EpochBatchIterator:
        """Windows of all rows of this process, in order.

        Raises:
            UserError: without ``--batch-size``, with ``--max-tokens`` in training, with more groups than rows, or if
                the corpus is too short for the rows.
        """
        if not max_sentences:
            raise UserError("--task stateful_lm needs --batch-size, the number of rows, in place of --max-tokens")
        if dataset.in_training and max_tokens:
            raise UserError(f"--max-tokens {max_tokens}: --task stateful_lm reads --batch-size rows: leave it out")
        streams = ContiguousStreams(
            dataset.tokens,
            name=dataset.split,
            num_rows=max_sentences * num_shards,
            own_rows=slice(max_sentences * shard_id, max_sentences * (shard_id + 1)),
        )
        if dataset.in_training and self._config.row_groups > max_sentences:
            raise UserError(
                f"--row-groups {self._config.row_groups}: a process has {max_sentences} rows; give at most that many "
                "groups, or a larger --batch-size"
            )
        if streams.name not in self._described_splits:
            self._described_splits.add(streams.name)
            logger.info(streams.describe())
        iterator = EpochBatchIterator(
            dataset=streams,
            collate_fn=streams.collater,
            batch_sampler=partial(epoch_windows, config=self._config, in_training=dataset.in_training),
            disable_shuffling=True,
            epoch=epoch,
            skip_remainder_batch=skip_remainder_batch,
        )
        if dataset.in_training:
            self._position = StreamPosition(iterator, self._decoder)
        return iterator

    # fairseq's programs score windows of the stream, and cannot pass sentences

    # pyrefly: ignore[bad-override]
    def eval_lm_dataloader(
        self,
        dataset: TokenStream,
        batch_size: Optional[int] = None,
        num_shards: int = 1,
        context_window: int = 0,
        **kwargs: Any,
    ) -> Iterable[Dict[str, Any]]:
        """Windows for ``fairseq-eval-lm``, by default of one row.

        Raises:
            UserError: on shards or ``--context-window``, because state is carried through all windows.
        """
        if num_shards > 1:
            raise UserError(
                f"--task stateful_lm reads a text as one stream, not in {num_shards} shards: leave out --num-shards, "
                "or give --distributed-world-size 1"
            )
        if context_window > 0:
            raise UserError(
                f"--context-window {context_window}: --task stateful_lm carries its state from window to window, which "
                "is all the context: leave it out"
            )
        windows = self.get_batch_iterator(dataset, max_sentences=batch_size or 1).next_epoch_itr(shuffle=False)
        assert windows is not None
        return windows

    def build_dataset_for_inference(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Called for sentences, by ``fairseq-interactive`` for example.

        Raises:
            UserError: always, with the command that reads sentences.
        """
        raise UserError(_READS_NO_SENTENCES)

    def inference_step(self, generator: Any, models: Any, sample: Dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """fairseq's step, which can score windows of a stream (``fairseq-generate --score-reference``).

        Raises:
            UserError: if a window is to be continued.
        """
        if "stream" in sample["net_input"] and not isinstance(generator, SequenceScorer):
            raise UserError(_READS_NO_SENTENCES)
        return super().inference_step(generator, models, sample, *args, **kwargs)

    # training

    def train_step(
        self,
        sample: Dict[str, Any],
        model: nn.Module,
        criterion: FairseqCriterion,
        optimizer: FairseqOptimizer,
        update_num: int,
        ignore_grad: bool = False,
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """fairseq's step, with a note of the window and of the state after it.

        fairseq skips a window for which memory runs out. If that happens in one of several processes, the others
        complete the window, and this one still takes part in their collective operations.
        """
        self._optimizer = optimizer.fp32_optimizer if isinstance(optimizer, AMPOptimizer) else optimizer
        if all(parameter.grad is None for parameter in model.parameters()):  # fairseq does not report skipped updates
            self._nominal_lengths.clear()
        # --amp repeats all windows of an update whose gradients overflowed, so their start states are kept.
        self._decoder.carried_state.num_repeatable = len(self._nominal_lengths) + 1
        end = sample["net_input"]["position"] + sample["target"].size(1)
        num_groups = self._config.row_groups
        step = partial(
            super().train_step,
            model=model,
            criterion=criterion,
            optimizer=optimizer,
            update_num=update_num,
            ignore_grad=ignore_grad,
        )
        try:
            if num_groups == 1:
                result = step(sample)
            else:
                result = train_step_in_micro_batches(
                    step, sample, num_groups=num_groups, model=model, decoder=self._decoder, criterion=criterion
                )
        except RuntimeError as error:
            if "out of memory" in str(error) and self._position.is_shared:
                self._position.advance(position=end)
            raise
        self._nominal_lengths.append(sample["nominal_length"])
        self._position.advance(position=end)
        return result

    def optimizer_step(self, optimizer: FairseqOptimizer, model: nn.Module, update_num: int) -> None:
        """One update, with the learning rate scaled by the length of its windows."""
        scale = agreed_scale(
            self._nominal_lengths,
            base_length=self._config.tokens_per_sample,
            device=next(model.parameters()).device,
        )
        with scaled_learning_rate(optimizer, scale):
            super().optimizer_step(optimizer, model, update_num)
        apply_column_norm(optimizer)

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        """Prepare a validation, which sees averaged weights even if the last update was skipped."""
        self._first_subset_pending = True
        self._show_average()

    def post_validate(self, model: nn.Module, stats: Dict[str, Any], agg: MetersDict) -> None:
        """Report the loss of the first validation subset to the optimiser at the end of an epoch."""
        if not self._first_subset_pending:
            return
        self._first_subset_pending = False
        if self._position.is_end_of_epoch and isinstance(self._optimizer, NTASGD):
            self._optimizer.record_validation(float(agg["loss"].avg))

    def _show_average(self) -> None:
        if isinstance(self._optimizer, NTASGD):
            self._optimizer.show_average()

    # checkpoints

    def get_checkpoint_dict(self) -> Dict[str, Dict[str, Any]]:
        """Position in the training text, for fairseq to save.

        fairseq calls this before it reads the weights, so this is where averaged weights are put into the model, even
        if the last update was skipped.
        """
        self._show_average()
        return {type(self).__name__: self._position.checkpoint()}

    def set_checkpoint_dict(self, saved: Dict[str, Any]) -> None:
        """Resume the training text where a checkpoint stopped.

        Raises:
            UserError: if, inside an epoch, the rows, windows or model differ from the checkpoint's.
        """
        self._position.restore(saved)
