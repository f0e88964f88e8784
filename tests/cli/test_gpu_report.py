"""The command gpu_report: what it refuses, its exit statuses, and the steps that need no training, on the CPU."""

import json
from dataclasses import replace

import pytest
import torch

from fairseq_plugins.benchmarks.device import setting
from fairseq_plugins.benchmarks.device import speed as speed_module
from fairseq_plugins.benchmarks.device.check import Check
from fairseq_plugins.benchmarks.device.record import Item
from fairseq_plugins.benchmarks.device.setting import FULL, TOY, Setting
from fairseq_plugins.benchmarks.device.speed import NUMBERS_OF_CHUNKS, PRECISIONS
from fairseq_plugins.benchmarks.training import TrainingSpeed
from fairseq_plugins.cli.gpu_report import GpuReport
from fairseq_plugins.models.presets import LANGUAGE_MODELS
from fairseq_plugins.recipes.language_models import SPEED_PRESETS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, on a machine without a GPU."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tmp_path


def report(typed):
    """Exit status."""
    try:
        GpuReport().main(typed.split())
    except SystemExit as end:
        return end.code
    return 0


def figures(folder, name):
    return json.loads((folder / f"out/{name}.json").read_text())


@pytest.mark.parametrize(
    "typed, told",
    [
        ("check --out out", "torch finds no GPU here: give --cpu"),
        ("train lstm_lm_doc_ptb 5 --out out", "torch finds no GPU here: give --cpu"),
        ("check --cpu", "arguments are required: --out"),
        ("chek --out out --cpu", "invalid choice: 'chek'"),
        ("check --out out --cpu missing", "missing does not exist: give the directory that data-prep wrote"),
        ("output --out out --cpu data", "data: output takes 0 DATA at most"),
        ("translation --out out --cpu data data", "data: translation takes 1 DATA at most"),
        ("check --out out --cpu --minutes 0", "--minutes 0.0: give a value above 0"),
        ("check --out out --cpu --only nothing", "--only nothing: no item of check has such a name"),
        ("check --out out --cpu --save-dir save", "--save-dir: check keeps no checkpoints"),
        ("check --out out --cpu --fp16", "--fp16: flags of fairseq-train come after --"),
        ("check --out out -- --cpu", "--cpu: give it before the --"),
        ("train --out out --cpu", "give train ARCH MINUTES, and one DATA or none"),
        ("train lstm_lm_doc_ptb --out out --cpu", "give train ARCH MINUTES, and one DATA or none"),
        ("train lstm_lm_doc_ptb soon --out out --cpu", 'MINUTES "soon"'),
        ("train lstm_lm_doc_ptb 0 --out out --cpu", 'MINUTES "0"'),
        ("train lstm_lm_nothing 5 --out out --cpu", "recipe presets has no system lstm_lm_nothing"),
        ("train lstm_lm_doc_ptb 5 --out out --cpu --again", "--again, --only and --minutes are not for train"),
        ("train lstm_lm_doc_ptb 5 --out out --cpu --minutes 5", "--again, --only and --minutes are not for train"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_written(typed, told, folder, capsys):
    assert report(typed) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line and [path.name for path in folder.iterdir()] == ["data"]


@pytest.mark.slow
def test_ops_and_cells_are_checked_on_the_cpu(folder, capsys):
    only = ["mixture_nll", "cell", "attention", "kernels", "fp16"]
    assert report(f"check --out out --cpu --only {' '.join(only)}") == 0
    items = figures(folder, "check")["items"]
    assert all(any(part in name for part in only) for name in items) and len(items) > 30
    table = (folder / "out/check.md").read_text()
    assert "everything is of toy size" in table and "cell variational, evaluation, float64" in table
    assert table.count("not run: the scaler needs a GPU") == 3 and "0 failed" in table
    assert capsys.readouterr().out == table


def test_a_failing_item_is_a_row_and_the_status_is_1_at_the_end(folder, monkeypatch, capsys):
    def fail():
        raise RuntimeError("no kernel image")

    own = Check.items
    monkeypatch.setattr(Check, "items", lambda self: [Item("broken", fail), *own(self)])
    assert report("check --out out --cpu --only broken linear,") == 1
    assert capsys.readouterr().out.endswith("1 items FAILED\n")
    table = (folder / "out/check.md").read_text()
    assert "- FAILED: broken: RuntimeError: no kernel image" in table and "1 failed" in table
    assert "| linear, float32" in table


def test_a_call_whose_time_is_over_ends_with_3(folder, capsys):
    assert report("check --out out --cpu --minutes 1e-9 --only matmul") == 3
    assert "4 items are left: type the same line again" in capsys.readouterr().out
    assert report("check --out out --cpu --only matmul") == 0


def test_the_output_layer_is_measured_in_every_precision_and_chunk_size(folder):
    assert report("output --out out --cpu") == 0
    items = figures(folder, "output")["items"]
    assert [name.rpartition(", ")[2] for name in items] == list(PRECISIONS)
    for measured in items.values():
        assert list(measured["seconds"]) == list(measured["floor_seconds"]) == ["own", *map(str, NUMBERS_OF_CHUNKS)]
        assert all(seconds > 0 for seconds in measured["seconds"].values())
    table = (folder / "out/output.md").read_text()
    assert all(f" {precision} |" in table for precision in PRECISIONS)


def test_chunks_of_bfloat16_are_those_of_float32_inputs(folder, monkeypatch):
    asked = []

    def times(x, methods, *, num_repetitions):
        asked.append((x.weight.dtype, {method.keywords["chunk_dtype"] for method in methods.values()}))
        return dict.fromkeys(methods, 1.0)

    monkeypatch.setattr(speed_module, "median_times", times)
    assert report("output --out out --cpu") == 0
    assert dict(zip(PRECISIONS, asked)) == {
        "float32": (torch.float32, {None}),
        "TF32": (torch.float32, {None}),
        "bfloat16 chunks": (torch.float32, {torch.bfloat16}),
        "bfloat16 inputs": (torch.bfloat16, {None}),
        "float16 inputs": (torch.float16, {None}),
    }


def test_every_preset_is_timed_in_both_orders_with_random_words(folder, monkeypatch):
    calls = []

    def measure(recipe, systems, *, data, num_updates, num_rounds, flags):
        (system,) = systems
        assert (num_updates, num_rounds) == (TOY.num_updates, 1)
        calls.append((recipe.name, system, data, flags))
        speed = 200.0 if system == "host" else 100.0
        return {recipe.label(system): TrainingSpeed(speed, 1024.0, 5.0)}

    monkeypatch.setattr(speed_module, "measure_trainings", measure)
    monkeypatch.setattr(setting, "TOY", replace(TOY, num_rounds=2))
    assert report("models --out out --cpu data") == 0
    for suffix, data in (("ptb", "data"), ("wt2", "out/data/random-150-60000")):
        asked = [system for recipe, system, path, _ in calls if recipe == f"speed_presets_{suffix}" and path == data]
        presets = [arch for arch in LANGUAGE_MODELS if arch.endswith(suffix)]
        assert ["host", "awd", *presets] == list(SPEED_PRESETS[suffix].systems)
        assert asked == ["host", "awd", *presets, *reversed(presets), "awd", "host"]
    assert all("--cpu" in flags for *_, flags in calls)
    table = (folder / "out/models.md").read_text()
    assert "Presets for ptb, on data:" in table and "Presets for wikitext-2, on random words of 150 kinds:" in table
    row = next(line for line in table.splitlines() if "lstm_lm_doc_ptb" in line)
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["5.00", "100", "0.50", "1.00", "1.0 GiB"]


def test_a_toy_has_the_layers_of_its_preset():
    flags = {"embed_dim": 280, "hidden_sizes": "960 960 620", "encoder-ffn-embed-dim": 4, "decoder-hidden-size": 9}
    assert TOY.width_flags({**flags, "dropout": 0.5}) == [
        *("--embed-dim=16", "--hidden-sizes=16 16 16", "--encoder-ffn-embed-dim=16", "--decoder-hidden-size=16")
    ]
    assert FULL.width_flags(flags) == []


def test_random_text_is_longer_than_a_timed_training_on_it():
    for recipe in SPEED_PRESETS.values():
        for system in recipe.systems:
            found = recipe.flags(system)
            words = int(found["batch-size"]) * int(found["tokens-per-sample"])
            for scale in (FULL, TOY):
                assert words * scale.num_updates <= scale.num_random_words, system


def test_figures_that_were_not_finite_have_their_row(folder):
    found = {
        "training in float16": {"first_loss": None, "last_loss": None, "error": "ValueError: the loss is not finite"},
        "a product": {"relative_error": None, "share": None, "tensor": "weight", "error": "ValueError: not finite"},
    }
    table = Check(Setting(device="cpu", folder=folder)).tables(found)
    assert "the loss is not finite" in table and "not finite" in table.partition("fairseq-train")[0]


def test_what_is_measured_again_goes_on_without_that_flag(folder, capsys):
    assert report("check --cpu --out out --again --minutes 1e-9 --only matmul") == 3
    assert "items are left: type the same line again, without --again" in capsys.readouterr().out
