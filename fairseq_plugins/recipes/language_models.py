"""Recipes of language models, by paper. Recipes at a CPU budget and for measurements of speed follow."""

from typing import Dict, Mapping, Optional, Tuple

from fairseq_plugins.models.presets import ARCHITECTURES, LANGUAGE_MODELS, Value
from fairseq_plugins.models.presets.language_models import ON_AWD, SMALL
from fairseq_plugins.recipes.recipe import AVERAGED, FULL_SIZE, ON_CPUS, Base, Recipe, System

# Pachitariu & Sahani 2013: impulse-response (FPNN) and rectifier networks, tables 1 (Penn Treebank) and 2 (text8).

_TEST = "test"
_FPNN, _RECTIFIER = {"arch": "fpnn_lm_ptb"}, {"arch": "rectifier_rnn_lm_ptb"}
_FREE = {"dropout-output": 0, "column-norm": 0}
_DAMPED = {"optimizer": "damped_adagrad", "initial-accumulator": 1e-5, "lr": 0.1}
_DAMPED_RECTIFIER = {**_DAMPED, "initial-accumulator": 1e-7, "recurrent-scale": 0.1}
_SHORT, _LONG = {"force-anneal": 3, "max-epoch": 5}, {"force-anneal": 12, "max-epoch": 14}

FPNN_PTB = Recipe(
    name="fpnn_ptb",
    title="Penn Treebank: impulse-response (FPNN) and rectifier networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        "fpnn": System({**_FPNN, **_FREE}, published={_TEST: "137"}),
        "fpnn+l1": System({**_FPNN, **_FREE, "l1-regularization": 1e-6}, published={_TEST: "125"}),
        "fpnn+dropout+norm": System(_FPNN, published={_TEST: "102"}),
        "fpnn+dropout+norm+damped": System({**_FPNN, **_DAMPED, **_LONG}, published={_TEST: "102"}),
        "rectifier": System({**_RECTIFIER, **_FREE}, published={_TEST: "126"}),
        "rectifier+damped": System({**_RECTIFIER, **_FREE, **_DAMPED_RECTIFIER, **_SHORT}, published={_TEST: "126"}),
        "rectifier+dropout+norm": System(_RECTIFIER, published={_TEST: "107"}),
        "rectifier+dropout+norm+damped": System({**_RECTIFIER, **_DAMPED_RECTIFIER, **_LONG}, published={_TEST: "107"}),
    },
    training=FULL_SIZE,
    metric="perplexity",
    notes="""512 hidden units. fpnn, rectifier: nothing is regularised. fpnn+l1: L1 of all matrices. fpnn+dropout+norm,
rectifier+dropout+norm: half of the units are dropped before the softmax, and columns of both word matrices keep their
length. +damped: the sums of Adagrad start above zero, by which rare words move in short steps; more epochs. The paper
publishes neither optimiser, learning rate, length, strength of L1 nor schedule; length, optimiser and rate were
searched on valid (results/fpnn). Published of fpnn+dropout+norm, by evaluate_lm: with 5-grams and cache 94, of ten
copies 98.8 and 92.5; dynamic 98.4, 90.7, 95.1 and 89.1. The recurrent matrix of rectifier networks is 0.01 of its
parameters (--recurrent-scale), 0.1 with +damped: with Adagrad they diverge at 1.""",
)

_NOISE = {"criterion": "noise_contrastive", "noise-samples": 25, "accidental-hits": "counted"}
_FPNN_WORDS, _RECTIFIER_WORDS = {"arch": "fpnn_lm_text8_words"}, {"arch": "rectifier_rnn_lm_text8_words"}

FPNN_TEXT8_WORDS = Recipe(
    name="fpnn_text8",
    title="text8 by words: FPNN and rectifier networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/text8/prepare.sh",
    systems={
        "fpnn+nce": System({**_FPNN_WORDS, **_NOISE}, published={_TEST: "197"}),
        "rectifier+nce": System({**_RECTIFIER_WORDS, **_NOISE}, published={_TEST: "191"}),
        "rectifier+damped+nce": System({**_RECTIFIER_WORDS, **_NOISE, **_DAMPED_RECTIFIER}, published={_TEST: "191"}),
        "fpnn": System(_FPNN_WORDS),
        "rectifier": System(_RECTIFIER_WORDS),
        "rectifier+damped": System({**_RECTIFIER_WORDS, **_DAMPED_RECTIFIER}),
    },
    training=FULL_SIZE,
    metric="perplexity",
    notes="""512 hidden units, nothing is regularised. +nce: noise-contrastive estimation, as published; the others
learn by maximum likelihood. Both networks together (published: 168): python -m fairseq_plugins.cli.evaluate_lm DATA
--path FPNN RECTIFIER. The paper publishes neither optimiser, learning rate, number of noise words nor schedule, and
those here were not searched, except for +damped, which is that of Penn Treebank (results/fpnn).""",
)

_FPNN_CHARACTERS = {"arch": "fpnn_lm_text8_chars"}
_SMOOTH_RECTIFIER, _SKIPPING = {"arch": "rectifier_rnn_lm_text8_chars"}, {"arch": "skipping_rnn_lm_text8_chars"}
_DAMPED_CHARACTERS = {**_DAMPED, "initial-accumulator": 1e-7, "lr": 0.03, "recurrent-scale": 0.2}

FPNN_TEXT8_CHARACTERS = Recipe(
    name="fpnn_text8_chars",
    title="text8 by characters: FPNN, smooth rectifier and skipping networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/text8/prepare.sh --level char",
    systems={
        "fpnn+hidden": System(_FPNN_CHARACTERS, published={_TEST: "2.12"}),
        "fpnn+hidden+damped": System(
            {**_FPNN_CHARACTERS, **_DAMPED, "initial-accumulator": 1e-7, "lr": 0.015}, published={_TEST: "2.12"}
        ),
        "smooth-rectifier": System(_SMOOTH_RECTIFIER, published={_TEST: "1.55"}),
        "smooth-rectifier+damped": System({**_SMOOTH_RECTIFIER, **_DAMPED_CHARACTERS}, published={_TEST: "1.55"}),
        "skipping": System(_SKIPPING, published={_TEST: "1.48"}),
        "skipping+damped": System({**_SKIPPING, **_DAMPED_CHARACTERS}, published={_TEST: "1.48"}),
    },
    training=FULL_SIZE,
    metric="bits a character",
    notes="""2,048 hidden units; fpnn+hidden has a layer of rectifiers before the softmax. Bits are the mean
over characters and the end marks, one every 1,000 characters. No clipping, as published, but Adagrad in place of SGD
with momentum near 1, by which smooth rectifiers do not leave their start here (results/text8). +damped: its sums start
at 1e-7, and the recurrent matrix is 0.2 of its parameters, not 0.01; rate and scale were chosen from the first 50
updates. Other rates, the numbers of rows and epochs and the a of the smooth rectifier are not published, and those here
were not searched.""",
)


