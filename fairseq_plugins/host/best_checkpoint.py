"""``checkpoint_best.pt`` is the best by a metric that is logged, in its direction, on one validation set.

Mends: fairseq ends in a ``KeyError`` after the first epoch, with nothing saved, where ``--best-checkpoint-metric`` is
not logged; it keeps the worst checkpoint where a metric is better when higher and ``--maximize-best-checkpoint-metric``
is left out; it compares with the best value of another validation set; and where ``checkpoint_last.pt`` is gone, or
older than ``checkpoint_best.pt``, it replaces the best by a worse one.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_fairseq_alone_replaces_the_best`` passes.
"""

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from fairseq import checkpoint_utils
from fairseq.data import LanguagePairDataset, MonolingualDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from fairseq_plugins.data.contiguous_streams import TokenStream
from fairseq_plugins.host.missing_checkpoint import LAST
from fairseq_plugins.host.resumed_validation import PATIENCE
from fairseq_plugins.host.wrapping import wrap

logger = logging.getLogger(__name__)

VALIDATION = "validation"
"""In the extra state of a checkpoint: the metric of its best value, and a digest of the validation set."""
FIRST_SAVE = ".first-checkpoint"
"""A file of ``--save-dir`` while the first checkpoint is written; it stays where the training is killed meanwhile."""
CHECKPOINT = r"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.+)"
"""Names of checkpoints, up to the suffix of a process that holds a part."""

_LOSSES = {"loss": False, "ppl": False}
_CRITERIONS: Mapping[str, Callable[[Any], Mapping[str, bool]]] = {
    "CrossEntropyCriterion": lambda one: {**_LOSSES, **({"nll_loss": False} if one.sentence_avg else {})},
    "AdaptiveLoss": lambda one: {**_LOSSES, **({"nll_loss": False} if one.sentence_avg else {})},
    "LabelSmoothedCrossEntropyCriterion": lambda one: {
        **_LOSSES,
        "nll_loss": False,
        **({"accuracy": True} if one.report_accuracy else {}),
    },
}
"""The metrics that fairseq's criteria log in validation, and whether they are better when higher."""
_ANYWHERE = {**_LOSSES, "nll_loss": False, "accuracy": True, "bleu": True}
"""The direction of those that other tasks and criteria log by the same names."""


def mend() -> None:
    """Wrap fairseq's ``load_checkpoint``, by which a run begins, and its writing of checkpoints."""
    wrap(checkpoint_utils, "load_checkpoint", _check_and_load)
    wrap(checkpoint_utils, "save_checkpoint", _mark_the_first)
    wrap(Trainer, "save_checkpoint", _save_validation)


def _check_and_load(
    load_checkpoint: Callable[..., Tuple[Optional[Dict[str, Any]], EpochBatchIterator]],
    cfg: CheckpointConfig,
    trainer: Trainer,
    **options: Any,
) -> Tuple[Optional[Dict[str, Any]], EpochBatchIterator]:
    """Begin or resume a run.

    Raises:
        ValueError: if the metric is not logged, or checkpoints are there and none that the run could resume from.
    """
    validates = not trainer.cfg.dataset.disable_validation
    if validates:
        _check_metric(cfg, trainer)
    saves = not cfg.no_save and distributed_utils.is_master(trainer.cfg.distributed_training)
    if saves:
        _check_beginning(cfg, trainer.checkpoint_suffix)
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # of an earlier run of this process
    state, iterator = load_checkpoint(cfg, trainer, **options)
    former = (state or {}).get(VALIDATION)
    own = {"metric": cfg.best_checkpoint_metric, "digest": _digest(trainer)} if validates else former
    vars(trainer)[VALIDATION] = own
    if state is not None and former is not None and own is not None and former != own:
        is_other_set = former["digest"] != own["digest"]
        _forget(state, trainer, is_other_set=is_other_set)
        logger.info(
            f"the best {former['metric']} of the checkpoint is not compared with this run's {own['metric']}: "
            f"{'the validation set' if is_other_set else 'the metric'} is another one"
        )
    if saves and validates and own is not None and cfg.restore_file:
        _heed_best_file(cfg, trainer.checkpoint_suffix, own)
    return state, iterator


# the metric


def _check_metric(cfg: CheckpointConfig, trainer: Trainer) -> None:
    """Set the direction of the metric.

    Raises:
        ValueError: if the task and the criterion do not log it.
    """
    name, known = cfg.best_checkpoint_metric, _logged(trainer)
    if known is not None and name not in known:
        also = (
            ""
            if "bleu" in known or not isinstance(trainer.task, TranslationTask)
            else ("; BLEU, chrF and ROUGE are logged by --task scored_translation, as --eval-scorer names them")
        )
        raise ValueError(
            f"--best-checkpoint-metric {name}: validation of this task and criterion logs {', '.join(known)}: give "
            f"one of these{also}"
        )
    is_higher_better = (_ANYWHERE if known is None else known).get(name)
    if is_higher_better is None or is_higher_better == cfg.maximize_best_checkpoint_metric:
        return
    cfg.maximize_best_checkpoint_metric = is_higher_better
    if "maximize_best_checkpoint_metric" in trainer.cfg.lr_scheduler:
        trainer.cfg.lr_scheduler.maximize_best_checkpoint_metric = is_higher_better  # a copy
    direction, done = ("higher", "set") if is_higher_better else ("lower", "not heeded")
    logger.info(f"{name} is better when {direction}: --maximize-best-checkpoint-metric is {done}")


