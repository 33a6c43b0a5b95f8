// One PNG or JPEG file to pixels. Threads: callable from any.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace convoy {

// uint8 [height, width, channels], channels 1 (grey) or 3 (red, green, blue), whatever the file has; what is transparent
// in it is put on black. PNG and JPEG are told by their first bytes.
// Error(io) for a file that cannot be read, Error(corrupt_data) naming the file and the decoder's reason.
at::Tensor read_image(const std::string& path, int64_t channels);

// [height, width, C] uint8 → float [C, new_height, new_width] in [0, 1] by bilinear interpolation that averages when it
// shrinks. crop: the shape is kept and the middle is cut out; else stretched.
at::Tensor fitted_image(const at::Tensor& image, int64_t height, int64_t width, bool crop);

}  // namespace convoy
