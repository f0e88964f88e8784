"""A user error ends fairseq's commands with one line and exit status 2.

Patches: fairseq lets Python print a traceback above the line, with status 1. With ``--num-workers 0`` and
``--data-buffer-size`` a background thread still makes batches while the interpreter ends, which then dies by SIGABRT,
status 134, whatever ended the command. What fairseq itself refuses with a text, such as flags that do not go together,
and files that cannot be read or written are told in a line as well. Other errors keep their traceback; so do all errors
in processes that fairseq starts, one for each GPU. Where nobody reads the output any more, as after ``| head -1``, a
command ends quietly.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as fairseq's ``call_main`` lets ``ValueError`` pass, and its ``BackgroundConsumer`` is a daemon thread
that nothing stops.
"""

import argparse
import ast
import atexit
import logging
import math
import os
import queue
import re
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Tuple, Type

import fairseq_cli
import torch
from fairseq import checkpoint_utils, options
from fairseq import trainer as fairseq_trainer
from fairseq.data.iterators import BackgroundConsumer
from fairseq.distributed import utils as distributed_utils
from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.optim import SGD, Adagrad

from fairseq_plugins.command_line import UNREAD
from fairseq_plugins.fairseq_patches.patching import wrap
from fairseq_plugins.options import HOST, flag_of, is_raised_in, is_refusal

PROGRAMS = Path(fairseq_cli.__file__).resolve().parent
REFUSALS_OF_FAIRSEQ = (AssertionError, ImportError, NotImplementedError, OSError, ValueError)
"""What fairseq raises, with a text, for flags, files and libraries that are not as they should be."""
STANDARD_OUTPUT = 1
USER_ERROR = 2
"""Exit status of a command that was given something wrong, as argparse has it."""
LONGEST_BATCH = 60
"""Seconds that the end of a command waits for a thread to finish its batch; one that hangs is left behind."""

_ending = threading.Event()
_consumers: "weakref.WeakSet[BackgroundConsumer]" = weakref.WeakSet()


def patch_one_line_errors() -> None:
    """Wrap ``parse_args_and_arch``, with which fairseq's programs read their flags, and ``call_main``, which runs them.

    Threads that make batches are stopped before the interpreter ends.
    """
    wrap(distributed_utils, "call_main", _show_lines)
    wrap(options, "parse_args_and_arch", _show_lines_of_programs)
    wrap(BackgroundConsumer, "run", _make_batches)
    atexit.register(_stop_threads)


def _show_lines(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    _show_errors()
    return call_main(cfg, *args, **kwargs)


def _show_lines_of_programs(parse_args_and_arch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    program = Path(sys.argv[0])
    if program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli":
        _show_errors()
    return parse_args_and_arch(*args, **kwargs)


def _show_errors() -> None:
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_error


def show_error(kind: Type[BaseException], error: BaseException, frames: Optional[TracebackType]) -> None:
    """Print a user's error as one line, and other errors as Python does.

    Raises:
        SystemExit: after the line; Python would end with status 1.
    """
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_OUTPUT)  # what is left would fail again
        raise SystemExit(UNREAD)
    told = _told(error)
    if told is None:
        sys.__excepthook__(kind, error, frames)
        return
    # Among several processes torch's hook calls this one with a buffer as sys.stderr, which an exit would lose.
    stream = sys.__stderr__ if torch.distributed.is_initialized() else sys.stderr
    print("ValueError:", *told.splitlines(), file=stream, flush=True)
    raise SystemExit(USER_ERROR)


def _told(error: BaseException) -> Optional[str]:
    """What a user's error says; None of a fault."""
    if is_refusal(error):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ConfigCompositionException):  # hydra's, of a flag that must be given
        flag = re.search(r"override [\w.]*?(\w+)=null$", str(error))
        return flag and f"{flag_of(flag.group(1))} is missing: give it"
    is_told = isinstance(error, REFUSALS_OF_FAIRSEQ) and str(error)
    return str(error) if is_told and is_raised_in(error, HOST, PROGRAMS) else None


def _make_batches(run: Callable[..., None], consumer: Any) -> None:
    _consumers.add(consumer)
    consumer._source = _until_the_end(consumer._source)
    run(consumer)


