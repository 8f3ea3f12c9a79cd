// Keys and values on their way to a block: one warp copies key blocks by TMA into a ring of slots, the others wait for
// a slot to be full and give it back.
#pragma once
#include "warpgroup.cuh"

struct Maps {
  TensorMap k, v;
};

// Held is a slot that a reader or the writer has come to.
struct Held {
  int slot, phase;
};

// RingPlace is a place among the slots of a ring, which lie in `base`.
struct RingPlace {
  char* base;
  u64 *full, *empty;
  int count, slot, phase;

  // prepare sets up the barriers, by the whole block: so many arrivals of readers give a slot back, so many of writers
  // fill it, besides the bytes.
  __device__ void prepare(int readers, int writers = 1) const {
    if (threadIdx.x < count) {
      barrier_init(full + threadIdx.x, writers);
      barrier_init(empty + threadIdx.x, readers);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
  }
  __device__ Held take() {
    Held h = {slot, phase};
    if (++slot == count) slot = 0, phase ^= 1;
    return h;
  }
  __device__ void wait(const Held& h) const { barrier_wait(full + h.slot, h.phase); }
  // A reader gives a slot back: a warp by its first lane, when its wgmma is done or its lanes have met after their
  // reads; or each thread for what it has read itself.
  __device__ void release(const Held& h) const {
    if (warp_lane() == 0) barrier_arrive(empty + h.slot);
  }
  __device__ void release_own(const Held& h) const { barrier_arrive(empty + h.slot); }
  __device__ void wait_empty(const Held& h) const { barrier_wait(empty + h.slot, h.phase ^ 1); }
};

// Ring is slots of Tiles tiles each: 64 rows of keys of D columns or of values of V in panels of 64 columns, 128-byte
// swizzled (columns behind those are the next head's).
template <int D, int Tiles, int V = D>
struct Ring : RingPlace {
  static constexpr int kPanels = (D + 63) / 64, kValuePanels = (V + 63) / 64, kTile = kPanels * kPanel,
                       kSlot = kTile + (Tiles - 1) * kValuePanels * kPanel;
  static_assert(V <= D, "a tile of keys is the larger one");

  __device__ char* tile(const Held& h, int which = 0) const { return base + h.slot * kSlot + which * kTile; }

  // copy is the copying warp: blocks of keys [x, last), keys and values alternating or in one slot, in boxes of so many
  // rows as lie together in any page. Pages are looked up a block ahead.
  __device__ void copy(const Maps& maps, int x, int last, const Keys& keys, int kv_head, int box) {
    int lane = warp_lane(), row[2], next[2];
    auto look = [&](int x) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int i = j * kWarp + lane, at = x + i * box;
        next[j] = i < kRows / box && at < last ? (int)keys.row(at) : -1;
      }
    };
    look(x);
    for (; x < last; x += kRows) {
      row[0] = next[0], row[1] = next[1];
      look(x + kRows);
      int bytes = (min(kRows, last - x) + box - 1) / box * box * 128;  // of a panel
      Held h;
      for (int which = 0; which < 2; which++) {
        if (which % Tiles == 0) {
          h = take();
          wait_empty(h);
          if (lane == 0)
            barrier_expect(full + h.slot, bytes * (Tiles == 2 ? kPanels + kValuePanels
                                                   : which    ? kValuePanels
                                                              : kPanels));
          __syncwarp();
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
          if (row[j] >= 0)
            for (int p = 0; p < (which ? kValuePanels : kPanels); p++)
              copy_box(tile(h, which % Tiles) + p * kPanel + (j * kWarp + lane) * box * 128, which ? &maps.v : &maps.k,
                       kv_head * (which ? V : D) + p * 64, row[j], 0, full + h.slot);
      }
    }
  }
};
