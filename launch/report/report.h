// `convoy report`: one HTML page about runs, farms and ensembles, made from their folders.
//
// report_data reads the folders; report_page puts the data into the page of launch/report/page, which CMake embeds into
// the program (cmake/embed_page.cmake). C++ inserts a run's texts as data only; the page shows them as plain text.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "launch/report/curves.h"
#include "launch/report/listed_run.h"

namespace convoy {

// --- Data of the page ---

struct ReportLimits {
  size_t bytes = 1'750'000;  // size of the data; the page itself has about 120 kB
  size_t points = 1000;      // points of a curve
  size_t curves_of = 200;    // runs with curves and details; a farm's best come first
  size_t listed = 1000;      // lines of a leaderboard
  size_t compared = 60;      // runs whose configurations are compared
  size_t events = 2000;      // bars in a farm's schedule
};

// {version, written, sentences: [3], runs: […], farms: […], differences: {keys, runs}, notes: […]}; page/*.js reads it.
// `folders`: run folders and farms; "a/" and "a" are one. Error(command_line): no folder, or no run in it.
// Error(corrupt_data): summary.json was not written by convoy. Error(io): this user may not read it.
Json report_data(const std::vector<std::string>& folders, const ReportLimits& limits = {});

struct ReportText {
  std::string json;
  std::vector<std::string> notes;  // the key of the data
};
// The same as text, with fewer points per curve until it has at most limits.bytes.
ReportText report_text(const std::vector<std::string>& folders, const ReportLimits& limits = {});

// Returns why a file that exists cannot be read, such as "Permission denied"; else "".
std::string why_unreadable(const std::string& path);
// Adds a note that the page has no `lacks`, if that file exists and cannot be read.
void note_unreadable(const std::string& path, const char* lacks, std::vector<std::string>& notes);

// Three sentences about the runs: what ran, with which result, and how fast or why it failed. From the other keys of
// the data.
std::vector<std::string> report_sentences(const Json& data);

// --- One run ---

struct ReportedRun {
  ListedRun listed;
  Json summary;
  RecordedRun records;
  std::vector<std::pair<std::string, Curve>> memory, cpu;  // bytes and busy cores over seconds, by rank or pipeline
  int farm = -1;                                           // index in `farms`; -1: none
  std::vector<std::string> notes;                          // name files that the page shows only in part
};
ReportedRun reported_run(ListedRun listed);
// `points`: largest number of points of each curve. `label`: unique in the page.
Json to_json(const ReportedRun& run, const std::string& label, size_t points);

// --- One farm ---

struct ReportedFarm {
  ListedRun listed;
  Json summary, leaderboard;
  Json schedule;  // [{pipeline, slot, from, to, end}], in seconds since the first event
  std::vector<std::pair<std::string, Curve>> memory, cpu;  // by pipeline, over seconds since the first event
  std::vector<std::string> notes;                          // name files that the page shows only in part
};
ReportedFarm reported_farm(ListedRun listed, const ReportLimits& limits);
Json to_json(const ReportedFarm& farm, const ReportLimits& limits);

// --- The page ---

// `data`: JSON text. `live`: the page requests /data.json from its server again and again.
std::string report_page(const std::string& data, bool live);

// --- `convoy report --serve`: a server on the loopback interface ---

struct ServeRequest {
  int port = 8360;  // 0: a free one
  std::function<std::string()> data;
  std::function<void(const std::string& url)> ready;
};
// Serves until a signal; returns 0 after SIGINT and SIGTERM. Error(rendezvous): the port is in use.
int serve_report(const ServeRequest& request);

}  // namespace convoy
