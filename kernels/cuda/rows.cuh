// Rows, eight columns to a thread: one access of 16 bytes for bf16 and two for fp32 where the address allows, else one by one.
#pragma once
#include "definition.cuh"

constexpr int kEight = 8;

template <class T>
__device__ inline bool whole(const T* p, int left) {
  return left >= kEight && ((size_t)p & 15) == 0;
}

// load8 reads columns p[0 ... 7] of which `left` are in the row; the others are 0.
__device__ inline void load8(const u16* p, int left, float* v) {
  if (whole(p, left)) {
    uint4 q = *(const uint4*)p;
    u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int j = 0; j < 4; j++) v[2 * j] = __uint_as_float(w[j] << 16), v[2 * j + 1] = __uint_as_float(w[j] & 0xffff0000u);
    return;
  }
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = j < left ? widen(p[j]) : 0.f;
}
__device__ inline void load8(const float* p, int left, float* v) {
  if (whole(p, left)) {
    float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = j < left ? p[j] : 0.f;
}

__device__ inline void store8(u16* p, int left, const float* v) {
  if (whole(p, left)) {
    u32 w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) w[j] = narrow(v[2 * j]) | (u32)narrow(v[2 * j + 1]) << 16;
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

// Piece is the eight columns from col of a row that a thread has in a grid over a whole matrix; row >= rows: none.
struct Piece {
  int row, col;
  __device__ Piece(int cols) {
    u32 across = (cols + kEight - 1) / kEight, i = blockIdx.x * blockDim.x + threadIdx.x;
    row = i / across, col = i % across * kEight;
  }
};

// Lanes8 is Lanes with lanes 8t ... 8t+7 in thread t, those of eight adjacent columns.
struct Lanes8 {
  float v[kEight];
  __device__ Lanes8() {
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = 0.f;
  }
  // sum halves the lanes 128, 64, ... 1; every thread of the warp gets the result. Until a thread has one lane left, the two of a pair share the additions.
  __device__ float sum() {
    int t = threadIdx.x & 31;
#pragma unroll
    for (int half = 4, bit = 16; half > 0; half >>= 1, bit >>= 1) {
      bool up = t & bit;
#pragma unroll
      for (int j = 0; j < half; j++) {
        float mine = up ? v[j + half] : v[j], other = up ? v[j] : v[j + half];
        v[j] = mine + __shfl_xor_sync(~0u, other, bit);
      }
    }
    float x = v[0];
    x = x + __shfl_xor_sync(~0u, x, 2);   // lanes 16 apart
    x = x + __shfl_xor_sync(~0u, x, 1);   // 8
    x = x + __shfl_xor_sync(~0u, x, 16);  // 4
    x = x + __shfl_xor_sync(~0u, x, 8);   // 2
    return x + __shfl_xor_sync(~0u, x, 4);
  }
};

// tree8 is the definition's tree of n columns, by one warp: f(i, left, v) writes those from i on, of which `left` are in the row.
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
  return lanes.sum();
}
