#include <algorithm>
#include <iostream>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/data/catalogue/text_files.h"
#include "core/data/formats/bpe_trainer.h"
#include "core/data/formats/input_files.h"
#include "core/files/output_file.h"
#include "launch/cli/commands.h"
#include "launch/cli/use.h"

namespace convoy {
namespace {

void check_special(const std::vector<std::string>& special) {
  for (size_t i = 0; i < special.size(); ++i) {
    if (special[i].empty())
      throw Error(Failure::command_line, "--special: is empty; give a text such as <|endoftext|>");
    const auto& letters = byte_letters();
    if (std::find(letters.begin(), letters.end(), special[i]) != letters.end())
      throw Error(Failure::command_line, "--special: ", special[i], " is the token of a byte; give a longer text");
    if (std::find(special.begin(), special.begin() + std::ptrdiff_t(i), special[i]) !=
        special.begin() + std::ptrdiff_t(i))
      throw Error(Failure::command_line, "--special: ", special[i], " is given twice");
  }
}

// The files of all patterns.
std::vector<std::string> text_paths(const std::vector<std::string>& patterns) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) try {
      for (const std::string& path : files_of(pattern)) {
        check_input_path(path, "FILES", "give text files, or a pattern such as 'texts/*.txt'");
        paths.push_back(path);
      }
    } catch (const Error& error) {
      if (error.kind() != Failure::config) throw;
      throw Error(Failure::command_line, "FILES ", error.what(), "; give text files, or another pattern");
    }
  return paths;
}

}  // namespace

int vocabulary_command(const VocabularyArguments& arguments) {
  check_alone("vocabulary");
  check_special(arguments.special);
  if (!ends_in(arguments.to, ".json"))
    throw Error(Failure::command_line, "--to: is ", arguments.to, ", must end in .json, such as tokenizer.json");
  BpeTrainer trainer(arguments.special);
  if (arguments.size < trainer.least_size())
    throw Error(Failure::command_line, "--size: is ", arguments.size, ", must be at least ", trainer.least_size(),
                ": 256 tokens stand for the bytes",
                arguments.special.empty() ? "" : ", and the special ones count too");
  check_output_path(arguments.to, arguments.force, "--to");
  int64_t bytes = 0, files = 0;
  for (const std::string& path : text_paths(arguments.files)) {
    const MappedFile file(path);
    if (const std::string problem = text_problem(file.text()); !problem.empty())
      throw Error(Failure::corrupt_data, path, ": ", problem);
    trainer.add(file.text());
    bytes += int64_t(file.text().size());
    ++files;
  }
  if (bytes == 0) throw Error(Failure::corrupt_data, join(arguments.files, ", "), ": hold no text");
  const TrainedBpe bpe = trainer.train(arguments.size);
  OutputFile file(arguments.to, arguments.force);
  file.write(bpe.tokenizer_json());
  file.commit();
  std::cout << "read " << counted(files, "file") << ", " << human_bytes(bytes) << ": " << bpe.pieces << " words, "
            << bpe.different << " different\nwrote " << arguments.to << ": " << bpe.tokens.size() << " tokens, "
            << bpe.merges.size() << " merges\n";
  if (int64_t(bpe.tokens.size()) < arguments.size)
    std::cout << "the text has no pair left that occurs twice, so these are fewer than " << arguments.size << '\n';
  std::cout << "train with data: {name: text, path: " << arguments.files.front() << ", tokenizer: " << arguments.to
            << "}\n";
  return exit_code::done;
}

}  // namespace convoy
