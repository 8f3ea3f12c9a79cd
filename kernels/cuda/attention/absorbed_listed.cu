// dk and dv of absorbed latent attention of 576 and 512 columns along lists of keys: rules as in absorbed_backward.cu,
// for long sequences, where a tile of all pairs has few that are listed. P' and dS come as absorbed_ds_wide leaves
// them, some queries at a time: rows of 64 heads for each entry of a query's list. absorbed_slices finds which entries
// lie in a tile of keys; absorbed_dkv_listed adds P'^T dout or dS^T q of those entries, 64 heads deep, to the tile's
// sums. Queries come ascending, in each its heads; so do the chains of keys. Where other devices have keys of a
// sequence too, absorbed_own leaves of the lists what is this one's before all that.
//
// A block has up to 1,408 keys and 32 columns of their sums in shared memory. Two teams of warps have half of the keys
// each, the warps of a team 16 columns each, so none waits for another. Of every query they read 64 heads of its 32
// columns and, 16 entries at a time, P' or dS; the sums of those entries' keys come to registers and go back.
//
// Bound: bytes from L2. A query of so many heads brings 4 KB for each of 34 chunks of columns and tile of keys that it
// lists one of, and 128 bytes for each chunk and entry. At 262,144 rows, lists of 2,048 and 64 heads a tile has 22
// entries of a query on average: 7 KB, 300 clocks at the 24 bytes a clock that L2 gives a multiprocessor; products 60,
// and 250 of shared memory (sums 72, half as many again where rows of one parity meet; operands 128, copies 56).
//
// On an H200, 64 heads, 8,192 queries in the middle of 262,144 rows: 52.3 ms, about 400 clocks a round, after 5.8 ms of
// absorbed_ds_wide; of 8,192 rows 46.9 and 5.0 ms. A warp that adds is busy for 290 clocks of a round: the latencies of
// reading sums, a slice, its positions and four products one after the other. By one warp that brings operands, in a
// loop over lanes, as at first: 160 and 102 ms; by six and three warps that each compute their rounds alone 66 and 67
// ms: what they execute while they wait takes time from those that add. Warps of the two kinds on schedulers of their
// own: 55 and 56 ms. Tiles of 1,536 keys with four stages: 60 and 59 ms so.
#include "absorbed_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kTileKeys = 1408, kChunk = 32;
constexpr int kTeams = 2, kUnit = 16;           // shares of a tile's keys; entries of one in a round
constexpr int kAdding = 4, kBringing = 2;       // warps that add, and that bring operands
constexpr int kAllThreads = (kAdding + kBringing) * kWarp;
constexpr int kStages = 6;
constexpr int kRowBytes = kHeads * 2;           // of P' or dS of an entry
constexpr int kBoxBytes = kHeads * kChunk * 2;  // of q or dout
constexpr int kPlaces = kUnit + 8;              // positions of a unit: copies begin and end at multiples of four
constexpr int kSumBytes = kTileKeys * kChunk * 4;
constexpr int kRowsAt = kSumBytes + kStages * kBoxBytes, kPlacesAt = kRowsAt + kStages * kTeams * kUnit * kRowBytes,
              kAllShared = kPlacesAt + kStages * kTeams * kPlaces * 4;
constexpr int kSums = kColumns + kValues;       // of a key in memory: dv, then dk
constexpr int kValueChunks = kValues / kChunk, kChunks = kSums / kChunk;
constexpr int kBounds = kTeams + 1;
static_assert(kStages % kBringing == 0 && (kBringing & kBringing - 1) == 0, "the same warp always brings a stage");

// OwnKeys is keys of a sequence, and those of its queries that a pass has and that may list one. Numbers of queries go
// from a sequence's last one back.
struct OwnKeys {
  int row, at, keys;  // row of the batch and position of the first key; how many
  int query;          // the row of query n is query - n
  int from, to;       // numbers [from, to)
  int begins, ends;   // the sums begin from +0; they are the gradients
  // bound is where a team's keys begin, from `at` on.
  __device__ int bound(int team) const { return team == kTeams ? keys : (keys + 1) / kTeams * team; }
};

