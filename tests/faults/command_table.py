"""A command line for every command that reads or writes files: what it reads, and digests of what it must leave."""

import hashlib
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Sequence

import torch
from paths import PLUGINS, ROOT

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


class Tried(NamedTuple):
    """A command line that ends well on undamaged files.

    Attributes:
        words: the module or file, and its arguments.
        reads: files whose damage is tried.
        stdin: what is typed.
        result: what counts of what it has written to a folder.
        unkept: what is told where the command ends well on a full disk, without what it would keep for later.
    """

    words: List[str]
    reads: Sequence[str] = ()
    stdin: bytes = b""
    result: Callable[[Path], object] = nothing
    unkept: str = ""

    @property
    def told(self) -> str:
        """The beginning of the line by which it refuses something."""
        if self.words[0] != "fairseq_plugins":
            return "error: "
        length = 2 if " ".join(self.words[1:3]) in COMMANDS else 1
        return f"fairseq-plugins {' '.join(self.words[1 : 1 + length])}: error: "


def _ours(name: str, *words: str, **more) -> Tried:
    return Tried(["fairseq_plugins", *name.split(), *words], **more)


_LM, _PAIRS = ("lm", "--path", "lm.pt"), ("translation", "--path", "translator.pt")
_PLOT, _OUT = ("--plot", "out.png"), ("--out", "out")
_PICTURE = files("out.png")
_TEXTS = ("--input", "generated", "--reference", "targets")
_DECODING = ("--split", "test", "--bpe", "none", "--", "--cpu", "--num-workers", "0")
_HOST = ("--user-dir", str(PLUGINS), "--cpu", "--num-workers", "0")
_TRAINING = (
    *("lm", "--save-dir", "trained", *_HOST, "--log-format", "simple"),
    *("--task", "stateful_lm", "--arch", "lstm_lm_doc", "--embed-dim", "8", "--hidden-sizes", "8 8"),
    *("--experts-per-layer", "0 1 2", "--batch-size", "4", "--batch-size-valid", "2", "--tokens-per-sample", "20"),
    *("--optimizer", "nt_asgd", "--nonmonotone-interval", "0", "--lr", "1", "--max-epoch", "3"),
)
TRIED: Dict[str, Tried] = {
    "training": Tried(["fairseq_cli.train", *_TRAINING], result=weights),
    "prepared corpus": Tried(
        [
            *(str(ROOT / "data-prep/prepare.py"), "wsj", "--from", "downloads"),
            *("--dest", "prepared", "--work", "work"),
        ],
        result=below("prepared"),
    ),
    "average": _ours(
        *("average", "--path", "run/checkpoint1.pt", "run/checkpoint2.pt", "--out", "mean.pt"),
        reads=["run/checkpoint1.pt", "run/checkpoint2.pt"],
        result=files("mean.pt"),
    ),
    "export": _ours(
        *("export", "translator.pt", "--data", "translation", *_OUT),
        reads=["translator.pt", "translation/bpe.codes", "translation/dict.src.txt"],
        result=below("out"),
    ),
    "export, by torch": _ours(
        *("export", "translator.pt", "--data", "translation", "--torch-export", *_OUT), result=below("out")
    ),
    "analyze frequency": _ours(
        *("analyze frequency", "lm", "--path", "A=lm.pt", "B=mos.pt", *_PLOT),
        reads=[*LM, "mos.pt"],
        result=_PICTURE,
    ),
    "compare runs": _ours(
        *("compare runs", "lm", "--path", "A=run", *_OUT),
        reads=[*LM, "run/train.log", "run/checkpoint_best.pt"],
        result=below("out"),
    ),
    "lm eval": _ours("lm eval", *_LM, "--json", reads=[*LM, "lm.pt"]),
    "lm eval, n-grams": _ours("lm eval", *_LM, "--ngram", "ngram.arpa,0.3", reads=["ngram.arpa"]),
    "lm eval, statistics": _ours("lm eval", *_LM, *DYNAMIC, reads=["lm/train.idx", STATISTICS]),
    "lm eval, new statistics": _ours(
        *("lm eval", *_LM, "--cpu", "--dynamic", "rms", "--dynamic-rows", "2", "--dynamic-segment", "6"),
        result=files("lm.gradients-2x6.pt"),
        unkept="gradient statistics are not kept: lm.gradients-2x6.pt: ",
    ),
    "lm eval, tuned": _ours("lm eval", *_LM, "--cpu", "--tune", "temperature=0.9:1", result=files("lm.methods.json")),
    "ngram eval": _ours("ngram eval", "lm", "--path", "ngram.arpa", reads=[*LM, "ngram.arpa"]),
    "evaluate rouge": _ours("evaluate rouge", *_PAIRS, *_OUT, *_DECODING, result=decoded),
    "evaluate rouge, text": _ours("evaluate rouge", *_TEXTS, reads=["generated", "targets"]),
    "evaluate bleu": _ours("evaluate bleu", *_PAIRS, *_OUT, *_DECODING, result=decoded),
    "evaluate bleu, text": _ours(
        *("evaluate bleu", *_TEXTS, "--target-lang", "de", "--write-hypotheses", "hypotheses"),
        reads=["generated", "targets"],
        result=files("hypotheses"),
    ),
    "analyze gate-words": _ours("analyze gate-words", "lm", "--path", "gated.pt", "--words", "the", reads=["gated.pt"]),
    "decode": _ours("decode", *_PAIRS, *_OUT, *_DECODING, reads=[*PAIRS, "translator.pt"], result=decoded),
    "lm generate": _ours("lm generate", *_LM, "--max-length", "5", reads=["lm.pt", "lm/text.json"], stdin=b"the\n"),
    "analyze masking": _ours(
        *("analyze masking", "lm", "--path", "A=mos.pt", "--runs", "1", *_PLOT),
        reads=[*LM, "mos.pt"],
        result=_PICTURE,
    ),
    "analyze correlation": _ours("analyze correlation", "lm", "--path", "A=mos.pt", reads=[*LM, "mos.pt"]),
    "analyze rank": _ours("analyze rank", *_LM, reads=[*LM, "lm.pt"]),
    "analyze attention": _ours(
        *("analyze attention", *_PAIRS, *_OUT),
        reads=["translator.pt", "translation/bpe.codes"],
        stdin=b"a b\n",
        result=below("out"),
    ),
    "analyze experts": _ours(
        *("analyze experts", *_LM, *_OUT), reads=["lm.pt"], stdin=b"the cat eats\n", result=below("out")
    ),
    "analyze expert-history": _ours(
        *("analyze expert-history", "lm", "--path", "A=history", *_PLOT),
        reads=["history/checkpoint_1_20.pt", *LM],
        result=_PICTURE,
    ),
    "analyze generalization": _ours(
        *("analyze generalization", "--path", "A=run", *_PLOT), reads=["run/train.log"], result=_PICTURE
    ),
    "compare curves": _ours("compare curves", "--path", "A=run", *_PLOT, reads=["run/train.log"], result=_PICTURE),
    "rescore": _ours(
        *("rescore", *_PAIRS, *_TEXTS, "--tune", "tuned"),
        reads=["translator.pt", "generated", "targets"],
        result=files("tuned"),
    ),
    "analyze spectrum": _ours(
        "analyze spectrum", "lm", "--path", "A=rnn.pt", *_PLOT, reads=["rnn.pt"], result=_PICTURE
    ),
    "analyze timescales": _ours(
        *("analyze timescales", "lm", "--path", "A=fpnn.pt", *_PLOT), reads=["fpnn.pt", "lm/dict.txt"], result=_PICTURE
    ),
    "trees rerank": _ours(
        *("trees rerank", "parses", "--path", "trees.pt"),
        *("--lists", "parses/nbest.valid.txt", "--gold", "parses/trees/gold.valid.trees", *_OUT),
        reads=["parses/nbest.valid.txt", "parses/trees/gold.valid.trees", "parses/dict.txt", "trees.pt"],
        result=below("out"),
    ),
    "lm score": _ours(
        *("lm score", *_LM, *_PLOT),
        reads=["lm.pt", "lm/dict.txt", "lm/text.json"],
        stdin=b"the cat eats\n",
        result=_PICTURE,
    ),
    "ngram train": _ours(
        *("ngram train", "lm", "--order", "2", "--out", "more.arpa"),
        reads=["lm/train.bin", "lm/train.idx"],
        result=files("more.arpa"),
    ),
    "translate": _ours(
        *("translate", *_PAIRS, *_PLOT),
        reads=["translator.pt", "translation/text.json", "translation/bpe.codes", "translation/dict.tgt.txt"],
        stdin=b"a b\n",
        result=_PICTURE,
    ),
    "fairseq-generate": Tried(
        ["fairseq_cli.generate", *_PAIRS, "--beam", "2", *_HOST],
        reads=[*PAIRS, "translator.pt"],
    ),
    "fairseq-interactive": Tried(
        ["fairseq_cli.interactive", *_PAIRS, "--beam", "2", *_HOST],
        reads=["translation/dict.src.txt", "translation/dict.tgt.txt", "translator.pt"],
        stdin=b"a b\n",
    ),
    "fairseq-validate": Tried(
        [
            *("fairseq_cli.validate", *_LM, "--task", "stateful_lm", "--valid-subset", "test"),
            *("--batch-size", "1", *_HOST),
        ],
        reads=[*LM, "lm.pt"],
    ),
    "fairseq-train, resumed": Tried(
        [
            *("fairseq_cli.train", "lm", "--task", "stateful_lm", "--arch", "fpnn_lm", "--embed-dim", "8"),
            *("--hidden-sizes", "8", "--batch-size", "2", "--tokens-per-sample", "5"),
            *("--optimizer", "sgd", "--lr", "1"),
            *("--max-update", "4", "--restore-file", "fpnn.pt", "--save-dir", "trained", *_HOST),
        ],
        reads=[
            "lm/dict.txt",
            *(f"lm/{split}.{kind}" for split in ("train", "valid") for kind in ("idx", "bin")),
            "fpnn.pt",
        ],
        result=weights,
    ),
    "fairseq-eval-lm": Tried(["fairseq_cli.eval_lm", *_LM, "--task", "stateful_lm", *_HOST], reads=[*LM, "lm.pt"]),
}
"""By the name of the command, and what it reads or writes where there are several lines."""
READINGS = {name: tried for name, tried in TRIED.items() if tried.reads}
WRITINGS = {name: tried for name, tried in TRIED.items() if tried.result is not nothing}
del WRITINGS["fairseq-train, resumed"]  # the training from the beginning is among them
