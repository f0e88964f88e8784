"""Patches of error messages: a user error ends a command with one line that names the flag or file and the remedy."""

import argparse
import atexit
import logging
import math
import os
import queue
import re
import sys
import threading
import time
import traceback
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Type

import fairseq
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq import trainer as fairseq_trainer
from fairseq.data.iterators import BackgroundConsumer
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue
from torch import Tensor, nn

from fairseq_plugins.console import INTERRUPTED, UNREAD, message_of
from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.options import UserError, flag_of

STANDARD_OUTPUT = 1
USER_ERROR = 2
"""Exit status after a user error, as in argparse."""
LONGEST_BATCH = 60
"""Seconds to wait for a thread to finish its batch at the end of a command. One that hangs is abandoned."""

_ending = threading.Event()
_consumers: "weakref.WeakSet[BackgroundConsumer]" = weakref.WeakSet()


def patch_one_line_errors() -> None:
    """End fairseq's commands with one line and exit status 2 after a user error.

    Problem: fairseq lets Python print a traceback above the line, with status 1. With ``--num-workers 0`` and
        ``--data-buffer-size`` a background thread still makes batches while the interpreter ends, which then dies by
        SIGABRT, status 134, whatever ended the command.
    Patch: wrap ``call_main`` and ``parse_args_and_arch`` to install :func:`show_error`, and ``BackgroundConsumer.run``
        to stop threads before the interpreter ends. User errors are ``UserError``, files that cannot be read or
        written, and flags and packages that fairseq asks for. All other errors keep their traceback, as do all errors
        in processes that fairseq starts, one for each GPU. If nobody reads the output any more, as after ``| head -1``,
        a command ends quietly.
    Needed while ``test_other_errors_keep_their_traceback_and_those_of_fairseq_alone_all`` passes, and
    ``BackgroundConsumer`` is a daemon thread that nothing stops.
    """
    wrap(distributed_utils, "call_main", _run_with_one_line_errors)
    wrap(options, "parse_args_and_arch", _parse_with_one_line_errors)
    wrap(BackgroundConsumer, "run", _make_batches_until_exit)
    _install_hook_in_programs()  # for errors of --user-dir, which comes before the other flags
    atexit.register(_stop_threads)


