"""What the kernel for a GPU writes, tried on a CPU: a C++ compiler takes its source, and its threads run in turn."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import writer as writer_module
from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import DRAWN, MULTIPLIED, TILE, Writer
from tests.kit.philox import check_kernel, philox

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]
CPU = torch.device("cpu")
CUDA_FP16 = """
#pragma once
#include <cmath>
#include <cstring>
#define __global__
#define __device__
struct Place { unsigned x; };
static Place threadIdx, blockIdx, blockDim, gridDim;
typedef _Float16 __half;
static float __half2float(__half value) { return (float)value; }
static __half __float2half_rn(float value) { return (__half)value; }
static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static void sincospif(float x, float* sine, float* cosine) {
  *sine = (float)std::sin(M_PI * x);
  *cosine = (float)std::cos(M_PI * x);
}
"""
ON_CPU = """
#include "kernel.cu"
extern "C" void write_pieces(const Piece* pieces, u64 number, u64 tiles, u64 tile) {
  gridDim.x = 3, blockDim.x = 32;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
      flashinfer_bench_write(pieces, number, tiles, tile);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "cuda_fp16.h").write_text(CUDA_FP16)
    (folder / "kernel.cu").write_bytes(Path(writer_module.__file__).with_name("content_kernel.cu").read_bytes())
    (folder / "on_cpu.cpp").write_text(ON_CPU)
    command = ["g++", "-O1", "-w", "-shared", "-fPIC", "-I.", "on_cpu.cpp", "-o", "on_cpu.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "on_cpu.so"))


@pytest.fixture
def on_cpu(library, monkeypatch):
    """Have the writer for a GPU write on a CPU."""

    def launch(_stream, _address, count, tiles, tile):
        numbers = map(ctypes.c_uint64, (count, tiles, tile))
        library.write_pieces(ctypes.c_void_p(_address), *numbers)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: type("Stream", (), {"cuda_stream": 0}))
    return Writer(CPU, launch)


def test_its_numbers_are_the_published_ones():
    assert " ".join(f"{word:08x}" for word in philox(0, 0)) == "6627e8d5 e169c58d bc57ac4c 9b00dbd8"


@pytest.mark.parametrize("count", [1, 3, 7, 1_001, TILE + 65])
@pytest.mark.parametrize("columns", [1, 77, 128, TILE])
@pytest.mark.parametrize("dtype", [*MULTIPLIED])
def test_it_draws_and_shuffles_as_plain_loops_do_and_writes_nothing_else(on_cpu, dtype, count, columns):
    check_kernel(on_cpu, CPU, dtype, count, min(count, columns), is_drawn=dtype in DRAWN)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("told", [{}, {"flips": 0x01}, {"is_nudged": True}])
def test_it_moves_fills_and_flips_as_torch_does(on_cpu, dtype, told):
    value = torch.arange(3 * TILE + 5).to(dtype).view(1, -1).mT
    contents = Contents([value, value], [VariedInput("x", "rolled", **told), VariedInput("y", "fixed")], 7, 5)
    numbers = [5, 0, 1]
    made = []
    for writer in (on_cpu, Writer(CPU)):
        into = [torch.zeros(len(numbers), *value.shape, dtype=dtype) for _ in range(2)]
        held = torch.zeros(4, 3 * TILE + 8, dtype=torch.uint8)
        contents.write_all(numbers, into, range(len(numbers)), writer)
        writer.fill_rows(held[:, 8:], [1, 3], 0xF1E2D3C4B5A69788)
        writer.finish()
        made.append([*into[0], *into[1], held])
    for one, other in zip(*made, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(made[0][0], value)
    assert not torch.equal(made[0][1], value)


def test_calls_together_and_one_by_one_get_the_same(on_cpu):
    base = [torch.randn(6, 40), torch.randn(60), torch.arange(10), torch.randn(3, 8).bfloat16()]
    ways = [VariedInput("x", "scaled"), VariedInput("d", "scaled", deviation=2.0), VariedInput("i", "fixed")]
    contents = Contents(base, [*ways, VariedInput("y", "rolled")], seed=9, base_number=3)
    together, alone = ([one.new_empty(5, *one.shape) for one in base] for _ in range(2))
    contents.write_all(range(5), together, range(5), on_cpu)
    on_cpu.finish()
    for number in range(5):
        contents.write_all([number], alone, [number], on_cpu)
        on_cpu.finish()
    for value, *both in zip(base, together, alone, strict=True):
        assert all(map(torch.equal, *both))
        assert torch.equal(both[0][3], value)
