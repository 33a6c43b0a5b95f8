#include "core/data/formats/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <queue>
#include <tuple>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/data/formats/bpe_trainer.h"
#include "core/data/formats/input_files.h"

namespace convoy {
namespace {

using TokenizerJson = nlohmann::json;

constexpr int64_t most_tokens = 1 << 24;

[[noreturn]] void corrupt(const std::string& path, const std::string& reason) {
  throw Error(Failure::corrupt_data, path, ": ", reason);
}

[[noreturn]] void unsupported(const std::string& path, const std::string& feature) {
  throw Error(Failure::config, path, ": ", feature,
              " is not supported; data.tokenizer takes byte-level BPE, as GPT-2, Llama 3 and Qwen have it. Encode the "
              "text in Python and give the numbers: data.format: npy");
}

// "Ġthe" → " the". A letter that stands for no byte stays.
std::string bytes_of_letters(std::string_view token) {
  static const std::unordered_map<std::string_view, char> bytes = [] {
    std::unordered_map<std::string_view, char> all;
    for (size_t byte = 0; byte < 256; ++byte) all.emplace(byte_letters()[byte], static_cast<char>(byte));
    return all;
  }();
  std::string text;
  for (size_t i = 0; i < token.size();) {
    size_t length = 1;
    while (i + length < token.size() && (static_cast<unsigned char>(token[i + length]) & 0xc0U) == 0x80) ++length;
    const std::string_view letter = token.substr(i, length);
    const auto found = bytes.find(letter);
    if (found != bytes.end())
      text += found->second;
    else
      text += letter;
    i += length;
  }
  return text;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32U | static_cast<uint32_t>(right);
}

std::string json_text(const TokenizerJson& value) {
  return value.dump(-1, ' ', false, TokenizerJson::error_handler_t::replace);
}

}  // namespace

// --- Reading ---

class Tokenizer::Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Tokenizer read() {
    const std::string text = file(path_);
    if (begins_with(text, "#version"))
      corrupt(path_, "is a list of merges; give the vocab.json next to it, or a tokenizer.json");
    const TokenizerJson json = parsed(text);
    if (!json.is_object()) corrupt(path_, "is no map; a tokenizer.json or a vocab.json is");
    if (json.contains("model") && json["model"].is_object())
      read_tokenizer(json);
    else
      read_vocabulary(json);
    finish();
    return std::move(made_);
  }

 private:
  std::string file(const std::string& path) {
    std::string text(MappedFile(path).text());
    made_.files_.emplace_back(std::filesystem::path(path).filename().string(), text);
    return text;
  }

  TokenizerJson parsed(const std::string& text) const {
    try {
      return TokenizerJson::parse(text);
    } catch (const TokenizerJson::exception& error) {
      corrupt(path_, str("is not JSON: ", error.what()));
    }
  }

  // vocab.json and merges.txt, as GPT-2 has them.
  void read_vocabulary(const TokenizerJson& json) {
    add_vocabulary(json);
    const std::string merges = (std::filesystem::path(path_).parent_path() / "merges.txt").string();
    std::error_code none;
    if (!std::filesystem::is_regular_file(merges, none))
      corrupt(path_, str("is a vocabulary, but its merges are missing: there is no ", merges,
                         "; copy it there, or give a tokenizer.json"));
    int64_t line = 0;
    for (const std::string& one : split(file(merges), '\n')) {
      ++line;
      const std::string_view text = ends_in(one, "\r") ? std::string_view(one).substr(0, one.size() - 1) : one;
      if (!text.empty() && !begins_with(text, "#version")) add_merge(text, str(merges, ":", line));
    }
    constexpr char end_of_text[] = "<|endoftext|>";
    if (ids_.count(end_of_text) > 0) made_.added_.emplace(end_of_text, ids_.at(end_of_text));
    if (!made_.added_.empty()) made_.added_splitters_.emplace_back(std::vector<std::string>{end_of_text});
    made_.pieces_.emplace_back(gpt2_pieces, path_);
  }

