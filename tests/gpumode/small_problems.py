"""Thirteen problems in GPU MODE's form, each with a right and a wrong submission. They have every field of task.yml."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import yaml

UTILS: Final = """
import torch

def match_reference(data, output, reference, rtol=1e-05, atol=1e-08):
    expected = reference(data)
    if output.shape != expected.shape:
        return False, "shapes differ"
    near = torch.isclose(output.float(), expected.float(), rtol=rtol, atol=atol, equal_nan=True)
    return bool(near.all()), "values differ"

def make_match_reference(reference, **kwargs):
    return lambda data, output: match_reference(data, output, reference, **kwargs)
"""
HEAD: Final = """
import torch
from task import input_t, output_t
from utils import make_match_reference

def draw(seed, *shape):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.randn(*shape, device="cuda", dtype=torch.float32, generator=gen).contiguous()
"""
CHECK: Final = "\ncheck_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-4)\n"


class Problem(NamedTuple):
    """A problem, and the bodies of its functions."""

    arguments: str
    generate: str
    reference: str
    right: str
    wrong: str
    tests: list[dict[str, Any]]
    benchmarks: list[dict[str, Any]]
    further: Mapping[str, Any] = MappingProxyType({})
    check: str = CHECK
    head: str = HEAD
    task: str = "from typing import TypeVar\ninput_t = TypeVar('input_t')\noutput_t = TypeVar('output_t')\n"
    definitions: int = 1


PROBLEMS: Final = {
    "axpy_py": Problem(
        "n: int, seed: int",
        "return draw(seed, n, 2 * n), draw(seed + 1, 2 * n)",
        "x, y = data; return 3 * x + y",
        "#!POPCORN leaderboard axpy\n#!POPCORN gpus A100 H100\n\nx, y = data; return torch.add(y, x, alpha=3)",
        "x, y = data; return 3 * x",
        [{"n": 16, "seed": 1}],
        [{"n": 32, "seed": 2}, {"n": 64, "seed": 3}],
        {"ranking_by": "geom", "test_timeout": 200, "benchmark_timeout": 300, "ranked_timeout": 400},
    ),
    "out-of-place": Problem(
        "n: int, seed: int",
        "return draw(seed, n), torch.empty(n, device='cuda')",
        "x, out = data; out[...] = x.exp(); return out",
        "x, out = data; torch.exp(x, out=out); return out",
        "return data[1]",
        [{"n": 48, "seed": 4}],
        [{"n": 64, "seed": 5}, {"n": 96, "seed": 6}],
    ),
    "k_major": Problem(
        "m: int, n: int, k: int, l: int, seed: int",
        "return draw(seed, n, k).T, draw(seed, m, k), torch.empty(l, n, m, device='cuda').permute(2, 1, 0)",
        "b, a, c = data; return (a @ b)[..., None].repeat(1, 1, c.shape[2])",
        "b, a, c = data; assert b.stride(0) == 1 and c.stride(0) == 1; c[...] = (a @ b)[..., None]; return c",
        "b, a, c = data; c[...] = (a @ b)[..., None] + 0.01; return c",
        [{"m": 8, "n": 24, "k": 16, "l": 1, "seed": 1}],
        [{"m": 16, "n": 24, "k": 32, "l": 2, "seed": 1}],
        {"ranking_by": "mean", "multi_gpu": False},
    ),
    "layer": Problem(
        "**case",
        "rows, width, seed = case['rows'], case['width'], case['seed']\n"
        "    return draw(seed, rows, width), {'in.weight': draw(seed, width, 32), 'gain': draw(seed, 32)}, "
        "{'eps': 1e-3 + seed % 7 * 1e-3, 'heads': 4, 'kind': 'relu', 'dtype': torch.float32}",
        "x, w, c = data; return (x @ w['in.weight']).relu().to(c['dtype']) * w['gain'] + c['eps'] + c['heads']",
        "x, w, c = data; assert c['kind'] == 'relu'; "
        "return torch.relu(x @ w['in.weight']) * w['gain'] + (c['eps'] + c['heads'])",
        "x, w, c = data; return torch.relu(x @ w['in.weight']) * w['gain'] + c['heads']",
        [{"rows": 16, "width": 24, "seed": 1}],
        [{"rows": 24, "width": 32, "seed": 1}],
        {"gpus": ["B200", "H100"], "templates": {"Python": "template.py", "CUDA": "template_cuda.py"}},
    ),
    "config_object": Problem(
        "n: int, seed: int",
        "from task import Config\n    return Config(3), draw(seed, n, 16), draw(seed + 1, n, 16)",
        "config, keys, x = data; return config.scaled(keys) + x",
        "from task import Config\n    config, keys, x = data; assert type(config) is Config\n"
        "    return keys * config.scale + x",
        "config, keys, x = data; return keys + x",
        [{"n": 16, "seed": 1}],
        [{"n": 32, "seed": 1}],
        task="class Config:\n    def __init__(self, scale):\n        self.scale = scale\n"
        "    def scaled(self, x):\n        return x * self.scale\ninput_t = output_t = None\n",
    ),
    "groups": Problem(
        "m: tuple[int], seed: int",
        "return [(draw(seed + at, one, 16), draw(seed + at, one)) for at, one in enumerate(m)]",
        "return [a.sum(1) * b for a, b in data]",
        "return [torch.einsum('ij,i->i', a, b) for a, b in data]",
        "return [a.sum(1) for a, b in data]",
        [{"m": [16, 32], "seed": 1}],
        [{"m": [32, 48], "seed": 1}, {"m": [16, 16, 24], "seed": 1}],
        {"ranking_by": "geom"},
        "\ndef check_implementation(data, output):\n"
        "    pairs = zip(ref_kernel(data), output)\n"
        "    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in pairs), 'groups differ'\n",
        definitions=2,
    ),
    "orthogonal": Problem(
        "batch: int, n: int, case: str, seed: int",
        "x = draw(seed, batch, n, n); return x * torch.logspace(0, -2, n, device='cuda') if case == 'graded' else x",
        "return torch.linalg.qr(data)",
        "q, r = torch.linalg.qr(data); return -q, -r",
        "return torch.linalg.qr(data)[0], torch.linalg.qr(data)[1] + 0.1",
        [{"batch": 2, "n": 16, "case": "dense", "seed": 1}],
        [{"batch": 2, "n": 24, "case": "graded", "seed": 1}],
        {"ranking_by": "geom", "libraries": []},
        "\ndef check_implementation(data, output):\n"
        "    q, r = output\n"
        "    eye = torch.eye(q.shape[-1], device=q.device)\n"
        "    near = (q @ r - data).abs().max() < 1e-3 and (q.mT @ q - eye).abs().max() < 1e-3\n"
        "    return bool(near), 'q @ r is far from the data'\n",
    ),
    "histogram": Problem(
        "size: int, contention: int, seed: int",
        "torch.manual_seed(seed); x = torch.randint(0, 256, (size,), device='cuda', dtype=torch.uint8)\n"
        "    x[torch.rand(size, device='cuda') < contention / 100] = 7; return x",
        "return torch.bincount(data, minlength=256)",
        "i = data.long(); return i.new_zeros(256).scatter_add_(0, i, torch.ones_like(i)).int()",
        "return torch.bincount(data, minlength=256).clamp(max=3)",
        [{"size": 1024, "contention": 10, "seed": 1}],
        [{"size": 2048, "contention": 40, "seed": 1}],
        check="\ndef check_implementation(data, output):\n"
        "    return '' if torch.equal(output, ref_kernel(data)) else 'counts differ'\n",
    ),
    "quant": Problem(
        "n: int, most: float, axes: list, seed: int",
        "x = draw(seed, n, 32).bfloat16() * most; return x, torch.empty_like(x), torch.empty(n, device='cuda')",
        "x, q, s = data; s[...] = x.float().abs().amax(1); q[...] = (x / s[:, None]).bfloat16(); return q, s",
        "x, q, s = data; s[:] = x.abs().amax(1).float(); return x.float() / s[:, None], s",
        "x, q, s = data; s[:] = x.abs().amax(1).float(); q[:] = x; return q, s",
        [{"n": 16, "most": 0.5, "axes": [None, inf], "seed": 1}],
        [{"n": 32, "most": 0.5, "axes": [None, inf], "seed": 1}],
        check="\ndef check_implementation(data, output):\n"
        "    good = all(torch.allclose(a.float(), b.float(), rtol=2e-2) for a, b in zip(output, ref_kernel(data)))\n"
        "    return (good, '' if good else 'q or s differs')\n",
    ),
    "bias": Problem(
        "n: int, has_bias: bool, seed: int",
        "return draw(seed, n, 16), draw(seed, 16) if has_bias else None",
        "x, bias = data; y = x.softmax(1); return {'y': y if bias is None else y + bias, 'x': x.sin()}",
        "x, bias = data; y = torch.softmax(x, 1); return {'x': x.sin(), 'y': y if bias is None else y + bias}",
        "x, bias = data; y = torch.softmax(x, 1); return {'x': y if bias is None else y + bias, 'y': x.sin()}",
        [{"n": 16, "has_bias": True, "seed": 1}, {"n": 16, "has_bias": False, "seed": 1}],
        [{"n": 48, "has_bias": True, "seed": 1}, {"n": 32, "has_bias": False, "seed": 1}],
        {"ranking_by": "geom"},
        definitions=2,
    ),
    "prefix": Problem(
        "n: int",
        "return torch.rand(n, device='cuda')",
        "return data.double().cumsum(0).float()",
        "return torch.cumsum(data, 0, out=data)",
        "return data.cumsum(0) - data",
        [{"n": 64}],
        [{"n": 128}],
        {"seed": 7, "config": {"main": "judge.py"}},
        "\ndef check_implementation(data, output):\n"
        "    return match_reference(data, output, ref_kernel, rtol=1e-5 * len(data), atol=1e-5)\n",
        "import torch\nfrom utils import match_reference\n",
        "",
    ),
    "codes": Problem(
        "n: int, seed: int = 1",
        "return draw(seed, n, 32), 0.05",
        "return (data[0] / data[1]).round().clamp(-9, 9).to(torch.int8)",
        "return (data[0] / data[1]).floor().clamp(-9, 9).to(torch.int16)",
        "return (data[0] / data[1] + 2).round().clamp(-9, 9).to(torch.int8)",
        [{"n": 16}],
        [{"n": 32, "seed": 1}],
        check="\ncheck_implementation = make_match_reference(ref_kernel, rtol=0.0, atol=1.0)\n",
    ),
    "ragged": Problem(
        "rows: int, seed: int",
        "x = draw(seed, rows, 8); kept = x[:, 0] > 0; assert kept.any().item()\n"
        "    return x, kept, torch.zeros(8, device='cuda')",
        "x, kept, total = data; total += x[kept].sum(0); return total",
        "x, kept, total = data; total += (x * kept[:, None]).sum(0); return total",
        "x, kept, total = data; total += x.sum(0); return total",
        [{"rows": 32, "seed": 1}],
        [{"rows": 48, "seed": 1}],
    ),
}


def write_problems(root: Path, problems: Mapping[str, Problem] = PROBLEMS) -> None:
    """Write problems, with their submissions, as two sets that share utils.py."""
    (root / "first").mkdir(parents=True)
    (root / "first/utils.py").write_text(UTILS)
    for at, (name, problem) in enumerate(problems.items()):
        folder = root / ("first" if at % 2 == 0 else "second") / name
        write_problem(folder, problem)
        for kind, body in (("correct", problem.right), ("wrong", problem.wrong)):
            head, _, body = body.rpartition("\n\n")
            (folder / f"solutions/{kind}").mkdir(parents=True)
            text = f"{head}\nimport torch\nfrom utils import match_reference\n\ndef custom_kernel(data):\n    {body}\n"
            (folder / f"solutions/{kind}/one.py").write_text(text)


def write_problem(folder: Path, problem: Problem) -> None:
    """Write task.yml, reference.py, task.py and eval.py of a problem."""
    folder.mkdir(parents=True)
    names = {"reference.py": "reference.py", "utils.py": "../../first/utils.py", "eval.py": "eval.py"}
    names |= {"submission.py": "@SUBMISSION@"} | ({"task.py": "task.py"} if problem.task else {})
    task = {
        "files": [{"name": name, "source": source} for name, source in names.items()],
        "lang": "py",
        "config": {"main": "eval.py"},
        "description": f"What {folder.name} does.",
        "tests": problem.tests,
        "benchmarks": problem.benchmarks,
        **problem.further,
    }
    (folder / "task.yml").write_text(yaml.safe_dump(task))
    functions = f"\ndef generate_input({problem.arguments}):\n    {problem.generate}\n"
    functions += f"\ndef ref_kernel(data):\n    {problem.reference}\n"
    (folder / "reference.py").write_text(problem.head + functions + problem.check)
    (folder / "task.py").write_text(problem.task)
    (folder / "eval.py").write_text("raise SystemExit('a harness of another engine')\n")
