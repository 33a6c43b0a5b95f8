// Recognises by its first bytes whether a file is text or was given as text by mistake. Without LibTorch.
#pragma once
#include <string>
#include <string_view>

namespace convoy {

// Why these bytes are no text, and what to do; "" when they may be text. Looks for the signs of array, archive,
// image and table files, and for NUL bytes in the first 64 KiB, which UTF-16 and raw token files have and text has
// not.
std::string not_text(std::string_view bytes);

// Why this file is no vocabulary of literal tokens, and what to do; "" when it may be one. Knows binary files and the
// files of tokenizers (byte-level BPE, WordPiece, SentencePiece), whose tokens stand for text by rules of their own.
std::string not_a_vocabulary(std::string_view bytes, const std::string& path);

}  // namespace convoy