def _until_the_end(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        if _ending.is_set():
            return
        yield batch


def _stop_threads() -> None:
    """Let the threads finish the batch that they are at, and make no other."""
    _ending.set()
    deadline = time.monotonic() + LONGEST_BATCH
    for consumer in list(_consumers):
        while consumer.is_alive() and time.monotonic() < deadline:
            _make_room(consumer)
            consumer.join(0.01)


def _make_room(consumer: Any) -> None:
    """A thread waits where its queue is full."""
    try:
        while True:
            consumer._queue.get_nowait()
    except queue.Empty:
        pass


# A training that diverges says which weights or gradients did, at which update, and what to lower.
#
# Ends: where a weight, a gradient, their norm or the loss of an update or of validation is infinite or no number.
# Patches: fairseq clips by a norm that is infinite or no number, which makes numbers of no gradient any more, and then
# reads the batch again with hooks that fail where a module returns something else than tensors; the error is that of
# the
# hooks. Of several processes it says that their gradients are inconsistent. With a loss that is none it goes on. Where
# there is a GPU that ``--cpu`` leaves alone, it multiplies gradients by a norm that lies there.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_ends_in_its_hooks`` passes.


def patch_divergence() -> None:
    """Wrap methods of fairseq's ``Trainer``, and the class whose objects search a batch for such numbers."""
    wrap(Trainer, "train_step", _check_loss)
    wrap(Trainer, "valid_step", _check_valid_loss)
    wrap(Trainer, "clip_grad_norm", _check_norm)
    wrap(fairseq_trainer, "NanDetector", _tell)


def _check_loss(
    train_step: Callable[..., Optional[Dict[str, Any]]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[Dict[str, Any]]:
    """Make an update.

    Raises:
        ValueError: if its loss is infinite or no number.
    """
    logged = train_step(trainer, *args, **kwargs)
    if logged is not None and not _passes_over_updates(trainer):
        _require_finite(trainer, logged, of="the loss")
    return logged


def _check_valid_loss(
    valid_step: Callable[..., Dict[str, Any]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Dict[str, Any]:
    """Measure a batch of validation: a recurrence may explode over a text that it survives over a training's window.

    Raises:
        ValueError: if its loss is infinite or no number.
    """
    logged = valid_step(trainer, *args, **kwargs)
    _require_finite(trainer, logged, of="the loss of validation")
    return logged


def _require_finite(trainer: Trainer, logged: Dict[str, Any], *, of: str) -> None:
    if not math.isfinite(logged.get("loss", 0)):
        largest = _largest((name, weight.detach()) for name, weight in trainer.get_model().named_parameters())
        what = f"{of} is infinite or no number, the largest weight is {largest}"
        raise ValueError(_describe(trainer, what, update=trainer.get_num_updates()))


def _check_norm(clip_grad_norm: Callable[..., Tensor], trainer: Trainer, clip_norm: float) -> Tensor:
    """Look at gradients before they are clipped."""
    if _passes_over_updates(trainer) or trainer.is_fsdp:
        return clip_grad_norm(trainer, clip_norm)

    def check(norm: Tensor) -> Tensor:
        if not torch.isfinite(norm).all():
            what = _where(list(trainer.get_model().named_parameters()))
            raise FloatingPointError(_describe(trainer, what, update=trainer.get_num_updates() + 1))
        return norm.to(trainer.device)

    optimizer: Any = trainer.optimizer
    return optimizer.clip_grad_norm(clip_norm, aggregate_norm_fn=check)


def _tell(nan_detector: Callable[..., Any], model: nn.Module) -> NoReturn:
    """End where fairseq, after it has saved crash.pt, would begin to search.

    Raises:
        ValueError: with the first line of what fairseq caught.
    """
    raise ValueError(str(sys.exception()).partition("\n")[0]) from None


def _passes_over_updates(trainer: Trainer) -> bool:
    """Whether fairseq lowers the scale of the loss where such numbers occur, and ends by itself if that is no help."""
    return trainer.cfg.common.fp16 or trainer.cfg.common.amp


def _describe(trainer: Trainer, what: str, *, update: int) -> str:
    clip_norm = trainer.cfg.optimization.clip_norm
    factors = {"--lr": trainer.get_lr(), **({"--clip-norm": clip_norm} if clip_norm > 0 else {})}
    factors.update(getattr(trainer.get_criterion(), "penalty_factors", {}))
    lower = ", ".join(f"{flag} (now {value:g})" for flag, value in factors.items())
    clip = "" if clip_norm > 0 else ", or give --clip-norm"
    return f"the training diverged at update {update}: {what}; lower {lower}{clip}"


def _where(named: List[Tuple[str, nn.Parameter]]) -> str:
    weights = [name for name, weight in named if not _is_finite(weight)]
    gradients = [name for name, weight in named if weight.grad is not None and not _is_finite(weight.grad)]
    if weights:
        return f"weights are infinite or no numbers in {_first(weights)}"
    if gradients:
        return f"gradients are infinite or no numbers in {_first(gradients)}"
    largest = _largest((name, weight.grad) for name, weight in named if weight.grad is not None)
    return f"the gradients' norm is infinite, the largest is {largest}"


def _largest(named: Iterable[Tuple[str, Tensor]]) -> str:
    size, name = max((_dense(one).abs().max().item(), name) for name, one in named)
    return f"{size:.3g} in {name}"


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(_dense(tensor)).all())


def _dense(tensor: Tensor) -> Tensor:
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _first(names: List[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} others"


# Values that a flag of fairseq cannot have are refused.
#
# Patches: fairseq takes ``nan`` for a number, so that ``--dropout nan`` drops nothing, and ``--clip-norm -1`` clips
# nothing; ``--update-freq 0``, ``--seed -1``, ``--adam-betas nan``, a training with ``--fp16`` on a CPU, and names of
# files with ``${`` end in tracebacks.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_takes_them`` passes.


AT_LEAST: Dict[str, float] = {
    **dict.fromkeys(("lr", "clip_norm", "weight_decay", "momentum", "adam_eps", "lr_shrink", "min_lr"), 0),
    **dict.fromkeys(("seed", "num_workers", "warmup_updates", "max_epoch", "max_update", "save_interval_updates"), 0),
    **dict.fromkeys(("update_freq", "log_interval", "distributed_world_size", "beam", "nbest"), 1),
    **dict.fromkeys(("required_batch_size_multiple",), 1),
    **dict.fromkeys(("patience", "keep_last_epochs", "keep_best_checkpoints", "keep_interval_updates"), -1),
}
"""The smallest values; -1 is fairseq's for none."""
BELOW: Dict[str, float] = {"seed": 2**32, "momentum": 1}
"""Above all values."""


def patch_flag_values() -> None:
    """Wrap fairseq's ``parse_args_and_arch``, with which all of its commands read their flags."""
    wrap(options, "parse_args_and_arch", _refuse)


def _refuse(parse_args_and_arch: Callable[..., Any], parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
    """The values of all flags; the command ends with one line and status 2 where one cannot be."""
    try:
        parsed = parse_args_and_arch(parser, *args, **kwargs)
    except KeyError as error:
        if error.args != (None,):
            raise
        parser.exit(2, f"{parser.prog}: error: --task is missing: give that of the training, such as stateful_lm\n")
    values = vars(parsed[0] if isinstance(parsed, tuple) else parsed)
    of_numbers = [_fault(name, number) for name, number in _numbers(values)]
    others = [_fault_of_overrides(values), _fault_of_betas(values), _fault_of_fp16(values)]
    for fault in filter(None, [*of_numbers, *_faults_of_texts(values), *_faults_of_missing(values), *others]):
        parser.exit(2, f"{parser.prog}: error: {fault}\n")
    return parsed


def _fault(name: str, number: float) -> Optional[str]:
    flag = f"--{name.replace('_', '-')} {number}"
    if math.isnan(number):
        return f"{flag}: give a number"
    if number < AT_LEAST.get(name, -math.inf):
        return f"{flag}: give at least {AT_LEAST[name]:g}"
    if name in BELOW and number >= BELOW[name]:
        return f"{flag}: give less than {BELOW[name]:,}"
    return None


def _faults_of_texts(values: Dict[str, Any]) -> Iterator[str]:
    """Texts that hydra, through which fairseq passes every value, reads as references, or quotes wrongly."""
    for name, text in values.items():
        if not isinstance(text, str) or re.fullmatch(r"\$\{\w+\.\w+\}", text):  # a default of fairseq's own
            continue
        if "${" in text or re.search(r"\\('|$)", text):
            yield (
                f"--{name.replace('_', '-')} {text}: fairseq cannot read ${{, or a backslash before a quotation mark "
                "or the end: give another name"
            )


def _faults_of_missing(values: Dict[str, Any]) -> Iterator[str]:
    if values.get("path", "given") in (None, ""):  # a flag of what reads trained models
        yield "--path is missing or empty: give a checkpoint, such as SAVE_DIR/checkpoint_best.pt"
    if values.get("save_dir") == "":
        yield "--save-dir is empty: give a folder"
    for name in ("lr", "update_freq"):
        if values.get(name) == []:
            yield f"--{name.replace('_', '-')} is empty: give a number"


def _fault_of_overrides(values: Dict[str, Any]) -> Optional[str]:
    text = values.get("model_overrides", "{}")
    try:
        if isinstance(ast.literal_eval(text), dict):
            return None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    return f'--model-overrides "{text}": give a dictionary, such as "{{\'dropout\': 0.1}}"'


def _fault_of_betas(values: Dict[str, Any]) -> Optional[str]:
    betas = values.get("adam_betas")
    if isinstance(betas, str):
        try:
            parse_betas(betas)
        except ValueError as error:
            return str(error)
    return None


def parse_betas(text: str) -> Tuple[float, float]:
    """Read ``--adam-betas``, such as ``"(0.9, 0.999)"``, as fairseq does.

    Raises:
        ValueError: if they are not two numbers from 0 on, below 1.
    """
    try:
        first, second = ast.literal_eval(text)
        if all(0 <= beta < 1 for beta in (first, second)):
            return first, second
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    raise ValueError(f'--adam-betas {text}: give two numbers from 0 on, below 1, as in "(0.9, 0.999)"')


def _fault_of_fp16(values: Dict[str, Any]) -> Optional[str]:
    """The flat copy of a training's weights is made on a GPU; ``update_freq`` is a flag of trainings alone."""
    if "update_freq" not in values or not values.get("fp16"):
        return None
    if values.get("memory_efficient_fp16") or values.get("fp16_no_flatten_grads"):
        return None
    if torch.cuda.is_available() and not values.get("cpu"):
        return None
    return "--fp16: it needs a GPU; give --bf16 in its place"


def _numbers(values: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    for name, value in values.items():
        for part in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(part, (float, int)) and not isinstance(part, bool):
                yield name, part


# Sparse gradients are scaled and clipped, and an optimiser that cannot take them says so.
#
# Patches: fairseq scales a copy of a sparse gradient, and takes its norm in a way that torch does not have. Where an
# optimiser then meets one that it cannot take, errors name neither cause nor remedy, or momentum makes it grow with
# every
# update.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_neither_scales_nor_clips_sparse_gradients`` passes.


TAKE_SPARSE = (SGD, Adagrad)
"""Optimisers of torch that leave the rows alone which a sparse gradient does not hold."""


def patch_sparse_gradients() -> None:
    """Wrap fairseq's ``FairseqOptimizer.multiply_grads`` and ``clip_grad_norm``."""
    for name in ("multiply_grads", "clip_grad_norm"):
        wrap(FairseqOptimizer, name, _change_rows)
    if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
        torch.sparse.check_sparse_tensor_invariants.disable()  # torch's default, of which it warns unless it is given


def _change_rows(change: Callable[..., Any], optimizer: FairseqOptimizer, *args: Any, **kwargs: Any) -> Any:
    """Change dense gradients and the rows of sparse ones, which then are coalesced."""
    params = list(optimizer.params)
    sparse = [param for param in params if param.grad is not None and param.grad.is_sparse]
    if not sparse:
        return change(optimizer, *args, **kwargs)
    _check(optimizer)
    for param in sparse:
        param.grad = param.grad.coalesce()
    return change(SimpleNamespace(params=[_with_rows(param) for param in params]), *args, **kwargs)


def _with_rows(param: Tensor) -> Any:
    """Stands for a parameter: its gradient is the rows of a coalesced one, which have its norm and share its memory."""
    if param.grad is None or not param.grad.is_sparse:
        return param
    return SimpleNamespace(grad=param.grad.values())


def _check(optimizer: FairseqOptimizer) -> None:
    """Refuse optimisers that would fail, or would pass over all rows."""
    settings = [group.get(name, 0) for group in optimizer.param_groups for name in ("momentum", "weight_decay")]
    if type(optimizer.optimizer) not in TAKE_SPARSE or any(settings):
        name = type(optimizer.optimizer).__name__
        raise ValueError(
            f"--sparse-gradients on: {name} with these flags changes all rows; give off, or --optimizer sgd, "
            "adagrad or damped_adagrad with --momentum 0 and --weight-decay 0"
        )


# A training whose log nobody reads any more ends.
#
# Works around: ``logging`` passes over lines that it cannot write. Where ``fairseq-train ... | tee train.log`` has lost
# ``tee``, or the command that kept the log was killed, fairseq trains on for days without a log.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_trains_on_without_a_log`` passes.


def patch_unread_log() -> None:
    """Wrap fairseq's ``load_checkpoint``, which every process of a training, and of no other command, calls."""
    wrap(checkpoint_utils, "load_checkpoint", _heed_and_load)


def _heed_and_load(load_checkpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    wrap(logging.StreamHandler, "handleError", _end_unread)
    return load_checkpoint(*args, **kwargs)


def _end_unread(
    handle_error: Callable[..., None], handler: "logging.StreamHandler[Any]", record: logging.LogRecord
) -> None:
    if isinstance(sys.exception(), BrokenPipeError) and handler.stream in (sys.stdout, sys.stderr):
        os._exit(UNREAD)  # from any thread; checkpoints are written aside and renamed
    handle_error(handler, record)
