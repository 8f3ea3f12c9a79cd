// Attention of few queries on many keys (decoding), rule 2 of the definition as kernels/cpu/attention.go states it. A
// tile is all (query, head of the group) pairs of a span and a KV head, at most 8*R. A block takes one split of its
// keys, in rounds of two key blocks; the last that is done puts splits together.
//
//   one warp    copies keys and values into a ring of slots, a key block each, as far ahead as there are slots
//   four warps  1. dots: each 16 keys of both blocks, chains over D             S[pair][key], to shared memory
//               2. the online softmax: each every fourth pair, block after block P[pair][key] bf16, the factors of what
//                  was accumulated
//               3. values: each every fourth 16 columns, chains over the keys of a block from the accumulator times its
//                  factor
//
// The products are transposed, S^T = K Q^T and O^T = V^T P^T, so that 16 x 8 tiles of mma.sync hold 8 pairs; a step is
// the same step. Only 3. waits for the block before it, four steps a block. Bound: the bytes of K and V.
#pragma once
#include "keys.cuh"

constexpr int kTeam = 4, kRound = 2 * kRows, kMostSlots = 12;

extern __shared__ __align__(1024) char slots[];

// Board is what the warps of a block tell each other. Rows of dots and weights are a piece longer than a round, so that
// eight of them lie in different banks.
template <int R>
struct Board {
  alignas(16) float dots[8 * R][kRound + 4];
  alignas(16) u16 weights[8 * R][kRound + 8];
  alignas(8) float decay[2][8 * R];
  float inverse[8 * R];
  u64 full[kMostSlots], empty[kMostSlots];
};

// Pair is the online softmax of one pair, by one warp: maximum and sum, and the keys it sees.
struct Pair {
  float m = -infinity(), l = 0.f;
  Range seen;

  // round converts dots of the keys from x on to weights and gives the factors of what was accumulated before each
  // block. Rules for -Inf and NaN as in Online.
  __device__ void round(const float* dots, u16* weights, float (&decay)[2], int x, float c) {
    int lane = warp_lane();
    float u[2][2], top[2], sum[2];
#pragma unroll
    for (int b = 0; b < 2; b++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int j = b * kRows + h * kWarp + lane;
        u[b][h] = seen.has(x + j) ? dots[j] * c : -infinity();
      }
      top[b] = larger(u[b][0], u[b][1]);
    }
#pragma unroll
    for (int s = kWarp / 2; s > 0; s >>= 1)
#pragma unroll
      for (int b = 0; b < 2; b++) top[b] = larger(top[b], __shfl_xor_sync(~0u, top[b], s));
#pragma unroll
    for (int b = 0; b < 2; b++) {
      top[b] = larger(m, top[b]);
      float at = top[b] == -infinity() ? 0.f : top[b];
      decay[b] = exp2_straight((m - at) + (at - at));
      m = top[b];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        u[b][h] = exp2_number(u[b][h] - at);
        weights[b * kRows + h * kWarp + lane] = narrow(u[b][h]);
      }
      sum[b] = u[b][0] + u[b][1];
    }
#pragma unroll
    for (int s = kWarp / 2; s > 0; s >>= 1)
#pragma unroll
      for (int b = 0; b < 2; b++) sum[b] = sum[b] + __shfl_xor_sync(~0u, sum[b], s);
    l = (l * decay[0] + sum[0]) * decay[1] + sum[1];
  }
};

__device__ inline void team_sync() { asm volatile("bar.sync 1, %0;" ::"n"(kTeam * kWarp) : "memory"); }

// InNumbers is a ring whose tiles are bf16 numbers, and how a warp reads the operands of steps from them.
template <int D>
struct InNumbers {
  using Slots = Ring<D, 1>;
  static constexpr int kReaders = kTeam, kWriters = 1;  // arrivals for each slot
  static constexpr int kAhead = 4;                      // steps whose operands are loaded together
  Slots ring;

  // column of a part's 16 is that of row lane/4, or that + 8, of the sums of values.
  __device__ static int column(int lane, int half) { return lane / 4 + half * 8; }
  // query is the operand of step j for the head that begins at `from`.
  __device__ static void query(u32 (&x)[2], const u16* from, int lane, int j) {
    x[0] = *(const u32*)(from + j * 16 + lane % 4 * 2), x[1] = *(const u32*)(from + j * 16 + 8 + lane % 4 * 2);
  }

