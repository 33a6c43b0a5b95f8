// `convoy generate`: text that continues a prompt, from gpt and llama.
#include <chrono>
#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/data/formats/tokenizer.h"
#include "core/data/formats/vocabulary.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/generation.h"
#include "core/model_interface.h"
#include "launch/prepare/run_folder.h"
#include "launch/rank/use/use.h"

namespace convoy {
namespace {

// Text ↔ tokens, by what the checkpoint stores: the files of a tokenizer, the tokens of a vocabulary, or bytes.
class TextCoder {
 public:
  TextCoder(const std::optional<DataContents>& contents, const Options& data, int64_t vocabulary) {
    if (const auto files = list_of(contents, "tokenizer"); !files.empty()) {
      tokenizer_ = stored_tokenizer(files);
      return;
    }
    if (const auto tokens = list_of(contents, "tokens"); !tokens.empty()) {
      vocabulary_.emplace(tokens);
      if (data.has("unknown")) unknown_ = vocabulary_->number_of(data.text("unknown"));
      return;
    }
    unnamed_ = vocabulary < 256;
  }

  std::vector<int64_t> encode(const std::string& text) const {
    std::vector<int32_t> tokens;
    if (tokenizer_) tokens = tokenizer_->encode(text, "--prompt");
    if (vocabulary_) tokens = vocabulary_->encode(text, unknown_, "--prompt");
    if (tokenizer_ || vocabulary_) return {tokens.begin(), tokens.end()};
    if (unnamed_)
      throw Error(Failure::config, "convoy generate: the run was trained on numbers of tokens without names; give ",
                  "--prompt-tokens, such as 1,2,3, and no text");
    std::vector<int64_t> bytes;
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
    return bytes;
  }

  std::string decode(const std::vector<int64_t>& tokens) const {
    const std::vector<int32_t> numbers(tokens.begin(), tokens.end());
    if (tokenizer_) return tokenizer_->decode(numbers.data(), int64_t(numbers.size()));
    if (vocabulary_) return vocabulary_->decode(numbers.data(), int64_t(numbers.size()));
    std::string text;
    for (int64_t token : tokens) {
      if (unnamed_) text += str(text.empty() ? "" : " ", token);
      if (!unnamed_ && token < 256) text += char(token);
    }
    return text;
  }

  // The number of a special token or of a whole text that is one token; −1: none.
  int64_t single(const std::string& text) const {
    const std::vector<int64_t> tokens = encode(text);
    return tokens.size() == 1 ? tokens[0] : -1;
  }

 private:
  static std::vector<std::string> list_of(const std::optional<DataContents>& contents, const char* name) {
    if (!contents) return {};
    const auto found = contents->lists.find(name);
    return found == contents->lists.end() ? std::vector<std::string>() : found->second.names.strings();
  }

  // Writes the stored files to a temporary folder and reads them there.
  static Tokenizer stored_tokenizer(const std::vector<std::string>& pairs) {
    const ScratchFolder folder("convoy-tokenizer");
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (std::filesystem::path(pairs[i]).filename() != pairs[i])
        throw Error(Failure::corrupt_data, "the checkpoint's tokenizer has a file of the name ", pairs[i]);
      write_whole(str(folder.path(), "/", pairs[i]), pairs[i + 1], false);
    }
    return Tokenizer::read(str(folder.path(), "/", pairs[0]));
  }

  std::optional<Tokenizer> tokenizer_;
  std::optional<Vocabulary> vocabulary_;
  int64_t unknown_ = -1;
  bool unnamed_ = false;  // tokens are numbers without names, and fewer than 256
};

class Generate : public Use {
 public:
  Json run(UseContext& use) override {
    if (use.rank().rank != 0) return {};
    const LoadedModel& loaded = use.models().front();
    const auto decoder = loaded.impl().model->decoder([&](const std::string& name) {
      const auto found = loaded.impl().tensors.find(name);
      if (found == loaded.impl().tensors.end())
        throw Error(Failure::corrupt_data, use.checkpoint().path, ": has no parameter ", name);
      return found->second;
    });
    if (!decoder)
      throw Error(Failure::config, "convoy generate: model ", use.config().model.name,
                  " does not generate text; gpt and llama do");
    const Json& options = use.options();
    const TextCoder coder(use.contents(), use.config().data.options, decoder->vocabulary());
    const auto prompt = prompt_of(options, coder);
    GenerationOptions generation = options_of(options, coder);
    Json texts = Json::array(), numbers = Json::array();
    const auto samples = options.at("samples").get<int64_t>();
    int64_t drawn = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int64_t sample = 0; sample < samples; ++sample, ++generation.seed) {
      std::vector<int64_t> tokens;
      drawn += generate(*decoder, prompt, generation, [&](int64_t token) {
        tokens.push_back(token);
        if (tokens.size() % 16 == 0)
          use.progress(drawn + int64_t(tokens.size()), samples * generation.tokens, "tokens");
        return true;
      });
      texts.push_back(valid_utf8(coder.decode(tokens)));
      numbers.push_back(tokens);
    }
    const double seconds = seconds_since(start);
    return {{"texts", texts},
            {"seconds", seconds},
            {"tokens", numbers},
            {"drawn", drawn},
            {"context", decoder->context()},
            {"prompt_tokens", prompt.size()}};
  }

 private:
  static std::vector<int64_t> prompt_of(const Json& options, const TextCoder& coder) {
    std::vector<int64_t> prompt = options.at("prompt_tokens").get<std::vector<int64_t>>();
    if (prompt.empty()) prompt = coder.encode(options.at("prompt").get<std::string>());
    if (prompt.empty())
      throw Error(Failure::command_line, "convoy generate: the prompt is empty; give at least one character");
    return prompt;
  }

  static GenerationOptions options_of(const Json& options, const TextCoder& coder) {
    GenerationOptions generation;
    generation.tokens = options.at("max_tokens").get<int64_t>();
    generation.temperature = options.at("temperature").get<double>();
    generation.top_k = options.at("top_k").get<int64_t>();
    generation.top_p = options.at("top_p").get<double>();
    generation.seed = options.at("seed").get<uint64_t>();
    const auto stop = options.at("stop").get<std::string>();
    if (stop.empty()) return generation;
    generation.stop = coder.single(stop);
    if (generation.stop < 0)
      throw Error(Failure::command_line, "convoy generate: --stop ", stop,
                  " is not one token of this model; give a special token of its tokenizer, or one character");
    return generation;
  }
};

}  // namespace

std::unique_ptr<Use> make_generate_use() { return std::make_unique<Generate>(); }

}  // namespace convoy
