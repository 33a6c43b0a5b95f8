#include "core/checkpoint/byte_tokenizer.h"

#include "core/data/formats/bpe_trainer.h"

namespace convoy {

std::string byte_tokenizer() {
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  for (size_t byte = 0; byte < 256; ++byte) vocabulary.emplace_back(byte_letters()[byte], int64_t(byte));
  return byte_level_tokenizer(vocabulary, {}, {}, false);
}

}  // namespace convoy
