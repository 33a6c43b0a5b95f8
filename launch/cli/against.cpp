// `convoy verify CONFIG --against DIR`: the comparison with a model of Python.
#include <iostream>
#include <sstream>

#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/files/weight_files.h"
#include "launch/cli/commands.h"
#include "launch/machine/environment.h"
#include "launch/prepare/describe.h"
#include "launch/process/process.h"

namespace convoy {
namespace {

constexpr std::chrono::hours comparison_limit{6};  // a large model on a slow machine

double relative_of(const Json& tensor) {
  return tensor.at("relative").is_null() ? std::numeric_limits<double>::infinity()
                                         : tensor.at("relative").get<double>();
}

std::string tensor_text(const Json& tensor) {
  const std::string name = tensor.at("name"), theirs = tensor.at("theirs"), what = tensor.at("what");
  if (what == "loss") return "the loss";
  return str(what, " of ", name, name == theirs ? "" : " (" + theirs + ")");
}

// Where to look, from the kind of the first tensor that differs.
std::string advice(const Json& tensors, size_t first) {
  const std::string what = tensors[first].at("what"), name = tensors[first].at("name");
  const std::string before = first == 0 ? "" : tensor_text(tensors[first - 1]);
  if (what == "input")
    return before.empty()
               ? "nothing is computed before it: is the batch the same?"
               : str(before, " still agrees: look at what is computed between the two, such as masks, scales, ",
                     "positions, gates and activation functions");
  if (what == "output")
    return str(
        "its input agrees: look at its weights (transposed, or in another order?) and at its options, such as an ",
        "epsilon");
  if (what == "loss") return "all layers agree: look at the loss, and at which rows or tokens it counts";
  return "the forward pass agrees, and so do the gradients of later layers: look at the backward pass of this layer";
}

}  // namespace

AgainstResult against_result(const Json& compared, double tolerance) {
  const Json& tensors = compared.at("tensors");
  std::ostringstream text;
  if (tensors.empty())
    return {false,
            "differ: the reference has no layer, loss or gradient of this model; write it with "
            "tools/dump_reference.py\n"};
  size_t worst = 0, first = tensors.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (relative_of(tensors[i]) > relative_of(tensors[worst])) worst = i;
    if (first == tensors.size() && !(relative_of(tensors[i]) <= tolerance)) first = i;
  }
  if (const Json& skipped = compared.at("skipped"); !skipped.empty())
    text << "not compared, since Python called no such module: " << join(skipped.get<std::vector<std::string>>(), ", ")
         << '\n';
  const bool agree = first == tensors.size();
  if (agree) {
    text << "agree: " << tensors.size() << " tensors, the largest relative difference is "
         << relative_of(tensors[worst]) << " (" << tensor_text(tensors[worst]) << "), the tolerance " << tolerance
         << '\n';
  } else {
    const std::string fault = tensors[first].at("fault");
    text << "differ: first the " << tensor_text(tensors[first]) << ", "
         << (fault.empty() ? str("relative difference ", relative_of(tensors[first])) : fault) << "; the tolerance is "
         << tolerance << "\n  " << advice(tensors, first) << '\n';
    if (compared.contains("config"))
      for (const Json& line : compared["config"]) text << "  config.json: " << line.get<std::string>() << '\n';
  }
  return {agree, text.str()};
}

int verify_against(const VerifyArguments& arguments) {
  weight_files(arguments.against);
  const Variables variables = current_variables();
  const PreparedRun run = prepare(arguments.run, variables, launched_as(variables));
  const Json compared =
      ask_rank_program(run.rank_program, {"--against"},
                       {{"config", run.config.resolved}, {"folder", arguments.against}}, comparison_limit);
  const double tolerance =
      arguments.tolerance.value_or(compared.at("precision").get<std::string>() == "fp64" ? 1e-10 : 1e-5);
  const AgainstResult result = against_result(compared, tolerance);
  std::cout << run.config.model.name << " against " << arguments.against << ", "
            << compared.at("precision").get<std::string>() << '\n'
            << result.text << std::flush;
  return result.agree ? exit_code::done : exit_code::differs;
}

}  // namespace convoy
