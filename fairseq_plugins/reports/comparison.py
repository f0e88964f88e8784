"""Comparison of trained models: metrics of each run, means over seeds, significance."""

import shlex
import statistics
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask
from scipy.stats import ttest_ind

from fairseq_plugins.console import progress
from fairseq_plugins.data.text import load_dictionary, load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models, trained_task
from fairseq_plugins.evaluation.decoding import GENERATED_FILE, check_decoded_by, decoding_record
from fairseq_plugins.evaluation.raw_text import compared_case, read_record
from fairseq_plugins.evaluation.scoring import evaluate_perplexity
from fairseq_plugins.evaluation.translation_scores import (
    Score,
    TextFormat,
    Translation,
    detokenize,
    headline_words,
    read_translation,
    score,
)
from fairseq_plugins.files import read_lines
from fairseq_plugins.metrics.bootstrap import Difference
from fairseq_plugins.metrics.corpus import (
    CORPUS_METRICS,
    SACREBLEU_METRICS,
    TITLES,
    CorpusMetric,
    LetterCase,
    RougeMean,
    bleu_of_text,
    bootstrap_scores,
)
from fairseq_plugins.metrics.rouge import DEFAULT_SETTINGS, RougeScore, RougeSettings, check_tokens, score_corpus
from fairseq_plugins.metrics.rouge import METRICS as ROUGE_METRICS
from fairseq_plugins.options import UserError
from fairseq_plugins.reports.learning_curves import Figures, best_valid_cells, cost_cells, draw_learning_curves
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import Cell, differences, differences_as_markdown, table_of_runs
from fairseq_plugins.reports.training_log import TrainedRun, check_seeds, read_run


class Metric(ABC):
    """A metric by which runs are compared."""

    @abstractmethod
    def check(self, run: TrainedRun) -> None:
        """Check that a run can be measured. All runs are checked before the first is measured."""

    @abstractmethod
    def measure(self, run: TrainedRun) -> Figures:
        """Figures of a run, in addition to those that all runs have.

        Raises UserError or OSError if the run cannot be measured.
        """

    @abstractmethod
    def cells(self, figures: Figures) -> Dict[str, Cell]:
        """Columns of the metric for a run or a text."""

    def note(self, figures: Sequence[Figures]) -> str:
        """A note with the conditions of the comparison."""
        return ""


class TextMetric(Metric):
    """A metric of text that ``fairseq-generate`` left in ``SAVE_DIR/SPLIT``.

    Args:
        files: of raw references. Each sentence has one in each file.
        data: folder whose ``text.json`` says how texts were tokenised; by default by Moses.

    Attributes:
        references: lines of the files by their names.
    """

    def __init__(self, *files: Path, split: str = "test", data: Optional[Path] = None) -> None:
        self.references = {str(file): read_lines(file) for file in files}
        self.split = split
        self.data = data

    @abstractmethod
    def tested(self) -> Dict[str, CorpusMetric]:
        """The metrics of the significance test by their titles, for text as :meth:`translation` returns it."""

    @abstractmethod
    def readable(self, lines: Sequence[str]) -> List[str]:
        """The text that is scored, from lines of tokens."""

    @abstractmethod
    def scored(self, path: Path, form: TextFormat) -> Figures:
        """Figures of a text. Raises what :meth:`translation` raises."""

    def translation(self, *paths: Path, form: TextFormat) -> Translation:
        """Files that are read as one translation. Raises UserError or OSError if it cannot be compared."""
        return read_translation(*paths, form=form, references=self.references, readable=self.readable)

    def measure(self, run: TrainedRun) -> Figures:
        path = self.decoded(run)
        figures = self.scored(path, "generate")
        if record := decoding_record(path.parent):
            figures["decoded_with"] = shlex.join(flag for flag in record["flags"] if flag != "--cpu")
        return figures

    def decoded(self, run: TrainedRun) -> Path:
        """Path of the text that the run's checkpoint decoded.

        Raises UserError if there is none, or if another checkpoint decoded it.
        """
        path = run.save_dir / self.split / GENERATED_FILE
        if not path.is_file():
            raise UserError(
                f"{path} does not exist: decode {self.split} by evaluate bleu or rouge with --out {path.parent}"
            )
        check_decoded_by(run.checkpoint, path.parent)
        return path

    def check(self, run: TrainedRun) -> None:
        self.decoded(run)

    def note(self, figures: Sequence[Figures]) -> str:
        """Flags with which each run was decoded, if they differ."""
        decoded = dict.fromkeys((one["name"], one["decoded_with"]) for one in figures if "decoded_with" in one)
        if len({flags for _, flags in decoded}) < 2:
            return ""
        return f"Decoded with other flags: {'; '.join(f'{name}: `{flags}`' for name, flags in decoded)}."


