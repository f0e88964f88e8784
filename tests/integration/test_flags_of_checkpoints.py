"""Flags of a run beside those of the checkpoint that it starts from, and files that a finished run was started from."""

import re
from argparse import Namespace

import fairseq_cli.generate
import fairseq_cli.train
import pytest
import torch
from commands import ROOT, run
from fairseq.models import ARCH_MODEL_REGISTRY
from translation_commands import FAIRSEQ_FLAGS

from fairseq_plugins.evaluation.checkpoints import load_translation_models
from fairseq_plugins.fairseq_patches.checkpoints import OF_TRAINING, _actions, other_flags

OLDER = ROOT / "tests/fixtures/older_checkpoints"
LM_DATA, PAIR_DATA = OLDER / "data/lm", OLDER / "data/translation"
SIZES = [
    f"--{side}-{size}"
    for side in ("encoder", "decoder")
    for size in ("embed-dim=8", "ffn-embed-dim=16", "attention-heads=2", "layers=1")
]
TRANSFORMER = ["--arch", "transformer_full", *SIZES]
TRAINING = ["--batch-size", 10, "--optimizer", "adam", "--lr", 0.002, "--no-epoch-checkpoints", "--disable-validation"]
PAIRS = [PAIR_DATA, *FAIRSEQ_FLAGS, "--criterion", "label_smoothed_cross_entropy", *TRAINING]


@pytest.fixture(scope="module")
def transformer(made_once):
    """The checkpoint of a Transformer after one update."""

    def make(folder):
        result = run("fairseq_cli.train", *PAIRS, *TRANSFORMER, "--max-update", 1, "--save-dir", folder)
        assert result.returncode == 0, result.stderr[-2000:]

    return made_once("transformer after one update", make) / "checkpoint_last.pt"


# flags that change the function and no weight's shape

DIFFERENT = {
    "--encoder-attention-heads 4": "with --encoder-attention-heads 2, this model has 4",
    "--decoder-attention-heads 1": "with --decoder-attention-heads 2, this model has 1",
    "--activation-fn gelu": "with --activation-fn relu, this model has gelu",
    "--no-scale-embedding": "without --no-scale-embedding, this model has it",
    "--no-token-positional-embeddings": "without --no-token-positional-embeddings, this model has it",
}


@pytest.mark.parametrize(
    "start, flags",
    [*(("--restore-file", flags) for flags in DIFFERENT), ("--finetune-from-model", "--activation-fn gelu")],
)
def test_a_transformer_with_other_settings_is_refused(start, flags, transformer, run_here, tmp_path):
    save = ["--save-dir", tmp_path, start, transformer, "--max-update", 2]
    with pytest.raises(
        ValueError, match=f"^{re.escape(f'{transformer} was trained {DIFFERENT[flags]}: give the --arch')}"
    ):
        run_here(fairseq_cli.train, *PAIRS, *TRANSFORMER, *save, *flags.split())
    assert not list(tmp_path.glob("*.pt"))


def test_flags_of_training_may_be_others(transformer, run_here, tmp_path):
    others = ["--dropout", 0.3, "--attention-dropout", 0.1, "--max-source-positions", 500, "--checkpoint-activations"]
    save = ["--save-dir", tmp_path, "--finetune-from-model", transformer, "--max-update", 1]
    run_here(fairseq_cli.train, *PAIRS, *TRANSFORMER, *save, *others, "--encoder-layerdrop", 0.1)
    assert (tmp_path / "checkpoint_last.pt").exists()


def test_so_are_fairseqs_models(run_here, tmp_path):
    flags = [LM_DATA, "--task", "language_modeling", "--arch", "transformer_lm", "--tokens-per-sample", 10, *TRAINING]
    flags += ["--save-dir", tmp_path, *(flag for flag in SIZES if flag.startswith("--decoder"))]
    run_here(fairseq_cli.train, *flags, "--max-update", 1)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    for other, said in (
        ("--activation-fn=gelu", "--activation-fn relu, this"),
        ("--decoder-attention-heads=4", "2, this"),
    ):
        with pytest.raises(ValueError, match=said):
            run_here(fairseq_cli.train, *flags, other, "--max-update", 2)
        assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    run_here(fairseq_cli.train, *flags, "--dropout", 0.3, "--max-update", 2)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() != before


