// MatMul, MatMulT and WeightGrad (see matmul.cu for the sums) by wgmma and TMA. A persistent block walks over tiles; one warp of it copies, the other
// warpgroups multiply. Both sides find their tiles from the groups' offsets in memory, so the host knows no counts.
//   nt, nn: the product is computed as out^T = W X^T: 64 columns of out for each warpgroup, and as many rows of X as a group has left (up to ROWS), so that
//   a group's last tile costs what it holds. Terms in turn; the last step of each is filled with zeros by the copy.
//   weight_grad: dy^T x, started from dw. The last step of a pack is filled with zeros in shared memory, because the next pack's rows follow there.
// Bound: 2*M*N*K flops of the tensor cores; for few rows the bytes of the weights; for weight_grad also 8 bytes for each element of dw.
#include "wgmma.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kDepth = 64, kBox = 64 * 64;          // k of a stage; elements of a box
constexpr int kGroup = 128, kMaxGroups = 1024;      // threads of a warpgroup
constexpr int kBand = 8;                            // tiles side by side that share operands in L2
constexpr int kMostTerms = 5;                       // matmul.go has it too

extern __shared__ u16 dynamic[];

// threads of a block: a warpgroup for each 64 that it multiplies, and a warp that copies, which is a warpgroup where it gives registers to the others.
constexpr int threads(int multiplied, int blocks) { return multiplied * 2 + (blocks == 1 ? kGroup : kWarp); }

