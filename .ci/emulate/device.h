// The language of kernels as far as they use it: every translated kernel (translate.cc) is compiled behind this file
// and ptx.h. A CUDA thread is a fiber of machine.cc.
#pragma once
#include <stddef.h>
#include <utility>

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

#define threadIdx (emu_self->thread)
#define blockIdx (emu_self->grid->block)
#define blockDim (emu_self->grid->threads)
#define gridDim (emu_self->grid->blocks)

namespace emu {

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Index {
  u32 x, y, z;
};

// Grid is what the threads of a block have in common.
struct Grid {
  Index block, threads, blocks;
  char* shared;  // shared memory; what the launch asks for lies at its beginning
  u32 align;     // of what the launch asks for, as far as threads have used it
};

// Self is what a thread knows of itself.
struct Self {
  Index thread;
  u32 lane;
  Grid* grid;
};

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Kernel is an entry of the table emu_kernels of a module; the one behind the last has no name. call runs the kernel as
// the thread at hand, its parameters at values[0], values[1] ...
struct Kernel {
  const char* name;
  void (*call)(void** values);
  int parameters;
  const size_t *sizes, *alignments;
  u32 threads;  // of a block, at most
};

// parameter is one as it was given, which may lie anywhere.
template <class P>
inline P parameter(const void* given) {
  P p;
  __builtin_memcpy(&p, given, sizeof p);
  return p;
}

template <class... P>
struct Signature {
  static constexpr size_t sizes[] = {sizeof(P)..., 0}, alignments[] = {alignof(P)..., 0};
  template <void (*F)(P...), size_t... I>
  static void pass(void** values, std::index_sequence<I...>) {
    F(parameter<P>(values[I])...);
  }
  template <void (*F)(P...)>
  static void call(void** values) {
    pass<F>(values, std::index_sequence_for<P...>());
  }
};
template <auto F>
struct Entry;
template <class... P, void (*F)(P...)>
struct Entry<F> {
  static constexpr Kernel named(const char* name, u32 threads) {
    return {
        name,   Signature<P...>::template call<F>, sizeof...(P), Signature<P...>::sizes, Signature<P...>::alignments,
        threads};
  }
};

// Slot is a declaration of shared memory in a function: one place for all threads of a block.
struct Slot {
  const u32 size, offset;
  Slot(size_t size, size_t align);
  void* at();
};

// Dynamic stands for a declaration `extern __shared__ T name[]`. A card puts it behind what a kernel declares
// otherwise, at a multiple of ALIGN.
template <class T, u32 ALIGN>
struct Dynamic;

// What a warp does together: each lane of the mask gives a value (and more), and gets a result when all have come.
enum Meeting {
  kSync,
  kShuffle,
  kBallot,
  kMatch,
  kMax,
  kMin,
  kMaxSigned,
  kMinSigned,
  kLoad,
  kLoadTransposed,
  kTransposed,
  kStep,
  kCommit,
  kAwait
};
u64 meet(Meeting what, u32 mask, u64 value, u64 more = 0);

// Barriers of a block: sync waits for `count` threads (0: all of the block) and returns whether the predicate of one is
// set; arrive is counted and goes on.
bool block_sync(u32 barrier, u32 count, bool predicate = false);
void block_arrive(u32 barrier, u32 count);

}  // namespace emu

extern "C" {
// the thread that this core is carrying out
extern __thread emu::Self* emu_self __attribute__((tls_model("initial-exec")));
}

template <class T, emu::u32 ALIGN>
struct emu::Dynamic {
  operator T*() const { return (T*)begin(); }
  template <class U>
  explicit operator U*() const {
    return (U*)begin();
  }
  static char* begin() {
    Grid& grid = *emu_self->grid;
    if (grid.align < ALIGN) grid.align = ALIGN;
    return grid.shared;
  }
};

// Vectors.
#define EMU_VECTOR(name, T, bytes2, bytes4)                                              \
  struct alignas(bytes2) name##2 {                                                       \
    T x, y;                                                                              \
  };                                                                                     \
  struct alignas(bytes4) name##4 {                                                       \
    T x, y, z, w;                                                                        \
  };                                                                                     \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                             \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(float, float, 8, 16)
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(uint, unsigned, 8, 16)
#undef EMU_VECTOR

// Arithmetic: IEEE, unfused but for fmaf.
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float sqrtf(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline float fabsf(float x) { return __builtin_fabsf(x); }
inline float rintf(float x) { return __builtin_rintf(x); }
// fmaxf and fminf take the number beside a NaN, and of zeros of both signs the larger or smaller, as PTX has them.
inline float fmaxf(float x, float y) {
  return x > y ? x : y > x ? y : x != x ? y : y != y ? x : __uint_as_float(__float_as_uint(x) & __float_as_uint(y));
}
inline float fminf(float x, float y) {
  return x < y ? x : y < x ? y : x != x ? y : y != y ? x : __uint_as_float(__float_as_uint(x) | __float_as_uint(y));
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return (T)a < (T)b ? (T)b : (T)a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return (T)b < (T)a ? (T)b : (T)a;
}
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
// __byte_perm picks bytes of x (0 to 3) and y (4 to 7).
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long from = x | (unsigned long long)y << 32;
  unsigned d = 0;
  for (int i = 0; i < 4; i++) d |= (unsigned)(from >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return d;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }

// Memory. Atomics are those of the machine: blocks run on several cores.
template <class T>
inline T __ldcg(const T* p) {
  return *p;
}
template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T, class V>
inline T atomicAdd(T* p, V v) {
  return __atomic_fetch_add(p, (T)v, __ATOMIC_SEQ_CST);
}
template <class T, class V>
inline T atomicOr(T* p, V v) {
  return __atomic_fetch_or(p, (T)v, __ATOMIC_SEQ_CST);
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline size_t __cvta_generic_to_shared(const void* p) { return (const char*)p - emu_self->grid->shared; }

// Threads together.
inline void __syncthreads() { emu::block_sync(0, 0); }
inline int __syncthreads_or(int predicate) { return emu::block_sync(0, 0, predicate); }
inline void __syncwarp(unsigned mask = ~0u) { emu::meet(emu::kSync, mask, 0); }
inline unsigned __ballot_sync(unsigned mask, int predicate) { return emu::meet(emu::kBallot, mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline unsigned __match_any_sync(unsigned mask, unsigned x) { return emu::meet(emu::kMatch, mask, x); }
inline unsigned __reduce_max_sync(unsigned mask, unsigned x) { return emu::meet(emu::kMax, mask, x); }
inline unsigned __reduce_min_sync(unsigned mask, unsigned x) { return emu::meet(emu::kMin, mask, x); }
inline int __reduce_max_sync(unsigned mask, int x) { return emu::meet(emu::kMaxSigned, mask, (unsigned)x); }
inline int __reduce_min_sync(unsigned mask, int x) { return emu::meet(emu::kMinSigned, mask, (unsigned)x); }

namespace emu {
// shuffle is the value of another lane.
template <class T>
inline T shuffle(unsigned mask, T x, int from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  u64 bits = 0;
  __builtin_memcpy(&bits, &x, sizeof x);
  bits = meet(kShuffle, mask, bits, from);
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
}  // namespace emu
template <class T>
inline T __shfl_sync(unsigned mask, T x, int lane) {
  return emu::shuffle(mask, x, lane & 31);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, int bits) {
  return emu::shuffle(mask, x, (emu_self->lane ^ bits) & 31);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T x, int d) {
  int from = emu_self->lane - d;
  return emu::shuffle(mask, x, from < 0 ? (int)emu_self->lane : from);
}
