// Sample as kernels/cpu/sample.go states it: the order is (logit descending, id ascending), and a row with a NaN or
// +Inf gives -1: the first of a block with one is (+Inf, -1), which comes before all others. A warp finds the first of
// each vocabulary block, then one adds a block's e up, from the rows read last, and a block of threads draws for each
// row. Bound: the bytes of the logits, twice; once at temperature 0. With top-k or top-p a block of logits is read
// again for each id that is kept.
//
// AdjustLogits (adjust.go) has its kernels here too, since the first of the order is what min-p goes by. Bound: the
// bytes of the logits, twice, with min-p; without it the entries'.
#include "rows.cuh"

constexpr int kThreads = 256, kVocabBlock = 1024;

struct Draw {
  float inv;  // 1/temperature; 0: the first of the order
  float top_p, u;
  int top_k;
  __device__ bool all() const { return top_k <= 0 && top_p >= 1.f; }
};

struct __align__(8) Pick {
  float x;
  int id;
};
__device__ inline bool before(Pick a, Pick b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

// first_of_warp is the first of what the threads of a warp have.
__device__ inline Pick first_of_warp(Pick best) {
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) {
    Pick p = {__shfl_xor_sync(~0u, best.x, s), __shfl_xor_sync(~0u, best.id, s)};
    if (before(p, best)) best = p;
  }
  return best;
}

// first_of is the first of n candidates; none: (-Inf, cols).
__device__ inline Pick first_of(const Pick* candidates, int n, int cols) {
  Pick best = {-infinity(), cols};
#pragma unroll 4
  for (int b = warp_lane(); b < n; b += kWarp) {
    Pick p = candidates[b];
    if (before(p, best)) best = p;
  }
  return first_of_warp(best);
}

// LogitBlock is a vocabulary block of a row of logits, all of it on its way to a warp at once: a lane has eight columns
// of every 256.
struct LogitBlock {
  static constexpr int kParts = kVocabBlock / kLanes;
  int first, left;  // the lane's first column, and how many are in the row from it on
  float v[kParts][kEight];

  __device__ LogitBlock(const float* x, int block, int cols)
      : first(block * kVocabBlock + warp_lane() * kEight), left(cols - first) {
    bool vectors = whole(x + first, left - (kParts - 1) * kLanes);
#pragma unroll
    for (int i = 0; i < kParts; i++) {
      const float* p = x + first + i * kLanes;
      if (vectors) {
        float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
        v[i][0] = a.x, v[i][1] = a.y, v[i][2] = a.z, v[i][3] = a.w, v[i][4] = b.x, v[i][5] = b.y, v[i][6] = b.z,
        v[i][7] = b.w;
        continue;
      }
#pragma unroll
      for (int j = 0; j < kEight; j++)
        if (i * kLanes + j < left) v[i][j] = p[j];
    }
  }

  // each calls f(column, logit) for those of the row.
  template <class F>
  __device__ void each(F f) const {
#pragma unroll
    for (int i = 0; i < kParts; i++)
#pragma unroll
      for (int j = 0; j < kEight; j++)
        if (i * kLanes + j < left) f(i * kLanes + j, v[i][j]);
  }

  // next is the first of the order after `last`.
  __device__ Pick next(Pick last, int cols) const {
    Pick best = {-infinity(), cols};
    each([&](int at, float x) {
      Pick p = {x, first + at};
      if (before(last, p) && before(p, best)) best = p;
    });
    return first_of_warp(best);
  }
};

// heads [rows, count] are the first of each block.
KERNEL(sample_heads, Pick* heads, const float* logits, int rows, int cols, int count, int ls) {
  int at = warp_row(), row = at / count;
  if (row >= rows) return;
  LogitBlock block(logits + (size_t)row * ls, at % count, cols);
  Pick best = block.next(Pick{infinity(), -1}, cols);
  bool finite = true;
  block.each([&](int, float x) { finite = finite && x < infinity(); });
  if (!__all_sync(~0u, finite)) best = {infinity(), -1};
  if (warp_lane() == 0) heads[at] = best;
}

// sums [rows, count] are the trees of the e of each block, with temperature alone.
KERNEL(sample_sums, float* sums, const Pick* heads, const float* logits, const Draw* draws, int rows, int cols,
       int count, int ls) {
  int at = rows * count - 1 - warp_row(), row = at / count;
  if (at < 0) return;
  float inv = draws[row].inv;
  if (inv == 0.f) return;
  LogitBlock block(logits + (size_t)row * ls, at % count, cols);
  float m = first_of(heads + (size_t)row * count, count, cols).x * inv;
  Lanes8 lanes;
  block.each([&](int column, float x) { lanes.v[column % kEight] += exp2_sub(x * inv, kLog2E, m); });
  float sum = lanes.sum<kWarp>();
  if (warp_lane() == 0) sums[at] = sum;
}

// Order takes ids in the order, by one warp; heads are the first that are left of each block.
struct Order {
  const float* x;
  int cols, count;
  Pick* heads;

  __device__ void begin(const Pick* from) {
    __syncwarp();
    for (int b = warp_lane(); b < count; b += kWarp) heads[b] = from[b];
    __syncwarp();
  }

  __device__ Pick next() {
    Pick best = first_of(heads, count, cols);
    int b = best.id / kVocabBlock;
    Pick head = LogitBlock(x, b, cols).next(best, cols);
    __syncwarp();
    if (warp_lane() == 0) heads[b] = head;
    __syncwarp();
    return best;
  }
};

