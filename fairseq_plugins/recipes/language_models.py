"""Recipes of language models, by paper. Those at a CPU budget are in ``small_language_models``."""

from typing import Dict, Mapping, Tuple

from fairseq_plugins.files import LAST
from fairseq_plugins.models.presets import ARCHITECTURES, Value
from fairseq_plugins.models.presets.language_models import ON_AWD
from fairseq_plugins.recipes.recipe import FULL_SIZE, Base, Recipe, System, table

# Pachitariu & Sahani 2013: impulse-response (FPNN) and rectifier networks, tables 1 (Penn Treebank) and 2 (text8).

_FPNN, _RECTIFIER = {"arch": "fpnn_lm_ptb"}, {"arch": "rectifier_rnn_lm_ptb"}
_FREE = {"dropout-output": 0, "column-norm": 0}
_DAMPED = {"optimizer": "damped_adagrad", "initial-accumulator": 1e-5, "lr": 0.1}
_DAMPED_RECTIFIER = {**_DAMPED, "initial-accumulator": 1e-7, "recurrent-scale": 0.1}
_SHORT, _LONG = {"force-anneal": 3, "max-epoch": 5}, {"force-anneal": 12, "max-epoch": 14}

FPNN_PTB = Recipe(
    name="fpnn_ptb",
    title="Penn Treebank: impulse-response (FPNN) and rectifier networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/ptb/prepare.sh",
    systems=table(
        {
            "fpnn": ({**_FPNN, **_FREE}, "137"),
            "fpnn+l1": ({**_FPNN, **_FREE, "l1-regularization": 1e-6}, "125"),
            "fpnn+dropout+norm": (_FPNN, "102"),
            "fpnn+dropout+norm+damped": ({**_FPNN, **_DAMPED, **_LONG}, "102"),
            "rectifier": ({**_RECTIFIER, **_FREE}, "126"),
            "rectifier+damped": ({**_RECTIFIER, **_FREE, **_DAMPED_RECTIFIER, **_SHORT}, "126"),
            "rectifier+dropout+norm": (_RECTIFIER, "107"),
            "rectifier+dropout+norm+damped": ({**_RECTIFIER, **_DAMPED_RECTIFIER, **_LONG}, "107"),
        },
        "test",
    ),
    training=FULL_SIZE,
    metric="perplexity",
    notes="""512 hidden units. fpnn, rectifier: nothing is regularised. fpnn+l1: L1 of all matrices. fpnn+dropout+norm,
rectifier+dropout+norm: half of the units are dropped before the softmax, and columns of both word matrices keep their
length. +damped: the sums of Adagrad start above zero, by which rare words move in short steps; more epochs. The paper
publishes neither optimiser, learning rate, length, strength of L1 nor schedule; length, optimiser and rate were
searched on valid (results/fpnn). Published for fpnn+dropout+norm, without / with 5-grams and cache: 102 / 94, dynamic
98.4 / 90.7; the mean of ten 98.8 / 92.5, dynamic 95.1 / 89.1. The recurrent matrix of rectifier networks is 0.01 of its
parameters (--recurrent-scale), 0.1 with +damped: with Adagrad they diverge at 1.""",
)

_NOISE = {"criterion": "noise_contrastive", "noise-samples": 25, "accidental-hits": "counted"}
_FPNN_WORDS, _RECTIFIER_WORDS = {"arch": "fpnn_lm_text8_words"}, {"arch": "rectifier_rnn_lm_text8_words"}

