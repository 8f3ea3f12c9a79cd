// Products of rule 4 of the definition (kernels/recurrent.go): chains of fma over ascending k, whatever the operands
// and wherever they lie. A block of kThreads has a tile of 64 x 64 chains in registers, 4 x 4 to a thread; 32 steps of
// both operands at a time go through shared memory.
#pragma once
#include "rows.cuh"

constexpr int kThreads = 256, kChunk = 64, kTile = 64, kDepth = 32, kSolve = 16;  // kChunk is Definition.ChunkRows

// Heads is kernels.Recurrence, and whether it is a delta rule.
struct Heads {
  int key_heads, heads, dim, values, delta;
  __device__ int key_head(int head) const { return head / (heads / key_heads); }
};

// Cut is rows of a span that lie in one chunk: from is the first one's place in it. Rows before it lie in the slot.
struct Cut {
  int row, from, rows, slot;
  __device__ int end() const { return from + rows; }
};

// Sequence is the cuts of a span; fresh: it starts at position 0.
struct Sequence {
  int first, count, slot, fresh;
};

// Slots is kernels.ChunkState; s nil: none.
struct Slots {
  float *s, *k, *n, *c;
};

struct alignas(16) Stage {
  float a[kDepth][kTile + 4], b[kDepth][kTile + 4];
};

struct Tile {
  float v[4][4];
  __device__ Tile() {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int c = 0; c < 4; c++) v[r][c] = 0.f;
  }
};

// each calls f(i, j, x) for the thread's elements of a tile that begins at (i0, j0) of a matrix [m, n].
template <class F>
__device__ inline void each(Tile& t, int i0, int j0, int m, int n, F f) {
  int i = i0 + threadIdx.x / 16 * 4, j = j0 + threadIdx.x % 16 * 4;
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++)
      if (i + r < m && j + c < n) f(i + r, j + c, t.v[r][c]);
}

// bring stages steps [from, from+depth) of an operand; elements of one step, or steps of one element, are neighbours in
// memory.
template <bool STEPS, class F>
__device__ inline void bring(float (*to)[kTile + 4], int first, int end, int from, int depth, F f) {
#pragma unroll 4
  for (int x = threadIdx.x; x < kDepth * kTile; x += kThreads) {
    int k = STEPS ? x % kDepth : x / kTile, i = STEPS ? x / kDepth : x % kTile;
    if (k < depth && first + i < end) to[k][i] = f(first + i, from + k);
  }
}

// chain continues a tile over k steps: fma of a(i, step) and b(j, step). A_STEPS, B_STEPS: steps are neighbours in
// memory. All threads of the block call it.
template <bool A_STEPS, bool B_STEPS, class A, class B>
__device__ inline void chain(Stage& s, Tile& t, int i0, int j0, int m, int n, int k, A a, B b) {
  int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4, rows = m - i0 - row;
  for (int from = 0; from < k; from += kDepth) {
    int depth = min(kDepth, k - from);
    __syncthreads();
    bring<A_STEPS>(s.a, i0, m, from, depth, a);
    bring<B_STEPS>(s.b, j0, n, from, depth, b);
    __syncthreads();
    if (rows > 1) {
#pragma unroll 8
      for (int x = 0; x < depth; x++) {
        float4 p = *(const float4*)&s.a[x][row], q = *(const float4*)&s.b[x][col];
        float u[4] = {p.x, p.y, p.z, p.w}, w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
          for (int c = 0; c < 4; c++) t.v[r][c] = fmaf(u[r], w[c], t.v[r][c]);
      }
    } else if (rows == 1) {  // a step of decoding
#pragma unroll 8
      for (int x = 0; x < depth; x++) {
        float4 q = *(const float4*)&s.b[x][col];
        float u = s.a[x][row], w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int c = 0; c < 4; c++) t.v[0][c] = fmaf(u, w[c], t.v[0][c]);
      }
    }
  }
}
