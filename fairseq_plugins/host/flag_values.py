"""Values that a flag of the host cannot have are refused.

Mends: the host takes ``nan`` for a number, so that ``--dropout nan`` drops nothing, and ``--clip-norm -1`` clips
nothing; ``--update-freq 0``, ``--seed -1``, ``--adam-betas nan``, a training with ``--fp16`` on a CPU, and names of
files with ``${`` end in tracebacks.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_takes_them`` passes.
"""

import argparse
import ast
import math
import re
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import torch
from fairseq import options

from fairseq_plugins.host.wrapping import wrap

AT_LEAST: Dict[str, float] = {
    **dict.fromkeys(("lr", "clip_norm", "weight_decay", "momentum", "adam_eps", "lr_shrink", "min_lr"), 0),
    **dict.fromkeys(("seed", "num_workers", "warmup_updates", "max_epoch", "max_update", "save_interval_updates"), 0),
    **dict.fromkeys(("update_freq", "log_interval", "distributed_world_size", "beam", "nbest"), 1),
    **dict.fromkeys(("required_batch_size_multiple",), 1),
    **dict.fromkeys(("patience", "keep_last_epochs", "keep_best_checkpoints", "keep_interval_updates"), -1),
}
"""The smallest values; -1 is the host's for none."""
BELOW: Dict[str, float] = {"seed": 2**32, "momentum": 1}
"""Above all values."""


def mend() -> None:
    """Wrap the host's ``parse_args_and_arch``, with which all of its commands read their flags."""
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
    """Read ``--adam-betas``, such as ``"(0.9, 0.999)"``, as the host does.

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
