// Quantize: numbers into codes and scales (quant.Encoding). A block of columns of a row has four threads, one of FP8 a
// block of threads. Scales of a block of columns lie side by side for all rows. Bound: the bytes of numbers and codes.
#include "encode.cuh"

// int4_code is the integer nearest to the quotient, plus 8.
__device__ inline u32 int4_code(float quotient) { return (u32)((int)fminf(fmaxf(rintf(quotient), -7.f), 7.f) + 8); }

// Encoders make codes of eight numbers of a block, whose largest magnitude has the bits `most`, and give the scale.
struct Int4 {
  typedef u16 Scale;
  static constexpr int kBits = 4;
  __device__ static Scale encode(const float* v, u32 most, u32* codes) {
    u16 scale = narrow(__uint_as_float(most) / 7.f);
    codes[0] = 0x88888888;
    if (most >= kInfinity) return kNaNBF16;
    if (scale == 0) return 0;
    Quotient quotient(widen(scale));
    bool near = quotient.near();
    codes[0] = 0;
#pragma unroll
    for (int j = 0; j < kEight; j++)
      codes[0] |= int4_code(near ? quotient.of(v[j]) : v[j] / quotient.scale) << 4 * j;
    return scale;
  }
};
struct Mxfp4 {
  typedef u8 Scale;
  static constexpr int kBits = 4;
  __device__ static Scale encode(const float* v, u32 most, u32* codes) {
    codes[0] = 0;
    if (most >= kInfinity) return kNaNE8M0;
    u32 power = power_code(most, 0x400000, 2);
    if (most == 0) return 0;
#pragma unroll
    for (int j = 0; j < kEight; j++) codes[0] |= e2m1_code(v[j] * inverse_of(power)) << 4 * j;
    return power;
  }
};
struct Mxfp8 {
  typedef u8 Scale;
  static constexpr int kBits = 8;
  __device__ static Scale encode(const float* v, u32 most, u32* codes) { return mxfp8_encode(v, most, codes); }
};

// store_codes writes those of eight columns, `left` of which are there.
template <int BITS>
__device__ inline void store_codes(u8* to, const u32* codes, int left) {
  constexpr int kBytes = kEight * BITS / 8;
  int bytes = min((left * BITS + 7) / 8, kBytes);
  if (bytes == kBytes && (size_t)to % kBytes == 0) {
    if (BITS == 4) *(u32*)to = codes[0];
    else *(uint2*)to = make_uint2(codes[0], codes[BITS / 8]);
    return;
  }
  for (int i = 0; i < bytes; i++) to[i] = (u8)(codes[i / 4] >> i % 4 * 8);
}

// A thread has eight columns of a row; a row has threads for whole blocks, so those of a block are neighbours in one
// warp. Columns beyond the row are zeros; the unused half of a last byte is 0.
template <class E>
__device__ inline void quantize(u8* codes, typename E::Scale* scales, const float* x, int all_rows, int rows, int cols,
                                int row_bytes) {
  constexpr int kThreads = kINT4Group / kEight;
  int blocks = (cols + kINT4Group - 1) / kINT4Group;
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, across = blocks * kThreads, row = i / across;
  int col = i % across * kEight, left = row < all_rows ? cols - col : 0;
  float v[kEight];
  load8(x + (size_t)row * cols + col, left, v);
  u32 most = 0, words[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < kEight; j++) most = max(most, __float_as_uint(v[j]) & kMagnitude);
  most = most_of<kThreads>(most);
  if (row >= all_rows) return;
  typename E::Scale scale = E::encode(v, most, words);
  if (E::kBits == 4 && left % 2 == 1 && left < kEight && left > 0) words[0] &= (1u << 4 * left) - 1;
  if (left > 0) store_codes<E::kBits>(codes + (size_t)row * row_bytes + col * E::kBits / 8, words, left);
  if (i % kThreads == 0) scales[((size_t)(row / rows) * blocks + col / kINT4Group) * rows + row % rows] = scale;
}

#define QUANTIZE(name, E, S)                                                                                       \
  KERNEL(quantize_##name, u8* codes, S* scales, const float* x, int all_rows, int rows, int cols, int row_bytes) { \
    quantize<E>(codes, scales, x, all_rows, rows, cols, row_bytes);                                                \
  }
QUANTIZE(int4, Int4, u16)
QUANTIZE(mxfp4, Mxfp4, u8)
QUANTIZE(mxfp8, Mxfp8, u8)

