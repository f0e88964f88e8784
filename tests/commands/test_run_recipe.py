"""A recipe's table, with stubs in place of fairseq-train and fairseq-generate."""

import json
import re
import shutil

import pytest
import torch
from binarised_data import copy_data
from fairseq.data import Dictionary, data_utils
from paths import SMALL_MODELS
from typed_commands import type_command

from fairseq_plugins.commands import run as run_command
from fairseq_plugins.evaluation.decoding import Decoding
from fairseq_plugins.recipes import training

LM, PAIRS = SMALL_MODELS / "data/lm", SMALL_MODELS / "data/translation"
LOG = """\
x | INFO | fairseq_cli.train | arch any, seed {seed}
x | INFO | fairseq_cli.train | num. shared model params: 900 (num. trained: 900)
x | INFO | fairseq.trainer | Preparing to load checkpoint checkpoint_last.pt
x | INFO | train_inner | epoch 001: 1 / 9 loss=3, wps=900, wall=9
x | INFO | valid | epoch 001 | valid on 'valid' subset | loss 3 | ppl 8.25 | wps 2000
"""


@pytest.fixture
def trained(monkeypatch):
    """Folders that were trained, in order; the next end with ``trained.status``, and ``trained.error`` in the log."""

    class Trained(list):
        status, error = 0, ""

    trained = Trained()

    def run_logged(command, *, log):
        trained.append(log.parent.name)
        seed = int(log.parent.name.rpartition("-")[2])
        if trained.status == 0:
            pairs = any(word == str(PAIRS) or "pairs" in word for word in command)
            checkpoint = torch.load(
                SMALL_MODELS / ("lstm_encdec_doc.pt" if pairs else "lstm_lm_doc.pt"), weights_only=True
            )
            checkpoint["cfg"]["common"]["seed"] = seed
            for which in ("best", "last"):
                torch.save(checkpoint, log.parent / f"checkpoint_{which}.pt")
        log.write_text(LOG.format(seed=seed) + trained.error)
        return trained.status

    monkeypatch.setattr(training, "run_logged", run_logged)
    return trained


@pytest.fixture
def run(capsys, tmp_path):
    """``run(recipe, data, *arguments)``: exit status, what is printed, what is told; tables go to ``out``, if any."""

    def run(recipe, data, *arguments, with_table=True):
        where = ["--save-dir", tmp_path / "runs", "--cpu", *(["--out", tmp_path / "out"] if with_table else [])]
        try:
            type_command("run", [recipe, data, *where, *arguments])
            status = 0
        except SystemExit as ended:
            status = ended.code
        return (status, *capsys.readouterr())

    return run


def test_every_system_is_trained_with_every_seed_and_compared(run, trained, tmp_path):
    given = ["demo_lm", LM, "--systems", "lstm_lm_doc", "lstm_lm_awd", "--seeds", 1, 2]
    status, printed, _ = run(*given)
    assert status == 0
    assert trained == ["lstm_lm_doc-1", "lstm_lm_awd-1", "lstm_lm_doc-2", "lstm_lm_awd-2"]
    names = re.findall(r"^\| (AWD.*?) +\|", printed, re.M)
    assert names == [
        name + more
        for name in ("AWD-LSTM-DOC", "AWD-LSTM, tied softmax")
        for more in ("", "", ", mean", ", standard deviation")
    ]
    found = json.loads((tmp_path / "out/runs.json").read_text())
    assert len(found["runs"]) == 4 and "run demo_lm" in found["command"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"table.md", "runs.json", "learning_curves.png"}


def test_without_out_there_is_no_table_and_no_folder_has_a_colon_which_parts_checkpoints(run, trained, tmp_path):
    assert run("reduced", LM, "--systems", "9:1", with_table=False)[:2] == (0, "") and trained == ["9-1-1"]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_what_is_finished_is_not_trained_again(run, trained):
    given = ["demo_lm", LM, "--systems", "lstm_lm_doc", "lstm_lm_awd"]
    trained.status = 3
    assert run(*given, with_table=False)[0] == 3 and trained == ["lstm_lm_doc-1"]
    trained.status = 0
    for more, expected in (
        ([], ["lstm_lm_doc-1", "lstm_lm_awd-1"]),
        ([], []),
        (["--seeds", 1, 2], ["lstm_lm_doc-2", "lstm_lm_awd-2"]),
        (["--max-epoch", 20], ["lstm_lm_doc-1", "lstm_lm_awd-1"]),
    ):
        trained.clear()
        assert run(*given, *more, with_table=False)[0] == 0 and trained == expected, more


