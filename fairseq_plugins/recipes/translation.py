"""Recipes of translation and headlines, by paper. Recipes at a CPU budget and those of the demo follow."""

from dataclasses import replace
from typing import Dict, Sequence

from fairseq_plugins.models.presets.translation import ADAM_HALVED
from fairseq_plugins.models.presets.translation import SMALL_TRAINING as SMALL_RECURRENT_TRAINING
from fairseq_plugins.models.presets.translation import TRANSFORMER_SMALL_TRAINING as SMALL_TRANSFORMER_TRAINING
from fairseq_plugins.recipes.recipe import ON_CPUS, DecodingSettings, Recipe, System, labelled, scored_validation, table

# Takase et al. 2018: IWSLT 2016 (table 9) and Annotated English Gigaword (table 10).

_PAIRS = ("en-de", "de-en", "en-fr", "fr-en")
_ROUGE = ("ROUGE-1", "ROUGE-2", "ROUGE-L")


def _takase2018(corpus: str, columns: Sequence[str], *figures: Sequence[str]) -> Dict[str, System]:
    """The baseline, MoS and DOC with their figures."""
    rows = zip(("", "_mos", "_doc"), ("lstm_encdec", "MoS, i_3 = 2", "DOC, i_3 = i_2 = 2"), figures)
    return {
        layer.strip("_") or "encdec": System(
            {"arch": f"lstm_encdec{layer}_{corpus}"}, label=label, published=dict(zip(columns, published))
        )
        for layer, label, published in rows
    }


_AS_KIYONO2017 = """\
Beam, optimiser, rate, batches and halving are those of Kiyono et al. 2017, whom the paper follows; it names no dropout
of expert hidden states and no balance term, and there are none here. Run with seeds 1, 2 and 3; the three systems
differ in their output layer only. If doc lags behind from the first epochs, add --expert-warmup 1000, which is not
in the paper (results/multi30k shows why)."""

IWSLT16 = Recipe(
    name="iwslt16",
    title="IWSLT 2016, encoder-decoders with the settings of Takase et al. 2018, table 9",
    corpus="bash data-prep/iwslt16/prepare.sh en-de",
    systems=_takase2018(
        "iwslt",
        _PAIRS,
        ("23.05", "28.18", "34.37", "34.07"),
        ("23.62", "29.12", "36.09", "34.41"),
        ("23.97", "29.33", "36.11", "34.72"),
    ),
    metric="BLEU, mean of three seeds",
    compared_by="bleu",
    decoding=DecodingSettings(beam=20),
    notes="""\
The paper leaves open the years of its test set, its filter, its beam and its BLEU script, so the figures
are guides, not targets.
"""
    + _AS_KIYONO2017,
)

GIGAWORD = Recipe(
    name="gigaword",
    title="Headlines of Annotated Gigaword, with the settings of Takase et al. 2018, table 10",
    corpus="bash data-prep/gigaword/prepare.sh --from DIR",
    systems=_takase2018(
        "gigaword",
        _ROUGE,
        ("46.77", "24.87", "43.58"),
        ("46.91", "24.91", "43.73"),
        ("46.99", "25.29", "43.83"),
    ),
    metric="F1 of ROUGE, mean of three seeds",
    compared_by="rouge",
    decoding=DecodingSettings(beam=20),
    notes=f"""{_AS_KIYONO2017}
To set the length: at most 8 subwords by -- --max-len-b 8, from 8 to 12 with a preference for longer ones by
-- --min-len 8 --max-len-b 12 --lenpen 2, and the 75 bytes of DUC 2004 by --max-bytes 75. The figures are on the test
set of Zhou et al. 2017, which data-prep takes by --test-source and --test-target; without them test is the set of Rush
et al. 2015.""",
)


# Pappas & Henderson 2019: Transformers on WMT 2014.

