"""The operations of a computation, recorded on a CPU: kernel launches and waits that a GPU would have, tensor sizes."""

from collections import Counter
from typing import Any, Callable, Dict, Tuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


class TensorSizes(TorchDispatchMode):
    """``with TensorSizes() as sizes``: records what the operations inside return, also in a backward pass.

    Stored elements count: an expanded view is as small as the tensor that it shows.

    Attributes:
        largest: elements of the largest tensor.
        largest_bytes: bytes of the one that takes most of them.
        peak: elements of all tensors that were alive at once.
    """

    def __init__(self):
        super().__init__()
        self.largest = self.largest_bytes = self.peak = 0
        self._alive: Dict[int, Tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                numel = storage.nbytes() // x.element_size()
                self.largest = max(self.largest, numel)
                self.largest_bytes = max(self.largest_bytes, storage.nbytes())
                self._alive[storage._cdata] = (StorageWeakRef(storage), numel)
        self._alive = {key: item for key, item in self._alive.items() if not item[0].expired()}
        self.peak = max(self.peak, sum(numel for _, numel in self._alive.values()))
        return result
