#include "core/config/init_from.h"

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/files/weight_files.h"

namespace convoy {

std::string InitFrom::renamed(std::string name) const {
  for (const auto& [pattern, replacement] : rename) name = pattern.replaced(name, replacement);
  return name;
}

std::vector<Option> common_model_options() {
  return {describe::section(
              "init_from",
              "initial values from files: `init_from: PATH`, or a map with these keys. Other ranks and strategies than "
              "those that wrote the files are fine; a run that resumes from a checkpoint ignores it",
              {describe::text("path",
                              "file in safetensors, folder of transformers, run folder or checkpoint; @memberN at the "
                              "end selects a member of an ensemble")
                   .must(),
               describe::boolean("strict",
                                 "the model and the files must have the same tensors; false: others are listed in the "
                                 "log, and keep their random values",
                                 true),
               describe::option(OptionType::map, "rename",
                                "changes of names in the files: regular expression (RE2) and its replacement, for "
                                "every match, in order; a name that becomes empty is left out",
                                Json::object())
                   .with(&Option::options, std::vector<Option>{describe::text("", "a replacement")})})
              .may_be_null()
              .with(&Option::types, "path"),
          describe::text("freeze",
                         str("parameters that are not trained and keep their initial values: ", NamePattern::help))
              .may_be_null()};
}

std::optional<NamePattern> frozen_names(const Options& model) {
  if (!model.json().contains("freeze") || !model.has("freeze")) return std::nullopt;
  return NamePattern(model, "freeze");
}

std::optional<InitFrom> init_from(const Options& model) {
  if (!model.json().contains("init_from") || !model.has("init_from")) return std::nullopt;
  const Options section = model.section("init_from");
  InitFrom wanted{section.text("path"), section.boolean("strict"), {}};
  for (const auto& item : section.at("rename").items()) {
    const std::string key = "rename." + item.key();
    const auto replacement = item.value().get<std::string>();
    wanted.rename.emplace_back(section.located(key, [&] { return NamePattern(item.key()); }), replacement);
    if (const std::string reason = wanted.rename.back().first.replacement_error(replacement); !reason.empty())
      section.fail(key, "is ", replacement, ", which does not fit the pattern: ", reason);
  }
  return wanted;
}

void check_init_from(const Options& model, const std::string& resume) {
  const std::optional<InitFrom> wanted = init_from(model);
  if (!wanted) return;
  const Options section = model.section("init_from");
  if (resume != "auto" && resume != "never")
    section.fail("path", "gives the initial values, and train.resume: ", resume,
                 " gives them too, with the optimizer's state; leave one of them out");
  try {
    check_weight_path(wanted->path);
  } catch (const Error& error) {
    throw ConfigError(section.location("path"), section.path() + ".path", error.what(), error.kind());
  }
}

}  // namespace convoy
