"""Multi30k at a CPU budget: encoder-decoders, and Transformers with each output layer."""

from fairseq_plugins.models.presets.encoder_decoders import SMALL_TRAINING as SMALL_RECURRENT_TRAINING
from fairseq_plugins.models.presets.transformers import SMALL_TRAINING as SMALL_TRANSFORMER_TRAINING
from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe
from fairseq_plugins.recipes.scored_validation import scored_validation
from fairseq_plugins.recipes.system import System

_SCORED = scored_validation("bleu")
# not as good as what the small architectures have since, but that of the results
_RATE = {"lr": 0.001}
_OURS = {**ON_CPUS, "attention": "general"}
_CORPUS = "bash data-prep/multi30k/prepare.sh en-de"

RECURRENT = Recipe(
    name="multi30k",
    title="Multi30k at a CPU budget, encoder-decoders: the same data, updates, widths and optimiser for all",
    corpus=_CORPUS,
    systems={
        "host": System(
            {
                **SMALL_RECURRENT_TRAINING,
                **_SCORED,
                **_RATE,
                "arch": "lstm",
                "criterion": "cross_entropy",
                "dropout": 0.3,
                "encoder-bidirectional": True,
                "encoder-layers": 2,
                "encoder-embed-dim": 256,
                "encoder-hidden-size": 256,
                "decoder-layers": 2,
                "decoder-embed-dim": 256,
                "decoder-hidden-size": 256,
                "decoder-out-embed-dim": 256,
            },
            label="fairseq lstm",
        ),
        "encdec-nofeed": System(
            {**_OURS, "arch": "lstm_encdec", "input-feeding": "off"}, label="lstm_encdec, no input feeding"
        ),
        "encdec": System({**_OURS, "arch": "lstm_encdec"}, label="lstm_encdec"),
        "mos": System({**_OURS, "arch": "lstm_encdec_mos"}, label="lstm_encdec_mos"),
        "doc": System({**_OURS, "arch": "lstm_encdec_doc"}, label="lstm_encdec_doc"),
        "mmlstm": System({**_OURS, "arch": "mmlstm_encdec", "hidden-sizes": "273 273"}, label="mmlstm_encdec"),
    },
    training={**_SCORED, **_RATE},
    compared_by="bleu",
    notes="""host is fairseq's own lstm. encdec, mos and doc have one softmax, MoS (two experts) and DOC (two and
two); mmlstm has about as many parameters as encdec. The architecture of doc brings --expert-warmup 1000, which is
not in the paper. Results: results/multi30k/five_epochs/README.md and results/mmlstm/README.md.""",
)

TRANSFORMER = Recipe(
    name="multi30k_transformer",
    title="Multi30k at a CPU budget, Transformers with each output layer: all else is the same",
    corpus=_CORPUS,
    systems={
        "host": System(
            {
                **SMALL_TRANSFORMER_TRAINING,
                **_SCORED,
                "arch": "transformer",
                "criterion": "label_smoothed_cross_entropy",
                "dropout": 0.2,
                "encoder-layers": 3,
                "encoder-embed-dim": 256,
                "encoder-ffn-embed-dim": 1024,
                "encoder-attention-heads": 4,
                "decoder-layers": 3,
                "decoder-embed-dim": 256,
                "decoder-ffn-embed-dim": 1024,
                "decoder-attention-heads": 4,
            },
            label="fairseq transformer, tied",
        ),
        "tied": System({"arch": "transformer_full"}, label="transformer_full, tied"),
        **{
            layer: System({"arch": f"transformer_{layer}"}, label=f"transformer_{layer}")
            for layer in ("bilinear", "dual", "drill", "mos", "doc")
        },
    },
    training={**_SCORED, "share-decoder-input-output-embed": True},
    compared_by="bleu",
    notes="""host is fairseq's own transformer with the same sizes and a tied softmax.
Results: results/multi30k_transformer/README.md.""",
)
