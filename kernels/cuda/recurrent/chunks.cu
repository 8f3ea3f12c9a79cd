// Rule 4 of the definition (kernels/recurrent.go), forward: Gated DeltaNet's delta rule and Mamba2's state space. Four
// kernels: queries and keys of all rows; c, P and M of all chunks, side by side; then a block for 64 values of a head
// of a sequence, which walks through its chunks with the state in shared memory; then the slots' keys and decays, which
// the blocks of a head before have read. Bound: about rows*heads*(dim*values*3 + 64*(2*dim + values)) fma of fp32, no
// tensor core computes them; for one row of a sequence the bytes of its state.
#include "chunks.cuh"

// chunk_rows: a warp for a head of a row. to F32 [rows, heads*dim] = x, for the delta rule x*rs of length 1, for its
// queries times scale.
template <class T>
__device__ void chunk_rows(float* to, const T* x, int rows, int heads, int dim, int xs, int delta, float scale) {
  int at = warp_row();
  if (at >= rows * heads) return;
  const T* from = x + (size_t)(at / heads) * xs + at % heads * dim;
  float rs = 1.f;
  if (delta) {
    float sum = tree8(dim, [&](int i, int left, float* v) {
      load8(from + i, left, v);
#pragma unroll
      for (int j = 0; j < kEight; j++) v[j] = v[j] * v[j];
    });
    rs = 1.f / sqrtf(sum + 1e-6f);
  }
  for (int i = warp_lane() * kEight; i < dim; i += kLanes) {
    float v[kEight];
    load8(from + i, dim - i, v);
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = delta ? (v[j] * rs) * scale : v[j];
    store8(to + (size_t)at * dim + i, dim - i, v);
  }
}
#define CHUNK_ROWS(T) (float* to, const T* x, int rows, int heads, int dim, int xs, int delta, float scale)
KERNELS(chunk_rows, CHUNK_ROWS, (to, x, rows, heads, dim, xs, delta, scale))

// chunk_pairs: a block for a head of a cut. c, factor F32 [rows, heads]: factor is beta or dt; p, m F32 [rows, heads,
// kChunk]: P and -M.
template <class T>
__device__ void chunk_pairs(Heads h, float* c, float* factor, float* p, float* m, const float* q, const float* k,
                            const float* g, const T* b, const float* dt, const Cut* cuts, Slots slots, int gs, int bs) {
  __shared__ Stage stage;
  __shared__ float cs[kChunk], beta[kChunk];
  Cut cut = cuts[blockIdx.x];
  int head = blockIdx.y, kh = h.key_head(head), from = cut.from, end = cut.end(), i = threadIdx.x;
  size_t slot = (size_t)cut.slot * h.heads + head;
  if (i < from) cs[i] = slots.c[slot * kChunk + i];
  if (i < cut.rows) {
    size_t row = cut.row + i;
    cs[from + i] = g[row * gs + head] * kLog2E;
    beta[i] = h.delta ? sigmoid_def(load(b, row * bs + head)) : dt[row * bs + head];
    factor[row * h.heads + head] = beta[i];
  }
  __syncthreads();
  if (i == 0)
    for (int r = from; r < end; r++) cs[r] = (r > 0 ? cs[r - 1] : 0.f) + cs[r];
  __syncthreads();
  if (i < cut.rows) c[(size_t)(cut.row + i) * h.heads + head] = cs[from + i];

  size_t width = (size_t)h.key_heads * h.dim;
  const float *mine = q + cut.row * width + kh * h.dim, *fresh = k + cut.row * width + kh * h.dim,
              *kept = slots.k + ((size_t)cut.slot * h.key_heads + kh) * kChunk * h.dim;
  auto key = [&](int j, int e) { return j < from ? kept[j * h.dim + e] : fresh[(j - from) * width + e]; };
  auto write = [&](float* to, Tile& t, int before, auto value) {
    each(t, 0, 0, cut.rows, end, [&](int r, int j, float x) {
      to[((size_t)(cut.row + r) * h.heads + head) * kChunk + j] =
          j < from + r + before ? value(r, x * exp2_sub(cs[j], -1.f, cs[from + r])) : 0.f;
    });
  };
  Tile t;
  chain<true, true>(stage, t, 0, 0, cut.rows, end, h.dim, [&](int r, int e) { return mine[r * width + e]; }, key);
  write(p, t, 1, [&](int r, float x) { return x; });
  if (!h.delta) return;
  Tile u;
  chain<true, true>(stage, u, 0, 0, cut.rows, end, h.dim, [&](int r, int e) { return fresh[r * width + e]; }, key);
  write(m, u, 0, [&](int r, float x) { return x * -beta[r]; });
}
#define CHUNK_PAIRS(T)                                                                                               \
  (Heads h, float* c, float* factor, float* p, float* m, const float* q, const float* k, const float* g, const T* b, \
   const float* dt, const Cut* cuts, float* slot_s, float* slot_k, float* slot_n, float* slot_c, int gs, int bs)
