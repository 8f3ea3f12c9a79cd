// IndexBackward. With r = dot(q_h, k_j)*c:
//
//	dweights_h = tree over a row's entries of ds_e*max(r, +0)
//	dr = bf16((ds_e*w_h)*c) where r > 0, else +0
//	dq_h = bf16(dot over the entries, steps of 16, of dr and k_j, + 0)
//	dk_j = bf16(dot over heads ascending, in each over queries ascending, steps of 16 from position 0, of dr and q_h,
//	+ 0); pairs that are no entry count as +0
//
// dq by the kernels of lists.cu: dots of q and keys along the lists, index_gradients, and list_along of dr and keys. dk
// by a block for 64 keys, which passes over 64 queries none of which has one of them. Nothing is added by atomics.
// Bound: 4*pairs*heads*D flops of the tensor cores for dk, where pairs is 64 times the (query, block of 64 keys) that
// meet: dense where lists are random; and 8*heads bytes an entry of dots. On an H200, 32 heads of 128, 65,536 rows,
// lists of 2,048: 0.54 s.
#include "gradients.cuh"
#include "queries.cuh"

// index_gradients: dr [rows of the call, heads, 64*blocks] and dweights, by a warp for a head of a row, from dots F32
// [rows, heads, top_k] and ds F32 [T, entries].
KERNEL(index_gradients, u16* dr, float* dweights, const float* dots, const float* ds, const float* weights,
       const Query* queries, int rows, int heads, int top_k, int dws, int dss, int ws, float c) {
  int r = warp_row(), wide = (top_k + kRows - 1) / kRows * kRows;
  if (r >= rows * heads) return;
  Query q = queries[r / heads];
  int n = q.keys(top_k), head = r % heads;
  const float *dot = dots + (size_t)r * top_k, *d = ds + (size_t)q.row * dss;
  float w = weights[(size_t)q.row * ws + head];
  u16* to = dr + (size_t)r * wide;
  float sum = tree(n, [&](int e) {
    float v = dot[e] * c;
    to[e] = narrow(v > 0.f ? (d[e] * w) * c : 0.f);
    return d[e] * larger(v, 0.f);
  });
  for (int e = n + warp_lane(); e < (n + kRows - 1) / kRows * kRows; e += kWarp) to[e] = 0;
  if (warp_lane() == 0) dweights[(size_t)q.row * dws + head] = sum;
}

// Entries are those of 64 queries among 64 keys, in shared memory: bit j of a query's mask, key j is one, and the
// number of those before the first key.
struct Entries {
  u64* masks;
  int* firsts;

  // load brings those of n queries from position x on for keys from `at` on, by the block; false: there are none. all
  // nil: queries have all keys up to their own.
  __device__ bool load(const u64* all, const int* before, int width, int x, int n, int at) const {
    u64 mask = 0;
    if (threadIdx.x < n) {
      int left = x + (int)threadIdx.x - at, first = at;
      size_t word = (size_t)(x + threadIdx.x) * width + at / kRows;
      if (all) mask = all[word], first = before[word];
      else mask = left < kRows - 1 ? (2ull << left) - 1 : ~0ull;
      firsts[threadIdx.x] = first;
    }
    if (threadIdx.x < kRows) masks[threadIdx.x] = mask;
    return __syncthreads_or(mask != 0);
  }
  // of is the entry of a query for a key; -1: it has none.
  __device__ int of(int query, int key) const {
    u64 mask = masks[query];
    return mask >> key & 1 ? firsts[query] + __popcll(mask & ((1ull << key) - 1)) : -1;
  }
};

// index_dk: dk [T, D] of 64 keys. masks, firsts [T, width] as list_masks writes them, or nil.
template <int D>
__device__ inline void index_dk(u16* dk, const float* ds, const u16* q, const float* weights, const u16* k,
                                const u64* masks, const int* firsts, const Part* parts, int heads, int width, int dks,
                                int dss, int qs, int ws, int ks, float c) {
  __shared__ u64 chosen[kRows];
  __shared__ int before[kRows];
  __shared__ float own[kRows];
  Entries entries = {chosen, before};
  Part t = parts[blockIdx.x];
  u16 *sq = shared, *sk = sq + kRows * (D + 8);
  int lane = warp_lane(), first = threadIdx.x / kWarp * 16, count = min(kRows, t.rows - t.at);
  long long row = t.row + t.at;
  if (masks) masks += (size_t)t.row * width, firsts += (size_t)t.row * width;
  load_rows<D, kRows, 128>(sk, count, [&](int i) { return k + (row + i) * ks; });
  float g[D / 8][4] = {};
  for (int head = 0; head < heads; head++)
    for (int x = t.at; x < t.rows; x += kRows) {
      int n = min(kRows, t.rows - x);
      if (!entries.load(masks, firsts, width, x, n, t.at)) continue;
      load_rows<D, kRows, 128>(sq, n, [&](int i) { return q + (long long)(t.row + x + i) * qs + head * D; });
      if (threadIdx.x < n) own[threadIdx.x] = weights[(size_t)(t.row + x + threadIdx.x) * ws + head];
      commit();
      wait<0>();
      __syncthreads();
      float s[8][4];
      u32 packed[4][4];
      scores<D>(s, sk, first, sq);
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int w = 0; w < 4; w++) {
          int i = lane % 4 * 2 + j * 8 + w % 2, e = entries.of(i, first + lane / 4 + w / 2 * 8);
          s[j][w] = e >= 0 && s[j][w] * c > 0.f ? (ds[(size_t)(t.row + x + i) * dss + e] * own[i]) * c : 0.f;
        }
      pack(packed, s);
      accumulate<D>(g, packed, sq);
      __syncthreads();
    }
  put<D>(dk + row * dks, g, dks, first, count);
}

#define INDEX_DK(D)                                                                                                    \
  extern "C" __global__ void __launch_bounds__(128) index_dk_##D(                                                      \
      u16* dk, const float* ds, const u16* q, const float* weights, const u16* k, const u64* masks, const int* firsts, \
      const Part* parts, int heads, int width, int dks, int dss, int qs, int ws, int ks, float c) {                    \
    index_dk<D>(dk, ds, q, weights, k, masks, firsts, parts, heads, width, dks, dss, qs, ws, ks, c);                   \
  }
INDEX_DK(16)
INDEX_DK(128)
