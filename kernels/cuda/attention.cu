// Attention, rule 2 of the definition, as kernels/cpu/attention.go states it: key blocks of 64 from position 0, splits of 2048 keys, online softmax in each, splits
// merged ascending. A block of 4 warps has 64 rows, which are (query, head of the group) pairs, query-major, of one KV head, and the keys of one split; where a
// tile has several splits each is a block of its own and attention_merge puts them together. Bound: 4*rows*keys*D flops of the tensor cores when
// prefilling (half of it masked on the diagonal), the bytes of K and V when decoding.
#include "attention.cuh"

struct Tile {
  int row, from, to;   // batch row of the first query; positions of queries
  int kv_head, first, last;  // keys of this split; first is a multiple of 64
  int base, pages;     // row of position 0, or where the sequence's pages begin (-1: none)
  int slot;            // of the partial result; -1: there is one split
};

extern __shared__ __align__(16) u16 shared[];

template <int D>
__device__ inline void attention(u16* out, float* lse, const u16* q, const u16* k, const u16* v, const Tile* tiles, const int* pages, float* partial, int group, int heads,
                                 int os, int lses, int qs, int ks, int vs, int page_rows, int window, float c) {
  constexpr int kTileSize = kRows * (D + 8);
  Tile t = tiles[blockIdx.x];
  Keys keys = {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows};
  u16 *sq = shared, *sk = shared + kTileSize, *sv = sk + 2 * kTileSize;  // two stages of k and of v
  int lane = warp_lane(), warp = threadIdx.x / kWarp, count = (t.to - t.from) * group, first = warp * 16;
  auto fetch = [&](int x, int stage) {
    int n = min(kRows, t.last - x);
    load_rows<D>(sk + stage * kTileSize, n, [&](int i) { return k + keys.row(x + i) * ks + t.kv_head * D; });
    load_rows<D>(sv + stage * kTileSize, n, [&](int i) { return v + keys.row(x + i) * vs + t.kv_head * D; });
  };
  load_rows<D>(sq, count, [&](int r) { return q + (long long)(t.row + r / group) * qs + (t.kv_head * group + r % group) * D; });
  fetch(t.first, 0);
  commit();
  float o[D / 8][4] = {}, m[2] = {-infinity(), -infinity()}, l[2] = {0.f, 0.f};
  int query[2];
#pragma unroll
  for (int h = 0; h < 2; h++) query[h] = t.from + (first + lane / 4 + 8 * h) / group;
  for (int x = t.first, stage = 0; x < t.last; x += kRows, stage ^= 1) {
    if (x + kRows < t.last) fetch(x + kRows, stage ^ 1);
    commit();
    wait<1>();
    __syncthreads();
    float s[8][4];
    scores<D>(s, sq, first, sk + stage * kTileSize);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = -infinity();
      bool some = false;
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
          int key = x + j * 8 + lane % 4 * 2 + w;
          float& u = s[j][2 * h + w];
          u = u * c;
          if (key < t.last && visible(query[h], key, window)) top = fmaxf(top, u), some = true;
          else u = -infinity();
        }
#pragma unroll
      for (int w = 1; w <= 2; w <<= 1) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, w));
        some = __shfl_xor_sync(~0u, (int)some, w) || some;
      }
      float to = some ? fmaxf(m[h], top + 0.f) : m[h], a = some ? exp2_sub(m[h] - to, 1.f, 0.f) : 1.f;
      float sum[8];  // the tree of 64: halves 32, 16, 8 are in the thread
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
          float& u = s[j][2 * h + w];
          u = u == -infinity() ? 0.f : exp2_sub(u, 1.f, to);
        }
#pragma unroll
      for (int w = 0; w < 2; w++) {
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] = s[j][2 * h + w] + s[j + 4][2 * h + w];
        sum[w + 4] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
      }
      float even = sum[4], odd = sum[5];