class BleuMetric(TextMetric):
    """BLEU and chrF of translations. The tokeniser of the language must be installed, else a UserError says so.

    Args:
        case: whether case counts.
        more: of :class:`TextMetric`.
    """

    def __init__(self, reference: Path, *, language: str, case: LetterCase = "kept", **more: Any) -> None:
        super().__init__(reference, **more)
        (self.reference,) = self.references.values()
        self.case: LetterCase = case
        self.language = language
        bleu_of_text(language=language)

    def tested(self) -> Dict[str, CorpusMetric]:
        text = dict(case=self.case, language=self.language)
        return {TITLES[name]: CORPUS_METRICS[name](**text) for name in SACREBLEU_METRICS}

    def readable(self, lines: Sequence[str]) -> List[str]:
        return detokenize(lines, language=self.language, data=self.data)

    def scored(self, path: Path, form: TextFormat) -> Figures:
        return {"scores": [asdict(item) for item in self.scores(self.translation(path, form=form))]}

    def scores(self, translation: Translation) -> List[Score]:
        """BLEU and chrF, and BLEU of tokens, if there are any."""
        return score(translation, self.reference, case=self.case, language=self.language)

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        names = ("BLEU", "chrF", "tokenised BLEU")
        return {name: Cell(item["value"], interval=item["interval"]) for name, item in zip(names, figures["scores"])}

    def note(self, figures: Sequence[Figures]) -> str:
        signatures = "; ".join(item["signature"] for item in figures[0]["scores"])
        return f"BLEU, chrF, tokenised BLEU: `{signatures}`. {super().note(figures)}".rstrip()


class RougeMetric(TextMetric):
    """ROUGE of headlines, and their length. Further arguments, ``more``, go to :class:`TextMetric`.

    Raises UserError if the tokeniser of the settings does not know the script of the references.
    """

    def __init__(self, *files: Path, settings: RougeSettings = DEFAULT_SETTINGS, **more: Any) -> None:
        super().__init__(*files, **more)
        self.settings = settings
        self.signature = settings.signature(num_references=len(self.references))
        self._by_sentence = list(zip(*self.references.values()))
        check_tokens(self._by_sentence, settings)

    def tested(self) -> Dict[str, CorpusMetric]:
        # neither the hypotheses as they are read nor raw references have escapes
        return {title: RougeMean(name, settings=self.settings, escapes="kept") for name, title in ROUGE_METRICS.items()}

    def readable(self, lines: Sequence[str]) -> List[str]:
        return headline_words(lines, data=self.data)

    def scored(self, path: Path, form: TextFormat) -> Figures:
        headlines = self.translation(path, form=form).detokenized
        words = statistics.mean(len(line.split()) for line in headlines)
        return {
            "scores": [asdict(item) for item in self.scores(headlines)],
            "signature": self.signature,
            "words": words,
        }

    def scores(self, headlines: Sequence[str]) -> List[RougeScore]:
        """ROUGE-1, -2 and -L of headlines as :meth:`translation` returns them."""
        return score_corpus(headlines, self._by_sentence, self.settings)

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        scores = zip(ROUGE_METRICS.values(), figures["scores"])
        return {
            "words": Cell(figures["words"], ".1f", mean="none"),
            **{f"{name} F1": Cell(item["f1"], interval=item["f1_interval"]) for name, item in scores},
        }

    def note(self, figures: Sequence[Figures]) -> str:
        return f"ROUGE: `{self.signature}`. {super().note(figures)}".rstrip()


