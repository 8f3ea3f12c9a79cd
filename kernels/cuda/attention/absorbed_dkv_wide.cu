// dk and dv of absorbed latent attention of 576 and 512 columns with Hopper's wgmma: rules as in absorbed_backward.cu,
// in two kernels for some queries at a time. absorbed_pds_wide computes P' and dS' of 128 keys and blocks of 64 rows,
// (query, head); absorbed_dkv_wide adds P' dout and dS' q to the sums of 128 keys, which wait in memory for the next
// queries.
//
// One kernel does not hold both: the sums of 64 keys take 272 KB, and a multiprocessor has 256 KB of registers. P and
// dS go through memory in bf16, which they are rounded to as operands anyway, and both kernels are ordinary products.
// L2 holds q and dout of a pass. Both skip units of which no pair is on a list.
//
// Bound for 64 rows and 128 keys: P and dS 2*64*128*(576 + 512) flops, 4,352 clocks, for 136 KB from L2 and 32 KB to
// memory; dk and dv as many flops, for 136 KB of q and dout and 32 KB of P and dS, which are read two and three times.
// On an H200, 64 heads, two sequences of 4,096 rows: 6.0 ms and 4.7 (the products alone take 2.5 each). Five blocks a
// tile for dk and dv are few waves of 132 multiprocessors, so the last tiles of a pass, in a wave that is not full,
// have narrower blocks: more bytes, and less time (4.9 without).
#include "key_tile.cuh"
#include "wgmma_ring.cuh"
#include "warpgroup.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kColumns = 576, kValues = 512, kBoxes = kColumns / 64, kGradBoxes = kValues / 64;
constexpr int kKeys = 128;            // of a tile, 64 for each consumer warpgroup
constexpr int kUnit = kKeys * kRows;  // elements of P', or of dS': keys by rows
constexpr int kStages = 25;           // boxes of 64 rows and 64 columns in shared memory

// Pass is some blocks of queries of all key tiles. A unit is 64 rows with a key tile; those of a tile follow one
// another.
struct Pass {
  const KeyTile* tiles;
  const u32* flags;  // bits: a block of queries has pairs on the lists; nil: all have
  QueryBlock<kRows> of;

  __device__ bool live(const KeyTile& t, int x) const { return !flags || flags[t.flags + x / 32] >> x % 32 & 1; }
  // live_units is how many units of a tile are live.
  __device__ int live_units(const KeyTile& t) const {
    int blocks = flags ? 0 : t.count;
    for (int x = t.from; flags && x < t.from + t.count; x++) blocks += live(t, x);
    return blocks * of.pieces;
  }
  // copy_rows brings 64 columns of a block's rows to a box; the first of its queries is row `query`.
  __device__ void copy_rows(void* box, const TensorMap* map, int column, int head, int query, u64* full) const {
    for (int i = 0; i < of.queries; i++)
      copy_box((char*)box + i * of.each * 128, map, column, head, query + i, full);
  }
};

// KeyMaps are boxes of 64 columns: of the heads of a query, and of P and dS a unit.
struct KeyMaps {
  TensorMap q, dout, p, ds;
};

// Walk goes over a block's run of the units of a pass.
struct Walk {
  const Pass& pass;
  int unit, end;
  const KeyTile* tile;
  KeyTile t;
  int x, head;  // block of queries, first head

  __device__ Walk(const Pass& pass, int units) : pass(pass), tile(pass.tiles) {
    unit = (long long)units * blockIdx.x / gridDim.x;
    end = (long long)units * (blockIdx.x + 1) / gridDim.x;
    t = *tile;
    place();
  }
  __device__ bool done() const { return unit == end; }
  __device__ void next() {
    unit++;
    if (!done()) place();
  }
  __device__ void place() {
    while (unit / pass.of.pieces >= t.first + t.count) t = *++tile;
    x = t.from + unit / pass.of.pieces - t.first, head = unit % pass.of.pieces * kRows;
  }
  __device__ bool live() const { return pass.live(t, x); }
  // query is the position of the unit's first one.
  __device__ int query() const { return x * pass.of.queries; }
};

