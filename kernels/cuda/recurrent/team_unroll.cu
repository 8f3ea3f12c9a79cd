// chunk_unroll (chunks_backward.cu) of few sequences, by teams. Of a chunk the first team has x: k A, the part of
// outputs behind it, sums of rows over rows. The second continues A over the queries meanwhile; then each continues
// every second 64 rows of it over the keys.
//
// A chunk of dim 128 and 16 values, in clocks: of the first team 1,400 and 700 as issued, the sums as in team_scan.cu,
// 700 for the keys; of the second 1,400 meanwhile.
#include "teams.cuh"

extern __shared__ float4 shared_scan[];

// Unroll is what a block has in shared memory. A barrier is for one chunk after the other: all have waited for this one
// before any comes to it for the next.
template <int V>
struct Unroll {
  SlabRing<3> own, other;
  u64 state_there, gradient_there, queries_there, x_there;
  alignas(16) float x[kChunk][Block<V>::kStride], gradient[kChunk][Block<V>::kStride];
  float state[1][Block<V>::kStride];  // [2][dim][kStride]: A, and the next
};

// Operands are those of the kernel.
template <class T>
struct Operands {
  float *grads, *to;
  const float *q, *k;
  const T* dout;
  const float *c, *beta, *p, *m;
  const Cut* cuts;
  int ds;
};

template <class T, int V>
struct Unroller : Block<V> {
  using Own = Chains<V, kTeam>;
  using Block<V>::h, Block<V>::seq, Block<V>::head, Block<V>::first, Block<V>::cols, Block<V>::pieces;
  using Block<V>::kStride, Block<V>::thread, Block<V>::of_row;
  Operands<T> x;
  Unroll<V>& s;
  __device__ Unroller(Heads h, const Sequence* sequences, const Operands<T>& x, Unroll<V>& s)
      : Block<V>(h, sequences), x(x), s(s) {
    this->x.cuts += seq.first;
    if (threadIdx.x == 0) {
      s.own.line.init(kWarp, kTeamWarps);
      s.other.line.init(kWarp, kTeamWarps);
      barrier_init(&s.state_there, 2 * kTeamWarps);
      barrier_init(&s.gradient_there, kTeamWarps);
      barrier_init(&s.queries_there, kTeamWarps);
      barrier_init(&s.x_there, kTeamWarps);
    }
    __syncthreads();
  }

  __device__ float* state(int chunk) const { return s.state[0] + (size_t)(chunk & 1) * h.dim * kStride; }
  __device__ const Cut& cut(int chunk) const { return x.cuts[seq.count - 1 - chunk]; }

  // bring is that of the warps which copy: keys, P, of the delta rule -M and keys for the first team's part of A;
  // queries, and keys for the second's.
  __device__ void bring() const {
    int ring = threadIdx.x / kWarp - 2 * kTeamWarps, odd = h.delta ? pieces / 2 : 0, even = h.delta ? pieces - odd : 0;
    auto own = [&](const Cut& cut, int i) {
      if (i < pieces) return this->piece(x.k, cut, i * kTile);
      i -= pieces;
      return i < 2 ? this->pairs(i == 0 ? x.p : x.m, cut) : this->piece(x.k, cut, (2 * (i - 2) + 1) * kTile);
    };
    auto other = [&](const Cut& cut, int i) {
      return i < pieces ? this->piece(x.q, cut, i * kTile) : this->piece(x.k, cut, 2 * (i - pieces) * kTile);
    };
    const Cut* last = x.cuts + seq.count - 1;
    if (ring == 0) this->produce(s.own, last, -1, pieces + 1 + h.delta + odd, own, nullptr, x.c, x.beta);
    if (ring == 1) this->produce(s.other, last, -1, pieces + even, other, nullptr, x.c, x.beta);
  }

  // second is the second team's.
  __device__ void second() {
    Place<3> place(s.other.line);
    for (int i = thread(); i < h.dim * kStride; i += kTeam) state(0)[i] = 0.f;
    arrive(&s.state_there);
    for (int chunk = 0; chunk < seq.count; chunk++) {
      Cut cut = this->cut(chunk);
      int rows = cut.rows;
      size_t row = cut.row;
      const float* now = state(chunk);
      float *next = state(chunk + 1), *gradient = s.gradient[0];
      Own own;
      own.each(rows, cols,
               [&](int r, int j, float& y) { y = load(x.dout, (row + r) * x.ds + head * h.values + first + j); });
      barrier_wait(&s.state_there, chunk & 1);
      this->keep_state(x.grads + this->of_cut(seq.first + seq.count - 1 - chunk), now);
#pragma unroll
      for (int r = 0; r < 4; r++)
        if (Own::row() + r < rows) Own::write(gradient + (Own::row() + r) * kStride + Own::col(), own.v[r]);
      arrive(&s.gradient_there);
      place.wait_full();
      Decays& d = s.other.rows[chunk % 3];
      float all = exp2_sub(d.c[rows - 1], 1.f, 0.f);
      if (thread() < rows) d.weight[thread()] = exp2_sub(d.c[thread()], 1.f, 0.f);
      meet();
      for (int e = 0; e < h.dim; e += kTile, place.next()) {
        place.wait_full();
        Slab& queries = s.other.slabs[place.at];
        scale(queries, d.weight, rows, thread(), kTeam);
        meet();
        Own a;
        a.each(h.dim - e, V, [&](int r, int j, float& y) { y = now[(e + r) * kStride + j] * all; });
        a.down(queries, gradient, rows);
        place.clear();
        a.each(h.dim - e, V, [&](int r, int j, float y) { next[(e + r) * kStride + j] = y; });
      }
      arrive(&s.queries_there);
      barrier_wait(&s.x_there, chunk & 1);
      if (h.delta) over_keys(s.other, place, next, 0, rows);
      arrive(&s.state_there);
    }
  }

