"""Graphs of loops. On a CPU the recorder of these tests runs the recorded function again and writes its results to the
recorded memory, which holds NaN before. A GPU's own recorder is tested in tests/gpu."""

import copy
import logging

import pytest
import torch
from looped_stacks import LOOPS, run_stack, train
from operations import count_launches

from fairseq_plugins.modules.stack import CudaGraphFlags
from fairseq_plugins.ops import cuda_graphs
from fairseq_plugins.ops.cuda_graphs import CALLS_BEFORE_RECORDING, CUDA_GRAPHS, LoopGraphs
from fairseq_plugins.ops.recurrence import masked_lstm

B, T, D = 3, 5, 8


class Recorder:
    def __init__(self):
        self.num_recordings = self.num_replays = 0
        self.has_room = lambda: True

    def takes(self, x):
        return True

    def record(self, function):
        self.num_recordings += 1
        results = function()
        for x in results:
            if x is not None and x.is_floating_point():
                x.fill_(torch.nan)

        def replay():
            self.num_replays += 1
            for old, new in zip(results, function()):
                if old is not None:
                    old.copy_(new)

        return results, replay


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def graphs(recorder):
    return LoopGraphs(recorder)


def run_lstm(graphs, *, num_steps=T, frozen=(), seed=0):
    """Results and their inputs."""
    generator = torch.Generator().manual_seed(seed)
    shapes = dict(inputs=(num_steps, B, 4 * D), weight=(4 * D, D), mask=(B, D), h=(B, D), c=(B, D))
    tensors = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    learning = [x.requires_grad_() for name, x in tensors.items() if name not in ("mask", *frozen)]
    return masked_lstm(*tensors.values(), graphs=graphs), learning


def gradients(results, inputs, **options):
    return torch.autograd.grad(sum((x * x).sum() for x in results), inputs, **options)


def is_equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def warm_up(graphs, **options):
    for _ in range(CALLS_BEFORE_RECORDING):
        run_lstm(graphs, **options)


@pytest.mark.parametrize("frozen", [(), ("weight",), ("h", "c"), ("inputs",)], ids=str)
def test_replays_equal_the_function_for_new_values(frozen, graphs, recorder):
    for seed in range(CALLS_BEFORE_RECORDING + 3):
        results, inputs = run_lstm(graphs, frozen=frozen, seed=seed)
        expected, leaves = run_lstm(None, frozen=frozen, seed=seed)
        assert is_equal(results, expected)
        assert is_equal(gradients(results, inputs), gradients(expected, leaves))
    assert recorder.num_recordings == 2  # one graph: a forward and a backward pass
    assert recorder.num_replays == 2 * 4  # three windows, and a trial


@pytest.mark.parametrize(
    "name, padded", [*((name, False) for name in LOOPS), ("attention dot", True), ("attention general", True)]
)
def test_stacks_train_alike_with_and_without_graphs(name, padded, graphs, recorder):
    build, num_loops = LOOPS[name]
    stack, plain = build(graphs).double(), build(None).double()
    plain.load_state_dict(stack.state_dict())
    assert is_equal(*(train(one, num_updates=5, padded=padded) for one in (stack, plain)))
    assert recorder.num_recordings == 2 * num_loops  # layers of equal shapes have graphs of their own


def test_windows_in_flight_hold_graphs_of_their_own(graphs, recorder):
    warm_up(graphs)
    runs = [run_lstm(graphs, seed=seed) for seed in range(3)]
    expected = [run_lstm(None, seed=seed) for seed in range(3)]
    for run, plain in reversed(list(zip(runs, expected))):
        assert is_equal(run[0], plain[0])
        assert is_equal(gradients(*run), gradients(*plain))
    assert recorder.num_recordings == 2 * 3


def test_results_and_gradients_stay_when_a_graph_is_replayed(graphs):
    warm_up(graphs)
    results, inputs = run_lstm(graphs, seed=1)
    found = gradients(results, inputs)
    kept = [x.clone() for x in (*results, *found)]
    gradients(*run_lstm(graphs, seed=2))
    assert is_equal((*results, *found), kept)


