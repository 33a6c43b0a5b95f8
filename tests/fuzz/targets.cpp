#include "tests/fuzz/targets.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/checkpoint/manifest.h"
#include "core/config/reader.h"
#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "core/control/socket.h"
#include "core/data/formats/token_file.h"
#include "core/data/formats/tokenizer.h"
#include "core/data/formats/vocabulary.h"
#include "core/data/readers/interactions_reader.h"
#include "core/data/readers/table_reader.h"
#include "core/data/sets/fashion_mnist.h"
#include "core/data/sets/images.h"
#include "core/metrics/sink.h"
#include "core/rank_state/summary.h"
#include "core/tensors/safetensors.h"
#include "launch/explain/calibration.h"
#include "launch/prepare/describe.h"

namespace convoy::fuzz {
namespace {

std::string write(const std::string& folder, const std::string& name, const std::string& bytes) {
  const std::string path = folder + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

void read_yaml(const std::string& bytes, const std::string&) {
  static const Catalogues catalogues = all_catalogues();
  read_run_tree(read_yaml_text(bytes, "fuzz.yaml"), catalogues);
}

// `bytes` are the text after the first line. Writes their hash to the first line, because a manifest with a wrong hash
// is not read.
void read_manifest_body(const std::string& bytes, const std::string&) {
  const std::string text = "{\"xxh3_128\": \"" + hash_hex(bytes.data(), bytes.size()) + "\",\n" + bytes;
  const Manifest manifest = manifest_from_text(text, "manifest.json");
  to_text(manifest);
  for (const int member : {0, 1}) of_member(manifest, member, "manifest.json");
}

void read_safetensors(const std::string& bytes, const std::string& folder) {
  const SafetensorsFile file(write(folder, "fuzz.safetensors", bytes));
  for (const std::string& name : file.names()) file.tensor(name).clone();
}

void read_array(const std::string& bytes, const std::string& folder) {
  read_npy(write(folder, "fuzz.npy", bytes)).clone();
}

void read_csv(const std::string& bytes, const std::string& folder) {
  TableOptions options;
  options.target = "y";
  for (const bool classes : {true, false}) {
    options.classification = classes;
    read_table(write(folder, "fuzz.csv", bytes), options);
  }
}

void read_inter(const std::string& bytes, const std::string&) {
  InteractionColumns columns;
  columns.typed_header = true;
  columns.delimiter = '\t';
  parse_interactions("fuzz.inter", bytes, columns);
}

void read_vocabulary(const std::string& bytes, const std::string& folder) {
  // The first byte chooses the kind of file.
  const char* name = !bytes.empty() && bytes[0] == '{' ? "vocab.json" : "vocabulary.txt";
  const Vocabulary vocabulary = Vocabulary::read(write(folder, name, bytes));
  const std::string text = "In the beginning\n";
  const std::vector<int32_t> tokens = vocabulary.encode(text, 0, "text");
  vocabulary.decode(tokens.data(), static_cast<int64_t>(tokens.size()));
}

void read_tokenizer(const std::string& bytes, const std::string& folder) {
  const Tokenizer tokenizer = Tokenizer::read(write(folder, "tokenizer.json", bytes));
  for (const char* text : {"In the beginning, 1\n", "\xff"}) {  // many tokenizers refuse the second
    const std::vector<int32_t> tokens = tokenizer.encode(text, "text");
    tokenizer.decode(tokens.data(), static_cast<int64_t>(tokens.size()));
  }
}

std::string idx(std::string header, size_t values) { return std::move(header) + std::string(values, '\1'); }

void read_idx(const std::string& bytes, const std::string& folder) {
  using std::string_literals::operator""s;
  write(folder, "train-images-idx3-ubyte", bytes);
  write(folder, "train-labels-idx1-ubyte", idx("\0\0\x08\x01\0\0\0\x02"s, 2));
  write(folder, "t10k-images-idx3-ubyte", idx("\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c"s, 2 * 28 * 28));
  write(folder, "t10k-labels-idx1-ubyte", idx("\0\0\x08\x01\0\0\0\x02"s, 2));
  FashionMnist{folder};
}

void read_picture(const std::string& bytes, const std::string& folder) {
  const at::Tensor image = read_image(write(folder, "fuzz.png", bytes), 3);
  fitted_image(image, 8, 8, true);
}

void read_frames(const std::string& bytes, const std::string&) {
  FrameReader reader(frame_limit);
  // As they arrive: in pieces.
  for (size_t at = 0; at < bytes.size(); at += 7) {
    reader.feed(bytes.data() + at, std::min<size_t>(7, bytes.size() - at));
    while (const std::optional<Json> message = reader.next())
      message->dump(-1, ' ', true, Json::error_handler_t::replace);
  }
}

void read_calibration_file(const std::string& bytes, const std::string& folder) {
  read_calibration(write(folder, "calibration.json", bytes));
}

void read_summary_file(const std::string& bytes, const std::string& folder) {
  write(folder, "summary.json", bytes);
  const Json summary = read_summary(folder);
  if (!summary.is_object()) return;
  number_in(summary, "train_seconds", 0);
  whole_in(summary, "steps", -1);
  text_in(summary, "status");
  foreign_key(summary);
}

void read_metrics(const std::string& bytes, const std::string& folder) {
  const std::string path = write(folder, "metrics.jsonl", bytes);
  for (const bool evaluated : {true, false}) make_jsonl_sink(path, 2, evaluated);
  if (evaluations_in(path, 2) != 0) throw std::logic_error("an evaluation that is repeated is still there");
}

void read_tokens(const std::string& bytes, const std::string&) {
  // The first byte chooses the format.
  const char* formats[] = {"npy", "uint16", "uint32"};
  const std::string format = formats[bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]) % 3];
  const std::string text = bytes.empty() ? bytes : bytes.substr(1);
  const TokenFile file = read_token_file(format, "fuzz." + format, text);
  std::vector<int64_t> tokens(static_cast<size_t>(file.count));
  copy_tokens(file, text, 0, file.count, tokens.data());
  check_tokens(file, "fuzz." + format, text, 0, file.count, 1000);
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"yaml", read_yaml},
      {"manifest", read_manifest_body},
      {"safetensors", read_safetensors},
      {"npy", read_array},
      {"csv", read_csv},
      {"inter", read_inter},
      {"vocabulary", read_vocabulary},
      {"tokenizer", read_tokenizer},
      {"idx", read_idx},
      {"image", read_picture},
      {"frames", read_frames},
      {"rendezvous", [](const std::string& bytes, const std::string&) { channel_address(bytes); }},
      {"calibration", read_calibration_file},
      {"summary", read_summary_file},
      {"metrics", read_metrics},
      {"tokens", read_tokens}};
  return all;
}

void check(const Target& target, const std::string& bytes, const std::string& folder) {
  try {
    target.read(bytes, folder);
  } catch (const Error& error) {
    if (error.kind() == Failure::internal) throw std::logic_error(str("a defect of convoy: ", error.what()));
    if (*error.what() == '\0') throw std::logic_error("an error without a message");
  } catch (const std::logic_error&) {
    throw;
  } catch (const std::exception& error) {
    throw std::logic_error(str("not an Error: ", error.what()));
  }
}

}  // namespace convoy::fuzz