  // over_keys continues every second 64 rows of the next A, from e on, over the keys.
  __device__ void over_keys(SlabRing<3>& ring, Place<3>& place, float* next, int e, int rows) const {
    for (; e < h.dim; e += 2 * kTile, place.next()) {
      place.wait_full();
      Own a;
      a.each(h.dim - e, V, [&](int r, int j, float& y) { y = next[(e + r) * kStride + j]; });
      a.down(ring.slabs[place.at], s.x[0], rows);
      place.clear();
      a.each(h.dim - e, V, [&](int r, int j, float y) { next[(e + r) * kStride + j] = y; });
    }
  }

  // first_team is the first team's.
  __device__ void first_team() {
    Place<3> place(s.own.line);
    arrive(&s.state_there);
    for (int chunk = 0; chunk < seq.count; chunk++) {
      Cut cut = this->cut(chunk);
      int rows = cut.rows;
      const float* now = state(chunk);
      place.wait_full();
      Decays& d = s.own.rows[chunk % 3];
      float last = d.c[rows - 1];
      if (thread() < rows) d.factor[thread()] = -(d.factor[thread()] * exp2_sub(d.c[thread()], 1.f, 0.f));
      weigh<V>(d.weight, rows, [&](int r) { return exp2_sub(d.c[r], -1.f, last); });
      barrier_wait(&s.state_there, chunk & 1);
      Own t;
      for (int e = 0; e < h.dim; e += kTile, place.next()) {
        place.wait_full();
        t.across(s.own.slabs[place.at], now + e * kStride, rows, min(kTile, h.dim - e));
        place.clear();
      }
      t.times(rows, [&](int r) { return d.weight[r]; });
      barrier_wait(&s.gradient_there, chunk & 1);
      place.wait_full();
      t.down(s.own.slabs[place.at], s.gradient[0], rows);
#pragma unroll
      for (int r = 0; r < 4; r++) {
        int i = Own::row() + r;
        if (i >= rows) break;
        if (h.delta)
          Own::write(s.x[i] + Own::col(), t.v[r]);
        else
          this->put(x.to + of_row((size_t)cut.row + i), Own::col(), t.v[r]);
      }
      if (h.delta) {
        place.clear(), place.next();
        meet();
        place.wait_full();
        solve_rows(s.own.slabs[place.at], d, cut);
      }
      place.clear(), place.next();
      arrive(&s.x_there);
      barrier_wait(&s.queries_there, chunk & 1);
      barrier_wait(&s.x_there, chunk & 1);
      if (h.delta) over_keys(s.own, place, state(chunk + 1), kTile, rows);
      arrive(&s.state_there);
    }
  }

  // solve_rows is x, from the last row to the first; what remains of it is times d.factor.
  __device__ void solve_rows(const Slab& pairs, const Decays& d, const Cut& cut) const {
    int rows = cut.rows;
    auto reversed = [&](int r) { return rows - 1 - r; };
    solve<V, kTeam>(
        s.x[0], 0, rows, reversed, [&](int i, int j) { return pairs.v[reversed(j)][reversed(i)]; },
        [&](int i, int j, float* w) {
#pragma unroll
          for (int y = 0; y < 4; y++) w[y] = pairs.v[kChunk - 1 - j - y][kChunk - 1 - i];
        },
        [&](int i, int j, float* y) {
          int r = reversed(i);
          this->put(x.to + of_row((size_t)cut.row + r), j, y);
          float by = d.factor[r];
#pragma unroll
          for (int c = 0; c < Own::kColumns; c++) y[c] = y[c] * by;
          Own::write(s.x[r] + j, y);
        });
  }
};

// team_unroll: the arguments are chunk_unroll's.
template <class T, int V>
__device__ void team_unroll(Heads h, const Operands<T>& x, const Sequence* sequences) {
  static_assert(sizeof(Unroll<V>) <= 4 * (kTeamFloats + (2 * kChunk + 1) * Block<V>::kStride), "");
  Unroller<T, V> block(h, sequences, x, *(Unroll<V>*)shared_scan);
  side_by_side(block);
}
#define TEAM_UNROLL(T)                                                                                                 \
  (Heads h, float* grads, float* to, const float* q, const float* k, const T* dout, const float* c, const float* beta, \
   const float* p, const float* m, const Sequence* sequences, const Cut* cuts, int ds)
TEAMS(team_unroll, TEAM_UNROLL, (h, {grads, to, q, k, dout, c, beta, p, m, cuts, ds}, sequences))
