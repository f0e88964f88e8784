"""Language models of Takase et al. 2017 (Input-to-Output Gate): tables 2, 3 and 4, base models and gates on them.

The rows with a cache are in the notes. The recurrent highway network of WikiText-2 is in the published program alone.
"""

from typing import Dict, Mapping, Optional, Tuple

from fairseq_plugins.models.presets import ARCHITECTURES, Value
from fairseq_plugins.models.presets.gated import ON_AWD
from fairseq_plugins.recipes.recipe import FULL_SIZE, Recipe
from fairseq_plugins.recipes.system import Base, System

_BASE, _GATED = "base", "gated"
_NOTES = """A system with a + is a gate: train its base model first, the system before the +, and give the checkpoint
by --base-model CKPT. The base model of Zaremba's and variational LSTMs and of recurrent highway networks is the model
after the last epoch, checkpoint_last.pt; of AWD-LSTM it is awd-fin, the fine-tuning of awd: --finetune-from-model CKPT.
run_recipe does all that. The result of a gate is its checkpoint_best.pt. Gates on AWD-LSTM start nearer to zero
and are clipped harder than others, as in the published program. In it the transform gates of recurrent highway networks
read the candidate and start half open; train them so by --transform-input candidate --transform-bias 0. The published
valid perplexities are those of a program that divides by too many words, but for AWD-LSTM's and those with a cache: on
Penn Treebank they are 0.35 % (base) and 0.57 % (gate) too low, on WikiText-2 0.2 %; those of test are right."""
_ENSEMBLES = """
rhn5+iog and rhn10+iog have one gate for 5 and 10 models of the system rhn: --base-model A:B:C:D:E. Train each with
another --seed, because equal seeds give equal models. The gate of rhn+iog-hidden reads the hidden state, too, and that
of rhn+iog-lstm is recurrent; of these two the paper has test figures alone. The base of an ensemble is the mean
of its models: python -m fairseq_plugins.cli.evaluate_lm DATA --path A B C D E."""

_CACHE_PTB = """
With a cache, by evaluate_lm DATA --path CKPT --cache 500,0.1,1.0, awd-fin has 53.4 / 53.0 and awd+iog 53.3 / 53.0."""
_CACHE_WT2 = """
With a cache, by evaluate_lm DATA --path CKPT and --cache 2000,0.2,0.3 --cache-start first: variational-medium 69.6 /
66.1 and with the gate 69.3 / 65.9; --cache 3785,0.1279,0.662: awd-fin 53.5 / 51.7 and awd+iog 53.6 / 51.7."""


def _base(arch: str, figures: str) -> System:
    """The model after the last epoch."""
    return System({"arch": arch}, published={_BASE: figures}, result="last")


def _fine_tuned(arch: str, *, base: str, figures: str) -> System:
    """The model ``base`` trained on as in its paper."""
    return System(
        {"arch": arch, **ARCHITECTURES[arch].averaging_flags},
        published={_BASE: figures},
        base=Base(system=base, flag="finetune-from-model"),
    )


def _gate(
    arch: str, base: str, *, published: Tuple[str, str], num: int = 1, flags: Optional[Mapping[str, Value]] = None
) -> System:
    """A gate on ``num`` models of the system ``base``; published are theirs and its perplexities."""
    return System(
        {"arch": arch, **(flags or {})},
        published={_BASE: published[0], _GATED: published[1]},
        base=Base(system=base, flag="base-model", num=num),
    )


def _recipe(*, suffix: str, corpus: str, title: str, systems: Dict[str, System], notes: str) -> Recipe:
    return Recipe(
        name=f"iog_{suffix}",
        title=f"{title}: Input-to-Output Gate and its base models, with the settings of Takase et al. 2017",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=systems,
        training=FULL_SIZE,
        metric="perplexity, valid / test",
        notes=notes,
    )


_GATE_PTB, _GATE_WT2 = "gated_lm_ptb", "gated_lm_wt2"