WMT14_TRANSFORMER = Recipe(
    name="wmt14_transformer",
    title="WMT 2014 English-German, Transformer base with the output layers of Pappas & Henderson 2019, table 5",
    corpus="bash data-prep/wmt14/prepare.sh en-de",
    systems={
        **table(
            {
                "full": ({"arch": "transformer_full_wmt14"}, "27.3"),
                "dual": ({"arch": "transformer_dual_wmt14"}, "27.5"),
            },
            "newstest2014",
        ),
        "drill": System(
            {"arch": "transformer_drill_wmt14"}, label="drill, depth 2", published={"newstest2014": "28.1"}
        ),
        **{layer: System({"arch": f"transformer_{layer}_wmt14"}) for layer in ("bilinear", "mos", "doc")},
    },
    training={"share-decoder-input-output-embed": True},
    metric="tokenised BLEU, inferred from the text since the table is an image",
    compared_by="bleu",
    decoding=DecodingSettings(beam=4, flags=("--lenpen", "0.6")),
    notes="""350,000 updates of two batches of 4,096 tokens on one GPU; the embedding of the decoder is shared with
the output layer. drill has 0.53M parameters more than full. The paper names a label dropout of 0.6, its published
command 0, which is taken here. The paper takes the checkpoint with the highest accuracy on valid, the recipe the one
with the lowest loss.""",
)


# Shuang et al. 2020: Major-Minor LSTM on WMT 2014.

WMT14_MMLSTM = Recipe(
    name="wmt14_mmlstm",
    title="WMT 2014 German-English, LSTM of Luong et al. 2015 and Major-Minor LSTM of Shuang et al. 2020, table XII",
    corpus="bash data-prep/wmt14/prepare.sh de-en --max-length 50",
    systems={
        "lstm": System(
            {"arch": "lstm_encdec_wmt14"},
            label="LSTM, 170.7M parameters",
            published={"newstest2015": "6.83 / 29.36", "newstest2016": "5.39 / 33.38"},
        ),
        "mmlstm": System(
            {"arch": "mmlstm_encdec_wmt14"},
            label="Major-Minor LSTM, 172.8M parameters",
            published={"newstest2015": "6.15 / 30.83", "newstest2016": "4.88 / 35.48"},
        ),
    },
    metric="perplexity / BLEU",
    compared_by="bleu",
    decoding=DecodingSettings(split="newstest2015", beam=10),
    notes="""The paper gives SGD at 1.0, 340,000 updates and "dropout 1.0"; batches, dropout 0.2, clipping, length
and the halving of the rate after half of the updates are from TensorFlow's NMT tutorial, except its forget
bias of 1, which "dropout 1.0" may mean. fairseq warns in each epoch that it has no rate by epoch: the rates by update
are taken. newstest2016 is another --split.
Perplexity: fairseq-validate DATA --user-dir fairseq_plugins --path CKPT --task translation --valid-subset
newstest2015 --batch-size 128""",
)


# Multi30k at a CPU budget: encoder-decoders, and Transformers with each output layer.

_SCORED = scored_validation("bleu")
# The results were made with this rate. The presets of the small architectures have a better one now.
_RATE = {"lr": 0.001}
_OURS = {**ON_CPUS, "attention": "general"}

MULTI30K = Recipe(
    name="multi30k",
    title="Multi30k at a CPU budget, encoder-decoders: the same data, updates, widths and optimiser for all",
    corpus="bash data-prep/multi30k/prepare.sh en-de",
    systems={
        "fairseq": System(
            {
                **SMALL_RECURRENT_TRAINING,
                **_SCORED,
                **_RATE,
                "arch": "lstm",
                "criterion": "cross_entropy",
                "dropout": 0.3,
                "encoder-bidirectional": True,
                "encoder-layers": 2,
                **{f"encoder-{size}": 256 for size in ("embed-dim", "hidden-size")},
                "decoder-layers": 2,
                **{f"decoder-{size}": 256 for size in ("embed-dim", "hidden-size", "out-embed-dim")},
            },
            label="fairseq lstm",
        ),
        **labelled(
            {
                "encdec-nofeed": (
                    "lstm_encdec, no input feeding",
                    {**_OURS, "arch": "lstm_encdec", "input-feeding": "off"},
                ),
                "encdec": ("lstm_encdec", {**_OURS, "arch": "lstm_encdec"}),
                "mos": ("lstm_encdec_mos", {**_OURS, "arch": "lstm_encdec_mos"}),
                "doc": ("lstm_encdec_doc", {**_OURS, "arch": "lstm_encdec_doc"}),
                "mmlstm": ("mmlstm_encdec", {**_OURS, "arch": "mmlstm_encdec", "hidden-sizes": "273 273"}),
            }
        ),
    },
    training={**_SCORED, **_RATE},
    compared_by="bleu",
    notes="""The system fairseq is fairseq's own lstm. encdec, mos and doc have one softmax, MoS (two experts) and DOC
(two and two); mmlstm has about as many parameters as encdec. The architecture of doc brings --expert-warmup 1000, which
is not in the paper. Results: results/multi30k/README.md and results/mmlstm/README.md.""",
)


