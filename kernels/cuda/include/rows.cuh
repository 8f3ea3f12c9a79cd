// Rows, eight columns to a thread: one access of 16 bytes for bf16 and two for fp32 where the address allows, else one
// by one.
#pragma once
#include "definition.cuh"

constexpr int kEight = 8;

template <class T>
__device__ inline bool whole(const T* p, int left) {
  return left >= kEight && ((size_t)p & 15) == 0;
}

// load8 reads columns p[0 ... 7] of which `left` are in the row; the others are 0.
__device__ inline void load8(const float* p, int left, float* v) {
  if (whole(p, left)) {
    float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = j < left ? p[j] : 0.f;
}

// narrow_n is narrow of N numbers, which lie in pairs.
template <int N>
__device__ inline void narrow_n(const float* v, u32* w) {
  bool nan = false;
#pragma unroll
  for (int j = 0; j < N; j++) nan = nan || v[j] != v[j];
#pragma unroll
  for (int j = 0; j < N / 2; j++)
    w[j] = nan ? narrow(v[2 * j]) | (u32)narrow(v[2 * j + 1]) << 16 : convert2(v[2 * j], v[2 * j + 1]);
}

__device__ inline void store8(u16* p, int left, const float* v) {
  if (whole(p, left)) {
    u32 w[4];
    narrow_n<kEight>(v, w);
    *(uint4*)p = make_uint4(w[0], w[1], w[2], w[3]);
    return;
  }
#pragma unroll
  for (int j = 0; j < kEight; j++)
    if (j < left) p[j] = narrow(v[j]);
}
__device__ inline void store8(float* p, int left, const float* v) {
  if (whole(p, left)) {
    ((float4*)p)[0] = make_float4(v[0], v[1], v[2], v[3]), ((float4*)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
#pragma unroll
  for (int j = 0; j < kEight; j++)
    if (j < left) p[j] = v[j];
}

// Stored8 is eight columns as they are stored.
template <class T>
struct Stored8;

template <>
struct Stored8<u16> {
  uint4 q;
  __device__ void load_whole(const u16* p) { q = *(const uint4*)p; }
  __device__ void load(const u16* p, int left) {
    if (whole(p, left)) {
      load_whole(p);
      return;
    }
    u32 w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) w[j] = (2 * j < left ? p[2 * j] : 0) | (u32)(2 * j + 1 < left ? p[2 * j + 1] : 0) << 16;
    q = make_uint4(w[0], w[1], w[2], w[3]);
  }
  __device__ void values(float* v) const {
    u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int j = 0; j < 4; j++)
      v[2 * j] = __uint_as_float(w[j] << 16), v[2 * j + 1] = __uint_as_float(w[j] & 0xffff0000u);
  }
};

template <>
struct Stored8<float> {
  float q[kEight];
  __device__ void load_whole(const float* p) {
    float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
    q[0] = a.x, q[1] = a.y, q[2] = a.z, q[3] = a.w, q[4] = b.x, q[5] = b.y, q[6] = b.z, q[7] = b.w;
  }
  __device__ void load(const float* p, int left) { load8(p, left, q); }
  __device__ void values(float* v) const {
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = q[j];
  }
};

__device__ inline void load8(const u16* p, int left, float* v) {
  Stored8<u16> s;
  s.load(p, left);
  s.values(v);
}

// move8 copies bits.
template <class T>
__device__ inline void move8(T* to, const T* from, int left) {
  if (whole(to, left) && whole(from, left)) {
#pragma unroll
    for (int j = 0; j < (int)sizeof(T) / 2; j++) ((uint4*)to)[j] = ((const uint4*)from)[j];
    return;
  }
#pragma unroll
  for (int j = 0; j < kEight; j++)
    if (j < left) to[j] = from[j];
}

constexpr int kMoved = 4 * kLanes;  // columns of a row that a warp moves

// move_part copies the bits of part `part` of a row, by one warp. All that a thread reads is on its way before it
// writes: few rows, as in decoding, wait for memory once.
template <class T>
__device__ inline void move_part(T* to, const T* from, int part, int cols) {
  constexpr int kPieces = kMoved / kLanes, kWords = sizeof(T) / 2;
  int first = part * kMoved + warp_lane() * kEight;
  uint4 q[kPieces][kWords];
  auto vector = [&](int c) { return whole(to + c, cols - c) && whole(from + c, cols - c); };
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    int c = first + i * kLanes;
    if (vector(c))
#pragma unroll
      for (int j = 0; j < kWords; j++) q[i][j] = ((const uint4*)(from + c))[j];
  }
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    int c = first + i * kLanes;
    if (vector(c)) {
#pragma unroll
      for (int j = 0; j < kWords; j++) ((uint4*)(to + c))[j] = q[i][j];
    } else {
      for (int j = c; j < min(c + kEight, cols); j++) to[j] = from[j];
    }
  }
}