// KeyRange is rows of keys [from, to).
struct KeyRange {
  int from, to;
};

// absorbed_own: own int32 [rows, top_k]: entries of each query's list whose keys lie in one of `count` ranges, which
// ascend, in their order, and how many in entries. A warp for each of so many queries.
KERNEL(absorbed_own, const Lists lists, int* own, int* entries, const KeyRange* ranges, int count, int queries) {
  int number = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, lane = warp_lane(), n = 0;
  if (number >= queries) return;
  Asked query = lists.query(number);
  int* to = own + (size_t)query.row * lists.top_k;
  for (int e = lane; e - lane < query.entries; e += kWarp) {
    int key = query.key(e), low = 0;
    for (int high = count; high - low > 1;) {
      int middle = (low + high) / 2;
      if (ranges[middle].from <= key) low = middle;
      else high = middle;
    }
    bool in = ranges[low].from <= key && key < ranges[low].to;
    u32 all = __ballot_sync(~0u, in);
    if (in) to[n + __popc(all & (1u << lane) - 1)] = query.indices[e];
    n += __popc(all);
  }
  if (lane == 0) entries[query.row] = n;
}

// absorbed_slices: firsts int32 [tiles, 3, count]: where the entries of each team's keys begin, and end, on the lists
// of queries [first, first + count); entries as absorbed_own leaves them, nil: lists are whole. Grid: count / 128,
// tiles.
extern "C" __global__ void __launch_bounds__(128)
    absorbed_slices(const Lists lists, int* firsts, const int* entries, const OwnKeys* tiles, int first, int count) {
  OwnKeys t = tiles[blockIdx.y];
  int at = blockIdx.x * blockDim.x + threadIdx.x, number = first + at;
  if (number < t.from || number >= t.to) return;
  Asked query = lists.query(number);
#pragma unroll
  for (int b = 0; b < kBounds; b++) {
    int low = 0, key = t.at + t.bound(b);
    for (int high = entries ? entries[query.row] : query.entries; low < high;) {
      int middle = (low + high) / 2;
      if (query.indices[middle] < key) low = middle + 1;
      else high = middle;
    }
    firsts[((size_t)blockIdx.y * kBounds + b) * count + at] = low;
  }
}

// Operand is what the rounds of a tile bring. Of the lists pieces of 16 bytes are counted from an address before them.
struct Operand {
  const TensorMap* map;  // q or dout: boxes of 64 heads of a query and 32 columns
  int column;
  const u16* slopes;  // dS or P' as absorbed_ds_wide leaves them, of queries [first, first + count)
  int first, count, blocks, most;
  const int* lists;  // of queries, so many entries apart, the first one `skip` from here
  int stride, skip;

  __device__ u32 slope(int number, int block, int entry) const {
    return ((number - first) * blocks + block) * most * 64 + entry;
  }
};

// Slice is a team's entries of a round: how many, the place of the first on its list modulo 8, as rows are swizzled,
// and among the positions that are brought; fresh: the stage has the query's columns too, else they are as before.
struct Slice {
  u32 bits;
  static constexpr u32 kEnd = ~0u;
  __device__ static u32 packed(int count, int from, int skew, bool fresh) {
    return count | from % 8 << 8 | skew << 12 | fresh << 16;
  }
  __device__ int count() const { return bits & 0xff; }
  __device__ int from() const { return bits >> 8 & 7; }
  __device__ int skew() const { return bits >> 12 & 3; }
  __device__ bool fresh() const { return bits >> 16 & 1; }
  __device__ bool end() const { return bits == kEnd; }
};

// Stages is the ring between the warps that bring operands and those that add. Round i is in stage i % kStages.
struct Stages {
  u64 *full, *empty;        // [kStages]
  Slice (*slices)[kTeams];  // [kStages]
  int index, phase;

  __device__ char* box() const { return shared + kSumBytes + index * kBoxBytes; }
  __device__ char* rows(int team) const { return shared + kRowsAt + (index * kTeams + team) * kUnit * kRowBytes; }
  __device__ int* places(int team) const { return (int*)(shared + kPlacesAt) + (index * kTeams + team) * kPlaces; }
  __device__ void next(int n) {
    index += n;
    if (index >= kStages) index -= kStages, phase ^= 1;
  }
};

