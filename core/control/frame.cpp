// Encoding on nlohmann's CBOR, which checks lengths against what is there.
#include "core/control/frame.h"

#include "core/text.h"

namespace convoy {

std::string encode_frame(const Json& message) {
  std::string frame(4, '\0');
  Json::to_cbor(message, frame);
  const auto length = static_cast<uint32_t>(frame.size() - 4);
  for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return frame;
}

Json bytes_of(const std::string& value) { return Json::binary({value.begin(), value.end()}); }

std::string text_of(const Json& bytes) {
  const auto& binary = bytes.get_binary();
  return {binary.begin(), binary.end()};
}

std::optional<Json> FrameReader::next() {
  if (buffer_.size() - begin_ < 4) return std::nullopt;
  size_t length = 0;
  for (int i = 0; i < 4; ++i) length |= static_cast<size_t>(static_cast<unsigned char>(buffer_[begin_ + i])) << (8 * i);
  if (length > limit_) {
    throw Error(Failure::rendezvous, str("a frame of ", length, " bytes where at most ", limit_, " are allowed"));
  }
  if (buffer_.size() - begin_ - 4 < length) return std::nullopt;
  const auto* data = reinterpret_cast<const unsigned char*>(buffer_.data()) + begin_ + 4;
  Json message;
  try {
    message = Json::from_cbor(data, data + length);
  } catch (const Json::exception& error) {
    throw Error(Failure::rendezvous, str("a frame that is no CBOR: ", error.what()));
  }
  if (!message.is_object()) throw Error(Failure::rendezvous, "a frame that is no CBOR map");
  begin_ += 4 + length;
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
    if (buffer_.capacity() > (size_t{1} << 20)) buffer_.shrink_to_fit();
  } else if (begin_ > (size_t{1} << 20)) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  return message;
}

}  // namespace convoy
