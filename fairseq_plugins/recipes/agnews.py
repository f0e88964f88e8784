"""AG News at a CPU budget."""

from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe, System

RECIPE = Recipe(
    name="agnews",
    title="Headlines of AG News at a CPU budget: the same data, subwords, updates, widths and optimiser for all",
    corpus="bash data-prep/agnews/prepare.sh --joined-dictionary",
    systems={
        "encdec": System({"arch": "lstm_encdec", "output-layer": "tied"}, label="lstm_encdec, tied softmax"),
        "mos": System({"arch": "lstm_encdec_mos", "latent-dropout": 0.4}, label="MoS"),
        "doc": System({"arch": "lstm_encdec_doc", "latent-dropout": 0.4}, label="DOC"),
    },
    training={
        **ON_CPUS,
        "share-embeddings": "all",
        "embed-dim": 128,
        "hidden-sizes": "128 128",
        "init-range": 0.2,
        "dropout": 0.5,
        "batch-size": 32,
        "max-epoch": 14,
        "lr": 0.003,
        "force-anneal": 11,
    },
    notes="""With 5,800 pairs the models are small, much is dropped, and one embedding serves source, target and
output, so that names can be copied. The architecture of doc brings --expert-warmup 1000, which is not in the paper.
Score: python -m fairseq_plugins.cli.evaluate_rouge DATA --path CKPT --out OUT
Results, beside baselines without a model: results/agnews/README.md.""",
)
