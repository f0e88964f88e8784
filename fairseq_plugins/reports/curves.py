"""Learning curves as a picture."""

from typing import TYPE_CHECKING, Any, Dict, Sequence

from fairseq_plugins.reports.pictures import new_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_learning_curves(runs: Sequence[Dict[str, Any]]) -> "Figure":
    """Validation perplexity by epoch, one line a run.

    Args:
        runs: each with ``name``, ``seed`` and ``valid_curve``.
    """
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    names = [run["name"] for run in runs]
    picture = new_picture()
    axes = picture.subplots()
    for run in runs:
        label = run["name"] if names.count(run["name"]) == 1 else f"{run['name']}, seed {run['seed']}"
        axes.plot(list(run["valid_curve"]), list(run["valid_curve"].values()), marker="o", label=label)
    axes.set(xlabel="epoch", ylabel="validation perplexity", yscale="log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return picture
