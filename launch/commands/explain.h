// `convoy explain CONFIG [--topology FILE] [--ranks N] [--hosts A,B] [--compare a,b,c] [--calibrate | --calibration FILE]
// [--no-times] [--link LATENCY,BANDWIDTH] [--set k=v]…`: what would happen, and how long would a step take?
//
// Plans, places and counts as `convoy run` would, here or on machines that are not here, and starts nothing but
// `convoy-rank --describe`, which tells the sizes of the model's blocks, and for --calibrate, and a comparison of what this host
// would run, what launch/calibration_run.h starts for a few seconds.
#pragma once
#include <iosfwd>
#include <string>
#include <vector>

#include "launch/prepare.h"

namespace convoy {

struct ExplainArguments {
  RunArguments run;                  // `output` stays empty
  std::string topology;              // XML of lstopo; "": this machine
  std::vector<std::string> hosts;    // names; each is a machine of that topology; empty: one
  std::vector<std::string> compare;  // strategies; empty: the configured one in detail
  bool calibrate = false;            // measure, and write calibration.json into the current folder
  bool no_times = false;             // do not measure what a comparison on this host asks for
  std::string calibration;           // a file to read instead; "": none
  std::string link;                  // "20us,12GB/s", between hosts; "": not told
};

// Throws what `convoy run` would refuse; a candidate of a comparison is shown as refused instead.
void explain(const ExplainArguments& arguments, std::ostream& out);

// The hosts that it plans for, apart for tests. Error(command_line) for a name given twice.
Topology hosts_to_explain(const ExplainArguments& arguments, const Host& each);

}  // namespace convoy
