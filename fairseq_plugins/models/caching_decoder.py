"""Decoders that keep their state from step to step of a beam search."""

from typing import Any, Dict, Optional

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor

from fairseq_plugins.modules.recurrent_state import select_rows

IncrementalState = Optional[Dict[str, Dict[str, Any]]]
"""The host's store for step-by-step decoding, or None outside of it."""


# the second base is one that the host adds by a decorator, which type checkers do not see
class CachingDecoder(FairseqIncrementalDecoder, FairseqIncrementalState):
    """Keeps a state by name, a row (B, ...) for each hypothesis, in the host's store."""

    def cached(self, incremental_state: IncrementalState) -> Dict[str, Any]:
        """What the step before kept; nothing at the first one."""
        if incremental_state is None:
            return {}
        return self.get_incremental_state(incremental_state, "decoder") or {}

    def cache(self, incremental_state: IncrementalState, state: Dict[str, Any]) -> None:
        """Keep a state for the next step."""
        self.set_incremental_state(incremental_state, "decoder", state)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Take the rows ``new_order`` of what is kept, as beam search asks."""
        self.cache(incremental_state, select_rows(self.cached(incremental_state), new_order))