FPNN_TEXT8_WORDS = Recipe(
    name="fpnn_text8",
    title="text8 by words: FPNN and rectifier networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/text8/prepare.sh",
    systems=table(
        {
            "fpnn+nce": ({**_FPNN_WORDS, **_NOISE}, "197"),
            "rectifier+nce": ({**_RECTIFIER_WORDS, **_NOISE}, "191"),
            "rectifier+damped+nce": ({**_RECTIFIER_WORDS, **_NOISE, **_DAMPED_RECTIFIER}, "191"),
            "fpnn": (_FPNN_WORDS,),
            "rectifier": (_RECTIFIER_WORDS,),
            "rectifier+damped": ({**_RECTIFIER_WORDS, **_DAMPED_RECTIFIER},),
        },
        "test",
    ),
    training=FULL_SIZE,
    metric="perplexity",
    notes="""512 hidden units, nothing is regularised. +nce: noise-contrastive estimation, as published; the others
learn by maximum likelihood. Both networks together (published: 168): fairseq-plugins lm eval DATA
--path FPNN RECTIFIER. The paper publishes neither optimiser, learning rate, number of noise words nor schedule, and
the values here were not searched, except +damped, taken from Penn Treebank (results/fpnn).""",
)

_FPNN_CHARACTERS = {"arch": "fpnn_lm_text8_chars"}
_SMOOTH_RECTIFIER, _SKIPPING = {"arch": "rectifier_rnn_lm_text8_chars"}, {"arch": "skipping_rnn_lm_text8_chars"}
_DAMPED_CHARACTERS = {**_DAMPED, "initial-accumulator": 1e-7, "lr": 0.03, "recurrent-scale": 0.2}

FPNN_TEXT8_CHARACTERS = Recipe(
    name="fpnn_text8_chars",
    title="text8 by characters: FPNN, smooth rectifier and skipping networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/text8/prepare.sh --level char",
    systems=table(
        {
            "fpnn+hidden": (_FPNN_CHARACTERS, "2.12"),
            "fpnn+hidden+damped": ({**_FPNN_CHARACTERS, **_DAMPED, "initial-accumulator": 1e-7, "lr": 0.015}, "2.12"),
            "smooth-rectifier": (_SMOOTH_RECTIFIER, "1.55"),
            "smooth-rectifier+damped": ({**_SMOOTH_RECTIFIER, **_DAMPED_CHARACTERS}, "1.55"),
            "skipping": (_SKIPPING, "1.48"),
            "skipping+damped": ({**_SKIPPING, **_DAMPED_CHARACTERS}, "1.48"),
        },
        "test",
    ),
    training=FULL_SIZE,
    metric="bits a character",
    notes="""2,048 hidden units; fpnn+hidden has a layer of rectifiers before the softmax. Bits are the mean
over characters and the end marks, one every 1,000 characters. No clipping, as published, but Adagrad in place of SGD
with momentum near 1, with which smooth rectifiers do not leave their start here (results/text8). +damped: its sums
start at 1e-7, and the recurrent matrix is 0.2 of its parameters, not 0.01; rate and scale were chosen from the first 50
updates. Other rates, the numbers of rows and epochs and the a of the smooth rectifier are not published, and those here
were not searched.""",
)


# Takase et al. 2017: Input-to-Output Gate, tables 2, 3 and 4. Base models and gates on them.
#
# The rows with a cache are in the notes. Only the published program has the recurrent highway network of WikiText-2.

_IOG_NOTES = """\
A system with a + is a gate: train its base model first, the system before the +, and give the checkpoint
by --base-model CKPT. The base model of Zaremba's and variational LSTMs and of recurrent highway networks is the model
after the last epoch, checkpoint_last.pt; of AWD-LSTM it is awd-fin, the fine-tuning of awd: --finetune-from-model CKPT.
fairseq-plugins run does all that. The result of a gate is its checkpoint_best.pt. Gates on AWD-LSTM start nearer to
zero and are clipped harder than others, as in the published program. In it the transform gates of recurrent highway
networks read the candidate and start half open; train them so by --transform-input candidate --transform-bias 0. The
published valid perplexities are too low, because the program divides by too many words: on Penn Treebank by 0.35 %
(base) and 0.57 % (gate), on WikiText-2 by 0.2 %. AWD-LSTM's, those with a cache and all test perplexities are right."""
_IOG_ENSEMBLES = """
rhn5+iog and rhn10+iog have one gate for 5 and 10 models of the system rhn: --base-model A:B:C:D:E. Train each with
another --seed, because equal seeds give equal models. The gate of rhn+iog-hidden also reads the hidden state, the
gate of rhn+iog-lstm is recurrent; for these two the paper has only test figures. The base of an ensemble is the mean
of its models: fairseq-plugins lm eval DATA --path A B C D E."""

