#include "core/tensors/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr uint64_t longest_header = 100'000'000;  // the limit of the format's reference reader

const std::vector<std::pair<const char*, at::ScalarType>>& dtypes() {
  static const std::vector<std::pair<const char*, at::ScalarType>> all{
      {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"I64", at::kLong},
      {"I32", at::kInt},    {"I16", at::kShort}, {"I8", at::kChar},  {"U8", at::kByte},       {"BOOL", at::kBool}};
  return all;
}

const char* dtype_name(at::ScalarType dtype, const std::string& name) {
  for (const auto& [text, known] : dtypes()) {
    if (known == dtype) return text;
  }
  throw Error(Failure::training, "tensor ", name, " is of ", dtype,
              ", which a checkpoint cannot store; it takes fp16, bf16, fp32, fp64, bool and integers");
}

// Writes a file and hashes all of it, in parts: each part is still in the cache when it is written.
class HashedFile {
 public:
  HashedFile(FileSystem& files, const std::string& path) : file_(files.create(path)) {}
  void write(const void* data, size_t bytes) {
    constexpr size_t at_once = size_t{1} << 20;
    const char* const from = static_cast<const char*>(data);
    for (size_t at = 0; at < bytes; at += at_once) {
      const size_t part = std::min(at_once, bytes - at);
      hasher_.add(from + at, part);
      file_->write(from + at, part);
    }
    written_ += int64_t(bytes);
  }
  WrittenFile close() {
    file_->close();
    return {written_, hasher_.hex()};
  }

 private:
  std::unique_ptr<WritableFile> file_;
  Hasher hasher_;
  int64_t written_ = 0;
};

void write_all(HashedFile& file, const std::vector<TensorToWrite>& entries,
               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const TensorToWrite& entry : entries) {
    CONVOY_CHECK(!header.contains(entry.name), "tensor ", entry.name, " is to be written twice");
    const uint64_t end = offset + uint64_t(c10::multiply_integers(entry.shape)) * c10::elementSize(entry.dtype);
    header[entry.name] = {
        {"dtype", dtype_name(entry.dtype, entry.name)}, {"shape", entry.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the data begins at a multiple of 8
  const uint64_t length = text.size();          // little-endian, as every machine on which LibTorch runs
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const TensorToWrite& entry : entries) {
    const at::Tensor plain = entry.values().detach().to(at::kCPU).contiguous();
    CONVOY_CHECK(plain.scalar_type() == entry.dtype && plain.sizes() == entry.shape, "tensor ", entry.name, " is ",
                 plain.scalar_type(), " ", plain.sizes());
    file.write(plain.const_data_ptr(), plain.nbytes());
  }
}

}  // namespace

WrittenFile write_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& entries,
                              const std::map<std::string, std::string>& metadata, FileSystem& files) {
  std::vector<TensorToWrite> all;
  for (const auto& [name, tensor] : entries)
    all.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), [&values = tensor] { return values; }});
  return stream_safetensors(path, all, metadata, files);
}

WrittenFile stream_safetensors(const std::string& path, const std::vector<TensorToWrite>& entries,
                               const std::map<std::string, std::string>& metadata, FileSystem& files) {
  HashedFile file(files, path);
  try {
    write_all(file, entries, metadata);
    return file.close();
  } catch (...) {
    try {
      files.remove_all(path);
    } catch (const Error&) {  // report the first cause
    }
    throw;
  }
}

struct SafetensorsFile::Mapping {
  struct StoredTensor {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;  // within the data section
  };

  explicit Mapping(std::string file_path);
  ~Mapping() {
    if (bytes > 0) munmap(const_cast<char*>(start), bytes);
  }
  template <class... Parts>
  [[noreturn]] void corrupt(const Parts&... reason) const {
    throw Error(Failure::corrupt_data, path, ": not a whole safetensors file: ", reason...);
  }
  void read_header();
  // Drops the pages around a range from this process; they stay in the page cache.
  void release(const char* begin, size_t size) const;
  StoredTensor read_entry(const std::string& name, const Json& entry) const;
  void check_coverage();

  std::string path;
  const char* start = nullptr;
  size_t bytes = 0;
  bool only_ours = false;
  const char* data = nullptr;
  uint64_t data_bytes = 0;
  std::map<std::string, StoredTensor> tensors;
  std::vector<std::string> order;
  std::map<std::string, std::string> metadata;
};

SafetensorsFile::Mapping::Mapping(std::string file_path) : path(std::move(file_path)) {
  const auto fail = [this](const char* what) {
    throw Error(Failure::io, "cannot ", what, " ", path, ": ", error_text(errno));
  };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // O_NONBLOCK: a FIFO must not block
  if (!file.valid()) fail("open");
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail("map");
  if (!S_ISREG(status.st_mode) || status.st_size <= 0) corrupt("it is empty or not a regular file");
  void* const mapped = mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) fail("map");
  start = static_cast<const char*>(mapped);
  bytes = size_t(status.st_size);
  only_ours = (status.st_uid == geteuid() || status.st_uid == 0) && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

void SafetensorsFile::Mapping::release(const char* begin, size_t size) const {
  static const size_t page = size_t(sysconf(_SC_PAGESIZE));
  const size_t offset = size_t(begin - start) / page * page;
  if (size > 0) madvise(const_cast<char*>(start) + offset, size_t(begin - start) + size - offset, MADV_DONTNEED);
}

