"""The texts of references and solutions that the bundled set does not have: a wrong one, one that raises, slow ones."""

from typing import Final

FORGETS_TO_ADD: Final = '''\
"""A row in blocks of 1,024; the sum of squares keeps only the last block: `=` where `+=` was meant."""

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x_ptr, weight_ptr, out_ptr, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    total = 0.0
    for start in range(0, HIDDEN, BLOCK):
        x = tl.load(x_ptr + row * HIDDEN + start + cols).to(tl.float32)
        total = tl.sum(x * x, axis=0)
    scale = tl.rsqrt(total / HIDDEN + eps)
    for start in range(0, HIDDEN, BLOCK):
        x = tl.load(x_ptr + row * HIDDEN + start + cols).to(tl.float32)
        weight = tl.load(weight_ptr + start + cols).to(tl.float32)
        tl.store(out_ptr + row * HIDDEN + start + cols, (x * scale * weight).to(tl.bfloat16))


def run(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    rmsnorm_kernel[(hidden_states.shape[0],)](hidden_states, weight, output, 1e-5, HIDDEN=4096, BLOCK=1024)
    return output
'''
UNKNOWN_SIZE: Final = '''\
"""The hidden size is an argument, and no `tl.constexpr`: Triton refuses `tl.arange`, at each call."""

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x_ptr, weight_ptr, out_ptr, hidden_size, eps):
    row = tl.program_id(0)
    cols = tl.arange(0, triton.next_power_of_2(hidden_size))
    mask = cols < hidden_size
    x = tl.load(x_ptr + row * hidden_size + cols, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / hidden_size + eps) * weight
    tl.store(out_ptr + row * hidden_size + cols, y.to(tl.bfloat16), mask=mask)


def run(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    rmsnorm_kernel[(hidden_states.shape[0],)](hidden_states, weight, output, hidden_states.shape[1], 1e-5)
    return output
'''
SLOW_REFERENCE: Final = """\
import torch


@torch.no_grad()
def run(x, weight):
    for _ in range(STEPS):
        y = x @ weight
    return y
"""
QUICK_PRODUCT: Final = """\
import torch


@torch.no_grad()
def run(x, weight):
    return x @ weight
"""
SMALL_RMSNORM: Final = """\
import torch


def run(x, weight):
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (x.float() * scale).to(x.dtype) * weight
"""
