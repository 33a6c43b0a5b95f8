// "PATH@member3": member 3 of the ensemble whose checkpoint PATH names, to be loaded as a model by itself. Without LibTorch.
#pragma once
#include <cstdlib>
#include <string>

namespace convoy {

struct MemberPath {
  std::string path;
  int member = -1;  // -1: none is named
};

inline MemberPath member_path(const std::string& text) {
  const std::string mark = "@member";
  const size_t at = text.rfind(mark);
  if (at == std::string::npos) return {text, -1};
  const std::string number = text.substr(at + mark.size());
  const bool digits =
      !number.empty() && number.size() < 7 && number.find_first_not_of("0123456789") == std::string::npos;
  return digits ? MemberPath{text.substr(0, at), std::atoi(number.c_str())} : MemberPath{text, -1};
}

}  // namespace convoy