def test_a_graph_serves_again_after_a_backward_pass_or_where_none_comes(graphs, recorder):
    warm_up(graphs)
    gradients(*run_lstm(graphs))
    run_lstm(graphs)  # its results are dropped at once
    run_lstm(graphs)
    assert recorder.num_recordings == 2


def test_a_graph_that_is_kept_has_a_second_backward_pass(graphs):
    for name in ("variational", "mogrifier"):
        stack = LOOPS[name][0](graphs).train()
        leaves = list(stack.parameters())
        for _ in range(CALLS_BEFORE_RECORDING + 1):
            results = run_stack(stack, 0)
        first = gradients(results, leaves, retain_graph=True)
        assert is_equal(first, gradients(results, leaves))
        with pytest.raises(RuntimeError, match="retain_graph=True"):
            gradients(results, leaves)


def test_tensors_that_learn_in_some_windows_only(graphs):
    for frozen in [("weight",), ()] * 4:
        results, inputs = run_lstm(graphs, frozen=frozen)
        assert is_equal(gradients(results, inputs), gradients(*run_lstm(None, frozen=frozen)))


def test_only_shapes_that_recur_are_recorded_and_only_in_training(graphs, recorder):
    for num_steps in range(2, 12):
        warm_up(graphs, num_steps=num_steps)
    with torch.no_grad():
        for _ in range(5):
            run_lstm(graphs)
    assert recorder.num_recordings == 0
    run_lstm(graphs, num_steps=7)
    assert recorder.num_recordings == 2


def test_without_room_nothing_is_recorded(graphs, recorder):
    recorder.has_room = lambda: False
    warm_up(graphs)
    run_lstm(graphs)
    assert recorder.num_recordings == 0


def test_no_more_graphs_than_the_limit(graphs, recorder, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 2)
    for num_steps in range(2, 8):
        warm_up(graphs, num_steps=num_steps)
        results = run_lstm(graphs, num_steps=num_steps)
        assert is_equal(gradients(*results), gradients(*run_lstm(None, num_steps=num_steps)))
    assert recorder.num_recordings == 2 * 2


def fails(function):
    raise RuntimeError("operation not permitted\nwhen stream is capturing")


def is_wrong(function):
    results, replay = Recorder().record(function)

    def replay_wrongly():
        replay()
        next(x for x in results if x is not None).mul_(1.01)

    return results, replay_wrongly


def writes_nothing(function):
    return function(), lambda: None


@pytest.mark.parametrize(
    "record, reason",
    [
        (fails, "operation not permitted when stream is capturing"),
        (is_wrong, "a replay differs from the loop that it records"),
        (writes_nothing, "a replay differs from the loop that it records"),
    ],
)
def test_where_graphs_do_not_work_loops_run_without_them_and_say_so_once(record, reason, recorder, caplog):
    recorder.record = record
    graphs = LoopGraphs(recorder)
    with caplog.at_level(logging.INFO):
        for seed in range(5):
            run = run_lstm(graphs, seed=seed)
            assert is_equal(gradients(*run), gradients(*run_lstm(None, seed=seed)))
    assert [record.getMessage() for record in caplog.records] == [f"--cuda-graphs: no more are recorded ({reason})"]


def test_launches_around_a_replay_do_not_grow_with_the_steps(recorder, monkeypatch):
    recorder.record = writes_nothing
    monkeypatch.setattr(cuda_graphs._Graph, "check", lambda graph: None)
    counts = []
    for num_steps in (5, 6):
        graphs = LoopGraphs(recorder)
        warm_up(graphs, num_steps=num_steps)
        gradients(*run_lstm(graphs, num_steps=num_steps))

        def run(num_steps=num_steps, graphs=graphs):
            gradients(*run_lstm(graphs, num_steps=num_steps))

        counts.append(count_launches(run))
    assert counts[0] == counts[1]


def test_copies_of_a_model_share_its_graphs(graphs):
    assert copy.deepcopy(LOOPS["rhn"][0](graphs)).graphs is graphs


def test_the_flag(graphs):
    assert CudaGraphFlags().graphs() is None
    assert CudaGraphFlags(cuda_graphs="auto").graphs() is CUDA_GRAPHS