// copy_bytes brings memory that lies together.
__device__ inline void copy_bytes(void* to, const void* from, int bytes, u64* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}

// ChunkMaps are boxes of 64 heads of a query and 32 columns.
struct ChunkMaps {
  TensorMap q, dout;
};

// Round is what a stage brings: up to kUnit entries of each team's keys, of 64 heads of a query.
struct Round {
  int query;  // its row
  int block;  // of heads
  u32 slices[kTeams], slopes[kTeams], places[kTeams];  // places: piece of 16 bytes
  int bytes;

  // find computes round `done` of a query's 64 heads.
  __device__ void find(const Operand& x, int row, int number, int heads, int done, const int (&bounds)[kBounds]) {
    query = row, block = heads, bytes = done == 0 ? kBoxBytes : 0;
#pragma unroll
    for (int i = 0; i < kTeams; i++) {
      int entry = bounds[i] + done * kUnit, n = max(0, min(bounds[i + 1] - entry, kUnit));
      u32 at = (u32)row * x.stride + x.skip + entry;
      places[i] = at / 4, slopes[i] = x.slope(number, block, entry);
      slices[i] = Slice::packed(n, entry, at % 4, done == 0);
      if (n > 0) bytes += n * kRowBytes + (at % 4 + n + 3) / 4 * 16;
    }
  }
  // of is the round that a lane has found.
  __device__ Round of(int lane) const {
    Round r = {__shfl_sync(~0u, query, lane), __shfl_sync(~0u, block, lane)};
    r.bytes = __shfl_sync(~0u, bytes, lane);
#pragma unroll
    for (int i = 0; i < kTeams; i++) {
      r.slices[i] = __shfl_sync(~0u, slices[i], lane);
      r.slopes[i] = __shfl_sync(~0u, slopes[i], lane), r.places[i] = __shfl_sync(~0u, places[i], lane);
    }
    return r;
  }
  // copy is the thread that starts the round's copies.
  __device__ void copy(const Stages& s, const Operand& x) const {
    u64* full = s.full + s.index;
    barrier_wait(s.empty + s.index, s.phase ^ 1);
#pragma unroll
    for (int i = 0; i < kTeams; i++) s.slices[s.index][i].bits = slices[i];
    barrier_expect(full, bytes);
    if (Slice{slices[0]}.fresh()) copy_box(s.box(), x.map, x.column, block * kHeads, query, full);
#pragma unroll
    for (int i = 0; i < kTeams; i++) {
      Slice own = {slices[i]};
      if (own.count() == 0) continue;
      copy_bytes(s.rows(i), x.slopes + (size_t)slopes[i] * kHeads, own.count() * kRowBytes, full);
      copy_bytes(s.places(i), x.lists + (size_t)places[i] * 4, (own.skew() + own.count() + 3) / 4 * 16, full);
    }
  }
};

