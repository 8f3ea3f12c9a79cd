// Keys and values as attention reads them from memory: bf16 numbers, or pages of MXFP8 (kernels.KVCodes), whose numbers
// are decoded on their way to shared memory. Encoded were bf16 numbers, so the decoded ones are bf16 too.
#pragma once
#include "attention.cuh"
#include "codes.cuh"

// Numbers are rows of bf16; `stride` numbers from a row to the next.
struct Numbers {
  const u16* x;
  int stride;

  // head is columns of one head, of so many.
  __device__ Numbers head(int h, int width) const { return {x + h * width, stride}; }
  // bring brings columns at ... at+7 of a row to shared memory, or zeros.
  __device__ void bring(u16* to, long long row, int at, bool in) const {
    copy16(to, x + (in ? row * stride + at : 0), in ? 16 : 0);
  }
};

// scale_bf16 is a scale of E8M0 as bf16: the least power is subnormal, 255 no number.
__device__ inline u32 scale_bf16(u32 s) { return s == 0 ? 0x40 : s == 255 ? 0x7fc0 : s << 7; }

// e4m3_bits is two codes, in the high bytes of the halves of t, at the place of bf16's bits: the numbers times 2^-120.
__device__ inline u32 e4m3_bits(u32 t) { return (t & 0x80008000) | (t >> 4 & 0x07f007f0); }

// e4m3_times is two numbers of MXFP8, with their scales in bf16: exact where bf16 numbers were encoded.
__device__ inline u32 e4m3_times(u32 t, u32 scales) { return mul2(mul2(e4m3_bits(t), 0x7b807b80), scales); }

// eight_of decodes eight codes of one scale, which is twice in bf16.
__device__ inline uint4 eight_of(uint2 codes, u32 scale) {
  u32 w[2] = {codes.x, codes.y}, d[4];
#pragma unroll
  for (int i = 0; i < 4; i++) d[i] = e4m3_times(__byte_perm(w[i / 2], 0, i % 2 ? 0x3424 : 0x1404), scale);
  return make_uint4(d[0], d[1], d[2], d[3]);
}

// raised_twice is 2^120 times a scale below kHighScale, twice in bf16: of higher ones this is no number.
constexpr int kHighScale = 127 + 8;
__device__ inline u32 raised_twice(u32 s) { return (s + 120) * 0x800080u; }

// eight_parted is eight_of with the third of each four columns before the second, which takes no permutation of bytes;
// Raised: the scale is raised_twice.
template <bool Raised>
__device__ inline uint4 eight_parted(uint2 codes, u32 scale) {
  u32 w[2] = {codes.x, codes.y}, d[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 t = w[i / 2] << (i % 2 ? 0 : 8);
    d[i] = Raised ? mul2(e4m3_bits(t), scale) : e4m3_times(t, scale);
  }
  return make_uint4(d[0], d[1], d[2], d[3]);
}

constexpr int kScaled = 32;  // columns of a head that share a scale
constexpr int scales_of(int width) { return (width + kScaled - 1) / kScaled; }

// Codes are rows of codes of E4M3 and of scales of E8M0: bytes, so many from a row to the next.
struct Codes {
  u8 *codes, *scales;
  int stride, scale_stride;

  __device__ Codes head(int h, int width) const {
    return {codes + h * width, scales + h * scales_of(width), stride, scale_stride};
  }
  // eight are columns at ... at+7 of a row, at a multiple of eight.
  __device__ uint4 eight(long long row, int at) const {
    u32 scale = scale_bf16(scales[row * scale_stride + at / kScaled]);
    return eight_of(*(const uint2*)(codes + row * stride + at), scale | scale << 16);
  }
  __device__ void bring(u16* to, long long row, int at, bool in) const {
    *(uint4*)to = in ? eight(row, at) : make_uint4(0, 0, 0, 0);
  }
};

// Latent is rows of absorbed attention, whose first V columns are in codes and the others, which are rotated, numbers.
template <int V>
struct Latent {
  Codes values;
  Numbers rotated;

  __device__ void bring(u16* to, long long row, int at, bool in) const {
    if (at < V) values.bring(to, row, at, in);
    else rotated.bring(to, row, at - V, in);
  }
};

// load_keys brings `count` rows of Own columns into [Rows][D + 8] as load_rows does; row(i) is the number of row i.
template <int D, int Rows, int Threads, int Own, class S, class F>
__device__ inline void load_keys(u16* to, int count, const S& source, F row) {
#pragma unroll
  for (int i = 0; i < Rows * (D / 8); i += Threads) {
    int c = i + threadIdx.x, r = c / (D / 8), at = c % (D / 8) * 8;
    bool in = r < count && at < Own;
    if (Rows * (D / 8) % Threads == 0 || c < Rows * (D / 8))
      source.bring(to + r * (D + 8) + at, in ? row(r) : 0, in ? at : 0, in);
  }
}
