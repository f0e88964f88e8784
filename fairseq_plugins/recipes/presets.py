"""Every architecture with the training of its preset."""

from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.recipes.recipe import FULL_SIZE, Recipe
from fairseq_plugins.recipes.system import System

_TRAINED, _FINE_TUNED, _REPEATED = "trained", "fine-tuned", "fine-tuned repeatedly"
_PUBLISHED = {
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

RECIPE = Recipe(
    name="presets",
    title="Any architecture with the training of its preset; the system is the architecture",
    corpus="data-prep, for the corpus that the architecture names",
    systems={
        arch: System({"arch": arch}, published=_PUBLISHED.get(arch, {}))
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
