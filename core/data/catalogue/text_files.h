// Checks of the files of the data set `text` before ranks start; reports file errors at a key.
#pragma once
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/options.h"

namespace convoy {

// The reason why these bytes are not text, with advice; "" if they may be text. Looks for signatures of array, archive,
// image and table files, and for control bytes in the first 64 KiB: UTF-16 and raw token files have them.
std::string text_problem(std::string_view bytes);

// Throws ConfigError at the key of a file that is neither text nor tokens, is too short, or does not match its
// vocabulary or tokenizer. Reads only the beginning of each file. The files exist.
void check_text_files(const Options& options);

// Reports an error of `check` at a key.
template <class Check>
void at_key(const Options& options, const std::string& key, const Check& check) {
  try {
    check();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(options.location(key), options.path() + "." + key, error.what(), error.kind());
  }
}

}  // namespace convoy
