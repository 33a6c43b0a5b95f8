#include "core/control/assignment.h"

#include <zlib.h>

#include <algorithm>

#include "core/control/addresses.h"

namespace convoy {
namespace {

constexpr size_t length_bytes = 8;      // length of the text, little-endian, before the compressed text
constexpr size_t largest_ratio = 1100;  // zlib compresses by at most 1032

}  // namespace

Json to_json(const RankAssignment& assignment) {
  return {
      {"job", to_json(assignment.job)},      {"folder", assignment.folder},       {"attempt", assignment.attempt},
      {"started", assignment.started},       {"passive", assignment.passive},     {"snapshots", assignment.snapshots},
      {"inject", Json(assignment.faults)},   {"bench", assignment.bench},         {"use", assignment.use},
      {"membership", assignment.membership}, {"in_memory", assignment.in_memory}, {"data", assignment.data}};
}

RankAssignment rank_assignment_from_json(const Json& json) {
  return {
      job_from_json(json.at("job")), json.at("folder"), json.at("attempt"), json.at("started"), json.at("passive"),
      json.at("snapshots"),          json.at("inject"), json.at("bench"),   json.at("use"),     json.at("membership"),
      json.at("in_memory"),          json.at("data")};
}

bool continues_without_lost_ranks(const RankAssignment& assignment) {
  return assignment.job.config.launch.min_ranks > 0 && assignment.snapshots.is_null() && assignment.bench.is_null() &&
         assignment.use.is_null();
}

std::string to_bytes(const RankAssignment& assignment) {
  const std::string text = to_json(assignment).dump();
  uLongf size = compressBound(text.size());
  std::string bytes(length_bytes + size, '\0');
  for (size_t at = 0; at < length_bytes; ++at) bytes[at] = static_cast<char>(text.size() >> (8 * at));
  const int result = compress2(reinterpret_cast<Bytef*>(bytes.data() + length_bytes), &size,
                               reinterpret_cast<const Bytef*>(text.data()), text.size(), Z_BEST_SPEED);
  CONVOY_CHECK(result == Z_OK, "compressing the job: ", zError(result));
  bytes.resize(length_bytes + size);
  return bytes;
}

RankAssignment rank_assignment_from_bytes(const std::string& bytes) {
  uLongf size = 0;
  for (size_t at = 0; at < std::min(length_bytes, bytes.size()); ++at)
    size |= uLongf{static_cast<unsigned char>(bytes[at])} << (8 * at);
  std::string text(std::min<size_t>(size, largest_ratio * bytes.size()), '\0');
  if (bytes.size() <= length_bytes ||
      uncompress(reinterpret_cast<Bytef*>(text.data()), &size,
                 reinterpret_cast<const Bytef*>(bytes.data() + length_bytes), bytes.size() - length_bytes) != Z_OK ||
      size != text.size())
    throw Error(Failure::internal, "cannot read the description of the job; are all ranks of one build of convoy?");
  return rank_assignment_from_json(Json::parse(text));
}

ProcessAssignment read_assignment(Channel& channel, int process, const std::string& host, Timeout timeout) {
  ProcessAssignment assignment{rank_assignment_from_bytes(channel.get(protocol::job, timeout)), 0, ""};
  assignment.process = process;
  CONVOY_CHECK(process >= 0 && process < static_cast<int>(assignment.job.processes.size()), "process ", process, " of ",
               assignment.job.processes.size());
  assignment.data_address = data_address(assignment.job.config.launch.address, host);
  return assignment;
}

}  // namespace convoy
