// A stand-in for the driver: two cards of compute capability 9.0 whose memory is this machine's. Operations of the
// default stream are done when a call returns; those of other streams when they are waited for, or at a drawn moment
// before. What the project does not call aborts with its name (missing.c, which `build` writes from cuda.h).
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>

#include "machine.h"

using namespace emu;

struct CUctx_st {
  int card;
  std::set<int> peers;  // cards whose memory this one may use
  size_t taken;         // bytes
};
struct CUmod_st {
  void* library;
  const Kernel* kernels;
  std::map<std::string, CUfunc_st*> functions;
};
struct CUfunc_st {
  const Kernel* kernel;
  size_t dynamic;  // shared memory that a launch may ask for
};

// Streams carry out their tasks in order. A mark is a place in one: the first `number` tasks; without a stream it has
// been passed.
struct Mark {
  CUstream stream = nullptr;
  unsigned long long number = 0;
};
struct CUstream_st {
  CUctx_st* context;
  std::deque<std::function<void()>> tasks;
  unsigned long long begun = 0, done = 0;  // tasks
};
struct CUevent_st {
  bool timed;
  std::chrono::steady_clock::time_point at;
  Mark mark;
};

constexpr int kCards = 2;
static CUctx_st contexts[kCards] = {{0, {}, 0}, {1, {}, 0}};
static thread_local CUctx_st* current = &contexts[0];
constexpr size_t kMemory = 80ull << 30;

static std::recursive_mutex order;  // of streams and their tasks
static std::set<CUstream> streams;

// passed carries out what lies before a mark.
static void passed(Mark m) {
  while (m.stream && m.stream->done < m.number) {
    auto task = m.stream->tasks.front();
    m.stream->tasks.pop_front(), m.stream->done++;
    task();
  }
}

static Mark end_of(CUstream s) { return {s, s ? s->begun : 0}; }

// draw carries out a task of some stream, or none.
static void draw() {
  static std::minstd_rand random(getenv("EMULATE_SEED") ? atoi(getenv("EMULATE_SEED")) + 1 : 2);
  std::lock_guard<std::recursive_mutex> lock(order);
  for (CUstream s : streams)
    if (s->done < s->begun && random() % 4 == 0) passed({s, s->done + 1});
}

static CUresult enqueue(CUstream s, std::function<void()> task) {
  std::lock_guard<std::recursive_mutex> lock(order);
  if (!s) return task(), CUDA_SUCCESS;
  s->tasks.push_back(task), s->begun++;
  return CUDA_SUCCESS;
}

// synchronize carries out all tasks of a card.
static void synchronize(CUctx_st* c) {
  std::lock_guard<std::recursive_mutex> lock(order);
  for (CUstream s : streams)
    if (s->context == c) passed(end_of(s));
}

// Memory. A zone of poison lies before and behind each piece and is looked at after every kernel.

constexpr size_t kZone = 512;
constexpr unsigned char kMark = 0xff;  // NaN where it is read as a number

struct Piece {
  size_t size;
  CUctx_st* context;
};

static std::mutex guard;
static std::map<char*, Piece> pieces;

// usable tells whether a card may use the memory at an address, which may be nobody's.
static bool usable(const CUctx_st* c, CUdeviceptr p) {
  std::lock_guard<std::mutex> lock(guard);
  auto at = pieces.upper_bound((char*)p);
  if (at == pieces.begin()) return true;
  --at;
  const CUctx_st* owner = at->second.context;
  return (char*)p >= at->first + at->second.size || owner == c || c->peers.count(owner->card);
}

static bool marked(const char* from, size_t size) {
  for (size_t i = 0; i < size; i++)
    if ((unsigned char)from[i] != kMark) return false;
  return true;
}

