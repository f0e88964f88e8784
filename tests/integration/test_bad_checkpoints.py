"""Damaged, diverged and hostile checkpoints: a command ends with a line that names the file and the cause."""

import re
import traceback

import fairseq_cli.generate
import fairseq_cli.interactive
import fairseq_cli.train
import fairseq_cli.validate
import pytest
import torch
from commands import training_arguments
from fairseq import checkpoint_utils
from paths import SMALL_MODELS
from translation_commands import FAIRSEQ_FLAGS

import fairseq_plugins

LM, DRILL = SMALL_MODELS / "lstm_lm_doc.pt", SMALL_MODELS / "transformer_drill.pt"
LM_DATA, PAIR_DATA = SMALL_MODELS / "data/lm", SMALL_MODELS / "data/translation"
WEIGHT = "decoder.embedding.weight"
NO_CHECKPOINT = "holds no checkpoint of fairseq-train: give one, such as SAVE_DIR/checkpoint_best.pt"
NO_FLAGS = "holds no flags of a run: give a checkpoint of fairseq-train, such as SAVE_DIR/checkpoint_best.pt"
DIVERGED = f"its weight {WEIGHT} holds inf or NaN, as after a run that diverged"
OTHER_WEIGHTS = "does not fit the model that the flags and the data's dictionary make"


def with_weight(state, change):
    weights = dict(state["model"])
    weights[WEIGHT] = change(weights[WEIGHT].clone())
    return {**state, "model": weights}


def without(state, *names):
    return {name: value for name, value in state.items() if name not in names}


def remove_weight(state):
    return {**state, "model": without(state["model"], WEIGHT)}


DAMAGES = {
    "no weights": (lambda state: {**state, "model": None}, NO_CHECKPOINT),
    "no flags": (lambda state: {**state, "args": None, "cfg": None}, NO_FLAGS),
    "empty flags": (lambda state: {**state, "args": None, "cfg": {}}, NO_FLAGS),
    "a missing weight": (remove_weight, "Missing key.*embedding"),
    "one more weight": (
        lambda state: {**state, "model": {**state["model"], "more": torch.ones(2)}},
        r'Unexpected key\(s\) in state_dict: "more"',
    ),
    "another shape": (lambda state: with_weight(state, lambda weight: weight[:, 1:]), OTHER_WEIGHTS),
    "not a number": (lambda state: with_weight(state, lambda weight: weight.fill_(float("nan"))), DIVERGED),
}


@pytest.fixture
def changed(tmp_path):
    """``changed(change, checkpoint)``: the path of a changed checkpoint; ``change`` returns another state, or None."""

    def changed(change, checkpoint=LM):
        state = torch.load(checkpoint)
        other = change(state)
        torch.save(state if other is None else other, tmp_path / "changed.pt")
        return tmp_path / "changed.pt"

    return changed


@pytest.mark.parametrize("change, told", DAMAGES.values(), ids=DAMAGES)
def test_damaged_checkpoint_is_named(change, told, changed, refuse):
    path = changed(change)
    line = refuse("lm eval", LM_DATA, "--path", path, "--cpu")
    assert line.startswith(str(path)) and re.search(told, line)


def test_python_names_it(changed):
    path = changed(remove_weight)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} {OTHER_WEIGHTS}"):
        fairseq_plugins.load(path, data=LM_DATA, text="tokenised")


def test_advice_of_torch_to_run_code_is_not_shown(run_here, tmp_path):
    """fairseq shows the whole chain of errors of a training."""
    torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "checkpoint_last.pt")
    with pytest.raises(ValueError, match="is refused: it holds an object of class torch.nn.modules.linear.L") as error:
        run_here(fairseq_cli.train, *training_arguments(LM_DATA, tmp_path, "--max-epoch", 1))
    assert "weights_only" not in "".join(traceback.format_exception(error.value))


# checkpoints of anybody's making: no command runs code in their flags


def with_flags(**flags):
    """A change of a checkpoint: other flags of its model."""

    def change(state):
        vars(state["cfg"]["model"]).update(flags)

    return change


def in_old_form(state):
    """As fairseq wrote checkpoints before 2021."""
    state.update(args=state["cfg"]["model"], cfg=None)


