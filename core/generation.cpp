#include "core/generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/base/random_keys.h"

namespace convoy {

std::vector<TokenChoice> token_choices(const float* logits, int64_t vocabulary, const GenerationOptions& options) {
  const auto likelier = [logits](int64_t a, int64_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  std::vector<int64_t> order(static_cast<size_t>(vocabulary));
  std::iota(order.begin(), order.end(), 0);
  if (options.temperature <= 0) return {{*std::min_element(order.begin(), order.end(), likelier), 1}};
  const float most = *std::max_element(logits, logits + vocabulary);
  const auto mass = [&](int64_t token) { return std::exp(double(logits[token] - most) / options.temperature); };
  const bool limited = options.top_k > 0 && options.top_k < vocabulary;
  if (limited) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(size_t(options.top_k));
  }
  std::vector<TokenChoice> choices;
  double total = 0;
  for (int64_t token : order) {
    choices.push_back({token, mass(token)});
    total += choices.back().probability;
  }
  if (options.top_p < 1) {
    const auto first = [&](const TokenChoice& a, const TokenChoice& b) { return likelier(a.token, b.token); };
    double sum = 0;
    size_t kept = 0, sorted = limited ? choices.size() : 0;
    while (kept < choices.size() && (kept == 0 || sum < options.top_p * total)) {
      if (kept == sorted) {  // sorts in steps: few tokens of a large vocabulary are needed
        sorted = std::min(choices.size(), std::max<size_t>(64, 4 * sorted));
        std::partial_sort(choices.begin() + std::ptrdiff_t(kept), choices.begin() + std::ptrdiff_t(sorted),
                          choices.end(), first);
      }
      sum += choices[kept++].probability;
    }
    choices.resize(kept);
    total = sum;
  }
  for (TokenChoice& choice : choices) choice.probability /= total;
  return choices;
}

int64_t drawn_token(const std::vector<TokenChoice>& choices, double uniform) {
  CONVOY_CHECK(!choices.empty(), "no token to draw");
  double sum = 0;
  for (const TokenChoice& choice : choices) {
    sum += choice.probability;
    if (uniform < sum) return choice.token;
  }
  return choices.back().token;  // rounding left the sum below 1
}

int64_t generate(TokenDecoder& decoder, const std::vector<int64_t>& prompt, const GenerationOptions& options,
                 const std::function<bool(int64_t token)>& visit) {
  CONVOY_CHECK(!prompt.empty(), "generation begins with at least one token");
  const uint64_t key = random_key(options.seed, "generate");
  const int64_t context = decoder.context();
  std::vector<int64_t> tokens = prompt;
  const auto read_again = [&](int64_t last) {
    decoder.clear();
    return decoder.append(tokens.data() + tokens.size() - size_t(last), last);
  };
  const float* logits = read_again(std::min(context, int64_t(tokens.size())));
  for (int64_t drawn = 0; drawn < options.tokens; ++drawn) {
    const auto choices = token_choices(logits, decoder.vocabulary(), options);
    const int64_t token = drawn_token(choices, random_uniform(key, uint64_t(drawn)));
    if (token == options.stop || !visit(token)) return drawn;
    tokens.push_back(token);
    if (drawn + 1 == options.tokens) continue;
    logits = decoder.length() < context ? decoder.append(&token, 1) : read_again(std::max<int64_t>(1, context / 2));
  }
  return options.tokens;
}

}  // namespace convoy
