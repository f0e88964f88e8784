"""Steps that measure speed and memory on a device: output layers, training, decoding, and long training runs."""

import resource
import statistics
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, Mapping, Optional, Tuple

import torch

from fairseq_plugins.benchmarks.device.comparison import float32_products
from fairseq_plugins.benchmarks.device.record import Figures, Item, Step, failed_table
from fairseq_plugins.benchmarks.device.setting import Setting, demo_data, device_facts, facts_table, random_text
from fairseq_plugins.benchmarks.output_layer import (
    Case,
    Inputs,
    Method,
    allocated_peak,
    floor,
    fused,
    median_times,
    own_chunk_size,
    report_name,
)
from fairseq_plugins.benchmarks.training import (
    TRANSLATION_SUITES,
    TrainingSpeed,
    allocated_mib,
    as_markdown,
    decoding_as_markdown,
    measure_decoding,
    measure_trainings,
    train_briefly,
)
from fairseq_plugins.command_line import ProgramFailed
from fairseq_plugins.ops.mixture_loss import even_chunk_size
from fairseq_plugins.processes import fairseq_command, run_logged, training_environment
from fairseq_plugins.recipes import Recipe, find_recipe, training_arguments
from fairseq_plugins.recipes.language_models import SPEED_PRESETS
from fairseq_plugins.reports.tables import Report, as_table
from fairseq_plugins.reports.training_log import (
    VALIDATION,
    intervals_by_epoch,
    lines_of_epochs,
    read_epoch_speeds,
    read_free_memory,
    read_log,
)

NUMBERS_OF_CHUNKS = (1, 2, 4, 8, 16, 32)
OWN = "own"
"""Stands for the number of chunks that the loss chooses by itself."""


@dataclass(frozen=True)
class Precision:
    """Number formats of one measurement of the loss.

    Attributes:
        dtype: dtype of the inputs.
        products: precision of products of float32 operands.
        chunk_dtype: dtype of a chunk's operands, logits and probabilities, or None for that of the inputs.
    """

    dtype: torch.dtype
    products: Literal["strict", "TF32"] = "strict"
    chunk_dtype: Optional[torch.dtype] = None


PRECISIONS = {
    "float32": Precision(torch.float32),
    "TF32": Precision(torch.float32, "TF32"),
    "bfloat16 chunks": Precision(torch.float32, chunk_dtype=torch.bfloat16),
    "bfloat16 inputs": Precision(torch.bfloat16),
    "float16 inputs": Precision(torch.float16),
}
"""The first is the reference of the others. The third is ``--output-precision bfloat16``."""