// Ring is the stages between the copying warp and the multiplying warpgroups: A boxes, then B boxes, 1024-byte aligned.
template <int A, int B, int STAGES>
struct Ring {
  static constexpr int kStage = (A + B) * kDepth;  // elements
  u16* base;
  u64 *full, *empty;
  int slot, phase;
  __device__ Ring(u64* bars) : full(bars), empty(bars + STAGES), slot(0), phase(0) {
    base = dynamic + ((1024 - (shared_address(dynamic) & 1023)) & 1023) / 2;
    if (threadIdx.x == 0) {
      for (int i = 0; i < STAGES; i++) {
        barrier_init(full + i, 1);
        barrier_init(empty + i, A / 64 * 4);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
  }
  __device__ u16* a() { return base + slot * kStage; }
  __device__ u16* b() { return a() + A * kDepth; }
  __device__ void next() {
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
  // free waits until the slot may be overwritten and announces `bytes`.
  __device__ void free(int bytes) {
    barrier_wait(empty + slot, phase ^ 1);
    barrier_expect(full + slot, bytes);
  }
  __device__ void filled() { barrier_wait(full + slot, phase); }
  // release gives back the slot before the current one.
  __device__ void release_last() {
    if (warp_lane() == 0) barrier_arrive(empty + (slot == 0 ? STAGES - 1 : slot - 1));
  }
};

// multiply starts the products of the current slot: four steps of 16 k into COLUMNS columns. Steps of zeros change no bit.
template <int COLUMNS, int TA, int TB, class R>
__device__ inline void multiply(float* d, R& ring, int warpgroup) {
  constexpr int kA = (TA ? 16 * 64 : 16) * 2 >> 4, kB = (TB ? 16 * 64 : 16) * 2 >> 4;  // of descriptors, for each step
  u64 a = operand(ring.a() + warpgroup * kBox), b = operand(ring.b());
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kDepth / 16; s++) wgmma<COLUMNS, TA, TB>(d, a + s * kA, b + s * kB);
  wgmma_commit();
}

// held keeps the compiler from moving what touches the accumulators across this point.
template <int COLUMNS>
__device__ inline void held(float* d) {
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// chain multiplies `turns` slots; prepare is called with the turn before each.
template <int COLUMNS, int TA, int TB, class R, class F>
__device__ inline void chain(float* d, R& ring, int warpgroup, int turns, F prepare) {
  held<COLUMNS>(d);
  ring.filled();
  prepare(0);
  multiply<COLUMNS, TA, TB>(d, ring, warpgroup);
  ring.next();
  for (int i = 1; i < turns; i++) {
    ring.filled();
    prepare(i);
    multiply<COLUMNS, TA, TB>(d, ring, warpgroup);
    wgmma_wait<1>();
    ring.release_last();
    ring.next();
  }
  wgmma_wait<0>();
  held<COLUMNS>(d);
  ring.release_last();
}

// Piece is where a tile lies in its group: bands of kBand tiles down, all tiles across, down first inside a band.
__device__ inline void piece(int i, int down, int across, int& row, int& col) {
  int band = i / (kBand * across), height = min(kBand, down - band * kBand);
  i -= band * kBand * across;
  row = band * kBand + i % height;
  col = i / height;
}

// Terms count for columns [from, to) of out each, which begin and end where tiles of columns from `begin` on do, or the launch's last column does.
struct Terms {
  TensorMap x[kMostTerms], w[kMostTerms];
  int k[kMostTerms], from[kMostTerms], to[kMostTerms], count, begin;
  int box;  // rows of X in a copy: it takes a thread some 90 cycles to start one
  __device__ bool cover(int t, int col) const { return from[t] <= col && col < to[t]; }
};

// Table lists the groups' first rows and how many tiles of rows lie before each.
struct Table {
  int row[kMaxGroups + 1], tile[kMaxGroups + 1];
};

__device__ inline void fill(Table& t, const int* offsets, int groups, int packs, int m, int rows) {
  if (threadIdx.x >= kWarp) return;
  int lane = threadIdx.x, before = 0;
  for (int base = 0; base < groups; base += kWarp) {
    int g = base + lane, from = 0, tiles = 0;
    if (g < groups) {
      from = offsets ? offsets[g * packs] : 0;
      int to = offsets ? offsets[(g + 1) * packs] : m;
      tiles = (to - from + rows - 1) / rows;
      if (g == groups - 1) t.row[groups] = to;
      t.row[g] = from;
    }
    int sum = tiles;
#pragma unroll
    for (int s = 1; s < kWarp; s <<= 1) {
      int v = __shfl_up_sync(~0u, sum, s);
      if (lane >= s) sum += v;
    }
    if (g < groups) t.tile[g] = before + sum - tiles;
    before += __shfl_sync(~0u, sum, kWarp - 1);
  }
  if (lane == 0) t.tile[groups] = before;
}

// Work is a tile of a product: rows [from, from + rows) of out and X, columns from col, with the matrices of a group.
struct Work {
  int group, from, rows, col;
};

__device__ inline Work find(const Table& t, int groups, int across, int i, int rows, int columns, int begin) {
  int lo = 0, hi = groups;  // the group: the last with tile[lo] * across <= i
  while (hi - lo > 1) {
    int mid = (lo + hi) / 2;
    if (t.tile[mid] * across <= i) lo = mid;
    else hi = mid;
  }
  int row, col;
  piece(i - t.tile[lo] * across, t.tile[lo + 1] - t.tile[lo], across, row, col);
  int from = t.row[lo] + row * rows;
  return {lo, from, min(rows, t.row[lo + 1] - from), begin + col * columns};
}

// width is the number of columns of wgmma that covers `rows` rows.
template <int ROWS>
__device__ inline int width(int rows) {
  if (ROWS == 64) return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  return (rows + ROWS / 4 - 1) / (ROWS / 4) * (ROWS / 4);
}

// store_tile writes the warpgroup's 64 columns of out from `col` on, for rows [0, rows) at out.
template <int ROWS>
__device__ inline void store_tile(const float* d, float* out, long long ldo, int rows, int col, int n, bool) {
  int lane = warp_lane(), warp = threadIdx.x / kWarp % 4;
#pragma unroll
  for (int j = 0; j < ROWS / 8; j++)
    if (j * 8 < rows)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int row = j * 8 + lane % 4 * 2 + e % 2, c = col + warp * 16 + lane / 4 + e / 2 * 8;
        if (row < rows && c < n) out[row * ldo + c] = d[j * 4 + e];
      }
}

// For bf16 the threads of a quad exchange what they hold until each has 8 columns of one row.
template <int ROWS>
__device__ inline void store_tile(const float* d, u16* out, long long ldo, int rows, int col, int n, bool wide) {
  int lane = warp_lane(), warp = threadIdx.x / kWarp % 4, q = lane % 4;
  int c = col + warp * 16 + q % 2 * 8;
  bool odd = q & 1, high = q & 2;
#pragma unroll
  for (int j = 0; j < ROWS / 16; j++)
    if (j * 16 < rows) {
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) w[i] = transposed(pair(d[j * 8 + i * 2], d[j * 8 + i * 2 + 1]));
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        u32 v = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
        if (odd) w[i] = v;
        else w[i + 1] = v;
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 v = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
        if (high) w[i] = v;
        else w[i + 2] = v;
      }
      int row = j * 16 + q / 2 * 8 + lane / 4;
      if (row >= rows || c >= n) continue;
      u16* to = out + row * ldo + c;
      if (wide && c + 8 <= n) {
        *(uint4*)to = make_uint4(w[0], w[1], w[2], w[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
          if (c + i < n) to[i] = (u16)(w[i / 2] >> i % 2 * 16);
      }
    }
}

// product: columns [begin, n) of out, COLUMNS of them and up to ROWS rows for each block. TW: the weights have k as their rows (nn).
template <int COLUMNS, int ROWS, int STAGES, int BLOCKS, int TW, class T>
__device__ inline void product(const Terms& terms, T* out, long long ldo, const int* offsets, int groups, int packs, int m, int n) {
  __shared__ u64 bars[2 * STAGES];
  __shared__ Table table;
  Ring<COLUMNS, ROWS, STAGES> ring(bars);
  fill(table, offsets, groups, packs, m, ROWS);
  __syncthreads();
  int begin = terms.begin, across = (n - begin + COLUMNS - 1) / COLUMNS, tiles = table.tile[groups] * across;
  if (threadIdx.x >= COLUMNS * 2) {
    if (BLOCKS == 1) fewer_registers<40>();
    if (threadIdx.x == COLUMNS * 2)
      for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
        Work w = find(table, groups, across, i, ROWS, COLUMNS, begin);
        int rows = (width<ROWS>(w.rows) + terms.box - 1) / terms.box * terms.box;
        for (int t = 0; t < terms.count; t++) {
          if (!terms.cover(t, w.col)) continue;
          int at = w.col - terms.from[t];
          for (int k = 0; k < terms.k[t]; k += kDepth, ring.next()) {
            ring.free((COLUMNS + rows) * kDepth * 2);
            u64* full = ring.full + ring.slot;
            if (TW)
              for (int c = 0; c < COLUMNS; c += 64) copy_box(ring.a() + c * kDepth, &terms.w[t], at + c, k, w.group, full);
            else copy_box(ring.a(), &terms.w[t], k, at, w.group, full);
            for (int r = 0; r < rows; r += terms.box) copy_box(ring.b() + r * kDepth, &terms.x[t], k, w.from + r, 0, full);
          }
        }
      }
  } else {
    if (BLOCKS == 1) more_registers<232>();
    int warpgroup = threadIdx.x / kGroup;
    bool wide = ((u64)(out + begin) | (u64)ldo * sizeof(T)) % 16 == 0;
    auto nothing = [](int) {};
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
      Work w = find(table, groups, across, i, ROWS, COLUMNS, begin);
      int turns = 0;
      for (int t = 0; t < terms.count; t++)
        if (terms.cover(t, w.col)) turns += (terms.k[t] + kDepth - 1) / kDepth;
      float d[ROWS / 2];
#pragma unroll
      for (int j = 0; j < ROWS / 2; j++) d[j] = 0.f;
      int rows = width<ROWS>(w.rows);
      constexpr int kQuarter = ROWS == 64 ? 8 : ROWS / 4, kHalf = ROWS == 64 ? 16 : ROWS / 2, kThree = ROWS == 64 ? 32 : ROWS / 4 * 3;
      if (rows == ROWS) chain<ROWS, TW, 0>(d, ring, warpgroup, turns, nothing);
      else if (rows == kThree) chain<kThree, TW, 0>(d, ring, warpgroup, turns, nothing);
      else if (rows == kHalf) chain<kHalf, TW, 0>(d, ring, warpgroup, turns, nothing);
      else chain<kQuarter, TW, 0>(d, ring, warpgroup, turns, nothing);
      store_tile<ROWS>(d, out + w.from * ldo, ldo, w.rows, w.col + warpgroup * 64, n, wide);
    }
  }
}