// bring is one of the warps that bring the operands of a tile: every kBringing-th round. Lanes have 32 queries, and
// then 32 rounds at a time, of which one thread starts the copies.
__device__ inline void bring(Stages s, int own, const OwnKeys& t, const int* firsts, const Operand& x) {
  int lane = warp_lane(), next[kBounds], before = 0;  // rounds of the queries before
  s.index = own;
  auto look = [&](int top) {
    int number = top - 1 - lane;
#pragma unroll
    for (int b = 0; b < kBounds; b++)
      next[b] = number >= t.from ? firsts[(size_t)b * x.count + number - x.first] : 0;
  };
  look(t.to);
  for (int top = t.to; top > t.from; top -= kWarp) {
    int bounds[kBounds], most = 0;
#pragma unroll
    for (int b = 0; b < kBounds; b++) bounds[b] = next[b];
    look(top - kWarp);
#pragma unroll
    for (int i = 0; i < kTeams; i++) most = max(most, bounds[i + 1] - bounds[i]);
    int each = (most + kUnit - 1) / kUnit, end = each * x.blocks;  // rounds of 64 heads; those up to this query's
#pragma unroll
    for (int d = 1; d < kWarp; d <<= 1) {
      int less = __shfl_up_sync(~0u, end, d);
      if (lane >= d) end += less;
    }
    int all = __shfl_sync(~0u, end, kWarp - 1);
    for (int base = 0; base < all; base += kWarp) {
      int query = 0, b[kBounds];
#pragma unroll
      for (int d = kWarp / 2; d > 0; d /= 2)
        if (__shfl_sync(~0u, end, query + d - 1) <= base + lane) query += d;
      int rounds = __shfl_sync(~0u, each, query), first = __shfl_sync(~0u, end, query) - rounds * x.blocks;
#pragma unroll
      for (int i = 0; i < kBounds; i++) b[i] = __shfl_sync(~0u, bounds[i], query);
      int number = top - 1 - query, heads = 0, done = base + lane - first;
      for (; heads + 1 < x.blocks && done >= rounds; done -= rounds) heads++;
      Round found;
      found.find(x, t.query - number, number, heads, done, b);
      for (int j = (own - before - base) & (kBringing - 1); j < min(all - base, kWarp); j += kBringing) {
        Round r = found.of(j);
        if (elected()) r.copy(s, x);
        __syncwarp();
        s.next(kBringing);
      }
    }
    before += all;
  }
  if (before % kBringing != own || !elected()) return;
  barrier_wait(s.empty + s.index, s.phase ^ 1);
#pragma unroll
  for (int i = 0; i < kTeams; i++) s.slices[s.index][i].bits = Slice::kEnd;
  barrier_arrive(s.full + s.index);
}

// place is where the sums of a key begin that a thread of a group's warps has: of columns 2u, 2u + 1, 8 + 2u and the
// next, which are u = lane % 4 of its products. Keys of two parities have their groups in other banks.
__device__ inline int place(int key, int group, int u) { return key * kChunk + ((group ^ key) & 1) * 16 + u * 4; }

// Operands is what a warp multiplies in a round: entries by heads, heads by columns, and where its keys' sums are, -1:
// nowhere.
struct Operands {
  int team, group;
  u32 a[4][4], b[4][4];
  int to[2];

  // bring_rows reads 16 heads of a slice, bring_columns those of a query.
  __device__ void bring_rows(const Stages& s, const Slice& own, int k) {
    int entry = warp_lane() & 15, piece = k * 2 + (warp_lane() >> 4);
    load4(a[k], s.rows(team) + entry * kRowBytes + ((piece ^ own.from() + entry) & 7) * 16);
  }
  __device__ void bring_columns(const Stages& s, int k) {
    int head = k * 16 + (warp_lane() & 15), piece = group * 2 + (warp_lane() >> 4);
    load4_transposed(b[k], s.box() + head * kChunk * 2 + ((piece ^ head >> 1) & 3) * 16);
  }
  __device__ void bring_places(const Stages& s, const Slice& own, int first) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int entry = warp_lane() / 4 + 8 * h, key = s.places(team)[own.skew() + entry] - first;
      to[h] = entry < own.count() ? place(key, group, warp_lane() % 4) : -1;
    }
  }
};

// add_rounds is a warp that adds. Operands of a round come to the registers of the one before as that is multiplied:
// the tensor cores' chain of four steps leaves time between them.
__device__ inline void add_rounds(Stages s, float* sums, int first, int team, int group) {
  Operands x = {team, group};
  Slice own;
  auto take = [&] {
    barrier_wait(s.full + s.index, s.phase);
    own = s.slices[s.index][team];
  };
  auto give_back = [&] {  // and the sums of the round before are there for all lanes
    __syncwarp();
    if (warp_lane() == 0) barrier_arrive(s.empty + s.index);
    s.next(1);
  };
  take();
  if (own.end()) return;
#pragma unroll
  for (int k = 0; k < 4; k++) x.bring_rows(s, own, k), x.bring_columns(s, k);
  x.bring_places(s, own, first);
  give_back();
  for (;;) {
    float c[2][4];
    int to[2] = {x.to[0], x.to[1]};
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float4 y = to[h] < 0 ? make_float4(0, 0, 0, 0) : *(const float4*)(sums + to[h]);
      c[0][2 * h] = y.x, c[0][2 * h + 1] = y.y, c[1][2 * h] = y.z, c[1][2 * h + 1] = y.w;
    }
    take();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      step(c[0], x.a[k], x.b[k][0], x.b[k][1]), step(c[1], x.a[k], x.b[k][2], x.b[k][3]);
      x.bring_rows(s, own, k);
      if (own.fresh()) x.bring_columns(s, k);
      if (k == 0) x.bring_places(s, own, first);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
      if (to[h] >= 0)
        *(float4*)(sums + to[h]) = make_float4(c[0][2 * h], c[0][2 * h + 1], c[1][2 * h], c[1][2 * h + 1]);
    if (own.end()) return;
    give_back();
  }
}

