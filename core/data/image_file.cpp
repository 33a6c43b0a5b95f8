#include "core/data/image_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/data/mapped_file.h"
#include "core/error.h"

namespace convoy {
namespace {

constexpr int64_t most_pixels = int64_t(1) << 28;  // a damaged header asks for any size

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw Error(Failure::corrupt_data, path + ": " + reason);
}

at::Tensor pixels(const std::string& path, int64_t height, int64_t width, int64_t channels) {
  if (height < 1 || width < 1 || height > most_pixels / width)
    fail(path, str("says that it is ", width, " × ", height, " pixels; ", most_pixels, " are the most"));
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
  // Warnings are about ancillary data; pixels that are missing are errors.
  if (!read || PNG_IMAGE_FAILED(image)) fail(path, image.message);
  return out;
}

at::Tensor read_jpeg(const std::string& path, std::string_view bytes, int64_t channels) {
  const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  if (!decoder) throw Error(Failure::out_of_memory, path + ": no memory for a JPEG decoder");
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &subsampling, &colours) != 0)
    fail(path, tjGetErrorStr2(decoder.get()));
  at::Tensor out = pixels(path, height, width, channels);
  // A warning (a file cut short, say) is an error here: half a picture teaches something else.
  if (tjDecompress2(decoder.get(), data, bytes.size(), out.mutable_data_ptr<uint8_t>(), width, 0, height,
                    channels == 1 ? TJPF_GRAY : TJPF_RGB, TJFLAG_ACCURATEDCT) != 0)
    fail(path, tjGetErrorStr2(decoder.get()));
  return out;
}

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

}  // namespace

at::Tensor read_image(const std::string& path, int64_t channels) {
  const MappedFile file(path);
  const std::string_view bytes = file.text();
  if (begins(bytes, "\x89PNG\r\n\x1a\n")) return read_png(path, bytes, channels);
  if (begins(bytes, "\xff\xd8\xff")) return read_jpeg(path, bytes, channels);
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
                 .clamp_(0, 1);  // rounding
  }
  return planes.narrow(1, (to_height - height) / 2, height).narrow(2, (to_width - width) / 2, width);
}

}  // namespace convoy
