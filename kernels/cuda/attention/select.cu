// SelectKeys: scores of all keys that a row sees, a block for 64 rows and 128 keys; then a block for each row finds the
// top_k-th score by three digits of its bits as an ordered integer, and writes the positions of what lies above it, and
// of so many equal ones as are left, in the order of positions.
//   score = sum over heads ascending, from +0, of w_h * max(dot(q_h, k)*c, +0); NaN counts as -Inf
// Bound: 2*rows*keys*heads*D flops of the tensor cores. Every block reads the queries of all heads, 64*heads*D*2 bytes,
// from L2 for 4*64*64*heads*D flops: 64 flops a byte, so L2 bounds it at about 350 TFLOP/s. Choosing reads the scores
// five times: 20*rows*keys bytes.
// On an H200, 32 heads of 128, 2,048 of 65,536 rows: 85 ms, 207 TFLOP/s.
#include "queries.cuh"
#include "scan.cuh"

constexpr int kScoreKeys = 128, kScoreThreads = 256;

extern __shared__ __align__(16) u16 shared[];

// index_scores: out F32 [rows of the call, stride]. q [T, heads*D], weights F32 [T, heads]. Tiles whose rows all see
// few keys are left out.
template <int D>
__device__ inline void index_scores(float* out, const u16* q, const float* weights, const u16* k, const Queries* tiles,
                                    const int* pages, int heads, int top_k, int stride, int qs, int ws, int ks,
                                    int page_rows, float c) {
  constexpr int kSize = kRows * (D + 8);
  Queries t = tiles[blockIdx.y];
  int x = blockIdx.x * kScoreKeys, end = t.pos + t.count;
  if (end <= top_k || x >= end) return;
  Keys keys = t.keys(pages, page_rows);
  u16 *sk = shared, *sq = sk + 2 * kSize;  // two blocks of keys, two heads of queries
  int lane = warp_lane(), warp = threadIdx.x / kWarp, first = warp % 4 * 16, half = warp / 4;
  auto fetch = [&](int h) {
    load_rows<D, kRows, kScoreThreads>(sq + h % 2 * kSize, t.count,
                                       [&](int i) { return q + (long long)(t.row + i) * qs + h * D; });
    commit();
  };
  load_rows<D, kScoreKeys, kScoreThreads>(sk, min(kScoreKeys, end - x),
                                          [&](int i) { return k + keys.row(x + i) * ks; });
  fetch(0);
  float sum[8][4] = {};
  for (int h = 0; h < heads; h++) {
    wait<0>();
    __syncthreads();
    if (h + 1 < heads) fetch(h + 1);
    if (first >= t.count) continue;
    float s[8][4], w[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int r = first + lane / 4 + 8 * i;
      w[i] = r < t.count ? weights[(long long)(t.row + r) * ws + h] : 0.f;
    }
    scores<D>(s, sq + h % 2 * kSize, first, sk + half * kSize);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) sum[j][i] = sum[j][i] + w[i / 2] * larger(s[j][i] * c, 0.f);
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int r = first + lane / 4 + 8 * i;
    if (r >= t.count) continue;
    float* to = out + (size_t)(t.first + r) * stride + x + half * kRows + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float a = sum[j][2 * i], b = sum[j][2 * i + 1];
      *(float2*)(to + j * 8) = make_float2(a == a ? a : -infinity(), b == b ? b : -infinity());
    }
  }
}

#define INDEX_SCORES(D)                                                                                                \
  extern "C" __global__ void __launch_bounds__(kScoreThreads) index_scores_##D(                                        \
      float* out, const u16* q, const float* weights, const u16* k, const Queries* tiles, const int* pages, int heads, \
      int top_k, int stride, int qs, int ws, int ks, int page_rows, float c) {                                         \
    index_scores<D>(out, q, weights, k, tiles, pages, heads, top_k, stride, qs, ws, ks, page_rows, c);                 \
  }
INDEX_SCORES(16)
INDEX_SCORES(128)

constexpr int kBins = 2048, kSelectThreads = 1024, kSelectWarps = kSelectThreads / kWarp;
// scores that a thread has asked for at a time: one row of a long sequence must not wait for each
constexpr int kAhead = 8;

