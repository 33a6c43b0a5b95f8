// Headers for plugins: your models, losses, data sets and transforms, in a shared library that convoy loads.
// docs/extending.md explains each; docs/examples/plugin has three.
//
//   CONVOY_PLUGIN(registry) {
//     registry.catalogues.kinds["loss"].push_back({"huber", "squared near the target", {…options…}});
//     registry.losses.add("huber", make_huber);
//   }
//
// Link convoy::core. A plugin fits only the version of convoy and of LibTorch that it was built with.
#pragma once
#include "core/base/describe.h"
#include "core/base/error.h"
#include "core/base/options.h"
#include "core/base/random_keys.h"
#include "core/data/dataset.h"
#include "core/losses/losses.h"
#include "core/metrics/model_metrics.h"
#include "core/model.h"
#include "core/plugin.h"
#include "core/registry.h"