# Takase et al. 2017: Input-to-Output Gate, tables 2, 3 and 4. Base models and gates on them.
#
# The rows with a cache are in the notes. Only the published program has the recurrent highway network of WikiText-2.

_BASE, _GATED = "base", "gated"
_IOG_NOTES = """\
A system with a + is a gate: train its base model first, the system before the +, and give the checkpoint
by --base-model CKPT. The base model of Zaremba's and variational LSTMs and of recurrent highway networks is the model
after the last epoch, checkpoint_last.pt; of AWD-LSTM it is awd-fin, the fine-tuning of awd: --finetune-from-model CKPT.
run_recipe does all that. The result of a gate is its checkpoint_best.pt. Gates on AWD-LSTM start nearer to zero
and are clipped harder than others, as in the published program. In it the transform gates of recurrent highway networks
read the candidate and start half open; train them so by --transform-input candidate --transform-bias 0. The published
valid perplexities are those of a program that divides by too many words, except AWD-LSTM's and those with a cache: on
Penn Treebank they are 0.35 % (base) and 0.57 % (gate) too low, on WikiText-2 0.2 %; those of test are right."""
_IOG_ENSEMBLES = """
rhn5+iog and rhn10+iog have one gate for 5 and 10 models of the system rhn: --base-model A:B:C:D:E. Train each with
another --seed, because equal seeds give equal models. The gate of rhn+iog-hidden reads the hidden state, too, and that
of rhn+iog-lstm is recurrent; of these two the paper has test figures alone. The base of an ensemble is the mean
of its models: python -m fairseq_plugins.cli.evaluate_lm DATA --path A B C D E."""

_IOG_CACHE_PTB = """
With a cache, by evaluate_lm DATA --path CKPT --cache 500,0.1,1.0, awd-fin has 53.4 / 53.0 and awd+iog 53.3 / 53.0."""
_IOG_CACHE_WT2 = """
With a cache, by evaluate_lm DATA --path CKPT and --cache 2000,0.2,0.3 --cache-start first: variational-medium 69.6 /
66.1 and with the gate 69.3 / 65.9; --cache 3785,0.1279,0.662: awd-fin 53.5 / 51.7 and awd+iog 53.6 / 51.7."""


def _iog_base(arch: str, figures: str) -> System:
    """A base model, which is the model after the last epoch."""
    return System({"arch": arch}, published={_BASE: figures}, result="last")


def _fine_tuned(arch: str, *, base: str, figures: str) -> System:
    """The model ``base`` fine-tuned as in its paper."""
    return System(
        {"arch": arch, **ARCHITECTURES[arch].averaging_flags},
        published={_BASE: figures},
        base=Base(system=base, flag="finetune-from-model"),
    )


def _iog_gate(
    arch: str, base: str, *, published: Tuple[str, str], num: int = 1, flags: Optional[Mapping[str, Value]] = None
) -> System:
    """A gate on ``num`` models of the system ``base``. ``published`` are the perplexities without and with the gate."""
    return System(
        {"arch": arch, **(flags or {})},
        published={_BASE: published[0], _GATED: published[1]},
        base=Base(system=base, flag="base-model", num=num),
    )


def _iog_recipe(*, suffix: str, corpus: str, title: str, systems: Dict[str, System], notes: str) -> Recipe:
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

IOG_PTB = _iog_recipe(
    suffix="ptb",
    corpus="ptb",
    title="Penn Treebank",
    notes=_IOG_NOTES + _IOG_ENSEMBLES + _IOG_CACHE_PTB,
    systems={
        "zaremba-medium": _iog_base("lstm_lm_zaremba_medium_ptb", "87.1 / 84.0"),
        "zaremba-medium+iog": _iog_gate(_GATE_PTB, "zaremba-medium", published=("87.1 / 84.0", "84.1 / 81.1")),
        "zaremba-large": _iog_base("lstm_lm_zaremba_large_ptb", "82.7 / 78.6"),
        "zaremba-large+iog": _iog_gate(_GATE_PTB, "zaremba-large", published=("82.7 / 78.6", "78.5 / 75.5")),
        "variational-medium": _iog_base("lstm_lm_variational_medium_ptb", "82.8 / 79.1"),
        "variational-medium+iog": _iog_gate(_GATE_PTB, "variational-medium", published=("82.8 / 79.1", "81.2 / 78.1")),
        "variational-large": _iog_base("lstm_lm_variational_large_ptb", "78.1 / 74.6"),
        "variational-large+iog": _iog_gate(_GATE_PTB, "variational-large", published=("78.1 / 74.6", "76.9 / 74.1")),
        "rhn": _iog_base("rhn_lm_ptb", "72.1 / 68.9"),
        "rhn+iog": _iog_gate(_GATE_PTB, "rhn", published=("72.1 / 68.9", "69.2 / 66.5")),
        "rhn+iog-hidden": _iog_gate(_GATE_PTB, "rhn", published=("68.9", "75.6"), flags={"output-gate": "iog-hidden"}),
        "rhn+iog-lstm": _iog_gate(_GATE_PTB, "rhn", published=("68.9", "68.1"), flags={"output-gate": "iog-lstm"}),
        "rhn5+iog": _iog_gate(_GATE_PTB, "rhn", num=5, published=("66.1 / 63.1", "64.7 / 62.0")),
        "rhn10+iog": _iog_gate(_GATE_PTB, "rhn", num=10, published=("65.2 / 62.3", "64.1 / 61.4")),
        "rhn-tied": _iog_base("rhn_lm_tied_ptb", "69.2 / 66.3"),
        "rhn-tied+iog": _iog_gate(_GATE_PTB, "rhn-tied", published=("69.2 / 66.3", "67.0 / 64.4")),
        "awd": System({"arch": "lstm_lm_awd_ptb"}),
        "awd-fin": _fine_tuned("lstm_lm_awd_ptb", base="awd", figures="58.6 / 56.7"),
        "awd+iog": _iog_gate(_GATE_PTB, "awd-fin", published=("58.6 / 56.7", "58.5 / 56.7"), flags=ON_AWD),
    },
)
IOG_WT2 = _iog_recipe(
    suffix="wt2",
    corpus="wikitext-2",
    title="WikiText-2",
    notes=_IOG_NOTES + _IOG_CACHE_WT2,
    systems={
        "zaremba-medium": _iog_base("lstm_lm_zaremba_medium_wt2", "102.2 / 96.2"),
        "zaremba-medium+iog": _iog_gate(_GATE_WT2, "zaremba-medium", published=("102.2 / 96.2", "99.2 / 93.8")),
        "variational-medium": _iog_base("lstm_lm_variational_medium_wt2", "97.2 / 91.8"),
        "variational-medium+iog": _iog_gate(_GATE_WT2, "variational-medium", published=("97.2 / 91.8", "95.9 / 91.0")),
        "rhn-tied": _iog_base("rhn_lm_tied_wt2", "80.1 / 76.1"),
        "rhn-tied+iog": _iog_gate(_GATE_WT2, "rhn-tied", published=("80.1 / 76.1", "76.9 / 73.9")),
        "awd": System({"arch": "lstm_lm_awd_wt2"}),
        "awd-fin": _fine_tuned("lstm_lm_awd_wt2", base="awd", figures="68.6 / 65.8"),
        "awd+iog": _iog_gate(_GATE_WT2, "awd-fin", published=("68.6 / 65.8", "68.6 / 65.9"), flags=ON_AWD),
    },
)


