// Threads, warps and blocks. A thread is a fiber with a stack of its own; a block is carried out by one core, which
// goes on with another of its threads, drawn at random, wherever one has to wait. So a value that is read without a
// barrier between is read too early in some runs, and EMULATE_SEED makes other runs.
#include "machine.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

extern "C" {
__thread emu::Self* emu_self;

// emu_switch keeps the registers that a call keeps on the stack at hand, leaves its place in *save and goes on at
// another; emu_begin calls emu_main on a new stack.
void emu_switch(void** save, void* stack);
void emu_begin(void** save, void* top);
}
asm(R"(
.text
.globl emu_switch, emu_begin
.hidden emu_switch, emu_begin
emu_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
emu_begin:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  xor %ebp, %ebp
  call emu_main
)");

namespace emu {

constexpr size_t kStack = 128 << 10, kGuard = 4 << 10;  // the lowest page of a stack is nobody's
constexpr int kPoison = 0xff;  // NaN in every format

// State is what is known of a kernel: the shared memory that it declares, as far as it has run.
struct State {
  std::mutex guard;
  std::atomic<int> count{0};
  Slot* slots[64];
  size_t align = 1;  // of what a launch asks for
};

struct Launch {
  const Kernel* kernel;
  State* state;
  Index blocks, threads;
  size_t shared;
  void** values;
  u64 seed;
  u32 total;
  std::atomic<u32> next{0};
  std::atomic<bool> waits{false};  // for the kernel before it
};

static thread_local Block* own;
Block* block() { return own; }

static void complain(const char* format, va_list list) {
  fprintf(stderr, "emulated GPU: ");
  if (own && own->launch) {
    const Index& at = own->grid.block;
    fprintf(stderr, "%s, block %u,%u,%u", own->launch->kernel->name, at.x, at.y, at.z);
    if (emu_self) fprintf(stderr, ", thread %u", emu_self->thread.x);
    fprintf(stderr, ": ");
  }
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
}

void fail(const char* format, ...) {
  va_list list;
  va_start(list, format);
  complain(format, list);
  fflush(stderr);
  signal(SIGABRT, SIG_DFL);  // a dump of all goroutines would hide the line
  abort();
}

u32 Block::draw() {  // xorshift64*, Vigna 2016
  random ^= random >> 12, random ^= random << 25, random ^= random >> 27;
  return random * 0x2545f4914f6cdd1d >> 32;
}

// deadlock says where the threads of each warp wait.
static void deadlock(Block& b) {
  std::map<std::string, std::map<int, int>> places;
  for (int i = 0; i < b.count; i++) {
    Thread& t = b.threads[i];
    if (t.done) continue;
    char place[64];
    snprintf(place, sizeof place, "%s %llu", t.waits, t.place);
    places[place][i / kWarp]++;
  }
  emu_self = nullptr;
  for (auto& [place, warps] : places) {
    fprintf(stderr, "  waiting at %s:", place.c_str());
    for (auto [warp, lanes] : warps) fprintf(stderr, " warp %d (%d lanes)", warp, lanes);
    fprintf(stderr, "\n");
  }
  fail("deadlock: no thread can go on, %d of %d are not done", b.alive, b.count);
}

// chosen is the thread that goes on, after what happens by itself before; null: none can.
static Thread* chosen(Block& b) {
  for (;;) {
    if (!b.events.empty() && (b.ready.empty() || b.draw() % 8 == 0)) {
      b.happen(b.draw() % b.events.size());
      continue;
    }
    if (b.ready.empty()) return nullptr;
    std::swap(b.ready[(u64)b.draw() * b.ready.size() >> 32], b.ready.back());
    Thread* t = b.ready.back();
    b.ready.pop_back();
    return t;
  }
}

static char* stack_of(Block& b) {
  if (b.stacks.empty()) {
    char* base =
        (char*)mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || mprotect(base, kGuard, PROT_NONE)) fail("no memory for a stack");
    return base;
  }
  char* base = b.stacks.back();
  b.stacks.pop_back();
  return base;
}

// go leaves the thread at hand, whose place is kept in *save, for another.
static void go(Block& b, void** save) {
  Thread* t = chosen(b);
  if (!t) {
    if (b.alive > 0) deadlock(b);
    emu_switch(save, b.home);
    return;
  }
  if (&t->stack == save) return;
  emu_self = t;
  if (t->stack) {
    emu_switch(save, t->stack);
    return;
  }
  t->base = stack_of(b);
  emu_begin(save, t->base + kStack - (t->thread.x % 64) * 64);  // tops that do not share a set of the cache
}

void Block::wait(const char* what, u64 place) {
  Thread* t = self();
  t->waits = what, t->place = place;
  go(*this, &t->stack);
}

