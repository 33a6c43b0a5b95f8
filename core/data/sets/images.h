// Images in folders: PATH/CLASS/*.png and .jpg, .jpeg, in any letter case; or PATH/train/CLASS/… and PATH/test/CLASS/….
//
// Classes are numbered in the order of their folders' names. Files are listed once and decoded when a batch is
// gathered, by the loader's thread and one more thread for each further core. Without test/, the seed selects a
// fraction of all images for evaluation.
// Batch tensors: features [B, C, H, W] float in [0, 1] · target [B] int64.
#pragma once
#include <ATen/core/Tensor.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/data/dataset.h"

namespace convoy {

// --- Decoding; thread-safe ---

// Decodes a PNG or JPEG file, recognised by its first bytes, to uint8 [height, width, channels] with 1 (grey) or 3
// (red, green, blue) channels. Converts other channel counts; transparent pixels are drawn on black.
// `least`: the height and width that fitted_image will shrink the image to. The decoder of JPEG then skips detail that
// this loses: it decodes at 1/2, 1/4 or 1/8 of the size, if that is at least twice as high and as wide as `least`.
// Error(io) for an unreadable file, Error(corrupt_data) naming the file and the decoder's reason.
struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
};
at::Tensor read_image(const std::string& path, int64_t channels, const std::optional<ImageSize>& least = {});

// Converts [height, width, C] uint8 → float [C, new_height, new_width] in [0, 1], by bilinear interpolation with
// antialiasing. `crop`: keeps the aspect ratio and crops the middle; otherwise stretches.
at::Tensor fitted_image(const at::Tensor& image, int64_t height, int64_t width, bool crop);

class ImagesDataset : public Dataset {
 public:
  struct Shape {
    int64_t height = 32;
    int64_t width = 32;
    int64_t channels = 3;
    bool crop = true;
    double evaluate_fraction = 0.1;
    int64_t decoders = 0;  // threads that decode a batch; 0: one per core of the gathering thread
  };
  // Error(io) for folders that are missing or empty; Error(corrupt_data) if test/ has a class that train/ lacks. If
  // files cannot be decoded, `gather` throws Error(corrupt_data) for the first such file in the batch.
  ImagesDataset(const std::string& path, const Shape& shape, uint64_t seed);

  Schema schema() const override;
  int64_t size(Split split) const override { return static_cast<int64_t>(images_of(split).size()); }
  int64_t instances_per_row() const override { return 1; }
  // The fingerprint covers names, sizes, and the first and last 4 KiB of files: reading all bytes would take an epoch.
  DataContents contents() const override;
  DatasetPtr numbered_as(const DataContents& stored) const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override;

  const std::vector<std::string>& classes() const { return classes_; }

 private:
  struct Image {
    std::string path;
    int64_t label = 0;
  };
  const std::vector<Image>& images_of(Split split) const { return split == Split::train ? train_ : evaluate_; }
  std::vector<Image> images_in(const std::string& folder) const;
  int64_t decoders_of(int64_t rows) const;
  std::string fingerprint() const;

  const std::string path_;
  const Shape shape_;
  std::vector<std::string> classes_;
  std::vector<Image> train_, evaluate_;
  mutable std::shared_ptr<const std::string> fingerprint_;  // computed on first use; atomic
};

DatasetPtr make_images(const Options& options, uint64_t seed);

}  // namespace convoy