// walk takes up to `want` ids, adds up their e, and returns how many it kept: with a total the shortest prefix whose
// part of it is top_p.
__device__ inline int walk(Order& order, const Draw& d, float m, float total, int want, float& sum) {
  sum = 0.f;
  for (int i = 0; i < want; i++) {
    sum += exp2_sub(order.next().x * d.inv, kLog2E, m);
    if (total > 0.f && sum / total >= d.top_p) return i + 1;
  }
  return want;
}

// draw_kept is the draw of top-k and top-p, by one warp; total is the sum of all e.
__device__ inline int draw_kept(Order& order, const Pick* heads, const Draw& d, float m, float total) {
  int kept = order.cols;
  float sum;
  order.begin(heads);
  if (d.top_k > 0) {
    kept = walk(order, d, m, 0.f, min(kept, d.top_k), sum);
    if (d.top_p < 1.f) {
      order.begin(heads);
      kept = walk(order, d, m, sum, kept, sum);
    }
  } else {
    kept = walk(order, d, m, total, kept, sum);
  }
  order.begin(heads);
  float edge = d.u * sum;
  Pick p = {0.f, 0};
  sum = 0.f;
  for (int i = 0; i < kept && sum <= edge; i++) {
    p = order.next();
    sum += exp2_sub(p.x * d.inv, kLog2E, m);
  }
  return p.id;
}

// running adds v[0 ... n-1] to sum, one after the other, until it exceeds edge, and returns the place; n: it does not.
// By one thread: no v is below 0, so that it asks once for several.
__device__ inline int running(const float* v, int n, float sum, float edge) {
  constexpr int kAtOnce = 16;
  int i = 0;
  for (; i + kAtOnce <= n; i += kAtOnce) {
    float to = sum;
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) to = to + v[i + j];
    if (to > edge) break;
    sum = to;
  }
  for (; i < n; i++) {
    sum = sum + v[i];
    if (sum > edge) break;
  }
  return i;
}

extern __shared__ __align__(16) char dynamic[];  // heads and sums of the blocks of a row

KERNEL(sample, int* ids, const Pick* heads, const float* sums, const float* logits, const Draw* draws, int cols,
       int count, int ls) {
  __shared__ __align__(16) float e[kVocabBlock];
  __shared__ int block;
  int t = blockIdx.x;
  const float* x = logits + (size_t)t * ls;
  heads += (size_t)t * count, sums += (size_t)t * count;
  Pick* own = (Pick*)dynamic;
  float* upto = (float*)(own + count);  // and including a block
  Draw d = draws[t];
  Pick best = first_of(heads, count, cols);
  float m = best.x * d.inv;
  if (d.inv == 0.f || !(fabsf(m) < infinity())) {
    if (threadIdx.x == 0) ids[t] = best.id;
    return;
  }
  for (int b = threadIdx.x; b < count; b += kThreads) upto[b] = sums[b];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.f;
#pragma unroll 8
    for (int b = 0; b < count; b++) upto[b] = sum = sum + upto[b];
  }
  __syncthreads();
  float total = upto[count - 1];
  if (!d.all()) {
    if (threadIdx.x >= kWarp) return;
    Order order = {x, cols, count, own};
    int id = draw_kept(order, heads, d, m, total);
    if (threadIdx.x == 0) ids[t] = id;
    return;
  }
  float edge = d.u * total;
  for (int b = threadIdx.x; b < count; b += kThreads)
    if (!(upto[b] <= edge) && (b == 0 || upto[b - 1] <= edge)) block = b;
  __syncthreads();
  int from = block * kVocabBlock, n = min(kVocabBlock, cols - from);
  for (int i = threadIdx.x; i < n; i += kThreads) e[i] = exp2_sub(x[from + i] * d.inv, kLog2E, m);
  __syncthreads();
  if (threadIdx.x != 0) return;
  int at = running(e, n, block == 0 ? 0.f : upto[block - 1], edge);
  if (at == n)  // the tree exceeds the chain: the last that can be drawn
    do at--;
    while (at > 0 && e[at] == 0.f);
  ids[t] = from + at;
}

// Entry changes one logit.
struct Entry {
  int row, id;
  float bias, repetition, penalty;
};

KERNEL(adjust_entries, float* logits, const Entry* entries, int n, int ls) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Entry e = entries[i];
  float* p = logits + (size_t)e.row * ls + e.id;
  if (*p != *p) return;  // sums of a NaN have other bits on a CPU
  float x = *p + e.bias;
  x = x > 0.f ? x / e.repetition : x * e.repetition;
  *p = x - e.penalty;
}

struct Cut {
  float inv;    // 1/temperature
  float min_p;  // 0: the row keeps all
};

// adjust_cut makes -Inf of what min-p leaves out, a warp for a vocabulary block.
KERNEL(adjust_cut, float* logits, const Pick* heads, const Cut* cuts, int rows, int cols, int count, int ls) {
  int at = warp_row(), row = at / count;
  if (row >= rows) return;
  Cut c = cuts[row];
  if (c.min_p == 0.f) return;
  float m = first_of(heads + (size_t)row * count, count, cols).x * c.inv;
  if (!(fabsf(m) < infinity())) return;
  float* x = logits + (size_t)row * ls;
  LogitBlock block(x, at % count, cols);
  block.each([&](int column, float v) {
    if (exp2_sub(v * c.inv, kLog2E, m) < c.min_p) x[block.first + column] = -infinity();
  });
}
