#include "core/data/formats/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <queue>

#include "core/base/error.h"

namespace convoy {
namespace {

// A piece of text as tokens, with the number of times that it occurs.
struct CountedWord {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

struct PairCount {
  int64_t count = 0;
  int32_t left = 0, right = 0;
  // The most frequent pair first; then the one with the smaller tokens.
  bool operator<(const PairCount& other) const {
    if (count != other.count) return count < other.count;
    return std::pair(left, right) > std::pair(other.left, other.right);
  }
};

uint64_t merge_key(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

// Counts of pairs over all words, and the merges.
class PairMerger {
 public:
  explicit PairMerger(std::vector<CountedWord> words) : words_(std::move(words)) {
    for (size_t word = 0; word < words_.size(); ++word) {
      const std::vector<int32_t>& tokens = words_[word].tokens;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) change(tokens[i], tokens[i + 1], words_[word].count, word);
    }
    for (const auto& [key, pair] : pairs_) queue_.push({pair.count, int32_t(key >> 32), int32_t(key)});
  }

  // The pair to merge next; its count is below 2 if none is left.
  PairCount most_frequent() {
    while (!queue_.empty()) {
      PairCount top = queue_.top();
      const auto found = pairs_.find(merge_key(top.left, top.right));
      const int64_t now = found == pairs_.end() ? 0 : found->second.count;
      if (top.count == now) return top;
      queue_.pop();
      top.count = now;
      if (now > 0) queue_.push(top);
    }
    return {};
  }

  void merge(const PairCount& pair, int32_t merged) {
    const auto node = pairs_.extract(merge_key(pair.left, pair.right));
    std::vector<uint32_t> in = node.mapped().words;
    std::sort(in.begin(), in.end());
    in.erase(std::unique(in.begin(), in.end()), in.end());
    grown_.clear();
    for (uint32_t word : in) merge_in(word, pair.left, pair.right, merged);
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (uint64_t key : grown_)
      if (const auto found = pairs_.find(key); found != pairs_.end())
        queue_.push({found->second.count, int32_t(key >> 32), int32_t(key)});
  }

 private:
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  // words that have or had the pair; a word may occur twice
  };

  void change(int32_t left, int32_t right, int64_t by, size_t word) {
    Pair& pair = pairs_[merge_key(left, right)];
    pair.count += by;
    if (by > 0 && (pair.words.empty() || pair.words.back() != word)) pair.words.push_back(uint32_t(word));
  }

  // Replaces each occurrence of the pair in the word, from its begin.
  void merge_in(uint32_t word, int32_t left, int32_t right, int32_t merged) {
    std::vector<int32_t>& tokens = words_[word].tokens;
    const int64_t count = words_[word].count;
    size_t out = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i + 1 == tokens.size() || tokens[i] != left || tokens[i + 1] != right) {
        tokens[out++] = tokens[i];
        continue;
      }
      if (out > 0) {
        change(tokens[out - 1], left, -count, word);
        change(tokens[out - 1], merged, count, word);
        grown_.push_back(merge_key(tokens[out - 1], merged));
      }
      if (i + 2 < tokens.size()) {
        change(right, tokens[i + 2], -count, word);
        change(merged, tokens[i + 2], count, word);
        grown_.push_back(merge_key(merged, tokens[i + 2]));
      }
      tokens[out++] = merged;
      ++i;
    }
    tokens.resize(out);
  }

  std::vector<CountedWord> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<PairCount> queue_;  // counts may be old; they only shrink between pushes
  std::vector<uint64_t> grown_;
};

// Bytes in the order of the code points of their letters, which is the order of their numbers.
std::vector<int> bytes_by_letter() {
  std::vector<int> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  // Letters of one and of two bytes in UTF-8 sort like their code points.
  std::sort(bytes.begin(), bytes.end(),
            [](int a, int b) { return byte_letters()[size_t(a)] < byte_letters()[size_t(b)]; });
  return bytes;
}

}  // namespace

