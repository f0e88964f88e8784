"""Parts from elsewhere in all commands: the folder of CONTRIBUTING.md, an installed package, and broken ones."""

import os
import shutil
import subprocess

import pytest
from binarised_data import copy_data
from commands import ENVIRONMENT, load, run, started_pair, succeed, training_arguments
from paths import PLUGINS, ROOT, SMALL_MODELS
from readme_commands import run_sections
from warm_process import PYTHON

SECTIONS = [("CONTRIBUTING.md", "Add a part")]
TRANSLATOR = [
    *("data-bin/pairs", "--user-dir", "my_parts", "--task", "translation", "--arch", "lstm_encdec", "--save-dir"),
    *("checkpoints/pairs", "--output-layer", "scaled", "--optimizer", "adam", "--lr", "0.01", "--max-update", "2"),
    *("--embed-dim", "8", "--hidden-sizes", "8", "--batch-size", "8", "--num-workers", "0", "--cpu"),
    *("--criterion", "regularized_cross_entropy"),
]


@pytest.fixture(scope="module")
def own(data, prepared, tmp_path_factory):
    """A folder in which the commands of the page ran, with a translator in checkpoints/pairs."""
    folder = tmp_path_factory.mktemp("own parts")
    copy_data(data, folder / "data-bin/ptb", tokenizer="blanks", case="kept")
    shutil.copytree(prepared, folder / "data-bin/pairs")
    (folder / "text").write_text("a b\n")
    printed = "".join(run_sections(SECTIONS, folder))
    assert "perplexity " in printed and "the market fell" in printed
    succeed("fairseq_cli.train", *TRANSLATOR, cwd=folder)
    return folder


def typed(line, folder):
    """The result of a command of the package in a folder; its words are those of a line."""
    return run("fairseq_plugins", *line.split(), cwd=folder, typed="the cat\n")


LINES = [
    "lm eval data-bin/ptb --cpu --path checkpoints/scaled {}",
    "compare runs data-bin/ptb --cpu --path A=checkpoints/scaled --out results {}",
    "translate data-bin/pairs --cpu --path checkpoints/pairs --input text {}",
    "decode data-bin/pairs --path checkpoints/pairs --out decoded {} -- --cpu",
    "train presets gated_lm_ptb data-bin/ptb --save-dir checkpoints/gated --cpu --max-update 1 --gate-dim 4 "
    "--batch-size 4 --base-model checkpoints/scaled/checkpoint_best.pt {}",
]


@pytest.mark.parametrize("line", LINES)
def test_a_checkpoint_names_its_folder_and_works_with_it(line, own):
    """Nothing in the folder runs before the user gives it: the checkpoint may come from a stranger."""
    code = own / "my_parts/__init__.py"
    if not code.read_text().startswith("open("):
        code.write_text(f"open({str(own / 'ran')!r}, 'w')\n{code.read_text()}")
    (own / "ran").unlink(missing_ok=True)
    without = typed(line.format(""), own)
    assert without.returncode == 2 and not (own / "ran").exists(), without.stderr
    told = (without.stderr or without.stdout).splitlines()[-1]
    kept = "my_parts" if "pairs" in line else own / "my_parts"
    assert f"needs parts from {kept}: give --user-dir" in told and "(--output-layer scaled: choose" in told
    given = typed(line.format("--user-dir my_parts"), own)
    assert given.returncode == 0, given.stderr


def test_another_folder_of_the_name_does_not_do(own):
    (own / "other/my_parts").mkdir(parents=True)
    (own / "other/my_parts/__init__.py").write_text("import fairseq_plugins")
    result = typed(LINES[0].format("--user-dir other/my_parts"), own)
    assert result.returncode == 2 and f"needs parts from {own / 'my_parts'}: give" in result.stderr


def test_a_recipe_of_the_folder_is_run_from_another_folder_by_several_processes(own, tmp_path):
    data, flags = own / "data-bin/ptb", "--max-update 2 --embed-dim 8 --hidden-sizes 8 --batch-size 4"
    line = f"run scales DATA --systems two --seeds 1 2 --jobs 2 --save-dir runs --out table {flags} --cpu"
    words = [data if word == "DATA" else word for word in line.split()]
    place = os.path.relpath(own / "my_parts", tmp_path)
    succeed("fairseq_plugins", *words, "--user-dir", place, cwd=tmp_path)
    assert "| two " in (tmp_path / "table/table.md").read_text()
    assert load(tmp_path / "runs/two-2/checkpoint_last.pt")["cfg"]["common"]["user_dir"] == str(own / "my_parts")


def test_two_processes_and_data_loading_ones_have_the_folder(own, tmp_path):
    flags = ["--output-layer", "scaled", "--max-update", 2, "--user-dir", own / "my_parts", "--balance", 0]
    flags += ["--num-workers", 1]
    with started_pair(training_arguments(own / "data-bin/ptb", tmp_path / "run", *flags), tmp_path / "run") as pair:
        assert [process.finish().returncode for process in pair] == [0, 0]
    assert "decoder.output.shift" in load(tmp_path / "run/checkpoint_last.pt")["model"]