_IOG_CACHE_PTB = """
With a cache, by lm eval DATA --path CKPT --cache 500,0.1,1.0, awd-fin has 53.4 / 53.0 and awd+iog 53.3 / 53.0."""
_IOG_CACHE_WT2 = """
With a cache, by lm eval DATA --path CKPT and --cache 2000,0.2,0.3 --cache-start first: variational-medium 69.6 /
66.1 and with the gate 69.3 / 65.9; --cache 3785,0.1279,0.662: awd-fin 53.5 / 51.7 and awd+iog 53.6 / 51.7."""


def gate_on(
    base: str, flags: Mapping[str, Value], *, figures: Tuple[str, str] = ("", ""), arch: str = "gated_lm", num: int = 1
) -> System:
    """A gate on ``num`` models of the system ``base``, with the perplexities without and with it."""
    published = {"base": figures[0], "gated": figures[1]} if figures[1] else {}
    on = Base(system=base, flag="base-model", num=num)
    return System({"arch": arch, **flags}, published=published, base=on)


def _iog_recipe(
    suffix: str, *, corpus: str, title: str, bases: Mapping[str, Tuple[str, str, str]], awd: Tuple[str, str], notes: str
) -> Recipe:
    """Base models, each with a gate.

    Args:
        bases: architecture, perplexities of the model after the last epoch, and those with a gate, by name.
        awd: perplexities of AWD-LSTM fine-tuned as in its paper, and those with a gate.
    """
    gated_lm = f"gated_lm_{suffix}"
    systems: Dict[str, System] = {}
    for name, (arch, figures, gated) in bases.items():
        systems[name] = System({"arch": f"{arch}_{suffix}"}, published={"base": figures}, result=LAST)
        systems[f"{name}+iog"] = gate_on(name, {}, figures=(figures, gated), arch=gated_lm)
        if name == "rhn":
            for gate, reached in (("iog-hidden", "75.6"), ("iog-lstm", "68.1")):
                systems[f"rhn+{gate}"] = gate_on("rhn", {"output-gate": gate}, figures=("68.9", reached), arch=gated_lm)
            for num, published in ((5, ("66.1 / 63.1", "64.7 / 62.0")), (10, ("65.2 / 62.3", "64.1 / 61.4"))):
                systems[f"rhn{num}+iog"] = gate_on("rhn", {}, figures=published, arch=gated_lm, num=num)
    arch = f"lstm_lm_awd_{suffix}"
    systems["awd"] = System({"arch": arch})
    systems["awd-fin"] = System(
        {"arch": arch, **ARCHITECTURES[arch].averaging_flags},
        published={"base": awd[0]},
        base=Base(system="awd", flag="finetune-from-model"),
    )
    systems["awd+iog"] = gate_on("awd-fin", ON_AWD, figures=awd, arch=gated_lm)
    return Recipe(
        name=f"iog_{suffix}",
        title=f"{title}: Input-to-Output Gate and its base models, with the settings of Takase et al. 2017",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=systems,
        training=FULL_SIZE,
        metric="perplexity, valid / test",
        notes=notes,
    )


