// SparseAttend: attention to the keys on each query's list, by rule 2 of the definition over the list (blocks of 64 entries). For the queries of a
// tile, which see much the same keys:
//
//	sparse_union   the keys on any of their lists, ascending, and where on that union each entry of a list is; once for all heads
//	sparse_dots    goes along the union's keys in blocks of 64, multiplies all pairs with them, and keeps what is on the pair's list
//	sparse_soften  dots to weights p, by a warp for a pair
//	sparse_along   goes along the union's values and adds, for each pair by itself, steps of 16 entries of its list; a block for a slice of the columns
//
// What bounds it are bytes. Every head has keys and values of its own here, so an entry of a list is 2*(D + V) bytes for 2*(D + V) flops: gathered for each pair by itself,
// 65,536 queries x 64 heads x 2,048 entries of 1 KiB are 8.8 TB, 1.6 s through L2 at 5.5 TB/s, more than dense attention takes. A tile brings a key once for 64 queries: random
// lists cover most keys, 2.2 TB or 0.4 s; lists of neighbours in a text agree for the greater part, say a union of 10,000 keys, 0.7 TB or 0.13 s. Then shared memory bounds the
// last kernel, 1 KiB an entry at 128 bytes a clock with conflicts of banks: 0.25 to 0.4 s. The dots are dense over the union: 0.03 to 0.25 s.
// Expected on an H200, 64 heads of 256, 65,536 rows, lists of 2,048: 0.35 s where neighbours agree, 0.8 s where lists are random; dense attention by mma.sync: about 0.7 s.
#include "scan.cuh"
#include "sparse.cuh"

extern __shared__ __align__(16) char shared[];

constexpr int kUnionThreads = 512;

// sparse_union: for each tile the rows of keys and values on its lists, rows int32 [tiles, most], their number in counts, and at int32 [rows of the call, top_k], the place of
// each entry of a list among them. Shared memory has a bit for each position up to the tile's last. picks nil: lists are all keys up to a row's own.
extern "C" __global__ void __launch_bounds__(kUnionThreads)
    sparse_union(int* rows, int* at, int* counts, const int* picks, const Queries* tiles, const int* pages, int page_rows, int top_k, int most, int ps) {
  Queries t = tiles[blockIdx.x];
  Keys keys = t.keys(pages, page_rows);
  int words = (t.pos + t.count + 63) / 64, each = (words + kUnionThreads - 1) / kUnionThreads, from = min((int)threadIdx.x * each, words), to = min(from + each, words);
  u64* bits = (u64*)shared;
  int* before = (int*)(bits + words);
  auto entries = [&](auto f) {
    for (int i = threadIdx.x; i < t.count * top_k; i += kUnionThreads) {
      int r = i / top_k, e = i % top_k;
      if (e < min(top_k, t.pos + r + 1)) f(r, e, picks ? picks[(size_t)(t.row + r) * ps + e] : e);
    }
  };
  for (int i = threadIdx.x; i < words; i += kUnionThreads) bits[i] = 0;
  __syncthreads();
  entries([&](int, int, int j) { atomicOr(&bits[j / 64], 1ull << j % 64); });
  __syncthreads();
  int sum = 0, total;
  for (int i = from; i < to; i++) sum += __popcll(bits[i]);
  sum = scan(sum, total);
  int* own = rows + (size_t)blockIdx.x * most;
  for (int i = from; i < to; i++) {
    before[i] = sum;
    for (u64 left = bits[i]; left; left &= left - 1) own[sum++] = (int)keys.row(i * 64 + __ffsll(left) - 1);
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = total;
  __syncthreads();
  entries([&](int r, int e, int j) { at[(size_t)(t.first + r) * top_k + e] = before[j / 64] + __popcll(bits[j / 64] & ((1ull << j % 64) - 1)); });
}

// Dots is the shared memory of sparse_dots: 64 pairs, and two blocks of 64 keys, each of which then holds the block's dots.
template <int D>
struct Dots {
  static constexpr int kDot = steps_of(D), kSize = kRows * (kDot + 8) * 2, kStride = kRows + 4, kStage = kSize > kRows * kStride * 4 ? kSize : kRows * kStride * 4;
};

// sparse_dots: dots F32 [rows of the call, heads, top_k] of q [T, heads*D] and the keys k on the lists. Grid: tiles, KV heads, parts of the union.
template <int D>
__device__ inline void sparse_dots(float* dots, const u16* q, const u16* k, const Queries* tiles, const int* rows, const int* at, const int* counts, int group, int top_k, int most,
                                   int qs, int ks) {
  using M = Dots<D>;
  Queries t = tiles[blockIdx.x];
  int lane = warp_lane(), first = threadIdx.x / kWarp * 16, kv_head = blockIdx.y, heads = gridDim.y * group, pairs = t.count * group, n = counts[blockIdx.x];
  int blocks = (n + kRows - 1) / kRows, x = (int)((long long)blocks * blockIdx.z / gridDim.z) * kRows, end = min(n, (int)((long long)blocks * (blockIdx.z + 1) / gridDim.z) * kRows);
  const int* own = rows + (size_t)blockIdx.x * most;
  auto stage = [&](int x) { return shared + M::kSize + x / kRows % 2 * M::kStage; };
  auto fetch = [&](int x) {
    if (x < end) load_rows<M::kDot, kRows, 128, D>((u16*)stage(x), min(kRows, n - x), [&](int i) { return k + (long long)own[x + i] * ks + kv_head * D; });
    commit();
  };
  load_rows<M::kDot, kRows, 128, D>((u16*)shared, pairs, [&](int r) { return q + (long long)(t.row + r / group) * qs + (kv_head * group + r % group) * D; });
  fetch(x);
  fetch(x + kRows);

  // The lanes of a warp share its 16 pairs, fewer pairs more lanes each; a lane goes along every `many`-th entry of its pair's list.
  int mine = max(min(16, pairs - first), 1), many = mine > 8 ? 2 : mine > 4 ? 4 : mine > 2 ? 8 : mine > 1 ? 16 : 32, pair = first + lane / many, entries = 0;
  const int* place = at;
  float* to = dots;
  if (pair < pairs) {
    int r = pair / group;
    entries = min(top_k, t.pos + r + 1);
    place += (size_t)(t.first + r) * top_k, to += ((size_t)(t.first + r) * heads + kv_head * group + pair % group) * top_k;
  }
  int e = lane % many;
  for (int high = entries; e < high;) {  // the first of its entries from x on
    int middle = e + (high - e) / many / 2 * many;
    if (place[middle] < x) e = middle + many;
    else high = middle;
  }
  int next = e < entries ? place[e] : n;
  for (; x < end; x += kRows) {
    wait<1>();
    __syncthreads();
    __syncwarp();  // lanes part at their lists' ends, and the tensor cores want all of them
    float s[8][4];
    if (first < pairs) scores<M::kDot>(s, (const u16*)shared, first, (const u16*)stage(x));
    __syncthreads();
    if (first < pairs) {
      float* board = (float*)stage(x) + first * M::kStride;
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) *(float2*)(board + (lane / 4 + 8 * h) * M::kStride + j * 8 + lane % 4 * 2) = make_float2(s[j][2 * h], s[j][2 * h + 1]);
      __syncwarp();
      while (next < min(x + kRows, n)) {
        to[e] = board[(pair - first) * M::kStride + next - x];
        e += many;
        next = e < entries ? place[e] : n;
      }
    }
    __syncthreads();
    fetch(x + 2 * kRows);
  }
}

