"""The commands that look into models: frequency bands, rank, masked layers, correlations, attention and experts."""

import json
import logging
import re
import shutil

import pytest
from commands import ROOT, evaluate, run, train
from translation_commands import translate

from fairseq_plugins.cli import plot_attention, plot_expert_history, plot_experts
from fairseq_plugins.cli.mask_layers import MaskLayers
from fairseq_plugins.cli.plot_attention import PlotAttention
from fairseq_plugins.cli.plot_expert_history import PlotExpertHistory
from fairseq_plugins.cli.plot_experts import PlotExperts
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.analyses import layers
from fairseq_plugins.evaluation.analyses.experts import stream_expert_use
from fairseq_plugins.evaluation.checkpoints import load_language_models

OLDER = ROOT / "tests/fixtures/small_models"


@pytest.mark.slow
def test_a_model_against_itself_gains_nothing_at_any_frequency(trained, data, tmp_path):
    checkpoint, plot = trained / "checkpoint_best.pt", tmp_path / "bands.png"
    command = "fairseq_plugins.cli.compare_by_frequency", data, "--path", f"A={checkpoint}", f"B={checkpoint}"
    result = run(*command, "--plot", plot)
    assert result.returncode == 0, result.stderr[-3000:]
    rows = re.findall(r"^\| [\d,]+ .*\| +([\d,]+) \| +0.00 \| +0.00 \|$", result.stdout, re.M)
    found = json.loads(run(*command, "--json").stdout)
    assert {"date", "code", "machine"} < set(found) and "compare_by_frequency" in found["command"]
    bands = found["bands"]
    assert rows == [f"{band['num_tokens']:,}" for band in bands] and len(rows) > 2
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_rank_of_a_mixture_is_above_that_of_its_features(trained, data):
    command = "fairseq_plugins.cli.measure_rank", data, "--path", trained / "checkpoint_best.pt", "--json"
    result = run(*command, "--positions", 100)
    assert result.returncode == 0, result.stderr[-3000:]
    figures = json.loads(result.stdout)
    assert figures["positions"] == 100 and 0 < figures["rank"] <= 100
    assert json.loads(run(*command, "--threshold", 1e-6).stdout)["rank"] > 16 + 2


@pytest.mark.slow
def test_masked_layers_of_a_model_under_two_names_lose_the_same(trained, data, tmp_path):
    checkpoint, plot = trained / "checkpoint_best.pt", tmp_path / "masking.png"
    command = "fairseq_plugins.cli.mask_layers", data, "--path", f"A={checkpoint}", f"B={checkpoint}"
    flags = ["--probabilities", 0, 0.5, "--runs", 2, "--rows", 2, "--plot", plot]
    result = run(*command, *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(run(*command, *flags, "--json").stdout)
    assert {"date", "code", "machine"} < set(found) and "mask_layers" in found["command"]
    figures = found["curves"]
    assert len(figures) == 2 * 3 * 2 and {len(figure["perplexities"]) for figure in figures} == {1, 2}
    by_model = [[f["perplexities"] for f in figures if f["model"] == name] for name in "AB"]
    assert by_model[0] == by_model[1]
    plain = evaluate(data, "--path", checkpoint, "--rows", 2)["perplexity"]
    assert all(figure["perplexity"] == plain for figure in figures if figure["probability"] == 0)
    masked = [figure["perplexity"] for figure in figures if figure["probability"] == 0.5]
    assert plain not in masked  # which a model so young hardly notices
    assert result.stdout.count(f" {plain:.2f} |") == 6 and plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "flags, kind", [([], "element"), (["--mask", "element"], "element"), (["--mask", "locked"], "locked")]
)
def test_layers_are_masked_as_asked_for(flags, kind, monkeypatch, capsys, caplog):
    caplog.set_level(logging.WARNING)  # the command does so, too; here the level before is restored
    kinds = []
    monkeypatch.setattr(layers, "masked_perplexity", lambda model, tokens, mask, **_: kinds.append(mask.kind) or 2.0)
    model = ["--path", f"A={OLDER / 'lstm_lm_doc.pt'}", "--probabilities", "0.5", "--cpu", "--json"]
    MaskLayers().main([str(OLDER / "data/lm"), *model, *flags])
    curves = json.loads(capsys.readouterr().out)["curves"]
    assert set(kinds) == {kind} and [curve["mask"] for curve in curves] == [kind] * 3


