// IndexTarget of absorbed latent attention (kernels/indexloss.go): target_e += Exp2(min(dot_h*c - lse_h, 0)) over heads
// ascending. A block takes a query and up to 64 heads, whose weights of 32 entries lie in shared memory until a warp
// adds them up; later heads are a later launch, which goes on from the stored sum.
// Bound: 2*D flops a pair and head; by mma.sync shared memory, 2 fragments for 2 products at half of its 128 bytes a
// clock: 4,600 clocks for 32 entries of 64 heads.
#include "absorbed.cuh"

extern __shared__ __align__(16) u16 shared[];

constexpr int kPart = 32;  // entries of a step

template <int D>
__device__ inline void absorbed_target(const Lists& lists, float* target, const float* lse, const u16* q, const u16* k,
                                       int head, int heads, int ts, int lses, int qs, int ks, float c) {
  using T = Lines<D>;
  constexpr int kTile = kPart * T::kStride, kWide = kPart + 4;
  u16 *sq = shared, *sk = sq + kHeads * T::kStride;
  float* weights = (float*)(sk + 2 * kTile);   // [64][36]
  int* rows = (int*)(weights + kHeads * kWide);  // [2][32] of the blocks
  Asked query = lists.query(blockIdx.x);
  int blocks = (query.entries + kPart - 1) / kPart;
  float* to = target + (size_t)query.row * ts;
  auto look = [&](int b) {
    if (threadIdx.x < kPart && b < blocks) rows[b % 2 * kPart + threadIdx.x] = query.key(b * kPart + threadIdx.x);
  };
  auto fetch = [&](int b) {
    if (b < blocks)
      T::template load<kPart, kThreads>(sk + b % 2 * kTile, k, [&](int r) {
        return rows[b % 2 * kPart + r] < 0 ? -1ll : (long long)rows[b % 2 * kPart + r] * ks;
      });
    commit();
  };
  T::template load<kHeads, kThreads>(
      sq, q, [&](int r) { return r < heads ? (long long)query.row * qs + (head + r) * D : -1ll; });
  look(0), look(1);
  __syncthreads();
  fetch(0);
  int warp = threadIdx.x / kWarp, lane = warp_lane(), first = warp / 2 * 16, half = warp % 2 * 16;
  float own[2];
#pragma unroll
  for (int h = 0; h < 2; h++)
    own[h] = first + lane / 4 + 8 * h < heads ? lse[(size_t)query.row * lses + head + first + lane / 4 + 8 * h] : 0.f;
  for (int b = 0; b < blocks; b++) {
    wait<0>();
    __syncthreads();
    fetch(b + 1);
    look(b + 2);
    if (first < heads) {
      float s[2][4];
      dots<D>(s, sq, first, sk + b % 2 * kTile, [&](int i) { return half + i; });
#pragma unroll
      for (int i = 0; i < 8; i++)
        weights[(first + lane / 4 + i / 2 % 2 * 8) * kWide + half + i / 4 * 8 + lane % 4 * 2 + i % 2] =
            exp2_sub(s[i / 4][i % 4] * c, 1.f, own[i / 2 % 2]);
    }
    __syncthreads();
    int e = b * kPart + lane;
    if (warp != b % 8 || e >= query.entries) continue;  // each warp takes every 8th block
    float sum = to[e];
#pragma unroll 8
    for (int h = 0; h < heads; h++) sum = sum + weights[h * kWide + lane];
    to[e] = sum;
  }
}

#define ABSORBED(D)                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256, 1)                                                              \
      absorbed_target_##D(const Lists lists, float* target, const float* lse, const u16* q, const u16* k, int head, \
                          int heads, int ts, int lses, int qs, int ks, float c) {                                   \
    absorbed_target<D>(lists, target, lse, q, k, head, heads, ts, lses, qs, ks, c);                                 \
  }
ABSORBED(40)
ABSORBED(72)
ABSORBED(576)
