// Writes the contents of many tensors in one launch. `writer.py` launches it.
//
// To make content_kernel.ptx of this file (any nvcc; the header is lowered so that older drivers take it):
//   nvcc -ptx -O3 -arch=compute_75 content_kernel.cu -o - | sed -e "s/^\.version.*/.version 7.0/" -e "s/sm_75/sm_70/" > content_kernel.ptx
#include <cuda_fp16.h>

typedef unsigned u32;
typedef unsigned long long u64;

enum Kind : u64 { FILL, MOVE, MUL_BF16, MUL_F16, MUL_F32, MUL_F64, DRAW_BF16, DRAW_F16, DRAW_F32 };

struct Piece {
  u64 first_tile;  // tiles of all pieces before this one
  u64 kind;
  u64 source;      // address; of FILL the byte, of DRAW the bits of the deviation
  u64 into;
  u64 count;       // elements; of FILL and MOVE bytes
  u64 by;          // elements that the source is moved along; of DRAW the key
  u64 factors;     // address of the table of factors
  u64 start;       // where in it the first element stands
};

__device__ inline float bf16_to_float(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }

__device__ inline unsigned short float_to_bf16(float value) {
  unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T, typename Product>
__device__ inline void multiply(const Piece& piece, u64 begin, u64 end, u64 table, Product product) {
  const T* source = (const T*)piece.source;
  const T* factors = (const T*)piece.factors;
  T* into = (T*)piece.into;
  u64 factor = (begin + piece.start) % table + threadIdx.x;
  for (u64 at = begin + threadIdx.x; at < end; at += blockDim.x, factor += blockDim.x) {
    u64 from = at + piece.by;
    if (from >= piece.count) from -= piece.count;
    if (factor >= table) factor -= table;
    into[at] = product(source[from], factors[factor]);
  }
}

struct Four { u32 word[4]; };

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): who sees some of the numbers
// cannot tell the others without the key.
__device__ inline Four philox(u64 counter, u64 key) {
  u32 a = (u32)counter, b = (u32)(counter >> 32), c = 0, d = 0, k = (u32)key, l = (u32)(key >> 32);
#pragma unroll 1
  for (int round = 0; round < 10; ++round) {
    u64 first = 0xD2511F53ull * a, second = 0xCD9E8D57ull * c;
    a = (u32)(second >> 32) ^ b ^ k;
    c = (u32)(first >> 32) ^ d ^ l;
    b = (u32)second;
    d = (u32)first;
    k += 0x9E3779B9u;
    l += 0xBB67AE85u;
  }
  return Four{{a, b, c, d}};
}

// Normal numbers (Box and Muller, "A note on the generation of random normal deviates", 1958), four of each counter.
__device__ inline void draw(const Piece& piece, u64 begin, u64 end) {
  float deviation = __uint_as_float((u32)piece.source);
  for (u64 at = begin + threadIdx.x * 4; at < end; at += blockDim.x * 4) {
    Four drawn = philox(at / 4, piece.by);
#pragma unroll 1
    for (int pair = 0; pair < 2; ++pair) {
      u32 first = pair ? drawn.word[2] : drawn.word[0], second = pair ? drawn.word[3] : drawn.word[1];
      float length = deviation * sqrtf(-2.f * logf(((float)(first >> 8) + 1.f) * 0x1p-24f));
      float sine, cosine;
      sincospif((float)(second >> 8) * 0x1p-23f, &sine, &cosine);
#pragma unroll 1
      for (int side = 0; side < 2; ++side) {
        u64 place = at + 2 * pair + side;
        float value = length * (side ? sine : cosine);
        if (place >= end) break;
        if (piece.kind == DRAW_F32) ((float*)piece.into)[place] = value;
        else if (piece.kind == DRAW_F16) ((__half*)piece.into)[place] = __float2half_rn(value);
        else ((unsigned short*)piece.into)[place] = float_to_bf16(value);
      }
    }
  }
}

extern "C" __global__ void flashinfer_bench_write(const Piece* pieces, u64 number, u64 tiles, u64 tile, u64 table) {
  for (u64 each = blockIdx.x; each < tiles; each += gridDim.x) {
    u64 low = 0, high = number - 1;  // the last piece whose first tile is not behind this one
    while (low < high) {
      u64 middle = (low + high + 1) / 2;
      if (pieces[middle].first_tile <= each) low = middle; else high = middle - 1;
    }
    const Piece piece = pieces[low];
    u64 begin = (each - piece.first_tile) * tile;
    u64 end = begin + tile < piece.count ? begin + tile : piece.count;
    switch (piece.kind) {
      case FILL: {
        unsigned char* into = (unsigned char*)piece.into;
        u64 word = 0x0101010101010101ull * (piece.source & 0xff), whole = begin + (end - begin) / 8 * 8;
        for (u64 at = begin + threadIdx.x * 8; at < whole; at += blockDim.x * 8) *(u64*)(into + at) = word;
        for (u64 at = whole + threadIdx.x; at < end; at += blockDim.x) into[at] = (unsigned char)piece.source;
        break;
      }
      case MOVE: {
        const unsigned char* source = (const unsigned char*)piece.source;
        unsigned char* into = (unsigned char*)piece.into;
        if ((piece.by | piece.count | piece.source | piece.into) % 8 == 0) {
          for (u64 at = begin + threadIdx.x * 8; at < end; at += blockDim.x * 8) {
            u64 from = at + piece.by;
            if (from >= piece.count) from -= piece.count;
            *(u64*)(into + at) = *(const u64*)(source + from);
          }
          break;
        }
        for (u64 at = begin + threadIdx.x; at < end; at += blockDim.x) {
          u64 from = at + piece.by;
          if (from >= piece.count) from -= piece.count;
          into[at] = source[from];
        }
        break;
      }
      case MUL_BF16:
        multiply<unsigned short>(piece, begin, end, table, [](unsigned short a, unsigned short b) {
          return float_to_bf16(bf16_to_float(a) * bf16_to_float(b));
        });
        break;
      case MUL_F16:
        multiply<__half>(piece, begin, end, table, [](__half a, __half b) {
          return __float2half_rn(__half2float(a) * __half2float(b));
        });
        break;
      case MUL_F32:
        multiply<float>(piece, begin, end, table, [](float a, float b) { return a * b; });
        break;
      case MUL_F64:
        multiply<double>(piece, begin, end, table, [](double a, double b) { return a * b; });
        break;
      case DRAW_BF16:
      case DRAW_F16:
      case DRAW_F32:
        draw(piece, begin, end);
        break;
    }
  }
}
