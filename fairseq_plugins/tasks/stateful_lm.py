"""Language modelling over contiguous streams with carried recurrent state."""

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Dict, List, Optional, Set

import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf import II

from fairseq_plugins.data.contiguous_streams import ContiguousStreams, TokenStream
from fairseq_plugins.data.corpus import dictionary_fingerprint, load_dictionary, load_token_stream
from fairseq_plugins.data.windows import Window, fixed_windows, random_windows
from fairseq_plugins.modules.carried_state import CarriedState
from fairseq_plugins.modules.recurrent_state import State, map_state, pack, select_rows, tensors, unpack

logger = logging.getLogger(__name__)


@dataclass
class StatefulLanguageModelingConfig(FairseqDataclass):
    """Flags of ``--task stateful_lm``."""

    data: Optional[str] = field(
        default=None, metadata={"help": "directory that fairseq-preprocess --only-source wrote"}
    )
    tokens_per_sample: int = field(
        default=70, metadata={"help": "window of truncated back-propagation through time, in tokens"}
    )
    window_lengths: ChoiceEnum(["fixed", "random"]) = field(
        default="fixed",
        metadata={
            "help": "fixed: every window has --tokens-per-sample tokens; random: training windows are drawn around "
            "it and the learning rate of an update is scaled by length / --tokens-per-sample"
        },
    )
    max_window: Optional[int] = field(
        default=None, metadata={"help": "longest random window, in tokens (default: no limit)"}
    )
    seed: int = II("common.seed")
    update_freq: List[int] = II("optimization.update_freq")
    train_subset: str = II("dataset.train_subset")
    valid_subset: str = II("dataset.valid_subset")


@dataclass(frozen=True)
class RowShare:
    """The rows of one process among those of all.

    Attributes:
        num_rows: rows of all processes together.
        first: first row of this process.
        num_own: number of rows of this process.
    """

    num_rows: int
    first: int
    num_own: int


