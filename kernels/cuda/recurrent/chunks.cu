// Rule 4 of the definition (kernels/recurrent.go), forward: Gated DeltaNet's delta rule and Mamba2's state space. Four
// kernels: queries and keys of all rows; c, P and M of all chunks, side by side; then a block for some values of a head
// of a sequence, which walks through its chunks with the state in shared memory (chunk_scans.cuh); then the slots' keys
// and decays, which the blocks of a head before have read. Bound: about rows*heads*(dim*values*3 + 64*(2*dim + values))
// fma of fp32, no tensor core computes them; for one row of a sequence the bytes of its state.
#include "chunk_scans.cuh"

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

extern __shared__ float4 shared_scan[];

// Scan is what a block of chunk_scan has in shared memory.
template <int V>
struct Scan {
  Slab slabs[kSlabs];
  Decays decays[kSlabs];
  using Own = Chains<V, kThreads>;
  float n[kChunk][Own::kStride], state[1][Own::kStride];  // state [dim][kStride]
};

// chunk_scan: a block for V values of a head of a sequence. out nil: the backward's replay, which keeps the state
// before each cut in states F32 [cuts, heads, dim, values], n and, of the delta rule, h = k S in added, reads F32
// [rows, heads, values].
template <class T, int V>
__device__ void chunk_scan(Heads h, T* out, float* states, float* added, float* reads, const float* q, const float* k,
                           const T* v, const float* c, const float* factor, const float* p, const float* m,
                           const float* skip, const Sequence* sequences, const Cut* cuts, Slots slots, int os, int vs) {
  using Own = Chains<V, kThreads>;
  constexpr int kStride = Own::kStride;
  Scan<V>& s = *(Scan<V>*)shared_scan;
  float *state = s.state[0], *n = s.n[0];
  Sequence seq = sequences[blockIdx.x];
  int head = blockIdx.y, kh = h.key_head(head), first = blockIdx.z * V, cols = min(V, h.values - first);
  int pieces = (h.dim + kTile - 1) / kTile;
  size_t width = (size_t)h.key_heads * h.dim, slot = (size_t)seq.slot * h.heads + head;
  const float* old = slots.k + ((size_t)seq.slot * h.key_heads + kh) * kChunk * h.dim;
  float* kept = slots.s + slot * h.dim * h.values + first;
  bool wide = h.dim % 4 == 0;

  // Parts of a chunk: keys and -M of the delta rule, queries and P for outputs, keys of all rows for the next state.
  auto part = [&](const Cut& cut, int i) {
    const float *queries = q + cut.row * width + kh * h.dim, *keys = k + cut.row * width + kh * h.dim;
    size_t pair = ((size_t)cut.row * h.heads + head) * kChunk, across = (size_t)h.heads * kChunk;
    auto piece = [&](const float* x, int e) {
      return Source{x, x + e, 0, width, 0, cut.rows, min(kTile, h.dim - e), wide};
    };
    if (h.delta) {
      if (i < pieces) return piece(keys, i * kTile);
      if (i == pieces) return Source{m, m + pair, 0, across, 0, cut.rows, kChunk, true};
      i -= pieces + 1;
    }
    if (out) {
      if (i < pieces) return piece(queries, i * kTile);
      if (i == pieces) return Source{p, p + pair, 0, across, 0, cut.rows, kChunk, true};
      i -= pieces + 1;
    }
    int e = i * kTile, end = cut.end();
    return Source{old + e, keys + e, (size_t)h.dim, width, cut.from, end == kChunk ? end : 0, min(kTile, h.dim - e),
                  wide};
  };
  auto decays = [&](const Cut& cut, Decays& to) {
    int x = threadIdx.x;
    size_t row = cut.row;
    if (x < cut.end())
      copy4(&to.c[x], x < cut.from ? slots.c + slot * kChunk + x : c + (row + x - cut.from) * h.heads + head, 4);
    if (x < cut.rows) copy4(&to.factor[x], factor + (row + x) * h.heads + head, 4);
  };
  int parts = (h.delta ? pieces + 1 : 0) + (out ? pieces + 1 : 0) + pieces;
  Ring<decltype(part), decltype(decays)> ring(s.slabs, s.decays, cuts + seq.first, seq.count, 1, parts, part, decays);

  for (int x = threadIdx.x; x < h.dim * V; x += kThreads) {
    int e = x / V, j = x % V;
    state[e * kStride + j] = seq.fresh || j >= cols ? 0.f : kept[(size_t)e * h.values + j];
  }
  for (int i = 0; i < seq.count; i++) {
    Cut cut = cuts[seq.first + i];
    Decays& d = s.decays[i % kSlabs];
    int from = cut.from, end = cut.end();
    size_t row = cut.row;
    auto input = [&](int r, int j) { return load(v, (row + r) * vs + head * h.values + first + j); };
    __syncthreads();
    for (int x = threadIdx.x; x < from * V; x += kThreads)
      n[x / V * kStride + x % V] = x % V < cols ? slots.n[(slot * kChunk + x / V) * h.values + first + x % V] : 0.f;
    if (states)
      for (int x = threadIdx.x; x < h.dim * V; x += kThreads)
        if (x % V < cols)
          states[((size_t)(seq.first + i) * h.heads + head) * h.dim * h.values + (size_t)(x / V) * h.values + first +
                 x % V] = state[x / V * kStride + x % V];

    auto of_state = [&](Own& t) {
      for (int e = 0; e < h.dim; e += kTile)
        t.across(ring.next(), state + e * kStride, cut.rows, min(kTile, h.dim - e));
    };
    if (h.delta) {
      Own t;
      of_state(t);
      if (reads)
        t.each(cut.rows, cols,
               [&](int r, int j, float x) { reads[((row + r) * h.heads + head) * h.values + first + j] = x; });
      t.times(cut.rows, [&](int r) { return -exp2_sub(d.c[from + r], 1.f, 0.f); });
      t.each(cut.rows, cols, [&](int r, int j, float x) {
        n[(from + r) * kStride + j] = (input(r, j) + x) * d.factor[r];
      });
      Slab& pairs = ring.next();
      __syncthreads();
      solve<V, kThreads>(
          n, from, end, [](int i) { return i; },
          [&](int i, int j) { return pairs.v[i - from][j]; },
          [&](int i, int j, float* w) { *(float4*)w = *(const float4*)&pairs.v[i][j]; },
          [&](int i, int j, float* y) { Own::write(n + i * kStride + j, y); });
      __syncthreads();
    } else {
      Own t;
      t.each(cut.rows, cols, [&](int r, int j, float) {
        n[(from + r) * kStride + j] = input(r, j) * factor[(row + r) * h.heads + head];
      });
      __syncthreads();
    }
    if (added)
      for (int x = threadIdx.x; x < cut.rows * V; x += kThreads)
        if (x % V < cols)
          added[((row + x / V) * h.heads + head) * h.values + first + x % V] = n[(from + x / V) * kStride + x % V];
    if (out) {
      Own t;
      of_state(t);
      t.times(cut.rows, [&](int r) { return exp2_sub(d.c[from + r], 1.f, 0.f); });
      t.across(ring.next(), n, cut.rows, end);
      if (!h.delta)
        t.each(cut.rows, cols, [&](int r, int j, float& x) { x = x + input(r, j) * skip[head]; });
      t.each(cut.rows, cols, [&](int r, int j, float x) {
        store(out, (row + r) * os + head * h.values + first + j, x + 0.f);
      });
    }
    for (int e = 0; e < h.dim; e += kTile) {
      Slab& keys = ring.next();
      if (end < kChunk) continue;
      float last = d.c[end - 1], factor_of_all = exp2_def(last);
      if (e == 0) {
        if (threadIdx.x < kChunk) d.weight[threadIdx.x] = exp2_sub(d.c[threadIdx.x], -1.f, last);
        __syncthreads();
      }
      scale(keys, d.weight, end, threadIdx.x, kThreads);
      __syncthreads();
      Own t;
      t.each(h.dim - e, cols, [&](int r, int j, float& x) { x = state[(e + r) * kStride + j] * factor_of_all; });
      t.down(keys, n, end);
      t.each(h.dim - e, cols, [&](int r, int j, float x) { state[(e + r) * kStride + j] = x; });
    }
  }
  if (!slots.s || seq.count == 0) return;
  __syncthreads();
  Cut cut = cuts[seq.first + seq.count - 1];
  for (int x = threadIdx.x; x < cut.rows * V; x += kThreads)
    if (x % V < cols)
      slots.n[(slot * kChunk + cut.from + x / V) * h.values + first + x % V] =
          n[(cut.from + x / V) * kStride + x % V];
  if (seq.fresh || seq.count > 1 || cut.end() == kChunk)
    for (int x = threadIdx.x; x < h.dim * V; x += kThreads)
      if (x % V < cols) kept[(size_t)(x / V) * h.values + x % V] = state[x / V * kStride + x % V];
}
#define CHUNK_SCAN(T)                                                                                                 \
  (Heads h, T * out, float* states, float* added, float* reads, const float* q, const float* k, const T* v,           \
   const float* c, const float* factor, const float* p, const float* m, const float* skip, const Sequence* sequences, \
   const Cut* cuts, float* slot_s, float* slot_k, float* slot_n, float* slot_c, int os, int vs)
SCANS(chunk_scan, CHUNK_SCAN,
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