# Takase et al. 2018, table 11: language models that rerank parses of the Wall Street Journal. And a sample of it.

_WSJ_SINGLE, _WSJ_ENSEMBLE = "reranked", "five together"
_WSJ_DROPOUT = {
    "dropout-embedding": 0.1,
    "dropout-input": 0.4,
    "dropout-hidden": 0.225,
    "dropout-output": 0.4,
    "dropout-weight": 0.5,
}
_WSJ_MIXTURE = {**_WSJ_DROPOUT, "latent-dropout": 0.29, "embed-dim": 140, "hidden-sizes": "463 463 280"}

WSJ = Recipe(
    name="wsj",
    title="Parse reranking: language models of trees with the settings for Penn Treebank, Takase et al. 2018, table 11",
    corpus="bash data-prep/wsj/prepare.sh --from DIR",
    systems={
        "awd": System({"arch": "lstm_lm_awd_ptb"}, published={_WSJ_SINGLE: "93.2", _WSJ_ENSEMBLE: "93.4"}),
        "mos": System({"arch": "lstm_lm_mos_ptb"}, published={_WSJ_SINGLE: "93.2", _WSJ_ENSEMBLE: "93.4"}),
        "doc": System({"arch": "lstm_lm_doc_ptb"}, published={_WSJ_SINGLE: "93.3", _WSJ_ENSEMBLE: "93.5"}),
    },
    training=FULL_SIZE,
    metric="F1 on section 23, of candidates whose first has 89.7",
    notes="""The model with the lowest validation loss reranks: python -m fairseq_plugins.cli.rerank_trees. Train the
members of an ensemble with different --seed. The paper does not tell whether an ensemble sums log-probabilities or
averages probabilities (--ensemble sum or mean), nor whether state is carried from candidate to candidate; here each
starts afresh.""",
)

WSJ_SAMPLE = Recipe(
    name="wsj_sample",
    title="Parse reranking on a sample of 3,253 trees at a CPU budget: the same data, rates and dropout for all",
    corpus="bash data-prep/wsj/prepare.sh --from DIR",
    systems={
        "awd": System({"arch": "lstm_lm_awd", **_WSJ_DROPOUT, "embed-dim": 200, "hidden-sizes": "485 485 200"}),
        "mos": System({"arch": "lstm_lm_mos", **_WSJ_MIXTURE, "experts-per-layer": "0 0 0 4"}),
        "doc": System({"arch": "lstm_lm_doc", **_WSJ_MIXTURE, "experts-per-layer": "0 0 1 3"}),
    },
    training={"max-epoch": 300, "patience": 15},
    notes="""All have about 4.0M parameters and the dropout rates of MoS for Penn Treebank, because there are about as
many parameters to a symbol of the training text as there. Training ends when the validation loss has not improved for
15 epochs. checkpoint_best.pt reranks: python -m fairseq_plugins.cli.rerank_trees.""",
)


# Pappas & Henderson 2019: output layers on Penn Treebank and WikiText-2.

_DRILL_FIGURES = {
    # after fine-tuning: (Penn Treebank, WikiText-2)
    "full": ("69.9 / 66.8", ""),
    "tied": ("60.0 / 57.3", "68.6 / 65.8"),
    "bilinear": ("60.7 / 58.5", ""),
    "dual": ("58.8 / 56.4", ""),
    "drill1": ("58.8 / 56.2", ""),
    "drill2": ("58.7 / 56.0", ""),
    "drill3": ("58.5 / 55.9", ""),
    "drill": ("58.2 / 55.7", "64.9 / 61.9"),
    "residual": ("59.6 / 57.5", ""),
    "standard": ("63.4 / 60.7", ""),
    "variational": ("", ""),
}
_DRILL_MASKS = {"standard": "a mask for each label", "variational": "one mask for all labels"}
_DYNAMIC = ("49.5 / 49.4", "43.9 / 42.0")
_DRILL_BEFORE = {"drill": ("59.6 / 57.0", "65.7 / 62.8")}


