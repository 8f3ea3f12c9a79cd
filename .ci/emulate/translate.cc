// Three things of CUDA C++ are not C++, once it is preprocessed and device.h stands before it: asm statements of PTX,
// declarations of shared memory, and the list of kernels that a module has. This is no parser: it finds their first
// words and rewrites what follows them.
#include "translate.h"

#include <ctype.h>

#include <set>
#include <stdexcept>

using std::string;
using std::vector;

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }
static bool is_space(char c) { return isspace((unsigned char)c); }

static string trimmed(const string& s) {
  size_t a = 0, b = s.size();
  while (a < b && is_space(s[a])) a++;
  while (b > a && is_space(s[b - 1])) b--;
  return s.substr(a, b - a);
}

// past_quoted is where a string or character that begins at `at` ends.
static size_t past_quoted(const string& s, size_t at) {
  char quote = s[at++];
  while (at < s.size() && s[at] != quote) at += s[at] == '\\' ? 2 : 1;
  return at + 1;
}

// past_group is where what is open at `at`, a bracket of any kind, is closed.
static size_t past_group(const string& s, size_t at) {
  int depth = 0;
  while (at < s.size()) {
    char c = s[at];
    if (c == '"' || c == '\'') {
      at = past_quoted(s, at);
      continue;
    }
    depth += c == '(' || c == '[' || c == '{';
    depth -= c == ')' || c == ']' || c == '}';
    at++;
    if (depth == 0) return at;
  }
  throw std::runtime_error("a bracket is not closed");
}

// parts cuts at a separator outside of brackets and quotes.
static vector<string> parts(const string& s, char separator) {
  vector<string> all;
  size_t from = 0, at = 0;
  while (at < s.size()) {
    char c = s[at];
    if (c == '"' || c == '\'') at = past_quoted(s, at);
    else if (c == '(' || c == '[' || c == '{') at = past_group(s, at);
    else if (at++, c == separator) all.push_back(s.substr(from, at - 1 - from)), from = at;
  }
  all.push_back(s.substr(from));
  return all;
}

// Asm statements.

struct Operand {
  string expression;
  bool written;
};

// unquoted puts adjacent string literals together.
static string unquoted(const string& s) {
  string text;
  for (size_t at = 0; at < s.size();) {
    if (s[at] != '"') {
      at++;
      continue;
    }
    for (at++; at < s.size() && s[at] != '"'; at++) {
      if (s[at] != '\\') text += s[at];
      else text += s[++at] == 'n' ? '\n' : s[at] == 't' ? '\t' : s[at];
    }
    at++;
  }
  return text;
}

static void add_operands(vector<Operand>& all, const string& list) {
  if (trimmed(list).empty()) return;
  for (const string& part : parts(list, ',')) {
    string p = trimmed(part);
    size_t open = p.find('(');
    if (p.empty() || p[0] != '"' || open == string::npos) throw std::runtime_error("an operand of asm: " + p);
    char how = p[1];
    all.push_back({p.substr(open), how == '=' || how == '+'});
  }
}

// name_of makes a function of an opcode: mma_async.m64n8k16.f32 is mma_async_k16_f32<8>, for shapes that come in many
// sizes.
static string name_of(const string& opcode) {
  string name;
  for (char c : opcode) name += is_word(c) ? c : '_';
  size_t at = name.find("_m64n");
  if (opcode.rfind("wgmma", 0) != 0 || at == string::npos) return name;
  size_t k = name.find('k', at);
  return name.substr(0, at + 1) + name.substr(k) + "<" + name.substr(at + 5, k - at - 5) + ">";
}

// argument translates an operand of an instruction: %3 to an expression, a name to a register of the statement.
static string argument(const string& text, const vector<Operand>& operands, const std::set<string>& registers,
                       bool* written = nullptr) {
  string t = trimmed(text);
  if (!t.empty() && t[0] == '[') t = trimmed(t.substr(1, t.size() - 2));
  if (t.rfind("_|", 0) == 0) t = t.substr(2);
  if (t[0] == '%') {
    size_t n = stoul(t.substr(1));
    if (n >= operands.size()) throw std::runtime_error("asm has no operand " + t);
    if (written) *written = operands[n].written;
    return operands[n].expression;
  }
  return registers.count(t) ? "ptx_" + t : t;
}

// instruction translates one; "" for what is only the card's way to wait.
static string instruction(const string& line, const vector<Operand>& operands, std::set<string>& registers) {
  string s = trimmed(line);
  if (s.empty() || s[0] == '@' || s.rfind("bra ", 0) == 0) return "";
  size_t space = s.find_first_of(" \t\n");
  string opcode = s.substr(0, space), rest = space == string::npos ? "" : trimmed(s.substr(space));
  if (opcode == ".reg") {
    size_t end = rest.find(' ');
    string type = rest.substr(0, end), made;
    for (const string& r : parts(rest.substr(end), ',')) {
      registers.insert(trimmed(r));
      made += (type == ".pred"  ? "bool ptx_"
               : type == ".b64" ? "unsigned long long ptx_"
                                : "unsigned ptx_") +
              trimmed(r) + "; ";
    }
    return made;
  }
  string call;
  if (!rest.empty())
    for (string a : parts(rest, ',')) {
      a = trimmed(a);
      if (a == "_") continue;
      string made;
      // An address with coordinates, [%1, {%2, %3}], is two arguments.
      if (a[0] == '[' && a.find('{') != string::npos) a = a.substr(1, a.size() - 2);
      for (string piece : parts(a, ',')) {
        piece = trimmed(piece);
        if (piece[0] == '{') {
          bool written = false;
          string list;
          for (const string& x : parts(piece.substr(1, piece.size() - 2), ',')) {
            bool w = false;
            list += (list.empty() ? "" : ", ") + argument(x, operands, registers, &w);
            written |= w;
          }
          made = (written ? "ptx::span(" : "ptx::values(") + list + ")";
        } else {
          made = argument(piece, operands, registers);
        }
        call += (call.empty() ? "" : ", ") + made;
      }
    }
  return "ptx::" + name_of(opcode) + "(" + call + "); ";
}