// perhaps lets another thread go first, now and then.
static void perhaps(Block& b) {
  if (b.draw() % 4) return;
  b.ready.push_back(self());
  b.wait("its turn", 0);
}

static void carry_out(Warp& w);

// finish ends the thread at hand. Who waits for all threads that are left may wait for one less.
static void finish(Block& b) {
  Thread* t = self();
  t->done = true;
  b.alive--;
  Warp& w = *t->warp;
  w.alive &= ~(1u << t->lane);
  if (w.issued[t->lane]) fail("wgmma that is never waited for");
  if (w.arrived && w.arrived == (w.mask & w.alive)) carry_out(w);
  for (Barrier& r : b.barriers)
    if (r.arrived && r.count == 0 && (int)r.arrived == b.alive) {
      for (Thread* other : r.waiting) other->result = r.any, b.wake(other);
      r.waiting.clear(), r.arrived = 0;
    }
  b.stacks.push_back(t->base);
  static thread_local void* nowhere;
  go(b, &nowhere);
}

extern "C" __attribute__((visibility("hidden"), used)) void emu_main() {
  own->launch->kernel->call(own->launch->values);
  finish(*own);
}

// Meetings of a warp.

static u64 matching(const Warp& w, int lane) {
  u64 same = 0;
  for (int i = 0; i < kWarp; i++)
    if (w.arrived >> i & 1 && w.value[i] == w.value[lane]) same |= 1u << i;
  return same;
}

template <class T, class F>
static T reduced(const Warp& w, F better) {
  T best = w.value[__builtin_ctz(w.arrived)];
  for (int i = 0; i < kWarp; i++)
    if (w.arrived >> i & 1 && better((T)w.value[i], best)) best = w.value[i];
  return best;
}

// carry_out does what the warp has met for, and all lanes go on.
static void carry_out(Warp& w) {
  Block& b = *own;
  auto all = [&](u64 x) { std::fill(w.result, w.result + kWarp, x); };
  auto each = [&](auto f) {
    for (u32 left = w.arrived; left; left &= left - 1) w.result[__builtin_ctz(left)] = f(__builtin_ctz(left));
  };
  switch (w.what) {
    case kSync: break;
    case kShuffle:
      each([&](int i) {
        if (!(w.arrived >> w.more[i] & 1)) fail("a shuffle from lane %llu, which is not there", w.more[i]);
        return w.value[w.more[i]];
      });
      break;
    case kBallot: {
      u32 votes = 0;
      for (int i = 0; i < kWarp; i++) votes |= (u32)(w.arrived >> i & w.value[i] & 1) << i;
      all(votes);
      break;
    }
    case kMatch: each([&](int i) { return matching(w, i); }); break;
    case kMax: all(reduced<u32>(w, [](u32 x, u32 y) { return x > y; })); break;
    case kMin: all(reduced<u32>(w, [](u32 x, u32 y) { return x < y; })); break;
    case kMaxSigned: all((u32)reduced<int>(w, [](int x, int y) { return x > y; })); break;
    case kMinSigned: all((u32)reduced<int>(w, [](int x, int y) { return x < y; })); break;
    case kLoad: load_matrices(w, false); break;
    case kLoadTransposed: load_matrices(w, true); break;
    case kTransposed: transpose_matrix(w); break;
    case kStep: step(w); break;
    case kCommit: {
      for (int i = 0; i < kWarp; i++)
        if (w.issued[i] != w.products.size()) fail("lanes of a warp have issued different numbers of wgmma");
      w.groups.push_back(w.products.size());
      w.value[0] = b.draw() & 1 ? 0 : w.groups.size();  // how many groups may be left
      [[fallthrough]];
    }
    case kAwait: {
      size_t left = w.value[0], over = w.groups.size() > left ? w.groups.size() - left : 0,
             n = over ? w.groups[over - 1] : 0;
      multiply(w, n);
      w.products.erase(w.products.begin(), w.products.begin() + n);
      w.groups.erase(w.groups.begin(), w.groups.begin() + over);
      for (u32& end : w.groups) end -= n;
      for (u32& issued : w.issued) issued -= n;
      break;
    }
  }
  for (u32 left = w.arrived; left; left &= left - 1) {
    Thread* t = w.lanes + __builtin_ctz(left);
    if (t != self()) b.wake(t);
  }
  w.arrived = 0;
}

static const char* const names[] = {"__syncwarp",         "a shuffle",         "a ballot",          "__match_any_sync",
                                    "__reduce_max_sync",  "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync",
                                    "ldmatrix",           "ldmatrix.trans",    "movmatrix",         "mma.sync",
                                    "wgmma.commit_group", "wgmma.wait_group"};