class PerplexityMetric(Metric):
    """Perplexity of language models as by ``lm eval``: one row, carried state. Of characters in bits, too."""

    def __init__(self, data: Path, *, device: str = "cpu") -> None:
        self.data = data
        self.device = device

    def check(self, run: TrainedRun) -> None:
        if not run.checkpoint.exists():
            raise UserError(
                f"{run.checkpoint} does not exist: copy it there, because perplexity is measured by running the model"
            )
        if issubclass(TASK_REGISTRY[trained_task(run.checkpoint)._name], TranslationTask):
            raise UserError(f"{run.checkpoint} holds an encoder-decoder: compare it by --metric bleu or rouge")
        load_language_models([run.checkpoint], self.data)

    def measure(self, run: TrainedRun) -> Figures:
        (model,) = load_language_models([run.checkpoint], self.data)
        model.to(self.device)
        dictionary = load_dictionary(self.data)
        of_characters = read_record(self.data).tokenizer == "characters"
        figures: Figures = {}
        for split in ("valid", "test"):
            tokens = load_token_stream(self.data, split, dictionary)
            result = evaluate_perplexity([model], tokens)
            figures[f"{split}_perplexity"] = result.perplexity
            if of_characters:
                figures[f"{split}_bits_per_character"] = result.bits_per_token
        return figures

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        cells = {"test perplexity": Cell(figures["test_perplexity"])}
        if "test_bits_per_character" in figures:
            cells["test bits per character"] = Cell(figures["test_bits_per_character"], ".3f")
        return cells


def text_metric(
    name: str, reference: Path, *, data: Path, split: str, language: str, rouge: RougeSettings = DEFAULT_SETTINGS
) -> TextMetric:
    """The metric "bleu" or "rouge" of a decoded split, with the settings that fit its data.

    Raises UserError if the tokeniser of the language is not installed.
    """
    if name == "rouge":
        return RougeMetric(reference, split=split, settings=rouge, data=data)
    return BleuMetric(reference, split=split, case=compared_case(data), language=language, data=data)


# Tables.


def compare_runs(
    runs: Sequence[Tuple[str, Path]],
    metric: Metric,
    *,
    texts: Sequence[Tuple[str, Path]] = (),
    baseline: Optional[str] = None,
) -> Report:
    """Measure runs and texts, and compare them in tables and a picture of the learning curves.

    Args:
        runs: name, and ``--save-dir`` or checkpoint, of each run. Runs of one name differ in their seed.
        texts: name and file of texts from elsewhere, for a :class:`TextMetric`.
        baseline: name of the runs or texts against which the others are tested, by sentence or, by perplexity, over
            seeds. None for no test.

    Raises:
        UserError, OSError: if a run or a text cannot be measured, if a run and a text have one name, or if there is no
            such baseline.
    """
    if both := {name for name, _ in runs} & {name for name, _ in texts}:
        raise UserError(f"{min(both)} names a run and a text: give the text another name")
    check_baseline(baseline, metric, names=[name for name, _ in (*runs, *texts)])
    read = [read_run(name, path) for name, path in runs]
    _check_trainings(read)
    for run in read:
        metric.check(run)
    others: List[Figures] = []
    if texts:
        assert isinstance(metric, TextMetric)
        others = [{"name": name, **metric.scored(path, "text")} for name, path in texts]
    trained = []
    for number, run in enumerate(read, start=1):
        print(f"== measure {run.save_dir} ({number} of {len(read)})", file=sys.stderr, flush=True)
        trained.append({**run.figures, **metric.measure(run)})
    found = [*trained, *others]
    figures: Figures = {"runs": found}
    parts = [as_markdown(found, metric), _note_on_checkpoints(read), metric.note(found)]
    if baseline is not None and isinstance(metric, TextMetric):
        written = [(run.name, metric.translation(metric.decoded(run), form="generate")) for run in read]
        written += [(name, metric.translation(path, form="text")) for name, path in texts]
        lines = [(name, translation.detokenized) for name, translation in written]
        figures["differences"] = text_differences(lines, metric, baseline=baseline)
        parts.append(differences_as_markdown(figures["differences"], baseline=baseline))
    elif baseline is not None:
        figures["differences"] = seed_differences(trained, baseline=baseline)
        caption = "Differences of means over seeds, 95 % intervals and two-sided p by Welch's t-test"
        parts.append(differences_as_markdown(figures["differences"], baseline=baseline, caption=caption))
    return Report(figures, "\n\n".join(filter(None, parts)), lambda: draw_learning_curves(trained))


