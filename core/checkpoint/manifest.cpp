#include "core/checkpoint/manifest.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "core/files/files.h"
#include "core/state.h"
#include "core/tensors/random.h"

namespace convoy {
namespace {

constexpr char opening[] = "{\"xxh3_128\": \"";
constexpr char closing[] = "\",\n";
constexpr size_t hash_digits = 32;
constexpr size_t body_at = sizeof opening - 1 + hash_digits + sizeof closing - 1;
constexpr size_t longest = size_t(1) << 30;

template <class... Parts>
[[noreturn]] void corrupt(const Parts&... reason) {
  throw Error(Failure::corrupt_data, reason...);
}

const Json& field(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) corrupt("'", name, "' is missing");
  return *found;
}
std::string text_of(const Json& json, const char* name) {
  const Json& value = field(json, name);
  if (!value.is_string()) corrupt("'", name, "' is not a string");
  return value.get<std::string>();
}
int64_t integer_in(const Json& value, const char* name) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX))) {
    corrupt("'", name, "' is not an integer");
  }
  return value.get<int64_t>();
}
int64_t integer_of(const Json& json, const char* name) { return integer_in(field(json, name), name); }
constexpr int64_t most_ranks = 1 << 24;  // and members
// Reads the number of a member or of a replica.
int number_of(const Json& json, const char* name) {
  const int64_t number = integer_of(json, name);
  if (number < 0 || number > most_ranks) corrupt("'", name, "' is ", number, ", and it must be from 0 to ", most_ranks);
  return static_cast<int>(number);
}
std::vector<int64_t> integers_of(const Json& json, const char* name) {
  const Json& list = field(json, name);
  if (!list.is_array()) corrupt("'", name, "' is not a list");
  std::vector<int64_t> values;
  for (const Json& value : list) values.push_back(integer_in(value, name));
  return values;
}

// Larger than every count of a training, and small enough that sums and products of a few counts fit into 64 bits.
constexpr int64_t most_counted = int64_t{1} << 53;

const Json* given(const Json& json, const std::string& name) {
  const auto found = json.find(name);
  return found == json.end() ? nullptr : &*found;
}

void check_count(const Json& trainer, const std::string& name, int64_t least, int64_t largest = most_counted) {
  const Json* value = given(trainer, name);
  if (value == nullptr) return;
  const int64_t count = integer_in(*value, ("trainer." + name).c_str());
  if (count < least || count > largest)
    corrupt("'trainer.", name, "' is ", count, ", and it must be from ", least, " to ", largest);
}

void check_seconds(const Json& trainer, const std::string& name) {
  const Json* value = given(trainer, name);
  if (value == nullptr) return;
  constexpr double most = 1e12;  // 30,000 years
  if (!value->is_number() || !(value->get<double>() >= 0) || value->get<double>() > most)
    corrupt("'trainer.", name, "' is ", value->dump(), ", and it must be a number of seconds");
}

void check_metric_value(const Json& value, const std::string& name) {
  const bool text = value == "nan" || value == "inf" || value == "-inf";
  if (!value.is_number() && !text) corrupt("'", name, "' is ", value.dump(), ", and it must be a number");
}

// The kind must be one of StateKind, and the key must be the one that the other fields give.
void check_key(const StoredPiece& stored) {
  StateEntry entry;
  entry.name = stored.name;
  entry.moment = stored.moment;
  entry.member = stored.member;
  entry.replica = stored.replica;
  for (int kind = 0; kind <= static_cast<int>(StateKind::counter); ++kind) {
    entry.kind = static_cast<StateKind>(kind);
    if (stored.kind == name_of(entry.kind) && stored.key == entry.key()) return;
  }
  corrupt("the entry '", valid_utf8(stored.key), "' is not '", stored.kind, "' '", stored.name, "'");
}

