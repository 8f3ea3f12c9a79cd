"""Compiles .cu files with NVRTC from its Python wheel: no GPU, no driver, no CUDA installation.

Each file is compiled for Hopper, for Blackwell and with every macro, as fast as NVRTC can: the front end, the templates
and ptxas, which knows what an architecture has, see all of them. Optimizing as the product does takes ten times as
long; tests on a card do.

usage: nvrtc.py FILE.cu ...   exits 1 if one does not compile
"""
import ctypes
import pathlib
import re
import sys
import sysconfig

FAST = "--Ofast-compile=max"
CUDA = pathlib.Path(__file__).parent.parent / "kernels/cuda"
COMPILE = CUDA / "driver/compile.go"


def product_options():
    """The options in compile.go, so that what compiles here compiles there."""
    line = re.search(r"^var options = \[\]string\{(.*?)\}$", COMPILE.read_text(), re.MULTILINE | re.DOTALL)
    if not line:
        sys.exit(f"nvrtc.py: no options in {COMPILE}")
    return re.findall(r'"([^"]+)"', line[1])


def product_macros():
    """The macros in compile.go that choose a definition's variants; all of them go together."""
    body = re.search(r"^func defines\(.*?^}$", COMPILE.read_text(), re.MULTILINE | re.DOTALL)
    macros = re.findall(r'"([A-Z][A-Z0-9_]+)"', body[0]) if body else []
    if not macros:
        sys.exit(f"nvrtc.py: no macros in {COMPILE}")
    return [f"--define-macro={m}" for m in macros]


def load(site):
    """The library; its builtins are loaded first, because it looks for them by name alone."""
    libs = []
    for name in ("libnvrtc-builtins.so.*[0-9]", "libnvrtc.so.*[0-9]"):
        found = [f for f in sorted(site.glob(f"nvidia/**/{name}")) if ".alt." not in f.name]
        if not found:
            sys.exit(f"nvrtc.py: no {name} under {site}: pip install nvidia-cuda-nvrtc")
        libs.append(ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL))
    return libs[-1]


def log(lib, program):
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, text)
    return text.value.decode()


def compiles(lib, path, options):
    program = ctypes.c_void_p()
    code = lib.nvrtcCreateProgram(ctypes.byref(program), path.read_bytes(), str(path).encode(), 0, None, None)
    if code == 0:
        code = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if code != 0:
        print(log(lib, program) if program else f"nvrtc error {code}")
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return code == 0


def main(paths):
    if not paths:
        sys.exit(__doc__)
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    lib, common = load(site), product_options()
    bad = 0
    for path in map(pathlib.Path, paths):
        headers = [*CUDA.glob("**/*.cuh"), *site.glob("nvidia/**/cuda_bf16.h")]
        includes = sorted({*(h.parent for h in headers), *site.glob("nvidia/**/include/cccl")})
        for name, arch, more in [
            ("sm_90a", "sm_90a", []),
            ("sm_100a", "sm_100a", []),
            ("sm_90a with every macro", "sm_90a", product_macros()),
        ]:
            options = [f"--gpu-architecture={arch}", FAST, *common, *more, *(f"--include-path={i}" for i in includes)]
            ok = compiles(lib, path, [o.encode() for o in options])
            print(f"{path} {name}: {'ok' if ok else 'FAILED'}")
            bad += not ok
    sys.exit(bad > 0)


if __name__ == "__main__":
    main(sys.argv[1:])
