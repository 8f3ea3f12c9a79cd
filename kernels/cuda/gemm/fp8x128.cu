// MatMul of codes of both sides (kernels.Term.XQ): E4M3 by wgmma, promoted with scales every 128 k; further terms of
// bf16 continue the sums.
//   Many rows: a warpgroup has 64 rows of X, or twice 64, as the operand a, and 128 columns of out as b. A sum takes
//   one fma for each block, and where the tile's columns have one scale, a thread has two factors for 64 sums.
//   Few rows: a warpgroup has 64 columns of out as a, and up to 64 rows as b.
//   A stage has 128 bytes of each row: 128 codes, or 64 numbers of another term. Its scales come by cp.async, which
//   takes any address.
// Bound: inside a multiprocessor 1,268 TFLOP/s with 128 columns, 1,669 without promotion (an H200); a whole product
// without promotion 1,070, so power and shared memory hold as well. Copies of 32 KB for 128 x 128 x 128, 48 KB for 256
// rows. For few rows the bytes of the codes.
#include "quantized.cuh"
#include "rows.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kCodesDepth = 128, kNumbersDepth = 64, kLine = 128;  // of a stage, and bytes of its rows
constexpr int kCodesColumns = 128;                                 // of out in a tile

// BlockScales are those of X, [blocks][rows], and of the weight, [groups][blocks][columns].
struct BlockScales {
  const float *x, *w;
  int rows, columns;
};

// CodesRing is slots of the operand with the most rows, A, then of the other one, then scales of X's ROWS and of the
// columns.
template <int A, int B, int ROWS, int STAGES>
struct CodesRing : Slots<A * kLine, B * kLine + ((A + B) * 4 + 1023) / 1024 * 1024, STAGES, 8> {
  using Base = Slots<A * kLine, B * kLine + ((A + B) * 4 + 1023) / 1024 * 1024, STAGES, 8>;
  static constexpr int kRows = ROWS;
  __device__ CodesRing(u64* bars) : Base(bars, 2 + kWarp) {}
  __device__ float* scales() { return (float*)(this->b() + B * kLine / 2); }
};

// each_stage calls f for every stage of a block's tiles with the tile, the term and the first k.
template <class F>
__device__ inline void each_stage(const Terms& terms, const Tiles<kCodesColumns>& tiles, F f) {
  for (int i = blockIdx.x; i < tiles.count; i += gridDim.x) {
    Work w = tiles.work(i);
    for (int t = 0; t < terms.count; t++)
      if (terms.cover(t, w.col))
        for (int k = 0; k < terms.k[t]; k += t == 0 ? kCodesDepth : kNumbersDepth) f(w, t, k);
  }
}

// copy_operand is the work of an elected thread: rows of weights, or of X.
template <class R>
__device__ inline void copy_operand(R& ring, u16* (*place)(R&), const Terms& terms, const Tiles<kCodesColumns>& tiles,
                                    bool weights) {
  each_stage(terms, tiles, [&](const Work& w, int t, int k) {
    if (weights) {
      u64* full = ring.free(kCodesColumns * kLine);
      copy_box(place(ring), &terms.w[t], k, w.col - terms.from[t], w.group, full);
    } else {
      int rows = (w.rows + terms.box - 1) / terms.box * terms.box;
      u64* full = ring.free(rows * kLine);
      for (int r = 0; r < rows; r += terms.box)
        copy_box(place(ring) + r * (kLine / 2), &terms.x[t], k, w.from + r, 0, full);
    }
    ring.next();
  });
}