@pytest.mark.slow
def test_correlations_are_shown_by_layer(trained, data):
    command = "fairseq_plugins.cli.measure_correlation", data, "--path", f"DOC={trained / 'checkpoint_best.pt'}"
    result = run(*command)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(run(*command, "--json").stdout)
    assert {"date", "code", "machine"} < set(found) and "measure_correlation" in found["command"]
    figures = found["layers"]
    assert [(figure["layer"], figure["width"]) for figure in figures] == [(1, 16), (2, 16)]
    assert all(0 < figure["mean"] < 1 and figure["major"] is None for figure in figures)
    assert all(f" {figure['mean']:.4f} |" in result.stdout for figure in figures)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, told",
    [
        (["no.pt"], "no.pt: give it as NAME=PATH"),
        (["A=no.pt"], "no.pt does not exist"),
        (["A=no.pt", "--probabilities", "50"], "--probabilities 50: give numbers from 0 to 1"),
        (["A=no.pt", "--runs", "0"], "--runs 0: give at least 1"),
        (["A=no.pt", "--rows", "0"], "--rows 0: give at least 1"),
        (["A=no.pt", "A=other.pt"], "give each NAME once"),
        (["=no.pt"], "=no.pt: give it as NAME=PATH"),
        (["A=no.pt", "--probabilities", "0", "0"], "--probabilities: give each number once"),
        (["A=no.pt", "--plot", "nowhere/masking.png"], "--plot: nowhere/masking.png: nowhere is no directory"),
        (["A=no.pt", "--plot", "masking.foo"], "--plot: masking.foo: give a name that ends in one of"),
    ],
)
def test_what_cannot_be_masked_is_one_line(arguments, told, data):
    result = run("fairseq_plugins.cli.mask_layers", data, "--path", *arguments)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and told in result.stderr


def test_more_rows_than_tokens_are_one_line():
    given = OLDER / "data/lm", "--path", f"A={OLDER}/lstm_lm_doc.pt", "--rows", 90_000
    for command, flags in (("mask_layers", []), ("plot_experts", ["--out", "experts"])):
        result = run(f"fairseq_plugins.cli.{command}", *given, *flags)
        assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
        assert "--rows 90000: test has " in result.stderr and result.stderr.endswith(" tokens, give fewer\n")


@pytest.mark.slow
def test_models_of_different_depth_are_not_masked_together(trained, data, tmp_path):
    train(data, tmp_path, "--hidden-sizes", 16, "--output-layer", "full", "--balance", 0, "--max-update", 1)
    models = f"two={trained / 'checkpoint_best.pt'}", f"one={tmp_path / 'checkpoint_last.pt'}"
    result = run("fairseq_plugins.cli.mask_layers", data, "--path", *models)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "models with 1 and 2 layers: compare those of one depth" in result.stderr


@pytest.mark.parametrize(
    "command, paths", [("compare_by_frequency", ["A=no.pt", "B=no.pt"]), ("measure_rank", ["no.pt"])]
)
def test_a_missing_checkpoint_is_one_line(command, paths, data):
    result = run(f"fairseq_plugins.cli.{command}", data, "--path", *paths)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "no.pt does not exist: give a checkpoint" in result.stderr


# pictures of attention and of experts


@pytest.fixture
def call(capsys):
    """``call(command, *arguments)``: exit status, what is printed, what is told."""

    def call(command, *arguments):
        status = 0
        try:
            command.main([*map(str, arguments), "--cpu"])
        except SystemExit as ended:
            status = ended.code
        return (status, *capsys.readouterr())

    return call


