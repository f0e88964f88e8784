"""The commands that measure, gpu_report among them: what they refuse before any work, and the files they write."""

import json
from dataclasses import replace

import pytest
import torch

from fairseq_plugins.benchmarks import training
from fairseq_plugins.benchmarks.device import check as check_module
from fairseq_plugins.benchmarks.device import setting
from fairseq_plugins.benchmarks.device import speed as speed_module
from fairseq_plugins.benchmarks.device.check import Check, check_two_processes
from fairseq_plugins.benchmarks.device.record import Item
from fairseq_plugins.benchmarks.device.setting import FULL, TOY, Setting
from fairseq_plugins.benchmarks.device.speed import NUMBERS_OF_CHUNKS, PRECISIONS
from fairseq_plugins.benchmarks.training import TrainingSpeed
from fairseq_plugins.cli import benchmark_lm, benchmark_translation
from fairseq_plugins.cli.__main__ import all_commands
from fairseq_plugins.cli.gpu_report import GpuReport
from fairseq_plugins.models.presets import LANGUAGE_MODELS
from fairseq_plugins.recipes.language_models import SPEED_PRESETS

COMMANDS = all_commands()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with ``data``."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/test.en-de.de.idx").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """The arguments of the trainings, which are not run."""
    calls = []

    def measure(recipe, systems, **options):
        calls.append({**options, "systems": systems})
        return {recipe.label(system): TrainingSpeed(100.0, 1024.0) for system in systems}

    def train(recipe, systems, *, folder, flags, **_):
        calls.append({"flags": flags, "systems": systems})
        return {recipe.label(system): "no checkpoint" for system in systems}

    def decode(data, checkpoints, *, device, **options):
        calls.append({**options, "decoded": list(checkpoints)})
        return dict.fromkeys(checkpoints, 9.0)

    for module in (benchmark_lm, benchmark_translation):
        monkeypatch.setattr(module, "measure_trainings", measure)
    monkeypatch.setattr(benchmark_translation, "train_briefly", train)
    monkeypatch.setattr(benchmark_translation, "measure_decoding", decode)
    return calls


