#include "core/config/marks.h"

#include <algorithm>
#include <utility>

namespace convoy {

void MarksWriter::add(const std::string& key, const Mark& mark) {
  const auto found = std::find(files_.begin(), files_.end(), mark.file);
  const auto index = found - files_.begin();
  if (found == files_.end()) files_.push_back(mark.file);
  Json::array_t place;
  place.reserve(3);
  place.emplace_back(index);
  place.emplace_back(mark.line);
  place.emplace_back(mark.column);
  // Keys differ: nobody has to look for one of that name first.
  at_.Container::emplace_back(key, std::move(place));
}

Json MarksWriter::json() { return {{"files", files_}, {"at", std::move(at_)}}; }

Json marks_to_json(const Marks& marks) {
  MarksWriter writer;
  for (const auto& [key, mark] : marks) writer.add(key, mark);
  return writer.json();
}

Marks marks_of(const Json& resolved) {
  Marks marks;
  const auto kept = resolved.find("marks");
  if (kept == resolved.end()) return marks;
  const Json& files = kept->at("files");
  for (const auto& entry : kept->at("at").items()) {
    const Json& place = entry.value();
    marks[entry.key()] = {files.at(place.at(0).get<size_t>()), place.at(1), place.at(2)};
  }
  return marks;
}

}  // namespace convoy
