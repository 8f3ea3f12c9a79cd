// MatMul of one group by a weight in codes, where each multiprocessor has one tile: warps decode what a copy brings
// to an operand in shared memory, for the products in bf16 of matmul_wgmma.cu, which wait for no decoding. A tile has
// 64 columns: a multiprocessor decodes half of what it does of one of 128. Bound: steps of 64 k, as bf16's.
#pragma once
#include "quantized.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Teams of warps have a k-step each: while one waits for its codes and its stores, others decode.
constexpr int kTeams = 3, kTeam = 4, kDecoders = kTeams * kTeam;  // warps

// numbers_of writes the numbers of 32 codes of a line as 4 pieces of 16 bytes, which `at` finds.
template <bool EXACT, class F, class G, class P>
__device__ inline void numbers_of(const u8* codes, int line, int half, typename F::Scale scale, P at) {
  constexpr int kCode = F::kCode, kEach = 32 / F::kBits;  // codes of a word
  Multiplier<kCode, typename F::Scale> m;
  m.same(scale);
#pragma unroll
  for (int i = 0; i < F::kBits / 4; i++) {
    uint4 v = *(const uint4*)G::piece(codes, line, half * F::kBits / 4 + i);
    u32 words[4] = {v.x, v.y, v.z, v.w}, d[2 * kEach];
#pragma unroll
    for (int j = 0; j < 2 * kEach; j++) {  // pairs
      u32 word = words[j * 2 / kEach];
      if constexpr (F::kBits == 4) d[j] = scaled<EXACT>(m, Bits<kCode>::pair(bytes_of(word, 0, 0x4440 | j % 4)));
      else if constexpr (sizeof(scale) == 4) d[j] = rounded((u16)(word >> j % 2 * 16), scale);
      else d[j] = scaled<EXACT>(m, Bits<kCode>::one(bytes_of(word, 0, j % 2 ? 0x3424 : 0x1404)));
    }
#pragma unroll
    for (int j = 0; j < 2 * kEach; j += 4) *at(i * kEach / 2 + j / 4) = make_uint4(d[j], d[j + 1], d[j + 2], d[j + 3]);
  }
}

// decode_step is the work of a thread of a team: half a line of codes to a slot of the other ring.
template <class F, class G>
__device__ inline void decode_step(u16* a, const u8* codes, int thread) {
  using Scale = typename F::Scale;
  int line = thread / 2, half = thread % 2;
  Scale scale = ((const Scale*)(codes + G::kCodes))[(F::kWide == 0 ? 0 : half * G::kLines) + line];
  u32 signs = 0;
  Multiplier<F::kCode, Scale> m;
  m.same(scale), m.beyond(signs);
  auto at = [&](int i) { return (uint4*)(a + line * 64 + ((half * 4 + i) ^ (line & 7)) * 8); };
  if (signs & 0x80008000) numbers_of<true, F, G>(codes, line, half, scale, at);
  else numbers_of<false, F, G>(codes, line, half, scale, at);
}

// each_term calls f with a term and the column of its weight where the tile begins, for all tiles of the block.
template <class T>
__device__ inline void each_term(const Terms& terms, const Tiles<64>& tiles, T f) {
  for (int i = blockIdx.x; i < tiles.count; i += gridDim.x) {
    Work w = tiles.work(i);
    for (int t = 0; t < terms.count; t++)
      if (terms.cover(t, w.col)) f(w, t, w.col - terms.from[t]);
  }
}

// copy_codes is the work of an elected thread: codes and their scales.
template <class F, class G, class C>
__device__ inline void copy_codes(C& coded, const Terms& terms, const Scales& scales, const Tiles<64>& tiles) {
  each_term(terms, tiles, [&](const Work& w, int t, int at) {
    for (int k = 0; t == 0 && k < terms.k[0]; k += 64, coded.next()) {
      u64* full = coded.free(G::kCodes + G::kScales);
      copy_box(coded.a(), &terms.w[0], k * F::kBits / 8, at, w.group, full);
      copy_box(coded.a() + G::kCodes / 2, &scales.map, at, k / scales.wide, w.group, full);
    }
  });
}

