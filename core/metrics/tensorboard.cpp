#include "core/metrics/tensorboard.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/isfinite.h>
#include <fcntl.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/limits.h"

namespace convoy {

namespace {

constexpr char file_prefix[] = "events.out.tfevents.";

// --- TFRecord ---

std::array<uint32_t, 256> crc_table() {
  constexpr uint32_t polynomial = 0x82f63b78;  // Castagnoli, reversed
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    table[byte] = crc;
  }
  return table;
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

// A CRC of data that contains CRCs is weak, so TFRecord stores a changed one.
std::string masked_crc(const std::string& data) {
  const uint32_t crc = crc32c(data);
  return little_endian(uint32_t{((crc >> 15) | (crc << 17)) + 0xa282ead8U});
}

std::string record_of(const std::string& data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + masked_crc(length) + data + masked_crc(data);
}

// --- Protocol buffers ---

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

enum Wire { number = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

std::string key(int field, Wire wire) { return varint(static_cast<uint64_t>(field) << 3 | wire); }
std::string integer(int field, int64_t value) { return key(field, number) + varint(static_cast<uint64_t>(value)); }
std::string real(int field, double value) { return key(field, fixed64) + little_endian(value); }
std::string single(int field, float value) { return key(field, fixed32) + little_endian(value); }
std::string message(int field, const std::string& content) {
  return key(field, bytes) + varint(content.size()) + content;
}
std::string reals(int field, const std::vector<double>& values) {
  std::string packed;
  for (const double value : values) packed += little_endian(value);
  return message(field, packed);
}

// Fields of tensorflow.Event, Summary.Value and so on, by the numbers of their .proto files.
constexpr int event_time = 1, event_step = 2, event_version = 3, event_summary = 5, event_session = 7;
constexpr int summary_value = 1, value_tag = 1, value_simple = 2, value_histogram = 5, value_tensor = 8,
              value_metadata = 9;

std::string value(const std::string& tag, const std::string& content) {
  return message(summary_value, message(value_tag, tag) + content);
}

std::string histogram_of(const Histogram& one) {
  return real(1, one.min) + real(2, one.max) + real(3, one.count) + real(4, one.sum) + real(5, one.sum_of_squares) +
         reals(6, one.limits) + reals(7, one.counts);
}

// --- Records of earlier attempts ---

// Returns the step of an event; 0 if it has none. Reads only the first fields, which are the time and the step.
int64_t step_of(const std::string& event) {
  constexpr size_t after_time = 1 + sizeof(double);
  if (event.size() <= after_time || event[after_time] != static_cast<char>(event_step << 3)) return 0;
  uint64_t step = 0;
  int shift = 0;
  for (size_t i = after_time + 1; i < event.size() && shift < 64; ++i, shift += 7) {
    const auto byte = static_cast<unsigned char>(event[i]);
    step |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return static_cast<int64_t>(step);
}

// Steps only grow in a file, so the rest after the first later step is removed as a whole.
void drop_after(const std::string& path, int64_t last_step) {
  const std::string all = read_file_if_any(path);
  size_t kept = 0;
  while (all.size() - kept >= 12) {
    uint64_t length = 0;
    std::memcpy(&length, all.data() + kept, sizeof length);
    if (length > all.size() - kept - 12 || all.size() - kept - 12 - length < 4) break;  // incomplete
    if (step_of(all.substr(kept + 12, length)) > last_step) break;
    kept += 16 + length;
  }
  if (kept < all.size() && ::truncate(path.c_str(), static_cast<off_t>(kept)) != 0)
    throw Error(Failure::io, "cannot truncate ", path, ": ", error_text(errno));
}

}  // namespace

// --- EventFile ---

uint32_t crc32c(const std::string& data) {
  static const std::array<uint32_t, 256> table = crc_table();
  uint32_t crc = 0xffffffff;
  for (const char c : data) crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

EventFile::EventFile(const std::string& folder, int64_t last_step) {
  make_private_folder(folder);
  for (const std::string& name : names_in(folder))
    if (begins_with(name, file_prefix)) drop_after(folder + "/" + name, last_step);
  // TensorBoard orders the files of a folder by name.
  const int64_t microseconds = static_cast<int64_t>(unix_seconds() * 1e6);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%010lld.%06lld", static_cast<long long>(microseconds / 1000000),
                static_cast<long long>(microseconds % 1000000));
  path_ = str(folder, "/", file_prefix, seconds, ".", host_name());
  file_ = open_to_append(path_);
  // No step: TensorBoard expects the version in the first event.
  write_all(file_.get(), record_of(real(event_time, unix_seconds()) + message(event_version, "brain.Event:2")), path_);
  constexpr int session_status = 1, session_start = 1;
  if (last_step > 0) event(last_step + 1, message(event_session, integer(session_status, session_start)));
}

void EventFile::event(int64_t step, const std::string& fields) {
  write_all(file_.get(), record_of(real(event_time, unix_seconds()) + integer(event_step, step) + fields), path_);
}

void EventFile::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, one] : values) summary += value(tag, single(value_simple, static_cast<float>(one)));
  event(step, message(event_summary, summary));
}

