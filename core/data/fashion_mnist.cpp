// IDX files through zlib, which reads plain ones as well.
#include "core/data/fashion_mnist.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/data/column_cache.h"
#include "core/data/residence.h"
#include "core/data/rows.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"

namespace convoy {
namespace {

std::string file_in(const std::string& folder, const std::string& name) {
  for (const auto& path : {folder + "/" + name + ".gz", folder + "/" + name}) {
    std::error_code none;
    if (std::filesystem::exists(path, none)) return path;
  }
  throw Error(Failure::io, str(folder, "/", name,
                               ".gz is not there: install Debian's package dataset-fashion-mnist "
                               "(apt-get install dataset-fashion-mnist), or name another folder by "
                               "data.path"));
}

class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path) {
    Descriptor descriptor = open_to_read(path);
    file_ = gzdopen(descriptor.get(), "rb");
    if (file_ == nullptr) throw Error(Failure::io, str(path, ": cannot open it"));
    descriptor.release();
    gzbuffer(file_, 1 << 17);
  }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;
  ~GzipFile() { gzclose(file_); }

  void read(void* to, size_t bytes) {
    auto* at = static_cast<char*>(to);
    while (bytes > 0) {
      const int got = gzread(file_, at, unsigned(std::min<size_t>(bytes, 1 << 24)));
      if (got < 0) fail(gzerror(file_, &ignored_));
      if (got == 0) fail("ends too early");
      at += got;
      bytes -= size_t(got);
    }
  }
  void expect_end() {
    char one;
    if (gzread(file_, &one, 1) != 0) fail("is longer than its header says");
  }
  uint32_t big_endian() {
    unsigned char bytes[4];
    read(bytes, 4);
    return uint32_t(bytes[0]) << 24 | uint32_t(bytes[1]) << 16 | uint32_t(bytes[2]) << 8 | bytes[3];
  }
  [[noreturn]] void fail(const std::string& reason) const { throw Error(Failure::corrupt_data, path_ + ": " + reason); }

 private:
  std::string path_;
  gzFile file_ = nullptr;
  int ignored_ = 0;
};

// Sizes after the magic 0x0000 08 DD, which says bytes in DD dimensions.
std::vector<int64_t> read_shape(GzipFile& file, int dimensions) {
  if (file.big_endian() != 0x0800u + unsigned(dimensions)) {
    file.fail(str("is no IDX file of bytes in ", dimensions, " dimensions"));
  }
  std::vector<int64_t> shape;
  int64_t bytes = 1;
  for (int d = 0; d < dimensions; ++d) {
    shape.push_back(file.big_endian());
    if (shape.back() == 0 || shape.back() > (int64_t(1) << 31) / bytes) file.fail("has impossible sizes");
    bytes *= shape.back();
  }
  return shape;
}

Columns decode(const std::string& path, int dimensions) {
  GzipFile file(path);
  auto values = at::empty(read_shape(file, dimensions), at::kByte);
  file.read(values.mutable_data_ptr(), values.nbytes());
  file.expect_end();
  return {{"values", values}};
}

at::Tensor view_plain(const MappedFile& source, int dimensions) {
  GzipFile file(source.path());
  const std::vector<int64_t> shape = read_shape(file, dimensions);
  const size_t header = 4 * size_t(1 + dimensions);
  size_t bytes = 1;
  for (int64_t size : shape) bytes *= size_t(size);
  if (source.text().size() < header + bytes) file.fail("ends too early");
  if (source.text().size() > header + bytes) file.fail("is longer than its header says");
  tell_mapped(source.path(), source.path(), int64_t(bytes));
  // The mapping is read-only; nothing in convoy writes to data.
  void* start = const_cast<char*>(source.text().data() + header);
  return at::from_blob(
      start, shape, [source](void*) {}, at::kByte);
}

at::Tensor read_idx(const std::string& path, int dimensions) {
  const MappedFile source(path);
  if (source.text().substr(0, 2) != "\x1f\x8b") return view_plain(source, dimensions);
  const std::vector<int64_t> any(size_t(dimensions), -1);
  return cached_columns(
             source, str("idx ", dimensions), [&] { return decode(path, dimensions); },
             [&](const Columns& cached) {
               return has_column(cached, "values", at::kByte, any) && cached.at("values").numel() > 0;
             })
      .at("values");
}

}  // namespace

FashionMnist::FashionMnist(const std::string& folder, bool bytes) : bytes_(bytes) {
  const auto read = [&](const std::string& name) {
    const std::string images = file_in(folder, name + "-images-idx3-ubyte");
    const std::string labels = file_in(folder, name + "-labels-idx1-ubyte");
    Part part{read_idx(images, 3), read_idx(labels, 1)};
    if (part.images.size(0) != part.labels.size(0)) {
      throw Error(Failure::corrupt_data,
                  str(labels, ": holds ", part.labels.size(0), " labels for ", part.images.size(0), " images"));
    }
    const auto* label = part.labels.const_data_ptr<uint8_t>();
    classes_ = std::max<int64_t>(classes_, 1 + *std::max_element(label, label + part.labels.numel()));
    return part;
  };
  train_ = read("train");
  test_ = read("t10k");
  if (train_.images.sizes().slice(1) != test_.images.sizes().slice(1)) {
    throw Error(Failure::corrupt_data, str(folder, ": training and test images differ in size"));
  }
}

// Hashes the values, which are the same in files with gzip and without.
DataContents FashionMnist::contents() const {
  std::vector<std::string> hashes;
  for (const Part* part : {&train_, &test_})
    for (const at::Tensor& values : {part->images, part->labels})
      hashes.push_back(convoy::str(values.sizes(), hash_hex(values.const_data_ptr(), values.nbytes())));
  return {combined_fingerprint(hashes), train_.labels.numel(), {}};
}

Schema FashionMnist::schema() const {
  Schema schema;
  schema.fields["features"] = {{1, train_.images.size(1), train_.images.size(2)}, at::kFloat, 0};
  schema.fields["target"] = {{}, at::kLong, classes_};
  return schema;
}

int64_t FashionMnist::size(Split split) const { return part(split).labels.numel(); }

Batch FashionMnist::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, Buffers& buffers) const {
  const Part& from = part(split);
  const int64_t rows = indices.numel();
  auto features =
      buffers.take("features", {rows, 1, from.images.size(1), from.images.size(2)}, bytes_ ? at::kByte : at::kFloat);
  auto target = buffers.take("target", {rows}, at::kLong);
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  gather_rows(from.images, samples, rows, features, bytes_ ? 1 : 1.0 / 255);
  gather_rows(from.labels, samples, rows, target);
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"features", features}, {"target", target}};
  return batch;
}

}  // namespace convoy
