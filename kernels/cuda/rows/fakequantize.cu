// What codes leave of numbers: FakeQuantize of kernels.QuantizedProducts. Bound: the bytes of src and dst; each number
// is read once.
// On an H200, 131,072 x 2,048 in bf16: INT4 282 us, 90% of a copy's bandwidth; FP8 289 us, 88%. Before, with the card's
// division for each weight, and E4M3 by integers: 345 and 422 us.
#include "codes.cuh"
#include "encode.cuh"
#include "team.cuh"

// group_largest has the bits of the largest magnitude of a group, of which each of four threads has eight numbers.
__device__ inline u32 group_largest(const float* v) {
  u32 most = 0;
#pragma unroll
  for (int j = 0; j < kEight; j++) most = max(most, __float_as_uint(v[j]) & kMagnitude);
  return most_of<kINT4Group / kEight>(most);
}

// int4_of makes eight columns what four bits leave of them, by the four threads of a group.
__device__ inline void int4_of(float* v) {
  u32 most = group_largest(v);
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

// Mxfp8 is what E4M3 leaves of the numbers of a block whose largest magnitude has the bits `most`. Its scale never
// clips, and E4M3 times a power of two is exact in fp32.
struct Mxfp8 {
  u32 most;
  float scale, inverse;
  __device__ explicit Mxfp8(u32 most) : most(most) {
    u32 power = power_code(most, 0x600000, 8);
    scale = power_of(power), inverse = inverse_of(power);
  }
  __device__ float value(float code) const {
    return most >= kInfinity ? __uint_as_float(kNaN) : most == 0 ? 0.f : code * scale;
  }
  // two are two numbers of the block.
  __device__ void two(float& x, float& y) const {
    float q[2] = {x * inverse, y * inverse};
    e4m3_two(q);
    x = value(q[0]), y = value(q[1]);
  }
};

// mxfp8_of is int4_of for MXFP8.
__device__ inline void mxfp8_of(float* v) {
  Mxfp8 block(group_largest(v));
#pragma unroll
  for (int j = 0; j < kEight; j += 2) block.two(v[j], v[j + 1]);
}

// mxfp4_of is int4_of for MXFP4. E2M1 times a power of two is exact in fp32 too.
__device__ inline void mxfp4_of(float* v) {
  u32 most = group_largest(v), power = power_code(most, 0x400000, 2);
  float scale = power_of(power), inverse = inverse_of(power);
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    float q = code_value<kE2M1>(e2m1_code(v[j] * inverse)) * scale;
    v[j] = most >= kInfinity ? __uint_as_float(kNaN) : most == 0 ? 0.f : q;
  }
}

constexpr int kGroupPieces = 4;