// mapped is memory that holds marks: pages of one file, of which only those are copied that are written. Most of an
// arena never are.
static char* mapped(size_t size) {
  constexpr size_t kFile = 16 << 20;
  static const int file = [] {
    int f = memfd_create("marks", 0);
    std::string marks(kFile, (char)kMark);
    if (f < 0 || write(f, marks.data(), kFile) != (ssize_t)kFile) fail("cannot keep marks");
    return f;
  }();
  void* base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  for (size_t at = 0; at < size; at += kFile)
    if (mmap((char*)base + at, std::min(kFile, size - at), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
      fail("cannot map %zu bytes", size);
  return (char*)base;
}

// clear writes zeros, to whole pages by giving them back.
static void clear(char* p, size_t size) {
  constexpr size_t kPage = 4096;
  char *end = p + size, *from = (char*)(((size_t)p + kPage - 1) / kPage * kPage),
       *to = (char*)((size_t)end / kPage * kPage);
  if (from >= to) return (void)memset(p, 0, size);
  memset(p, 0, from - p), memset(to, 0, end - to);
  if (mmap(from, to - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
      MAP_FAILED)
    fail("cannot clear %zu bytes", size);
}

static size_t rounded(size_t n) { return (n + kZone - 1) / kZone * kZone; }

static void check(const char* after, char* p, size_t size) {
  if (!marked(p - kZone, kZone)) fail("%s wrote before a piece of %zu bytes", after, size);
  if (!marked(p + size, rounded(size) - size + kZone)) fail("%s wrote behind a piece of %zu bytes", after, size);
}

static void check_all(const char* after) {
  std::lock_guard<std::mutex> lock(guard);
  for (auto& [p, piece] : pieces) check(after, p, piece.size);
}

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = kCards, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < kCards ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  return *can = !getenv("EMULATE_NO_PEERS"), CUDA_SUCCESS;
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned) {
  std::lock_guard<std::mutex> lock(guard);
  return current->peers.insert(peer->card).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) { return snprintf(name, size, "emulated GPU"), CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) { return *bytes = kMemory, CUDA_SUCCESS; }
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) { return *major = 9, *minor = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    default: fail("cuDeviceGetAttribute of attribute %d", attribute);
  }
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice device) { return *c = &contexts[device], CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) { return current = c, CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* c) { return *c = current, CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return synchronize(current), CUDA_SUCCESS; }

CUresult cuStreamCreate(CUstream* s, unsigned flags) {
  if (flags != CU_STREAM_NON_BLOCKING) fail("a stream that waits for the default one");
  std::lock_guard<std::recursive_mutex> lock(order);
  return *s = new CUstream_st{current, {}}, streams.insert(*s), CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream s) {
  std::lock_guard<std::recursive_mutex> lock(order);
  passed(end_of(s));
  return streams.erase(s), CUDA_SUCCESS;  // events still name it
}
CUresult cuStreamSynchronize(CUstream s) {
  std::lock_guard<std::recursive_mutex> lock(order);
  return passed(end_of(s)), CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
  draw();
  std::lock_guard<std::recursive_mutex> lock(order);
  Mark mark = e->mark;
  if (!mark.stream || mark.stream->done >= mark.number) return CUDA_SUCCESS;
  return enqueue(s, [mark] { passed(mark); });
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  switch (code) {
    case CUDA_SUCCESS: *text = "success"; break;
    case CUDA_ERROR_INVALID_VALUE: *text = "invalid argument"; break;
    case CUDA_ERROR_INVALID_DEVICE: *text = "invalid device ordinal"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "out of memory"; break;
    case CUDA_ERROR_NOT_FOUND: *text = "named symbol not found"; break;
    case CUDA_ERROR_INVALID_IMAGE: *text = "device kernel image is invalid"; break;
    case CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: *text = "peer access has not been enabled"; break;
    default: *text = "an error of the emulated driver";
  }
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* p, size_t size) {
  std::lock_guard<std::mutex> lock(guard);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (current->taken + size > kMemory) return CUDA_ERROR_OUT_OF_MEMORY;
  char* base = mapped(rounded(size) + 2 * kZone);
  if (!base) return CUDA_ERROR_OUT_OF_MEMORY;
  pieces[base + kZone] = {size, current}, current->taken += size;
  *p = (CUdeviceptr)(base + kZone);
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr p) {
  for (CUctx_st& c : contexts) synchronize(&c);
  std::lock_guard<std::mutex> lock(guard);
  auto at = pieces.find((char*)p);
  if (at == pieces.end()) return CUDA_ERROR_INVALID_VALUE;
  check("somebody", at->first, at->second.size);
  at->second.context->taken -= at->second.size;
  munmap(at->first - kZone, rounded(at->second.size) + 2 * kZone);
  pieces.erase(at);
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t* left, size_t* total) {
  return *left = kMemory - current->taken, *total = kMemory, CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** p, size_t size, unsigned) {
  return *p = malloc(size), *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemHostRegister(void*, size_t, unsigned) { return CUDA_SUCCESS; }
CUresult cuMemHostUnregister(void*) {
  for (CUctx_st& c : contexts) synchronize(&c);
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* p) { return free(p), CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  return memcpy((void*)to, from, size), CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size, CUstream) {
  return memcpy((void*)to, from, size), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) { return memcpy(to, (void*)from, size), CUDA_SUCCESS; }
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return memcpy((void*)to, (void*)from, size), CUDA_SUCCESS;
}
CUresult cuMemsetD8(CUdeviceptr p, unsigned char value, size_t size) {
  if (value == 0) return clear((char*)p, size), CUDA_SUCCESS;
  return memset((void*)p, value, size), CUDA_SUCCESS;
}