def test_the_model_that_a_run_has_started_from_stays_as_it_was(run, trained, tmp_path):
    given, runs = ["reduced", LM, "--systems", "tied", "tied-averaged"], tmp_path / "runs"
    assert run(*given, with_table=False)[0] == 0
    status, _, told = run(*given, "--max-epoch", 99)
    assert status == 2 and f"{runs}/tied-1 would be trained on, but {runs}/tied-averaged-1 has started from it" in told
    shutil.copy(SMALL_MODELS / "mmlstm_lm_mos.pt", runs / "tied-1/checkpoint_best.pt")
    status, _, told = run(*given)
    assert status == 2 and "tied-averaged-1 holds a run that started from another" in told
    assert trained == ["tied-1", "tied-averaged-1"]


def test_all_folders_are_checked_before_anything_is_trained(run, trained):
    assert run("demo_lm", LM, "--systems", "lstm_lm_awd", with_table=False)[0] == 0
    trained.clear()
    status, _, told = run("demo_lm", LM, "--systems", "lstm_lm_doc", "lstm_lm_awd", "--lr", 2)
    assert (status, trained) == (2, []) and "lstm_lm_awd-1 holds a run with " in told


def test_what_a_system_begins_with_is_trained_before_it_and_no_row(run, trained, tmp_path):
    status, printed, _ = run("reduced_base_models", LM, "--systems", "zaremba3+iog", "--seeds", 1, 2)
    assert status == 0
    assert trained == [
        *(f"zaremba{end}-{seed}" for seed in (1, 2, 3) for end in ("", "-averaged")),
        "zaremba3+iog-1",
        *(f"zaremba{end}-{seed}" for seed in (4, 5, 6) for end in ("", "-averaged")),
        "zaremba3+iog-2",
    ]
    assert re.findall(r"^\| (zaremba.*?) +\|", printed, re.M) == [
        f"zaremba3+iog{more}" for more in ("", "", ", mean", ", standard deviation")
    ]
    done = (tmp_path / "runs/zaremba3+iog-2/run.json").read_text()
    bases = ":".join(f"{tmp_path}/runs/zaremba-averaged-{seed}/checkpoint_best.pt" for seed in (4, 5, 6))
    assert f"--base-model={bases}" in done
    start = (tmp_path / "runs/zaremba-averaged-4/run.json").read_text()
    assert f"--finetune-from-model={tmp_path}/runs/zaremba-4/checkpoint_best.pt" in start


def test_the_result_may_be_the_model_after_the_last_epoch(run, trained, tmp_path):
    status, _, _ = run("iog_ptb", LM, "--systems", "zaremba-medium", "zaremba-medium+iog")
    assert status == 0
    done = (tmp_path / "runs/zaremba-medium+iog-1/run.json").read_text()
    assert f"--base-model={tmp_path}/runs/zaremba-medium-1/checkpoint_last.pt" in done
    found = json.loads((tmp_path / "out/runs.json").read_text())["runs"]
    assert [one["checkpoint"] for one in found] == ["checkpoint_last.pt", "checkpoint_best.pt"]


@pytest.fixture
def calls(monkeypatch):
    """Places and names of tasks that were run side by side, each by this command in this process."""
    calls = []

    def run_side_by_side(tasks, *, places, show):
        statuses = {}
        for task in tasks:
            if any(statuses.get(name) != 0 for name in task.needs):
                continue
            assert task.command[1:4] == ["-m", "fairseq_plugins", "run"]
            try:
                type_command("run", task.command[4:])
                statuses[task.name] = 0
            except SystemExit as ended:
                statuses[task.name] = ended.code
        calls.append((places, [task.name for task in tasks]))
        return statuses

    monkeypatch.setattr(run_command, "run_side_by_side", run_side_by_side)
    return calls