# Small translators on pairs with one dictionary, with as many parameters and updates for all.

_JOINED_MIXTURE = {"attention": "dot", "latent-activation": "linear", "latent-dropout": 0.2}
_JOINED_DOC = {**_JOINED_MIXTURE, "arch": "lstm_encdec_doc"}
_UNTIED = {"share-embeddings": "none"}
"""Source, target and output have separate matrices, as in Takase et al. 2018."""
_JOINED_ROWS = {
    "encdec": ("lstm_encdec, tied softmax", {"arch": "lstm_encdec", "output-layer": "tied"}),
    "mos": ("MoS", {**_JOINED_MIXTURE, "arch": "lstm_encdec_mos", "hidden-sizes": "251 251"}),
    "one-expert": (
        "one expert on the attention",
        {**_JOINED_DOC, "experts-per-layer": "0 0 0 1", "hidden-sizes": "254 254"},
    ),
    "doc": ("DOC", {**_JOINED_DOC, "hidden-sizes": "246 246"}),
    "doc-drill": ("DOC, DRILL's labels", {**_JOINED_DOC, "hidden-sizes": "240 240", "label-encoder": "drill"}),
    "mmlstm": ("Major-Minor LSTM, tied", {"arch": "mmlstm_encdec", "output-layer": "tied", "hidden-sizes": "298 256"}),
    "mmlstm-doc": ("Major-Minor LSTM, DOC", {**_JOINED_DOC, "arch": "mmlstm_encdec_doc", "hidden-sizes": "264 264"}),
    "encdec+copying": ("lstm_encdec, copying", {"arch": "lstm_encdec", "output-layer": "tied", "copying": "attention"}),
    "doc+copying": ("DOC, copying", {**_JOINED_DOC, "hidden-sizes": "246 246", "copying": "attention"}),
    "encdec+untied": ("lstm_encdec, untied", {**_UNTIED, "arch": "lstm_encdec", "output-layer": "full"}),
}
_JOINED_SYSTEMS = labelled(_JOINED_ROWS)
_JOINED_SYSTEMS |= {
    f"{name}+untied": System({**_JOINED_ROWS[name][1], **_UNTIED}, label=f"{_JOINED_ROWS[name][0]}, untied")
    for name in ("mos", "one-expert", "doc")
}
_JOINED_TITLE = "encoder-decoders with one dictionary: as many parameters and updates for all"

MULTI30K_JOINED = Recipe(
    name="multi30k_joined",
    title=f"Multi30k, {_JOINED_TITLE}",
    corpus="bash data-prep/multi30k/prepare.sh en-de --joined-dictionary",
    systems=_JOINED_SYSTEMS,
    training={
        **ON_CPUS,
        **ADAM_HALVED,
        **scored_validation("bleu"),
        "lr": 0.004,
        "share-embeddings": "all",
        "dropout": 0.4,
        "label-smoothing": 0.1,
        "batch-size": 64,
        "force-anneal": 10,
        "max-epoch": 13,
    },
    training_of_presets="left out",
    compared_by="bleu",
    notes="""Embeddings of 256 for source, target and output, layers of about the same width. The rate is halved in each
of the last epochs; the log has BLEU of valid, decoded greedily, by epoch. DOC's experts on the LSTM wait for 1,000
updates, which is not in the paper. Made for several seeds. The settings were chosen on
the validation set of Multi30k English-German, most with one seed: results/multi30k.""",
)

