// Factories and entries of the other files, for plugin.cpp.
#pragma once
#include <convoy/plugin.h>

convoy::ModelPtr make_gated_mlp(const convoy::Options& options, const convoy::Schema& schema);
std::shared_ptr<const convoy::LossFunction> make_huber(const convoy::Options& options);
std::shared_ptr<const convoy::Transform> make_cutout(const convoy::Options& options);
