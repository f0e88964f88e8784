"""Perplexity of language models."""

import sys
from pathlib import Path
from typing import Dict

from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel

from fairseq_plugins.data.corpus import load_dictionary, load_token_stream
from fairseq_plugins.evaluation.checkpoints import stateful_language_model
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity
from fairseq_plugins.evaluation.text.raw_text import is_of_characters
from fairseq_plugins.reports.metrics.metric import Figures, Metric
from fairseq_plugins.reports.tables import Cell
from fairseq_plugins.reports.trained_run import TrainedRun


class PerplexityMetric(Metric):
    """Perplexity of language models: one row, carried state, as ``evaluate_lm``; of characters in bits, too."""

    def __init__(self, *, device: str = "cpu") -> None:
        self.device = device

    def check(self, run: TrainedRun) -> None:
        self._model(run)

    def _model(self, run: TrainedRun) -> FairseqLanguageModel:
        if run.model is None:
            raise ValueError(
                f"{run.checkpoint} does not exist: fetch it, for a perplexity is measured anew, by the model"
            )
        if isinstance(run.model, FairseqEncoderDecoderModel):
            raise ValueError(f"{run.checkpoint} holds an encoder-decoder: compare it by --metric bleu or rouge")
        return stateful_language_model(run.model, run.checkpoint)

    def measure(self, run: TrainedRun) -> Figures:
        model = self._model(run).to(self.device)
        dictionary = load_dictionary(run.data)
        of_characters = is_of_characters(Path(run.data))
        figures: Figures = {}
        for split in ("valid", "test"):
            result = evaluate_perplexity(
                [model],
                load_token_stream(run.data, split, dictionary),
                unknown=dictionary.unk(),
                device=self.device,
                show_progress=sys.stderr.isatty(),
            )
            figures[f"{split}_perplexity"] = result.perplexity
            if of_characters:
                figures[f"{split}_bits_per_character"] = result.bits_per_token
        return figures

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        cells = {"test perplexity": Cell(figures["test_perplexity"])}
        if "test_bits_per_character" in figures:
            cells["test bits per character"] = Cell(figures["test_bits_per_character"], ".3f")
        return cells