def refused(name, typed, capsys):
    with pytest.raises(SystemExit) as error:
        COMMANDS[name].main(typed.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2
    return line


@pytest.mark.parametrize(
    "name, typed, told",
    [
        ("benchmark_lm", "data", "arguments are required: --suite"),
        ("benchmark_lm", "data --suite none", "argument --suite: invalid choice: 'none'"),
        ("benchmark_lm", "data --suite ptb --updates 9", "--updates 9: give at least 10"),
        ("benchmark_lm", "data --suite ptb -- --cpu", "--cpu: give it before the --"),
        ("benchmark_lm", "data --suite ptb --fp16", "--fp16: flags of fairseq-train come after --"),
        ("benchmark_lm", "data --suite ptb --output-precision half", "--output-precision: invalid choice: 'half'"),
        (
            "benchmark_lm",
            "data --suite ptb --output-precision float32 -- --output-precision=bfloat16",
            "--output-precision: give it either before the -- or after",
        ),
        ("benchmark_lm", "missing --suite ptb", "missing does not exist"),
        ("benchmark_translation", "missing --suite lstm", "missing does not exist"),
        ("benchmark_translation", "data --suite lstm --length 0", "--length 0: give at least 1"),
        ("benchmark_translation", "data --suite lstm --systems nobody", "--systems nobody: choose among host "),
        ("benchmark_evaluation", "data --path lm.pt --rounds 0", "--rounds 0: give at least 1"),
        ("benchmark_evaluation", "data --path lm.pt --lines 0", "--lines 0: give at least 1"),
        ("benchmark_evaluation", "data --path lm.pt --words 1", "--words 1: give at least 2, for the first is not"),
        ("benchmark_output_layer", "10,2,3,4 --repetitions 0", "--repetitions 0: give at least 1"),
    ],
)
def test_what_cannot_be_measured_is_one_line(name, typed, told, folder, asked, capsys):
    assert told in refused(name, typed, capsys)
    assert not asked and [path.name for path in folder.iterdir()] == ["data"]


@pytest.mark.parametrize(
    "name, typed", [("benchmark_lm", "data --suite ptb"), ("benchmark_translation", "data --suite lstm")]
)
def test_a_folder_that_cannot_be_made_is_refused_before_the_work_though_it_is_the_default(
    name, typed, folder, asked, capsys
):
    (folder / "results").touch()
    told = refused(name, typed, capsys)
    assert "--out: results/benchmarks: " in told and "results is a file: give a folder" in told
    assert not asked


def test_further_flags_reach_the_trainings_and_the_name_of_the_report(folder, asked):
    COMMANDS["benchmark_lm"].main("data --suite reduced --cpu -- --restore-file a/b.pt".split())
    (call,) = asked
    assert call["flags"] == ["--cpu", "--restore-file", "a/b.pt"] and call["data"] == "data"
    assert (call["num_updates"], call["num_rounds"]) == (40, 4)
    figures = json.loads((folder / "results/benchmarks/lm_reduced_cpu_restore-file_a-b.pt.json").read_text())
    assert len(figures["models"]) == 3 and figures["rounds"] == 4 and figures["updates"] == 40


def test_products_alone_stand_beside_the_trainings_that_have_some(folder, asked, monkeypatch):
    speeds = iter([400.0, 200.0])  # before and after the trainings

    def measure(recipe, systems, *, device):
        return dict.fromkeys(map(recipe.label, systems), next(speeds))

    monkeypatch.setattr(benchmark_lm, "speed_of_highway_products", measure)
    COMMANDS["benchmark_lm"].main("data --suite rhn --cpu --out out".split())
    figures = json.loads((folder / "out/lm_rhn_cpu.json").read_text())
    assert figures["words_per_second_of_products"] == {"rhn_lm_ptb": 400.0, "rhn_lm_tied_ptb": 400.0}
    rows = [row.replace("|", " ").split() for row in (folder / "out/lm_rhn_cpu.md").read_text().splitlines()]
    assert ["rhn_lm_ptb", "400", "0.25"] in rows and not list(speeds)


def test_products_are_left_out_where_further_flags_may_change_the_trainings(folder, asked, monkeypatch):
    monkeypatch.setattr(benchmark_lm, "speed_of_highway_products", None)
    COMMANDS["benchmark_lm"].main("data --suite rhn --cpu --out out -- --batch-size 40".split())
    figures = json.loads((folder / "out/lm_rhn_cpu_batch-size_40.json").read_text())
    assert "words_per_second_of_products" not in figures and len(asked) == 1


def test_translation_is_measured_on_the_cpu_where_that_is_asked(folder, asked):
    COMMANDS["benchmark_translation"].main(
        "data --suite transformer --cpu --systems tied drill --rounds 2 --length 7 --out out".split()
    )
    trained, timed, decoded = asked
    assert trained["flags"] == timed["flags"] == ["--cpu"]
    assert (timed["num_updates"], timed["num_rounds"]) == (40, 2)
    assert (decoded["num_rounds"], decoded["length"]) == (2, 7)
    figures = json.loads((folder / "out/transformer_cpu_tied_drill.json").read_text())
    assert len(figures["training"]) == len(figures["sentences_per_second"]) == 2


def test_pairs_without_a_test_set_are_refused_before_anything_is_measured(folder, asked, capsys):
    (folder / "data/test.en-de.de.idx").unlink()
    assert "data has no test set: it holds no pairs" in refused("benchmark_translation", "data --suite lstm", capsys)
    assert not asked


@pytest.mark.parametrize("name", ["benchmark_lm", "benchmark_translation"])
def test_a_precision_that_the_processor_lacks_is_refused(name, folder, asked, monkeypatch, capsys):
    monkeypatch.setattr(training, "has_native_bfloat16", lambda device: False)
    suite = "ptb" if name == "benchmark_lm" else "lstm"
    told = refused(name, f"data --suite {suite} --output-precision float32 bfloat16", capsys)
    assert "--output-precision bfloat16: this cpu has no matrix products in bfloat16" in told and not asked


@pytest.mark.parametrize(
    "name, typed, file, systems",
    [
        (
            "benchmark_lm",
            "data --suite host",
            "lm_host_cpu_float32_bfloat16",
            ["host", "awd-float32", "awd-bfloat16"],
        ),
        (
            "benchmark_translation",
            "data --suite lstm --systems host mos",
            "translation_cpu_host_mos_float32_bfloat16",
            ["host", "mos-float32", "mos-bfloat16"],
        ),
    ],
)
def test_systems_are_measured_in_both_precisions_in_one_run(name, typed, file, systems, folder, asked, monkeypatch):
    monkeypatch.setattr(training, "has_native_bfloat16", lambda device: True)
    monkeypatch.setattr(benchmark_translation, "speed_of_products", lambda path, *, device: 1000.0)
    COMMANDS[name].main(f"{typed} --cpu --out out --output-precision float32 bfloat16".split())
    trained = [call["systems"] for call in asked if "systems" in call]
    assert trained and all(found == systems for found in trained)
    table = (folder / f"out/{file}.md").read_text()
    assert "output in float32 " in table and "output in bfloat16 " in table


def test_baselines_of_headlines(folder):
    (folder / "articles").write_text("oil prices rise again today\npolice kill a gunman\n")
    (folder / "titles").write_text("".join(f"oil up {number}\n" for number in range(1000)))
    line, drawn = "--articles articles --titles titles --words 2", []
    for out, seed in (("a", 3), ("b", 3), ("c", 4)):
        COMMANDS["headline_baselines"].main(f"{line} --out {out} --seed {seed}".split())
        assert (folder / out / "first_words.txt").read_text() == "oil prices\npolice kill\n"
        drawn.append((folder / out / "random_title.txt").read_text().splitlines())
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0][0] != drawn[0][1]
    assert all(title in (folder / "titles").read_text().splitlines() for titles in drawn for title in titles)