// {NAME: {last, best?, best_step?, members?, lower_is_better?}}
void check_metric(const std::string& name, const Json& metric, int64_t last_step) {
  const std::string key = "trainer.metrics." + valid_utf8(name);
  if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c == 127; }))
    corrupt("a metric's name in 'trainer.metrics' has control characters");
  if (!metric.is_object()) corrupt("'", key, "' is not a map");
  for (const char* field : {"last", "best"})
    if (const Json* value = given(metric, field)) check_metric_value(*value, str(key, ".", field));
  if (const Json* step = given(metric, "best_step")) {
    const std::string field = key + ".best_step";
    if (const int64_t number = integer_in(*step, field.c_str()); number < 0 || number > last_step)
      corrupt("'", field, "' is ", number, ", and the checkpoint is of step ", last_step);
  }
  if (const Json* lower = given(metric, "lower_is_better"); lower != nullptr && !lower->is_boolean())
    corrupt("'", key, ".lower_is_better' is neither true nor false");
  const Json* members = given(metric, "members");
  if (members == nullptr) return;
  if (!members->is_array()) corrupt("'", key, ".members' is not a list");
  for (const Json& member : *members) check_metric_value(member, key + ".members");
}

// The state of LibTorch's CPU generator, as hex digits, must have the length that this build reads. The length does not
// depend on the run's layout.
void check_generator_state(const std::string& key, const std::string& device, const Json& state) {
  const auto is_hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  const std::string digits = state.is_string() ? state.get<std::string>() : "";
  if (digits.empty() || digits.size() % 2 != 0 || !std::all_of(digits.begin(), digits.end(), is_hex))
    corrupt("'", key, ".", device, "' is not a hex text");
  static const auto cpu_bytes = static_cast<size_t>(generator_state(at::kCPU).numel());
  if (device == "cpu" && digits.size() != 2 * cpu_bytes)
    corrupt("'", key, ".", device, "' is not a hex text of ", cpu_bytes, " bytes");
}

// ranks: {RANK: {generators: {DEVICE: state}}}, with the ranks that drew from their generators.
void check_generators(const Json& trainer) {
  if (const Json* description = given(trainer, "generators"))
    if (const Json* layout = given(*description, "layout"); layout == nullptr || !layout->is_string())
      corrupt("'trainer.generators' has no layout");
  const Json* ranks = given(trainer, "ranks");
  if (ranks == nullptr) return;
  if (!ranks->is_object()) corrupt("'trainer.ranks' is not a map");
  for (const auto& [rank, values] : ranks->items()) {
    const std::string key = "trainer.ranks." + rank;
    const bool number = !rank.empty() && rank.size() < 10 && rank.find_first_not_of("0123456789") == std::string::npos;
    if (!number || std::stoll(rank) >= trainer.value("world_size", most_counted))
      corrupt("'", valid_utf8(key), "' is of no rank of that run");
    if (!values.is_object()) corrupt("'", key, "' is not a map");
    const Json* states = given(values, "generators");
    if (states == nullptr) continue;
    if (!states->is_object()) corrupt("'", key, ".generators' is not a map");
    for (const auto& [device, state] : states->items()) check_generator_state(key + ".generators", device, state);
  }
}

// Checks the values: the hash proves only that they are unchanged. Snapshots of `convoy verify` have an empty trainer
// section, and no run resumes from them.
void check_trainer(const Json& trainer, int64_t step) {
  if (!trainer.is_object()) corrupt("'trainer' is not a map");
  if (step < 0 || step > most_counted)
    corrupt("'step' is ", step, "; a step must be at least 0 and at most ", most_counted);
  if (trainer.empty()) return;
  for (const char* name : {"step", "rows", "train_seconds", "metrics"})
    if (given(trainer, name) == nullptr) corrupt("'trainer.", name, "' is missing");
  check_count(trainer, "step", 0);
  if (const int64_t own = trainer["step"].get<int64_t>(); own != step)
    corrupt("'trainer.step' is ", own, ", and 'step' is ", step);
  check_count(trainer, "rows", 0);
  check_count(trainer, "seed", 0, INT64_MAX);
  check_count(trainer, "world_size", 1, most_ranks);
  for (const char* name : {"global_rows", "steps_per_epoch"}) check_count(trainer, name, 1);
  check_count(trainer, "total_steps", 0, INT64_MAX);
  for (const char* name : {"train_seconds", "evaluate_seconds"}) check_seconds(trainer, name);
  if (const Json* owed = given(trainer, "evaluation_owed"); owed != nullptr && !owed->is_boolean())
    corrupt("'trainer.evaluation_owed' is neither true nor false");
  if (!trainer["metrics"].is_object()) corrupt("'trainer.metrics' is not a map");
  for (const auto& [name, metric] : trainer["metrics"].items()) check_metric(name, metric, step);
  if (step > 0 && trainer["rows"] == 0) corrupt("'trainer.rows' is 0 after step ", step);
  check_generators(trainer);
}