IWSLT14_PARTIAL = replace(
    MULTI30K_JOINED,
    name="iwslt14_partial",
    title=f"A random part of IWSLT 2014, {_JOINED_TITLE}",
    corpus="bash data-prep/iwslt14/prepare.sh de-en --partial --joined-dictionary",
    training={**MULTI30K_JOINED.training, "force-anneal": 3, "max-epoch": 5, "dropout": 0.2},
    notes=f"""{MULTI30K_JOINED.notes}
Here epochs are fewer, and the dropout is the recipe tatoeba's: results/iwslt14_partial.""",
)

TATOEBA = replace(
    MULTI30K_JOINED,
    name="tatoeba",
    title=f"Tatoeba, {_JOINED_TITLE}",
    corpus="bash data-prep/tatoeba/prepare.sh de-en --joined-dictionary",
    training={**MULTI30K_JOINED.training, "batch-size": 256, "force-anneal": 3, "max-epoch": 5, "dropout": 0.2},
    notes=f"""{MULTI30K_JOINED.notes}
Here the dropout was chosen on valid (results/tatoeba); the larger batches and fewer epochs were
not tuned.""",
)

MULTI30K_JOINED_TRANSFORMER = Recipe(
    name="multi30k_joined_transformer",
    title="Multi30k, Transformers with one dictionary: as many parameters as the encoder-decoders of multi30k_joined",
    corpus="bash data-prep/multi30k/prepare.sh en-de --joined-dictionary",
    systems={
        name: System(
            {"arch": f"transformer_{layer}", "encoder-ffn-embed-dim": width, "decoder-ffn-embed-dim": width},
            label=label,
        )
        for name, layer, width, label in (
            ("tied", "full", 381, "Transformer, tied softmax"),
            ("dual", "dual", 338, "Transformer, dual mapping"),
            ("drill", "drill", 338, "Transformer, DRILL, depth 2"),
            ("mos", "mos", 295, "Transformer, MoS"),
            ("doc", "doc", 295, "Transformer, DOC"),
        )
    },
    training={
        **ON_CPUS,
        **SMALL_TRANSFORMER_TRAINING,
        **scored_validation("bleu"),
        "share-all-embeddings": True,
        "max-epoch": 13,
        "lr-scheduler": "polynomial_decay",
        "total-num-update": 13 * 454,
    },
    training_of_presets="left out",
    compared_by="bleu",
    notes="""Three layers of 256 on either side; the feed-forward layers take the remaining parameters. As many updates
as the encoder-decoders of multi30k_joined, with a rate that falls linearly to 0. Made for fairseq-plugins run; compare
runs sets both recipes side by side: results/multi30k.""",
)


# Headlines of AG News and Reuters-21578 at a CPU budget.

_WITHOUT_COPYING = {
    "encdec": System({"arch": "lstm_encdec", "output-layer": "tied"}, label="lstm_encdec, tied softmax"),
    "mos": System({"arch": "lstm_encdec_mos", "latent-dropout": 0.4}, label="MoS"),
    "doc": System({"arch": "lstm_encdec_doc", "latent-dropout": 0.4}, label="DOC"),
}
_HEADLINES_SYSTEMS = {
    **_WITHOUT_COPYING,
    **{
        f"{name}+copying": System({**system.flags, "copying": "attention"}, label=f"{system.label}, copying")
        for name, system in _WITHOUT_COPYING.items()
    },
}
_HEADLINES_TRAINING = {
    **ON_CPUS,
    **scored_validation("rouge1"),
    "share-embeddings": "all",
    "attention": "general",  # as in the results; the presets have another now
    "embed-dim": 128,
    "hidden-sizes": "128 128",
    "init-range": 0.2,
    "dropout": 0.5,
    "batch-size": 32,
    "max-epoch": 14,
    "lr": 0.003,
    "force-anneal": 11,
}


