"""Counts of the operations that would each be a launch on a GPU, or wait for it, taken on a CPU."""

from collections import Counter
from typing import Any, Callable

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

NO_LAUNCH = {"empty", "empty_like", "new_empty", "empty_strided"}
NO_LAUNCH |= {"detach", "alias", "lift_fresh", "_unsafe_view", "promote_types"}
"""Operations that only allocate or take a view, beside those that torch declares as views."""
WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "item", "masked_select", "unique"}
"""Operations that wait for the device."""


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations: "Counter[str]" = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.partition("::")[2]
        is_view = any(x.alias_info is not None and not x.alias_info.is_write for x in function._schema.returns)
        if not is_view and name not in NO_LAUNCH:
            self.operations[name] += 1
        return function(*args, **(kwargs or {}))


def count_launches(function: Callable[[], Any]) -> "Counter[str]":
    """Names of the operations that a call runs, the backward passes inside it included, and how often."""
    with _Recorder() as recorder:
        function()
    return recorder.operations


def waits(operations: "Counter[str]") -> "Counter[str]":
    """The operations among these that wait for the device."""
    return Counter({name: num for name, num in operations.items() if name in WAITS})


class _WaitRecorder(TorchFunctionMode):
    """Takes a tensor for one of a GPU, unless it comes from ``Tensor.cpu`` or is computed from such tensors alone."""

    READ = {"cpu", "item", "tolist", "__bool__", "__float__", "__int__", "__format__", "nonzero"}

    def __init__(self):
        super().__init__()
        self.waits: "Counter[str]" = Counter()
        self._on_cpu = WeakIdKeyDictionary()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        were_on_cpu = bool(given) and all(x in self._on_cpu for x in given)
        if name in self.READ and not were_on_cpu:
            self.waits[name] += 1
        result = function(*args, **(kwargs or {}))
        if were_on_cpu or name == "cpu":
            self._on_cpu.update({x: True for x in tree_leaves(result) if isinstance(x, Tensor)})
        return result


def count_waits(function: Callable[[], Any]) -> "Counter[str]":
    """Names of the methods by which a call reads values of tensors of a GPU, and how often."""
    with _WaitRecorder() as recorder:
        function()
    return recorder.waits
