"""The recurrent models keep to their contract."""

from builders import build_encdec, build_lm, build_tiny_encdec, build_tiny_lm
from recurrent_model_contract import RecurrentModelContract

from fairseq_plugins.models.recurrent_encdec import RecurrentEncoderDecoder
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.modules.attention import ATTENTIONS
from fairseq_plugins.modules.dropout import MASKS
from fairseq_plugins.modules.embedding import WORD_MASKS
from fairseq_plugins.modules.initialisation import BIASES
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.modules.recurrent_highway import TRANSFORM_INPUTS
from fairseq_plugins.modules.recurrent_stack import OUTPUT_SKIPS

WIDE = dict(embed_dim=32, hidden_sizes="40 32")
CHOICES = {
    "--init-biases": BIASES,
    "--rnn-biases": ["one", "two"],
    "--rnn-cell": sorted(RECURRENT_CELLS),
    "--transform-input": TRANSFORM_INPUTS,
}


class TestLanguageModel(RecurrentModelContract):
    model = RecurrentLanguageModel
    build_tiny = staticmethod(build_tiny_lm)
    num_layers = 3
    default_biases = "zero"
    rates = {
        **{f"dropout_{place}": "lstm" for place in ("embedding", "input", "hidden", "output", "weight")},
        "dropout_carried_state": "lstm",
        "dropout_recurrent": "variational",
    }
    choices = {
        **CHOICES,
        "--dropout-masks": sorted(MASKS),
        "--output-skip": OUTPUT_SKIPS,
        "--word-masks": WORD_MASKS,
    }

    @staticmethod
    def build_wide(**flags):
        return build_lm("lstm_lm_awd", 200, **WIDE, **flags)


class TestEncoderDecoder(RecurrentModelContract):
    model = RecurrentEncoderDecoder
    build_tiny = staticmethod(build_tiny_encdec)
    num_layers = 4
    default_biases = "uniform"
    rates = {"dropout": "lstm"}
    choices = {
        **CHOICES,
        "--attention": [*sorted(ATTENTIONS), "none"],
        "--input-feeding": ["on", "off"],
        "--share-embeddings": ["none", "output", "all"],
    }

    @staticmethod
    def build_wide(**flags):
        shared = "output" if flags["output_layer"] == "tied" else "none"
        return build_encdec("lstm_encdec", 200, 210, share_embeddings=shared, **WIDE, **flags)