  // Of are 16 keys of two blocks, from key `first` on.
  struct Of {
    u32 at[2];
    __device__ Of(const InNumbers& in, const Held (&h)[2], int first, int lane) {
      int mine = swizzled(first + (lane & 15), lane >> 4);
#pragma unroll
      for (int b = 0; b < 2; b++) at[b] = shared_address(in.ring.tile(h[b]) + mine);
    }
    // load brings the operands of step j.
    __device__ void load(u32 (&a)[2][4], int j) {
#pragma unroll
      for (int b = 0; b < 2; b++) load4(a[b], (at[b] ^ j % 4 * 32) + j / 4 * kPanel);
    }
  };

  // load brings values of N steps of 16 keys from step `first` on, for the warp's parts.
  template <int N, int Own, class F>
  __device__ void load(u32 (&a)[N][Own][4], const Held& h, int first, int warp, int lane, F has) const {
    u32 at = shared_address(ring.tile(h) + swizzled((lane & 7) + (lane >> 4) * 8, 2 * warp + (lane >> 3 & 1)));
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
      for (int p = 0; p < Own; p++)
        if (has(p)) load4_transposed(a[k][p], at + (first + k) * 16 * 128 + p * kPanel);
  }
  // clear zeroes values from row `from` on.
  __device__ void clear(const Held& h, int from) const {
    clear_rows<D>(ring.tile(h), from, threadIdx.x, kTeam * kWarp);
  }
  // release gives back what the warp has read.
  __device__ void release(const Held& h) const {
    __syncwarp();
    ring.release(h);
  }
};

// Worker is one of the four warps: its pairs and its parts, of 16 columns, of all pairs.
template <int D, int R, class In>
struct Worker {
  static constexpr int kParts = D / 16, kOwn = (kParts + kTeam - 1) / kTeam;
  Board<R>& board;
  int lane, warp, count;  // of pairs
  u32 queries[R][kParts][2];
  Pair pairs[2 * R];
  float o[kOwn][R][4];

  __device__ Worker(Board<R>& board, int count)
      : board(board), lane(warp_lane()), warp(threadIdx.x / kWarp), count(count), o{} {}

  // has tells whether the warp has a p-th part.
  __device__ bool has(int p) const { return (p + 1) * kTeam <= kParts || warp + kTeam * p < kParts; }

  // dots writes those of 16 keys of each block to the board.
  __device__ void dots(const In& in, const Held (&h)[2]) {
    float s[2][R][4] = {};
    typename In::Of keys(in, h, 16 * warp, lane);
    constexpr int kAhead = kParts < In::kAhead ? kParts : kParts % In::kAhead ? 3 : In::kAhead;
#pragma unroll
    for (int j = 0; j < kParts; j += kAhead) {
      u32 a[kAhead][2][4];
#pragma unroll
      for (int i = 0; i < kAhead; i++) keys.load(a[i], j + i);
#pragma unroll
      for (int i = 0; i < kAhead; i++)
#pragma unroll
        for (int b = 0; b < 2; b++)
#pragma unroll
          for (int r = 0; r < R; r++) step(s[b][r], a[i][b], queries[r][j + i][0], queries[r][j + i][1]);
    }
    float* to = &board.dots[lane % 4 * 2][16 * warp + lane / 4];
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int w = 0; w < 4; w++) to[(8 * r + w % 2) * (kRound + 4) + b * kRows + w / 2 * 8] = s[b][r][w];
  }

  // soften converts the dots of its pairs to weights.
  __device__ void soften(int x, float c) {
#pragma unroll
    for (int r = 0; r < 2 * R; r++) {
      int pair = warp + kTeam * r;
      if (pair >= count) return;
      float decay[2];
      pairs[r].round(board.dots[pair], board.weights[pair], decay, x, c);
      if (lane < 2) board.decay[lane][pair] = lane ? decay[1] : decay[0];
    }
  }

  // add accumulates the values of block b.
  __device__ void add(const In& in, const Held& h, int b) {
    u32 weights = shared_address(&board.weights[lane & 7][b * kRows + (lane >> 3) * 8]);
#pragma unroll
    for (int r = 0; r < R; r++) {
      float2 decay = *(const float2*)(board.decay[b] + 8 * r + lane % 4 * 2);
#pragma unroll
      for (int p = 0; p < kOwn; p++)
#pragma unroll
        for (int w = 0; w < 4; w++) o[p][r][w] *= w % 2 ? decay.y : decay.x;
    }
    constexpr int kAhead = In::kAhead;
    u32 a[kAhead][kOwn][4];
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      if (k % kAhead == 0) in.load(a, h, k, warp, lane, [&](int p) { return has(p); });
      u32 w[R][4];
#pragma unroll
      for (int r = 0; r < R; r++) load4(w[r], weights + r * (8 * sizeof board.weights[0]) + k * 32);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int p = 0; p < kOwn; p++)
