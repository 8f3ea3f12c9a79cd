// Attention of few queries on many keys (decoding), rule 2 of the definition as kernels/cpu/attention.go states it. A tile is all (query, head of the group) pairs of a
// span and a KV head, at most 8*R. A block takes one split of its keys, in rounds of two key blocks; the last that is done puts splits together.
//
//   one warp    copies keys and values into a ring of slots, a key block each, as far ahead as there are slots
//   four warps  1. dots: each 16 keys of both blocks, chains over D             S[pair][key], to shared memory
//               2. the online softmax: each every fourth pair, block after block   P[pair][key] bf16, the factors of what was accumulated
//               3. values: each every fourth 16 columns, chains over the keys of a block from the accumulator times its factor
//
// The products are transposed, S^T = K Q^T and O^T = V^T P^T, so that 16 x 8 tiles of mma.sync hold 8 pairs; a step is the same step. Only 3. waits for the block before it,
// four steps a block. Bound: the bytes of K and V.
#include "keys.cuh"

constexpr int kTeam = 4, kRound = 2 * kRows, kMostSlots = 12;

extern __shared__ __align__(1024) char slots[];

// Board is what the warps of a block tell each other. Rows of dots and weights are a piece longer than a round, so that eight of them lie in different banks.
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

  // block turns dots of the keys from x on into weights and returns the factor of what was accumulated. Rules for -Inf and NaN as in Online.
  __device__ float block(const float* dots, u16* weights, int x, float c) {
    int lane = warp_lane();
    float u0 = seen.has(x + lane) ? dots[lane] * c : -infinity(), u1 = seen.has(x + lane + kWarp) ? dots[lane + kWarp] * c : -infinity();
    float top = larger(m, larger(u0, u1));
#pragma unroll
    for (int s = kWarp / 2; s > 0; s >>= 1) top = larger(top, __shfl_xor_sync(~0u, top, s));
    float at = top == -infinity() ? 0.f : top, decay = exp2_def((m - at) + (at - at));
    u0 = exp2_number(u0 - at), u1 = exp2_number(u1 - at);
    weights[lane] = narrow(u0), weights[lane + kWarp] = narrow(u1);
    float sum = u0 + u1;
#pragma unroll
    for (int s = kWarp / 2; s > 0; s >>= 1) sum = sum + __shfl_xor_sync(~0u, sum, s);
    m = top;
    l = l * decay + sum;
    return decay;
  }
};

__device__ inline void team_sync() { asm volatile("bar.sync 1, %0;" ::"n"(kTeam * kWarp) : "memory"); }

template <int D, int R>
__device__ inline void decode(const Maps& maps, u16* out, float* lse, const u16* q, const Tile* tiles, const int* pages, float* partials, int* done, int ring_slots, int box,
                              int kv_heads, int group, int os, int lses, int qs, int page_rows, int window, float c) {
  constexpr int kParts = D / 16, kOwn = (kParts + kTeam - 1) / kTeam;  // parts of 16 columns, and how many a warp has
  __shared__ Board<R> board;
  int lane = warp_lane(), warp = threadIdx.x / kWarp, kv_head = blockIdx.x % kv_heads;
  Tile t = tiles[blockIdx.x / kv_heads];
  Ring<D> ring = {slots, board.full, board.empty, ring_slots, 0, 0};
  ring.prepare(kTeam);
  if (warp == kTeam) {
    ring.copy(maps, t, {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows}, kv_head, box);
    return;
  }
  int count = (t.to - t.from) * group, blocks = (t.last - t.first + kRows - 1) / kRows;
  auto head_of = [&](int pair) { return kv_head * group + pair % group; };
  auto row_of = [&](int pair) { return (long long)t.row + pair / group; };
  auto out_of = [&](int pair) { return out + row_of(pair) * os + head_of(pair) * D; };
  auto lse_of = [&](int pair) { return lse + row_of(pair) * lses + head_of(pair); };
  u32 qf[R][kParts][2];
#pragma unroll
  for (int i = 0; i < R; i++) {
    int pair = 8 * i + lane / 4;
    const u16* from = q + row_of(pair) * qs + head_of(pair) * D + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kParts; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) qf[i][j][h] = pair < count ? *(const u32*)(from + j * 16 + h * 8) : 0;
  }
  Pair pairs[2 * R];