#pragma unroll
      for (int w = 2; w > 0; w >>= 1) even = even + __shfl_xor_sync(~0u, even, w), odd = odd + __shfl_xor_sync(~0u, odd, w);
      if (some) l[h] = l[h] * a + (even + odd);
      m[h] = to;
#pragma unroll
      for (int j = 0; j < D / 8; j++) o[j][2 * h] *= a, o[j][2 * h + 1] *= a;
    }
    accumulate<D>(o, s, sv + stage * kTileSize);
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    if (r >= count) continue;
    if (t.slot >= 0) {
      float* to = partial + ((long long)t.slot * kRows + r) * (D + 2);
      if (lane % 4 == 0) to[D] = m[h], to[D + 1] = l[h];
#pragma unroll
      for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int w = 0; w < 2; w++) to[j * 8 + lane % 4 * 2 + w] = o[j][2 * h + w];
      continue;
    }
    long long row = t.row + r / group;
    int head = t.kv_head * group + r % group;
    float inverse = 1.f / l[h];
    if (lane % 4 == 0) lse[row * lses + head] = m[h] + ln_def(l[h]) * kLog2E;
    u16* to = out + row * os + head * D;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      *(u32*)(to + j * 8 + lane % 4 * 2) = pair(o[j][2 * h] * inverse + 0.f, o[j][2 * h + 1] * inverse + 0.f);
  }
}

#define ATTENTION(D)                                                                                                                                                    \
  KERNEL(attention_##D, u16* out, float* lse, const u16* q, const u16* k, const u16* v, const Tile* tiles, const int* pages, float* partial, int group, int heads, int os, \
         int lses, int qs, int ks, int vs, int page_rows, int window, float c) {                                                                                            \
    attention<D>(out, lse, q, k, v, tiles, pages, partial, group, heads, os, lses, qs, ks, vs, page_rows, window, c);                                                       \
  }
ATTENTION(16)
ATTENTION(32)
ATTENTION(64)
ATTENTION(96)
ATTENTION(128)

struct Merge {
  int row, count, kv_head, slot, splits;  // rows of the tile, its first slot and how many follow
};

// attention_merge: a warp for a row; splits ascending: m' = max(m, m_s), l = l*Exp2(m-m') + l_s*Exp2(m_s-m'), o likewise.
KERNEL(attention_merge, u16* out, float* lse, const Merge* merges, const float* partial, int group, int dim, int os, int lses) {
  Merge e = merges[blockIdx.x];
  for (int r = threadIdx.x / kWarp; r < e.count; r += blockDim.x / kWarp) {
    long long row = e.row + r / group;
    int head = e.kv_head * group + r % group;
    for (int i = warp_lane(); i < dim; i += kWarp) {
      const float* from = partial + ((long long)e.slot * kRows + r) * (dim + 2);
      float o = from[i], m = from[dim], l = from[dim + 1];
      for (int s = 1; s < e.splits; s++) {
        from += (long long)kRows * (dim + 2);
        float mt = from[dim];
        if (mt == -infinity()) continue;
        float to = fmaxf(m, mt), a = exp2_def(m - to), b = exp2_def(mt - to);
        l = l * a + from[dim + 1] * b;
        o = o * a + from[i] * b;
        m = to;
      }
      out[row * os + head * dim + i] = narrow(o * (1.f / l) + 0.f);
      if (i == 0) lse[row * lses + head] = m + ln_def(l) * kLog2E;
    }
  }
}

// store_kv copies rows of k and v to the rows of the cache named for each.
KERNEL(store_kv, u16* ck, u16* cv, const u16* k, const u16* v, const int* to, int rows, int cols, int cks, int cvs, int ks, int vs) {
  int r = warp_row();
  if (r >= rows) return;
  for (int c = warp_lane(); c < cols; c += kWarp) {
    ck[(long long)to[r] * cks + c] = k[(long long)r * ks + c];
    cv[(long long)to[r] * cvs + c] = v[(long long)r * vs + c];
  }
}