// each calls f(key, first of four columns, place of the first two, of the others) for what a thread carries of a tile's
// sums.
template <class F>
__device__ inline void each(int keys, F f) {
  int columns = threadIdx.x % 8 * 4, u = columns % 8 / 2, far = columns % 16 / 8 * 2;
#pragma unroll 8
  for (int key = threadIdx.x / 8; key < keys; key += kAllThreads / 8) {
    int at = place(key, columns / 16, u) + far;
    f(key, columns, at, at + 4);
  }
}

// absorbed_dkv_listed continues dv and dk of the tiles' keys, F32 [rows, 512 + 576] in memory, by the queries of a
// pass. Grid: 34 chunks of a tile's columns, the tiles one after the other.
extern "C" __global__ void __launch_bounds__(kAllThreads, 1)
    absorbed_dkv_listed_576_512(const __grid_constant__ ChunkMaps maps, float* sums, u16* dk, u16* dv, const u16* ds,
                                const u16* p, const int* firsts, const OwnKeys* tiles, const int* indices, int first,
                                int count, int blocks, int most, int is, int dks, int dvs) {
  __shared__ u64 full[kStages], empty[kStages];
  __shared__ Slice slices[kStages][kTeams];
  OwnKeys t = tiles[blockIdx.x / kChunks];
  int part = blockIdx.x % kChunks;
  bool values = part < kValueChunks;
  int column = (values ? part : part - kValueChunks) * kChunk;
  float *own = (float*)shared, *stored = sums + (size_t)t.row * kSums + part * kChunk;
  if (threadIdx.x < kStages) {
    barrier_init(full + threadIdx.x, 1);
    barrier_init(empty + threadIdx.x, kAdding);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
  }
  each(t.keys, [&](int key, int at, int near, int far) {
    float4 x = t.begins ? make_float4(0, 0, 0, 0) : *(const float4*)(stored + (size_t)key * kSums + at);
    *(float2*)(own + near) = make_float2(x.x, x.y), *(float2*)(own + far) = make_float2(x.z, x.w);
  });
  __syncthreads();
  Stages stages = {full, empty, slices, 0, 0};
  int warp = uniform(threadIdx.x / kWarp);
  if (warp < kAdding) {
    add_rounds(stages, own, t.at, warp / 2, warp % 2);
  } else {
    int skip = (size_t)indices / 4 % 4;
    Operand x = {values ? &maps.dout : &maps.q, column, values ? p : ds, first, count, blocks, most, indices - skip, is,
                 skip};
    bring(stages, warp - kAdding, t, firsts + (size_t)(blockIdx.x / kChunks) * kBounds * count, x);
  }
  __syncthreads();
  int stride = values ? dvs : dks;
  u16* to = (values ? dv : dk) + (size_t)t.row * stride + column;
  each(t.keys, [&](int key, int at, int near, int far) {
    float2 x = *(const float2*)(own + near), y = *(const float2*)(own + far);
    if (t.ends)
      *(uint2*)(to + (size_t)key * stride + at) =
          make_uint2(pair(x.x + 0.f, x.y + 0.f), pair(y.x + 0.f, y.y + 0.f));
    else *(float4*)(stored + (size_t)key * kSums + at) = make_float4(x.x, x.y, y.x, y.y);
  });
}

#endif
