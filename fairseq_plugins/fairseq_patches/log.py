"""Patches of the log: readable lines, and the remaining time."""

import logging
import os
import re
import time
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from fairseq import checkpoint_utils
from fairseq.logging.progress_bar import BaseProgressBar, JsonProgressBar, SimpleProgressBar, TqdmProgressBar
from fairseq.trainer import Trainer
from omegaconf import DictConfig, OmegaConf
from torch import nn

from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.fairseq_patches.distributed import is_saving
from fairseq_plugins.fairseq_patches.saving import renamed_to
from fairseq_plugins.options import get_flag

CONFIG_FILE = "config.yaml"
"""File in ``--save-dir`` with all flags of the last start, and the modules of the model as comments."""

WARNINGS = (
    r"hydra\.experimental\.(initialize|compose)\(\) is no longer experimental",
    r"\nThe version_base parameter is not specified",
    r"In 'config': Usage of deprecated keyword in package header",
    r"\n'config' is validated against ConfigStore schema with the same name",
    r"\nThe strict flag in the compose API is deprecated",
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated",
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",
)
"""Beginnings of warnings of hydra and torch that calls inside fairseq cause."""

DROPPED: Dict[str, str] = {
    "fairseq.tasks.fairseq_task": r"(can_reuse_epoch_itr|reuse_dataloader|rebuild_batches) = |creating new batches",
    "fairseq.data.iterators": "grouped total_num_itrs",
    "fairseq.trainer": "detected shared parameter|Saving checkpoint to|Finished saving checkpoint",
    "fairseq.checkpoint_utils": "State of .* is ready to be persisted",
    "fairseq_cli.train": "task: |model: |criterion: |num. expert model params: 0 |training on 1 devices|max tokens per"
    "|begin dry-run|Start iterating",
    **dict.fromkeys((f"fairseq_cli.{name}" for name in ("generate", "interactive", "eval_lm", "validate")), "(?!)"),
}
"""Beginnings of fairseq's lines that say nothing, or nothing new, by logger."""


def patch_log() -> None:
    """Log in readable lines.

    Problem: a log of fairseq begins with all flags in one line of 20 kB and the modules of the model, and repeats
        warnings of hydra and torch that no user can avoid.
    Patch: filter the loggers of fairseq. The log of a run begins with a summary. Flags and modules go to
        :data:`CONFIG_FILE`. Only :data:`WARNINGS` and :data:`DROPPED` are left out.
    Needed while ``test_fairseq_alone_logs_all_flags`` passes.
    """
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message)
    logging.getLogger("hydra").setLevel(logging.INFO)
    for name in DROPPED:
        if _shorten not in logging.getLogger(name).filters:
            logging.getLogger(name).addFilter(_shorten)
    wrap(checkpoint_utils, "load_checkpoint", _load_and_write_config)


def _shorten(record: logging.LogRecord) -> bool:
    """Whether a line is logged. The flags and the modules of a run become a summary."""
    if isinstance(record.msg, (DictConfig, nn.Module)):
        if record.name == "fairseq_cli.train":
            for line in _summary(record.msg) if isinstance(record.msg, DictConfig) else _precision(record.msg):
                logging.getLogger(record.name).info(line)
        return False
    return record.levelno > logging.INFO or not re.match(DROPPED[record.name], record.getMessage())


def _summary(cfg: Any) -> Iterator[str]:
    """Readable lines of the flags of a run."""
    names = {name: get_flag(part, "_name") for name, part in cfg.items()}
    arch = get_flag(cfg.model, "arch") or names["model"]
    yield f"arch {arch}, criterion {names['criterion']}, seed {cfg.common.seed}"
    text, valid = cfg.dataset, "" if cfg.dataset.disable_validation else f", validate on {cfg.dataset.valid_subset}"
    yield f"task {names['task']}, data {get_flag(cfg.task, 'data')}, train on {text.train_subset}{valid}"
    rates, clip_norm = " ".join(f"{lr:g}" for lr in cfg.optimization.lr), cfg.optimization.clip_norm
    yield f"optimizer {names['optimizer']}, lr {rates}, lr-scheduler {names['lr_scheduler']}, clip-norm {clip_norm:g}"
    ends = {"epoch": cfg.optimization.max_epoch, "update": cfg.optimization.max_update}
    end = " or ".join(f"{unit} {number:,}" for unit, number in ends.items() if number > 0)
    sizes = {"sentences": text.batch_size, "tokens": text.max_tokens}
    size = " and ".join(f"{number:,} {unit}" for unit, number in sizes.items() if number)
    size += " in each process" if cfg.distributed_training.distributed_world_size > 1 else ""
    yield f"batches of at most {size}, {f'until {end}' if end else 'without a limit of epochs'}"
    folder = cfg.checkpoint.save_dir
    best = f", best by {cfg.checkpoint.best_checkpoint_metric}; all flags in {folder}/{CONFIG_FILE}"
    yield "no checkpoints" if cfg.checkpoint.no_save else f"checkpoints in {folder}{best}"