// A thread has eight columns in each of kGroupPieces, which lie a block's threads apart and are on their way together.
// A row has threads for whole groups, so those of a group are neighbours in one warp; what has no columns does not
// leave.
template <void of(float*), class D, class S>
__device__ inline void fake_quantize_groups(D* d, const S* s, int rows, int cols, int ds, int ss) {
  u32 across = (cols + kINT4Group - 1) / kINT4Group * (kINT4Group / kEight);
  int row[kGroupPieces], col[kGroupPieces], left[kGroupPieces];
  Stored8<S> w[kGroupPieces];
#pragma unroll
  for (int k = 0; k < kGroupPieces; k++) {
    u32 i = (blockIdx.x * kGroupPieces + k) * blockDim.x + threadIdx.x;
    row[k] = i / across, col[k] = i % across * kEight, left[k] = row[k] < rows ? cols - col[k] : 0;
    w[k].load(s + (size_t)row[k] * ss + col[k], left[k]);
  }
#pragma unroll
  for (int k = 0; k < kGroupPieces; k++) {
    float v[kEight];
    w[k].values(v);
    of(v);
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
__device__ inline void fake_quantize_square(D* d, const S* s, int rows, int cols, int ds, int ss) {
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
__device__ inline void fake_quantize_fp8(D* d, const S* s, int rows, int cols, int ds, int ss) {
  int col = blockIdx.x * kFP8Block + threadIdx.x % kAcross * kEight,
      row = blockIdx.y * kFP8Block + threadIdx.x / kAcross;
  size_t at = (size_t)blockIdx.z * rows + row;
  d += at * ds + col, s += at * ss + col;
  bool full = (blockIdx.x + 1) * kFP8Block <= cols && (blockIdx.y + 1) * kFP8Block <= rows;
  bool vector = ((size_t)d | (size_t)s | ds * sizeof(D) | ss * sizeof(S)) % 16 == 0;
  if (full && vector) fake_quantize_square<true>(d, s, rows - row, cols - col, ds, ss);
  else fake_quantize_square<false>(d, s, rows - row, cols - col, ds, ss);
}

// fake_quantize_strip does N columns of the rows of a block, which are all on their way together.
template <int N, class T>
__device__ inline void fake_quantize_strip(T* d, const T* s, int rows, int ds, int ss) {
  Columns<T, N> w[kINT4Group];
#pragma unroll
  for (int r = 0; r < kINT4Group; r++) w[r].load(s + (size_t)r * ss, r < rows);
  u32 most[N] = {};
#pragma unroll
  for (int r = 0; r < kINT4Group; r++) {
    float v[N];
    w[r].values(v);
#pragma unroll
    for (int j = 0; j < N; j++) most[j] = max(most[j], __float_as_uint(v[j]) & kMagnitude);
  }
#pragma unroll
  for (int r = 0; r < kINT4Group; r += 2) {
    float v[2][N];
    w[r].values(v[0]), w[r + 1].values(v[1]);
#pragma unroll
    for (int j = 0; j < N; j++) Mxfp8(most[j]).two(v[0][j], v[1][j]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      w[r + i].round(v[i]);
      if (r + i < rows) w[r + i].store(d + (size_t)(r + i) * ds);
    }
  }
}

// A thread has kStrip columns of the rows of one block: blockIdx x has blocks, y strips of columns. Blocks begin at the
// first row of each of `cells` ranges of rows, offsets[c] to offsets[c + 1]. Range c has the blocks from
// offsets[c]/32 + c on, up to those of the next: at least as many as its rows make.
constexpr int kStrip = 2, kStripThreads = 128;

template <class T>
__device__ inline void fake_quantize_rows(T* d, const T* s, const int* offsets, int cells, int cols, int ds, int ss) {
  int block = blockIdx.x, cell = 0;
  for (int end = cells; end - cell > 1;) {
    int middle = (cell + end) / 2;
    if (offsets[middle] / kINT4Group + middle <= block) cell = middle;
    else end = middle;
  }
  int first = offsets[cell], row = first + (block - first / kINT4Group - cell) * kINT4Group,
      rows = min(offsets[cell + 1] - row, kINT4Group), col = (blockIdx.y * blockDim.x + threadIdx.x) * kStrip;
  if (rows <= 0 || col >= cols) return;
  d += (size_t)row * ds + col, s += (size_t)row * ss + col;
  bool aligned = ((size_t)d | (size_t)s | ds * sizeof(T) | ss * sizeof(T)) % (kStrip * sizeof(T)) == 0;
  if (aligned && col + kStrip <= cols) {
    fake_quantize_strip<kStrip>(d, s, rows, ds, ss);
    return;
  }
  for (int j = 0; j < min(kStrip, cols - col); j++) fake_quantize_strip<1>(d + j, s + j, rows, ds, ss);
}
#define ROWS(T) (T* d, const T* s, const int* offsets, int cells, int cols, int ds, int ss)
KERNELS(fake_quantize_rows, ROWS, (d, s, offsets, cells, cols, ds, ss))

#define FAKE_QUANTIZE(to, D, from, S)                                                              \
  KERNEL(fake_quantize_int4_##to##_##from, D* d, const S* s, int rows, int cols, int ds, int ss) {  \
    fake_quantize_groups<int4_of>(d, s, rows, cols, ds, ss);                                       \
  }                                                                                                \
  KERNEL(fake_quantize_mxfp4_##to##_##from, D* d, const S* s, int rows, int cols, int ds, int ss) { \
    fake_quantize_groups<mxfp4_of>(d, s, rows, cols, ds, ss);                                      \
  }                                                                                                \
  KERNEL(fake_quantize_mxfp8_##to##_##from, D* d, const S* s, int rows, int cols, int ds, int ss) { \
    fake_quantize_groups<mxfp8_of>(d, s, rows, cols, ds, ss);                                      \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kSquareThreads, 2)                                  \
      fake_quantize_fp8_##to##_##from(D* d, const S* s, int rows, int cols, int ds, int ss) {       \
    fake_quantize_fp8(d, s, rows, cols, ds, ss);                                                   \
  }
FAKE_QUANTIZE(f32, float, f32, float)
FAKE_QUANTIZE(f32, float, bf16, u16)
FAKE_QUANTIZE(bf16, u16, f32, float)
FAKE_QUANTIZE(bf16, u16, bf16, u16)