// fp8_codes are those of eight numbers of a block with its scale.
__device__ inline void fp8_codes(const float* v, const Quotient& quotient, bool finite, u32* codes) {
#pragma unroll
  for (int j = 0; j < kEight; j += 4) {
    float q[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float y = v[j + k];
      q[k] = quotient.near() ? with_sign(quotient.of(y), y) : y / quotient.scale;
    }
    codes[j / 4] = quotient.scale == 0.f ? 0 : e4m3_codes(q[0], q[1]) | e4m3_codes(q[2], q[3]) << 16;
    if (!finite) codes[j / 4] = kNaNE4M3 * 0x01010101u;
  }
}

// Rows in blocks of 1 x 128, of which a block has kAcross threads, neighbours in one warp. Bound: the bytes of numbers
// and codes. No card has run it.
template <class T>
__device__ inline void quantize_row_blocks(u8* codes, float* scales, const T* x, int rows, int cols, int row_bytes,
                                           int ldx) {
  int blocks = (cols + kFP8Block - 1) / kFP8Block, i = blockIdx.x * blockDim.x + threadIdx.x, across = blocks * kAcross;
  int row = i / across, col = i % across * kEight, left = row < rows ? cols - col : 0;
  float v[kEight];
  load8(x + (size_t)row * ldx + col, left, v);
  u32 most = 0, words[2];
#pragma unroll
  for (int j = 0; j < kEight; j++) most = max(most, __float_as_uint(v[j]) & kMagnitude);
  most = most_of<kAcross>(most);
  if (row >= rows) return;
  Quotient quotient(__uint_as_float(most) / 448.f);
  bool finite = most < kInfinity;
  fp8_codes(v, quotient, finite, words);
  if (left > 0) store_codes<8>(codes + (size_t)row * row_bytes + col, words, left);
  if (i % kAcross == 0)
    scales[(size_t)(col / kFP8Block) * rows + row] = finite ? quotient.scale : __uint_as_float(kNaN);
}

#define QUANTIZE_ROWS(name, T)                                                                                      \
  KERNEL(quantize_rows_##name, u8* codes, float* scales, const T* x, int rows, int cols, int row_bytes, int ldx) { \
    quantize_row_blocks(codes, scales, x, rows, cols, row_bytes, ldx);                                              \
  }
QUANTIZE_ROWS(f32, float)
QUANTIZE_ROWS(bf16, u16)

constexpr int kMostParts = 16;

// Parts are the rows of a matrix at which blocks begin anew.
struct Parts {
  int start[kMostParts + 1];  // ascending, then the number of rows
  int count;
};

// A block of threads has a block of numbers: blockIdx x across, y down through the parts, z matrix. A thread has eight
// columns of every kDown-th row.
extern "C" __global__ void __launch_bounds__(kSquareThreads, 2)
    quantize_fp8(u8* codes, float* scales, const float* x, Parts parts, int rows, int cols, int row_bytes) {
  int down = blockIdx.y, part = 0;
  for (; part < parts.count; part++) {
    int own = (parts.start[part + 1] - parts.start[part] + kFP8Block - 1) / kFP8Block;
    if (down < own) break;
    down -= own;
  }
  if (part == parts.count) return;
  int first = parts.start[part] + down * kFP8Block, end = min(first + kFP8Block, parts.start[part + 1]),
      col = blockIdx.x * kFP8Block + threadIdx.x % kAcross * kEight, row = first + threadIdx.x / kAcross;
  x += (size_t)blockIdx.z * rows * cols, codes += (size_t)blockIdx.z * rows * row_bytes;
  scales += ((size_t)blockIdx.z * gridDim.x + blockIdx.x) * rows;
  float v[kPieces][kEight];
  u32 own = 0;
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    int at = row + i * kDown;
    load8(x + (size_t)at * cols + col, at < end ? cols - col : 0, v[i]);
#pragma unroll
    for (int j = 0; j < kEight; j++) own = max(own, __float_as_uint(v[i][j]) & kMagnitude);
  }
  u32 most = largest_of(own);
  Quotient quotient(__uint_as_float(most) / 448.f);
  bool finite = most < kInfinity;
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    int at = row + i * kDown;
    if (at >= end || col >= cols) continue;
    u32 words[2];
    fp8_codes(v[i], quotient, finite, words);
    store_codes<8>(codes + (size_t)at * row_bytes + col, words, cols - col);
  }
  for (int r = first + threadIdx.x; r < end; r += kSquareThreads)
    scales[r] = finite ? quotient.scale : __uint_as_float(kNaN);
}
