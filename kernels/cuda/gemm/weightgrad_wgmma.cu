// WeightGrad (see matmul.cu for the sums) by wgmma and TMA: dy^T x of each segment from +0, added to dw. A persistent
// block walks over tiles of dw [groups][n][k]; one thread copies rows of dy and x, warpgroups multiply, 64 rows of a
// tile each. The last step of a segment is filled with zeros in shared memory, because the next one's rows follow
// there.
//   wide, square: a block a multiprocessor. dw streams through shared memory: two more warps bring that of the next
//   tile, and store that of the last while this one is multiplied. k is a multiple of 4.
//   few: small tiles, two blocks a multiprocessor; reads and writes dw itself, for any k.
// Rows may lie in several places, each with segments of its own: those of the first come first.
// A segment that goes on through several calls (goes_on) starts from dw instead, and replaces it. A dw that is fresh is
// +0 and not read; then groups without rows are written too.
// Bound: 2*M*N*K flops of the tensor cores, or 8 bytes of memory for each element of dw (fresh: 4), once in a call;
// between them what L2 gives: a tile of A x B takes 2 * (A + B) bytes a row.
#include "wgmma_ring.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kMostPlaces = 4;

// Place is rows of dy and x, of so many segments of each group.
struct Place {
  TensorMap dy, x;
  const int* offsets;
  int segments;
};

struct Places {
  Place of[kMostPlaces];
  int count;
};

// Gradient is what blocks walk over: dw in tiles, of which a block has every gridDim.x-th. Where groups are
// interleaved, dy and x are a matrix for each, and `sharing` of them, from the group's own on, have one dw: a segment's
// sum goes over its rows in each. 0: not interleaved.
struct Gradient {
  float* dw;
  const Places& places;
  int groups, sharing, goes_on, fresh, n, k;
  __device__ int matrices() const { return max(sharing, 1); }
  __device__ int segments(int place) const { return places.of[place].segments; }
  __device__ int row(int place, int group, int segment) const {
    return places.of[place].offsets[(sharing ? 0 : group * segments(place)) + segment];
  }
  __device__ int rows(int place, int group, int segment) const {
    return row(place, group, segment + 1) - row(place, group, segment);
  }
  __device__ bool empty(int group) const {
    bool none = true;
    for (int i = 0; i < places.count; i++) none &= row(i, group, segments(i)) == row(i, group, 0);
    return none;
  }
};

// Tile is rows from `row` and columns from `col` on of a group's dw, or none.
struct Tile {
  int index, group, row, col;
  __device__ bool some() const { return group >= 0; }
};

// tile_from is the block's first tile at `index` or behind it that is written.
template <int A, int B>
__device__ inline Tile tile_from(const Gradient& g, int index) {
  int down = (g.n + A - 1) / A, across = (g.k + B - 1) / B, tiles = down * across;
  for (; index < g.groups * tiles; index += gridDim.x) {
    int group = index / tiles, row, col;
    if (!g.fresh && g.empty(group)) continue;
    piece(index % tiles, down, across, row, col);
    return {index, group, row * A, col * B};
  }
  return {index, -1, 0, 0};
}

// copy_operands is the work of the thread that fills the ring: DEPTH rows a stage, from the first of each segment on.
template <int A, int B, int DEPTH, class R>
__device__ inline void copy_operands(const Gradient& g, R& ring) {
  for (Tile t = tile_from<A, B>(g, blockIdx.x); t.some(); t = tile_from<A, B>(g, t.index + gridDim.x))
    for (int s = 0; s < g.places.count; s++) {
      const Place& of = g.places.of[s];
      for (int i = 0; i < of.segments * g.matrices(); i++) {
        int segment = i / g.matrices(), matrix = g.sharing ? t.group + i % g.matrices() : 0;
        int from = g.row(s, t.group, segment), to = from + g.rows(s, t.group, segment);
        for (int row = from; row < to; row += DEPTH, ring.next()) {
          u64* full = ring.free(R::kStage * 2);
          for (int c = 0; c < A; c += 64) copy_box(ring.a() + c * DEPTH, &of.dy, t.row + c, row, matrix, full);
          for (int c = 0; c < B; c += 64) copy_box(ring.b() + c * DEPTH, &of.x, t.col + c, row, matrix, full);
        }
      }
    }
}

