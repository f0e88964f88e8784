"""WMT 2014: the Major-Minor LSTM of Shuang et al. 2020, and the Transformers of Pappas & Henderson 2019."""

from fairseq_plugins.recipes.decoding_settings import DecodingSettings
from fairseq_plugins.recipes.recipe import Recipe
from fairseq_plugins.recipes.system import System

MAJOR_MINOR = Recipe(
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
and the halving of the rate after half of the updates are those of the toolkit whose recipe this is (TensorFlow's
NMT tutorial), but for its forget bias of 1, which may be what the 1.0 means. The host warns each epoch that it has
no rate by epoch: those by update are taken. newstest2016 is another --split.
Perplexity: fairseq-validate DATA --user-dir fairseq_plugins --path CKPT --task translation --valid-subset
newstest2015 --batch-size 128""",
)

TRANSFORMER = Recipe(
    name="wmt14_transformer",
    title="WMT 2014 English-German, Transformer base with the output layers of Pappas & Henderson 2019, table 5",
    corpus="bash data-prep/wmt14/prepare.sh en-de",
    systems={
        "full": System({"arch": "transformer_full_wmt14"}, published={"newstest2014": "27.3"}),
        "dual": System({"arch": "transformer_dual_wmt14"}, published={"newstest2014": "27.5"}),
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
command 0, which is taken here. The paper's checkpoint is that of the highest accuracy on valid, the recipe's that of
the lowest loss.""",
)
