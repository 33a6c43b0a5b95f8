// Folders of images: files that the test encodes itself, their decoding and fitting, and errors of invalid ones.
#include "core/data/sets/images.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>
#include <turbojpeg.h>

#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using testing::WrittenFiles;

std::string png_of(const at::Tensor& pixels, png_uint_32 format) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = png_uint_32(pixels.size(0));
  image.width = png_uint_32(pixels.size(1));
  image.format = format;
  png_alloc_size_t size = 0;
  EXPECT_TRUE(png_image_write_get_memory_size(image, size, 0, pixels.const_data_ptr(), 0, nullptr));
  std::string bytes(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.const_data_ptr(), 0, nullptr), 0);
  bytes.resize(size);
  return bytes;
}

std::string jpeg_of(const at::Tensor& pixels) {
  const std::unique_ptr<void, int (*)(tjhandle)> encoder(tjInitCompress(), tjDestroy);
  const bool grey = pixels.size(2) == 1;
  unsigned char* data = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(encoder.get(), pixels.const_data_ptr<uint8_t>(), int(pixels.size(1)), 0, int(pixels.size(0)),
                        grey ? TJPF_GRAY : TJPF_RGB, &data, &size, grey ? TJSAMP_GRAY : TJSAMP_444, 100, 0),
            0);
  std::string bytes(reinterpret_cast<char*>(data), size);
  tjFree(data);
  return bytes;
}

at::Tensor noise(int64_t height, int64_t width, int64_t channels) {
  return at::randint(0, 256, {height, width, channels}, at::kLong).to(at::kByte).contiguous();
}

// Smooth, so that JPEG loses little of it.
at::Tensor slope(int64_t height, int64_t width, int64_t channels) {
  const at::Tensor down = at::arange(height, at::kFloat).view({height, 1, 1}) * (120.0 / double(height));
  const at::Tensor right = at::arange(width, at::kFloat).view({1, width, 1}) * (100.0 / double(width));
  return (down + right + at::arange(channels, at::kFloat).view({1, 1, channels}) * 10).to(at::kByte).contiguous();
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
}

std::string reported(const std::function<void()>& doing) {
  try {
    doing();
  } catch (const Error& error) {
    return str(name_of(error.kind()), " ", error.what());
  }
  return "no error";
}

TEST(ImageFile, PngIsExact) {
  const WrittenFiles files;
  const at::Tensor colour = noise(13, 7, 3), grey = noise(5, 9, 1);
  EXPECT_TRUE(at::equal(read_image(files.write("c.png", png_of(colour, PNG_FORMAT_RGB)), 3), colour));
  EXPECT_TRUE(at::equal(read_image(files.write("g.png", png_of(grey, PNG_FORMAT_GRAY)), 1), grey));
  EXPECT_TRUE(at::equal(read_image(files.path("g.png"), 3), grey.expand({5, 9, 3})));
  const at::Tensor one = read_image(files.path("c.png"), 1);
  EXPECT_EQ(one.sizes(), (std::vector<int64_t>{13, 7, 1}));
  // Transparent pixels become black.
  at::Tensor see_through = at::cat({noise(4, 6, 3), at::full({4, 6, 1}, 255, at::kByte)}, 2).contiguous();
  see_through.select(2, 3).select(0, 2).zero_();
  const at::Tensor on_black = read_image(files.write("a.png", png_of(see_through, PNG_FORMAT_RGBA)), 3);
  EXPECT_TRUE(at::equal(on_black.select(0, 1), see_through.select(0, 1).slice(1, 0, 3)));
  EXPECT_EQ(on_black.select(0, 2).max().item<int64_t>(), 0);
}

TEST(ImageFile, JpegIsClose) {
  const WrittenFiles files;
  for (int64_t channels : {1, 3}) {
    const at::Tensor pixels = slope(40, 56, channels);
    const std::string path = files.write(str("s", channels, ".JPG"), jpeg_of(pixels));
    EXPECT_LE(apart(read_image(path, channels), pixels), 4);
    EXPECT_EQ(read_image(path, 4 - channels).size(2), 4 - channels);
  }
}