IOG_PTB = _iog_recipe(
    "ptb",
    corpus="ptb",
    title="Penn Treebank",
    bases={
        "zaremba-medium": ("lstm_lm_zaremba_medium", "87.1 / 84.0", "84.1 / 81.1"),
        "zaremba-large": ("lstm_lm_zaremba_large", "82.7 / 78.6", "78.5 / 75.5"),
        "variational-medium": ("lstm_lm_variational_medium", "82.8 / 79.1", "81.2 / 78.1"),
        "variational-large": ("lstm_lm_variational_large", "78.1 / 74.6", "76.9 / 74.1"),
        "rhn": ("rhn_lm", "72.1 / 68.9", "69.2 / 66.5"),
        "rhn-tied": ("rhn_lm_tied", "69.2 / 66.3", "67.0 / 64.4"),
    },
    awd=("58.6 / 56.7", "58.5 / 56.7"),
    notes=_IOG_NOTES + _IOG_ENSEMBLES + _IOG_CACHE_PTB,
)
IOG_WT2 = _iog_recipe(
    "wt2",
    corpus="wikitext-2",
    title="WikiText-2",
    bases={
        "zaremba-medium": ("lstm_lm_zaremba_medium", "102.2 / 96.2", "99.2 / 93.8"),
        "variational-medium": ("lstm_lm_variational_medium", "97.2 / 91.8", "95.9 / 91.0"),
        "rhn-tied": ("rhn_lm_tied", "80.1 / 76.1", "76.9 / 73.9"),
    },
    awd=("68.6 / 65.8", "68.6 / 65.9"),
    notes=_IOG_NOTES + _IOG_CACHE_WT2,
)


# Takase et al. 2018, table 11: language models that rerank parses of the Wall Street Journal. And a sample of it.

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
    systems=table(
        {
            "awd": ({"arch": "lstm_lm_awd_ptb"}, "93.2", "93.4"),
            "mos": ({"arch": "lstm_lm_mos_ptb"}, "93.2", "93.4"),
            "doc": ({"arch": "lstm_lm_doc_ptb"}, "93.3", "93.5"),
        },
        "reranked",
        "five together",
    ),
    training=FULL_SIZE,
    metric="F1 on section 23, of candidates whose first has 89.7",
    notes="""The model with the lowest validation loss reranks: fairseq-plugins trees rerank. Train the
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
    notes="""All have about 4.0M parameters and the dropout rates of MoS for Penn Treebank, because the ratio
of parameters to training symbols is about the same. Training ends when the validation loss has not improved for
15 epochs. checkpoint_best.pt reranks: fairseq-plugins trees rerank.""",
)


# Pappas & Henderson 2019: output layers on Penn Treebank and WikiText-2.

_DRILL_MASKS = {"standard": "a mask for each label", "variational": "one mask for all labels"}


def _drill_recipe(*, suffix: str, corpus: str, title: str, column: int, other_mask: str, notes: str = "") -> Recipe:
    """The systems, with the figures of a ``column``: 0 of Penn Treebank, 1 of WikiText-2."""
    drill = {"arch": f"lstm_lm_drill_{suffix}"}
    rows = {
        # label, flags, figures after fine-tuning
        "full": ("softmax with a matrix of its own", {"arch": f"lstm_lm_full_{suffix}"}, "69.9 / 66.8"),
        "tied": ("tied softmax", {"arch": f"lstm_lm_awd_{suffix}"}, "60.0 / 57.3", "68.6 / 65.8"),
        "bilinear": ("bilinear mapping", {"arch": f"lstm_lm_bilinear_{suffix}"}, "60.7 / 58.5"),
        "dual": ("dual nonlinear mapping", {"arch": f"lstm_lm_dual_{suffix}"}, "58.8 / 56.4"),
        "drill1": ("DRILL, depth 1", {**drill, "label-depth": 1}, "58.8 / 56.2"),
        "drill2": ("DRILL, depth 2", {**drill, "label-depth": 2}, "58.7 / 56.0"),
        "drill3": ("DRILL, depth 3", {**drill, "label-depth": 3}, "58.5 / 55.9"),
        "drill": ("DRILL, depth 4", drill, "58.2 / 55.7", "64.9 / 61.9"),
        "residual": (
            "DRILL, depth 4, residuals between layers",
            {**drill, "label-layer-residual": "on"},
            "59.6 / 57.5",
        ),
        other_mask: (
            f"DRILL, depth 4, {_DRILL_MASKS[other_mask]}",
            {**drill, "label-mask": other_mask},
            "63.4 / 60.7",
        ),
    }
    systems = {}
    for name, (label, flags, *figures) in rows.items():
        published = {"fine-tuned": figures[column]} if len(figures) > column else {}
        if name == "drill":
            published["before"] = ("59.6 / 57.0", "65.7 / 62.8")[column]
        systems[name] = System(flags, label=label, published=published)
    dynamic = ("49.5 / 49.4", "43.9 / 42.0")[column]
    return Recipe(
        name=f"drill_{suffix}",
        title=f"{title}: output layers, with the settings of Pappas & Henderson 2019",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=systems,
        training=FULL_SIZE,
        metric="perplexity, valid / test",
        notes=f"""Fine-tune with fairseq-plugins fine-tune. Fine-tuned and dynamic, by lm eval DATA
