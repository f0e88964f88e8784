"""Command lines that write files, and what each must leave."""

from pathlib import Path
from typing import Callable, Dict, List, NamedTuple

from readings import below, decoded, files, weights
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
        module = self.words[0]
        if module.startswith("fairseq_cli."):
            return "error: "
        return f"python -m {module}: error: " if module.startswith("fairseq_plugins.") else "error: "


def _ours(name: str, *words: str, result: Callable[[Path], object], stdin: bytes = b"", unkept: str = "") -> Writing:
    return Writing([f"fairseq_plugins.cli.{name}", *words], result, stdin, unkept)


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
    "average_checkpoints": _ours(
        *("average_checkpoints", "--path", "run/checkpoint1.pt", "run/checkpoint2.pt", "--out", "mean.pt"),
        result=files("mean.pt"),
    ),
    "compare_by_frequency": _ours(
        "compare_by_frequency", "lm", "--path", "A=lm.pt", "B=mos.pt", *_PLOT, result=_PICTURE
    ),
    "compare_runs": _ours("compare_runs", "lm", "--path", "A=run", *_OUT, result=below("out")),
    "evaluate_lm, statistics": _ours(
        *("evaluate_lm", *_LM, "--cpu", "--dynamic", "rms", "--dynamic-rows", "2", "--dynamic-segment", "6"),
        result=files("lm.gradients-2x6.pt"),
        unkept="gradient statistics are not kept: lm.gradients-2x6.pt: ",
    ),
    "evaluate_lm, tuned": _ours(
        "evaluate_lm", *_LM, "--cpu", "--tune", "temperature=0.9:1", result=files("lm.methods.json")
    ),
    "evaluate_rouge": _ours("evaluate_rouge", *_PAIRS, *_OUT, *_DECODING, result=decoded),
    "evaluate_translation": _ours("evaluate_translation", *_PAIRS, *_OUT, *_DECODING, result=decoded),
    "evaluate_translation, text": _ours(
        *("evaluate_translation", "--input", "generated", "--reference", "targets", "--target-lang", "de"),
        *("--write-hypotheses", "hypotheses"),
        result=files("hypotheses"),
    ),
    "generate_split": _ours("generate_split", *_PAIRS, *_OUT, *_DECODING, result=decoded),
    "headline_baselines": _ours(
        "headline_baselines", "--articles", "sources", "--titles", "targets", *_OUT, result=below("out")
    ),
    "mask_layers": _ours("mask_layers", "lm", "--path", "A=mos.pt", "--runs", "1", *_PLOT, result=_PICTURE),
    "plot_attention": _ours("plot_attention", *_PAIRS, *_OUT, result=below("out"), stdin=b"a b\n"),
    "plot_expert_history": _ours("plot_expert_history", "lm", "--path", "A=history", *_PLOT, result=_PICTURE),
    "plot_experts": _ours("plot_experts", *_LM, *_OUT, result=below("out"), stdin=b"the cat eats\n"),
    "plot_generalization": _ours("plot_generalization", "--path", "A=run", *_PLOT, result=_PICTURE),
    "plot_learning_curves": _ours("plot_learning_curves", "--path", "A=run", *_PLOT, result=_PICTURE),
    "plot_spectrum": _ours("plot_spectrum", "lm", "--path", "A=rnn.pt", *_PLOT, result=_PICTURE),
    "plot_timescales": _ours("plot_timescales", "lm", "--path", "A=fpnn.pt", *_PLOT, result=_PICTURE),
    "rerank_trees": _ours(
        *("rerank_trees", "parses", "--path", "trees.pt"),
        *("--lists", "parses/nbest.valid.txt", "--gold", "parses/trees/gold.valid.trees", *_OUT),
        result=below("out"),
    ),
    "rescore_nbest": _ours(
        *("rescore_nbest", *_PAIRS, "--input", "generated", "--reference", "targets", "--tune", "tuned"),
        result=files("tuned"),
    ),
    "score_text": _ours("score_text", *_LM, *_PLOT, result=_PICTURE, stdin=b"the cat eats\n"),
    "train_ngram": _ours("train_ngram", "lm", "--order", "2", "--out", "written.arpa", result=files("written.arpa")),
    "translate": _ours("translate", *_PAIRS, *_PLOT, result=_PICTURE, stdin=b"a b\n"),
}
"""By the name of the command, and what it writes where it writes several things."""

WITHOUT = dict.fromkeys(("train", "fine_tune", "run_recipe"), "starts trainings, which are here")
"""Commands that write and are left out, and why."""
