// Gradients of absorbed latent attention as kernels/cpu/attention_backward.go states them, dense or along lists:
// attention_delta, then dq by a block for a query and 64 heads, along its list in blocks of 32 entries, then dk and dv
// by a block for 32 keys of a sequence, queries ascending, in each its heads ascending in blocks of 32; one in which no
// query has one of the keys on its list is passed over. Both compute p and ds anew; the fragments of a key serve its
// dot with q and, as those of its value, that with dout. Nothing is added by atomics.
//
// Bound: tensor cores, 2*(2*D + V) flops a pair for dq and 4*(D + V) for dk and dv, whose pairs are all of a (query,
// block of 32 keys) that meet: dense where lists are random. With mma.sync shared memory bounds the dots, 3 fragments
// for 4 products, at half of its 128 bytes a clock: dq 9,000 clocks for 32 entries of 64 heads, where the products
// alone take 2,700; dk and dv 6,800 for 32 queries and 32 keys, where they take 1,750. On an H200, 64 heads of 576 and
// 512 columns: 8,192 rows 105 ms.
#include "absorbed.cuh"
#include "gradients.cuh"
#include "key_tile.cuh"

constexpr int kPart = 32;  // entries, keys and queries of a step

// weigh leaves ds, and p where it has a place, of 16 rows (heads, or queries) from `first` on and 16 keys from `key`
// on: bf16, Lines<64>. seen(r, key) tells whether row r of the thread's two, first + lane/4 + 8*r, has a key.
template <int D, int V, class F>
__device__ inline void weigh(u16* ds, u16* weights, const u16* q, const u16* dout, int first, const u16* keys, int key,
                             const float (&lse)[2], const float (&delta)[2], float c, float scale, F seen) {
  using T = Lines<D>;
  float p[2][4] = {}, e[2][4] = {};
  int lane = warp_lane(), row = first + (lane & 15), far = (lane >> 4) * 8, other = key + (lane & 7) + far;
#pragma unroll 4
  for (int k = 0; k < T::kDot; k += 16) {
    u32 x[4], y[4], z[4];
    load4(y, keys + T::at(other, k + (lane & 8)));
    load4(x, q + T::at(row, k + far));
    step(p[0], x, y[0], y[1]);
    step(p[1], x, y[2], y[3]);
    if (k >= V) continue;
    load4(z, dout + Lines<V>::at(row, k + far));
    step(e[0], z, y[0], y[1]);
    step(e[1], z, y[2], y[3]);
  }
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int column = key + j * 8 + lane % 4 * 2, at = Lines<64>::at(first + lane / 4 + 8 * h, column);
#pragma unroll
      for (int w = 0; w < 2; w++)
        gradients(p[j][2 * h + w], e[j][2 * h + w], seen(h, column + w), c, lse[h], delta[h], scale);
      *(u32*)(ds + at) = pair(e[j][2 * h], e[j][2 * h + 1]);
      if (weights) *(u32*)(weights + at) = pair(p[j][2 * h], p[j][2 * h + 1]);
    }
}

// write rounds sums to rows of a gradient of D columns; row(r) is where one begins, nil where it is unused.
template <int D, int Of, class F>
__device__ inline void write(Sums<D, Of>& sums, int first, int own, F row) {
  sums.each(own, [&](float (&x)[2][2][4], int column) {
    int lane = warp_lane();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int at = column + i / 2 % 2 * 8 + lane % 4 * 2;
      u16* to = row(first + i / 4 * 16 + lane / 4 + i % 2 * 8);
      const float* y = x[i / 4][i / 2 % 2] + i % 2 * 2;
      if (to && at < D) *(u32*)(to + at) = pair(y[0] + 0.f, y[1] + 0.f);
    }
  });
}

// carry reads sums of D columns from memory, or writes them there, for calls that have other heads; row(r) as in write.
template <bool WRITE, int D, int Of, class F>
__device__ inline void carry(Sums<D, Of>& sums, int own, F row) {
  sums.each(own, [&](float (&x)[2][2][4], int column) {
    int lane = warp_lane();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int at = column + i / 2 % 2 * 8 + lane % 4 * 2;
      float* to = row(i / 4 * 16 + lane / 4 + i % 2 * 8);
      float* y = x[i / 4][i / 2 % 2] + i % 2 * 2;
      if (!to || at >= D) continue;
      if (WRITE) to[at] = y[0], to[at + 1] = y[1];
      else y[0] = to[at], y[1] = to[at + 1];
    }
  });
}

