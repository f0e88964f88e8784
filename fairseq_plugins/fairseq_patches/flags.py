"""Patches of command lines: a wrong flag or value ends a command with one line that says what to give."""

import argparse
import math
import re
from functools import partial
from typing import Any, Callable, Dict, NoReturn, Optional

import torch
from fairseq import options

from fairseq_plugins.console import USER_ERROR, did_you_mean
from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.options import flag_of

AT_LEAST: Dict[str, float] = {
    **dict.fromkeys(("lr", "clip_norm", "weight_decay", "momentum", "adam_eps", "lr_shrink", "min_lr"), 0),
    **dict.fromkeys(("warmup_updates", "max_epoch", "max_update", "prefix_size", "no_repeat_ngram_size"), 0),
    **dict.fromkeys(("update_freq", "num_shards", "save_interval", "validate_interval", "log_interval"), 1),
    **dict.fromkeys(("batch_size", "batch_size_valid", "max_tokens", "max_tokens_valid"), 1),
    **dict.fromkeys(("required_batch_size_multiple", "beam", "nbest"), 1),
    "seed": 0,
}
"""Smallest values of flags. Below them fairseq trains or decodes in another way than was meant, and does not say so."""


def patch_wrong_flags() -> None:
    """Name the nearest flags after a mistyped one, and refuse values that have no effect, or a wrong one.

    Problem: argparse prints 165 lines of usage above its message, and all architectures after a mistyped one. fairseq
        accepts ``nan`` as a number, so ``--dropout nan`` drops nothing. ``--clip-norm -1`` clips nothing. With
        ``--prefix-size -1`` a translation is given all of its reference except the last word. ``--fp16`` on a CPU,
        ``fairseq-train`` without ``--arch``, ``fairseq-validate`` without ``--task`` and a ``--context-window`` that
        leaves no token end in a traceback.
    Needed while ``test_fairseq_alone_prints_all_flags`` and
    ``test_other_values_are_what_they_were_and_fairseq_alone_takes_all`` pass.
    """
    wrap(options, "parse_args_and_arch", _parse_and_check)


def _parse_and_check(
    parse_args_and_arch: Callable[..., Any], parser: argparse.ArgumentParser, *args: Any, **kwargs: Any
) -> Any:
    """Parse all flags. The command ends with one line and status 2 if a flag is unknown or a value impossible."""
    vars(parser)["error"] = partial(_end_with_nearest, parser)
    for action in parser._actions:
        if action.dest in ("arch", "task") and action.default is None:  # the task is that of fairseq-validate
            action.required = True
    parsed = parse_args_and_arch(parser, *args, **kwargs)
    flags = vars(parsed[0] if isinstance(parsed, tuple) else parsed)
    for name, value in flags.items():
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if remedy := remedy_of_value(name, number):
                parser.error(f"{flag_of(name)} {number}: {remedy}")
    shard = flags.get("shard_id", 0)
    if not 0 <= shard < flags.get("num_shards", 1):
        parser.error(f"--shard-id {shard}: shards count from 0 to --num-shards - 1")
    context, window = flags.get("context_window"), flags.get("tokens_per_sample")
    if context and window and context >= window:
        parser.error(f"--context-window {context}: give less than --tokens-per-sample {window}")
    flattens = not (flags.get("fp16_no_flatten_grads") or flags.get("memory_efficient_fp16"))
    trains = "max_epoch" in flags
    if flags.get("fp16") and flattens and trains and (flags["cpu"] or not torch.cuda.is_available()):
        parser.error("--fp16 needs a GPU: give --bf16 in its place, or --fp16-no-flatten-grads with it")
    return parsed


def _end_with_nearest(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """End with the message of argparse, and what may have been meant."""
    if unknown := re.match(r"unrecognized arguments:.*? (--[^\s=]+)", message):
        message += did_you_mean(unknown.group(1), [name for name in parser._option_string_actions if name[:2] == "--"])
    elif found := re.fullmatch(r"(.*invalid choice: '(.+)') \(choose from (.+)\)", message):
        nearest = did_you_mean(found.group(2), re.findall(r"[^\s',]+", found.group(3)))
        message = found.group(1) + nearest if nearest else message
    parser.exit(USER_ERROR, f"{parser.prog}: error: {message}\n")


def remedy_of_value(name: str, value: Any) -> Optional[str]:
    """Advice for an impossible value of a flag, such as "give at least 0". None if the value is possible."""
    if isinstance(value, float) and math.isnan(value):
        return "give a number"
    if isinstance(value, (float, int)) and value < AT_LEAST.get(name, -math.inf):
        return f"give at least {AT_LEAST[name]}"
    return None