// copy_scales is the work of a warp. Those beyond the tile's rows and the columns of out are zeros. Addresses are known
// before a tile's first block, then they are only added to: an H200 made 953 TFLOP/s of 8192^3 so, and 905 where each
// copy reckoned its own, with registers shared out otherwise.
template <class R>
__device__ inline void copy_scales(R& ring, const Terms& terms, const Tiles<kCodesColumns>& tiles,
                                   const BlockScales& scales, int n) {
  int blocks = (terms.k[0] + kCodesDepth - 1) / kCodesDepth, lane = warp_lane();
  for (int i = blockIdx.x; i < tiles.count; i += gridDim.x) {
    Work w = tiles.work(i);
    const float *x = scales.x + w.from + lane,
                *columns = scales.w + (long long)w.group * blocks * scales.columns + w.col + lane;
    int rows = w.rows - lane, across = n - w.col - lane;
    for (int b = 0; b < blocks; b++, x += scales.rows, columns += scales.columns) {
      barrier_wait(ring.empty + ring.slot, ring.phase ^ 1);
      float* to = ring.scales() + lane;
#pragma unroll
      for (int j = 0; j < R::kRows; j += kWarp) copy4(to + j, x + j, j < rows ? 4 : 0);
#pragma unroll
      for (int j = 0; j < kCodesColumns; j += kWarp) copy4(to + R::kRows + j, columns + j, j < across ? 4 : 0);
      barrier_arrive_copied(ring.full + ring.slot);
      ring.next();
    }
    for (int t = 1; t < terms.count; t++)
      if (terms.cover(t, w.col))
        for (int k = 0; k < terms.k[t]; k += kNumbersDepth) {
          barrier_wait(ring.empty + ring.slot, ring.phase ^ 1);
          barrier_arrive_copied(ring.full + ring.slot);
          ring.next();
        }
  }
}

// chain_of_block is the chain of a block of 128 k, from +0. `half` is called before its second half.
template <int COLUMNS, class F>
__device__ inline void chain_of_block(float* p, u32 a, u32 b, F half) {
  held<COLUMNS>(p);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kCodesDepth / 32; s++) {
    if (s == kCodesDepth / 64) half();
    wgmma_codes<COLUMNS>(p, a + s * 2, b + s * 2, s);
  }
  wgmma_commit();
}

// continued adds 64 k of another term to sums.
template <int COLUMNS>
__device__ inline void continued(float* d, u32 a, u32 b) {
  held<COLUMNS>(d);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kNumbersDepth / 16; s++) wgmma<COLUMNS, 0, 0>(d, a + s * 2, b + s * 2);
  wgmma_commit();
  wgmma_wait<0>();
  held<COLUMNS>(d);
}

// arrive is a warp's arrival, when all its threads have come here.
__device__ inline void arrive(u64* bar) {
  __syncwarp();
  if (warp_lane() == 0) barrier_arrive(bar);
}
template <class R>
__device__ inline void release(R& ring) {
  arrive(ring.empty + ring.slot);
  ring.next();
}

// Factors of a block of k: of a thread's two rows of each wave, times the scale of the columns where they have one.
template <int WAVES>
struct Factors {
  float low[WAVES], high[WAVES];
  bool one;
};

// Many is the sums of a warpgroup for tiles of 128 * WAVES rows: WAVES times 64 of them.
template <int WAVES, int STAGES>
struct Many {
  static constexpr int kRows = 128 * WAVES, kSums = kCodesColumns / 2;
  static constexpr int kFewer = 40, kMore = 232;  // registers of a thread that copies, and of one that multiplies
  using Ring = CodesRing<kRows, kCodesColumns, kRows, STAGES>;
  static __device__ u16* weights(Ring& r) { return r.b(); }
  static __device__ u16* rows(Ring& r) { return r.a(); }
  float sum[WAVES][kSums];

  __device__ void clear() {
#pragma unroll
    for (int v = 0; v < WAVES; v++)
#pragma unroll
      for (int i = 0; i < kSums; i++) sum[v][i] = 0.f;
  }
  static __device__ int first(int warpgroup, int v) { return (warpgroup * WAVES + v) * 64; }
  static __device__ u32 rows_of(Ring& ring, int warpgroup, int v) {
    return operand<64 * kLine>(ring.a() + first(warpgroup, v) * (kLine / 2));
  }

  static __device__ Factors<WAVES> factors(Ring& ring, int warpgroup) {
    const float *xs = ring.scales() + threadIdx.x / kWarp % 4 * 16 + warp_lane() / 4, *ws = ring.scales() + kRows;
    float4 own = *(const float4*)(ws + warp_lane() * 4);
    float w = ws[0];
    Factors<WAVES> f;
    f.one = __all_sync(~0u, own.x == w && own.y == w && own.z == w && own.w == w);
#pragma unroll
    for (int v = 0; v < WAVES; v++) {
      f.low[v] = xs[first(warpgroup, v)], f.high[v] = xs[first(warpgroup, v) + 8];
      if (f.one) f.low[v] *= w, f.high[v] *= w;
    }
    return f;
  }