// The configuration of the run that saved the state. Readers of its keys rely on the sections.
void check_config(const Json& config) {
  if (config.find("model") == config.end() && config.find("program") == config.end())
    corrupt("'config.model' is missing");
  for (const char* name : {"model", "data", "optimizer", "train", "strategy", "launch"})
    if (const Json* section = given(config, name); section != nullptr && !section->is_object() && !section->is_null())
      corrupt("'config.", name, "' is ", section->dump(), ", and it must be a map");
}

// A positive integer of the configuration; 0 if it is missing or null.
int64_t limit_in(const Json& config, const char* key) {
  const Json value = value_of_key(config, key);
  return value.is_number_integer() ? std::max<int64_t>(value.get<int64_t>(), 0) : 0;
}

// Compares the length of the run in the trainer section with the configuration and the data in the same manifest. With
// a wrong length, a resumed run would continue at another row. A run that resumed with another batch has the new batch
// in both sections.
void check_length(const Manifest& manifest) {
  const Json &trainer = manifest.trainer, &config = manifest.config;
  const int64_t batch = trainer.value("global_rows", int64_t{0}), steps = trainer.value("steps_per_epoch", int64_t{0});
  const int64_t all = limit_in(config, "train.batch.global"), each = limit_in(config, "train.batch.per_rank");
  if (batch > 0 && ((all > 0 && batch != all) || (each > 0 && batch % each != 0)))
    corrupt("'trainer.global_rows' is ", batch, ", and 'config.train.batch' is ", config["train"]["batch"].dump());
  // Evaluation and sampling may leave fewer rows for an epoch, never more. A plugin may count its rows otherwise.
  const auto plugins = config.find("plugins");
  const bool built_in_data = plugins == config.end() || plugins->empty();
  if (built_in_data && batch > 0 && steps > 0 && manifest.data.is_object()) {
    const int64_t rows = manifest.data["rows"].get<int64_t>();
    if (rows > 0 && steps > (rows - 1) / batch + 1)
      corrupt("'trainer.steps_per_epoch' is ", steps, ", more than ", rows, " rows have in batches of ", batch);
  }
  const int64_t epochs = limit_in(config, "train.epochs"), most = limit_in(config, "train.max_steps");
  if (steps <= 0 || given(trainer, "total_steps") == nullptr || (epochs == 0 && most == 0)) return;
  int64_t total = INT64_MAX;
  if (epochs > 0 && __builtin_mul_overflow(epochs, steps, &total)) total = INT64_MAX;
  if (most > 0) total = std::min(total, most);
  if (const int64_t stored = trainer["total_steps"].get<int64_t>(); stored != total)
    corrupt("'trainer.total_steps' is ", stored, ", and the steps of an epoch and 'config.train' give ", total);
}

// The pieces of each key must be different stored tensors, agree on the shape of the whole tensor, and have all of its
// elements together. Every save ensures that.
void check_pieces(const std::vector<StoredPiece>& pieces) {
  std::set<std::pair<std::string, std::string>> tensors;
  std::map<std::string, std::pair<const Piece*, int64_t>> left;  // a piece, and the elements that are still missing
  for (const StoredPiece& stored : pieces) {
    if (!tensors.emplace(stored.file, stored.tensor).second)
      corrupt(stored.key, ": ", stored.tensor, " of ", stored.file, " is listed twice");
    const auto [found, first] = left.try_emplace(stored.key, &stored.piece, 0);
    auto& [piece, elements] = found->second;
    if (first) elements = Piece::whole(piece->global_shape).elements();
    if (piece->global_shape != stored.piece.global_shape) corrupt(stored.key, ": its pieces are of several shapes");
    elements -= stored.piece.elements();
    if (elements < 0) corrupt(stored.key, ": its pieces have more elements than the tensor");
  }
  for (const auto& [key, rest] : left)
    if (rest.second > 0) corrupt(key, ": its pieces lack ", rest.second, " elements");
}

