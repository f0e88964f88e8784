"""Loops over time steps as CUDA graphs.

Kernels of a single time step are so short that a loop takes as long as Python needs to launch them. A CUDA graph
records the launches of a whole loop and replays them as one, always on the same memory: arguments are copied there, and
results from there.
"""

import logging
from collections import Counter
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import backward_keeps_graph

logger = logging.getLogger(__name__)

Tensors = Tuple[Optional[Tensor], ...]
Recorder = Callable[[Callable[[], Tensors]], Tuple[Tensors, Callable[[], object]]]
"""Records the launches of a function. Returns its results, and what replays the launches and so writes the results."""

CALLS_BEFORE_RECORDING = 2
"""Calls with arguments of the same shapes that run as usual, because shapes that do not recur are not worth a graph."""
MAX_GRAPHS = 16
"""Graphs of a process. Each holds the memory that a forward pass keeps for its backward pass."""


def record_cuda_graph(function: Callable[[], Tensors]) -> Tuple[Tensors, Callable[[], object]]:
    """Record the launches of a function. Its results hold no values before the first replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()  # what libraries allocate at the first call must not become part of the graph
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # other threads, such as that of a process group, may use the GPU meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = function()
    return results, graph.replay


class LoopGraphs:
    """Graphs of loops in training, by the function and the shapes of its arguments.

    A graph keeps what the backward pass needs in its own memory, so a window holds a graph until its backward pass is
    over. Layers of equal shapes take several graphs. Where no graph is free, or recording fails, or a graph differs
    from the function, the function runs as usual.

    Args:
        record: records the launches of a function.
        device_type: type of the devices whose loops are recorded.
    """

    def __init__(self, *, record: Recorder = record_cuda_graph, device_type: str = "cuda"):
        self._record, self._device_type = record, device_type
        self._free: Dict[Hashable, List[_Graph]] = {}
        self._num_calls: Counter[Hashable] = Counter()
        self._num_graphs = 0
        self._works = True

    def __deepcopy__(self, memo: Dict[int, Any]) -> "LoopGraphs":
        return self  # a copy of a model takes the same graphs

    def apply(self, function: Type[torch.autograd.Function], *args: Any) -> Any:
        """``function.apply(*args)``. The arguments are tensors and constants. All results are tensors.

        The forward and backward pass of the function launch the same kernels whatever the values are.
        """
        tensors = [x for x in args if isinstance(x, Tensor)]
        learns = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if not learns or tensors[0].device.type != self._device_type or torch.compiler.is_compiling():
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
        if not self._works or self._num_calls[key] <= CALLS_BEFORE_RECORDING or self._num_graphs == MAX_GRAPHS:
            return None
        try:
            graph = _Graph(function, args, record=self._record)
            graph.check()
        except Exception as error:  # whatever a driver or version raises: loops run without graphs as well
            self._works = False
            logger.info(f"--cuda-graphs: off ({' '.join(str(error).split())[:200]})")
            return None
        self._num_graphs += 1
        return graph


CUDA_GRAPHS = LoopGraphs()
"""The graphs of this process."""


def run_loop(graphs: Optional[LoopGraphs], function: Type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply(*args)``, replayed where there are graphs."""
    return function.apply(*args) if graphs is None else graphs.apply(function, *args)


class _Context:
    """Stands for autograd's context in a recording."""

    def __init__(self, needs_input_grad: Sequence[bool]):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: Tensors = ()

    def save_for_backward(self, *tensors: Optional[Tensor]) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """All gradients of results are given."""


class _Graph:
    """Forward and backward pass of a function for arguments of certain shapes."""

    def __init__(self, function: Type[torch.autograd.Function], args: Sequence[Any], *, record: Recorder):
        self._function = function
        self._args = [x.detach().clone() if isinstance(x, Tensor) else x for x in args]
        self._needs_input_grad = [isinstance(x, Tensor) and x.requires_grad for x in args]
        self.has_several_results = True
        self._context = context = _Context(self._needs_input_grad)  # replays use what it keeps
        with torch.no_grad():
            # The order is that of replays, because a backward pass may overwrite what the forward pass has kept.
            results, self._replay_forward = record(lambda: self._forward(context))
            self._results = [x for x in results if x is not None]
            self._d_results = [torch.ones_like(x) for x in self._results]
            self._gradients, self._replay_backward = record(lambda: self._backward(context))

    def _forward(self, context: _Context) -> Tuple[Tensor, ...]:
        results = self._function.forward(context, *self._args)
        self.has_several_results = isinstance(results, tuple)
        return results if self.has_several_results else (results,)

    def _backward(self, context: _Context) -> Tensors:
        return self._function.backward(context, *self._d_results)

    def check(self) -> None:
        """Raise RuntimeError unless results and gradients for the recorded arguments are the function's."""
        context = _Context(self._needs_input_grad)
        with torch.no_grad():
            self._replay_forward()
            self._replay_backward()
            replayed = [x.clone() for x in (*self._results, *self._gradients) if x is not None]
            expected = [x for x in (*self._forward(context), *self._backward(context)) if x is not None]
            for a, b in zip(replayed, expected):
                if not (a - b).norm() <= torch.finfo(b.dtype).eps ** 0.5 * b.norm():
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
        # autograd may take a gradient for .grad as it is, and the next replay would overwrite that
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