template <int D, int V>
__device__ inline void absorbed_dq(const Lists& lists, u16* dq, const u16* dout, const float* lse, const float* delta,
                                   const u16* q, const u16* k, int heads, int dqs, int ds, int lses, int qs, int ks,
                                   float c, float scale) {
  using T = Lines<D>;
  using U = Lines<V>;
  constexpr int kTile = kPart * T::kStride, kGroups = 4;
  u16 *sq = shared, *sd = sq + kHeads * T::kStride, *sk = sd + kHeads * U::kStride, *weights = sk + 2 * kTile;
  int* rows = (int*)(weights + kHeads * 64);  // [2][32] of the blocks
  Asked query = lists.query(blockIdx.x);
  int head = blockIdx.y * kHeads, own_heads = min(kHeads, heads - head), blocks = (query.entries + kPart - 1) / kPart;
  auto look = [&](int b) {
    if (threadIdx.x < kPart && b < blocks) rows[b % 2 * kPart + threadIdx.x] = query.key(b * kPart + threadIdx.x);
  };
  auto fetch = [&](int b) {
    if (b < blocks)
      T::template load<kPart, kThreads>(sk + b % 2 * kTile, k, [&](int r) {
        return rows[b % 2 * kPart + r] < 0 ? -1ll : (long long)rows[b % 2 * kPart + r] * ks;
      });
    commit();
  };
  T::template load<kHeads, kThreads>(
      sq, q, [&](int r) { return r < own_heads ? (long long)query.row * qs + (head + r) * D : -1ll; });
  U::template load<kHeads, kThreads>(
      sd, dout, [&](int r) { return r < own_heads ? (long long)query.row * ds + (head + r) * V : -1ll; });
  look(0), look(1);
  __syncthreads();
  fetch(0);
  int warp = threadIdx.x / kWarp, lane = warp_lane(), first = warp / 2 * 16, key = warp % 2 * 16,
      band = warp / kGroups * 32, own = warp % kGroups;
  float own_lse[2], sum[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    own_lse[h] = r < own_heads ? lse[(size_t)query.row * lses + head + r] : 0.f;
    sum[h] = r < own_heads ? delta[(size_t)query.row * heads + head + r] : 0.f;
  }
  Sums<D, kGroups> g;
  for (int b = 0; b < blocks; b++) {
    wait<0>();
    __syncthreads();
    fetch(b + 1);
    look(b + 2);
    const u16* keys = sk + b % 2 * kTile;
    if (first < own_heads)
      weigh<D, V>(weights, nullptr, sq, sd, first, keys, key, own_lse, sum, c, scale,
                  [&](int, int i) { return b * kPart + i < query.entries; });
    __syncthreads();
    if (band < own_heads) g.template add<2, false, T>(weights, band, keys, own);
  }
  write(g, band, own, [&](int r) { return r < own_heads ? dq + (size_t)query.row * dqs + (head + r) * D : nullptr; });
}

// absorbed_masks: masks [blocks of 32 positions, rows], bit j of word (b, row): key 32*b + j is on the row's list. A
// thread for a row and 64 blocks.
KERNEL(absorbed_masks, const Lists lists, u32* masks, int queries, int rows) {
  int number = blockIdx.x * blockDim.x + threadIdx.x, from = blockIdx.y * 64;
  if (number >= queries) return;
  Asked query = lists.query(number);
  int e = 0;
  for (int high = query.entries; e < high;) {  // the first entry from block `from` on
    int middle = (e + high) / 2;
    if (query.indices[middle] < from * kPart) e = middle + 1;
    else high = middle;
  }
  for (int b = from; b < min(from + 64, query.pos / kPart + 1); b++) {
    u32 mask = 0;
    for (; e < query.entries && query.indices[e] < (b + 1) * kPart; e++) mask |= 1u << query.indices[e] % kPart;
    masks[(size_t)b * rows + query.row] = mask;
  }
}

// Walk goes through blocks of 32 rows, of queries ascending and in each of heads, that have one of the 32 keys of a
// tile; it is the same in all threads.
struct Walk {
  KeyTile t;
  QueryBlock<kPart> of;
  const u32* masks;
  int rows;         // of the call's queries
  int x, head = 0;  // block of queries, the first head

  __device__ Walk(const KeyTile& tile, int heads, const u32* masks, int rows)
      : t(tile), of(heads), masks(masks), rows(rows), x(tile.from - 1) {
    next_queries();
  }
  __device__ bool done() const { return x >= t.from + t.count; }
  __device__ int query(int r) const { return x * of.queries + r / of.each; }
  __device__ int head_of(int r) const { return head + r % of.each; }
  // has tells whether there is a row; then row is that of its query in the call.
  __device__ bool has(int r) const {
    return query(r) >= t.begin && query(r) < t.end && head_of(r) < of.heads;
  }
  __device__ long long row(int r) const { return t.query + query(r); }
  __device__ u32 mask(int r) const { return has(r) ? t.seen(masks, rows, t.at, query(r)) : 0; }
  __device__ void next() {
    head += kPart;
    if (head >= of.heads) next_queries();
  }
  __device__ void next_queries() {
    head = 0;
    do x++;
    while (!done() && !__any_sync(~0u, mask(warp_lane()) != 0));
  }
};

