"""Command lines that read files, for every such command, the files that each reads, and digests of what it leaves."""

import hashlib
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple

import torch

from fairseq_plugins.commands.app import COMMANDS


def contents(folder: Path) -> Dict[str, str]:
    """A digest of every file in a folder by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def nothing(folder: Path) -> None:
    """Of commands that only print."""


def files(*names: str) -> Callable[[Path], object]:
    """The digests of these."""

    def result(folder: Path) -> object:
        return {name: digest for name, digest in contents(folder).items() if name in names}

    return result


def _is_left_out(name: str) -> bool:
    """Tell whether a file is a lock, a log, or a temporary file that a killed process may leave, ``.name``."""
    return name.endswith((".lock", ".log")) or name.rpartition("/")[2].startswith(".")


def below(parent: str) -> Callable[[Path], Dict[str, str]]:
    """The digests of all in a folder."""

    def result(folder: Path) -> Dict[str, str]:
        there = contents(folder / parent)
        return {name: digest for name, digest in there.items() if not _is_left_out(name)}

    return result


def decoded(folder: Path) -> object:
    """Sentences of what fairseq wrote, which tells its speed, too."""
    lines = (folder / "out/generate.txt").read_text().splitlines()
    there = {name: digest for name, digest in below("out")(folder).items() if name != "generate.txt"}
    return there, [line for line in lines if line.startswith(("T-", "H-", "D-"))]


def weights(folder: Path) -> object:
    """Weights of all checkpoints, and names of all files."""
    names = sorted(path.name for path in (folder / "trained").iterdir())
    states = {name: torch.load(folder / "trained" / name)["model"] for name in names if name.endswith(".pt")}
    return names, {name: {key: value.tolist() for key, value in state.items()} for name, state in states.items()}


LM = ["lm/dict.txt", "lm/test.idx", "lm/test.bin"]
PAIRS = [f"translation/test.src-tgt.{side}.{kind}" for side in ("src", "tgt") for kind in ("idx", "bin")]
PAIRS += ["translation/dict.src.txt", "translation/dict.tgt.txt"]
DYNAMIC = ("--dynamic", "rms", "--dynamic-rows", "2", "--dynamic-segment", "5")
STATISTICS = "lm.gradients-2x5.pt"
"""The file that dynamic evaluation keeps."""


class Reading(NamedTuple):
    """A command line that ends well on undamaged files.

    Attributes:
        words: the module and its arguments.
        files: what it reads.
        stdin: what is typed.
        result: what counts of what it has written to a folder.
    """

    words: List[str]
    files: List[str]
    stdin: bytes = b""
    result: Callable[[Path], object] = nothing


def _ours(
    name: str, *words: str, files: List[str], stdin: bytes = b"", result: Callable[[Path], object] = nothing
) -> Reading:
    return Reading(["fairseq_plugins", *name.split(), *words], files, stdin, result)


def told_by(words: List[str]) -> str:
    """The beginning of the line by which a module with arguments refuses something."""
    if words[0] != "fairseq_plugins":
        return "error: "
    length = 2 if " ".join(words[1:3]) in COMMANDS else 1
    return f"fairseq-plugins {' '.join(words[1 : 1 + length])}: error: "


_LM = ("lm", "--path", "lm.pt")
_HOST = ("--user-dir", "{plugins}", "--cpu", "--num-workers", "0")
READINGS: Dict[str, Reading] = {
    "average": _ours(
        *("average", "--path", "run/checkpoint1.pt", "run/checkpoint2.pt", "--out", "mean.pt"),
        files=["run/checkpoint1.pt", "run/checkpoint2.pt"],
        result=files("mean.pt"),
    ),
    "export": _ours(
        *("export", "translator.pt", "--data", "translation", "--out", "out"),
        files=["translator.pt", "translation/bpe.codes", "translation/dict.src.txt"],
        result=files("out/checkpoint_best.pt"),
    ),
    "analyze frequency": _ours("analyze frequency", "lm", "--path", "A=lm.pt", "B=mos.pt", files=[*LM, "mos.pt"]),
    "compare runs": _ours(
        *("compare runs", "lm", "--path", "A=run", "--out", "out"),
        files=[*LM, "run/train.log", "run/checkpoint_best.pt"],
        result=below("out"),
    ),
    "lm eval": _ours("lm eval", *_LM, "--json", files=[*LM, "lm.pt"]),
    "lm eval, n-grams": _ours("lm eval", *_LM, "--ngram", "ngram.arpa,0.3", files=["ngram.arpa"]),
    "lm eval, statistics": _ours("lm eval", *_LM, *DYNAMIC, files=["lm/train.idx", STATISTICS]),
    "ngram eval": _ours("ngram eval", "lm", "--path", "ngram.arpa", files=[*LM, "ngram.arpa"]),
    "evaluate rouge": _ours(
        "evaluate rouge", "--input", "generated", "--reference", "targets", files=["generated", "targets"]
    ),
    "evaluate bleu": _ours(
        *("evaluate bleu", "--input", "generated", "--reference", "targets", "--target-lang", "de"),
        files=["generated", "targets"],
    ),
    "analyze gate-words": _ours("analyze gate-words", "lm", "--path", "gated.pt", "--words", "the", files=["gated.pt"]),
    "decode": _ours(
        *("decode", "translation", "--path", "translator.pt", "--out", "out", "--bpe", "none"),
        files=[*PAIRS, "translator.pt"],
        result=decoded,
    ),
    "lm generate": _ours("lm generate", *_LM, "--max-length", "5", files=["lm.pt", "lm/text.json"], stdin=b"the\n"),
    "evaluate baselines": _ours(
        *("evaluate baselines", "--articles", "sources", "--titles", "targets", "--out", "out"),
        files=["sources", "targets"],
        result=below("out"),
    ),
    "analyze masking": _ours("analyze masking", "lm", "--path", "A=mos.pt", "--runs", "1", files=[*LM, "mos.pt"]),
    "analyze correlation": _ours("analyze correlation", "lm", "--path", "A=mos.pt", files=[*LM, "mos.pt"]),
    "analyze rank": _ours("analyze rank", *_LM, files=[*LM, "lm.pt"]),
    "analyze attention": _ours(
        *("analyze attention", "translation", "--path", "translator.pt", "--out", "out"),
        files=["translator.pt", "translation/bpe.codes"],
        stdin=b"a b\n",
        result=below("out"),
    ),
    "analyze experts": _ours(
        "analyze experts", *_LM, "--out", "out", files=["lm.pt"], stdin=b"the cat eats\n", result=below("out")
    ),
    "analyze expert-history": _ours(
        *("analyze expert-history", "lm", "--path", "A=history", "--plot", "out.png"),
        files=["history/checkpoint_1_20.pt", *LM],
        result=files("out.png"),
    ),
    "analyze generalization": _ours("analyze generalization", "--path", "A=run", files=["run/train.log"]),
    "compare curves": _ours("compare curves", "--path", "A=run", files=["run/train.log"]),
    "rescore": _ours(
        *("rescore", "translation", "--path", "translator.pt", "--input", "generated", "--reference", "targets"),
        *("--tune", "tuned"),
        files=["translator.pt", "generated", "targets"],
    ),
    "analyze spectrum": _ours(
        "analyze spectrum", "lm", "--path", "A=rnn.pt", "--plot", "out.png", files=["rnn.pt"], result=files("out.png")
    ),
    "analyze timescales": _ours("analyze timescales", "lm", "--path", "A=fpnn.pt", files=["fpnn.pt", "lm/dict.txt"]),
    "trees rerank": _ours(
        *("trees rerank", "parses", "--path", "trees.pt"),
        *("--lists", "parses/nbest.valid.txt", "--gold", "parses/trees/gold.valid.trees"),
        files=["parses/nbest.valid.txt", "parses/trees/gold.valid.trees", "parses/dict.txt", "trees.pt"],
    ),
    "lm score": _ours("lm score", *_LM, files=["lm.pt", "lm/dict.txt", "lm/text.json"], stdin=b"the cat eats\n"),
    "ngram train": _ours(
        *("ngram train", "lm", "--order", "2", "--out", "more.arpa"),
        files=["lm/train.bin", "lm/train.idx"],
        result=files("more.arpa"),
    ),
    "translate": _ours(
        *("translate", "translation", "--path", "translator.pt"),
        files=["translator.pt", "translation/text.json", "translation/bpe.codes", "translation/dict.tgt.txt"],
        stdin=b"a b\n",
    ),
    "fairseq-generate": Reading(
        ["fairseq_cli.generate", "translation", "--path", "translator.pt", "--beam", "2", *_HOST],
        files=[*PAIRS, "translator.pt"],
    ),
    "fairseq-interactive": Reading(
        ["fairseq_cli.interactive", "translation", "--path", "translator.pt", "--beam", "2", *_HOST],
        files=["translation/dict.src.txt", "translation/dict.tgt.txt", "translator.pt"],
        stdin=b"a b\n",
    ),
    "fairseq-validate": Reading(
        [
            *("fairseq_cli.validate", "lm", "--path", "lm.pt", "--task", "stateful_lm", "--valid-subset", "test"),
            *("--batch-size", "1", *_HOST),
        ],
        files=[*LM, "lm.pt"],
    ),
    "fairseq-train, resumed": Reading(
        [
            *("fairseq_cli.train", "lm", "--task", "stateful_lm", "--arch", "fpnn_lm", "--embed-dim", "8"),
            *("--hidden-sizes", "8", "--batch-size", "2", "--tokens-per-sample", "5"),
            *("--optimizer", "sgd", "--lr", "1"),
            *("--max-update", "4", "--restore-file", "fpnn.pt", "--save-dir", "trained", *_HOST),
        ],
        files=[
            "lm/dict.txt",
            *(f"lm/{split}.{kind}" for split in ("train", "valid") for kind in ("idx", "bin")),
            "fpnn.pt",
        ],
        result=weights,
    ),
    "fairseq-eval-lm": Reading(
        ["fairseq_cli.eval_lm", "lm", "--path", "lm.pt", "--task", "stateful_lm", *_HOST], files=[*LM, "lm.pt"]
    ),
}
