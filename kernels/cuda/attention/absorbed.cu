// Absorbed latent attention, forward: rules 2 and 3 of the definition where all heads share one row of D columns for
// each key, and the first V of them are its value; kernels/cpu/ attention.go states the sums. One kernel serves dense
// attention and lists, training, prefill and decoding: a block takes a query and 64 of its heads (fewer where blocks do
// not fill the card) along a split of its list, in blocks of 64 entries whose rows it gathers one block ahead, and each
// row is read once for all these heads. A list of one split is written directly; the splits of a longer one go to a
// workspace and absorbed_merge puts them together.
//
// A step is S = Q K' by warps of 16 heads and the 32 even or odd keys, whose maxima and sums meet in shared memory (the
// last level of the tree of 64 adds even and odd ones), and O += P V by warps of 32 heads and V/4 columns, 128 sums a
// thread. Q, two key blocks and P take 226 of 227 KiB.
// Bound: 2*64*64*(D + V) flops a step, 8.9 M, at 64*2*D bytes, 73 KB: tensor cores, not L2. With mma.sync fragments
// come through shared memory, 0.6 MB a step, and ldmatrix at half of its 128 bytes a clock: 9,400 clocks, where the
// products alone take 3,500. On an H200, 64 heads of 576 and 512 columns: sparse, 65,536 rows and lists of 2,048: 99
// ms, 185 TFLOP/s; dense, 8,192 rows: 27 ms; 256 sequences of 4,096 keys: 0.88 ms, 1.4 TB/s. Cards with wgmma have
// absorbed_wide.cu for these widths.
#include "absorbed.cuh"

extern __shared__ __align__(16) u16 shared[];

// Scores is a warp's part of the online softmax: 16 heads, and of each block the keys that are even, or odd.
struct Scores {
  float* top;     // [2][64] largest of the even and of the odd keys, by head
  float* sum;     // [2][64] sums of p
  float* decay;   // [64] factor of what was accumulated before the block
  int first, odd;
  float m[2] = {-infinity(), -infinity()}, l[2] = {0.f, 0.f}, own[2];

  __device__ int head(int h) const { return first + warp_lane() / 4 + 8 * h; }
  // entry of the block that a thread has in s[j][2*h + w].
  __device__ int entry(int j, int w) const { return 2 * (j * 8 + warp_lane() % 4 * 2 + w) + odd; }

  // maxima scales dots with the block's first `entries` keys and leaves the largest.
  __device__ void maxima(float (&s)[4][4], int entries, float c) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float t = -infinity();
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
          float& u = s[j][2 * h + w];
          u = entry(j, w) < entries ? u * c : -infinity();
          t = larger(t, u);
        }
      t = larger(t, __shfl_xor_sync(~0u, t, 1));
      t = larger(t, __shfl_xor_sync(~0u, t, 2));
      if (warp_lane() % 4 == 0) top[odd * kHeads + head(h)] = t;
    }
  }
  // weigh converts scaled dots to p, in bf16 in `weights`, moves the maximum and leaves the sums.
  __device__ void weigh(float (&s)[4][4], u16* weights) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = head(h);
      float to = larger(larger(top[r], top[kHeads + r]), m[h]), at = to == -infinity() ? 0.f : to;
      own[h] = exp2_straight((m[h] - at) + (at - at));
      m[h] = to;
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
          float& p = s[j][2 * h + w];
          p = exp2_number(p - at);
          weights[Lines<64>::at(r, entry(j, w))] = narrow(p);
        }
      float part[2];
#pragma unroll
      for (int w = 0; w < 2; w++) {
        float t = (s[0][2 * h + w] + s[2][2 * h + w]) + (s[1][2 * h + w] + s[3][2 * h + w]);
        t = t + __shfl_xor_sync(~0u, t, 2);
        part[w] = t + __shfl_xor_sync(~0u, t, 1);
      }
      if (warp_lane() % 4 > 0) continue;
      sum[odd * kHeads + r] = part[0] + part[1];
      decay[r] = own[h];
    }
  }
  // advance moves the sum, once all sums lie there.
  __device__ void advance() {
#pragma unroll
    for (int h = 0; h < 2; h++) l[h] = l[h] * own[h] + (sum[head(h)] + sum[kHeads + head(h)]);
  }
};

