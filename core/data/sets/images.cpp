#include "core/data/sets/images.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <png.h>
#include <sched.h>
#include <sys/stat.h>
#include <turbojpeg.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/base/hash.h"
#include "core/data/catalogue/catalogue.h"
#include "core/data/contents.h"
#include "core/data/formats/input_files.h"
#include "core/data/sampler.h"
#include "core/files/files.h"
#include "core/files/limits.h"

// LibTorch links OpenMP, but has no header of it. Null if LibTorch was built without OpenMP.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace convoy {
namespace {

constexpr int64_t most_pixels = int64_t(1) << 28;  // a damaged header may claim any size

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw Error(Failure::corrupt_data, path + ": " + reason);
}

void check_size(const std::string& path, int64_t height, int64_t width) {
  if (height < 1 || width < 1 || height > most_pixels / width)
    fail(path, str("claims to be ", width, " × ", height, " pixels; the maximum is ", most_pixels));
}

at::Tensor pixels(const std::string& path, int64_t height, int64_t width, int64_t channels) {
  check_size(path, height, width);
  return at::empty({height, width, channels}, at::kByte);
}

at::Tensor read_png(const std::string& path, std::string_view bytes, int64_t channels) {
  struct Image : png_image {
    Image() : png_image() { version = PNG_IMAGE_VERSION; }
    ~Image() { png_image_free(this); }
  } image;
  if (png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()) == 0) fail(path, image.message);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  at::Tensor out = pixels(path, image.height, image.width, channels);
  const png_color black{0, 0, 0};
  const bool read = png_image_finish_read(&image, &black, out.mutable_data_ptr(), 0, nullptr) != 0;
  // Warnings concern ancillary data only; missing pixels are errors.
  if (!read || PNG_IMAGE_FAILED(image)) fail(path, image.message);
  return out;
}

// The smallest of 1, 1/2, 1/4 and 1/8 whose image is still twice as large as `least`: the filter that shrinks the rest
// of the way then averages at least 2 × 2 pixels. Other scales have no fast inverse transform.
tjscalingfactor jpeg_scale(int height, int width, const std::optional<ImageSize>& least) {
  tjscalingfactor scale{1, 1};
  if (!least) return scale;
  for (const int denominator : {2, 4, 8}) {
    const tjscalingfactor smaller{1, denominator};
    if (TJSCALED(height, smaller) < 2 * least->height || TJSCALED(width, smaller) < 2 * least->width) break;
    scale = smaller;
  }
  return scale;
}

at::Tensor read_jpeg(const std::string& path, std::string_view bytes, int64_t channels,
                     const std::optional<ImageSize>& least) {
  const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  if (!decoder) throw Error(Failure::out_of_memory, path + ": no memory for a JPEG decoder: " + no_memory_text());
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &subsampling, &colours) != 0)
    fail(path, tjGetErrorStr2(decoder.get()));
  check_size(path, height, width);  // the whole image, before it is scaled
  const tjscalingfactor scale = jpeg_scale(height, width, least);
  height = TJSCALED(height, scale);
  width = TJSCALED(width, scale);
  at::Tensor out = pixels(path, height, width, channels);
  // A warning (such as a truncated file) is an error here: half a picture would train another model.
  if (tjDecompress2(decoder.get(), data, bytes.size(), out.mutable_data_ptr<uint8_t>(), width, 0, height,
                    channels == 1 ? TJPF_GRAY : TJPF_RGB, TJFLAG_ACCURATEDCT) != 0)
    fail(path, tjGetErrorStr2(decoder.get()));
  return out;
}

namespace fs = std::filesystem;

// Sorted, so that class numbers do not depend on the file system.
std::vector<fs::path> sorted_entries(const std::string& folder) {
  std::error_code failure;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure))
    entries.push_back(at->path());
  if (failure) throw Error(Failure::io, folder, ": cannot list it: ", failure.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : sorted_entries(folder))
    if (fs::is_directory(entry)) names.push_back(entry.filename().string());
  return names;
}

