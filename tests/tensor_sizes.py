"""Sizes of the tensors that a computation makes."""

from typing import Dict, Tuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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
