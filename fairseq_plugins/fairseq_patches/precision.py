"""Patches of optimizers: training in 16 bits works and resumes exactly, and so do sparse gradients and averages."""

import logging
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models.ema.ema import EMA
from fairseq.optim import AMPOptimizer, FairseqOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
from fairseq.trainer import Trainer
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.optim import SGD, Adagrad

from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.options import UserError

logger = logging.getLogger(__name__)

SixteenBitOptimizer = Union[FP16Optimizer, MemoryEfficientFP16Optimizer]

_SCALER, _MASTERS, _COUNTS = "grad_scaler", "master_weights", "loss_scale_counts"
"""Keys that are added to the state of the optimizer."""
_COUNTED = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")
"""Attributes of fairseq's loss scaler that a resumed run needs."""


def patch_amp() -> None:
    """Make ``--amp`` work with gradient clipping, and resume exactly.

    Problem: fairseq unscales the gradients of one object and steps its wrapper, so the scaler unscales them again. It
        does not save the scale of the loss, and loading a state bypasses the wrapped optimizer. With
        ``--amp-scale-window`` it uses ``--amp-init-scale`` as the window. (The flag of the initial scale is
        ``--fp16-init-scale``.)
    Needed while ``AMPOptimizer.step`` passes ``fp32_optimizer`` to ``scaler.step``, the class has no ``state_dict``, or
        its ``growth_interval`` is not ``amp_scale_window``. ``tests/fairseq_patches/test_precision.py`` tests each.
    """
    wrap(AMPOptimizer, "__init__", _set_growth_interval)
    wrap(AMPOptimizer, "step", _step_unscaled_optimizer)
    wrap(AMPOptimizer, "state_dict", _save_scale)
    wrap(AMPOptimizer, "load_state_dict", _load_scale)


def _set_growth_interval(
    initialise: Callable[..., None], optimizer: AMPOptimizer, cfg: DictConfig, *args: Any, **kwargs: Any
) -> None:
    initialise(optimizer, cfg, *args, **kwargs)
    if cfg.common.amp_scale_window is not None:
        optimizer.scaler.set_growth_interval(cfg.common.amp_scale_window)


def _step_unscaled_optimizer(step: Callable[..., None], optimizer: AMPOptimizer) -> None:
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()


def _save_scale(state_dict: Callable[..., Dict[str, Any]], optimizer: AMPOptimizer) -> Dict[str, Any]:
    scaler = optimizer.scaler.state_dict()
    saved = state_dict(optimizer)
    return {**saved, _SCALER: scaler} if scaler else saved  # it is empty on a CPU


def _load_scale(
    load_state_dict: Callable[..., None],
    optimizer: AMPOptimizer,
    state_dict: Dict[str, Any],
    optimizer_overrides: Optional[Dict[str, Any]] = None,
) -> None:
    saved = dict(state_dict)
    scaler = saved.pop(_SCALER, None)
    if scaler:
        optimizer.scaler.load_state_dict(scaler)
    optimizer.fp32_optimizer.load_state_dict(saved, optimizer_overrides)


def patch_bf16() -> None:
    """Train with ``--bf16`` on a GPU or CPU.

    Problem: fairseq assumes a TPU, which needs torch_xla.
    Patch: wrap ``call_main`` to turn the TPU off where torch_xla is missing.
    Needed while ``test_bf16_trains_without_a_tpu_for_which_fairseq_alone_takes_it`` passes.
    """
    wrap(distributed_utils, "call_main", _turn_tpu_off)