int64_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // Fails on machines with more than 1024 hardware threads; then one thread decodes.
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// While it lives, LibTorch's operators run on the calling thread alone. The image decoders are threads themselves, and
// each would start a team of its own for each batch. Not at::set_num_threads, which also counts for other threads.
class OneThreadPerOperator {
 public:
  OneThreadPerOperator() : before_(at::get_num_threads()) { set(1); }  // reading it also initialises a new thread
  ~OneThreadPerOperator() { set(before_); }
  OneThreadPerOperator(const OneThreadPerOperator&) = delete;
  OneThreadPerOperator& operator=(const OneThreadPerOperator&) = delete;

 private:
  static void set(int threads) {
    if (omp_set_num_threads != nullptr) omp_set_num_threads(threads);
  }

  const int before_;
};

// Runs action(0) … action(rows − 1) on `threads` threads, including this one. Throws the exception of the first failed
// row.
void for_rows(int64_t rows, int64_t threads, const std::function<void(int64_t)>& action) {
  std::atomic<int64_t> next{0}, end{rows};
  std::mutex mutex;  // guards the failure; `end` is its row
  std::exception_ptr failure;
  const auto work = [&] {
    const OneThreadPerOperator one_thread;
    // Rows are taken in order: when one fails, all earlier rows are done or in progress.
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
  } catch (const std::system_error&) {  // no further thread: the existing ones do the work
  }
  work();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// Hash of the first and the last 4 KiB; "" for an unreadable file, which is reported when its row is gathered.
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

at::Tensor read_image(const std::string& path, int64_t channels, const std::optional<ImageSize>& least) {
  const MappedFile file(path);
  const std::string_view bytes = file.text();
  if (begins_with(bytes, "\x89PNG\r\n\x1a\n")) return read_png(path, bytes, channels);
  if (begins_with(bytes, "\xff\xd8\xff")) return read_jpeg(path, bytes, channels, least);
  fail(path, "is neither PNG nor JPEG");
}

at::Tensor fitted_image(const at::Tensor& image, int64_t height, int64_t width, bool crop) {
  at::NoGradGuard no_grad;
  at::Tensor planes = image.permute({2, 0, 1}).to(at::kFloat).mul_(1.0 / 255);
  const int64_t from_height = planes.size(1), from_width = planes.size(2);
  int64_t to_height = height, to_width = width;
  if (crop) {
    const double scale = std::max(double(height) / double(from_height), double(width) / double(from_width));
    to_height = std::max<int64_t>(height, std::llround(double(from_height) * scale));
    to_width = std::max<int64_t>(width, std::llround(double(from_width) * scale));
  }
  if (to_height != from_height || to_width != from_width) {
    planes = at::_upsample_bilinear2d_aa(planes.unsqueeze(0), {to_height, to_width}, false, std::nullopt, std::nullopt)
                 .squeeze(0)
                 .clamp_(0, 1);  // rounding may leave the range
  }
  return planes.narrow(1, (to_height - height) / 2, height).narrow(2, (to_width - width) / 2, width);
}

ImagesDataset::ImagesDataset(const std::string& path, const Shape& shape, uint64_t seed) : path_(path), shape_(shape) {
  const bool split = fs::is_directory(path + "/train") && fs::is_directory(path + "/test");
  const std::string folder = split ? path + "/train" : path;
  classes_ = folders_in(folder);
  std::vector<Image> all = images_in(folder);
  if (all.empty())
    throw Error(Failure::io, folder,
                ": holds no images; put the images into one folder per class, as .png, .jpg or .jpeg files");
  if (split) {
    for (const std::string& name : folders_in(path + "/test")) {
      if (!std::binary_search(classes_.begin(), classes_.end(), name))
        throw Error(Failure::corrupt_data, path, "/test/", name, ": is a class that ", folder, " does not have");
    }
    train_ = std::move(all);
    evaluate_ = images_in(path + "/test");
    return;
  }
  const auto count = static_cast<int64_t>(all.size());
  const int64_t evaluated_count =
      std::min(count - 1, static_cast<int64_t>(std::llround(shape.evaluate_fraction * static_cast<double>(count))));
  const Permutation order(count, seed, "images split");
  std::vector<bool> evaluated(all.size(), false);
  for (int64_t i = 0; i < evaluated_count; ++i) evaluated[static_cast<size_t>(order.at(i))] = true;
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

// Hashes names and sizes of all files, and bytes of a limited number: at most a few per cent of the decoding time.
std::string ImagesDataset::fingerprint() const {
  constexpr size_t most_looked_into = 100'000;
  std::vector<std::string> files, ends;  // path relative to the data's folder, and size
  for (const std::vector<Image>* images : {&train_, &evaluate_})
    for (const Image& image : *images) {
      std::error_code none;  // a missing file is reported when it is read
      files.push_back(str(image.path.substr(path_.size()), '\n', fs::file_size(image.path, none)));
    }
  std::sort(files.begin(), files.end());  // the order of the split depends on the seed
  ends.resize(std::min(files.size(), most_looked_into));
  const auto count = static_cast<int64_t>(ends.size());
  for_rows(count, decoders_of(count), [&](int64_t i) {
    const std::string& file = files[files.size() * static_cast<size_t>(i) / ends.size()];
    ends[static_cast<size_t>(i)] = hash_of_ends(path_ + file.substr(0, file.find('\n')));
  });
  return with_content(combined_fingerprint(files), combined_fingerprint(ends));
}

DataContents ImagesDataset::contents() const {
  // Later changes of the files do not count: each rank compares the state at its start.
  std::shared_ptr<const std::string> computed = std::atomic_load(&fingerprint_);
  if (!computed) std::atomic_store(&fingerprint_, computed = std::make_shared<const std::string>(fingerprint()));
  DataContents contents{*computed, static_cast<int64_t>(train_.size() + evaluate_.size()), {}};
  contents.lists["classes"] = {NameList(classes_)};
  return contents;
}

DatasetPtr ImagesDataset::numbered_as(const DataContents& stored) const {
  auto made = std::make_shared<ImagesDataset>(*this);
  made->classes_ = stored.lists.at("classes").names.strings();
  const std::vector<int64_t> labels = NameNumbers(stored.lists.at("classes").names).find_all(NameList(classes_));
  for (std::vector<Image>* images : {&made->train_, &made->evaluate_})
    for (Image& image : *images) image.label = labels[static_cast<size_t>(image.label)];
  return made;
}

Schema ImagesDataset::schema() const {
  Schema schema;
  schema.fields["features"] = {{shape_.channels, shape_.height, shape_.width}, at::kFloat, 0};
  schema.fields["target"] = {{}, at::kLong, static_cast<int64_t>(classes_.size())};
  return schema;
}

int64_t ImagesDataset::decoders_of(int64_t rows) const {
  return std::min(rows, shape_.decoders > 0 ? shape_.decoders : usable_cores());
}

Batch ImagesDataset::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, BatchBuffers& buffers) const {
  const int64_t rows = indices.numel();
  at::Tensor features = buffers.take("features", {rows, shape_.channels, shape_.height, shape_.width}, at::kFloat);
  at::Tensor target = buffers.take("target", {rows}, at::kLong);
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  auto* labels = target.mutable_data_ptr<int64_t>();
  for_rows(rows, decoders_of(rows), [&](int64_t r) {
    const Image& image = images_of(split)[static_cast<size_t>(samples[r])];
    const at::Tensor decoded = read_image(image.path, shape_.channels, ImageSize{shape_.height, shape_.width});
    features.select(0, r).copy_(fitted_image(decoded, shape_.height, shape_.width, shape_.crop));
    labels[r] = image.label;
  });
  return {{{"features", features}, {"target", target}}, rows};
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
