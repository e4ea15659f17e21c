"""A GPU that is none: its tensors lie on the CPU, say that they are on a GPU, and each operation on them is counted.

    with PretendGpu() as gpu:
        found = compare(gpu.put(expected), gpu.put(got), tolerance)
    assert len(gpu.waits) == 1

So the branches for a GPU run where none is, and what they cost its host is known: each operation, and each wait for it.
Operations that an operation of torch starts within itself do not show.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

CUDA = torch.device("cuda", 0)


class FarTensor(torch.Tensor):
    """A tensor on the pretended GPU."""

    near: torch.Tensor

    # Torch takes it for one of "meta": it would set any other device, and there is none.
    @staticmethod
    def __new__(cls, near: torch.Tensor) -> FarTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, near.shape, near.stride(), near.storage_offset(), dtype=near.dtype, device="meta"
        )

    def __init__(self, near: torch.Tensor) -> None:
        self.near = near

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the pretended GPU")


class PretendGpu(TorchDispatchMode):
    """Counts what is done on the pretended GPU while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.waits: list[str] = []
        """Operations that bring something over, in either direction."""
        self._patch = pytest.MonkeyPatch()

    def put(self, tensor: torch.Tensor) -> FarTensor:
        return FarTensor(tensor)

    def __enter__(self) -> PretendGpu:
        self._patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.undo()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        far: list[FarTensor] = []
        tree_map_only(FarTensor, far.append, (args, kwargs))
        to = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
        near_args, near_kwargs = tree_map_only(FarTensor, lambda one: one.near, (args, kwargs))
        if to is not None:
            near_kwargs["device"] = torch.device("cpu")
        result = func(*near_args, **near_kwargs)
        if not far and to in (None, "cpu"):
            return result
        name = func._schema.name.removeprefix("aten::")
        self.operations.append(name)
        comes = name == "_local_scalar_dense" or to == "cpu"
        goes = (name == "_to_copy" and not far) or (name == "copy_" and not isinstance(args[1], FarTensor))
        if comes or (goes and not kwargs.get("non_blocking")):
            self.waits.append(name)
        if comes:
            return result
        known = {id(one.near): one for one in far}
        return tree_map_only(torch.Tensor, lambda one: known[id(one)] if id(one) in known else FarTensor(one), result)
