// Rule 4 of the definition backward, as kernels/cpu/chunks_backward.go states it. chunks.cu has run forward again and
// kept the states. Three kernels: a block for some values of a head of a sequence walks from its last chunk to the
// first with the gradient A of the state in shared memory and keeps A and x; then a block for the heads of a key of a
// chunk takes everything else from these; then queries and keys go through their norms. Bound: about
// rows*heads*(dim*values*7 + 64*(6*dim + 5*values)) fma of fp32.
#include "chunk_scans.cuh"

extern __shared__ float4 shared_scan[];

// Unroll is what a block of chunk_unroll has in shared memory.
template <int V>
struct Unroll {
  Slab slabs[kSlabs];
  Decays decays[kSlabs];
  using Own = Chains<V, kThreads>;
  float x[kChunk][Own::kStride], gradient[kChunk][Own::kStride], state[1][Own::kStride];  // [dim][kStride]: A
};

// chunk_unroll: grads F32 [cuts, heads, dim, values] takes A behind each cut, `to` F32 [rows, heads, values] what the
// statement calls x.
template <class T, int V>
__device__ void chunk_unroll(Heads h, float* grads, float* to, const float* q, const float* k, const T* dout,
                             const float* c, const float* beta, const float* p, const float* m,
                             const Sequence* sequences, const Cut* cuts, int ds) {
  using Own = Chains<V, kThreads>;
  constexpr int kStride = Own::kStride;
  Unroll<V>& s = *(Unroll<V>*)shared_scan;
  float *state = s.state[0], *x = s.x[0], *gradient = s.gradient[0];
  Sequence seq = sequences[blockIdx.x];
  int head = blockIdx.y, kh = h.key_head(head), first = blockIdx.z * V, cols = min(V, h.values - first);
  int pieces = (h.dim + kTile - 1) / kTile;
  size_t width = (size_t)h.key_heads * h.dim;
  bool wide = h.dim % 4 == 0;

  // Parts of a chunk: keys; P; -M of the delta rule; queries, of the delta rule each followed by its keys.
  auto part = [&](const Cut& cut, int i) {
    size_t row = cut.row * width + kh * h.dim, pair = ((size_t)cut.row * h.heads + head) * kChunk;
    auto piece = [&](const float* of, int e) {
      return Source{of, of + row + e, 0, width, 0, cut.rows, min(kTile, h.dim - e), wide};
    };
    if (i < pieces) return piece(k, i * kTile);
    i -= pieces;
    if (i < 1 + h.delta) {
      const float* of = i == 0 ? p : m;
      return Source{of, of + pair, 0, (size_t)h.heads * kChunk, 0, cut.rows, kChunk, true};
    }
    i -= 1 + h.delta;
    return h.delta ? piece(i % 2 == 0 ? q : k, i / 2 * kTile) : piece(q, i * kTile);
  };
  auto decays = [&](const Cut& cut, Decays& to) {
    if ((int)threadIdx.x >= cut.rows) return;
    size_t at = (size_t)(cut.row + threadIdx.x) * h.heads + head;
    copy4(&to.c[threadIdx.x], c + at, 4);
    copy4(&to.factor[threadIdx.x], beta + at, 4);
  };
  int parts = h.delta ? 3 * pieces + 2 : 2 * pieces + 1;
  Ring<decltype(part), decltype(decays)> ring(s.slabs, s.decays, cuts + seq.first + seq.count - 1, seq.count, -1, parts,
                                              part, decays);

  for (int i = threadIdx.x; i < h.dim * kStride; i += kThreads) state[i] = 0.f;
  for (int chunk = 0; chunk < seq.count; chunk++) {
    int at = seq.first + seq.count - 1 - chunk;
    Cut cut = cuts[at];
    Decays& d = s.decays[chunk % kSlabs];
    int rows = cut.rows;
    size_t row = cut.row;
    Own own;
    own.each(rows, cols, [&](int r, int j, float& y) { y = load(dout, (row + r) * ds + head * h.values + first + j); });
    __syncthreads();
    for (int i = threadIdx.x; i < h.dim * V; i += kThreads)
      if (i % V < cols)
        grads[((size_t)at * h.heads + head) * h.dim * h.values + (size_t)(i / V) * h.values + first + i % V] =
            state[i / V * kStride + i % V];
    Own t;
    for (int e = 0; e < h.dim; e += kTile) t.across(ring.next(), state + e * kStride, rows, min(kTile, h.dim - e));
    float last = d.c[rows - 1], all = exp2_sub(last, 1.f, 0.f);
    if ((int)threadIdx.x < rows) d.weight[threadIdx.x] = exp2_sub(d.c[threadIdx.x], 1.f, 0.f);
    t.times(rows, [&](int r) { return exp2_sub(d.c[r], -1.f, last); });
    own.each(rows, cols, [&](int r, int j, float y) { gradient[r * kStride + j] = y; });
    t.down(ring.next(), gradient, rows);
    t.each(rows, cols, [&](int r, int j, float y) { x[r * kStride + j] = y; });
    if (h.delta) {
      Slab& pairs = ring.next();
      __syncthreads();
      auto reversed = [&](int r) { return rows - 1 - r; };
      solve<V, kThreads>(
          x, 0, rows, reversed,
          [&](int i, int j) { return pairs.v[rows - 1 - j][rows - 1 - i]; },
        [&](int i, int j, float* w) {
#pragma unroll
            for (int y = 0; y < 4; y++) w[y] = pairs.v[kChunk - 1 - j - y][kChunk - 1 - i];
          },
          [&](int i, int j, float* y) { Own::write(x + reversed(i) * kStride + j, y); });
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * V; i += kThreads) {
      int r = i / V, j = i % V;
      if (j < cols) to[((row + r) * h.heads + head) * h.values + first + j] = x[r * kStride + j];
      if (h.delta) x[r * kStride + j] = x[r * kStride + j] * -(d.factor[r] * d.weight[r]);
    }
    for (int e = 0; e < h.dim; e += kTile) {
      Slab& queries = ring.next();
      scale(queries, d.weight, rows, threadIdx.x, kThreads);
      __syncthreads();
      Own a;
      a.each(h.dim - e, cols, [&](int r, int j, float& y) { y = state[(e + r) * kStride + j] * all; });
      a.down(queries, gradient, rows);
      if (h.delta) a.down(ring.next(), x, rows);
      a.each(h.dim - e, cols, [&](int r, int j, float y) { state[(e + r) * kStride + j] = y; });
    }
  }
}
#define CHUNK_UNROLL(T)                                                                                                \
  (Heads h, float* grads, float* to, const float* q, const float* k, const T* dout, const float* c, const float* beta, \
   const float* p, const float* m, const Sequence* sequences, const Cut* cuts, int ds)
