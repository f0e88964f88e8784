"""Two processes that share the rows of a batch have the gradients of one that holds them all.

Each has a copy of the model (DDP) or a part of every parameter (FSDP).
"""

import copy
import os
from datetime import timedelta
from itertools import product

import pytest
import torch
from builders import build_tiny_encdec, build_tiny_lm, build_tiny_transformer
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

PAD = 1
V, B, T = 23, 4, 6
NUM_STEPS = 2


def train(model, inputs, target, mask, *, num_shares):
    """Gradients of the summed loss at every step and the parameters after the last."""
    module = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer, results = torch.optim.SGD(model.parameters(), lr=0.01), []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss, _ = model(*inputs, target=target, token_weights=mask, label_smoothing=0.1)
        loss.backward()
        for param in model.parameters():
            param.grad *= num_shares  # the wrapper's mean over the processes becomes the sum
        results.append({name: whole(param.grad) for name, param in module.named_parameters()})
        optimizer.step()
    return [*results, {name: whole(param.detach()) for name, param in module.named_parameters()}]


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x.clone()


def train_share(rank, jobs, target, mask, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    rows = slice(2 * rank, 2 * rank + 2)
    for name, (model, inputs) in jobs.items():
        # tensors that are sent to a process lie in shared memory
        copied = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=False)
        sharded = fully_shard(copy.deepcopy(model), mesh=init_device_mesh("cpu", (2,)))
        for kind, own in (("copied", copied), ("sharded", sharded)):
            results = train(own, [tensor[rows] for tensor in inputs], target[rows], mask[rows], num_shares=2)
            torch.save(results, f"{folder}/{kind} {name}{rank}.pt")
    distributed.destroy_process_group()
    os._exit(0)  # at a normal exit, threads of the library abort one process in thirty or so


def make_jobs():
    """Models in float64 and their inputs, by name."""
    language_models = {name: build_tiny_lm(name, output_chunk=3) for name in ("tied", "doc")}
    language_models["mos on Major-Minor LSTMs"] = build_tiny_lm("mos", rnn_cell="mmlstm", output_chunk=3)
    warm = dict(experts_per_layer="1 1 2 2", output_chunk=3, expert_warmup=10)
    doc = dict(experts_per_layer="1 1 2", latent_dropout=0.0, label_encoder="drill")
    translators = {
        "recurrent in the warm-up": build_tiny_encdec("doc", **warm),
        "recurrent after it": build_tiny_encdec("doc", **warm),
        "Transformer with tied": build_tiny_transformer(
            "transformer_full", share_decoder_input_output_embed=True, output_chunk=3
        ),
        "Transformer with doc and drill": build_tiny_transformer("transformer_doc", **doc, output_chunk=3),
    }
    translators["recurrent after it"].decoder.output.set_num_updates(10)
    lengths, source = torch.tensor([7, 2, 1, 6]), torch.randint(4, 19, (B, 7))
    source[torch.arange(7) < 7 - lengths.unsqueeze(1)] = PAD
    tokens = torch.randint(4, V, (B, T))
    return {
        **{name: (model.double(), [tokens]) for name, model in language_models.items()},
        **{name: (model.double(), [source, lengths, tokens]) for name, model in translators.items()},
    }


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path):
    jobs = make_jobs()
    target, mask = torch.randint(V, (B, T)), torch.arange(T) < torch.tensor([[T], [3], [1], [5]])
    share = (jobs, target, mask, tmp_path)
    multiprocessing.start_processes(train_share, args=share, nprocs=2, start_method="fork")
    expected = {name: train(model, inputs, target, mask, num_shares=1) for name, (model, inputs) in jobs.items()}
    for rank, kind in product(range(2), ("copied", "sharded")):
        found = {name: torch.load(tmp_path / f"{kind} {name}{rank}.pt") for name in jobs}
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
