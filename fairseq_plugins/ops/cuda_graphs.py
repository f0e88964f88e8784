"""Loops over time steps as CUDA graphs.

Kernels of a single time step are so short that a loop takes as long as Python needs to launch them. A CUDA graph
records the launches of a whole loop and replays them as one, always on the same memory: arguments are copied
into it, and results out of it.
"""

import logging
from collections import Counter
from functools import cached_property
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import backward_keeps_graph, is_recorded, product_dtype

logger = logging.getLogger(__name__)

Tensors = Tuple[Optional[Tensor], ...]

CALLS_BEFORE_RECORDING = 2
"""Calls with arguments of the same shapes before a graph is recorded, because rare shapes are not worth a graph."""
MAX_GRAPHS = 16
"""Graphs of a process. Each holds the memory that a forward pass keeps for its backward pass."""


class Recorder:
    """Records the launches of functions on the current GPU."""

    def takes(self, x: Tensor) -> bool:
        """Whether functions of such a tensor can be recorded."""
        return x.is_cuda and x.device.index == torch.cuda.current_device()

    def has_room(self) -> bool:
        """Whether the GPU has memory for another graph, which is never given back."""
        free, total = torch.cuda.mem_get_info()
        return free > total / 4

    def record(self, function: Callable[[], Tensors]) -> Tuple[Tensors, Callable[[], object]]:
        """Record the launches of a function.

        Returns:
            its results, which hold no values yet, and a function that replays the launches and writes the results.
        """
        before, generator = torch.cuda.current_stream(), torch.cuda.default_generators[torch.cuda.current_device()]
        state = generator.graphsafe_get_state()
        self._warm_up.wait_stream(before)
        with torch.cuda.stream(self._warm_up):
            function()  # what libraries allocate at the first call must not become part of the graph
        before.wait_stream(self._warm_up)
        graph = torch.cuda.CUDAGraph()
        try:
            generator.graphsafe_set_state(state.clone_state())  # a copy, because a failed recording may spoil it
            # other threads, such as a process group's, may use the GPU meanwhile
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                results = function()
        finally:
            generator.graphsafe_set_state(state)
            torch.cuda.set_stream(before)  # torch does not restore it if a recording fails
        return results, graph.replay

    @cached_property
    def _warm_up(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # one for all graphs, because each stream has memory of its own

    @cached_property
    def _pool(self) -> Any:
        """Memory that all graphs share: one runs at a time, and values that must last are never freed."""
        return torch.cuda.graph_pool_handle()


class LoopGraphs:
    """Graphs of loops in training, by the function and the shapes of its arguments.

    A graph keeps what the backward pass needs in its own memory, so a window holds a graph until its backward pass is
    over. Layers of equal shapes take several graphs. Where no graph is free, or recording fails, or a graph differs
    from the function, the function runs as usual.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._free: Dict[Hashable, List[_Graph]] = {}
        self._num_calls: Counter[Hashable] = Counter()
        self._num_graphs = 0
        self._may_record = True

    def __deepcopy__(self, memo: Dict[int, Any]) -> "LoopGraphs":
        return self  # a copy of a model takes the same graphs

    def apply(self, function: Type[torch.autograd.Function], *args: Any) -> Any:
        """``function.apply(*args)``. The arguments are tensors and constants. All results are tensors.

        The forward and backward pass of the function launch the same kernels whatever the values are.
        """
        tensors = [x for x in args if isinstance(x, Tensor)]
        if not is_recorded(tensors) or not all(map(self._recorder.takes, tensors)) or torch.compiler.is_compiling():
            return function.apply(*args)
        key = (function, *((x.shape, x.dtype, x.device, x.requires_grad) if isinstance(x, Tensor) else x for x in args))
        free = self._free.get(key)
        graph = free.pop() if free else self._new_graph(key, function, args)
        if graph is None:
            return function.apply(*args)
        results = _Replay.apply(_Window(graph, self._free.setdefault(key, [])), *args)
        return results if graph.has_several_results else results[0]

    def _new_graph(
        self, key: Hashable, function: Type[torch.autograd.Function], args: Sequence[Any]
    ) -> Optional["_Graph"]:
        self._num_calls[key] += 1
        is_rare = self._num_calls[key] <= CALLS_BEFORE_RECORDING
        if is_rare or not self._may_record or self._num_graphs == MAX_GRAPHS or not self._recorder.has_room():
            return None
        try:
            graph = _Graph(function, args, recorder=self._recorder)
            graph.check()
        except Exception as error:  # drivers and versions differ; loops run without graphs as well
            self._may_record = False
            logger.info(f"--cuda-graphs: no more are recorded ({' '.join(str(error).split())[:200]})")
            return None
        self._num_graphs += 1
        return graph


CUDA_GRAPHS = LoopGraphs(Recorder())
"""The graphs of this process."""


def run_loop(graphs: Optional[LoopGraphs], function: Type[torch.autograd.Function], *args: Any, like: Tensor) -> Any:
    """``function.apply(learns, *args)``, replayed if there are graphs.

    Tensors get the type that products of ``like`` are taken in. Where nothing ``learns``, the function keeps no steps.
    """
    dtype = product_dtype(like)
    args = tuple(x.to(dtype) if isinstance(x, Tensor) else x for x in args)
    learns = is_recorded(x for x in args if isinstance(x, Tensor))
    with torch.autocast(like.device.type, enabled=False):
        return function.apply(learns, *args) if graphs is None else graphs.apply(function, learns, *args)


class _Context:
    """Stands for autograd's context in a recording."""

    def __init__(self, needs_input_grad: Sequence[bool]):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: Tensors = ()

    def save_for_backward(self, *tensors: Optional[Tensor]) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """No effect, because the gradients of all results are given."""


class _Graph:
    """Forward and backward pass of a function for arguments of certain shapes."""

    def __init__(self, function: Type[torch.autograd.Function], args: Sequence[Any], *, recorder: Recorder):
        self._function = function
        self._args = [x.detach().clone() if isinstance(x, Tensor) else x for x in args]
        self._needs_input_grad = [isinstance(x, Tensor) and x.requires_grad for x in args]
        self.has_several_results = True
        self._context = _Context(self._needs_input_grad)  # replays use the tensors that it keeps
        with torch.no_grad():
            # Recorded in the order of replays, because a backward pass may overwrite what the forward pass has kept.
            results, self._replay_forward = recorder.record(lambda: self._forward(self._context))
            self._results = [x for x in results if x is not None]
            self._d_results = [torch.ones_like(x) for x in self._results]
            self._gradients, self._replay_backward = recorder.record(lambda: self._backward(self._context))

    def _forward(self, context: _Context) -> Tuple[Tensor, ...]:
        results = self._function.forward(context, *self._args)
        self.has_several_results = isinstance(results, tuple)
        return results if self.has_several_results else (results,)

    def _backward(self, context: _Context) -> Tensors:
        return self._function.backward(context, *self._d_results)

    def check(self) -> None:
        """Raise RuntimeError unless a replay gives the function's results and gradients for the recorded arguments."""
        context = _Context(self._needs_input_grad)
        with torch.no_grad():
            expected = self._forward(context)
            for d_result, result in zip(self._d_results, expected):
                d_result.copy_(result)
            expected = [*expected, *(x for x in self._backward(context) if x is not None)]
            replayed = [*self._results, *(x for x in self._gradients if x is not None)]
            for x in replayed:
                x.fill_(torch.nan)  # a replay must overwrite it
            self._replay_forward()
            self._replay_backward()
            for a, b in zip(replayed, expected):
                rounding = torch.finfo(b.dtype).eps ** 0.5 * b.double().norm()
                if not (a.double() - b.double()).norm() <= rounding:
                    raise RuntimeError("a replay differs from the loop that it records")

    def forward(self, args: Sequence[Any]) -> Tuple[Tensor, ...]:
        for ours, given in zip(self._args, args):
            if isinstance(ours, Tensor):
                ours.copy_(given)
        self._replay_forward()
        return tuple(x.clone() for x in self._results)

    def backward(self, d_results: Sequence[Tensor]) -> Tensors:
        for ours, given in zip(self._d_results, d_results):
            ours.copy_(given)
        self._replay_backward()
        # copies, because autograd may keep a gradient as .grad, and the next replay overwrites the original
        return tuple(None if x is None else x.clone() for x in self._gradients)


class _Window:
    """Holds a graph for a window until its backward pass is over, or can no longer come."""

    def __init__(self, graph: _Graph, free: List[_Graph]):
        self._graph: Optional[_Graph] = graph
        self._free = free

    def graph(self) -> _Graph:
        if self._graph is None:
            raise RuntimeError("a window's values are gone after a backward pass: give it retain_graph=True")
        return self._graph

    def end(self) -> None:
        if self._graph is not None:
            self._free.append(self._graph)
            self._graph = None

    def __del__(self) -> None:
        self.end()


class _Replay(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, window: _Window, *args: Any) -> Tuple[Tensor, ...]:
        ctx.window = window
        return window.graph().forward(args)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *d_results: Tensor) -> Tuple[Optional[Tensor], ...]:
        gradients = ctx.window.graph().backward(d_results)
        if not backward_keeps_graph():
            ctx.window.end()
        return None, *gradients