void check_file_name(const std::string& name) {
  const bool plain = !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c > ' ' && c != '/' && c < 127;
  });
  if (!plain) corrupt("the file name '", name, "' would leave the checkpoint's folder");
}

void check_data(const Manifest& manifest) {
  const Json& data = manifest.data;
  if (!data.is_object()) corrupt("'data' is not a map");
  text_of(data, "fingerprint");
  if (integer_of(data, "rows") < 0) corrupt("'data.rows' is negative");
  const Json& lists = field(data, "lists");
  if (!lists.is_object()) corrupt("'data.lists' is not a map");
  bool names = false;
  for (const auto& list : lists.items()) {
    const int64_t size = integer_in(list.value(), list.key().c_str());
    if (size < 0) corrupt("'data.lists.", list.key(), "' is negative");
    names = names || size > 0;
  }
  if (names && manifest.files.count(text_of(data, "file")) == 0) corrupt("the file of 'data' is not listed");
}

Manifest parsed(const std::string& text) {
  if (text.size() < body_at || text.compare(0, sizeof opening - 1, opening) != 0 ||
      text.compare(sizeof opening - 1 + hash_digits, sizeof closing - 1, closing) != 0) {
    corrupt("it does not begin as a manifest does");
  }
  const std::string hash = text.substr(sizeof opening - 1, hash_digits);
  if (hash != hash_hex(text.data() + body_at, text.size() - body_at)) corrupt("its contents do not match their hash");
  const Json json = parsed_json(text);
  if (!json.is_object()) corrupt("it is not a JSON object");
  if (const int64_t format = integer_of(json, "format"); format != checkpoint_format) {
    corrupt("it has format ", format, ", this build reads format ", checkpoint_format);
  }
  Manifest manifest;
  manifest.step = integer_of(json, "step");
  manifest.trainer = field(json, "trainer");
  check_trainer(manifest.trainer, manifest.step);
  manifest.config = field(json, "config");
  if (!manifest.config.is_object()) corrupt("'config' is not a map");
  if (!manifest.trainer.empty()) check_config(manifest.config);
  const Json& files = field(json, "files");
  if (!files.is_object()) corrupt("'files' is not a map");
  for (const auto& item : files.items()) {
    check_file_name(item.key());
    manifest.files[item.key()] = {integer_of(item.value(), "bytes"), text_of(item.value(), "xxh3_128")};
  }
  if (json.contains("data")) {
    manifest.data = field(json, "data");
    check_data(manifest);
  }
  if (json.contains("schema")) manifest.schema = field(json, "schema");
  const Json& entries = field(json, "entries");
  if (!entries.is_array()) corrupt("'entries' is not a list");
  for (const Json& entry : entries) {
    manifest.pieces.push_back(stored_piece_from_json(entry));
    const StoredPiece& piece = manifest.pieces.back();
    if (manifest.files.count(piece.file) == 0) corrupt(piece.key, " is in ", piece.file, ", which is not listed");
  }
  if (manifest.pieces.empty() && !manifest.trainer.empty()) corrupt("'entries' is empty");
  check_pieces(manifest.pieces);
  check_length(manifest);
  return manifest;
}

}  // namespace

Json to_json(const StoredPiece& piece) {
  Json json{{"key", piece.key}, {"name", piece.name}, {"kind", piece.kind}};
  if (!piece.moment.empty()) json["moment"] = piece.moment;
  if (piece.member >= 0) json["member"] = piece.member;
  if (piece.replica >= 0) json["replica"] = piece.replica;
  json["dtype"] = piece.dtype;
  json["shape"] = piece.piece.global_shape;
  json["offset"] = piece.piece.offset;
  json["length"] = piece.piece.length;
  if (piece.piece.flat) json["flat"] = {piece.piece.flat->first, piece.piece.flat->second};
  json["file"] = piece.file;
  json["tensor"] = piece.tensor;
  return json;
}