SCANS(chunk_unroll, CHUNK_UNROLL, (h, grads, to, q, k, dout, c, beta, p, m, sequences, cuts, ds))

// Saved is what is known of all rows and chunks, F32: states and grads [cuts, heads, dim, values]; n, h, x [rows,
// heads, values]; c, beta (or dt) [rows, heads]; q, k [rows, key heads, dim]. Scratch of a block, F32: u [rows, key
// heads, dim], qs [rows, key heads, values]. Results, F32: dq, dk [rows, key heads, dim].
struct Saved {
  const float *q, *k, *c, *beta, *states, *grads, *n, *h, *x;
  float *u, *qs, *dq, *dk;
};

// Square is a matrix of pairs of rows.
typedef float Square[kChunk][kChunk + 1];

// Pairs are a chunk's matrices and what its rows need, in shared memory.
struct Pairs {
  Square qq, kk, y, x;
  float c[kChunk], beta[kChunk], dbeta[kChunk], dc[kChunk], t[kChunk], columns[kChunk], lanes[kLanes];
  Stage stage;
};

// tree_of_block leaves the definition's tree of f(0) ... f(n-1), a lane to each of kThreads == kLanes threads, in
// lanes[0], for all of them.
template <class F>
__device__ inline void tree_of_block(float* lanes, int n, F f) {
  float sum = 0.f;
  for (int i = threadIdx.x; i < n; i += kLanes) sum += f(i);
  lanes[threadIdx.x] = sum;
  for (int s = kLanes / 2; s > 0; s /= 2) {
    __syncthreads();
    if ((int)threadIdx.x < s) lanes[threadIdx.x] += lanes[threadIdx.x + s];
  }
  __syncthreads();
}

