// A stand-in for NVRTC: its "machine code" is a shared library for this machine, made by g++ from what translate.cc
// makes of a source. Libraries are kept in EMULATE_DIR by the hash of what they are made from; the preprocessor goes
// first, so that a source is compiled once for all definitions that do not touch it.
#include <fcntl.h>
#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <sstream>
#include <stdexcept>

#include "translate.h"

using std::string;
using std::vector;

struct _nvrtcProgram {
  string name, source, log, assembly, code;
  vector<std::pair<string, string>> headers;
};

static const char compiler[] = "g++";
static const char preprocessing[] = "-std=c++17 -E -x c++ -nostdinc -undef";
static const char flags[] =
    "-std=c++17 -O1 -march=native -ffp-contract=off -fno-math-errno -fno-strict-aliasing -fno-gnu-unique "
    "-fvisibility=hidden -fpermissive -w -shared -fPIC";

static string folder() {
  const char* dir = getenv("EMULATE_DIR");
  if (!dir) throw std::runtime_error("EMULATE_DIR is not set: it names the folder of .ci/emulate/build");
  return dir;
}

static string contents(const string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

static void write(const string& path, const string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

// hash is FNV-1a of 128 bits (Fowler, Noll, Vo), which is enough for a cache that nobody attacks.
static string hash(const string& s) {
  unsigned __int128 h = ((unsigned __int128)0x6c62272e07bb0142 << 64) | 0x62b821756295c58d,
                    prime = ((unsigned __int128)1 << 88) | 0x13b;
  for (unsigned char c : s) h = (h ^ c) * prime;
  char text[33];
  snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)(h >> 64), (unsigned long long)h);
  return text;
}

// Scratch is a folder that is removed in the end.
struct Scratch {
  string path;
  Scratch() {
    path = folder() + "/tmp.XXXXXX";
    if (!mkdtemp(path.data())) throw std::runtime_error("cannot make a folder in " + folder());
  }
  ~Scratch() { (void)!system(("rm -rf '" + path + "'").c_str()); }
};

// Turn is the right to compile: the project asks for all sources at once.
class Turn {
  static inline std::mutex guard;
  static inline std::condition_variable changed;
  static inline long left = sysconf(_SC_NPROCESSORS_ONLN);

 public:
  Turn() {
    std::unique_lock<std::mutex> lock(guard);
    changed.wait(lock, [] { return left > 0; });
    left--;
  }
  ~Turn() {
    std::lock_guard<std::mutex> lock(guard);
    left++;
    changed.notify_one();
  }
};

// run carries out a command of the shell; what it says is in the log where it fails.
static void run(const Scratch& dir, const string& command) {
  string log = dir.path + "/log";
  if (system((command + " 2>'" + log + "'").c_str()) != 0) throw std::runtime_error(contents(log));
}

static string preprocessed(const _nvrtcProgram& p, const vector<string>& defines, const Scratch& dir) {
  for (auto& [name, text] : p.headers) write(dir.path + "/" + name, text);
  write(dir.path + "/" + p.name, p.source);
  string command = string("cd '") + dir.path + "' && " + compiler + " " + preprocessing;
  for (const string& d : defines) command += " -D" + d;
  run(dir, command + " '" + p.name + "' -o preprocessed");
  return contents(dir.path + "/preprocessed");
}

// Claim is the right to make a file: processes that begin together ask for the same modules.
class Claim {
  int file;

 public:
  explicit Claim(const string& path) : file(open((path + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
    if (file < 0 || flock(file, LOCK_EX) != 0) throw std::runtime_error("cannot lock " + path);
  }
  ~Claim() { close(file); }
};

// compile gives the library of a translated source.
static string compile(const string& text, const Scratch& dir) {
  string home = folder(),
         object =
             home + "/modules/" + hash(text + flags + contents(home + "/device.h") + contents(home + "/ptx.h")) + ".so";
  Claim claim(object);
  if (access(object.c_str(), R_OK) != 0) {
    write(dir.path + "/module.cc", text);
    run(dir, string(compiler) + " " + flags + " -I'" + home + "' -include ptx.h '" + dir.path + "/module.cc' -o '" +
                 dir.path + "/module.so'");
    if (rename((dir.path + "/module.so").c_str(), object.c_str()) != 0)
      throw std::runtime_error("cannot write " + object);
  }
  return contents(object);
}

// defines_of is what options of NVRTC define; those of an architecture that is not known here are refused.
static vector<string> defines_of(int count, const char* const* options, string& arch) {
  vector<string> defines;
  for (int i = 0; i < count; i++) {
    string o = options[i];
    if (o.rfind("--define-macro=", 0) == 0) defines.push_back(o.substr(15));
    else if (o.rfind("--gpu-architecture=", 0) == 0) arch = o.substr(19);
    else if (o != "--std=c++17" && o != "--fmad=false" && o != "--ftz=false" && o != "--prec-div=true" &&
             o != "--prec-sqrt=true" && o != "-default-device")
      throw std::runtime_error("the emulated NVRTC does not know the option " + o);
  }
  if (arch == "sm_90a") defines.push_back("__CUDA_ARCH_FEAT_SM90_ALL");
  else if (arch != "sm_100a") throw std::runtime_error("the emulated NVRTC does not know the architecture " + arch);
  defines.push_back("__CUDACC__");
  return defines;
}

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int count,
                               const char* const* headers, const char* const* names) {
  *program = new _nvrtcProgram{name, source, "", "", "", {}};
  for (int i = 0; i < count; i++) (*program)->headers.push_back({names[i], headers[i]});
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int count, const char* const* options) {
  try {
    Turn turn;
    Scratch dir;
    string arch;
    vector<string> defines = defines_of(count, options, arch);
    Translated t = translate(preprocessed(*p, defines, dir));
    t.text +=
        "extern \"C\" __attribute__((visibility(\"default\"))) const char emu_architecture[] = \"" + arch + "\";\n";
    p->code = compile(t.text, dir);
    for (auto& k : t.kernels) p->assembly += ".entry " + k.name + "(\n";
    return NVRTC_SUCCESS;
  } catch (const std::exception& e) {
    p->log = e.what();
    return NVRTC_ERROR_COMPILATION;
  }
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram p, size_t* size) { return *size = p->assembly.size() + 1, NVRTC_SUCCESS; }
nvrtcResult nvrtcGetPTX(nvrtcProgram p, char* text) {
  return memcpy(text, p->assembly.c_str(), p->assembly.size() + 1), NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t* size) { return *size = p->code.size(), NVRTC_SUCCESS; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char* code) {
  return memcpy(code, p->code.data(), p->code.size()), NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t* size) { return *size = p->log.size() + 1, NVRTC_SUCCESS; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char* text) {
  return memcpy(text, p->log.c_str(), p->log.size() + 1), NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* p) {
  delete *p;
  *p = nullptr;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult r) { return r == NVRTC_SUCCESS ? "success" : "the emulated NVRTC failed"; }

}  // extern "C"