def test_one_value_may_be_written_in_several_ways():
    saved = dict(
        encoder_layers="[(8, 3)] * 2", decoder_layers="[(8,3)]", encoder_embed_dim="8", decoder_attention="True"
    )
    given = dict(encoder_layers="[(8,3),(8,3)]", decoder_layers="[(8, 3)]", encoder_embed_dim=8, decoder_attention=True)
    assert not other_flags(Namespace(arch="fconv", **given), Namespace(arch="fconv", **saved))
    given["decoder_layers"] = "[(8, 5)]"
    (found,) = other_flags(Namespace(arch="fconv", **given), {"_name": "fconv", **saved})
    assert found == "with --decoder-layers [(8,3)], this model has [(8, 5)]"
    sizes = [Namespace(arch="lstm_lm_awd", hidden_sizes=text) for text in ("16  8", "16 8", "168")]
    assert not other_flags(sizes[0], sizes[1]) and other_flags(sizes[1], sizes[2])


def test_every_flag_that_is_not_compared_is_one_of_training():
    """A new flag that changes the function is compared; one that does not must be named here."""
    families = ("lstm_lm_awd", "lstm_encdec", "gated_lm", "transformer_full", "transformer_lm", "lstm", "lstm_lm")
    names = {action.dest for arch in families for action in _actions(Namespace(arch=arch))}
    assert all(arch in ARCH_MODEL_REGISTRY for arch in families)
    dropped = {name for name in names if "drop" in name or "noise" in name or name.endswith(("mask", "masks"))}
    started = {"init", "init_range", "init_biases", "label_init", "gate_init_range", "embedding_std", "recurrent_scale"}
    started |= {"transform_bias", "longest_timescale", "base_model", "encoder_embed_path", "decoder_embed_path"}
    started |= {"encoder_freeze_embed", "decoder_freeze_embed", "expert_warmup", "column_norm", "adversarial_epsilon"}
    computed = {"output_chunk", "output_loss", "output_precision", "checkpoint_activations", "offload_activations"}
    computed |= {"max_source_positions", "max_target_positions", "min_params_to_wrap", "decoder_layers_to_keep"}
    computed |= {"quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar", "base_shuffle"}
    shapes = {"base_layers", "base_sublayers", "tie_adaptive_proj", "tie_adaptive_weights", "share_embeddings"}
    shapes |= {"share_all_embeddings", "share_decoder_input_output_embed"}
    assert {name for name in names if OF_TRAINING.search(name)} == dropped | started | computed | shapes


# files that a run was started from


def write_embeddings(path):
    words = [line.split()[0] for line in (PAIR_DATA / "dict.src.txt").read_text().splitlines()]
    rows = [" ".join([word, *(f"0.{n}{d}" for d in range(8))]) for n, word in enumerate(words)]
    path.write_text("\n".join([f"{len(words)} 8", *rows]) + "\n")


@pytest.mark.parametrize("model", [TRANSFORMER, ["--arch", "lstm", "--encoder-embed-dim=8"]], ids=["ours", "fairseq's"])
def test_a_finished_model_needs_no_file_of_embeddings(model, run_here, tmp_path):
    file, folder = tmp_path / "embeddings.txt", tmp_path / "trained"
    write_embeddings(file)
    training = [*PAIRS, *model, "--encoder-embed-path", file, "--save-dir", folder]
    run_here(fairseq_cli.train, *training, "--max-update", 1)
    file.unlink()
    decode = [PAIR_DATA, *FAIRSEQ_FLAGS, "--gen-subset", "test", "--path", folder / "checkpoint_last.pt"]
    assert "H-0" in run_here(fairseq_cli.generate, *decode)
    assert len(load_translation_models([folder / "checkpoint_last.pt"], PAIR_DATA)) == 1
    log = run_here(fairseq_cli.train, *training, "--max-update", 2)
    assert f"--encoder-embed-path {file} is not read: weights are those of {folder}/checkpoint_last.pt" in log
    assert torch.load(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 2


def test_a_run_that_starts_anew_still_needs_its_file(run_here, tmp_path):
    with pytest.raises((ValueError, OSError), match="embeddings.txt"):
        flags = ["--encoder-embed-path", tmp_path / "embeddings.txt", "--save-dir", tmp_path / "trained"]
        run_here(fairseq_cli.train, *PAIRS, *TRANSFORMER, *flags, "--max-update", 1)
