"""Files that are no checkpoints, or damaged or diverged ones, end a command with a line that names file and cause."""

import re
import traceback

import fairseq_cli.train
import pytest
import torch
from commands import ROOT, training_arguments

import fairseq_plugins
from fairseq_plugins.cli.__main__ import all_commands

OLDER = ROOT / "tests/fixtures/older_checkpoints"
LM, TRANSLATOR = OLDER / "lstm_lm_doc.pt", OLDER / "lstm_encdec_doc.pt"
LM_DATA, PAIR_DATA = OLDER / "data/lm", OLDER / "data/translation"
COMMANDS = all_commands()
WEIGHT = "decoder.embedding.weight"
NO_CHECKPOINT = "holds no checkpoint of fairseq-train: give one, such as SAVE_DIR/checkpoint_best.pt"
NO_FLAGS = "holds no flags of a training: give a checkpoint of fairseq-train, such as SAVE_DIR/checkpoint_best.pt"
DIVERGED = f"its weight {WEIGHT} holds inf or NaN, as after a training that diverged"
OTHER_WEIGHTS = "does not fit the model that its flags and the data's dictionary make"


def with_weight(state, change):
    weights = dict(state["model"])
    weights[WEIGHT] = change(weights[WEIGHT].clone())
    return {**state, "model": weights}


def without(state, *names):
    return {name: value for name, value in state.items() if name not in names}


DAMAGES = {
    "a tensor": (lambda state: torch.zeros(3), NO_CHECKPOINT),
    "a list": (lambda state: [1, 2], NO_CHECKPOINT),
    "weights alone": (lambda state: state["model"], NO_CHECKPOINT),
    "no weights": (lambda state: {**state, "model": None}, NO_CHECKPOINT),
    "a list in place of weights": (lambda state: {**state, "model": [torch.zeros(3)]}, NO_CHECKPOINT),
    "a list in place of a weight": (lambda state: with_weight(state, lambda weight: [1.0]), NO_CHECKPOINT),
    "no history": (lambda state: without(state, "optimizer_history", "extra_state"), NO_CHECKPOINT),
    "no flags": (lambda state: {**state, "args": None, "cfg": None}, NO_FLAGS),
    "empty flags": (lambda state: {**state, "args": None, "cfg": {}}, NO_FLAGS),
    "a missing weight": (lambda state: {**state, "model": without(state["model"], WEIGHT)}, "Missing key.*embedding"),
    "one more weight": (
        lambda state: {**state, "model": {**state["model"], "more": torch.ones(2)}},
        r'Unexpected key\(s\) in state_dict: "more"',
    ),
    "another shape": (lambda state: with_weight(state, lambda weight: weight[:, 1:]), OTHER_WEIGHTS),
    "not a number": (lambda state: with_weight(state, lambda weight: weight.fill_(float("nan"))), DIVERGED),
    "infinite": (lambda state: with_weight(state, lambda weight: weight / 0), DIVERGED),
}


@pytest.fixture
def damaged(tmp_path):
    """``damaged(change, checkpoint)``: the path of a changed checkpoint."""

    def damaged(change, checkpoint=LM):
        torch.save(change(torch.load(checkpoint)), tmp_path / "damaged.pt")
        return tmp_path / "damaged.pt"

    return damaged


@pytest.mark.parametrize("change, told", DAMAGES.values(), ids=DAMAGES)
def test_damaged_checkpoint_is_named(change, told, damaged, refuse):
    path = damaged(change)
    line = refuse(COMMANDS["evaluate_lm"], LM_DATA, "--path", path, "--cpu")
    assert line.startswith(str(path)) and re.search(told, line)


def remove_weight(state):
    return {**state, "model": without(state["model"], WEIGHT)}


LIST = "S-0\ta\nT-0\txa\nH-0\t-1\txa\n"
READERS = {
    "score_text": (LM, [LM_DATA, "--tokenised", "--path"]),
    "generate_text": (LM, [LM_DATA, "--tokenised", "--path"]),
    "gate_words": (LM, [LM_DATA, "--words", "a", "--path"]),
    "measure_rank": (LM, [LM_DATA, "--path"]),
    "plot_experts": (LM, [LM_DATA, "--out", "out", "--path"]),
    "rescore_nbest": (TRANSLATOR, [PAIR_DATA, "--tune", "weights", "--path"]),
    "translate": (TRANSLATOR, [PAIR_DATA, "--path"]),
    "plot_attention": (TRANSLATOR, [PAIR_DATA, "--out", "out", "--path"]),
}


@pytest.mark.parametrize("name", READERS)
def test_every_command_that_reads_a_checkpoint_names_it(name, damaged, refuse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint, arguments = READERS[name]
    path = damaged(remove_weight, checkpoint)
    line = refuse(COMMANDS[name], *arguments, path, stdin=LIST)
    assert line.startswith(f"{path} {OTHER_WEIGHTS}")
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.pt"]


@pytest.mark.parametrize("name", ["evaluate_lm", "gate_words", "measure_rank", "plot_timescales", "plot_experts"])
def test_translator_is_no_language_model(name, refuse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = f"A={TRANSLATOR}" if name == "plot_timescales" else TRANSLATOR
    more = {"gate_words": ["--words", "a"], "plot_experts": ["--out", "out"]}.get(name, [])
    line = refuse(COMMANDS[name], LM_DATA, "--path", path, *more)
    assert "was trained for --task translation: give a language model's checkpoint" in line or (
        name == "plot_experts" and "lm holds no sentence pairs: give the directory that data-prep" in line
    )


def test_python_names_it(damaged):
    path = damaged(remove_weight)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} {OTHER_WEIGHTS}"):
        fairseq_plugins.load(path, data=LM_DATA, text="tokenised")


@pytest.mark.parametrize("change", ["a missing weight", "not a number", "no flags"])
def test_gate_names_its_base_model(change, damaged, run_here, tmp_path):
    path = damaged(DAMAGES[change][0])
    flags = ["--task", "stateful_lm", "--arch", "gated_lm", "--base-model", path, "--batch-size", 2]
    with pytest.raises(ValueError) as error:
        run_here(fairseq_cli.train, LM_DATA, "--save-dir", tmp_path / "gate", *flags, "--tokens-per-sample", 5)
    (line,) = str(error.value).splitlines()
    assert line.startswith(str(path))


def test_advice_of_torch_to_run_code_is_not_shown(run_here, tmp_path):
    """fairseq shows the whole chain of errors of a training."""
    torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "checkpoint_last.pt")
    with pytest.raises(ValueError, match="is refused: it holds an object of class torch.nn.modules.linear.L") as error:
        run_here(fairseq_cli.train, *training_arguments(LM_DATA, tmp_path, "--max-epoch", 1))
    assert "weights_only" not in "".join(traceback.format_exception(error.value))