def pictures(folder):
    found = sorted(folder.glob("*"))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in found)
    return [path.name for path in found]


@pytest.mark.slow
def test_every_sentence_has_a_picture_of_its_attention(prepared, translator, call, tmp_path):
    (tmp_path / "lines.txt").write_text("a b\n\nc d e\nf\n")
    given = [prepared, "--path", translator / "checkpoint_best.pt", "--input", tmp_path / "lines.txt"]
    status, printed, told = call(PlotAttention(), *given, "--num", 2, "--out", tmp_path / "out")
    assert (status, told) == (0, "")
    assert printed.splitlines() == [
        f"{tmp_path}/out/sentence_{n}.png\t{translate(line)}" for n, line in ((1, "a b"), (2, "c d e"))
    ]
    assert pictures(tmp_path / "out") == ["sentence_1.png", "sentence_2.png"]


@pytest.mark.slow
@pytest.mark.parametrize("flags, precision", [([], "float32"), (["--output-precision", "auto"], "auto")])
def test_sentences_are_translated_in_the_precision_of_translate(
    flags, precision, prepared, translator, call, tmp_path, monkeypatch
):
    (tmp_path / "lines.txt").write_text("a b\n")
    asked = []
    monkeypatch.setattr(plot_attention, "prepare_to_score", lambda *_, **options: asked.append(options["precision"]))
    given = [prepared, "--path", translator / "checkpoint_best.pt", "--input", tmp_path / "lines.txt"]
    assert call(PlotAttention(), *given, "--out", tmp_path / "out", *flags)[0] == 0 and asked == [precision]


@pytest.mark.slow
def test_blank_lines_have_nothing_to_draw(prepared, translator, call, tmp_path):
    (tmp_path / "lines.txt").write_text("\n \n")
    given = [prepared, "--path", translator / "checkpoint_best.pt", "--input", tmp_path / "lines.txt"]
    status, _, told = call(PlotAttention(), *given, "--out", tmp_path / "out")
    assert status == 2 and "there is no sentence to draw" in told and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_language_models_experts_and_their_balance(data, trained, call, tmp_path):
    paths = [trained / f"checkpoint_{name}.pt" for name in ("best", "last")]
    (tmp_path / "lines.txt").write_text("the nowhere\nthe the the\n")
    given = [data, "--path", *paths, "--split", "valid", "--out", tmp_path / "out"]
    status, printed, told = call(PlotExperts(), *given, "--json", "--num", 2)
    assert (status, told) == (0, "")
    (model,), dictionary = load_language_models(paths[:1], data)
    use = stream_expert_use(model, load_token_stream(data, "valid", dictionary))
    found = json.loads(printed)["models"]
    assert [one["path"] for one in found] == [one["name"] for one in found] == [str(path) for path in paths]
    assert found[0]["balance"] == pytest.approx(use.balance) and found[0]["layers"] == [1, 2, 2, 2]
    assert found[0]["sample_balance"] == pytest.approx(use.balance * (4 / 3) ** 0.5)
    assert pictures(tmp_path / "out") == ["sentence_1.png", "sentence_2.png"]
    named = [data, "--path", f"DOC={paths[0]}", "--split", "valid", "--out", tmp_path / "named"]
    (first,) = json.loads(call(PlotExperts(), *named, "--json")[1])["models"]
    assert (first["name"], first["path"]) == ("DOC", str(paths[0])) and first["balance"] == found[0]["balance"]
    status, printed, _ = call(PlotExperts(), *given, "--input", tmp_path / "lines.txt", "--tokenised", "--rows", 2)
    assert status == 0 and len(re.findall(r"\| layer 1, 1 +\| +[\d.]+% \|", printed)) == 2