#pragma unroll
  for (int i = 0; i < 2 * R; i++) pairs[i].seen = keys_of(t.from + (warp + kTeam * i) / group, t.last, window);
  float o[kOwn][R][4] = {};

  for (int i = 0; i < blocks; i += 2) {
    int x = t.first + i * kRows, n = min(2, blocks - i);
    Held keys[2], values[2];  // where there is no second block it is the first again, and what comes of it is masked
    keys[0] = ring.take(), values[0] = ring.take();
    keys[1] = n > 1 ? ring.take() : keys[0], values[1] = n > 1 ? ring.take() : values[0];
    auto release = [&](const Held(&h)[2]) {
      __syncwarp();
      h[0].release();
      if (n > 1) h[1].release();
    };
    keys[0].wait(), keys[1].wait();
    float s[2][R][4] = {};
#pragma unroll
    for (int j = 0; j < kParts; j++)
#pragma unroll
      for (int b = 0; b < 2; b++) {
        u32 a[4];
        load4(a, keys[b].tile + swizzled(16 * warp + (lane & 15), 2 * j + (lane >> 4)));
#pragma unroll
        for (int r = 0; r < R; r++) step(s[b][r], a, qf[r][j][0], qf[r][j][1]);
      }
    release(keys);
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int w = 0; w < 4; w++) board.dots[8 * r + lane % 4 * 2 + w % 2][b * kRows + 16 * warp + lane / 4 + w / 2 * 8] = s[b][r][w];
    team_sync();
#pragma unroll
    for (int r = 0; r < 2 * R; r++) {
      int pair = warp + kTeam * r;
      if (pair >= count) break;
#pragma unroll
      for (int b = 0; b < 2; b++) {
        float decay = pairs[r].block(board.dots[pair] + b * kRows, board.weights[pair] + b * kRows, x + b * kRows, c);
        if (lane == 0) board.decay[b][pair] = decay;
      }
    }
    values[0].wait(), values[1].wait();
    if (x + n * kRows > t.last) clear_rows<D>(values[1].tile, t.last - x - (n - 1) * kRows, threadIdx.x, kTeam * kWarp);
    team_sync();
#pragma unroll
    for (int b = 0; b < 2; b++) {
      if (b == n) break;
#pragma unroll
      for (int r = 0; r < R; r++) {
        float2 decay = *(const float2*)(board.decay[b] + 8 * r + lane % 4 * 2);
#pragma unroll
        for (int p = 0; p < kOwn; p++)
#pragma unroll
          for (int w = 0; w < 4; w++) o[p][r][w] *= w % 2 ? decay.y : decay.x;
      }
#pragma unroll
      for (int y = 0; y < kRows; y += 32) {
        u32 w[R][4];
#pragma unroll
        for (int r = 0; r < R; r++) load4(w[r], &board.weights[8 * r + (lane & 7)][b * kRows + y + (lane >> 3) * 8]);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int p = 0; p < kOwn; p++) {
            if (warp + kTeam * p >= kParts) continue;
            u32 a[4];
            load4_transposed(a, values[b].tile + swizzled(y + 16 * h + (lane & 7) + (lane >> 4) * 8, 2 * (warp + kTeam * p) + (lane >> 3 & 1)));
#pragma unroll
            for (int r = 0; r < R; r++) step(o[p][r], a, w[r][2 * h], w[r][2 * h + 1]);
          }
      }
    }
    release(values);
  }

  Partial<D, 8 * R> partial = {partials, done, kv_heads};
#pragma unroll
  for (int r = 0; r < 2 * R; r++) {
    int pair = warp + kTeam * r;
    if (pair >= count || lane > 0) continue;
    if (t.slot >= 0) {
      float* to = partial.row(t.slot, kv_head, pair) + D;
      to[0] = pairs[r].m, to[1] = pairs[r].l;
    } else {
      board.inverse[pair] = 1.f / pairs[r].l;
      *lse_of(pair) = pairs[r].m + ln_def(pairs[r].l) * kLog2E;
    }
  }
  team_sync();
#pragma unroll
  for (int p = 0; p < kOwn; p++) {
    if (warp + kTeam * p >= kParts) continue;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int w = 0; w < 4; w++) {
        int pair = 8 * r + lane % 4 * 2 + w % 2, d = (warp + kTeam * p) * 16 + lane / 4 + w / 2 * 8;
        if (pair >= count) continue;
        if (t.slot >= 0) partial.row(t.slot, kv_head, pair)[d] = o[p][r][w];
        else out_of(pair)[d] = narrow(o[p][r][w] * board.inverse[pair] + 0.f);
      }
  }
  if (t.slot < 0 || !partial.complete(t, kv_head, team_sync)) return;
  for (int pair = warp; pair < count; pair += kTeam) partial.merge(t, kv_head, pair, out_of(pair), lse_of(pair));
}

#define DECODE(D, R)                                                                                                                                                   \
  extern "C" __global__ void __launch_bounds__((kTeam + 1) * kWarp)                                                                                                    \
  attention_decode_##D##_##R(const __grid_constant__ Maps maps, u16* out, float* lse, const u16* q, const Tile* tiles, const int* pages, float* partials, int* done,    \
                             int ring_slots, int box, int kv_heads, int group, int os, int lses, int qs, int page_rows, int window, float c) {                         \
    decode<D, R>(maps, out, lse, q, tiles, pages, partials, done, ring_slots, box, kv_heads, group, os, lses, qs, page_rows, window, c);                                      \
  }
#define DECODES(D) DECODE(D, 1) DECODE(D, 2) DECODE(D, 4)
DECODES(16)
DECODES(32)
DECODES(64)
DECODES(96)
DECODES(128)
