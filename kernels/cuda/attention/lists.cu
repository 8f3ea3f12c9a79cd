// Products along lists of keys, for the loss of an indexer (indexloss.cu, indexgrad.cu); all its heads share a row's
// one key. For the queries of a tile, which see much the same keys:
//
//	list_union   the keys on any of their lists, ascending, and where on that union each entry of a list is
//	list_dots goes along the union's keys in blocks of 64, multiplies all pairs of a query and a head with them, and
//	keeps what is on the pair's list
//	list_along goes along the union's keys and adds, for each pair by itself, steps of 16 entries of its list; a block
//	for a slice of the columns
//	list_masks   a bit for each row and key: it is on the row's list
//
// What bounds them are bytes: a tile brings a key once for all its pairs, and list_along reads 2*D bytes of shared
// memory for an entry of a pair, with conflicts of banks. The dots are dense over the union.
#include "queries.cuh"
#include "scan.cuh"

extern __shared__ __align__(16) char shared[];

constexpr int kUnionThreads = 512;

// list_union: for each tile the rows of the keys on its lists, rows int32 [tiles, most], their number in counts, and at
// int32 [rows of the call, top_k], the place of each entry of a list among them. Shared memory has a bit for each
// position up to the tile's last. indices nil: lists are all keys up to a row's own.
extern "C" __global__ void __launch_bounds__(kUnionThreads)
    list_union(int* rows, int* at, int* counts, const int* indices, const Queries* tiles, int top_k, int most, int is) {
  Queries t = tiles[blockIdx.x];
  int words = (t.pos + t.count + 63) / 64, each = (words + kUnionThreads - 1) / kUnionThreads,
      from = min((int)threadIdx.x * each, words), to = min(from + each, words);
  u64* bits = (u64*)shared;
  int* before = (int*)(bits + words);
  auto entries = [&](auto f) {
    for (int i = threadIdx.x; i < t.count * top_k; i += kUnionThreads) {
      int r = i / top_k, e = i % top_k;
      if (e < min(top_k, t.pos + r + 1)) f(r, e, indices ? indices[(size_t)(t.row + r) * is + e] : e);
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
    for (u64 left = bits[i]; left; left &= left - 1) own[sum++] = t.base + i * 64 + __ffsll(left) - 1;
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = total;
  __syncthreads();
  entries([&](int r, int e, int j) {
    at[(size_t)(t.first + r) * top_k + e] = before[j / 64] + __popcll(bits[j / 64] & ((1ull << j % 64) - 1));
  });
}

// Dots is the shared memory of list_dots: 64 pairs, and two blocks of 64 keys, each of which then holds the block's
// dots.
template <int D>
struct Dots {
  static constexpr int kSize = kRows * (D + 8) * 2, kStride = kRows + 4,
                       kStage = kSize > kRows * kStride * 4 ? kSize : kRows * kStride * 4;
};

// list_dots: dots F32 [rows of the call, heads, top_k] of q [T, heads*D] and the keys k [T, D] on the lists. Grid:
// tiles, parts of the union.
template <int D>
__device__ inline void list_dots(float* dots, const u16* q, const u16* k, const Queries* tiles, const int* rows,
                                 const int* at, const int* counts, int heads, int top_k, int most, int qs, int ks) {
  using M = Dots<D>;
  Queries t = tiles[blockIdx.x];
  int lane = warp_lane(), first = threadIdx.x / kWarp * 16, pairs = t.count * heads, n = counts[blockIdx.x];
  int blocks = (n + kRows - 1) / kRows, x = (int)((long long)blocks * blockIdx.y / gridDim.y) * kRows,
      end = min(n, (int)((long long)blocks * (blockIdx.y + 1) / gridDim.y) * kRows);
  const int* own = rows + (size_t)blockIdx.x * most;
  auto stage = [&](int x) { return shared + M::kSize + x / kRows % 2 * M::kStage; };
  auto fetch = [&](int x) {
    if (x < end)
      load_rows<D, kRows, 128>((u16*)stage(x), min(kRows, n - x),
                               [&](int i) { return k + (long long)own[x + i] * ks; });
    commit();
  };
  load_rows<D, kRows, 128>((u16*)shared, pairs,
                           [&](int r) { return q + (long long)(t.row + r / heads) * qs + r % heads * D; });
  fetch(x);
  fetch(x + kRows);

  // The lanes of a warp share its 16 pairs, fewer pairs more lanes each; a lane goes along every `many`-th entry of its
  // pair's list.
  int mine = max(min(16, pairs - first), 1),
      many = mine > 8   ? 2
             : mine > 4 ? 4
             : mine > 2 ? 8
             : mine > 1 ? 16
                        : 32,
      pair = first + lane / many, entries = 0;
  const int* place = at;
  float* to = dots;
  if (pair < pairs) {
    int r = pair / heads;
    entries = min(top_k, t.pos + r + 1);
    place += (size_t)(t.first + r) * top_k, to += ((size_t)(t.first + r) * heads + pair % heads) * top_k;
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
    if (first < pairs) scores<D>(s, (const u16*)shared, first, (const u16*)stage(x));
    __syncthreads();
    if (first < pairs) {
      float* board = (float*)stage(x) + first * M::kStride;
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
          *(float2*)(board + (lane / 4 + 8 * h) * M::kStride + j * 8 + lane % 4 * 2) =
              make_float2(s[j][2 * h], s[j][2 * h + 1]);
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

#define LIST_DOTS(D)                                                                                               \
  extern "C" __global__ void __launch_bounds__(128)                                                                \
      list_dots_##D(float* dots, const u16* q, const u16* k, const Queries* tiles, const int* rows, const int* at, \
                    const int* counts, int heads, int top_k, int most, int qs, int ks) {                           \
    list_dots<D>(dots, q, k, tiles, rows, at, counts, heads, top_k, most, qs, ks);                                 \
  }
LIST_DOTS(16)
LIST_DOTS(128)

// kRing: blocks of the union in shared memory
constexpr int kAlongWarps = 8, kAlongThreads = kAlongWarps * kWarp, kOwn = kRows / kAlongWarps, kRing = 9;

// Along is the shared memory of list_along: the ring, rows of zeros and those that a warp brings for itself.
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
  u32 weights[2];   // the step's operands
};

// list_along: out [T, heads*width] = round(chain over the list, of weights [pairs, 64*blocks] and rows of x [T, width],
// + 0). Grid: tiles, slices of C columns.
template <int C>
__device__ inline void list_along(u16* out, const u16* x, const u16* weights, const Queries* tiles, const int* rows,
                                  const int* at, const int* counts, int heads, int width, int top_k, int most, int os,
                                  int xs) {
  constexpr int kPieces = C / 8;
  Along<C> ring = {(u16*)shared};
  Queries t = tiles[blockIdx.x];
  int lane = warp_lane(), warp = threadIdx.x / kWarp, column = blockIdx.y * C, pairs = t.count * heads;
  int n = counts[blockIdx.x], wide = (top_k + kRows - 1) / kRows * kRows;
  const int* own = rows + (size_t)blockIdx.x * most;
  x += column;
  auto fetch = [&](int from) {
    for (int i = threadIdx.x; i < kRows * kPieces && from < n; i += kAlongThreads) {
      int r = from + i / kPieces, piece = i % kPieces * 8;
      copy16(ring.row(r) + piece, x + (long long)own[r < n ? r : from] * xs + piece, r < n ? 16 : 0);
    }
    commit();
  };
  // a list with wide gaps: brings the rows of a step by the warp itself, and names the lane's
  auto again = [&](int place) {
    __syncwarp();
#pragma unroll
    for (int p = lane; p < 16 * kPieces; p += kWarp) {
      int k = p / kPieces, piece = p % kPieces * 8, of = __shfl_sync(~0u, place, (k & 7) | (k & 8) << 1);
      *(uint4*)(ring.extra(k) + piece) =
          of >= 0 ? *(const uint4*)(x + (long long)own[of] * xs + piece) : make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
    return (const u16*)ring.extra((lane & 7) + (lane >> 4) * 8);
  };
  for (int i = threadIdx.x; i < Along<C>::kStride; i += kAlongThreads) ring.zero()[i] = 0;
  Chain chains[kOwn];
  float sums[C / 16][4] = {};
  auto look = [&](Chain& c, bool own_column) {  // reads what the next step needs
    int e = c.step * 16 + (lane & 7) + (lane >> 4) * 8;
    bool more = c.step * 16 < c.entries;
    c.place = !more ? 0x7fffffff : e < c.entries ? at[(size_t)c.at * top_k + e] : -1;
    c.weights[0] = c.weights[1] = 0;
    const u32* from = (const u32*)(weights + (size_t)c.pair * wide + c.step * 16) + lane % 4;
    if (more && own_column) c.weights[0] = from[0], c.weights[1] = from[4];
  };
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    int pair = warp + kAlongWarps * i, r = pair / heads;
    Chain& c = chains[i];
    if (pair < pairs) c.at = t.first + r, c.pair = c.at * heads + pair % heads, c.entries = min(top_k, t.pos + r + 1);
    look(c, lane / 4 == i);
  }
  fetch(0);
  fetch(kRows);
  for (int from = 0; from < n; from += kRows) {
    wait<1>();
    __syncthreads();
    fetch(from + 2 * kRows);
    int end = from + kRows, begin = end + 2 * kRows - kRing * kRows;  // the ring holds [begin, end)
    // one step of each chain per iteration, so that what the next one needs is on its way
    for (bool more = true; more;) {
      more = false;
#pragma unroll
      for (int i = 0; i < kOwn; i++) {
        Chain& c = chains[i];
        if (!__all_sync(~0u, c.place < end)) continue;
        more = true;
        const u16* a = c.place < 0 ? ring.zero() : ring.row(c.place);
        if (__any_sync(~0u, c.place >= 0 && c.place < begin)) a = again(c.place);
#pragma unroll
        for (int j = 0; j < C / 16; j++) {
          u32 y[4];
          float s[4] = {sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
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
  for (int w = 0; w < 2; w++) {
    int pair = warp + kAlongWarps * (lane % 4 * 2 + w);
    if (pair >= pairs) continue;
    u16* to = out + (long long)(t.row + pair / heads) * os + pair % heads * width + column;
#pragma unroll
    for (int j = 0; j < C / 16; j++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        to[j * 16 + h * 8 + lane / 4] = narrow(sums[j][2 * h + w] + 0.f);
  }
}

#define LIST_ALONG(C)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(kAlongThreads, 2)                                                       \
      list_along_##C(u16* out, const u16* x, const u16* weights, const Queries* tiles, const int* rows, const int* at, \
                     const int* counts, int heads, int width, int top_k, int most, int os, int xs) {                   \
    list_along<C>(out, x, weights, tiles, rows, at, counts, heads, width, top_k, most, os, xs);                        \
  }
LIST_ALONG(16)
LIST_ALONG(64)

// list_masks: masks [T, width], bit j of word b: key 64*b + j is on the row's list; firsts int32 [T, width]: entries
// before key 64*b. A thread for a word.
KERNEL(list_masks, u64* masks, int* firsts, const int* indices, const Query* queries, int width, int top_k, int is) {
  Query q = queries[blockIdx.x];
  int b = blockIdx.y * blockDim.x + threadIdx.x, low = 0, high = q.keys(top_k), n = high;
  if (b > q.pos / 64) return;
  const int* list = indices + (size_t)q.row * is;
  while (low < high) {
    int middle = (low + high) / 2;
    if (list[middle] < b * 64) low = middle + 1;
    else high = middle;
  }
  firsts[(size_t)q.row * width + b] = low;
  u64 mask = 0;
  for (; low < n && list[low] < b * 64 + 64; low++) mask |= 1ull << list[low] % 64;
  masks[(size_t)q.row * width + b] = mask;
}
