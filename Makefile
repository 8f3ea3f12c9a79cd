# go build . and go test ./... are all that the CPU needs; this is for the rest.
CUDA = flags=$$(.ci/cuda-env) && eval "$$flags" &&

.PHONY: all test race ci cuda kernels cuda-test emulate mutate vet-cuda clean

all: # ./lockstep, pure Go
	CGO_ENABLED=0 go build -o lockstep .

test:
	go test ./...

race: # slow: nightly
	go test -race -timeout 60m ./...

ci:
	.ci/run

cuda: # ./lockstep-cuda, for machines with an NVIDIA driver and the CUDA 13 libraries
	$(CUDA) go build -tags cuda -o lockstep-cuda .

kernels: cuda # for ARCH (sm_90a) into the user's cache, as the first start would; on a machine without a GPU too
	LD_LIBRARY_PATH=.cache/cuda/stub ./lockstep-cuda devices --compile $(or $(ARCH),sm_90a)

cuda-test: # ./cuda-tests/*.test, which hold every operation of the GPU against the CPU
	$(CUDA) go test -c -tags cuda -o cuda-tests/ ./kernels/cuda/...
	$(CUDA) go test -c -tags cuda -o cuda-tests/model/ ./model

emulate: # that, on an emulated GPU; slow: nightly. ARGS: see .ci/emulate/README.md
	.ci/emulate/test $(ARGS)

mutate: # plants faults and names those that no test notices; hours: nightly. ARGS are those of .ci/mutate/run
	.ci/mutate/run $(ARGS)

vet-cuda:
	$(CUDA) go vet -tags cuda ./...

clean:
	rm -rf lockstep lockstep-cuda cuda-tests
