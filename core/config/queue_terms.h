// What a user writes of how a pipeline waits, where it may run and what ends it: options, and their values as data.
#pragma once
#include <vector>

#include "core/farm.h"
#include "core/options.h"

namespace convoy {

// `defaults`: with default values; else what is left out is null, and stays what it was.
std::vector<Option> queue_options(bool defaults);
// Of a file that brings one further pipeline: name, config (a file, or a whole run's keys), and the above with defaults.
std::vector<Option> added_pipeline_options();
// `terms` with what `written` (values of queue_options) says instead. Throws ConfigError at the key for cores or GPUs that
// are none.
QueueTerms with_terms(QueueTerms terms, const Options& written);

}  // namespace convoy
