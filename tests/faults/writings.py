"""Command lines that write files, and what each must leave."""

from pathlib import Path
from typing import Callable, Dict, List, NamedTuple

from readings import below, decoded, files, told_by, weights
from workplace import ROOT

PLUGINS = str(ROOT / "fairseq_plugins")
TRAINING = [
    *("--user-dir", PLUGINS, "--cpu", "--num-workers", "0", "--log-format", "simple"),
    *("--task", "stateful_lm", "--arch", "lstm_lm_doc", "--embed-dim", "8", "--hidden-sizes", "8 8"),
    *("--experts-per-layer", "0 1 2", "--batch-size", "4", "--batch-size-valid", "2", "--tokens-per-sample", "20"),
    *("--optimizer", "nt_asgd", "--nonmonotone-interval", "0", "--lr", "1", "--max-epoch", "3"),
]


class Writing(NamedTuple):
    """A command line.

    Attributes:
        words: the module or file, and its arguments.
        result: what counts of what it has written to a folder.
        stdin: what is typed.
        unkept: what is told where the command ends well on a full disk, without what it would keep for later.
    """

    words: List[str]
    result: Callable[[Path], object]
    stdin: bytes = b""
    unkept: str = ""

    @property
    def told(self) -> str:
        """The beginning of the line that refuses it."""
        return told_by(self.words)


def _ours(name: str, *words: str, result: Callable[[Path], object], stdin: bytes = b"", unkept: str = "") -> Writing:
    return Writing(["fairseq_plugins", *name.split(), *words], result, stdin, unkept)


_LM, _PAIRS = ("lm", "--path", "lm.pt"), ("translation", "--path", "translator.pt")
_PLOT, _OUT = ("--plot", "out.png"), ("--out", "out")
_DECODING = ("--split", "test", "--bpe", "none", "--", "--cpu", "--num-workers", "0")
_PICTURE = files("out.png")

WRITINGS: Dict[str, Writing] = {
    "training": Writing(["fairseq_cli.train", "lm", "--save-dir", "trained", *TRAINING], weights),
    "prepared corpus": Writing(
        [
            *(str(ROOT / "data-prep/prepare.py"), "wsj", "--from", "downloads"),
            *("--dest", "prepared", "--work", "work"),
        ],
        below("prepared"),
    ),
    "average": _ours(
        *("average", "--path", "run/checkpoint1.pt", "run/checkpoint2.pt", "--out", "mean.pt"),
        result=files("mean.pt"),
    ),
    "export": _ours("export", "translator.pt", "--data", "translation", "--torch-export", *_OUT, result=below("out")),
    "analyze frequency": _ours("analyze frequency", "lm", "--path", "A=lm.pt", "B=mos.pt", *_PLOT, result=_PICTURE),
    "compare runs": _ours("compare runs", "lm", "--path", "A=run", *_OUT, result=below("out")),
    "lm eval, statistics": _ours(
        *("lm eval", *_LM, "--cpu", "--dynamic", "rms", "--dynamic-rows", "2", "--dynamic-segment", "6"),
        result=files("lm.gradients-2x6.pt"),
        unkept="gradient statistics are not kept: lm.gradients-2x6.pt: ",
    ),
    "lm eval, tuned": _ours("lm eval", *_LM, "--cpu", "--tune", "temperature=0.9:1", result=files("lm.methods.json")),
    "evaluate rouge": _ours("evaluate rouge", *_PAIRS, *_OUT, *_DECODING, result=decoded),
    "evaluate bleu": _ours("evaluate bleu", *_PAIRS, *_OUT, *_DECODING, result=decoded),
    "evaluate bleu, text": _ours(
        *("evaluate bleu", "--input", "generated", "--reference", "targets", "--target-lang", "de"),
        *("--write-hypotheses", "hypotheses"),
        result=files("hypotheses"),
    ),
    "decode": _ours("decode", *_PAIRS, *_OUT, *_DECODING, result=decoded),
    "evaluate baselines": _ours(
        "evaluate baselines", "--articles", "sources", "--titles", "targets", *_OUT, result=below("out")
    ),
    "analyze masking": _ours("analyze masking", "lm", "--path", "A=mos.pt", "--runs", "1", *_PLOT, result=_PICTURE),
    "analyze attention": _ours("analyze attention", *_PAIRS, *_OUT, result=below("out"), stdin=b"a b\n"),
    "analyze expert-history": _ours("analyze expert-history", "lm", "--path", "A=history", *_PLOT, result=_PICTURE),
    "analyze experts": _ours("analyze experts", *_LM, *_OUT, result=below("out"), stdin=b"the cat eats\n"),
    "analyze generalization": _ours("analyze generalization", "--path", "A=run", *_PLOT, result=_PICTURE),
    "compare curves": _ours("compare curves", "--path", "A=run", *_PLOT, result=_PICTURE),
    "analyze spectrum": _ours("analyze spectrum", "lm", "--path", "A=rnn.pt", *_PLOT, result=_PICTURE),
    "analyze timescales": _ours("analyze timescales", "lm", "--path", "A=fpnn.pt", *_PLOT, result=_PICTURE),
    "trees rerank": _ours(
        *("trees rerank", "parses", "--path", "trees.pt"),
        *("--lists", "parses/nbest.valid.txt", "--gold", "parses/trees/gold.valid.trees", *_OUT),
        result=below("out"),
    ),
    "rescore": _ours(
        *("rescore", *_PAIRS, "--input", "generated", "--reference", "targets", "--tune", "tuned"),
        result=files("tuned"),
    ),
    "lm score": _ours("lm score", *_LM, *_PLOT, result=_PICTURE, stdin=b"the cat eats\n"),
    "ngram train": _ours("ngram train", "lm", "--order", "2", "--out", "written.arpa", result=files("written.arpa")),
    "translate": _ours("translate", *_PAIRS, *_PLOT, result=_PICTURE, stdin=b"a b\n"),
}
"""By the name of the command, and what it writes where it writes several things."""

WITHOUT = dict.fromkeys(("train", "fine-tune", "run"), "starts trainings, which are here")
"""Commands that write and are left out, and why."""