  // promote adds the results of a chain, whose columns have the scales ws unless f has them.
  __device__ void promote(int v, const float* p, const Factors<WAVES>& f, const float* ws) {
    float low = f.low[v], high = f.high[v];
    if (f.one) {
#pragma unroll
      for (int i = 0; i < kSums; i++) sum[v][i] = fmaf(p[i], i % 4 < 2 ? low : high, sum[v][i]);
      return;
    }
#pragma unroll
    for (int j = 0; j < kSums / 4; j++) {
      float2 c = *(const float2*)(ws + j * 8 + warp_lane() % 4 * 2);
      sum[v][4 * j] = fmaf(p[4 * j], low * c.x, sum[v][4 * j]);
      sum[v][4 * j + 1] = fmaf(p[4 * j + 1], low * c.y, sum[v][4 * j + 1]);
      sum[v][4 * j + 2] = fmaf(p[4 * j + 2], high * c.x, sum[v][4 * j + 2]);
      sum[v][4 * j + 3] = fmaf(p[4 * j + 3], high * c.y, sum[v][4 * j + 3]);
    }
  }

  __device__ void numbers(Ring& ring, int warpgroup, int rows) {
#pragma unroll
    for (int v = 0; v < WAVES; v++)
      if (first(warpgroup, v) < rows)
        continued<kCodesColumns>(sum[v], rows_of(ring, warpgroup, v), operand<64 * kLine>(ring.b()));
    release(ring);
  }

  __device__ void store(float* out, long long ldo, int warpgroup, const Work& w, int n, bool) {
    int lane = warp_lane(), warp = threadIdx.x / kWarp % 4;
#pragma unroll
    for (int v = 0; v < WAVES; v++)
#pragma unroll
      for (int i = 0; i < kSums; i++) {
        int row = first(warpgroup, v) + warp * 16 + lane / 4 + i % 4 / 2 * 8,
            c = w.col + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < w.rows && c < n) out[(w.from + row) * ldo + c] = sum[v][i];
      }
  }

  // For bf16 there is a short way where a warpgroup has all rows and columns, and a warp no NaN.
  __device__ void store(u16* out, long long ldo, int warpgroup, const Work& w, int n, bool wide) {
    bool slow = !wide || w.col + kCodesColumns > n || first(warpgroup, WAVES) > w.rows;
#pragma unroll
    for (int v = 0; v < WAVES; v++)
#pragma unroll
      for (int i = 0; i < kSums; i++) slow |= sum[v][i] != sum[v][i];
    if (__any_sync(~0u, slow)) store_quads<false>(out, ldo, warpgroup, w, n, wide);
    else store_quads<true>(out, ldo, warpgroup, w, n, wide);
  }

  // store_quads: a quad, whose sums lie along rows of out, exchanges them until each thread has 8 columns.
  template <bool SHORT>
  __device__ void store_quads(u16* out, long long ldo, int warpgroup, const Work& w, int n, bool wide) {
    int lane = warp_lane(), warp = threadIdx.x / kWarp % 4;
#pragma unroll
    for (int v = 0; v < WAVES; v++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < kSums / 4; j += 4) {
          u32 of[4];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            float even = sum[v][(j + i) * 4 + h * 2], odd = sum[v][(j + i) * 4 + h * 2 + 1];
            of[i] = SHORT ? convert2(even, odd) : pair(even, odd);
          }
          exchange_quad(of);
          int row = first(warpgroup, v) + warp * 16 + lane / 4 + h * 8, c = w.col + (j + lane % 4) * 8;
          u16* to = out + (w.from + row) * ldo + c;
          if (SHORT) *(uint4*)to = make_uint4(of[0], of[1], of[2], of[3]);
          else if (row < w.rows && c < n) store_eight(to, of, c, n, wide);
        }
  }
};

// Square is Many whose warpgroups multiply and promote at the same time.
template <int STAGES>
struct Square : Many<1, STAGES> {
  using Base = Many<1, STAGES>;
  using Ring = typename Base::Ring;

  __device__ void blocks(Ring& ring, u64*, int warpgroup, int rows, int count) {
    for (int i = 0; i < count; i++) {
      ring.filled();
      if (Base::first(warpgroup, 0) < rows) {
        float p[Base::kSums];
        chain_of_block<kCodesColumns>(p, Base::rows_of(ring, warpgroup, 0), operand<64 * kLine>(ring.b()), [] {});
        Factors<1> f = Base::factors(ring, warpgroup);
        wgmma_wait<0>();
        held<kCodesColumns>(p);
        this->promote(0, p, f, ring.scales() + Base::kRows);
      }
      release(ring);
    }
  }
};