def _run_with_one_line_errors(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    _install_hook()
    return call_main(cfg, *args, **kwargs)


def _parse_with_one_line_errors(parse_args_and_arch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _install_hook_in_programs()
    return parse_args_and_arch(*args, **kwargs)


def _install_hook_in_programs() -> None:
    program = Path(sys.argv[0] if sys.argv else "")
    if program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli":
        _install_hook()


def _install_hook() -> None:
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_error


def show_error(kind: Type[BaseException], error: BaseException, frames: Optional[TracebackType]) -> None:
    """Print a user error as one line, and other errors as Python does.

    Raises SystemExit after the line, because Python would end with status 1.
    """
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_OUTPUT)  # flushing the rest at exit would fail again
        raise SystemExit(UNREAD)
    if isinstance(error, KeyboardInterrupt):
        print(f"{program_name()}: interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED)
    message = _message_of(error)
    if message is None:
        sys.__excepthook__(kind, error, frames)
        return
    # Among several processes torch's hook calls this one with a buffer as sys.stderr, which an exit would lose.
    stream = sys.__stderr__ if torch.distributed.is_initialized() else sys.stderr
    print("error:", message, file=stream, flush=True)
    raise SystemExit(USER_ERROR)


def program_name() -> str:
    """Name of the program of fairseq that runs, also under ``python -m fairseq_cli.train``."""
    return f"fairseq-{Path(sys.argv[0]).stem.replace('_', '-').removeprefix('fairseq-')}"


def _message_of(error: BaseException) -> Optional[str]:
    """The message of a user error, or None for a fault of the program."""
    if isinstance(error, OSError):
        is_of_fairseq = error.errno is None and error.args  # for a missing file
        return message_of(error) if error.filename is not None or is_of_fairseq else None
    if isinstance(error, UserError):
        return message_of(error)
    if isinstance(error, InterpolationKeyError):  # omegaconf's, of a task's flag that a model of fairseq reads
        flag = re.search(r"'task\.(\w+)'", str(error))
        return flag and (
            f"the model reads {flag_of(flag.group(1))}, which the task does not have: train fairseq's language models "
            "with --task language_modeling"
        )
    if isinstance(error, MissingMandatoryValue):
        return f"{flag_of(str(error.key))} is missing: give it"
    if isinstance(error, ConfigCompositionException):  # hydra's, such as of --source-lang, which tokenizers read
        needed = re.search(r"override (\w+)\.(\w+)=null", str(error))
        return needed and f"{flag_of(needed.group(1))} needs {flag_of(needed.group(2))}: give it"
    return str(error) if _asks_for_flag(error) else None


def _asks_for_flag(error: BaseException) -> bool:
    """Whether fairseq raised the error because of a flag, which it names or asserts, or of a package to install."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not files or not error.args:
        return False
    is_of_program = files[-1].parent.name == "fairseq_cli"
    if is_of_program and isinstance(error, AssertionError):
        return True
    is_of_fairseq = is_of_program or Path(fairseq.__file__).parent in files[-1].parents
    return is_of_fairseq and re.search(r"(?<![\w-])--[a-z]|[Pp]lease install", str(error)) is not None


def _make_batches_until_exit(run: Callable[..., None], consumer: Any) -> None:
    _consumers.add(consumer)
    consumer._source = _until_exit(consumer._source)
    run(consumer)


def _until_exit(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        if _ending.is_set():
            return
        yield batch


def _stop_threads() -> None:
    """Let threads finish their current batch and make no other."""
    _ending.set()
    deadline = time.monotonic() + LONGEST_BATCH
    for consumer in list(_consumers):
        while consumer.is_alive() and time.monotonic() < deadline:
            with suppress(queue.Empty):  # a thread waits while its queue is full
                while True:
                    consumer._queue.get_nowait()
            consumer.join(0.01)


def patch_unread_log() -> None:
    """End a run whose log nobody reads any more, with status 141.

    Problem: ``logging`` ignores lines that it cannot write. After ``fairseq-train ... | tee train.log`` has lost
        ``tee``, or the command that kept the log was killed, fairseq trains on for days without a log.
    Patch: wrap ``load_checkpoint`` to end the process on a broken pipe from then on.
    Needed while ``test_it_ends_as_other_programs_do_and_fairseq_alone_trains_on_without_a_log`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _load_and_watch_log)


def _load_and_watch_log(load_checkpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    wrap(logging.StreamHandler, "handleError", _end_on_broken_pipe)
    return load_checkpoint(*args, **kwargs)


def _end_on_broken_pipe(
    handle_error: Callable[..., None], handler: "logging.StreamHandler[Any]", record: logging.LogRecord
) -> None:
    if isinstance(sys.exception(), BrokenPipeError) and handler.stream in (sys.stdout, sys.stderr):
        os._exit(UNREAD)  # may be any thread; no checkpoint is left half written, because they are renamed
    handle_error(handler, record)


AT_LEAST: Dict[str, float] = {
    **dict.fromkeys(("lr", "clip_norm", "weight_decay", "momentum", "adam_eps", "lr_shrink", "min_lr"), 0),
    **dict.fromkeys(("warmup_updates", "max_epoch", "max_update", "prefix_size", "no_repeat_ngram_size"), 0),
    **dict.fromkeys(("update_freq", "num_shards", "save_interval", "validate_interval", "log_interval"), 1),
    **dict.fromkeys(("batch_size", "batch_size_valid", "max_tokens", "max_tokens_valid"), 1),
    **dict.fromkeys(("required_batch_size_multiple", "beam", "nbest"), 1),
    "seed": 0,
}
"""Smallest values of flags. Below them fairseq trains or decodes in another way than was meant, and does not say so."""


def patch_flag_values() -> None:
    """Refuse values that have no effect, or a wrong one.

    Problem: fairseq accepts ``nan`` as a number, so ``--dropout nan`` drops nothing. ``--clip-norm -1`` clips nothing.
        With ``--prefix-size -1`` a translation is given all of its reference except the last word. ``--fp16`` on a CPU
        ends training by a traceback of torch's.
    Needed while ``test_other_values_are_what_they_were_and_fairseq_alone_takes_all`` passes.
    """
    wrap(options, "parse_args_and_arch", _parse_and_check)


def _parse_and_check(
    parse_args_and_arch: Callable[..., Any], parser: argparse.ArgumentParser, *args: Any, **kwargs: Any
) -> Any:
    """Parse all flags. The command ends with one line and status 2 if a value is impossible."""
    parsed = parse_args_and_arch(parser, *args, **kwargs)
    flags = vars(parsed[0] if isinstance(parsed, tuple) else parsed)
    for name, value in flags.items():
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if remedy := remedy_of_value(name, number):
                exit_with_fault(parser, f"{flag_of(name)} {number}: {remedy}")
    shard = flags.get("shard_id", 0)
    if not 0 <= shard < flags.get("num_shards", 1):
        exit_with_fault(parser, f"--shard-id {shard}: shards count from 0 to --num-shards - 1")
    flattens = not (flags.get("fp16_no_flatten_grads") or flags.get("memory_efficient_fp16"))
    trains = "max_epoch" in flags
    if flags.get("fp16") and flattens and trains and (flags["cpu"] or not torch.cuda.is_available()):
        exit_with_fault(parser, "--fp16 needs a GPU: give --bf16 in its place, or --fp16-no-flatten-grads with it")
    return parsed


def remedy_of_value(name: str, value: Any) -> Optional[str]:
    """Advice for an impossible value of a flag, such as "give at least 0". None if the value is possible."""
    if isinstance(value, float) and math.isnan(value):
        return "give a number"
    if isinstance(value, (float, int)) and value < AT_LEAST.get(name, -math.inf):
        return f"give at least {AT_LEAST[name]}"
    return None


def exit_with_fault(parser: argparse.ArgumentParser, fault: str) -> NoReturn:
    """End a command with one line, without argparse's usage."""
    parser.exit(USER_ERROR, f"{parser.prog}: error: {fault}\n")


def patch_divergence() -> None:
    """End a run that diverged, and say at which update and what to lower.

    Problem: fairseq clips by a norm that is inf or NaN, which makes all gradients NaN. It then runs the batch again
        with hooks that fail where a module returns something other than tensors, and the error is that of the hooks.
        With several processes it says that their gradients are inconsistent. With a loss that is NaN it trains on. With
        a GPU that ``--cpu`` does not use, it multiplies gradients by a norm on that GPU. Each look at a norm waits for
        the GPU, which computes the norm of each weight by itself.
    Patch: wrap ``train_step``, ``valid_step`` and ``clip_grad_norm`` of ``Trainer`` to end a run as soon as a weight, a
        gradient, their norm or a loss is inf or NaN, and replace ``NanDetector``, which searches for them. Replace
        ``multi_tensor_total_norm``, which needs NVIDIA's apex.
    Needed while ``test_fairseq_alone_ends_in_its_hooks`` passes.
    """
    wrap(Trainer, "train_step", _check_loss)
    wrap(Trainer, "valid_step", _check_valid_loss)
    wrap(Trainer, "clip_grad_norm", _check_norm)
    wrap(fairseq_trainer, "NanDetector", _raise_caught_error)
    wrap(utils, "multi_tensor_total_norm", _total_norm)
    utils.multi_tensor_l2norm_available = True


def _check_loss(
    train_step: Callable[..., Optional[Dict[str, Any]]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[Dict[str, Any]]:
    logged = train_step(trainer, *args, **kwargs)
    if logged is not None and not _scales_loss(trainer):
        _require_finite(trainer, logged, of="the loss")
    return logged


def _check_valid_loss(
    valid_step: Callable[..., Dict[str, Any]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Dict[str, Any]:
    """Score a batch of validation. A recurrence may explode over a whole text, and not over a window of training."""
    logged = valid_step(trainer, *args, **kwargs)
    _require_finite(trainer, logged, of="the loss of validation")
    return logged


def _require_finite(trainer: Trainer, logged: Dict[str, Any], *, of: str) -> None:
    if not math.isfinite(logged.get("loss", 0)):
        raise UserError(_describe(trainer, of, update=trainer.get_num_updates()))


def _check_norm(clip_grad_norm: Callable[..., Tensor], trainer: Trainer, clip_norm: float) -> Tensor:
    """Clip gradients, and check their norm.

    Returns:
        the norm on the CPU: fairseq looks at it three more times, and logs it.
    """
    norm = clip_grad_norm(trainer, clip_norm)
    if _scales_loss(trainer) or trainer.is_fsdp:
        return norm
    norm = norm.cpu()
    if not torch.isfinite(norm):
        raise FloatingPointError(_describe(trainer, "the gradients' norm", update=trainer.get_num_updates() + 1))
    return norm


def _total_norm(by_apex: Callable[..., Tensor], gradients: List[Tensor]) -> Tensor:
    """The norm of all gradients together, in float32, by two launches for each device."""
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    return torch.stack([norm.to(norms[0].device) for norm in norms]).norm()


def _raise_caught_error(nan_detector: Callable[..., Any], model: nn.Module) -> NoReturn:
    """End the run with the error that fairseq caught, in place of its search, after crash.pt was saved."""
    raise UserError(str(sys.exception()).partition("\n")[0]) from None


def _scales_loss(trainer: Trainer) -> bool:
    """Whether fairseq lowers the scale of the loss after an overflow, and ends by itself if that does not help."""
    return trainer.cfg.common.fp16 or trainer.cfg.common.amp


def _describe(trainer: Trainer, what: str, *, update: int) -> str:
    clip_norm = trainer.cfg.optimization.clip_norm
    factors = {"--lr": trainer.get_lr(), **({"--clip-norm": clip_norm} if clip_norm > 0 else {})}
    factors.update(getattr(trainer.get_criterion(), "penalty_factors", {}))
    lower = ", ".join(f"{flag} (now {value:g})" for flag, value in factors.items())
    clip = "" if clip_norm > 0 else ", or give --clip-norm"
    return f"the run diverged at update {update}: {what} is inf or NaN; lower {lower}{clip}"