// clear zeroes k [from, to) of what the warpgroup multiplies of the current slot. All warpgroups write the same zeros
// to B, so that none waits for another.
template <int A, int B, class R>
__device__ inline void clear(R& ring, int warpgroup, int from, int to) {
  constexpr int kBoxes = 1 + B / 64;
  for (int c = threadIdx.x % kGroup; c < (to - from) * kBoxes * 8; c += kGroup) {  // pieces of 16 bytes
    int box = c / 8 % kBoxes, k = from + c / (kBoxes * 8);
    box = box == 0 ? warpgroup : box - 1 + A / 64;
    *(uint4*)(ring.a() + box * R::kBox + k * 64 + c % 8 * 8) = make_uint4(0, 0, 0, 0);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "n"(kGroup) : "memory");
}

// chain_rows continues the warpgroup's sums over the rows of a segment, if it has some, matrix by matrix.
template <int A, int B, int DEPTH, class R>
__device__ inline void chain_rows(float* d, const Gradient& g, R& ring, int rows, int warpgroup) {
  int left = rows, slots = (rows + DEPTH - 1) / DEPTH * g.matrices();
  chain<B, 1, 1>(d, ring, warpgroup, uniform(slots), [&](int) {
    if (left <= 0) left = rows;
    if (left < DEPTH) clear<A, B>(ring, warpgroup, left, DEPTH);
    left -= DEPTH;
  });
}

template <int B>
__device__ inline void zero(float* d) {
#pragma unroll
  for (int j = 0; j < B / 2; j++) d[j] = 0.f;
}

// A warpgroup's 64 x B sums wait in shared memory with pieces of 32 bytes at piece ^ (row % 4), so that four rows of
// accumulators meet no bank twice.
template <int B>
__device__ inline float* waiting(float* sums, int row, int col) {
  return sums + row * B + (col ^ (row & 3) << 3);
}

// meet applies f(own, waiting) to each pair of the warpgroup's accumulators and the sums that wait, and stores what
// it makes of the latter.
template <int B, class F>
__device__ inline void meet(float* d, float* sums, F f) {
  constexpr int kAtOnce = 4;
  int lane = warp_lane(), row = threadIdx.x / kWarp % 4 * 16 + lane / 4, col = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < B / 8; j += kAtOnce) {
    float2 v[2 * kAtOnce];
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; i++) v[i] = *(float2*)waiting<B>(sums, row + i % 2 * 8, col + (j + i / 2) * 8);
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; i++) {
      float* own = d + j * 4 + i * 2;
      f(own[0], v[i].x), f(own[1], v[i].y);
      *(float2*)waiting<B>(sums, row + i % 2 * 8, col + (j + i / 2) * 8) = v[i];
    }
  }
}

// Part is a warpgroup's part of a tile of dw; without a tile it has no rows.
struct Part {
  float* at;
  int rows, cols;
};

template <int B>
__device__ inline Part part_of(const Gradient& g, Tile t, int warpgroup) {
  if (!t.some()) return {g.dw, 0, 0};
  int row = t.row + warpgroup * 64;
  return {g.dw + ((long long)t.group * g.n + row) * g.k + t.col, min(64, g.n - row), min(B, g.k - t.col)};
}

// carry stores the sums that wait to one part of dw and starts to bring those of another in their place, zeros of a
// fresh one, for a warp: half of it has a row.
template <int B>
__device__ inline void carry(float* sums, Part to, Part from, long long k, bool fresh) {
  asm volatile("" : "+l"(sums));  // else the compiler computes it anew for every copy
  int row = warp_lane() / 16, col = warp_lane() % 16 * 4;
  to.at += row * k + col, from.at += row * k + col;
#pragma unroll 2
  for (int r = 0; r < 64; r += 2, to.at += 2 * k, from.at += 2 * k) {
    float* here = waiting<B>(sums, row + r, col);
    bool stores = row + r < to.rows, brings = row + r < from.rows;
    float4 v[B / 64];
#pragma unroll
    for (int c = 0; c < B; c += 64) v[c / 64] = *(float4*)(here + c);
#pragma unroll
    for (int c = 0; c < B; c += 64)
      if (stores && col + c < to.cols) *(float4*)(to.at + c) = v[c / 64];
    __syncwarp();  // they are read before they are overwritten
#pragma unroll
    for (int c = 0; c < B; c += 64)
      if (brings && col + c < from.cols) {
        if (fresh) *(float4*)(here + c) = make_float4(0.f, 0.f, 0.f, 0.f);
        else copy16(here + c, from.at + c, 16);
      }
  }
}