// Stage is a place in the ring of boxes.
struct Stage {
  int index = 0, phase = 0;
  __device__ void next() {
    if (++index == kStages) index = 0, phase ^= 1;
  }
};

// Side is what the warpgroups need of a unit's rows besides. Two of them alternate.
struct Side {
  float lse[kRows], delta[kRows];
  u32 seen[kKeys / 32][kRows];  // bits of 32 keys that the row's query sees
};

// Feeds is what the producers fill: the ring of boxes, rows of a unit and then their gradients, and the sides.
struct Feeds {
  char* boxes;        // behind the keys' last columns
  u64 *full, *empty;  // [kStages]
  Side* sides;        // [2]
  u64 *sides_full, *sides_empty;

  __device__ char* box(const Stage& s) const { return boxes + s.index * kPanel; }
  __device__ void prepare() const {
    if (threadIdx.x < kStages) barrier_init(full + threadIdx.x, 1), barrier_init(empty + threadIdx.x, 2 * 4);
    if (threadIdx.x < 2) {
      barrier_init(sides_full + threadIdx.x, kWarp);
      barrier_init(sides_empty + threadIdx.x, 2 * kGroup);
    }
    if (threadIdx.x < kStages) {
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
  }
  __device__ void release(const Stage& s) const {
    if (warp_lane() == 0) barrier_arrive(empty + s.index);
  }
};

// copy_queries is the thread that fills the ring.
__device__ inline void copy_queries(const Feeds& feeds, const KeyMaps& maps, Walk& w) {
  Stage s;
  for (; !w.done(); w.next()) {
    if (!w.live()) continue;
    int query = w.t.query + w.query();
    for (int box = 0; box < kBoxes + kGradBoxes; box++, s.next()) {
      u64* full = feeds.full + s.index;
      barrier_wait(feeds.empty + s.index, s.phase ^ 1);
      barrier_expect(full, kPanel);
      bool grad = box >= kBoxes;
      w.pass.copy_rows(feeds.box(s), grad ? &maps.dout : &maps.q, (grad ? box - kBoxes : box) * 64, w.head, query,
                       full);
    }
  }
}

// copy_sides is the warp that fills the sides. Its lanes write them and threads of the warpgroups read them by plain
// accesses, so each arrives for itself.
__device__ inline void copy_sides(const Feeds& feeds, const float* lse, const float* delta, const u32* masks, Walk& w,
                                  int queries, int lses) {
  const QueryBlock<kRows>& of = w.pass.of;
  for (int i = 0; !w.done(); w.next()) {
    if (!w.live()) continue;
    Side& to = feeds.sides[i % 2];
    float own_lse[2], sum[2];
    u32 seen[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = h * kWarp + warp_lane(), query = w.query() + r / of.each, head = w.head + r % of.each;
      bool in = query >= w.t.begin && query < w.t.end && head < of.heads;
      size_t row = w.t.query + query;
      own_lse[h] = in ? lse[row * lses + head] : 0.f, sum[h] = in ? delta[row * of.heads + head] : 0.f;
#pragma unroll
      for (int j = 0; j < 4; j++) seen[h][j] = in ? w.t.seen(masks, queries, w.t.at + 32 * j, query) : 0;
    }
    barrier_wait(feeds.sides_empty + i % 2, i / 2 & 1 ^ 1);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int at = h * kWarp + warp_lane();
      to.lse[at] = own_lse[h], to.delta[at] = sum[h];
#pragma unroll
      for (int j = 0; j < 4; j++) to.seen[j][at] = seen[h][j];
    }
    barrier_arrive(feeds.sides_full + i % 2);
    i++;
  }
}

// store_unit rounds a warpgroup's weights of 64 keys and 64 rows, those of a thread from `to` on.
__device__ inline void store_unit(u16* to, const float (&x)[8][4]) {
  u32 packed[4][4];
  pack(packed, x);
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) *(u32*)(to + h * 8 * kRows + j * 8) = packed[j / 2][j % 2 * 2 + h];
}