#define SPARSE_DOTS(D)                                                                                                                                                          \
  extern "C" __global__ void __launch_bounds__(128) sparse_dots_##D(float* dots, const u16* q, const u16* k, const Queries* tiles, const int* rows, const int* at, const int* counts, \
                                                                    int group, int top_k, int most, int qs, int ks) {                                                           \
    sparse_dots<D>(dots, q, k, tiles, rows, at, counts, group, top_k, most, qs, ks);                                                                                            \
  }
SPARSE_DOTS(16)
SPARSE_DOTS(24)
SPARSE_DOTS(128)
SPARSE_DOTS(192)
SPARSE_DOTS(256)

// sparse_soften: the online softmax of a pair's list by a warp. weights [rows of the call, heads, 64*blocks], decays F32 [rows, heads, blocks], the factor of what was added up
// before each block, merges [rows, heads, splits], those of the earlier splits and of each when it joins them, inverse F32 [rows, heads], 1/l.
KERNEL(sparse_soften, u16* weights, float* decays, float2* merges, float* inverse, float* lse, const float* dots, const Query* queries, int rows, int heads, int top_k, int lses,
       int split, float c) {
  int r = warp_row(), lane = warp_lane(), blocks = (top_k + kRows - 1) / kRows, splits = (top_k + split - 1) / split;
  if (r >= rows * heads) return;
  Query q = queries[r / heads];
  int n = q.keys(top_k);
  const float* d = dots + (size_t)r * top_k;
  float m = -infinity(), l = 0.f, all_m = -infinity(), all_l = 0.f;
  for (int x = 0; x < n; x += kRows) {
    float u[2], p[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int e = x + i * kWarp + lane;
      u[i] = e < n ? d[e] * c : -infinity();
    }
    float top = larger(larger(u[0], u[1]), m);
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) top = larger(top, __shfl_xor_sync(~0u, top, i));
    float from = top == -infinity() ? 0.f : top, decay = exp2_straight((m - from) + (from - from));  // as Online::block
    m = top;
    u16* to = weights + (size_t)r * blocks * kRows + x + lane;
#pragma unroll
    for (int i = 0; i < 2; i++) p[i] = exp2_number(u[i] - from), to[i * kWarp] = narrow(p[i]);
    float sum = p[0] + p[1];
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) sum = sum + __shfl_xor_sync(~0u, sum, i);
    l = l * decay + sum;
    if (lane == 0) decays[(size_t)r * blocks + x / kRows] = decay;
    if ((x + kRows) % split > 0 && x + kRows < n) continue;
    float most = x < split ? m : larger(all_m, m), a = 0.f, b = 1.f;
    if (x >= split && m == -infinity()) a = 1.f, b = 0.f;
    else if (x >= split) a = exp2_straight(all_m - most), b = exp2_straight(m - most);
    if (lane == 0) merges[(size_t)r * splits + x / split] = make_float2(a, b);
    all_l = all_l * a + l * b, all_m = most, m = -infinity(), l = 0.f;
  }
  if (lane > 0) return;
  inverse[r] = 1.f / all_l;
  lse[(size_t)q.row * lses + r % heads] = all_m + ln_def(all_l) * kLog2E;
}