def _precision(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        if type(module).__name__ == "OutputPrecision":
            yield f"output precision {module.name}"
    if torch.get_float32_matmul_precision() != "highest":
        yield "matrix products of float32 in TF32 on GPUs"


def _load_and_write_config(load_checkpoint: Callable[..., Any], cfg: Any, trainer: Trainer, **kwargs: Any) -> Any:
    _start.clear()
    loaded = load_checkpoint(cfg, trainer, **kwargs)
    if is_saving(cfg, trainer):
        modules = "".join(f"# {line}\n" for line in str(trainer.model).splitlines())
        with renamed_to(os.path.join(cfg.save_dir, CONFIG_FILE)) as aside:
            Path(aside).write_text(f"{_yaml(trainer.cfg)}\n{modules}", encoding="utf-8")
    return loaded


def _yaml(cfg: Any) -> str:
    """The flags in YAML. Models with flags of argparse hold the flags of all parts; they are written once."""
    plain: Any = OmegaConf.to_container(cfg, enum_to_str=True)
    others = {*plain, *(name for part in plain.values() if isinstance(part, dict) for name in part)} - {"arch"}
    for name, part in plain.items():
        if isinstance(part, Namespace):
            plain[name] = {key: value for key, value in vars(part).items() if key not in others}
    return OmegaConf.to_yaml(OmegaConf.create(plain))


_start: List[Tuple[float, float]] = []
"""When the run of this process began, in seconds, and its position in the text, in epochs."""


def patch_remaining_time() -> None:
    """Log the remaining time as ``eta`` beside ``wall``, in hours, minutes and seconds.

    Problem: fairseq does not estimate it.
    Patch: log the pace so far, validations included, times what remains until ``--max-epoch`` or ``--max-update``.
        Without such a limit nothing is logged.
    Needed while fairseq logs no such figure.
    """
    wrap(BaseProgressBar, "update_config", _note_start)
    for kind in (JsonProgressBar, SimpleProgressBar, TqdmProgressBar):
        wrap(kind, "log", _log_with_eta)
        wrap(kind, "print", _log_with_eta)


def _note_start(update_config: Callable[..., None], bar: Any, config: Dict[str, Any]) -> None:
    """Take the limits of a run from the flags, which its progress bar gets in each epoch."""
    bar.limits = config["optimization"]
    if not _start:
        _start.append((time.monotonic(), _position(bar)))
    update_config(bar, config)


def _position(bar: Any) -> float:
    return bar.epoch - 1 + bar.iterable.n / len(bar.iterable)


def _log_with_eta(
    log: Callable[..., None], bar: Any, stats: Dict[str, Any], tag: Optional[str] = None, step: Optional[int] = None
) -> None:
    limits = getattr(bar, "limits", None)  # validation has none
    if limits and step:
        num_epochs = []
        if limits["max_epoch"] > 0:
            num_epochs.append(limits["max_epoch"] - _position(bar))
        if limits["max_update"] > 0:
            num_epochs.append((limits["max_update"] - step) / len(bar.iterable))
        began, since = _start[0]
        if num_epochs and _position(bar) > since:
            pace = (time.monotonic() - began) / (_position(bar) - since)
            minutes, seconds = divmod(round(max(0.0, min(num_epochs)) * pace), 60)
            stats = {**stats, "eta": f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"}
    log(bar, stats, tag=tag, step=step)
