// How a run's progress reads, from the records that rank 0 posts.
#pragma once
#include <string>

#include "core/options.h"

namespace convoy {

// What a record says in words of its own ("text"), or "epoch 3/20, step 1200/8640, 105.3k/s, loss 0.2213, 0:41 left"
std::string progress_line(const Json& record);
// "epoch 3, step 1296: evaluated hr@10 0.6120, ndcg@10 0.3451"
std::string metrics_line(const Json& record);
// What a finished summary comes to, one line each.
std::string result_text(const Json& summary, const std::string& folder);

std::string short_number(double value);  // 105.3k, 1.05M
std::string clock_text(double seconds);  // 0:41, 1:02:03

}  // namespace convoy