def _drill_recipe(*, suffix: str, corpus: str, title: str, column: int, other_mask: str, notes: str = "") -> Recipe:
    def system(name: str, label: str, flags: Mapping[str, Value]) -> System:
        figures = {"fine-tuned": _DRILL_FIGURES[name][column], "before": _DRILL_BEFORE.get(name, ("", ""))[column]}
        return System(flags, label=label, published={stage: figure for stage, figure in figures.items() if figure})

    drill = {"arch": f"lstm_lm_drill_{suffix}"}
    rows = (
        ("full", "softmax with a matrix of its own", {"arch": f"lstm_lm_full_{suffix}"}),
        ("tied", "tied softmax", {"arch": f"lstm_lm_awd_{suffix}"}),
        ("bilinear", "bilinear mapping", {"arch": f"lstm_lm_bilinear_{suffix}"}),
        ("dual", "dual nonlinear mapping", {"arch": f"lstm_lm_dual_{suffix}"}),
        *((f"drill{depth}", f"DRILL, depth {depth}", {**drill, "label-depth": depth}) for depth in (1, 2, 3)),
        ("drill", "DRILL, depth 4", drill),
        ("residual", "DRILL, depth 4, residuals between layers", {**drill, "label-layer-residual": "on"}),
        (other_mask, f"DRILL, depth 4, {_DRILL_MASKS[other_mask]}", {**drill, "label-mask": other_mask}),
    )
    return Recipe(
        name=f"drill_{suffix}",
        title=f"{title}: output layers, with the settings of Pappas & Henderson 2019",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems={name: system(name, label, flags) for name, label, flags in rows},
        training=FULL_SIZE,
        metric="perplexity, valid / test",
        notes=f"""Fine-tune with python -m fairseq_plugins.cli.fine_tune. Fine-tuned and dynamic, by evaluate_lm DATA
--path CKPT --dynamic rms with values that are not published: drill {_DYNAMIC[column]}. The paper gave its bilinear and
dual mappings dropout and residuals, too, where that helped on valid, and does not say where; here they have none.\
{notes}""",
    )


DRILL_PTB = _drill_recipe(
    suffix="ptb",
    corpus="ptb",
    title="Penn Treebank",
    column=0,
    other_mask="standard",
    notes="""
The paper calls the row of standard "no variational dropout", which may as well mean no dropout of labels
(--label-dropout 0).""",
)
DRILL_WT2 = _drill_recipe(suffix="wt2", corpus="wikitext-2", title="WikiText-2", column=1, other_mask="variational")


# Shuang et al. 2020: Major-Minor LSTM, tables II, III, VII, VIII, IX and X, and figure 5.
#
# Some widths of the paper do not give its parameter counts. These recipes take widths that do: 1050 and 1160 for
# ``previous`` (the text says 1150), 1010 for ``without2`` on Penn Treebank (1030). Rows with dynamic evaluation are in
# the notes.


def _mmlstm_figures(figures: str, *, fine_tuned: str = "") -> Dict[str, str]:
    return {"trained": figures, **({"fine-tuned": fine_tuned} if fine_tuned else {})}


_MMLSTM_NOTES = """mos: AWD-LSTM-MoS as wide as the majors. previous: minors read the layer below. withoutN: no minor in
layer N.
N:M: tied softmax, majors and minors of that ratio, equal parameters; 10:0 is the LSTM, and 9:1 is best in the
paper. Fine-tuned figures are after python -m fairseq_plugins.cli.fine_tune with --rounds 1, the same architecture
and flags."""
_MMLSTM_DYNAMIC_PTB = """
Fine-tuned and dynamic: mos 49.72 / 48.92, mmlstm-mos 47.31 / 46.81. The values published for the script of MoS, on the
scale of evaluate_lm DATA --path CKPT --dynamic rms: mos --dynamic-rate 4.6e-5 --dynamic-decay 4.4e-3 --dynamic-epsilon
2.3e-5; mmlstm-mos --dynamic-rows 150 --dynamic-segment 7 and 8.1e-5, 2.4e-3, 8.4e-5."""
_MMLSTM_DYNAMIC_WT2 = """
Fine-tuned and dynamic: mos 44.23 / 42.19, mmlstm-mos 41.91 / 40.15. The values published for the script of MoS, on the
scale of evaluate_lm DATA --path CKPT --dynamic rms: mos --dynamic-rate 3.1e-5 --dynamic-decay 1.2e-3 --dynamic-epsilon
3.1e-5; mmlstm-mos --dynamic-rows 130 --dynamic-segment 7 and 4.1e-5, 8.4e-4, 4.8e-5."""
_MMLSTM_MASKED = """
Figure 5, masked layers, compares with mmlstm-mos by python -m fairseq_plugins.cli.mask_layers: lm is AWD-LSTM-MoS
of table II (960, 960, 620); lm+ has dropout between layers and of the recurrent matrices raised by 0.025; lm# is as
wide as mmlstm-mos; lm## has its dropout, too."""


def _mmlstm_recipe(
    *, suffix: str, corpus: str, title: str, systems: Dict[str, System], notes: str = _MMLSTM_NOTES
) -> Recipe:
    return Recipe(
        name=f"mmlstm_{suffix}",
        title=f"{title}: Major-Minor LSTM, with the settings of Shuang et al. 2020",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=systems,
        training=FULL_SIZE,
        metric="perplexity, valid / test",
        notes=notes,
    )


def _mmlstm_without_minor(arch: str, *, layer: int, hidden_sizes: str, published: str) -> System:
    proportions = ["0.9", "0.9", "0.6"]
    proportions[layer - 1] = "1"
    flags = {"arch": arch, "major-proportions": " ".join(proportions), "hidden-sizes": hidden_sizes}
    return System(flags, published=_mmlstm_figures(published))


def _mmlstm_ratios(arch: str, hidden_sizes: Dict[str, str]) -> Dict[str, System]:
    """Tied softmax on majors and minors of several ratios. The preset of the architecture has 9:1."""
    return {
        "10:0": System({"arch": arch, "rnn-cell": "lstm", "hidden-sizes": "1150 1150 400"}),
        "9:1": System({"arch": arch}),
        **{
            ratio: System({"arch": arch, "major-proportions": f"0.{ratio[0]}", "hidden-sizes": sizes})
            for ratio, sizes in hidden_sizes.items()
        },
    }


_MM_PTB, _MM_WT2, _MM_WT103 = "mmlstm_lm_mos_ptb", "mmlstm_lm_mos_wt2", "mmlstm_lm_wt103"