// statement translates what stands in the brackets of asm.
static string statement(const string& inside) {
  vector<string> sections = parts(inside, ':');
  vector<Operand> operands;
  for (size_t i = 1; i < sections.size() && i < 3; i++) add_operands(operands, sections[i]);
  string text = unquoted(sections[0]), made;
  if (trimmed(text).empty()) return "do {} while (0)";
  text = trimmed(text);
  if (text[0] == '{' && past_group(text, 0) == text.size()) text = text.substr(1, text.size() - 2);
  std::set<string> registers;
  for (const string& part : parts(text, ';')) {
    string line = trimmed(part);
    for (size_t colon; (colon = line.find(":\n")) != string::npos;) line = trimmed(line.substr(colon + 2));  // labels
    if (!line.empty() && line.back() == ':') continue;
    made += instruction(line, operands, registers);
  }
  return "do { " + made + "} while (0)";
}

// Declarations of shared memory.

struct Declaration {
  string align, type;
  vector<string> declarators;
};

// declaration reads what follows __shared__, up to the semicolon at `end`.
static Declaration declaration(const string& s, size_t at, size_t& end) {
  Declaration d;
  end = s.find(';', at);
  if (end == string::npos) throw std::runtime_error("a declaration of shared memory without an end");
  string text = trimmed(s.substr(at, end - at));
  if (text.rfind("__align__", 0) == 0) {
    size_t past = past_group(text, text.find('('));
    d.align = text.substr(text.find('('), past - text.find('('));
    text = trimmed(text.substr(past));
  }
  size_t i = 0;
  while (i < text.size() && is_word(text[i])) i++;
  if (i < text.size() && text[i] == '<') i = text.find('>', i) + 1;
  d.type = text.substr(0, i);
  for (const string& x : parts(text.substr(i), ',')) d.declarators.push_back(trimmed(x));
  return d;
}

static string shared_variables(const Declaration& d) {
  string made;
  for (const string& x : d.declarators) {
    size_t i = 0;
    while (i < x.size() && is_word(x[i])) i++;
    string name = x.substr(0, i), type = name + "_in_shared";
    string align = d.align.empty() ? "alignof(" + type + ")" : d.align;
    made += "using " + type + " = " + d.type + x.substr(i) + "; ";
    made += "static emu::Slot " + name + "_slot(sizeof(" + type + "), " + align + "); ";
    made += "auto& " + name + " = *(" + type + "*)" + name + "_slot.at(); ";
  }
  return made;
}

static string dynamic_variable(const Declaration& d) {
  const string& x = d.declarators.at(0);
  string align = d.align.empty() ? "alignof(" + d.type + ")" : d.align;
  return "[[maybe_unused]] constexpr emu::Dynamic<" + d.type + ", " + align + "> " + x.substr(0, x.find('[')) + "{};";
}

// kernel is what __global__ at `at` declares.
static Translated::Kernel kernel(const string& s, size_t at) {
  string name, threads;
  for (;;) {
    while (at < s.size() && is_space(s[at])) at++;
    size_t from = at;
    while (at < s.size() && is_word(s[at])) at++;
    if (at == from) throw std::runtime_error("a kernel without a name");
    name = s.substr(from, at - from);
    while (at < s.size() && is_space(s[at])) at++;
    if (s[at] != '(') continue;
    if (name != "__launch_bounds__") return {name, threads};
    size_t open = at + 1;
    at = past_group(s, at);
    threads = parts(s.substr(open, at - 1 - open), ',')[0];
  }
}

static string table(const vector<Translated::Kernel>& kernels) {
  string made = "\nextern \"C\" __attribute__((visibility(\"default\"))) const emu::Kernel emu_kernels[] = {\n";
  for (auto& [name, threads] : kernels)
    made += "  emu::Entry<&" + name + ">::named(\"" + name + "\", " + (threads.empty() ? "1024" : threads) + "),\n";
  return made + "  {}};\n";
}

Translated translate(const string& s) {
  Translated out;
  for (size_t at = 0; at < s.size();) {
    char c = s[at];
    size_t from = at;
    if (c == '"' || c == '\'') {
      at = past_quoted(s, at);
    } else if (c == '#' && (at == 0 || s[at - 1] == '\n')) {
      at = std::min(s.find('\n', at), s.size());
    } else if (isdigit((unsigned char)c)) {  // 1'000 is a number
      while (at < s.size() && (is_word(s[at]) || s[at] == '\'' || s[at] == '.')) at++;
    } else if (!is_word(c)) {
      at++;
    } else {
      while (at < s.size() && is_word(s[at])) at++;
      string word = s.substr(from, at - from);
      if (word == "asm") {
        size_t open = s.find('(', at);
        at = past_group(s, open);
        out.text += statement(s.substr(open + 1, at - open - 2));
        continue;
      }
      if (word == "__global__") out.kernels.push_back(kernel(s, at));
      if (word == "__shared__") {
        size_t end;
        out.text += shared_variables(declaration(s, at, end));
        at = end + 1;
        continue;
      }
      if (word == "extern" && s.compare(at, 11, " __shared__") == 0) {
        size_t end;
        out.text += dynamic_variable(declaration(s, at + 11, end));
        at = end + 1;
        continue;
      }
    }
    out.text += s.substr(from, at - from);
  }
  out.text += table(out.kernels);
  return out;
}