#pragma unroll
          for (int r = 0; r < R; r++)
            if (has(p)) step(o[p][r], a[k % kAhead + i][p], w[r][2 * i], w[r][2 * i + 1]);
    }
  }

  // each calls f(pair, column, value) for what it has accumulated.
  template <class F>
  __device__ void each(F f) const {
#pragma unroll
    for (int p = 0; p < kOwn; p++)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int w = 0; w < 4; w++) {
          int pair = 8 * r + lane % 4 * 2 + w % 2;
          if (has(p) && pair < count) f(pair, (warp + kTeam * p) * 16 + In::column(lane, w / 2), o[p][r][w]);
        }
  }
};

// decode takes a tile's split; in.ring has no place yet, and copy is by the warp that copies.
template <int D, int R, class In, class F>
__device__ inline void decode(In in, F copy, u16* out, float* lse, const u16* q, const Tile* tiles, float* partials,
                              int* done, int ring_slots, int kv_heads, int group, int os, int lses, int qs, int window,
                              float c) {
  __shared__ Board<R> board;
  int lane = warp_lane(), warp = threadIdx.x / kWarp, kv_head = blockIdx.x % kv_heads;
  Tile t = tiles[blockIdx.x / kv_heads];
  auto& ring = in.ring;
  ring.base = slots, ring.full = board.full, ring.empty = board.empty, ring.count = ring_slots;
  ring.slot = ring.phase = 0;
  ring.prepare(In::kReaders, In::kWriters);
  if (warp == kTeam) {
    copy(ring, t, kv_head);
    return;
  }
  Worker<D, R, In> me(board, (t.to - t.from) * group);
  auto head_of = [&](int pair) { return kv_head * group + pair % group; };
  auto row_of = [&](int pair) { return (long long)t.row + pair / group; };
#pragma unroll
  for (int r = 0; r < R; r++) {
    int pair = 8 * r + lane / 4;
    const u16* from = q + row_of(pair) * qs + head_of(pair) * D;
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      me.queries[r][j][0] = me.queries[r][j][1] = 0;
      if (pair < me.count) In::query(me.queries[r][j], from, lane, j);
    }
  }
#pragma unroll
  for (int r = 0; r < 2 * R; r++) me.pairs[r].seen = keys_of(t.from + (warp + kTeam * r) / group, t.last, window);

  for (int x = t.first; x < t.last; x += kRound) {
    bool two = x + kRows < t.last;
    // where there is no second block it is the first again: its dots are masked, its values not added
    Held keys[2], values[2];
    keys[0] = ring.take(), values[0] = ring.take();
    keys[1] = two ? ring.take() : keys[0], values[1] = two ? ring.take() : values[0];
    ring.wait(keys[0]), ring.wait(keys[1]);
    me.dots(in, keys);
    in.release(keys[0]);
    if (two) in.release(keys[1]);
    team_sync();
    me.soften(x, c);
    ring.wait(values[0]), ring.wait(values[1]);
    int left = t.last - x - (two ? kRows : 0);
    if (left < kRows) in.clear(values[1], left);
    team_sync();
    me.add(in, values[0], 0);
    if (two) me.add(in, values[1], 1);
    in.release(values[0]);
    if (two) in.release(values[1]);
  }

  auto out_of = [&](int pair) { return out + row_of(pair) * os + head_of(pair) * D; };
  auto lse_of = [&](int pair) { return lse + row_of(pair) * lses + head_of(pair); };
  Partial<D, 8 * R> partial = {partials, done, kv_heads};
#pragma unroll
  for (int r = 0; r < 2 * R; r++) {
    int pair = warp + kTeam * r;
    if (pair >= me.count || lane > 0) continue;
    float m = me.pairs[r].m, l = me.pairs[r].l;
    if (t.slot >= 0) *(float2*)(partial.row(t.slot, kv_head, pair) + D) = make_float2(m, l);
    else board.inverse[pair] = 1.f / l, *lse_of(pair) = m + ln_def(l) * kLog2E;
  }
  if (t.slot >= 0) {
    me.each([&](int pair, int d, float v) { partial.row(t.slot, kv_head, pair)[d] = v; });
    if (partial.complete(t, kv_head, team_sync))
      for (int pair = warp; pair < me.count; pair += kTeam) partial.merge(t, kv_head, pair, out_of(pair), lse_of(pair));
    return;
  }
  team_sync();
  me.each([&](int pair, int d, float v) { out_of(pair)[d] = narrow(v * board.inverse[pair] + 0.f); });
}
