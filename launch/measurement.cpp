#include "launch/measurement.h"

namespace convoy {
namespace {

Json to_json(const MeasuredRank& rank) {
  return {{"cores", rank.cores}, {"threads", rank.threads}, {"gpu", rank.gpu}, {"uuid", rank.uuid}};
}

MeasuredRank rank_from_json(const Json& json) {
  return {json.at("cores").get<std::vector<int>>(), json.at("threads").get<int>(), json.at("gpu").get<int>(),
          json.at("uuid").get<std::string>()};
}

Json to_json(const std::vector<UpdatedShare>& shares) {
  Json json = Json::array();
  for (const UpdatedShare& share : shares) json.push_back({{"one", share.one}, {"three", share.three}});
  return json;
}

std::vector<UpdatedShare> shares_from_json(const Json& json) {
  std::vector<UpdatedShare> shares;
  for (const Json& share : json) shares.push_back({share.at("one").get<double>(), share.at("three").get<double>()});
  return shares;
}

Json to_json(const std::vector<StepSamples>& points) {
  Json json = Json::array();
  for (const StepSamples& point : points)
    json.push_back({{"rows", point.rows}, {"steps", point.steps}, {"updates", point.updates}});
  return json;
}

std::vector<StepSamples> steps_from_json(const Json& json) {
  std::vector<StepSamples> points;
  for (const Json& point : json)
    points.push_back({point.at("rows").get<int64_t>(), point.at("steps").get<std::vector<double>>(),
                      point.at("updates").get<std::vector<double>>()});
  return points;
}

}  // namespace

Exchange exchange_named(const std::string& name) {
  for (const Exchange kind : {Exchange::all_reduce, Exchange::gather, Exchange::scatter, Exchange::send})
    if (name == name_of(kind)) return kind;
  throw Error(Failure::config, str("'", name, "' is no kind of exchange"));
}

Json to_json(const MeasurementRequest& request) {
  Json together = Json::array(), exchanges = Json::array(), sampled = Json::array();
  for (const SampledBlock& block : request.sampled)
    sampled.push_back({{"index", block.index}, {"names", block.names}, {"parameters", block.parameters}});
  for (const MeasuredRank& rank : request.together) together.push_back(to_json(rank));
  for (const WantedExchange& wanted : request.exchanges) {
    Json kinds = Json::array();
    for (const Exchange kind : wanted.kinds) kinds.push_back(name_of(kind));
    exchanges.push_back({{"backend", wanted.backend}, {"threads", wanted.threads}, {"kinds", kinds}});
  }
  return {{"config", request.config},
          {"alone", to_json(request.alone)},
          {"together", together},
          {"alone_rows", request.alone_rows},
          {"together_rows", request.together_rows},
          {"alone_updated", to_json(request.alone_updated)},
          {"together_updated", to_json(request.together_updated)},
          {"exchanges", exchanges},
          {"bytes", request.bytes},
          {"seconds", request.seconds},
          {"address", request.address},
          {"sampled", sampled}};
}

namespace {

std::vector<SampledBlock> sampled_from_json(const Json& json) {
  std::vector<SampledBlock> blocks;
  for (const Json& block : json)
    blocks.push_back({block.at("index").get<int64_t>(), block.at("names").get<std::vector<std::string>>(),
                      block.at("parameters").get<int64_t>()});
  return blocks;
}

}  // namespace

MeasurementRequest measurement_request(const Json& json) {
  MeasurementRequest request;
  request.config = json.at("config");
  request.alone = rank_from_json(json.at("alone"));
  for (const Json& rank : json.at("together")) request.together.push_back(rank_from_json(rank));
  request.alone_rows = json.at("alone_rows").get<std::vector<int64_t>>();
  request.together_rows = json.at("together_rows").get<std::vector<int64_t>>();
  request.alone_updated = shares_from_json(json.at("alone_updated"));
  request.together_updated = shares_from_json(json.at("together_updated"));
  for (const Json& wanted : json.at("exchanges")) {
    WantedExchange exchange{wanted.at("backend").get<std::string>(), wanted.at("threads").get<bool>(), {}};
    for (const Json& kind : wanted.at("kinds")) exchange.kinds.push_back(exchange_named(kind.get<std::string>()));
    request.exchanges.push_back(std::move(exchange));
  }
  request.bytes = json.at("bytes").get<std::vector<int64_t>>();
  request.seconds = json.at("seconds").get<double>();
  request.address = json.at("address").get<std::string>();
  request.sampled = sampled_from_json(json.at("sampled"));
  return request;
}

Json to_json(const Measurement& measurement) {
  Json exchanges = Json::array(), blocks = Json::array();
  for (const ExchangeSamples& samples : measurement.exchanges)
    exchanges.push_back({{"backend", samples.backend},
                         {"kind", name_of(samples.kind)},
                         {"bytes", samples.bytes},
                         {"seconds", samples.seconds},
                         {"busy", samples.busy}});
  for (const auto& [name, seconds] : measurement.blocks) blocks.push_back({{"name", name}, {"seconds", seconds}});
  return {{"alone", to_json(measurement.alone)},
          {"together", to_json(measurement.together)},
          {"exchanges", exchanges},
          {"blocks", blocks},
          {"device", measurement.device}};
}

Measurement measurement_from_json(const Json& json) {
  Measurement measurement;
  measurement.alone = steps_from_json(json.at("alone"));
  measurement.together = steps_from_json(json.at("together"));
  for (const Json& item : json.at("exchanges"))
    measurement.exchanges.push_back({item.at("backend").get<std::string>(),
                                     exchange_named(item.at("kind").get<std::string>()),
                                     item.at("bytes").get<int64_t>(), item.at("seconds").get<std::vector<double>>(),
                                     item.at("busy").get<double>()});
  for (const Json& block : json.at("blocks"))
    measurement.blocks.emplace_back(block.at("name").get<std::string>(), block.at("seconds").get<double>());
  measurement.device = json.at("device").get<std::string>();
  return measurement;
}

}  // namespace convoy