  void read_tokenizer(const TokenizerJson& json) {
    const TokenizerJson& model = json["model"];
    if (const std::string type = model.value("type", "BPE"); type != "BPE") unsupported(path_, "the model " + type);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (given(model, key) && model[key] != "") unsupported(path_, str("model.", key, " ", json_text(model[key])));
    for (const char* key : {"byte_fallback", "fuse_unk"})
      if (given(model, key) && model[key] != false) unsupported(path_, str("model.", key));
    if (given(model, "dropout") && model["dropout"] != 0.0) unsupported(path_, "model.dropout");
    if (given(json, "normalizer")) check_normalizer(json["normalizer"]);
    if (!given(json, "pre_tokenizer")) unsupported(path_, "a tokenizer without pre_tokenizer");
    add_pre_tokenizer(json["pre_tokenizer"], true);
    if (!byte_level_) unsupported(path_, "a pre_tokenizer without ByteLevel");
    if (!model.contains("vocab") || !model["vocab"].is_object()) corrupt(path_, "model.vocab is no map");
    add_vocabulary(model["vocab"]);
    if (!model.contains("merges") || !model["merges"].is_array()) corrupt(path_, "model.merges is no list");
    int64_t number = 0;
    for (const TokenizerJson& merge : model["merges"]) {
      const std::string where = str(path_, ": model.merges, entry ", number++);
      const bool two = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
      if (two)
        add_pair(merge[0].get<std::string>(), merge[1].get<std::string>(), where);
      else if (merge.is_string())
        add_merge(merge.get_ref<const std::string&>(), where);
      else
        corrupt(where, str("is ", json_text(merge), ", not two tokens"));
    }
    if (given(model, "unk_token")) made_.unknown_ = id_of(model["unk_token"], "model.unk_token");
    keep_whole_ = given(model, "ignore_merges") && model["ignore_merges"] == true;
    if (given(json, "added_tokens")) add_special_tokens(json["added_tokens"]);
  }

  static bool given(const TokenizerJson& json, const char* key) { return json.contains(key) && !json[key].is_null(); }

  std::string type_of(const TokenizerJson& part, const char* what) const {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
      corrupt(path_, str(what, " has no type: ", json_text(part)));
    return part["type"].get<std::string>();
  }

  void check_normalizer(const TokenizerJson& normalizer) const {
    const std::string type = type_of(normalizer, "normalizer");
    if (type == "Sequence" && normalizer.value("normalizers", TokenizerJson::array()).empty()) return;
    unsupported(path_, "the normalizer " + type);
  }

  void add_pre_tokenizer(const TokenizerJson& part, bool first) {
    const std::string type = type_of(part, "pre_tokenizer");
    if (byte_level_) unsupported(path_, str("the pre_tokenizer ", type, " after ByteLevel"));
    if (type == "Sequence") {
      for (const TokenizerJson& inner : part.value("pretokenizers", TokenizerJson::array())) {
        add_pre_tokenizer(inner, first);
        first = false;
      }
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      made_.prefix_space_ = part.value("add_prefix_space", true);
      if (made_.prefix_space_ && !first) unsupported(path_, "add_prefix_space after another pre_tokenizer");
      if (part.value("use_regex", true)) made_.pieces_.emplace_back(gpt2_pieces, path_);
    } else if (type == "Digits") {
      made_.pieces_.emplace_back(part.value("individual_digits", false) ? "\\p{N}" : "\\p{N}+", path_);
    } else if (type == "Split") {
      if (part.value("behavior", "") != "Isolated" || part.value("invert", false))
        unsupported(path_, str("the pre_tokenizer Split with behavior ", part.value("behavior", ""),
                               part.value("invert", false) ? " and invert" : ""));
      const TokenizerJson pattern = part.value("pattern", TokenizerJson::object());
      if (pattern.contains("Regex") && pattern["Regex"].is_string())
        made_.pieces_.emplace_back(pattern["Regex"].get<std::string>(), path_);
      else if (pattern.contains("String") && pattern["String"].is_string() && pattern["String"] != "")
        made_.pieces_.emplace_back(std::vector<std::string>{pattern["String"].get<std::string>()});
      else
        corrupt(path_, str("the pre_tokenizer Split has the pattern ", json_text(pattern)));
    } else {
      unsupported(path_, "the pre_tokenizer " + type);
    }
  }