// Piece is the eight columns from col of a row that a thread has in a grid over a whole matrix; row >= rows: none.
struct Piece {
  int row, col;
  __device__ Piece(int cols) {
    u32 across = (cols + kEight - 1) / kEight, i = blockIdx.x * blockDim.x + threadIdx.x;
    row = i / across, col = i % across * kEight;
  }
};

// SideBySide is the columns of a warp's pieces of a matrix where all 256 of them are in one row: there a lane may take
// four fp32 of each half, so that a store of the warp fills every sector that it touches. Pieces are not lined up with
// addresses, which the caller asks for.
struct SideBySide {
  int first, lane;
  bool all;
  __device__ SideBySide(Piece at, int cols) : lane(warp_lane()) {
    first = at.col - lane * kEight;
    all = first >= 0 && first + kLanes <= cols;
  }
  __device__ int col(int half) const { return first + half * kLanes / 2 + lane * 4; }
};

// Lanes8 is Lanes with lanes 8t ... 8t+7 in thread t, those of eight adjacent columns.
struct Lanes8 {
  float v[kEight];
  __device__ Lanes8() {
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = 0.f;
  }
  // sum halves the lanes 128, 64, ... 1 where G threads hold all that are not 0; each of them gets the result. Until a
  // thread has one lane left, the two of a pair share the additions.
  template <int G>
  __device__ float sum() {
    int t = threadIdx.x;
#pragma unroll
    for (int half = kEight / 2, bit = G / 2; half > 0; half >>= 1, bit >>= 1) {
      bool up = t & bit;
#pragma unroll
      for (int j = 0; j < half; j++) {
        float mine = up ? v[j + half] : v[j], other = up ? v[j] : v[j + half];
        v[j] = mine + __shfl_xor_sync(~0u, other, bit);
      }
    }
    float x = v[0];
#pragma unroll
    for (int bit = G / 16; bit > 0; bit >>= 1) x = x + __shfl_xor_sync(~0u, x, bit);  // to lanes 8 apart
#pragma unroll
    for (int bit = G / 2; bit >= G / 8; bit >>= 1) x = x + __shfl_xor_sync(~0u, x, bit);  // 4, 2, 1
    return x;
  }
};

// tree8 is the definition's tree of n columns, by one warp: f(i, left, v) writes those from i on, of which `left` are
// in the row.
template <class F>
__device__ inline float tree8(int n, F f) {
  Lanes8 lanes;
#pragma unroll 4
  for (int i = (threadIdx.x & 31) * kEight; i < n; i += kLanes) {
    float v[kEight];
    f(i, n - i, v);
#pragma unroll
    for (int j = 0; j < kEight; j++)
      if (j < n - i) lanes.v[j] += v[j];
  }
  return lanes.sum<kWarp>();
}

// weights8 reads the weights of a norm as they multiply.
template <class T>
__device__ inline void weights8(const T* w, int left, int plus_one, float* v) {
  load8(w, left, v);
  if (plus_one)
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = 1.f + v[j];
}

__device__ inline float r_std(float sum, int n, float eps) { return 1.f / sqrtf(sum / (float)n + eps); }

constexpr int kRowBlock = 64, kRowRun = 8;  // kernels.RowBlock and RowRun

// sum_rows is the sum of a block of rows by runs, of what f has for each.
template <class F>
__device__ inline float sum_rows(int from, int end, F f) {
  float total = 0.f;
  for (; from < end; from += kRowRun) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kRowRun; i++)
      if (from + i < end) sum = sum + f(from + i);
    total = total + sum;
  }
  return total;
}