@pytest.mark.slow
def test_a_language_model_reads_raw_sentences_as_score_text_does(data, trained, call, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(plot_experts, "line_experts", lambda _, sequence, **__: read.append(sequence.tolist()))
    monkeypatch.setattr(plot_experts, "draw_expert_map", lambda _: None)
    monkeypatch.setattr(plot_experts, "save_picture", lambda *_: None)
    corpus = shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("digests.json"))
    (corpus / "text.json").write_text('{"tokenizer": "moses", "language": "en", "case": "lower lines"}')
    (tmp_path / "raw.txt").write_text("The THE nowhere.\n")
    (tmp_path / "tokenised.txt").write_text("the the nowhere .\n")
    for name, flags in (("raw", []), ("tokenised", ["--tokenised"])):
        given = [corpus, "--path", trained / "checkpoint_best.pt", "--input", tmp_path / f"{name}.txt"]
        assert call(PlotExperts(), *given, "--split", "valid", "--out", tmp_path / "out", *flags)[0] == 0
    assert read[0] == read[1] and len(read[0]) == 5


@pytest.mark.slow
def test_raw_sentences_need_the_record_of_their_preparation(data, trained, call, tmp_path):
    (tmp_path / "lines.txt").write_text("the\n")
    given = [data, "--path", trained / "checkpoint_best.pt", "--input", tmp_path / "lines.txt"]
    status, _, told = call(PlotExperts(), *given, "--split", "valid", "--out", tmp_path / "out")
    assert status == 2 and "text.json is missing, which tells" in told and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_encoder_decoders_experts(prepared, translator, call, tmp_path):
    (tmp_path / "lines.txt").write_text("a b\n")
    given = [prepared, "--path", translator / "checkpoint_best.pt", "--split", "valid", "--out", tmp_path / "out"]
    for flags in ([], ["--input", tmp_path / "lines.txt"]):
        status, printed, told = call(PlotExperts(), *given, "--num", 1, "--json", *flags)
        assert (status, told) == (0, "")
        (found,) = json.loads(printed)["models"]
        assert sum(found["shares"]) == pytest.approx(1) and found["words"] > 60
        assert pictures(tmp_path / "out") == ["sentence_1.png"]


@pytest.mark.slow
def test_what_cannot_be_drawn_is_told(data, prepared, trained, translator, plain_translator, call, tmp_path):
    out = ["--out", tmp_path / "out"]
    (tmp_path / "blank.txt").write_text("\n \n")
    for given, message in (
        ([prepared, "--path", plain_translator / "checkpoint_last.pt"], "checkpoint_last.pt: the model has no mixture"),
        ([data, "--path", "A=a.pt", "A=b.pt"], "--path: give each NAME or CKPT once"),
        ([data, "--path", trained / "nowhere.pt"], "nowhere.pt does not exist"),
        ([data, "--path", trained / "checkpoint_best.pt", "--split", "dev"], "there is no split 'dev' in"),
        (
            [prepared, "--path", translator / "checkpoint_best.pt", "--split", "dev"],
            "there is no split 'dev' of src and",
        ),
        ([data, "--path", trained / "checkpoint_best.pt", "--num", 0], "--num 0: give at least 1"),
        ([data, "--path", "nowhere.pt", "--input", tmp_path / "blank.txt"], "there is no sentence to draw, all lines"),
        ([data, "--path", "nowhere.pt", "--tokenised"], "--tokenised tells how --input is to be read"),
        (
            [prepared, "--path", translator / "checkpoint_best.pt", "--tokenised", "--input", __file__],
            "checkpoint_best.pt: encoder-decoders read raw sources: leave out --tokenised",
        ),
    ):
        status, printed, told = call(PlotExperts(), *given, *out)
        assert status == 2 and printed == "" and message in told and told.count("\n") == 1, told
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_without_experts_is_told_before_any_is_read(
    prepared, translator, plain_translator, call, tmp_path, monkeypatch
):
    monkeypatch.setattr(plot_experts, "pairs_expert_use", lambda *_, **__: pytest.fail("a model was looked at"))
    paths = [translator / "checkpoint_best.pt", plain_translator / "checkpoint_last.pt"]
    status, _, told = call(PlotExperts(), prepared, "--path", *paths, "--out", tmp_path / "out")
    assert status == 2 and "checkpoint_last.pt: the model has no mixture" in told


