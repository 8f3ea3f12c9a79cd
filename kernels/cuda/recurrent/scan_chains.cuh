// What a scan over a sequence's chunks computes with, whoever its threads are: slabs of 64 x 64 numbers in shared
// memory, and chains of rule 4 over them, of which a thread has 4 rows and some columns. A value's chains are its own:
// neither the number of values of a block nor that of its threads changes a bit.
#pragma once
#include "chunks.cuh"
#include "mma.cuh"

constexpr int kSlabStride = kTile + 4;

// Slab is up to 64 rows of up to 64 columns of a matrix.
struct alignas(16) Slab {
  float v[kChunk][kSlabStride];
};

// Decays are c of a chunk's rows, beta or dt of those from the cut on, and a factor of each that its scan computes.
struct Decays {
  float c[kChunk], factor[kChunk], weight[kChunk];
};

// Source is where a slab comes from: rows before `from` from kept, others from fresh. whole: rows begin at multiples of
// 16 bytes, and columns are a multiple of 4.
struct Source {
  const float *kept, *fresh;
  size_t kept_stride, stride;
  int from, rows, cols;
  bool whole;
  __device__ const float* row(int r) const { return r < from ? kept + r * kept_stride : fresh + (r - from) * stride; }
  // bring is one of so many threads'.
  __device__ void bring(Slab& to, int thread, int threads) const {
    if (whole) {
      int c = thread % (kTile / 4) * 4;
      if (c >= cols) return;
#pragma unroll 4
      for (int r = thread / (kTile / 4); r < rows; r += threads / (kTile / 4)) copy16(&to.v[r][c], row(r) + c, 16);
      return;
    }
    for (int x = thread; x < rows * kTile; x += threads)
      if (x % kTile < cols) copy4(&to.v[x / kTile][x % kTile], row(x / kTile) + x % kTile, 4);
  }
};

// Chains are a thread's of a tile [64, V] that a team of TEAM threads has: 4 rows from row() on, kColumns columns from
// col() on. Rows of V numbers lie kStride apart in shared memory, so that the rows of a column lie in different banks.
// Lanes next to each other have the same columns of different rows: their loads of 8 and 16 bytes are one.
template <int V, int TEAM>
struct Chains {
  static constexpr int kAcross = TEAM / 16, kColumns = V / kAcross, kStride = V + kColumns;
  static constexpr int kWarpRows = 4 * kWarp / kAcross;  // of the tile, that a warp has
  float v[4][kColumns];
  __device__ Chains() {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int c = 0; c < kColumns; c++) v[r][c] = 0.f;
  }
  __device__ static int thread() { return threadIdx.x % TEAM; }
  __device__ static int warp_rows() { return thread() / kWarp * kWarpRows; }
  __device__ static int row() {
    int lane = warp_lane();
    return warp_rows() + (lane / (2 * kAcross) * 2 + lane % 2) * 4;
  }
  __device__ static int col() { return warp_lane() / 2 % kAcross * kColumns; }

  // each calls f(i, j, x) for the elements of the first m rows and n columns.
  template <class F>
  __device__ void each(int m, int n, F f) {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int c = 0; c < kColumns; c++)
        if (row() + r < m && col() + c < n) f(row() + r, col() + c, v[r][c]);
  }

  // times multiplies the first m rows by f(i).
  template <class F>
  __device__ void times(int m, F f) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      if (row() + r >= m) return;
      float w = f(row() + r);
#pragma unroll
      for (int c = 0; c < kColumns; c++) v[r][c] = v[r][c] * w;
    }
  }

  // across continues the chains over a slab's first columns: fma of a(i, k) and b(k, j), b [.., kStride].
  __device__ void across(const Slab& a, const float* b, int rows, int depth) {
    auto four = [&](int k, float* u, int r) { *(float4*)u = *(const float4*)&a.v[row() + r][k]; };
    auto one = [&](int k, int r) { return a.v[row() + r][k]; };
    if (row() + 1 < rows)
      over<4, false>(b, depth, four, one);
    else if (row() < rows)
      over<1, false>(b, depth, four, one);  // a step of decoding
  }

  // down continues the chains over a slab's first rows: fma of a(k, i) and b(k, j).
  __device__ void down(const Slab& a, const float* b, int depth) {
    auto four = [&](int k, float* u, int x) { *(float4*)u = *(const float4*)&a.v[k + x][row()]; };
    auto one = [&](int k, int r) { return a.v[k][row() + r]; };
    over<4, true>(b, depth, four, one);
  }

  static __device__ void read(float* to, const float* from) {
    if constexpr (kColumns == 4)
      *(float4*)to = *(const float4*)from;
    else if constexpr (kColumns == 2)
      *(float2*)to = *(const float2*)from;
    else
      *to = *from;
  }
  static __device__ void write(float* to, const float* from) {
    if constexpr (kColumns == 4)
      *(float4*)to = *(const float4*)from;
    else if constexpr (kColumns == 2)
      *(float2*)to = *(const float2*)from;
    else
      *to = *from;
  }

 private:
  // Steps are the operands of four steps of R rows: a[r] are those of a row, or DOWN of a step.
  template <int R>
  struct Steps {
    float a[4][4], b[4][kColumns];
  };
  template <int R, bool DOWN, class F>
  static __device__ void fetch(Steps<R>& s, const float* b, int k, F four) {
#pragma unroll
    for (int r = 0; r < (DOWN ? 4 : R); r++) four(k, s.a[r], r);
#pragma unroll
    for (int x = 0; x < 4; x++) read(s.b[x], b + (k + x) * kStride + col());
  }
  template <int R, bool DOWN>
  __device__ void add(const Steps<R>& s) {
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < kColumns; c++) v[r][c] = fmaf(DOWN ? s.a[x][r] : s.a[r][x], s.b[x][c], v[r][c]);
  }

  // over takes the operands of the next four steps while those of four are multiplied, where registers are for them.
  template <int R, bool DOWN, class F, class G>
  __device__ void over(const float* b, int depth, F four, G one) {
    int k = 0;
    Steps<R> now, next;
    if constexpr (V == kTile) {
#pragma unroll 1
      for (; k + 4 <= depth; k += 4) {
        fetch<R, DOWN>(now, b, k, four);
        add<R, DOWN>(now);
      }
    } else if (depth >= 4) {
      fetch<R, DOWN>(now, b, 0, four);
#pragma unroll 4
      for (; k + 8 <= depth; k += 4) {
        fetch<R, DOWN>(next, b, k + 4, four);
        add<R, DOWN>(now);
        now = next;
      }
      add<R, DOWN>(now);
      k += 4;
    }
    for (; k < depth; k++) {
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < kColumns; c++) v[r][c] = fmaf(one(k, r), b[k * kStride + col() + c], v[r][c]);
    }
  }
};

// scale multiplies the first rows of a slab by their weights; it is one of so many threads'.
__device__ inline void scale(Slab& s, const float* weight, int rows, int thread, int threads) {
#pragma unroll 4
  for (int x = thread; x < rows * (kTile / 4); x += threads) {
    float4& q = *(float4*)&s.v[x / (kTile / 4)][x % (kTile / 4) * 4];
    float w = weight[x / (kTile / 4)];
    q = make_float4(q.x * w, q.y * w, q.z * w, q.w * w);
  }
}
