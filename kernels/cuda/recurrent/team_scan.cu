// chunk_scan (chunks.cu) of few sequences, by teams. Of a chunk only k S, the sums of rows over rows and the next state
// wait for each other. The first team has them; the second has the outputs, multiplies keys by their weights while
// no other waits for them, and has every second 64 rows of the next state.
//
// A chunk of dim 128 and 16 values, in clocks: of the first team k S 1,024 of fma, 1,400 as issued; sums of rows over
// rows 16 times about 60, each a shuffle and eight fma that wait for each other; the next state 700; three trips
// through shared memory. The second has the outputs' 1,024 and 512 meanwhile.
#include "teams.cuh"

extern __shared__ float4 shared_scan[];

// Scan is what a block has in shared memory. The next state is written while the last one is still read, and so is n. A
// barrier is for one chunk after the other. The second team comes with a chunk's keys when it is done with the chunk
// before, so who has them may write over the state and n of that one.
template <int V>
struct Scan {
  SlabRing<3> own;
  SlabRing<4> other;
  SlabRing<1> keys;
  u64 scaled, state_there, added_there;
  alignas(16) float weight[kChunk], n[2][kChunk][Block<V>::kStride];
  float state[1][Block<V>::kStride];  // [2][dim][kStride]
};

// Operands are those of the kernel.
template <class T>
struct Operands {
  T* out;
  float *states, *added, *reads;
  const float *q, *k;
  const T* v;
  const float *c, *factor, *p, *m, *skip;
  const Cut* cuts;  // of the sequence
  Slots slots;
  int os, vs;
};

template <class T, int V>
struct Scanner : Block<V> {
  using Own = Chains<V, kTeam>;
  using Block<V>::h, Block<V>::seq, Block<V>::head, Block<V>::kh, Block<V>::first, Block<V>::cols, Block<V>::pieces;
  using Block<V>::kStride, Block<V>::thread, Block<V>::of_row;
  Operands<T> x;
  Scan<V>& s;
  size_t slot;
  Place<1> at_keys;
  __device__ Scanner(Heads h, const Sequence* sequences, const Operands<T>& x, Scan<V>& s)
      : Block<V>(h, sequences), x(x), s(s), at_keys(s.keys.line) {
    this->x.cuts += seq.first;
    slot = (size_t)seq.slot * h.heads + head;
    if (threadIdx.x == 0) {
      s.own.line.init(kWarp, kTeamWarps);
      s.other.line.init(kWarp, kTeamWarps);
      s.keys.line.init(kWarp, kTeamWarps);
      barrier_init(&s.scaled, kTeamWarps);
      barrier_init(&s.state_there, 2 * kTeamWarps);
      barrier_init(&s.added_there, kTeamWarps);
    }
    __syncthreads();
  }

  __device__ float input(size_t row, int j) const { return load(x.v, row * x.vs + head * h.values + first + j); }
  __device__ float* state(int chunk) const { return s.state[0] + (size_t)(chunk & 1) * h.dim * kStride; }
  __device__ static bool moves(const Cut& cut) { return cut.end() == kChunk; }

  // bring is that of the warps which copy: keys and -M of the delta rule; keys of all rows for the first team's part of
  // the next state; queries, those keys for the second team's, and P.
  __device__ void bring() const {
    int ring = threadIdx.x / kWarp - 2 * kTeamWarps, odd = pieces / 2, queries = x.out ? pieces : 0;
    const float* old = x.slots.k + ((size_t)seq.slot * h.key_heads + kh) * kChunk * h.dim;
    auto all_keys = [&](const Cut& cut, int e) {
      Source from = this->piece(x.k, cut, e);
      from.kept = old + e, from.kept_stride = h.dim, from.from = cut.from, from.rows = moves(cut) ? kChunk : 0;
      return from;
    };
    auto own = [&](const Cut& cut, int i) {
      if (!h.delta) return Source{x.k, x.k, 0, 0, 0, 0, 0, true};  // decays alone
      return i < pieces ? this->piece(x.k, cut, i * kTile) : this->pairs(x.m, cut);
    };
    auto keys = [&](const Cut& cut, int i) { return all_keys(cut, 2 * i * kTile); };
    auto other = [&](const Cut& cut, int i) {
      if (i < queries) return this->piece(x.q, cut, i * kTile);
      return i < queries + odd ? all_keys(cut, (2 * (i - queries) + 1) * kTile) : this->pairs(x.p, cut);
    };
    const float* kept = x.slots.c + slot * kChunk;
    if (ring == 0) this->produce(s.own, x.cuts, 1, h.delta ? pieces + 1 : 1, own, kept, x.c, x.factor);
    if (ring == 1) this->produce(s.keys, x.cuts, 1, pieces - odd, keys, kept, x.c, x.factor);
    if (ring == 2) this->produce(s.other, x.cuts, 1, queries + odd + (x.out ? 1 : 0), other, kept, x.c, x.factor);
  }