def test_trainings_side_by_side_are_those_of_one_after_the_other(run, trained, calls, tmp_path):
    given = ["reduced_base_models", LM, "--systems", "zaremba3+iog", "zaremba-averaged", "--max-update", "7"]
    status, printed, _ = run(*given, "--jobs", 3)
    names = [*(f"zaremba{end}-{seed}" for seed in (1, 2, 3) for end in ("", "-averaged")), "zaremba3+iog-1"]
    assert status == 0 and calls[0][1] == names and sorted(trained) == sorted(names)
    assert re.findall(r"^\| (zaremba.*?) +\|", printed, re.M) == ["zaremba3+iog", "zaremba-averaged"]
    done = {name: (tmp_path / "runs" / name / "run.json").read_text() for name in names}
    assert all("--max-update 7 --cpu" in line for line in done.values())
    shutil.rmtree(tmp_path / "runs")
    assert run(*given)[0] == 0 and len(calls) == 1
    assert done == {name: (tmp_path / "runs" / name / "run.json").read_text() for name in names}
    trained.clear()
    assert run(*given, "--jobs", 3)[0] == 0 and calls[1][1] == [] and not trained


@pytest.mark.parametrize(
    "variables, num_gpus, more, expected",
    [
        ({}, 0, [], [("4", None)] * 3),
        ({"OMP_NUM_THREADS": "7"}, 1, [], [("7", None)] * 3),
        ({}, 2, [], [("4", "0"), ("4", "1"), ("4", "0")]),
        ({"CUDA_VISIBLE_DEVICES": "5,3"}, 2, [], [("4", "5"), ("4", "3"), ("4", "5")]),
        ({}, 2, ["--distributed-world-size", "2"], [("4", None)] * 3),
    ],
)
def test_runs_at_once_share_cores_and_gpus(variables, num_gpus, more, expected, run, trained, calls, monkeypatch):
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(run_command.torch, "get_num_threads", lambda: 12)
    monkeypatch.setattr(run_command.torch.cuda, "device_count", lambda: num_gpus)
    run("demo_lm", LM, "--systems", "lstm_lm_doc", "--jobs", 3, *more, with_table=False)
    ((places, _),) = calls
    assert [(one["OMP_NUM_THREADS"], one.get("CUDA_VISIBLE_DEVICES")) for one in places] == expected


def test_validations_of_trainings_side_by_side_are_shown(run, trained, monkeypatch):
    begin = "2026-11-30 07:54:41 | INFO |"

    def run_side_by_side(tasks, *, places, show):
        show("doc-1", f"{begin} valid | epoch 012 | valid on 'valid' subset | loss 5.17302 | ppl 36.1 | wps 1.5\n")
        show("doc-1", f"{begin} train | epoch 012 | loss 5.2 | ppl 36.8 | wps 1.5\n")
        return {}

    monkeypatch.setattr(run_command, "run_side_by_side", run_side_by_side)
    told = run("demo_lm", LM, "--systems", "lstm_lm_doc", "--jobs", 2, with_table=False)[2]
    assert told == "   doc-1  epoch 12  valid perplexity 36.1\n"


def test_one_of_several_that_fails_ends_the_command_after_the_others(run, trained, calls):
    trained.status = 3
    given = ["reduced", LM, "--systems", "tied", "tied-averaged", "full", "--jobs", 2]
    status, printed, told = run(*given)
    assert (status, printed, trained) == (3, "", ["tied-1", "full-1"])
    (line,) = told.splitlines()
    logs = ", ".join(f".*/runs/{name}/train.log" for name in ("tied-1", "full-1"))
    assert re.search(f"^tied-1, full-1 did not end well; tied-averaged-1 not begun: see {logs}, and repeat", line)
    trained.error = "error: --lr 0: give more\n"
    *reasons, _ = run(*given)[2].splitlines()
    assert reasons == ["tied-1: error: --lr 0: give more", "full-1: error: --lr 0: give more"]
    trained.status = 143  # SIGTERM
    assert re.search("not begun: repeat the command to resume", run(*given)[2])
    trained.clear()
    trained.status, trained.error = 0, ""
    assert run(*given)[0] == 0 and trained == ["tied-1", "tied-averaged-1", "full-1"]