--path CKPT --dynamic rms with values that are not published: drill {dynamic}. The paper gave its bilinear and
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


_MMLSTM_NOTES = """mos: AWD-LSTM-MoS as wide as the majors. previous: minors read the layer below. withoutN: no minor in
layer N.
N:M: tied softmax, majors and minors of that ratio, equal parameters; 10:0 is the LSTM, and 9:1 is best in the
paper. Fine-tuned figures are after fairseq-plugins fine-tune with --rounds 1, the same architecture
and flags."""
_MMLSTM_DYNAMIC_PTB = """
Fine-tuned and dynamic: mos 49.72 / 48.92, mmlstm-mos 47.31 / 46.81. The values published for the script of MoS, on the
scale of lm eval DATA --path CKPT --dynamic rms: mos --dynamic-rate 4.6e-5 --dynamic-decay 4.4e-3 --dynamic-epsilon
2.3e-5; mmlstm-mos --dynamic-rows 150 --dynamic-segment 7 and 8.1e-5, 2.4e-3, 8.4e-5."""
_MMLSTM_DYNAMIC_WT2 = """
Fine-tuned and dynamic: mos 44.23 / 42.19, mmlstm-mos 41.91 / 40.15. The values published for the script of MoS, on the
scale of lm eval DATA --path CKPT --dynamic rms: mos --dynamic-rate 3.1e-5 --dynamic-decay 1.2e-3 --dynamic-epsilon
3.1e-5; mmlstm-mos --dynamic-rows 130 --dynamic-segment 7 and 4.1e-5, 8.4e-4, 4.8e-5."""
_MMLSTM_MASKED = """
Figure 5, masked layers, compares with mmlstm-mos by fairseq-plugins analyze masking: lm is AWD-LSTM-MoS
of table II (960, 960, 620); lm+ has dropout between layers and of the recurrent matrices raised by 0.025; lm# is as
wide as mmlstm-mos; lm## has its dropout, too."""


def _mmlstm_recipe(
    suffix: str,
    *,
    corpus: str,
    title: str,
    rows: Mapping[str, Tuple[Mapping[str, Value], *Tuple[str, ...]]],
    notes: str,
) -> Recipe:
    return Recipe(
        name=f"mmlstm_{suffix}",
        title=f"{title}: Major-Minor LSTM, with the settings of Shuang et al. 2020",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=table(rows, "trained", "fine-tuned"),
        training=FULL_SIZE,
        metric="perplexity, valid / test",
        notes=notes,
    )


_MM_PTB, _MM_WT2, _MM_WT103 = "mmlstm_lm_mos_ptb", "mmlstm_lm_mos_wt2", "mmlstm_lm_wt103"


def _mm(arch: str, **flags: Value) -> Dict[str, Value]:
    return {"arch": arch, **{flag.replace("_", "-"): value for flag, value in flags.items()}}


def _ratios(arch: str, majors: Mapping[str, int]) -> Dict[str, Tuple[Dict[str, Value]]]:
    """Tied softmax on majors and minors of several ratios, by the width of both. The preset of ``arch`` has 9:1."""
    return {
        "10:0": (_mm(arch, rnn_cell="lstm", hidden_sizes="1150 1150 400"),),
        "9:1": (_mm(arch),),
        **{
            ratio: (_mm(arch, major_proportions=f"0.{ratio[0]}", hidden_sizes=f"{width} {width} 400"),)
            for ratio, width in majors.items()
        },
    }