def _headlines(name: str, title: str, **epochs: int) -> Recipe:
    return Recipe(
        name=name,
        title=f"Headlines of {title} at a CPU budget: the same data, subwords, updates, widths and optimiser for all",
        corpus=f"bash data-prep/{name}/prepare.sh --joined-dictionary",
        systems=_HEADLINES_SYSTEMS,
        training={**_HEADLINES_TRAINING, **{flag.replace("_", "-"): number for flag, number in epochs.items()}},
        compared_by="rouge",
        notes=f"""\
The models are small, much is dropped, and one embedding serves source, target and output, so that names can
be copied; the systems with copying can point at them. The architecture of doc brings --expert-warmup 1000, which is not
in the paper.
Results, beside baselines without a model: results/{name}/README.md.""",
    )


AGNEWS = _headlines("agnews", "AG News")
REUTERS21578 = _headlines("reuters21578", "Reuters-21578", max_epoch=8, force_anneal=5)


# ``scripts/demo.sh``: short sentences of Tatoeba, one to two minutes a system on a CPU core.

_DEMO_CORPUS = "bash data-prep/tatoeba/prepare.sh {} --from fairseq_plugins/demo_corpus"
_DEMO_TRAINING = {**ON_CPUS, "criterion": "regularized_cross_entropy", "log-interval": 25, "seed": 1}

DEMO_LM = Recipe(
    name="demo_lm",
    title="The demo's language models: a tied softmax and DOC on the English side of short sentences",
    corpus=_DEMO_CORPUS.format("en"),
    systems={
        "lstm_lm_awd": System({"arch": "lstm_lm_awd", "hidden-sizes": "256 256 128"}, label="AWD-LSTM, tied softmax"),
        "lstm_lm_doc": System(
            {"arch": "lstm_lm_doc", "hidden-sizes": "244 244 128", "experts-per-layer": "0 0 1 3", "balance": 0.001},
            label="AWD-LSTM-DOC",
        ),
    },
    training={
        **_DEMO_TRAINING,
        "task": "stateful_lm",
        "tokens-per-sample": 35,
        "batch-size": 20,
        "batch-size-valid": 10,
        "embed-dim": 128,
        "activation-regularization": 2,
        "temporal-activation-regularization": 1,
        "optimizer": "nt_asgd",
        "lr": 20,
        "clip-norm": 0.25,
        "max-epoch": 10,
        "force-anneal": 8,
        "lr-shrink": 0.3,
    },
    training_of_presets="left out",
    notes="""Both have 1.2M parameters. The rate falls for the last two epochs. Results: results/demo/README.md.""",
)

DEMO_TRANSLATION = Recipe(
    name="demo_translation",
    title="The demo's translators: one softmax and DOC on short sentences, German to English",
    corpus=_DEMO_CORPUS.format("de-en") + " --merges 1500",
    systems={
        "lstm_encdec": System({"arch": "lstm_encdec", "hidden-sizes": 167}),
        "lstm_encdec_doc": System({"arch": "lstm_encdec_doc", "experts-per-layer": "0 2 2", "expert-warmup": 300}),
    },
    training={
        **_DEMO_TRAINING,
        "task": "translation",
        "embed-dim": 128,
        "hidden-sizes": 160,
        "attention": "general",
        "init-range": 0.2,
        "dropout": 0.3,
        "batch-size": 64,
        "optimizer": "adam",
        "lr": 0.004,
        "clip-norm": 5,
        "lr-scheduler": "fixed",
        "max-epoch": 6,
        "force-anneal": 5,
        "lr-shrink": 0.5,
    },
    training_of_presets="left out",
    compared_by="bleu",
    notes="""Both have 1.1M parameters in one layer. The rate falls for the last epoch. The warm-up of the experts is
not in the paper. Results: results/demo/README.md.""",
)
