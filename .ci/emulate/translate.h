// From CUDA C++ to C++17.
#pragma once
#include <string>
#include <vector>

// Translated is a module's source and the names of its kernels.
struct Translated {
  std::string text;
  std::vector<std::string> kernels;
};

// translate takes preprocessed CUDA C++. It throws std::runtime_error with one line for what it does not know.
Translated translate(const std::string& source);