u64 meet(Meeting what, u32 mask, u64 value, u64 more) {
  Thread* t = self();
  Warp& w = *t->warp;
  u32 bit = 1u << t->lane;
  if (!(mask & bit)) fail("%s with a mask that lacks its own lane", names[what]);
  if (w.arrived == 0) w.what = what, w.mask = mask;
  else if (w.what != what || w.mask != mask)
    fail("lane %u is at %s with mask %x, others of its warp at %s with mask %x", t->lane, names[what], mask,
         names[w.what], w.mask);
  w.arrived |= bit;
  w.value[t->lane] = value, w.more[t->lane] = more;
  if (w.arrived == (mask & w.alive)) carry_out(w);
  else own->wait(names[what], 0);
  return w.result[t->lane];
}

// Barriers of a block.

static void complete(Block& b, Barrier& r) {
  for (Thread* t : r.waiting) t->result = r.any, b.wake(t);
  r.waiting.clear(), r.arrived = 0;
}

// arrived counts the thread at hand and returns whether it was the last.
static bool arrived(Block& b, u32 barrier, u32 count, bool predicate) {
  if (barrier >= 16) fail("barrier %u: there are 16", barrier);
  Barrier& r = b.barriers[barrier];
  if (r.arrived == 0) r.count = count, r.any = false;
  if (r.count != count) fail("barrier %u for %u threads and for %u", barrier, count, r.count);
  r.any |= predicate;
  return ++r.arrived == (count ? count : (u32)b.alive);
}

bool block_sync(u32 barrier, u32 count, bool predicate) {
  Block& b = *own;
  Thread* t = self();
  if (arrived(b, barrier, count, predicate)) {
    bool any = b.barriers[barrier].any;
    complete(b, b.barriers[barrier]);
    perhaps(b);
    return any;
  }
  b.barriers[barrier].waiting.push_back(t);
  b.wait("barrier", barrier);
  return t->result;
}

void block_arrive(u32 barrier, u32 count) {
  if (arrived(*own, barrier, count, false)) complete(*own, own->barriers[barrier]);
  perhaps(*own);
}

// Shared memory.

static std::atomic<size_t> declared{kStatic};

static u32 reserve(size_t size, size_t align) {
  size_t at = declared.load(), from;
  do from = (at + align - 1) / align * align;
  while (!declared.compare_exchange_weak(at, from + size));
  if (from + size > kArena)
    fail("kernels declare more than %zu bytes of shared memory, all together", kArena - kStatic);
  return from;
}

Slot::Slot(size_t size, size_t align) : size(size), offset(reserve(size, align)) {}

void* Slot::at() {
  State& s = *own->launch->state;
  void* place = own->grid.shared + offset;
  for (int i = 0, n = s.count.load(std::memory_order_acquire); i < n; i++)
    if (s.slots[i] == this) return place;
  std::lock_guard<std::mutex> lock(s.guard);
  int n = s.count;
  if (std::find(s.slots, s.slots + n, this) != s.slots + n) return place;
  if (n == 64) fail("more than 64 declarations of shared memory");
  s.slots[n] = this;
  s.count.store(n + 1, std::memory_order_release);
  return place;
}

static void poison(Block& b) {
  memset(b.grid.shared, kPoison, (b.launch->shared + 1023) / 1024 * 1024);
  State& s = *b.launch->state;
  for (int i = 0; i < s.count; i++) memset(b.grid.shared + s.slots[i]->offset, kPoison, s.slots[i]->size);
}

// shared_of is the shared memory of a block of a launch: what the kernel declares, padded to the alignment of what the
// launch asks for, and that.
static size_t shared_of(const Launch& l) {
  State& s = *l.state;
  size_t declared = 0;
  for (int i = 0; i < s.count; i++) declared += s.slots[i]->size;
  return (declared + s.align - 1) / s.align * s.align + l.shared;
}

// Blocks.

static void prepare(Block& b, Launch& l, u32 index) {
  b.launch = &l;
  b.random = (l.seed ^ index) * 0x9e3779b97f4a7c15 | 1;
  b.grid = {{index % l.blocks.x, index / l.blocks.x % l.blocks.y, index / l.blocks.x / l.blocks.y},
            l.threads,
            l.blocks,
            b.grid.shared,
            1};
  b.count = b.alive = l.threads.x * l.threads.y * l.threads.z;
  for (int i = 0; i < b.count; i++) {
    Thread& t = b.threads[i];
    u32 n = i;
    t.thread = {n % l.threads.x, n / l.threads.x % l.threads.y, n / l.threads.x / l.threads.y};
    t.lane = n % kWarp, t.grid = &b.grid, t.warp = b.warps + i / kWarp, t.stack = nullptr, t.done = false;
    t.copies.clear(), t.groups.clear();
    b.ready.push_back(&t);
  }
  for (int i = 0; i * kWarp < b.count; i++) {
    Warp& w = b.warps[i];
    int size = std::min(kWarp, b.count - i * kWarp);
    w.lanes = b.threads + i * kWarp, w.alive = size == kWarp ? ~0u : (1u << size) - 1, w.arrived = 0;
  }
  poison(b);
}