def text_differences(
    written: Sequence[Tuple[str, Sequence[str]]], metric: TextMetric, *, baseline: str
) -> List[Dict[str, Any]]:
    """Difference of each system from the baseline by each metric, over all runs of the system together.

    ``written`` has the name of the system and the lines of each run or text.
    """
    (references,) = metric.references.values()
    systems: Dict[str, List[Sequence[str]]] = {}
    for name, lines in written:
        systems.setdefault(name, []).append(lines)
    scores = {}
    for title, tested in progress(metric.tested().items(), desc="paired bootstrap", unit=" metrics"):
        scores[title] = {name: bootstrap_scores(tested, runs, references) for name, runs in systems.items()}
    return differences(scores, baseline=baseline)


def seed_differences(runs: Sequence[Figures], *, baseline: str) -> List[Dict[str, Any]]:
    """Difference of each system's mean test perplexity from the baseline's, over its runs, which differ in their seed.

    Interval and p are by Welch's t-test: seeds are drawn for each system by itself, and deviations may differ.
    """
    systems: Dict[str, List[float]] = {}
    for run in runs:
        systems.setdefault(run["name"], []).append(run["test_perplexity"])
    found = []
    for name, perplexities in systems.items():
        if name == baseline:
            continue
        test = ttest_ind(perplexities, systems[baseline], equal_var=False)
        low, high = test.confidence_interval(0.95)
        value = statistics.mean(perplexities) - statistics.mean(systems[baseline])
        difference = Difference(value, float(high - low) / 2, float(test.pvalue))
        found.append({"name": name, "differences": {"test perplexity": asdict(difference)}})
    return found


def check_baseline(baseline: Optional[str], metric: Metric, *, names: Sequence[str]) -> None:
    """Check that runs, whose ``names`` are given, can be tested against a baseline.

    Raises:
        UserError: if it is no such name or the only one, or, for perplexity, if a name has only one run.
    """
    if baseline is None:
        return
    if baseline not in names:
        raise UserError(f"--baseline {baseline}: no such name, choose one of {', '.join(dict.fromkeys(names))}")
    if set(names) == {baseline}:
        raise UserError(f"--baseline {baseline}: there is nothing else to test against it")
    alone = [name for name in dict.fromkeys(names) if names.count(name) == 1]
    if alone and not isinstance(metric, TextMetric):
        raise UserError(f"--baseline {baseline}: perplexities are tested over seeds, of which {alone[0]} has only one")


def _check_trainings(runs: Sequence[TrainedRun]) -> None:
    """Check that runs of one name have different seeds and equal sizes, because means are taken over them."""
    check_seeds((run.name, run.figures["seed"], run.save_dir) for run in runs)
    for index, run in enumerate(runs):
        first = next((other for other in runs[:index] if other.name == run.name), None)
        if first is not None:
            sizes = [one.figures["parameters"] for one in (first, run)]
            if sizes[0] != sizes[1]:
                raise UserError(
                    f"--path: runs that are called {run.name} have {sizes[0]:,} and {sizes[1]:,} parameters, and runs "
                    "of a name differ in their seed alone: give each system a name of its own"
                )


def _note_on_checkpoints(runs: Sequence[TrainedRun]) -> str:
    """Names of the runs whose checkpoint is missing."""
    gone = [f"{run.name} (seed {run.figures['seed']})" for run in runs if not run.checkpoint.exists()]
    return f"By log and text alone, without the checkpoint: {'; '.join(gone)}." if gone else ""


def as_markdown(found: Sequence[Figures], metric: Metric) -> str:
    """A line for each run or text, with mean and standard deviation if there are several seeds."""

    def cells(figures: Figures) -> Dict[str, Cell]:
        if "seed" not in figures:  # a text
            return metric.cells(figures)
        learning = figures["learning_parameters"]
        is_measured = "valid_perplexity" in figures  # of the checkpoint
        return {
            "parameters": Cell(figures["parameters"], ",d", mean="none"),
            **({} if learning == figures["parameters"] else {"that learn": Cell(learning, ",d", mean="none")}),
            "seed": Cell(figures["seed"], "d", mean="none"),
            "epochs": Cell(figures["epochs"], "d", mean="none"),
            **({"valid perplexity": Cell(figures["valid_perplexity"])} if is_measured else best_valid_cells(figures)),
            **metric.cells(figures),
            **cost_cells(figures),
        }

    return table_of_runs(found, cells, column="model")