KERNELS(chunk_pairs, CHUNK_PAIRS,
        (h, c, factor, p, m, q, k, g, b, dt, cuts, Slots{slot_s, slot_k, slot_n, slot_c}, gs, bs))

extern __shared__ float state[];  // [dim][kTile]

// chunk_scan: a block for kTile values of a head of a sequence. out nil: the backward's replay, which keeps the state
// before each cut in states F32 [cuts, heads, dim, values], n and, of the delta rule, h = k S in added, reads F32
// [rows, heads, values].
template <class T>
__device__ void chunk_scan(Heads h, T* out, float* states, float* added, float* reads, const float* q, const float* k,
                           const T* v, const float* c, const float* factor, const float* p, const float* m,
                           const float* skip, const Sequence* sequences, const Cut* cuts, Slots slots, int os, int vs) {
  __shared__ Stage stage;
  __shared__ float n[kChunk][kTile], corner[kSolve][kSolve], cs[kChunk];
  Sequence seq = sequences[blockIdx.x];
  int head = blockIdx.y, kh = h.key_head(head), first = blockIdx.z * kTile, cols = min(kTile, h.values - first);
  size_t width = (size_t)h.key_heads * h.dim, slot = (size_t)seq.slot * h.heads + head;
  float* kept = slots.s + slot * h.dim * h.values + first;
  for (int x = threadIdx.x; x < h.dim * kTile; x += kThreads) {
    int e = x / kTile, j = x % kTile;
    state[x] = seq.fresh || j >= cols ? 0.f : kept[(size_t)e * h.values + j];
  }
  bool moved = seq.fresh;
  for (int i = 0; i < seq.count; i++) {
    Cut cut = cuts[seq.first + i];
    int from = cut.from, end = cut.end();
    size_t row = cut.row;
    auto of_row = [&](const float* x, int r) { return x[(row + r) * h.heads + head]; };
    auto pair = [&](const float* x, int r, int j) { return x[((row + r) * h.heads + head) * kChunk + j]; };
    auto value = [&](int r, int j) { return load(v, (row + r) * vs + head * h.values + first + j); };
    const float *mine = q + row * width + kh * h.dim, *fresh = k + row * width + kh * h.dim,
                *old = slots.k + ((size_t)seq.slot * h.key_heads + kh) * kChunk * h.dim;
    __syncthreads();
    for (int x = threadIdx.x; x < end; x += kThreads)
      cs[x] = x < from ? slots.c[slot * kChunk + x] : of_row(c, x - from);
    for (int x = threadIdx.x; x < from * kTile; x += kThreads)
      n[x / kTile][x % kTile] =
          x % kTile < cols ? slots.n[(slot * kChunk + x / kTile) * h.values + first + x % kTile] : 0.f;
    if (states)
      for (int x = threadIdx.x; x < h.dim * kTile; x += kThreads)
        if (x % kTile < cols)
          states[((size_t)(seq.first + i) * h.heads + head) * h.dim * h.values + (size_t)(x / kTile) * h.values +
                 first + x % kTile] = state[x];

    auto stored = [&](int j, int e) { return state[e * kTile + j]; };
    if (h.delta) {
      Tile t;
      chain<true, false>(
          stage, t, 0, 0, cut.rows, cols, h.dim, [&](int r, int e) { return fresh[r * width + e]; }, stored);
      each(t, 0, 0, cut.rows, cols, [&](int r, int j, float x) {
        if (reads) reads[((row + r) * h.heads + head) * h.values + first + j] = x;
        n[from + r][j] = (value(r, j) + x * -exp2_sub(cs[from + r], 1.f, 0.f)) * of_row(factor, r);
      });
      __syncthreads();
      solve(n, corner, from, cut.rows, [](int r) { return r; }, [&](int r, int j) { return pair(m, r - from, j); });
    } else {
      for (int x = threadIdx.x; x < cut.rows * kTile; x += kThreads)
        if (x % kTile < cols) n[from + x / kTile][x % kTile] = value(x / kTile, x % kTile) * of_row(factor, x / kTile);
      __syncthreads();
    }
    if (added)
      for (int x = threadIdx.x; x < cut.rows * kTile; x += kThreads)
        if (x % kTile < cols)
          added[((row + x / kTile) * h.heads + head) * h.values + first + x % kTile] = n[from + x / kTile][x % kTile];
    if (out) {
      Tile t;
      chain<true, false>(
          stage, t, 0, 0, cut.rows, cols, h.dim, [&](int r, int e) { return mine[r * width + e]; }, stored);
      each(t, 0, 0, cut.rows, cols, [&](int r, int j, float& x) { x = x * exp2_sub(cs[from + r], 1.f, 0.f); });
      chain<true, false>(
          stage, t, 0, 0, cut.rows, cols, end, [&](int r, int j) { return pair(p, r, j); },
          [&](int j, int i) { return n[i][j]; });
      each(t, 0, 0, cut.rows, cols, [&](int r, int j, float x) {
        if (!h.delta) x = x + value(r, j) * skip[head];
        store(out, (row + r) * os + head * h.values + first + j, x + 0.f);
      });
    }
    if (end < kChunk) continue;
    moved = true;
    float last = cs[end - 1], factor_of_all = exp2_def(last);
    for (int e0 = 0; e0 < h.dim; e0 += kTile) {
      Tile t;
      each(t, e0, 0, h.dim, cols, [&](int e, int j, float& x) { x = state[e * kTile + j] * factor_of_all; });
      chain<false, false>(
          stage, t, e0, 0, h.dim, cols, end,
          [&](int e, int r) {
            return (r < from ? old[r * h.dim + e] : fresh[(r - from) * width + e]) * exp2_sub(cs[r], -1.f, last);
          },
          [&](int j, int r) { return n[r][j]; });
      each(t, e0, 0, h.dim, cols, [&](int e, int j, float x) { state[e * kTile + j] = x; });
    }
  }
  if (!slots.s || seq.count == 0) return;
  __syncthreads();
  Cut cut = cuts[seq.first + seq.count - 1];
  for (int x = threadIdx.x; x < cut.rows * kTile; x += kThreads)
    if (x % kTile < cols)
      slots.n[(slot * kChunk + cut.from + x / kTile) * h.values + first + x % kTile] =
          n[cut.from + x / kTile][x % kTile];
  if (moved)
    for (int x = threadIdx.x; x < h.dim * kTile; x += kThreads)
      if (x % kTile < cols) kept[(size_t)(x / kTile) * h.values + x % kTile] = state[x];
}
#define CHUNK_SCAN(T)                                                                                                 \
  (Heads h, T * out, float* states, float* added, float* reads, const float* q, const float* k, const T* v,           \
   const float* c, const float* factor, const float* p, const float* m, const float* skip, const Sequence* sequences, \
   const Cut* cuts, float* slot_s, float* slot_k, float* slot_n, float* slot_c, int os, int vs)