// Wide is Many whose warpgroups issue chains one after the other (CUTLASS: an ordered sequence barrier), so that one
// promotes while the tensor cores have the other's chain; the next begins from its middle on. The next
// block's factors are read while a chain runs, and a slot whose columns have one scale is given back before its last
// chain is promoted. An H200, TFLOP/s of 8192^3: 953 without this order and the short way to store, 923 with the order
// alone, 976 with both.
template <int STAGES>
struct Wide : Many<2, STAGES> {
  using Base = Many<2, STAGES>;
  using Ring = typename Base::Ring;
  int phase = 0;  // of the barriers of the order

  __device__ void wait_order(u64* order, int warpgroup) {
    barrier_wait(order + warpgroup, phase ^ (warpgroup ^ 1));
    phase ^= 1;
  }

  // blocks_of is the work of a warpgroup with rows in ACTIVE of its waves.
  template <int ACTIVE>
  __device__ void blocks_of(Ring& ring, u64* order, int warpgroup, int count) {
    auto pass_on = [&] { arrive(order + (warpgroup ^ 1)); };
    ring.filled();
    Factors<2> f = Base::factors(ring, warpgroup);
    float p[Base::kSums];
    for (int i = 0; i < count; i++) {
      u64* empty = ring.empty + ring.slot;
      const float* ws = ring.scales() + Base::kRows;
      u32 a = Base::rows_of(ring, warpgroup, 0), b = operand<64 * kLine>(ring.b());
      ring.next();
      Factors<2> next = f;
#pragma unroll
      for (int v = 0; v < 2; v++) {
        wait_order(order, warpgroup);
        if (v < ACTIVE) chain_of_block<kCodesColumns>(p, a + v * (64 * kLine / 16), b, pass_on);
        else pass_on();
        if (v == 1 && i + 1 < count) {
          ring.filled();
          next = Base::factors(ring, warpgroup);
        }
        if (v < ACTIVE) {
          wgmma_wait<0>();
          held<kCodesColumns>(p);
        }
        if (v == 1 && f.one) arrive(empty);
        if (v < ACTIVE) this->promote(v, p, f, ws);
        if (v == 1 && !f.one) arrive(empty);
      }
      f = next;
    }
  }

  __device__ void blocks(Ring& ring, u64* order, int warpgroup, int rows, int count) {
    int active = uniform((rows - Base::first(warpgroup, 0) + 63) / 64);
    if (active >= 2) blocks_of<2>(ring, order, warpgroup, count);
    else if (active == 1) blocks_of<1>(ring, order, warpgroup, count);
    else blocks_of<0>(ring, order, warpgroup, count);
  }
};

// Few is the work of a warpgroup for tiles of up to 64 rows: 64 columns of out.
template <int STAGES>
struct Few {
  static constexpr int kRows = 64, kFewer = 88, kMore = 208;
  using Ring = CodesRing<kCodesColumns, kRows, kRows, STAGES>;
  static __device__ u16* weights(Ring& r) { return r.a(); }
  static __device__ u16* rows(Ring& r) { return r.b(); }
  float sum[kRows / 2];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kRows / 2; i++) sum[i] = 0.f;
  }
  static __device__ u32 columns(Ring& ring, int warpgroup) {
    return operand<64 * kLine>(ring.a() + warpgroup * 64 * (kLine / 2));
  }

  __device__ void block(Ring& ring, int warpgroup, int rows) {
    const float *xs = ring.scales() + warp_lane() % 4 * 2,
                *ws = ring.scales() + kRows + warpgroup * 64 + threadIdx.x / kWarp % 4 * 16 + warp_lane() / 4;
    float low = ws[0], high = ws[8];
    with_width<kRows>(uniform(width<kRows>(rows)), [&](auto of) {
      constexpr int kWide = decltype(of)::columns;
      float p[kWide / 2];
      chain_of_block<kWide>(p, columns(ring, warpgroup), operand<64 * kLine>(ring.b()), [] {});
      wgmma_wait<0>();
      held<kWide>(p);
#pragma unroll
      for (int j = 0; j < kWide / 8; j++) {
        float2 x = *(const float2*)(xs + j * 8);
        sum[4 * j] = fmaf(p[4 * j], x.x * low, sum[4 * j]);
        sum[4 * j + 1] = fmaf(p[4 * j + 1], x.y * low, sum[4 * j + 1]);
        sum[4 * j + 2] = fmaf(p[4 * j + 2], x.x * high, sum[4 * j + 2]);
        sum[4 * j + 3] = fmaf(p[4 * j + 3], x.y * high, sum[4 * j + 3]);
      }
    });
    release(ring);
  }

  __device__ void blocks(Ring& ring, u64*, int warpgroup, int rows, int count) {
    for (int i = 0; i < count; i++) {
      ring.filled();
      block(ring, warpgroup, rows);
    }
  }

  __device__ void numbers(Ring& ring, int warpgroup, int) {
    continued<kRows>(sum, columns(ring, warpgroup), operand<64 * kLine>(ring.b()));  // also rows that are not stored
    release(ring);
  }

  template <class T>
  __device__ void store(T* out, long long ldo, int warpgroup, const Work& w, int n, bool wide) {
    store_tile<kRows>(sum, out + w.from * ldo, ldo, w.rows, w.col + warpgroup * 64, n, wide);
  }
};