TEST(ImageFile, SkipsDetailOfJpegThatShrinkingLoses) {
  const WrittenFiles files;
  const std::string path = files.write("large.jpg", jpeg_of(slope(250, 300, 3)));
  const at::Tensor whole = read_image(path, 3);
  const auto size_for = [&](int64_t height, int64_t width) {
    return read_image(path, 3, ImageSize{height, width}).sizes().slice(0, 2).vec();
  };
  EXPECT_EQ(size_for(32, 32), (std::vector<int64_t>{125, 150}));
  EXPECT_EQ(size_for(31, 37), (std::vector<int64_t>{63, 75}));
  EXPECT_EQ(size_for(60, 60), (std::vector<int64_t>{125, 150}));
  EXPECT_EQ(size_for(15, 18), (std::vector<int64_t>{32, 38}));
  EXPECT_EQ(size_for(1, 1), (std::vector<int64_t>{32, 38}));
  EXPECT_EQ(size_for(60, 100), (std::vector<int64_t>{250, 300}));
  EXPECT_EQ(size_for(400, 400), (std::vector<int64_t>{250, 300}));
  for (const bool crop : {true, false}) {
    const at::Tensor part = read_image(path, 3, ImageSize{31, 31});
    EXPECT_LE(apart(fitted_image(part, 31, 31, crop) * 255, fitted_image(whole, 31, 31, crop) * 255), 3) << crop;
  }
}

TEST(ImageFile, NamesADamagedFile) {
  const WrittenFiles files;
  const std::string png = png_of(noise(30, 30, 3), PNG_FORMAT_RGB), jpeg = jpeg_of(slope(64, 64, 3));
  const auto reading = [&](const std::string& name, const std::string& bytes) {
    return reported([&] { read_image(files.write(name, bytes), 3); });
  };
  for (const auto& [name, bytes] :
       std::vector<std::pair<std::string, std::string>>{{"cut.png", png.substr(0, png.size() / 2)},
                                                        {"cut.jpg", jpeg.substr(0, jpeg.size() / 2)},
                                                        {"head.png", png.substr(0, 12)},
                                                        {"head.jpg", jpeg.substr(0, 12)},
                                                        {"words.png", "not a picture"},
                                                        {"empty.jpg", ""}}) {
    const std::string message = reading(name, bytes);
    EXPECT_THAT(message, HasSubstr(name + ": ")) << message;
    EXPECT_THAT(message, HasSubstr(name_of(Failure::corrupt_data))) << message;
  }
  std::string flipped = png;
  flipped[png.size() / 2] = static_cast<char>(flipped[png.size() / 2] ^ 0x20);
  EXPECT_NE(reading("flipped.png", flipped), "no error");
  EXPECT_THAT(reading("words.png", "not a picture"), HasSubstr("is neither PNG nor JPEG"));
  EXPECT_THAT(reported([&] { read_image(files.path("absent.png"), 3); }), HasSubstr("absent.png: cannot open it"));
  // A header that promises 32,639 × 32,639 pixels.
  std::string huge = jpeg;
  for (size_t at = 2; at + 9 < huge.size(); ++at) {
    if (huge[at] != '\xff' || huge[at + 1] != '\xc0') continue;
    for (size_t i = 5; i < 9; ++i) huge[at + i] = '\x7f';
    break;
  }
  EXPECT_THAT(reading("huge.jpg", huge), HasSubstr("pixels; the maximum is "));
}

