// The kernels around each call of a gated chain. The first unmasks the inputs once a key has come. The last writes a
// digest of the outputs. `kernels.py` launches them.
//
// To make chain_kernels.ptx of this file (any nvcc; the header is lowered so that older drivers take it):
//   nvcc -ptx -O3 -arch=compute_75 chain_kernels.cu -o - | sed -e "s/^\.version.*/.version 7.0/" -e "s/sm_75/sm_70/" > chain_kernels.ptx

typedef unsigned u32;
typedef unsigned long long u64;

constexpr u64 LIMIT_NS = 20000000000ull;  // a kernel waits this long for a key
constexpr int MASK_ROUNDS = 10, HASH_ROUNDS = 6;
constexpr u32 ALL = 0xffffffffu;

struct Four { u32 a, b, c, d; };

// Rounds of Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
template <int ROUNDS>
__device__ inline Four mix(Four x, u32 k, u32 l) {
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    u64 first = 0xD2511F53ull * x.a, second = 0xCD9E8D57ull * x.c;
    x = Four{(u32)(second >> 32) ^ x.b ^ k, (u32)second, (u32)(first >> 32) ^ x.d ^ l, (u32)first};
    k += 0x9E3779B9u;
    l += 0xBB67AE85u;
  }
  return x;
}

__device__ inline void unmask_word(uint4* at, u64 index, u64 key) {
  Four mask = mix<MASK_ROUNDS>(Four{(u32)index, (u32)(index >> 32), 0, 0}, (u32)key, (u32)(key >> 32));
  uint4 word = *at;
  *at = uint4{word.x ^ mask.a, word.y ^ mask.b, word.z ^ mask.c, word.w ^ mask.d};
}

__device__ inline u64 now() {
  u64 time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__device__ inline u64 await_key(volatile u64* slot, volatile u64* ready, u64 count) {
  *ready = count;
  __threadfence_system();
  u64 key = *slot, begin = now();
  while (key == 0 && now() - begin < LIMIT_NS) key = *slot;
  return key;
}

extern "C" __global__ void flashinfer_bench_await_key(volatile u64* slot, u64* key, volatile u64* ready, u64 count) {
  *key = await_key(slot, ready, count);
}

extern "C" __global__ void flashinfer_bench_unmask(uint4* data, u64 words, const u64* key) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = blockIdx.x * (u64)blockDim.x + threadIdx.x; at < words; at += step) unmask_word(data + at, at, *key);
}

// Waits and unmasks in one kernel. For small inputs one block is quicker than a second launch.
extern "C" __global__ void flashinfer_bench_await_and_unmask(
    volatile u64* slot, uint4* data, u64 words, volatile u64* ready, u64 count) {
  __shared__ u64 key;
  if (threadIdx.x == 0) key = await_key(slot, ready, count);
  __syncthreads();
  for (u64 at = threadIdx.x; at < words; at += blockDim.x) unmask_word(data + at, at, key);
}

// The mixing key depends on the state. So the effect of several words is not the sum of their single effects.
__device__ inline Four absorb(Four state, uint4 word, u32 index, u32 segment) {
  Four mixed = mix<HASH_ROUNDS>(
      Four{state.a ^ word.x, state.b ^ word.y, state.c ^ word.z, state.d ^ word.w}, index ^ state.b, segment ^ state.d);
  return Four{mixed.a + word.x, mixed.b + word.y, mixed.c + word.z, mixed.d + word.w};
}

__device__ inline Four fold(Four one, Four other) {
  Four mixed = mix<HASH_ROUNDS>(
      Four{one.a ^ other.a, one.b ^ other.b, one.c ^ other.c, one.d ^ other.d}, other.b, other.d);
  return Four{mixed.a ^ one.a, mixed.b ^ one.b, mixed.c ^ one.c, mixed.d ^ one.d};
}

__device__ __noinline__ Four fold_warp(Four state) {
#pragma unroll 1
  for (int half = 16; half; half >>= 1) {
    Four other{__shfl_down_sync(ALL, state.a, half), __shfl_down_sync(ALL, state.b, half),
               __shfl_down_sync(ALL, state.c, half), __shfl_down_sync(ALL, state.d, half)};
    state = fold(state, other);
  }
  return state;
}

__device__ inline Four fold_block(Four state, Four* shared) {
  state = fold_warp(state);
  u32 warps = blockDim.x / 32;
  if (warps == 1) return state;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = state;
  __syncthreads();
  if (threadIdx.x < 32) state = fold_warp(threadIdx.x < warps ? shared[threadIdx.x] : Four{threadIdx.x, 0, 0, 0});
  return state;
}

__device__ __noinline__ uint4 read_tail(const unsigned char* from, u64 bytes) {
  u32 word[4] = {0, 0, 0, 0};
  for (u64 at = 0; at < bytes; ++at) word[at / 4] |= (u32)from[at] << 8 * (at % 4);
  return uint4{word[0], word[1], word[2], word[3]};
}

__device__ __noinline__ Four absorb_segment(Four state, const uint4* data, u64 bytes, u32 segment) {
  u64 words = bytes / 16, first = blockIdx.x * (u64)blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
  for (u64 at = first; at < words; at += step) state = absorb(state, data[at], (u32)at, segment);
  if (first == 0 && bytes % 16) {
    state = absorb(state, read_tail((const unsigned char*)(data + words), bytes % 16), ALL, segment);
  }
  return state;
}

// Writes a digest of all bytes of up to four pieces of memory to `digest`. No word of it is 0.
// `parts` has room for the state of each block. `count` is 0 before and after a launch.
extern "C" __global__ void __launch_bounds__(1024) flashinfer_bench_commit(
    const uint4* first, u64 first_bytes, const uint4* second, u64 second_bytes, const uint4* third, u64 third_bytes,
    const uint4* fourth, u64 fourth_bytes, volatile u64* digest, Four* parts, u32* count) {
  __shared__ Four shared[32];
  __shared__ bool is_last;
  Four state{threadIdx.x, blockIdx.x, blockDim.x, gridDim.x};
  state = absorb_segment(state, first, first_bytes, 0);
  state = absorb_segment(state, second, second_bytes, 1);
  state = absorb_segment(state, third, third_bytes, 2);
  state = absorb_segment(state, fourth, fourth_bytes, 3);
  state = fold_block(state, shared);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) {
      parts[blockIdx.x] = state;
      __threadfence();
      is_last = atomicAdd(count, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last || threadIdx.x >= 32) return;
    __threadfence();
    state = Four{threadIdx.x, 0, 0, 0};
    for (u32 at = threadIdx.x; at < gridDim.x; at += 32) {
      const volatile Four* part = parts + at;
      state = fold(state, Four{part->a, part->b, part->c, part->d});
    }
    state = fold_warp(state);
    if (threadIdx.x == 0) *count = 0;
  }
  if (threadIdx.x == 0) {
    digest[0] = ((u64)state.b << 32 | state.a) | 1;
    digest[1] = ((u64)state.d << 32 | state.c) | 1;
  }
}