const std::vector<std::string>& byte_letters() {
  static const std::vector<std::string> letters = [] {
    const auto shown = [](int byte) {
      return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
    };
    std::vector<std::string> all;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int code = shown(byte) ? byte : next++;
      if (code < 0x80)
        all.emplace_back(1, char(code));
      else
        all.push_back({char(0xc0 | (code >> 6)), char(0x80 | (code & 0x3f))});
    }
    return all;
  }();
  return letters;
}

std::string byte_level_tokenizer(const std::vector<std::pair<std::string, int64_t>>& vocabulary,
                                 const std::vector<std::pair<std::string, std::string>>& merges,
                                 const std::vector<std::string>& special, bool use_regex) {
  using Ordered = nlohmann::ordered_json;
  Ordered tokens = Ordered::object(), marks = Ordered::array(), pairs = Ordered::array();
  for (const auto& [token, number] : vocabulary) tokens[token] = number;
  for (const std::string& mark : special)
    marks.push_back(Ordered{{"id", tokens.at(mark)},
                            {"content", mark},
                            {"single_word", false},
                            {"lstrip", false},
                            {"rstrip", false},
                            {"normalized", false},
                            {"special", true}});
  for (const auto& [left, right] : merges) pairs.push_back(left + " " + right);
  const Ordered bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
  const Ordered tokenizer{{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", marks},
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
                            {"vocab", tokens},
                            {"merges", pairs}}}};
  return tokenizer.dump(1) + "\n";
}

std::string TrainedBpe::tokenizer_json() const {
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  for (size_t i = 0; i < tokens.size(); ++i) vocabulary.emplace_back(tokens[i], int64_t(i));
  return byte_level_tokenizer(vocabulary, merges, special, true);
}

BpeTrainer::BpeTrainer(std::vector<std::string> special)
    : splitter_(gpt2_pieces, "the pieces of GPT-2"), special_(std::move(special)) {}

int64_t BpeTrainer::least_size() const { return 256 + int64_t(special_.size()); }

void BpeTrainer::add(std::string_view text) {
  splitter_.each(text, [this](std::string_view piece, bool) {
    if (piece.empty()) return;
    ++pieces_;
    ++counts_[std::string(piece)];
  });
}

TrainedBpe BpeTrainer::train(int64_t size) const {
  if (size < least_size())
    throw Error(Failure::config, "a vocabulary of ", size, " tokens is too small: 256 stand for the bytes",
                special_.empty() ? std::string() : str(", ", special_.size(), " are special"), "; take at least ",
                least_size());
  TrainedBpe result;
  result.special = special_;
  result.tokens = special_;
  result.pieces = pieces_;
  result.different = int64_t(counts_.size());
  std::array<int32_t, 256> numbers{};
  for (int byte : bytes_by_letter()) {
    numbers[size_t(byte)] = int32_t(result.tokens.size());
    result.tokens.push_back(byte_letters()[size_t(byte)]);
  }
  std::vector<CountedWord> words;
  for (const auto& [piece, count] : counts_) {
    CountedWord word{{}, count};
    for (const char c : piece) word.tokens.push_back(numbers[static_cast<unsigned char>(c)]);
    words.push_back(std::move(word));
  }
  std::unordered_map<std::string, int32_t> known;
  for (size_t i = 0; i < result.tokens.size(); ++i) known.emplace(result.tokens[i], int32_t(i));
  PairMerger merger(std::move(words));
  while (int64_t(result.tokens.size()) < size) {
    const PairCount pair = merger.most_frequent();
    if (pair.count < 2) break;
    const std::string &left = result.tokens[size_t(pair.left)], &right = result.tokens[size_t(pair.right)];
    result.merges.emplace_back(left, right);
    // Two merges may give the same letters: they are one token.
    const auto [token, made] = known.emplace(left + right, int32_t(result.tokens.size()));
    merger.merge(pair, token->second);
    if (made) result.tokens.push_back(token->first);
  }
  return result;
}

}  // namespace convoy