// product_fp8x128: columns [terms.begin, n) of out.
template <class W, class T>
__device__ inline void product_fp8x128(const Terms& terms, const BlockScales& scales, T* out, long long ldo,
                                       const int* offsets, int groups, int segments, int m, int n, int stages) {
  using R = typename W::Ring;
  __shared__ u64 bars[2 * 8], order[2];
  R ring(bars);
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; i++) barrier_init(order + i, kGroup / kWarp);
  int* after = (int*)(dynamic + stages * R::kSlot / 2);
  Table table = {after, after + groups + 1};
  fill(table, offsets, groups, segments, m, terms.height);
  __syncthreads();
  Tiles<kCodesColumns> tiles(table, groups, terms, n, m);
  int copying = uniform(threadIdx.x / kWarp) - 8;  // of the warps behind those that multiply
  if (copying >= 0) {
    fewer_registers<W::kFewer>();
    if (copying == 0 && elected()) copy_operand(ring, &W::weights, terms, tiles, true);
    if (copying == 1 && elected()) copy_operand(ring, &W::rows, terms, tiles, false);
    if (copying == 2) copy_scales(ring, terms, tiles, scales, n);
    return;
  }
  more_registers<W::kMore>();
  int warpgroup = uniform(threadIdx.x / kGroup), count = uniform(tiles.count);
  bool wide = ((u64)(out + tiles.begin) | (u64)ldo * sizeof(T)) % 16 == 0;
  W work;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    Work w = tiles.work(i);
    int rows = uniform(w.rows);
    work.clear();
    work.blocks(ring, order, warpgroup, rows, (terms.k[0] + kCodesDepth - 1) / kCodesDepth);
    for (int t = 1; t < terms.count; t++)
      if (uniform(terms.cover(t, w.col)))
        for (int k = 0; k < terms.k[t]; k += kNumbersDepth) {
          ring.filled();
          work.numbers(ring, warpgroup, rows);
        }
    work.store(out, ldo, warpgroup, w, n, wide);
  }
}

#define PRODUCT_FP8(name, T, STAGES, ...)                                                                       \
  extern "C" __global__ void __launch_bounds__(3 * kGroup, 1)                                                   \
      fp8x128_##name(const __grid_constant__ Terms terms, const __grid_constant__ BlockScales scales, T* out,    \
                     long long ldo, const int* offsets, int groups, int segments, int m, int n) {               \
    product_fp8x128<__VA_ARGS__>(terms, scales, out, ldo, offsets, groups, segments, m, n, STAGES);              \
  }
#define PRODUCTS_FP8(name, STAGES, ...)               \
  PRODUCT_FP8(name##_bf16, u16, STAGES, __VA_ARGS__)  \
  PRODUCT_FP8(name##_f32, float, STAGES, __VA_ARGS__)
PRODUCTS_FP8(wide, 4, Wide<4>)
PRODUCTS_FP8(square, 6, Square<6>)
PRODUCTS_FP8(few, 8, Few<8>)

#endif