static void run(Block& b, Launch& l, u32 index) {
  prepare(b, l, index);
  go(b, &b.home);
  emu_self = nullptr;
  while (!b.events.empty()) b.happen(0);
  for (Barrier& r : b.barriers) {
    if (!r.waiting.empty()) fail("threads wait at a barrier when all are done");
    r.arrived = 0;
  }
  std::lock_guard<std::mutex> lock(l.state->guard);
  l.state->align = std::max<size_t>(l.state->align, b.grid.align);
}

static Block* new_block() {
  Block* b = new Block();
  void* p = mmap(nullptr, kArena + 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) fail("no memory for shared memory");
  b->grid.shared = (char*)p;
  return b;
}

// A kernel that touches memory which is nobody's stops with its name; what is wrong elsewhere is for who handled it
// before, Go's runtime.
static struct sigaction handled_before;
static void out_of_memory(int signal, siginfo_t* info, void* context) {
  if (own && own->launch) fail("memory at %p, which is nobody's, or the stack of a thread is full", info->si_addr);
  handled_before.sa_sigaction(signal, info, context);
}
static void handle_faults() {
  struct sigaction action = {};
  action.sa_sigaction = out_of_memory, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  if (sigaction(SIGSEGV, &action, &handled_before)) fail("no handler of faults");
}
static void stack_of_signals() {
  stack_t s = {};
  s.ss_size = 64 << 10, s.ss_sp = malloc(s.ss_size);
  if (sigaltstack(&s, nullptr)) fail("no stack for signals");
}

// Cores carry out the blocks of one launch after the other.
struct Cores {
  std::mutex guard, one;  // `one` launch at a time
  std::condition_variable begin, end;
  Launch* launch = nullptr;
  u64 turn = 0;
  int count, busy = 0;

  Cores() {
    const char* asked = getenv("EMULATE_CORES");
    count = asked ? atoi(asked) : sysconf(_SC_NPROCESSORS_ONLN);
    if (count < 1) fail("EMULATE_CORES is %s: want 1 or more", asked);
    handle_faults();
    sigset_t all, before;
    sigfillset(&all), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGBUS), sigdelset(&all, SIGFPE),
        sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &all, &before);  // the signals of Go's scheduler are for its own threads
    for (int i = 0; i < count; i++) {
      pthread_t thread;
      if (pthread_create(&thread, nullptr, [](void* c) -> void* { return ((Cores*)c)->work(), nullptr; }, this))
        fail("no thread for a core");
      pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void work() {
    own = new_block();
    stack_of_signals();
    std::unique_lock<std::mutex> lock(guard);
    for (u64 seen = 0;;) {
      begin.wait(lock, [&] { return turn != seen; });
      seen = turn;
      Launch* l = launch;
      lock.unlock();
      for (u32 i; (i = l->next++) < l->total;) run(*own, *l, l->seed >> 32 & 1 ? i : l->total - 1 - i);
      own->launch = nullptr;
      lock.lock();
      if (--busy == 0) end.notify_one();
    }
  }

  void carry_out(Launch& l) {
    std::lock_guard<std::mutex> single(one);
    std::unique_lock<std::mutex> lock(guard);
    launch = &l, busy = count, turn++;
    begin.notify_all();
    end.wait(lock, [&] { return busy == 0; });
  }
};

static State* state_of(const Kernel& k) {
  static std::mutex guard;
  static std::map<const Kernel*, State*> all;
  std::lock_guard<std::mutex> lock(guard);
  State*& s = all[&k];
  if (!s) s = new State();
  return s;
}

bool launch(const Kernel& k, Index blocks, Index threads, size_t shared, void** values, bool early) {
  static Cores& cores = *new Cores();
  static u64 asked = getenv("EMULATE_SEED") ? strtoull(getenv("EMULATE_SEED"), nullptr, 10) : 1;
  static std::atomic<u64> launches{0};
  Launch l;
  l.kernel = &k, l.state = state_of(k), l.blocks = blocks, l.threads = threads, l.shared = shared, l.values = values;
  l.seed = (asked * 1000003 + ++launches) * 0xd1342543de82ef95;
  l.total = blocks.x * blocks.y * blocks.z;
  cores.carry_out(l);
  bool fits = shared_of(l) <= kSharedMost;
  if (fits && early && !l.waits) fail("%s begins before the kernel before it ends, and never waits for it", k.name);
  return fits;
}

}  // namespace emu

// A wait for the kernel before is noted: it has ended.
void ptx::griddepcontrol_wait() { emu::block()->launch->waits = true; }
