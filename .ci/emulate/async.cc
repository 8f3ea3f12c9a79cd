// Copies that go on by themselves, and barriers in memory. What a copy will bring is poison from the moment it is asked
// for, and comes as late as may be (cp.async: when it is waited for) or at some time (everything else): a missing wait
// shows, and so does memory that is overwritten while it is read.
#include <string.h>

#include "machine.h"

namespace emu {

// Word is a barrier in shared memory.
struct Word {
  u64 phase : 1, pending : 14, expected : 14, magic : 11;
  long long bytes : 24;  // still to come
};
static_assert(sizeof(Word) == sizeof(u64));
constexpr u64 kMagic = 0x2b5;

static Word* word(u64* bar) {
  Word* w = (Word*)bar;
  if (w->magic != kMagic)
    fail("the barrier at %lld of shared memory is not initialised", (long long)((char*)bar - block()->grid.shared));
  return w;
}

void count_off(u64* bar, int arrivals, int bytes) {
  Word* w = word(bar);
  if (arrivals > (int)w->pending) fail("more arrivals at a barrier than the %d it was made for", (int)w->expected);
  w->pending -= arrivals, w->bytes -= bytes;
  if (w->pending || w->bytes) return;
  w->phase ^= 1, w->pending = w->expected;
  auto& waiters = block()->waiters;
  for (size_t i = 0; i < waiters.size();) {
    if (waiters[i].bar != bar || waiters[i].parity == w->phase) {
      i++;
      continue;
    }
    block()->wake(waiters[i].thread);
    waiters[i] = waiters.back();
    waiters.pop_back();
  }
}

void Copy::carry_out() const {
  memset(to, 0, place);
  memcpy(to, from, bytes);
}

void Block::happen(size_t i) {
  Event e = std::move(events[i]);
  events[i] = std::move(events.back());
  events.pop_back();
  for (const Copy& c : e.copies) c.carry_out();
  count_off(e.bar, e.bytes < 0, e.bytes < 0 ? 0 : e.bytes);
}

// start makes the place of a copy poison.
static Copy start(Copy c) {
  memset(c.to, 0xff, c.place);
  return c;
}

// box is the copies of a TMA box. Pieces of 16 of swizzled rows of 128 bytes lie swizzled by the address: bits 4 to 6
// are xored with bits 7 to 9; bits 4 and 5 with 7 and 8 where rows are of 64, bit 4 with bit 7 where they are of 32.
static std::vector<Copy> box(const Map& m, u32 to, const int* at) {
  std::vector<Copy> copies;
  u32 mask = m.swizzle ? m.swizzle / 16 - 1 : 0, each = 16 / m.element;
  if (at[0] * (int)m.element % 16) fail("a bulk copy from column %d: it must lie at a multiple of 16 bytes", at[0]);
  for (u32 r = 0; r < m.rows; r++)
    for (u32 piece = 0; piece < m.row_bytes / 16; piece++) {
      long long column = at[0] + (long long)(piece * each), row = at[1] + (long long)r;
      bool in = column >= 0 && column < (long long)m.size[0] && row >= 0 && row < (long long)m.size[1] && at[2] >= 0 &&
                at[2] < (long long)m.size[2];
      u32 address = to + r * m.row_bytes + piece * 16;
      address ^= (address >> 7 & mask) << 4;
      int bytes = in ? (int)std::min<long long>(16, (m.size[0] - column) * m.element) : 0;
      const char* from = m.data + at[2] * m.stride[1] + row * m.stride[0] + column * m.element;
      copies.push_back(start({block()->grid.shared + address, in ? from : m.data, bytes}));
    }
  return copies;
}

}  // namespace emu

namespace ptx {

using namespace emu;

static u64* barrier(u32 at) {
  if (at % 8) fail("a barrier at %u of shared memory: it must be a multiple of 8", at);
  return (u64*)shared(at);
}

void mbarrier_init_shared_b64(u32 bar, int count) {
  Word w = {};
  w.pending = w.expected = count, w.magic = kMagic;
  memcpy(barrier(bar), &w, sizeof w);
}

void mbarrier_arrive_expect_tx_shared_b64(u32 bar, int bytes) { count_off(barrier(bar), 1, -bytes); }
void mbarrier_arrive_shared_b64(u32 bar) { count_off(barrier(bar), 1, 0); }

void mbarrier_wait(u32 bar, int parity) {
  while (word(barrier(bar))->phase == (u32)parity) {
    block()->waiters.push_back({self(), barrier(bar), (u32)parity});
    block()->wait("mbarrier", bar);
  }
}

void cp_async_cg_shared_global(u32 to, const void* from, int size, int bytes) {
  if (size != 16 || bytes < 0 || bytes > 16) fail("cp.async of %d bytes of %d", bytes, size);
  if (to % 16 || (u64)from % 16)
    fail("cp.async from %p to %u of shared memory: both must be multiples of 16", from, to);
  self()->copies.push_back(start({(char*)shared(to), (const char*)from, bytes}));
}

void cp_async_ca_shared_global(u32 to, const void* from, int size, int bytes) {
  if (size != 4 || bytes < 0 || bytes > 4) fail("cp.async.ca of %d bytes of %d", bytes, size);
  if (to % 4 || (u64)from % 4)
    fail("cp.async.ca from %p to %u of shared memory: both must be multiples of 4", from, to);
  self()->copies.push_back(start({(char*)shared(to), (const char*)from, bytes, 4}));
}

void cp_async_commit_group() { self()->groups.push_back(self()->copies.size()); }

void cp_async_wait_group(int left) {
  Thread* t = self();
  size_t over = t->groups.size() > (size_t)left ? t->groups.size() - left : 0, n = over ? t->groups[over - 1] : 0;
  for (size_t i = 0; i < n; i++) t->copies[i].carry_out();
  t->copies.erase(t->copies.begin(), t->copies.begin() + n);
  t->groups.erase(t->groups.begin(), t->groups.begin() + over);
  for (size_t& end : t->groups) end -= n;
}

void cp_async_mbarrier_arrive_noinc_shared_b64(u32 bar) {
  block()->events.push_back({barrier(bar), std::move(self()->copies), -1});
  self()->copies.clear(), self()->groups.clear();
}

void cp_async_bulk_tensor_3d_shared__cluster_global_mbarrier__complete_tx__bytes(u32 to, const void* map, Values<3> at,
                                                                                 u32 bar) {
  Map m;
  memcpy(&m, map, sizeof m);
  if (m.magic != kMapMagic) fail("a bulk copy by what is no tensor map");
  if (to % 128) fail("a bulk copy to %u of shared memory: it must be a multiple of 128", to);
  int corner[] = {(int)at.v[0], (int)at.v[1], (int)at.v[2]};
  block()->events.push_back({barrier(bar), box(m, to, corner), (int)(m.rows * m.row_bytes)});
}

void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(u32 to, const void* from, int bytes, u32 bar) {
  if (to % 16 || (u64)from % 16 || bytes <= 0 || bytes % 16)
    fail("a bulk copy of %d bytes from %p to %u of shared memory: all must be multiples of 16", bytes, from, to);
  Copy all = {(char*)shared(to), (const char*)from, bytes, bytes};
  block()->events.push_back({barrier(bar), {start(all)}, bytes});
}

}  // namespace ptx
