"""What a training is told about a checkpoint that does not fit."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from fairseq_plugins.host.checkpoint_fit import _check_checkpoint

OLDER = Path(__file__).parents[1] / "fixtures/older_checkpoints"
TRAINER = SimpleNamespace(task=SimpleNamespace())


def load(cause):
    """As the host loads: every error becomes one that says that architectures must match."""

    def load_checkpoint(trainer, filename):
        try:
            raise cause
        except Exception:
            raise Exception("please ensure that the architectures match")  # noqa: B904

    return _check_checkpoint(load_checkpoint, TRAINER, "a.pt")


def test_a_value_error_is_what_it_was():
    with pytest.raises(ValueError, match="^the reason and the remedy$"):
        load(ValueError("the reason and the remedy"))


def test_a_refusal_is_told_and_not_what_it_was_made_of():
    def refuse(trainer, filename):
        try:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "of a record's name")
        except ValueError as error:
            raise ValueError(f"{filename} is damaged: take another") from error

    with pytest.raises(ValueError, match="^a.pt is damaged: take another$"):
        _check_checkpoint(refuse, TRAINER, "a.pt")


def test_a_state_that_is_not_there_is_named():
    def look_up(trainer, filename):
        return {}["best"]

    with pytest.raises(ValueError, match="^a.pt lacks the state 'best': it is of a training with another --lr-sched"):
        _check_checkpoint(look_up, TRAINER, "a.pt")


def test_weights_that_do_not_fit_are_named():
    cause = RuntimeError("Error(s) in loading state_dict for Model:\n\tsize mismatch for weight: 1.\n\tand more")
    with pytest.raises(ValueError, match=r"^a.pt does not fit this model: .*--arch.* \(size mismatch for weight: 1\)$"):
        load(cause)


@pytest.mark.parametrize(
    "raised, error, told",
    [
        (
            "Criterion does not match; please reset the optimizer (--reset-optimizer). A vs B",
            ValueError,
            r"^a.pt is of a training with another --criterion \(A vs B\): .*--reset-optimizer.*--save-dir$",
        ),
        ("another of the host's", AssertionError, "^another of the host's$"),
    ],
)
def test_another_criterion_is_told_and_other_assertions_are_left_alone(raised, error, told):
    def load_checkpoint(trainer, filename):
        raise AssertionError(raised)

    with pytest.raises(error, match=told):
        _check_checkpoint(load_checkpoint, TRAINER, "a.pt")


def test_another_normaliser_is_told():
    """The host lets pass what torch's optimisers say."""

    def load_checkpoint(trainer, filename):
        kept = torch.optim.SGD(torch.nn.Linear(2, 3).parameters(), lr=1).state_dict()
        torch.optim.SGD(torch.nn.Linear(2, 3, bias=False).parameters(), lr=1).load_state_dict(kept)

    with pytest.raises(ValueError, match="^a.pt has the optimizer's state of other parameters: .*such as --normaliser"):
        _check_checkpoint(load_checkpoint, TRAINER, "a.pt")


@pytest.mark.parametrize("cause", [RuntimeError("out of memory"), KeyError("model")])
def test_other_errors_are_left_alone(cause):
    with pytest.raises(Exception, match="architectures match"):
        load(cause)


# the host's own method


@pytest.fixture
def trainer():
    """What ``Trainer.load_checkpoint`` reads of a trainer, with a model that refuses every checkpoint."""

    def refuse(*args, **kwargs):
        raise ValueError("the reason and the remedy")

    cfg = SimpleNamespace(
        model=None,
        checkpoint=SimpleNamespace(load_checkpoint_on_all_dp_ranks=False),
        distributed_training=SimpleNamespace(zero_sharding="none"),
    )
    model = SimpleNamespace(set_num_updates=lambda num_updates: None, load_state_dict=refuse)
    return SimpleNamespace(
        cfg=cfg, model=model, data_parallel_world_size=1, data_parallel_rank=0, tpu=False, is_fsdp=False
    )


def test_a_training_says_the_reason(trainer, save_checkpoint):
    with pytest.raises(ValueError, match="^the reason and the remedy$"):
        Trainer.load_checkpoint(trainer, save_checkpoint())


def test_the_host_alone_says_that_architectures_must_match(trainer, save_checkpoint):
    with pytest.raises(Exception, match="please ensure that the architectures match.$") as told:
        inspect.unwrap(Trainer.load_checkpoint)(trainer, save_checkpoint())
    assert type(told.value) is Exception and "the reason" not in str(told.value)


def test_of_several_models_the_one_that_does_not_fit_is_named(tmp_path):
    good, bad = OLDER / "lstm_lm_doc.pt", tmp_path / "bad.pt"
    overrides = {"data": str(OLDER / "data/lm")}
    models, config, task = checkpoint_utils.load_model_ensemble_and_task([str(good), str(good)], overrides)
    assert len(models) == 2 and config.task._name == "stateful_lm" and len(task.dictionary) == 24
    state = torch.load(good)
    del state["model"]["decoder.embedding.weight"]
    torch.save(state, bad)
    with pytest.raises(
        ValueError, match=r"^.*bad.pt does not fit the model that its flags .* \(Missing key.*embedding"
    ):
        checkpoint_utils.load_model_ensemble_and_task([str(good), str(bad)], overrides)


def test_the_host_alone_does_not_name_it(tmp_path):
    state = torch.load(OLDER / "lstm_lm_doc.pt")
    del state["model"]["decoder.embedding.weight"]
    torch.save(state, tmp_path / "bad.pt")
    load, overrides = checkpoint_utils.load_model_ensemble_and_task.__wrapped__, {"data": str(OLDER / "data/lm")}
    with pytest.raises(RuntimeError, match="Missing key") as told:
        load([str(tmp_path / "bad.pt")], overrides)
    assert "bad.pt" not in str(told.value)