@pytest.mark.parametrize(
    "jobs, recipe, systems, more, split, beam, flags",
    [
        (1, "multi30k", ["encdec", "doc"], ["--beam", 3], "test", 3, []),
        (2, "wmt14_transformer", ["full", "doc"], ["--split", "valid"], "valid", 4, ["--lenpen", "0.6"]),
        (1, "iwslt16", ["encdec", "doc"], [], "test", 20, []),
    ],
)
def test_translators_decode_as_the_recipe_says(
    jobs, recipe, systems, more, split, beam, flags, run, trained, calls, tmp_path, monkeypatch
):
    data = tmp_path / "pairs"
    copy_data(PAIRS, data)
    words = Dictionary.load(str(data / "dict.tgt.txt"))
    lines = [words.string(one) for one in data_utils.load_indexed_dataset(str(data / f"{split}.src-tgt.tgt"), words)]
    (data / "raw").mkdir()
    (data / f"raw/{split}.tgt").write_text("".join(f"{line}\n" for line in lines))
    decoded = []

    def decode(decoding):
        assert (decoding.split, decoding.beam, decoding.flags) == (split, beam, [*flags, "--cpu"])
        decoded.append(decoding.models)
        decoding.out.mkdir(exist_ok=True)
        texts = (f"T-{n}\t{line}\nH-{n}\t-0.5\t{line}\n" for n, line in enumerate(lines))
        decoding.generated.write_text("".join(texts))

    monkeypatch.setattr(Decoding, "run", decode)
    given = [recipe, data, "--systems", *systems, *more, "--baseline", systems[0]]
    status, printed, told = run(*given, "--jobs", jobs)
    assert status == 0 and trained == [f"{name}-1" for name in systems]
    assert [line.split("/")[-1] for line in told.splitlines()] == [
        f"{name}-1 ({number} of {len(systems)})" for number, name in enumerate(systems, start=1)
    ]
    assert decoded[: len(systems)] == [[str(tmp_path / "runs" / name / "checkpoint_best.pt")] for name in trained]
    assert "| minus " in printed and printed.count("100.00") >= 2


DOC = ["demo_lm", LM, "--systems", "lstm_lm_doc"]


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["none", LM, "--systems", "tied"], "there is no recipe none: choose one of"),
        (["demo_lm", LM, "--systems", "tied"], "recipe demo_lm has no system tied: choose one of"),
        ([*DOC, "lstm_lm_awd", "--baseline", "lstm_lm_doc"], "over seeds, of which lstm_lm_doc has only one"),
        (["multi30k", PAIRS, "--systems", "doc"], "raw/test.tgt does not exist: prepare the data again"),
        (["multi30k", LM, "--systems", "doc"], "lm holds no sentence pairs: give the directory"),
        (["multi30k", PAIRS, "--systems", "doc", "--split", "none"], "translation has no none set"),
        (["wmt14_mmlstm", PAIRS, "--systems", "mmlstm"], "translation has no newstest2015 set"),
        (["multi30k", PAIRS, "--systems", "doc", "--save-dir", "a:b"], "--save-dir a:b: a colon separates the models"),
        ([*DOC, "--split", "valid"], "--split valid: recipe demo_lm has"),
        ([*DOC, "--gen-subset", "valid"], "--split valid: recipe demo_lm has"),
        ([*DOC, "--beam", "9"], "--beam 9: recipe demo_lm has no translators"),
        (["demo_lm", PAIRS, "--systems", "lstm_lm_doc"], "translation has no valid.bin and valid.idx, on which models"),
        (["demo_lm", LM / "none", "--systems", "lstm_lm_doc"], "none does not exist"),
        ([*DOC, "--stop-time-hours", "1"], "--stop-time-hours: the steps after the training need the best"),
        ([*DOC, "--no-save"], "--no-save: the steps after the training need the best"),
        ([*DOC, "--disable-validation"], "--disable-validation: the steps after the training need the best"),
        ([*DOC, "--seed", "2"], "--seed: give --seeds N..., which name the folders"),
        (["presets", LM, "--systems", "gated_lm"], "is a gate on a trained language model: give its checkpoint"),
        (["iog_ptb", LM, "--systems", "rhn+iog", "--save-dir", "a:b"], "--save-dir a:b: a colon separates base models"),
        (["iog_ptb", LM, "--systems", "rhn5+iog", "--seeds", 0], "--seeds 0: rhn5+iog begins with 5 models, whose"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_it_is_trained(arguments, told, run, trained):
    status, printed, line = run(*arguments)
    assert status == 2 and not printed and line.count("\n") == 1 and told in line and not trained
