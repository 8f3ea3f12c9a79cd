// Products by wgmma: the ring between the threads that copy and the warpgroups that multiply, the chain of products
// over it, and the order of tiles.
#pragma once
#include "wgmma.cuh"

constexpr int kDepth = 64;   // k of a stage, where a ring does not say another
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kBand = 8;     // tiles side by side that share operands in L2

extern __shared__ __align__(1024) u16 dynamic[];

// threads of a block: a warpgroup for each 64 that it multiplies, and warps that copy, which are a warpgroup where they
// give registers to the others.
constexpr int threads(int multiplied, int blocks, int copying) {
  return multiplied * 2 + (blocks == 1 ? kGroup : copying * kWarp);
}

// Slots are the stages between the threads that copy, `writers` of them for each stage, and READERS multiplying warps:
// A_BYTES of the operand a, then B_BYTES of b.
template <int A_BYTES, int B_BYTES, int STAGES, int READERS>
struct Slots {
  static constexpr int kSlot = A_BYTES + B_BYTES;
  static constexpr int kWorks = STAGES + 1;  // tiles that lie in slots, and one that waits for a slot
  u16* base = dynamic;
  u64 *full, *empty;
  int slot = 0, phase = 0;
  __device__ Slots(u64* bars, int writers) : full(bars), empty(bars + STAGES) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < STAGES; i++) {
        barrier_init(full + i, writers);
        barrier_init(empty + i, READERS);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
  }
  __device__ u16* a() { return base + slot * (kSlot / 2); }
  __device__ u16* b() { return a() + A_BYTES / 2; }
  __device__ void next() {
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
  // free waits until the slot may be overwritten and announces `bytes` that arrive at the barrier it returns.
  __device__ u64* free(int bytes) {
    wait_free();
    barrier_expect(full + slot, bytes);
    return full + slot;
  }
  __device__ void filled() { barrier_wait(full + slot, phase); }
  // wait_free and arrive are free and the arrival of a warp that writes to the slot by itself.
  __device__ void wait_free() { barrier_wait(empty + slot, phase ^ 1); }
  __device__ void arrive() {
    if (warp_lane() == 0) barrier_arrive(full + slot);
  }
  // release_last gives back the slot before the current one.
  __device__ void release_last() {
    if (warp_lane() == 0) barrier_arrive(empty + (slot == 0 ? STAGES - 1 : slot - 1));
  }
};

// Ring is slots of A boxes, then B boxes, of DEPTH k.
template <int A, int B, int STAGES, int DEPTH = kDepth>
struct Ring : Slots<A * DEPTH * 2, B * DEPTH * 2, STAGES, A / 64 * 4> {
  static constexpr int kStage = (A + B) * DEPTH, kBox = 64 * DEPTH;  // elements
  static constexpr int kSteps = DEPTH / 16;
  __device__ Ring(u64* bars, int writers) : Slots<A * DEPTH * 2, B * DEPTH * 2, STAGES, A / 64 * 4>(bars, writers) {}
};

// multiply starts the products of the current slot: steps of 16 k into COLUMNS columns. Steps of zeros change no bit.
template <int COLUMNS, int TA, int TB, class R>
__device__ inline void multiply(float* d, R& ring, int warpgroup) {
  constexpr int kA = (TA ? 16 * 64 : 16) * 2 >> 4, kB = (TB ? 16 * 64 : 16) * 2 >> 4;  // of descriptors, for each step
  u32 a = operand<R::kBox * 2>(ring.a() + warpgroup * R::kBox), b = operand<R::kBox * 2>(ring.b());
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < R::kSteps; s++) wgmma<COLUMNS, TA, TB>(d, a + s * kA, b + s * kB);
  wgmma_commit();
}

// held keeps the compiler from moving what touches the accumulators across this point.
template <int COLUMNS>
__device__ inline void held(float* d) {
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// chain multiplies `k_steps` slots; prepare is called with the index of each k-step before it.
template <int COLUMNS, int TA, int TB, class R, class F>
__device__ inline void chain(float* d, R& ring, int warpgroup, int k_steps, F prepare) {
  held<COLUMNS>(d);
  ring.filled();
  prepare(0);
  multiply<COLUMNS, TA, TB>(d, ring, warpgroup);
  ring.next();
  for (int i = 1; i < k_steps; i++) {
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