  void add_token(const std::string& token, const TokenizerJson& number) {
    const int64_t id = number.is_number_integer() ? number.get<int64_t>() : -1;
    if (id < 0 || id >= most_tokens)
      corrupt(path_,
              str("token '", token, "' has the number ", json_text(number), "; numbers are 0 to ", most_tokens - 1));
    if (made_.tokens_.size() <= static_cast<size_t>(id)) made_.tokens_.resize(static_cast<size_t>(id) + 1);
    std::string& there = made_.tokens_[static_cast<size_t>(id)];
    if (!there.empty() && there != token)
      corrupt(path_, str("'", there, "' and '", token, "' both have the number ", id));
    there = token;
  }

  void add_vocabulary(const TokenizerJson& vocabulary) {
    if (vocabulary.empty()) corrupt(path_, "holds no tokens");
    for (const auto& [token, number] : vocabulary.items()) {
      add_token(token, number);
      ids_.emplace(token, number.get<int32_t>());
    }
  }

  void add_merge(std::string_view text, const std::string& where) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      corrupt(where, str("is '", text, "', not two tokens with a space between them"));
    add_pair(std::string(text.substr(0, space)), std::string(text.substr(space + 1)), where);
  }

  void add_pair(const std::string& left, const std::string& right, const std::string& where) {
    const auto id = [&](const std::string& token) {
      const auto found = ids_.find(token);
      if (found == ids_.end())
        corrupt(where, str("merges '", left, "' and '", right, "', and '", token, "' is not in the vocabulary"));
      return found->second;
    };
    const uint64_t key = pair_key(id(left), id(right));
    made_.merges_[key] = {static_cast<int32_t>(ranks_++), id(left + right)};
  }

  int32_t id_of(const TokenizerJson& token, const char* what) const {
    const auto found = ids_.find(token.is_string() ? token.get<std::string>() : "");
    if (found == ids_.end()) corrupt(path_, str(what, " is ", json_text(token), ", which is not in the vocabulary"));
    return found->second;
  }

  void add_special_tokens(const TokenizerJson& list) {
    std::vector<std::string> first, second;  // `first`: not normalized; Python looks for these first
    for (const TokenizerJson& token : list) {
      if (!token.is_object() || !token.contains("content") || !token["content"].is_string() || !token.contains("id") ||
          token["content"] == "")
        corrupt(path_, "added_tokens has the entry " + json_text(token));
      const auto content = token["content"].get<std::string>();
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (token.value(key, false)) unsupported(path_, str("the added token ", content, " with ", key));
      add_token(content, token["id"]);
      made_.added_.emplace(content, token["id"].get<int32_t>());
      (token.value("normalized", false) ? second : first).push_back(content);
    }
    for (const std::vector<std::string>& literals : {first, second})
      if (!literals.empty()) made_.added_splitters_.emplace_back(literals);
  }

  void finish() {
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(byte_letters()[byte]);
      made_.byte_tokens_[byte] = found == ids_.end() ? -1 : found->second;
    }
    for (const std::string& token : made_.tokens_)
      made_.bytes_.push_back(made_.added_.count(token) > 0 ? token : bytes_of_letters(token));
    if (!keep_whole_) return;
    for (const auto& [token, id] : ids_) made_.whole_.emplace(bytes_of_letters(token), id);
  }

  const std::string path_;
  Tokenizer made_;
  std::unordered_map<std::string, int32_t> ids_;  // ids of the vocabulary, without added tokens
  int64_t ranks_ = 0;
  bool byte_level_ = false, keep_whole_ = false;
};

Tokenizer Tokenizer::read(const std::string& path) {
  try {
    return Reader(path).read();
  } catch (const TokenizerJson::exception& error) {  // a value of another type than expected
    corrupt(path, str("is no tokenizer: ", error.what()));
  }
}

std::string Tokenizer::hash() const {
  Hasher hasher;
  for (const auto& [name, text] : files_) {
    const uint64_t size = text.size();
    hasher.add(&size, sizeof size);
    hasher.add(text.data(), text.size());
  }
  return hasher.hex();
}

// --- Encoding ---