MMLSTM_PTB = _mmlstm_recipe(
    suffix="ptb",
    corpus="ptb",
    title="Penn Treebank",
    notes=_MMLSTM_NOTES + _MMLSTM_MASKED + _MMLSTM_DYNAMIC_PTB,
    systems={
        "mos": System(
            {"arch": "lstm_lm_mos_ptb", "hidden-sizes": "972 972 372"},
            published=_mmlstm_figures("59.74 / 57.97", fine_tuned="58.01 / 55.89"),
        ),
        "mmlstm-mos": System({"arch": _MM_PTB}, published=_mmlstm_figures("56.52 / 54.51", fine_tuned="55.42 / 53.46")),
        "previous": System(
            {"arch": _MM_PTB, "minor-input": "previous", "hidden-sizes": "1050 1050 620"},
            published=_mmlstm_figures("57.95 / 55.93"),
        ),
        "without1": _mmlstm_without_minor(_MM_PTB, layer=1, hidden_sizes="1030 1080 620", published="57.30 / 55.10"),
        "without2": _mmlstm_without_minor(_MM_PTB, layer=2, hidden_sizes="1080 1010 620", published="57.14 / 54.93"),
        "without3": _mmlstm_without_minor(_MM_PTB, layer=3, hidden_sizes="1080 1080 520", published="57.84 / 55.74"),
        "lm": System({"arch": "lstm_lm_mos_ptb"}),
        "lm+": System({"arch": "lstm_lm_mos_ptb", "dropout-hidden": 0.25, "dropout-weight": 0.525}),
        "lm#": System({"arch": "lstm_lm_mos_ptb", "hidden-sizes": "1080 1080 620"}),
        "lm##": System({"arch": _MM_PTB, "rnn-cell": "lstm"}),
        **_mmlstm_ratios(
            "mmlstm_lm_ptb",
            {"8:2": "1330 1330 400", "7:3": "1420 1420 400", "6:4": "1500 1500 400", "5:5": "1560 1560 400"},
        ),
    },
)
MMLSTM_WT2 = _mmlstm_recipe(
    suffix="wt2",
    corpus="wikitext-2",
    title="WikiText-2",
    notes=_MMLSTM_NOTES + _MMLSTM_DYNAMIC_WT2,
    systems={
        "mos": System(
            {"arch": "lstm_lm_mos_wt2", "hidden-sizes": "1080 1080 390"},
            published=_mmlstm_figures("67.33 / 64.64", fine_tuned="65.11 / 63.02"),
        ),
        "mmlstm-mos": System({"arch": _MM_WT2}, published=_mmlstm_figures("64.30 / 61.77", fine_tuned="63.11 / 60.51")),
        "previous": System(
            {"arch": _MM_WT2, "minor-input": "previous", "hidden-sizes": "1160 1160 650"},
            published=_mmlstm_figures("65.43 / 62.76"),
        ),
        "without1": _mmlstm_without_minor(_MM_WT2, layer=1, hidden_sizes="1150 1200 650", published="65.34 / 62.73"),
        "without2": _mmlstm_without_minor(_MM_WT2, layer=2, hidden_sizes="1200 1130 650", published="65.07 / 62.43"),
        "without3": _mmlstm_without_minor(_MM_WT2, layer=3, hidden_sizes="1200 1200 550", published="65.66 / 63.02"),
        **_mmlstm_ratios(
            "mmlstm_lm_wt2",
            {"8:2": "1330 1330 400", "7:3": "1440 1440 400", "6:4": "1500 1500 400", "5:5": "1550 1550 400"},
        ),
    },
)
MMLSTM_WT103 = _mmlstm_recipe(
    suffix="wt103",
    corpus="wikitext-103",
    title="WikiText-103",
    notes="Tied softmax, majors and minors of the ratio N:M; 10:0 is the LSTM of table VII.",
    systems={
        "10:0": System(
            {"arch": _MM_WT103, "rnn-cell": "lstm", "hidden-sizes": "1024 256"},
            published=_mmlstm_figures("47.01 / 47.95"),
        ),
        "9:1": System({"arch": _MM_WT103}, published=_mmlstm_figures("43.45 / 44.69")),
    },
)


# All papers: every architecture with the training of its preset.

_TRAINED, _FINE_TUNED, _REPEATED = "trained", "fine-tuned", "fine-tuned repeatedly"
_PRESET_FIGURES = {
    # Merity et al. 2018
    "lstm_lm_awd_ptb": {_TRAINED: "60.7 / 58.8", _FINE_TUNED: "60.0 / 57.3"},
    "lstm_lm_awd_wt2": {_TRAINED: "69.1 / 66.0", _FINE_TUNED: "68.6 / 65.8"},
    # Yang et al. 2018
    "lstm_lm_mos_ptb": {_TRAINED: "58.08 / 55.97", _FINE_TUNED: "56.54 / 54.44"},
    "lstm_lm_mos_wt2": {_TRAINED: "66.01 / 63.33", _FINE_TUNED: "63.88 / 61.45"},
    # Takase et al. 2018
    "lstm_lm_doc_ptb": {_FINE_TUNED: "54.62 / 52.87", _REPEATED: "54.12 / 52.38"},
    "lstm_lm_doc_wt2": {_FINE_TUNED: "60.97 / 58.55", _REPEATED: "60.29 / 58.03"},
    # Pappas & Henderson 2019, table 4
    "lstm_lm_full_ptb": {_FINE_TUNED: "69.9 / 66.8"},
    # Takase et al. 2017
    "lstm_lm_zaremba_medium_ptb": {_TRAINED: "87.1 / 84.0"},
    "lstm_lm_zaremba_large_ptb": {_TRAINED: "82.7 / 78.6"},
    "lstm_lm_variational_medium_ptb": {_TRAINED: "82.8 / 79.1"},
    "lstm_lm_variational_large_ptb": {_TRAINED: "78.1 / 74.6"},
    "lstm_lm_zaremba_medium_wt2": {_TRAINED: "102.2 / 96.2"},
    "lstm_lm_variational_medium_wt2": {_TRAINED: "97.2 / 91.8"},
    "rhn_lm_ptb": {_TRAINED: "72.1 / 68.9"},
    "rhn_lm_tied_ptb": {_TRAINED: "69.2 / 66.3"},
    "rhn_lm_tied_wt2": {_TRAINED: "80.1 / 76.1"},
    # Melis et al. 2020
    "mogrifier_lm_ptb": {_TRAINED: "51.4 / 50.1"},
}

