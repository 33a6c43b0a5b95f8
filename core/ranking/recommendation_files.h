// Writes lists of recommended items: CSV, JSON lines, or .npy, by the ending of the file's name.
//
//   .csv    USER,rank,ITEM,score: one line for each item, best first
//   .jsonl  {"USER": id, "ITEM": [ids], "score": [numbers]}: one line for each user
//   .npy    one record for each user, fields USER, ITEM [k], score [k]; read with numpy.load, without pickle. The
//           elements after the last item have the id "" (−1 for numbers) and the score NaN
// USER and ITEM are the columns' names. Ids are those of the training file; of data without ids, numbers.
//
// Threads: one. Failure: as OutputFile.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "core/data/readers/name_list.h"
#include "core/files/output_file.h"
#include "core/ranking/item_ranking.h"

namespace convoy {

struct RecommendationFormat {
  std::string user = "user", item = "item";  // names of the columns
  NameList user_names, item_names;           // empty: numbers
  int64_t users = 0;                         // number of lists
  int64_t k = 0;
  at::ScalarType dtype = at::kFloat;  // of the scores
};

class RecommendationWriter {
 public:
  virtual ~RecommendationWriter() = default;

  // The lists of these users (numbers), one for each row of `top`.
  virtual void write(const int64_t* users, const TopItems& top) = 0;
};

// The caller commits `out` after the last list. Error(command_line) if the name of `out` has another ending.
std::unique_ptr<RecommendationWriter> make_recommendation_writer(OutputFile& out, RecommendationFormat format);

}  // namespace convoy
