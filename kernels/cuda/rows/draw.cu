// Draw, DrawCodes: random weights of a key and a place, in integers and one rounded product of fp64, as kernels.Draw
// has them. A thread for eight numbers, or for eight bytes of codes. Bound: of normal numbers the integer arithmetic,
// about 130 operations each; of codes the bytes written; to host memory the link.
#include "rows.cuh"

typedef unsigned char u8;

constexpr u64 kGolden = 0x9e3779b97f4a7c15ull;

// mix is the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
__device__ inline u64 mix(u64 x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

// Distributions give element i of a key, before the scale, exactly.
struct Constant {
  __device__ static double of(u64, u64) { return 1; }
};
struct Uniform {
  __device__ static double of(u64 key, u64 i) { return 2 * ((double)(mix(key + i * kGolden) >> 11) * 0x1p-53) - 1; }
};
struct Normal {
  __device__ static double of(u64 key, u64 i) {
    constexpr u64 kLow = 0x0000ffff0000ffffull;
    u64 sum = 0;
#pragma unroll
    for (int j = 0; j < 3; j++) {
      u64 w = mix(key + (3 * i + j + 1) * kGolden);
      sum += (w & kLow) + (w >> 16 & kLow);
    }
    return (double)((int)((u32)sum + (u32)(sum >> 32)) - 6 * 0xffff) * 0x1p-16;
  }
};

template <class D, class T>
__device__ inline void draw(T* out, u64 key, long long first, double scale, int n) {
  Piece at(n);
  if (at.row >= 1) return;
  float v[kEight];
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = (float)(D::of(key, first + at.col + j) * scale);
  store8(out + at.col, n - at.col, v);
}
#define DRAW(D, T)                                               \
  (T * out, u64 key, long long first, double scale, int n) { \
    draw<D>(out, key, first, scale, n);                          \
  }
extern "C" __global__ void draw_constant_f32 DRAW(Constant, float)
extern "C" __global__ void draw_constant_bf16 DRAW(Constant, u16)
extern "C" __global__ void draw_uniform_f32 DRAW(Uniform, float)
extern "C" __global__ void draw_uniform_bf16 DRAW(Uniform, u16)
extern "C" __global__ void draw_normal_f32 DRAW(Normal, float)
extern "C" __global__ void draw_normal_bf16 DRAW(Normal, u16)

// Codes make eight bytes of codes of random ones.
struct Int4 {
  __device__ static u64 of(u64 w) {  // codes of 0, which would be -8, become 8
    u64 some = w | w >> 1;
    some |= some >> 2;
    return w | (~some & 0x1111111111111111ull) << 3;
  }
};
struct E2m1 {
  __device__ static u64 of(u64 w) { return w; }
};
struct E4m3 {
  __device__ static u64 of(u64 w) { return (w & 0x8f8f8f8f8f8f8f8full) | 0x3030303030303030ull; }
};

// The matrix is blockIdx.y.
template <class C>
__device__ inline void draw_codes(u8* codes, u64 key, long long first, long long bytes) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x, left = bytes - 8 * i;
  if (left <= 0) return;
  u64 w = C::of(mix(key + ((u64)(first + blockIdx.y) << 40) + i * kGolden));
  u8* to = codes + blockIdx.y * bytes + 8 * i;
  if (left >= 8 && (size_t)to % 8 == 0) {
    *(u64*)to = w;
    return;
  }
  for (int j = 0; j < 8 && j < left; j++) to[j] = (u8)(w >> 8 * j);
}
#define DRAW_CODES(C) \
  (u8 * codes, u64 key, long long first, long long bytes) { draw_codes<C>(codes, key, first, bytes); }
extern "C" __global__ void draw_codes_int4 DRAW_CODES(Int4)
extern "C" __global__ void draw_codes_e2m1 DRAW_CODES(E2m1)
extern "C" __global__ void draw_codes_e4m3 DRAW_CODES(E4m3)

// draw_scales makes all scales one, of `size` bytes, low byte first.
KERNEL(draw_scales, u8* scales, u32 scale, int size, long long bytes) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < bytes) scales[i] = (u8)(scale >> 8 * (i % size));
}
