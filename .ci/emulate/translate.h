// From CUDA C++ to C++17.
#pragma once
#include <string>
#include <vector>

// Translated is a module's source and its kernels: their names, and the most threads of a block as an expression (""
// where it is not bounded).
struct Translated {
  struct Kernel {
    std::string name, threads;
  };
  std::string text;
  std::vector<Kernel> kernels;
};

// translate takes preprocessed CUDA C++. It throws std::runtime_error with one line for what it does not know.
Translated translate(const std::string& source);