// Gradients are where those of the rows go: dv [rows, heads*values], dg [rows, heads], db [rows, heads] of the delta
// rule, ddt and what each row adds to dskip, F32 [rows, heads], of the state space.
template <class T>
struct Gradients {
  T *dv, *db;
  float *dg, *ddt, *dskip;
  int dvs, dbs, dgs, ddts;
};

// OneHead is a head of a cut.
template <class T>
struct OneHead {
  Heads h;
  Saved s;
  Cut cut;
  int at, head, kh;
  const T *dout, *v;
  int ds, vs;

  __device__ size_t row(int r) const { return (size_t)(cut.row + r); }
  __device__ float value(const float* x, int r, int j) const { return x[(row(r) * h.heads + head) * h.values + j]; }
  __device__ float of_state(const float* x, int e, int j) const {
    return x[((size_t)at * h.heads + head) * h.dim * h.values + (size_t)e * h.values + j];
  }
  __device__ size_t key(int r, int e) const { return (row(r) * h.key_heads + kh) * h.dim + e; }
  __device__ size_t read(int r, int j) const { return (row(r) * h.key_heads + kh) * h.values + j; }
  __device__ float gradient(int r, int j) const { return load(dout, row(r) * ds + head * h.values + j); }
  __device__ float input(int r, int j) const { return load(v, row(r) * vs + head * h.values + j); }
  __device__ float e(const Pairs& p, int r) const { return exp2_sub(p.c[r], 1.f, 0.f); }
  __device__ float y(const Pairs& p, int r, int j) const { return value(s.x, r, j) * -(p.beta[r] * e(p, r)); }

  // pairs is c, beta, Y, and B of the delta rule in p.x.
  __device__ void pairs(Pairs& p) const {
    int n = cut.rows;
    __syncthreads();
    for (int r = threadIdx.x; r < n; r += kThreads)
      p.c[r] = s.c[row(r) * h.heads + head], p.beta[r] = s.beta[row(r) * h.heads + head];
    auto added = [&](int j, int d) { return value(s.n, j, d); };
    Tile t;
    chain<true, true>(p.stage, t, 0, 0, n, n, h.values, [&](int r, int d) { return gradient(r, d); }, added);
    each(t, 0, 0, n, n, [&](int i, int j, float x) { p.y[i][j] = j <= i ? x * exp2_sub(p.c[j], -1.f, p.c[i]) : 0.f; });
    if (!h.delta) return;
    Tile b;
    chain<true, true>(p.stage, b, 0, 0, n, n, h.values, [&](int r, int d) { return value(s.x, r, d); }, added);
    each(b, 0, 0, n, n,
         [&](int i, int j, float x) { p.x[i][j] = j < i ? -(x * exp2_sub(p.c[j], -1.f, p.c[i])) : 0.f; });
  }

  // betas is dbeta, and makes X of B.
  __device__ void betas(Pairs& p) const {
    __syncthreads();
    for (int r = threadIdx.x / kWarp; r < cut.rows; r += kThreads / kWarp) {
      float own = tree(h.values, [&](int j) { return value(s.x, r, j) * (input(r, j) + value(s.h, r, j) * -e(p, r)); });
      float others = tree(cut.rows, [&](int j) { return p.x[r][j] * p.kk[r][j]; });
      if (warp_lane() == 0) p.dbeta[r] = own + others;
      __syncwarp();
      for (int j = warp_lane(); j < cut.rows; j += kWarp) p.x[r][j] = p.x[r][j] * p.beta[r];
    }
    __syncthreads();
  }

