// Frames in pieces, too large, and with random content.
#include "core/control/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace convoy {
namespace {

TEST(Frame, ReadsFramesSplitAnywhere) {
  const Json message{{"op", "set"}, {"id", 7}, {"value", bytes_of(std::string("a\0b\xff", 4))}};
  const std::string stream = encode_frame(message) + encode_frame(Json::object()) + encode_frame(message);
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameReader reader(frame_limit);
    std::vector<Json> read;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(stream.data() + at, std::min(piece, stream.size() - at));
      while (auto frame = reader.next()) read.push_back(*frame);
    }
    ASSERT_EQ(read.size(), 3u);
    EXPECT_EQ(read[0], message);
    EXPECT_EQ(text_of(read[2].at("value")), std::string("a\0b\xff", 4));
  }
}

TEST(Frame, ChecksTheLimitBeforeTheBytesArrive) {
  FrameReader reader(10);
  const std::string header("\x0b\0\0\0", 4);
  reader.feed(header.data(), header.size());
  EXPECT_THROW(reader.next(), Error);
}

TEST(Frame, RefusesOrAwaitsRandomBytes) {
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string frame =
        encode_frame(Json{{"op", "set"}, {"id", i}, {"value", bytes_of("xyz")}, {"list", {1, "a", nullptr}}});
    for (int flips = 0; flips < 3; ++flips) frame[random() % frame.size()] = static_cast<char>(random());
    FrameReader reader(frame_limit);
    reader.feed(frame.data(), frame.size());
    try {
      while (reader.next()) {
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::rendezvous);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace convoy
