"""Conditions of a report on a device: the device, the sizes of what is measured, and corpora that need no network."""

import gzip
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Literal, Mapping, Optional, Sequence

import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

import fairseq_plugins
from fairseq_plugins.benchmarks.output_layer import DEFAULT_CASES, Case
from fairseq_plugins.models.presets import Value, command_line
from fairseq_plugins.reports.tables import as_table


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of what is measured: those of the papers on a GPU, tiny ones on a CPU.

    Attributes:
        output_cases: sizes of the output layer where it is measured alone.
        num_repetitions: timings of each method of it.
        num_updates: updates of a training run that is timed.
        num_check_updates: updates of a training run that is checked.
        num_rounds: rounds of training and of decoding.
        num_sentences: sentences of the demo that are taken of each split, at most.
        vocab_sizes: vocabulary of random text, by the suffix of the presets that train on it.
        num_random_words: words of random training text.
        width: width of every layer and embedding, or None for the widths of the presets.
    """

    output_cases: Sequence[Case]
    num_repetitions: int
    num_updates: int
    num_check_updates: int
    num_rounds: int
    num_sentences: int
    vocab_sizes: Mapping[str, int]
    num_random_words: int
    width: Optional[int] = None

    def width_flags(self, flags: Mapping[str, Value]) -> List[str]:
        """Flags of ``fairseq-train`` that set the widths of a model. Empty if those of the presets are kept.

        Args:
            flags: flags of the model, widths included. Names may have dashes or underscores.
        """
        if self.width is None:
            return []
        chosen: Dict[str, Value] = {}
        for flag, value in flags.items():
            name = flag.replace("_", "-")
            if name == "hidden-sizes":
                chosen[name] = " ".join([str(self.width)] * len(str(value).split()))
            elif name.endswith(("embed-dim", "hidden-size")):
                chosen[name] = self.width
        return command_line(chosen)


FULL = Scale(
    output_cases=[Case.parse(text) for text in DEFAULT_CASES],
    num_repetitions=15,
    num_updates=50,
    num_check_updates=100,
    num_rounds=2,
    num_sentences=14_000,
    vocab_sizes={"ptb": 10_000, "wt2": 33_278},
    num_random_words=600_000,
)
"""Scale on a GPU. Random text is so long that no timed run reaches the end of an epoch."""

TOY = Scale(
    output_cases=[Case(vocab_size=200, num_experts=3, width=16, num_tokens=40)],
    num_repetitions=2,
    num_updates=10,
    num_check_updates=10,
    num_rounds=1,
    num_sentences=200,
    vocab_sizes={"ptb": 100, "wt2": 150},
    num_random_words=60_000,
    width=16,
)
"""Scale on a CPU, where figures only show that a step runs."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of all steps.

    Attributes:
        device: "cuda" or "cpu".
        folder: directory of the report, and of data that are generated.
        data: binarised corpora of the user.
        flags: flags of ``fairseq-train`` of the user.
    """

    device: Literal["cpu", "cuda"]
    folder: Path
    data: Sequence[Path] = ()
    flags: Sequence[str] = ()

    @property
    def scale(self) -> Scale:
        """Full size on a GPU, toy size on a CPU."""
        return FULL if self.device == "cuda" else TOY

    @property
    def device_flags(self) -> List[str]:
        """Flags of ``fairseq-train`` for this device, and those of the user."""
        return [*(["--cpu"] if self.device == "cpu" else []), *self.flags]


def device_facts(setting: Setting) -> Dict[str, str]:
    """Name, memory and library versions of the device."""
    if setting.device == "cpu":
        return {
            "device": "CPU: everything is of toy size, so figures say nothing of speed",
            "threads": str(torch.get_num_threads()),
        }
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "devices": str(torch.cuda.device_count()),
        "memory": f"{properties.total_memory / 2**30:.1f} GiB",
        "compute capability": f"{properties.major}.{properties.minor}",
        "CUDA": str(torch.version.cuda or torch.version.hip),
        "cuDNN": str(torch.backends.cudnn.version()),
    }


def facts_table(facts: Dict[str, str]) -> str:
    """The facts as a table."""
    (first, value), *rest = facts.items()
    return as_table([first, value], rest)


# Corpora for machines without a network: the sentences of the demo, and random words where only sizes matter. Each is
# binarised once, in its own folder.


DEMO_CORPUS = Path(fairseq_plugins.__file__).parent / "demo_corpus"
SPLITS = ("train", "valid", "test")
LINE_LENGTH = 25
"""Words in a line of random text."""


def demo_text(folder: Path, *, num_sentences: int) -> Path:
    """The English sentences of the demo for language models, at most ``num_sentences`` of each split."""
    lines = {split: _demo_lines(split, "en", num_sentences) for split in SPLITS}
    return _binarised(folder / f"demo-en-{num_sentences}", {"": lines})


def demo_pairs(folder: Path, *, num_sentences: int) -> Path:
    """The German and English sentences of the demo, at most ``num_sentences`` of each split."""
    sides = {
        language: {split: _demo_lines(split, language, num_sentences) for split in SPLITS} for language in ("de", "en")
    }
    return _binarised(folder / f"demo-de-en-{num_sentences}", sides)


def demo_data(setting: Setting, *, task: str) -> str:
    """The folder of the demo's sentences for a task, as many as the setting's scale has."""
    make = demo_text if task == "stateful_lm" else demo_pairs
    return str(make(setting.folder / "data", num_sentences=setting.scale.num_sentences))


def random_text(folder: Path, *, vocab_size: int, num_words: int) -> Path:
    """Random words with Zipf's frequencies, each at least once. The dictionary has ``vocab_size`` symbols.

    A model trains on it at the speed of a real text with that vocabulary. Perplexities mean nothing.
    """
    generator = torch.Generator().manual_seed(0)
    num_kinds = vocab_size - 4  # fairseq adds four symbols
    frequencies = 1 / torch.arange(1, num_kinds + 1)
    lines = {}
    for split, size in zip(SPLITS, (num_words, num_words // 50, num_words // 50)):
        drawn = torch.multinomial(frequencies, size, replacement=True, generator=generator).tolist()
        words = [*(range(num_kinds) if split == "train" else ()), *drawn]
        lines[split] = [
            " ".join(f"w{word}" for word in words[first : first + LINE_LENGTH])
            for first in range(0, len(words), LINE_LENGTH)
        ]
    return _binarised(folder / f"random-{vocab_size}-{num_words}", {"": lines})


def _demo_lines(split: str, language: str, num_sentences: int) -> List[str]:
    """Lines of the demo in lower case, with words and punctuation separated by spaces."""
    with gzip.open(DEMO_CORPUS / f"{split}.{language}.gz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()[:num_sentences]
    return [" ".join(re.findall(r"\w+|[^\w\s]", line.lower())) for line in lines]


def _binarised(folder: Path, sides: Mapping[str, Mapping[str, List[str]]]) -> Path:
    """Binarise text, by side and split, as ``fairseq-preprocess`` does, unless ``folder`` exists."""
    if folder.exists():
        return folder
    # a folder under another name, so that an interrupted call leaves no half corpus
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    pair = "-".join(sides)
    for side, splits in sides.items():
        dictionary = Dictionary()
        for line in splits["train"]:
            dictionary.encode_line(line, add_if_not_exist=True)
        dictionary.finalize(padding_factor=1)
        dictionary.save(str(aside / (f"dict.{side}.txt" if side else "dict.txt")))
        for split, lines in splits.items():
            name = aside / (f"{split}.{pair}.{side}" if side else split)
            builder = make_builder(f"{name}.bin", impl="mmap", vocab_size=len(dictionary))
            for line in lines:
                builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
            builder.finalize(f"{name}.idx")
    aside.rename(folder)
    return folder