// cuMemcpy2DAsync copies rows of this card or of a peer. From when its stream has come to it until it is carried out
// their place holds poison.
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* p, CUstream s) {
  CUDA_MEMCPY2D c = *p;
  if (c.srcMemoryType != CU_MEMORYTYPE_UNIFIED || c.dstMemoryType != CU_MEMORYTYPE_UNIFIED)
    fail("a copy of rows of a kind that the project does not use");
  if (c.WidthInBytes > c.srcPitch || c.WidthInBytes > c.dstPitch) return CUDA_ERROR_INVALID_VALUE;
  CUctx_st* by = s ? s->context : current;
  if (!usable(by, c.srcDevice) || !usable(by, c.dstDevice)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  draw();
  std::lock_guard<std::recursive_mutex> lock(order);
  auto poison = [c] {
    for (size_t i = 0; i < c.Height; i++) memset((char*)c.dstDevice + i * c.dstPitch, kMark, c.WidthInBytes);
  };
  if (s && s->done == s->begun)
    poison();
  else if (s)
    enqueue(s, poison);
  return enqueue(s, [c] {
    for (size_t i = 0; i < c.Height; i++)
      memcpy((char*)c.dstDevice + i * c.dstPitch, (char*)c.srcDevice + i * c.srcPitch, c.WidthInBytes);
  });
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s) {
  CUDA_MEMCPY2D c = {};
  c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = to, c.srcDevice = from, c.dstPitch = c.srcPitch = c.WidthInBytes = size, c.Height = 1;
  return cuMemcpy2DAsync(&c, s);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size, CUstream s) {
  return enqueue(s, [=] { memcpy(to, (void*)from, size); });
}

CUresult cuEventCreate(CUevent* e, unsigned flags) {
  return *e = new CUevent_st{!(flags & CU_EVENT_DISABLE_TIMING)}, CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent e) { return delete e, CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent e, CUstream s) {
  draw();
  std::lock_guard<std::recursive_mutex> lock(order);
  return e->at = std::chrono::steady_clock::now(), e->mark = end_of(s), CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent e) {
  draw();
  std::lock_guard<std::recursive_mutex> lock(order);
  return !e->mark.stream || e->mark.stream->done >= e->mark.number ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuEventSynchronize(CUevent e) {
  std::lock_guard<std::recursive_mutex> lock(order);
  return passed(e->mark), CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float* ms, CUevent from, CUevent to) {
  if (!from->timed || !to->timed) return CUDA_ERROR_INVALID_HANDLE;
  return *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count(), CUDA_SUCCESS;
}

// Modules and kernels.

// An image is a shared library, which ends with the table of its sections.
static size_t size_of(const unsigned char* image) {
  unsigned long long table;
  unsigned short size, count;
  memcpy(&table, image + 40, 8), memcpy(&size, image + 58, 2), memcpy(&count, image + 60, 2);
  return table + (size_t)size * count;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  if (memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
  int file = memfd_create("kernels", 0);
  size_t size = size_of((const unsigned char*)image);
  if (file < 0 || write(file, image, size) != (ssize_t)size) fail("cannot keep %zu bytes of a module", size);
  std::string path = "/proc/self/fd/" + std::to_string(file);
  CUmod_st* m = new CUmod_st{dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr, {}};
  if (!m->library) fail("%s", dlerror());
  m->kernels = (const Kernel*)dlsym(m->library, "emu_kernels");
  if (!m->kernels) return CUDA_ERROR_INVALID_IMAGE;
  *module = m;  // the file stays open: another of its name would be taken for this one
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  for (const Kernel* k = m->kernels; k->name; k++)
    if (strcmp(k->name, name) == 0) {
      CUfunc_st*& made = m->functions[name];
      if (!made) made = new CUfunc_st{k, 48 << 10};
      return *f = made, CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  if (attribute != CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) fail("cuFuncGetAttribute of attribute %d", attribute);
  // known when the kernel has run: a launch that has too much of both fails then
  return *value = 0, CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    fail("cuFuncSetAttribute of attribute %d", attribute);
  if (value < 0 || (size_t)value > kSharedMost) return CUDA_ERROR_INVALID_VALUE;
  return f->dynamic = value, CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction f, size_t i, size_t* offset, size_t* size) {
  const Kernel& k = *f->kernel;
  if (i >= (size_t)k.parameters) return CUDA_ERROR_INVALID_VALUE;
  size_t at = 0;
  for (size_t j = 0; j <= i; j++) {
    at = (at + k.alignments[j] - 1) / k.alignments[j] * k.alignments[j];
    if (j < i) at += k.sizes[j];
  }
  return *offset = at, *size = k.sizes[i], CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** values, void**) {
  unsigned gx = c->gridDimX, gy = c->gridDimY, gz = c->gridDimZ;
  unsigned tx = c->blockDimX, ty = c->blockDimY, tz = c->blockDimZ;
  unsigned long long threads = (unsigned long long)tx * ty * tz;
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || threads == 0 || threads > f->kernel->threads ||
      c->sharedMemBytes > f->dynamic)
    return CUDA_ERROR_INVALID_VALUE;
  bool early = c->numAttrs == 1 && c->attrs->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  if (c->numAttrs > early || c->hStream) fail("a launch as the project has none");
  for (int i = 0; i < f->kernel->parameters; i++)
    for (size_t at = 0; at + sizeof(CUdeviceptr) <= (size_t)f->kernel->sizes[i]; at += sizeof(CUdeviceptr)) {
      CUdeviceptr p;
      memcpy(&p, (char*)values[i] + at, sizeof p);
      if (!usable(current, p)) fail("%s of card %d gets memory of another", f->kernel->name, current->card);
    }
  draw();
  bool fits = launch(*f->kernel, {gx, gy, gz}, {tx, ty, tz}, c->sharedMemBytes, values, early);
  check_all(f->kernel->name);
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned tx, unsigned ty, unsigned tz,
                        unsigned shared, CUstream, void** values, void**) {
  CUlaunchConfig c = {gx, gy, gz, tx, ty, tz, shared, nullptr, nullptr, 0};
  return cuLaunchKernelEx(&c, f, values, nullptr);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  unsigned bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8      ? 1
                   : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2
                   : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32  ? 4
                                                              : 0;
  unsigned row = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE  ? 0
                 : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
                 : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                        : 128;
  bool known = bytes && rank == 3 && box[2] == 1 && (!row || box[0] * bytes == row);
  known = known && (row != 128 || swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
  for (cuuint32_t i = 0; i < rank; i++) known = known && steps[i] == 1;
  bool valid = (size_t)data % 16 == 0 && size[0] && size[1] && size[2] && stride[0] % 16 == 0 && stride[1] % 16 == 0 &&
               box[0] >= 1 && box[0] <= 256 && box[0] * bytes % 16 == 0 && box[1] >= 1 && box[1] <= 256;
  if (!known) fail("a tensor map of a kind that the project does not use");
  if (!valid) return CUDA_ERROR_INVALID_VALUE;
  Map m = {kMapMagic, (const char*)data, {size[0], size[1], size[2]}, {stride[0], stride[1]}, box[1], box[0] * bytes,
           bytes, row};
  memset(map, 0, sizeof *map);
  memcpy(map, &m, sizeof m);
  return CUDA_SUCCESS;
}

}  // extern "C"

// Graphs: kernels in a row.

struct CUgraphNode_st {
  CUfunction f;
  bool early = false;
  unsigned grid[3], threads[3], shared;
  std::vector<std::vector<char>> values;

  void set(const CUDA_KERNEL_NODE_PARAMS* p) {
    f = p->func;
    unsigned g[] = {p->gridDimX, p->gridDimY, p->gridDimZ}, t[] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    memcpy(grid, g, sizeof grid), memcpy(threads, t, sizeof threads);
    shared = p->sharedMemBytes;
    values.clear();
    for (int i = 0; i < f->kernel->parameters; i++)
      values.emplace_back((char*)p->kernelParams[i], (char*)p->kernelParams[i] + f->kernel->sizes[i]);
  }
  CUresult run() {
    std::vector<void*> all;
    for (auto& v : values) all.push_back(v.data());
    CUlaunchAttribute overlaps = {};
    overlaps.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    CUlaunchConfig c = {grid[0], grid[1], grid[2], threads[0], threads[1], threads[2], shared, nullptr, &overlaps,
                        early};
    return cuLaunchKernelEx(&c, f, all.data(), nullptr);
  }
};
struct CUgraph_st {
  std::vector<CUgraphNode_st*> nodes;
};
struct CUgraphExec_st {
  std::map<CUgraphNode, size_t> places;
  std::vector<CUgraphNode_st> nodes;
};

extern "C" {

CUresult cuGraphCreate(CUgraph* g, unsigned) { return *g = new CUgraph_st(), CUDA_SUCCESS; }
CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph g, const CUgraphNode* before, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS* p) {
  if (count > 0 || before) fail("a node of a graph with dependencies");
  *node = new CUgraphNode_st();
  (*node)->set(p);
  g->nodes.push_back(*node);
  return CUDA_SUCCESS;
}
CUresult cuGraphAddDependencies_v2(CUgraph g, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edge, size_t count) {
  size_t n = g->nodes.size();
  if (count != 1 || n < 2 || *from != g->nodes[n - 2] || *to != g->nodes[n - 1])
    fail("a graph whose kernels are not in a row");
  (*to)->early = edge->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  if ((*to)->early != (edge->from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* e, CUgraph g, unsigned long long) {
  *e = new CUgraphExec_st();
  for (CUgraphNode n : g->nodes) (*e)->places[n] = (*e)->nodes.size(), (*e)->nodes.push_back(*n);
  return CUDA_SUCCESS;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* p) {
  CUgraphNode_st& n = e->nodes.at(e->places.at(node));
  if (n.f != p->func) return CUDA_ERROR_INVALID_VALUE;
  n.set(p);
  return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec e, CUstream) {
  for (CUgraphNode_st& n : e->nodes)
    if (CUresult code = n.run()) return code;
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec e) { return delete e, CUDA_SUCCESS; }
CUresult cuGraphDestroy(CUgraph g) {
  for (CUgraphNode n : g->nodes) delete n;
  delete g;
  return CUDA_SUCCESS;
}

}  // extern "C"
