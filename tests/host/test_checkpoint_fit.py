"""What a training is told about a checkpoint that does not fit."""

from types import SimpleNamespace

import pytest

from fairseq_plugins.host.checkpoint_fit import _check_checkpoint

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


def test_weights_that_do_not_fit_are_named():
    cause = RuntimeError("Error(s) in loading state_dict for Model:\n\tsize mismatch for weight: 1.\n\tand more")
    with pytest.raises(ValueError, match=r"^a.pt does not fit this model: .*--arch.* \(size mismatch for weight: 1\)$"):
        load(cause)


@pytest.mark.parametrize("cause", [RuntimeError("out of memory"), KeyError("model")])
def test_other_errors_are_left_alone(cause):
    with pytest.raises(Exception, match="architectures match"):
        load(cause)


def test_a_task_compares_its_data():
    class Task:
        def check_vocabulary(self, saved):
            raise ValueError(f"other data than {saved}")

    def load_checkpoint(trainer, filename):
        return {"Task": "words"}

    with pytest.raises(ValueError, match="other data than words"):
        _check_checkpoint(load_checkpoint, SimpleNamespace(task=Task()), "a.pt")