void EventFile::text(int64_t step, const std::string& tag, const std::string& markdown) {
  constexpr int string_type = 7, tensor_type = 1, tensor_shape = 2, tensor_strings = 8;
  constexpr int plugin_data = 1, plugin_name = 1, data_class = 4, data_is_tensor = 2;
  const std::string one_dimension = message(2, integer(1, 1));
  const std::string tensor =
      integer(tensor_type, string_type) + message(tensor_shape, one_dimension) + message(tensor_strings, markdown);
  const std::string metadata = message(plugin_data, message(plugin_name, "text")) + integer(data_class, data_is_tensor);
  event(step, message(event_summary, value(tag, message(value_tensor, tensor) + message(value_metadata, metadata))));
}

void EventFile::histograms(int64_t step, const std::vector<std::pair<std::string, Histogram>>& values) {
  std::string summary;
  for (const auto& [tag, one] : values) summary += value(tag, message(value_histogram, histogram_of(one)));
  event(step, message(event_summary, summary));
}

// --- TensorBoard ---

namespace {

constexpr int64_t buckets = 64;

// An indented block keeps line breaks in Markdown.
std::string code_block(const std::string& text) {
  std::string block = "    ";
  for (const char c : text) block += c == '\n' ? "\n    " : std::string(1, c);
  return block;
}

}  // namespace

TensorBoard::TensorBoard(const std::string& folder, int64_t last_step, const std::string& configuration)
    : file_(folder, last_step) {
  file_.text(last_step, "configuration", code_block(configuration));
}

void TensorBoard::write(const Record& record) {
  std::vector<std::pair<std::string, double>> values;
  const Json all = to_json(record);
  for (const auto& [key, value] : all.items()) {
    if (key == "kind" || key == "step") continue;
    if (key == "metrics") {
      for (const auto& [name, one] : value.items()) values.emplace_back(record.kind + "/" + name, read_number(one));
    } else if (key == "members") {
      for (const auto& [name, list] : value.items())
        for (size_t member = 0; member < list.size(); ++member)
          values.emplace_back(str(record.kind, "/", name, "/member", member), read_number(list[member]));
    } else if (!value.is_array()) {  // not a list of names
      values.emplace_back(record.kind + ".progress/" + key, read_number(value));
    }
  }
  file_.scalars(record.step, values);
}

void TensorBoard::resources(int64_t step, const Json& report) {
  std::vector<std::pair<std::string, double>> values;
  for (const auto& [key, value] : report.items())
    if (value.is_number() && key != "rank") values.emplace_back("resources/" + key, read_number(value));
  file_.scalars(step, values);
}

void TensorBoard::histograms(int64_t step, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<std::pair<std::string, Histogram>> values;
  for (const auto& [name, tensor] : tensors)
    if (tensor.defined() && tensor.numel() > 0) values.emplace_back(name, histogram_of(tensor));
  file_.histograms(step, values);
}

Histogram histogram_of(const at::Tensor& values) {
  at::NoGradGuard no_grad;
  at::Tensor flat = values.detach().reshape({-1}).to(at::kFloat);
  flat = flat.masked_select(at::isfinite(flat)).to(at::kCPU);
  Histogram result;
  result.count = static_cast<double>(flat.numel());
  if (flat.numel() == 0) {
    result.limits = {0};
    result.counts = {0};
    return result;
  }
  result.min = flat.min().item<double>();
  result.max = flat.max().item<double>();
  result.sum = flat.sum(at::kDouble).item<double>();
  result.sum_of_squares = flat.square().sum(at::kDouble).item<double>();
  if (result.min == result.max) {
    result.limits = {result.max};
    result.counts = {result.count};
    return result;
  }
  const at::Tensor counts = at::histc(flat, buckets, result.min, result.max);
  for (int64_t i = 0; i < buckets; ++i) {
    const double share = static_cast<double>(i + 1) / static_cast<double>(buckets);
    result.limits.push_back(i + 1 == buckets ? result.max : result.min + share * (result.max - result.min));
    result.counts.push_back(counts[i].item<double>());
  }
  return result;
}

}  // namespace convoy