// move_sums is the work of a warp for a warpgroup. Whenever the sums that wait have been put there it stores those and
// brings those of the next tile. Sums of a tile are put there when it is done; where they go on, which takes them out
// before, when the tile behind it begins, and twice more at the end.
template <int A, int B>
__device__ inline void move_sums(const Gradient& g, float* sums, int warpgroup, u64* brought, u64* put) {
  Tile past = {0, -1, 0, 0}, here = past, next = tile_from<A, B>(g, blockIdx.x);
  for (int i = 0;; i++) {
    barrier_wait(put, i & 1 ^ 1);  // passes at once for 0
    carry<B>(sums, part_of<B>(g, past, warpgroup), part_of<B>(g, next, warpgroup), g.k, g.fresh);
    if (g.goes_on ? i > 0 && !here.some() : !next.some()) return;
    if (g.fresh) barrier_arrive(brought);
    else barrier_arrive_copied(brought);
    past = g.goes_on ? here : next, here = next;
    if (next.some()) next = tile_from<A, B>(g, next.index + gridDim.x);
  }
}

// sum_tiles adds the sums of all segments of the block's tiles to those that wait.
template <int A, int B, int DEPTH, class R>
__device__ inline void sum_tiles(const Gradient& g, R& ring, float* sums, int warpgroup, u64* brought, u64* put) {
  Tile t = tile_from<A, B>(g, blockIdx.x);
  for (int phase = 0; t.some(); phase ^= 1, t = tile_from<A, B>(g, t.index + gridDim.x)) {
    for (int i = 0; i < g.places.count; i++)
      for (int s = 0; s < g.segments(i); s++) {
        int rows = g.rows(i, t.group, s);
        if (rows == 0) continue;
        float d[B / 2];
        zero<B>(d);
        chain_rows<A, B, DEPTH>(d, g, ring, rows, warpgroup);
        barrier_wait(brought, phase);
        meet<B>(d, sums, [](float own, float& sum) { sum = sum + own; });
      }
    barrier_wait(brought, phase);  // also of a tile without rows
    barrier_arrive(put);           // every thread for what it has written
  }
}

// continue_tiles starts the sums of each tile from those that wait and leaves those of the tile before in their place.
// There is one segment.
template <int A, int B, int DEPTH, class R>
__device__ inline void continue_tiles(const Gradient& g, R& ring, float* sums, int warpgroup, u64* brought, u64* put) {
  float d[B / 2];
  zero<B>(d);
  Tile t = tile_from<A, B>(g, blockIdx.x);
  for (int phase = 0;; phase ^= 1, t = tile_from<A, B>(g, t.index + gridDim.x)) {
    barrier_wait(brought, phase);
    meet<B>(d, sums, [](float& own, float& sum) {
      float was = sum;
      sum = own, own = was;
    });
    barrier_arrive(put);
    if (!t.some()) return;
    int rows = g.rows(0, t.group, 0);
    if (rows > 0) chain_rows<A, B, DEPTH>(d, g, ring, rows, warpgroup);
  }
}

// stream is the work of a block whose sums stream. Those that wait lie behind the ring.
template <int A, int B, int STAGES, int DEPTH>
__device__ inline void stream(const Gradient& g) {
  constexpr int kWarpgroups = A / 64;
  __shared__ u64 bars[2 * STAGES], brought[kWarpgroups], put[kWarpgroups];
  if (threadIdx.x < kWarpgroups) {
    barrier_init(brought + threadIdx.x, kWarp);
    barrier_init(put + threadIdx.x, kGroup);
  }
  Ring<A, B, STAGES, DEPTH> ring(bars, 1);
  float* sums = (float*)(ring.base + STAGES * ring.kStage);
  __syncthreads();
  int warpgroup = uniform(threadIdx.x / kGroup);
  if (warpgroup == kWarpgroups) {
    fewer_registers<96>();
    int warp = uniform(threadIdx.x / kWarp % 4);
    if (warp > 0 && warp <= kWarpgroups)
      move_sums<A, B>(g, sums + (warp - 1) * 64 * B, warp - 1, brought + warp - 1, put + warp - 1);
    else if (warp == 0 && elected()) copy_operands<A, B, DEPTH>(g, ring);
    return;
  }
  more_registers<200>();
  sums += warpgroup * 64 * B;
  if (g.goes_on) continue_tiles<A, B, DEPTH>(g, ring, sums, warpgroup, brought + warpgroup, put + warpgroup);
  else sum_tiles<A, B, DEPTH>(g, ring, sums, warpgroup, brought + warpgroup, put + warpgroup);
}

