// Images in folders: PATH/CLASS/*.png and .jpg, .jpeg, in any letter case; or PATH/train/CLASS/… and PATH/test/CLASS/….
//
// Classes are numbered in the order of their folders' names. Files are listed once and decoded when a batch is gathered,
// by the loader's thread and others beside it, one for each further core that it may use. Where there is no test/, the seed draws a fraction of all to evaluate on.
// Batch tensors: features [B, C, H, W] float in [0, 1] · target [B] int64.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/options.h"

namespace convoy {

class ImagesDataset : public Dataset {
 public:
  struct Shape {
    int64_t height = 32;
    int64_t width = 32;
    int64_t channels = 3;
    bool crop = true;
    double evaluate_fraction = 0.1;
    int64_t decoders = 0;  // threads that decode a batch; 0: as many as the thread that gathers may use cores
  };
  // Error(io) for folders that are not there or hold nothing, Error(corrupt_data) where test/ has a class that train/ has
  // not. A file that cannot be decoded is an Error(corrupt_data) naming it, from `gather`: of several
  // the first in the batch's order.
  ImagesDataset(const std::string& path, const Shape& shape, uint64_t seed);

  Schema schema() const override;
  int64_t size(Split split) const override { return static_cast<int64_t>(part(split).size()); }
  int64_t instances_per_row() const override { return 1; }
  // The fingerprint is that of the files' names, sizes and first and last 4 KiB: to read all would take as long as an epoch.
  DataContents contents() const override;
  DatasetPtr numbered_as(const DataContents& stored) const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const override;

  const std::vector<std::string>& classes() const { return classes_; }

 private:
  struct Image {
    std::string path;
    int64_t label = 0;
  };
  const std::vector<Image>& part(Split split) const { return split == Split::train ? train_ : evaluate_; }
  std::vector<Image> images_in(const std::string& folder) const;
  int64_t decoders_of(int64_t rows) const;
  std::string fingerprint() const;

  const std::string path_;
  const Shape shape_;
  std::vector<std::string> classes_;
  std::vector<Image> train_, evaluate_;
  mutable std::shared_ptr<const std::string> fingerprint_;  // made when it is first wanted; atomic
};

DatasetPtr make_images(const Options& options, uint64_t seed);

}  // namespace convoy
