"""References against what the library's kernels calculate, written down again from its sources."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.routines.case.generated_entry import generate_entry
from flashinfer_bench.routines.code import moe_torch
from flashinfer_bench.routines.code.formats import from_tiles
from flashinfer_bench.routines.table import find_routine
from tests.routines.judged import JudgedRoutine, load, make_case
from tests.routines.small import SMALL

pytestmark = pytest.mark.cpu

EXPERTS = "--num_tokens 4 --hidden_size 128 --intermediate_size 128 --num_experts 4"


def test_a_norm_multiplies_block_scales_by_the_global_one_and_uses_the_range_of_e4m3(tmp_path):
    job = JudgedRoutine("rmsnorm_fp4quant", tmp_path, "--batch_size 32 --hidden_size 1024 --use_global_scale")
    x, weight, factor = job.inputs
    scales, plain = (job.honest(x, weight, one)[1].float() for one in (factor, factor**0))
    assert torch.allclose(scales, plain * factor, rtol=0.13)  # both are rounded to e4m3
    assert 16 < float(scales.median()) < float(scales.max()) <= 448


def modulate(gate, scale, shift):
    """Return a LayerNorm of the rounded sum of a diffusion transformer, with these parts of the time embedding."""

    def run(x, residual, temb, table, gamma=1, beta=0):
        parts = (temb.double() + table.double()).unbind(2)
        total = (residual.double() + x.double() * (1 if gate is None else parts[gate])).bfloat16().double()
        deviation = (total.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
        norm = (total - total.mean(-1, keepdim=True)) / deviation * gamma + beta
        norm = norm if scale is None else norm * (1 + parts[scale]) + parts[shift]
        return [total.bfloat16(), norm.bfloat16()]

    return run


def turn_video(qkv, q_weight, k_weight):
    """Normalise tokens of 2 frames of 3 x 4 patches, round, then rotate pair by pair in 2 heads of 24 + 20 + 20."""
    rows = qkv.view(2, 24, 3, 2, 64)
    outputs = []
    for x, weight in ((rows[:, :, 0].double(), q_weight), (rows[:, :, 1].double(), k_weight)):
        norm = x / (x.square().mean((2, 3), keepdim=True) + 1e-6).sqrt() * weight.view(2, 64)
        norm = norm.bfloat16().double()
        turned = norm.clone()
        for token in range(24):
            for place, first, width in ((token // 12, 0, 24), (token // 4 % 3, 24, 20), (token % 4, 44, 20)):
                for at in range(0, width, 2):
                    angle = torch.tensor(place * 1e4 ** (-at / width))
                    a, b = norm[:, token, :, first + at], norm[:, token, :, first + at + 1]
                    turned[:, token, :, first + at] = a * angle.cos() - b * angle.sin()
                    turned[:, token, :, first + at + 1] = a * angle.sin() + b * angle.cos()
        outputs.append(turned.bfloat16())
    return [*outputs, rows[:, :, 2].clone()]


def normalise_in_steps(x, weight):
    return (x.float() / (x.float().square().mean(-1, keepdim=True) + 1e-6).sqrt()).bfloat16() * weight


def add_in_steps(x, residual, weight):
    return [normalise_in_steps(x + residual, weight), x + residual]


def activate_in_steps(x, weight):
    return [torch.nn.functional.silu(normalise_in_steps(x, weight))]


def round_twice(x, gamma, beta, scale):
    norm = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], gamma, beta, eps=1e-6).bfloat16().float()
    return [(norm * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn)]


DIT = "--batch_size 2 --hidden_size 2 --dit_mode"


@pytest.mark.parametrize(
    ("routine", "flags", "kernel"),
    [
        ("fused_dit_layernorm", f"{DIT} gate_residual_gamma_beta", modulate(2, None, None)),
        ("fused_dit_layernorm", f"{DIT} gate_residual_scale_shift", modulate(5, 1, 0)),
        ("fused_dit_layernorm", f"{DIT} residual_scale_shift", modulate(None, 4, 3)),
        ("fused_qk_rmsnorm_rope", SMALL["fused_qk_rmsnorm_rope"], turn_video),
        ("layernorm_quant", "--batch_size 64 --hidden_size 1024", round_twice),
        ("fused_add_rmsnorm", "--batch_size 64 --hidden_size 1024", add_in_steps),
        ("fused_rmsnorm_silu", "--batch_size 64 --hidden_size 1024", activate_in_steps),
    ],
)
def test_a_norm_kernel_passes_with_its_own_roundings(routine, flags, kernel, tmp_path):
    assert JudgedRoutine(routine, tmp_path, flags).status(kernel) == "PASSED"


def normalise(out, input, weight, eps, enable_pdl):  # noqa: A002 (the library's name)
    wide = input.float()
    out.copy_(wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.float())


def add_and_normalise(input, residual, weight, eps, enable_pdl):  # noqa: A002
    normalise(input, residual.add_(input), weight, eps, enable_pdl)


@pytest.mark.parametrize("backend", ["cuda", "cute-dsl"])
@pytest.mark.parametrize("routine", ["rmsnorm", "fused_add_rmsnorm"])
def test_the_cuda_kernels_of_a_norm_are_called_past_cute_dsl_and_inputs_stay(routine, backend, monkeypatch, tmp_path):
    kernels = SimpleNamespace(rmsnorm=normalise, fused_add_rmsnorm=add_and_normalise)
    norm = SimpleNamespace(norm=SimpleNamespace(get_norm_module=lambda: kernels))
    monkeypatch.setitem(sys.modules, "flashinfer", norm if backend == "cuda" else kernels)
    job = JudgedRoutine(routine, tmp_path)
    solution = generate_entry(find_routine(routine), job.case, [backend]).solutions[backend]
    kept = [one.clone() for one in job.inputs]

    def run(*inputs):
        outputs = [torch.empty_like(one) for one in job.baseline.outputs[0]]
        load(solution)["run"](*inputs, *outputs)
        return outputs

    assert job.status(run) == "PASSED"
    assert all(map(torch.equal, job.inputs, kept))


@pytest.mark.parametrize("more", ["", "--quantized_input"])
def test_the_activation_scales_of_nvfp4_experts_are_scalars_as_the_library_asks(more, monkeypatch, tmp_path):
    seen = []
    moe = SimpleNamespace(cutlass_fused_moe=lambda *given, **_: seen.extend(given[6]))
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(fused_moe=moe, ActivationType=int))
    job = JudgedRoutine("cutlass_fused_moe", tmp_path, f"{EXPERTS} --top_k 2 --cutlass_variant nvfp4 {more}")
    entry = generate_entry(find_routine("cutlass_fused_moe"), job.case, ["cutlass"])
    load(entry.solutions["cutlass"])["run"](*job.inputs, torch.empty(4, 128, dtype=torch.bfloat16))
    assert [scale.ndim for scale in seen] == [0, 3, 1, 0, 3, 1]


def add_updates(x, w1, w2, tokens, experts, adapters, factors):
    """Go from pair to pair and from slice to slice, and round between the products."""
    out = torch.zeros(len(x), len(w2), w2.shape[3], dtype=torch.float64)
    for token, expert, factor in zip(tokens.tolist(), experts.tolist(), factors.tolist(), strict=True):
        for at, (down, up) in enumerate(zip(w1, w2, strict=True)):
            low = down[adapters[token], expert].double() @ x[token].double()
            out[token, at] += factor * (up[adapters[token], expert].double() @ low.to(x.dtype).double())
    return [out.flatten(1).float()]


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def decode(codes, scales):
    raw = codes.view(torch.uint8)[..., None].int()
    both = torch.cat((raw & 15, raw >> 4), dim=-1).flatten(-2)
    values = E2M1[both & 7] * (1 - (both >> 3) * 2)
    return (values.unflatten(-1, (scales.shape[-1], -1)) * scales.float()[..., None]).flatten(-2)


def to_nvfp4_and_back(x):
    """Round to the nearest 4-bit float in each block of 16, whose scale is an e4m3 number."""
    blocks = x.float().unflatten(-1, (-1, 16))
    scale = (blocks.abs().amax(dim=-1, keepdim=True) / 6).to(torch.float8_e4m3fn).float()
    nearest = (blocks[..., None].abs() / scale[..., None] - E2M1).abs().argmin(dim=-1)
    return (E2M1[nearest] * blocks.sign() * scale).flatten(-2)


def send(offset, activate, rounded):
    """Return a kernel of nvfp4 experts that sends one token after the other through its experts."""

    def run(*inputs):
        *x, experts, factors, w1, scale1, factor1, w2, scale2, factor2 = inputs
        tokens = decode(*x) if len(x) == 2 else rounded(x[0].float())
        out = torch.zeros(len(tokens), w2.shape[1])
        for token, chosen in enumerate((experts - offset).tolist()):
            for place, expert in enumerate(chosen):
                if 0 <= expert < len(w1):
                    first = decode(w1[expert], scale1[expert]) @ tokens[token] * factor1[expert]
                    done = decode(w2[expert], scale2[expert]) @ rounded(activate(first)) * factor2[expert]
                    out[token] += factors[token, place] * done
        return [out.bfloat16()]

    return run


def from_tiles_first(kernel):
    def run(*inputs):
        scales = torch.float8_e4m3fn
        plain = (torch.stack([from_tiles(one, *one.shape) for one in x]) if x.dtype == scales else x for x in inputs)
        return kernel(*plain)

    return run


def to_mxfp8_and_back(x):
    blocks = x.unflatten(-1, (-1, 32))
    scale = 2 ** (blocks.abs().amax(dim=-1, keepdim=True) / 448).log2().ceil()
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def choose_and_send(logits, _bias, x, scale, w1, scale1, w2, scale2):
    """Take the softmax of all experts first, and let the weights of the two best add up to 1."""
    tokens = (x.float().unflatten(-1, (-1, 32)) * scale.float()[..., None]).flatten(-2)
    factors, experts = logits.float().softmax(dim=-1).topk(2)
    weights, one = factors / factors.sum(dim=-1, keepdim=True), torch.ones(len(w1))
    return send(0, swiglu, to_mxfp8_and_back)(tokens, experts, weights, w1, scale1, one, w2, scale2, one)


def relu2(x):
    return x.clamp(min=0) ** 2


def swiglu(x):
    return x[:128] * x[128:] * torch.sigmoid(x[128:])


def geglu(x):
    inner = (2 / torch.pi) ** 0.5 * (x[128:] + 0.044715 * x[128:] ** 3)
    return x[:128] * x[128:] * 0.5 * (1 + torch.tanh(inner))


@pytest.mark.parametrize(
    ("routine", "more", "kernel"),
    [
        ("bgmv_moe", "", add_updates),
        ("trtllm_fp4_block_scale_moe", " --activation-type Swiglu --fp4_mode mxfp4_mxfp8", choose_and_send),
        ("unified_nvfp4_moe", "", send(1, swiglu, to_nvfp4_and_back)),
        ("cute_dsl_fp4_block_scale_moe", " --activation-type GegluTanh", send(1, geglu, to_nvfp4_and_back)),
        ("cute_dsl_fp4_block_scale_moe", " --activation-type Relu2", send(1, relu2, to_nvfp4_and_back)),
        ("cutlass_fused_moe", "", from_tiles_first(send(0, swiglu, to_nvfp4_and_back))),
        ("b12x_fused_moe", "", send(0, swiglu, to_nvfp4_and_back)),
        ("b12x_fused_moe", " --activation-type Relu2", send(0, relu2, to_nvfp4_and_back)),
        ("b12x_fused_moe", " --b12x_quant_mode w4a16", send(0, swiglu, lambda x: x.bfloat16().float())),
    ],
)
def test_a_kernel_of_experts_passes_with_its_own_roundings(routine, more, kernel, tmp_path):
    assert JudgedRoutine(routine, tmp_path, SMALL[routine] + more).status(kernel) == "PASSED"


@pytest.mark.parametrize(("method", "uses"), [("deepseek_v3", True), ("llama4", False), ("renormalize", False)])
def test_only_deepseeks_routing_adds_the_bias_and_reads_its_bytes(method, uses, tmp_path):
    flags = f"{EXPERTS} --top_k 1 --routing_method {method}"
    job = JudgedRoutine("trtllm_fp8_per_tensor_scale_moe", tmp_path, f"{flags} --use_routing_bias")
    logits, bias, *rest = job.inputs
    strong = torch.arange(len(bias), dtype=torch.float32) * 100
    assert torch.equal(job.honest(logits, bias, *rest)[0], job.honest(logits, strong, *rest)[0]) != uses
    assert (job.case.cost.bytes > make_case("trtllm_fp8_per_tensor_scale_moe", flags).cost.bytes) == uses


def test_causal_attention_is_that_of_torch(tmp_path):
    sizes = "--batch_size 2 --s_qo 4 --s_kv 9 --num_qo_heads 4 --num_kv_heads 2 --head_dim_qk 16 --causal"
    job = JudgedRoutine("BatchPrefillWithRaggedKVCacheWrapper", tmp_path, sizes)

    def run(*inputs):
        q, k, v = (one.float().unflatten(0, (2, -1)).transpose(1, 2) for one in inputs[:3])
        seen = torch.ones(4, 9, dtype=torch.bool).tril(5)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        return [out.transpose(1, 2).flatten(0, 1).to(torch.bfloat16)]

    assert job.status(run) == "PASSED"


@pytest.mark.parametrize("more", ["", "--interleave"])
def test_rope_turns_pairs_like_complex_numbers(more, tmp_path):
    sizes = "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32"
    job = JudgedRoutine("apply_rope_pos_ids", tmp_path, f"{sizes} {more}")

    def turn(x, angle):
        pairs = x.double().unflatten(-1, (-1, 2) if more else (2, -1))
        turned = torch.view_as_complex((pairs if more else pairs.mT).contiguous()) * torch.polar(torch.ones(1), angle)
        real = torch.view_as_real(turned)
        return (real if more else real.mT).flatten(-2).to(x.dtype)

    def run(q, k, pos_ids):
        angle = pos_ids[:, None, None] * 1e4 ** (-torch.arange(16) / 16)
        return [turn(q, angle), turn(k, angle)]

    assert job.status(run) == "PASSED"


def test_a_power_of_two_is_the_smallest_that_brings_its_block_within_the_limit(tmp_path):
    job = JudgedRoutine("mxfp8_quantize", tmp_path, "--m 8 --k 128 --no_sf_swizzled_layout")
    (x,) = job.inputs
    codes, scales = job.honest(x)
    factor = 2 ** (scales.view(8, 4, 1).double() - 127)
    largest = (x.view(8, 4, 32) / factor).abs().amax(dim=-1)
    assert bool(((largest > 224) & (largest <= 448)).all())
    assert torch.allclose(codes.view(8, 4, 32).double() * factor, x.view(8, 4, 32).double(), rtol=2**-4, atol=1e-2)


@pytest.mark.parametrize(
    ("routine", "flags", "block"),
    [
        ("mm_mxfp8", "--m 150 --n 40 --k 192", 32),
        ("bmm_mxfp8", "--batch_size 3 --m 50 --n 70 --k 160", 32),
        ("mm_bf16_fp4", "--m 5 --n 192 --k 112", 16),
    ],
)
def test_scales_in_tiles_belong_to_the_blocks_that_the_library_reads(routine, flags, block, tmp_path):
    job = JudgedRoutine(routine, tmp_path, flags)

    def widen(values, scale):
        if values.dtype == torch.float4_e2m1fn_x2:
            codes = values.view(torch.uint8).int()
            codes = torch.stack((codes % 16, codes // 16), dim=-1).flatten(-2)
            sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)[codes % 8]
            values = torch.where(codes < 8, sizes, -sizes)
        rows = values.double().flatten(0, -2)
        row = torch.arange(len(rows))[:, None]
        column = torch.arange(rows.shape[1])[None] // block
        wide = -(-rows.shape[1] // block // 4)
        place = (row // 128 * wide + column // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
        return (rows * scale.flatten()[place].double()).view(values.shape)

    def run(*inputs):
        given = dict(zip(job.case.inputs, inputs, strict=True))
        a, b = (widen(given[x], given[s]) if (s := f"{x}_scale") in given else given[x].double() for x in "ab")
        return [(a @ b.mT * given.get("alpha", 1)).to(torch.bfloat16)]

    assert job.status(run) == "PASSED"


def test_a_row_of_nvfp4_has_a_scale_that_spreads_it_over_the_range(tmp_path):
    job = JudgedRoutine("nvfp4_quantize", tmp_path, "--m 8 --k 256 --per_token_activation --global_scale 0.25")
    x, factor = job.inputs
    codes, blocks, rows = job.honest(x * torch.tensor([2.0**at for at in range(8)])[:, None].to(x.dtype), factor)
    assert torch.equal(rows, (x.float().abs().amax(dim=1) * 0.25) * 2.0 ** torch.arange(8))
    same_codes, same_blocks, _ = job.honest(x, factor)
    assert torch.equal(codes.view(torch.uint8), same_codes.view(torch.uint8))
    assert torch.equal(blocks, same_blocks)


def test_deepseeks_experts_are_the_best_ones_of_the_best_groups(monkeypatch):
    for name, value in {"N_GROUP": 4, "TOPK_GROUP": 2, "TOP_K": 3}.items():
        monkeypatch.setattr(moe_torch, name, value)
    generator = torch.Generator().manual_seed(3)  # equal sums may come in any order
    scores, bias = torch.rand(20, 16, generator=generator), torch.rand(16, generator=generator)
    found, weights = moe_torch.route_in_groups(scores, bias)
    for row, chosen in zip((scores + bias).tolist(), found.tolist(), strict=True):
        groups = sorted(range(4), key=lambda at: -sum(sorted(row[4 * at : 4 * at + 4])[-2:]))[:2]
        experts = [one for one in range(16) if one // 4 in groups]
        assert chosen == sorted(experts, key=lambda one: -row[one])[:3]
    assert torch.allclose(weights, 2.5 * torch.nn.functional.normalize(scores.gather(1, found), p=1, dim=1))


def attend_naively(q, blocks, k, v, topk, is_causal):
    """Attention of one sequence, query by query; blocks [heads, queries] of lists, or index queries and keys."""
    out, (count, heads, _), length = torch.empty_like(q), q.shape, len(k)
    for query in range(count):
        limit = length - count + query + 1 if is_causal else length
        for head in range(heads):
            shared = head // (heads // k.shape[1])
            chosen = blocks[shared][query] if isinstance(blocks, list) else None
            if chosen is None:
                scores = (blocks[1][:limit, shared].float() @ blocks[0][query, shared].float()).split(128)
                best = sorted(range(len(scores) - 1), key=lambda at: -float(scores[at].max()))
                chosen = [len(scores) - 1, *best[: topk - 1]]
            seen = [key for block in chosen if block >= 0 for key in range(block * 128, min(block * 128 + 128, limit))]
            shares = (k[seen, shared].double() @ q[query, head].double() / 128**0.5).softmax(0)
            out[query, head] = shares @ v[seen, shared].double()
    return out


@pytest.mark.parametrize(
    ("routine", "layout", "mask"),
    [
        ("MSASparseAttention", "paged", "--causal"),
        ("MSASparseAttention", "packed", "--no-causal"),
        ("MSAPipeline", "flat", "--no-causal"),
        ("MSAPipeline", "paged", "--causal"),
    ],
)
def test_sparse_attention_is_that_of_each_query_by_itself(routine, layout, mask, tmp_path):
    keys, topk = (2300, 16) if routine == "MSAPipeline" else (260, 2)
    flags = f"--batch_size 2 --s_qo 3 --s_kv {keys} --num_qo_heads 2 --num_kv_heads 1 --topk {topk}"
    job = JudgedRoutine(routine, tmp_path, f"{flags} --kv_layout {layout} {mask}")

    def run(*inputs):
        given = dict(zip(job.case.inputs, inputs, strict=True))
        k, v = given["kv_cache"].split(128, dim=-1) if layout == "packed" else (given["k"], given["v"])
        parts = []
        for at in range(2):
            rows, pages = slice(3 * at, 3 * at + 3), given["block_tables"][at].long() if layout != "flat" else None

            def read(cache, at=at, pages=pages):
                if pages is None:
                    return cache[keys * at : keys * (at + 1)]
                return torch.cat([page.transpose(0, 1) for page in cache[pages]])[:keys]

            blocks = given["blocks"][:, rows].tolist() if "blocks" in given else None
            blocks = blocks or (given["index_q"][rows], read(given["index_k"]))
            parts.append(attend_naively(given["q"][rows], blocks, read(k), read(v), topk, mask == "--causal"))
        return [torch.cat(parts)]

    assert job.status(run) == "PASSED"


def test_a_mixed_collective_adds_up_groups_and_orders_them_by_node(tmp_path):
    sizes = "--local_tp_size 2 --local_dp_size 2 --inter_tp_size 2 --inter_dp_size 2"
    job = JudgedRoutine("mixed_comm", tmp_path, f"--local_bs_list 3 --hidden_size 4 --dtype bfloat16 {sizes}")

    def run(x):
        groups = {}
        for rank, tokens in enumerate(x):  # nodes of 4 ranks: groups of 2 neighbours, on 2 neighbouring nodes
            groups.setdefault((rank // 8, rank % 4 // 2), []).append(tokens.double())
        return [torch.cat([torch.stack(groups[key]).sum(0) for key in sorted(groups)]).bfloat16()]

    assert job.status(run) == "PASSED"
