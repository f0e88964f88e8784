"""Two processes that share the rows of a batch have the gradients of one that holds them all."""

import copy
import os
from datetime import timedelta

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

V, B, T = 23, 4, 6
NUM_STEPS = 2


def train(model, tokens, mask, *, num_shares):
    """Gradients of the summed loss at every step and the parameters after the last."""
    module = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer, results = torch.optim.SGD(model.parameters(), lr=0.01), []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss, _ = model(tokens[:, :-1], target=tokens[:, 1:], token_weights=mask, label_smoothing=0.1)
        loss.backward()
        for param in model.parameters():
            param.grad *= num_shares  # the wrapper's mean over the processes becomes the sum
        results.append({name: param.grad.clone() for name, param in module.named_parameters()})
        optimizer.step()
    return [*results, {name: param.detach().clone() for name, param in module.named_parameters()}]


def train_share(rank, models, tokens, mask, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    rows = slice(2 * rank, 2 * rank + 2)
    for name, model in models.items():
        own = copy.deepcopy(model)  # tensors that are sent to a process lie in shared memory
        wrapped = DistributedDataParallel(own, find_unused_parameters=False)
        torch.save(train(wrapped, tokens[rows], mask[rows], num_shares=2), f"{folder}/{name}{rank}.pt")
    distributed.destroy_process_group()
    os._exit(0)  # at a normal exit, threads of the library abort one process in thirty or so


def test_two_processes_have_the_gradients_of_one(build_tiny_lm, tmp_path):
    models = {name: build_tiny_lm(name, output_chunk=3).double() for name in ("tied", "doc")}
    tokens, mask = torch.randint(V, (B, T + 1)), torch.arange(T) < torch.tensor([[T], [3], [1], [5]])
    multiprocessing.spawn(train_share, args=(models, tokens, mask, tmp_path), nprocs=2)
    for name, model in models.items():
        expected = train(model, tokens, mask, num_shares=1)
        for rank in range(2):
            torch.testing.assert_close(torch.load(tmp_path / f"{name}{rank}.pt"), expected, rtol=1e-9, atol=1e-12)
