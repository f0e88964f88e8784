"""Rows of text that grow by a word at a time, with the distribution of the next word of each.

Shapes: M models, R rows, t tokens read so far, V vocabulary.
"""

from typing import Any, Dict, List, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.ensemble import average_log_probs
from fairseq_plugins.evaluation.scored_stream import ScoredStream, carry_state
from fairseq_plugins.modules.recurrent_state import select_rows


class NextWords:
    """The distribution of the word that follows each row, by models as one; all rows begin with the same text.

    Args:
        models: language models on ``device``, the host's included; several are averaged as probabilities.
        num_rows: R.
        device: where the models are.
    """

    def __init__(self, models: Sequence[FairseqLanguageModel], *, num_rows: int, device: str = "cpu"):
        self.models = models
        self.num_rows = num_rows
        self.device = device
        self._tokens = torch.zeros(num_rows, 0, dtype=torch.long, device=device)
        self._stores: List[Dict[str, Dict[str, Any]]] = [{} for _ in models]

    def follow_stream(self, stream: ScoredStream) -> None:
        """Let all rows go on where a stream of the models stands."""
        rows = torch.zeros(self.num_rows, dtype=torch.long, device=self.device)
        for model, store, state in zip(self.models, self._stores, stream.states()):
            if state is not None:
                model.decoder.cache(store, select_rows(state, rows))
        self.append(rows + stream.last)

    @torch.no_grad()
    def follow_tokens(self, tokens: Tensor) -> None:
        """Let all rows begin with tokens (t,), not empty, which models without carried state read one by one."""
        for token in tokens[:-1].tolist():
            self.append(torch.full((self.num_rows,), token, device=self.device))
            for model, store in zip(self.models, self._stores):
                model.decoder(self._tokens, incremental_state=store)
        self.append(torch.full((self.num_rows,), int(tokens[-1]), device=self.device))

    def append(self, words: Tensor) -> None:
        """Add a word (R,) to each row; it is read by the next :meth:`log_probs`."""
        self._tokens = torch.cat([self._tokens, words.to(self.device).unsqueeze(1)], dim=1)

    def select(self, rows: Tensor) -> None:
        """Go on with the given rows, (R',) int64."""
        rows = rows.to(self.device)
        self._tokens = self._tokens.index_select(0, rows)
        self.num_rows = len(rows)
        for model, store in zip(self.models, self._stores):
            model.decoder.reorder_incremental_state_scripting(store, rows)

    @torch.no_grad()
    def log_probs(self) -> Tensor:
        """Log-probabilities of the word after each row, (R, V) float64 on the CPU."""
        found = []
        for model, store in zip(self.models, self._stores):
            output, extra = model.eval().decoder(self._tokens, incremental_state=store)
            if not carry_state([model]):
                output = model.get_normalized_probs((output, extra), log_probs=True)
            found.append(output[:, -1])
        return average_log_probs(found).cpu()