KERNELS(chunk_scan, CHUNK_SCAN,
        (h, out, states, added, reads, q, k, v, c, factor, p, m, skip, sequences, cuts,
         Slots{slot_s, slot_k, slot_n, slot_c}, os, vs))

// chunk_keep: a block for a sequence puts the last cut's keys and decays into its slot.
KERNEL(chunk_keep, Heads h, const float* k, const float* c, const Sequence* sequences, const Cut* cuts, float* slot_k,
       float* slot_c) {
  Sequence seq = sequences[blockIdx.x];
  if (seq.count == 0) return;
  Cut cut = cuts[seq.first + seq.count - 1];
  int width = h.key_heads * h.dim;
  for (int x = threadIdx.x; x < cut.rows * width; x += kThreads) {
    int r = x / width, kh = x % width / h.dim, e = x % h.dim;
    slot_k[(((size_t)seq.slot * h.key_heads + kh) * kChunk + cut.from + r) * h.dim + e] =
        k[(size_t)(cut.row + r) * width + x % width];
  }
  for (int x = threadIdx.x; x < cut.rows * h.heads; x += kThreads) {
    int r = x / h.heads, head = x % h.heads;
    slot_c[((size_t)seq.slot * h.heads + head) * kChunk + cut.from + r] = c[(size_t)(cut.row + r) * h.heads + head];
  }
}
