//go:build cuda

package driver

/*
#include <cuda.h>

static CUresult lockstepLoad(CUmodule *module, const void *image, char *log, size_t size) {
	CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)size};
	return cuModuleLoadDataEx(module, image, 2, options, values);
}

static void lockstepValues(void **values, char *params, const size_t *offsets, size_t count) {
	for (size_t i = 0; i < count; i++) values[i] = params + offsets[i] - offsets[0];
}

// lockstepLaunch enqueues a kernel. An early one begins when all blocks of the kernel before it have said so
// (griddepcontrol.launch_dependents) or ended.
static CUresult lockstepLaunch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared,
                               int early, char *params, const size_t *offsets, size_t count) {
	void *values[64];
	lockstepValues(values, params, offsets, count);
	if (!early) return cuLaunchKernel(f, gx, gy, gz, threads, 1, 1, shared, NULL, values, NULL);
	CUlaunchAttribute overlaps = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
		.value.programmaticStreamSerializationAllowed = 1};
	CUlaunchConfig c = {.gridDimX = gx, .gridDimY = gy, .gridDimZ = gz, .blockDimX = threads, .blockDimY = 1,
		.blockDimZ = 1, .sharedMemBytes = shared, .attrs = &overlaps, .numAttrs = 1};
	return cuLaunchKernelEx(&c, f, values, NULL);
}

// lockstepNode appends a kernel to a graph after *node (if any) where exec is NULL, and otherwise changes *node of an
// instantiated graph.
static CUresult lockstepNode(CUgraph graph, CUgraphExec exec, CUgraphNode *node, CUfunction f, unsigned gx, unsigned gy,
                             unsigned gz, unsigned threads, unsigned shared, int early, char *params,
                             const size_t *offsets, size_t count) {
	void *values[64];
	lockstepValues(values, params, offsets, count);
	CUDA_KERNEL_NODE_PARAMS p = {.func = f, .gridDimX = gx, .gridDimY = gy, .gridDimZ = gz, .blockDimX = threads,
		.blockDimY = 1, .blockDimZ = 1, .sharedMemBytes = shared, .kernelParams = values};
	if (exec != NULL) return cuGraphExecKernelNodeSetParams(exec, *node, &p);
	CUgraphNode before = *node;
	CUresult code = cuGraphAddKernelNode(node, graph, NULL, 0, &p);
	if (code != CUDA_SUCCESS || before == NULL) return code;
	CUgraphEdgeData edge = {0};
	if (early) {
		edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
		edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
	}
	return cuGraphAddDependencies_v2(graph, &before, node, &edge, 1);
}

// lockstepCopyRows copies rows of this card or of a peer; pitches and width are in bytes.
static CUresult lockstepCopyRows(CUdeviceptr dst, CUdeviceptr src, size_t dstPitch, size_t srcPitch, size_t width,
                                 size_t rows, CUstream stream) {
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = src, .srcPitch = srcPitch,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = dst, .dstPitch = dstPitch, .WidthInBytes = width,
		.Height = rows};
	return cuMemcpy2DAsync(&c, stream);
}

static const char *lockstepError(CUresult code) {
	const char *text = NULL;
	return cuGetErrorString(code, &text) == CUDA_SUCCESS ? text : "unknown error of the driver";
}
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"gorgonia.org/cu"
)

// This file is what gorgonia.org/cu lacks: modules from memory, kernels that want much shared memory, launches without
// an allocation, graphs, rows of a peer, and pinned memory. But for those rows everything goes to the context's default
// stream, which orders operations.

// function is a kernel in a loaded module.
type function struct {
	name    string
	source  string // file
	f       C.CUfunction
	offsets []C.size_t // of parameters
	size    int        // bytes of parameters
}

// mostParams is how many parameters lockstepLaunch takes.
const mostParams = 64

// parameters asks the driver where the parameters of a kernel lie: the first not at 0 if it is aligned to 64 bytes,
// which a buffer passed whole would miss.
func (f *function) parameters() error {
	for {
		var offset, size C.size_t
		code := C.cuFuncGetParamInfo(f.f, C.size_t(len(f.offsets)), &offset, &size)
		if code == C.CUDA_ERROR_INVALID_VALUE { // after the last
			return nil
		}
		if code != C.CUDA_SUCCESS {
			return failure(code)
		}
		if len(f.offsets) == mostParams {
			return fmt.Errorf("more than %d parameters", mostParams)
		}
		f.offsets = append(f.offsets, offset)
		f.size = int(offset + size - f.offsets[0])
	}
}

// loadModule loads a cubin and finds kernels in it, which may use up to `shared` bytes of shared memory, what they
// declare counted in.
func loadModule(image []byte, names []string, shared int) (map[string]*function, error) {
	var module C.CUmodule
	log := make([]byte, 8192)
	if code := C.lockstepLoad(&module, unsafe.Pointer(&image[0]), (*C.char)(unsafe.Pointer(&log[0])),
		C.size_t(len(log))); code != C.CUDA_SUCCESS {
		text, _, _ := bytes.Cut(log, []byte{0})
		return nil, fmt.Errorf("%w: %s", failure(code), bytes.TrimSpace(text))
	}
	found := map[string]*function{}
	for _, name := range names {
		var f C.CUfunction
		text := append([]byte(name), 0)
		if code := C.cuModuleGetFunction(&f, module, (*C.char)(unsafe.Pointer(&text[0]))); code != C.CUDA_SUCCESS {
			return nil, fmt.Errorf("kernel %s: %w", name, failure(code))
		}
		var declared C.int
		if code := C.cuFuncGetAttribute(&declared, C.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f); code != C.CUDA_SUCCESS {
			return nil, fmt.Errorf("kernel %s: %w", name, failure(code))
		}
		if code := C.cuFuncSetAttribute(f, C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
			C.int(shared)-declared); code != C.CUDA_SUCCESS {
			return nil, fmt.Errorf("kernel %s: %d bytes of shared memory: %w", name, shared, failure(code))
		}
		kernel := &function{name: name, f: f}
		if err := kernel.parameters(); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", name, err)
		}
		found[name] = kernel
	}
	return found, nil
}

// call is a kernel with everything it is launched with.
type call struct {
	f       *function
	grid    [3]int
	threads int
	shared  int    // bytes, in addition to what the kernel declares
	params  []byte // laid out as in a C struct
	early   bool   // see [Context.Early]
}

func (c *call) equal(o *call) bool {
	return c.f == o.f && c.grid == o.grid && c.threads == o.threads && c.shared == o.shared && c.early == o.early &&
		bytes.Equal(c.params, o.params)
}

func (c *call) isEarly() C.int {
	if c.early {
		return 1
	}
	return 0
}

// keep is the call with its parameters copied into buf.
func (c *call) keep(buf []byte) call {
	kept := *c
	kept.params = append(buf[:0], c.params...)
	return kept
}

// run enqueues the kernel.
func (c *call) run() error {
	if len(c.params) != c.f.size {
		return fmt.Errorf("%s: %d bytes of parameters: the kernel has %d", c.f.name, len(c.params), c.f.size)
	}
	code := C.lockstepLaunch(c.f.f, C.uint(c.grid[0]), C.uint(c.grid[1]), C.uint(c.grid[2]), C.uint(c.threads),
		C.uint(c.shared), c.isEarly(),
		(*C.char)(unsafe.Pointer(&c.params[0])), &c.f.offsets[0], C.size_t(len(c.f.offsets)))
	if code != C.CUDA_SUCCESS {
		return fmt.Errorf("%s: %w", c.f.name, failure(code))
	}
	return nil
}

func failure(code C.CUresult) error { return fmt.Errorf("CUDA: %s", C.GoString(C.lockstepError(code))) }

// pinned is host memory that the card copies from by itself.
func pinned(bytes int) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	if code := C.cuMemHostAlloc(&p, C.size_t(bytes), 0); code != C.CUDA_SUCCESS {
		return nil, failure(code)
	}
	return p, nil
}

// unpin gives pinned memory back.
func unpin(p unsafe.Pointer) error {
	if code := C.cuMemFreeHost(p); code != C.CUDA_SUCCESS {
		return failure(code)
	}
	return nil
}

// registered pins memory that the system gave, for all contexts and for kernels.
func registered(p unsafe.Pointer, bytes int) error {
	const flags = C.CU_MEMHOSTREGISTER_PORTABLE | C.CU_MEMHOSTREGISTER_DEVICEMAP
	if code := C.cuMemHostRegister(p, C.size_t(bytes), flags); code != C.CUDA_SUCCESS {
		return failure(code)
	}
	return nil
}

func unregistered(p unsafe.Pointer) error {
	if code := C.cuMemHostUnregister(p); code != C.CUDA_SUCCESS {
		return failure(code)
	}
	return nil
}

// copyRows enqueues a copy of rows between cards; pitches and width are in bytes.
func copyRows(dst, src cu.DevicePtr, dstPitch, srcPitch, width, rows int, s cu.Stream) error {
	if code := C.lockstepCopyRows(C.CUdeviceptr(dst), C.CUdeviceptr(src), C.size_t(dstPitch), C.size_t(srcPitch),
		C.size_t(width), C.size_t(rows), C.CUstream(unsafe.Pointer(s.C()))); code != C.CUDA_SUCCESS {
		return failure(code)
	}
	return nil
}

// graph is kernels in order that the driver carries out as one piece of work.
type graph struct {
	plan  C.CUgraph // owns the nodes
	nodes []C.CUgraphNode
	calls []call // of the nodes, as they will be launched next
	exec  C.CUgraphExec
}

// newGraph makes the graph of calls, each after the one before.
func newGraph(calls []call) (*graph, error) {
	g := &graph{}
	if code := C.cuGraphCreate(&g.plan, 0); code != C.CUDA_SUCCESS {
		return nil, failure(code)
	}
	var last C.CUgraphNode
	for i := range calls {
		if err := node(g.plan, nil, &last, &calls[i]); err != nil {
			return nil, errors.Join(err, g.close())
		}
		g.nodes, g.calls = append(g.nodes, last), append(g.calls, calls[i].keep(nil))
	}
	if code := C.cuGraphInstantiate(&g.exec, g.plan, 0); code != C.CUDA_SUCCESS {
		return nil, errors.Join(failure(code), g.close())
	}
	return g, nil
}

// hasKernels tells whether the graph launches the kernels of these calls, the same ones early.
func (g *graph) hasKernels(calls []call) bool {
	return slices.EqualFunc(g.calls, calls, func(x, y call) bool { return x.f == y.f && x.early == y.early })
}

// update gives each node what its kernel is to be launched with from now on, where that differs.
func (g *graph) update(calls []call) error {
	for i := range calls {
		c, of := &calls[i], &g.calls[i]
		if of.equal(c) {
			continue
		}
		if err := node(nil, g.exec, &g.nodes[i], c); err != nil {
			return err
		}
		*of = c.keep(of.params)
	}
	return nil
}

func node(plan C.CUgraph, exec C.CUgraphExec, n *C.CUgraphNode, c *call) error {
	if len(c.params) != c.f.size {
		return fmt.Errorf("%s: %d bytes of parameters: the kernel has %d", c.f.name, len(c.params), c.f.size)
	}
	code := C.lockstepNode(plan, exec, n, c.f.f, C.uint(c.grid[0]), C.uint(c.grid[1]), C.uint(c.grid[2]),
		C.uint(c.threads), C.uint(c.shared), c.isEarly(),
		(*C.char)(unsafe.Pointer(&c.params[0])), &c.f.offsets[0], C.size_t(len(c.f.offsets)))
	if code != C.CUDA_SUCCESS {
		return fmt.Errorf("%s: %w", c.f.name, failure(code))
	}
	return nil
}

// run enqueues the graph.
func (g *graph) run() error {
	if code := C.cuGraphLaunch(g.exec, nil); code != C.CUDA_SUCCESS {
		return failure(code)
	}
	return nil
}

func (g *graph) close() error {
	if g.exec != nil {
		if code := C.cuGraphExecDestroy(g.exec); code != C.CUDA_SUCCESS {
			return failure(code)
		}
	}
	if code := C.cuGraphDestroy(g.plan); code != C.CUDA_SUCCESS {
		return failure(code)
	}
	return nil
}
