// The tokenizer of `vocabulary: bytes` for transformers: token n is byte n.
#pragma once
#include <string>

namespace convoy {

// Returns the content of tokenizer.json: byte-level BPE without merges, with the alphabet of GPT-2.
std::string byte_tokenizer();

}  // namespace convoy
