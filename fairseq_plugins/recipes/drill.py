"""Output layers of Pappas & Henderson 2019 on Penn Treebank and WikiText-2, with the paper's settings."""

from typing import Mapping

from fairseq_plugins.models.presets import Value
from fairseq_plugins.recipes.recipe import FULL_SIZE, Recipe
from fairseq_plugins.recipes.system import System

_FIGURES = {
    # system: (Penn Treebank, WikiText-2), after fine-tuning
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
_MASKS = {"standard": "a mask for each label", "variational": "one mask for all labels"}
_DYNAMIC = ("49.5 / 49.4", "43.9 / 42.0")
_BEFORE = {"drill": ("59.6 / 57.0", "65.7 / 62.8")}


def _recipe(*, suffix: str, corpus: str, title: str, column: int, other_mask: str, notes: str = "") -> Recipe:
    def system(name: str, label: str, flags: Mapping[str, Value]) -> System:
        figures = {"fine-tuned": _FIGURES[name][column], "before": _BEFORE.get(name, ("", ""))[column]}
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
        (other_mask, f"DRILL, depth 4, {_MASKS[other_mask]}", {**drill, "label-mask": other_mask}),
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


PTB = _recipe(
    suffix="ptb",
    corpus="ptb",
    title="Penn Treebank",
    column=0,
    other_mask="standard",
    notes="""
The paper calls the row of standard "no variational dropout", which may as well mean no dropout of labels
(--label-dropout 0).""",
)
WT2 = _recipe(suffix="wt2", corpus="wikitext-2", title="WikiText-2", column=1, other_mask="variational")