_WITHOUT_1, _WITHOUT_2, _WITHOUT_3 = "1 0.9 0.6", "0.9 1 0.6", "0.9 0.9 1"

MMLSTM_PTB = _mmlstm_recipe(
    "ptb",
    corpus="ptb",
    title="Penn Treebank",
    notes=_MMLSTM_NOTES + _MMLSTM_MASKED + _MMLSTM_DYNAMIC_PTB,
    rows={
        "mos": (_mm("lstm_lm_mos_ptb", hidden_sizes="972 972 372"), "59.74 / 57.97", "58.01 / 55.89"),
        "mmlstm-mos": (_mm(_MM_PTB), "56.52 / 54.51", "55.42 / 53.46"),
        "previous": (_mm(_MM_PTB, minor_input="previous", hidden_sizes="1050 1050 620"), "57.95 / 55.93"),
        "without1": (_mm(_MM_PTB, major_proportions=_WITHOUT_1, hidden_sizes="1030 1080 620"), "57.30 / 55.10"),
        "without2": (_mm(_MM_PTB, major_proportions=_WITHOUT_2, hidden_sizes="1080 1010 620"), "57.14 / 54.93"),
        "without3": (_mm(_MM_PTB, major_proportions=_WITHOUT_3, hidden_sizes="1080 1080 520"), "57.84 / 55.74"),
        "lm": (_mm("lstm_lm_mos_ptb"),),
        "lm+": (_mm("lstm_lm_mos_ptb", dropout_hidden=0.25, dropout_weight=0.525),),
        "lm#": (_mm("lstm_lm_mos_ptb", hidden_sizes="1080 1080 620"),),
        "lm##": (_mm(_MM_PTB, rnn_cell="lstm"),),
        **_ratios("mmlstm_lm_ptb", {"8:2": 1330, "7:3": 1420, "6:4": 1500, "5:5": 1560}),
    },
)
MMLSTM_WT2 = _mmlstm_recipe(
    "wt2",
    corpus="wikitext-2",
    title="WikiText-2",
    notes=_MMLSTM_NOTES + _MMLSTM_DYNAMIC_WT2,
    rows={
        "mos": (_mm("lstm_lm_mos_wt2", hidden_sizes="1080 1080 390"), "67.33 / 64.64", "65.11 / 63.02"),
        "mmlstm-mos": (_mm(_MM_WT2), "64.30 / 61.77", "63.11 / 60.51"),
        "previous": (_mm(_MM_WT2, minor_input="previous", hidden_sizes="1160 1160 650"), "65.43 / 62.76"),
        "without1": (_mm(_MM_WT2, major_proportions=_WITHOUT_1, hidden_sizes="1150 1200 650"), "65.34 / 62.73"),
        "without2": (_mm(_MM_WT2, major_proportions=_WITHOUT_2, hidden_sizes="1200 1130 650"), "65.07 / 62.43"),
        "without3": (_mm(_MM_WT2, major_proportions=_WITHOUT_3, hidden_sizes="1200 1200 550"), "65.66 / 63.02"),
        **_ratios("mmlstm_lm_wt2", {"8:2": 1330, "7:3": 1440, "6:4": 1500, "5:5": 1550}),
    },
)
MMLSTM_WT103 = _mmlstm_recipe(
    "wt103",
    corpus="wikitext-103",
    title="WikiText-103",
    notes="Tied softmax, majors and minors of the ratio N:M; 10:0 is the LSTM of table VII.",
    rows={
        "10:0": (_mm(_MM_WT103, rnn_cell="lstm", hidden_sizes="1024 256"), "47.01 / 47.95"),
        "9:1": (_mm(_MM_WT103), "43.45 / 44.69"),
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
fairseq-plugins fine-tune. The result of Zaremba's and variational LSTMs and of recurrent highway
networks is the model after the last epoch, checkpoint_last.pt. Architectures without a suffix are small ones of no
paper. mogrifier_lm_ptb is the program's setting, but the number of epochs is ours, and its mean of weights is left
out.""",
)
