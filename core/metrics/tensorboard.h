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

// A file has records of TFRecord (length and data, each with a masked CRC32C) around the protocol buffer
// tensorflow.Event. docs/dependencies.md has the reason for own code.
// Threads: one. Error(io) names the file that cannot be written.
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

// --- TensorBoard: a sink of metrics ---

// Writes event files into RUN/tensorboard.
class TensorBoard : public Sink {
 public:
  // Removes the values of steps after `last_step`, from an earlier attempt. `configuration`: YAML, shown as a text.
  TensorBoard(const std::string& folder, int64_t last_step, const std::string& configuration);

  // Every number of a record. Tags: "KIND/METRIC", "KIND/METRIC/memberN", and "KIND.progress/FIELD" for the others.
  void write(const Record& record) override;
  // Numbers of `report` other than the rank, as "resources/FIELD".
  void resources(int64_t step, const Json& report);
  // `tensors`: names with values on any device.
  void histograms(int64_t step, const std::vector<std::pair<std::string, at::Tensor>>& tensors);

 private:
  EventFile file_;
};

// Histogram with equally wide buckets. Values that are not finite are left out.
Histogram histogram_of(const at::Tensor& values);

}  // namespace convoy
