// Event files of TensorBoard, without its library: records of TFRecord (length and data, each with a masked CRC32C)
// around the protocol buffer tensorflow.Event. docs/dependencies.md has the reason for own code.
//
// Threads: one. Error(io) names the file that cannot be written.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/files/files.h"

namespace convoy {

struct Histogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> limits, counts;  // upper limit and number of values of each bucket
};

class EventFile {
 public:
  // Creates a new file in the folder. First removes the records of steps after `last_step`, from an earlier attempt,
  // and incomplete records from all event files of the folder.
  EventFile(const std::string& folder, int64_t last_step);

  // Each call is one event, written by one system call.
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  void text(int64_t step, const std::string& tag, const std::string& markdown);
  void histograms(int64_t step, const std::vector<std::pair<std::string, Histogram>>& values);

 private:
  void event(int64_t step, const std::string& fields);

  std::string path_;
  Descriptor file_;
};

// CRC32C (Castagnoli), as TFRecord uses it.
uint32_t crc32c(const std::string& data);

}  // namespace convoy