def _turn_tpu_off(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    if cfg.common.bf16 and find_spec("torch_xla") is None:
        cfg.common.tpu = cfg.distributed_training.tpu = False  # fairseq has copied the first to the second by now
        logger.info("torch_xla is not installed: --bf16 trains without a TPU")
    return call_main(cfg, *args, **kwargs)


def patch_master_weights() -> None:
    """Resume ``--fp16`` and ``--bf16`` with the same 32-bit weights.

    Problem: fairseq updates 32-bit weights, saves them in 16 bits, and resumes from the rounded weights. It does not
        save when the scale of the loss last changed.
    Patch: wrap ``state_dict`` and ``load_state_dict`` of fairseq's optimizers in 16 bits to keep both.
    Needed while ``test_fairseq_alone_forgets_the_weights_in_32_bits_and_its_state_is_loaded`` passes.
    """
    for optimizer in (FP16Optimizer, MemoryEfficientFP16Optimizer):
        wrap(optimizer, "state_dict", _save_master_weights)
        wrap(optimizer, "load_state_dict", _load_master_weights)


def _master_weights(optimizer: SixteenBitOptimizer) -> List[Tensor]:
    """The 32-bit weights, one tensor per parameter or one flat tensor per device; none if the model has them."""
    weights = getattr(optimizer, "fp32_params", [])
    return [weight.data for weight in (weights.values() if isinstance(weights, dict) else weights)]


def _save_master_weights(state_dict: Callable[..., Dict[str, Any]], optimizer: SixteenBitOptimizer) -> Dict[str, Any]:
    saved = {**state_dict(optimizer), _MASTERS: _master_weights(optimizer)}
    scaler: Optional[DynamicLossScaler] = optimizer.scaler
    return saved if scaler is None else {**saved, _COUNTS: {name: getattr(scaler, name) for name in _COUNTED}}


def _load_master_weights(
    load_state_dict: Callable[..., None],
    optimizer: SixteenBitOptimizer,
    state_dict: Dict[str, Any],
    optimizer_overrides: Optional[Dict[str, Any]] = None,
) -> None:
    saved = dict(state_dict)
    masters, counts = saved.pop(_MASTERS, []), saved.pop(_COUNTS, {})
    load_state_dict(optimizer, saved, optimizer_overrides)
    for weight, master in zip(_master_weights(optimizer), masters):  # a state of another precision has none
        weight.copy_(master)
    if optimizer.scaler is not None:
        vars(optimizer.scaler).update(counts)


TAKE_SPARSE = (SGD, Adagrad)
"""Optimizers of torch that do not change rows without a gradient."""


def patch_sparse_gradients() -> None:
    """Scale and clip sparse gradients, and refuse optimizers that cannot use them.

    Problem: fairseq scales a copy of a sparse gradient, and computes its norm by a function that torch lacks. An
        optimizer that cannot use it fails without naming cause and remedy, or momentum lets the gradient grow with
        every update.
    Needed while ``test_fairseq_alone_neither_scales_nor_clips_sparse_gradients`` passes.
    """
    for name in ("multiply_grads", "clip_grad_norm"):
        wrap(FairseqOptimizer, name, _change_rows)
    if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
        torch.sparse.check_sparse_tensor_invariants.disable()  # the default, without torch's warning


def _change_rows(change: Callable[..., Any], optimizer: FairseqOptimizer, *args: Any, **kwargs: Any) -> Any:
    """Change dense gradients and the rows of sparse ones, which are coalesced first."""
    params = list(optimizer.params)
    sparse = [param for param in params if param.grad is not None and param.grad.is_sparse]
    if not sparse:
        return change(optimizer, *args, **kwargs)
    _check_takes_sparse(optimizer)
    for param in sparse:
        param.grad = param.grad.coalesce()
    return change(SimpleNamespace(params=[_with_rows(param) for param in params]), *args, **kwargs)


def _with_rows(param: Tensor) -> Any:
    """A stand-in for a parameter. Its gradient is the rows of the sparse gradient: same norm, same memory."""
    if param.grad is None or not param.grad.is_sparse:
        return param
    return SimpleNamespace(grad=param.grad.values())


def _check_takes_sparse(optimizer: FairseqOptimizer) -> None:
    """Refuse optimizers that would fail, or would change all rows."""
    settings = [group.get(name, 0) for group in optimizer.param_groups for name in ("momentum", "weight_decay")]
    if type(optimizer.optimizer) not in TAKE_SPARSE or any(settings):
        name = type(optimizer.optimizer).__name__
        raise UserError(
            f"--sparse-gradients on: {name} with these flags changes all rows; give off, or --optimizer sgd, "
            "adagrad or damped_adagrad with --momentum 0 and --weight-decay 0"
        )


def patch_ema() -> None:
    """Average each weight of ``--store-ema`` once per update.

    Problem: fairseq iterates over the names of weights, so the average of a matrix with two names, such as a tied
        embedding, decays twice. It also ignores the column norm constraint of ``--column-norm``. From a checkpoint
        without an average, as with ``--finetune-from-model``, it starts none, because it deletes the weights first.
    Needed while ``test_fairseq_alone_decays_a_shared_matrix_twice`` passes.
    """
    wrap(EMA, "_step_internal", _step_each_weight_once)
    wrap(Trainer, "load_checkpoint", _load_or_start_average)


def _load_or_start_average(
    load_checkpoint: Callable[..., Optional[Dict[str, Any]]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[Dict[str, Any]]:
    """Load a checkpoint and its average. If it has none, an average starts from its weights."""
    flags = trainer.cfg.ema
    averages, flags.store_ema = flags.store_ema, False
    try:
        state = load_checkpoint(trainer, *args, **kwargs)
    finally:
        flags.store_ema = averages
    if averages and state is not None:
        average: Any = trainer.ema
        average.restore(state.get("ema", trainer.get_model().state_dict()))
        if flags.ema_fp32:
            average.build_fp32_params(state.get("ema_fp32_params"))
    return state


def _step_each_weight_once(
    step: Callable[..., None], ema: EMA, new_model: nn.Module, *args: Any, **kwargs: Any
) -> None:
    weights = new_model.state_dict()
    first_names = _first_names(weights)
    for name, first in first_names.items():
        if first in ema.fp32_params:
            ema.fp32_params[name] = ema.fp32_params[first]
    once = {name: weight for name, weight in weights.items() if first_names.get(name, name) == name}
    step(ema, SimpleNamespace(state_dict=lambda: once), *args, **kwargs)
    for weight, mean in zip(new_model.parameters(), ema.get_model().parameters()):
        if (length := getattr(weight, "column_norm", None)) is not None:
            mean.data.copy_(length * torch.nn.functional.normalize(mean.data.float(), dim=0))


def _first_names(weights: Mapping[str, Any]) -> Dict[str, str]:
    """The first name of each non-empty tensor, by its names."""
    names: Dict[Tuple[Any, ...], str] = {}
    return {
        name: names.setdefault((weight.data_ptr(), weight.shape, weight.stride(), weight.device, weight.dtype), name)
        for name, weight in weights.items()
        if isinstance(weight, Tensor) and weight.numel() > 0
    }
