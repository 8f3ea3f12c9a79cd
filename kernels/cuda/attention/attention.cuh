// What the kernels of attention share: where rows of queries and keys lie, tiles in shared memory for mma.sync, the
// softmax of a block and its gradient.
#pragma once
#include "mma.cuh"

constexpr int kRows = 64;  // keys of a block

// Keys says where positions of a sequence lie: row base + position, or in pages.
struct Keys {
  const int* pages;  // of this sequence; nil: no pages
  int base, page_rows;
  __device__ long long row(int position) const {
    return pages ? (long long)pages[position / page_rows] * page_rows + position % page_rows
                 : (long long)base + position;
  }
};

struct Tile {
  int row, from, to;  // batch row of the first query; positions of queries
  int first, last;    // keys of this piece of work; first is a multiple of 64
  int base, pages;    // row of position 0, or where the sequence's pages begin (-1: none)
  int slot;           // of the partial result; -1: the tile has one split
  int begin, splits;  // the tile's first slot and how many follow
  int merge;          // its number among such tiles
};

// Partial is what splits leave for the merge: for slot, KV head and row D values, maximum and sum.
template <int D, int Rows>
struct Partial {
  float* base;
  int* done;  // splits of a merge and a KV head that are done
  int kv_heads;
  __device__ float* row(int slot, int kv_head, int r) const {
    return base + (((long long)slot * kv_heads + kv_head) * Rows + r) * (D + 2);
  }

  // complete counts a split; true for the last, whose block then sees all of them and leaves the count at 0. `sync` is
  // a barrier of the threads that wrote.
  template <class F>
  __device__ bool complete(const Tile& t, int kv_head, F sync) const {
    __shared__ int last;
    __threadfence();
    sync();
    int* count = done + t.merge * kv_heads + kv_head;
    if (threadIdx.x == 0) {
      last = atomicAdd(count, 1) + 1 == t.splits;
      if (last) *count = 0;
    }
    sync();
    __threadfence();
    return last;
  }

  // merge puts a row's splits together, by a warp: m' = max(m, m_s), l = l*Exp2(m-m') + l_s*Exp2(m_s-m'), o likewise.
  __device__ void merge(const Tile& t, int kv_head, int r, u16* out, float* lse) const {
    constexpr int kColumns = (D + kWarp - 1) / kWarp;
    float m = -infinity(), l = 0.f, o[kColumns] = {};
    int lane = warp_lane();
#pragma unroll 4
    for (int s = 0; s < t.splits; s++) {
      const float* from = row(t.begin + s, kv_head, r);  // past L1, which may hold what lay there before
      float v[kColumns], ms = __ldcg(from + D), ls = __ldcg(from + D + 1);
#pragma unroll
      for (int i = 0; i < kColumns; i++) v[i] = lane + i * kWarp < D ? __ldcg(from + lane + i * kWarp) : 0.f;
      if (ms == -infinity()) continue;
      float to = larger(m, ms), a = exp2_def(m - to), b = exp2_def(ms - to);
      l = l * a + ls * b;
#pragma unroll
      for (int i = 0; i < kColumns; i++) o[i] = o[i] * a + v[i] * b;
      m = to;
    }
#pragma unroll
    for (int i = 0; i < kColumns; i++)
      if (lane + i * kWarp < D) out[lane + i * kWarp] = narrow(o[i] * (1.f / l) + 0.f);
    if (lane == 0) *lse = m + ln_def(l) * kLog2E;
  }
};

struct Part {
  int row, rows;  // of the sequence in the batch
  int at;         // first position of the 64
};

// steps_of rounds a width up to whole steps of the dot.
constexpr int steps_of(int d) { return (d + 15) / 16 * 16; }

// load_rows brings `count` rows of Own columns into [Rows][D + 8]; other rows and columns are zero. row(i) is the
// address of row i.
template <int D, int Rows, int Threads, int Own = D, class F>
__device__ inline void load_rows(u16* to, int count, F row) {
#pragma unroll
  for (int i = 0; i < Rows * (D / 8); i += Threads) {
    int c = i + threadIdx.x, r = c / (D / 8), at = c % (D / 8) * 8;
    bool in = r < count && at < Own;
    if (Rows * (D / 8) % Threads == 0 || c < Rows * (D / 8))
      copy16(to + r * (D + 8) + at, row(in ? r : 0) + (in ? at : 0), in ? 16 : 0);
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

// accumulate: o [16 rows, D] continues its chain over 64 k of p (from pack) and rows of b in shared memory.
template <int D>
__device__ inline void accumulate(float o[D / 8][4], const u32 p[4][4], const u16* b) {
  int lane = warp_lane();
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      u32 y[4];
      load4_transposed(y, b + (k * 16 + (lane & 15)) * (D + 8) + j * 16 + (lane >> 4) * 8);
      step(o[2 * j], p[k], y[0], y[1]);
      step(o[2 * j + 1], p[k], y[2], y[3]);
    }
}

// pack rounds an accumulator [16, 16*K] of a warp to bf16, as the operand of K steps.
template <int K>
__device__ inline void pack(u32 (&p)[K][4], const float (&s)[2 * K][4]) {
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float* x = s[2 * k + i / 2] + i % 2 * 2;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(p[k][i]) : "f"(x[1]), "f"(x[0]));
    }
}