TEST(ImageFile, CropsOrStretches) {
  const at::Tensor image = noise(12, 20, 3);
  const at::Tensor same = fitted_image(image, 12, 20, true);
  EXPECT_LE(apart(same * 255, image.permute({2, 0, 1})), 1e-4);
  // Half the height: shrinking a smooth picture gives the average of 2 × 2 pixels; the middle is cropped.
  const at::Tensor smooth = slope(24, 40, 1);
  const at::Tensor middle = fitted_image(smooth, 12, 12, true);
  EXPECT_EQ(middle.sizes(), (std::vector<int64_t>{1, 12, 12}));
  const at::Tensor halves = at::avg_pool2d(smooth.permute({2, 0, 1}).to(at::kFloat), {2, 2}).narrow(2, 4, 12) / 255;
  EXPECT_LE(apart(middle * 255, halves * 255), 2);
  const at::Tensor stretched = fitted_image(smooth, 12, 12, false);
  EXPECT_LE(apart(stretched.select(2, 11).mean(), smooth.select(1, 39).to(at::kFloat).mean() / 255), 0.02);
  EXPECT_EQ(fitted_image(noise(3, 50, 3), 8, 8, true).sizes(), (std::vector<int64_t>{3, 8, 8}));
  EXPECT_EQ(fitted_image(noise(1, 1, 1), 5, 3, true).sizes(), (std::vector<int64_t>{1, 5, 3}));
}

ImagesDataset::Shape shape(int64_t size, double fraction) {
  ImagesDataset::Shape made;
  made.height = made.width = size;
  made.evaluate_fraction = fraction;
  return made;
}

TEST(Images, FoldersAreClassesAndTheSeedSplits) {
  const WrittenFiles files;
  std::map<std::string, at::Tensor> originals;
  for (const char* kind : {"dog", "cat", "bird"}) {
    for (int i = 0; i < 10; ++i) {
      const at::Tensor pixels = noise(6, 6, 3);
      originals[str(kind, i)] = pixels;
      files.write(str(kind, "/", i, i % 2 == 0 ? ".png" : ".PNG"), png_of(pixels, PNG_FORMAT_RGB));
    }
  }
  files.write("cat/notes.txt", "of no interest");
  const ImagesDataset data(files.folder(), shape(6, 0.2), 1), again(files.folder(), shape(6, 0.2), 1),
      other(files.folder(), shape(6, 0.2), 2);
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"bird", "cat", "dog"}));
  EXPECT_EQ(data.schema().fields.at("target").cardinality, 3);
  ASSERT_EQ(data.size(Split::train), 24);
  ASSERT_EQ(data.size(Split::evaluate), 6);
  std::set<std::string> met;
  for (Split split : {Split::train, Split::evaluate}) {
    const Batch batch = data.gather_once(split, at::arange(data.size(split), at::kLong), 0);
    EXPECT_TRUE(at::equal(batch.at("features"),
                          again.gather_once(split, at::arange(data.size(split), at::kLong), 0).at("features")));
    for (int64_t r = 0; r < batch.rows; ++r) {
      const std::string& kind = data.classes()[size_t(batch.at("target")[r].item<int64_t>())];
      for (const auto& [name, pixels] : originals)
        if (name.rfind(kind, 0) == 0 && apart(batch.at("features")[r] * 255, pixels.permute({2, 0, 1})) < 1e-3)
          met.insert(name);
    }
  }
  EXPECT_EQ(met.size(), 30u);  // each image once, under its own class
  const at::Tensor held = at::arange(6, at::kLong);
  EXPECT_FALSE(at::equal(data.gather_once(Split::evaluate, held, 0).at("features"),
                         other.gather_once(Split::evaluate, held, 0).at("features")));
}

