// Rows of a chunk that go on over the rows before them (rule 4), each when those are finished.
#pragma once
#include "scan_chains.cuh"

// SolvedRows are rows of x that a lane has while they are solved: lane, lane+16, ... of C columns, which 16 lanes have
// alone. So only lanes of a warp wait for each other.
template <int V, int TEAM>
struct SolvedRows {
  using Own = Chains<V, TEAM>;
  static constexpr int C = Own::kColumns, kBlocks = kChunk / kSolve;
  int lane = threadIdx.x % kSolve, half = warp_lane() - lane, col = Own::thread() / kSolve * C;
  float v[kBlocks][C];

  // take is row t of block a, for all lanes.
  __device__ void take(float* s, int a, int t) const {
#pragma unroll
    for (int c = 0; c < C; c++) s[c] = __shfl_sync(~0u, v[a][c], half + t);
  }
  static __device__ void add(float* to, float w, const float* s) {
#pragma unroll
    for (int c = 0; c < C; c++) to[c] = fmaf(w, s[c], to[c]);
  }

  // whole is all rows of a chunk: four at a time go to all lanes, each of which finishes the four and continues its own
  // rows, those first that are next; what they are multiplied by is there before.
  template <class M>
  __device__ void whole(M m) {
    float s[4][C], ahead[kBlocks + 3][4], w[kBlocks + 3][4];
    auto fetch = [&](int j) {
#pragma unroll
      for (int i = 1; i < 4; i++) m(j + i, j, ahead[kBlocks + i - 1]);
#pragma unroll
      for (int b = 0; b < kBlocks; b++)
        if (b >= j / kSolve) m(b * kSolve + lane, j, ahead[b]);
    };
    auto four = [&](int j) {
#pragma unroll
      for (int k = 0; k < 4; k++) take(s[k], j / kSolve, j % kSolve + k);
    };
    fetch(0);
    four(0);
#pragma unroll
    for (int j = 0; j < kChunk; j += 4) {
      int a = j / kSolve, t = j % kSolve;
#pragma unroll
      for (int i = 0; i < kBlocks + 3; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) w[i][k] = ahead[i][k];
      if (j + 4 < kChunk) fetch(j + 4);
#pragma unroll
      for (int i = 1; i < 4; i++)
#pragma unroll
        for (int k = 0; k < i; k++) add(s[i], w[kBlocks + i - 1][k], s[k]);
      float now[4][C];
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int c = 0; c < C; c++) now[k][c] = s[k][c];
#pragma unroll
      for (int k = 0; k < 4; k++)
        if (lane > t + k) add(v[a], w[a][k], now[k]);
#pragma unroll
      for (int b = 0; b < kBlocks; b++) {
        if (b == a + 1 && t < kSolve - 4 && j + 4 < kChunk) four(j + 4);
        if (b > a)
#pragma unroll
          for (int k = 0; k < 4; k++) add(v[b], w[b][k], now[k]);
        if (b == a + 1 && t == kSolve - 4) four(j + 4);
      }
      if (a == kBlocks - 1 && j + 4 < kChunk) four(j + 4);
    }
  }

  // some is rows [from, n), over those before them, which are known.
  template <class M>
  __device__ void some(const float* x, int from, int n, M m) {
#pragma unroll
    for (int b = 0; b < kBlocks; b++) {
      int i = b * kSolve + lane;
      if (i < from || i >= n) continue;
#pragma unroll 4
      for (int j = 0; j < from; j++) {
        float s[C];
        Own::read(s, x + j * Own::kStride + col);
        add(v[b], m(i, j), s);
      }
    }
#pragma unroll
    for (int a = 0; a < kBlocks; a++)
#pragma unroll 1
      for (int j = max(from, a * kSolve); j < min(n, (a + 1) * kSolve); j++) {
        float s[C];
        take(s, a, j % kSolve);
#pragma unroll
        for (int b = a; b < kBlocks; b++) {
          int i = b * kSolve + lane;
          if (i > j && i < n) add(v[b], m(i, j), s);
        }
      }
  }
};

// solve continues rows [from, n) of x, each over the rows before it, by fma with m(i, j); four(i, j, w) are those of
// row i and rows j ... j+3 where from is 0 and n kChunk. Row i of x is x + row(i)*kStride, where from is not 0
// x + i*kStride; to(i, j, y) takes what row i is in columns j, j+1, ...
template <int V, int TEAM, class R, class M, class F, class W>
__device__ inline void solve(const float* x, int from, int n, R row, M m, F four, W to) {
  using Own = Chains<V, TEAM>;
  SolvedRows<V, TEAM> rows;
#pragma unroll
  for (int b = 0; b < rows.kBlocks; b++)
    if (b * kSolve + rows.lane < n) Own::read(rows.v[b], x + row(b * kSolve + rows.lane) * Own::kStride + rows.col);
  if constexpr (V == kTile)
    rows.some(x, from, n, m);  // the other would spill
  else if (from == 0 && n == kChunk)
    rows.whole(four);
  else
    rows.some(x, from, n, m);
#pragma unroll
  for (int b = 0; b < rows.kBlocks; b++) {
    int i = b * kSolve + rows.lane;
    if (i >= from && i < n) to(i, rows.col, rows.v[b]);
  }
}
