#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "launch/cli/text_table.h"
#include "launch/cli/use.h"

namespace convoy {
namespace {

std::vector<int64_t> tokens_of(const std::string& list) {
  std::vector<int64_t> tokens;
  for (const std::string& word : split(list, ',')) {
    char* end = nullptr;
    const long long token = std::strtoll(word.c_str(), &end, 10);
    if (word.empty() || *end != '\0' || token < 0)
      throw Error(Failure::command_line, "--prompt-tokens: '", word,
                  "' is no number of a token; give a list such as "
                  "464,3290");
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

int generate_command(UseArguments arguments, const GenerateArguments& generation) {
  arguments.command = "generate";
  const bool numbers = !generation.prompt_tokens.empty();
  if (numbers == !generation.prompt.empty())
    throw Error(Failure::command_line, "convoy generate: give --prompt TEXT, or --prompt-tokens with numbers",
                numbers ? ", and not both" : "");
  arguments.options = {{"prompt", generation.prompt},
                       {"prompt_tokens", numbers ? tokens_of(generation.prompt_tokens) : std::vector<int64_t>()},
                       {"max_tokens", generation.max_tokens},
                       {"temperature", generation.temperature},
                       {"top_k", generation.top_k},
                       {"top_p", generation.top_p},
                       {"seed", generation.seed},
                       {"samples", generation.samples},
                       {"stop", generation.stop}};
  const bool json = arguments.json;
  const UseResult result = use_run(std::move(arguments));
  if (!result.reports || result.code != exit_code::done) return result.code;
  const Json& answer = result.answer;
  if (json) {
    std::cout << json_text(answer_with_run(result)) << '\n';
  } else {
    for (size_t sample = 0; sample < answer.at("texts").size(); ++sample) {
      if (answer["texts"].size() > 1) std::cout << (sample > 0 ? "\n" : "") << "--- " << sample + 1 << " ---\n";
      if (numbers)
        std::cout << answer["tokens"][sample].dump() << '\n';
      else
        std::cout << generation.prompt << answer["texts"][sample].get<std::string>() << '\n';
    }
    const double seconds = answer.at("seconds").get<double>();
    std::cerr << "convoy: " << result.run.path() << ", " << answer.at("drawn") << " tokens in "
              << formatted("%.2f", seconds) << " s, "
              << formatted("%.0f", answer.at("drawn").get<double>() / std::max(seconds, 1e-9)) << " tokens/s\n";
  }
  print_notes(result.run);
  return exit_code::done;
}

}  // namespace convoy
