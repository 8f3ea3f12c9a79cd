// What the parts of the emulated GPU know of each other.
#pragma once
#include <algorithm>
#include <vector>

#include "ptx.h"

namespace emu {

constexpr int kMostThreads = 1024, kWarp = 32;
constexpr size_t kSharedMost = 227 << 10;               // of a block on Hopper
// declared shared memory lies from kStatic on: descriptors of wgmma reach what lies before
constexpr size_t kStatic = 256 << 10, kArena = 64 << 20;

struct Warp;

// Copy is a piece of 16 bytes on its way to shared memory, of which `bytes` come from memory and the others are zeros.
struct Copy {
  char* to;
  const char* from;
  int bytes;      // fewer than `place` are followed by zeros
  int place = 16;
  void carry_out() const;
};

struct Thread : Self {
  Warp* warp;
  void* stack;  // where it goes on; null: it has not begun
  char* base;   // of its stack
  bool done, result;  // of the last barrier
  const char* waits;  // for what
  u64 place;          // and where
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // where closed groups of copies end
};

// Issued is a product of wgmma as its lanes have it.
struct Issued {
  ptx::Product lanes[kWarp];
};

struct Warp {
  Thread* lanes;
  u32 alive, arrived, mask;  // of the lanes; the last two of the meeting at hand
  Meeting what;
  u64 value[kWarp], more[kWarp], result[kWarp];
  std::vector<Issued> products;  // not carried out yet
  u32 issued[kWarp];             // how many of them a lane has issued
  std::vector<u32> groups;       // where closed groups of them end
};

// Barrier is one of bar.sync; any: a predicate that came is set.
struct Barrier {
  u32 arrived, count;
  bool any;
  std::vector<Thread*> waiting;
};

// Event is something that happens by itself at some time: a bulk copy, or the arrival of copies at a barrier.
struct Event {
  u64* bar;
  std::vector<Copy> copies;
  int bytes;  // counted off at the barrier; -1: an arrival
};

// Waiter is a thread that waits for the end of a phase.
struct Waiter {
  Thread* thread;
  u64* bar;
  u32 parity;
};

// Launch is a kernel that runs.
struct Launch;

// Block is what a core carries out.
struct Block {
  Grid grid;
  Launch* launch;
  Thread threads[kMostThreads];
  Warp warps[kMostThreads / kWarp];
  Barrier barriers[16];
  int count, alive;
  std::vector<Thread*> ready;
  std::vector<Event> events;
  std::vector<Waiter> waiters;
  std::vector<char*> stacks;  // that no thread has
  u64 random;
  void* home;  // the scheduler's own stack

  u32 draw();                                  // 32 random bits
  void wake(Thread* t) { ready.push_back(t); }
  void wait(const char* what, u64 place);      // lets others run until the thread at hand is woken
  void phase_done(u64* bar, u32 phase);        // wakes who waits for it
  void happen(size_t event);
};

Block* block();  // of this core
inline Thread* self() { return (Thread*)emu_self; }

// What warps do with matrices (tensor.cc).
void load_matrices(Warp& w, bool transposed);
void transpose_matrix(Warp& w);
void step(Warp& w);
void multiply(const Warp& w, size_t count);  // the first products that are not carried out

// count_off takes arrivals and bytes off a barrier in memory.
void count_off(u64* bar, int arrivals, int bytes);

// launch runs a kernel and returns when it is done: false where its blocks had more shared memory than there is, which
// is known when they have declared it. One that may begin before the kernel before it ends (early) has to wait for it.
bool launch(const Kernel& k, Index blocks, Index threads, size_t shared, void** values, bool early);

// Map is what cuTensorMapEncodeTiled leaves in the 128 bytes of a CUtensorMap: matrices, copied in boxes.
struct Map {
  u64 magic;
  const char* data;
  u64 size[3], stride[2];  // elements; bytes
  u32 rows, row_bytes;     // of a box
  u32 element, swizzle;    // bytes of an element; of a swizzled row, or 0
};
constexpr u64 kMapMagic = 0x70616d20726f736e;

}  // namespace emu