  // of_state continues chains over the state, which is there.
  template <int N>
  __device__ void of_state(SlabRing<N>& ring, Place<N>& place, Own& t, const float* now, int rows) const {
    for (int e = 0; e < h.dim; e += kTile, place.next()) {
      place.wait_full();
      t.across(ring.slabs[place.at], now + e * kStride, rows, min(kTile, h.dim - e));
      place.clear();
    }
  }

  // advance is 64 rows of the next state, from e on.
  __device__ void advance(const Slab& keys, const float* from, float* to, const float* n, int e, float all) const {
    Own t;
    t.each(h.dim - e, V, [&](int r, int j, float& y) { y = from[(e + r) * kStride + j] * all; });
    t.down(keys, n, kChunk);
    t.each(h.dim - e, V, [&](int r, int j, float y) { to[(e + r) * kStride + j] = y; });
  }

  // second is the second team's.
  __device__ void second() {
    Place<4> place(s.other.line);
    arrive(&s.state_there);
    for (int i = 0; i < seq.count; i++) {
      Cut cut = x.cuts[i];
      float all = scale_keys(cut);
      barrier_wait(&s.state_there, i & 1);
      const float *now = state(i), *n = s.n[i & 1][0];
      if (x.states) this->keep_state(x.states + this->of_cut(seq.first + i), now);
      Own t;
      if (x.out) {
        place.wait_full();
        Decays& d = s.other.rows[i % 4];
        weigh<V>(d.weight, cut.rows, [&](int r) { return exp2_sub(d.c[cut.from + r], 1.f, 0.f); });
        of_state(s.other, place, t, now, cut.rows);
        t.times(cut.rows, [&](int r) { return d.weight[r]; });
      }
      for (int e = kTile; e < h.dim; e += 2 * kTile, place.next()) {
        place.wait_full();
        if (moves(cut)) {
          Slab& keys = s.other.slabs[place.at];
          scale(keys, s.weight, kChunk, thread(), kTeam);
          meet();
          barrier_wait(&s.added_there, i & 1);
          advance(keys, now, state(i + 1), n, e, all);
        }
        place.clear();
      }
      barrier_wait(&s.added_there, i & 1);
      if (moves(cut)) arrive(&s.state_there);
      if (x.out) {
        place.wait_full();
        t.across(s.other.slabs[place.at], n, cut.rows, cut.end());
        place.clear(), place.next();
        write(t, cut);
      }
    }
  }

  // scale_keys multiplies keys of the first team's part of the next state by their weights, and returns the factor of
  // the state.
  __device__ float scale_keys(const Cut& cut) {
    float all = 0.f;
    for (int e = 0; e < h.dim; e += 2 * kTile, at_keys.next()) {
      at_keys.wait_full();
      if (moves(cut)) {
        if (e == 0) {
          const float *c = s.keys.rows[0].c, last = c[kChunk - 1];
          all = exp2_def(last);
          if (thread() < kChunk) s.weight[thread()] = exp2_sub(c[thread()], -1.f, last);
          meet();
        }
        scale(s.keys.slabs[0], s.weight, kChunk, thread(), kTeam);
      }
      arrive(&s.scaled);
    }
    return all;
  }

  __device__ void write(Own& t, const Cut& cut) const {
    size_t row = cut.row;
    if (!h.delta) t.each(cut.rows, cols, [&](int r, int j, float& y) { y = y + input(row + r, j) * x.skip[head]; });
    t.each(cut.rows, cols, [&](int r, int j, float y) {
      store(x.out, (row + r) * x.os + head * h.values + first + j, y + 0.f);
    });
  }

  // start is the state before the first chunk.
  __device__ void start() {
    const float* kept = x.slots.s + slot * h.dim * h.values + first;
    for (int i = thread(); i < h.dim * V; i += kTeam) {
      int e = i / V, j = i % V;
      state(0)[e * kStride + j] = seq.fresh || j >= cols ? 0.f : kept[(size_t)e * h.values + j];
    }
    arrive(&s.state_there);
  }