void SafetensorsFile::Mapping::read_header() {
  if (bytes < 8) corrupt("it has ", bytes, " bytes");
  uint64_t length;
  std::memcpy(&length, start, sizeof length);
  if (length > longest_header || length > bytes - 8) corrupt("its header claims ", length, " bytes of ", bytes);
  data = start + 8 + length;
  data_bytes = bytes - 8 - length;
  if (length == 0 || start[8] != '{') corrupt("its header is not a JSON object");

  // The JSON parser keeps one of two equal names. Other readers may keep the other one, so duplicates are refused.
  std::set<std::string> seen;
  std::string twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 && !seen.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return depth <= 3;
  };
  const Json header = Json::parse(start + 8, data, watch, /*allow_exceptions=*/false);
  if (!header.is_object()) corrupt("its header is not a JSON object");
  if (!twice.empty()) corrupt("its header has ", twice, " twice");
  for (const auto& item : header.items()) {
    if (item.key() != "__metadata__") {
      tensors[item.key()] = read_entry(item.key(), item.value());
      continue;
    }
    if (!item.value().is_object()) corrupt("its metadata is not a JSON object");
    for (const auto& pair : item.value().items()) {
      if (!pair.value().is_string()) corrupt("its metadata has a value that is not text");
      metadata[pair.key()] = pair.value().get<std::string>();
    }
  }
}

SafetensorsFile::Mapping::StoredTensor SafetensorsFile::Mapping::read_entry(const std::string& name,
                                                                            const Json& entry) const {
  const auto natural = [](const Json& number) {
    return number.is_number_unsigned() && number.get<uint64_t>() <= uint64_t(INT64_MAX);
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    corrupt("its entry for ", name, " lacks dtype, shape or data_offsets");
  }
  const Json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  StoredTensor stored;
  const auto known = std::find_if(dtypes().begin(), dtypes().end(),
                                  [&](const auto& pair) { return dtype.is_string() && dtype == pair.first; });
  if (known == dtypes().end()) corrupt(name, " has the unknown dtype ", dtype.dump(-1, ' ', true));
  stored.dtype = known->second;
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), natural)) corrupt(name, " has no valid shape");
  uint64_t size = c10::elementSize(stored.dtype);
  bool overflow = false;
  for (const Json& dimension : shape) {
    stored.shape.push_back(dimension.get<int64_t>());
    overflow |= __builtin_mul_overflow(size, dimension.get<uint64_t>(), &size);
  }
  if (!offsets.is_array() || offsets.size() != 2 || !natural(offsets[0]) || !natural(offsets[1])) {
    corrupt(name, " has no valid data_offsets");
  }
  stored.begin = offsets[0].get<uint64_t>();
  stored.end = offsets[1].get<uint64_t>();
  if (stored.begin > stored.end || stored.end > data_bytes) corrupt(name, " is outside the file");
  if (overflow || stored.end - stored.begin != size) corrupt(name, " has another size than its shape and dtype give");
  return stored;
}

// Checks that every byte of the data belongs to exactly one tensor.
void SafetensorsFile::Mapping::check_coverage() {
  for (const auto& item : tensors) order.push_back(item.first);
  std::stable_sort(order.begin(), order.end(), [this](const std::string& a, const std::string& b) {
    const StoredTensor &x = tensors.at(a), &y = tensors.at(b);
    return std::make_pair(x.begin, x.end) < std::make_pair(y.begin, y.end);
  });
  uint64_t end = 0;
  for (const std::string& name : order) {
    const StoredTensor& stored = tensors.at(name);
    if (stored.begin != end) corrupt(name, stored.begin < end ? " overlaps another tensor" : " begins after a gap");
    end = stored.end;
  }
  if (end != data_bytes) corrupt(data_bytes - end, " bytes at its end belong to no tensor");
}

SafetensorsFile::SafetensorsFile(const std::string& path) {
  const auto mapping = std::make_shared<Mapping>(path);
  mapping->read_header();
  mapping->check_coverage();
  mapping_ = mapping;
}

std::vector<std::string> SafetensorsFile::names() const { return mapping_->order; }
bool SafetensorsFile::has(const std::string& name) const { return mapping_->tensors.count(name) != 0; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return mapping_->metadata; }
int64_t SafetensorsFile::bytes() const { return int64_t(mapping_->bytes); }
bool SafetensorsFile::only_ours() const { return mapping_->only_ours; }

std::string SafetensorsFile::hash() const {
  constexpr size_t at_once = size_t{1} << 20;
  Hasher hasher;
  for (size_t at = 0; at < mapping_->bytes; at += at_once) {
    const size_t size = std::min(at_once, mapping_->bytes - at);
    hasher.add(mapping_->start + at, size);
    mapping_->release(mapping_->start + at, size);
  }
  return hasher.hex();
}

std::vector<int64_t> SafetensorsFile::shape(const std::string& name) const {
  CONVOY_CHECK(has(name), mapping_->path, " has no tensor ", name);
  return mapping_->tensors.at(name).shape;
}

at::ScalarType SafetensorsFile::dtype(const std::string& name) const {
  CONVOY_CHECK(has(name), mapping_->path, " has no tensor ", name);
  return mapping_->tensors.at(name).dtype;
}

void SafetensorsFile::release() const { mapping_->release(mapping_->start, mapping_->bytes); }

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  CONVOY_CHECK(has(name), mapping_->path, " has no tensor ", name);
  const Mapping::StoredTensor& stored = mapping_->tensors.at(name);
  const auto options = at::TensorOptions().dtype(stored.dtype);
  if (stored.begin == stored.end) return at::empty(stored.shape, options);
  char* address = const_cast<char*>(mapping_->data + stored.begin);
  const auto keep = [mapping = mapping_](void*) {};
  if (reinterpret_cast<uintptr_t>(address) % c10::elementSize(stored.dtype) == 0) {
    return at::from_blob(address, stored.shape, keep, options);
  }
  at::Tensor copy = at::empty(stored.shape, options);
  std::memcpy(copy.mutable_data_ptr(), address, stored.end - stored.begin);
  return copy;
}

}  // namespace convoy