constexpr int kAlongWarps = 8, kAlongThreads = kAlongWarps * kWarp, kOwn = kRows / kAlongWarps, kRing = 9;  // sparse.go has kRing too: blocks of the union in shared memory

// Along is the shared memory of sparse_along: the ring, rows of zeros and those that a warp brings for itself.
template <int C>
struct Along {
  static constexpr int kStride = C + 8, kBlock = kRows * kStride;
  u16* base;
  __device__ u16* row(int i) const { return base + i % (kRing * kRows) * kStride; }
  __device__ u16* zero() const { return base + kRing * kBlock; }
  __device__ u16* extra(int i) const { return base + kRing * kBlock + (1 + threadIdx.x / kWarp * 16 + i) * kStride; }
};

// Chain is the sum of a pair along its list: a column of the warp's accumulators, which its steps alone change.
struct Chain {
  int at, pair;     // where its list and its weights are: row and pair of the call
  int entries = 0;  // on the list
  int step = 0;     // of 16 entries, the next
  int place;        // of the lane's entry of that step on the union; -1: behind the list's end
  u32 weights[2];   // the step's operands, and what multiplies the sum before it
  float decay;
};

// sparse_along: out [T, heads*width] = round(chain over the list, of weights and rows of x, times inverse + 0). A block for C columns; decays and inverse nil: 1. Where Splits,
// lists are longer than a split.
template <int C, bool Splits>
__device__ inline void sparse_along(u16* out, const u16* x, const u16* weights, const float* decays, const float2* merges, const float* inverse, const Queries* tiles,
                                    const int* rows, const int* at, const int* counts, int group, int kv_heads, int width, int top_k, int most, int os, int xs, int split) {
  constexpr int kPieces = C / 8;
  Along<C> ring = {(u16*)shared};
  Queries t = tiles[blockIdx.x];
  int lane = warp_lane(), warp = threadIdx.x / kWarp, kv_head = blockIdx.y % kv_heads, column = blockIdx.y / kv_heads * C, heads = kv_heads * group, pairs = t.count * group;
  int n = counts[blockIdx.x], wide = (top_k + kRows - 1) / kRows * kRows, left = min(C, width - column);
  const int* own = rows + (size_t)blockIdx.x * most;
  x += kv_head * width + column;
  auto fetch = [&](int from) {
    for (int i = threadIdx.x; i < kRows * kPieces && from < n; i += kAlongThreads) {
      int r = from + i / kPieces, piece = i % kPieces * 8;
      bool in = r < n && piece < left;
      copy16(ring.row(r) + piece, x + (long long)own[r < n ? r : from] * xs + (in ? piece : 0), in ? 16 : 0);
    }
    commit();
  };
  auto again = [&](int place) {  // a list with wide gaps: brings the rows of a step by the warp itself, and names the lane's
    __syncwarp();
#pragma unroll
    for (int p = lane; p < 16 * kPieces; p += kWarp) {
      int k = p / kPieces, piece = p % kPieces * 8, of = __shfl_sync(~0u, place, (k & 7) | (k & 8) << 1);
      *(uint4*)(ring.extra(k) + piece) = of >= 0 && piece < left ? *(const uint4*)(x + (long long)own[of] * xs + piece) : make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
    return (const u16*)ring.extra((lane & 7) + (lane >> 4) * 8);
  };
  for (int i = threadIdx.x; i < Along<C>::kStride; i += kAlongThreads) ring.zero()[i] = 0;
  Chain chains[kOwn];
  float sums[C / 16][4] = {}, totals[Splits ? C / 16 : 1][4] = {};
  auto merge = [&](const Chain& c, int i, int x) {  // adds the sums of the split that entry x lies in to those of the splits before
    if (!Splits || lane % 4 != i / 2) return;
    float2 by = merges[(size_t)c.pair * ((top_k + split - 1) / split) + x / split];
#pragma unroll
    for (int j = 0; j < C / 16; j++)
#pragma unroll
      for (int w = i % 2; w < 4; w += 2) totals[Splits ? j : 0][w] = totals[Splits ? j : 0][w] * by.x + sums[j][w] * by.y, sums[j][w] = 0.f;
  };
  auto look = [&](Chain& c, bool own_column) {  // reads what the next step needs
    int e = c.step * 16 + (lane & 7) + (lane >> 4) * 8;
    bool more = c.step * 16 < c.entries;
    c.place = !more ? 0x7fffffff : e < c.entries ? at[(size_t)c.at * top_k + e] : -1;
    c.weights[0] = c.weights[1] = 0;
    const u32* from = (const u32*)(weights + (size_t)c.pair * wide + c.step * 16) + lane % 4;
    if (more && own_column) c.weights[0] = from[0], c.weights[1] = from[4];
    c.decay = more && decays && c.step % 4 == 0 ? decays[c.pair * (wide / kRows) + c.step / 4] : 1.f;
  };
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    int pair = warp + kAlongWarps * i, r = pair / group;
    Chain& c = chains[i];
    if (pair < pairs) c.at = t.first + r, c.pair = c.at * heads + kv_head * group + pair % group, c.entries = min(top_k, t.pos + r + 1);
    look(c, lane / 4 == i);
  }
  fetch(0);
  fetch(kRows);
  for (int from = 0; from < n; from += kRows) {
    wait<1>();
    __syncthreads();
    fetch(from + 2 * kRows);
    int end = from + kRows, begin = end + 2 * kRows - kRing * kRows;  // the ring holds [begin, end)
    for (bool more = true; more;) {  // a step of each chain in turn, so that what the next one needs is on its way
      more = false;
#pragma unroll
      for (int i = 0; i < kOwn; i++) {
        Chain& c = chains[i];
        if (!__all_sync(~0u, c.place < end)) continue;
        more = true;
        if (Splits && c.step > 0 && c.step * 16 % split == 0) merge(c, i, c.step * 16 - 1);
        const u16* a = c.place < 0 ? ring.zero() : ring.row(c.place);
        if (__any_sync(~0u, c.place >= 0 && c.place < begin)) a = again(c.place);
#pragma unroll
        for (int j = 0; j < C / 16; j++) {
          u32 y[4];
          float s[4] = {sums[j][0] * c.decay, sums[j][1] * c.decay, sums[j][2] * c.decay, sums[j][3] * c.decay};
          load4_transposed(y, a + j * 16 + (lane >> 3 & 1) * 8);
          step(s, y, c.weights[0], c.weights[1]);
          if (lane % 4 == i / 2) sums[j][i % 2] = s[i % 2], sums[j][2 + i % 2] = s[2 + i % 2];
        }
        c.step++;
        look(c, lane / 4 == i);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; i++)
    if (chains[i].entries > 0) merge(chains[i], i, chains[i].entries - 1);
#pragma unroll
  for (int w = 0; w < 2; w++) {
    int pair = warp + kAlongWarps * (lane % 4 * 2 + w);
    if (pair >= pairs) continue;
    int r = pair / group, head = kv_head * group + pair % group;
    float by = inverse ? inverse[(size_t)(t.first + r) * heads + head] : 1.f;
    u16* to = out + (long long)(t.row + r) * os + head * width + column;
#pragma unroll
    for (int j = 0; j < C / 16; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int d = j * 16 + h * 8 + lane / 4;
        if (d < left) to[d] = narrow((Splits ? totals[Splits ? j : 0] : sums[j])[2 * h + w] * by + 0.f);
      }
  }
}

#define SPARSE_ALONG(name, C, Splits, many)                                                                                                                                      \
  extern "C" __global__ void __launch_bounds__(kAlongThreads, many)                                                                                                              \
      name(u16* out, const u16* x, const u16* weights, const float* decays, const float2* merges, const float* inverse, const Queries* tiles, const int* rows, const int* at,    \
           const int* counts, int group, int kv_heads, int width, int top_k, int most, int os, int xs, int split) {                                                              \
    sparse_along<C, Splits>(out, x, weights, decays, merges, inverse, tiles, rows, at, counts, group, kv_heads, width, top_k, most, os, xs, split);                              \
  }
SPARSE_ALONG(sparse_along_16, 16, false, 2)
SPARSE_ALONG(sparse_along_64, 64, false, 2)
SPARSE_ALONG(sparse_along_splits_16, 16, true, 1)
SPARSE_ALONG(sparse_along_splits_64, 64, true, 1)