PTB = _recipe(
    suffix="ptb",
    corpus="ptb",
    title="Penn Treebank",
    notes=_NOTES + _ENSEMBLES + _CACHE_PTB,
    systems={
        "zaremba-medium": _base("lstm_lm_zaremba_medium_ptb", "87.1 / 84.0"),
        "zaremba-medium+iog": _gate(_GATE_PTB, "zaremba-medium", published=("87.1 / 84.0", "84.1 / 81.1")),
        "zaremba-large": _base("lstm_lm_zaremba_large_ptb", "82.7 / 78.6"),
        "zaremba-large+iog": _gate(_GATE_PTB, "zaremba-large", published=("82.7 / 78.6", "78.5 / 75.5")),
        "variational-medium": _base("lstm_lm_variational_medium_ptb", "82.8 / 79.1"),
        "variational-medium+iog": _gate(_GATE_PTB, "variational-medium", published=("82.8 / 79.1", "81.2 / 78.1")),
        "variational-large": _base("lstm_lm_variational_large_ptb", "78.1 / 74.6"),
        "variational-large+iog": _gate(_GATE_PTB, "variational-large", published=("78.1 / 74.6", "76.9 / 74.1")),
        "rhn": _base("rhn_lm_ptb", "72.1 / 68.9"),
        "rhn+iog": _gate(_GATE_PTB, "rhn", published=("72.1 / 68.9", "69.2 / 66.5")),
        "rhn+iog-hidden": _gate(_GATE_PTB, "rhn", published=("68.9", "75.6"), flags={"output-gate": "iog-hidden"}),
        "rhn+iog-lstm": _gate(_GATE_PTB, "rhn", published=("68.9", "68.1"), flags={"output-gate": "iog-lstm"}),
        "rhn5+iog": _gate(_GATE_PTB, "rhn", num=5, published=("66.1 / 63.1", "64.7 / 62.0")),
        "rhn10+iog": _gate(_GATE_PTB, "rhn", num=10, published=("65.2 / 62.3", "64.1 / 61.4")),
        "rhn-tied": _base("rhn_lm_tied_ptb", "69.2 / 66.3"),
        "rhn-tied+iog": _gate(_GATE_PTB, "rhn-tied", published=("69.2 / 66.3", "67.0 / 64.4")),
        "awd": System({"arch": "lstm_lm_awd_ptb"}),
        "awd-fin": _fine_tuned("lstm_lm_awd_ptb", base="awd", figures="58.6 / 56.7"),
        "awd+iog": _gate(_GATE_PTB, "awd-fin", published=("58.6 / 56.7", "58.5 / 56.7"), flags=ON_AWD),
    },
)
WT2 = _recipe(
    suffix="wt2",
    corpus="wikitext-2",
    title="WikiText-2",
    notes=_NOTES + _CACHE_WT2,
    systems={
        "zaremba-medium": _base("lstm_lm_zaremba_medium_wt2", "102.2 / 96.2"),
        "zaremba-medium+iog": _gate(_GATE_WT2, "zaremba-medium", published=("102.2 / 96.2", "99.2 / 93.8")),
        "variational-medium": _base("lstm_lm_variational_medium_wt2", "97.2 / 91.8"),
        "variational-medium+iog": _gate(_GATE_WT2, "variational-medium", published=("97.2 / 91.8", "95.9 / 91.0")),
        "rhn-tied": _base("rhn_lm_tied_wt2", "80.1 / 76.1"),
        "rhn-tied+iog": _gate(_GATE_WT2, "rhn-tied", published=("80.1 / 76.1", "76.9 / 73.9")),
        "awd": System({"arch": "lstm_lm_awd_wt2"}),
        "awd-fin": _fine_tuned("lstm_lm_awd_wt2", base="awd", figures="68.6 / 65.8"),
        "awd+iog": _gate(_GATE_WT2, "awd-fin", published=("68.6 / 65.8", "68.6 / 65.9"), flags=ON_AWD),
    },
)