//launch:family weight_grad_wgmma weight_grad_
#define STREAM(name, A, B, STAGES, DEPTH)                                                                            \
  extern "C" __global__ void __launch_bounds__(threads(A, 1, 1), 1)                                                  \
      name(const __grid_constant__ Places places, float* dw, int groups, int sharing, int goes_on, int fresh, int n, \
           int k) {                                                                                                  \
    stream<A, B, STAGES, DEPTH>({dw, places, groups, sharing, goes_on, fresh, n, k});                                \
  }
STREAM(weight_grad_wide, 128, 256, 4, 32)
STREAM(weight_grad_square, 128, 128, 5, 64)

// continue_tile reads the warpgroup's 64 x B accumulators from a tile of dw, or writes them.
template <int B, bool WRITE>
__device__ inline void continue_tile(float* d, const Gradient& g, Tile t) {
  int lane = warp_lane(), row = t.row + threadIdx.x / kWarp * 16 + lane / 4, col = t.col + lane % 4 * 2;
  float* dw = g.dw + (long long)t.group * g.n * g.k;
  bool even = g.k % 2 == 0;
#pragma unroll
  for (int j = 0; j < B / 8; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = row + h * 8, c = col + j * 8;
      float *p = dw + (long long)r * g.k + c, *v = d + j * 4 + h * 2;
      if (even) {
        if (r < g.n && c < g.k) {
          if (WRITE) *(float2*)p = make_float2(v[0], v[1]);
          else v[0] = ((const float2*)p)->x, v[1] = ((const float2*)p)->y;
        } else if (!WRITE) {
          v[0] = v[1] = 0.f;
        }
      } else {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          bool in = r < g.n && c + e < g.k;
          if (WRITE && in) p[e] = v[e];
          if (!WRITE) v[e] = in ? p[e] : 0.f;
        }
      }
    }
}

// While one of the two blocks reads or writes dw, the other multiplies.
extern "C" __global__ void __launch_bounds__(threads(64, 2, 1), 2)
    weight_grad_few(const __grid_constant__ Places places, float* dw, int groups, int sharing, int goes_on, int fresh,
                    int n, int k) {
  constexpr int A = 64, B = 64, STAGES = 6;
  __shared__ u64 bars[2 * STAGES];
  Ring<A, B, STAGES> ring(bars, 1);
  __syncthreads();
  Gradient g = {dw, places, groups, sharing, goes_on, fresh, n, k};
  if (uniform(threadIdx.x / kGroup) == 1) {
    if (elected()) copy_operands<A, B, kDepth>(g, ring);
    return;
  }
  for (Tile t = tile_from<A, B>(g, blockIdx.x); t.some(); t = tile_from<A, B>(g, t.index + gridDim.x)) {
    float sum[B / 2];
    if (g.fresh) zero<B>(sum);
    else continue_tile<B, false>(sum, g, t);
    for (int i = 0; i < places.count; i++)
      for (int s = 0; s < g.segments(i); s++) {
        int rows = g.rows(i, t.group, s);
        if (rows == 0) continue;
        float d[B / 2];
#pragma unroll
        for (int j = 0; j < B / 2; j++) d[j] = goes_on ? sum[j] : 0.f;
        chain_rows<A, B, kDepth>(d, g, ring, rows, 0);
#pragma unroll
        for (int j = 0; j < B / 2; j++) sum[j] = goes_on ? d[j] : sum[j] + d[j];
      }
    continue_tile<B, true>(sum, g, t);
  }
}

#endif
