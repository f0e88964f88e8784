"""One of two processes of a training is killed or runs out of memory."""

import pytest
from commands import COMPARABLE, load, started_pair, train_two, training_arguments, updates_of, wait_until

SECONDS = 60
"""Within which what is waited for must come, such as the end of the other process."""
OFTEN_SAVED = ("--max-epoch", 1000, "--save-interval-updates", 2, "--keep-interval-updates", 1)
MOMENTS = {"training": "| train_inner |", "saving": "Preparing to save checkpoint"}


def two_processes(data, save_dir, *flags):
    """Both, with two rows each."""
    halves = ["--batch-size", 2, "--batch-size-valid", 1, "--log-interval", 1]
    return started_pair(training_arguments(data, save_dir, *COMPARABLE, *flags, *halves), save_dir)


def check_resumes(data, save_dir):
    """The saved checkpoint is whole, and two processes resume from it."""
    num_updates = updates_of(load(save_dir / "checkpoint_last.pt")) + 3
    train_two(data, save_dir, *COMPARABLE, "--max-update", num_updates)
    assert updates_of(load(save_dir / "checkpoint_last.pt")) == num_updates


@pytest.mark.parametrize("rank, moment", [(0, "training"), (1, "saving")])
def test_killed(rank, moment, data, tmp_path):
    with two_processes(data, tmp_path, *OFTEN_SAVED) as processes:
        first = processes[0]
        wait_until((tmp_path / "checkpoint_last.pt").exists, seconds=SECONDS)
        seen = first.printed.count(MOMENTS[moment])
        wait_until(lambda: first.printed.count(MOMENTS[moment]) > seen, seconds=SECONDS)
        processes[rank].kill()
        assert processes[1 - rank].wait(SECONDS) != 0
    check_resumes(data, tmp_path)


SHORT_OF_MEMORY = """
import fairseq_plugins
from fairseq.distributed import utils
from fairseq.tasks import FairseqTask

fairseq_step, count = FairseqTask.train_step, 0

def train_step(*args, **kwargs):
    global count
    count += 1
    is_short = utils.get_global_rank() == {rank} and count in {windows}
    result = None if is_short and count > 1 else fairseq_step(*args, **kwargs)
    if is_short:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return result

FairseqTask.train_step = train_step
"""


def short_of_memory(folder, *, rank, windows, update_freq):
    """Flags of a training one process of which runs out of memory in these windows."""
    folder.mkdir()
    (folder / "__init__.py").write_text(SHORT_OF_MEMORY.format(rank=rank, windows=windows))
    flags = {"--user-dir": folder, "--update-freq": update_freq, "--max-epoch": 1, "--save-interval-updates": 5}
    return [part for flag in flags.items() for part in flag]


@pytest.mark.parametrize("rank, windows, update_freq", [(1, [1, 6], 2), (0, [3, 4], 1)])
def test_short_of_memory(rank, windows, update_freq, data, tmp_path):
    flags = short_of_memory(tmp_path / "short_of_memory", rank=rank, windows=windows, update_freq=update_freq)
    with two_processes(data, tmp_path / "save", *flags) as processes:
        ended = [process.finish() for process in processes]
    assert [result.returncode for result in ended] == [0, 0], ended[rank].stderr[-3000:]
    told = [(result.stdout + result.stderr).count("attempting to recover from OOM") for result in ended]
    assert told[rank] >= len(windows) and told[1 - rank] == 0
    check_resumes(data, tmp_path / "save")


def test_short_of_memory_from_the_start(data, tmp_path):
    flags = short_of_memory(tmp_path / "short_of_memory", rank=1, windows=[1], update_freq=1)
    with two_processes(data, tmp_path / "save", *flags) as processes:
        first, second = (process.finish() for process in processes)
    assert first.returncode != 0 and second.returncode != 0
    assert "memory ran out in the first batch: lower --batch-size or --max-tokens" in second.stderr