StoredPiece stored_piece_from_json(const Json& json) {
  if (!json.is_object()) corrupt("an entry is not a map");
  StoredPiece stored;
  stored.key = text_of(json, "key");
  stored.name = text_of(json, "name");
  stored.kind = text_of(json, "kind");
  if (json.contains("moment")) stored.moment = text_of(json, "moment");
  if (json.contains("member")) stored.member = number_of(json, "member");
  if (json.contains("replica")) stored.replica = number_of(json, "replica");
  stored.dtype = text_of(json, "dtype");
  stored.piece.global_shape = integers_of(json, "shape");
  stored.piece.offset = integers_of(json, "offset");
  stored.piece.length = integers_of(json, "length");
  if (json.contains("flat")) {
    const std::vector<int64_t> flat = integers_of(json, "flat");
    if (flat.size() != 2) corrupt(stored.key, ": its flat range has no begin and end");
    stored.piece.flat = {flat[0], flat[1]};
  }
  stored.file = text_of(json, "file");
  stored.tensor = text_of(json, "tensor");
  check_file_name(stored.file);
  check_key(stored);
  const std::string fault = piece_error(stored.piece);
  if (!fault.empty()) corrupt(stored.key, ": ", fault);
  return stored;
}

std::string to_text(const Manifest& manifest) {
  Json json{{"format", checkpoint_format}, {"step", manifest.step}, {"trainer", manifest.trainer}};
  json["config"] = manifest.config;
  if (!manifest.data.is_null()) json["data"] = manifest.data;
  if (!manifest.schema.is_null()) json["schema"] = manifest.schema;
  json["files"] = Json::object();
  for (const auto& [name, file] : manifest.files)
    json["files"][name] = {{"bytes", file.bytes}, {"xxh3_128", file.hash}};
  json["entries"] = Json::array();
  for (const StoredPiece& piece : manifest.pieces) json["entries"].push_back(to_json(piece));
  std::string body = json.dump(1);
  body.erase(0, body.find('\n') + 1);  // the brace that the first line already has
  body += '\n';
  return opening + hash_hex(body.data(), body.size()) + closing + body;
}

Manifest manifest_from_text(const std::string& text, const std::string& path) {
  try {
    return parsed(text);
  } catch (const Error& error) {
    throw Error(Failure::corrupt_data, path, ": no valid manifest: ", printable(error.what()));
  }
}

Manifest read_manifest_file(const std::string& step_folder) {
  const std::string path = step_folder + "/manifest.json";
  std::string text;
  try {
    text = read_file(path, longest);
  } catch (const Error& error) {
    throw Error(Failure::corrupt_data, "no complete checkpoint in ", step_folder, ": ", error.what());
  }
  Manifest manifest = manifest_from_text(text, path);
  const std::string name = std::filesystem::path(step_folder).filename().string();
  const std::string wanted = str("step-", manifest.step);
  const bool numbered =
      name.rfind("step-", 0) == 0 && name.size() > 5 && name.find_first_not_of("0123456789", 5) == std::string::npos;
  if (numbered && name != wanted)
    throw Error(Failure::corrupt_data, path, ": 'step' is ", manifest.step, ", and its folder is ", name);
  return manifest;
}

Manifest of_member(Manifest manifest, int member, const std::string& path) {
  int members = 0;
  std::vector<StoredPiece> own;
  for (StoredPiece& piece : manifest.pieces) {
    members = std::max(members, piece.member + 1);
    if (piece.member != member) continue;
    const size_t mark = piece.key.rfind(str("@member", member));
    CONVOY_CHECK(mark != std::string::npos, piece.key, " of member ", member);
    piece.key.erase(mark, str("@member", member).size());
    piece.member = -1;
    own.push_back(std::move(piece));
  }
  if (own.empty())
    throw Error(Failure::config, path, " has no member ", member,
                members == 0 ? std::string("; it is not of an ensemble")
                             : str("; it has ", members, ", from 0 to ", members - 1));
  manifest.pieces = std::move(own);
  // Metrics of the ensemble are not metrics of a member.
  if (manifest.trainer.contains("rows"))
    manifest.trainer["rows"] = manifest.trainer["rows"].get<int64_t>() / std::max(members, 1);
  manifest.trainer["metrics"] = Json::object();
  return manifest;
}

}  // namespace convoy
