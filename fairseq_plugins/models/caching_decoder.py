"""Decoders that keep tensors from step to step of a beam search."""

from typing import Dict, List, Optional

from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor

from fairseq_plugins.modules.recurrent_stack import StackState
from fairseq_plugins.modules.recurrent_state import select_rows

IncrementalState = Optional[Dict[str, Dict[str, Optional[Tensor]]]]
"""The host's store for step-by-step decoding, or None outside of it."""


class CachingDecoder(FairseqIncrementalDecoder):
    """Keeps named tensors, a row (B, ...) for each hypothesis, in the host's store."""

    def cached(self, incremental_state: IncrementalState) -> Dict[str, Tensor]:
        """What the step before kept; nothing at the first one."""
        if incremental_state is None:
            return {}
        return self.get_incremental_state(incremental_state, "decoder") or {}

    def cache(self, incremental_state: IncrementalState, tensors: Dict[str, Tensor]) -> None:
        """Keep tensors for the next step."""
        self.set_incremental_state(incremental_state, "decoder", tensors)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Take the rows ``new_order`` of what is kept, as beam search asks."""
        cached = self.cached(incremental_state)
        if cached:
            self.cache(incremental_state, select_rows(cached, new_order))


def named_parts(state: StackState) -> Dict[str, Tensor]:
    """The tensors of a stack's state by name."""
    return {f"layer{n}.{i}": part for n, layer in enumerate(state) for i, part in enumerate(layer)}


def state_of_parts(tensors: Dict[str, Tensor]) -> StackState:
    """Inverse of :func:`named_parts`; other tensors are passed over."""
    layers: Dict[str, List[Tensor]] = {}
    for name, part in tensors.items():
        layer, separator, _ = name.partition(".")
        if separator:
            layers.setdefault(layer, []).append(part)
    return [tuple(parts) for parts in layers.values()]