# gpu_report: what it refuses, its exit statuses, and the steps that need no training, on the CPU


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


# steps of gpu_report that train, on the CPU at toy size


@pytest.fixture
def out(tmp_path):
    return tmp_path / "a folder"


def run_step(step, out, *flags):
    GpuReport().main([*step.split(), "--out", str(out), "--cpu", *flags])


def items(out, name):
    return json.loads((out / f"{name}.json").read_text())["items"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_the_step_models(out):
    run_step("models", out, "--only", "ptb: fairseq lstm_lm", "ptb: mmlstm_lm_mos_ptb")
    found = items(out, "models")
    assert list(found) == ["ptb: fairseq lstm_lm, round 1", "ptb: mmlstm_lm_mos_ptb, round 1"]
    for figures in found.values():
        assert figures["updates_per_second"] > 0 and figures["words_per_second"] > 0 and figures["peak_mib"] > 0
    num_left = sum(len(SPEED_PRESETS[corpus].systems) for corpus in ("ptb", "wt2")) - len(found)
    assert f"{num_left} items are not measured yet" in (out / "models.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_the_step_translation(out, monkeypatch):
    systems = {name: speed_module.TRANSLATORS.systems[name] for name in ("host", "doc")}
    monkeypatch.setattr(speed_module, "TRANSLATORS", replace(speed_module.TRANSLATORS, systems=systems))
    run_step("translation", out, "--only", "decoding")
    found = items(out, "translation")
    assert list(found["decoding"]["sentences_per_second"]) == ["fairseq lstm", "lstm_encdec_doc"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_the_step_train_stops_and_resumes(out):
    checkpoint = out / "checkpoints/lstm_lm_awd_ptb/checkpoint_last.pt"
    num_updates = []
    for _ in range(2):
        run_step("train lstm_lm_awd_ptb 0.01", out)
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        num_updates.append(state["optimizer_history"][-1]["num_updates"])
        found = json.loads((out / "train_lstm_lm_awd_ptb.json").read_text())
        assert 60 * found["minutes"] == pytest.approx(state["extra_state"]["previous_training_time"])
    assert 0 < num_updates[0] < num_updates[1] and found["minutes"] >= 0.02
    assert all(epoch["valid_perplexity"] > 1 for epoch in found["epochs"].values())
    assert all(epoch["words_per_second"] > 0 for epoch in found["epochs"].values())
    assert "minutes so far" in (out / "train_lstm_lm_awd_ptb.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_trainings_of_the_step_check(out):
    run_step("check", out, "--only", "lstm_lm_doc, bf16", "transformer_doc, float32")
    for figures in items(out, "check").values():
        assert figures["last_loss"] < figures["first_loss"] and figures["updates"] == 10


# the step of gpu_report with two processes


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_two_processes_equal_one_on_the_cpu(tmp_path):
    figures = check_two_processes(Setting(device="cpu", folder=tmp_path))
    assert "error" not in figures and 0 < figures["share"] < 1


def test_one_device_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert check_two_processes(Setting(device="cuda", folder=tmp_path)) == {"skipped": "there is one device"}


def test_processes_that_train_otherwise_are_an_error(tmp_path, monkeypatch):
    weights = {"a": torch.ones(3, dtype=torch.float64)}

    def trained(setting, save_dir, *, num_processes):
        return {name: weight + (1e-3 if num_processes == 2 else 0) for name, weight in weights.items()}

    monkeypatch.setattr(check_module, "_weights", trained)
    assert "times what rounding allows" in check_two_processes(Setting(device="cpu", folder=tmp_path))["error"]
