"""Patches of fairseq, where it is wrong or does not work with current versions of torch and numpy.

The docstring of each ``patch_...`` names the problem, the patch if its code does not tell, and the test that shows that
it is still needed. The patches were written for fairseq 0.12.2 and ve-fairseq 0.12.3. ``README.md`` says what fails
without each. All commands of fairseq except fairseq-generate, -preprocess and -score run by ``call_main``. Commands
that load models read their flags by ``parse_args_and_arch``. Only fairseq-train calls ``load_checkpoint``, at its
start.
"""

import functools
import os
from types import ModuleType
from typing import Any, Callable, Iterator, Union

from fairseq_plugins.options import UserError

SWITCH = "FAIRSEQ_PLUGINS_PATCHES"
"""Environment variable. With the value "minimal" only indispensable patches are applied."""


def apply_patches() -> None:
    """Apply all patches, or those that :data:`SWITCH` selects. Calling it again has no effect.

    Raises UserError if :data:`SWITCH` has another value.
    """
    # imported here, because these modules import wrap
    from fairseq_plugins.fairseq_patches import (
        checkpoints,
        data,
        distributed,
        errors,
        flags,
        generation,
        log,
        precision,
        resume,
        saving,
    )

    selected = os.environ.get(SWITCH, "all")
    if selected not in ("all", "minimal"):
        raise UserError(f"{SWITCH}={selected} in the environment: give all or minimal")
    checkpoints.patch_checkpoint_classes()
    checkpoints.patch_checkpoint_flags()
    data.patch_numpy()
    precision.patch_bf16()
    precision.patch_sparse_gradients()
    if selected == "minimal":
        return
    log.patch_log()
    log.patch_remaining_time()
    checkpoints.patch_damaged_checkpoints()
    checkpoints.patch_checkpoint_fit()
    data.patch_changed_data()
    data.patch_path_lists()
    data.patch_batch_by_size()
    data.patch_several_parts()
    data.patch_long_sentences()
    data.patch_background_batches()
    precision.patch_ema()
    precision.patch_amp()
    precision.patch_master_weights()
    distributed.patch_out_of_memory()
    distributed.patch_torchrun()
    generation.patch_translation_direction()
    generation.patch_replace_unk()
    generation.patch_generation()
    saving.patch_best_checkpoint()
    saving.patch_whole_checkpoints()
    resume.patch_missing_checkpoint()
    resume.patch_resumed_batches()
    resume.patch_resumed_clock()
    resume.patch_resumed_validation()  # after patch_best_checkpoint, which may forget past validations
    resume.patch_finished_training()
    saving.patch_save_dir_lock()  # wraps load_checkpoint outside all that read or write the directory
    flags.patch_wrong_flags()
    errors.patch_one_line_errors()
    errors.patch_interrupt()
    errors.patch_unread_log()
    errors.patch_divergence()


def wrap(owner: Union[ModuleType, type], name: str, wrapper: Callable[..., Any]) -> None:
    """Replace the function or method ``name`` of ``owner`` by ``wrapper(function, *args, **kwargs)``.

    Wrapping twice with the same wrapper has no effect. Static methods stay static.
    """
    function = getattr(owner, name)
    if wrapper in _wrappers(function):
        return

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(function, *args, **kwargs)

    vars(wrapped)["wrapper"] = wrapper
    is_static = isinstance(vars(owner).get(name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)


def _wrappers(function: Any) -> Iterator[Callable[..., Any]]:
    while hasattr(function, "wrapper"):
        yield function.wrapper
        function = function.__wrapped__
