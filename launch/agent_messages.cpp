#include "launch/agent_messages.h"

#include "core/error.h"
#include "launch/topology.h"

namespace convoy {
namespace {

constexpr char hello_mark[] = "convoy-hello ";

Json parsed(const std::string& line) {
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object())
    throw Error(Failure::rendezvous, "what came down the standard input is nothing that `convoy run --hosts` writes");
  return json;
}

std::string line_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace

std::string to_line(const RemoteRequest& request) {
  return line_of({{"version", request.version},
                  {"folder", request.folder},
                  {"environment", request.environment},
                  {"gpus", request.gpus}});
}

std::string to_line(const RemoteHello& hello) {
  if (!hello.problem.empty()) return hello_mark + line_of({{"version", hello.version}, {"problem", hello.problem}});
  return hello_mark +
         line_of(
             {{"version", hello.version}, {"host", to_json(hello.host)}, {"interfaces", to_json(hello.interfaces)}});
}

std::string to_line(const RemotePlan& plan) {
  return line_of({{"channel", plan.channel}, {"processes", plan.processes}, {"size", plan.size}});
}

RemoteRequest remote_request(const std::string& line) {
  const Json json = parsed(line);
  return {json.at("version").get<std::string>(), json.at("folder").get<std::string>(),
          json.at("environment").get<Variables>(), json.at("gpus").get<bool>()};
}

RemotePlan remote_plan(const std::string& line) {
  const Json json = parsed(line);
  return {json.at("channel").get<std::string>(), json.at("processes").get<std::vector<int>>(),
          json.at("size").get<int>()};
}

std::optional<RemoteHello> remote_hello(const std::string& line) {
  if (line.rfind(hello_mark, 0) != 0) return std::nullopt;
  const Json json = parsed(line.substr(sizeof hello_mark - 1));
  RemoteHello hello;
  hello.version = json.at("version").get<std::string>();
  hello.problem = json.value("problem", "");
  if (!hello.problem.empty()) return hello;
  hello.host = host_from_json(json.at("host"));
  hello.interfaces = interfaces_from_json(json.at("interfaces"));
  return hello;
}

Variables forwarded(const Variables& variables) {
  static const char* const beginnings[] = {"OMP_",    "KMP_",           "GOMP_",          "MKL_", "NCCL_",
                                           "GLOO_",   "TORCH_",         "PYTORCH_",       "UCX_", "MALLOC_",
                                           "CUBLAS_", "GLIBC_TUNABLES", "LD_LIBRARY_PATH"};
  Variables kept;
  for (const auto& [name, value] : variables)
    for (const char* beginning : beginnings)
      if (name.rfind(beginning, 0) == 0) kept[name] = value;
  return kept;
}

}  // namespace convoy
