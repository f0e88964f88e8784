"""An export gives what its checkpoint and data give, with neither beside it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from binarised_data import copy_data
from paths import ROOT, SMALL_MODELS

import fairseq_plugins

LINES = "The dog eats a bone .\n\nA zebra  sings\there .\nthe cat\n"
MODELS = {"lm": "lstm_lm_doc", "translation": "lstm_encdec_doc"}
RUNS = [
    ("lm", "lm score", ["--json"]),
    ("lm", "lm generate", ["--num", 2, "--max-length", 5, "--json"]),
    ("translation", "translate", ["--json", "--beam", 2]),
]


@pytest.fixture
def sources(tmp_path):
    """The folder of both corpora, and checkpoints with state of an optimiser in ``run/lm`` and ``run/translation``."""
    folder = tmp_path / "all sources"
    for name, model in MODELS.items():
        data, run = folder / name, folder / "run" / name
        record = dict(tokenizer="moses", language="en", case="lower tokens")
        copy_data(SMALL_MODELS / "data" / name, data, subwords=name == "translation", **record)
        run.mkdir(parents=True)
        state = torch.load(SMALL_MODELS / f"{model}.pt", weights_only=True)
        state["cfg"]["task"]["data"] = state["cfg"]["model"].data = str(data)
        state["cfg"]["checkpoint"]["save_dir"] = state["cfg"]["model"].save_dir = str(run)
        state["cfg"]["common"]["tensorboard_logdir"] = f"{run}/tb:{run}"
        state["averaged_checkpoints"] = [(str(run / "checkpoint9.pt"), 9)]
        state["last_optimizer_state"] = {"state": {0: torch.zeros(100_000)}}
        torch.save(state, run / "checkpoint_best.pt")
        state["model"] = {key: 1.5 * one if key.endswith("weight") else one for key, one in state["model"].items()}
        torch.save(state, run / "other.pt")
    (folder / "translation/LICENCE.txt").write_text("free\n")
    return folder


@pytest.fixture
def export(sources, printed_by, tmp_path):
    """``export(name)``: the export of ``run/NAME``, with flags, and what the command prints."""

    def make(name, *flags):
        out = tmp_path / "shipped" / name
        return out, printed_by("export", sources / "run" / name, *flags, "--out", out)

    return make


def test_outputs_are_those_of_checkpoint_and_data(sources, export, printed_by):
    before = [
        printed_by(command, sources / name, "--cpu", "--path", sources / "run" / name, *flags, typed=LINES)
        for name, command, flags in RUNS
    ]
    loaded = fairseq_plugins.load(sources / "run/lm").score(LINES.splitlines())
    exports = {name: export(name)[0] for name in MODELS}
    shutil.rmtree(sources)
    for (name, command, flags), expected in zip(RUNS, before):
        out = exports[name]
        assert printed_by(command, out, "--cpu", "--path", out, *flags, typed=LINES) == expected != ""
    assert fairseq_plugins.load(exports["lm"]).score(LINES.splitlines()) == loaded
    assert fairseq_plugins.load(exports["translation"]).translate(["the dog"])[0].target
    out = exports["translation"]
    printed_by("analyze attention", out, "--cpu", "--path", out, "--out", out.parent / "maps", typed="the dog\n")


@pytest.mark.parametrize("name", MODELS)
def test_an_export_rescores_lists(name, sources, export, printed_by, tmp_path):
    lists, reference = tmp_path / "lists", tmp_path / "reference"
    lists.write_text("S-0\tthe dog\nH-0\t-1\tthe cat\nH-0\t-2\tthe dog\nS-1\ta bone\nH-1\t-1\ta dog\n")
    reference.write_text("the dog\na bone\n")

    def rescored(data, model):
        flags = [data, "--path", model, "--cpu", "--input", lists]
        printed_by("rescore", *flags, "--reference", reference, "--tune", tmp_path / "weights.json")
        return printed_by("rescore", *flags, "--weights", tmp_path / "weights.json", "--output", "lists")

    expected = rescored(sources / name, sources / "run" / name)
    out, _ = export(name)
    shutil.rmtree(sources)
    assert rescored(out, out) == expected != ""


@pytest.mark.parametrize("name, command, flags", [RUNS[0], RUNS[2]])
def test_several_checkpoints_are_an_ensemble(name, command, flags, sources, export, printed_by, refuse):
    paths = [sources / "run" / name, sources / "run" / name / "other.pt"]
    out, _ = export(name, paths[1])
    alone, expected = (
        printed_by(command, sources / name, "--cpu", "--path", *given, *flags, typed=LINES)
        for given in (paths[:1], paths)
    )
    assert printed_by(command, out, "--cpu", "--path", out, *flags, typed=LINES) == expected != alone
    assert len(fairseq_plugins.load(out).models) == 2
    for words in (["analyze correlation", out, "--path", f"A={out}"], ["export", f"A={out}", "--out", out]):
        assert "holds 2 models: name one of its files" in refuse(*words)


def test_what_an_export_holds(sources, export, tmp_path):
    out, printed = export("translation")
    checkpoint = sources / "run/translation/checkpoint_best.pt"
    assert (out / "checkpoint_best.pt").stat().st_size < checkpoint.stat().st_size - 300_000
    before, state = (torch.load(path, weights_only=True) for path in (checkpoint, out / "checkpoint_best.pt"))
    assert state["model"].keys() == before["model"].keys() and "last_optimizer_state" not in state
    assert all(torch.equal(before["model"][name], weight) for name, weight in state["model"].items())
    record = json.loads((out / "export.json").read_text())
    names = {"dict.src.txt", "dict.tgt.txt", "bpe.codes", "text.json", "LICENCE.txt", "checkpoint_best.pt"}
    assert record["files"].keys() == record["made_from"].keys() == names
    assert {one.name for one in out.iterdir()} == names | {"export.json"}
    assert record["licences"] == ["LICENCE.txt"] and record["version"] == fairseq_plugins.__version__
    assert record["command"].startswith("fairseq-plugins export ") and "no licence" not in printed
    assert "no licence" in export("lm")[1]
    assert str(tmp_path).encode() in checkpoint.read_bytes()
    assert not [one.name for one in out.iterdir() if str(tmp_path).encode() in one.read_bytes()]


def test_a_second_run_replaces_an_export_alone(sources, export, refuse):
    out, _ = export("lm")
    first = {one.name: one.read_bytes() for one in out.iterdir()}
    export("lm")
    assert {one.name: one.read_bytes() for one in out.iterdir()} == first
    assert [one.name for one in out.parent.iterdir()] == ["lm"]
    (out / "notes.txt").write_text("mine")
    assert "has notes.txt, which is no part" in refuse("export", sources / "run/lm", "--out", out)
    assert "is no export" in refuse("export", sources / "run/lm", "--out", sources / "run/translation")
    assert (out / "notes.txt").read_text() == "mine"


def test_an_export_that_cannot_be_replaced_stays(sources, export, refuse, monkeypatch):
    out, _ = export("lm")
    rename = Path.rename

    def fails(path, target):
        if path.is_dir() and path.name.startswith(".lm.") and not path.name.endswith(".old"):
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    before = {one.name: one.read_bytes() for one in out.iterdir()}
    assert "Permission denied" in refuse("export", sources / "run/lm", "--out", out)
    assert {one.name: one.read_bytes() for one in out.iterdir()} == before
    assert [one.name for one in out.parent.iterdir()] == ["lm"]


SECTIONS = [("fairseq_plugins/commands/SHIPPING.md", "With torch alone")]
BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['fairseq', 'fairseq_plugins', 'omegaconf', 'hydra']))\n"


def test_programs_run_with_torch_alone(export, tmp_path):
    ((page, _),) = SECTIONS
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    exports = {name: export(name, "--torch-export")[0] for name in MODELS}
    assert {"encoder.pt2", "decoder_step.pt2"} < {one.name for one in exports["translation"].iterdir()}
    out = exports["translation"]
    assert not [one.name for one in out.iterdir() if str(tmp_path).encode() in one.read_bytes()]
    (translated,) = fairseq_plugins.load(out).translate(["i c k a"], beam=1)
    program = example.replace("shipped/m30k", str(out)).replace('"en", "de"', '"src", "tgt"')
    program = program.replace("a dog runs", " ".join(translated.source))
    program += f"\nimport torch\nstep = torch.export.load({str(exports['lm'] / 'step.pt2')!r}).module()\n"
    program += "print(step(torch.tensor([2]), step.start)[0].exp().sum().item())\n"
    ended = subprocess.run([sys.executable, "-c", BLOCKED + program], capture_output=True, text=True, cwd=tmp_path)
    *words, probability = ended.stdout.split()
    assert words == [*translated.target, "</s>"] != ["</s>"], ended.stderr
    assert float(probability) == pytest.approx(1)


def test_an_export_has_no_split(export, refuse):
    for name, command in (("lm", "lm eval"), ("translation", "evaluate bleu")):
        out, _ = export(name)
        flags = ["--cpu", "--path", out, *(["--out", out.parent / "bleu"] if name == "translation" else [])]
        assert "so give the prepared corpus as DATA" in refuse(command, out, *flags)


def test_errors_are_one_line(sources, refuse, tmp_path):
    model, out = sources / "run/lm", tmp_path / "out"
    (sources / "empty").mkdir()
    shutil.copytree(sources / "lm", sources / "other")
    with (sources / "other/dict.txt").open("a") as file:
        file.write("another 1\n")
    assert "checkpoint" in refuse("export", sources / "empty", "--out", out)
    assert "does not exist" in refuse("export", sources / "none.pt", "--out", out)
    assert "vocabulary" in refuse("export", model, "--out", out, "--data", sources / "other")
    assert "is read: give a folder outside" in refuse("export", model, "--out", sources / "lm/out")
    state = torch.load(model / "checkpoint_best.pt", weights_only=True)
    state["cfg"]["common"]["user_dir"] = "/home/me/my_parts"
    state["cfg"]["model"].output_layer = "mine"
    torch.save(state, model / "own.pt")
    assert "needs parts from /home/me/my_parts: give --user-dir" in refuse("export", model / "own.pt", "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["dict.txt", "text.json", "checkpoint_best.pt", "export.json"])
def test_a_damaged_export_is_refused(name, export, refuse):
    out, _ = export("lm")
    content = (out / name).read_bytes()
    (out / name).write_bytes(content[: len(content) // 2])
    assert name in refuse("lm score", out, "--cpu", "--path", out, typed=LINES)
    (out / name).unlink()
    if name != "export.json":
        assert f"lacks {name}: copy" in refuse("lm score", out, "--cpu", "--path", out, typed=LINES)
        with pytest.raises(ValueError, match=f"lacks {name}: copy"):
            fairseq_plugins.load(out)
