"""Whose kernels the names in the clock's records are. Names are as CUPTI reports them, mangled if they are C++."""

import pytest

from flashinfer_bench.timing.libraries import (
    MAX_NAMES,
    OTHERS,
    describe_kernels,
    find_library_kernels,
    is_library_kernel,
    keep_names,
)
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.worker.kernel_names import answer_launches, demangle
from flashinfer_bench.worker.protocol import digest_of

pytestmark = pytest.mark.cpu
LOOP = "void at::native::vectorized_elementwise_kernel<4, "
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<"
FILL = f"{LOOP}at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>)"
CAST = f"{LOOP}at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda(float)#1}}, std::array"
ADD = f"{LOOP}at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)"
GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
LIBRARIES = [
    GEMM,
    FILL,
    CAST,
    ADD,
    "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_warpgroupsize2x1x1_kernel__5x_cublas",
    "ampere_sgemm_128x64_nn",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    "cutlass_80_simt_sgemm_128x64_8x5_nn_align1",
    "_ZN7cutlass7Kernel2I68cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8EEvNT_6ParamsE",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, true>(cublasLt::cublasSplitKParams<float>)",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, cublasGemvParamsEx<int> >(int)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_kernel0_0",
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, unsigned int)",
    "void pytorch_flash::flash_fwd_kernel<Traits<128> >(pytorch_flash::Flash_fwd_params)",
    "void at::native::(anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(at::T&)",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float> >",
    f"{LOOP}void at::native::compare_scalar_kernel<float>(at::TensorIteratorBase&)::{{lambda(float)#1}}, std::array",
    f"{REDUCE}float, at::native::func_wrapper_t<float, at::native::sum_functor<float>::operator()(at::TensorIterator&)",
    f"{REDUCE}c10::complex<float>, at::native::func_wrapper_t<c10::complex<float>, void at::native::f<float>()::",
    f"{REDUCE}c10::BFloat16, at::native::MeanOps<c10::BFloat16, float>, unsigned int, c10::BFloat16, 4, 4> >(",
]
OWN = [
    "matmul_kernel",
    "_matmul_kernel_0d1d2d",
    "triton_poi_fused_add_0",
    "kernel_cutlass_gemm_tensorptrbf16gmem_0",
    "_Z4gemmPKfS0_Pfi",
    "_Z22ampere_sgemm_128x64_nnPf",  # of C++, and cuBLAS's names have no signature
    "_Z9nvjet_oldPf",
    "_ZN3own6kernelIN2at6native13BinaryFunctorEEEvT_",
    "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<Mma, Epilogue> >(cutlass::gemm::kernel::Gemm::Params)",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int> > >(Params)",
    "void cutlass::Kernel2<cutlass_tensorop_s16816gemm_128x128>(cutlass_tensorop_s16816gemm_128x128::Params)",
    f"{LOOP}my_op(at::Tensor)::{{lambda(float)#1}}, std::array<char*, 2ul> >(int)",
    f"{LOOP}Mine, std::array<char*, 2ul> >(int, Mine, std::array<char*, 2ul>)",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<my_op(at::Tensor)::{lambda()#1}>",
    "void at::native::reduce_kernel<512, 1, my::Op>(my::Op)",
    f"{REDUCE}float, my::Op<float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, my::Op<float> >)",
    f"{REDUCE}float, at::native::func_wrapper_t<float, void my_op<float>(at::Tensor)::{{lambda(float, float)#1}}>",
    "sm90_gemm",
    "hopper_gemm_kernel",
    OTHERS,
]


@pytest.mark.parametrize(("names", "is_library"), [(LIBRARIES, True), (OWN, False)], ids=["library", "own"])
def test_a_name_counts_as_a_librarys_only_if_user_code_hardly_ever_has_it(names, is_library):
    assert [name for name in names if is_library_kernel(demangle(name)) is not is_library] == []


@pytest.mark.parametrize(
    ("names", "whose"),
    [
        ([], "unknown"),
        ([GEMM], "all"),
        ([GEMM, ADD, FILL, "MEMSET"], "all"),
        ([GEMM, "matmul_kernel"], "some"),
        ([ADD, "matmul_kernel"], "some"),
        (["matmul_kernel"], "none"),
        (["matmul_kernel", FILL, CAST, "MEMCPY", "MEMSET"], "none"),
        ([CAST, "MEMCPY"], "all"),
        (["MEMCPY"], "none"),
        ([GEMM, OTHERS], "unknown"),
        ([FILL, OTHERS], "unknown"),
        ([GEMM, "matmul_kernel", OTHERS], "some"),
        (["matmul_kernel", OTHERS], "unknown"),
        (["MEMCPY", OTHERS], "unknown"),
    ],
)
def test_fills_copies_and_casts_do_not_count_beside_a_kernel_and_names_that_were_cut_decide_nothing(names, whose):
    assert find_library_kernels(names) == whose


def test_launches_are_added_up_over_the_samples_by_the_digests_that_the_worker_has_named():
    kinds = [(("MEMSET", 1), ("_Z4gemmPKfS0_Pfi", 2)), ((GEMM, 1),), ()]
    names = answer_launches(kinds)
    assert [*names.values()] == [{"gemm(float const*, float const*, float*, int)": 2, "MEMSET": 1}, {GEMM: 1}]
    samples = [Sample(1, 1, operations=len(kind), launched=((digest_of(kind), 1),)) for kind in kinds for _ in range(3)]
    found = describe_kernels(samples, names)
    assert found["library_kernels"] == "some"
    assert sorted(found["kernels"].values()) == [3, 3, 6]
    assert describe_kernels(samples[:3], {}) == {"kernels": {OTHERS: 3}, "library_kernels": "unknown"}
    assert describe_kernels([Sample(1, 1)], {}) == {"library_kernels": "unknown"}


def test_the_most_frequent_names_are_kept_and_the_others_are_counted_together():
    kept = keep_names({str(at): at for at in range(1, MAX_NAMES + 3)})
    assert (len(kept), kept[OTHERS], kept[str(MAX_NAMES + 2)]) == (MAX_NAMES + 1, 1 + 2, MAX_NAMES + 2)