// copy_rows is the work of another: rows of X, and of other terms' weights.
template <int ROWS, class R>
__device__ inline void copy_rows(R& ring, const Terms& terms, const Tiles<64>& tiles) {
  each_term(terms, tiles, [&](const Work& w, int t, int at) {
    int rows = (width<ROWS>(w.rows) + terms.box - 1) / terms.box * terms.box;
    for (int k = 0; k < terms.k[t]; k += 64, ring.next()) {
      u64* full = ring.free((rows + (t > 0 ? 64 : 0)) * 128);
      if (t > 0) copy_box(ring.a(), &terms.w[t], k, at, w.group, full);
      for (int r = 0; r < rows; r += terms.box) copy_box(ring.b() + r * 64, &terms.x[t], k, w.from + r, 0, full);
    }
  });
}

// decode_tiles is the work of a warp that decodes: its team's steps. With other terms it only has its part in a slot's
// barrier.
template <class F, class G, class R, class C>
__device__ inline void decode_tiles(R& ring, C& coded, const Terms& terms, const Tiles<64>& tiles, int decoding) {
  int ahead = decoding / kTeam;  // k-steps until the team's next
  each_term(terms, tiles, [&](const Work&, int t, int) {
    for (int k = 0; k < terms.k[t]; k += 64, ring.next()) {
      bool own = ahead-- == 0;
      if (own) {
        ahead = kTeams - 1;
        ring.wait_free();
        if (t == 0) {
          coded.filled();
          decode_step<F, G>(ring.a(), (const u8*)coded.a(), threadIdx.x % (kTeam * kWarp));
          asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        }
        __syncwarp();
        ring.arrive();
      }
      if (t == 0) coded.next();
      if (t == 0 && own) coded.release_last();
    }
  });
}

template <class F, int ROWS, int STAGES>
__device__ inline void product_alone(const Terms& terms, const Scales& scales, u16* out, long long ldo,
                                     const int* offsets, int groups, int segments, int m, int n) {
  using G = Stage<F, 0, 64, ROWS, 64>;
  using R = Ring<64, ROWS, STAGES>;
  using C = Slots<(G::kCodes + G::kScales + 1023) / 1024 * 1024, 0, STAGES, kTeam>;
  __shared__ u64 bars[2 * STAGES], coded_bars[2 * STAGES];
  R ring(bars, 1 + kTeam);
  C coded(coded_bars, 1);
  coded.base += STAGES * R::kSlot / 2;
  prefetch_maps(terms, &scales.map);
  int* after = (int*)(coded.base + STAGES * C::kSlot / 2);
  Table table = {after, after + groups + 1};
  fill(table, offsets, groups, segments, m, terms.height);
  __syncthreads();
  Tiles<64> tiles(table, groups, terms, n, m);
  int decoding = uniform(threadIdx.x / kWarp) - kGroup / kWarp;  // of the warps behind those that multiply
  if (decoding < 0) {
    multiply_tiles<64, ROWS, 0>(ring, terms, tiles, out, ldo, n);
  } else if (decoding < kDecoders) {
    decode_tiles<F, G>(ring, coded, terms, tiles, decoding);
  } else if (elected()) {
    if (decoding == kDecoders) copy_codes<F, G>(coded, terms, scales, tiles);
    else copy_rows<ROWS>(ring, terms, tiles);
  }
}

#define PRODUCT_ALONE(name, FORMAT)                                                                              \
  extern "C" __global__ void __launch_bounds__(kGroup + (kDecoders + 2) * kWarp, 1)                              \
      nt_##name##_alone(const __grid_constant__ Terms terms, const __grid_constant__ Scales scales, u16* out,    \
                        long long ldo, const int* offsets, int groups, int segments, int m, int n) {             \
    product_alone<FORMAT, 128, 7>(terms, scales, out, ldo, offsets, groups, segments, m, n);                     \
  }

#endif