@register_task("stateful_lm", dataclass=StatefulLanguageModelingConfig)
class StatefulLanguageModelingTask(LanguageModelingTask):
    """Train a language model on the corpus as parallel streams (Merity et al. 2018, section 4).

    ``--batch-size`` is the number of rows of one process; the corpus is cut into as many rows as all
    processes hold, and each process keeps its own. Hidden state goes from window to window without
    gradients, starts at zero in every epoch and every evaluation, and is part of the checkpoint. Windows
    come in order: nothing is shuffled. ``--update-freq`` accumulates successive windows. Windows are slices of
    a tensor in memory, so ``--num-workers`` is not needed and has no effect.
    """

    def __init__(self, args, dictionary, output_dictionary=None, targets=None):
        super().__init__(args, dictionary, output_dictionary, targets)
        self._model = None
        self._optimizer = None
        self._train_iterator: Optional[EpochBatchIterator] = None
        self._train_rows: Optional[RowShare] = None
        self._state_of_all_rows: Optional[State] = None
        self._window_scales: List[float] = []
        self._first_subset_pending = False
        self._reported_splits: Set[str] = set()

    @classmethod
    def setup_task(cls, args, **kwargs):
        """Load the dictionary and check the flags.

        Raises:
            ValueError: on a missing directory, a window below one token, or training text as validation.
        """
        if args.data is None:
            raise ValueError("give the data directory that fairseq-preprocess --only-source wrote")
        if args.tokens_per_sample < 1:
            raise ValueError(f"--tokens-per-sample {args.tokens_per_sample}: a window has at least 1 token")
        if args.max_window is not None and args.max_window < 1:
            raise ValueError(f"--max-window {args.max_window}: a window has at least 1 token")
        if args.train_subset in args.valid_subset.split(","):
            raise ValueError(
                f"--valid-subset {args.valid_subset} holds the training split: measure it after the training with "
                f"python -m fairseq_plugins.cli.evaluate_lm --split {args.train_subset}"
            )
        dictionary = load_dictionary(args.data)
        logger.info(f"dictionary: {len(dictionary)} types")
        return cls(args, dictionary)

    def build_model(self, args, from_checkpoint=False):
        model = super().build_model(args, from_checkpoint)
        if not hasattr(model.decoder, "carried_state"):
            raise ValueError(
                f"--task stateful_lm needs a model that carries its state, such as --arch lstm_lm_awd; "
                f"train {type(model).__name__} with --task language_modeling"
            )
        model.decoder.carried_state.num_repeatable = max(
            self.args.update_freq
        )  # --amp repeats the windows of an update
        self._model = model
        return model

    # data

    def load_dataset(self, split: str, epoch=1, combine=False, **kwargs) -> None:
        """Read a split as one token stream; it is cut into rows when the batch size is known."""
        self.datasets[split] = TokenStream(load_token_stream(self.args.data, split, self.dictionary), split)

    def get_batch_iterator(
        self,
        dataset: TokenStream,
        max_sentences: Optional[int] = None,
        num_shards: int = 1,
        shard_id: int = 0,
        epoch: int = 1,
        skip_remainder_batch: bool = False,
        **kwargs,
    ) -> EpochBatchIterator:
        """Windows of all rows of this process, in order.

        Raises:
            ValueError: without ``--batch-size``, or if the corpus is too short for the rows.
        """
        if not max_sentences:
            raise ValueError("--task stateful_lm needs --batch-size, the number of rows, in place of --max-tokens")
        share = RowShare(num_rows=max_sentences * num_shards, first=max_sentences * shard_id, num_own=max_sentences)
        streams = ContiguousStreams(
            dataset.tokens,
            name=dataset.split,
            num_rows=share.num_rows,
            first_row=share.first,
            num_own_rows=share.num_own,
        )
        self._report(dataset.split, streams, share)
        iterator = EpochBatchIterator(
            dataset=streams,
            collate_fn=streams.collater,
            batch_sampler=partial(self._cut_windows, dataset.split),
            epoch=epoch,
            disable_shuffling=True,
            skip_remainder_batch=skip_remainder_batch,
        )
        if dataset.split == self.args.train_subset:
            self._train_iterator, self._train_rows = iterator, share
        return iterator

    def eval_lm_dataloader(self, dataset: TokenStream, batch_size: Optional[int] = None, **kwargs):
        """Windows for ``fairseq-eval-lm``, by default of one row."""
        return self.get_batch_iterator(dataset, max_sentences=batch_size or 1).next_epoch_itr(shuffle=False)

    def _cut_windows(self, split: str, streams: ContiguousStreams, epoch: int) -> List[List[Window]]:
        length = self.args.tokens_per_sample
        if split == self.args.train_subset and self.args.window_lengths == "random":
            windows = random_windows(
                streams.num_predictions_per_row,
                length=length,
                max_length=self.args.max_window,
                seed=(self.args.seed, epoch),
            )
        else:
            windows = fixed_windows(streams.num_predictions_per_row, length=length)
        return [[window] for window in windows]

    def _report(self, split: str, streams: ContiguousStreams, share: RowShare) -> None:
        if split in self._reported_splits:
            return
        self._reported_splits.add(split)
        num_predictions = streams.num_predictions_per_row
        logger.info(
            f"{split}: {share.num_rows:,} rows of {num_predictions + 1:,} tokens, "
            f"{share.num_rows * num_predictions:,} predictions; "
            f"{streams.num_leftover_tokens:,} leftover tokens at the end of the corpus do not fill a row and are unused"
        )

    # training

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        """The host's step; notes the window length and, with several processes, collects the hidden state."""
        self._optimizer = getattr(optimizer, "fp32_optimizer", optimizer)
        if all(parameter.grad is None for parameter in model.parameters()):
            self._window_scales.clear()
        result = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        self._window_scales.append(sample["nominal_length"] / self.args.tokens_per_sample)
        if self._train_rows.num_own < self._train_rows.num_rows:
            # only the first process writes checkpoints, and no collective operation can run by then
            own = self._carried_state.get(
                sample["net_input"]["stream"], sample["net_input"]["position"] + sample["target"].size(1)
            )
            rows = distributed_utils.all_gather(pack(own), distributed_utils.get_data_parallel_group())
            self._state_of_all_rows = unpack(torch.cat(list(rows)), like=own)
        return result

    def optimizer_step(self, optimizer, model, update_num) -> None:
        """One update at the learning rate scaled by the mean of window length / ``--tokens-per-sample``."""
        scale = sum(self._window_scales) / len(self._window_scales)
        lr = optimizer.param_groups[0]["lr"]
        optimizer.set_lr(lr * scale)
        try:
            super().optimizer_step(optimizer, model, update_num)
        finally:
            optimizer.set_lr(lr)

    def begin_valid_epoch(self, epoch, model) -> None:
        """Prepare a validation; it sees averaged weights even where the last update was skipped."""
        self._first_subset_pending = True
        if hasattr(self._optimizer, "show_average"):
            self._optimizer.show_average()

    def post_validate(self, model, stats, agg) -> None:
        """Tell the optimiser the loss of the first validation subset at the end of an epoch."""
        if not self._first_subset_pending:
            return
        self._first_subset_pending = False
        if self._train_iterator.end_of_epoch() and hasattr(self._optimizer, "record_validation"):
            self._optimizer.record_validation(float(agg["loss"].avg))

    # checkpoints

    @property
    def _carried_state(self) -> CarriedState:
        return self._model.decoder.carried_state

    def get_checkpoint_dict(self) -> Dict[str, Dict]:
        """The hidden state of all rows, where it belongs, and the vocabulary's digest, for the host to save."""
        next_window = self._next_window()
        state = None
        if next_window is not None:
            state = self._state_of_all_rows or self._carried_state.get(self.args.train_subset, next_window[0])
        return {type(self).__name__: {"hidden_state": state, "next_window": next_window, **self.state_dict()}}

    def _next_window(self) -> Optional[List[int]]:
        """Start and length of the window that comes next in the epoch, and the length of a row."""
        index, windows = self._train_iterator.iterations_in_epoch, self._train_iterator.frozen_batches
        if index >= len(windows):
            return None
        (window,) = windows[index]
        return [window.start, window.length, self._train_iterator.dataset.rows.size(1)]

    def set_checkpoint_dict(self, saved: Dict) -> None:
        """Take this process's rows of a saved hidden state.

        Raises:
            ValueError: if, inside an epoch, the rows or windows differ from the checkpoint's.
        """
        if self._train_iterator.iterations_in_epoch == 0:
            return
        state, share = saved["hidden_state"], self._train_rows
        num_saved_rows = next(tensors(state)).size(0)
        if num_saved_rows != share.num_rows:
            raise ValueError(
                f"the checkpoint stopped inside an epoch of {num_saved_rows} rows and cannot go on with "
                f"{share.num_rows}: use the same --batch-size times processes, or start the epoch anew with "
                "--reset-dataloader"
            )
        if saved["next_window"] != self._next_window():
            raise ValueError(
                "the checkpoint stopped inside an epoch that was cut into other windows: use the same text, --seed, "
                "--tokens-per-sample, --window-lengths and --max-window, or start the epoch anew with "
                "--reset-dataloader"
            )
        own = slice(share.first, share.first + share.num_own)
        device = next(self._model.parameters()).device
        state = map_state(lambda x: x.to(device), select_rows(state, own))
        self._carried_state.set(self.args.train_subset, saved["next_window"][0], state)

    def state_dict(self) -> Dict:
        return {"dictionary_fingerprint": dictionary_fingerprint(self.dictionary)}

    def load_state_dict(self, state_dict: Dict) -> None:
        self.check_vocabulary(state_dict)

    def check_vocabulary(self, saved: Dict) -> None:
        """Check that the data's dictionary is the one of a checkpoint.

        Raises:
            ValueError: if it is not.
        """
        fingerprint = saved.get("dictionary_fingerprint")
        if fingerprint not in (None, dictionary_fingerprint(self.dictionary)):
            raise ValueError(
                f"the vocabulary in {self.args.data}/dict.txt is not the one that the checkpoint was trained with: "
                "point to the data of the training, or binarise the text with fairseq-preprocess --srcdict and its "
                "dict.txt"
            )