@pytest.mark.slow
def test_sentences_with_experts_are_translated_as_translate_does(prepared, translator, call, tmp_path, monkeypatch):
    (tmp_path / "lines.txt").write_text("a b\n")
    asked = []
    monkeypatch.setattr(plot_experts, "prepare_to_score", lambda *_, **options: asked.append(options["precision"]))
    given = [prepared, "--path", translator / "checkpoint_best.pt", "--input", tmp_path / "lines.txt"]
    assert call(PlotExperts(), *given, "--out", tmp_path / "out")[0] == 0 and asked == ["float32"]


def history(trained, folder):
    """A save directory with checkpoints of updates."""
    folder.mkdir()
    for num_updates, name in ((5, "last"), (20, "best")):
        shutil.copy(trained / f"checkpoint_{name}.pt", folder / f"checkpoint_1_{num_updates}.pt")
    return folder


@pytest.mark.slow
def test_the_history_of_experts(data, trained, prepared, translator, call, tmp_path):
    for given, folder, num_layers in ((data, trained, 3), (prepared, translator, 4)):
        path = f"A={history(folder, tmp_path / folder.name)}"
        flags = [given, "--path", path, "--num", 3, "--plot", tmp_path / f"{folder.name}.png"]
        status, printed, told = call(PlotExpertHistory(), *flags, "--json")
        assert (status, told) == (0, "")
        (run,) = json.loads(printed)["runs"]
        assert (run["name"], run["split"]) == ("A", "valid")
        assert [one["updates"] for one in run["checkpoints"]] == [5, 20]
        for one in run["checkpoints"]:
            assert len(one["shares"]) == len(one["gradients"]) == num_layers and sum(one["shares"]) == pytest.approx(1)
        assert (tmp_path / f"{folder.name}.png").read_bytes().startswith(b"\x89PNG")
        status, printed, _ = call(PlotExpertHistory(), *flags)
        assert status == 0 and re.search(r"^\| A +\| +20 \|", printed, re.MULTILINE)


@pytest.mark.slow
def test_a_history_without_experts_is_told_before_any_is_read(
    prepared, translator, plain_translator, call, tmp_path, monkeypatch
):
    monkeypatch.setattr(plot_expert_history, "pairs_learning", lambda *_, **__: pytest.fail("a model was looked at"))
    first, second = history(translator, tmp_path / "doc"), history(plain_translator, tmp_path / "plain")
    status, _, told = call(PlotExpertHistory(), prepared, "--path", f"A={first}", f"B={second}")
    assert status == 2 and "plain/checkpoint_1_5.pt: the model has no mixture" in told


@pytest.mark.slow
def test_a_history_that_is_none_is_told(data, trained, prepared, plain_translator, call, tmp_path):
    plain = history(plain_translator, tmp_path / "plain")
    (tmp_path / "empty").mkdir()
    for given, message in (
        ([data, "--path", f"A={tmp_path / 'nowhere'}"], "nowhere is no folder: give the --save-dir of a training"),
        ([data, "--path", f"A={tmp_path / 'empty'}"], "empty has no checkpoint_EPOCH_UPDATES.pt: train with"),
        ([data, "--path", str(trained)], "give it as NAME=PATH"),
        ([prepared, "--path", f"A={plain}"], "checkpoint_1_5.pt: the model has no mixture"),
        ([data, "--path", f"A={plain}", "--num", 0], "--num 0: give at least 1"),
    ):
        status, printed, told = call(PlotExpertHistory(), *given, "--plot", tmp_path / "out.png")
        assert status == 2 and printed == "" and message in told and told.count("\n") == 1, told
    assert not (tmp_path / "out.png").exists()
