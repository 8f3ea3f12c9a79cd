// What the kernels of absorbed latent attention of 576 and 512 columns with Hopper's wgmma share: two warpgroups that compute and one that gathers rows, 64 columns at a time.
#pragma once
#include "absorbed.cuh"
#include "warpgroup.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char shared[];

constexpr int kColumns = 576, kValues = 512, kBoxes = kColumns / 64, kKeyTile = kBoxes * kPanel;
constexpr int kGather = 128;             // threads that gather
constexpr int kMore = 232, kFewer = 40;  // registers of a thread that computes, and of one that gathers: all together no more than 384 of 168

__device__ inline void meet(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }
__device__ inline void meet_both(int barrier) { asm volatile("bar.sync %0, 256;" ::"r"(barrier) : "memory"); }
__device__ inline void publish(int barrier) { asm volatile("bar.arrive %0, 256;" ::"r"(barrier) : "memory"); }
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Gather is how so many threads bring rows of 576 columns to boxes: eight threads a row, 16 bytes each, kRounds rows a thread.
template <int Threads>
struct Gather {
  static constexpr int kStep = Threads / 8, kRounds = kRows / kStep;
  int row = threadIdx.x % Threads / 8, piece = threadIdx.x % 8;

  // box brings columns from 64*box on of rows that begin at from[i], or zeros where that is nil.
  __device__ void box(char* tile, const u16* const (&from)[kRounds], const u16* any, int box) const {
#pragma unroll
    for (int i = 0; i < kRounds; i++)
      copy16(tile + box * kPanel + swizzled(row + i * kStep, piece), from[i] ? from[i] + box * 64 + piece * 8 : any, from[i] ? 16 : 0);
  }
};

#endif
