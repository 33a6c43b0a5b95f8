// Ensemble members: paths of single members in a checkpoint, and the rows that a member trains on. Without LibTorch.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace convoy {

// "PATH@member3" names member 3 of the ensemble in checkpoint PATH; it can be loaded as a single model.
struct MemberPath {
  std::string path;
  int member = -1;  // -1: the path names no member
};

inline MemberPath member_path(const std::string& text) {
  const std::string separator = "@member";
  const size_t at = text.rfind(separator);
  if (at == std::string::npos) return {text, -1};
  const std::string number = text.substr(at + separator.size());
  const bool digits =
      !number.empty() && number.size() < 7 && number.find_first_not_of("0123456789") == std::string::npos;
  return digits ? MemberPath{text.substr(0, at), std::atoi(number.c_str())} : MemberPath{text, -1};
}

// Row sample of one ensemble member. Plain data.
//
// The rows and their order depend only on these values, the epoch and the number of rows. So a member reads the same
// rows on any rank and in any mode. A member with all rows reads the same rows as a single run with its seed.
struct MemberSample {
  enum class Rows { all, bootstrap, subset, fold } rows = Rows::all;
  int64_t member = 0;   // number in the ensemble
  uint64_t seed = 1;    // for the order of rows and the sample
  double fraction = 1;  // subset: part of all rows, drawn once without replacement
  int64_t folds = 0;  // fold: all rows except partition `member` mod `folds`; the partitions do not depend on the seed
};

inline bool operator==(const MemberSample& a, const MemberSample& b) {
  return a.rows == b.rows && a.member == b.member && a.seed == b.seed && a.fraction == b.fraction && a.folds == b.folds;
}

// Returns the number of rows that a member reads in an epoch, out of `rows`; it is equal for all members. Folds are
// equally large. The few remaining rows are in no fold, so all members read them.
inline int64_t rows_drawn(const MemberSample& sample, int64_t rows) {
  switch (sample.rows) {
    case MemberSample::Rows::subset:
      return std::min(rows, std::max<int64_t>(1, std::llround(sample.fraction * static_cast<double>(rows))));
    case MemberSample::Rows::fold:
      return rows - rows / sample.folds;
    default:
      return rows;
  }
}

}  // namespace convoy
