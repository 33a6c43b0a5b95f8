# Joins the files of a page into one text, and writes a source that defines it. Run by a custom command:
#   cmake -D FOLDER=launch/report/page -D OUTPUT=report_page.cpp -P cmake/embed_page.cmake
#
# template.html has {{style}} and {{script}}. convoy replaces the other names in braces when it writes a report.

set(styles uplot/uPlot.min.css page.css)
set(scripts uplot/uPlot.iife.min.js base.js charts.js runs.js farm.js main.js)

function(joined out)
  set(text "")
  foreach(name IN LISTS ARGN)
    file(READ ${FOLDER}/${name} one)
    string(APPEND text "${one}\n")
  endforeach()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

joined(style ${styles})
joined(script ${scripts})
file(READ ${FOLDER}/uplot/LICENSE license)
file(READ ${FOLDER}/template.html page)
string(REPLACE "{{style}}" "${style}" page "${page}")
string(REPLACE "{{script}}" "/*! uPlot:\n${license}*/\n${script}" page "${page}")
file(WRITE ${OUTPUT} "namespace convoy {\nextern const char* const embedded_report_page;\n"
  "const char* const embedded_report_page = R\"embedded(${page})embedded\";\n}  // namespace convoy\n")