#define PRODUCT(name, COLUMNS, ROWS, STAGES, BLOCKS, TW, T)                                                                                        \
  extern "C" __global__ void __launch_bounds__(threads(COLUMNS, BLOCKS), BLOCKS)                                                                    \
      name(const __grid_constant__ Terms terms, T* out, long long ldo, const int* offsets, int groups, int packs, int m, int n) {                 \
    product<COLUMNS, ROWS, STAGES, BLOCKS, TW>(terms, out, ldo, offsets, groups, packs, m, n);                                                       \
  }
#define PRODUCTS(name, COLUMNS, ROWS, STAGES, BLOCKS)               \
  PRODUCT(nt_##name##_bf16, COLUMNS, ROWS, STAGES, BLOCKS, 0, u16)  \
  PRODUCT(nt_##name##_f32, COLUMNS, ROWS, STAGES, BLOCKS, 0, float) \
  PRODUCT(nn_##name##_bf16, COLUMNS, ROWS, STAGES, BLOCKS, 1, u16)  \
  PRODUCT(nn_##name##_f32, COLUMNS, ROWS, STAGES, BLOCKS, 1, float)
PRODUCTS(wide, 128, 256, 4, 1)
PRODUCTS(square, 128, 128, 6, 1)
PRODUCTS(few, 64, 64, 6, 2)
PRODUCTS(deep, 64, 64, 13, 2)  // one fits: registers as of two

struct Pair {
  TensorMap dy, x;
};

// continue_tile reads the warpgroup's 64 x COLUMNS accumulators from dw, or writes them.
template <int COLUMNS, bool WRITE>
__device__ inline void continue_tile(float* d, float* dw, int row, int col, int n, int k) {
  int lane = warp_lane();
  row += threadIdx.x / kWarp % 4 * 16 + lane / 4;
  col += lane % 4 * 2;
  bool even = k % 2 == 0;
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = row + h * 8, c = col + j * 8;
      float *p = dw + (long long)r * k + c, *v = d + j * 4 + h * 2;
      if (even) {
        if (r < n && c < k) {
          if (WRITE) *(float2*)p = make_float2(v[0], v[1]);
          else v[0] = ((const float2*)p)->x, v[1] = ((const float2*)p)->y;
        } else if (!WRITE) {
          v[0] = v[1] = 0.f;
        }
      } else {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          bool in = r < n && c + e < k;
          if (WRITE && in) p[e] = v[e];
          if (!WRITE) v[e] = in ? p[e] : 0.f;
        }
      }
    }
}

// clear zeroes k [from, to) of the current slot, for the multiplying threads together.
template <int A, int B, class R>
__device__ inline void clear(R& ring, int from, int to) {
  constexpr int kChunks = (A + B) / 64 * 8;  // of 16 bytes in a k
  for (int c = threadIdx.x; c < (to - from) * kChunks; c += A / 64 * kGroup) {
    int box = c / 8 % (kChunks / 8), k = from + c / kChunks;
    *(uint4*)(ring.a() + box * kBox + k * 64 + c % 8 * 8) = make_uint4(0, 0, 0, 0);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, %0;" ::"n"(A / 64 * kGroup) : "memory");
}

// weight_grad: tiles of A rows (n) and B columns (k) of dw.
template <int A, int B, int STAGES, int BLOCKS>
__device__ inline void weight_grad(const Pair& maps, float* dw, const int* offsets, int groups, int packs, int n, int k) {
  __shared__ u64 bars[2 * STAGES];
  Ring<A, B, STAGES> ring(bars);
  __syncthreads();
  int down = (n + A - 1) / A, across = (k + B - 1) / B, tiles = down * across;
  if (threadIdx.x >= A * 2) {
    if (BLOCKS == 1) fewer_registers<40>();
    if (threadIdx.x < A * 2 + kWarp)
      for (int i = blockIdx.x; i < groups * tiles; i += gridDim.x) {
        int g = i / tiles, row, col, ahead = i + gridDim.x;
        if (ahead < groups * tiles && k % 4 == 0) {  // the accumulators of the next tile
          piece(ahead % tiles, down, across, row, col);
          const float* p = dw + ((long long)(ahead / tiles) * n + row * A) * k + col * B;
          for (int r = warp_lane(); r < min(A, n - row * A); r += kWarp) prefetch_l2(p + (long long)r * k, min(B, k - col * B) * 4);
        }
        piece(i % tiles, down, across, row, col);
        if (warp_lane() == 0)
          for (int p = g * packs; p < (g + 1) * packs; p++)
            for (int from = offsets[p], to = offsets[p + 1]; from < to; from += kDepth, ring.next()) {
              ring.free((A + B) * kDepth * 2);
              u64* full = ring.full + ring.slot;
              for (int c = 0; c < A; c += 64) copy_box(ring.a() + c * kDepth, &maps.dy, row * A + c, from, 0, full);
              for (int c = 0; c < B; c += 64) copy_box(ring.b() + c * kDepth, &maps.x, col * B + c, from, 0, full);
            }
        __syncwarp();
      }
  } else {
    if (BLOCKS == 1) more_registers<232>();
    int warpgroup = threadIdx.x / kGroup;
    for (int i = blockIdx.x; i < groups * tiles; i += gridDim.x) {
      int g = i / tiles, row, col;
      if (offsets[g * packs] == offsets[(g + 1) * packs]) continue;
      piece(i % tiles, down, across, row, col);
      float d[B / 2];
      float* to = dw + (long long)g * n * k;
      continue_tile<B, false>(d, to, row * A + warpgroup * 64, col * B, n, k);
      int p = g * packs, left = offsets[p + 1] - offsets[p], turns = 0;
      for (int q = p; q < (g + 1) * packs; q++) turns += (offsets[q + 1] - offsets[q] + kDepth - 1) / kDepth;
      chain<B, 1, 1>(d, ring, warpgroup, turns, [&](int) {
        while (left <= 0) p++, left = offsets[p + 1] - offsets[p];
        if (left < kDepth) clear<A, B>(ring, left, kDepth);
        left -= kDepth;
      });
      continue_tile<B, true>(d, to, row * A + warpgroup * 64, col * B, n, k);
    }
  }
}

#define WEIGHT_GRAD(name, A, B, STAGES, BLOCKS)                                                                                                                      \
  extern "C" __global__ void __launch_bounds__(threads(A, BLOCKS), BLOCKS)                                                                                       \
      name(const __grid_constant__ Pair maps, float* dw, const int* offsets, int groups, int packs, int n, int k) {                                            \
    weight_grad<A, B, STAGES, BLOCKS>(maps, dw, offsets, groups, packs, n, k);                                                                                         \
  }
WEIGHT_GRAD(weight_grad_wide, 128, 256, 4, 1)
WEIGHT_GRAD(weight_grad_square, 128, 128, 3, 2)  // one block multiplies while the other reads and writes dw
WEIGHT_GRAD(weight_grad_few, 64, 64, 6, 2)

#endif