// keep leaves 0 where a row's query does not see a key; words are those of the warp's keys, from the lane's rows on.
__device__ inline void keep(float (&x)[8][4], const uint2* words) {
  int bit = threadIdx.x / kWarp % 2 * 16 + warp_lane() / 4;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    uint2 word = words[4 * j];
#pragma unroll
    for (int i = 0; i < 4; i++) x[j][i] = (i % 2 ? word.y : word.x) >> (bit + i / 2 * 8) & 1 ? x[j][i] : 0.f;
  }
}

// load_keys brings the warpgroup's rows of a tile: their values' columns to registers, the others to a box.
__device__ inline void load_keys(u32 (&keys)[kValues / 16][4], char* box, const u16* k, const KeyTile& t, int ks) {
  int lane = warp_lane(), row = threadIdx.x % kGroup / kWarp * 16 + lane / 4, team = threadIdx.x / kGroup;
  asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(kGroup) : "memory");  // products that read the box are done
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int key = t.at + team * 64 + row + 8 * h;
    const u16* from = k + (long long)(t.row + key) * ks + lane % 4 * 2;
    auto at = [&](int j) { return key < t.rows ? *(const u32*)(from + j * 8) : 0; };
#pragma unroll
    for (int j = 0; j < kValues / 8; j++) keys[j / 2][j % 2 * 2 + h] = at(j);
#pragma unroll
    for (int j = 0; j < 8; j++) *(u32*)(box + swizzled(row + 8 * h, j) + lane % 4 * 4) = at(kValues / 8 + j);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(kGroup) : "memory");
}

// weigh is a consumer warpgroup: P' and dS' of its 64 keys, which lie in registers, with the rows of each unit.
__device__ inline void weigh(const Feeds& feeds, Walk& w, u16* p, u16* ds, const u16* k, bool listed, int ks, float c,
                             float scale) {
  int lane = warp_lane(), team = uniform(threadIdx.x / kGroup), warp = threadIdx.x % kGroup / kWarp;
  int first = team * 64 + warp * 16 + lane / 4;  // of the thread's keys, in the tile
  const KeyTile* at = nullptr;                   // whose keys the registers hold
  u32 keys[kValues / 16][4];
  char* rest = (char*)dynamic + team * kPanel;  // their last columns
  Stage stage;
  for (int i = 0; !w.done(); w.next()) {
    if (!w.live()) continue;
    if (at != w.tile) {
      at = w.tile;
      load_keys(keys, rest, k, w.t, ks);
    }
    float s[8][4], e[8][4];
    hold(s);
    Stage last;
#pragma unroll
    for (int box = 0; box < kBoxes; box++) {
      barrier_wait(feeds.full + stage.index, stage.phase);
      u64 b = describe(feeds.box(stage));
      wgmma_fence();
#pragma unroll
      for (int x = 0; x < 4; x++)
        if (box < kGradBoxes) dots(s, keys[box * 4 + x], by_columns(b, 16 * x), box + x > 0);
        else dots(s, by_columns(describe(rest), 16 * x), by_columns(b, 16 * x), 1);
      wgmma_commit();
      if (box > 0) {
        wgmma_wait<1>();
        feeds.release(last);
      }
      last = stage;
      stage.next();
    }
    Stage grads = stage;
    hold(e);
#pragma unroll
    for (int box = 0; box < kGradBoxes; box++) {
      barrier_wait(feeds.full + stage.index, stage.phase);
      u64 b = describe(feeds.box(stage));
      wgmma_fence();
#pragma unroll
      for (int x = 0; x < 4; x++) dots(e, keys[box * 4 + x], by_columns(b, 16 * x), box + x > 0);
      wgmma_commit();
      stage.next();
    }
    const Side& side = feeds.sides[i % 2];
    const float2 *own_lse = (const float2*)side.lse + lane % 4, *sum = (const float2*)side.delta + lane % 4;
    const uint2* seen = (const uint2*)side.seen[team * 2 + warp / 2] + lane % 4;
    barrier_wait(feeds.sides_full + i % 2, i / 2 & 1);
    wgmma_wait<kGradBoxes>();
    hold(s);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float2 l = own_lse[4 * j];
#pragma unroll
      for (int v = 0; v < 4; v++) s[j][v] = exp2_number(fminf(s[j][v] * c - (v % 2 ? l.y : l.x), 0.f));
    }
    hold(s);
    bool inside = w.query() + w.pass.of.queries <= w.t.end && w.t.at + kKeys <= w.t.rows;
    if (listed || !inside || w.query() < w.t.at + kKeys) keep(s, seen);
    hold(s);
    size_t to = (size_t)w.unit * kUnit + first * kRows + lane % 4 * 2;
    store_unit(p + to, s);
    wgmma_wait<0>();
    hold(e);
    feeds.release(last);
#pragma unroll
    for (int box = 0; box < kGradBoxes; box++, grads.next()) feeds.release(grads);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float2 d = sum[4 * j];
#pragma unroll
      for (int v = 0; v < 4; v++) e[j][v] = (s[j][v] * (e[j][v] - (v % 2 ? d.y : d.x))) * scale;
    }
    if (!inside) keep(e, seen);  // what lies behind the end of the sequence is another's and may be NaN
    barrier_arrive(feeds.sides_empty + i % 2);
    store_unit(ds + to, e);
    i++;
  }
}