template <int D, int V>
__device__ inline void absorbed_dkv(u16* dk, u16* dv, float* chains, const u16* dout, const float* lse,
                                    const float* delta, const u16* q, const u16* k, const u32* masks,
                                    const KeyTile* tiles, int rows, int heads, int dks, int dvs, int ds, int lses,
                                    int qs, int ks, float c, float scale) {
  using T = Lines<D>;
  using U = Lines<V>;
  constexpr int kTile = kPart * T::kStride, kSmall = kPart * U::kStride, kGroups = 8;
  u16 *sk = shared, *sq = sk + kTile, *sd = sq + 2 * kTile, *weights = sd + 2 * kSmall, *slopes = weights + kPart * 64;
  float* sides = (float*)(slopes + kPart * 64);  // [2][lse, delta, masks][32]
  KeyTile t = tiles[blockIdx.x];
  int warp = threadIdx.x / kWarp, lane = warp_lane(), stage = 0;
  bool brings = warp >= 4;  // the others compute p and ds
  Walk walk(t, heads, masks, rows);
  auto fetch = [&](int to) {
    if (!walk.done()) {
      auto row = [&](int r, int stride, int width) {
        return walk.has(r) ? walk.row(r) * stride + walk.head_of(r) * width : -1ll;
      };
      T::template load<kPart, 128>(sq + to * kTile, q, [&](int r) { return row(r, qs, D); });
      U::template load<kPart, 128>(sd + to * kSmall, dout, [&](int r) { return row(r, ds, V); });
      if (warp == 4) {
        float* side = sides + to * 3 * kPart + lane;
        bool in = walk.has(lane);
        side[0] = in ? lse[walk.row(lane) * lses + walk.head_of(lane)] : 0.f;
        side[kPart] = in ? delta[walk.row(lane) * heads + walk.head_of(lane)] : 0.f;
        side[2 * kPart] = __uint_as_float(walk.mask(lane));
      }
    }
    commit();
  };
  if (brings) {
    T::template load<kPart, 128>(sk, k,
                                 [&](int r) { return t.at + r < t.rows ? (long long)(t.row + t.at + r) * ks : -1ll; });
    fetch(0);
  }
  Sums<D, kGroups> gk;
  Sums<V, kGroups> gv;
  long long row = t.row + t.at;
  auto chain = [&](int r, int from) { return t.at + r < t.rows ? chains + (row + r) * (D + V) + from : nullptr; };
  if (!t.begins) {
    carry<false>(gv, warp, [&](int r) { return chain(r, 0); });
    carry<false>(gk, warp, [&](int r) { return chain(r, V); });
  }
  for (; !walk.done(); stage ^= 1) {
    wait<0>();
    __syncthreads();
    const u16 *own_q = sq + stage * kTile, *own_d = sd + stage * kSmall;
    if (!brings) {
      const float* side = sides + stage * 3 * kPart;
      int first = warp / 2 * 16, at = first + lane / 4;
      float own_lse[2] = {side[at], side[at + 8]}, sum[2] = {side[kPart + at], side[kPart + at + 8]};
      u32 mask[2] = {__float_as_uint(side[2 * kPart + at]), __float_as_uint(side[2 * kPart + at + 8])};
      weigh<D, V>(slopes, weights, own_q, own_d, first, sk, warp % 2 * 16, own_lse, sum, c, scale,
                  [&](int h, int i) { return mask[h] >> i & 1; });
    }
    walk.next();
    if (brings) fetch(stage ^ 1);
    __syncthreads();
    gv.template add<2, true, U>(weights, 0, own_d, warp);
    gk.template add<2, true, T>(slopes, 0, own_q, warp);
  }
  wait<0>();  // for the keys, where no query has one
  if (!t.ends) {
    carry<true>(gv, warp, [&](int r) { return chain(r, 0); });
    carry<true>(gk, warp, [&](int r) { return chain(r, V); });
    return;
  }
  auto to = [&](u16* x, int stride, int r) { return t.at + r < t.rows ? x + (row + r) * stride : nullptr; };
  write(gk, 0, warp, [&](int r) { return to(dk, dks, r); });
  write(gv, 0, warp, [&](int r) { return to(dv, dvs, r); });
}

#define ABSORBED(name, D, V)                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, 1) absorbed_dq_##name(                                           \
      const Lists lists, u16* dq, const u16* dout, const float* lse, const float* delta, const u16* q, const u16* k, \
      int heads, int dqs, int ds, int lses, int qs, int ks, float c, float scale) {                                  \
    absorbed_dq<D, V>(lists, dq, dout, lse, delta, q, k, heads, dqs, ds, lses, qs, ks, c, scale);                    \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(256, 1) absorbed_dkv_##name(                                          \
      u16* dk, u16* dv, float* chains, const u16* dout, const float* lse, const float* delta, const u16* q,          \
      const u16* k, const u32* masks, const KeyTile* tiles, int rows, int heads, int dks, int dvs, int ds, int lses, \
      int qs, int ks, float c, float scale) {                                                                        \
    absorbed_dkv<D, V>(dk, dv, chains, dout, lse, delta, q, k, masks, tiles, rows, heads, dks, dvs, ds, lses, qs, ks,\
                       c, scale);                                                                                    \
  }
ABSORBED(40_32, 40, 32)
ABSORBED(72_64, 72, 64)
ABSORBED(576_512, 576, 512)