TEST(Images, TrainAndTestFolders) {
  const WrittenFiles files;
  for (const char* name : {"train/a/1.png", "train/a/2.png", "train/b/1.png", "test/b/1.png"})
    files.write(name, png_of(noise(8, 5, 3), PNG_FORMAT_RGB));
  files.write("train/b/2.jpg", jpeg_of(slope(9, 9, 3)));
  ImagesDataset::Shape grey = shape(4, 0.5);
  grey.channels = 1;
  const ImagesDataset data(files.folder(), grey, 1);
  EXPECT_EQ(data.size(Split::train), 4);
  EXPECT_EQ(data.size(Split::evaluate), 1);
  const Batch batch = data.gather_once(Split::evaluate, at::zeros({1}, at::kLong), 0);
  EXPECT_EQ(batch.at("features").sizes(), (std::vector<int64_t>{1, 1, 4, 4}));
  EXPECT_EQ(batch.at("target").item<int64_t>(), 1);
  EXPECT_EQ(data.gather_once(Split::train, at::empty({0}, at::kLong), 0).rows, 0);

  files.write("test/c/1.png", png_of(noise(8, 5, 3), PNG_FORMAT_RGB));
  EXPECT_THAT(reported([&] { ImagesDataset(files.folder(), grey, 1); }), HasSubstr("test/c: is a class that"));
}

// Number of threads of LibTorch's operators, until the end of the test.
struct ThreadsOfOperators {
  const int before = at::get_num_threads();
  explicit ThreadsOfOperators(int threads) { at::set_num_threads(threads); }
  ~ThreadsOfOperators() { at::set_num_threads(before); }
};

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

TEST(Images, SeveralThreadsDecodeTheSameImages) {
  const WrittenFiles files;
  constexpr int64_t count = 48;
  for (int64_t i = 0; i < count; ++i)
    files.write(str("a/", 100 + i, ".png"), png_of(noise(300, 200, 3), PNG_FORMAT_RGB));
  const auto with = [&](int64_t decoders) {
    ImagesDataset::Shape made = shape(64, 0);
    made.decoders = decoders;
    return ImagesDataset(files.folder(), made, 1);
  };
  const at::Tensor all = at::arange(count, at::kLong);
  const ThreadsOfOperators two(2);
  // Also gives the threads of earlier operators, and those that LibTorch has just started, the time to fall asleep.
  const at::Tensor alone = with(1).gather_once(Split::train, all, 0).at("features");
  // CPU time of the other threads as a share of this one's. On busy cores, they may start too late for one decoding.
  const auto share_of_others = [&](int64_t decoders) {
    const double process = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID), thread = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (int round = 0; round < 8; ++round) with(decoders).gather_once(Split::train, all, 0);
    const double own = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - thread;
    return (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - process - own) / own;
  };
  EXPECT_LT(share_of_others(1), 0.05) << "a decoder's operators use several threads";
  EXPECT_GT(share_of_others(4), 0.25) << "one thread has decoded nearly all";
  EXPECT_EQ(at::get_num_threads(), 2);
  for (const int64_t decoders : {4, 100, 0})
    EXPECT_TRUE(at::equal(alone, with(decoders).gather_once(Split::train, all, 0).at("features"))) << decoders;
  // The error names the first broken file in order, for any number of decoders.
  for (const int64_t i : {9, 10, 11, 40}) files.write(str("a/", 100 + i, ".png"), "broken");
  for (const int64_t decoders : {1, 2, 4, 4, 4, 4, 16})
    EXPECT_THAT(reported([&] { with(decoders).gather_once(Split::train, all, 0); }),
                HasSubstr("a/109.png: is neither"));
}

TEST(Images, ReportsMissingFiles) {
  const WrittenFiles files;
  EXPECT_THAT(reported([&] { ImagesDataset(files.path("nowhere"), shape(4, 0), 1); }),
              HasSubstr("nowhere: cannot list it"));
  files.write("a/notes.txt", "none here");
  EXPECT_THAT(reported([&] { ImagesDataset(files.folder(), shape(4, 0), 1); }), HasSubstr("holds no images"));
  files.write("a/1.png", "broken");
  const ImagesDataset data(files.folder(), shape(4, 0), 1);
  EXPECT_THAT(reported([&] { data.gather_once(Split::train, at::zeros({1}, at::kLong), 0); }),
              HasSubstr("a/1.png: is neither PNG nor JPEG"));
}

}  // namespace
}  // namespace convoy
