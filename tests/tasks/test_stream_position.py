"""A training goes on in its text where a checkpoint stopped."""

import copy

import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from stateful_training import Training

from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.modules.recurrent_state import map_state, state_tensors

KEY = "StatefulLanguageModelingTask"


@pytest.fixture
def train(make_dictionary, build_tiny_lm):
    """``train(num_windows, cell=, ...)``: a training that has read that many windows, and not trained on them."""

    def train(num_windows=0, *, cell="lstm", **options):
        training = Training(make_dictionary, build_tiny_lm("tied", rnn_cell=cell), **options)
        for _ in range(num_windows):
            next(training.windows)
        return training

    return train


def checkpoint_after(training, num_updates):
    for _ in range(num_updates):
        training.update([next(training.windows)])
    return training.task.get_checkpoint_dict()[KEY]


def losses(training, samples):
    found = []
    for sample in samples:
        training.optimizer.zero_grad()
        found.append(training.accumulate(sample)[0].item())
    return found


def as_older_releases_saved_it(training, saved):
    """The state as lists of the layers' (h, c)."""
    parts = iter(saved["hidden_state"].values())
    return {**saved, "hidden_state": [(part, next(parts)) for part in parts]}


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
@pytest.mark.parametrize("convert", [None, as_older_releases_saved_it])
def test_going_on_inside_an_epoch_is_going_on_without_a_stop(train, cell, convert):
    training = train(cell=cell)
    saved = copy.deepcopy(checkpoint_after(training, 3))
    resumed = train(3, cell=cell)
    resumed.model.load_state_dict(copy.deepcopy(training.model.state_dict()))
    resumed.task.set_checkpoint_dict(saved if convert is None else convert(training, saved))
    again = resumed.task.get_checkpoint_dict()[KEY]
    assert again["next_window"] == saved["next_window"] and again["hidden_state"].keys() == saved["hidden_state"].keys()
    assert all(torch.equal(again["hidden_state"][name], part) for name, part in saved["hidden_state"].items())
    expected = losses(training, training.windows)
    assert losses(resumed, resumed.windows) == expected and len(expected) > 3


def test_the_state_is_saved_by_name_and_only_inside_an_epoch(train):
    training = train()
    assert training.task.get_checkpoint_dict()[KEY]["hidden_state"] is None
    saved = checkpoint_after(training, 1)
    window, state = saved["next_window"], training.model.decoder.carried_state.get("train", saved["next_window"][0])
    assert window[2] == 200 and all(isinstance(name, str) for name in saved["hidden_state"])
    assert [x.shape for x in saved["hidden_state"].values()] == [(2, 12), (2, 12), (2, 8), (2, 8)]
    assert all(torch.equal(x, y) for x, y in zip(saved["hidden_state"].values(), state_tensors(state)))
    for sample in training.windows:
        training.update([sample])
    saved = training.task.get_checkpoint_dict()[KEY]
    assert saved["hidden_state"] is None and saved["next_window"] is None


def test_at_the_start_of_an_epoch_nothing_is_taken_over(train):
    saved = checkpoint_after(train(), 3)
    fresh = train(num_tokens=390)
    fresh.task.set_checkpoint_dict({**saved, "hidden_state": None})
    assert fresh.task.get_checkpoint_dict()[KEY]["next_window"][0] == 0


@pytest.mark.parametrize("changed", [{"window_lengths": "fixed"}, {"num_tokens": 390}])
def test_other_windows_are_refused(train, changed):
    saved = checkpoint_after(train(), 3)
    with pytest.raises(ValueError, match="cut into other windows: .* --reset-dataloader"):
        train(3, **changed).task.set_checkpoint_dict(saved)


def test_another_number_of_rows_is_refused(train):
    saved = checkpoint_after(train(), 3)
    with pytest.raises(ValueError, match="epoch of 2 rows and cannot go on with 4: .* --reset-dataloader"):
        train(3, num_shards=2, num_tokens=800).task.set_checkpoint_dict(saved)


def test_the_state_of_another_model_is_refused(train, make_dictionary, build_tiny_lm):
    saved = checkpoint_after(train(), 3)
    other = Training(make_dictionary, build_tiny_lm("full", hidden_sizes="8 8"))
    for _ in range(3):
        next(other.windows)
    with pytest.raises(ValueError, match="hidden state of another model: .* --reset-dataloader"):
        other.task.set_checkpoint_dict(saved)


def test_processes_save_the_state_of_all_rows_and_each_takes_its_own(train, monkeypatch):
    """Two processes, one after the other: what each gathers is given by what both computed."""
    processes = [train(num_shards=2, shard_id=shard, num_tokens=800) for shard in range(2)]
    gathered = []
    monkeypatch.setattr(distributed_utils, "get_data_parallel_group", lambda: None)
    monkeypatch.setattr(distributed_utils, "all_gather", lambda tensor, group: gathered.append(tensor) or [tensor] * 2)
    samples = [[next(process.windows) for _ in range(2)] for process in processes]
    for process, own in zip(processes, samples):
        losses(process, own)
    monkeypatch.setattr(distributed_utils, "all_gather", lambda tensor, group: [gathered[1], gathered[3]])
    positions = [sample[1]["net_input"]["position"] + sample[1]["target"].size(1) for sample in samples]
    saved = []
    for process, position in zip(processes, positions):
        process.task._position.advance(process.model.decoder, position=position)
        saved.append(process.task.get_checkpoint_dict()[KEY])
    assert saved[0]["next_window"] == saved[1]["next_window"]
    for name, part in saved[0]["hidden_state"].items():
        assert len(part) == 4 and torch.equal(part, saved[1]["hidden_state"][name])
        assert part.is_contiguous()
    for shard, process in enumerate(processes):
        resumed = train(2, num_shards=2, shard_id=shard, num_tokens=800)
        resumed.task.set_checkpoint_dict(saved[0])
        states = [x.model.decoder.carried_state.get("train", positions[shard]) for x in (resumed, process)]
        map_state(lambda x, y: torch.testing.assert_close(x, y, rtol=0, atol=0) or x, *states)
