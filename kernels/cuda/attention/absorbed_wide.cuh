// What the kernels of absorbed latent attention of 576 and 512 columns with Hopper's wgmma share: two warpgroups that
// compute and one that gathers rows, 64 columns at a time.
#pragma once
#include "absorbed.cuh"
#include "warpgroup.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char shared[];

constexpr int kColumns = 576, kValues = 512, kBoxes = kColumns / 64, kKeyTile = kBoxes * kPanel;
constexpr int kGather = 128;  // threads that gather

__device__ inline void meet(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }
__device__ inline void meet_both(int barrier) { asm volatile("bar.sync %0, 256;" ::"r"(barrier) : "memory"); }
__device__ inline void publish(int barrier) { asm volatile("bar.arrive %0, 256;" ::"r"(barrier) : "memory"); }
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Gather is how so many threads bring `Rows` rows of keys or queries to boxes of 64 columns: eight threads a row, 16
// bytes each, kRounds rows a thread.
template <int Threads, int Rows = kRows>
struct Gather {
  static constexpr int kStep = Threads / 8, kRounds = Rows / kStep;
  int row = threadIdx.x % Threads / 8, piece = threadIdx.x % 8, lane = warp_lane();

  // entry is the row that a lane looks up for its warp: lane 4*i + j has row j of the warp's in round i.
  __device__ int entry() const { return row - lane / 8 + lane % 4 + lane / 4 % kRounds * kStep; }
  // rows tells where the thread's rows of k begin, of those that the lanes have found.
  __device__ void rows(const u16* (&from)[kRounds], int found, const u16* k, int ks) const {
#pragma unroll
    for (int i = 0; i < kRounds; i++) {
      int row = __shfl_sync(~0u, found, 4 * i + lane / 8);
      from[i] = row < 0 ? nullptr : k + (long long)row * ks;
    }
  }
  // box brings 64 columns from `column` on of rows that begin at from[i], or zeros where that is nil.
  __device__ void box(char* to, const u16* const (&from)[kRounds], const u16* any, int column) const {
#pragma unroll
    for (int i = 0; i < kRounds; i++)
      copy16(to + swizzled(row + i * kStep, piece), from[i] ? from[i] + column + piece * 8 : any, from[i] ? 16 : 0);
  }
};

// bring_heads starts to bring a query's rows of its heads, 64*Boxes columns each; those from `count` on are zeros.
template <int Boxes, int Threads>
__device__ inline void bring_heads(char* to, const u16* from, int count) {
  Gather<Threads> g;
  const u16* rows[g.kRounds];
#pragma unroll
  for (int i = 0; i < g.kRounds; i++) {
    int row = g.row + i * g.kStep;
    rows[i] = row < count ? from + row * Boxes * 64 : nullptr;
  }
#pragma unroll
  for (int box = 0; box < Boxes; box++) g.box(to + box * kPanel, rows, from, 64 * box);
}

#endif