// absorbed_pds_wide: P' and dS' bf16 [units, 128 keys, 64 rows] of a pass; queries and keys behind the end of a
// sequence have zeros.
extern "C" __global__ void __launch_bounds__(3 * 128, 1)
    absorbed_pds_wide_576_512(const __grid_constant__ KeyMaps maps, u16* p, u16* ds, const float* lse,
                              const float* delta, const u16* k, const u32* masks, const KeyTile* tiles,
                              const u32* flags, int heads, int units, int queries, int lses, int ks, float c,
                              float scale) {
  __shared__ u64 full[kStages], empty[kStages], sides_full[2], sides_empty[2];
  __shared__ Side sides[2];
  Feeds feeds = {(char*)dynamic + 2 * kPanel, full, empty, sides, sides_full, sides_empty};
  Pass pass = {tiles, flags, {heads}};
  feeds.prepare();
  Walk w(pass, units);
  if (uniform(threadIdx.x / kGroup) < 2) {
    more_registers<224>();
    weigh(feeds, w, p, ds, k, masks, ks, c, scale);
    return;
  }
  fewer_registers<56>();
  int warp = uniform(threadIdx.x / kWarp % 4);
  if (warp == 0 && elected()) copy_queries(feeds, maps, w);
  else if (warp == 1) copy_sides(feeds, lse, delta, masks, w, queries, lses);
}

// absorbed_flags: for each key tile and block of queries, whether a pair is on the lists: a lane for a block. Grid:
// tiles, most words.
extern "C" __global__ void __launch_bounds__(32)
    absorbed_flags(u32* flags, const u32* masks, const KeyTile* tiles, int heads, int queries) {
  KeyTile t = tiles[blockIdx.x];
  QueryBlock<kRows> of(heads);
  int first = (blockIdx.y * 32 + threadIdx.x) * of.queries;
  u32 any = 0;
  for (int i = 0; i < of.queries; i++)
#pragma unroll
    for (int word = 0; word < kKeys / 32; word++) any |= t.seen(masks, queries, t.at + 32 * word, first + i);
  any = __ballot_sync(~0u, any != 0);
  if (threadIdx.x == 0) flags[t.flags + blockIdx.y] = any;
}

constexpr int kSums = kColumns + kValues;  // of a key

// carry reads the warpgroup's sums [64, COLUMNS], of which `count` rows are keys, from memory, or writes them there.
template <int COLUMNS, bool WRITE>
__device__ inline void carry(float* d, float* sums, int count) {
  int lane = warp_lane(), row = threadIdx.x % kGroup / kWarp * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float2* at = (float2*)(sums + (size_t)(row + 8 * h) * kSums + j * 8 + lane % 4 * 2);
      float* v = d + j * 4 + h * 2;
      if (row + 8 * h >= count) {
        if (!WRITE) v[0] = v[1] = 0.f;
      } else if (WRITE) {
        *at = make_float2(v[0], v[1]);
      } else {
        float2 x = *at;
        v[0] = x.x, v[1] = x.y;
      }
    }
}

