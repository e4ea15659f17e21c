// Writes the contents of many tensors in one launch. `writer.py` launches it.
//
// To make content_kernel.ptx of this file (any nvcc; the header is lowered so that older drivers take it):
//   nvcc -ptx -O3 -arch=compute_75 content_kernel.cu -o - | sed -e "s/^\.version.*/.version 7.0/" -e "s/sm_75/sm_70/" > content_kernel.ptx
#include <cuda_fp16.h>

typedef unsigned u32;
typedef unsigned long long u64;

enum Kind : u64 { FILL, MOVE, VARY_BF16, VARY_F16, VARY_F32, VARY_F64, DRAW_BF16, DRAW_F16, DRAW_F32 };

struct Piece {
  u64 first_tile;  // tiles of all pieces before this one
  u64 kind;
  u64 source;      // address; of FILL the word, of DRAW the bits of the deviation
  u64 into;
  u64 count;       // elements; of FILL and MOVE bytes
  u64 by;          // elements that the source is moved along; of DRAW the key
  u64 key;         // of VARY; the highest bit says whether it is negated
  u64 columns;     // of VARY: elements of a row, below 2^23; the last row may have fewer
};

__device__ inline float bf16_to_float(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }

__device__ inline unsigned short float_to_bf16(float value) {
  unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Four { u32 word[4]; };

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The other numbers cannot be computed
// from some of them without the key.
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
        u64 cell = at + 2 * pair + side;
        float value = length * (side ? sine : cosine);
        if (cell >= end) break;
        if (piece.kind == DRAW_F32) ((float*)piece.into)[cell] = value;
        else if (piece.kind == DRAW_F16) ((__half*)piece.into)[cell] = __float2half_rn(value);
        else ((unsigned short*)piece.into)[cell] = float_to_bf16(value);
      }
    }
  }
}

// A permutation of a row's elements: a Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains",
// 2002) on a grid of `high` times `wide` cells. The grid has hardly more cells than the row has elements.
struct Row {
  u64 number;
  u32 length, high, wide;
  Four keys;
  float factor;    // of all elements of the row
};

__device__ inline u32 mix(u32 value, u32 key) {
  value = (value ^ key) * 0x9E3779B1u;
  return (value ^ (value >> 15)) * 0x85EBCA77u;
}

__device__ inline float factor_of(u32 word) {  // 1.25 ** -0.5 to 1.25 ** 0.5
  return 0.894427191f + 0.223606798f * ((float)(word >> 8) * 0x1p-24f);
}

__device__ inline Row start_row(const Piece& piece, u64 number, u64 key) {
  u64 left = piece.count - number * piece.columns;
  Row row;
  row.number = number;
  row.length = (u32)(left < piece.columns ? left : piece.columns);
  row.high = (u32)sqrtf((float)row.length);
  while (row.high * row.high < row.length) ++row.high;
  row.wide = (row.length + row.high - 1) / row.high;
  row.keys = philox(number | 1ull << 63, key);
  row.factor = factor_of(mix(row.keys.word[0], row.keys.word[3]));
  if (piece.key >> 63) row.factor = -row.factor;
  return row;
}

__device__ inline u32 rotate(u32 index, u32 size, u32 by) {  // by / 2^32 of the size
  index += (u32)(((u64)by * size) >> 32);
  return index >= size ? index - size : index;
}

__device__ inline u32 find_source(const Row& row, u32 column) {
  u32 line = column / row.wide, cell = column - line * row.wide;
#pragma unroll 1
  do {
    line = rotate(line, row.high, mix(cell, row.keys.word[0]));
    cell = rotate(cell, row.wide, mix(line, row.keys.word[1]));
    line = rotate(line, row.high, mix(cell, row.keys.word[2]));
    cell = rotate(cell, row.wide, mix(line, row.keys.word[3]));
  } while (line * row.wide + cell >= row.length);
  return line * row.wide + cell;
}

// Rotates the elements, then shuffles each row. An element is multiplied by its row's factor and its own.
__device__ inline void vary(const Piece& piece, u64 begin, u64 end) {
  const u64 key = piece.key & ~(1ull << 63);
  const u32 columns = (u32)piece.columns, step = blockDim.x * 4;
  u64 at = begin + threadIdx.x * 4, first = at / columns;
  u32 column = (u32)(at - first * columns);
  Row row;
  row.number = ~0ull;
#pragma unroll 1
  for (; at < end; at += step) {
    Four drawn = philox(at / 4, key);
    u64 number = first;
    u32 next = column;
#pragma unroll 1
    for (u32 side = 0; side < 4 && at + side < end; ++side, ++next) {
      if (next == columns) next = 0, ++number;
      if (number != row.number) row = start_row(piece, number, key);
      u32 word = side < 2 ? (side ? drawn.word[1] : drawn.word[0]) : (side == 2 ? drawn.word[2] : drawn.word[3]);
      float factor = row.factor * factor_of(word);
      u64 from = number * columns + find_source(row, next) + piece.by, into = at + side;
      if (from >= piece.count) from -= piece.count;
      if (piece.kind == VARY_F32) ((float*)piece.into)[into] = ((const float*)piece.source)[from] * factor;
      else if (piece.kind == VARY_F64) ((double*)piece.into)[into] = ((const double*)piece.source)[from] * factor;
      else if (piece.kind == VARY_F16)
        ((__half*)piece.into)[into] = __float2half_rn(__half2float(((const __half*)piece.source)[from]) * factor);
      else
        ((unsigned short*)piece.into)[into] =
            float_to_bf16(bf16_to_float(((const unsigned short*)piece.source)[from]) * factor);
    }
    first += step / columns;
    column += step % columns;
    if (column >= columns) column -= columns, ++first;
  }
}

extern "C" __global__ void flashinfer_bench_write(const Piece* pieces, u64 number, u64 tiles, u64 tile) {
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
        u64 word = piece.source, whole = begin + (end - begin) / 8 * 8;  // a tile begins at a multiple of eight
        for (u64 at = begin + threadIdx.x * 8; at < whole; at += blockDim.x * 8) *(u64*)(into + at) = word;
        for (u64 at = whole + threadIdx.x; at < end; at += blockDim.x) into[at] = (unsigned char)(word >> 8 * (at % 8));
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
      case VARY_BF16:
      case VARY_F16:
      case VARY_F32:
      case VARY_F64:
        vary(piece, begin, end);
        break;
      case DRAW_BF16:
      case DRAW_F16:
      case DRAW_F32:
        draw(piece, begin, end);
        break;
    }
  }
}
