// Metrics for TensorBoard: EventFile writes its files, and TensorBoard is the sink that uses them.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/files/files.h"
#include "core/metrics/sink.h"

namespace convoy {

// --- EventFile: files of TensorBoard, without its library ---

struct Histogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> limits, counts;  // upper limit and number of values of each bucket
};

// A file is a sequence of TFRecord records: length and data, each followed by its masked CRC32C. The data is a
// serialised protocol buffer tensorflow.Event. docs/dependencies.md explains why convoy writes it without a library.
// Threads: one. Error(io) names the file that cannot be written.
class EventFile {
 public:
  // Creates a new file in the folder. First it truncates each event file of the folder before the first record that is
  // incomplete or of a step after `last_step` (an earlier attempt wrote it).
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

// --- TensorBoard: a sink of metrics ---

// Writes one event file for each attempt into RUN/tensorboard.
class TensorBoard : public Sink {
 public:
  // As EventFile. `configuration`: YAML, shown as a text.
  TensorBoard(const std::string& folder, int64_t last_step, const std::string& configuration);

  // Writes every number of a record. Tags: "KIND/METRIC" for metrics, "KIND/METRIC/memberN" for those of an ensemble's
  // members, and "KIND.progress/FIELD" for other numbers.
  void write(const Record& record) override;
  // Writes the numbers of `report` except the rank, with tags "resources/FIELD".
  void resources(int64_t step, const Json& report);
  // `tensors`: names with values, on any device. Undefined and empty tensors are left out.
  void histograms(int64_t step, const std::vector<std::pair<std::string, at::Tensor>>& tensors);

 private:
  EventFile file_;
};

// Returns a histogram with buckets of equal width. Values that are not finite are left out.
Histogram histogram_of(const at::Tensor& values);

}  // namespace convoy