// ordered is the bits of a number that is not NaN as an integer that grows with it. No score is -0: a sum from +0 never
// is.
__device__ inline u32 ordered(float x) {
  u32 b = __float_as_uint(x);
  return b ^ (b >> 31 ? ~0u : 1u << 31);
}

// Cut is where a choice ends: what is above `least`, and `equal` of those that are equal.
struct Cut {
  u32 least;
  int equal;
};

// cut_at finds the cut for k of n > k scores, by digits of 11, 11 and 10 bits.
__device__ inline Cut cut_at(const float* scores, int n, int k) {
  __shared__ int counts[kBins];
  __shared__ Cut cut;
  u32 least = 0;
  for (int shift = 21, above = 32; above > 0; above = shift, shift = max(shift - 11, 0)) {
    for (int i = threadIdx.x; i < kBins; i += kSelectThreads) counts[i] = 0;
    __syncthreads();
    for (int x = threadIdx.x; x < n; x += kAhead * kSelectThreads) {
      float some[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; j++) some[j] = x + j * kSelectThreads < n ? scores[x + j * kSelectThreads] : 0.f;
#pragma unroll
      for (int j = 0; j < kAhead; j++) {
        u32 v = ordered(some[j]);
        if (x + j * kSelectThreads < n && (above == 32 || v >> above == least >> above))
          atomicAdd(&counts[v >> shift & ((1u << (above - shift)) - 1)], 1);
      }
    }
    __syncthreads();
    // bins from the highest down
    int own[kBins / kSelectThreads], sum = 0, total, top = kBins - 1 - threadIdx.x * (kBins / kSelectThreads);
#pragma unroll
    for (int j = 0; j < kBins / kSelectThreads; j++) sum += own[j] = counts[top - j];
    int before = scan(sum, total);
#pragma unroll
    for (int j = 0; j < kBins / kSelectThreads; j++) {
      if (before < k && k <= before + own[j]) cut = {least | (u32)(top - j) << shift, k - before};
      before += own[j];
    }
    __syncthreads();
    least = cut.least, k = cut.equal;
  }
  return {least, k};
}

// select_keys: a block for each row of the call.
extern "C" __global__ void __launch_bounds__(kSelectThreads)
    select_keys(int* indices, const float* scores, const Query* queries, int top_k, int stride, int is) {
  __shared__ int above[kSelectWarps], equal[kSelectWarps];
  Query q = queries[blockIdx.x];
  int n = q.pos + 1, *list = indices + (size_t)q.row * is;
  if (n <= top_k) {
    for (int i = threadIdx.x; i < top_k; i += kSelectThreads) list[i] = i < n ? i : -1;
    return;
  }
  const float* s = scores + (size_t)blockIdx.x * stride;
  Cut cut = cut_at(s, n, top_k);
  int lane = warp_lane(), warp = threadIdx.x / kWarp, each = (n + kSelectThreads - 1) / kSelectThreads * kWarp,
      from = min(warp * each, n), to = min(from + each, n);
  auto walk = [&](auto f) {
    for (int x = from + lane; x - lane < to; x += kAhead * kWarp) {
      float some[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; j++) some[j] = x + j * kWarp < to ? s[x + j * kWarp] : 0.f;
#pragma unroll
      for (int j = 0; j < kAhead; j++) {
        bool in = x + j * kWarp < to;
        u32 v = ordered(some[j]);
        f(x + j * kWarp, __ballot_sync(~0u, in && v > cut.least), __ballot_sync(~0u, in && v == cut.least));
      }
    }
  };
  int more = 0, same = 0;
  walk([&](int, u32 a, u32 e) { more += __popc(a), same += __popc(e); });
  if (lane == 0) above[warp] = more, equal[warp] = same;
  __syncthreads();
  more = same = 0;
  for (int w = 0; w < warp; w++) more += above[w], same += equal[w];
  u32 lower = (1u << lane) - 1;
  walk([&](int j, u32 a, u32 e) {
    int rank = same + __popc(e & lower);
    if (a >> lane & 1 || (e >> lane & 1 && rank < cut.equal)) list[more + __popc(a & lower) + min(rank, cut.equal)] = j;
    more += __popc(a), same += __popc(e);
  });
}
