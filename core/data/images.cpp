#include "core/data/images.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/data/fingerprint.h"
#include "core/data/image_file.h"
#include "core/data/permutation.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// Sorted, so that numbers do not depend on the file system.
std::vector<fs::path> sorted_entries(const std::string& folder) {
  std::error_code failure;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure))
    entries.push_back(at->path());
  if (failure) throw Error(Failure::io, str(folder, ": cannot list it: ", failure.message()));
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : sorted_entries(folder))
    if (fs::is_directory(entry)) names.push_back(entry.filename().string());
  return names;
}

int64_t own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // One with more than 1024 units does not fit, and then one decodes.
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// action(0) … action(rows − 1) by so many threads, this one among them. Throws what the first row that failed has thrown.
void for_rows(int64_t rows, int64_t threads, const std::function<void(int64_t)>& action) {
  std::atomic<int64_t> next{0}, end{rows};
  std::mutex mutex;  // guards the failure; `end` is its row
  std::exception_ptr failure;
  const auto work = [&] {
    // Rows are taken in order: when one fails those before it are done, or under way.
    for (int64_t row = next++; row < end; row = next++) {
      try {
        action(row);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (row >= end) continue;
        end = row;
        failure = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  try {
    for (int64_t thread = 1; thread < threads; ++thread) others.emplace_back(work);
  } catch (const std::system_error&) {  // no thread more: those that there are do it
  }
  work();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// Hash of the first and the last 4 KiB; "" for a file that cannot be read, which is reported when its row is.
std::string hash_of_ends(const std::string& path) {
  constexpr size_t most = 4096;
  try {
    const Descriptor file = open_to_read(path);
    struct stat status {};
    if (fstat(file.get(), &status) != 0) return "";
    const auto size = static_cast<size_t>(status.st_size);
    const size_t first = std::min(size, most), last = std::min(size - first, most);
    std::array<char, 2 * most> bytes;
    const bool read =
        pread(file.get(), bytes.data(), first, 0) == static_cast<ssize_t>(first) &&
        pread(file.get(), bytes.data() + first, last, static_cast<off_t>(size - last)) == static_cast<ssize_t>(last);
    return read ? hash_hex(bytes.data(), first + last) : "";
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

ImagesDataset::ImagesDataset(const std::string& path, const Shape& shape, uint64_t seed) : path_(path), shape_(shape) {
  const bool split = fs::is_directory(path + "/train") && fs::is_directory(path + "/test");
  const std::string folder = split ? path + "/train" : path;
  classes_ = folders_in(folder);
  std::vector<Image> all = images_in(folder);
  if (all.empty())
    throw Error(Failure::io, str(folder,
                                 ": holds no images; a folder for each class is wanted here, with .png, .jpg or "
                                 ".jpeg files in it"));
  if (split) {
    for (const std::string& name : folders_in(path + "/test")) {
      if (!std::binary_search(classes_.begin(), classes_.end(), name))
        throw Error(Failure::corrupt_data, str(path, "/test/", name, ": is a class that ", folder, " does not have"));
    }
    train_ = std::move(all);
    evaluate_ = images_in(path + "/test");
    return;
  }
  const auto count = static_cast<int64_t>(all.size());
  const int64_t held =
      std::min(count - 1, static_cast<int64_t>(std::llround(shape.evaluate_fraction * static_cast<double>(count))));
  const Permutation order(count, seed, "images split");
  std::vector<bool> evaluated(all.size(), false);
  for (int64_t i = 0; i < held; ++i) evaluated[static_cast<size_t>(order.at(i))] = true;
  for (size_t i = 0; i < all.size(); ++i) (evaluated[i] ? evaluate_ : train_).push_back(std::move(all[i]));
}

std::vector<ImagesDataset::Image> ImagesDataset::images_in(const std::string& folder) const {
  std::vector<Image> images;
  for (size_t label = 0; label < classes_.size(); ++label) {
    const std::string name = folder + "/" + classes_[label];
    if (!fs::is_directory(name)) continue;  // test/ may lack a class
    for (const auto& file : sorted_entries(name))
      if (is_image(file)) images.push_back({file.string(), static_cast<int64_t>(label)});
  }
  return images;
}

// Names and sizes of all files, and bytes of at most so many, which cost a few per cent of decoding small images.
std::string ImagesDataset::fingerprint() const {
  constexpr size_t most_looked_into = 100'000;
  std::vector<std::string> files, ends;  // path below the data's folder, and size
  for (const std::vector<Image>* part : {&train_, &evaluate_})
    for (const Image& image : *part) {
      std::error_code none;  // a file that is gone is reported when it is read
      files.push_back(str(image.path.substr(path_.size()), '\n', fs::file_size(image.path, none)));
    }
  std::sort(files.begin(), files.end());  // the split depends on the seed
  ends.resize(std::min(files.size(), most_looked_into));
  const auto count = static_cast<int64_t>(ends.size());
  for_rows(count, decoders_of(count), [&](int64_t i) {
    const std::string& file = files[files.size() * static_cast<size_t>(i) / ends.size()];
    ends[static_cast<size_t>(i)] = hash_of_ends(path_ + file.substr(0, file.find('\n')));
  });
  return with_content(combined_fingerprint(files), combined_fingerprint(ends));
}

DataContents ImagesDataset::contents() const {
  // Later changes of the files do not count: each rank compares what it began with.
  std::shared_ptr<const std::string> known = std::atomic_load(&fingerprint_);
  if (!known) std::atomic_store(&fingerprint_, known = std::make_shared<const std::string>(fingerprint()));
  DataContents contents{*known, static_cast<int64_t>(train_.size() + evaluate_.size()), {}};
  contents.lists["classes"] = {NameList(classes_)};
  return contents;
}

DatasetPtr ImagesDataset::numbered_as(const DataContents& stored) const {
  auto made = std::make_shared<ImagesDataset>(*this);
  made->classes_ = stored.lists.at("classes").names.strings();
  const std::vector<int64_t> labels = NameNumbers(stored.lists.at("classes").names).find_all(NameList(classes_));
  for (std::vector<Image>* part : {&made->train_, &made->evaluate_})
    for (Image& image : *part) image.label = labels[static_cast<size_t>(image.label)];
  return made;
}

Schema ImagesDataset::schema() const {
  Schema schema;
  schema.fields["features"] = {{shape_.channels, shape_.height, shape_.width}, at::kFloat, 0};
  schema.fields["target"] = {{}, at::kLong, static_cast<int64_t>(classes_.size())};
  return schema;
}

int64_t ImagesDataset::decoders_of(int64_t rows) const {
  return std::min(rows, shape_.decoders > 0 ? shape_.decoders : own_cores());
}

Batch ImagesDataset::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, Buffers& buffers) const {
  const int64_t rows = indices.numel();
  at::Tensor features = buffers.take("features", {rows, shape_.channels, shape_.height, shape_.width}, at::kFloat);
  at::Tensor target = buffers.take("target", {rows}, at::kLong);
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  auto* labels = target.mutable_data_ptr<int64_t>();
  for_rows(rows, decoders_of(rows), [&](int64_t r) {
    const Image& image = part(split)[static_cast<size_t>(samples[r])];
    const at::Tensor decoded = read_image(image.path, shape_.channels);
    features.select(0, r).copy_(fitted_image(decoded, shape_.height, shape_.width, shape_.crop));
    labels[r] = image.label;
  });
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"features", features}, {"target", target}};
  return batch;
}

DatasetPtr make_images(const Options& options, uint64_t seed) {
  ImagesDataset::Shape shape;
  shape.height = options.integer("height");
  shape.width = options.integer("width");
  shape.channels = options.integer("channels");
  shape.crop = options.text("fit") == "crop";
  shape.evaluate_fraction = options.section("evaluate").real("fraction");
  if (!options.is_auto("decoders")) shape.decoders = options.integer("decoders");
  return std::make_shared<ImagesDataset>(options.text("path"), shape, seed);
}

}  // namespace convoy
