"""What does not fit in a checkpoint is told, of a training that starts from it and wherever its model is built.

Mends: the host says that architectures must match and leaves the reason to the traceback; what torch's optimisers
refuse names no flag; a model whose weights are not those of its checkpoint ends in torch's list of all of them, without
the file.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as the host's ``Trainer.load_checkpoint`` raises "please ensure that the architectures match".
"""

import textwrap
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``Trainer.load_checkpoint`` and ``load_model_ensemble_and_task``."""
    wrap(Trainer, "load_checkpoint", _check_checkpoint)
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_one_by_one)


@contextmanager
def fitting_weights(path: object) -> Iterator[None]:
    """Say in a line which weights torch refuses in the block; ``path`` names their checkpoint.

    Raises:
        ValueError: in place of torch's ``RuntimeError``.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_of_weights(error):
            raise
        raise ValueError(
            f"{path} does not fit the model that its flags and the data's dictionary make: point to the data of its "
            f"training, or take another checkpoint ({_difference(error)})"
        ) from None


def _load_one_by_one(
    load_models: Callable[..., Tuple[Any, ...]],
    filenames: Sequence[str],
    arg_overrides: Optional[Dict[str, Any]] = None,
    task: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Tuple[Any, ...]:
    """Build the models of checkpoints, each by itself, so that the one that does not fit can be named.

    Raises:
        ValueError: if one does not exist, or its weights are not those of its model.
    """
    models: List[Any] = []
    config = None
    for filename in filenames:
        try:
            with fitting_weights(filename):
                (model,), config, task = load_models([filename], arg_overrides, task, *args, **kwargs)
        except OSError as error:
            if "Model file not found" not in str(error):
                raise
            raise ValueError(f"{filename} does not exist: give a checkpoint of fairseq-train") from error
        models.append(model)
    return models, config, task


def _check_checkpoint(
    load_checkpoint: Callable[..., Optional[Dict[str, Any]]],
    trainer: Trainer,
    filename: str,
    *args: Any,
    **kwargs: Any,
) -> Optional[Dict[str, Any]]:
    """Name what does not fit.

    Raises:
        ValueError: if model, data, criterion or optimiser are not the checkpoint's.
    """
    try:
        return load_checkpoint(trainer, filename, *args, **kwargs)
    except ValueError as error:
        if "parameter group that doesn't match" not in str(error):
            raise
        raise ValueError(
            f"{filename} has the optimizer's state of other parameters: give the flags that it was trained with, such "
            "as --normaliser, or train on from its weights alone with --reset-optimizer"
        ) from None
    except AssertionError as error:
        part, differs, names = str(error).partition(" does not match; please reset the optimizer (--reset-optimizer). ")
        if not differs:
            raise
        raise ValueError(
            f"{filename} is of a training with another --{part.lower()} ({names}): give that one, or train on from its "
            "weights alone with --reset-optimizer, or give another --save-dir"
        ) from None
    except Exception as error:
        cause = error.__context__
        if isinstance(cause, ValueError):
            raise cause from None
        if isinstance(cause, RuntimeError) and _is_of_weights(cause):
            raise ValueError(
                f"{filename} does not fit this model: give the --arch and the flags that it was trained with, or "
                f"another --save-dir ({_difference(cause)})"
            ) from None
        raise


def _is_of_weights(error: RuntimeError) -> bool:
    return "state_dict" in str(error)


def _difference(error: RuntimeError) -> str:
    """The first weight that torch refuses, and why."""
    told = str(error).partition("\n")[2].partition("\n")[0]
    return textwrap.shorten(told, width=300, placeholder=" ...").rstrip(". ")
