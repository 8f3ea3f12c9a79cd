// What storing weights in 4 bits, or in E4M3, leaves of them: kernels.Rounder. Bound: the bytes of src and dst; each
// weight is read once.
// On an H200, 131,072 x 2,048 in bf16: INT4 282 us, 90% of a copy's bandwidth; FP8 289 us, 88%. Before, with the card's
// division for each weight, and E4M3 by integers: 345 and 422 us.
#include "encode.cuh"

// int4_of makes eight columns what four bits leave of them, by the four threads of a group.
__device__ inline void int4_of(float* v) {
  constexpr int kThreads = kINT4Group / kEight;
  u32 most = 0;
#pragma unroll
  for (int j = 0; j < kEight; j++) most = max(most, __float_as_uint(v[j]) & kMagnitude);
  most = most_of<kThreads>(most);
  Quotient quotient(widen(narrow(__uint_as_float(most) / 7.f)));
  if (quotient.near()) {
#pragma unroll
    // A code is an integer, so -0 is 0. Its size is 7 at most: the scale is most/7 to nine bits.
    for (int j = 0; j < kEight; j++) v[j] = (rintf(quotient.of(v[j])) + 0.f) * quotient.scale;
    return;
  }
#pragma unroll 1
  for (int j = 0; j < kEight; j++) {
    float q = (fminf(fmaxf(rintf(v[j] / quotient.scale), -7.f), 7.f) + 0.f) * quotient.scale;
    v[j] = most >= kInfinity ? __uint_as_float(kNaN) : quotient.scale == 0.f ? 0.f : q;
  }
}

constexpr int kINT4Pieces = 4;

// A thread has eight columns in each of kINT4Pieces, which lie a block's threads apart and are on their way together. A
// row has threads for whole groups, so those of a group are neighbours in one warp; what has no columns does not leave.
template <class D, class S>
__device__ inline void round_int4(D* d, const S* s, int rows, int cols, int ds, int ss) {
  u32 across = (cols + kINT4Group - 1) / kINT4Group * (kINT4Group / kEight);
  int row[kINT4Pieces], col[kINT4Pieces], left[kINT4Pieces];
  Stored8<S> w[kINT4Pieces];
#pragma unroll
  for (int k = 0; k < kINT4Pieces; k++) {
    u32 i = (blockIdx.x * kINT4Pieces + k) * blockDim.x + threadIdx.x;
    row[k] = i / across, col[k] = i % across * kEight, left[k] = row[k] < rows ? cols - col[k] : 0;
    w[k].load(s + (size_t)row[k] * ss + col[k], left[k]);
  }
#pragma unroll
  for (int k = 0; k < kINT4Pieces; k++) {
    float v[kEight];
    w[k].values(v);
    int4_of(v);
    store8(d + (size_t)row[k] * ds + col[k], left[k], v);
  }
}

// fp8_of makes eight columns what E4M3 leaves of them in a square whose largest magnitude has the bits `most`.
__device__ inline void fp8_of(float* v, const Quotient& quotient, u32 most) {
  if (quotient.near()) {
#pragma unroll
    for (int j = 0; j < kEight; j += 2) {
      float q[2] = {quotient.of(v[j]), quotient.of(v[j + 1])};
      e4m3_two(q);
#pragma unroll
      for (int k = j; k < j + 2; k++)
        v[k] = with_sign(q[k - j], v[k]) * quotient.scale;
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < kEight; j++) {
    bool number = most < kInfinity;
    v[j] = number && quotient.scale == 0.f ? 0.f
           : number                        ? e4m3(v[j] / quotient.scale) * quotient.scale
                                           : __uint_as_float(kNaN);
  }
}

// A thread has eight columns of every kDown-th row of a square, which stay in registers as they are stored: d, s, rows
// and cols are those from its first on. INSIDE: the square is whole, and eight columns are one access.
template <bool INSIDE, class D, class S>
__device__ inline void round_square(D* d, const S* s, int rows, int cols, int ds, int ss) {
  auto left = [&](int i) { return i * kDown < rows ? cols : 0; };
  Stored8<S> w[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    const S* from = s + (size_t)i * kDown * ss;
    if constexpr (INSIDE) w[i].load_whole(from);
    else w[i].load(from, left(i));
  }
  u32 own = 0;
  float v[kEight];
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    w[i].values(v);
#pragma unroll
    for (int j = 0; j < kEight; j++) own = max(own, __float_as_uint(v[j]) & kMagnitude);
  }
  u32 most = largest_of(own);
  Quotient quotient(__uint_as_float(most) / 448.f);
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    w[i].values(v);
    fp8_of(v, quotient, most);
    D* to = d + (size_t)i * kDown * ds;
    if constexpr (INSIDE) {
      Columns<D, kEight> out;
      out.round(v);
      out.store(to);
    } else {
      store8(to, left(i), v);
    }
  }
}

// A block has a square, blockIdx (x across, y down, z group).
template <class D, class S>
__device__ inline void round_fp8(D* d, const S* s, int rows, int cols, int ds, int ss) {
  int col = blockIdx.x * kFP8Block + threadIdx.x % kAcross * kEight,
      row = blockIdx.y * kFP8Block + threadIdx.x / kAcross;
  size_t at = (size_t)blockIdx.z * rows + row;
  d += at * ds + col, s += at * ss + col;
  bool full = (blockIdx.x + 1) * kFP8Block <= cols && (blockIdx.y + 1) * kFP8Block <= rows;
  bool vector = ((size_t)d | (size_t)s | ds * sizeof(D) | ss * sizeof(S)) % 16 == 0;
  if (full && vector) round_square<true>(d, s, rows - row, cols - col, ds, ss);
  else round_square<false>(d, s, rows - row, cols - col, ds, ss);
}

#define ROUND(to, D, from, S)                                                              \
  KERNEL(round_int4_##to##_##from, D* d, const S* s, int rows, int cols, int ds, int ss) { \
    round_int4(d, s, rows, cols, ds, ss);                                                  \
  }                                                                                        \
  extern "C" __global__ void __launch_bounds__(kSquareThreads, 2)                          \
      round_fp8_##to##_##from(D* d, const S* s, int rows, int cols, int ds, int ss) {      \
    round_fp8(d, s, rows, cols, ds, ss);                                                   \
  }
ROUND(f32, float, f32, float)
ROUND(f32, float, bf16, u16)
ROUND(bf16, u16, f32, float)
ROUND(bf16, u16, bf16, u16)