// put rounds a warp's sums, of 16 rows from `first` on, to the rows of a gradient of D columns; those from `count` on
// are unused.
template <int D, int N>
__device__ inline void put(u16* to, const float (&x)[N][4], int stride, int first, int count) {
  int lane = warp_lane();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    if (r >= count) continue;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      *(u32*)(to + (long long)r * stride + j * 8 + lane % 4 * 2) = pair(x[j][2 * h] + 0.f, x[j][2 * h + 1] + 0.f);
  }
}

// Range is positions from `from` on: the keys before `last` that a query sees, or the queries before `end` that see a
// key.
struct Range {
  int from;
  u32 count;
  __device__ bool has(int x) const { return (u32)(x - from) < count; }
};
__device__ inline Range keys_of(int query, int last, int window) {
  int from = window ? query - window + 1 : 0;
  return {from, (u32)max(0, min(query + 1, last) - from)};
}
__device__ inline Range queries_of(int key, int end, int window) {
  return {key, (u32)max(0, window ? min(window, end - key) : end - key)};
}

// all_visible: keys x ... x+63 are visible to all queries of [from, to].
__device__ inline bool all_visible(int from, int to, int x, int window) {
  return x + kRows - 1 <= from && (window == 0 || x > to - window);
}

// exp2_number is exp2_def of what is not NaN.
__device__ inline float exp2_number(float x) {
#ifdef EXP2_EX2H
  return exp2_def(x);
#else
  float y = exp2_normal(x);
  return x < -126.f ? 0.f : y;
#endif
}

// gradients converts dot(q, k) and dot(dout, v) of a pair to p and ds.
__device__ inline void gradients(float& p, float& ds, bool seen, float c, float lse, float delta, float scale) {
  p = exp2_number(fminf(p * c - lse, 0.f));
  p = seen ? p : 0.f;
  ds = (p * (ds - delta)) * scale;
}

// exp2_straight is exp2_def without branches, which would part the instructions around it.
__device__ inline float exp2_straight(float x) {
#ifdef EXP2_EX2H
  return exp2_def(x);
#else
  float y = exp2_number(x);
  return x == x ? y : x;
#endif
}

// Online is the state of two rows (lane/4 and that + 8 of a warp's 16) in a split: maximum, sum, and the factor of what
// was accumulated before the last block.
struct Online {
  float m[2] = {-infinity(), -infinity()}, l[2] = {0.f, 0.f}, decay[2];

  // block converts dots with the keys from x on to p and moves the state. A row that sees no key so far has m = -Inf, p
  // = 0; one with a score that is NaN or +Inf becomes NaN through decay. Both rows go side by side, and maxima in four
  // chains (any order gives the same), because few warps hide the latencies.
  template <bool Masked>
  __device__ void block(float s[8][4], const Range seen[2], int x, float c) {
    float top[2][4], at[2], sum[2][2][4];  // sum: the tree of 64, whose halves 32, 16, 8 are in the thread
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
          float &u = s[j][2 * h + w], &t = top[h][j % 2 * 2 + w];
          u = Masked && !seen[h].has(x + warp_lane() % 4 * 2 + j * 8 + w) ? -infinity() : u * c;
          t = j < 2 ? u : larger(t, u);
        }
#pragma unroll
    for (int h = 0; h < 2; h++)
      top[h][0] = larger(larger(larger(top[h][0], top[h][1]), larger(top[h][2], top[h][3])), m[h]);
#pragma unroll
    for (int i = 1; i < 4; i <<= 1)
#pragma unroll
      for (int h = 0; h < 2; h++) top[h][0] = larger(top[h][0], __shfl_xor_sync(~0u, top[h][0], i));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      at[h] = top[h][0] == -infinity() ? 0.f : top[h][0];
      decay[h] = exp2_straight((m[h] - at[h]) + (at[h] - at[h]));
      m[h] = top[h][0];
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int w = 0; w < 2; w++) s[j][2 * h + w] = exp2_number(s[j][2 * h + w] - at[h]);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int w = 0; w < 2; w++) {
#pragma unroll
        for (int j = 0; j < 4; j++) sum[h][w][j] = s[j][2 * h + w] + s[j + 4][2 * h + w];
        sum[h][w][0] = (sum[h][w][0] + sum[h][w][2]) + (sum[h][w][1] + sum[h][w][3]);
      }
#pragma unroll
    for (int i = 2; i > 0; i >>= 1)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int w = 0; w < 2; w++) sum[h][w][0] = sum[h][w][0] + __shfl_xor_sync(~0u, sum[h][w][0], i);
#pragma unroll
    for (int h = 0; h < 2; h++) l[h] = l[h] * decay[h] + (sum[h][0][0] + sum[h][1][0]);
  }

  // scale multiplies what was accumulated; a factor of 1 changes nothing.
  template <int N>
  __device__ void scale(float (&o)[N][4]) const {
    if (__all_sync(~0u, decay[0] == 1.f && decay[1] == 1.f)) return;
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
      for (int v = 0; v < 4; v++) o[j][v] *= decay[v / 2];
  }
};

