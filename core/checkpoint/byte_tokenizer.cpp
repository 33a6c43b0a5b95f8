#include "core/checkpoint/export.h"

#include "core/base/json.h"
#include "core/base/options.h"

namespace convoy {
namespace {

// GPT-2 shows each byte as one printable character: itself if it is one, else the next free one from U+0100 on.
bool is_shown(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

std::string utf8(int code) {
  if (code < 0x80) return {char(code)};
  return {char(0xc0 | (code >> 6)), char(0x80 | (code & 0x3f))};
}

}  // namespace

std::string byte_tokenizer() {
  Json vocabulary = Json::object();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) vocabulary[utf8(is_shown(byte) ? byte : next++)] = byte;
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json tokenizer{{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", Json::array()},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", bytes},
                       {"post_processor", nullptr},
                       {"decoder", bytes},
                       {"model",
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"vocab", vocabulary},
                         {"merges", Json::array()}}}};
  return tokenizer.dump(1) + "\n";
}

}  // namespace convoy