PRESETS = Recipe(
    name="presets",
    title="Any architecture with the training of its preset; the system is the architecture",
    corpus="data-prep, for the corpus that the architecture names",
    systems={
        arch: System({"arch": arch}, published=_PRESET_FIGURES.get(arch, {}))
        for arch, preset in ARCHITECTURES.items()
        if preset.training
    },
    training=FULL_SIZE,
    metric="perplexity, valid / test",
    notes="""The seed is the preset's where none is given. Language models are fine-tuned by
python -m fairseq_plugins.cli.fine_tune. The result of Zaremba's and variational LSTMs and of recurrent highway
networks is the model after the last epoch, checkpoint_last.pt. Architectures without a suffix are small ones of no
paper. mogrifier_lm_ptb is the program's setting, but the number of epochs is ours, and its mean of weights is left
out.""",
)


# Penn Treebank and WikiText-2 at a budget of two CPU cores.

_REDUCED_SINGLE = {"arch": "lstm_lm_awd", "embed-dim": 150, "hidden-sizes": "400 400 150"}
_REDUCED_LABELS = {**_REDUCED_SINGLE, "label-dropout": 0.3}
_REDUCED_DRILL = {**_REDUCED_LABELS, "output-layer": "drill"}
_REDUCED_MIXTURE = {"embed-dim": 100, "hidden-sizes": "400 400 280"}
_REDUCED_MMLSTM = {"arch": "mmlstm_lm", "embed-dim": 150}
_REDUCED_MMLSTM_MIXTURE = {"arch": "mmlstm_lm_mos", "embed-dim": 100, "hidden-sizes": "457 457 280"}
_REDUCED_MOS = {"experts-per-layer": "0 0 0 4"}
_WITHOUT_LAST = {"major-proportions": "0.9 0.9 1"}
_PREVIOUS = {"minor-input": "previous"}
_REDUCED_DOC = {"experts-per-layer": "0 0 1 3"}

REDUCED = Recipe(
    name="reduced",
    title="Language models of Penn Treebank at a CPU budget: the same data, updates, dropout and seed for all",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        "tied": System({**_REDUCED_SINGLE, "output-layer": "tied"}),
        "full": System({**_REDUCED_SINGLE, "output-layer": "full"}),
        "bilinear": System({**_REDUCED_LABELS, "output-layer": "bilinear"}),
        "dual": System({**_REDUCED_LABELS, "output-layer": "dual"}),
        **{f"drill{depth}": System({**_REDUCED_DRILL, "label-depth": depth}) for depth in range(5)},
        "standard": System({**_REDUCED_DRILL, "label-depth": 4, "label-mask": "standard"}),
        "9:1": System({**_REDUCED_MMLSTM, "major-proportions": "0.9", "hidden-sizes": "431 431 150"}),
        "9:1-without3": System({**_REDUCED_MMLSTM, **_WITHOUT_LAST, "hidden-sizes": "428 428 150"}),
        "9:1-previous": System(
            {**_REDUCED_MMLSTM, **_PREVIOUS, "major-proportions": "0.9", "hidden-sizes": "425 425 150"}
        ),
        "7:3": System({**_REDUCED_MMLSTM, "major-proportions": "0.7", "hidden-sizes": "494 494 150"}),
        "5:5": System({**_REDUCED_MMLSTM, "major-proportions": "0.5", "hidden-sizes": "540 540 150"}),
        "mos": System({"arch": "lstm_lm_mos", **_REDUCED_MIXTURE, **_REDUCED_MOS}),
        "doc": System({"arch": "lstm_lm_doc", **_REDUCED_MIXTURE, **_REDUCED_DOC}),
        "mmlstm-mos": System({**_REDUCED_MMLSTM_MIXTURE, **_REDUCED_MOS}),
        "mmlstm-mos-without3": System(
            {**_REDUCED_MMLSTM_MIXTURE, **_REDUCED_MOS, **_WITHOUT_LAST, "hidden-sizes": "428 428 280"}
        ),
        "mmlstm-mos-previous": System(
            {**_REDUCED_MMLSTM_MIXTURE, **_REDUCED_MOS, **_PREVIOUS, "hidden-sizes": "437 437 280"}
        ),
        "mmlstm-doc": System(
            {**_REDUCED_MMLSTM_MIXTURE, **_REDUCED_DOC, "output-layer": "doc", "latent-dropout": 0.2, "balance": 0.001}
        ),
    },
    training=ON_CPUS,
    averaged_epochs=1,
    notes="""tied, full, bilinear, dual, drillK (depth K, variational label dropout), standard (depth 4, a mask for
each label): the output layers of Pappas & Henderson 2019, table 4.
N:M: tied softmax on Major-Minor LSTMs with majors and minors of that ratio, as many parameters as tied.
mos, doc: four experts on the last layer; three there and one on the layer below, with the balance term.
mmlstm-mos, mmlstm-doc: the same on Major-Minor LSTMs of ratios 9:1, 9:1 and 6:4.
-without3, -previous: without the minor of the last layer; minors that read the layer below. As many parameters.
Results: results/ptb_reduced, results/drill_reduced and results/mmlstm.""",
)


_MOGRIFIER = {"rnn-cell": "mogrifier", "mogrifier-rank": 32, "hidden-sizes": "375 375 280", "dropout-recurrent": 0.15}
_MODELS_FOR_TRICKS: Dict[str, Mapping[str, Value]] = {
    "awd": REDUCED.systems["tied"].flags,
    "mos": REDUCED.systems["mos"].flags,
    "doc": REDUCED.systems["doc"].flags,
    "mogrifier-doc": {**REDUCED.systems["doc"].flags, **_MOGRIFIER},
}
_TRICKS: Dict[str, Mapping[str, Value]] = {
    "": {},
    "+shuffle": {"row-offsets": "random"},
    "+adversarial": {"adversarial-epsilon": 0.005},
}