  // keys adds the head's dq and dk to those of its key head, and leaves u and dot(q, S).
  __device__ void keys(Pairs& p, bool first) const {
    int n = cut.rows;
    float last = p.c[n - 1];
    auto states = [&](int e, int j) { return of_state(s.states, e, j); };
    auto query = [&](int e, int j) { return s.q[key(j, e)]; };
    auto mine = [&](int e, int j) { return s.k[key(j, e)]; };
    auto add = [&](float* to, Tile& t, int e0) {
      each(t, 0, e0, n, h.dim, [&](int r, int e, float x) { to[key(r, e)] = (first ? 0.f : to[key(r, e)]) + x; });
    };
    for (int e0 = 0; e0 < h.dim; e0 += kTile) {
      Tile t;
      chain<true, true>(p.stage, t, 0, e0, n, h.dim, h.values, [&](int r, int j) { return gradient(r, j); }, states);
      each(t, 0, e0, n, h.dim, [&](int r, int, float& x) { x = x * e(p, r); });
      chain<true, false>(p.stage, t, 0, e0, n, h.dim, n, [&](int i, int j) { return p.y[i][j]; }, mine);
      add(s.dq, t, e0);

      Tile u;
      chain<true, true>(
          p.stage, u, 0, e0, n, h.dim, h.values, [&](int r, int j) { return value(s.n, r, j); },
          [&](int e, int j) { return of_state(s.grads, e, j); });
      each(u, 0, e0, n, h.dim, [&](int r, int e, float& x) {
        x = x * exp2_sub(p.c[r], -1.f, last);
        s.u[key(r, e)] = x;
      });
      if (h.delta) {
        chain<true, true>(p.stage, u, 0, e0, n, h.dim, h.values, [&](int r, int j) { return y(p, r, j); }, states);
        chain<true, false>(p.stage, u, 0, e0, n, h.dim, n, [&](int i, int j) { return p.x[i][j]; }, mine);
        chain<false, false>(p.stage, u, 0, e0, n, h.dim, n, [&](int i, int j) { return p.x[j][i]; }, mine);
      }
      chain<false, false>(p.stage, u, 0, e0, n, h.dim, n, [&](int i, int j) { return p.y[j][i]; }, query);
      add(s.dk, u, e0);
    }
    for (int j0 = 0; j0 < h.values; j0 += kTile) {
      Tile t;
      chain<true, false>(
          p.stage, t, 0, j0, n, h.values, h.dim, [&](int r, int e) { return s.q[key(r, e)]; },
          [&](int j, int e) { return of_state(s.states, e, j); });
      each(t, 0, j0, n, h.values, [&](int r, int j, float x) { s.qs[read(r, j)] = x; });
    }
    __syncthreads();
  }

  __device__ float z(const Pairs& p, int i, int j) const {
    if (j >= i) return 0.f;
    float x = p.y[i][j] * p.qq[i][j];
    return h.delta ? x + p.x[i][j] * p.kk[i][j] : x;
  }

  // decays is dg, and db of the delta rule.
  __device__ void decays(Pairs& p, const Gradients<T>& g) const {
    int n = cut.rows;
    if ((int)threadIdx.x < n) {
      float sum = 0.f;
      for (int r = 0; r < n; r++) sum += z(p, r, threadIdx.x);
      p.columns[threadIdx.x] = sum;
    }
    __syncthreads();
    for (int r = threadIdx.x / kWarp; r < n; r += kThreads / kWarp) {
      float dc = tree(n, [&](int j) { return z(p, r, j); }) - p.columns[r];
      dc = dc + e(p, r) * tree(h.values, [&](int j) { return s.qs[read(r, j)] * gradient(r, j); });
      if (h.delta) dc = dc + tree(h.values, [&](int j) { return y(p, r, j) * value(s.h, r, j); });
      float t = tree(h.dim, [&](int e) { return s.k[key(r, e)] * s.u[key(r, e)]; });
      if (warp_lane() == 0) p.dc[r] = dc - t, p.t[r] = t;
    }
    size_t whole = ((size_t)at * h.heads + head) * h.dim * h.values;
    tree_of_block(p.lanes, h.dim * h.values, [&](int i) { return s.grads[whole + i] * s.states[whole + i]; });
    if (threadIdx.x > 0) return;
    float sum = 0.f, later = 0.f, behind = p.lanes[0];
    for (int r = 0; r < n; r++) sum += p.t[r];
    p.dc[n - 1] = p.dc[n - 1] + (sum + e(p, n - 1) * behind);
    for (int r = n - 1; r >= 0; r--) {
      later += p.dc[r];
      g.dg[row(r) * g.dgs + head] = later;
      if (h.delta) store(g.db, row(r) * g.dbs + head, p.dbeta[r] * (p.beta[r] * (1.f - p.beta[r])));
    }
  }