template <int D, int V, class S>
__device__ inline void absorbed(const Lists& lists, u16* out, float* lse, const u16* q, const S& k, float* partials,
                                int first, int heads, int each, int os, int lses, int qs, int split, float c) {
  using T = Lines<D>;
  constexpr int kTile = kHeads * T::kStride, kGroups = 4;
  u16 *sq = shared, *sk = sq + kTile, *weights = sk + 2 * kTile;
  float *top = (float*)(weights + kHeads * 64), *sum = top + 2 * kHeads, *decay = sum + 2 * kHeads;
  int* rows = (int*)(decay + kHeads);  // [2][64] of the blocks
  Asked query = lists.query(first + blockIdx.x);
  int head = blockIdx.y * each, own_heads = min(each, heads - head), from = blockIdx.z * split,
      entries = min(query.entries - from, split), blocks = (entries + kRows - 1) / kRows;
  if (entries <= 0) return;
  auto look = [&](int b) {
    if (threadIdx.x < kRows && b < blocks)
      rows[b % 2 * kRows + threadIdx.x] =
          b * kRows + threadIdx.x < entries ? query.key(from + b * kRows + threadIdx.x) : -1;
  };
  auto fetch = [&](int b) {
    if (b < blocks)
      T::template load_keys<kRows, kThreads>(sk + b % 2 * kTile, k, [&](int r) { return rows[b % 2 * kRows + r]; });
    commit();
  };
  T::template load<kHeads, kThreads>(
      sq, q, [&](int r) { return r < own_heads ? (long long)query.row * qs + (head + r) * D : -1ll; });
  look(0), look(1);
  __syncthreads();
  fetch(0);
  int warp = threadIdx.x / kWarp, lane = warp_lane(), band = warp / kGroups * 32, own = warp % kGroups;
  Scores state = {top, sum, decay, warp / 2 * 16, warp % 2};
  bool scores = state.first < own_heads, adds = band < own_heads;
  Sums<V, kGroups> o;
  for (int b = 0; b < blocks; b++) {
    wait<0>();
    __syncthreads();
    fetch(b + 1);
    look(b + 2);
    const u16* keys = sk + b % 2 * kTile;
    float s[4][4];
    if (scores) {
      dots<D>(s, sq, state.first, keys, [&](int i) { return 2 * i + state.odd; });
      state.maxima(s, entries - b * kRows, c);
    }
    __syncthreads();
    if (scores) state.weigh(s, weights);
    __syncthreads();
    if (scores) state.advance();
    if (!adds) continue;
    float factor[2][2];
    bool none = true;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        factor[i][h] = decay[band + i * 16 + lane / 4 + 8 * h], none = none && factor[i][h] == 1.f;
    if (!__all_sync(~0u, none))
      o.each(own, [&](float (&x)[2][2][4], int) {
#pragma unroll
        for (int i = 0; i < 16; i++) x[i / 8][i / 4 % 2][i % 4] *= factor[i / 8][i % 4 / 2];
      });
    o.template add<4, false, T>(weights, band, keys, own);
  }
  int splits = (query.entries + split - 1) / split;
  float* partial = partials + (((size_t)blockIdx.x * gridDim.z + blockIdx.z) * heads + head) * (V + 2);
  __syncthreads();
  if (scores && state.odd == 0 && lane % 4 == 0)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = state.head(h);
      decay[r] = splits > 1 ? 1.f : 1.f / state.l[h];
      if (r >= own_heads) continue;
      if (splits > 1) partial[r * (V + 2) + V] = state.m[h], partial[r * (V + 2) + V + 1] = state.l[h];
      else lse[(size_t)query.row * lses + head + r] = state.m[h] + ln_def(state.l[h]) * kLog2E;
    }
  __syncthreads();
  o.each(own, [&](float (&x)[2][2][4], int column) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int r = band + i / 4 * 16 + lane / 4 + i % 2 * 8, at = column + i / 2 % 2 * 8 + lane % 4 * 2;
      float *y = x[i / 4][i / 2 % 2] + i % 2 * 2, inverse = decay[r];
      if (r >= own_heads) continue;
      if (splits > 1) *(float2*)(partial + r * (V + 2) + at) = make_float2(y[0], y[1]);
      else
        *(u32*)(out + (size_t)query.row * os + (head + r) * V + at) = pair(y[0] * inverse + 0.f, y[1] * inverse + 0.f);
    }
  });
}

// absorbed_merge puts the splits of a query and a head together, by a warp: grid of queries, heads. Queries of one
// split are written already.
template <int V>
__device__ inline void merge(const Lists& lists, u16* out, float* lse, float* partials, int first, int splits, int os,
                             int lses, int split) {
  Asked query = lists.query(first + blockIdx.x);
  int head = blockIdx.y;
  Tile t = {};
  t.begin = blockIdx.x * splits, t.splits = (query.entries + split - 1) / split;
  Partial<V, 1> partial = {partials, nullptr, (int)gridDim.y};
  if (t.splits > 1)
    partial.merge(t, head, 0, out + (size_t)query.row * os + head * V, lse + (size_t)query.row * lses + head);
}

#define ABSORBED(D, V)                                                                                                \
  extern "C" __global__ void __launch_bounds__(256, 1)                                                                \
      absorbed_##D##_##V(const Lists lists, u16* out, float* lse, const u16* q, const u16* k, float* partials,        \
                         int first, int heads, int each, int os, int lses, int qs, int ks, int split, float c) {      \
    absorbed<D, V>(lists, out, lse, q, Numbers{k, ks}, partials, first, heads, each, os, lses, qs, split, c);         \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(256, 1)                                                                \
      absorbed_codes_##D##_##V(const Lists lists, u16* out, float* lse, const u16* q, const Codes values,             \
                               const u16* rotated, float* partials, int first, int heads, int each, int os, int lses, \
                               int qs, int rs, int split, float c) {                                                  \
    Latent<V> k = {values, {rotated, rs}};                                                                            \
    absorbed<D, V>(lists, out, lse, q, k, partials, first, heads, each, os, lses, qs, split, c);                      \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(32) absorbed_merge_##D##_##V(                                          \
      const Lists lists, u16* out, float* lse, float* partials, int first, int splits, int os, int lses, int split) { \
    merge<V>(lists, out, lse, partials, first, splits, os, lses, split);                                              \
  }
ABSORBED(40, 32)
ABSORBED(72, 64)
ABSORBED(576, 512)
