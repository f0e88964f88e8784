"""Penn Treebank with networks small enough for two CPU cores."""

from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe
from fairseq_plugins.recipes.system import System

_SINGLE = {"arch": "lstm_lm_awd", "embed-dim": 150, "hidden-sizes": "400 400 150"}
_LABELS = {**_SINGLE, "label-dropout": 0.3}
_DRILL = {**_LABELS, "output-layer": "drill"}
_MIXTURE = {"embed-dim": 100, "hidden-sizes": "400 400 280"}
_MAJOR_MINOR = {"arch": "mmlstm_lm", "embed-dim": 150}
_MAJOR_MINOR_MIXTURE = {"arch": "mmlstm_lm_mos", "embed-dim": 100, "hidden-sizes": "457 457 280"}
_MOS = {"experts-per-layer": "0 0 0 4"}
_WITHOUT_LAST = {"major-proportions": "0.9 0.9 1"}
_PREVIOUS = {"minor-input": "previous"}
_DOC = {"experts-per-layer": "0 0 1 3"}

RECIPE = Recipe(
    name="reduced",
    title="Language models of Penn Treebank at a CPU budget: the same data, updates, dropout and seed for all",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        "tied": System({**_SINGLE, "output-layer": "tied"}),
        "full": System({**_SINGLE, "output-layer": "full"}),
        "bilinear": System({**_LABELS, "output-layer": "bilinear"}),
        "dual": System({**_LABELS, "output-layer": "dual"}),
        **{f"drill{depth}": System({**_DRILL, "label-depth": depth}) for depth in range(5)},
        "standard": System({**_DRILL, "label-depth": 4, "label-mask": "standard"}),
        "9:1": System({**_MAJOR_MINOR, "major-proportions": "0.9", "hidden-sizes": "431 431 150"}),
        "9:1-without3": System({**_MAJOR_MINOR, **_WITHOUT_LAST, "hidden-sizes": "428 428 150"}),
        "9:1-previous": System(
            {**_MAJOR_MINOR, **_PREVIOUS, "major-proportions": "0.9", "hidden-sizes": "425 425 150"}
        ),
        "7:3": System({**_MAJOR_MINOR, "major-proportions": "0.7", "hidden-sizes": "494 494 150"}),
        "5:5": System({**_MAJOR_MINOR, "major-proportions": "0.5", "hidden-sizes": "540 540 150"}),
        "mos": System({"arch": "lstm_lm_mos", **_MIXTURE, **_MOS}),
        "doc": System({"arch": "lstm_lm_doc", **_MIXTURE, **_DOC}),
        "mmlstm-mos": System({**_MAJOR_MINOR_MIXTURE, **_MOS}),
        "mmlstm-mos-without3": System({**_MAJOR_MINOR_MIXTURE, **_MOS, **_WITHOUT_LAST, "hidden-sizes": "428 428 280"}),
        "mmlstm-mos-previous": System({**_MAJOR_MINOR_MIXTURE, **_MOS, **_PREVIOUS, "hidden-sizes": "437 437 280"}),
        "mmlstm-doc": System(
            {**_MAJOR_MINOR_MIXTURE, **_DOC, "output-layer": "doc", "latent-dropout": 0.2, "balance": 0.001}
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
