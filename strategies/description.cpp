// A description as it travels from `convoy-rank --describe` to `convoy`.
#include "strategies/catalogue.h"

namespace convoy {

Json to_json(const Description& description) {
  Json blocks = Json::array();
  for (const BlockDescription& block : description.blocks) {
    Json ties = Json::array();
    for (const TiedTensor& tie : block.ties)
      ties.push_back({{"name", tie.name}, {"block", tie.block}, {"elements", tie.elements}});
    Json clashes = Json::array();
    for (const TieClash& clash : block.clashes) clashes.push_back({{"layer", clash.layer}, {"tensor", clash.tensor}});
    Json cuts = Json::array();
    for (const CutSize& cut : block.cuts)
      cuts.push_back({{"layer", cut.layer}, {"size", cut.size}, {"parts", cut.parts}, {"outputs", cut.outputs}});
    Json tables = Json::array();
    for (const TableSize& table : block.tables)
      tables.push_back({{"name", table.name},
                        {"rows", table.rows},
                        {"dim", table.dim},
                        {"asked", table.asked},
                        {"lookups", table.lookups},
                        {"row_ids", table.row_ids},
                        {"drawn", table.drawn}});
    Json tied_tables = Json::array();
    for (const TiedTable& table : block.tied_tables)
      tied_tables.push_back({{"name", table.name}, {"user", table.user}, {"asked", table.asked}});
    blocks.push_back({{"name", block.name},
                      {"parameters", block.parameters},
                      {"buffers", block.buffers},
                      {"row_working_bytes", block.row_working_bytes},
                      {"working_bytes", block.working_bytes},
                      {"tensors", block.tensors},
                      {"product_parameters", block.product_parameters},
                      {"product_tensors", block.product_tensors},
                      {"row_flops", block.row_flops},
                      {"row_output_bytes", block.row_output_bytes},
                      {"row_saved_bytes", block.row_saved_bytes},
                      {"saved_bytes", block.saved_bytes},
                      {"cut_parameters", block.cut_parameters},
                      {"row_cut_input_bytes", block.row_cut_input_bytes},
                      {"row_cut_output_bytes", block.row_cut_output_bytes},
                      {"row_cut_saved_bytes", block.row_cut_saved_bytes},
                      {"cut_exchanges", block.cut_exchanges},
                      {"products", block.products},
                      {"norms", block.norms},
                      {"norm_channels", block.norm_channels},
                      {"own_norms", block.own_norms},
                      {"tables", tables},
                      {"tied_tables", tied_tables},
                      {"cuts", cuts},
                      {"clashes", clashes},
                      {"named", block.named},
                      {"ties", ties}});
  }
  return {{"element_bytes", description.element_bytes}, {"measured", description.measured}, {"blocks", blocks}};
}

Description description_from_json(const Json& json) {
  Description description;
  description.element_bytes = json.at("element_bytes").get<int64_t>();
  description.measured = json.at("measured").get<bool>();
  for (const Json& item : json.at("blocks")) {
    BlockDescription block;
    block.name = item.at("name").get<std::string>();
    block.parameters = item.at("parameters").get<int64_t>();
    block.buffers = item.at("buffers").get<int64_t>();
    block.row_working_bytes = item.at("row_working_bytes").get<int64_t>();
    block.working_bytes = item.at("working_bytes").get<int64_t>();
    block.tensors = item.at("tensors").get<int64_t>();
    block.product_parameters = item.at("product_parameters").get<int64_t>();
    block.product_tensors = item.at("product_tensors").get<int64_t>();
    block.row_flops = item.at("row_flops").get<double>();
    block.row_output_bytes = item.at("row_output_bytes").get<int64_t>();
    block.row_saved_bytes = item.at("row_saved_bytes").get<int64_t>();
    block.saved_bytes = item.at("saved_bytes").get<int64_t>();
    block.cut_parameters = item.at("cut_parameters").get<int64_t>();
    block.row_cut_input_bytes = item.at("row_cut_input_bytes").get<int64_t>();
    block.row_cut_output_bytes = item.at("row_cut_output_bytes").get<int64_t>();
    block.row_cut_saved_bytes = item.at("row_cut_saved_bytes").get<int64_t>();
    block.cut_exchanges = item.at("cut_exchanges").get<int64_t>();
    block.products = item.at("products").get<int64_t>();
    block.norms = item.at("norms").get<int64_t>();
    block.norm_channels = item.at("norm_channels").get<int64_t>();
    block.own_norms = item.at("own_norms").get<std::vector<std::string>>();
    block.named = item.at("named").get<std::vector<std::pair<std::string, int64_t>>>();
    for (const Json& cut : item.at("cuts"))
      block.cuts.push_back({cut.at("layer").get<std::string>(), cut.at("size").get<int64_t>(),
                            cut.at("parts").get<int64_t>(), cut.at("outputs").get<bool>()});
    for (const Json& clash : item.at("clashes"))
      block.clashes.push_back({clash.at("layer").get<std::string>(), clash.at("tensor").get<std::string>()});
    for (const Json& table : item.at("tables"))
      block.tables.push_back({table.at("name").get<std::string>(), table.at("rows").get<int64_t>(),
                              table.at("dim").get<int64_t>(), table.at("asked").get<bool>(),
                              table.at("lookups").get<int64_t>(), table.at("row_ids").get<double>(),
                              table.at("drawn").get<std::vector<std::pair<double, double>>>()});
    for (const Json& table : item.at("tied_tables"))
      block.tied_tables.push_back(
          {table.at("name").get<std::string>(), table.at("user").get<std::string>(), table.at("asked").get<bool>()});
    for (const Json& tie : item.at("ties"))
      block.ties.push_back(
          {tie.at("name").get<std::string>(), tie.at("block").get<int64_t>(), tie.at("elements").get<int64_t>()});
    description.blocks.push_back(std::move(block));
  }
  return description;
}

}  // namespace convoy
