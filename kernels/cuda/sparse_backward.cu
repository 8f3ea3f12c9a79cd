// SparseAttendBackward: AttentionBackward with p = ds = +0 where a key is not on a query's list. dq by the kernels of sparse.cu: dots of q and keys and of dout and values along the
// lists, sparse_gradients, and sparse_along of ds and keys. dk and dv by a block for 64 keys, which passes over 64 queries none of which has one of them.
// Bound: 10*pairs*D flops of the tensor cores for dk and dv, where pairs is 64 times the (query, block of 64 keys) that meet: dense where lists are random.
#include "gradients.cuh"
#include "sparse.cuh"

// sparse_gradients: ds [rows of the call, heads, 64*blocks], by a warp for a pair, from dots F32 [rows, heads, top_k] of q and keys and of dout and values.
KERNEL(sparse_gradients, u16* to, const float* dots, const float* products, const float* lse, const float* delta, const Query* queries, int rows, int heads, int top_k, int lses,
       float c, float scale) {
  int r = warp_row(), wide = (top_k + kRows - 1) / kRows * kRows;
  if (r >= rows * heads) return;
  Query q = queries[r / heads];
  int n = q.keys(top_k), head = r % heads;
  float own = lse[(size_t)q.row * lses + head], sum = delta[(size_t)q.row * heads + head];
  for (int e = warp_lane(); e < (n + kRows - 1) / kRows * kRows; e += kWarp) {
    size_t at = (size_t)r * top_k + e;
    float p = e < n ? dots[at] : 0.f, ds = e < n ? products[at] : 0.f;
    gradients(p, ds, true, c, own, sum, scale);
    to[(size_t)r * wide + e] = e < n ? narrow(ds) : 0;
  }
}

// sparse_masks: masks [T, width], bit j of word b: key 64*b + j is on the row's list; firsts int32 [T, width]: entries before key 64*b; nil: not wanted. A thread for a word.
KERNEL(sparse_masks, u64* masks, int* firsts, const int* picks, const Query* queries, int width, int top_k, int ps) {
  Query q = queries[blockIdx.x];
  int b = blockIdx.y * blockDim.x + threadIdx.x, low = 0, high = q.keys(top_k), n = high;
  if (b > q.pos / 64) return;
  const int* list = picks + (size_t)q.row * ps;
  while (low < high) {
    int middle = (low + high) / 2;
    if (list[middle] < b * 64) low = middle + 1;
    else high = middle;
  }
  if (firsts) firsts[(size_t)q.row * width + b] = low;
  u64 mask = 0;
  for (; low < n && list[low] < b * 64 + 64; low++) mask |= 1ull << list[low] % 64;
  masks[(size_t)q.row * width + b] = mask;
}

// Listed says which queries have keys of one block on their lists.
struct Listed {
  const u64* masks;  // of position 0
  int width;
  u64* chosen;  // [64], shared
  int from;
  __device__ bool any(int x, int n) {
    from = x;
    u64 mask = threadIdx.x < n ? masks[(size_t)(x + threadIdx.x) * width] : 0;
    if (threadIdx.x < kRows) chosen[threadIdx.x] = mask;
    return __syncthreads_or(mask != 0);
  }
  __device__ bool has(int key, int query) const { return chosen[query - from] >> key & 1; }
};

#define SPARSE_DKV(name, D, V)                                                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(128 * key_teams(D, V))                                                                                                             \
      sparse_dkv_##name(u16* dk, u16* dv, const u16* dout, const float* lse, const float* delta, const u16* q, const u16* k, const u16* v, const u64* masks, const Part* parts, \
                        int group, int width, int dks, int dvs, int ds, int lses, int qs, int ks, int vs, float c, float scale) {                                               \
    __shared__ u64 chosen[kRows];                                                                                                                                               \
    Part t = parts[blockIdx.x];                                                                                                                                                 \
    grad_kv<D, V>(dk, dv, dout, lse, delta, q, k, v, t, t.rows, group, dks, dvs, ds, lses, qs, ks, vs, c, scale,                                                                \
                  Listed{masks + (size_t)t.row * width + t.at / 64, width, chosen});                                                                                            \
  }
SPARSE_DKV(24_16, 24, 16)
SPARSE_DKV(192_128, 192, 128)
SPARSE_DKV(256, 256, 256)