REDUCED_TRICKS = Recipe(
    name="reduced_tricks",
    title="Partial shuffle and adversarial margins at a CPU budget, Penn Treebank: the same data and updates for all",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        f"{model}{trick}": System({**flags, **more})
        for model, flags in _MODELS_FOR_TRICKS.items()
        for trick, more in _TRICKS.items()
    },
    training=ON_CPUS,
    averaged_epochs=1,
    notes="""awd, mos, doc: tied, mos and doc of the recipe reduced. mogrifier-doc: doc on Mogrifier LSTMs, as many
parameters. +shuffle: every row of the text begins at another token in each epoch (Press 2019). +adversarial: margins of
0.005 (Wang, Gong & Liu 2019), as published for the main training, without noise on the embedding.""",
)


_AS_LARGE_AS_TIED: Dict[str, Mapping[str, Value]] = {
    "tied": {},
    "drill4": {"hidden-sizes": "391 391 150"},
    "mos": {"hidden-sizes": "496 496 280"},
    "doc": {"hidden-sizes": "496 496 280"},
}

REDUCED_WT2 = Recipe(
    name="reduced_wt2",
    title="Language models of WikiText-2 at a CPU budget: the same data, updates, dropout and seed for all",
    corpus="bash data-prep/wikitext-2/prepare.sh",
    systems={name: System({**REDUCED.systems[name].flags, **own}) for name, own in _AS_LARGE_AS_TIED.items()},
    training={**ON_CPUS, "max-epoch": 2},
    averaged_epochs=1,
    notes="""The systems of the recipe reduced. Two epochs and one averaged are about as many updates as its six and one
on Penn Treebank; hidden sizes give all as many parameters with the larger vocabulary. Results: results/wt2_reduced.""",
)


# Base models of Takase et al. 2017 and a Mogrifier LSTM at the same budget, and gates on them.
#
# All have about 4.0M parameters and the training of the recipe ``reduced``, with a constant rate for six epochs. The
# published schedules hold the rate for 6 to 20 epochs and anneal it for dozens, which six epochs cannot copy. The
# published rate of 1.0 belongs to a loss that is a sum over 35 steps, so it corresponds to 35 for the mean. 20 is near
# it. The rate of recurrent highway networks is 0.2, which corresponds to 7.

_BASE_LSTM = {**SMALL, "embed-dim": 175, "hidden-sizes": "175 175"}
_BASE_DROPOUT = {"dropout-embedding": 0.05, "dropout-input": 0.2, "dropout-hidden": 0.15, "dropout-output": 0.2}
_BASE_RHN = {"recurrence-depth": 8, "dropout-recurrent": 0.1, **_BASE_DROPOUT}
_BASE_MODELS: Dict[str, System] = {
    "zaremba": System({"arch": "lstm_lm_zaremba_medium", **_BASE_LSTM, **_BASE_DROPOUT, "dropout-embedding": 0}),
    "variational": System(
        {"arch": "lstm_lm_variational_medium", **_BASE_LSTM, **_BASE_DROPOUT, "dropout-recurrent": 0.2}
    ),
    "rhn": System({"arch": "rhn_lm", "embed-dim": 173, "hidden-sizes": "173", **_BASE_RHN}),
    "rhn-tied": System({"arch": "rhn_lm_tied", "embed-dim": 268, "hidden-sizes": "268", **_BASE_RHN}),
    "mogrifier": System({"arch": "mogrifier_lm", "embed-dim": 267, "hidden-sizes": "267 267"}),
    "awd": REDUCED.systems["tied"],
    "mos": REDUCED.systems["mos"],
    "doc": REDUCED.systems["doc"],
}


def _reduced_gate(base: str, *, num: int = 1, flags: Optional[Mapping[str, Value]] = None) -> System:
    """A gate on ``num`` averaged models of the system ``base``."""
    exceptions = ON_AWD if base in ("awd", "mos", "doc") else {}
    return System(
        {"arch": "gated_lm", **exceptions, **(flags or {})},
        base=Base(system=f"{base}{AVERAGED}", flag="base-model", num=num),
    )


REDUCED_BASE_MODELS = Recipe(
    name="reduced_base_models",
    title="Base models at a CPU budget, and gates on them, Penn Treebank: the same data, updates and seed for all",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        **_BASE_MODELS,
        **{f"{base}+iog": _reduced_gate(base) for base in _BASE_MODELS},
        "zaremba+iog30": _reduced_gate("zaremba", flags={"gate-dim": 30}),
        "variational+iog30": _reduced_gate("variational", flags={"gate-dim": 30}),
        **{
            f"{base}+{gate}": _reduced_gate(base, flags={"output-gate": gate})
            for base in ("zaremba", "rhn")
            for gate in ("iog-hidden", "iog-lstm")
        },
        "zaremba3+iog": _reduced_gate("zaremba", num=3),
    },
    training=ON_CPUS,
    averaged_epochs=1,
    notes="""zaremba, variational: two layers under a softmax with a matrix of its own; rhn, of depth 8, too. rhn-tied,
mogrifier and awd share it with the embedding. Dropout rates are near those of awd, which is tied of the recipe reduced,
whose mos and doc are here, too.
BASE+iog: a gate of the paper's width, 300, on the averaged model of the base; iog30: of width 30. iog-hidden reads the
hidden state, too, iog-lstm is recurrent; the paper has both on rhn. zaremba3+iog is one gate on three models:
run_recipe trains them with seeds 1 to 3 for its seed 1, 4 to 6 for its seed 2. Gates on awd, mos and doc have the
clipping and the start that the published program has for AWD-LSTM.""",
)


# Speed: runs that are timed and thrown away, with fixed rows and windows and without annealing.

_SGD = {"tokens-per-sample": 70, "optimizer": "sgd", "lr": 0.1, "clip-norm": 0.25, "num-workers": 1}
_STREAMS = {"task": "stateful_lm", "criterion": "regularized_cross_entropy"}
_REGULARIZED = {**_STREAMS, "activation-regularization": 2, "temporal-activation-regularization": 1}


def _speed_recipe(
    *, name: str, title: str, corpus: str, training: Mapping[str, Value], systems: Mapping[str, System]
) -> Recipe:
    return Recipe(
        name=f"speed_{name}",
        title=f"Speed: {title}",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=systems,
        training=training,
        training_of_presets="left out",
        notes="The first system is the reference of the ratios; python -m fairseq_plugins.cli.benchmark_lm measures.",
    )


