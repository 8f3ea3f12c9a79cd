// Teams of threads that hold rows in registers: a thread has the same C lanes of the reduction tree, in every 256
// columns of a row.
#pragma once
#include "rows.cuh"

// Columns are C columns of a row as they are stored, whose address allows one access (eight of fp32: two).
template <class T, int C>
struct Columns {
  static constexpr int kBytes = C * sizeof(T), kWords = (kBytes + 3) / 4;
  u32 w[kWords];

  // load reads them where on is set; else they are +0.
  __device__ void load(const T* p, bool on) {
#pragma unroll
    for (int i = 0; i < kWords; i++) w[i] = 0;
    if (!on) return;
    if constexpr (kBytes == 2) {
      w[0] = *(const u16*)p;
    } else if constexpr (kBytes == 4) {
      w[0] = *(const u32*)p;
    } else if constexpr (kBytes == 8) {
      uint2 q = *(const uint2*)p;
      w[0] = q.x, w[1] = q.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        uint4 q = ((const uint4*)p)[i / 4];
        w[i] = q.x, w[i + 1] = q.y, w[i + 2] = q.z, w[i + 3] = q.w;
      }
    }
  }

  // anew keeps the compiler from holding values that it has: the words take half the registers.
  __device__ void anew() {
#pragma unroll
    for (int i = 0; i < kWords; i++) asm volatile("" : "+r"(w[i]));
  }

  __device__ void values(float* v) const {
#pragma unroll
    for (int j = 0; j < C; j++)
      v[j] = __uint_as_float(sizeof(T) == 4 ? w[j] : j % 2 ? w[j / 2] & 0xffff0000u : w[j / 2] << 16);
  }

  // round takes values as they are stored.
  __device__ void round(const float* v) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int j = 0; j < C; j++) w[j] = __float_as_uint(v[j]);
    } else if constexpr (C == 1) {
      w[0] = narrow(v[0]);
    } else {
      narrow_n<C>(v, w);
    }
  }

  __device__ void store(T* p) const {
    if constexpr (kBytes == 2) {
      *(u16*)p = (u16)w[0];
    } else if constexpr (kBytes == 4) {
      *(u32*)p = w[0];
    } else if constexpr (kBytes == 8) {
      *(uint2*)p = make_uint2(w[0], w[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) ((uint4*)p)[i / 4] = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
    }
  }
};

// Team is the 256/C threads that share a row: a warp, or several that meet at a barrier of their own.
template <int C>
struct Team {
  static constexpr int kThreads = kLanes / C;
  int id = threadIdx.x / kThreads, col = threadIdx.x % kThreads * C;  // its columns are col, col + 256, ...
  u32 buffer = 0;  // of two that alternate

  // meet waits for the team's other warps.
  __device__ void meet() const {
    if constexpr (C < kEight) asm volatile("bar.sync %0, %1;" ::"r"(1 + id), "n"(kThreads) : "memory");
  }

  // tree adds the 256 lanes up, for all of them. lanes are 512 floats of the team's own.
  __device__ float tree(const float* v, float* lanes) {
    Lanes8 all;
    if constexpr (C == kEight) {
#pragma unroll
      for (int j = 0; j < C; j++) all.v[j] = v[j];
    } else {
      float* own = lanes + buffer * kLanes;  // alternating, so that one barrier is enough
      buffer ^= 1;
#pragma unroll
      for (int j = 0; j < C; j++) own[col + j] = v[j];
      meet();
#pragma unroll
      for (int j = 0; j < kEight; j++) all.v[j] = own[warp_lane() * kEight + j];
    }
    return all.sum<kWarp>();
  }
};

// Weights are those of a norm for C columns, as they multiply: base is 1 where they are stored as their distance from
// it, else -0, which changes nothing.
template <class T, int C>
__device__ inline void weights(const Columns<T, C>& w, float base, float* v) {
  w.values(v);
#pragma unroll
  for (int j = 0; j < C; j++) v[j] = base + v[j];
}
__device__ inline float weight_base(int plus_one) { return plus_one ? 1.f : -0.f; }