CANDIDATES = "S-0\ta\nT-0\txa\nH-0\t-1\txa\n"


@pytest.fixture
def trapped(tmp_path, changed):
    """A checkpoint with a flag that, once evaluated, leaves a file; it must leave none."""
    canary = tmp_path / "canary"
    text = f"open({str(canary)!r}, 'w') and None"
    yield changed(with_flags(encoder_xformers_att_config=text, decoder_xformers_att_config=text), DRILL)
    assert not canary.exists()


@pytest.mark.parametrize("name", ["translate", "rescore"])
def test_no_command_of_the_package_runs_code_of_flags(name, trapped, refuse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tuned = ["--tune", "weights"] if name == "rescore" else []
    line = refuse(name, PAIR_DATA, *tuned, "--path", trapped, typed=CANDIDATES)
    assert "is no literal such as" in line


PAIRS = [PAIR_DATA, *FAIRSEQ_FLAGS]


@pytest.mark.parametrize(
    "command, flags",
    [
        (fairseq_cli.generate, []),
        (fairseq_cli.generate, ["--model-overrides", "{'dropout': 0}"]),
        (fairseq_cli.interactive, []),
        (fairseq_cli.validate, ["--batch-size", 2]),
    ],
)
def test_no_command_of_fairseq_runs_code_of_flags(command, flags, trapped, run_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for models in [trapped] if command is fairseq_cli.validate else [trapped, f"{DRILL}:{trapped}"]:
        with pytest.raises(ValueError, match="is no literal such as"):
            run_here(command, *PAIRS, *flags, "--path", models)


@pytest.mark.parametrize("form", [lambda state: None, in_old_form])
def test_base_models_in_a_checkpoint_run_no_code_and_are_of_this_package(form, changed, refuse, tmp_path):
    canary = tmp_path / "canary"

    def with_base(**flags):
        def change(state):
            with_flags(arch="gated_lm", _name="gated_lm", output_gate="iog", base_model_flags=[flags])(state)
            form(state)

        return changed(change)

    arguments = [LM_DATA, "--cpu", "--path"]
    texts = dict(decoder_layers=f"open({str(canary)!r}, 'w')", decoder_attention="False", dropout=0)
    line = refuse("lm eval", *arguments, with_base(arch="fconv_lm", **texts))
    assert "--arch fconv_lm cannot be a base model: take a language model of this package" in line
    names = ({}, {"_name": "fconv_lm"})
    lines = {refuse("lm eval", *arguments, with_base(arch="lstm_lm_awd", **name, **texts)) for name in names}
    assert len(lines) == 1, lines
    assert not canary.exists()


def test_the_user_dir_of_a_checkpoint_is_not_imported(changed, refuse, run_here, tmp_path):
    module, canary = tmp_path / "imported_by_a_checkpoint", tmp_path / "canary"
    module.mkdir()
    (module / "__init__.py").write_text(f"open({str(canary)!r}, 'w')")

    def change(state):
        with_flags(user_dir=str(module))(state)
        state["cfg"]["common"]["user_dir"] = str(module)
        del state["model"]["decoder.embed_tokens.weight"]  # the command ends when the model is built

    path = changed(change, DRILL)
    rescoring = [PAIR_DATA, "--tune", tmp_path / "weights", "--path", path]
    assert "Missing key" in refuse("rescore", *rescoring, typed=CANDIDATES)
    with pytest.raises(ValueError, match="Missing key"):
        run_here(fairseq_cli.generate, *PAIRS, "--path", path)
    assert not canary.exists()


def test_a_checkpoint_in_the_old_form_is_read(changed):
    models, config, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(changed(in_old_form, DRILL))], {"data": str(PAIR_DATA)}
    )
    assert len(models) == 1 and config.model.arch == "transformer_drill"


def test_a_folder_in_place_of_the_last_checkpoint_is_told(run_here, tmp_path):
    (tmp_path / "checkpoint_last.pt").mkdir()
    with pytest.raises(
        ValueError,
        match="checkpoint_last.pt is no file, and a run that begins anew would replace what is there: give another",
    ):
        run_here(fairseq_cli.train, *training_arguments(LM_DATA, tmp_path, "--max-epoch", 1))