class Output(Step):
    """The fused loss with 1 to 32 chunks in every precision, and its three matrix products alone."""

    name = "output"

    def items(self) -> List[Item]:
        return [
            Item(
                f"V={case.vocab_size} J={case.num_experts} d={case.width} N={case.num_tokens}, {name}",
                partial(self._measure, case, name, precision),
            )
            for case in self.setting.scale.output_cases
            for name, precision in PRECISIONS.items()
        ]

    def _measure(self, case: Case, name: str, precision: Precision) -> Figures:
        with float32_products(precision.products):
            x = Inputs(case, device=torch.device(self.setting.device), dtype=precision.dtype)
            sizes: Dict[str, Optional[int]] = {OWN: None}
            sizes.update(
                {
                    str(number): even_chunk_size(case.num_tokens, -(-case.num_tokens // number))
                    for number in NUMBERS_OF_CHUNKS
                    if number <= case.num_tokens
                }
            )
            methods: Dict[str, Method] = {}
            for number, size in sizes.items():
                for kind, method in (("fused", fused), ("floor", floor)):
                    chunks = partial(method, chunk_size=size, chunk_dtype=precision.chunk_dtype)
                    methods[f"{kind} {number}"] = chunks
            times = median_times(x, methods, num_repetitions=self.setting.scale.num_repetitions)
            # benchmark_output_layer measures memory on a CPU
            peaks = {
                number: allocated_peak(methods[f"fused {number}"], x) if x.weight.is_cuda else None for number in sizes
            }
        return {
            **asdict(case),
            "precision": name,
            "own_chunk_size": min(own_chunk_size(x), case.num_tokens),
            "seconds": {number: times[f"fused {number}"] for number in sizes},
            "floor_seconds": {number: times[f"floor {number}"] for number in sizes},
            "peak_bytes": peaks,
        }

    def tables(self, found: Mapping[str, Figures]) -> str:
        measured = [figures for figures in found.values() if "seconds" in figures]
        exact = {_sizes(figures): figures for figures in measured if figures["precision"] == next(iter(PRECISIONS))}
        parts = [
            "Forward and backward of the loss, medians of "
            f"{self.setting.scale.num_repetitions} interleaved repetitions.",
            as_table(
                ["V", "J", "d", "tokens", "products in", "fused", "products alone", "fused / products"]
                + ["of the time in float32", "memory beyond inputs", "chunks"],
                [_output_row(figures, exact.get(_sizes(figures))) for figures in measured],
            ),
            "The same by the number of chunks: milliseconds of the fused loss / of its products alone, and memory.",
            as_table(
                ["V", "J", "d", "tokens", "products in", *map(str, NUMBERS_OF_CHUNKS)],
                [
                    [*_sizes(figures), figures["precision"], *(_swept(figures, str(n)) for n in NUMBERS_OF_CHUNKS)]
                    for figures in measured
                ],
            ),
        ]
        return "\n\n".join([*parts, *failed_table(found)])


def _sizes(figures: Mapping[str, Any]) -> Tuple[str, ...]:
    return tuple(f"{figures[name]:,}" for name in ("vocab_size", "num_experts", "width", "num_tokens"))


def _output_row(figures: Mapping[str, Any], exact: Optional[Mapping[str, Any]]) -> List[object]:
    seconds, floor_seconds, peak = (figures[name][OWN] for name in ("seconds", "floor_seconds", "peak_bytes"))
    return [
        *(*_sizes(figures), figures["precision"], f"{seconds * 1e3:,.2f} ms", f"{floor_seconds * 1e3:,.2f} ms"),
        f"{seconds / floor_seconds:.2f}",
        None if exact is None else f"{seconds / exact['seconds'][OWN]:.2f}",
        None if peak is None else _mebibytes(peak),
        -(-figures["num_tokens"] // figures["own_chunk_size"]),
    ]


def _swept(figures: Mapping[str, Any], number: str) -> Optional[str]:
    if number not in figures["seconds"]:
        return None
    seconds, floor_seconds, peak = (figures[name][number] for name in ("seconds", "floor_seconds", "peak_bytes"))
    times = f"{seconds * 1e3:,.2f} / {floor_seconds * 1e3:,.2f}"
    return times if peak is None else f"{times}, {_mebibytes(peak)}"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def timed_items(setting: Setting, recipe: Recipe, *, prefix: str, data: Callable[[], str]) -> List[Item]:
    """Items that time the training of each system, one an item, in several rounds. Every second round is reversed.

    Args:
        setting: device, scale and flags.
        recipe: recipe of the systems.
        prefix: beginning of the items' names.
        data: returns the folder of the corpus. It is called when an item is measured.
    """
    systems = list(recipe.systems)
    return [
        Item(
            f"{prefix}{recipe.label(system)}, round {turn + 1}",
            partial(_measure_training, setting, recipe, system, data=data),
        )
        for turn in range(setting.scale.num_rounds)
        for system in (systems if turn % 2 == 0 else systems[::-1])
    ]


def _measure_training(setting: Setting, recipe: Recipe, system: str, *, data: Callable[[], str]) -> Figures:
    found = measure_trainings(
        recipe,
        [system],
        data=data(),
        num_updates=setting.scale.num_updates,
        num_rounds=1,
        flags=[*width_flags(setting, recipe, system), *setting.device_flags],
    )
    return asdict(found[recipe.label(system)])


def width_flags(setting: Setting, recipe: Recipe, system: str) -> List[str]:
    """Flags that set the widths of a system to those of the setting's scale."""
    return setting.scale.width_flags(recipe.settings(system))


def speeds(setting: Setting, recipe: Recipe, found: Mapping[str, Figures], *, prefix: str) -> Dict[str, TrainingSpeed]:
    """Median speed and largest memory over the measured rounds, by label of the systems, in their order."""
    result = {}
    for system in recipe.systems:
        label = recipe.label(system)
        names = [f"{prefix}{label}, round {turn + 1}" for turn in range(setting.scale.num_rounds)]
        runs = [TrainingSpeed(**found[name]) for name in names if "words_per_second" in found.get(name, {})]
        if runs:
            result[label] = TrainingSpeed(
                words_per_second=statistics.median(run.words_per_second for run in runs),
                peak_mib=max(run.peak_mib for run in runs),
                updates_per_second=statistics.median(run.updates_per_second for run in runs),
            )
    return result


class Models(Step):
    """Training speed of all presets for Penn Treebank and WikiText-2, ``lstm_lm_awd`` and fairseq's ``lstm_lm``.

    The user may give both corpora, in this order. Random words with the same vocabulary size replace a missing one.
    """

    name = "models"

    def items(self) -> List[Item]:
        return [
            item
            for place, (suffix, recipe) in enumerate(SPEED_PRESETS.items())
            for item in timed_items(self.setting, recipe, prefix=f"{suffix}: ", data=partial(self._data, place, suffix))
        ]

    def _data(self, place: int, suffix: str) -> str:
        if place < len(self.setting.data):
            return str(self.setting.data[place])
        scale = self.setting.scale
        size = scale.vocab_sizes[suffix]
        return str(random_text(self.setting.folder / "data", vocab_size=size, num_words=scale.num_random_words))

    def tables(self, found: Mapping[str, Figures]) -> str:
        parts: List[str] = []
        for place, (suffix, recipe) in enumerate(SPEED_PRESETS.items()):
            measured = speeds(self.setting, recipe, found, prefix=f"{suffix}: ")
            if measured:
                given = place < len(self.setting.data)
                num_kinds = self.setting.scale.vocab_sizes[suffix]
                text = str(self.setting.data[place]) if given else f"random words of {num_kinds:,} kinds"
                parts += [f"Presets for {recipe.corpus.split('/')[-2]}, on {text}:", _presets_table(measured, recipe)]
        parts.append(
            f"Medians of {self.setting.scale.num_rounds} runs, or of those that there are, of "
            f"{self.setting.scale.num_updates} updates by fairseq-train with SGD, the first fifth of a run left out. "
            "Every preset has its paper's rows and windows: words per second compare models, updates per second "
            "trainings."
        )
        return "\n\n".join([*parts, *failed_table(found)])


def _presets_table(measured: Mapping[str, TrainingSpeed], recipe: Recipe) -> str:
    references = [measured.get(recipe.label(system)) for system in ("host", "awd")]
    rows = [
        [
            name,
            f"{speed.updates_per_second:,.2f}",
            f"{speed.words_per_second:,.0f}",
            *(other and f"{speed.words_per_second / other.words_per_second:.2f}" for other in references),
            f"{speed.peak_mib / 1024:,.1f} GiB",
        ]
        for name, speed in measured.items()
    ]
    columns = ["model", "updates per second", "words per second", "to fairseq's lstm_lm", "to lstm_lm_awd"]
    return as_table([*columns, "peak memory"], rows)


TRANSLATORS = TRANSLATION_SUITES["lstm"].recipe
DECODING = "decoding"
LENGTH = 15
"""Length of every hypothesis in tokens."""


class Translation(Step):
    """Training and decoding of fairseq's ``lstm`` and of the recipe multi30k, on the user's corpus or the demo's."""

    name = "translation"

    def items(self) -> List[Item]:
        training = timed_items(self.setting, TRANSLATORS, prefix="training of ", data=self._data)
        return [*training, Item(DECODING, self._decode)]

    def _data(self) -> str:
        return str(self.setting.data[0]) if self.setting.data else demo_data(self.setting, task="translation")

    def _decode(self) -> Figures:
        data = self._data()
        checkpoints: Dict[str, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            for system in TRANSLATORS.systems:
                flags = [*width_flags(self.setting, TRANSLATORS, system), *self.setting.device_flags]
                checkpoints.update(train_briefly(TRANSLATORS, [system], data=data, folder=Path(folder), flags=flags))
            found = measure_decoding(
                data,
                checkpoints,
                num_rounds=self.setting.scale.num_rounds,
                length=LENGTH,
                device=self.setting.device,
            )
        return {"sentences_per_second": found}

    def tables(self, found: Mapping[str, Figures]) -> str:
        parts: List[str] = []
        measured = speeds(self.setting, TRANSLATORS, found, prefix="training of ")
        if measured:
            parts += ["Training (target tokens), ratios to the first:", as_markdown(measured)]
        decoded = found.get(DECODING, {}).get("sentences_per_second")
        if decoded:
            parts += [f"Decoding, beam 5, {LENGTH} tokens a hypothesis:", decoding_as_markdown(decoded)]
        scale = self.setting.scale
        text = str(self.setting.data[0]) if self.setting.data else "the demo's short sentences"
        parts.append(
            f"On {text}. Training: medians of {scale.num_rounds} runs, or of those that there are, of "
            f"{scale.num_updates} updates. Decoding: the test set, {scale.num_rounds} times, in one process, batch by "
            "batch by turns, in float32."
        )
        return "\n\n".join([*parts, *failed_table(found)])


LOG_INTERVAL = 20


class TimedTraining:
    """Training of a preset for a number of minutes. Each call resumes from the last checkpoint in ``save_dir``.

    Args:
        setting: device, corpus and flags. The default corpus is that of the demo.
        arch: a system of the recipe presets.
        save_dir: directory of checkpoints and ``train.log``, or None for one in the folder of the report.

    Raises:
        UserError: if there is no such preset.
    """

    def __init__(self, setting: Setting, arch: str, *, save_dir: Optional[Path] = None):
        self.setting = setting
        self.arch = arch
        self.recipe = find_recipe("presets")
        self.recipe.system(arch)
        self.save_dir = save_dir or setting.folder / "checkpoints" / report_name(arch, *self._names_of_flags())

    def _names_of_flags(self) -> List[str]:
        return [flag.removeprefix("--") for flag in self.setting.flags]

    @property
    def log(self) -> Path:
        """Log of all calls."""
        return self.save_dir / "train.log"

    def seconds_so_far(self) -> float:
        """Training time of earlier calls, from the last checkpoint."""
        checkpoint = self.save_dir / "checkpoint_last.pt"
        if not checkpoint.exists():
            return 0.0
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        return float(state["extra_state"]["previous_training_time"])

    def run(self, *, minutes: float, command: str) -> str:
        """Train from where the last call stopped, validate, save, and write the report. Returns its tables.

        Raises:
            ProgramFailed: if ``fairseq-train`` fails.
        """
        self.save_dir.mkdir(parents=True, exist_ok=True)
        before = self.seconds_so_far()
        hours = (before + 60 * minutes) / 3600
        limits = ["--stop-time-hours", repr(hours), "--log-interval", str(LOG_INTERVAL)]
        flags = [*width_flags(self.setting, self.recipe, self.arch), *limits, *self.setting.device_flags]
        data, save_dir = self._data(), str(self.save_dir)
        arguments = training_arguments(self.recipe, self.arch, data=data, save_dir=save_dir, more=flags)
        status = run_logged(fairseq_command("train", arguments), log=self.log, environment=training_environment())
        if status != 0:
            raise ProgramFailed(f"fairseq-train ended with status {status}, see {self.log}")
        return self._report(command=command)

    def _data(self) -> str:
        if self.setting.data:
            return str(self.setting.data[0])
        return demo_data(self.setting, task=str(self.recipe.flags(self.arch)["task"]))

    def _report(self, *, command: str) -> str:
        facts = device_facts(self.setting)
        epochs = read_epochs(read_log(self.log))
        resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        minutes = self.seconds_so_far() / 60
        rows = [
            [epoch, _shown(found["valid_perplexity"], ".2f"), _shown(found["words_per_second"], ",.0f")]
            + [_shown(found["allocated_mib"] and found["allocated_mib"] / 1024, ".1f")]
            for epoch, found in epochs.items()
        ]
        text = [
            facts_table(facts),
            f"Training of {self.arch} for {minutes:.1f} minutes so far.",
            as_table(["epoch", "valid perplexity", "words per second", "peak memory of the GPU, GiB"], rows),
            "Of an epoch that has not ended the figures are those where the last call stopped. Peak resident memory of "
            f"this call: {resident / 1024:.1f} GiB.",
        ]
        figures: Dict[str, Any] = {"device": facts, "arch": self.arch, "minutes": minutes, "epochs": epochs}
        report = Report(text="\n\n".join(text), figures={**figures, "resident_mib": resident}, command=command)
        return report.write(self.setting.folder, name=report_name("train", self.arch, *self._names_of_flags()))


def read_epochs(log: str) -> Dict[int, Dict[str, Optional[float]]]:
    """Last validation perplexity, speed and peak GPU memory of each epoch.

    If the log holds several runs, the figures are those of the last one.
    """
    log = lines_of_epochs(log)
    perplexities = {int(epoch): float(perplexity) for epoch, perplexity in VALIDATION.findall(log)}
    speeds, intervals = read_epoch_speeds(log), intervals_by_epoch(log)
    return {
        epoch: {
            "valid_perplexity": perplexities.get(epoch),
            "words_per_second": speeds.get(epoch),
            "allocated_mib": allocated_mib(read_free_memory(intervals.get(epoch, ""))) or None,
        }
        for epoch in sorted({*perplexities, *speeds, *intervals})
    }


def _shown(value: Optional[float], form: str) -> str:
    return "" if value is None else f"{value:{form}}"
