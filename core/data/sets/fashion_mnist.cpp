// Reads IDX files with zlib, which reads uncompressed ones too.
#include "core/data/sets/fashion_mnist.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/base/hash.h"
#include "core/data/readers/column_cache.h"
#include "core/data/rows.h"
#include "core/files/files.h"

namespace convoy {
namespace {

std::string file_in(const std::string& folder, const std::string& name) {
  for (const auto& path : {folder + "/" + name + ".gz", folder + "/" + name}) {
    std::error_code none;
    if (std::filesystem::exists(path, none)) return path;
  }
  throw Error(Failure::io, folder, "/", name,
              ".gz is not there: install Debian's package dataset-fashion-mnist "
              "(apt-get install dataset-fashion-mnist), or name another folder by "
              "data.path");
}

class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path) {
    Descriptor descriptor = open_to_read(path);
    file_ = gzdopen(descriptor.get(), "rb");
    if (file_ == nullptr) throw Error(Failure::io, path, ": cannot open it");
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
    if (gzread(file_, &one, 1) != 0) fail("is longer than the sizes in its header");
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

// Sizes after the magic number 0x0000 08 DD: bytes in DD dimensions.
std::vector<int64_t> read_shape(GzipFile& file, int dimensions) {
  if (file.big_endian() != 0x0800u + unsigned(dimensions)) {
    file.fail(str("is not an IDX file of bytes in ", dimensions, " dimensions"));
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
  if (source.text().size() > header + bytes) file.fail("is longer than the sizes in its header");
  log_mapped(source.path(), source.path(), int64_t(bytes));
  // The mapping is read-only; convoy never writes to data.
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
    SplitData data{read_idx(images, 3), read_idx(labels, 1)};
    if (data.images.size(0) != data.labels.size(0)) {
      throw Error(Failure::corrupt_data, labels, ": holds ", data.labels.size(0), " labels for ", data.images.size(0),
                  " images");
    }
    const auto* label = data.labels.const_data_ptr<uint8_t>();
    classes_ = std::max<int64_t>(classes_, 1 + *std::max_element(label, label + data.labels.numel()));
    return data;
  };
  train_ = read("train");
  test_ = read("t10k");
  if (train_.images.sizes().slice(1) != test_.images.sizes().slice(1)) {
    throw Error(Failure::corrupt_data, folder, ": training and test images differ in size");
  }
}

// Hashes the values, which are equal in files with and without gzip.
DataContents FashionMnist::contents() const {
  std::vector<std::string> hashes;
  for (const SplitData* data : {&train_, &test_})
    for (const at::Tensor& values : {data->images, data->labels})
      hashes.push_back(convoy::str(values.sizes(), hash_hex(values.const_data_ptr(), values.nbytes())));
  return {combined_fingerprint(hashes), train_.labels.numel(), {}};
}

Schema FashionMnist::schema() const {
  Schema schema;
  schema.fields["features"] = {{1, train_.images.size(1), train_.images.size(2)}, at::kFloat, 0};
  schema.fields["target"] = {{}, at::kLong, classes_};
  return schema;
}

int64_t FashionMnist::size(Split split) const { return data_of(split).labels.numel(); }

Batch FashionMnist::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, BatchBuffers& buffers) const {
  const SplitData& from = data_of(split);
  const int64_t rows = indices.numel();
  auto features =
      buffers.take("features", {rows, 1, from.images.size(1), from.images.size(2)}, bytes_ ? at::kByte : at::kFloat);
  auto target = buffers.take("target", {rows}, at::kLong);
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  gather_rows(from.images, samples, rows, features, bytes_ ? 1 : 1.0 / 255);
  gather_rows(from.labels, samples, rows, target);
  return {{{"features", features}, {"target", target}}, rows};
}

}  // namespace convoy
