"""fairseq's translation commands on a toy language: a translation renames each word and reverses the order."""

import random
import re
from pathlib import Path
from typing import Dict, List, NamedTuple

from commands import succeed
from paths import PLUGINS

WORDS = "abcdefghij"
SIZES = {"train": 400, "valid": 60, "test": 40}
FAIRSEQ_FLAGS = ["--user-dir", str(PLUGINS), "--task", "translation", "--cpu", "--num-workers", "0"]
RECURRENT_SIZES = ("--embed-dim", "32", "--hidden-sizes", "32 32", "--init-range", "0.3")
TRANSFORMER_SIZES = [
    flag
    for side in ("encoder", "decoder")
    for flag in (f"--{side}-embed-dim", "12", f"--{side}-ffn-embed-dim", "16", f"--{side}-layers", "1")
]
TRAINING_FLAGS = [
    *("--dropout", "0.1", "--criterion", "regularized_cross_entropy", "--optimizer", "adam", "--lr", "0.005"),
    *("--batch-size", "20", "--clip-norm", "5", "--log-format", "simple", "--no-epoch-checkpoints"),
]
EPOCHS = 10
DOC = ("--arch", "lstm_encdec_doc", "--attention", "general", "--expert-warmup", 50)
TRANSFORMER = dict(model=("--arch", "transformer_drill"), sizes=TRANSFORMER_SIZES)


def translate(source: str) -> str:
    return " ".join(f"x{word}" for word in reversed(source.split()))


def write_corpus(out: Path) -> Path:
    """Random sentences of one to eight words and their translations, ``<split>.src`` and ``<split>.tgt``."""
    generator = random.Random(1)
    for split, size in SIZES.items():
        sources = [" ".join(generator.choices(WORDS, k=generator.randint(1, 8))) for _ in range(size)]
        (out / f"{split}.src").write_text("".join(f"{line}\n" for line in sources))
        (out / f"{split}.tgt").write_text("".join(f"{translate(line)}\n" for line in sources))
    return out


def preprocess_pairs(text: Path, out: Path, *flags) -> Path:
    prefixes = [flag for split in SIZES for flag in (f"--{split}pref", text / split)]
    languages = ["--source-lang", "src", "--target-lang", "tgt"]
    succeed("fairseq_cli.preprocess", *languages, "--padding-factor", 1, "--destdir", out, *prefixes, *flags)
    return out


def translator_arguments(data, save_dir, *flags, model=DOC, sizes=RECURRENT_SIZES) -> List:
    return [data, "--save-dir", save_dir, *FAIRSEQ_FLAGS, *TRAINING_FLAGS, *sizes, *model, *flags]


def train_translator(*args, **options) -> str:
    """Train with :func:`translator_arguments` and return the log."""
    result = succeed("fairseq_cli.train", *translator_arguments(*args, **options))
    return result.stdout + result.stderr


class Hypothesis(NamedTuple):
    words: List[str]
    score: float  # per token, in bits, as the two below
    positional_scores: List[float]
    alignment: List[str]


class Translation(NamedTuple):
    source: str
    hypotheses: List[Hypothesis]


def parse(output: str) -> Dict[int, Translation]:
    """The lines that fairseq prints for each sentence, by its number."""
    translations = {}
    for kind, number, content in re.findall(r"^([SHPA])-(\d+)\t(.*)$", output, re.M):
        if kind == "S":
            translations[int(number)] = Translation(content, [])
            continue
        hypotheses = translations[int(number)].hypotheses
        if kind == "H":
            score, _, words = content.partition("\t")
            hypotheses.append(Hypothesis(words.split(), float(score), [], []))
        else:
            values = content.split()
            last = hypotheses[-1]
            last.positional_scores.extend(map(float, values)) if kind == "P" else last.alignment.extend(values)
    return translations


def generate(data, path, *flags) -> Dict[int, Translation]:
    """Translate the test set."""
    return parse(succeed("fairseq_cli.generate", data, *FAIRSEQ_FLAGS, "--path", path, *flags).stdout)
