"""The console script ``fairseq-plugins``: all commands by name, and the choice among them.

Commands are listed without importing torch and fairseq: only the chosen command's module imports them.
"""

import logging
import sys
from importlib import import_module
from typing import Dict, List, Optional, Sequence, Tuple

from fairseq_plugins.console import Command, OneLineParser, did_you_mean, ended_in_a_line

PROGRAM = "fairseq-plugins"

COMMANDS: Dict[str, Tuple[str, str]] = {
    "train": ("train.TRAIN", "Train a system of a recipe by fairseq-train."),
    "run": ("run.RUN", "Train systems of a recipe with several seeds, decode, and compare them in one table."),
    "fine-tune": ("train.FINE_TUNE", "Train a model on another corpus, or a language model in rounds of averaged SGD."),
    "average": ("train.AVERAGE", "Average the weights of several checkpoints of one run (Vaswani et al. 2017)."),
    "export": ("export.EXPORT", "Write a model as a folder that needs no corpus beside it."),
    "serve": ("serve.SERVE", "Answer HTTP requests by a model, with a page to try it."),
    "flags": ("flags.FLAGS", "Explain the flags of an architecture, or print the training flags of its preset."),
    "lm eval": ("language_models.EVAL", "Perplexity of language models on a split, read as one stream."),
    "lm score": ("language_models.SCORE", "Log-probability of lines of plain text, and surprisal of their words."),
    "lm generate": ("language_models.GENERATE", "Continue the beginnings of lines by sampling or beam search."),
    "translate": ("translation.TRANSLATE", "Translate raw sentences by beam search."),
    "decode": ("decode.DECODE", "Decode a split by fairseq-generate, unless this has been done."),
    "rescore": ("rescore.RESCORE", "Rescore n-best lists by models, with weights tuned to BLEU, chrF or ROUGE."),
    "evaluate bleu": ("evaluate.BLEU", "BLEU and chrF of a split that is decoded, or of given translations."),
    "evaluate rouge": ("evaluate.ROUGE", "ROUGE-1, -2 and -L of a split that is decoded, or of given headlines."),
    "compare runs": ("compare.RUNS", "Trained models in one table, with means and deviations over seeds."),
    "compare curves": ("compare.CURVES", "Learning curves of runs, from their logs, also while they train."),
    "analyze frequency": ("analyze.FREQUENCY", "Gain of one language model over another by the frequency of words."),
    "analyze rank": ("analyze.RANK", "Rank of a language model's log-probabilities."),
    "analyze correlation": ("analyze.CORRELATION", "Correlation of the features of each layer."),
    "analyze masking": ("analyze.MASKING", "Perplexity with layer outputs set to zero at random."),
    "analyze gate-words": ("analyze.GATE_WORDS", "Words that an Input-to-Output Gate raises after given words."),
    "analyze experts": ("experts.EXPERTS", "Which softmax of a mixture served which words, and how evenly."),
    "analyze expert-history": ("experts.EXPERT_HISTORY", "Words and gradient of each expert in the course of a run."),
    "analyze spectrum": ("analyze.SPECTRUM", "Eigenvalues of the recurrent matrices of networks without gates."),
    "analyze timescales": ("analyze.TIMESCALES", "Memory of the units of linear recurrent networks, in tokens."),
    "analyze generalization": ("analyze.GENERALIZATION", "Validation perplexity at equal training perplexity."),
    "analyze attention": ("experts.ATTENTION", "Attention maps, source by target, of sentences that are translated."),
    "ngram train": ("ngram.TRAIN", "Estimate an n-gram model with interpolated modified Kneser-Ney smoothing."),
    "ngram eval": ("ngram.EVAL", "Perplexity of an n-gram model in an ARPA file, on a split."),
    "trees rerank": ("trees.RERANK", "Bracket scores of the trees that language models choose among candidates."),
}
"""Module and name of each command's :class:`Command` in this package, and what it does in one line."""


def load_command(name: str) -> Command:
    """Import a command of :data:`COMMANDS`, after registering everything with fairseq."""
    import_module("fairseq_plugins.registration")
    module, constant = COMMANDS[name][0].split(".")
    return getattr(import_module(f"{__package__}.{module}"), constant)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command that the command line names. A prefix of names, or ``--help``, lists the commands."""
    given = [str(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    logging.getLogger().setLevel(logging.WARNING)  # hides fairseq's messages about imports and loading
    name = next((" ".join(given[:length]) for length in (2, 1) if " ".join(given[:length]) in COMMANDS), None)
    group = given[:1] if any(full.startswith(f"{given[0]} ") for full in COMMANDS if given) else []
    parser = OneLineParser(prog=" ".join([PROGRAM, *([name] if name else group)]))
    with ended_in_a_line(parser):
        if name is not None:
            try:
                command = load_command(name)
            except ModuleNotFoundError as error:
                if error.name not in ("torch", "fairseq"):
                    raise
                parser.error("no fairseq in this Python: activate the environment of bash scripts/setup.sh, .venv")
            command.main(given[len(name.split()) :], program=f"{PROGRAM} {name}", summary=COMMANDS[name][1])
            return
        rest = given[len(group) :]
        if rest[:1] not in ([], ["-h"], ["--help"]):
            words = _next_words(group)
            parser.error(f"{rest[0]}: no such command{did_you_mean(rest[0], words)}, give one of {', '.join(words)}")
        print(_listing(group))


def _names(group: Sequence[str]) -> List[str]:
    """Names of the commands of a group, or of all commands."""
    return [name for name in COMMANDS if name.split()[: len(group)] == list(group)]


def _next_words(group: Sequence[str]) -> List[str]:
    return list(dict.fromkeys(name.split()[len(group)] for name in _names(group)))


def _listing(group: Sequence[str]) -> str:
    """A line for each command of a group, or for all commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {COMMANDS[name][1]}" for name in _names(group)]
    called = " ".join([PROGRAM, *group, "COMMAND"])
    return "\n".join([f"usage: {called} ...", "", f"{PROGRAM} COMMAND --help explains a command.", "", *lines])
