"""Language models of Shuang et al. 2020 (Major-Minor LSTM): tables II, III, VII, VIII, IX and X, and figure 5.

Where the paper's widths are far from its parameter counts, those that give them are taken: 1050 and 1160 for
``previous`` (the text says 1150), 1010 for ``without2`` on Penn Treebank (1030). The rows with dynamic evaluation are
in the notes.
"""

from typing import Dict

from fairseq_plugins.recipes.recipe import FULL_SIZE, Recipe
from fairseq_plugins.recipes.system import System


def _trained(figures: str, *, fine_tuned: str = "") -> Dict[str, str]:
    return {"trained": figures, **({"fine-tuned": fine_tuned} if fine_tuned else {})}


_NOTES = """mos: AWD-LSTM-MoS as wide as the majors. previous: minors read the layer below. withoutN: no minor in
layer N.
N:M: tied softmax, majors and minors of that ratio, equal parameters; 10:0 is the LSTM, and 9:1 is best in the
paper. Fine-tuned figures are after python -m fairseq_plugins.cli.fine_tune with --rounds 1, the same architecture
and flags."""
_DYNAMIC_PTB = """
Fine-tuned and dynamic: mos 49.72 / 48.92, mmlstm-mos 47.31 / 46.81. The values published for the script of MoS, on the
scale of evaluate_lm DATA --path CKPT --dynamic rms: mos --dynamic-rate 4.6e-5 --dynamic-decay 4.4e-3 --dynamic-epsilon
2.3e-5; mmlstm-mos --dynamic-rows 150 --dynamic-segment 7 and 8.1e-5, 2.4e-3, 8.4e-5."""
_DYNAMIC_WT2 = """
Fine-tuned and dynamic: mos 44.23 / 42.19, mmlstm-mos 41.91 / 40.15. The values published for the script of MoS, on the
scale of evaluate_lm DATA --path CKPT --dynamic rms: mos --dynamic-rate 3.1e-5 --dynamic-decay 1.2e-3 --dynamic-epsilon
3.1e-5; mmlstm-mos --dynamic-rows 130 --dynamic-segment 7 and 4.1e-5, 8.4e-4, 4.8e-5."""
_MASKED = """
Figure 5, masked layers, compares with mmlstm-mos by python -m fairseq_plugins.cli.mask_layers: lm is AWD-LSTM-MoS
of table II (960, 960, 620); lm+ has dropout between layers and of the recurrent matrices raised by 0.025; lm# is as
wide as mmlstm-mos; lm## has its dropout, too."""


def _recipe(*, suffix: str, corpus: str, title: str, systems: Dict[str, System], notes: str = _NOTES) -> Recipe:
    return Recipe(
        name=f"mmlstm_{suffix}",
        title=f"{title}: Major-Minor LSTM, with the settings of Shuang et al. 2020",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=systems,
        training=FULL_SIZE,
        metric="perplexity, valid / test",
        notes=notes,
    )


def _without(arch: str, *, layer: int, hidden_sizes: str, published: str) -> System:
    proportions = ["0.9", "0.9", "0.6"]
    proportions[layer - 1] = "1"
    flags = {"arch": arch, "major-proportions": " ".join(proportions), "hidden-sizes": hidden_sizes}
    return System(flags, published=_trained(published))


def _ratios(arch: str, hidden_sizes: Dict[str, str]) -> Dict[str, System]:
    """Tied softmax; the architecture's own ratio is 9:1."""
    return {
        "10:0": System({"arch": arch, "rnn-cell": "lstm", "hidden-sizes": "1150 1150 400"}),
        "9:1": System({"arch": arch}),
        **{
            ratio: System({"arch": arch, "major-proportions": f"0.{ratio[0]}", "hidden-sizes": sizes})
            for ratio, sizes in hidden_sizes.items()
        },
    }


_MM_PTB, _MM_WT2, _MM_WT103 = "mmlstm_lm_mos_ptb", "mmlstm_lm_mos_wt2", "mmlstm_lm_wt103"

PTB = _recipe(
    suffix="ptb",
    corpus="ptb",
    title="Penn Treebank",
    notes=_NOTES + _MASKED + _DYNAMIC_PTB,
    systems={
        "mos": System(
            {"arch": "lstm_lm_mos_ptb", "hidden-sizes": "972 972 372"},
            published=_trained("59.74 / 57.97", fine_tuned="58.01 / 55.89"),
        ),
        "mmlstm-mos": System({"arch": _MM_PTB}, published=_trained("56.52 / 54.51", fine_tuned="55.42 / 53.46")),
        "previous": System(
            {"arch": _MM_PTB, "minor-input": "previous", "hidden-sizes": "1050 1050 620"},
            published=_trained("57.95 / 55.93"),
        ),
        "without1": _without(_MM_PTB, layer=1, hidden_sizes="1030 1080 620", published="57.30 / 55.10"),
        "without2": _without(_MM_PTB, layer=2, hidden_sizes="1080 1010 620", published="57.14 / 54.93"),
        "without3": _without(_MM_PTB, layer=3, hidden_sizes="1080 1080 520", published="57.84 / 55.74"),
        "lm": System({"arch": "lstm_lm_mos_ptb"}),
        "lm+": System({"arch": "lstm_lm_mos_ptb", "dropout-hidden": 0.25, "dropout-weight": 0.525}),
        "lm#": System({"arch": "lstm_lm_mos_ptb", "hidden-sizes": "1080 1080 620"}),
        "lm##": System({"arch": _MM_PTB, "rnn-cell": "lstm"}),
        **_ratios(
            "mmlstm_lm_ptb",
            {"8:2": "1330 1330 400", "7:3": "1420 1420 400", "6:4": "1500 1500 400", "5:5": "1560 1560 400"},
        ),
    },
)
WT2 = _recipe(
    suffix="wt2",
    corpus="wikitext-2",
    title="WikiText-2",
    notes=_NOTES + _DYNAMIC_WT2,
    systems={
        "mos": System(
            {"arch": "lstm_lm_mos_wt2", "hidden-sizes": "1080 1080 390"},
            published=_trained("67.33 / 64.64", fine_tuned="65.11 / 63.02"),
        ),
        "mmlstm-mos": System({"arch": _MM_WT2}, published=_trained("64.30 / 61.77", fine_tuned="63.11 / 60.51")),
        "previous": System(
            {"arch": _MM_WT2, "minor-input": "previous", "hidden-sizes": "1160 1160 650"},
            published=_trained("65.43 / 62.76"),
        ),
        "without1": _without(_MM_WT2, layer=1, hidden_sizes="1150 1200 650", published="65.34 / 62.73"),
        "without2": _without(_MM_WT2, layer=2, hidden_sizes="1200 1130 650", published="65.07 / 62.43"),
        "without3": _without(_MM_WT2, layer=3, hidden_sizes="1200 1200 550", published="65.66 / 63.02"),
        **_ratios(
            "mmlstm_lm_wt2",
            {"8:2": "1330 1330 400", "7:3": "1440 1440 400", "6:4": "1500 1500 400", "5:5": "1550 1550 400"},
        ),
    },
)
WT103 = _recipe(
    suffix="wt103",
    corpus="wikitext-103",
    title="WikiText-103",
    notes="Tied softmax, majors and minors of the ratio N:M; 10:0 is the LSTM of table VII.",
    systems={
        "10:0": System(
            {"arch": _MM_WT103, "rnn-cell": "lstm", "hidden-sizes": "1024 256"}, published=_trained("47.01 / 47.95")
        ),
        "9:1": System({"arch": _MM_WT103}, published=_trained("43.45 / 44.69")),
    },
)
