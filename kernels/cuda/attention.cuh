// What the forward and the backward of attention share: where rows of queries and keys lie, and tiles of 64 rows in shared memory.
#pragma once
#include "mma.cuh"

constexpr int kRows = 64, kAttentionThreads = 128;  // a warp has 16 rows

// Keys says where positions of a sequence lie: row base + position, or in pages.
struct Keys {
  const int* pages;  // of this sequence; nil: no pages
  int base, page_rows;
  __device__ long long row(int position) const {
    return pages ? (long long)pages[position / page_rows] * page_rows + position % page_rows : (long long)base + position;
  }
};

// load_rows brings `count` rows (0 to 64) of D columns into [64][D + 8]; the others are zero. row(i) is the address of row i.
template <int D, class F>
__device__ inline void load_rows(u16* to, int count, F row) {
  for (int c = threadIdx.x; c < kRows * (D / 8); c += kAttentionThreads) {
    int r = c / (D / 8), at = c % (D / 8) * 8;
    bool in = r < count;
    copy16(to + r * (D + 8) + at, in ? (const void*)(row(r) + at) : (const void*)row(0), in ? 16 : 0);
  }
}

// scores: s [16 rows, 64] = dot over D of rows of a (from `first`) and of b, both in shared memory.
template <int D>
__device__ inline void scores(float s[8][4], const u16* a, int first, const u16* b) {
  int lane = warp_lane();
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int v = 0; v < 4; v++) s[j][v] = 0.f;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    u32 x[4];
    load4(x, a + (first + (lane & 15)) * (D + 8) + k + (lane >> 4) * 8);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u32 y[4];
      load4(y, b + (j * 16 + (lane & 7) + (lane >> 4) * 8) * (D + 8) + k + (lane >> 3 & 1) * 8);
      step(s[2 * j], x, y[0], y[1]);
      step(s[2 * j + 1], x, y[2], y[3]);
    }
  }
}

// accumulate: o [16 rows, D] continues its chain over 64 k of p (rounded to bf16) and rows of b in shared memory.
template <int D>
__device__ inline void accumulate(float o[D / 8][4], const float p[8][4], const u16* b) {
  int lane = warp_lane();
#pragma unroll
  for (int k = 0; k < 4; k++) {
    u32 x[4] = {pair(p[2 * k][0], p[2 * k][1]), pair(p[2 * k][2], p[2 * k][3]), pair(p[2 * k + 1][0], p[2 * k + 1][1]), pair(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      u32 y[4];
      load4_transposed(y, b + (k * 16 + (lane & 15)) * (D + 8) + j * 16 + (lane >> 4) * 8);
      step(o[2 * j], x, y[0], y[1]);
      step(o[2 * j + 1], x, y[2], y[3]);
    }
  }
}

__device__ inline bool visible(int query, int key, int window) { return key <= query && (window == 0 || key > query - window); }