// Product is COLUMNS columns of dk, or of dv, of a key tile: weights, dS or P, and what they are multiplied with.
struct Product {
  int tile;
  const TensorMap *weights, *rows;
  int column;   // the first
  float* sums;  // of row 0 of the batch
  u16* to;      // likewise
  int stride;
};

template <int COLUMNS, int STAGES>
__device__ inline void add_units(const Pass& pass, const Product& w, u64* bars) {
  using R = Ring<kKeys, COLUMNS, STAGES>;
  const QueryBlock<kRows>& of = pass.of;
  KeyTile t = pass.tiles[w.tile];
  R ring(bars, 1);
  __syncthreads();
  int team = uniform(threadIdx.x / kGroup);
  if (team == 2) {
    fewer_registers<24>();
    if (threadIdx.x / kWarp % 4 > 0 || !elected()) return;
    for (int i = 0; i < t.count * of.pieces; i++) {
      int x = t.from + i / of.pieces, head = i % of.pieces * kRows;
      if (!pass.live(t, x)) continue;
      u64* full = ring.free(R::kStage * 2);
      copy_box(ring.a(), w.weights, 0, (t.first * of.pieces + i) * kKeys, 0, full);
#pragma unroll
      for (int c = 0; c < COLUMNS; c += 64)
        pass.copy_rows(ring.b() + c * kDepth, w.rows, w.column + c, head, t.query + x * of.queries, full);
      ring.next();
    }
    return;
  }
  more_registers<240>();
  int units = uniform(pass.live_units(t)), last = t.from + t.count - 1, left = t.end - last * of.queries;
  bool cut = units > 0 && left < of.queries && pass.live(t, last);  // the last block is filled up with zeros
  int first = t.at + team * kRows, count = t.rows - first;
  float* sums = w.sums + (size_t)(t.row + first) * kSums;
  float d[COLUMNS / 8][4];
  carry<COLUMNS, false>(d[0], sums, t.begins ? 0 : count);
  if (units > 0)
    chain<COLUMNS, 0, 1>(d[0], ring, team, units, [&](int i) {
      if (!cut || i + 1 < units) return;
      clear_rows<COLUMNS>((char*)ring.b(), left * of.each, threadIdx.x % kGroup, kGroup);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(kGroup) : "memory");
    });
  u16* to = w.to + (size_t)(t.row + first) * w.stride;
  if (t.ends) put<COLUMNS>(to, d, w.stride, threadIdx.x % kGroup / kWarp * 16, count);
  else carry<COLUMNS, true>(d[0], sums, count);
}

constexpr int kWide = 5, kNarrow = kSums / 64;  // blocks of a tile

// absorbed_dkv_wide continues the sums of dv and dk F32 [rows, 512 + 576] by a pass, or writes both in the last one of
// a tile. Grid: of each of the first `wide` tiles two blocks with 256 columns of dv and three with 192 of dk, of each
// other blocks with 64 columns.
extern "C" __global__ void __launch_bounds__(3 * 128, 1)
    absorbed_dkv_wide_576_512(const __grid_constant__ KeyMaps maps, float* sums, u16* dk, u16* dv,
                              const KeyTile* tiles, const u32* flags, int wide, int heads, int dks, int dvs) {
  __shared__ u64 bars[2 * 8];
  Pass pass = {tiles, flags, {heads}};
  auto of_dv = [&](int tile, int column) -> Product {
    return {tile, &maps.p, &maps.dout, column, sums + column, dv + column, dvs};
  };
  auto of_dk = [&](int tile, int column) -> Product {
    return {tile, &maps.ds, &maps.q, column, sums + kValues + column, dk + column, dks};
  };
  int narrow = blockIdx.x - wide * kWide;
  if (narrow >= 0) {
    int tile = wide + narrow / kNarrow, column = narrow % kNarrow * 64;
    add_units<64, 8>(pass, column < kValues ? of_dv(tile, column) : of_dk(tile, column - kValues), bars);
    return;
  }
  int tile = blockIdx.x / kWide, part = blockIdx.x % kWide;
  if (part < 2) add_units<256, 4>(pass, of_dv(tile, part * 256), bars);
  else add_units<192, 5>(pass, of_dk(tile, (part - 2) * 192), bars);
}

#endif