def _speed_systems(suffix: str) -> Dict[str, System]:
    """Models of the papers, and DOC's network with one softmax, with DRILL's labels and with the plain loss."""
    doc = {"arch": f"lstm_lm_doc_{suffix}", "balance": 0.001}
    drill = {"label-encoder": "drill", "label-depth": 4, "label-dropout": 0.6}
    return {
        "awd": System({"arch": f"lstm_lm_awd_{suffix}"}, label="AWD-LSTM"),
        "doc-one-softmax": System(
            {"arch": f"lstm_lm_doc_{suffix}", "output-layer": "full"}, label="DOC's network, one softmax"
        ),
        "mos": System({"arch": f"lstm_lm_mos_{suffix}"}, label="AWD-LSTM-MoS"),
        "doc": System(doc, label="AWD-LSTM-DOC"),
        "doc-drill": System({**doc, **drill}, label="AWD-LSTM-DOC, DRILL's labels"),
        "doc-plain": System({**doc, "output-loss": "plain"}, label="AWD-LSTM-DOC, plain loss"),
    }


SPEED_PTB = _speed_recipe(
    name="ptb",
    title="the papers' presets for Penn Treebank, all with the rows of DOC",
    corpus="ptb",
    training={**_REGULARIZED, **_SGD, "batch-size": 12},
    systems=_speed_systems("ptb"),
)
SPEED_WT2 = _speed_recipe(
    name="wt2",
    title="the papers' presets for WikiText-2, all with the same rows",
    corpus="wikitext-2",
    training={**_REGULARIZED, **_SGD, "batch-size": 12},
    systems=_speed_systems("wt2"),
)
SPEED_LABELS = _speed_recipe(
    name="labels",
    title="the output layers of Pappas & Henderson 2019, table 4, with the rows of AWD-LSTM",
    corpus="ptb",
    training={**_REGULARIZED, **_SGD, "batch-size": 20},
    systems={
        name: System({"arch": f"lstm_lm_{arch}_ptb"}, label=label)
        for name, arch, label in (
            ("tied", "awd", "tied"),
            ("bilinear", "bilinear", "bilinear"),
            ("dual", "dual", "dual"),
            ("drill", "drill", "DRILL"),
        )
    },
)
SPEED_MMLSTM = _speed_recipe(
    name="mmlstm",
    title="AWD-LSTM-MoS and AWD-LSTM on Major-Minor LSTMs and on LSTMs of the same widths",
    corpus="ptb",
    training={**_REGULARIZED, **_SGD, "batch-size": 12},
    systems={
        f"{name}-{cell}": System({"arch": arch, "rnn-cell": cell}, label=f"{label}, {cell}")
        for name, label, arch in (("mos", "MoS", "mmlstm_lm_mos_ptb"), ("tied", "tied", "mmlstm_lm_ptb"))
        for cell in ("lstm", "mmlstm")
    },
)
SPEED_WT103 = _speed_recipe(
    name="wt103",
    title="table VII of Shuang et al. 2020: 128 rows, 267,735 words, one softmax",
    corpus="wikitext-103",
    training={**_STREAMS, **_SGD, "optimizer": "adam", "lr": 0.001, "batch-size": 128},
    systems={
        "lstm": System({"arch": "mmlstm_lm_wt103", "rnn-cell": "lstm", "hidden-sizes": "1024 256"}, label="LSTM"),
        "mmlstm": System({"arch": "mmlstm_lm_wt103"}, label="MMLSTM"),
    },
)
SPEED_FPNN = _speed_recipe(
    name="fpnn",
    title="linear and rectifier networks of Pachitariu & Sahani 2013 on text8, 512 units, with and without noise",
    corpus="text8",
    training={**_STREAMS, "optimizer": "adagrad", "lr": 0.05, "tokens-per-sample": 20, "batch-size": 64},
    systems={
        name: System(FPNN_TEXT8_WORDS.system(name).flags, label=label)
        for name, label in (
            ("fpnn", "FPNN"),
            ("fpnn+nce", "FPNN, 25 noise words"),
            ("rectifier", "rectifier"),
            ("rectifier+nce", "rectifier, 25 noise words"),
        )
    },
)
SPEED_HOST = _speed_recipe(
    name="host",
    title="fairseq's own lstm_lm against lstm_lm_awd: three layers of width 512, a tied softmax",
    corpus="ptb",
    training={**_SGD, "batch-size": 20},
    systems={
        "host": System(
            {
                "task": "language_modeling",
                "arch": "lstm_lm",
                "criterion": "cross_entropy",
                "decoder-embed-dim": 512,
                "decoder-hidden-size": 512,
                "decoder-out-embed-dim": 512,
                "decoder-layers": 3,
                "share-decoder-input-output-embed": True,
                "decoder-attention": 0,
                "dropout": 0.2,
            },
            label="fairseq lstm_lm",
        ),
        "awd": System(
            {**_REGULARIZED, "arch": "lstm_lm_awd", "embed-dim": 512, "hidden-sizes": "512 512 512"},
            label="lstm_lm_awd",
        ),
    },
)


def _speed_of_presets(suffix: str, *, corpus: str) -> Recipe:
    """fairseq's model, ours of the same size, and every preset for the corpus with its paper's rows and windows."""
    presets = {arch: preset for arch, preset in LANGUAGE_MODELS.items() if arch.endswith(f"_{suffix}")}
    kept = ("batch-size", "row-groups", "tokens-per-sample", "balance")
    systems = {}
    for arch, preset in presets.items():
        rows = {flag: preset.training[flag] for flag in kept if flag in preset.training}
        systems[arch] = System({**_REGULARIZED, **rows, "arch": arch})
    host, awd = (
        System({**SPEED_HOST.training, **system.flags}, label=system.label) for system in SPEED_HOST.systems.values()
    )
    return _speed_recipe(
        name=f"presets_{suffix}",
        title=f"every preset for {corpus}, with the rows and windows of its paper, and fairseq's own lstm_lm",
        corpus=corpus,
        training=_SGD,
        systems={"host": host, "awd": awd, **systems},
    )


SPEED_PRESETS: Dict[str, Recipe] = {
    "ptb": _speed_of_presets("ptb", corpus="ptb"),
    "wt2": _speed_of_presets("wt2", corpus="wikitext-2"),
}
"""By the suffix of the architectures."""