class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, std::string_view text, const std::string& path)
      : tokenizer_(tokenizer), text_(text), path_(path) {}

  std::vector<int32_t> encode() {
    tokens_.reserve(text_.size() / 4);
    special(text_, 0);
    return std::move(tokens_);
  }

 private:
  void special(std::string_view text, size_t splitter) {
    if (splitter == tokenizer_.added_splitters_.size()) return plain(text);
    tokenizer_.added_splitters_[splitter].each(text, [&](std::string_view part, bool matched) {
      if (matched)
        tokens_.push_back(tokenizer_.added_.at(std::string(part)));
      else
        special(part, splitter + 1);
    });
  }

  void plain(std::string_view text) {
    if (!tokenizer_.prefix_space_ || text.empty() || text[0] == ' ') return pieces(text, 0);
    pieces(" " + std::string(text), 0);
  }

  void pieces(std::string_view text, size_t splitter) {
    if (splitter == tokenizer_.pieces_.size()) return piece(text);
    tokenizer_.pieces_[splitter].each(text, [&](std::string_view part, bool) { pieces(part, splitter + 1); });
  }

  void piece(std::string_view text) {
    constexpr size_t most_known = 1 << 18, longest_known = 64;
    if (text.size() > longest_known) return merged(text, tokens_);
    std::string key(text);
    auto found = known_.find(key);
    if (found == known_.end()) {
      if (known_.size() >= most_known) known_.clear();
      std::vector<int32_t> tokens;
      merged(text, tokens);
      found = known_.emplace(std::move(key), std::move(tokens)).first;
    }
    tokens_.insert(tokens_.end(), found->second.begin(), found->second.end());
  }

  struct Symbol {
    int32_t token;
    int64_t before, after;  // index of the neighbours; −1: none
  };
  struct Candidate {
    int32_t rank, token;
    int64_t left, right;
    int32_t left_token, right_token;  // as they were; later merges make the candidate stale
    // The earliest merge first, then the leftmost.
    bool operator<(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
  };

  void propose(int64_t left, int64_t right) {
    if (left < 0 || right < 0) return;
    const int32_t a = symbols_[size_t(left)].token, b = symbols_[size_t(right)].token;
    const auto found = tokenizer_.merges_.find(pair_key(a, b));
    if (found != tokenizer_.merges_.end())
      candidates_.push({found->second.rank, found->second.token, left, right, a, b});
  }

  int32_t token_of(const char& byte) const {
    const int32_t token = tokenizer_.byte_tokens_[static_cast<unsigned char>(byte)];
    if (token >= 0) return token;
    if (tokenizer_.unknown_ >= 0) return tokenizer_.unknown_;
    const bool inside = &byte >= text_.data() && &byte < text_.data() + text_.size();
    corrupt(path_, str(inside ? str("byte ", &byte - text_.data()) : "a byte", " (value ",
                       static_cast<int>(static_cast<unsigned char>(byte)),
                       ") has no token: the tokenizer lacks it and has no unk_token"));
  }

  void merged(std::string_view text, std::vector<int32_t>& tokens) {
    if (!tokenizer_.whole_.empty()) {
      const auto whole = tokenizer_.whole_.find(std::string(text));
      if (whole != tokenizer_.whole_.end()) return tokens.push_back(whole->second);
    }
    symbols_.clear();
    const auto count = static_cast<int64_t>(text.size());
    for (int64_t i = 0; i < count; ++i)
      symbols_.push_back({token_of(text[size_t(i)]), i - 1, i + 1 < count ? i + 1 : -1});
    for (int64_t i = 0; i + 1 < count; ++i) propose(i, i + 1);
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      Symbol &left = symbols_[size_t(best.left)], &right = symbols_[size_t(best.right)];
      if (left.token != best.left_token || right.token != best.right_token || left.after != best.right) continue;
      left.token = best.token;
      left.after = right.after;
      right.token = -1;
      if (left.after >= 0) symbols_[size_t(left.after)].before = best.left;
      propose(left.before, best.left);
      propose(best.left, left.after);
    }
    for (int64_t i = 0; i >= 0 && count > 0; i = symbols_[size_t(i)].after) tokens.push_back(symbols_[size_t(i)].token);
  }

  const Tokenizer& tokenizer_;
  const std::string_view text_;
  const std::string& path_;
  std::vector<int32_t> tokens_;
  std::unordered_map<std::string, std::vector<int32_t>> known_;  // tokens of pieces; most pieces come again
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> candidates_;
};

std::vector<int32_t> Tokenizer::encode(std::string_view text, const std::string& path) const {
  return Encoder(*this, text, path).encode();
}

std::string Tokenizer::decode(const int32_t* tokens, int64_t count) const {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += bytes_[static_cast<size_t>(tokens[i])];
  return text;
}

}  // namespace convoy
