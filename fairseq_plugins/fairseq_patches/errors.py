"""Patches of how commands end: after a user error, an interrupt or a divergence, and without a reader of the log."""

import logging
import math
import multiprocessing
import os
import re
import shlex
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Type

import fairseq
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq import trainer as fairseq_trainer
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from hydra.errors import ConfigCompositionException
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue
from torch import Tensor, nn

from fairseq_plugins.console import INTERRUPTED, UNREAD, USER_ERROR, discard_output, message_of
from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.files import LAST, newest_checkpoint
from fairseq_plugins.options import UserError, flag_of
from fairseq_plugins.processes import COMMAND_VARIABLE


def patch_one_line_errors() -> None:
    """End fairseq's commands with one line and exit status 2 after a user error.

    Problem: fairseq lets Python print a traceback above the line, with status 1.
    Patch: make :func:`show_error` the hook for errors in fairseq's programs. User errors are ``UserError``, files that
        cannot be read or written or are not UTF-8, and flags and packages that fairseq asks for. All other errors keep
        their traceback, as do all errors in processes that fairseq starts, one for each GPU. If nobody reads the output
        any more, as after ``| head -1``, a command ends quietly.
    Needed while ``test_other_errors_keep_their_traceback_and_those_of_fairseq_alone_all`` passes.
    """
    wrap(options, "parse_args_and_arch", _parse_with_one_line_errors)
    _install_hook()  # for errors of --user-dir, which is read before other flags


def _parse_with_one_line_errors(parse_args_and_arch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _install_hook()
    return parse_args_and_arch(*args, **kwargs)


def _install_hook() -> None:
    """Install the hook in a program of fairseq that has none yet. Other programs keep their tracebacks."""
    program = Path(sys.argv[0] if sys.argv else "")
    is_of_fairseq = program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"
    if is_of_fairseq and sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_error


def show_error(kind: Type[BaseException], error: BaseException, frames: Optional[TracebackType]) -> None:
    """Print a user error as one line, and other errors as Python does.

    Raises SystemExit after the line, because Python would end with status 1.
    """
    if isinstance(error, BrokenPipeError):
        discard_output()
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
    if isinstance(error, UnicodeDecodeError):
        return f"the text is not UTF-8 ({error}): convert it"
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
    """Whether fairseq raised the error because of flags, which it names or asserts, or of a package to install."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not files or not error.args:
        return False
    is_of_program = files[-1].parent.name == "fairseq_cli"
    if is_of_program and isinstance(error, AssertionError):
        return True
    is_of_fairseq = is_of_program or Path(fairseq.__file__).parent in files[-1].parents
    return (
        is_of_fairseq
        and re.search(r"(?<![\w-])--[a-z]|[Pp]lease (install|adjust)|is required!", str(error)) is not None
    )


def patch_interrupt() -> None:
    """End by Ctrl-C in two lines: what is saved, and the command that resumes.

    Problem: Python prints the traceback of whatever was running, and processes that fairseq started may train on.
    Needed while ``call_main`` of fairseq handles no ``KeyboardInterrupt``.
    """
    wrap(distributed_utils, "call_main", _run_until_interrupted)


def _run_until_interrupted(call_main: Callable[..., Any], cfg: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return call_main(cfg, *args, **kwargs)
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            child.terminate()
        if not cfg.distributed_training.distributed_rank:  # None in a process that has started one for each GPU
            print(*_interruption(cfg), sep="\n", file=sys.stderr, flush=True)
        raise SystemExit(INTERRUPTED) from None


def _interruption(cfg: Any) -> Iterator[str]:
    program = program_name()
    if not program.endswith("train") or cfg.checkpoint.no_save:
        yield f"{program}: interrupted"
        return
    last = Path(cfg.checkpoint.save_dir, LAST)
    saved = last if last.is_file() else newest_checkpoint(last.parent)
    typed = os.environ.get(COMMAND_VARIABLE) or shlex.join([program, *sys.argv[1:]])
    if saved is not None:
        num_updates = torch.load(saved, map_location="cpu", mmap=True)["optimizer_history"][-1]["num_updates"]
        yield f"{program}: interrupted; {saved} is from update {num_updates:,}"
        yield f"resume: {shlex.join(_without_start(shlex.split(typed)))}"
    else:
        yield f"{program}: interrupted before the first checkpoint (more of them: --save-interval-updates N)"
        yield f"start again: {typed}"


def _without_start(words: Sequence[str]) -> List[str]:
    """A command line without ``--restore-file`` and ``--reset-...``, which would start anew."""
    return [
        word
        for before, word in zip(["", *words], words)
        if "--restore-file" not in (before, word.partition("=")[0]) and not word.startswith("--reset-")
    ]


def patch_unread_log() -> None:
    """End a run whose log nobody reads any more, with status 141.

    Problem: ``logging`` ignores lines that it cannot write. After ``fairseq-train ... | tee train.log`` has lost
        ``tee``, or the command that kept the log was killed, fairseq trains on for days without a log.
    Patch: wrap ``load_checkpoint`` to end the process on a broken pipe from then on.
    Needed while ``test_a_training_ends_as_other_programs_do_and_fairseq_alone_trains_on_without_a_log`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _load_and_watch_log)


def _load_and_watch_log(load_checkpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    wrap(logging.StreamHandler, "handleError", _end_on_broken_pipe)
    return load_checkpoint(*args, **kwargs)


def _end_on_broken_pipe(
    handle_error: Callable[..., None], handler: "logging.StreamHandler[Any]", record: logging.LogRecord
) -> None:
    if isinstance(sys.exception(), BrokenPipeError) and handler.stream in (sys.stdout, sys.stderr):
        os._exit(UNREAD)  # may be any thread; whole checkpoints are renamed, so none is left half written
    handle_error(handler, record)


def patch_divergence() -> None:
    """End a run that diverged, and say at which update and what to lower.

    Problem: fairseq clips by a norm that is inf or NaN, which makes all gradients NaN. It then runs the batch again
        with hooks that fail where a module returns something other than tensors, and reports the error of the hooks.
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