def _logged(trainer: Trainer) -> Optional[Dict[str, bool]]:
    """What validation logs, and whether it is better when higher; None where that is not known."""
    task, criterion = trainer.task, trainer.get_criterion()
    describe = _CRITERIONS.get(type(criterion).__name__)
    known = getattr(criterion, "validation_metrics", None) if describe is None else describe(criterion)
    own = getattr(task, "validation_metrics", None)
    if own is None and type(task) in (LanguageModelingTask, TranslationTask):
        own = {"bleu": True} if getattr(task.cfg, "eval_bleu", False) else {}
    return None if known is None or own is None else {**known, **own}


# where a run begins


def _check_beginning(cfg: CheckpointConfig, suffix: str) -> None:
    """A run begins anew where there is no checkpoint, or the flags say what to begin with.

    Raises:
        ValueError: with the remedy.
    """
    last = Path(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))
    if cfg.restore_file != LAST or last.is_file():
        return
    there = _checkpoints(cfg.save_dir, suffix)
    if last.is_symlink():
        told = f"{last} is a link to {os.readlink(last)}, which is no file"
    elif last.exists():
        told = f"{last} is no file"
    elif there and not Path(cfg.save_dir, FIRST_SAVE).exists():
        told = f"{cfg.save_dir} holds {there[0]} and no {last.name}"
    else:
        return
    resume = f"give --restore-file {Path(cfg.save_dir, there[0])} to resume from it, " if there else ""
    raise ValueError(
        f"{told}, and a run that begins anew would replace what is there: {resume}give another --save-dir, or "
        "--restore-file '' to begin anew here"
    )


def _checkpoints(save_dir: str, suffix: str) -> List[str]:
    """Names of the checkpoints in a folder, that were written last first; the best is before others."""
    pattern = re.compile(CHECKPOINT + re.escape(suffix) + r"\.pt")
    there = [path for path in Path(save_dir).glob("checkpoint*.pt") if pattern.fullmatch(path.name) and path.is_file()]
    there.sort(key=lambda path: (path.name == f"checkpoint_best{suffix}.pt", path.stat().st_mtime), reverse=True)
    return [path.name for path in there]


def _mark_the_first(
    save_checkpoint: Callable[..., Optional[str]], cfg: CheckpointConfig, trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[str]:
    """Save; a run that is killed between the first checkpoints, of which the last comes last, may begin anew."""
    mark = Path(cfg.save_dir, FIRST_SAVE)
    is_local = not cfg.no_save and trainer.should_save_checkpoint_on_current_rank and os.path.isdir(cfg.save_dir)
    if is_local and not _checkpoints(cfg.save_dir, trainer.checkpoint_suffix):
        mark.touch()
    saved = save_checkpoint(cfg, trainer, *args, **kwargs)
    if is_local:
        mark.unlink(missing_ok=True)
    return saved


# values of one validation set


def _save_validation(
    save_checkpoint: Callable[..., Any], trainer: Trainer, filename: str, extra_state: Dict[str, Any]
) -> Any:
    own = vars(trainer).get(VALIDATION)
    return save_checkpoint(trainer, filename, extra_state if own is None else {**extra_state, VALIDATION: own})


def _forget(state: Dict[str, Any], trainer: Trainer, *, is_other_set: bool) -> None:
    """Begin to compare anew: for the best checkpoint, ``--patience``, and what else follows validation."""
    state.pop("best", None)
    state.pop(PATIENCE, None)
    state["val_loss"] = None
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    scheduler = trainer.lr_scheduler
    if isinstance(scheduler, ReduceLROnPlateauLRSchedule):
        scheduler.lr_scheduler._reset()
    optimizer: Any = trainer.optimizer
    follower = getattr(optimizer, "fp32_optimizer", optimizer)
    if is_other_set and hasattr(follower, "forget_validations"):
        follower.forget_validations()


def _heed_best_file(cfg: CheckpointConfig, suffix: str, own: Dict[str, Any]) -> None:
    """Compare with the value of ``checkpoint_best.pt``, too; say what the next one has to be better than.

    Raises:
        ValueError: if the file cannot be read.
    """
    path, counted = Path(cfg.save_dir, f"checkpoint_best{suffix}.pt"), vars(checkpoint_utils.save_checkpoint)
    metric, best = own["metric"], counted.get("best")
    if not path.is_file():
        if best is not None:
            logger.info(f"{path} is written where {metric} is better than {best}, the best of the checkpoint")
        return
    try:
        extra = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["extra_state"]
        value = extra.get("best", extra["val_loss"])
    except Exception as error:  # damage leads to errors of any kind
        raise ValueError(f"{path} cannot be read, and this run would replace it: move it away") from error
    if value is None:
        return
    if extra.get(VALIDATION, own) != own:
        logger.info(f"{path} is the best of another validation set or metric: the best of this run will replace it")
    elif best is None or (value > best if cfg.maximize_best_checkpoint_metric else value < best):
        counted["best"] = value
        logger.info(f"{path} has {metric} {value}: it is kept until a better one comes")


def _digest(trainer: Trainer) -> str:
    """That of the validation set by which the best checkpoint is chosen."""
    dataset_cfg = trainer.cfg.dataset
    subset = "valid" if dataset_cfg.combine_valid_subsets else dataset_cfg.valid_subset.split(",")[0]
    dataset: Any = trainer.task.dataset(subset)
    digest = hashlib.sha256()
    if isinstance(dataset, TokenStream):
        digest.update(dataset.tokens.numpy().tobytes())
    elif type(dataset) in (LanguagePairDataset, MonolingualDataset):
        for number in range(len(dataset)):
            item = dataset[number]
            for side in ("source", "target"):
                digest.update(b"" if item[side] is None else item[side].numpy().tobytes() + b"|")
    else:
        digest.update(str(len(dataset)).encode())
    return digest.hexdigest()
