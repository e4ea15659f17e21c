"""What the kernel for a GPU writes, tried on a CPU: a C++ compiler takes its source, and its threads run one by one."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import writer as writer_module
from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import (
    DRAWN,
    MULTIPLIED,
    TILE,
    Changes,
    KernelWriter,
    draw_example,
    find_places,
    looks_drawn,
    looks_varied,
    vary_example,
    write_example,
)
from tests.kit.philox import draw_normal, philox, shuffle, vary

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]
CPU = torch.device("cpu")
SOURCE = Path(writer_module.__file__).with_name("content_kernel.cu")
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
extern "C" void draw_words(u64 counter, u64 key, unsigned* words) {
  Four drawn = philox(counter, key);
  for (int at = 0; at < 4; ++at) words[at] = drawn.word[at];
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "cuda_fp16.h").write_text(CUDA_FP16)
    (folder / "kernel.cu").write_bytes(SOURCE.read_bytes())
    (folder / "on_cpu.cpp").write_text(ON_CPU)
    command = ["g++", "-O1", "-w", "-shared", "-fPIC", "-I.", "on_cpu.cpp", "-o", "on_cpu.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "on_cpu.so"))


@pytest.fixture
def on_cpu(library, monkeypatch):
    """Have the writer for a GPU write on a CPU."""

    def finish(self):
        pieces, tiles = self.take_pieces()
        numbers = map(ctypes.c_uint64, (len(pieces), tiles, TILE))
        library.write_pieces(ctypes.c_void_p(np.ascontiguousarray(pieces).ctypes.data), *numbers)
        self.flip_written()

    monkeypatch.setattr(KernelWriter, "finish", finish)
    return KernelWriter(CPU, None)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", [*MULTIPLIED, torch.uint8])
def test_it_writes_what_torch_writes(dtype):
    by_torch, by_kernel = write_example(dtype, None, CPU)
    assert by_torch.any()
    assert torch.equal(by_torch, by_kernel)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "int8"])
@pytest.mark.parametrize("varied", [VariedInput("x", "rolled", is_nudged=True), VariedInput("x", "rolled", flips=0xFF)])
def test_bits_are_flipped_of_what_it_wrote_as_of_what_torch_writes(on_cpu, dtype, varied):
    value = torch.randint(0, 256, (2, TILE + 3), dtype=torch.uint8).view(getattr(torch, dtype))
    contents = Contents([value], [varied], 7, 0)
    made = [torch.empty_like(value) for _ in range(3)]
    contents.write_all([0, 1, 2], [made], on_cpu)
    on_cpu.finish()
    for one, (other,) in zip(made, contents.make_all([0, 1, 2]), strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (0x85A308D3243F6A88, 0x299F31D0A4093822, None),
    ],
)
def test_its_numbers_are_philox(library, counter, key, words):
    """The first line is among the known answers of the authors; a plain loop tells the second."""
    drawn = (ctypes.c_uint32 * 4)()
    library.draw_words(ctypes.c_uint64(counter), ctypes.c_uint64(key), drawn)
    assert list(drawn) == philox(counter, key)
    assert words is None or " ".join(f"{word:08x}" for word in drawn) == words


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 33, TILE + 2])
@pytest.mark.parametrize("dtype", [*DRAWN])
def test_normal_values_come_of_key_and_place_and_nothing_else_is_written(on_cpu, dtype, count):
    key = 2**62 + 12_345
    held = torch.full((3, count + 4), 9.0, dtype=dtype)
    on_cpu.draw_rows([held[0, :count], held[1, :count]], np.array([key, key + 1], np.uint64), 0.5)
    on_cpu.finish()
    assert (held[:, count:] == 9).all()
    assert (held[2] == 9).all()
    wanted = torch.tensor(draw_normal(key, count, 0.5), dtype=torch.float64)
    torch.testing.assert_close(held[0, :count].double(), wanted, rtol=1e-2, atol=1e-5)
    assert count < 4 or not torch.equal(held[0, :count], held[1, :count])


KEY = 2**62 + 12_345
PRECISE = {torch.float64: 1e-6, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("length", [1, 2, 3, 5, 64, 65, 100, 127, 1000, 4096])
def test_a_rows_order_has_each_place_once_and_looks_like_no_order(length):
    orders = [np.array(shuffle(length, philox(1 << 63 | row, KEY))) for row in range(3)]
    for order in orders:
        assert sorted(order) == list(range(length))
    if length >= 100:
        assert all((one == other).mean() < 0.1 for one, other in zip(orders, [*orders[1:], range(length)], strict=True))
        assert all((abs(np.diff(one)) == 1).mean() < 0.1 for one in orders)


@pytest.mark.parametrize(
    ("count", "columns"),
    [
        (1, 1),
        (2, 2),
        (3, 3),
        (7, 7),
        (64, 64),
        (600, 100),
        (1_001, 77),
        (1_000, 333),
        (TILE + 65, 128),
        (TILE + 9, TILE),
    ],
)
@pytest.mark.parametrize("dtype", [*MULTIPLIED])
def test_a_tensor_is_varied_as_a_plain_loop_says_and_nothing_else_is_written(on_cpu, dtype, count, columns):
    torch.manual_seed(0)
    base = torch.randn(count).to(dtype)
    held = torch.full((3, count + 4), 9.0, dtype=dtype)
    by = np.array([count // 3, 0, 0], np.uint64)
    changes = Changes(by, np.array([KEY, KEY, 5], np.uint64), np.array([False, True, False]), columns)
    on_cpu.vary_rows(base, [row[:count] for row in held], changes)
    on_cpu.finish()
    assert (held[:, count:] == 9).all()
    for row, sign, key, moved in zip(held, (1, -1, 1), (KEY, KEY, 5), by.tolist(), strict=True):
        places, factors = vary(count, moved, key, columns)
        wanted = base.double()[places] * torch.tensor(factors, dtype=torch.float64) * sign
        torch.testing.assert_close(row[:count].double(), wanted, rtol=PRECISE[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", [*MULTIPLIED])
def test_what_is_varied_looks_so_and_what_else_there_may_be_does_not(on_cpu, dtype):
    varied = vary_example(dtype, on_cpu, CPU)
    assert looks_varied(varied)
    rows, columns = varied.shape[1:]
    unshuffled = varied.gather(-1, find_places(varied).argsort(-1).expand(varied.shape))
    assert torch.equal(find_places(unshuffled), torch.arange(columns).expand(rows, columns))
    same_order = unshuffled[..., torch.randperm(columns)]
    doubled = varied.clone()
    doubled[:, 3, 5] = doubled[:, 3, 6]
    alike = varied / varied[-1] * torch.linspace(-0.9, -1.1, rows)[:, None]
    drifting = varied / varied[-1] * -torch.linspace(0.85, 1.2, columns)
    for wrong in (unshuffled, same_order, doubled, alike, drifting, varied * 1.4, -varied, varied * 0, varied.flip(0)):
        assert not looks_varied(wrong)
    varied[:, 3, 5] = float("nan")
    assert not looks_varied(varied)


def test_a_kernel_whose_varied_values_are_wrong_is_not_used(on_cpu, monkeypatch):
    """Each element in its place, and factors all the same: what a card that gets one instruction wrong may give."""
    monkeypatch.setattr(on_cpu, "vary_rows", lambda value, into, changes: on_cpu.move_rows(value, into, changes.by))
    assert not looks_varied(vary_example(torch.float32, on_cpu, CPU))


@pytest.mark.parametrize("dtype", [*DRAWN])
def test_what_is_drawn_looks_so_and_what_else_there_may_be_does_not(on_cpu, dtype):
    drawn = draw_example(dtype, None, CPU)
    assert looks_drawn(drawn)
    one = drawn[0]
    uniform = torch.rand(2, len(one), dtype=torch.float64) * 6 - 3
    for wrong in (drawn * 1.1, drawn + 0.5, torch.stack([one, one]), uniform, drawn * 0, torch.stack([one, one * -1])):
        assert not looks_drawn(wrong)
    drawn[0, 3] = float("nan")
    assert not looks_drawn(drawn)


def test_inputs_that_are_normal_and_random_are_drawn_anew_for_each_call(on_cpu):
    """Others are made of the base."""
    base = [torch.randn(64, 100), torch.randn(64, 100), torch.randn(8, 4, dtype=torch.float64)]
    ways = [VariedInput(name, "scaled", deviation=told) for name, told in (("x", 2.0), ("y", None), ("z", 1.0))]
    contents = Contents(base, ways, seed=9, base_number=2)
    into = [[torch.empty_like(one) for _ in range(4)] for one in base]
    contents.write_all([0, 1, 2, 0], into, on_cpu)
    on_cpu.finish()
    by_torch = contents.make_all([0, 1, 2, 0])
    for row, same in zip(zip(*into, strict=True), by_torch, strict=True):
        for made in (row, same):
            sizes = [
                (one.abs().sum() / value.abs().sum()).item() for one, value in zip(made[1:], base[1:], strict=True)
            ]
            assert 0.8 < min(sizes) <= max(sizes) < 1.25
    x = into[0]
    assert torch.equal(x[2], base[0])
    assert torch.equal(x[0], x[3])
    assert not torch.equal(x[0], by_torch[0][0])
    assert x[0].std() == pytest.approx(2.0, rel=0.05)
    assert abs(float((x[0] * x[1]).mean())) < 0.2
