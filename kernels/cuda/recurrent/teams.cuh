// What the scans of few, long sequences share (team_scan.cu, team_unroll.cu): a multiprocessor has one block, and a
// chunk takes as long as its parts wait for each other. Two teams of kTeam threads compute side by side, and kRings
// warps bring what they need, each through a ring of slabs. Barriers in shared memory say who waits for whom; no wait
// is for the whole block.
#pragma once
#include "scan_solve.cuh"
#include "wgmma.cuh"

constexpr int kTeam = 128, kTeamWarps = kTeam / kWarp, kTeamAcross = kTeam / 16;
constexpr int kRings = 3, kRingSlabs = 8, kTeamThreads = 2 * kTeam + kRings * kWarp;
constexpr int kTeamFloats = kRingSlabs * (kChunk * (kSlabStride + 3) + 4) + 96;  // of rings, barriers and weights

// meet waits for the team's other threads.
__device__ inline void meet() {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / kTeam), "n"(kTeam) : "memory");
}

// arrive is a warp's: what its lanes have done before is done for those whom the barrier lets go.
__device__ inline void arrive(u64* bar) {
  __syncwarp();
  if (warp_lane() == 0) barrier_arrive(bar);
}

// Line is N places that items take one after the other: full of one that is there, empty when it is gone.
template <int N>
struct Line {
  u64 full[N], empty[N];
  __device__ void init(int writers, int readers) {
    for (int i = 0; i < N; i++) {
      barrier_init(full + i, writers);
      barrier_init(empty + i, readers);
    }
  }
};

// Place is where in a line a thread is.
template <int N>
struct Place {
  Line<N>* line;
  int at = 0, phase = 0;
  __device__ Place(Line<N>& line) : line(&line) {}
  __device__ void next() {
    if (++at == N) at = 0, phase ^= 1;
  }
  __device__ void wait_full() { barrier_wait(line->full + at, phase); }
  __device__ void wait_empty() { barrier_wait(line->empty + at, phase ^ 1); }
  __device__ void fill() { arrive(line->full + at); }
  __device__ void clear() { arrive(line->empty + at); }
};

// SlabRing is N slabs, and the decays of the chunks that they are of, which are there with a chunk's first slab and
// until its last is gone.
template <int N>
struct SlabRing {
  Slab slabs[N];
  Decays rows[N];
  Line<N> line;
};

// Block is the head and values of a block, whose teams have tiles [64, V].
template <int V>
struct Block {
  using Own = Chains<V, kTeam>;
  static constexpr int kStride = Own::kStride;
  Heads h;
  Sequence seq;
  int head, kh, first, cols, pieces;
  size_t width;
  __device__ Block(Heads h, const Sequence* sequences) : h(h), seq(sequences[blockIdx.x]) {
    head = blockIdx.y, kh = h.key_head(head), first = blockIdx.z * V, cols = min(V, h.values - first);
    pieces = (h.dim + kTile - 1) / kTile;
    width = (size_t)h.key_heads * h.dim;
  }
  __device__ static int team() { return threadIdx.x / kTeam; }
  __device__ static int thread() { return Own::thread(); }

  // piece is columns from e on of queries or keys, pairs are P or -M.
  __device__ Source piece(const float* x, const Cut& cut, int e) const {
    const float* at = x + cut.row * width + kh * h.dim + e;
    return Source{at, at, 0, width, 0, cut.rows, min(kTile, h.dim - e), h.dim % 4 == 0};
  }
  __device__ Source pairs(const float* x, const Cut& cut) const {
    const float* at = x + ((size_t)cut.row * h.heads + head) * kChunk;
    return Source{at, at, 0, (size_t)h.heads * kChunk, 0, cut.rows, kChunk, true};
  }

  // of_row is where the block's values of a row lie in [rows, heads, values], of_cut where a cut's state lies.
  __device__ size_t of_row(size_t row) const { return (row * h.heads + head) * h.values + first; }
  __device__ size_t of_cut(size_t cut) const { return (cut * h.heads + head) * h.dim * h.values + first; }
  __device__ void keep_state(float* to, const float* state) const {
    for (int x = thread(); x < h.dim * V; x += kTeam)
      if (x % V < cols) to[(size_t)(x / V) * h.values + x % V] = state[x / V * kStride + x % V];
  }

  // put is a lane's columns of a row, from j on.
  __device__ void put(float* to, int j, const float* y) const {
#pragma unroll
    for (int i = 0; i < Own::kColumns; i++)
      if (j + i < cols) to[j + i] = y[i];
  }

  // produce is a warp's: it brings the parts of all chunks, whose cuts are `step` apart. part(cut, i) is the Source of
  // part i of a cut; c of its rows, of those before them from kept, and their factors come with part 0.
  template <int N, class P>
  __device__ void produce(SlabRing<N>& ring, const Cut* cuts, int step, int parts, P part, const float* kept,
                          const float* c, const float* factor) const {
    Place<N> place(ring.line);
    for (int i = 0; i < seq.count; i++, cuts += step) {
      Cut cut = *cuts;
      for (int x = 0; x < parts; x++, place.next()) {
        place.wait_empty();
        if (x == 0) decays(ring.rows[i % N], cut, kept, c, factor);
        part(cut, x).bring(ring.slabs[place.at], warp_lane(), kWarp);
        barrier_arrive_copied(ring.line.full + place.at);
      }
    }
  }

 private:
  __device__ void decays(Decays& to, const Cut& cut, const float* kept, const float* c, const float* factor) const {
    size_t row = cut.row;
    for (int x = warp_lane(); x < cut.end(); x += kWarp)
      copy4(&to.c[x], x < cut.from ? kept + x : c + (row + x - cut.from) * h.heads + head, 4);
    for (int x = warp_lane(); x < cut.rows; x += kWarp) copy4(&to.factor[x], factor + (row + x) * h.heads + head, 4);
  }
};

// weigh leaves f(r) in `weight` for the rows that this warp has of its team's tile.
template <int V, class F>
__device__ inline void weigh(float* weight, int rows, F f) {
  using Own = Chains<V, kTeam>;
  int r = Own::warp_rows() + warp_lane();
  if (warp_lane() < Own::kWarpRows && r < rows) weight[r] = f(r);
  __syncwarp();
}

// side_by_side runs the parts of a scan's block: those of its two teams, and that of the warps which bring.
template <class Parts>
__device__ void side_by_side(Parts& block) {
  if (block.team() == 0)
    block.first_team();
  else if (block.team() == 1)
    block.second();
  else
    block.bring();
}

// TEAMS declares a scan for each number of values and storage type.
#define TEAMS_OF(name, V, parameters, arguments)                                                         \
  extern "C" __global__ void __launch_bounds__(kTeamThreads, 1) name##_##V##_f32 parameters(float) {     \
    name<float, V> arguments;                                                                            \
  }                                                                                                      \
  extern "C" __global__ void __launch_bounds__(kTeamThreads, 1) name##_##V##_bf16 parameters(u16) {      \
    name<u16, V> arguments;                                                                              \
  }
#define TEAMS(name, parameters, arguments)   \
  TEAMS_OF(name, 32, parameters, arguments)  \
  TEAMS_OF(name, 16, parameters, arguments)
