// TensorBoard: a sink of metrics that writes event files into RUN/tensorboard.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/metrics/event_file.h"
#include "core/metrics/sink.h"

namespace convoy {

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