GOOD = "import fairseq_plugins\n"
PART = """from fairseq.dataclass import FairseqDataclass
from dataclasses import dataclass
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.softmax import TiedSoftmax
@dataclass
class Options(FairseqDataclass):
    dropout_output: float = 0
"""
CLASS = "class Own(TiedSoftmax): Options = Options\n"
WRONG = {
    "missing": (None, "missing is no folder"),
    "bare": ({"layer.py": GOOD}, "bare has no __init__.py"),
    "with.dot": ({"__init__.py": GOOD}, "with.dot: Python imports no folder with a dot in its name"),
    "json": ({"__init__.py": GOOD}, "json: there is another Python module json: rename the folder"),
    "stranger": ({"__init__.py": ""}, "stranger: add import fairseq_plugins to its __init__.py"),
    "unparsed": ({"__init__.py": f"{GOOD}\nclass:\n"}, "unparsed/__init__.py, line 3: invalid syntax"),
    "failing": ({"__init__.py": f"{GOOD}from . import own", "own.py": "\n1 / 0"}, "own.py, line 2: ZeroDivisionError"),
    "lacking": ({"__init__.py": f"{GOOD}import nowhere"}, "line 2: ModuleNotFoundError: No module named 'nowhere'"),
    "taken": (
        {"__init__.py": f"{PART}@OUTPUT_LAYERS.register('doc')\n{CLASS}"},
        "line 8: --output-layer doc is registered twice: give Own another name",
    ),
    "same flag": (
        {"__init__.py": f"{PART}@OUTPUT_LAYERS.register('own')\n{CLASS}"},
        "--dropout-output is declared by fairseq_plugins.models.",
    ),
    "same recipe": (
        {"__init__.py": "from fairseq_plugins.recipes import *\nregister_recipe(RECIPES['reduced'])"},
        "line 2: recipe reduced is registered twice",
    ),
}
MODEL = [SMALL_MODELS / "data/lm", "--path", SMALL_MODELS / "lstm_lm_doc.pt"]


@pytest.mark.parametrize("name", WRONG)
def test_a_folder_that_is_not_right_is_one_line(name, tmp_path):
    files, told = WRONG[name]
    for file, code in (files or {}).items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_text(code)
    result = run("fairseq_plugins", "lm", "eval", *MODEL, "--cpu", "--user-dir", name, cwd=tmp_path)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2 and told in line and line.startswith("fairseq-plugins lm eval: error: ")


def installed(folder, module, code):
    """A package with an entry point, as pip leaves it."""
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[fairseq_plugins.parts]\nall = {module}\n")
    (folder / f"{module}.py").write_text(code)
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


CHECK = """
import sys

sys.path[:0] = [sys.argv[1]]
import torch
from builders import build_encdec, build_tiny_encdec, build_tiny_lm, build_tiny_transformer

import fairseq_plugins
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

ScaledSoftmax = OUTPUT_LAYERS["scaled"]
assert ScaledSoftmax.__module__ == "own_package"
model = build_tiny_lm("scaled", logit_scale=0.5).double().eval()
tokens = torch.randint(4, 20, (2, 9))
target = tokens.flip(1)
loss, _ = model(tokens, target=target)
log_probs, extra = model(tokens)
output = model.decoder.output
hidden, weight = extra["states"].layers[-1], output.projection.weight
logits = (0.5 + output.shift) * hidden @ weight.T + output.projection.bias
torch.testing.assert_close(log_probs, torch.log_softmax(logits, dim=-1))
torch.testing.assert_close(loss, -log_probs.gather(-1, target.unsqueeze(-1)).sum())
loss.backward()
assert output.shift.grad.abs() > 0
translators = build_tiny_encdec("scaled"), build_tiny_transformer("transformer_full", output_layer="scaled")
for translator in translators:
    assert any(isinstance(part, ScaledSoftmax) for part in translator.modules())
started = build_encdec("lstm_encdec", 19, 23, output_layer="scaled", logit_scale=5.0)
(output,) = (part for part in started.modules() if isinstance(part, ScaledSoftmax))
assert abs(output.logit_scale + output.shift - 5) < 0.2
assert fairseq_plugins.load("checkpoints/scaled", "data-bin/ptb").score(["the cat"])
print("checked")
"""


def test_an_installed_package_needs_no_flag(own, tmp_path):
    environment = installed(tmp_path, "own_package", (own / "my_parts/__init__.py").read_text())
    options = dict(cwd=own, env=environment, capture_output=True, text=True)
    checked = subprocess.run([PYTHON, "-c", CHECK, ROOT / "tests"], **options)
    assert checked.stdout == "checked\n", checked.stderr


def test_a_broken_package_is_one_line_that_names_it(tmp_path):
    environment = installed(tmp_path, "broken_package", "import nowhere")
    command = ("fairseq_cli.eval_lm", *MODEL, "--cpu", "--task", "stateful_lm", "--user-dir", PLUGINS)
    result = subprocess.run([PYTHON, "-m", *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    line = [line for line in result.stderr.splitlines() if "tensorboardX" not in line][-1]
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "broken_package 1.0, which has the entry point all = broken_package" in line and "line 1: Module" in line