  // values is dv, and ddt and dskip of the state space.
  __device__ void values(Pairs& p, const Gradients<T>& g, const float* skip) const {
    for (int i = threadIdx.x; i < cut.rows * h.values; i += kThreads) {
      int r = i / h.values, j = i % h.values;
      float x = value(s.x, r, j) * p.beta[r];
      if (!h.delta) x = x + gradient(r, j) * skip[head];
      store(g.dv, row(r) * g.dvs + head * h.values + j, x + 0.f);
    }
    if (h.delta) return;
    for (int r = threadIdx.x / kWarp; r < cut.rows; r += kThreads / kWarp) {
      float step = tree(h.values, [&](int j) { return value(s.x, r, j) * input(r, j); }),
            through = tree(h.values, [&](int j) { return gradient(r, j) * input(r, j); });
      if (warp_lane() == 0) g.ddt[row(r) * g.ddts + head] = step, g.dskip[row(r) * h.heads + head] = through;
    }
  }
};

extern __shared__ Pairs shared_pairs[];

template <class T>
__device__ void chunk_grads(Heads h, Saved s, Gradients<T> g, const T* dout, const T* v, const float* skip,
                            const Cut* cuts, int ds, int vs) {
  Pairs& p = shared_pairs[0];
  Cut cut = cuts[blockIdx.x];
  int kh = blockIdx.y, group = h.heads / h.key_heads, n = cut.rows;
  OneHead<T> one{h, s, cut, (int)blockIdx.x, kh * group, kh, dout, v, ds, vs};
  auto key = [&](int r, int e) { return s.k[one.key(r, e)]; };
  Tile a, b;
  chain<true, true>(p.stage, a, 0, 0, n, n, h.dim, [&](int r, int e) { return s.q[one.key(r, e)]; }, key);
  each(a, 0, 0, n, n, [&](int i, int j, float x) { p.qq[i][j] = x; });
  if (h.delta) chain<true, true>(p.stage, b, 0, 0, n, n, h.dim, key, key);
  each(b, 0, 0, n, n, [&](int i, int j, float x) { p.kk[i][j] = x; });
  for (int i = 0; i < group; i++, one.head++) {
    one.pairs(p);
    if (h.delta) one.betas(p);
    one.keys(p, i == 0);
    one.decays(p, g);
    one.values(p, g, skip);
  }
}
#define CHUNK_GRADS(T)                                                                                                \
  (Heads h, const float* q, const float* k, const float* c, const float* beta, const float* states,                   \
   const float* grads, const float* n, const float* reads, const float* x, float* u, float* qs, float* dq, float* dk, \
   T* dv, T* db, float* dg, float* ddt, float* dskip, int dvs, int dbs, int dgs, int ddts, const T* dout, const T* v, \
   const float* skip, const Cut* cuts, int ds, int vs)
KERNELS(chunk_grads, CHUNK_GRADS,
        (h, Saved{q, k, c, beta, states, grads, n, reads, x, u, qs, dq, dk},
         {dv, db, dg, ddt, dskip, dvs, dbs, dgs, ddts}, dout, v, skip, cuts, ds, vs))

// chunk_keys: a warp for a head of a row takes the gradient d F32 [rows, heads*dim], times scale, through the norm of
// the delta rule.
template <class T>
__device__ void chunk_keys(T* to, const float* gradient, const T* x, int rows, int heads, int dim, int ts, int xs,
                           int delta, float scale) {
  int at = warp_row();
  if (at >= rows * heads) return;
  size_t row = at / heads, col = at % heads * dim;
  const T* from = x + row * xs + col;
  const float* d = gradient + (size_t)at * dim;
  float rs = 0.f, c = 0.f;
  if (delta) {
    rs = 1.f / sqrtf(tree(dim, [&](int i) { return load(from, i) * load(from, i); }) + 1e-6f);
    c = tree(dim, [&](int i) { return (d[i] * scale) * (load(from, i) * rs); });
  }
  for (int i = warp_lane(); i < dim; i += kWarp) {
    float y = delta ? rs * (d[i] * scale - (load(from, i) * rs) * c) : d[i];
    store(to, row * ts + col + i, y + 0.f);
  }
}
#define CHUNK_KEYS(T) \
  (T * to, const float* gradient, const T* x, int rows, int heads, int dim, int ts, int xs, int delta, float scale)
KERNELS(chunk_keys, CHUNK_KEYS, (to, gradient, x, rows, heads, dim, ts, xs, delta, scale))