  // first_team is the first team's.
  __device__ void first_team() {
    Place<3> place(s.own.line);
    start();
    Cut cut = {}, next = seq.count > 0 ? x.cuts[0] : cut;
    for (int i = 0; i < seq.count; i++) {
      cut = next;
      if (i + 1 < seq.count) next = x.cuts[i + 1];
      size_t row = cut.row;
      Own value, t;
      value.each(cut.rows, cols, [&](int r, int j, float& y) { y = input(row + r, j); });
      place.wait_full();
      Decays& d = s.own.rows[i % 3];
      float all = exp2_def(d.c[cut.end() - 1]);
      const float* now = state(i);
      barrier_wait(&s.state_there, i & 1);
      if (h.delta) {
        weigh<V>(d.weight, cut.rows, [&](int r) { return -exp2_sub(d.c[cut.from + r], 1.f, 0.f); });
        of_state(s.own, place, t, now, cut.rows);
      }
      if (x.reads)
        t.each(cut.rows, cols, [&](int r, int j, float y) { x.reads[of_row(row + r) + j] = y; });
      float* n = s.n[i & 1][0];
      add_rows(n, value, t, d, cut);
      meet();
      if (h.delta) {
        place.wait_full();
        solve_rows(n, s.own.slabs[place.at], cut);
        meet();
      } else if (x.added) {
        for (int y = thread(); y < cut.rows * V; y += kTeam)
          if (y % V < cols) x.added[of_row(row + y / V) + y % V] = n[(cut.from + y / V) * kStride + y % V];
      }
      place.clear(), place.next();
      arrive(&s.added_there);
      for (int e = 0; e < h.dim; e += 2 * kTile, at_keys.next()) {
        barrier_wait(&s.scaled, at_keys.phase);
        if (moves(cut)) advance(s.keys.slabs[0], now, state(i + 1), n, e, all);
        at_keys.clear();
      }
      if (moves(cut)) arrive(&s.state_there);
    }
    if (x.slots.s && seq.count > 0) keep(cut);
  }

  // add_rows is n of the rows before the cut, and of its own without what the rows before them add.
  __device__ void add_rows(float* n, const Own& value, const Own& t, const Decays& d, const Cut& cut) const {
    for (int i = thread(); i < cut.from * V; i += kTeam)
      n[i / V * kStride + i % V] =
          i % V < cols ? x.slots.n[(slot * kChunk + i / V) * h.values + first + i % V] : 0.f;
#pragma unroll
    for (int r = 0; r < 4; r++) {
      int i = Own::row() + r;
      if (i >= cut.rows) break;
      float weight = h.delta ? d.weight[i] : 0.f, by = d.factor[i], y[Own::kColumns];
#pragma unroll
      for (int j = 0; j < Own::kColumns; j++)
        y[j] = (h.delta ? value.v[r][j] + t.v[r][j] * weight : value.v[r][j]) * by;
      Own::write(n + (cut.from + i) * kStride + Own::col(), y);
    }
  }

  __device__ void solve_rows(float* n, const Slab& pairs, const Cut& cut) const {
    int from = cut.from;
    solve<V, kTeam>(
        n, from, cut.end(), [](int i) { return i; }, [&](int i, int j) { return pairs.v[i - from][j]; },
        [&](int i, int j, float* w) { *(float4*)w = *(const float4*)&pairs.v[i][j]; },
        [&](int i, int j, float* y) {
          Own::write(n + i * kStride + j, y);
          if (x.added) this->put(x.added + of_row((size_t)cut.row + i - from), j, y);
        });
  }

  // keep leaves the last cut's n and the state in the slot.
  __device__ void keep(const Cut& cut) {
    if (moves(cut)) barrier_wait(&s.state_there, seq.count & 1);
    const float *n = s.n[seq.count - 1 & 1][0], *last = state(seq.count - (moves(cut) ? 0 : 1));
    for (int i = thread(); i < cut.rows * V; i += kTeam)
      if (i % V < cols)
        x.slots.n[(slot * kChunk + cut.from + i / V) * h.values + first + i % V] =
            n[(cut.from + i / V) * kStride + i % V];
    if (seq.fresh || seq.count > 1 || moves(cut)) this->keep_state(x.slots.s + slot * h.dim * h.values + first, last);
  }
};

// team_scan: the arguments are chunk_scan's.
template <class T, int V>
__device__ void team_scan(Heads h, const Operands<T>& x, const Sequence* sequences) {
  static_assert(sizeof(Scan<V>) <= 4 * (kTeamFloats + (2 * kChunk + 1) * Block<V>::kStride), "");
  Scanner<T, V> block(h, sequences, x, *(Scan<V>*)shared_scan);
  side_by_side(block);
}
#define TEAM_SCAN(T)                                                                                                  \
  (Heads h, T * out, float* states, float* added, float* reads, const float* q, const float* k, const T* v,           \
   const float* c, const float* factor, const float* p, const float* m, const float* skip, const Sequence* sequences, \
   const Cut* cuts, float* slot_s, float* slot_k, float* slot_n, float* slot_c, int os, int vs)
TEAMS(team_scan, TEAM_SCAN,
      (h,
       {out, states, added, reads, q, k, v, c, factor, p, m, skip, cuts, Slots{slot_s, slot_k, slot_n, slot_c}, os, vs},
       sequences))
