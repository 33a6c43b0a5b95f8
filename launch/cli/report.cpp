#include <iostream>

#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/files/output_file.h"
#include "launch/cli/commands.h"
#include "launch/report/report.h"

namespace convoy {
namespace {

void write_report(const ReportArguments& arguments) {
  check_output_ending(arguments.output, {".html", ".htm"}, "-o");
  check_output_path(arguments.output, arguments.force, "-o");
  const ReportText text = report_text(arguments.runs);
  const std::string page = report_page(text.json, false);
  OutputFile file(arguments.output, arguments.force);
  file.write(page);
  file.commit();
  for (const std::string& note : text.notes) std::cerr << "convoy: " << terminal_safe(note) << '\n';
  std::cout << arguments.output << ": " << human_bytes(page.size()) << "; open it in a browser\n" << std::flush;
}

}  // namespace

int report_command(const ReportArguments& arguments) {
  if (!arguments.serve || !arguments.output.empty()) {
    ReportArguments written = arguments;
    if (written.output.empty()) written.output = "report.html";
    write_report(written);
  }
  if (!arguments.serve) return exit_code::done;
  ServeRequest request;
  if (arguments.port >= 0) request.port = arguments.port;
  report_data(arguments.runs);  // reports mistakes before the port is opened
  request.data = [&arguments] { return report_text(arguments.runs).json; };
  request.ready = [](const std::string& url) {
    std::cout << "the report is at " << url << " (Ctrl-C ends it)\n" << std::flush;
  };
  return serve_report(request);
}

}  // namespace convoy
